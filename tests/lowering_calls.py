"""One call of an ATen operation by its lowering, held against torch's CPU in float32."""

from __future__ import annotations

from typing import Any

import torch
from lowering_checks import compare, flat, lowered

from openspyre.formats import Mode

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)


def wide(value: Any) -> Any:
    """The value with 16-bit floats as float32."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in HALVES else value
    if isinstance(value, (list, tuple)):
        return type(value)(wide(item) for item in value)
    return value


def narrow(value: Any, like: Any) -> Any:
    """A float32 result as the operation's dtype."""
    if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
        return value.to(like)
    return value


def check(
    op: torch._ops.OpOverload,
    *args: Any,
    tolerance: float = 1.0,
    float32_results: tuple[int, ...] = (),
    mode: Mode = Mode.IEEE,
    **kwargs: Any,
) -> None:
    """Holds the lowering's results equal to torch's, computed in float32 and rounded to the dtype
    of the first float tensor; results number `float32_results` stay float32."""
    halves = [t.dtype for t in flat(args) if isinstance(t, torch.Tensor) and t.dtype in HALVES]
    wanted = op(*wide(args), **{k: wide(v) for k, v in kwargs.items()})
    results = [t for t in flat(wanted) if isinstance(t, torch.Tensor)]
    if halves:
        results = [
            t if n in float32_results else narrow(t, halves[0]) for n, t in enumerate(results)
        ]
    got, dtypes = lowered(op, args, kwargs, mode=mode)
    results = results[: len(got)]
    compare(str(op), got, dtypes, results, tolerance)


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normal numbers, the same ones every time."""
    generator = torch.Generator().manual_seed(seed + len(shape) * 101 + sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def whole(*shape: int, high: int = 10, low: int = 0, seed: int = 0) -> torch.Tensor:
    """int64 numbers, the same ones every time."""
    generator = torch.Generator().manual_seed(seed + len(shape) * 101 + sum(shape))
    return torch.randint(low, high, shape, generator=generator)
