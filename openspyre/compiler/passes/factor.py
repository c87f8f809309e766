"""Pass 2: dims that accesses address with several labels become several dims.

Input: a canonical graph; arguments may have a Place. Output: the same values, where an index such
as `128*h + d` or `2*i + 1` is one label a dim wherever the tensor's dim can be split at 128 (at 2)
and every other op that walks the dim can have its label split to match; those ops' bodies get
`outer*size + inner` for an `index` of a split label. Arguments come out with a Place (the default
layout where none was given), the parts of their dims with the strides that follow.

What cannot be split stays as it is, for `legalize`: labels of SCAN, SORT, TOPK and ARG reductions,
the rows and columns of products, a stick within its elements, ragged parts, overlapping windows,
negative steps. A dim with such an access (a frozen one) is not split by others either, so that
every index stays affine.

Invariant: the bits of every result, the order of reduced labels included.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from openspyre.compiler.graph import (
    Access,
    Affine,
    Graph,
    IndexOf,
    Op,
    OpKind,
    Place,
    Role,
    Tensor,
)
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.passes.edit import affine, by_labels, map_accesses, replace_label
from openspyre.compiler.passes.places import default_place
from openspyre.compiler.sizes import Size, known, quotient, times
from openspyre.compiler.view import fresh
from openspyre.program.ops import Combine

Dim = tuple[int, int]
"""id of a tensor, number of a dim."""
Label = tuple[int, str]
"""id of an op, name of a label."""


class _Conflict(Exception):
    """A split that something does not allow."""


def factor(graph: Graph, options: CompileOptions) -> None:
    """Runs the pass in place."""
    for tensor in graph.arguments:
        if tensor.place is None and tensor.role is not Role.OUTPUT:
            tensor.place = default_place(tensor, graph.mode)
    frozen: set[Dim] = set()
    while True:
        work = _Splits(graph, frozen)
        failed = work.run()
        if failed is None:
            break
        frozen.add(failed)
    work.apply()


@dataclass
class _Splits:
    """Cuts of dims and labels: a cut k of a dim says that it is split into parts of k indices."""

    graph: Graph
    frozen: set[Dim]
    dims: dict[Dim, set[int]] = field(default_factory=dict)
    labels: dict[Label, set[int]] = field(default_factory=dict)
    tensors: dict[int, Tensor] = field(default_factory=dict)
    todo: list[tuple[Op, Access, int]] = field(default_factory=list)
    walks: dict[Dim, list[tuple[Op, Access, int]]] = field(default_factory=dict)
    moves: dict[Label, list[tuple[Op, Access, int]]] = field(default_factory=dict)
    rigid: set[Label] = field(default_factory=set)
    log: list[tuple[set[int], int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for op in self.graph.ops:
            self.rigid |= {(id(op), label) for label in _rigid(op)}
            for access in by_labels(op):
                self.tensors[id(access.tensor)] = access.tensor
                for d, index in enumerate(access.index):
                    if not isinstance(index, Affine):
                        # An index from outside addresses the whole dim.
                        self.frozen.add((id(access.tensor), d))
                        continue
                    use = (op, access, d)
                    self.walks.setdefault((id(access.tensor), d), []).append(use)
                    for label in index.labels:
                        self.moves.setdefault((id(op), label), []).append(use)

    def run(self) -> Dim | None:
        """Finds all cuts. A dim that must be frozen for that, or None when all is done."""
        for dim, uses in self.walks.items():
            if dim in self.frozen:
                continue
            for use in uses:
                index = use[1].index[use[2]]
                assert isinstance(index, Affine)
                if index.single is not None or not index.terms:
                    continue
                self.log = []
                try:
                    self.todo = [use]
                    while self.todo:
                        self.visit(*self.todo.pop())
                except _Conflict:
                    for cuts, k in self.log:
                        cuts.discard(k)
                    if self.dims.get(dim):
                        return dim  # others have cut it: all over again
                    self.frozen.add(dim)
                    break
        return None

    def visit(self, op: Op, access: Access, d: int) -> None:
        """Adds the cuts that an index needs, given the ones there are. Raises _Conflict."""
        index = access.index[d]
        assert isinstance(index, Affine)
        dim = (id(access.tensor), d)
        cuts = self.dims.get(dim, set())
        mine = {n: self.labels.get((id(op), n), set()) for n in index.labels}
        if not cuts and not any(mine.values()) and (index.single or not index.terms):
            return
        if dim in self.frozen:
            raise _Conflict
        for k in self.digits(op, index, cuts, mine):
            self.cut_dim(dim, k)
        offset = known(index.offset)
        assert offset is not None
        for k in sorted(self.dims.get(dim, set())):
            for label, c, size, at in _digits(op, index):
                if c >= k:
                    continue
                # The first term below the cut: its digit is the one that k divides.
                if k % c:
                    raise _Conflict
                part = k // c
                count = known(size)
                if count is not None and at // part == (at + count - 1) // part:
                    break
                if at % part or quotient(size, part) is None:
                    raise _Conflict
                self.cut_label(op, label, part)
                break

    def digits(
        self, op: Op, index: Affine, cuts: set[int], mine: dict[str, set[int]]
    ) -> Iterable[int]:
        """The cuts of the dim that the terms of an index need."""
        found = _digits(op, index)
        offset = known(index.offset)
        assert offset is not None
        for number, (label, c, _, at) in enumerate(found):
            lower = sum(
                (count - 1) * k if (count := known(size)) is not None else c
                for _, k, size, _ in found[number + 1 :]
            )
            if lower + offset % c >= c:
                raise _Conflict  # windows overlap
            if c > 1:
                yield c
            for part in mine[label]:
                if at % part:
                    raise _Conflict
                yield part * c

    def cut_dim(self, dim: Dim, k: int) -> None:
        tensor, d = self.tensors[dim[0]], dim[1]
        size = tensor.shape[d]
        if known(size) == k:
            return
        cuts = self.dims.setdefault(dim, set())
        if k in cuts:
            return
        if dim in self.frozen or quotient(size, k) is None or not _chain(cuts, k):
            raise _Conflict
        # An output that may lie anywhere keeps the choice of its last dim.
        stick = tensor.place.stick if tensor.place is not None else len(tensor.shape) - 1
        if d == stick and (tensor.place is not None or tensor.role is Role.OUTPUT):
            eps = tensor.format(self.graph.mode).elements_per_stick
            if k % eps:
                raise _Conflict
        cuts.add(k)
        self.log.append((cuts, k))
        self.todo += self.walks.get(dim, [])

    def cut_label(self, op: Op, label: str, k: int) -> None:
        key = (id(op), label)
        if known(op.labels[label]) == k:
            return
        cuts = self.labels.setdefault(key, set())
        if k in cuts:
            return
        if key in self.rigid or quotient(op.labels[label], k) is None or not _chain(cuts, k):
            raise _Conflict
        cuts.add(k)
        self.log.append((cuts, k))
        self.todo += self.moves[key]

    # --- what it leads to

    def apply(self) -> None:
        for op in self.graph.ops:
            for label in list(op.labels):
                cuts = self.labels.get((id(op), label))
                if cuts:
                    sizes = _parts(op.labels[label], cuts)
                    names = [fresh("i") for _ in sizes]
                    units = [*sorted(cuts, reverse=True), 1]
                    index = affine(zip(names, units, strict=True))
                    replace_label(op, label, dict(zip(names, sizes, strict=True)), index)
        split = {n: [self.dims.get((n, d)) or set() for d in range(len(t.shape))]
                 for n, t in self.tensors.items()}  # fmt: skip
        for op in self.graph.ops:
            map_accesses(op, lambda a: _spread(a, split[id(a.tensor)]))
        for number, tensor in self.tensors.items():
            if any(split[number]):
                _split_tensor(self.graph, tensor, split[number])


def _rigid(op: Op) -> set[str]:
    """The labels that must stay whole."""
    rigid = set() if op.label is None else {op.label}
    if op.combine in (Combine.ARGMAX, Combine.ARGMIN):
        rigid |= set(op.reduced)
    if op.kind is OpKind.MATMUL:
        left, right = (a.labels for a in op.inputs)
        rigid |= set(op.labels) - (left & right) | set(op.reduced)
    return rigid


def _digits(op: Op, index: Affine) -> list[tuple[str, int, Size, int]]:
    """The terms, largest coefficient first: label, coefficient, size, and the digit of the offset
    that belongs to it. Raises _Conflict for what has none."""
    rest = known(index.offset)
    terms: list[tuple[str, int, Size]] = []
    for label, c in index.terms:
        step = known(c)
        if step is None or step < 1:
            raise _Conflict
        terms.append((label, step, op.labels[label]))
    if rest is None:
        raise _Conflict
    found = []
    for label, step, size in sorted(terms, key=lambda t: -t[1]):
        found.append((label, step, size, rest // step))
        rest %= step
    if any(known(size) is None for _, _, size, _ in found[1:]):
        raise _Conflict
    return found


def _chain(cuts: Iterable[int], k: int) -> bool:
    """Whether k and all cuts divide one another."""
    return all(max(k, other) % min(k, other) == 0 for other in cuts)


def _parts(size: Size, cuts: Iterable[int]) -> list[Size]:
    """The sizes of the parts of a dim, major first."""
    out: list[Size] = []
    for k in sorted(cuts, reverse=True):
        outer = quotient(size, k)
        assert outer is not None
        out.append(outer)
        size = k
    return [*out, size]


def _spread(access: Access, split: list[set[int]]) -> Access:
    """The access with one index for every part of a dim."""
    index: list[IndexOf] = []
    for i, cuts in zip(access.index, split, strict=True):
        if not cuts or not isinstance(i, Affine):
            index.append(i)
            continue
        upper: int | None = None
        offset = known(i.offset)
        assert offset is not None
        for unit in (*sorted(cuts, reverse=True), 1):
            terms: list[tuple[str, Size]] = []
            for label, c in i.terms:
                step = known(c)
                assert step is not None
                if step >= unit and (upper is None or step < upper):
                    terms.append((label, step // unit))
            rest = offset if upper is None else offset % upper
            index.append(affine(terms, rest // unit))
            upper = unit
    return Access(access.tensor, tuple(index))


def _split_tensor(graph: Graph, tensor: Tensor, split: list[set[int]]) -> None:
    eps = tensor.format(graph.mode).elements_per_stick
    shape: list[Size] = []
    strides: list[Size] = []
    groups: list[tuple[int, ...]] = []
    stick = -1
    for d, (size, cuts) in enumerate(zip(tensor.shape, split, strict=True)):
        parts = _parts(size, cuts) if cuts else [size]
        groups.append(tuple(range(len(shape), len(shape) + len(parts))))
        shape += parts
        if tensor.place is None:
            continue
        stride, on_stick = tensor.place.strides[d], d == tensor.place.stick
        for unit in (*sorted(cuts, reverse=True), 1):
            if on_stick and unit > 1:
                strides.append(times(unit // eps, stride))
            else:
                strides.append(times(unit, stride))
        if on_stick:
            stick = len(strides) - 1
    if tensor.role is Role.OUTPUT and tensor.place is None:
        tensor.groups = tuple(groups)
    tensor.shape = tuple(shape)
    if tensor.place is not None:
        tensor.place = Place(tuple(strides), stick)
    if tensor.data is not None:
        tensor.data = tensor.data.reshape([known(s) or 0 for s in shape])
