"""The sweeps as tests: every database entry passes or is a known gap, and enough of them pass.

`make test` takes a fixed part of the runs, some three minutes on two cores; `make test-all` also
takes the whole runs (marked slow), which alone can check the required numbers.
"""

from __future__ import annotations

import os

import pytest

from . import gaps, operators_page
from .pool import Pool
from .runs import NATIVE_RUNS, RUNS, Report, Run

# Every so manyth entry of a run's database, beside all that gaps.toml lists.
STRIDES = {
    "float32": 10,
    "float16-ieee": 32,
    "float16-dl16": 32,
    "int64": 16,
    "modules": 8,
    "optimizers": 3,
}
NATIVE_STRIDES = {"native-float32": 64, "native-modules": 24}
"""Of native runs; 96 for those not named."""


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


# --- what computes on the card (docs/operators.md)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "native-float32" else pytest.mark.slow)
        for name in NATIVE_RUNS
    ],
)
def test_a_part_of_every_native_run_computes_what_the_figures_say(name: str) -> None:
    entries = operators_page.load()[name]["entries"]
    pool = Pool(name, "spyre", "allow", min(2, os.cpu_count() or 1))
    reports = pool.sweep(lambda names: names[:: NATIVE_STRIDES.get(name, 96)])
    assert reports
    lost = [
        (report.name, part, found.status, found.reason)
        for report in reports
        for part, found in report.parts.items()
        if entries[report.name][part][0] == "native" and found.status != "native"
    ]
    assert lost == []


def test_an_operator_that_the_cpu_computes_is_reported_with_the_reason() -> None:
    pool = Pool("native-float32", "spyre", "allow", 1)
    (report,) = pool.sweep(lambda names: ["linalg.eigh"])
    forward = report.parts["forward"]
    assert report.status == forward.status == "fallback"
    assert "_linalg_eigh" in forward.reason and "no lowering" in forward.reason


@pytest.mark.parametrize("name", NATIVE_RUNS)
def test_the_figures_hold_what_is_required_of_native_runs(name: str) -> None:
    run, figures = NATIVE_RUNS[name], operators_page.load()
    for part, minimum in (("forward", run.minimum), ("backward", run.backward)):
        assert operators_page.counts(run, part, figures)["native"] >= (minimum or 0)
    assert operators_page.PAGE.read_text() == operators_page.page(figures)
