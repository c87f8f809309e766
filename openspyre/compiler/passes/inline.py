"""Maps written into the bodies of the ops that read them.

`inline_maps` takes the ops of a Graph and gives ops that compute the same: a MAP whose result one
MAP or REDUCE reads (or several, when it is next to nothing) becomes part of their bodies. The value
that the tensor between them would have held is kept by a rounding point: `round` for 16-bit and fp8
floats, wrapping for narrow integers, truth as 1 and 0. Changes no op in place. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from openspyre.compiler.graph import Access, Affine, Graph, Op, OpKind, Role, Tensor
from openspyre.compiler.sizes import Size, known, plus, same, times
from openspyre.formats import Format, Mode
from openspyre.program.model import Body, Node
from openspyre.program.ops import BODY_OP, Combine, register_of
from openspyre.timing.costs import FUNCTIONS

MOST_INPUTS = 8
MOST_NODES = 4096
CHEAP = 2
"""Operations of a body that may be computed again for each user; none of them a function."""

_BITS = {Format.SENINT8: 24, Format.SENINT16: 16}


class Bodies:
    """A body in the making; the same operation on the same registers is noted once."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._known: dict[tuple[object, ...], int] = {}

    def add(
        self,
        op: str,
        type_: str,
        args: Sequence[int] = (),
        immediate: int | float | str | None = None,
    ) -> int:
        """The number of an operation."""
        key = (op, type_, tuple(args), repr(immediate))
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = len(self.nodes)
            self.nodes.append(Node(op, type_, tuple(args), immediate))
        return number

    def letter(self, number: int) -> str:
        """The register type of an operation's result."""
        node = self.nodes[number]
        return BODY_OP[node.op].result_of(node.type, node.immediate)

    def copy(self, body: Body, inputs: Mapping[int, int], indices: Mapping[str, int]) -> list[int]:
        """The operations of `body`; `inputs` and `indices` give the registers of its input and
        index leaves. Gives the new number of each."""
        out: list[int] = []
        for node in body.nodes:
            if node.op == "input":
                assert isinstance(node.immediate, int)
                out.append(inputs[node.immediate])
            elif node.op == "index" and str(node.immediate) in indices:
                out.append(indices[str(node.immediate)])
            else:
                args = [out[a] for a in node.args]
                out.append(self.add(node.op, node.type, args, node.immediate))
        return out

    def stored(self, number: int, format: Format) -> int:
        """The register that a tile of `format` gives back when it has held this one."""
        letter, register = self.letter(number), register_of(format)
        assert register is not None
        if letter == "b":
            return self.add("cast", "b", (number,), register.value)
        if letter == "f":
            if format is Format.IEEE_FP32:
                return number
            return self.add("round", "f", (number,), format.name)
        if format is Format.SENUINT8:
            return self.add("and", "i", (number, self.add("const", "i", (), 255)))
        if format in _BITS:
            count = self.add("const", "i", (), _BITS[format])
            return self.add("shr", "i", (self.add("shl", "i", (number, count)), count))
        return number


def cost(body: Body) -> int:
    """Operations at a point that are not leaves; a function counts for four."""
    leaves = {"input", "const", "scalar", "index"}
    return sum(4 if n.op in FUNCTIONS else n.op not in leaves for n in body.nodes)


def renamed(op: Op, names: Mapping[str, str]) -> Op:
    """The op with other names for its labels (those of `names`)."""
    if all(names.get(label, label) == label for label in op.labels):
        return op

    def access(a: Access) -> Access:
        index = tuple(
            replace(i, terms=tuple((names.get(n, n), c) for n, c in i.terms))
            if isinstance(i, Affine)
            else i
            for i in a.index
        )
        return Access(a.tensor, index)

    body = op.body
    if body is not None and any(n.op == "index" for n in body.nodes):
        nodes = tuple(
            replace(n, immediate=names.get(str(n.immediate), n.immediate)) if n.op == "index" else n
            for n in body.nodes
        )
        body = Body(nodes, body.results)
    return replace(
        op,
        labels={names.get(n, n): size for n, size in op.labels.items()},
        inputs=[access(a) for a in op.inputs],
        outputs=[access(a) for a in op.outputs],
        body=body,
        reduced=tuple(names.get(n, n) for n in op.reduced),
        label=None if op.label is None else names.get(op.label, op.label),
    )


@dataclass
class _Maker:
    """A MAP that may be inlined: which of its results a tensor is, its place in the order."""

    op: Op
    number: int
    position: int


