"""Random numbers: one Philox generator per device, in the shape of torch.cuda's functions.

A state is a CPU ByteTensor of 16 bytes (seed, offset).
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import torch

from openspyre import _C
from openspyre.device.devices import Device, device_count, device_index


class DefaultGenerators(Sequence[torch.Generator]):
    """The default generator of each visible device. Made at first use, so nothing starts early."""

    def __len__(self) -> int:
        return device_count()

    @overload
    def __getitem__(self, index: int) -> torch.Generator: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[torch.Generator]: ...
    def __getitem__(self, index: int | slice) -> torch.Generator | Sequence[torch.Generator]:
        places = range(device_count())[index]
        if isinstance(places, range):
            return [_C.default_generator(place) for place in places]
        return _C.default_generator(places)


default_generators = DefaultGenerators()


def manual_seed(seed: int) -> None:
    """Seeds the current device."""
    default_generators[device_index()].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds every visible device; `torch.manual_seed` calls it."""
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> int:
    """Seeds the current device from the system's entropy and returns the seed."""
    return default_generators[device_index()].seed()


def seed_all() -> int:
    """Seeds every visible device with one seed from the system's entropy and returns it."""
    chosen = torch.Generator().seed()
    manual_seed_all(chosen)
    return chosen


def initial_seed(device: Device = None) -> int:
    """The seed of `device`."""
    return default_generators[device_index(device)].initial_seed()


def get_rng_state(device: Device = "spyre") -> torch.Tensor:
    """The state of `device` as a CPU ByteTensor."""
    return default_generators[device_index(device)].get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = "spyre") -> None:
    """Sets the state of `device` from what `get_rng_state` gave."""
    default_generators[device_index(device)].set_state(new_state)


_taking = threading.Lock()


def take_blocks(device: int, blocks: int) -> tuple[int, int]:
    """(seed, first block) of `blocks` Philox blocks of a device's generator, which goes on behind
    them. Both as signed 64-bit numbers."""
    generator = default_generators[device]
    with _taking:
        state = bytes(generator.get_state().tolist())
        seed, offset = struct.unpack("<qq", state)
        after = struct.pack("<qq", seed, offset + blocks)
        generator.set_state(torch.tensor(list(after), dtype=torch.uint8))
    return seed, offset


def get_rng_state_all() -> list[torch.Tensor]:
    """The state of every visible device."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Sets the state of every visible device."""
    for generator, state in zip(default_generators, new_states, strict=True):
        generator.set_state(state)


@contextlib.contextmanager
def fork_rng(devices: Iterable[int] | None = None, enabled: bool = True) -> Iterator[None]:
    """`torch.random.fork_rng` for spyre: CPU and device states are the same behind as before."""
    with torch.random.fork_rng(devices, enabled=enabled, device_type="spyre"):
        yield
