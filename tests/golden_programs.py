"""Programs whose images and texts lie in tests/data: the Python and the C++ decoder are held to one
reading of them. `python tests/golden_programs.py` writes the files anew (after a change of the
format, which needs a new version).

`every_field` uses every instruction, every optional part and every kind of expression; it obeys the
rules that need no numbers, and is not meant to run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from openspyre.formats import Format
from openspyre.program.binary import encode
from openspyre.program.expr import Binary, Const, Expr, Var, expr
from openspyre.program.model import (
    Access,
    Body,
    Buffer,
    Card,
    Compute,
    Digit,
    Gather,
    Index,
    Instruction,
    Label,
    Let,
    Load,
    Loop,
    Node,
    Operand,
    Program,
    Ring,
    Role,
    Scatter,
    Signal,
    Store,
    Symbol,
    SymbolKind,
    Token,
    Unit,
    Value,
    Wait,
)
from openspyre.program.ops import Combine, Kind
from openspyre.program.text import to_text

DATA = Path(__file__).parent / "data"
F16, F32, I32, I64 = Format.SEN169_FP16, Format.IEEE_FP32, Format.IEEE_INT32, Format.IEEE_INT64


def _sizes(*sizes: int | str) -> tuple[Expr, ...]:
    return tuple(expr(size) for size in sizes)


def abs64() -> Program:
    """y = |x| of 64 float16 on one core: the smallest program; its image fits in 1024 bytes."""
    x = Operand("x", Role.IN, "float16", F16, _sizes(64))
    y = Operand("y", Role.OUT, "float16", F16, _sizes(64))
    over = (Label("i", Const(0), Const(64)),)

    def tile(value: str, place: str) -> Access:
        return Access(value, (Index("i"),), place, F16, (("i", Const(128)),), "i")

    body = Body((Node("input", "f", (), 0), Node("abs", "f", (0,))), (1,))
    return Program(
        name="abs64",
        card=Card(),
        grid=(Digit("c", 1),),
        operands=(x, y),
        buffers=(Buffer("xt", 0, 128), Buffer("yt", 128, 128)),
        tokens=(Token("loaded"), Token("done")),
        queues={
            Unit.LOAD: (Load(over, tile("x", "x"), tile("x", "xt")), Signal("loaded")),
            Unit.SFU: (
                Wait("loaded"),
                Compute(
                    Unit.SFU, Kind.MAP, over, (tile("x", "xt"),), (tile("y", "yt"),), body=body
                ),
                Signal("done"),
            ),
            Unit.STORE: (Wait("done"), Store(over, tile("y", "yt"), tile("y", "y"))),
        },
    )


def every_field() -> Program:
    """Every instruction and every optional part; see the module."""
    n, m, i, j = Var("n"), Var("m"), Var("i"), Var("j")
    over = (Label("r", Var("r0"), Const(64)), Label("c", Const(0), Const(128)))
    looped = (Label("r", i * 64 + Var("r0"), Const(64)), over[1])
    dense = (("r", Const(128)), ("c", Const(8192)))

    def tile(value: str, place: str, format: Format = F16, **more: object) -> Access:
        fields: dict[str, object] = {"strides": dense, "stick": "c"}
        fields.update(more)
        index = (Index("r"), Index("c"))
        return Access(value, index, place, format, **fields)  # type: ignore[arg-type]

    def sparse(value: str, place: str, format: Format = F32, **more: object) -> Access:
        return Access(
            value, (Index("r"),), place, format, (("r", Const(128)),), **more  # type: ignore[arg-type]
        )  # fmt: skip

    index = sparse("idx", "ib", I32)
    picked = Access("x", (Index("r"), Index("c")), "x", F16, dense, "c", offset=i * 8192)
    body = Body(
        (
            Node("input", "f", (), 0),
            Node("scalar", "f", (), "alpha"),
            Node("mul", "f", (0, 1)),
            Node("const", "f", (), -0.5),
            Node("lt", "f", (2, 3)),
            Node("index", "l", (), "c"),
            Node("scalar", "l", (), "seed"),
            Node("philox", "l", (5, 6), 3),
            Node("unit", "i", (7,)),
            Node("round", "f", (8,), "IEEE_FP16"),
            Node("where", "f", (4, 9, 3)),
            Node("const", "b", (), 1),
            Node("cast", "b", (11,), "f"),
            Node("max", "f", (10, 12)),
            Node("const", "i", (), -(2**31)),
            Node("bits", "i", (14,), "f"),
            Node("add", "f", (13, 15)),
        ),
        (16,),
    )
    plain = Body((Node("input", "f", (), 0),), (0,))
    lanes = Access(
        "s", (Index("r"),), "acc", F32, (("r", Const(256)),), offset=Const(256), lanes=True
    )  # fmt: skip
    matmul_over = (Label("m", Const(0), Const(64)), Label("n", Const(0), Const(64)),
                   Label("k", Const(0), Const(128)))  # fmt: skip
    load: tuple[Instruction, ...] = (
        Loop(
            "i",
            Binary("//", n + 63, Const(64)),
            (
                Wait("free", Binary("%", i, Const(2)), Const(1)),
                Load(
                    looped, tile("x", "x"), tile("x", "xt", slot=Binary("%", i, Const(2))), ("m",)
                ),
                Load(looped, picked, tile("x", "xt"), (), Gather("r", index, n)),
                Signal("full", Binary("%", i, Const(2)), Const(2), Var("core") - Var("core") % 2),
                Loop(None, Binary("==", m, Const(0)), (Signal("full"),)),
            ),
        ),
    )
    store: tuple[Instruction, ...] = (
        Store(over[:1], sparse("s", "st", F32), sparse("z", "z", F32)),
        Store(
            over,
            tile("x", "xt"),
            tile("w", "w"),
            Scatter("r", index, Const(512), Binary("*", m, Const(128)), Const(128), True),
        ),
    )
    ring: tuple[Instruction, ...] = (
        Ring(
            over[:1],
            "j",
            Const(2),
            Binary("min", m * 2 + j, Var("core")),
            sparse("s", "st", F32),
            sparse("s", "st", F32, offset=Const(8192)),
            Combine.SUM,
        ),
        Ring(over, "j", Const(2), j, tile("x", "xt"), tile("x", "xt", slot=j)),
    )
    pt: tuple[Instruction, ...] = (
        Compute(
            Unit.PT,
            Kind.MATMUL,
            matmul_over,
            (
                Access("x", (Index("m"), Index("k")), "xt", F16,
                       (("m", Const(128)), ("k", Const(8192))), "k"),
                Access("k", (Index("k", Const(64)), Index("n")), "kt", F16,
                       (("k", Const(128)), ("n", Const(16384))), "n"),
            ),
            (
                Access("y", (Index("m"), Index("n")), "yt", F32,
                       (("m", Const(128)), ("n", Const(8192))), "n"),
            ),
            accumulate=Binary("<", Const(0), m),
        ),
    )  # fmt: skip
    values = sparse("s", "st")
    sfu: tuple[Instruction, ...] = (
        Compute(Unit.SFU, Kind.MAP, over, (tile("x", "xt"),), (tile("x", "xt"),), body),
        Compute(
            Unit.SFU, Kind.REDUCE, over, (tile("x", "xt"),), (lanes,), plain, Combine.SUM,
            Binary("<=", Const(1), Var("r0")),
        ),
        Compute(Unit.SFU, Kind.FOLD, over[:1], (lanes,), (values,), combine=Combine.SUM),
        Compute(
            Unit.SFU, Kind.SCAN, over, (tile("x", "xt"), values), (tile("x", "xt"), values),
            combine=Combine.PROD, label="c",
        ),
        Compute(
            Unit.SFU, Kind.SORT, over[:1], (values,), (values, sparse("si", "si", I64)),
            label="r", descending=True,
        ),
        Compute(
            Unit.SFU, Kind.SCATTER, over, (tile("x", "xt"), sparse("idx", "ib", I32)),
            (tile("x", "xt"),), label="r", limit=Const(64), add=True,
        ),
        Compute(
            Unit.SFU, Kind.TOPK, over[:1], (values,), (values, sparse("si", "si", I64)),
            label="r", limit=Binary("max", Const(4), Const(-8)), accumulate=Const(1),
        ),
    )  # fmt: skip
    return Program(
        name='every field, "quoted" \u00b5\n',
        card=Card("small", 4, 1 << 20),
        grid=(Digit("m", 2), Digit("o", 2)),
        symbols=(
            Symbol("n", SymbolKind.DIMENSION, 0, 0, 64, 64, 4096),
            Symbol("seed", SymbolKind.INT, minimum=-(2**63)),
            Symbol("alpha", SymbolKind.FLOAT),
        ),
        operands=(
            Operand("x", Role.IN, "float16", F16, _sizes("n", 128), _sizes(4096, 256), (1, 0)),
            Operand("idx", Role.IN, "int32", I32, _sizes("n"), None, (0, -1)),
            Operand("z", Role.OUT, "float32", F32, _sizes("n"), None, (0, -1)),
            Operand("w", Role.INOUT, "float16", F16, _sizes(512, 128)),
            Operand("t", Role.SCRATCH, "float32", F32, _sizes(64, 64), offset=4096),
            Operand("k", Role.CONST, "float16", F16, _sizes(1, 64), offset=128),
            Operand("scalar", Role.IN, "float32", F32, ()),
            Operand(
                "v",
                Role.IN,
                "float16",
                F16,
                _sizes("n", 128),
                strides=(n * 256, Const(128)),
                stick=1,
            ),
        ),
        values=(
            Value("s", (n,)),
            Value("si", (n,)),
            Value("y", _sizes(64, 64), (Const(128),)),
        ),
        buffers=(
            Buffer("xt", 0, 32768, 2),
            Buffer("ib", 65536, 8192),
            Buffer("acc", 73728, 32768),
            Buffer("st", 106496, 16384),
            Buffer("si", 122880, 8192),
            Buffer("kt", 131072, 32768),
            Buffer("yt", 163840, 32768),
        ),
        tokens=(Token("free", 2, 1), Token("full", 2)),
        lets=(
            Let("r0", Binary("*", m, Binary("-", n, Binary("-", Const(-3), Const(5))))),
            Let("big", Const(-(2**63))),
            Let("odd", Binary("-", Const(-3), Binary("-", Var("o"), Const(-1)))),
        ),
        queues={Unit.LOAD: load, Unit.STORE: store, Unit.RING: ring, Unit.PT: pt, Unit.SFU: sfu},
        data=bytes(range(256)),
    )


GOLDEN: dict[str, Callable[[], Program]] = {"abs64": abs64, "every_field": every_field}


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    for name, build in GOLDEN.items():
        program = build()
        (DATA / f"golden_{name}.bin").write_bytes(encode(program))
        (DATA / f"golden_{name}.txt").write_text(to_text(program), encoding="utf-8")
