"""Pads never reach a result: the trap rows once more with poisoned pads, and L33 itself.

OPENSPYRE_POISON=1 fills fresh blocks and the pads of sticks with NaN or an extreme of the format.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import RunPython

HERE = Path(__file__).parent
POISON = {"OPENSPYRE_POISON": "1"}


@pytest.mark.parametrize("file", ["test_traps_views.py", "test_traps_numbers.py"])
def test_trap_rows_with_poisoned_pads(file: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / file)],
        env={**os.environ, **POISON},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_l33_poisoned_pads_do_not_reach_softmax_sum_or_matmul(
    run_python: RunPython, dtype: str
) -> None:
    run_python(
        f"""
import torch
dtype = torch.{dtype}
x = (torch.arange(5 * 100 * 150) % 7 - 3).to(dtype).view(5, 100, 150)
w = (torch.arange(150 * 70) % 5 - 2).to(dtype).view(150, 70)
d, e = x.to("spyre"), w.to("spyre")
layout = torch.spyre.layout_of(d)
assert layout.numel * d.element_size() < layout.nbytes  # K = 150 leaves pads in its last stick

# The pads hold what no element holds: the decoded block shows NaN or infinity.
raw = torch.ops.openspyre._raw_read(d)[: layout.nbytes]
if dtype == torch.float32:
    assert raw.view(torch.float32).isnan().sum() == layout.nbytes // 4 - layout.numel
else:
    codes = raw.view(torch.int16)
    assert ((codes & 0x7FFF) == 0x7FFF).sum() == layout.nbytes // 2 - layout.numel

for dim in (0, 1, 2):
    reference = torch.softmax(x.double(), dim)
    torch.testing.assert_close(torch.softmax(d, dim).cpu().double(), reference,
                               rtol=2e-3, atol=1e-5)
    assert torch.equal(d.sum(dim).cpu().double(), x.double().sum(dim))
assert d.sum().item() == x.double().sum().item()
assert torch.equal((d @ e).cpu().double(), x.double() @ w.double())
""",
        POISON,
    )


def test_l28_stickify_and_back_on_the_card_keeps_the_bits(run_python: RunPython) -> None:
    """Random ranks 1 to 6, random orders, every dtype, numerics that keep the bits."""
    run_python(
        """
import random, torch
rng = random.Random(28)
spyre = torch.spyre
for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8,
              torch.int16, torch.int32, torch.int64, torch.bool, torch.float8_e4m3fn,
              torch.float8_e5m2, torch.complex64):
    size = torch.empty((), dtype=dtype).element_size()
    for rank in range(1, 7):
        for _ in range(3):
            shape = tuple(rng.choice((1, 2, 3, 5) if d < rank - 1 else (1, 63, 64, 65, 130))
                          for d in range(rank))
            raw = torch.randint(0, 256, (*shape[:-1], shape[-1] * size), dtype=torch.uint8)
            x = (raw % 2).bool() if dtype == torch.bool else raw.view(dtype)
            d = x.to("spyre")
            layout = spyre.layout_of(d)
            order = list(range(rank))
            rng.shuffle(order)
            other = spyre.to_layout(d, type(layout).with_order(shape, tuple(order), layout.format))
            back = spyre.to_layout(other, layout).cpu()
            for got in (other.cpu(), back):
                assert torch.equal(got.view(torch.uint8), x.view(torch.uint8)), (dtype, shape)
""",
        {**POISON, "OPENSPYRE_NUMERICS": "ieee"},
    )


def test_l29_a_tensor_of_rank_seven_keeps_its_values(run_python: RunPython) -> None:
    run_python(
        """
import torch
x = torch.randn(2, 1, 3, 2, 1, 2, 65)
d = x.to("spyre")
assert torch.equal(d.cpu(), x)
assert torch.equal(d.transpose(0, 6).contiguous().cpu(), x.transpose(0, 6))
assert torch.equal((d + d).sum(-1).cpu(), (x + x).sum(-1))
""",
        POISON,
    )
