"""Pass 4: every access one that a LOAD, a STORE or an LX tile can make.

Input: a graph whose tensors all have places. Output: the same values, every access of every op but
COPY legal (`check.illegal`: a label, a label and an offset, a number or an Indirect for each dim;
on the stick only whole sticks), new temps placed. How, by what stands in the way:

- steps, overlapping windows, diagonals and several labels on dims that are not on the stick, or
  whole sticks of one: an `Alias`, whose strides say the same (no work at all);
- a read that begins within a stick, steps along it or runs backwards: an Indirect read by a vector
  of indices that a MAP makes;
- several labels within a stick (a true reshape), or one that moves another dim, too (a diagonal):
  OpKind.COPY into a temp, or from one;
- a write that does not fill its sticks: the value goes to a temp; then whole sticks of the target
  are read, renewed where the write goes (`where` on the index) and written;
- a write that runs backwards: the op's label is turned round instead;
- a SCATTER into such a place: into a copy, which is written back;
- an index of a SCATTER whose stick is along another label than the last: a copy.

Constants are cut to size when compiling. Invariant: no bit of a result changes.
"""

from __future__ import annotations

import math

import numpy as np

from openspyre.compiler.check import illegal
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.graph import (
    Access,
    Affine,
    Alias,
    Graph,
    IndexOf,
    Indirect,
    Op,
    OpKind,
    Place,
    Role,
    Tensor,
)
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.passes.edit import (
    Names,
    affine,
    identity_body,
    is_identity,
    label_index,
    replace_label,
    result_type,
)
from openspyre.compiler.passes.places import packed
from openspyre.compiler.sizes import Size, known, plus, same, times
from openspyre.program import body as f
from openspyre.program.body import Reg, trace
from openspyre.program.model import Body


def legalize(graph: Graph, options: CompileOptions) -> None:
    """Runs the pass in place."""
    _Legal(graph).run()


def ragged(graph: Graph, op: Op, access: Access) -> bool:
    """Whether a write ends within a stick that it shares with other elements of the tensor."""
    tensor = access.tensor
    place = tensor.place
    assert place is not None
    if place.stick < 0:
        return False
    index, size = access.index[place.stick], tensor.shape[place.stick]
    if not isinstance(index, Affine):
        return False
    if not index.terms:
        return not same(size, 1)
    eps = tensor.format(graph.mode).elements_per_stick
    inner = min(index.terms, key=lambda t: abs(known(t[1]) or 1 << 62))[0]
    extent = op.labels[inner] if not (op.kind is OpKind.TOPK and inner == op.label) else op.limit
    count = known(extent)
    if count is not None and count % eps == 0:
        return False
    return not (len(index.terms) == 1 and same(plus(index.offset, extent), size))


def _partial(op: Op, access: Access) -> bool:
    """Whether the op walks only the beginning of some dims."""
    return any(
        known(op.labels[label]) != known(size)
        for index, size in zip(access.index, access.tensor.shape, strict=True)
        if isinstance(index, Affine)
        for label in index.labels
    )


