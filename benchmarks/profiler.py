"""What a profile costs: a step of a small transformer layer with torch.profiler on, beside the same
step with the profiler on for the CPU only and off; and a submission that is recorded.

The card's own part is the ratio of the two profiles; PyTorch's own recording of CPU operations is
there without a card.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.measure import Row
from openspyre import _C

LIMIT = 1.05
STEPS = 5
ROUNDS = 15


def _layer() -> Callable[[], torch.Tensor]:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    layer = layer.half().to("spyre").eval()
    x = torch.randn(1, 16, 512, dtype=torch.float16).to("spyre")

    @torch.no_grad()
    def step() -> torch.Tensor:
        out: torch.Tensor = layer(x)
        return out.cpu()

    return step


def _seconds(step: Callable[[], torch.Tensor], activities: list[ProfilerActivity]) -> float:
    """Seconds a step; start and end of the profile are not counted."""

    def run() -> float:
        start = time.perf_counter()
        for _ in range(STEPS):
            step()
        return (time.perf_counter() - start) / STEPS

    if not activities:
        return run()
    with profile(activities=activities):
        return run()


def run() -> Iterator[Row]:
    """Ratios of the medians of steps measured in turn."""
    step = _layer()
    for _ in range(3):
        step()
    cpu, card = ProfilerActivity.CPU, ProfilerActivity.PrivateUse1
    ways: dict[str, list[ProfilerActivity]] = {"off": [], "cpu": [cpu], "card": [card],
                                               "both": [cpu, card]}  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, activities in ways.items():
            times[name].append(_seconds(step, activities))
    median = {name: statistics.median(values) * 1e3 for name, values in times.items()}
    for name, ours, reference, note in (
        ("step with the card profiled", "card", "off", "against no profile"),
        ("step with card and CPU profiled", "both", "cpu", "against a profile of the CPU alone"),
        ("step with card and CPU profiled, in all", "both", "off", "PyTorch's own part included"),
    ):
        ratio = median[ours] / median[reference]
        has_target = name != "step with card and CPU profiled, in all"
        yield Row(
            "profiler",
            name,
            median[ours],
            "ms",
            median[reference],
            ratio,
            f"<= {LIMIT}" if has_target else "",
            ratio <= LIMIT if has_target else None,
            note,
        )
    yield from _submissions()


def _submissions() -> Iterator[Row]:
    """Nanoseconds that a synthetic step takes with a listener, beside one without."""
    count = 20_000
    times: dict[str, list[float]] = {"off": [], "on": []}
    for _ in range(9):
        for name in times:
            begin = _C.recorder_start() if name == "on" else None
            start = time.perf_counter_ns()
            for _ in range(count):
                _C.submit(0, 0, "compute", "step", 100)
            times[name].append((time.perf_counter_ns() - start) / count)
            if begin is not None:
                _C.recorder_stop(begin)
    off, on = (statistics.median(times[name]) for name in ("off", "on"))
    yield Row("profiler", "a submission that is recorded", on, "ns", off, on / off,
              note="against one that is not")  # fmt: skip
