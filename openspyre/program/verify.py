"""The static verifier: whether a Program is one, before anything runs.

`verify` runs the program abstractly, tile by tile, under given symbols (by default under the ends
and the middle of every dimension) and holds it to the rules of docs/program.md section 4. Where
it finds no fault, no execution reads what was not written, overwrites what is in use, deadlocks,
stores an element of an `out` operand twice or never, or sums an index twice or never.

The rooms behind it: `verify_structure`, `verify_kinds` (rule 1 without numbers), `verify_numbers`
(64 bits), `verify_run` (the run), `verify_transfers`, `verify_compute` (by instruction),
`verify_access`, `verify_tiles` (rules 2 and 3), `verify_state`, `verify_memory` (4 and 5),
`verify_scatter` (7), `verify_cover` (8). May import numpy; imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from openspyre.program.concrete import Instance, ProgramError
from openspyre.program.expr import ExprError
from openspyre.program.model import Program, Symbol, SymbolKind
from openspyre.program.tokens import TASK_LIMIT
from openspyre.program.verify_error import RULES, VerifyError
from openspyre.program.verify_run import Run
from openspyre.program.verify_state import Counts
from openspyre.program.verify_structure import check_structure

DEFAULT_LARGEST = 1 << 12
"""What stands for the maximum of a symbol that has none to speak of, in steps above its minimum."""


@dataclass(frozen=True)
class Report:
    """What a verified program moves, for the last of the symbols in `checked`: so many tasks of
    all cores, bytes of LX in use on each core, bytes read from LPDDR5 (a multicast counted once,
    and counted for each of its cores), written there, and brought into LX (by LOAD and RING)."""

    checked: tuple[dict[str, int], ...]  # the symbols it was verified under
    tasks: int
    computes: dict[str, int]  # COMPUTEs by unit
    lx_bytes: tuple[int, ...]  # of each core
    read_bytes: int
    read_bytes_without_multicast: int
    written_bytes: int
    lx_received_bytes: int
    ring_bytes: int

    @property
    def lx_peak(self) -> int:
        """Bytes of LX that the fullest core uses."""
        return max(self.lx_bytes, default=0)


def verify(
    program: Program, symbols: Mapping[str, int] | None = None, *, limit: int = TASK_LIMIT
) -> Report:
    """Holds a program to the rules. `symbols`: verify it under these alone; else under
    `samples(program)`. `limit`: more tasks than that are refused.

    Raises VerifyError: rule, queue, instruction, core, loop indices, bytes and the way out.
    """
    _structure(program)
    checked = (dict(symbols),) if symbols is not None else samples(program)
    counts = Counts()
    for values in checked:
        counts = _run(program, values, limit)
    return Report(
        checked=checked,
        tasks=counts.tasks,
        computes={unit.value: count for unit, count in counts.computes.items()},
        lx_bytes=tuple(counts.lx_bytes),
        read_bytes=counts.read,
        read_bytes_without_multicast=counts.read_without_multicast,
        written_bytes=counts.written,
        lx_received_bytes=counts.lx_received,
        ring_bytes=counts.ring,
    )


def problems(
    program: Program, symbols: Mapping[str, int] | None = None, *, limit: int = TASK_LIMIT
) -> list[VerifyError]:
    """The faults that `verify` finds, one for each set of symbols; empty for a valid program."""
    found: list[VerifyError] = []
    try:
        _structure(program)
    except VerifyError as error:
        return [error]
    for values in (dict(symbols),) if symbols is not None else samples(program):
        try:
            _run(program, values, limit)
        except VerifyError as error:
            if all(str(error) != str(other) for other in found):
                found.append(error)
    return found


def samples(program: Program) -> tuple[dict[str, int], ...]:
    """The symbols a program is verified under by default: all at their least, all in the middle,
    each alone at its largest, and all at their largest. A maximum too far from the minimum to be
    meant is taken as DEFAULT_LARGEST steps."""
    ranges = {
        symbol.name: _sample(symbol)
        for symbol in program.symbols
        if symbol.kind is not SymbolKind.FLOAT
    }
    least = {name: values[0] for name, values in ranges.items()}
    out = [least, {name: values[1] for name, values in ranges.items()}]
    if len(ranges) > 1:
        out += [{**least, name: values[2]} for name, values in ranges.items()]
    out.append({name: values[2] for name, values in ranges.items()})
    unique: list[dict[str, int]] = []
    for values in out:
        if values not in unique:
            unique.append(values)
    return tuple(unique)


def _sample(symbol: Symbol) -> tuple[int, int, int]:
    """Least, middle and largest value."""
    step = 1
    low, high = symbol.minimum, symbol.maximum
    if symbol.kind is SymbolKind.DIMENSION:
        step = symbol.granularity
        low = max(-(-low // step), 1) * step
        high = high // step * step
    high = min(high, low + step * DEFAULT_LARGEST)
    if high < low:
        raise VerifyError(
            1,
            f"symbol {symbol.name}",
            f"no multiple of {symbol.granularity} lies in {symbol.minimum}..{symbol.maximum}",
        )
    return low, low + (high - low) // (2 * step) * step, high


def _structure(program: Program) -> None:
    try:
        check_structure(program)
    except RecursionError:
        raise VerifyError(1, "program", "expressions or loops are nested too deeply") from None


def _run(program: Program, symbols: Mapping[str, int], limit: int) -> Counts:
    try:
        instance = Instance(program, symbols)
        run = Run(instance, limit)
    except VerifyError:
        raise
    except (ProgramError, ExprError, ZeroDivisionError, OverflowError) as error:
        raise VerifyError(1, "program", str(error)) from None
    try:
        return run.execute()
    except VerifyError as error:
        if not symbols:
            raise
        given = ", ".join(f"{name} = {value}" for name, value in symbols.items())
        raise VerifyError(error.rule, f"{error.place} (with {given})", error.reason) from None


__all__ = ["RULES", "Report", "VerifyError", "problems", "samples", "verify"]
