"""Streams and events, in the shape of torch.cuda's.

Ids (runtime): 0 the default stream, 1-32 low priority (`priority=0`), 33-64 high priority (any
other number), 65 and up host-compute streams. Pools are used round robin, so the 33rd stream of a
pool is the first one again. Order is kept inside a stream and nowhere else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import torch

from openspyre import _C
from openspyre.device.devices import Device, current_device, device_index, set_device


class SpyreStreamError(IntEnum):
    """What is wrong with a stream."""

    Success = 0
    Shutdown = 1
    HardwareFault = 2
    Timeout = 3
    MemoryFault = 4
    CoreUnavailable = 5


class SpyreDeviceState(IntEnum):
    """What a device is in."""

    Ok = 0
    NotInitialized = 1
    StreamError = 2


class Stream(torch.Stream):
    """A queue of work on one device.

    Arguments: `device` (default: the current one) and `priority` (0: low pool; any other: high
    pool). `torch.Stream("spyre")` makes the same kind of stream.
    """

    def __new__(cls, device: Device = None, priority: int = 0, **kwargs: Any) -> Stream:
        if "stream_id" in kwargs:  # an existing stream, by torch's own three numbers
            return super().__new__(cls, **kwargs)
        return super().__new__(
            cls, device=torch.device("spyre", device_index(device)), priority=priority
        )

    @property
    def priority(self) -> int:
        """0 or -1 (high and host-compute streams)."""
        return _C.stream_priority(self.stream_id)

    def __repr__(self) -> str:
        return f"<torch.spyre.Stream device=spyre:{self.device_index} id={self.stream_id}>"


class _EventType(type):
    """torch.Event.elapsed_time takes torch.Event itself and no subclass, so `Event(...)` makes
    plain ones; isinstance still tells those of spyre."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "spyre"


class Event(torch.Event, metaclass=_EventType):
    """A point in a stream that others can wait for.

    `elapsed_time(end)` is *virtual* time of the card in milliseconds, never wall-clock time; both
    events need `enable_timing=True`. `blocking` changes nothing: waits never spin.
    """

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        device: Device = None,
    ) -> Event:
        if interprocess:
            raise NotImplementedError(
                "torch.spyre.Event(interprocess=True): a card belongs to one process, so its events"
                " cannot be shared; send results through the host instead"
            )
        made: Any = torch.Event(
            torch.device("spyre", device_index(device)),
            enable_timing=enable_timing,
            blocking=blocking,
        )
        return made


def _wrap(stream: torch.Stream) -> Stream:
    if isinstance(stream, Stream):
        return stream
    return Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )


def _by_id(stream_id: int, index: int) -> Stream:
    return Stream(
        stream_id=stream_id,
        device_index=index,
        device_type=torch.accelerator.current_stream(index).device_type,
    )


def current_stream(device: Device = None) -> Stream:
    """The calling thread's current stream on `device`."""
    return _wrap(torch.accelerator.current_stream(device_index(device)))


def default_stream(device: Device = None) -> Stream:
    """Stream 0 of `device`."""
    return _by_id(0, device_index(device))


def host_compute_stream(device: Device = None) -> Stream:
    """The next host-compute stream of `device`, round robin over
    TORCH_SPYRE_NUM_HOST_COMPUTE_STREAMS of them (default 4)."""
    index = device_index(device)
    return _by_id(_C.host_compute_stream(index), index)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes `stream` current on its device, and its device current. None changes nothing."""
    if stream is not None:
        _check(stream)
        torch.accelerator.set_stream(stream)


class StreamContext:
    """What `stream(s)` returns: `s` is current inside; device and stream are restored behind."""

    def __init__(self, stream: torch.Stream | None) -> None:
        if stream is not None:
            _check(stream)
        self.stream = stream
        self._saved: list[tuple[int, torch.Stream]] = []  # a list: one context may be nested

    def __enter__(self) -> torch.Stream | None:
        if self.stream is not None:
            before = torch.accelerator.current_stream(self.stream.device_index)
            self._saved.append((current_device(), before))
            torch.accelerator.set_stream(self.stream)
        return self.stream

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            index, before = self._saved.pop()
            torch.accelerator.set_stream(before)
            set_device(index)


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context manager: work inside goes to `stream`. None changes nothing."""
    return StreamContext(stream)


def stream_get_error(stream: torch.Stream | None = None) -> SpyreStreamError:
    """The sticky error of `stream` (default: the current one), Success when it has none."""
    where = _resolve(stream)
    return SpyreStreamError(_C.stream_error(where.device_index, where.stream_id))


def stream_get_error_string(stream: torch.Stream | None = None) -> str:
    """The text of the sticky error of `stream`, "" when it has none."""
    where = _resolve(stream)
    return _C.stream_error_text(where.device_index, where.stream_id)


def reset_stream(stream: torch.Stream | None = None) -> None:
    """Drops the queued work of `stream` and clears its error, so that it works again.

    Tensors that the dropped work would have written keep what they held.
    """
    where = _resolve(stream)
    _C.reset_stream(where.device_index, where.stream_id)


def get_device_state(device: Device = None) -> SpyreDeviceState:
    """The state of `device` now. Starts nothing: NotInitialized before the first use."""
    return SpyreDeviceState(_C.device_state(device_index(device)))


@contextlib.contextmanager
def check_streams(device: Device = None) -> Iterator[None]:
    """Context manager that waits for `device` at its end, so that errors surface inside it."""
    yield
    _C.device_synchronize(device_index(device))


def _check(stream: torch.Stream) -> None:
    if stream.device.type != "spyre":
        raise ValueError(f"expected a stream of a spyre device, got one of {str(stream.device)!r}")


def _resolve(stream: torch.Stream | None) -> torch.Stream:
    if stream is None:
        return current_stream()
    _check(stream)
    return stream
