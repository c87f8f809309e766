"""COMPUTE without index tiles: matmul, map, reduce, fold and scan.

Each function reads its tiles as arrays with one axis per label, does what docs/program.md
section 3 says in the order it says, and writes the outputs. No numpy sum is used where the order
of additions is law. May import numpy; imports no torch.
"""

from __future__ import annotations

import itertools

import numpy as np

from openspyre.program.concrete import Task
from openspyre.program.model import Access, Compute
from openspyre.program.ops import LANE_ACCUMULATORS, Combine, Kind
from openspyre.reference import combine as combining
from openspyre.reference.body import BodyError, evaluate
from openspyre.reference.combine import State
from openspyre.reference.faults import FaultKind, ReferenceFault
from openspyre.reference.machine import Machine, carries
from openspyre.reference.memory import Actor
from openspyre.reference.numbers import Array
from openspyre.reference.tiles import along


def refuse(task: Task, rule: str) -> ReferenceFault:
    return ReferenceFault(FaultKind.PROGRAM, f"{task.where()}: {rule}")


def sizes(task: Task) -> tuple[int, ...]:
    return tuple(size for _, size in task.over)


def check_box(machine: Machine, task: Task, code: Compute) -> None:
    """What must hold of the iteration box: ADDRESS fault for a label on a stick that does not
    start at one, and for a map or fold whose output a label does not move."""
    for axis, (label, (start, size)) in enumerate(zip(code.over, task.over, strict=True)):
        eps = max(
            (
                access.format.elements_per_stick
                for access in (*code.inputs, *code.outputs)
                if access.stick == label.name
            ),
            default=1,
        )
        if start % eps:
            raise ReferenceFault(
                FaultKind.ADDRESS,
                f"{task.where()}: label {label.name} lies on a stick and starts at {start}, which"
                f" is no multiple of {eps}",
            )
        if code.kind not in (Kind.MAP, Kind.FOLD) or size == 1:
            continue
        for access in code.outputs:
            tile = machine.tile(task, access)
            if tile.strides[axis] == 0 and (tile.stick != axis or tile.counts[axis] > 1):
                raise ReferenceFault(
                    FaultKind.ADDRESS,
                    f"{task.where()}: an output is not moved by label {label.name}",
                )


# --- matmul


def matmul(machine: Machine, task: Task, code: Compute, actor: Actor) -> None:
    """out = a * b, summed over k ascending, one product and one addition at a time."""
    if len(code.inputs) != 2 or len(code.outputs) != 1:
        raise refuse(task, "a matmul has inputs a and b and one output")
    names = [label.name for label in code.over]
    tiles = (*code.inputs, *code.outputs)
    has = [tuple(carries(tile, name) for tile in tiles) for name in names]
    summed = [axis for axis, found in enumerate(has) if found == (True, True, False)]
    if len(summed) != 1:
        raise refuse(task, f"a matmul sums over one label, not over {len(summed)}")
    k = summed[0]
    a, b = (machine.registers(task, access, actor) for access in code.inputs)
    if a.dtype != b.dtype or a.dtype == np.int64:
        raise refuse(task, f"a matmul multiplies float32 or int32, not {a.dtype} by {b.dtype}")
    shape = tuple(size if found[2] else 1 for size, found in zip(sizes(task), has, strict=True))
    if task.number(code.accumulate):
        out = machine.registers(task, code.outputs[0], actor).copy()
    else:
        out = np.zeros(shape, dtype=a.dtype)
    if out.shape != shape:
        raise refuse(task, f"the output's tile is {out.shape}, and the product is {shape}")
    with np.errstate(all="ignore"):
        for step in range(sizes(task)[k]):
            # The product is rounded to float32 before it is added (exact for short formats).
            out = out + a.take([step % a.shape[k]], axis=k) * b.take([step % b.shape[k]], axis=k)
    machine.store(task, code.outputs[0], actor, out)


# --- map


def _body(machine: Machine, task: Task, code: Compute, actor: Actor) -> list[Array]:
    if code.body is None:
        raise refuse(task, f"a {code.kind.value} needs a body")
    inputs = [machine.registers(task, access, actor) for access in code.inputs]
    rank = len(code.over)
    indices = {
        label.name: along(axis, rank, start + np.arange(size, dtype=np.int64))
        for axis, (label, (start, size)) in enumerate(zip(code.over, task.over, strict=True))
    }
    try:
        return evaluate(code.body, inputs, indices, machine.symbols, machine.numerics)
    except BodyError as error:
        raise refuse(task, str(error)) from error


def map_(machine: Machine, task: Task, code: Compute, actor: Actor) -> None:
    """The body at every point; everything is read before anything is written (in place)."""
    results = _body(machine, task, code, actor)
    if len(results) != len(code.outputs):
        raise refuse(task, f"a map of {len(results)} results needs as many outputs")
    for access, values in zip(code.outputs, results, strict=True):
        machine.store(task, access, actor, np.broadcast_to(values, sizes(task)))


# --- reduce and fold


def _truth(how: Combine | None) -> bool:
    return how in (Combine.ANY, Combine.ALL)


def _checked_combine(task: Task, code: Compute, x: Array) -> Combine:
    """The combine of a reduce of `x`. PROGRAM fault unless it fits x and the outputs."""
    how = code.combine
    if how is None:
        raise refuse(task, f"a {code.kind.value} needs a combine")
    if len(code.outputs) != combining.parts(how):
        raise refuse(task, f"{how.value} has {combining.parts(how)} outputs")
    if _truth(how) != (x.dtype == np.bool_) or (how is Combine.WELFORD and x.dtype != np.float32):
        raise refuse(task, f"{how.value} does not combine {x.dtype}")
    return how


