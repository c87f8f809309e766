"""torch.spyre.random: seeds, states, forks, and that the CPU generator is left alone."""

from __future__ import annotations

import pytest
import torch
from conftest import RunPython

spyre = torch.spyre


def draw(count: int = 1000) -> torch.Tensor:
    return torch.randn(count, device="spyre").cpu()


def test_torch_manual_seed_seeds_the_device() -> None:
    torch.manual_seed(7)
    first = draw()
    assert not torch.equal(first, draw())
    torch.manual_seed(7)
    assert torch.equal(first, draw())
    assert spyre.initial_seed() == 7


def test_manual_seed_does_not_touch_the_cpu_generator() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    spyre.manual_seed(5)
    a = draw()
    spyre.manual_seed_all(5)
    assert torch.equal(a, draw())
    assert torch.equal(before, torch.get_rng_state())


def test_state_round_trip_resumes_the_sequence() -> None:
    spyre.manual_seed(3)
    draw(10)
    state = spyre.get_rng_state()
    assert state.device.type == "cpu" and state.dtype == torch.uint8
    a = draw()
    spyre.set_rng_state(state, "spyre:0")
    assert torch.equal(a, draw())
    spyre.set_rng_state_all(spyre.get_rng_state_all())
    with pytest.raises(RuntimeError):
        spyre.set_rng_state(torch.zeros(3, dtype=torch.uint8))


def test_seed_takes_a_new_seed_and_says_it() -> None:
    chosen = spyre.seed()
    assert spyre.initial_seed() == chosen
    assert spyre.seed() != chosen
    assert spyre.seed_all() == spyre.initial_seed()


def test_fork_rng_restores_cpu_and_device() -> None:
    torch.manual_seed(11)
    cpu, device = torch.get_rng_state(), spyre.get_rng_state()
    with spyre.fork_rng():
        torch.manual_seed(99)
        draw()
    assert torch.equal(cpu, torch.get_rng_state())
    assert torch.equal(device, spyre.get_rng_state())
    with torch.random.fork_rng(device_type="spyre"):
        draw()
    assert torch.equal(device, spyre.get_rng_state())


def test_default_generators_are_one_per_device() -> None:
    assert len(spyre.default_generators) == spyre.device_count()
    devices = [torch.device("spyre", i) for i in range(spyre.device_count())]
    assert [g.device for g in spyre.default_generators[:]] == devices
    assert spyre.default_generators[0].device == devices[0]
    with pytest.raises(IndexError):
        spyre.default_generators[5]


def test_devices_draw_independently(run_python: RunPython) -> None:
    run_python(
        """
import torch
s = torch.spyre
s.manual_seed_all(4)
a, b = torch.rand(50, device="spyre:0").cpu(), torch.rand(50, device="spyre:1").cpu()
state = s.get_rng_state(0)
torch.rand(50, device="spyre:1")
assert torch.equal(state, s.get_rng_state("spyre:0"))
assert torch.equal(a, b), "one seed, one sequence"
""",
        {"OPENSPYRE_DEVICES": "0,1", "OPENSPYRE_CARD": "tiny"},
    )


def test_mean_and_spread_of_normal_numbers() -> None:
    torch.manual_seed(0)
    values = draw(100_000)
    assert abs(values.mean().item()) < 0.02 and abs(values.std().item() - 1) < 0.02
