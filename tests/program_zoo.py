"""Small programs of every kind, with inputs and references: what executors, verifier, text and
binary form, mutations and timing are tried on.

A case is small enough for the slow reference executor: 2 to 8 cores, a few thousand elements,
ragged last tiles and unequal shares. `ZOO[name]()` makes it anew. Inputs are logical numpy arrays
by operand name (in and inout), of values that every float format of theirs holds exactly; for fp8
operands they are float32 arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np

from openspyre.program import Program, ProgramBuilder
from openspyre.program import body as f

sys.path.insert(0, str(Path(__file__).parent.parent))  # `examples` is no installed package

from examples.programs import add, columns, indexing, ksplit, matmul, pointwise, rows, sorting

Arrays: TypeAlias = dict[str, np.ndarray]
Rng: TypeAlias = np.random.Generator


@dataclass(frozen=True)
class Case:
    """A program, its inputs and what it must give. Results agree when |difference| is at most
    atol + rtol * |reference|; both zero means equal."""

    program: Program
    make_inputs: Callable[[Rng], Arrays]
    reference: Callable[[Arrays], Arrays]
    rtol: float = 0.0
    atol: float = 0.0
    symbols: Mapping[str, int | float] = field(default_factory=dict)


HALF_ULP = 2.0**-9
"""Relative error of one rounding to DLFloat16 under any tie rule (9 fraction bits), doubled."""


def floats(rng: Rng, *shape: int, dtype: str = "float16") -> np.ndarray:
    """Multiples of 1/64 in -2..2: exact in every 16-bit format."""
    return (rng.integers(-127, 128, shape) / 64).astype(dtype)


def integers(rng: Rng, low: int, high: int, *shape: int, dtype: str = "int64") -> np.ndarray:
    """low .. high - 1."""
    return rng.integers(low, high, shape).astype(dtype)


def _add() -> Case:
    return Case(
        add.build(37, 150, cores=4, tile=(4, 128)),
        lambda rng: {"x": floats(rng, 37, 150), "y": floats(rng, 37, 150)},
        lambda a: {"z": add.reference(a["x"], a["y"])},
        rtol=HALF_ULP,
    )


def _add_more_cores_than_rows() -> Case:
    return Case(
        add.build(5, 70, cores=8, tile=(2, 64)),
        lambda rng: {"x": floats(rng, 5, 70), "y": floats(rng, 5, 70)},
        lambda a: {"z": add.reference(a["x"], a["y"])},
        rtol=HALF_ULP,
    )


def _add_symbolic() -> Case:
    return Case(
        add.build(96, 70, cores=3, tile=(8, 64), symbolic=True),
        lambda rng: {"x": floats(rng, 29, 70), "y": floats(rng, 29, 70)},
        lambda a: {"z": add.reference(a["x"], a["y"])},
        rtol=HALF_ULP,
        symbols={"rows": 29},
    )


def _copy() -> Case:
    return Case(
        pointwise.copy(19, 200, cores=4, tile=(4, 128)),
        lambda rng: {"x0": floats(rng, 19, 200)},
        lambda a: {"out": a["x0"]},
    )


def _neg_float32() -> Case:
    return Case(
        pointwise.neg(9, 150, cores=2, tile=(2, 96), dtypes=("float32", "float32")),
        lambda rng: {"x0": rng.standard_normal((9, 150)).astype(np.float32)},
        lambda a: {"out": -a["x0"]},
    )


def _gelu() -> Case:
    return Case(
        pointwise.gelu(21, 130, cores=4, tile=(8, 64)),
        lambda rng: {"x0": floats(rng, 21, 130)},
        lambda a: {"out": pointwise.gelu_reference(a["x0"])},
        rtol=2 * HALF_ULP,
        atol=1e-6,
    )


def _uniform() -> Case:
    return Case(
        pointwise.uniform(11, 70, cores=4, tile=(2, 32)),
        lambda rng: {},
        lambda a: {"out": pointwise.uniform_reference(11, 70, 1234567890123)},
        symbols={"seed": 1234567890123},
    )


def _select() -> Case:
    """where(x > y, x, y * scale) of mixed formats, to float32."""
    program = pointwise.build(
        "select",
        lambda x, y: f.where(x > y, x, y * x.scalar("scale")),
        13,
        100,
        dtypes=("float16", "float32", "float32"),
        cores=2,
        tile=(4, 64),
        floats=("scale",),
    )
    return Case(
        program,
        lambda rng: {"x0": floats(rng, 13, 100), "x1": floats(rng, 13, 100, dtype="float32")},
        lambda a: {"out": np.where(a["x0"] > a["x1"], a["x0"], a["x1"] * np.float32(0.5))},
        symbols={"scale": 0.5},
    )


def _bitwise() -> Case:
    """Integers: (x ^ (y << 3)) % 17, remainder with the divisor's sign."""
    program = pointwise.build(
        "bitwise",
        lambda x, y: (x ^ (y << 3)) % 17,
        7,
        90,
        dtypes=("int32", "int32", "int32"),
        cores=3,
        tile=(2, 64),
    )
    return Case(
        program,
        lambda rng: {
            "x0": integers(rng, -1000, 1000, 7, 90, dtype="int32"),
            "x1": integers(rng, -1000, 1000, 7, 90, dtype="int32"),
        },
        lambda a: {"out": np.remainder(a["x0"] ^ (a["x1"] << 3), 17)},
    )


