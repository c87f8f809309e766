"""Pass 1: the graph without what is needless, in one form.

Input: a graph as lowerings made it. Output: the same values in every OUTPUT and INOUT, with
- no op, result or input that nothing needs;
- no label of size 1;
- no op that repeats an earlier one (the readers take the earlier result);
- no copy between temps that a reader can look through: views of a temp and exact conversions
  (float16 -> float32, int8 -> int32), so that a chain float16 -> float32 -> float16 vanishes;
- no copy of an INOUT that is scattered to and copied back, in an `exclusive` graph: a cache is
  written in place;
- temps and labels named by their order (`edit.rename`), whatever process built the graph.

Invariant: bits do not change. A read is moved only where nothing writes its new source in between.
"""

from __future__ import annotations

from collections import Counter

from openspyre.compiler.graph import Access, Affine, Graph, Indirect, Op, OpKind, Role, Tensor
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.passes.edit import (
    affine,
    by_labels,
    drop_inputs,
    full_dims,
    is_identity,
    map_accesses,
    pruned,
    rename,
    replace_label,
    substituted,
)
from openspyre.compiler.sizes import known
from openspyre.formats import Format
from openspyre.program.model import Body


def canonicalize(graph: Graph, options: CompileOptions) -> None:
    """Runs the pass in place."""
    for op in graph.ops:
        _drop_ones(op)
    for _ in range(8):  # a copy of a copy of a copy
        remove_dead(graph)
        changed = _look_through(graph)
        changed = _number_values(graph) or changed
        if not changed:
            break
    if graph.exclusive:
        _in_place(graph)
    remove_dead(graph)
    rename(graph)


# --- dead code


def remove_dead(graph: Graph) -> None:
    """Leaves out the ops, results and inputs that no OUTPUT or INOUT needs."""
    live = {id(t) for t in graph.tensors if t.role in (Role.OUTPUT, Role.INOUT)}
    kept: list[Op] = []
    for op in reversed(graph.ops):
        needed = [id(a.tensor.memory) in live for a in op.outputs]
        if not any(needed):
            continue
        if op.kind is OpKind.MAP and not all(needed):
            assert op.body is not None
            numbers = [n for n, wanted in enumerate(needed) if wanted]
            op.outputs = [op.outputs[n] for n in numbers]
            op.body = Body(op.body.nodes, tuple(op.body.results[n] for n in numbers))
        drop_inputs(op)
        live |= {id(a.tensor.memory) for a in op.inputs}
        kept.append(op)
    graph.ops = kept[::-1]
    used = {id(a.tensor.memory) for op in graph.ops for a in by_labels(op)}
    used |= {id(a.tensor) for op in graph.ops for a in by_labels(op)}
    graph.tensors = [
        t for t in graph.tensors if id(t) in used or t.role not in (Role.TEMP, Role.CONST)
    ]


def _drop_ones(op: Op) -> None:
    for label, size in list(op.labels.items()):
        if known(size) != 1 or label == op.label:
            continue
        if label in op.reduced and len(op.reduced) == 1:
            continue
        replace_label(op, label, {}, Affine())


# --- versions


class _Versions:
    """How often the memory of a tensor is written before each op."""

    def __init__(self, graph: Graph) -> None:
        self.writes: dict[int, list[int]] = {}
        for position, op in enumerate(graph.ops):
            for access in op.outputs:
                self.writes.setdefault(id(access.tensor.memory), []).append(position)

    def unchanged(self, tensor: Tensor, after: int, before: int) -> bool:
        """Whether no op in after < position < before writes it."""
        found = self.writes.get(id(tensor.memory), [])
        return not any(after < position < before for position in found)

    def at(self, tensor: Tensor, position: int) -> int:
        return sum(p < position for p in self.writes.get(id(tensor.memory), []))


# --- copies


def _exact(source: Format, target: Format) -> bool:
    """Whether every value of `source` is one of `target`, in registers of one type."""
    if source is target:
        return True
    floats = {
        Format.SEN169_FP16, Format.IEEE_FP16, Format.BFLOAT16, Format.SEN143_FP8,
        Format.SEN152_FP8,
    }  # fmt: skip
    if target is Format.IEEE_FP32:
        return source in floats
    if target is Format.IEEE_INT32:
        return source in (Format.SENINT8, Format.SENUINT8, Format.SENINT16)
    return target is Format.SENINT16 and source in (Format.SENINT8, Format.SENUINT8)


