"""`torch.empty` on the card beside the CPU's: the cost of making and dropping a tensor."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.measure import Row, interleave

MAX_RATIO = 2.0
MAX_SECONDS = 1.5e-6

# Arguments of both, as a program writes them; the device is added. The last: with defaults on the
# CPU's side, the cheapest call that torch has.
CASES = [
    ("1", 'dtype=torch.float32, device="{}"'),
    ("16, 16", 'dtype=torch.float32, device="{}"'),
    ("8, 3, 20, 20", 'dtype=torch.float16, device="{}"'),
    ("128, 512", 'dtype=torch.int64, device="{}"'),
    ("1024, 1024", 'dtype=torch.float16, device="{}"'),
    ("4096, 4096", 'dtype=torch.float16, device="{}"'),
    ("16, 16", ""),
]


def run() -> Iterator[Row]:
    """One row a shape; a call makes a tensor and drops it."""
    for size, options in CASES:
        calls = {
            device: f"torch.empty({size}, {options.format(device)})" for device in ("spyre", "cpu")
        }
        name = f"torch.empty({size}, {options.partition(',')[0]})"
        if not options:
            calls = {
                "spyre": f'torch.empty({size}, device="spyre")',
                "cpu": f"torch.empty({size})",
            }
            name = f"torch.empty({size}) of the CPU"
        timings = interleave(calls, {"torch": torch})
        ours, reference = timings["spyre"], timings["cpu"]
        ratio = ours.median / reference.median
        yield Row(
            "empty",
            name,
            ours.median * 1e6,
            "us",
            reference.median * 1e6,
            ratio,
            f"<= {MAX_RATIO}x, < {MAX_SECONDS * 1e6:g} us",
            ratio <= MAX_RATIO and ours.median < MAX_SECONDS,
            detail={
                "ours_best_us": ours.best * 1e6,
                "reference_best_us": reference.best * 1e6,
                "ours_cpu_us": ours.cpu_median * 1e6,
                "reference_cpu_us": reference.cpu_median * 1e6,
            },
        )
