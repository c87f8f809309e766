"""`Plan.launch_bound`, the compiler's launch: places instead of tensors, symbols as a list; and
plans of programs that are in memory (`openspyre.runtime.direct`)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import plan_directories as made
import pytest
import torch
from conftest import RunPython
from launches import on_card, ramp
from program_zoo import ZOO

from openspyre import _C, reference
from openspyre.card import CardSpec
from openspyre.program import Program, ProgramBuilder
from openspyre.runtime import Kernel
from openspyre.runtime.direct import prepare_programs
from openspyre.runtime.plan import JobPlan

spyre = torch.spyre
F16 = torch.float16


def plan_of(*programs: Program, args: Sequence[Sequence[int]] | None = None) -> JobPlan:
    kernels = [
        Kernel(program, args=None if args is None else tuple(args[i]))
        for i, program in enumerate(programs)
    ]
    return prepare_programs(kernels, 0, CardSpec())


def bits(value: float) -> int:
    """A float32 as launches take it."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def scaled(name: str, symbol: str) -> Program:
    """out = x * symbol, [n, 64] with n up to 64, rows `step` sticks apart; both known at launch."""
    b = ProgramBuilder(name, {"c": 2})
    n, step = b.int_symbol("n", 1, 64), b.int_symbol("step", 1, 64)
    b.float_symbol(symbol)
    x = b.input("x", (n, 64), "float16", strides=(step * 128, 128), stick=1)
    out = b.output("out", (n, 64), "float16", strides=(step * 128, 128), stick=1)
    xs = b.stream("xs", x, (16, 64))
    outs = b.stream("outs", out, (16, 64), users=["store"])
    boxes = b.boxes(r=(b.split("own", n, "c"), 16), c=64)
    with b.queue("load"), boxes() as (over, turn), xs.fill(turn) as t:
        b.load(over, x["r", "c"], t["r", "c"])
    with b.queue("sfu"), boxes() as (over, turn), xs.use(turn) as t, outs.fill(turn) as o:
        b.map(over, o["r", "c"], lambda v: v * v.scalar(symbol), t["r", "c"])
    with b.queue("store"), boxes() as (over, turn), outs.use(turn) as o:
        b.store(over, o["r", "c"], out["r", "c"])
    return b.build()


def launch(
    plan: JobPlan, tensors: Sequence[torch.Tensor], offsets: Sequence[int], **symbols: float
) -> None:
    flat = [
        bits(symbols[name]) if isinstance(symbols[name], float) else int(symbols[name])
        for name in plan._native.symbol_names
    ]
    plan._native.launch_bound(tensors, offsets, flat)


def test_a_bound_launch_is_a_launch(tmp_path: Path) -> None:
    program = made.times()
    directory = spyre.prepare(made.write(tmp_path / "times", program))
    memory = plan_of(program)
    x, y = on_card(64), on_card(64) + 1
    a, b = torch.empty_like(x), torch.empty_like(x)
    spyre.launch(directory, [x, y, a])
    launch(memory, [x, y, b], [0, 0, 0])
    assert torch.equal(a.cpu(), b.cpu()) and a.cpu().any()


def test_symbols_are_sizes_and_strides() -> None:
    plan = plan_of(scaled("scaled", "alpha"))
    assert plan._native.symbol_names == ["n", "step", "alpha"]
    x, out = on_card(64, 64), torch.zeros(64, 64, dtype=F16, device="spyre")
    expected = torch.zeros(64, 64, dtype=F16)
    launch(plan, [x, out], [0, 0], n=64, step=1, alpha=2.0)
    assert torch.equal(out.cpu(), ramp(64, 64) * 2)
    out.zero_()
    launch(plan, [x, out], [128, 3 * 128], n=9, step=7, alpha=0.5)  # rows 1, 8, .. to 3, 10, ..
    expected[3::7] = ramp(64, 64)[1::7][:9] * 0.5
    assert torch.equal(out.cpu(), expected)


