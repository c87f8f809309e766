"""The kinds of calls that operation_cases.py draws from: one function for each, registered by
`makes` with its weight. A helper module of operation_fuzz.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from operation_cases import (
    ALL,
    FLOATS,
    INTEGERS,
    MOST,
    NUMBERS,
    SIGNED,
    At,
    Case,
    Draw,
    makes,
)
from torch import Tensor

# --- element by element

UNARY = {
    "normal": "abs neg relu sigmoid tanh exp sin cos floor ceil round trunc sign erf square exp2"
    " expm1 sinh cosh atan asinh frac isnan isinf isfinite logical_not sgn erfc tan signbit",
    "positive": "sqrt rsqrt log log2 log10 log1p lgamma digamma",
    "unit": "asin acos atanh logit erfinv",
    "nonzero": "reciprocal",
}
MODULES = "silu gelu softplus elu leaky_relu hardswish hardsigmoid hardtanh mish relu6 logsigmoid"
INTEGER_UNARY = "abs neg sign square bitwise_not logical_not relu sqrt sin sigmoid isnan signbit"
BINARY = {
    "normal": "add sub mul maximum minimum atan2 copysign hypot eq ne lt le gt ge logical_and"
    " logical_or logical_xor fmax fmin",
    "nonzero": "div fmod remainder floor_divide",
    "positive": "pow xlogy",
}
BITS = "bitwise_and bitwise_or bitwise_xor"
SHIFTS = "bitwise_left_shift bitwise_right_shift"
EXACT_INTEGERS = "add sub mul maximum minimum eq ne lt le gt ge"


def broadcast(d: Draw, shape: Sequence[int]) -> list[int]:
    """A shape that broadcasts to `shape`, which it often is."""
    if d.chance(0.5):
        return list(shape)
    return [1 if d.chance(0.4) else n for n in shape][d.rng.randint(0, len(shape)) :]


def _copied_on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """tril and triu into an out= tensor that is not contiguous are wrong on torch's CPU."""

    def call(*args: Any, out: Tensor) -> Tensor:
        if out.device.type == "cpu":
            return out.copy_(function(*args))
        return function(*args, out=out)

    return call


def form(
    d: Draw, name: str, function: Callable[..., Any], args: tuple[Any, ...], **more: Any
) -> Case:
    """The call as it is, in place on its first operand, or into an out= tensor."""
    way = d.rng.random()
    method = f"{name}_"
    first = d.operands[args[0].place] if isinstance(args[0], At) else None
    expanded = first is not None and any(step == "expand" for step, _ in first.steps)
    if way < 0.2 and hasattr(Tensor, method) and first is not None and not expanded:

        def in_place(*args: Any, **keywords: Any) -> Any:
            return getattr(args[0], method)(*args[1:], **keywords)

        return d.case(method, in_place, *args, written=True, **more)
    if way < 0.3 and getattr(torch, name, None) is function:
        keywords = more.pop("keywords", {})
        views = [o.view(torch.empty(o.base, dtype=o.dtype, device="meta")) for o in d.operands]
        probe = d.case(name, function, *args, keywords=keywords)
        try:
            result = probe.function(views)
        except Exception:  # a call that is refused: so is the one without out=
            return d.case(name, function, *args, keywords=keywords, **more)
        if isinstance(result, Tensor):
            if name in ("tril", "triu"):
                function = _copied_on_cpu(function)
            out = At(d.operand(list(result.shape), result.dtype, "small", written=True))
            return d.case(
                name, function, *args, keywords={**keywords, "out": out}, written=True, **more
            )
    return d.case(name, function, *args, **more)


@makes(10)
def unary(d: Draw) -> Case:
    shape = d.shape(low=1)
    if d.chance(0.2):
        x = At(d.operand(shape, d.of((*INTEGERS, torch.bool)), "small"))
        name = d.of(INTEGER_UNARY.split())
    else:
        values = d.of([*UNARY, "normal", "normal"])
        name, dtype = d.of(UNARY[values].split()), d.of(FLOATS)
        if values == "normal" and dtype is torch.float32 and d.chance(0.2) and name != "tan":
            values = "special"
        x = At(d.operand(shape, dtype, values))
    return form(d, name, getattr(torch, name), (x,))


