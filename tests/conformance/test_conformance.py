"""The sweeps as tests: every database entry passes or is a known gap, and enough of them pass.

`make test` takes the runs that are quick on two cores; `make test-all` takes all of them.
"""

from __future__ import annotations

import os

import pytest

from . import gaps
from .pool import Pool
from .runs import RUNS, Run

QUICK = ("float32",)


def sweep(run: Run) -> gaps.Verdict:
    names: list[str] = []

    def every(found: list[str]) -> list[str]:
        names.extend(found)
        return found

    pool = Pool(run.name, "spyre", "allow", min(2, os.cpu_count() or 1))
    reports = pool.sweep(every)
    return gaps.judge(run, reports, gaps.of_run(gaps.load(), run.name), names)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in RUNS]
)
def test_pt35_every_entry_passes_or_is_a_known_gap(name: str) -> None:
    run = RUNS[name]
    verdict = sweep(run)
    assert verdict.ok, verdict.explain()
    if run.minimum is not None:
        assert verdict.passes >= run.minimum
