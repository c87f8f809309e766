"""Sizes of tensors: integers, or expressions over the symbols of a graph.

A size is an `int` wherever it is known; else an `Expr` over names of `Graph.symbols`. Imports no
torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from openspyre.program.expr import Binary, Expr, expr

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


def value_of(value: Size, symbols: Mapping[str, int]) -> int:
    """The number under `symbols`. Raises ExprError for one that is missing."""
    return value if isinstance(value, int) else value.evaluate(symbols)


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
    """Whether two sizes are certainly equal: equal numbers, or the same sum of products."""
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    return size_of(left) == size_of(right) or _terms(left) == _terms(right)


def _terms(value: Size) -> dict[tuple[str, ...], int]:
    """A size as a sum of products: how often each product of factors (their texts, sorted) occurs.
    What is neither sum nor product is a factor."""
    if isinstance(value, Binary) and value.op in ("+", "-", "*"):
        left, right = _terms(value.left), _terms(value.right)
        found: dict[tuple[str, ...], int] = {}
        if value.op == "*":
            for a, n in left.items():
                for b, m in right.items():
                    key = tuple(sorted((*a, *b)))
                    found[key] = found.get(key, 0) + n * m
        else:
            found = dict(left)
            for key, n in right.items():
                found[key] = found.get(key, 0) + (n if value.op == "+" else -n)
        return {key: n for key, n in found.items() if n}
    number = known(value)
    if number is not None:
        return {(): number} if number else {}
    if isinstance(value, Binary) and value.op == "//":
        whole, part = _terms(value.left), known(value.right)
        if part is not None and part > 0 and all(n % part == 0 for n in whole.values()):
            return {key: n // part for key, n in whole.items()}
    return {(str(value),): 1}


def quotient(whole: Size, part: Size) -> Size | None:
    """whole / part when that is certainly a whole number, else None."""
    a, b = known(whole), known(part)
    if a is not None and b is not None:
        return a // b if b > 0 and a % b == 0 else None
    if same(whole, part):
        return 1
    if b == 1:
        return whole
    above, left = _counted(whole)
    below, right = _counted(part)
    for factor in right:
        if factor not in left:
            return None
        left.remove(factor)
    return times(above // below, product(left)) if below > 0 and above % below == 0 else None


def _counted(value: Size) -> tuple[int, list[Size]]:
    """The factors of a product: the numbers among them multiplied, and the others."""
    factors = factors_of(value)
    numbers = [n for f in factors if (n := known(f)) is not None]
    return math.prod(numbers), [f for f in factors if known(f) is None]


def factors_of(value: Size) -> list[Size]:
    """The factors of a product, as it is written."""
    if isinstance(value, Binary) and value.op == "*":
        return factors_of(value.left) + factors_of(value.right)
    return [size_of(value)]


def text(value: Size) -> str:
    """For listings."""
    return str(value)
