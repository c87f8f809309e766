"""Lowerings of view operations and of their scattering twins (slice_scatter and the like).

A view costs nothing: it is another window on the same tensor (openspyre/compiler/view.py); where
the algebra of windows ends, the elements are copied first. flip, repeat and roll are new tensors to
PyTorch; here they are windows, too, wherever one can say them: who returns one to the user, or
stores into its tensor, copies it before.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.graph import Affine
from openspyre.compiler.lower.registry import lowers
from openspyre.compiler.lower.tools import (
    cast,
    describe,
    flat,
    full,
    join,
    number,
    numbers,
    piece,
    wrap,
)
from openspyre.compiler.sizes import Size, known, plus, product, quotient, same
from openspyre.compiler.view import NeedsCopy, View
from openspyre.compiler.view import fresh as fresh_name


def resolved(b: GraphBuilder, view: View, sizes: Sequence[Size]) -> list[Size]:
    """The sizes of a reshape with -1 worked out."""
    found = list(sizes)
    for d, size in enumerate(found):
        if known(size) == -1:
            rest = quotient(view.numel, product(s for e, s in enumerate(found) if e != d))
            if rest is None:
                raise Unsupported(
                    b.operation, describe(view), f"sizes {tuple(sizes)}: -1 cannot be worked out"
                )
            found[d] = rest
    return found


def slice_range(b: GraphBuilder, size: Size, start: Size | None, end: Size | None, step: int) -> (
    tuple[Size, Size]
):  # fmt: skip
    """Start and length of Python's slice of a dim of that size."""
    whole, low = known(size), 0 if start is None else known(start)
    high = 2**63 - 1 if end is None else known(end)
    if low == 0 and step == 1 and (end is None or same(end, size)):
        return 0, size
    if whole is None and step == 1 and low is not None and low >= 0:
        if high is not None and high >= 2**31 - 1:
            return low, plus(size, -low)
        if high is not None and high < 0:
            return low, plus(size, high - low)
        if end is not None:  # the caller vouches for end <= size, as Dynamo's guards do
            return low, plus(end, -low)
    if whole is None or low is None or high is None:
        raise Unsupported(b.operation, f"a slice {start}:{end}:{step} of {size}", "it is symbolic")
    first, last, _ = slice(low, high, step).indices(whole)
    return first, len(range(first, last, step))


@lowers(
    "aten.alias", "aten.detach", "aten.alias_copy", "aten.detach_copy", "aten.lift_fresh_copy",
    "aten.lift_fresh", "aten.resolve_conj", "aten.resolve_neg",
)  # fmt: skip
def alias(b: GraphBuilder, x: View) -> View:
    return x


@lowers(
    "aten.view", "aten._unsafe_view", "aten.reshape", "aten.view_copy", "aten._reshape_alias_copy",
    "aten._reshape_copy",
)  # fmt: skip
def view(b: GraphBuilder, x: View, sizes: Sequence[Size], *_: object) -> View:
    return b.reshape(x, resolved(b, x, sizes))


@lowers("aten._reshape_alias")
def reshape_alias(b: GraphBuilder, x: View, sizes: Sequence[Size], stride: object) -> View:
    return b.reshape(x, resolved(b, x, sizes))


@lowers("aten.flatten.using_ints")
def flatten(b: GraphBuilder, x: View, start: int = 0, end: int = -1) -> View:
    if x.rank == 0:
        return x.unsqueeze(0)
    start, end = wrap(start, x.rank), wrap(end, x.rank)
    merged = product(x.shape[start : end + 1])
    return b.reshape(x, [*x.shape[:start], merged, *x.shape[end + 1 :]])


@lowers("aten.unflatten.int")
def unflatten(b: GraphBuilder, x: View, dim: int, sizes: Sequence[Size]) -> View:
    dim = wrap(dim, x.rank)
    shape = [*x.shape[:dim], *sizes, *x.shape[dim + 1 :]]
    return b.reshape(x, resolved(b, x, shape))


@lowers("aten.permute", "aten.permute_copy")
def permute(b: GraphBuilder, x: View, dims: Sequence[int]) -> View:
    return x.permute([wrap(d, x.rank) for d in dims])


