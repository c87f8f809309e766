"""Launches of prepared plans on tensors: results, contract, addresses, faults, transfers.

Tiles, overlap and time are in test_launch_schedule.py.
"""

from __future__ import annotations

import struct
import threading
from pathlib import Path
from typing import Any

import plan_directories as made
import pytest
import torch
from conftest import RunPython
from launches import F16, on_card, ramp, refused

from openspyre import _C
from openspyre.program import body as f
from openspyre.program.verify import VerifyError


@pytest.fixture
def abs_plan(tmp_path: Path) -> torch.spyre.JobPlan:
    return torch.spyre.prepare(made.write(tmp_path / "abs", made.absolute()))


# --- results


def test_rt61_abs_and_mul_of_64_match_the_cpu(
    tmp_path: Path, abs_plan: torch.spyre.JobPlan
) -> None:
    x, y = on_card(64), on_card(128)[64:].clone()
    out = torch.empty_like(x)
    torch.spyre.launch(abs_plan, [x, out])
    assert (out.cpu() - x.cpu().abs()).abs().max() <= 0.1
    times = torch.spyre.prepare(made.write(tmp_path / "mul", made.times()))
    torch.spyre.launch(times, [x, y, out])
    assert (out.cpu() - x.cpu() * y.cpu()).abs().max() <= 0.1


def test_rt62_one_plan_a_hundred_launches_at_new_addresses(
    abs_plan: torch.spyre.JobPlan,
) -> None:
    keep = []
    for i in range(100):
        base = (ramp(64 * 4) - i / 64).to("spyre")
        x = base[64 * (i % 4) : 64 * (i % 4) + 64]  # with a storage offset
        outs = torch.empty(256, dtype=F16, device="spyre")
        out = outs[64 * (i % 3) : 64 * (i % 3) + 64]
        torch.spyre.launch(abs_plan, [x, out])
        keep.append((x, out))
    for x, out in keep:
        assert torch.equal(out.cpu(), x.cpu().abs())
    assert abs_plan.counters.launches == 100
    (image,) = torch.spyre.plans.images()
    assert image.loads == 1


def test_rt63_two_streams_launch_one_plan_concurrently(abs_plan: torch.spyre.JobPlan) -> None:
    wrong: list[str] = []

    def work(number: int) -> None:
        stream = torch.spyre.Stream()
        xs = [(ramp(64) + number + k / 8).to("spyre") for k in range(10)]
        right = [x.cpu().abs() for x in xs]
        outs = [torch.empty_like(x) for x in xs]
        torch.spyre.synchronize()
        with torch.spyre.stream(stream):
            for round in range(100):
                for out in outs:
                    out.zero_()  # what an earlier round left would hide a launch gone elsewhere
                for x, out in zip(xs, outs, strict=True):
                    torch.spyre.launch(abs_plan, [x, out])
                stream.synchronize()
                for wanted, out in zip(right, outs, strict=True):
                    if not torch.equal(out.cpu(), wanted):
                        wrong.append(f"thread {number}, round {round}")

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, -3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert abs_plan.counters.launches == 2000


def test_b121_eight_threads_launch_on_one_stream(abs_plan: torch.spyre.JobPlan) -> None:
    stream = torch.spyre.Stream()
    xs = [(ramp(64) + n / 8).to("spyre") for n in range(8)]
    outs = [torch.zeros_like(x) for x in xs]
    torch.spyre.synchronize()
    errors: list[Exception] = []

    def work(number: int) -> None:
        try:
            for _ in range(1000):
                torch.spyre.launch(abs_plan, [xs[number], outs[number]], stream)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stream.synchronize()
    assert errors == []
    assert abs_plan.counters.launches == 8000
    for x, out in zip(xs, outs, strict=True):
        assert torch.equal(out.cpu(), x.cpu().abs())


def test_rt67_equal_symbols_do_no_host_work(abs_plan: torch.spyre.JobPlan) -> None:
    x, out = on_card(64), torch.empty(64, dtype=F16, device="spyre")
    torch.spyre.launch(abs_plan, [x, out])
    first = abs_plan.counters
    assert (first.host_computes, first.corrections) == (1, 1)
    torch.spyre.synchronize()
    torch.spyre.synthetic.clear_timeline()  # a ring that earlier tests may have filled
    for _ in range(20):
        torch.spyre.launch(abs_plan, [x, out])
    after = abs_plan.counters
    assert (after.host_computes, after.corrections, after.reused) == (1, 1, 20)
    torch.spyre.synchronize()
    # Only the programs ran: 20 steps of the third kind.
    ran = [entry.name for entry in torch.spyre.synthetic.timeline()]
    assert ran == [abs_plan.get_step_name(2)] * 20
    torch.spyre.launch(abs_plan, [out, x])
    assert abs_plan.counters.host_computes == 2


