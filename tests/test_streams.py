"""Streams, events, errors and the virtual clock at the level of Python (RT34-RT48, B121, B122)."""

# torch's stubs know neither the generated names nor what a test has made sure of.
# mypy: disable-error-code="attr-defined,name-defined,union-attr"

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from conftest import RunPython

spyre = torch.spyre
work = spyre.synthetic
US = 1000  # virtual nanoseconds


@pytest.fixture(autouse=True)
def quiet_device() -> Iterator[None]:
    """Every test starts and ends with idle streams, no faults and no sticky error."""
    yield
    work.clear_faults()
    for stream_id in spyre.streams._C.used_streams(0):
        if spyre.streams._C.stream_error(0, stream_id):
            spyre.streams._C.reset_stream(0, stream_id)
    spyre.synchronize()
    work.clear_timeline()
    spyre.set_stream(spyre.default_stream())


def row(correlation: int) -> work.TimelineEntry:
    return next(entry for entry in work.timeline() if entry.correlation == correlation)


def test_rt34_ids_and_priorities_of_the_pools() -> None:
    default = spyre.default_stream()
    assert (default.stream_id, default.priority) == (0, 0)
    low = [spyre.Stream(priority=0) for _ in range(33)]
    assert {s.stream_id for s in low} == set(range(1, 33)) and {s.priority for s in low} == {0}
    assert low[32].stream_id == low[0].stream_id
    for priority in (-1, 1):
        high = [spyre.Stream(priority=priority) for _ in range(32)]
        assert {s.stream_id for s in high} == set(range(33, 65))
        assert {s.priority for s in high} == {-1}
    assert torch.Stream("spyre").stream_id in range(1, 33)
    assert low[0].device == torch.device("spyre", 0)


def test_rt35_host_compute_streams_wrap() -> None:
    ids = [spyre.host_compute_stream().stream_id for _ in range(8)]
    assert set(ids) == {65, 66, 67, 68} and ids[:4] == ids[4:]
    assert spyre.host_compute_stream().priority == -1


@pytest.mark.parametrize(("text", "count"), [("20", 8), ("1", 1), ("0", None), ("many", None)])
def test_rt35_the_number_of_host_compute_streams(
    run_python: RunPython, text: str, count: int | None
) -> None:
    done = run_python(
        """
import torch
try:
    print(len({torch.spyre.host_compute_stream().stream_id for _ in range(40)}))
except ValueError as error:
    print("error", error)
""",
        {"TORCH_SPYRE_NUM_HOST_COMPUTE_STREAMS": text},
    )
    if count is None:
        assert "error" in done.stdout and "TORCH_SPYRE_NUM_HOST_COMPUTE_STREAMS" in done.stdout
    else:
        assert done.stdout.strip() == str(count)


def test_rt36_context_managers_nest_and_are_thread_local() -> None:
    a, b = spyre.Stream(), spyre.Stream(priority=-1)
    assert spyre.current_stream().stream_id == 0
    with spyre.stream(a):
        assert spyre.current_stream() == a == torch.accelerator.current_stream()
        with b, spyre.stream(a), spyre.stream(None):
            assert spyre.current_stream() == a
        assert spyre.current_stream() == a
        with spyre.stream(a):
            assert spyre.current_stream() == a
        seen: list[int] = []
        thread = threading.Thread(target=lambda: seen.append(spyre.current_stream().stream_id))
        thread.start()
        thread.join()
        assert seen == [0]
    assert spyre.current_stream() == spyre.default_stream()
    with pytest.raises(KeyError), spyre.stream(b):
        raise KeyError
    assert spyre.current_stream().stream_id == 0
    spyre.set_stream(a)
    assert isinstance(spyre.current_stream(), spyre.Stream) and spyre.current_stream() == a


def test_rt37_synchronize_leaves_streams_idle() -> None:
    streams = [spyre.Stream() for _ in range(3)]
    for stream in streams:
        work.submit("compute", 10 * US, stream=stream, hold_seconds=0.02)
    assert not all(stream.query() for stream in streams)
    streams[0].synchronize()
    assert streams[0].query()
    torch.accelerator.synchronize()
    assert all(stream.query() for stream in streams)


