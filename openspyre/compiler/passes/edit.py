"""What the passes change graphs with: labels of ops, indices, bodies, names.

Input: ops of a Graph. Output: the same ops, changed in place so that they compute the same; helpers
that make something new return it. Invariant kept by all: every label of an access or a body is one
of its op's. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from openspyre.compiler.graph import Access, Affine, Graph, IndexOf, Indirect, Op, OpKind, Tensor
from openspyre.compiler.sizes import Size, known, plus, times
from openspyre.formats import Format
from openspyre.program.body import Reg, Trace
from openspyre.program.model import Body, Node
from openspyre.program.ops import BODY_OP

# --- indices


def affine(terms: Iterable[tuple[str, Size]], offset: Size = 0) -> Affine:
    """An index with equal labels put together and those of coefficient 0 left out."""
    found: dict[str, Size] = {}
    for label, c in terms:
        found[label] = plus(found[label], c) if label in found else c
    return Affine(tuple((n, c) for n, c in found.items() if known(c) != 0), offset)


def label_index(label: str, offset: Size = 0) -> Affine:
    """The index `label + offset`."""
    return Affine(((label, 1),), offset)


def substituted(index: Affine, by: Mapping[str, Affine]) -> Affine:
    """`index` with labels replaced by what is affine in others."""
    terms: list[tuple[str, Size]] = []
    offset = index.offset
    for label, c in index.terms:
        new = by.get(label)
        if new is None:
            terms.append((label, c))
            continue
        terms += [(n, times(c, k)) for n, k in new.terms]
        offset = plus(offset, times(c, new.offset))
    return affine(terms, offset)


def index_map(access: Access, function: Callable[[Affine], IndexOf]) -> Access:
    """The access with its affine indices changed."""
    return Access(
        access.tensor,
        tuple(function(i) if isinstance(i, Affine) else i for i in access.index),
    )


def map_accesses(op: Op, function: Callable[[Access], Access]) -> None:
    """Changes all accesses of an op."""
    op.inputs = [function(a) for a in op.inputs]
    op.outputs = [function(a) for a in op.outputs]


def replace_label(op: Op, label: str, sizes: Mapping[str, Size], by: Affine) -> None:
    """Label `label` becomes the labels of `sizes` (none: a number), in its place in the box and
    among the reduced ones; `by` is what it was in terms of them."""
    labels: dict[str, Size] = {}
    for name, size in op.labels.items():
        if name == label:
            labels |= sizes
        else:
            labels[name] = size
    op.labels = labels
    change = {label: by}
    map_accesses(op, lambda a: index_map(a, lambda i: substituted(i, change)))
    op.reduced = tuple(n for old in op.reduced for n in ((*sizes,) if old == label else (old,)))
    if op.label == label:
        (op.label,) = sizes
    if op.body is not None:
        op.body = reindexed(op.body, change)


# --- bodies


def rewritten(body: Body, change: Callable[[Trace, Node], Reg | None]) -> Body:
    """The body, equal nodes noted once and useless ones left out. `change` may give a register
    instead of a node that has no operands."""
    used = set(body.results)
    for number in range(len(body.nodes) - 1, -1, -1):
        if number in used:
            used |= set(body.nodes[number].args)
    trace = Trace()
    regs: dict[int, Reg] = {}
    for number, node in enumerate(body.nodes):
        if number not in used:
            continue
        made = change(trace, node) if not node.args else None
        if made is None:
            args = [regs[a] for a in node.args]
            made = trace.note(node.op, node.type, args, node.immediate)
        regs[number] = made
    return Body(tuple(trace.nodes), tuple(regs[r].number for r in body.results))


def pruned(body: Body) -> Body:
    """The body without what is needless."""
    used = set(body.results)
    for number in range(len(body.nodes) - 1, -1, -1):
        if number in used:
            used |= set(body.nodes[number].args)
    if len(used) == len(body.nodes):
        return body
    return rewritten(body, lambda trace, node: None)


def reindexed(body: Body, by: Mapping[str, Affine]) -> Body:
    """The body with `index` of a label replaced by what the label is now."""
    if not any(n.op == "index" and n.immediate in by for n in body.nodes):
        return body

    def change(trace: Trace, node: Node) -> Reg | None:
        if node.op != "index" or node.immediate not in by:
            return None
        new = by[str(node.immediate)]
        total: Reg | None = None
        for label, c in new.terms:
            part = trace.note("index", "l", (), label)
            if known(c) != 1:
                part = part * _number(c)
            total = part if total is None else total + part
        offset = _number(new.offset)
        if total is None:
            return trace.note("const", "l", (), offset)
        return total + offset if offset else total

    return rewritten(body, change)


def _number(size: Size) -> int:
    found = known(size)
    if found is None:
        raise ValueError(f"a body holds the number {size}, which is given at launch")
    return found


def renumbered(body: Body, inputs: Mapping[int, int]) -> Body:
    """The body with its input numbers changed."""

    def change(trace: Trace, node: Node) -> Reg | None:
        if node.op != "input":
            return None
        return trace.note("input", node.type, (), inputs[int(str(node.immediate))])

    return rewritten(body, change)


def is_identity(body: Body | None) -> bool:
    """Whether a body gives its input 0 as it is."""
    if body is None or len(body.results) != 1:
        return False
    node = body.nodes[body.results[0]]
    return node.op == "input" and node.immediate == 0


def result_type(body: Body, number: int = 0) -> str:
    """The register type of a result."""
    node = body.nodes[body.results[number]]
    immediate = node.immediate
    return BODY_OP[node.op].result_of(node.type, getattr(immediate, "value", immediate))


def identity_body(format: Format) -> Body:
    """The body of a copy of a tensor of this format."""
    from openspyre.program.body import identity, trace

    return trace(identity, [format])


# --- ops


def used_inputs(op: Op) -> set[int]:
    """The inputs that an op's body or accesses need."""
    if op.body is None:
        return set(range(len(op.inputs)))
    used = {int(str(n.immediate)) for n in op.body.nodes if n.op == "input"}
    for access in op.outputs:
        used |= {i.input for i in access.index if isinstance(i, Indirect)}
    more = set(used)
    while more:
        indirect = {
            i.input for n in more for i in op.inputs[n].index if isinstance(i, Indirect)
        }  # fmt: skip
        more = indirect - used
        used |= more
    return used


