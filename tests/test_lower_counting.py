"""Histograms, distances, bags and torch's own decompositions, against torch's CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lowering_calls import aten, check, draw, whole
from lowering_checks import Lowered, compare, flat, lowered
from torch.utils._python_dispatch import TorchDispatchMode

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.lower import NeedsConstant
from openspyre.compiler.lower.decompose import lower_by_decomposition
from openspyre.compiler.view import View

CALLS: list[tuple[Any, ...]] = [
    (aten.histc.default, draw(50), 10, -1, 1),
    (aten.histc.default, draw(50), 10),
    (aten._cdist_forward.default, draw(4, 3), draw(5, 3), 2.0, None),
    (aten._cdist_forward.default, draw(2, 4, 3), draw(2, 5, 3), 1.0, None),
    (aten._cdist_forward.default, draw(4, 3), draw(5, 3), float("inf"), None),
    (aten.logcumsumexp.default, draw(3, 30) * 20, 1),
    (aten.logcumsumexp.default, torch.tensor([float("-inf"), float("-inf"), 1.0, 2.0]), 0),
    (aten._pdist_forward.default, draw(6, 3), 2.0),
    (
        aten._trilinear.default, draw(5, 3), draw(7, 3, 4), draw(5, 4), [1, 3], [0], [1, 2], [2, 3],
    ),
    (aten._chunk_cat.default, [draw(3, 4), draw(5, 2)], 0, 2),
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=lambda call: str(call[0]))
def test_counts_and_distances(call: tuple[Any, ...]) -> None:
    check(*call, tolerance=10.0)


@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
def test_index_reduce(reduce: str) -> None:
    index, source = torch.tensor([0, 0, 3, 4, 4]), draw(4, 5, 3)
    x = draw(4, 5, 3, seed=1)
    check(aten.index_reduce.default, x, 1, index, source, reduce, include_self=False, tolerance=4.0)
    check(aten.index_reduce.default, x, 1, index, source, reduce, tolerance=4.0)


@pytest.mark.parametrize("mode", [0, 1])
def test_bags_of_embeddings(mode: int) -> None:
    args = [draw(9, 4), whole(12, high=9), torch.tensor([0, 3, 3, 8]), False, mode]
    got, dtypes = lowered(aten._embedding_bag_forward_only.default, args)
    compare("bag", got[:1], dtypes[:1], [aten._embedding_bag_forward_only.default(*args)[0]], 2.0)
    assert got[1].tolist() == [0] * 3 + [2] * 5 + [3] * 4
    assert got[2].tolist() == [3, 0, 5, 4]


DECOMPOSED: list[tuple[Any, ...]] = [
    (aten.renorm.default, draw(3, 4), 2, 0, 1.0),
    (aten.linalg_cross.default, draw(4, 3), draw(4, 3, seed=1)),
    (aten.native_layer_norm.default, draw(3, 4), [4], None, None, 1e-5),
    (aten.diag_embed.default, draw(2, 3), 1, 0, 2),
]


def by_decomposition(op: torch._ops.OpOverload, args: Any) -> None:
    call = Lowered()
    made = lower_by_decomposition(call.b, op, [call.argument(a) for a in args])
    views = [v for v in flat(made) if isinstance(v, View)]
    wanted = [t for t in flat(op(*args)) if isinstance(t, torch.Tensor)]
    compare(str(op), call.run(views), [v.dtype for v in views], wanted, 20.0)


@pytest.mark.parametrize("call", DECOMPOSED, ids=lambda call: str(call[0]))
def test_torch_s_decompositions_reach_lowerings(call: tuple[Any, ...]) -> None:
    by_decomposition(call[0], call[1:])


def test_a_trace_inside_a_dispatch_mode() -> None:
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            b = GraphBuilder("inner")
            x = b.input("x", (5, 7), "float32")
            lower_by_decomposition(b, aten.renorm.default, [x, 2, 0, 1.0])
            self.ops = len(b.graph.ops)
            return func(*args, **(kwargs or {}))

    x = draw(5, 7)
    with Mode() as mode:
        x + 1
    assert mode.ops > 3


def test_what_cannot_be_decomposed_says_so() -> None:
    b = GraphBuilder("none")
    x = b.input("x", (4, 4), "float32")
    with pytest.raises(Unsupported, match="linalg_svd"):
        lower_by_decomposition(b, aten._linalg_svd.default, [x])
    with pytest.raises(Unsupported, match="nonzero"):
        lower_by_decomposition(b, aten.nonzero.default, [x])
    with pytest.raises(NeedsConstant):
        lower_by_decomposition(b, aten.renorm.default, [x, b.scalar("p", 2.0), 0, 1.0])
    with pytest.raises(Unsupported, match="symbolic"):
        wide = b.input("y", (b.size_symbol("n", 1, 99, 4), 4), "float32")
        lower_by_decomposition(b, aten.renorm.default, [wide, 2, 0, 1.0])