@makes(4)
def module(d: Draw) -> Case:
    name = d.of(MODULES.split())
    x = At(d.operand(d.shape(), d.of(FLOATS)))
    return d.case(name, getattr(F, name), x)


@makes(16)
def binary(d: Draw) -> Case:
    shape = d.shape()
    values = d.of([*BINARY, "normal", "normal"])
    name = d.of(BINARY[values].split())
    first = d.of(FLOATS if d.chance(0.7) or values == "positive" else NUMBERS)
    second = first if d.chance(0.7) else d.of(NUMBERS)
    kind = "normal" if values == "nonzero" else values
    if name in ("floor_divide", "remainder", "fmod"):
        kind, values = ("small", "nonzero") if not second.is_floating_point else (kind, values)
    if name == "pow" and torch.float32 not in (first, second):
        values = "unit"
    x = At(d.operand(shape, first, kind))
    if d.chance(0.15):
        number = d.of((2, 3, 0.5, 2.0, 1.5))
        return form(d, name, getattr(torch, name), (x, number))
    if d.chance(0.06):
        return form(d, name, getattr(torch, name), (x, x))
    y = At(d.operand(broadcast(d, shape), second, values))
    args = (y, x) if d.chance(0.2) and values == "normal" else (x, y)
    return form(d, name, getattr(torch, name), args)


@makes(5)
def integers(d: Draw) -> Case:
    """Whole ranges of integers: results wrap, and int64 has more bits than float64."""
    shape, dtype = d.shape(), d.of(INTEGERS)
    name = d.of((*EXACT_INTEGERS.split(), *BITS.split(), *SHIFTS.split()))
    x = At(d.operand(shape, dtype, "large"))
    second = dtype if d.chance(0.7) else d.of(INTEGERS)
    y = At(d.operand(broadcast(d, shape), second, "positive" if name in SHIFTS else "large"))
    return form(d, name, getattr(torch, name), (x, y))


@makes(3)
def scaled(d: Draw) -> Case:
    """add, sub with alpha; div that rounds; rsub."""
    shape, dtype = d.shape(), d.of(NUMBERS)
    x = At(d.operand(shape, dtype, "small"))
    y = At(d.operand(broadcast(d, shape), dtype, "nonzero"))
    if d.chance(0.5):
        name = d.of(("add", "sub"))
        alpha = d.of((2, 3) if not dtype.is_floating_point else (2, 0.5, -1.5))
        return form(d, name, getattr(torch, name), (x, y), keywords={"alpha": alpha}, sums=True)
    mode = d.of(("trunc", "floor", None))
    if mode == "trunc":  # of a quotient that was rounded to 16 bits, as the CPU's: one without bits
        d.operands[-1] = replace(d.operands[-1], values="powers")
    return form(d, "div", torch.div, (x, y), keywords={"rounding_mode": mode})


@makes(6)
def ternary(d: Draw) -> Case:
    name = d.of(("where", "clamp", "clamp", "lerp", "addcmul", "addcdiv", "masked_fill", "where"))
    shape = d.shape()
    dtype = d.of(NUMBERS if name in ("where", "clamp", "masked_fill") else FLOATS)
    if name == "where":
        mask = At(d.operand(broadcast(d, shape), torch.bool))
        x = At(d.operand(shape, d.of(ALL) if d.chance(0.3) else dtype, "small"))
        y: Any = At(d.operand(broadcast(d, shape), dtype, "small")) if d.chance(0.7) else 2
        return d.case(name, torch.where, mask, x, y)
    x = At(d.operand(shape, dtype, "small" if name == "clamp" else "normal"))
    if name == "clamp":
        if d.chance(0.5):
            low, high = d.of(((1, 3), (-2, 2), (None, 2), (0, None), (-1.5, 2.5)))
            return form(d, name, torch.clamp, (x, low, high))
        low = At(d.operand(broadcast(d, shape), dtype, "small"))
        high = At(d.operand(broadcast(d, shape), dtype, "small")) if d.chance(0.6) else None
        return form(d, name, torch.clamp, (x, low, high))
    if name == "masked_fill":
        mask = At(d.operand(broadcast(d, shape), torch.bool))
        return form(d, name, torch.masked_fill, (x, mask, d.of((0, 1, 3))))
    y = At(d.operand(broadcast(d, shape), dtype))
    if name == "lerp":
        w = d.of((0.5, 0.25, At(d.operand(broadcast(d, shape), dtype, "unit"))))
        return form(d, name, torch.lerp, (x, y, w), absolute=1.0)
    z = At(d.operand(broadcast(d, shape), dtype, "nonzero"))
    return form(
        d,
        name,
        getattr(torch, name),
        (x, y, z),
        keywords={"value": d.of((1, 0.5, 2))},
        absolute=1.0,
    )


