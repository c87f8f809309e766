"""torch.profiler on spyre: activities, categories, flows, rows, memory, sums, silence when off."""

# torch's stubs know neither the generated names nor what a test has made sure of.
# mypy: disable-error-code="attr-defined,name-defined,union-attr"

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import RunPython
from torch.profiler import ProfilerActivity, profile

from openspyre import _C
from openspyre.observe.recorded import recorded

NATIVE = True
BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
spyre = torch.spyre


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)
    )
    return layers.half().to("spyre").eval()


@torch.no_grad()
def step(net: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return net(x.to("spyre")).cpu()


def trace_of(prof: profile, path: Path) -> list[dict[str, Any]]:
    prof.export_chrome_trace(str(path))
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def of(events: list[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    return [e for e in events if e.get("ph") == "X" and e.get("cat") == category]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One profile of a small model, and what the card itself counted meanwhile."""
    native = _C.native_enabled()
    _C.native_set_enabled(True)
    net, x = model(), torch.ones(3, 128, dtype=torch.float16)
    plain = step(net, x)
    spyre.synchronize()
    engines = ("h2d", "d2h", "compute")
    before = {e: _C.engine_totals(0, e) for e in engines}
    with profile(activities=BOTH, profile_memory=True, record_shapes=True) as prof:
        result = step(net, x)
        with recorded() as own:
            step(net, x)
    after = {e: _C.engine_totals(0, e) for e in engines}
    _C.native_set_enabled(native)
    totals = {e: tuple(a - b for a, b in zip(after[e], before[e], strict=True)) for e in engines}
    events = trace_of(prof, tmp_path_factory.mktemp("profile") / "trace.json")
    return {
        "prof": prof,
        "events": events,
        "totals": totals,
        "own": own.events,
        "plain": plain,
        "result": result,
    }


def test_pt15_b166_a_stock_wheel_shows_kernels_of_the_card(profiled: dict[str, Any]) -> None:
    assert ProfilerActivity.PrivateUse1 in torch.profiler.supported_activities()
    assert ProfilerActivity.SPYRE in torch.profiler.supported_activities()
    kernels = of(profiled["events"], "kernel")
    assert len(kernels) >= 3
    named = {e["name"] for e in kernels}
    assert all(name and "unnamed" not in name for name in named)
    sources = " ".join(str(e["args"].get("source operations", "")) for e in kernels)
    assert "gelu" in sources and ("mm" in sources or "linear" in sources), sources
    table = profiled["prof"].key_averages().table(sort_by="self_device_time_total")
    assert "SPYRE" in table and any(name in table for name in named)


def test_copies_have_their_categories(profiled: dict[str, Any]) -> None:
    copies = Counter(e["name"] for e in of(profiled["events"], "gpu_memcpy"))
    assert copies["Memcpy HtoD (Host -> Device)"] >= 2
    assert copies["Memcpy DtoH (Device -> Host)"] == 2
    with profile(activities=BOTH) as prof:
        a = torch.ones(4096, device="spyre")
        torch.zeros(0, device="spyre")
        a.clone()
        _C.submit(0, 0, "compute", "synthetic step", 10)
        spyre.synchronize()
    assert any(e.name == "synthetic step" for e in prof.events())


def test_every_step_flows_from_its_launch_and_its_operation(
    profiled: dict[str, Any],
) -> None:
    events = profiled["events"]
    work = of(events, "kernel") + of(events, "gpu_memcpy") + of(events, "gpu_memset")
    calls = {e["args"]["correlation"]: e for e in of(events, "privateuse1_runtime")}
    starts = {e["id"]: e for e in events if e.get("cat") == "ac2g" and e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e.get("cat") == "ac2g" and e["ph"] == "f"}
    operations = {e["args"].get("External id") for e in of(events, "cpu_op")}
    for event in work:
        number = event["args"]["correlation"]
        call = calls[number]
        assert call["ts"] <= event["ts"] + 1e-3
        assert (starts[number]["pid"], starts[number]["tid"]) == (call["pid"], call["tid"])
        assert (ends[number]["pid"], ends[number]["tid"]) == (event["pid"], event["tid"])
        assert event["args"]["External id"] in operations, event["name"]


def test_rows_name_stream_and_engine(profiled: dict[str, Any]) -> None:
    events = profiled["events"]
    rows = {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in events
        if e["ph"] == "M" and e["name"] == "thread_name"
    }
    processes = {
        e["pid"]: e["args"]["name"]
        for e in events
        if e["ph"] == "M" and e["name"] == "process_name"
    }
    for event in of(events, "kernel") + of(events, "gpu_memcpy"):
        args = event["args"]
        assert rows[event["pid"], event["tid"]].startswith(
            f"stream {args['stream']} {args['engine']}"
        )
        assert processes[event["pid"]] == "spyre 0"


def test_sums_agree_with_the_card(profiled: dict[str, Any]) -> None:
    events = profiled["events"]
    for engine, name in (("h2d", "H2D"), ("d2h", "D2H"), ("compute", "Compute")):
        mine = [
            e
            for e in of(events, "kernel") + of(events, "gpu_memcpy") + of(events, "gpu_memset")
            if e["args"]["engine"] == name
        ]
        steps, nbytes, busy = profiled["totals"][engine]
        assert len(mine) == steps, engine
        assert sum(e["args"]["bytes"] for e in mine) == nbytes
        modelled = [e["args"]["modelled end (ns)"] - e["args"]["modelled begin (ns)"] for e in mine]
        assert sum(modelled) == busy


def test_b164_device_time_equals_the_recorded_times(profiled: dict[str, Any]) -> None:
    """The trace has the same steps, on the same clocks, as the recorder's own listener."""
    by_number = {
        e["args"]["correlation"]: e
        for category in ("kernel", "gpu_memcpy", "gpu_memset")
        for e in of(profiled["events"], category)
    }
    own = [e for e in profiled["own"] if e.kind != "host_compute"]
    assert own and all(e.status == "done" for e in own)
    named = sum(by_number[e.correlation]["dur"] * 1000 for e in own)
    assert named == pytest.approx(sum(e.duration_ns for e in own), rel=1e-3, abs=1000 * len(own))
    for event in own:
        args = by_number[event.correlation]["args"]
        assert args["modelled begin (ns)"] == event.virtual_begin_ns
        assert args["modelled end (ns)"] == event.virtual_end_ns


def test_profiling_changes_no_bit(profiled: dict[str, Any]) -> None:
    assert torch.equal(profiled["plain"], profiled["result"])


def test_b121_b169_memory_events_match_the_statistics() -> None:
    spyre.synchronize()
    before = spyre.memory_allocated()
    with profile(activities=BOTH, profile_memory=True) as prof:
        kept = [torch.empty(1000, device="spyre") for _ in range(10)]
        during = spyre.memory_allocated()
        del kept
    assert spyre.memory_allocated() == before
    instants = [
        e
        for e in prof.profiler.kineto_results.events()
        if e.name() == "[memory]" and e.device_type() == torch.autograd.DeviceType.PrivateUse1
    ]
    changes = [e.nbytes() for e in instants]
    assert sum(c for c in changes if c > 0) == during - before
    assert sum(changes) == 0


def test_b170_sessions_do_not_leak() -> None:
    names = []
    for session in range(2):
        _C.submit(0, 0, "compute", f"outside {session}", 10)
        with profile(activities=BOTH) as prof:
            _C.submit(0, 0, "compute", f"inside {session}", 10)
            spyre.synchronize()
        names.append({e.name for e in prof.events() if "side" in e.name})
    assert names == [{"inside 0"}, {"inside 1"}]


def test_b167_nothing_is_recorded_when_off() -> None:
    assert not _C.recorder_on()
    with profile(activities=[ProfilerActivity.CPU]):
        assert not _C.recorder_on()
    with profile(activities=BOTH):
        assert _C.recorder_on()
    assert not _C.recorder_on()


def test_several_threads_streams_and_devices() -> None:
    def run(number: int) -> None:
        stream = torch.Stream(f"spyre:{number % 2}")
        with stream:
            for _ in range(5):
                _C.submit(number % 2, stream.stream_id, "compute", f"thread {number}", 10)
        stream.synchronize()

    with recorded() as own, profile(activities=BOTH) as prof:
        threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    counts = Counter(e.name for e in prof.events() if e.name.startswith("thread "))
    assert counts == {f"thread {n}": 5 for n in range(4)}
    mine = [e for e in own.events if e.name.startswith("thread ")]
    assert len({e.submit_thread for e in mine}) == 4
    assert len({(e.device, e.stream) for e in mine}) == 4
    assert {e.device for e in mine} == {0, 1}


def test_b127_a_profile_in_a_worker_thread(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"

    def run() -> None:
        with profile(activities=BOTH) as prof:
            torch.ones(64, device="spyre").add(1).cpu()
        prof.export_chrome_trace(str(path))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert of(json.loads(path.read_text())["traceEvents"], "kernel")


def test_a_failed_step_is_marked_and_the_profile_ends() -> None:
    stream = torch.Stream("spyre")
    with recorded(synchronize=False) as own, profile(activities=BOTH) as prof:
        _C.submit(0, stream.stream_id, "compute", "broken", 10, fail="on purpose")
        with pytest.raises(Exception, match="on purpose"):
            stream.synchronize()
        _C.reset_stream(0, stream.stream_id)
    assert [e.status for e in own.events if e.name == "broken"] == ["failed"]
    assert any(e.name == "broken" for e in prof.events())
    assert torch.ones(3, device="spyre").add(1).sum().item() == 6


def test_steps_behind_a_failure_are_cancelled_and_have_no_time() -> None:
    stream = torch.Stream("spyre")
    gate = _C.Signal(0)
    with recorded(synchronize=False) as own:
        gate.wait(stream.stream_id)
        _C.submit(0, stream.stream_id, "compute", "broken", 10, fail="on purpose")
        _C.submit(0, stream.stream_id, "compute", "behind", 10)
        gate.signal(0)
        with pytest.raises(Exception, match="on purpose"):
            stream.synchronize()
        _C.reset_stream(0, stream.stream_id)
    behind = next(e for e in own.events if e.name == "behind")
    assert behind.status == "cancelled" and not behind.ran


def test_nested_recordings_have_their_own_events() -> None:
    with recorded() as outer:
        _C.submit(0, 0, "compute", "one", 10)
        with recorded() as inner:
            _C.submit(0, 0, "compute", "two", 10)
        _C.submit(0, 0, "compute", "three", 10)
    assert [e.name for e in inner.events] == ["two"]
    assert [e.name for e in outer.events] == ["one", "two", "three"]
    assert outer.dropped == 0


def test_a_recording_survives_an_exception() -> None:
    with pytest.raises(KeyError), recorded() as own:
        _C.submit(0, 0, "compute", "before", 10)
        raise KeyError
    assert [e.name for e in own.events] == ["before"]
    assert not _C.recorder_on()


def test_names_with_quotes_make_legal_json(tmp_path: Path) -> None:
    with profile(activities=BOTH) as prof:
        _C.submit(0, 0, "compute", 'a "name" with \\ and \n', 10)
        spyre.synchronize()
    events = trace_of(prof, tmp_path / "trace.json")
    assert any("a 'name' with /" in e["name"] for e in of(events, "kernel"))


def test_the_profile_works_before_the_first_use_of_the_device(run_python: RunPython) -> None:
    done = run_python(
        "import torch\n"
        "from torch.profiler import profile, ProfilerActivity as A\n"
        "with profile(activities=[A.CPU, A.PrivateUse1]) as p:\n"
        "    torch.ones(3, device='spyre').cpu()\n"
        "print(sum('Memcpy' in e.name for e in p.events()) > 0)\n"
    )
    assert done.stdout.strip().endswith("True"), done.stderr