def inline_maps(graph: Graph) -> list[Op]:
    """The ops of the graph after inlining, without those that nothing needs any more."""
    graph.ops = direct(live(graph.ops))
    users: dict[int, int] = {}
    writes: dict[int, list[int]] = {}
    for position, op in enumerate(graph.ops):
        for read in {id(a.tensor.memory) for a in op.inputs}:
            users[read] = users.get(read, 0) + 1
        for access in op.outputs:
            writes.setdefault(id(access.tensor.memory), []).append(position)
    aliased = {
        id(a.tensor.memory)
        for op in graph.ops
        for a in (*op.inputs, *op.outputs)
        if a.tensor.alias is not None
    }
    # Sums that one op reads stay in LX if that is a map on the product's tile; others are stored.
    products = {
        id(op.outputs[0].tensor): position
        for position, op in enumerate(graph.ops)
        if op.kind is OpKind.MATMUL and users.get(id(op.outputs[0].tensor.memory)) == 1
    }
    makers: dict[int, _Maker] = {}
    out: list[Op] = []
    for position, op in enumerate(graph.ops):
        if op.kind in (OpKind.MAP, OpKind.REDUCE) and not _indirect(op):
            op = _filled(op, position, makers, users, writes, products, graph.mode)
        out.append(op)
        if op.kind is OpKind.MAP and not _indirect(op):
            for number, access in enumerate(op.outputs):
                tensor = access.tensor
                once = id(tensor) not in aliased and len(writes.get(id(tensor), ())) == 1
                if tensor.role is Role.TEMP and once:
                    makers[id(tensor)] = _Maker(op, number, position)
    return live(out)


def direct(ops: Sequence[Op]) -> list[Op]:
    """The ops with SORT, TOPK and SCAN writing where a plain copy of their result would go."""
    out = list(ops)
    touched: dict[int, list[int]] = {}
    for position, op in enumerate(ops):
        for memory in {id(a.tensor.memory) for a in (*op.inputs, *op.outputs)}:
            touched.setdefault(memory, []).append(position)
    gone: set[int] = set()
    for position, op in enumerate(ops):
        if op.kind is not OpKind.MAP or len(op.inputs) != 1 or len(op.outputs) != 1:
            continue
        source, target = op.inputs[0], op.outputs[0]
        makers = touched[id(source.tensor.memory)]
        if len(makers) != 2 or makers[1] != position or source.tensor.role is not Role.TEMP:
            continue
        first = makers[0]
        made = _redirected(out[first], op, source, target)
        between = [at for at in touched[id(target.tensor.memory)] if first <= at < position]
        if made is not None and not between:
            out[first] = made
            gone.add(position)
    return [op for position, op in enumerate(out) if position not in gone]


def _redirected(maker: Op, copy: Op, source: Access, target: Access) -> Op | None:
    """`maker` with the target of a copy in place of the copied tensor; None where it is none."""
    assert copy.body is not None
    plain = len(copy.body.nodes) == 1 and copy.body.nodes[0].op == "input"
    if maker.kind not in (OpKind.SORT, OpKind.TOPK, OpKind.SCAN) or not plain:
        return None
    if source.tensor.dtype != target.tensor.dtype or source.tensor.alias is not None:
        return None
    own = next((a for a in maker.outputs if a.tensor is source.tensor), None)
    if own is None or target.indirect or source.indirect:
        return None
    names: dict[str, str] = {}
    for mine, theirs in zip(own.index, source.index, strict=True):
        assert isinstance(mine, Affine) and isinstance(theirs, Affine)
        if theirs.offset != 0 or mine.offset != 0 or bool(mine.terms) != bool(theirs.terms):
            return None
        if mine.terms:
            if mine.single is None or theirs.single is None or theirs.single in names:
                return None
            names[theirs.single] = mine.single
    if set(names) != set(copy.labels):
        return None
    sizes = dict(maker.labels)
    if maker.kind is OpKind.TOPK and maker.label is not None:
        sizes[maker.label] = maker.limit
    if any(not same(copy.labels[n], sizes[m]) for n, m in names.items()):
        return None
    index = tuple(
        replace(i, terms=tuple((names[n], c) for n, c in i.terms)) if isinstance(i, Affine) else i
        for i in target.index
    )
    outputs = [Access(target.tensor, index) if a is own else a for a in maker.outputs]
    return replace(maker, outputs=outputs)


def _indirect(op: Op) -> bool:
    return any(a.indirect for a in (*op.inputs, *op.outputs))


