"""One ModuleInfo against the CPU: forward, buffers, gradients of parameters and inputs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from .compare import FLOAT32, Mismatch, compare_values, reduction_factor
from .operators import Recorder
from .placement import relocate, seed
from .runs import Run
from .target import Target


def examine_module(info: Any, run: Run, target: Target) -> Recorder:
    """Every module input of `info`, in training and (where it differs) evaluation mode."""
    record = Recorder()
    dtype = getattr(torch, run.dtype)
    for what, training, case in cases_of(info, dtype):
        prepared = prepare_case(info, case, training, dtype, target)
        if prepared is not None:
            record.check(what, prepared.both)
    return record


def cases_of(info: Any, dtype: torch.dtype) -> Iterator[tuple[str, bool, Any]]:
    """What each module input is called, whether it is for training, and it itself."""
    for training in (True, False) if info.train_and_eval_differ else (True,):
        seed(4321)
        inputs = info.module_inputs_func(
            info,
            device="cpu",
            dtype=dtype,
            requires_grad=True,
            training=training,
        )
        for index, case in enumerate(inputs):
            if case.forward_input is not None:
                yield (
                    f"{'train' if training else 'eval'} {index} {case.desc}".strip(),
                    training,
                    case,
                )


class Prepared:
    """A module on the device, its inputs, and what the CPU made of the same."""

    def __init__(
        self,
        twin: nn.Module,
        inputs: Any,
        module: nn.Module,
        expected: Any,
        wanted: Any,
        values: bool,
        target: Target,
    ) -> None:
        self.target, self.module, self.expected, self.wanted = target, module, expected, wanted
        self.values, self.given = values, inputs
        self.differentiable = wanted is not None
        self.sizes = [t for t in tree_leaves(inputs) if isinstance(t, Tensor)]
        self.twin = twin
        self.placed = False

    def _place(self) -> None:
        with self.target.aside():
            self.twin.to(self.target.device)
            self.mine = tree_map(lambda x: _place(x, self.target.device), self.given)
        self.placed = True
        for name, tensor in self.twin.state_dict().items():
            if isinstance(tensor, Tensor) and tensor.device.type != self.target.device.type:
                raise Mismatch(f"{name} stayed on {tensor.device} after Module.to")

    def forward(self) -> None:
        """Raises where the device gives another result or leaves other buffers."""
        if not self.placed:
            self._place()
        self.actual = self.twin(*self.mine[0], **self.mine[1])
        self.target.synchronize()
        self._same(self.actual, self.expected, "result")
        self._same(
            [b for _, b in self.twin.named_buffers()],
            [b for _, b in self.module.named_buffers()],
            "buffer",
        )

    def backward(self) -> None:
        """Raises where the device gives other gradients. After `forward`."""
        found = _gradients(self.twin, self.mine, self.actual)
        self.target.synchronize()
        self._same(found, self.wanted, "gradient")

    def both(self) -> None:
        """Forward, and backward where there is one."""
        self.forward()
        if self.differentiable:
            self.backward()

    def _same(self, actual: Any, expected: Any, what: str) -> None:
        _same(actual, expected, self.sizes, self.target, self.values, what)


def prepare_case(
    info: Any, case: Any, training: bool, dtype: torch.dtype, target: Target
) -> Prepared | None:
    """One module input, with the CPU's results; None where the CPU has none."""
    args, kwargs = case.forward_input.args, case.forward_input.kwargs
    try:
        module = info.module_cls(*case.constructor_input.args, **case.constructor_input.kwargs)
        module.to(dtype).train(training)
        if info.is_lazy:
            with torch.no_grad():
                module(*args, **kwargs)
        twin = copy.deepcopy(module)
        inputs = tree_map(lambda x: _place(x, None), (args, kwargs))
        state = torch.get_rng_state()
        expected = module(*inputs[0], **inputs[1])
        draws = not torch.equal(state, torch.get_rng_state())
        wanted = _gradients(module, inputs, expected)
    except Exception:
        return None  # what the CPU cannot run is no reference
    return Prepared(twin, (args, kwargs), module, expected, wanted, not draws, target)


def _place(value: Any, device: torch.device | None) -> Any:
    """A twin of `value` on `device` (None: a copy on the CPU)."""
    if not isinstance(value, Tensor):
        return value
    new = relocate(value, lambda t: t.clone() if device is None else t.to(device, copy=True))
    if isinstance(value, nn.Parameter):
        return nn.Parameter(new, requires_grad=value.requires_grad)
    return new.requires_grad_(value.requires_grad)


def _gradients(module: nn.Module, inputs: Any, result: Any) -> list[Tensor | None] | None:
    leaves = [*module.parameters(), *(t for t in tree_leaves(inputs) if isinstance(t, Tensor))]
    leaves = [t for t in leaves if t.requires_grad]
    outputs = [t for t in tree_leaves(result) if isinstance(t, Tensor) and t.requires_grad]
    if not leaves or not outputs:
        return None
    ones = [torch.ones_like(t) for t in outputs]
    return list(torch.autograd.grad(outputs, leaves, ones, allow_unused=True))


def _same(
    actual: Any, expected: Any, sizes: list[Tensor], target: Target, values: bool, what: str
) -> None:
    mine, theirs = tree_leaves(actual), tree_leaves(expected)
    if len(mine) != len(theirs):
        raise Mismatch(f"{what}: {len(mine)} leaves, wanted {len(theirs)}")
    for number, (got, want) in enumerate(zip(mine, theirs, strict=True)):
        if not isinstance(want, Tensor):
            continue
        where = f"{what} {number}"
        if not isinstance(got, Tensor):
            raise Mismatch(f"{where}: {got!r}, wanted a tensor")
        # PackedSequence.batch_sizes is a CPU tensor on every device.
        if got.device.type != target.device.type and want.dtype != torch.int64:
            raise Mismatch(f"{where}: on {got.device}, wanted {target.device}")
        if (got.shape, got.dtype) != (want.shape, want.dtype):
            raise Mismatch(
                f"{where}: {tuple(got.shape)} {got.dtype}, wanted {tuple(want.shape)} {want.dtype}"
            )
        if values:
            factor = max(1.0, reduction_factor(sizes, want))
            with target.aside():
                compare_values(got, want, FLOAT32.scaled(2 * factor), where)
