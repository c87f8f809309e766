"""Graph to kernels: which ops become one program phase, in a valid order.

First maps are written into the bodies of their readers (`inline.py`). Then the ops are taken in
order, and each joins the last group that it may: ops of a "rows" group share loops and hand on
values in LX, a "matmul" group is a product and the maps on its tile, whatever goes by index, is
sorted or copied is alone. An op joins only when all that it depends on is in the group or before
it, when its labels are those of the group, and when the group still fits LX and keeps its cores
busy. What a group writes it reads in no other way, so that no tile is loaded after its store.

Input: places of all tensors chosen. The ops of the graph are replaced by those of the kernels, with
labels numbered by kernel. Imports no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from openspyre.compiler.errors import CompileError
from openspyre.compiler.graph import Access, Affine, Graph, Op, OpKind, Role, Tensor
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.passes.inline import inline_maps, live, on_stick, ordered, renamed
from openspyre.compiler.schedule import rows_plan, rows_split
from openspyre.compiler.schedule.common import cores_for
from openspyre.compiler.sizes import Size, known, same
from openspyre.compiler.tiles import Kernel, outside, users_of

_ROWS = (OpKind.MAP, OpKind.REDUCE, OpKind.SCAN)
_FEW_OPS = 4
"""With more ops, or a row of more elements than _SHORT_ROW, a group is planned before it grows."""
_SHORT_ROW = 4096
_MOST_OPS = 32
_MOST_LABELS = 8
_WORTH_CORES = 1 << 17
"""Bytes from which on it is asked whether a group gives up cores that would be busy."""

_CARD_RATE, _CORE_RATE, _KERNEL_NS = 150.0, 40.0, 2000.0
"""Bytes a nanosecond of LPDDR5 and of a core (openspyre.timing), and what one more kernel
costs at least (an estimate)."""


@dataclass(eq=False)
class Group:
    """A kernel in the making. `index`: how it first addresses each tensor; `made`: what it
    writes; `at`: the positions of its ops in the graph."""

    kind: str
    number: int
    ops: list[Op] = field(default_factory=list)
    at: set[int] = field(default_factory=set)
    index: dict[int, Access] = field(default_factory=dict)
    made: dict[int, Tensor] = field(default_factory=dict)
    sizes: dict[str, Size] = field(default_factory=dict)
    open: bool = True

    def add(self, op: Op, position: int) -> None:
        self.ops.append(op)
        self.at.add(position)
        self.sizes |= op.labels
        for access in (*op.inputs, *op.outputs):
            self.index.setdefault(id(access.tensor), access)
        self.made |= {id(a.tensor): a.tensor for a in op.outputs}


@dataclass(eq=False)
class _Work:
    """What is known of the graph while it is fused: its ops, and by tensor who reads it."""

    graph: Graph
    options: CompileOptions
    ops: list[Op]
    readers: dict[int, list[int]]

    def given(self, ops: list[Op], at: set[int]) -> set[int]:
        """The ids of the tensors that a kernel of these ops has as arguments."""
        made = {id(a.tensor) for op in ops for a in op.outputs}
        found = set()
        for tensor in _tensors(ops):
            key = id(tensor)
            outside = key not in made or tensor.role is not Role.TEMP
            readers = self.readers.get(id(tensor.memory), ())
            if outside or any(r not in at for r in readers):
                found.add(key)
        return found


def fuse(graph: Graph, options: CompileOptions) -> list[Kernel]:
    """The kernels of a graph, in order. With `options.fuse` False one for each op."""
    ops = inline_maps(graph) if options.fuse else live(graph.ops)
    graph.ops = ops
    readers: dict[int, list[int]] = {}
    for position, op in enumerate(ops):
        for memory in {id(a.tensor.memory) for a in op.inputs}:
            readers.setdefault(memory, []).append(position)
    work = _Work(graph, options, ops, readers)
    groups: list[Group] = []
    home: list[Group] = []  # of each op
    deps = _dependencies(ops)
    for position, op in enumerate(ops):
        group = None
        if options.fuse and op.kind in _ROWS and not _indirect(op):
            least = max((home[d].number for d in deps[position]), default=0)
            for candidate in _candidates(groups, op, least):
                joined = _join(candidate, op, position, work)
                if joined is not None:
                    group, op = candidate, joined
                    break
        if group is None:
            group = Group(_kind(op), len(groups))
            group.open = op.kind in (*_ROWS, OpKind.MATMUL) and not _indirect(op)
            groups.append(group)
        group.add(op, position)
        home.append(group)
    kernels = [Kernel(group.kind, _numbered(group.ops)) for group in groups]
    graph.ops = [op for kernel in kernels for op in kernel.ops]
    users = users_of(graph.ops)
    for kernel in kernels:
        kernel.arguments, kernel.written = outside(kernel.ops, users)
    return kernels


def _indirect(op: Op) -> bool:
    return any(a.indirect for a in (*op.inputs, *op.outputs))


def _kind(op: Op) -> str:
    if op.kind is OpKind.COPY:
        return "copy"
    if op.kind is OpKind.MATMUL:
        return "matmul"
    return "indexed" if op.kind is OpKind.SCATTER or _indirect(op) else "rows"


def _dependencies(ops: list[Op]) -> list[list[int]]:
    """For each op the ops that must come before it: makers of what it reads, readers and writers
    of what it writes."""
    writers: dict[int, list[int]] = {}
    readers: dict[int, list[int]] = {}
    out: list[list[int]] = []
    for position, op in enumerate(ops):
        before: list[int] = []
        for access in op.inputs:
            before += writers.get(id(access.tensor.memory), [])
        for access in op.outputs:
            before += writers.get(id(access.tensor.memory), []) + readers.get(
                id(access.tensor.memory), []
            )
        for access in op.inputs:
            readers.setdefault(id(access.tensor.memory), []).append(position)
        for access in op.outputs:
            writers.setdefault(id(access.tensor.memory), []).append(position)
        out.append(sorted(set(before)))
    return out


def _candidates(groups: list[Group], op: Op, least: int) -> list[Group]:
    """The groups that an op might join: not before what it depends on, and such that handle one of
    its tensors; the latest first."""
    tensors = {id(a.tensor) for a in op.inputs}
    found = [g for g in groups[least:] if g.open and tensors & set(g.index)]
    return found[::-1][:4]


def _join(group: Group, op: Op, position: int, work: _Work) -> Op | None:
    """The op with the group's labels if it may join, else None."""
    if len(group.ops) >= _MOST_OPS or not _unwritten(group, op):
        return None
    if group.kind == "matmul" and op.kind is not OpKind.MAP:
        return None
    names = _unified(group, op)
    if names is None:
        return None
    op = renamed(op, names)
    if not _one_way(group, op):
        return None
    if group.kind == "matmul":
        return op if _on_tile(group, op, work) else None
    if ordered(op) and not _same_lanes(group, op):
        return None
    return op if _worth(group, op, position, work) else None


