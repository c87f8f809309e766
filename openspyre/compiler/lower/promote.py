"""Type promotion by torch's rules, and elementwise maps that compute by them.

Three kinds of operand count differently: tensors of one dim or more, 0-dim tensors, and numbers.
A kind decides the result's dtype only as far as its category (bool, integer, float) is above that
of the kinds before it. What a 16-bit float operation computes, it computes in float32, from
operands rounded to the common dtype, and rounds once at the end.

May import torch (public names).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from openspyre.compiler.build import REGISTER, GraphBuilder, Scalar
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.sizes import Size, known
from openspyre.compiler.view import View
from openspyre.formats import format_for
from openspyre.program import body as f
from openspyre.program.body import Reg
from openspyre.program.expr import Binary, Expr, Var

HALVES = ("float16", "bfloat16")
FLOATS = ("float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64")
BITS = {"uint8": 8, "int8": 8, "int16": 16, "int32": 32, "int64": 64, "bool": 1}
LIMITS: dict[str, tuple[int, int]] = {
    name: (torch.iinfo(getattr(torch, name)).min, torch.iinfo(getattr(torch, name)).max)
    for name in INTEGERS
}
_DIGITS = {"float16": 10, "bfloat16": 8, "float32": 24}
"""Bits of an integer that a float dtype surely holds, in either mode."""


@dataclass(frozen=True)
class ZeroDim:
    """The value of a 0-dim tensor of dtype `dtype` that lies on the host: it goes into the body as
    a number, but counts as a 0-dim tensor."""

    value: Scalar | int | float | bool
    dtype: str


Operand: TypeAlias = "View | ZeroDim | Scalar | Expr | int | float | bool"


def torch_dtype(name: str) -> torch.dtype:
    """torch.float16 of "float16"."""
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def promote_types(a: str, b: str) -> str:
    """torch.promote_types by names."""
    return str(torch.promote_types(torch_dtype(a), torch_dtype(b))).removeprefix("torch.")


def default_float() -> str:
    """The name of torch.get_default_dtype()."""
    return str(torch.get_default_dtype()).removeprefix("torch.")


def is_float(dtype: str) -> bool:
    return torch_dtype(dtype).is_floating_point


def is_integer(dtype: str) -> bool:
    """An integer dtype; bool is none."""
    return dtype in INTEGERS


def natural_dtype(value: Operand) -> str:
    """The dtype of an operand; of a number the default dtype of its kind."""
    if isinstance(value, (View, ZeroDim)):
        return value.dtype
    if isinstance(value, Scalar):
        return default_float() if value.type == "f" else "int64"
    if isinstance(value, Expr):  # a size
        return "int64"
    if isinstance(value, complex):
        return "complex64"
    if isinstance(value, bool):
        return "bool"
    return "int64" if isinstance(value, int) else default_float()


def result_type(*operands: Operand) -> str:
    """torch.result_type of the operands."""
    kinds: list[str | None] = [None, None, None]
    for operand in operands:
        zero = isinstance(operand, ZeroDim) or (isinstance(operand, View) and operand.rank == 0)
        kind = 1 if zero else 0 if isinstance(operand, View) else 2
        dtype, held = natural_dtype(operand), kinds[kind]
        kinds[kind] = dtype if held is None else promote_types(held, dtype)
    return _combined(kinds[0], _combined(kinds[1], kinds[2])) or default_float()


def _combined(higher: str | None, lower: str | None) -> str | None:
    if higher is None or lower is None:
        return higher or lower
    if torch_dtype(higher).is_complex:
        return higher
    if is_float(higher):
        return promote_types(higher, lower) if torch_dtype(lower).is_complex else higher
    if higher == "bool" or is_float(lower) or torch_dtype(lower).is_complex:
        return promote_types(higher, lower)
    return higher


def float_type(*operands: Operand) -> str:
    """The result type of operations that give floats: integers become the default float."""
    found = result_type(*operands)
    return found if is_float(found) or torch_dtype(found).is_complex else default_float()


def can_cast(source: str, target: str) -> bool:
    """Whether a result of dtype `source` may be written in place to a tensor of dtype `target`."""
    return torch.can_cast(torch_dtype(source), torch_dtype(target))


def computable(operation: str, dtype: str) -> str:
    """`dtype`, if a unit of the card computes it; else Unsupported."""
    if dtype not in REGISTER:
        raise Unsupported(
            operation, f"a result of dtype {dtype}", "no unit of the card computes it",
            "convert to float32 or int64 first, or run it on the CPU",
        )  # fmt: skip
    return dtype


def refuse(operation: str, dtype: str, allowed: Sequence[str]) -> None:
    """Unsupported unless `dtype` is one of `allowed`: what torch refuses, too."""
    if dtype not in allowed:
        raise Unsupported(
            operation, f"dtype {dtype}", f"defined for {', '.join(allowed)}", "convert it first"
        )


# --- registers


def rounded(b: GraphBuilder, reg: Reg, dtype: str) -> Reg:
    """`reg` as a tensor of `dtype` would hold it, still in its register type (float32, int32..)."""
    if dtype in HALVES or dtype.startswith("float8"):
        return f.round_to(reg, format_for(dtype, b.mode))
    return wrapped(reg, dtype)


def wrapped(reg: Reg, dtype: str) -> Reg:
    """An integer register cut to the width of `dtype` (int8, uint8, int16; others as they are)."""
    if dtype not in ("int8", "uint8", "int16") or reg.type != "i":
        return reg
    if dtype == "uint8":
        return reg & 255
    spare = 32 - BITS[dtype]
    return (reg << spare) >> spare


def converted(b: GraphBuilder, reg: Reg, source: str | None, dtype: str) -> Reg:
    """A value of dtype `source` (None: a number) as dtype `dtype`, in dtype's register type."""
    out = f.cast(reg, REGISTER[dtype])
    if dtype == "bool" or source == dtype or source == "bool":
        return out
    if dtype in INTEGERS:
        narrow = source in BITS and BITS[source] < BITS[dtype] and source != "int8"
        return out if narrow else wrapped(out, dtype)
    if dtype in _DIGITS and dtype != "float32" and source is not None:
        exact = source in BITS and BITS[source] <= _DIGITS[dtype]
        return out if exact else rounded(b, out, dtype)
    return out


