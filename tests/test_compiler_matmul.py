"""The scheduler of matrix products against numpy: k-ascending float32 sums, then one rounding.

Every program is verified, and run on the reference executor and the native machine, with pads that
hold NaN.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matmul_kernels import Work, ascending, check, finish, product, rounded, run
from oracles import decode_dl16, encode_dl16

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.view import View
from openspyre.formats import Mode
from openspyre.program import body as f
from openspyre.program.binary import encode
from openspyre.program.verify import verify

SIZES = st.one_of(st.integers(1, 5), st.integers(60, 70), st.integers(1, 200))


def values(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Multiples of 1/64 in -2..2: exact in every 16-bit format."""
    return (rng.integers(-127, 128, shape) / 64).astype(np.float32)


def to_format(sums: np.ndarray, dtype: str, mode: Mode = Mode.DL16) -> np.ndarray:
    """Sums as a tensor of `dtype` holds them."""
    if dtype == "float32":
        return sums
    if mode is Mode.IEEE:
        if dtype == "float16":
            return sums.astype(np.float16).astype(np.float64)
        import torch

        return torch.from_numpy(sums).bfloat16().double().numpy()
    return decode_dl16(encode_dl16(sums.astype(np.float64), largest_finite=None))


def only(outputs: dict[str, np.ndarray]) -> np.ndarray:
    (array,) = outputs.values()
    return array


def swapped(array: np.ndarray, turned: bool) -> np.ndarray:
    return array.swapaxes(-1, -2) if turned else array


@settings(max_examples=40, deadline=None)
@given(
    m=SIZES,
    k=SIZES.filter(lambda k: k > 1),
    n=SIZES,
    dtype=st.sampled_from(["float16", "float32"]),
    turn_a=st.booleans(),
    turn_b=st.booleans(),
    cores=st.sampled_from([1, 2, 7, 32]),
    seed=st.integers(0, 1000),
)
def test_n7_products_are_ascending_sums_rounded_once(
    m: int, k: int, n: int, dtype: str, turn_a: bool, turn_b: bool, cores: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a, b = values(rng, m, k), values(rng, k, n)
    work = product((m, k), (k, n), dtype, turn_a=turn_a, turn_b=turn_b)
    found = only(
        check(work, {"a": swapped(a, turn_a), "b": swapped(b, turn_b)}, CompileOptions(cores=cores))
    )
    assert "k0" not in work.kernel.splits
    expected = to_format(ascending(a, b), dtype).reshape(found.shape)
    np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("turn_a", "turn_b"), [(False, False), (False, True), (True, True)])
def test_16_bit_formats_in_both_modes(mode: Mode, dtype: str, turn_a: bool, turn_b: bool) -> None:
    rng = np.random.default_rng(1)
    a, b = values(rng, 70, 150), values(rng, 150, 200)
    work = product((70, 150), (150, 200), dtype, turn_a=turn_a, turn_b=turn_b, mode=mode)
    found = only(
        check(work, {"a": swapped(a, turn_a), "b": swapped(b, turn_b)}, CompileOptions(mode=mode))
    )
    np.testing.assert_array_equal(
        found.astype(np.float64), to_format(ascending(a, b), dtype, mode).astype(np.float64)
    )


@pytest.mark.parametrize("turn_b", [False, True])
@pytest.mark.parametrize("shape", [(1, 300, 150), (33, 129, 260), (5, 70, 1)])
def test_int8_products_are_exact(shape: tuple[int, int, int], turn_b: bool) -> None:
    m, k, n = shape
    rng = np.random.default_rng(2)
    a = rng.integers(-128, 128, (m, k)).astype(np.int8)
    b = rng.integers(-128, 128, (k, n)).astype(np.int8)
    work = product((m, k), (k, n), "int8", turn_b=turn_b)
    found = only(check(work, {"a": a, "b": swapped(b, turn_b)}))
    expected = (a.astype(np.int64) @ b.astype(np.int64)).reshape(found.shape)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("turn_b", [False, True])
