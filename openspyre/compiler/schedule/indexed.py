"""Kernels of kind "indexed": a MAP that reads by index (gather), or a SCATTER, as one Program.

Two ways each, chosen by what the index moves:

rows   the indexed dim is not on the stick and the index varies along labels that do not move the
       tensor otherwise: LOAD or STORE takes the positions from an index tile, a stick row at a time
       (embedding, index_select, index_add, writes to a cache). Several such dims become one number
       of sticks.
tile   otherwise the tensor's whole indexed dim comes into LX and COMPUTE gather or scatter moves
       single elements (torch.gather along the stick, flips, shifts inside a stick).

Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace

from openspyre.compiler.errors import CompileError, Unsupported
from openspyre.compiler.graph import Access, Affine, Graph, Indirect, Op, OpKind
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.schedule import common
from openspyre.compiler.schedule.common import Axis, Draft
from openspyre.compiler.sizes import Size, known
from openspyre.compiler.tiles import Kernel
from openspyre.formats import Mode
from openspyre.program import boxes
from openspyre.program.boxes import IndexLike, Ref, Span, Tile, span
from openspyre.program.builder import Stream
from openspyre.program.expr import Expr, expr
from openspyre.program.model import Body, Node, Program
from openspyre.program.ops import Kind

TILE_BYTES = 128 << 10
"""Bytes of a tile that are worth their start; larger ones only wait longer."""


def schedule(kernel: Kernel, graph: Graph, options: CompileOptions) -> Program:
    """The Program of a kernel of kind "indexed"."""
    if len(kernel.ops) != 1:
        raise CompileError(f"kernel {kernel.name}: an indexed kernel has one op")
    (op,) = kernel.ops
    _label_lone_index(op, graph.mode)
    room: type[Gather] | type[Scatter] = Scatter if op.kind is OpKind.SCATTER else Gather
    return room(kernel, graph, options).program()


def _label_lone_index(op: Op, mode: Mode) -> None:
    """One index without a label gets one of size 1, so that one row moves and not all of them."""
    for access in (*op.inputs, *op.outputs):
        for i in access.index:
            if not isinstance(i, Indirect) or op.inputs[i.input].labels:
                continue
            index = op.inputs[i.input]
            place = index.tensor.place
            assert place is not None
            eps = index.tensor.format(mode).elements_per_stick
            for d, at in enumerate(index.index):
                offset = known(at.offset) if isinstance(at, Affine) else None
                if offset is None or (d == place.stick and offset % eps):
                    continue
                label = f"at{i.input}"
                op.labels = {**op.labels, label: 1}
                dims = list(index.index)
                dims[d] = Affine(((label, 1),), offset)
                op.inputs[i.input] = Access(index.tensor, tuple(dims))
                break


class Indexed:
    """What both directions share: labels, units, shares and tiles. `moved` is the access with the
    indirect dims, `free` the labels of the index that move `moved` by index only."""

    def __init__(
        self, kernel: Kernel, graph: Graph, options: CompileOptions, moved: Access
    ) -> None:
        (self.op,) = kernel.ops
        self.kernel, self.graph, self.options, self.moved = kernel, graph, options, moved
        self.mode = graph.mode
        self.dims = [d for d, i in enumerate(moved.index) if isinstance(i, Indirect)]
        self.indices = [self.op.inputs[i.input] for i in moved.index if isinstance(i, Indirect)]
        used = moved.labels
        varied = {label for access in self.indices for label in access.labels}
        self.free = [label for label in self.op.labels if label in varied and label not in used]
        place = moved.tensor.place
        assert place is not None
        self.by_rows = place.stick not in self.dims and not varied & used
        self.units = common.units_of(self._plain_accesses(), self.mode)

    def _plain_accesses(self) -> list[Access]:
        return [a for a in (*self.op.inputs, *self.op.outputs) if not a.indirect] + [
            substitute(self.moved, {})
        ]

    def refuse(self, rule: str, way_out: str) -> Unsupported:
        t = self.moved.tensor
        return Unsupported(
            self.op.name or self.op.kind.value,
            f"{t.name} {t.dtype} {list(map(str, t.shape))}, indexed in dims {self.dims}",
            rule,
            way_out,
        )

    def hint(self, label: str) -> int:
        return self.graph.hint(self.op.labels[label])

    def limit(self, dim: int) -> Size:
        index = self.moved.index[dim]
        assert isinstance(index, Indirect)
        return index.limit

    def parts(self, labels: list[str], nbytes: int) -> dict[str, int]:
        """Shares of cores for labels that may be split."""
        counts = {label: -(-self.hint(label) // self.units.get(label, 1)) for label in labels}
        return common.split_cores(counts, common.cores_for(nbytes, self.options))

    def tiles(
        self,
        outer: list[str],
        parts: Mapping[str, int],
        cost: Callable[[Mapping[str, int]], int],
        single: frozenset[str] = frozenset(),
    ) -> dict[str, int]:
        """Tile sizes of the outer labels: as large as TILE_BYTES and LX allow. `single`: labels
        taken one by one. Raises Unsupported when the least tiles do not fit."""
        tile: dict[str, int] = {}
        share: dict[str, int] = {}
        for label in outer:
            unit = self.units.get(label, 1)
            size = self.hint(label)
            count = -(-size // unit)
            units = -(-count // parts.get(label, 1))
            # A symbolic size may be more than its hint: its tiles must begin at whole sticks.
            fixed = known(self.op.labels[label]) is not None
            share[label] = min(size, units * unit) if fixed else units * unit
            tile[label] = 1 if label in single else min(unit, share[label])
        budget = common.lx_budget(self.options)
        if cost(tile) > budget:
            raise self.refuse(
                f"one tile of it needs {cost(tile)} bytes of LX, which has {budget}",
                "a smaller indexed dim, or the CPU",
            )
        grown = True
        while grown:
            grown = False
            # Innermost first: long rows move in fewer tasks.
            for label in reversed(outer):
                if label in single or tile[label] >= share[label]:
                    continue
                more = {**tile, label: min(tile[label] * 2, share[label])}
                if self._tile_bytes(more) <= TILE_BYTES and cost(more) <= budget:
                    tile, grown = more, True
        return tile

    def _tile_bytes(self, tile: Mapping[str, int]) -> int:
        return max(
            common.tile_bytes(a, self.sized(tile), self.mode) for a in (*self.op.outputs,)
            if not a.indirect
        ) if any(not a.indirect for a in self.op.outputs) else common.tile_bytes(
            self.op.inputs[0], self.sized(tile), self.mode
        )  # fmt: skip

    def sized(self, tile: Mapping[str, int]) -> dict[str, int]:
        """A size for every label of the op: of its tile, else the largest that it may have."""
        return {
            label: tile.get(label, self.graph.maximum(size))
            for label, size in self.op.labels.items()
        }

    def start(self, outer: list[str], parts: dict[str, int], tile: dict[str, int]) -> None:
        """Opens the draft and the loops."""
        self.draft = Draft(self.kernel, self.graph, self.options, parts)
        self.builder = self.draft.builder
        self.axes = [
            Axis(
                label,
                self.draft.share(label, expr(self.op.labels[label]), self.units.get(label, 1)),
                tile[label],
            )
            for label in outer
        ]
        self.inner = {
            label: span(expr(size)) for label, size in self.op.labels.items() if label not in tile
        }
        self.kernel.splits, self.kernel.tile = dict(parts), dict(tile)
        self.kernel.cores = 1
        for n in parts.values():
            self.kernel.cores *= n

    def finish(self) -> Program:
        self.kernel.lx_bytes = self.draft.used
        return self.builder.build()

    def _numbers(self, tile: Tile, index: Access, along: str, over: Mapping[str, Span]) -> Ref:
        """The index tile over `along` alone: its other labels are taken one by one."""
        fixed: dict[str, IndexLike] = {
            label: over[label].start for label in index.labels if label != along
        }
        return self.draft.ref(tile, index, fixed)

    def _whole(self) -> Expr:
        return expr(self.limit(self.dims[0]))

    def over(self, spans: Mapping[str, Span]) -> dict[str, Span]:
        """The spans of all labels of the op, in its order."""
        return {label: spans.get(label) or self.inner[label] for label in self.op.labels}


def substitute(access: Access, labels: Mapping[int, str]) -> Access:
    """The access with a label (or index 0) in the place of each indirect dim."""
    return Access(
        access.tensor,
        tuple(
            (Affine(((labels[d], 1),)) if d in labels else Affine())
            if isinstance(i, Indirect)
            else i
            for d, i in enumerate(access.index)
        ),
    )


def _numbers(b: Draft, access: Access, name: str) -> None:
    if access.tensor.dtype not in ("int32", "int64"):
        raise CompileError(f"{name}: an index tensor is int32 or int64, not {access.tensor.dtype}")


class Gather(Indexed):
    """A MAP with one access by index."""

    def __init__(self, kernel: Kernel, graph: Graph, options: CompileOptions) -> None:
        (op,) = kernel.ops
        moved = [a for a in op.inputs if a.indirect]
        if len(moved) != 1:
            raise CompileError(f"{op}: an indexed MAP has one access by index")
        super().__init__(kernel, graph, options, moved[0])
        self.source = op.inputs.index(moved[0])
        self.others = [
            (n, a) for n, a in enumerate(op.inputs) if n != self.source and _reads(op, n)
        ]

    def program(self) -> Program:
        if len(self.dims) > 1:
            raise self.refuse(
                "more than one dim is indexed at once", "index one dim after the other"
            )
        if self.by_rows and self.free and not self._cuts_sticks():
            return self._rows()
        return self._tile()

    def _along(self) -> str:
        """The label of the index along which rows move; the others are taken one by one."""
        stick = common.stick_label(self.indices[0])
        return stick if stick in self.free else max(self.free, key=self.hint)

    def _cuts_sticks(self) -> bool:
        """Whether a label that rows are taken one by one of lies on the stick of another tensor."""
        on = {common.stick_label(a) for a in (*self.op.outputs, *(a for _, a in self.others))}
        return bool(on & (set(self.free) - {self._along()}))

    # The gathered tile: a value over the labels that move the source, with its stick.

    def _got(self, along: str | None, tile: Mapping[str, int]) -> tuple[boxes.Tensor, Access, int]:
        """(value, its access, its stick dim)."""
        moved = substitute(self.moved, {self.dims[0]: along} if along else {})
        varied = {label for a in self.indices for label in a.labels}
        labels = [label for label in self.op.labels if label in moved.labels or label in varied]
        tensor = self.moved.tensor
        value = self.builder.value(
            self.draft.unique("got"),
            [expr(self.op.labels[label]) for label in labels],
            format=tensor.format(self.mode),
        )
        access = Access(tensor, tuple(Affine(((label, 1),)) for label in labels))
        stick = common.stick_label(moved)
        if not self.by_rows and stick not in labels:
            out = common.stick_label(self.op.outputs[0])
            stick = out if out in labels else None
        return value, access, labels.index(stick) if stick in labels else -1

    def _streams(
        self, along: str | None, tile: Mapping[str, int], filler: str
    ) -> tuple[Stream, Access, list[tuple[Access, Stream]], list[tuple[Access, Stream]]]:
        sizes = self.sized(tile)
        value, access, stick = self._got(along, tile)
        got = self.builder.stream(
            f"{value.name}_lx", value, [sizes[label] for label in _labels(access)],
            users=("sfu",), slots=2 if filler == "load" else 1,
            stick=stick if stick >= 0 else None,
        )  # fmt: skip
        ins = [(a, self.draft.stream(a, sizes)) for _, a in self.others]
        outs = [(a, self.draft.stream(a, sizes, users=("store",))) for a in self.op.outputs]
        return got, access, ins, outs

    def _emit_map(
        self,
        got: Tile,
        access: Access,
        ins: list[tuple[Access, Stream]],
        outs: list[tuple[Access, Stream]],
        over: Mapping[str, Span],
        turn: Expr,
    ) -> None:
        """The op's body on the gathered tile `got`, in the SFU's queue."""
        body = renumbered(self.op, [self.source, *(n for n, _ in self.others)])
        with ExitStack() as stack:
            read = [_ref(got, access)]
            read += [self.draft.ref(stack.enter_context(s.use(turn)), a) for a, s in ins]
            write = [self.draft.ref(stack.enter_context(s.fill(turn)), a) for a, s in outs]
            self.builder.compute(Kind.MAP, over, read, write, body=body)

    def _load_others(
        self, ins: list[tuple[Access, Stream]], over: Mapping[str, Span], turn: Expr
    ) -> None:
        for access, stream in ins:
            with stream.fill(turn) as t:
                self.builder.load(
                    self.draft.spans(access, over),
                    self.draft.ref(self.draft.owner(access.tensor), access),
                    self.draft.ref(t, access),
                )

    def _store(self, outs: list[tuple[Access, Stream]]) -> None:
        with self.builder.queue("store"):

            def body(spans: dict[str, Span], turn: Expr) -> None:
                over = self.over(spans)
                for access, stream in outs:
                    with stream.use(turn) as t:
                        self.builder.store(
                            self.draft.spans(access, over),
                            self.draft.ref(t, access),
                            self.draft.ref(self.draft.owner(access.tensor), access),
                        )

            self.draft.walk(self.axes, body)

    def _rows(self) -> Program:
        """LOAD by index."""
        index = self.indices[0]
        along = self._along()
        outer = list(self.op.labels)
        single = frozenset(label for label in self.free if label != along)
        nbytes = sum(common.tile_bytes(a, self.sized({}), self.mode) for a in self.op.outputs)
        parts = self.parts(outer, nbytes)

        def cost(tile: Mapping[str, int]) -> int:
            sizes = self.sized(tile)
            out = sum(common.tile_bytes(a, sizes, self.mode) for a in self.op.outputs)
            ins = sum(common.tile_bytes(a, sizes, self.mode) for _, a in self.others)
            return 5 * out + 2 * ins + common.tile_bytes(index, sizes, self.mode) + 4096

        tile = self.tiles(outer, parts, cost, single)
        self.start(outer, parts, tile)
        got, access, ins, outs = self._streams(along, tile, "load")
        b, draft = self.builder, self.draft
        numbers = b.lx(
            draft.unique("index_lx"), draft.owner(index.tensor),
            common.tile_sizes(index, self.sized(tile)),
            stick=draft.owner(index.tensor).stick if draft.owner(index.tensor).stick >= 0 else None,
        )  # fmt: skip
        moved = substitute(self.moved, {self.dims[0]: along})
        with b.queue("load"):

            def load(spans: dict[str, Span], turn: Expr) -> None:
                over = self.over(spans)
                with got.fill(turn) as t:
                    b.load(
                        draft.spans(index, over),
                        draft.ref(draft.owner(index.tensor), index),
                        draft.ref(numbers, index),
                    )
                    b.load(
                        {label: over[label] for label in _labels(access)},
                        draft.ref(draft.owner(moved.tensor), moved),
                        _ref(t, access),
                        gather=(along, self._numbers(numbers, index, along, over), self._whole()),
                    )
                self._load_others(ins, over, turn)

            draft.walk(self.axes, load)
        with b.queue("sfu"):

            def work(spans: dict[str, Span], turn: Expr) -> None:
                with got.use(turn) as t:
                    self._emit_map(t, access, ins, outs, self.over(spans), turn)

            draft.walk(self.axes, work)
        self._store(outs)
        return self.finish()

    def _tile(self) -> Program:
        """COMPUTE gather on the whole indexed dim in LX."""
        index = self.indices[0]
        (dim,) = self.dims
        _numbers(None, index, str(self.op))  # type: ignore[arg-type]
        extent = self.graph.maximum(self.limit(dim))
        along = self.free[0] if self.free else None
        name = along or "only"
        moved = substitute(self.moved, {dim: name})
        outer = list(self.op.labels)
        lies = common.stick_label(moved)
        if lies in outer:  # the gathered tile has its stick along it, whatever the others have
            eps = self.moved.tensor.format(self.mode).elements_per_stick
            self.units[lies] = math.lcm(self.units.get(lies, 1), eps)
        nbytes = sum(common.tile_bytes(a, self.sized({}), self.mode) for a in self.op.outputs)
        # Cores split what moves the source as well, so that none loads what another needs.
        parts = self.parts([label for label in outer if label != along] or outer, nbytes)

        def cost(tile: Mapping[str, int]) -> int:
            sizes = self.sized(tile)
            out = sum(common.tile_bytes(a, sizes, self.mode) for a in self.op.outputs)
            ins = sum(common.tile_bytes(a, sizes, self.mode) for _, a in self.others)
            whole = common.tile_bytes(moved, {**sizes, name: extent}, self.mode)
            number = common.tile_bytes(index, sizes, self.mode)
            got = whole // max(1, extent) * sizes.get(name, 1) + out
            return 2 * whole + 2 * number + 2 * got + 3 * out + 2 * ins + 4096

        tile = self.tiles(outer, parts, cost)
        self.start(outer, parts, tile)
        sizes = self.sized(tile)
        b, draft = self.builder, self.draft
        source = draft.owner(self.moved.tensor)
        whole = b.stream(
            draft.unique("whole"), source, common.tile_sizes(moved, {**sizes, name: extent}),
            stick=source.stick if source.stick >= 0 else None,
        )  # fmt: skip
        numbers = draft.stream(index, sizes)
        got, access, ins, outs = self._streams(along, tile, "sfu")
        limit = expr(self.limit(dim))

        def within(over: Mapping[str, Span]) -> dict[str, Span]:
            return {**draft.spans(moved, over), name: span(limit)}

        with b.queue("load"):

            def load(spans: dict[str, Span], turn: Expr) -> None:
                over = self.over(spans)
                with whole.fill(turn) as t:
                    b.load(within(over), draft.ref(source, moved), draft.ref(t, moved))
                with numbers.fill(turn) as t:
                    b.load(
                        draft.spans(index, over),
                        draft.ref(draft.owner(index.tensor), index),
                        draft.ref(t, index),
                    )
                self._load_others(ins, over, turn)

            draft.walk(self.axes, load)
        with b.queue("sfu"):

            def work(spans: dict[str, Span], turn: Expr) -> None:
                over = self.over(spans)
                box = {label: over[label] for label in _labels(access)}
                if along is None:
                    box[name] = span(1)
                with ExitStack() as stack:
                    all_ = stack.enter_context(whole.use(turn))
                    number = stack.enter_context(numbers.use(turn))
                    # Made and used in this queue: its order is enough, no tokens.
                    b.compute(
                        Kind.GATHER, box,
                        (draft.ref(all_, moved), draft.ref(number, index)),
                        _ref(got.tile, access), label=name, limit=limit,
                    )  # fmt: skip
                self._emit_map(got.tile, access, ins, outs, over, turn)

            draft.walk(self.axes, work)
        self._store(outs)
        return self.finish()


class Scatter(Indexed):
    """A SCATTER."""

    def __init__(self, kernel: Kernel, graph: Graph, options: CompileOptions) -> None:
        (op,) = kernel.ops
        super().__init__(kernel, graph, options, op.outputs[0])
        self.value = op.inputs[0]

    def program(self) -> Program:
        if len(self.dims) > 1:
            raise self.refuse(
                "more than one dim is indexed at once", "index one dim after the other"
            )
        if self.by_rows and len(self.free) >= 1 and self._whole_rows():
            return self._rows()
        return self._tile()

    def _whole_rows(self) -> bool:
        """Whether the labels that move the target cover whole sticks of it."""
        place = self.moved.tensor.place
        assert place is not None
        if place.stick < 0:
            return True
        if place.stick in self.dims:
            return True
        label, offset = common.index_of(self.moved, place.stick)
        size = known(self.moved.tensor.shape[place.stick])
        covered = 1 if label is None else known(self.op.labels[label])
        eps = self.moved.tensor.format(self.mode).elements_per_stick
        at = known(offset)
        if size is None or covered is None or at is None or at % eps:
            return False
        return at + covered == size or covered % eps == 0

    def _converted(self) -> bool:
        """Whether the value goes through the SFU before it is stored."""
        target = self.moved.tensor
        turned = common.stick_label(self.value) != common.stick_label(substitute(self.moved, {}))
        return (
            turned
            or self.value.tensor.format(self.mode) is not target.format(self.mode)
            or self.value.labels != frozenset(self._row_labels())
            or not _is_identity(self.op)
        )

    def _row_labels(self) -> list[str]:
        used = self.moved.labels | set(self.free)
        return [label for label in self.op.labels if label in used]

    def _rows(self) -> Program:
        """STORE by index: cores split the labels that move the target otherwise, and each goes
        through all indices in order."""
        index = self.indices[0]
        along = max(self.free, key=self.hint)
        if common.stick_label(index) in self.free:
            along = common.stick_label(index) or along
        if along != self.free[-1]:
            along = self.free[-1]  # the order of the points is that of the labels
        affine = [label for label in self.op.labels if label not in self.free]
        # Index loops outermost keep the points in order within a core's columns.
        outer = [*affine, *self.free]
        single = frozenset(self.free[:-1])
        nbytes = common.tile_bytes(self.value, self.sized({}), self.mode)
        parts = self.parts(affine, nbytes) if affine else {}
        target = self.moved.tensor
        rows = self._row_labels()
        stick = common.stick_label(substitute(self.moved, {self.dims[0]: along}))

        def cost(tile: Mapping[str, int]) -> int:
            sizes = self.sized(tile)
            dims = [sizes[label] for label in rows]
            at = rows.index(stick) if stick in rows else -1
            own = common.sticks(dims, at, target.format(self.mode))
            return (
                2 * own
                + 2 * common.tile_bytes(self.value, sizes, self.mode)
                + 2 * common.tile_bytes(index, sizes, self.mode)
                + 4096
            )

        tile = self.tiles(outer, parts, cost, single)
        self.start(outer, parts, tile)
        sizes = self.sized(tile)
        b, draft = self.builder, self.draft
        numbers = draft.stream(index, sizes, users=("store",))
        converted = self._converted()
        values = draft.stream(self.value, sizes, users=("sfu",) if converted else ("store",))
        moved = substitute(self.moved, {self.dims[0]: along})
        row = Access(target, tuple(Affine(((label, 1),)) for label in rows))
        ready = values
        source_access = self.value
        if converted:
            made = b.value(
                draft.unique("rows"), [expr(self.op.labels[r]) for r in rows],
                format=target.format(self.mode),
            )  # fmt: skip
            ready = b.stream(
                f"{made.name}_lx", made, [sizes[r] for r in rows], users=("store",),
                stick=rows.index(stick) if stick in rows else None,
            )  # fmt: skip
            source_access = row
        with b.queue("load"):

            def load(spans: dict[str, Span], turn: Expr) -> None:
                over = self.over(spans)
                for access, stream in ((index, numbers), (self.value, values)):
                    with stream.fill(turn) as t:
                        b.load(
                            draft.spans(access, over),
                            draft.ref(draft.owner(access.tensor), access),
                            draft.ref(t, access),
                        )

            draft.walk(self.axes, load)
        if converted:
            body = renumbered(self.op, [0])
            with b.queue("sfu"):

                def work(spans: dict[str, Span], turn: Expr) -> None:
                    over = self.over(spans)
                    with values.use(turn) as v, ready.fill(turn) as t:
                        b.compute(
                            Kind.MAP, {r: over[r] for r in rows},
                            (draft.ref(v, self.value),), (_ref(t, row),), body=body,
                        )  # fmt: skip

                draft.walk(self.axes, work)
        with b.queue("store"):

            def store(spans: dict[str, Span], turn: Expr) -> None:
                over = self.over(spans)
                with numbers.use(turn) as n, ready.use(turn) as t:
                    tile_ref = _ref(t, row) if converted else draft.ref(t, source_access)
                    b.store(
                        {r: over[r] for r in rows},
                        tile_ref,
                        draft.ref(draft.owner(target), moved),
                        scatter=(along, self._numbers(n, index, along, over), self._whole()),
                        add=self.op.add,
                    )

            draft.walk(self.axes, store)
        return self.finish()

    def _tile(self) -> Program:
        """COMPUTE scatter into the whole indexed dim in LX."""
        index = self.indices[0]
        (dim,) = self.dims
        target = self.moved.tensor
        extent = self.graph.maximum(self.limit(dim))
        name = self.free[0] if self.free else "only"
        moved = substitute(self.moved, {dim: name})
        if not self._whole_rows():
            raise self.refuse("a write to a part of a stick", "a copy of the target")
        outer = [label for label in self.op.labels if label in self.moved.labels]
        labels = list(self.op.labels)
        if labels:  # the moved values have the last label on their stick
            eps = target.format(self.mode).elements_per_stick
            self.units[labels[-1]] = max(self.units.get(labels[-1], 1), eps)
        nbytes = common.tile_bytes(self.value, self.sized({}), self.mode)
        parts = self.parts(outer, nbytes) if outer else {}

        def cost(tile: Mapping[str, int]) -> int:
            sizes = self.sized(tile)
            whole = common.tile_bytes(moved, {**sizes, name: extent}, self.mode)
            made = common.sticks(
                [sizes[label] for label in labels], len(labels) - 1, target.format(self.mode)
            )
            return (
                4 * whole
                + 2 * common.tile_bytes(self.value, sizes, self.mode)
                + 2 * common.tile_bytes(index, sizes, self.mode)
                + made
                + 4096
            )

        tile = self.tiles(outer, parts, cost)
        self.start(outer, parts, tile)
        sizes = self.sized(tile)
        b, draft = self.builder, self.draft
        owner = draft.owner(target)
        dims = common.tile_sizes(moved, {**sizes, name: extent})
        stick = owner.stick if owner.stick >= 0 else None
        before = b.stream(draft.unique("before"), owner, dims, stick=stick)
        after = b.stream(draft.unique("after"), owner, dims, users=("store",), stick=stick)
        numbers = draft.stream(index, sizes)
        values = draft.stream(self.value, sizes)
        made = b.value(
            draft.unique("moved"), [expr(self.op.labels[r]) for r in labels],
            format=target.format(self.mode),
        )  # fmt: skip
        made_lx = b.lx(
            f"{made.name}_lx", made, [sizes[r] for r in labels],
            stick=len(labels) - 1 if labels else None,
        )  # fmt: skip
        row = Access(target, tuple(Affine(((label, 1),)) for label in labels))
        body = renumbered(self.op, [0])
        limit = expr(self.limit(dim))

        def within(over: Mapping[str, Span]) -> dict[str, Span]:
            return {**draft.spans(moved, over), name: span(limit)}

        with b.queue("load"):

            def load(spans: dict[str, Span], turn: Expr) -> None:
                over = self.over(spans)
                with before.fill(turn) as t:
                    b.load(within(over), draft.ref(owner, moved), draft.ref(t, moved))
                for access, stream in ((index, numbers), (self.value, values)):
                    with stream.fill(turn) as t:
                        b.load(
                            draft.spans(access, over),
                            draft.ref(draft.owner(access.tensor), access),
                            draft.ref(t, access),
                        )

            draft.walk(self.axes, load)
        with b.queue("sfu"):

            def work(spans: dict[str, Span], turn: Expr) -> None:
                over = self.over(spans)
                with before.use(turn) as old, after.fill(turn) as t:
                    b.map(within(over), draft.ref(t, moved), lambda x: x, draft.ref(old, moved))
                    with values.use(turn) as v, numbers.use(turn) as n:
                        b.compute(
                            Kind.MAP, over, (draft.ref(v, self.value),), (_ref(made_lx, row),),
                            body=body,
                        )  # fmt: skip
                        box = dict(over)
                        if not self.free:
                            box[name] = span(1)
                        b.compute(
                            Kind.SCATTER, box,
                            (_ref(made_lx, row), draft.ref(n, index)), draft.ref(t, moved),
                            label=name, limit=limit, add=self.op.add,
                        )  # fmt: skip

            draft.walk(self.axes, work)
        with b.queue("store"):

            def store(spans: dict[str, Span], turn: Expr) -> None:
                over = self.over(spans)
                with after.use(turn) as t:
                    b.store(within(over), draft.ref(t, moved), draft.ref(owner, moved))

            draft.walk(self.axes, store)
        return self.finish()


def _labels(access: Access) -> list[str]:
    """The labels of a value's access, one for each dim."""
    return [i.single or "" for i in access.index if isinstance(i, Affine)]


