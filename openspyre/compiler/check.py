"""What must hold of every Graph, between any two passes: `check(graph)`.

Changes nothing. Raises CompileError with the op (or tensor) and the rule. `legal(graph)` holds the
rules of a graph that goes to the schedulers: contract rule 1, places, limits of docs/program.md.
Imports no torch.
"""

from __future__ import annotations

import itertools

import numpy as np

from openspyre.compiler.build import EXACT
from openspyre.compiler.errors import CompileError
from openspyre.compiler.graph import Access, Affine, Graph, Indirect, Op, OpKind, Role, Tensor
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.sizes import Size, known, same
from openspyre.formats import STICK_BYTES
from openspyre.program.model import Body
from openspyre.program.ops import BODY_OP, Combine, register_of
from openspyre.reference.combine import parts

MAX_LABELS = 8
"""Labels an instruction may have, and so an op."""
MAX_DIMS = 6
"""Dims an operand may have, and so a tensor that a scheduler gets."""


def check(graph: Graph, options: CompileOptions | None = None) -> None:
    """Raises CompileError unless the graph keeps the rules."""
    names = [t.name for t in graph.tensors]
    if len(set(names)) != len(names):
        again = next(n for n in names if names.count(n) > 1)
        raise CompileError(f"{graph.name}: two tensors are named {again}")
    known_tensors = {id(t) for t in graph.tensors}
    for tensor in graph.tensors:
        _check_tensor(graph, tensor)
    for op in graph.ops:
        for access in (*op.inputs, *op.outputs):
            if id(access.tensor) not in known_tensors:
                raise CompileError(f"{op}: {access.tensor} is not in the graph")
            _check_access(graph, op, access)
        _check_op(graph, op)
    _check_written(graph)


def _check_tensor(graph: Graph, tensor: Tensor) -> None:
    if register_of(tensor.format(graph.mode)) is None:
        raise CompileError(f"{tensor}: no unit computes {tensor.dtype}")
    for size in tensor.shape:
        number = known(size)
        if number is not None and number < 0:
            raise CompileError(f"{tensor}: a size below 0")
    if tensor.role is Role.CONST and (
        tensor.data is None or tuple(tensor.data.shape) != tensor.shape
    ):
        raise CompileError(f"{tensor}: a constant without values of its shape")
    place = tensor.place
    if place is not None:
        if len(place.strides) != len(tensor.shape) or not -1 <= place.stick < len(tensor.shape):
            raise CompileError(f"{tensor}: its place is one of {len(place.strides)} dims")
        for stride in place.strides:
            number = known(stride)
            if number is not None and (number % STICK_BYTES or number < 0):
                raise CompileError(f"{tensor}: a stride of {stride} bytes")
    if tensor.alias is not None:
        if tensor.alias.of.alias is not None:
            raise CompileError(f"{tensor}: an alias of an alias")
        if len(tensor.alias.index) != len(tensor.alias.of.shape):
            raise CompileError(f"{tensor}: {len(tensor.alias.index)} indices")


def _check_access(graph: Graph, op: Op, access: Access) -> None:
    if len(access.index) != len(access.tensor.shape):
        raise CompileError(f"{op}: {access} has {len(access.index)} indices")
    for index, size in zip(access.index, access.tensor.shape, strict=True):
        if isinstance(index, Indirect):
            if not 0 <= index.input < len(op.inputs):
                raise CompileError(f"{op}: {access} is indexed by input {index.input}")
            by = op.inputs[index.input]
            if by.tensor.dtype not in ("int32", "int64"):
                raise CompileError(f"{op}: {access} is indexed by {by.tensor}")
            limit, whole = known(index.limit), known(size)
            if limit is not None and whole is not None and limit > whole:
                raise CompileError(f"{op}: {access}: limit {limit} of a dim of {whole}")
            continue
        if len(set(index.labels)) != len(index.labels):
            raise CompileError(f"{op}: {access}: a label twice in one index")
        low, high = known(index.offset), known(index.offset)
        for label, c in index.terms:
            if label not in op.labels:
                raise CompileError(f"{op}: {access}: no label {label}")
            step, count = known(c), known(_extent(op, access, label))
            if low is None or high is None or step is None or count is None:
                low = high = None
                continue
            low += min(step * (count - 1), 0)
            high += max(step * (count - 1), 0)
        whole = known(size)
        empty = any(known(s) == 0 for s in op.labels.values())
        if low is None or high is None or whole is None or empty:
            continue
        if low < 0 or high >= whole:
            raise CompileError(
                f"{op}: {access}: index {index} runs {low}..{high} in a dim of {whole}"
            )


def _extent(op: Op, access: Access, label: str) -> Size:
    """How far a label runs in an access: the outputs of a topk are shorter."""
    if op.kind is OpKind.TOPK and label == op.label and access in op.outputs:
        return op.limit
    return op.labels[label]


