"""A matrix-product kernel by its labels: what is row, column, batch and k, and where all that it
touches has its sticks.

`read_form` renames the labels of all ops of the kernel to b0.., m0.., n0.. and k, so that the rest
of the scheduler sees one box. Reads kernels, changes nothing. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from openspyre.compiler.errors import CompileError, Unsupported
from openspyre.compiler.graph import Access, Graph, Op, OpKind, Tensor
from openspyre.compiler.planner.costs import body_cycles
from openspyre.compiler.planner.matmul import Axis, Moved, Part, Product
from openspyre.compiler.schedule.common import index_of
from openspyre.compiler.sizes import Size, known
from openspyre.compiler.tiles import Kernel
from openspyre.formats import Format
from openspyre.program import body as f
from openspyre.program.body import trace
from openspyre.program.model import Body, Node
from openspyre.program.verify_kinds import FP8, MATMUL_FORMATS

Index = tuple[str | None, Size]
"""One dim of a tile: a label of the form (or none) and an offset."""

SYMBOLIC_ROWS = 512
"""Rows of symbolic number are planned for at least so many: b is read once for a tile of rows, and
a plan for the one row of the hint would read it once a row. Few rows lose next to nothing by it."""

MOST_LABELS = 6
"""Labels of the output: a value has at most six dims, and an instruction eight labels."""

_LETTER = {Part.BATCH: "b", Part.ROW: "m", Part.COL: "n", Part.DEPTH: "k"}


@dataclass(frozen=True)
class Box:
    """A tensor as the kernel addresses it: an index for each dim, the dim on the stick or -1."""

    tensor: Tensor
    index: tuple[Index, ...]
    stick: int
    format: Format

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that move it."""
        return tuple(dict.fromkeys(label for label, _ in self.index if label is not None))

    @property
    def stick_label(self) -> str | None:
        return None if self.stick < 0 else self.index[self.stick][0]


@dataclass(frozen=True)
class Step:
    """One MAP on a tile of sums. `inputs` and `outputs` are tensors made in the kernel (by the
    MATMUL or a step before), or boxes of arguments."""

    body: Body
    inputs: tuple[Tensor | Box, ...]
    outputs: tuple[Tensor | Box, ...]


@dataclass
class Form:
    """The kernel. `sizes`, `parts`, `units`: of each label, batch before rows before columns before
    k. `n`: the column label on the stick of b and the sums; `sums`: the MATMUL's tensor."""

    name: str
    sizes: dict[str, Size]
    parts: dict[str, Part]
    units: dict[str, int]
    n: str
    a: Box
    b: Box
    sums: Tensor
    sum_format: Format
    steps: list[Step]
    extras: list[Box]
    outs: list[Box]
    kept: list[Tensor]
    k: str = "k0"
    turned: set[str] = field(default_factory=set)  # "a", "b": the SFU changes what is on the stick

    def of(self, *parts: Part) -> tuple[str, ...]:
        return tuple(label for label, part in self.parts.items() if part in parts)

    @property
    def out_labels(self) -> tuple[str, ...]:
        """The box of the sums."""
        return self.of(Part.BATCH, Part.ROW, Part.COL)


def read_form(kernel: Kernel, graph: Graph) -> Form:
    """The form of a kernel. Raises Unsupported for dtypes that the PT does not multiply and for
    too many dims, CompileError for what fusion or legalization must not leave."""
    product, *maps = kernel.ops
    if product.kind is not OpKind.MATMUL or any(op.kind is not OpKind.MAP for op in maps):
        kinds = ", ".join(op.kind.value for op in kernel.ops)
        raise CompileError(f"kernel {kernel.name}: a matmul kernel is MATMUL, MAP.., not {kinds}")
    formats = [access.tensor.format(graph.mode) for access in product.inputs]
    if formats[0] not in MATMUL_FORMATS or not (
        formats[0] is formats[1] or (formats[0] in FP8 and formats[1] in FP8)
    ):
        raise Unsupported(
            product.name or "matmul",
            " and ".join(str(access.tensor) for access in product.inputs),
            "the PT multiplies two tensors of one floating dtype or of int8, or two of fp8 dtypes",
            "cast one of them",
        )
    form = _Reader(kernel, graph, product).form(maps)
    if len(form.out_labels) > MOST_LABELS:
        raise Unsupported(
            product.name or "matmul",
            f"a product over {len(form.out_labels)} dims that no operand lets merge",
            f"at most {MOST_LABELS}",
            "make an operand contiguous, or reshape it to fewer dims",
        )
    return form


