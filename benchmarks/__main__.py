"""Runs the benchmarks: `python -m benchmarks [--only NAME ...] [--json [FILE]]`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, table

# Modules of this package; each has run() -> rows. Import cost comes first, while this process has
# loaded nothing.
SUBJECTS = {
    "import": "import_cost",
    "allocator": "allocator",
    "empty": "empty",
    "fallback": "fallback",
    "streams": "streams",
    "copies": "copies",
    "programs": "programs",
    "compiler": "compiler",
    "profiler": "profiler",
}


def _machine() -> dict[str, Any]:
    """What the figures depend on, besides the code."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load": list(os.getloadavg()),
        "python": platform.python_version(),
        "processor": _processor(),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def main() -> int:
    """Prints the table, or JSON; 0 even when a target is missed, since a shared machine decides."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SUBJECTS, metavar="NAME", default=None)
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="JSON to FILE (default: stdout)"
    )
    args = parser.parse_args()
    to_stdout = args.json == "-"
    machine = _machine()
    if not to_stdout:
        load = ", ".join(f"{value:.1f}" for value in machine["load"])
        print(f"{machine['processor']}, {machine['cores']} cores, load {load}")
    started = time.perf_counter()
    rows: list[Row] = []
    for name, module in SUBJECTS.items():
        if args.only and name not in args.only:
            continue
        found = list(importlib.import_module(f"benchmarks.{module}").run())
        rows += found
        if not to_stdout:
            print(f"\n{name}\n{table(found)}", flush=True)
    result = {
        "machine": {**machine, "load_after": list(os.getloadavg())},
        "seconds": time.perf_counter() - started,
        "rows": [row.as_dict() for row in rows],
    }
    if args.json:
        text = json.dumps(result, indent=2)
        if to_stdout:
            print(text)
        else:
            Path(args.json).write_text(text + "\n")
    if not to_stdout:
        judged = [row for row in rows if row.ok is not None]
        missed = [row.name for row in judged if not row.ok]
        print(
            f"\n{len(judged) - len(missed)} of {len(judged)} targets met in "
            f"{result['seconds']:.0f} s" + (f"; missed: {'; '.join(missed)}" if missed else "")
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
