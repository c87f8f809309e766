"""Gathers, scatters, sorts and what is made of them, against torch's CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lowering_calls import aten, check, draw, whole
from lowering_checks import lowered

from openspyre.compiler.errors import Unsupported

X = draw(5, 7, 6)
I = whole(4, high=7, seed=1)  # noqa: E741
N = whole(3, 4, low=-5, high=5, seed=2)

READS: list[tuple[Any, ...]] = [
    (aten.embedding.default, draw(11, 8), whole(3, 4, high=11)),
    (aten.embedding.default, draw(1, 8), whole(3, 4, high=1)),
    (aten.index_select.default, X, 1, I),
    (aten.index_select.default, X, -3, whole(9, high=5).int()),
    (aten.gather.default, X, 1, whole(4, 9, 6, high=7)),
    (aten.gather.default, draw(5, 1, 6), 1, whole(5, 3, 6, high=1)),
    (aten.gather.default, torch.tensor(3.0), 0, torch.tensor([0, 0])),
    (aten.take.default, X, whole(3, 3, low=-200, high=200)),
    (aten.index.Tensor, X, [N]),
    (aten.index.Tensor, X, [None, N]),
    (aten.index.Tensor, X, [N, None, whole(4, high=6)]),
    (aten.index.Tensor, X, [N, whole(3, 1, high=7)]),
    (aten.index.Tensor, X, [None, whole(3, 1, high=7), N]),
    (aten.bucketize.Tensor, draw(20), torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0])),
    (aten.searchsorted.Tensor, draw(3, 9).sort().values, draw(3, 4)),
    (aten.isin.Tensor_Tensor, whole(4, 5), whole(3)),
]


@pytest.mark.parametrize("call", READS, ids=lambda call: str(call[0]))
def test_reads_by_index(call: tuple[Any, ...]) -> None:
    check(*call)


WRITES: list[tuple[Any, ...]] = [
    (aten.embedding_dense_backward.default, draw(3, 4, 8), whole(3, 4, high=5), 6, 2, False),
    (aten.embedding_dense_backward.default, draw(3, 4, 8), whole(3, 4, high=5), 6, -1, True),
    (aten.scatter.src, X, 1, whole(4, 3, 5, high=7), draw(5, 3, 6)),
    (aten.scatter.value, X, 0, whole(3, 4, 2, high=5), 1.5),
    (aten.scatter_add.default, X, 2, whole(5, 7, 9, high=6), draw(5, 7, 9)),
    (aten.scatter_add.default, draw(5, 1), 1, whole(5, 3, high=1), draw(5, 3)),
    (aten.index_add.default, X, 1, I, draw(5, 4, 6)),
    (aten.index_copy.default, X, 1, torch.tensor([6, 0, 2]), draw(5, 3, 6)),
    (aten.index_fill.int_Scalar, X, 1, torch.tensor([6, 0, -2]), 3.0),
    (aten.index_put.default, X, [N], draw(3, 4, 7, 6), True),
    (aten.index_put.default, X, [torch.tensor([1, -1]), torch.tensor([0, 3])], draw(2, 6)),
    (aten.index_put.default, X, [None, torch.tensor([4, -1])], draw(6)),
    (aten.index_put.default, X, [X > 0], torch.tensor(2.0)),
    (aten.index_put.default, X, [draw(5, 7) > 0], draw(6)),
    (aten.index_put.default, X, [None, draw(7) > 0], draw(1, 6), True),
    (aten.index_put.default, X, [None, draw(7, 6) > 0], draw(5, 1)),
    (aten.put.default, X, torch.tensor([3, -1, 100]), draw(3)),
    (aten.put.default, X, torch.tensor([3, 3, 100]), draw(3), True),
    (aten.masked_scatter.default, X, X > 0, draw(300)),
]


@pytest.mark.parametrize("call", WRITES, ids=lambda call: str(call[0]))
def test_writes_by_index(call: tuple[Any, ...]) -> None:
    check(*call)


@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce(reduce: str, include_self: bool) -> None:
    index = whole(4, 9, 6, high=7)
    check(
        aten.scatter_reduce.two, X, 1, index, draw(5, 9, 6), reduce, include_self=include_self,
        tolerance=4.0,
    )  # fmt: skip


def test_a_scatter_that_adds() -> None:
    index = whole(3, 4, 2, high=5)
    check(aten.scatter.reduce, X, 0, index, draw(3, 4, 2), reduce="add")
    check(aten.scatter.reduce, X, 0, index, draw(3, 4, 2), reduce="multiply")
    check(aten.scatter.value_reduce, X, 0, index, 2.5, reduce="multiply", tolerance=2.0)


def test_sums_into_16_bit_are_rounded_once() -> None:
    x, index = draw(3, 4, dtype=torch.float16), whole(3, 40, high=4)
    check(aten.scatter_add.default, x, 1, index, draw(3, 40, dtype=torch.float16))


def test_an_index_outside_hits_no_neighbour() -> None:
    for pair in ([0, 7], [-6, 0], [5, 0]):
        with pytest.raises(IndexError):
            lowered(aten.index.Tensor, [X, [torch.tensor([i]) for i in pair]])


def test_what_depends_on_values_is_refused() -> None:
    with pytest.raises(Unsupported, match="depends on values"):
        lowered(aten.index.Tensor, [X, [X > 0]])
    with pytest.raises(IndexError):
        lowered(aten.index_select.default, [X, 0, torch.tensor([5])])


SORTS: list[tuple[Any, ...]] = [
    (aten.sort.stable, whole(4, 30)),
    (aten.sort.default, draw(3, 9, 5), 1, True),
    (aten.topk.default, draw(4, 30), 5),
    (aten.topk.default, draw(4, 30, 3), 5, 1, False),
    (aten.kthvalue.default, draw(4, 30), 7),
    (aten.median.dim, draw(4, 9), 1),
    (aten.median.default, draw(4, 10)),
    (aten.nanmedian.default, torch.tensor([3.0, float("nan"), 1.0, 2.0])),
    (aten.median.default, torch.tensor([3.0, float("nan"), 1.0, 2.0])),
    (aten.nanmedian.dim, torch.tensor([[3.0, float("nan"), 1.0], [float("nan")] * 3]), 1),
    (aten.cummax.default, draw(4, 30), 1),
    (aten.cummax.default, torch.tensor([1.0, float("nan"), 3.0, float("nan")]), 0),
    (aten.cummin.default, whole(4, 30), 0),
    (aten.sort.default, torch.tensor(2.0)),
]


@pytest.mark.parametrize("call", SORTS, ids=lambda call: str(call[0]))
def test_orders_are_torch_s(call: tuple[Any, ...]) -> None:
    op, *args = call
    options: dict[str, Any] = {"stable": True} if op is aten.sort.stable else {}
    check(op, *args, **options)


def test_mode_is_the_smallest_of_the_most_frequent() -> None:
    x = whole(6, 25, high=6)
    got, _ = lowered(aten.mode.default, [x, 1])
    wanted = torch.mode(x, 1).values
    assert (got[0] == wanted.numpy()).all()
    assert (x.gather(1, torch.from_numpy(got[1])[:, None])[:, 0] == wanted).all()