class _Reader:
    def __init__(self, kernel: Kernel, graph: Graph, product: Op) -> None:
        self.kernel, self.graph, self.product = kernel, graph, product
        self.mode = graph.mode
        self.given = {id(tensor) for tensor in kernel.arguments}
        self.made = {id(a.tensor) for op in kernel.ops for a in op.outputs}
        self.sizes: dict[str, Size] = {}
        self.parts: dict[str, Part] = {}
        self.names = self._labels()
        # The label of each dim of the tensors made here, as their maker addresses them.
        self.dims: dict[int, tuple[str | None, ...]] = {}

    def error(self, text: str) -> CompileError:
        return CompileError(f"kernel {self.kernel.name}: {text}")

    def _labels(self) -> dict[str, str]:
        """New names by the product's own."""
        op = self.product
        if len(op.inputs) != 2 or len(op.outputs) != 1 or len(op.reduced) != 1:
            raise self.error(f"a MATMUL has two inputs, one output and one reduced label: {op}")
        a, b, out = op.inputs[0].labels, op.inputs[1].labels, op.outputs[0].labels
        found: dict[str, Part] = {}
        for label in op.labels:
            where = (label in a, label in b, label in out)
            part = {
                (True, True, True): Part.BATCH,
                (True, False, True): Part.ROW,
                (False, True, True): Part.COL,
                (True, True, False): Part.DEPTH,
            }.get(where)
            if part is None or (part is Part.DEPTH) != (label in op.reduced):
                raise self.error(f"label {label} is no batch, row, column or k of {op}")
            found[label] = part
        names: dict[str, str] = {}
        for part in Part:
            mine = [label for label, p in found.items() if p is part]
            for number, label in enumerate(mine):
                names[label] = f"{_LETTER[part]}{number}"
                self.sizes[names[label]] = op.labels[label]
                self.parts[names[label]] = part
            if part is Part.COL and not mine:  # a matrix times a vector: one column
                self.sizes["n0"], self.parts["n0"] = 1, part
        return names

    def index(self, access: Access, names: dict[str, str | None]) -> tuple[Index, ...]:
        out: list[Index] = []
        for dim in range(len(access.index)):
            label, offset = index_of(access, dim)
            out.append((None if label is None else names[label], offset))
        return tuple(out)

    def box(self, access: Access, names: dict[str, str | None]) -> Box:
        place = access.tensor.place
        if place is None:
            raise self.error(f"{access.tensor.name} has no place yet: run the layouts pass first")
        index = self.index(access, names)
        return Box(access.tensor, index, place.stick, access.tensor.format(self.mode))

    # --- the MAPs' labels

    def renamed(self, maps: Sequence[Op]) -> list[dict[str, str | None]]:
        """For each MAP its labels by the form's names (None: a label of size 1 that the product
        has not), found through the tensors that tie the ops together."""
        out = self.product.outputs[0]
        names: dict[str, str | None] = {**self.names}
        self.dims[id(out.tensor)] = tuple(label for label, _ in self.index(out, names))
        found: list[dict[str, str | None]] = [{} for _ in maps]
        left = set(range(len(maps)))
        while left:
            before = len(left)
            for number in sorted(left):
                if self._rename(maps[number], found[number]):
                    left.discard(number)
            if len(left) == before:
                raise self.error(
                    f"no tensor ties the labels of {maps[min(left)]} to those of the product"
                )
        return found

    def _rename(self, op: Op, names: dict[str, str | None]) -> bool:
        for access in (*op.inputs, *op.outputs):
            dims = self.dims.get(id(access.tensor))
            if dims is None:
                continue
            for dim, target in enumerate(dims):
                label, offset = index_of(access, dim)
                whole = target is None or known(self.sizes[target]) == 1
                if known(offset) != 0 or (label is None and not whole):
                    raise self.error(f"{access} is not all of what the kernel made")
                if label is not None and names.setdefault(label, target) != target:
                    raise self.error(f"label {label} of {op} is both {names[label]} and {target}")
        for label, size in op.labels.items():
            if known(size) == 1:
                names.setdefault(label, None)
        if any(label not in names for label in op.labels):
            return False
        for access in (*op.inputs, *op.outputs):
            if id(access.tensor) in self.made and id(access.tensor) not in self.dims:
                labels = (label for label, _ in self.index(access, names))
                self.dims[id(access.tensor)] = tuple(labels)
        return True

    # --- the form

    def form(self, maps: list[Op]) -> Form:
        product = self.product
        names: dict[str, str | None] = {**self.names}
        a, b = (self.box(access, names) for access in product.inputs)
        sums = product.outputs[0].tensor
        renamed = self.renamed(maps)
        steps: list[Step] = []
        extras: list[Box] = []
        outs: list[Box] = []
        kept: list[Tensor] = []
        if id(sums) in self.given:  # stored as they are
            box = self.box(product.outputs[0], names)
            steps.append(Step(trace(f.identity, [box.format]), (sums,), (box,)))
            outs.append(box)
        for op, own in zip(maps, renamed, strict=True):
            inputs: list[Tensor | Box] = []
            for access in op.inputs:
                if self._before(op, access.tensor):
                    inputs.append(access.tensor)
                    continue
                box = self.box(access, own)
                self._check_in_place(box, maps, renamed)
                if box in extras:
                    box = extras[extras.index(box)]
                else:
                    extras.append(box)
                inputs.append(box)
            results: list[Tensor | Box] = []
            for access in op.outputs:
                if id(access.tensor) in self.given:
                    box = self.box(access, own)
                    outs.append(box)
                    results.append(box)
                else:
                    kept.append(access.tensor)
                    results.append(access.tensor)
            assert op.body is not None
            steps.append(Step(_relabelled(op.body, own), tuple(inputs), tuple(results)))
        for source in (a, b):
            if id(source.tensor) in self.made:
                raise self.error(f"{source.tensor.name} is an input of the product and written")
        n = self._column(b, outs)
        sum_format = sums.format(self.mode)
        form = Form(
            self.kernel.name, self.sizes, self.parts, {}, n, a, b, sums, sum_format, steps,
            extras, outs, kept,
        )  # fmt: skip
        if n not in self.names.values() and b.stick >= 0 and b.stick_label is None:
            # One column, which is the one index of the dim on the stick.
            offset = b.index[b.stick][1]
            index = list(b.index)
            index[b.stick] = (n, offset)
            form.b = Box(b.tensor, tuple(index), b.stick, b.format)
        if form.a.stick_label != form.k:
            form.turned.add("a")
        if form.b.stick_label != n:
            form.turned.add("b")
        form.units = self._units(form)
        return form

    def _before(self, op: Op, tensor: Tensor) -> bool:
        """Whether an op before `op` makes the tensor."""
        for other in self.kernel.ops:
            if other is op:
                return False
            if any(access.tensor is tensor for access in other.outputs):
                return True
        return False

    def _check_in_place(
        self, box: Box, maps: Sequence[Op], renamed: Sequence[dict[str, str | None]]
    ) -> None:
        """What is read and later written must be the same element at every point."""
        for op, names in zip(maps, renamed, strict=True):
            for written in op.outputs:
                if written.tensor is box.tensor and self.index(written, names) != box.index:
                    raise self.error(f"{box.tensor.name} is read elsewhere than {written}")

    def _column(self, b: Box, outs: list[Box]) -> str:
        cols = [label for label, part in self.parts.items() if part is Part.COL]
        for box in (b, *outs):
            if box.stick_label in cols:
                assert box.stick_label is not None
                return box.stick_label
        return cols[-1]

    def _units(self, form: Form) -> dict[str, int]:
        """Tiles and shares of a label begin at multiples of the largest stick it lies on."""
        units = dict.fromkeys(form.sizes, 1)
        sticks = [
            (box.stick_label, box.format) for box in (form.a, form.b, *form.extras, *form.outs)
        ]
        sticks += [(form.k, form.a.format), (form.n, form.b.format), (form.n, form.sum_format)]
        sticks += [(form.n, tensor.format(self.mode)) for tensor in form.kept]
        for label, format in sticks:
            if label is not None:
                units[label] = max(units[label], format.elements_per_stick)
        return units


