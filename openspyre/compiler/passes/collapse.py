"""Pass 5: dims and labels that always move together become one.

Input: a legal graph, every tensor placed. Output: the same ops on the same memory, where labels a
and b of an op are one label when in every access of the op they walk dims p and q whose strides
make them one dim (p steps over all of q), and when every op that touches those tensors lets its
labels be merged alike. A contiguous pointwise op of rank 5 becomes one of rank 2 or 3, and equal
work has one text. Dims of size 1 go (a tensor that others are indexed by keeps one). Then the names
are made anew (`edit.rename`).

Kept apart: labels that a body asks the index of, SCAN, SORT and ARG labels, reduced labels that do
not stand side by side, a stick with ragged sticks, tensors with an alias. Invariant: no bit and no
address changes, nor the order in which a REDUCE or SCATTER takes its elements. An op that has more
labels, or a tensor that has more dims, than the machine addresses even then is taken apart: one op
for each index of its smallest label. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from openspyre.compiler.check import MAX_DIMS, MAX_LABELS
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
    by_labels,
    label_index,
    map_accesses,
    rename,
    replace_label,
)
from openspyre.compiler.sizes import Size, known, plus, quotient, same, times
from openspyre.compiler.view import fresh
from openspyre.formats import STICK_BYTES
from openspyre.program.ops import Combine

Pair = tuple[int, int, int]
"""id of a tensor, outer dim, inner dim."""
Labels = tuple[int, str, str]
"""id of an op, outer label, inner label."""


class _Apart(Exception):
    """What cannot be merged."""


def collapse(graph: Graph, options: CompileOptions) -> None:
    """Runs the pass in place."""
    _drop_dims(graph)
    failed: set[Labels] = set()
    work = _Merge(graph)
    for op in graph.ops:
        while (found := _candidate(work, op, failed)) is not None:
            work.apply(found)
            failed.clear()
            work = _Merge(graph)
    _unroll(graph)
    rename(graph)


# --- dims of size 1


def _drop_dims(graph: Graph) -> None:
    held = _aliased(graph)
    uses: dict[int, list[Access]] = {}
    for op in graph.ops:
        for access in by_labels(op):
            uses.setdefault(id(access.tensor), []).append(access)
    gone: dict[int, list[int]] = {}
    for tensor in graph.tensors:
        if id(tensor) in held:
            continue
        dims = [
            d for d, size in enumerate(tensor.shape)
            if known(size) == 1
            and all(
                isinstance(i := a.index[d], Affine) and not i.terms and known(i.offset) == 0
                for a in uses.get(id(tensor), [])
            )
        ]  # fmt: skip
        if dims:
            gone[id(tensor)] = dims
    for op in graph.ops:
        map_accesses(op, lambda a: Access(a.tensor, _without(a.index, gone.get(id(a.tensor), []))))
    for tensor in graph.tensors:
        out = gone.get(id(tensor), [])
        if out:
            _reshape(tensor, [d for d in range(len(tensor.shape)) if d not in out])
    _keep_index_dims(graph)


def _keep_index_dims(graph: Graph) -> None:
    """A tensor of one index gets a dim of size 1: LOAD and STORE take positions along a dim."""
    lone = {
        id(op.inputs[i.input].tensor)
        for op in graph.ops
        for access in (*op.inputs, *op.outputs)
        for i in access.index
        if isinstance(i, Indirect) and not op.inputs[i.input].tensor.shape
    }
    for tensor in graph.tensors:
        if id(tensor) not in lone:
            continue
        tensor.shape, tensor.place = (1,), Place((STICK_BYTES,), 0)
        if tensor.data is not None:
            tensor.data = tensor.data.reshape(1)
    for op in graph.ops:
        map_accesses(op, lambda a: Access(a.tensor, (Affine(),)) if id(a.tensor) in lone else a)


def _without(index: tuple[IndexOf, ...], dims: list[int]) -> tuple[IndexOf, ...]:
    return tuple(i for d, i in enumerate(index) if d not in dims)


def _reshape(tensor: Tensor, kept: list[int]) -> None:
    place = tensor.place
    assert place is not None
    stick = kept.index(place.stick) if place.stick in kept else -1
    tensor.shape = tuple(tensor.shape[d] for d in kept)
    tensor.place = Place(tuple(place.strides[d] for d in kept), stick)
    if tensor.data is not None:
        tensor.data = tensor.data.reshape([known(s) or 0 for s in tensor.shape])


def _aliased(graph: Graph) -> set[int]:
    held: set[int] = set()
    for tensor in graph.tensors:
        if tensor.alias is not None:
            held |= {id(tensor), id(tensor.alias.of)}
    return held


# --- what may be merged


@dataclass
class _Plan:
    """Dims and labels that are merged together."""

    dims: set[Pair] = field(default_factory=set)
    labels: set[Labels] = field(default_factory=set)


class _Merge:
    """Finds and applies merges on a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.held = _aliased(graph)
        self.tensors = {id(t): t for t in graph.tensors}
        self.ops = {id(op): op for op in graph.ops}
        self.uses: dict[int, list[tuple[Op, Access]]] = {}
        self.asked: dict[int, set[str]] = {}
        for op in graph.ops:
            for access in by_labels(op):
                self.uses.setdefault(id(access.tensor), []).append((op, access))
            rigid = {op.label} if op.label is not None else set()
            if op.combine in (Combine.ARGMAX, Combine.ARGMIN):
                rigid |= set(op.reduced)
            if op.body is not None:
                rigid |= {str(n.immediate) for n in op.body.nodes if n.op == "index"}
            self.asked[id(op)] = {n for n in rigid if n is not None}

    def plan(self, first: Labels) -> _Plan:
        """All that has to be merged with these labels. Raises _Apart."""
        plan = _Plan()
        todo: list[Labels | Pair] = [first]
        while todo:
            item = todo.pop()
            if isinstance(item[1], str):
                labels = (item[0], item[1], str(item[2]))
                if labels not in plan.labels:
                    plan.labels.add(labels)
                    todo += self.dims_of(labels)
            else:
                pair = (item[0], item[1], int(item[2]))
                if pair not in plan.dims:
                    plan.dims.add(pair)
                    todo += self.labels_of(pair)
        for group in (plan.dims, plan.labels):
            ends = [(i[0], e) for i in group for e in i[1:]]
            if len(set(ends)) != len(ends):
                raise _Apart
        return plan

    def dims_of(self, labels: Labels) -> Iterable[Pair]:
        """The dims that two labels walk in all accesses of their op."""
        op, a, b = self.ops[labels[0]], labels[1], labels[2]
        if {a, b} & self.asked[id(op)] or (a in op.reduced) != (b in op.reduced):
            raise _Apart
        for order in (
            (op.reduced if a in op.reduced else ()),
            (tuple(op.labels) if op.kind is OpKind.SCATTER else ()),
        ):
            if order and order[order.index(a) + 1 : order.index(a) + 2] != (b,):
                raise _Apart
        for access in by_labels(op):
            at = {
                label: d
                for d, i in enumerate(access.index)
                if isinstance(i, Affine) and i.single is not None
                for label in i.labels
            }
            moved = access.labels
            if a not in moved and b not in moved:
                continue
            if a not in at or b not in at:
                raise _Apart
            yield (id(access.tensor), at[a], at[b])

    def labels_of(self, pair: Pair) -> Iterable[Labels]:
        """The labels that walk two dims in all accesses of their tensor."""
        tensor, p, q = self.tensors[pair[0]], pair[1], pair[2]
        if id(tensor) in self.held or not self.one(tensor, p, q):
            raise _Apart
        for op, access in self.uses[id(tensor)]:
            outer, inner = access.index[p], access.index[q]
            if isinstance(outer, Indirect) or isinstance(inner, Indirect):
                raise _Apart
            label = inner.single
            if label is None or known(inner.offset) != 0 or label == op.label:
                raise _Apart
            if not same(op.labels[label], tensor.shape[q]):
                raise _Apart
            if not outer.terms:
                continue
            if outer.single is None:
                raise _Apart
            yield (id(op), outer.single, label)

    def one(self, tensor: Tensor, p: int, q: int) -> bool:
        """Whether a step of dim p is one over all of dim q."""
        place = tensor.place
        assert place is not None
        if p == place.stick:
            return False
        count = tensor.shape[q]
        if q == place.stick:
            eps = tensor.format(self.graph.mode).elements_per_stick
            sticks = quotient(count, eps)
            if sticks is None:
                return False
            count = sticks
        return same(place.strides[p], times(count, place.strides[q]))

    def apply(self, plan: _Plan) -> None:
        for number, a, b in sorted(plan.labels, key=lambda n: (n[1], n[2])):
            op = self.ops[number]
            name = fresh("i")
            labels: dict[str, Size] = {}
            for label, size in op.labels.items():
                if label == b:
                    labels[name] = times(op.labels[a], size)
                elif label != a:
                    labels[label] = size
            op.labels = labels
            op.reduced = tuple(name if n == b else n for n in op.reduced if n != a)

            # The index of the outer dim gives the offset; the inner's label becomes the new one.
            def renamed(access: Access, b: str = b, name: str = name) -> Access:
                return Access(access.tensor, tuple(
                    label_index(name, i.offset) if isinstance(i, Affine) and i.single == b else i
                    for i in access.index
                ))  # fmt: skip

            map_accesses(op, renamed)
        pairs = {number: (p, q) for number, p, q in sorted(plan.dims)}
        more = [pair for pair in plan.dims if pairs[pair[0]] != (pair[1], pair[2])]
        for op in self.graph.ops:
            map_accesses(op, lambda a: self.merged(a, pairs))
        for number, (p, q) in pairs.items():
            self.merge_dims(self.tensors[number], p, q)
        assert not more

    def merged(self, access: Access, pairs: dict[int, tuple[int, int]]) -> Access:
        found = pairs.get(id(access.tensor))
        if found is None:
            return access
        p, q = found
        outer, inner = access.index[p], access.index[q]
        assert isinstance(outer, Affine) and isinstance(inner, Affine)
        offset = plus(inner.offset, times(outer.offset, access.tensor.shape[q]))
        index = list(access.index)
        index[q] = Affine(inner.terms, offset)
        del index[p]
        return Access(access.tensor, tuple(index))

    @staticmethod
    def merge_dims(tensor: Tensor, p: int, q: int) -> None:
        place = tensor.place
        assert place is not None
        shape = list(tensor.shape)
        if tensor.data is not None:
            data = np.moveaxis(tensor.data, p, q - 1 if p < q else q)
            at = q - 1 if p < q else q
            sizes = list(data.shape)
            sizes[at : at + 2] = [sizes[at] * sizes[at + 1]]
            tensor.data = data.reshape(sizes)
        shape[q] = times(shape[p], shape[q])
        del shape[p]
        strides = list(place.strides)
        del strides[p]
        stick = place.stick - (place.stick > p)
        tensor.shape, tensor.place = tuple(shape), Place(tuple(strides), stick)


