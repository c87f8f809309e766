"""Writing the Program of a planned matrix product.

All cores walk the same loops: batch tiles, row and column tiles (in the plan's order) and, inside,
tiles of k. Every core makes as many steps as the one with the largest shares, with empty boxes
beyond its own, so that the LOADs of a multicast group meet. The queues:

    load   a and b (multicast over the cores that need the same), inputs of the MAPs
    sfu    a and b to the stick that the PT wants, where they lie otherwise; the MAPs on the sums
    pt     sums of a tile over its tiles of k
    ring   k split over cores: each core joins a band of every tile of sums, cores ascending
    store  what the MAPs give

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from openspyre.compiler.graph import Tensor
from openspyre.compiler.planner.matmul import MatmulPlan, Part, Product, band_label, band_size
from openspyre.compiler.schedule.common import Draft, digit
from openspyre.compiler.schedule.matmul_form import Box, Form, Index, Step, turned_labels
from openspyre.compiler.sizes import Size, known
from openspyre.program import body as f
from openspyre.program import boxes
from openspyre.program.body import trace
from openspyre.program.boxes import Ref, Span, Tile
from openspyre.program.builder import Stream
from openspyre.program.expr import Const, Expr, Var, ceil_div, expr, maximum, minimum
from openspyre.program.model import ZERO, Program
from openspyre.program.ops import Combine, Kind


@dataclass(frozen=True)
class Turn:
    """One loop of the nest: `count` steps, the same on every core."""

    label: str
    count: Expr


@dataclass(frozen=True)
class Held:
    """Tiles of one tensor in LX. `index`: of each dim; `level`: inside how many of the outer loops
    they are filled, one more than there are when once a tile of k. `strip`: with all of k."""

    stream: Stream
    index: tuple[Index, ...]
    level: int
    strip: bool = False


class Writer:
    """One Program in the making."""

    def __init__(self, draft: Draft, form: Form, product: Product, plan: MatmulPlan) -> None:
        self.draft, self.form, self.plan = draft, form, plan
        self.p = draft.builder
        self.slots = draft.options.slots
        self.depth = plan.parts.get(form.k, 1)
        order = (Part.COL, Part.ROW) if plan.stay == "b" else (Part.ROW, Part.COL)
        names = [*form.of(Part.BATCH), *form.of(order[0]), *form.of(order[1])]
        self.shares = {
            label: draft.share(label, size, form.units[label]) for label, size in form.sizes.items()
        }
        self.turns = [Turn(label, self._count(label)) for label in names]
        self.turns = [turn for turn in self.turns if turn.count != Const(1)]
        self.deep = self._count(form.k)
        self.inner = len(self.turns) + 1  # the level of what is loaded for each tile of k
        self.band = band_label(product, plan.tile)
        self.band_size = band_size(plan.tile[self.band], form.units[self.band], self.depth)
        self.banded = {**plan.tile, self.band: self.band_size} if self.depth > 1 else plan.tile

    # --- sizes and loops

    def _count(self, label: str) -> Expr:
        """Tiles of the largest share of a label."""
        size, unit = expr(self.form.sizes[label]), self.form.units[label]
        parts, tile = self.plan.parts.get(label, 1), self.plan.tile[label]
        share = size
        if parts > 1:
            share = minimum(ceil_div(ceil_div(size, unit), parts) * unit, size)
        return ceil_div(share, tile)

    def _tile(self, label: str, step: Expr) -> Span:
        """The step-th tile of the own share; empty beyond its end."""
        share, tile = self.shares[label], self.plan.tile[label]
        begin = step * tile
        if share.size.constant is not None and share.size.constant % tile == 0:
            return Span(share.start + begin, Const(tile), step)
        return Span(share.start + begin, minimum(tile, maximum(0, share.size - begin)), step)

    def _span(self, label: str) -> Span:
        """The span of a label that has no loop: all of the share."""
        return self.shares[label]

    @contextmanager
    def deep_tiles(self, turn: Expr) -> Iterator[tuple[Span, Expr]]:
        """The loop over tiles of k: (span, number of the tile)."""
        k = self.form.k
        if self.deep == Const(1):
            yield self._span(k), turn
            return
        with self.p.loop("k_step", self.deep) as step:
            yield self._tile(k, step), turn * self.deep + step

    def walk(self, unit: str, at: _At) -> None:
        """The outer loops of a queue. `at.level(n, ..)` inside n of them (a context for the rest),
        `at.leaf(..)` inside all."""
        with self.p.queue(unit), ExitStack() as stack:
            spans = {label: self._span(label) for label in self.form.out_labels}
            turn: Expr = ZERO
            for level, loop in enumerate((*self.turns, None)):
                at.level(level, spans, turn, stack)
                if loop is None:
                    at.leaf(spans, turn)
                    break
                step = stack.enter_context(self.p.loop(f"{loop.label}_step", loop.count))
                turn = turn * loop.count + step
                spans = {**spans, loop.label: self._tile(loop.label, step)}

    def level_of(self, labels: Sequence[str]) -> int:
        """Inside how many outer loops a tile of these labels is settled."""
        return max(
            (number + 1 for number, turn in enumerate(self.turns) if turn.label in labels),
            default=0,
        )

    def fills(self, level: int) -> Expr:
        """How often something of a level is filled."""
        count: Expr = Const(1)
        for turn in self.turns[:level]:
            count = count * turn.count
        return count * self.deep if level == self.inner else count

    # --- tiles

    def hold(
        self,
        name: str,
        tensor: boxes.Tensor,
        index: Sequence[Index],
        stick: int | None,
        users: Sequence[str],
        sizes: Mapping[str, int],
        level: int,
        slots: int,
        strip: bool = False,
    ) -> Held:
        """A stream of tiles."""
        count = self.fills(level).constant
        dims = [1 if label is None else sizes[label] for label, _ in index]
        stream = self.p.stream(
            self.draft.unique(name), tensor, dims, users=users,
            slots=slots if count is None else min(slots, count), stick=stick,
        )  # fmt: skip
        return Held(stream, tuple(index), level, strip)

    def box(self, box: Box, users: Sequence[str], level: int, **more: object) -> Held:
        """A stream of tiles of an argument."""
        owner = self.draft.owner(box.tensor)
        stick = box.stick if box.stick >= 0 else None
        return self.hold(box.tensor.name, owner, box.index, stick, users, level=level, **more)  # type: ignore[arg-type]

    def value(
        self, name: str, labels: Sequence[str], like: Box | None = None, **more: object
    ) -> boxes.Tensor:
        """A value with a dim for each label: of the label's size, or of the size of the dim of
        `like` that the label goes along."""
        sizes: list[Size] = []
        for label in labels:
            size = self.form.sizes[label]
            if like is not None and label in like.labels:
                dim = next(d for d, (name_, _) in enumerate(like.index) if name_ == label)
                size = like.tensor.shape[dim]
            sizes.append(size)
        return self.p.value(self.draft.unique(name), sizes, **more)  # type: ignore[arg-type]

    def ref(
        self,
        owner: boxes.Tensor | Tile,
        index: Sequence[Index],
        fixed: Mapping[str, Expr] | None = None,
    ) -> Ref:
        """A box by the labels; `fixed` puts one index in a label's place."""
        out: list[tuple[str | None, Expr]] = []
        for label, offset in index:
            if label is not None and fixed and label in fixed:
                out.append((None, fixed[label] + expr(offset)))
            else:
                out.append((label, expr(offset)))
        return Ref(owner, tuple(out))

    def part(self, tile: Tile, index: Sequence[Index], origin: Mapping[str, Expr]) -> Tile:
        """The tile from the local position `origin` of some labels on."""
        if not any(label in origin for label, _ in index):
            return tile
        return tile.part(*(origin.get(label or "", ZERO) for label, _ in index))

    # --- the program

    def write(self) -> Program:
        form = self.form
        self.inputs()
        labels = form.out_labels
        self.sums_index: tuple[Index, ...] = tuple((label, 0) for label in labels)
        acc = self.value("sums", labels, reduced=[form.sizes[form.k]], format=form.sum_format)
        stick = labels.index(form.n)
        outer = len(self.turns)
        if self.depth > 1:
            dims = [self.plan.tile[label] for label in labels]
            self.partial = self.p.lx(self.draft.unique("partial"), acc, dims, stick=stick)
        self.acc = self.hold(
            "sums", acc, self.sums_index, stick, ["sfu"], self.banded, outer, self.plan.sum_slots
        )
        self.extras = {
            id(box): self.box(
                box, ["sfu"], self.level_of(box.labels), sizes=self.banded, slots=self.slots
            )
            for box in form.extras
        }  # fmt: skip
        self.outs = {
            id(box): self.box(
                box, ["store"], outer, sizes=self.banded, slots=self.plan.out_slots
            )
            for box in form.outs
        }  # fmt: skip
        self.kept: dict[int, Tile] = {}
        for tensor in form.kept:
            format = tensor.format(self.draft.mode)
            value = self.value(tensor.name, labels, format=format)
            dims = [self.banded[label] for label in labels]
            name = self.draft.unique(tensor.name)
            self.kept[id(tensor)] = self.p.lx(name, value, dims, stick=stick)
        self.walk("load", _Load(self))
        self.walk("pt", _Multiply(self))
        if self.depth > 1:
            self.join()
        self.walk("sfu", _Finish(self))
        self.walk("store", _Store(self))
        return self.p.build()

    def inputs(self) -> None:
        """Streams of a and b: `loaded` as they lie in LPDDR5, `ready` as the PT reads them."""
        form = self.form
        self.loaded: dict[str, Held] = {}
        self.ready: dict[str, Held] = {}
        for which, box, stick in (("a", form.a, form.k), ("b", form.b, form.n)):
            strip = self.plan.stay == which
            level = self.level_of(box.labels) if strip else self.inner
            sizes = dict(self.plan.tile)
            slots = self.plan.slots if level == self.inner else self.slots
            if strip:
                sizes[form.k] = self.strip_size()
            turned = which in form.turned
            held = self.box(
                box, ["sfu" if turned else "pt"], level, sizes=sizes, slots=slots, strip=strip
            )
            self.loaded[which] = self.ready[which] = held
            if turned:
                labels = turned_labels(form, box, stick)
                value = self.value(f"{which}_turned", labels, box, format=box.format)
                offsets = {label: offset for label, offset in box.index if label is not None}
                index = [(label, offsets.get(label, 0)) for label in labels]
                self.ready[which] = self.hold(
                    f"{which}_turned", value, index, labels.index(stick), ["pt"], sizes, level,
                    slots,
                    strip,
                )  # fmt: skip

    def strip_size(self) -> int:
        """Elements of k in the largest share."""
        size, unit = known(self.form.sizes[self.form.k]), self.form.units[self.form.k]
        assert size is not None, "an input of symbolic k does not stay"
        return band_size(size, unit, self.depth)

    def digits(self, labels: Sequence[str]) -> list[str]:
        """The digits over which a tile of these labels is the same."""
        return [
            digit(label)
            for label, parts in self.plan.parts.items()
            if parts > 1 and label not in labels and label != self.form.k
        ]

    def joined(self, spans: Mapping[str, Span]) -> dict[str, Span]:
        """The box that the MAPs of this core see: all of the tile, or its band."""
        if self.depth == 1:
            return dict(spans)
        whole = spans[self.band]
        begin = Var(digit(self.form.k)) * self.band_size
        size = minimum(self.band_size, maximum(0, whole.size - begin))
        return {**spans, self.band: Span(whole.start + begin, size, whole.step)}

    def multiply(
        self, spans: Mapping[str, Span], deep: Span, out: Tile, ready: dict[str, Tile]
    ) -> None:
        """The product of one tile of a and of b: one instruction for each index of the column
        labels that are not on the stick."""
        form = self.form
        others = [label for label in form.of(Part.COL) if label != form.n]
        with ExitStack() as stack:
            fixed: dict[str, Expr] = {}
            local: dict[str, Expr] = {}
            for label in others:
                step = stack.enter_context(self.p.loop(f"{label}_one", spans[label].size))
                fixed[label], local[label] = spans[label].start + step, step
            over = {label: spans[label] for label in form.out_labels if label not in fixed}
            refs = []
            for which in ("a", "b"):
                held = self.ready[which]
                origin = dict(local)
                if held.strip and self.deep != Const(1):
                    origin[form.k] = deep.step * self.plan.tile[form.k]
                tile = self.part(ready[which], held.index, origin)
                refs.append(self.ref(tile, held.index, fixed))
            target = self.ref(self.part(out, self.sums_index, local), self.sums_index, fixed)
            self.p.matmul({**over, form.k: deep}, refs[0], refs[1], target, accumulate=deep.step)

    def join(self) -> None:
        """RING: the own band of each tile of sums, from all cores of the group."""
        self.walk("ring", _Join(self, Var(digit(self.form.k))))

    def tokens(self) -> None:
        """Semaphores between the cores that split k."""
        self.summed = self.p.token(self.draft.unique("summed"), self.depth)
        self.pulled = self.p.token(self.draft.unique("pulled"), self.depth, 1)
        part = Var(digit(self.form.k))
        self.leader = self.p.let(self.draft.unique("leader"), Var("core") - part)


