"""Launches of prepared plans on tensors: results, contract, correction, faults, tiles, overlap."""

from __future__ import annotations

import gc
import struct
import threading
from pathlib import Path
from typing import Any

import plan_directories as made
import pytest
import torch
from conftest import RunPython

from openspyre import _C
from openspyre.program import body as f
from openspyre.program.verify import VerifyError

F16 = torch.float16


def ramp(*shape: int, dtype: torch.dtype = F16) -> torch.Tensor:
    """Multiples of 1/64 between -2 and 2: exact in every 16-bit format. On the CPU."""
    count = int(torch.tensor(shape).prod())
    return ((torch.arange(count) * 7 % 255 - 127) / 64).to(dtype).reshape(shape)


def on_card(*shape: int, dtype: torch.dtype = F16) -> torch.Tensor:
    return ramp(*shape, dtype=dtype).to("spyre")


@pytest.fixture
def abs_plan(tmp_path: Path) -> torch.spyre.JobPlan:
    return torch.spyre.prepare(made.write(tmp_path / "abs", made.absolute()))


def refused(
    match: str,
    plan: torch.spyre.JobPlan,
    tensors: list[Any],
    error: type = RuntimeError,
    **more: Any,
) -> None:
    """The launch is an error that says `match`, and nothing was submitted."""
    torch.spyre.synchronize()
    before = (plan.counters, len(torch.spyre.synthetic.timeline()))
    with pytest.raises(error, match=match):
        torch.spyre.launch(plan, tensors, **more)
    assert (plan.counters, len(torch.spyre.synthetic.timeline())) == before


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
    before = len(torch.spyre.synthetic.timeline())
    for _ in range(20):
        torch.spyre.launch(abs_plan, [x, out])
    after = abs_plan.counters
    assert (after.host_computes, after.corrections, after.reused) == (1, 1, 20)
    torch.spyre.synchronize()
    # Only the programs ran: 20 steps of the third kind.
    ran = [entry.name for entry in torch.spyre.synthetic.timeline()[before:]]
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


# --- tiled launches


def test_rt68_a_larger_tensor_is_worked_off_in_tiles(tmp_path: Path) -> None:
    plan = torch.spyre.prepare(made.write(tmp_path / "abs", made.absolute(1024)), slots=1)
    x = on_card(4096)
    out = torch.zeros_like(x)
    torch.spyre.synchronize()
    before = len(torch.spyre.synthetic.timeline())
    torch.spyre.launch(plan, [x, out], allow_tiled_launch=True)
    assert torch.equal(out.cpu(), x.cpu().abs())
    counts = plan.counters
    assert (counts.launches, counts.host_computes, counts.corrections) == (4, 4, 4)
    names = {plan.get_step_name(i) for i in range(3)}
    rows = [e for e in torch.spyre.synthetic.timeline()[before:] if e.name in names]
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
