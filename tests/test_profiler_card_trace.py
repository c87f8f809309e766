"""The trace on the virtual clock: rows, flows, units of all cores, counters, and their sums."""

# torch's stubs know neither the generated names nor what a test has made sure of.
# mypy: disable-error-code="attr-defined,name-defined,union-attr"

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from openspyre import _C
from openspyre.observe.card_trace import CORES, ENGINES, PROCESSES, STREAMS, card_trace
from openspyre.observe.recorded import Event, recorded
from openspyre.program.model import UNITS

NATIVE = True
spyre = torch.spyre


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Event], dict[str, Any]]:
    """A product large enough for all cores, and what follows it."""
    native = _C.native_enabled()
    _C.native_set_enabled(True)
    path = tmp_path_factory.mktemp("card") / "card.json"
    a = torch.ones(256, 512, dtype=torch.float16).to("spyre")
    b = torch.ones(512, 2048, dtype=torch.float16).to("spyre")
    with spyre.trace(path) as recording:
        torch.nn.functional.gelu(a @ b).cpu()
    _C.native_set_enabled(native)
    return recording.events, json.loads(path.read_text())


def slices(trace: dict[str, Any], process: int) -> list[dict[str, Any]]:
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] % PROCESSES == process]


def names(trace: dict[str, Any]) -> dict[tuple[int, int], str]:
    return {
        (e["pid"], e["tid"]): e["args"]["name"]
        for e in trace["traceEvents"]
        if e["name"] == "thread_name"
    }


def test_engines_and_streams_show_every_step_once(
    traced: tuple[list[Event], dict[str, Any]],
) -> None:
    events, trace = traced
    modelled = sum(e.virtual_duration_ns for e in events)
    for process in (STREAMS, ENGINES):
        mine = [e for e in slices(trace, process) if e["cat"] != "host"]
        assert {e["args"]["correlation"] for e in mine} == {e.correlation for e in events}
        assert sum(e["dur"] for e in mine) * 1000 == pytest.approx(modelled)
    assert {e["args"]["engine"] for e in slices(trace, ENGINES)} >= {"Compute", "D2H"}
    for event in slices(trace, ENGINES):
        assert names(trace)[event["pid"], event["tid"]] == event["args"]["engine"]


def test_units_of_all_32_cores_lie_inside_of_their_program(
    traced: tuple[list[Event], dict[str, Any]],
) -> None:
    _, trace = traced
    rows = [names(trace)[e["pid"], e["tid"]] for e in slices(trace, CORES)]
    assert {row.split()[1] for row in rows} == {f"{core:02d}" for core in range(32)}
    assert {row.split()[2] for row in rows} <= {unit.value for unit in UNITS}
    kernels = {e["name"]: e for e in slices(trace, ENGINES) if e["cat"] == "kernel"}
    assert trace["otherData"]["kernels with cores"] == trace["otherData"]["kernels"] >= 2
    for event in slices(trace, CORES):
        kernel = kernels[event["args"]["program"]]
        assert kernel["ts"] - 1e-3 <= event["ts"]
        assert event["ts"] + event["dur"] <= kernel["ts"] + kernel["dur"] + 2e-3


def test_rows_hold_one_thing_at_a_time(traced: tuple[list[Event], dict[str, Any]]) -> None:
    """Perfetto refuses slices of a row that overlap without nesting."""
    _, trace = traced
    rows = defaultdict(list)
    for event in (e for e in trace["traceEvents"] if e["ph"] == "X"):
        rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for row in rows.values():
        row.sort()
        for (_, end), (begin, _) in pairwise(row):
            assert begin >= end - 1e-6


def test_flows_go_from_the_submission_to_the_step(
    traced: tuple[list[Event], dict[str, Any]],
) -> None:
    events, trace = traced
    begin = {e["id"]: e for e in trace["traceEvents"] if e["ph"] == "s"}
    end = {e["id"]: e for e in trace["traceEvents"] if e["ph"] == "f"}
    assert set(begin) == set(end) == {e.correlation for e in events}
    assert all(begin[n]["ts"] <= end[n]["ts"] for n in begin)


def test_counters_sum_to_the_bytes_of_the_model(
    traced: tuple[list[Event], dict[str, Any]],
) -> None:
    from openspyre.observe.card_trace import known_programs
    from openspyre.timing import time_program

    events, trace = traced
    find = known_programs()
    timelines = [time_program(p) for e in events if e.kind == "kernel" and (p := find(e))]
    expected = sum(t.bytes_read + t.bytes_written for t in timelines)
    counters = [
        (e["ts"], e["args"]["GB/s"]) for e in trace["traceEvents"] if e["name"] == "LPDDR5 GB/s"
    ]
    counters.sort(key=lambda c: c[0])
    moved = sum((later - at) * 1000 * rate for (at, rate), (later, _) in pairwise(counters))
    assert moved == pytest.approx(expected, rel=1e-6)


def test_programs_that_are_not_known_are_drawn_without_cores() -> None:
    with recorded() as own:
        _C.submit(0, 0, "compute", "synthetic", 1000)
    made = card_trace(own.events)
    assert (made.kernels, made.detailed) == (1, 0)
    assert not slices(made.json, CORES)


def test_an_unwritable_path_is_refused_before_the_block(tmp_path: Path) -> None:
    ran = False
    with pytest.raises(OSError), spyre.trace(tmp_path / "missing" / "card.json"):
        ran = True
    assert not ran


def test_an_exception_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    with pytest.raises(KeyError), spyre.trace(path):
        _C.submit(0, 0, "compute", "before", 1000)
        raise KeyError
    assert any(e["name"] == "before" for e in json.loads(path.read_text())["traceEvents"])
    assert [p.name for p in tmp_path.iterdir()] == ["card.json"]
