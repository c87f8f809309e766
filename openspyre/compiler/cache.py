"""Compiled regions, kept: in memory for this process, on disk for the next one.

A region's key says everything that its programs follow from: the version of the compiler (a hash of
its sources and of the timing constants), the graph with the places of its arguments, the options.
Names of labels play no part. On disk every entry is one file below
`OPENSPYRE_CACHE_DIR`/<version>/<kind>, written beside its place and renamed, with a checksum: any
number of processes may share the directory, and what is damaged counts as not there.

Imports no torch. It may read and write below the cache directory and nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import secrets
import shutil
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from openspyre import env
from openspyre.compiler.compile import CopyStep, ProgramStep, Region, Step, compile_graph
from openspyre.compiler.errors import CompileError
from openspyre.compiler.graph import (
    Access,
    Affine,
    Alias,
    Graph,
    Indirect,
    Op,
    OpKind,
    Place,
    Role,
    Symbol,
    Tensor,
)
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.sizes import Size, size_of
from openspyre.compiler.tiles import Kernel
from openspyre.formats import Mode
from openspyre.program.binary import ProgramFormatError, decode, encode
from openspyre.program.expr import Binary, Const, Expr, Var, binary, expr
from openspyre.program.model import Body

_ROOT = Path(__file__).resolve().parents[1]
_SOURCES = ("compiler", "program", "timing", "formats.py", "layout.py", "card.py")
_MAGIC = b"OSPCACHE"
_HEAD = struct.Struct("<8sQ32s")  # magic, length of what follows, its SHA-256
MEMORY_ENTRIES = 1024
"""Regions that a process keeps; the least recently used go first."""


# --- keys


@functools.cache
def compiler_version() -> str:
    """16 hex digits: equal when the compiler's sources and the timing constants are."""
    from openspyre.timing.table import VERSION

    digest = hashlib.sha256(f"timing {VERSION}\n".encode())
    for name in _SOURCES:
        path = _ROOT / name
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        for file in files:
            digest.update(file.relative_to(_ROOT).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def graph_key(graph: Graph, options: CompileOptions) -> str:
    """The key of what `compile_graph(graph, options)` gives."""
    digest = hashlib.sha256(compiler_version().encode())
    digest.update(repr(options).encode())
    digest.update(canonical(graph).encode())
    for tensor in graph.tensors:
        if tensor.data is not None:
            digest.update(repr((tensor.data.dtype.str, tensor.data.shape)).encode())
            digest.update(np.ascontiguousarray(tensor.data).tobytes())
    return digest.hexdigest()[:32]


def canonical(graph: Graph) -> str:
    """The graph as text, with labels named by their order; without hints and source lines."""
    lines = [f"{graph.mode.value} {graph.exclusive}"]
    lines += [f"{s.name} {s.kind} {s.minimum} {s.maximum}" for s in graph.symbols.values()]
    number = {id(tensor): n for n, tensor in enumerate(graph.tensors)}
    lines += [str(tensor) for tensor in graph.tensors]
    for op in graph.ops:
        names = {label: f"l{n}" for n, label in enumerate(op.labels)}
        parts = [
            op.kind.value, op.name, ",".join(f"{n}:{op.labels[k]}" for k, n in names.items()),
            ";".join(_access_text(a, number, names) for a in op.inputs),
            ";".join(_access_text(a, number, names) for a in op.outputs),
            "" if op.body is None else _body_text(op.body, names),
            op.combine.value if op.combine else "", ",".join(names[r] for r in op.reduced),
            names[op.label] if op.label else "", f"{op.limit} {op.descending} {op.add}",
        ]  # fmt: skip
        lines.append(" | ".join(parts))
    return "\n".join(lines)


def _access_text(access: Access, number: Mapping[int, int], names: Mapping[str, str]) -> str:
    index = []
    for i in access.index:
        if isinstance(i, Indirect):
            index.append(f"in{i.input}<{i.limit}")
        else:
            terms = "+".join(f"{c}*{names[label]}" for label, c in i.terms)
            index.append(f"{terms}+{i.offset}")
    return f"t{number[id(access.tensor)]}[{','.join(index)}]"


def _body_text(body: Body, names: Mapping[str, str]) -> str:
    nodes = []
    for node in body.nodes:
        value = node.immediate
        if isinstance(value, str):
            value = names.get(value, value)
        nodes.append(f"{node.op}.{node.type}{node.args}{value!r}")
    return f"{nodes}{body.results}"


# --- compiling through the cache

_memory: OrderedDict[str, Region] = OrderedDict()
_lock = threading.Lock()
_counts = {"memory": 0, "disk": 0, "compiled": 0}


def compiled(graph: Graph, options: CompileOptions) -> tuple[str, Region]:
    """The key of `graph` and its region, from memory, from disk, or compiled now (then the graph is
    used up). Tensors of the region bear the names of the graph's. The `source` of its ops is the
    number of an op of `graph`: another program's lines may stand behind the same key. Raises as
    `compile_graph`."""
    key = graph_key(graph, options)
    with _lock:
        region = _memory.get(key)
        if region is not None:
            _memory.move_to_end(key)
            _counts["memory"] += 1
            return key, region
    region = load_region(key)
    if region is not None:
        _counts["disk"] += 1
    else:
        for number, op in enumerate(graph.ops):
            op.source = str(number)
        region = compile_graph(graph, options)
        _counts["compiled"] += 1
        store_region(key, region)
    if env.read("OPENSPYRE_VERIFY", os.environ):
        _verify(region)
    with _lock:
        _memory[key] = region
        while len(_memory) > MEMORY_ENTRIES:
            _memory.popitem(last=False)
    return key, region


def _verify(region: Region) -> None:
    """Raises CompileError for a program that breaks a rule."""
    from openspyre.program.verify import VerifyError, verify

    for step in region.steps:
        if isinstance(step, ProgramStep):
            try:
                verify(step.program)
            except VerifyError as error:
                raise CompileError(f"{step.program.name}: {error}") from error


def counts() -> dict[str, int]:
    """How often `compiled` found a region in "memory", on "disk", or had it "compiled"."""
    return dict(_counts)


def forget() -> None:
    """Empties the memory of this process; the disk stays."""
    with _lock:
        _memory.clear()


# --- the files


def directory() -> Path | None:
    """Where entries of this compiler lie; None when the disk cache is off."""
    root = root_directory()
    return None if root is None else root / compiler_version()


def root_directory() -> Path | None:
    """OPENSPYRE_CACHE_DIR; None when it is "off"."""
    text: str = env.read("OPENSPYRE_CACHE_DIR", os.environ)
    return None if text.lower() == "off" else Path(text).expanduser()


def store_bytes(kind: str, key: str, data: bytes) -> None:
    """Writes an entry; a full or read-only disk is no error, the entry is then not there."""
    place = directory()
    if place is None:
        return
    target = place / kind / key[:2] / key
    aside = target.with_name(f".{key}.{secrets.token_hex(6)}")
    head = _HEAD.pack(_MAGIC, len(data), hashlib.sha256(data).digest())
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(head + data)
        os.replace(aside, target)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


def load_bytes(kind: str, key: str) -> bytes | None:
    """An entry, or None when it is not there or damaged. Its time of use is noted for `prune`."""
    place = directory()
    if place is None:
        return None
    target = place / kind / key[:2] / key
    data = _read(target)
    if data is not None:
        with contextlib.suppress(OSError):  # of another user, or gone by now
            os.utime(target)
    return data


def store_text(kind: str, key: str, text: str) -> None:
    """`store_bytes` of a text."""
    store_bytes(kind, key, text.encode())


def load_text(kind: str, key: str) -> str | None:
    """`load_bytes` of a text."""
    data = load_bytes(kind, key)
    return None if data is None else data.decode()


def _read(path: Path) -> bytes | None:
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    if len(raw) < _HEAD.size:
        return None
    magic, length, digest = _HEAD.unpack_from(raw)
    data = raw[_HEAD.size :]
    if magic != _MAGIC or length != len(data) or hashlib.sha256(data).digest() != digest:
        return None
    return data


# --- regions as bytes


def store_region(key: str, region: Region) -> None:
    """Writes a region to disk."""
    if directory() is not None:
        store_bytes("programs", key, region_to_bytes(region))


def load_region(key: str) -> Region | None:
    """A region from disk, or None."""
    data = load_bytes("programs", key)
    if data is None:
        return None
    try:
        return region_from_bytes(data)
    except (ProgramFormatError, ValueError, KeyError, IndexError, TypeError, zlib.error):
        return None  # whole, but not what this version writes


def region_to_bytes(region: Region) -> bytes:
    """A region without the ops of its graph: what a launch needs, and what listings say."""
    blobs: list[bytes] = []

    def blob(data: bytes) -> int:
        blobs.append(zlib.compress(data, 1))
        return len(blobs) - 1

    graph = region.graph
    numbers = {id(tensor): n for n, tensor in enumerate(graph.tensors)}
    steps: list[dict[str, Any]] = []
    for step in region.steps:
        if isinstance(step, ProgramStep):
            kernel = step.kernel
            steps.append(
                {
                    "program": blob(encode(step.program)),
                    "arguments": [numbers[id(t)] for t in step.arguments],
                    "kernel": {
                        "kind": kernel.kind, "names": [op.name for op in kernel.ops],
                        "sources": [op.source for op in kernel.ops],
                        "written": sorted(kernel.written), "splits": kernel.splits,
                        "tile": kernel.tile, "cores": kernel.cores, "lx_bytes": kernel.lx_bytes,
                        "modelled_ns": kernel.modelled_ns,
                    },
                }
            )  # fmt: skip
        else:
            steps.append(
                {
                    "labels": {k: _size_out(v) for k, v in step.op.labels.items()},
                    "source": _access_out(step.source, numbers),
                    "target": _access_out(step.target, numbers),
                    "name": step.op.name,
                    "origin": step.op.source,
                }
            )
    tensors = []
    for tensor in graph.tensors:
        row: dict[str, Any] = {
            "name": tensor.name, "shape": [_size_out(s) for s in tensor.shape],
            "dtype": tensor.dtype, "role": tensor.role.value,
        }  # fmt: skip
        if tensor.place is not None:
            row["strides"] = [_size_out(s) for s in tensor.place.strides]
            row["stick"] = tensor.place.stick
        if tensor.data is not None:
            data = np.ascontiguousarray(tensor.data)
            row["data"] = [data.dtype.str, list(tensor.data.shape), blob(data.tobytes())]
        if tensor.alias is not None:
            row["alias"] = [numbers[id(tensor.alias.of)], _size_out(tensor.alias.offset)]
        tensors.append(row)
    head = json.dumps(
        {
            "name": graph.name, "mode": graph.mode.value, "tensors": tensors, "steps": steps,
            "symbols": [asdict(s) for s in graph.symbols.values()],
            "blobs": [len(b) for b in blobs],
        }
    ).encode()  # fmt: skip
    return b"".join([struct.pack("<Q", len(head)), head, *blobs])


def region_from_bytes(data: bytes) -> Region:
    """The inverse of `region_to_bytes`; the graph has no ops but those of its copies."""
    (length,) = struct.unpack_from("<Q", data)
    head = json.loads(data[8 : 8 + length])
    blobs: list[bytes] = []
    at = 8 + length
    for size in head["blobs"]:
        blobs.append(zlib.decompress(data[at : at + size]))
        at += size
    graph = Graph(head["name"], Mode(head["mode"]))
    for row in head["tensors"]:
        place = None
        if "stick" in row:
            place = Place(tuple(_size_in(s) for s in row["strides"]), row["stick"])
        values = None
        if "data" in row:
            dtype, shape, number = row["data"]
            values = np.frombuffer(blobs[number], np.dtype(dtype)).reshape(shape)
        shape = tuple(_size_in(s) for s in row["shape"])
        graph.tensors.append(
            Tensor(row["name"], shape, row["dtype"], Role(row["role"]), place, values)
        )
    for tensor, row in zip(graph.tensors, head["tensors"], strict=True):
        if "alias" in row:
            number, offset = row["alias"]
            tensor.alias = Alias(graph.tensors[number], (), _size_in(offset))
    graph.symbols = {s["name"]: Symbol(**s) for s in head["symbols"]}
    steps: list[Step] = []
    for row in head["steps"]:
        if "program" in row:
            arguments = [graph.tensors[n] for n in row["arguments"]]
            facts = dict(row["kernel"])
            origins = zip(facts.pop("names"), facts.pop("sources"), strict=True)
            facts["written"] = frozenset(facts["written"])
            kernel = Kernel(
                ops=[Op(OpKind.MAP, name, {}, [], [], source=source) for name, source in origins],
                arguments=arguments, **facts,
            )  # fmt: skip
            steps.append(ProgramStep(decode(blobs[row["program"]]), arguments, kernel))
            continue
        source = _access_in(row["source"], graph.tensors)
        target = _access_in(row["target"], graph.tensors)
        labels = {k: _size_in(v) for k, v in row["labels"].items()}
        op = Op(OpKind.COPY, row["name"], labels, [source], [target], source=row["origin"])
        graph.ops.append(op)
        steps.append(CopyStep(source, target, op))
    return Region(graph, steps)


def _size_out(value: Size | Expr) -> Any:
    value = size_of(value)
    if isinstance(value, int):
        return value
    if isinstance(value, Const):
        return value.value
    if isinstance(value, Var):
        return value.name
    assert isinstance(value, Binary)
    return [value.op, _size_out(value.left), _size_out(value.right)]


def _size_in(value: Any) -> Size:
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return Var(value)
    op, left, right = value
    return size_of(binary(op, expr(_size_in(left)), expr(_size_in(right))))


def _access_out(access: Access, numbers: Mapping[int, int]) -> Any:
    index = []
    for i in access.index:
        assert isinstance(i, Affine), "a copy by the DMA engine is affine"
        index.append([[[label, _size_out(c)] for label, c in i.terms], _size_out(i.offset)])
    return [numbers[id(access.tensor)], index]


def _access_in(row: Any, tensors: list[Tensor]) -> Access:
    number, index = row
    return Access(
        tensors[number],
        tuple(
            Affine(tuple((label, _size_in(c)) for label, c in terms), _size_in(offset))
            for terms, offset in index
        ),
    )


# --- looking after the directory


@dataclass(frozen=True)
class Entry:
    """A file of the cache. `current`: made by this version of the compiler."""

    version: str
    kind: str
    key: str
    path: Path
    bytes: int
    used: float  # seconds since the epoch
    current: bool


def ls() -> list[Entry]:
    """All entries, of other versions of the compiler, too; the most recently used first."""
    return sorted(_entries(), key=lambda e: (-e.used, e.key))


def _entries() -> Iterator[Entry]:
    root = root_directory()
    if root is None or not root.is_dir():
        return
    for path in root.glob("*/*/*/*"):
        version, kind, _, key = path.relative_to(root).parts
        if key.startswith(".") or not _is_version(version):
            continue
        try:
            facts = path.stat()
        except OSError:
            continue  # gone by now
        yield Entry(
            version, kind, key, path, facts.st_size, facts.st_mtime, version == compiler_version()
        )


def _is_version(name: str) -> bool:
    return len(name) == 16 and all(c in "0123456789abcdef" for c in name)


def verify() -> list[Entry]:
    """The entries that are damaged: reading them is a miss."""
    bad = []
    for entry in _entries():
        data = _read(entry.path)
        good = data is not None
        if data is not None and entry.kind == "programs" and entry.current:
            try:
                region_from_bytes(data)
            except Exception:  # whatever it is, it is no region
                good = False
        if not good:
            bad.append(entry)
    return bad


def prune(most_bytes: int = 0, *, other_versions: bool = True) -> int:
    """Removes entries of other versions, then the least recently used until `most_bytes` are left.
    Gives the bytes removed."""
    removed = 0
    kept: list[Entry] = []
    for entry in ls():
        if other_versions and not entry.current:
            removed += _remove(entry.path)
        else:
            kept.append(entry)
    total = sum(entry.bytes for entry in kept)
    for entry in reversed(kept):
        if total <= most_bytes:
            break
        total -= entry.bytes
        removed += _remove(entry.path)
    return removed


def clear() -> int:
    """Removes everything this module wrote, of all versions, and empties the memory. Gives the
    bytes removed."""
    forget()
    removed = sum(entry.bytes for entry in _entries())
    root = root_directory()
    if root is not None and root.is_dir():
        for child in root.iterdir():
            if child.is_dir() and _is_version(child.name):
                shutil.rmtree(child, ignore_errors=True)
    return removed


def _remove(path: Path) -> int:
    try:
        size = path.stat().st_size
        path.unlink()
    except OSError:
        return 0
    return size
