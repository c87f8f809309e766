"""torch.compile on the card beside torch.compile on the CPU: a full-width decoder layer, launches.

Runs in a process of its own, with one thread for the machine's pool and one for torch, and without
the compiler's caches. The layer is that of Granite 3.3 8B (examples/blocks.py), random weights:
float16 on the card, float32 on the CPU, every result compared. Compile times are cold.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from benchmarks.measure import Row, interleave, rows_of_worker

CACHE = 2048
PROMPTS = (128, 512)
LAYERS = (1, 2, 4, 8)
MAX_LAUNCH_US = 50.0
TOLERANCE = 2e-2


def run() -> Iterator[Row]:
    """The rows of the worker process."""
    return rows_of_worker(
        "benchmarks.compiler",
        {
            "OPENSPYRE_CACHE_DIR": "off",
            "OPENSPYRE_EAGER": "native",
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        },
    )


def _rows() -> Iterator[Row]:
    import torch

    torch.set_num_threads(1)
    with torch.no_grad():
        yield from _launches()
        yield from _depths()
        yield from _granite()


def _waited(function: Callable[..., Any], args: list[Any]) -> Callable[[], None]:
    from openspyre.device.devices import synchronize

    def once() -> None:
        function(*args)
        synchronize()

    return once


def _granite() -> Iterator[Row]:
    import torch

    from examples.blocks import DecoderLayer, Shape
    from openspyre.observe import explain

    torch.manual_seed(0)
    shape = Shape(4096, 32, 8, 128, 12800, residual=0.22, attention=0.0078125)
    layer = DecoderLayer(shape).requires_grad_(False)
    ours = torch.compile(copy.deepcopy(layer).half().to("spyre"), dynamic=False)
    theirs = torch.compile(layer, dynamic=False)
    for length in (1, *PROMPTS):
        args = [torch.randn(1, length, shape.hidden), torch.arange(length)]
        name = f"Granite layer, prompt of {length}"
        if length == 1:
            args[1] = torch.tensor([CACHE - 1])
            args += [torch.randn(1, shape.groups, CACHE, shape.head) for _ in range(2)]
            name = f"Granite layer, decoding with a cache of {CACHE}"
        device = [(a.half() if a.is_floating_point() else a).to("spyre") for a in args]
        begin = time.perf_counter()
        with explain.collect() as account:
            found = ours(*device).cpu().float()
        ready = time.perf_counter() - begin
        begin = time.perf_counter()
        wanted = theirs(*args)
        reference = time.perf_counter() - begin
        error = float((found - wanted).abs().max() / wanted.abs().max())
        if error > TOLERANCE or account.fallbacks:
            raise AssertionError(f"{name}: off by {error:.2g}, {account.fallbacks}")
        yield Row(
            "compiler", f"{name}: the first call, cold", ready, "s", reference, ready / reference
        )
        timings = interleave(
            {"ours": "ours()", "reference": "reference()"},
            {"ours": _waited(ours, device), "reference": lambda a=args: theirs(*a)},
            repeats=5,
            batch_seconds=1e-9,
        )
        a, b = timings["ours"], timings["reference"]
        modelled = sum(r.modelled_ns for r in account.regions) / 1e6
        yield Row(
            "compiler", name, a.median * 1e3, "ms", b.median * 1e3, a.median / b.median,
            note=f"float16; reference float32; on the card {modelled:.2f} ms (modelled)",
            detail={"ours_best_ms": a.best * 1e3, "reference_best_ms": b.best * 1e3,
                    "modelled_ms": modelled, "error": error},
        )  # fmt: skip


def _launches() -> Iterator[Row]:
    """What a warm region costs the thread that launches it: Dynamo's guards apart."""
    import torch

    from openspyre.compiler.inductor import regions
    from openspyre.device.devices import synchronize

    x = torch.zeros(64, 64, dtype=torch.float16, device="spyre")
    compiled = torch.compile(lambda a: torch.relu(a + a))
    on_cpu, host = torch.compile(lambda a: torch.relu(a + a)), torch.zeros(64, 64)
    compiled(x)
    ((key, _),) = list(regions._runners)

    def per_call(call: Callable[[], object]) -> float:
        times = []
        for _ in range(101):
            begin = time.perf_counter()
            for _ in range(20):
                call()
            times.append((time.perf_counter() - begin) / 20)
            synchronize()
        return sorted(times)[len(times) // 2] * 1e6

    region = torch.ops.openspyre.region.default
    taken = per_call(lambda: region(key, [x], [], []))
    yield Row(
        "compiler", "launch of a compiled region, on the caller's thread", taken, "us",
        target=f"<= {MAX_LAUNCH_US:g} us", ok=taken <= MAX_LAUNCH_US,
    )  # fmt: skip
    whole, reference = per_call(lambda: compiled(x)), per_call(lambda: on_cpu(host))
    yield Row(
        "compiler", "call of a compiled function, Dynamo's part included", whole, "us", reference,
        whole / reference,
    )  # fmt: skip


def _depths() -> Iterator[Row]:
    """Cold compile time by the number of layers (narrow ones: sizes hardly matter to it)."""
    import torch

    from examples.blocks import DecoderLayer, Shape

    shape = Shape(256, 2, 1, 128, 512)
    x, positions = torch.zeros(1, 16, 256).half().to("spyre"), torch.arange(16).to("spyre")
    for count in LAYERS:
        torch._dynamo.reset()
        layers = [
            DecoderLayer(shape).half().requires_grad_(False).to("spyre") for _ in range(count)
        ]

        def model(y: Any, at: Any, layers: list[Any] = layers) -> Any:
            for layer in layers:
                y = layer(y, at)
            return y

        begin = time.perf_counter()
        torch.compile(model, dynamic=False)(x, positions).cpu()
        taken = time.perf_counter() - begin
        yield Row(
            "compiler", f"first call of {count} layers, cold", taken, "s",
            note=f"{taken / count:.2f} s a layer",
        )  # fmt: skip


if __name__ == "__main__":
    print(json.dumps([asdict(row) for row in _rows()]))
