"""Elements of every format, to registers and back, a whole array at a time.

Independent of the C++ conversions: the float formats come from the parameters in
`openspyre.formats`, by tables (decode) and by integer arithmetic or exact comparison (encode).
Every NaN that is encoded becomes the format's one quiet NaN, since the sign and payload of a NaN
that arithmetic made differ between processors.

May import numpy; imports no torch.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np

from openspyre.formats import (
    BFLOAT,
    DL16_MERGED,
    FP8_E4M3FN,
    FP8_E5M2,
    HALF,
    SINGLE,
    BinaryFormat,
    Format,
    Numerics,
    TieRule,
    decode_dl16,
)
from openspyre.program.ops import register_of

Array: TypeAlias = np.ndarray[Any, Any]

REGISTERS: dict[str, np.dtype[Any]] = {
    "f": np.dtype(np.float32),
    "i": np.dtype(np.int32),
    "l": np.dtype(np.int64),
    "b": np.dtype(np.bool_),
}
"""numpy's type of each register letter."""

_INTEGERS: dict[Format, np.dtype[Any]] = {
    Format.SENINT8: np.dtype(np.int8),
    Format.SENINT16: np.dtype(np.int16),
    Format.SENUINT8: np.dtype(np.uint8),
    Format.IEEE_INT32: np.dtype(np.int32),
    Format.IEEE_INT64: np.dtype(np.int64),
}
_FP8 = {Format.SEN143_FP8: FP8_E4M3FN, Format.SEN152_FP8: FP8_E5M2}


def codes_type(format: Format) -> np.dtype[Any]:
    """The unsigned type that holds one element's code; HOST_16 has none."""
    return np.dtype(f"u{format.bytes}")


def letter_of(format: Format) -> str:
    """The register letter of a format that units compute; "" for host formats."""
    register = register_of(format)
    return "" if register is None else register.value


# --- decode


@cache
def _dl16_values(merged_is_nan: bool) -> Array:
    numerics = Numerics(merged_is_nan=merged_is_nan)
    return np.array([decode_dl16(code, numerics) for code in range(1 << 16)], dtype=np.float32)


@cache
def _fp8_values(format: Format) -> Array:
    return np.array([_FP8[format].decode(code) for code in range(1 << 8)], dtype=np.float32)


def decode(codes: Array, format: Format, numerics: Numerics) -> Array:
    """Registers of an array of codes (`codes_type`): float32, int32 or int64. Exact."""
    if format is Format.SEN169_FP16:
        return _dl16_values(numerics.merged_is_nan)[codes]
    if format in _FP8:
        return _fp8_values(format)[codes]
    if format is Format.IEEE_FP16:
        return codes.view(np.float16).astype(np.float32)
    if format is Format.BFLOAT16:
        return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if format is Format.IEEE_FP32:
        return codes.view(np.float32)
    return codes.view(_INTEGERS[format]).astype(REGISTERS[letter_of(format)])


# --- encode


def _dl16_codes(values: Array, tie: TieRule) -> Array:
    """float32 to DLFloat16 codes, as `formats.encode_dl16`: rounded once on the bits."""
    bits = values.view(np.uint32).astype(np.int64)
    negative = bits >> 31 != 0
    magnitude = bits & 0x7FFF_FFFF
    whole, rest = magnitude >> 14, magnitude & 0x3FFF  # 23 fraction bits to 9
    at_tie = {
        TieRule.TOWARD_POSITIVE: ~negative,
        TieRule.AWAY_FROM_ZERO: np.ones_like(negative),
        TieRule.TO_EVEN: whole % 2 == 1,
        TieRule.TOWARD_ZERO: np.zeros_like(negative),
        TieRule.TO_ODD: whole % 2 == 0,
    }[tie]
    whole = whole + ((rest > 0x2000) | ((rest == 0x2000) & at_tie))
    # The exponent's bias goes from 127 to 31. What falls to or below code 0 is zero.
    code = np.clip(whole - ((127 - 31) << 9), 0, DL16_MERGED)
    code = np.where(negative, code | 0x8000, code)
    return np.where(np.isnan(values), DL16_MERGED, code).astype(np.uint16)


def _small_codes(values: Array, format: BinaryFormat) -> Array:
    """float32 to an 8-bit format: the nearest of its values by comparison with midpoints."""
    grid = np.array([format.decode(code) for code in range(format.largest + 1)], dtype=np.float64)
    size = np.abs(values).astype(np.float64)  # exact, and so are the midpoints
    lower = np.clip(np.searchsorted(grid, size, side="right") - 1, 0, format.largest)
    step = grid[-1] - grid[-2]
    upper = np.append(grid[1:], grid[-1] + step)[lower]  # beyond the largest: overflow
    middle = (grid[lower] + upper) / 2
    code = lower + ((size > middle) | ((size == middle) & (lower % 2 == 1)))
    code = np.where(np.isinf(values), format.largest + 1, code)
    if not format.has_inf:
        code = np.minimum(code, format.largest)
    code = np.where(np.signbit(values), code | format.sign, code)
    return np.where(np.isnan(values), format.nan, code).astype(np.uint8)


def _bfloat_codes(values: Array) -> Array:
    bits = values.view(np.uint32).astype(np.int64)
    whole, rest = bits >> 16, bits & 0xFFFF
    whole = whole + ((rest > 0x8000) | ((rest == 0x8000) & (whole % 2 == 1)))
    return np.where(np.isnan(values), BFLOAT.nan, whole).astype(np.uint16)


def encode(values: Array, format: Format, numerics: Numerics) -> Array:
    """Codes (`codes_type`) of a register array.

    Truth becomes 1 or 0 of any format; float32 needs a float format; integers keep their low
    bits. Raises ValueError when register and format do not agree.
    """
    if values.dtype == np.bool_:
        values = values.astype(REGISTERS[letter_of(format) or "i"])
    if (values.dtype == np.float32) != (letter_of(format) == "f") or format.is_host:
        raise ValueError(f"a {values.dtype.name} register has no {format.name} code; cast it first")
    values = np.asarray(values, order="C")
    with np.errstate(all="ignore"):
        if format is Format.SEN169_FP16:
            return _dl16_codes(values, numerics.tie)
        if format in _FP8:
            return _small_codes(values, _FP8[format])
        if format is Format.BFLOAT16:
            return _bfloat_codes(values)
        if format is Format.IEEE_FP16:
            halves = values.astype(np.float16).view(np.uint16)
            return np.where(np.isnan(values), np.uint16(HALF.nan), halves)
        if format is Format.IEEE_FP32:
            return np.where(np.isnan(values), np.uint32(SINGLE.nan), values.view(np.uint32))
        return values.astype(_INTEGERS[format]).view(codes_type(format))


def rounded(values: Array, format: Format, numerics: Numerics) -> Array:
    """float32 to the format and back: a rounding point."""
    return decode(encode(values, format, numerics), format, numerics)