def _same_lanes(group: Group, op: Op) -> bool:
    """Whether a reduction takes the elements of a tensor made in the group in the order in which it
    would take them from LPDDR5: results of a reduction along the stick lie one a stick in LX."""
    reduced = {id(a.tensor) for o in group.ops if o.kind is OpKind.REDUCE for a in o.outputs}
    return not any(id(a.tensor) in reduced and on_stick(a) in op.reduced for a in op.inputs)


def _unwritten(group: Group, op: Op) -> bool:
    """Nothing that the op writes may be written in the group already."""
    made = {id(tensor.memory) for tensor in group.made.values()}
    return not any(id(a.tensor.memory) in made for a in op.outputs)


def _one_way(group: Group, op: Op) -> bool:
    """What is written in the group, now or then, is addressed in one way only: an element is loaded
    and stored in the same turn."""
    made = {id(tensor.memory): tensor for tensor in group.made.values()}
    for access in op.inputs:
        written = made.get(id(access.tensor.memory))
        if written is None:
            continue
        if written is not access.tensor or group.index[id(written)].index != access.index:
            return False
    for access in op.outputs:
        memory = access.tensor.memory
        for other in (*group.ops, op):
            for a in (*other.inputs, *other.outputs):
                if a.tensor.memory is memory and (
                    a.tensor is not access.tensor
                    or a.index != access.index
                    or set(other.labels) != set(op.labels)
                ):
                    return False
    return True


def _unified(group: Group, op: Op) -> dict[str, str] | None:
    """Names of the group for the op's labels, by the tensors that both address; None where a tensor
    made in the group is addressed in another way."""
    names: dict[str, str] = {}
    taken: dict[str, str] = {}
    ordered = sorted(op.inputs, key=lambda a: id(a.tensor) not in group.made)
    for access in ordered:
        theirs = group.index.get(id(access.tensor))
        if theirs is None:
            continue
        made = id(access.tensor) in group.made
        found: dict[str, str] = {}
        fits = True
        for mine, other in zip(access.index, theirs.index, strict=True):
            assert isinstance(mine, Affine)
            if not isinstance(other, Affine) or not same(mine.offset, other.offset):
                fits = False
            elif not mine.terms and not other.terms:
                continue
            elif mine.single is None or other.single is None:
                fits = False
            else:
                label, name = mine.single, other.single
                fits &= (
                    names.get(label, name) == name
                    and found.get(label, name) == name
                    and taken.get(name, label) == label
                    and same(op.labels[label], group.sizes[name])
                )
                found[label] = name
        if fits and len(set(found.values())) == len(found):
            names |= found
            taken |= {name: label for label, name in found.items()}
        elif made:
            return None
    for label in op.labels:
        # A label of its own must not bear a name of the group.
        names.setdefault(label, label)
    if len(set(names.values())) < len(names):
        return None
    if any(names[n] == n and n in group.sizes and taken.get(n) != n for n in op.labels):
        return None
    return names


