"""The timing engine: a Program and a card in, a modelled Timeline out.

A deterministic list schedule at the granularity of tile transfers. Every group of alike cores
(`classes.py`) has its five in-order queues; a task starts when its queue comes to it, its tokens
are there and a transfer slot is free, and then competes for the servers: LPDDR5 (all cores), the
ring's busiest link, and per core the LX port, a stream per operand, PT and SFU. When the whole
state repeats from one iteration of a loop to the next, the iterations that are left are added
without going through them (`steady.py`).

Reads the Program only: never touches data, imports no torch.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from openspyre.card import PRESETS, CardSpec
from openspyre.program.concrete import Environment, Instance, ProgramError, compiled
from openspyre.program.model import (
    Compute,
    Instruction,
    Load,
    Loop,
    Program,
    Ring,
    Signal,
    Store,
    Unit,
    Wait,
)
from openspyre.timing.classes import CoreClass, core_classes, group_size, moves
from openspyre.timing.costs import PS, Costs, Demand
from openspyre.timing.steady import Snapshot, steady_steps
from openspyre.timing.table import TABLE, TimingTable
from openspyre.timing.timeline import Server, Span, Timeline

Task: TypeAlias = Load | Store | Ring | Compute

NEVER = sys.maxsize
MAX_TASKS = 5_000_000
"""Tasks gone through before a program is refused as endless."""


@dataclass
class Frame:
    """A position in one loop (or in the queue itself)."""

    body: tuple[Instruction, ...]
    loop: Loop | None
    count: int
    step: int = 0
    at: int = 0


@dataclass
class Queue:
    """One queue of a class of cores. Times in picoseconds."""

    group: int
    unit: Unit
    values: Environment
    frames: list[Frame]
    clock: int = 0  # when it comes to its next instruction
    ended: int = 0  # when all tasks so far have ended
    in_flight: deque[int] = field(default_factory=deque)  # ends of transfers under way
    pending: Task | None = None  # the task it stands at
    done: bool = False
    changed: bool = True  # since it was last looked at: itself, or its group's tokens and streams


@dataclass
class Group:
    """What a class of cores owns."""

    cores: CoreClass
    queues: list[Queue] = field(default_factory=list)
    lx_free: int = 0
    streams: dict[str, int] = field(default_factory=dict)
    tokens: dict[tuple[str, int], deque[list[int]]] = field(default_factory=dict)  # [time, count]


class Engine:
    """One run. `run` gives the Timeline."""

    def __init__(
        self,
        program: Program,
        symbols: Mapping[str, int] | None,
        card: CardSpec,
        table: TimingTable,
        keep_spans: bool,
        extrapolate: bool,
    ) -> None:
        self.instance = Instance(program, symbols)
        if program.cores > card.cores:
            raise ProgramError(
                f"{program.name} runs on {program.cores} cores, card {card.name} has {card.cores}"
            )
        self.program, self.card, self.table = program, card, table
        self.costs = Costs(card, table)
        self.keep_spans = keep_spans
        classes = core_classes(self.instance)
        self.groups = [Group(cores) for cores in classes]
        self.group_of = {core: i for i, cls in enumerate(classes) for core in cls.cores}
        self.queues: list[Queue] = []
        for number, cls in enumerate(classes):
            for unit in Unit:
                body = program.queues.get(unit, ())
                if body:
                    values = dict(self.instance.core_values[cls.leader])
                    queue = Queue(number, unit, values, [Frame(body, None, 1)])
                    self.queues.append(queue)
                    self.groups[number].queues.append(queue)
        for group in self.groups:
            for token in program.tokens:
                for index in range(token.count):
                    units = deque([[0, token.initial]] if token.initial else [])
                    group.tokens[token.name, index] = units
        self.dram_free = 0
        self.read = self.written = 0  # LPDDR5 bytes
        self.spans: list[Span] = []
        self.busy = dict.fromkeys(("LPDDR5", "PT", "SFU", "LX", "ring"), 0)
        self.macs = self.received = self.tasks = self.skipped = 0
        self.end = 0
        self.demands: dict[tuple[int, int], tuple[Demand, Demand]] = {}
        self.snapshots: dict[tuple[int, ...], Snapshot] = {}
        self.anchor = self._anchor() if extrapolate else None
        self.links: dict[tuple[int, tuple[int, ...]], tuple[int, int]] = {}

    def _anchor(self) -> Queue | None:
        """The queue whose loop iterations are compared: one that computes, if any."""
        for unit in (Unit.PT, Unit.SFU, Unit.STORE, Unit.RING, Unit.LOAD):
            for queue in self.queues:
                if queue.unit is unit:
                    return queue
        return None

    # --- the schedule

    def run(self) -> Timeline:
        """Raises ProgramError for waits that nothing ends and for more than MAX_TASKS tasks."""
        ready = [NEVER] * len(self.queues)  # when each queue's next task may start
        while True:
            before, skipped = self.tasks, self.skipped
            for number, queue in enumerate(self.queues):
                if queue.changed:
                    queue.changed = False
                    at = None if queue.done else self._advance(queue)
                    ready[number] = NEVER if at is None else at
            if self.skipped != skipped:  # all times have moved on: what was found before is stale
                for queue in self.queues:
                    queue.changed = True
                continue
            first = min(ready, default=NEVER)
            if first != NEVER:
                queue = self.queues[ready.index(first)]
                self._execute(first, queue)
                self._touch(queue.group)
            elif all(queue.done for queue in self.queues):
                break
            elif self.tasks == before:  # not even a signal was given in this round
                raise self._deadlock()
        return self._timeline()

    def _touch(self, group: int) -> None:
        """What the queues of a group wait for may have come."""
        for queue in self.groups[group].queues:
            queue.changed = True

    def _advance(self, queue: Queue) -> int | None:
        """Takes a queue to its next task and returns when that may start; None while it waits."""
        while queue.pending is None:
            item = self._next(queue)
            if item is None:
                queue.done = True
                return None
            values = queue.values
            if isinstance(item, Wait):
                if not self._wait(queue, item):
                    return None
            elif isinstance(item, Signal):
                self._signal(queue, item)
            elif isinstance(item, Loop):
                count = compiled(item.count)(values)
                queue.frames[-1].at += 1
                if count > 0:
                    if item.variable is not None:
                        values[item.variable] = 0
                    queue.frames.append(Frame(item.body, item, count))
                continue
            else:
                queue.pending = item
                break
            queue.frames[-1].at += 1
            self._count()
        ready = queue.clock
        if isinstance(queue.pending, Load | Store):
            if len(queue.in_flight) >= self.table.outstanding:
                ready = max(ready, queue.in_flight[0])
            # Not before its stream is free: LPDDR5 serves in the order in which it is asked.
            ready = max(ready, self.groups[queue.group].streams.get(moves(queue.pending), 0))
        return ready

    def _count(self) -> None:
        self.tasks += 1
        if self.tasks > MAX_TASKS:
            raise ProgramError(
                f"{self.program.name}: more than {MAX_TASKS:,} tasks without a steady state"
            )

    def _next(self, queue: Queue) -> Instruction | None:
        frames = queue.frames
        while frames:
            frame = frames[-1]
            if frame.at < len(frame.body):
                return frame.body[frame.at]
            frame.step += 1
            if frame.step < frame.count:
                frame.at = 0
                assert frame.loop is not None
                if frame.loop.variable is not None:
                    queue.values[frame.loop.variable] = frame.step
                if queue is self.anchor:
                    self._compare(queue)
                continue
            frames.pop()
            if frame.loop is not None and frame.loop.variable is not None:
                queue.values.pop(frame.loop.variable, None)
        return None

    def _tokens(self, group: int, token: str, index: int) -> deque[list[int]]:
        units = self.groups[group].tokens.get((token, index))
        if units is None:
            raise ProgramError(f"{self.program.name}: no semaphore {token}[{index}]")
        return units

    def _wait(self, queue: Queue, item: Wait) -> bool:
        count = compiled(item.count)(queue.values)
        units = self._tokens(queue.group, item.token, compiled(item.index)(queue.values))
        if sum(unit[1] for unit in units) < count:
            return False
        while count > 0:
            unit = units[0]
            queue.clock = max(queue.clock, unit[0])
            taken = min(count, unit[1])
            unit[1] -= taken
            count -= taken
            if unit[1] == 0:
                units.popleft()
        return True

    def _signal(self, queue: Queue, item: Signal) -> None:
        group = queue.group
        if item.core is not None:
            core = compiled(item.core)(queue.values)
            if core not in self.group_of:
                raise ProgramError(
                    f"{self.program.name}: signal to core {core}, which is not there"
                )
            group = self.group_of[core]
        units = self._tokens(group, item.token, compiled(item.index)(queue.values))
        units.append([max(queue.ended, queue.clock), compiled(item.count)(queue.values)])
        self._touch(group)

    # --- tasks

    def _demand(self, queue: Queue, item: Task) -> tuple[Demand, Demand]:
        """(of the slowest core, of all cores of the class); cached while no loop variable shapes
        the task."""
        key = (queue.group, id(item))
        known = self.demands.get(key)
        if known is not None:
            return known
        fixed = self.instance.core_values
        group = self.groups[queue.group].cores
        most = total = Demand()
        for leader, count in group.variants:
            values = queue.values
            if len(group.variants) > 1:
                # The loop variables are the queue's, the lets each variant's own.
                values = {**queue.values, **fixed[leader]}
            demand = self.costs.of(item, values)
            most, total = most.most(demand), total.plus(demand, count)
        if all(name in fixed[0] for label in item.over for name in label.size.names()):
            self.demands[key] = most, total
        return most, total

    def _execute(self, ready: int, queue: Queue) -> None:
        item = queue.pending
        assert item is not None
        queue.pending = None
        queue.frames[-1].at += 1
        self._count()
        demand, total = self._demand(queue, item)
        group = self.groups[queue.group]
        start = ready + round(self.table.task_ns * PS)
        nbytes = demand.nbytes
        if isinstance(item, Load | Store):
            if len(queue.in_flight) >= self.table.outstanding:
                queue.in_flight.popleft()
            end = self._transfer(group, item, demand, total, start)
            queue.in_flight.append(end)
            queue.clock = max(queue.clock, start)
        elif isinstance(item, Ring):
            end, nbytes = self._ring(queue, group, item, demand, total, start)
            queue.clock = end
        else:
            end = max(start + demand.unit_ps, self._lx(group, demand, total, start))
            self.busy["PT" if queue.unit is Unit.PT else "SFU"] += total.unit_ps
            self.macs += total.macs
            queue.clock = end
        queue.ended = max(queue.ended, end)
        self.end = max(self.end, end)
        if self.keep_spans and end > start:
            self.spans.append(
                Span(
                    len(group.cores),
                    group.cores.leader,
                    queue.unit,
                    _name(item),
                    start / PS,
                    end / PS,
                    nbytes,
                )
            )

    def _lx(self, group: Group, demand: Demand, total: Demand, start: int, times: int = 1) -> int:
        """Passes a task's bytes through the LX port; returns when the slowest core is done."""
        if demand.lx_bytes == 0:
            return start
        per_byte = self.costs.lx_ps_per_byte * times
        group.lx_free = max(group.lx_free, start) + round(demand.lx_bytes * per_byte)
        self.busy["LX"] += round(total.lx_bytes * per_byte)
        return group.lx_free

    def _transfer(
        self, group: Group, item: Load | Store, demand: Demand, total: Demand, start: int
    ) -> int:
        table = self.table
        moved = total.nbytes
        before = min(self.read, self.written)
        penalty = 1.0
        if isinstance(item, Load):
            self.received += moved
            if item.multicast:
                size = group_size(self.instance, item)
                moved = -(-moved // size)
                penalty = max(1.0, size / table.multicast_full_rate)
            self.read += moved
        else:
            self.written += moved
        turned = min(self.read, self.written) - before
        busy = round(
            PS
            * (
                moved * penalty / table.dram_bytes_per_ns
                + turned * table.dram_turnaround_ns_per_byte
            )
        )
        self.dram_free = max(self.dram_free, start) + busy
        self.busy["LPDDR5"] += busy
        alone = start + round(PS * demand.nbytes / table.stream_bytes_per_ns)
        # The stream is a limit of rate: it is free again when it alone would be done.
        group.streams[moves(item)] = alone
        return max(self.dram_free, alone, self._lx(group, demand, total, start))

    def _ring(
        self, queue: Queue, group: Group, item: Ring, demand: Demand, total: Demand, start: int
    ) -> tuple[int, int]:
        """All cores of the class at once: the busiest link decides."""
        count = compiled(item.count)(queue.values)
        busiest = longest = 0
        for q in range(count):
            sources = []
            for core in group.cores.cores:
                values = {**queue.values, **self.instance.core_values[core], item.variable: q}
                source = compiled(item.core)(values)
                if not 0 <= source < self.instance.cores:
                    raise ProgramError(
                        f"{self.program.name}: ring from core {source}, which is not there"
                    )
                sources.append(source)
            load, hops = self._link_load(group.cores.cores, tuple(sources))
            busiest += load
            longest = max(longest, hops)
        moved = round(demand.nbytes * busiest * self.costs.ring_ps_per_byte)
        latency = round(longest * self.table.ring_hop_cycles * self.costs.cycle_ps)
        self.busy["ring"] += moved
        self.received += total.nbytes * count
        end = max(start + moved + latency, self._lx(group, demand, total, start, count))
        return end, demand.nbytes * count

    def _link_load(self, to: tuple[int, ...], sources: tuple[int, ...]) -> tuple[int, int]:
        """(transfers over the busiest link, longest way) when each goes the shorter way round."""
        key = (to[0], sources)
        known = self.links.get(key)
        if known is not None:
            return known
        stops = self.card.cores
        load: dict[tuple[int, int], int] = {}
        longest = 0
        for target, source in zip(to, sources, strict=True):
            ahead = (target - source) % stops
            step, hops = (1, ahead) if ahead <= stops - ahead else (-1, stops - ahead)
            longest = max(longest, hops)
            at = source
            for _ in range(hops):
                load[at, step] = load.get((at, step), 0) + 1
                at = (at + step) % stops
        result = (max(load.values(), default=0), longest)
        self.links[key] = result
        return result

    # --- steady state

    def _compare(self, anchor: Queue) -> None:
        """At the start of an iteration of the anchor's innermost running loop: looks whether the
        state is that of the iteration before, and if so adds the ones that are left."""
        frame = anchor.frames[-1]
        if frame.count - frame.step < 3:
            return
        place = tuple(f.at for f in anchor.frames)
        now = Snapshot.take(self, anchor)
        before = self.snapshots.get(place)
        self.snapshots[place] = now
        if before is None:
            return
        steps = steady_steps(self.queues, before, now, self.instance.core_values[0])
        if steps == 0:
            return
        self._skip(before, now, steps)
        self.snapshots.clear()

    def _skip(self, before: Snapshot, now: Snapshot, steps: int) -> None:
        shift = steps * (now.time - before.time)
        for queue, (then, here) in zip(
            self.queues, zip(before.loops, now.loops, strict=True), strict=True
        ):
            for frame, a, b in zip(queue.frames, then, here, strict=True):
                frame.step += steps * (b - a)
                if frame.loop is not None and frame.loop.variable is not None and b != a:
                    queue.values[frame.loop.variable] = frame.step
            queue.clock += shift
            queue.ended += shift
            queue.in_flight = deque(end + shift for end in queue.in_flight)
        for group in self.groups:
            group.lx_free += shift
            group.streams = {name: end + shift for name, end in group.streams.items()}
            for units in group.tokens.values():
                for unit in units:
                    unit[0] += shift
        self.dram_free += shift
        self.end += shift
        added = {name: (now.sums[name] - before.sums[name]) * steps for name in now.sums}
        for name in self.busy:
            self.busy[name] += added[name]
        self.read += added["read"]
        self.written += added["written"]
        self.received += added["received"]
        self.macs += added["macs"]
        self.skipped += added["tasks"]
        period = (now.time - before.time) / PS
        for i in range(before.spans, now.spans):
            span = self.spans[i]
            self.spans[i] = Span(
                span.cores, span.core, span.unit, span.name, span.start_ns, span.end_ns,
                span.nbytes, span.repeats + steps, period,
            )  # fmt: skip

    # --- results

    def _deadlock(self) -> ProgramError:
        waiting = [
            f"{q.unit.value} of core {self.groups[q.group].cores.leader}"
            for q in self.queues
            if not q.done
        ]
        return ProgramError(
            f"{self.program.name}: deadlock, these queues wait for ever: {', '.join(waiting)}"
        )

    def _timeline(self) -> Timeline:
        cores = self.instance.cores
        servers: dict[str, Server] = {}
        amount = {"LPDDR5": self.read + self.written, "PT": self.macs}
        for name, busy in self.busy.items():
            # LPDDR5 and the ring are one server each; the others one per core.
            share = busy if name in ("LPDDR5", "ring") else busy / cores
            servers[name] = Server(name, share / PS, amount.get(name, 0))
        return Timeline(
            self.program.name,
            self.end / PS,
            self.spans,
            servers,
            self.read,
            self.written,
            self.received,
            self.macs,
            cores,
            len(self.groups),
            self.tasks,
            self.skipped,
        )


def _name(item: Instruction) -> str:
    if isinstance(item, Load | Store):
        return moves(item)
    if isinstance(item, Compute):
        return f"{item.kind.value} {item.outputs[0].value}" if item.outputs else item.kind.value
    if isinstance(item, Ring):
        return f"ring {item.target.value}"
    return type(item).__name__.lower()


def time_program(
    program: Program,
    symbols: Mapping[str, int] | None = None,
    card: CardSpec | None = None,
    table: TimingTable = TABLE,
    *,
    spans: bool = True,
    extrapolate: bool = True,
) -> Timeline:
    """The modelled run of `program` on `card` (default: the preset `spyre`), from its first task to
    its last; launch and transfers by the host are not in it.

    Deterministic. `spans` False leaves out the single tasks; `extrapolate` False goes through every
    task, with the same result. Raises ProgramError for a program that
    cannot run: too many cores, a partner or semaphore that is not there, a deadlock.
    """
    return Engine(program, symbols, card or PRESETS["spyre"], table, spans, extrapolate).run()


def duration_ns(
    program: Program,
    symbols: Mapping[str, int] | None = None,
    card: CardSpec | None = None,
    table: TimingTable = TABLE,
) -> int:
    """Modelled nanoseconds of one execution, rounded up. Errors as `time_program`."""
    return -int(-time_program(program, symbols, card, table, spans=False).duration_ns // 1)