def test_fp8_products_of_two_formats(turn_b: bool) -> None:
    rng = np.random.default_rng(3)
    a = (rng.integers(-15, 16, (9, 200)) / 4).astype(np.float32)
    b = (rng.integers(-7, 8, (200, 140)) / 4).astype(np.float32)
    work = product(
        (9, 200), (200, 140), "float8_e4m3fn", b_dtype="float8_e5m2", turn_b=turn_b,
        out_dtype="float16",
    )  # fmt: skip
    found = only(check(work, {"a": a, "b": swapped(b, turn_b)}))
    np.testing.assert_array_equal(
        found.astype(np.float64), to_format(ascending(a, b), "float16").astype(np.float64)
    )


BATCHED = [
    ((3, 5, 70), (3, 70, 130)),
    ((3, 5, 70), (70, 130)),  # shared weights: the batch is rows
    ((5, 70), (3, 70, 130)),  # one a for all: the batch is columns
    ((2, 4, 5, 70), (2, 1, 70, 66)),  # grouped heads
    ((2, 4, 1, 70), (2, 1, 70, 66)),
    ((2, 1, 5, 70), (2, 3, 70, 66)),
    ((40, 3, 17), (40, 17, 9)),
    ((2, 3, 1, 4, 65), (2, 1, 3, 65, 10)),
]


@pytest.mark.parametrize("turn_b", [False, True])
@pytest.mark.parametrize(("a_shape", "b_shape"), BATCHED)
def test_batches_of_every_kind(
    a_shape: tuple[int, ...], b_shape: tuple[int, ...], turn_b: bool
) -> None:
    rng = np.random.default_rng(4)
    a, b = values(rng, *a_shape), values(rng, *b_shape)
    results = []
    for cores in (1, 7, 32):
        work = product(a_shape, b_shape, turn_b=turn_b)
        results.append(
            only(check(work, {"a": a, "b": swapped(b, turn_b)}, CompileOptions(cores=cores)))
        )
    expected = to_format(ascending(a, b), "float16")
    for found in results:
        np.testing.assert_array_equal(found.astype(np.float64), expected.reshape(found.shape))


def test_other_dim_orders_of_all_operands() -> None:
    """The stick on a batch dim, or one element a stick."""
    rng = np.random.default_rng(5)
    a, b = values(rng, 70, 6, 65), values(rng, 70, 65, 5)
    expected = to_format(ascending(a, b), "float16")
    orders = [{"a": (2, 1, 0)}, {"b": (1, 2, 0)}, {"out": (2, 1, 0)}, {"out": (0, 2, 1)}]
    for order in [*orders, {"a": (2, 1, 0), "b": (2, 1, 0), "out": (1, 2, 0)}]:
        found = only(check(product(a.shape, b.shape, orders=order), {"a": a, "b": b}))
        np.testing.assert_array_equal(found.astype(np.float64), expected)
    a, b = values(rng, 7, 65), values(rng, 65, 5)
    for order in [{"a": (0, 1, -1)}, {"b": (0, 1, -1)}, {"out": (0, 1, -1)}]:
        found = only(check(product(a.shape, b.shape, orders=order), {"a": a, "b": b}))
        np.testing.assert_array_equal(
            found.astype(np.float64), to_format(ascending(a, b), "float16")
        )


# --- what follows the sums


def test_bias_activation_and_a_transposed_residual() -> None:
    rng = np.random.default_rng(6)
    a, b = values(rng, 70, 130), values(rng, 130, 90)
    bias, residual = values(rng, 90), values(rng, 90, 70)

    def epilogue(g: GraphBuilder, sums: View, more: dict[str, View]) -> View:
        mm = rounded(g, sums, "float16")
        biased = g.map(lambda x, y: x + y, mm, more["bias"], dtype="float16", name="t")
        return g.map(
            lambda x, r: f.relu(x) + r, biased, more["residual"].transpose(0, 1),
            dtype="float16", name="out",
        )  # fmt: skip

    more = {"bias": ((90,), "float16"), "residual": ((90, 70), "float16")}
    work = product(a.shape, b.shape, epilogue=epilogue, more=more)
    inputs = {"a": a, "b": b, "bias": bias, "residual": residual}
    for cores in (1, 7, 32):
        found = only(check(work, inputs, CompileOptions(cores=cores)))
        mm = to_format(ascending(a, b), "float16")
        biased = to_format((mm + bias).astype(np.float32), "float16")
        expected = to_format((np.maximum(biased, 0) + residual.T).astype(np.float32), "float16")
        np.testing.assert_array_equal(found.astype(np.float64), expected)


