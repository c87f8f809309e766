"""Writing a SpyreCode directory of Programs. Imports no torch."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openspyre.program.binary import encode, read_header, symbol_words
from openspyre.program.model import Program, Role
from openspyre.runtime.spyrecode_check import largest_bytes
from openspyre.runtime.spyrecode_model import (
    CODE_FILE,
    PROGRAM_BASE,
    VERSION,
    SpyreCodeError,
)
from openspyre.runtime.spyrecode_read import read_spyrecode

IMAGE_FILE = "init_binary.bin"


@dataclass(frozen=True)
class Kernel:
    """One program of a job. `name`: of its step, default the program's. `args[i]`: the launch
    argument that the program's argument i takes, default 0, 1, ...; kernels that name the same
    number share the tensor. `sources`: the operations it was compiled from, for profilers; a
    directory does not keep them."""

    program: Program
    name: str | None = None
    args: tuple[int, ...] | None = None
    sources: tuple[str, ...] = ()


def write_spyrecode(
    directory: str | Path,
    kernels: Sequence[Kernel],
    *,
    costs: Mapping[str | int, int] | None = None,
    correction: bool = True,
) -> Path:
    """Writes a directory that runs the kernels one after the other, and gives its path.

    For each kernel there is a correction that fills its symbol words at launch; with `correction`
    False there is none, and the words keep the sentinel that stops a launch. `costs`: modelled
    durations in ns by the number of a step, or by its kind: "HostCompute", "H2D", "Compute".

    The directory appears whole or not at all: it is written and read back beside its place, then
    renamed. One that is there already is kept if it says the same, else replaced.
    Raises SpyreCodeError for kernels that make no valid SpyreCode, ProgramFormatError for programs
    that cannot be encoded, OSError.
    """
    target = Path(os.path.abspath(directory))
    plan, image = _plan(kernels, dict(costs or {}), correction)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = _beside(target)
    try:
        _write(aside / IMAGE_FILE, image)
        _write(aside / CODE_FILE, (json.dumps(plan, indent=1) + "\n").encode())
        written = read_spyrecode(aside)
        _put_in_place(aside, target, written.content_hash)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _beside(target: Path) -> Path:
    """A new empty directory on the same file system."""
    path = target.parent / f".{target.name[:100]}.{secrets.token_hex(8)}"
    path.mkdir()
    return path


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _put_in_place(aside: Path, target: Path, content_hash: str) -> None:
    """Another process may be writing the same directory: whoever is later finds it there."""
    for _ in range(100):
        try:
            os.rename(aside, target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        try:
            if read_spyrecode(target).content_hash == content_hash:
                return
        except SpyreCodeError:
            pass  # another SpyreCode, half of one, or gone by now
        if not _is_spyrecode(target):
            raise SpyreCodeError(f"{target}: holds other files: write to another place")
        old = _beside(target)
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            os.rename(target, old)
        shutil.rmtree(old, ignore_errors=True)
    raise SpyreCodeError(f"{target}: other processes keep writing it")


def _is_spyrecode(directory: Path) -> bool:
    """Only what this module may have written is ever replaced."""
    try:
        return set(os.listdir(directory)) <= {CODE_FILE, IMAGE_FILE}
    except FileNotFoundError:
        return True


def _plan(
    kernels: Sequence[Kernel], costs: dict[str | int, int], correction: bool
) -> tuple[dict[str, Any], bytes]:
    """The JSON and the images, one after the other."""
    if not kernels:
        raise SpyreCodeError("write_spyrecode: there must be at least one kernel")
    images = bytearray()
    prepare: list[dict[str, Any]] = []
    run: list[dict[str, Any]] = []
    dynamic = 0
    for number, kernel in enumerate(kernels):
        if not isinstance(kernel, Kernel):
            raise TypeError(
                f"write_spyrecode: kernel {number} is a {type(kernel).__name__};"
                " give Kernel(program)"
            )
        program = kernel.program
        pointer = PROGRAM_BASE + len(images)
        image = encode(program)
        images += image
        count = len(program.arguments)
        args = tuple(range(count)) if kernel.args is None else tuple(kernel.args)
        for operand in program.operands:
            if operand.role is Role.SCRATCH:
                size = largest_bytes(f"kernel {number}", program, operand)
                dynamic = max(dynamic, operand.offset + size)
        if correction and symbol_words(program):
            if len(args) != count:
                raise SpyreCodeError(
                    f"kernel {number}: args has {len(args)} numbers, program {program.name!r} "
                    f"takes {count}"
                )
            prepare += _correction(f"correction{number}", pointer, image, program, args)
        run.append(
            {
                "command": "ComputeOnDevice",
                "properties": {
                    "job_bin_ptr": str(pointer),
                    "name": _printable(program.name) if kernel.name is None else kernel.name,
                    "args": [str(arg) for arg in args],
                },
            }
        )
    steps = prepare + run
    _put_costs(steps, costs)
    static = str(len(images))
    allocate = {"static_size": static, "dynamic_size": str(-(-dynamic // 128) * 128)}
    transfer = {"init_bin_file": IMAGE_FILE, "dev_ptr": str(PROGRAM_BASE), "size": static}
    return {
        "version": str(VERSION),
        "JobPreparationPlan": [
            {"command": "Allocate", "properties": allocate},
            {"command": "InitTransfer", "properties": transfer},
        ],
        "JobExecPlan": steps,
    }, bytes(images)


def _printable(name: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in name)


def _put_costs(steps: list[dict[str, Any]], costs: dict[str | int, int]) -> None:
    kinds = {"ComputeOnHost": "HostCompute", "DataTransfer": "H2D", "ComputeOnDevice": "Compute"}
    known = {*range(len(steps)), *kinds.values()}
    for key in costs:
        if key not in known:
            raise SpyreCodeError(
                f"costs: there is no step {key!r}; there are {sorted(map(str, known))}"
            )
    for position, step in enumerate(steps):
        cost = costs.get(position, costs.get(kinds[step["command"]]))  # a number goes first
        if cost is not None:
            step["properties"]["cost_ns"] = str(int(cost))


def _correction(
    handle: str, pointer: int, image: bytes, program: Program, args: tuple[int, ...]
) -> list[dict[str, Any]]:
    """The ComputeOnHost and DataTransfer that fill an image's symbol words: word i by symbol i."""
    header = read_header(image)
    symbols: list[dict[str, str]] = []
    addresses = iter(args)
    dimensions = {symbol.name: symbol for symbol in program.symbols}
    for word in symbol_words(program):
        symbol = {"id": str(len(symbols)), "kind": word.kind}
        if word.kind == "address":
            symbol["arg_index"] = str(next(addresses))
        elif word.kind == "dimension":
            symbol["arg_index"] = str(args[dimensions[word.name].argument])
            symbol["dim"] = str(dimensions[word.name].dim)
        elif word.kind != "dynamic":
            symbol["name"] = word.name
        symbols.append(symbol)
    patches = [
        {"blob_offset": str(8 * n), "width": "8", "symbol": str(n)} for n in range(len(symbols))
    ]
    size = str(header.body_offset - header.words_offset)  # whole sticks
    host = {
        "ohandle": handle,
        "size": size,
        "ishape": [str(len(symbols))],
        "ihandle": "",
        "hcm": {"symbols": symbols, "patches": patches, "checksum": str(header.checksum)},
    }
    transfer = {
        "dirn": "false",
        "host_handle": handle,
        "dev_ptr": str(pointer + header.words_offset),
        "size": size,
    }
    return [
        {"command": "ComputeOnHost", "properties": host},
        {"command": "DataTransfer", "properties": transfer},
    ]