def _filled(
    op: Op,
    position: int,
    makers: Mapping[int, _Maker],
    users: Mapping[int, int],
    writes: Mapping[int, list[int]],
    products: Mapping[int, int],
    mode: Mode,
) -> Op:
    """The op with all in its body that belongs there."""
    refused: set[tuple[int, tuple[object, ...]]] = set()
    while True:
        made = None
        # Of maps that follow a matrix product only those of the last one: the others are the
        # epilogues of theirs.
        last = max((_product(a.tensor, makers, products) for a in op.inputs), default=-1)
        for access in op.inputs:
            key = (id(access.tensor), access.index)
            maker = makers.get(id(access.tensor))
            if maker is None or key in refused:
                continue
            product = _product(access.tensor, makers, products)
            if product >= 0 and (product < last or not _epilogue(op, access, maker, users)):
                refused.add(key)
                continue
            if _worth(op, maker, users) and _still(maker, position, op, writes):
                made = _inlined(op, access, maker, mode)
            if made is not None:
                break
            refused.add(key)
        if made is None:
            return op
        op = made


def _product(tensor: Tensor, makers: Mapping[int, _Maker], products: Mapping[int, int]) -> int:
    """The position of the MATMUL whose sums the maker of a tensor reads, or that makes it; -1."""
    if id(tensor) in products:
        return products[id(tensor)]
    maker = makers.get(id(tensor))
    if maker is None:
        return -1
    return max((products.get(id(a.tensor), -1) for a in maker.op.inputs), default=-1)


def _epilogue(op: Op, access: Access, maker: _Maker, users: Mapping[int, int]) -> bool:
    return (
        op.kind is OpKind.MAP
        and users[id(access.tensor)] == 1
        and len(op.labels) == len(maker.op.labels)
    )


def _worth(op: Op, maker: _Maker, users: Mapping[int, int]) -> bool:
    tensor = maker.op.outputs[maker.number].tensor
    body = maker.op.body
    assert body is not None
    price = cost(body)
    cheap = price <= CHEAP
    if len(op.labels) > len(maker.op.labels) and not cheap:
        return False  # it would be computed for every element of a row
    wide = [a for a in maker.op.inputs if len(a.labels) == len(maker.op.labels)]
    return users[id(tensor)] == 1 or (cheap and len(wide) <= 1)


def _still(maker: _Maker, position: int, op: Op, writes: Mapping[int, list[int]]) -> bool:
    """Whether what the map reads is at `position` what it was."""
    for access in maker.op.inputs:
        memory = access.tensor.memory
        if any(maker.position <= at < position for at in writes.get(id(memory), ())):
            return False
        if any(a.tensor.memory is memory for a in op.outputs):
            return False
    return True


def _inlined(op: Op, access: Access, maker: _Maker, mode: Mode) -> Op | None:
    """`op` with the map in place of its input `access`; None where no tile would express it."""
    source = maker.op
    assert op.body is not None and source.body is not None
    where: dict[str, Affine] = {}
    seen: set[str] = set()
    for own, index in zip(source.outputs[maker.number].index, access.index, strict=True):
        assert isinstance(own, Affine) and isinstance(index, Affine)
        if own.offset != 0 or (own.terms and own.single is None):
            return None
        if seen & set(index.labels):
            return None
        seen |= set(index.labels)
        if own.single is not None:
            where[own.single] = index
    if set(where) != set(source.labels):
        return None
    asked = {str(n.immediate) for n in source.body.nodes if n.op == "index"}
    if any(known(where[label].offset) is None for label in asked):
        return None  # a body has no symbols for sizes
    inputs = [a for a in op.inputs if a != access]
    moved: list[Access] = []
    for a in source.inputs:
        made = _through(a, where, mode)
        if made is None:
            return None
        moved.append(made)
    if ordered(op) and not _same_order(op, access, moved):
        return None
    for a in moved:
        if a not in inputs:
            inputs.append(a)
    if len(inputs) > MOST_INPUTS:
        return None
    bodies = Bodies()
    leaves: list[int] = []
    for number, a in enumerate(inputs):
        register = register_of(a.tensor.format(mode))
        assert register is not None
        leaves.append(bodies.add("input", register.value, (), number))
    indices = {label: _index(bodies, index) for label, index in where.items()}
    given = {n: leaves[inputs.index(a)] for n, a in enumerate(moved)}
    numbers = bodies.copy(source.body, given, indices)
    result = numbers[source.body.results[maker.number]]
    value = bodies.stored(result, access.tensor.format(mode))
    mine = {n: value if a == access else leaves[inputs.index(a)] for n, a in enumerate(op.inputs)}
    numbers = bodies.copy(op.body, mine, {})
    if len(bodies.nodes) > MOST_NODES:
        return None
    body = pruned(bodies.nodes, [numbers[r] for r in op.body.results])
    return replace(op, inputs=inputs, body=body, name=_names(source.name, op.name))


