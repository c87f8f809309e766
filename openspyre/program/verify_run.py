"""The verifier's abstract run: every task of every core, once, on shadow memories.

Rules 2 to 9 for the program under given symbols. The order of the run is one of those that the
tokens allow; because which task precedes which is the same in all of them (`tokens.py`), a run
without a fault means that no run has one.
Part of the verifier; may import numpy, imports no torch.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

import numpy as np

from openspyre.formats import STICK_BYTES
from openspyre.program.concrete import Instance, ProgramError, Task
from openspyre.program.expr import ExprError
from openspyre.program.model import Access, Compute, Load, Ring, Role, Store, Unit
from openspyre.program.ops import Combine, Kind
from openspyre.program.tokens import TASK_LIMIT, Interleaving, Step, TokenError, TokenFault
from openspyre.program.verify_access import AccessRules, Range, check_box, volume
from openspyre.program.verify_cover import COMPLETE, EMPTY, Box, CoverError, Covers, show
from openspyre.program.verify_error import VerifyError
from openspyre.program.verify_memory import Shadow
from openspyre.program.verify_numbers import check, unsafe_expressions
from openspyre.program.verify_scatter import Scattered
from openspyre.program.verify_tiles import Placed, show_element

MAX_TRACKED = 32 << 30
MAX_RING = 1 << 16


@dataclass
class Counts:
    """What a run of the program moves. Bytes are whole sticks."""

    tasks: int = 0  # instructions of all cores, waits and signals included
    computes: dict[Unit, int] = field(default_factory=dict)
    read: int = 0  # LPDDR5 bytes read; a multicast counts once
    read_without_multicast: int = 0
    written: int = 0  # LPDDR5 bytes written
    lx_received: int = 0  # bytes that LOAD and RING brought into LX
    ring: int = 0  # of those, by RING
    lx_bytes: list[int] = field(default_factory=list)  # bytes of LX in use, of each core


class Run:
    """One verification of one Instance."""

    def __init__(self, instance: Instance, limit: int = TASK_LIMIT) -> None:
        self.instance = instance
        self.rules = AccessRules(instance)
        self.covers = Covers()
        self.counts = Counts()
        self.unsafe = unsafe_expressions(instance)
        self.interleaving = Interleaving(instance, limit=limit)
        instance.steps_left = limit
        sticks = instance.program.card.lx_bytes // STICK_BYTES
        self.lx = [Shadow(f"LX of core {core}", sticks) for core in range(instance.cores)]
        self.memory = self._memories()
        self.operands = {operand.name: operand for operand in instance.program.operands}
        self._extents: dict[str, tuple[int, ...]] = {
            name: sizes for name, sizes in instance.reduced.items() if sizes
        }
        self._declared = frozenset(self._extents)
        self._meanings: dict[object, object] = {}
        self._functions: dict[object, int] = {}
        self._function_of: dict[int, int] = {}
        self._parts: dict[str, tuple[Combine, int]] = {}
        self._scattered: dict[tuple[str, str], Scattered] = {}

    def _memories(self) -> dict[str, Shadow]:
        """Shadows of the operands that may be written; all SCRATCH operands share one, as they
        share the dynamic region."""
        out: dict[str, Shadow] = {}
        total = dynamic = 0
        for operand in self.instance.program.operands:
            nbytes = self.instance.operands[operand.name].nbytes
            place = f"operand {operand.name}"
            if operand.role is Role.CONST:
                if operand.offset + nbytes > len(self.instance.program.data):
                    raise VerifyError(
                        2,
                        place,
                        f"bytes {operand.offset}..{operand.offset + nbytes - 1} leave the program's"
                        f" data of {len(self.instance.program.data)} bytes",
                    )
                continue
            if operand.role is Role.SCRATCH:
                dynamic = max(dynamic, operand.offset + nbytes)
            elif operand.role is not Role.IN:
                total += nbytes
            if total + dynamic > MAX_TRACKED:
                raise VerifyError(
                    2, place, f"more than {MAX_TRACKED} bytes are written: too large to verify"
                )
            if operand.role in (Role.OUT, Role.INOUT):
                out[operand.name] = Shadow(operand.name, nbytes // STICK_BYTES)
        scratch = Shadow("the dynamic region", dynamic // STICK_BYTES)
        for operand in self.instance.program.operands:
            if operand.role is Role.SCRATCH:
                out[operand.name] = scratch
        return out

    # --- the run

    def execute(self) -> Counts:
        """Raises VerifyError at the first task that breaks a rule."""
        try:
            for step in self.interleaving:
                self._step(step)
            self.interleaving.check_balanced()
        except TokenError as error:
            rule = 6 if error.kind is not TokenFault.LIMIT else 1
            raise VerifyError(rule, "tokens", str(error)) from None
        except VerifyError:
            raise
        except (ProgramError, ExprError, ZeroDivisionError) as error:
            raise VerifyError(1, "program", str(error)) from None
        self._check_outputs()
        for (operand, _), scattered in self._scattered.items():
            scattered.check_complete(operand)
        self.counts.tasks = self.interleaving.tasks
        self.counts.lx_bytes = [
            int(np.count_nonzero(shadow.kind)) * STICK_BYTES for shadow in self.lx
        ]
        return self.counts

    def _step(self, step: Step) -> None:
        task = step.task
        try:
            if not isinstance(task.instruction, Ring):  # whose variable has no value yet
                check(self.unsafe.get(id(task.instruction), ()), task.values)
            over = task.over
        except (ExprError, ZeroDivisionError) as error:
            raise VerifyError(1, task, str(error)) from None
        if step.group and step.task is step.group[0]:
            self._check_group(step)
        if not check_box(task, over):
            return
        self.rules.check_starts(task, over)
        try:
            self._work(step, task)
        except CoverError as error:
            raise VerifyError(8, task, str(error)) from None
        except VerifyError:
            raise
        except (ExprError, ZeroDivisionError, OverflowError) as error:
            raise VerifyError(1, task, str(error)) from None
        except ProgramError as error:
            raise VerifyError(2, task, str(error)) from None

    def _work(self, step: Step, task: Task) -> None:
        instruction = task.instruction
        if isinstance(instruction, Load):
            self._load(step, instruction)
        elif isinstance(instruction, Store):
            self._store(step, instruction)
        elif isinstance(instruction, Ring):
            self._ring(step, instruction)
        else:
            assert isinstance(instruction, Compute)
            self._compute(step, instruction)

    def _check_outputs(self) -> None:
        """Rule 7: every stick of every OUT operand was stored."""
        for name, shadow in self.memory.items():
            if self.operands[name].role is not Role.OUT:
                continue
            layout = self.instance.operands[name]
            eps = layout.layout.elements_per_stick
            counts = [
                -(-size // eps) if dim == layout.stick else size
                for dim, size in enumerate(layout.shape)
            ]
            if int(np.count_nonzero(shadow.kind)) == math.prod(counts):
                continue
            sticks = np.zeros(1, dtype=np.int64)
            for count, stride in zip(counts, layout.strides, strict=True):
                sticks = (sticks[:, None] + np.arange(count) * (stride // STICK_BYTES)).ravel()
            missing = np.flatnonzero(shadow.kind[sticks] == 0)
            index = np.unravel_index(int(missing[0]), tuple(counts) or (1,))
            element = [int(i) * (eps if dim == layout.stick else 1) for dim, i in enumerate(index)][
                : len(counts)
            ]
            at = int(sticks[missing[0]]) * STICK_BYTES
            raise VerifyError(
                7,
                f"operand {name}",
                f"element {element} (bytes {at}..{at + STICK_BYTES - 1}) and {len(missing)} sticks"
                " in all are never stored",
            )

    # --- reading and writing tiles

    def _read(self, step: Step, shadow: Shadow, placed: Placed, partial: bool = False) -> int:
        """Rule 4 for a tile that is read; gives the number of what its sums cover, one number for
        the whole tile when `partial` results are welcome, else always COMPLETE."""
        where = placed.where
        kinds = shadow.kind[where]
        if (kinds == 0).any():
            at = int(np.argmax(kinds == 0))
            raise VerifyError(
                4,
                step.task,
                f"reads {placed.bytes(at)} of {shadow.name} for element"
                f" {placed.element(at, self._shape(placed))} of {placed.tile.access.value}, which"
                " nothing has written yet",
            )
        shadow.check_after_writes(step, where, 4, placed.bytes, "reads")
        wrong = kinds != placed.kind + 1
        wrong |= shadow.first[where] != placed.firsts
        if wrong.any():
            self._wrong_tile(step, shadow, placed, int(np.argmax(wrong)))
        short = shadow.valid[where] < placed.geometry.valid
        if short.any():
            at = int(np.argmax(short))
            raise VerifyError(
                4,
                step.task,
                f"reads {int(placed.geometry.valid[at])} elements of the stick at"
                f" {placed.bytes(at)} of {shadow.name}, of which"
                f" {int(shadow.valid[where][at])} are valid",
            )
        covers = shadow.cover[where]
        cover = int(covers[0])
        if (covers != cover).any():
            other = int(covers[np.argmax(covers != cover)])
            raise VerifyError(
                8,
                step.task,
                f"parts of the tile of {placed.tile.access.value} have summed different reduction"
                f" indices: {self.covers.text(cover)} and {self.covers.text(other)}",
            )
        if cover != COMPLETE and not partial:
            raise VerifyError(
                8,
                step.task,
                f"uses {placed.tile.access.value} before its reduction is complete: summed are"
                f" {self.covers.text(cover)} of"
                f" {show([tuple((0, n) for n in self._extents[placed.tile.access.value])])}",
            )
        shadow.mark_read(step, where)
        return cover

    def _wrong_tile(self, step: Step, shadow: Shadow, placed: Placed, at: int) -> None:
        where = placed.where
        kind = int(shadow.kind[where][at]) - 1
        value = self.rules.tiles.kinds[kind][0]
        linear = int(shadow.first[where][at])
        if self.rules.tiles.kinds[kind][3]:
            linear //= placed.tile.point_bytes // STICK_BYTES
        held = show_element(linear, self.instance.shapes[value])
        raise VerifyError(
            4,
            step.task,
            f"reads {placed.bytes(at)} of {shadow.name} for element"
            f" {placed.element(at, self._shape(placed))} of"
            f" {self.rules.tiles.describe(placed.kind)}, but there is element {held} of"
            f" {self.rules.tiles.describe(kind)}",
        )

    def _write(self, step: Step, shadow: Shadow, placed: Placed, cover: int) -> None:
        where = placed.where
        if not placed.geometry.distinct:
            raise VerifyError(
                5,
                step.task,
                f"two elements of its tile of {placed.tile.access.value} lie in the same stick",
            )
        shadow.check_write(step, where, placed.bytes)
        shadow.kind[where] = placed.kind + 1
        shadow.first[where] = placed.firsts
        shadow.valid[where] = placed.geometry.valid
        shadow.cover[where] = cover
        shadow.mark_written(step, where)

    def _shape(self, placed: Placed) -> tuple[int, ...]:
        return self.instance.shapes[placed.tile.access.value]

    def _read_lx(self, step: Step, access: Access, partial: bool = False) -> Placed:
        placed = self.rules.lx(step.task, access)
        self._read(step, self.lx[step.task.core], placed, partial)
        return placed

    def _read_memory(self, step: Step, placed: Placed) -> None:
        """LOAD's side in LPDDR5. IN and CONST never change; INOUT holds something from the start;
        OUT and SCRATCH hold what was stored."""
        name = placed.tile.access.place
        shadow = self.memory.get(name)
        if shadow is None:
            return
        if self.operands[name].role is Role.INOUT:
            shadow.check_after_writes(step, placed.where, 4, placed.bytes, "reads")
            shadow.mark_read(step, placed.where)
        else:
            self._read(step, shadow, placed)

    def _computed(self, step: Step, access: Access) -> None:
        """A tile that something else than LOAD or a copy fills is no IN or CONST operand's."""
        if self.instance.is_read_only(access.value):
            raise VerifyError(
                4,
                step.task,
                f"writes a tile of {access.value}, an operand that only LOAD brings into LX;"
                " declare a value for what is computed",
            )

    def _mean(
        self, step: Step, function: object, inputs: list[Placed], out: Placed, cover: Box
    ) -> None:
        """Rule 4: an element of a value is one thing. Else a stale tile could not be told from
        the right one."""
        value = out.tile.access.value
        if value in self.operands and self.operands[value].role is Role.INOUT:
            return
        key = (value, out.tile.box, out.tile.access.lanes, cover)
        meaning = (function, tuple((i.tile.access.value, i.tile.box) for i in inputs))
        known = self._meanings.setdefault(key, meaning)
        if known != meaning:
            raise VerifyError(
                4,
                step.task,
                f"computes {value}{_show_box(out.tile.box)} from other inputs (or in another way)"
                " than before: a stale tile could pass for the right one; give the value a dim for"
                " the loop",
            )

    # --- transfers

    def _check_group(self, step: Step) -> None:
        """Rule 6: a multicast LOAD is the same on all its cores."""

        def what(task: Task) -> tuple[object, ...]:
            assert isinstance(task.instruction, Load)
            source = self.instance.tile(task, task.instruction.source)
            gather = task.instruction.gather
            index = self.instance.tile(task, gather.index).box if gather else ()
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

    def _load(self, step: Step, load: Load) -> None:
        task = step.task
        target = self.rules.lx(task, load.target)
        if load.gather is None:
            source = self.rules.mem(task, load.source)
            self.rules.check_all_labels(task, source.tile)
            nbytes = source.tile.nbytes
            self._read_memory(step, source)
        else:
            gather = load.gather
            label = _position(load, gather.label)
            limit = self._limit(task, task.number(gather.limit))
            plain = self.instance.tile(task, load.source)
            source = self.rules.mem(task, load.source, Range(label, 0, limit))
            self.rules.check_all_labels(task, plain)
            self.rules.check_all_labels(task, target.tile)
            self._computed(step, load.target)
            nbytes = plain.nbytes
            index = self._read_lx(step, gather.index)
            self._read_memory(step, source)
            self._mean(step, "gather", [source, index], target, ())
        self._write(step, self.lx[task.core], target, COMPLETE)
        self.counts.read_without_multicast += nbytes
        if not step.group or step.task is step.group[0]:
            self.counts.read += nbytes
        self.counts.lx_received += nbytes

    def _store(self, step: Step, store: Store) -> None:
        task = step.task
        operand = self.operands[store.target.place]
        if operand.role in (Role.IN, Role.CONST):
            raise VerifyError(
                7, task, f"stores to {operand.name}, which has role {operand.role.value}"
            )
        shadow = self.memory[operand.name]
        source = self._read_lx(step, store.source)
        self.rules.check_all_labels(task, source.tile)
        self.counts.written += source.tile.nbytes
        if store.scatter is not None:
            self._scatter(step, store, shadow, source)
            return
        target = self.rules.mem(task, store.target)
        self.rules.check_all_labels(task, target.tile)
        if operand.role is not Role.SCRATCH:
            self.rules.check_whole_sticks(task, target.tile)
        if operand.role is Role.OUT:
            again = shadow.kind[target.where] != 0
            if again.any():
                at = int(np.argmax(again))
                raise VerifyError(
                    7,
                    task,
                    f"stores element {target.element(at, self._shape(target))} of {operand.name}"
                    f" ({target.bytes(at)}) a second time",
                )
        self._write(step, shadow, target, COMPLETE)

    def _scatter(self, step: Step, store: Store, shadow: Shadow, source: Placed) -> None:
        task, scatter = step.task, store.scatter
        assert scatter is not None
        operand = self.operands[store.target.place]
        if operand.role is Role.OUT:
            raise VerifyError(
                7,
                task,
                f"scatters to {operand.name}, whose role out wants each element stored once; make"
                " it inout",
            )
        self._read_lx(step, scatter.index)
        limit = self._limit(task, task.number(scatter.limit))
        first, count = task.number(scatter.first), task.number(scatter.count)
        begin, end = max(0, first), min(limit, first + count)
        if begin >= end:
            return
        label = _position(store, scatter.label)
        # Whatever the indices are, inside its window the core may write every stick.
        target = self.rules.mem(task, store.target, Range(label, begin, end - begin))
        self.rules.check_all_labels(task, target.tile)
        self.rules.check_whole_sticks(task, target.tile)
        if operand.role is Role.SCRATCH:
            self._read(step, shadow, target)
        self._write(step, shadow, target, COMPLETE)
        key = (operand.name, source.tile.access.value)
        scattered = self._scattered.get(key)
        if scattered is None:
            scattered = self._scattered[key] = Scattered(key[1], limit, self._shape(source))
        scattered.add(task, limit, (begin, end), source.tile.box)

    def _limit(self, task: Task, limit: int) -> int:
        if limit < 1:
            raise VerifyError(1, task, f"limit is {limit} and must be at least 1")
        return limit

    def _ring(self, step: Step, ring: Ring) -> None:
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
            if not 0 <= core < self.instance.cores:
                raise VerifyError(
                    1, inner, f"takes from core {core} of 0..{self.instance.cores - 1}"
                )
            part = dataclasses.replace(step, task=inner)
            source = self.rules.lx(inner, ring.source)
            target = self.rules.lx(inner, ring.target)
            for tile in (source.tile, target.tile):
                self.rules.check_all_labels(inner, tile)
            if core == task.core and source.overlaps(target):
                raise VerifyError(9, inner, "the target overlaps the source, which is in this core")
            cover = self._read(part, self.lx[core], source, partial=True)
            self.counts.lx_received += source.tile.nbytes
            self.counts.ring += source.tile.nbytes
            if ring.combine is None:
                self._write(part, self.lx[task.core], target, cover)
            covers.append(cover)
            sources.append(source)
        if ring.combine is not None:
            assert target is not None
            cover = self._joined(step, ring, sources, covers, target)
            self._write(step, self.lx[task.core], target, cover)

    def _joined(
        self, step: Step, ring: Ring, sources: list[Placed], covers: list[int], target: Placed
    ) -> int:
        """Rule 8 for a RING reduce: parts of one value join what they cover; complete tiles of
        another value (one for each number of the variable) are summed by a value of its own."""
        self._computed(step, ring.target)
        value, source = ring.target.value, ring.source.value
        if value == source:
            if any(part.tile.box != target.tile.box for part in sources):
                raise VerifyError(
                    8, step.task, f"joins parts of {value} that declare other boxes than the target"
                )
            known = self._parts.get(value)
            if known is not None and known[0] is not ring.combine:
                raise CoverError(f"{value} is reduced by {known[0].value}, RING must do the same")
            if len(covers) == 1:
                return covers[0]
            return self.covers.join(covers, self._extent(value, ()))
        if any(cover != COMPLETE for cover in covers):
            raise VerifyError(
                8, step.task, f"sums tiles of {source} whose own reduction is not complete"
            )
        if len({part.tile.box for part in sources}) != len(sources):
            raise VerifyError(8, step.task, f"sums the same box of {source} more than once")
        shape = self.instance.shapes[source]
        parts = sum(volume(part.tile.box) for part in sources)
        if parts != volume(target.tile.box) * self._summed(value, shape):
            raise VerifyError(
                8,
                step.task,
                f"must sum each of the {self._summed(value, shape)} parts that {value} declares"
                f" (`reduced`), sums {len(sources)}",
            )
        self._mean(step, "ring", sources, target, ())
        return COMPLETE

    def _summed(self, value: str, shape: tuple[int, ...]) -> int:
        """How many elements of a value of `shape` an element of `value` sums."""
        if value in self._declared:
            return math.prod(self._extents[value])
        return max(1, math.prod(shape) // math.prod(self.instance.shapes[value]))

    # --- computing

    def _compute(self, step: Step, compute: Compute) -> None:
        task, kind = step.task, compute.kind
        core = self.lx[task.core]
        ranged = Range(-1, 0, 0)
        if kind in (Kind.GATHER, Kind.SCATTER, Kind.TOPK):
            assert compute.label is not None
            limit = self._limit(task, task.number(compute.limit))
            ranged = Range(_position(compute, compute.label), 0, limit)
        accumulate = (
            kind in (Kind.MATMUL, Kind.REDUCE, Kind.TOPK, Kind.SCAN)
            and task.number(compute.accumulate) != 0
        )
        inputs: list[Placed] = []
        covers: list[int] = []
        for number, access in enumerate(compute.inputs):
            only = self._range(task, access, ranged, kind is Kind.GATHER and number == 0)
            placed = self.rules.lx(task, access, only)
            carry = kind is Kind.SCAN and number == 1
            if not carry or accumulate:
                covers.append(self._read(step, core, placed, partial=kind is Kind.FOLD or carry))
            else:
                covers.append(EMPTY)
            inputs.append(placed)
        outputs = []
        for access in compute.outputs:
            only = self._range(task, access, ranged, kind in (Kind.SCATTER, Kind.TOPK))
            outputs.append(self.rules.lx(task, access, only))
            self._computed(step, access)
        self._check_overlaps(step, compute, inputs, outputs)
        self._check_labels(step, compute, outputs)
        self.counts.computes[task.unit] = self.counts.computes.get(task.unit, 0) + 1
        box = self._reduced_box(task, compute, inputs)
        for number, placed in enumerate(outputs):
            cover = self._cover(step, compute, placed, inputs, covers, box, number, accumulate)
            self._mean(
                step,
                (self._function(compute), task.over if _reads_index(compute) else ()),
                inputs,
                placed,
                box,
            )
            self._write(step, core, placed, cover)

    def _range(self, task: Task, access: Access, ranged: Range, applies: bool) -> Range | None:
        """The indices 0 .. limit - 1 (and the access's offset) along the label of a gather."""
        if not applies:
            return None
        assert isinstance(task.instruction, Compute)
        label = task.instruction.label
        offset = next(task.number(i.offset) for i in access.index if i.label == label)
        return Range(ranged.label, offset, ranged.size)

    def _function(self, compute: Compute) -> int:
        """A number for what a COMPUTE does, whatever its tiles."""
        number = self._function_of.get(id(compute))
        if number is None:
            what = (
                compute.kind, compute.body, compute.combine, compute.label, compute.descending,
                compute.add, tuple(label.name for label in compute.over),
            )  # fmt: skip
            number = self._functions.setdefault(what, len(self._functions))
            self._function_of[id(compute)] = number
        return number

    def _check_overlaps(
        self, step: Step, compute: Compute, inputs: list[Placed], outputs: list[Placed]
    ) -> None:
        """Rule 9."""
        for number, out in enumerate(outputs):
            for other in outputs[:number]:
                if out.overlaps(other):
                    raise VerifyError(
                        9,
                        step.task,
                        f"outputs {out.tile.access.value} and {other.tile.access.value} overlap",
                    )
            for position, source in enumerate(inputs):
                if not out.overlaps(source):
                    continue
                in_place = compute.kind is Kind.MAP or (
                    compute.kind is Kind.SCAN and number == 1 and position == 1
                )
                if not in_place or not out.same_place(source):
                    raise VerifyError(
                        9,
                        step.task,
                        f"output {out.tile.access.value} overlaps input"
                        f" {source.tile.access.value}; "
                        + (
                            "in place means the same address, strides, stick and element size"
                            if compute.kind is Kind.MAP
                            else f"{compute.kind.value} does not work in place"
                        ),
                    )

    def _check_labels(self, step: Step, compute: Compute, outputs: list[Placed]) -> None:
        """MAP and the kinds that move elements give one result at every point."""
        if compute.kind in (Kind.MATMUL, Kind.REDUCE, Kind.SCATTER):
            return
        for number, out in enumerate(outputs):
            if compute.kind is Kind.SCAN and number == 1:
                continue
            for position, size in enumerate(step.task.over):
                if size[1] > 1 and position not in out.tile.dims:
                    raise VerifyError(
                        1,
                        step.task,
                        f"output {out.tile.access.value} lacks label"
                        f" {compute.over[position].name} of size {size[1]}: no output broadcast",
                    )

    # --- reductions

    def _reduced_box(self, task: Task, compute: Compute, inputs: list[Placed]) -> Box:
        """The reduction indices that this task covers."""
        return tuple(
            (start, start + size) for _, start, size, _ in self._reduced_dims(task, compute, inputs)
        )

    def _reduced_dims(
        self, task: Task, compute: Compute, inputs: list[Placed]
    ) -> list[tuple[int, int, int, int]]:
        """(label, start, size, extent of the value that has it) of every reduced label. Indices
        are the labels' for a value with declared `reduced`, else those of the inputs' dims."""
        kind = compute.kind
        names = [label.name for label in compute.over]
        out = compute.outputs[-1] if kind is Kind.SCAN else compute.outputs[0]
        if kind in (Kind.MATMUL, Kind.REDUCE):
            kept = {index.label for index in out.index}
            reduced = [name for name in names if name not in kept]
        elif kind in (Kind.SCAN, Kind.TOPK, Kind.SCATTER):
            reduced = [str(compute.label)]
        else:
            return []
        found = []
        for name in reduced:
            position = names.index(name)
            start, size = task.over[position]
            extent = start + size
            for source in inputs:
                if position in source.tile.dims:
                    dim = source.tile.dims.index(position)
                    extent = self._shape(source)[dim]
                    if out.value not in self._declared:
                        start, size = source.tile.box[dim]
                    break
            found.append((position, start, size, extent))
        return found

    def _extent(self, value: str, inferred: tuple[int, ...]) -> tuple[int, ...]:
        """Sizes of a value's reduction indices: declared, or inferred at its first reduction."""
        known = self._extents.setdefault(value, inferred)
        if value not in self._declared and inferred and known != inferred:
            raise CoverError(
                f"{value} is reduced over sizes {list(known)} and {list(inferred)}; declare"
                " `reduced`"
            )
        return known

    def _cover(
        self,
        step: Step,
        compute: Compute,
        out: Placed,
        inputs: list[Placed],
        covers: list[int],
        box: Box,
        number: int,
        accumulate: bool,
    ) -> int:
        """What the output covers afterwards."""
        kind, value = compute.kind, out.tile.access.value
        core = self.lx[step.task.core]
        dims = self._reduced_dims(step.task, compute, inputs)
        self._check_part(compute, inputs, value, number)
        if kind in (Kind.MATMUL, Kind.REDUCE, Kind.TOPK):
            extent = self._extent(value, tuple(size for *_, size in dims))
            before = self._read(step, core, out, partial=True) if accumulate else EMPTY
            return self.covers.extend(before, box, extent)
        if kind is Kind.SCATTER:
            operand = self.operands.get(value)
            if operand is not None and operand.role is Role.INOUT:
                # Exempt from rule 8, as from rule 7: each whole scatter starts anew.
                extent = self._extent(value, tuple(size for *_, size in dims))
                before = self._read(step, core, out, partial=True) or EMPTY
                return self.covers.extend(before, box, extent)
            if value not in self._declared:
                raise CoverError(
                    f"SCATTER needs a value that declares how many indices go into it: give"
                    f" {value} `reduced`"
                )
            before = self._read(step, core, out, partial=True)
            return self.covers.extend(before, box, self._extent(value, ()))
        if kind is Kind.SCAN and number == 1:
            extent = self._extent(value, tuple(size for *_, size in dims))
            before = covers[1]
            boxes = self.covers.boxes(before)
            if not accumulate and box[0][0] != 0:
                raise CoverError(
                    f"the scan starts anew at index {box[0][0]}; start the label at 0 and give the"
                    " values a dim for the piece, if pieces are meant"
                )
            if accumulate and (not boxes or boxes[-1][0][1] != box[0][0]):
                raise CoverError(
                    f"the scan goes on at index {box[0][0]} and its carry has"
                    f" {self.covers.text(before)}"
                )
            return self.covers.extend(before, box, extent)
        if kind is Kind.FOLD:
            source = inputs[number].tile.access.value
            if covers[number] != COMPLETE:
                declared = self._extent(value, self._extents[source])
                if declared != self._extents[source]:
                    raise CoverError(
                        f"{source} is not complete and {value} declares other reduction indices"
                    )
            return covers[number]
        if kind is Kind.MAP:
            self._check_new(step, inputs, out)
            return EMPTY if value in self._declared else COMPLETE
        return COMPLETE

    def _check_part(self, compute: Compute, inputs: list[Placed], value: str, number: int) -> None:
        """A value is summed by one operation, and is one of its results: the mean, say."""
        if compute.kind not in (Kind.MATMUL, Kind.REDUCE, Kind.FOLD):
            return
        part = (compute.combine or Combine.SUM, number)
        if compute.kind is Kind.FOLD:
            source = inputs[number].tile.access.value
            if self._parts.get(source, part) != part:
                raise CoverError(
                    f"input {number} is {source}, output {self._parts[source][1]} of a reduction by"
                    f" {self._parts[source][0].value}, and is folded by {part[0].value}"
                )
        if self._parts.setdefault(value, part) != part:
            raise CoverError(
                f"{value} is output {self._parts[value][1]} of a reduction by"
                f" {self._parts[value][0].value} elsewhere, here output {number} by {part[0].value}"
            )

    def _check_new(self, step: Step, inputs: list[Placed], out: Placed) -> None:
        """Rule 4: a MAP does not compute an element from itself, but for INOUT operands."""
        value = out.tile.access.value
        operand = self.operands.get(value)
        if operand is not None and operand.role is Role.INOUT:
            return
        for source in inputs:
            if source.tile.access.value == value and all(
                a < c + d and c < a + b
                for (a, b), (c, d) in zip(source.tile.box, out.tile.box, strict=True)
            ):
                raise VerifyError(
                    4,
                    step.task,
                    f"computes {value}{_show_box(out.tile.box)} from itself; name the result"
                    " differently (it may still lie in place)",
                )


def _position(instruction: Load | Store | Compute, label: str) -> int:
    return [item.name for item in instruction.over].index(label)


def _reads_index(compute: Compute) -> bool:
    return compute.body is None or any(node.op == "index" for node in compute.body.nodes)


def _show_box(box: tuple[tuple[int, int], ...]) -> str:
    return "[" + ", ".join(f"{start}:{start + size}" for start, size in box) + "]"
