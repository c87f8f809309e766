"""The constants of the timing model: one table, each with its source. Imports no torch.

Hardware figures (cores, clock, LX, ring width) are `openspyre.card`'s; here stands what the model
adds to them. Tags as there: P published, U open torch-spyre cost model, M measured by third
parties, D derived, E estimate. An estimate carries the range in which it may lie. Nothing here is
a measurement of ours. Calibration on measured data replaces the table by a versioned file.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

VERSION = 1
"""Part of every cache key of what was planned or priced with the table."""


def _constant(
    default: Any,
    tag: str,
    source: str,
    unit: str,
    low: float | None = None,
    high: float | None = None,
) -> Any:
    return field(
        default=default,
        metadata={"tag": tag, "source": source, "unit": unit, "range": (low, high)},
    )


@dataclass(frozen=True, kw_only=True)
class TimingTable:
    """Frozen; `override` gives a changed copy. Field metadata: tag, source, unit, range."""

    # LPDDR5
    dram_bytes_per_ns: float = _constant(150.0, "U", "one-way rate of the cost model", "B/ns")
    dram_turnaround_ns_per_byte: float = _constant(
        0.00574, "U", "per byte of min(read, written): balanced traffic runs near 105 GB/s", "ns/B"
    )
    stream_bytes_per_ns: float = _constant(
        22.0,
        "M",
        "one core moves 43 (copy) to 67 GB/s (add) over two and three streams",
        "B/ns",
        16,
        25,
    )
    multicast_full_rate: int = _constant(
        8, "U", "consumers of one read before its efficiency falls", "cores"
    )
    outstanding: int = _constant(2, "E", "transfers a core has under way per direction", "", 1, 8)

    # PT
    pt_fill_rows: int = _constant(64, "U", "rows per task that fill the array", "rows")
    pt_fill_exponent: float = _constant(0.35, "U", "fill = min(1, (rows / 64)^0.35)", "")
    pt_rate_fp8: float = _constant(2.0, "E", "of the 16-bit rate; RaPiD: 2", "", 1, 4)
    pt_rate_int8: float = _constant(4.0, "E", "between RaPiD's 2 (fp8) and 8 (int4)", "", 2, 8)
    pt_rate_fp32: float = _constant(
        0.25, "E", "the array has no float32: split products in several passes", "", 0.125, 0.5
    )

    # SFU
    sfu_cycles_simple: float = _constant(
        1.0, "E", "cycles per lane and operation", "cycles", 0.5, 2
    )
    sfu_cycles_function: float = _constant(
        4.0, "E", "exp, log, division, roots; gelu, exp and neg take the same time at 32 cores",
        "cycles", 1, 8,
    )  # fmt: skip
    sfu_cycles_sort: float = _constant(
        2.0, "E", "per element and comparison stage of a sort or merge", "cycles", 1, 8
    )

    # Ring
    ring_hop_cycles: float = _constant(1.0, "E", "latency of one stop", "cycles", 1, 10)

    # Each task
    task_ns: float = _constant(
        0.0, "M", "start of a task: no fixed time per kernel is visible", "ns", 0, 100
    )

    def override(self, **changes: Any) -> TimingTable:
        """A copy with other constants."""
        return replace(self, **changes)

    def rows(self) -> list[tuple[str, float, str, str, str, tuple[float | None, float | None]]]:
        """(name, value, unit, tag, source, range) of every constant."""
        return [
            (
                item.name,
                getattr(self, item.name),
                item.metadata["unit"],
                item.metadata["tag"],
                item.metadata["source"],
                item.metadata["range"],
            )
            for item in fields(self)
        ]


TABLE = TimingTable()
