"""The sweeps as tests: every database entry passes or is a known gap, and enough of them pass.

`make test` takes the runs that are quick on two cores; `make test-all` takes all of them.
"""

from __future__ import annotations

import os

import pytest

from . import gaps
from .pool import Pool
from .runs import RUNS, Report, Run

QUICK = ("float32",)


def sweep(run: Run, fallback: str = "allow", only: list[str] | None = None) -> list[Report]:
    pool = Pool(run.name, "spyre", fallback, min(2, os.cpu_count() or 1))
    return pool.sweep(lambda names: names if only is None else only)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in RUNS]
)
def test_pt35_every_entry_passes_or_is_a_known_gap(name: str) -> None:
    run = RUNS[name]
    reports = sweep(run)
    known = gaps.of_run(gaps.load(), run.name)
    verdict = gaps.judge(run, reports, known, [r.name for r in reports])
    assert verdict.ok, verdict.explain()
    if run.minimum is not None:
        assert verdict.passes >= run.minimum
    native = [r.name for r in reports if r.status == "native"]
    if native:  # PT33: "native" is a count of zero fallbacks; refusing them must change nothing
        refused = sweep(run, "error", native)
        assert [r.name for r in refused if r.status != "native"] == []
