"""What a step, an event and a change of stream cost the calling thread; no targets."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.measure import Row, interleave
from openspyre import _C
from openspyre import device as spyre


def run() -> Iterator[Row]:
    """Nanoseconds a call, Python's part included; an empty call of the extension for scale."""
    stream, other = spyre.Stream(), spyre.Stream()
    start = torch.Event("spyre", enable_timing=True)
    end = torch.Event("spyre", enable_timing=True)
    spyre.synchronize()
    timings = interleave(
        {
            "an empty call of the extension": "current_device()",
            "inline submit of a synthetic step": "submit(0, 0, 'compute', 'step', 100)",
            "event record": "start.record()",
            "two records, synchronize, elapsed_time": (
                "start.record(); end.record(); end.synchronize(); start.elapsed_time(end)"
            ),
            "event record, wait on another stream": (
                "start.record(stream); other.wait_event(start)"
            ),
            "stream switch and back (with)": "with on(stream): pass",
            "synchronize an idle device": "synchronize()",
        },
        {
            "current_device": _C.current_device,
            "submit": _C.submit,
            "start": start,
            "end": end,
            "stream": stream,
            "other": other,
            "on": spyre.stream,
            "synchronize": spyre.synchronize,
        },
        repeats=200,
    )
    for name, timing in timings.items():
        yield Row("streams", name, timing.median * 1e9, "ns", detail={"best_ns": timing.best * 1e9})
