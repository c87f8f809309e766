"""Prepared plans: inspection, step order, transactional preparation, sharing, eviction."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import plan_directories as made
import pytest
import torch
from conftest import RunPython

from openspyre import _C
from openspyre.card import parse_bytes


def memory_state() -> tuple[int, int, int]:
    torch.spyre.synchronize()
    gc.collect()
    stats = _C.memory_stats(0)
    return (
        stats["program_bytes.current"],
        stats["program_allocation.current"],
        torch.spyre.memory_allocated(),
    )


def test_rt49_a_minimal_plan_has_one_compute_step(tmp_path: Path) -> None:
    directory = made.write(tmp_path / "abs", made.absolute(), correction=False)

    def enlarge(code: dict[str, Any]) -> None:
        allocate = code["JobPreparationPlan"][0]["properties"]
        allocate.clear()
        allocate["size"] = "1024"

    made.change(directory, enlarge)
    code = json.loads((directory / "spyrecode.json").read_text())
    assert code["JobPreparationPlan"][1]["properties"]["dev_ptr"] == "120259084288"
    plan = torch.spyre.prepare(directory)
    assert plan.num_steps == 1
    assert plan.get_step_type(0) == "Compute"
    assert plan.job_allocation_size == 1024
    assert plan.dynamic_size == 0
    assert plan.get_step_pipeline_barrier(0) is True
    assert plan.check_job_plan_step_ordering() == ""


def test_rt50_a_correction_plan_has_three_steps(tmp_path: Path) -> None:
    plan = torch.spyre.prepare(made.write(tmp_path / "abs", made.absolute()))
    assert [plan.get_step_type(i) for i in range(plan.num_steps)] == [
        "HostCompute",
        "H2D",
        "Compute",
    ]
    assert all(plan.get_step_pipeline_barrier(i) for i in range(3))
    assert [plan.get_step_stream_role(i) for i in range(3)] == ["Prep", "Prep", "Dev"]
    assert plan.check_job_plan_step_ordering() == ""


def test_rt56_a_step_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    plan = torch.spyre.prepare(made.write(tmp_path / "abs", made.absolute()))
    for ask in (plan.get_step_type, plan.get_step_name, plan.get_step_pipeline_barrier):
        for index in (999, -1):
            with pytest.raises(IndexError, match=f"no step {index}"):
                ask(index)


def test_rt44_step_orders() -> None:
    check = torch.spyre.check_job_plan_step_ordering
    assert check(["HostCompute", "H2D", "Compute"], ["Prep", "Prep", "Dev"]) == ""
    assert "Compute" in check(["HostCompute", "H2D", "Compute"], ["Prep", "Prep", "Prep"])
    assert "D2H" in check(["HostCompute", "H2D", "D2H"], ["Prep", "Prep", "Dev"])
    assert check(["D2H", "Compute"], ["Dev", "Dev"]) == ""  # no HostCompute
    assert "2" in check(["HostCompute", "H2D"], ["Prep"])
    with pytest.raises(ValueError, match="none of Prep, Dev"):
        check(["Compute"], ["Sideways"])


def test_rt53_a_missing_directory_or_file_is_named(tmp_path: Path) -> None:
    before = memory_state()
    with pytest.raises(RuntimeError, match="nowhere"):
        torch.spyre.prepare(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RuntimeError, match=r"spyrecode\.json"):
        torch.spyre.prepare(tmp_path / "empty")
    assert memory_state() == before


def test_step_names(tmp_path: Path) -> None:
    directory = made.write(tmp_path / "kernel" / "code", made.absolute())
    plan = torch.spyre.prepare(directory)
    assert plan.get_step_name(2) == "abs"
    assert plan.get_step_name(0) == "kernel/code/bundle.mlir#0"
    named = torch.spyre.prepare(directory, profiler_name="layer.3")
    assert [named.get_step_name(i) for i in range(3)] == ["layer.3#0", "layer.3#1", "layer.3#2"]
    with pytest.raises(ValueError, match="profiler_name"):
        torch.spyre.prepare(directory, profiler_name="x" * 300)


def test_expected_arguments_and_dumps(tmp_path: Path) -> None:
    program = made.pointwise("scale", lambda x: x, (8, 64), within=(32, 64), ints=["n"])
    plan = torch.spyre.prepare(made.write(tmp_path / "a", program))
    x, out = plan.expected_arguments
    assert (x.name, x.role, x.dtype, x.shape, x.within) == (
        "x0",
        "in",
        "float16",
        ("8", "64"),
        ("32", "64"),
    )
    assert (out.name, out.role, out.index) == ("out", "out", 1)
    assert plan.symbols == {"n": "int"}
    dump = json.loads(plan.to_json())
    assert dump["steps"][2]["program"] == "scale"
    text = plan.to_text()
    assert "argument 1: out out float16" in text and "step 2: Compute" in text
    same = torch.spyre.prepare(made.write(tmp_path / "b", program))
    assert plan.diff(same) == ""
    assert same.content_hash == plan.content_hash
    other = torch.spyre.prepare(made.write(tmp_path / "c", made.absolute()))
    assert "abs" in plan.diff(other)
    assert "HostCompute, H2D, Compute" in repr(plan)


def test_rt52_rt57_a_refused_directory_changes_nothing(tmp_path: Path) -> None:
    torch.spyre.init()
    before = memory_state()
    timeline = len(torch.spyre.synthetic.timeline())

    def misaligned(code: dict[str, Any]) -> None:
        code["JobExecPlan"][2]["properties"]["job_bin_ptr"] = str(0x1C00000090)

    def outside(code: dict[str, Any]) -> None:
        code["JobExecPlan"][1]["properties"]["dev_ptr"] = str(made.BASE + (1 << 20))

    def too_long(code: dict[str, Any]) -> None:
        code["JobPreparationPlan"][1]["properties"]["size"] = "1048576"

    for number, edit in enumerate((misaligned, outside, too_long)):
        directory = made.write(tmp_path / str(number), made.absolute())
        made.change(directory, edit)
        with pytest.raises(RuntimeError):
            torch.spyre.prepare(directory)
    directory = made.write(tmp_path / "cut", made.absolute())
    image = directory / "init_binary.bin"
    image.write_bytes(image.read_bytes()[:-128])
    with pytest.raises(RuntimeError):
        torch.spyre.prepare(directory)
    assert memory_state() == before
    assert len(torch.spyre.synthetic.timeline()) == timeline


def test_rt25_a_thousand_plans_leave_nothing_behind(tmp_path: Path) -> None:
    directory = made.write(tmp_path / "abs", made.absolute())
    torch.spyre.prepare(directory)
    before = memory_state()
    for _ in range(1000):
        torch.spyre.prepare(directory, verify=False)
    assert memory_state() == before
    assert torch.spyre.plans.images() == []


def test_plans_of_equal_content_share_their_image(tmp_path: Path) -> None:
    first = torch.spyre.prepare(made.write(tmp_path / "a", made.absolute()))
    used = memory_state()[0]
    second = torch.spyre.prepare(made.write(tmp_path / "b", made.absolute()))
    assert memory_state()[0] - used < first.job_allocation_size
    (image,) = torch.spyre.plans.images()
    assert (image.plans, image.loads, image.resident) == (2, 1, True)
    assert image.content_hash == first.content_hash == second.content_hash
    x = torch.linspace(-1, 1, 64, dtype=torch.float16).to("spyre")
    for plan in (first, second):
        out = torch.empty_like(x)
        torch.spyre.launch(plan, [x, out])
        assert torch.equal(out.cpu(), x.cpu().abs())


def test_an_evicted_image_comes_back_at_the_next_launch(tmp_path: Path) -> None:
    plan = torch.spyre.prepare(made.write(tmp_path / "abs", made.absolute()))
    x = torch.linspace(-1, 1, 64, dtype=torch.float16).to("spyre")
    out = torch.empty_like(x)
    torch.spyre.launch(plan, [x, out])
    assert torch.spyre.plans.evict_image()
    assert not plan.is_resident
    out.zero_()
    torch.spyre.launch(plan, [x, out])
    assert plan.is_resident
    assert torch.equal(out.cpu(), x.cpu().abs())
    (image,) = torch.spyre.plans.images()
    assert (image.loads, image.evictions) == (2, 1)


def test_rt31_two_plans_run_at_program_offset_zero(tmp_path: Path) -> None:
    one = torch.spyre.prepare(made.write(tmp_path / "a", made.absolute()))
    two = torch.spyre.prepare(made.write(tmp_path / "b", made.add_one()))
    # Both were written for the start of program memory; their images lie at different places.
    for plan in (one, two):
        assert [init.dev_ptr for init in plan.code.inits] == [made.BASE]
        assert plan.code.steps[-1].job_bin_ptr == made.BASE
    images = [
        block["address"]
        for segment in torch.spyre.memory.memory_snapshot()
        if segment["memory_type"] == "program_static"
        for block in segment["blocks"]
        if block["state"] == "active_allocated" and block["size"] == one.job_allocation_size
    ]
    assert one.job_allocation_size == two.job_allocation_size
    assert len(images) == len(set(images)) == 2
    x = torch.linspace(-1, 1, 64, dtype=torch.float16).to("spyre")
    out = torch.empty_like(x)
    torch.spyre.launch(one, [x, out])
    assert torch.equal(out.cpu(), x.cpu().abs())
    torch.spyre.launch(two, [x, out])
    assert torch.allclose(out.cpu(), x.cpu() + 1, atol=0.01)


PRESSURE = """
import sys, torch
sys.path[:0] = [{tests!r}]
import plan_directories as made
from pathlib import Path
plan = torch.spyre.prepare(made.write(Path({tmp!r}) / "abs", made.absolute()))
x = torch.linspace(-1, 1, 64, dtype=torch.float16).to("spyre")
out = torch.empty_like(x)
torch.spyre.launch(plan, [x, out])
torch.spyre.synchronize()
blocks = []
try:
    while True:
        blocks.append(torch.empty(1 << 16, dtype=torch.float16, device="spyre"))
