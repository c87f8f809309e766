"""What a launch is split into and when it runs: tiled launches, overlap, hazards, modelled time."""

from __future__ import annotations

import gc
from pathlib import Path

import plan_directories as made
import pytest
import torch
from conftest import RunPython
from launches import F16, on_card, refused

# --- tiled launches


def test_rt68_a_larger_tensor_is_worked_off_in_tiles(tmp_path: Path) -> None:
    plan = torch.spyre.prepare(made.write(tmp_path / "abs", made.absolute(1024)), slots=1)
    x = on_card(4096)
    out = torch.zeros_like(x)
    torch.spyre.synchronize()
    torch.spyre.synthetic.clear_timeline()  # a ring that earlier tests may have filled
    torch.spyre.launch(plan, [x, out], allow_tiled_launch=True)
    assert torch.equal(out.cpu(), x.cpu().abs())
    counts = plan.counters
    assert (counts.launches, counts.host_computes, counts.corrections) == (4, 4, 4)
    names = {plan.get_step_name(i) for i in range(3)}
    rows = [e for e in torch.spyre.synthetic.timeline() if e.name in names]
    assert len(rows) == 12
    odd = on_card(4000)
    refused("tensor 0 .*dim 0 of 4000", plan, [odd, torch.empty_like(odd)], allow_tiled_launch=True)
    refused("allow_tiled_launch=True", plan, [x, out])
    refused("allow_tiled_launch=True", plan, [x, out], allow_tiled_launch=False)
    refused("shape", plan, [on_card(512), torch.empty_like(odd)], allow_tiled_launch=True)
    refused("4 tiles, but dim 0 of tensor 1", plan, [x, odd[:1024]], allow_tiled_launch=True)


def test_rt68_nests_of_several_dims(tmp_path: Path) -> None:
    program = made.pointwise("mul", lambda x, y: x * y, (4, 64), inputs=2, within=(16, 256))
    plan = torch.spyre.prepare(made.write(tmp_path / "mul", program))
    x, y = on_card(16, 256), on_card(16, 256).flip(0).contiguous()
    out = torch.zeros_like(x)
    torch.spyre.launch(plan, [x, y, out], allow_tiled_launch=True)
    assert plan.counters.launches == 16
    assert torch.allclose(out.cpu(), x.cpu() * y.cpu(), atol=0.02)


def test_rt68_dims_that_are_reduced_or_shared_are_refused(tmp_path: Path) -> None:
    from examples.programs import matmul, rows

    softmax = torch.spyre.prepare(made.write(tmp_path / "softmax", rows.softmax(8, 64, cores=1)))
    x = on_card(8, 128)
    refused(
        "cannot be tiled: .*reduces", softmax, [x, torch.empty_like(x)], allow_tiled_launch=True
    )
    product = matmul.build(64, 64, 64)
    plan = torch.spyre.prepare(made.write(tmp_path / "matmul", product))
    a, b = on_card(64, 128), on_card(128, 64)
    refused("reduces along it", plan, [a, b, on_card(64, 64)], allow_tiled_launch=True)


def test_tiled_launch_by_environment(tmp_path: Path, run_python: RunPython) -> None:
    directory = made.write(tmp_path / "abs", made.absolute(64))
    code = f"""
import torch
plan = torch.spyre.prepare({str(directory)!r})
x = torch.linspace(-1, 1, 256, dtype=torch.float16).to("spyre")
out = torch.empty_like(x)
torch.spyre.launch(plan, [x, out])
assert torch.equal(out.cpu(), x.cpu().abs())
assert plan.counters.launches == 4
"""
    run_python(code, {"OPENSPYRE_ALLOW_TILED_LAUNCH": "1"})
    run_python(code, {"SPYRE_ALLOW_TILED_LAUNCH": "1"})
    both = {"SPYRE_ALLOW_TILED_LAUNCH": "1", "OPENSPYRE_ALLOW_TILED_LAUNCH": "0"}
    assert run_python(code, both, check=False).returncode != 0


# --- overlap, order, time


