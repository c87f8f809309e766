"""Lowerings of interpolation: nearest, linear and cubic in one to three dims, with backward, and
the shuffles between pixels and channels.

Dim by dim, every output is a weighted sum of a few inputs ("taps") whose places and weights are
computed from its index. Backward adds the weighted gradients where the taps were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.lower.indexing import along, gathered, scattered
from openspyre.compiler.lower.registry import constant, lowers
from openspyre.compiler.lower.tools import cast, full, number, numbers
from openspyre.compiler.lower.windows import spatial
from openspyre.compiler.sizes import Size
from openspyre.compiler.view import View
from openspyre.program import body as f
from openspyre.program.body import Reg
from openspyre.program.ops import Combine

Weight: TypeAlias = Callable[[Reg], Reg]
CUBIC = -0.75


@dataclass(frozen=True)
class Taps:
    """What an output of one dim reads: `source` its place in the input, float32, from its index;
    tap t is at floor(source) + `offsets[t]`, kept inside, with weight `weights[t]` of the
    fraction."""

    source: Callable[[Reg], Reg]
    offsets: tuple[int, ...]
    weights: tuple[Weight, ...]


def ratio(size: int, out: int, scale: float | None, align: bool = False) -> float:
    """Input elements per output element."""
    if align:
        return (size - 1) / (out - 1) if out > 1 else 0.0
    scale = constant(scale, "a scale factor")
    return 1.0 / scale if scale is not None and scale > 0 else size / out


def source(size: int, out: int, scale: float | None, align: bool, clamp: bool) -> (
    Callable[[Reg], Reg]
):  # fmt: skip
    """Where an output lies in the input."""
    step = ratio(size, out, scale, align)

    def place(index: Reg) -> Reg:
        at = f.cast(index, "f")
        if align:
            return at * step
        at = (at + 0.5) * step - 0.5
        return f.maximum(at, 0.0) if clamp else at

    return place


def linear_taps(size: int, out: int, scale: float | None, align: bool) -> Taps:
    return Taps(
        source(size, out, scale, align, True), (0, 1), (lambda t: 1.0 - t, lambda t: t)
    )  # fmt: skip


def cubic_taps(size: int, out: int, scale: float | None, align: bool) -> Taps:
    a = CUBIC

    def near(x: Reg) -> Reg:
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0

    def far(x: Reg) -> Reg:
        return ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a

    return Taps(
        source(size, out, scale, align, False), (-1, 0, 1, 2),
        (lambda t: far(t + 1.0), near, lambda t: near(1.0 - t), lambda t: far(2.0 - t)),
    )  # fmt: skip


def places(b: GraphBuilder, taps: Taps, size: int, out: int) -> list[tuple[View, View]]:
    """Place (int64) and weight (float32) of every tap, vectors over the outputs."""
    found = []
    for offset, weight in zip(taps.offsets, taps.weights, strict=True):

        def body(where: Callable[[int], Reg], offset: int = offset, weight: Weight = weight) -> (
            tuple[Reg, Reg]
        ):  # fmt: skip
            at = taps.source(where(0))
            first = f.floor(at)
            place = f.cast(first, "l") + offset
            place = f.maximum(f.minimum(place, size - 1), 0)
            return place, weight(at - first)

        place, factor = b.map_many(
            body, dtypes=("int64", "float32"), shape=(out,), indexed=True, name="tap"
        )
        found.append((place, factor))
    return found


def broadcast_along(view: View, dim: int, rank: int) -> View:
    """A vector along dim `dim`."""
    for _ in range(rank - 1 - dim):
        view = view.unsqueeze(view.rank)
    return view


def sampled(b: GraphBuilder, x: View, dim: int, out: int, taps: Taps) -> View:
    """float32: one dim resampled."""
    size = number(x.size(dim), b, "a spatial size")
    shape = [*x.shape[:dim], out, *x.shape[dim + 1 :]]
    operands = []
    for place, weight in places(b, taps, size, out):
        where = [along(place, d, dim, x.rank) for d in range(x.rank)]
        operands += [gathered(b, x, shape, where), broadcast_along(weight, dim, x.rank)]

    def body(*regs: Reg) -> Reg:
        total = regs[0] * regs[1]
        for n in range(2, len(regs), 2):
            total = total + regs[n] * regs[n + 1]
        return total

    return b.map(body, *operands, dtype="float32", compute="float32")


def sampled_back(b: GraphBuilder, grad: View, dim: int, size: int, taps: Taps) -> View:
    """float32: the gradient of `sampled`."""
    out = number(grad.size(dim), b, "a spatial size")
    total = full(b, [*grad.shape[:dim], size, *grad.shape[dim + 1 :]], 0, "float32")
    for place, weight in places(b, taps, size, out):
        value = b.map(
            lambda g, w: g * w, grad, broadcast_along(weight, dim, grad.rank), dtype="float32",
            compute="float32",
        )  # fmt: skip
        where = [along(place, d, dim, grad.rank) for d in range(grad.rank)]
        scattered(b, total, value, where, add=True)
    return total


def kind_of(b: GraphBuilder) -> tuple[str, int]:
    """ "nearest", "linear", .. and the number of spatial dims, from the operation's name."""
    name = b.operation.split(".")[1].lstrip("_").removeprefix("upsample_").removesuffix("_backward")
    if name.startswith("nearest"):
        return name[:-2], int(name[-2])
    return {
        "linear1d": ("linear", 1), "bilinear2d": ("linear", 2), "trilinear3d": ("linear", 3),
        "bicubic2d": ("cubic", 2),
    }[name]  # fmt: skip


