"""Every kind of COMPUTE of the reference executor, held against plain numpy, torch and hand-written
loops whose order of additions is the law."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from reference_programs import Arrays, Given, Tiles, compute, given, same

from openspyre.formats import (
    Format,
    Mode,
    Numerics,
    TieRule,
)
from openspyre.program import ProgramBuilder
from openspyre.program import body as f
from openspyre.program.body import Reg
from openspyre.program.ops import Combine, Kind
from openspyre.reference import numbers

F32, I32, I64 = np.float32, np.int32, np.int64


def floats(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(F32)


def add_all(rows: np.ndarray) -> np.ndarray:
    """The law of a sum along the stick, written out: rows [n, cols] to [n]."""
    lanes = np.zeros((rows.shape[0], 64), dtype=F32)
    for e in range(rows.shape[1]):
        lanes[:, e % 64] = lanes[:, e % 64] + rows[:, e]
    for h in (32, 16, 8, 4, 2, 1):
        for i in range(h):
            lanes[:, i] = lanes[:, i] + lanes[:, i + h]
    return lanes[:, 0]


# --- map


def test_map_broadcasts_indexes_and_takes_symbols() -> None:
    x, row, col = floats(4, 5, 70), floats(5, 70), floats(6, 5)

    def work(b: ProgramBuilder, t: Tiles) -> None:
        def body(a: Reg, r: Reg, c: Reg) -> Reg:
            place = f.cast(a.index("m") * 70 + a.index("n"), "f")
            return a * r + c + place * a.scalar("alpha") + f.cast(a.scalar("k", "l"), "f")

        over = {"m": 5, "n": 70}
        b.map(over, t["y"]["m", "n"], body, t["x"]["m", "n"], t["row"]["n"], t["col"]["m"])

    got = compute(
        work,
        {"x": given(x), "row": given(row), "col": given(col, sparse=True)},
        {"y": Given((5, 70))},
        symbols={"alpha": 0.25, "k": -3},
    )["y"]
    place = np.arange(350, dtype=F32).reshape(5, 70)
    same(got, x * row + col[:, None] + place * F32(0.25) + F32(-3))


def test_map_indices_are_global() -> None:
    def work(b: ProgramBuilder, t: Tiles) -> None:
        for part in range(2):
            over = {"m": (part * 2, 2), "n": (0, 70)}
            place = t["y"].part(part * 2, 0)
            b.map(over, place["m", "n"], lambda r: r.index("m") * 100 + r.index("n"))

    got = compute(work, {}, {"y": Given((4, 70), "int64")})["y"]
    same(got, np.add.outer(np.arange(4) * 100, np.arange(70)))


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_map_rounds_what_it_stores(mode: Mode, dtype: str) -> None:
    x = floats(7, 3, 150, scale=3)
    numerics = Numerics(mode, TieRule.TO_EVEN)

    def work(b: ProgramBuilder, t: Tiles) -> None:
        b.map({"m": 3, "n": 150}, t["y"]["m", "n"], lambda r: r * 1.25, t["x"]["m", "n"])

    got = compute(work, {"x": given(x)}, {"y": Given((3, 150), dtype)}, numerics=numerics)["y"]
    exact = x * F32(1.25)
    if mode is Mode.DL16 and dtype in ("float16", "bfloat16"):
        want = np.ldexp(np.rint(np.frexp(exact)[0] * 1024), np.frexp(exact)[1] - 10).astype(F32)
    else:
        want = torch.from_numpy(exact).to(getattr(torch, dtype)).float().numpy()
    same(got, want)


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint8", "int32", "int64"])
def test_integers_keep_their_low_bits(dtype: str) -> None:
    x = np.arange(-150, 150, 2).astype(dtype)

    def work(b: ProgramBuilder, t: Tiles) -> None:
        b.map({"n": 150}, t["y"]["n"], lambda r: r * 1001, t["x"]["n"])

    got = compute(work, {"x": given(x, dtype)}, {"y": Given((150,), dtype)})["y"]
    with np.errstate(all="ignore"):
        same(got, (x.astype(I64) * 1001).astype(dtype))


def test_truth_is_stored_in_any_format() -> None:
    x = np.array([0, 2, -3, 0], dtype=F32)

    def work(b: ProgramBuilder, t: Tiles) -> None:
        outs = [t[name]["n"] for name in ("a", "b", "c")]

        def body(r: Reg) -> tuple[Reg, ...]:
            return (f.not_equal(r, 0),) * 3

        b.map({"n": 4}, outs, body, t["x"]["n"])

    got = compute(
        work,
        {"x": given(x)},
        {"a": Given((4,), "bool"), "b": Given((4,), "int64"), "c": Given((4,), "float16")},
    )
    assert got["a"].tolist() == [False, True, True, False]
    assert got["b"].tolist() == [0, 1, 1, 0]
    assert got["c"].tolist() == [0, 1, 1, 0]


def test_map_works_in_place() -> None:
    x = floats(8, 4, 100)

    def work(b: ProgramBuilder, t: Tiles) -> None:
        over = {"m": 4, "n": 100}
        b.map(over, t["x"]["m", "n"], lambda r: r + 1, t["x"]["m", "n"])
        b.map(over, t["y"]["m", "n"], lambda r: r * r, t["x"]["m", "n"])

    got = compute(work, {"x": given(x)}, {"y": Given((4, 100))})["y"]
    same(got, (x + F32(1)) * (x + F32(1)))


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "int64"])
def test_map_transposes_and_makes_dense_and_sparse(dtype: str) -> None:
    x = np.random.default_rng(9).integers(-100, 100, (70, 37)).astype(dtype)

    def work(b: ProgramBuilder, t: Tiles) -> None:
        over = {"m": 70, "n": 37}
        b.map(over, t["y"]["n", "m"], f.identity, t["x"]["m", "n"])
        b.map(over, t["s"]["m", "n"], f.identity, t["x"]["m", "n"])
        b.map(over, t["z"]["m", "n"], f.identity, t["s"]["m", "n"])

    outputs = {
        "y": Given((37, 70), dtype),
        "s": Given((70, 37), dtype, sparse=True),
        "z": Given((70, 37), dtype),
    }
    got = compute(work, {"x": given(x, dtype)}, outputs)
    np.testing.assert_array_equal(got["y"], x.T)
    np.testing.assert_array_equal(got["s"], x)
    np.testing.assert_array_equal(got["z"], x)


# --- reduce and fold


def reduce_rows(
    x: np.ndarray, dtype: str, combine: Combine, parts: dict[str, str], tile: int = 0
) -> Arrays:
    """[rows, cols] to [rows] along the stick, in tiles of `tile` columns, then FOLD. `parts`: the
    outputs' dtypes; any and all compare with zero."""
    rows, cols = x.shape
    tile = tile or cols

    def work(b: ProgramBuilder, t: Tiles) -> None:
        accumulators = []
        for name in parts:
            value = b.value(f"{name}_acc", (rows,), format=t[name].format)
            accumulators.append(b.lx(f"{name}_acc_lx", value, (rows,), lanes=True)["m"])
        for start in range(0, cols, tile):
            over = {"m": (0, rows), "n": (start, min(tile, cols - start))}
            source = t["x"].part(0, start)["m", "n"]
            body = (
                (lambda r: f.not_equal(r, 0))
                if combine in (Combine.ANY, Combine.ALL)
                else f.identity
            )
            b.reduce(over, combine, accumulators, body, source, accumulate=start)
        b.fold({"m": rows}, combine, [t[name]["m"] for name in parts], accumulators)

    outputs = {name: Given((rows,), kind, sparse=True) for name, kind in parts.items()}
    return compute(work, {"x": given(x, dtype)}, outputs)