class _Legal:
    """The graph in the making: `blocks` holds, for every op of before, the ops in its place."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names = Names(graph)
        self.blocks: list[list[Op]] = []
        self.first: dict[int, int] = {}  # memory -> block of its first writer
        self.filled: set[int] = set()
        self.aliases: dict[str, Tensor] = {}
        self.vectors: dict[str, Tensor] = {}

    def run(self) -> None:
        for op in list(self.graph.ops):
            self.blocks.append([])
            for access in op.outputs:
                self.first.setdefault(id(access.tensor.memory), len(self.blocks) - 1)
            self.emit(op)
        self.graph.ops = [op for block in self.blocks for op in block]

    def emit(self, op: Op) -> None:
        """Adds an op with all that its accesses need."""
        if op.kind is OpKind.COPY:
            self.blocks[-1].append(op)
            return
        self._forward(op)
        self._in_place(op)
        number = 0
        while number < len(op.inputs):  # an input may bring its indices along
            op.inputs[number] = self.read(op, number)
            number += 1
        self._turn_points(op)
        after: list[Op] = []
        for number, access in enumerate(op.outputs):
            op.outputs[number] = self.write(op, access, after)
        self.blocks[-1].append(op)
        for more in after:
            self.emit(more)

    def _turn_points(self, op: Op) -> None:
        """A scatter takes its points in order, so the positions of its last label must lie on the
        stick: an index or value with another of its labels there is copied."""
        if op.kind is not OpKind.SCATTER:
            return
        target = op.outputs[0]
        numbers = [i.input for i in target.index if isinstance(i, Indirect)]
        varied = {label for n in numbers for label in op.inputs[n].labels}
        free = [label for label in op.labels if label in varied - target.labels]
        # What a task scatters walks the last of these labels; the others are taken one by one, and
        # a tile on the stick cannot begin at any of their indices.
        for n, access in enumerate(op.inputs):
            place = access.tensor.place
            assert place is not None
            at = access.index[place.stick] if place.stick >= 0 else Affine()
            if isinstance(at, Affine) and at.single in free[:-1] and free[-1] in access.labels:
                op.inputs[n] = self._on_stick(op, access, free[-1])

    def _on_stick(self, op: Op, access: Access, label: str) -> Access:
        """A copy of what is read, with the positions of `label` on the stick."""
        labels, source, (sizes, names), on = self.window(op, access, [], -1)
        last = next(d for d, i in enumerate(on) if isinstance(i, Affine) and i.single == label)
        temp = self.temp(sizes, access.tensor.dtype, last)
        out = Access(temp, tuple(label_index(n) for n in names))
        body = identity_body(access.tensor.format(self.graph.mode))
        self.emit(Op(OpKind.MAP, op.name, labels, [source], [out], body, source=op.source))
        return Access(temp, on)

    # --- new parts

    def temp(self, shape: list[Size], dtype: str, stick: int) -> Tensor:
        """A new temp with dim `stick` on the stick."""
        name = self.names.new("v")
        tensor = Tensor(name, tuple(shape), dtype)
        eps = tensor.format(self.graph.mode).elements_per_stick
        tensor.place = packed(tensor.shape, stick, eps)
        self.graph.tensors.append(tensor)
        return tensor

    def eps(self, tensor: Tensor) -> int:
        return tensor.format(self.graph.mode).elements_per_stick

    def vector(self, op: Op, label: str | None, size: Size, values: Affine, low: int | None,
               high: int | None, divisor: int = 1) -> Tensor:  # fmt: skip
        """An int32 temp over one label (none: one number) of an index that is affine in it, divided
        and kept within bounds; made once."""
        number = known(values.offset)
        step = known(values.terms[0][1]) if values.terms else 0
        if number is None or step is None:
            raise self.unsupported(op, f"an index {values} whose numbers are given at launch")
        key = f"{label is None} {size} {step} {number} {low} {high} {divisor}"
        if key in self.vectors:
            return self.vectors[key]
        name = self.names.new("j")

        def make(maker: Reg) -> Reg:
            reg = maker.const("l", number)
            if label is not None:
                reg = maker.index(name) * step + number
            if divisor > 1:
                reg = reg // divisor
            if low is not None:
                reg = f.maximum(reg, low)
            if high is not None:
                reg = f.minimum(reg, high)
            return f.cast(reg, "i")

        shape = [] if label is None else [size]
        tensor = self.temp(shape, "int32", len(shape) - 1)
        labels = {} if label is None else {name: size}
        out = Access(tensor, () if label is None else (label_index(name),))
        made = Op(OpKind.MAP, op.name, labels, [], [out], trace(make, []), source=op.source)
        self.blocks[-1].append(made)
        self.vectors[key] = tensor
        return tensor

    def unsupported(self, op: Op, rule: str) -> Unsupported:
        return Unsupported(op.name or op.kind.value, str(op), rule, "make the tensor contiguous")

    # --- reads

    def read(self, op: Op, number: int) -> Access:
        """A legal access instead of input `number`; what it needs goes into the block."""
        access = op.inputs[number]
        tensor = access.tensor
        if illegal(self.graph, access) is None:
            # What is scattered must be an operand's all: the verifier counts its elements.
            if op.kind is OpKind.SCATTER and _partial(op, access) and tensor.alias is None:
                return self.alias(op, access, Role.INPUT)
            return access
        if tensor.role is Role.CONST:
            return self.cut(op, access)
        bad = self.obstacles(access)
        if not bad:
            return self.alias(op, access, Role.INPUT)
        dim = bad[0]
        index = access.index[dim]
        assert isinstance(index, Affine)
        shared = {n for d, i in enumerate(access.index) if d != dim and isinstance(i, Affine)
                  for n in i.labels}  # fmt: skip
        if len(index.terms) > 1 or shared & set(index.labels):
            return self.read_copy(op, access)  # also a diagonal that runs backwards
        if (
            len(bad) == 1 and op.kind is OpKind.MAP and is_identity(op.body)
            and len(op.inputs) == 1 and not access.indirect
        ):  # fmt: skip
            gathered, by = self.gathered(op, op.labels, access, dim)
            op.inputs.append(by)
            return self.alias_or_same(op, gathered)
        # The elements move first, in an op of their own.
        labels, moved, target, on = self.window(op, access, [d for d in bad if d != dim], dim)
        gathered, by = self.gathered(op, labels, moved, dim)
        stick = self.stick_of(access, dim, target, on)
        temp = self.temp(target[0], tensor.dtype, stick)
        out = Access(temp, tuple(label_index(n) for n in target[1]))
        copy = Op(
            OpKind.MAP, op.name, labels, [gathered, by], [out],
            identity_body(tensor.format(self.graph.mode)), source=op.source,
        )  # fmt: skip
        self.emit(copy)
        op.inputs[number] = Access(temp, on)
        return self.read(op, number)

    def stick_of(
        self,
        access: Access,
        dim: int,
        target: tuple[list[Size], list[str]],
        on: tuple[IndexOf, ...],
    ) -> int:
        """The stick of the temp for a moved window: the label that walked the source's, if any."""
        place = access.tensor.place
        assert place is not None
        if place.stick >= 0:
            index = access.index[place.stick]
            if isinstance(index, Affine) and index.terms:
                label = min(index.terms, key=lambda t: abs(known(t[1]) or 1 << 62))[0]
                for d, i in enumerate(on):
                    if isinstance(i, Affine) and i.single == label:
                        return d
        return len(target[0]) - 1

    def window(
        self, op: Op, access: Access, whole: list[int], moved: int
    ) -> tuple[dict[str, Size], Access, tuple[list[Size], list[str]], tuple[IndexOf, ...]]:
        """What an op needs to move the window of an access to a temp, the dims of `whole` and the
        Indirect ones complete: its labels, the access of the source, sizes and labels of the temp's
        dims, and how the temp is read instead."""
        labels: dict[str, Size] = {}
        index: list[IndexOf] = []
        sizes: list[Size] = []
        names: list[str] = []
        on: list[IndexOf] = []
        new: dict[str, str] = {}
        for d, i in enumerate(access.index):
            size = access.tensor.shape[d]
            if isinstance(i, Indirect) or d in whole:
                name = self.names.new("j")
                labels[name] = size
                index.append(label_index(name))
                sizes.append(size)
                names.append(name)
                on.append(i)
                continue
            terms = []
            for label, c in i.terms:
                if label not in new:
                    new[label] = name = self.names.new("j")
                    labels[name] = op.labels[label]
                    sizes.append(op.labels[label])
                    names.append(name)
                    on.append(label_index(label))
                terms.append((new[label], c))
            index.append(affine(terms, i.offset))
        return labels, Access(access.tensor, tuple(index)), (sizes, names), tuple(on)

    def gathered(
        self, op: Op, labels: dict[str, Size], access: Access, dim: int
    ) -> tuple[Access, Access]:
        """The access with dim `dim` indexed by input 1, and that input; `labels`: its box."""
        index = access.index[dim]
        assert isinstance(index, Affine)
        label = index.terms[0][0] if index.terms else None
        size = 1 if label is None else labels[label]
        values = self.vector(op, label, size, index, None, None)
        made = list(access.index)
        made[dim] = Indirect(1, access.tensor.shape[dim])
        by = Access(values, () if label is None else (label_index(label),))
        return Access(access.tensor, tuple(made)), by

    def read_copy(self, op: Op, access: Access) -> Access:
        """The window of an access in a temp, moved by the DMA engine."""
        labels, moved, (sizes, names), on = self.window(op, access, [], -1)
        stick = self.stick_of(access, -1, (sizes, names), on)
        temp = self.temp(sizes, access.tensor.dtype, stick)
        out = Access(temp, tuple(label_index(n) for n in names))
        self.blocks[-1].append(
            Op(OpKind.COPY, op.name, labels, [moved], [out], source=op.source)
        )  # fmt: skip
        return Access(temp, on)

    def cut(self, op: Op, access: Access) -> Access:
        """The window of a constant as a constant."""
        tensor = access.tensor
        assert tensor.data is not None
        _, moved, (sizes, names), on = self.window(op, access, [], -1)
        counts = [known(size) for size in sizes]
        if None in counts:
            raise self.unsupported(op, "a window of a constant whose size is given at launch")
        grids = np.ix_(*(np.arange(n or 0) for n in counts)) if counts else ()
        at = []
        for i in moved.index:
            assert isinstance(i, Affine)
            total = np.asarray(known(i.offset) or 0)
            for label, c in i.terms:
                total = total + grids[names.index(label)] * (known(c) or 0)
            at.append(total)
        data = np.broadcast_to(tensor.data[tuple(at)], [n or 0 for n in counts])
        made = self.temp(sizes, tensor.dtype, self.stick_of(access, -1, (sizes, names), on))
        made.role, made.data = Role.CONST, data.copy()
        return Access(made, on)

    # --- aliases

    def obstacles(self, access: Access) -> list[int]:
        """The dims that no alias mends, the one on the stick first."""
        tensor, place = access.tensor, access.tensor.place
        assert place is not None
        eps = self.eps(tensor)
        bad: list[int] = []
        for d, index in enumerate(access.index):
            if isinstance(index, Indirect):
                continue
            steps = [known(c) for _, c in index.terms]
            if any(c is not None and c < 0 for c in steps):
                bad.append(d)
            elif d == place.stick:
                offset = known(index.offset)
                outer = sorted(c if c is not None else -1 for c in steps)
                inner = outer.pop(0) if outer and outer[0] == 1 else None
                others = {
                    label for e, i in enumerate(access.index)
                    if e != d and isinstance(i, Affine) for label in i.labels
                }  # fmt: skip
                on = [label for label, c in index.terms if known(c) == 1]
                if (
                    offset is None or offset % eps or any(c <= 0 or c % eps for c in outer)
                    or (inner is not None and on[0] in others)
                ):  # fmt: skip
                    bad.append(d)
        return sorted(bad, key=lambda d: d != place.stick)

    def alias_or_same(self, op: Op, access: Access) -> Access:
        if illegal(self.graph, access) is None:
            return access
        return self.alias(op, access, Role.INPUT)

    def alias(self, op: Op, access: Access, role: Role) -> Access:
        """The access of an alias that has one dim for every label, and for every Indirect index."""
        tensor, place = access.tensor, access.tensor.place
        assert place is not None and tensor.alias is None
        eps = self.eps(tensor)
        shape: list[Size] = []
        strides: list[Size] = []
        own: dict[str, int] = {}
        on: list[IndexOf] = []
        inside: list[Affine] = []
        offset: Size = 0
        stick = -1
        for d, index in enumerate(access.index):
            step = place.strides[d]
            if isinstance(index, Indirect):
                inside.append(label_index(f"d{len(shape)}"))
                shape.append(tensor.shape[d])
                strides.append(step)
                on.append(index)
                stick = len(shape) - 1 if d == place.stick else stick
                continue
            terms: list[tuple[str, Size]] = []
            for label, c in index.terms:
                if label not in own:
                    own[label] = len(shape)
                    shape.append(op.labels[label])
                    strides.append(0)
                    on.append(label_index(label))
                at = own[label]
                if d != place.stick:
                    strides[at] = plus(strides[at], times(c, step))
                elif known(c) == 1:
                    strides[at], stick = step, at
                else:
                    strides[at] = plus(strides[at], times((known(c) or 0) // eps, step))
                terms.append((f"d{at}", c))
            inside.append(affine(terms, index.offset))
            if d == place.stick:
                offset = plus(offset, times((known(index.offset) or 0) // eps, step))
            else:
                offset = plus(offset, times(index.offset, step))
        key = f"{id(tensor)} {role} {[str(i) for i in inside]} {[str(s) for s in shape]}"
        made = self.aliases.get(key) if role is Role.INPUT else None
        if made is None:
            made = Tensor(
                self.names.new("v"), tuple(shape), tensor.dtype, role,
                Place(tuple(strides), stick), alias=Alias(tensor, tuple(inside), offset),
            )  # fmt: skip
            self.graph.tensors.append(made)
            self.aliases[key] = made
        return Access(made, tuple(on))

    # --- writes

    def _forward(self, op: Op) -> None:
        """Turns labels round that would write backwards."""
        if op.kind is not OpKind.MAP:
            return
        for access in list(op.outputs):
            for index in access.index:
                if not isinstance(index, Affine):
                    continue
                for label, c in index.terms:
                    step, size = known(c), op.labels[label]
                    if step is not None and step < 0 and self.backwards(op, label):
                        name = self.names.new("j")
                        by = affine([(name, -1)], plus(size, -1))
                        replace_label(op, label, {name: size}, by)
                        return self._forward(op)

    def _in_place(self, op: Op) -> None:
        """One alias for what is read and written alike."""
        for n, out in enumerate(op.outputs):
            alike = [m for m, a in enumerate(op.inputs) if a == out]
            if not alike or illegal(self.graph, out) is None:
                continue
            if self.obstacles(out) or ragged(self.graph, op, out):
                continue
            op.outputs[n] = self.alias(op, out, Role.INOUT)
            for m in alike:
                op.inputs[m] = op.outputs[n]

    @staticmethod
    def backwards(op: Op, label: str) -> bool:
        """Whether a label moves outputs backwards only."""
        steps = [
            known(c) or 0
            for access in op.outputs
            for index in access.index
            if isinstance(index, Affine)
            for name, c in index.terms
            if name == label
        ]
        return all(step < 0 for step in steps)

    def write(self, op: Op, access: Access, after: list[Op]) -> Access:
        """A legal access instead of an output; what it needs goes to `after`."""
        good = illegal(self.graph, access) is None
        partial = ragged(self.graph, op, access)
        if good and not partial:
            return access
        bad = self.obstacles(access)
        if not bad and not partial:
            role = Role.INOUT if op.kind is OpKind.SCATTER else Role.OUTPUT
            return self.alias(op, access, role)
        if op.kind is OpKind.SCATTER:
            return self.scatter_copy(op, access, after)
        # The value goes to a temp, and from there to its place.
        labels, moved, (sizes, names), on = self.window(op, access, [], -1)
        tensor, place = access.tensor, access.tensor.place
        assert place is not None
        index = access.index[place.stick] if place.stick >= 0 else Affine()
        assert isinstance(index, Affine)
        temp = self.temp(sizes, tensor.dtype, self.stick_of(access, -1, (sizes, names), on))
        source = Access(temp, tuple(label_index(n) for n in names))
        others = {n for d, i in enumerate(access.index) if d != place.stick
                  and isinstance(i, Affine) for n in i.labels}  # fmt: skip
        if len(index.terms) > 1 or others & set(index.labels):
            after.append(
                Op(OpKind.COPY, op.name, labels, [source], [moved], source=op.source)
            )  # fmt: skip
        elif place.stick in bad or partial:
            self.renew(op, labels, source, moved, after)
        else:
            raise self.unsupported(op, f"writes {access}")
        return Access(temp, on)

    def scatter_copy(self, op: Op, access: Access, after: list[Op]) -> Access:
        """A scatter into a copy of the target's window, which is written back."""
        labels, moved, (sizes, names), on = self.window(op, access, [], -1)
        tensor = access.tensor
        temp = self.temp(sizes, tensor.dtype, self.stick_of(access, -1, (sizes, names), on))
        inner = Access(temp, tuple(label_index(n) for n in names))
        body = identity_body(tensor.format(self.graph.mode))
        self.emit(
            Op(OpKind.MAP, op.name, dict(labels), [moved], [inner], body, source=op.source)
        )  # fmt: skip
        after.append(
            Op(OpKind.MAP, op.name, dict(labels), [inner], [moved], body, source=op.source)
        )  # fmt: skip
        return Access(temp, on)

    def renew(
        self, op: Op, labels: dict[str, Size], source: Access, target: Access, after: list[Op]
    ) -> None:
        """Whole sticks of the target: read, renewed where `source` goes, written."""
        tensor, place = target.tensor, target.tensor.place
        assert place is not None
        stick, eps = place.stick, self.eps(target.tensor)
        index = target.index[stick]
        assert isinstance(index, Affine)
        low, whole = known(index.offset), known(tensor.shape[stick])
        step, count, label = 1, 1, None
        if index.terms:
            label = index.terms[0][0]
            step, count = known(index.terms[0][1]) or 0, known(labels[label]) or 0
        if low is None or whole is None or step < 1 or count < 1:
            raise self.unsupported(op, f"writes part of a stick of {target}, at a number given at"
                                       " launch")  # fmt: skip
        first = low // eps * eps
        last = min(math.ceil((low + (count - 1) * step + 1) / eps) * eps, whole)
        self.fill(tensor, op)
        walk = self.names.new("j")
        box: dict[str, Size] = {}
        for name, size in labels.items():
            if name != label:
                box[name] = size
        box[walk] = last - first
        new = Access(tensor, tuple(
            label_index(walk, first) if d == stick else i for d, i in enumerate(target.index)
        ))  # fmt: skip
        format = tensor.format(self.graph.mode)
        value = Access(source.tensor, tuple(
            label_index(walk) if isinstance(i, Affine) and i.single == label else i
            for i in source.index
        ))  # fmt: skip
        if label is not None and not (low == first and step == 1 and count == last - first):
            at = [n for n, i in enumerate(source.index) if isinstance(i, Affine)
                  and i.single == label]  # fmt: skip
            vector = self.vector(
                op, walk, last - first, affine([(walk, 1)], first - low), 0, count - 1, step
            )  # fmt: skip
            where = list(source.index)
            where[at[0]] = Indirect(1, count)
            shape = list(source.tensor.shape)
            shape[at[0]] = last - first
            moved = self.temp(shape, tensor.dtype, at[0])
            value = Access(moved, tuple(
                label_index(walk) if n == at[0] else i for n, i in enumerate(source.index)
            ))  # fmt: skip
            after.append(
                Op(
                    OpKind.MAP, op.name, dict(box),
                    [Access(source.tensor, tuple(where)), Access(vector, (label_index(walk),))],
                    [value], identity_body(format), source=op.source,
                )
            )  # fmt: skip

        def choose(old: Reg, made: Reg) -> Reg:
            place_ = old.index(walk) + first - low
            inside = (place_ >= 0) & (place_ <= (count - 1) * step)
            if step > 1:
                inside = inside & f.equal(place_ % step, 0)
            return f.where(inside, made, old)

        body: Body = trace(choose, [format, format])
        after.append(
            Op(OpKind.MAP, op.name, dict(box), [new, value], [new], body, source=op.source)
        )  # fmt: skip

    def fill(self, tensor: Tensor, op: Op) -> None:
        """Zeros in a temp or output before its first writer, since whole sticks of it are read
        before all of it is written."""
        if tensor.role not in (Role.TEMP, Role.OUTPUT) or id(tensor) in self.filled:
            return
        self.filled.add(id(tensor))
        names = [self.names.new("j") for _ in tensor.shape]
        labels = dict(zip(names, tensor.shape, strict=True))
        type_ = result_type(identity_body(tensor.format(self.graph.mode)))
        made = Op(
            OpKind.MAP, op.name, labels, [],
            [Access(tensor, tuple(label_index(n) for n in names))],
            trace(lambda maker: maker.const(type_, 0), []), source=op.source,
        )  # fmt: skip
        self.blocks[self.first[id(tensor)]].insert(0, made)
