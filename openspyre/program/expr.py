"""Integer expressions of a Program: sizes, offsets and counts that differ by core, loop or launch.

An expression is a small tree over named variables: symbols (known at launch), grid digits, `core`,
the program's `let` names (known per core) and loop variables. Products with a loop variable need a
factor free of loop variables, so every address is (quasi-)affine in the loops. Division floors and
the divisor must be positive when evaluated. All values are signed 64-bit; leaving that range is an
error, in every executor alike.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

LOW, HIGH = -(2**63), 2**63 - 1


class ExprError(ValueError):
    """An expression that cannot be evaluated: names the expression and the rule."""


class Expr:
    """Base of `Const`, `Var` and `Binary`. Operators build trees and fold constants."""

    def __add__(self, other: Expr | int) -> Expr:
        return binary("+", self, other)

    def __radd__(self, other: int) -> Expr:
        return binary("+", other, self)

    def __sub__(self, other: Expr | int) -> Expr:
        return binary("-", self, other)

    def __rsub__(self, other: int) -> Expr:
        return binary("-", other, self)

    def __mul__(self, other: Expr | int) -> Expr:
        return binary("*", self, other)

    def __rmul__(self, other: int) -> Expr:
        return binary("*", other, self)

    def __floordiv__(self, other: Expr | int) -> Expr:
        return binary("//", self, other)

    def __mod__(self, other: Expr | int) -> Expr:
        return binary("%", self, other)

    # `==` must stay structural equality (dataclasses, dict keys): comparisons are functions.

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The value under `values`. Raises ExprError for unknown names, division by less than one
        and results beyond 64 bits."""
        raise NotImplementedError

    def names(self) -> Iterator[str]:
        """The variables it mentions, with repeats."""
        raise NotImplementedError

    @property
    def constant(self) -> int | None:
        """Its value when it has no variables."""
        return None


@dataclass(frozen=True)
class Const(Expr):
    value: int

    def evaluate(self, values: Mapping[str, int]) -> int:
        return self.value

    def names(self) -> Iterator[str]:
        return iter(())

    @property
    def constant(self) -> int | None:
        return self.value

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Var(Expr):
    name: str

    def evaluate(self, values: Mapping[str, int]) -> int:
        try:
            return values[self.name]
        except KeyError:
            raise ExprError(f"no value for {self.name!r}") from None

    def names(self) -> Iterator[str]:
        yield self.name

    def __str__(self) -> str:
        return self.name


OPERATORS = ("+", "-", "*", "//", "%", "min", "max", "==", "<", "<=")
"""In the order of their binary codes."""

_PRECEDENCE = {"==": 1, "<": 1, "<=": 1, "+": 2, "-": 2, "*": 3, "//": 3, "%": 3}


@dataclass(frozen=True)
class Binary(Expr):
    """`op` of `OPERATORS`; comparisons give 1 or 0."""

    op: str
    left: Expr
    right: Expr

    def evaluate(self, values: Mapping[str, int]) -> int:
        return _apply(self.op, self.left.evaluate(values), self.right.evaluate(values), self)

    def names(self) -> Iterator[str]:
        yield from self.left.names()
        yield from self.right.names()

    def __str__(self) -> str:
        if self.op in ("min", "max"):
            return f"{self.op}({self.left}, {self.right})"
        mine = _PRECEDENCE[self.op]
        left, right = str(self.left), str(self.right)
        if _precedence(self.left) < mine or (mine == 1 and _precedence(self.left) == 1):
            left = f"({left})"
        if _precedence(self.right) <= mine:
            right = f"({right})"
        return f"{left} {self.op} {right}"


def _precedence(expr: Expr) -> int:
    if isinstance(expr, Binary):
        return _PRECEDENCE.get(expr.op, 9)
    return 9 if not isinstance(expr, Const) or expr.value >= 0 else 2


def _apply(op: str, a: int, b: int, where: object) -> int:
    if op in ("//", "%") and b < 1:
        raise ExprError(f"{where}: the divisor is {b} and must be at least 1")
    if op == "+":
        value = a + b
    elif op == "-":
        value = a - b
    elif op == "*":
        value = a * b
    elif op == "//":
        value = a // b
    elif op == "%":
        value = a % b
    elif op == "min":
        value = min(a, b)
    elif op == "max":
        value = max(a, b)
    elif op == "==":
        value = int(a == b)
    elif op == "<":
        value = int(a < b)
    elif op == "<=":
        value = int(a <= b)
    else:
        raise ExprError(f"no operator {op!r}")
    if not LOW <= value <= HIGH:
        raise ExprError(f"{where}: {value} does not fit in 64 bits")
    return value


def expr(value: Expr | int | str) -> Expr:
    """An Expr of an int, a variable name or an Expr."""
    if isinstance(value, Expr):
        return value
    return Var(value) if isinstance(value, str) else Const(int(value))


def binary(op: str, left: Expr | int | str, right: Expr | int | str) -> Expr:
    """The tree `left op right`, folded where that is certain to change nothing but size."""
    a, b = expr(left), expr(right)
    if isinstance(a, Const) and isinstance(b, Const) and (op not in ("//", "%") or b.value > 0):
        return Const(_apply(op, a.value, b.value, f"{a} {op} {b}"))
    if isinstance(b, Const) and (
        (op in ("+", "-") and b.value == 0) or (op in ("*", "//") and b.value == 1)
    ):
        return a
    if isinstance(a, Const) and ((op == "+" and a.value == 0) or (op == "*" and a.value == 1)):
        return b
    if op == "*" and (a == Const(0) or b == Const(0)):
        return Const(0)
    return Binary(op, a, b)


def minimum(a: Expr | int | str, b: Expr | int | str) -> Expr:
    return binary("min", a, b)


def maximum(a: Expr | int | str, b: Expr | int | str) -> Expr:
    return binary("max", a, b)


def equal(a: Expr | int | str, b: Expr | int | str) -> Expr:
    """1 where they are equal, else 0."""
    return binary("==", a, b)


def less(a: Expr | int | str, b: Expr | int | str) -> Expr:
    """1 where a < b, else 0."""
    return binary("<", a, b)


def ceil_div(a: Expr | int | str, b: int) -> Expr:
    """a / b rounded up, for b >= 1."""
    return binary("//", binary("+", a, b - 1), b)
