"""From tensors to the Graph: how a strided view of a storage is seen as dims that are addressed.

A spyre tensor is a strided view of the linear element space of its storage, and the storage's
layout says where each linear element lies. Here the two are composed: every dim of the tensor
becomes one or more *addressed dims*, each of which moves a fixed number of bytes (or, on the stick,
elements and then sticks). What has no such description is `None`: the caller copies it first.

`bind_view` and `place_for` are pure integers; `bind` looks at a tensor and needs torch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openspyre.compiler.graph import Place, Role, Tensor
from openspyre.compiler.view import View
from openspyre.formats import STICK_BYTES, Format
from openspyre.layout import SpyreTensorLayout

if TYPE_CHECKING:
    import torch

    from openspyre.compiler.build import GraphBuilder

MAX_DIMS = 16
"""Addressed dims of a tensor; the passes merge what one program cannot address."""


@dataclass(frozen=True)
class Bound:
    """A tensor as the Graph sees it.

    `sizes`: of its logical dims. `shape`, `place`: the addressed dims. `groups`: the addressed dims
    of each logical dim, major first; none for a dim that does not move (size 1, or expanded).
    `offset`: bytes from the storage's start to the first element. `linear`: linear elements a step
    of each addressed dim. `whole_sticks`: a STORE to it touches no element of another tensor.
    """

    sizes: tuple[int, ...]
    shape: tuple[int, ...]
    place: Place
    groups: tuple[tuple[int, ...], ...]
    offset: int
    linear: tuple[int, ...]
    whole_sticks: bool

    @property
    def expanded(self) -> bool:
        """Whether some dim shows the same elements again."""
        return any(not g and n != 1 for g, n in zip(self.groups, self.sizes, strict=True))

    def tensor(self, b: GraphBuilder, name: str, dtype: str, role: Role) -> Tensor:
        """The graph's tensor for it."""
        return b.tensor(name, self.shape, dtype, role, self.place)

    def view(self, tensor: Tensor) -> View:
        """`tensor` (of `self.tensor`) in its logical dims."""
        view = View.of(tensor, self.groups)
        return view.expand(self.sizes) if self.expanded else view

    def row(self, tensor: torch.Tensor, written: bool) -> tuple[object, ...]:
        """What csrc/torch/native_ops.cpp needs to bind another tensor that lies as `tensor`."""
        layout, _, origin = tensor_facts(tensor)
        eps = layout.format.elements_per_stick
        place = list(self.place.strides), self.place.stick
        return (list(self.shape), list(self.linear), *place, eps, written, origin, self.offset)

    def address(self, index: Sequence[int], elements_per_stick: int) -> int:
        """Byte offset of an element in the storage; for tests."""
        at, eps = self.offset, elements_per_stick
        for size, group, i in zip(self.sizes, self.groups, index, strict=True):
            rest = i if size != 1 else 0
            for d in reversed(group):
                rest, digit = divmod(rest, self.shape[d])
                stride = self.place.strides[d]
                assert isinstance(stride, int)
                if d == self.place.stick:
                    at += digit // eps * stride + digit % eps * (STICK_BYTES // eps)
                else:
                    at += digit * stride
        return at


@dataclass(frozen=True)
class _Axis:
    """A part of the linear space that moves evenly: index = linear // weight % size. `step`: bytes
    an index, or, on the stick, bytes a stick."""

    weight: int
    size: int
    step: int
    stick: bool


