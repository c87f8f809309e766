"""Lowerings of average and maximum pools, adaptive ones, their backward, and of im2col.

A pool is a reduction over windows that are a view on the padded input. Sums are float32, rounded
once. Backward of an average is a sum over windows again, of a maximum a scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.lower.indexing import gathered, scattered
from openspyre.compiler.lower.promote import LIMITS
from openspyre.compiler.lower.registry import lowers
from openspyre.compiler.lower.tools import cast, describe, full, number, numbers, summed
from openspyre.compiler.lower.windows import (
    Windows,
    padded,
    plain_windows,
    spatial,
    stuffed,
    windowed,
)
from openspyre.compiler.sizes import Size
from openspyre.compiler.view import View
from openspyre.program import body as f
from openspyre.program.body import Reg
from openspyre.program.ops import Combine

Index: TypeAlias = Callable[[int], Reg]


def spatial_dims(x: View, count: int) -> list[int]:
    return list(range(x.rank - count, x.rank))


def dims_of(b: GraphBuilder) -> int:
    """1, 2 or 3, from the name of the operation."""
    name = b.operation.split(".")[1]
    return next(n for n in (1, 2, 3) if f"pool{n}d" in name)


# --- averages


def divisor(
    where: Index, dims: Sequence[int], w: Windows, sizes: Sequence[int], include: bool
) -> Reg:
    """How many elements the window at this point counts, float32."""
    total: Reg | None = None
    for n, d in enumerate(dims):
        start = where(d) * w.stride[n] - w.low[n]
        end = f.minimum(start + w.kernel[n], sizes[n] + w.low[n])
        if not include:
            start, end = f.maximum(start, 0), f.minimum(end, sizes[n])
        here = end - start
        total = here if total is None else total * here
    assert total is not None
    return f.cast(total, "f")


def uniform(w: Windows, sizes: Sequence[int], outs: Sequence[int], include: bool) -> int | None:
    """The divisor that holds everywhere, if one does."""
    total = 1
    for n, size in enumerate(sizes):
        last = (outs[n] - 1) * w.stride[n] - w.low[n] + w.kernel[n]
        inside = last <= size + (w.low[n] if include else 0)
        if not inside or (w.low[n] and not include):
            return None
        total *= w.kernel[n]
    return total


def averaged(
    b: GraphBuilder, sums: View, w: Windows, sizes: Sequence[int], outs: Sequence[int],
    include: bool, override: int | None, dtype: str,
) -> View:  # fmt: skip
    """Each window's value divided by what it counts."""
    known = override or uniform(w, sizes, outs, include)
    dims = spatial_dims(sums, w.count)
    if known is not None:
        return b.map(lambda s: s / known, sums, dtype=dtype, compute="float32")
    return b.map(
        lambda where, s: s / divisor(where, dims, w, sizes, include),
        sums, dtype=dtype, compute="float32", indexed=True,
    )  # fmt: skip


@lowers("aten.avg_pool1d", "aten.avg_pool2d", "aten.avg_pool3d")
def avg_pool(
    b: GraphBuilder, x: View, kernel: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0,), ceil_mode: bool = False, count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> View:  # fmt: skip
    n = dims_of(b)
    w = Windows.of(b, kernel, stride, padding, [1], n)
    sizes = spatial(b, x, n)
    outs = w.outputs(sizes, ceil_mode)
    wide = padded(b, x, spatial_dims(x, n), w.fitted(sizes, outs))
    view = windowed(b, wide, spatial_dims(x, n), w)
    over = list(range(view.rank - n, view.rank))
    sums = b.reduce(Combine.SUM, view, over, compute="float32")[0]
    return averaged(b, sums, w, sizes, outs, count_include_pad, divisor_override, x.dtype)


@lowers("aten.avg_pool2d_backward", "aten.avg_pool3d_backward")
def avg_pool_backward(
    b: GraphBuilder, grad: View, x: View, kernel: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], ceil_mode: bool, count_include_pad: bool,
    divisor_override: int | None,
) -> View:  # fmt: skip
    n = dims_of(b)
    w = Windows.of(b, kernel, stride, padding, [1], n)
    sizes, outs = spatial(b, x, n), spatial(b, grad, n)
    parts = averaged(b, grad, w, sizes, outs, count_include_pad, divisor_override, "float32")
    return cast(b, _window_sums(b, parts, w, sizes), x.dtype)


