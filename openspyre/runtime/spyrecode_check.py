"""The rules between the parts of a SpyreCode: what lies where, who makes and who uses a handle,
which patch fills which symbol word. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from openspyre.card import PROGRAM_SEGMENT, SEGMENT_BITS, SEGMENT_BYTES, STICK_BYTES
from openspyre.program.binary import (
    Header,
    ProgramFormatError,
    Word,
    decode,
    read_header,
    symbol_words,
)
from openspyre.program.concrete import ProgramError, operand_layout
from openspyre.program.expr import ExprError
from openspyre.program.model import Operand, Program, Role, SymbolKind
from openspyre.runtime.spyrecode_json import fail
from openspyre.runtime.spyrecode_model import (
    PROGRAM_BASE,
    PROGRAM_LIMIT,
    Allocate,
    ComputeOnDevice,
    ComputeOnHost,
    Correction,
    CorrectionSymbol,
    DataTransfer,
    InitTransfer,
    Patch,
    Step,
)

MAX_BLOB_BYTES = 16 << 20
MAX_PLAN_BLOB_BYTES = 64 << 20  # every launch makes all of them in host memory
ALL_ARGUMENTS = (-1,)
"""Stands for a ComputeOnDevice's missing `args` until its program is known."""


@dataclass(frozen=True)
class Image:
    """A program image in program memory, at DMVA `pointer`."""

    pointer: int
    header: Header
    program: Program
    words: tuple[Word, ...]

    @property
    def end(self) -> int:
        return self.pointer + self.header.image_bytes

    @property
    def words_start(self) -> int:
        return self.pointer + self.header.words_offset

    @property
    def words_room(self) -> int:
        """Where the body begins: a blob may reach up to here."""
        return self.pointer + self.header.body_offset


def _at(position: int, field: str = "") -> str:
    return f"JobExecPlan[{position}].properties{'.' if field else ''}{field}"


# --- ranges