def _softmax() -> Case:
    return Case(
        rows.softmax(23, 150, cores=4, tile_rows=4),
        lambda rng: {"x": floats(rng, 23, 150)},
        lambda a: {"y": rows.softmax_reference(a["x"])},
        rtol=2 * HALF_ULP,
    )


def _layernorm() -> Case:
    return Case(
        rows.layernorm(13, 150, cores=4, tile_rows=2),
        lambda rng: {
            "x": floats(rng, 13, 150),
            "weight": floats(rng, 150),
            "bias": floats(rng, 150),
        },
        lambda a: {"y": rows.layernorm_reference(a["x"], a["weight"], a["bias"])},
        rtol=2 * HALF_ULP,
        atol=1e-5,
    )


def _rms_norm() -> Case:
    return Case(
        rows.rms_norm(11, 200, cores=2, tile_rows=4),
        lambda rng: {"x": floats(rng, 11, 200), "weight": floats(rng, 200)},
        lambda a: {"y": rows.rms_norm_reference(a["x"], a["weight"])},
        rtol=2 * HALF_ULP,
    )


def _argmax() -> Case:
    return Case(
        rows.argmax(40, 150, cores=2, tile=(16, 64)),
        lambda rng: {"x": floats(rng, 40, 150)},
        lambda a: {"index": rows.argmax_reference(a["x"])},
    )


def _matmul_inputs(m: int, k: int, n: int) -> Callable[[Rng], Arrays]:
    return lambda rng: {"a": floats(rng, m, k), "b": floats(rng, k, n)}


def _matmul() -> Case:
    return Case(
        matmul.build(21, 150, 200, grid=(2, 4), tile=(8, 64, 64)),
        _matmul_inputs(21, 150, 200),
        lambda a: {"c": matmul.reference(a["a"], a["b"])},
        rtol=HALF_ULP,
        atol=1e-4,
    )


def _matmul_float32() -> Case:
    return Case(
        matmul.build(
            6, 70, 40, grid=(2, 1), dtype="float32", out_dtype="float32", tile=(4, 32, 64)
        ),
        lambda rng: {
            "a": floats(rng, 6, 70, dtype="float32"),
            "b": floats(rng, 70, 40, dtype="float32"),
        },
        lambda a: {"c": matmul.reference(a["a"], a["b"])},
        rtol=1e-6,
        atol=1e-4,
    )


def _gemv() -> Case:
    return Case(
        matmul.gemv(160, 150, cores=4, tile_k=64),
        _matmul_inputs(1, 160, 150),
        lambda a: {"c": matmul.reference(a["a"], a["b"])},
        rtol=HALF_ULP,
        atol=1e-4,
    )


def _matmul_int8() -> Case:
    return Case(
        matmul.int8(7, 300, 140, grid=(2, 2), tile=(4, 128, 128)),
        lambda rng: {
            "a": integers(rng, -128, 128, 7, 300, dtype="int8"),
            "b": integers(rng, -128, 128, 300, 140, dtype="int8"),
        },
        lambda a: {"c": matmul.reference(a["a"], a["b"]) * 2.0**-12},
        rtol=HALF_ULP,
        symbols={"scale": 2.0**-12},
    )


