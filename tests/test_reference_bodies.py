"""Formats and body operations of the reference executor, held against Python's own numbers, torch
and the slow conversions of openspyre.formats."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given as draw
from hypothesis import settings
from hypothesis import strategies as st
from reference_programs import Given, Tiles, compute, given, same

from openspyre.formats import (
    BFLOAT,
    FP8_E4M3FN,
    FP8_E5M2,
    HALF,
    BinaryFormat,
    Format,
    Numerics,
    TieRule,
    encode_dl16,
)
from openspyre.program import ProgramBuilder
from openspyre.program import body as f
from openspyre.program.body import BodyFunction
from openspyre.program.model import Node
from openspyre.program.ops import BODY_OP, BODY_OPS
from openspyre.reference import numbers
from openspyre.reference.body import operation
from openspyre.reference.functions import FUNCTIONS

F32, I32, I64 = np.float32, np.int32, np.int64
_SMALL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.7, -3.7, 1e-45, -1e-40)
_LARGE = (8388607.5, -8388609.0, 2147483647.0, -2147483648.0, 1e19, 3e38, -3e38)
EDGES = np.array([*_SMALL, *_LARGE, math.inf, -math.inf, math.nan], dtype=F32)
INTEGERS = [0, 1, -1, 2, -2, 3, -3, 7, 31, 32, 33, 63, 64, -64, 255, 1 << 20, -(1 << 20)]


def floats(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(F32)


# --- formats


@pytest.mark.parametrize("tie", list(TieRule))
@settings(max_examples=20, deadline=None)
@draw(seed=st.integers(0, 2**32 - 1))
def test_dlfloat16_codes_equal_the_slow_law(tie: TieRule, seed: int) -> None:
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**32, 200, dtype=np.uint32)
    near = (rng.integers(80, 170, 200) << 23 | rng.integers(0, 2**9, 200) << 14).astype(np.uint32)
    half = near | np.uint32(0x2000)
    sign = rng.integers(0, 2, 200).astype(np.uint32) << np.uint32(31)
    values = np.concatenate([bits, (near | sign), (half | sign), (half | sign) + 1]).view(F32)
    numerics = Numerics(tie=tie)
    got = numbers.encode(values, Format.SEN169_FP16, numerics)
    assert got.tolist() == [encode_dl16(float(v), numerics) for v in values]


@pytest.mark.parametrize(
    ("format", "law"),
    [
        (Format.IEEE_FP16, HALF),
        (Format.BFLOAT16, BFLOAT),
        (Format.SEN143_FP8, FP8_E4M3FN),
        (Format.SEN152_FP8, FP8_E5M2),
    ],
)
def test_float_codes_equal_the_slow_law(format: Format, law: BinaryFormat) -> None:
    codes = np.arange(1 << law.bits).astype(numbers.codes_type(format))
    numerics = Numerics()
    values = numbers.decode(codes, format, numerics)
    for code in range(0, 1 << law.bits, 1 if law.bits == 8 else 7):
        want = law.decode(code)
        assert values[code] == want or (math.isnan(want) and np.isnan(values[code]))
    finite = np.unique(values[np.isfinite(values)])[:: 1 if law.bits == 8 else 97]
    middles = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(F32)
    above, below = np.nextafter(middles, F32(9e9)), np.nextafter(middles, F32(-9e9))
    limits = np.array([448, 464, 465, 480, 61440, 61441, 65519.9, 65520], dtype=F32)
    tries = np.concatenate([finite, middles, above, below, EDGES, limits])
    got = numbers.encode(tries, format, numerics)
    assert got.tolist() == [law.encode(float(v)) for v in tries]


def test_nan_has_one_code_in_every_format() -> None:
    odd = np.array([0xFFC00001, 0x7F800001, 0xFFFFFFFF], dtype=np.uint32).view(F32)
    for format, code in [
        (Format.IEEE_FP32, 0x7FC00000),
        (Format.IEEE_FP16, 0x7E00),
        (Format.BFLOAT16, 0x7FC0),
        (Format.SEN169_FP16, 0x7FFF),
        (Format.SEN143_FP8, 0x7F),
        (Format.SEN152_FP8, 0x7F),
    ]:
        assert numbers.encode(odd, format, Numerics()).tolist() == [code] * 3


def test_registers_and_formats_must_agree() -> None:
    with pytest.raises(ValueError, match="cast it first"):
        numbers.encode(np.ones(1, F32), Format.IEEE_INT32, Numerics())
    with pytest.raises(ValueError, match="cast it first"):
        numbers.encode(np.ones(1, I32), Format.IEEE_FP32, Numerics())
    truth = np.array([True, False])
    assert numbers.encode(truth, Format.SEN169_FP16, Numerics()).tolist() == [0x3E00, 0]
    assert numbers.encode(truth, Format.SENINT8, Numerics()).tolist() == [1, 0]
    wide = np.array([300, -300], dtype=I32)
    assert numbers.encode(wide, Format.SENINT8, Numerics()).tolist() == [300 % 256, -300 % 256]


# --- body operations


def elementwise(function: BodyFunction, dtype: str, *arrays: np.ndarray) -> np.ndarray:
    """One MAP over vectors."""
    names = [f"x{i}" for i in range(len(arrays))]
    kind = {F32: "float32", I32: "int32", I64: "int64"}

    def work(b: ProgramBuilder, t: Tiles) -> None:
        over = {"n": len(arrays[0])}
        b.map(over, t["y"]["n"], function, *(t[name]["n"] for name in names))

    inputs = {n: given(a, kind[a.dtype.type]) for n, a in zip(names, arrays, strict=True)}
    return compute(work, inputs, {"y": Given((len(arrays[0]),), dtype)})["y"]


def pairs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.meshgrid(values, values)
    return a.ravel().copy(), b.ravel().copy()


UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round_even": torch.round,
    "trunc": torch.trunc,
    "frac": torch.frac,
    # Not torch.sqrt: on some processors its vector library is off by a unit in the last place.
    "sqrt": lambda x: torch.from_numpy(np.sqrt(x.numpy())),
    "reciprocal": torch.reciprocal,
}


@pytest.mark.parametrize("op", UNARY)
def test_float_unary_operations_equal_torch(op: str) -> None:
    x = np.concatenate([EDGES, floats(1, 100, scale=50)])
    want = UNARY[op](torch.from_numpy(x)).numpy()
    if op == "sign":
        want = np.where(np.isnan(x), x, want)  # NaN stays NaN here
    same(elementwise(lambda r: f.apply(op, r), "float32", x), want)


def test_relu_keeps_nan_and_the_sign_of_zero() -> None:
    x = np.array([-1, -0.0, 0.0, 2, math.nan, math.inf, -math.inf], dtype=F32)
    want = np.array([0, -0.0, 0.0, 2, math.nan, math.inf, 0], dtype=F32)
    same(elementwise(f.relu, "float32", x), want)


BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "floor_div": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc_div": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
}


@pytest.mark.parametrize("op", BINARY)
def test_float_binary_operations_equal_torch(op: str) -> None:
    x, y = pairs(np.concatenate([EDGES, floats(2, 12, scale=9)]))
    got = elementwise(lambda a, b: f.apply(op, a, b), "float32", x, y)
    with np.errstate(all="ignore"):
        want = BINARY[op](torch.from_numpy(x), torch.from_numpy(y)).numpy()
    same(got, want)


@pytest.mark.parametrize("op", ["fmod", "remainder"])
def test_float_remainders_are_exact(op: str) -> None:
    """torch's own are not, where the divisor is subnormal."""

    def law(a: float, b: float) -> float:
        if math.isnan(a) or math.isnan(b) or math.isinf(a) or b == 0:
            return math.nan
        rest = math.fmod(a, b)  # exact, also in float32
        if op == "remainder" and rest != 0 and (rest < 0) != (b < 0):
            return float(F32(rest) + F32(b))
        return rest

    x, y = pairs(np.concatenate([EDGES, floats(2, 12, scale=9)]))
    want = np.array([law(float(a), float(b)) for a, b in zip(x, y, strict=True)], dtype=F32)
    same(elementwise(lambda a, b: f.apply(op, a, b), "float32", x, y), want)


