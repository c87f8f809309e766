"""What the timing engine returns: a modelled schedule and its sums. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from openspyre.program.model import Unit


@dataclass(frozen=True)
class Span:
    """One task of a class of cores. Times in nanoseconds from the start of the program.

    `repeats` > 1: the model found a steady state here and did not spell out that many further
    occurrences, one every `period_ns`.
    """

    cores: int  # that run it alike, `core` being the first
    core: int
    unit: Unit
    name: str
    start_ns: float
    end_ns: float
    nbytes: int  # per core; bytes through LPDDR5 or the ring, or of LX tiles
    repeats: int = 1
    period_ns: float = 0.0


@dataclass
class Server:
    """Something that several tasks compete for: busy time, and what went through it."""

    name: str
    busy_ns: float = 0.0
    amount: float = 0.0  # bytes or multiply-accumulates


@dataclass
class Timeline:
    """The modelled run of one Program. All figures are a model's, never measurements."""

    program: str
    duration_ns: float
    spans: list[Span] = field(default_factory=list)
    servers: dict[str, Server] = field(default_factory=dict)
    bytes_read: int = 0  # from LPDDR5, a multicast read counted once
    bytes_written: int = 0
    lx_bytes_received: int = 0  # by all cores, from LPDDR5 and the ring
    macs: int = 0
    cores: int = 0
    classes: int = 0  # groups of cores that behave alike
    expanded: int = 0  # tasks the engine went through
    skipped: int = 0  # tasks it extrapolated

    def utilisation(self) -> dict[str, float]:
        """Busy share of each server, 0..1. PT, SFU and LX: the average over the cores."""
        if self.duration_ns <= 0:
            return dict.fromkeys(self.servers, 0.0)
        return {name: s.busy_ns / self.duration_ns for name, s in self.servers.items()}

    @property
    def bound_by(self) -> str:
        """The server that is busy longest."""
        if not self.servers:
            return "nothing"
        return max(self.servers.values(), key=lambda s: s.busy_ns).name

    def as_dict(self) -> dict[str, Any]:
        """For JSON. Times in ns."""
        return {
            "program": self.program,
            "modelled": True,
            "duration_ns": self.duration_ns,
            "bound_by": self.bound_by,
            "utilisation": self.utilisation(),
            "busy_ns": {name: server.busy_ns for name, server in self.servers.items()},
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "lx_bytes_received": self.lx_bytes_received,
            "macs": self.macs,
            "cores": self.cores,
            "classes": self.classes,
            "tasks": {"expanded": self.expanded, "extrapolated": self.skipped},
            "spans": [
                {
                    "cores": s.cores,
                    "core": s.core,
                    "unit": s.unit.value,
                    "name": s.name,
                    "start_ns": s.start_ns,
                    "end_ns": s.end_ns,
                    "bytes": s.nbytes,
                    "repeats": s.repeats,
                    "period_ns": s.period_ns,
                }
                for s in self.spans
            ],
        }

    def text(self, spans: int = 0) -> str:
        """A summary, and the first `spans` tasks."""
        lines = [
            f"{self.program}: {_microseconds(self.duration_ns)} us (modelled),"
            f" bound by {self.bound_by}",
            f"  LPDDR5  read {self.bytes_read:,} B, written {self.bytes_written:,} B"
            f" ({(self.bytes_read + self.bytes_written) / max(self.duration_ns, 1e-9):.1f} GB/s)",
            f"  LX      received {self.lx_bytes_received:,} B",
        ]
        if self.macs:
            rate = 2 * self.macs / max(self.duration_ns, 1e-9) / 1000
            lines.append(f"  PT      {self.macs:,} multiply-accumulates ({rate:.1f} TFLOP/s)")
        lines.append(
            f"  cores   {self.cores} in {self.classes} groups that go in step;"
            f" {self.expanded:,} tasks modelled one by one, {self.skipped:,} more alike"
        )
        for name, share in sorted(self.utilisation().items(), key=lambda item: -item[1]):
            lines.append(f"  {name:<8}{100 * share:5.1f} % {'#' * round(40 * share)}")
        for span in self.spans[:spans]:
            more = (
                f" x{span.repeats} every {span.period_ns / 1000:.2f} us" if span.repeats > 1 else ""
            )
            lines.append(
                f"    {span.start_ns / 1000:10.2f} .. {span.end_ns / 1000:10.2f} us"
                f"  core {span.core:>2} (x{span.cores})  {span.unit.value:<5} {span.name}"
                f"  {span.nbytes:,} B{more}"
            )
        return "\n".join(lines)


def _microseconds(ns: float) -> str:
    """Three digits after the point for what is short."""
    return f"{ns / 1000:,.1f}" if ns >= 100_000 else f"{ns / 1000:,.3f}"