def _look_through(graph: Graph) -> bool:
    """Reads of a copy become reads of what it copies."""
    versions = _Versions(graph)
    readers = Counter(
        id(t) for op in graph.ops for t in {id(a.tensor): a.tensor for a in op.inputs}.values()
    )
    copies: dict[int, tuple[int, Op, list[str]]] = {}
    changed = False
    for position, op in enumerate(graph.ops):
        number = 0
        while number < len(op.inputs):
            access = op.inputs[number]
            found = copies.get(id(access.tensor))
            if found is not None:
                made = _through(graph, op, access, found, position, versions)
                if made is not None and not op.collides(made):
                    op.inputs[number] = made
                    changed = True
                    continue  # it may be a copy again
            number += 1
        if op.kind is not OpKind.MAP or not is_identity(op.body):
            continue
        (target,) = op.outputs
        names = full_dims(target, op.labels)
        made_here = target.tensor
        if (
            names is None
            or made_here.role is not Role.TEMP
            or len(versions.writes[id(made_here)]) != 1
            or op.inputs[0].indirect
            or not _exact(op.inputs[0].tensor.format(graph.mode), made_here.format(graph.mode))
        ):
            continue
        if readers[id(made_here)] > 1 and not _plain(op.inputs[0], names):
            continue  # a restickify that several ops use
        copies[id(made_here)] = (position, op, names)
    return changed


def _plain(access: Access, names: list[str]) -> bool:
    """Whether the labels of an access stand in the order of `names`."""
    order = [label for i in access.index if isinstance(i, Affine) for label in i.labels]
    wanted = [n for n in names if n in order]
    return order == wanted


def _through(
    graph: Graph,
    op: Op,
    access: Access,
    copy: tuple[int, Op, list[str]],
    position: int,
    versions: _Versions,
) -> Access | None:
    """What `access` of a copy reads of the source; None when it may not."""
    at, made, names = copy
    source = made.inputs[0]
    if not versions.unchanged(source.tensor, at, position):
        return None
    if op.kind not in (OpKind.MAP, OpKind.REDUCE):
        # These need one format, and all their labels; a product shares what lacks batch labels.
        same_format = source.tensor.format(graph.mode) is access.tensor.format(graph.mode)
        if not same_format:
            return None
        lost = {n for n in names if n} - source.labels
        if lost and not _batched(op, access, names, lost):
            return None
    return _substitute(source, names, access)


def _substitute(source: Access, names: list[str], access: Access) -> Access | None:
    """`access` of a tensor whose dims walk `names`, as one of the source."""
    own = {n: i for n, i in zip(names, access.index, strict=True) if n}
    indirect = {n for n, i in own.items() if isinstance(i, Indirect)}
    by = {n: i for n, i in own.items() if isinstance(i, Affine)}
    index: list[Affine | Indirect] = []
    for i in source.index:
        assert isinstance(i, Affine)
        hit = [n for n in i.labels if n in indirect]
        if hit:
            if i.single is None or known(i.offset) != 0:
                return None
            index.append(own[hit[0]])
        else:
            index.append(substituted(affine(i.terms, i.offset), by))
    return Access(source.tensor, tuple(index))


def _batched(op: Op, access: Access, names: list[str], lost: set[str]) -> bool:
    """Whether a product walks the dims of `lost` by labels that its other input has, too, so that
    this one may stand still along them."""
    if op.kind is not OpKind.MATMUL:
        return False
    (other,) = [a for a in op.inputs if a is not access] or [access]
    return all(
        isinstance(i, Affine) and set(i.labels) <= other.labels - set(op.reduced)
        for n, i in zip(names, access.index, strict=True)
        if n in lost
    )


# --- writes in place


def _in_place(graph: Graph) -> None:
    """A copy of an INOUT that is scattered to and copied back is the INOUT itself."""
    versions = _Versions(graph)
    found: dict[int, tuple[Op, Op, list[str]]] = {}
    for position, op in enumerate(graph.ops):
        temp = op.outputs[0].tensor
        if op.kind is OpKind.SCATTER and temp.role is Role.TEMP and id(temp) not in found:
            trip = _round_trip(graph, versions, temp, position)
            if trip is not None:
                found[id(temp)] = trip
    if found:
        _write_through(graph, list(found.values()))