def test_extrema_take_nan_and_keep_the_first_of_equal_zeros() -> None:
    x, y = pairs(np.array([0.0, -0.0, 1, -1, math.nan, math.inf, -math.inf], dtype=F32))
    for op, better in (("max", np.greater), ("min", np.less)):
        want = np.array(
            [b if better(b, a) or math.isnan(b) else a for a, b in zip(x, y, strict=True)], F32
        )
        same(elementwise(lambda a, b, op=op: f.apply(op, a, b), "float32", x, y), want)


def test_copysign_takes_a_nan_as_plus() -> None:
    x = np.array([1, -1, 2, -2], dtype=F32)
    y = np.array([-0.0, 3, math.nan, -math.nan], dtype=F32)
    same(elementwise(f.copysign, "float32", x, y), np.array([-1, 1, 2, 2], dtype=F32))


COMPARISONS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


@pytest.mark.parametrize("op", COMPARISONS)
@pytest.mark.parametrize("type_", [F32, I32, I64])
def test_comparisons_give_truth(op: str, type_: type[np.generic]) -> None:
    values = EDGES if type_ is F32 else np.array(INTEGERS, dtype=type_)
    x, y = pairs(values)
    got = elementwise(lambda a, b: f.apply(op, a, b), "int32", x, y)
    same(got, COMPARISONS[op](x, y).astype(I32))


