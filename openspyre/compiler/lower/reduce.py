"""Reductions, scans and softmax.

A reduction gives an exact temp (float32, int32 or int64); a last map brings it to the result's
dtype. What is not there to be reduced (dims of size 1, 0-dim tensors) becomes a map.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from openspyre.compiler.build import EXACT, REGISTER, GraphBuilder
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.lower.promote import (
    FLOATS,
    computable,
    converted,
    default_float,
    is_float,
    pointwise,
    refuse,
    result_type,
    size_register,
)
from openspyre.compiler.lower.registry import constant, lowers
from openspyre.compiler.sizes import Size, known, product
from openspyre.compiler.view import View
from openspyre.program import body as f
from openspyre.program.body import Reg
from openspyre.program.ops import Combine

Dims = Sequence[int] | int | None


def dims_of(b: GraphBuilder, view: View, dim: Dims) -> list[int]:
    """The dims to reduce, ascending: None and () mean all."""
    if dim is None or (not isinstance(dim, int) and not dim):
        return list(range(view.rank))
    given = [dim] if isinstance(dim, int) else list(dim)
    found = sorted(d % max(view.rank, 1) for d in given)
    if len(set(found)) != len(found):
        raise Unsupported(b.operation, f"dims {given}", "a dim appears twice")
    return [d for d in found if d < view.rank]


def count_of(view: View, dims: Sequence[int]) -> Size:
    """How many elements one result of a reduction over `dims` combines."""
    return product(view.size(d) for d in dims)


def combined(
    b: GraphBuilder,
    combine: Combine,
    view: View,
    dims: Sequence[int],
    *,
    function: Callable[[Reg], Reg] | None = None,
    compute: str | None = None,
    keepdim: bool = False,
) -> tuple[View, ...]:
    """`GraphBuilder.reduce`, and a map where there is nothing to reduce."""
    if any(view.dims[d] for d in dims):
        return b.reduce(
            combine, view, dims, function=function, compute=compute, keepdim=keepdim
        )  # fmt: skip
    register = "b" if combine in (Combine.ANY, Combine.ALL) else REGISTER[compute or view.dtype]

    def body(x: Reg) -> tuple[Reg, ...]:
        value = f.cast(function(x), register) if function else x
        if combine is Combine.WELFORD:
            return value, value.like(0.0) * value, value.like(1.0)
        if combine in (Combine.ARGMAX, Combine.ARGMIN):
            return value, value.const("l", 0)
        return (f.cast(value, "i") if register == "b" else value,)

    dtypes = {
        Combine.WELFORD: ("float32",) * 3,
        Combine.ARGMAX: (EXACT[register], "int64"),
        Combine.ARGMIN: (EXACT[register], "int64"),
    }.get(combine, (EXACT[register],))
    source = "bool" if register == "b" else compute or view.dtype
    made = b.map_many(body, view, dtypes=dtypes, compute=source, name="r")
    return made if keepdim else tuple(_without(v, dims) for v in made)


def _without(view: View, dims: Sequence[int]) -> View:
    for d in sorted(dims, reverse=True):
        view = view.squeeze(d)
    return view


def stored(b: GraphBuilder, exact: View, dtype: str) -> View:
    """An exact result in its dtype."""
    return exact if exact.dtype == dtype else b.copy(exact, dtype)


def _kept(b: GraphBuilder, view: View, dtype: str) -> Callable[[Reg], Reg] | None:
    """The conversion to `dtype` that a reduction makes first, as a function of registers."""
    if dtype == view.dtype or dtype == "float32" or REGISTER[dtype] in "lb":
        return None
    return lambda x: converted(b, x, view.dtype, dtype)


# --- sums, products


def _total_dtype(self: View, dtype: str | None) -> str:
    return dtype or (self.dtype if is_float(self.dtype) else "int64")


def _total(
    b: GraphBuilder, combine: Combine, self: View, dim: Dims, keepdim: bool, dtype: str | None
) -> View:
    found = computable(b.operation, _total_dtype(self, dtype))
    dims = dims_of(b, self, dim)
    if found == "bool":
        combine = Combine.ANY if combine is Combine.SUM else Combine.ALL
    (exact,) = combined(
        b, combine, self, dims, function=_kept(b, self, found), compute=found, keepdim=keepdim
    )
    return stored(b, exact, found)


@lowers("aten.sum")
def sum_all(b: GraphBuilder, self: View, dtype: str | None = None) -> View:
    return _total(b, Combine.SUM, self, None, False, dtype)


@lowers("aten.sum.dim_IntList")
def sum_dims(
    b: GraphBuilder, self: View, dim: Dims, keepdim: bool = False, dtype: str | None = None
) -> View:
    return _total(b, Combine.SUM, self, dim, keepdim, dtype)


@lowers("aten.prod")
def prod_all(b: GraphBuilder, self: View, dtype: str | None = None) -> View:
    return _total(b, Combine.PROD, self, None, False, dtype)


@lowers("aten.prod.dim_int")
def prod_dim(
    b: GraphBuilder, self: View, dim: int, keepdim: bool = False, dtype: str | None = None
) -> View:
    return _total(b, Combine.PROD, self, dim, keepdim, dtype)


@lowers("prims.sum")
def prims_sum(b: GraphBuilder, inp: View, dims: Dims, output_dtype: str | None = None) -> View:
    return _total(b, Combine.SUM, inp, dims, False, output_dtype or inp.dtype)


@lowers("prims.prod")
def prims_prod(b: GraphBuilder, inp: View, dims: Dims, output_dtype: str | None = None) -> View:
    return _total(b, Combine.PROD, inp, dims, False, output_dtype or inp.dtype)


@lowers("aten.nansum")
def nansum(
    b: GraphBuilder,
    self: View,
    dim: Dims = None,
    keepdim: bool = False,
    dtype: str | None = None,
) -> View:
    if not is_float(self.dtype):
        return _total(b, Combine.SUM, self, dim, keepdim, dtype)
    found = computable(b.operation, dtype or self.dtype)
    (exact,) = combined(
        b, Combine.SUM, self, dims_of(b, self, dim), keepdim=keepdim, compute="float32",
        function=lambda x: f.where(f.isnan(x), x.like(0.0), x),
    )  # fmt: skip
    return stored(b, exact, found)


def divided(b: GraphBuilder, exact: View, count: Size, dtype: str) -> View:
    """exact / count in `dtype`."""

    def body(x: Reg) -> Reg:
        number = known(count)
        return x / (f.cast(size_register(x, count), "f") if number is None else float(number))

    return pointwise(b, body, [exact], "float32", dtype)


def _mean(b: GraphBuilder, self: View, dim: Dims, keepdim: bool, dtype: str | None) -> View:
    found = dtype or self.dtype
    if not is_float(found):
        raise Unsupported(
            b.operation, f"dtype {found}", "the mean of integers needs a floating dtype",
            "give dtype=torch.float32",
        )  # fmt: skip
    computable(b.operation, found)
    dims = dims_of(b, self, dim)
    (exact,) = combined(
        b, Combine.SUM, self, dims, function=_kept(b, self, found), compute="float32",
        keepdim=keepdim,
    )  # fmt: skip
    return divided(b, exact, count_of(self, dims), found)


@lowers("aten.mean")
def mean_all(b: GraphBuilder, self: View, dtype: str | None = None) -> View:
    return _mean(b, self, None, False, dtype)


@lowers("aten.mean.dim")
def mean_dims(
    b: GraphBuilder, self: View, dim: Dims, keepdim: bool = False, dtype: str | None = None
) -> View:
    return _mean(b, self, dim, keepdim, dtype)


@lowers("aten.count_nonzero", "aten.count_nonzero.dim_IntList")
def count_nonzero(b: GraphBuilder, self: View, dim: Dims = None) -> View:
    truth = pointwise(b, lambda x: f.cast(x, "b"), [self], "bool", own=[0])
    return combined(b, Combine.SUM, truth, dims_of(b, self, dim), compute="int64")[0]


@lowers("aten.trace")
def trace(b: GraphBuilder, self: View) -> View:
    return _total(b, Combine.SUM, self.diagonal(0, 0, 1), None, False, None)


# --- truth


def _truth(b: GraphBuilder, combine: Combine, self: View, dim: Dims, keepdim: bool) -> View:
    (exact,) = combined(b, combine, self, dims_of(b, self, dim), keepdim=keepdim, compute="bool")
    return b.copy(exact, "uint8" if self.dtype == "uint8" else "bool")


def _registers_truth(name: str, combine: Combine) -> None:
    @lowers(f"aten.{name}.default", f"aten.{name}.dim", f"aten.{name}.dims")
    def lowering(b: GraphBuilder, self: View, dim: Dims = None, keepdim: bool = False) -> View:
        if b.operation.endswith(".dims") and isinstance(dim, (list, tuple)) and not dim:
            truth = "uint8" if self.dtype == "uint8" else "bool"
            return b.map(lambda x: f.cast(x, "b"), self, dtype=truth)
        return _truth(b, combine, self, dim, keepdim)


_registers_truth("any", Combine.ANY)
_registers_truth("all", Combine.ALL)


# --- extremes


def extreme(
    b: GraphBuilder, combine: Combine, self: View, dims: Sequence[int], keepdim: bool
) -> View:
    """The largest or smallest element, in the dtype of `self`."""
    if self.dtype == "bool":
        combine = Combine.ANY if combine is Combine.MAX else Combine.ALL
    (exact,) = combined(b, combine, self, dims, keepdim=keepdim)
    return stored(b, exact, self.dtype)


def _registers_extreme(short: str, combine: Combine, arg: Combine) -> None:
    @lowers(f"aten.a{short}", f"prims.a{short}")
    def over_dims(
        b: GraphBuilder, self: View, dim: Dims = None, keepdim: bool = False, **rest: Any
    ) -> View:
        return extreme(b, combine, self, dims_of(b, self, dim), keepdim)

    @lowers(f"aten.{short}")
    def over_all(b: GraphBuilder, self: View) -> View:
        return extreme(b, combine, self, dims_of(b, self, None), False)

    @lowers(f"aten.{short}.dim")
    def with_index(
        b: GraphBuilder, self: View, dim: int, keepdim: bool = False
    ) -> tuple[View, View]:
        value, index = combined(
            b, arg, self, dims_of(b, self, dim), keepdim=keepdim, compute=_comparable(self)
        )
        return stored(b, value, self.dtype), index

    @lowers(f"aten.arg{short}")
    def index_of(
        b: GraphBuilder, self: View, dim: int | None = None, keepdim: bool = False
    ) -> View:
        if dim is None and self.rank != 1:
            flat = b.reshape(self, [self.numel])
            index = combined(b, arg, flat, [0], compute=_comparable(self))[1]
            for _ in range(self.rank if keepdim else 0):
                index = index.unsqueeze(0)
            return index
        dims = dims_of(b, self, dim)
        return combined(b, arg, self, dims, keepdim=keepdim, compute=_comparable(self))[1]


def _comparable(self: View) -> str:
    return "int32" if self.dtype == "bool" else self.dtype


_registers_extreme("max", Combine.MAX, Combine.ARGMAX)
_registers_extreme("min", Combine.MIN, Combine.ARGMIN)


@lowers("aten.aminmax")
def aminmax(
    b: GraphBuilder, self: View, dim: int | None = None, keepdim: bool = False
) -> tuple[View, View]:
    dims = dims_of(b, self, dim)
    return (
        extreme(b, Combine.MIN, self, dims, keepdim),
        extreme(b, Combine.MAX, self, dims, keepdim),
    )


# --- moments


def moments(
    b: GraphBuilder, self: View, dim: Dims, correction: Any, keepdim: bool, root: bool
) -> tuple[View, View]:
    """(variance or standard deviation, mean) in the dtype of `self`."""
    refuse(b.operation, self.dtype, FLOATS)
    dims = dims_of(b, self, dim)
    mean, squares, count = combined(
        b, Combine.WELFORD, self, dims, compute="float32", keepdim=keepdim
    )
    by = 1.0 if correction is None else correction

    def body(m2: Reg, n: Reg, c: Reg) -> Reg:
        variance = m2 / f.maximum(n - c, 0.0)
        return f.sqrt(variance) if root else variance

    spread = pointwise(b, body, [squares, count, by], "float32", self.dtype)
    return spread, stored(b, mean, self.dtype)


def _registers_moments(name: str, root: bool, both: bool) -> None:
    def found(
        b: GraphBuilder, self: View, dim: Dims, correction: Any, keepdim: bool
    ) -> View | tuple[View, View]:
        pair = moments(b, self, dim, correction, keepdim, root)
        return pair if both else pair[0]

    @lowers(f"aten.{name}")
    def over_all(b: GraphBuilder, self: View, unbiased: bool = True) -> Any:
        return found(b, self, None, float(unbiased), False)

    @lowers(f"aten.{name}.dim")
    def over_dims(
        b: GraphBuilder, self: View, dim: Dims, unbiased: bool = True, keepdim: bool = False
    ) -> Any:
        return found(b, self, dim, float(unbiased), keepdim)

    @lowers(f"aten.{name}.correction")
    def corrected(
        b: GraphBuilder, self: View, dim: Dims = None, correction: Any = None, keepdim: bool = False
    ) -> Any:
        return found(b, self, dim, correction, keepdim)


_registers_moments("var", False, False)
_registers_moments("std", True, False)
_registers_moments("var_mean", False, True)
_registers_moments("std_mean", True, True)


@lowers("prims.var")
def prims_var(
    b: GraphBuilder,
    inp: View,
    dims: Dims,
    correction: Any = 1.0,
    output_dtype: str | None = None,
) -> View:
    return moments(b, inp, dims, correction, False, False)[0]


# --- norms


def vector_norm(
    b: GraphBuilder, self: View, ord: Any, dim: Dims, keepdim: bool, dtype: str | None
) -> View:
    """The norm of order `ord`, computed in float32."""
    order = float(constant(ord, f"{b.operation}: the order"))
    found = computable(b.operation, dtype or self.dtype)
    refuse(b.operation, found, FLOATS)
    dims = dims_of(b, self, dim)
    first = _kept(b, self, found) or (lambda x: x)
    combine, function, last = _norm_parts(order)
    (exact,) = combined(
        b, combine, self, dims, function=lambda x: function(first(x)), compute="float32",
        keepdim=keepdim,
    )  # fmt: skip
    return pointwise(b, last, [exact], "float32", found)


Function = Callable[[Reg], Reg]


def _norm_parts(order: float) -> tuple[Combine, Function, Function]:
    """How a norm combines, what of each element, and what becomes of the whole."""
    if order == math.inf:
        return Combine.MAX, abs, f.identity
    if order == -math.inf:
        return Combine.MIN, abs, f.identity
    if order == 0:
        return Combine.SUM, lambda x: f.cast(f.not_equal(x, 0.0), "f"), f.identity
    if order == 1:
        return Combine.SUM, abs, f.identity
    if order == 2:
        return Combine.SUM, lambda x: x * x, f.sqrt
    return (
        Combine.SUM,
        lambda x: f.power(abs(x), order),
        lambda x: f.power(x, 1.0 / order),
    )


@lowers("aten.linalg_vector_norm")
def linalg_vector_norm(
    b: GraphBuilder,
    self: View,
    ord: Any = 2,
    dim: Dims = None,
    keepdim: bool = False,
    dtype: str | None = None,
) -> View:
    return vector_norm(b, self, ord, dim, keepdim, dtype)


@lowers("aten.norm.Scalar", "aten.norm.ScalarOpt_dtype")
def norm_all(b: GraphBuilder, self: View, p: Any = 2, dtype: str | None = None) -> View:
    return vector_norm(b, self, 2 if p is None else p, None, False, dtype)


@lowers("aten.norm.ScalarOpt_dim", "aten.norm.ScalarOpt_dim_dtype")
def norm_dims(
    b: GraphBuilder,
    self: View,
    p: Any,
    dim: Dims,
    keepdim: bool = False,
    dtype: str | None = None,
) -> View:
    return vector_norm(b, self, 2 if p is None else p, dim, keepdim, dtype)


@lowers("aten.dist")
def dist(b: GraphBuilder, self: View, other: View, p: Any = 2) -> View:
    dtype = result_type(self, other)
    refuse(b.operation, dtype, FLOATS)
    away = pointwise(b, lambda x, y: x - y, [self, other], dtype, "float32")
    return stored(b, vector_norm(b, away, p, None, False, None), dtype)


# --- exponentials


def _safe(x: Reg) -> Reg:
    return f.where(f.isinf(x), x.like(0.0), x)


@lowers("aten.logsumexp")
def logsumexp(b: GraphBuilder, self: View, dim: Dims, keepdim: bool = False) -> View:
    found = computable(b.operation, self.dtype if is_float(self.dtype) else default_float())
    dims = dims_of(b, self, dim)
    (top,) = combined(b, Combine.MAX, self, dims, compute="float32", keepdim=True)
    raised = pointwise(b, lambda x, m: f.exp(x - _safe(m)), [self, top], "float32")
    (total,) = combined(b, Combine.SUM, raised, dims, keepdim=True)
    out = pointwise(b, lambda s, m: f.log(s) + _safe(m), [total, top], "float32", found)
    return out if keepdim else _without(out, dims)


def softmax_in(b: GraphBuilder, self: View, dim: int, dtype: str) -> View:
    """softmax along `dim`, in `dtype`."""
    computable(b.operation, dtype)
    dims = dims_of(b, self, dim)
    (top,) = combined(b, Combine.MAX, self, dims, compute="float32", keepdim=True)
    raised = pointwise(b, lambda x, m: f.exp(x - m), [self, top], "float32")
    (total,) = combined(b, Combine.SUM, raised, dims, keepdim=True)
    return pointwise(b, lambda e, s: e / s, [raised, total], "float32", dtype)


@lowers("prims.prepare_softmax_online")
def prepare_softmax(b: GraphBuilder, a: View, dim: int) -> tuple[View, View]:
    """(the largest, the sum of exp(a - largest)), the dim kept, both in the dtype of `a`."""
    refuse(b.operation, a.dtype, FLOATS)
    dims = dims_of(b, a, dim)
    (top,) = combined(b, Combine.MAX, a, dims, compute="float32", keepdim=True)
    raised = pointwise(b, lambda x, m: f.exp(x - m), [a, top], "float32")
    (total,) = combined(b, Combine.SUM, raised, dims, keepdim=True)
    return stored(b, top, a.dtype), stored(b, total, a.dtype)


@lowers("aten._softmax")
def softmax(b: GraphBuilder, self: View, dim: int, half_to_float: bool) -> View:
    refuse(b.operation, self.dtype, FLOATS)
    return softmax_in(b, self, dim, "float32" if half_to_float else self.dtype)


@lowers("aten._log_softmax")
def log_softmax(b: GraphBuilder, self: View, dim: int, half_to_float: bool) -> View:
    refuse(b.operation, self.dtype, FLOATS)
    dims = dims_of(b, self, dim)
    (top,) = combined(b, Combine.MAX, self, dims, compute="float32", keepdim=True)
    raised = pointwise(b, lambda x, m: f.exp(x - m), [self, top], "float32")
    (total,) = combined(b, Combine.SUM, raised, dims, keepdim=True)
    return pointwise(
        b, lambda x, m, s: x - m - f.log(s), [self, top, total], "float32",
        "float32" if half_to_float else self.dtype,
    )  # fmt: skip


@lowers("aten._softmax_backward_data")
def softmax_backward(
    b: GraphBuilder, grad_output: View, output: View, dim: int, input_dtype: str
) -> View:
    dims = dims_of(b, output, dim)
    weighted = pointwise(b, lambda g, y: g * y, [grad_output, output], "float32")
    (total,) = combined(b, Combine.SUM, weighted, dims, keepdim=True)
    return pointwise(
        b, lambda g, y, s: (g - s) * y, [grad_output, output, total], "float32", input_dtype
    )


@lowers("aten._log_softmax_backward_data")
def log_softmax_backward(
    b: GraphBuilder, grad_output: View, output: View, dim: int, input_dtype: str
) -> View:
    dims = dims_of(b, output, dim)
    (total,) = combined(b, Combine.SUM, grad_output, dims, compute="float32", keepdim=True)
    return pointwise(
        b, lambda g, y, s: g - f.exp(y) * s, [grad_output, output, total], "float32", input_dtype
    )


# --- scans


def _scanned(b: GraphBuilder, combine: Combine, self: View, dim: int, dtype: str) -> View:
    computable(b.operation, dtype)
    dims = dims_of(b, self, dim)
    if not dims or not self.dims[dims[0]]:
        return b.copy(self, dtype)
    if dtype == "bool":
        return b.copy(b.scan(combine, self, dims[0], "int32"), "bool")
    return b.scan(combine, self, dims[0], dtype)


@lowers("aten.cumsum")
def cumsum(b: GraphBuilder, self: View, dim: int, dtype: str | None = None) -> View:
    return _scanned(b, Combine.SUM, self, dim, _total_dtype(self, dtype))


@lowers("aten.cumprod")
def cumprod(b: GraphBuilder, self: View, dim: int, dtype: str | None = None) -> View:
    return _scanned(b, Combine.PROD, self, dim, _total_dtype(self, dtype))
