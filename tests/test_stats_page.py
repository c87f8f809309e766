"""The reader of statistics pages: pages written by `struct`, without torch or the extension."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stats_pages import page_bytes, write

from openspyre.observe import stats_page
from openspyre.observe.stats_page import StatsPageError

WORDS = st.integers(0, 2**64 - 1)


def dead_pid() -> int:
    """The id of a process that has just ended."""
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    child.wait()
    return child.pid


@given(st.lists(st.lists(WORDS, min_size=24, max_size=24), max_size=16), WORDS)
def test_every_word_of_a_page_arrives_under_its_name(devices: list[list[int]], pid: int) -> None:
    page = stats_page.parse(page_bytes(pid, start=7, devices=devices))
    assert (page.pid, page.start_unix_ns, page.heartbeat_unix_ns) == (pid, 7, 12)
    assert len(page.devices) == len(devices)
    for index, (device, words) in enumerate(zip(page.devices, devices, strict=True)):
        assert device.index == index
        assert [
            device.capacity,
            device.reserved,
            device.allocated,
            device.allocations,
            device.frees,
            device.ooms,
            device.streams,
            device.handles_used,
        ] == words[:8]
        assert [e.name for e in device.engines] == ["H2D", "D2H", "Compute", "HostCompute"]
        assert [e.steps for e in device.engines] == words[8:12]
        assert [e.bytes for e in device.engines] == words[12:16]
        assert [e.busy_ns for e in device.engines] == words[16:20]
        assert [
            device.virtual_now_ns,
            device.fallback_calls,
            device.fallback_bytes,
            device.errors,
        ] == words[20:]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (page_bytes(1, magic=0), "magic"),
        (page_bytes(1, version=2), "version 2"),
        (page_bytes(1)[:-1], "bytes"),
        (b"", "bytes"),
        (page_bytes(1, count=17), "at most 16"),
    ],
)
def test_what_is_no_page_is_refused_with_the_file_named(
    tmp_path: Path, data: bytes, reason: str
) -> None:
    path = write(tmp_path, 1, data)
    with pytest.raises(StatsPageError, match=reason) as error:
        stats_page.read(path)
    assert str(path) in str(error.value)


def test_pages_are_listed_by_process_id_and_other_files_are_not(tmp_path: Path) -> None:
    for pid in (30, 4, 111):
        write(tmp_path, pid, page_bytes(pid))
    for name in ("openspyre-.stats", "openspyre-1x.stats", "other-5.stats", "openspyre-7"):
        (tmp_path / name).write_bytes(b"")
    names = [path.name for path in stats_page.list_pages(tmp_path)]
    assert names == ["openspyre-4.stats", "openspyre-30.stats", "openspyre-111.stats"]
    assert stats_page.list_pages(tmp_path / "missing") == []


def test_pages_of_dead_processes_are_skipped_and_cleaned(tmp_path: Path) -> None:
    mine = write(tmp_path, os.getpid(), page_bytes(os.getpid()))
    gone = dead_pid()
    stale = write(tmp_path, gone, page_bytes(gone))
    strange = write(tmp_path, 3, b"no page")
    assert [p.pid for p in stats_page.live_pages(tmp_path, clean=False)] == [os.getpid()]
    assert stale.exists()
    assert [p.pid for p in stats_page.live_pages(tmp_path)] == [os.getpid()]
    assert mine.exists() and strange.exists() and not stale.exists()


def test_a_page_older_than_its_process_is_of_an_earlier_owner_of_the_id(tmp_path: Path) -> None:
    write(tmp_path, os.getpid(), page_bytes(os.getpid(), start=10**18))  # in 2001
    assert list(stats_page.live_pages(tmp_path)) == []


def test_reading_pages_imports_no_torch() -> None:
    code = "import sys, openspyre.observe.stats_page; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
