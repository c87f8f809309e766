"""Tools of others read our traces without error: HolisticTraceAnalysis, acelyzer, Perfetto.

The first two live in an environment of their own (`make trace-tools`); the trace processor of
Perfetto is run where `trace_processor_shell` is on the path, and the rules by which it reads JSON
are checked everywhere.
"""

# torch's stubs know neither the generated names nor what a test has made sure of.
# mypy: disable-error-code="attr-defined,name-defined,union-attr"

from __future__ import annotations

import json
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from openspyre import _C

NATIVE = True
TOOLS = Path(__file__).parent.parent / ".venv-trace"
needs_tools = pytest.mark.skipif(
    not (TOOLS / "bin" / "acelyzer").exists(), reason="make trace-tools installs the tools"
)
TRACES = ("torch", "card")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A few steps of a small model: the trace of torch.profiler and that of the modelled card."""
    native = _C.native_enabled()
    _C.native_set_enabled(True)
    folder = tmp_path_factory.mktemp("traces")
    paths = {name: folder / f"{name}.json" for name in TRACES}
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(128, 512), torch.nn.GELU(), torch.nn.Linear(512, 64))
    net = net.half().to("spyre").eval()
    x = torch.ones(64, 128, dtype=torch.float16)
    with torch.no_grad():
        net(x.to("spyre")).cpu()
        both = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]
        with torch.spyre.trace(paths["card"]), profile(activities=both) as prof:
            for _ in range(3):
                with torch.profiler.record_function("a step"):
                    net(x.to("spyre")).cpu()
    prof.export_chrome_trace(str(paths["torch"]))
    _C.native_set_enabled(native)
    return paths


def events_of(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


@pytest.mark.parametrize("which", TRACES)
def test_traces_keep_the_rules_of_perfettos_json_reader(
    traces: dict[str, Path], which: str
) -> None:
    """Slices of the card's rows nest or follow one another, numbers are numbers, and both ends of
    each flow lie in a slice. PyTorch's own rows are PyTorch's."""
    events = events_of(traces[which])
    rows = defaultdict(list)
    for event in events:
        assert isinstance(event.get("name", ""), str) and isinstance(event["ph"], str)
        if event["ph"] in "XCsf":
            assert isinstance(event["ts"], int | float), event
        if event["ph"] == "X":
            assert event["dur"] >= 0
            rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    ours = {
        (e["pid"], e["tid"])
        for e in events
        if e["ph"] == "X" and (which == "card" or e.get("cat", "").startswith(("kernel", "gpu_")))
    }
    for row in ours:
        open_slices: list[float] = []
        for begin, end in sorted(rows[row], key=lambda s: (s[0], -s[1])):
            while open_slices and open_slices[-1] <= begin + 1e-6:
                open_slices.pop()
            assert not open_slices or end <= open_slices[-1] + 1e-3, row
            open_slices.append(end)
    flows = [e for e in events if e["ph"] in "sf" and e.get("cat") in ("ac2g", "launch")]
    assert flows
    for flow in flows:
        spans = rows[flow["pid"], flow["tid"]]
        assert any(begin - 1e-3 <= flow["ts"] <= end + 1e-3 for begin, end in spans), flow


@pytest.mark.parametrize("which", TRACES)
def test_perfettos_trace_processor_reads_the_trace(traces: dict[str, Path], which: str) -> None:
    shell = shutil.which("trace_processor_shell")
    if shell is None:
        pytest.skip("trace_processor_shell is not installed")
    query = (
        "select count(*) as n from slice;"
        " select name, value from stats where severity='error' and value>0;"
    )
    done = subprocess.run(
        [shell, "-Q", query, str(traces[which])], capture_output=True, text=True, check=True
    )
    slices = sum(e["ph"] == "X" for e in events_of(traces[which]))
    assert str(slices) in done.stdout


@needs_tools
def test_holistic_trace_analysis_reads_kernels_and_their_times(
    traces: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "hta"
    folder.mkdir()
    shutil.copy(traces["torch"], folder / "rank0.json")
    script = """
import json, sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=sys.argv[2])
table = analysis.t.get_trace(0)
names = analysis.t.symbol_table.get_sym_table()
ours = table[table["stream"] >= 0]
kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
times = analysis.get_temporal_breakdown(visualize=False)
print(json.dumps({
    "events": len(ours),
    "kinds": {row["kernel_type"]: float(row["sum"]) for _, row in kinds.iterrows()},
    "kernels": sorted(set(kernels["name"])),
    "busy": float(times["compute_time(us)"].iloc[0]),
}))
"""
    done = subprocess.run(
        [str(TOOLS / "bin" / "python"), "-c", script, str(folder / "rank0.json"), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout.splitlines()[-1])
    work = [
        e
        for e in events_of(traces["torch"])
        if e["ph"] == "X" and e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    assert read["events"] == len(work)
    compute = sum(e["dur"] for e in work if e["cat"] == "kernel")
    # It counts whole microseconds.
    assert read["kinds"]["COMPUTATION"] == pytest.approx(compute, abs=len(work))


@needs_tools
@pytest.mark.parametrize("which", TRACES)
def test_acelyzer_reads_the_trace(traces: dict[str, Path], which: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = subprocess.run(
        [str(TOOLS / "bin" / "acelyzer"), "-i", str(traces[which]), "-o", str(out), "-D", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ERROR" not in done.stdout + done.stderr
    written = json.loads(out.read_text())["traceEvents"]
    mine = {e["name"] for e in events_of(traces[which]) if e.get("cat") == "kernel"}
    assert mine <= {e["name"] for e in written}