@makes(6)
def cast(d: Draw) -> Case:
    first, second = d.of(ALL), d.of(ALL)
    values = "normal" if second.is_floating_point or second is torch.bool else "small"
    if second is torch.uint8 or first is torch.uint8:
        values = "unit" if first.is_floating_point else "positive"
    x = At(d.operand(d.shape(), first, values))
    return d.case("to", lambda t, dtype: t.to(dtype), x, second)


@makes(4)
def assign(d: Draw) -> Case:
    """copy_, fill_, zero_ and setitem through views, with conversion and broadcasting."""
    shape, dtype = d.shape(), d.of(ALL)
    x = At(d.operand(shape, dtype, "small", written=True))
    kind = d.of(("copy_", "copy_", "fill_", "zero_", "setitem", "masked_set"))
    if kind == "copy_":
        values = "positive" if dtype is torch.uint8 else "small"
        y = At(d.operand(broadcast(d, shape), d.of(ALL) if d.chance(0.4) else dtype, values))
        return d.case(kind, lambda a, b: a.copy_(b), x, y, written=True)
    if kind == "fill_":
        return d.case(kind, lambda a, v: a.fill_(v), x, d.of((0, 1, 3)), written=True)
    if kind == "zero_":
        return d.case(kind, lambda a: a.zero_(), x, written=True)
    part = tuple(slice(min(d.of((0, 1, 31)), n), n - d.of((0, 0, 1))) for n in shape)

    def set_part(a: Tensor, index: Any, value: Any) -> Tensor:
        a[index] = value
        return a

    return d.case("setitem", set_part, x, part, d.of((0, 1, 2)), written=True)


# --- reductions and scans

REDUCE = (
    "sum mean amax amin prod any all var std argmax argmin logsumexp norm count_nonzero nansum"
    " max min median aminmax var_mean"
)
MOVED = (
    "cat stack split pad flip roll repeat tile tril triu chunk unfold repeat_interleave"
    " rot90 movedim contiguous clone reshape diagonal constant_pad narrow unbind"
)
INDEXED = (
    "gather scatter index_select index_put index_add masked_select index take_along_dim"
    " scatter_add index_copy index_fill embedding take masked_scatter scatter_reduce nonzero"
    " one_hot bucketize"
)


def near_one(d: Draw, shape: list[int]) -> str:
    return "near one" if math.prod(shape) else "small"


