"""Special functions, by polynomials and asymptotic series in float32 (errors of about 1e-6).

Where a function has zeros (lgamma, digamma) the error is absolute near those that no fit covers.
Not here, for want of such a series: the Bessel functions j, y and k, airy, zeta, igamma, the
orthogonal polynomials.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.lower.pointwise import unary
from openspyre.compiler.lower.registry import constant, lowers
from openspyre.compiler.view import View
from openspyre.program import body as f
from openspyre.program.body import Reg


def _polynomial(x: Reg, coefficients: Sequence[float]) -> Reg:
    """coefficients[0] + coefficients[1] * x + ..., by Horner's rule."""
    total = x.like(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def _choose(x: Reg, *cases: tuple[Reg, Reg | float], other: Reg) -> Reg:
    """The value of the first case whose condition holds."""
    found = other
    for condition, value in reversed(cases):
        found = f.where(condition, value if isinstance(value, Reg) else x.like(value), found)
    return found


def _sine_turned(x: Reg) -> Reg:
    """sin(pi x) for |x| <= 1/2 with a small relative error, near 0 too."""
    y = x * math.pi
    terms = [(-1.0) ** n / math.factorial(2 * n + 1) for n in range(7)]
    return y * _polynomial(y * y, terms)


# --- gamma

# lgamma(1 + z) / z and lgamma(2 + z) / z in 2 z, for |z| <= 1/2: Chebyshev fits.
_LGAMMA_1 = (
    -0.5772156715393066, 0.41123440861701965, -0.10017281770706177, 0.033805426210165024,
    -0.012945602647960186, 0.005391052924096584, -0.002316146157681942, 0.0007828224333934486,
    -0.0003174330049660057, 0.0003689117729663849, -0.000179510738234967,
)  # fmt: skip
_LGAMMA_2 = (
    0.42278432846069336, 0.16123351454734802, -0.01683807000517845, 0.0025727038737386465,
    -0.00046163611114025116, 8.99633378139697e-05, -1.8528713553678244e-05,
    4.455835096450755e-06, -9.916478802551865e-07,
)  # fmt: skip


def _lgamma_positive(x: Reg) -> Reg:
    low = x < 0.5
    z = f.where(low, x, x - 1.0)
    around_one = z * _polynomial(z * 2.0, _LGAMMA_1)
    around_one = f.where(low, around_one - f.log(x), around_one)
    down, product = x, x.like(1.0)
    for _ in range(6):
        above = down > 2.5
        down = f.where(above, down - 1.0, down)
        product = f.where(above, product * down, product)
    w = down - 2.0
    middle = w * _polynomial(w * 2.0, _LGAMMA_2) + f.log(product)
    inverse = f.reciprocal(x)
    tail = inverse * (inverse * inverse * (-1.0 / 360.0) + 1.0 / 12.0)
    large = (x - 0.5) * (f.log(x) - 1.0) + (tail + 0.5 * math.log(2 * math.pi) - 0.5)
    return _choose(
        x, (f.isinf(x), math.inf), (x <= 1.5, around_one), (x < 8.0, middle), other=large
    )  # fmt: skip


def lgamma_of(x: Reg) -> Reg:
    """log |gamma(x)|."""
    negative = x < 0.5
    magnitude = _lgamma_positive(f.where(negative, x.like(1.0) - x, x))
    away = x - f.round_even(x)
    sine = abs(_sine_turned(away))
    mirrored = f.log(x.like(math.pi) / sine) - magnitude
    small = -f.log(abs(x))
    return _choose(
        x, (f.isinf(x), math.inf), (~negative, magnitude),
        (f.equal(away, 0.0) & ~f.equal(x, 0.0), math.inf), (abs(x) < 1e-7, small),
        (f.isnan(x), x), other=mirrored,
    )  # fmt: skip


@lowers("aten.lgamma", "aten.special_gammaln", "prims.lgamma")
def lgamma(b: GraphBuilder, self: View) -> View:
    return unary(b, lgamma_of, self)


@lowers("aten.mvlgamma")
def mvlgamma(b: GraphBuilder, self: View, p: Any) -> View:
    order = int(constant(p, f"{b.operation}: p"))

    def body(x: Reg) -> Reg:
        total = lgamma_of(x)
        for j in range(1, order):
            total = total + lgamma_of(x - 0.5 * j)
        return total + 0.25 * order * (order - 1) * math.log(math.pi)

    return unary(b, body, self)


_DIGAMMA_ROOT = 1.4616321449683623
_DIGAMMA_ROOT_LOW = 1.4616321325302124  # the root as a float32
# digamma(x) / (x - root) in 2 x - 3, for x in [1, 2].
_DIGAMMA = (
    0.9510558843612671, -0.21181374788284302, 0.06013459339737892, -0.018549844622612,
    0.005944863893091679, -0.001939295674674213, 0.0006149865221232176, -0.000201397982891649,
    9.347544983029366e-05, -3.200738865416497e-05,
)  # fmt: skip


def _digamma_positive(x: Reg) -> Reg:
    total, y = x.like(0.0), x
    below = y < 1.0
    total = f.where(below, -f.reciprocal(y), total)
    y = f.where(below, y + 1.0, y)
    for _ in range(6):
        above = y > 2.0
        y = f.where(above, y - 1.0, y)
        total = f.where(above, total + f.reciprocal(y), total)
    away = (y - _DIGAMMA_ROOT_LOW) - (_DIGAMMA_ROOT - _DIGAMMA_ROOT_LOW)
    near = away * _polynomial(y * 2.0 - 3.0, _DIGAMMA) + total
    inverse = f.reciprocal(x)
    square = inverse * inverse
    tail = square * _polynomial(square, (-1.0 / 12.0, 1.0 / 120.0, -1.0 / 252.0))
    return f.where(x < 8.0, near, f.log(x) - inverse * 0.5 + tail)


def digamma_of(x: Reg) -> Reg:
    """The logarithmic derivative of gamma."""
    negative = x < 0.0
    value = _digamma_positive(f.where(negative, x.like(1.0) - x, x))
    away = x - f.round_even(x)
    mirrored = value - x.like(math.pi) / f.tan(away * math.pi)
    return _choose(
        x, (f.isnan(x), x), (f.equal(x, 0.0), f.copysign(x.like(math.inf), -x)),
        (f.equal(x, math.inf), math.inf), (~negative, value),
        (f.equal(away, 0.0) | f.isinf(x), math.nan), other=mirrored,
    )  # fmt: skip


@lowers("aten.digamma", "aten.special_digamma", "aten.special_psi", "prims.digamma")
def digamma(b: GraphBuilder, self: View) -> View:
    return unary(b, digamma_of, self)


def trigamma_of(x: Reg) -> Reg:
    """The derivative of digamma."""
    mirrored = x < 0.5
    y = f.where(mirrored, x.like(1.0) - x, x)
    total = y.like(0.0)
    for _ in range(6):
        total = total + f.reciprocal(y * y)
        y = y + 1.0
    square = f.reciprocal(y * y)
    tail = _polynomial(square, (1.0 / 6.0, -1.0 / 30.0, 1.0 / 42.0)) * square
    total = total + (f.reciprocal(y) * 0.5 + 1.0 + tail) / y
    sine = _sine_turned(x - f.round_even(x))
    return f.where(mirrored, x.like(math.pi**2) / (sine * sine) - total, total)


@lowers("aten.polygamma", "aten.special_polygamma")
def polygamma(b: GraphBuilder, n: Any, self: View) -> View:
    order = int(constant(n, f"{b.operation}: n"))
    if order > HIGHEST_POLYGAMMA:
        raise Unsupported(
            b.operation, f"order {order}", f"orders up to {HIGHEST_POLYGAMMA} have a series here"
        )
    if order > 1:
        return unary(b, lambda x: _polygamma(x, order), self)
    return unary(b, trigamma_of if order else digamma_of, self)


HIGHEST_POLYGAMMA = 16
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66)


