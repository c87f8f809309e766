"""Copies between host and card, conversion included, beside a plain copy on the CPU.

GB/s are host bytes of the tensor over wall time; a call ends when the bytes are where they belong.
*Warm* writes into a tensor that exists. A *new tensor* on the card reuses a freed block, as the
allocator does; *first touch* gives the card's memory back before each copy, so that the system has
to provide its pages. The notes give the best of all repeats, and the
rate that the processor time alone would allow on the threads in use: on a busy machine the wall
time shows what others left over.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy
import torch

from benchmarks.measure import Row, Timing, interleave
from openspyre import device as spyre

SIZE = (4096, 4096)
MIN_GBPS = 5.0
TARGET_THREADS = 2


def _host_tensor(dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(SIZE).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, SIZE).to(dtype)
    return torch.randint(-(2**31), 2**31 - 1, SIZE).to(dtype)


def _row(
    name: str, nbytes: int, threads: int, ours: Timing, reference: Timing, targeted: bool
) -> Row:
    def rate(seconds: float) -> float:
        return nbytes / seconds / 1e9

    best = rate(ours.best)
    by_processor = rate(ours.cpu_median / threads)
    ok = rate(ours.median) >= MIN_GBPS if targeted else None
    return Row(
        "copies",
        f"{name}, {threads} thr.",
        rate(ours.median),
        "GB/s",
        rate(reference.median),
        rate(ours.median) / rate(reference.median),
        f">= {MIN_GBPS:g} GB/s" if targeted else "",
        ok,
        f"best {best:.1f}, by processor time {by_processor:.1f}",
        {
            "ours_best": best,
            "ours_by_processor_time": by_processor,
            "reference_best": rate(reference.best),
            "reference_by_processor_time": rate(reference.cpu_median / threads),
        },
    )


def run() -> Iterator[Row]:
    """Rows for each thread count and dtype: to the card (warm and new), and back."""
    mode = spyre.numerics.mode()
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for dtype in (torch.float16, torch.float32, torch.int64, torch.bool):
                yield from _dtype_rows(dtype, threads, mode)
    finally:
        torch.set_num_threads(before)


def _dtype_rows(dtype: torch.dtype, threads: int, mode: str) -> Iterator[Row]:
    label = str(dtype).removeprefix("torch.") + (f" ({mode})" if dtype == torch.float16 else "")
    source = _host_tensor(dtype)
    card = source.to("spyre")
    timings = interleave(
        {
            "to": "card.copy_(source)",
            "new": "source.to('spyre')",
            "back": "host.copy_(card)",
            "back_new": "card.cpu()",
            "copy": "host.copy_(source)",
            "clone": "source.clone()",
            "numpy": "copyto(array, source_array)",
        },
        {
            "source": source,
            "card": card,
            "host": torch.empty_like(source),
            "copyto": numpy.copyto,
            "array": numpy.empty_like(source.numpy()),
            "source_array": source.numpy(),
        },
        repeats=25 if dtype == torch.float16 else 11,
        batch_seconds=0.0,
    )
    nbytes = source.numel() * source.element_size()
    del card  # so that its pages can be given back
    first = interleave(
        {"to": "source.to('spyre')", "clone": "source.clone()"},
        {"source": source, "empty_cache": spyre.empty_cache},
        repeats=25 if dtype == torch.float16 else 7,
        batch_seconds=0.0,
        before="empty_cache()",
    )
    half = dtype == torch.float16 and threads == TARGET_THREADS
    yield _row(f"{label} to card, warm", nbytes, threads, timings["to"], timings["copy"], half)
    yield _row(
        f"{label} to card, new tensor", nbytes, threads, timings["new"], timings["clone"], half
    )
    yield _row(f"{label} to card, first touch", nbytes, threads, first["to"], first["clone"], False)
    yield _row(f"{label} to host, warm", nbytes, threads, timings["back"], timings["copy"], False)
    yield _row(
        f"{label} to host, new tensor",
        nbytes,
        threads,
        timings["back_new"],
        timings["clone"],
        False,
    )
    if dtype == torch.float16:  # what the memory gives, for scale
        yield _row("  CPU copy_ / numpy", nbytes, threads, timings["copy"], timings["numpy"], False)