def _on_tile(group: Group, op: Op, work: _Work) -> bool:
    """Whether a map is one on the tile of the group's product: it reads the sums or what follows
    them, over their labels, and nothing else reads the sums."""
    product = group.ops[0]
    sums = product.outputs[0].tensor
    if set(op.labels) != set(product.outputs[0].labels):
        return False
    if len(work.readers.get(id(sums), ())) != 1 or sums.role is not Role.TEMP:
        return False
    return any(id(a.tensor) in group.made for a in op.inputs)


def _worth(group: Group, op: Op, position: int, work: _Work) -> bool:
    """Whether the group with the op can be scheduled, and without giving up cores that would be
    busy."""
    graph, ops, at = work.graph, [*group.ops, op], group.at | {position}
    given = work.given(ops, at)
    outer = set(rows_plan.outer_labels(ops, given))
    sizes = group.sizes | op.labels
    inner = [label for label in sizes if label not in outer]
    if len(sizes) > _MOST_LABELS or any(known(sizes[label]) is None for label in inner):
        return False
    if _bytes(ops, given, graph) > _WORTH_CORES:
        alone = _time([op], work.given([op], {position}), work)
        before = _time(group.ops, work.given(group.ops, group.at), work)
        if _time(ops, given, work) > alone + before + _KERNEL_NS:
            return False
    row = math.prod(graph.hint(sizes[label]) for label in inner)
    turned = {on_stick(a) for o in ops for a in (*o.inputs, *o.outputs) if id(a.tensor) in given}
    if len(ops) <= _FEW_OPS and row <= _SHORT_ROW and len(turned - {None}) < 2:
        return True
    kernel = Kernel("rows", ops, [t for t in _tensors(ops) if id(t) in given])
    try:
        rows_plan.make(kernel, graph, work.options)
    except CompileError:
        return False
    return True


def _tensors(ops: list[Op]) -> list[Tensor]:
    return list(dict.fromkeys(a.tensor for op in ops for a in (*op.inputs, *op.outputs)))


def _bytes(ops: list[Op], given: set[int], graph: Graph) -> int:
    """Bytes of arguments that the ops move, whole sticks not counted."""
    total = 0
    for tensor in _tensors(ops):
        if id(tensor) in given:
            total += graph.hint(tensor.numel) * tensor.format(graph.mode).bytes
    return total


def _time(ops: list[Op], given: set[int], work: _Work) -> float:
    """About how many nanoseconds the ops take as one kernel: what it moves, on the cores that it
    can use."""
    nbytes = _bytes(ops, given, work.graph)
    return nbytes / min(_CARD_RATE, _CORE_RATE * _cores(ops, nbytes, given, work))


def _cores(ops: list[Op], nbytes: int, given: set[int], work: _Work) -> int:
    """About how many cores the ops would use as one kernel."""
    graph = work.graph
    outer = rows_plan.outer_labels(ops, given)
    points = math.prod(graph.hint(size) for size in _sizes(ops, outer).values())
    lane = 1
    for op in ops:
        for access in (*op.inputs, *op.outputs):
            place = access.tensor.place
            if (
                place is None
                or place.stick < 0
                or access.indirect
                or id(access.tensor) not in given
            ):
                continue
            index = access.index[place.stick]
            if isinstance(index, Affine) and index.single in outer:
                lane = max(lane, access.tensor.format(graph.mode).elements_per_stick)
    cores = min(max(1, points // lane), cores_for(nbytes, work.options))
    if cores < work.options.most_cores // 2:
        kernel = Kernel("rows", ops, [t for t in _tensors(ops) if id(t) in given])
        if rows_split.wanted(kernel, graph):
            return work.options.most_cores
    return cores


def _sizes(ops: list[Op], labels: list[str]) -> dict[str, Size]:
    every = {label: size for op in ops for label, size in op.labels.items()}
    return {label: every[label] for label in labels}


def _numbered(ops: list[Op]) -> list[Op]:
    """The ops with labels l0, l1, .. in order of appearance: a program's names do not depend on
    what was compiled before."""
    names: dict[str, str] = {}
    for op in ops:
        for label in op.labels:
            names.setdefault(label, f"l{len(names)}")
    # In one step: `renamed` looks every old name up once.
    return [renamed(op, names) for op in ops]
