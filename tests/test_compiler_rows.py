"""Rows kernels: maps, reductions, scans and order along a row, against the interpreter's bits."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from compiler_graphs import compiled, hold, inputs_of, launch, outputs, placed
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from openspyre.compiler.build import REGISTER, GraphBuilder
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.schedule.common import place_of
from openspyre.compiler.view import View
from openspyre.formats import Mode
from openspyre.program import body as f
from openspyre.program.body import Reg
from openspyre.program.model import Card, Unit
from openspyre.program.ops import Combine
from openspyre.timing import duration_ns

SIZES = (1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 150)
DTYPES = ("float16", "bfloat16", "float32", "int32", "int64", "int8", "uint8", "bool")
FEW = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],  # what fails is small already
)
SINGLE = (Combine.SUM, Combine.PROD, Combine.MAX, Combine.MIN)


@st.composite
def shapes(draw: Any, least: int = 1, points: int = 5000) -> tuple[int, ...]:
    """A shape of odd sizes that is not too large."""
    out: list[int] = []
    for _ in range(draw(st.integers(least, 5))):
        room = points // int(np.prod(out, dtype=int)) if out else points
        out.append(draw(st.sampled_from([s for s in SIZES if s <= max(1, room)])))
    return tuple(out)


def new(mode: Mode = Mode.DL16) -> GraphBuilder:
    return GraphBuilder("g", mode)


def argument(draw: Any, b: GraphBuilder, name: str, shape: tuple[int, ...], dtype: str) -> View:
    """An input of a random layout, transposed and broadcast at random, that looks like `shape`."""
    rank = len(shape)
    own = [1 if draw(st.integers(0, 5)) == 0 else size for size in shape]
    order = draw(st.permutations(range(rank)))
    stored = [own[d] for d in order]
    layout = draw(st.permutations(range(rank)))
    place = place_of(stored, dtype, b.mode, layout)
    view = b.input(name, stored, dtype, place=place)
    back = [list(order).index(d) for d in range(rank)]
    return view.permute(back).expand(shape)


def number(x: Reg, dtype: str) -> Reg:
    """Something done to a register of an operand."""
    if REGISTER[dtype] == "b":
        return ~x
    return x * 3 + 1


# --- maps


@FEW
@given(data=st.data(), shape=shapes(), mode=st.sampled_from(list(Mode)))
def test_maps_of_any_dtypes_layouts_and_broadcasts(
    data: Any, shape: tuple[int, ...], mode: Mode
) -> None:
    b = new(mode)
    dtypes = [data.draw(st.sampled_from(DTYPES)) for _ in range(data.draw(st.integers(1, 3)))]
    views = [argument(data.draw, b, f"x{n}", shape, d) for n, d in enumerate(dtypes)]
    to = data.draw(st.sampled_from(DTYPES))

    def body(*regs: Reg) -> Reg:
        total = f.cast(number(regs[0], dtypes[0]), "f")
        for reg in regs[1:]:
            total = total + f.cast(reg, "f")
        return total

    y = b.map(body, *views, dtype=to, shape=shape)
    hold(outputs(b, y), cores=data.draw(st.sampled_from([(32,), (1, 7), (2, 32)])))


def test_a_transposed_operand_is_turned_in_lx() -> None:
    b = new()
    x, y = b.input("x", (70, 150), "float32"), b.input("y", (150, 70), "float16")
    z = b.map(lambda p, q: p - q, x, y.transpose(0, 1), dtype="float32", compute="float32")
    ((_, program),) = hold(outputs(b, z), cores=(1, 32))
    assert len(program.operands) == 3


def test_formats_of_three_widths_share_a_stick_label() -> None:
    b = new()
    x, y = b.input("x", (40, 300), "int8"), b.input("y", (40, 300), "int64")
    a = b.map(lambda p, q: f.cast(p, "l") + q, x, y, dtype="int64")
    c = b.map(lambda p, q: f.cast(p, "f") * 0.5 + f.cast(q, "f"), x, y, dtype="float16")
    assert len(hold(outputs(b, a, c), cores=(32, 7))) == 1


def test_indices_and_numbers_of_the_launch() -> None:
    b = new()
    s, k = b.scalar("scale", 2.0), b.scalar("seed", 5)
    x = b.input("x", (9, 130), "float32")
    y = b.map(
        lambda at, p, q, r: p * q + f.cast(at(0) * 130 + at(1) + r, "f"),
        x, s, k, dtype="float32", indexed=True,
    )  # fmt: skip
    e = b.map(lambda at: at(0) * 10 + at(1), shape=(7, 130), dtype="int64", indexed=True)
    hold(outputs(b, y, e), symbols={"scale": 1.5, "seed": -7}, cores=(32, 2))


def test_a_symbolic_size_is_split_and_tiled() -> None:
    b = new()
    n = b.size_symbol("n", 1, 5000, hint=2000)
    x = b.input("x", (n, 150), "float16")
    s, = b.reduce(Combine.SUM, x, [1], compute="float32", keepdim=True)  # fmt: skip
    y = b.map(lambda p, q: p - q, x, s, dtype="float16", compute="float32")
    graph = placed(outputs(b, y))
    programs = compiled(graph, CompileOptions())
    assert len(programs) == 1
    for count in (1, 31, 64, 777):
        given_ = inputs_of(graph, symbols={"n": count})
        found = launch(programs, given_, {"n": count}, graph=graph, small=count < 100)
        x_ = given_["x"]
        want = x_ - x_.sum(1, keepdims=True)
        np.testing.assert_allclose(found[y.tensor.name], want, rtol=4e-3, atol=0.3)


# --- reductions


@FEW
@given(data=st.data(), shape=shapes(), combine=st.sampled_from(list(Combine)))
def test_reductions_over_any_dims(data: Any, shape: tuple[int, ...], combine: Combine) -> None:
    b = new()
    if combine is Combine.WELFORD:
        dtype = data.draw(st.sampled_from(("float16", "float32")))
    else:
        dtype = data.draw(st.sampled_from(DTYPES[:-1]))
    if combine in (Combine.ANY, Combine.ALL):
        dtype = data.draw(st.sampled_from(("bool", "float16", "int64")))
    x = argument(data.draw, b, "x", shape, dtype)
    rank = len(shape)
    dims = sorted(data.draw(st.sets(st.integers(0, rank - 1), min_size=1)))
    if combine in (Combine.ARGMAX, Combine.ARGMIN):
        dims = dims[:1]
    results = b.reduce(combine, x, dims)
    hold(outputs(b, *results), cores=data.draw(st.sampled_from([(32,), (1, 7), (2, 32)])))


@pytest.mark.parametrize("combine", [Combine.SUM, Combine.MAX, Combine.ANY])
def test_a_large_tensor_to_one_element_uses_all_cores(combine: Combine) -> None:
    b = new()
    x = b.input("x", (1100, 1000), "bool" if combine is Combine.ANY else "float32")
    r, = b.reduce(combine, x, [0, 1])  # fmt: skip
    y = b.map(lambda p: f.cast(p, "f") / 7.0, r, dtype="float32")
    ((kernel, program),) = hold(
        outputs(b, y), cores=(32, 1, 2, 7), small=False,
        exact=combine is not Combine.SUM, rtol=1e-4, atol=1e-2,
    )  # fmt: skip
    assert kernel.cores == 32
    assert program.queues[Unit.RING]


def test_no_core_spans_more_of_a_tensor_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    from openspyre.compiler.schedule import common
    from openspyre.program import verify_access

    for module in (common, verify_access):
        monkeypatch.setattr(module, "SPAN_LIMIT", 1 << 20)
    b = new()
    x = b.input("x", (700, 2500), "float32")
    r, = b.reduce(Combine.SUM, x, [0, 1])  # fmt: skip
    hold(outputs(b, r), cores=(32, 16), small=False, exact=False, rtol=1e-3, atol=1.0)
    b = new()
    y = b.map(lambda p: p + 1.0, b.input("x", (700, 2500), "float32"), dtype="float32")
    hold(outputs(b, y), small=False)


def test_sums_whose_first_dim_is_on_the_stick() -> None:
    """Each index of a stick has a lane of its own, so the dims after it can be cut."""
    for shape in ((40_000, 70), (300, 3000)):
        b = new()
        x = b.input("x", shape, "float32")
        r, = b.reduce(Combine.SUM, x.transpose(0, 1), [0, 1])  # fmt: skip
        m, = b.reduce(Combine.MAX, x.transpose(0, 1), [0, 1])  # fmt: skip
        many = shape[0] * shape[1] >= 1 << 20
        hold(outputs(b, r, m), cores=(32, 4), small=False, exact=not many, rtol=1e-3, atol=1.0)


def test_a_small_sum_keeps_the_order_of_one_core() -> None:
    b = new()
    x = b.input("x", (64, 1000), "float32")
    r, = b.reduce(Combine.SUM, x, [0, 1])  # fmt: skip
    ((kernel, _),) = hold(outputs(b, r), cores=(32, 1))
    assert kernel.cores == 1


def test_rows_longer_than_lx_are_taken_in_chunks() -> None:
    b = new()
    x = b.input("x", (2, 300_000), "float16")
    largest, = b.reduce(Combine.MAX, x, [1], keepdim=True)  # fmt: skip
    r = b.map(lambda p, q: p - q, x, largest, dtype="float16", compute="float32")
    s, = b.reduce(Combine.SUM, r, [1], compute="float32", keepdim=True)  # fmt: skip
    y = b.map(lambda p, q: p + q, r, s, dtype="float32", compute="float32")
    hold(outputs(b, y), cores=(1, 2), fuse=(True, False), small=False)


def test_chunks_do_not_change_the_order_of_a_sum_over_several_dims() -> None:
    b = new()
    x = b.input("x", (40, 30, 400), "float32")
    hold(outputs(b, *b.reduce(Combine.SUM, x, [0, 1])), cores=(32, 1), small=False)
    card = Card(lx_bytes=128 << 10)
    hold(outputs(b), cores=(32,), card=card, small=False)


# --- scans and order


@FEW
@given(
    data=st.data(),
    shape=shapes(),
    combine=st.sampled_from(SINGLE),
    to=st.sampled_from(("float16", "float32", "int64", "int32")),
)
def test_scans(data: Any, shape: tuple[int, ...], combine: Combine, to: str) -> None:
    b = new()
    x = argument(data.draw, b, "x", shape, data.draw(st.sampled_from(DTYPES)))
    dim = data.draw(st.integers(0, len(shape) - 1))
    hold(outputs(b, b.scan(combine, x, dim, to)), cores=data.draw(st.sampled_from([(32,), (1, 7)])))


@FEW
@given(data=st.data(), shape=shapes(points=2000), largest=st.booleans())
def test_sort_and_topk(data: Any, shape: tuple[int, ...], largest: bool) -> None:
    b = new()
    dtype = data.draw(st.sampled_from(DTYPES[:-1]))
    x = argument(data.draw, b, "x", shape, dtype)
    dim = data.draw(st.integers(0, len(shape) - 1))
    if shape[dim] == 1:
        return
    k = data.draw(st.integers(0, min(shape[dim], 40)))
    pair = b.sort(x, dim, k=k, descending=largest)
    hold(outputs(b, *pair), cores=data.draw(st.sampled_from([(32,), (1, 7)])))


def test_a_row_that_does_not_fit_lx_is_sorted_in_parts() -> None:
    b = new()
    x = b.input("x", (2, 20_000), "float16")
    hold(outputs(b, *b.sort(x, 1)), card=Card(lx_bytes=300 << 10), small=False)


def test_what_is_too_long_to_sort_is_refused_by_name() -> None:
    b = new()
    b.operation = "aten.sort.default"
    graph = placed(outputs(b, *b.sort(b.input("x", (1_000_000,), "float16"), 0)))
    with pytest.raises(Unsupported, match=r"aten\.sort.*Way out"):
        compiled(graph, CompileOptions())


# --- what it costs


def test_small_work_uses_one_core_and_builds_in_milliseconds() -> None:
    spent = []
    for _ in range(5):
        b = new()
        x, y = b.input("x", (64,), "float16"), b.input("y", (64,), "float16")
        graph = placed(outputs(b, b.map(lambda p, q: p + q, x, y, dtype="float16")))
        begin = time.perf_counter()
        ((kernel, _),) = compiled(graph, CompileOptions())
        spent.append(time.perf_counter() - begin)
        assert kernel.cores == 1
    assert min(spent) < 0.03  # 1 ms on a quiet machine


def softmax(b: GraphBuilder, x: View) -> View:
    m, = b.reduce(Combine.MAX, x, [-1], compute="float32", keepdim=True)  # fmt: skip
    e = b.map(lambda p, q: f.exp(p - q), x, m, dtype="float32", compute="float32")
    s, = b.reduce(Combine.SUM, e, [-1], keepdim=True)  # fmt: skip
    return b.map(lambda p, q: p / q, e, s, dtype=x.dtype, compute="float32")


def test_softmax_is_modelled_as_fast_as_one_by_hand() -> None:
    from examples.programs import rows

    b = new()
    graph = placed(outputs(b, softmax(b, b.input("x", (4096, 2048), "float16"))))
    ((_, program),) = compiled(graph, CompileOptions())
    assert duration_ns(program) <= 1.1 * duration_ns(rows.softmax())


def test_an_add_is_modelled_as_fast_as_the_memory() -> None:
    b = new()
    x, y = b.input("x", (4096, 4096), "float16"), b.input("y", (4096, 4096), "float16")
    graph = placed(outputs(b, b.map(lambda p, q: p + q, x, y, dtype="float16")))
    ((_, program),) = compiled(graph, CompileOptions())
    assert duration_ns(program) == pytest.approx(864_000, rel=0.02)
