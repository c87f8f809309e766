"""torch.spyre.intermediates and compare: the values between, and which operation is how far off."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

NATIVE = True


def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    hidden = F.silu(x @ w)
    return torch.softmax(hidden * 2, dim=-1)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    x, w = torch.randn(5, 70, generator=generator), torch.randn(70, 33, generator=generator)
    return x.half().to("spyre"), w.half().to("spyre")


@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_b196_every_intermediate_by_name(way: str) -> None:
    x, w = inputs()
    function: Callable[..., torch.Tensor] = block if way == "eager" else torch.compile(block)
    found = torch.spyre.intermediates(function, x, w)
    product = x.cpu().float() @ w.cpu().float()
    assert found["mm"].device.type == "spyre"
    torch.testing.assert_close(found["mm"].cpu().float(), product, rtol=2e-3, atol=2e-2)
    softmax = found.steps[-1].value
    wide = block(x.cpu().float(), w.cpu().float())
    torch.testing.assert_close(softmax.cpu().float(), wide, rtol=0, atol=5e-3)
    assert "test_intermediates.py" in found.steps[0].source
    assert "mm" in str(found)
    with pytest.raises(KeyError, match="there are mm"):
        found["nothing"]


@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_compare_names_the_operation_that_brings_the_error_in(way: str) -> None:
    x, w = inputs()

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).tanh().sum(-1)

    run = function if way == "eager" else torch.compile(function)
    found = torch.spyre.compare(run, x, w)
    rows = {row.name: row for row in found.rows}
    assert set(rows) >= {"mm", "tanh", "sum"}
    for row in found.rows:
        # One rounding to 9 bits of mantissa.
        assert row.relative is not None and row.relative <= 2**-9
    assert found.worst(1)[0].relative == max(row.relative or 0.0 for row in found.rows)


def test_a_watched_call_changes_what_it_writes_once() -> None:
    compiled = torch.compile(lambda t: t.add_(1).mul_(2))
    x = torch.zeros(70, device="spyre")
    torch.spyre.intermediates(compiled, x)
    assert x.cpu().tolist() == [2.0] * 70
    compiled(x)
    assert x.cpu().tolist() == [6.0] * 70


def test_one_observer_of_regions_does_not_end_another() -> None:
    from openspyre.observe.explain import collect

    x, w = inputs()
    compiled = torch.compile(block)
    compiled(x, w)
    with collect() as account:
        torch.spyre.intermediates(compiled, x, w)
        compiled(x, w)  # a known launch, which nobody would see if the first one had ended it all
    assert [region.launches for region in account.regions] == [1]
