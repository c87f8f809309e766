"""The binary form: exact round trips, one image a program, and no byte string that it fears."""

from __future__ import annotations

import random
import struct
import tracemalloc
import zlib
from dataclasses import replace

import pytest
from golden_programs import DATA, GOLDEN, abs64, every_field
from hypothesis import given, settings
from hypothesis import strategies as st
from program_models import Models

from openspyre.program import binary_rules
from openspyre.program.binary import (
    UNPATCHED,
    ProgramFormatError,
    Word,
    decode,
    encode,
    read_header,
    seal,
    symbol_checksum,
    symbol_words,
)
from openspyre.program.expr import Binary, Const, Expr, Var
from openspyre.program.model import (
    Body,
    Buffer,
    Card,
    Compute,
    Digit,
    Label,
    Let,
    Loop,
    Node,
    Program,
    Signal,
    Symbol,
    SymbolKind,
    Token,
    Unit,
    Wait,
)
from openspyre.program.ops import Kind
from openspyre.program.text import from_text, to_text


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_p1_an_image_decodes_to_the_program_it_encodes(seed: int) -> None:
    program = Models(random.Random(seed)).program()
    image = encode(program)
    again = decode(image)
    assert again == program
    assert encode(again) == image
    assert to_text(again) == to_text(program)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_images_hold_the_format(name: str) -> None:
    image = (DATA / f"golden_{name}.bin").read_bytes()
    assert encode(GOLDEN[name]()) == image
    assert decode(image) == GOLDEN[name]()


def test_the_image_of_a_small_program_fits_in_1024_bytes() -> None:
    assert len(encode(abs64())) <= 1024


def test_the_parts_of_an_image_lie_where_the_page_says() -> None:
    """Read with nothing but struct, as another tool would."""
    program = every_field()
    image = encode(program)
    magic, version, words = struct.unpack_from("<8sHxxI", image, 0)
    offset, body, body_bytes, data, data_bytes, size = struct.unpack_from("<6Q", image, 16)
    assert (magic, version, offset, size) == (b"OSPYRE\x1a\n", 2, 128, len(image))
    assert all(at % 128 == 0 for at in (offset, body, data, size))
    # x, idx, z, w, scalar, v; the dynamic region; n, seed, alpha
    assert words == 10
    assert struct.unpack_from("<10Q", image, 128) == (UNPATCHED,) * 10
    assert image[data : data + data_bytes] == program.data
    assert struct.unpack_from("<I", image, 64)[0] == zlib.crc32(image[body:])
    assert struct.unpack_from("<I", image, 68)[0] == zlib.crc32(image[:68] + image[72:80])
    assert body + body_bytes <= data
    names = b"address x\naddress idx\naddress z\naddress w\naddress scalar\naddress v\ndynamic \n"
    names += b"dimension n\nint seed\nfloat alpha\n"
    checksum = 0xCBF29CE484222325
    for byte in names:
        checksum = ((checksum ^ byte) * 0x100000001B3) % 2**64
    assert struct.unpack_from("<Q", image, 72)[0] == checksum
    header = read_header(image + b"more")
    assert (header.words, header.image_bytes, header.checksum) == (10, len(image), checksum)


def test_words_may_be_bound_when_the_image_is_written() -> None:
    image = encode(abs64(), [1 << 34, 2**64 - 1])
    assert struct.unpack_from("<2Q", image, 128) == (1 << 34, 2**64 - 1)
    assert decode(image) == abs64()
    for words in ([], [1], [1, -1], [1, 2**64]):
        with pytest.raises(ProgramFormatError, match="symbol words: 2 numbers"):
            encode(abs64(), words)


def test_rt64_the_checksum_tells_the_order_of_the_symbols() -> None:
    words = symbol_words(every_field())
    assert words[0] == Word("address", "x") and words[6] == Word("dynamic", "")
    swapped = (words[1], words[0], *words[2:])
    assert symbol_checksum(swapped) != symbol_checksum(words)


# --- what cannot be written


def _deep(depth: int) -> Expr:
    value: Expr = Var("core")
    for _ in range(depth - 1):
        value = Binary("+", value, Const(1))
    return value


def _nest(depth: int) -> Loop:
    loop = Loop(None, Const(1), ())
    for _ in range(depth - 1):
        loop = Loop(None, Const(1), (loop,))
    return loop


def _bad(**changes: object) -> Program:
    return replace(abs64(), **changes)  # type: ignore[arg-type]


def _map(**changes: object) -> Program:
    sfu = abs64().queues[Unit.SFU]
    compute = sfu[1]
    assert isinstance(compute, Compute)
    return _bad(queues={Unit.SFU: (replace(compute, **changes),)})  # type: ignore[arg-type]