class _At:
    """What a queue does inside the loops."""

    def __init__(self, writer: Writer) -> None:
        self.w, self.p, self.form = writer, writer.p, writer.form

    def level(self, level: int, spans: dict[str, Span], turn: Expr, stack: ExitStack) -> None:
        """Before the next loop."""

    def leaf(self, spans: dict[str, Span], turn: Expr) -> None:
        """Inside all loops."""


class _Load(_At):
    def level(self, level: int, spans: dict[str, Span], turn: Expr, stack: ExitStack) -> None:
        k = {self.form.k: self.w._span(self.form.k)}
        for which, box in (("a", self.form.a), ("b", self.form.b)):
            held = self.w.loaded[which]
            if held.level == level:
                self.load(held, box, {**spans, **k}, turn)
        if level == len(self.w.turns):
            self.deep(spans, turn)
        for box in self.form.extras:
            held = self.w.extras[id(box)]
            if held.level == level:
                self.load(held, box, self.w.joined(spans), turn)

    def deep(self, spans: dict[str, Span], turn: Expr) -> None:
        inner = [
            (self.w.loaded[which], box)
            for which, box in (("a", self.form.a), ("b", self.form.b))
            if self.w.loaded[which].level == self.w.inner
        ]
        if not inner:
            return
        with self.w.deep_tiles(turn) as (k, number):
            for held, box in inner:
                self.load(held, box, {**spans, self.form.k: k}, number)

    def load(self, held: Held, box: Box, spans: dict[str, Span], turn: Expr) -> None:
        over = {label: spans[label] for label in box.labels}
        source = self.w.ref(self.w.draft.owner(box.tensor), box.index)
        with held.stream.fill(turn) as tile:
            self.p.load(
                over, source, self.w.ref(tile, box.index), multicast=self.w.digits(box.labels)
            )


