"""Weights where products want them: their columns on the stick.

`x @ w.t()` with w [N, K] reads w with K on the stick, and every launch would turn each of its tiles
in LX. A storage's layout changes no value and no view, so the storage of a weight is given the
other layout once, before the first launch that wants it; later launches find it there.

Which tensors are weights is a guess, and a wrong one costs a copy, never a result: whole 2-D
storages that a product reads by columns, not written by the graph, not read by index (a table whose
rows are gathered), each at most once. Needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from openspyre.compiler.graph import Affine, Graph, OpKind, Role, Tensor


class Storages:
    """A set of storages that keeps none of them alive. A weak reference keeps a dead storage's
    identity from being given to another one."""

    def __init__(self) -> None:
        self._refs: dict[int, StorageWeakRef] = {}
        self._enough = 256  # entries after which the dead are taken out

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._refs

    def add(self, tensor: torch.Tensor) -> None:
        """Adds the storage of `tensor`."""
        storage = tensor.untyped_storage()
        self._refs[storage._cdata] = StorageWeakRef(storage)
        if len(self._refs) > self._enough:
            self._refs = {k: ref for k, ref in self._refs.items() if not ref.expired()}
            self._enough = max(256, 2 * len(self._refs))

    def __len__(self) -> int:
        return len(self._refs)


_relaid = Storages()
_tables = Storages()
"""Storages that were relaid once; storages that are read by rows."""


def relay(graph: Graph, tensors: Mapping[str, torch.Tensor]) -> bool:
    """Gives the storages of weights among the inputs (by name of their graph tensor) the layout
    that the products of `graph` want. True when one has changed: inputs have to be seen anew."""
    changed = False
    for op in graph.ops:
        for access in op.inputs:
            if access.indirect and access.tensor.name in tensors:
                changed = _keep_rows(tensors[access.tensor.name]) or changed
    for op in graph.ops:
        if op.kind is not OpKind.MATMUL:
            continue
        access = op.inputs[1]
        source = access.tensor
        tensor = tensors.get(source.name)
        if (
            tensor is None
            or source.role is not Role.INPUT
            or not _turned(source, access.index, op.reduced)
        ):
            continue
        changed = _relay(tensor) or changed
    return changed


def _keep_rows(tensor: torch.Tensor) -> bool:
    """Notes a table; one that was taken for a weight before gets its rows back."""
    from openspyre.device.layouts import layout_of, relayout_
    from openspyre.layout import SpyreTensorLayout

    _tables.add(tensor)
    layout = layout_of(tensor)
    if tensor not in _relaid or layout.is_default or len(layout.host_size) != 2:
        return False
    relayout_(tensor, SpyreTensorLayout.with_order(layout.host_size, (0, 1), layout.format))
    return layout_of(tensor) != layout


def _turned(tensor: Tensor, index: Sequence[object], reduced: Sequence[str]) -> bool:
    """Whether the label that is summed over lies on the stick."""
    place = tensor.place
    if place is None or place.stick < 0:
        return False
    on_stick = index[place.stick]
    return isinstance(on_stick, Affine) and any(label in reduced for label in on_stick.labels)


def _relay(tensor: torch.Tensor) -> bool:
    from openspyre.device.layouts import layout_of, relayout_
    from openspyre.layout import SpyreTensorLayout

    layout = layout_of(tensor)
    whole = tensor.numel() == layout.numel
    if tensor in _relaid or tensor in _tables or not whole or len(layout.host_size) != 2:
        return False
    if not layout.is_default or min(layout.host_size) < 2:
        return False
    _relaid.add(tensor)
    relayout_(tensor, SpyreTensorLayout.with_order(layout.host_size, (1, 0), layout.format))
    return True