def to_number(value: Operand, dtype: str) -> Operand:
    """A Python number as a number of dtype `dtype` (integers wrap); other operands as they are."""
    if not isinstance(value, (bool, int, float)):
        return value
    if dtype == "bool":
        return bool(value)
    if dtype in INTEGERS:
        low, high = LIMITS[dtype]
        return (int(value) - low) % (high - low + 1) + low
    return float(value)


def pointwise(
    b: GraphBuilder,
    function: Callable[..., Reg],
    operands: Sequence[Operand],
    dtype: str,
    result: str | None = None,
    *,
    round_numbers: bool = False,
    shape: Sequence[Size] | None = None,
    own: Sequence[int] = (),
) -> View:
    """function(operands) at every point: operands as dtype `dtype` (those whose number is in `own`
    in their own register type), the result stored as `result` (default `dtype`). `round_numbers`:
    numbers, too, are rounded to `dtype` first, as comparisons do."""
    (made,) = pointwise_many(
        b, lambda *regs: (function(*regs),), operands, dtype, (result or dtype,),
        round_numbers=round_numbers, shape=shape, own=own,
    )  # fmt: skip
    return made


def pointwise_many(
    b: GraphBuilder,
    function: Callable[..., tuple[Reg, ...]],
    operands: Sequence[Operand],
    dtype: str,
    results: Sequence[str],
    *,
    round_numbers: bool = False,
    shape: Sequence[Size] | None = None,
    own: Sequence[int] = (),
) -> tuple[View, ...]:
    """As `pointwise`, with several results."""
    computable(b.operation, dtype)
    for name in results:
        computable(b.operation, name)
    values: list[View | Scalar | int | float | bool] = []
    for number, operand in enumerate(operands):
        plain = operand.value if isinstance(operand, ZeroDim) else operand
        if number not in own:
            plain = to_number(plain, dtype)  # type: ignore[assignment]
        if isinstance(plain, complex):
            computable(b.operation, "complex64")
        values.append(plain)  # type: ignore[arg-type]
    memo: list[str | None] = [o.dtype if isinstance(o, View) else None for o in values]

    def inner(*regs: Reg) -> tuple[Reg, ...]:
        ready = []
        for number, (reg, source) in enumerate(zip(regs, memo, strict=True)):
            if number in own:
                ready.append(reg)
            elif source is None and round_numbers:
                ready.append(rounded(b, f.cast(reg, REGISTER[dtype]), dtype))
            else:
                ready.append(converted(b, reg, source, dtype))
        return function(*ready)

    return b.map_many(inner, *values, dtypes=tuple(results), shape=shape)


def size_register(maker: Reg, size: Size) -> Reg:
    """A size as an int64 register: a constant, or computed from the launch's size symbols."""
    number = known(size)
    if number is not None:
        return maker.const("l", number)
    if isinstance(size, Var):
        return maker.scalar(size.name, "l")
    if isinstance(size, Binary):
        left, right = size_register(maker, size.left), size_register(maker, size.right)
        match size.op:
            case "+":
                return left + right
            case "-":
                return left - right
            case "*":
                return left * right
            case "//":
                return left // right
            case "%":
                return left % right
    raise Unsupported("sizes", str(size), "no unit computes this expression")
