"""Lowerings of reductions, scans, softmax and losses against torch's CPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from lowering_checks import lowered, name_of
from test_lower_pointwise import DTYPES, FLOATS, check, sweep, values

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.graph import OpKind
from openspyre.compiler.interpret import interpret
from openspyre.compiler.lower import lower_op
from openspyre.formats import Mode
from openspyre.program.expr import Var

aten = torch.ops.aten
functional: Any = torch.nn.functional


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_reductions_of_every_dtype_over_any_dims(dtype: torch.dtype) -> None:
    x = values(dtype, 3, 70, 5)

    def code() -> None:
        for dims in ((), 0, 1, -1, (0, 2), (0, 1, 2)):
            for keepdim in (False, True):
                torch.sum(x, dims, keepdim=keepdim), torch.any(x, dims, keepdim=keepdim)
                torch.all(x, dims, keepdim=keepdim)
                torch.amax(x, dims, keepdim=keepdim), torch.amin(x, dims, keepdim=keepdim)
                torch.sum(x, dims, dtype=torch.float32)
                if dtype.is_floating_point:
                    torch.mean(x, dims, keepdim=keepdim)
                    torch.linalg.vector_norm(x, 2, dims, keepdim=keepdim)
        for dim in (0, 1, -1):
            torch.max(x, dim), torch.min(x, dim, keepdim=True), torch.aminmax(x, dim=dim)
            if dtype != torch.bool:
                torch.argmax(x, dim), torch.argmin(x, dim, keepdim=True)
            torch.count_nonzero(x, dim)
        x.max(), x.min(), x.sum(), x.any(), x.all()
        (x.argmax(), x.argmin()) if dtype != torch.bool else x
        torch.sum(x, dtype=torch.int64) if not dtype.is_floating_point else x.mean()
        torch.count_nonzero(x), x[:2, :3, 0].prod(), torch.prod(x[:, :3], 0)

    check(code, tolerance=4.0)


def test_extremes_of_nan_and_ties_take_the_first_place() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, -2.0], [math.nan, 1.0, math.nan, 5.0], [2.0, 2.0, 2.0, 2.0]])
    check(lambda: (x.max(1), x.min(1), x.argmax(1), x.argmin(), x.amax(), x.amax(0)))
    (got, index), _ = lowered(aten.max.dim, [x, 1])
    assert index.tolist() == [1, 0, 0] and np.isnan(got[1])


def test_scalars_and_dims_of_one_reduce_to_themselves() -> None:
    for x in (torch.tensor(3.0), values(torch.float16, 1, 4, 1), torch.tensor([True])):

        def code(x: torch.Tensor = x) -> None:
            x.sum(), x.amax(), x.any(), x.max(0), torch.sum(x, 0, keepdim=True)
            if x.is_floating_point():
                (
                    x.mean(),
                    x.argmax(),
                    torch.softmax(x, 0),
                    torch.logsumexp(x, -1),
                    torch.cumsum(x, 0),
                )
                x.var(0, correction=0), torch.linalg.vector_norm(x)

        check(code)


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_moments(dtype: torch.dtype) -> None:
    x = values(dtype, 4, 90, 3) + 20

    def code() -> None:
        for dims in (None, 1, (0, 2), (1, 2)):
            for correction in (0, 1, 2.5):
                torch.var(x, dims, correction=correction)
                torch.std(x, dims, correction=correction, keepdim=True)
                torch.var_mean(x, dims, correction=correction)
        x.var(), x.std(), torch.std_mean(x, 1), x.var(1, unbiased=False)

    check(code, tolerance=8.0)


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_norms(dtype: torch.dtype) -> None:
    x = values(dtype, 5, 40)

    def code() -> None:
        for order in (0, 1, 2, 3, 2.5, math.inf, -math.inf, -1):
            torch.linalg.vector_norm(x, order), torch.linalg.vector_norm(x, order, 1)
            torch.norm(x, order, 0, keepdim=True)
        torch.dist(x, x * 0.5), torch.linalg.vector_norm(x, 2, dtype=torch.float32)

    check(code, tolerance=8.0)


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_softmax_and_its_relatives_with_gradients(dtype: torch.dtype) -> None:
    x = (values(dtype, 6, 70) * 3).requires_grad_()

    def code() -> None:
        for dim in (0, 1):
            y = torch.softmax(x, dim) * 3 + torch.log_softmax(x, dim) * 2
            (y * y.detach()).sum().backward()
        torch.logsumexp(x, 1), torch.logsumexp(x, (0, 1), keepdim=True)
        torch.softmax(x, 1, dtype=torch.float32)

    check(code, tolerance=12.0)


def test_rows_of_minus_infinity() -> None:
    x = torch.full((2, 3), -math.inf)
    x[1, 0] = 1.0
    check(lambda: (torch.logsumexp(x, 1), torch.softmax(x, 1), torch.log_softmax(x, 1)))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_scans(dtype: torch.dtype) -> None:
    x = values(dtype, 4, 30)

    def code() -> None:
        for dim in (0, 1):
            torch.cumsum(x, dim), torch.cummax(x, dim), torch.cummin(x, dim)
        torch.cumprod(x[:, :4], 1), torch.cumsum(x, 0, dtype=torch.int32)

    check(code, tolerance=8.0)


def test_losses_with_gradients() -> None:
    x = values(torch.float32, 6, 5).requires_grad_()
    y = values(torch.float32, 6, 5, seed=3)
    chance, wanted = torch.sigmoid(x.detach()).requires_grad_(), torch.sigmoid(y)
    target = torch.tensor([0, 4, 2, 2, -100, 1])
    weight = torch.rand(5)
    pictures = values(torch.float32, 2, 5, 3, 4).requires_grad_()
    labels = torch.randint(0, 5, (2, 3, 4))

    def code() -> None:
        for reduction in ("none", "mean", "sum"):
            how: Any = {"reduction": reduction}
            found = [
                functional.mse_loss(x, y, **how), functional.l1_loss(x, y, **how),
                functional.smooth_l1_loss(x, y, beta=0.7, **how),
                functional.huber_loss(x, y, delta=1.3, **how),
                functional.soft_margin_loss(x, y.sign(), **how),
                functional.binary_cross_entropy(chance, wanted, **how),
                functional.binary_cross_entropy(chance, wanted, weight, **how),
                functional.binary_cross_entropy_with_logits(x, wanted, weight, **how),
                functional.kl_div(x, wanted, **how),
                functional.cross_entropy(x, target, **how),
                functional.cross_entropy(x, target, weight, **how),
                functional.nll_loss(x, target.abs() % 5, ignore_index=2, **how),
                functional.cross_entropy(pictures, labels, **how),
                functional.nll_loss(x[0], target[0], **how),
            ]  # fmt: skip
            for loss in found:
                (loss * 1.5).sum().backward()

    check(code, tolerance=6.0)


def test_a_class_outside_the_scores_fails_loudly() -> None:
    with pytest.raises(IndexError):
        lowered(
            aten.nll_loss_forward.default,
            [torch.ones(2, 3), torch.tensor([0, 3]), None, 1, -100],
        )


def test_the_mean_of_integers_is_refused_with_a_way_out() -> None:
    b = GraphBuilder("t")
    with pytest.raises(Unsupported, match=r"dtype=torch\.float32"):
        lower_op(b, "aten.mean.dim", [b.input("x", (4,), "int32"), [0]])


def test_a_reduction_is_one_op_and_one_map() -> None:
    b = GraphBuilder("t", Mode.IEEE)
    lower_op(b, "aten.sum.dim_IntList", [b.input("x", (8, 64), "float16"), [1]])
    assert [op.kind for op in b.graph.ops] == [OpKind.REDUCE, OpKind.MAP]
    b = GraphBuilder("t")
    lower_op(b, "aten.sum.dim_IntList", [b.input("x", (8, 64), "float32"), [1]])
    assert [op.kind for op in b.graph.ops] == [OpKind.REDUCE]


def test_the_mean_over_a_size_given_at_launch() -> None:
    b = GraphBuilder("t")
    rows = b.size_symbol("rows", 1, 100, 6)
    assert isinstance(rows, Var)
    mean = lower_op(b, "aten.mean.dim", [b.input("x", (rows, 4), "float32"), [0]])
    out = b.output(mean)  # type: ignore[arg-type]
    assert out is not None
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    got = interpret(b.graph, {"x": x}, {"rows": 6})[out.name]
    np.testing.assert_allclose(got, x.mean(0))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_torchs_reduction_samples(dtype: torch.dtype) -> None:
    from torch.testing._internal.opinfo import core

    found = sweep((core.ReductionOpInfo,), [dtype])
    assert not found.failed, "\n".join(found.failed.values())
    assert not found.missing and len(found.passed) > 5