@pytest.mark.parametrize("tile", [0, 64, 192])
def test_a_sum_along_the_stick_has_64_accumulators_and_a_tree(tile: int) -> None:
    x = floats(10, 3, 500, scale=1e3)
    x[0, 3], x[0, 67] = 3e8, -3e8  # meets itself in accumulator 3: order decides the bits
    got = reduce_rows(x, "float32", Combine.SUM, {"y": "float32"}, tile)["y"]
    same(got, add_all(x))
    assert (got != x.sum(axis=1)).any()  # the example can tell orders apart


@pytest.mark.parametrize("cols", [1, 31, 64, 65, 150])
def test_sums_of_tails(cols: int) -> None:
    x = floats(11, 4, cols)
    same(reduce_rows(x, "float32", Combine.SUM, {"y": "float32"})["y"], add_all(x))


@pytest.mark.parametrize(("dtype", "wide"), [("int32", "int32"), ("int64", "int64")])
def test_integer_sums_and_products_wrap(dtype: str, wide: str) -> None:
    x = np.random.default_rng(12).integers(-(2**30), 2**30, (3, 130)).astype(dtype)
    with np.errstate(all="ignore"):
        got = reduce_rows(x, dtype, Combine.SUM, {"y": wide})["y"]
        assert got.tolist() == np.add.reduce(x, axis=1, dtype=dtype).tolist()
        got = reduce_rows(x, dtype, Combine.PROD, {"y": wide})["y"]
        assert got.tolist() == np.multiply.reduce(x, axis=1, dtype=dtype).tolist()


