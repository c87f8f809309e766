"""Recordings of launches: what was launched on which bytes, so that it can be run again.

A recording is a directory:

    recording.json      version, numerics, buffers, entries
    plans/<hash>/       the SpyreCode directories
    payloads/<sha256>   contents of buffers, elements in linear order in the card's format

Entries are `write` (a buffer got contents from outside: a copy, an eager operation) and `launch`
(plan, tensors as views of buffers, symbols, stream, the hashes of what it wrote). Recording waits
for the card around every launch: it is for finding out, not for speed. Pads of sticks are neither
recorded nor compared.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from openspyre.formats import Format
from openspyre.layout import SpyreTensorLayout

VERSION = 1
FILE = "recording.json"


class RecordingError(RuntimeError):
    """A recording that cannot be read or run: names the file and the entry."""


@dataclass(frozen=True)
class Buffer:
    """A storage: dtype, and its layout's fields."""

    dtype: str
    host_size: tuple[int, ...]
    device_size: tuple[int, ...]
    stride_map: tuple[int, ...]
    format: str

    @property
    def layout(self) -> SpyreTensorLayout:
        return SpyreTensorLayout(
            self.host_size, self.device_size, self.stride_map, Format[self.format]
        )


@dataclass(frozen=True)
class View:
    """A tensor of a launch: a strided view of buffer number `buffer`, in elements."""

    buffer: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Write:
    buffer: int
    payload: str


@dataclass(frozen=True)
class Launch:
    plan: str
    stream: int
    tensors: tuple[View, ...]
    symbols: dict[str, int | float]
    tiled: bool
    reads: tuple[int, ...]  # buffers
    writes: tuple[int, ...]
    outputs: dict[str, str] = field(default_factory=dict)  # buffer number -> hash after the launch


Entry = Write | Launch


@dataclass
class Recording:
    """A recording in memory; `directory` holds its plans and payloads."""

    directory: Path
    numerics: dict[str, Any]
    buffers: list[Buffer] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    @property
    def launches(self) -> int:
        return sum(isinstance(entry, Launch) for entry in self.entries)

    def save(self) -> None:
        document = {
            "version": VERSION,
            "numerics": self.numerics,
            "buffers": [asdict(buffer) for buffer in self.buffers],
            "entries": [
                {"op": type(entry).__name__.lower(), **asdict(entry)} for entry in self.entries
            ],
        }
        aside = self.directory / (FILE + ".new")
        aside.write_text(json.dumps(document, indent=1))
        aside.replace(self.directory / FILE)

    def payload(self, digest: str) -> bytes:
        """Contents by hash. Raises RecordingError when they are gone or changed."""
        file = self.directory / "payloads" / digest
        try:
            data = file.read_bytes()
        except OSError as error:
            raise RecordingError(f"{file}: {error}") from None
        if hashlib.sha256(data).hexdigest() != digest:
            raise RecordingError(f"{file}: its contents are not what its name says")
        return data


def load_recording(directory: str | Path) -> Recording:
    """Reads a recording. Raises RecordingError naming the file and what is wrong."""
    path = Path(directory)
    file = path / FILE
    try:
        document = json.loads(file.read_text())
    except OSError as error:
        raise RecordingError(f"{file}: {error.strerror}; is this a recording?") from None
    except ValueError as error:
        raise RecordingError(f"{file}: {error}") from None
    version = document.get("version") if isinstance(document, dict) else None
    if version != VERSION:
        raise RecordingError(f"{file}: version {version}, this openspyre reads {VERSION}")
    try:
        buffers = [
            Buffer(
                str(b["dtype"]),
                tuple(map(int, b["host_size"])),
                tuple(map(int, b["device_size"])),
                tuple(map(int, b["stride_map"])),
                str(b["format"]),
            )
            for b in document["buffers"]
        ]
        entries = [_entry(e) for e in document["entries"]]
        recording = Recording(path, dict(document["numerics"]), buffers, entries)
    except (KeyError, TypeError, ValueError) as error:
        raise RecordingError(f"{file}: not a recording: {error!r}") from None
    for number, entry in enumerate(entries):
        named = [entry.buffer] if isinstance(entry, Write) else [t.buffer for t in entry.tensors]
        if any(not 0 <= buffer < len(buffers) for buffer in named):
            raise RecordingError(f"{file}: entry {number} names a buffer that is not there")
    return recording


