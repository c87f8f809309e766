"""Groups of cores that behave alike, so that the engine follows one of each group.

Two cores are alike when the numbers that shape their schedule are equal (loop counts and token
counts) and their partners on the ring and in remote signals are alike. Addresses do not count, and
tile sizes do not either: a group goes in step, at the pace of its largest tiles, and its `variants`
tell how many cores have which sizes.

Cores with few transfers are groups of their own: a group's transfer ends for all its cores at once,
which hides that the first of them computes while the last still loads. Over many tiles that makes
no difference, over one or two it does. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

from openspyre.program.concrete import Instance, ProgramError, compiled
from openspyre.program.expr import Expr, ExprError
from openspyre.program.model import (
    Compute,
    Instruction,
    Load,
    Loop,
    Program,
    Ring,
    Signal,
    Store,
    Unit,
    Wait,
)

FEW_TRANSFERS = 12
"""Up to so many LOADs and STOREs, cores are followed one by one: three tiles of two inputs and an
output, and some rest. Bounds what that costs, too."""


@dataclass(frozen=True)
class CoreClass:
    """Cores that run alike; `cores` ascending, the first one stands for them. `variants`: the
    first core and the number of those whose tiles have the same sizes."""

    cores: tuple[int, ...]
    variants: tuple[tuple[int, int], ...]

    @property
    def leader(self) -> int:
        return self.cores[0]

    def __len__(self) -> int:
        return len(self.cores)


def instructions(program: Program) -> Iterator[Instruction]:
    """Every instruction, those inside loops included."""
    for body in program.queues.values():
        yield from _within(body)


def _within(body: tuple[Instruction, ...]) -> Iterator[Instruction]:
    for item in body:
        yield item
        if isinstance(item, Loop):
            yield from _within(item.body)


def _shaping(item: Instruction) -> Iterator[Expr]:
    if isinstance(item, Loop | Ring):
        yield item.count
    elif isinstance(item, Wait | Signal):
        yield item.count
        yield item.index


def _sizing(item: Instruction) -> Iterator[Expr]:
    if not isinstance(item, Loop | Wait | Signal):
        for label in item.over:
            yield label.size
        if isinstance(item, Compute):
            yield item.limit


def core_classes(instance: Instance) -> list[CoreClass]:
    """The groups, by their first core. Raises ProgramError for a partner that does not exist."""
    program = instance.program
    fixed = set(instance.core_values[0])
    counts: set[Expr] = set()  # decided per core
    names: set[str] = set()  # of what takes part in numbers that loops decide
    sizes: set[str] = set()
    partners: list[tuple[Expr, str | None, Expr | None]] = []
    for item in instructions(program):
        for expr in _shaping(item):
            if fixed.issuperset(expr.names()):
                counts.add(expr)
            else:
                names.update(fixed.intersection(expr.names()))
        for expr in _sizing(item):
            sizes.update(expr.names())
        if isinstance(item, Signal) and item.core is not None:
            partners.append((item.core, None, None))
        elif isinstance(item, Ring):
            partners.append((item.core, item.variable, item.count))
    ordered = [expr for expr in counts if next(expr.names(), None) is not None]
    key: list[object] = [
        (
            tuple(compiled(expr)(values) for expr in ordered),
            tuple(values[name] for name in sorted(names)),
        )
        for values in instance.core_values
    ]
    seen = [_partners(instance, partners, core) for core in range(instance.cores)]
    # Refine until the partners of alike cores are alike (as automata are minimised).
    for _ in range(instance.cores):
        number = {k: i for i, k in enumerate(dict.fromkeys(key))}
        refined: list[object] = [
            (number[key[core]], tuple(p if p < 0 else number[key[p]] for p in seen[core]))
            for core in range(instance.cores)
        ]
        if len(set(refined)) == len(number):
            break
        key = refined
    groups: dict[object, list[int]] = {}
    for core in range(instance.cores):
        groups.setdefault(key[core], []).append(core)
    sized = sorted(sizes & fixed)
    if not _in_step(program):
        for like, cores in list(groups.items()):
            if _few_transfers(instance, cores[0]):
                del groups[like]
                groups.update(((like, core), [core]) for core in cores)
    return [CoreClass(tuple(cores), _variants(instance, sized, cores)) for cores in groups.values()]


def _in_step(program: Program) -> bool:
    """Whether cores go in step with others: over the ring, by signals, by sharing reads tile after
    tile. (What all read once, ahead of their loops, does not tie them.)"""
    inside = [
        item
        for body in program.queues.values()
        for loop in body
        if isinstance(loop, Loop)
        for item in _within(loop.body)
    ]
    if any(isinstance(item, Load) and item.multicast for item in inside):
        return True
    return any(
        isinstance(item, Ring) or (isinstance(item, Signal) and item.core is not None)
        for item in instructions(program)
    )


def _few_transfers(instance: Instance, core: int) -> bool:
    tasks = chain.from_iterable(
        instance.walk(core, unit)
        for unit in (Unit.LOAD, Unit.STORE)
        if unit in instance.program.queues
    )
    transfers = (task for task in tasks if isinstance(task.instruction, Load | Store))
    # Cores that have nothing to do need not be told apart.
    return 0 < len(list(islice(transfers, FEW_TRANSFERS + 1))) <= FEW_TRANSFERS


def _variants(
    instance: Instance, names: list[str], cores: list[int]
) -> tuple[tuple[int, int], ...]:
    alike: dict[tuple[int, ...], list[int]] = {}
    for core in cores:
        values = instance.core_values[core]
        alike.setdefault(tuple(values[name] for name in names), []).append(core)
    return tuple((found[0], len(found)) for found in alike.values())


def _partners(
    instance: Instance, exprs: list[tuple[Expr, str | None, Expr | None]], core: int
) -> tuple[int, ...]:
    """The partner cores by expression; -1 - core (which makes the core a class of its own) where
    a loop decides."""
    values = instance.core_values[core]
    out: list[int] = []
    for expr, variable, count in exprs:
        free = {name for name in expr.names() if name not in values and name != variable}
        try:
            repeat = 1 if count is None else count.evaluate(values)
            if free:
                raise ExprError("decided in a loop")
            for q in range(repeat):
                partner = compiled(expr)(values if variable is None else {**values, variable: q})
                # A branch not taken may compute nonsense: only its value when taken matters.
                out.append(partner if 0 <= partner < instance.cores else -1 - core)
        except ExprError:
            out.append(-1 - core)
    return tuple(out)


def group_size(instance: Instance, item: Load) -> int:
    """Cores that share one read of a multicast LOAD."""
    sizes = {digit.name: digit.size for digit in instance.program.grid}
    product = 1
    for name in item.multicast:
        if name not in sizes:
            raise ProgramError(f"multicast: no digit {name!r}")
        product *= sizes[name]
    return product


def moves(item: Load | Store) -> str:
    """The operand a LOAD or STORE names in LPDDR5."""
    return item.source.place if isinstance(item, Load) else item.target.place
