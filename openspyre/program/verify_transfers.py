"""The verifier on LOAD, STORE and RING: rules 3, 6 (multicast), 7 and the joins of rule 8.

Part of the verifier; may import numpy, imports no torch.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from openspyre.program.concrete import Task
from openspyre.program.expr import Expr
from openspyre.program.model import Compute, Load, Ring, Role, Store
from openspyre.program.tokens import Step
from openspyre.program.verify_access import Range, volume
from openspyre.program.verify_cover import COMPLETE, CoverError
from openspyre.program.verify_error import VerifyError
from openspyre.program.verify_memory import Shadow
from openspyre.program.verify_numbers import check
from openspyre.program.verify_scatter import Scattered
from openspyre.program.verify_state import State, labels_of
from openspyre.program.verify_tiles import Placed

MAX_RING = 1 << 16


class Transfers:
    """Instructions that move sticks."""

    def __init__(self, state: State, unsafe: dict[int, tuple[Expr, ...]]) -> None:
        self.state = state
        self.unsafe = unsafe
        self._scattered: dict[tuple[str, str], Scattered] = {}

    def check_group(self, step: Step) -> None:
        """Rule 6: a multicast LOAD is the same on all its cores."""

        def what(task: Task) -> tuple[object, ...]:
            assert isinstance(task.instruction, Load)
            source = self.state.instance.tile(task, task.instruction.source)
            gather = task.instruction.gather
            index = self.state.instance.tile(task, gather.index).box if gather else ()
            return source.address, source.sizes, source.strides, source.box, index

        first = step.group[0]
        for other in step.group[1:]:
            if other.instruction is not first.instruction or what(other) != what(first):
                raise VerifyError(
                    6,
                    first,
                    f"meets another LOAD in its multicast group: {other.where()}; the cores of a"
                    " group must issue the same LOADs in the same order",
                )

    def load(self, step: Step, load: Load) -> None:
        task = step.task
        target = self.state.rules.lx(task, load.target)
        if load.gather is None:
            source = self.state.rules.mem(task, load.source)
            self.state.rules.check_all_labels(task, source.tile)
            nbytes = max(source.tile.nbytes, target.tile.nbytes)
            self._read_memory(step, source)
        else:
            gather = load.gather
            label = position_of(load, gather.label)
            limit = self.state.limit_of(task, task.number(gather.limit))
            plain = self.state.instance.tile(task, load.source)
            source = self.state.rules.mem(task, load.source, Range(label, 0, limit))
            self.state.rules.check_all_labels(task, plain)
            self.state.rules.check_all_labels(task, target.tile)
            self.state.check_computed(step, load.target)
            nbytes = plain.nbytes
            index = self.state.read_lx(step, gather.index)
            self._read_memory(step, source)
            self.state.check_meaning(step, ("gather", label), [source, index], target, ())
        self.state.write(step, self.state.lx[task.core], target, COMPLETE)
        self.state.counts.read_without_multicast += nbytes
        if not step.group or step.task is step.group[0]:
            self.state.counts.read += nbytes
        self.state.counts.lx_received += nbytes

    def _read_memory(self, step: Step, placed: Placed) -> None:
        """LOAD's side in LPDDR5. IN and CONST never change; INOUT holds something from the start;
        OUT and SCRATCH hold what was stored."""
        name = placed.tile.access.place
        shadow = self.state.memory.get(name)
        if shadow is None:
            return
        if self.state.operands[name].role is Role.INOUT:
            shadow.check_after_writes(step, placed.where, 4, placed.bytes, "reads")
            shadow.mark_read(step, placed.where)
        else:
            self.state.read(step, shadow, placed)

    def store(self, step: Step, store: Store) -> None:
        task = step.task
        operand = self.state.operands[store.target.place]
        if operand.role in (Role.IN, Role.CONST):
            raise VerifyError(
                7, task, f"stores to {operand.name}, which has role {operand.role.value}"
            )
        shadow = self.state.memory[operand.name]
        source = self.state.read_lx(step, store.source)
        self.state.rules.check_all_labels(task, source.tile)
        self.state.counts.written += source.tile.nbytes
        if store.scatter is not None:
            self._scatter(step, store, shadow, source)
            return
        target = self.state.rules.mem(task, store.target)
        self.state.rules.check_all_labels(task, target.tile)
        if operand.role is not Role.SCRATCH:
            self.state.rules.check_whole_sticks(task, target.tile)
        if operand.role is Role.OUT:
            again = shadow.kind[target.where] != 0
            if again.any():
                at = int(np.argmax(again))
                element = target.element(at, self.state.shape(target))
                raise VerifyError(
                    7,
                    task,
                    f"stores element {element} of {operand.name} ({target.bytes(at)}) twice",
                )
        self.state.write(step, shadow, target, COMPLETE)

    def _scatter(self, step: Step, store: Store, shadow: Shadow, source: Placed) -> None:
        task, scatter = step.task, store.scatter
        assert scatter is not None
        operand = self.state.operands[store.target.place]
        if operand.role is Role.OUT:
            raise VerifyError(
                7,
                task,
                f"scatters to {operand.name}, whose role out wants each element stored once; make"
                " it inout",
            )
        self.state.read_lx(step, scatter.index)
        limit = self.state.limit_of(task, task.number(scatter.limit))
        first, count = task.number(scatter.first), task.number(scatter.count)
        begin, end = max(0, first), min(limit, first + count)
        if begin >= end:
            return
        label = position_of(store, scatter.label)
        # Whatever the indices are, inside its window the core may write every stick.
        target = self.state.rules.mem(task, store.target, Range(label, begin, end - begin))
        self.state.rules.check_all_labels(task, target.tile)
        self.state.rules.check_whole_sticks(task, target.tile)
        if operand.role is Role.SCRATCH:
            self.state.read(step, shadow, target)
        self.state.write(step, shadow, target, COMPLETE)
        key = (operand.name, source.tile.access.value)
        scattered = self._scattered.get(key)
        if scattered is None:
            scattered = self._scattered[key] = Scattered(key[1], limit, self.state.shape(source))
        scattered.add(task, limit, (begin, end), source.tile.box)

    def ring(self, step: Step, ring: Ring) -> None:
        task = step.task
        count = ring.count.evaluate(task.values)
        if not 0 <= count <= MAX_RING:
            raise VerifyError(1, task, f"takes from {count} cores, not 0..{MAX_RING}")
        if count == 0:
            return
        covers: list[int] = []
        sources: list[Placed] = []
        target: Placed | None = None
        for number in range(count):
            values = {**task.values, ring.variable: number, "%" + ring.variable: number}
            inner = dataclasses.replace(task, values=values)
            check(self.unsafe.get(id(ring), ()), values)
            core = inner.number(ring.core)
            if not 0 <= core < self.state.instance.cores:
                raise VerifyError(
                    1, inner, f"takes from core {core} of 0..{self.state.instance.cores - 1}"
                )
            part = dataclasses.replace(step, task=inner)
            source = self.state.rules.lx(inner, ring.source)
            target = self.state.rules.lx(inner, ring.target)
            for tile in (source.tile, target.tile):
                self.state.rules.check_all_labels(inner, tile)
            if core == task.core and source.overlaps(target):
                raise VerifyError(9, inner, "the target overlaps the source, which is in this core")
            cover = self.state.read(part, self.state.lx[core], source, partial=True)
            self.state.counts.lx_received += source.tile.nbytes
            self.state.counts.ring += source.tile.nbytes
            if ring.combine is None:
                self.state.write(part, self.state.lx[task.core], target, cover)
            covers.append(cover)
            sources.append(source)
        if ring.combine is not None:
            assert target is not None
            cover = self._joined(step, ring, sources, covers, target)
            self.state.write(step, self.state.lx[task.core], target, cover)

    def _joined(
        self, step: Step, ring: Ring, sources: list[Placed], covers: list[int], target: Placed
    ) -> int:
        """Rule 8 for a RING reduce: parts of one value join what they cover; complete tiles of
        another value (one for each number of the variable) are summed by a value of its own."""
        self.state.check_computed(step, ring.target)
        value, source = ring.target.value, ring.source.value
        if value == source:
            if any(part.tile.box != target.tile.box for part in sources):
                raise VerifyError(
                    8, step.task, f"joins parts of {value} that declare other boxes than the target"
                )
            if any(labels_of(part) != labels_of(target) for part in sources):
                raise VerifyError(
                    8,
                    step.task,
                    f"joins parts of {value} along other labels than the target's: they are not"
                    " the same elements",
                )
            known = self.state.parts.get(value)
            if known is not None and known[0] is not ring.combine:
                raise CoverError(f"{value} is reduced by {known[0].value}, RING must do the same")
            if len(covers) == 1:
                return covers[0]
            return self.state.covers.join(covers, self.state.extent(value, ()))
        if any(cover != COMPLETE for cover in covers):
            raise VerifyError(
                8, step.task, f"sums tiles of {source} whose own reduction is not complete"
            )
        if len({part.tile.box for part in sources}) != len(sources):
            raise VerifyError(8, step.task, f"sums the same box of {source} more than once")
        shape = self.state.instance.shapes[source]
        parts = sum(volume(part.tile.box) for part in sources)
        if parts != volume(target.tile.box) * self._summed(value, shape):
            raise VerifyError(
                8,
                step.task,
                f"must sum each of the {self._summed(value, shape)} parts that {value} declares"
                f" (`reduced`), sums {len(sources)}",
            )
        self.state.check_meaning(step, ("ring", ring.combine), sources, target, ())
        return COMPLETE

    def _summed(self, value: str, shape: tuple[int, ...]) -> int:
        """How many elements of a value of `shape` an element of `value` sums."""
        if value in self.state.declared:
            return math.prod(self.state.extents[value])
        return max(1, math.prod(shape) // math.prod(self.state.instance.shapes[value]))

    def check_scattered(self) -> None:
        """Rule 7 at the end: every scatter was whole."""
        for (operand, _), scattered in self._scattered.items():
            scattered.check_complete(operand)


def position_of(instruction: Load | Store | Compute, label: str) -> int:
    return [item.name for item in instruction.over].index(label)
