"""Eager calls that make elements of tensors which have none: products over no terms, reductions of
nothing, scatters of nothing. No program is compiled for them; their value is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

VALUES: dict[str, tuple[float, ...]] = {
    **dict.fromkeys(
        (
            "mm", "bmm", "mv", "dot", "vdot", "sum", "nansum", "any", "count_nonzero", "histc",
            "trace", "native_batch_norm_backward", "batch_norm_backward",
            "native_group_norm_backward", "native_layer_norm_backward", "convolution_backward",
            "embedding_dense_backward", "_pdist_backward", "_pdist_forward", "_cdist_forward",
            "_cdist_backward",
            "index_select_backward", "select_backward", "slice_backward", "unfold_backward",
            "linalg_vector_norm", "norm", "dist", "new_zeros", "_fused_rms_norm_backward",
            "_embedding_bag_dense_backward", "_int_mm",
            "new_empty", "new_empty_strided", "diagonal_backward", "im2col", "col2im",
        ),
        (0.0,),
    ),
    **dict.fromkeys(("prod", "all", "new_ones"), (1.0,)),
    **dict.fromkeys(("mean", "var", "std", "var_mean", "std_mean"), (math.nan,)),
    "logsumexp": (-math.inf,),
    "linalg_cholesky_ex": (0.0, 0.0),
    "linalg_inv_ex": (0.0, 0.0),
    "linalg_lu_factor_ex": (0.0, 0.0, 0.0),
    "_linalg_det": (1.0, 0.0, 0.0),
    "_linalg_slogdet": (1.0, 0.0, 0.0, 0.0),
}  # fmt: skip
"""The value of every element of the results, or of each result; by the operation's short name."""

READ = {
    "self", "input", "x1", "grad", "grad_output", "grad_out", "grad_in", "A",
}  # fmt: skip
"""What these operations read the elements of."""

SAME = frozenset(
    (
        "index_add", "index_copy", "index_fill", "index_reduce", "index_put", "_index_put_impl",
        "_unsafe_index_put", "put", "scatter", "scatter_add", "scatter_reduce",
    )
)  # fmt: skip
"""Operations that change an argument where they are told to: by nothing, not at all."""

SCALED = frozenset(("addmm", "addmv", "baddbmm", "addbmm", "addr"))
"""beta * self + what is a sum over no terms."""

Fill = Callable[[Sequence[torch.Tensor], Sequence[int | float], torch.Tensor], None]


def known(name: str, without: set[str]) -> bool:
    """Whether the value of operation `name` (without namespace and overload) is known, when the
    arguments `without` have no elements: those that it reads first, or that say where to write."""
    if name in SAME:
        return bool(without & {"index", "indices"})
    if name in SCALED:
        return bool(without & {"mat1", "mat", "batch1", "vec1", "vec2"})
    return name in VALUES and bool(without & READ)


def fill_of(name: str, result: int, first: int, beta: int | float | None, number: int) -> Fill:
    """How result number `result` is filled: a function of the call's tensors, its numbers, and the
    tensor to fill. `first`: the number of the argument self; beta: its value, or None where it is
    number `number` of the call."""
    if name in VALUES:
        values = VALUES[name]
        value = values[result] if len(values) > 1 else values[0]
        return lambda tensors, numbers, target: _filled(target, value)
    if name in SAME:
        return lambda tensors, numbers, target: _copied(target, tensors[first])

    def scaled(
        tensors: Sequence[torch.Tensor], numbers: Sequence[int | float], target: torch.Tensor
    ) -> None:
        factor = numbers[number] if beta is None else beta
        if factor == 0:
            _filled(target, 0.0)
            return
        _copied(target, tensors[first])
        if factor != 1:
            target.mul_(factor)

    return scaled


def _filled(target: torch.Tensor, value: float) -> None:
    target.fill_(value)


def _copied(target: torch.Tensor, source: torch.Tensor) -> None:
    if target is not source:
        target.copy_(source.expand(target.shape))
