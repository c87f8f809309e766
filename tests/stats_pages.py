"""Statistics pages made by `struct`, for tests of their readers."""

from __future__ import annotations

import struct
import time
from pathlib import Path


def page_bytes(
    pid: int,
    *,
    magic: int = 0x59505353,
    version: int = 1,
    start: int | None = None,
    devices: list[list[int]] | None = None,
    count: int | None = None,
) -> bytes:
    """A page as `csrc/card/stats_page.h` lays it out."""
    devices = devices or []
    start = time.time_ns() if start is None else start
    head = struct.pack(
        "<IIQQQQ", magic, version, pid, start, len(devices) if count is None else count, start + 5
    )
    body = b"".join(struct.pack("<24Q", *words) for words in devices)
    return head + body + bytes((16 - len(devices)) * 24 * 8)


def write(directory: Path, pid: int, data: bytes) -> Path:
    path = directory / f"openspyre-{pid}.stats"
    path.write_bytes(data)
    return path
