"""What the device adds to `import torch`, in child processes with and without its autoload.

An import is one thread's work, so it is judged by processor time; wall times stand in the note.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.measure import Row

MAX_SECONDS = 0.3
PAIRS = 5

CHILD = """
import time
wall, cpu = time.perf_counter(), time.process_time()
import torch
print(time.perf_counter() - wall, time.process_time() - cpu, hasattr(torch, "spyre"))
"""


def _child(autoload: bool) -> tuple[float, float]:
    """Wall and processor seconds of one import."""
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "1" if autoload else "0"}
    text = subprocess.run(
        [sys.executable, "-c", CHILD],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout.split()
    if (text[2] == "True") != autoload:
        raise RuntimeError(
            f"import torch with autoload={autoload} left torch.spyre={text[2]}: is openspyre "
            "installed, with its torch.backends entry point? Run `make setup`"
        )
    return float(text[0]), float(text[1])


def run() -> Iterator[Row]:
    """One row: seconds with, without, and the difference against its target."""
    _child(True)  # fills the file cache
    pairs = [(_child(True), _child(False)) for _ in range(PAIRS)]
    ours = statistics.median(with_[1] for with_, _ in pairs)
    reference = statistics.median(without[1] for _, without in pairs)
    wall = statistics.median(with_[0] - without[0] for with_, without in pairs)
    added = ours - reference
    yield Row(
        "import",
        "import torch, with and without autoload",
        ours,
        "s",
        reference,
        ours / reference,
        f"< {MAX_SECONDS} s added",
        added < MAX_SECONDS,
        f"added {added:.3f} s, by the wall {wall:.3f} s",
        {"added_s": added, "added_wall_s": wall},
    )
