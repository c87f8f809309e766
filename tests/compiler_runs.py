"""Running Programs of the compiler in tests: arrays in, arrays out, pads poisoned.

`run` executes on the reference executor or on the native machine, `check` on both (bit-equal),
after the verifier had its word. Not a test file.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np
import torch  # noqa: F401  the extension needs it loaded

from openspyre import _C, reference
from openspyre.formats import Mode, Numerics
from openspyre.program import Program
from openspyre.program.binary import encode
from openspyre.program.model import Operand, Role, SymbolKind
from openspyre.program.verify import verify
from openspyre.reference.operands import host_codes

Arrays = dict[str, np.ndarray]


def device_bytes(
    program: Program,
    inputs: Mapping[str, np.ndarray],
    symbols: Mapping[str, int | float],
    numerics: Numerics,
) -> Arrays:
    """The bytes of every launch argument before the launch, pads and outputs poisoned."""
    return {
        o.name: _packed(o, np.asarray(inputs[o.name]), numerics, symbols)
        if o.name in inputs
        else reference.empty(o, symbols)
        for o in program.operands
        if o.role in (Role.IN, Role.OUT, Role.INOUT)
    }


def _packed(
    operand: Operand,
    array: np.ndarray,
    numerics: Numerics,
    symbols: Mapping[str, int | float],
) -> np.ndarray:
    """As `reference.pack`, but float32 values of a float16 operand, which another program has left,
    are not rounded to IEEE float16 on their way: small DLFloat16 numbers have no such neighbour."""
    if operand.dtype == "float16" and array.dtype == np.float32:
        codes = host_codes(array, "float32", operand.format, numerics)
        return reference.pack_codes(operand, codes, symbols)
    return reference.pack(operand, array, numerics, symbols)


def execute(
    program: Program,
    data: Arrays,
    symbols: Mapping[str, int | float],
    numerics: Numerics,
    native: bool,
) -> None:
    """One launch on device bytes; outputs are changed."""
    if not native:
        reference.run(program, data, symbols, numerics)
        return
    words = [
        struct.unpack("<i", struct.pack("<f", symbols[s.name]))[0]
        if s.kind is SymbolKind.FLOAT
        else int(symbols[s.name])
        for s in program.symbols
    ]
    _C.NativeProgram(encode(program)).execute(
        [data.get(o.name) for o in program.operands],
        words,
        numerics.mode.value,
        numerics.tie.value,
        numerics.merged_is_nan,
    )


def run(
    program: Program,
    inputs: Mapping[str, np.ndarray],
    symbols: Mapping[str, int | float] | None = None,
    *,
    native: bool = False,
    mode: Mode = Mode.DL16,
) -> Arrays:
    """What the program writes, as logical arrays (16-bit floats as float32)."""
    numerics, known = Numerics(mode=mode), dict(symbols or {})
    data = device_bytes(program, inputs, known, numerics)
    execute(program, data, known, numerics, native)
    return {
        o.name: reference.unpack(o, data[o.name], numerics, known)
        for o in program.operands
        if o.role in (Role.OUT, Role.INOUT)
    }


def check(
    program: Program,
    inputs: Mapping[str, np.ndarray],
    symbols: Mapping[str, int | float] | None = None,
    *,
    mode: Mode = Mode.DL16,
    small: bool = True,
) -> Arrays:
    """As `run` on the native machine, after `verify`; `small`: the reference executor must give
    the same bits."""
    whole = {k: v for k, v in (symbols or {}).items() if isinstance(v, int)}
    verify(program, whole if symbols else None)
    found = run(program, inputs, symbols, native=True, mode=mode)
    if small:
        slow = run(program, inputs, symbols, mode=mode)
        for name, array in found.items():
            np.testing.assert_array_equal(
                array.view(np.uint8) if array.ndim else array,
                slow[name].view(np.uint8) if array.ndim else slow[name],
                err_msg=name,
            )
    return found
