"""The body of a COMPUTE on numpy arrays: one operation after the other, nothing fused.

docs/program.md section 3 and `openspyre.program.ops` say what each operation means. May import
numpy; imports no torch (see `functions`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from openspyre.formats import Format, Numerics
from openspyre.program.model import Body, Node
from openspyre.program.ops import BODY_OP
from openspyre.reference import functions, numbers
from openspyre.reference.numbers import REGISTERS, Array

Operation = Callable[..., Array]


class BodyError(ValueError):
    """A body that has no meaning: an unknown operation, a register of the wrong type."""


def evaluate(
    body: Body,
    inputs: Sequence[Array],
    indices: Mapping[str, Array],
    symbols: Mapping[str, int | float],
    numerics: Numerics,
) -> list[Array]:
    """The registers of `body.results`, in shapes that broadcast with each other.

    inputs: one register array per operand. indices: for every label its global indices (int64),
    shaped to broadcast. Raises BodyError.
    """
    values: list[Array] = []
    with np.errstate(all="ignore"):
        for number, node in enumerate(body.nodes):
            try:
                value = _node(node, values, inputs, indices, symbols, numerics)
            except (KeyError, IndexError, ValueError, TypeError) as error:
                raise BodyError(f"body node {number} ({node.op}.{node.type}): {error}") from error
            values.append(value)
    return [values[result] for result in body.results]


def _node(
    node: Node,
    values: Sequence[Array],
    inputs: Sequence[Array],
    indices: Mapping[str, Array],
    symbols: Mapping[str, int | float],
    numerics: Numerics,
) -> Array:
    op, immediate, type_ = BODY_OP[node.op], node.immediate, REGISTERS[node.type]
    if node.type not in op.types:
        raise BodyError(f"{node.op} exists for {op.types}, not for {node.type}")
    args = [values[arg] for arg in node.args]
    wanted = [type_ if letter == "T" else REGISTERS[letter] for letter in op.operands]
    if [arg.dtype for arg in args] != wanted:
        raise BodyError(f"takes {wanted}, got {[arg.dtype for arg in args]}")
    if node.op == "input":
        found = inputs[int(immediate)]  # type: ignore[arg-type]
        if found.dtype != type_:
            raise BodyError(f"input {immediate} is {found.dtype}, not {type_}")
        return found
    if node.op == "const":
        return np.array(immediate, dtype=type_)
    if node.op == "scalar":
        return np.array(symbols[str(immediate)], dtype=type_)
    if node.op == "index":
        return indices[str(immediate)]
    return operation(node, args, numerics)


def operation(node: Node, args: Sequence[Array], numerics: Numerics) -> Array:
    """The result of one operation that has operands, given their registers."""
    immediate = node.immediate
    if node.op == "cast":
        return cast(args[0], REGISTERS[_letter(immediate)])
    if node.op == "bits":
        return _bits(args[0], REGISTERS[_letter(immediate)])
    if node.op == "round":
        return numbers.rounded(args[0], _format(immediate), numerics)
    if node.op == "philox":
        return philox(args[0], args[1], int(immediate))  # type: ignore[arg-type]
    if node.op in functions.FUNCTIONS:
        return functions.apply(node.op, args)
    table = _FLOAT if node.type == "f" else _TRUTH if node.type == "b" else _INTEGER
    result = np.asarray((table.get(node.op) or _ANY[node.op])(*args))
    return result.astype(REGISTERS[BODY_OP[node.op].result_of(node.type)], copy=False)


def _letter(immediate: object) -> str:
    return str(getattr(immediate, "value", immediate))


def _format(immediate: object) -> Format:
    return immediate if isinstance(immediate, Format) else Format[str(immediate)]


# --- conversions


def cast(x: Array, type_: np.dtype) -> Array:
    """Between registers. float to integer truncates and saturates, NaN gives 0; to truth: not 0."""
    if type_ == np.bool_ or x.dtype != np.float32 or type_ == np.float32:
        return x.astype(type_)  # int to float rounds to nearest even; int64 to int32 wraps
    limits = np.iinfo(type_)
    whole = np.nan_to_num(np.trunc(x).astype(np.float64), nan=0.0)
    # 2^31 and 2^63 are floats, the largest integers are not (of 64 bits): compare with the powers.
    low, high = whole < float(limits.min), whole >= float(limits.max // 2 + 1) * 2
    inside = np.where(low | high, 0.0, whole).astype(type_)
    return np.where(high, limits.max, np.where(low, limits.min, inside)).astype(type_)


def _bits(x: Array, type_: np.dtype) -> Array:
    if x.dtype == np.float32 and type_ == np.int32:
        x = np.where(np.isnan(x), np.float32(np.nan), x)  # one NaN, whatever made it
    return np.asarray(x, order="C").view(type_)


def philox(key: Array, counter: Array, word: int) -> Array:
    """Word 0..3 of Philox4x32-10 (Salmon et al., SC 2011) at a 64-bit key and counter, int32."""
    low = np.uint64(0xFFFF_FFFF)
    half = np.uint64(32)
    k, c = key.astype(np.uint64), counter.astype(np.uint64)
    k, c = np.broadcast_arrays(k, c)
    keys = [k & low, k >> half]
    words = [c & low, c >> half, np.zeros_like(c), np.zeros_like(c)]
    for _ in range(10):
        first = words[0] * np.uint64(0xD2511F53)
        second = words[2] * np.uint64(0xCD9E8D57)
        words = [
            (second >> half) ^ words[1] ^ keys[0],
            second & low,
            (first >> half) ^ words[3] ^ keys[1],
            first & low,
        ]
        keys = [(keys[0] + np.uint64(0x9E3779B9)) & low, (keys[1] + np.uint64(0xBB67AE85)) & low]
    return words[word].astype(np.uint32).view(np.int32)


# --- float operations (registers are float32; numpy does not leave it)


def maximum(a: Array, b: Array) -> Array:
    """b when it is larger or NaN, else a: NaN wins, and of equal zeros the first stays."""
    return np.where((b > a) | (b != b), b, a)


def minimum(a: Array, b: Array) -> Array:
    """b when it is smaller or NaN, else a."""
    return np.where((b < a) | (b != b), b, a)


def _float_remainder(a: Array, b: Array) -> Array:
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


def _float_floor_div(a: Array, b: Array) -> Array:
    rest = np.fmod(a, b)
    quotient = (a - rest) / b
    quotient = quotient - ((rest != 0) & ((b < 0) != (rest < 0))).astype(np.float32)
    whole = np.floor(quotient)
    whole = whole + (quotient - whole > np.float32(0.5)).astype(np.float32)
    whole = np.where(quotient != 0, whole, np.copysign(np.float32(0), a / b))
    return np.where(b == 0, a / b, whole)


def _copysign(a: Array, b: Array) -> Array:
    return np.copysign(a, np.where(np.isnan(b), np.float32(0), b))  # a NaN has no sign


def _sign(x: Array) -> Array:
    return np.where(np.isnan(x), x, (x > 0).astype(np.float32) - (x < 0).astype(np.float32))


_FLOAT: dict[str, Operation] = {
    "sign": _sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "round_even": np.rint,
    "trunc": np.trunc,
    "frac": lambda x: x - np.trunc(x),
    "sqrt": np.sqrt,
    "reciprocal": lambda x: np.float32(1) / x,
    "relu": lambda x: np.where(x < 0, np.float32(0), x),
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "div": lambda a, b: a / b,
    "copysign": _copysign,
    "fmod": np.fmod,
    "remainder": _float_remainder,
    "floor_div": _float_floor_div,
    "trunc_div": lambda a, b: np.trunc(a / b),
}

# --- integer operations


def _trunc_div(a: Array, b: Array) -> Array:
    # By 0: 0. By -1: the negative, which wraps, where the processor would trap.
    safe = np.where((b == 0) | (b == -1), 1, b)
    quotient = a // safe
    quotient = quotient + ((quotient * safe != a) & ((a < 0) != (safe < 0)))
    return np.where(b == 0, 0, np.where(b == -1, -a, quotient))


def _fmod(a: Array, b: Array) -> Array:
    return a - _trunc_div(a, b) * b  # b = 0 leaves a


def _floor_div(a: Array, b: Array) -> Array:
    quotient = _trunc_div(a, b)
    rest = a - quotient * b
    return quotient - ((b != 0) & (rest != 0) & ((rest < 0) != (b < 0)))


def _remainder(a: Array, b: Array) -> Array:
    rest = _fmod(a, b)
    return rest + np.where((b != 0) & (rest != 0) & ((rest < 0) != (b < 0)), b, 0)


def _shift(a: Array, b: Array, how: str) -> Array:
    width = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < width)
    count = np.where(inside, b, 0)
    if how == "shl":
        return np.where(inside, a << count, 0)
    if how == "shr":
        return np.where(inside, a >> count, a >> (width - 1))
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    shifted = a.astype(unsigned) >> count.astype(unsigned)
    return np.where(inside, shifted, 0).astype(a.dtype)


_INTEGER: dict[str, Operation] = {
    "sign": np.sign,
    "fmod": _fmod,
    "remainder": _remainder,
    "floor_div": _floor_div,
    "trunc_div": _trunc_div,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.bitwise_not,
    "shl": lambda a, b: _shift(a, b, "shl"),
    "shr": lambda a, b: _shift(a, b, "shr"),
    "shr_logical": lambda a, b: _shift(a, b, "shr_logical"),
    "unit": lambda x: ((x >> 8) & 0xFF_FFFF).astype(np.float32) * np.float32(2.0**-24),
}

_TRUTH: dict[str, Operation] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "not": np.logical_not,
}

# --- of all types alike

_ANY: dict[str, Operation] = {
    "neg": np.negative,
    "abs": np.abs,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "min": minimum,
    "max": maximum,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "where": np.where,
}
