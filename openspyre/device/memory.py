"""Memory of the devices: statistics, summary, history and snapshot, in the shape of torch.cuda's.

Bytes are bytes of the card (rounded to 128), Tensor memory only unless said otherwise. A snapshot
is the dict that `torch.cuda._memory_viz` and the viewer at pytorch.org/memory_viz read.
"""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch

from openspyre import _C
from openspyre.device.devices import Device, device_count, device_index, is_initialized

_DEFAULT_ENTRIES = 1 << 20


def memory_allocated(device: Device = None) -> int:
    """Bytes held by live tensors."""
    return torch.accelerator.memory_allocated(device_index(device))


def max_memory_allocated(device: Device = None) -> int:
    """The most bytes ever held by live tensors, since the start or `reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_allocated(device_index(device))


def memory_reserved(device: Device = None) -> int:
    """Bytes of the regions that hold tensors."""
    return torch.accelerator.memory_reserved(device_index(device))


def max_memory_reserved(device: Device = None) -> int:
    """The most bytes of regions, since the start or `reset_peak_memory_stats`."""
    return torch.accelerator.max_memory_reserved(device_index(device))


def memory_stats(device: Device = None) -> OrderedDict[str, Any]:
    """torch.accelerator.memory_stats, and the program memory under `program_bytes.*` and
    `program_allocation.*`. Empty before the first use of the device."""
    index = device_index(device)
    stats: OrderedDict[str, Any] = OrderedDict(torch.accelerator.memory_stats(index))
    if is_initialized():
        own = _C.memory_stats(index)
        stats.update((key, own[key]) for key in sorted(own) if key.startswith("program_"))
    return stats


def reset_peak_memory_stats(device: Device = None) -> None:
    """Sets every peak to what is now."""
    torch.accelerator.reset_peak_memory_stats(device_index(device))


def reset_max_memory_allocated(device: Device = None) -> None:
    """The old name of `reset_peak_memory_stats`."""
    reset_peak_memory_stats(device)


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Sets every sum of allocations and frees to zero."""
    torch.accelerator.reset_accumulated_memory_stats(device_index(device))


def empty_cache() -> None:
    """Gives regions without a live block back, on every device. Starts nothing."""
    torch.accelerator.empty_cache()


def empty_host_cache() -> None:
    """Gives pinned host memory that nobody uses back."""
    torch.accelerator.empty_host_cache()


def get_memory_info(device: Device = None) -> tuple[int, int]:
    """(free, total) bytes usable for tensors, from one locked snapshot. Starts the runtime."""
    info = _C.memory_info(device_index(device))
    return info["free"], info["total"]


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """The name in torch.cuda of `get_memory_info`."""
    return get_memory_info(device)


def get_per_process_memory_fraction(device: Device = None) -> float:
    """1.0: a card belongs to one process, which may use all of it."""
    device_index(device)
    return 1.0


@dataclass(frozen=True)
class Fragmentation:
    """How scattered the free memory inside the regions of a device is."""

    score: float
    """1 - largest free block / free bytes in the regions: 0 when it is one block or none."""
    largest_free_block: int
    """Bytes of the largest request that would succeed without freeing anything."""
    reserved: int
    allocated: int
    handles_used: int
    handles_max: int
    """Size of the region table; 0: not limited (Physical Function)."""


def fragmentation(device: Device = None) -> Fragmentation:
    """The fragmentation of `device` now. Starts the runtime."""
    index = device_index(device)
    info = _C.memory_info(index)
    return Fragmentation(
        score=info["fragmentation"],
        largest_free_block=info["largest_free_block"],
        reserved=info["reserved"],
        allocated=_C.memory_stats(index)["allocated_bytes.all.current"],
        handles_used=info["handles_used"],
        handles_max=info["handles_max"],
    )


def host_memory_stats() -> OrderedDict[str, Any]:
    """Statistics of the pinned host memory, flat as `memory_stats`. Host bytes."""
    return OrderedDict(sorted(_C.host_memory_stats().items()))


def reset_peak_host_memory_stats() -> None:
    """Sets every peak of the pinned host memory to what is now."""
    _C.reset_peak_host_memory_stats()


def reset_accumulated_host_memory_stats() -> None:
    """Sets every sum of the pinned host memory to zero."""
    _C.reset_accumulated_host_memory_stats()


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_SUMMARY = (
    ("Allocated memory", "allocated_bytes", True),
    ("Requested memory", "requested_bytes", True),
    ("Active memory", "active_bytes", True),
    ("Reserved memory", "reserved_bytes", True),
    ("Split off, unused", "inactive_split_bytes", True),
    ("Allocations", "allocation", False),
    ("Regions", "segment", False),
)


