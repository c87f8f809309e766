"""The SFU's functions: how far they are from the exact value, and what they give at the edges.

Every function is swept over dense samples of its domain and random bit patterns of all sizes, with
numpy's float64 (or mpmath, where float64 does not reach) as the judge; the largest error in units
of the last place of float32 is printed (`pytest -s`) and held to the bound beside the name. The
instruction sets are held equal in csrc/tests/test_sfu_ops.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import mpmath  # type: ignore[import-untyped]  # torch needs it, so it is there
import numpy as np
import numpy.typing as npt
import pytest
import torch

from openspyre import _C
from openspyre.program.ops import BODY_OPS

Array = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
INF, NAN = math.inf, math.nan


def apply(op: str, *args: npt.ArrayLike) -> Floats:
    """The law's result of a float operation."""
    arrays = [np.ascontiguousarray(a, dtype=np.float32).ravel() for a in args]
    return np.asarray(_C._sfu_apply(op, "f", arrays))


def samples(seed: int = 1, count: int = 40_000) -> Floats:
    """Arguments of every size: random bit patterns, dense lines, normal and log-normal numbers."""
    rng = np.random.default_rng(seed)
    patterns = rng.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    lines = [np.linspace(-a, a, count // 2) for a in (1, 2, 10, 100)]
    logs = rng.normal(size=count) * np.exp(3 * rng.normal(size=count))
    every = np.concatenate([patterns[np.isfinite(patterns)], *lines, rng.normal(size=count), logs])
    return every.astype(np.float32)


def units_off(got: Floats, exact: Array) -> Array:
    """Distance in units of the last place that float32 has at the exact value."""
    with np.errstate(all="ignore"):
        unit = np.ldexp(1.0, np.maximum(np.frexp(np.abs(exact))[1] - 24, -149))
        off = np.abs(got.astype(np.float64) - exact) / unit
        agree = (np.isnan(got) & np.isnan(exact)) | (got == exact.astype(np.float32))
    off[agree & ~np.isfinite(off)] = 0.0
    return np.where(np.isnan(off), INF, off)


def by_mpmath(function: Callable[[mpmath.mpf], mpmath.mpf]) -> Callable[[Array], Array]:
    def exact(x: Array) -> Array:
        with mpmath.workdps(70):
            return np.array([float(function(mpmath.mpf(v))) for v in x.tolist()])

    return exact


def each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    return lambda x: np.array([function(v) for v in x.tolist()])


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1.0) / (1 + e)


def gelu_tanh(x: Array) -> Array:
    return x * sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x * x * x))


def softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def mish(x: Array) -> Array:
    e = np.exp(np.minimum(x, 60))
    return x * (e * (e + 2) / (e * (e + 2) + 2))


def gelu(x: Array) -> Array:
    return 0.5 * x * each(math.erfc)(-x / math.sqrt(2))


