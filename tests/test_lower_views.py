"""Views, joins and pads by their lowerings, against torch's CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lowering_calls import aten, check, draw, whole

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.graph import OpKind
from openspyre.compiler.lower import lower_op

X = draw(4, 6, 10)

VIEWS: list[tuple[Any, ...]] = [
    (aten.view.default, X, [24, 10]),
    (aten.view.default, X, [2, -1, 5]),
    (aten.permute.default, X, [2, 0, 1]),
    (aten.transpose.int, X, -1, 0),
    (aten.t.default, draw(3, 7)),
    (aten.expand.default, draw(4, 1, 10), [2, 4, 6, -1]),
    (aten.squeeze.dim, draw(4, 1, 3), 1),
    (aten.squeeze.dims, draw(1, 4, 1), [0, 2]),
    (aten.unsqueeze.default, X, -1),
    (aten.select.int, X, 1, -2),
    (aten.slice.Tensor, X, 2, 1, -1, 3),
    (aten.slice.Tensor, X, 1, -3, 2**63 - 1, 1),
    (aten.split.Tensor, X, 4, 2),
    (aten.split_with_sizes.default, X, [1, 3, 2], 1),
    (aten.unbind.int, X, 0),
    (aten.unfold.default, X, 2, 4, 3),
    (aten.diagonal.default, X, 1, 2, 0),
    (aten.flip.default, X, [0, 2]),
    (aten.roll.default, X, [3, -1], [2, 0]),
    (aten.roll.default, X, [7], []),
    (aten.rot90.default, X, 3, [0, 2]),
    (aten.repeat.default, X, [2, 1, 3, 2]),
    (aten.repeat_interleave.self_int, X, 3, 1),
    (aten.as_strided.default, X, [3, 4], [10, 2], 5),
    (aten.as_strided.default, X, [10, 6, 4], [1, 10, 60], 0),
    (aten.as_strided.default, X, [3, 5, 2], [4, 1, 0], 7),
]


@pytest.mark.parametrize("call", VIEWS, ids=lambda call: str(call[0]))
def test_views_are_torch_s(call: tuple[Any, ...]) -> None:
    check(*call)


@pytest.mark.parametrize("call", [c for c in VIEWS if c[0] is not aten.roll.default], ids=str)
def test_views_move_nothing(call: tuple[Any, ...]) -> None:
    """A view of a whole tensor makes no operation (but linear windows of more dims)."""
    op, x, *rest = call
    b = GraphBuilder("views")
    lower_op(b, str(op), [b.input("x", x.shape, "float32"), *rest])
    if op is not aten.as_strided.default:
        assert b.graph.ops == []


def test_a_reshape_that_cuts_across_copies_once() -> None:
    b = GraphBuilder("views")
    x = b.input("x", (4, 6), "float16")
    lower_op(b, "aten.view.default", [lower_op(b, "aten.t.default", [x]), [8, 3]])
    assert [op.kind for op in b.graph.ops] == [OpKind.MAP]


SCATTERS: list[tuple[Any, ...]] = [
    (aten.slice_scatter.default, X, draw(4, 3, 10), 1, 1, 6, 2),
    (aten.select_scatter.default, X, draw(4, 10), 1, -1),
    (aten.diagonal_scatter.default, draw(5, 7), draw(5), 2),
    (aten.as_strided_scatter.default, draw(5, 8), draw(3, 2), [3, 2], [8, 3], 2),
    (aten.select_backward.default, draw(4, 10), [4, 6, 10], 1, 2),
    (aten.slice_backward.default, draw(4, 2, 10), [4, 6, 10], 1, 1, 5, 2),
    (aten.unfold_backward.default, draw(4, 3, 4), [4, 10], 1, 4, 3),
    (aten.unfold_backward.default, draw(4, 3, 6, 3), [4, 12, 6], 1, 3, 4),
]


@pytest.mark.parametrize("call", SCATTERS, ids=lambda call: str(call[0]))
def test_a_window_is_replaced(call: tuple[Any, ...]) -> None:
    check(*call)


JOINS: list[tuple[Any, ...]] = [
    (aten.cat.default, [draw(2, 3), draw(4, 3), draw(1, 3)], 0),
    (aten.cat.default, [draw(2, 64), draw(2, 64)], -1),
    (aten.cat.default, [draw(2, 3), whole(2, 5)], 1),
    (aten.stack.default, [draw(2, 3), draw(2, 3, seed=5)], 1),
    (aten.constant_pad_nd.default, X, [1, 2], 1.5),
    (aten.constant_pad_nd.default, X, [1, 2, 0, 3, 2, 0], -1.0),
    (aten.constant_pad_nd.default, X, [-2, 2, 1, -3], 0.5),
    (aten.constant_pad_nd.default, X, [-8, -1], 0),
    (aten.reflection_pad1d.default, draw(3, 9), [3, 2]),
    (aten.reflection_pad2d.default, draw(2, 3, 7, 9), [3, 2, 1, 4]),
    (aten.reflection_pad3d.default, draw(2, 4, 5, 6), [1, 2, 3, 1, 0, 2]),
    (aten.replication_pad1d.default, draw(2, 3, 9), [3, 2]),
    (aten.replication_pad2d.default, draw(3, 7, 9), [3, -2, 1, 4]),
    (aten.replication_pad3d.default, draw(2, 4, 5, 6), [1, 2, 3, 1, 0, 2]),
    (aten.reflection_pad1d_backward.default, draw(3, 14), draw(3, 9), [3, 2]),
    (aten.reflection_pad2d_backward.default, draw(2, 3, 12, 14), draw(2, 3, 7, 9), [3, 2, 1, 4]),
    (aten.replication_pad2d_backward.default, draw(2, 3, 12, 14), draw(2, 3, 7, 9), [3, 2, 1, 4]),
    (
        aten.replication_pad3d_backward.default,
        draw(1, 2, 6, 9, 9),
        draw(1, 2, 4, 5, 6),
        [1, 2, 3, 1, 0, 2],
    ),
    (aten.tril.default, draw(2, 5, 6), -1),
    (aten.triu.default, whole(5, 6), 2),
    (aten.tril_indices.default, 4, 5, 1),
    (aten.diag_embed.default, draw(2, 3), 1, 0, 2),
    (aten.block_diag.default, [draw(2, 3), draw(2), draw(3, 1)]),
]


@pytest.mark.parametrize("call", JOINS, ids=lambda call: str(call[0]))
def test_joins_are_torch_s(call: tuple[Any, ...]) -> None:

    check(*call)


def test_pieces_keep_16_bit_values() -> None:
    check(aten.cat.default, [draw(2, 3, dtype=torch.float16), draw(2, 5, dtype=torch.float16)], 1)
    check(aten.constant_pad_nd.default, draw(2, 3, dtype=torch.bfloat16), [1, 1], 0.1)


def test_a_join_writes_every_part_once() -> None:
    b = GraphBuilder("cat")
    parts = [b.input(f"x{n}", (2, 64), "float16") for n in range(3)]
    lower_op(b, "aten.cat.default", [parts, 1])
    assert len(b.graph.ops) == 3
    assert len({op.outputs[0].tensor for op in b.graph.ops}) == 1
