"""The card's allocator without torch: builds `bench_allocator.cpp` and reads its figures."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.measure import Row

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build" / "bench" / "bench_allocator"
TRACE = Path(__file__).resolve().parent / "data" / "transformer_trace.csv"
MAX_NS = 250.0
MAX_PEAK_RATIO = 1.10


def build() -> Path:
    """Compiles the program against csrc/, one object a file, only what is out of date.

    Raises RuntimeError with the compiler's words when it fails.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    sources = [*sorted(ROOT.glob("csrc/card/*.cpp")), *sorted(ROOT.glob("csrc/machine/*.cpp"))]
    sources.append(Path(__file__).resolve().parent / "bench_allocator.cpp")
    newest_header = max(p.stat().st_mtime for p in ROOT.glob("csrc/*/*.h"))
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    # As in CMakeLists.txt's Release build.
    flags = ["-std=c++20", "-O2", "-DNDEBUG", "-ffp-contract=off", "-Wall", "-Wextra"]
    objects, commands = [], []
    for source in sources:
        made = PROGRAM.parent / f"{source.parent.name}_{source.stem}.o"
        objects.append(str(made))
        if not made.exists() or made.stat().st_mtime < max(source.stat().st_mtime, newest_header):
            include = f"-I{ROOT / 'csrc'}"
            commands.append([compiler, *flags, include, "-c", str(source), "-o", str(made)])
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as workers:
        list(workers.map(_compile, commands))
    if commands or not PROGRAM.exists():
        _compile([compiler, *objects, "-o", str(PROGRAM), "-pthread", "-ldl"])
    return PROGRAM


def _compile(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")


def run() -> Iterator[Row]:
    """Nanoseconds of a pair (target: the fast index), and peaks of the recorded trace."""
    output = subprocess.run(
        [str(build()), str(TRACE)], capture_output=True, text=True, check=True
    ).stdout
    for line in output.splitlines():
        kind, name, ours, reference = line.split("\t")
        fast, slow = float(ours), float(reference)
        if kind == "pair":
            yield Row(
                "allocator",
                name,
                fast,
                "ns",
                slow,
                fast / slow,
                f"< {MAX_NS:g} ns",
                fast < MAX_NS,
                "reference: the exact best fit",
            )
        elif kind == "replay":
            yield Row("allocator", name, fast, "ns", slow, fast / slow)
        else:
            yield Row(
                "allocator",
                name,
                fast,
                "ratio",
                slow,
                fast / slow,
                f"<= {MAX_PEAK_RATIO:.2f}",
                fast <= MAX_PEAK_RATIO,
                "reserved / live at their peaks",
            )