def test_extrema_of_rows() -> None:
    x = floats(13, 4, 150)
    x[1, 77] = math.nan
    x[2] = -math.inf
    got = reduce_rows(x, "float32", Combine.MAX, {"y": "float32"})["y"]
    same(got, x.max(axis=1))
    got = reduce_rows(x, "float32", Combine.MIN, {"y": "float32"})["y"]
    same(got, x.min(axis=1))
    whole = np.array([[-(2**63), 5, 2**63 - 1], [-7, -7, -9]], dtype=I64)
    got = reduce_rows(whole, "int64", Combine.MAX, {"y": "int64"})["y"]
    assert got.tolist() == [2**63 - 1, -7]


def test_any_and_all_of_rows() -> None:
    x = np.zeros((3, 150), dtype=F32)
    x[0, 149] = math.nan
    x[1] = 1
    assert reduce_rows(x, "float32", Combine.ANY, {"y": "int32"})["y"].tolist() == [1, 1, 0]
    assert reduce_rows(x, "float32", Combine.ALL, {"y": "int32"})["y"].tolist() == [0, 1, 0]


@pytest.mark.parametrize("tile", [0, 64])
def test_argmax_takes_the_smallest_index_and_nan(tile: int) -> None:
    x = np.random.default_rng(14).integers(-3, 4, (5, 200)).astype(F32)
    x[1, 150] = x[1, 20] = math.nan
    x[2] = -math.inf
    x[3] = np.where(np.arange(200) % 7 == 0, 0.0, -0.0)
    parts = {"value": "float32", "index": "int64"}
    for combine, law in ((Combine.ARGMAX, torch.argmax), (Combine.ARGMIN, torch.argmin)):
        got = reduce_rows(x, "float32", combine, parts, tile)
        want = law(torch.from_numpy(x), dim=1).numpy()
        want[1] = 20  # NaN wins both; torch agrees, here it is said
        want[2] = 0
        assert got["index"].tolist() == want.tolist()
        same(got["value"], x[np.arange(5), want])


@pytest.mark.parametrize("tile", [0, 64])
def test_welford_follows_its_written_order(tile: int) -> None:
    x = floats(15, 2, 150, scale=3) + F32(100)
    got = reduce_rows(
        x, "float32", Combine.WELFORD, {"mean": "float32", "m2": "float32", "n": "float32"}, tile
    )
    for row in range(2):
        lanes = [(F32(0), F32(0), F32(0))] * 64
        for e, v in enumerate(x[row]):
            mean, m2, n = lanes[e % 64]
            n = n + F32(1)
            d = v - mean
            mean = mean + d / n
            lanes[e % 64] = (mean, m2 + d * (v - mean), n)
        for h in (32, 16, 8, 4, 2, 1):
            for i in range(h):
                (ma, sa, na), (mb, sb, nb) = lanes[i], lanes[i + h]
                n = na + nb
                d = mb - ma
                if na != 0 and nb != 0:
                    lanes[i] = (ma + d * (nb / n), (sa + sb) + (d * d) * ((na * nb) / n), n)
                elif na == 0:
                    lanes[i] = lanes[i + h]
        assert (got["mean"][row], got["m2"][row], got["n"][row]) == lanes[0]
        np.testing.assert_allclose(got["m2"][row] / 150, x[row].astype(np.float64).var(), rtol=1e-4)


