"""Twins of a sample: one on the CPU in the reference dtype, one on the device.

A twin keeps sizes, strides, storage offset, conjugate and negative bits: the whole storage is
carried over and viewed again, so that a step, an offset or an overlap of the sample is one on the
device too. Tensors that an operator takes only on the CPU (PT6: index tensors of a few operators)
are found by building the same samples on `meta` and seeing which tensors did not move.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

Convert = Callable[[Tensor], Tensor]

UP = {torch.float16: torch.float32, torch.complex32: torch.complex64}
DOWN = {wide: narrow for narrow, wide in UP.items()}


def seed(number: int) -> None:
    """Seeds every generator that the databases draw from."""
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def relocate(tensor: Tensor, convert: Convert) -> Tensor:
    """A detached twin of `tensor` whose values went through `convert`, as the same view.

    `convert` gets a plain tensor (contiguous, no lazy bits; or a sparse or nested one) and returns
    a new tensor of the same sizes, never an alias.
    """
    tensor = tensor.detach()
    if tensor.is_nested or tensor.layout != torch.strided:
        return convert(tensor)
    if tensor.is_conj():
        return relocate(tensor.conj(), convert).conj()
    if tensor.is_neg():
        return torch._neg_view(relocate(torch._neg_view(tensor), convert))
    if tensor.is_contiguous() and tensor.storage_offset() == 0:
        return convert(tensor)
    flat = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    return convert(flat).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def widen(dtype: torch.dtype) -> torch.dtype:
    return UP.get(dtype, dtype)


@dataclass
class Twins:
    """One sample and how to place it. Every call of `reference` or `placed` gives fresh copies."""

    sample: Any  # opinfo.core.SampleInput, on the CPU
    moves: list[bool] | None  # which tensors may move, in SampleInput.transform's order
    device: torch.device
    upcast: bool
    add_device: bool = False  # a factory function whose sample names no device

    def reference(self, requires_grad: bool = True) -> Any:
        if not self.upcast:
            return self._build(lambda t: t.clone(), None, requires_grad, None, None)

        def convert(tensor: Tensor) -> Tensor:
            if tensor.dtype not in UP:
                return tensor.clone()
            # The card's own rounding of the inputs: none in ieee mode, to DLFloat16 in dl16.
            dense = tensor.layout == torch.strided and tensor.dtype == torch.float16
            rounded = tensor.to(self.device).cpu() if dense else tensor
            return rounded.to(UP[tensor.dtype], copy=True)

        return self._build(convert, widen, requires_grad, None, None)

    def exact(self, requires_grad: bool = True) -> Any:
        """On the CPU, float32 tensors as float64 ones of the same values."""

        def convert(tensor: Tensor) -> Tensor:
            return tensor.double() if tensor.dtype == torch.float32 else tensor.clone()

        def wide(dtype: torch.dtype) -> torch.dtype:
            return torch.float64 if dtype == torch.float32 else dtype

        return self._build(convert, wide, requires_grad, None, None)

    def placed(self, requires_grad: bool = True) -> Any:
        def convert(tensor: Tensor) -> Tensor:
            return tensor.to(self.device, copy=True)

        return self._build(convert, None, requires_grad, self.moves, self.device)

    def anything_moves(self) -> bool:
        """Whether the operator is asked to compute on the device at all."""
        has_device = self.add_device or any(
            isinstance(value, torch.device) or key == "device"
            for key, value in self.sample.kwargs.items()
        )
        tensors = sum(isinstance(x, Tensor) for x in tree_leaves(parts(self.sample)))
        moving = tensors if self.moves is None else sum(self.moves)
        return has_device or moving > 0 or tensors == 0

    def _build(
        self,
        convert: Convert,
        dtypes: Callable[[torch.dtype], torch.dtype] | None,
        requires_grad: bool,
        moves: list[bool] | None,
        device: torch.device | None,
    ) -> Any:
        position = 0

        def twin(value: Any) -> Any:
            nonlocal position
            if isinstance(value, torch.dtype):
                return dtypes(value) if dtypes is not None else value
            position += 1
            stays = moves is not None and not moves[position - 1]
            new = relocate(value, (lambda t: t.clone()) if stays else convert)
            if requires_grad and value.requires_grad:
                new.requires_grad_(True)
            if isinstance(value, torch.nn.Parameter):
                new = torch.nn.Parameter(new, requires_grad=new.requires_grad)
            return new

        sample = self.sample.transform(twin)
        if device is not None:
            sample.args = tree_map(lambda x: _redirect(x, device), sample.args)
            sample.kwargs = {
                key: _redirect(value, device, key == "device")
                for key, value in sample.kwargs.items()
            }
            if self.add_device:
                sample.kwargs.setdefault("device", device)
        return sample


def parts(sample: Any) -> tuple[Any, Any, Any]:
    return sample.input, sample.args, sample.kwargs


def tensors_of(sample: Any) -> list[Tensor]:
    return [x for x in tree_leaves(parts(sample)) if isinstance(x, Tensor)]


def _redirect(value: Any, device: torch.device, named: bool = False) -> Any:
    if isinstance(value, torch.device) or (isinstance(value, str) and value in ("cpu", "cpu:0")):
        return device
    if named and value is None:
        return device
    return value


def _moves(op: Any, dtype: torch.dtype, number: int, requires_grad: bool) -> list[list[bool]]:
    """Per sample: which tensors follow the device. Empty where meta cannot build the samples."""
    found: list[list[bool]] = []
    try:
        seed(number)
        for sample in op.sample_inputs("meta", dtype, requires_grad=requires_grad):
            row: list[bool] = []

            def note(value: Any, row: list[bool] = row) -> Any:
                if isinstance(value, Tensor):
                    row.append(value.device.type == "meta")
                return value

            sample.transform(note)
            found.append(row)
    except Exception:  # a database that reads values while it builds cannot run on meta
        return []
    return found


def twins_of(
    op: Any, dtype: torch.dtype, device: torch.device, *, upcast: bool, requires_grad: bool
) -> Iterator[Twins]:
    """The samples of `op` in `dtype`, always the same ones."""
    number = 1234
    moves = _moves(op, dtype, number, requires_grad)
    seed(number)
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad))
    for index, sample in enumerate(samples):
        row = moves[index] if len(moves) == len(samples) else None
        if row is not None and len(row) != len(_transform_order(sample)):
            row = None
        add = op.is_factory_function and "device" not in sample.kwargs
        yield Twins(sample, row, device, upcast, add)


def _transform_order(sample: Any) -> list[Tensor]:
    found: list[Tensor] = []

    def note(value: Any) -> Any:
        if isinstance(value, Tensor):
            found.append(value)
        return value

    sample.transform(note)
    return found
