"""Eager operations by the counted CPU fallback beside the same operations on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.measure import Row, interleave

MAX_RATIO = 10.0

# name, statement, size, target
CASES: list[tuple[str, str, int, float | None]] = [
    ("add 16x16", "{x} + {y}", 16, MAX_RATIO),
    ("relu 16x16", "{x}.relu()", 16, None),
    ("add_ 16x16", "{x}.add_({y})", 16, None),
    ("mm 64x64", "{x}.mm({y})", 64, None),
]


def run() -> Iterator[Row]:
    """One row an operation, float32."""
    for name, statement, size, target in CASES:
        a, b = torch.randn(size, size), torch.zeros(size, size)  # zeros: add_ must not overflow
        names = {"cpu_a": a, "cpu_b": b, "spyre_a": a.to("spyre"), "spyre_b": b.to("spyre")}
        timings = interleave(
            {side: statement.format(x=f"{side}_a", y=f"{side}_b") for side in ("spyre", "cpu")},
            names,
        )
        ours, reference = timings["spyre"], timings["cpu"]
        ratio = ours.median / reference.median
        yield Row(
            "fallback",
            f"{name} float32",
            ours.median * 1e6,
            "us",
            reference.median * 1e6,
            ratio,
            f"<= {target:g}x" if target else "",
            ratio <= target if target else None,
            detail={
                "ours_best_us": ours.best * 1e6,
                "reference_best_us": reference.best * 1e6,
                "ours_cpu_us": ours.cpu_median * 1e6,
                "reference_cpu_us": reference.cpu_median * 1e6,
            },
        )
