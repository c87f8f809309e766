"""Sizes of tensors: integers, or expressions over the symbols of a graph.

A size is an `int` wherever it is known; else an `Expr` over names of `Graph.symbols`. Imports no
torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from openspyre.program.expr import Expr, expr

Size: TypeAlias = "int | Expr"


def size_of(value: Size) -> Size:
    """The canonical form: an int when the expression is constant."""
    if isinstance(value, Expr):
        known = value.constant
        return value if known is None else known
    return int(value)


def known(value: Size) -> int | None:
    """The number, or None for a symbolic size."""
    return value if isinstance(value, int) else value.constant


def times(left: Size, right: Size) -> Size:
    """left * right."""
    if isinstance(left, int) and isinstance(right, int):
        return left * right
    return size_of(expr(left) * right)


def plus(left: Size, right: Size) -> Size:
    """left + right."""
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    return size_of(expr(left) + right)


def product(values: Iterable[Size]) -> Size:
    """The product of all; 1 of none."""
    result: Size = 1
    for value in values:
        result = times(result, value)
    return result


def same(left: Size, right: Size) -> bool:
    """Whether two sizes are certainly equal: equal numbers, or the same expression."""
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    return size_of(left) == size_of(right)


def quotient(whole: Size, part: Size) -> Size | None:
    """whole / part when that is certainly a whole number, else None."""
    a, b = known(whole), known(part)
    if a is not None and b is not None:
        return a // b if b > 0 and a % b == 0 else None
    if same(whole, part):
        return 1
    if b == 1:
        return whole
    left, right = factors_of(whole), factors_of(part)
    for factor in right:
        if factor in left:
            left.remove(factor)
            continue
        number = known(factor)
        index = next(
            (i for i, f in enumerate(left) if number and (k := known(f)) and k % number == 0), None
        )
        if index is None or number is None:
            return None
        left[index] = (known(left[index]) or 0) // number
    return product(left)


def factors_of(value: Size) -> list[Size]:
    """The factors of a product, as it is written."""
    from openspyre.program.expr import Binary

    if isinstance(value, Binary) and value.op == "*":
        return factors_of(value.left) + factors_of(value.right)
    return [size_of(value)]


def text(value: Size) -> str:
    """For listings."""
    return str(value)
