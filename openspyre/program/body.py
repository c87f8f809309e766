"""Bodies as Python functions: write `lambda x, m: exp(x - m)`, get the `Body` of a COMPUTE.

Tracing calls the function once with a `Reg` for every input tile; operators and the functions of
this module note one operation each (the same operation on the same registers only once). Python
numbers take the type of the register they meet. See `ops.py` for what each operation means.

Imports no torch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TypeAlias

from openspyre.formats import Format
from openspyre.program.model import Body, Node
from openspyre.program.ops import BODY_OP, register_of


class BodyError(ValueError):
    """A body that cannot be: names the operation and the rule."""


class Trace:
    """The operations noted so far."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._known: dict[tuple[object, ...], int] = {}

    def note(
        self,
        op: str,
        type_: str,
        args: Sequence[Reg] = (),
        immediate: int | float | str | None = None,
    ) -> Reg:
        """The register of one operation. Raises BodyError when types do not fit."""
        rule = BODY_OP[op]
        if type_ not in rule.types:
            raise BodyError(f"{op} exists for register types {rule.types}, not {type_!r}")
        if len(args) != len(rule.operands):
            raise BodyError(f"{op} takes {len(rule.operands)} operands, not {len(args)}")
        for arg, letter in zip(args, rule.operands, strict=True):
            wanted = type_ if letter == "T" else letter
            if arg.type != wanted:
                raise BodyError(f"{op}: an operand is of type {arg.type!r} and must be {wanted!r}")
            if arg.trace is not self:
                raise BodyError(f"{op}: an operand comes from another body")
        # repr tells -0.0 from 0.0 and 1 from 1.0, which equality does not.
        key = (op, type_, tuple(arg.number for arg in args), repr(immediate))
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = len(self.nodes)
            self.nodes.append(Node(op, type_, tuple(arg.number for arg in args), immediate))
        return Reg(self, number, rule.result_of(type_, immediate))


Number: TypeAlias = "Reg | int | float | bool"


class Reg:
    """A register of a body: the result of operation `number`, of type letter `type`."""

    def __init__(self, trace: Trace, number: int, type_: str) -> None:
        self.trace, self.number, self.type = trace, number, type_

    def like(self, value: Number) -> Reg:
        """`value` as a register: a Python number becomes a constant of this register's type."""
        if isinstance(value, Reg):
            return value
        if self.type == "f":
            number: int | float = struct.unpack("f", struct.pack("f", float(value)))[0]
        elif self.type == "b":
            number = int(bool(value))
        else:
            if value != int(value):
                raise BodyError(f"the constant {value} meets an integer register")
            number = int(value)
        return self.trace.note("const", self.type, (), number)

    def _binary(self, op: str, other: Number, swapped: bool = False) -> Reg:
        pair = (self.like(other), self) if swapped else (self, self.like(other))
        return self.trace.note(op, self.type, pair)

    def __add__(self, other: Number) -> Reg:
        return self._binary("add", other)

    def __radd__(self, other: Number) -> Reg:
        return self._binary("add", other, True)

    def __sub__(self, other: Number) -> Reg:
        return self._binary("sub", other)

    def __rsub__(self, other: Number) -> Reg:
        return self._binary("sub", other, True)

    def __mul__(self, other: Number) -> Reg:
        return self._binary("mul", other)

    def __rmul__(self, other: Number) -> Reg:
        return self._binary("mul", other, True)

    def __truediv__(self, other: Number) -> Reg:
        return self._binary("div", other)

    def __rtruediv__(self, other: Number) -> Reg:
        return self._binary("div", other, True)

    def __floordiv__(self, other: Number) -> Reg:
        return self._binary("floor_div", other)

    def __mod__(self, other: Number) -> Reg:
        return self._binary("remainder", other)

    def __and__(self, other: Number) -> Reg:
        return self._binary("and", other)

    def __or__(self, other: Number) -> Reg:
        return self._binary("or", other)

    def __xor__(self, other: Number) -> Reg:
        return self._binary("xor", other)

    def __lshift__(self, other: Number) -> Reg:
        return self._binary("shl", other)

    def __rshift__(self, other: Number) -> Reg:
        return self._binary("shr", other)

    def __lt__(self, other: Number) -> Reg:
        return self._binary("lt", other)

    def __le__(self, other: Number) -> Reg:
        return self._binary("le", other)

    def __gt__(self, other: Number) -> Reg:
        return self._binary("gt", other)

    def __ge__(self, other: Number) -> Reg:
        return self._binary("ge", other)

    def __neg__(self) -> Reg:
        return self.trace.note("neg", self.type, (self,))

    def __invert__(self) -> Reg:
        return self.trace.note("not", self.type, (self,))

    def __abs__(self) -> Reg:
        return self.trace.note("abs", self.type, (self,))

    def const(self, type_: str, value: int | float) -> Reg:
        """A constant of any register type (any register of the body can make one)."""
        return Reg(self.trace, -1, type_).like(value)

    def index(self, label: str) -> Reg:
        """The element's global index along `label` (int64)."""
        return self.trace.note("index", "l", (), label)

    def scalar(self, symbol: str, type_: str = "f") -> Reg:
        """A FLOAT ("f") or INT ("l") symbol of the launch."""
        return self.trace.note("scalar", type_, (), symbol)