def _powered(x: Reg, power: int) -> Reg:
    """x to a whole power, by squaring."""
    found: Reg | None = None
    while power:
        if power & 1:
            found = x if found is None else found * x
        x, power = x * x, power >> 1
    assert found is not None
    return found


def _hurwitz(x: Reg, s: int) -> Reg:
    """The sum of (x + k)^-s for k = 0, 1, .. and x >= 1/2: some terms, then Euler and Maclaurin's
    formula for the rest."""
    total, y = x.like(0.0), x
    for _ in range(10):
        total = total + _powered(f.reciprocal(y), s)
        y = y + 1.0
    inverse = f.reciprocal(y)
    last = _powered(inverse, s)
    tail = last * y * (1.0 / (s - 1)) + last * 0.5
    factor = last * inverse
    rising = float(s)
    for j, number in enumerate(_BERNOULLI, 1):
        tail = tail + factor * (number * rising / math.factorial(2 * j))
        factor = factor * inverse * inverse
        rising *= (s + 2 * j - 1) * (s + 2 * j)
    return total + tail


def _cotangent_derivative(order: int) -> list[float]:
    """d^order/dx^order of pi cot(pi x), as a polynomial in the cotangent."""
    found = [0.0, math.pi]
    for _ in range(order):
        slope = [k * c for k, c in enumerate(found)][1:]
        turned = [0.0] * (len(slope) + 2)
        for k, c in enumerate(slope):
            turned[k] -= c * math.pi
            turned[k + 2] -= c * math.pi
        found = turned
    return found