def _candidate(work: _Merge, op: Op, failed: set[Labels]) -> _Plan | None:
    """Something to merge that begins with labels of `op`."""
    main = max(by_labels(op), key=lambda a: len(a.index), default=None)
    if main is None:
        return None
    # Two labels of the op stand in one access, or nowhere together.
    for access in by_labels(op):
        walked = [
            (d, i.single)
            for d, i in enumerate(access.index)
            if isinstance(i, Affine) and i.single is not None
        ]
        for p, a in walked:
            for q, b in walked:
                key = (id(op), str(a), str(b))
                if p == q or key in failed or not work.one(access.tensor, p, q):
                    continue
                try:
                    return work.plan(key)
                except _Apart:
                    failed.add(key)
    return None


# --- what is too large


def _unroll(graph: Graph) -> None:
    """One op for each index of a label, and aliases without its dims, until all fits."""
    names = Names(graph)
    ops: list[Op] = []
    todo = list(graph.ops)[::-1]
    while todo:
        op = todo.pop()
        if op.kind is OpKind.COPY:
            ops.append(op)
            continue
        map_accesses(op, lambda a, op=op: _narrowed(graph, names, op, a))  # type: ignore[misc]
        large = max((len(a.index) for a in by_labels(op)), default=0) > MAX_DIMS
        if len(op.labels) <= MAX_LABELS and not large:
            ops.append(op)
            continue
        free = [n for n in op.parallel if known(op.labels[n]) is not None]
        if op.kind is OpKind.MATMUL:
            free = [n for n in free if n in op.inputs[0].labels]
        # A number on the stick would be a place within it, which no access may begin at.
        on_stick = {n for a in (*op.inputs, *op.outputs) for n in _on_stick(a)}
        free = [n for n in free if n not in on_stick]
        if not free or op.kind is OpKind.SCATTER:
            raise Unsupported(
                op.name or op.kind.value, str(op),
                f"it addresses more than {MAX_DIMS} dims or {MAX_LABELS} labels at once",
                "make the tensors contiguous, or merge dims",
            )  # fmt: skip
        label = min(free, key=lambda n: known(op.labels[n]) or 0)
        for at in reversed(range(known(op.labels[label]) or 0)):
            part = replace(op, labels=dict(op.labels))
            replace_label(part, label, {}, Affine((), at))
            todo.append(part)
    graph.ops = ops


