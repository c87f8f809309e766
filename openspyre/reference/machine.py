"""The state of a run, and how an instruction's tiles become arrays and go back.

May import numpy and openspyre.program; imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from openspyre.formats import STICK_BYTES, Numerics
from openspyre.program.concrete import Instance, ProgramError, Task, Tile, accesses
from openspyre.program.expr import Binary, Expr, ExprError
from openspyre.program.model import Access, Compute, Label, Load, Ring, Role, Signal, Store, Wait
from openspyre.program.ops import register_of
from openspyre.reference import numbers, tiles
from openspyre.reference.faults import FaultKind, ReferenceFault
from openspyre.reference.memory import Actor, Memory
from openspyre.reference.numbers import Array


@dataclass
class Counts:
    """What a run did, summed over cores; bytes in whole sticks."""

    tasks: int = 0  # waits and signals included
    bytes_read: int = 0  # LPDDR5, by LOAD; every core of a multicast counts
    bytes_written: int = 0  # LPDDR5, by STORE
    bytes_ring: int = 0  # of other cores' LX (and the own, if a RING names it)
    kinds: dict[str, int] = field(default_factory=dict)  # instructions by name


@dataclass(frozen=True)
class Place:
    """Where an operand lies: `nbytes` bytes of a memory from byte `base`."""

    memory: Memory
    base: int
    nbytes: int


class Machine:
    """Memories and numbers of one launch."""

    def __init__(
        self,
        instance: Instance,
        lx: list[Memory],
        operands: Mapping[str, Place],
        symbols: Mapping[str, int | float],
        numerics: Numerics,
        check: bool,
    ) -> None:
        self.instance = instance
        self.lx = lx
        self.operands = operands
        self.symbols = symbols
        self.numerics = numerics
        self.check = check
        self.counts = Counts()
        self._expressions: dict[int, list[Expr]] = {}

    # --- numbers

    def check_numbers(self, task: Task) -> None:
        """NUMBER fault when an expression of the task has no 64-bit value (compiled expressions do
        not look) or a size is negative."""
        instruction = task.instruction
        found = self._expressions.get(id(instruction))
        if found is None:
            found = [e for e in _expressions(instruction) if isinstance(e, Binary)]
            self._expressions[id(instruction)] = found
        self._evaluate(task, found)
        if isinstance(instruction, Load | Store | Compute):
            self._check_sizes(task, instruction.over)

    def check_ring(self, task: Task, ring: Ring) -> None:
        """The same for one step of a RING, with its variable in the task's values."""
        self._evaluate(task, _ring_expressions(ring))
        self._check_sizes(task, ring.over)

    def _evaluate(self, task: Task, found: list[Expr]) -> None:
        try:
            for node in found:
                node.evaluate(task.values)
        except ExprError as error:
            raise ReferenceFault(FaultKind.NUMBER, f"{task.where()}: {error}") from None

    def _check_sizes(self, task: Task, over: tuple[Label, ...]) -> None:
        for label, (_, size) in zip(over, task.over, strict=True):
            if size < 0:
                raise ReferenceFault(
                    FaultKind.NUMBER, f"{task.where()}: label {label.name} has size {size}"
                )

    # --- tiles

    def tile(self, task: Task, access: Access) -> Tile:
        """The tile of an access. INDEX fault for a slot that is not there, ADDRESS when
        the address or a stride is no multiple of 128, PROGRAM for names."""
        buffer = self.instance.buffers.get(access.place)
        if buffer is not None and not 0 <= task.number(access.slot) < buffer.slots:
            raise ReferenceFault(
                FaultKind.INDEX,
                f"{task.where()}: buffer {buffer.name} has slots 0..{buffer.slots - 1}, not"
                f" {task.number(access.slot)}",
            )
        try:
            tile = self.instance.tile(task, access)
        except ProgramError as error:
            raise ReferenceFault(FaultKind.PROGRAM, str(error)) from None
        if any(number % STICK_BYTES for number in (tile.address, *tile.strides)):
            raise ReferenceFault(
                FaultKind.ADDRESS,
                f"{task.where()}: the address {tile.address} or a stride of {tile.strides} in"
                f" {access.place} is no multiple of {STICK_BYTES}",
            )
        place = self.operands.get(access.place)
        if place is not None and place.base:
            tile = replace(tile, address=tile.address + place.base)
        return tile

    def memory(self, tile: Tile, core: int, actor: Actor, writes: bool) -> Memory:
        """The memory of a tile that is about to be read or written; its bounds are checked."""
        low, high = tile.span
        if tile.space == "mem":
            name = tile.access.place
            place = self.operands[name]
            if writes and self.instance.is_read_only(name):
                raise ReferenceFault(
                    FaultKind.PROGRAM,
                    f"{actor.where()}: stores into {name}, whose role is"
                    f" {self.instance.roles[name].value}; make it {Role.INOUT.value}",
                )
            start, end, memory, what = (
                place.base,
                place.base + place.nbytes,
                place.memory,
                f"operand {name}",
            )
        elif 0 <= core < len(self.lx):
            memory = self.lx[core]
            start, end, what = 0, len(memory.data), memory.name
        else:
            raise ReferenceFault(
                FaultKind.INDEX, f"{actor.where()}: core {core} of {len(self.lx)} is not there"
            )
        if low < start or high > end:
            raise ReferenceFault(
                FaultKind.ADDRESS,
                f"{actor.where()}: bytes {low - start}..{high - start - 1} are not inside {what},"
                f" which has {end - start}; mend the offset, the strides or the extents",
            )
        memory.high = max(memory.high, high)
        return memory

    def begin(self, tile: Tile, core: int, actor: Actor, writes: bool) -> Memory:
        """As `memory`, and the touch of all its sticks is noted."""
        memory = self.memory(tile, core, actor, writes)
        memory.touch(tile.sticks, actor, writes)
        return memory

    def registers(
        self,
        task: Task,
        access: Access,
        actor: Actor,
        size_of: dict[int, int] | None = None,
        at: dict[int, Array] | None = None,
        core: int | None = None,
    ) -> Array:
        """The elements of a tile, decoded; axes as `tiles.elements`. `size_of` gives labels another
        size, `at` other local indices; `core`: whose LX, if not the task's."""
        tile = resized(self.tile(task, access), size_of)
        memory = self.begin(tile, task.core if core is None else core, actor, writes=False)
        return self.decode(memory, tiles.elements(tile, at), access, actor)

    def decode(self, memory: Memory, addresses: Array, access: Access, actor: Actor) -> Array:
        """Registers of the elements at byte addresses."""
        if register_of(access.format) is None:
            raise ReferenceFault(
                FaultKind.PROGRAM, f"{actor.where()}: no unit computes {access.format.name}"
            )
        codes = memory.read(addresses, access.format.bytes, actor, f"the tile of {access.value}")
        return numbers.decode(codes, access.format, self.numerics)

    def store(
        self,
        task: Task,
        access: Access,
        actor: Actor,
        values: Array,
        size_of: dict[int, int] | None = None,
    ) -> None:
        """Encodes registers into a tile. Axes as `tiles.elements`, or broadcast to them. What its
        sticks hold beyond the elements is don't-care from now on."""
        tile = resized(self.tile(task, access), size_of)
        memory = self.begin(tile, task.core, actor, writes=True)
        addresses = tiles.elements(tile)
        shape = np.broadcast_shapes(addresses.shape, values.shape)
        codes = self.encode(task, access, values)
        memory.forget(tile.sticks)
        memory.write(np.broadcast_to(addresses, shape), np.broadcast_to(codes, shape))

    def encode(self, task: Task, access: Access, values: Array) -> Array:
        try:
            return numbers.encode(values, access.format, self.numerics)
        except ValueError as error:
            raise ReferenceFault(
                FaultKind.PROGRAM, f"{task.where()}: {access.place}: {error}"
            ) from None


