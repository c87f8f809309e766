"""Programs on the card beside torch on the CPU, one thread each: products, rows, launches, timing.

Runs in a process of its own with one thread for the machine's pool and one for torch. Products and
rows are whole launches of the plans in examples/programs with float16 tensors (dl16 mode), waited
for; the reference is torch in float32, products by `torch.mm`, rows by `torch.compile`.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, interleave, one_processor, rows_of_worker

PRODUCTS = (
    # m, k, n, at least this speed of torch's
    (1, 4096, 4096, 1.0),
    (8, 4096, 4096, 1.0),
    (64, 2048, 8192, 0.9),
    (1024, 1024, 1024, 0.9),
    (512, 4096, 4096, 0.9),
)
ROWS, COLUMNS = 4096, 2048
MAX_ROWS_RATIO = 1.3
MAX_LAUNCH_US = 15.0
MAX_TIMING_MS = 50.0
QUEUED = 1000


def run() -> Iterator[Row]:
    """The rows of the worker process."""
    return rows_of_worker("benchmarks.programs", {})


def _rows() -> Iterator[Row]:
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        yield from _products(root)
        yield from _rowwise(root)
        yield from _launches(root)
    yield from _timing()


def _prepared(root: Path, name: str, program: Any) -> Any:
    import torch  # noqa: F401  (loads the device)

    from openspyre.device.plans import prepare
    from openspyre.runtime import Kernel, write_spyrecode

    return prepare(write_spyrecode(root / name, [Kernel(program)]))


def _launcher(plan: Any, tensors: list[Any]) -> Callable[[], None]:
    from openspyre.device.devices import synchronize as wait
    from openspyre.device.plans import launch

    def once() -> None:
        launch(plan, tensors)
        wait()

    return once


def _side_by_side(
    name: str, ours: Callable[[], object], reference: Callable[[], object], limit: float, text: str
) -> Row:
    """`limit`: the largest allowed ratio of our time to the reference's."""
    with one_processor():
        timings = interleave(
            {"ours": "ours()", "reference": "reference()"},
            {"ours": ours, "reference": reference},
            repeats=25,
            batch_seconds=1e-9,
        )
    a, b = timings["ours"], timings["reference"]
    ratio = a.median / b.median
    detail = {"ours_best_ms": a.best * 1e3, "reference_best_ms": b.best * 1e3}
    return Row(
        "programs", name, a.median * 1e3, "ms", b.median * 1e3, ratio, text, ratio <= limit,
        detail=detail,
    )  # fmt: skip


def _products(root: Path) -> Iterator[Row]:
    import torch

    from examples.programs import matmul

    for m, k, n, speed in PRODUCTS:
        a, b = torch.randn(m, k), torch.randn(k, n)
        out = torch.empty(m, n)
        if m <= 8:
            program = matmul.gemv(k, n, m=m)
        elif m <= 64:  # one share of rows: each core has columns of its own, and reads b once
            program = matmul.build(m, k, n, grid=(1, 32), tile=(64, 256, 512))
        else:  # all rows of a core's share in one tile: each of its b is decoded once
            rows, columns = m // 4, n // 8
            deep = 1024 if rows * columns <= 32768 else 512  # what LX has room for
            program = matmul.build(m, k, n, tile=(rows, columns, deep))
        plan = _prepared(root, f"mm_{m}_{k}_{n}", program)
        tensors = [t.half().to("spyre") for t in (a, b, out)]
        ours = _launcher(plan, tensors)
        ours()
        wanted = a.half().float() @ b.half().float()
        error = (tensors[2].cpu().float() - wanted).abs().max() / wanted.abs().max()
        if error > 5e-3:
            raise AssertionError(f"the product {m}x{k}x{n} is off by {error:.2g}")
        yield _side_by_side(
            f"X1 product {m}x{k}x{n}, dl16",
            ours,
            lambda a=a, b=b, out=out: torch.mm(a, b, out=out),  # type: ignore[misc]
            1 / speed,
            f"<= {1 / speed:.2f}x torch float32",
        )


