"""``python -m tests.conformance``: sweeps the databases, prints the figures, writes the report."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from . import gaps, report
from .pool import Limits, Pool
from .runs import RUNS, Report, Run


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    names = options.run or list(RUNS)
    sound = True
    for name in names:
        sound &= _sweep(RUNS[name], options)
    return 0 if sound else 1


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument(
        "--run",
        "--dtype",
        action="append",
        choices=list(RUNS),
        metavar="RUN",
        help=f"one of {', '.join(RUNS)}; may be repeated; all without it",
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
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for every entry")
    parser.add_argument(
        "--no-write", action="store_true", help="leave figures.json and docs/conformance.md alone"
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
    if options.failures:
        path = Path(str(options.failures).replace("{run}", run.name))
        path.write_text(report.failure_texts(reports))
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


if __name__ == "__main__":
    sys.exit(main())
