"""Norms, pools, interpolation and attention by their lowerings, against torch's CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lowering_calls import aten, check, draw
from lowering_checks import Checker, compare, lowered

W, C = draw(10), draw(6)
M3 = [True, True, True]


def test_layer_norm() -> None:
    x, bias = draw(4, 6, 10), draw(10, seed=4)
    check(aten.native_layer_norm.default, x, [10], W, bias, 1e-5, tolerance=4.0)
    check(aten.native_layer_norm.default, x, [6, 10], None, None, 1e-5, tolerance=4.0)
    halves = [x.half(), [10], W.half(), bias.half(), 1e-5]
    check(aten.native_layer_norm.default, *halves, float32_results=(1, 2), tolerance=2.0)
    _, mean, rstd = aten.native_layer_norm.default(x, [10], W, bias, 1e-5)
    check(
        aten.native_layer_norm_backward.default, draw(4, 6, 10, seed=9), x, [10], mean, rstd, W,
        bias, M3, tolerance=8.0,
    )  # fmt: skip


def test_group_norm() -> None:
    x = draw(2, 6, 5, 4)
    args = (C, draw(6, seed=3), 2, 6, 20, 3, 1e-5)
    check(aten.native_group_norm.default, x, *args, tolerance=4.0)
    _, mean, rstd = aten.native_group_norm.default(x, *args)
    check(
        aten.native_group_norm_backward.default, draw(2, 6, 5, 4, seed=9), x, mean, rstd, C, 2, 6,
        20, 3, M3, tolerance=8.0,
    )  # fmt: skip


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(training: bool) -> None:
    x, bias, mean, var = draw(4, 6, 5, 3), draw(6, seed=1), draw(6, seed=2), draw(6).abs() + 0.1
    args = (C, bias, mean, var, training, 0.1, 1e-5)
    got, dtypes = lowered(aten._native_batch_norm_legit_functional.default, [x, *args])
    wanted = list(aten._native_batch_norm_legit_functional.default(x, *args))
    if not training:  # torch saves nothing; here it is what was used
        wanted[1], wanted[2] = mean, (var + 1e-5).rsqrt()
    compare("batch_norm", got, dtypes, wanted, 4.0)
    saved = (wanted[1], wanted[2])
    check(
        aten.native_batch_norm_backward.default, draw(4, 6, 5, 3, seed=9), x, C, mean, var, *saved,
        training, 1e-5, M3, tolerance=8.0,
    )  # fmt: skip


def test_rms_norm() -> None:
    x = draw(4, 6, 10)
    y, rstd = aten._fused_rms_norm.default(x, [10], W, 1e-6)
    got, dtypes = lowered(aten._fused_rms_norm.default, [x, [10], W, 1e-6])
    compare("rms_norm", got, dtypes, [y, rstd], 4.0)
    x.requires_grad_()
    w = W.clone().requires_grad_()
    grad = draw(4, 6, 10, seed=9)
    wanted = torch.autograd.grad(F.rms_norm(x, [10], w, 1e-6), (x, w), grad)
    args = [grad, x.detach(), [10], rstd.detach(), W, [True, True]]
    got, dtypes = lowered(aten._fused_rms_norm_backward.default, args)
    compare("rms_norm_backward", got, dtypes, wanted, 8.0)


POOLS: list[tuple[Any, ...]] = [
    (aten.avg_pool1d.default, draw(2, 3, 11), [3], [2], [1]),
    (aten.avg_pool2d.default, draw(2, 3, 9, 8), [3, 2], [2, 2], [1, 1], False, False),
    (aten.avg_pool2d.default, draw(2, 3, 9, 8), [3, 2], [2, 3], [1, 0], True, True),
    (aten.avg_pool2d.default, draw(3, 9, 8), [2, 2], [], [0, 0], True, False, 3),
    (aten.avg_pool3d.default, draw(1, 2, 5, 6, 7), [2, 3, 2], [1, 2, 2], [1, 1, 0], True, False),
    (aten.max_pool2d_with_indices.default, draw(2, 3, 9, 8), [3, 2], [2, 2], [1, 1], [1, 1]),
    (aten.max_pool2d_with_indices.default, draw(2, 3, 9, 8), [3, 2], [2, 1], [1, 0], [1, 2], True),
    (aten.max_pool3d_with_indices.default, draw(1, 2, 5, 6, 7), [2, 3, 2], [], [1, 1, 1]),
    (aten._adaptive_avg_pool2d.default, draw(2, 3, 9, 8), [3, 4]),
    (aten._adaptive_avg_pool2d.default, draw(2, 3, 9, 8), [4, 5]),
    (aten._adaptive_avg_pool2d.default, draw(2, 3, 3, 4), [7, 8]),
    (aten._adaptive_avg_pool3d.default, draw(2, 3, 5, 4, 6), [2, 4, 4]),
    (aten.adaptive_max_pool2d.default, draw(2, 3, 9, 8), [4, 4]),
    (aten._adaptive_avg_pool2d_backward.default, draw(2, 3, 4, 5), draw(2, 3, 9, 8)),
    (aten._adaptive_avg_pool2d_backward.default, draw(2, 3, 3, 4), draw(2, 3, 9, 8)),
    (aten.im2col.default, draw(2, 3, 9, 8), [3, 2], [1, 2], [1, 0], [2, 1]),
    (aten.col2im.default, draw(2, 12, 20), [6, 5], [2, 2], [1, 1], [0, 0], [1, 1]),
    (aten.upsample_nearest2d.default, draw(2, 3, 4, 5), [8, 15]),
    (aten.upsample_nearest1d.default, draw(2, 3, 7), [11]),
    (aten._upsample_nearest_exact2d.default, draw(2, 3, 4, 5), [6, 7]),
    (aten.upsample_bilinear2d.default, draw(2, 3, 4, 5), [7, 9], False),
    (aten.upsample_bilinear2d.default, draw(2, 3, 4, 5), [7, 3], True),
    (aten.upsample_bicubic2d.default, draw(2, 3, 4, 5), [7, 9], False),
    (aten.upsample_trilinear3d.default, draw(1, 2, 3, 4, 5), [5, 4, 7], False),
    (aten.upsample_nearest2d_backward.default, draw(2, 3, 8, 15), [8, 15], [2, 3, 4, 5]),
    (aten.upsample_nearest1d_backward.default, draw(2, 3, 11), [11], [2, 3, 7]),
    (aten.upsample_bilinear2d_backward.default, draw(2, 3, 7, 9), [7, 9], [2, 3, 4, 5], False),
    (aten.pixel_shuffle.default, draw(2, 8, 3, 4), 2),
    (aten.pixel_unshuffle.default, draw(2, 2, 6, 4), 2),
]


@pytest.mark.parametrize("call", POOLS, ids=lambda call: str(call[0]))
def test_pools_and_interpolation(call: tuple[Any, ...]) -> None:
    check(*call, tolerance=8.0)


def test_gradients_of_pools() -> None:
    x, grad = draw(2, 3, 9, 8), draw(2, 3, 5, 5)
    args = ([3, 2], [2, 2], [1, 1])
    check(aten.avg_pool2d_backward.default, grad, x, *args, False, False, None, tolerance=4.0)
    _, where = aten.max_pool2d_with_indices.default(x, *args)
    check(
        aten.max_pool2d_with_indices_backward.default, grad, x, *args, [1, 1], False, where,
        tolerance=4.0,
    )  # fmt: skip


def test_a_window_of_nothing_has_a_place_inside() -> None:
    x = torch.full((1, 1, 4, 4), float("-inf"))
    got, _ = lowered(aten.max_pool2d_with_indices.default, [x, [3, 3], [2, 2], [1, 1]])
    assert np.isneginf(got[0]).all()
    assert (
        got[1] == aten.max_pool2d_with_indices.default(x, [3, 3], [2, 2], [1, 1])[1].numpy()
    ).all()


Q, K, V = draw(2, 4, 5, 8), draw(2, 4, 7, 8, seed=1), draw(2, 4, 7, 8, seed=2)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"attn_mask": draw(2, 1, 5, 7)},
        {"attn_mask": draw(5, 7) > 0, "scale": 0.3},
    ],
    ids=["plain", "causal", "additive", "bool"],
)
def test_attention(options: dict[str, Any]) -> None:
    wanted = F.scaled_dot_product_attention(Q, K, V, **options)
    got, dtypes = lowered(aten.scaled_dot_product_attention.default, [Q, K, V], options)
    compare("attention", got, dtypes, [wanted], 8.0)
    got, _ = lowered(aten._scaled_dot_product_flash_attention_for_cpu.default, [Q, K, V], options)
    if options.get("attn_mask", torch.zeros(1)).dtype != torch.bool:
        flash = aten._scaled_dot_product_flash_attention_for_cpu.default(Q, K, V, **options)
        np.testing.assert_allclose(got[1], flash[1].numpy(), rtol=1e-5, atol=1e-5)


def test_grouped_queries_share_keys() -> None:
    q = draw(2, 6, 5, 8)
    k, v = draw(2, 2, 7, 8), draw(2, 2, 7, 8, seed=2)
    mask = draw(2, 6, 5, 7) > -1
    wanted = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    got, dtypes = lowered(
        aten.scaled_dot_product_attention.default, [q, k, v, mask], {"enable_gqa": True}
    )
    compare("attention", got, dtypes, [wanted], 8.0)


def test_rows_without_keys_are_zero() -> None:
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    wanted = F.scaled_dot_product_attention(Q, K, V, mask)
    got, dtypes = lowered(aten.scaled_dot_product_attention.default, [Q, K, V, mask])
    compare("attention", got, dtypes, [wanted], 8.0)
    assert (got[0][:, :, 2] == 0).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [4, 2])
def test_gradients_of_attention(causal: bool, heads: int) -> None:
    q = Q.clone().requires_grad_()
    k, v = (draw(2, heads, 7, 8, seed=n).requires_grad_() for n in (1, 2))
    bias = draw(2, 1, 5, 7).requires_grad_()
    masked = bias if not causal else None
    out = F.scaled_dot_product_attention(q, k, v, masked, is_causal=causal, enable_gqa=heads != 4)
    grad = draw(2, 4, 5, 8, seed=7)
    wanted = torch.autograd.grad(out, (q, k, v, *([bias] if not causal else [])), grad)
    plain = [t.detach() for t in (q, k, v)]
    hidden = None if causal else bias.detach()
    forward = [*plain, hidden, 0.0, causal]
    (o, lse, *_), _ = lowered(
        aten._scaled_dot_product_fused_attention_overrideable.default, forward
    )
    zero = torch.zeros((), dtype=torch.int64)
    got, dtypes = lowered(
        aten._scaled_dot_product_fused_attention_overrideable_backward.default,
        [
            grad, *plain, hidden, [True, True, True, not causal], torch.from_numpy(o),
            torch.from_numpy(lse), zero, zero, 5, 7, 0.0, causal, zero, zero,
        ],
    )  # fmt: skip
    compare("attention backward", got, dtypes, wanted, 20.0)


def test_attention_of_16_bit_is_near_float32() -> None:
    halves = [t.half() for t in (Q, K, V)]
    q, k, v = (t.float() for t in halves)
    wanted = F.scaled_dot_product_attention(q, k, v)
    got, dtypes = lowered(aten.scaled_dot_product_attention.default, halves)
    assert dtypes == ["float16"]
    np.testing.assert_allclose(got[0], wanted.numpy(), atol=2e-3)


def test_modules_reach_lowerings() -> None:
    """Everything that a small network dispatches, forward and backward, is right."""
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(8 * 16, 10),
    )  # fmt: skip
    checker = Checker(tolerance=20.0)
    with checker:
        net(draw(2, 3, 8, 8)).square().sum().backward()
    assert not checker.failed and not checker.refused, (checker.failed, checker.refused)
    assert checker.passed["aten.convolution_backward.default"]
