"""Comparisons, logic, tests of floats, selection: what gives or takes truth values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.lower.promote import (
    FLOATS,
    INTEGERS,
    Operand,
    is_float,
    pointwise,
    refuse,
    result_type,
    torch_dtype,
)
from openspyre.compiler.lower.registry import lowers
from openspyre.compiler.view import View
from openspyre.program import body as f
from openspyre.program.body import Reg

Binary = Callable[[Reg, Reg], Reg]

# --- comparisons


def _compares(name: str, function: Binary, *more: str) -> None:
    @lowers(f"aten.{name}.Tensor", f"aten.{name}.Scalar", f"prims.{name}", *more)
    def lowering(b: GraphBuilder, self: Operand, other: Operand) -> View:
        dtype = result_type(self, other)
        return pointwise(b, function, [self, other], dtype, "bool", round_numbers=True)


_compares("eq", f.equal)
_compares("ne", f.not_equal)
_compares("lt", lambda x, y: x < y)
_compares("le", lambda x, y: x <= y)
_compares("gt", lambda x, y: x > y)
_compares("ge", lambda x, y: x >= y)


@lowers("aten.isclose")
def isclose(
    b: GraphBuilder, self: View, other: View, rtol: Any, atol: Any, equal_nan: bool = False
) -> View:
    dtype = result_type(self, other)
    if not is_float(dtype):
        if dtype == "bool" or (rtol == 0 and atol == 0):
            return pointwise(b, f.equal, [self, other], dtype, "bool")
        dtype = "float32"

    def body(x: Reg, y: Reg, r: Reg, a: Reg) -> Reg:
        near = abs(x - y) <= a + abs(r * y)
        found = f.equal(x, y) | (f.isfinite(x - y) & near)
        return found | (f.isnan(x) & f.isnan(y)) if equal_nan else found

    return pointwise(b, body, [self, other, float_number(rtol), float_number(atol)], dtype, "bool")


def float_number(value: Any) -> Any:
    """A Python int as float; anything else as it is."""
    return float(value) if isinstance(value, int) else value


# --- logic


def _logic(name: str, function: Binary) -> None:
    @lowers(f"aten.{name}")
    def lowering(b: GraphBuilder, self: Operand, other: Operand) -> View:
        def body(x: Reg, y: Reg) -> Reg:
            return function(f.cast(x, "b"), f.cast(y, "b"))

        return pointwise(b, body, [self, other], "bool", own=[0, 1])


_logic("logical_and", lambda x, y: x & y)
_logic("logical_or", lambda x, y: x | y)
_logic("logical_xor", lambda x, y: x ^ y)


@lowers("aten.logical_not")
def logical_not(b: GraphBuilder, self: View) -> View:
    return pointwise(b, lambda x: ~f.cast(x, "b"), [self], "bool", own=[0])


# --- tests


def _tests(
    *names: str, function: Callable[[Reg], Reg], integers: Callable[[Reg], Reg] | bool
) -> None:
    @lowers(*names)
    def lowering(b: GraphBuilder, self: View) -> View:
        if is_float(self.dtype):
            body = function
        elif callable(integers) and self.dtype != "bool":
            body = integers
        else:
            answer = bool(integers) and not callable(integers)

            def body(x: Reg) -> Reg:
                return x.const("b", answer)

        return pointwise(b, body, [self], self.dtype, "bool")


_tests("aten.isnan", function=f.isnan, integers=False)
_tests("aten.isinf", function=f.isinf, integers=False)
_tests("aten.isfinite", "prims.isfinite", function=f.isfinite, integers=True)
_tests("aten.isposinf", function=lambda x: f.equal(x, math.inf), integers=False)
_tests("aten.isneginf", function=lambda x: f.equal(x, -math.inf), integers=False)
_tests("aten.signbit", "prims.signbit",
       function=lambda x: f.bits(x) < 0, integers=lambda x: x < 0)  # fmt: skip


@lowers("aten.isreal")
def isreal(b: GraphBuilder, self: View) -> View:
    return pointwise(b, lambda x: x.const("b", True), [self], self.dtype, "bool")


@lowers("aten.nan_to_num")
def nan_to_num(
    b: GraphBuilder, self: View, nan: Any = None, posinf: Any = None, neginf: Any = None
) -> View:
    if not is_float(self.dtype):
        return b.copy(self)
    limits = torch.finfo(torch_dtype(self.dtype))
    values = [
        0.0 if nan is None else nan,
        limits.max if posinf is None else posinf,
        limits.min if neginf is None else neginf,
    ]

    def body(x: Reg, n: Reg, high: Reg, low: Reg) -> Reg:
        found = f.where(f.equal(x, math.inf), high, x)
        found = f.where(f.equal(x, -math.inf), low, found)
        return f.where(f.isnan(x), n, found)

    return pointwise(b, body, [self, *values], self.dtype)


@lowers("aten.heaviside")
def heaviside(b: GraphBuilder, self: Operand, values: Operand) -> View:
    dtype = result_type(self, values)

    def body(x: Reg, v: Reg) -> Reg:
        if dtype == "bool":
            return x | v
        return f.where(f.equal(x, 0), v, f.where(x > 0, x.like(1), x.like(0)))

    return pointwise(b, body, [self, values], dtype)


# --- selection


@lowers(
    "aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar",
    "prims.where",
)  # fmt: skip
def where(b: GraphBuilder, condition: View, self: Operand, other: Operand) -> View:
    def body(c: Reg, x: Reg, y: Reg) -> Reg:
        return f.where(f.cast(c, "b"), x, y)

    return pointwise(b, body, [condition, self, other], result_type(self, other), own=[0])


@lowers("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(b: GraphBuilder, self: View, mask: View, value: Operand) -> View:
    return pointwise(b, f.where, [mask, value, self], self.dtype, own=[0])


def _larger(x: Reg, y: Reg) -> Reg:
    return x | y if x.type == "b" else f.maximum(x, y)


def _smaller(x: Reg, y: Reg) -> Reg:
    return x & y if x.type == "b" else f.minimum(x, y)


@lowers("aten.maximum", "aten.max.other", "prims.maximum", "aten.clamp_min",
        "aten.clamp_min.Tensor")  # fmt: skip
def maximum(b: GraphBuilder, self: Operand, other: Operand) -> View:
    return pointwise(b, _larger, [self, other], result_type(self, other))


@lowers("aten.minimum", "aten.min.other", "prims.minimum", "aten.clamp_max",
        "aten.clamp_max.Tensor")  # fmt: skip
def minimum(b: GraphBuilder, self: Operand, other: Operand) -> View:
    return pointwise(b, _smaller, [self, other], result_type(self, other))


def _past_nan(function: Binary) -> Binary:
    def body(x: Reg, y: Reg) -> Reg:
        if x.type != "f":
            return function(x, y)
        return f.where(f.isnan(x), y, f.where(f.isnan(y), x, function(x, y)))

    return body


@lowers("aten.fmax", "prims.fmax")
def fmax(b: GraphBuilder, self: Operand, other: Operand) -> View:
    return pointwise(b, _past_nan(_larger), [self, other], result_type(self, other))


@lowers("aten.fmin", "prims.fmin")
def fmin(b: GraphBuilder, self: Operand, other: Operand) -> View:
    return pointwise(b, _past_nan(_smaller), [self, other], result_type(self, other))


@lowers("aten.clamp", "aten.clamp.Tensor", "aten.clip", "aten.clip.Tensor")
def clamp(
    b: GraphBuilder, self: View, min: Operand | None = None, max: Operand | None = None
) -> View:
    given = [bound for bound in (min, max) if bound is not None]
    dtype = result_type(self, *given)
    if is_float(self.dtype) and not any(isinstance(g, View) for g in given):
        dtype = self.dtype
    refuse(b.operation, dtype, (*FLOATS, *INTEGERS))

    def body(x: Reg, *bounds: Reg) -> Reg:
        left = list(bounds)
        if min is not None:
            x = f.maximum(x, left.pop(0))
        if max is not None:
            x = f.minimum(x, left.pop(0))
        return x

    return pointwise(b, body, [self, *given], dtype)
