"""Runs the queues of a Program in an order that its tokens allow, and says what precedes what.

Nothing orders two queues but counting semaphores, and each semaphore has one signaller and one
waiter, so the n-th unit taken is always the n-th unit given: which task happens before which is
the same in every execution (a Kahn network). `Interleaving` plays one execution and gives every
task its vector clock; two accesses that the clocks do not order are a race in every execution.
The verifier and the reference executor share it.

A multicast LOAD starts when its whole group has come to it, so groups that meet in different
orders deadlock here; but it orders nothing between its cores: each must wait for what it needs by
itself. So what passes is right both on a machine where the group meets and on one where each core
loads on its own.

May import numpy; imports no torch.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from openspyre.program.concrete import Instance, ProgramError, Task
from openspyre.program.expr import HIGH, Expr, ExprError
from openspyre.program.model import UNITS, Load, Signal, Wait

TASK_LIMIT = 20_000_000
"""Instructions (waits, signals and loop steps included) after which a run is called endless."""

_UNIT_NUMBER = {unit: number for number, unit in enumerate(UNITS)}


def queue_name(thread: int) -> str:
    """The queue of a thread number (core * 5 + unit), for messages."""
    return f"queue {UNITS[thread % len(UNITS)].value} of core {thread // len(UNITS)}"


class TokenFault(Enum):
    """What stopped an interleaving."""

    DEADLOCK = "deadlock"
    OWNER = "owner"  # a semaphore with two signallers or two waiters
    BALANCE = "balance"  # a semaphore that does not end where it began
    NUMBER = "number"  # a count, index or core out of range
    LIMIT = "limit"  # more tasks than the limit


class TokenError(ProgramError):
    """Rule 6 broken. `tasks`: where; for a deadlock every blocked task, else the one at fault."""

    def __init__(self, kind: TokenFault, text: str, tasks: tuple[Task, ...] = ()) -> None:
        super().__init__(text)
        self.kind = kind
        self.tasks = tasks


@dataclass
class Step:
    """One LOAD, STORE, RING or COMPUTE of the execution.

    `thread` numbers the queue: core * 5 + unit. `clock[t]` is how many tasks of thread t precede
    it (all of them complete); `time` is its own number in its thread, from 1: a later step s is
    ordered after this one if and only if `s.clock[step.thread] >= step.time`. The array is the
    thread's own and changes with its next task: copy it to keep it. `group`: the tasks of a
    multicast LOAD, one per core in ascending order, itself among them.
    """

    task: Task
    thread: int
    time: int
    clock: np.ndarray
    group: tuple[Task, ...] = ()

    def after(self, thread: int, time: int) -> bool:
        """Whether task `time` of `thread` is complete before this step begins, in every run."""
        return bool(self.clock[thread] >= time)


@dataclass
class _Semaphore:
    given: int  # units ever given, the initial ones included
    initial: int
    taken: int = 0
    runs: deque[tuple[int, np.ndarray]] = field(default_factory=deque)  # (given after it, clock)
    signaller: int = -1
    waiter: int = -1
    asleep: int = -1  # the thread that waits for more units
    need: int = 0


class Interleaving:
    """Iterates over the steps of one execution. Iterate once.

    seed: None runs each queue until it blocks, always in the same order; a number draws another
    legal order. strict: hold a semaphore to one signaller and one waiter. limit: see TASK_LIMIT.

    Raises TokenError while iterating; `check_balanced` afterwards. Other errors of expansion
    (loop counts, unknown names) come as ProgramError.
    """

    def __init__(
        self,
        instance: Instance,
        seed: int | None = None,
        *,
        strict: bool = True,
        limit: int = TASK_LIMIT,
    ) -> None:
        self.instance = instance
        self.strict = strict
        self.limit = limit
        self.tasks = 0  # executed so far, waits and signals included
        self.threads = instance.cores * len(UNITS)
        self._random = None if seed is None else random.Random(seed)
        self._tokens = {token.name: token for token in instance.program.tokens}
        self._semaphores: dict[tuple[str, int, int], _Semaphore] = {}
        self._clocks = np.zeros((self.threads, self.threads), dtype=np.int32)
        self._walks: list[Iterator[Task]] = [
            instance.walk(core, unit) for core in range(instance.cores) for unit in UNITS
        ]
        self._pending: list[Task | None] = [None] * self.threads
        self._meeting: dict[tuple[tuple[str, ...], int], dict[int, Task]] = {}
        self._groups: dict[tuple[tuple[str, ...], int], tuple[int, ...]] = {}

    def __iter__(self) -> Iterator[Step]:
        queues = self.instance.program.queues
        ready = deque(t for t in range(self.threads) if queues.get(UNITS[t % len(UNITS)]))
        while ready:
            if self._random is None:
                thread, burst = ready.popleft(), self.limit
            else:
                ready.rotate(self._random.randrange(len(ready)))
                thread, burst = ready.popleft(), self._random.randint(1, 4)
            while burst > 0:
                task = self._pending[thread] or next(self._walks[thread], None)
                self._pending[thread] = None
                if task is None:
                    break
                instruction = task.instruction
                if isinstance(instruction, Wait):
                    if not self._take(task, instruction, thread):
                        self._pending[thread] = task
                        break
                elif isinstance(instruction, Signal):
                    woken = self._give(task, instruction, thread)
                    if woken >= 0:
                        ready.append(woken)
                elif isinstance(instruction, Load) and instruction.multicast:
                    met = self._meet(task, instruction)
                    if met is None:
                        # `_meet` keeps the task; the last of the group runs it.
                        break
                    group = tuple(met[core] for core in sorted(met))
                    for member in group:
                        other = self._thread(member)
                        yield self._step(member, other, group)
                        if other != thread:
                            ready.append(other)
                else:
                    yield self._step(task, thread, ())
                burst -= 1
            else:
                ready.append(thread)
        self._check_finished()

    def _thread(self, task: Task) -> int:
        return task.core * len(UNITS) + _UNIT_NUMBER[task.unit]

    def _count(self, task: Task) -> None:
        self.tasks += 1
        if self.tasks > self.limit:
            raise TokenError(
                TokenFault.LIMIT,
                f"{task.where()}: more than {self.limit} tasks; use larger tiles, or raise the"
                " limit if the loop counts are meant",
                (task,),
            )

    def _step(self, task: Task, thread: int, group: tuple[Task, ...]) -> Step:
        self._count(task)
        clock = self._clocks[thread]
        clock[thread] += 1
        return Step(task, thread, int(clock[thread]), clock, group)

    # --- semaphores

    def _number(self, task: Task, node: Expr, what: str) -> int:
        try:
            return node.evaluate(task.values)
        except ExprError as error:
            raise TokenError(
                TokenFault.NUMBER, f"{task.where()}: {what}: {error}", (task,)
            ) from None

    def _semaphore(
        self, task: Task, instruction: Wait | Signal, core: int
    ) -> tuple[_Semaphore, int]:
        """The semaphore and the count of units."""
        token = self._tokens.get(instruction.token)
        if token is None:
            raise TokenError(
                TokenFault.NUMBER, f"{task.where()}: no token {instruction.token!r}", (task,)
            )
        index = self._number(task, instruction.index, "index")
        count = self._number(task, instruction.count, "count")
        if not 0 <= index < token.count or count < 0:
            raise TokenError(
                TokenFault.NUMBER,
                f"{task.where()}: token {token.name} has indices 0..{token.count - 1} and counts"
                f" from 0, not [{index}] by {count}",
                (task,),
            )
        key = (token.name, index, core)
        semaphore = self._semaphores.get(key)
        if semaphore is None:
            semaphore = self._semaphores[key] = _Semaphore(token.initial, token.initial)
        return semaphore, count

    def _give(self, task: Task, instruction: Signal, thread: int) -> int:
        """Signals; gives the thread that may go on now, or -1."""
        self._count(task)
        core = task.core
        if instruction.core is not None:
            core = self._number(task, instruction.core, "core")
            if not 0 <= core < self.instance.cores:
                raise TokenError(
                    TokenFault.NUMBER,
                    f"{task.where()}: signals core {core} of 0..{self.instance.cores - 1}",
                    (task,),
                )
        semaphore, count = self._semaphore(task, instruction, core)
        if count == 0:
            return -1
        if semaphore.signaller not in (-1, thread) and self.strict:
            raise TokenError(
                TokenFault.OWNER,
                f"{task.where()}: {self._name(instruction, task, core)} is also signalled by"
                f" {queue_name(semaphore.signaller)}; give each signaller its own token",
                (task,),
            )
        semaphore.signaller = thread
        semaphore.given += count
        if semaphore.given > HIGH:
            raise TokenError(
                TokenFault.NUMBER, f"{task.where()}: the count leaves 64 bits", (task,)
            )
        semaphore.runs.append((semaphore.given, self._clocks[thread].copy()))
        if semaphore.asleep >= 0 and semaphore.given - semaphore.taken >= semaphore.need:
            woken, semaphore.asleep = semaphore.asleep, -1
            return woken
        return -1

    def _take(self, task: Task, instruction: Wait, thread: int) -> bool:
        semaphore, count = self._semaphore(task, instruction, task.core)
        if count == 0:
            self._count(task)
            return True
        if semaphore.waiter not in (-1, thread) and self.strict:
            raise TokenError(
                TokenFault.OWNER,
                f"{task.where()}: {self._name(instruction, task, task.core)} is also waited for by"
                f" {queue_name(semaphore.waiter)}; give each waiter its own token",
                (task,),
            )
        semaphore.waiter = thread
        if semaphore.given - semaphore.taken < count:
            semaphore.asleep, semaphore.need = thread, count
            return False
        self._count(task)
        semaphore.taken += count
        # The clock of the last unit taken covers those before it: one signaller, in order.
        clock, runs = self._clocks[thread], semaphore.runs
        while runs and semaphore.taken > semaphore.initial:
            given, snapshot = runs[0]
            np.maximum(clock, snapshot, out=clock)
            if given > semaphore.taken:
                break
            runs.popleft()
            if given == semaphore.taken:
                break
        return True

    # --- multicast

    def group(self, core: int, digits: tuple[str, ...]) -> tuple[int, ...]:
        """The cores that differ from `core` in these digits only, itself among them; ascending."""
        cached = self._groups.get((digits, core))
        if cached is None:
            mine = {k: v for k, v in self.instance.digits(core).items() if k not in digits}
            cached = tuple(
                other
                for other in range(self.instance.cores)
                if all(self.instance.digits(other)[k] == v for k, v in mine.items())
            )
            self._groups[digits, core] = cached
        return cached

    def _meet(self, task: Task, instruction: Load) -> dict[int, Task] | None:
        digits = tuple(sorted(instruction.multicast))
        members = self.group(task.core, digits)
        arrived = self._meeting.setdefault((digits, members[0]), {})
        arrived[task.core] = task
        if len(arrived) < len(members):
            return None
        del self._meeting[digits, members[0]]
        return arrived

    # --- ends

    def _name(self, instruction: Wait | Signal, task: Task, core: int) -> str:
        index = self._number(task, instruction.index, "index")
        return f"token {instruction.token}[{index}] of core {core}"

    def _check_finished(self) -> None:
        # Cores that a multicast misses come first: they are likelier the cause than the waits.
        stuck: list[Task] = []
        lines = []
        for (digits, first), arrived in self._meeting.items():
            missing = [core for core in self.group(first, digits) if core not in arrived]
            task = arrived[min(arrived)]
            stuck.append(task)
            lines.append(f"{task.where()} waits for cores {missing[:8]} to multicast with it")
        for task in (task for task in self._pending if task is not None):
            instruction = task.instruction
            assert isinstance(instruction, Wait)
            semaphore, count = self._semaphore(task, instruction, task.core)
            signaller = (
                f"signalled by {queue_name(semaphore.signaller)}"
                if semaphore.signaller >= 0
                else "never signalled"
            )
            stuck.append(task)
            lines.append(
                f"{task.where()} waits for {count} of {self._name(instruction, task, task.core)},"
                f" which has {semaphore.given - semaphore.taken} ({signaller})"
            )
        if stuck:
            more = f"; and {len(lines) - 4} more" if len(lines) > 4 else ""
            raise TokenError(
                TokenFault.DEADLOCK, "deadlock: " + "; ".join(lines[:4]) + more, tuple(stuck)
            )

    def check_balanced(self) -> None:
        """Every semaphore is back at its initial value. Call after the last step."""
        for (name, index, core), semaphore in self._semaphores.items():
            left = semaphore.given - semaphore.taken
            if left != semaphore.initial:
                raise TokenError(
                    TokenFault.BALANCE,
                    f"token {name}[{index}] of core {core} ends at {left} and began at"
                    f" {semaphore.initial}: signals and waits must be equal in number",
                )
