"""torch.accelerator.Graph: launches captured once, replayed with what they were bound to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from examples.programs import add, pointwise
from openspyre.device.plans import launch, prepare
from openspyre.runtime.plan import JobPlan
from openspyre.runtime.spyrecode import Kernel, write_spyrecode

SHAPE = (16, 150)


@pytest.fixture
def plus(tmp_path: Path) -> JobPlan:
    return prepare(write_spyrecode(tmp_path / "add", [Kernel(add.build(*SHAPE, cores=2))]))


def tensor(value: float) -> torch.Tensor:
    return torch.full(SHAPE, value, dtype=torch.float16).to("spyre")


def test_pt13_a_graph_captures_launches_and_replays_them_on_new_contents(plus: JobPlan) -> None:
    x, y, middle, out = tensor(1), tensor(2), tensor(0), tensor(0)
    stream = torch.Stream("spyre")
    stream.wait_stream(torch.accelerator.current_stream())
    graph = torch.accelerator.Graph()
    with stream, graph:
        launch(plus, [x, y, middle])
        launch(plus, [middle, y, out])
    torch.accelerator.synchronize()
    assert torch.equal(out.cpu(), torch.zeros(SHAPE).half())  # captured, not run
    graph.replay()
    torch.accelerator.synchronize()
    assert torch.equal(out.cpu(), torch.full(SHAPE, 5.0).half())
    x.fill_(10)
    y.fill_(0.5)
    graph.replay()
    torch.accelerator.synchronize()
    assert torch.equal(out.cpu(), torch.full(SHAPE, 11.0).half())


def test_a_replay_does_no_host_work_again(plus: JobPlan) -> None:
    x, y, out = tensor(1), tensor(2), tensor(0)
    graph = torch.accelerator.Graph()
    with torch.Stream("spyre"), graph:
        launch(plus, [x, y, out])
    graph.replay()
    torch.accelerator.synchronize()
    before = plus.counters
    for _ in range(5):
        graph.replay()
    torch.accelerator.synchronize()
    after = plus.counters
    assert after.launches == before.launches + 5
    assert (after.host_computes, after.corrections) == (before.host_computes, before.corrections)


def test_a_capture_keeps_its_tensors(plus: JobPlan) -> None:
    x, y, out = tensor(3), tensor(4), tensor(0)
    graph = torch.accelerator.Graph()
    with torch.Stream("spyre"), graph:
        launch(plus, [x, y, out])
    del x, y
    held = [tensor(99) for _ in range(8)]  # would take their place
    graph.replay()
    torch.accelerator.synchronize()
    assert torch.equal(out.cpu(), torch.full(SHAPE, 7.0).half())
    assert len(held) == 8
    graph.reset()
    with pytest.raises(RuntimeError, match="nothing was captured"):
        graph.replay()


def test_what_is_no_launch_is_refused_by_name_in_a_capture(plus: JobPlan) -> None:
    x, y, out = tensor(1), tensor(2), tensor(0)
    graph = torch.accelerator.Graph()
    refused = pytest.raises(RuntimeError, match=r"aten::.* cannot be captured")
    with refused, torch.Stream("spyre"), graph:
        launch(plus, [x, y, out])
        x.add_(1)
    # The stream and the device work on.
    launch(plus, [x, y, out])
    assert torch.equal(out.cpu(), torch.full(SHAPE, 3.0).half())


def test_a_launch_that_breaks_the_contract_is_refused_at_capture(plus: JobPlan) -> None:
    x, graph = tensor(1), torch.accelerator.Graph()
    with pytest.raises(RuntimeError, match="takes 3 tensors"), torch.Stream("spyre"), graph:
        launch(plus, [x])


def test_a_resized_tensor_is_seen_at_replay(plus: JobPlan) -> None:
    x, y, out = tensor(1), tensor(2), tensor(0)
    graph = torch.accelerator.Graph()
    with torch.Stream("spyre"), graph:
        launch(plus, [x, y, out])
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match=r"tensor 0 .* was resized"):
        graph.replay()


def test_launches_on_other_streams_run_during_a_capture(plus: JobPlan) -> None:
    x, y, out = tensor(1), tensor(2), tensor(0)
    other, side = torch.Stream("spyre"), tensor(0)
    graph = torch.accelerator.Graph()
    with torch.Stream("spyre"), graph:
        launch(plus, [x, y, out])
        launch(plus, [x, y, side], other)
    torch.accelerator.synchronize()
    assert torch.equal(side.cpu(), torch.full(SHAPE, 3.0).half())
    assert torch.equal(out.cpu(), torch.zeros(SHAPE).half())


def test_keep_graph_pool_and_dump(plus: JobPlan, tmp_path: Path) -> None:
    first = torch.accelerator.Graph(keep_graph=True)
    x, y, out = tensor(1), tensor(2), tensor(0)
    with torch.Stream("spyre"), first:
        launch(plus, [x, y, out])
    first.instantiate()
    second = torch.accelerator.Graph(pool=first.pool())
    with torch.Stream("spyre"), second:
        launch(plus, [out, y, x])
    assert second.pool() == first.pool()
    first.enable_debug_mode()
    first.debug_dump(str(tmp_path / "graph.txt"))
    assert "[16, 150] Half" in (tmp_path / "graph.txt").read_text()


def test_other_devices_graphs_are_not_ours(tmp_path: Path) -> None:
    """A plan of another device is launched, not captured, while this device captures."""
    program = pointwise.neg(*SHAPE, cores=1)
    there = prepare(write_spyrecode(tmp_path / "neg", [Kernel(program)]), device=1)
    x, out = (torch.ones(SHAPE, dtype=torch.float16).to("spyre:1") for _ in range(2))
    graph = torch.accelerator.Graph()
    with torch.Stream("spyre:0"), graph:
        launch(there, [x, out])
    torch.spyre.synchronize(1)  # type: ignore[attr-defined]
    assert torch.equal(out.cpu(), torch.full(SHAPE, -1.0).half())