def test_several_outputs_and_a_row_scale() -> None:
    """The product itself is an output, too; a scale a row, one element a stick; a number."""
    rng = np.random.default_rng(7)
    a, b, scale = values(rng, 9, 130), values(rng, 130, 90), values(rng, 9, 1)
    g = GraphBuilder("mm")
    left, right = g.input("a", [9, 130], "float16"), g.input("b", [130, 90], "float16")
    rows = g.input("scale", [9, 1], "float32")
    mm = rounded(g, g.matmul(left, right), "float16")
    g.output(mm)
    factor = g.scalar("factor", 2.0)
    result = g.map(lambda x, s, t: x * s * t, mm, rows, factor, dtype="float32", name="scaled")
    work = finish(g, result, {"scale": (0, 1, -1)})
    program = work.program()
    verify(program, {})
    inputs = {"a": a, "b": b, "scale": scale}
    found = run(work, program, inputs, {"factor": 0.5})
    slow = run(work, program, inputs, {"factor": 0.5}, native=False)
    expected = to_format(ascending(a, b), "float16")
    for outputs in (found, slow):
        np.testing.assert_array_equal(outputs["out"].astype(np.float64), expected)
        np.testing.assert_array_equal(outputs["scaled"], expected * scale * 0.5)


def test_a_causal_mask_by_index() -> None:
    """Bodies that read the index of a label."""
    rng = np.random.default_rng(8)
    a, b = values(rng, 3, 70, 64), values(rng, 3, 64, 70)

    def epilogue(g: GraphBuilder, sums: View, more: dict[str, View]) -> View:
        return g.map(
            lambda at, x: f.where(at(2) <= at(1), x, -100.0), sums, dtype="float32", indexed=True,
            name="out",
        )  # fmt: skip

    found = only(check(product(a.shape, b.shape, epilogue=epilogue), {"a": a, "b": b}))
    mask = np.tril(np.ones((70, 70), bool))
    np.testing.assert_array_equal(found, np.where(mask, ascending(a, b), np.float32(-100)))


def test_sums_that_are_the_result() -> None:
    """A float32 product without any MAP."""
    rng = np.random.default_rng(9)
    a, b = values(rng, 40, 70), values(rng, 70, 50)
    work = product(a.shape, b.shape, "float32", epilogue=lambda g, sums, more: sums)
    np.testing.assert_array_equal(only(check(work, {"a": a, "b": b})), ascending(a, b))


def test_addmm_in_place() -> None:
    """out = out + a @ b: read and written at the same element."""
    rng = np.random.default_rng(10)
    a, b, c = values(rng, 40, 70), values(rng, 70, 130), values(rng, 40, 130)
    g = GraphBuilder("addmm")
    left, right = g.input("a", [40, 70], "float16"), g.input("b", [70, 130], "float16")
    target = g.input("c", [40, 130], "float16")
    sums = g.matmul(left, right)
    total = g.map(lambda x, y: x + y, sums, target, dtype="float16", name="total")
    g.store(target, total)
    work = _as_kernel(g)
    found = only(check(work, {"a": a, "b": b, "c": c}))
    np.testing.assert_array_equal(
        found.astype(np.float64), to_format(ascending(a, b) + c, "float16")
    )