def wrap(value: int, width: int) -> int:
    return (value + (1 << (width - 1))) % (1 << width) - (1 << (width - 1))


def c_div(a: int, b: int) -> int:
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def shift_right_logical(a: int, b: int, width: int) -> int:
    return wrap((a % (1 << width)) >> b, width) if 0 <= b < width else 0


# Python's own integers, with the width at the end.
WHOLE: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda a, b, w: a + b,
    "sub": lambda a, b, w: a - b,
    "mul": lambda a, b, w: a * b,
    "min": lambda a, b, w: min(a, b),
    "max": lambda a, b, w: max(a, b),
    "floor_div": lambda a, b, w: 0 if b == 0 else a // b,
    "remainder": lambda a, b, w: a if b == 0 else a % b,
    "trunc_div": lambda a, b, w: c_div(a, b),
    "fmod": lambda a, b, w: a - c_div(a, b) * b,
    "and": lambda a, b, w: a & b,
    "or": lambda a, b, w: a | b,
    "xor": lambda a, b, w: a ^ b,
    "shl": lambda a, b, w: a << b if 0 <= b < w else 0,
    "shr": lambda a, b, w: a >> b if 0 <= b < w else -(a < 0),
    "shr_logical": shift_right_logical,
}


@pytest.mark.parametrize("op", WHOLE)
@pytest.mark.parametrize(("type_", "dtype", "width"), [(I32, "int32", 32), (I64, "int64", 64)])
def test_n4_integer_operations_equal_python(
    op: str, type_: type[np.generic], dtype: str, width: int
) -> None:
    lowest, highest = -(1 << (width - 1)), (1 << (width - 1)) - 1
    rng = np.random.default_rng(5)
    more = [int(v) for v in rng.integers(lowest, highest, 6)]
    x, y = pairs(np.array([*INTEGERS, *more, lowest, highest], dtype=type_))
    got = elementwise(lambda a, b: f.apply(op, a, b), dtype, x, y)
    want = [wrap(WHOLE[op](int(a), int(b), width), width) for a, b in zip(x, y, strict=True)]
    assert got.tolist() == want