def _ref(tile: Tile, access: Access) -> Ref:
    """The box of a value's tile: one label for each dim."""
    items = tuple((i.single, expr(0)) for i in access.index if isinstance(i, Affine))
    return Ref(tile, items)


def _reads(op: Op, number: int) -> bool:
    """Whether the body uses input `number`."""
    if op.body is None:
        return False
    used = {a for node in op.body.nodes for a in node.args} | set(op.body.results)
    return any(
        node.op == "input" and node.immediate == number and position in used
        for position, node in enumerate(op.body.nodes)
    )


def _is_identity(op: Op) -> bool:
    body = op.body
    return body is None or (len(body.results) == 1 and body.nodes[body.results[0]].op == "input")


def renumbered(op: Op, inputs: list[int]) -> Body:
    """The op's body on inputs `inputs` alone, in that order; what it does not use goes."""
    assert op.body is not None
    place = {number: position for position, number in enumerate(inputs)}
    needed: set[int] = set()
    todo = list(op.body.results)
    while todo:
        n = todo.pop()
        if n not in needed:
            needed.add(n)
            todo += op.body.nodes[n].args
    number: dict[int, int] = {}
    nodes: list[Node] = []
    for n, node in enumerate(op.body.nodes):
        if n not in needed:
            continue
        number[n] = len(nodes)
        immediate = node.immediate
        if node.op == "input":
            assert isinstance(immediate, int)
            immediate = place[immediate]
        nodes.append(replace(node, args=tuple(number[a] for a in node.args), immediate=immediate))
    return Body(tuple(nodes), tuple(number[r] for r in op.body.results))