def _sticks(size: int) -> int:
    return -(-size // STICK_BYTES) * STICK_BYTES


def overlap(a: int, a_size: int, b: int, b_size: int) -> bool:
    """Whether two ranges share a byte; memory is written in whole sticks."""
    return a < b + _sticks(b_size) and b < a + _sticks(a_size)


def static_pointer(where: str, pointer: int) -> None:
    """A DMVA of program memory, at the start of a stick."""
    if not PROGRAM_BASE <= pointer < PROGRAM_LIMIT:
        fail(
            where,
            f"{pointer} ({pointer:#x}) is not in segment {PROGRAM_SEGMENT}, program memory: "
            f"{PROGRAM_BASE} ({PROGRAM_BASE:#x}) up to {PROGRAM_LIMIT:#x}",
        )
    if pointer % STICK_BYTES:
        fail(where, f"{pointer} ({pointer:#x}) must be a multiple of {STICK_BYTES}")


def static_range(where: str, pointer: int, size: int, allocate: Allocate) -> None:
    """`size` bytes inside the allocation."""
    static_pointer(where, pointer)
    if size < 1:
        fail(where, "a transfer of no bytes")
    if pointer - PROGRAM_BASE + size > allocate.static_size:
        fail(
            where,
            f"{size} bytes at {pointer:#x} end {pointer - PROGRAM_BASE + size} bytes after the "
            f"base, but the allocation has {allocate.static_size}",
        )


# --- programs


def programs(
    steps: list[Step], inits: Sequence[InitTransfer], allocate: Allocate
) -> dict[int, Image]:
    """The decoded image at each job_bin_ptr. Fills in, in `steps`, the arguments of those
    ComputeOnDevice that name none."""
    images: dict[int, Image] = {}
    for position, step in enumerate(steps):
        if not isinstance(step, ComputeOnDevice):
            continue
        where = _at(position, "job_bin_ptr")
        static_pointer(where, step.job_bin_ptr)
        if step.job_bin_ptr not in images:
            image = _image(where, step.job_bin_ptr, inits)
            for other in images.values():
                if image.pointer < other.end and other.pointer < image.end:
                    fail(where, f"the image at {image.pointer:#x} overlaps {other.pointer:#x}'s")
            _check_memory(where, image.program, allocate)
            images[step.job_bin_ptr] = image
        program = images[step.job_bin_ptr].program
        count = len(program.arguments)
        if step.args == ALL_ARGUMENTS:
            steps[position] = replace(step, args=tuple(range(count)))
        elif len(step.args) != count:
            fail(
                _at(position, "args"),
                f"{len(step.args)} launch arguments, but program {program.name!r} takes {count}",
            )
        else:
            for number, operand in zip(step.args, program.arguments, strict=True):
                if step.args.count(number) > 1 and operand.role is not Role.IN:
                    fail(
                        _at(position, "args"),
                        f"launch argument {number} is passed twice, and operand {operand.name} "
                        "writes it: declare one inout operand",
                    )
    return images


def _image(where: str, pointer: int, inits: Sequence[InitTransfer]) -> Image:
    for init in inits:
        if init.dev_ptr <= pointer < init.dev_ptr + init.size:
            data = memoryview(init.data)[pointer - init.dev_ptr :]
            try:
                header = read_header(data)
                program = decode(data[: header.image_bytes])
            except ProgramFormatError as error:
                fail(where, f"{init.file} at byte {pointer - init.dev_ptr}: {error}")
            return Image(pointer, header, program, symbol_words(program))
    fail(where, f"no InitTransfer puts a program image at {pointer:#x}")


def _check_memory(where: str, program: Program, allocate: Allocate) -> None:
    """SCRATCH fits in the dynamic region, CONST in the image's data, for the largest symbols."""
    for operand in program.operands:
        if operand.role not in (Role.SCRATCH, Role.CONST):
            continue
        end = operand.offset + largest_bytes(where, program, operand)
        room, what = allocate.dynamic_size, "dynamic_size"
        if operand.role is Role.CONST:
            room, what = len(program.data), "the image's data"
        if end > room:
            fail(
                where,
                f"program {program.name!r}: operand {operand.name} ends at byte {end}, beyond the "
                f"{room} bytes of {what}",
            )


def largest_bytes(where: str, program: Program, operand: Operand) -> int:
    """Bytes of an operand when every symbol has its maximum."""
    largest = {s.name: s.maximum for s in program.symbols if s.kind is not SymbolKind.FLOAT}
    try:
        size = operand_layout(operand, largest).nbytes
    except (ProgramError, ExprError) as error:
        fail(where, f"program {program.name!r}: operand {operand.name}: {error}")
    if size > SEGMENT_BYTES:
        fail(
            where,
            f"program {program.name!r}: operand {operand.name} has {size} bytes when its symbols "
            "have their maximum: give them a smaller one",
        )
    return size


# --- the plan


def plan(
    steps: Sequence[Step],
    inits: Sequence[InitTransfer],
    allocate: Allocate,
    images: Mapping[int, Image],
) -> None:
    """Order, handles and addresses of the steps."""
    _check_order(steps)
    handles: dict[str, int] = {}  # name -> bytes
    written = [(init.dev_ptr, _sticks(init.size)) for init in inits]
    blobs: list[tuple[int, int, int]] = []  # position, pointer, size
    taken = {n for step in steps if isinstance(step, ComputeOnDevice) for n in step.args}
    corrected = any(
        symbol.kind == "address"
        for step in steps
        if isinstance(step, ComputeOnHost) and step.correction is not None
        for symbol in step.correction.symbols
    )
    for position, step in enumerate(steps):
        if isinstance(step, ComputeOnHost):
            _check_host(position, step, handles)
            handles[step.ohandle] = step.size
        elif isinstance(step, DataTransfer) and step.to_device:
            where = _at(position, "host_handle")
            if step.host_handle not in handles:
                fail(where, f"no earlier step makes the handle {step.host_handle!r}")
            if step.size != handles[step.host_handle]:
                fail(
                    _at(position, "size"),
                    f"{step.size}, but {step.host_handle!r} has {handles[step.host_handle]} bytes",
                )
            _check_blob(position, step, inits, allocate, images)
            for other, pointer, size in blobs:
                if overlap(step.dev_ptr, step.size, pointer, size):
                    fail(_at(position, "dev_ptr"), f"overlaps the blob of JobExecPlan[{other}]")
            blobs.append((position, step.dev_ptr, step.size))
            written.append((step.dev_ptr, _sticks(step.size)))
        elif isinstance(step, DataTransfer):
            if step.host_handle in handles:
                fail(
                    _at(position, "host_handle"),
                    f"the handle {step.host_handle!r} exists already: give it another name",
                )
            _check_from_device(position, step, allocate, written, taken if images else None,
                               corrected)  # fmt: skip
            handles[step.host_handle] = step.size
    total = sum(step.size for step in steps if isinstance(step, ComputeOnHost))
    if total > MAX_PLAN_BLOB_BYTES:
        fail("JobExecPlan", f"its blobs have {total} bytes; at most {MAX_PLAN_BLOB_BYTES}")
    if taken and len(taken) != max(taken) + 1:
        missing = next(n for n in range(len(taken)) if n not in taken)
        fail("JobExecPlan", f"no program takes launch argument {missing}, but some take later ones")


def _check_order(steps: Sequence[Step]) -> None:
    """Corrections come first, each with the transfer of its blob at once after it; then a program;
    then programs and transfers from the device."""
    if not any(isinstance(step, ComputeOnHost) for step in steps):
        return
    position = 0
    while position < len(steps) and isinstance(steps[position], ComputeOnHost):
        host = steps[position]
        assert isinstance(host, ComputeOnHost)
        after = steps[position + 1] if position + 1 < len(steps) else None
        if not (
            isinstance(after, DataTransfer)
            and after.to_device
            and after.host_handle == host.ohandle
        ):
            fail(
                f"JobExecPlan[{position}]",
                f"a ComputeOnHost must be followed by the DataTransfer of its {host.ohandle!r} to "
                "the device",
            )
        if after.size != host.size:
            fail(_at(position + 1, "size"), f"{after.size}, but the blob has {host.size} bytes")
        position += 2
    if position == len(steps) or not isinstance(steps[position], ComputeOnDevice):
        fail(f"JobExecPlan[{position}]", "corrections must be followed by a ComputeOnDevice")
    for later in range(position, len(steps)):
        step = steps[later]
        if isinstance(step, ComputeOnHost) or (isinstance(step, DataTransfer) and step.to_device):
            fail(
                f"JobExecPlan[{later}]",
                "a ComputeOnHost and the transfer of its blob must come before every "
                "ComputeOnDevice and every transfer from the device",
            )


def _check_host(position: int, step: ComputeOnHost, handles: Mapping[str, int]) -> None:
    if step.ohandle in handles:
        fail(
            _at(position, "ohandle"),
            f"the handle {step.ohandle!r} exists already: give it another name",
        )
    if step.ihandle and step.ihandle not in handles:
        fail(_at(position, "ihandle"), f"no earlier step makes the handle {step.ihandle!r}")
    if not 1 <= step.size <= MAX_BLOB_BYTES:
        fail(_at(position, "size"), f"{step.size} must lie in 1..{MAX_BLOB_BYTES}")
    symbols = step.correction.symbols if step.correction is not None else ()
    given = 1
    for extent in step.ishape:
        given = min(given * extent, 2**64)
    if given != len(symbols):
        fail(
            _at(position, "ishape"),
            f"{given} numbers go in, but hcm has {len(symbols)} symbols: its product must be the "
            'number of symbols (["0"] for none)',
        )
    if step.ihandle and handles[step.ihandle] != 8 * given:
        fail(
            _at(position, "ihandle"),
            f"{step.ihandle!r} has {handles[step.ihandle]} bytes, and {given} symbols are "
            f"{8 * given}",
        )
    used = bytearray(step.size)
    for number, patch in enumerate(step.correction.patches if step.correction is not None else ()):
        where = _at(position, f"hcm.patches[{number}].blob_offset")
        end = patch.blob_offset + patch.width
        if end > step.size:
            fail(where, f"{patch.width} bytes at {patch.blob_offset} leave the blob of {step.size}")
        if any(used[patch.blob_offset : end]):
            fail(where, f"bytes {patch.blob_offset}..{end - 1} are patched twice")
        used[patch.blob_offset : end] = b"\1" * patch.width


def _check_blob(
    position: int,
    step: DataTransfer,
    inits: Sequence[InitTransfer],
    allocate: Allocate,
    images: Mapping[int, Image],
) -> None:
    """A blob goes to the symbol words of one image, or to memory that nothing else fills."""
    where = _at(position, "dev_ptr")
    static_range(where, step.dev_ptr, step.size, allocate)
    if _target(step, images) is not None:
        return
    for init in inits:
        if overlap(step.dev_ptr, step.size, init.dev_ptr, init.size):
            fail(
                where,
                f"{step.size} bytes at {step.dev_ptr:#x} overlap {init.file}, which lies at "
                f"{init.dev_ptr:#x}; only the symbol words of an image may be written over: from "
                "its byte 128 to where its body begins",
            )


def _target(step: DataTransfer, images: Mapping[int, Image]) -> Image | None:
    """The image whose symbol words a blob goes to."""
    for image in images.values():
        inside = image.words_start <= step.dev_ptr < image.words_room
        if inside and step.dev_ptr + step.size <= image.words_room:
            return image
    return None


def _check_from_device(
    position: int,
    step: DataTransfer,
    allocate: Allocate,
    written: Sequence[tuple[int, int]],
    arguments: set[int] | None,
    corrected: bool,
) -> None:
    where = _at(position, "dev_ptr")
    if step.size < 1:
        fail(_at(position, "size"), "a transfer of no bytes")
    if step.argument is None:
        static_range(where, step.dev_ptr, step.size, allocate)
        # init before use: every byte was put there by an InitTransfer or an earlier blob
        reached = step.dev_ptr
        for start, size in sorted(written):
            if start <= reached < start + size:
                reached = start + size
        if reached < step.dev_ptr + step.size:
            fail(where, f"reads {reached:#x}, which nothing has written")
        return
    if corrected:
        fail(
            where,
            f"{step.dev_ptr:#x} names launch argument {step.argument} by its segment: that needs "
            "bound addresses; with symbolic ones (a correction with address symbols) a transfer "
            f"reads program memory only, segment {PROGRAM_SEGMENT}",
        )
    if arguments is not None and step.argument >= len(arguments):
        fail(
            where,
            f"launch argument {step.argument} (segment {step.argument}) is out of range: the "
            f"programs take {len(arguments)}",
        )
    offset = step.dev_ptr & ((1 << SEGMENT_BITS) - 1)
    if offset + step.size > SEGMENT_BYTES:
        fail(where, f"{step.size} bytes at offset {offset} leave the segment")


# --- wrong results


def results(steps: Sequence[Step], images: Mapping[int, Image]) -> None:
    """What would compute wrong numbers: words that no patch fills or that get another symbol, and
    programs that see one launch argument differently."""
    args: dict[int, tuple[int, tuple[int, ...]]] = {}
    seen: dict[int, Operand] = {}
    for position, step in enumerate(steps):
        if not isinstance(step, ComputeOnDevice):
            continue
        program = images[step.job_bin_ptr].program
        first, known = args.setdefault(step.job_bin_ptr, (position, step.args))
        if known != step.args:
            fail(
                _at(position, "args"),
                f"JobExecPlan[{first}] runs the same image with other arguments: its symbol words "
                "hold one set of addresses, write the image a second time",
            )
        for number, operand in zip(step.args, program.arguments, strict=True):
            other = seen.setdefault(number, operand)
            for what, a, b in (
                ("dtype", operand.dtype, other.dtype),
                ("format", operand.format.name, other.format.name),
                ("rank", len(operand.shape), len(other.shape)),
            ):
                views = operand.strides is not None or other.strides is not None
                if a != b and not (what == "rank" and views):
                    fail(
                        _at(position, "args"),
                        f"launch argument {number} has {what} {a} for program {program.name!r} and "
                        f"{b} for an earlier one",
                    )
    covered: dict[int, bytearray] = {}
    for position, step in enumerate(steps):
        following = steps[position + 1] if position + 1 < len(steps) else None
        if isinstance(step, ComputeOnHost) and isinstance(following, DataTransfer):
            image = _target(following, images)
            if image is not None:
                used = covered.setdefault(image.pointer, bytearray(8 * image.header.words))
                if step.correction is not None:
                    _check_words(position, step.correction, following, image, args, used)
    for pointer, used in covered.items():
        if not all(used):
            word = used.index(0) // 8
            image = images[pointer]
            fail(
                "JobExecPlan",
                f"no patch fills {_named(image.words[word])}, symbol word {word} of program "
                f"{image.program.name!r} at {pointer:#x}",
            )


def _named(word: Word) -> str:
    return f"{word.kind} {word.name}".rstrip()


def _check_words(
    position: int,
    correction: Correction,
    transfer: DataTransfer,
    image: Image,
    args: Mapping[int, tuple[int, tuple[int, ...]]],
    used: bytearray,
) -> None:
    """The patches of one blob against the symbol words that they land on."""
    if correction.checksum != image.header.checksum:
        fail(
            _at(position, "hcm.checksum"),
            f"{correction.checksum}, but the symbol table of program {image.program.name!r} has "
            f"{image.header.checksum}: the correction was made for another program or another "
            "order of symbols",
        )
    symbols = {symbol.id: symbol for symbol in correction.symbols}
    for number, patch in enumerate(correction.patches):
        where = _at(position, f"hcm.patches[{number}]")
        start = transfer.dev_ptr + patch.blob_offset - image.words_start
        word = start // 8
        if word >= image.header.words or (start + patch.width - 1) // 8 != word:
            fail(f"{where}.blob_offset", f"byte {start} of the symbol words is in no single word")
        if any(used[start : start + patch.width]):
            fail(f"{where}.blob_offset", f"symbol word {word} is patched twice")
        used[start : start + patch.width] = b"\1" * patch.width
        wanted = _wanted(image, image.words[word], args[image.pointer][1])
        _check_symbol(where, symbols[patch.symbol], patch, wanted, image.words[word])


def _wanted(image: Image, word: Word, args: tuple[int, ...]) -> CorrectionSymbol:
    """The symbol that belongs in a word of an image."""
    program = image.program
    if word.kind == "address":
        names = [operand.name for operand in program.arguments]
        return CorrectionSymbol(0, word.kind, args[names.index(word.name)])
    if word.kind == "dimension":
        symbol = next(s for s in program.symbols if s.name == word.name)
        return CorrectionSymbol(0, word.kind, args[symbol.argument], symbol.dim)
    return CorrectionSymbol(0, word.kind, name=word.name)


def _check_symbol(
    where: str, symbol: CorrectionSymbol, patch: Patch, wanted: CorrectionSymbol, word: Word
) -> None:
    for field in ("kind", "arg_index", "dim", "name"):
        given, right = getattr(symbol, field), getattr(wanted, field)
        if given != right:
            fail(
                f"{where}.symbol",
                f"symbol {symbol.id} has {field} {given!r}, but the word it fills, "
                f"{_named(word)}, needs {right!r}: the order of the symbols is wrong",
            )
    if symbol.kind in ("address", "dynamic"):
        added = symbol.offset * patch.scale + patch.addend
        if symbol.scale * patch.scale != 1 or added % STICK_BYTES:
            fail(where, f"an address must stay one: scale 1, and {added} a multiple of 128")