def test_a_pipeline_of_two_kernels(tmp_path: Path) -> None:
    directory = made.write(tmp_path / "two", made.absolute(), made.add_one(), args=[(0, 1), (1, 2)])
    plan = torch.spyre.prepare(directory)
    roles = [a.role for a in plan.expected_arguments]
    assert roles == ["in", "inout", "out"]
    x = on_card(64)
    middle, out = torch.empty_like(x), torch.empty_like(x)
    torch.spyre.launch(plan, [x, middle, out])
    assert torch.allclose(out.cpu(), x.cpu().abs() + 1, atol=0.01)


def test_symbols_of_a_launch(tmp_path: Path) -> None:
    program = made.pointwise(
        "scale",
        lambda x: x * x.scalar("factor") + f.cast(x.scalar("shift", "l"), "f"),
        (64,),
        dtype="float32",
        ints=["shift"],
        floats=["factor"],
    )
    plan = torch.spyre.prepare(made.write(tmp_path / "scale", program))
    x = on_card(64, dtype=torch.float32)
    out = torch.empty_like(x)
    for factor, shift in ((2.0, 3), (0.5, -7), (2.0, 3)):
        torch.spyre.launch(plan, [x, out], symbols={"factor": factor, "shift": shift})
        assert torch.equal(out.cpu(), x.cpu() * factor + shift)
    assert plan.counters.host_computes == 2
    refused("no value for symbol 'factor'|no value for symbol 'shift'", plan, [x, out])
    refused("no symbol 'other'", plan, [x, out], symbols={"factor": 1.0, "shift": 1, "other": 2})
    refused("'shift' is an integer", plan, [x, out], symbols={"factor": 1.0, "shift": 1.5})
    refused("must lie in", plan, [x, out], symbols={"factor": 1.0, "shift": 2**40})
    refused("must be an int", plan, [x, out], TypeError, symbols={"factor": "a", "shift": 1})


def test_rt65_a_dimension_symbol_changes_the_trip_count(tmp_path: Path) -> None:
    program = made.matrix_copy(0, 70, maximum=48, granularity=4)
    plan = torch.spyre.prepare(made.write(tmp_path / "copy", program))
    for rows in (4, 48, 24):
        x = on_card(rows, 70)
        out = torch.zeros_like(x)
        torch.spyre.launch(plan, [x, out])
        assert torch.equal(out.cpu(), x.cpu())
    for rows in (5, 52):
        x = on_card(rows, 70)
        refused("tensor 0 .*symbol 'rows' is", plan, [x, torch.empty_like(x)])
    refused("shape", plan, [on_card(24, 70), on_card(28, 70)])


def test_rt69_scratch_lives_for_one_launch(tmp_path: Path) -> None:
    plan = torch.spyre.prepare(made.write(tmp_path / "scratch", made.through_scratch()))
    assert plan.dynamic_size >= 128
    before = _C.memory_stats(0)["program_bytes.current"]
    for i in range(5):
        x = (ramp(64) - i / 8).to("spyre")
        out = torch.empty_like(x)
        torch.spyre.launch(plan, [x, out])
        assert torch.equal(out.cpu(), x.cpu().abs())
    torch.spyre.synchronize()
    assert _C.memory_stats(0)["program_bytes.current"] == before


def test_in_place_and_other_dim_orders(tmp_path: Path) -> None:
    program = made.pointwise("twice", lambda x: x + x, (3, 130), in_place=True)
    plan = torch.spyre.prepare(made.write(tmp_path / "twice", program))
    x = on_card(3, 130)
    wanted = x.cpu() * 2
    torch.spyre.launch(plan, [x])
    assert torch.equal(x.cpu(), wanted)
    refused("1 tensors, got 2", plan, [x, x])