def test_a_sum_across_sticks_goes_row_after_row() -> None:
    x = floats(16, 40, 70, scale=1e3)

    def work(b: ProgramBuilder, t: Tiles) -> None:
        for start in (0, 16, 32):
            over = {"m": (start, min(16, 40 - start)), "n": (0, 70)}
            source = t["x"].part(start, 0)["m", "n"]
            b.reduce(over, Combine.SUM, t["y"]["n"], f.identity, source, accumulate=start)

    got = compute(work, {"x": given(x)}, {"y": Given((70,))})["y"]
    total = np.zeros(70, dtype=F32)
    for row in x:
        total = total + row
    same(got, total)


def test_argmax_across_sticks() -> None:
    x = np.random.default_rng(17).integers(-3, 4, (40, 70)).astype(F32)

    def work(b: ProgramBuilder, t: Tiles) -> None:
        outs = [t["value"]["n"], t["index"]["n"]]
        # The index tile has 16 elements a stick and the value tile 32: one label on both.
        b.reduce({"m": 40, "n": 70}, Combine.ARGMAX, outs, f.identity, t["x"]["m", "n"])

    outputs = {"value": Given((70,)), "index": Given((70,), "int64")}
    got = compute(work, {"x": given(x)}, outputs)
    assert got["index"].tolist() == x.argmax(axis=0).tolist()
    same(got["value"], x.max(axis=0))


def test_a_sum_over_everything_is_lexicographic() -> None:
    x = floats(18, 6, 100, scale=1e3)

    def work(b: ProgramBuilder, t: Tiles) -> None:
        value = b.value("acc", ())
        lanes = b.lx("acc_lx", value, (), lanes=True)
        b.reduce({"m": 6, "n": 100}, Combine.SUM, lanes[()], f.identity, t["x"]["m", "n"])
        b.fold({}, Combine.SUM, t["total"][()], lanes[()])
        b.map({}, t["y"][()], lambda total, start: total + start, t["total"][()], t["start"][()])

    inputs = {"x": given(x), "start": given(F32(5))}
    got = compute(work, inputs, {"total": Given(()), "y": Given(())})
    lanes = np.zeros(64, dtype=F32)
    for row in x:
        for e, v in enumerate(row):
            lanes[e % 64] = lanes[e % 64] + v
    for h in (32, 16, 8, 4, 2, 1):
        lanes[:h] = lanes[:h] + lanes[h : 2 * h]
    same(got["total"], lanes[0])
    same(got["y"], lanes[0] + F32(5))


# --- matmul