def _as_kernel(g: GraphBuilder) -> Work:
    from matmul_kernels import place

    from openspyre.compiler.graph import Role
    from openspyre.compiler.tiles import Kernel, outside, users_of

    for tensor in g.graph.tensors:
        if tensor.role is not Role.TEMP:
            place(tensor, g.graph.mode)
    kernel = Kernel("matmul", list(g.graph.ops))
    kernel.arguments, kernel.written = outside(kernel.ops, users_of(g.graph.ops))
    return Work(g.graph, kernel)


# --- splits and tiles


@pytest.mark.parametrize("turn_b", [False, True])
@pytest.mark.parametrize(("m", "n"), [(1, 70), (11, 150)])
def test_n8_a_split_k_sums_the_cores_in_order(m: int, n: int, turn_b: bool) -> None:
    rng = np.random.default_rng(11)
    k = 330
    a, b = values(rng, m, k), values(rng, k, n)
    a *= rng.integers(1, 1000, (m, k))
    work = product((m, k), (k, n), "float32", turn_b=turn_b)
    options = CompileOptions(split=(("k", 3),), tile=(("k", 32), ("m", 4)))
    found = only(check(work, {"a": a, "b": swapped(b, turn_b)}, options))
    assert work.kernel.splits["k0"] == 3
    bounds = [0, 128, 256, 330]  # 11 sticks of 32 on 3 cores
    parts = [ascending(a[:, s:e], b[s:e]) for s, e in itertools.pairwise(bounds)]
    expected = (parts[0] + parts[1]) + parts[2]
    np.testing.assert_array_equal(found, expected.reshape(found.shape))


@pytest.mark.parametrize("split", [(), (("m", 3),), (("n", 3),), (("m", 2), ("n", 3))])
@pytest.mark.parametrize(
    "tile",
    [
        (("m", 8), ("n", 64), ("k", 64)),
        (("m", 8), ("k", 64)),
        (("m", 20), ("n", 64)),
        (("n", 128), ("k", 128)),
    ],
)
def test_o8_forced_splits_and_tiles_change_no_bit(
    split: tuple[tuple[str, int], ...], tile: tuple[tuple[str, int], ...]
) -> None:
    rng = np.random.default_rng(12)
    a, b = values(rng, 25, 150), values(rng, 150, 330)
    expected = to_format(ascending(a, b), "float16")
    for turn_b in (False, True):
        work = product(a.shape, b.shape, turn_b=turn_b)
        options = CompileOptions(split=split, tile=tile)
        found = only(check(work, {"a": a, "b": swapped(b, turn_b)}, options, slow=turn_b))
        np.testing.assert_array_equal(found.astype(np.float64), expected)
        for name, count in split:
            assert work.kernel.splits[f"{name}0"] == count
        for name, size in tile:
            assert work.kernel.tile[f"{name}0"] <= size


@pytest.mark.parametrize("stay", ["", "a", "b"])
@pytest.mark.parametrize("turned", [(False, False), (True, True)])
def test_every_order_of_loops_gives_the_same(stay: str, turned: tuple[bool, bool]) -> None:
    from dataclasses import replace

    from openspyre.compiler.schedule.matmul import plans_for, write
    from openspyre.compiler.schedule.matmul_form import product_of, read_form

    rng = np.random.default_rng(13)
    a, b = values(rng, 3, 45, 200), values(rng, 3, 200, 330)
    work = product(a.shape, b.shape, turn_a=turned[0], turn_b=turned[1])
    form = read_form(work.kernel, work.graph)
    numbers = product_of(form, work.graph)
    options = CompileOptions(cores=4)
    plan = plans_for(form, numbers, options)[0]
    tile = {"b0": 1, "m0": 64 if turned[0] else 8, "n0": 64, "k0": 64}
    plan = replace(plan, parts={"m0": 1, "n0": 2}, tile=tile, stay=stay)
    program = write(work.kernel, work.graph, options, form, numbers, plan)
    verify(program, {})
    inputs = {"a": swapped(a, turned[0]), "b": swapped(b, turned[1])}
    found = only(run(work, program, inputs))
    np.testing.assert_array_equal(found.astype(np.float64), to_format(ascending(a, b), "float16"))