def apply(op: str, *args: Number, immediate: int | float | str | None = None) -> Reg:
    """Any operation of `BODY_OPS` by name, at least one argument being a register."""
    first = next((arg for arg in args if isinstance(arg, Reg)), None)
    if first is None:
        raise BodyError(f"{op} needs a register among its operands")
    operands = BODY_OP[op].operands
    typed = next(
        (
            arg
            for arg, letter in zip(args, operands, strict=False)
            if letter == "T" and isinstance(arg, Reg)
        ),
        first,
    )
    return first.trace.note(op, typed.type, [typed.like(arg) for arg in args], immediate)


Unary: TypeAlias = Callable[[Reg], Reg]
BinaryOp: TypeAlias = Callable[[Number, Number], Reg]


def _unary(op: str) -> Unary:
    return lambda x: apply(op, x)


def _binary(op: str) -> BinaryOp:
    return lambda a, b: apply(op, a, b)


sign, floor, ceil, round_even = map(_unary, ("sign", "floor", "ceil", "round_even"))
trunc, frac, sqrt, rsqrt, reciprocal = map(_unary, ["trunc", "frac", "sqrt", "rsqrt", "reciprocal"])
exp, exp2, expm1, log, log2 = map(_unary, ["exp", "exp2", "expm1", "log", "log2"])
log10, log1p, sigmoid, tanh, erf = map(_unary, ["log10", "log1p", "sigmoid", "tanh", "erf"])
erfc, erfinv, gelu, gelu_tanh, silu = map(_unary, ["erfc", "erfinv", "gelu", "gelu_tanh", "silu"])
softplus, mish, relu, sin, cos, tan = map(_unary, ["softplus", "mish", "relu", "sin", "cos", "tan"])
asin, acos, atan, sinh, cosh = map(_unary, ["asin", "acos", "atan", "sinh", "cosh"])
asinh, acosh, atanh, isnan, isinf = map(_unary, ["asinh", "acosh", "atanh", "isnan", "isinf"])
isfinite, unit = map(_unary, ("isfinite", "unit"))
minimum, maximum, power, atan2 = map(_binary, ["min", "max", "pow", "atan2"])
copysign, fmod = map(_binary, ("copysign", "fmod"))
trunc_div, shr_logical = map(_binary, ("trunc_div", "shr_logical"))
equal, not_equal = map(_binary, ("eq", "ne"))


def where(condition: Reg, yes: Number, no: Number) -> Reg:
    """`yes` where the condition holds, else `no`."""
    return apply("where", condition, yes, no)


def cast(x: Reg, type_: str) -> Reg:
    """To another register type; the same register when it is of that type."""
    return x if x.type == type_ else apply("cast", x, immediate=type_)


def round_to(x: Reg, format: Format) -> Reg:
    """Rounds to a format's values and stays float32: a rounding point."""
    return apply("round", x, immediate=format.name)


def bits(x: Reg) -> Reg:
    """float32 to int32 with the same bits, and back."""
    return apply("bits", x, immediate="i" if x.type == "f" else "f")


def philox(key: Number, counter: Number, word: int) -> Reg:
    """Word 0..3 of Philox4x32-10 at an int64 key and counter, as int32."""
    return apply("philox", key, counter, immediate=word)


def identity(x: Reg) -> Reg:
    """The body of a copy."""
    return x


BodyFunction: TypeAlias = "Callable[..., Reg | tuple[Reg, ...]]"


def trace(function: BodyFunction, formats: Sequence[Format]) -> Body:
    """The Body of `function`, called with a register for each input format (a truth operand is a
    number too: compare it with zero). Without inputs it is called with one register that is only
    there to make constants, indices and scalars from.

    Raises BodyError for a format that no unit computes and for operations that do not fit.
    """
    notes = Trace()
    regs = []
    for number, format in enumerate(formats):
        register = register_of(format)
        if register is None:
            raise BodyError(f"input {number}: {format.name} is a host format, no unit computes it")
        regs.append(notes.note("input", register.value, (), number))
    results = function(*(regs or [Reg(notes, -1, "l")]))
    found = results if isinstance(results, tuple) else (results,)
    return Body(tuple(notes.nodes), tuple(reg.number for reg in found))