@lowers("aten.transpose.int", "aten.transpose_copy.int", "aten.swapaxes", "aten.swapdims")
def transpose(b: GraphBuilder, x: View, first: int, second: int) -> View:
    return x.transpose(wrap(first, x.rank), wrap(second, x.rank)) if x.rank else x


@lowers("aten.t", "aten.t_copy", "aten.numpy_T")
def t(b: GraphBuilder, x: View) -> View:
    return x.permute(list(reversed(range(x.rank))))


@lowers("aten.mT", "aten.adjoint", "aten.mH")
def matrix_transpose(b: GraphBuilder, x: View) -> View:
    return x.transpose(x.rank - 2, x.rank - 1)


@lowers("aten.movedim.intlist", "aten.moveaxis.intlist")
def movedim(b: GraphBuilder, x: View, source: Sequence[int], target: Sequence[int]) -> View:
    moved = {wrap(t, x.rank): wrap(s, x.rank) for s, t in zip(source, target, strict=True)}
    rest = iter(d for d in range(x.rank) if d not in moved.values())
    return x.permute([moved[d] if d in moved else next(rest) for d in range(x.rank)])


@lowers("aten.movedim.int", "aten.moveaxis.int")
def movedim_one(b: GraphBuilder, x: View, source: int, target: int) -> View:
    return movedim(b, x, [source], [target])


@lowers("aten.expand", "aten.expand_copy", "aten.broadcast_to")
def expand(b: GraphBuilder, x: View, sizes: Sequence[Size], implicit: bool = False) -> View:
    return x.expand(sizes)


@lowers("aten.expand_as")
def expand_as(b: GraphBuilder, x: View, other: View) -> View:
    return x.expand(other.shape)


@lowers("aten.view_as", "aten.reshape_as")
def view_as(b: GraphBuilder, x: View, other: View) -> View:
    return b.reshape(x, other.shape)


@lowers("aten.squeeze", "aten.squeeze_copy")
def squeeze_all(b: GraphBuilder, x: View) -> View:
    return squeeze_dims(b, x, list(range(x.rank)))


@lowers("aten.squeeze.dim", "aten.squeeze_copy.dim")
def squeeze(b: GraphBuilder, x: View, dim: int) -> View:
    return squeeze_dims(b, x, [dim] if x.rank else [])


@lowers("aten.squeeze.dims", "aten.squeeze_copy.dims")
def squeeze_dims(b: GraphBuilder, x: View, dims: Sequence[int]) -> View:
    for dim in sorted({wrap(d, x.rank) for d in dims} if x.rank else (), reverse=True):
        x = x.squeeze(dim)
    return x


@lowers("aten.unsqueeze", "aten.unsqueeze_copy")
def unsqueeze(b: GraphBuilder, x: View, dim: int) -> View:
    return x.unsqueeze(wrap(dim, x.rank + 1))


@lowers("aten.select.int", "aten.select_copy.int")
def select(b: GraphBuilder, x: View, dim: int, index: Size) -> View:
    dim = wrap(dim, x.rank)
    at = known(index)
    if at is not None and at < 0:
        index = plus(x.size(dim), at)
    try:
        return x.select(dim, index)
    except NeedsCopy:
        return b.contiguous(x).select(dim, index)


@lowers("aten.slice.Tensor", "aten.slice_copy.Tensor")
def slice_(
    b: GraphBuilder, x: View, dim: int = 0, start: Size | None = None, end: Size | None = None,
    step: Size = 1,
) -> View:  # fmt: skip
    dim = wrap(dim, x.rank)
    by = number(step, b, "the step of a slice")
    return piece(b, x, dim, *slice_range(b, x.size(dim), start, end, by), by)


@lowers("aten.narrow", "aten.narrow_copy")
def narrow(b: GraphBuilder, x: View, dim: int, start: Size, length: Size) -> View:
    dim = wrap(dim, x.rank)
    at = known(start)
    return piece(b, x, dim, plus(x.size(dim), at) if at is not None and at < 0 else start, length)


def pieces(b: GraphBuilder, x: View, lengths: Sequence[Size], dim: int) -> list[View]:
    """The parts of those lengths, one behind the other."""
    if len(x.dims[dim]) > 1:
        try:
            return _pieces(x, lengths, dim)
        except NeedsCopy:
            x = b.contiguous(x)
    return _pieces(x, lengths, dim)


