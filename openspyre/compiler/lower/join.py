"""Lowerings that put tensors together: cat and stack, pads with their backward, triangles.

They write a new tensor piece by piece: that moves least, and every piece is a plain store.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from openspyre.compiler.build import GraphBuilder, Operand
from openspyre.compiler.lower.registry import lowers
from openspyre.compiler.lower.tools import (
    common_dtype,
    full,
    join,
    number,
    numbers,
    pad,
    piece,
    summed,
    wrap,
)
from openspyre.compiler.sizes import Size, known, plus
from openspyre.compiler.view import View
from openspyre.program import body as f
from openspyre.program.body import Reg


@lowers("aten.cat", "aten.concat", "aten.concatenate", "prims.cat")
def cat(b: GraphBuilder, tensors: Sequence[View], dim: int = 0) -> View:
    dtype = common_dtype(tensors)
    parts = [x for x in tensors if known(x.numel) != 0]
    dim = wrap(dim, max(x.rank for x in parts))
    return join(b, parts, dim, dtype)


@lowers("aten.stack", "aten._stack")
def stack(b: GraphBuilder, tensors: Sequence[View], dim: int = 0) -> View:
    dim = wrap(dim, tensors[0].rank + 1)
    return join(b, [x.unsqueeze(dim) for x in tensors], dim, common_dtype(tensors))


def at_least(b: GraphBuilder, tensors: Sequence[View], rank: int) -> list[View]:
    """As torch.atleast_nd does, for the stacks."""
    found = []
    for x in tensors:
        while x.rank < min(rank, 2):
            x = x.unsqueeze(0)
        found.append(x.unsqueeze(2) if rank == 3 and x.rank == 2 else x)
    return found


@lowers("aten.hstack", "aten.vstack", "aten.row_stack", "aten.dstack", "aten.column_stack")
def named_stack(b: GraphBuilder, tensors: Sequence[View]) -> View:
    kind = b.operation.split(".")[1]
    if kind == "hstack":
        parts = at_least(b, tensors, 1)
        return cat(b, parts, 0 if parts[0].rank == 1 else 1)
    if kind == "column_stack":
        columns = [x.unsqueeze(0).transpose(0, 1) if x.rank == 1 else x for x in tensors]
        columns = [x.unsqueeze(0).unsqueeze(0) if x.rank == 0 else x for x in columns]
        return cat(b, columns, 1)
    return cat(b, at_least(b, tensors, 3 if kind == "dstack" else 2), 2 if kind == "dstack" else 0)


# --- pads


def outermost(pads: Sequence[int], rank: int) -> tuple[list[int], list[int]]:
    """PyTorch's list of pads (last dim first) as low and high pads of every dim."""
    low, high = [0] * rank, [0] * rank
    for n in range(len(pads) // 2):
        low[rank - 1 - n], high[rank - 1 - n] = pads[2 * n], pads[2 * n + 1]
    return low, high


@lowers("aten.constant_pad_nd")
def constant_pad(b: GraphBuilder, x: View, pads: Sequence[Size], value: Operand = 0) -> View:
    low, high = outermost(numbers(pads, b, "a pad"), x.rank)
    return pad(b, x, low, high, value)


@lowers("aten.reflection_pad1d", "aten.reflection_pad2d", "aten.reflection_pad3d")
def reflection_pad(b: GraphBuilder, x: View, pads: Sequence[Size]) -> View:
    def side(x: View, dim: int, count: int, last: bool) -> View:
        size = number(x.size(dim), b, "a padded dim")
        return piece(b, x, dim, size - 1 - count if last else 1, count).flip(dim)

    return edged(b, x, pads, side)


@lowers("aten.replication_pad1d", "aten.replication_pad2d", "aten.replication_pad3d")
def replication_pad(b: GraphBuilder, x: View, pads: Sequence[Size]) -> View:
    def side(x: View, dim: int, count: int, last: bool) -> View:
        size = number(x.size(dim), b, "a padded dim")
        shape = list(x.shape)
        shape[dim] = count
        return piece(b, x, dim, size - 1 if last else 0, 1).expand(shape)

    return edged(b, x, pads, side)


@lowers("aten._pad_circular")
def circular_pad(b: GraphBuilder, x: View, pads: Sequence[Size]) -> View:
    def side(x: View, dim: int, count: int, last: bool) -> View:
        size = number(x.size(dim), b, "a padded dim")
        return piece(b, x, dim, 0 if last else size - count, count)

    return edged(b, x, pads, side)


def edged(
    b: GraphBuilder, x: View, pads: Sequence[Size], side: Callable[[View, int, int, bool], View]
) -> View:
    """`x` between what `side` makes of it; negative pads cut."""
    low, high = outermost(numbers(pads, b, "a pad"), x.rank)
    for d in range(x.rank):
        before, after = max(low[d], 0), max(high[d], 0)
        parts = [side(x, d, before, False)] if before else []
        if low[d] < 0 or high[d] < 0:
            size = number(x.size(d), b, "a padded dim") + min(low[d], 0) + min(high[d], 0)
            parts += [piece(b, x, d, -min(low[d], 0), size)] if size > 0 else []
        else:
            parts.append(x)
        parts += [side(x, d, after, True)] if after else []
        x = join(b, parts, d)
    return x


@lowers(
    "aten.reflection_pad1d_backward", "aten.reflection_pad2d_backward",
    "aten.reflection_pad3d_backward",
)  # fmt: skip
def reflection_pad_backward(b: GraphBuilder, grad: View, x: View, pads: Sequence[Size]) -> View:
    return _pad_backward(b, grad, x, pads, mirror=True)


@lowers(
    "aten.replication_pad1d_backward", "aten.replication_pad2d_backward",
    "aten.replication_pad3d_backward",
)  # fmt: skip
def replication_pad_backward(b: GraphBuilder, grad: View, x: View, pads: Sequence[Size]) -> View:
    return _pad_backward(b, grad, x, pads, mirror=False)


def _pad_backward(b: GraphBuilder, grad: View, x: View, pads: Sequence[Size], mirror: bool) -> View:
    """Dim by dim, the sum of what was read from each element, where the same sum holds in one
    piece."""
    low, high = outermost(numbers(pads, b, "a pad"), x.rank)
    for d in range(x.rank):
        if not low[d] and not high[d]:
            continue
        size = number(x.size(d), b, "a padded dim")
        left, right = low[d], high[d]
        if left < 0 or right < 0:
            grad = pad(
                b, grad, [max(-left, 0) if e == d else 0 for e in range(x.rank)],
                [max(-right, 0) if e == d else 0 for e in range(x.rank)], 0,
            )  # fmt: skip
            left, right = max(left, 0), max(right, 0)
        core = piece(b, grad, d, left, size)
        # (first, count, gradient): elements first.. of the dim, and what else they get.
        more: list[tuple[int, int, View]] = []
        if left:
            edge = piece(b, grad, d, 0, left)
            more.append((1, left, edge.flip(d)) if mirror else (0, 1, _sum(b, edge, d)))
        if right:
            edge = piece(b, grad, d, left + size, right)
            more.append(
                (size - 1 - right, right, edge.flip(d))
                if mirror
                else (size - 1, 1, _sum(b, edge, d))
            )
        cuts = sorted({0, size, *(c for at, n, _ in more for c in (at, at + n))})
        parts = []
        for begin, end in itertools.pairwise(cuts):
            part = piece(b, core, d, begin, end - begin)
            here = [
                piece(b, g, d, begin - at, end - begin)
                for at, n, g in more
                if at <= begin and end <= at + n
            ]
            if here:
                part = b.map(_added, part, *here, dtype=grad.dtype, compute="float32")
            parts.append(part)
        grad = join(b, parts, d)
    return grad


def _added(first: Reg, *rest: Reg) -> Reg:
    for reg in rest:
        first = first + reg
    return first


def _sum(b: GraphBuilder, x: View, dim: int) -> View:
    return summed(b, x, [dim], keepdim=True)


# --- triangles


@lowers("aten.tril", "aten.triu")
def triangle(b: GraphBuilder, x: View, diagonal: int = 0) -> View:
    lower = "tril" in b.operation
    rows, columns = x.rank - 2, x.rank - 1

    def keep(index: Callable[[int], Reg], value: Reg) -> Reg:
        limit = index(rows) + diagonal
        inside = index(columns) <= limit if lower else index(columns) >= limit
        return f.where(inside, value, 0)

    return b.map(keep, x, dtype=x.dtype, compute=x.dtype, indexed=True)


@lowers("aten.tril_indices", "aten.triu_indices")
def triangle_indices(
    b: GraphBuilder, rows: int, columns: int, offset: int = 0, *, dtype: str | None = None,
) -> View:  # fmt: skip
    lower = "tril" in b.operation
    make = np.tril_indices if lower else np.triu_indices
    found = np.stack(make(rows, offset, columns)).astype(np.int64)
    made = b.constant(found, "int64")
    return made if dtype in (None, "int64") else b.copy(made, dtype)


@lowers("aten.diag_embed")
def diag_embed(
    b: GraphBuilder, x: View, offset: int = 0, first: int = -2, second: int = -1
) -> View:
    rank = x.rank + 1
    first, second = wrap(first, rank), wrap(second, rank)
    size = number(x.size(x.rank - 1), b, "the size of a diagonal") + abs(offset)
    shape: list[Size] = list(x.shape[:-1])
    for d in sorted((first, second)):
        shape.insert(d, size)
    out = full(b, shape, 0, x.dtype)
    b.store(out.diagonal(offset, first, second), x)
    return out


@lowers("aten.block_diag")
def block_diag(b: GraphBuilder, tensors: Sequence[View]) -> View:
    blocks = []
    for x in tensors:
        while x.rank < 2:
            x = x.unsqueeze(0)
        blocks.append(x)
    rows = sum(number(x.size(0), b, "a block") for x in blocks)
    columns = sum(number(x.size(1), b, "a block") for x in blocks)
    out = full(b, (rows, columns), 0, common_dtype(blocks))
    row: Size = 0
    column: Size = 0
    for x in blocks:
        if known(x.numel) != 0:
            b.store(out.slice(0, row, x.size(0)).slice(1, column, x.size(1)), x)
        row, column = plus(row, x.size(0)), plus(column, x.size(1))
    return out