def test_rt38_one_stream_keeps_its_order_over_1000_steps() -> None:
    stream = spyre.Stream()
    work.clear_timeline()
    engines = [work.ENGINES[i % 4] for i in range(1000)]
    ids = [work.submit(e, (i % 7) * US, name=f"s{i}", stream=stream) for i, e in enumerate(engines)]
    stream.synchronize()
    rows = [r for r in work.timeline() if r.stream == stream.stream_id]
    assert [r.correlation for r in rows] == ids
    assert all(r.status == "done" for r in rows)
    assert all(b.start_ns >= a.end_ns for a, b in itertools.pairwise(rows))


def test_rt38_copies_on_one_stream_are_ordered() -> None:
    stream = spyre.Stream()
    x = torch.zeros(257, device="spyre")
    sources = [torch.full((257,), float(i)) for i in range(200)]
    stream.wait_stream(spyre.current_stream())
    with spyre.stream(stream):
        for source in sources:
            x.copy_(source, non_blocking=True)
    stream.synchronize()
    assert torch.equal(x.cpu(), sources[-1])


def test_rt39_b121_many_threads_submit_to_one_stream() -> None:
    stream = spyre.Stream()
    work.clear_timeline()
    ids: list[int] = []

    def submit() -> None:
        for _ in range(125):
            ids.append(work.submit("compute", US, stream=stream))

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stream.synchronize()
    rows = [r for r in work.timeline() if r.stream == stream.stream_id]
    assert len(set(ids)) == 1000 == len(rows) and {r.correlation for r in rows} == set(ids)
    by_time = sorted(rows, key=lambda r: r.start_ns)
    assert all(b.start_ns >= a.end_ns for a, b in itertools.pairwise(by_time))


def test_rt40_events_record_wait_query_and_measure_virtual_time() -> None:
    stream = spyre.Stream()
    marks = [spyre.Event(enable_timing=True) for _ in range(3)]
    assert all(isinstance(mark, spyre.Event) for mark in marks)
    assert not isinstance(torch.Event("cpu"), spyre.Event)
    marks[0].record(stream)
    work.submit("compute", 300 * US, stream=stream)
    marks[1].record(stream)
    work.submit("h2d", 200 * US, stream=stream)
    marks[2].record(stream)
    marks[2].synchronize()
    assert all(mark.query() for mark in marks)
    first, second = marks[0].elapsed_time(marks[1]), marks[1].elapsed_time(marks[2])
    assert first >= 0.3 and second >= 0.2
    assert marks[0].elapsed_time(marks[2]) == pytest.approx(first + second)


def test_rt40_torch_events_and_streams_work_the_same() -> None:
    a, b = torch.Stream("spyre"), torch.Stream("spyre")
    event = torch.Event("spyre", enable_timing=True)
    work.submit("compute", 50 * US, stream=a)
    event.record(a)
    b.wait_event(event)
    later = work.submit("h2d", US, stream=b)
    end = b.record_event()
    end.synchronize()
    assert row(later).start_ns >= work.stream_time_ns(a)


def test_rt40_b122_wait_stream_and_wait_event_order_two_streams() -> None:
    a, b, c = (spyre.Stream() for _ in range(3))
    first = work.submit("compute", 100 * US, stream=a)
    event = a.record_event()
    b.wait_stream(a)
    second = work.submit("h2d", US, stream=b)
    c.wait_event(event)
    third = work.submit("d2h", US, stream=c)
    free = work.submit("host_compute", US, stream=spyre.Stream())
    spyre.synchronize()
    assert row(second).start_ns >= row(first).end_ns <= row(third).start_ns
    assert row(free).start_ns < row(first).end_ns


def test_two_streams_overlap_on_the_virtual_clock() -> None:
    a, b = spyre.Stream(), spyre.Stream()
    one = work.submit("compute", 500 * US, stream=a)
    two = work.submit("h2d", 500 * US, stream=b)
    spyre.synchronize()
    assert max(row(one).end_ns, row(two).end_ns) - row(one).start_ns < 1000 * US