def _polygamma(x: Reg, order: int) -> Reg:
    """The derivative of digamma of an order above 1."""
    mirrored = x < 0.5
    sign = -1.0 if order % 2 == 0 else 1.0
    value = _hurwitz(f.where(mirrored, x.like(1.0) - x, x), order + 1)
    value = value * (sign * math.factorial(order))
    away = x - f.round_even(x)
    cotangent = f.cos(away * math.pi) / _sine_turned(away)
    other = value * -sign - _polynomial(cotangent, _cotangent_derivative(order))
    return _choose(
        x, (f.isnan(x), x), (~mirrored, value), (f.equal(away, 0.0), sign * math.inf), other=other
    )  # fmt: skip


# --- Bessel functions of an imaginary argument

_BESSEL_LIMIT = 4.5
# exp(-x) I(x) sqrt(x) in 9 / x - 1, for x >= 4.5.
_I0_LARGE = (
    0.4048785865306854, 0.0063932910561561584, 0.0005365741089917719, 0.00010724615276558325,
    4.210062979836948e-05, 1.5083342987054493e-05, -7.903340701886918e-06, -1.079810863302555e-05,
    1.7005125130253873e-07, 2.4113548988680122e-06,
)  # fmt: skip
_I1_LARGE = (
    0.38167494535446167, -0.017995091155171394, -0.0008327582036145031, -0.00013804105401504785,
    -4.975233241566457e-05, -1.8042885130853392e-05, 7.852677299524657e-06, 1.1827779417217243e-05,
    6.473782576676967e-08, -2.5640476906119147e-06,
)  # fmt: skip
_TERMS = 14
_I0_SMALL = tuple(1.0 / math.factorial(k) ** 2 for k in range(_TERMS))
_I1_SMALL = tuple(0.5 / (math.factorial(k) * math.factorial(k + 1)) for k in range(_TERMS))


def _bessel(x: Reg, order: int, scaled: bool) -> Reg:
    size = abs(x)
    quarter = x * x * 0.25
    small = _polynomial(quarter, _I1_SMALL if order else _I0_SMALL)
    small = small * size if order else small
    at = x.like(2 * _BESSEL_LIMIT) / size - 1.0
    large = _polynomial(at, _I1_LARGE if order else _I0_LARGE) * f.rsqrt(size)
    near = size <= _BESSEL_LIMIT
    if scaled:
        value = f.where(near, small * f.exp(-size), large)
    else:
        half = f.exp(size * 0.5)
        value = f.where(near, small, f.where(f.isinf(size), size, large * half * half))
    return f.where(x < 0.0, -value, value) if order else value


@lowers("aten.i0", "aten.special_i0", "aten.special_modified_bessel_i0", "prims.bessel_i0")
def i0(b: GraphBuilder, self: View) -> View:
    return unary(b, lambda x: _bessel(x, 0, False), self)


@lowers("aten.special_i0e", "prims.bessel_i0e")
def i0e(b: GraphBuilder, self: View) -> View:
    return unary(b, lambda x: _bessel(x, 0, True), self)