def _pieces(x: View, lengths: Sequence[Size], dim: int) -> list[View]:
    found, start = [], 0
    for length in lengths:
        found.append(x.slice(dim, start, length))
        start = plus(start, length)  # type: ignore[assignment]
    return found


@lowers("aten.split_with_sizes", "aten.split_with_sizes_copy", "aten.split.sizes")
def split_with_sizes(b: GraphBuilder, x: View, sizes: Sequence[Size], dim: int = 0) -> list[View]:
    return pieces(b, x, sizes, wrap(dim, x.rank))


@lowers("aten.split.Tensor", "aten.split_copy.Tensor", "aten.unsafe_split.Tensor")
def split(b: GraphBuilder, x: View, size: Size, dim: int = 0) -> list[View]:
    dim = wrap(dim, x.rank)
    if same(size, x.size(dim)):
        return [x]
    count = quotient(x.size(dim), size)
    if count is not None and (turns := known(count)) is not None:
        return pieces(b, x, [size] * turns, dim)
    whole, part = number(x.size(dim), b, "a split dim"), number(size, b, "the size of a split")
    part = max(part, 1)
    return pieces(b, x, [min(part, whole - at) for at in range(0, whole, part)], dim)


@lowers("aten.unsafe_split_with_sizes")
def unsafe_split_with_sizes(
    b: GraphBuilder, x: View, sizes: Sequence[Size], dim: int = 0
) -> list[View]:
    return split_with_sizes(b, x, sizes, dim)


