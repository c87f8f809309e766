"""The binary form of a Program: what a SpyreCode directory holds and the machine executes.

`encode` and `decode` are exactly docs/program.md section 6; the machine has its own decoder
(`csrc/machine/program`), and the golden images in tests/data hold both to one meaning. The same
program always gives the same bytes. `decode` trusts nothing: any byte string gives a Program or a
`ProgramFormatError`, in time and memory proportional to its length.

Imports no torch.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from openspyre.formats import STICK_BYTES
from openspyre.program.binary_decoder import decode_body
from openspyre.program.binary_encoder import encode_body
from openspyre.program.binary_rules import ProgramFormatError
from openspyre.program.model import VERSION, Program, Role

__all__ = [
    "UNPATCHED",
    "Header",
    "ProgramFormatError",
    "Word",
    "decode",
    "encode",
    "read_header",
    "symbol_checksum",
    "symbol_words",
]

MAGIC = b"OSPYRE\x1a\n"
HEADER_BYTES = 128
UNPATCHED = 0x3BAD5BAD5
"""What a symbol word holds before program correction: an address in segment 0, never mapped."""

_HEAD = struct.Struct("<8sHHIQQQQQQ")  # to byte 64; then CRC, CRC, checksum
_TAIL = struct.Struct("<IIQ")


@dataclass(frozen=True)
class Word:
    """One symbol word. `kind`: address, dynamic, dimension, int or float; `name`: of the operand or
    the symbol, empty for the dynamic region."""

    kind: str
    name: str


@dataclass(frozen=True)
class Header:
    """The header of an image, its two CRCs checked. Offsets and sizes are bytes."""

    version: int
    words: int
    words_offset: int
    body_offset: int
    body_bytes: int
    data_offset: int
    data_bytes: int
    image_bytes: int
    checksum: int


def symbol_words(program: Program) -> tuple[Word, ...]:
    """The words a launch fills in, in order."""
    words = [Word("address", operand.name) for operand in program.arguments]
    if any(operand.role is Role.SCRATCH for operand in program.operands):
        words.append(Word("dynamic", ""))
    words += [Word(symbol.kind.value, symbol.name) for symbol in program.symbols]
    return tuple(words)


def symbol_checksum(words: Sequence[Word]) -> int:
    """FNV-1a 64 over the words' kinds and names: what tells a permuted symbol table from the real
    one."""
    value = 0xCBF29CE484222325
    for byte in "".join(f"{word.kind} {word.name}\n" for word in words).encode():
        value = (value ^ byte) * 0x100000001B3 & (2**64 - 1)
    return value


def _padded(size: int) -> int:
    return -(-size // STICK_BYTES) * STICK_BYTES


def encode(program: Program, words: Sequence[int] | None = None) -> bytes:
    """The image of a program. `words`: the symbol words' values (0 .. 2**64-1), for a program bound
    to fixed addresses; by default every one is `UNPATCHED`.

    Raises ProgramFormatError for what the form cannot hold: unknown names, numbers beyond 64 bits,
    more labels or tiles than an instruction may have.
    """
    body = encode_body(program)
    table = symbol_words(program)
    values = [UNPATCHED] * len(table) if words is None else [int(word) for word in words]
    if len(values) != len(table) or any(not 0 <= value < 2**64 for value in values):
        raise ProgramFormatError(
            f"program {program.name!r}: symbol words: {len(table)} numbers of 64 bits are needed, "
            f"got {len(values)}: {values}"
        )
    body_offset = _padded(HEADER_BYTES + 8 * len(table))
    data_offset = body_offset + _padded(len(body))
    image_bytes = data_offset + _padded(len(program.data))
    image = bytearray(image_bytes)
    struct.pack_into(f"<{len(values)}Q", image, HEADER_BYTES, *values)
    image[body_offset : body_offset + len(body)] = body
    image[data_offset : data_offset + len(program.data)] = program.data
    _HEAD.pack_into(
        image, 0, MAGIC, VERSION, 0, len(table), HEADER_BYTES, body_offset, len(body),
        data_offset, len(program.data), image_bytes,
    )  # fmt: skip
    seal(image, symbol_checksum(table))
    return bytes(image)


def seal(image: bytearray, checksum: int | None = None) -> None:
    """Writes the CRCs (and the symbol table's checksum, when given) that fit the rest of the bytes
    of an image; for `encode`, and for tests that change an image. Needs a whole header."""
    if checksum is None:
        checksum = struct.unpack_from("<Q", image, 72)[0]
    body_offset = struct.unpack_from("<Q", image, 24)[0]
    tail = zlib.crc32(image[body_offset:])
    struct.pack_into("<I", image, 64, tail)
    struct.pack_into("<Q", image, 72, checksum)
    struct.pack_into("<I", image, 68, zlib.crc32(image[72:80], zlib.crc32(image[:68])))


def _require(condition: bool, field: str, offset: int, rule: str) -> None:
    if not condition:
        raise ProgramFormatError(f"header: {field} at byte {offset}: {rule}")


def read_header(image: bytes | bytearray | memoryview) -> Header:
    """The header of an image; bytes after the image's end are not looked at. Checks everything that
    is not inside the body. Raises ProgramFormatError."""
    size = len(image)
    _require(size >= HEADER_BYTES, "size", 0, f"{size} bytes cannot hold a header of 128")
    magic, version, zero, words, words_offset, body_offset, body_bytes, data_offset, data_bytes, \
        image_bytes = _HEAD.unpack_from(image, 0)  # fmt: skip
    body_crc, head_crc, checksum = _TAIL.unpack_from(image, 64)
    _require(magic == MAGIC, "magic", 0, f"{magic!r} is not {MAGIC!r}: no program image")
    if version > VERSION:
        raise ProgramFormatError(
            f"header: version at byte 8: version {version} is too new, this OpenSpyre reads up to "
            f"{VERSION}; use a newer OpenSpyre"
        )
    _require(version >= 1, "version", 8, f"{version} is no version")
    crc = zlib.crc32(image[72:80], zlib.crc32(image[:68]))
    _require(crc == head_crc, "CRC of the header", 68, f"{head_crc:#x}, computed {crc:#x}: damaged")
    _require(zero == 0, "reserved", 10, "must be zero")
    _require(not any(image[80:HEADER_BYTES]), "reserved", 80, "must be zero")
    _require(words_offset == HEADER_BYTES, "offset of the symbol words", 16, "must be 128")
    _require(
        image_bytes % STICK_BYTES == 0 and image_bytes <= size,
        "bytes of the image", 56, f"{image_bytes}: a multiple of 128, at most the {size} given",
    )  # fmt: skip
    words_end = words_offset + 8 * words
    for name, at, value, low, length in (
        ("offset of the body", 24, body_offset, words_end, body_bytes),
        ("offset of the data", 40, data_offset, body_offset + body_bytes, data_bytes),
    ):
        _require(
            value % STICK_BYTES == 0 and low <= value and value + length <= image_bytes,
            name, at, f"{value}: a multiple of 128, from {low} on, its {length} bytes inside the "
            f"image of {image_bytes}",
        )  # fmt: skip
    crc = zlib.crc32(image[body_offset:image_bytes])
    _require(crc == body_crc, "CRC of the body", 64, f"{body_crc:#x}, computed {crc:#x}: damaged")
    return Header(
        version, words, words_offset, body_offset, body_bytes, data_offset, data_bytes,
        image_bytes, checksum,
    )  # fmt: skip


def decode(image: bytes | bytearray | memoryview) -> Program:
    """The program of one whole image. What its symbol words hold is not looked at.

    Raises ProgramFormatError, naming field, byte offset and rule, for anything else.
    """
    image = bytes(image)
    header = read_header(image)
    _require(
        header.image_bytes == len(image),
        "bytes of the image", 56, f"{header.image_bytes}, but {len(image)} bytes were given",
    )  # fmt: skip
    data = image[header.data_offset : header.data_offset + header.data_bytes]
    program = decode_body(image, header.body_offset, header.body_bytes, data)
    table = symbol_words(program)
    _require(
        header.words == len(table),
        "number of symbol words", 12, f"{header.words}, but the program has {len(table)}",
    )  # fmt: skip
    checksum = symbol_checksum(table)
    _require(
        header.checksum == checksum,
        "checksum of the symbol table", 72, f"{header.checksum:#x}, the table's is {checksum:#x}",
    )  # fmt: skip
    return program