def test_virtual_times_do_not_depend_on_real_ones() -> None:
    def run(hold: float) -> list[tuple[int, int]]:
        a, b = spyre.Stream(), spyre.Stream()
        work.clear_timeline()
        start = work.device_time_ns()
        work.advance_host(start - work.host_time_ns())
        ids = []
        for i in range(10):
            ids.append(work.submit("h2d", 3 * US, stream=a, hold_seconds=hold))
            b.wait_event(a.record_event())
            ids.append(work.submit("compute", 5 * US, stream=b, hold_seconds=hold * (i % 2)))
        spyre.synchronize()
        return [(row(i).start_ns - start, row(i).end_ns - start) for i in ids]

    assert run(0.0) == run(0.002)


def test_rt41_waiting_for_an_event_never_recorded_does_not_block() -> None:
    stream = spyre.Stream()
    event = spyre.Event()
    assert event.query()
    stream.wait_event(event)
    event.synchronize()
    work.submit("compute", US, stream=stream)
    stream.synchronize()
    assert stream.query()


def test_rt41_b122_circular_waits_are_a_deadlock_that_names_the_streams() -> None:
    a, b = spyre.Stream(), spyre.Stream()
    one, two = work.Signal(), work.Signal()
    one.wait(a)
    work.submit("compute", US, stream=a)
    two.signal(a)
    two.wait(b)
    work.submit("compute", US, stream=b)
    one.signal(b)
    with pytest.raises(spyre.Deadlock) as caught:
        spyre.synchronize()
    assert str(a.stream_id) in str(caught.value) and str(b.stream_id) in str(caught.value)
    for stream in (a, b):
        spyre.reset_stream(stream)
        work.submit("compute", US, stream=stream)
        stream.synchronize()


def test_b122_an_error_poisons_those_who_wait_for_it_and_nobody_else() -> None:
    a, b, c = (spyre.Stream() for _ in range(3))
    work.submit("compute", US, name="broken", stream=a, fail="kaput", hold_seconds=0.01)
    event = a.record_event()
    b.wait_event(event)
    work.submit("compute", US, stream=b)
    work.submit("compute", US, stream=c)
    c.synchronize()
    with pytest.raises(spyre.StreamFailure, match="broken"):
        spyre.streams._C.stream_synchronize(0, b.stream_id)
    with pytest.raises(RuntimeError, match="kaput"):
        a.synchronize()
    assert spyre.stream_get_error(a) is not spyre.SpyreStreamError.Success
    assert spyre.stream_get_error(c) is spyre.SpyreStreamError.Success


def test_rt45_pinned_memory() -> None:
    x = torch.empty(100, pin_memory=True)
    assert x.is_pinned() and x[7:].is_pinned()
    assert torch.ones(3).pin_memory().is_pinned()
    assert not torch.ones(3).is_pinned()
    with pytest.raises(RuntimeError):
        torch.empty(3, device="spyre", pin_memory=True)
    stats = spyre.host_memory_stats()
    assert stats["allocated_bytes.current"] >= 400


@pytest.mark.parametrize("pinned", [False, True])
def test_rt46_b101_a_source_may_be_overwritten_at_once(pinned: bool) -> None:
    stream = spyre.Stream()
    expected = torch.arange(5000.0)
    source = expected.clone().pin_memory() if pinned else expected.clone()
    with spyre.stream(stream):
        work.submit("h2d", US, hold_seconds=0.05)
        x = source.to("spyre", non_blocking=True)
    source.fill_(-1)
    del source
    stream.synchronize()
    assert torch.equal(x.cpu(), expected)


def test_rt46_non_blocking_to_host_of_an_expanded_view_is_right_after_sync() -> None:
    base = torch.arange(40.0).view(1, 40)
    view = base.to("spyre").expand(6, 40)[:, 3:31:2]
    out = torch.empty(6, 14, pin_memory=True)
    out.copy_(view, non_blocking=True)
    torch.accelerator.synchronize()
    assert torch.equal(out, base.expand(6, 40)[:, 3:31:2])
    late = view.to("cpu", non_blocking=True)
    torch.accelerator.synchronize()
    assert torch.equal(late, out)


