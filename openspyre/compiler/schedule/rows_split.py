"""A reduction of very many elements to few, on all cores.

Rows alone would leave one core with everything. Here the elements are cut into `parts`, a number
that depends on the shape alone, each a run of the first reduced label that is long enough; a core
takes an equal share of the parts, and core 0 joins their accumulators over the ring in ascending
order of the parts, folds the lanes and does what follows. So the bits do not depend on the number
of cores. Against the order of one core they differ only as a K split does, and only for sums and
products of floats: those are split from MANY elements on. max, min, any, all and integers have the
same bits either way and are split from FEW on. (argmax, argmin and welford hand on several values,
which the ring does not join: they stay with one core.)

Where a core's share of rows would span more of the tensor than a core may touch, the label on the
stick is cut instead; a part then goes stick by stick, all other labels inside.

Imports no torch.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, ExitStack

from openspyre.compiler.errors import CompileError
from openspyre.compiler.graph import Access, Graph, Op, OpKind
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.schedule import common, rows_plan
from openspyre.compiler.schedule.common import Draft
from openspyre.compiler.schedule.rows_plan import Box, Key, Plan, key_of
from openspyre.compiler.sizes import known
from openspyre.compiler.tiles import Kernel
from openspyre.program import body as f
from openspyre.program.boxes import Ref, Span, Tile, span
from openspyre.program.builder import Stream
from openspyre.program.expr import Const, Expr, Var, ceil_div, equal, expr, minimum
from openspyre.program.model import Program
from openspyre.program.ops import Combine, Kind

MANY = 1 << 20
"""Elements from which on sums and products of floats are split."""

FEW = 1 << 17
"""Elements from which on reductions are split that no order changes."""

PARTS = 32
MOST_KEPT = 256 << 10
"""Bytes that the accumulators of all parts of a core may take."""

_JOINED = (Combine.SUM, Combine.PROD, Combine.MAX, Combine.MIN, Combine.ANY, Combine.ALL)


def wanted(kernel: Kernel, graph: Graph) -> bool:
    """Whether a rows kernel is one for this file."""
    op, *rest = kernel.ops
    if op.kind is not OpKind.REDUCE or not op.reduced or op.combine not in _JOINED:
        return False
    if any(o.kind is not OpKind.MAP or set(o.labels) & set(op.reduced) for o in rest):
        return False
    if any(known(size) is None for o in kernel.ops for size in o.labels.values()):
        return False
    assert op.body is not None
    sizes = {label: graph.hint(size) for label, size in op.labels.items()}
    exact = op.combine not in (Combine.SUM, Combine.PROD) or rows_plan.letter(op.body) != "f"
    if math.prod(sizes.values()) < (FEW if exact else MANY):
        return False
    return _split(rows_plan.analyse(kernel, graph), op) is not None


def _split(plan: Plan, op: Op) -> tuple[str, int, bool] | None:
    """(the label that is cut, the number of parts, whether its sticks are gone through before all
    other labels), or None when rows do better."""
    kept = 1
    for label, size in op.labels.items():
        if label not in op.reduced:
            kept *= -(-plan.graph.hint(size) // plan.units.get(label, 1))
    if kept > 4 or plan.staged:
        return None
    whole = {n: plan.graph.hint(s) for n, s in plan.sizes.items()}
    if any(box.bytes(whole) * PARTS > MOST_KEPT for box in _accumulators(plan, op)):
        return None
    tile = dict(whole)
    for label in op.reduced:
        unit = plan.units.get(label, 1)
        tile[label] = min(unit, tile[label])
        moved = sum(box.bytes(tile) for box in plan.loads.values())
        if -(-whole[label] // unit) >= PARTS and moved <= 2 * rows_plan.TILE_BYTES:
            if _reach(plan, {**whole, label: -(-whole[label] // PARTS)}) <= common.SPAN_LIMIT:
                return label, PARTS, False
            return _major(plan, op, whole)
        if not rows_plan.stepped(plan, label):
            return None
    return None


def _reach(plan: Plan, sizes: dict[str, int]) -> int:
    """The longest span of an argument, in bytes, for so many indices of each label."""
    return max(common.span_bytes(_access(b), sizes, plan.graph) for b in plan.loads.values())


def _major(plan: Plan, op: Op, whole: dict[str, int]) -> tuple[str, int, bool] | None:
    """The label on the stick, for a tensor of which a core must not touch rows everywhere."""
    for label in op.reduced:
        count = -(-whole[label] // plan.units.get(label, 1))
        share = {**whole, label: -(-count // PARTS) * plan.units.get(label, 1)}
        stepped = plan.units.get(label, 1) > 1 and rows_plan.stepped(plan, label)
        if stepped and count >= PARTS and _reach(plan, share) <= common.SPAN_LIMIT:
            return label, PARTS, True
    return None


def _padded(plan: Plan, label: str) -> int:
    unit = plan.units.get(label, 1)
    return -(-plan.graph.hint(plan.sizes[label]) // unit) * unit


def _accumulators(plan: Plan, op: Op) -> list[Box]:
    return plan.lanes.get(id(op)) or plan.results[id(op)]


def schedule(kernel: Kernel, graph: Graph, options: CompileOptions) -> Program:
    """The Program of such a kernel."""
    plan = rows_plan.analyse(kernel, graph)
    found = _split(plan, kernel.ops[0])
    if found is None:
        raise CompileError(f"{kernel.name}: no label to cut")
    label, parts, major = found
    cores = 1
    while cores * 2 <= min(options.most_cores, parts):
        cores *= 2
    split = _Split(kernel, plan, options, (label, parts, major), cores)
    program = split.program()
    kernel.cores, kernel.splits, kernel.tile = cores, {label: cores}, dict(split.tile)
    kernel.lx_bytes = split.draft.used
    return program


class _Split:
    """The queues. `label` is cut into `parts`; the reduced labels before it are gone through index
    by index, those after it are whole in a tile."""

    def __init__(
        self,
        kernel: Kernel,
        plan: Plan,
        options: CompileOptions,
        cut: tuple[str, int, bool],
        cores: int,
    ) -> None:
        label, parts, major = cut
        self.plan, self.label, self.parts, self.cores = plan, label, parts, cores
        self.op = kernel.ops[0]
        self.rest = kernel.ops[1:]
        self.draft = Draft(kernel, plan.graph, options, {label: cores})
        self.builder = self.draft.builder
        self.each = parts // cores  # parts of a core
        self.number: Expr = Var(common.digit(label)) if cores > 1 else Const(0)
        at = self.op.reduced.index(label)
        self.before = () if major else self.op.reduced[:at]
        others = [n for n in self.op.reduced if n != label]
        self.after = others[0] if major and others else None
        self.tile = {n: plan.graph.hint(s) for n, s in plan.sizes.items()}
        self.tile |= {n: plan.units.get(n, 1) for n in self.before}
        read = {key_of(a) for a in self.op.inputs}
        self.streamed = {k: b for k, b in plan.loads.items() if k in read}
        self._sized(options)
        tile = self.tile
        self.ins = {
            k: self.draft.stream(_access(b), tile, slots=options.slots)
            for k, b in self.streamed.items()
        }
        self.late = {
            k: self.draft.stream(_access(b), tile, slots=1)
            for k, b in plan.loads.items()
            if any(key_of(a) == k for o in self.rest for a in o.inputs)
        }
        self.outs = {
            k: self.draft.stream(_access(b), tile, users=("store",), slots=1)
            for k, b in plan.stores.items()
        }
        self.sums = self._place(_accumulators(plan, self.op)[0], self.each)
        sums = self.sums
        self.joined = self.builder.lx(
            "joined", sums.tensor, sums.sizes, format=sums.format,
            stick=None if sums.stick < 0 else sums.stick, lanes=sums.lanes,
        )  # fmt: skip
        self.builder.token("ready", cores)
        self.builder.token("whole")
        self.result = self._place(plan.results[id(self.op)][0]) if plan.lanes else None
        made = {id(a.tensor) for o in self.rest for a in o.outputs}
        self.inside = {k: self._place(b) for k, b in plan.inside.items() if k in made}

    def _sized(self, options: CompileOptions) -> None:
        """The indices of the cut label in a tile."""
        unit = self.plan.units.get(self.label, 1)
        count = -(-_padded(self.plan, self.label) // unit // self.parts) + 1
        budget = common.lx_budget(options) // 2

        def moved(units: int) -> int:
            tile = {**self.tile, self.label: units * unit}
            return sum(b.bytes(tile) for b in self.streamed.values())

        if self.after is not None:
            size = self.tile[self.after]
            self.tile[self.label] = unit
            self.tile[self.after] = 1
            one = sum(b.bytes(self.tile) for b in self.streamed.values())
            each = self.plan.units.get(self.after, 1)
            self.tile[self.after] = min(size, max(1, rows_plan.TILE_BYTES // one // each) * each)
            return
        count = min(count, max(1, rows_plan.TILE_BYTES // moved(1)))
        while count > 1 and moved(count) > rows_plan.TILE_BYTES:
            count = -(-count // 2)
        if moved(count) * options.slots > budget:
            raise CompileError(f"{self.op.name}: a tile of {moved(count)} bytes is too large")
        self.tile[self.label] = count * unit

    def _place(self, box: Box, slots: int = 1) -> Tile:
        name = self.draft.unique(box.name)
        value = self.builder.value(name, box.shape, reduced=box.reduced, format=box.format)
        sizes = [1 if n is None else self.tile[n] for n in box.dims]
        stick = None if box.stick is None else box.dims.index(box.stick)
        return self.builder.lx(
            f"{name}lx", value, sizes, slots=slots, format=box.format, stick=stick, lanes=box.lanes
        )

    # --- loops

    def _kept(self) -> dict[str, Span]:
        return {n: span(expr(s)) for n, s in self.op.labels.items() if n not in self.op.reduced}

    def _part(self, number: Expr) -> Span:
        """The indices of the cut label in a part; parts differ by a unit at most."""
        size, unit = known(self.plan.sizes[self.label]), self.plan.units.get(self.label, 1)
        assert size is not None
        each, more = divmod(-(-size // unit), self.parts)

        def begin(n: Expr) -> Expr:
            return minimum((n * each + minimum(n, more)) * unit, size)

        return Span(begin(number), begin(number + 1) - begin(number))

    def _tiles(self, stack: ExitStack, local: Expr) -> tuple[dict[str, Span], Expr, Expr]:
        """Loops over the tiles of part `local` of this core: (spans, turn, tile of the part). Turns
        are counted as if every part had as many tiles as the longest."""
        builder, label = self.builder, self.label
        part = self._part(self.number * self.each + local)
        spans = {n: span(expr(s)) for n, s in self.op.labels.items()}
        step: Expr = Const(0)
        count = 1
        for n in self.before:
            size, each = expr(self.plan.sizes[n]), self.tile[n]
            spans[n] = stack.enter_context(builder.tiles(f"at_{n}", size, each))
            step = step * ceil_div(size, each) + spans[n].step
            count *= -(-(known(self.plan.sizes[n]) or 1) // each)
        spans[label] = stack.enter_context(builder.tiles(f"at_{label}", part, self.tile[label]))
        unit = self.plan.units.get(label, 1)
        longest = -(-(_padded(self.plan, label) // unit) // self.parts) * unit
        most = -(-longest // self.tile[label])
        step = step * most + spans[label].step
        if self.after is not None:
            size, each = expr(self.plan.sizes[self.after]), self.tile[self.after]
            spans[self.after] = stack.enter_context(builder.tiles(f"at_{self.after}", size, each))
            step = step * ceil_div(size, each) + spans[self.after].step
            count *= -(-(known(self.plan.sizes[self.after]) or 1) // each)
        return spans, local * (count * most) + step, step

    def _first(self) -> AbstractContextManager[Expr]:
        """What only core 0 does."""
        return self.builder.when(equal(Var("core"), 0))

    # --- queues

    def program(self) -> Program:
        builder, draft = self.builder, self.draft
        with builder.queue("load"):
            with builder.loop("part", self.each) as local, ExitStack() as stack:
                spans, turn, _ = self._tiles(stack, local)
                for key, box in self.streamed.items():
                    self._load(self.ins[key], _access(box), spans, turn)
            if self.late:
                with self._first():
                    for key, stream in self.late.items():
                        self._load(stream, _access(self.plan.loads[key]), self._kept(), Const(0))
        with builder.queue("sfu"):
            with builder.loop("part", self.each) as local, ExitStack() as stack:
                spans, turn, step = self._tiles(stack, local)
                tiles = {k: stack.enter_context(s.use(turn)) for k, s in self.ins.items()}
                self._reduce(spans, tiles, self.sums.at(local), step)
            builder.signal("ready", self.number, core=0)
            with self._first():
                builder.wait("whole")
                self._finish()
        with builder.queue("ring"), self._first():
            with builder.loop("q", self.cores) as q:
                builder.wait("ready", q)
            number = Var("from_")
            local = number % self.each if self.each > 1 else Const(0)
            builder.ring(
                self._kept(), self._ref(self.sums.at(local)), self._ref(self.joined),
                core=number // self.each, count=self.parts, combine=self.op.combine,
            )  # fmt: skip
            builder.signal("whole")
        with builder.queue("store"), self._first():
            for key, stream in self.outs.items():
                access = _access(self.plan.stores[key])
                with stream.use() as tile:
                    builder.store(
                        draft.spans(access, self._kept()),
                        draft.ref(tile, access),
                        draft.ref(draft.owner(access.tensor), access),
                    )
        return builder.build()

    def _load(self, stream: Stream, access: Access, spans: dict[str, Span], turn: Expr) -> None:
        draft = self.draft
        with stream.fill(turn) as tile:
            self.builder.load(
                draft.spans(access, spans),
                draft.ref(draft.owner(access.tensor), access),
                draft.ref(tile, access),
            )

    def _ref(self, tile: Tile) -> Ref:
        """The whole of a tile of results."""
        return Ref(tile, tuple((n, expr(0)) for n in self.plan.results[id(self.op)][0].dims))

    def _reduce(
        self, spans: dict[str, Span], tiles: dict[Key, Tile], target: Tile, step: Expr
    ) -> None:
        op, draft = self.op, self.draft
        order = [n for n in op.labels if n not in op.reduced] + list(op.reduced)
        self.builder.compute(
            Kind.REDUCE, {n: spans[n] for n in order},
            [draft.ref(tiles[key_of(a)], a) for a in op.inputs], self._ref(target),
            body=op.body, combine=op.combine, accumulate=step,
        )  # fmt: skip

    def _finish(self) -> None:
        """The lanes folded, the maps that follow, the results handed to the store queue."""
        builder, draft, op, over = self.builder, self.draft, self.op, self._kept()
        result = self.joined
        if self.result is not None:
            assert op.combine is not None
            builder.fold(over, op.combine, self._ref(self.result), self._ref(self.joined))
            result = self.result
        made = {id(op.outputs[0].tensor): result}
        with ExitStack() as stack:
            late = {k: stack.enter_context(s.use()) for k, s in self.late.items()}
            if draft.is_argument(op.outputs[0].tensor):
                access = op.outputs[0]
                with self.outs[key_of(access)].fill() as tile:
                    builder.map(over, draft.ref(tile, access), f.identity, self._ref(result))
            for other in self.rest:
                sources = [
                    draft.ref(made.get(id(a.tensor)) or late[key_of(a)], a) for a in other.inputs
                ]
                targets = []
                with ExitStack() as outs:
                    for a in other.outputs:
                        place = self.inside.get(id(a.tensor))
                        if place is None:
                            place = outs.enter_context(self.outs[key_of(a)].fill())
                        made[id(a.tensor)] = place
                        targets.append(draft.ref(place, a))
                    whole = {n: over[n] for n in other.labels}
                    builder.compute(Kind.MAP, whole, sources, targets, body=other.body)


def _access(box: Box) -> Access:
    assert box.access is not None
    return box.access
