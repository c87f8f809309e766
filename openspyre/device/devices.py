"""Devices: which there are, which is current, what they are, and when they start.

Indices are 0..device_count()-1 in the order of the visible devices (docs/environment.md). A device
argument is None (the current device), an int, "spyre", "spyre:1" or a torch.device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from openspyre import _C

Device: TypeAlias = torch.device | str | int | None


def device_index(device: Device = None) -> int:
    """The index that `device` means; None and "spyre" mean the current device.

    Raises ValueError for another device type or a malformed configuration, and
    torch.AcceleratorError for an index that no visible device has. Starts nothing.
    """
    index: int | None
    if isinstance(device, bool):
        raise TypeError(f"a device is an index, a text or a torch.device, not {device!r}")
    if device is None:
        index = None
    elif isinstance(device, int):
        index = device
    else:
        where = torch.device(device) if isinstance(device, str) else device
        if not isinstance(where, torch.device):
            raise TypeError(f"a device is an index, a text or a torch.device, not {device!r}")
        if where.type != "spyre":
            raise ValueError(f"expected a spyre device, got {str(where)!r}")
        index = where.index
    if index is None:
        return current_device()
    count = device_count()
    if not 0 <= index < count:
        if error := _C.configuration()["error"]:
            raise ValueError(error)
        visible = f"{count} visible" + (f" (spyre:0 to spyre:{count - 1})" if count > 1 else "")
        raise torch.AcceleratorError(f"spyre:{index} is not a device of this process: {visible}")
    return index


def device_count() -> int:
    """How many devices are visible. Never raises and starts nothing; 0 when none is configured."""
    return _C.device_count()


def is_available() -> bool:
    """Whether at least one device is visible. Never raises and starts nothing."""
    return device_count() > 0


def is_initialized() -> bool:
    """Whether the runtime of this process has started: the first use of a device starts it."""
    return _C.is_started() and not _C.in_forked_child()


def init() -> None:
    """Starts the runtime now instead of at the first use.

    Raises ValueError for a malformed configuration and ForkedChild in a child made by fork.
    """
    _C.start()


def _lazy_init() -> None:
    """The name that torch calls before random states and streams."""
    init()


def _is_in_bad_fork() -> bool:
    return _C.in_forked_child()


def current_device() -> int:
    """The calling thread's current device. Starts nothing."""
    return _C.current_device()


def set_device(device: Device) -> None:
    """Makes `device` the calling thread's current device. Starts nothing; None changes nothing."""
    if device is not None:
        _C.set_current_device(device_index(device))


class device:
    """Context manager: `device` is current inside, the former one again behind.

    None and negative indices change nothing, as in torch.cuda.device.
    """

    def __init__(self, device: Device) -> None:
        negative = isinstance(device, int) and device < 0
        self.idx = -1 if device is None or negative else device_index(device)
        self.prev_idx = -1

    def __enter__(self) -> device:
        if self.idx >= 0:
            self.prev_idx = current_device()
            _C.set_current_device(self.idx)
        return self

    def __exit__(self, *_: object) -> None:
        if self.idx >= 0:
            _C.set_current_device(self.prev_idx)


class device_of(device):
    """Context manager: the device of a tensor is current inside. No effect for other devices."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == "spyre" else None)


def can_device_access_peer(device: Device, peer: Device) -> bool:
    """Whether one device reads the other's memory directly: never; copies go over the host link."""
    device_index(device)
    device_index(peer)
    return False


@dataclass(frozen=True)
class DeviceProperties:
    """What a device is. Bytes and counts; every figure of the card is modelled."""

    name: str
    card: int
    """Number of the physical card."""
    virtual_function: int
    """-1: the Physical Function of the card."""
    total_memory: int
    """Bytes that this device may hold."""
    multi_processor_count: int
    """Cores."""
    scratchpad_bytes_per_core: int
    clock_rate_khz: int
    region_handles: int
    """Entries of the region table; 0: not limited (Physical Function)."""
    max_region_bytes: int


def get_device_properties(device: Device = None) -> DeviceProperties:
    """The properties of `device`. Starts nothing."""
    from openspyre.device.registration import configuration

    index = device_index(device)
    wanted = _C.configuration()["devices"][index]
    spec = configuration().card
    memory: dict[str, Any] = wanted["memory"]
    virtual = wanted["vf"] >= 0
    return DeviceProperties(
        name=get_device_name(index),
        card=wanted["card"],
        virtual_function=wanted["vf"],
        total_memory=memory["capacity"],
        multi_processor_count=spec.cores,
        scratchpad_bytes_per_core=spec.lx_bytes,
        clock_rate_khz=round(spec.clock_hz / 1e3),
        region_handles=memory["max_handles"] if virtual else 0,
        max_region_bytes=memory["max_region"],
    )


def get_device_name(device: Device = None) -> str:
    """For example "OpenSpyre software card 0", or the same with ", virtual function 1"."""
    wanted = _C.configuration()["devices"][device_index(device)]
    name = f"OpenSpyre software card {wanted['card']}"
    return name if wanted["vf"] < 0 else f"{name}, virtual function {wanted['vf']}"


def get_device_capability(device: Device = None) -> dict[str, Any]:
    """What the device computes: {"supported_dtypes": {torch.dtype, ...}}."""
    return torch.accelerator.get_device_capability(device_index(device))


def synchronize(device: Device = None) -> None:
    """Waits until every stream of `device` is idle. Answers Ctrl-C.

    Raises the first sticky error of its streams (StreamFailure), or Deadlock.
    """
    _C.device_synchronize(device_index(device))


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that autocast may choose on spyre."""
    return [torch.float16, torch.bfloat16]
