"""Rules 2 and 3 for one tile with its numbers: bounds, alignment, the operand's layout.

Part of the verifier; imports no torch.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from openspyre.formats import STICK_BYTES
from openspyre.program.concrete import Instance, Task, Tile
from openspyre.program.model import Access, Compute, Load, Ring, Role, Store
from openspyre.program.verify_error import VerifyError
from openspyre.program.verify_tiles import Placed, Tiles

SPAN_LIMIT = 256 << 20
"""Bytes of one operand, from the first to the last, that one core may touch: the public compiler's
MAX_SPAN. The hardware pages say 4 KiB less (`card.core_span_bytes`)."""


@dataclass(frozen=True)
class Range:
    """Indices to put in place of a label's: those that a gather, scatter or topk may touch."""

    label: int  # position among the labels
    start: int
    size: int


def check_box(task: Task, over: tuple[tuple[int, int], ...]) -> bool:
    """Whether the instruction does anything; sizes must not be negative and stick labels must
    start at a stick."""
    instruction = task.instruction
    assert isinstance(instruction, Load | Store | Ring | Compute)
    for label, (_, size) in zip(instruction.over, over, strict=True):
        if size < 0:
            raise VerifyError(1, task, f"label {label.name}: the size {label.size} is {size}")
    return all(size > 0 for _, size in over)


