"""New tensors of a region: with the sizes and strides that the traced program expects.

A launch writes what the Graph can address: a `Made` says which tensor that is and how it becomes
the result. Most are the result itself. A slice is a view of the tensor that it is a slice of, an
expanded tensor one of its elements taken once; what is left is computed dense and moved. Elements
between those of a result have no value: only another result of the same storage could show them,
and the tracer gives such ones their common base. Needs torch and the extension.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from openspyre.compiler.bind import Bound, bind_view, contiguous_strides, storage_layout
from openspyre.compiler.view import View
from openspyre.formats import Format


@dataclass(frozen=True)
class Made:
    """A result of `sizes` and `strides`. The launch writes a tensor `base` (sizes, strides), which
    it sees as `bound`; `moved`: the result is a tensor of its own, else a view of the base."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    base: tuple[tuple[int, ...], tuple[int, ...]]
    bound: Bound
    moved: bool = False

    @property
    def whole(self) -> bool:
        """Whether the base is the result."""
        return not self.moved and self.base == (self.sizes, self.strides)

    def allocate(self, device: torch.device) -> torch.Tensor:
        """The base, not yet written."""
        return torch.empty_strided(*self.base, dtype=self.dtype, device=device)

    def finish(self, base: torch.Tensor) -> torch.Tensor:
        """The result, from the written base."""
        if self.moved:
            return laid_out(base, self.sizes, self.strides)
        return base if self.whole else base.as_strided(self.sizes, self.strides)

    def narrowed(self, value: View) -> View:
        """What the launch stores: `value` without its repetitions."""
        if value.rank != len(self.sizes):
            return value
        value = value.expand(self.sizes)
        for d, size in enumerate(self.bound.sizes):
            if size != self.sizes[d]:
                value = value.slice(d, 0, 1)
        return value


def made(sizes: Sequence[int], strides: Sequence[int], dtype: str, format: Format) -> Made:
    """How a result is made. No size may be 0."""
    shape, steps = tuple(sizes), tuple(strides)
    once = _once(shape, steps)
    bases = [(once, steps)]
    around = enclosing(once, steps)
    step = min((s for n, s in zip(once, steps, strict=True) if n != 1), default=1)
    # Steps within a stick would leave most of it empty.
    if around is not None and (step == 1 or step >= format.elements_per_stick):
        bases.append((around, contiguous_strides(around)))
    for base in bases:
        bound = bind_view(storage_layout(*base, format), once, steps)
        if bound is not None:
            return Made(shape, steps, getattr(torch, dtype), base, bound)
    dense = (once, contiguous_strides(once))
    bound = bind_view(storage_layout(*dense, format), *dense)
    assert bound is not None
    return Made(shape, steps, getattr(torch, dtype), dense, bound, moved=True)


def _once(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The sizes with every element taken once."""
    return tuple(1 if stride == 0 else n for n, stride in zip(sizes, strides, strict=True))


def enclosing(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The sizes of the contiguous tensor of which one of these sizes and strides is a slice from
    its first element on; None when there is none."""
    dims = sorted(
        ((stride, n) for n, stride in zip(sizes, strides, strict=True) if n != 1), reverse=True
    )
    if not dims:
        return None
    shape = [dims[0][1]]
    for (outer, _), (inner, size) in itertools.pairwise(dims):
        if outer % inner or size > outer // inner:
            return None
        shape.append(outer // inner)
    if dims[-1][0] > 1:
        shape.append(dims[-1][0])
    return tuple(shape)


def laid_out(value: torch.Tensor, sizes: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """A new tensor of these sizes and strides, with the elements of `value` (which broadcasts)."""
    shape, steps = tuple(sizes), tuple(strides)
    once = _once(shape, steps)
    for d, size in enumerate(once):
        if value.shape[d] != size:
            value = value.narrow(d, 0, 1)
    if _overlaps(once, steps):
        # Windows over the same elements: every element of the storage comes from one that shows it.
        flat = value.reshape(-1).index_select(0, _sources(once, steps).to(value.device))
        return flat.as_strided(shape, steps)
    target = torch.empty_strided(once, steps, dtype=value.dtype, device=value.device)
    target.copy_(value)
    return target if once == shape else target.as_strided(shape, steps)


def _overlaps(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two indices may show one element."""
    reach = 0
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if size == 1:
            continue
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


@functools.lru_cache(64)
def _sources(sizes: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """For every element of the storage the number of an index, row by row, that shows it."""
    at = np.zeros(sizes, np.int64)
    for d, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        at += (np.arange(size) * stride).reshape([-1 if i == d else 1 for i in range(at.ndim)])
    found = np.zeros(int(at.max()) + 1, np.int64)
    found[at.reshape(-1)] = np.arange(at.size)
    return torch.from_numpy(found)