# name: (largest error allowed, the exact function)
FUNCTIONS: dict[str, tuple[float, Callable[[Array], Array]]] = {
    "sqrt": (0.5, np.sqrt),
    "reciprocal": (0.5, lambda x: 1 / x),
    "rsqrt": (1.51, lambda x: 1 / np.sqrt(x)),
    "exp": (1.0, np.exp),
    "sigmoid": (2.0, sigmoid),
    "tanh": (1.5, np.tanh),
    "silu": (2.6, lambda x: x * sigmoid(x)),
    "gelu": (2.6, gelu),
    "gelu_tanh": (2.6, gelu_tanh),
    # In float64 inside: little more than the last rounding.
    "exp2": (0.51, np.exp2),
    "expm1": (0.51, np.expm1),
    "log": (0.51, np.log),
    "log2": (0.51, np.log2),
    "log10": (0.51, np.log10),
    "log1p": (0.51, np.log1p),
    "erf": (0.51, each(math.erf)),
    "erfc": (0.51, each(math.erfc)),
    "softplus": (0.51, softplus),
    "mish": (0.51, mish),
    "asin": (0.51, np.arcsin),
    "acos": (0.51, np.arccos),
    "atan": (0.51, np.arctan),
    "sinh": (0.51, np.sinh),
    "cosh": (0.51, np.cosh),
    "asinh": (0.51, np.arcsinh),
    "acosh": (0.51, np.arccosh),
    "atanh": (0.51, np.arctanh),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_as_exact_as_its_bound(name: str) -> None:
    bound, function = FUNCTIONS[name]
    x = samples()
    with np.errstate(all="ignore"):
        exact = function(x.astype(np.float64))
    off = units_off(apply(name, x), exact)
    worst = int(np.argmax(off))
    print(f"{name}: {off[worst]:.3f} units at {x[worst]!r}")
    assert off[worst] <= bound


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_circular_functions_are_exact_for_any_argument(name: str) -> None:
    """Up to 3.4e38, and where a float lies next to a multiple of pi / 2."""
    near = np.array([n * math.pi / 2 for n in range(-300, 300)], dtype=np.float32)
    worst_case = np.array([16367173 * 2.0**72, math.pi, math.pi / 2], dtype=np.float32)
    edges = np.array([2.0**22, 2.0**23, 2.0**23 - 1, 2.0**24, 3.4028235e38], dtype=np.float32)
    x = np.concatenate([samples(2, 2_000), near, worst_case, edges, -edges])
    off = units_off(apply(name, x), by_mpmath(getattr(mpmath, name))(x.astype(np.float64)))
    worst = int(np.argmax(off))
    print(f"{name}: {off[worst]:.3f} units at {x[worst]!r}")
    assert off[worst] <= 0.51


def test_erfinv_is_exact_to_the_last_float_below_one() -> None:
    near_one = 1 - np.logspace(-7.2, -1, 800)
    x = np.concatenate([np.linspace(-1, 1, 2001)[1:-1], near_one, np.logspace(-30, -1, 300)])
    x = x.astype(np.float32)
    x = x[np.abs(x) < 1]
    off = units_off(apply("erfinv", x), by_mpmath(mpmath.erfinv)(x.astype(np.float64)))
    print(f"erfinv: {off.max():.3f} units")
    assert off.max() <= 0.56


def test_pow_and_atan2_are_exact() -> None:
    rng = np.random.default_rng(3)
    x = np.abs(samples(4, 10_000))
    y = (rng.normal(size=x.size) * np.exp(2 * rng.normal(size=x.size))).astype(np.float32)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
    off = units_off(apply("pow", x, y), exact)
    print(f"pow: {off.max():.3f} units")
    assert off.max() <= 0.51
    a, b = samples(5, 10_000), samples(6, 10_000)
    size = min(a.size, b.size)
    a, b = a[:size], rng.permutation(b[:size])
    off = units_off(apply("atan2", a, b), np.arctan2(a.astype(np.float64), b.astype(np.float64)))
    print(f"atan2: {off.max():.3f} units")
    assert off.max() <= 0.51


EDGES: dict[str, list[tuple[float, float]]] = {
    "exp": [(INF, INF), (-INF, 0.0), (0.0, 1.0), (-0.0, 1.0), (89.0, INF), (-104.0, 0.0)],
    "exp2": [(INF, INF), (-INF, 0.0), (3.0, 8.0), (-149.0, 2.0**-149), (-151.0, 0.0)],
    "expm1": [(INF, INF), (-INF, -1.0), (0.0, 0.0), (-0.0, -0.0), (1e-40, 1e-40)],
    "log": [(INF, INF), (0.0, -INF), (-0.0, -INF), (-1.0, NAN), (-INF, NAN), (1.0, 0.0)],
    "log2": [(8.0, 3.0), (2.0**-149, -149.0), (0.0, -INF), (-1.0, NAN)],
    "log10": [(1000.0, 3.0), (0.0, -INF), (INF, INF)],
    "log1p": [(-1.0, -INF), (-2.0, NAN), (INF, INF), (-0.0, -0.0), (1e-40, 1e-40)],
    "sqrt": [(-1.0, NAN), (-0.0, -0.0), (INF, INF)],
    "rsqrt": [(0.0, INF), (INF, 0.0), (-1.0, NAN)],
    "reciprocal": [(0.0, INF), (-0.0, -INF), (-INF, -0.0)],
    "sigmoid": [(INF, 1.0), (-INF, 0.0), (0.0, 0.5)],
    "tanh": [(INF, 1.0), (-INF, -1.0), (-0.0, -0.0), (0.0, 0.0)],
    "silu": [(INF, INF), (-INF, -0.0), (0.0, 0.0), (-0.0, -0.0)],
    "gelu": [(INF, INF), (-INF, -0.0), (0.0, 0.0), (-0.0, -0.0), (-20.0, -0.0)],
    "gelu_tanh": [(INF, INF), (-INF, -0.0), (0.0, 0.0), (-0.0, -0.0)],
    "softplus": [(INF, INF), (-INF, 0.0), (0.0, 0.6931472)],
    "mish": [(INF, INF), (-INF, -0.0), (0.0, 0.0)],
    "relu": [(INF, INF), (-INF, 0.0), (-0.0, -0.0), (-1.0, 0.0)],
    "erf": [(INF, 1.0), (-INF, -1.0), (-0.0, -0.0)],
    "erfc": [(INF, 0.0), (-INF, 2.0), (0.0, 1.0)],
    "erfinv": [(1.0, INF), (-1.0, -INF), (1.5, NAN), (-0.0, -0.0)],
    "sin": [(INF, NAN), (-INF, NAN), (-0.0, -0.0), (0.0, 0.0), (1e-40, 1e-40)],
    "cos": [(INF, NAN), (0.0, 1.0)],
    "tan": [(INF, NAN), (-0.0, -0.0)],
    "asin": [(1.0, 1.5707964), (1.5, NAN), (-0.0, -0.0)],
    "acos": [(1.0, 0.0), (-1.0, 3.1415927), (-1.5, NAN)],
    "atan": [(INF, 1.5707964), (-INF, -1.5707964), (-0.0, -0.0)],
    "sinh": [(INF, INF), (-INF, -INF), (-0.0, -0.0)],
    "cosh": [(INF, INF), (-INF, INF), (0.0, 1.0)],
    "asinh": [(INF, INF), (-INF, -INF), (-0.0, -0.0)],
    "acosh": [(1.0, 0.0), (0.5, NAN), (-2.0, NAN), (INF, INF)],
    "atanh": [(1.0, INF), (-1.0, -INF), (2.0, NAN), (-0.0, -0.0)],
    "floor": [(-0.3, -1.0), (-0.0, -0.0), (0.3, 0.0), (INF, INF), (8388609.0, 8388609.0)],
    "ceil": [(-0.3, -0.0), (0.3, 1.0), (-INF, -INF)],
    "trunc": [(-1.7, -1.0), (-0.3, -0.0), (2.0**30, 2.0**30)],
    "round_even": [(0.5, 0.0), (1.5, 2.0), (-0.5, -0.0), (2.5, 2.0), (-2.5, -2.0)],
    "frac": [(-1.75, -0.75), (2.0, 0.0), (INF, NAN)],
    "sign": [(-3.0, -1.0), (0.0, 0.0), (-0.0, 0.0), (INF, 1.0)],
}


@pytest.mark.parametrize("name", EDGES)
def test_edges_of_a_function(name: str) -> None:
    """Values with their sign of zero; NaN in gives NaN."""
    given = [a for a, _ in EDGES[name]] + [NAN]
    wanted = np.array([b for _, b in EDGES[name]] + [NAN], dtype=np.float32)
    got = apply(name, given)
    np.testing.assert_array_equal(got, wanted)
    numbers = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(wanted[numbers]))


