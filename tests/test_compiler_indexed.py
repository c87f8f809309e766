"""Kernels by index: gathers and scatters, by rows and inside tiles, against the Graph's oracle."""

from __future__ import annotations

import numpy as np
import pytest
from compiler_runs import check

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.graph import Graph, OpKind, Role
from openspyre.compiler.interpret import interpret
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.passes.layouts import layouts
from openspyre.compiler.passes.places import packed
from openspyre.compiler.schedule import schedule
from openspyre.compiler.tiles import Kernel, outside, users_of
from openspyre.compiler.view import View

RNG = np.random.default_rng(5)


def check_graph(graph: Graph, given: dict[str, np.ndarray]) -> None:
    """Every op of the graph as a kernel of its own, against the interpreter, on 1 core and on 7."""
    for tensor in graph.arguments:
        if tensor.place is None:
            stick = len(tensor.shape) - 1
            eps = tensor.format(graph.mode).elements_per_stick
            tensor.place = packed(tensor.shape, stick, eps)
    layouts(graph, CompileOptions())
    start: dict[str, np.ndarray] = {}
    for tensor in graph.arguments:
        if tensor.name in given:
            start[tensor.name] = given[tensor.name]
        elif tensor.role is not Role.OUTPUT:
            shape = tuple(int(str(size)) for size in tensor.shape)
            values = RNG.integers(-9, 9, shape)
            start[tensor.name] = values > 0 if tensor.dtype == "bool" else values
    wanted = interpret(graph, start)
    for cores in (1, 7):
        arrays = dict(start)
        for op in graph.ops:
            by_index = op.kind is OpKind.SCATTER or any(a.indirect for a in op.inputs)
            arguments, written = outside([op], users_of(graph.ops))
            kernel = Kernel("indexed" if by_index else "rows", [op], arguments, written)
            program = schedule(kernel, graph, CompileOptions(cores=cores))
            arrays |= check(program, arrays)
        for tensor in graph.arguments:
            if tensor.role is not Role.INPUT:
                np.testing.assert_array_equal(
                    arrays[tensor.name].astype(np.float64),
                    np.asarray(wanted[tensor.name]).astype(np.float64),
                    err_msg=f"{tensor.name} on {cores} cores",
                )


@pytest.mark.parametrize("dtype", ["float16", "float32", "int64", "bool"])
@pytest.mark.parametrize(("rows", "width", "count"), [(50, 150, 7), (300, 64, 130), (5, 33, 1)])
def test_rows_of_a_table(dtype: str, rows: int, width: int, count: int) -> None:
    b = GraphBuilder("embedding")
    table = b.input("table", (rows, width), dtype)
    index = b.input("index", (count,), "int64")
    b.output(b.gather(table, (count, width), [index.unsqueeze(1), 1]))
    check_graph(b.graph, {"index": RNG.integers(0, rows, count)})


def test_rows_by_an_index_of_two_dims() -> None:
    b = GraphBuilder("embedding")
    table = b.input("table", (40, 100), "float16")
    index = b.input("index", (3, 21), "int32")
    b.output(b.gather(table, (3, 21, 100), [index.unsqueeze(2), 2]))
    check_graph(b.graph, {"index": RNG.integers(0, 40, (3, 21)).astype(np.int32)})


@pytest.mark.parametrize("dim", [0, 1])
def test_elements_along_a_dim(dim: int) -> None:
    b = GraphBuilder("gather")
    x = b.input("x", (70, 90), "float16")
    index = b.input("index", (65, 80), "int64")
    where: list[int | View] = [index, 1] if dim == 0 else [0, index]
    b.output(b.gather(x, (65, 80), where))
    check_graph(b.graph, {"index": RNG.integers(0, (70, 90)[dim], (65, 80))})


def test_lanes_by_an_index_vector() -> None:
    b = GraphBuilder("turn")
    x = b.input("x", (37, 128), "float16")
    index = b.input("index", (64,), "int32")
    b.output(b.gather(x, (37, 64), [0, index.unsqueeze(0)]))
    check_graph(b.graph, {"index": RNG.permutation(128)[:64].astype(np.int32)})


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int64"])
def test_writes_to_rows(dtype: str, add: bool) -> None:
    b = GraphBuilder("write")
    target = b.input("target", (60, 130), dtype)
    index = b.input("index", (20,), "int64")
    value = b.input("value", (20, 130), dtype)
    b.scatter(target, value, [index.unsqueeze(1), 1], add=add)
    assert target.tensor.role is Role.INOUT
    check_graph(b.graph, {"index": RNG.integers(0, 60, 20)})


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("add", [False, True])
def test_writes_elements(dim: int, add: bool) -> None:
    b = GraphBuilder("write")
    shape = (30, 90) if dim == 0 else (40, 70)
    target = b.input("target", (40, 90), "float32")
    index = b.input("index", shape, "int64")
    value = b.input("value", shape, "float32")
    where: list[int | View] = [index, 1] if dim == 0 else [0, index]
    b.scatter(target, value, where, add=add)
    check_graph(b.graph, {"index": RNG.integers(0, (40, 90)[dim], shape)})


def test_value_is_broadcast_and_converted() -> None:
    b = GraphBuilder("fill")
    target = b.input("target", (33, 65), "float16")
    index = b.input("index", (4,), "int64")
    value = b.input("value", (1,), "float32")
    b.scatter(target, value.expand((4, 65)), [index.unsqueeze(1), 1])
    check_graph(b.graph, {"index": RNG.permutation(33)[:4]})
