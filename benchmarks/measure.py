"""Timing of statements beside each other, and the row that a subject reports.

Candidates are measured in turn, A B A B, in short batches, and compared by their medians: whatever
else the machine does falls on all of them alike. Imports no torch.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Timing:
    """Seconds per call, one number a batch: by the wall and by the processor (all threads)."""

    wall: Sequence[float]
    cpu: Sequence[float]

    @property
    def median(self) -> float:
        """Median wall seconds per call."""
        return statistics.median(self.wall)

    @property
    def best(self) -> float:
        """Least wall seconds per call: what a quiet moment gave."""
        return min(self.wall)

    @property
    def cpu_median(self) -> float:
        """Median processor seconds per call, summed over the process's threads."""
        return statistics.median(self.cpu)


def _batch(timer: timeit.Timer, seconds: float) -> int:
    """Calls that take about `seconds`, at least one."""
    calls = 1
    while (took := timer.timeit(calls)) < seconds / 4:
        calls *= 4
    return max(1, round(calls * seconds / took))


def interleave(
    statements: Mapping[str, str],
    names: Mapping[str, Any],
    *,
    repeats: int = 400,
    batch_seconds: float = 3e-4,
    before: str = "pass",
) -> dict[str, Timing]:
    """Times each of `statements` (name to source text, run with the globals `names`).

    `repeats` batches each, in turn. A batch is short, so that most end before the machine gives
    the core to somebody else; a statement that takes longer than `batch_seconds` is a batch alone.
    `before` is run ahead of every batch and not timed.
    """
    scope = dict(names)
    prepare = compile(before, "<before>", "exec")
    timers = {name: timeit.Timer(text, globals=scope) for name, text in statements.items()}
    for timer in timers.values():
        timer.timeit(1)  # first calls build tables and touch memory
    calls = {name: _batch(timer, batch_seconds) for name, timer in timers.items()}
    wall: dict[str, list[float]] = {name: [] for name in timers}
    cpu: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(repeats):
        for name, timer in timers.items():
            exec(prepare, scope)
            start = time.process_time()
            wall[name].append(timer.timeit(calls[name]) / calls[name])
            cpu[name].append((time.process_time() - start) / calls[name])
    return {name: Timing(wall[name], cpu[name]) for name in timers}


@contextmanager
def one_processor() -> Iterator[None]:
    """Keeps every thread of this process on one processor while it lasts (Linux; else nothing).

    Work that another thread does for us is then measured where the reference is: processors of a
    shared machine differ by half in what their neighbours leave them.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    _move_threads({min(before)})
    try:
        yield
    finally:
        _move_threads(before)


def _move_threads(processors: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(int(thread), processors)


@dataclass(frozen=True)
class Row:
    """One line of the table. `ok` is None where the figure has no target."""

    subject: str
    name: str
    ours: float
    unit: str
    reference: float | None = None
    ratio: float | None = None  # ours / reference
    target: str = ""
    ok: bool | None = None
    note: str = ""
    detail: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The row for JSON."""
        return asdict(self)


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return (
        f"{value:.3f}"
        if abs(value) < 10
        else f"{value:.1f}"
        if abs(value) < 1000
        else f"{value:.0f}"
    )


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text."""
    head = ("", "ours", "reference", "unit", "ratio", "target", "", "")
    cells = [head]
    for row in rows:
        verdict = "" if row.ok is None else "ok" if row.ok else "MISS"
        cells.append(
            (
                row.name,
                _figure(row.ours),
                _figure(row.reference),
                row.unit,
                _figure(row.ratio),
                row.target,
                verdict,
                row.note,
            )
        )
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    right = {1, 2, 4}
    return "\n".join(
        "  ".join(
            text.rjust(width) if i in right else text.ljust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def rows_of_worker(module: str, environment: Mapping[str, str]) -> Iterator[Row]:
    """The rows that `python -m module` prints as JSON on its last line, run in a process of its own
    on one thread, with `environment` on top. RuntimeError with its errors when it fails."""
    worker = subprocess.run(
        [sys.executable, "-m", module],
        env={**os.environ, "OPENSPYRE_THREADS": "1", "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if worker.returncode:
        raise RuntimeError(f"the worker failed:\n{worker.stderr}")
    for row in json.loads(worker.stdout.splitlines()[-1]):
        yield Row(**row)