def _check_op(graph: Graph, op: Op) -> None:
    def refuse(rule: str) -> CompileError:
        return CompileError(f"{op}: {rule}")

    if any(label not in op.labels for label in op.reduced):
        raise refuse("reduces a label that it does not have")
    if op.label is not None and op.label not in op.labels:
        raise refuse(f"no label {op.label}")
    if op.body is not None:
        _check_body(graph, op, op.body)
    elif op.kind in (OpKind.MAP, OpKind.REDUCE, OpKind.SCATTER):
        raise refuse("needs a body")
    moved = [a.labels for a in op.outputs]
    wanted = {n for n, s in op.labels.items() if known(s) != 1 and n not in op.reduced}
    if op.kind is not OpKind.SCATTER:
        if any(a.indirect for a in op.outputs):
            raise refuse("only a scatter writes by index")
        for labels in moved:
            if not wanted <= labels:
                raise refuse(f"label {min(wanted - labels)} does not move an output")
            if labels & set(op.reduced):
                raise refuse("a reduced label moves an output")
    elif not any(a.indirect for a in op.outputs) or len(op.outputs) != 1:
        raise refuse("a scatter has one output, by index")
    results = _results(op)
    if results is not None and len(op.outputs) != results:
        raise refuse(f"{len(op.outputs)} outputs, and must have {results}")
    if op.kind in (OpKind.REDUCE, OpKind.SCAN) and op.combine is None:
        raise refuse("needs a combine")
    if op.kind in (OpKind.REDUCE, OpKind.MATMUL):
        exact = {*EXACT.values()}
        for access in op.outputs:
            if access.tensor.dtype not in exact:
                raise refuse(f"gives {access.tensor.dtype}, which is not exact")
        if not op.reduced:
            raise refuse("reduces nothing")
    if op.kind in (OpKind.SORT, OpKind.TOPK, OpKind.SCAN) and op.label is None:
        raise refuse("needs a label")
    if op.combine in (Combine.ARGMAX, Combine.ARGMIN) and len(op.reduced) != 1:
        raise refuse("reduces exactly one label")
    if op.kind is OpKind.MATMUL:
        if len(op.inputs) != 2 or len(op.reduced) != 1:
            raise refuse("a product has two inputs and one reduced label")
        left, right = (a.labels for a in op.inputs)
        if op.reduced[0] not in left & right:
            raise refuse("both inputs have the reduced label")
        if not set(op.labels) - {op.reduced[0]} <= left | right:
            raise refuse("every label is one of an input")
    if op.kind is OpKind.COPY and op.inputs[0].tensor.dtype != op.outputs[0].tensor.dtype:
        raise refuse("a copy changes no dtype")


def _results(op: Op) -> int | None:
    """How many outputs it has."""
    if op.kind is OpKind.MAP:
        return len(op.body.results) if op.body is not None else None
    if op.kind is OpKind.REDUCE:
        return parts(op.combine) if op.combine is not None else None
    return 2 if op.kind in (OpKind.SORT, OpKind.TOPK) else 1


def _check_body(graph: Graph, op: Op, body: Body) -> None:
    types: list[str] = []
    for number, node in enumerate(body.nodes):
        rule = BODY_OP.get(node.op)
        where = f"{op}: node {number} ({node.op}.{node.type})"
        if rule is None or node.type not in rule.types:
            raise CompileError(f"{where}: no such operation")
        wanted = [node.type if letter == "T" else letter for letter in rule.operands]
        if any(a >= number for a in node.args) or [types[a] for a in node.args] != wanted:
            raise CompileError(f"{where}: its operands must be {wanted}")
        if node.op == "input":
            at = int(str(node.immediate))
            if not 0 <= at < len(op.inputs):
                raise CompileError(f"{where}: the op has {len(op.inputs)} inputs")
            register = register_of(op.inputs[at].tensor.format(graph.mode))
            if register is None or register.value != node.type:
                raise CompileError(f"{where}: {op.inputs[at].tensor} is not of type {node.type}")
        if node.op == "index" and node.immediate not in op.labels:
            raise CompileError(f"{where}: the op has no label {node.immediate}")
        if node.op == "scalar" and str(node.immediate) not in graph.symbols:
            raise CompileError(f"{where}: the graph has no symbol {node.immediate}")
        immediate = getattr(node.immediate, "value", node.immediate)
        types.append(rule.result_of(node.type, immediate))
    if op.kind is not OpKind.MAP:
        return
    for result, access in zip(body.results, op.outputs, strict=False):
        register = register_of(access.tensor.format(graph.mode))
        if types[result] != "b" and (register is None or (register.value == "f") != (
            types[result] == "f"
        )):  # fmt: skip
            raise CompileError(f"{op}: result {types[result]} in {access.tensor}")