def _entry(data: Mapping[str, Any]) -> Entry:
    if data["op"] == "write":
        return Write(int(data["buffer"]), str(data["payload"]))
    return Launch(
        plan=str(data["plan"]),
        stream=int(data["stream"]),
        tensors=tuple(
            View(int(v["buffer"]), tuple(v["size"]), tuple(v["stride"]), int(v["offset"]))
            for v in data["tensors"]
        ),
        symbols=dict(data["symbols"]),
        tiled=bool(data["tiled"]),
        reads=tuple(map(int, data["reads"])),
        writes=tuple(map(int, data["writes"])),
        outputs=dict(data["outputs"]),
    )


# --- contents of buffers

_PLACES: dict[SpyreTensorLayout, np.ndarray] = {}


def _places(layout: SpyreTensorLayout) -> np.ndarray:
    """Device position (in elements) of every linear element."""
    known = _PLACES.get(layout)
    if known is None:
        known = np.empty(layout.numel, dtype=np.int64)
        for loop in layout.dci():
            device, host = np.array([loop.device_offset]), np.array([loop.host_offset])
            for size, card, other in zip(
                loop.sizes, loop.device_strides, loop.host_strides, strict=True
            ):
                steps = np.arange(size)
                device = (device[:, None] + steps * card).ravel()
                host = (host[:, None] + steps * other).ravel()
            known[host] = device
        if len(_PLACES) > 64:
            _PLACES.clear()
        _PLACES[layout] = known
    return known


def _codes(raw: torch.Tensor, layout: SpyreTensorLayout) -> np.ndarray:
    """The block's bytes as one row per device element."""
    width = layout.format.bytes
    return raw.numpy()[: layout.nbytes].reshape(-1, width)


def contents(tensor: torch.Tensor, layout: SpyreTensorLayout) -> bytes:
    """The elements of a storage in linear order, in the card's format. Waits for the stream."""
    raw = torch.ops.openspyre._raw_read(tensor)
    return _codes(raw, layout)[_places(layout)].tobytes()


