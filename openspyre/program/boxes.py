"""Boxes of tensors, by labels: what a `ProgramBuilder` derives addresses and strides from.

A `Tensor` is an operand or a value, a `Tile` its place in LX, a `Span` a range of indices;
`x["r", "c"]` is a `Ref`, from which an instruction's labels make the `Access`. Sizes are elements,
strides and offsets bytes. Plain data and integer expressions: no program is changed here. Imports
no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TypeAlias

from openspyre.formats import STICK_BYTES, Format
from openspyre.layout import device_dims
from openspyre.program.concrete import ProgramError
from openspyre.program.expr import Binary, Const, Expr, ceil_div, expr
from openspyre.program.model import ZERO, Access, Index, Role

ExprLike: TypeAlias = "Expr | int | str"
IndexLike: TypeAlias = "str | int | Expr | tuple[str, ExprLike]"
"""One dim of a box: a label, a label and an offset, or one fixed index."""


@dataclass(frozen=True)
class Span:
    """Indices start .. start + size - 1. `step` counts the spans of `ProgramBuilder.tiles`."""

    start: Expr
    size: Expr
    step: Expr = ZERO

    @property
    def end(self) -> Expr:
        return self.start + self.size


SpanLike: TypeAlias = "Span | tuple[ExprLike, ExprLike] | ExprLike"
Over: TypeAlias = Mapping[str, SpanLike]
"""The box of an instruction: the span of each label."""

Boxes: TypeAlias = "Callable[[], AbstractContextManager[tuple[dict[str, Span], Expr]]]"
"""Loops to be entered, which give (spans by label, running number): `ProgramBuilder.boxes`."""


def span(value: SpanLike) -> Span:
    """A Span of a Span, of (start, size), or of a size alone: then it starts at 0."""
    if isinstance(value, Span):
        return value
    if isinstance(value, tuple):
        return Span(expr(value[0]), expr(value[1]))
    return Span(ZERO, expr(value))


@dataclass(frozen=True)
class Tensor:
    """An operand in LPDDR5 or, without a role, a value that lives in LX tiles only."""

    name: str
    shape: tuple[Expr, ...]
    format: Format
    role: Role | None = None
    strides: tuple[Expr, ...] = ()  # operands: bytes a step of each dim; of the stick dim a stick
    stick: int = -1  # operands: the dim on the stick

    def __getitem__(self, index: IndexLike | tuple[IndexLike, ...]) -> Ref:
        return Ref(self, _indices(index, len(self.shape), self.name))


@dataclass(frozen=True)
class Tile:
    """A place in LX for boxes of a tensor: at most `sizes` in each dim, counted from its start.

    `at`, `part` and `of` give the same place with another slot, origin or tensor.
    """

    tensor: Tensor
    buffer: str
    sizes: tuple[int, ...]
    format: Format
    strides: tuple[int, ...]
    stick: int  # dim on the stick, or -1: sparse
    lanes: bool = False
    slots: int = 1
    slot: Expr = ZERO
    offset: Expr = ZERO

    def at(self, number: ExprLike) -> Tile:
        """The slot of the number-th use: number % slots."""
        return replace(self, slot=ZERO if self.slots == 1 else expr(number) % self.slots)

    def part(self, *origin: ExprLike) -> Tile:
        """The tile from the local position `origin` on; on the stick a multiple of a stick."""
        eps = self.format.elements_per_stick
        offset = self.offset
        for dim, (local, stride) in enumerate(zip(origin, self.strides, strict=True)):
            step = expr(local)
            offset = offset + (_divided(step, eps) if dim == self.stick else step) * stride
        return replace(self, offset=offset)

    def of(self, tensor: Tensor) -> Tile:
        """The same bytes as boxes of another tensor of the same rank: for work in place."""
        if len(tensor.shape) != len(self.sizes):
            raise ProgramError(f"tile {self.buffer}: {tensor.name} has another rank")
        return replace(self, tensor=tensor)

    def __getitem__(self, index: IndexLike | tuple[IndexLike, ...]) -> Ref:
        return Ref(self, _indices(index, len(self.sizes), self.buffer))


def _indices(
    index: IndexLike | tuple[IndexLike, ...], rank: int, name: str
) -> tuple[tuple[str | None, Expr], ...]:
    """(label or None, offset) of each dim."""
    items: tuple[object, ...]
    if not isinstance(index, tuple) or (rank == 1 and len(index) == 2):
        items = (index,)
    else:
        items = index
    if len(items) != rank:
        raise ProgramError(f"{name}: {len(items)} indices for {rank} dims")
    return tuple(_one_index(item, name) for item in items)


def _one_index(item: object, name: str) -> tuple[str | None, Expr]:
    """(label or None, offset) of one dim."""
    if isinstance(item, str):
        return item, ZERO
    if isinstance(item, tuple):
        label, shift = item
        return str(label), expr(shift)
    if isinstance(item, Expr | int):
        return None, expr(item)
    raise ProgramError(f"{name}: {item!r} is no label, index or (label, offset)")


@dataclass(frozen=True)
class Ref:
    """A box of a tensor (in LPDDR5) or of a tile (in LX), by labels: an Access to be."""

    owner: Tensor | Tile
    index: tuple[tuple[str | None, Expr], ...]

    @property
    def tensor(self) -> Tensor:
        return self.owner.tensor if isinstance(self.owner, Tile) else self.owner

    @property
    def format(self) -> Format:
        return self.owner.format

    def access(self, over: Mapping[str, Span], by_index: str | None = None) -> Access:
        """The Access inside an instruction over `over`. `by_index`: the label whose position an
        index tile gives; the address is then that of its index 0."""
        owner = self.owner
        lx = isinstance(owner, Tile)
        if not lx and owner.role is None:  # type: ignore[union-attr]
            raise ProgramError(f"{owner.name}: a value has no place but a tile's")  # type: ignore[union-attr]
        strides: dict[str, Expr] = {}
        offset = owner.offset if isinstance(owner, Tile) else ZERO
        stick = None
        for dim, (label, shift) in enumerate(self.index):
            step = expr(owner.strides[dim])
            if label is not None and label not in over:
                raise ProgramError(f"{self.tensor.name}: the instruction has no label {label!r}")
            if label is not None:
                strides[label] = strides[label] + step if label in strides else step
                if dim == owner.stick:
                    stick = label
            if not lx:
                begin = shift if label is None else over[label].start + shift
                if label is None or label != by_index:
                    eps = owner.format.elements_per_stick
                    steps = _divided(begin, eps) if dim == owner.stick else begin
                    offset = offset + steps * step
        return Access(
            value=self.tensor.name,
            index=tuple(Index(label, shift) for label, shift in self.index),
            place=owner.buffer if isinstance(owner, Tile) else owner.name,
            format=owner.format,
            strides=tuple(strides.items()),
            stick=stick,
            offset=offset,
            slot=owner.slot if isinstance(owner, Tile) else ZERO,
            lanes=isinstance(owner, Tile) and owner.lanes,
        )


Refs: TypeAlias = "Ref | Sequence[Ref]"


def as_refs(refs: Refs) -> tuple[Ref, ...]:
    """One Ref or several, as several."""
    return (refs,) if isinstance(refs, Ref) else tuple(refs)


def _divided(node: Expr, by: int) -> Expr:
    """node // by, without a division where multiples of `by` are added or scaled."""
    if isinstance(node, Binary):
        if node.op == "*":
            scale = node.right.constant
            if scale is not None and scale % by == 0:
                return node.left * (scale // by)
        if node.op == "+":
            for whole, rest in ((node.right, node.left), (node.left, node.right)):
                found = _divided(whole, by)
                if not (isinstance(found, Binary) and found.op == "//"):
                    other = _divided(rest, by)
                    return found + other if whole is node.left else other + found
    return node // by


def operand_strides(
    sizes: tuple[Expr, ...], order: tuple[int, ...] | None, format: Format
) -> tuple[tuple[Expr, ...], int, int]:
    """(bytes a step of each dim, the dim on the stick or -1, bytes in all or -1 when symbolic),
    as `concrete.operand_layout`, with sizes that may be symbols."""
    dim_map = device_dims(order if order is not None else range(len(sizes)))
    stick = dim_map[-1]
    strides: list[Expr] = [ZERO] * len(sizes)
    pitch: Expr = Const(STICK_BYTES)
    for dim in reversed(dim_map[:-1]):
        if dim < 0:
            continue
        strides[dim] = pitch
        size = sizes[dim]
        pitch = pitch * (ceil_div(size, format.elements_per_stick) if dim == stick else size)
    whole = pitch.constant
    return tuple(strides), stick, -1 if whole is None else whole
