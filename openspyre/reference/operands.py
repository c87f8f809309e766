"""Logical arrays to the bytes of an operand, and back.

The bytes are those of a tensor of the operand's layout from its first element to the end of its
last stick (`OperandLayout.nbytes`). May import numpy; imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from openspyre.formats import (
    DL16_HALF_MAX,
    DL16_LARGEST,
    DL16_MERGED,
    Format,
    Numerics,
)
from openspyre.program.concrete import OperandLayout, operand_layout
from openspyre.program.model import Operand
from openspyre.reference import numbers
from openspyre.reference.memory import fill_poison
from openspyre.reference.numbers import Array

_DEFAULT = Numerics()


def _layout(operand: Operand, symbols: Mapping[str, int | float] | None) -> OperandLayout:
    known = {name: value for name, value in (symbols or {}).items() if isinstance(value, int)}
    return operand_layout(operand, known)


def element_addresses(layout: OperandLayout) -> Array:
    """Byte offset of every element, int64, in the operand's shape."""
    eps, size = layout.format.elements_per_stick, layout.format.bytes
    rank = len(layout.shape)
    out = np.zeros([1] * rank, dtype=np.int64)
    for dim, (count, stride) in enumerate(zip(layout.shape, layout.strides, strict=True)):
        at = np.arange(count, dtype=np.int64)
        moved = at // eps * stride + at % eps * size if dim == layout.stick else at * stride
        out = out + moved.reshape([-1 if axis == dim else 1 for axis in range(rank)])
    return np.broadcast_to(out, layout.shape)


def defined_bytes(operand: Operand, symbols: Mapping[str, int | float] | None = None) -> Array:
    """For every byte of the operand whether it is part of an element (bool); the others are pads,
    which no two executors need to agree on."""
    layout = _layout(operand, symbols)
    out = np.zeros(layout.nbytes, dtype=np.bool_)
    out[element_addresses(layout)[..., None] + np.arange(operand.format.bytes)] = True
    return out


def host_codes(array: Array, dtype: str, format: Format, numerics: Numerics) -> Array:
    """Card codes of host values, as a copy to the card makes them: finite float16 and bfloat16
    values saturate where a computed value would overflow."""
    if format.is_host:
        raw = np.asarray(array, order="C")
        if raw.dtype.itemsize != format.bytes:
            raise ValueError(f"{raw.dtype} is not {format.bytes} bytes, as {format.name} is")
        return raw
    if numbers.letter_of(format) != "f":
        return np.asarray(array).astype(np.int64).astype(numbers.codes_type(format))
    values = np.asarray(array)
    if dtype == "bool":
        return numbers.encode(values != 0, format, numerics)
    with np.errstate(all="ignore"):
        values = values.astype(np.float32)
        if dtype == "float16":
            values = values.astype(np.float16).astype(np.float32)
        elif dtype == "bfloat16":
            rounded = numbers.encode(values, Format.BFLOAT16, numerics)
            values = numbers.decode(rounded, Format.BFLOAT16, numerics)
    codes = numbers.encode(values, format, numerics)
    if format is Format.SEN169_FP16 and dtype in ("float16", "bfloat16"):
        largest = DL16_HALF_MAX if dtype == "float16" else DL16_LARGEST
        over = np.isfinite(values) & ((codes & DL16_MERGED) > largest)
        codes = np.where(over, codes & 0x8000 | largest, codes).astype(np.uint16)
    return codes


def pack_codes(
    operand: Operand, codes: Array, symbols: Mapping[str, int | float] | None = None
) -> Array:
    """Device bytes (uint8) with these codes; pads are poison."""
    layout = _layout(operand, symbols)
    if codes.shape != layout.shape:
        raise ValueError(f"operand {operand.name} has shape {layout.shape}, not {codes.shape}")
    out = np.empty(layout.nbytes, dtype=np.uint8)
    fill_poison(out)
    spread = element_addresses(layout)[..., None] + np.arange(operand.format.bytes)
    out[spread] = np.asarray(codes, order="C")[..., None].view(np.uint8)
    return out


def pack(
    operand: Operand,
    array: Array,
    numerics: Numerics = _DEFAULT,
    symbols: Mapping[str, int | float] | None = None,
) -> Array:
    """Device bytes (uint8) of a logical array of the operand's shape; pads are poison.

    Raises ValueError for another shape and, with a host format, another element size.
    """
    return pack_codes(operand, host_codes(array, operand.dtype, operand.format, numerics), symbols)


def empty(operand: Operand, symbols: Mapping[str, int | float] | None = None) -> Array:
    """Device bytes of an operand that holds nothing: poison."""
    out = np.empty(_layout(operand, symbols).nbytes, dtype=np.uint8)
    fill_poison(out)
    return out


def unpack_codes(
    operand: Operand, data: Array, symbols: Mapping[str, int | float] | None = None
) -> Array:
    """The elements' codes (unsigned; raw bytes in a last axis for HOST_16), in logical shape."""
    layout = _layout(operand, symbols)
    size = operand.format.bytes
    raw = np.asarray(data)[element_addresses(layout)[..., None] + np.arange(size)]
    return raw if size > 8 else raw.view(numbers.codes_type(operand.format))[..., 0]


def unpack(
    operand: Operand,
    data: Array,
    numerics: Numerics = _DEFAULT,
    symbols: Mapping[str, int | float] | None = None,
) -> Array:
    """The logical array: float formats as float32 exactly, bool as bool, integers as themselves,
    host formats as codes."""
    codes = unpack_codes(operand, data, symbols)
    if operand.format.is_host:
        return codes
    values = numbers.decode(codes, operand.format, numerics)
    if operand.dtype == "bool":
        return values != 0
    wanted: dict[str, Any] = {"int8": np.int8, "int16": np.int16, "uint8": np.uint8}
    return values.astype(wanted[operand.dtype]) if operand.dtype in wanted else values
