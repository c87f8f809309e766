"""SpyreCode directories appear whole or not at all, whoever else writes there."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from golden_programs import abs64

from openspyre.runtime.spyrecode import (
    PROGRAM_BASE,
    ComputeOnDevice,
    Kernel,
    SpyreCodeError,
    read_spyrecode,
    write_spyrecode,
)

BASE = PROGRAM_BASE


def test_rt70_a_directory_appears_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.rename

    def killed(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        write_spyrecode(tmp_path / "c", [Kernel(abs64())])
    monkeypatch.setattr(os, "rename", real)
    assert list(tmp_path.iterdir()) == []


def test_rt70_a_directory_that_says_the_same_is_kept_another_is_replaced(tmp_path: Path) -> None:
    place = write_spyrecode(tmp_path / "c", [Kernel(abs64())])
    inode = place.stat().st_ino
    write_spyrecode(place, [Kernel(abs64())])
    assert place.stat().st_ino == inode
    write_spyrecode(place, [Kernel(abs64(), "other")])
    assert place.stat().st_ino != inode
    assert read_spyrecode(place).steps[-1] == ComputeOnDevice(BASE, "other", (0, 1))
    (place / "spyrecode.json").write_text("half")
    write_spyrecode(place, [Kernel(abs64())])
    read_spyrecode(place)
    (place / "letter.txt").write_text("dear reader")
    with pytest.raises(SpyreCodeError, match="holds other files"):
        write_spyrecode(place, [Kernel(abs64(), "other")])
    assert (place / "letter.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def _write_often(place: Path, name: str) -> None:
    for _ in range(10):
        write_spyrecode(place, [Kernel(abs64(), name)])


def test_rt70_processes_that_write_one_directory_agree(tmp_path: Path) -> None:
    place = tmp_path / "c"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_often, args=(place, n)) for n in ("a", "a", "b")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    step = read_spyrecode(place).steps[-1]
    assert isinstance(step, ComputeOnDevice) and step.name in ("a", "b")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
