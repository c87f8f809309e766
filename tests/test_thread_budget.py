"""The thread budget of engines and conversions: torch's number, or OPENSPYRE_THREADS."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from openspyre import _C

LARGE = (512, 512)  # 1 MB of float32: more than what one thread takes on unasked


@pytest.fixture
def torch_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    torch.zeros(LARGE).to("spyre")


@pytest.mark.skipif("OPENSPYRE_THREADS" in os.environ, reason="the budget is fixed")
def test_the_budget_follows_set_num_threads(torch_threads: None) -> None:
    source = torch.randn(LARGE)
    for threads in (1, 3, 2, 1):
        torch.set_num_threads(threads)
        card = source.to("spyre")
        assert _C.threads() == threads
        assert torch.equal(card.cpu(), source)


def test_openspyre_threads_fixes_the_budget() -> None:
    program = (
        "import torch\n"
        "torch.set_num_threads(1)\n"
        f"card = torch.randn({LARGE}).to('spyre')\n"
        "from openspyre import _C\n"
        "print(_C.threads())\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "OPENSPYRE_THREADS": "3"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    assert output.split() == ["3"]