def _check_written(graph: Graph) -> None:
    """Temps are written before they are read, outputs completely, inputs never."""
    covered: dict[int, _Cover] = {}
    for tensor in graph.tensors:
        if tensor.role in (Role.TEMP, Role.OUTPUT) and tensor.alias is None:
            covered[id(tensor)] = _Cover(tensor)
    for op in graph.ops:
        reads = [*op.inputs]
        if op.kind is OpKind.SCATTER:
            reads += op.outputs
        for access in reads:
            cover = covered.get(id(access.tensor.memory))
            if cover is not None and not cover.any:
                raise CompileError(f"{op}: reads {access.tensor.memory.name}, still unwritten")
        for access in op.outputs:
            memory = access.tensor.memory
            if memory.role in (Role.INPUT, Role.CONST):
                raise CompileError(f"{op}: writes {memory}")
            cover = covered.get(id(memory))
            if cover is not None:
                cover.add(op, access)
    for cover in covered.values():
        if cover.tensor.role is Role.OUTPUT and not cover.complete:
            raise CompileError(f"{cover.tensor}: not every element of it is written")


class _Cover:
    """What of a tensor is written. Exact for small tensors and known sizes; else a bound."""

    LIMIT = 1 << 16

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.any = any(known(s) == 0 for s in tensor.shape)
        self.complete = self.any
        self.unsure = False
        self.mask: np.ndarray | None = None

    def add(self, op: Op, access: Access) -> None:
        self.any = True
        if self.complete:
            return
        if access.tensor.alias is not None:
            from openspyre.compiler.interpret import unaliased

            access = unaliased(access)
        whole = not access.indirect
        seen: set[str] = set()
        for index, size in zip(access.index, self.tensor.shape, strict=True):
            if not isinstance(index, Affine):
                continue
            single = index.single
            if single is None and known(size) == 1:
                continue
            if (
                single is None
                or single in seen
                or known(index.offset) != 0
                or not same(_extent(op, access, single), size)
            ):
                whole = False
            else:
                seen.add(single)
        if whole:
            self.complete = True
            return
        sizes = [known(s) for s in (*self.tensor.shape, *op.labels.values())]
        numel = known(self.tensor.numel)
        if access.indirect or numel is None or numel > self.LIMIT or None in sizes:
            self.complete = True  # cannot tell: the interpreter can
            return
        if self.mask is None:
            self.mask = np.zeros([known(s) or 0 for s in self.tensor.shape], np.bool_)
        names = [n for n in op.labels if n in access.labels]
        grid = dict(
            zip(
                names,
                np.ix_(*(np.arange(known(_extent(op, access, n)) or 0) for n in names)),
                strict=True,
            )
        )
        at = []
        for index in access.index:
            assert isinstance(index, Affine)
            total: np.ndarray = np.asarray(known(index.offset) or 0)
            for label, c in index.terms:
                total = total + grid[label] * (known(c) or 0)
            at.append(total)
        self.mask[tuple(at)] = True
        self.complete = bool(self.mask.all())


# --- a graph that schedulers get


def legal(graph: Graph, options: CompileOptions | None = None) -> None:
    """Raises CompileError unless the graph, after all passes, keeps the schedulers' rules."""
    for tensor in graph.tensors:
        if tensor.place is None:
            raise CompileError(f"{tensor}: has no place")
        if len(tensor.shape) > MAX_DIMS:
            raise CompileError(f"{tensor}: more than {MAX_DIMS} dims")
    for op in graph.ops:
        if op.kind is OpKind.COPY:
            continue
        if len(op.labels) > MAX_LABELS:
            raise CompileError(f"{op}: more than {MAX_LABELS} labels")
        for access in itertools.chain(op.inputs, op.outputs):
            rule = illegal(graph, access)
            if rule is not None:
                raise CompileError(f"{op}: {access}: {rule}")


def illegal(graph: Graph, access: Access) -> str | None:
    """What of contract rule 1 an access breaks; None: nothing."""
    place = access.tensor.place
    assert place is not None
    eps = access.tensor.format(graph.mode).elements_per_stick
    seen: set[str] = set()
    for dim, index in enumerate(access.index):
        if isinstance(index, Indirect):
            continue
        if len(index.terms) > 1 or (index.terms and known(index.terms[0][1]) != 1):
            return f"dim {dim} is indexed by {index}"
        if index.terms:
            label = index.terms[0][0]
            if label in seen:
                return f"label {label} moves two dims"
            seen.add(label)
        if dim == place.stick:
            offset = known(index.offset)
            if offset is None or offset % eps:
                return f"offset {index.offset} on the stick, which holds {eps}"
    return None
