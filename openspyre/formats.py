"""Number formats of the card: the table of dtypes, and the reference of every conversion.

This room says which format a torch dtype has on the card, how many bytes an element takes and how
many fit a 128-byte stick, and what the bits are. The conversions here are the law: slow, obvious,
one element at a time. `csrc/machine/formats*.cpp` does the same fast, and tests hold them equal.

Imports nothing but the standard library; dtypes are named by strings (`"float16"`), never by
torch objects. Bit patterns are ints. Sources: hardware.md sections 1 and 3 of the project's fact
sheets for DLFloat16; IEEE 754 for the others; torch's float8_e4m3fn and float8_e5m2 for fp8, as
the card's own fp8 codes are not public.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

STICK_BYTES = 128


class Mode(Enum):
    """How 16-bit host values live on the card."""

    DL16 = "dl16"
    """float16, bfloat16 and bool are DLFloat16 (1-6-9): the card's own way, and the default."""
    IEEE = "ieee"
    """float16 and bfloat16 keep their bits, bool is a float16: tells format effects from bugs."""


class TieRule(Enum):
    """What a value exactly between two DLFloat16 neighbours rounds to.

    The card's rule is not public and no single rule fits all public samples, so the default
    (toward +infinity) is a choice and not a verified fact.
    """

    TOWARD_POSITIVE = "toward_positive"
    AWAY_FROM_ZERO = "away_from_zero"
    TO_EVEN = "to_even"
    TOWARD_ZERO = "toward_zero"
    TO_ODD = "to_odd"


@dataclass(frozen=True)
class Numerics:
    """The settings that decide bits. `merged_is_nan`: DLFloat16's one code for NaN and infinity
    (magnitude 0x7FFF) decodes to a quiet NaN instead of an infinity with its sign."""

    mode: Mode = Mode.DL16
    tie: TieRule = TieRule.TOWARD_POSITIVE
    merged_is_nan: bool = False


DEFAULT = Numerics()


class Format(Enum):
    """Formats of a storage on the card, by the names of the card's own enum.

    HOST_n is host-format: n raw bytes the card keeps but has no unit for. The poison code is what
    a debug run writes into pads: a NaN where there is one, else the largest value (a sum of
    smallest values could wrap to zero and hide a leak).
    """

    SEN169_FP16 = ("SEN169_FP16", 2, 0x7FFF)
    IEEE_FP16 = ("IEEE_FP16", 2, 0x7FFF)
    BFLOAT16 = ("BFLOAT16", 2, 0x7FFF)
    IEEE_FP32 = ("IEEE_FP32", 4, 0x7FFF_FFFF)
    SEN143_FP8 = ("SEN143_FP8", 1, 0x7F)
    SEN152_FP8 = ("SEN152_FP8", 1, 0x7F)
    SENINT8 = ("SENINT8", 1, 0x7F)
    SENINT16 = ("SENINT16", 2, 0x7FFF)
    IEEE_INT32 = ("IEEE_INT32", 4, 0x7FFF_FFFF)
    IEEE_INT64 = ("IEEE_INT64", 8, 0x7FFF_FFFF_FFFF_FFFF)
    SENUINT8 = ("SENUINT8", 1, 0xFF)
    HOST_1 = ("HOST_1", 1, (1 << 8) - 1)
    HOST_2 = ("HOST_2", 2, (1 << 16) - 1)
    HOST_4 = ("HOST_4", 4, (1 << 32) - 1)
    HOST_8 = ("HOST_8", 8, (1 << 64) - 1)
    HOST_16 = ("HOST_16", 16, (1 << 128) - 1)

    @property
    def bytes(self) -> int:
        """Bytes of one element on the card."""
        return self.value[1]

    @property
    def elements_per_stick(self) -> int:
        return STICK_BYTES // self.bytes

    @property
    def is_host(self) -> bool:
        return self.name.startswith("HOST_")

    @property
    def poison(self) -> int:
        """The code that fills pads in a debug run."""
        return self.value[2]