def test_integer_unary_operations_wrap() -> None:
    x = np.array([0, 5, -5, -(2**31)], dtype=I32)
    assert elementwise(lambda r: -r, "int32", x).tolist() == [0, -5, 5, -(2**31)]
    assert elementwise(abs, "int32", x).tolist() == [0, 5, 5, -(2**31)]
    assert elementwise(lambda r: f.apply("sign", r), "int32", x).tolist() == [0, 1, -1, -1]
    assert elementwise(lambda r: ~r, "int32", x).tolist() == [-1, -6, 4, 2**31 - 1]


def test_truth_operations_and_where() -> None:
    x, y = pairs(np.array([0, 1], dtype=I32))
    a, b = x != 0, y != 0

    def logic(op: str) -> np.ndarray:
        return elementwise(
            lambda r, s: f.apply(op, f.not_equal(r, 0), f.not_equal(s, 0)), "int32", x, y
        )

    assert logic("and").tolist() == (a & b).astype(int).tolist()
    assert logic("or").tolist() == (a | b).astype(int).tolist()
    assert logic("xor").tolist() == (a ^ b).astype(int).tolist()
    got = elementwise(lambda r, s: f.where(~f.equal(r, 0), s + 5, s - 5), "int32", x, y)
    assert got.tolist() == np.where(a, y + 5, y - 5).tolist()


def test_casts_saturate_wrap_and_round() -> None:
    x = np.concatenate([EDGES, np.array([2147483520.0, -2147483904.0, 9.3e18, -9.3e18], F32)])

    def to(low: int, high: int, v: float) -> int:
        if math.isnan(v):
            return 0
        return high if v == math.inf else low if v == -math.inf else min(max(int(v), low), high)

    got = elementwise(lambda r: f.cast(r, "i"), "int32", x)
    assert got.tolist() == [to(-(2**31), 2**31 - 1, float(v)) for v in x]
    got = elementwise(lambda r: f.cast(r, "l"), "int64", x)
    assert got.tolist() == [to(-(2**63), 2**63 - 1, float(v)) for v in x]
    got = elementwise(lambda r: f.cast(r, "b"), "int32", x)
    assert got.tolist() == [int(v != 0) for v in x]
    whole = np.array([0, 16777217, -16777219, 2**53 + 1, 2**63 - 1, -(2**63)], dtype=I64)
    same(elementwise(lambda r: f.cast(r, "f"), "float32", whole), whole.astype(F32))
    got = elementwise(lambda r: f.cast(r, "i"), "int32", whole)
    assert got.tolist() == [wrap(int(v), 32) for v in whole]


def test_bits_round_and_unit() -> None:
    x = np.array([1.0, -0.0, math.nan, -math.nan, math.inf], dtype=F32)
    got = elementwise(f.bits, "int32", x)
    assert got.tolist() == [0x3F800000, -(2**31), 0x7FC00000, 0x7FC00000, 0x7F800000]
    whole = np.array([0x3F800000, 0x40490FDB], dtype=I32)
    same(elementwise(f.bits, "float32", whole), whole.view(F32))
    values = floats(3, 64, scale=30)
    same(
        elementwise(lambda r: f.round_to(r, Format.BFLOAT16), "float32", values),
        torch.from_numpy(values).bfloat16().float().numpy(),
    )
    words = np.array([0, -1, 255, 256, 2**31 - 1], dtype=I32)
    want = (words.view(np.uint32) >> 8).astype(F32) * F32(2.0**-24)
    same(elementwise(f.unit, "float32", words), want)


def philox_law(key: int, counter: int) -> list[int]:
    """Ten rounds on Python integers."""
    low = 0xFFFFFFFF
    c, k = [counter & low, counter >> 32, 0, 0], [key & low, key >> 32]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(q >> 32) ^ c[1] ^ k[0], q & low, (p >> 32) ^ c[3] ^ k[1], p & low]
        k = [(k[0] + 0x9E3779B9) & low, (k[1] + 0xBB67AE85) & low]
    return c


