"""Reader of the statistics pages that OpenSpyre processes publish in shared memory.

Every process with a started runtime keeps one small file `openspyre-<pid>.stats` of 64-bit words
(`csrc/card/stats_page.h` is the writer and the law of the structure). This module lists and reads
them without torch and without the extension, so that a live view costs the observed process
nothing. Words are written one by one: a page read while it changes may mix two moments, but no
single number is ever half written.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAGIC = 0x59505353  # "SSPY", little-endian
VERSION = 1
MAX_DEVICES = 16
ENGINES = ("H2D", "D2H", "Compute", "HostCompute")  # the order of card::Engine

_HEADER = struct.Struct("<IIQQQQ")
_DEVICE = struct.Struct("<24Q")
PAGE_BYTES = _HEADER.size + MAX_DEVICES * _DEVICE.size


class StatsPageError(ValueError):
    """A file is no statistics page of a version that this reader knows."""


@dataclass(frozen=True)
class EngineStats:
    """One engine of one device. `busy_ns` is modelled time."""

    name: str
    steps: int
    bytes: int
    busy_ns: int


@dataclass(frozen=True)
class DeviceStats:
    """One device of one process. Sizes in bytes; `virtual_now_ns` is modelled time."""

    index: int
    capacity: int
    reserved: int
    allocated: int
    allocations: int
    frees: int
    ooms: int
    streams: int
    handles_used: int
    engines: tuple[EngineStats, ...]
    virtual_now_ns: int
    fallback_calls: int
    fallback_bytes: int
    errors: int


@dataclass(frozen=True)
class StatsPage:
    """One process. Times are nanoseconds since the epoch."""

    pid: int
    start_unix_ns: int
    heartbeat_unix_ns: int
    devices: tuple[DeviceStats, ...]


def parse(data: bytes) -> StatsPage:
    """The page in `data`. Raises StatsPageError for a wrong magic, version, size or count."""
    if len(data) < _HEADER.size:
        raise StatsPageError(f"a statistics page has {PAGE_BYTES} bytes, this has {len(data)}")
    magic, version, pid, start, count, heartbeat = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise StatsPageError(f"no statistics page: magic {magic:#x} instead of {MAGIC:#x}")
    if version != VERSION:
        raise StatsPageError(
            f"statistics page of version {version}; this reader knows version {VERSION}: "
            "use the OpenSpyre of the observed process"
        )
    if len(data) < PAGE_BYTES:
        raise StatsPageError(f"a statistics page has {PAGE_BYTES} bytes, this has {len(data)}")
    if count > MAX_DEVICES:
        raise StatsPageError(f"a statistics page has at most {MAX_DEVICES} devices, not {count}")
    devices = tuple(
        _device(i, _DEVICE.unpack_from(data, _HEADER.size + i * _DEVICE.size)) for i in range(count)
    )
    return StatsPage(pid, start, heartbeat, devices)


def _device(index: int, words: tuple[int, ...]) -> DeviceStats:
    steps, moved, busy = words[8:12], words[12:16], words[16:20]
    engines = tuple(
        EngineStats(name, steps[i], moved[i], busy[i]) for i, name in enumerate(ENGINES)
    )
    return DeviceStats(
        index=index,
        capacity=words[0],
        reserved=words[1],
        allocated=words[2],
        allocations=words[3],
        frees=words[4],
        ooms=words[5],
        streams=words[6],
        handles_used=words[7],
        engines=engines,
        virtual_now_ns=words[20],
        fallback_calls=words[21],
        fallback_bytes=words[22],
        errors=words[23],
    )


def read(path: str | os.PathLike[str]) -> StatsPage:
    """Reads one page. Raises OSError, or StatsPageError naming the file."""
    with open(path, "rb") as file:
        data = file.read(PAGE_BYTES)
    try:
        return parse(data)
    except StatsPageError as error:
        raise StatsPageError(f"{os.fspath(path)}: {error}") from None


def list_pages(directory: str | os.PathLike[str]) -> list[Path]:
    """The page files in `directory` by process id, those of dead processes included."""
    found: list[tuple[int, Path]] = []
    try:
        entries = list(Path(directory).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    for path in entries:
        pid = _pid_in_name(path.name)
        if pid is not None:
            found.append((pid, path))
    return [path for _, path in sorted(found)]


def live_pages(directory: str | os.PathLike[str], *, clean: bool = True) -> Iterator[StatsPage]:
    """Yields the pages of living processes, by process id.

    Pages of dead ones are skipped and, with `clean`, deleted where permissions allow. Files that
    are no page, or of another version, are skipped; `read` says what is wrong with them.
    """
    for path in list_pages(directory):
        try:
            page = read(path)
        except (OSError, StatsPageError):
            continue
        if is_alive(page):
            yield page
        elif clean:
            try:
                path.unlink()
            except OSError:
                continue  # another user's, or already gone


def is_alive(page: StatsPage) -> bool:
    """Whether the process that wrote `page` still runs (its id may have been given to another)."""
    if page.pid == 0:  # kill(0) would ask about our own group
        return False
    try:
        os.kill(page.pid, 0)
    except ProcessLookupError:
        return False
    except (OverflowError, PermissionError):
        return page.pid < 2**31
    started = _process_start_ns(page.pid)
    # A process that started after the page was opened is a later owner of the same id. The kernel
    # counts in hundredths of a second, and wall clocks are corrected: two seconds of tolerance.
    return started is None or started <= page.start_unix_ns + 2_000_000_000


def _pid_in_name(name: str) -> int | None:
    number = name.removeprefix("openspyre-").removesuffix(".stats")
    if name != f"openspyre-{number}.stats" or not (number.isascii() and number.isdigit()):
        return None
    return int(number)


def _process_start_ns(pid: int) -> int | None:
    """Wall-clock start of a process by /proc; None where that cannot be known."""
    try:
        # Field 22; the second field is a name in parentheses that may hold blanks.
        stat = Path(f"/proc/{pid}/stat").read_text()
        ticks = int(stat.rpartition(")")[2].split()[19])
        seconds = ticks / os.sysconf("SC_CLK_TCK")
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return int((booted + seconds) * 1e9)
