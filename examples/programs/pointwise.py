"""out = f(x0, x1, ..) for any body f: copy, neg, gelu, and random numbers without an input."""

from __future__ import annotations

import math
from contextlib import ExitStack

import numpy as np

from openspyre.formats import Mode
from openspyre.program import Program, ProgramBuilder
from openspyre.program import body as f
from openspyre.program.body import BodyFunction, Reg


def build(
    name: str,
    function: BodyFunction,
    rows: int = 4096,
    cols: int = 2048,
    *,
    dtypes: tuple[str, ...] = ("float16", "float16"),
    cores: int = 32,
    tile: tuple[int, int] = (128, 256),
    symbols: tuple[str, ...] = (),
    floats: tuple[str, ...] = (),
    mode: Mode = Mode.DL16,
) -> Program:
    """All tensors are [rows, cols]; `dtypes`: of the inputs x0, x1, .., then of the output.
    `symbols` and `floats`: int64 and float32 numbers of the launch, for `scalar` in the body."""
    b = ProgramBuilder(name, {"core_row": cores}, mode=mode)
    for symbol in symbols:
        b.int_symbol(symbol, minimum=-(2**63))
    for symbol in floats:
        b.float_symbol(symbol)
    inputs = [b.input(f"x{i}", (rows, cols), dtype) for i, dtype in enumerate(dtypes[:-1])]
    out = b.output("out", (rows, cols), dtypes[-1])
    mine = b.split("mine", rows, "core_row")
    streams = [b.stream(f"x{i}s", x, tile) for i, x in enumerate(inputs)]
    outs = b.stream("outs", out, tile, users=["store"])
    boxes = b.boxes(r=(mine, tile[0]), c=(cols, tile[1]))

    if inputs:
        with b.queue("load"), boxes() as (over, turn):
            for x, stream in zip(inputs, streams, strict=True):
                with stream.fill(turn) as t:
                    b.load(over, x["r", "c"], t["r", "c"])
    with b.queue("sfu"), boxes() as (over, turn), ExitStack() as open_tiles:
        tiles = [open_tiles.enter_context(stream.use(turn)) for stream in streams]
        target = open_tiles.enter_context(outs.fill(turn))
        sources = [t["r", "c"] for t in tiles]
        b.map(over, target["r", "c"], function, *sources)
    with b.queue("store"), boxes() as (over, turn), outs.use(turn) as t:
        b.store(over, t["r", "c"], out["r", "c"])
    return b.build()


def copy(rows: int = 4096, cols: int = 2048, **options: object) -> Program:
    return build("copy", f.identity, rows, cols, **options)  # type: ignore[arg-type]


def neg(rows: int = 4096, cols: int = 2048, **options: object) -> Program:
    return build("neg", lambda x: -x, rows, cols, **options)  # type: ignore[arg-type]


def gelu(rows: int = 4096, cols: int = 2048, **options: object) -> Program:
    return build("gelu", f.gelu, rows, cols, **options)  # type: ignore[arg-type]


def gelu_reference(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    erf = np.vectorize(math.erf)(wide / math.sqrt(2.0))
    return 0.5 * wide * (1.0 + erf)


def uniform(rows: int = 4096, cols: int = 2048, **options: object) -> Program:
    """Element number n is word n % 4 of Philox4x32-10 at counter n // 4, in [0, 1)."""

    def random(any_: Reg) -> Reg:
        number = any_.index("r") * cols + any_.index("c")
        seed, counter, word = any_.scalar("seed", "l"), number >> 2, number & 3
        words = [f.philox(seed, counter, i) for i in range(4)]
        low = f.where(f.equal(word, 0), words[0], words[1])
        high = f.where(f.equal(word, 2), words[2], words[3])
        return f.unit(f.where(word < 2, low, high))

    return build(
        "uniform",
        random,
        rows,
        cols,
        dtypes=("float32",),
        symbols=("seed",),
        **options,  # type: ignore[arg-type]
    )


def uniform_reference(rows: int, cols: int, seed: int) -> np.ndarray:
    """Philox4x32-10 as Salmon et al. (2011) give it; counter words 2 and 3 are zero."""
    counter = np.arange(-(-rows * cols // 4), dtype=np.uint64)
    low = np.uint64(0xFFFF_FFFF)
    words = [
        counter & low,
        counter >> np.uint64(32),
        counter * np.uint64(0),
        counter * np.uint64(0),
    ]
    key = [seed & 0xFFFF_FFFF, (seed >> 32) & 0xFFFF_FFFF]
    for _ in range(10):
        first, second = words[0] * np.uint64(0xD251_1F53), words[2] * np.uint64(0xCD9E_8D57)
        words = [
            (second >> np.uint64(32)) ^ words[1] ^ np.uint64(key[0]),
            second & low,
            (first >> np.uint64(32)) ^ words[3] ^ np.uint64(key[1]),
            first & low,
        ]
        key = [(key[0] + 0x9E37_79B9) & 0xFFFF_FFFF, (key[1] + 0xBB67_AE85) & 0xFFFF_FFFF]
    drawn = np.stack(words, axis=1).reshape(-1)[: rows * cols].reshape(rows, cols)
    return ((drawn >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)).astype(np.float32)
