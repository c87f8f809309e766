"""SpyreCode directories appear whole or not at all, whoever else writes there."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
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


KILLED = """
import os, signal, sys
sys.path[:0] = [{tests!r}]
from golden_programs import abs64
from openspyre.runtime import spyrecode_write
from openspyre.runtime.spyrecode import Kernel, write_spyrecode
real, written = spyrecode_write._write, 0
def write(path, data):
    global written
    if written == {files}:
        os.kill(os.getpid(), signal.SIGKILL)
    written += 1
    real(path, data)
spyrecode_write._write = write
if {files} == 2:
    os.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
write_spyrecode({place!r}, [Kernel(abs64())])
"""


@pytest.mark.parametrize("files", [0, 1, 2])
def test_rt70_a_writer_killed_between_files_leaves_nothing_to_be_found(
    tmp_path: Path, files: int
) -> None:
    """Killed before file number `files`, or after the last one before it is put in place."""
    place = tmp_path / "c"
    code = KILLED.format(tests=str(Path(__file__).parent), place=str(place), files=files)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not place.exists()
    with pytest.raises(SpyreCodeError, match="no such directory"):
        read_spyrecode(place)
    write_spyrecode(place, [Kernel(abs64())])
    assert read_spyrecode(place).argument_count == 2


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
