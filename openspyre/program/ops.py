"""What the units of a core can do: the operations of bodies and the kinds of COMPUTE.

A *body* is what the SFU does to the elements of a tile: a list of operations in static single
assignment, whose values live in registers of four types:

    f  float32 (IEEE; what every float format decodes to)
    i  int32, wrapping
    l  int64, wrapping
    b  truth value

Nothing is rounded to a 16-bit format inside a body except by `round`, and by the encoding of what
is stored. The functions' bits are those of `csrc/machine/kernels/sfu_math.h`, in every executor.

Imports no torch. The order of the tables is the binary code of each entry: append only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from openspyre.formats import Format


class RegisterType(Enum):
    """Type of a value inside a body. The value is its letter in the text form."""

    F32 = "f"
    I32 = "i"
    I64 = "l"
    BOOL = "b"


_REGISTERS = {
    Format.SEN169_FP16: RegisterType.F32,
    Format.IEEE_FP16: RegisterType.F32,
    Format.BFLOAT16: RegisterType.F32,
    Format.IEEE_FP32: RegisterType.F32,
    Format.SEN143_FP8: RegisterType.F32,
    Format.SEN152_FP8: RegisterType.F32,
    Format.SENINT8: RegisterType.I32,
    Format.SENINT16: RegisterType.I32,
    Format.SENUINT8: RegisterType.I32,
    Format.IEEE_INT32: RegisterType.I32,
    Format.IEEE_INT64: RegisterType.I64,
}


def register_of(format: Format) -> RegisterType | None:
    """The register type in which elements of `format` are computed; None for host formats, which
    no unit computes. Truth values are stored as 1 and 0 of any of these formats."""
    return _REGISTERS.get(format)


@dataclass(frozen=True)
class BodyOp:
    """One operation of a body.

    `types` are the letters of the type parameter T it exists for. `operands` and `result` are
    written with T for the parameter or a fixed letter; `immediate` says what its one immediate
    is: "" none, "int", "float", "T" (a number of type T), "format", "type", "input", "symbol",
    "label".
    """

    name: str
    types: str
    operands: str
    result: str
    immediate: str = ""

    def result_of(self, type_: str, immediate: object = None) -> str:
        """The letter of the result's type."""
        if self.result == "imm":
            return str(immediate)
        return type_ if self.result == "T" else self.result


def _ops(names: str, types: str, operands: str, result: str, immediate: str = "") -> list[BodyOp]:
    return [BodyOp(name, types, operands, result, immediate) for name in names.split()]


BODY_OPS: tuple[BodyOp, ...] = (
    # Leaves. `input` reads operand number imm; its type is the register of its format.
    *_ops("input", "fil", "", "T", "input"),
    *_ops("const", "filb", "", "T", "T"),
    *_ops("scalar", "fl", "", "T", "symbol"),  # a float or int symbol of the launch
    *_ops("index", "l", "", "T", "label"),  # the element's global index along a label
    # Unary, float
    *_ops("neg abs sign", "fil", "T", "T"),
    *_ops("floor ceil round_even trunc frac sqrt rsqrt reciprocal", "f", "T", "T"),
    *_ops("exp exp2 expm1 log log2 log10 log1p", "f", "T", "T"),
    *_ops("sigmoid tanh erf erfc erfinv gelu gelu_tanh silu softplus mish relu", "f", "T", "T"),
    *_ops("sin cos tan asin acos atan sinh cosh asinh acosh atanh", "f", "T", "T"),
    *_ops("isnan isinf isfinite", "f", "T", "b"),
    # Binary. min and max give NaN when either side is NaN, as torch.minimum does.
    *_ops("add sub mul min max", "fil", "TT", "T"),
    *_ops("div pow atan2 copysign", "f", "TT", "T"),
    *_ops("fmod remainder", "fil", "TT", "T"),  # sign of the dividend; of the divisor
    *_ops("floor_div trunc_div", "fil", "TT", "T"),  # integers: x / 0 = 0, x mod 0 = x
    *_ops("eq ne lt le gt ge", "filb", "TT", "b"),
    *_ops("and or xor", "ilb", "TT", "T"),
    *_ops("not", "ilb", "T", "T"),
    *_ops("shl shr shr_logical", "il", "TT", "T"),  # counts outside 0..width-1 give 0 (shr: sign)
    # Selection and conversion
    *_ops("where", "filb", "bTT", "T"),
    # cast: float to integer truncates and saturates, NaN gives 0; to bool: not equal 0.
    *_ops("cast", "filb", "T", "imm", "type"),
    *_ops("round", "f", "T", "T", "format"),  # to the format and back: a rounding point
    *_ops("bits", "fi", "T", "imm", "type"),  # f <-> i with the same bits
    # Random: word imm (0..3) of Philox4x32-10 at key and 64-bit counter; then uniform in [0, 1).
    *_ops("philox", "l", "TT", "i", "int"),
    *_ops("unit", "i", "T", "f"),  # (bits >> 8) * 2^-24
)
BODY_OP = {op.name: op for op in BODY_OPS}


class Kind(Enum):
    """What a COMPUTE does. Shapes: `over` is its iteration box; see docs/program.md for each."""

    MATMUL = "matmul"  # PT: out[.., m, n] (+)= a[.., m, k] * b[.., k, n]; k ascending
    MAP = "map"  # body on every point of the box; views may differ in stick label (restickify)
    REDUCE = "reduce"  # body, then combine over the labels that the outputs lack
    FOLD = "fold"  # 64 lane accumulators to one value each, by the fixed tree
    SCAN = "scan"  # running sum, product, min, max along a label, with a carry tile
    GATHER = "gather"  # out = src[.., index, ..] inside LX
    SCATTER = "scatter"  # inout[.., index, ..] = or += src inside LX
    SORT = "sort"  # along a label: values and original indices, stable
    MERGE = "merge"  # two sorted tiles to the lower and the upper half
    TOPK = "topk"  # the k largest (smallest) along a label, optionally merged into the last ones


KINDS = tuple(Kind)


class Combine(Enum):
    """How REDUCE, FOLD, SCAN and RING reduce combine two values."""

    SUM = "sum"
    PROD = "prod"
    MAX = "max"  # NaN wins
    MIN = "min"
    ANY = "any"
    ALL = "all"
    ARGMAX = "argmax"  # (value, index) pairs; NaN wins; the smallest index among equals
    ARGMIN = "argmin"
    WELFORD = "welford"  # (mean, M2, count) triples, Chan's formula in the fold


COMBINES = tuple(Combine)

LANE_ACCUMULATORS = 64
"""Accumulators of a reduction along the stick: element e goes to accumulator e % 64, sticks
ascending; FOLD then adds accumulator i + h to i for h = 32, 16, 8, 4, 2, 1 (docs/program.md 3)."""
