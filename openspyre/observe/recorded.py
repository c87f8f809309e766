"""What the card did while a block of code ran, as typed events. Needs the extension.

    with recorded() as recording:
        model(x)
    for event in recording.events:
        print(event.name, event.stream, event.duration_ns, event.virtual_duration_ns)

The events are those that `torch.profiler` shows (csrc/card/recorder.h). Nobody listens: nothing is
recorded. Wall-clock times are those of the software card, measured here; virtual times are those of
the modelled card, on its virtual clock, and are no measurements.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

KINDS = ("kernel", "h2d", "d2h", "d2d", "memset", "host_compute")
"""What an event can be: a program; copies to, from and within the card; a fill by DMA; the host's
preparation of a launch."""

SEPARATOR = ", "
"""Between the source operations of a step, in the recorder and in traces."""


@dataclass(frozen=True, slots=True)
class Event:
    """One step of the card. Times in nanoseconds: wall-clock since 1970, virtual since the device's
    start; 0 (wall) and -1 (virtual) where the step had not come to it."""

    name: str
    """Of the program, or the operation that copies."""
    kind: str
    """One of KINDS."""
    device: int
    stream: int
    engine: str
    """ "H2D", "D2H", "Compute" or "HostCompute"."""
    begin_ns: int
    end_ns: int
    virtual_begin_ns: int
    virtual_end_ns: int
    bytes: int
    """Moved by a copy; 0 for a program."""
    sources: tuple[str, ...]
    """The operations that a program was compiled from; () where they are not known."""
    status: str
    """ "pending", "done", "failed" or "cancelled"."""
    correlation: int
    """Unique in the process; as in the device's Timeline and in traces."""
    operation: int
    """The number that torch.profiler gave to the operation that submitted the step; 0: none."""
    submit_begin_ns: int
    submit_end_ns: int
    """The call that submitted the step, by the wall clock."""
    virtual_submit_ns: int
    submit_thread: int
    run_thread: int
    """The system's thread ids; `run_thread` 0: did not run."""

    @property
    def duration_ns(self) -> int:
        """By the wall clock; 0 for a step that did not run."""
        return self.end_ns - self.begin_ns

    @property
    def virtual_duration_ns(self) -> int:
        """Modelled."""
        return self.virtual_end_ns - self.virtual_begin_ns

    @property
    def ran(self) -> bool:
        return self.end_ns > 0


@dataclass
class Recording:
    """`events` in the order of submission, complete once the block has ended. `dropped`: steps that
    found the buffer full (2**20 steps)."""

    events: list[Event] = field(default_factory=list)
    dropped: int = 0


@contextmanager
def recorded(*, synchronize: bool = True) -> Iterator[Recording]:
    """Records the steps of all devices that are submitted inside the block, by any thread.

    `synchronize`: wait at the end for the devices that worked, so that every event has its times.
    Blocks may be nested and overlap with profiles; each gets its own events.
    """
    from openspyre import _C

    recording = Recording()
    begin = _C.recorder_start()
    try:
        yield recording
        if synchronize:
            _synchronize(begin)
    finally:
        rows, recording.dropped = _C.recorder_stop(begin)
        recording.events[:] = [_event(row) for row in rows]


def _synchronize(begin: int) -> None:
    import torch

    from openspyre import _C

    for device in sorted({row[2] for row in _C.recorder_peek(begin)[0]}):
        torch.accelerator.synchronize(device)


def _event(row: tuple) -> Event:
    fields = list(row)
    fields[10] = tuple(fields[10].split(SEPARATOR)) if fields[10] else ()
    return Event(*fields)