def _window_sums(b: GraphBuilder, grad: View, w: Windows, sizes: Sequence[int]) -> View:
    """For every element the sum of what the windows that hold it have."""
    dims = spatial_dims(grad, w.count)
    view = windowed(b, stuffed(b, grad, dims, w, sizes), dims, plain_windows(w))
    return summed(b, view, list(range(view.rank - w.count, view.rank)))


# --- maxima


def least(dtype: str) -> float | int:
    """What no maximum minds."""
    return LIMITS[dtype][0] if dtype in LIMITS else float("-inf")


@lowers(
    "aten.max_pool1d_with_indices", "aten.max_pool2d_with_indices", "aten.max_pool3d_with_indices"
)
def max_pool_with_indices(
    b: GraphBuilder, x: View, kernel: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0,), dilation: Sequence[int] = (1,), ceil_mode: bool = False,
) -> tuple[View, View]:  # fmt: skip
    n = dims_of(b)
    w = Windows.of(b, kernel, stride, padding, dilation, n)
    sizes = spatial(b, x, n)
    outs = w.outputs(sizes, ceil_mode)
    wide = padded(b, x, spatial_dims(x, n), w.fitted(sizes, outs), least(x.dtype))
    view = windowed(b, wide, spatial_dims(x, n), w)

    def place(index: Index, d: int, within: Reg) -> Reg:
        at = index(x.rank - n + d) * w.stride[d] - w.low[d] + within * w.dilation[d]
        # A window of nothing but -inf has its place in the pad: the first one that is not.
        return f.where(at < 0, at % w.dilation[d], at) if w.low[d] else at

    return maxima(b, view, sizes, w.kernel, place, x.dtype)