def _on_stick(access: Access) -> set[str]:
    """The labels that move an access along the stick."""
    place = access.tensor.place
    assert place is not None
    index = access.index[place.stick] if place.stick >= 0 else None
    return set(index.labels) if isinstance(index, Affine) else set()


def _narrowed(graph: Graph, names: Names, op: Op, access: Access) -> Access:
    """An access of a tensor of too many dims, by an alias without those that stand still."""
    tensor = access.tensor
    if len(access.index) <= MAX_DIMS:
        return access
    fixed = [
        d for d, i in enumerate(access.index) if isinstance(i, Affine) and not i.terms
    ]  # fmt: skip
    place = tensor.place
    assert place is not None
    fixed = [d for d in fixed if d != place.stick or known(tensor.shape[d]) == 1]
    if not fixed or (tensor.role is Role.CONST):
        return access
    offset: Size = 0
    inside: list[Affine] = []
    kept = [d for d in range(len(access.index)) if d not in fixed]
    for d, i in enumerate(access.index):
        if d in fixed:
            assert isinstance(i, Affine)
            inside.append(i)
            offset = plus(offset, times(i.offset, place.strides[d]))
        else:
            inside.append(label_index(f"d{kept.index(d)}"))
    written = any(a is access for a in op.outputs)
    base, outer = tensor, tensor.alias
    if outer is not None:
        from openspyre.compiler.passes.edit import substituted

        by = {f"d{d}": i for d, i in enumerate(inside)}
        inside = [substituted(i, by) for i in outer.index]
        offset = plus(offset, outer.offset)
        base = outer.of
    whole = all(
        isinstance(i := access.index[d], Affine)
        and i.single is not None
        and known(i.offset) == 0
        and same(op.labels[i.single], tensor.shape[d])
        for d in kept
    )
    role = Role.INPUT if not written else Role.OUTPUT if whole else Role.INOUT
    stick = kept.index(place.stick) if place.stick in kept else -1
    made = Tensor(
        names.new("v"), tuple(tensor.shape[d] for d in kept), tensor.dtype, role,
        Place(tuple(place.strides[d] for d in kept), stick),
        alias=Alias(base, tuple(inside), offset),
    )  # fmt: skip
    graph.tensors.append(made)
    return Access(made, tuple(access.index[d] for d in kept))
