"""Rows: MAP, REDUCE and SCAN ops that share loops over rows, as one Program.

`rows_plan` decides the numbers; this file writes the queues. Every argument's access has a stream
of tiles, loaded where the loops that move it are; results between the ops lie in LX in their own
formats. SORT and TOPK are `rows_order`'s, a reduction of a large tensor to few elements
`rows_split`'s. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from openspyre.compiler.errors import CompileError, Unsupported
from openspyre.compiler.graph import Access, Graph, Op, OpKind
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.schedule import common, rows_plan
from openspyre.compiler.schedule.common import Axis, Draft
from openspyre.compiler.schedule.rows_plan import Box, Key, Plan, key_of
from openspyre.compiler.tiles import Kernel
from openspyre.program import body as f
from openspyre.program.boxes import Ref, Span, Tile, span
from openspyre.program.builder import Stream
from openspyre.program.expr import Expr, ceil_div, expr
from openspyre.program.model import Body, Program
from openspyre.program.ops import Kind


def schedule(kernel: Kernel, graph: Graph, options: CompileOptions) -> Program:
    """The Program of a kernel of kind "rows"."""
    if any(op.kind in (OpKind.SORT, OpKind.TOPK) for op in kernel.ops):
        from openspyre.compiler.schedule import rows_order

        return rows_order.schedule(kernel, graph, options)
    from openspyre.compiler.schedule import rows_split

    if rows_split.wanted(kernel, graph):
        return rows_split.schedule(kernel, graph, options)
    try:
        plan = rows_plan.make(kernel, graph, options)
    except rows_plan.DoesNotFit as error:
        op = kernel.ops[0]
        tensors = ", ".join(str(t) for t in kernel.arguments)
        raise Unsupported(
            op.name or op.kind.value, tensors, str(error),
            "bring the tensors to one layout first (contiguous()), or take shorter rows",
        ) from error  # fmt: skip
    program = Rows(kernel, graph, options, plan).program()
    note(kernel, plan)
    return program


def note(kernel: Kernel, plan: Plan) -> None:
    """What was decided, for listings."""
    kernel.splits, kernel.tile = dict(plan.parts), dict(plan.tile)
    kernel.cores, kernel.lx_bytes = plan.cores, plan.lx_bytes


class Rows:
    """The queues of a planned kernel."""

    def __init__(self, kernel: Kernel, graph: Graph, options: CompileOptions, plan: Plan) -> None:
        self.plan = plan
        self.stepping = rows_plan.stepping(plan, plan.tile)
        self.draft = Draft(kernel, graph, options, plan.parts)
        self.builder = self.draft.builder
        self.axes = [
            Axis(
                label,
                self.draft.share(label, plan.sizes[label], plan.units.get(label, 1)),
                plan.tile[label],
            )
            for label in plan.axes
        ]
        self.looped = [label for label in plan.axes if plan.looped(label)]
        self.chunk_steps = [
            ceil_div(expr(plan.sizes[label]), plan.tile[label]) for label in plan.chunks
        ]
        self.turns: Expr = expr(1)  # chunks of a pass
        for steps in self.chunk_steps:
            self.turns = self.turns * steps
        self.ins = {
            key: self._stream(box, ("sfu",)) for key, box in plan.loads.items()
        }  # streams of arguments that are read
        self.outs = {key: self._stream(box, ("store",)) for key, box in plan.stores.items()}
        self.boxes: dict[int, Tile] = {}
        for box in (*plan.inside.values(), *plan.extra):
            self.boxes[id(box)] = self._place(box)
        self.used: dict[Key, list[int]] = {
            key: [
                number
                for number, ops in enumerate(plan.passes)
                if any(key_of(a) == key for op in ops for a in op.inputs)
            ]
            for key, box in plan.loads.items()
            if self._in_chunks(box)
        }  # the passes that load a stream chunk by chunk
        self.tiles: dict[int, Tile] = {}  # SFU: where a tensor made in the kernel lies now
        self.open: dict[Key, Tile] = {}  # SFU: the tiles of the streams that are in use

    # --- places

    def _stream(self, box: Box, users: tuple[str, ...]) -> Stream:
        assert box.access is not None
        slots = self.plan.slots if box.labels & self.stepping else 1
        return self.draft.stream(box.access, self.plan.tile, users=users, slots=slots)

    def _place(self, box: Box) -> Tile:
        builder = self.builder
        name = self.draft.unique(box.name)
        value = builder.value(name, box.shape, reduced=box.reduced, format=box.format)
        sizes = [1 if label is None else self.plan.tile[label] for label in box.dims]
        stick = None if box.stick is None else box.dims.index(box.stick)
        return builder.lx(
            f"{name}lx", value, sizes, format=box.format, stick=stick, lanes=box.lanes
        )

    def _in_chunks(self, box: Box) -> bool:
        return bool(box.labels & set(self.plan.chunks))

    def _depth(self, box: Box) -> int:
        """After how many axes a stream is filled: those up to the last loop that moves it."""
        moved = box.labels & set(self.looped)
        return max((n + 1 for n, a in enumerate(self.plan.axes) if a in moved), default=0)

    def _multicast(self, box: Box) -> list[str]:
        """The digits whose cores load the same tiles at the same places of their queues."""
        depth = self._depth(box) if not self._in_chunks(box) else len(self.plan.axes)
        return [
            common.digit(label)
            for label in self.plan.parts
            if label not in box.labels and self.plan.axes.index(label) >= depth
        ]

    # --- queues

    def program(self) -> Program:
        builder = self.builder
        if self.ins:
            with builder.queue("load"):
                self.draft.walk(self.axes, self._load_chunks, self._load)
        with builder.queue("sfu"):
            self.draft.walk(self.axes, self._compute, self._use)
        with builder.queue("store"):
            self.draft.walk(self.axes, self._store)
        return builder.build()

    def _load(self, depth: int, spans: dict[str, Span], turn: Expr) -> None:
        for key, box in self.plan.loads.items():
            if not self._in_chunks(box) and self._depth(box) == depth:
                self._fill(key, box, spans, turn)

    def _fill(self, key: Key, box: Box, spans: dict[str, Span], turn: Expr) -> None:
        access = box.access
        assert access is not None
        every = self._every(spans)
        with self.ins[key].fill(turn) as tile:
            self.builder.load(
                self.draft.spans(access, every),
                self.draft.ref(self.draft.owner(access.tensor), access),
                self.draft.ref(tile, access),
                multicast=self._multicast(box),
            )

    def _every(self, spans: dict[str, Span]) -> dict[str, Span]:
        """The spans of all labels: those of the loops entered, the others whole."""
        whole = {label: span(expr(self.plan.sizes[label])) for label in self.plan.inner}
        return {**whole, **{axis.label: axis.whole for axis in self.axes}, **spans}

    def _load_chunks(self, spans: dict[str, Span], turn: Expr) -> None:
        for number in range(len(self.plan.passes)):
            keys = [key for key, passes in self.used.items() if number in passes]
            if not keys:
                continue
            with self._chunks(number, spans) as (inside, step):
                for key in keys:
                    self._fill(
                        key, self.plan.loads[key], inside, self._turn(key, number, turn, step)
                    )

    def _turn(self, key: Key, number: int, turn: Expr, step: Expr) -> Expr:
        """The filling of a chunked stream in pass `number`."""
        passes = self.used[key]
        return (turn * len(passes) + passes.index(number)) * self.turns + step

    @contextmanager
    def _chunks(
        self, number: int, spans: dict[str, Span]
    ) -> Iterator[tuple[dict[str, Span], Expr]]:
        """The loops over the chunks of a pass; yields the spans and the number of the chunk."""
        inside, step = dict(spans), expr(0)
        with ExitStack() as stack:
            for label, steps in zip(self.plan.chunks, self.chunk_steps, strict=True):
                tile = stack.enter_context(
                    self.builder.tiles(
                        f"p{number}_{label}", expr(self.plan.sizes[label]), self.plan.tile[label]
                    )
                )
                inside[label] = tile
                step = step * steps + tile.step
            yield inside, step

    def _use(
        self, depth: int, spans: dict[str, Span], turn: Expr
    ) -> AbstractContextManager[object] | None:
        stack = ExitStack()
        for key, box in self.plan.loads.items():
            if not self._in_chunks(box) and self._depth(box) == depth:
                self.open[key] = stack.enter_context(self.ins[key].use(turn))
        return stack

    def _compute(self, spans: dict[str, Span], turn: Expr) -> None:
        plan = self.plan
        seen: set[int] = set()
        for number, ops in enumerate(plan.passes):
            for op in plan.between[number]:
                self._emit(op, spans, turn)
            if not ops:
                continue
            with self._chunks(number, spans) as (inside, step), ExitStack() as stack:
                for key, passes in self.used.items():
                    if number in passes:
                        filling = self._turn(key, number, turn, step)
                        self.open[key] = stack.enter_context(self.ins[key].use(filling))
                outer = turn * self.turns + step if plan.chunks else turn
                for op in ops:
                    self._emit(op, inside, outer, step, again=id(op) in seen)
                    seen.add(id(op))
            for op in dict.fromkeys(ops):
                if op.kind is OpKind.REDUCE and self._over_chunks(op):
                    self._finish(op, spans, turn)
        for op in plan.between[-1]:
            self._emit(op, spans, turn)

    def _over_chunks(self, op: Op) -> bool:
        return bool(op.reduced) and bool(set(op.reduced) & set(self.plan.chunks))

    # --- ops

    def _over(self, op: Op, spans: dict[str, Span], labels: Sequence[str]) -> dict[str, Span]:
        every = self._every(spans)
        return {label: every[label] for label in labels}

    def _input(self, access: Access) -> Ref:
        tile = self.tiles.get(id(access.tensor))
        if tile is None:
            tile = self.open[key_of(access)]
        return self.draft.ref(tile, access)

    @contextmanager
    def _output(self, access: Access, turn: Expr, again: bool = False) -> Iterator[Ref]:
        """Where a MAP or a SCAN writes. Later ops may read a tile that the store queue has got:
        only this queue fills it again."""
        tensor = access.tensor
        box = self.plan.inside.get(id(tensor))
        if again and box is None:
            box = self.plan.again[id(tensor)]
        if box is not None:
            self.tiles[id(tensor)] = self.boxes[id(box)]
            yield self.draft.ref(self.boxes[id(box)], access)
            return
        with self.outs[key_of(access)].fill(turn) as tile:
            self.tiles[id(tensor)] = tile
            yield self.draft.ref(tile, access)

    def _emit(
        self,
        op: Op,
        spans: dict[str, Span],
        turn: Expr,
        step: Expr | None = None,
        again: bool = False,
    ) -> None:
        if op.kind is OpKind.REDUCE and op.reduced:
            self._reduce(op, spans, step if step is not None else expr(0))
            if not self._over_chunks(op):
                self._finish(op, spans, turn)
        elif op.kind is OpKind.SCAN and op.label is not None:
            self._scan(op, spans, turn, step if step is not None else expr(0))
        elif op.kind in (OpKind.MAP, OpKind.REDUCE, OpKind.SCAN):
            body = op.body if op.kind is not OpKind.REDUCE else rows_plan.unreduced(op)
            assert body is not None
            over = self._over(op, spans, tuple(op.labels))
            inputs = [self._input(access) for access in op.inputs]
            with ExitStack() as stack:
                targets = [stack.enter_context(self._output(a, turn, again)) for a in op.outputs]
                self.builder.compute(Kind.MAP, over, inputs, targets, body=body)
        else:
            raise CompileError(f"{op.name}: {op.kind.value} is no op of a rows kernel")

    def _plain(self, box: Box, name: dict[str, str] | None = None) -> Ref:
        """The whole of an inner box by its labels."""
        tile = self.boxes[id(box)]
        index = [(label, expr(0)) for label in box.dims]
        return Ref(tile, tuple(index))

    def _reduce(self, op: Op, spans: dict[str, Span], step: Expr) -> None:
        labels = [n for n in op.labels if n not in op.reduced] + list(op.reduced)
        over = self._over(op, spans, labels)
        inputs = [self._input(access) for access in op.inputs]
        body = op.body
        assert body is not None
        staged = self.plan.staged.get(id(op))
        if staged is not None:
            target = self._plain(staged)
            self.builder.compute(
                Kind.MAP, self._over(op, spans, tuple(op.labels)), inputs, target, body=body
            )
            inputs = [target]
            body = _passed_on(rows_plan.letter(body), target)
        boxes = self.plan.lanes.get(id(op)) or self.plan.results[id(op)]
        chunked = self._over_chunks(op)
        self.builder.compute(
            Kind.REDUCE, over, inputs, [self._plain(box) for box in boxes],
            body=body, combine=op.combine, accumulate=step if chunked else 0,
        )  # fmt: skip

    def _finish(self, op: Op, spans: dict[str, Span], turn: Expr) -> None:
        """What a reduction does when all is covered: fold the lanes, hand out the results."""
        kept = [n for n in op.labels if n not in op.reduced]
        over = self._over(op, spans, kept)
        results = self.plan.results[id(op)]
        lanes = self.plan.lanes.get(id(op))
        assert op.combine is not None
        if lanes is not None:
            self.builder.fold(
                over, op.combine, [self._plain(b) for b in results], [self._plain(b) for b in lanes]
            )
        for access, box in zip(op.outputs, results, strict=True):
            if id(access.tensor) in self.plan.inside:
                self.tiles[id(access.tensor)] = self.boxes[id(box)]
                continue
            with self._output(access, turn) as target:
                self.builder.map(over, target, f.identity, self._plain(box))

    def _scan(self, op: Op, spans: dict[str, Span], turn: Expr, step: Expr) -> None:
        over = self._over(op, spans, tuple(op.labels))
        (source,) = (self._input(access) for access in op.inputs)
        staged = self.plan.staged.get(id(op))
        if staged is not None:
            target = self._plain(staged)
            self.builder.compute(Kind.MAP, over, source, target, body=op.body)
            source = target
        (carry,) = self.plan.lanes[id(op)]
        chunked = op.label in self.plan.chunks
        with self._output(op.outputs[0], turn) as target:
            self.builder.compute(
                Kind.SCAN, over, (source, self._plain(carry)), (target, self._plain(carry)),
                combine=op.combine, label=op.label, accumulate=step if chunked else 0,
            )  # fmt: skip

    # --- store

    def _store(self, spans: dict[str, Span], turn: Expr) -> None:
        plan = self.plan
        seen: set[int] = set()
        for number, ops in enumerate(plan.passes):
            self._stores(plan.between[number], spans, turn)
            fresh = [op for op in ops if id(op) not in seen]
            seen |= {id(op) for op in fresh}
            late = [op for op in fresh if op.kind is OpKind.REDUCE and self._over_chunks(op)]
            now = [op for op in fresh if op not in late]
            if any(key_of(a) in plan.stores for op in now for a in op.outputs):
                with self._chunks(number, spans) as (inside, step):
                    filling = turn * self.turns + step if plan.chunks else turn
                    self._stores(now, inside, filling)
            self._stores(late, spans, turn)
        self._stores(plan.between[-1], spans, turn)

    def _stores(self, ops: Sequence[Op], spans: dict[str, Span], turn: Expr) -> None:
        every = self._every(spans)
        for op in ops:
            for access in op.outputs:
                key = key_of(access)
                if key not in self.plan.stores:
                    continue
                with self.outs[key].use(turn) as tile:
                    self.builder.store(
                        self.draft.spans(access, every),
                        self.draft.ref(tile, access),
                        self.draft.ref(self.draft.owner(access.tensor), access),
                    )


def _passed_on(letter: str, source: Ref) -> Body:
    """The body that hands on a staged input; truth was staged as an integer."""
    return f.trace(lambda x: f.cast(x, letter), [source.format])