_LABELS = tuple(Label(f"l{n}", Const(0), Const(1)) for n in range(9))
CANNOT = [
    (_bad(version=3), "version 3 cannot be written"),
    (_bad(grid=(Digit("a", 0),)), "the grid has 0 cores"),
    (_bad(grid=(Digit("a", 300), Digit("b", 300))), "the grid has 90000 cores"),
    (_bad(grid=(Digit("a", 33),)), "the grid has 33 cores: it needs 1..32"),
    (_bad(grid=tuple(Digit(f"a{n}", 1) for n in range(17))), "17 digits"),
    (_bad(card=Card("c", 0)), "the card has 0 cores"),
    (_bad(card=Card("c", 1, 64)), "an LX of 64 bytes"),
    (_bad(grid=(Digit("a", 1), Digit("a", 1))), "two of its digits are named 'a'"),
    (_bad(grid=(Digit("a b", 1),)), "'a b' is no name"),
    (_bad(lets=(Let("c", Const(1)),)), "the variable 'c' exists already"),
    (_bad(lets=(Let("v", Const(2**63)),)), "let v: a constant is 9223372036854775808"),
    (_bad(lets=(Let("v", _deep(65)),)), "more than 64 deep"),
    (_bad(lets=(Let("v", Var("u")),)), "no variable 'u'; there are 'c', 'core'"),
    (_bad(tokens=(Token("t", -1),)), "count is -1"),
    (_bad(tokens=(Token("t", 2**21),)), "semaphores"),
    (_bad(buffers=(Buffer("x", 0, 1),)), "two of its operands and buffers are named 'x'"),
    (_bad(queues={Unit.PT: (_nest(65),)}), "loops nest more than 64 deep"),
    (_bad(queues={Unit.PT: (Wait("no"),)}), r"pt\[0\] wait: no token 'no'; there are 'loaded'"),
    (_bad(queues={Unit.PT: (Loop(None, Const(1), (Signal("no"),)),)}), r"pt\[0\]\[0\] signal"),
    (_bad(symbols=(Symbol("s", SymbolKind.DIMENSION, 9, 0),)), "argument 9 is not one of the 2"),
    (_bad(symbols=(Symbol("s", SymbolKind.DIMENSION, 0, 1),)), "dim 1 is not one of the 1 dims"),
    (_bad(symbols=(Symbol("s", SymbolKind.INT, granularity=0),)), "granularity is 0"),
    (_bad(symbols=(Symbol("s", SymbolKind.FLOAT),), lets=(Let("v", Var("s")),)),
     "'s' cannot be used in this expression"),
    (_map(over=_LABELS, inputs=(), outputs=()), "9 labels"),
    (_map(label="q"), "no label 'q'"),
    (_map(body=Body((Node("exq", "f"),), ())), "no such operation"),
    (_map(body=Body((Node("input", "f", (), 1),), ())), "input 1 is not one of the 1 inputs"),
    (_map(body=Body((Node("const", "f", (), 1e39),), ())), "does not fit in float32"),
    (_map(body=Body((Node("const", "i", (), 2**31),), ())), "does not fit in type i"),
    (_map(body=Body((Node("const", "f", (), None),), ())), "is no number of type f"),
    (_map(body=Body((Node("abs", "f", (0,)),), ())), "operand 0 is no earlier node"),
    (_map(body=Body((Node("abs", "b", ()),), ())), "exists for the types f, i, l only"),
    (_map(body=Body((), (0,))), "result 0 is no node"),
    (_map(body=Body((Node("scalar", "f", (), "s"),), ())), "no symbol 's'"),
    (_map(body=Body((Node("index", "l", (), "s"),), ())), "no label 's'"),
    (_bad(name="\ud800"), "is not UTF-8"),
    (_bad(name="n" * 300), "at most 255 bytes"),
]  # fmt: skip


@pytest.mark.parametrize("program,message", CANNOT, ids=[message[:40] for _, message in CANNOT])
def test_what_the_form_cannot_hold_is_refused(program: Program, message: str) -> None:
    with pytest.raises(ProgramFormatError, match=message):
        encode(program)


def test_a_constant_is_written_as_the_float32_that_the_register_holds() -> None:
    program = _map(body=Body((Node("const", "f", (), 0.1),), (0,)))
    compute = decode(encode(program)).queues[Unit.SFU][0]
    assert isinstance(compute, Compute) and compute.body is not None
    assert compute.body.nodes[0].immediate == struct.unpack("<f", struct.pack("<f", 0.1))[0]
    assert compute.kind is Kind.MAP


# --- what cannot be read


def _changed(offset: int, code: str, value: int | bytes, sealed: bool = True) -> bytes:
    image = bytearray(encode(every_field()))
    struct.pack_into(code, image, offset, value)
    if sealed:
        seal(image)
    return bytes(image)


