"""The report's figures: against what was compiled, the card's statistics and hand-made steps."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from openspyre import _C
from openspyre.card import PRESETS
from openspyre.cli import main
from openspyre.device.synthetic import TimelineEntry
from openspyre.observe.explain import KernelFacts, explain
from openspyre.observe.report import ReportError, Run, check_target, watch, write_report
from openspyre.observe.report_advice import advice
from openspyre.observe.report_data import ReportData
from openspyre.observe.report_formats import format_errors, format_layers
from openspyre.observe.report_gather import gather, layer_of
from openspyre.observe.report_pictures import BARS, BINS, picture
from openspyre.program.model import Unit
from openspyre.timing import time_program

NATIVE = True


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, 2 * width, bias=False)
        self.down = torch.nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(torch.relu(self.up(x)))
        return x + y


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Block(128) for _ in range(2))
        self.head = torch.nn.Linear(128, 320, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        y: torch.Tensor = torch.softmax(self.head(x), -1)
        return y


@pytest.fixture(scope="module")
def compiled() -> tuple[Run, ReportData]:
    """Four calls of a compiled model, then an eager operation and a fallback."""
    _C.native_set_enabled(True)
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Small().half().eval().to("spyre")
    x = torch.randn(64, 128, dtype=torch.float16).to("spyre")
    forward = torch.compile(model, dynamic=False)
    with torch.no_grad():
        forward(x)
        with watch("a small model") as run:
            run.name_tensors(model)
            with run.phase("forward", unit="rows") as phase:
                for _ in range(4):
                    y = forward(x)
                phase.count = 4 * 64
            (y.float() * 2.0).sum().item()
            torch.linalg.matrix_exp(torch.eye(4, device="spyre"))
    return run, gather(run)


# --- against the explanation and the card


def test_kernels_are_those_of_the_explanation(compiled: tuple[Run, ReportData]) -> None:
    run, data = compiled
    torch._dynamo.reset()
    model = Small().half().eval().to("spyre")
    x = torch.randn(64, 128, dtype=torch.float16).to("spyre")
    with torch.no_grad():
        (region,) = explain(torch.compile(model, dynamic=False), x).regions
    wanted = [k for k in region.kernels if isinstance(k, KernelFacts)]
    found = [k for k in data.kernels if k.mode == "compiled"]
    assert len(run.launched) == 4 and len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.launches == 4
        assert (ours.name, ours.kind, ours.cores) == (theirs.name, theirs.kind, theirs.cores)
        assert ours.modelled_ns == -int(-theirs.modelled_ns // 1), "the clock counts whole ns"
        assert ours.total_ns == 4 * ours.modelled_ns
        assert (ours.bytes_read, ours.bytes_written) == (theirs.bytes_read, theirs.bytes_written)
        assert (ours.macs, ours.lx_bytes, ours.bound_by) == (
            theirs.macs, theirs.lx_bytes, theirs.bound_by,
        )  # fmt: skip
    rows = sum(k.macs for k in found)
    assert rows == 64 * 128 * (2 * 2 * 256 + 320), "the products of the model"


def test_sums_are_the_cards_statistics(compiled: tuple[Run, ReportData]) -> None:
    run, data = compiled
    assert not run.lost
    by_name = {engine.name: engine for engine in data.engines}
    for name, engine in by_name.items():
        rows = [r for r in run.rows if r[2].lower().replace("hostc", "host_c") == name]
        assert engine.steps == len(rows), name
        assert engine.busy_ns == sum(r[5] - r[4] for r in rows), name
        assert engine.bytes == sum(r[7] for r in rows), name
    assert sum(k.total_ns for k in data.kernels) == by_name["compute"].busy_ns
    assert sum(k.launches for k in data.kernels) == by_name["compute"].steps
    assert sum(k.share for k in data.kernels) == pytest.approx(1)
    assert data.modelled_ns == run.end_ns - run.start_ns > 0
    assert data.run is not None
    assert sum(lane.busy_ns for lane in data.run.lanes) == sum(e.busy_ns for e in data.engines)
    assert data.launches["regions"] == 4


def test_layers_are_the_modules_of_the_model(compiled: tuple[Run, ReportData]) -> None:
    _, data = compiled
    modules = [layer for layer in data.layers if layer.kind == "module"]
    assert [layer.name for layer in modules] == ["layers.0", "layers.1", "head"]
    assert modules[0].macs == 4 * 64 * 2 * 128 * 256 and modules[2].macs == 4 * 64 * 128 * 320
    assert any("self.down(torch.relu(self.up(x)))" in s for s in modules[0].sources)
    assert all("| module" not in s for layer in data.layers for s in layer.sources)
    assert sorted(n for layer in data.layers for n in layer.kernels) == list(
        range(len(data.kernels))
    )
    eager = [layer.name for layer in data.layers if layer.kind == "operation"]
    assert any("aten.mul" in name for name in eager), "eager operations, by operation"


def test_speed_of_a_phase(compiled: tuple[Run, ReportData]) -> None:
    run, data = compiled
    (speed,) = data.speeds
    (phase,) = run.phases
    assert (speed.name, speed.unit, speed.count) == ("forward", "rows", 256)
    assert speed.modelled_rate == pytest.approx(256e9 / (phase.end_ns - phase.start_ns))
    assert speed.wall_rate == pytest.approx(256 / phase.wall_seconds)
    calls = sum(k.total_ns for k in data.kernels if k.mode == "compiled")
    assert calls <= phase.end_ns - phase.start_ns


def test_busy_cores_add_up(compiled: tuple[Run, ReportData]) -> None:
    """The heat map holds the busy time that the timing model says, to its rounding."""
    run, data = compiled
    assert data.run is not None and data.call is not None
    for shown in (data.run, data.call):
        work = np.array(shown.work)
        assert work.shape == (32, BINS) and work.min() >= 0 and work.max() <= 100
        assert len(shown.edges_ns) == BINS + 1
        assert max(shown.lx_peak) == max(k.lx_bytes for k in data.kernels if _in(shown, k.name))
        assert all(m <= p + 1 for m, p in zip(shown.lx_mean, shown.lx_peak, strict=True))
    width = (data.call.end_ns - data.call.start_ns) / BINS
    seen = np.array(data.call.work).mean(axis=0).sum() / 100 * width
    programs = run.launched[-1].plan.loaded.region.programs
    wanted = sum(
        (span.end_ns - span.start_ns) * span.repeats * span.cores / 32
        for program in programs
        for span in time_program(program).spans
        if span.unit in (Unit.PT, Unit.SFU)
    )
    # Less only where both units of a core work at a time, of which a picture knows one.
    assert 0.9 * wanted <= seen <= 1.02 * wanted


def _in(shown: Any, name: str) -> bool:
    return any(segment.name == name for lane in shown.lanes for segment in lane.segments)


def test_memory_map_names_the_weights(compiled: tuple[Run, ReportData]) -> None:
    _, data = compiled
    assert data.memory is not None
    tensors = [r for r in data.memory.regions if r.type == "tensor"]
    assert tensors and all(
        sum(b.bytes for b in region.blocks) == region.bytes for region in data.memory.regions
    )
    names = [b.name for region in tensors for b in region.blocks]
    assert "head.weight" in names and "layers.1.down.weight" in names
    held = sum(b.bytes for r in tensors for b in r.blocks if b.state == "tensor")
    assert held == sum(region.allocated for region in tensors)
    assert 0 < held <= data.memory.stats["allocated_bytes.all.peak"]
    assert max(data.memory.allocated) <= data.memory.stats["allocated_bytes.all.peak"]


def test_fallbacks_come_with_advice(compiled: tuple[Run, ReportData]) -> None:
    _, data = compiled
    (row,) = (f for f in data.fallbacks if "matrix_exp" in f.operation)
    assert row.calls == 1 and row.bytes_to_host == 64 and row.advice
    assert any("fallbacks" in one.title for one in data.advice)


def test_the_data_is_json(compiled: tuple[Run, ReportData]) -> None:
    _, data = compiled
    back = json.loads(data.to_json())
    assert back["modelled"] is True and back["kernels"][0]["name"] == data.kernels[0].name


def test_watching_changes_no_bit() -> None:
    torch._dynamo.reset()
    x = torch.randn(64, 128, dtype=torch.float16).to("spyre")
    model = Small().half().eval().to("spyre")
    forward = torch.compile(model, dynamic=False)
    with torch.no_grad():
        before = forward(x).cpu()
        with watch():
            during = forward(x).cpu()
    assert torch.equal(before, during)


def test_a_run_that_did_nothing(tmp_path: Path) -> None:
    with watch("nothing") as run:
        pass
    data = write_report(tmp_path / "page.html", run)
    assert data.bound.name == "nothing" and not data.kernels and data.run is None
    assert data.advice[0].title == "Use the card"
    assert "No step was seen" in (tmp_path / "page.html").read_text()


def test_a_short_timeline_loses_nothing_and_lost_steps_are_told(run_python: Any) -> None:
    code = """