def test_every_float_function_is_held_here_or_is_exact_by_nature() -> None:
    unary = {op.name for op in BODY_OPS if op.operands == "T" and op.types == "f"}
    exact = {"relu", "floor", "ceil", "trunc", "round_even", "frac", "isnan", "isinf", "isfinite"}
    held = {*FUNCTIONS, "sin", "cos", "tan", "erfinv", *exact, "round"}
    assert unary == held


def special() -> Iterator[float]:
    yield from (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 16777216.0, 16777215.0, 3e38, INF, 1e-40)


def test_pow_has_the_edges_of_c() -> None:
    values = [s * v for v in special() for s in (1.0, -1.0)] + [NAN]
    x, y = (a.ravel() for a in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        x32, y32 = x.astype(np.float32), y.astype(np.float32)
        exact = np.power(x32.astype(np.float64), y32.astype(np.float64))
    got = apply("pow", x32, y32)
    assert units_off(got, exact).max() <= 0.51
    numbers = ~np.isnan(exact)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(exact[numbers]))


def test_atan2_has_the_edges_of_c() -> None:
    values = [s * v for v in (0.0, 1.0, 3e38, INF, 1e-40) for s in (1.0, -1.0)] + [NAN]
    y, x = (a.ravel().astype(np.float32) for a in np.meshgrid(values, values))
    exact = np.arctan2(y.astype(np.float64), x.astype(np.float64)).astype(np.float32)
    got = apply("atan2", y, x)
    np.testing.assert_array_equal(got, exact)
    numbers = ~np.isnan(exact)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(exact[numbers]))