class HostType(Enum):
    """Element types of host memory as the conversions see them.

    RAWn stands for every dtype of n bytes that is kept bit for bit.
    """

    F16 = ("F16", 2)
    BF16 = ("BF16", 2)
    F32 = ("F32", 4)
    F8_E4M3FN = ("F8_E4M3FN", 1)
    F8_E5M2 = ("F8_E5M2", 1)
    I8 = ("I8", 1)
    I16 = ("I16", 2)
    I32 = ("I32", 4)
    I64 = ("I64", 8)
    U8 = ("U8", 1)
    BOOL = ("BOOL", 1)
    RAW1 = ("RAW1", 1)
    RAW2 = ("RAW2", 2)
    RAW4 = ("RAW4", 4)
    RAW8 = ("RAW8", 8)
    RAW16 = ("RAW16", 16)

    @property
    def bytes(self) -> int:
        """Bytes of one element on the host."""
        return self.value[1]

    @property
    def is_raw(self) -> bool:
        return self.name.startswith("RAW")


# ---------------------------------------------------------------------------------------------
# The table: torch dtype name -> host type; host type and mode -> format.

_RAW_DTYPES: dict[HostType, str] = {
    HostType.RAW1: "float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2 "
    "qint8 quint8 quint4x2 quint2x4 bits8 bits1x8 bits2x4 bits4x2 "
    "int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7",
    HostType.RAW2: "uint16 bits16",
    HostType.RAW4: "uint32 complex32 bcomplex32 qint32",  # bcomplex32: torch 2.14
    HostType.RAW8: "float64 complex64 uint64",
    HostType.RAW16: "complex128",
}

DTYPES: dict[str, HostType] = {
    "float16": HostType.F16,
    "bfloat16": HostType.BF16,
    "float32": HostType.F32,
    "float8_e4m3fn": HostType.F8_E4M3FN,
    "float8_e5m2": HostType.F8_E5M2,
    "int8": HostType.I8,
    "int16": HostType.I16,
    "int32": HostType.I32,
    "int64": HostType.I64,
    "uint8": HostType.U8,
    "bool": HostType.BOOL,
    **{name: raw for raw, names in _RAW_DTYPES.items() for name in names.split()},
}
"""Every torch dtype by its name, as `str(dtype).removeprefix("torch.")` gives it."""

_FORMATS: dict[HostType, tuple[Format, Format]] = {  # under DL16, under IEEE
    HostType.F16: (Format.SEN169_FP16, Format.IEEE_FP16),
    HostType.BF16: (Format.SEN169_FP16, Format.BFLOAT16),
    HostType.F32: (Format.IEEE_FP32, Format.IEEE_FP32),
    HostType.F8_E4M3FN: (Format.SEN143_FP8, Format.SEN143_FP8),
    HostType.F8_E5M2: (Format.SEN152_FP8, Format.SEN152_FP8),
    HostType.I8: (Format.SENINT8, Format.SENINT8),
    HostType.I16: (Format.SENINT16, Format.SENINT16),
    HostType.I32: (Format.IEEE_INT32, Format.IEEE_INT32),
    HostType.I64: (Format.IEEE_INT64, Format.IEEE_INT64),
    HostType.U8: (Format.SENUINT8, Format.SENUINT8),
    HostType.BOOL: (Format.SEN169_FP16, Format.IEEE_FP16),
    HostType.RAW1: (Format.HOST_1, Format.HOST_1),
    HostType.RAW2: (Format.HOST_2, Format.HOST_2),
    HostType.RAW4: (Format.HOST_4, Format.HOST_4),
    HostType.RAW8: (Format.HOST_8, Format.HOST_8),
    HostType.RAW16: (Format.HOST_16, Format.HOST_16),
}


def host_type(dtype_name: str) -> HostType:
    """The host type of a torch dtype, e.g. `"float16"` or `"torch.float16"`.

    Raises ValueError for a name that is no torch dtype.
    """
    found = DTYPES.get(dtype_name.removeprefix("torch."))
    if found is None:
        raise ValueError(
            f"number formats: {dtype_name!r} names no torch dtype with a place on the card; "
            f"use one of: {', '.join(sorted(DTYPES))}"
        )
    return found


def format_of(host: HostType, mode: Mode) -> Format:
    """The format in which a storage of `host` elements lives under `mode`."""
    return _FORMATS[host][0 if mode is Mode.DL16 else 1]


def format_for(dtype_name: str, mode: Mode = Mode.DL16) -> Format:
    """The format in which a storage of this torch dtype lives. Raises ValueError as host_type."""
    return format_of(host_type(dtype_name), mode)


def elements_per_stick(dtype_name: str, mode: Mode = Mode.DL16) -> int:
    """How many elements of this torch dtype fit the card's 128-byte stick."""
    return format_for(dtype_name, mode).elements_per_stick