def _rowwise(root: Path) -> Iterator[Row]:
    import torch
    from torch.nn import functional as nn

    from examples.programs import pointwise, rows

    x, weight = torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS)
    cases: list[tuple[str, Any, list[Any], Callable[..., Any]]] = [
        ("softmax", rows.softmax(ROWS, COLUMNS), [x], lambda x: nn.softmax(x, -1)),
        (
            "rms_norm",
            rows.rms_norm(ROWS, COLUMNS),
            [x, weight],
            lambda x, w: nn.rms_norm(x, (COLUMNS,), w, 1e-6),
        ),
        ("gelu", pointwise.gelu(ROWS, COLUMNS), [x], nn.gelu),
    ]
    for name, program, inputs, function in cases:
        plan = _prepared(root, name, program)
        tensors = [t.half().to("spyre") for t in (*inputs, torch.empty_like(x))]
        ours = _launcher(plan, tensors)
        compiled = torch.compile(function)
        ours()
        wanted = compiled(*(t.half().float() for t in inputs))
        error = (tensors[-1].cpu().float() - wanted).abs().max() / wanted.abs().max()
        if error > 5e-3:
            raise AssertionError(f"{name} is off by {error:.2g}")
        yield _side_by_side(
            f"X2 {name} {ROWS}x{COLUMNS}, dl16",
            ours,
            lambda c=compiled, i=inputs: c(*i),  # type: ignore[misc]
            MAX_ROWS_RATIO,
            f"<= {MAX_ROWS_RATIO}x torch.compile float32",
        )


def _launches(root: Path) -> Iterator[Row]:
    import torch

    from examples.programs import pointwise
    from openspyre.device.devices import synchronize as wait
    from openspyre.device.plans import launch

    plan = _prepared(root, "small", pointwise.neg(64, 64, cores=1))
    tensors = [torch.zeros(64, 64, dtype=torch.float16).to("spyre") for _ in range(2)]
    per_call: list[float] = []
    for _ in range(21):
        wait()
        start = time.perf_counter()
        for _ in range(200):
            launch(plan, tensors)
        per_call.append((time.perf_counter() - start) / 200)
    median = sorted(per_call)[len(per_call) // 2] * 1e6
    yield Row(
        "programs", "launch of a prepared plan, on the caller's thread", median, "us",
        target=f"<= {MAX_LAUNCH_US:g} us", ok=median <= MAX_LAUNCH_US,
        detail={"best_us": min(per_call) * 1e6},
    )  # fmt: skip
    wait()
    large = _prepared(root, "large", pointwise.neg(1024, 1024))
    big = [torch.zeros(1024, 1024, dtype=torch.float16).to("spyre") for _ in range(2)]
    launch(large, big)
    wait()
    start = time.perf_counter()
    for _ in range(QUEUED):
        launch(large, big)
    queued = time.perf_counter() - start
    wait()
    total = time.perf_counter() - start
    yield Row(
        "programs", f"{QUEUED} launches queued, before any wait", queued * 1e3, "ms", total * 1e3,
        queued / total, "queued before half of them ran", queued < total / 2,
        note="reference: until the last one ended",
    )  # fmt: skip


def _timing() -> Iterator[Row]:
    from examples.programs import matmul
    from openspyre.timing import time_program

    program = matmul.build(4096, 4096, 4096)
    time_program(program, spans=False)
    taken = []
    for _ in range(15):
        start = time.perf_counter()
        time_program(program, spans=False)
        taken.append(time.perf_counter() - start)
    median = sorted(taken)[len(taken) // 2] * 1e3
    yield Row(
        "programs", "timing of a 4096x4096x4096 product", median, "ms",
        target=f"<= {MAX_TIMING_MS:g} ms", ok=median <= MAX_TIMING_MS,
    )  # fmt: skip


if __name__ == "__main__":
    print(json.dumps([asdict(row) for row in _rows()]))
