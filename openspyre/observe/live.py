"""What running processes do with their devices, as rows: the figures behind `openspyre top`.

Reads the statistics pages only (`stats_page`): no torch, and no cost for the processes. One row a
process and device; what a second reading makes of it are rates.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from openspyre.observe.stats_page import ENGINES, DeviceStats, StatsPage

METRICS: Mapping[str, tuple[str, str]] = {
    "capacity": ("gauge", "Bytes that the device may hold"),
    "reserved": ("gauge", "Bytes in regions"),
    "allocated": ("gauge", "Bytes in blocks"),
    "allocations": ("counter", "Blocks ever given"),
    "frees": ("counter", "Blocks ever given back"),
    "ooms": ("counter", "Allocations refused for want of memory"),
    "streams": ("gauge", "Streams that exist"),
    "handles_used": ("gauge", "Region handles in use"),
    "virtual_now_ns": ("counter", "The device's virtual clock, modelled nanoseconds"),
    "fallback_calls": ("counter", "Operations that the CPU computed"),
    "fallback_bytes": ("counter", "Bytes that they moved"),
    "errors": ("counter", "Streams that failed"),
}
"""The numbers of a device by field of `stats_page.DeviceStats`: kind and meaning."""
ENGINE_METRICS: Mapping[str, tuple[str, str]] = {
    "steps": ("counter", "Steps that the engine ran"),
    "bytes": ("counter", "Bytes that they moved"),
    "busy_ns": ("counter", "Modelled nanoseconds that the engine was busy"),
}


@dataclass(frozen=True)
class Row:
    """A device of a process. `rates`: of each engine, since the reading before, (steps a second by
    the wall, bytes a second by the wall, busy share of the virtual time 0..1); none at first."""

    pid: int
    heartbeat_unix_ns: int
    device: DeviceStats
    rates: Mapping[str, tuple[float, float, float]] | None = None


def rows(pages: Iterable[StatsPage], pid: int | None = None) -> list[Row]:
    """The rows of the pages, by process and device; of one process with `pid`."""
    return [
        Row(page.pid, page.heartbeat_unix_ns, device)
        for page in sorted(pages, key=lambda page: page.pid)
        if pid is None or page.pid == pid
        for device in page.devices
    ]


def with_rates(before: Sequence[Row], now: Sequence[Row], seconds: float) -> list[Row]:
    """`now` with the rates since `before`, which was read `seconds` ago."""
    earlier = {(row.pid, row.device.index): row.device for row in before}
    return [
        Row(row.pid, row.heartbeat_unix_ns, row.device, _rates(old, row.device, seconds))
        if (old := earlier.get((row.pid, row.device.index))) is not None and seconds > 0
        else row
        for row in now
    ]


def _rates(
    old: DeviceStats, new: DeviceStats, seconds: float
) -> dict[str, tuple[float, float, float]]:
    virtual = new.virtual_now_ns - old.virtual_now_ns
    return {
        b.name: (
            (b.steps - a.steps) / seconds,
            (b.bytes - a.bytes) / seconds,
            # A step's time is booked when it ends, so a short interval may show more than all.
            min(1.0, (b.busy_ns - a.busy_ns) / virtual) if virtual > 0 else 0.0,
        )
        for a, b in zip(old.engines, new.engines, strict=True)
    }


def as_dicts(found: Sequence[Row]) -> list[dict[str, object]]:
    """For JSON: `stats_page`'s names and units."""
    return [
        {"pid": r.pid, "heartbeat_unix_ns": r.heartbeat_unix_ns, **asdict(r.device)} for r in found
    ]


def as_csv(found: Sequence[Row]) -> str:
    """A header, then a line a row; engines as <engine>_<number>."""
    head = ["pid", "device", *METRICS]
    head += [f"{engine}_{name}" for engine in ENGINES for name in ENGINE_METRICS]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    for row in found:
        device = row.device
        values = [row.pid, device.index, *(getattr(device, name) for name in METRICS)]
        values += [getattr(engine, name) for engine in device.engines for name in ENGINE_METRICS]
        writer.writerow(values)
    return text.getvalue()


def as_prometheus(found: Sequence[Row]) -> str:
    """Prometheus' text exposition format 0.0.4."""
    lines: list[str] = []
    for field, (kind, meaning) in METRICS.items():
        name = _metric(field, kind)
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{{{_labels(row)}}} {getattr(row.device, field)}" for row in found]
    for field, (kind, meaning) in ENGINE_METRICS.items():
        name = _metric(f"engine_{field}", kind)
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        lines += [
            f'{name}{{{_labels(row)},engine="{engine.name}"}} {getattr(engine, field)}'
            for row in found
            for engine in row.device.engines
        ]
    return "\n".join(lines) + "\n"


def _metric(field: str, kind: str) -> str:
    unit = "_bytes" if field in ("capacity", "reserved", "allocated") else ""
    return f"openspyre_{field}{unit}" + ("_total" if kind == "counter" else "")


def _labels(row: Row) -> str:
    return f'pid="{row.pid}",device="{row.device.index}"'