@pytest.mark.parametrize("name", ["fmod", "remainder", "floor_div", "trunc_div"])
def test_division_with_rest_is_torchs(name: str) -> None:
    """Bit for bit what torch computes for float32 on the CPU, signs of zero included; but for some
    quotients beyond 2^60, where torch's vector code gives NaN and numpy's fmod is the judge."""
    rng = np.random.default_rng(7)
    a = np.concatenate([samples(8, 4_000), rng.integers(-40, 40, 4_000).astype(np.float32)])
    b = rng.permutation(a)
    edges = [s * v for v in (0.0, 1.0, 2.5, INF, 1e-40, 3e38) for s in (1.0, -1.0)] + [NAN]
    p, q = (m.ravel().astype(np.float32) for m in np.meshgrid(edges, edges))
    a, b = np.concatenate([a, p]), np.concatenate([b, q])
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    if name in ("fmod", "remainder"):
        exact = getattr(torch, name)(x, y).numpy()
    else:
        exact = torch.div(x, y, rounding_mode=name.removesuffix("_div")).numpy()
    got = apply(name, a, b)
    with np.errstate(all="ignore"):
        rest = np.fmod(a, b)
    if name in ("fmod", "remainder"):
        given_up = np.isnan(exact) & ~np.isnan(rest)
        with np.errstate(all="ignore"):
            moved = rest + np.where((rest != 0) & ((b < 0) != (rest < 0)), b, np.float32(0))
        exact = np.where(given_up, rest if name == "fmod" else moved, exact)
    np.testing.assert_array_equal(got, exact)
    numbers = ~np.isnan(exact)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(exact[numbers]))


def test_maximum_minimum_and_copysign() -> None:
    a = [1.0, NAN, 1.0, 0.0, -0.0, -INF]
    b = [2.0, 1.0, NAN, -0.0, 0.0, INF]
    np.testing.assert_array_equal(apply("max", a, b), [2, NAN, NAN, 0, 0, INF])
    np.testing.assert_array_equal(apply("min", a, b), [1, NAN, NAN, 0, 0, -INF])
    assert list(np.signbit(apply("max", [0.0, -0.0], [-0.0, 0.0]))) == [False, True]
    np.testing.assert_array_equal(apply("copysign", [3, -3, 3], [-0.0, 1, -NAN]), [-3, 3, 3])
