"""By index: rows of a table (embedding), sums into rows (index_add), and along a row inside LX.

LOAD and STORE take positions from an index tile in LX, so a row of a table is one strided move. The
COMPUTE kinds gather and scatter do it between tiles. Indices are checked when they are used.
"""

from __future__ import annotations

import numpy as np

from openspyre.formats import Mode
from openspyre.program import Program, ProgramBuilder
from openspyre.program.ops import Kind


def embedding(
    tokens: int = 2048,
    width: int = 2048,
    table_rows: int = 32768,
    *,
    dtype: str = "float16",
    index_dtype: str = "int64",
    cores: int = 32,
    tile_rows: int = 32,
    mode: Mode = Mode.DL16,
) -> Program:
    """out [tokens, width] = table [table_rows, width] at index [tokens]."""
    b = ProgramBuilder("embedding", {"core_token": cores}, mode=mode)
    index = b.input("index", (tokens,), index_dtype)
    table = b.input("table", (table_rows, width), dtype)
    out = b.output("out", (tokens, width), dtype)
    eps = index.format.elements_per_stick
    mine = b.split("mine", tokens, "core_token", unit=eps)
    index_lx = b.lx("index_lx", index, (tile_rows,))
    outs = b.stream("outs", out, (tile_rows, width), users=["store"])

    with b.queue("load"), b.tiles("i", mine, tile_rows) as t, outs.fill(t.step) as row:
        b.load({"t": t}, index["t"], index_lx["t"])
        b.load(
            {"t": t, "c": width},
            table["t", "c"],
            row["t", "c"],
            gather=("t", index_lx["t"], table_rows),
        )
    with b.queue("store"), b.tiles("i", mine, tile_rows) as t, outs.use(t.step) as row:
        b.store({"t": t, "c": width}, row["t", "c"], out["t", "c"])
    return b.build()


def embedding_reference(index: np.ndarray, table: np.ndarray) -> np.ndarray:
    return table[index]


def index_add(
    rows: int = 4096,
    width: int = 1024,
    updates: int = 2048,
    *,
    dtype: str = "float32",
    cores: int = 32,
    tile_rows: int = 32,
    mode: Mode = Mode.DL16,
) -> Program:
    """target [rows, width][index[u]] += x[u]: every core goes through all updates, in order, and
    stores those that fall into its own window of rows."""
    b = ProgramBuilder("index_add", {"core_row": cores}, mode=mode)
    target = b.inout("target", (rows, width), dtype)
    index = b.input("index", (updates,), "int64")
    x = b.input("x", (updates, width), dtype)
    window = b.split("window", rows, "core_row")
    indices = b.stream("indices", index, (tile_rows,), users=["store"])
    xs = b.stream("xs", x, (tile_rows, width), users=["store"])

    with b.queue("load"), b.tiles("i", updates, tile_rows) as u:
        with indices.fill(u.step) as at:
            b.load({"u": u}, index["u"], at["u"], multicast=["core_row"])
        with xs.fill(u.step) as xt:
            b.load({"u": u, "c": width}, x["u", "c"], xt["u", "c"], multicast=["core_row"])
    with (
        b.queue("store"),
        b.tiles("i", updates, tile_rows) as u,
        indices.use(u.step) as at,
        xs.use(u.step) as xt,
    ):
        b.store(
            {"u": u, "c": width},
            xt["u", "c"],
            target["u", "c"],
            scatter=("u", at["u"], rows),
            window=window,
            add=True,
        )
    return b.build()


def index_add_reference(target: np.ndarray, index: np.ndarray, x: np.ndarray) -> np.ndarray:
    out = target.astype(np.float64)
    np.add.at(out, index, x.astype(np.float64))
    return out


def take_along(
    rows: int = 4096,
    cols: int = 512,
    *,
    dtype: str = "float16",
    cores: int = 32,
    tile_rows: int = 32,
    mode: Mode = Mode.DL16,
) -> Program:
    """out[r, c] = x[r, index[r, c]], all [rows, cols]; the index is int32."""
    b = ProgramBuilder("take_along", {"core_row": cores}, mode=mode)
    x = b.input("x", (rows, cols), dtype)
    index = b.input("index", (rows, cols), "int32")
    out = b.output("out", (rows, cols), dtype)
    mine = b.split("mine", rows, "core_row")
    xs = b.stream("xs", x, (tile_rows, cols))
    indices = b.stream("indices", index, (tile_rows, cols))
    outs = b.stream("outs", out, (tile_rows, cols), users=["store"])
    boxes = b.boxes(r=(mine, tile_rows), c=cols)

    with b.queue("load"), boxes() as (over, turn):
        with xs.fill(turn) as t:
            b.load(over, x["r", "c"], t["r", "c"])
        with indices.fill(turn) as t:
            b.load(over, index["r", "c"], t["r", "c"])
    with (
        b.queue("sfu"),
        boxes() as (over, turn),
        xs.use(turn) as xt,
        indices.use(turn) as at,
        outs.fill(turn) as t,
    ):
        b.compute(
            Kind.GATHER,
            over,
            (xt["r", "c"], at["r", "c"]),
            t["r", "c"],
            label="c",
            limit=cols,
        )
    with (
        b.queue("store"),
        boxes() as (over, turn),
        outs.use(turn) as t,
    ):
        b.store(over, t["r", "c"], out["r", "c"])
    return b.build()


def take_along_reference(x: np.ndarray, index: np.ndarray) -> np.ndarray:
    return np.take_along_axis(x, index, axis=1)


def scatter_add(
    rows: int = 4096,
    cols: int = 512,
    *,
    dtype: str = "float32",
    cores: int = 32,
    tile_rows: int = 16,
    mode: Mode = Mode.DL16,
) -> Program:
    """target[r, index[r, c]] += x[r, c] inside LX, in ascending c; all [rows, cols]."""
    b = ProgramBuilder("scatter_add", {"core_row": cores}, mode=mode)
    target = b.inout("target", (rows, cols), dtype)
    index = b.input("index", (rows, cols), "int32")
    x = b.input("x", (rows, cols), dtype)
    mine = b.split("mine", rows, "core_row")
    targets = b.stream("targets", target, (tile_rows, cols))
    indices = b.stream("indices", index, (tile_rows, cols))
    xs = b.stream("xs", x, (tile_rows, cols))
    sums = b.stream("sums", target, (tile_rows, cols), users=["store"])
    boxes = b.boxes(r=(mine, tile_rows), c=cols)

    with b.queue("load"), boxes() as (over, turn):
        for tensor, stream in ((target, targets), (index, indices), (x, xs)):
            with stream.fill(turn) as t:
                b.load(over, tensor["r", "c"], t["r", "c"])
    with (
        b.queue("sfu"),
        boxes() as (over, turn),
        targets.use(turn) as old,
        indices.use(turn) as at,
        xs.use(turn) as xt,
        sums.fill(turn) as t,
    ):
        b.map(over, t["r", "c"], lambda value: value, old["r", "c"])
        b.compute(
            Kind.SCATTER,
            over,
            (xt["r", "c"], at["r", "c"]),
            t["r", "c"],
            label="c",
            limit=cols,
            add=True,
        )
    with (
        b.queue("store"),
        boxes() as (over, turn),
        sums.use(turn) as t,
    ):
        b.store(over, t["r", "c"], target["r", "c"])
    return b.build()


def scatter_add_reference(target: np.ndarray, index: np.ndarray, x: np.ndarray) -> np.ndarray:
    out = target.astype(np.float64)
    np.add.at(out, (np.arange(len(x))[:, None], index), x.astype(np.float64))
    return out
