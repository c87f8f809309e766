"""Places: how the sticks of a tensor lie in LPDDR5. Pure integers; imports no torch."""

from __future__ import annotations

from collections.abc import Sequence

from openspyre.compiler.graph import Place, Tensor
from openspyre.compiler.sizes import Size, known, plus, product, size_of, times
from openspyre.formats import STICK_BYTES, Mode
from openspyre.program.expr import ceil_div, expr


def sticks(size: Size, eps: int) -> Size:
    """Sticks that `size` elements take."""
    number = known(size)
    return -(-number // eps) if number is not None else size_of(ceil_div(expr(size), eps))


def packed(shape: Sequence[Size], stick: int, eps: int) -> Place:
    """The place of a tensor of its own with dim `stick` on the stick (-1: one element a stick): the
    card's standard order, first of the other dims next to the stick, then the sticks, then the rest
    row by row. So it is what `SpyreTensorLayout.with_order` gives."""
    strides: list[Size] = [STICK_BYTES] * len(shape)
    others = [d for d in range(len(shape)) if d != stick]
    pitch: Size = STICK_BYTES
    if others:
        strides[others[0]] = pitch
        pitch = times(pitch, shape[others[0]])
    if stick >= 0:
        strides[stick] = pitch
        pitch = times(pitch, sticks(shape[stick], eps))
    for d in reversed(others[1:]):
        strides[d] = pitch
        pitch = times(pitch, shape[d])
    return Place(tuple(strides), stick)


def default_place(tensor: Tensor, mode: Mode) -> Place:
    """The card's default layout: the last dim on the stick."""
    eps = tensor.format(mode).elements_per_stick
    return packed(tensor.shape, len(tensor.shape) - 1, eps)


def span(shape: Sequence[Size], place: Place, eps: int) -> Size:
    """Bytes from the first stick of a tensor to behind its last."""
    total: Size = STICK_BYTES
    for d, (size, stride) in enumerate(zip(shape, place.strides, strict=True)):
        count = sticks(size, eps) if d == place.stick else size
        total = plus(total, times(stride, plus(count, -1)))
    return total


def padded(shape: Sequence[Size], stick: int, eps: int) -> Size:
    """Elements that the sticks of a packed tensor have room for."""
    return times(eps, product(
        sticks(size, eps) if d == stick else size for d, size in enumerate(shape)
    ))  # fmt: skip
