"""c = a @ b on a grid of cores (m, n): also int8 and fp8 with a scale, batched, and one row (gemv).

Core (m, n) makes the tile of its row share and its column share. The rows of `a` that it needs are
needed by all cores of the same m: their LOADs of `a` are one multicast over n; those of `b` are one
over m. So the cores of a group must load in step: all make the same number of tiles, and where a
share is smaller the last ones are empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from openspyre.formats import Format, Mode
from openspyre.program import Program, ProgramBuilder, Span
from openspyre.program import body as f
from openspyre.program.body import BodyFunction, Reg
from openspyre.program.expr import Expr, maximum, minimum


def steps(total: int, parts: int, unit: int, tile: int) -> int:
    """Tiles of the largest share when `total` is split over `parts` in units."""
    units = math.ceil(total / unit)
    share = min(math.ceil(units / parts) * unit, total)
    return math.ceil(share / tile)


def tile_of(share: Span, step: Expr, tile: int) -> Span:
    """The step-th tile of a share; empty beyond its end."""
    begin = step * tile
    return Span(share.start + begin, minimum(tile, maximum(0, share.size - begin)), step)


def build(
    m: int = 512,
    k: int = 4096,
    n: int = 4096,
    *,
    grid: tuple[int, int] = (4, 8),
    tile: tuple[int, int, int] = (128, 512, 512),
    dtype: str = "float16",
    out_dtype: str = "float16",
    epilogue: BodyFunction = f.identity,
    floats: tuple[str, ...] = (),
    name: str = "matmul",
    mode: Mode = Mode.DL16,
) -> Program:
    """c [m, n] = epilogue(a [m, k] @ b [k, n]); `tile` in rows, columns and k.

    The epilogue sees the float32 (int32) sum and is all that happens before c's one rounding.
    """
    p = ProgramBuilder(name, {"m": grid[0], "n": grid[1]}, mode=mode)
    for symbol in floats:
        p.float_symbol(symbol)
    a = p.input("a", (m, k), dtype)
    b = p.input("b", (k, n), dtype)
    c = p.output("c", (m, n), out_dtype)
    sums = Format.IEEE_INT32 if a.format is Format.SENINT8 else Format.IEEE_FP32
    acc = p.value("acc", (m, n), reduced=(k,), format=sums)

    tile_m, tile_n, tile_k = min(tile[0], m), min(tile[1], n), min(tile[2], k)
    eps = max(a.format.elements_per_stick, c.format.elements_per_stick)
    rows = p.split("rows", m, "m")
    cols = p.split("cols", n, "n", unit=eps)
    down, across = steps(m, grid[0], 1, tile_m), steps(n, grid[1], eps, tile_n)
    deep = -(-k // tile_k)

    a_in = p.stream("a_in", a, (tile_m, tile_k), users=["pt"])
    b_in = p.stream("b_in", b, (tile_k, tile_n), users=["pt"])
    acc_out = p.stream("acc_out", acc, (tile_m, tile_n), users=["sfu"])
    c_out = p.stream("c_out", c, (tile_m, tile_n), users=["store"], slots=1)

    with p.queue("load"), p.loop("i", down) as i, p.loop("j", across) as j:
        r, s = tile_of(rows, i, tile_m), tile_of(cols, j, tile_n)
        with p.tiles("l", k, tile_k) as d:
            turn = (i * across + j) * deep + d.step
            with a_in.fill(turn) as t:
                p.load({"r": r, "d": d}, a["r", "d"], t["r", "d"], multicast=["n"])
            with b_in.fill(turn) as t:
                p.load({"d": d, "s": s}, b["d", "s"], t["d", "s"], multicast=["m"])
    with p.queue("pt"), p.loop("i", down) as i, p.loop("j", across) as j:
        r, s = tile_of(rows, i, tile_m), tile_of(cols, j, tile_n)
        with acc_out.fill(i * across + j) as out, p.tiles("l", k, tile_k) as d:
            turn = (i * across + j) * deep + d.step
            with a_in.use(turn) as left, b_in.use(turn) as right:
                over = {"r": r, "s": s, "d": d}
                p.matmul(over, left["r", "d"], right["d", "s"], out["r", "s"], accumulate=d.step)
    with p.queue("sfu"), p.loop("i", down) as i, p.loop("j", across) as j:
        over = {"r": tile_of(rows, i, tile_m), "s": tile_of(cols, j, tile_n)}
        with acc_out.use(i * across + j) as t, c_out.fill(i * across + j) as out:
            p.map(over, out["r", "s"], epilogue, t["r", "s"])
    with p.queue("store"), p.loop("i", down) as i, p.loop("j", across) as j:
        over = {"r": tile_of(rows, i, tile_m), "s": tile_of(cols, j, tile_n)}
        with c_out.use(i * across + j) as t:
            p.store(over, t["r", "s"], c["r", "s"])
    return p.build()


def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product in float64 (integers exactly)."""
    wide = np.int64 if a.dtype.kind in "iu" else np.float64
    return a.astype(wide) @ b.astype(wide)


