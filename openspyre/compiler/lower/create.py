"""Operations that make tensors: full, zeros, arange, linspace, eye and their like.

Sizes may be symbolic. What `empty` makes is zero: the card hands out no old bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from openspyre.compiler.build import REGISTER, GraphBuilder, Scalar
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.lower.promote import (
    Operand,
    ZeroDim,
    computable,
    default_float,
    is_float,
    natural_dtype,
    pointwise,
    to_number,
)
from openspyre.compiler.lower.registry import constant, lowers
from openspyre.compiler.sizes import Size, known
from openspyre.compiler.view import View
from openspyre.program import body as f
from openspyre.program.body import Reg


def filled(b: GraphBuilder, shape: Sequence[Size], value: Operand, dtype: str | None) -> View:
    """A new tensor of one value; without `dtype` in that of the value."""
    found = computable(b.operation, dtype or natural_dtype(value))
    if isinstance(value, View):
        return b.map(f.identity, value, dtype=found, compute=found, shape=tuple(shape))
    plain = value.value if isinstance(value, ZeroDim) else value
    number = to_number(plain, found)
    assert not isinstance(number, (View, ZeroDim))
    return b.map(f.identity, number, dtype=found, compute=found, shape=tuple(shape))


@lowers("aten.full")
def full(b: GraphBuilder, size: Sequence[Size], fill_value: Any, dtype: str | None = None) -> View:
    return filled(b, size, fill_value, dtype)


@lowers("prims.full")
def prims_full(
    b: GraphBuilder, shape: Sequence[Size], fill_value: Any, dtype: str | None, **rest: Any
) -> View:
    return filled(b, shape, fill_value, dtype)


@lowers("aten.full_like", "prims.full_like")
def full_like(
    b: GraphBuilder, self: View, fill_value: Any, dtype: str | None = None, **rest: Any
) -> View:
    return filled(b, self.shape, fill_value, dtype or self.dtype)


@lowers("aten.new_full")
def new_full(
    b: GraphBuilder, self: View, size: Sequence[Size], fill_value: Any, dtype: str | None = None
) -> View:
    return filled(b, size, fill_value, dtype or self.dtype)


@lowers("aten.zeros", "aten.empty.memory_format", "aten.empty_permuted")
def zeros(b: GraphBuilder, size: Sequence[Size], *rest: Any, dtype: str | None = None) -> View:
    return filled(b, size, 0, dtype or default_float())


@lowers("aten.empty_strided", "prims.empty_strided")
def empty_strided(
    b: GraphBuilder,
    size: Sequence[Size],
    stride: Sequence[Size],
    dtype: str | None = None,
    **rest: Any,
) -> View:
    return filled(b, size, 0, dtype or default_float())


@lowers("aten.ones")
def ones(b: GraphBuilder, size: Sequence[Size], dtype: str | None = None) -> View:
    return filled(b, size, 1, dtype or default_float())


@lowers("aten.zeros_like", "aten.empty_like")
def zeros_like(b: GraphBuilder, self: View, dtype: str | None = None) -> View:
    return filled(b, self.shape, 0, dtype or self.dtype)


@lowers("aten.ones_like")
def ones_like(b: GraphBuilder, self: View, dtype: str | None = None) -> View:
    return filled(b, self.shape, 1, dtype or self.dtype)


@lowers("aten.new_zeros", "aten.new_empty")
def new_zeros(b: GraphBuilder, self: View, size: Sequence[Size], dtype: str | None = None) -> View:
    return filled(b, size, 0, dtype or self.dtype)


@lowers("aten.new_empty_strided")
def new_empty_strided(
    b: GraphBuilder,
    self: View,
    size: Sequence[Size],
    stride: Sequence[Size],
    dtype: str | None = None,
) -> View:
    return filled(b, size, 0, dtype or self.dtype)


@lowers("aten.new_ones")
def new_ones(b: GraphBuilder, self: View, size: Sequence[Size], dtype: str | None = None) -> View:
    return filled(b, size, 1, dtype or self.dtype)


@lowers("aten.zero")
def zero(b: GraphBuilder, self: View) -> View:
    return filled(b, self.shape, 0, self.dtype)


@lowers("aten.fill.Scalar", "aten.fill.Tensor", "prims.fill")
def fill(b: GraphBuilder, self: View, value: Operand) -> View:
    return filled(b, self.shape, value, self.dtype)


@lowers("aten.scalar_tensor", "prims.scalar_tensor")
def scalar_tensor(b: GraphBuilder, s: Any, dtype: str | None = None, **rest: Any) -> View:
    return filled(b, [], s, dtype or default_float())


# --- sequences


def sequence(
    b: GraphBuilder, length: Size, start: float, step: float, dtype: str, name: str = "range"
) -> View:
    """start + i * step for i below `length`, in `dtype`.

    Floats are computed as 64-bit fixed-point numbers, so the result is that of exact arithmetic,
    rounded once, except for steps finer than 2^-62 of the largest value.
    """
    computable(b.operation, dtype)
    count = known(length)
    whole = float(start).is_integer() and float(step).is_integer()
    if whole or count is None:
        if not whole:
            raise Unsupported(
                b.operation, f"start {start}, step {step}", "a symbolic length needs integers"
            )
        first, by = int(start), int(step)

        def counted(index: Any) -> Reg:
            reg: Reg = index(0)
            return f.cast(reg * by + first, REGISTER[dtype])

        return b.map(counted, dtype=dtype, shape=(length,), indexed=True, name=name)
    largest = max(abs(start), abs(start + step * count), abs(step), 2.0**-60)
    if not math.isfinite(largest):
        raise Unsupported(b.operation, f"start {start}, step {step}", "must be finite")
    shift = 61 - math.frexp(largest)[1]
    first, by = _fixed(start, shift), _fixed(step, shift)

    def scaled(index: Any) -> Reg:
        reg = f.cast(index(0) * by + first, "f")
        # Two factors: 2^-shift alone may lie outside float32.
        half = shift // 2
        reg = reg * 2.0**-half * 2.0 ** -(shift - half)
        return reg if REGISTER[dtype] == "f" else f.cast(reg, REGISTER[dtype])

    return b.map(scaled, dtype=dtype, shape=(length,), indexed=True, name=name)


def _fixed(value: float, shift: int) -> int:
    numerator, denominator = float(value).as_integer_ratio()
    return (
        (numerator << shift) // denominator if shift >= 0 else numerator // (denominator << -shift)
    )


def _arange(b: GraphBuilder, start: Any, end: Any, step: Any, dtype: str | None) -> View:
    found = dtype or (
        "int64"
        if all((isinstance(v, Scalar) and v.type == "l") or not isinstance(v, (float, Scalar))
               for v in (start, end, step))
        else default_float()
    )  # fmt: skip
    for value in (start, end, step):
        constant(value, f"{b.operation}: a bound")
    if not isinstance(end, (int, float)):
        if start == 0 and step == 1:
            return sequence(b, end, 0, 1, found)
        raise Unsupported(b.operation, f"end {end}", "a symbolic end needs start 0 and step 1")
    if not is_float(found):
        start, end, step = int(start), int(end), int(step)
        length = -((start - end) // step)
    else:
        length = math.ceil((end - start) / step)
    return sequence(b, max(length, 0), start, step, found)


@lowers("aten.arange")
def arange(b: GraphBuilder, end: Any, dtype: str | None = None) -> View:
    return _arange(b, 0, end, 1, dtype)


@lowers("aten.arange.start")
def arange_start(b: GraphBuilder, start: Any, end: Any, dtype: str | None = None) -> View:
    return _arange(b, start, end, 1, dtype)


@lowers("aten.arange.start_step")
def arange_start_step(
    b: GraphBuilder, start: Any, end: Any, step: Any = 1, dtype: str | None = None
) -> View:
    return _arange(b, start, end, step, dtype)


@lowers("prims.iota")
def iota(b: GraphBuilder, length: Size, start: Any, step: Any, dtype: str, **rest: Any) -> View:
    first, by = constant(start, "start"), constant(step, "step")
    return sequence(b, length, known(first) or 0, known(by) or 0, dtype)


@lowers(
    "aten.linspace", "aten.linspace.Tensor_Tensor", "aten.linspace.Tensor_Scalar",
    "aten.linspace.Scalar_Tensor",
)  # fmt: skip
def linspace(
    b: GraphBuilder, start: Operand, end: Operand, steps: int, dtype: str | None = None
) -> View:
    found = computable(b.operation, dtype or default_float())
    count = constant(steps, f"{b.operation}: steps")
    if count == 1:
        return filled(b, [1], start, found)
    numbers = isinstance(start, (int, float)) and isinstance(end, (int, float))
    if numbers and is_float(found):
        first, last = float(start), float(end)  # type: ignore[arg-type]
        return sequence(b, count, first, (last - first) / (count - 1), found, "linspace")
    index = sequence(b, count, 0, 1, "int32")

    def body(i: Reg, low: Reg, high: Reg) -> Reg:
        way = (high - low) / float(count - 1)
        at = f.cast(i, "f")
        value = f.where(
            at < float(count // 2), low + way * at, high - way * (at.like(float(count - 1)) - at)
        )
        return value if is_float(found) else f.cast(value, REGISTER[found])

    return pointwise(b, body, [index, start, end], "float32", found, own=[0])


@lowers(
    "aten.logspace", "aten.logspace.Tensor_Tensor", "aten.logspace.Tensor_Scalar",
    "aten.logspace.Scalar_Tensor",
)  # fmt: skip
def logspace(
    b: GraphBuilder,
    start: Operand,
    end: Operand,
    steps: int,
    base: Any = 10.0,
    dtype: str | None = None,
) -> View:
    found = dtype or default_float()
    exponents = linspace(b, start, end, steps, "float32")

    def body(x: Reg, by: Reg) -> Reg:
        return f.power(by, x)

    return pointwise(b, body, [exponents, base], "float32", found)


@lowers("aten.eye")
def eye(b: GraphBuilder, n: Size, dtype: str | None = None) -> View:
    return eye_m(b, n, n, dtype)


@lowers("aten.eye.m")
def eye_m(b: GraphBuilder, n: Size, m: Size, dtype: str | None = None) -> View:
    found = computable(b.operation, dtype or default_float())

    def body(index: Any) -> Reg:
        return f.cast(f.equal(index(0), index(1)), REGISTER[found])

    return b.map(body, dtype=found, shape=(n, m), indexed=True, name="eye")