def test_float32_int32_and_views_of_equal_bits(tmp_path: Path) -> None:
    program = made.pointwise("add", lambda x: x + 1, (40,), dtype="int32")
    plan = torch.spyre.prepare(made.write(tmp_path / "add", program))
    x = torch.arange(40, dtype=torch.int32).to("spyre")
    out = torch.empty_like(x)
    torch.spyre.launch(plan, [x, out])
    assert torch.equal(out.cpu(), x.cpu() + 1)
    bits = torch.ones(40, device="spyre").view(torch.int32)  # float32's bits stay as they are
    torch.spyre.launch(plan, [bits, out])
    assert torch.equal(out.cpu(), torch.ones(40).view(torch.int32) + 1)


def test_a_raw_storage_gets_its_dtype_at_the_launch(abs_plan: torch.spyre.JobPlan) -> None:
    storage = torch.UntypedStorage(128, device="spyre")
    x = torch.empty(0, dtype=F16, device="spyre").set_(storage, 0, (64,), (1,))
    x.copy_(ramp(64))
    out = torch.empty_like(x)
    torch.spyre.launch(abs_plan, [x, out])
    assert torch.equal(out.cpu(), ramp(64).abs())


# --- the launch contract


def test_rt59_a_tensor_on_another_device_is_named(abs_plan: torch.spyre.JobPlan) -> None:
    x = on_card(64)
    refused("tensor 1 .*is on cpu", abs_plan, [x, torch.empty(64, dtype=F16)])
    refused("tensor 0 .*is on cpu", abs_plan, [torch.empty(64, dtype=F16), x])
    refused("tensor 1 .*spyre:1", abs_plan, [x, torch.empty(64, dtype=F16, device="spyre:1")])
    refused("tensor 1 is no tensor but a list", abs_plan, [x, [1.0]], TypeError)
    with pytest.raises(TypeError):
        torch.spyre.launch(abs_plan, 3)  # type: ignore[arg-type]


def test_rt60_wrong_count_shape_dtype_or_layout_is_refused(
    tmp_path: Path, abs_plan: torch.spyre.JobPlan
) -> None:
    x = on_card(64)
    refused("takes 2 tensors, got 1", abs_plan, [x])
    refused("takes 2 tensors, got 3", abs_plan, [x, x.clone(), x.clone()])
    refused(r"shape is \[128\]", abs_plan, [on_card(128), torch.empty_like(x)])
    refused(r"shape is \[8, 8\]", abs_plan, [on_card(8, 8), torch.empty_like(x)])
    refused("dtype is Float", abs_plan, [on_card(64, dtype=torch.float32), torch.empty_like(x)])
    refused("dtype is BFloat16", abs_plan, [x, torch.empty_like(x, dtype=torch.bfloat16)])
    refused(
        "zero bytes|no elements|shape", abs_plan, [x, torch.empty(0, dtype=F16, device="spyre")]
    )
    copy = torch.spyre.prepare(made.write(tmp_path / "copy", made.matrix_copy(128, 128)))
    square = on_card(128, 128)
    refused("does not lie on the card as operand x", copy, [square.t(), torch.empty_like(square)])
    refused("operand out", copy, [square, torch.empty_like(square).t()])
    refused("expanded", copy, [on_card(1, 128).expand(128, 128), square])
    refused("every 2th element", copy, [on_card(128, 256)[:, ::2], square])
    larger = on_card(256, 128)
    refused("bytes a stick, not", copy, [larger[:128], square])


def test_views_of_a_declared_larger_tensor(tmp_path: Path) -> None:
    program = made.pointwise("abs", lambda x: abs(x), (4, 128), within=(16, 128))
    plan = torch.spyre.prepare(made.write(tmp_path / "abs", program))
    base, outs = on_card(16, 128), torch.zeros(16, 128, dtype=F16, device="spyre")
    for k in (0, 4, 9, 12):
        torch.spyre.launch(plan, [base[k : k + 4], outs[k : k + 4]])
        assert torch.equal(outs[k : k + 4].cpu(), base[k : k + 4].cpu().abs())
    refused("bytes a stick, not", plan, [on_card(4, 128), outs[:4]])
    refused("share bytes", plan, [base[0:4], base[3:7]])
    # Disjoint rows of one tensor interleave on the card and share no byte.
    torch.spyre.launch(plan, [base[0:4], base[4:8]])
    assert torch.equal(base[4:8].cpu(), base[0:4].cpu().abs())


