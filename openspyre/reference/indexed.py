"""COMPUTE that moves elements by number or by order: gather, scatter, sort, merge, topk.

May import numpy; imports no torch.
"""

from __future__ import annotations

import numpy as np

from openspyre.program.concrete import Task
from openspyre.program.model import Compute
from openspyre.reference import tiles
from openspyre.reference.compute import refuse, sizes
from openspyre.reference.faults import FaultKind, ReferenceFault
from openspyre.reference.machine import Machine, resized
from openspyre.reference.memory import Actor
from openspyre.reference.numbers import Array


def label_axis(task: Task, code: Compute) -> int:
    names = [label.name for label in code.over]
    if code.label not in names:
        raise refuse(task, f"a {code.kind.value} needs one of its labels, not {code.label!r}")
    return names.index(code.label)


def check_indices(task: Task, values: Array, limit: int) -> None:
    """INDEX fault unless all lie in 0..limit-1."""
    bad = (values < 0) | (values >= limit)
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ReferenceFault(
            FaultKind.INDEX,
            f"{task.where()}: index {int(values[at])} at point {at} is not in 0..{limit - 1}",
        )


def _indices(machine: Machine, task: Task, code: Compute, actor: Actor) -> Array:
    if len(code.inputs) != 2 or len(code.outputs) != 1:
        raise refuse(task, f"a {code.kind.value} has inputs source and index and one output")
    found = machine.registers(task, code.inputs[1], actor)
    if found.dtype == np.float32:
        raise refuse(task, "an index tile must be IEEE_INT32 or IEEE_INT64")
    values = found.astype(np.int64)
    check_indices(task, values, task.number(code.limit))
    return values


def gather(machine: Machine, task: Task, code: Compute, actor: Actor) -> None:
    """out at a point = source with the position along the label replaced by the index there."""
    axis, indices = label_axis(task, code), _indices(machine, task, code, actor)
    values = machine.registers(
        task, code.inputs[0], actor, {axis: task.number(code.limit)}, {axis: indices}
    )
    machine.store(task, code.outputs[0], actor, np.broadcast_to(values, sizes(task)))


def scatter(machine: Machine, task: Task, code: Compute, actor: Actor) -> None:
    """The output's position along the label is replaced; points in ascending order."""
    axis, indices = label_axis(task, code), _indices(machine, task, code, actor)
    access = code.outputs[0]
    source = machine.registers(task, code.inputs[0], actor)
    tile = resized(machine.tile(task, access), {axis: task.number(code.limit)})
    memory = machine.begin(tile, task.core, actor, writes=True)
    shape = sizes(task)
    addresses = np.broadcast_to(tiles.elements(tile, {axis: indices}), shape).ravel()
    values = np.broadcast_to(source, shape).ravel()
    if not code.add:
        memory.write(addresses, machine.encode(task, access, values))
        return
    # Points that meet at one address go one after the other: the n-th of each in round n.
    for now in rounds(addresses):
        held = machine.decode(memory, addresses[now], access, actor)
        with np.errstate(all="ignore"):
            memory.write(addresses[now], machine.encode(task, access, held + values[now]))


def rounds(addresses: Array) -> list[Array]:
    """Positions of the first, the second, .. occurrence of each address, in order."""
    order = np.argsort(addresses, kind="stable")
    fresh = np.append(True, np.diff(addresses[order]) != 0)
    first = np.maximum.accumulate(np.where(fresh, np.arange(len(order)), 0))
    turn = np.arange(len(order)) - first
    return [order[turn == n] for n in range(int(turn.max()) + 1)]


# --- order


def order_keys(values: Array, descending: bool) -> Array:
    """int64 keys whose ascending order is the asked one: NaN above everything, zeros equal."""
    if values.dtype == np.float32:
        bits = (values + np.float32(0)).view(np.int32).astype(np.int64)  # -0 + 0 = +0
        keys = np.where(bits < 0, -(bits & 0x7FFF_FFFF), bits)
        keys = np.where(np.isnan(values), np.int64(1) << 32, keys)
    else:
        keys = values.astype(np.int64)
    return ~keys if descending else keys


def _sorted(values: Array, indices: Array, axis: int, descending: bool) -> tuple[Array, Array]:
    order = np.argsort(order_keys(values, descending), axis=axis, kind="stable")
    return np.take_along_axis(values, order, axis), np.take_along_axis(indices, order, axis)


