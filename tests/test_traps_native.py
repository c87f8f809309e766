"""Known traps of accelerators: eager operations compiled for the card, pads clean and poisoned.

Every row of trap_rows.py, and the rows that are no function of tensors. Nothing may fall back to
the CPU, but for what the card has no unit for (float64).
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import RunPython
from test_traps_numbers import (
    test_b028_wide_dtypes_are_exact_by_a_counted_fallback as check_b028,
)
from test_traps_runtime import (
    test_b152_gradients_of_a_product_equal_the_cpus as check_b152,
)
from trap_rows import ROWS, Row

from openspyre import _C
from openspyre.formats import Mode

NATIVE = True
half = torch.float16


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row(row: Row) -> None:
    given, views = row.start("spyre")
    with torch.spyre.fallback("allow" if row.eager_falls_back else "error"):
        results = row.run(*views)
    row.compare(results, given)


@pytest.mark.parametrize("numerics", ["dl16", "ieee"])
def test_rows_with_poisoned_pads(numerics: str) -> None:
    if "OPENSPYRE_POISON" in os.environ:
        pytest.skip("this is the process with poisoned pads")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__))],
        env={**os.environ, "OPENSPYRE_POISON": "1", "OPENSPYRE_NUMERICS": numerics},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_b022_resize_reinterprets_flat_elements() -> None:
    with torch.spyre.fallback("error"):
        x = torch.arange(12, device="spyre").view(3, 4).clone()
        x.resize_(2, 3)
        assert (x + 0).cpu().tolist() == [[0, 1, 2], [3, 4, 5]]
        x.resize_(4, 4)
        assert (x * 2).cpu().flatten().tolist()[:12] == list(range(0, 24, 2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_b028_wide_dtypes_are_exact_by_a_counted_fallback(dtype: torch.dtype) -> None:
    check_b028(dtype)


def test_b037_b038_the_ends_of_float16_and_floor() -> None:
    ieee = Mode(_C.numerics()[0]) is Mode.IEEE
    ends = torch.tensor([-65504.0, 65504.0, math.inf, -math.inf]).half().repeat(16, 16).to("spyre")
    low = torch.tensor([-2.001953125]).half().to("spyre")
    with torch.spyre.fallback("error"):
        results = [ends.clone(), ends * 1, ends.neg().neg(), torch.full_like(ends, -65504.0).abs()]
        floor = low.floor()
    largest = 65504.0 if ieee else 65472.0
    wanted = torch.tensor([-largest, largest, math.inf, -math.inf]).repeat(16, 16)
    for result in results[:3]:
        assert torch.equal(result.cpu().float(), wanted)
    assert (results[3].cpu().float() == largest).all()
    assert floor.item() == (-3 if ieee else -2)


def test_b049_ieee_products_are_rounded_correctly(run_python: RunPython) -> None:
    run_python(
        """
import torch
a = (1 + torch.arange(0, 1024, 5).double() / 1024)
exact = a[:, None] * a[None, :]
there = a.half().to("spyre")
with torch.spyre.fallback("error"):
    got = there[:, None] * there[None, :]
assert torch.equal(got.cpu(), exact.half())
""",
        {"OPENSPYRE_NUMERICS": "ieee", "OPENSPYRE_EAGER": "native"},
    )


@pytest.mark.parametrize("dtype", [torch.float32, half])
def test_b143_b145_normal_numbers_are_drawn_on_the_card(dtype: torch.dtype) -> None:
    def draw() -> torch.Tensor:
        torch.manual_seed(0)
        return torch.randn(1_000_000, device="spyre", dtype=dtype)

    with torch.spyre.fallback("error"):
        first, again = draw(), draw()
        assert torch.equal(first.cpu(), again.cpu())
    assert abs(first.cpu().float().mean()) < 0.01 and abs(first.cpu().float().std() - 1) < 0.02


def test_b146_devices_are_not_mixed() -> None:
    x, y = torch.ones(3, 65, device="spyre"), torch.ones(3, 65)
    for call in (lambda: x + y, lambda: torch.where(x > 0, x, y), lambda: x @ y.t()):
        with pytest.raises(RuntimeError, match="device"):
            call()
    with pytest.raises(RuntimeError, match="generator"):
        torch.randn(3, device="spyre", generator=torch.Generator())


def test_b151_backward_of_a_square() -> None:
    a = torch.ones(50, device="spyre", requires_grad=True)
    with torch.spyre.fallback("error"):
        a.pow(2).sum().backward()
    assert a.grad is not None and (a.grad.cpu() == 2).all()


def test_b152_gradients_of_a_product_equal_the_cpus() -> None:
    with torch.spyre.fallback("error"):
        check_b152()


def test_b133_twenty_shapes_of_a_product_compile_in_milliseconds() -> None:
    before = _C.native_counts()["misses"]
    w = torch.ones(64, 64, device="spyre")
    with torch.spyre.fallback("error"):
        for rows in range(1, 21):
            assert ((torch.ones(rows, 64, device="spyre") @ w).cpu() == 64).all()
            assert ((torch.ones(rows, 64, device="spyre") @ w).cpu() == 64).all()
    # a fill and a product for each shape, none a second time
    assert _C.native_counts()["misses"] - before <= 2 * 20 + 1