def product(a: np.ndarray, b: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
    """float32, k ascending, each product rounded before it is added."""
    out = np.zeros((a.shape[0], b.shape[1]), dtype=F32) if start is None else start
    for k in range(a.shape[1]):
        out = out + a[:, k : k + 1] * b[k : k + 1, :]
    return out


def dl16(x: np.ndarray) -> np.ndarray:
    return numbers.rounded(x, Format.SEN169_FP16, Numerics())


def multiply(
    a: Given, b_: Given, out: Given, splits: int = 1, numerics: Numerics | None = None
) -> np.ndarray:
    """One matmul in `splits` steps of k, then a MAP that rounds to the output."""
    (m, k), n = a.shape, b_.shape[1]
    step = -(-k // splits // 128) * 128  # whole sticks of every format

    def work(b: ProgramBuilder, t: Tiles) -> None:
        for start in range(0, k, step):
            over = {"m": (0, m), "n": (0, n), "k": (start, min(step, k - start))}
            left = t["a"].part(0, start)["m", "k"]
            right = t["b"].part(start, 0)["k", "n"]
            b.matmul(over, left, right, t["y"]["m", "n"], accumulate=start)

    got = compute(work, {"a": a, "b": b_}, {"y": out}, unit="pt", numerics=numerics)
    return got["y"]


@pytest.mark.parametrize("splits", [1, 2])
def test_n7_matmul_equals_the_sequential_float32_loop(splits: int) -> None:
    a, b = floats(19, 64, 256).astype(np.float16), floats(20, 256, 128).astype(np.float16)
    got = multiply(given(a, "float16"), given(b, "float16"), Given((64, 128)), splits)
    want = product(dl16(a.astype(F32)), dl16(b.astype(F32)))
    same(got, want)
    same(dl16(got), dl16(want))
    backwards = product(dl16(a.astype(F32))[:, ::-1], dl16(b.astype(F32))[::-1])
    assert (got != backwards).any()  # the order shows


def test_n8_a_k_split_adds_partial_sums_in_order() -> None:
    a, b = floats(21, 8, 256).astype(np.float16), floats(22, 256, 64).astype(np.float16)

    def work(p: ProgramBuilder, t: Tiles) -> None:
        for part in range(2):
            over = {"m": (0, 8), "n": (0, 64), "k": (part * 128, 128)}
            left, right = t["a"].part(0, part * 128), t["b"].part(part * 128, 0)
            p.matmul(over, left["m", "k"], right["k", "n"], t[f"y{part}"]["m", "n"])

    outputs = {"y0": Given((8, 64)), "y1": Given((8, 64))}
    got = compute(work, {"a": given(a, "float16"), "b": given(b, "float16")}, outputs, unit="pt")
    x, y = dl16(a.astype(F32)), dl16(b.astype(F32))
    parts = product(x[:, :128], y[:128]), product(x[:, 128:], y[128:])
    same(got["y0"] + got["y1"], parts[0] + parts[1])
    whole = product(x, y)
    assert (got["y0"] + got["y1"] != whole).any()
    np.testing.assert_allclose(got["y0"] + got["y1"], whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_l33_matmul_of_ragged_sizes_does_not_touch_pads(mode: Mode, dtype: str) -> None:
    a, b = floats(23, 5, 70), floats(24, 70, 37)
    numerics = Numerics(mode)
    got = multiply(given(a, dtype), given(b, dtype), Given((5, 37)), numerics=numerics)
    format = {"float16": Format.IEEE_FP16, "bfloat16": Format.BFLOAT16}[dtype]
    x, y = (numbers.rounded(v, format, numerics) for v in (a, b))
    if mode is Mode.DL16:
        x, y = dl16(x), dl16(y)
    same(got, product(x, y))
    assert np.isfinite(got).all()


def test_float32_matmul_rounds_every_product() -> None:
    a, b = floats(25, 4, 96), floats(26, 96, 40)
    same(multiply(given(a), given(b), Given((4, 40))), product(a, b))


def test_mixed_fp8_matmul() -> None:
    a = torch.from_numpy(floats(27, 4, 130)).to(torch.float8_e4m3fn).float().numpy()
    b = torch.from_numpy(floats(28, 130, 130)).to(torch.float8_e5m2).float().numpy()
    got = multiply(given(a, "float8_e4m3fn"), given(b, "float8_e5m2"), Given((4, 130)))
    same(got, product(a, b))


def test_int8_matmul_adds_int32() -> None:
    rng = np.random.default_rng(29)
    a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((3, 300), (300, 40)))
    got = multiply(given(a, "int8"), given(b, "int8"), Given((3, 40), "int32"), splits=2)
    same(got, (a.astype(I64) @ b.astype(I64)).astype(I32))


@pytest.mark.parametrize("shared", [False, True])
def test_batched_matmul(shared: bool) -> None:
    a = floats(30, 3, 4, 70)
    b = floats(31, 70, 40) if shared else floats(31, 3, 70, 40)

    def work(p: ProgramBuilder, t: Tiles) -> None:
        over = {"h": 3, "m": 4, "n": 40, "k": 70}
        right = t["b"]["k", "n"] if shared else t["b"]["h", "k", "n"]
        p.matmul(over, t["a"]["h", "m", "k"], right, t["y"]["h", "m", "n"])

    got = compute(work, {"a": given(a), "b": given(b)}, {"y": Given((3, 4, 40))}, unit="pt")["y"]
    want = np.stack([product(a[h], b if shared else b[h]) for h in range(3)])
    same(got, want)


# --- scan


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("combine", [Combine.SUM, Combine.PROD, Combine.MAX, Combine.MIN])
def test_scan_carries_its_register_across_tiles(axis: int, combine: Combine) -> None:
    x = floats(32, 64, 128)
    x[5, 9] = math.nan

    def work(b: ProgramBuilder, t: Tiles) -> None:
        label = "mn"[axis]
        other = "nm"[axis]
        carry = b.value("carry", (x.shape[1 - axis],))
        held = b.lx("carry_lx", carry, (x.shape[1 - axis],), stick=None if axis else -1)
        half = x.shape[axis] // 2
        for part in range(2):
            over = {"m": (0, 64), "n": (0, 128)}
            over[label] = (part * half, half)
            origin = (part * half, 0) if axis == 0 else (0, part * half)
            source, target = t["x"].part(*origin), t["y"].part(*origin)
            b.compute(
                Kind.SCAN,
                over,
                (source["m", "n"], held[other]),
                (target["m", "n"], held[other]),
                combine=combine,
                label=label,
                accumulate=part,
            )

    got = compute(work, {"x": given(x)}, {"y": Given((64, 128), "float16")})["y"]
    run = np.moveaxis(x, axis, 0)
    out = [run[0]]
    for row in run[1:]:
        with np.errstate(all="ignore"):
            last = out[-1]
            if combine is Combine.SUM:
                out.append(last + row)
            elif combine is Combine.PROD:
                out.append(last * row)
            elif combine is Combine.MAX:
                out.append(np.maximum(last, row))
            else:
                out.append(np.minimum(last, row))
    want = np.moveaxis(np.stack(out), 0, axis)
    # y is rounded to DLFloat16, the running value is not.
    with np.errstate(all="ignore"):
        same(got, dl16(want))


# --- gather and scatter


def test_gather_by_rows_and_inside_the_stick() -> None:
    x = floats(33, 9, 70)
    rng = np.random.default_rng(34)
    rows, cols = rng.integers(0, 9, 20), rng.integers(0, 70, (9, 33))

    def work(b: ProgramBuilder, t: Tiles) -> None:
        b.compute(
            Kind.GATHER,
            {"i": 20, "n": 70},
            (t["x"]["i", "n"], t["rows"]["i"]),
            t["y"]["i", "n"],
            label="i",
            limit=9,
        )
        b.compute(
            Kind.GATHER,
            {"m": 9, "j": 33},
            (t["x"]["m", "j"], t["cols"]["m", "j"]),
            t["z"]["m", "j"],
            label="j",
            limit=70,
        )

    inputs = {"x": given(x), "rows": given(rows, "int64"), "cols": given(cols, "int32")}
    got = compute(work, inputs, {"y": Given((20, 70)), "z": Given((9, 33))})
    same(got["y"], x[rows])
    same(got["z"], np.take_along_axis(x, cols, 1))


@pytest.mark.parametrize("add", [False, True])
def test_scatter_goes_in_ascending_order(add: bool) -> None:
    x = floats(35, 30, 70, scale=100)
    rows = np.random.default_rng(36).integers(0, 5, 30)

    def work(b: ProgramBuilder, t: Tiles) -> None:
        b.map({"r": 5, "n": 70}, t["y"]["r", "n"], lambda r: f.cast(r.index("n") * 0, "f"))
        b.compute(
            Kind.SCATTER,
            {"i": 30, "n": 70},
            (t["x"]["i", "n"], t["rows"]["i"]),
            t["y"]["i", "n"],
            label="i",
            limit=5,
            add=add,
        )

    inputs = {"x": given(x), "rows": given(rows, "int64")}
    got = compute(work, inputs, {"y": Given((5, 70), "float16")})["y"]
    want = np.zeros((5, 70), dtype=F32)
    for i, row in enumerate(rows):
        want[row] = dl16(want[row] + x[i]) if add else dl16(x[i])
    same(got, want)


# --- order


def order_of(values: np.ndarray, descending: bool) -> list[int]:
    """Stable, NaN above everything; by Python's sort."""

    def key(i: int) -> tuple[bool, float]:
        v = float(values[i])
        return (math.isnan(v), 0.0 if math.isnan(v) else v)

    places = list(range(len(values)))
    if not descending:
        return sorted(places, key=key)
    return sorted(places, key=lambda i: (not key(i)[0], -key(i)[1]))


def tied(seed: int, *shape: int) -> np.ndarray:
    """Many equal values, both zeros, some NaN."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-4, 5, shape).astype(F32)
    x[rng.random(shape) < 0.1] = math.nan
    x[rng.random(shape) < 0.1] = -0.0
    return x


@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable(descending: bool) -> None:
    x = tied(37, 4, 100)

    def work(b: ProgramBuilder, t: Tiles) -> None:
        b.compute(
            Kind.SORT,
            {"m": 4, "n": 100},
            t["x"]["m", "n"],
            (t["v"]["m", "n"], t["i"]["m", "n"]),
            label="n",
            descending=descending,
        )

    got = compute(work, {"x": given(x)}, {"v": Given((4, 100)), "i": Given((4, 100), "int64")})
    for row in range(4):
        order = order_of(x[row], descending)
        assert got["i"][row].tolist() == order
        same(got["v"][row], x[row][order])


@pytest.mark.parametrize("descending", [False, True])
def test_merge_of_sorted_halves_is_a_sort(descending: bool) -> None:
    x = tied(38, 3, 128)

    def work(b: ProgramBuilder, t: Tiles) -> None:
        halves = [
            (t["v"].part(0, start)["m", "n"], t["i"].part(0, start)["m", "n"]) for start in (0, 64)
        ]
        parts = {}
        for name in ("va", "vb"):
            parts[name] = b.lx(f"{name}_lx", b.value(name, (3, 64)), (3, 64))["m", "n"]
        for name in ("ia", "ib"):
            value = b.value(name, (3, 64), format=Format.IEEE_INT64)
            parts[name] = b.lx(f"{name}_lx", value, (3, 64))["m", "n"]
        for side, start in (("a", 0), ("b", 64)):
            b.compute(
                Kind.SORT,
                {"m": (0, 3), "n": (start, 64)},
                t["x"].part(0, start)["m", "n"],
                (parts[f"v{side}"], parts[f"i{side}"]),
                label="n",
                descending=descending,
            )
        b.compute(
            Kind.MERGE,
            {"m": 3, "n": 64},
            [parts[name] for name in ("va", "ia", "vb", "ib")],
            [*halves[0], *halves[1]],
            label="n",
            descending=descending,
        )

    got = compute(work, {"x": given(x)}, {"v": Given((3, 128)), "i": Given((3, 128), "int64")})
    for row in range(3):
        order = order_of(x[row], descending)
        assert got["i"][row].tolist() == order
        same(got["v"][row], x[row][order])


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("tile", [0, 64])
def test_topk_is_the_head_of_the_sort(descending: bool, tile: int) -> None:
    x = tied(39, 3, 150)
    tile = tile or 150

    def work(b: ProgramBuilder, t: Tiles) -> None:
        for start in range(0, 150, tile):
            b.compute(
                Kind.TOPK,
                {"m": (0, 3), "n": (start, min(tile, 150 - start))},
                t["x"].part(0, start)["m", "n"],
                (t["v"]["m", "n"], t["i"]["m", "n"]),
                label="n",
                limit=70,
                descending=descending,
                accumulate=start,
            )

    got = compute(work, {"x": given(x)}, {"v": Given((3, 70)), "i": Given((3, 70), "int64")})
    for row in range(3):
        order = order_of(x[row], descending)[:70]
        assert got["i"][row].tolist() == order
        same(got["v"][row], x[row][order])


def test_topk_of_too_few_entries_ends_in_nothing() -> None:
    x = np.array([3, 1, 2], dtype=F32)

    def work(b: ProgramBuilder, t: Tiles) -> None:
        b.compute(
            Kind.TOPK,
            {"n": 3},
            t["x"]["n"],
            (t["v"]["n"], t["i"]["n"]),
            label="n",
            limit=5,
            descending=True,
        )

    got = compute(work, {"x": given(x)}, {"v": Given((5,)), "i": Given((5,), "int64")})
    assert got["v"].tolist() == [3, 2, 1, 0, 0]
    assert got["i"].tolist() == [0, 2, 1, -1, -1]
