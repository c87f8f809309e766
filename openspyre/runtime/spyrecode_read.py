"""Reading a SpyreCode directory: from files to checked data. Imports no torch."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from openspyre.card import SEGMENT_BYTES
from openspyre.runtime import spyrecode_check as check
from openspyre.runtime.spyrecode_json import MAX_TEXT, Object, check_text, fail, parse, read_file
from openspyre.runtime.spyrecode_model import (
    CODE_FILE,
    MAX_ARGUMENTS,
    SYMBOL_KINDS,
    VERSION,
    Allocate,
    ComputeOnDevice,
    ComputeOnHost,
    Correction,
    CorrectionSymbol,
    DataTransfer,
    InitTransfer,
    Patch,
    SpyreCode,
    SpyreCodeError,
    Step,
)

INNER_DIRECTORY = "spyreCodeDir"  # where upstream keeps the two files inside a kernel directory
MAX_COST_NS = 10**15  # eleven days: sums of many stay far inside 64 bits
_FROM_DEVICE = {"false": False, "true": True, "0": False, "1": True}


def read_spyrecode(directory: str | Path, *, verify: bool = True) -> SpyreCode:
    """Everything that a directory says, after every check that needs no device.

    `verify` False leaves out the rules that guard against wrong results only (every symbol word
    corrected once and in order, programs that agree on their arguments); what could reach outside
    of its memory is always checked. Raises SpyreCodeError, which is a RuntimeError.
    """
    root = Path(directory)
    try:
        if not root.is_dir():
            raise SpyreCodeError(f"{directory}: there is no such directory")
        if not (root / CODE_FILE).exists() and (root / INNER_DIRECTORY / CODE_FILE).exists():
            root = root / INNER_DIRECTORY
    except OSError as error:  # no permission, a name too long
        why = os.strerror(error.errno) if error.errno else str(error)
        raise SpyreCodeError(f"{str(directory)[:MAX_TEXT]}: cannot be looked at: {why}") from None
    try:
        return _read(root, verify)
    except SpyreCodeError as error:
        message = str(error)
        if message.startswith(str(root)):
            raise
        raise SpyreCodeError(f"{root}/{message}") from None


def _read(root: Path, verify: bool) -> SpyreCode:
    top = parse(read_file(root, CODE_FILE, CODE_FILE))
    version = top.optional_unsigned("version", VERSION)
    assert version is not None
    if version > VERSION:
        fail("version", f"{version} is too new: this OpenSpyre reads {VERSION}, use a newer one")
    if version < 1:
        fail("version", f"{version} is no version")
    allocate, inits = _preparation(top, root)
    steps = [_step(entry) for entry in top.entries(1, "JobExecPlan", "JobExecutionPlan")]
    top.end()
    programs = check.programs(steps, inits, allocate)
    check.plan(steps, inits, allocate, programs)
    if verify:
        check.results(steps, programs)
    return SpyreCode(
        root,
        allocate,
        inits,
        tuple(steps),
        {pointer: image.program for pointer, image in programs.items()},
        _content_hash(allocate, inits, steps),
    )


def _content_hash(allocate: Allocate, inits: tuple[InitTransfer, ...], steps: list[Step]) -> str:
    """Of what the directory means: spelling, file names and own properties play no part."""
    parts: list[Any] = [VERSION, asdict(allocate)]
    parts += [[i.dev_ptr, i.size, hashlib.sha256(i.data).hexdigest()] for i in inits]
    parts += [[type(step).__name__, asdict(step)] for step in steps]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


# --- JobPreparationPlan


def _preparation(top: Object, root: Path) -> tuple[Allocate, tuple[InitTransfer, ...]]:
    allocate: Allocate | None = None
    inits: list[InitTransfer] = []
    # At least an Allocate and one InitTransfer.
    for position, entry in enumerate(top.entries(2, "JobPreparationPlan")):
        wanted = "InitTransfer" if position else "Allocate"
        command = entry.choice((wanted,), "command")
        properties = entry.object("properties")
        if command == "Allocate":
            allocate = _allocate(properties)
        else:
            assert allocate is not None
            inits.append(_init(properties, root, allocate, inits))
        properties.end()
        entry.end()
    assert allocate is not None
    return allocate, tuple(inits)


def _allocate(p: Object) -> Allocate:
    """Older: `size`. Newer: `static_size` and `dynamic_size`. A file with all three must mean one
    thing: then size is static_size."""
    size = p.optional_unsigned("size")
    if "static_size" in p.value or "dynamic_size" in p.value:
        static, dynamic = p.unsigned("static_size"), p.unsigned("dynamic_size")
        if size is not None and size != static:
            fail(p.at("size"), f"{size} is not the static_size {static}: give one of them")
    else:
        static, dynamic = p.unsigned("size"), 0
    for key, value, least in (("size", static, 1), ("dynamic_size", dynamic, 0)):
        if not least <= value <= SEGMENT_BYTES:
            fail(p.at(key), f"{value} must lie in {least}..{SEGMENT_BYTES}, one segment")
    return Allocate(static, dynamic)


def _init(p: Object, root: Path, allocate: Allocate, earlier: list[InitTransfer]) -> InitTransfer:
    name, where = p.get("init_bin_file", "file_path")
    name = check_text(name, where)
    pointer, size = p.unsigned("dev_ptr"), p.unsigned("size")
    # The range first: then a hostile size reads no large file.
    check.static_range(p.at("dev_ptr"), pointer, size, allocate)
    for other in earlier:
        if check.overlap(pointer, size, other.dev_ptr, other.size):
            fail(p.at("dev_ptr"), f"overlaps the bytes of {other.file} at {other.dev_ptr:#x}")
    return InitTransfer(name, pointer, size, read_file(root, name, where, size))


# --- JobExecPlan


def _step(entry: Object) -> Step:
    readers: dict[str, Callable[[Object], Step]] = {
        "ComputeOnDevice": _compute_on_device,
        "ComputeOnHost": _compute_on_host,
        "DataTransfer": _data_transfer,
    }
    command = entry.choice(readers, "command")
    properties = entry.object("properties")
    step = readers[command](properties)
    properties.end()
    entry.end()
    return step


def _compute_on_device(p: Object) -> ComputeOnDevice:
    pointer = p.unsigned("job_bin_ptr")
    name = p.text("name", empty=True) if "name" in p.value else ""
    args = p.unsigned_list("args") if "args" in p.value else None
    for position, number in enumerate(args or ()):
        if number >= MAX_ARGUMENTS:
            fail(f"{p.at('args')}[{position}]", f"{number} is above {MAX_ARGUMENTS - 1}")
    # Without args the program's arguments are the launch's: filled in when its image is known.
    return ComputeOnDevice(pointer, name, check.ALL_ARGUMENTS if args is None else args, _cost(p))


def _compute_on_host(p: Object) -> ComputeOnHost:
    handle = p.text("ohandle")
    size = _blob_size(p)
    shape = p.unsigned_list("ishape")
    if not shape:
        fail(p.at("ishape"), 'must hold at least one size; ["0"] says that there is no input')
    ihandle = p.text("ihandle", empty=True)
    hcm = p.object("hcm")
    correction = _correction(hcm) if hcm.value else None
    return ComputeOnHost(handle, size, shape, ihandle, correction, _cost(p))


def _cost(p: Object) -> int | None:
    cost = p.optional_unsigned("cost_ns")
    if cost is not None and cost > MAX_COST_NS:
        fail(p.at("cost_ns"), f"{cost} is above {MAX_COST_NS}")
    return cost


def _blob_size(p: Object) -> int:
    """`size` in bytes; an `oshape` (a list, whose product it is) is the spelling of an old text."""
    if p.has("size", "oshape") != "oshape":
        return p.unsigned("size")
    size = 1
    for extent in p.unsigned_list("oshape"):
        size = min(size * extent, 2**64)
    if size >= 2**64:
        fail(p.at("oshape"), "its product does not fit in 64 bits")
    return size


def _correction(hcm: Object) -> Correction:
    for key in ("vdci", "senConstants"):
        if key in hcm.value:
            fail(
                hcm.at(key),
                "is the card maker's own format, which is not public: use symbols, patches and "
                "checksum (docs/spyrecode.md)",
            )
    symbols = [_symbol(item) for item in hcm.objects("symbols")]
    known: set[int] = set()
    for position, symbol in enumerate(symbols):
        if symbol.id in known:
            fail(f"{hcm.at('symbols')}[{position}].id", f"{symbol.id} is given twice")
        known.add(symbol.id)
    patches = []
    for item in hcm.objects("patches"):
        patch = _patch(item)
        if patch.symbol not in known:
            fail(item.at("symbol"), f"there is no symbol with id {patch.symbol}")
        patches.append(patch)
    checksum = hcm.unsigned("checksum")
    hcm.end()
    return Correction(tuple(symbols), tuple(patches), checksum)


def _symbol(p: Object) -> CorrectionSymbol:
    number = p.unsigned("id")
    kind = p.choice(SYMBOL_KINDS, "kind")
    argument, dim, name = -1, -1, ""
    if kind in ("address", "dimension"):
        argument = p.unsigned("arg_index")
        if argument >= MAX_ARGUMENTS:
            fail(p.at("arg_index"), f"{argument} is above {MAX_ARGUMENTS - 1}")
    if kind == "dimension":
        dim = p.unsigned("dim")
        if dim >= 64:
            fail(p.at("dim"), f"{dim} is no dim of a tensor")
    if kind in ("int", "float"):
        name = p.text("name")
    symbol = CorrectionSymbol(
        number, kind, argument, dim, p.signed("offset", 0), p.signed("scale", 1), name
    )
    p.end()
    return symbol


def _patch(p: Object) -> Patch:
    width = p.unsigned("width")
    if width not in (1, 2, 4, 8):
        fail(p.at("width"), f"{width} must be 1, 2, 4 or 8")
    shift = p.signed("shift", 0)
    if not 0 <= shift <= 63:
        fail(p.at("shift"), f"{shift} must lie in 0..63")
    every = 2 ** (8 * width) - 1
    mask = p.optional_unsigned("mask", every)
    assert mask is not None
    if mask > every:
        fail(p.at("mask"), f"{mask} is wider than the {width} bytes of the patch")
    patch = Patch(
        p.unsigned("blob_offset"), width, p.unsigned("symbol"), p.signed("scale", 1),
        p.signed("addend", 0), shift, mask,
    )  # fmt: skip
    p.end()
    return patch


def _data_transfer(p: Object) -> DataTransfer:
    direction, where = p.get("dirn", "direction")
    # The older texts write 0 and 1, as a number or as a string.
    word = str(direction) if type(direction) is int else direction
    if not isinstance(word, str) or word not in _FROM_DEVICE:
        fail(where, 'must be "false" (to the device) or "true" (from the device)')
    return DataTransfer(
        not _FROM_DEVICE[word],
        p.text("host_handle"),
        p.unsigned("dev_ptr"),
        p.unsigned("size"),
        _cost(p),
    )