def test_a_view_names_its_storage_alone() -> None:
    plan = plan_of(scaled("scaled", "alpha"))
    x, out = on_card(64, 64), torch.zeros(64, 64, dtype=F16, device="spyre")
    launch(plan, [x[40:, 5:9].t(), out[63]], [0, 0], n=64, step=1, alpha=1.0)
    assert torch.equal(out.cpu(), ramp(64, 64))


def test_ten_steps_with_symbols_of_their_own() -> None:
    """Each step multiplies by its own number; n and step are shared by name."""
    programs = [scaled(f"step{i}", f"a{i}") for i in range(10)]
    args = [(i, i + 1) for i in range(10)]
    plan = plan_of(*programs, args=args)
    assert plan.num_steps == 30 and len(plan._native.symbol_names) == 12
    tensors = [on_card(64, 64)]
    tensors += [torch.zeros(64, 64, dtype=F16, device="spyre") for _ in range(10)]
    numbers = {f"a{i}": 2.0 if i % 2 else 0.5 for i in range(10)}
    launch(plan, tensors, [0] * 11, n=64, step=1, **numbers)
    assert torch.equal(tensors[10].cpu(), ramp(64, 64))
    assert torch.equal(tensors[1].cpu(), ramp(64, 64) * 0.5)
    launch(plan, tensors, [0] * 11, n=64, step=1, **{**numbers, "a9": 1.0})
    assert torch.equal(tensors[10].cpu(), ramp(64, 64) * 0.5)


def test_the_zoo_program_of_views_on_the_card() -> None:
    """Byte for byte what the reference executor gives, on storages that are bytes of operands."""
    case = ZOO["views"]()
    operands = case.program.operands
    inputs = case.make_inputs(np.random.default_rng(3))
    memory = {
        o.name: reference.pack(o, inputs[o.name], symbols=case.symbols)
        if o.name in inputs
        else reference.empty(o, case.symbols)
        for o in operands
    }
    tensors = []
    for o in operands:  # rows of a stick lie one after the other
        rows = len(memory[o.name]) // 128
        tensors.append(torch.zeros(rows, 64, dtype=F16, device="spyre"))
        torch.ops.openspyre._raw_write(tensors[-1], torch.from_numpy(memory[o.name].copy()))
    launch(plan_of(case.program), tensors, [0, 0, 0, 0], **case.symbols)
    reference.run(case.program, memory, case.symbols)
    out = operands[-1]
    got = torch.ops.openspyre._raw_read(tensors[-1]).numpy()[: len(memory[out.name])]
    codes = reference.unpack_codes(out, got, case.symbols)
    assert np.array_equal(codes, reference.unpack_codes(out, memory[out.name], case.symbols))
    result = reference.unpack(out, got, symbols=case.symbols)
    np.testing.assert_allclose(result, case.reference(inputs)["y"], rtol=case.rtol)


def test_writes_bump_the_version() -> None:
    plan = plan_of(made.absolute())
    x, out = on_card(64), on_card(64)
    before = x._version, out._version
    launch(plan, [x, out], [0, 0])
    assert (x._version, out._version) == (before[0], before[1] + 1)


def test_tensors_may_be_dropped_at_once() -> None:
    plan = plan_of(made.absolute())
    out = torch.empty(64, dtype=F16, device="spyre")
    spyre.synthetic.submit("compute", 1000, hold_seconds=0.02)
    launch(plan, [on_card(64), out], [0, 0])
    torch.zeros(64, dtype=F16, device="spyre")
    assert torch.equal(out.cpu(), ramp(64).abs())