def bind_view(
    layout: SpyreTensorLayout, sizes: Sequence[int], strides: Sequence[int], offset: int = 0
) -> Bound | None:
    """The view of these sizes and strides (elements) that begins at linear element `offset` of a
    storage in `layout`; None when no addressed dims describe it. No size may be 0."""
    axes = _axes_of(layout)
    if axes is None:
        return None
    eps = layout.format.elements_per_stick
    origin = [offset // axis.weight % axis.size for axis in axes]
    shape: list[int] = []
    moves: list[tuple[int, int]] = []  # axis, indices of it a step
    groups: list[tuple[int, ...]] = []
    for size, stride in zip(sizes, strides, strict=True):
        if size == 1 or stride == 0:
            groups.append(())
            continue
        factors = _factors(axes, origin, size, stride)
        if factors is None:
            return None
        groups.append(tuple(range(len(shape), len(shape) + len(factors))))
        for count, axis, step in factors:
            shape.append(count)
            moves.append((axis, step))
    if len(shape) > MAX_DIMS:
        return None
    reach = list(origin)
    for count, (axis, step) in zip(shape, moves, strict=True):
        reach[axis] += (count - 1) * step
    if any(last >= axis.size for last, axis in zip(reach, axes, strict=True)):
        return None
    found = _placed(axes, origin, shape, moves, eps)
    if found is None:
        return None
    place, whole = found
    return Bound(
        sizes=tuple(sizes),
        shape=tuple(shape),
        place=place,
        groups=tuple(groups),
        offset=layout.element_offset(offset),
        linear=tuple(step * axes[axis].weight for axis, step in moves),
        whole_sticks=whole and not layout.has_copies,
    )


def _axes_of(layout: SpyreTensorLayout) -> list[_Axis] | None:
    """The even parts of the linear space, by ascending weight. None for a folded layout whose parts
    are no whole numbers."""
    width, eps = layout.format.bytes, layout.format.elements_per_stick
    found: list[_Axis] = []
    for axis in reversed(layout.axes):
        digits = list(reversed(axis.digits))  # least significant first
        at = 0
        while at < len(digits):
            low = digits[at]
            stick = low.device_stride == 1
            taken = 1
            step = low.device_stride * width
            if stick:
                step = STICK_BYTES
                if at + 1 < len(digits) and digits[at + 1].unit == low.unit * eps:
                    step = digits[at + 1].device_stride * width
                    taken = 2
            top = digits[at + taken].unit if at + taken < len(digits) else axis.size
            if top % low.unit:
                return None
            found.append(_Axis(low.unit * axis.host_stride, top // low.unit, step, stick))
            at += taken
    weight = 1
    for part in found:
        if part.weight != weight:
            return None
        weight *= part.size
    return found


def _factors(
    axes: Sequence[_Axis], origin: Sequence[int], size: int, stride: int
) -> list[tuple[int, int, int]] | None:
    """A dim as (count, axis, indices a step) factors, major first."""
    for number, axis in enumerate(axes):
        if stride >= axis.weight * axis.size:
            continue
        if stride % axis.weight:
            return None  # a diagonal: one step moves along two axes
        step = stride // axis.weight
        if origin[number] + (size - 1) * step < axis.size:
            return [(size, number, step)]
        inner = axis.size // step
        if axis.size % step or size % inner:
            return None
        if size == inner:  # only the origin stands in the way
            return None
        outer = _factors(axes, origin, size // inner, axis.weight * axis.size)
        return None if outer is None else [*outer, (inner, number, step)]
    return None


def _placed(
    axes: Sequence[_Axis],
    origin: Sequence[int],
    shape: Sequence[int],
    moves: Sequence[tuple[int, int]],
    eps: int,
) -> tuple[Place, bool] | None:
    """The Place, and whether its sticks hold no element of others."""
    strides: list[int] = []
    stick = -1
    for d, (axis, step) in enumerate(moves):
        if not axes[axis].stick:
            strides.append(step * axes[axis].step)
        elif step == 1:
            if stick >= 0:
                return None  # overlapping windows along the stick
            stick = d
            # One stick: its pitch says nothing.
            strides.append(axes[axis].step if shape[d] > eps else STICK_BYTES)
        elif step % eps == 0:
            strides.append(step // eps * axes[axis].step)
        else:
            return None
    whole = True
    for number, part in enumerate(axes):
        if not part.stick:
            continue
        if origin[number] % eps:
            return None  # begins within a stick
        along = [d for d, (axis, _) in enumerate(moves) if axis == number]
        if stick in along:
            ends = len(along) == 1 and origin[number] + shape[stick] == part.size
            whole = shape[stick] % eps == 0 or ends
        else:
            whole = part.size == 1
    return Place(tuple(strides), stick), whole


def storage_layout(
    sizes: Sequence[int], strides: Sequence[int], format: Format
) -> SpyreTensorLayout:
    """The layout of the storage that torch.empty_strided makes for these sizes and strides."""
    if _is_contiguous(sizes, strides):
        return SpyreTensorLayout.default(sizes, format)
    try:
        return SpyreTensorLayout.for_strided(sizes, strides, format)
    except ValueError:
        last = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        return SpyreTensorLayout.linear(last + 1, format)


def place_for(sizes: Sequence[int], strides: Sequence[int], format: Format) -> Bound | None:
    """How a new tensor of torch.empty_strided(sizes, strides) is seen. No size may be 0."""
    return bind_view(storage_layout(sizes, strides, format), sizes, strides)


def contiguous_strides(sizes: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    strides = [1] * len(sizes)
    for d in range(len(sizes) - 1, 0, -1):
        strides[d - 1] = strides[d] * max(sizes[d], 1)
    return tuple(strides)


def _is_contiguous(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def bind(tensor: torch.Tensor) -> Bound | None:
    """A spyre tensor with elements as the Graph sees it; None when it has to be copied first, also
    for a view with another dtype than its storage's."""
    layout, same_dtype, origin = tensor_facts(tensor)
    if not same_dtype:
        return None
    return bind_view(layout, tuple(tensor.shape), tensor.stride(), origin)


def tensor_facts(tensor: torch.Tensor) -> tuple[SpyreTensorLayout, bool, int]:
    """The layout of a tensor's storage, whether the storage holds the tensor's dtype, and the
    linear element at which the tensor begins."""
    from openspyre import _C

    number, same_dtype, origin = _C.tensor_facts(tensor)
    return _layout(number), same_dtype, origin


@functools.cache
def _layout(number: int) -> SpyreTensorLayout:
    from openspyre import _C

    host_size, device_size, stride_map, name = _C.layout_by_number(number)
    return SpyreTensorLayout(tuple(host_size), tuple(device_size), tuple(stride_map), Format[name])
