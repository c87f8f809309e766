"""Matrix products and convolutions by their lowerings, against torch's CPU in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lowering_calls import aten, check, draw, whole
from lowering_checks import compare, lowered

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.graph import OpKind
from openspyre.compiler.interpret import interpret
from openspyre.compiler.lower import lower_op
from openspyre.compiler.view import View

PRODUCTS: list[tuple[Any, ...]] = [
    (aten.mm.default, draw(5, 70), draw(70, 9)),
    (aten.mm.default, draw(5, 1), draw(1, 9)),
    (aten.mm.default, draw(70, 5).t(), draw(9, 70).t()),
    (aten.mm.default, whole(5, 7), whole(7, 4)),
    (aten.bmm.default, draw(3, 5, 7), draw(3, 7, 9)),
    (aten.addmm.default, draw(9), draw(5, 7), draw(7, 9)),
    (aten.addmm.default, draw(5, 1), draw(5, 7), draw(7, 9)),
    (aten.baddbmm.default, draw(5, 9), draw(3, 5, 7), draw(3, 7, 9)),
    (aten.addbmm.default, draw(5, 9), draw(3, 5, 7), draw(3, 7, 9)),
    (aten.mv.default, draw(5, 7), draw(7)),
    (aten.addmv.default, draw(5), draw(5, 7), draw(7)),
    (aten.dot.default, draw(70), draw(70, seed=3)),
    (aten.addr.default, draw(5, 7), draw(5), draw(7)),
    (aten.matmul.default, draw(2, 1, 5, 7), draw(3, 7, 4)),
    (aten.matmul.default, draw(7), draw(3, 7, 4)),
    (aten.matmul.default, draw(2, 5, 7), draw(7)),
    (aten.linear.default, draw(2, 3, 7), draw(5, 7), draw(5)),
    (aten.linear.default, draw(7), draw(5, 7)),
    (aten.kron.default, draw(2, 3), draw(3, 2, 2)),
    (aten.inner.default, draw(2, 3, 5), draw(4, 5)),
]


@pytest.mark.parametrize("call", PRODUCTS, ids=lambda call: str(call[0]))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_products_are_torch_s(call: tuple[Any, ...], dtype: torch.dtype) -> None:
    op, *args = call
    check(op, *[a.to(dtype) if a.is_floating_point() else a for a in args], tolerance=2.0)


def test_factors_of_a_product() -> None:
    args = (draw(5, 9), draw(5, 7), draw(7, 9))
    check(aten.addmm.default, *args, beta=0.5, alpha=-2.0, tolerance=2.0)
    check(aten.addmm.default, args[0] * float("nan"), *args[1:], beta=0, tolerance=2.0)


def test_a_factor_of_zero_given_at_launch_leaves_nothing() -> None:
    args = (draw(5, 9) * float("nan"), draw(5, 7), draw(7, 9))
    got, dtypes = lowered(aten.addmm.default, args, {"beta": 0.0, "alpha": 2.0}, scalars=True)
    compare("addmm", got, dtypes, [args[1] @ args[2] * 2], 2.0)


def test_products_of_8_bits() -> None:
    x, y = whole(17, 32, low=-128, high=128).to(torch.int8), whole(32, 8, low=-9).to(torch.int8)
    got, dtypes = lowered(aten._int_mm.default, [x, y])
    compare("_int_mm", got, dtypes, [x.int() @ y.int()])
    check(aten.mm.default, x, y)


@pytest.mark.parametrize("rowwise", [False, True])
def test_scaled_products_of_fp8(rowwise: bool) -> None:
    x, y = draw(16, 32).to(torch.float8_e4m3fn), draw(32, 16).to(torch.float8_e4m3fn)
    a = draw(16, 1).abs() if rowwise else torch.tensor(0.5)
    c = draw(1, 16).abs() if rowwise else torch.tensor(2.0)
    b = GraphBuilder("scaled")
    views = [
        b.input(n, t.shape, str(t.dtype).removeprefix("torch."))
        for n, t in zip("xyac", (x, y, a, c), strict=True)
    ]
    out = lower_op(b, "aten._scaled_mm.default", views, {"out_dtype": "float32"})
    assert isinstance(out, View)
    tensor = b.output(out)
    assert tensor is not None
    values = {n: t.float().numpy() for n, t in zip("xyac", (x, y, a, c), strict=True)}
    found = interpret(b.graph, values)[tensor.name]
    torch.testing.assert_close(torch.from_numpy(found), x.float() @ y.float() * a * c)


def test_shared_weights_are_not_copied() -> None:
    """A batch that the right side lacks is no dim of it."""
    b = GraphBuilder("linear")
    x, w = b.input("x", (4, 3, 64), "float16"), b.input("w", (128, 64), "float16")
    lower_op(b, "aten.linear.default", [x, w])
    product, rounding = b.graph.ops
    assert (product.kind, rounding.kind) == (OpKind.MATMUL, OpKind.MAP)
    assert product.inputs[1].tensor is w.tensor


CONVOLUTIONS: list[tuple[Any, ...]] = [
    # x, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    (draw(2, 3, 9, 8), draw(4, 3, 3, 2), draw(4), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    (draw(2, 3, 9, 8), draw(4, 3, 1, 1), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    (draw(2, 3, 9, 8), draw(4, 3, 3, 3), None, [2, 1], [1, 2], [1, 2], False, [0, 0], 1),
    (draw(2, 6, 9, 8), draw(4, 3, 3, 3), draw(4), [2, 2], [1, 1], [1, 1], False, [0, 0], 2),
    (draw(2, 6, 9, 8), draw(12, 1, 3, 3), draw(12), [1, 1], [1, 1], [1, 1], False, [0, 0], 6),
    (draw(2, 3, 20), draw(4, 3, 5), draw(4), [3], [2], [1], False, [0], 1),
    (draw(1, 2, 5, 6, 7), draw(3, 2, 2, 3, 2), draw(3), [1, 2, 1], [1, 1, 0], [1, 1, 2], False,
     [0, 0, 0], 1),
    (draw(2, 3, 5, 6), draw(3, 4, 3, 3), draw(4), [2, 2], [1, 0], [1, 1], True, [1, 0], 1),
    (draw(2, 6, 5, 6), draw(6, 2, 3, 2), draw(4), [2, 3], [0, 1], [2, 1], True, [1, 2], 2),
    (draw(2, 3, 11), draw(3, 2, 4), None, [1], [2], [1], True, [0], 1),
]  # fmt: skip


@pytest.mark.parametrize("call", CONVOLUTIONS, ids=lambda c: f"{list(c[1].shape)}x{c[8]}")
def test_convolutions_are_torch_s(call: tuple[Any, ...]) -> None:
    check(aten.convolution.default, *call, tolerance=8.0)
    halves = [t.half() if isinstance(t, torch.Tensor) else t for t in call]
    check(aten.convolution.default, *halves, tolerance=2.0)


@pytest.mark.parametrize("call", CONVOLUTIONS, ids=lambda c: f"{list(c[1].shape)}x{c[8]}")
def test_gradients_of_convolutions(call: tuple[Any, ...]) -> None:
    x, weight, _, *rest = call
    out = aten.convolution.default(x, weight, None, *rest)
    bias = [out.shape[1]]
    check(
        aten.convolution_backward.default, draw(*out.shape), x, weight, bias, *rest,
        [True, True, True], tolerance=20.0,
    )  # fmt: skip


def test_a_kernel_of_one_needs_no_copy() -> None:
    b = GraphBuilder("conv")
    x, w = b.input("x", (2, 64, 8, 8), "float16"), b.input("w", (64, 64, 1, 1), "float16")
    lower_op(b, "aten.convolution.default", [x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1])
    assert [op.kind for op in b.graph.ops] == [OpKind.MATMUL, OpKind.MAP]