@pytest.mark.parametrize(
    ("offsets", "symbols", "fault"),
    [
        ([-128, 0], {}, "no operand begins at byte -128"),
        ([64, 0], {}, "no operand begins at byte 64"),
        ([1 << 40, 0], {}, "no operand begins"),
        ([0, 128], {}, "takes 8192 bytes from byte 128 of a block of 8192"),
        ([0, 0], {"step": 2}, "takes 16256 bytes from byte 0 of a block of 8192"),
        ([0, 0], {"n": 65}, "must lie in 1..64"),
        ([0, 0], {"n": 0}, "must lie in 1..64"),
        ([0], {}, "takes 2 tensors with offsets and 3 symbols, got 2, 1 and 3"),
    ],
)
def test_what_would_leave_memory_is_refused(
    offsets: list[int], symbols: dict[str, int], fault: str
) -> None:
    plan = plan_of(scaled("scaled", "alpha"))
    x, out = on_card(64, 64), on_card(64, 64)
    before = plan.counters
    with pytest.raises(RuntimeError, match=fault):
        launch(plan, [x, out], offsets, **{"n": 64, "step": 1, "alpha": 1.0, **symbols})
    assert plan.counters == before


def test_foreign_tensors_are_refused() -> None:
    plan = plan_of(made.absolute())
    out = on_card(64)
    with pytest.raises(RuntimeError, match="is not on spyre:0"):
        launch(plan, [ramp(64), out], [0, 0])
    with pytest.raises(RuntimeError, match="zero bytes"):
        launch(plan, [torch.empty(0, dtype=F16, device="spyre"), out], [0, 0])
    with pytest.raises(TypeError, match="tensor 1 is no tensor"):
        launch(plan, [out, 3], [0, 0])  # type: ignore[list-item]


HAZARDS = """
import sys, torch
sys.path[:0] = [{tests!r}]
import plan_directories as made
from test_bound_launch import launch, plan_of, scaled
plan = plan_of(scaled("scaled", "alpha"))
x = torch.ones(64, 64, dtype=torch.float16, device="spyre")
out, last = torch.zeros_like(x), torch.zeros_like(x)
torch.spyre.synchronize()
first, second = torch.spyre.Stream(), torch.spyre.Stream()
with torch.spyre.stream(first):
    torch.spyre.synthetic.submit("compute", 1000, hold_seconds=0.1)
    launch(plan, [x, out], [0, 0], n=8, step=2, alpha=2.0)
with torch.spyre.stream(second):
    launch(plan, [x, out], [0, 128], n=8, step=2, alpha=3.0)  # the rows between
    try:
        launch(plan, [out, last], [0, 0], n=64, step=1, alpha=1.0)
    except torch.spyre.Hazard as error:
        assert "RAW" in str(error), error
    else:
        raise SystemExit("rows that are still written were read")
torch.spyre.synchronize()
assert out[:16:2].eq(2).all() and out[1:17:2].eq(3).all() and not out[17:].any()
"""


def test_hazards_are_exact_to_the_stick(run_python: RunPython) -> None:
    code = HAZARDS.format(tests=str(Path(__file__).parent))
    run_python(code, {"OPENSPYRE_HAZARDS": "check", "OPENSPYRE_CORRECTION_SLOTS": "8"})


def test_plans_of_equal_programs_share_their_image() -> None:
    a, b = plan_of(made.absolute()), plan_of(made.absolute())
    assert a.content_hash == b.content_hash
    assert any(image.plans >= 2 for image in spyre.plans.images())


def test_a_program_in_memory_gives_the_plan_of_its_directory(tmp_path: Path) -> None:
    program = made.through_scratch()
    directory = spyre.prepare(made.write(tmp_path / "p", program))
    memory = plan_of(program)
    assert memory.dynamic_size == directory.dynamic_size
    assert [memory.get_step_type(i) for i in range(memory.num_steps)] == [
        directory.get_step_type(i) for i in range(directory.num_steps)
    ]
    x, out = on_card(64), torch.zeros(64, dtype=F16, device="spyre")
    launch(memory, [x, out], [0, 0])
    expected = torch.zeros(64, dtype=F16, device="spyre")
    spyre.launch(directory, [x, expected])
    assert torch.equal(out.cpu(), expected.cpu())


def test_the_native_plan_knows_its_symbols() -> None:
    assert isinstance(plan_of(made.absolute())._native, _C.Plan)
    assert plan_of(made.absolute())._native.symbol_names == []
