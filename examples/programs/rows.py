"""What is done to whole rows: softmax, layernorm, rms_norm and argmax.

A tile holds some rows in full length. A reduction along the row gives 64 lane accumulators a row
(REDUCE) and then one number a row (FOLD), which further MAPs broadcast over the row. Everything
between the loaded and the stored 16-bit tensor is float32.
"""

from __future__ import annotations

import numpy as np

from openspyre.formats import Format, Mode
from openspyre.program import Program, ProgramBuilder
from openspyre.program import body as f
from openspyre.program.ops import Combine

F32, I64 = Format.IEEE_FP32, Format.IEEE_INT64


TILES = 4
"""A core has at least so many tiles where its share allows it: with one or two, load, compute and
store come one after the other instead of side by side."""


def tile_height(rows: int, cores: int, most: int, across: int = 1) -> int:
    """The largest height of tiles up to `most` that gives the largest share of `rows` TILES tiles,
    there being `across` tiles beside each other; 1 where the share is too small for that."""
    share = max(1, -(-rows // cores))
    down = min(share, -(-TILES // across))
    fitting = share if down == 1 else (share - 1) // (down - 1)  # ceil(share / height) >= down
    return max(1, min(most, fitting))


def rows_of_tile(rows: int, cols: int, cores: int) -> int:
    """So many rows that a 16-bit tile takes about 64 KiB, fewer where a core's share is small."""
    return tile_height(rows, cores, max(1, min(64, 32768 // cols)))


def softmax(
    rows: int = 4096,
    cols: int = 2048,
    *,
    dtype: str = "float16",
    cores: int = 32,
    tile_rows: int | None = None,
    mode: Mode = Mode.DL16,
) -> Program:
    """y = softmax(x) along the rows of [rows, cols]."""
    b = ProgramBuilder("softmax", {"core_row": cores}, mode=mode)
    height = tile_rows or rows_of_tile(rows, cols, cores)
    x = b.input("x", (rows, cols), dtype)
    y = b.output("y", (rows, cols), dtype)
    largest = b.value("largest", (rows,), reduced=(cols,))
    top = b.value("top", (rows,))
    powers = b.value("powers", (rows, cols))
    total = b.value("total", (rows,), reduced=(cols,))
    whole = b.value("whole", (rows,))

    xs = b.stream("xs", x, (height, cols))
    ys = b.stream("ys", y, (height, cols), users=["store"])
    largest_lx = b.lx("largest_lx", largest, (height,), lanes=True)
    top_lx = b.lx("top_lx", top, (height,), stick=None)
    powers_lx = b.lx("powers_lx", powers, (height, cols))
    total_lx = b.lx("total_lx", total, (height,), lanes=True)
    whole_lx = b.lx("whole_lx", whole, (height,), stick=None)
    mine = b.split("mine", rows, "core_row")
    boxes = b.boxes(r=(mine, height), c=cols)

    with b.queue("load"), boxes() as (over, turn), xs.fill(turn) as xt:
        b.load(over, x["r", "c"], xt["r", "c"])
    with b.queue("sfu"), boxes() as (over, turn):
        row = {"r": over["r"]}
        with xs.use(turn) as xt:
            b.reduce(over, Combine.MAX, largest_lx["r"], f.identity, xt["r", "c"])
            b.fold(row, Combine.MAX, top_lx["r"], largest_lx["r"])
            b.map(
                over,
                powers_lx["r", "c"],
                lambda p, m: f.exp(p - m),
                xt["r", "c"],
                top_lx["r"],
            )
        b.reduce(over, Combine.SUM, total_lx["r"], f.identity, powers_lx["r", "c"])
        b.fold(row, Combine.SUM, whole_lx["r"], total_lx["r"])
        with ys.fill(turn) as yt:
            b.map(over, yt["r", "c"], lambda p, s: p / s, powers_lx["r", "c"], whole_lx["r"])
    with b.queue("store"), boxes() as (over, turn), ys.use(turn) as yt:
        b.store(over, yt["r", "c"], y["r", "c"])
    return b.build()


def softmax_reference(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def layernorm(
    rows: int = 4096,
    cols: int = 2048,
    *,
    dtype: str = "float16",
    cores: int = 32,
    tile_rows: int | None = None,
    eps: float = 1e-5,
    mode: Mode = Mode.DL16,
) -> Program:
    """y = (x - mean) / sqrt(var + eps) * weight + bias along the rows of [rows, cols]."""
    b = ProgramBuilder("layernorm", {"core_row": cores}, mode=mode)
    height = tile_rows or rows_of_tile(rows, cols, cores)
    x = b.input("x", (rows, cols), dtype)
    weight = b.input("weight", (cols,), dtype)
    bias = b.input("bias", (cols,), dtype)
    y = b.output("y", (rows, cols), dtype)
    parts = [b.value(f"part_{n}", (rows,), reduced=(cols,)) for n in ("mean", "m2", "n")]
    whole = [b.value(n, (rows,)) for n in ("mean", "m2", "n")]

    xs = b.stream("xs", x, (height, cols))
    ys = b.stream("ys", y, (height, cols), users=["store"])
    weights = b.stream("weights", weight, (cols,), slots=1)
    biases = b.stream("biases", bias, (cols,), slots=1)
    part_lx = [b.lx(f"{v.name}_lx", v, (height,), lanes=True) for v in parts]
    whole_lx = [b.lx(f"{v.name}_lx", v, (height,), stick=None) for v in whole]
    mine = b.split("mine", rows, "core_row")
    boxes = b.boxes(r=(mine, height), c=cols)

    with b.queue("load"):
        with weights.fill() as wt, biases.fill() as bt:
            b.load({"c": cols}, weight["c"], wt["c"], multicast=["core_row"])
            b.load({"c": cols}, bias["c"], bt["c"], multicast=["core_row"])
        with boxes() as (over, turn), xs.fill(turn) as xt:
            b.load(over, x["r", "c"], xt["r", "c"])
    with (
        b.queue("sfu"),
        weights.use() as wt,
        biases.use() as bt,
        boxes() as (over, turn),
    ):
        row = {"r": over["r"]}
        with xs.use(turn) as xt, ys.fill(turn) as yt:
            b.reduce(over, Combine.WELFORD, [t["r"] for t in part_lx], f.identity, xt["r", "c"])
            b.fold(
                row,
                Combine.WELFORD,
                [t["r"] for t in whole_lx],
                [t["r"] for t in part_lx],
            )
            b.map(
                over,
                yt["r", "c"],
                lambda p, mean, m2, n, w, o: (p - mean) * f.rsqrt(m2 / n + eps) * w + o,
                xt["r", "c"],
                *(t["r"] for t in whole_lx),
                wt["c"],
                bt["c"],
            )
    with b.queue("store"), boxes() as (over, turn), ys.use(turn) as yt:
        b.store(over, yt["r", "c"], y["r", "c"])
    return b.build()


def layernorm_reference(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float = 1e-5
) -> np.ndarray:
    wide = x.astype(np.float64)
    scaled = (wide - wide.mean(axis=1, keepdims=True)) / np.sqrt(wide.var(axis=1) + eps)[:, None]
    return scaled * weight.astype(np.float64) + bias.astype(np.float64)


def rms_norm(
    rows: int = 4096,
    cols: int = 2048,
    *,
    dtype: str = "float16",
    cores: int = 32,
    tile_rows: int | None = None,
    eps: float = 1e-6,
    mode: Mode = Mode.DL16,
) -> Program:
    """y = x / sqrt(mean(x * x) + eps) * weight along the rows of [rows, cols]."""
    b = ProgramBuilder("rms_norm", {"core_row": cores}, mode=mode)
    height = tile_rows or rows_of_tile(rows, cols, cores)
    x = b.input("x", (rows, cols), dtype)
    weight = b.input("weight", (cols,), dtype)
    y = b.output("y", (rows, cols), dtype)
    squares = b.value("squares", (rows,), reduced=(cols,))
    total = b.value("total", (rows,))
    scale = b.value("scale", (rows,))

    xs = b.stream("xs", x, (height, cols))
    ys = b.stream("ys", y, (height, cols), users=["store"])
    weights = b.stream("weights", weight, (cols,), slots=1)
    squares_lx = b.lx("squares_lx", squares, (height,), lanes=True)
    total_lx = b.lx("total_lx", total, (height,), stick=None)
    scale_lx = b.lx("scale_lx", scale, (height,), stick=None)
    mine = b.split("mine", rows, "core_row")
    boxes = b.boxes(r=(mine, height), c=cols)

    with b.queue("load"):
        with weights.fill() as wt:
            b.load({"c": cols}, weight["c"], wt["c"], multicast=["core_row"])
        with boxes() as (over, turn), xs.fill(turn) as xt:
            b.load(over, x["r", "c"], xt["r", "c"])
    with b.queue("sfu"), weights.use() as wt, boxes() as (over, turn):
        row = {"r": over["r"]}
        with xs.use(turn) as xt, ys.fill(turn) as yt:
            b.reduce(over, Combine.SUM, squares_lx["r"], lambda p: p * p, xt["r", "c"])
            b.fold(row, Combine.SUM, total_lx["r"], squares_lx["r"])
            b.map(row, scale_lx["r"], lambda s: f.rsqrt(s / float(cols) + eps), total_lx["r"])
            b.map(
                over,
                yt["r", "c"],
                lambda p, s, w: p * s * w,
                xt["r", "c"],
                scale_lx["r"],
                wt["c"],
            )
    with b.queue("store"), boxes() as (over, turn), ys.use(turn) as yt:
        b.store(over, yt["r", "c"], y["r", "c"])
    return b.build()


def rms_norm_reference(x: np.ndarray, weight: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide * wide).mean(axis=1) + eps)[:, None] * weight.astype(np.float64)


def argmax(
    rows: int = 4096,
    cols: int = 32768,
    *,
    dtype: str = "float16",
    cores: int = 32,
    tile: tuple[int, int] = (32, 1024),
    mode: Mode = Mode.DL16,
) -> Program:
    """index = argmax(x) along the rows of [rows, cols]. A row is taken in parts: the accumulators
    stay in LX, and the first part starts them."""
    b = ProgramBuilder("argmax", {"core_row": cores}, mode=mode)
    x = b.input("x", (rows, cols), dtype)
    index = b.output("index", (rows,), "int64")
    part_value = b.value("part_value", (rows,), reduced=(cols,))
    part_index = b.value("part_index", (rows,), reduced=(cols,), format=I64)
    top_value = b.value("top_value", (rows,))
    top_index = b.value("top_index", (rows,), format=I64)

    xs = b.stream("xs", x, tile)
    outs = b.stream("outs", index, (tile[0],), users=["store"])
    part_lx = [b.lx(f"{v.name}_lx", v, (tile[0],), lanes=True) for v in (part_value, part_index)]
    top_lx = [b.lx(f"{v.name}_lx", v, (tile[0],), stick=None) for v in (top_value, top_index)]
    # The result lies 16 to a stick: the cores' shares begin at multiples of 16.
    mine = b.split("mine", rows, "core_row", unit=16)
    across = -(-cols // tile[1])
    boxes = b.boxes(r=(mine, tile[0]), c=(cols, tile[1]))

    with b.queue("load"), boxes() as (over, turn), xs.fill(turn) as xt:
        b.load(over, x["r", "c"], xt["r", "c"])
    with b.queue("sfu"), b.tiles("i", mine, tile[0]) as r:
        with b.tiles("j", cols, tile[1]) as c, xs.use(r.step * across + c.step) as xt:
            b.reduce(
                {"r": r, "c": c},
                Combine.ARGMAX,
                [t["r"] for t in part_lx],
                f.identity,
                xt["r", "c"],
                accumulate=c.step,
            )
        b.fold({"r": r}, Combine.ARGMAX, [t["r"] for t in top_lx], [t["r"] for t in part_lx])
        with outs.fill(r.step) as t:
            b.map({"r": r}, t["r"], f.identity, top_lx[1]["r"])  # one a stick to 16 a stick
    with b.queue("store"), b.tiles("i", mine, tile[0]) as r, outs.use(r.step) as t:
        b.store({"r": r}, t["r"], index["r"])
    return b.build()


def argmax_reference(x: np.ndarray) -> np.ndarray:
    return x.argmax(axis=1)
