"""Layouts of device tensors: look at them, choose them, draw them.

A storage has one layout; a tensor is a strided view of the storage's linear element space. What
torch-spyre spells `tensor.to(device_layout=...)` is `to_layout` here, since nothing of torch is
patched. Layouts themselves are `openspyre.layout.SpyreTensorLayout`, pure integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from openspyre.device.devices import Device, device_index

if TYPE_CHECKING:
    from openspyre.formats import Format
    from openspyre.layout import SpyreTensorLayout


def layout_of(tensor: torch.Tensor) -> SpyreTensorLayout:
    """The layout of the storage behind `tensor`. For a view it is the layout of its base.

    Raises ValueError for a tensor of another device.
    """
    from openspyre.layout import SpyreTensorLayout

    host_size, device_size, stride_map, name, _ = torch.ops.openspyre._layout_of(tensor)
    return SpyreTensorLayout(
        host_size=tuple(host_size),
        device_size=tuple(device_size),
        stride_map=tuple(stride_map),
        format=_format(name),
    )


def is_raw(tensor: torch.Tensor) -> bool:
    """Whether the storage holds plain host bytes still: no typed use has pinned a layout yet."""
    return bool(torch.ops.openspyre._layout_of(tensor)[4])


def empty(
    *size: int | Sequence[int],
    dtype: torch.dtype | None = None,
    device: Device = "spyre",
    layout: SpyreTensorLayout | None = None,
) -> torch.Tensor:
    """torch.empty on spyre, contiguous, in `layout` (default: the standard layout of the shape).

    Raises ValueError when the layout has another number of elements or another format than dtype.
    """
    shape: list[int] = []
    for item in size:
        shape += item if isinstance(item, Sequence) else (item,)
    where = torch.device("spyre", device_index(device))
    kind = torch.get_default_dtype() if dtype is None else dtype
    if layout is None:
        return torch.empty(shape, dtype=kind, device=where)
    made: torch.Tensor = torch.ops.openspyre._empty_with_layout(
        shape,
        kind,
        where,
        list(layout.host_size),
        list(layout.device_size),
        list(layout.stride_map),
    )
    stored = torch.ops.openspyre._layout_of(made)[3]
    wanted = getattr(layout.format, "name", str(layout.format))
    if stored != wanted:
        raise ValueError(
            f"empty: {kind} lives as {stored} on the card now, and the layout is for {wanted}: "
            f"make the layout for {stored}"
        )
    return made


def to_layout(tensor: torch.Tensor, layout: SpyreTensorLayout) -> torch.Tensor:
    """A copy of `tensor` with the same shape, dtype and values whose storage has `layout`.

    Returns `tensor` itself when it already is a whole contiguous storage in that layout. Raises
    ValueError for a tensor of another device or a layout of another size.
    """
    if tensor.device.type != "spyre":
        raise ValueError(
            f"to_layout: expected a spyre tensor, got one on {str(tensor.device)!r}: move it first"
        )
    whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
    if whole and layout_of(tensor) == layout:
        return tensor
    made = empty(tensor.shape, dtype=tensor.dtype, device=tensor.device, layout=layout)
    return made.copy_(tensor)


def relayout_(tensor: torch.Tensor, layout: SpyreTensorLayout) -> torch.Tensor:
    """Gives the storage of `tensor` another layout, in place, and returns `tensor`: same bits, and
    every view of it goes on as before. A copy on the current stream; does not wait for the card.
    Graphs that were captured with the storage keep the old block, as after `resize_`.

    Raises ValueError for a tensor of another device, another number of elements or another format,
    torch.OutOfMemoryError (both blocks exist for a while).
    """
    if tensor.device.type != "spyre":
        raise ValueError(
            f"relayout_: expected a spyre tensor, got one on {str(tensor.device)!r}: move it first"
        )
    now = layout_of(tensor)
    if now == layout:
        return tensor
    if now.format != layout.format:
        raise ValueError(
            f"relayout_: the storage lives as {now.format.name}, the layout is for"
            f" {layout.format.name}: make the layout for {now.format.name}"
        )
    torch.ops.openspyre._relayout_(
        tensor, list(layout.host_size), list(layout.device_size), list(layout.stride_map)
    )
    return tensor


def picture(tensor_or_layout: torch.Tensor | SpyreTensorLayout) -> str:
    """How the elements lie in sticks, as text for people."""
    if isinstance(tensor_or_layout, torch.Tensor):
        return layout_of(tensor_or_layout).picture()
    return tensor_or_layout.picture()


def _format(name: str) -> Format:
    from openspyre import formats

    return formats.Format[name]