def _matmul_fp8() -> Case:
    def make_inputs(rng: Rng) -> Arrays:  # multiples of 1/4 up to 4 in size: exact in e4m3
        return {
            "a": (rng.integers(-15, 16, (5, 200)) / 4).astype(np.float32),
            "b": (rng.integers(-15, 16, (200, 140)) / 4).astype(np.float32),
        }

    return Case(
        matmul.fp8(5, 200, 140, grid=(1, 2), tile=(4, 128, 128)),
        make_inputs,
        lambda a: {"c": matmul.reference(a["a"], a["b"]) * 0.25},
        rtol=HALF_ULP,
        atol=1e-4,
        symbols={"scale": 0.25},
    )


def _bmm() -> Case:
    return Case(
        matmul.batched(5, 9, 70, 80, cores=2, tile=(4, 64, 64), together=2),
        lambda rng: {"a": floats(rng, 5, 9, 70), "b": floats(rng, 5, 70, 80)},
        lambda a: {"c": matmul.reference(a["a"], a["b"])},
        rtol=HALF_ULP,
        atol=1e-4,
    )


def _ksplit() -> Case:
    return Case(
        ksplit.build(10, 330, 150, grid=(2, 3), tile=(7, 64, 64)),
        _matmul_inputs(10, 330, 150),
        lambda a: {"c": ksplit.reference(a["a"], a["b"])},
        rtol=HALF_ULP,
        atol=1e-4,
    )


def _embedding() -> Case:
    return Case(
        indexing.embedding(45, 150, 60, cores=2, tile_rows=16),
        lambda rng: {"index": integers(rng, 0, 60, 45), "table": floats(rng, 60, 150)},
        lambda a: {"out": indexing.embedding_reference(a["index"], a["table"])},
    )


def _index_add() -> Case:
    return Case(
        indexing.index_add(13, 70, 40, cores=4, tile_rows=16),
        lambda rng: {
            "target": floats(rng, 13, 70, dtype="float32"),
            "index": integers(rng, 0, 13, 40),
            "x": floats(rng, 40, 70, dtype="float32"),
        },
        lambda a: {"target": indexing.index_add_reference(a["target"], a["index"], a["x"])},
    )


def _take_along() -> Case:
    return Case(
        indexing.take_along(9, 70, cores=2, tile_rows=2),
        lambda rng: {
            "x": floats(rng, 9, 70),
            "index": integers(rng, 0, 70, 9, 70, dtype="int32"),
        },
        lambda a: {"out": indexing.take_along_reference(a["x"], a["index"])},
    )


def _scatter_add() -> Case:
    return Case(
        indexing.scatter_add(7, 70, cores=2, tile_rows=2),
        lambda rng: {
            "target": floats(rng, 7, 70, dtype="float32"),
            "index": integers(rng, 0, 70, 7, 70, dtype="int32"),
            "x": floats(rng, 7, 70, dtype="float32"),
        },
        lambda a: {"target": indexing.scatter_add_reference(a["target"], a["index"], a["x"])},
    )


def _transpose() -> Case:
    return Case(
        columns.transpose(70, 150, cores=2, tile=(64, 64)),
        lambda rng: {"x": floats(rng, 70, 150)},
        lambda a: {"y": columns.transpose_reference(a["x"])},
    )


def _column_sum() -> Case:
    return Case(
        columns.column_sum(21, 150, cores=2, tile=(8, 64)),
        lambda rng: {"x": floats(rng, 21, 150)},
        lambda a: {"y": columns.column_sum_reference(a["x"])},
        rtol=HALF_ULP,
    )


def _cumsum() -> Case:
    return Case(
        columns.cumsum(9, 150, cores=4, tile=(2, 64)),
        lambda rng: {"x": floats(rng, 9, 150, dtype="float32")},
        lambda a: {"y": columns.cumsum_reference(a["x"])},
    )


def _topk() -> Case:
    def reference(a: Arrays) -> Arrays:
        values, indices = sorting.topk_reference(a["x"], 5)
        return {"values": values, "indices": indices}

    return Case(
        sorting.topk(7, 150, 5, cores=2, tile=(2, 64)),
        lambda rng: {"x": floats(rng, 7, 150)},
        reference,
    )