def maxima(
    b: GraphBuilder, view: View, sizes: Sequence[int], kernel: Sequence[int],
    place: Callable[[Index, int, Reg], Reg], dtype: str,
) -> tuple[View, View]:  # fmt: skip
    """The largest of each window (its last dims) and where it is among the elements of `sizes`."""
    n = len(kernel)
    first = view.rank - n
    values = cast(b, b.reduce(Combine.MAX, view, list(range(first, view.rank)))[0], dtype)
    size = 1
    for k in kernel:
        size *= k
    merged = b.reshape(view, [*view.shape[:first], size])
    found = b.reduce(Combine.ARGMAX, merged, [first])[1]

    def linear(index: Index, k: Reg) -> Reg:
        total: Reg | None = None
        inner = size
        for d in range(n):
            inner //= kernel[d]
            at = place(index, d, (k // inner) % kernel[d] if d else k // inner)
            total = at if total is None else total * sizes[d] + at
        assert total is not None
        return total

    return values, b.map(linear, found, dtype="int64", indexed=True, name="where")


@lowers("aten.max_pool1d", "aten.max_pool2d", "aten.max_pool3d")
def max_pool(
    b: GraphBuilder, x: View, kernel: Sequence[int], stride: Sequence[int] = (),
    padding: Sequence[int] = (0,), dilation: Sequence[int] = (1,), ceil_mode: bool = False,
) -> View:  # fmt: skip
    return max_pool_with_indices(b, x, kernel, stride, padding, dilation, ceil_mode)[0]


@lowers("aten.max_pool2d_with_indices_backward", "aten.max_pool3d_with_indices_backward")
def max_pool_backward(
    b: GraphBuilder, grad: View, x: View, kernel: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool, indices: View,
) -> View:  # fmt: skip
    return by_place(b, grad, x, indices, dims_of(b))


@lowers("aten.adaptive_max_pool2d_backward", "aten.adaptive_max_pool3d_backward")
def adaptive_max_pool_backward(b: GraphBuilder, grad: View, x: View, indices: View) -> View:
    return by_place(b, grad, x, indices, dims_of(b))


def by_place(b: GraphBuilder, grad: View, x: View, indices: View, n: int) -> View:
    """The gradients added up where the maxima were."""
    lead = list(x.shape[: x.rank - n])
    total = places = 1
    for size, count in zip(spatial(b, x, n), spatial(b, grad, n), strict=True):
        total, places = total * size, places * count
    out = full(b, [*lead, total], 0, "float32")
    value = b.reshape(cast(b, grad, "float32"), [*lead, places])
    at = b.reshape(indices, [*lead, places])
    scattered(b, out, value, [*range(len(lead)), at], add=True)
    return b.reshape(cast(b, out, x.dtype), x.shape)


@lowers("aten.max_unpool2d", "aten.max_unpool3d")
def max_unpool(
    b: GraphBuilder, x: View, indices: View, output_size: Sequence[Size], *_: object
) -> View:
    n = 2 if "unpool2d" in b.operation else 3
    lead = list(x.shape[: x.rank - n])
    sizes = numbers(output_size, b, "output_size")
    total = places = 1
    for size, own in zip(sizes, spatial(b, x, n), strict=True):
        total, places = total * size, places * own
    out = full(b, [*lead, total], 0, x.dtype)
    at = b.reshape(indices, [*lead, places])
    scattered(b, out, b.reshape(x, [*lead, places]), [*range(len(lead)), at])
    return b.reshape(out, [*lead, *sizes])


# --- adaptive


def reach(size: int, out: int) -> int:
    """The largest window when `out` windows cover `size` elements."""
    return max(-(-(o + 1) * size // out) - o * size // out for o in range(out))


def adaptive_sum(b: GraphBuilder, x: View, dim: int, out: int) -> View:
    """float32 sums of the `out` windows along `dim`: from floor(o S / O) to ceil((o + 1) S / O)."""
    size = number(x.size(dim), b, "a spatial size")
    if size == out:
        return cast(b, x, "float32")
    if size % out == 0:
        wide = b.reshape(x, [*x.shape[:dim], out, size // out, *x.shape[dim + 1 :]])
        return b.reduce(Combine.SUM, wide, [dim + 1], compute="float32")[0]
    found = _adaptive_windows(b, x, dim, size, out)

    def kept(where: Index, value: Reg) -> Reg:
        o = where(dim)
        inside = o * size // out + where(dim + 1) < -((o + 1) * -size // out)
        return f.where(inside, value, 0.0)

    masked = b.map(kept, found, dtype="float32", compute="float32", indexed=True)
    return summed(b, masked, [dim + 1])


def _adaptive_windows(b: GraphBuilder, x: View, dim: int, size: int, out: int) -> View:
    """[.., O, k, ..]: the elements of each window along `dim`, the last one repeated."""
    most = reach(size, out)

    def place(where: Index) -> Reg:
        o = where(0)
        return f.minimum(o * size // out + where(1), -((o + 1) * -size // out) - 1)

    at = b.map(place, dtype="int64", shape=(out, most), indexed=True, name="places")
    for _ in range(x.rank - 1 - dim):
        at = at.unsqueeze(at.rank)
    shape = [*x.shape[:dim], out, most, *x.shape[dim + 1 :]]
    where = [d if d < dim else at if d == dim else d + 1 for d in range(x.rank)]
    return gathered(b, x, shape, where)  # type: ignore[arg-type]


def adaptive_divided(b: GraphBuilder, x: View, dims: Sequence[int], sizes: Sequence[int],
                     outs: Sequence[int], dtype: str) -> View:  # fmt: skip
    """Each window's value divided by the number of its elements."""
    fixed = 1
    ragged = []
    for d, size, out in zip(dims, sizes, outs, strict=True):
        if size % out == 0:
            fixed *= size // out
        else:
            ragged.append((d, size, out))

    def body(where: Index, value: Reg) -> Reg:
        for d, size, out in ragged:
            o = where(d)
            value = value / f.cast(-((o + 1) * -size // out) - o * size // out, "f")
        return value / fixed if fixed != 1 else value

    return b.map(body, x, dtype=dtype, compute="float32", indexed=True)


@lowers(
    "aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool3d", "aten.adaptive_avg_pool1d",
    "aten.adaptive_avg_pool2d", "aten.adaptive_avg_pool3d",
)  # fmt: skip
def adaptive_avg_pool(b: GraphBuilder, x: View, output_size: Sequence[Size]) -> View:
    n = dims_of(b)
    dims, sizes = spatial_dims(x, n), spatial(b, x, n)
    outs = numbers(output_size, b, "output_size")
    made = x
    for d, out in zip(dims, outs, strict=True):
        made = adaptive_sum(b, made, d, out)
    return adaptive_divided(b, made, dims, sizes, outs, x.dtype)


@lowers("aten._adaptive_avg_pool2d_backward", "aten._adaptive_avg_pool3d_backward")
def adaptive_avg_pool_backward(b: GraphBuilder, grad: View, x: View) -> View:
    """The windows of outputs that hold an input are adaptive windows, too, of sizes exchanged."""
    n = dims_of(b)
    dims, sizes, outs = spatial_dims(x, n), spatial(b, x, n), spatial(b, grad, n)
    made = adaptive_divided(b, grad, dims, sizes, outs, "float32")
    for d, size in zip(dims, sizes, strict=True):
        made = _adaptive_back(b, made, d, size)
    return cast(b, made, x.dtype)


def _adaptive_back(b: GraphBuilder, grad: View, dim: int, size: int) -> View:
    out = number(grad.size(dim), b, "a spatial size")
    if size % out == 0:  # each element has one window
        wide = grad.unsqueeze(dim + 1)
        shape = [*grad.shape[: dim + 1], size // out, *grad.shape[dim + 1 :]]
        whole = [*grad.shape[:dim], size, *grad.shape[dim + 1 :]]
        return wide.expand(shape).reshape(whole)
    return adaptive_sum(b, grad, dim, size)


@lowers("aten.adaptive_max_pool1d", "aten.adaptive_max_pool2d", "aten.adaptive_max_pool3d")
def adaptive_max_pool(b: GraphBuilder, x: View, output_size: Sequence[Size]) -> tuple[View, View]:
    n = dims_of(b)
    dims, sizes = spatial_dims(x, n), spatial(b, x, n)
    outs = numbers(output_size, b, "output_size")
    kernel = [reach(size, out) for size, out in zip(sizes, outs, strict=True)]
    view = x
    for d, size, out in zip(reversed(dims), reversed(sizes), reversed(outs), strict=True):
        if size == out:
            view = view.unsqueeze(d + 1)
        elif size % out == 0:
            view = b.reshape(view, [*view.shape[:d], out, size // out, *view.shape[d + 1 :]])
        else:
            view = _adaptive_windows(b, view, d, size, out)
    lead = x.rank - n  # [.., o0, k0, o1, k1]: windows last
    view = view.permute(
        [*range(lead), *(lead + 2 * d for d in range(n)), *(lead + 2 * d + 1 for d in range(n))]
    )

    def place(index: Index, d: int, within: Reg) -> Reg:
        o = index(lead + d)
        last = -((o + 1) * -sizes[d] // outs[d]) - 1
        return f.minimum(o * sizes[d] // outs[d] + within, last)

    return maxima(b, view, sizes, kernel, place, x.dtype)


# --- windows as columns


@lowers("aten.im2col")
def im2col(
    b: GraphBuilder, x: View, kernel: Sequence[int], dilation: Sequence[int],
    padding: Sequence[int], stride: Sequence[int],
) -> View:  # fmt: skip
    batched = x.rank == 4
    if not batched:
        x = x.unsqueeze(0)
    w = Windows.of(b, kernel, stride, padding, dilation, 2)
    view = windowed(b, padded(b, x, [2, 3], w), [2, 3], w)  # [N, C, oh, ow, kh, kw]
    view = view.permute([0, 1, 4, 5, 2, 3])
    n, c, kh, kw, oh, ow = numbers(view.shape, b, "a size of im2col")
    made = b.reshape(view, [n, c * kh * kw, oh * ow])
    return made if batched else made.squeeze(0)


@lowers("aten.col2im")
def col2im(
    b: GraphBuilder, x: View, output_size: Sequence[Size], kernel: Sequence[int],
    dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int],
) -> View:  # fmt: skip
    """A scatter that adds: window's place plus place within it, pads cut off."""
    batched = x.rank == 3
    if not batched:
        x = x.unsqueeze(0)
    w = Windows.of(b, kernel, stride, padding, dilation, 2)
    sizes = numbers(output_size, b, "output_size")
    oh, ow = w.outputs(sizes)
    kh, kw = w.kernel
    n, rows, columns = numbers(x.shape, b, "a size of col2im")
    if oh * ow != columns:
        raise Unsupported(b.operation, describe(x), f"{columns} columns are not {oh} * {ow}")
    c = rows // (kh * kw)
    value = b.reshape(cast(b, x, "float32"), [n, c, kh, kw, oh, ow])
    high = [s + 2 * p for s, p in zip(sizes, w.low, strict=True)]
    out = full(b, [n, c, *high], 0, "float32")
    places = []
    for d, (k, o) in enumerate(((kh, oh), (kw, ow))):
        at = b.map(
            lambda where, d=d: where(0) * w.dilation[d] + where(1) * w.stride[d],
            dtype="int64", shape=(k, o), indexed=True, name="places",
        )  # fmt: skip
        at = at.unsqueeze(1).unsqueeze(3) if d == 0 else at.unsqueeze(1).unsqueeze(0)
        places.append(at)
    scattered(b, out, value, [0, 1, *places], add=True)
    made = out.slice(2, w.low[0], sizes[0]).slice(3, w.low[1], sizes[1])
    made = cast(b, made, x.dtype)
    return made if batched else made.squeeze(0)