except torch.OutOfMemoryError:
    pass
assert not plan.is_resident
blocks.clear()
out.zero_()
torch.spyre.launch(plan, [x, out])
assert torch.equal(out.cpu(), x.cpu().abs())
assert torch.spyre.plans.images()[0].evictions == 1
"""


def test_memory_pressure_evicts_images(tmp_path: Path, run_python: RunPython) -> None:
    code = PRESSURE.format(tests=str(Path(__file__).parent), tmp=str(tmp_path))
    run_python(code, {"OPENSPYRE_CARD": "tiny", "OPENSPYRE_FALLBACK": "allow"})


def test_a_card_that_is_too_small_is_named(tmp_path: Path, run_python: RunPython) -> None:
    directory = made.write(tmp_path / "copy", made.matrix_copy(16, 64))
    code = f"""
import torch
try:
    torch.spyre.prepare({str(directory)!r})
except RuntimeError as error:
    assert "needs 2 cores" in str(error) and "has 1" in str(error), error
else:
    raise SystemExit("accepted")
"""
    run_python(code, {"OPENSPYRE_CARD": "spyre:cores=1"})


def test_program_budget(tmp_path: Path, run_python: RunPython) -> None:
    code = f"""
import sys, torch
sys.path[:0] = [{str(Path(__file__).parent)!r}]
import plan_directories as made
from pathlib import Path
tmp = Path({str(tmp_path)!r})
plans = [torch.spyre.prepare(made.write(tmp / str(n), made.absolute(64 * n))) for n in (1, 2, 3)]
assert [plan.is_resident for plan in plans] == [False, False, True]
"""
    run_python(code, {"OPENSPYRE_PROGRAM_BUDGET": "1024"})
    assert parse_bytes("1024") == 1024