OVERLAP = """
import sys, torch
sys.path[:0] = [{tests!r}]
import plan_directories as made
from pathlib import Path
costs = {{"HostCompute": 500_000, "H2D": 200_000, "Compute": 1_000_000}}
directory = made.write(Path({tmp!r}) / "abs", made.absolute(), costs=costs)
xs = [(torch.linspace(-1, 1, 64) - i).to(torch.float16).to("spyre") for i in range(4)]
results = []
for overlap, slots, most in ((False, 1, 6.8e6), (True, 1, 5.3e6), (True, 2, 4.7e6)):
    plan = torch.spyre.prepare(directory, overlap=overlap, slots=slots)
    outs = [torch.empty_like(x) for x in xs]
    torch.spyre.synchronize()
    start = torch.spyre.synthetic.device_time_ns()
    for x, out in zip(xs, outs):
        torch.spyre.launch(plan, [x, out])
    torch.spyre.synchronize()
    total = torch.spyre.synthetic.device_time_ns() - start
    assert total <= most and (overlap or total == 6.8e6), (overlap, slots, total)
    results.append([out.cpu() for out in outs])
for x, *outs in zip(xs, *results):
    assert all(torch.equal(out, x.cpu().abs()) for out in outs)
"""


def test_rt42_launches_overlap_on_the_virtual_clock(tmp_path: Path, run_python: RunPython) -> None:
    code = OVERLAP.format(tests=str(Path(__file__).parent), tmp=str(tmp_path))
    run_python(code, {"OPENSPYRE_CARD": "spyre:host_submit_ns=0"})


def test_rt51_prepare_on_one_stream_launch_on_another(tmp_path: Path) -> None:
    first, second = torch.spyre.Stream(), torch.spyre.Stream()
    x, out = on_card(64), torch.zeros(64, dtype=F16, device="spyre")
    torch.spyre.synchronize()
    with torch.spyre.stream(first):
        torch.spyre.synthetic.submit("h2d", 1000, hold_seconds=0.2)
        plan = torch.spyre.prepare(made.write(tmp_path / "abs", made.absolute()))
    with torch.spyre.stream(second):
        torch.spyre.launch(plan, [x, out])
    second.synchronize()
    assert torch.equal(out.cpu(), x.cpu().abs())


def test_a_thousand_launches_are_queued_without_waiting(tmp_path: Path) -> None:
    plan = torch.spyre.prepare(made.write(tmp_path / "abs", made.absolute()))
    x, out = on_card(64), torch.empty(64, dtype=F16, device="spyre")
    torch.spyre.synchronize()
    stream = torch.spyre.Stream()
    with torch.spyre.stream(stream):
        torch.spyre.synthetic.submit("compute", 1000, hold_seconds=1.0)
        for _ in range(1000):
            torch.spyre.launch(plan, [x, out])
        assert not stream.query()  # the first step still holds the engine
    stream.synchronize()
    assert torch.equal(out.cpu(), x.cpu().abs())


HAZARDS = """
import sys, torch
sys.path[:0] = [{tests!r}]
import plan_directories as made
from pathlib import Path
plan = torch.spyre.prepare(made.write(Path({tmp!r}) / "abs", made.absolute()))
x = torch.linspace(-1, 1, 64, dtype=torch.float16).to("spyre")
middle, out = torch.zeros_like(x), torch.zeros_like(x)
torch.spyre.synchronize()
first, second = torch.spyre.Stream(), torch.spyre.Stream()
with torch.spyre.stream(first):
    torch.spyre.synthetic.submit("compute", 1000, hold_seconds=0.1)
    torch.spyre.launch(plan, [x, middle])
with torch.spyre.stream(second):
    try:
        torch.spyre.launch(plan, [middle, out])
    except torch.spyre.Hazard as error:
        found = str(error)
        assert {check}, "insert must not refuse"
        assert "RAW" in found and "[0, 128)" in found, found
        second.wait_stream(first)
        torch.spyre.launch(plan, [middle, out])
    else:
        assert not {check}, "check must refuse"
torch.spyre.synchronize()
assert torch.equal(out.cpu(), x.cpu().abs())
"""


@pytest.mark.parametrize("mode", ["check", "insert"])
def test_rt43_hazards_of_launches(tmp_path: Path, run_python: RunPython, mode: str) -> None:
    code = HAZARDS.format(
        tests=str(Path(__file__).parent), tmp=str(tmp_path), check=mode == "check"
    )
    run_python(code, {"OPENSPYRE_HAZARDS": mode})


