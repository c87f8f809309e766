"""Autograd through device tensors: values, streams and devices of the backward threads."""

# torch's stubs know neither the generated names nor what a test has made sure of.
# mypy: disable-error-code="union-attr"

from __future__ import annotations

import threading

import pytest
import torch
from conftest import RunPython

from openspyre.ops import backward_threads


def test_b151_backward_of_a_square() -> None:
    a = torch.ones(50, device="spyre", requires_grad=True)
    a.pow(2).sum().backward()
    assert a.grad is not None and a.grad.device.type == "spyre"
    assert torch.equal(a.grad.cpu(), torch.full((50,), 2.0))


def test_backward_of_a_small_network_equals_cpu() -> None:
    gradients = []
    for device in ("cpu", "spyre"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(6, 70),
            torch.nn.LayerNorm(70),
            torch.nn.GELU(),
            torch.nn.Linear(70, 3),
        )
        x = torch.randn(5, 6)
        model.to(device)
        torch.nn.functional.cross_entropy(
            model(x.to(device)), torch.tensor([0, 1, 2, 0, 1], device=device)
        ).backward()
        gradients.append([p.grad.cpu() for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-6)


def test_gradients_flow_through_views_copies_and_in_place_writes() -> None:
    gradients = []
    for device in ("cpu", "spyre"):
        x = torch.arange(12.0, device=device).reshape(3, 4).requires_grad_()
        y = x.t()[1:].clone()
        y[0].mul_(3)
        y[:, ::2] += x[0, :2]
        (y.to("cpu").to(device) ** 2).sum().backward()
        assert x.grad is not None
        gradients.append(x.grad.cpu())
    assert torch.equal(gradients[0], gradients[1])


def test_gradcheck_passes_in_float64() -> None:
    x = torch.rand(3, 4, dtype=torch.float64, device="spyre", requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: torch.tanh(t).matmul(t.t()), (x,))


def test_saved_tensors_notice_in_place_changes() -> None:
    x = torch.ones(3, device="spyre", requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_pt17_backward_threads_have_the_right_device_and_stream(run_python: RunPython) -> None:
    run_python(
        """
import threading
import torch

seen = []

class Probe(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        seen.append((
            threading.get_ident(),
            gradient.device.index,
            torch.accelerator.current_device_index(),
            torch.accelerator.current_stream(gradient.device.index).stream_id,
        ))
        return gradient * 2

for index in (0, 1):
    device = torch.device("spyre", index)
    x = torch.ones(4, device=device, requires_grad=True)
    stream = torch.Stream(device)
    with stream:
        y = Probe.apply(x).sum()
    y.backward()
    assert torch.equal(x.grad.cpu(), torch.full((4,), 2.0))
    assert x.grad.device == device
    thread, on, current, stream_id = seen[-1]
    assert on == index and current == index, seen
    assert stream_id == stream.stream_id, (seen, stream)
    assert thread != threading.get_ident()

# One graph over both devices.
a = torch.ones(3, device="spyre:0", requires_grad=True)
b = torch.ones(3, device="spyre:1", requires_grad=True)
(Probe.apply(a).to("spyre:1") * Probe.apply(b)).sum().backward()
assert a.grad.tolist() == [2.0] * 3 and b.grad.tolist() == [2.0] * 3
assert {(on, current) for _, on, current, _ in seen[-2:]} == {(0, 0), (1, 1)}
assert torch.accelerator.current_device_index() == 0
""",
        {"OPENSPYRE_DEVICES": "0,1"},
    )


def test_backward_from_several_threads() -> None:
    results: list[torch.Tensor] = []

    def work(scale: float) -> None:
        x = torch.ones(16, device="spyre", requires_grad=True)
        (x * scale).pow(2).sum().backward()
        assert x.grad is not None
        results.append(x.grad.cpu() - 2 * scale * scale)

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for difference in results:
        assert torch.equal(difference, torch.zeros(16))


def test_a_script_may_end_right_after_backward(run_python: RunPython) -> None:
    code = """
import torch
x = torch.ones(4, device="spyre:1", requires_grad=True)
(x * 1).sum().backward()
"""
    for _ in range(5):  # without the wait at exit one of these aborts on a busy machine
        run_python(code, {"OPENSPYRE_DEVICES": "0,1"})


def test_backward_threads_are_found_and_fall_asleep() -> None:
    torch.ones(2, device="spyre", requires_grad=True).sum().backward()
    assert backward_threads.backward_threads()
    assert backward_threads.wait_until_idle(60)