def _relabelled(body: Body, names: dict[str, str | None]) -> Body:
    """The body with the form's labels."""

    def changed(node: Node) -> Node:
        if node.op != "index":
            return node
        label = names[str(node.immediate)]
        return Node("const", "l", (), 0) if label is None else Node("index", "l", (), label)

    return Body(tuple(map(changed, body.nodes)), body.results)


# --- for the planner


def planned_size(graph: Graph, size: Size) -> int:
    """The number that a size is planned for: itself, its hint, or the most it can be."""
    number = known(size)
    if number is not None:
        return number
    hint = graph.hint(size)
    return hint if hint > 0 else graph.maximum(size)


def product_of(form: Form, graph: Graph) -> Product:
    """The form as numbers."""
    axes = []
    for label, size in form.sizes.items():
        number, unit = planned_size(graph, size), form.units[label]
        if known(size) is None:  # whatever it will be, tiles must be whole units
            if form.parts[label] is Part.ROW:
                number = max(number, min(graph.maximum(size), SYMBOLIC_ROWS))
            number = -(-number // unit) * unit
        axes.append(Axis(label, form.parts[label], number, unit))

    def moved(box: Box) -> Moved:
        assert box.tensor.place is not None
        strides: dict[str, int] = {}
        for (label, _), step in zip(box.index, box.tensor.place.strides, strict=True):
            if label is not None:
                strides[label] = strides.get(label, 0) + graph.maximum(step)
        eps = box.format.elements_per_stick
        return Moved(box.labels, box.stick_label, eps, tuple(strides.items()))

    def inside(labels: Sequence[str], stick: str, format: Format) -> Moved:
        return Moved(tuple(labels), stick, format.elements_per_stick)

    a, b = moved(form.a), moved(form.b)
    a_raw, b_raw = (a if "a" in form.turned else None), (b if "b" in form.turned else None)
    if a_raw is not None:
        a = inside(form.a.labels, form.k, form.a.format)
    if b_raw is not None:
        b = inside(turned_labels(form, form.b, form.n), form.n, form.b.format)
    outs = form.out_labels
    return Product(
        tuple(axes),
        a,
        b,
        inside(outs, form.n, form.sum_format),
        tuple(moved(box) for box in form.outs),
        form.a.format,
        a_raw,
        b_raw,
        tuple(moved(box) for box in form.extras),
        tuple(inside(outs, form.n, tensor.format(graph.mode)) for tensor in form.kept),
        sum(body_cycles(step.body) for step in form.steps),
    )


def turned_labels(form: Form, box: Box, stick: str) -> tuple[str, ...]:
    """The dims of an input whose stick the SFU changes: its labels, and that of the new stick."""
    return box.labels if stick in box.labels else (*box.labels, stick)
