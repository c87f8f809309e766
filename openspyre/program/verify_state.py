"""What the verifier knows while it runs a program: the shadow memories, and the rules for a tile
that is read or written (4, 5, 8), whatever instruction does it.

Part of the verifier; may import numpy, imports no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from openspyre.formats import STICK_BYTES
from openspyre.program.concrete import Instance, Task
from openspyre.program.model import Access, Role, Unit
from openspyre.program.ops import Combine
from openspyre.program.tokens import Step
from openspyre.program.verify_access import AccessRules
from openspyre.program.verify_cover import COMPLETE, Box, CoverError, Covers, show
from openspyre.program.verify_error import VerifyError
from openspyre.program.verify_memory import Shadow
from openspyre.program.verify_tiles import Placed, show_element

MAX_TRACKED = 32 << 30
"""Bytes of operands that a program may write and still be verified: each stick takes memory."""


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


class State:
    """The state of one verification of one Instance."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.rules = AccessRules(instance)
        self.covers = Covers()
        self.counts = Counts()
        sticks = instance.program.card.lx_bytes // STICK_BYTES
        self.lx = [Shadow(f"LX of core {core}", sticks) for core in range(instance.cores)]
        self.operands = {operand.name: operand for operand in instance.program.operands}
        self.memory = self._memories()
        # Sizes of every value's reduction indices: declared, or inferred at the first reduction.
        self.extents: dict[str, tuple[int, ...]] = {
            name: sizes for name, sizes in instance.reduced.items() if sizes
        }
        self.declared = frozenset(self.extents)
        # Of a value that a reduction makes: by which operation, and which of its outputs it is.
        self.parts: dict[str, tuple[Combine, int]] = {}
        self._meanings: dict[object, object] = {}

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

    def check_outputs(self) -> None:
        """Rule 7: every stick of every OUT operand was stored."""
        for name, shadow in self.memory.items():
            if self.operands[name].role is not Role.OUT:
                continue
            layout = self.instance.operands[name]
            eps = layout.format.elements_per_stick
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

    def read(self, step: Step, shadow: Shadow, placed: Placed, partial: bool = False) -> int:
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
                f" {placed.element(at, self.shape(placed))} of {placed.tile.access.value}, which"
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
                f" {show([tuple((0, n) for n in self.extents[placed.tile.access.value])])}",
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
            f" {placed.element(at, self.shape(placed))} of"
            f" {self.rules.tiles.describe(placed.kind)}, but there is element {held} of"
            f" {self.rules.tiles.describe(kind)}",
        )

    def write(self, step: Step, shadow: Shadow, placed: Placed, cover: int) -> None:
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

    def shape(self, placed: Placed) -> tuple[int, ...]:
        return self.instance.shapes[placed.tile.access.value]

    def read_lx(self, step: Step, access: Access, partial: bool = False) -> Placed:
        placed = self.rules.lx(step.task, access)
        self.read(step, self.lx[step.task.core], placed, partial)
        return placed

    def check_computed(self, step: Step, access: Access) -> None:
        """A tile that something else than LOAD or a copy fills is no IN or CONST operand's."""
        if self.instance.is_read_only(access.value):
            raise VerifyError(
                4,
                step.task,
                f"writes a tile of {access.value}, an operand that only LOAD brings into LX;"
                " declare a value for what is computed",
            )

    def check_meaning(
        self, step: Step, function: object, inputs: list[Placed], out: Placed, cover: Box
    ) -> None:
        """Rule 4: an element of a value is one thing. Else a stale tile could not be told from
        the right one. `function`: what is done to the inputs' elements, and which of its results
        `out` is."""
        value = out.tile.access.value
        if value in self.operands and self.operands[value].role is Role.INOUT:
            return
        key = (value, out.tile.box, out.tile.access.lanes, cover)
        meaning = (
            function,
            labels_of(out),
            tuple(
                (i.tile.access.value, i.tile.box, i.tile.access.format, labels_of(i))
                for i in inputs
            ),
        )
        known = self._meanings.setdefault(key, meaning)
        if known != meaning:
            raise VerifyError(
                4,
                step.task,
                f"computes {value}{show_box(out.tile.box)} from other inputs (or in another way)"
                " than before: a stale tile could pass for the right one; give the value a dim for"
                " the loop",
            )

    def limit_of(self, task: Task, limit: int) -> int:
        if limit < 1:
            raise VerifyError(1, task, f"limit is {limit} and must be at least 1")
        return limit

    def extent(self, value: str, inferred: tuple[int, ...]) -> tuple[int, ...]:
        """Sizes of a value's reduction indices: declared, or inferred at its first reduction."""
        known = self.extents.setdefault(value, inferred)
        if value not in self.declared and inferred and known != inferred:
            raise CoverError(
                f"{value} is reduced over sizes {list(known)} and {list(inferred)}; declare"
                " `reduced`"
            )
        return known


def labels_of(placed: Placed) -> tuple[int, ...]:
    """For each dim of the box which label goes along it; -1 where there is but one index."""
    tile = placed.tile
    return tuple(
        dim if size > 1 else -1 for dim, (_, size) in zip(tile.dims, tile.box, strict=True)
    )


def show_box(box: tuple[tuple[int, int], ...]) -> str:
    return "[" + ", ".join(f"{start}:{start + size}" for start, size in box) + "]"
