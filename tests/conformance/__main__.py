"""``python -m tests.conformance``: sweeps the databases, prints the figures, writes the report."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from . import gaps, operators_page, report
from .pool import Limits, Pool
from .runs import EVERY_RUN, Report, Run


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    names = options.run or list(EVERY_RUN)
    sound = True
    for name in names:
        sound &= _sweep(EVERY_RUN[name], options)
    return 0 if sound else 1


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument(
        "--run",
        "--dtype",
        action="append",
        choices=list(EVERY_RUN),
        metavar="RUN",
        help=f"one of {', '.join(EVERY_RUN)}; may be repeated; all without it",
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="only this entry")
    parser.add_argument("--device", default="spyre", help="cpu is a stand-in to test the harness")
    parser.add_argument(
        "--fallback",
        default="allow",
        choices=("allow", "warn", "error"),
        help="error counts what passes natively: a fallback is then a failure",
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=120.0, help="time limit of one entry")
    parser.add_argument(
        "--failures",
        type=Path,
        metavar="FILE",
        help="write every failure's text; {run} is replaced by the run's name",
    )
    parser.add_argument(
        "--reports",
        type=Path,
        metavar="FILE",
        help="write all reports as JSON; {run} is replaced by the run's name",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for every entry")
    parser.add_argument(
        "--no-write", action="store_true", help="leave the figures and the pages of docs alone"
    )
    return parser.parse_args(arguments)


def _sweep(run: Run, options: argparse.Namespace) -> bool:
    started = time.monotonic()
    every: list[str] = []

    def select(names: list[str]) -> list[str]:
        every.extend(names)
        if options.only:
            missing = set(options.only) - set(names)
            if missing:
                print(f"{run.name}: not in the database: {', '.join(sorted(missing))}")
            return [n for n in names if n in options.only]
        return names

    def progress(entry: Report) -> None:
        if options.verbose:
            print(f"{entry.status:12} {entry.seconds:6.1f} s  {entry.name}", flush=True)
            return
        if sys.stderr.isatty():
            print(f"\r{run.name}: {entry.name[:50]:50}", end="", file=sys.stderr, flush=True)

    pool = Pool(
        run.name, options.device, options.fallback, options.workers, Limits(seconds=options.seconds)
    )
    reports = pool.sweep(select, progress)
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    if run.native:
        return _native(run, reports, options, time.monotonic() - started)
    known = gaps.of_run(gaps.load(), run.name) if options.fallback == "allow" else {}
    verdict = gaps.judge(run, reports, known, every)
    seconds = time.monotonic() - started
    checks = sum(r.checks for r in reports)
    print(
        f"{run.name}: {len(reports)} entries, {checks} checks in {seconds:.0f} s:"
        f" {verdict.native} pass natively, {verdict.fallback} pass by fallback,"
        f" {verdict.fails} fail"
        + (f", {verdict.no_reference} the CPU cannot run" if verdict.no_reference else "")
    )
    _keep(run, reports, options)
    if options.fallback != "allow":
        return True
    if not verdict.ok:
        print(verdict.explain())
    enough = run.minimum is None or options.only or verdict.passes >= run.minimum
    if not enough:
        print(f"{run.name}: {verdict.passes} pass, at least {run.minimum} must")
    if not options.no_write and not options.only and options.device == "spyre":
        report.write(verdict, len(reports), checks)
    return verdict.ok and bool(enough)


def _keep(run: Run, reports: list[Report], options: argparse.Namespace) -> None:
    if options.failures:
        path = Path(str(options.failures).replace("{run}", run.name))
        path.write_text(report.failure_texts(reports))
    if options.reports:
        path = Path(str(options.reports).replace("{run}", run.name))
        path.write_text(json.dumps([asdict(r) for r in reports], indent=1))


def _native(run: Run, reports: list[Report], options: argparse.Namespace, seconds: float) -> bool:
    """The figures of a native run; whether enough is native."""
    _keep(run, reports, options)
    sound = True
    for part, minimum in (("forward", run.minimum), ("backward", run.backward)):
        found = Counter(r.parts[part].status if part in r.parts else "fail" for r in reports)
        if found["none"] == len(reports):
            continue
        print(
            f"{run.name}, {part}: {len(reports) - found['none']} entries in {seconds:.0f} s:"
            f" {found['native']} native, {found['fallback']} by fallback, {found['fail']} fail"
        )
        if minimum is not None and not options.only and found["native"] < minimum:
            print(f"{run.name}, {part}: {found['native']} are native, at least {minimum} must")
            sound = False
    if not options.no_write and not options.only and options.device == "spyre":
        operators_page.write(run, reports)
    return sound


if __name__ == "__main__":
    sys.exit(main())