@makes(16)
def reduction(d: Draw) -> Case:
    name = d.of(REDUCE.split())
    shape = d.shape()
    rank = len(shape)
    dtype = d.of(FLOATS if d.chance(0.6) else ALL)
    if name in ("mean", "var", "std", "logsumexp", "norm", "var_mean"):
        dtype = d.of(FLOATS)
    keep = {"keepdim": d.chance(0.4)}
    values = "normal"
    if name in ("amax", "amin", "max", "min", "argmax", "argmin", "aminmax"):
        values = "small" if d.chance(0.5) else "normal"
    if name in ("prod",):
        shape = d.shape(most=3000)
        rank = len(shape)
        values = "near one"
    if name in ("any", "all", "count_nonzero"):
        values = "small"
    x = At(d.operand(shape, dtype, values))
    if name in ("argmax", "argmin", "prod", "max", "min", "median", "aminmax"):
        dim: Any = d.dim(rank)
        if d.chance(0.25) and name not in ("aminmax",):
            return d.case(name, getattr(torch, name), x, sums=name == "prod")
        if name == "aminmax":
            return d.case(name, torch.aminmax, x, keywords={"dim": dim, **keep})
        if name == "median":
            return d.case(name, lambda t, dim: torch.median(t, dim)[0], x, dim)
        return d.case(name, getattr(torch, name), x, dim, keywords=keep, sums=name == "prod")
    dims: Any = d.dims(rank)
    linear = name in ("sum", "mean", "nansum")
    wide = {"dtype": torch.float32} if linear and d.chance(0.1) and name != "mean" else {}
    if linear and not d.chance(0.85):
        return d.case(name, getattr(torch, name), x, keywords=wide, sums=True)
    if name == "norm":
        p = d.of((2, 1, math.inf, 3))
        return d.case(name, torch.linalg.vector_norm, x, p, dims, keywords=keep, absolute=1.0)
    if name in ("var", "std", "var_mean"):
        keep["correction"] = d.of((0, 1))
        return d.case(name, getattr(torch, name), x, dims, keywords=keep, absolute=1.0)
    if name == "count_nonzero":
        return d.case(name, torch.count_nonzero, x, dims)
    if linear:
        return form(d, name, getattr(torch, name), (x, dims), keywords={**keep, **wide}, sums=True)
    more = {"absolute": 1.0, "steps": name == "logsumexp"}
    return d.case(name, getattr(torch, name), x, dims, keywords=keep, **more)


@makes(4)
def scan(d: Draw) -> Case:
    name = d.of(("cumsum", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "diff"))
    shape = d.shape()
    dtype = d.of(FLOATS if name == "logcumsumexp" or d.chance(0.6) else INTEGERS)
    values = "near one" if name == "cumprod" else "normal"
    x = At(d.operand(shape, dtype, values))
    dim = d.dim(len(shape))
    if name == "diff":
        return d.case(name, torch.diff, x, 1, dim)
    return d.case(
        name, getattr(torch, name), x, dim, sums=name in ("cumsum", "cumprod"), absolute=1.0
    )


# --- norms


@makes(6)
def norm(d: Draw) -> Case:
    name = d.of(("softmax", "log_softmax", "layer_norm", "rms_norm", "group_norm", "normalize"))
    dtype = d.of(FLOATS)
    if name == "group_norm":
        groups = d.of((1, 2, 4))
        shape = [
            d.of((1, 2, 3)),
            groups * d.of((1, 2, 3, 8)),
            *d.shape(d.rng.randint(0, 3), most=2000),
        ]
        x = At(d.operand(shape, dtype))
        weight = At(d.operand([shape[1]], dtype, "unit")) if d.chance(0.5) else None
        bias = At(d.operand([shape[1]], dtype, "unit")) if weight and d.chance(0.5) else None
        return d.case(name, F.group_norm, x, groups, weight, bias, absolute=3.0)
    shape = d.shape()
    x = At(d.operand(shape, dtype))
    if name in ("softmax", "log_softmax"):
        wide = {"dtype": torch.float32} if d.chance(0.1) else {}
        return d.case(name, getattr(torch, name), x, d.dim(len(shape)), keywords=wide, absolute=1.0)
    if name == "normalize":
        return d.case(name, F.normalize, x, 2.0, d.dim(len(shape)), absolute=1.0)
    inner = shape[-d.rng.randint(1, min(len(shape), 3)) :]
    weight = At(d.operand(inner, dtype, "unit")) if d.chance(0.6) else None
    if name == "rms_norm":
        return d.case(name, F.rms_norm, x, inner, weight, 1e-5, absolute=3.0)
    bias = At(d.operand(inner, dtype, "unit")) if d.chance(0.5) else None
    return d.case(name, F.layer_norm, x, inner, weight, bias, absolute=3.0)


# --- products


