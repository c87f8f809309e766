"""Fusion: which ops become one kernel, and that it changes no bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from compiler_graphs import compiled, hold, inputs_of, outputs, placed
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.graph import Graph, OpKind, Role
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.passes.fuse import fuse
from openspyre.compiler.tiles import Kernel
from openspyre.compiler.view import View
from openspyre.formats import Mode
from openspyre.program import body as f
from openspyre.program.model import Load
from openspyre.program.ops import Combine
from openspyre.timing import duration_ns

BOTH = (True, False)


def new(mode: Mode = Mode.DL16) -> GraphBuilder:
    return GraphBuilder("g", mode)


def kernels(graph: Graph, **options: Any) -> list[Kernel]:
    return fuse(placed(graph), CompileOptions(**options))


def half(b: GraphBuilder, function: Any, *args: Any) -> View:
    """A float16 result of a function in float32."""
    return b.map(function, *args, dtype="float16", compute="float32")


def softmax(b: GraphBuilder, x: View) -> View:
    m, = b.reduce(Combine.MAX, x, [-1], compute="float32", keepdim=True)  # fmt: skip
    e = b.map(lambda p, q: f.exp(p - q), x, m, dtype="float32", compute="float32")
    s, = b.reduce(Combine.SUM, e, [-1], keepdim=True)  # fmt: skip
    return b.map(lambda p, q: p / q, e, s, dtype=x.dtype, compute="float32")


def layer_norm(b: GraphBuilder, x: View, weight: View, bias: View) -> View:
    mean, m2, n = b.reduce(Combine.WELFORD, x, [-1], compute="float32", keepdim=True)
    return half(
        b, lambda p, u, v, c, w, o: (p - u) * f.rsqrt(v / c + 1e-5) * w + o,
        x, mean, m2, n, weight, bias,
    )  # fmt: skip


def rms_norm(b: GraphBuilder, x: View, weight: View) -> View:
    n = x.shape[-1]
    assert isinstance(n, int)
    squares = b.map(lambda p: p * p, x, dtype="float32", compute="float32")
    s, = b.reduce(Combine.SUM, squares, [-1], keepdim=True)  # fmt: skip
    scale = b.map(lambda p: f.rsqrt(p / float(n) + 1e-6), s, dtype="float32")
    return half(b, lambda p, q, w: p * q * w, x, scale, weight)


# --- pointwise


def test_a_chain_of_maps_is_one_map_with_its_roundings() -> None:
    b = new()
    x, y = b.input("x", (70, 150), "float16"), b.input("y", (150,), "float16")
    a = half(b, lambda p, q: p * q, x, y)
    c = half(b, lambda p: f.exp(p) + 1.0, a)
    d = half(b, lambda p, q: p / q, c, x)
    graph = outputs(b, d)
    (kernel,) = kernels(graph)
    assert [op.kind for op in kernel.ops] == [OpKind.MAP]
    rounds = [n for n in kernel.ops[0].body.nodes if n.op == "round"]  # type: ignore[union-attr]
    assert len(rounds) == 2
    assert [t.name for t in kernel.arguments] == ["x", "y", d.tensor.name]


def test_narrow_integers_and_truth_wrap_between_fused_maps() -> None:
    b = new()
    x, y = b.input("x", (33, 65), "int8"), b.input("y", (33, 65), "uint8")
    a = b.map(lambda p: p * 5, x, dtype="int8")
    c = b.map(lambda p: p * 7 - 3, y, dtype="uint8")
    t = b.map(lambda p, q: p < q, a, c, dtype="bool", compute="int32")
    z = b.map(lambda p, q, r: f.where(p, q, r), t, a, c, dtype="int32")
    hold(outputs(b, z), fuse=BOTH)


def test_a_result_that_is_asked_for_is_stored_and_read_in_lx() -> None:
    b = new()
    x = b.input("x", (64, 128), "float16")
    a = half(b, f.exp, x)
    c = half(b, lambda p: p + 1.0, a)
    made = hold(outputs(b, a, c), fuse=BOTH)
    assert len(made) == 1
    loads = [t.name for t in made[0][0].arguments]
    assert loads == ["x", a.tensor.name, c.tensor.name]


def test_more_inputs_than_a_compute_takes_stay_apart_in_one_kernel() -> None:
    b = new()
    xs = [b.input(f"x{n}", (5, 70), "float16") for n in range(12)]
    total = xs[0]
    for x in xs[1:]:
        total = half(b, lambda p, q: p + q, total, x)
    made = hold(outputs(b, total), fuse=BOTH)
    assert len(made) == 1
    assert all(len(op.inputs) <= 8 for op in made[0][0].ops)


def test_views_go_through_an_inlined_map() -> None:
    b = new()
    x = b.input("x", (70, 128), "float16")
    a = b.map(lambda at, p: p + f.cast(at(0) * 2, "f"), x, dtype="float16",
              compute="float32", indexed=True)  # fmt: skip
    part = a.slice(0, 3, 40).slice(1, 64, 64).transpose(0, 1)
    c = half(b, lambda p: p * 2.0, part)
    (kernel, _), *more = hold(outputs(b, c), fuse=BOTH)
    assert not more
    assert len(kernel.ops) == 1


def test_results_that_nobody_needs_are_not_computed() -> None:
    b = new()
    x = b.input("x", (40, 100), "float16")
    half(b, f.exp, x)
    _, q = b.map_many(lambda r: (r + 1.0, r * 2.0), x, dtypes=("float16", "float16"),
                      compute="float32")  # fmt: skip
    (kernel,) = kernels(outputs(b, q))
    assert len(kernel.ops) == 1
    assert len(kernel.ops[0].outputs) == 1


# --- reductions


def test_softmax_reads_its_rows_once() -> None:
    b = new()
    y = softmax(b, b.input("x", (70, 150), "float16"))
    ((kernel, program),) = hold(outputs(b, y), cores=(32, 7), fuse=BOTH)
    assert [t.name for t in kernel.arguments] == ["x", y.tensor.name]
    assert sum(isinstance(i, Load) for i in flat(program.queues)) == 1


def test_norms_are_one_kernel() -> None:
    b = new()
    x, w = b.input("x", (2, 20, 150), "float16"), b.input("w", (150,), "float16")
    o = b.input("o", (150,), "float16")
    assert len(hold(outputs(b, layer_norm(b, x, w, o)), cores=(32, 2), fuse=BOTH)) == 1
    b = new()
    x, w = b.input("x", (2, 20, 150), "float16"), b.input("w", (150,), "float16")
    assert len(hold(outputs(b, rms_norm(b, x, w)), cores=(32, 2), fuse=BOTH)) == 1


def test_norms_are_modelled_as_fast_as_by_hand() -> None:
    from examples.programs import rows

    b = new()
    x, w = b.input("x", (4096, 2048), "float16"), b.input("w", (2048,), "float16")
    ((_, program),) = compiled(placed(outputs(b, rms_norm(b, x, w))), CompileOptions())
    assert duration_ns(program) <= 1.1 * duration_ns(rows.rms_norm())


def test_column_statistics_and_what_uses_them() -> None:
    b = new()
    x = b.input("x", (300, 130), "float32")
    mean, m2, n = b.reduce(Combine.WELFORD, x, [0], keepdim=True)
    y = b.map(lambda p, u, v, c: (p - u) * f.rsqrt(v / c + 1e-5), x, mean, m2, n, dtype="float32")
    assert len(hold(outputs(b, y), cores=(32, 1), fuse=BOTH)) == 1


def test_two_reductions_of_one_tensor_share_its_load() -> None:
    b = new()
    x = b.input("x", (100, 500), "float16")
    s, = b.reduce(Combine.SUM, x, [1], compute="float32")  # fmt: skip
    m, = b.reduce(Combine.MAX, x, [1], compute="float32")  # fmt: skip
    made = hold(outputs(b, s, m), fuse=BOTH)
    assert len(made) == 1


def test_a_statistic_of_all_does_not_hold_back_the_cores() -> None:
    b = new()
    x = b.input("x", (2000, 1024), "float32")
    s, = b.reduce(Combine.SUM, x, [0, 1], keepdim=True)  # fmt: skip
    y = b.map(lambda p, q: p - q / 2048000.0, x, s, dtype="float32")
    made = hold(outputs(b, y), small=False, exact=False, rtol=1e-5, atol=1e-4)
    assert [kernel.cores for kernel, _ in made] == [32, 32]


# --- products, indices, copies


def test_maps_after_a_product_are_on_its_tile() -> None:
    b = new()
    x, w = b.input("x", (64, 128), "float16"), b.input("w", (128, 192), "float16")
    bias, other = b.input("bias", (192,), "float16"), b.input("other", (64, 192), "float16")
    product = half(b, lambda p: p, b.matmul(x, w))
    y = half(b, lambda p, q: f.gelu(p + q), product, bias)
    z = half(b, lambda p, q: p * q, y, other)
    (kernel,) = kernels(outputs(b, z))
    assert kernel.kind == "matmul"
    assert [op.kind for op in kernel.ops] == [OpKind.MATMUL, OpKind.MAP]


def test_the_halves_of_a_gated_product_are_two_kernels() -> None:
    b = new()
    x = b.input("x", (64, 128), "float16")
    gate, up = (b.input(n, (128, 192), "float16") for n in ("gate", "up"))
    g = half(b, f.silu, half(b, lambda p: p, b.matmul(x, gate)))
    u = half(b, lambda p: p, b.matmul(x, up))
    y = half(b, lambda p, q: p * q, g, u)
    first, second = kernels(outputs(b, y))
    assert first.kind == second.kind == "matmul"
    assert len(first.arguments) == 3  # x, gate and the rounded half
    assert all(t.dtype == "float16" for t in (*first.arguments, *second.arguments))


def test_a_reduction_after_a_product_is_a_kernel_of_its_own() -> None:
    b = new()
    x, w = b.input("x", (64, 128), "float16"), b.input("w", (128, 192), "float16")
    scores = half(b, lambda p: p * 0.125, b.matmul(x, w))
    made = kernels(outputs(b, softmax(b, scores)))
    assert [kernel.kind for kernel in made] == ["matmul", "rows"]
    assert made[1].arguments[0].dtype == "float16"


def test_gathers_scatters_and_copies_are_alone() -> None:
    b = new()
    table, at = b.input("table", (100, 64), "float16"), b.input("at", (20, 1), "int64")
    rows = b.gather(table, (20, 64), [at, 1])
    y = half(b, lambda p: p + 1.0, rows)
    made = kernels(outputs(b, y))
    assert [kernel.kind for kernel in made] == ["indexed", "rows"]


def test_a_copy_of_what_is_sorted_is_not_made() -> None:
    b = new()
    x = b.input("x", (33, 150), "float32")
    values, at = (b.copy(v) for v in b.sort(x, 1, k=5, descending=True))
    assert len(hold(outputs(b, values, at), fuse=BOTH)) == 1
    b = new()
    x, out = b.input("x", (33, 150), "float32"), b.input("out", (150, 33), "float32")
    b.store(out.transpose(0, 1), b.sort(x, 1)[0])
    assert len(hold(outputs(b), fuse=BOTH)) == 1


# --- mutation


def test_reads_before_and_after_a_store_see_what_they_should() -> None:
    b = new()
    x, y = b.input("x", (40, 128), "float16"), b.input("y", (40, 128), "float16")
    before = half(b, lambda p: p * 2.0, x)
    b.store(x, half(b, lambda p, q: p + q, x, y))
    after = half(b, lambda p: p * 3.0, x)
    hold(outputs(b, before, after), fuse=BOTH)


def test_a_store_to_a_shifted_slice_waits_for_the_reads() -> None:
    b = new()
    x = b.input("x", (40, 128), "float32")
    moved = b.map(lambda p: p + 1.0, x.slice(0, 0, 39), dtype="float32")
    b.store(x.slice(0, 1, 39), moved)
    made = kernels(outputs(b))
    assert len(made) == 2
    b = new()
    x = b.input("x", (40, 128), "float32")
    moved = b.map(lambda p: p + 1.0, x.slice(0, 0, 39), dtype="float32")
    b.store(x.slice(0, 1, 39), moved)
    hold(outputs(b), fuse=BOTH)


def test_a_tensor_is_stored_twice_in_order() -> None:
    b = new()
    x = b.input("x", (40, 128), "float16")
    b.store(x, half(b, lambda p: p + 1.0, x))
    b.store(x, half(b, lambda p: p * 2.0, x))
    hold(outputs(b), fuse=BOTH)


def test_a_tensor_that_is_written_in_parts() -> None:
    b = new()
    x, y = b.input("x", (40, 128), "float16"), b.input("y", (24, 128), "float16")
    out = View.of(b.tensor("out", (64, 128), "float16", Role.OUTPUT))
    b.store(out.slice(0, 0, 40), x)
    b.store(out.slice(0, 40, 24), y)
    hold(outputs(b), fuse=BOTH)


# --- anything


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
@given(data=st.data())
def test_random_graphs_have_the_same_bits_fused_and_not(data: Any) -> None:
    draw = data.draw
    b = new(draw(st.sampled_from(list(Mode))))
    rows, cols = draw(st.sampled_from([1, 3, 33, 64])), draw(st.sampled_from([1, 31, 64, 130]))
    views = [
        b.input("x", (rows, cols), "float16"),
        b.input("y", (rows, cols), draw(st.sampled_from(("float32", "float16")))),
        b.input("w", (1, cols), "float16"),
        b.input("v", (rows, 1), "float32"),
    ]
    for _ in range(draw(st.integers(2, 9))):
        what = draw(st.integers(0, 5))
        x, y = (views[draw(st.integers(0, len(views) - 1))] for _ in range(2))
        dtype = draw(st.sampled_from(("float16", "float32")))
        if what <= 2:
            views.append(b.map(lambda p, q: p * q - p, x, y, dtype=dtype, compute="float32"))
        elif what == 3:
            views.append(b.map(lambda p: f.exp(p * 0.01), x, dtype=dtype, compute="float32"))
        elif what == 4:
            combine = draw(st.sampled_from((Combine.SUM, Combine.MAX)))
            dim = draw(st.integers(0, 1))
            if x.size(dim) == 1:
                continue
            views += b.reduce(combine, x, [dim], compute="float32", keepdim=True)
        elif rows == cols and x.shape == (rows, cols):
            views.append(b.copy(x.transpose(0, 1)))
        else:
            target = views[0]
            value = b.map(lambda p: p + 1.0, views[-1], dtype="float16", compute="float32")
            b.store(target, value)
    wanted = [v for v in views[4:] if draw(st.booleans())] or views[-1:]
    for view in wanted:
        if view.tensor.role is Role.TEMP:
            view.tensor.role = Role.OUTPUT
    if not any(t.role in (Role.OUTPUT, Role.INOUT) for t in b.graph.tensors):
        return
    hold(b.graph, fuse=BOTH, cores=(draw(st.sampled_from((32, 1, 7))),), exact=True)


def flat(queues: Any) -> list[Any]:
    """All instructions, those inside loops too."""
    out: list[Any] = []

    def walk(items: Any) -> None:
        for item in items:
            out.append(item)
            walk(getattr(item, "body", ()) if not hasattr(item, "over") else ())

    for items in queues.values():
        walk(items)
    return out


def test_names_do_not_depend_on_what_was_compiled_before() -> None:
    programs = []
    for _ in range(2):
        b = new()
        graph = placed(outputs(b, softmax(b, b.input("x", (64, 128), "float16"))))
        inputs_of(graph)
        programs.append(compiled(graph, CompileOptions())[0][1])
    assert programs[0] == programs[1]
    assert np.all([o.name for o in programs[0].operands])
