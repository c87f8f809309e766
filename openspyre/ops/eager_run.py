"""Eager calls at work: those that take more than one launch, and how tensors lie to each other.

The part of `eager.py` that runs at every call of its kind, not at the first alone. Needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from openspyre.compiler import launch
from openspyre.compiler.bind import Bound, bind_view, tensor_facts
from openspyre.compiler.errors import CompileError
from openspyre.compiler.lower.promote import ZeroDim
from openspyre.ops import nothing
from openspyre.ops.eager_parts import Declined, NumberAt, TensorAt, kinds_of

TENSOR, OUTPUT, CONSTANT, TEMP = range(4)
"""What a launch argument is: csrc/torch/native_ops.cpp Recipe::From."""

Source: TypeAlias = "tuple[int, int, Bound]"
"""Where a launch argument comes from: what it is, which one, how it is seen."""


class Runner:
    """A call that is more than one launch: copies before and after it, several plans.

    `sources`: what each graph tensor is; `into`: for each output the tensor it is copied to, or -1;
    `dense`: for each tensor whether a contiguous copy stands in for it."""

    def __init__(
        self,
        sources: Mapping[str, Source],
        into: Sequence[int],
        loaded: launch.LoadedRegion,
        dense: Sequence[bool],
    ) -> None:
        self.loaded = loaded
        self.dense = dense
        self.sources = [sources[t.name] for t in loaded.arguments]
        self.into = [(n, target) for n, target in enumerate(into) if target >= 0]

    def __call__(
        self,
        tensors: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        numbers: Sequence[int | float],
        seed: int,
        offset: int,
    ) -> None:
        """Runs the call on its tensors, new outputs, numbers and the generator's state."""
        ready = [
            dense_copy(tensor) if copied else tensor
            for tensor, copied in zip(tensors, self.dense, strict=True)
        ]
        launched: list[torch.Tensor] = []
        bounds: list[Bound] = []
        for kind, index, bound in self.sources:
            if kind == OUTPUT:
                launched.append(outputs[index])
            else:
                launched.append(ready[index])
                if not self.dense[index]:
                    found = rebound(tensors[index], bound)
                    if found is None:
                        raise CompileError("a tensor does not lie as the recipe's did")
                    bound = found
            bounds.append(bound)
        symbols: dict[str, int | float] = {f"s{n}": v for n, v in enumerate(numbers)}
        symbols |= {"seed": seed, "offset": offset}
        self.loaded.run(launched, bounds, symbols)
        for output, target in self.into:
            tensors[target].copy_(outputs[output])


def rebound(tensor: torch.Tensor, bound: Bound) -> Bound | None:
    """`bound` for a tensor of the same key, which may begin elsewhere."""
    layout, _, origin = tensor_facts(tensor)
    here = bind_view(layout, bound.shape, bound.linear, origin)
    if here is None or here.place != bound.place or here.shape != bound.shape:
        return None
    return replace(bound, offset=here.offset)


def dense_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy on the card."""
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for tensors that are the same elements in the same order."""
    return (
        tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.dtype,
        tuple(tensor.shape), tuple(tensor.stride()),
    )  # fmt: skip


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill what they span, each once, in some order of dims."""
    width = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != width:
                return False
            width *= size
    return True


def shares_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def extents_meet(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the elements that two tensors of one storage span may meet; in whole sticks, where
    one of them is written."""

    def span(tensor: torch.Tensor) -> tuple[int, int]:
        low = int(tensor.storage_offset())
        reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        return low * tensor.itemsize, (low + reach + 1) * tensor.itemsize

    (a_low, a_high), (b_low, b_high) = span(a), span(b)
    return a_low < b_high and b_low < a_high


class Resizer:
    """A call whose outs at `sizes` (number of the tensor, sizes, strides) have no elements."""

    def __init__(
        self,
        op: torch._ops.OpOverload,
        slots: Sequence[Any],
        sizes: Sequence[tuple[int, tuple[int, ...], tuple[int, ...]]],
    ) -> None:
        self.op, self.slots, self.sizes = op, slots, sizes
        for kind, slot in zip(kinds_of(op), slots, strict=True):
            if kind == "generator" and slot is not None:
                raise Declined("it resizes its out= tensor and draws from a generator")

    def __call__(
        self,
        tensors: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        numbers: Sequence[int | float],
        seed: int,
        offset: int,
    ) -> None:
        """Gives the outs their sizes and makes the call again."""
        for index, sizes, strides in self.sizes:
            lay(tensors[index], sizes, strides)

        def value_of(slot: Any) -> Any:
            if isinstance(slot, TensorAt):
                return tensors[slot.index]
            if isinstance(slot, NumberAt):
                number = numbers[slot.index]
                return (
                    torch.tensor(number, dtype=getattr(torch, slot.dtype)) if slot.dtype else number
                )
            if isinstance(slot, ZeroDim):
                return torch.tensor(slot.value)
            if isinstance(slot, list):
                return [value_of(item) for item in slot]
            return slot

        positional, named = [], {}
        for argument, slot in zip(self.op._schema.arguments, self.slots, strict=True):
            if argument.kwarg_only:
                named[argument.name] = value_of(slot)
            else:
                positional.append(value_of(slot))
        self.op(*positional, **named)


@dataclass(frozen=True)
class Target:
    """What a call of nothing leaves: `number` of the argument, or -1 - that of the new result; the
    sizes and strides that an out= without elements gets; what fills it."""

    number: int
    laid: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    fill: nothing.Fill | None = None


class Filler:
    """A call whose results are known without a program."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self.targets = targets

    def __call__(
        self,
        tensors: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        numbers: Sequence[int | float],
        seed: int,
        offset: int,
    ) -> None:
        for target in self.targets:
            number = target.number
            tensor = tensors[number] if number >= 0 else outputs[-1 - number]
            if target.laid is not None:
                lay(tensor, *target.laid)
            if target.fill is not None:
                target.fill(tensors, numbers, tensor)


def lay(given: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Gives an out= tensor without elements its sizes and strides."""
    if given.untyped_storage().nbytes() == 0:
        # Nothing to keep, and new memory is laid for these sizes at once.
        made = torch.empty_strided(sizes, strides, dtype=given.dtype, device=given.device)
        given.set_(made.untyped_storage(), 0, sizes, strides)
        return
    given.resize_(sizes)
    if given.stride() != strides:
        given.as_strided_(sizes, strides)
