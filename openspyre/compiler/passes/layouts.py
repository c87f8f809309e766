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
- SCAN, SORT, TOPK, SCATTER: what has another stick label than the output; all of a target that is
  written by index along its stick.

The search goes op by op with a beam over the sticks of the temps that are still to be read: exact
where the beam never overflows, so on trees and all small graphs. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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
    found = _search(graph)
    for tensor in graph.tensors:
        if tensor.place is None and id(tensor) in found:
            _put(graph, tensor, found[id(tensor)])
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
        accesses = (*op.inputs, *op.outputs)
        self.labels = {id(a): a.labels for a in accesses}
        # The label on each dim, if that is on the stick.
        self.on = {
            id(a): [_label(a, d) for d in range(len(a.index))] + [None] for a in accesses
        }  # fmt: skip
        self.numels = {id(a): self.numel(a) for a in (*op.inputs, *op.outputs)}
        self.indices = {
            i.input for a in (*op.inputs, *op.outputs) for i in a.index if isinstance(i, Indirect)
        }

    def numel(self, access: Access) -> int:
        """Elements of the tensor that the access touches."""
        labels = set(self.labels[id(access)])
        for i in access.index:
            if isinstance(i, Indirect):
                labels |= self.labels[id(self.op.inputs[i.input])]
        total = 1
        for label in labels:
            total *= self.sizes[label]
        return total

    def turned(self, sticks: Mapping[int, int]) -> int:
        """Elements that are turned."""
        op = self.op
        at = {
            id(a): self.on[id(a)][sticks[id(a.tensor)]] for a in (*op.inputs, *op.outputs)
        }  # fmt: skip
        if op.kind is OpKind.COPY:
            return 0
        if op.kind is OpKind.MATMUL:
            return self.product(at)
        out = op.outputs[0]
        wanted = at[id(out)]
        if op.kind is OpKind.REDUCE:
            return self.reduction(at, sticks)
        total = 0
        if self.spread(out, sticks):  # all of it goes through LX, not the rows that change
            total += self.graph.hint(product(out.tensor.shape))
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

    def lacks(self, access: Access, label: str | None) -> bool:
        return label is None or label not in self.labels[id(access)]

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
        left_, right_ = self.labels[id(a)], self.labels[id(b)]
        rows = [n for n in op.labels if n in left_ and n not in right_]
        cols = [n for n in op.labels if n in right_ and n not in left_]
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
            if not isinstance(index, Affine) or (index.single is not None and index.offset == 0):
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


@dataclass
class _State:
    """A partial choice: its cost, the sticks of the tensors that are still used, and the choices
    that led to it, the last one first."""

    cost: float
    live: dict[int, int]
    trail: tuple[Any, dict[int, int]] | None


def _search(graph: Graph) -> dict[int, int]:
    """The stick of every tensor that has no place yet and is written."""
    given = {id(t): t.place.stick for t in graph.tensors if t.place is not None}
    last: dict[int, int] = {}
    for position, op in enumerate(graph.ops):
        for access in (*op.inputs, *op.outputs):
            last[id(access.tensor)] = position
    states = [_State(0.0, {}, None)]
    for position, op in enumerate(graph.ops):
        costs = _Costs(graph, op)
        mine = {id(a.tensor) for a in (*op.inputs, *op.outputs)}
        prices: dict[tuple[int, ...], float] = {}
        choices: dict[frozenset[int], list[tuple[dict[int, int], float]]] = {}
        fresh = [n for n in mine if n not in given]
        new: dict[frozenset[tuple[int, int]], _State] = {}
        for state in states:
            known_ = frozenset(n for n in fresh if n in state.live)
            if known_ not in choices:
                choices[known_] = list(_choices(graph, op, given, state.live))
            for more, waste in choices[known_]:
                now = state.live | more
                at = tuple(now[n] for n in fresh)
                if at not in prices:
                    sticks = {n: now[n] if n in now else given[n] for n in mine}
                    prices[at] = costs.turned(sticks) + costs.fixed(sticks)
                price = state.cost + waste + prices[at]
                live = {n: s for n, s in now.items() if last[n] > position}
                key = frozenset(live.items())
                if key not in new or price < new[key].cost:
                    trail = (state.trail, more) if more else state.trail
                    new[key] = _State(price, live, trail)
        states = sorted(new.values(), key=lambda s: s.cost)[:BEAM]
    found: dict[int, int] = {}
    trail = states[0].trail
    while trail is not None:
        found |= trail[1]
        trail = trail[0]
    return found


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