# ---------------------------------------------------------------------------------------------
# DLFloat16: sign, 6 exponent bits (bias 31), 9 fraction bits. No subnormals: the lowest binade
# holds normal numbers, but for magnitude 0, which is zero. Magnitude 0x7FFF is NaN and infinity.

DL16_SIGN = 0x8000
DL16_MERGED = 0x7FFF
DL16_LARGEST = 0x7FFE  # 2^33 - 2^24 = 8,573,157,376
DL16_HALF_MAX = 0x5DFF  # 65472: finite float16 values saturate here on their way to the card
DL16_ONE = 0x3E00


def _rounds_up(tie: TieRule, odd: bool, negative: bool) -> bool:
    """Whether the magnitude of an exact tie goes up; `odd` is the lower neighbour's parity."""
    match tie:
        case TieRule.TOWARD_POSITIVE:
            return not negative
        case TieRule.AWAY_FROM_ZERO:
            return True
        case TieRule.TO_EVEN:
            return odd
        case TieRule.TOWARD_ZERO:
            return False
        case TieRule.TO_ODD:
            return not odd


def encode_dl16(value: float, numerics: Numerics = DEFAULT) -> int:
    """The code of a *computed* value: rounded once, overflow gives 0x7FFF with the sign.

    NaN gives 0x7FFF, -0.0 gives 0x8000. `value` is any Python float, taken exactly.
    """
    if math.isnan(value):
        return DL16_MERGED
    negative = math.copysign(1.0, value) < 0
    sign = DL16_SIGN if negative else 0
    if value == 0:
        return sign
    if math.isinf(value):
        return sign | DL16_MERGED
    mantissa, exponent = math.frexp(abs(value))  # abs(value) = mantissa * 2^exponent, 0.5 <= m < 1
    exponent -= 1
    significand = int(mantissa * 2**53)  # exact: a Python float has 53 bits
    whole, rest = divmod(significand, 2**43)  # 512 <= whole < 1024 in units of 2^(exponent - 9)
    if rest > 2**42 or (rest == 2**42 and _rounds_up(numerics.tie, whole % 2 == 1, negative)):
        whole += 1  # a carry to 1024 moves into the exponent below by itself
    magnitude = (exponent + 31) * 512 + (whole - 512)
    if magnitude <= 0:
        return sign
    return sign | min(magnitude, DL16_MERGED)


def decode_dl16(code: int, numerics: Numerics = DEFAULT) -> float:
    """The value of a code, exactly; 0x8000 is -0.0. Raises ValueError outside 0..0xFFFF."""
    _check_code(code, 16, "DLFloat16")
    negative, magnitude = code >= DL16_SIGN, code & DL16_MERGED
    if magnitude == DL16_MERGED:
        if numerics.merged_is_nan:
            return math.nan
        return -math.inf if negative else math.inf
    value = 0.0
    if magnitude:
        exponent, fraction = divmod(magnitude, 512)
        value = math.ldexp(512 + fraction, exponent - 31 - 9)
    return -value if negative else value


def _check_code(code: int, bits: int, name: str) -> None:
    if not 0 <= code < 1 << bits:
        raise ValueError(f"number formats: {code} is no {name} code; it lies in 0..2^{bits}-1")


# ---------------------------------------------------------------------------------------------
# The IEEE-like formats, by their parameters.


@dataclass(frozen=True)
class BinaryFormat:
    """A binary format with subnormals: sign, exponent field, fraction.

    `largest` is the largest finite magnitude code. With `has_inf` the next code is infinity and
    all above are NaN. Without (float8_e4m3fn), every code above is NaN, and overflow and infinity
    saturate at `largest`, as torch's own cast does since 2.13.
    """

    name: str
    bits: int
    fraction_bits: int
    bias: int
    largest: int
    nan: int
    has_inf: bool = True

    @property
    def sign(self) -> int:
        return 1 << (self.bits - 1)

    def decode(self, code: int) -> float:
        """The value of a code, exactly (all formats here fit a Python float)."""
        _check_code(code, self.bits, self.name)
        magnitude = code & (self.sign - 1)
        if magnitude > self.largest:
            if not self.has_inf or magnitude > self.largest + 1:
                return math.nan
            value = math.inf
        else:
            exponent, fraction = divmod(magnitude, 1 << self.fraction_bits)
            hidden = 1 << self.fraction_bits if exponent else 0
            value = math.ldexp(hidden + fraction, max(exponent, 1) - self.bias - self.fraction_bits)
        return -value if code & self.sign else value

    def encode(self, value: float) -> int:
        """Nearest code, ties to even; overflow by the format's rule; NaN gives `nan`."""
        if math.isnan(value):
            return self.nan
        sign = self.sign if math.copysign(1.0, value) < 0 else 0
        overflow = self.largest + 1 if self.has_inf else self.largest
        if value == 0:
            return sign
        if math.isinf(value):
            return sign | overflow
        exponent = max(math.frexp(abs(value))[1] - 1, 1 - self.bias)
        unit = Fraction(2) ** (exponent - self.fraction_bits)
        whole = round(Fraction(abs(value)) / unit)  # Python rounds a Fraction's ties to even
        # A normal number's hidden bit raises the exponent field by one, as does a carry.
        magnitude = ((exponent + self.bias - 1) << self.fraction_bits) + whole
        return sign | (magnitude if magnitude <= self.largest else overflow)