def gemv(
    k: int = 4096, n: int = 4096, *, m: int = 1, cores: int = 32, tile_k: int = 1024, **more: object
) -> Program:
    """A few rows times a matrix: the columns split over all cores, `a` multicast to all."""
    tile_n = max(64, min(256, -(-n // cores // 64) * 64))
    return build(
        m,
        k,
        n,
        grid=(1, cores),
        tile=(m, tile_n, tile_k),
        name="gemv",
        **more,  # type: ignore[arg-type]
    )


def _scaled(sum_: Reg) -> Reg:
    return f.cast(sum_, "f") * sum_.scalar("scale")


def int8(m: int = 512, k: int = 4096, n: int = 4096, **more: object) -> Program:
    """float16 c = scale * (int8 a @ int8 b); the sum is exact in int32."""
    options = {"dtype": "int8", "epilogue": _scaled, "floats": ("scale",), "name": "matmul_int8"}
    return build(m, k, n, **{**options, **more})  # type: ignore[arg-type]


def fp8(m: int = 512, k: int = 4096, n: int = 4096, **more: object) -> Program:
    """float16 c = scale * (float8_e4m3fn a @ float8_e4m3fn b), summed in float32."""
    options = {
        "dtype": "float8_e4m3fn",
        "epilogue": _scaled,
        "floats": ("scale",),
        "name": "matmul_fp8",
    }
    return build(m, k, n, **{**options, **more})  # type: ignore[arg-type]


def batched(
    batch: int = 64,
    m: int = 128,
    k: int = 512,
    n: int = 512,
    *,
    cores: int = 32,
    tile: tuple[int, int, int] = (128, 512, 256),
    together: int = 1,
    dtype: str = "float16",
    mode: Mode = Mode.DL16,
) -> Program:
    """c [batch, m, n] = a [batch, m, k] @ b [batch, k, n], the batch split over the cores and
    `together` products in one instruction."""
    p = ProgramBuilder("bmm", {"core_batch": cores}, mode=mode)
    a = p.input("a", (batch, m, k), dtype)
    b = p.input("b", (batch, k, n), dtype)
    c = p.output("c", (batch, m, n), dtype)
    acc = p.value("acc", (batch, m, n), reduced=(k,))
    tile_m, tile_n, tile_k = min(tile[0], m), min(tile[1], n), min(tile[2], k)
    mine = p.split("mine", batch, "core_batch")
    a_in = p.stream("a_in", a, (together, tile_m, tile_k), users=["pt"])
    b_in = p.stream("b_in", b, (together, tile_k, tile_n), users=["pt"])
    acc_out = p.stream("acc_out", acc, (together, tile_m, tile_n), slots=1)
    c_out = p.stream("c_out", c, (together, tile_m, tile_n), users=["store"], slots=1)
    deep = -(-k // tile_k)
    boxes = p.boxes(e=(mine, together), r=(m, tile_m), s=(n, tile_n))

    def tiles(work: Callable[[dict[str, Span], Expr], None]) -> None:
        with boxes() as (over, turn):
            work(over, turn)

    def load(over: dict[str, Span], number: Expr) -> None:
        e, r, s = over["e"], over["r"], over["s"]
        with p.tiles("l", k, tile_k) as d:
            with a_in.fill(number * deep + d.step) as t:
                p.load({"e": e, "r": r, "d": d}, a["e", "r", "d"], t["e", "r", "d"])
            with b_in.fill(number * deep + d.step) as t:
                p.load({"e": e, "d": d, "s": s}, b["e", "d", "s"], t["e", "d", "s"])

    def multiply(over: dict[str, Span], number: Expr) -> None:
        with acc_out.fill(number) as out, p.tiles("l", k, tile_k) as d:
            turn = number * deep + d.step
            with a_in.use(turn) as left, b_in.use(turn) as right:
                p.matmul(
                    {**over, "d": d},
                    left["e", "r", "d"],
                    right["e", "d", "s"],
                    out["e", "r", "s"],
                    accumulate=d.step,
                )

    def finish(over: dict[str, Span], number: Expr) -> None:
        with acc_out.use(number) as t, c_out.fill(number) as out:
            p.map(over, out["e", "r", "s"], f.identity, t["e", "r", "s"])

    def store(over: dict[str, Span], number: Expr) -> None:
        with c_out.use(number) as t:
            p.store(over, t["e", "r", "s"], c["e", "r", "s"])

    for unit, work in (("load", load), ("pt", multiply), ("sfu", finish), ("store", store)):
        with p.queue(unit):
            tiles(work)
    return p.build()