MAKERS = {"linear": linear_taps, "cubic": cubic_taps}


def sizes_and_scales(
    b: GraphBuilder, x: View, n: int, output_size: Sequence[Size] | None,
    factors: Sequence[float] | None,
) -> tuple[list[int], list[float | None]]:  # fmt: skip
    """The output's size, from itself or from factors."""
    sizes = spatial(b, x, n)
    if output_size is not None:
        return numbers(output_size, b, "output_size"), [None] * n
    assert factors is not None
    known = [float(constant(v, "a scale")) for v in factors]
    return [int(size * v) for size, v in zip(sizes, known, strict=True)], list(known)


# --- nearest


def nearest(
    b: GraphBuilder, x: View, n: int, outs: Sequence[int], scales: Sequence[float | None],
    exact: bool,
) -> View:  # fmt: skip
    sizes = spatial(b, x, n)
    for d, (size, out, scale) in enumerate(zip(sizes, outs, scales, strict=True), x.rank - n):
        step = ratio(size, out, scale)
        shape = [*x.shape[:d], out, *x.shape[d + 1 :]]
        if out % size == 0 and step == size / out:
            wide = x.unsqueeze(d + 1)
            x = wide.expand([*x.shape[: d + 1], out // size, *x.shape[d + 1 :]]).reshape(shape)
            continue
        place = nearest_places(b, size, out, step, exact)
        x = gathered(b, x, shape, [along(place, e, d, x.rank) for e in range(x.rank)])
    return x


def nearest_places(b: GraphBuilder, size: int, out: int, step: float, exact: bool) -> View:
    def body(where: Callable[[int], Reg]) -> Reg:
        at = f.cast(where(0), "f")
        at = (at + 0.5) * step if exact else at * step
        return f.minimum(f.cast(f.floor(at), "l"), size - 1)

    return b.map(body, dtype="int64", shape=(out,), indexed=True, name="places")


@lowers(
    "aten.upsample_nearest1d", "aten.upsample_nearest2d", "aten.upsample_nearest3d",
    "aten._upsample_nearest_exact1d", "aten._upsample_nearest_exact2d",
    "aten._upsample_nearest_exact3d",
)  # fmt: skip
def upsample_nearest(
    b: GraphBuilder, x: View, output_size: Sequence[Size], *scales: float | None
) -> View:
    kind, n = kind_of(b)
    outs = numbers(output_size, b, "output_size")
    return nearest(b, x, n, outs, scales or [None] * n, "exact" in kind)


@lowers(
    "aten.upsample_nearest1d.vec", "aten.upsample_nearest2d.vec", "aten.upsample_nearest3d.vec",
    "aten._upsample_nearest_exact1d.vec", "aten._upsample_nearest_exact2d.vec",
    "aten._upsample_nearest_exact3d.vec",
)  # fmt: skip
def upsample_nearest_vec(
    b: GraphBuilder, x: View, output_size: Sequence[Size] | None, factors: Sequence[float] | None
) -> View:
    kind, n = kind_of(b)
    outs, scales = sizes_and_scales(b, x, n, output_size, factors)
    return nearest(b, x, n, outs, scales, "exact" in kind)


@lowers(
    "aten.upsample_nearest1d_backward", "aten.upsample_nearest2d_backward",
    "aten.upsample_nearest3d_backward", "aten._upsample_nearest_exact1d_backward",
    "aten._upsample_nearest_exact2d_backward", "aten._upsample_nearest_exact3d_backward",
)  # fmt: skip
def upsample_nearest_backward(
    b: GraphBuilder, grad: View, output_size: Sequence[Size], input_size: Sequence[Size],
    *scales: float | None,
) -> View:  # fmt: skip
    kind, n = kind_of(b)
    dtype, made = grad.dtype, grad
    sizes, outs = numbers(input_size[-n:], b, "input_size"), spatial(b, grad, n)
    for n_th, (size, out) in enumerate(zip(sizes, outs, strict=True)):
        d = grad.rank - n + n_th
        step = ratio(size, out, scales[n_th] if scales else None)
        if out % size == 0 and step == size / out:
            wide = b.reshape(made, [*made.shape[:d], size, out // size, *made.shape[d + 1 :]])
            made = b.reduce(Combine.SUM, wide, [d + 1], compute="float32")[0]
            continue
        place = nearest_places(b, size, out, step, "exact" in kind)
        total = full(b, [*made.shape[:d], size, *made.shape[d + 1 :]], 0, "float32")
        where = [along(place, e, d, made.rank) for e in range(made.rank)]
        scattered(b, total, cast(b, made, "float32"), where, add=True)
        made = total
    return cast(b, made, dtype)


# --- linear and cubic


def smooth(
    b: GraphBuilder, x: View, kind: str, outs: Sequence[int], scales: Sequence[float | None],
    align: bool,
) -> View:  # fmt: skip
    dtype, n = x.dtype, len(outs)
    sizes = spatial(b, x, n)
    for d, (size, out, scale) in enumerate(zip(sizes, outs, scales, strict=True), x.rank - n):
        if size == out and ratio(size, out, scale, align) in (1.0, 0.0):
            continue
        x = sampled(b, x, d, out, MAKERS[kind](size, out, scale, align))
    return cast(b, x, dtype)


@lowers(
    "aten.upsample_linear1d", "aten.upsample_bilinear2d", "aten.upsample_trilinear3d",
    "aten.upsample_bicubic2d",
)  # fmt: skip
def upsample(
    b: GraphBuilder, x: View, output_size: Sequence[Size], align_corners: bool,
    *scales: float | None,
) -> View:  # fmt: skip
    kind, n = kind_of(b)
    outs = numbers(output_size, b, "output_size")
    return smooth(b, x, kind, outs, scales or [None] * n, align_corners)


@lowers(
    "aten.upsample_linear1d.vec", "aten.upsample_bilinear2d.vec", "aten.upsample_trilinear3d.vec",
    "aten.upsample_bicubic2d.vec",
)  # fmt: skip
def upsample_vec(
    b: GraphBuilder, x: View, output_size: Sequence[Size] | None, align_corners: bool,
    factors: Sequence[float] | None,
) -> View:  # fmt: skip
    kind, n = kind_of(b)
    outs, scales = sizes_and_scales(b, x, n, output_size, factors)
    return smooth(b, x, kind, outs, scales, align_corners)


@lowers(
    "aten.upsample_linear1d_backward", "aten.upsample_bilinear2d_backward",
    "aten.upsample_trilinear3d_backward", "aten.upsample_bicubic2d_backward",
)  # fmt: skip
def upsample_backward(
    b: GraphBuilder, grad: View, output_size: Sequence[Size], input_size: Sequence[Size],
    align_corners: bool, *scales: float | None,
) -> View:  # fmt: skip
    kind, n = kind_of(b)
    dtype, made = grad.dtype, grad
    sizes, outs = numbers(input_size[-n:], b, "input_size"), spatial(b, grad, n)
    for n_th, (size, out) in enumerate(zip(sizes, outs, strict=True)):
        scale = scales[n_th] if scales else None
        if size == out and ratio(size, out, scale, align_corners) in (1.0, 0.0):
            continue
        taps = MAKERS[kind](size, out, scale, align_corners)
        made = sampled_back(b, made, grad.rank - n + n_th, size, taps)
    return cast(b, made, dtype)


# --- shuffles


@lowers("aten.pixel_shuffle")
def pixel_shuffle(b: GraphBuilder, x: View, factor: int) -> View:
    *lead, c, h, w = numbers(x.shape, b, "a size")
    out = c // (factor * factor)
    n = len(lead)
    view = b.reshape(x, [*lead, out, factor, factor, h, w])
    view = view.permute([*range(n), n, n + 3, n + 1, n + 4, n + 2])
    return b.reshape(view, [*lead, out, h * factor, w * factor])


@lowers("aten.pixel_unshuffle")
def pixel_unshuffle(b: GraphBuilder, x: View, factor: int) -> View:
    *lead, c, h, w = numbers(x.shape, b, "a size")
    n = len(lead)
    view = b.reshape(x, [*lead, c, h // factor, factor, w // factor, factor])
    view = view.permute([*range(n), n, n + 2, n + 4, n + 1, n + 3])
    return b.reshape(view, [*lead, c * factor * factor, h // factor, w // factor])


@lowers("aten.channel_shuffle", "aten.native_channel_shuffle")
def channel_shuffle(b: GraphBuilder, x: View, groups: Size) -> View:
    many = number(groups, b, "groups")
    c = number(x.size(1), b, "the number of channels")
    view = b.reshape(x, [x.size(0), many, c // many, *x.shape[2:]])
    return b.reshape(view.transpose(1, 2), x.shape)
