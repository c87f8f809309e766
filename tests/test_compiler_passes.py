"""The passes: a graph computes the same before and after each, and has the form each promises."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import Made, Random

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.check import check
from openspyre.compiler.graph import Graph, OpKind
from openspyre.compiler.interpret import interpret
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.passes.canonicalize import canonicalize
from openspyre.compiler.view import View
from openspyre.program import body as f

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