CORRUPT = [
    (b"", "0 bytes cannot hold a header of 128"),
    (encode(abs64())[:127], "127 bytes cannot hold"),
    (encode(abs64())[:-1], "bytes of the image at byte 56"),
    (encode(abs64()) + bytes(128), "bytes of the image at byte 56: 640, but 768"),
    (_changed(0, "<8s", b"\x7fELF"), "magic at byte 0"),
    (_changed(8, "<H", 3), "version 3 is too new.*reads up to 2.*use a newer OpenSpyre"),
    (_changed(8, "<H", 0), "version at byte 8: 0 is no version"),
    (_changed(10, "<H", 1), "reserved at byte 10: must be zero"),
    (_changed(90, "<B", 1), "reserved at byte 80: must be zero"),
    (_changed(12, "<I", 8), "number of symbol words at byte 12: 8, but the program has 10"),
    (_changed(12, "<I", 2**32 - 1), "offset of the body"),
    (_changed(16, "<Q", 256), "offset of the symbol words at byte 16: must be 128"),
    (_changed(24, "<Q", 2**64 - 128), "offset of the body at byte 24"),
    (_changed(24, "<Q", 130), "offset of the body at byte 24"),
    (_changed(32, "<Q", 2**64 - 1), "offset of the body at byte 24"),
    (_changed(32, "<Q", 10), "the body ends inside it"),
    (_changed(40, "<Q", 0), "offset of the data at byte 40"),
    (_changed(48, "<Q", 2**40), "offset of the data at byte 40"),
    (_changed(56, "<Q", 2**63), "bytes of the image at byte 56"),
    (_changed(64, "<I", 1, False), "CRC of the header"),
    (_changed(68, "<I", 1, False), "CRC of the header at byte 68.*damaged"),
    (_changed(72, "<Q", 1), "checksum of the symbol table at byte 72"),
    (_changed(600, "<B", 0xEE, False), "CRC of the body at byte 64.*damaged"),
]


@pytest.mark.parametrize("image,message", CORRUPT, ids=[message[:50] for _, message in CORRUPT])
def test_a_wrong_header_is_named_by_field_and_byte(image: bytes, message: str) -> None:
    with pytest.raises(ProgramFormatError, match=message):
        decode(image)


def test_every_truncation_is_an_error() -> None:
    image = encode(every_field())
    for size in range(0, len(image), 7):
        with pytest.raises(ProgramFormatError):
            decode(image[:size])


@given(st.integers(0, 2**32), st.sampled_from(list(GOLDEN)))
@settings(max_examples=1000, deadline=None)
def test_a_mutated_body_gives_an_error_or_a_program(seed: int, name: str) -> None:
    """With its CRCs made right again. What decodes must have both forms."""
    r = random.Random(seed)
    image = bytearray(encode(GOLDEN[name]()))
    header = read_header(image)
    for _ in range(r.randint(1, 4)):
        at = header.body_offset + r.randrange(header.body_bytes)
        image[at] = r.choice((0, 1, 0x7F, 0x80, 0xFF, image[at] ^ 1 << r.randrange(8)))
    seal(image)
    try:
        program = decode(bytes(image))
    except ProgramFormatError:
        return
    assert decode(encode(program)) == program
    to_text(program)


def test_hostile_counts_cost_no_memory() -> None:
    """A list that says it has 2**60 elements, at every place where a list may stand."""
    image = encode(every_field())
    header = read_header(image)
    huge = b"\xff" * 8 + b"\x0f"
    refused = 0
    tracemalloc.start()
    for at in range(header.body_offset, header.body_offset + header.body_bytes - len(huge), 3):
        bad = bytearray(image)
        bad[at : at + len(huge)] = huge
        seal(bad)
        try:
            decode(bytes(bad))  # where a plain number stands it may be this large
        except ProgramFormatError:
            refused += 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused > 500
    assert peak < 2 << 20


def test_a_number_longer_than_64_bits_is_an_error() -> None:
    bad = bytearray(encode(abs64()))
    at = read_header(bad).body_offset
    bad[at : at + 11] = b"\x80" * 10 + b"\x01"
    seal(bad)
    with pytest.raises(ProgramFormatError, match="more than 10 bytes"):
        decode(bytes(bad))
    bad[at : at + 10] = b"\xff" * 9 + b"\x7f"
    seal(bad)
    with pytest.raises(ProgramFormatError, match="is above"):
        decode(bytes(bad))


def test_an_image_of_many_names_is_read_in_linear_time() -> None:
    tokens = tuple(Token(f"t{n}") for n in range(20_000))
    lets = tuple(Let(f"v{n}", Const(n)) for n in range(20_000))
    program = Program("p", Card(), (), tokens=tokens, lets=lets)
    assert decode(encode(program)) == program
    assert binary_rules.MAX_SEMAPHORES >= 20_000


def test_images_of_version_1_are_read() -> None:
    """It had no operands with strides; what it says has stayed."""
    image = bytearray(encode(abs64()))
    struct.pack_into("<H", image, 8, 1)
    seal(image)
    assert decode(bytes(image)) == abs64()
    text = to_text(abs64()).replace("version 2", "version 1")
    assert from_text(text) == abs64()


def test_an_operand_with_strides_has_no_order() -> None:
    program = every_field()
    image = bytearray(encode(program))
    name = image.index(b"\x01v\x00\x07float16")  # str name, role, dtype, ..
    end = image.index(b"\x80\x02\x02\x00\x00", name)  # .. stride 128, stick 1, no order, offset 0
    image[end + 3] = 1
    seal(image)
    with pytest.raises(ProgramFormatError, match="operand v: order"):
        decode(bytes(image))