def test_a_store_may_not_overwrite_neighbours_in_a_stick(tmp_path: Path) -> None:
    program = made.pointwise("abs", lambda x: abs(x), (32,))
    plan = torch.spyre.prepare(made.write(tmp_path / "abs", program))
    base = on_card(128)
    torch.spyre.launch(plan, [base[64:96], torch.empty(32, dtype=F16, device="spyre")])
    refused("overwrite", plan, [on_card(32), base[64:96]])
    torch.spyre.launch(plan, [on_card(32), on_card(96)[64:]])  # the end of its storage
    refused("must begin one", plan, [base[32:64], torch.empty(32, dtype=F16, device="spyre")])


def test_aliasing_is_refused_unless_in_place(tmp_path: Path, abs_plan: torch.spyre.JobPlan) -> None:
    x = on_card(64)
    refused("share bytes", abs_plan, [x, x])
    refused("share bytes", abs_plan, [x, x.view(8, 8).view(64)])
    times = torch.spyre.prepare(made.write(tmp_path / "mul", made.times()))
    out = torch.empty_like(x)
    torch.spyre.launch(times, [x, x, out])  # read twice
    assert torch.allclose(out.cpu(), x.cpu() ** 2, atol=0.02)


def test_resized_and_freed_tensors(abs_plan: torch.spyre.JobPlan) -> None:
    x, out = on_card(64), torch.empty(64, dtype=F16, device="spyre")
    x.untyped_storage().resize_(64)
    refused("reaches outside its storage", abs_plan, [x, out])
    x.untyped_storage().resize_(0)
    refused("storage has zero bytes", abs_plan, [x, out])


def test_tensors_may_go_away_and_storages_change_while_launches_run(
    abs_plan: torch.spyre.JobPlan,
) -> None:
    """Work in flight keeps its bytes: what is freed meanwhile is given to nobody who could see
    them."""
    stream = torch.spyre.Stream()
    outs = []
    for i in range(50):
        x = (ramp(64) - i / 64).to("spyre")
        out = torch.empty_like(x)
        torch.spyre.synchronize()
        with torch.spyre.stream(stream):
            torch.spyre.launch(abs_plan, [x, out])
        outs.append((out, x.cpu().abs()))
        x.untyped_storage().resize_(0)
        del x
        torch.empty(64, dtype=F16, device="spyre").fill_(99)
    stream.synchronize()
    for out, wanted in outs:
        assert torch.equal(out.cpu(), wanted)


def test_a_storage_resized_by_another_thread_during_launches(
    abs_plan: torch.spyre.JobPlan,
) -> None:
    x = on_card(64)
    out = torch.empty_like(x)
    stop = threading.Event()

    def resize() -> None:
        while not stop.is_set():
            x.untyped_storage().resize_(4096)
            x.untyped_storage().resize_(128)

    thread = threading.Thread(target=resize)
    thread.start()
    try:
        for _ in range(300):
            try:
                torch.spyre.launch(abs_plan, [x, out])
                x.cpu()
            except RuntimeError as error:
                assert "storage" in str(error) or "lie on the card" in str(error), error
    finally:
        stop.set()
        thread.join()
    torch.spyre.synchronize()


def test_a_stream_of_another_device_or_kind_is_refused(abs_plan: torch.spyre.JobPlan) -> None:
    x = on_card(64)
    with pytest.raises(ValueError, match="the stream belongs to"):
        torch.spyre.launch(abs_plan, [x, torch.empty_like(x)], torch.spyre.Stream("spyre:1"))
    stream = torch.spyre.Stream()
    out = torch.empty_like(x)
    torch.spyre.synchronize()
    torch.spyre.launch(abs_plan, [x, out], stream)
    stream.synchronize()
    assert torch.equal(out.cpu(), x.cpu().abs())


# --- segments and addresses