def _sort() -> Case:
    def reference(a: Arrays) -> Arrays:
        values, indices = sorting.sort_reference(a["x"])
        return {"values": values, "indices": indices}

    return Case(
        sorting.sort_rows(5, 64, cores=2, tile_rows=2),
        lambda rng: {"x": floats(rng, 5, 128)},
        reference,
    )


def _views() -> Case:
    """Operands by strides: rows of their own, a broadcast, overlapping windows, a sparse transposed
    output; sizes and strides known at launch."""
    b = ProgramBuilder("views", {"c": 3})
    rows, pitch = b.int_symbol("rows", 1, 64), b.int_symbol("pitch", 64, 1 << 12)
    x = b.input("x", (rows, 150), "float16", strides=(384, 128), stick=1)
    bias = b.input("bias", (rows, 150), "float16", strides=(0, 128), stick=1)
    windows = b.input(
        "windows", (rows, 2, 150), "float16", strides=(128, 128, pitch * 128), stick=2
    )
    y = b.output("y", (150, rows), "float16", strides=(pitch * 256, 256), stick=-1)
    own = b.split("own", rows, "c")
    boxes = b.boxes(r=(own, 8), c=150)
    xs, bs = b.stream("xs", x, (8, 150)), b.stream("bs", bias, (8, 150))
    ws = b.stream("ws", windows, (8, 2, 150))
    ys = b.stream("ys", y, (150, 8), users=["store"])
    with b.queue("load"), boxes() as (over, turn):
        with xs.fill(turn) as t:
            b.load(over, x["r", "c"], t["r", "c"])
        with bs.fill(turn) as t:
            b.load(over, bias["r", "c"], t["r", "c"])
        with ws.fill(turn) as t:
            b.load({"k": 2, **over}, windows["r", "k", "c"], t["r", "k", "c"])
    with (
        b.queue("sfu"),
        boxes() as (over, turn),
        xs.use(turn) as xt,
        bs.use(turn) as bt,
        ws.use(turn) as wt,
        ys.fill(turn) as yt,
    ):
        b.map(
            over,
            yt["c", "r"],
            lambda p, q, v, w: (p + q) + (v - w),
            xt["r", "c"],
            bt["r", "c"],
            wt["r", 0, "c"],
            wt.part(0, 1, 0)["r", 1, "c"],
        )
    with b.queue("store"), boxes() as (over, turn), ys.use(turn) as t:
        b.store(over, t["c", "r"], y["c", "r"])

    def inputs(rng: Rng) -> Arrays:
        line = floats(rng, 38, 150)
        return {
            "x": floats(rng, 37, 150),
            "bias": np.broadcast_to(floats(rng, 150), (37, 150)),
            "windows": np.stack([line[:-1], line[1:]], 1),
        }

    def reference(given: Arrays) -> Arrays:
        x, bias, windows = (given[name].astype(np.float32) for name in ("x", "bias", "windows"))
        return {"y": ((x + bias) + (windows[:, 0] - windows[:, 1])).T}

    return Case(b.build(), inputs, reference, rtol=HALF_ULP, symbols={"rows": 37, "pitch": 70})


ZOO: dict[str, Callable[[], Case]] = {
    "add": _add,
    "add_more_cores_than_rows": _add_more_cores_than_rows,
    "add_symbolic": _add_symbolic,
    "copy": _copy,
    "neg_float32": _neg_float32,
    "gelu": _gelu,
    "uniform": _uniform,
    "select": _select,
    "bitwise": _bitwise,
    "softmax": _softmax,
    "layernorm": _layernorm,
    "rms_norm": _rms_norm,
    "argmax": _argmax,
    "matmul": _matmul,
    "matmul_float32": _matmul_float32,
    "gemv": _gemv,
    "matmul_int8": _matmul_int8,
    "matmul_fp8": _matmul_fp8,
    "bmm": _bmm,
    "ksplit": _ksplit,
    "embedding": _embedding,
    "index_add": _index_add,
    "take_along": _take_along,
    "scatter_add": _scatter_add,
    "transpose": _transpose,
    "column_sum": _column_sum,
    "cumsum": _cumsum,
    "topk": _topk,
    "sort": _sort,
    "views": _views,
}
