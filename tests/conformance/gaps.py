"""The strict list of known gaps, and the verdict of a sweep over it.

``gaps.toml`` names every entry that does not pass and why (PT35): a failure that is not listed
fails the run, and so does a listed entry that passes. No torch here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .runs import RUNS, Report, Run

FILE = Path(__file__).with_name("gaps.toml")


@dataclass(frozen=True)
class Gap:
    names: tuple[str, ...]
    runs: tuple[str, ...]
    reason: str


def load(path: Path = FILE) -> list[Gap]:
    """Reads and checks the list. Raises ValueError naming the faulty entry."""
    with path.open("rb") as file:
        data = tomllib.load(file)
    gaps = []
    seen: dict[tuple[str, str], str] = {}
    for number, entry in enumerate(data.get("gap", ()), 1):
        where = f"{path.name}, gap {number}"
        if set(entry) != {"names", "runs", "reason"}:
            raise ValueError(f"{where}: needs exactly names, runs and reason, has {sorted(entry)}")
        gap = Gap(tuple(entry["names"]), tuple(entry["runs"]), " ".join(entry["reason"].split()))
        if not gap.reason:
            raise ValueError(f"{where}: the reason is empty")
        for run in gap.runs:
            if run not in RUNS:
                raise ValueError(f"{where}: no run is called {run!r}; there are {list(RUNS)}")
            for name in gap.names:
                if (run, name) in seen:
                    raise ValueError(f"{where}: {name} of {run} is listed already")
                seen[run, name] = gap.reason
        gaps.append(gap)
    return gaps


def of_run(gaps: Iterable[Gap], run: str) -> dict[str, str]:
    """name -> reason, for one run."""
    return {name: gap.reason for gap in gaps if run in gap.runs for name in gap.names}


@dataclass
class Verdict:
    """What a sweep says about the list. `ok` when nothing is new, stale or unknown."""

    run: Run
    native: int = 0
    fallback: int = 0
    fails: int = 0
    no_reference: int = 0
    new: list[Report] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def passes(self) -> int:
        return self.native + self.fallback

    @property
    def ok(self) -> bool:
        return not (self.new or self.stale or self.unknown)

    def explain(self) -> str:
        lines = []
        for report in self.new:
            text = report.failures[0] if report.failures else ""
            lines.append(f"new failure: {report.name} ({report.status}): {text}")
        lines += [f"passes now, delete it from gaps.toml: {name}" for name in self.stale]
        lines += [f"in gaps.toml, not in the database: {name}" for name in self.unknown]
        return "\n".join(lines)


def judge(
    run: Run, reports: Iterable[Report], known: dict[str, str], every_name: Iterable[str] | None
) -> Verdict:
    """Compares `reports` with the gaps `known` for the run.

    `every_name` are the names of the database; None skips the look for unknown names.
    An operator that the CPU cannot run either counts as a failure; a module or an optimizer
    does not ("all that CPU passes").
    """
    verdict = Verdict(run)
    for report in reports:
        failed = not report.passed
        if report.status == "no reference":
            verdict.no_reference += 1
            failed = run.database == "operators"
        verdict.native += report.status == "native"
        verdict.fallback += report.status == "fallback"
        verdict.fails += failed
        if failed and report.name not in known:
            verdict.new.append(report)
        if not failed and report.name in known:
            verdict.stale.append(report.name)
    if every_name is not None:
        verdict.unknown = sorted(set(known) - set(every_name))
    return verdict