class _Multiply(_At):
    def __init__(self, writer: Writer) -> None:
        super().__init__(writer)
        self.tiles: dict[str, Tile] = {}
        if writer.depth > 1:
            writer.tokens()

    def level(self, level: int, spans: dict[str, Span], turn: Expr, stack: ExitStack) -> None:
        for which, held in self.w.ready.items():
            if held.level == level:
                self.tiles[which] = stack.enter_context(held.stream.use(turn))

    def leaf(self, spans: dict[str, Span], turn: Expr) -> None:
        w = self.w
        if w.depth == 1:
            with w.acc.stream.fill(turn) as out:
                self.deep(spans, turn, out)
            return
        with self.p.loop("from_part", w.depth) as q:
            self.p.wait(w.pulled, q)
        self.deep(spans, turn, w.partial)
        with self.p.loop("to_part", w.depth) as q:
            self.p.signal(w.summed, Var(digit(self.form.k)), core=w.leader + q)

    def deep(self, spans: dict[str, Span], turn: Expr, out: Tile) -> None:
        inner = [which for which, held in self.w.ready.items() if held.level == self.w.inner]
        with self.w.deep_tiles(turn) as (k, number), ExitStack() as stack:
            tiles = dict(self.tiles)
            for which in inner:
                tiles[which] = stack.enter_context(self.w.ready[which].stream.use(number))
            self.w.multiply(spans, k, out, tiles)


