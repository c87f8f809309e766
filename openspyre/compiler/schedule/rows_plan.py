"""The plan of a rows kernel: which labels are loops, which are whole in a tile, what lies in LX.

Labels along which every op that has them is parallel are *outer*: split over cores and taken tile
by tile. The others are *inner*: a tile holds them whole, so that a row is loaded once, however many
reductions and maps run over it. Only when that does not fit LX are inner labels *chunked*: the ops
run in passes over the chunks, one for every reduction that something after it waits for, and what a
later pass needs again is loaded and computed again.

Order of accumulation (docs/program.md section 3) is lexicographic in the reduced labels, whatever
the tiles: chunks are (1, .., 1, some, whole, .., whole) in that order. Numbers are decided here, by
closed forms; `rows.py` writes the program. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from openspyre.compiler.errors import CompileError
from openspyre.compiler.graph import Access, Graph, Op, OpKind, Tensor
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.schedule import common
from openspyre.compiler.sizes import Size, known, same
from openspyre.compiler.tiles import Kernel
from openspyre.formats import Format
from openspyre.program.model import Body, Node
from openspyre.program.ops import LANE_ACCUMULATORS, Combine

TILE_BYTES = 128 << 10
"""Bytes of arguments a tile should have: large enough that a task's start does not count."""

LEAST_TILE_BYTES = 8 << 10
"""A share is not cut into tiles smaller than this for the sake of overlap."""

TILES_A_CORE = 4
"""So many tiles let load, compute and store of a core overlap."""


class DoesNotFit(CompileError):
    """No tiles of the kernel fit LX; fewer ops in it might."""


