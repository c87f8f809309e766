"""Prepared plans: `prepare` a SpyreCode directory once, `launch` it many times.

What reads directories and programs is imported at the first use: `import torch` stays quick.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from openspyre import _C
from openspyre.device import registration
from openspyre.device.devices import Device, device_index

if TYPE_CHECKING:
    from openspyre.device.recording import Recorder
    from openspyre.runtime.plan import ExpectedArgument, JobPlan, PlanCounters
    from openspyre.runtime.recording import Recording

__all__ = [
    "ExpectedArgument",
    "ImageInfo",
    "JobPlan",
    "PlanCounters",
    "check_job_plan_step_ordering",
    "evict_image",
    "images",
    "launch",
    "prepare",
    "record",
    "release",
]

recorder: Recorder | None = None
"""Where launches of this process are kept, if anywhere (openspyre.device.recording)."""


def prepare(
    directory: str | Path,
    *,
    device: Device = None,
    verify: bool = True,
    slots: int | None = None,
    overlap: bool | None = None,
    profiler_name: str | None = None,
) -> JobPlan:
    """Reads a SpyreCode directory (docs/spyrecode.md), verifies it and loads it onto `device`.

    Everything that can be wrong with it is found before any device effect: a refused directory
    leaves allocator and card as they were. Later launches on any stream run behind the load. Plans
    of equal content share their image; it goes with the last of them.

    `verify` False leaves out the program verifier and the checks of the directory's meaning.
    `slots`: correction slots (default OPENSPYRE_CORRECTION_SLOTS), `overlap`: prepare launches on
    stream 65 (default OPENSPYRE_OVERLAP), `profiler_name`: steps are called `<it>#<index>`.

    Raises SpyreCodeError or VerifyError (what is wrong, where, the rule), torch.OutOfMemoryError.
    """
    from openspyre.device.registration import configuration
    from openspyre.runtime.plan import prepare_plan

    if not isinstance(directory, str | os.PathLike):
        raise TypeError(
            f"prepare: takes a SpyreCode directory, not a {type(directory).__name__};"
            " openspyre.runtime.write_spyrecode makes one of a Program"
        )
    return prepare_plan(
        directory,
        device_index(device),
        configuration().card,
        verify=verify,
        slots=slots,
        overlap=overlap,
        profiler_name=profiler_name,
    )


def launch(
    plan: JobPlan,
    tensors: Sequence[torch.Tensor],
    stream: torch.Stream | None = None,
    *,
    symbols: Mapping[str, int | float] | None = None,
    allow_tiled_launch: bool | None = None,
) -> None:
    """Runs `plan` on `tensors`, in the order of `plan.expected_arguments`, on `stream` (default:
    the current one of the plan's device). Does not wait for the card.

    The tensors are held to what the plan expects before anything is submitted: count, device,
    dtype, format, shape, symbols, layout (storage offset included), aliasing. RuntimeError names
    the tensor and what does not fit. `symbols`: values of `plan.symbols` by name.
    `allow_tiled_launch` (default OPENSPYRE_ALLOW_TILED_LAUNCH): tensors larger than the plan's by
    whole factors are worked off tile by tile. A launch has no derivative: while autograd records,
    tensors that require grad are refused.

    Faults of the card while it runs stick to the stream (torch.spyre.StreamFailure).
    """
    if allow_tiled_launch is None:
        allow_tiled_launch = registration.configuration().allow_tiled_launch
    if recorder is not None:
        recorder.launch(plan, tensors, stream, symbols, allow_tiled_launch)
    else:
        submit(plan, tensors, stream, symbols, allow_tiled_launch)


def submit(
    plan: JobPlan,
    tensors: Sequence[torch.Tensor],
    stream: torch.Stream | None,
    symbols: Mapping[str, int | float] | None,
    tiled: bool,
) -> None:
    """`launch` past the recorder."""
    if stream is None:
        plan._native.launch(tensors, -1, symbols, tiled)
        return
    if stream.device_index != plan.device_index or stream.device.type != "spyre":
        raise ValueError(
            f"launch: the stream belongs to {stream.device}, the plan to spyre:{plan.device_index}"
        )
    plan._native.launch(tensors, stream.stream_id, symbols, tiled)


def record(directory: str | Path) -> AbstractContextManager[Recording]:
    """Keeps every launch of the process that is made inside, in a new directory: plans, contents
    of the tensors, what each launch left. Run it again with `openspyre replay`, or
    `openspyre.runtime.recording.replay`. Waits for the card around every launch.

    Yields the Recording, which is written at the end, also after an error. Raises RecordingError
    when the directory holds something already, or inside another `record`.
    """
    from openspyre.device.recording import recording_to

    return recording_to(directory)


def check_job_plan_step_ordering(
    plan: JobPlan | Sequence[str], roles: Sequence[str] | None = None
) -> str:
    """Whether a plan's steps may be launched in their order: "" or what is wrong. Takes a plan, or
    step types ("HostCompute", "H2D", "D2H", "Compute") with their stream roles ("Prep", "Dev")."""
    from openspyre.runtime.plan import JobPlan

    if isinstance(plan, JobPlan):
        return plan.check_job_plan_step_ordering()
    return _C.check_step_ordering(list(plan), list(roles or ()))


@dataclass(frozen=True)
class ImageInfo:
    """A program image of a device: `plans` share it; `bytes` of program memory while resident."""

    content_hash: str
    bytes: int
    resident: bool
    plans: int
    loads: int
    evictions: int


def images(device: Device = None) -> list[ImageInfo]:
    """The program images that plans of `device` hold."""
    return [ImageInfo(*row) for row in _C.plan_images(device_index(device))]


def evict_image(device: Device = None) -> bool:
    """Evicts the least recently launched image of `device`, as memory pressure does; False when
    none can go. Its plans load it again at their next launch."""
    return _C.evict_image(device_index(device))


def release() -> None:
    """Gives back the plans, and with them the program memory, that eager operations and compiled
    regions of this process keep. What is still needed is planned again when it next runs (from the
    cache: nothing is compiled again). Plans that `prepare` gave belong to their holders and stay.
    """
    _C.native_clear()
    modules = [sys.modules.get(name) for name in _HOLDERS]
    for module in modules:
        if module is not None:
            module.forget_plans()
    gc.collect()  # plans in cycles, of tracebacks for instance


_HOLDERS = ("openspyre.compiler.inductor.regions", "openspyre.compiler.launch")


def __getattr__(name: str) -> Any:
    if name in ("ExpectedArgument", "JobPlan", "PlanCounters"):
        from openspyre.runtime import plan

        return getattr(plan, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
