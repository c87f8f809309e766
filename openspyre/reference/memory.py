"""Bytes that know whether they hold something, and who touched them last.

A Memory is one core's LX or one operand. Beside its bytes it keeps, for every byte, whether it is
defined, and for every stick the last writer and the last readers as points of the queues' vector
clocks: a touch that the tokens do not order after them is a hazard, however the run happened to
interleave. May import numpy; imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from openspyre.formats import STICK_BYTES
from openspyre.reference.faults import FaultKind, ReferenceFault
from openspyre.reference.numbers import Array

POISON = np.array([0xFF, 0x7F], dtype=np.uint8)
"""What undefined bytes hold, repeated: NaN in every float format, large in every integer one."""


def fill_poison(data: Array) -> None:
    """Fills a flat uint8 array."""
    data[0::2], data[1::2] = POISON[0], POISON[1]


@dataclass(frozen=True)
class Actor:
    """A task that touches memory: its queue's number, its time, and what it knows of others'."""

    queue: int
    clock: Array  # int64, one entry per queue; the own entry is the task's time
    where: Callable[[], str]
    queue_name: Callable[[int], str]


class Memory:
    """`data`: uint8, flat, shared with the caller. `defined`: 1 for every byte that holds something
    (uint8). `check` False: it holds bytes and looks at nothing else. `constant`: nobody writes it,
    so that there is no order to watch."""

    def __init__(
        self, name: str, data: Array, defined: Array, check: bool, constant: bool = False
    ) -> None:
        self.name = name
        self.data = data
        self.check = check
        self.defined = defined
        self.ordered = check and not constant
        sticks = -(-len(data) // STICK_BYTES) if self.ordered else 0
        self.writer = np.zeros(sticks, dtype=np.int32)
        self.written = np.zeros(sticks, dtype=np.int64)  # 0: by nobody yet
        self.readers: dict[int, Array] = {}
        self.high = 0  # bytes up to the highest one touched

    # --- order

    def touch(self, sticks: Array, actor: Actor, writes: bool) -> None:
        """Notes a read or write of the sticks at byte addresses `sticks`. HAZARD fault when an
        earlier touch by another queue is not known to be over (two reads never clash)."""
        if not self.ordered:
            return
        numbers = np.unique(sticks // STICK_BYTES)
        late = self.written[numbers] > actor.clock[self.writer[numbers]]
        if late.any():
            at = numbers[late][0]
            self._hazard(int(at), int(self.writer[at]), "writing", actor, writes)
        if writes:
            for queue, times in self.readers.items():
                late = times[numbers] > actor.clock[queue]
                if late.any():
                    self._hazard(int(numbers[late][0]), queue, "reading", actor, writes)
            self.writer[numbers] = actor.queue
            self.written[numbers] = actor.clock[actor.queue]
        else:
            times = self.readers.setdefault(actor.queue, np.zeros(len(self.written), np.int64))
            times[numbers] = actor.clock[actor.queue]

    def _hazard(self, stick: int, queue: int, verb: str, actor: Actor, writes: bool) -> None:
        raise ReferenceFault(
            FaultKind.HAZARD,
            f"{actor.where()}: {'writes' if writes else 'reads'} bytes {stick * STICK_BYTES}.."
            f"{(stick + 1) * STICK_BYTES - 1} of {self.name}, which {actor.queue_name(queue)} may"
            f" still be {verb}; add a token between them",
        )

    # --- elements

    def read(self, addresses: Array, size: int, actor: Actor, what: str) -> Array:
        """Codes of the elements at byte addresses (any shape). UNWRITTEN fault when one of their
        bytes holds nothing."""
        code = np.dtype(f"u{size}")
        if self.check:
            whole = np.frombuffer(b"\x01" * size, dtype=code)[0]
            missing = _view(self.defined, addresses, size) != whole
            if missing.any():
                at = int(addresses[missing].min())
                raise ReferenceFault(
                    FaultKind.UNWRITTEN,
                    f"{actor.where()}: {what} reads bytes {at}..{at + size - 1} of {self.name},"
                    f" which hold nothing ({int(missing.sum())} of {missing.size} elements): they"
                    " were never written, or lie beyond the valid extent of what was",
                )
        return _view(self.data, addresses, size)

    def write(self, addresses: Array, codes: Array) -> None:
        """Stores codes; of equal addresses the last in row-major order stays."""
        size = codes.dtype.itemsize
        spread = addresses[..., None] + np.arange(size)
        self.data[spread] = np.asarray(codes, order="C")[..., None].view(np.uint8)
        self.defined[spread] = 1

    def forget(self, sticks: Array) -> None:
        """Makes whole sticks undefined and poisons them, where the run checks."""
        if self.check:
            spread = sticks.ravel()[:, None] + np.arange(STICK_BYTES)
            self.defined[spread] = 0
            self.data[spread] = np.tile(POISON, STICK_BYTES // 2)

    def copy_sticks(self, to: Array, source: Memory, of: Array) -> None:
        """Copies whole sticks, and what is known of their bytes."""
        spread_to = to[..., None] + np.arange(STICK_BYTES)
        spread_of = of[..., None] + np.arange(STICK_BYTES)
        self.data[spread_to] = source.data[spread_of]
        self.defined[spread_to] = source.defined[spread_of]


def _view(data: Array, addresses: Array, size: int) -> Array:
    code = np.dtype(f"u{size}")
    if size == 1:
        return data[addresses]
    if not (addresses % size).any() and data.flags.c_contiguous:
        return data[: len(data) // size * size].view(code)[addresses // size]
    return data[addresses[..., None] + np.arange(size)].view(code)[..., 0]