@makes(8)
def product(d: Draw) -> Case:
    name = d.of(
        ("matmul", "matmul", "mm", "bmm", "addmm", "linear", "baddbmm", "mv", "dot", "einsum")
    )
    dtype = d.of(FLOATS) if d.chance(0.95) else d.of(SIGNED)
    m, n, k = d.size(), d.size(), d.size()
    values = "small" if d.chance(0.4) else "normal"

    def operand(*shape: int) -> At:
        return At(d.operand(list(shape), dtype, values))

    more = {"sums": True, "product": True}
    if name == "mm":
        return form(d, name, torch.mm, (operand(m, k), operand(k, n)), **more)
    if name in ("bmm", "baddbmm"):
        batch = d.of((1, 2, 3))
        a, b = operand(batch, m, k), operand(batch, k, n)
        if name == "bmm":
            return d.case(name, torch.bmm, a, b, **more)
        return d.case(name, torch.baddbmm, operand(*broadcast(d, [batch, m, n])), a, b, **more)
    if name == "addmm":
        bias = operand(*broadcast(d, [m, n]))
        scale = {} if d.chance(0.6) else {"beta": d.of((0, 1, 2)), "alpha": d.of((1, 2, -1))}
        return d.case(name, torch.addmm, bias, operand(m, k), operand(k, n), keywords=scale, **more)
    if name == "linear":
        lead = d.shape(d.rng.randint(1, 3), most=200)
        added = operand(n) if d.chance(0.5) else None
        return d.case(
            name, F.linear, operand(*lead, k), operand(n, k), added, steps=added is not None, **more
        )
    if name == "mv":
        return d.case(name, torch.mv, operand(m, k), operand(k), **more)
    if name == "dot":
        return d.case(name, torch.dot, operand(k), operand(k), **more)
    if name == "einsum":
        text = d.of(("bij,bjk->bik", "bhid,bhjd->bhij", "ij,kj->ik", "i,j->ij", "bij->bji"))
        sizes = {c: d.of((1, 2, 3)) if c in "bh" else d.size() for c in "bhijkd"}
        terms = [operand(*(sizes[c] for c in t)) for t in text.split("->")[0].split(",")]
        return d.case(name, torch.einsum, text, *terms, **more)
    batch = [d.of((1, 2, 3)) for _ in range(d.rng.randint(0, 3))]
    left, right = [*broadcast(d, batch), m, k], [*broadcast(d, batch), k, n]
    if d.chance(0.15):
        left = [k]
    if d.chance(0.15):
        right = [k]
    return d.case(name, torch.matmul, operand(*left), operand(*right), **more)


