"""LOAD, STORE and RING: sticks from one memory to another.

A run that checks moves element by element and makes the rest of each stick undefined, because what
lies beyond a tile's valid extent is don't-care: whatever reads it is at fault. A run that does not
check moves whole sticks, as the card does. May import numpy; imports no torch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from openspyre.program.concrete import Task, Tile
from openspyre.program.model import Access, Load, Ring, Store
from openspyre.program.ops import Combine
from openspyre.reference import combine as combining
from openspyre.reference import tiles
from openspyre.reference.combine import State
from openspyre.reference.compute import refuse, sizes
from openspyre.reference.indexed import check_indices, rounds
from openspyre.reference.machine import Machine, resized
from openspyre.reference.memory import Actor, Memory
from openspyre.reference.numbers import Array


def _check_pair(task: Task, source: Access, target: Access) -> None:
    if source.format is not target.format:
        raise refuse(task, f"moves {source.format.name} into {target.format.name}; one format")
    if source.stick != target.stick or source.lanes != target.lanes:
        raise refuse(task, "source and target differ in what lies on the stick")


def _move(
    machine: Machine,
    actor: Actor,
    source: tuple[Tile, Memory, dict[int, Array] | None],
    target: tuple[Tile, Memory, dict[int, Array] | None],
) -> int:
    """Moves a tile; the third of each: positions to use along a label. Gives the bytes."""
    (from_tile, from_memory, from_at), (to_tile, to_memory, to_at) = source, target
    counts = tiles.moves(from_tile, to_tile)
    read = tiles.stick_grid(from_tile, counts, from_at)
    written = tiles.stick_grid(to_tile, counts, to_at)
    from_memory.touch(read, actor, writes=False)
    to_memory.touch(written, actor, writes=True)
    moved = max(read.size, written.size) * 128
    if not machine.check:
        shape = np.broadcast_shapes(read.shape, written.shape)
        to_memory.copy_sticks(
            np.broadcast_to(written, shape), from_memory, np.broadcast_to(read, shape)
        )
        return moved
    size = from_tile.access.format.bytes
    addresses, to = tiles.elements(from_tile, from_at), tiles.elements(to_tile, to_at)
    if size > 8:  # numpy has no such integer
        addresses, to = (a[..., None] + np.arange(0, size, 8) for a in (addresses, to))
        size = 8
    shape = np.broadcast_shapes(addresses.shape, to.shape)
    what = f"the tile of {from_tile.access.value}"
    codes = np.broadcast_to(from_memory.read(addresses, size, actor, what), shape)
    to_memory.forget(written)
    to_memory.write(np.broadcast_to(to, shape), codes)
    return moved


def _positions(
    machine: Machine, task: Task, label: str, index: Access, limit: int, actor: Actor
) -> tuple[int, Array]:
    """The axis of an indexed label and the positions along it, shaped to broadcast."""
    names = [one.name for one in task.instruction.over]  # type: ignore[union-attr]
    if label not in names:
        raise refuse(task, f"no label {label!r} to index")
    axis = names.index(label)
    found = machine.registers(task, index, actor)
    if found.dtype == np.float32:
        raise refuse(task, "an index tile must be IEEE_INT32 or IEEE_INT64")
    if any(size != 1 for other, size in enumerate(found.shape) if other != axis):
        raise refuse(task, f"the index tile must be over label {label} alone")
    values = found.astype(np.int64).ravel()
    check_indices(task, values, limit)
    count = sizes(task)[axis]
    return axis, tiles.along(axis, len(names), np.broadcast_to(values, (count,)))


def load(machine: Machine, task: Task, code: Load, actor: Actor) -> None:
    _check_pair(task, code.source, code.target)
    source, target = machine.tile(task, code.source), machine.tile(task, code.target)
    at = None
    if code.gather is not None:
        limit = task.number(code.gather.limit)
        axis, found = _positions(machine, task, code.gather.label, code.gather.index, limit, actor)
        if axis == source.stick:
            raise refuse(task, "a label that is indexed must not lie on the stick")
        at, source = {axis: found}, resized(source, {axis: limit})
    of = machine.memory(source, task.core, actor, writes=False)
    to = machine.memory(target, task.core, actor, writes=True)
    source = replace(source, sizes=sizes(task))
    machine.counts.bytes_read += _move(machine, actor, (source, of, at), (target, to, None))


def store(machine: Machine, task: Task, code: Store, actor: Actor) -> None:
    _check_pair(task, code.source, code.target)
    source, target = machine.tile(task, code.source), machine.tile(task, code.target)
    of = machine.memory(source, task.core, actor, writes=False)
    if code.scatter is None:
        to = machine.memory(target, task.core, actor, writes=True)
        machine.counts.bytes_written += _move(
            machine, actor, (source, of, None), (target, to, None)
        )
        return
    scatter = code.scatter
    limit = task.number(scatter.limit)
    axis, found = _positions(machine, task, scatter.label, scatter.index, limit, actor)
    if axis == source.stick:
        raise refuse(task, "a label that is indexed must not lie on the stick")
    first = task.number(scatter.first)
    mine = np.flatnonzero((found >= first) & (found < first + task.number(scatter.count)))
    if len(mine) == 0:
        return
    # Only the own window is stored, and only that must be inside the operand.
    found = np.take(found, mine, axis=axis)
    low, reach = int(found.min()), int(found.max() - found.min()) + 1
    window = replace(target, address=target.address + low * target.strides[axis])
    to = machine.memory(resized(window, {axis: reach}), task.core, actor, writes=True)
    taken = tiles.along(axis, len(target.sizes), mine.astype(np.int64))
    source, target = (resized(tile, {axis: len(mine)}) for tile in (source, target))
    if not scatter.add:
        machine.counts.bytes_written += _move(
            machine, actor, (source, of, {axis: taken}), (target, to, {axis: found})
        )
        return
    counts = tiles.moves(source, target)
    read = tiles.stick_grid(source, counts, {axis: taken})
    written = tiles.stick_grid(target, counts, {axis: found})
    of.touch(read, actor, writes=False)
    to.touch(written, actor, writes=True)
    machine.counts.bytes_written += written.size * 128
    values = machine.decode(of, tiles.elements(source, {axis: taken}), code.source, actor)
    addresses = tiles.elements(target, {axis: found})
    shape = np.broadcast_shapes(values.shape, addresses.shape)
    values = np.broadcast_to(values, shape).ravel()
    addresses = np.broadcast_to(addresses, shape).ravel()
    for now in rounds(addresses):
        held = machine.decode(to, addresses[now], code.target, actor)
        with np.errstate(all="ignore"):
            total = held + values[now]
        to.write(addresses[now], machine.encode(task, code.target, total))


def ring(machine: Machine, task: Task, code: Ring, actor: Actor) -> None:
    _check_pair(task, code.source, code.target)
    truth = code.combine in (Combine.ANY, Combine.ALL)
    if code.combine is not None and combining.parts(code.combine) != 1:
        raise refuse(task, f"a ring does not combine by {code.combine.value}")
    total: State | None = None
    first = task
    for step in range(task.number(code.count)):
        values = {**task.values, code.variable: step, "%" + code.variable: step}
        part = Task(task.unit, task.core, task.path, code, values)
        machine.check_ring(part, code)
        if 0 in sizes(part):
            continue
        other = part.number(code.core)
        source = machine.tile(part, code.source)
        of = machine.memory(source, other, actor, writes=False)
        if code.combine is None:
            target = machine.tile(part, code.target)
            to = machine.memory(target, task.core, actor, writes=True)
            machine.counts.bytes_ring += _move(
                machine, actor, (source, of, None), (target, to, None)
            )
            continue
        machine.counts.bytes_ring += source.nbytes
        found = machine.registers(part, code.source, actor, core=other)
        state: State = (found != 0,) if truth else (found,)
        if total is None:
            first, total = part, state
        else:
            total = combining.join(code.combine, total, state)
    if total is not None:
        machine.store(first, code.target, actor, total[0])