def ordered(op: Op) -> bool:
    """Whether the bits of the op depend on the order in which it takes the elements."""
    return op.kind is OpKind.REDUCE and op.combine in (Combine.SUM, Combine.PROD, Combine.WELFORD)


def on_stick(access: Access) -> str | None:
    """The label on the stick of an access, None where there is none or no place yet."""
    place = access.tensor.place
    if place is None or place.stick < 0:
        return None
    index = access.index[place.stick]
    return index.single if isinstance(index, Affine) else None


def _same_order(op: Op, access: Access, moved: Sequence[Access]) -> bool:
    """Whether a reduction takes the elements in the same order from what a map reads as from the
    tensor that it made: the label on the stick decides."""
    if access.tensor.place is None:
        return True
    others = {on_stick(a) for a in op.inputs if a != access}
    before = (others | {on_stick(access)}) - {None}
    return (others | {on_stick(a) for a in moved}) - {None} == before


def _names(first: str, second: str) -> str:
    """The operations an op comes from; the later ones name it."""
    return second or first


def _through(access: Access, where: Mapping[str, Affine], mode: Mode) -> Access | None:
    """An access with its labels replaced by indices; None where no tile would express it."""
    index: list[Affine] = []
    used: set[str] = set()
    place = access.tensor.place
    for dim, old in enumerate(access.index):
        assert isinstance(old, Affine)
        offset = old.offset
        terms: dict[str, Size] = {}
        for label, c in old.terms:
            new = where[label]
            offset = plus(offset, times(c, new.offset))
            for name, by in new.terms:
                terms[name] = plus(terms.get(name, 0), times(c, by))
        made = Affine(tuple(terms.items()), offset)
        if terms and made.single is None:
            return None
        if used & set(terms):
            return None
        used |= set(terms)
        if place is not None and dim == place.stick:
            start = known(offset)
            if start is None or start % access.tensor.format(mode).elements_per_stick:
                return None
        index.append(made)
    return Access(access.tensor, tuple(index))


def _index(bodies: Bodies, index: Affine) -> int:
    """The register of an index: offset + label."""
    offset = known(index.offset)
    number = bodies.add("const", "l", (), offset or 0)
    if index.terms:
        label = bodies.add("index", "l", (), index.terms[0][0])
        return label if offset == 0 else bodies.add("add", "l", (label, number))
    return number


def pruned(nodes: Sequence[Node], results: Sequence[int]) -> Body:
    """The body of these results, without operations that they do not need."""
    needed = [False] * len(nodes)
    for result in results:
        needed[result] = True
    for number in range(len(nodes) - 1, -1, -1):
        if needed[number]:
            for arg in nodes[number].args:
                needed[arg] = True
    renumbered: dict[int, int] = {}
    kept: list[Node] = []
    for number, node in enumerate(nodes):
        if needed[number]:
            renumbered[number] = len(kept)
            kept.append(replace(node, args=tuple(renumbered[a] for a in node.args)))
    return Body(tuple(kept), tuple(renumbered[r] for r in results))


def without_unused(op: Op) -> Op:
    """A MAP or REDUCE without inputs that its body does not read."""
    if op.body is None or op.kind not in (OpKind.MAP, OpKind.REDUCE) or _indirect(op):
        return op
    read = {n.immediate for n in op.body.nodes if n.op == "input"}
    if len(read) == len(op.inputs):
        return op
    kept = [n for n in range(len(op.inputs)) if n in read]
    nodes = tuple(
        replace(n, immediate=kept.index(int(str(n.immediate)))) if n.op == "input" else n
        for n in op.body.nodes
    )
    return replace(op, inputs=[op.inputs[n] for n in kept], body=Body(nodes, op.body.results))


def live(ops: Sequence[Op]) -> list[Op]:
    """The ops whose results are needed; of a MAP only the results that are."""
    needed: set[int] = set()
    out: list[Op] = []
    for op in reversed(ops):
        wanted = [
            n
            for n, a in enumerate(op.outputs)
            if a.tensor.role is not Role.TEMP or id(a.tensor.memory) in needed
        ]
        if not wanted:
            continue
        if op.kind is OpKind.MAP and len(wanted) < len(op.outputs):
            assert op.body is not None
            body = pruned(op.body.nodes, [op.body.results[n] for n in wanted])
            op = replace(op, outputs=[op.outputs[n] for n in wanted], body=body)
        op = without_unused(op)
        needed |= {id(a.tensor.memory) for a in op.inputs}
        if op.kind is OpKind.SCATTER:
            needed |= {id(a.tensor.memory) for a in op.outputs}
        out.append(op)
    return out[::-1]