def test_rt33_no_tensor_is_mapped_at_address_zero(tmp_path: Path) -> None:
    """D2H of the correction words: the addresses that the launch put on the card."""
    directory = d2h(made.write(tmp_path / "abs", made.absolute()), made.BASE + 128, 128, "words")
    plan = torch.spyre.prepare(directory)
    out = torch.empty(64, dtype=F16, device="spyre")
    base = on_card(256)
    seen = set()
    for start in (0, 64, 192):
        x = base[start : start + 64]
        torch.spyre.launch(plan, [x, out])
        torch.spyre.synchronize()
        words = plan.host_data("words")
        assert words is not None
        addresses = struct.unpack_from("<2Q", words)
        assert words[16:] == bytes(112)
        for address, tensor, offset in zip(addresses, (x, out), (2 * start, 0), strict=True):
            segment, byte = _C.split_dmva(address)
            assert 1 <= segment <= 5
            assert byte == torch.ops.openspyre._block_of(tensor)[2] + offset
        seen.add(addresses)
    assert len(seen) == 3
    # The sentinel of unpatched words lies in segment 0, which no launch maps.
    assert _C.split_dmva(0x3BAD5BAD5)[0] == 0
    assert _C.dmva(1, 0) > 0x3BAD5BAD5


FIVE_REGIONS = """
import sys, torch
sys.path[:0] = [{tests!r}]
import plan_directories as made
from pathlib import Path
program = made.pointwise("sum", lambda a, b, c, d, e: a + b + c + d + e, (64,), inputs=5)
plan = torch.spyre.prepare(made.write(Path({tmp!r}) / "sum", program))
tensors, fill = [], []
while len(tensors) < 6:  # each in a region of its own
    t = torch.ones(64, dtype=torch.float16, device="spyre")
    if all(torch.ops.openspyre._block_of(t)[1] != torch.ops.openspyre._block_of(o)[1]
           for o in tensors):
        tensors.append(t)
    else:
        fill.append(torch.empty(1 << 16, dtype=torch.float16, device="spyre"))
        fill.append(t)
try:
    torch.spyre.launch(plan, tensors)
except RuntimeError as error:
    assert "more than five memory regions" in str(error), error
else:
    raise SystemExit("six regions were accepted")
last = torch.zeros(64, dtype=torch.float16, device="spyre")
region = torch.ops.openspyre._block_of(last)[1]
five = [t for t in tensors if torch.ops.openspyre._block_of(t)[1] != region][:4]
torch.spyre.launch(plan, [*five, five[0], last])
assert torch.equal(last.cpu(), torch.full((64,), 5.0, dtype=torch.float16))
"""


def test_a_launch_maps_five_regions(tmp_path: Path, run_python: RunPython) -> None:
    code = FIVE_REGIONS.format(tests=str(Path(__file__).parent), tmp=str(tmp_path))
    run_python(code, {"OPENSPYRE_REGION_MIN": "256K", "OPENSPYRE_REGION_MAX": "256K"})


# --- faults


def test_rt66_an_unpatched_program_traps(tmp_path: Path) -> None:
    plan = torch.spyre.prepare(made.write(tmp_path / "abs", made.absolute(), correction=False))
    x, out = on_card(64), torch.empty(64, dtype=F16, device="spyre")
    torch.spyre.synchronize()
    stream = torch.spyre.Stream()
    try:
        torch.spyre.launch(plan, [x, out], stream)
        with pytest.raises(torch.spyre.StreamFailure, match="unpatched symbol") as caught:
            stream.synchronize()
        assert caught.value.code == torch.spyre.SpyreStreamError.MemoryFault
        with pytest.raises(torch.spyre.StreamFailure):
            torch.spyre.launch(plan, [x, out], stream)
        good = torch.spyre.prepare(made.write(tmp_path / "good", made.absolute()))
        torch.spyre.launch(good, [x, out])  # another stream works
        assert torch.equal(out.cpu(), x.cpu().abs())
    finally:
        torch.spyre.reset_stream(stream)


def beyond(size: int, stretch: int) -> Any:
    """A program that loads `stretch` sticks of an operand of `size` elements."""
    import dataclasses

    from openspyre.program.model import Load as LoadCode
    from openspyre.program.model import Loop, Program

    program: Program = made.absolute(size)

    def wider(instruction: Any) -> Any:
        if isinstance(instruction, Loop):
            return dataclasses.replace(instruction, body=tuple(map(wider, instruction.body)))
        if isinstance(instruction, LoadCode):
            offset = instruction.source.offset + 128 * stretch
            source = dataclasses.replace(instruction.source, offset=offset)
            return dataclasses.replace(instruction, source=source)
        return instruction

    queues = {unit: tuple(map(wider, code)) for unit, code in program.queues.items()}
    return dataclasses.replace(program, queues=queues)


