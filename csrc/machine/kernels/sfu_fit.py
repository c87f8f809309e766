"""Derives the polynomial coefficients of sfu_math.h and sfu_math_wide.h.

Each is the Chebyshev interpolation (near-minimax) of a smooth function, in 60 digits; the printed
error is the largest relative error of the polynomial in exact arithmetic. Run by hand when a
function changes: `python csrc/machine/kernels/sfu_fit.py`. Needs mpmath alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath as mp  # type: ignore[import-untyped]

mp.mp.dps = 60
Function = Callable[[Any], Any]


def fit(name: str, function: Function, low: Any, high: Any, degree: int, kind: str) -> list[Any]:
    """Prints the coefficients, lowest first, for `kind` "f" (float32) or "d" (float64)."""
    low, high = mp.mpf(low), mp.mpf(high)
    n = degree + 1
    nodes = [mp.cos(mp.pi * (2 * i + 1) / (2 * n)) for i in range(n)]
    values = [function((high - low) / 2 * node + (high + low) / 2) for node in nodes]
    matrix = mp.matrix(n, n)
    for i, node in enumerate(nodes):
        for j in range(n):
            matrix[i, j] = ((high - low) / 2 * node + (high + low) / 2) ** j
    found = list(mp.lu_solve(matrix, mp.matrix(values)))
    worst = mp.mpf(0)
    for i in range(400):
        x = low + (high - low) * (i + mp.mpf("0.37")) / 400  # never 0
        exact = function(x)
        worst = max(worst, abs((mp.polyval(found[::-1], x) - exact) / exact))
    print(f"// {name}: degree {degree} on [{mp.nstr(low, 5)}, {mp.nstr(high, 5)}],", end=" ")
    print(f"relative error {mp.nstr(worst, 2)}")
    digits, suffix = (10, "f") if kind == "f" else (18, "")
    print("  " + ", ".join(mp.nstr(c, digits, min_fixed=-2, max_fixed=3) + suffix for c in found))
    return found


def erfcx(x: Any) -> Any:
    return mp.exp(x * x) * mp.erfc(x)


def folded(function: Function, centre: Any) -> Function:
    """function(x) in t = (x - c) / (x + c), which maps 0..inf to -1..1."""
    return lambda t: function(centre * (1 + t) / (1 - t))


def rest(function: Function, known: Function, power: int) -> Function:
    """(f(x) - its first Taylor terms) / x^power, in x^2: 60 digits outlive the cancellation."""
    return lambda square: (
        (function(mp.sqrt(square)) - known(mp.sqrt(square))) / mp.sqrt(square) ** power
    )


def itself(x: Any) -> Any:
    return x


def inverse_erf(y: Any) -> Any:
    return mp.erfinv(y)


def by_log(function: Function) -> Function:
    """erfinv(x) / x in w = -log(1 - x^2)."""

    def inner(w: Any) -> Any:
        x = mp.sqrt(-mp.expm1(-w))
        return function(x) / x

    return inner


def main() -> None:
    ln2 = mp.log(2)
    limit = ln2 / 2 * mp.mpf("1.01")
    exp_rest = lambda r: (mp.expm1(r) - r) / r**2  # noqa: E731
    fit("exp: (e^r - 1 - r) / r^2", exp_rest, -limit, limit + mp.mpf("1e-7"), 5, "f")
    fit("exp: (e^r - 1 - r) / r^2", exp_rest, -limit, limit + mp.mpf("1e-7"), 8, "d")
    fit("tanh: (tanh x - x) / x^3 in x^2", rest(mp.tanh, itself, 3), "1e-12", "0.40", 5, "f")
    scaled = lambda z: z * erfcx(z / mp.sqrt(2)) / 2  # noqa: E731
    for centre in ("1.5",):
        c = mp.mpf(centre)
        low, top = (mp.mpf("0.69") - c) / (mp.mpf("0.69") + c), (mp.mpf("14.5") - c) / (14.5 + c)
        fit(f"gelu: z erfcx(z / sqrt 2) / 2, c = {centre}", folded(scaled, c), low, top, 10, "f")
    half_erf = lambda s: mp.erf(mp.sqrt(s) / mp.sqrt(2)) / 2 / mp.sqrt(s)  # noqa: E731
    fit("gelu: erf(x / sqrt 2) / 2x in x^2", half_erf, "1e-12", "0.5", 4, "f")
    log_rest = lambda q: (2 * mp.atanh(mp.sqrt(q)) - 2 * mp.sqrt(q)) / mp.sqrt(q) ** 3  # noqa: E731
    fit("log: (2 atanh s - 2 s) / s^3 in s^2", log_rest, "1e-12", "0.0295", 6, "d")
    quarter = (mp.pi / 4 * mp.mpf("1.01")) ** 2
    fit("sin: (sin r - r) / r^3 in r^2", rest(mp.sin, itself, 3), "1e-12", quarter, 5, "d")
    fit(
        "cos: (cos r - 1 + r^2/2) / r^4 in r^2",
        rest(mp.cos, lambda r: 1 - r * r / 2, 4),
        "1e-10",
        quarter,
        5,
        "d",
    )
    tan8 = mp.mpf("0.4143") ** 2
    fit("atan: (atan x - x) / x^3 in x^2", rest(mp.atan, itself, 3), "1e-12", tan8, 8, "d")
    fit("asin: (asin x - x) / x^3 in x^2", rest(mp.asin, itself, 3), "1e-12", "0.2501", 9, "d")
    fit("erf: erf(x) / x in x^2", lambda s: mp.erf(mp.sqrt(s)) / mp.sqrt(s), "1e-12", 1, 9, "d")
    for centre in ("2",):
        c = mp.mpf(centre)
        low, top = (mp.mpf(1) / 2 - c) / (mp.mpf(1) / 2 + c), (11 - c) / (11 + c)
        fit(f"erfc: erfcx x, c = {centre}", folded(erfcx, c), low, top, 11, "d")
    inv = by_log(inverse_erf)
    fit("erfinv: erfinv(x) / x in w, w <= 6", inv, "1e-9", 6, 13, "d")
    fit("erfinv: in sqrt w, 6 <= w", lambda v: inv(v * v), mp.sqrt(6), mp.sqrt(17), 9, "d")


if __name__ == "__main__":
    main()