def test_symbolic_rows_columns_and_depth() -> None:
    rng = np.random.default_rng(14)
    for symbolic in ("m", "n", "k", "bmn"):
        for turn_b in (False, True):
            sizes = {"b": 2, "m": 20, "k": 70, "n": 90}
            g = GraphBuilder("mm")
            used = {
                name: g.size_symbol(f"s_{name}", 1, 300, 50) if name in symbolic else size
                for name, size in sizes.items()
            }
            left = g.input("a", [used["b"], used["m"], used["k"]], "float16")
            if turn_b:
                right = g.input("b", [used["b"], used["n"], used["k"]], "float16")
                right = right.transpose(1, 2)
            else:
                right = g.input("b", [used["b"], used["k"], used["n"]], "float16")
            work = finish(g, rounded(g, g.matmul(left, right), "float16"))
            program = work.program()
            for value in (1, 64, 77) if len(symbolic) == 1 else (9, 70):
                now = {name: value if name in symbolic else size for name, size in sizes.items()}
                symbols = {f"s_{name}": value for name in symbolic}
                verify(program, symbols)
                a, b = (
                    values(rng, now["b"], now["m"], now["k"]),
                    values(rng, now["b"], now["k"], now["n"]),
                )
                found = only(run(work, program, {"a": a, "b": swapped(b, turn_b)}, symbols))
                np.testing.assert_array_equal(
                    found.astype(np.float64), to_format(ascending(a, b), "float16")
                )


def test_p2_the_same_kernel_gives_the_same_bytes() -> None:
    images = {encode(product((70, 300), (300, 200), turn_b=True).program()) for _ in range(3)}
    assert len(images) == 1


@pytest.mark.parametrize("turn_b", [False, True])
def test_slices_of_larger_tensors(turn_b: bool) -> None:
    """Offsets in every dim: whole sticks along the stick, any number elsewhere."""
    rng = np.random.default_rng(15)
    whole_a, whole_b = values(rng, 20, 330), values(rng, 200, 330)
    if turn_b:
        whole_b = values(rng, 330, 200)
    bias = values(rng, 330)
    g = GraphBuilder("mm")
    left = g.input("a", list(whole_a.shape), "float16").slice(0, 3, 13).slice(1, 64, 130)
    right = g.input("b", list(whole_b.shape), "float16")
    if turn_b:
        right = right.slice(0, 5, 140).slice(1, 64, 130).transpose(0, 1)
        b = whole_b[5:145, 64:194].T
    else:
        right = right.slice(0, 7, 130).slice(1, 128, 140)
        b = whole_b[7:137, 128:268]
    more = g.input("bias", [330], "float16").slice(0, 64, 140)
    result = g.map(lambda x, y: x + y, g.matmul(left, right), more, dtype="float16", name="out")
    work = finish(g, result)
    found = only(check(work, {"a": whole_a, "b": whole_b, "bias": bias}, CompileOptions(cores=7)))
    expected = ascending(whole_a[3:16, 64:194], b) + bias[64:204]
    np.testing.assert_array_equal(found.astype(np.float64), to_format(expected, "float16"))


def test_a_tensor_times_itself() -> None:
    rng = np.random.default_rng(16)
    a = values(rng, 70, 130)
    g = GraphBuilder("mm")
    x = g.input("a", [70, 130], "float16")
    work = finish(g, rounded(g, g.matmul(x, x.transpose(0, 1)), "float16"))
    found = only(check(work, {"a": a}))
    np.testing.assert_array_equal(found.astype(np.float64), to_format(ascending(a, a.T), "float16"))


def test_dtypes_that_the_pt_does_not_multiply() -> None:
    from openspyre.compiler.errors import Unsupported

    with pytest.raises(Unsupported, match="one floating dtype"):
        product((4, 64), (64, 64), "float16", b_dtype="float32", out_dtype="float32").program()