def _entries(machine: Machine, task: Task, code: Compute, actor: Actor) -> tuple[Array, Array]:
    """The values and their indices: the second input's, or the global ones."""
    axis, shape = label_axis(task, code), sizes(task)
    if len(code.inputs) not in (1, 2) or len(code.outputs) != 2:
        raise refuse(task, f"a {code.kind.value} has one or two inputs and two outputs")
    values = np.broadcast_to(machine.registers(task, code.inputs[0], actor), shape)
    if len(code.inputs) == 2:
        indices = machine.registers(task, code.inputs[1], actor).astype(np.int64)
    else:
        start, size = task.over[axis]
        indices = tiles.along(axis, len(shape), start + np.arange(size, dtype=np.int64))
    return values, np.broadcast_to(indices, shape)


def sort(machine: Machine, task: Task, code: Compute, actor: Actor) -> None:
    values, indices = _entries(machine, task, code, actor)
    axis = label_axis(task, code)
    for access, out in zip(
        code.outputs, _sorted(values, indices, axis, code.descending), strict=True
    ):
        machine.store(task, access, actor, out)


def merge(machine: Machine, task: Task, code: Compute, actor: Actor) -> None:
    """Two runs to one, by comparing their heads; of equal heads that of a goes first."""
    axis, shape = label_axis(task, code), sizes(task)
    if len(code.inputs) != 4 or len(code.outputs) != 4:
        raise refuse(task, "a merge has inputs va, ia, vb, ib and four outputs")
    va, ia, vb, ib = (
        np.moveaxis(np.broadcast_to(machine.registers(task, access, actor), shape), axis, -1)
        for access in code.inputs
    )
    n = shape[axis]
    ka, kb = order_keys(va, code.descending), order_keys(vb, code.descending)
    values = np.empty((*va.shape[:-1], 2 * n), dtype=va.dtype)
    indices = np.empty(values.shape, dtype=np.int64)
    for row in np.ndindex(va.shape[:-1]):
        a = b = 0
        for place in range(2 * n):
            if b == n or (a < n and ka[row][a] <= kb[row][b]):
                values[row][place], indices[row][place] = va[row][a], ia[row][a]
                a += 1
            else:
                values[row][place], indices[row][place] = vb[row][b], ib[row][b]
                b += 1
    halves = (values[..., :n], indices[..., :n], values[..., n:], indices[..., n:])
    for access, half in zip(code.outputs, halves, strict=True):
        machine.store(task, access, actor, np.moveaxis(half, -1, axis))


def topk(machine: Machine, task: Task, code: Compute, actor: Actor) -> None:
    """The first `limit` of the sorted order; earlier entries of index -1 are no entries."""
    axis, limit = label_axis(task, code), task.number(code.limit)
    if limit < 1:
        raise ReferenceFault(FaultKind.INDEX, f"{task.where()}: a topk of {limit} entries")
    values, indices = _entries(machine, task, code, actor)
    size_of = {axis: limit}
    if task.number(code.accumulate):
        held = [machine.registers(task, access, actor, size_of) for access in code.outputs]
        values = np.concatenate([held[0], values], axis=axis)
        indices = np.concatenate([held[1].astype(np.int64), indices], axis=axis)
        absent = indices == -1
        absent[(slice(None),) * axis + (slice(limit, None),)] = False  # only earlier ones
    else:
        absent = np.zeros(values.shape, dtype=np.bool_)
    keys = order_keys(values, code.descending)
    order = np.lexsort((keys, absent), axis=axis)  # stable; by `absent` first
    values, indices, absent = (
        np.take_along_axis(array, order, axis) for array in (values, indices, absent)
    )
    first = (slice(None),) * axis + (slice(0, limit),)
    values, indices, absent = values[first], indices[first], absent[first]
    values = np.where(absent, values.dtype.type(0), values)
    missing = limit - values.shape[axis]
    if missing > 0:
        pad = [(0, missing if a == axis else 0) for a in range(values.ndim)]
        values = np.pad(values, pad)
        indices = np.pad(indices, pad, constant_values=-1)
    for access, out in zip(code.outputs, (values, indices), strict=True):
        machine.store(task, access, actor, out, size_of)