def test_rt32_one_stick_past_an_allocation_faults(tmp_path: Path) -> None:
    directory = made.write(tmp_path / "beyond", beyond(64, 1))
    with pytest.raises(VerifyError, match="x0"):
        torch.spyre.prepare(directory)  # the verifier sees it
    plan = torch.spyre.prepare(directory, verify=False)
    x, out = on_card(64), torch.empty(64, dtype=F16, device="spyre")
    torch.spyre.synchronize()
    stream = torch.spyre.Stream()
    try:
        torch.spyre.launch(plan, [x, out], stream)
        with pytest.raises(torch.spyre.StreamFailure, match=r"(?s)x0.*128") as caught:
            stream.synchronize()
        assert caught.value.code == torch.spyre.SpyreStreamError.MemoryFault
    finally:
        torch.spyre.reset_stream(stream)
    # Within a larger allocation the same program reads what is there.
    wide = on_card(128)
    torch.spyre.launch(plan, [wide[:64], out])
    assert torch.equal(out.cpu(), wide[64:].cpu().abs())


def test_rt64_a_permuted_symbol_table_is_refused(tmp_path: Path) -> None:
    def permute(code: dict[str, Any]) -> None:
        symbols = code["JobExecPlan"][0]["properties"]["hcm"]["symbols"]
        symbols[0]["arg_index"], symbols[1]["arg_index"] = (
            symbols[1]["arg_index"],
            symbols[0]["arg_index"],
        )

    def other_table(code: dict[str, Any]) -> None:
        hcm = code["JobExecPlan"][0]["properties"]["hcm"]
        hcm["checksum"] = str(int(hcm["checksum"]) ^ 1)

    for number, edit in enumerate((permute, other_table)):
        directory = made.write(tmp_path / str(number), made.absolute())
        made.change(directory, edit)
        for verify in (True, False):
            with pytest.raises((RuntimeError, ValueError)):
                torch.spyre.prepare(directory, verify=verify)


# --- transfers from the card


def d2h(directory: Path, dev_ptr: int, size: int, handle: str = "back") -> Path:
    def add(code: dict[str, Any]) -> None:
        code["JobExecPlan"].append(
            {
                "command": "DataTransfer",
                "properties": {
                    "dirn": "true",
                    "host_handle": handle,
                    "dev_ptr": str(dev_ptr),
                    "size": str(size),
                },
            }
        )

    return made.change(directory, add)


def test_rt58_d2h_of_a_tensor_needs_bound_addresses(tmp_path: Path) -> None:
    symbolic = d2h(made.write(tmp_path / "symbolic", made.absolute()), 0, 128)
    with pytest.raises((RuntimeError, ValueError)):
        torch.spyre.prepare(symbolic)
    bound = d2h(made.write(tmp_path / "bound", made.absolute(), correction=False), 0, 128)
    plan = torch.spyre.prepare(bound)
    assert [plan.get_step_type(i) for i in range(2)] == ["Compute", "D2H"]


def test_rt58_the_segment_is_the_argument_index(tmp_path: Path) -> None:
    def plan_of(name: str, dev_ptr: int, size: int) -> torch.spyre.JobPlan:
        directory = made.write(tmp_path / name, made.absolute(), correction=False)

        def only_transfer(code: dict[str, Any]) -> None:
            # The transfer first: the program's unpatched words stop the launch behind it.
            code["JobExecPlan"].insert(0, code["JobExecPlan"].pop())

        return torch.spyre.prepare(made.change(d2h(directory, dev_ptr, size), only_transfer))

    x, out = on_card(64), torch.zeros(64, dtype=F16, device="spyre")
    with pytest.raises(RuntimeError, match=r"launch argument 2.*out of range"):
        plan_of("range", 2 << 34, 128)
    refused("out of bounds", plan_of("bounds", 128, 128), [x, out])
    plan = plan_of("good", 0, 128)
    torch.spyre.synchronize()
    stream = torch.spyre.Stream()
    try:
        torch.spyre.launch(plan, [x, out], stream)
        with pytest.raises(torch.spyre.StreamFailure):
            stream.synchronize()
    finally:
        torch.spyre.reset_stream(stream)
    assert plan.host_data("back") == bytes(torch.ops.openspyre._raw_read(x).tolist())
    assert plan.host_data("other") is None
