"""`torch.spyre.record`, replays in any legal order, and `openspyre replay`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from examples.programs import add, pointwise
from openspyre.cli import main
from openspyre.device.plans import launch, prepare, record
from openspyre.runtime.plan import JobPlan
from openspyre.runtime.recording import (
    Launch,
    RecordingError,
    Write,
    legal_order,
    load_recording,
    replay,
)
from openspyre.runtime.spyrecode import Kernel, write_spyrecode

SHAPE = (16, 150)


@pytest.fixture
def plans(tmp_path: Path) -> tuple[JobPlan, JobPlan]:
    """x + y and -x of 16 x 150 float16."""
    made = (add.build(*SHAPE, cores=2), pointwise.neg(*SHAPE, cores=2))
    one, two = (
        prepare(write_spyrecode(tmp_path / program.name, [Kernel(program)])) for program in made
    )
    return one, two


def tensor(fill: Callable[..., torch.Tensor] = torch.randn) -> torch.Tensor:
    return fill(SHAPE).half().to("spyre")


def test_rt72_a_log_of_1000_launches_replays_to_equal_hashes_twice(
    tmp_path: Path, plans: tuple[JobPlan, JobPlan]
) -> None:
    torch.manual_seed(0)
    plus, minus = plans
    buffers = [tensor() for _ in range(6)]
    streams = [torch.Stream("spyre") for _ in range(2)]
    generator = torch.Generator().manual_seed(1)
    with record(tmp_path / "log") as recording:
        for step in range(1000):
            a, b, c = torch.randperm(6, generator=generator)[:3].tolist()
            stream = streams[step % 2]
            if step % 3:
                launch(plus, [buffers[a], buffers[b], buffers[c]], stream)
            else:
                launch(minus, [buffers[a], buffers[c]], stream)
            if step % 100 == 50:  # something from outside of launches
                buffers[a].copy_(torch.full(SHAPE, step / 64).half())
    assert recording.launches == 1000
    loaded = load_recording(tmp_path / "log")
    reports = [replay(loaded), replay(loaded), replay(loaded, seed=7)]
    for report in reports:
        assert report.launches == 1000 and not report.differences
    assert reports[0].outputs == reports[1].outputs == reports[2].outputs
    assert reports[2].order != reports[0].order


def test_a_replay_without_checks_in_between_lets_launches_overlap_and_still_agrees(
    tmp_path: Path, plans: tuple[JobPlan, JobPlan]
) -> None:
    plus, _ = plans
    x, y, out = tensor(), tensor(), tensor(torch.zeros)
    side = torch.Stream("spyre")
    with record(tmp_path / "log"):
        launch(plus, [x, y, out])
        launch(plus, [out, y, x], side)
        launch(plus, [x, out, y])
    report = replay(load_recording(tmp_path / "log"), check=False)
    assert not report.differences


def test_a_recording_keeps_views_of_larger_tensors(tmp_path: Path) -> None:
    program = pointwise.neg(4, 64, cores=1)
    plan = prepare(write_spyrecode(tmp_path / "neg", [Kernel(program)]))
    base = torch.randn(32, 64).half().to("spyre")
    with record(tmp_path / "log") as recording:
        launch(plan, [base[4:8], base[20:24]])
    (view, target) = next(e for e in recording.entries if isinstance(e, Launch)).tensors
    assert view.buffer == target.buffer and (view.offset, target.offset) == (256, 1280)
    assert not replay(load_recording(tmp_path / "log")).differences


def test_a_changed_payload_or_another_result_is_found(
    tmp_path: Path, plans: tuple[JobPlan, JobPlan]
) -> None:
    plus, _ = plans
    with record(tmp_path / "log"):
        launch(plus, [tensor(), tensor(), tensor(torch.zeros)])
    file = tmp_path / "log" / "recording.json"
    document = json.loads(file.read_text())
    (entry,) = (e for e in document["entries"] if e["op"] == "launch")
    (buffer,) = entry["outputs"]
    entry["outputs"][buffer] = "0" * 64
    file.write_text(json.dumps(document))
    (difference,) = replay(load_recording(tmp_path / "log")).differences
    assert (difference.buffer, difference.plan) == (int(buffer), entry["plan"])
    payload = next((tmp_path / "log" / "payloads").iterdir())
    payload.write_bytes(bytes(len(payload.read_bytes())))
    with pytest.raises(RecordingError, match="not what its name says"):
        replay(load_recording(tmp_path / "log"))


def test_the_command_replays_and_compares(tmp_path: Path, plans: tuple[JobPlan, JobPlan]) -> None:
    plus, _ = plans
    with record(tmp_path / "log"):
        launch(plus, [tensor(), tensor(), tensor(torch.zeros)])
    run = CliRunner()
    good = run.invoke(main, ["replay", str(tmp_path / "log"), "--times", "2"])
    assert good.exit_code == 0 and "every result as recorded" in good.output
    shown = json.loads(run.invoke(main, ["replay", str(tmp_path / "log"), "--json"]).output)
    assert shown["equal"] and shown["launches"] == 1
    (tmp_path / "log" / "recording.json").write_text("{}")
    assert run.invoke(main, ["replay", str(tmp_path / "log")]).exit_code == 2


def test_recording_refuses_a_used_directory_and_another_recording(tmp_path: Path) -> None:
    (tmp_path / "something").write_text("here")
    with pytest.raises(RecordingError, match="not empty"), record(tmp_path):
        pass
    with (
        record(tmp_path / "a"),
        pytest.raises(RecordingError, match="already recording"),
        record(tmp_path / "b"),
    ):
        pass
    assert load_recording(tmp_path / "a").launches == 0


def test_a_refused_launch_leaves_no_entry(tmp_path: Path, plans: tuple[JobPlan, JobPlan]) -> None:
    plus, _ = plans
    with record(tmp_path / "log") as recording:
        with pytest.raises(RuntimeError, match="takes 3 tensors"):
            launch(plus, [tensor()])
        with pytest.raises(RuntimeError, match="tensor 1"):
            launch(plus, [tensor(), torch.zeros(SHAPE).half(), tensor()])
    assert recording.launches == 0


def test_a_legal_order_keeps_dependencies_and_streams() -> None:
    def entry(stream: int, reads: tuple[int, ...], writes: tuple[int, ...]) -> Launch:
        return Launch("p", stream, (), {}, False, reads, writes)

    entries: list[Launch | Write] = [
        Write(0, "a"), Write(1, "b"),
        entry(0, (0,), (2,)), entry(1, (1,), (3,)), entry(1, (2, 3), (4,)),
        Write(0, "c"), entry(0, (0,), (1,)),
    ]  # fmt: skip
    seen = set()
    for seed in range(200):
        order = legal_order(entries, seed)
        seen.add(tuple(order))
        assert sorted(order) == list(range(len(entries)))
        place = {number: at for at, number in enumerate(order)}
        for before, after in [(0, 2), (1, 3), (2, 4), (3, 4), (2, 5), (5, 6), (3, 6), (2, 6)]:
            assert place[before] < place[after]
    assert len(seen) > 3
    assert legal_order(entries, None) == list(range(len(entries)))
