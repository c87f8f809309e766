"""Number formats: the Python reference and every instruction set of the C++, against oracles that
share no code with them (numpy casts, torch casts, and a search of the DLFloat16 grid).

The fixture `convert` runs a test four times: on `openspyre.formats` and on the extension with each
instruction set of the processor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openspyre import formats
from openspyre.formats import Format, HostType, Mode, Numerics, TieRule

ALL16 = np.arange(65536, dtype=np.uint16)
MAG = ALL16 & 0x7FFF
SETTINGS = [
    Numerics(tie=tie, merged_is_nan=nan) for tie, nan in itertools.product(TieRule, (False, True))
]
SETTING_IDS = [f"{s.tie.value}-{'nan' if s.merged_is_nan else 'inf'}" for s in SETTINGS]
ISAS = ("portable", "avx2", "avx512")
FP8 = {
    "float8_e4m3fn": (HostType.F8_E4M3FN, Format.SEN143_FP8, formats.FP8_E4M3FN),
    "float8_e5m2": (HostType.F8_E5M2, Format.SEN152_FP8, formats.FP8_E5M2),
}


class Convert(NamedTuple):
    """encode(host, format, array, numerics) and decode(format, host, array, numerics) -> bytes."""

    encode: Callable[[HostType, Format, np.ndarray, Numerics], bytes]
    decode: Callable[[Format, HostType, np.ndarray, Numerics], bytes]
    stride: int  # every how many of the half million float32 samples it is fast enough for

    def codes(self, host: HostType, array: np.ndarray, numerics: Numerics) -> np.ndarray:
        """Host values as DLFloat16 codes."""
        out = self.encode(host, Format.SEN169_FP16, array, numerics)
        return np.frombuffer(out, np.uint16)


def extension() -> Any:
    from openspyre import _C

    return _C


def settings_of(numerics: Numerics) -> tuple[str, str, bool]:
    return numerics.mode.value, numerics.tie.value, numerics.merged_is_nan


def reference() -> Convert:
    return Convert(
        lambda host, format, data, numerics: formats.encode(host, format, data.tobytes(), numerics),
        lambda format, host, data, numerics: formats.decode(format, host, data.tobytes(), numerics),
        stride=7,
    )


def native() -> Convert:
    c = extension()
    return Convert(
        lambda host, format, data, numerics: c.format_encode(
            host.name, format.name, data.tobytes(), *settings_of(numerics)
        ),
        lambda format, host, data, numerics: c.format_decode(
            format.name, host.name, data.tobytes(), *settings_of(numerics)
        ),
        stride=1,
    )


@pytest.fixture(params=["reference", *ISAS])
def convert(request: pytest.FixtureRequest) -> Iterator[Convert]:
    if request.param == "reference":
        yield reference()
        return
    c = extension()
    before = c.isa()
    if ISAS.index(request.param) > ISAS.index(c.best_isa()):
        with pytest.raises(ValueError, match=request.param):
            c.set_isa(request.param)
        assert c.isa() == before
        pytest.skip(f"this processor has no {request.param}, and the refusal was checked")
    c.set_isa(request.param)
    try:
        assert c.isa() == request.param
        yield native()
    finally:
        c.set_isa(before)


# ------------------------------------------------------------------------------------- oracles

# Values of the magnitude codes as rounding sees them: 0 stands at 2^-31 (whatever rounds there is
# zero) and 0x7FFF at 2^33 (whatever rounds there overflows).
GRID = np.ldexp(512.0 + np.arange(32768) % 512, np.arange(32768) // 512 - 40)

HALF_VALUES = ALL16.view(np.float16).astype(np.float64)
with np.errstate(invalid="ignore"):  # widening a signalling NaN raises the flag
    BF16_VALUES = (ALL16.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def oracle_codes(values: np.ndarray, tie: TieRule, largest: int = 0x7FFF) -> np.ndarray:
    """float64 -> DLFloat16 by searching the grid; finite magnitudes end at `largest`."""
    negative = np.signbit(values)
    mag = np.abs(np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0))
    low = np.clip(np.searchsorted(GRID, mag, side="right") - 1, 0, 0x7FFE)
    below, above = mag - GRID[low], GRID[low + 1] - mag  # exact: neighbours within a binade
    tied_up = {
        TieRule.TOWARD_POSITIVE: ~negative,
        TieRule.AWAY_FROM_ZERO: np.ones_like(negative),
        TieRule.TO_EVEN: low % 2 == 1,
        TieRule.TOWARD_ZERO: np.zeros_like(negative),
        TieRule.TO_ODD: low % 2 == 0,
    }[tie]
    code = low + ((above < below) | ((above == below) & tied_up))
    code = np.minimum(np.where(mag <= GRID[0], 0, code), largest)
    code = np.where(np.isinf(values), 0x7FFF, code) | np.where(negative, 0x8000, 0)
    return np.where(np.isnan(values), 0x7FFF, code).astype(np.uint16)


def oracle_values(merged_is_nan: bool) -> np.ndarray:
    """The float64 value of every DLFloat16 code."""
    mag = np.where(MAG == 0, 0.0, GRID[MAG])
    mag = np.where(MAG == 0x7FFF, np.inf, mag)
    values = np.where(ALL16 >= 0x8000, -mag, mag)
    return np.where(MAG == 0x7FFF, np.nan, values) if merged_is_nan else values


def same(got: np.ndarray, expected: np.ndarray) -> None:
    """Bit equality with the first differing index in the message."""
    assert got.dtype == expected.dtype and got.shape == expected.shape
    wrong = np.flatnonzero(got != expected)
    if wrong.size:
        i = int(wrong[0])
        pytest.fail(f"{wrong.size} differ, first at {i:#x}: {got[i]:#x}, expected {expected[i]:#x}")


def float32_samples() -> np.ndarray:
    """Around every code: its value, the tie above, their float32 neighbours, both signs; then
    specials and 100,000 random patterns."""
    at = GRID.astype(np.float32)
    tie = ((GRID[:-1] + GRID[1:]) / 2).astype(np.float32)
    zero, inf = np.float32(0), np.float32(np.inf)
    around = [np.nextafter(x, to) for x in (at, tie) for to in (zero, inf)]
    positive = np.concatenate([at, tie, *around])
    special = np.array(
        [
            0,
            1,
            0x7F_FFFF,
            0x80_0000,
            0x7F7F_FFFF,
            0x7F80_0000,
            0x7F80_0001,
            0x7FFF_FFFF,
            0x7FC0_0000,
        ],
        dtype=np.uint32,
    )
    random = np.random.default_rng(169).integers(0, 1 << 32, 100_000, dtype=np.uint32)
    bits = np.concatenate([positive.view(np.uint32), special])
    return np.concatenate([bits, bits | np.uint32(1 << 31), random])


FLOAT32 = float32_samples()
with np.errstate(invalid="ignore"):
    FLOAT32_VALUES = FLOAT32.view(np.float32).astype(np.float64)
FLOAT32_NAN = np.isnan(FLOAT32_VALUES)


# --------------------------------------------------------------------------- DLFloat16: vectors

N1 = [  # input as float32, its code, the value back
    (1.0, 0x3E00, 1.0),
    (1 + 2**-10, 0x3E01, 1.001953125),
    (float(np.float16(0.1)), 0x3733, 0.0999755859375),
    (-(1 + 2**-10), 0xBE00, -1.0),
    (1 / 3, 0x3AAB, 0.33349609375),
    (3.0, 0x4100, 3.0),
    (-2050.0, 0xD400, -2048.0),
    (-2.001953125, 0xC000, -2.0),
    (65504.0, 0x5E00, 65536.0),
    (70000.0, 0x5E23, 70016.0),
    (2**-24, 0x0E00, 2**-24),
    (2**-31, 0x0000, 0.0),
    (2**-31 * (1 + 2**-9), 0x0001, 2**-31 * (1 + 2**-9)),
    (1e12, 0x7FFF, math.inf),
    (-1e12, 0xFFFF, -math.inf),
    (8_573_157_376.0, 0x7FFE, 8_573_157_376.0),
    (0.59033203125, 0x3C5D, None),
]


@pytest.mark.parametrize(("value", "code", "back"), N1)
def test_n1_published_vectors(
    convert: Convert, value: float, code: int, back: float | None
) -> None:
    numerics = Numerics()
    got = convert.codes(HostType.F32, np.array([value], np.float32), numerics)
    assert int(got[0]) == code
    if back is not None:
        raw = convert.decode(Format.SEN169_FP16, HostType.F32, got, numerics)
        assert np.frombuffer(raw, np.float32)[0] == back


def test_n1_finite_halves_saturate_at_65472(convert: Convert) -> None:
    half = np.array([65504, -65504, np.inf, -np.inf, np.nan], np.float16)
    got = convert.codes(HostType.F16, half, Numerics())
    assert got.tolist() == [0x5DFF, 0xDDFF, 0x7FFF, 0xFFFF, 0x7FFF]


def test_n1_values_computed_beyond_float16_come_back_as_inf(convert: Convert) -> None:
    computed = np.array([65504, 70000, -70000, 65472], np.float32)
    codes = convert.codes(HostType.F32, computed, Numerics())
    back = convert.decode(Format.SEN169_FP16, HostType.F16, codes, Numerics())
    assert np.frombuffer(back, np.float16).tolist() == [np.inf, np.inf, -np.inf, 65472]


def test_b037_minus_65504_comes_back_as_minus_65472_and_inf_is_kept(convert: Convert) -> None:
    half = np.array([-65504, -np.inf, np.inf], np.float16)
    codes = convert.codes(HostType.F16, half, Numerics())
    back = convert.decode(Format.SEN169_FP16, HostType.F16, codes, Numerics())
    assert np.frombuffer(back, np.float16).tolist() == [-65472, -np.inf, np.inf]


def test_b038_floor_of_minus_2_001953125_is_minus_2_under_the_default_rule(
    convert: Convert,
) -> None:
    half = np.array([-2.001953125], np.float16)
    codes = convert.codes(HostType.F16, half, Numerics())
    values = np.frombuffer(
        convert.decode(Format.SEN169_FP16, HostType.F32, codes, Numerics()), np.float32
    )
    assert np.floor(values).tolist() == [-2.0]


# Public samples, each with the rules that reproduce it (hardware.md 3.3).
SAMPLES = [
    (0.59033203125, 0.5908, {"away_from_zero", "to_odd", "toward_positive"}),
    (0.1668701171875, 0.1667, {"toward_zero", "to_odd"}),
]


@pytest.mark.parametrize(("value", "seen", "rules"), SAMPLES)
def test_tie_rules_reproduce_the_public_samples_they_should(
    convert: Convert, value: float, seen: float, rules: set[str]
) -> None:
    fitting = set()
    for tie in TieRule:
        numerics = Numerics(tie=tie)
        codes = convert.codes(HostType.F16, np.array([value], np.float16), numerics)
        back = convert.decode(Format.SEN169_FP16, HostType.F32, codes, numerics)
        if round(float(np.frombuffer(back, np.float32)[0]), 4) == seen:
            fitting.add(tie.value)
    assert fitting == rules


# ------------------------------------------------------------------------ DLFloat16: exhaustive


@pytest.mark.parametrize("numerics", SETTINGS, ids=SETTING_IDS)
def test_all_float16_patterns_encode_as_the_grid_search_says(
    convert: Convert, numerics: Numerics
) -> None:
    expected = oracle_codes(HALF_VALUES, numerics.tie, largest=0x5DFF)
    same(convert.codes(HostType.F16, ALL16, numerics), expected)


@pytest.mark.parametrize("numerics", SETTINGS, ids=SETTING_IDS)
def test_all_bfloat16_patterns_encode_as_the_grid_search_says(
    convert: Convert, numerics: Numerics
) -> None:
    expected = oracle_codes(BF16_VALUES, numerics.tie, largest=0x7FFE)
    same(convert.codes(HostType.BF16, ALL16, numerics), expected)


@pytest.mark.parametrize("tie", TieRule, ids=lambda t: t.value)
def test_float32_patterns_encode_as_the_grid_search_says(convert: Convert, tie: TieRule) -> None:
    every = slice(None, None, convert.stride)
    expected = oracle_codes(FLOAT32_VALUES[every], tie)
    same(convert.codes(HostType.F32, FLOAT32[every], Numerics(tie=tie)), expected)


@pytest.mark.parametrize("nan", [False, True], ids=["inf", "nan"])
def test_all_dl16_codes_decode_to_float16_as_numpy_rounds(convert: Convert, nan: bool) -> None:
    numerics = Numerics(merged_is_nan=nan)
    with np.errstate(over="ignore"):
        expected = oracle_values(nan).astype(np.float16).view(np.uint16)
    expected = np.where(MAG == 0x7FFF, 0x7E00 if nan else expected, expected).astype(np.uint16)
    got = convert.decode(Format.SEN169_FP16, HostType.F16, ALL16, numerics)
    same(np.frombuffer(got, np.uint16), expected)


@pytest.mark.parametrize("nan", [False, True], ids=["inf", "nan"])
def test_all_dl16_codes_decode_to_bfloat16_as_torch_rounds(convert: Convert, nan: bool) -> None:
    numerics = Numerics(merged_is_nan=nan)
    single = torch.from_numpy(oracle_values(nan).astype(np.float32))
    expected = single.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    expected = np.where((MAG == 0x7FFF) & nan, 0x7FC0, expected).astype(np.uint16)
    got = convert.decode(Format.SEN169_FP16, HostType.BF16, ALL16, numerics)
    same(np.frombuffer(got, np.uint16), expected)


@pytest.mark.parametrize("nan", [False, True], ids=["inf", "nan"])
def test_all_dl16_codes_decode_to_float32_exactly(convert: Convert, nan: bool) -> None:
    values = oracle_values(nan)
    expected = values.astype(np.float32)
    finite = MAG < 0x7FFF
    assert (expected[finite].astype(np.float64) == values[finite]).all()
    bits = np.where((MAG == 0x7FFF) & nan, 0x7FC0_0000, expected.view(np.uint32))
    got = convert.decode(Format.SEN169_FP16, HostType.F32, ALL16, Numerics(merged_is_nan=nan))
    same(np.frombuffer(got, np.uint32), bits.astype(np.uint32))


def test_n2_30720_finite_float16_values_change_in_a_round_trip(convert: Convert) -> None:
    codes = convert.codes(HostType.F16, ALL16, Numerics())
    back = np.frombuffer(
        convert.decode(Format.SEN169_FP16, HostType.F16, codes, Numerics()), np.float16
    ).astype(np.float64)
    finite = np.isfinite(HALF_VALUES)
    changed = finite & (back != HALF_VALUES)
    assert int(finite.sum()) == 63_488
    assert int(changed.sum()) == 30_720
    worst = np.abs(back[changed] / HALF_VALUES[changed] - 1).max()
    assert abs(worst - 9.757e-4) <= 1e-6
    assert np.isfinite(back[finite]).all()


@pytest.mark.parametrize("numerics", SETTINGS, ids=SETTING_IDS)
def test_n3_all_dl16_codes_decode_and_encode_to_themselves(
    convert: Convert, numerics: Numerics
) -> None:
    values = np.frombuffer(
        convert.decode(Format.SEN169_FP16, HostType.F32, ALL16, numerics), np.uint32
    )
    expected = np.where((MAG == 0x7FFF) & numerics.merged_is_nan, 0x7FFF, ALL16)
    same(convert.codes(HostType.F32, values, numerics), expected.astype(np.uint16))


def test_zero_keeps_its_sign_through_every_float_pair(convert: Convert) -> None:
    for host, dtype, zero in (
        (HostType.F16, np.uint16, 0x8000),
        (HostType.BF16, np.uint16, 0x8000),
        (HostType.F32, np.uint32, 0x8000_0000),
    ):
        code = convert.codes(host, np.array([zero, 0], dtype), Numerics())
        assert code.tolist() == [0x8000, 0]
        back = convert.decode(Format.SEN169_FP16, host, code, Numerics())
        assert np.frombuffer(back, dtype).tolist() == [zero, 0]


@pytest.mark.parametrize(
    ("format", "one"), [(Format.SEN169_FP16, 0x3E00), (Format.IEEE_FP16, 0x3C00)]
)
def test_bool_is_one_or_zero_and_any_nonzero_magnitude_is_true(
    convert: Convert, format: Format, one: int
) -> None:
    every = np.arange(256, dtype=np.uint8)
    codes = np.frombuffer(convert.encode(HostType.BOOL, format, every, Numerics()), np.uint16)
    same(codes, np.where(every != 0, one, 0).astype(np.uint16))
    back = convert.decode(format, HostType.BOOL, ALL16, Numerics())
    same(np.frombuffer(back, np.uint8), (MAG != 0).astype(np.uint8))


# ---------------------------------------------------------------------------- IEEE conversions


def test_float32_to_float16_rounds_as_numpy_and_quiets_nan(convert: Convert) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = FLOAT32.view(np.float32).astype(np.float16).view(np.uint16)
    quiet = ((FLOAT32 >> 16) & 0x8000) | 0x7E00 | ((FLOAT32 >> 13) & 0x3FF)
    expected = np.where(FLOAT32_NAN, quiet, rounded).astype(np.uint16)
    every = slice(None, None, convert.stride)
    got = convert.encode(HostType.F32, Format.IEEE_FP16, FLOAT32[every], Numerics())
    same(np.frombuffer(got, np.uint16), expected[every])


def test_every_float16_boundary_rounds_from_float32_as_numpy(convert: Convert) -> None:
    finite = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (finite[:-1] + finite[1:]) / 2
    around = np.concatenate([finite, ties, np.nextafter(ties, 0), np.nextafter(ties, np.inf)])
    samples = np.concatenate([around, -around]).astype(np.float32)[:: convert.stride]
    got = convert.encode(HostType.F32, Format.IEEE_FP16, samples, Numerics())
    same(np.frombuffer(got, np.uint16), samples.astype(np.float16).view(np.uint16))


def test_all_float16_patterns_widen_to_float32_as_numpy(convert: Convert) -> None:
    nan = MAG > 0x7C00
    wide = ALL16.view(np.float16).astype(np.float32).view(np.uint32)
    bits = ALL16.astype(np.uint32)
    quiet = ((bits & 0x8000) << 16) | 0x7FC0_0000 | ((bits & 0x3FF) << 13)
    got = convert.decode(Format.IEEE_FP16, HostType.F32, ALL16, Numerics())
    same(np.frombuffer(got, np.uint32), np.where(nan, quiet, wide).astype(np.uint32))


def test_float32_to_bfloat16_rounds_as_torch_and_quiets_nan(convert: Convert) -> None:
    single = torch.from_numpy(FLOAT32.view(np.float32).copy())
    rounded = single.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    expected = np.where(FLOAT32_NAN, (FLOAT32 >> 16) | 0x40, rounded).astype(np.uint16)
    every = slice(None, None, convert.stride)
    got = convert.encode(HostType.F32, Format.BFLOAT16, FLOAT32[every], Numerics())
    same(np.frombuffer(got, np.uint16), expected[every])


def test_all_bfloat16_patterns_widen_to_the_upper_half_of_float32(convert: Convert) -> None:
    got = convert.decode(Format.BFLOAT16, HostType.F32, ALL16, Numerics())
    same(np.frombuffer(got, np.uint32), ALL16.astype(np.uint32) << 16)


# ------------------------------------------------------------------------- fp8 and byte copies


@pytest.mark.parametrize("mode", Mode, ids=lambda m: m.value)
@pytest.mark.parametrize("name", FP8)
def test_all_fp8_codes_keep_their_bits_both_ways(convert: Convert, name: str, mode: Mode) -> None:
    host, format, _ = FP8[name]
    every = np.arange(256, dtype=np.uint8)
    numerics = Numerics(mode=mode)
    assert formats.format_for(name, mode) is format
    assert convert.encode(host, format, every, numerics) == every.tobytes()
    assert convert.decode(format, host, every, numerics) == every.tobytes()


@pytest.mark.parametrize("name", FP8)
def test_fp8_codes_mean_what_torch_says(name: str) -> None:
    binary = FP8[name][2]
    every = torch.arange(256, dtype=torch.uint8).view(getattr(torch, name)).float().tolist()
    for code, expected in enumerate(every):
        value = binary.decode(code)
        assert (math.isnan(value) and math.isnan(expected)) or value == expected
        assert math.copysign(1, value) == math.copysign(1, expected) or math.isnan(value)


@pytest.mark.parametrize("name", FP8)
def test_fp8_values_round_as_torch_rounds(name: str) -> None:
    binary = FP8[name][2]
    finite = np.array([binary.decode(c) for c in range(binary.largest + 1)])
    ties = (finite[:-1] + finite[1:]) / 2
    beyond = [finite[-1] * 1.03, finite[-1] * 1.07, finite[-1] * 2, 1e30, np.inf, np.nan]
    around = np.concatenate([finite, ties, ties * (1 - 1e-6), ties * (1 + 1e-6), beyond])
    samples = np.concatenate([around, -around[:-1]]).astype(np.float32)
    expected = torch.from_numpy(samples).to(getattr(torch, name)).view(torch.uint8).tolist()
    got = [binary.encode(float(x)) for x in samples]
    assert [hex(x) for x in got] == [hex(x) for x in expected]


@pytest.mark.parametrize("mode", Mode, ids=lambda m: m.value)
def test_every_dtype_kept_bit_for_bit_is_a_byte_copy(convert: Convert, mode: Mode) -> None:
    data = np.random.default_rng(7).integers(0, 256, 16 * 33, dtype=np.uint8)
    exact = set(formats.DTYPES) - {"bool"}
    exact -= {"float16", "bfloat16"} if mode is Mode.DL16 else set()
    for host in {formats.host_type(name) for name in exact}:
        format = formats.format_of(host, mode)
        image = convert.encode(host, format, data, Numerics(mode=mode))
        assert image == data.tobytes(), host
        assert convert.decode(format, host, data, Numerics(mode=mode)) == data.tobytes(), host


def test_n4_int64_beyond_32_bits_is_exact(convert: Convert) -> None:
    values = np.array([2**40 + 1, -(2**62) - 3, 2**63 - 1, -(2**63)], np.int64)
    image = convert.encode(HostType.I64, Format.IEEE_INT64, values, Numerics())
    back = convert.decode(
        Format.IEEE_INT64, HostType.I64, np.frombuffer(image, np.int64), Numerics()
    )
    assert np.frombuffer(back, np.int64).tolist() == values.tolist()


# --------------------------------------------------------------------------------- properties


@given(
    bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=70),
    tie=st.sampled_from(list(TieRule)),
    nan=st.booleans(),
)
def test_n6_native_conversions_equal_the_reference_on_any_bits(
    bits: list[int], tie: TieRule, nan: bool
) -> None:
    c = extension()
    before = c.isa()
    data = np.array(bits, np.uint32)
    numerics = Numerics(tie=tie, merged_is_nan=nan)
    pairs = [
        (host, format)
        for host, format in itertools.product(HostType, Format)
        if formats.can_convert(host, format) and max(host.bytes, format.bytes) <= 4
    ]
    try:
        for isa in ISAS[: ISAS.index(c.best_isa()) + 1]:
            c.set_isa(isa)
            for host, format in pairs:
                args = (host, format, data, numerics)
                assert native().encode(*args) == reference().encode(*args), (isa, host, format)
                args2 = (format, host, data, numerics)
                assert native().decode(*args2) == reference().decode(*args2), (isa, host, format)
    finally:
        c.set_isa(before)


@given(value=st.floats(allow_nan=False, allow_infinity=False), tie=st.sampled_from(list(TieRule)))
def test_any_double_rounds_to_a_nearest_code(value: float, tie: TieRule) -> None:
    code = formats.encode_dl16(value, Numerics(tie=tie))
    mag = code & 0x7FFF
    assert (code >= 0x8000) == (math.copysign(1, value) < 0)
    exact = abs(Fraction(value))
    if mag == 0:
        assert exact <= Fraction(2) ** -31 * (1 + Fraction(1, 1024))
    elif mag == 0x7FFF:
        assert exact >= Fraction(2) ** 33 - Fraction(2) ** 23
    else:
        neighbours = [Fraction(float(GRID[m])) for m in (mag - 1, mag, mag + 1)]
        distances = [abs(exact - n) for n in neighbours]
        assert distances[1] == min(distances)


# ------------------------------------------------------------------------------- tables, rules

TABLE = {  # dtype: format under dl16, under ieee, elements a stick
    "float16": ("SEN169_FP16", "IEEE_FP16", 64),
    "bfloat16": ("SEN169_FP16", "BFLOAT16", 64),
    "bool": ("SEN169_FP16", "IEEE_FP16", 64),
    "float32": ("IEEE_FP32", "IEEE_FP32", 32),
    "int8": ("SENINT8", "SENINT8", 128),
    "int16": ("SENINT16", "SENINT16", 64),
    "int32": ("IEEE_INT32", "IEEE_INT32", 32),
    "int64": ("IEEE_INT64", "IEEE_INT64", 16),
    "uint8": ("SENUINT8", "SENUINT8", 128),
    "float8_e4m3fn": ("SEN143_FP8", "SEN143_FP8", 128),
    "float8_e5m2": ("SEN152_FP8", "SEN152_FP8", 128),
    "float8_e5m2fnuz": ("HOST_1", "HOST_1", 128),
    "qint8": ("HOST_1", "HOST_1", 128),
    "uint16": ("HOST_2", "HOST_2", 64),
    "uint32": ("HOST_4", "HOST_4", 32),
    "complex32": ("HOST_4", "HOST_4", 32),
    "bcomplex32": ("HOST_4", "HOST_4", 32),  # torch 2.14
    "qint32": ("HOST_4", "HOST_4", 32),
    "uint64": ("HOST_8", "HOST_8", 16),
    "float64": ("HOST_8", "HOST_8", 16),
    "complex64": ("HOST_8", "HOST_8", 16),
    "complex128": ("HOST_16", "HOST_16", 8),
}


@pytest.mark.parametrize("name", TABLE)
def test_dtypes_have_the_documented_formats(name: str) -> None:
    dl16, ieee, per_stick = TABLE[name]
    assert formats.format_for(name, Mode.DL16).name == dl16
    assert formats.format_for(f"torch.{name}", Mode.IEEE).name == ieee
    assert formats.elements_per_stick(name, Mode.DL16) == per_stick
    assert formats.elements_per_stick(name, Mode.IEEE) == per_stick


def test_every_torch_dtype_has_a_place_of_its_own_size() -> None:
    dtypes = {v for v in vars(torch).values() if isinstance(v, torch.dtype)}
    assert len(dtypes) > 40
    for dtype in dtypes:
        assert formats.host_type(str(dtype)).bytes == dtype.itemsize, dtype
        if dtype is not torch.bool:
            assert formats.format_for(str(dtype)).bytes == dtype.itemsize, dtype


def test_an_unknown_dtype_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="float12"):
        formats.format_for("float12")


def test_the_extension_has_the_same_tables() -> None:
    c = extension()
    assert c.format_names() == [f.name for f in Format]
    for format in Format:
        assert c.format_bytes(format.name) == format.bytes
    for host in HostType:
        assert c.host_bytes(host.name) == host.bytes
        for mode in Mode:
            assert c.format_for(host.name, mode.value) == formats.format_of(host, mode).name
        for format in Format:
            expected = formats.can_convert(host, format)
            assert c.can_convert(host.name, format.name) == expected, (host, format)


def test_unsupported_pairs_and_broken_elements_are_refused(convert: Convert) -> None:
    eight = np.zeros(8, np.uint8)
    with pytest.raises(ValueError, match=r"I64.*SEN169_FP16"):
        convert.encode(HostType.I64, Format.SEN169_FP16, eight, Numerics())
    with pytest.raises(ValueError, match=r"IEEE_FP16.*BF16"):
        convert.decode(Format.IEEE_FP16, HostType.BF16, eight, Numerics())
    with pytest.raises(ValueError, match="7 bytes"):
        convert.encode(HostType.F16, Format.SEN169_FP16, eight[:7], Numerics())


def test_codes_out_of_range_are_refused_by_the_reference() -> None:
    with pytest.raises(ValueError, match="65536"):
        formats.decode_dl16(0x10000)
    with pytest.raises(ValueError, match="float16"):
        formats.HALF.decode(-1)


def test_poison_is_a_nan_or_an_extreme_of_each_format() -> None:
    for binary, format in (
        (formats.HALF, Format.IEEE_FP16),
        (formats.BFLOAT, Format.BFLOAT16),
        (formats.SINGLE, Format.IEEE_FP32),
        (formats.FP8_E4M3FN, Format.SEN143_FP8),
        (formats.FP8_E5M2, Format.SEN152_FP8),
    ):
        assert math.isnan(binary.decode(format.poison))
    assert formats.decode_dl16(Format.SEN169_FP16.poison) == math.inf
    assert Format.IEEE_INT64.poison == np.iinfo(np.int64).max
    assert Format.SENINT8.poison == np.iinfo(np.int8).max
    assert np.isnan(np.array([Format.HOST_8.poison], np.uint64).view(np.float64)[0])


def test_the_module_imports_no_torch(run_python: Any) -> None:
    # sys.modules decides; the autoload of an installed package is not at work without torch.
    done = run_python("import openspyre.formats, sys; assert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr
