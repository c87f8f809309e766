"""Exported regions: a compiled function as a directory that runs without it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import RunPython

NATIVE = True


def block(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    hidden = F.gelu(x @ w + bias)
    table = torch.tensor([0.5, 1.0, 2.0] * 11, dtype=x.dtype, device=x.device)
    return torch.softmax(hidden * table, -1)


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    sizes = ((5, 70), (70, 33), (33,))
    return [torch.randn(size, generator=generator).half().to("spyre") for size in sizes]


def test_p7_another_process_runs_the_programs_without_the_function(
    tmp_path: Path, run_python: RunPython
) -> None:
    args = inputs()
    path = torch.spyre.export_region(torch.compile(block), tmp_path / "block", *args)
    (result,) = torch.spyre.load_region(path)(*args)
    expected = torch.compile(block)(*args)
    assert torch.equal(result.cpu(), expected.cpu())
    wide = block(*(t.cpu().float() for t in args))
    torch.testing.assert_close(result.cpu().float(), wide, rtol=1e-2, atol=2e-3)
    torch.save([[t.cpu() for t in args], expected.cpu()], tmp_path / "values.pt")
    run_python(
        f"""
import sys, torch
args, expected = torch.load({str(tmp_path / "values.pt")!r})
region = torch.spyre.load_region({str(path)!r})
for _ in range(2):
    (result,) = region(*(t.to("spyre") for t in args))
    assert torch.equal(result.cpu(), expected)
assert "torch._dynamo" not in sys.modules
"""
    )


def test_an_exported_region_writes_what_the_function_writes(tmp_path: Path) -> None:
    def function(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        return x * 2

    x, total = torch.ones(70).to("spyre"), torch.zeros(70).to("spyre")
    path = torch.spyre.export_region(torch.compile(function), tmp_path / "sum", x, total)
    region = torch.spyre.load_region(path)
    for _ in range(2):
        (double,) = region(x, total)
    assert total.cpu().tolist() == [3.0] * 70 and double.cpu().tolist() == [2.0] * 70


def test_tensors_that_are_not_as_exported_are_refused_by_name(tmp_path: Path) -> None:
    x, w, bias = inputs()
    path = torch.spyre.export_region(torch.compile(block), tmp_path / "block", x, w, bias)
    region = torch.spyre.load_region(path)
    with pytest.raises(ValueError, match=r"3 tensors are taken, got 1"):
        region(x)
    with pytest.raises(ValueError, match=r"tensor \d is float32"):
        region(*(t.float() for t in (x, w, bias)))
    with pytest.raises(ValueError, match=r"tensor \d is on cpu"):
        region(*(t.cpu() for t in (x, w, bias)))


def test_what_is_no_single_launch_is_not_exported(tmp_path: Path) -> None:
    x = torch.ones(3, 70).to("spyre")
    with pytest.raises(ValueError, match="ran 0 compiled regions"):
        torch.spyre.export_region(lambda t: t + 1, tmp_path / "none", x)
    with pytest.raises(ValueError, match="more than one launch"):
        torch.spyre.export_region(torch.compile(lambda t: F.dropout(t)), tmp_path / "random", x)
    (tmp_path / "other").mkdir()
    with pytest.raises(ValueError, match="is no export"):
        torch.spyre.export_region(torch.compile(lambda t: t + 1), tmp_path / "other", x)
    assert not (tmp_path / "random").exists()
