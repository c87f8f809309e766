"""Chebyshev's polynomials of four kinds, plain and shifted.

The degree is a tensor too, so that no loop over it can be written: the recurrence is taken as far
as it pays, each point keeps the value of its own degree, and beyond a closed form is. (Hermite's,
Laguerre's and Legendre's have none: the CPU computes them.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.lower.promote import Operand, float_type, pointwise
from openspyre.compiler.lower.registry import lowers
from openspyre.compiler.view import View
from openspyre.program import body as f
from openspyre.program.body import Reg

STEPS = 40
"""The degree up to which points outside of [-1, 1] take the recurrence."""


@dataclass(frozen=True)
class Kind:
    """A kind of Chebyshev's polynomials. `first` of 2 x: degree 1. Closed forms of the angle and
    the degree inside and outside of [-1, 1] (there for |x|, and for the parity of negative x);
    `one`: the value at 1 and, times (-1)^n, `minus` at -1; `limit`: the highest degree that
    PyTorch takes the recurrence for inside."""

    first: Callable[[Reg], Reg]
    inside: Callable[[Reg, Reg], Reg]
    outside: Callable[[Reg, Reg], Reg]
    mirrored: Callable[[Reg, Reg], Reg]
    one: Callable[[Reg], Reg]
    minus: Callable[[Reg], Reg]
    limit: int


def _odd(n: Reg) -> Reg:
    return n + n + 1.0


def _half_v(t: Reg, n: Reg) -> Reg:
    return f.cosh((n + 0.5) * t) / f.cosh(t * 0.5)


def _half_w(t: Reg, n: Reg) -> Reg:
    return f.sinh((n + 0.5) * t) / f.sinh(t * 0.5)


KINDS = {
    "t": Kind(
        lambda double: double * 0.5,
        lambda t, n: f.cos(n * t),
        lambda t, n: f.cosh(n * t), lambda t, n: f.cosh(n * t),
        lambda n: n.like(1.0), lambda n: n.like(1.0), 6,
    ),
    "u": Kind(
        lambda double: double,
        lambda t, n: f.sin((n + 1.0) * t) / f.sin(t),
        lambda t, n: f.sinh((n + 1.0) * t) / f.sinh(t),
        lambda t, n: f.sinh((n + 1.0) * t) / f.sinh(t),
        lambda n: n + 1.0, lambda n: n + 1.0, 8,
    ),
    "v": Kind(
        lambda double: double - 1.0,
        lambda t, n: f.cos((n + 0.5) * t) / f.cos(t * 0.5),
        _half_v, _half_w, lambda n: n.like(1.0), _odd, 8,
    ),
    "w": Kind(
        lambda double: double + 1.0,
        lambda t, n: f.sin((n + 0.5) * t) / f.sin(t * 0.5),
        _half_w, _half_v, _odd, lambda n: n.like(1.0), 8,
    ),
}  # fmt: skip


def _recurrence(
    x: Reg, n: Reg, second: Reg, steps: int, following: Callable[[int, Reg, Reg], Reg]
) -> Reg:
    """The value of degree n, for n up to `steps`: `second` is that of degree 1."""
    before, now = x.like(1.0), second
    found = f.where(f.equal(n, 1.0), now, before)
    for degree in range(2, steps + 1):
        before, now = now, following(degree, now, before)
        found = f.where(f.equal(n, float(degree)), now, found)
    return found


def chebyshev(kind: Kind, x: Reg, n: Reg) -> Reg:
    """The polynomial of degree n at x."""
    n = f.trunc(n)
    double = x + x
    near = _recurrence(
        x, n, kind.first(double), STEPS, lambda degree, now, before: double * now - before
    )
    size = abs(x)
    odd = f.equal(n - f.trunc(n * 0.5) * 2.0, 1.0)
    sign = f.where(odd, x.like(-1.0), x.like(1.0))
    negative = x < 0.0
    angle = f.acosh(f.maximum(size, 1.0))
    far = f.where(negative, sign * kind.mirrored(angle, n), kind.outside(angle, n))
    found = f.where(n > float(STEPS), far, near)
    inside = kind.inside(f.acos(x), n)
    found = f.where((size < 1.0) & (n > float(kind.limit)), inside, found)
    found = f.where(f.equal(x, 1.0), kind.one(n), found)
    found = f.where(f.equal(x, -1.0), sign * kind.minus(n), found)
    return f.where(n < 0.0, x.like(0.0), found)


def _registers(name: str, function: Callable[[Reg, Reg], Reg]) -> None:
    @lowers(
        f"aten.special_{name}.default", f"aten.special_{name}.x_scalar",
        f"aten.special_{name}.n_scalar",
    )  # fmt: skip
    def lowering(b: GraphBuilder, x: Operand, n: Operand) -> View:
        return pointwise(b, function, [x, n], float_type(x, n))


def _registers_chebyshev(letter: str, kind: Kind) -> None:
    name = f"chebyshev_polynomial_{letter}"
    _registers(name, lambda x, n: chebyshev(kind, x, n))
    _registers(f"shifted_{name}", lambda x, n: chebyshev(kind, x + x - 1.0, n))


for _letter, _kind in KINDS.items():
    _registers_chebyshev(_letter, _kind)
