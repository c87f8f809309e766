"""Pass: how tensors lie. In: a legal graph; out: every tensor has a Place.

Arguments come with theirs. For each temp and each output that has none the pass chooses the dim on
the stick, walking forward: an op's result keeps the label that most of its operands' elements have
on their sticks, so that least has to be turned in LX; a product has its columns there. Results of
reductions over the stick are small and sparse (one element a stick), unless they are large.

Invariant after it: `tensor.place` is set for every tensor of the graph. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from openspyre.compiler.graph import Access, Affine, Graph, Op, OpKind, Place, Role, Tensor
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.sizes import Size, size_of, times
from openspyre.formats import STICK_BYTES, Format
from openspyre.program.expr import ceil_div, expr

SPARSE_LIMIT = 1 << 16
"""Elements up to which a reduction's result may take a stick each (8 MiB)."""


def layouts(graph: Graph, options: CompileOptions) -> None:
    """Sets the Place of every tensor that has none."""
    for tensor in graph.tensors:
        if tensor.place is None and tensor.role is Role.CONST:
            tensor.place = natural_place(
                tensor.shape, len(tensor.shape) - 1, _format(tensor, graph)
            )
    for op in graph.ops:
        for access in op.outputs:
            tensor = access.tensor
            if tensor.place is None:
                tensor.place = natural_place(
                    tensor.shape, _stick_dim(op, access, graph), _format(tensor, graph)
                )
    for tensor in graph.tensors:
        if tensor.place is None:
            tensor.place = natural_place(
                tensor.shape, len(tensor.shape) - 1, _format(tensor, graph)
            )


def natural_place(shape: Sequence[Size], stick: int, format: Format) -> Place:
    """The card's default order of dims with dim `stick` last (-1: one element a stick)."""
    dims = [d for d in range(len(shape)) if d != stick]
    strides: list[Size] = [0] * len(shape)
    pitch: Size = STICK_BYTES
    if stick < 0:
        for d in reversed(dims):
            strides[d] = pitch
            pitch = times(pitch, shape[d])
        return Place(tuple(strides), -1)
    # docs/layouts.md: the first dim lies next to the stick, then the sticks of the stick dim.
    for d in dims[:1]:
        strides[d] = pitch
        pitch = times(pitch, shape[d])
    strides[stick] = pitch
    pitch = times(pitch, size_of(ceil_div(expr(shape[stick]), format.elements_per_stick)))
    for d in reversed(dims[1:]):
        strides[d] = pitch
        pitch = times(pitch, shape[d])
    return Place(tuple(strides), stick)


def stick_label(access: Access) -> str | None:
    """The label on the stick of a tile with this access, if its tensor has a place."""
    place = access.tensor.place
    if place is None or place.stick < 0:
        return None
    index = access.index[place.stick]
    return index.single if isinstance(index, Affine) else None


def _stick_dim(op: Op, access: Access, graph: Graph) -> int:
    """The dim of an output that goes on the stick."""
    dims = {i.single: d for d, i in enumerate(access.index) if isinstance(i, Affine) and i.single}
    last = len(access.index) - 1
    if last < 0:
        return -1
    if op.kind is OpKind.MATMUL:
        a, b = op.inputs[0].labels, op.inputs[1].labels
        columns = [label for label in dims if label in b and label not in a]
        if columns:
            return dims[max(columns, key=lambda label: dims[label])]
    votes: dict[str | None, int] = {}
    for source in op.inputs:
        label = stick_label(source)
        weight = 1
        for name in source.labels:
            weight *= graph.hint(op.labels[name])
        votes[label] = votes.get(label, 0) + weight
    ranked = sorted(votes, key=lambda label: -votes[label])
    for label in ranked:
        if label in dims:
            return dims[label]
    gone = [label for label in ranked if label in op.reduced]
    if op.kind is OpKind.REDUCE and gone and graph.hint(access.tensor.numel) <= SPARSE_LIMIT:
        return -1
    return last


def _format(tensor: Tensor, graph: Graph) -> Format:
    return tensor.format(graph.mode)
