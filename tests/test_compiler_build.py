"""GraphBuilder against NumPy: an operation gives NumPy's result, whatever its operands view."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import Made, chain

from openspyre.compiler.build import GraphBuilder, broadcast
from openspyre.compiler.graph import OpKind, Role
from openspyre.compiler.interpret import interpret
from openspyre.compiler.view import View
from openspyre.program import body as f
from openspyre.program.ops import Combine

Array = np.ndarray[Any, Any]
MANY = settings(max_examples=60, deadline=None)


def shared(draw: Any, made: Made) -> tuple[View, Array, View, Array]:
    """Two views whose shapes broadcast, with factors of their own."""
    a, now_a = made.drawn(draw)
    shape = [n if draw(st.integers(0, 3)) else 1 for n in now_a.shape]
    flat = draw(st.booleans())
    b, now_b = made.numbers((int(np.prod(shape)),) if flat else tuple(shape))
    if flat:
        b, now_b = b.reshape(shape), now_b.reshape(shape)
    return a, now_a, b, now_b


@MANY
@given(st.data())
def test_a_map_of_views(data: Any) -> None:
    made = Made()
    a, x, b, y = shared(data.draw, made)
    result = made.b.map(lambda p, q: p - q * 2.0, a, b, dtype="float32")
    np.testing.assert_array_equal(made.value(result), x - y * 2)


@MANY
@given(st.data())
def test_maps_of_maps_keep_their_shapes(data: Any) -> None:
    made = Made()
    a, x, b, y = shared(data.draw, made)
    first = made.b.map(lambda p, q: p + q, a, b, dtype="float32")
    then, now = chain(data.draw, first, x + y)
    again = made.b.map(lambda p: -p, then, dtype="float32")
    np.testing.assert_array_equal(made.value(again), -now)


@MANY
@given(st.data())
def test_contiguous_is_the_same_values(data: Any) -> None:
    made = Made()
    a, x = made.drawn(data.draw)
    flat = made.b.contiguous(a)
    assert flat.whole
    np.testing.assert_array_equal(made.value(flat), x)
    shape = (x.size,)
    np.testing.assert_array_equal(made.value(made.b.reshape(a, shape)), x.reshape(shape))


@MANY
@given(st.data(), st.sampled_from(["sum", "max", "min", "prod"]), st.booleans())
def test_reductions_of_views(data: Any, how: str, keepdim: bool) -> None:
    made = Made()
    a, x = made.drawn(data.draw)
    dims = sorted(data.draw(st.sets(st.integers(0, max(x.ndim - 1, 0))))) if x.ndim else []
    (out,) = made.b.reduce(
        Combine(how), a, dims, function=lambda r: f.maximum(f.minimum(r, 2.0), -2.0),
        keepdim=keepdim,
    )  # fmt: skip
    function: Any = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}[how]
    wanted = function(np.clip(x, -2, 2), axis=tuple(dims), keepdims=keepdim)
    np.testing.assert_array_equal(made.value(out), wanted)


@MANY
@given(st.data())
def test_welford_and_arg_reductions(data: Any) -> None:
    made = Made()
    a, x = made.drawn(data.draw)
    if not x.ndim:
        return
    dim = data.draw(st.integers(0, x.ndim - 1))
    mean, m2, count = made.b.reduce(Combine.WELFORD, a, [dim])
    np.testing.assert_allclose(made.value(mean), x.mean(dim), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(made.value(m2), x.var(dim) * x.shape[dim], rtol=1e-5, atol=1e-4)
    assert (made.value(count) == x.shape[dim]).all()
    largest, at = made.b.reduce(Combine.ARGMAX, a, [dim])
    np.testing.assert_array_equal(made.value(largest), x.max(dim))
    np.testing.assert_array_equal(made.value(at), x.argmax(dim))


@MANY
@given(st.data(), st.sampled_from([Combine.SUM, Combine.MAX]))
def test_scans_of_views(data: Any, how: Combine) -> None:
    made = Made()
    a, x = made.drawn(data.draw)
    if not x.ndim:
        return
    dim = data.draw(st.integers(0, x.ndim - 1))
    function = np.cumsum if how is Combine.SUM else np.maximum.accumulate
    out = made.b.scan(how, a, dim, "float32")
    np.testing.assert_array_equal(made.value(out), function(x, axis=dim))


@MANY
@given(st.data(), st.booleans())
def test_sorts_of_views(data: Any, descending: bool) -> None:
    made = Made()
    a, x = made.drawn(data.draw)
    wide = [d for d in range(x.ndim) if x.shape[d] > 1]
    if not wide:
        return
    dim = data.draw(st.sampled_from(wide))
    order = np.argsort(-x if descending else x, axis=dim, kind="stable")
    k = data.draw(st.integers(0, x.shape[dim]))
    if k:
        order = np.take(order, np.arange(k), dim)
    values, at = made.b.sort(a, dim, descending=descending, k=k)
    np.testing.assert_array_equal(made.value(values), np.take_along_axis(x, order, dim))
    np.testing.assert_array_equal(made.value(at), order)


@MANY
@given(st.data())
def test_products_of_views(data: Any) -> None:
    made = Made()
    size = st.integers(1, 4)
    m, k, n = data.draw(size), data.draw(size), data.draw(size)
    batch = tuple(data.draw(st.lists(size, max_size=2)))

    def operand(rows: int, cols: int) -> tuple[View, Array]:
        dims = tuple(d if data.draw(st.booleans()) else 1 for d in batch)
        dims = dims[data.draw(st.integers(0, len(dims))) :] if dims else dims
        way = data.draw(st.sampled_from(["plain", "turned", "cut", "merged"]))
        if way == "turned":
            view, now = made.numbers((*dims, cols, rows))
            return view.transpose(-2 + view.rank, -1 + view.rank), np.swapaxes(now, -1, -2)
        if way == "cut":
            view, now = made.numbers((*dims, rows + 2, cols))
            return view.slice(view.rank - 2, 1, rows), now[..., 1 : rows + 1, :]
        if way == "merged":
            view, now = made.numbers((*dims, rows, 2, cols))
            return (
                view.transpose(view.rank - 3, view.rank - 2).reshape((*dims, 2 * rows, cols))
                .slice(view.rank - 3, rows, rows),
                np.swapaxes(now, -3, -2).reshape((*dims, 2 * rows, cols))[..., rows:, :],
            )  # fmt: skip
        return made.numbers((*dims, rows, cols))

    a, x = operand(m, k)
    b, y = operand(k, n)
    np.testing.assert_array_equal(made.value(made.b.matmul(a, b)), x @ y)


def test_a_product_whose_inner_dim_is_merged_differently() -> None:
    made = Made()
    a, x = made.numbers((3, 4, 2, 3))
    b, y = made.numbers((24, 5))
    a, x = a.transpose(1, 2).reshape((3, 24)), x.swapaxes(1, 2).reshape(3, 24)
    np.testing.assert_array_equal(made.value(made.b.matmul(a, b)), x @ y)


@MANY
@given(st.data())
def test_gathers_from_views(data: Any) -> None:
    made = Made()
    source, x = made.drawn(data.draw)
    if not x.ndim:
        return
    shape = tuple(data.draw(st.lists(st.integers(1, 4), max_size=3)))
    where: list[int | View] = []
    at: list[Array] = []
    box = list(shape)
    for size in x.shape:
        if data.draw(st.booleans()):
            values = data.draw(
                st.lists(st.integers(0, size - 1), min_size=int(np.prod(shape)) or 1,
                         max_size=int(np.prod(shape)) or 1)
            )  # fmt: skip
            index = np.array(values).reshape(shape)
            where.append(made.input(index, data.draw(st.sampled_from(["int64", "int32"]))))
            at.append(index)
        else:
            where.append(len(box))
            box.append(size)
    more = len(box) - len(shape)
    wheres: list[int | View] = []
    for w in where:
        if isinstance(w, View):
            for _ in range(more):
                w = w.unsqueeze(w.rank)
        wheres.append(w)
    indices = []
    taken = iter(at)
    for w, _size in zip(wheres, x.shape, strict=True):
        if isinstance(w, int):
            line = np.arange(box[w])
            indices.append(line.reshape([-1 if d == w else 1 for d in range(len(box))]))
        else:
            indices.append(next(taken).reshape((*shape, *[1] * more)))
    out = made.b.gather(source, box, wheres)
    np.testing.assert_array_equal(
        made.value(out), np.broadcast_to(x[tuple(indices)], box)
    )  # fmt: skip


@MANY
@given(st.data(), st.booleans())
def test_scatters_into_views(data: Any, add: bool) -> None:
    made = Made()
    dtype = data.draw(st.sampled_from(["float32", "int32", "float16"]))
    target, before = made.numbers(
        tuple(data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=3))), dtype
    )
    if data.draw(st.booleans()):
        target, before = target.transpose(0, 1), np.swapaxes(before, 0, 1)
    count = data.draw(st.integers(1, 6))
    index = np.array(data.draw(st.lists(
        st.integers(0, before.shape[0] - 1), min_size=count, max_size=count)))  # fmt: skip
    value, v = made.numbers((count, *before.shape[1:]), dtype)
    where = made.input(index, "int64")
    for _ in range(before.ndim - 1):
        where = where.unsqueeze(where.rank)
    made.b.scatter(target, value, [where, *range(1, before.ndim)], add=add)
    after = before.copy()
    for position, row in zip(index, v, strict=True):
        after[position] = after[position] + row if add else row
    assert target.tensor.role is Role.INOUT
    np.testing.assert_array_equal(made.value(made.b.copy(target)), after)


@MANY
@given(st.data())
def test_stores_into_views(data: Any) -> None:
    made = Made()
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    target, before = made.numbers(shape)
    after = before.copy()
    view, now = target, after
    for d in range(before.ndim):
        start = data.draw(st.integers(0, shape[d] - 1))
        by = data.draw(st.integers(1, 2))
        length = data.draw(st.integers(1, (shape[d] - start - 1) // by + 1))
        view = view.slice(d, start, length, by)
        now = now[(slice(None),) * d + (slice(start, start + (length - 1) * by + 1, by),)]
    if data.draw(st.booleans()):
        view, now = view.flip(0), now[::-1]
    value, v = made.numbers(tuple(n if data.draw(st.booleans()) else 1 for n in now.shape), "int32")
    made.b.store(view, value)
    now[...] = v
    assert target.tensor.role is Role.INOUT
    result = interpret(made.b.graph, made.values)[target.tensor.name]
    np.testing.assert_array_equal(result, after)


def test_a_store_into_a_reshaped_argument() -> None:
    made = Made()
    target, _ = made.numbers((4, 6))
    value, v = made.numbers((8, 3))
    made.b.store(target.reshape((8, 3)), value)
    result = interpret(made.b.graph, made.values)[target.tensor.name]
    np.testing.assert_array_equal(result, v.reshape(4, 6))


def test_indices_along_logical_dims() -> None:
    made = Made()
    a, _ = made.numbers((4, 6))
    merged = a.reshape((2, 2, 6)).reshape((2, 12))
    out = made.b.map(
        lambda at, v: at(0) * 100 + at(1) + f.cast(v, "l") * 0, merged, dtype="int64", indexed=True
    )
    wanted = np.arange(2)[:, None] * 100 + np.arange(12)
    np.testing.assert_array_equal(made.value(out), wanted)


def test_scalars_are_given_at_launch() -> None:
    made = Made()
    a, x = made.numbers((5,))
    s = made.b.scalar("alpha", 2.0)
    out = made.b.map(lambda p, q: p * q, a, s, dtype="float32")
    np.testing.assert_array_equal(made.value(out, alpha=3.5), x * np.float32(3.5))
    with pytest.raises(ValueError, match="alpha"):
        made.value(out)


def test_sizes_given_at_launch() -> None:
    b = GraphBuilder("sizes")
    n = b.size_symbol("n", 1, 100, 10)
    a = b.input("a", (n, 3), "float32")
    c = b.input("c", (3,), "float32")
    out = b.map(lambda p, q: p + q, a, c, dtype="float32")
    (total,) = b.reduce(Combine.SUM, out, [0])
    b.output(total)
    x, y = np.ones((7, 3), np.float32), np.arange(3, dtype=np.float32)
    found = interpret(b.graph, {"a": x, "c": y}, {"n": 7})
    np.testing.assert_array_equal(found[total.tensor.name], 7 * (1 + y))


def test_constants_are_part_of_the_graph() -> None:
    made = Made()
    a, x = made.numbers((2, 3))
    c = made.b.constant(np.array([1.0, 2.0, 4.0]), "float16")
    out = made.b.map(lambda p, q: p * q, a, c, dtype="float16", compute="float32")
    np.testing.assert_array_equal(made.value(out), x * np.array([1, 2, 4]))


def test_bool_operands_are_truth() -> None:
    made = Made()
    a = made.input(np.array([True, False, True]), "bool")
    b = made.input(np.array([2.0, 3.0, 4.0], np.float32), "float32")
    chosen = made.b.map(lambda m, v: f.where(m, v, 0.0), a, b, dtype="float32")
    np.testing.assert_array_equal(made.value(chosen), [2, 0, 4])
    negated = made.b.map(lambda m: ~m, a, dtype="bool")
    found = made.value(negated)
    assert found.dtype == np.bool_
    np.testing.assert_array_equal(found, [False, True, False])
    (some,) = made.b.reduce(Combine.ANY, a, [0])
    assert made.value(some) == 1


def test_broadcast_follows_pytorch() -> None:
    assert broadcast([(3, 1), (4,)]) == (3, 4)
    assert broadcast([]) == ()
    with pytest.raises(ValueError, match="broadcast"):
        broadcast([(3,), (4,)])


def test_an_outer_product_is_a_map() -> None:
    made = Made()
    a, x = made.numbers((3, 1))
    b, y = made.numbers((1, 4))
    out = made.b.matmul(a, b)
    assert [op.kind for op in made.b.graph.ops] == [OpKind.MAP]
    np.testing.assert_array_equal(made.value(out), x @ y)