HALF = BinaryFormat("float16", 16, 10, 15, largest=0x7BFF, nan=0x7E00)
BFLOAT = BinaryFormat("bfloat16", 16, 7, 127, largest=0x7F7F, nan=0x7FC0)
SINGLE = BinaryFormat("float32", 32, 23, 127, largest=0x7F7F_FFFF, nan=0x7FC0_0000)
FP8_E4M3FN = BinaryFormat("float8_e4m3fn", 8, 3, 7, largest=0x7E, nan=0x7F, has_inf=False)
FP8_E5M2 = BinaryFormat("float8_e5m2", 8, 2, 15, largest=0x7B, nan=0x7F)


# ---------------------------------------------------------------------------------------------
# Conversions between host bits and card codes, one element at a time.


def half_to_dl16(bits: int, numerics: Numerics = DEFAULT) -> int:
    """float16 bits to a code. Finite values saturate at 65472 (0x5DFF): a host float16 never
    leaves the float16 range. Infinity keeps its sign; NaN gives 0x7FFF."""
    value = HALF.decode(bits)
    code = encode_dl16(value, numerics)
    if math.isfinite(value) and code & DL16_MERGED > DL16_HALF_MAX:
        return code & DL16_SIGN | DL16_HALF_MAX
    return code


def dl16_to_half(code: int, numerics: Numerics = DEFAULT) -> int:
    """A code to float16 bits: nearest, ties to even, overflow to infinity, with subnormals."""
    return HALF.encode(decode_dl16(code, numerics))


def bfloat16_to_dl16(bits: int, numerics: Numerics = DEFAULT) -> int:
    """bfloat16 bits to a code. Finite values beyond the range saturate at 0x7FFE, so that
    `finfo.min` masks stay finite. Infinity keeps its sign; NaN gives 0x7FFF."""
    value = BFLOAT.decode(bits)
    code = encode_dl16(value, numerics)
    if math.isfinite(value) and code & DL16_MERGED == DL16_MERGED:
        return code & DL16_SIGN | DL16_LARGEST
    return code


def dl16_to_bfloat16(code: int, numerics: Numerics = DEFAULT) -> int:
    """A code to bfloat16 bits: nearest, ties to even (two fraction bits are lost)."""
    return BFLOAT.encode(decode_dl16(code, numerics))


def float32_to_dl16(bits: int, numerics: Numerics = DEFAULT) -> int:
    """float32 bits of a computed value to a code: overflow gives 0x7FFF with the sign."""
    return encode_dl16(SINGLE.decode(bits), numerics)


def dl16_to_float32(code: int, numerics: Numerics = DEFAULT) -> int:
    """A code to float32 bits, exactly."""
    return SINGLE.encode(decode_dl16(code, numerics))


def bool_to_dl16(byte: int, numerics: Numerics = DEFAULT) -> int:
    """A bool byte to the code of 1.0 or 0.0."""
    return DL16_ONE if byte else 0


def dl16_to_bool(code: int, numerics: Numerics = DEFAULT) -> int:
    """1 unless the magnitude is zero, whatever the sign."""
    return int(code & DL16_MERGED != 0)


def float32_to_half(bits: int, numerics: Numerics = DEFAULT) -> int:
    """IEEE rounding; a NaN keeps its sign and the top of its payload and becomes quiet."""
    if bits & 0x7FFF_FFFF > 0x7F80_0000:
        return (bits >> 16) & 0x8000 | 0x7E00 | (bits >> 13) & 0x3FF
    return HALF.encode(SINGLE.decode(bits))