@lowers("aten.special_i1", "aten.special_modified_bessel_i1", "prims.bessel_i1")
def i1(b: GraphBuilder, self: View) -> View:
    return unary(b, lambda x: _bessel(x, 1, False), self)


@lowers("aten.special_i1e", "prims.bessel_i1e")
def i1e(b: GraphBuilder, self: View) -> View:
    return unary(b, lambda x: _bessel(x, 1, True), self)


# --- the normal distribution


def _exp_square(x: Reg) -> Reg:
    """exp(x * x), with the rounding error of the square made good."""
    high = f.bits(f.bits(x) & -4096)
    low = x - high
    square = x * x
    rest = (high * high - square) + high * low * 2.0 + low * low
    found = f.exp(square) * (f.where(f.isfinite(rest), rest, x.like(0.0)) + 1.0)
    return f.where(square > 100.0, x.like(math.inf), found)


def erfcx_of(x: Reg) -> Reg:
    """exp(x^2) erfc(x): the rational fit of Numerical Recipes ("erfcc") without its exponential."""
    size = abs(x)
    t = x.like(2.0) / (size + 2.0)
    fit = _polynomial(
        t,
        (-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807,
         -1.13520398, 1.48851587, -0.82215223, 0.17087277),
    )  # fmt: skip
    value = t * f.exp(fit)
    return f.where(x < 0.0, _exp_square(x) * 2.0 - value, value)


@lowers("aten.special_erfcx", "prims.erfcx")
def erfcx(b: GraphBuilder, self: View) -> View:
    return unary(b, erfcx_of, self)


@lowers("aten.special_log_ndtr")
def log_ndtr(b: GraphBuilder, self: View) -> View:
    def body(x: Reg) -> Reg:
        t = x * math.sqrt(0.5)
        low = f.log(erfcx_of(-t) * 0.5) - t * t
        return f.where(x < -1.0, low, f.log1p(f.erfc(t) * -0.5))

    return unary(b, body, self)


@lowers("aten.special_ndtr")
def ndtr(b: GraphBuilder, self: View) -> View:
    return unary(b, lambda x: f.erfc(x * -math.sqrt(0.5)) * 0.5, self)


@lowers("aten.special_ndtri", "prims.ndtri")
def ndtri(b: GraphBuilder, self: View) -> View:
    def body(p: Reg) -> Reg:
        upper = p > 0.5
        q = f.where(upper, p.like(1.0) - p, p)
        middle = f.erfinv(p * 2.0 - 1.0) * math.sqrt(2.0)
        # Abramowitz and Stegun 26.2.23, then two of Halley's steps.
        t = f.sqrt(f.log(q) * -2.0)
        z = t - _polynomial(t, (2.515517, 0.802853, 0.010328)) / _polynomial(
            t, (1.0, 1.432788, 0.189269, 0.001308)
        )
        for _ in range(2):
            density = f.exp(z * z * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
            step = (q - f.erfc(z * math.sqrt(0.5)) * 0.5) / density
            z = z - step / (z * step * 0.5 + 1.0)
        tail = f.where(upper, z, -z)
        return _choose(
            p, (f.equal(p, 0.0), -math.inf), (f.equal(p, 1.0), math.inf), (q > 0.25, middle),
            ((p > 0.0) & (p < 1.0), tail), other=p.like(math.nan),
        )  # fmt: skip

    return unary(b, body, self)


# --- others


@lowers("aten.special_entr")
def entr(b: GraphBuilder, self: View) -> View:
    def body(x: Reg) -> Reg:
        return _choose(
            x, (f.isnan(x), x), (x > 0.0, -x * f.log(x)), (f.equal(x, 0.0), 0.0),
            other=x.like(-math.inf),
        )  # fmt: skip

    return unary(b, body, self)


@lowers("aten.sinc", "aten.special_sinc")
def sinc(b: GraphBuilder, self: View) -> View:
    def body(x: Reg) -> Reg:
        turned = x * math.pi
        return f.where(f.equal(x, 0.0), x.like(1.0), f.sin(turned) / turned)

    return unary(b, body, self)