def test_rt47_enums_and_states() -> None:
    assert (spyre.SpyreStreamError.Success, spyre.SpyreStreamError.Shutdown) == (0, 1)
    assert [s.value for s in spyre.SpyreDeviceState] == [0, 1, 2]
    torch.ones(1, device="spyre")
    assert spyre.get_device_state() is spyre.SpyreDeviceState.Ok
    bad = spyre.Stream()
    work.submit("compute", US, stream=bad, fail="x")
    while spyre.stream_get_error(bad) is spyre.SpyreStreamError.Success:
        time.sleep(0.001)
    assert spyre.get_device_state() is spyre.SpyreDeviceState.StreamError
    assert "x" in spyre.stream_get_error_string(bad)
    assert "torch.spyre.reset_stream(" in spyre.stream_get_error_string(bad)  # the way out
    spyre.reset_stream(bad)
    assert spyre.get_device_state() is spyre.SpyreDeviceState.Ok
    assert spyre.stream_get_error_string(bad) == ""


def test_rt48_a_faulting_step_fails_its_stream_fast_and_no_other() -> None:
    bad, good = spyre.Stream(), spyre.Stream()
    code = spyre.SpyreStreamError.MemoryFault
    with work.faults(nth=1, name_contains="kernel", code=code):
        work.submit("compute", US, name="kernel a", stream=bad)
        work.submit("compute", US, name="other", stream=bad)
        work.submit("compute", US, name="kernel b", stream=bad)
        with pytest.raises(spyre.StreamFailure) as caught:
            spyre.streams._C.stream_synchronize(0, bad.stream_id)
    error = caught.value
    assert isinstance(error, torch.AcceleratorError) and isinstance(error, RuntimeError)
    assert (error.code, error.origin, error.device) == (code, "kernel b", 0)
    assert error.stream == bad.stream_id and spyre.stream_get_error(bad) is code
    with pytest.raises(spyre.StreamFailure, match="kernel b"):
        work.submit("compute", US, stream=bad)
    with pytest.raises(RuntimeError, match="kernel b"):
        bad.query()
    work.submit("compute", US, stream=good)
    good.synchronize()
    spyre.reset_stream(bad)
    done = work.submit("compute", US, stream=bad)
    bad.synchronize()
    assert row(done).status == "done"


def test_faults_with_a_seed_hit_the_same_steps() -> None:
    def failing(seed: int) -> list[int]:
        hit = []
        with work.faults(rate=0.2, seed=seed, name_contains="probe"):
            for i in range(60):
                stream = spyre.Stream()
                try:
                    work.submit("compute", 0, name="probe", stream=stream)
                    stream.synchronize()
                except RuntimeError:
                    hit.append(i)
                    spyre.reset_stream(stream)
        return hit

    first = failing(1)
    assert first and first == failing(1) and first != failing(2)


def test_waits_answer_ctrl_c(run_python: RunPython) -> None:
    run_python(
        """
import os, signal, threading, torch
s = torch.spyre
stream = s.Stream()
def press():
    os.kill(os.getpid(), signal.SIGINT)
for wait in (s.synchronize, stream.synchronize, torch.accelerator.synchronize):
    s.synthetic.submit("compute", 1000, stream=stream, hold_seconds=3)
    timer = threading.Timer(0.2, press); timer.start()
    try:
        wait()
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError(f"{wait} was not interrupted")
s.synchronize()
assert stream.query()
"""
    )


def test_waits_let_other_threads_run() -> None:
    stream = spyre.Stream()
    work.submit("compute", US, stream=stream, hold_seconds=0.5)
    ran = threading.Event()
    threading.Timer(0.05, ran.set).start()
    stream.synchronize()
    assert ran.is_set()


def test_bad_arguments_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="quantum"):
        work.submit("quantum", US)
    with pytest.raises(ValueError, match="negative"):
        work.submit("compute", -1)
    with pytest.raises(ValueError, match="cpu"):
        spyre.set_stream(torch.Stream("cpu"))
    with pytest.raises(IndexError, match="999"):
        spyre.streams._C.submit(0, 999, "compute", "x", 1)
    with pytest.raises(NotImplementedError, match="one process"):
        spyre.Event(interprocess=True)


def test_pt17_backward_runs_on_the_stream_of_forward() -> None:
    stream = spyre.Stream()
    x = torch.ones(8, device="spyre", requires_grad=True)
    stream.wait_stream(spyre.current_stream())
    with spyre.stream(stream):
        (x * 3).sum().backward()
    spyre.current_stream().wait_stream(stream)
    assert torch.equal(x.grad.cpu(), torch.full((8,), 3.0))