def _round_trip(
    graph: Graph, versions: _Versions, temp: Tensor, first: int
) -> tuple[Op, Op, list[str]] | None:
    """The copy to `temp` and the one back, when nothing else would notice a write in place."""
    writers = [graph.ops[p] for p in versions.writes[id(temp)]]
    there = writers[0]
    if there.kind is not OpKind.MAP or not is_identity(there.body) or len(there.outputs) != 1:
        return None
    source = there.inputs[0]
    target = source.tensor
    names = full_dims(there.outputs[0], there.labels)
    if (
        names is None
        or target.role is not Role.INOUT
        or target.dtype != temp.dtype
        or full_dims(source, there.labels) is None
        or any(op.kind is not OpKind.SCATTER for op in writers[1:])
        or len(versions.writes.get(id(target), [])) != 1
    ):
        return None
    at = versions.writes[id(target)][0]
    back = graph.ops[at]
    if back.kind is not OpKind.MAP or not is_identity(back.body) or len(back.outputs) != 1:
        return None
    if back.inputs[0].tensor is not temp or at < versions.writes[id(temp)][-1]:
        return None
    # The same element there and back.
    made = _substitute(source, names, back.inputs[0])
    if made is None or made.index != back.outputs[0].index:
        return None
    if full_dims(back.outputs[0], back.labels) is None:
        return None
    readers = [p for p, o in enumerate(graph.ops) for a in o.inputs if a.tensor is target]
    if any(p >= first for p in readers):  # the scatter itself, too: it would read what it wrote
        return None
    return there, back, names


def _write_through(graph: Graph, trips: list[tuple[Op, Op, list[str]]]) -> None:
    gone = {id(op) for there, back, _ in trips for op in (there, back)}
    sources = {
        id(there.outputs[0].tensor): (there.inputs[0], names) for there, _, names in trips
    }  # fmt: skip
    graph.ops = [op for op in graph.ops if id(op) not in gone]

    def moved(access: Access) -> Access:
        found = sources.get(id(access.tensor))
        if found is None:
            return access
        made = _substitute(*found, access)
        assert made is not None
        return made

    for op in graph.ops:
        map_accesses(op, moved)


# --- value numbering


def _number_values(graph: Graph) -> bool:
    """Readers of an op that repeats an earlier one read the earlier one's results."""
    versions = _Versions(graph)
    seen: dict[object, Op] = {}
    instead: dict[int, Tensor] = {}
    for position, op in enumerate(graph.ops):
        map_accesses(op, lambda a: Access(instead.get(id(a.tensor), a.tensor), a.index))
        if op.kind in (OpKind.SCATTER, OpKind.COPY):
            continue
        key = _key(op, position, versions)
        if key is None:
            continue
        first = seen.setdefault(key, op)
        if first is op or any(a.tensor.role is not Role.TEMP for a in op.outputs):
            continue
        for old, new in zip(op.outputs, first.outputs, strict=True):
            instead[id(old.tensor)] = new.tensor
    if not instead:
        return False
    gone = {id(op) for op in graph.ops if all(id(a.tensor) in instead for a in op.outputs)}
    graph.ops = [op for op in graph.ops if id(op) not in gone]
    return True


def _key(op: Op, position: int, versions: _Versions) -> object:
    """What tells an op's values; None when its results are written by others, too."""
    for access in op.outputs:
        if len(versions.writes[id(access.tensor.memory)]) != 1:
            return None
        if access.tensor.role not in (Role.TEMP, Role.OUTPUT):
            return None
    names = {label: f"#{n}" for n, label in enumerate(op.labels)}

    def index(access: Access) -> object:
        return tuple(
            (tuple(sorted((names[n], str(c)) for n, c in i.terms)), str(i.offset))
            if isinstance(i, Affine)
            else (i.input, str(i.limit))
            for i in access.index
        )

    body = None
    if op.body is not None:
        least = pruned(op.body)
        nodes = tuple(
            (n.op, n.type, n.args, names.get(str(n.immediate)) if n.op == "index"
             else repr(n.immediate))
            for n in least.nodes
        )  # fmt: skip
        body = (nodes, least.results)
    return (
        op.kind,
        tuple(str(size) for size in op.labels.values()),
        tuple((id(a.tensor), versions.at(a.tensor, position), index(a)) for a in op.inputs),
        tuple((a.tensor.dtype, tuple(map(str, a.tensor.shape)), index(a)) for a in op.outputs),
        body,
        op.combine,
        tuple(names[n] for n in op.reduced),
        None if op.label is None else names[op.label],
        op.limit,
        op.descending,
        op.add,
    )
