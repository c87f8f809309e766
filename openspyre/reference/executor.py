"""Runs a Program: the law of what it means, slow and obvious.

Every tile is really moved: bytes from LPDDR5 into the LX of a core, registers out of it, codes back
into it, sticks out again. The tokens alone decide what may run; a seed draws another legal order.
The native machine (`csrc/machine/program`) is held to this one byte for byte.

May import numpy and openspyre.program; imports no torch (but see `functions`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from openspyre.formats import Numerics
from openspyre.program.concrete import Instance, ProgramError, Task
from openspyre.program.expr import ExprError
from openspyre.program.model import Compute, Load, Program, Ring, Role, Store, SymbolKind
from openspyre.program.ops import Kind
from openspyre.program.tokens import (
    TASK_LIMIT,
    Interleaving,
    Step,
    TokenError,
    TokenFault,
    queue_name,
)
from openspyre.reference import compute, indexed, transfers
from openspyre.reference.faults import FaultKind, ReferenceFault
from openspyre.reference.machine import Counts, Machine, Place
from openspyre.reference.memory import Actor, Memory, fill_poison
from openspyre.reference.numbers import Array
from openspyre.reference.operands import element_addresses

_KINDS: dict[Kind, Callable[[Machine, Task, Compute, Actor], None]] = {
    Kind.MATMUL: compute.matmul,
    Kind.MAP: compute.map_,
    Kind.REDUCE: compute.reduce,
    Kind.FOLD: compute.fold,
    Kind.SCAN: compute.scan,
    Kind.GATHER: indexed.gather,
    Kind.SCATTER: indexed.scatter,
    Kind.SORT: indexed.sort,
    Kind.MERGE: indexed.merge,
    Kind.TOPK: indexed.topk,
}

_TOKEN_FAULTS = {
    TokenFault.DEADLOCK: FaultKind.DEADLOCK,
    TokenFault.OWNER: FaultKind.TOKEN,
    TokenFault.BALANCE: FaultKind.TOKEN,
    TokenFault.NUMBER: FaultKind.NUMBER,
    TokenFault.LIMIT: FaultKind.STOPPED,
}


@dataclass(frozen=True)
class Outcome:
    """A run that ended. The results are in the arrays that were passed."""

    counts: Counts
    lx_high: tuple[int, ...]
    """Of every core the bytes up to the highest one of its LX that was touched."""


def run(
    program: Program,
    operands: Mapping[str, Array],
    symbols: Mapping[str, int | float] | None = None,
    numerics: Numerics | None = None,
    *,
    seed: int | None = None,
    check: bool = True,
    max_tasks: int = TASK_LIMIT,
    trace: Callable[[Task], None] | None = None,
) -> Outcome:
    """Executes a program on device bytes.

    operands: a flat uint8 array for every launch argument, at least as long as its layout says
    (`operands.pack` makes them); those of `out` and `inout` operands are changed. SCRATCH is made
    here, CONST comes from the program, unless given too. symbols: by name, floats among them.
    seed: None, or a number that draws a legal interleaving. check: also fault on reads of what was
    never written or is don't-care, on touches that no token orders, on semaphores that do not
    return, and on output elements that nothing stored; without it the run does what the program
    says, as the card would. trace: called with every task (no waits and signals) as it begins.

    Raises ReferenceFault, ProgramError for symbols and shapes that do not fit, and RuntimeError
    on a thread that flushes subnormal numbers, which numpy's arithmetic would follow.
    """
    smallest = np.full(1, 2.0**-126, dtype=np.float32)
    if (smallest * np.float32(0.5) == 0).any():
        raise RuntimeError(
            "this thread flushes subnormal float32 numbers to zero, and the reference executor"
            " must not; call torch.set_flush_denormal(False)"
        )
    symbols = dict(symbols or {})
    for symbol in program.symbols:
        if symbol.name not in symbols:
            raise ReferenceFault(FaultKind.UNPATCHED, f"symbol {symbol.name} was given no value")
    whole = {s.name: int(symbols[s.name]) for s in program.symbols if s.kind != SymbolKind.FLOAT}
    instance = Instance(program, whole)
    instance.steps_left = max_tasks
    lx = [_lx(program, core, check) for core in range(instance.cores)]
    places = _places(instance, operands, check)
    machine = Machine(instance, lx, places, symbols, numerics or Numerics(), check)
    interleaving = Interleaving(instance, seed, strict=check, limit=max_tasks)
    try:
        for step in interleaving:
            if trace is not None:
                trace(step.task)
            _execute(machine, step)
        if check:
            interleaving.check_balanced()
    except TokenError as error:
        raise ReferenceFault(_TOKEN_FAULTS[error.kind], str(error)) from error
    except (ProgramError, ExprError) as error:
        raise ReferenceFault(FaultKind.NUMBER, str(error)) from error
    machine.counts.tasks = interleaving.tasks
    if check:
        _check_stored(instance, places)
    return Outcome(machine.counts, tuple(memory.high for memory in lx))


def _execute(machine: Machine, step: Step) -> None:
    task, code = step.task, step.task.instruction
    machine.check_numbers(task)
    actor = Actor(step.thread, step.clock, task.where, queue_name)
    if isinstance(code, Ring):
        name, empty = "ring", False
    else:
        name = code.kind.value if isinstance(code, Compute) else type(code).__name__.lower()
        empty = 0 in compute.sizes(task)
    machine.counts.kinds[name] = machine.counts.kinds.get(name, 0) + 1
    if empty:
        return
    if isinstance(code, Load):
        transfers.load(machine, task, code, actor)
    elif isinstance(code, Store):
        transfers.store(machine, task, code, actor)
    elif isinstance(code, Ring):
        transfers.ring(machine, task, code, actor)
    elif isinstance(code, Compute):
        compute.check_box(machine, task, code)
        _KINDS[code.kind](machine, task, code, actor)


# --- memories


def _lx(program: Program, core: int, check: bool) -> Memory:
    """Poison as far as the buffers reach; the rest is as undefined, and costs nothing."""
    data = np.zeros(program.card.lx_bytes, dtype=np.uint8)
    used = max((b.base + b.slots * b.slot_bytes for b in program.buffers), default=0)
    fill_poison(data[: max(0, min(used, len(data)))])
    return Memory(f"the LX of core {core}", data, np.zeros(len(data), dtype=np.uint8), check)


def _places(instance: Instance, given: Mapping[str, Array], check: bool) -> dict[str, Place]:
    places: dict[str, Place] = {}
    region: Memory | None = None
    program = instance.program
    scratch = [o for o in program.operands if o.role is Role.SCRATCH and o.name not in given]
    if scratch:
        # One region for all: SCRATCH operands may share bytes.
        size = max(o.offset + instance.operands[o.name].nbytes for o in scratch)
        data = np.empty(size, dtype=np.uint8)
        fill_poison(data)
        region = Memory("the dynamic region", data, np.zeros(size, dtype=np.uint8), check)
    for operand in program.operands:
        name, layout = operand.name, instance.operands[operand.name]
        if name in given:
            data = given[name]
            if data.dtype != np.uint8 or data.ndim != 1:
                raise ValueError(f"operand {name}: pass a flat uint8 array of device bytes")
        elif operand.role is Role.SCRATCH:
            assert region is not None
            places[name] = Place(region, operand.offset, layout.nbytes)
            continue
        elif operand.role is Role.CONST:
            # numpy's own copy: the program's bytes stay as they are.
            end = operand.offset + layout.nbytes
            data = np.frombuffer(program.data[operand.offset : end], dtype=np.uint8).copy()
        else:
            raise ReferenceFault(FaultKind.UNPATCHED, f"operand {name} was not given")
        defined = np.zeros(len(data), dtype=np.uint8)
        if operand.role in (Role.IN, Role.INOUT, Role.CONST) and len(data) >= layout.nbytes:
            spread = element_addresses(layout)[..., None] + np.arange(operand.format.bytes)
            defined[spread] = 1
        elif check and operand.role is Role.OUT:
            fill_poison(data)
        constant = operand.role in (Role.IN, Role.CONST)
        memory = Memory(f"operand {name}", data, defined, check, constant)
        places[name] = Place(memory, 0, len(data))
    return places


def _check_stored(instance: Instance, places: Mapping[str, Place]) -> None:
    for operand in instance.program.operands:
        if operand.role is not Role.OUT:
            continue
        addresses = element_addresses(instance.operands[operand.name])
        missing = places[operand.name].memory.defined[addresses] == 0
        if missing.any():
            first = tuple(int(i) for i in np.argwhere(missing)[0])
            raise ReferenceFault(
                FaultKind.UNWRITTEN,
                f"output {operand.name}: {int(missing.sum())} of {missing.size} elements were"
                f" never stored, the first at {first}",
            )
