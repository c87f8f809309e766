"""z = x + y, rows split over the cores: the smallest complete program, explained in the docs."""

from __future__ import annotations

import numpy as np

from openspyre.formats import Mode
from openspyre.program import Program, ProgramBuilder


def build(
    rows: int = 4096,
    cols: int = 2048,
    *,
    dtype: str = "float16",
    cores: int = 32,
    tile: tuple[int, int] = (128, 256),
    symbolic: bool = False,
    mode: Mode = Mode.DL16,
) -> Program:
    """x, y, z: [rows, cols]. `symbolic`: the number of rows is known at launch, up to `rows`."""
    b = ProgramBuilder("add", {"core_row": cores}, mode=mode)
    height = b.dimension("rows", 0, 0, maximum=rows) if symbolic else rows
    x = b.input("x", (height, cols), dtype)
    y = b.input("y", (height, cols), dtype)
    z = b.output("z", (height, cols), dtype)

    mine = b.split("mine", height, "core_row")
    xs = b.stream("xs", x, tile)
    ys = b.stream("ys", y, tile)
    zs = b.stream("zs", z, tile, users=["store"])
    boxes = b.boxes(r=(mine, tile[0]), c=(cols, tile[1]))

    with b.queue("load"), boxes() as (over, turn):
        with xs.fill(turn) as xt:
            b.load(over, x["r", "c"], xt["r", "c"])
        with ys.fill(turn) as yt:
            b.load(over, y["r", "c"], yt["r", "c"])
    with (
        b.queue("sfu"),
        boxes() as (over, turn),
        xs.use(turn) as xt,
        ys.use(turn) as yt,
        zs.fill(turn) as zt,
    ):
        b.map(over, zt["r", "c"], lambda p, q: p + q, xt["r", "c"], yt["r", "c"])
    with b.queue("store"), boxes() as (over, turn), zs.use(turn) as zt:
        b.store(over, zt["r", "c"], z["r", "c"])
    return b.build()


def reference(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) + y.astype(np.float32)