@lowers("aten.chunk", "aten.unsafe_chunk")
def chunk(b: GraphBuilder, x: View, chunks: int, dim: int = 0) -> list[View]:
    whole = number(x.size(wrap(dim, x.rank)), b, "a split dim")
    return split(b, x, -(-whole // chunks), dim)


@lowers("aten.tensor_split.sections")
def tensor_split(b: GraphBuilder, x: View, sections: Size, dim: int = 0) -> list[View]:
    dim = wrap(dim, x.rank)
    whole, count = number(x.size(dim), b, "a split dim"), number(sections, b, "sections")
    short, more = divmod(whole, count)
    return pieces(b, x, [short + (n < more) for n in range(count)], dim)


@lowers("aten.tensor_split.indices")
def tensor_split_at(b: GraphBuilder, x: View, indices: Sequence[Size], dim: int = 0) -> list[View]:
    dim = wrap(dim, x.rank)
    whole = number(x.size(dim), b, "a split dim")
    at = [0, *numbers(indices, b, "the indices of a split"), whole]
    spans = [slice(low, high).indices(whole)[:2] for low, high in itertools.pairwise(at)]
    return [piece(b, x, dim, low, max(high - low, 0)) for low, high in spans]


@lowers("aten.unbind.int", "aten.unbind_copy.int")
def unbind(b: GraphBuilder, x: View, dim: int = 0) -> list[View]:
    dim = wrap(dim, x.rank)
    return [select(b, x, dim, n) for n in range(number(x.size(dim), b, "an unbound dim"))]


@lowers("aten.unfold", "aten.unfold_copy")
def unfold(b: GraphBuilder, x: View, dim: int, size: int, step: int) -> View:
    if x.rank == 0:
        return x.unsqueeze(0)
    dim = wrap(dim, x.rank)
    try:
        return x.unfold(dim, size, step)
    except NeedsCopy:
        number(x.size(dim), b, "an unfolded dim")
        return b.contiguous(x).unfold(dim, size, step)


@lowers("aten.diagonal", "aten.diagonal_copy", "aten.linalg_diagonal")
def diagonal(b: GraphBuilder, x: View, offset: int = 0, first: int = 0, second: int = 1) -> View:
    first, second = wrap(first, x.rank), wrap(second, x.rank)
    try:
        return x.diagonal(offset, first, second)
    except NeedsCopy:
        for d in (first, second):
            number(x.size(d), b, "a dim of a diagonal")
        return b.contiguous(x).diagonal(offset, first, second)


@lowers("aten.as_strided", "aten.as_strided_copy")
def as_strided(
    b: GraphBuilder, x: View, size: Sequence[Size], stride: Sequence[Size], offset: Size | None = 0
) -> View:
    """The storage is what the tensor's elements in order make: so it is for every tensor that is
    contiguous, and in functionalized graphs."""
    shape, steps = list(size), list(stride)
    found = as_permuted(b, x, shape, steps) if known(offset or 0) == 0 else None
    if found is not None:
        return found
    return windowed(flat(b, x), shape, steps, offset or 0)


def as_permuted(
    b: GraphBuilder, x: View, size: Sequence[Size], stride: Sequence[Size]
) -> View | None:
    """The as_strided view that is a reshape and a permutation; None if it is none."""
    counts = [n for s in size if (n := known(s)) is not None]
    steps = [n for s in stride if (n := known(s)) is not None]
    if len(counts) < len(size) or len(steps) < len(stride) or not same(product(size), x.numel):
        return None
    order = sorted(range(len(counts)), key=lambda d: (-steps[d], counts[d] == 1))
    expected = 1
    for d in reversed(order):
        if counts[d] != 1 and steps[d] != expected:
            return None
        expected *= counts[d]
    back = [order.index(d) for d in range(len(counts))]
    return b.reshape(x, [size[d] for d in order]).permute(back)


def windowed(x: View, size: Sequence[Size], stride: Sequence[Size], offset: Size) -> View:
    """An as_strided view of `flat` elements."""
    factors: list[tuple[str, Size]] = []
    dims: list[tuple[str, ...]] = []
    terms: list[tuple[str, Size]] = []
    for count, step in zip(size, stride, strict=True):
        if known(count) == 1:
            dims.append(())
            continue
        name = fresh_name()
        factors.append((name, count))
        dims.append((name,))
        if known(step) != 0:
            terms.append((name, step))
    own = x.dims[0][0] if x.dims[0] else None
    index = tuple(
        Affine(tuple(terms), plus(i.offset, offset)) if own in i.labels else i for i in x.index
    )
    return View(x.tensor, tuple(factors), tuple(dims), index)


# --- new tensors that are windows


@lowers("aten.flip", "aten.fliplr", "aten.flipud", "prims.rev")
def flip(b: GraphBuilder, x: View, dims: Sequence[int] | None = None) -> View:
    if dims is None:
        dims = [1 if "fliplr" in b.operation else 0]
    for dim in {wrap(d, x.rank) for d in dims} if x.rank else ():
        x = x.flip(dim)
    return x


@lowers("aten.rot90")
def rot90(b: GraphBuilder, x: View, k: int = 1, dims: Sequence[int] = (0, 1)) -> View:
    first, second = (wrap(d, x.rank) for d in dims)
    turns = k % 4
    if turns == 2:
        return x.flip(first).flip(second)
    if turns == 1:
        return x.flip(second).transpose(first, second)
    return x.flip(first).transpose(first, second) if turns == 3 else x


@lowers("aten.repeat")
def repeat(b: GraphBuilder, x: View, repeats: Sequence[Size]) -> View:
    for _ in range(len(repeats) - x.rank):
        x = x.unsqueeze(0)
    shape, spread = [], []
    for d, times in enumerate(repeats):
        shape += [times, x.size(d)]
        spread.append(product((times, x.size(d))))
    for d in reversed(range(x.rank)):
        x = x.unsqueeze(d)
    return x.expand(shape).reshape(spread)


@lowers("aten.tile")
def tile(b: GraphBuilder, x: View, dims: Sequence[Size]) -> View:
    return repeat(b, x, [*([1] * (x.rank - len(dims))), *dims])


@lowers("aten.repeat_interleave.self_int")
def repeat_interleave(
    b: GraphBuilder, x: View, repeats: Size, dim: int | None = None, output_size: Size | None = None
) -> View:
    if dim is None:
        x, dim = b.reshape(x, [x.numel]), 0
    dim = wrap(dim, x.rank)
    shape = list(x.shape)
    wide = x.unsqueeze(dim + 1).expand([*shape[: dim + 1], repeats, *shape[dim + 1 :]])
    shape[dim] = product((shape[dim], repeats))
    return wide.reshape(shape)


@lowers("aten.roll")
def roll(b: GraphBuilder, x: View, shifts: Sequence[Size], dims: Sequence[int] = ()) -> View:
    if not dims:
        turned = roll(b, b.reshape(x, [x.numel]), shifts, [0])
        return b.reshape(turned, x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        dim = wrap(dim, x.rank)
        size = number(x.size(dim), b, "a rolled dim")
        by = number(shift, b, "a shift") % size
        if by:
            parts = [piece(b, x, dim, size - by, by), piece(b, x, dim, 0, size - by)]
            x = join(b, parts, dim)
    return x


# --- a tensor with a window of it replaced


@lowers("aten.slice_scatter")
def slice_scatter(
    b: GraphBuilder, x: View, source: View, dim: int = 0, start: Size | None = None,
    end: Size | None = None, step: Size = 1,
) -> View:  # fmt: skip
    dim = wrap(dim, x.rank)
    by = number(step, b, "the step of a slice")
    first, length = slice_range(b, x.size(dim), start, end, by)
    if known(length) == 0:
        return x
    if same(length, x.size(dim)):
        return source.expand(x.shape)
    out = b.contiguous(x)
    b.store(out.slice(dim, first, length, by), source)
    return out


@lowers("aten.select_scatter")
def select_scatter(b: GraphBuilder, x: View, source: View, dim: int, index: Size) -> View:
    out = b.contiguous(x)
    b.store(select(b, out, dim, index), source)
    return out


@lowers("aten.diagonal_scatter")
def diagonal_scatter(
    b: GraphBuilder, x: View, source: View, offset: int = 0, first: int = 0, second: int = 1
) -> View:
    out = b.contiguous(x)
    b.store(out.diagonal(offset, wrap(first, x.rank), wrap(second, x.rank)), source)
    return out


@lowers("aten.as_strided_scatter")
def as_strided_scatter(
    b: GraphBuilder, x: View, source: View, size: Sequence[Size], stride: Sequence[Size],
    offset: Size | None = 0,
) -> View:  # fmt: skip
    out = b.contiguous(b.reshape(x, [x.numel]))
    b.store(windowed(out, size, stride, offset or 0), source)
    return b.reshape(out, x.shape)


@lowers("aten.select_backward")
def select_backward(
    b: GraphBuilder, grad: View, sizes: Sequence[Size], dim: int, index: Size
) -> View:
    out = full(b, sizes, 0, grad.dtype)
    b.store(select(b, out, dim, index), grad)
    return out


@lowers("aten.slice_backward")
def slice_backward(
    b: GraphBuilder, grad: View, sizes: Sequence[Size], dim: int, start: Size, end: Size,
    step: Size,
) -> View:  # fmt: skip
    dim = wrap(dim, len(sizes))
    by = number(step, b, "the step of a slice")
    first, length = slice_range(b, sizes[dim], start, end, by)
    if same(length, sizes[dim]):
        return grad
    out = full(b, sizes, 0, grad.dtype)
    b.store(out.slice(dim, first, length, by), grad)
    return out


@lowers("aten.diagonal_backward")
def diagonal_backward(
    b: GraphBuilder, grad: View, sizes: Sequence[Size], offset: int, first: int, second: int
) -> View:
    out = full(b, sizes, 0, grad.dtype)
    b.store(out.diagonal(offset, wrap(first, len(sizes)), wrap(second, len(sizes))), grad)
    return out


@lowers("aten.unfold_backward")
def unfold_backward(
    b: GraphBuilder, grad: View, sizes: Sequence[Size], dim: int, size: int, step: int
) -> View:
    if not sizes:
        return grad.select(0, 0)
    dim = wrap(dim, len(sizes))
    whole = number(sizes[dim], b, "an unfolded dim")
    turns = (whole - size) // step + 1
    if step >= size:
        out = full(b, sizes, 0, grad.dtype)
        # Windows that do not overlap: dim as window, place within it.
        window = out.slice(dim, 0, (turns - 1) * step + size).unfold(dim, size, step)
        b.store(window, grad)
        return out
    out = full(b, sizes, 0, "float32" if grad.dtype in ("float16", "bfloat16") else grad.dtype)
    places = b.map(
        lambda index: index(0) * step + index(1),
        dtype="int64", shape=(turns, size), indexed=True, name="places",
    )  # fmt: skip
    for _ in range(grad.rank - 2 - dim):
        places = places.unsqueeze(1)
    # grad has the window last: its index along dim is the place of (turn, within).
    where = [places if d == dim else d for d in range(len(sizes))]
    b.scatter(out, grad, where, add=True)
    return cast(b, out, grad.dtype)