import torch
from openspyre.observe.report import watch
from openspyre.observe.report_gather import gather
x = torch.ones(64, 64, device="spyre")
with watch() as run:
    for _ in range(40): x = x + 1
    torch.spyre.synthetic.clear_timeline()
data = gather(run)
(compute,) = (e for e in data.engines if e.name == "compute")
assert compute.steps == sum(k.launches for k in data.kernels) == 40, compute
assert not run.lost and not data.notes
run.lost = 7000
assert "7,000 later ones" in gather(run).notes[0]
"""
    run_python(code, {"OPENSPYRE_TIMELINE": "16"})


# --- pictures of hand-made steps


def _row(
    number: int, start: int, end: int, engine: str = "compute", stream: int = 0
) -> TimelineEntry:
    return TimelineEntry(number, f"step{number}", engine, stream, start, end, start, 0, "done")


def test_thin_steps_are_put_together_and_none_is_lost() -> None:
    rows = [_row(n, 100 * n, 100 * n + 60) for n in range(10 * BARS)]
    rows += [_row(-1, 0, 5_000, "h2d", 3)]
    shown = picture("many", rows, {}, PRESETS["spyre"])
    assert shown is not None
    compute, h2d = sorted(shown.lanes, key=lambda lane: lane.engine)
    assert len(compute.segments) <= 2 * BARS and len(h2d.segments) == 1
    assert sum(s.steps for s in compute.segments) == compute.steps == 10 * BARS
    assert sum(s.busy_ns for s in compute.segments) == compute.busy_ns == 600 * BARS
    assert shown.covered == 0 and not np.array(shown.work).any()
    ends = [s.end_ns for s in compute.segments]
    assert ends == sorted(ends) and ends[-1] == rows[-2].end_ns


def test_no_step_no_picture() -> None:
    assert picture("none", [], {}, PRESETS["spyre"]) is None
    assert picture("none", [_row(0, 0, 9)], {}, PRESETS["spyre"], window=(20, 30)) is None


@pytest.mark.parametrize(
    ("module", "layer"),
    [
        ("model.layers.3.self_attn.q_proj", "model.layers.3"),
        ("model.layers.12", "model.layers.12"),
        ("encoder.block.0.layer.1.wi", "encoder.block.0"),
        ("model.embed_tokens", "model.embed_tokens"),
        ("conv2d", "conv2d"),
        ("", ""),
    ],
)
def test_layer_of_a_module(module: str, layer: str) -> None:
    assert layer_of(module) == layer


# --- number formats


def test_format_errors_per_layer() -> None:
    torch.manual_seed(0)
    model = Small().half().eval().to("spyre")
    x = torch.randn(64, 128, dtype=torch.float16).to("spyre")
    with torch.no_grad():
        eager = format_errors(model, x)
        torch._dynamo.reset()
        compiled = format_errors(torch.compile(model, dynamic=False), x)
    for rows in (eager, compiled):
        layers = {layer.name: layer for layer in format_layers(rows)}
        assert {"layers.0", "layers.1", "head"} <= set(layers), rows
        for row in rows:
            assert row.dtype == "float16" and not row.overflow
            # DLFloat16 has one bit of mantissa less than IEEE float16.
            assert row.dl16 <= 2.0**-10 and row.ieee <= 2.0**-11
            assert row.card <= 2 * row.dl16 + 1e-6 or "mm" not in row.operation
        assert layers["head"].dl16 >= layers["head"].ieee > 0
    products = [row for row in compiled if "mm" in row.operation]
    assert len(products) == 5
    weight = model.get_parameter("layers.0.up.weight").detach().cpu().float()
    exact = x.cpu().float() @ weight.T
    wanted = ((exact.half().float() - exact).abs().max() / exact.abs().max()).item()
    assert products[0].ieee == pytest.approx(wanted, rel=1e-3)


# --- the command


def test_the_command(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\n"
        "f = torch.compile(lambda x: torch.softmax(x * 2, -1))\n"
        "for _ in range(4): f(torch.ones(64, 64, device='spyre'))\n"
        "print('said', *sys.argv[1:])\n"
    )
    page = tmp_path / "page.html"
    arguments = ["report", str(script), "one", "--out", str(page), "--formats"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert done.output.count("said one") == 2 and "modelled" in done.output
    assert "calls" in done.output and str(page) in done.output
    text = page.read_text()
    assert text.startswith("<!doctype html>") and len(text) < 8e6
    done = CliRunner().invoke(main, [*arguments[:-1], "--json"])
    assert done.exit_code == 0
    data = json.loads(done.stdout)
    assert data["modelled"] is True and data["launches"]["regions"] == 4
    assert _embedded(page)["kernels"] == data["kernels"], "the page's figures equal the JSON"
    assert stat.S_IMODE(page.stat().st_mode) & 0o600 == 0o600


def _embedded(page: Path) -> dict[str, Any]:
    text = page.read_text()
    begin = text.index('<script id="report-data" type="application/json">')
    found: dict[str, Any] = json.loads(
        text[text.index(">", begin) + 1 : text.index("</script>", begin)]
    )
    return found


def test_a_script_that_fails_still_gets_its_page(tmp_path: Path) -> None:
    script, page = tmp_path / "script.py", tmp_path / "page.html"
    script.write_text("import torch\ntorch.ones(4, device='spyre') + 1\nraise KeyError('lost')\n")
    done = CliRunner().invoke(main, ["report", str(script), "--out", str(page)])
    assert done.exit_code == 2 and "KeyError" in done.output
    assert "The script ended early: KeyError" in page.read_text()
    assert torch.ones(2, device="spyre").sum().item() == 2, "the device is usable"


def test_paths_that_cannot_be_written(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit('was run')\n")
    for out, words in ((tmp_path / "none" / "x.html", "no directory"), (tmp_path, "directory")):
        done = CliRunner().invoke(main, ["report", str(script), "--out", str(out)])
        assert done.exit_code == 2 and words in done.output and "was run" not in done.output
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        with pytest.raises(ReportError, match="permission"):
            check_target(tmp_path / "page.html")
        tmp_path.chmod(0o700)


def test_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "page.html"
    target.write_text("the page before")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ReportError, match="No space left"):
        write_report(target, Run())
    assert target.read_text() == "the page before" and os.listdir(tmp_path) == ["page.html"]


def test_texts_from_outside_stay_texts(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_report(page, Run("</script><script>alert(1)</script><!--"), notes=["<b>bold</b>"])
    text = page.read_text()
    assert "<script>alert" not in text and "<b>bold" not in text
    assert _embedded(page)["title"].startswith("</script>")


def test_advice_names_eager_work() -> None:
    x = torch.randn(256, 256, dtype=torch.float16).to("spyre")
    with watch() as run:
        for _ in range(6):
            x = torch.relu(x) + 1
    data = gather(run)
    assert [k.mode for k in data.kernels] == ["eager", "eager"]
    assert [k.launches for k in data.kernels] == [6, 6]
    assert any(one.title == "Compile it" for one in advice(data))
