"""`torch.spyre.record`: keeps launches in a directory, so that they can be replayed elsewhere.

See `openspyre.runtime.recording` for the format and for `replay`. Recording waits for the card
before and after every launch.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

import torch

from openspyre.device import numerics, plans
from openspyre.device.layouts import is_raw, layout_of
from openspyre.runtime.recording import (
    Buffer,
    Launch,
    Recording,
    RecordingError,
    View,
    Write,
    contents,
    describe_numerics,
    whole,
)
from openspyre.runtime.spyrecode_copy import copy_spyrecode

if TYPE_CHECKING:
    from openspyre.runtime.plan import JobPlan


@contextmanager
def recording_to(directory: str | Path) -> Iterator[Recording]:
    """`torch.spyre.record`."""
    if plans.recorder is not None:
        raise RecordingError(f"already recording to {plans.recorder.recording.directory}")
    path = Path(directory)
    try:
        if path.exists() and any(path.iterdir()):
            raise RecordingError(f"{path} is not empty: a recording takes a new directory")
        (path / "payloads").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordingError(f"{path}: {error}") from None
    recorder = plans.recorder = Recorder(Recording(path, describe_numerics(numerics.get())))
    try:
        yield recorder.recording
    finally:
        plans.recorder = None
        recorder.recording.save()


def _plain(value: int | float) -> int | float:
    """A number that JSON can hold, read as a launch reads it: symbols may be numpy's numbers."""
    return operator.index(value) if hasattr(value, "__index__") else float(value)


class Recorder:
    """Turns launches into entries of a recording."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._lock = RLock()  # launches of several threads are recorded one after the other
        self._numbers: dict[tuple[object, ...], int] = {}
        self._known: dict[int, str] = {}  # hash of a buffer after its last entry

    def launch(
        self,
        plan: JobPlan,
        tensors: Sequence[torch.Tensor],
        stream: torch.Stream | None,
        symbols: Mapping[str, int | float] | None,
        tiled: bool,
    ) -> None:
        """Launches, and keeps what it was and did. Raises what the launch raises; then nothing is
        kept of it but its plan and the contents that were found before."""
        tensors = list(tensors)
        with self._lock:
            torch.accelerator.synchronize(plan.device_index)
            roles = [argument.role for argument in plan.expected_arguments]
            views = []
            for tensor in tensors:
                if not isinstance(tensor, torch.Tensor) or tensor.device.type != "spyre":
                    break  # the launch itself says best what is wrong
                views.append(self._view(tensor))
            used = stream or torch.accelerator.current_stream(plan.device_index)
            self._keep_plan(plan)
            plans.submit(plan, tensors, stream, symbols, tiled)
            torch.accelerator.synchronize(plan.device_index)
            reads, writes = set(), {}
            for view, tensor, role in zip(views, tensors, roles, strict=True):
                # What a plan does not cover of a buffer stays as it was: that is reading it too.
                reads.add(view.buffer)
                if role != "in":
                    writes[view.buffer] = self._digest(view.buffer, tensor, keep=False)
            self.recording.entries.append(
                Launch(
                    plan=plan.content_hash,
                    stream=used.stream_id,
                    tensors=tuple(views),
                    symbols={str(name): _plain(value) for name, value in (symbols or {}).items()},
                    tiled=tiled,
                    reads=tuple(sorted(reads)),
                    writes=tuple(sorted(writes)),
                    outputs={str(buffer): digest for buffer, digest in sorted(writes.items())},
                )
            )
            self._known.update(writes)

    def _view(self, tensor: torch.Tensor) -> View:
        if is_raw(tensor):
            raise RecordingError(
                "a tensor of the launch holds raw bytes (no typed use yet): touch it first, for"
                " example with .copy_(...)"
            )
        layout = layout_of(tensor)
        block = torch.ops.openspyre._block_of(tensor)
        dtype = str(tensor.dtype).removeprefix("torch.")
        key = (block[0], block[1], block[2], block[5], dtype, layout)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.recording.buffers)
            self.recording.buffers.append(
                Buffer(
                    dtype,
                    layout.host_size,
                    layout.device_size,
                    layout.stride_map,
                    layout.format.name,
                )
            )
        digest = self._digest(number, tensor, keep=True)
        if self._known.get(number) != digest:
            self.recording.entries.append(Write(number, digest))
            self._known[number] = digest
        size, stride = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
        return View(number, size, stride, int(tensor.storage_offset()))

    def _digest(self, number: int, tensor: torch.Tensor, *, keep: bool) -> str:
        """The hash of the whole buffer; with `keep`, its contents are kept if they are new."""
        data = contents(whole(tensor), self.recording.buffers[number].layout)
        digest = hashlib.sha256(data).hexdigest()
        if keep and self._known.get(number) != digest:
            file = self.recording.directory / "payloads" / digest
            if not file.exists():
                file.write_bytes(data)
        return digest

    def _keep_plan(self, plan: JobPlan) -> None:
        """What was prepared, not what its directory says by now."""
        target = self.recording.directory / "plans" / plan.content_hash
        if not target.exists():
            copy_spyrecode(plan.code, target)