def half_to_float32(bits: int, numerics: Numerics = DEFAULT) -> int:
    """Exact; a NaN keeps its sign and payload and becomes quiet."""
    if bits & 0x7FFF > 0x7C00:
        return (bits & 0x8000) << 16 | 0x7FC0_0000 | (bits & 0x3FF) << 13
    return SINGLE.encode(HALF.decode(bits))


def float32_to_bfloat16(bits: int, numerics: Numerics = DEFAULT) -> int:
    """IEEE rounding; a NaN keeps its sign and the top of its payload and becomes quiet."""
    if bits & 0x7FFF_FFFF > 0x7F80_0000:
        return bits >> 16 | 0x40
    return BFLOAT.encode(SINGLE.decode(bits))


def bfloat16_to_float32(bits: int, numerics: Numerics = DEFAULT) -> int:
    """Exact, and the very bits: bfloat16 is the upper half of float32."""
    return bits << 16


def bool_to_half(byte: int, numerics: Numerics = DEFAULT) -> int:
    """A bool byte to float16 1.0 or 0.0 (bool under Mode.IEEE)."""
    return 0x3C00 if byte else 0


def half_to_bool(bits: int, numerics: Numerics = DEFAULT) -> int:
    """1 unless the magnitude is zero, whatever the sign."""
    return int(bits & 0x7FFF != 0)


# ---------------------------------------------------------------------------------------------
# Whole buffers, by pair.

_Convert = Callable[[int, Numerics], int]

_PAIRS: dict[tuple[HostType, Format], tuple[_Convert, _Convert]] = {  # encode, decode
    (HostType.F16, Format.SEN169_FP16): (half_to_dl16, dl16_to_half),
    (HostType.BF16, Format.SEN169_FP16): (bfloat16_to_dl16, dl16_to_bfloat16),
    (HostType.F32, Format.SEN169_FP16): (float32_to_dl16, dl16_to_float32),
    (HostType.BOOL, Format.SEN169_FP16): (bool_to_dl16, dl16_to_bool),
    (HostType.BOOL, Format.IEEE_FP16): (bool_to_half, half_to_bool),
    (HostType.F32, Format.IEEE_FP16): (float32_to_half, half_to_float32),
    (HostType.F32, Format.BFLOAT16): (float32_to_bfloat16, bfloat16_to_float32),
}

_STRUCT = {1: "B", 2: "H", 4: "I"}


def _is_copy(host: HostType, format: Format) -> bool:
    if host.is_raw or format.is_host:
        return host.bytes == format.bytes
    return format in _FORMATS[host] and (host, format) not in _PAIRS


def can_convert(host: HostType, format: Format) -> bool:
    """Whether encode and decode take this pair.

    They take a host type with its own format of either mode, float32 with every 16-bit float
    format (a computed value), and equal sizes with a RAWn or HOST_n side (a byte copy).
    """
    return (host, format) in _PAIRS or _is_copy(host, format)


def _convert(what: str, host: HostType, format: Format, data: bytes, numerics: Numerics) -> bytes:
    encoding = what == "encode"
    if not can_convert(host, format):
        source, target = (host, format) if encoding else (format, host)
        raise ValueError(
            f"number formats: cannot {what} {source.name} as {target.name}; a host type converts "
            "to its own card format of either mode, F32 also to the 16-bit float formats, and "
            "RAW or HOST sides only at equal size"
        )
    width_in, width_out = (host.bytes, format.bytes) if encoding else (format.bytes, host.bytes)
    if len(data) % width_in:
        raise ValueError(
            f"number formats: {what} of {len(data)} bytes, but an element of "
            f"{(host if encoding else format).name} takes {width_in}"
        )
    pair = _PAIRS.get((host, format))
    if pair is None:
        return bytes(data)
    convert = pair[0 if encoding else 1]
    n = len(data) // width_in
    values = struct.unpack(f"<{n}{_STRUCT[width_in]}", data)
    return struct.pack(f"<{n}{_STRUCT[width_out]}", *(convert(v, numerics) for v in values))


def encode(host: HostType, format: Format, data: bytes, numerics: Numerics = DEFAULT) -> bytes:
    """Host bytes to card bytes, element by element (little-endian).

    Raises ValueError for a pair that can_convert refuses and for an incomplete element.
    """
    return _convert("encode", host, format, data, numerics)


def decode(format: Format, host: HostType, data: bytes, numerics: Numerics = DEFAULT) -> bytes:
    """Card bytes to host bytes, element by element (little-endian). Raises as encode does."""
    return _convert("decode", host, format, data, numerics)