def _size(count: int) -> str:
    value = float(count)
    for unit in _UNITS[:-1]:
        if abs(value) < 1024:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_UNITS[-1]}"


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """A table for people. `abbreviated` leaves the split by pool out."""
    index = device_index(device)
    head = f"{'':<22}{'now':>13}{'peak':>13}{'total alloc':>14}{'total freed':>14}"
    if not is_initialized():
        return f"Memory of spyre:{index}: the device was not used yet."
    stats = _C.memory_stats(index)
    info = _C.memory_info(index)
    lines = [f"Memory of spyre:{index}, modelled card", "=" * len(head), head, "-" * len(head)]
    pools = ("all",) if abbreviated else ("all", "large_pool", "small_pool")
    for title, key, is_bytes in _SUMMARY:
        for pool in pools:
            name = title if pool == "all" else f"  {pool.replace('_', ' ')}"
            values = [stats[f"{key}.{pool}.{part}"] for part in _PARTS]
            lines.append(_row(name, values, is_bytes))
    values = [stats[f"program_bytes.{part}"] for part in _PARTS]
    lines.append(_row("Program memory", values, True))
    lines.append("-" * len(head))
    handles = info["handles_max"] or "no limit"
    lines.append(
        f"free {_size(info['free'])} of {_size(info['total'])}, largest request "
        f"{_size(info['largest_free_block'])}, fragmentation {info['fragmentation']:.2f}"
    )
    lines.append(
        f"region handles {info['handles_used']} of {handles}, out-of-memory errors "
        f"{stats['num_ooms']}, retries {stats['num_alloc_retries']}"
    )
    return "\n".join(lines)


_PARTS = ("current", "peak", "allocated", "freed")


def _row(name: str, values: list[int], is_bytes: bool) -> str:
    texts = [_size(value) if is_bytes else f"{value:,}" for value in values]
    return f"{name:<22}{texts[0]:>13}{texts[1]:>13}{texts[2]:>14}{texts[3]:>14}"


def _record_memory_history(
    enabled: str | bool | None = "all",
    context: str | None = "all",
    stacks: str = "python",
    max_entries: int = _DEFAULT_ENTRIES,
    device: Device = None,
) -> None:
    """Starts (or, with `enabled=None`, stops) recording allocations with their Python stacks.

    Of every device, or of `device` when given. `max_entries` rows are kept for each. `context` and
    `stacks` are torch.cuda's: stacks are Python's whatever they say, and are always taken.
    """
    if enabled not in (None, False, True, "state", "all"):
        raise ValueError(f"enabled={enabled!r}: one of None, 'state', 'all'")
    if stacks not in ("python", "all"):
        raise ValueError(f"stacks={stacks!r}: one of 'python', 'all'")
    if max_entries < 1:
        raise ValueError(f"max_entries={max_entries}: one or more")
    for index in _which(device):
        _C.record_memory_history(index, bool(enabled), min(max_entries, _DEFAULT_ENTRIES))


def _snapshot(device: Device = None) -> dict[str, Any]:
    """The memory of every device (or of `device`) as torch.cuda.memory._snapshot gives it.

    Addresses are device addresses, (1 + region) << 34 and up.
    """
    segments: list[dict[str, Any]] = []
    traces: list[list[dict[str, Any]]] = [[] for _ in range(device_count())]
    for index in _which(device):
        one = _C.memory_snapshot(index)
        segments += one["segments"]
        traces[index] = one["trace"]
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": _settings(),
        "external_annotations": [],
    }


def _dump_snapshot(filename: str | os.PathLike[str] = "dump_snapshot.pickle") -> None:
    """Writes `_snapshot()` as a pickle, for `python -m torch.cuda._memory_viz trace_plot FILE`."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)


def memory_snapshot(device: Device = None) -> list[dict[str, Any]]:
    """The segments of `_snapshot`."""
    segments: list[dict[str, Any]] = _snapshot(device)["segments"]
    return segments


def _which(device: Device) -> list[int]:
    return list(range(device_count())) if device is None else [device_index(device)]


def _settings() -> dict[str, Any]:
    devices = _C.configuration()["devices"]
    return {"expandable_segments": True, "spyre": [entry["memory"] for entry in devices]}