def resized(tile: Tile, size_of: dict[int, int] | None) -> Tile:
    """The tile with other sizes along some labels."""
    if not size_of:
        return tile
    sizes = tuple(size_of.get(label, size) for label, size in enumerate(tile.sizes))
    return replace(tile, sizes=sizes)


def carries(access: Access, label: str) -> bool:
    """Whether a label moves the tile: the tile "has" it, in the words of docs/program.md."""
    return label == access.stick or any(name == label for name, _ in access.strides)


def _expressions(instruction: object) -> list[Expr]:
    """All expressions of an instruction but those that need a RING's variable."""
    if isinstance(instruction, Wait | Signal):
        core = getattr(instruction, "core", None)
        return [instruction.index, instruction.count, *([core] if core is not None else [])]
    if isinstance(instruction, Ring):
        return [instruction.count]
    assert isinstance(instruction, Load | Store | Compute)
    out = _of_labels(instruction.over)
    read, written = accesses(instruction)
    for access in (*read, *written):
        out += _of_access(access)
    if isinstance(instruction, Load) and instruction.gather:
        out.append(instruction.gather.limit)
    if isinstance(instruction, Store) and instruction.scatter:
        scatter = instruction.scatter
        out += [scatter.limit, scatter.first, scatter.count]
    if isinstance(instruction, Compute):
        out += [instruction.accumulate, instruction.limit]
    return out


def _of_labels(over: tuple[Label, ...]) -> list[Expr]:
    return [e for label in over for e in (label.start, label.size)]


def _of_access(access: Access) -> list[Expr]:
    """The expressions of one access."""
    return [
        access.offset,
        access.slot,
        *(index.offset for index in access.index),
        *(stride for _, stride in access.strides),
    ]


def _ring_expressions(ring: Ring) -> list[Expr]:
    """The expressions of a RING in which its variable is known."""
    return [ring.core, *_of_labels(ring.over), *_of_access(ring.source), *_of_access(ring.target)]
