"""Moving modules to the card."""

# torch's stubs know neither the generated names nor what a test has made sure of.
# mypy: disable-error-code="operator"

from __future__ import annotations

import pytest
import torch


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 4)
        self.head = torch.nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.embedding(ids)) * self.scale
        return out


@pytest.mark.parametrize("way", ["move_module", "method"])
def test_tied_weights_and_optimizers_survive_the_move(way: str) -> None:
    torch.manual_seed(0)
    model, reference = Tied(), Tied()
    reference.load_state_dict(model.state_dict())
    weight = model.head.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    moved = torch.spyre.move_module(model) if way == "move_module" else model.spyre()
    assert moved is model
    assert model.head.weight is weight and model.embedding.weight is weight
    assert weight.device.type == "spyre" and model.scale.device.type == "spyre"
    assert not torch.__future__.get_swap_module_params_on_conversion()

    ids = torch.arange(10)
    model(ids.to("spyre")).square().mean().backward()
    optimizer.step()
    expected = torch.optim.SGD(reference.parameters(), lr=0.1)
    reference(ids).square().mean().backward()
    expected.step()
    assert torch.allclose(weight.detach().cpu(), reference.head.weight.detach(), atol=1e-6)


def test_move_module_takes_an_index_and_refuses_other_devices() -> None:
    model = torch.spyre.move_module(torch.nn.Linear(2, 2), 1)
    assert model.weight.device == torch.device("spyre", 1)
    with pytest.raises(ValueError, match="spyre"):
        torch.spyre.move_module(model, "cpu")
    assert not torch.__future__.get_swap_module_params_on_conversion()