def drop_inputs(op: Op) -> None:
    """Leaves out the inputs that nothing needs."""
    if op.kind not in (OpKind.MAP, OpKind.REDUCE, OpKind.SCATTER) or op.body is None:
        return
    body = op.body = pruned(op.body)
    used = used_inputs(op)
    if op.kind is OpKind.SCATTER:
        used.add(0)
    if len(used) == len(op.inputs):
        return
    new = {old: number for number, old in enumerate(sorted(used))}

    def moved(access: Access) -> Access:
        return Access(
            access.tensor,
            tuple(
                Indirect(new[i.input], i.limit) if isinstance(i, Indirect) else i
                for i in access.index
            ),
        )

    op.inputs = [op.inputs[n] for n in sorted(used)]
    map_accesses(op, moved)
    op.body = renumbered(body, new)


def full_dims(access: Access, labels: Mapping[str, Size]) -> list[str] | None:
    """The labels of the dims in order, when every dim is walked whole by a label of its own (or has
    size 1); else None. A dim of size 1 has the label ""."""
    from openspyre.compiler.sizes import same

    names: list[str] = []
    for index, size in zip(access.index, access.tensor.shape, strict=True):
        if isinstance(index, Indirect) or known(index.offset) != 0:
            return None
        if not index.terms and known(size) == 1:
            names.append("")
            continue
        label = index.single
        if label is None or label in names or not same(labels[label], size):
            return None
        names.append(label)
    return names


class Names:
    """Names for new tensors and labels of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.taken = {t.name for t in graph.tensors} | set(graph.symbols)
        self.taken |= {label for op in graph.ops for label in op.labels}
        self.next: dict[str, int] = {}

    def new(self, prefix: str) -> str:
        """`prefix` and the first number that is free."""
        while True:
            number = self.next.get(prefix, 0)
            self.next[prefix] = number + 1
            name = f"{prefix}{number}"
            if name not in self.taken:
                self.taken.add(name)
                return name


def rename(graph: Graph) -> None:
    """Temps, constants and aliases become t0, t1, .. in the order of the ops that use them, labels
    i0, i1, .. in the order of the ops; names of arguments stay. The text of a graph is then the
    same in every process. Unused temps and constants go."""
    kept = {t.name for t in graph.arguments} | set(graph.symbols)
    used: dict[int, Tensor] = {}
    for op in graph.ops:
        for access in (*op.inputs, *op.outputs):
            for tensor in (access.tensor.memory, access.tensor):
                used.setdefault(id(tensor), tensor)
    arguments = graph.arguments
    for tensor in arguments:
        used.pop(id(tensor), None)
    graph.tensors = [*arguments, *used.values()]
    number = 0
    for tensor in graph.tensors[len(arguments) :]:
        while f"t{number}" in kept:
            number += 1
        tensor.name = f"t{number}"
        number += 1
    number = 0
    for op in graph.ops:
        names: dict[str, str] = {}
        for label in op.labels:
            while f"i{number}" in kept:
                number += 1
            names[label] = f"i{number}"
            number += 1
        relabel(op, names)


def relabel(op: Op, names: Mapping[str, str]) -> None:
    """Other names for an op's labels; terms of an index stand in the order of the box."""
    order = {names[label]: n for n, label in enumerate(op.labels)}
    op.labels = {names[label]: size for label, size in op.labels.items()}

    def moved(index: Affine) -> Affine:
        terms = [(names[n], c) for n, c in index.terms]
        return Affine(tuple(sorted(terms, key=lambda t: order[t[0]])), index.offset)

    map_accesses(op, lambda a: index_map(a, moved))
    op.reduced = tuple(names[n] for n in op.reduced)
    op.label = None if op.label is None else names[op.label]
    if op.body is not None:
        op.body = reindexed(op.body, {old: label_index(new) for old, new in names.items()})


def by_labels(op: Op) -> Sequence[Access]:
    """All accesses of an op, inputs first."""
    return (*op.inputs, *op.outputs)
