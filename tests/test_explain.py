"""What torch.spyre.explain says of compiled code, and the commands around it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from openspyre.cli import main
from openspyre.compiler import cache
from openspyre.compiler.inductor import regions
from openspyre.observe.explain import KernelFacts, explain

NATIVE = True


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.relu(x @ w), -1)


def test_kernels_with_what_they_move_and_what_bounds_them() -> None:
    x, w = torch.ones(64, 128, device="spyre"), torch.ones(128, 256, device="spyre")
    found = explain(product, x, w)
    (region,) = found.regions
    kernels = [k for k in region.kernels if isinstance(k, KernelFacts)]
    assert region.launches == 1 and len(kernels) == len(region.kernels)
    assert sum(k.macs for k in kernels) == 64 * 128 * 256
    assert kernels[0].bytes_read >= (64 * 128 + 128 * 256) * 4
    assert kernels[-1].bytes_written == 64 * 256 * 4
    assert all(k.modelled_ns > 0 and k.lx_bytes <= 2 << 20 for k in kernels)
    assert not found.fallbacks
    text = found.text()
    assert "modelled" in text and "nothing was computed by the CPU" in text
    assert json.loads(found.to_json())["modelled"] is True
    page = found.html()
    assert "http" not in page and kernels[0].name in page


def test_source_lines_survive_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENSPYRE_CACHE_DIR", str(tmp_path))
    x, w = torch.ones(64, 128, device="spyre"), torch.ones(128, 256, device="spyre")

    def lines() -> list[list[str]]:
        torch._dynamo.reset()
        regions.forget_plans()
        (region,) = explain(product, x, w).regions
        return [k.sources for k in region.kernels if isinstance(k, KernelFacts)]

    cache.forget()
    before = cache.counts()["compiled"]
    first = lines()
    assert cache.counts()["compiled"] > before
    assert any(
        "torch.softmax(torch.relu(x @ w), -1)" in line for kernel in first for line in kernel
    )
    assert lines() == first  # from memory
    cache.forget()
    read = cache.counts()["disk"]
    assert lines() == first
    assert cache.counts()["disk"] > read


def test_fallbacks_are_listed() -> None:
    found = explain(lambda x: torch.linalg.matrix_exp(x) + 1, torch.eye(4, device="spyre"))
    (row,) = found.fallbacks
    assert "matrix_exp" in row.operation and row.calls == 1
    assert row.notes and row.notes[0] in found.text(), "the reason is told"
    assert "matrix_exp" in found.html() and "because" in found.html()


def test_the_commands(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "f = torch.compile(lambda x: x * 2 + 1)\n"
        "f(torch.ones(4, 64, device='spyre'))\n"
    )
    page = tmp_path / "page.html"
    done = CliRunner().invoke(main, ["explain", str(script), "--html", str(page)])
    assert done.exit_code == 0 and "LPDDR5 read" in done.output
    assert page.read_text().startswith("<!doctype html>")
    listed = CliRunner().invoke(main, ["cache", "ls", "--json"])
    assert listed.exit_code == 0 and isinstance(json.loads(listed.output), list)
    assert CliRunner().invoke(main, ["cache", "verify"]).exit_code == 0
