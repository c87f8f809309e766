"""Timelines as a Chrome trace (JSON), which Perfetto opens. Imports no torch.

A process per program, a thread per unit of each class of cores; all times are modelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openspyre.program.model import UNITS
from openspyre.timing.timeline import Timeline


def chrome_trace(timelines: Mapping[str, Timeline]) -> dict[str, Any]:
    """{"traceEvents": [...]}; times in microseconds. A span that the model repeats is drawn once,
    with its count and period in its arguments."""
    events: list[dict[str, Any]] = []
    for pid, (name, timeline) in enumerate(timelines.items()):
        events.append(_named("process_name", f"{name} (modelled)", pid))
        named: set[int] = set()
        for span in timeline.spans:
            tid = span.core * len(UNITS) + UNITS.index(span.unit)
            if tid not in named:
                named.add(tid)
                label = f"core {span.core} {span.unit.value}"
                if span.cores > 1:
                    label += f" (and {span.cores - 1} alike)"
                events.append(_named("thread_name", label, pid, tid))
            args: dict[str, Any] = {"bytes": span.nbytes, "cores": span.cores}
            if span.repeats > 1:
                args |= {"repeats": span.repeats, "period_us": span.period_ns / 1000}
            events.append(
                {
                    "ph": "X",
                    "name": span.name,
                    "cat": span.unit.value,
                    "pid": pid,
                    "tid": tid,
                    "ts": span.start_ns / 1000,
                    "dur": (span.end_ns - span.start_ns) / 1000,
                    "args": args,
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _named(what: str, name: str, pid: int, tid: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}
