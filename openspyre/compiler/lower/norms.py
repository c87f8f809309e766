"""Lowerings of normalizations and their backward.

Moments are Welford's, in float32; the normalized value is computed in float32 from the input and
rounded once. Saved means and reciprocal deviations are float32 (of group norms:
of the input's dtype, as PyTorch has it).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from openspyre.compiler.build import GraphBuilder, Operand
from openspyre.compiler.lower.registry import lowers, resolves
from openspyre.compiler.lower.tools import cast, elements, number, sizes_equal, summed
from openspyre.compiler.sizes import Size, product
from openspyre.compiler.view import View
from openspyre.program import body as f
from openspyre.program.body import Reg
from openspyre.program.ops import Combine

Three: TypeAlias = "tuple[View | None, View | None, View | None]"


def moments(b: GraphBuilder, x: View, dims: Sequence[int], eps: Operand) -> tuple[View, View, View]:
    """Mean, 1 / sqrt(variance + eps) and the biased variance, float32, the dims kept."""
    count = number(elements(x, dims), b, "the normalized size")
    mean, squares, _ = b.reduce(Combine.WELFORD, x, dims, compute="float32", keepdim=True)
    rstd, variance = b.map_many(
        lambda m2, e: (f.rsqrt(m2 / count + e), m2 / count),
        squares, eps, dtypes=("float32", "float32"), compute="float32", name="rstd",
    )  # fmt: skip
    return mean, rstd, variance


def applied(
    b: GraphBuilder, x: View, mean: View, rstd: View, weight: View | None, bias: View | None,
    dtype: str,
) -> View:  # fmt: skip
    """(x - mean) * rstd * weight + bias."""

    def body(v: Reg, m: Reg, r: Reg, *rest: Reg) -> Reg:
        left = iter(rest)
        v = (v - m) * r
        if weight is not None:
            v = v * next(left)
        return v + next(left) if bias is not None else v

    more = [t for t in (weight, bias) if t is not None]
    return b.map(body, x, mean, rstd, *more, dtype=dtype, compute="float32", name="norm")


def channels(view: View | None, rank: int, dim: int = 1) -> View | None:
    """A vector along dim `dim` of tensors of that rank."""
    if view is None:
        return None
    for _ in range(rank - 1 - dim):
        view = view.unsqueeze(view.rank)
    return view


@lowers("aten.native_layer_norm")
def layer_norm(
    b: GraphBuilder, x: View, normalized: Sequence[Size], weight: View | None, bias: View | None,
    eps: Operand,
) -> tuple[View, View, View]:  # fmt: skip
    if not normalized or not sizes_equal(x.shape[max(0, x.rank - len(normalized)) :], normalized):
        raise ValueError(f"{b.operation}: {list(map(str, x.shape))} does not end in {normalized}")
    for vector in (weight, bias):
        if vector is not None and not sizes_equal(vector.shape, normalized):
            raise ValueError(f"{b.operation}: a factor of {vector.shape} for {normalized}")
    dims = list(range(x.rank - len(normalized), x.rank))
    mean, rstd, _ = moments(b, x, dims, eps)
    return applied(b, x, mean, rstd, weight, bias, x.dtype), mean, rstd


@lowers("aten.layer_norm")
def layer_norm_whole(
    b: GraphBuilder, x: View, normalized: Sequence[Size], weight: View | None = None,
    bias: View | None = None, eps: Operand = 1e-5, cudnn_enable: bool = True,
) -> View:  # fmt: skip
    return layer_norm(b, x, normalized, weight, bias, eps)[0]


@lowers("aten.native_layer_norm_backward")
def layer_norm_backward(
    b: GraphBuilder, grad: View, x: View, normalized: Sequence[Size], mean: View, rstd: View,
    weight: View | None, bias: View | None, output_mask: Sequence[bool],
) -> Three:  # fmt: skip
    dims = list(range(x.rank - len(normalized), x.rank))
    rows = list(range(dims[0])) if dims else []
    count = number(elements(x, dims), b, "the normalized size")
    mine = _normal_backward(b, grad, x, mean, rstd, weight, dims, count) if output_mask[0] else None
    g_weight = g_bias = None
    if output_mask[1] and weight is not None:
        g_weight = cast(b, summed(b, _times_normal(b, grad, x, mean, rstd), rows), weight.dtype)
    if output_mask[2] and bias is not None:
        g_bias = cast(b, summed(b, cast(b, grad, "float32"), rows), bias.dtype)
    return mine, g_weight, g_bias


def _times_normal(b: GraphBuilder, grad: View, x: View, mean: View, rstd: View) -> View:
    return b.map(
        lambda g, v, m, r: g * ((v - m) * r), grad, x, mean, rstd,
        dtype="float32", compute="float32",
    )  # fmt: skip


def _normal_backward(
    b: GraphBuilder, grad: View, x: View, mean: View, rstd: View, weight: View | None,
    dims: Sequence[int], count: int,
) -> View:  # fmt: skip
    """rstd * (g w - mean(g w) - xhat * mean(g w xhat)), means over `dims`."""
    more = [] if weight is None else [weight]

    def scaled(g: Reg, w: Sequence[Reg]) -> Reg:
        return g * w[0] if w else g

    first, second = b.map_many(
        lambda g, v, m, r, *w: (scaled(g, w), scaled(g, w) * ((v - m) * r)),
        grad, x, mean, rstd, *more, dtypes=("float32", "float32"), compute="float32", shape=x.shape,
    )  # fmt: skip
    one, two = summed(b, first, dims, True), summed(b, second, dims, True)
    return b.map(
        lambda g, v, m, r, s, t, *w: r * (
            scaled(g, w) - s / count - ((v - m) * r) * (t / count)
        ),
        grad, x, mean, rstd, one, two, *more, dtype=x.dtype, compute="float32", shape=x.shape,
    )  # fmt: skip


# --- RMS norm


def _eps(x: View, eps: Operand | None) -> Operand:
    if eps is not None:
        return eps
    return {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(x.dtype, 2.0**-23)


@lowers("aten._fused_rms_norm")
def fused_rms_norm(
    b: GraphBuilder, x: View, normalized: Sequence[Size], weight: View | None, eps: Operand | None
) -> tuple[View, View]:
    dims = list(range(x.rank - len(normalized), x.rank))
    count = number(elements(x, dims), b, "the normalized size")
    squares = b.reduce(
        Combine.SUM, x, dims, function=lambda v: v * v, compute="float32", keepdim=True
    )[0]
    rstd = b.map(
        lambda s, e: f.rsqrt(s / count + e), squares, _eps(x, eps), dtype="float32",
        compute="float32", name="rstd",
    )  # fmt: skip
    more = [] if weight is None else [weight]
    out = b.map(
        lambda v, r, *w: v * r * w[0] if w else v * r, x, rstd, *more, dtype=x.dtype,
        compute="float32", name="norm",
    )  # fmt: skip
    return out, rstd


@lowers("aten.rms_norm")
def rms_norm(
    b: GraphBuilder, x: View, normalized: Sequence[Size], weight: View | None = None,
    eps: Operand | None = None,
) -> View:  # fmt: skip
    return fused_rms_norm(b, x, normalized, weight, eps)[0]


@lowers("aten._fused_rms_norm_backward")
def fused_rms_norm_backward(
    b: GraphBuilder, grad: View, x: View, normalized: Sequence[Size], rstd: View,
    weight: View | None, output_mask: Sequence[bool],
) -> tuple[View | None, View | None]:  # fmt: skip
    dims = list(range(x.rank - len(normalized), x.rank))
    count = number(elements(x, dims), b, "the normalized size")
    more = [] if weight is None else [weight]

    def scaled(g: Reg, w: Sequence[Reg]) -> Reg:
        return g * w[0] if w else g

    mine = g_weight = None
    if output_mask[0]:
        parts = b.map(
            lambda g, v, r, *w: scaled(g, w) * (v * r), grad, x, rstd, *more, dtype="float32",
            compute="float32",
        )  # fmt: skip
        total = summed(b, parts, dims, True)
        mine = b.map(
            lambda g, v, r, t, *w: r * (scaled(g, w) - (v * r) * (t / count)),
            grad, x, rstd, total, *more, dtype=x.dtype, compute="float32",
        )  # fmt: skip
    if output_mask[1] and weight is not None:
        parts = b.map(
            lambda g, v, r: g * (v * r), grad, x, rstd, dtype="float32", compute="float32"
        )
        g_weight = cast(b, summed(b, parts, list(range(dims[0]))), weight.dtype)
    return mine, g_weight


# --- group norm


@lowers("aten.native_group_norm")
def group_norm(
    b: GraphBuilder, x: View, weight: View | None, bias: View | None, n: Size, c: Size,
    hxw: Size, group: int, eps: Operand,
) -> tuple[View, View, View]:  # fmt: skip
    width = number(c, b, "the number of channels") // group
    wide = b.reshape(x, [n, group, width, hxw])
    mean, rstd, _ = moments(b, wide, [2, 3], eps)
    out = applied(
        b, wide, mean, rstd, _grouped(b, weight, group, width), _grouped(b, bias, group, width),
        x.dtype,
    )  # fmt: skip
    flat = [cast(b, b.reshape(m, [n, group]), x.dtype) for m in (mean, rstd)]
    return b.reshape(out, x.shape), flat[0], flat[1]


def _grouped(b: GraphBuilder, vector: View | None, group: int, width: int) -> View | None:
    return None if vector is None else b.reshape(vector, [group, width]).unsqueeze(2)


@lowers("aten.group_norm")
def group_norm_whole(
    b: GraphBuilder, x: View, groups: int, weight: View | None = None, bias: View | None = None,
    eps: Operand = 1e-5, cudnn_enabled: bool = True,
) -> View:  # fmt: skip
    rest = product(x.shape[2:])
    return group_norm(b, x, weight, bias, x.size(0), x.size(1), rest, groups, eps)[0]


@lowers("aten.native_group_norm_backward")
def group_norm_backward(
    b: GraphBuilder, grad: View, x: View, mean: View, rstd: View, weight: View | None, n: Size,
    c: Size, hxw: Size, group: int, output_mask: Sequence[bool],
) -> Three:  # fmt: skip
    width = number(c, b, "the number of channels") // group
    count = width * number(hxw, b, "the size of a channel")
    shape = [n, group, width, hxw]
    wide, g = b.reshape(x, shape), b.reshape(grad, shape)
    m, r = (b.reshape(v, [n, group]).unsqueeze(2).unsqueeze(3) for v in (mean, rstd))
    mine = g_weight = g_bias = None
    if output_mask[0]:
        made = _normal_backward(b, g, wide, m, r, _grouped(b, weight, group, width), [2, 3], count)
        mine = b.reshape(made, x.shape)
    dtype = x.dtype if weight is None else weight.dtype
    if output_mask[1]:
        g_weight = b.reshape(
            cast(b, summed(b, _times_normal(b, g, wide, m, r), [0, 3]), dtype), [c]
        )
    if output_mask[2]:
        g_bias = b.reshape(cast(b, summed(b, cast(b, g, "float32"), [0, 3]), dtype), [c])
    return mine, g_weight, g_bias


# --- batch norm


def batch_statistics(b: GraphBuilder, x: View, eps: Operand) -> tuple[View, View, View]:
    """Mean, 1 / sqrt(variance + eps) and the biased variance of every channel."""
    dims = [d for d in range(x.rank) if d != 1]
    mean, rstd, variance = moments(b, x, dims, eps)
    return tuple(_vector(v) for v in (mean, rstd, variance))  # type: ignore[return-value]


def _vector(view: View) -> View:
    """[1, C, 1, ..] as [C]."""
    for d in reversed(range(view.rank)):
        if d != 1:
            view = view.squeeze(d)
    return view


def moving(b: GraphBuilder, old: View, new: View, momentum: Operand, factor: float = 1.0) -> View:
    """The running statistic after one batch."""
    return b.map(
        lambda o, v, m: v * factor * m + o * (1.0 - m),
        old, new, momentum, dtype=old.dtype, compute="float32",
    )  # fmt: skip


def batch_norm_parts(
    b: GraphBuilder, x: View, weight: View | None, bias: View | None, running_mean: View | None,
    running_var: View | None, training: bool, momentum: Operand, eps: Operand,
) -> tuple[View, View, View, View | None, View | None]:  # fmt: skip
    """Output, saved mean, saved reciprocal deviation, and the running statistics after it."""
    new_mean, new_var = running_mean, running_var
    if training or running_mean is None or running_var is None:
        mean, rstd, variance = batch_statistics(b, x, eps)
        count = number(elements(x, [d for d in range(x.rank) if d != 1]), b, "the batch's size")
        if running_mean is not None:
            new_mean = moving(b, running_mean, mean, momentum)
        if running_var is not None:
            new_var = moving(b, running_var, variance, momentum, count / max(count - 1, 1))
    else:
        mean = running_mean
        rstd = b.map(
            lambda v, e: f.rsqrt(v + e), running_var, eps, dtype="float32", compute="float32"
        )
    out = applied(
        b, x, _along(mean, x.rank), _along(rstd, x.rank),
        channels(weight, x.rank), channels(bias, x.rank), x.dtype,
    )  # fmt: skip
    return out, mean, rstd, new_mean, new_var


def _along(view: View, rank: int) -> View:
    found = channels(view, rank)
    assert found is not None
    return found


@lowers("aten._native_batch_norm_legit_functional")
def batch_norm_functional(
    b: GraphBuilder, x: View, weight: View | None, bias: View | None, running_mean: View,
    running_var: View, training: bool, momentum: Operand, eps: Operand,
) -> tuple[View, View, View, View, View]:  # fmt: skip
    found = batch_norm_parts(b, x, weight, bias, running_mean, running_var, training, momentum, eps)
    return found  # type: ignore[return-value]


@lowers("aten._native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    b: GraphBuilder, x: View, weight: View | None, bias: View | None, training: bool,
    momentum: Operand, eps: Operand,
) -> tuple[View, View, View]:  # fmt: skip
    return batch_norm_parts(b, x, weight, bias, None, None, True, momentum, eps)[:3]


@lowers("aten._native_batch_norm_legit_no_training")
def batch_norm_no_training(
    b: GraphBuilder, x: View, weight: View | None, bias: View | None, running_mean: View,
    running_var: View, momentum: Operand, eps: Operand,
) -> tuple[View, View, View]:  # fmt: skip
    found = batch_norm_parts(b, x, weight, bias, running_mean, running_var, False, momentum, eps)
    return found[:3]


resolves(
    "aten._native_batch_norm_legit.default",
    "aten._native_batch_norm_legit_functional.default",
    {"running_mean": 3, "running_var": 4},
)


@lowers("aten.native_batch_norm")
def batch_norm(
    b: GraphBuilder, x: View, weight: View | None, bias: View | None, running_mean: View | None,
    running_var: View | None, training: bool, momentum: Operand, eps: Operand,
) -> tuple[View, View, View]:  # fmt: skip
    """The running statistics are written here: the schema hides it."""
    out, mean, rstd, new_mean, new_var = batch_norm_parts(
        b, x, weight, bias, running_mean, running_var, training, momentum, eps
    )
    if training:
        for old, new in ((running_mean, new_mean), (running_var, new_var)):
            if old is not None and new is not None:
                b.store(old, new)
    return out, mean, rstd


@lowers("aten.native_batch_norm_backward")
def batch_norm_backward(
    b: GraphBuilder, grad: View, x: View, weight: View | None, running_mean: View | None,
    running_var: View | None, save_mean: View | None, save_invstd: View | None, train: bool,
    eps: Operand, output_mask: Sequence[bool],
) -> Three:  # fmt: skip
    dims = [d for d in range(x.rank) if d != 1]
    count = number(elements(x, dims), b, "the batch's size")
    if train:
        assert save_mean is not None and save_invstd is not None
        mean, rstd = save_mean, save_invstd
    else:
        assert running_mean is not None and running_var is not None
        mean = running_mean
        rstd = b.map(
            lambda v, e: f.rsqrt(v + e), running_var, eps, dtype="float32", compute="float32"
        )
    m, r, w = _along(mean, x.rank), _along(rstd, x.rank), channels(weight, x.rank)
    mine = g_weight = g_bias = None
    if output_mask[0] and train:
        mine = _normal_backward(b, grad, x, m, r, w, dims, count)
    elif output_mask[0]:
        more = [] if w is None else [w]
        mine = b.map(
            lambda g, d, *s: g * d * s[0] if s else g * d, grad, r, *more, dtype=x.dtype,
            compute="float32", shape=x.shape,
        )  # fmt: skip
    dtype = x.dtype if weight is None else weight.dtype
    if output_mask[1]:
        g_weight = cast(b, _vector(summed(b, _times_normal(b, grad, x, m, r), dims, True)), dtype)
    if output_mask[2]:
        g_bias = cast(b, _vector(summed(b, cast(b, grad, "float32"), dims, True)), dtype)
    return mine, g_weight, g_bias


@lowers("aten.batch_norm_backward")
def batch_norm_backward_reserve(
    b: GraphBuilder, grad: View, x: View, weight: View, running_mean: View | None,
    running_var: View | None, save_mean: View | None, save_var: View | None, update: bool,
    eps: Operand, output_mask: Sequence[bool], reserve: View | None,
) -> Three:  # fmt: skip
    return batch_norm_backward(
        b, grad, x, weight, running_mean, running_var, save_mean, save_var, update, eps,
        output_mask,
    )  # fmt: skip
