"""The sweeps as tests: every database entry passes or is a known gap, and enough of them pass.

`make test` takes a fixed part of every run, under four minutes on two cores; `make test-all` also
takes the whole runs (marked slow), which alone can check the required numbers.
"""

from __future__ import annotations

import os

import pytest

from . import gaps
from .pool import Pool
from .runs import RUNS, Report, Run

# Every so manyth entry of a run's database, beside all that gaps.toml lists.
STRIDES = {
    "float32": 4,
    "float16-ieee": 16,
    "float16-dl16": 16,
    "int64": 8,
    "modules": 4,
    "optimizers": 2,
}


def sweep(
    run: Run, fallback: str = "allow", only: list[str] | None = None, stride: int = 1
) -> tuple[list[Report], list[str]]:
    """The reports, and the names of all entries of the database."""
    pool = Pool(run.name, "spyre", fallback, min(2, os.cpu_count() or 1))
    every: list[str] = []

    def select(names: list[str]) -> list[str]:
        every.extend(names)
        if only is not None:
            return only
        listed = gaps.of_run(gaps.load(), run.name)
        return [n for i, n in enumerate(names) if i % stride == 0 or n in listed]

    return pool.sweep(select), every


def examine(run: Run, stride: int) -> gaps.Verdict:
    """Sweeps and checks that failures and gaps are the same entries. PT33: "native" is a count of
    zero fallbacks, so refusing fallbacks must change nothing for those entries."""
    reports, every = sweep(run, stride=stride)
    assert reports
    verdict = gaps.judge(run, reports, gaps.of_run(gaps.load(), run.name), every)
    assert verdict.ok, verdict.explain()
    native = [r.name for r in reports if r.status == "native"]
    if native:
        refused, _ = sweep(run, "error", native)
        assert [r.name for r in refused if r.status != "native"] == []
    return verdict


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", RUNS)
def test_pt35_a_part_of_every_run_passes_or_is_a_known_gap(name: str) -> None:
    verdict = examine(RUNS[name], STRIDES[name])
    assert verdict.passes > verdict.fails


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", RUNS)
def test_pt35_every_entry_passes_or_is_a_known_gap(name: str) -> None:
    run = RUNS[name]
    verdict = examine(run, 1)
    if run.minimum is not None:
        assert verdict.passes >= run.minimum