def restore(tensor: torch.Tensor, layout: SpyreTensorLayout, data: bytes) -> None:
    """Writes what `contents` gave; pads become zero."""
    width = layout.format.bytes
    raw = torch.zeros(layout.nbytes, dtype=torch.uint8)
    elements = np.frombuffer(data, dtype=np.uint8).reshape(-1, width)
    if len(elements) != layout.numel:
        raise RecordingError(
            f"a payload of {len(elements)} elements, the buffer has {layout.numel}"
        )
    _codes(raw, layout)[_places(layout)] = elements
    torch.ops.openspyre._raw_write(tensor, raw)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the whole storage, so that its layout and bytes are at hand."""
    numel = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((numel,), (1,), 0)


# --- running again


@dataclass(frozen=True)
class Difference:
    """A launch whose result is not the recorded one."""

    entry: int
    plan: str
    buffer: int

    def __str__(self) -> str:
        return f"entry {self.entry}: plan {self.plan} left other bytes in buffer {self.buffer}"


@dataclass(frozen=True)
class ReplayReport:
    """What a replay found. `outputs`: hash of every buffer at the end."""

    launches: int
    order: tuple[int, ...]
    differences: tuple[Difference, ...]
    outputs: dict[int, str]


def legal_order(entries: Sequence[Entry], seed: int | None) -> list[int]:
    """An order that keeps every dependency: entries of one stream in turn, and whoever reads or
    writes a buffer after its last writer (and a writer after its last readers). `seed` None: as
    recorded; else drawn among all."""
    if seed is None:
        return list(range(len(entries)))
    after: list[set[int]] = []
    last_write: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    streams: dict[int, int] = {}
    for number, entry in enumerate(entries):
        needs: set[int] = set()
        reads = () if isinstance(entry, Write) else entry.reads
        writes = (entry.buffer,) if isinstance(entry, Write) else entry.writes
        for buffer in (*reads, *writes):
            if buffer in last_write:
                needs.add(last_write[buffer])
        for buffer in writes:
            needs.update(readers.pop(buffer, ()))
            last_write[buffer] = number
        for buffer in reads:
            readers.setdefault(buffer, []).append(number)
        if isinstance(entry, Launch):
            if entry.stream in streams:
                needs.add(streams[entry.stream])
            streams[entry.stream] = number
        needs.discard(number)
        after.append(needs)
    rng = random.Random(seed)
    order: list[int] = []
    ready = [i for i, needs in enumerate(after) if not needs]
    followers: dict[int, list[int]] = {}
    missing = [len(needs) for needs in after]
    for number, needs in enumerate(after):
        for before in needs:
            followers.setdefault(before, []).append(number)
    while ready:
        number = ready.pop(rng.randrange(len(ready)))
        order.append(number)
        for follower in followers.get(number, ()):
            missing[follower] -= 1
            if missing[follower] == 0:
                ready.append(follower)
    return order


def replay(recording: Recording, *, seed: int | None = None, check: bool = True) -> ReplayReport:
    """Runs a recording on the current device and compares what every launch leaves.

    `seed`: another legal order (see `legal_order`). `check` False compares at the end only, with
    launches on their own streams and nothing waited for in between. Raises RecordingError for
    other numerics than the recorded ones, and what launches raise.
    """
    from openspyre.device import numerics
    from openspyre.device.plans import launch, prepare

    now = describe_numerics(numerics.get())
    if now != recording.numerics:
        raise RecordingError(f"recorded with {recording.numerics}, this process has {now}")
    plans = {}
    for name in sorted({e.plan for e in recording.entries if isinstance(e, Launch)}):
        kept = recording.directory / "plans" / name
        plans[name] = prepare(kept)
        if plans[name].content_hash != name:
            raise RecordingError(f"{kept}: it is another plan than the recorded one")
    layouts = [buffer.layout for buffer in recording.buffers]
    storages = [_storage(buffer) for buffer in recording.buffers]
    order = legal_order(recording.entries, seed)
    differences: list[Difference] = []
    streams: dict[int, torch.Stream] = {}
    home = torch.accelerator.current_stream()
    final: dict[int, tuple[int, str]] = {}
    for number in order:
        entry = recording.entries[number]
        if isinstance(entry, Write):
            torch.accelerator.synchronize()
            restore(storages[entry.buffer], layouts[entry.buffer], recording.payload(entry.payload))
            final[entry.buffer] = (number, entry.payload)
            continue
        stream = home
        if not check:
            stream = streams.setdefault(
                entry.stream, home if entry.stream == home.stream_id else torch.Stream("spyre")
            )
            # Buffers say what must come first; waiting for every other stream is the plain way.
            for other in streams.values():
                if other is not stream:
                    stream.wait_stream(other)
        tensors = [storages[v.buffer].as_strided(v.size, v.stride, v.offset) for v in entry.tensors]
        launch(
            plans[entry.plan],
            tensors,
            stream,
            symbols=entry.symbols or None,
            allow_tiled_launch=entry.tiled,
        )
        for buffer, digest in entry.outputs.items():
            final[int(buffer)] = (number, digest)
            if check:
                torch.accelerator.synchronize()
                if hash_of(storages[int(buffer)], layouts[int(buffer)]) != digest:
                    differences.append(Difference(number, entry.plan, int(buffer)))
    torch.accelerator.synchronize()
    outputs = {b: hash_of(storages[b], layouts[b]) for b in range(len(storages))}
    if not check:
        for place, (number, wanted) in sorted(final.items()):
            if outputs[place] != wanted:
                found = recording.entries[number]
                name = found.plan if isinstance(found, Launch) else "write"
                differences.append(Difference(number, name, place))
    return ReplayReport(recording.launches, tuple(order), tuple(differences), outputs)


def _storage(buffer: Buffer) -> torch.Tensor:
    made: torch.Tensor = torch.ops.openspyre._empty_with_layout(
        [buffer.layout.numel],
        getattr(torch, buffer.dtype),
        torch.device("spyre", torch.accelerator.current_device_index()),
        list(buffer.host_size),
        list(buffer.device_size),
        list(buffer.stride_map),
    )
    return made


def hash_of(tensor: torch.Tensor, layout: SpyreTensorLayout) -> str:
    """SHA-256 of a storage's elements."""
    return hashlib.sha256(contents(tensor, layout)).hexdigest()


def describe_numerics(numerics: Any) -> dict[str, Any]:
    """Numerics as plain data."""
    return {str(key): value for key, value in asdict(numerics).items()}
