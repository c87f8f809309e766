"""Order along a row: SORT and TOPK, each a program of its own.

The other labels are split over cores and taken tile by tile. A row that fits LX is sorted at once.
A longer one is taken part by part by TOPK, which keeps the first `limit` of what it has seen in
order, stable; a sort is the TOPK of all. Only the results of one row must then fit LX: about
190,000 elements of 16 bit. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from openspyre.compiler.errors import CompileError, Unsupported
from openspyre.compiler.graph import Access, Graph, Op, OpKind
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.schedule import common
from openspyre.compiler.schedule.common import Axis, Draft
from openspyre.compiler.sizes import known
from openspyre.compiler.tiles import Kernel
from openspyre.program import body as f
from openspyre.program.boxes import Ref, Span, Tile, span
from openspyre.program.builder import Stream
from openspyre.program.expr import Expr, ceil_div, expr
from openspyre.program.model import Program
from openspyre.program.ops import Kind

TILE_BYTES = 128 << 10


@dataclass(eq=False)
class _Plan:
    """`tile`: indices of each label in a tile of the input; `size`, `limit`: of the label that is
    sorted and of its results."""

    op: Op
    label: str
    size: int
    limit: int
    units: dict[str, int]
    tile: dict[str, int] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)
    slots: int = 2

    def results(self, tile: Mapping[str, int]) -> dict[str, int]:
        """Sizes of a tile of the results."""
        return {**tile, self.label: self.limit}

    @property
    def staged(self) -> bool:
        """Whether the input lacks labels: it is then spread out in LX first."""
        return self.op.inputs[0].labels != set(self.op.labels)

    def staged_bytes(self, tile: Mapping[str, int], graph: Graph) -> int:
        format = self.op.inputs[0].tensor.format(graph.mode)
        return common.sticks([tile[n] for n in self.op.labels], len(self.op.labels) - 1, format)

    def bytes(self, tile: Mapping[str, int], slots: int, graph: Graph) -> int:
        """Bytes of LX."""
        source, outs = self.op.inputs[0], self.op.outputs
        total = common.tile_bytes(source, tile, graph.mode) * slots
        if self.staged:
            total += self.staged_bytes(tile, graph)
        for access in outs:
            total += common.tile_bytes(access, self.results(tile), graph.mode) * slots
        return total


def schedule(kernel: Kernel, graph: Graph, options: CompileOptions) -> Program:
    """The Program of one SORT or TOPK."""
    if len(kernel.ops) != 1:
        raise CompileError(f"{kernel.name}: SORT and TOPK are alone in their kernel")
    plan = _make(kernel.ops[0], graph, options)
    kernel.cores = math.prod(plan.parts.values())
    kernel.splits, kernel.tile = dict(plan.parts), dict(plan.tile)
    draft = Draft(kernel, graph, options, plan.parts)
    program = _Order(draft, plan).program()
    kernel.lx_bytes = draft.used
    return program


def _make(op: Op, graph: Graph, options: CompileOptions) -> _Plan:
    label = op.label
    if label is None:
        raise CompileError(f"{op.name}: sorts along no label; one element needs no order")
    size = known(op.labels[label])
    if size is None:
        raise Unsupported(
            op.name, str(op.inputs[0]), "the dim that is sorted has a size known at launch only",
            "give it a fixed size",
        )  # fmt: skip
    limit = min(op.limit, size) if op.kind is OpKind.TOPK else size
    plan = _Plan(op, label, size, limit, common.units_of([*op.inputs, *op.outputs], graph.mode))
    if plan.staged:
        last, format = next(reversed(op.labels)), op.inputs[0].tensor.format(graph.mode)
        plan.units[last] = max(plan.units.get(last, 1), format.elements_per_stick)
    outer = {n: graph.hint(s) for n, s in op.labels.items() if n != label}
    counts = {n: -(-s // plan.units.get(n, 1)) for n, s in outer.items()}
    full = {**outer, label: size}
    cores = common.cores_for(plan.bytes(full, 1, graph), options)
    plan.parts = common.split_cores(counts, cores)
    tile = dict(full)
    for name in outer:
        mine = -(-counts[name] // plan.parts.get(name, 1)) * plan.units.get(name, 1)
        tile[name] = mine if known(op.labels[name]) is None else min(mine, outer[name])
    share = plan.bytes(tile, 1, graph)
    target = min(TILE_BYTES, max(8 << 10, share // 4))
    budget = common.lx_budget(options)
    for name in outer:
        while plan.bytes(tile, 1, graph) > target and tile[name] > plan.units.get(name, 1):
            unit = plan.units.get(name, 1)
            tile[name] = -(-tile[name] // unit // 2) * unit
    plan.slots = options.slots
    if plan.bytes(tile, plan.slots, graph) > budget:
        plan.slots = 1
    while plan.bytes(tile, plan.slots, graph) > budget:
        unit = plan.units.get(label, 1)
        if tile[label] <= unit:
            raise Unsupported(
                op.name, f"{op.inputs[0].tensor} along a dim of {size}",
                f"the {limit} results of a row and their indices need more than the {budget} bytes"
                " of LX that a core has for them",
                "sort shorter rows, or on the CPU",
            )  # fmt: skip
        tile[label] = -(-tile[label] // unit // 2) * unit
    unit = plan.units.get(label, 1)
    while op.kind is OpKind.TOPK and common.tile_bytes(op.inputs[0], tile, graph.mode) > TILE_BYTES:
        if tile[label] <= unit:
            break
        tile[label] = -(-tile[label] // unit // 2) * unit  # so that the load of a part overlaps
    plan.tile = tile
    return plan


class _Order:
    """The queues."""

    def __init__(self, draft: Draft, plan: _Plan) -> None:
        self.draft, self.plan = draft, plan
        self.builder = draft.builder
        op = plan.op
        self.axes = [
            Axis(n, draft.share(n, s, plan.units.get(n, 1)), plan.tile[n])
            for n, s in op.labels.items()
            if n != plan.label
        ]
        self.source = op.inputs[0]
        self.ins = draft.stream(self.source, plan.tile, slots=plan.slots)
        self.outs = [self._out(access) for access in op.outputs]
        self.spread: Tile | None = None
        if plan.staged:
            format = self.source.tensor.format(draft.mode)
            value = self.builder.value("spread", tuple(op.labels.values()), format=format)
            self.spread = self.builder.lx("spreadlx", value, [plan.tile[n] for n in op.labels])
        self.across = ceil_div(plan.size, plan.tile[plan.label])

    def _out(self, access: Access) -> Stream | Tile:
        """Where a result goes; one that nobody wants stays in LX."""
        plan, draft, tensor = self.plan, self.draft, access.tensor
        sizes = plan.results(plan.tile)
        if draft.is_argument(tensor):
            return draft.stream(access, sizes, users=("store",), slots=plan.slots)
        name, place = draft.unique(tensor.name), tensor.place
        value = self.builder.value(
            name, tensor.shape, reduced=(plan.size,), format=tensor.format(draft.mode)
        )
        stick = place.stick if place is not None and place.stick >= 0 else None
        return self.builder.lx(f"{name}lx", value, common.tile_sizes(access, sizes), stick=stick)

    def _over(self, spans: dict[str, Span], box: Span) -> dict[str, Span]:
        """All labels in the order of the op, with this box of the one that is sorted."""
        whole = {axis.label: axis.whole for axis in self.axes}
        return {
            n: box if n == self.plan.label else spans.get(n, whole[n]) for n in self.plan.op.labels
        }

    def program(self) -> Program:
        builder, plan, draft = self.builder, self.plan, self.draft

        def load(spans: dict[str, Span], turn: Expr) -> None:
            with (
                builder.tiles("part", plan.size, plan.tile[plan.label]) as box,
                self.ins.fill(turn * self.across + box.step) as tile,
            ):
                builder.load(
                    draft.spans(self.source, self._over(spans, box)),
                    draft.ref(draft.owner(self.source.tensor), self.source),
                    draft.ref(tile, self.source),
                )

        def compute(spans: dict[str, Span], turn: Expr) -> None:
            with ExitStack() as stack:
                targets = []
                for out, access in zip(self.outs, plan.op.outputs, strict=True):
                    place = stack.enter_context(out.fill(turn)) if isinstance(out, Stream) else out
                    targets.append(draft.ref(place, access))
                with (
                    builder.tiles("part", plan.size, plan.tile[plan.label]) as box,
                    self.ins.use(turn * self.across + box.step) as tile,
                ):
                    self._one(spans, box, draft.ref(tile, self.source), targets)

        def store(spans: dict[str, Span], turn: Expr) -> None:
            over = self._over(spans, span(expr(plan.limit)))
            for out, access in zip(self.outs, plan.op.outputs, strict=True):
                if isinstance(out, Stream):
                    with out.use(turn) as tile:
                        builder.store(
                            draft.spans(access, over),
                            draft.ref(tile, access),
                            draft.ref(draft.owner(access.tensor), access),
                        )

        with builder.queue("load"):
            draft.walk(self.axes, load)
        with builder.queue("sfu"):
            draft.walk(self.axes, compute)
        with builder.queue("store"):
            draft.walk(self.axes, store)
        return builder.build()

    def _one(self, spans: dict[str, Span], box: Span, source: Ref, targets: list[Ref]) -> None:
        plan = self.plan
        if self.spread is not None:
            target = Ref(self.spread, tuple((n, expr(0)) for n in plan.op.labels))
            self.builder.map(self._over(spans, box), target, f.identity, source)
            source = target
        sorts = plan.op.kind is OpKind.SORT and plan.tile[plan.label] >= plan.size
        self.builder.compute(
            Kind.SORT if sorts else Kind.TOPK,
            self._over(spans, box),
            source,
            targets,
            label=plan.label,
            limit=0 if sorts else plan.limit,
            descending=plan.op.descending,
            accumulate=0 if sorts else box.step,
        )
