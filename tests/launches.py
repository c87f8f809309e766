"""Tensors for launches, and `refused`: a launch that is an error and submits nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.spyre

F16 = torch.float16


def ramp(*shape: int, dtype: torch.dtype = F16) -> torch.Tensor:
    """Multiples of 1/64 between -2 and 2: exact in every 16-bit format. On the CPU."""
    count = int(torch.tensor(shape).prod())
    return ((torch.arange(count) * 7 % 255 - 127) / 64).to(dtype).reshape(shape)


def on_card(*shape: int, dtype: torch.dtype = F16) -> torch.Tensor:
    return ramp(*shape, dtype=dtype).to("spyre")


def refused(
    match: str,
    plan: torch.spyre.JobPlan,
    tensors: list[Any],
    error: type = RuntimeError,
    **more: Any,
) -> None:
    """The launch is an error that says `match`, and nothing was submitted."""
    torch.spyre.synchronize()
    before = (plan.counters, len(torch.spyre.synthetic.timeline()))
    with pytest.raises(error, match=match):
        torch.spyre.launch(plan, tensors, **more)
    assert (plan.counters, len(torch.spyre.synthetic.timeline())) == before
