"""Arithmetic, elementwise: add to lerp, and the unary functions of one operation each.

Floats are computed in float32 and rounded once; integers wrap at their width when they are stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from openspyre.compiler.build import GraphBuilder, Scalar
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.lower.promote import (
    BITS,
    FLOATS,
    HALVES,
    INTEGERS,
    Operand,
    float_type,
    is_float,
    pointwise,
    pointwise_many,
    refuse,
    result_type,
    rounded,
)
from openspyre.compiler.lower.registry import constant, lowers
from openspyre.compiler.view import View
from openspyre.program import body as f
from openspyre.program.body import Reg

# --- sums and products


def _scaled(reg: Reg, alpha: Reg | None) -> Reg:
    return reg if alpha is None else alpha * reg


def _sum(b: GraphBuilder, left: Operand, right: Operand, alpha: Any, sign: int) -> View:
    dtype = result_type(left, right)
    if dtype == "bool":
        if sign < 0:
            refuse(b.operation, dtype, (*INTEGERS, *FLOATS))
        scaled = isinstance(alpha, Scalar) or not alpha
        operands = [left, right, alpha] if scaled else [left, right]
        return pointwise(b, lambda x, y, *a: x | (y & a[0] if a else y), operands, dtype)
    plain = not isinstance(alpha, Scalar) and alpha == 1
    operands = [left, right] if plain else [left, right, alpha]

    def body(x: Reg, y: Reg, *a: Reg) -> Reg:
        y = _scaled(y, a[0] if a else None)
        return x + y if sign > 0 else x - y

    return pointwise(b, body, operands, dtype)


@lowers("aten.add.Tensor", "aten.add.Scalar")
def add(b: GraphBuilder, self: Operand, other: Operand, alpha: Any = 1) -> View:
    return _sum(b, self, other, alpha, 1)


@lowers("aten.sub.Tensor", "aten.sub.Scalar")
def sub(b: GraphBuilder, self: Operand, other: Operand, alpha: Any = 1) -> View:
    return _sum(b, self, other, alpha, -1)


@lowers("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(b: GraphBuilder, self: Operand, other: Operand, alpha: Any = 1) -> View:
    return _sum(b, other, self, alpha, -1)


@lowers("prims.add")
def prims_add(b: GraphBuilder, self: Operand, other: Operand) -> View:
    return _sum(b, self, other, 1, 1)


@lowers("prims.sub")
def prims_sub(b: GraphBuilder, self: Operand, other: Operand) -> View:
    return _sum(b, self, other, 1, -1)


@lowers("aten.mul.Tensor", "aten.mul.Scalar", "aten.multiply.Tensor", "prims.mul")
def mul(b: GraphBuilder, self: Operand, other: Operand) -> View:
    dtype = result_type(self, other)
    if dtype == "bool":
        return pointwise(b, lambda x, y: x & y, [self, other], dtype)
    return pointwise(b, lambda x, y: x * y, [self, other], dtype)


@lowers("prims.fma")
def fma(b: GraphBuilder, x: Operand, y: Operand, z: Operand) -> View:
    """x * y + z; the card has no fused form: the product is rounded to float32 where inexact."""
    return pointwise(b, lambda x, y, z: x * y + z, [x, y, z], result_type(x, y, z))


@lowers(
    "aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor", "aten.true_divide.Scalar",
    "aten.divide.Tensor",
)  # fmt: skip
def div(b: GraphBuilder, self: Operand, other: Operand) -> View:
    return pointwise(b, lambda x, y: x / y, [self, other], float_type(self, other))


@lowers("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(b: GraphBuilder, self: Operand, other: Operand, rounding_mode: str | None) -> View:
    if rounding_mode is None:
        return div(b, self, other)
    if rounding_mode == "floor":
        return floor_divide(b, self, other)
    return trunc_divide(b, self, other)


@lowers("aten.floor_divide.default", "aten.floor_divide.Scalar")
def floor_divide(b: GraphBuilder, self: Operand, other: Operand) -> View:
    dtype = result_type(self, other)
    refuse(b.operation, dtype, (*INTEGERS, *FLOATS))
    return pointwise(b, lambda x, y: x // y, [self, other], dtype)


def trunc_divide(b: GraphBuilder, self: Operand, other: Operand) -> View:
    """Rounded toward zero; a 16-bit quotient is rounded to its dtype before, as torch does."""
    dtype = result_type(self, other)
    refuse(b.operation, dtype, (*INTEGERS, *FLOATS))
    if dtype in HALVES:
        return pointwise(b, lambda x, y: f.trunc(rounded(b, x / y, dtype)), [self, other], dtype)
    return pointwise(b, f.trunc_div, [self, other], dtype)


@lowers("prims.div")
def prims_div(b: GraphBuilder, self: Operand, other: Operand) -> View:
    dtype = result_type(self, other)
    return div(b, self, other) if is_float(dtype) else trunc_divide(b, self, other)


@lowers("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor",
        "prims.remainder")  # fmt: skip
def remainder(b: GraphBuilder, self: Operand, other: Operand) -> View:
    dtype = result_type(self, other)
    refuse(b.operation, dtype, (*INTEGERS, *FLOATS))
    return pointwise(b, lambda x, y: x % y, [self, other], dtype)


@lowers("aten.fmod.Tensor", "aten.fmod.Scalar", "prims.fmod")
def fmod(b: GraphBuilder, self: Operand, other: Operand) -> View:
    dtype = result_type(self, other)
    refuse(b.operation, dtype, (*INTEGERS, *FLOATS))
    return pointwise(b, f.fmod, [self, other], dtype)


# --- powers


def _integer_power(base: Reg, exponent: int) -> Reg:
    result: Reg | None = None
    while exponent:
        if exponent & 1:
            result = base if result is None else result * base
        base, exponent = base * base, exponent >> 1
    return base.like(1) if result is None else result


def _integer_powers(base: Reg, exponent: Reg, bits: int) -> Reg:
    """Wrapping base ** exponent with the exponent in a register; negative ones as torch has it."""
    one, zero = base.like(1), base.like(0)
    odd = f.not_equal(exponent & 1, 0)
    result, square, left = one, base, exponent
    for _ in range(bits - 1):
        result = f.where(f.not_equal(left & 1, 0), result * square, result)
        square, left = square * square, left >> 1
    inverse = f.where(f.equal(base, 1), one, zero)
    inverse = f.where(f.equal(base, -1), f.where(odd, base.like(-1), one), inverse)
    return f.where(exponent < 0, inverse, result)


@lowers(
    "aten.pow.Tensor_Tensor", "aten.pow.Tensor_Scalar", "aten.pow.Scalar",
    "aten.float_power.Tensor_Tensor", "prims.pow",
)  # fmt: skip
def power(b: GraphBuilder, self: Operand, exponent: Operand) -> View:
    if b.operation.startswith("aten.float_power"):
        refuse(b.operation, "float64", FLOATS)
    dtype = result_type(self, exponent)
    if is_float(dtype):
        if isinstance(exponent, (int, float)) and exponent == 2:
            return pointwise(b, lambda x: x * x, [self], dtype)
        return pointwise(b, f.power, [self, exponent], dtype)
    refuse(b.operation, dtype, INTEGERS)
    if isinstance(exponent, int):
        if exponent < 0:
            raise Unsupported(
                b.operation, f"exponent {exponent} of an integer tensor",
                "integers to negative integer powers are not allowed", "convert to float32",
            )  # fmt: skip
        return pointwise(b, lambda x: _integer_power(x, exponent), [self], dtype)
    return pointwise(
        b, lambda x, y: _integer_powers(x, y, BITS[dtype]), [self, exponent], dtype
    )  # fmt: skip


@lowers("aten.square")
def square(b: GraphBuilder, self: Operand) -> View:
    return mul(b, self, self)


@lowers("aten.ldexp.Tensor")
def ldexp(b: GraphBuilder, self: Operand, other: Operand) -> View:
    power_ = pointwise(b, lambda y: f.exp2(f.cast(y, "f")), [other], float_type(other), own=[0])
    return mul(b, self, power_)


# --- two operands, floats


@lowers("aten.atan2", "prims.atan2")
def atan2(b: GraphBuilder, self: Operand, other: Operand) -> View:
    return pointwise(b, f.atan2, [self, other], float_type(self, other))


@lowers("aten.copysign.Tensor", "aten.copysign.Scalar")
def copysign(b: GraphBuilder, self: Operand, other: Operand) -> View:
    return pointwise(b, f.copysign, [self, other], float_type(self, other))


@lowers("aten.hypot", "prims.hypot")
def hypot(b: GraphBuilder, self: Operand, other: Operand) -> View:
    def body(x: Reg, y: Reg) -> Reg:
        x, y = abs(x), abs(y)
        large, small = f.maximum(x, y), f.minimum(x, y)
        ratio = small / large
        found = large * f.sqrt(ratio * ratio + 1.0)
        found = f.where(f.equal(large, 0.0), large, found)
        return f.where(f.isinf(x) | f.isinf(y), x.like(math.inf), found)

    dtype = result_type(self, other)
    refuse(b.operation, dtype, FLOATS)
    return pointwise(b, body, [self, other], dtype)


@lowers("aten.nextafter", "prims.nextafter")
def nextafter(b: GraphBuilder, self: Operand, other: Operand) -> View:
    dtype = result_type(self, other)
    refuse(b.operation, dtype, ("float32",))

    def body(x: Reg, y: Reg) -> Reg:
        code = f.bits(x)
        away = f.equal(y > x, x > 0.0)
        moved = f.bits(code + f.where(away, code.like(1), code.like(-1)))
        least = f.bits(code.like(1))
        moved = f.where(f.equal(x, 0.0), f.copysign(least, y), moved)
        moved = f.where(f.equal(x, y), y, moved)
        return f.where(f.isnan(x) | f.isnan(y), x + y, moved)

    return pointwise(b, body, [self, other], dtype)


@lowers("aten.logaddexp")
def logaddexp(b: GraphBuilder, self: Operand, other: Operand) -> View:
    def body(x: Reg, y: Reg) -> Reg:
        large = f.maximum(x, y)
        found = large + f.log1p(f.exp(-abs(x - y)))
        return f.where(f.isinf(x) & f.equal(x, y), x, found)

    return pointwise(b, body, [self, other], float_type(self, other))


@lowers("aten.logaddexp2")
def logaddexp2(b: GraphBuilder, self: Operand, other: Operand) -> View:
    def body(x: Reg, y: Reg) -> Reg:
        large = f.maximum(x, y)
        found = large + f.log1p(f.exp2(-abs(x - y))) * (1.0 / math.log(2.0))
        return f.where(f.isinf(x) & f.equal(x, y), x, found)

    return pointwise(b, body, [self, other], float_type(self, other))


def _x_times(log: Callable[[Reg], Reg]) -> Callable[[Reg, Reg], Reg]:
    def body(x: Reg, y: Reg) -> Reg:
        found = f.where(f.equal(x, 0.0), x.like(0.0), x * log(y))
        return f.where(f.isnan(y), y, found)

    return body


@lowers("aten.xlogy.Tensor", "aten.xlogy.Scalar_Self", "aten.xlogy.Scalar_Other")
def xlogy(b: GraphBuilder, self: Operand, other: Operand) -> View:
    return pointwise(b, _x_times(f.log), [self, other], float_type(self, other))


@lowers(
    "aten.special_xlog1py.default", "aten.special_xlog1py.self_scalar",
    "aten.special_xlog1py.other_scalar",
)  # fmt: skip
def xlog1py(b: GraphBuilder, self: Operand, other: Operand) -> View:
    return pointwise(b, _x_times(f.log1p), [self, other], float_type(self, other))


# --- three operands


@lowers("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(b: GraphBuilder, self: Operand, end: Operand, weight: Operand) -> View:
    def body(x: Reg, y: Reg, w: Reg) -> Reg:
        way = y - x
        return f.where(abs(w) < 0.5, x + w * way, y - way * (w.like(1.0) - w))

    dtype = result_type(self, end)
    refuse(b.operation, dtype, FLOATS)
    return pointwise(b, body, [self, end, weight], dtype)


@lowers("aten.addcmul")
def addcmul(
    b: GraphBuilder, self: Operand, tensor1: Operand, tensor2: Operand, value: Any = 1
) -> View:
    dtype = result_type(self, tensor1, tensor2)
    if dtype == "bool":
        refuse(b.operation, dtype, (*INTEGERS, *FLOATS))
    if not isinstance(value, (Scalar, View)) and value == 1:
        return pointwise(b, lambda x, s, t: x + s * t, [self, tensor1, tensor2], dtype)
    return pointwise(b, lambda x, s, t, v: x + v * s * t, [self, tensor1, tensor2, value], dtype)


@lowers("aten.addcdiv")
def addcdiv(
    b: GraphBuilder, self: Operand, tensor1: Operand, tensor2: Operand, value: Any = 1
) -> View:
    dtype = result_type(self, tensor1, tensor2)
    refuse(b.operation, dtype, FLOATS)
    if not isinstance(value, (Scalar, View)) and value == 1:
        return pointwise(b, lambda x, s, t: x + s / t, [self, tensor1, tensor2], dtype)
    return pointwise(b, lambda x, s, t, v: x + v * s / t, [self, tensor1, tensor2, value], dtype)


# --- one operand


def unary(b: GraphBuilder, function: Callable[[Reg], Reg], self: Operand) -> View:
    """A function of floats; integers become the default float."""
    return pointwise(b, function, [self], float_type(self))


_FUNCTIONS: dict[str, Callable[[Reg], Reg]] = {
    "acos": f.acos, "acosh": f.acosh, "asin": f.asin, "asinh": f.asinh, "atan": f.atan,
    "atanh": f.atanh, "cos": f.cos, "cosh": f.cosh, "erf": f.erf, "erfc": f.erfc,
    "erfinv": f.erfinv, "exp": f.exp, "exp2": f.exp2, "expm1": f.expm1, "log": f.log,
    "log10": f.log10, "log1p": f.log1p, "log2": f.log2, "reciprocal": f.reciprocal,
    "rsqrt": f.rsqrt, "sigmoid": f.sigmoid, "sin": f.sin, "sinh": f.sinh, "sqrt": f.sqrt,
    "tan": f.tan, "tanh": f.tanh,
}  # fmt: skip
_PRIMS = {"erfinv": "erf_inv"}
_NOT_PRIMS = ("sigmoid",)
_SPECIAL = ("erf", "erfc", "erfinv", "exp2", "expm1", "log1p")


def _register(name: str, function: Callable[[Reg], Reg]) -> None:
    names = [f"aten.{name}"]
    if name not in _NOT_PRIMS:
        names.append(f"prims.{_PRIMS.get(name, name)}")
    if name in _SPECIAL:
        names.append(f"aten.special_{name}")

    @lowers(*names)
    def lowering(b: GraphBuilder, self: Operand) -> View:
        return unary(b, function, self)


for _name, _function in _FUNCTIONS.items():
    _register(_name, _function)


def _arithmetic(
    *names: str, floats: Callable[[Reg], Reg], integers: Callable[[Reg], Reg], bools: bool
) -> None:
    @lowers(*names)
    def lowering(b: GraphBuilder, self: View) -> View:
        if is_float(self.dtype):
            return pointwise(b, floats, [self], self.dtype)
        refuse(b.operation, self.dtype, (*INTEGERS, "bool") if bools else INTEGERS)
        return pointwise(
            b, f.identity if self.dtype == "bool" else integers, [self], self.dtype
        )  # fmt: skip


def _minus(x: Reg) -> Reg:
    return -x


def _sign_of_number(x: Reg) -> Reg:
    # The card's sign of NaN is NaN; torch's is (x > 0) - (x < 0).
    return f.where(f.isnan(x), x.like(0.0), f.sign(x))


_arithmetic("aten.abs", "prims.abs", floats=abs, integers=abs, bools=True)
_arithmetic("aten.neg", "prims.neg", floats=_minus, integers=_minus, bools=False)
_arithmetic("aten.sign", "aten.sgn", "prims.sign",
            floats=_sign_of_number, integers=f.sign, bools=True)  # fmt: skip
_arithmetic("aten.floor", "prims.floor", floats=f.floor, integers=f.identity, bools=False)
_arithmetic("aten.ceil", "prims.ceil", floats=f.ceil, integers=f.identity, bools=False)
_arithmetic("aten.trunc", "aten.fix", "prims.trunc",
            floats=f.trunc, integers=f.identity, bools=False)  # fmt: skip
_arithmetic("aten.round", "prims.round", floats=f.round_even, integers=f.identity, bools=False)


@lowers("aten.round.decimals")
def round_decimals(b: GraphBuilder, self: View, decimals: Any) -> View:
    places = int(constant(decimals, f"{b.operation}: decimals"))
    if not is_float(self.dtype):
        refuse(b.operation, self.dtype, (*FLOATS, *INTEGERS) if places == 0 else FLOATS)
        return b.copy(self)
    scale = 10.0 ** abs(places)
    if places == 0:
        return pointwise(b, f.round_even, [self], self.dtype)
    if places > 0:
        return pointwise(b, lambda x: f.round_even(x * scale) / scale, [self], self.dtype)
    return pointwise(b, lambda x: f.round_even(x / scale) * scale, [self], self.dtype)


@lowers("aten.frac")
def frac(b: GraphBuilder, self: View) -> View:
    refuse(b.operation, self.dtype, FLOATS)
    return pointwise(b, f.frac, [self], self.dtype)


@lowers("aten.deg2rad")
def deg2rad(b: GraphBuilder, self: View) -> View:
    return unary(b, lambda x: x * (math.pi / 180.0), self)


@lowers("aten.rad2deg")
def rad2deg(b: GraphBuilder, self: View) -> View:
    return unary(b, lambda x: x * (180.0 / math.pi), self)


@lowers("aten.angle")
def angle(b: GraphBuilder, self: View) -> View:
    def body(x: Reg) -> Reg:
        found = f.where(x < 0.0, x.like(math.pi), x.like(0.0))
        return f.where(f.isnan(x), x, found)

    return unary(b, body, self)


@lowers("prims.cbrt")
def cbrt(b: GraphBuilder, self: View) -> View:
    def body(x: Reg) -> Reg:
        root = f.copysign(f.power(abs(x), 1.0 / 3.0), x)
        # One step of Newton: 1/3 is no float32.
        better = root - (root * root * root - x) / (root * root * 3.0)
        return f.where(f.equal(x, 0.0) | f.isinf(x), x, better)

    return unary(b, body, self)


@lowers("aten.frexp.Tensor", "prims.frexp")
def frexp(b: GraphBuilder, self: View) -> tuple[View, ...]:
    """(mantissa in [0.5, 1), exponent int32)."""
    refuse(b.operation, self.dtype, FLOATS)

    def body(x: Reg) -> tuple[Reg, ...]:
        tiny = abs(x) < 2.0**-126
        scaled = f.where(tiny, x * 2.0**24, x)
        code = f.bits(scaled)
        exponent = ((code >> 23) & 255) - 126
        exponent = exponent - f.where(tiny, exponent.like(24), exponent.like(0))
        mantissa = f.bits((code & -2139095041) | (126 << 23))
        odd = f.equal(x, 0.0) | ~f.isfinite(x)
        return f.where(odd, x, mantissa), f.where(odd, exponent.like(0), exponent)

    return pointwise_many(b, body, [self], self.dtype, (self.dtype, "int32"))


# --- integers


def _integer(*names: str, function: Callable[[Reg, Reg], Reg], bools: bool = False) -> None:
    @lowers(*names)
    def lowering(b: GraphBuilder, self: Operand, other: Operand) -> View:
        dtype = result_type(self, other)
        refuse(b.operation, dtype, (*INTEGERS, "bool") if bools else INTEGERS)
        return pointwise(b, function, [self, other], dtype)


def _overloads(name: str, *more: str) -> list[str]:
    return [f"aten.{name}.{o}" for o in ("Tensor", "Scalar", "Scalar_Tensor")] + list(more)


_integer(*_overloads("bitwise_and"), "aten.__and__.Tensor", "aten.__and__.Scalar",
         "prims.bitwise_and", function=lambda x, y: x & y, bools=True)  # fmt: skip
_integer(*_overloads("bitwise_or"), "aten.__or__.Tensor", "aten.__or__.Scalar",
         "prims.bitwise_or", function=lambda x, y: x | y, bools=True)  # fmt: skip
_integer(*_overloads("bitwise_xor"), "aten.__xor__.Tensor", "aten.__xor__.Scalar",
         "prims.bitwise_xor", function=lambda x, y: x ^ y, bools=True)  # fmt: skip
_integer(
    "aten.bitwise_left_shift.Tensor", "aten.bitwise_left_shift.Tensor_Scalar",
    "aten.bitwise_left_shift.Scalar_Tensor", "aten.__lshift__.Tensor", "aten.__lshift__.Scalar",
    "prims.shift_left", function=lambda x, y: x << y,
)  # fmt: skip
_integer(
    "aten.bitwise_right_shift.Tensor", "aten.bitwise_right_shift.Tensor_Scalar",
    "aten.bitwise_right_shift.Scalar_Tensor", "aten.__rshift__.Tensor", "aten.__rshift__.Scalar",
    "prims.shift_right_arithmetic", function=lambda x, y: x >> y,
)  # fmt: skip


@lowers("aten.bitwise_not", "prims.bitwise_not")
def bitwise_not(b: GraphBuilder, self: View) -> View:
    refuse(b.operation, self.dtype, (*INTEGERS, "bool"))
    return pointwise(b, lambda x: ~x, [self], self.dtype)


_EUCLID = {8: 14, 16: 25, 32: 48, 64: 94}
"""Steps that Euclid's algorithm takes at most for numbers of a width (Fibonacci numbers)."""


def _gcd(x: Reg, y: Reg, bits: int) -> Reg:
    for _ in range(_EUCLID[bits]):
        done = f.equal(y, 0)
        x, y = f.where(done, x, y), f.where(done, y, f.fmod(x, y))
    return abs(x)


@lowers("aten.gcd", "prims.gcd")
def gcd(b: GraphBuilder, self: Operand, other: Operand) -> View:
    dtype = result_type(self, other)
    refuse(b.operation, dtype, INTEGERS)
    return pointwise(b, lambda x, y: _gcd(x, y, BITS[dtype]), [self, other], dtype)


@lowers("aten.lcm")
def lcm(b: GraphBuilder, self: Operand, other: Operand) -> View:
    dtype = result_type(self, other)
    refuse(b.operation, dtype, INTEGERS)

    def body(x: Reg, y: Reg) -> Reg:
        return abs(f.trunc_div(x, _gcd(x, y, BITS[dtype])) * y)

    return pointwise(b, body, [self, other], dtype)
