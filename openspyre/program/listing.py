"""A listing of a Program: which bytes of LPDDR5 each core reads and writes, and what it computes.

The view that the public compiler's bundles give (start addresses per core). Pure integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from openspyre.formats import STICK_BYTES
from openspyre.program.concrete import Instance, Task, accesses
from openspyre.program.model import Compute, Load, Loop, Program, Store, Unit


@dataclass(frozen=True)
class Share:
    """What one core moves of one operand: `first` and `end` byte (absolute, see `Listing.bases`),
    in `transfers` transfers of `nbytes` bytes together."""

    operand: str
    unit: str
    core: int
    first: int
    end: int
    transfers: int
    nbytes: int


@dataclass(frozen=True)
class Listing:
    """`bases`: where each operand lies; `computes`: (unit, operation), in the queues' order."""

    name: str
    cores: int
    bases: dict[str, int]
    nbytes: dict[str, int]
    shares: tuple[Share, ...]
    computes: tuple[tuple[str, str], ...]

    def text(self) -> str:
        """A table: an operand a column, a core a row."""
        lines = [f"program {self.name}: {self.cores} cores"]
        for operand, base in self.bases.items():
            lines.append(f"  {operand}: {self.nbytes[operand]:,} B at {base}")
        for unit, operation in self.computes:
            lines.append(f"  {unit}: {operation}")
        columns = list(dict.fromkeys((s.operand, s.unit) for s in self.shares))
        found = {(s.operand, s.unit, s.core): s for s in self.shares}
        lines.append("core  " + "".join(f"{f'{o} {u}':>28}" for o, u in columns).rstrip())
        for core in range(self.cores):
            cells = []
            for operand, unit in columns:
                share = found.get((operand, unit, core))
                cell = "-" if share is None else f"{share.first}..{share.end} x{share.transfers}"
                cells.append(f"{cell:>28}")
            lines.append(f"{core:>4}  {''.join(cells)}")
        return "\n".join(lines)


def listing(
    program: Program,
    symbols: Mapping[str, int] | None = None,
    bases: Mapping[str, int] | None = None,
) -> Listing:
    """The listing of `program` under `symbols`. `bases`: byte address of each operand; without it
    the operands lie one behind the other from 0, at whole sticks. Raises ProgramError for symbols
    that do not fit. Takes time in proportion to the transfers: loops are expanded."""
    instance = Instance(program, symbols)
    nbytes = {name: layout.nbytes for name, layout in instance.operands.items()}
    placed = dict(bases or {})
    end = 0
    for name, size in nbytes.items():
        if name not in placed:
            placed[name] = end
        end = placed[name] + -(-size // STICK_BYTES) * STICK_BYTES
    shares: dict[tuple[str, str, int], Share] = {}
    for core in range(program.cores):
        for unit in (Unit.LOAD, Unit.STORE):
            for task in instance.walk(core, unit):
                _note(instance, task, placed, shares)
    return Listing(
        program.name, program.cores, placed, nbytes, tuple(shares.values()), _computes(program)
    )


def _note(
    instance: Instance,
    task: Task,
    bases: Mapping[str, int],
    shares: dict[tuple[str, str, int], Share],
) -> None:
    if not isinstance(task.instruction, (Load, Store)):
        return
    for access in (a for side in accesses(task.instruction) for a in side):
        if access.place not in bases:
            continue
        tile = instance.tile(task, access)
        if tile.empty:
            continue
        first, end = (bases[access.place] + byte for byte in tile.span)
        key = (access.place, task.unit.value, task.core)
        old = shares.get(key)
        shares[key] = Share(
            *key,
            first if old is None else min(first, old.first),
            end if old is None else max(end, old.end),
            1 + (old.transfers if old else 0),
            tile.nbytes + (old.nbytes if old else 0),
        )


def _computes(program: Program) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []

    def walk(unit: Unit, body: tuple[object, ...]) -> None:
        for item in body:
            if isinstance(item, Loop):
                walk(unit, item.body)
            elif isinstance(item, Compute):
                found.append((unit.value, _operation(item)))

    for unit, body in program.queues.items():
        walk(unit, body)
    return tuple(dict.fromkeys(found))


def _operation(code: Compute) -> str:
    if code.body is None:
        return code.kind.value
    names = [node.op for node in code.body.nodes if node.op not in ("input", "const")]
    return f"{code.kind.value} ({', '.join(names)})" if names else code.kind.value
