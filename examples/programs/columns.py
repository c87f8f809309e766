"""Along and across the stick: transpose, column sums and running sums."""

from __future__ import annotations

import numpy as np

from openspyre.formats import Mode
from openspyre.program import Program, ProgramBuilder
from openspyre.program import body as f
from openspyre.program.ops import Combine, Kind


def transpose(
    rows: int = 4096,
    cols: int = 2048,
    *,
    dtype: str = "float16",
    cores: int = 32,
    tile: tuple[int, int] = (256, 128),
    mode: Mode = Mode.DL16,
) -> Program:
    """y [cols, rows] = x [rows, cols].T: a MAP whose tiles have different dims on the stick. Both
    dims of a tile begin at whole sticks."""
    b = ProgramBuilder("transpose", {"core_col": cores}, mode=mode)
    x = b.input("x", (rows, cols), dtype)
    y = b.output("y", (cols, rows), dtype)
    mine = b.split("mine", cols, "core_col", unit=x.format.elements_per_stick)
    xs = b.stream("xs", x, tile)
    ys = b.stream("ys", y, (tile[1], tile[0]), users=["store"])
    boxes = b.boxes(c=(mine, tile[1]), r=(rows, tile[0]))

    with b.queue("load"), boxes() as (over, turn), xs.fill(turn) as t:
        b.load(over, x["r", "c"], t["r", "c"])
    with b.queue("sfu"), boxes() as (over, turn), xs.use(turn) as xt, ys.fill(turn) as yt:
        b.map(over, yt["c", "r"], f.identity, xt["r", "c"])
    with b.queue("store"), boxes() as (over, turn), ys.use(turn) as t:
        b.store(over, t["c", "r"], y["c", "r"])
    return b.build()


def transpose_reference(x: np.ndarray) -> np.ndarray:
    return x.T


def column_sum(
    rows: int = 4096,
    cols: int = 2048,
    *,
    dtype: str = "float16",
    cores: int = 32,
    tile: tuple[int, int] = (256, 64),
    mode: Mode = Mode.DL16,
) -> Program:
    """y [cols] = the sum of x [rows, cols] over the rows: across sticks, one row after another."""
    b = ProgramBuilder("column_sum", {"core_col": cores}, mode=mode)
    x = b.input("x", (rows, cols), dtype)
    y = b.output("y", (cols,), dtype)
    acc = b.value("acc", (cols,), reduced=(rows,))
    mine = b.split("mine", cols, "core_col", unit=x.format.elements_per_stick)
    xs = b.stream("xs", x, tile)
    acc_lx = b.lx("acc_lx", acc, (tile[1],))
    ys = b.stream("ys", y, (tile[1],), users=["store"])
    down = -(-rows // tile[0])
    boxes = b.boxes(c=(mine, tile[1]), r=(rows, tile[0]))

    with b.queue("load"), boxes() as (over, turn), xs.fill(turn) as t:
        b.load(over, x["r", "c"], t["r", "c"])
    with b.queue("sfu"), b.tiles("i", mine, tile[1]) as c:
        with b.tiles("j", rows, tile[0]) as r, xs.use(c.step * down + r.step) as t:
            b.reduce(
                {"r": r, "c": c},
                Combine.SUM,
                acc_lx["c"],
                f.identity,
                t["r", "c"],
                accumulate=r.step,
            )
        with ys.fill(c.step) as t:
            b.map({"c": c}, t["c"], f.identity, acc_lx["c"])
    with b.queue("store"), b.tiles("i", mine, tile[1]) as c, ys.use(c.step) as t:
        b.store({"c": c}, t["c"], y["c"])
    return b.build()


def column_sum_reference(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64).sum(axis=0)


def cumsum(
    rows: int = 4096,
    cols: int = 2048,
    *,
    dtype: str = "float32",
    cores: int = 32,
    tile: tuple[int, int] = (64, 256),
    combine: Combine = Combine.SUM,
    mode: Mode = Mode.DL16,
) -> Program:
    """y = the running sum of x [rows, cols] along the rows; a carry tile joins the parts."""
    b = ProgramBuilder("cumsum", {"core_row": cores}, mode=mode)
    x = b.input("x", (rows, cols), dtype)
    y = b.output("y", (rows, cols), dtype)
    carry = b.value("carry", (rows,), reduced=(cols,))
    mine = b.split("mine", rows, "core_row")
    xs = b.stream("xs", x, tile)
    carry_lx = b.lx("carry_lx", carry, (tile[0],), stick=None)
    ys = b.stream("ys", y, tile, users=["store"])
    boxes = b.boxes(r=(mine, tile[0]), c=(cols, tile[1]))

    with b.queue("load"), boxes() as (over, turn), xs.fill(turn) as t:
        b.load(over, x["r", "c"], t["r", "c"])
    with b.queue("sfu"), boxes() as (over, turn), xs.use(turn) as xt, ys.fill(turn) as yt:
        b.compute(
            Kind.SCAN,
            over,
            (xt["r", "c"], carry_lx["r"]),
            (yt["r", "c"], carry_lx["r"]),
            combine=combine,
            label="c",
            accumulate=over["c"].step,
        )
    with b.queue("store"), boxes() as (over, turn), ys.use(turn) as t:
        b.store(over, t["r", "c"], y["r", "c"])
    return b.build()


def cumsum_reference(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64).cumsum(axis=1)
