"""Lowerings of operations that count or compare many against many: histograms, bags of embeddings,
distances, reductions into places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from openspyre.compiler.build import GraphBuilder, Operand
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.lower.indexing import embedding, gathered, scatter_reduce, scattered
from openspyre.compiler.lower.registry import constant, lowers
from openspyre.compiler.lower.tools import (
    at_least_1d,
    cast,
    full,
    iota,
    join,
    number,
    numbers,
    pad,
    summed,
    wrap,
)
from openspyre.compiler.sizes import known
from openspyre.compiler.view import View
from openspyre.program import body as f
from openspyre.program.body import Reg
from openspyre.program.ops import Combine


@lowers("aten.index_reduce")
def index_reduce(
    b: GraphBuilder, x: View, dim: int, index: View, source: View, reduce: str,
    *, include_self: bool = True,
) -> View:  # fmt: skip
    if x.rank == 0:
        made = index_reduce(
            b, x.unsqueeze(0), 0, index, at_least_1d(source), reduce, include_self=include_self
        )
        return made.select(0, 0)
    dim, index = wrap(dim, x.rank), at_least_1d(index)
    for _ in range(x.rank - 1 - dim):
        index = index.unsqueeze(index.rank)
    source = at_least_1d(source)
    index = index.expand(source.shape)
    return scatter_reduce(b, x, dim, index, source, reduce, include_self=include_self)


@lowers("aten.histc")
def histc(b: GraphBuilder, x: View, bins: int = 100, low: Operand = 0, high: Operand = 0) -> View:
    count = number(bins, b, "bins")
    first, last = constant(low, "min"), constant(high, "max")
    flat = b.reshape(x, [x.numel])
    ends: tuple[Operand, Operand]
    if first == last:
        ends = (b.reduce(Combine.MIN, flat, [0])[0], b.reduce(Combine.MAX, flat, [0])[0])
    else:
        ends = (float(first), float(last))

    def place(v: Reg, lo: Reg, hi: Reg) -> tuple[Reg, Reg]:
        flatness = f.equal(lo, hi)
        lo, hi = f.where(flatness, lo - 1.0, lo), f.where(flatness, hi + 1.0, hi)
        inside = (v >= lo) & (v <= hi)
        at = f.cast((v - lo) * float(count) / (hi - lo), "l")
        return f.maximum(f.minimum(at, count - 1), 0), f.cast(inside, "f")

    at, one = b.map_many(place, flat, *ends, dtypes=("int64", "float32"), compute="float32")
    out = full(b, (count,), 0, "float32")
    scattered(b, out, one, [at], add=True)
    return cast(b, out, x.dtype)


@lowers("aten._trilinear")
def trilinear(
    b: GraphBuilder, x: View, y: View, z: View, expand1: Sequence[int], expand2: Sequence[int],
    expand3: Sequence[int], sumdim: Sequence[int], unroll_dim: int = 1,
) -> View:  # fmt: skip
    views = []
    for view, dims in ((x, expand1), (y, expand2), (z, expand3)):
        for d in sorted(dims):
            view = view.unsqueeze(d)
        views.append(view)
    made = b.map(
        lambda p, q, r: p * q * r, *views, dtype="float32", compute="float32", name="trilinear"
    )
    return cast(b, summed(b, made, list(sumdim)), x.dtype)


LONGEST = 4096


@lowers("aten.logcumsumexp", "aten._logcumsumexp")
def logcumsumexp(b: GraphBuilder, x: View, dim: int) -> View:
    """Each element with all before it, relative to their maximum: work that grows with the square
    of the dim, for a sum relative to one maximum would lose what comes before it."""
    if x.rank == 0:
        return x
    dim = wrap(dim, x.rank)
    size = number(x.size(dim), b, "the dim of logcumsumexp")
    if size > LONGEST:
        raise Unsupported(
            b.operation, f"a dim of {size}", f"its work is the square of it: at most {LONGEST}",
            "use torch.logsumexp, or the CPU",
        )  # fmt: skip
    wide = cast(b, x, "float32")
    top = b.scan(Combine.MAX, wide, dim, "float32")

    def part(where: Callable[[int], Reg], v: Reg, t: Reg) -> Reg:
        power = f.where(f.isinf(t), f.where(f.equal(v, t), 1.0, f.exp(v)), f.exp(v - t))
        return f.where(where(dim + 1) <= where(dim), power, 0.0)

    parts = b.map(
        part, wide.unsqueeze(dim), top.unsqueeze(dim + 1), dtype="float32", indexed=True,
        shape=[*x.shape[: dim + 1], size, *x.shape[dim + 1 :]],
    )  # fmt: skip
    total = summed(b, parts, [dim + 1])
    return b.map(lambda t, s: f.where(f.isinf(t), t, t + f.log(s)), top, total, dtype=x.dtype)


# --- distances


def distance(b: GraphBuilder, x: View, y: View, p: float, dtype: str) -> View:
    """The p-norm of x - y along the last dim."""
    last = max(x.rank, y.rank) - 1

    def part(v: Reg, w: Reg) -> Reg:
        d = abs(v - w)
        if p == 0:
            return f.where(f.equal(d, 0.0), 0.0, d.const("f", 1.0))
        if p in (1.0, float("inf")):
            return d
        return d * d if p == 2.0 else f.power(d, p)

    parts = b.map(part, x, y, dtype="float32", compute="float32", name="difference")
    if p == float("inf"):
        return cast(b, b.reduce(Combine.MAX, parts, [last])[0], dtype)
    total = summed(b, parts, [last])
    if p in (0, 1.0):
        return cast(b, total, dtype)
    root: Callable[[Reg], Reg] = f.sqrt if p == 2.0 else lambda s: f.power(s, 1.0 / p)
    return b.map(root, total, dtype=dtype)


@lowers("aten._cdist_forward")
def cdist(b: GraphBuilder, x: View, y: View, p: Operand, compute_mode: int | None) -> View:
    left, right = x.unsqueeze(x.rank - 1), y.unsqueeze(y.rank - 2)
    return distance(b, left, right, float(constant(p, "p")), x.dtype)


@lowers("aten._cdist_backward")
def cdist_backward(
    b: GraphBuilder, grad: View, x: View, y: View, p: Operand, distances: View
) -> View:
    """The gradient of x: over all points of y, what each distance grows with x."""
    power = float(constant(p, "p"))
    last = max(x.rank, y.rank)
    left, right = x.unsqueeze(x.rank - 1), y.unsqueeze(y.rank - 2)

    def part(g: Reg, v: Reg, w: Reg, d: Reg) -> Reg:
        away = v - w
        none = f.equal(d, 0.0)
        if power == 0:
            return away.like(0.0) * g
        if power == 1.0:
            return f.sign(away) * g
        if power == float("inf"):
            return f.where(f.equal(abs(away), d), f.sign(away) * g, away.like(0.0))
        if power == 2.0:
            return f.where(none, away.like(0.0), away / d * g)
        grown = f.power(abs(away) / d, power - 1.0) * f.sign(away) * g
        return f.where(none | f.equal(away, 0.0), away.like(0.0), grown)

    parts = b.map(
        part, grad.unsqueeze(grad.rank), left, right, distances.unsqueeze(distances.rank),
        dtype="float32", compute="float32", name="slope",
    )  # fmt: skip
    return cast(b, summed(b, parts, [last - 1]), x.dtype)


@lowers("aten._pdist_forward")
def pdist(b: GraphBuilder, x: View, p: Operand = 2.0) -> View:
    rows, columns = np.triu_indices(number(x.size(0), b, "the number of points"), 1)
    sides = []
    for n, places in enumerate((rows, columns)):
        at = b.constant(places.astype(np.int64), "int64", f"pair{n}").unsqueeze(1)
        sides.append(gathered(b, x, (len(places), x.size(1)), [at, 1]))
    return distance(b, sides[0], sides[1], float(constant(p, "p")), x.dtype)


# --- bags of embeddings


@lowers("aten._embedding_bag", "aten._embedding_bag_forward_only")
def embedding_bag(
    b: GraphBuilder, weight: View, indices: View, offsets: View, scale_grad_by_freq: bool = False,
    mode: int = 0, sparse: bool = False, per_sample_weights: View | None = None,
    include_last_offset: bool = False, padding_idx: int = -1,
) -> tuple[View, View, View, View]:  # fmt: skip
    """(output, bag of each index, size of each bag, places of the maxima): the sum or mean of the
    rows of each bag; bag n begins at offsets[n]."""
    if mode == 2:
        raise Unsupported(
            b.operation, "mode='max'", "bags are sums or means on the card",
            "use torch.nn.Embedding and torch.amax",
        )  # fmt: skip
    if known(indices.numel) is None:
        raise Unsupported(b.operation, "indices", "their number is symbolic", "mark it static")
    count = number(offsets.size(0), b, "the number of bags") - int(include_last_offset)
    starts = offsets.slice(0, 0, count)
    place = iota(b, indices.size(0))
    begun = b.map(
        lambda o, i: ~(o > i), starts.unsqueeze(0), place.unsqueeze(1), dtype="bool",
        compute="int64",
    )  # fmt: skip
    bag = b.map(
        lambda n: n - 1, b.reduce(Combine.SUM, begun, [1], compute="int64")[0], dtype="int64"
    )
    rows = embedding(b, weight, indices)
    extra = [] if per_sample_weights is None else [per_sample_weights.unsqueeze(1)]
    skip = number(padding_idx, b, "padding_idx")

    def kept(i: Reg) -> Reg:
        return f.where(f.equal(i, skip), 0.0, f.cast(i, "f").const("f", 1.0))

    ones = b.map(kept, indices, dtype="float32")

    def scaled(row: Reg, one: Reg, *w: Reg) -> Reg:
        row = row * w[0] if w else row
        return f.where(one > 0.0, row, 0.0)

    values = b.map(scaled, rows, ones.unsqueeze(1), *extra, dtype="float32", compute="float32")
    total = full(b, (count, weight.size(1)), 0, "float32")
    scattered(b, total, values, [bag.unsqueeze(1), 1], add=True)
    sizes = full(b, (count,), 0, "float32")
    scattered(b, sizes, ones, [bag], add=True)
    if mode == 1:
        total = b.map(
            lambda t, n: t / f.maximum(n, 1.0), total, sizes.unsqueeze(1), dtype="float32"
        )
    size = cast(b, sizes, indices.dtype)
    return cast(b, total, weight.dtype), cast(b, bag, indices.dtype), size, size


# --- lists


@lowers("aten._chunk_cat")
def chunk_cat(b: GraphBuilder, tensors: Sequence[View], dim: int, num_chunks: int) -> View:
    """Each tensor padded to whole chunks along `dim`, chunks side by side, flat behind `dim`."""
    many = number(num_chunks, b, "num_chunks")
    parts = []
    dim = wrap(dim, tensors[0].rank)
    for x in tensors:
        sizes = numbers(x.shape, b, "a size")
        short = -sizes[dim] % many
        padded = pad(b, x, [0] * x.rank, [short if d == dim else 0 for d in range(x.rank)], 0)
        rest = 1
        for size in sizes[dim + 1 :]:
            rest *= size
        chunk = (sizes[dim] + short) // many
        parts.append(b.reshape(padded, [*sizes[:dim], many, chunk * rest]))
    return join(b, parts, dim + 1)
