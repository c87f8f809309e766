"""Autocast on spyre: the fallthrough (PT25), CUDA's cast lists, gradient scaling."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

HALVES = [torch.float16, torch.bfloat16]


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype, device="spyre")


def test_pt25_operations_outside_the_lists_run_unchanged() -> None:
    x = tensor(3)
    with torch.autocast("spyre"):
        assert torch.equal((x.relu() + x).cpu(), torch.full((3,), 2.0))
        assert (x + x.half()).dtype == torch.float32
        assert x.half().relu().dtype == torch.float16


@pytest.mark.parametrize("dtype", HALVES)
def test_products_run_in_the_lower_precision(dtype: torch.dtype) -> None:
    a = tensor(2, 3)
    x = tensor(1, 2, 5, 5)
    with torch.autocast("spyre", dtype=dtype):
        results = [
            a @ a.t(),
            torch.mm(a, a.t()),
            torch.bmm(a[None], a.t()[None]),
            torch.addmm(tensor(2), a, a.t()),
            F.linear(a, tensor(4, 3), tensor(4)),
            torch.einsum("ij,kj->ik", a, a),
            F.conv2d(x, tensor(3, 2, 3, 3), tensor(3)),
            F.scaled_dot_product_attention(x, x, x),
            F.prelu(a, tensor(1)),
        ]
    assert [r.dtype for r in results] == [dtype] * len(results)
    assert torch.equal(results[0].cpu().float(), torch.full((2, 2), 3.0))
    assert a.dtype == torch.float32


@pytest.mark.parametrize("dtype", HALVES)
def test_sensitive_operations_run_in_float32(dtype: torch.dtype) -> None:
    x = tensor(2, 3, dtype=dtype)
    with torch.autocast("spyre", dtype=dtype):
        results = [
            x.exp(),
            x.log(),
            x.pow(2),
            x.softmax(-1),
            x.log_softmax(-1),
            x.sum(),
            x.cumsum(0),
            x.prod(),
            x.norm(),
            x.norm(2, dim=1),
            F.layer_norm(x, (3,)),
            F.mse_loss(x, x),
            torch.cdist(x, x),
        ]
        assert x.sum(dtype=dtype).dtype == dtype  # the caller's choice stands
        assert tensor(3, dtype=torch.int32).sum().dtype == torch.int64
    assert [r.dtype for r in results] == [torch.float32] * len(results)


def test_mixed_arguments_are_promoted_to_the_widest() -> None:
    a, b = tensor(3), tensor(3, dtype=torch.float16)
    with torch.autocast("spyre", dtype=torch.float16):
        assert torch.atan2(a, b).dtype == torch.float32
        assert torch.atan2(b, b).dtype == torch.float16
        assert torch.addcmul(b, a, b).dtype == torch.float32


def test_float64_and_cpu_tensors_are_left_alone() -> None:
    with torch.autocast("spyre"):
        x = tensor(2, 2, dtype=torch.float64)
        assert torch.mm(x, x).dtype == torch.float64
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float32


def test_disabled_and_nested_regions() -> None:
    a = tensor(2, 2)
    with torch.autocast("spyre", enabled=False):
        assert (a @ a).dtype == torch.float32
    with torch.autocast("spyre", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("spyre")
        with torch.autocast("spyre", enabled=False):
            assert (a @ a).dtype == torch.float32
        assert (a @ a).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("spyre")


def test_weights_are_cast_once_in_a_region() -> None:
    weight = tensor(4, 4).requires_grad_()
    x = tensor(2, 4)
    torch.spyre.reset_fallback_report()
    with torch.autocast("spyre"):
        for _ in range(3):
            F.linear(x.half(), weight)
    assert torch.spyre.fallback_report()["aten::copy_"].calls == 1 + 3  # the weight once, x thrice


def test_unsafe_loss_is_refused_by_name() -> None:
    x = tensor(3)
    with torch.autocast("spyre"), pytest.raises(RuntimeError, match="with_logits"):
        F.binary_cross_entropy(x, x)


def test_unsupported_dtypes_are_not_cast_to() -> None:
    assert set(torch.spyre.get_amp_supported_dtype()) == {torch.float16, torch.bfloat16}
    with pytest.warns(UserWarning, match="float16"), torch.autocast("spyre", dtype=torch.float64):
        assert not torch.is_autocast_enabled("spyre")


@pytest.mark.parametrize("dtype", HALVES)
def test_training_step_gradients_are_float32_and_close_to_cpu(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    cpu = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    device = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    device.load_state_dict(cpu.state_dict())
    device.to("spyre")
    x, target = torch.randn(5, 8), torch.randn(5, 4)
    F.mse_loss(cpu(x), target).backward()
    with torch.autocast("spyre", dtype=dtype):
        loss = F.mse_loss(device(x.to("spyre")), target.to("spyre"))
    assert loss.dtype == torch.float32
    loss.backward()
    for a, b in zip(device.parameters(), cpu.parameters(), strict=True):
        assert a.grad is not None and a.grad.dtype == torch.float32
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=0.1, atol=0.02)


def test_grad_scaler_steps_and_skips_an_overflow() -> None:
    weight = tensor(3).requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler = torch.amp.GradScaler("spyre", init_scale=8.0, growth_interval=1)
    scaler.scale((weight * 2).sum()).backward()
    assert weight.grad is not None and weight.grad.tolist() == [16.0] * 3
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [0.0] * 3 and scaler.get_scale() == 16.0
    optimizer.zero_grad()
    scaler.scale((weight * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [0.0] * 3 and scaler.get_scale() == 8.0


def test_custom_functions_with_amp_decorators() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="spyre", cast_inputs=torch.float32)
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="spyre")
        def backward(ctx, gradient):  # type: ignore[no-untyped-def]
            return gradient * 2

    x = tensor(3, dtype=torch.float16).requires_grad_()
    with torch.autocast("spyre"):
        y = Double.apply(x)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0] * 3
