"""A region that does not compile, run one operation after the other by PyTorch's dispatcher.

What the passes or the schedulers refuse is known at launch only, when the region stands in the
generated wrapper. Its operations are still those of the traced program: each runs as it would
eagerly, on the card or by the counted fallback. Random operations, which have no eager kernel of
the same numbers, are compiled alone and take their numbers from the generator as the region would.

Rules kept: inputs are read as they were at the start and written at the end; results are new
tensors of the traced sizes and strides. Needs torch and the extension.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

from openspyre import _C, env
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.lower.registry import overload
from openspyre.compiler.results import laid_out
from openspyre.compiler.sizes import known
from openspyre.compiler.traced import (
    Call,
    Result,
    TensorFacts,
    TracedRegion,
    concrete,
    size_from,
)

Alone: TypeAlias = "Callable[[TracedRegion, Sequence[torch.Tensor]], list[torch.Tensor]]"
"""Runs a region, for the operations that must be compiled."""


Step: TypeAlias = "Callable[[torch._ops.OpOverload, str, Sequence[Any], dict[str, Any]], Any]"
"""Runs one operation (with the user's line, its arguments): openspyre.observe.intermediates."""

_watching = threading.local()


@contextmanager
def watched(step: Step) -> Iterator[None]:
    """Regions that this thread launches inside run by their operations, each by `step`."""
    before = watcher()
    _watching.step = step
    _C.watch_regions(True)
    try:
        yield
    finally:
        _watching.step = before
        _C.watch_regions(False)


def watcher() -> Step | None:
    """What runs the operations of this thread's regions, if anything does."""
    return getattr(_watching, "step", None)


def recovers(error: Exception, region: TracedRegion) -> bool:
    """Whether a region that failed to compile with `error` runs by its operations; warns if so.
    What the card does not do is no fault, a fault of the compiler is raised with
    OPENSPYRE_STRICT=1; a full or broken card always is."""
    if isinstance(error, (torch.OutOfMemoryError, torch.AcceleratorError)):
        return False
    names = list(dict.fromkeys(c.op for c in region.calls if "." in c.op))
    what = f"a compiled region of {', '.join(names[:4])}{' ..' if len(names) > 4 else ''}"
    if isinstance(error, Unsupported):
        reason = f"{what} does not compile as one ({error})"
    elif env.read("OPENSPYRE_STRICT", os.environ):
        return False
    else:
        reason = (
            f"{what}: the compiler failed ({type(error).__name__}: {error}; OPENSPYRE_STRICT=1"
            " raises the error)"
        )
    warnings.warn(f"{reason}: its operations run one by one", RuntimeWarning, stacklevel=4)
    return True


def run(
    region: TracedRegion,
    tensors: Sequence[torch.Tensor],
    sizes: Sequence[int],
    device: torch.device,
    alone: Alone,
) -> list[torch.Tensor]:
    """The region's new results; writes those of its tensors that it writes."""
    symbols = {s.name: v for s, v in zip(region.symbols, sizes, strict=True)}
    values: list[Any] = list(tensors)

    def value_of(argument: Any) -> Any:
        if isinstance(argument, dict):
            if "n" in argument:
                return values[argument["n"]]
            if "s" in argument:
                return known(size_from(argument["s"], symbols))
            return getattr(torch, argument["d"])
        if isinstance(argument, list):
            return [value_of(item) for item in argument]
        return argument

    for call in region.calls:
        args = [value_of(a) for a in call.args]
        kwargs = {name: value_of(a) for name, a in call.kwargs.items()}
        if call.op == "getitem":
            values.append(args[0][args[1]])
        elif call.op == "constant":
            dtype = getattr(torch, kwargs["dtype"])
            values.append(torch.tensor(kwargs["values"], dtype=dtype).reshape(args[0]).to(device))
        elif call.op.startswith("prims.inductor_"):
            values.append(_alone(call, values, symbols, device, alone))
        else:
            op, args, kwargs = _on_device(overload(call.op), args, kwargs, device)
            step = watcher()
            values.append(
                op(*args, **kwargs) if step is None else step(op, call.source, args, kwargs)
            )
    made: list[torch.Tensor] = []
    taken = {_storage(tensor) for tensor in tensors}
    for result in region.results:
        if result.into >= 0:
            continue
        value = values[result.value]
        shape = tuple(concrete(result.facts.sizes, symbols))
        strides = tuple(concrete(result.facts.strides, symbols))
        if value.stride() != strides or _storage(value) in taken or value.device != device:
            value = laid_out(value.to(device), shape, strides)
        taken.add(_storage(value))
        made.append(value)
    stores = [r for r in region.results if r.into >= 0]
    written = {_storage(tensors[r.into]) for r in stores}
    ready = [values[r.value] for r in stores]
    ready = [v.clone() if _storage(v) in written else v for v in ready]
    for result, value in zip(stores, ready, strict=True):
        tensors[result.into].copy_(value)
    return made


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _on_device(
    op: torch._ops.OpOverload, args: Sequence[Any], kwargs: dict[str, Any], device: torch.device
) -> tuple[torch._ops.OpOverload, list[Any], dict[str, Any]]:
    """The operation and its arguments, with the device, which the traced call does not say."""
    given = list(args)
    for at, argument in enumerate(op._schema.arguments):
        if argument.name != "device":
            continue
        if at < len(given):
            given[at] = device
        else:
            kwargs = {**kwargs, "device": device}
    return op, given, kwargs


def _alone(
    call: Call,
    values: Sequence[Any],
    symbols: dict[str, int],
    device: torch.device,
    alone: Alone,
) -> torch.Tensor:
    """The call as a region of its own: sizes as numbers, its one result contiguous."""
    inputs: list[torch.Tensor] = []

    def plain(argument: Any) -> Any:
        if isinstance(argument, dict) and "n" in argument:
            inputs.append(values[argument["n"]])
            return {"n": len(inputs) - 1}
        if isinstance(argument, dict) and "s" in argument:
            return known(size_from(argument["s"], symbols))
        return [plain(item) for item in argument] if isinstance(argument, list) else argument

    args = [plain(a) for a in call.args]
    kwargs = {name: plain(a) for name, a in call.kwargs.items()}
    twins = [torch.empty_like(t, device="meta") for t in inputs]
    shape, dtype = _shape_of(call.op, args)
    facts = _facts(torch.empty(shape, dtype=dtype, device="meta"))
    region = TracedRegion(
        call.op,
        [_facts(t) for t in twins],
        [Call(call.op, args, kwargs, call.source)],
        [Result(len(inputs), facts)],
        device=device.index,
    )
    (result,) = alone(region, inputs)
    return result


def _shape_of(op: str, args: Sequence[Any]) -> tuple[list[int], torch.dtype]:
    """Sizes and dtype of what a random operation of Inductor's gives."""
    name = op.split(".")[1]
    if name == "inductor_seeds":
        return [args[0]], torch.int64
    if name == "inductor_lookup_seed":
        return [], torch.int64
    if name == "inductor_random":
        return args[0], torch.float32
    assert name == "inductor_randint", op
    return args[2], torch.int64


def _facts(tensor: torch.Tensor) -> TensorFacts:
    return TensorFacts(
        str(tensor.dtype).removeprefix("torch."), list(tensor.shape), list(tensor.stride())
    )
