"""Lowerings of operations that read or write where an index tensor says.

Reads are maps with an indirect index, writes are scatters in ascending order of their points; a sum
into 16-bit elements is made in float32 and rounded once. An index outside of its dim fails the
launch by itself; negative ones count from the end where PyTorch lets them.
"""

from __future__ import annotations

from collections.abc import Sequence

from openspyre.compiler.build import GraphBuilder, Operand, Where, broadcast
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.lower.promote import HALVES, LIMITS, promote_types, result_type
from openspyre.compiler.lower.registry import lowers
from openspyre.compiler.lower.tools import (
    at_least_1d,
    cast,
    describe,
    flat,
    full,
    indexed_dtype,
    number,
    piece,
    summed,
    wrap,
    wrapped_index,
)
from openspyre.compiler.sizes import Size, known, product
from openspyre.compiler.view import View
from openspyre.program import body as f
from openspyre.program.body import Reg
from openspyre.program.ops import Combine


def exact(dtype: str) -> str:
    """The dtype in which values of `dtype` are summed up."""
    return "float32" if dtype in HALVES else dtype


def gathered(
    b: GraphBuilder, source: View, shape: Sequence[Size], where: Sequence[Where], name: str = "g"
) -> View:
    """`b.gather`, for indexed dims of size 1, too (whose index can only be 0)."""
    places: list[Where] = []
    for d in reversed(range(source.rank)):
        place = where[d]
        if isinstance(place, View) and not source.dims[d]:
            source = source.squeeze(d)
        else:
            places.insert(0, place)
    if not any(isinstance(w, View) for w in places):
        out = source.permute(sorted(range(source.rank), key=lambda d: places[d]))  # type: ignore[arg-type, return-value]
        for d in range(len(shape)):
            if d not in places:
                out = out.unsqueeze(d)
        return out.expand(shape)
    if sum(isinstance(w, View) for w in places) > 1:
        joined = Merged(b, source, places)
        source, places = joined.view, joined.where
    return b.gather(source, shape, places, name)


class Merged:
    """A copy `view` of a tensor whose indexed dims are one dim, with one index for it: the units
    follow one index tensor at a time. An index outside of its dim makes the joint one -1, so that
    it fails the launch and does not hit a neighbour."""

    def __init__(self, b: GraphBuilder, x: View, where: Sequence[Where]) -> None:
        self.dims = [d for d, w in enumerate(where) if isinstance(w, View)]
        first = self.dims[0]
        rest = [d for d in range(x.rank) if d not in self.dims]
        self.before = [d for d in rest if d < first]
        self.order = [*self.before, *self.dims, *(d for d in rest if d > first)]
        moved = x.permute(self.order)
        self.shape = moved.shape
        sizes = [number(x.size(d), b, "an indexed dim") for d in self.dims]
        at, last = len(self.before), len(self.before) + len(self.dims)
        flat_shape = [*moved.shape[:at], product(sizes), *moved.shape[last:]]
        self.view = b.contiguous(b.reshape(moved, flat_shape))

        def linear(*index: Reg) -> Reg:
            total, inside = index[0], index[0] < sizes[0]
            inside = inside & (index[0] >= 0)
            for reg, size in zip(index[1:], sizes[1:], strict=True):
                total = total * size + reg
                inside = inside & (reg >= 0) & (reg < size)
            return f.where(inside, total, -1)

        indices = [w for w in where if isinstance(w, View)]
        joint = b.map(linear, *indices, dtype="int64", compute="int64", name="index")
        self.where: list[Where] = [
            *(where[d] for d in self.before), joint,
            *(where[d] for d in self.order[last:]),
        ]  # fmt: skip

    def back(self) -> View:
        """The copy in the dims of the tensor."""
        found = self.view.reshape(self.shape)
        return found.permute([self.order.index(d) for d in range(len(self.order))])


# --- reading