ROWS = """
import sys, torch
sys.path[:0] = [{tests!r}]
import plan_directories as made
from pathlib import Path
program = made.pointwise("abs", lambda x: abs(x), (4, 128), within=(16, 128))
# Slots enough: waiting for one would order a launch behind the first.
plan = torch.spyre.prepare(made.write(Path({tmp!r}) / "abs", program), slots=8)
base = torch.linspace(-1, 1, 16 * 128, dtype=torch.float16).view(16, 128).to("spyre")
outs = torch.zeros_like(base)
torch.spyre.synchronize()
first, second = torch.spyre.Stream(), torch.spyre.Stream()
with torch.spyre.stream(first):
    torch.spyre.synthetic.submit("compute", 1000, hold_seconds=0.1)
    torch.spyre.launch(plan, [base[0:4], outs[0:4]])
with torch.spyre.stream(second):
    # Rows of one tensor interleave on the card: disjoint to the byte, so no hazard.
    torch.spyre.launch(plan, [base[4:8], outs[4:8]])
    for rows, kind in ((slice(3, 7), "WAW"), (slice(0, 4), "WAW")):
        try:
            torch.spyre.launch(plan, [base[8:12], outs[rows]])
        except torch.spyre.Hazard as error:
            assert kind in str(error), error
        else:
            raise SystemExit(f"rows {{rows}} were written twice")
    try:
        torch.spyre.launch(plan, [base[8:12], base[2:6]])
    except torch.spyre.Hazard as error:
        assert "WAR" in str(error), error
    else:
        raise SystemExit("rows that are still read were written")
torch.spyre.synchronize()
assert torch.equal(outs[:8].cpu(), base[:8].cpu().abs())
"""


def test_rt43_hazards_of_launches_are_exact_to_the_byte(
    tmp_path: Path, run_python: RunPython
) -> None:
    code = ROWS.format(tests=str(Path(__file__).parent), tmp=str(tmp_path))
    run_python(code, {"OPENSPYRE_HAZARDS": "check"})


NO_BYTES = """
import sys, torch
sys.path[:0] = [{tests!r}]
import plan_directories as made
from pathlib import Path
plan = torch.spyre.prepare(made.write(Path({tmp!r}) / "abs", made.absolute()))
x = torch.empty(64, dtype=torch.float16, device="spyre")
out = torch.empty_like(x)
before = torch.spyre.synthetic.device_time_ns()
torch.spyre.launch(plan, [x, out])
torch.spyre.synchronize()
assert torch.spyre.synthetic.device_time_ns() > before
assert plan.counters.computes == 1
names = [entry.name for entry in torch.spyre.synthetic.timeline()]
assert "abs" in names, names
"""


def test_execute_off_gives_times_and_no_bytes(tmp_path: Path, run_python: RunPython) -> None:
    code = NO_BYTES.format(tests=str(Path(__file__).parent), tmp=str(tmp_path))
    run_python(code, {"OPENSPYRE_EXECUTE": "off"})


def test_the_cost_of_a_compute_step_is_the_timing_models(tmp_path: Path) -> None:
    from openspyre.card import PRESETS
    from openspyre.timing import duration_ns

    program = made.absolute()
    plan = torch.spyre.prepare(made.write(tmp_path / "abs", program))
    x, out = on_card(64), torch.empty(64, dtype=F16, device="spyre")
    torch.spyre.launch(plan, [x, out])
    torch.spyre.synchronize()
    rows = [e for e in torch.spyre.synthetic.timeline() if e.name == "abs"]
    wanted = duration_ns(program, {}, PRESETS["spyre"])
    assert rows[-1].end_ns - rows[-1].start_ns == wanted


def test_plans_and_launches_survive_garbage(tmp_path: Path) -> None:
    x, out = on_card(64), torch.empty(64, dtype=F16, device="spyre")
    torch.spyre.synchronize()
    stream = torch.spyre.Stream()
    with torch.spyre.stream(stream):
        torch.spyre.synthetic.submit("compute", 1000, hold_seconds=0.2)
        plan = torch.spyre.prepare(made.write(tmp_path / "abs", made.absolute()))
        torch.spyre.launch(plan, [x, out])
        del plan
        gc.collect()
        torch.spyre.prepare(made.write(tmp_path / "other", made.add_one()))
    stream.synchronize()
    assert torch.equal(out.cpu(), x.cpu().abs())
