"""Memory at the level of Python: allocation, out of memory, regions, history, snapshot, tokens.

Tests that fill a card run in a child process with a card of some megabytes.
"""

from __future__ import annotations

import gc
import pickle
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from conftest import RunPython

spyre = torch.spyre  # type: ignore[attr-defined]
# One region of 4 MiB is the whole card.
ONE_REGION = {
    "OPENSPYRE_CARD": "tiny",
    "OPENSPYRE_CAPACITY": "4M",
    "OPENSPYRE_REGION_MIN": "4M",
    "OPENSPYRE_REGION_MAX": "4M",
}
TINY = {"OPENSPYRE_CARD": "tiny"}


@pytest.fixture(autouse=True)
def collected() -> None:
    torch.ones(1, device="spyre")
    gc.collect()
    spyre.synchronize()
    spyre.memory._C.poll_pending_frees(0)


def test_rt2_an_empty_tensor_takes_nothing() -> None:
    before = spyre.memory_stats()
    x = torch.empty(0, device="spyre")
    assert x.data_ptr() == 0
    after = spyre.memory_stats()
    for key in ("allocation.all.current", "allocated_bytes.all.current"):
        assert before[key] == after[key]


def test_rt3_allocated_memory_follows_the_tensor() -> None:
    host = torch.ones(64, 64, dtype=torch.float16)
    spyre.reset_peak_memory_stats()
    before = spyre.memory_allocated()
    x = host.to("spyre")
    assert spyre.memory_allocated() == before + 8192
    del x
    spyre.synchronize()
    assert spyre.memory_allocated() == before
    assert spyre.max_memory_allocated() == before + 8192


@pytest.mark.parametrize("count", [1, 50, 100, 127, 128, 129, 200, 255, 256])
def test_rt4_card_bytes_are_whole_sticks(count: int) -> None:
    before = spyre.memory_allocated()
    x = torch.empty(count, dtype=torch.float16, device="spyre")
    grown = spyre.memory_allocated() - before
    assert grown >= 128 and grown % 128 == 0 and grown >= 2 * count
    assert spyre.layout_of(x).nbytes == grown
    assert x.untyped_storage().nbytes() == 2 * count


def test_rt5_float32_is_not_smaller_on_the_card() -> None:
    before = spyre.memory_allocated()
    x = torch.empty(1024, device="spyre")
    grown = spyre.memory_allocated() - before
    assert x.numel() == 1024 and grown >= 4096 and grown % 128 == 0


def test_rt6_batches_are_freed_for_larger_ones() -> None:
    before = spyre.memory_allocated()
    held = [torch.empty(512, device="spyre") for _ in range(100)]
    while held:
        del held[:10]
        assert torch.empty(5120, device="spyre").numel() == 5120
    assert spyre.memory_allocated() == before


def test_rt7_neighbours_coalesce(run_python: RunPython) -> None:
    run_python(
        """
import itertools, torch
n = 349440  # three of them, of 4 bytes each, fill the region but for less than one
for order in itertools.permutations(range(3)):
    blocks = [torch.empty(n, device="spyre") for _ in range(3)]
    try:
        torch.empty(n, device="spyre")
    except torch.OutOfMemoryError:
        pass
    else:
        raise AssertionError("the region should be full")
    for i in order:
        blocks[i] = None
    x = torch.empty(3 * n, device="spyre")
    del x
    torch.spyre.memory._C.check_memory(0)
assert torch.spyre.memory_allocated() == 0
""",
        ONE_REGION,
    )


def test_rt8_random_order_of_frees_returns_to_the_start() -> None:
    before = spyre.memory_stats()
    blocks = [torch.empty(n, device="spyre") for n in (128, 4096, 262144, 128, 8192, 524288)]
    random.Random(42).shuffle(blocks)
    while blocks:
        blocks.pop()
    after = spyre.memory_stats()
    for key in ("allocated_bytes", "allocation", "active_bytes", "requested_bytes"):
        assert before[f"{key}.all.current"] == after[f"{key}.all.current"]


def test_rt9_a_thousand_rounds_leave_no_drift() -> None:
    samples = set()
    for i in range(1000):
        x = torch.empty(100 + i % 7, device="spyre").fill_(i)
        del x
        if i % 100 == 0:
            samples.add(spyre.memory_allocated())
    assert len(samples) == 1