class _Join(_At):
    def __init__(self, writer: Writer, part: Expr) -> None:
        super().__init__(writer)
        self.part = part

    def leaf(self, spans: dict[str, Span], turn: Expr) -> None:
        w = self.w
        with self.p.loop("from_part", w.depth) as q:
            self.p.wait(w.summed, q)
        begin = {w.band: self.part * w.band_size}
        source = w.part(w.partial, w.sums_index, begin)
        with w.acc.stream.fill(turn) as total:
            self.p.ring(
                w.joined(spans),
                w.ref(source, w.sums_index),
                w.ref(total, w.sums_index),
                core=w.leader + Var("source"),
                count=w.depth,
                variable="source",
                combine=Combine.SUM,
            )
        with self.p.loop("to_part", w.depth) as q:
            self.p.signal(w.pulled, self.part, core=w.leader + q)


class _Finish(_At):
    """SFU: sticks of the inputs, then the MAPs."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(writer)
        self.tiles: dict[int, Tile] = {}

    def level(self, level: int, spans: dict[str, Span], turn: Expr, stack: ExitStack) -> None:
        k = {self.form.k: self.w._span(self.form.k)}
        for which in sorted(self.form.turned):
            if self.w.loaded[which].level == level:
                self.turn(which, {**spans, **k}, turn)
        if level == len(self.w.turns):
            self.deep(spans, turn)
        for box in self.form.extras:
            held = self.w.extras[id(box)]
            if held.level == level:
                self.tiles[id(box)] = stack.enter_context(held.stream.use(turn))

    def deep(self, spans: dict[str, Span], turn: Expr) -> None:
        inner = [w for w in sorted(self.form.turned) if self.w.loaded[w].level == self.w.inner]
        if not inner:
            return
        with self.w.deep_tiles(turn) as (k, number):
            for which in inner:
                self.turn(which, {**spans, self.form.k: k}, number)

    def turn(self, which: str, spans: dict[str, Span], number: Expr) -> None:
        """a or b to the stick of the PT."""
        source, target = self.w.loaded[which], self.w.ready[which]
        labels = {label for label, _ in target.index}
        over = {label: spans[label] for label in spans if label in labels}
        with source.stream.use(number) as read, target.stream.fill(number) as write:
            body = trace(f.identity, [read.format])
            self.p.compute(
                Kind.MAP, over, self.w.ref(read, source.index), self.w.ref(write, target.index),
                body=body,
            )  # fmt: skip

    def leaf(self, spans: dict[str, Span], turn: Expr) -> None:
        w = self.w
        over = w.joined(spans)
        with w.acc.stream.use(turn) as sums, ExitStack() as stack:
            tiles: dict[int, Ref] = {id(self.form.sums): w.ref(sums, w.sums_index)}
            for box in self.form.outs:
                tile = stack.enter_context(w.outs[id(box)].stream.fill(turn))
                tiles[id(box)] = w.ref(tile, box.index)
                tiles.setdefault(id(box.tensor), tiles[id(box)])
            for box in self.form.extras:
                tiles[id(box)] = w.ref(self.tiles[id(box)], box.index)
            for key, tile in w.kept.items():
                tiles[key] = w.ref(tile, w.sums_index)
            for step in self.form.steps:
                self.apply(step, over, tiles)

    def apply(self, step: Step, over: dict[str, Span], tiles: dict[int, Ref]) -> None:
        def found(one: Tensor | Box) -> Ref:
            return tiles[id(one)]

        self.p.compute(
            Kind.MAP,
            over,
            [found(one) for one in step.inputs],
            [found(one) for one in step.outputs],
            body=step.body,
        )


class _Store(_At):
    def leaf(self, spans: dict[str, Span], turn: Expr) -> None:
        joined = self.w.joined(spans)
        for box in self.form.outs:
            over = {label: joined[label] for label in box.labels}
            target = self.w.ref(self.w.draft.owner(box.tensor), box.index)
            with self.w.outs[id(box)].stream.use(turn) as tile:
                self.p.store(over, self.w.ref(tile, box.index), target)