class AccessRules:
    """Turns an access into a `Placed` tile that lies where it may."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.tiles = Tiles(instance)
        self.spans: dict[tuple[int, str], tuple[int, int]] = {}
        self._eps: dict[int, tuple[int, ...]] = {}

    def check_starts(self, task: Task, over: tuple[tuple[int, int], ...]) -> None:
        """The start of a stick label is a multiple of the elements of a stick."""
        instruction = task.instruction
        assert isinstance(instruction, Load | Store | Ring | Compute)
        eps = self._eps.get(id(instruction))
        if eps is None:
            found = dict.fromkeys((label.name for label in instruction.over), 1)
            for access in _all_tiles(instruction):
                if access.stick is not None:
                    each = access.format.elements_per_stick
                    found[access.stick] = max(found[access.stick], each)
            eps = self._eps[id(instruction)] = tuple(found.values())
        for label, (start, _), each in zip(instruction.over, over, eps, strict=True):
            if start % each:
                raise VerifyError(
                    2,
                    task,
                    f"label {label.name} starts at {start}; it is on a stick of {each} elements"
                    " and must start at a multiple",
                )

    def _tile(self, task: Task, access: Access, only: Range | None) -> Tile:
        tile = self.instance.tile(task, access)
        if only is not None:
            sizes = list(tile.sizes)
            sizes[only.label] = only.size
            box = tuple(
                (only.start, only.size) if dim == only.label else pair
                for dim, pair in zip(tile.dims, tile.box, strict=True)
            )
            tile = dataclasses.replace(tile, sizes=tuple(sizes), box=box)
        shape = self.instance.shapes[access.value]
        for dim, ((start, size), length) in enumerate(zip(tile.box, shape, strict=True)):
            if start < 0 or start + size > length:
                raise VerifyError(
                    1,
                    task,
                    f"tile {access.value} in {access.place}: indices {start}..{start + size - 1}"
                    f" of dim {dim}, which has {length}",
                )
        for position, (size, stride) in enumerate(zip(tile.sizes, tile.strides, strict=True)):
            if stride % STICK_BYTES:
                raise VerifyError(
                    2,
                    task,
                    f"tile {access.value} in {access.place}: stride {stride} of label"
                    f" {_label(task, position)} is no multiple of 128",
                )
            if (
                size > 1
                and stride == 0
                and position != tile.stick
                and position in tile.dims
                and not self._stays(access.place, position, tile)
            ):
                raise VerifyError(
                    1,
                    task,
                    f"tile {access.value} in {access.place}: label {_label(task, position)} has"
                    f" {size} indices and no stride: they would lie at one address",
                )
        if tile.address % STICK_BYTES:
            raise VerifyError(
                2,
                task,
                f"tile {access.value} in {access.place} is at byte {tile.address}, no multiple of"
                " 128",
            )
        return tile

    def lx(self, task: Task, access: Access, only: Range | None = None) -> Placed:
        """A tile in LX, inside its buffer's slot."""
        tile = self._tile(task, access, only)
        buffer = self.instance.buffers[access.place]
        begin = buffer.base + task.number(access.slot) * buffer.slot_bytes
        low, high = tile.span
        if low < begin or high > begin + buffer.slot_bytes or tile.nbytes > buffer.slot_bytes:
            raise VerifyError(
                2,
                task,
                f"tile {access.value} takes bytes {low}..{high - 1} of LX ({tile.nbytes} bytes) and"
                f" slot {task.number(access.slot)} of buffer {buffer.name} is bytes"
                f" {begin}..{begin + buffer.slot_bytes - 1}; enlarge the slots or shrink the tile",
            )
        return self.tiles.place(tile)

    def mem(self, task: Task, access: Access, only: Range | None = None) -> Placed:
        """A tile in LPDDR5, where the operand's layout has the box that it declares. With `only`
        the address is that of index 0 along its label."""
        tile = self._tile(task, access, only)
        layout = self.instance.operands[access.place]
        where = f"tile {access.value}"
        stick = -1 if layout.stick < 0 else tile.dims[layout.stick]
        if tile.stick != stick:
            raise VerifyError(
                3,
                task,
                f"{where}: the layout has dim {layout.stick} on the stick (-1: none), the tile has"
                f" {'no label' if tile.stick < 0 else _label(task, tile.stick)} there",
            )
        eps = layout.format.elements_per_stick
        starts = [start for start, _ in tile.box]
        if layout.stick >= 0 and starts[layout.stick] % eps:
            raise VerifyError(
                3,
                task,
                f"{where}: dim {layout.stick} starts at {starts[layout.stick]}, inside a stick of"
                f" {eps} elements",
            )
        if only is not None:
            starts = [
                0 if dim == only.label else s for dim, s in zip(tile.dims, starts, strict=True)
            ]
        expected = layout.address(starts)
        if tile.address != expected:
            raise VerifyError(
                3,
                task,
                f"{where}: the box starts at byte {expected} of the operand, the tile at byte"
                f" {tile.address}",
            )
        for position, count in enumerate(tile.counts):
            right = _moves(tile, position, layout.strides)
            if count > 1 and tile.strides[position] != right:
                raise VerifyError(
                    3,
                    task,
                    f"{where}: label {_label(task, position)} moves {tile.strides[position]} bytes,"
                    f" the operand's layout {right}",
                )
        if only is not None and only.start:
            step = tile.strides[only.label] * only.start
            tile = dataclasses.replace(tile, address=tile.address + step)
        low, high = tile.span
        if low < 0 or high > layout.nbytes:
            raise VerifyError(
                2,
                task,
                f"{where} takes bytes {low}..{high - 1} of the operand, which has {layout.nbytes}",
            )
        self._check_span(task, access.place, low, high)
        operand = next(o for o in self.instance.program.operands if o.name == access.place)
        base = operand.offset if operand.role is Role.SCRATCH else 0
        return self.tiles.place(tile, base)

    def _stays(self, place: str, label: int, tile: Tile) -> bool:
        """Whether a label does not move an operand: one with strides, which is only read."""
        layout = self.instance.operands.get(place)
        return layout is not None and _moves(tile, label, layout.strides) == 0

    def _check_span(self, task: Task, operand: str, low: int, high: int) -> None:
        key = (task.core, operand)
        known = self.spans.get(key)
        if known is not None:
            low, high = min(low, known[0]), max(high, known[1])
        if high - low > SPAN_LIMIT:
            raise VerifyError(
                2,
                task,
                f"core {task.core} spans bytes {low}..{high - 1} of {operand}: {high - low},"
                f" above {SPAN_LIMIT} (256 MiB) a core; split the dim over the cores that moves"
                " the address most",
            )
        self.spans[key] = (low, high)

    def check_whole_sticks(self, task: Task, tile: Tile) -> None:
        """A STORE writes whole sticks: what it does not declare of a stick would be lost."""
        layout = self.instance.operands[tile.access.place]
        if layout.stick < 0:
            return
        dim = layout.stick
        start, size = tile.box[dim]
        eps, length = layout.format.elements_per_stick, layout.shape[dim]
        if (start + size) % eps and start + size != length:
            raise VerifyError(
                7,
                task,
                f"stores indices {start}..{start + size - 1} of dim {dim} of {tile.access.place}"
                f" and so overwrites the rest of the last stick (of {eps} elements)",
            )
        within = layout.within[dim]
        if start + size == length and length % eps and within != length:
            raise VerifyError(
                7,
                task,
                f"{tile.access.place} ends at {length} inside a stick of the larger tensor"
                f" ({within}): a STORE would overwrite what follows",
            )

    def check_all_labels(self, task: Task, tile: Tile) -> None:
        """Transfers name each element once: every label is an index."""
        for position, size in enumerate(tile.sizes):
            if size > 1 and position not in tile.dims:
                raise VerifyError(
                    3,
                    task,
                    f"label {_label(task, position)} of size {size} is no index of"
                    f" {tile.access.value} in {tile.access.place}",
                )


def _all_tiles(instruction: Load | Store | Ring | Compute) -> list[Access]:
    if isinstance(instruction, Compute):
        return [*instruction.inputs, *instruction.outputs]
    extra: list[Access] = []
    if isinstance(instruction, Load) and instruction.gather is not None:
        extra = [instruction.gather.index]
    if isinstance(instruction, Store) and instruction.scatter is not None:
        extra = [instruction.scatter.index]
    return [instruction.source, instruction.target, *extra]


def _moves(tile: Tile, label: int, strides: tuple[int, ...]) -> int:
    """Bytes that a step of a label moves in an operand with these strides."""
    return sum(step for dim, step in zip(tile.dims, strides, strict=True) if dim == label)


def _label(task: Task, position: int) -> str:
    return task.instruction.over[position].name  # type: ignore[union-attr]


def volume(box: tuple[tuple[int, int], ...]) -> int:
    """Elements of a box of (start, size)."""
    return math.prod(size for _, size in box)
