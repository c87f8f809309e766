"""The verifier on COMPUTE: what its kinds read, write and cover (rules 1, 4, 8, 9).

Part of the verifier; may import numpy, imports no torch.
"""

from __future__ import annotations

from openspyre.program.concrete import Task
from openspyre.program.model import Access, Compute, Role
from openspyre.program.ops import Combine, Kind
from openspyre.program.tokens import Step
from openspyre.program.verify_access import Range
from openspyre.program.verify_cover import COMPLETE, EMPTY, Box, CoverError
from openspyre.program.verify_error import VerifyError
from openspyre.program.verify_state import State, show_box
from openspyre.program.verify_tiles import Placed
from openspyre.program.verify_transfers import position_of


class Computes:
    """Instructions of the PT and the SFU."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._functions: dict[object, int] = {}
        self._function_of: dict[int, int] = {}
        self._runs: dict[str, set[tuple[int, int]]] = {}

    def compute(self, step: Step, compute: Compute) -> None:
        task, kind = step.task, compute.kind
        core = self.state.lx[task.core]
        ranged = Range(-1, 0, 0)
        if kind in (Kind.GATHER, Kind.SCATTER, Kind.TOPK):
            assert compute.label is not None
            limit = self.state.limit_of(task, task.number(compute.limit))
            ranged = Range(position_of(compute, compute.label), 0, limit)
        accumulate = (
            kind in (Kind.MATMUL, Kind.REDUCE, Kind.TOPK, Kind.SCAN)
            and task.number(compute.accumulate) != 0
        )
        inputs: list[Placed] = []
        covers: list[int] = []
        for number, access in enumerate(compute.inputs):
            only = self._range(task, access, ranged, kind is Kind.GATHER and number == 0)
            placed = self.state.rules.lx(task, access, only)
            carry = kind is Kind.SCAN and number == 1
            if not carry or accumulate:
                covers.append(
                    self.state.read(step, core, placed, partial=kind is Kind.FOLD or carry)
                )
            else:
                covers.append(EMPTY)
            inputs.append(placed)
        outputs = []
        for access in compute.outputs:
            only = self._range(task, access, ranged, kind in (Kind.SCATTER, Kind.TOPK))
            outputs.append(self.state.rules.lx(task, access, only))
            self.state.check_computed(step, access)
        self._check_overlaps(step, compute, inputs, outputs)
        self._check_labels(step, compute, outputs)
        self.state.counts.computes[task.unit] = self.state.counts.computes.get(task.unit, 0) + 1
        box = self._reduced_box(task, compute, inputs)
        for number, placed in enumerate(outputs):
            cover = self._cover(step, compute, placed, inputs, covers, box, number, accumulate)
            self.state.check_meaning(
                step,
                (self._function(compute), number, task.over if _reads_index(compute) else ()),
                inputs,
                placed,
                box,
            )
            self.state.write(step, core, placed, cover)

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
                    extent = self.state.shape(source)[dim]
                    if out.value not in self.state.declared:
                        start, size = source.tile.box[dim]
                    break
            found.append((position, start, size, extent))
        return found

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
        core = self.state.lx[step.task.core]
        dims = self._reduced_dims(step.task, compute, inputs)
        self._check_part(compute, inputs, value, number)
        if kind in (Kind.MATMUL, Kind.REDUCE, Kind.TOPK):
            extent = self.state.extent(value, tuple(size for *_, size in dims))
            before = self.state.read(step, core, out, partial=True) if accumulate else EMPTY
            return self.state.covers.extend(before, box, extent)
        if kind is Kind.SCATTER:
            operand = self.state.operands.get(value)
            if operand is not None and operand.role is Role.INOUT:
                # Exempt from rule 8, as from rule 7: each whole scatter starts anew.
                extent = self.state.extent(value, tuple(size for *_, size in dims))
                before = self.state.read(step, core, out, partial=True) or EMPTY
                return self.state.covers.extend(before, box, extent)
            if value not in self.state.declared:
                raise CoverError(
                    f"SCATTER needs a value that declares how many indices go into it: give"
                    f" {value} `reduced`"
                )
            before = self.state.read(step, core, out, partial=True)
            return self.state.covers.extend(before, box, self.state.extent(value, ()))
        if kind is Kind.SCAN and number == 1:
            extent = self.state.extent(value, tuple(size for *_, size in dims))
            before = covers[1]
            boxes = self.state.covers.boxes(before)
            if not accumulate and box[0][0] != 0:
                raise CoverError(
                    f"the scan starts anew at index {box[0][0]}; start the label at 0 and give the"
                    " values a dim for the piece, if pieces are meant"
                )
            if accumulate and (not boxes or boxes[-1][0][1] != box[0][0]):
                raise CoverError(
                    f"the scan goes on at index {box[0][0]} and its carry has"
                    f" {self.state.covers.text(before)}"
                )
            return self.state.covers.extend(before, box, extent)
        if kind is Kind.FOLD:
            source = inputs[number].tile.access.value
            if covers[number] != COMPLETE:
                declared = self.state.extent(value, self.state.extents[source])
                if declared != self.state.extents[source]:
                    raise CoverError(
                        f"{source} is not complete and {value} declares other reduction indices"
                    )
            return covers[number]
        if kind in (Kind.SORT, Kind.MERGE):
            self._check_run(step, compute, out)
        if kind is Kind.MAP:
            self._check_new(step, inputs, out)
            return EMPTY if value in self.state.declared else COMPLETE
        return COMPLETE

    def _check_part(self, compute: Compute, inputs: list[Placed], value: str, number: int) -> None:
        """A value is summed by one operation, and is one of its results: the mean, say."""
        if compute.kind not in (Kind.MATMUL, Kind.REDUCE, Kind.FOLD):
            return
        part = (compute.combine or Combine.SUM, number)
        if compute.kind is Kind.FOLD:
            source = inputs[number].tile.access.value
            by, place = self.state.parts.get(source, part)
            if (by, place) != part:
                raise CoverError(
                    f"input {number} is {source}, output {place} of a reduction by {by.value}, and"
                    f" is folded by {part[0].value}"
                )
        by, place = self.state.parts.setdefault(value, part)
        if (by, place) != part:
            raise CoverError(
                f"{value} is output {place} of a reduction by {by.value} elsewhere, here output"
                f" {number} by {part[0].value}"
            )

    def _check_run(self, step: Step, compute: Compute, out: Placed) -> None:
        """Rule 4 for sorted runs: what an element of one is depends on the whole run, so the runs
        of a value do not overlap."""
        assert compute.label is not None
        value = out.tile.access.value
        dim = out.tile.dims.index(position_of(compute, compute.label))
        start, size = out.tile.box[dim]
        runs = self._runs.setdefault(value, set())
        if (start, size) in runs:
            return
        for other, length in runs:
            if start < other + length and other < start + size:
                raise VerifyError(
                    4,
                    step.task,
                    f"sorts {value} in a run {start}..{start + size - 1} that overlaps the run"
                    f" {other}..{other + length - 1}; give each level of runs a value of its own",
                )
        runs.add((start, size))

    def _check_new(self, step: Step, inputs: list[Placed], out: Placed) -> None:
        """Rule 4: a MAP does not compute an element from itself, but for INOUT operands."""
        value = out.tile.access.value
        operand = self.state.operands.get(value)
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
                    f"computes {value}{show_box(out.tile.box)} from itself; name the result"
                    " differently (it may still lie in place)",
                )


def _reads_index(compute: Compute) -> bool:
    return compute.body is None or any(node.op == "index" for node in compute.body.nodes)