def _read_state(
    machine: Machine, task: Task, accesses: tuple[Access, ...], how: Combine, actor: Actor
) -> State:
    state = tuple(machine.registers(task, access, actor) for access in accesses)
    return tuple(part != 0 for part in state) if _truth(how) else state


def reduce(machine: Machine, task: Task, code: Compute, actor: Actor) -> None:
    """Each accumulator takes its elements one by one, in lexicographic order of the labels."""
    x = _body(machine, task, code, actor)[0]
    how = _checked_combine(task, code, x)
    first = code.outputs[0]
    x = np.broadcast_to(x, sizes(task))
    reduced = [axis for axis, label in enumerate(code.over) if not carries(first, label.name)]
    lane = next((access.stick for access in code.inputs if access.stick is not None), None)
    lane_axis = next((axis for axis in reduced if code.over[axis].name == lane), None)
    if (lane_axis is not None) != first.lanes:
        raise refuse(task, "outputs are lanes if and only if the label on the stick is reduced")
    if combining.parts(how) == 2 and len(reduced) != 1:
        raise refuse(task, f"{how.value} reduces exactly one label, not {len(reduced)}")
    kept = tuple(1 if axis in reduced else size for axis, size in enumerate(x.shape))
    shape = (*kept, LANE_ACCUMULATORS) if first.lanes else kept
    if task.number(code.accumulate):
        state = _read_state(machine, task, code.outputs, how, actor)
    else:
        state = combining.identity(how, x.dtype, shape)
    if any(part.shape != shape for part in state):
        raise refuse(task, f"the outputs' tiles are {state[0].shape}, and the result is {shape}")

    # The steps along the lane label are groups of 64: all accumulators go on side by side.
    start = 0 if lane_axis is None else task.over[lane_axis][0]
    steps = []
    for axis in reduced:
        size = x.shape[axis]
        if axis == lane_axis:
            end = -(-(start + size) // LANE_ACCUMULATORS)
            steps.append(range(start // LANE_ACCUMULATORS, end))
        else:
            steps.append(range(size))
    lanes = np.arange(LANE_ACCUMULATORS)
    with np.errstate(all="ignore"):
        for step in itertools.product(*steps):
            taken, inside = x, None
            index: Array = np.zeros((), dtype=np.int64)
            for axis, at in zip(reduced, step, strict=True):
                if axis == lane_axis:
                    index = at * LANE_ACCUMULATORS + lanes
                    local = index - start
                    inside = (local >= 0) & (local < x.shape[axis])
                    local = np.clip(local, 0, x.shape[axis] - 1)
                    taken = np.expand_dims(np.moveaxis(taken, axis, -1)[..., local], axis)
                else:
                    # The axis of the lanes, once there, is the last: earlier ones keep their place.
                    taken = taken.take([at], axis=axis)
                    if lane_axis is None:
                        index = np.array(task.over[axis][0] + at)
            index = np.broadcast_to(index, taken.shape)
            new = combining.element(how, state, taken, index)
            if inside is not None:
                new = tuple(np.where(inside, n, s) for n, s in zip(new, state, strict=True))
            state = new
    for access, part in zip(code.outputs, state, strict=True):
        machine.store(task, access, actor, part)


def fold(machine: Machine, task: Task, code: Compute, actor: Actor) -> None:
    """Accumulator i takes i + h, for h = 32, 16, 8, 4, 2, 1."""
    how = code.combine
    if how is None or len(code.inputs) != combining.parts(how):
        raise refuse(task, "a fold needs a combine and as many inputs as it has parts")
    if len(code.outputs) != len(code.inputs) or not all(a.lanes for a in code.inputs):
        raise refuse(task, "a fold takes lanes and has as many outputs as inputs")
    state = _read_state(machine, task, code.inputs, how, actor)
    half = LANE_ACCUMULATORS // 2
    while half:
        low = tuple(part[..., :half] for part in state)
        high = tuple(part[..., half : 2 * half] for part in state)
        state = combining.join(how, low, high)
        half //= 2
    for access, part in zip(code.outputs, state, strict=True):
        machine.store(task, access, actor, part[..., 0])


# --- scan


def scan(machine: Machine, task: Task, code: Compute, actor: Actor) -> None:
    """The running value stays in its register; every y is encoded from it."""
    how, names = code.combine, [label.name for label in code.over]
    if how not in (Combine.SUM, Combine.PROD, Combine.MAX, Combine.MIN):
        raise refuse(task, "a scan combines by sum, prod, max or min")
    if code.label not in names or len(code.inputs) != 2 or len(code.outputs) != 2:
        raise refuse(task, "a scan has a label, inputs x and carry, outputs y and carry")
    axis = names.index(code.label)
    x = np.broadcast_to(machine.registers(task, code.inputs[0], actor), sizes(task))
    running: State | None = None
    if task.number(code.accumulate):
        running = (machine.registers(task, code.inputs[1], actor),)
    out = []
    for step in range(x.shape[axis]):
        value = (x.take([step], axis=axis),)
        running = value if running is None else combining.join(how, running, value)
        out.append(running[0])
    assert running is not None
    machine.store(task, code.outputs[0], actor, np.concatenate(out, axis=axis))
    machine.store(task, code.outputs[1], actor, running[0])