def test_philox_words() -> None:
    assert philox_law(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]  # Random123's
    counters = np.array([0, 1, 2**32 - 1, 2**32, 2**63 - 1, -1], dtype=I64)
    for key in (0, 0x0123456789ABCDEF):
        for word in range(4):
            got = elementwise(
                lambda r, key=key, word=word: f.philox(r.const("l", key), r, word),
                "int32",
                counters,
            )
            want = [philox_law(key, int(c) % 2**64)[word] for c in counters]
            assert [int(v) % 2**32 for v in got] == want


@pytest.mark.parametrize("op", sorted(FUNCTIONS))
def test_functions_are_close_to_torch(op: str) -> None:
    """Their law is the extension's; here only that each is the function of its name."""
    x = np.linspace(0.05, 0.95, 70, dtype=F32) + F32(op == "acosh")
    y = np.linspace(0.5, 2, 70, dtype=F32)
    args = (x, y) if op in ("pow", "atan2") else (x,)
    tensors = [torch.from_numpy(a.astype(np.float64)) for a in args]
    if op == "gelu_tanh":
        want = torch.nn.functional.gelu(tensors[0], approximate="tanh")
    else:
        want = (getattr(torch, op, None) or getattr(torch.nn.functional, op))(*tensors)
    got = elementwise(lambda *regs: f.apply(op, *regs), "float32", *args)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-6)


def _operations() -> list[tuple[str, str, object, int]]:
    """(operation, type, immediate, its code) of everything with operands that is not a function."""
    out: list[tuple[str, str, object, int]] = []
    for op in BODY_OPS:
        if not op.operands or op.name in FUNCTIONS:
            continue
        for type_ in op.types:
            if op.name == "cast":
                out += [(op.name, type_, to, code) for code, to in enumerate("filb")]
            elif op.name == "bits":
                to = "i" if type_ == "f" else "f"
                out.append((op.name, type_, to, "filb".index(to)))
            elif op.name == "round":
                formats = [one for one in Format if numbers.letter_of(one) == "f"]
                out += [(op.name, type_, one.name, list(Format).index(one)) for one in formats]
            elif op.name == "philox":
                out += [(op.name, type_, word, word) for word in range(4)]
            else:
                out.append((op.name, type_, None, 0))
    return out


@pytest.mark.parametrize(("op", "type_", "immediate", "code"), _operations())
def test_simple_operations_equal_the_machines(
    op: str, type_: str, immediate: object, code: int
) -> None:
    """Two implementations that share no line, on any bits at all."""
    from openspyre import _C

    rng = np.random.default_rng(40)
    kinds = {"f": np.uint32, "i": np.int32, "l": np.int64, "b": np.bool_}
    edges: dict[str, np.ndarray] = {
        "f": EDGES,
        "i": np.array([*INTEGERS, -(2**31), 2**31 - 1], dtype=I32),
        "l": np.array([*INTEGERS, -(2**63), 2**63 - 1, 2**31, -(2**31) - 1], dtype=I64),
        "b": np.array([False, True]),
    }

    def operand(letter: str, turn: int) -> np.ndarray:
        n = 4000
        if letter == "b":
            return rng.integers(0, 2, n).astype(np.bool_)
        low, high = (0, 2**32) if letter == "f" else (-(2**31), 2**31)
        if letter == "l":
            low, high = -(2**63), 2**63 - 1
        values = rng.integers(low, high, n, dtype=kinds[letter])
        values = values.view(F32) if letter == "f" else values
        a, b = pairs(edges[letter])
        chosen = (a, b)[turn % 2]
        near = values.copy()
        near[: len(chosen)] = chosen
        return near

    letters = [type_ if one == "T" else one for one in BODY_OP[op].operands]
    args = [operand(letter, turn) for turn, letter in enumerate(letters)]
    with np.errstate(all="ignore"):
        got = operation(Node(op, type_, (), immediate), args, Numerics())  # type: ignore[arg-type]
    want = _C._sfu_apply(op, type_, args, code)
    same(got, np.asarray(want))
