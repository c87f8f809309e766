"""Fused recurrent cells (PT3), against the CPU's unfused ones."""

# torch's stubs know neither the generated names nor what a test has made sure of.
# mypy: disable-error-code="union-attr"

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

LAYERS = [
    (torch.nn.LSTM, {}),
    (torch.nn.LSTM, {"num_layers": 2, "bidirectional": True, "batch_first": True}),
    (torch.nn.LSTM, {"bias": False}),
    (torch.nn.LSTM, {"proj_size": 3}),
    (torch.nn.GRU, {}),
    (torch.nn.GRU, {"num_layers": 2, "bidirectional": True}),
    (torch.nn.GRU, {"bias": False}),
    (torch.nn.RNN, {"nonlinearity": "relu"}),
]


@pytest.mark.parametrize(("kind", "options"), LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_pt3_layers_forward_and_backward_equal_cpu(
    kind: Any, options: dict[str, Any], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    device = kind(5, 8, **options).to(dtype).to("spyre")
    wide = torch.float32 if dtype == torch.float16 else dtype
    cpu = kind(5, 8, **options).to(wide)
    cpu.load_state_dict({name: x.cpu().to(wide) for name, x in device.state_dict().items()})
    x = torch.randn(4, 3, 5).to(dtype).to("spyre").requires_grad_()
    y = x.detach().cpu().to(wide).requires_grad_()
    got, want = device(x)[0], cpu(y)[0]
    assert got.dtype == dtype and got.device.type == "spyre"
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-10, torch.float16: 2e-2}[dtype]
    torch.testing.assert_close(got.detach().cpu().to(wide), want, rtol=tolerance, atol=tolerance)
    got.sum().backward()
    want.sum().backward()
    pairs = [(x.grad, y.grad)]
    pairs += [(a.grad, b.grad) for a, b in zip(device.parameters(), cpu.parameters(), strict=True)]
    for a, b in pairs:
        torch.testing.assert_close(a.cpu().to(wide), b, rtol=tolerance * 5, atol=tolerance * 10)


@pytest.mark.parametrize("kind", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell])
def test_pt3_cells_equal_cpu(kind: Any) -> None:
    torch.manual_seed(1)
    cpu = kind(5, 7)
    device = copy.deepcopy(cpu).to("spyre")
    x = torch.randn(3, 5)
    want, got = cpu(x), device(x.to("spyre"))
    want, got = (want, got) if isinstance(want, tuple) else ((want,), (got,))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach())


def test_pt3_the_fused_route_is_taken_and_counted() -> None:
    torch.spyre.reset_fallback_report()
    x = torch.randn(2, 3, 5).to("spyre")
    for kind in (torch.nn.LSTM, torch.nn.GRU):
        kind(5, 7).to("spyre")(x)[0].sum().backward()
    report = torch.spyre.fallback_report()
    for operation in (
        "aten::_thnn_fused_lstm_cell",
        "aten::_thnn_fused_lstm_cell_backward_impl",
        "aten::_thnn_fused_gru_cell",
        "aten::_thnn_fused_gru_cell_backward",
    ):
        assert report[operation].calls == 2  # two time steps


def test_packed_sequences_equal_cpu() -> None:
    torch.manual_seed(2)
    cpu = torch.nn.LSTM(4, 6)
    device = copy.deepcopy(cpu).to("spyre")
    x, lengths = torch.randn(5, 3, 4), [5, 3, 2]
    outputs = []
    for model, data in ((cpu, x), (device, x.to("spyre"))):
        packed = torch.nn.utils.rnn.pack_padded_sequence(data, lengths)
        padded, sizes = torch.nn.utils.rnn.pad_packed_sequence(model(packed)[0])
        assert sizes.tolist() == lengths
        outputs.append(padded.detach().cpu())
    torch.testing.assert_close(outputs[1], outputs[0])


def test_double_backward_through_a_cell_equals_cpu() -> None:
    gradients = []
    for device in ("cpu", "spyre"):
        torch.manual_seed(4)
        cell = torch.nn.LSTMCell(3, 4).to(device)
        x = torch.randn(2, 3).to(device).requires_grad_()
        (first,) = torch.autograd.grad(cell(x)[0].pow(2).sum(), x, create_graph=True)
        first.pow(2).sum().backward()
        gradients.append(x.grad.cpu())
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)