@dataclass(eq=False)
class Box:
    """A place in LX: of an argument's access, of an inner tensor, or of its lane accumulators.
    `dims`: the label of each dim (None: one index); `stick`: the label on the stick."""

    name: str
    shape: tuple[Size, ...]
    dims: tuple[str | None, ...]
    format: Format
    stick: str | None = None
    lanes: bool = False
    access: Access | None = None  # of arguments
    reduced: tuple[Size, ...] = ()

    def bytes(self, tile: Mapping[str, int]) -> int:
        """Bytes of one slot."""
        if self.access is not None:
            assert self.access.tensor.place is not None
            dim = self.access.tensor.place.stick
        else:
            dim = self.dims.index(self.stick) if self.stick is not None else -1
        total = LANE_ACCUMULATORS * self.format.bytes if self.lanes else 128
        eps = self.format.elements_per_stick
        for position, label in enumerate(self.dims):
            size = 1 if label is None else tile[label]
            total *= -(-size // eps) if position == dim else size
        return total

    @property
    def labels(self) -> frozenset[str]:
        return frozenset(label for label in self.dims if label is not None)


Key = tuple[int, tuple[tuple[str | None, str], ...]]


def key_of(access: Access) -> Key:
    """What makes two accesses one tile: the tensor, and the index of every dim."""
    parts = []
    for dim in range(len(access.index)):
        label, offset = common.index_of(access, dim)
        parts.append((label, str(offset)))
    return id(access.tensor), tuple(parts)


@dataclass(eq=False)
class Plan:
    """What was decided. `tile`: indices of every label in a tile; `axes`: the outer labels as
    loops, outermost first; `chunks`: the inner labels that are looped over, in order. `passes[i]`:
    the ops with the chunk labels of pass i, `between[i]` those without, before it (the last entry:
    after all)."""

    graph: Graph
    ops: list[Op]
    sizes: dict[str, Size]
    outer: list[str]
    inner: list[str]
    units: dict[str, int]
    loads: dict[Key, Box]
    stores: dict[Key, Box]
    inside: dict[int, Box]  # by id of the tensor
    extra: list[Box]  # lanes and temporaries, of `lanes` and `staged`
    lanes: dict[
        int, list[Box]
    ]  # by id of the op: accumulators of a lane reduction, carry of a scan
    results: dict[int, list[Box]]  # by id of a REDUCE: where its outputs lie
    staged: dict[int, Box]  # by id of the op: its input brought to one stick label
    again: dict[int, Box] = field(default_factory=dict)  # by tensor: an argument made again
    axes: list[str] = field(default_factory=list)
    parts: dict[str, int] = field(default_factory=dict)
    tile: dict[str, int] = field(default_factory=dict)
    chunks: list[str] = field(default_factory=list)
    passes: list[list[Op]] = field(default_factory=list)
    between: list[list[Op]] = field(default_factory=list)
    slots: int = 2
    cores: int = 1
    lx_bytes: int = 0

    def looped(self, label: str) -> bool:
        """Whether a core goes along the label in steps."""
        if label in self.chunks:
            return True
        size = known(self.sizes[label])
        return label in self.outer and (
            label in self.parts or size is None or size > self.tile[label]
        )

    def bytes(self, tile: Mapping[str, int], slots: int, looped: frozenset[str]) -> int:
        """Bytes of LX for these tiles."""
        total = 0
        for box in (*self.loads.values(), *self.stores.values()):
            total += box.bytes(tile) * (slots if box.labels & looped else 1)
        for box in (*self.inside.values(), *self.extra):
            total += box.bytes(tile)
        return total

    def moved(self, tile: Mapping[str, int]) -> int:
        """Bytes of arguments of a tile."""
        return sum(b.bytes(tile) for b in (*self.loads.values(), *self.stores.values()))


def plain(op: Op) -> bool:
    """Whether the body only passes its one input on."""
    body = op.body
    return body is None or (len(body.nodes) == 1 and body.nodes[0].op == "input")


def analyse(kernel: Kernel, graph: Graph) -> Plan:
    """Labels, alignment and the places in LX, without numbers."""
    ops = kernel.ops
    sizes: dict[str, Size] = {}
    for op in ops:
        for label, size in op.labels.items():
            if not same(sizes.setdefault(label, size), size):
                raise CompileError(f"{kernel.name}: label {label} is {sizes[label]} and {size}")
    given = {id(t) for t in kernel.arguments}
    outer = outer_labels(ops, given)
    inner: list[str] = []
    for op in ops:
        inner += [label for label in op.reduced if label not in inner]
    inner += [label for label in sizes if label not in outer and label not in inner]
    plan = Plan(graph, ops, sizes, outer, inner, {}, {}, {}, {}, [], {}, {}, {})
    lane = _lane(plan, given)
    made: set[int] = set()
    for op in ops:
        for access in op.inputs:
            if id(access.tensor) not in made:
                if id(access.tensor) not in given:
                    raise CompileError(f"{kernel.name}: nothing makes {access.tensor.name}")
                plan.loads.setdefault(key_of(access), _argument(access, graph))
        _inner_boxes(plan, op, lane, given)
        made |= {id(a.tensor) for a in op.outputs}
    _units(plan)
    return plan


def outer_labels(ops: Sequence[Op], given: set[int]) -> list[str]:
    """The labels that the ops may share as loops: those along which every op that has them is
    parallel, and which everything that is stored has. An op without them, whose results stay in LX,
    is done again in every turn. `given`: the ids of the arguments."""
    labels = dict.fromkeys(label for op in ops for label in op.labels)
    return [
        label
        for label in labels
        if all(label in op.parallel for op in ops if label in op.labels)
        and all(label in a.labels for op in ops for a in op.outputs if id(a.tensor) in given)
    ]


def _argument(access: Access, graph: Graph) -> Box:
    tensor = access.tensor
    dims = tuple(common.index_of(access, d)[0] for d in range(len(access.index)))
    return Box(
        tensor.name, tensor.shape, dims, tensor.format(graph.mode), common.stick_label(access),
        access=access,
    )  # fmt: skip


def _lane(plan: Plan, given: set[int]) -> str | None:
    """The label that most bytes of arguments have on their stick."""
    votes: dict[str, int] = {}
    for op in plan.ops:
        for access in (*op.inputs, *op.outputs):
            if id(access.tensor) in given:
                label = common.stick_label(access)
                if label is not None:
                    points = math.prod(plan.graph.hint(plan.sizes[n]) for n in access.labels)
                    votes[label] = votes.get(label, 0) + points
    return max(votes, key=lambda label: votes[label]) if votes else None


def stick_of(plan: Plan, access: Access) -> str | None:
    """The label on the stick of an input's tile."""
    box = plan.inside.get(id(access.tensor))
    if box is None:
        box = plan.stores.get(key_of(access)) or plan.loads[key_of(access)]
    return box.stick


def _inner_boxes(plan: Plan, op: Op, lane: str | None, given: set[int]) -> None:
    """The places of what an op writes."""
    mode = plan.graph.mode
    sticks = list(dict.fromkeys(s for a in op.inputs if (s := stick_of(plan, a)) is not None))
    stick = next((s for s in sticks if s == lane), sticks[0] if sticks else None)
    if op.kind is OpKind.REDUCE and op.reduced and len(sticks) > 1:
        assert op.body is not None and stick is not None
        register = letter(op.body)
        labels = tuple(op.labels)
        plan.staged[id(op)] = Box(
            "staged", tuple(op.labels.values()), labels, _EXACT[register], stick
        )
        plan.extra.append(plan.staged[id(op)])
    folds = op.kind is OpKind.REDUCE and stick in op.reduced
    reduced = tuple(op.labels[label] for label in op.reduced)
    accumulators = []
    for access in op.outputs:
        tensor = access.tensor
        format = tensor.format(mode)
        dims = tuple(common.index_of(access, d)[0] for d in range(len(access.index)))
        wanted = stick if op.kind is OpKind.REDUCE else lane if lane in access.labels else stick
        if op.kind is not OpKind.REDUCE and tensor.place is not None and _is_reduced(plan, tensor):
            # The order of the reduction is that of the tensor's place.
            wanted = common.stick_label(access)
        box = Box(
            tensor.name, tensor.shape, dims, format, wanted if wanted in access.labels else None
        )
        if folds:
            box.stick = None
            accumulators.append(
                Box(f"{tensor.name}_lanes", tensor.shape, dims, format, lanes=True, reduced=reduced)
            )
        elif op.kind is OpKind.REDUCE and op.reduced:
            box.reduced = reduced
        if id(tensor) in given:
            plan.stores.setdefault(key_of(access), _argument(access, plan.graph))
            if op.kind is not OpKind.REDUCE or not op.reduced:
                continue
            box.name = f"{tensor.name}_whole"
            plan.extra.append(box)
        else:
            plan.inside[id(tensor)] = box
        if op.kind is OpKind.REDUCE and op.reduced:
            plan.results.setdefault(id(op), []).append(box)
    if folds:
        plan.lanes[id(op)] = accumulators
        plan.extra += accumulators
    if op.kind is OpKind.SCAN and op.label is not None:
        _scan_boxes(plan, op, stick)


def _is_reduced(plan: Plan, tensor: Tensor) -> bool:
    return any(
        op.kind is OpKind.REDUCE and any(a.tensor is tensor for a in op.inputs) for op in plan.ops
    )


def _scan_boxes(plan: Plan, op: Op, stick: str | None) -> None:
    """The carry of a scan, and its input in the result's register type unless it is that."""
    out = op.outputs[0]
    dims = tuple(label for label in op.labels if label != op.label)
    register = letter(op.body) if op.body else "f"
    carry = Box(
        f"{out.tensor.name}_carry", tuple(op.labels[label] for label in dims), dims,
        _EXACT[register], stick if stick in dims else None, reduced=(op.labels[str(op.label)],),
    )  # fmt: skip
    plan.lanes[id(op)] = [carry]
    plan.extra.append(carry)
    if not plain(op) or op.label not in op.inputs[0].labels:
        plan.staged[id(op)] = Box(
            "staged", tuple(op.labels.values()), tuple(op.labels), _EXACT[register],
            stick if stick is not None else next(iter(op.labels), None),
        )  # fmt: skip
        plan.extra.append(plan.staged[id(op)])


_EXACT = {
    "f": Format.IEEE_FP32, "i": Format.IEEE_INT32, "l": Format.IEEE_INT64, "b": Format.IEEE_INT32,
}  # fmt: skip


def letter(body: Body) -> str:
    """The register type of a body's first result."""
    from openspyre.program.ops import BODY_OP

    node = body.nodes[body.results[0]]
    return BODY_OP[node.op].result_of(node.type, node.immediate)


def _units(plan: Plan) -> None:
    """Alignment of each label: the largest number of elements of a stick it lies on."""
    boxes = (*plan.loads.values(), *plan.stores.values(), *plan.inside.values(), *plan.extra)
    for box in boxes:
        if box.stick is not None and not box.lanes:
            each = box.format.elements_per_stick
            plan.units[box.stick] = max(plan.units.get(box.stick, 1), each)


# --- numbers


def make(kernel: Kernel, graph: Graph, options: CompileOptions) -> Plan:
    """The plan of a kernel. Raises DoesNotFit when no tiles fit LX."""
    plan = analyse(kernel, graph)
    full = {label: graph.hint(size) for label, size in plan.sizes.items()}
    # What a tile holds whole needs room for the largest size it may have.
    full |= {label: graph.maximum(plan.sizes[label]) for label in plan.inner}
    counts = {label: -(-full[label] // plan.units.get(label, 1)) for label in plan.outer}
    strides = _strides(plan)
    major = sorted(plan.outer, key=lambda label: -strides.get(label, 0))
    cores = common.cores_for(plan.moved(full), options)
    if options.split:
        cores = dict(options.split).get("rows", cores)
    plan.parts = common.split_cores(
        {label: counts[label] for label in major}, cores, legal=lambda c: _legal(plan, counts, c)
    )
    plan.cores = math.prod(plan.parts.values())
    tile = dict(full)
    for label in plan.outer:
        unit = plan.units.get(label, 1)
        share = -(-counts[label] // plan.parts.get(label, 1)) * unit
        tile[label] = share if known(plan.sizes[label]) is None else min(share, full[label])
    budget = common.lx_budget(options)
    target = min(TILE_BYTES, max(LEAST_TILE_BYTES, plan.moved(tile) // TILES_A_CORE))
    asked = dict(options.tile).get("rows")
    tile = _shrunk(plan, tile, major, target, asked)
    plan.slots = options.slots
    everything = frozenset(plan.sizes)
    while plan.bytes(tile, plan.slots, everything) > budget:
        smaller = _smaller(plan, tile, major)
        if smaller is None:
            break
        tile = smaller
    tight = plan.bytes(tile, plan.slots, stepping(plan, tile)) > budget
    if tight and plan.bytes(tile, 1, everything) <= budget:
        plan.slots = 1
    reducing = [op for op in plan.ops if op.kind in (OpKind.REDUCE, OpKind.SCAN)]
    found = _passes(plan, set(plan.inner[:1])) if len(reducing) == 1 and plan.inner else None
    single = found is not None and len(found[0]) == 1
    over = plan.bytes(tile, plan.slots, stepping(plan, tile)) > budget
    if over or (single and plan.moved(tile) > 2 * target):
        tile = _chunked(plan, tile, budget, target, over)
    _order(plan)
    plan.tile = tile
    plan.axes = _axes(plan, major)
    plan.lx_bytes = plan.bytes(tile, plan.slots, stepping(plan, tile))
    if plan.lx_bytes > budget:
        raise DoesNotFit(
            f"{kernel.name}: a tile of one index of every outer label needs {plan.lx_bytes} bytes"
            f" of LX, of {budget}"
        )
    return plan


def stepping(plan: Plan, tile: Mapping[str, int]) -> frozenset[str]:
    """The labels along which a core goes in more than one step with such tiles: what moves with
    them needs the slots of a stream, the rest is there once."""
    found = set(plan.chunks)
    for label in plan.outer:
        size = known(plan.sizes[label])
        if label in plan.parts:
            size = -(-plan.graph.hint(plan.sizes[label]) // plan.parts[label])
        if size is None or size > tile[label]:
            found.add(label)
    return frozenset(found)


def _strides(plan: Plan) -> dict[str, int]:
    """How far a step of each outer label moves in the largest argument, in bytes; for a stick
    label, of a stick. Splitting the label that moves most keeps what a core touches together."""
    out: dict[str, int] = {}
    boxes = sorted(
        (*plan.loads.values(), *plan.stores.values()),
        key=lambda b: -math.prod(plan.graph.hint(plan.sizes[n]) for n in b.labels),
    )
    for box in boxes:
        assert box.access is not None and box.access.tensor.place is not None
        for label, stride in zip(box.dims, box.access.tensor.place.strides, strict=True):
            if label is not None and label not in out:
                out[label] = plan.graph.hint(stride)
    return out


def _legal(plan: Plan, counts: Mapping[str, int], choice: Mapping[str, int]) -> bool:
    """Whether no core's span of an argument is too long with such shares."""
    sizes = {label: plan.graph.maximum(size) for label, size in plan.sizes.items()}
    for label, parts in choice.items():
        sizes[label] = -(-counts[label] // parts) * plan.units.get(label, 1)
    return all(
        common.span_bytes(box.access, sizes, plan.graph) <= common.SPAN_LIMIT
        for box in (*plan.loads.values(), *plan.stores.values())
        if box.access is not None
    )


def _shrunk(
    plan: Plan, tile: dict[str, int], order: Sequence[str], target: int, asked: int | None
) -> dict[str, int]:
    """Tiles of about `target` bytes of arguments: the label that moves most is cut first."""
    tile = dict(tile)
    for label in order:
        moved = plan.moved(tile)
        if moved <= target and asked is None:
            break
        unit = plan.units.get(label, 1)
        count = -(-tile[label] // unit)
        steps = max(1, min(count, -(-moved // target)))
        if asked is not None:
            steps, asked = max(1, -(-count * unit // asked)), None
        if steps > 1:
            tile[label] = -(-count // steps) * unit
    return tile


def _smaller(plan: Plan, tile: dict[str, int], order: Sequence[str]) -> dict[str, int] | None:
    """Half of the first outer label that can be halved."""
    for label in order:
        unit = plan.units.get(label, 1)
        count = -(-tile[label] // unit)
        if count > 1:
            return {**tile, label: -(-count // 2) * unit}
    return None


def _chunked(
    plan: Plan, tile: dict[str, int], budget: int, target: int, needed: bool
) -> dict[str, int]:
    """Tiles with the first inner labels cut: (1, .., 1, some, whole, ..). Notes them in the plan;
    the tiles are as they were when the ops do not allow it."""
    for number in range(1, len(plan.inner) + 1):
        labels = plan.inner[:number]
        if not _chunkable(plan, labels):
            return tile
        last = labels[-1]
        unit = plan.units.get(last, 1)
        size = plan.graph.maximum(plan.sizes[last])
        least = {**tile, **{n: plan.units.get(n, 1) for n in labels[:-1]}, last: min(unit, size)}
        if not all(stepped(plan, n) for n in labels[:-1]):
            return tile
        plan.chunks = labels
        everything = frozenset(plan.sizes)
        fits = plan.bytes(least, plan.slots, everything) <= budget
        small = plan.moved(least) <= target
        if (not fits or (not needed and not small)) and number < len(plan.inner):
            continue
        if not fits:
            plan.chunks = []
            return tile
        count = -(-size // unit)
        low, high = 1, count
        while low < high:  # the most units that fit
            middle = (low + high + 1) // 2
            trial = {**least, last: middle * unit}
            good = plan.bytes(trial, plan.slots, everything) <= budget
            if good and (plan.moved(trial) <= target or middle == 1):
                low = middle
            else:
                high = middle - 1
        steps = -(-count // low)
        return {**least, last: min(-(-count // steps) * unit, size)}
    return tile


def stepped(plan: Plan, label: str) -> bool:
    """Whether chunks of one unit of the label keep the order of a reduction over it and labels
    after it. A unit of several indices does if each goes to a lane of its own."""
    unit = plan.units.get(label, 1)
    if unit == 1:
        return True
    return unit <= LANE_ACCUMULATORS and all(
        {stick_of(plan, a) for a in op.inputs} - {None} == {label}
        for op in plan.ops
        if op.kind is OpKind.REDUCE and label in op.reduced
    )


def _chunkable(plan: Plan, labels: Sequence[str]) -> bool:
    """Whether every op has all of the labels or none, and all reduced or none; and whether what a
    later pass needs again can be made again."""
    wanted = set(labels)
    for op in plan.ops:
        have = wanted & set(op.labels)
        if have and have != wanted:
            return False
        bound = wanted & (set(op.reduced) | ({op.label} if op.label else set()))
        if op.kind in (OpKind.SORT, OpKind.TOPK) and bound:
            return False
        if op.kind is OpKind.SCAN and bound and len(wanted) > 1:
            return False
        if op.kind is OpKind.REDUCE and bound and bound != wanted:
            return False
        if op.kind is OpKind.REDUCE and bound and list(op.reduced[: len(labels)]) != list(labels):
            return False
    found = _passes(plan, wanted)
    return found is not None and _loaded_first(plan, found[0])


def _loaded_first(plan: Plan, passes: Sequence[Sequence[Op]]) -> bool:
    """Whether no pass loads again what this or an earlier one has stored."""
    stored: set[Key] = set()
    for ops in passes:
        if any(key_of(a) in stored for op in ops for a in op.inputs if key_of(a) in plan.loads):
            return False
        stored |= {key_of(a) for op in ops for a in op.outputs}
    return True


def _passes(plan: Plan, chunked: set[str]) -> tuple[list[list[Op]], list[list[Op]]] | None:
    """(passes, between): see Plan. None when a pass needs what only an earlier one can make."""
    level: dict[int, int] = {}  # by tensor: the first pass that can use it
    maker: dict[int, tuple[Op, int]] = {}
    placed: list[tuple[Op, int, bool]] = []
    for op in plan.ops:
        inside = bool(chunked & set(op.labels))
        at = max((level.get(id(a.tensor), 0) for a in op.inputs), default=0)
        placed.append((op, at, inside))
        done = inside and op.kind is OpKind.REDUCE and bool(chunked & set(op.reduced))
        for access in op.outputs:
            level[id(access.tensor)] = at + 1 if done else at
            maker[id(access.tensor)] = (op, at)
    count = max((at for _, at, inside in placed if inside), default=0) + 1
    passes: list[list[Op]] = [[] for _ in range(count)]
    between: list[list[Op]] = [[] for _ in range(count + 1)]
    for op, at, inside in placed:
        (passes if inside else between)[at].append(op)
    for number, ops in enumerate(passes):
        again: list[Op] = []
        have = {id(op) for op in ops}

        def need(
            op: Op, number: int = number, again: list[Op] = again, have: set[int] = have
        ) -> bool:
            for access in op.inputs:
                if not chunked & access.labels or id(access.tensor) not in maker:
                    continue
                source, at = maker[id(access.tensor)]
                if at == number or id(source) in have:
                    continue
                if source.kind is not OpKind.MAP:
                    return False
                have.add(id(source))
                if not need(source):
                    return False
                again.append(source)
            return True

        if not all(need(op) for op in ops):
            return None
        passes[number] = [*again, *ops]
    return passes, between


def _order(plan: Plan) -> None:
    if not plan.chunks:
        plan.passes, plan.between = [list(plan.ops)], [[], []]
        return
    found = _passes(plan, set(plan.chunks))
    assert found is not None
    plan.passes, plan.between = found
    seen: set[int] = set()
    for ops in plan.passes:
        for op in ops:
            for access in op.outputs if id(op) in seen else ():
                tensor = access.tensor
                if id(tensor) in plan.inside or id(tensor) in plan.again:
                    continue
                box = plan.stores[key_of(access)]
                made = Box(f"{tensor.name}_again", box.shape, box.dims, box.format, box.stick)
                plan.again[id(tensor)] = made
                plan.extra.append(made)
            seen.add(id(op))


def _axes(plan: Plan, major: Sequence[str]) -> list[str]:
    """The order of the loops: labels that large arguments lack innermost, so that those are not
    loaded again and again; else those that move most outermost."""
    lacking = dict.fromkeys(plan.outer, 0)
    for box in (*plan.loads.values(), *plan.stores.values()):
        for label in plan.outer:
            if label not in box.labels:
                lacking[label] += math.prod(plan.graph.hint(plan.sizes[n]) for n in box.labels)
    return sorted(plan.outer, key=lambda label: (lacking[label], major.index(label)))


def unreduced(op: Op) -> Body:
    """The body of a REDUCE over no label: what the combination of one element gives."""
    assert op.body is not None
    nodes = list(op.body.nodes)
    result = op.body.results[0]
    register = letter(op.body)

    def add(node: Node) -> int:
        nodes.append(node)
        return len(nodes) - 1

    if op.combine is Combine.WELFORD:
        mean = add(Node("add", "f", (add(Node("const", "f", (), 0.0)), result)))
        rest = add(Node("sub", "f", (result, mean)))
        square, one = add(Node("mul", "f", (result, rest))), add(Node("const", "f", (), 1.0))
        return Body(tuple(nodes), (mean, square, one))
    if op.combine in (Combine.ARGMAX, Combine.ARGMIN):
        return Body(tuple(nodes), (result, add(Node("const", "l", (), 0))))
    if op.combine is Combine.SUM:
        zero: int | float = 0.0 if register == "f" else 0
        result = add(Node("add", register, (add(Node("const", register, (), zero)), result)))
    return Body(tuple(nodes), (result,))
