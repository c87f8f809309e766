"""The passes: a graph computes the same before and after each, and has the form each promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import Made, Random, place_of

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.check import check, illegal, legal
from openspyre.compiler.errors import CompileError
from openspyre.compiler.graph import Access, Affine, Graph, Op, OpKind, Place, Role, Tensor
from openspyre.compiler.interpret import interpret
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.passes import PASSES
from openspyre.compiler.passes.canonicalize import canonicalize
from openspyre.compiler.passes.collapse import collapse
from openspyre.compiler.passes.edit import rename
from openspyre.compiler.passes.factor import factor
from openspyre.compiler.passes.layouts import layouts, restickified
from openspyre.compiler.passes.legalize import legalize, ragged
from openspyre.compiler.view import View
from openspyre.formats import Mode
from openspyre.program import body as f
from openspyre.program.ops import Combine

MANY = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # fmt: skip
OPTIONS = CompileOptions()


def same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before.keys() == after.keys()
    for name, values in before.items():
        np.testing.assert_array_equal(after[name], values, err_msg=name)


@MANY
@given(st.data())
def test_canonicalize_changes_no_value(data: Any) -> None:
    made = Random(data.draw, placed=False)
    check(made.graph)
    before = made.run()
    canonicalize(made.graph, OPTIONS)
    check(made.graph)
    same(before, made.run())
    text = made.graph.to_text()
    canonicalize(made.graph, OPTIONS)
    assert made.graph.to_text() == text


def outputs(made: Made, *views: View) -> Graph:
    for view in views:
        assert made.b.output(view) is not None
    return made.b.graph


def kinds(graph: Graph) -> list[OpKind]:
    return [op.kind for op in graph.ops]


def test_ops_that_nothing_needs_go() -> None:
    made = Made()
    a, _ = made.numbers((4, 5))
    made.b.map(f.exp, a, dtype="float32")
    first, second = made.b.map_many(lambda x: (x + 1, x * 2), a, dtypes=("float32", "float32"))
    graph = outputs(made, second)
    canonicalize(graph, OPTIONS)
    assert graph.to_text().splitlines() == [
        "graph test (dl16)",
        "  x0: input float32 [4, 5]",
        "  t_2: output float32 [4, 5]",
        "  t_2[i0, i1] = map {i0 4, i1 5} (x0[i0, i1]) "
        "{ %0 = input.f 0; %1 = const.f 2.0; %2 = mul.f %0 %1; give %2 }",
    ]
    assert first.tensor not in graph.tensors


def test_equal_work_is_done_once() -> None:
    made = Made()
    a, _ = made.numbers((4, 5))
    b, _ = made.numbers((4, 5))
    one = made.b.map(lambda x, y: x + y, a, b, dtype="float32")
    two = made.b.map(lambda x, y: x + y, a, b, dtype="float32")
    other = made.b.map(lambda x, y: x + y, b, a, dtype="float32")
    graph = outputs(made, made.b.map(lambda x, y, z: x * y - z, one, two, other, dtype="float32"))
    canonicalize(graph, OPTIONS)
    assert len(graph.ops) == 3


def test_equal_work_on_changed_values_is_not_the_same() -> None:
    made = Made()
    a, _ = made.numbers((4,))
    one = made.b.map(lambda x: x + 1, a, dtype="float32")
    made.b.store(a, one)
    two = made.b.map(lambda x: x + 1, a, dtype="float32")
    graph = outputs(made, made.b.map(lambda x, y: x * y, one, two, dtype="float32"))
    before = interpret(graph, made.values)
    canonicalize(graph, OPTIONS)
    assert len(graph.ops) == 4
    same(before, interpret(graph, made.values))


def test_a_chain_of_exact_conversions_vanishes() -> None:
    made = Made()
    a, _ = made.numbers((4, 5), "float16")
    wide = made.b.copy(made.b.map(lambda x: x * 3, a, dtype="float16"), "float32")
    narrow = made.b.copy(wide, "float16")
    graph = outputs(made, made.b.map(lambda x: x - 1, narrow, dtype="float16"))
    canonicalize(graph, OPTIONS)
    assert kinds(graph) == [OpKind.MAP, OpKind.MAP]
    assert "float32" not in graph.to_text()


def test_a_rounding_conversion_stays() -> None:
    made = Made()
    a, _ = made.numbers((4, 5))
    narrow = made.b.copy(made.b.map(lambda x: x * 3, a, dtype="float32"), "float16")
    graph = outputs(made, made.b.map(lambda x: x - 1, narrow, dtype="float32", compute="float32"))
    canonicalize(graph, OPTIONS)
    assert len(graph.ops) == 3


def test_a_copy_of_a_value_that_changes_later_stays() -> None:
    made = Made()
    a, _ = made.numbers((4,))
    kept = made.b.copy(a)
    made.b.store(a, made.b.map(lambda x: x * 2, a, dtype="float32"))
    graph = outputs(made, made.b.map(lambda x, y: x - y, kept, a, dtype="float32"))
    before = interpret(graph, made.values)
    canonicalize(graph, OPTIONS)
    same(before, interpret(graph, made.values))


def test_the_text_does_not_tell_the_process() -> None:
    def text(skip: int) -> str:
        for _ in range(skip):
            View.of(Made().numbers((3, 4))[0].tensor)
        b = GraphBuilder("again")
        x = b.input("x", (8, 6), "float16")
        y = b.map(lambda v: v + 1, x.reshape((4, 2, 6)), dtype="float16")
        b.output(y)
        canonicalize(b.graph, OPTIONS)
        return b.graph.to_text()

    assert text(0) == text(17)


# --- factor


@MANY
@given(st.data())
def test_factor_changes_no_value(data: Any) -> None:
    made = Random(data.draw)
    before = made.run()
    shapes = {t.name: t.shape for t in made.graph.arguments}
    canonicalize(made.graph, OPTIONS)
    factor(made.graph, OPTIONS)
    check(made.graph)
    same(before, split_run(made, shapes))


def split_run(made: Made, shapes: dict[str, Any]) -> dict[str, Any]:
    """Runs a graph whose arguments have dims of other sizes than they were declared with."""
    given = {}
    for tensor in made.b.graph.arguments:
        if tensor.name in made.values:
            given[tensor.name] = made.values[tensor.name].reshape(numbers(tensor.shape))
    found = interpret(made.b.graph, given)
    return {name: values.reshape(numbers(shapes[name])) for name, values in found.items()}


def numbers(shape: Any) -> list[int]:
    return [int(str(size)) for size in shape]


def test_a_dim_that_is_read_in_parts_is_split_with_all_that_walks_it() -> None:
    made = Made()
    a, _ = made.numbers((4, 12))
    b, _ = made.numbers((3, 4, 4))
    doubled = made.b.map(lambda at, x: x * 2 + f.cast(at(1), "f"), a, dtype="float32", indexed=True)
    heads = doubled.reshape((4, 3, 4)).transpose(0, 1)
    out = made.b.map(lambda x, y: x + y, heads, b, dtype="float32")
    graph = outputs(made, out)
    a.tensor.place = place_of((4, 12), "float32", (1, 0))
    before = interpret(graph, made.values)
    canonicalize(graph, OPTIONS)
    factor(graph, OPTIONS)
    rename(graph)
    assert graph.to_text().splitlines()[1:] == [
        "  x0: input float32 [4, 3, 4] at (1536*, 512, 128)",
        "  x1: input float32 [3, 4, 4] at (128, 384, 384*)",
        "  t_1: output float32 [3, 4, 4]",
        "  t0: temp float32 [4, 3, 4]",
        "  t0[i0, i1, i2] = map {i0 4, i1 3, i2 4} (x0[i0, i1, i2]) { %0 = input.f 0; "
        "%1 = const.f 2.0; %2 = mul.f %0 %1; %3 = index.l i1; %4 = const.l 4; "
        "%5 = mul.l %3 %4; %6 = index.l i2; %7 = add.l %5 %6; %8 = cast.l %7 f; "
        "%9 = add.f %2 %8; give %9 }",
        "  t_1[i3, i4, i5] = map {i3 3, i4 4, i5 4} (t0[i4, i3, i5], x1[i3, i4, i5]) "
        "{ %0 = input.f 0; %1 = input.f 1; %2 = add.f %0 %1; give %2 }",
    ]
    same(before, split_run(made, {out.tensor.name: (3, 4, 4)}))


def test_a_stick_is_not_split_within_its_elements() -> None:
    made = Made()
    a, _ = made.numbers((4, 12))
    out = made.b.map(lambda x: x + 1, a.reshape((4, 3, 4)).transpose(0, 1), dtype="float32")
    graph = outputs(made, out)
    canonicalize(graph, OPTIONS)
    factor(graph, OPTIONS)
    assert graph.arguments[0].shape == (4, 12)


# --- layouts


def test_r1_expressions_turn_no_more_elements_than_listed() -> None:
    """The expressions of the public compiler that say what a plan may cost."""
    square = 128 * 128

    def cost(expression: Any, **shapes: tuple[int, int]) -> int:
        b = GraphBuilder("r1")
        names = expression.__code__.co_varnames[1 : expression.__code__.co_argcount]
        views = [b.input(n, shapes.get(n, (128, 128)), "float16") for n in names]
        out = expression(Maker(b), *[Value(b, v) for v in views])
        assert b.output(out.view) is not None
        for run in (canonicalize, factor, layouts):
            run(b.graph, OPTIONS)
        return restickified(b.graph)

    def twice(_: Any, a: Any, b: Any) -> Any:
        buffer = a + b.t()
        return buffer + buffer

    listed: list[tuple[Any, int]] = [
        (lambda m, a, x: a.t() + x, square),
        (lambda m, a, b, x: a.t() + b.t() + x, square),
        (lambda m, a, b, x, y: a.t() + b.t() + x + y, square),
        (lambda m, a, x, b, y: a.t() + x + b.t() + y, 2 * square),
        (lambda m, x, y: x @ y, 0),
        (lambda m, x, y: x.t() @ y, square),
        (lambda m, x, y: x @ y.t(), square),
        (lambda m, x, y: x.t() @ y.t(), 2 * square),
        (lambda m, a, b, c: (a @ b) @ c, 0),
        (lambda m, a, b, c: (a @ b) + c.t(), square),
        (lambda m, a, b, c, d: (a @ b) + c.t() + d.t(), square),
        (lambda m, a, b, c: a @ (b + c.t()), square),
        (lambda m, a, b, c, d, e: (a + b.t() + c.t() + d.t()) @ e, 2 * square),
        (twice, square),
        (lambda m, x, y: m.sin(x) + y.t(), square),
    ]
    for number, (expression, most) in enumerate(listed):
        assert cost(expression) <= most, f"expression {number}"
    assert cost(lambda m, a, b: a.t() @ b, a=(64, 128), b=(64, 192)) <= 8192


class Value:
    """A view with the operators of the listed expressions."""

    def __init__(self, b: GraphBuilder, view: View) -> None:
        self.b, self.view = b, view

    def t(self) -> Value:
        return Value(self.b, self.view.transpose(0, 1))

    def __add__(self, other: Value) -> Value:
        return Value(self.b, self.b.map(lambda x, y: x + y, self.view, other.view, dtype="float16"))

    def __matmul__(self, other: Value) -> Value:
        return Value(self.b, self.b.copy(self.b.matmul(self.view, other.view), "float16"))


class Maker:
    def __init__(self, b: GraphBuilder) -> None:
        self.b = b

    def sin(self, x: Value) -> Value:
        return Value(self.b, self.b.map(f.sin, x.view, dtype="float16"))


@MANY
@given(st.data())
def test_layouts_place_every_tensor_and_change_no_value(data: Any) -> None:
    made = Random(data.draw)
    before = made.run()
    shapes = {t.name: t.shape for t in made.graph.arguments}
    for run in (canonicalize, factor, layouts):
        run(made.graph, OPTIONS)
        check(made.graph)
    assert all(t.place is not None for t in made.graph.tensors)
    for tensor in made.graph.arguments:
        if tensor.host is not None:
            assert tensor.host[0] == shapes[tensor.name]
    same(before, split_run(made, shapes))


def test_a_row_reduction_that_is_broadcast_stays_one_element_a_stick() -> None:
    made = Made()
    a, _ = made.numbers((4, 70), "float16")
    (most,) = made.b.reduce(Combine.MAX, a, [1], keepdim=True)
    out = made.b.map(lambda x, m: x - m, a, most, dtype="float16", compute="float32")
    graph = outputs(made, out)
    for run in (canonicalize, factor, layouts):
        run(graph, OPTIONS)
    (temp,) = [t for t in graph.tensors if t.role is Role.TEMP]
    assert temp.place is not None
    assert temp.place.stick == -1
    assert restickified(graph) == 0


def test_an_output_without_place_tells_the_layout_that_it_was_declared_with() -> None:
    made = Made()
    a, _ = made.numbers((4, 3, 64), "float16")
    out = made.b.contiguous(a.transpose(0, 1).reshape((12, 64)))
    graph = outputs(made, out)
    for run in (canonicalize, factor, layouts):
        run(graph, OPTIONS)
    assert out.tensor.shape == (3, 4, 64)
    assert out.tensor.host is not None
    assert out.tensor.host[0] == (12, 64)
    assert out.tensor.host[1] == place_of((12, 64), "float16")
    assert out.tensor.place is not None
    assert out.tensor.place.strides == (4 * 128, 128, 12 * 128)


# --- legalize


def run_all(graph: Graph, *passes: Any) -> None:
    for run in passes:
        run(graph, OPTIONS)
        check(graph)


def rule_one(graph: Graph) -> None:
    for op in graph.ops:
        for access in (*op.inputs, *op.outputs):
            assert access.tensor.place is not None
            if op.kind is not OpKind.COPY:
                assert illegal(graph, access) is None, f"{op}: {access}"


@MANY
@given(st.data())
def test_legalize_leaves_legal_accesses_and_changes_no_value(data: Any) -> None:
    made = Random(data.draw)
    before = made.run()
    shapes = {t.name: t.shape for t in made.graph.arguments}
    run_all(made.graph, canonicalize, factor, layouts, legalize)
    rule_one(made.graph)
    for op in made.graph.ops:
        for access in op.outputs:
            if op.kind is not OpKind.COPY:
                assert not ragged(made.graph, op, access), f"{op}: {access}"
    same(before, split_run(made, shapes))


# --- collapse


def addresses(tensor: Tensor, shape: Any, place: Place) -> Any:
    """Where each element of a tensor lies: byte of its stick, and its place in it."""
    eps = tensor.format(Mode.DL16).elements_per_stick
    total = np.zeros(numbers(shape), np.int64)
    for d, (size, stride) in enumerate(zip(numbers(shape), numbers(place.strides), strict=True)):
        line = np.arange(size, dtype=np.int64)
        at = line // eps * stride * 1000 + line % eps if d == place.stick else line * stride * 1000
        total = total + at.reshape([-1 if e == d else 1 for e in range(len(shape))])
    return total


def placed_run(made: Made, before: dict[str, Any]) -> dict[str, Any]:
    """Runs a graph whose arguments lie where they lay, in other dims."""
    moves = {}
    for tensor in made.b.graph.arguments:
        shape, place = before[tensor.name]
        if place is None:
            assert tensor.host is not None
            shape, place = tensor.host
        assert tensor.place is not None
        old = addresses(tensor, shape, place).ravel()
        new = addresses(tensor, tensor.shape, tensor.place).ravel()
        assert sorted(old) == sorted(new)
        where = {int(a): n for n, a in enumerate(old)}
        moves[tensor.name] = np.array([where[int(a)] for a in new], dtype=int)
    given = {}
    for tensor in made.b.graph.arguments:
        if tensor.name in made.values:
            flat = made.values[tensor.name].ravel()[moves[tensor.name]]
            given[tensor.name] = flat.reshape(numbers(tensor.shape))
    out = {}
    for name, values in interpret(made.b.graph, given).items():
        flat = np.empty(values.size, values.dtype)
        flat[moves[name]] = values.ravel()
        shape = before[name][0]
        out[name] = flat.reshape(numbers(shape))
    return out


@MANY
@given(st.data())
def test_all_passes_together_change_no_value(data: Any) -> None:
    made = Random(data.draw, wide=data.draw(st.integers(0, 3)) == 0)
    before = made.run()
    places: dict[str, Any] = {t.name: (t.shape, t.place) for t in made.graph.arguments}
    run_all(made.graph, *PASSES)
    rule_one(made.graph)
    legal(made.graph)
    same(before, placed_run(made, places))
    text = made.graph.to_text()
    collapse(made.graph, OPTIONS)
    assert made.graph.to_text() == text


def test_a_contiguous_op_of_rank_5_becomes_one_of_rank_2() -> None:
    made = Made()
    a, _ = made.numbers((2, 3, 4, 5, 128), "float16")
    b, _ = made.numbers((2, 3, 4, 5, 128), "float16")
    out = made.b.map(lambda x, y: x + y, a, b, dtype="float16")
    graph = outputs(made, out)
    before = interpret(graph, made.values)
    places: dict[str, Any] = {
        t.name: (t.shape, place_of(tuple(numbers(t.shape)), t.dtype)) for t in graph.arguments
    }
    run_all(graph, *PASSES)
    (op,) = graph.ops
    assert list(op.labels.values()) == [2, 3 * 4 * 5 * 128]
    same(before, placed_run(made, places))


def test_what_one_op_addresses_alone_stays_apart() -> None:
    made = Made()
    a, _ = made.numbers((4, 8, 64), "float16")
    one = made.b.map(lambda x: x + 1, a, dtype="float16")
    (most,) = made.b.reduce(Combine.MAX, one, [1])
    graph = outputs(made, one, made.b.copy(most, "float16"))
    run_all(graph, *PASSES)
    assert [len(op.labels) for op in graph.ops] == [3, 3, 2]


def test_more_dims_than_the_machine_addresses() -> None:
    made = Made()
    shape = (2, 3, 2, 3, 2, 3, 2)
    a, x = made.numbers(shape)
    b, y = made.numbers(shape)
    a.tensor.place = place_of(shape, "float32", (5, 0, 3, 1, 4, 6, 2))
    b.tensor.place = place_of(shape, "float32", (0, 2, 4, 6, 1, 3, 5))
    out = made.b.map(lambda p, q: p - q, a, b, dtype="float32")
    graph = outputs(made, out)
    places: dict[str, Any] = {t.name: (t.shape, t.place) for t in graph.arguments}
    run_all(graph, *PASSES)
    legal(graph)
    same({out.tensor.name: x - y}, placed_run(made, places))


# --- by example


def test_a_step_becomes_an_alias() -> None:
    made = Made()
    a, x = made.numbers((7, 64), "float16")
    out = made.b.map(lambda v: v + 1, a.slice(0, 1, 3, 2), dtype="float16")
    graph = outputs(made, out)
    run_all(graph, *PASSES)
    (alias,) = [t for t in graph.tensors if t.alias is not None]
    assert alias.alias is not None
    assert str(alias) == "t0: input float16 [3, 64] at (256, 896*) = x0[2*d0 + 1, d1] + 128 bytes"
    same({out.tensor.name: x[1:6:2] + 1}, interpret(graph, made.values))


def test_an_unaligned_slice_of_the_stick_is_read_by_index() -> None:
    made = Made()
    a, x = made.numbers((4, 200), "float16")
    out = made.b.map(lambda v: v + 1, a.slice(1, 30, 100), dtype="float16")
    graph = outputs(made, out)
    run_all(graph, *PASSES)
    assert [len(op.inputs) for op in graph.ops] == [0, 2, 1]
    assert graph.ops[1].inputs[0].indirect
    same({out.tensor.name: x[:, 30:130] + 1}, interpret(graph, made.values))


def test_an_aligned_slice_of_the_stick_costs_nothing() -> None:
    made = Made()
    a, x = made.numbers((4, 200), "float16")
    out = made.b.map(lambda v: v + 1, a.slice(1, 128, 72), dtype="float16")
    graph = outputs(made, out)
    run_all(graph, *PASSES)
    assert len(graph.ops) == 1
    same({out.tensor.name: x[:, 128:] + 1}, interpret(graph, made.values))


def test_a_ragged_store_renews_whole_sticks() -> None:
    made = Made()
    a, x = made.numbers((4, 200), "float16")
    b, y = made.numbers((4, 32), "float16")
    made.b.store(a.slice(1, 64, 32), b)
    graph = made.b.graph
    run_all(graph, *PASSES)
    last = graph.ops[-1]
    assert last.inputs[0] == last.outputs[0]
    assert str(last.outputs[0].index[1]).endswith("+ 64")
    after = x.copy()
    after[:, 64:96] = y
    same({"x0": after}, interpret(graph, made.values))


def test_a_reshape_within_a_stick_is_a_copy() -> None:
    made = Made()
    a, x = made.numbers((24,), "float16")
    b, y = made.numbers((4, 6), "float16")
    out = made.b.map(lambda v, w: v + w, a.reshape((4, 6)), b, dtype="float16")
    graph = outputs(made, out)
    run_all(graph, *PASSES)
    assert kinds(graph) == [OpKind.COPY, OpKind.MAP]
    same({out.tensor.name: x.reshape(4, 6) + y}, interpret(graph, made.values))


def test_a_flip_of_what_is_written_turns_the_label() -> None:
    made = Made()
    a, x = made.numbers((5, 64), "float16")
    b, y = made.numbers((5, 64), "float16")
    made.b.store(a.flip(0), b)
    graph = made.b.graph
    run_all(graph, *PASSES)
    same({"x0": y[::-1]}, interpret(graph, made.values))
    assert x.shape == y.shape


def test_constants_are_cut_when_compiling() -> None:
    made = Made()
    a, x = made.numbers((4, 3), "float16")
    data = np.arange(20, dtype=np.float32)
    c = made.b.constant(data, "float16").slice(0, 1, 12).reshape((4, 3))
    out = made.b.map(lambda v, w: v + w, a, c, dtype="float16")
    graph = outputs(made, out)
    run_all(graph, *PASSES)
    assert len(graph.ops) == 1
    same({out.tensor.name: x + data[1:13].reshape(4, 3)}, interpret(graph, made.values))


def test_sizes_that_are_given_at_launch_pass() -> None:
    b = GraphBuilder("sizes")
    n = b.size_symbol("n", 1, 512, 100)
    x = b.input("x", (n, 3, 64), "float16")
    w = b.input("w", (64, 128), "float16")
    y = b.copy(b.matmul(x, w), "float16")
    (m,) = b.reduce(Combine.MAX, y, [2], keepdim=True)
    out = b.map(lambda v, t: v - t, y, m, dtype="float16", compute="float32")
    assert b.output(out) is not None
    for run in PASSES:
        run(b.graph, OPTIONS)
    check(b.graph)
    values = np.ones((5, 3, 64), np.float32)
    shape = [5 if not isinstance(s, int) else s for s in b.graph.arguments[0].shape]
    assert np.prod(shape) == values.size
    found = interpret(b.graph, {"x": values.reshape(shape), "w": np.ones((64, 128))}, {"n": 5})
    assert (found[out.tensor.name] == 0).all()


def test_check_names_the_op_and_the_rule() -> None:
    made = Made()
    a, _ = made.numbers((4, 5))
    out = made.b.map(lambda v: v + 1, a, dtype="float32")
    graph = outputs(made, out)
    check(graph)
    (op,) = graph.ops
    good = op.inputs[0]
    op.inputs[0] = Access(good.tensor, (good.index[0], Affine(good.index[1].terms, 1)))  # type: ignore[union-attr]
    with pytest.raises(CompileError, match=r"x0\[.*runs 1\.\.5 in a dim of 5"):
        check(graph)
    op.inputs[0] = good
    graph.ops.insert(
        0, Op(OpKind.MAP, "early", op.labels, [op.outputs[0]], [op.outputs[0]], op.body)
    )
    with pytest.raises(CompileError, match=r"early.*: reads .*, still unwritten"):
        check(graph)
    del graph.ops[0]
    graph.ops.clear()
    with pytest.raises(CompileError, match="not every element"):
        check(graph)
