"""c = a @ b with k split over cores, and the partial sums joined over the ring.

Core (n, part) multiplies its part of k for the columns of n, then joins one band of rows: it pulls
that band from every core of its group, in ascending order of the parts, so that the bits do not
depend on who is ready first. A core tells each member of its group by a token of its own number
that its partial sums are there, and each member gives back a token when it has pulled them.
"""

from __future__ import annotations

import numpy as np

from examples.programs.matmul import steps
from openspyre.formats import Mode
from openspyre.program import Program, ProgramBuilder, ProgramError, Span
from openspyre.program import body as f
from openspyre.program.expr import Expr, Var, ceil_div, maximum, minimum
from openspyre.program.ops import Combine


def build(
    m: int = 64,
    k: int = 4096,
    n: int = 4096,
    *,
    grid: tuple[int, int] = (8, 4),
    tile: tuple[int, int, int] = (64, 512, 512),
    dtype: str = "float16",
    mode: Mode = Mode.DL16,
) -> Program:
    """c [m, n] = a [m, k] @ b [k, n]; `grid`: (shares of n, parts of k)."""
    parts = grid[1]
    p = ProgramBuilder("ksplit", {"n": grid[0], "part": parts}, mode=mode)
    a = p.input("a", (m, k), dtype)
    b = p.input("b", (k, n), dtype)
    c = p.output("c", (m, n), dtype)
    acc = p.value("acc", (m, n), reduced=(k,))
    eps = a.format.elements_per_stick
    tile_m, tile_n, tile_k = min(tile[0], m), min(tile[1], n), min(tile[2], k)
    band = -(-tile_m // parts)
    if -(-k // eps) < parts:
        raise ProgramError(f"ksplit: k = {k} is {-(-k // eps)} sticks, too few for {parts} parts")

    cols = p.split("cols", n, "n", unit=eps)
    deep = p.split("deep", k, "part", unit=eps)
    leader = p.let("leader", Var("n") * parts)  # core number of part 0 of the own group
    turns_deep = p.let("turns_deep", ceil_div(deep.size, tile_k))
    down = -(-m // tile_m)
    across = steps(n, grid[0], eps, tile_n)

    a_in = p.stream("a_in", a, (tile_m, tile_k), users=["pt"])
    b_in = p.stream("b_in", b, (tile_k, tile_n), users=["pt"])
    partial = p.lx("partial", acc, (tile_m, tile_n))
    total = p.stream("total", acc, (band, tile_n))
    c_out = p.stream("c_out", c, (band, tile_n), users=["store"])
    ready = p.token("ready", parts)  # [s]: the sums of part s are there
    pulled = p.token("pulled", parts, 1)  # [s]: part s has pulled the own sums

    def rows_and_cols(i: Expr, j: Expr) -> tuple[Span, Span]:
        begin = j * tile_n
        width = minimum(tile_n, maximum(0, cols.size - begin))
        rows = Span(i * tile_m, minimum(tile_m, m - i * tile_m))
        return rows, Span(cols.start + begin, width)

    def band_of(rows: Span) -> Span:
        begin = Var("part") * band
        return Span(rows.start + begin, minimum(band, maximum(0, rows.size - begin)))

    with p.queue("load"), p.loop("i", down) as i, p.loop("j", across) as j:
        r, s = rows_and_cols(i, j)
        with p.tiles("l", deep, tile_k) as d:
            turn = (i * across + j) * turns_deep + d.step
            with a_in.fill(turn) as t:
                p.load({"r": r, "d": d}, a["r", "d"], t["r", "d"], multicast=["n"])
            with b_in.fill(turn) as t:
                p.load({"d": d, "s": s}, b["d", "s"], t["d", "s"])
    with p.queue("pt"), p.loop("i", down) as i, p.loop("j", across) as j:
        r, s = rows_and_cols(i, j)
        with p.loop("q", parts) as q:
            p.wait(pulled, q)
        with p.tiles("l", deep, tile_k) as d:
            turn = (i * across + j) * turns_deep + d.step
            with a_in.use(turn) as left, b_in.use(turn) as right:
                over = {"r": r, "s": s, "d": d}
                p.matmul(
                    over, left["r", "d"], right["d", "s"], partial["r", "s"], accumulate=d.step
                )
        with p.loop("q", parts) as q:
            p.signal(ready, Var("part"), core=leader + q)
    with p.queue("ring"), p.loop("i", down) as i, p.loop("j", across) as j:
        r, s = rows_and_cols(i, j)
        with p.loop("q", parts) as q:
            p.wait(ready, q)
        with total.fill(i * across + j) as t:
            p.ring(
                {"r": band_of(r), "s": s},
                partial.part(Var("part") * band, 0)["r", "s"],
                t["r", "s"],
                core=leader + Var("source"),
                count=parts,
                variable="source",
                combine=Combine.SUM,
            )
        with p.loop("q", parts) as q:
            p.signal(pulled, Var("part"), core=leader + q)
    with p.queue("sfu"), p.loop("i", down) as i, p.loop("j", across) as j:
        r, s = rows_and_cols(i, j)
        turn = i * across + j
        with total.use(turn) as t, c_out.fill(turn) as out:
            p.map({"r": band_of(r), "s": s}, out["r", "s"], f.identity, t["r", "s"])
    with p.queue("store"), p.loop("i", down) as i, p.loop("j", across) as j:
        r, s = rows_and_cols(i, j)
        with c_out.use(i * across + j) as t:
            p.store({"r": band_of(r), "s": s}, t["r", "s"], c["r", "s"])
    return p.build()


def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64)
