"""Pass 3: which dim of every temp and output lies on the stick.

Input: a graph after `factor`; arguments have places, but for OUTPUTs that may have any. Output: the
same graph where every tensor has a Place, chosen so that the fewest elements have to change their
stick on the way (a *restickify*: the SFU turns a tile in LX); of two equal choices the one with the
last dim on the stick. MATMULs come out with `inputs[1]` and the output sharing the label on the
stick. An OUTPUT that came without a place has `host` afterwards.

What an op costs, in elements that are turned (docs/program.md section 3):
- MAP: every input that has another label on its stick than the output; one that lacks the output's
  stick label must have one element a stick (it is broadcast along the stick then).
- MATMUL: a that has not k on the stick, b that has not n; the output if it is neither m nor n.
- REDUCE over the stick's label gives one element a stick; over others it keeps the stick.
- SCAN, SORT, TOPK, SCATTER: what has another stick label than the output.

The search goes op by op with a beam over the sticks of the temps that are still to be read: exact
where the beam never overflows, so on trees and all small graphs. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from openspyre.compiler.graph import (
    Access,
    Affine,
    Graph,
    Indirect,
    Op,
    OpKind,
    Place,
    Role,
    Tensor,
)
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.passes.places import default_place, packed, padded
from openspyre.compiler.sizes import known, product, times
from openspyre.formats import STICK_BYTES

BEAM = 24
"""Partial choices that are kept."""

SPARSE = -1


def layouts(graph: Graph, options: CompileOptions) -> None:
    """Runs the pass in place."""
    for tensor in graph.tensors:
        if tensor.place is None and tensor.role in (Role.INPUT, Role.INOUT, Role.CONST):
            tensor.place = default_place(tensor, graph.mode)
    for number, stick in _search(graph).items():
        tensor = next(t for t in graph.tensors if id(t) == number)
        _put(graph, tensor, stick)
    for tensor in graph.tensors:
        if tensor.place is None:  # nothing writes it
            _put(graph, tensor, len(tensor.shape) - 1)
    for op in graph.ops:
        if op.kind is OpKind.MATMUL:
            _order_product(op)


def restickified(graph: Graph) -> int:
    """Elements that are turned on the way, in a graph whose tensors all have places."""
    sticks = {id(t): t.place.stick for t in graph.tensors if t.place is not None}
    return sum(_Costs(graph, op).turned(sticks) for op in graph.ops)


# --- places


def _put(graph: Graph, tensor: Tensor, stick: int) -> None:
    eps = tensor.format(graph.mode).elements_per_stick
    if tensor.role is not Role.OUTPUT:
        tensor.place = packed(tensor.shape, stick, eps)
        return
    groups = tensor.groups or tuple((d,) for d in range(len(tensor.shape)))
    declared = tuple(product(tensor.shape[d] for d in group) for group in groups)
    at = next((n for n, group in enumerate(groups) if stick in group), SPARSE)
    place = packed(declared, at, eps)
    strides = [place.strides[0] if place.strides else STICK_BYTES] * len(tensor.shape)
    for n, group in enumerate(groups):
        step = place.strides[n]
        for d in reversed(group):
            strides[d] = step
            if d == stick:
                # Of a stick dim in parts only the last lies on it; they are whole sticks.
                step = times(step, max(1, (known(tensor.shape[d]) or eps) // eps))
            else:
                step = times(step, tensor.shape[d])
    tensor.host = (declared, place)
    tensor.place = Place(tuple(strides), stick)
    tensor.groups = None


def _candidates(graph: Graph, tensor: Tensor) -> list[int]:
    """The dims that may lie on the stick, the best of equals first."""
    dims = [d for d in reversed(range(len(tensor.shape))) if known(tensor.shape[d]) != 1]
    if tensor.groups is not None:
        eps = tensor.format(graph.mode).elements_per_stick
        dims = [d for d in dims if _whole(tensor, d, eps)]
    # The schedulers tile a size that is given at launch, but never along the stick.
    dims = [d for d in dims if known(tensor.shape[d]) is not None] or dims
    if tensor.role is Role.OUTPUT:
        return dims or [len(tensor.shape) - 1]
    return [*dims, SPARSE]


def _whole(tensor: Tensor, dim: int, eps: int) -> bool:
    """Whether dim `dim` of an output in parts may lie on the stick of what was declared."""
    assert tensor.groups is not None
    group = next(g for g in tensor.groups if dim in g)
    if len(group) == 1:
        return True
    size = known(tensor.shape[dim])
    return dim == group[-1] and size is not None and size % eps == 0


def _order_product(op: Op) -> None:
    """Swaps the inputs of a product whose output has a row label on the stick."""
    out = op.outputs[0]
    label = _label(out, out.tensor.place.stick if out.tensor.place else SPARSE)
    left, right = op.inputs
    if label in left.labels and label not in right.labels:
        op.inputs = [right, left]


# --- costs


def _label(access: Access, stick: int) -> str | None:
    """The label on the stick: that of the smallest step, if any."""
    if stick < 0:
        return None
    index = access.index[stick]
    if isinstance(index, Indirect) or not index.terms:
        return None
    return min(index.terms, key=lambda t: abs(known(t[1]) or 1 << 62))[0]


class _Costs:
    """What one op costs under given sticks (tensor id -> dim)."""

    def __init__(self, graph: Graph, op: Op) -> None:
        self.graph, self.op = graph, op
        self.sizes = {label: graph.hint(size) for label, size in op.labels.items()}
        self.numels = {id(a): self.numel(a) for a in (*op.inputs, *op.outputs)}
        self.indices = {
            i.input for a in (*op.inputs, *op.outputs) for i in a.index if isinstance(i, Indirect)
        }

    def numel(self, access: Access) -> int:
        """Elements of the tensor that the access touches."""
        labels = set(access.labels)
        for i in access.index:
            if isinstance(i, Indirect):
                labels |= self.op.inputs[i.input].labels
        total = 1
        for label in labels:
            total *= self.sizes[label]
        return total

    def turned(self, sticks: Mapping[int, int]) -> int:
        """Elements that are turned."""
        op = self.op
        at = {id(a): _label(a, sticks[id(a.tensor)]) for a in (*op.inputs, *op.outputs)}
        if op.kind is OpKind.COPY:
            return 0
        if op.kind is OpKind.MATMUL:
            return self.product(at)
        out = op.outputs[0]
        wanted = at[id(out)]
        if op.kind is OpKind.REDUCE:
            return self.reduction(at, sticks)
        total = 0
        for access in op.outputs[1:]:
            if at[id(access)] != wanted:
                total += self.numels[id(access)]
        for number, access in enumerate(op.inputs):
            if number in self.indices or at[id(access)] == wanted:
                if not self.spread(access, sticks):
                    continue
            elif self.lacks(access, wanted) and sticks[id(access.tensor)] < 0:
                continue  # one element a stick, broadcast along it
            total += self.numels[id(access)]
        return total

    def spread(self, access: Access, sticks: Mapping[int, int]) -> bool:
        """Whether the stick of an access is walked by an index from outside."""
        stick = sticks[id(access.tensor)]
        return stick >= 0 and isinstance(access.index[stick], Indirect)

    @staticmethod
    def lacks(access: Access, label: str | None) -> bool:
        return label is None or label not in access.labels

    def reduction(self, at: Mapping[int, str | None], sticks: Mapping[int, int]) -> int:
        op = self.op
        lanes = [at[id(a)] for a in op.inputs]
        main = max(op.inputs, key=lambda a: self.numels[id(a)])
        lane = at[id(main)]
        total = sum(
            self.numels[id(a)]
            for a, label in zip(op.inputs, lanes, strict=True)
            if label != lane and not (self.lacks(a, lane) and sticks[id(a.tensor)] < 0)
        )
        natural = None if lane in op.reduced else lane
        return total + sum(self.numels[id(a)] for a in op.outputs if at[id(a)] != natural)

    def product(self, at: Mapping[int, str | None]) -> int:
        op = self.op
        (k,) = op.reduced
        a, b = op.inputs
        out = op.outputs[0]
        label = at[id(out)]
        rows = [n for n in op.labels if n in a.labels and n not in b.labels]
        cols = [n for n in op.labels if n in b.labels and n not in a.labels]
        turned = self.numels[id(out)]
        best: int | None = None
        for left, right, names in ((a, b, cols), (b, a, rows)):
            if not names:
                continue
            cost = 0 if at[id(left)] == k else self.numels[id(left)]
            cost += 0 if at[id(right)] in names else self.numels[id(right)]
            if label not in names:
                cost += turned
            elif at[id(right)] in names and at[id(right)] != label:
                cost += self.numels[id(right)]
            best = cost if best is None else min(best, cost)
            if label in names:
                return cost  # the only way the scheduler goes
        return 0 if best is None else best

    def fixed(self, sticks: Mapping[int, int]) -> float:
        """What an index on the stick costs that no tile expresses: `legalize` moves the elements
        first."""
        total = 0.0
        for access in (*self.op.inputs, *self.op.outputs):
            stick = sticks[id(access.tensor)]
            if stick < 0:
                continue
            index = access.index[stick]
            if not isinstance(index, Affine):
                continue
            eps = access.tensor.format(self.graph.mode).elements_per_stick
            offset = known(index.offset)
            aligned = offset is not None and offset % eps == 0
            steps = sorted(known(c) or 0 for _, c in index.terms)
            if aligned and (not steps or steps == [1]):
                continue
            whole = bool(steps) and steps[0] == 1 and all(c > 0 and c % eps == 0 for c in steps[1:])
            if not (aligned and whole):
                total += self.numels[id(access)] * (2 if len(steps) < 2 else 4)
        return total


# --- the search


def _search(graph: Graph) -> dict[int, int]:
    """The stick of every tensor that has no place yet and is written."""
    given = {id(t): t.place.stick for t in graph.tensors if t.place is not None}
    last: dict[int, int] = {}
    for position, op in enumerate(graph.ops):
        for access in (*op.inputs, *op.outputs):
            last[id(access.tensor)] = position
    # Tensor -> stick of what was chosen on the way, and the cost so far.
    states: list[tuple[float, dict[int, int]]] = [(0.0, {})]
    for position, op in enumerate(graph.ops):
        costs = _Costs(graph, op)
        new: dict[tuple[tuple[int, int], ...], tuple[float, dict[int, int]]] = {}
        for cost, chosen in states:
            for more, waste in _choices(graph, op, given, chosen):
                now = chosen | more
                sticks = given | now
                price = cost + waste + costs.turned(sticks) + costs.fixed(sticks)
                key = tuple(sorted((n, s) for n, s in now.items() if last[n] > position))
                if key not in new or price < new[key][0]:
                    new[key] = (price, now)
        states = sorted(new.values(), key=lambda s: s[0])[:BEAM]
    return states[0][1]


def _choices(
    graph: Graph, op: Op, given: Mapping[int, int], chosen: Mapping[int, int]
) -> Iterable[tuple[dict[int, int], float]]:
    """The sticks of the outputs that have none yet (all of one label where they have it), with
    what their padding costs."""
    open_: list[Access] = []
    for access in op.outputs:
        number = id(access.tensor)
        if number not in given and number not in chosen:
            open_.append(access)
    if not open_:
        yield {}, 0.0
        return
    seen = set()
    for dim in _candidates(graph, open_[0].tensor):
        label = _label(open_[0], dim)
        more: dict[int, int] = {}
        waste = 0.0
        for access in open_:
            tensor = access.tensor
            found = _candidates(graph, tensor)
            stick = next((d for d in found if _label(access, d) == label), found[0])
            if access is open_[0]:
                stick = dim
            more[id(tensor)] = stick
            eps = tensor.format(graph.mode).elements_per_stick
            room = graph.hint(padded(tensor.shape, stick, eps))
            waste += (room - graph.hint(tensor.numel)) / 64
        key = tuple(more.items())
        if key not in seen:
            seen.add(key)
            yield more, waste