def test_rt10_pt12_threads_allocate_and_free() -> None:
    before = spyre.memory_allocated()
    errors: list[BaseException] = []

    def churn(seed: int) -> None:
        chance = random.Random(seed)
        held: list[torch.Tensor] = []
        try:
            for _ in range(200):
                held.append(torch.empty(chance.randrange(1, 20000), device="spyre"))
                if len(held) > 8:
                    held.pop(chance.randrange(len(held)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=churn, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert spyre.memory_allocated() == before
    spyre.memory._C.check_memory(0)


class Knot:
    def __init__(self, count: int) -> None:
        self.tensor = torch.empty(count, device="spyre")
        self.other: Knot | None = None


def test_rt11_a_reference_cycle_is_freed_by_the_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        before = spyre.memory_allocated()
        a, b = Knot(1000), Knot(1000)
        a.other, b.other = b, a
        del a, b
        assert spyre.memory_allocated() > before
        assert gc.collect() >= 2
        assert spyre.memory_allocated() == before
    finally:
        gc.enable()


KNOT = """
import gc, torch
class Knot:
    def __init__(self, n):
        self.tensor = torch.empty(n, device="spyre")
        self.me = self
"""


def test_rt12_b109_garbage_is_collected_on_exhaustion(run_python: RunPython) -> None:
    run_python(
        KNOT
        + """
gc.disable()
Knot(800_000)
assert torch.spyre.memory_allocated() >= 3_200_000
x = torch.empty(500_000, device="spyre")
s = torch.spyre.memory_stats()
assert s["num_ooms"] == 0 and s["num_alloc_retries"] >= 1
for i in range(50):
    Knot(500_000)
""",
        ONE_REGION,
    )


def test_b110_pt11_pressure_from_many_threads_does_not_hang(run_python: RunPython) -> None:
    run_python(
        KNOT
        + """
import threading
gc.disable()
count = [0]
def churn():
    for i in range(60):
        try:
            Knot(300_000)
            count[0] += 1
        except torch.OutOfMemoryError:
            pass
threads = [threading.Thread(target=churn) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
gc.collect()
assert count[0] > 0 and torch.spyre.memory_allocated() == 0
""",
        ONE_REGION,
        timeout=60,
    )


def test_rt13_rt14_live_tensors_exhaust_the_card(run_python: RunPython) -> None:
    run_python(
        """
import torch
held = [torch.empty(250_000, device="spyre") for _ in range(4)]
before = torch.spyre.memory_allocated()
try:
    torch.empty(300_000, device="spyre")
except torch.OutOfMemoryError as error:
    text = str(error)
    assert isinstance(error, RuntimeError)
else:
    raise AssertionError
for word in ("requested", "capacity", "free", "largest"):
    assert word in text.lower(), text
assert "1200000" in text.replace(",", "").replace("_", "") or "1.1" in text, text
assert torch.spyre.memory_stats()["num_ooms"] == 1
assert torch.spyre.memory_allocated() == before
held.pop()
assert torch.empty(250_000, device="spyre").numel() == 250_000
""",
        ONE_REGION,
    )


def test_rt15_verdicts_tell_exhausted_from_fragmented(run_python: RunPython) -> None:
    run_python(
        """
import torch
n = 25_000
held = [torch.empty(n, device="spyre") for _ in range(41)]
def verdict(count):
    try:
        torch.empty(count, device="spyre")
    except torch.OutOfMemoryError as error:
        return str(error)
    raise AssertionError("no error")
assert "exhausted" in verdict(60_000)
held[::2] = [None] * len(held[::2])
assert "fragmented" in verdict(2 * n)
score = torch.spyre.fragmentation()
assert 0 < score.score <= 1 and score.handles_max == 0
held.clear()
assert torch.spyre.fragmentation().score == 0
""",
        ONE_REGION,
    )


def test_rt16_a_request_larger_than_any_region_changes_nothing(run_python: RunPython) -> None:
    run_python(
        """
import torch
x = torch.ones(8, device="spyre")
before = torch.spyre.memory._C.memory_stats(0)
try:
    torch.empty(5 << 20, dtype=torch.uint8, device="spyre")
except torch.OutOfMemoryError as error:
    assert "too large for a region" in str(error), error
else:
    raise AssertionError
after = torch.spyre.memory._C.memory_stats(0)
assert after.pop("num_ooms") == before.pop("num_ooms") + 1
changed = {k for k in before if before[k] != after[k]}
assert changed <= {"num_alloc_retries", "num_sync_all_streams"}, changed
assert torch.equal(x.cpu(), torch.ones(8))
""",
        TINY,
    )


HANDLES = """
import torch
held = []
try:
    for i in range(9):
        held.append(torch.empty(1 << 20, dtype=torch.uint8, device="spyre"))
    print("all")
except torch.OutOfMemoryError as error:
    print(len(held), error)
"""


def test_rt17_b112_virtual_functions_run_out_of_handles(run_python: RunPython) -> None:
    env = {
        "OPENSPYRE_CARD": "tiny",
        "OPENSPYRE_REGION_MIN": "1M",
        "OPENSPYRE_REGION_MAX": "1M",
        "OPENSPYRE_HANDLES": "8",
    }
    vf = run_python(HANDLES, {**env, "OPENSPYRE_DEVICES": "0.0"}).stdout
    assert vf.startswith("8 ") and "handle-limited" in vf
    assert run_python(HANDLES, {**env, "OPENSPYRE_DEVICES": "0"}).stdout.strip() == "all"


def test_rt18_regions_come_and_go(run_python: RunPython) -> None:
    run_python(
        """
import torch
s = torch.spyre
s.init()
assert s.memory_reserved() == 0 and s.memory.memory_snapshot() == []
x = torch.empty(100, device="spyre")
assert s.memory_reserved() > 0
del x
s.synchronize(); s.empty_cache()
assert s.memory_reserved() == 0
free, total = s.get_memory_info()
assert free == total == 16 << 20
""",
        TINY,
    )


def test_rt19_tenants_share_a_card_and_not_their_memory(run_python: RunPython) -> None:
    run_python(
        """
import torch
from openspyre import _C
s = torch.spyre
a, b = torch.full((1000,), 1.0, device="spyre:0"), torch.full((1000,), 2.0, device="spyre:1")
assert torch.equal(a.cpu(), torch.ones(1000)) and torch.equal(b.cpu(), torch.full((1000,), 2.0))
block = _C.Block(0, 4096)
try:
    block.free(1)
except s.BadToken as error:
    assert "0" in str(error) and "1" in str(error)
else:
    raise AssertionError("tenant 1 freed a block of tenant 0")
assert _C.find_token(block.token)["device"] == 0
block.free()
try:
    block.free()
except s.BadToken:
    pass
else:
    raise AssertionError("double free")
# Physical ranges of the two never meet.
ranges = sorted((g["physical"], g["total_size"]) for g in s.memory.memory_snapshot())
assert all(x + n <= y for (x, n), (y, _) in zip(ranges, ranges[1:]))
""",
        {"OPENSPYRE_DEVICES": "0.0,0.1", "OPENSPYRE_CARD": "tiny"},
    )


def test_rt22_rt27_program_memory_is_apart() -> None:
    from openspyre import _C

    x = torch.empty(1000, device="spyre")
    free, total = spyre.get_memory_info()
    allocated = spyre.memory_allocated()
    held = spyre.memory_stats()["program_bytes.current"]  # by plans of earlier tests
    program = _C.Block(0, 300_000, 0, "program_static")
    now, usable = spyre.get_memory_info()
    assert usable - now == total - free and usable <= total - 300_000
    assert spyre.memory_allocated() == allocated
    assert spyre.memory_stats()["program_bytes.current"] >= held + 300_000
    regions = {
        row["region"]
        for row in spyre.memory_snapshot()
        if (row["device"], row["memory_type"]) == (0, "program_static")
    }
    tensor_region = torch.ops.openspyre._block_of(x)[1]
    assert program.region in regions and tensor_region not in regions
    program.free()
    assert spyre.memory_stats()["program_bytes.current"] == held


def test_rt27_free_memory_counts_tensor_bytes(run_python: RunPython) -> None:
    run_python(
        """
import torch
s = torch.spyre
free, total = s.get_memory_info()
assert free == total == 16 << 20
held = [torch.empty(n, device="spyre") for n in (10, 1000, 100_000)]
now, total = s.get_memory_info()
assert total - now == s.memory_allocated(), (total - now, s.memory_allocated())
assert torch.accelerator.get_memory_info(0) == (now, total) == s.mem_get_info()
""",
        TINY,
    )


def test_rt23_pt14_record_stream_parks_a_freed_block() -> None:
    other = spyre.Stream()
    x = torch.empty(1000, device="spyre")
    place = tuple(torch.ops.openspyre._block_of(x)[:3])
    spyre.synthetic.submit("compute", 1000, stream=other, hold_seconds=0.3)
    x.record_stream(other)
    del x
    states = [
        block["state"]
        for segment in spyre.memory_snapshot()
        for block in segment["blocks"]
        if block["state"] == "active_pending_free"
    ]
    assert states == ["active_pending_free"]
    y = torch.empty(1000, device="spyre")
    assert tuple(torch.ops.openspyre._block_of(y)[:3]) != place
    other.synchronize()
    del y
    spyre.memory._C.poll_pending_frees(0)
    z = torch.empty(1000, device="spyre")
    assert tuple(torch.ops.openspyre._block_of(z)[:3]) == place


def test_rt24_the_same_stream_reuses_a_block_at_once() -> None:
    x = torch.empty(77_777, device="spyre")
    place = torch.ops.openspyre._block_of(x)[:3]
    del x
    y = torch.empty(77_777, device="spyre")
    assert torch.ops.openspyre._block_of(y)[:3] == place


def record() -> dict:
    """A short history with allocations that live, that died, and one region made."""
    spyre.empty_cache()
    spyre.memory._record_memory_history()
    held = [torch.empty(n, device="spyre") for n in (1000, 200_000, 3000)]
    gone = torch.empty(5000, device="spyre")
    del gone, held[1]
    snapshot = spyre.memory._snapshot()
    spyre.memory._record_memory_history(enabled=None)
    snapshot["live"] = len(held)
    return snapshot


def test_rt26_snapshot_adds_up() -> None:
    snapshot = record()
    assert snapshot["segments"]
    for segment in snapshot["segments"]:
        assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"]
        active = [b for b in segment["blocks"] if b["state"] == "active_allocated"]
        assert sum(b["size"] for b in active) == segment["allocated_size"]
        assert sum(b["requested_size"] for b in active) == segment["requested_size"]
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
    assert len(snapshot["device_traces"]) == spyre.device_count()
    trace = snapshot["device_traces"][0]
    actions = [entry["action"] for entry in trace]
    assert actions.count("alloc") - actions.count("free_completed") == snapshot["live"]
    assert actions[-1] == "snapshot"
    assert {"alloc", "free_requested", "free_completed"} <= set(actions)
    mine = next(e for e in trace if e["action"] == "alloc")["frames"]
    assert any(f["name"] == "record" and f["filename"] == __file__ for f in mine)
    assert all(isinstance(f["line"], int) for f in mine)


def test_pt19_the_four_viewers_read_the_snapshot() -> None:
    from torch.cuda import _memory_viz as viz

    snapshot = record()
    assert "<html" in viz.trace_plot(snapshot).lower() or viz.trace_plot(snapshot)
    assert viz.segment_plot(snapshot)
    assert "segments:" in viz.segsum(snapshot)
    assert "alloc" in viz.trace(snapshot)


def test_rt26_the_viewer_program_reads_a_dump(tmp_path: Path) -> None:
    spyre.memory._record_memory_history()
    held = torch.empty(4000, device="spyre")
    file, out = tmp_path / "dump.pickle", tmp_path / "out.html"
    spyre.memory._dump_snapshot(file)
    spyre.memory._record_memory_history(enabled=None)
    assert held.numel() == 4000
    assert pickle.loads(file.read_bytes())["device_traces"][0]
    command = [sys.executable, "-m", "torch.cuda._memory_viz", "trace_plot", str(file)]
    subprocess.run([*command, "-o", str(out)], check=True, timeout=120)
    assert out.stat().st_size > 1000


def test_history_shows_an_out_of_memory(run_python: RunPython) -> None:
    run_python(
        """
import torch
m = torch.spyre.memory
m._record_memory_history(max_entries=100)
try:
    torch.empty(8 << 20, dtype=torch.uint8, device="spyre")
except torch.OutOfMemoryError:
    pass
(trace,) = m._snapshot()["device_traces"]
assert [e["size"] for e in trace if e["action"] == "oom"] == [8 << 20]
for i in range(300):
    torch.empty(10, device="spyre")
assert len(m._snapshot()["device_traces"][0]) <= 101
for bad in ({"enabled": "some"}, {"stacks": "c"}, {"max_entries": 0}):
    try:
        m._record_memory_history(**bad)
    except ValueError:
        pass
    else:
        raise AssertionError(bad)
""",
        TINY,
    )


def test_rt28_view_pointers_are_token_arithmetic() -> None:
    x = torch.arange(100, dtype=torch.float32, device="spyre")
    assert x[1:].data_ptr() - x.data_ptr() == 4
    assert x[37:50].data_ptr() - x.data_ptr() == 37 * 4
    found = spyre.memory._C.find_token(x[99:].data_ptr())
    assert found is not None and found["token"] == x.data_ptr()
    assert spyre.memory._C.find_token(id(x)) is None


def test_rt28_a_host_dereference_faults(run_python: RunPython) -> None:
    done = run_python(
        """
import ctypes, torch
x = torch.ones(100, device="spyre")
print("before", flush=True)
ctypes.string_at(x.data_ptr(), 4)
print("after", flush=True)
""",
        check=False,
    )
    assert done.stdout == "before\n" and done.returncode < 0


def test_a_stale_token_is_found_by_its_generation() -> None:
    from openspyre import _C

    block = _C.Block(0, 1000)
    token, generation = block.token, block.generation
    block.free()
    assert _C.find_token(token) is None
    again = _C.Block(0, 1000)
    assert (again.token, again.generation) != (token, generation)
    with pytest.raises(spyre.BadToken):
        block.record_use(3)


def test_pt10_accelerator_memory_functions_agree() -> None:
    x = torch.empty(100_000, device="spyre")
    a = torch.accelerator
    assert a.memory_allocated() == spyre.memory_allocated() >= 400_000
    assert a.memory_reserved() == spyre.memory_reserved() >= spyre.memory_allocated()
    assert a.max_memory_allocated() == spyre.max_memory_allocated()
    assert a.max_memory_reserved() == spyre.max_memory_reserved()
    stats, own = spyre.memory_stats(), spyre.memory._C.memory_stats(0)
    shared = [key for key in own if key in stats]
    assert len(shared) > 100 and all(stats[key] == own[key] for key in shared)
    del x
    spyre.reset_peak_memory_stats()
    assert spyre.max_memory_allocated() == spyre.memory_allocated()
    spyre.reset_accumulated_memory_stats()
    assert spyre.memory_stats()["allocation.all.freed"] == 0
    a.empty_cache()


def test_pt12_statistics_are_per_device(run_python: RunPython) -> None:
    run_python(
        """
import torch
s = torch.spyre
a = torch.empty(1000, device="spyre:1")
assert s.memory_allocated(0) == 0 and s.memory_allocated("spyre:1") >= 4000
with s.device(1):
    assert s.memory_allocated() >= 4000
try:
    torch.empty(8 << 20, dtype=torch.uint8, device="spyre:1")
except torch.OutOfMemoryError:
    pass
assert s.memory_stats(1)["num_ooms"] == 1 and s.memory_stats(0).get("num_ooms", 0) == 0
""",
        {"OPENSPYRE_DEVICES": "0,1", "OPENSPYRE_CARD": "tiny"},
    )


def test_summary_and_host_statistics_are_readable() -> None:
    x = torch.empty(100_000, device="spyre")
    text = spyre.memory_summary()
    assert "Allocated memory" in text and "large pool" in text and "spyre:0" in text
    assert "large pool" not in spyre.memory_summary(abbreviated=True)
    assert x.numel() == 100_000
    pinned = torch.empty(1000, pin_memory=True)
    assert spyre.host_memory_stats()["active_bytes.current"] >= pinned.nbytes
    spyre.memory.reset_peak_host_memory_stats()


def test_b115_profiling_memory_takes_no_device_memory() -> None:
    before = spyre.memory_allocated()
    with torch.profiler.profile(profile_memory=True):
        for _ in range(1000):
            torch.empty(10, device="spyre")
    assert spyre.memory_allocated() == before


def test_b118_a_storage_that_shrinks_keeps_its_data() -> None:
    x = torch.arange(100, dtype=torch.int32, device="spyre")
    x.untyped_storage().resize_(4)
    assert x[:1].cpu().item() == 0
    spyre.memory._C.check_memory(0)


def test_execute_off_gives_addresses_and_no_bytes(run_python: RunPython) -> None:
    run_python(
        """
import torch
s = torch.spyre
x = torch.empty(1 << 30, dtype=torch.uint8, device="spyre")
assert s.memory_allocated() == 1 << 30 and x.data_ptr() != 0
for use in (lambda: x[:4].cpu(), lambda: x[0].item()):
    try:
        use()
    except s.NoBacking as error:
        assert "OPENSPYRE_EXECUTE" in str(error) or "execute" in str(error)
    else:
        raise AssertionError
""",
        {"OPENSPYRE_EXECUTE": "off"},
    )
