"""Convolutions, which PyTorch leaves to the backend (PT2), against the CPU."""

# torch's stubs know neither the generated names nor what a test has made sure of.
# mypy: disable-error-code="union-attr"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

Compute = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]

# name, input, weight, bias, call
CASES: list[tuple[str, tuple[int, ...], tuple[int, ...], int, Compute]] = [
    ("1d", (2, 3, 17), (4, 3, 5), 4, lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=1)),
    ("2d", (2, 4, 9, 7), (6, 4, 3, 3), 6, lambda x, w, b: F.conv2d(x, w, b, padding=1)),
    ("2d same", (1, 2, 5, 6), (3, 2, 3, 2), 3, lambda x, w, b: F.conv2d(x, w, b, padding="same")),
    (
        "2d groups dilation",
        (1, 4, 11, 11),
        (8, 2, 3, 3),
        8,
        lambda x, w, b: F.conv2d(x, w, b, dilation=2, groups=2),
    ),
    ("depthwise", (2, 5, 8, 8), (5, 1, 3, 3), 5, lambda x, w, b: F.conv2d(x, w, b, groups=5)),
    ("3d", (1, 2, 5, 6, 7), (3, 2, 2, 3, 2), 3, lambda x, w, b: F.conv3d(x, w, b)),
    (
        "transposed 1d",
        (2, 3, 6),
        (3, 4, 3),
        4,
        lambda x, w, b: F.conv_transpose1d(x, w, b, stride=2, output_padding=1),
    ),
    (
        "transposed 2d groups",
        (1, 4, 5, 5),
        (4, 3, 3, 3),
        6,
        lambda x, w, b: F.conv_transpose2d(x, w, b, groups=2, padding=1),
    ),
    ("transposed 3d", (1, 2, 3, 4, 3), (2, 2, 2, 2, 2), 2, F.conv_transpose3d),
    ("unbatched", (3, 8, 8), (2, 3, 3, 3), 2, lambda x, w, b: F.conv2d(x, w, b)),
    ("empty batch", (0, 3, 8, 8), (2, 3, 3, 3), 2, lambda x, w, b: F.conv2d(x, w, b)),
]
IDS = [case[0] for case in CASES]


@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_pt2_forward_and_backward_equal_cpu(case: Any, with_bias: bool, dtype: torch.dtype) -> None:
    _, x_shape, w_shape, channels, compute = case
    torch.manual_seed(0)
    device = [torch.randn(x_shape), torch.randn(w_shape)]
    if with_bias:
        device.append(torch.randn(channels))
    device = [x.to(dtype).to("spyre").requires_grad_() for x in device]
    # 16-bit: the reference computes in float32 on what the card holds (PT31)
    wide = torch.float32 if dtype.itemsize == 2 else dtype
    cpu = [x.detach().cpu().to(wide).requires_grad_() for x in device]
    got = compute(*device, *([] if with_bias else [None]))
    want = compute(*cpu, *([] if with_bias else [None]))
    assert got.device.type == "spyre" and got.dtype == dtype and got.shape == want.shape
    # one rounding to 9 (DLFloat16) or 8 (bfloat16) significant bits
    tolerance = {torch.float32: 1e-4, torch.float64: 1e-10}.get(dtype, 2**-7)
    torch.testing.assert_close(got.detach().cpu().to(wide), want, rtol=tolerance, atol=tolerance)
    got.sum().backward()
    want.sum().backward()
    for a, b in zip(device, cpu, strict=True):
        assert a.grad is not None and a.grad.dtype == dtype
        torch.testing.assert_close(
            a.grad.cpu().to(wide), b.grad, rtol=tolerance, atol=tolerance * 4
        )


def test_channels_last_input_gives_the_right_values() -> None:
    x = torch.randn(2, 4, 6, 5)
    w = torch.randn(3, 4, 3, 3)
    got = F.conv2d(x.contiguous(memory_format=torch.channels_last).to("spyre"), w.to("spyre"))
    torch.testing.assert_close(got.cpu(), F.conv2d(x, w), rtol=1e-4, atol=1e-4)


def test_double_backward_equals_cpu() -> None:
    gradients = []
    for device in ("cpu", "spyre"):
        torch.manual_seed(3)
        x = torch.randn(1, 2, 5, 5).to(device).requires_grad_()
        w = torch.randn(2, 2, 3, 3).to(device).requires_grad_()
        (first,) = torch.autograd.grad(F.conv2d(x, w).pow(2).sum(), x, create_graph=True)
        first.pow(2).sum().backward()
        gradients.append((x.grad.cpu(), w.grad.cpu()))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


def test_wrong_operands_are_refused() -> None:
    x, w = torch.ones(1, 2, 4, 4, device="spyre"), torch.ones(1, 2, 3, 3, device="spyre")
    with pytest.raises(RuntimeError, match="channels"):
        F.conv2d(x, torch.ones(1, 3, 3, 3, device="spyre"))
    with pytest.raises(RuntimeError):
        F.conv2d(x, w.half())
    with pytest.raises(RuntimeError):
        F.conv2d(x, w.cpu())
    assert torch.equal(F.conv2d(x, w).cpu(), torch.full((1, 1, 2, 2), 18.0))


def test_convolutions_are_counted() -> None:
    torch.spyre.reset_fallback_report()
    x, w = torch.ones(1, 2, 4, 4, device="spyre"), torch.ones(1, 2, 3, 3, device="spyre")
    F.conv2d(x, w)
    row = torch.spyre.fallback_report()["aten::convolution_overrideable"]
    assert (row.calls, row.bytes_to_host, row.bytes_to_device) == (1, (32 + 18) * 4, 4 * 4)
