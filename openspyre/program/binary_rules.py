"""What both halves of the binary form share: its error, its limits, the tables of codes and the
typing of bodies. Imports no torch."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence

from openspyre.formats import Format
from openspyre.program.model import Node, Operand, Role, Symbol, SymbolKind
from openspyre.program.ops import BODY_OP, BODY_OPS, RegisterType

# Limits of an image. The machine's decoder has the same (csrc/machine/program/program.h).
MAX_LABELS = 8
MAX_TILES = 8  # inputs of an instruction, and outputs
MAX_RANK = 6
MAX_DEPTH = 64  # of an expression and of a nest of loops
MAX_CORES = 1024
MAX_DIGITS = 16
MAX_LX_BYTES = 64 << 20
MAX_SEMAPHORES = 1 << 16  # of a core; keeps a hostile count from becoming memory
MAX_NAME = 255  # bytes
STRIDED = 2  # instead of the presence of an operand's `within`: strides and stick follow
MAX_NODES = 4096  # of a body; bounds the memory of its registers

ROLES = tuple(Role)
SYMBOL_KINDS = tuple(SymbolKind)
FORMATS = tuple(Format)
FORMAT_NAMES = tuple(format.name for format in Format)
LETTERS = "".join(register.value for register in RegisterType)
OP_CODE = {op.name: code for code, op in enumerate(BODY_OPS)}
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
BUILT_IN = "core"  # the one variable that every program has


class ProgramFormatError(ValueError):
    """A program that has no binary form, or bytes that are none: names field, place and rule."""


def is_name(text: object) -> bool:
    """Names of operands, values, labels and the like: identifiers, so that every program has a text
    form."""
    return isinstance(text, str) and len(text) <= MAX_NAME and NAME.fullmatch(text) is not None


def symbol_fault(symbol: Symbol, arguments: Sequence[Operand]) -> str | None:
    """What is wrong with a symbol of a program with these launch arguments, or None."""
    if symbol.granularity < 1:
        return f"its granularity is {symbol.granularity} and must be at least 1"
    if symbol.kind is not SymbolKind.DIMENSION:
        return None
    if not 0 <= symbol.argument < len(arguments):
        return f"argument {symbol.argument} is not one of the {len(arguments)} launch arguments"
    rank = len(arguments[symbol.argument].shape)
    if not 0 <= symbol.dim < rank:
        return f"dim {symbol.dim} is not one of the {rank} dims of argument {symbol.argument}"
    return None


def scalar_fault(symbol: Symbol, letter: str) -> str | None:
    """Why a body may not read `symbol` as type `letter`, or None: an `f` reads a FLOAT, an `l` an
    INT or a DIMENSION."""
    if (symbol.kind is SymbolKind.FLOAT) == (letter == "f"):
        return None
    return f"symbol {symbol.name} is a {symbol.kind.value} and cannot be read as type {letter}"


def float_bits(value: float) -> bytes:
    """The four bytes of a float constant, rounded to float32 as the register it is for."""
    if math.isnan(value):
        return struct.pack("<I", 0x7FC00000)
    try:
        return struct.pack("<f", value)
    except OverflowError:
        raise ProgramFormatError(f"the constant {value} does not fit in float32") from None


def float_value(data: bytes) -> float:
    """The inverse of `float_bits`. Every NaN is `math.nan`: then equal programs compare equal."""
    value = struct.unpack("<f", data)[0]
    return math.nan if math.isnan(value) else value


def body_fault(nodes: Sequence[Node], results: Sequence[int], inputs: int) -> str | None:
    """What is wrong with a body whose instruction has `inputs` inputs, or None."""
    if len(nodes) > MAX_NODES:
        return f"{len(nodes)} operations, but at most {MAX_NODES} are allowed: split it in two MAPs"
    letters: list[str] = []
    for position, node in enumerate(nodes):
        op = BODY_OP.get(node.op)
        where = f"node {position} {node.op}.{node.type}"
        if op is None:
            return f"{where}: no such operation"
        if node.type not in op.types or len(node.type) != 1:
            return f"{where}: exists for the types {', '.join(op.types)} only"
        if len(node.args) != len(op.operands):
            return f"{where}: takes {len(op.operands)} operands, got {len(node.args)}"
        for arg, letter in zip(node.args, op.operands, strict=True):
            if not 0 <= arg < position:
                return f"{where}: operand {arg} is no earlier node"
            wanted = node.type if letter == "T" else letter
            if letters[arg] != wanted:
                return f"{where}: operand {arg} has type {letters[arg]}, {wanted} is needed"
        fault = _immediate_fault(node, inputs)
        if fault is not None:
            return f"{where}: {fault}"
        letters.append(op.result_of(node.type, node.immediate))
    for result in results:
        if not 0 <= result < len(nodes):
            return f"result {result} is no node"
    return None


def _immediate_fault(node: Node, inputs: int) -> str | None:
    """Labels and symbols are looked up by the caller, who knows them."""
    wanted, value = BODY_OP[node.op].immediate, node.immediate
    if wanted == "":
        return None if value is None else "takes no immediate"
    if wanted == "T":
        ok = isinstance(value, int | float if node.type == "f" else int)
        low, high = {
            "i": (-(2**31), 2**31 - 1), "l": (-(2**63), 2**63 - 1), "b": (0, 1),
        }.get(node.type, (float("-inf"), float("inf")))  # fmt: skip
        if ok and isinstance(value, int) and not low <= value <= high:
            return f"the constant {value} does not fit in type {node.type}"
        return None if ok else f"the constant {value!r} is no number of type {node.type}"
    if wanted == "int":
        ok = isinstance(value, int) and 0 <= value <= 3
        return None if ok else f"the word {value!r} is not in 0..3"
    if wanted == "input":
        ok = isinstance(value, int) and 0 <= value < inputs
        return None if ok else f"input {value!r} is not one of the {inputs} inputs"
    if wanted == "format":
        return None if value in Format.__members__ else f"{value!r} is no format"
    if wanted == "type":
        letters = "fi" if node.op == "bits" else "filb"
        ok = isinstance(value, str) and len(value) == 1 and value in letters
        return None if ok else f"{value!r} is not one of the types {', '.join(letters)}"
    return None if isinstance(value, str) else f"{value!r} is no name"
