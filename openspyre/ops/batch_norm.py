"""Batch normalisation on the card: `native_batch_norm` as the operation that says what it writes.

The schema of `aten::native_batch_norm` hides that the running statistics are updated, so eager
calls of it cannot be planned from the schema; `aten::_native_batch_norm_legit` computes the same
and declares it. This kernel for the device passes one on to the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

_library: torch.library.Library | None = None


def native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(output, mean, reciprocal deviation); without training the latter two have no elements."""
    legit = torch.ops.aten._native_batch_norm_legit
    made: tuple[Tensor, Tensor, Tensor]
    if running_mean is None and running_var is None:
        made = legit.no_stats(x, weight, bias, training, momentum, eps)
    else:
        made = legit.default(
            x, weight, bias, running_mean, running_var, training, momentum, eps
        )  # fmt: skip
    return made if training else (made[0], x.new_empty(0), x.new_empty(0))


def register() -> None:
    """Makes it the device's kernel. A second call does nothing."""
    global _library
    if _library is None:
        _library = torch.library.Library("aten", "IMPL", "PrivateUse1")
        _library.impl("native_batch_norm", native_batch_norm)