@lowers("aten.embedding")
def embedding(
    b: GraphBuilder, weight: View, indices: View, padding_idx: Size = -1,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> View:  # fmt: skip
    shape = [*indices.shape, *weight.shape[1:]]
    wide = indices
    for _ in range(weight.rank - 1):
        wide = wide.unsqueeze(wide.rank)
    rest = range(indices.rank, len(shape))
    return gathered(b, weight, shape, [wide, *rest], "embedding")


@lowers("aten.embedding_dense_backward")
def embedding_dense_backward(
    b: GraphBuilder, grad: View, indices: View, num_weights: Size, padding_idx: Size = -1,
    scale_grad_by_freq: bool = False,
) -> View:  # fmt: skip
    width = grad.size(grad.rank - 1)
    rows = b.contiguous(b.reshape(indices, [indices.numel])) if indices.rank != 1 else indices
    values = b.reshape(grad, [indices.numel, width])
    skip = number(padding_idx, b, "padding_idx")
    at = rows.unsqueeze(1)
    factors: list[View] = []
    if scale_grad_by_freq:
        counts = full(b, (num_weights,), 0, "float32")
        b.scatter(counts, full(b, rows.shape, 1, "float32"), [rows], add=True)
        factors.append(gathered(b, counts, rows.shape, [rows], "counts").unsqueeze(1))

    def scaled(value: Reg, row: Reg, *count: Reg) -> Reg:
        value = f.cast(value, "f")
        if count:
            value = value / count[0]
        return f.where(f.equal(row, skip), 0.0, value) if skip >= 0 else value

    values = b.map(scaled, values, at, *factors, dtype="float32")
    out = full(b, (num_weights, width), 0, "float32")
    scattered(b, out, values, [at, 1], add=True)
    return cast(b, out, grad.dtype)


@lowers("aten.index_select")
def index_select(b: GraphBuilder, x: View, dim: int, index: View) -> View:
    indexed_dtype(b, index)
    if x.rank == 0:
        return x
    dim, index = wrap(dim, x.rank), at_least_1d(index)
    shape = [*x.shape[:dim], index.size(0), *x.shape[dim + 1 :]]
    return gathered(b, x, shape, [along(index, d, dim, x.rank) for d in range(x.rank)])


def along(index: View, d: int, dim: int, rank: int) -> Where:
    """The place of dim d when a vector of indices runs along dim `dim`."""
    if d != dim:
        return d
    for _ in range(rank - 1 - dim):
        index = index.unsqueeze(index.rank)
    return index


@lowers("aten.gather")
def gather(b: GraphBuilder, x: View, dim: int, index: View, sparse_grad: bool = False) -> View:
    indexed_dtype(b, index)
    if x.rank == 0 or index.rank == 0:
        out = gather(b, at_least_1d(x), 0, at_least_1d(index))
        return out.select(0, 0) if index.rank == 0 else out
    dim = wrap(dim, x.rank)
    for d in range(x.rank):
        if d != dim:
            x = narrowed(b, x, d, index.size(d))
    return gathered(b, x, index.shape, [index if d == dim else d for d in range(x.rank)])


def narrowed(b: GraphBuilder, x: View, d: int, size: Size) -> View:
    """The first `size` of dim d."""
    return piece(b, x, d, 0, size)


@lowers("aten.gather_backward")
def gather_backward(
    b: GraphBuilder, grad: View, x: View, dim: int, index: View, sparse_grad: bool = False
) -> View:
    return scatter_add(b, full(b, x.shape, 0, grad.dtype), dim, index, grad)


@lowers("aten.take")
def take(b: GraphBuilder, x: View, index: View) -> View:
    indexed_dtype(b, index)
    at = wrapped_index(b, index, x.numel)
    return gathered(b, flat(b, x), index.shape, [at])


@lowers("aten.take_along_dim")
def take_along_dim(b: GraphBuilder, x: View, index: View, dim: int | None = None) -> View:
    if dim is None:
        return take(b, x, b.reshape(index, [index.numel]))
    dim = wrap(dim, x.rank)
    own, theirs = list(x.shape), list(index.shape)
    own[dim] = theirs[dim] = 1
    shape = list(broadcast([own, theirs]))
    mine = [x.size(d) if d == dim else shape[d] for d in range(x.rank)]
    theirs = [index.size(d) if d == dim else shape[d] for d in range(x.rank)]
    at = wrapped_index(b, index, x.size(dim)).expand(theirs)
    return gather(b, x.expand(mine), dim, at)


class Advanced:
    """The places of x[i, j, ..]: the indexed dims, the shape of what is read, and where."""

    def __init__(self, b: GraphBuilder, x: View, indices: Sequence[View | None]) -> None:
        given = [(d, i) for d, i in enumerate(indices) if i is not None]
        for _, index in given:
            indexed_dtype(b, index)
        common = broadcast([i.shape for _, i in given])
        dims = [d for d, _ in given]
        together = dims == list(range(dims[0], dims[0] + len(dims)))
        first = dims[0] if together else 0
        rest = [d for d in range(x.rank) if d not in dims]
        before = [d for d in rest if d < first] if together else []
        after = [d for d in rest if d not in before]
        self.shape: tuple[Size, ...] = (
            *(x.size(d) for d in before), *common, *(x.size(d) for d in after),
        )  # fmt: skip
        where: dict[int, Where] = {d: n for n, d in enumerate(before)}
        where |= {d: len(before) + len(common) + n for n, d in enumerate(after)}
        for d, index in given:
            at = wrapped_index(b, index, x.size(d))
            for _ in after:
                at = at.unsqueeze(at.rank)
            where[d] = at
        self.where = [where[d] for d in range(x.rank)]


@lowers("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(b: GraphBuilder, x: View, indices: Sequence[View | None]) -> View:
    if all(i is None for i in indices):
        return x
    places = Advanced(b, x, indices)
    return gathered(b, x, places.shape, places.where)


@lowers("aten._unsafe_masked_index")
def unsafe_masked_index(
    b: GraphBuilder, x: View, mask: View, indices: Sequence[View | None], fill: Operand
) -> View:
    clamped = [
        None if i is None else b.map(
            lambda at, high: f.maximum(f.minimum(at, high), 0),
            i, number(x.size(d), b, "an indexed dim") - 1, dtype="int64", compute="int64",
        )
        for d, i in enumerate(indices)
    ]  # fmt: skip
    found = index(b, x, clamped)
    return b.map(
        lambda m, value, other: f.where(f.cast(m, "b"), value, f.cast(other, value.type)),
        mask, found, fill, dtype=x.dtype,
    )  # fmt: skip


@lowers("aten._unsafe_masked_index_put_accumulate")
def unsafe_masked_index_put(
    b: GraphBuilder, x: View, mask: View, indices: Sequence[View | None], values: View
) -> View:
    clamped = [
        None if i is None else b.map(
            lambda at, high: f.maximum(f.minimum(at, high), 0),
            i, number(x.size(d), b, "an indexed dim") - 1, dtype="int64", compute="int64",
        )
        for d, i in enumerate(indices)
    ]  # fmt: skip
    kept = b.map(lambda m, v: f.where(f.cast(m, "b"), v, 0), mask, values, dtype=values.dtype)
    return index_put(b, x, clamped, kept, True)


# --- writing


def scattered(
    b: GraphBuilder, target: View, value: View, where: Sequence[Where], *, add: bool = False
) -> None:
    """`b.scatter`, for indexed dims of size 1, too (whose index can only be 0)."""
    places: list[Where] = []
    for d in reversed(range(target.rank)):
        place = where[d]
        if isinstance(place, View) and not target.dims[d]:
            target = target.squeeze(d)
        else:
            places.insert(0, place)
    indirect = sum(isinstance(w, View) for w in places)
    if indirect == 1:
        b.scatter(target, value, places, add=add)
        return
    if indirect > 1:
        joined = Merged(b, target, places)
        b.scatter(joined.view, value, joined.where, add=add)
        b.store(target, joined.back())
        return
    for d in reversed(range(value.rank)):
        if d not in places:  # all points along d write to one place: they sum, or the last stays
            last = number(value.size(d), b, "an indexed dim") - 1
            value = summed(b, value, [d]) if add else value.select(d, last)
            places = [w - 1 if isinstance(w, int) and w > d else w for w in places]
    value = value.permute(places)  # type: ignore[arg-type]
    if add:
        value = b.map(lambda x, y: x + y, target, value, dtype=target.dtype, compute=target.dtype)
    b.store(target, value)


@lowers("aten.index_put", "aten._unsafe_index_put", "aten._index_put_impl")
def index_put(
    b: GraphBuilder, x: View, indices: Sequence[View | None], values: View,
    accumulate: bool = False, unsafe: bool = False,
) -> View:  # fmt: skip
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if len(given) == 1 and given[0][1].dtype == "bool":
        at, mask = given[0]
        spread = masked_values(values, x.rank - at - mask.rank, mask.rank)
        if spread is not None:
            return masked_put(b, x, mask, x.rank - at - mask.rank, spread, accumulate)
    places = Advanced(b, x, indices)
    dtype = exact(x.dtype) if accumulate else x.dtype
    out = b.contiguous(cast(b, x, dtype))
    scattered(b, out, values.expand(places.shape), places.where, add=accumulate)
    return cast(b, out, x.dtype)


def masked_values(values: View, rest: int, rank: int) -> View | None:
    """Values that are the same wherever a mask of that rank holds, with the mask's dims in place of
    the one along which its true elements are counted; None when they differ. `rest`: the dims after
    the mask."""
    at = values.rank - rest - 1
    if at < 0:
        return values
    if values.dims[at]:
        return None
    for _ in range(rank - 1):
        values = values.unsqueeze(at)
    return values


def masked_put(
    b: GraphBuilder, x: View, mask: View, rest: int, values: View, accumulate: bool
) -> View:
    """x[.., mask, ..] = or += values."""
    for _ in range(rest):
        mask = mask.unsqueeze(mask.rank)

    def body(old: Reg, m: Reg, new: Reg) -> Reg:
        return f.where(f.cast(m, "b"), old + new if accumulate else new, old)

    return b.map(body, x, mask, values, dtype=x.dtype, shape=x.shape)


def into(
    b: GraphBuilder, x: View, dim: int, index: View, source: View | Operand, *, add: bool
) -> View:
    """x with source[p] at the place where dim `dim` of p is replaced by index[p]."""
    indexed_dtype(b, index)
    dtype = exact(x.dtype) if add else x.dtype
    if known(index.numel) == 0:
        return x
    scalar = x.rank == 0
    if scalar:
        x = x.unsqueeze(0)
    index = at_least_1d(index)
    dim = wrap(dim, x.rank)
    out = target = b.contiguous(cast(b, x, dtype))
    if isinstance(source, View):
        value = at_least_1d(source)
        for d in range(x.rank):
            value = narrowed(b, value, d, index.size(d))
    else:
        value = full(b, index.shape, source, dtype)
    for d in range(x.rank):
        if d != dim:
            target = narrowed(b, target, d, index.size(d))
    scattered(b, target, value, [index if d == dim else d for d in range(x.rank)], add=add)
    out = cast(b, out, x.dtype)
    return out.select(0, 0) if scalar else out


@lowers("aten.scatter.src", "aten.scatter.value")
def scatter(b: GraphBuilder, x: View, dim: int, index: View, source: View | Operand) -> View:
    return into(b, x, dim, index, source, add=False)


@lowers("aten.scatter_add")
def scatter_add(b: GraphBuilder, x: View, dim: int, index: View, source: View) -> View:
    return into(b, x, dim, index, source, add=True)


@lowers("aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter_reduced(
    b: GraphBuilder, x: View, dim: int, index: View, source: View | Operand, *, reduce: str
) -> View:
    if reduce != "add":
        value = source if isinstance(source, View) else full(b, index.shape, source, x.dtype)
        return scatter_reduce(b, x, dim, index, value, "prod")
    return into(b, x, dim, index, source, add=True)


@lowers("aten.scatter_reduce.two")
def scatter_reduce(
    b: GraphBuilder, x: View, dim: int, index: View, source: View, reduce: str,
    *, include_self: bool = True,
) -> View:  # fmt: skip
    if reduce not in ("sum", "mean"):
        return _scatter_by_comparing(b, x, dim, index, source, reduce, include_self)
    wide = exact(x.dtype)
    base = cast(b, x, wide)
    count = None
    if reduce == "mean" or not include_self:
        ones = full(b, index.shape, 1, "float32")
        zero = full(b, x.shape, 0, "float32")
        count = into(b, zero, dim, index, ones, add=True)
    if not include_self:
        assert count is not None
        base = b.map(
            lambda v, n: f.where(n > 0, f.cast(v, v.type).const(v.type, 0), v),
            base, count, dtype=wide,
        )  # fmt: skip
    total = into(b, base, dim, index, source, add=True)
    if reduce == "sum":
        return cast(b, total, x.dtype)
    assert count is not None
    own = 1 if include_self else 0

    def mean(value: Reg, n: Reg) -> Reg:
        n = f.maximum(n + own, 1.0)
        return value / n if value.type == "f" else value // f.cast(n, value.type)

    return b.map(mean, total, count, dtype=x.dtype)


def _scatter_by_comparing(
    b: GraphBuilder, x: View, dim: int, index: View, source: View, reduce: str, include_self: bool
) -> View:
    """prod, amin and amax as a reduction over all points of the index: [.., place, point]."""
    indexed_dtype(b, index)
    combine = {"prod": Combine.PROD, "amax": Combine.MAX, "amin": Combine.MIN}[reduce]
    scalar = x.rank == 0
    if scalar:
        x = x.unsqueeze(0)
    index, source = at_least_1d(index), at_least_1d(source)
    dim = wrap(dim, x.rank)
    for d in range(x.rank):
        source = narrowed(b, source, d, index.size(d))
    target = x
    for d in range(x.rank):
        if d != dim:
            target = narrowed(b, target, d, index.size(d))
    last = x.rank
    order = [d for d in range(last + 1) if d != dim + 1] + [dim + 1]
    # index [.., P, ..] as [.., 1, .., P]
    at = index.unsqueeze(dim).permute(order)
    value = source.unsqueeze(dim).permute(order)
    shape = [*target.shape, index.size(dim)]
    wide = exact(x.dtype)
    neutral = {"prod": 1, "amax": _least(wide), "amin": _most(wide)}[reduce]
    hit = b.map(
        lambda where, i, v: f.where(
            f.equal(where(dim), f.cast(i, "l")), v, v.const(v.type, neutral)
        ),
        at, cast(b, value, wide), dtype=wide, shape=shape, indexed=True,
    )  # fmt: skip
    found = b.reduce(combine, hit, [last])[0]
    if include_self:
        join = {
            "prod": lambda p, q: p * q, "amax": f.maximum, "amin": f.minimum
        }[reduce]  # fmt: skip
        made = b.map(join, target, found, dtype=x.dtype, compute=wide)
    else:
        count = b.reduce(
            Combine.ANY,
            b.map(
                lambda where, i: f.equal(where(dim), f.cast(i, "l")),
                at, dtype="bool", shape=shape, indexed=True,
            ),
            [last],
        )[0]  # fmt: skip
        made = b.map(
            lambda own, new, any_: f.where(any_ > 0, new, f.cast(own, new.type)),
            target, found, count, dtype=x.dtype,
        )  # fmt: skip
    if target is x:
        out = made
    else:
        out = b.contiguous(x)
        window = out
        for d in range(x.rank):
            if d != dim:
                window = window.slice(d, 0, index.size(d))
        b.store(window, made)
    return out.select(0, 0) if scalar else out


def _least(dtype: str) -> float | int:
    return LIMITS[dtype][0] if dtype in LIMITS else float("-inf")


def _most(dtype: str) -> float | int:
    return LIMITS[dtype][1] if dtype in LIMITS else float("inf")


@lowers("aten.index_add")
def index_add(
    b: GraphBuilder, x: View, dim: int, index: View, source: View, *, alpha: Operand = 1
) -> View:
    indexed_dtype(b, index)
    scalar = x.rank == 0
    if scalar:
        x = x.unsqueeze(0)
    source, index, dim = at_least_1d(source), at_least_1d(index), wrap(dim, x.rank)
    wide = exact(x.dtype)
    out = b.contiguous(cast(b, x, wide))
    value = b.map(lambda v, a: v * a, source, alpha, dtype=wide, compute=wide)
    scattered(b, out, value, [along(index, d, dim, x.rank) for d in range(x.rank)], add=True)
    out = cast(b, out, x.dtype)
    return out.select(0, 0) if scalar else out


@lowers("aten.index_copy")
def index_copy(b: GraphBuilder, x: View, dim: int, index: View, source: View) -> View:
    indexed_dtype(b, index)
    scalar = x.rank == 0
    if scalar:
        x = x.unsqueeze(0)
    source, index, dim = at_least_1d(source), at_least_1d(index), wrap(dim, x.rank)
    out = b.contiguous(x)
    scattered(b, out, source, [along(index, d, dim, x.rank) for d in range(x.rank)])
    return out.select(0, 0) if scalar else out


@lowers("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(b: GraphBuilder, x: View, dim: int, index: View, value: Operand) -> View:
    indexed_dtype(b, index)
    scalar = x.rank == 0
    if scalar:
        x = x.unsqueeze(0)
    index, dim = at_least_1d(index), wrap(dim, x.rank)
    at = wrapped_index(b, index, x.size(dim))
    shape = [*x.shape[:dim], index.size(0), *x.shape[dim + 1 :]]
    source = cast(b, value, x.dtype).expand(shape) if isinstance(value, View) else full(
        b, shape, value, x.dtype
    )  # fmt: skip
    out = b.contiguous(x)
    scattered(b, out, source, [along(at, d, dim, x.rank) for d in range(x.rank)])
    return out.select(0, 0) if scalar else out


@lowers("aten.put")
def put(b: GraphBuilder, x: View, index: View, source: View, accumulate: bool = False) -> View:
    indexed_dtype(b, index)
    dtype = exact(x.dtype) if accumulate else x.dtype
    out = b.contiguous(b.reshape(cast(b, x, dtype), [x.numel]))
    at = wrapped_index(b, b.reshape(index, [index.numel]), x.numel)
    scattered(b, out, b.reshape(source, [source.numel]), [at], add=accumulate)
    return b.reshape(cast(b, out, x.dtype), x.shape)


@lowers("aten.masked_scatter")
def masked_scatter(b: GraphBuilder, x: View, mask: View, source: View) -> View:
    """The n-th true element gets source[n - 1]: n is a running sum over the mask."""
    shape = broadcast([x.shape, mask.shape])
    chosen = b.contiguous(b.reshape(mask.expand(shape), [product(shape)]))
    if not chosen.dims[0]:
        place = b.map(lambda m: m.const("l", 0), chosen, dtype="int64")
    else:
        count = b.scan(Combine.SUM, chosen, 0, "int64")
        limit = number(source.numel, b, "the size of the source") - 1
        place = b.map(
            lambda n: f.maximum(f.minimum(n - 1, limit), 0), count, dtype="int64"
        )  # fmt: skip
    found = gathered(b, flat(b, source), chosen.shape, [place])
    return b.map(
        lambda v, m, new: f.where(f.cast(m, "b"), new, v),
        x, mask, b.reshape(found, shape), dtype=x.dtype,
    )  # fmt: skip


# --- by comparing


@lowers("aten.bucketize.Tensor", "aten.bucketize.Scalar")
def bucketize(
    b: GraphBuilder, x: View | Operand, boundaries: View, *, out_int32: bool = False,
    right: bool = False,
) -> View:  # fmt: skip
    value = x if isinstance(x, View) else full(b, (), x, boundaries.dtype)
    return _placed(b, boundaries, value, out_int32, right)


@lowers("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")
def searchsorted(
    b: GraphBuilder, sequence: View, x: View | Operand, *, out_int32: bool = False,
    right: bool = False, side: str | None = None, sorter: View | None = None,
) -> View:  # fmt: skip
    if sorter is not None:
        sequence = gather(b, sequence, -1, sorter)
    value = x if isinstance(x, View) else full(b, (), x, sequence.dtype)
    return _placed(b, sequence, value, out_int32, right or side == "right")


def _placed(b: GraphBuilder, sequence: View, value: View, narrow: bool, right: bool) -> View:
    """How many elements of the sorted sequence lie before each value."""
    common = promote_types(sequence.dtype, value.dtype)
    if sequence.rank > 1:
        sequence = sequence.unsqueeze(sequence.rank - 1)
    value = value.unsqueeze(value.rank)

    def before(element: Reg, x: Reg) -> Reg:
        inside = ~(element > x) if right else element < x
        if element.type == "f":  # NaN lies above everything
            over = f.isnan(x)
            inside = (over & ~f.isnan(element)) | (~over & inside & ~f.isnan(element))
            inside = (over & f.isnan(element)) | inside if right else inside
        return inside

    hits = b.map(before, sequence, value, dtype="bool", compute=common)
    dim = hits.rank - 1
    count = b.reduce(Combine.SUM, hits, [dim], function=lambda r: r, compute="int64")[0]
    return cast(b, count, "int32" if narrow else "int64")


@lowers("aten.isin.Tensor_Tensor", "aten.isin.Tensor_Scalar", "aten.isin.Scalar_Tensor")
def isin(
    b: GraphBuilder, x: View | Operand, tests: View | Operand, *, assume_unique: bool = False,
    invert: bool = False,
) -> View:  # fmt: skip
    common = result_type(x, tests)
    if isinstance(tests, View) and known(tests.numel) != 1:
        value = (x if isinstance(x, View) else full(b, (), x, common)).unsqueeze(
            x.rank if isinstance(x, View) else 0
        )
        all_tests = b.reshape(tests, [tests.numel])
        hits = b.map(f.equal, value, all_tests, dtype="bool", compute=common)
        found = b.reduce(Combine.ANY, hits, [hits.rank - 1])[0]
        return b.map(lambda r: f.equal(r, 0) if invert else r > 0, found, dtype="bool")
    other = b.reshape(tests, []) if isinstance(tests, View) else tests
    test = f.not_equal if invert else f.equal
    return b.map(
        test, x if isinstance(x, View) else full(b, (), x, common), other,
        dtype="bool", compute=common,
    )  # fmt: skip


@lowers("aten.one_hot")
def one_hot(b: GraphBuilder, x: View, classes: Size = -1) -> View:
    if known(classes) == -1:
        raise Unsupported(
            b.operation, describe(x), "the number of classes depends on values", "give num_classes"
        )
    dim = x.rank
    return b.map(
        lambda where, i: f.equal(where(dim), f.cast(i, "l")),
        x.unsqueeze(dim), dtype="int64", shape=(*x.shape, classes), indexed=True,
    )  # fmt: skip