@makes(4)
def convolution(d: Draw) -> Case:
    spatial = d.of((1, 2, 2))
    dtype, groups = d.of(FLOATS), d.of((1, 1, 1, 2, 3))
    channels, made = groups * d.of((1, 2, 3, 8, 32)), groups * d.of((1, 2, 4, 33))
    kernel = [d.of((1, 2, 3)) for _ in range(spatial)]
    sizes = [
        d.of((3, 5, 8, 31, 32, 33)) if spatial == 2 else d.of((5, 31, 64, 129)) for _ in kernel
    ]
    stride = [d.of((1, 1, 2)) for _ in kernel]
    padding = [d.of((0, 1)) for _ in kernel]
    dilation = [d.of((1, 1, 2)) for _ in kernel]
    batch = d.of((1, 2, 3))
    values = "small" if d.chance(0.5) else "normal"
    x = At(d.operand([batch, channels, *sizes], dtype, values))
    more = {"sums": True, "product": True, "strides": False}
    bias = At(d.operand([made], dtype, "small")) if d.chance(0.5) else None
    if d.chance(0.2):
        w = At(d.operand([channels, made // groups, *kernel], dtype, values))
        f = getattr(F, f"conv_transpose{spatial}d")
        return d.case(f.__name__, f, x, w, bias, stride, padding, 0, groups, **more)
    w = At(d.operand([made, channels // groups, *kernel], dtype, values))
    f = getattr(F, f"conv{spatial}d")
    return d.case(f"conv{spatial}d", f, x, w, bias, stride, padding, dilation, groups, **more)


@makes(3)
def pooling(d: Draw) -> Case:
    spatial = d.of((1, 2))
    kind = d.of(("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool"))
    sizes = [d.of((3, 5, 8, 31, 32, 33)) for _ in range(spatial)]
    x = At(d.operand([d.of((1, 2)), d.of((1, 3, 33)), *sizes], d.of(FLOATS)))
    name = f"{kind}{spatial}d"
    more = {"strides": False, "absolute": 1.0}
    if kind.startswith("adaptive"):
        return d.case(name, getattr(F, name), x, [d.of((1, 2, 3)) for _ in sizes], **more)
    kernel, stride = [d.of((2, 3)) for _ in sizes], [d.of((1, 2)) for _ in sizes]
    return d.case(name, getattr(F, name), x, kernel, stride, d.of((0, 1)), **more)


# --- moving elements


@makes(10)
def moved(d: Draw) -> Case:
    name = d.of(MOVED.split())
    dtype = d.of(ALL)
    shape = d.shape(d.rng.randint(1, 5), most=MOST // 4)
    rank = len(shape)
    dim = d.dim(rank)

    def operand(sizes: Sequence[int] = shape, kind: torch.dtype = dtype) -> At:
        return At(d.operand(list(sizes), kind, "small"))

    if name == "cat":
        parts = []
        for _ in range(d.rng.randint(1, 4)):
            sizes = list(shape)
            sizes[dim] = d.size()
            if math.prod(sizes) > MOST:
                sizes[dim] = 1
            parts.append(operand(sizes, d.of(ALL) if d.chance(0.1) else dtype))
        return d.case(
            name, lambda *t, dim: torch.cat(t, dim), *parts, keywords={"dim": dim}, strides=False
        )
    if name == "stack":
        parts = [operand() for _ in range(d.rng.randint(1, 3))]
        return d.case(
            name, lambda *t, dim: torch.stack(t, dim), *parts, keywords={"dim": dim}, strides=False
        )
    x = operand()
    if name in ("split", "chunk"):
        return d.case(
            name,
            lambda t, n, dim: [
                p + p if p.dtype is not torch.bool else ~p for p in getattr(torch, name)(t, n, dim)
            ],
            x,
            d.of((1, 2, 3)) if name == "chunk" else max(1, (shape[dim] + 2) // 3),
            dim,
        )
    if name in ("pad", "constant_pad"):
        widths = [d.of((-1, 0, 1, 2, 31)) for _ in range(2 * d.rng.randint(1, min(rank, 3)))]
        if name == "pad" and rank > 1 and dtype.is_floating_point:
            mode = d.of(("reflect", "replicate", "circular"))
            return d.case(name, F.pad, x, [d.of((0, 1, 2)), d.of((0, 1))], mode)
        return d.case("pad", F.pad, x, widths, "constant", d.of((0, 1)))
    if name == "flip":
        return d.case(name, torch.flip, x, d.dims(rank))
    if name == "roll":
        dims = d.dims(rank)
        return d.case(name, torch.roll, x, tuple(d.of((-1, 1, 3, 32)) for _ in dims), dims)
    if name in ("repeat", "tile"):
        times = [d.of((1, 1, 2, 3)) for _ in range(rank + (1 if d.chance(0.2) and rank < 6 else 0))]
        while math.prod(times) * math.prod(shape) > 2 * MOST:
            times[max(range(len(times)), key=times.__getitem__)] = 1
        return d.case(name, lambda t, r: getattr(t, name)(*r), x, tuple(times))
    if name in ("tril", "triu"):
        return form(d, name, getattr(torch, name), (x, d.of((-33, -1, 0, 1, 2, 64))))
    if name == "unfold":
        size = d.of((1, 2, 3))
        return d.case(
            name, lambda t, *a: t.unfold(*a).clone(), x, dim, size, d.of((1, 2)), strides=False
        )
    if name == "repeat_interleave":
        return d.case(name, torch.repeat_interleave, x, d.of((1, 2, 3)), dim)
    if name == "rot90" and rank > 1:
        return d.case(
            name, torch.rot90, x, d.of((1, 2, 3)), d.rng.sample(range(rank), 2), strides=False
        )
    if name == "diagonal" and rank > 1:
        two = d.rng.sample(range(rank), 2)
        return d.case(name, lambda t, *a: torch.diagonal(t, *a).clone(), x, d.of((-1, 0, 1)), *two)
    if name == "contiguous":
        return d.case(name, lambda t: t.contiguous(), x)
    if name == "reshape":
        return d.case(name, lambda t: t.reshape(-1) * 1, x)
    if name == "narrow":
        start = d.rng.randrange(shape[dim]) if shape[dim] else 0
        return d.case(
            name, lambda t, *a: t.narrow(*a).clone(), x, dim, start, (shape[dim] - start + 1) // 2
        )
    if name == "unbind":
        return d.case(name, lambda t, dim: list(t.unbind(dim))[:4], x, dim)
    if name == "movedim":
        return d.case(
            name, lambda t, a, b: torch.movedim(t, a, b).contiguous(), x, dim, d.dim(rank)
        )
    return d.case("clone", torch.clone, x)


@makes(10)
def indexed(d: Draw) -> Case:
    name = d.of(INDEXED.split())
    dtype = d.of(ALL if "add" not in name and "reduce" not in name else NUMBERS)
    shape = d.shape(d.rng.randint(1, 4), most=MOST // 3)
    rank = len(shape)
    dim = d.dim(rank)
    n = shape[dim]
    count = d.of((1, 2, 5, 33, 64))
    long = torch.int64

    def operand(
        sizes: Sequence[int] = shape,
        kind: torch.dtype = dtype,
        values: str = "small",
        bound: int = 0,
    ) -> At:
        return At(d.operand(list(sizes), kind, values, bound=bound))

    if name == "embedding":
        ids = operand(
            d.shape(d.rng.randint(1, 3), most=300), d.of((torch.int64, torch.int32)), "index", 65
        )
        return d.case(name, F.embedding, ids, operand([65, d.size()], d.of(FLOATS)))
    if name == "one_hot":
        return d.case(name, F.one_hot, operand(d.shape(2, most=500), long, "index", 7), 7)
    if name == "bucketize":
        edges = At(d.operand([1], torch.float32, "unit"))
        return d.case(
            name,
            lambda t, e: torch.bucketize(t, torch.cumsum(e.abs() + e.new_ones(9), 0)),
            operand(kind=torch.float32),
            edges,
        )
    if name == "nonzero":
        return d.case(name, torch.nonzero, operand(), strides=False)
    x = At(d.operand(shape, dtype, "small", written=name in ("index_put", "index_add")))
    if name == "masked_select":
        return d.case(name, torch.masked_select, x, operand(broadcast(d, shape), torch.bool))
    if name == "take":
        total = math.prod(shape)
        return d.case(name, torch.take, x, operand([count, 3], long, "index", total))
    if name == "masked_scatter":
        mask, source = operand(kind=torch.bool), operand()
        return d.case(name, torch.masked_scatter, x, mask, source)
    if name == "gather":
        sizes = [max(1, s - d.of((0, 0, 1))) if s else 0 for s in shape]
        sizes[dim] = count if math.prod(sizes) // max(sizes[dim], 1) * count <= MOST else 1
        return d.case(
            name, torch.gather, x, dim, operand(sizes, d.of((long, long, torch.int32)), "index", n)
        )
    if name == "take_along_dim":
        sizes = list(shape)
        sizes[dim] = 2
        return d.case(name, torch.take_along_dim, x, operand(sizes, long, "index", n), dim)
    if name in ("scatter", "scatter_add", "scatter_reduce"):
        sizes = [max(1, s - d.of((0, 0, 1))) if s else 0 for s in shape]
        if name == "scatter":  # every place is written at most once
            sizes[dim] = min(1, n)
            index = operand(sizes, long, "index", n)
            if d.chance(0.3):
                return form(d, name, torch.scatter, (x, dim, index, d.of((1, 2))))
            return form(d, name, torch.scatter, (x, dim, index, operand(sizes)))
        index = operand(sizes, long, "index", n)
        if name == "scatter_add":
            return form(d, name, torch.scatter_add, (x, dim, index, operand(sizes)), sums=True)
        reduce = d.of(("sum", "amax", "amin"))
        return d.case(name, torch.scatter_reduce, x, dim, index, operand(sizes), reduce, sums=True)
    if name == "index_select":
        return d.case(
            name,
            torch.index_select,
            x,
            dim,
            operand(
                [count if count * math.prod(shape) < MOST * 8 else 1],
                d.of((long, torch.int32)),
                "index",
                n,
            ),
        )
    if name in ("index_add", "index_copy", "index_fill"):
        some = max(1, min(n, count)) if n else 0
        index = operand([some], long, "permutation", n)
        if name == "index_fill":
            return form(d, name, torch.index_fill, (x, dim, index, d.of((0, 1))))
        given = list(shape)
        given[dim] = some
        return form(d, name, getattr(torch, name), (x, dim, index, operand(given)), sums=True)
    at = [operand([count], long, "signed index", s) for s in shape[: d.rng.randint(1, rank)]]
    if not all(shape):
        return d.case("clone", torch.clone, x)
    rest = shape[len(at) :]
    if count * math.prod(rest) > 2 * MOST:
        return d.case("clone", torch.clone, x)
    if name == "index":
        return d.case(name, lambda t, *i: t[i], x, *at)
    if dtype is torch.bool or d.chance(0.5):

        def put(t: Tensor, *i: Tensor) -> Tensor:
            return t.index_put_(i, t.new_ones(()))

        return d.case("index_put_", put, x, *at, written=True)

    def add(t: Tensor, *i: Tensor) -> Tensor:
        return t.index_put_(i[:-1], i[-1], accumulate=True)

    return d.case("index_put_add", add, x, *at, operand([count, *rest]), written=True, sums=True)


@makes(4)
def ordered(d: Draw) -> Case:
    name = d.of(("topk", "sort", "argsort", "kthvalue", "msort", "topk", "sort"))
    shape = d.shape(most=MOST // 3)
    dim, dtype = d.dim(len(shape)), d.of(NUMBERS)
    x = At(d.operand(shape, dtype, "small" if d.chance(0.5) else "normal"))
    n = shape[dim]
    if name == "topk":

        def topk(t: Tensor, k: int, dim: int, largest: bool) -> list[Tensor]:
            values, places = torch.topk(t, k, dim, largest)
            return [values, torch.gather(t, dim, places), places.sort(dim)[0].diff(dim=dim) == 0]

        return d.case(name, topk, x, d.rng.randint(min(n, 1), n), dim, d.chance(0.7), strides=False)
    if name == "sort":
        keywords = {"dim": dim, "descending": d.chance(0.4), "stable": True}
        return d.case(name, torch.sort, x, keywords=keywords, strides=False)
    if name == "argsort":
        return d.case(
            name, lambda t, k: torch.argsort(t, dim=k, stable=True), x, dim, strides=False
        )
    if name == "kthvalue":
        return d.case(
            name,
            lambda t, k, dim: torch.kthvalue(t, k, dim)[0],
            x,
            max(1, n // 2),
            dim,
            strides=False,
        )
    return d.case(name, torch.msort, x, strides=False)


# --- calls that are refused


@makes(2)
def refused(d: Draw) -> Case:
    """Wrong sizes, dims and dtypes: the error has the class of the CPU's."""
    shape, dtype = d.shape(most=MOST // 4), d.of(FLOATS)
    rank = len(shape)
    x = At(d.operand(shape, dtype))
    kind = d.of(("shape", "dim", "mm", "cat", "dtype", "reshape", "index", "softmax", "norm"))
    if kind == "shape":
        wrong = [n + 2 for n in shape]
        return d.case("refused", torch.add, x, At(d.operand(wrong, dtype)))
    if kind == "dim":
        return d.case(
            "refused", d.of((torch.sum, torch.amax, torch.argmax, torch.cumsum)), x, rank + 1
        )
    if kind == "mm":
        return d.case(
            "refused", torch.mm, At(d.operand([3, 5], dtype)), At(d.operand([4, 5], dtype))
        )
    if kind == "cat":
        other = At(d.operand([*shape, 2], dtype))
        return d.case("refused", lambda *t: torch.cat(t), x, other)
    if kind == "dtype":
        y = At(d.operand([4, 4], torch.float32)), At(d.operand([4, 4], torch.float16))
        return d.case("refused", torch.mm, *y)
    if kind == "reshape":
        return d.case("refused", torch.reshape, x, (math.prod(shape) + 1, 7))
    if kind == "index":
        y32 = At(d.operand([3], torch.float32))
        return d.case("refused", torch.index_select, x, 0, y32)
    if kind == "softmax":
        return d.case("refused", torch.softmax, x, rank + 2)
    return d.case("refused", F.layer_norm, x, [shape[-1] + 1])
