"""Synthetic work: steps that cost virtual time and have no bits, faults, and the Timeline.

For tests, demonstrations and benchmarks of ordering. All times are virtual nanoseconds of the
modelled card: a pure function of submission order and costs, never of the wall clock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from openspyre import _C
from openspyre.device.devices import Device, device_index
from openspyre.device.streams import SpyreStreamError, _resolve

ENGINES = ("h2d", "d2h", "compute", "host_compute")


@dataclass(frozen=True)
class TimelineEntry:
    """One step that was submitted. Times in virtual nanoseconds."""

    correlation: int
    name: str
    engine: str
    stream: int
    start_ns: int
    end_ns: int
    submit_ns: int
    bytes: int
    status: str
    """ "pending", "done", "failed" or "cancelled"."""

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


def submit(
    engine: str,
    cost_ns: int,
    *,
    name: str = "synthetic",
    bytes: int = 0,
    stream: torch.Stream | None = None,
    hold_seconds: float = 0.0,
    fail: str = "",
) -> int:
    """Submits one step to `stream` (default: the current one) and returns its correlation id.

    `engine` is one of ENGINES, `cost_ns` its modelled duration. `hold_seconds` keeps the engine
    really busy for that long; `fail`, if not empty, is the text of the error that the step ends
    with. Raises StreamFailure at once when the stream is in error.
    """
    where = _resolve(stream)
    return _C.submit(
        where.device_index,
        where.stream_id,
        engine,
        name,
        cost_ns,
        bytes,
        hold_seconds,
        fail,
    )


class Signal:
    """A one-shot event of the card that may be waited for before its signal is submitted.

    torch.Event cannot: waiting for one that was never recorded does nothing.
    """

    def __init__(self, device: Device = None) -> None:
        self._signal = _C.Signal(device_index(device))

    def signal(self, stream: torch.Stream | None = None) -> None:
        """Fires when all work submitted to `stream` so far is done."""
        self._signal.signal(_resolve(stream).stream_id)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Later work on `stream` waits for the signal; the host does not."""
        self._signal.wait(_resolve(stream).stream_id)

    def query(self) -> bool:
        """Whether it has fired."""
        return self._signal.query()

    def synchronize(self) -> None:
        """The host waits. Raises the error that poisoned it, or Deadlock."""
        self._signal.synchronize()

    @property
    def time_ns(self) -> int | None:
        """Virtual time at which it fired; None while that is not known."""
        return self._signal.time_ns


def inject_faults(
    *,
    rate: float = 0.0,
    nth: int | None = None,
    seed: int = 0,
    name_contains: str = "",
    engine: str | None = None,
    code: SpyreStreamError = SpyreStreamError.HardwareFault,
    device: Device = None,
) -> None:
    """Lets matching steps of `device` fail: the `nth` (from 0), or each with probability `rate`.

    The same seed and the same order of submission fail at the same steps. Stays until
    `clear_faults`.
    """
    _C.inject_faults(
        device_index(device),
        rate,
        -1 if nth is None else nth,
        seed,
        name_contains,
        engine,
        int(code),
    )


def clear_faults(device: Device = None) -> None:
    """Ends `inject_faults`. Errors that already stick to streams stay."""
    _C.clear_faults(device_index(device))


@contextlib.contextmanager
def faults(
    *,
    rate: float = 0.0,
    nth: int | None = None,
    seed: int = 0,
    name_contains: str = "",
    engine: str | None = None,
    code: SpyreStreamError = SpyreStreamError.HardwareFault,
    device: Device = None,
) -> Iterator[None]:
    """`inject_faults` inside the context."""
    index = device_index(device)
    inject_faults(
        rate=rate,
        nth=nth,
        seed=seed,
        name_contains=name_contains,
        engine=engine,
        code=code,
        device=index,
    )
    try:
        yield
    finally:
        clear_faults(index)


def timeline(device: Device = None) -> list[TimelineEntry]:
    """The last steps of `device`, oldest first (OPENSPYRE_TIMELINE of them at most)."""
    return [TimelineEntry(*row) for row in _C.timeline(device_index(device))]


def clear_timeline(device: Device = None) -> None:
    """Forgets the steps so far; the clock goes on."""
    _C.clear_timeline(device_index(device))


def host_time_ns(device: Device = None) -> int:
    """Modelled host time: advances by the cost of each submission and by `advance_host`."""
    return _C.host_time_ns(device_index(device))


def advance_host(ns: int, device: Device = None) -> None:
    """Models `ns` nanoseconds of host work between two submissions."""
    _C.advance_host(device_index(device), ns)


def stream_time_ns(stream: torch.Stream | None = None) -> int:
    """End of the last step of `stream` whose time is known."""
    where = _resolve(stream)
    return _C.stream_time_ns(where.device_index, where.stream_id)


def device_time_ns(device: Device = None) -> int:
    """The latest time of any stream of `device` and of its host."""
    return _C.device_time_ns(device_index(device))


def transfer_ns(engine: str, bytes: int, device: Device = None) -> int:
    """Modelled duration of a transfer of `bytes` bytes on the engine "h2d" or "d2h"."""
    return _C.transfer_ns(device_index(device), engine, bytes)


def engine_totals(engine: str, device: Device = None) -> tuple[int, int, int]:
    """(steps, bytes, busy virtual ns) of one engine since the start, on this device."""
    steps, moved, busy = _C.engine_totals(device_index(device), engine)
    return steps, moved, busy
