"""Order along a row: topk taken part by part, and a sort of two halves that are then merged."""

from __future__ import annotations

import numpy as np

from openspyre.formats import Format, Mode
from openspyre.program import Program, ProgramBuilder
from openspyre.program import body as f
from openspyre.program.ops import Kind

I64 = Format.IEEE_INT64


def topk(
    rows: int = 1024,
    cols: int = 32768,
    k: int = 8,
    *,
    dtype: str = "float16",
    largest: bool = True,
    cores: int = 32,
    tile: tuple[int, int] = (16, 1024),
    mode: Mode = Mode.DL16,
) -> Program:
    """values, indices [rows, k] of the k largest (smallest) of each row of x [rows, cols]."""
    b = ProgramBuilder("topk", {"core_row": cores}, mode=mode)
    x = b.input("x", (rows, cols), dtype)
    values = b.output("values", (rows, k), dtype)
    indices = b.output("indices", (rows, k), "int64")
    best = b.value("best", (rows, k), reduced=(cols,), format=x.format)
    where = b.value("where", (rows, k), reduced=(cols,), format=I64)
    mine = b.split("mine", rows, "core_row")
    xs = b.stream("xs", x, tile)
    best_lx = b.lx("best_lx", best, (tile[0], k))
    where_lx = b.lx("where_lx", where, (tile[0], k))
    values_out = b.stream("values_out", values, (tile[0], k), users=["store"])
    indices_out = b.stream("indices_out", indices, (tile[0], k), users=["store"])
    across = -(-cols // tile[1])
    boxes = b.boxes(r=(mine, tile[0]), c=(cols, tile[1]))

    with b.queue("load"), boxes() as (over, turn), xs.fill(turn) as t:
        b.load(over, x["r", "c"], t["r", "c"])
    with b.queue("sfu"), b.tiles("i", mine, tile[0]) as r:
        with b.tiles("j", cols, tile[1]) as c, xs.use(r.step * across + c.step) as t:
            b.compute(
                Kind.TOPK,
                {"r": r, "c": c},
                t["r", "c"],
                (best_lx["r", "c"], where_lx["r", "c"]),
                label="c",
                limit=k,
                descending=largest,
                accumulate=c.step,
            )
        with values_out.fill(r.step) as t:
            b.map({"r": r, "p": k}, t["r", "p"], f.identity, best_lx["r", "p"])
        with indices_out.fill(r.step) as t:
            b.map({"r": r, "p": k}, t["r", "p"], f.identity, where_lx["r", "p"])
    with b.queue("store"), b.tiles("i", mine, tile[0]) as r:
        with values_out.use(r.step) as t:
            b.store({"r": r, "p": k}, t["r", "p"], values["r", "p"])
        with indices_out.use(r.step) as t:
            b.store({"r": r, "p": k}, t["r", "p"], indices["r", "p"])
    return b.build()


def topk_reference(x: np.ndarray, k: int, largest: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Values and indices; among equals the smaller index first."""
    key = -x.astype(np.float64) if largest else x.astype(np.float64)
    order = np.argsort(key, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(x, order, axis=1), order


def sort_rows(
    rows: int = 1024,
    half: int = 1024,
    *,
    dtype: str = "float16",
    descending: bool = False,
    cores: int = 32,
    tile_rows: int = 8,
    mode: Mode = Mode.DL16,
) -> Program:
    """values, indices of the stable sort of each row of x [rows, 2 * half]; `half` whole sticks."""
    b = ProgramBuilder("sort_rows", {"core_row": cores}, mode=mode)
    cols = 2 * half
    x = b.input("x", (rows, cols), dtype)
    values = b.output("values", (rows, cols), dtype)
    indices = b.output("indices", (rows, cols), "int64")
    runs = b.value("runs", (rows, cols), format=x.format)
    places = b.value("places", (rows, cols), format=I64)
    mine = b.split("mine", rows, "core_row")
    shape = (tile_rows, cols)
    xs = b.stream("xs", x, shape)
    runs_lx = b.lx("runs_lx", runs, shape)
    places_lx = b.lx("places_lx", places, shape)
    values_out = b.stream("values_out", values, shape, users=["store"])
    indices_out = b.stream("indices_out", indices, shape, users=["store"])

    with b.queue("load"), b.tiles("i", mine, tile_rows) as r, xs.fill(r.step) as t:
        b.load({"r": r, "c": cols}, x["r", "c"], t["r", "c"])
    with b.queue("sfu"), b.tiles("i", mine, tile_rows) as r:
        with xs.use(r.step) as t:
            for begin in (0, half):
                b.compute(
                    Kind.SORT,
                    {"r": r, "c": (begin, half)},
                    t.part(0, begin)["r", "c"],
                    (runs_lx.part(0, begin)["r", "c"], places_lx.part(0, begin)["r", "c"]),
                    label="c",
                    descending=descending,
                )
        with values_out.fill(r.step) as v, indices_out.fill(r.step) as i:
            upper = ("c", half)
            b.compute(
                Kind.MERGE,
                {"r": r, "c": half},
                (
                    runs_lx["r", "c"],
                    places_lx["r", "c"],
                    runs_lx.part(0, half)["r", upper],
                    places_lx.part(0, half)["r", upper],
                ),
                (
                    v["r", "c"],
                    i["r", "c"],
                    v.part(0, half)["r", upper],
                    i.part(0, half)["r", upper],
                ),
                label="c",
                descending=descending,
            )
    with b.queue("store"), b.tiles("i", mine, tile_rows) as r:
        with values_out.use(r.step) as t:
            b.store({"r": r, "c": cols}, t["r", "c"], values["r", "c"])
        with indices_out.use(r.step) as t:
            b.store({"r": r, "c": cols}, t["r", "c"], indices["r", "c"])
    return b.build()


def sort_reference(x: np.ndarray, descending: bool = False) -> tuple[np.ndarray, np.ndarray]:
    return topk_reference(x, x.shape[1], largest=descending)
