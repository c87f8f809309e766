"""Finding the steady state of a schedule: the same state, one loop iteration on. Imports no torch.

A snapshot is the whole state relative to now: where every queue stands and how far ahead every
server, transfer and token is. When two snapshots agree in all but the steps of loops, what happened
between them will happen again, as long as no loop ends and no size depends on the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openspyre.program.concrete import compiled
from openspyre.program.expr import Binary, Expr
from openspyre.program.model import Compute, Instruction, Loop, Ring, Signal, Wait

if TYPE_CHECKING:
    from openspyre.timing.engine import Engine, Queue


@dataclass(frozen=True)
class Snapshot:
    """The engine when the anchor queue begins an iteration. Equal `state`s go on alike: their times
    count from `time`, and what can delay nothing any more is zero."""

    time: int  # picoseconds; the anchor's clock
    state: tuple[object, ...]
    loops: tuple[tuple[int, ...], ...]  # steps of the running loops of every queue
    sums: dict[str, int]
    spans: int

    @staticmethod
    def take(engine: Engine, anchor: Queue) -> Snapshot:
        now = anchor.clock
        # What lies before every queue's clock can delay nothing any more: how long ago is nothing.
        floor = min((q.clock for q in engine.queues if not q.done), default=now)

        def ahead(time: int) -> int:
            return max(time, floor) - now

        queues = tuple(
            (
                q.done,
                q.pending is None,
                tuple((id(f.body), f.at, f.count) for f in q.frames),
                q.clock - now,
                ahead(q.ended),
                tuple(ahead(end) for end in q.in_flight),
            )
            for q in engine.queues
        )
        groups = tuple(
            (
                ahead(g.lx_free),
                tuple(sorted((name, ahead(end)) for name, end in g.streams.items())),
                tuple(
                    (key, tuple((ahead(time), count) for time, count in units))
                    for key, units in g.tokens.items()
                ),
            )
            for g in engine.groups
        )
        # Turnaround depends on whether reads or writes are ahead: by how much matters only near
        # the change.
        lead = engine.read - engine.written
        near = 64 << 20  # bytes
        balance = lead if abs(lead) <= near and lead <= 0 else (1 if lead > 0 else -1)
        sums = {
            **engine.busy,
            "read": engine.read,
            "written": engine.written,
            "received": engine.received,
            "macs": engine.macs,
            "tasks": engine.tasks,
        }
        return Snapshot(
            now,
            (queues, groups, ahead(engine.dram_free), balance),
            tuple(tuple(f.step for f in q.frames) for q in engine.queues),
            sums,
            len(engine.spans),
        )


def steady_steps(
    queues: list[Queue], before: Snapshot, now: Snapshot, fixed: Mapping[str, int]
) -> int:
    """How many more times what lies between the snapshots will repeat; 0 when that is unknown."""
    if before.state != now.state or now.time <= before.time:
        return 0
    # Reads that lead by less than a whole step could fall behind.
    steps: int | None = None
    for queue, a, b in zip(queues, before.loops, now.loops, strict=True):
        moved = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
        if not moved:
            continue
        if len(moved) > 1:
            return 0
        frame = queue.frames[moved[0]]
        advance = b[moved[0]] - a[moved[0]]
        if advance < 0:
            return 0
        # The last two iterations are gone through: loops end, and tiles may be ragged.
        left = (frame.count - 3 - frame.step) // advance
        steps = left if steps is None else min(steps, left)
    if steps is None or steps < 1:
        return 0
    for queue, a, b in zip(queues, before.loops, now.loops, strict=True):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            loop = queue.frames[i].loop
            if (
                x != y
                and loop is not None
                # What lies between the snapshots counts too: it is what will be repeated.
                and not _same_sizes(queue, loop, x, (steps + 1) * (y - x), fixed)
            ):
                return 0
    return steps


def _same_sizes(
    queue: Queue, loop: Loop, step: int, advance: int, fixed: Mapping[str, int]
) -> bool:
    """Whether the sizes inside `loop` stay what they are for `advance` more steps."""
    if loop.variable is None:
        return True
    for expr in _sizes(loop.body):
        names = set(expr.names())
        if loop.variable not in names:
            continue
        # Where the variable goes in monotonically, equal ends mean equal in between.
        if _periodic(expr, loop.variable) or any(
            name not in fixed and name != loop.variable for name in names
        ):
            return False
        value = compiled(expr)
        here = value({**queue.values, loop.variable: step})
        if value({**queue.values, loop.variable: step + advance + 1}) != here:
            return False
    return True


def _sizes(body: tuple[Instruction, ...]) -> list[Expr]:
    out: list[Expr] = []
    for item in body:
        if isinstance(item, Loop):
            out.append(item.count)
            out.extend(_sizes(item.body))
        elif isinstance(item, Wait | Signal):
            out.append(item.count)
        else:
            out.extend(label.size for label in item.over)
            if isinstance(item, Ring):
                out.append(item.count)
            if isinstance(item, Compute):
                out.append(item.limit)
    return out


def _periodic(expr: Expr, name: str) -> bool:
    """Whether `name` occurs under anything that need not be monotonic in it."""
    if not isinstance(expr, Binary) or name not in set(expr.names()):
        return False
    if expr.op in ("%", "=="):
        return True
    if expr.op == "*" and name in set(expr.left.names()) and name in set(expr.right.names()):
        return True
    if expr.op in ("+", "-", "min", "max", "<", "<="):
        both = name in set(expr.left.names()) and name in set(expr.right.names())
        if both:
            return True
    return _periodic(expr.left, name) or _periodic(expr.right, name)
