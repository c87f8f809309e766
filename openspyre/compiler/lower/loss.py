"""Losses that reach the dispatcher as one operation, and their gradients.

`reduction`: 0 none, 1 mean, 2 sum. The reduced loss is summed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.lower.decompose import lower_by_decomposition
from openspyre.compiler.lower.promote import (
    FLOATS,
    computable,
    pointwise,
    refuse,
    result_type,
    size_register,
)
from openspyre.compiler.lower.reduce import combined, divided, stored
from openspyre.compiler.lower.registry import lowers, overload
from openspyre.compiler.sizes import Size
from openspyre.compiler.view import View
from openspyre.program import body as f
from openspyre.program.body import Reg
from openspyre.program.ops import Combine

NONE, MEAN, SUM = 0, 1, 2


def _reduced(b: GraphBuilder, losses: View, reduction: int, dtype: str) -> View:
    """Losses in float32 to the result."""
    if reduction == NONE:
        return stored(b, losses, dtype)
    (total,) = combined(b, Combine.SUM, losses, list(range(losses.rank)))
    return divided(b, total, losses.numel, dtype) if reduction == MEAN else stored(b, total, dtype)


def _loss(
    b: GraphBuilder, function: Callable[..., Reg], operands: Sequence[Any], reduction: int
) -> View:
    dtype = result_type(*(o for o in operands if isinstance(o, View)))
    refuse(b.operation, dtype, FLOATS)
    losses = pointwise(b, function, operands, dtype, dtype if reduction == NONE else "float32")
    return _reduced(b, losses, reduction, dtype)


def _loss_grad(
    b: GraphBuilder,
    function: Callable[..., Reg],
    grad: View,
    operands: Sequence[Any],
    reduction: int,
    count: Size,
) -> View:
    """grad * function(operands), divided by `count` for a mean."""
    dtype = result_type(*(o for o in operands if isinstance(o, View)))
    refuse(b.operation, dtype, FLOATS)

    def body(g: Reg, *rest: Reg) -> Reg:
        slope = function(*rest)
        if reduction == MEAN:
            slope = slope / f.cast(size_register(slope, count), "f")
        return slope * g

    return pointwise(b, body, [grad, *operands], dtype)


# --- between two tensors


@lowers("aten.mse_loss")
def mse_loss(b: GraphBuilder, self: View, target: View, reduction: int = MEAN) -> View:
    return _loss(b, lambda x, y: (x - y) * (x - y), [self, target], reduction)


@lowers("aten.mse_loss_backward")
def mse_loss_backward(
    b: GraphBuilder, grad: View, self: View, target: View, reduction: int
) -> View:
    return _loss_grad(
        b, lambda x, y: (x - y) * 2.0, grad, [self, target], reduction, self.numel
    )  # fmt: skip


@lowers("aten.l1_loss")
def l1_loss(b: GraphBuilder, self: View, target: View, reduction: int = MEAN) -> View:
    return _loss(b, lambda x, y: abs(x - y), [self, target], reduction)


@lowers("aten.smooth_l1_loss")
def smooth_l1_loss(
    b: GraphBuilder, self: View, target: View, reduction: int = MEAN, beta: Any = 1.0
) -> View:
    def body(x: Reg, y: Reg, limit: Reg) -> Reg:
        z = abs(x - y)
        return f.where(z < limit, z * 0.5 * z / limit, z - limit * 0.5)

    return _loss(b, body, [self, target, _number(beta)], reduction)


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, int) else value


@lowers("aten.smooth_l1_loss_backward")
def smooth_l1_loss_backward(
    b: GraphBuilder, grad: View, self: View, target: View, reduction: int, beta: Any
) -> View:
    def body(x: Reg, y: Reg, limit: Reg) -> Reg:
        z = x - y
        one = z.like(1.0)
        return f.where(z <= -limit, -one, f.where(z >= limit, one, z / limit))

    return _loss_grad(b, body, grad, [self, target, _number(beta)], reduction, self.numel)


@lowers("aten.huber_loss")
def huber_loss(
    b: GraphBuilder, self: View, target: View, reduction: int = MEAN, delta: Any = 1.0
) -> View:
    def body(x: Reg, y: Reg, limit: Reg) -> Reg:
        z = abs(x - y)
        return f.where(z <= limit, z * 0.5 * z, limit * (z - limit * 0.5))

    return _loss(b, body, [self, target, _number(delta)], reduction)


@lowers("aten.huber_loss_backward")
def huber_loss_backward(
    b: GraphBuilder, grad: View, self: View, target: View, reduction: int, delta: Any
) -> View:
    def body(x: Reg, y: Reg, limit: Reg) -> Reg:
        return f.minimum(f.maximum(x - y, -limit), limit)

    return _loss_grad(b, body, grad, [self, target, _number(delta)], reduction, self.numel)


@lowers("aten.soft_margin_loss")
def soft_margin_loss(b: GraphBuilder, self: View, target: View, reduction: int = MEAN) -> View:
    return _loss(b, lambda x, y: f.log1p(f.exp(-y * x)), [self, target], reduction)


@lowers("aten.soft_margin_loss_backward")
def soft_margin_loss_backward(
    b: GraphBuilder, grad: View, self: View, target: View, reduction: int
) -> View:
    def body(x: Reg, y: Reg) -> Reg:
        return -y * f.sigmoid(-y * x)

    return _loss_grad(b, body, grad, [self, target], reduction, self.numel)


@lowers("aten.kl_div")
def kl_div(
    b: GraphBuilder, self: View, target: View, reduction: int = MEAN, log_target: bool = False
) -> View:
    def body(x: Reg, y: Reg) -> Reg:
        if log_target:
            return f.exp(y) * (y - x)
        return f.where(f.equal(y, 0.0), y.like(0.0), y * f.log(y)) - y * x

    return _loss(b, body, [self, target], reduction)


@lowers("aten.binary_cross_entropy")
def binary_cross_entropy(
    b: GraphBuilder, self: View, target: View, weight: View | None = None, reduction: int = MEAN
) -> View:
    def body(x: Reg, y: Reg, *w: Reg) -> Reg:
        one = x.like(1.0)
        low, high = f.maximum(f.log(one - x), -100.0), f.maximum(f.log(x), -100.0)
        loss = (y - 1.0) * low - y * high
        return loss * w[0] if w else loss

    return _loss(b, body, [self, target, *([weight] if weight else [])], reduction)


@lowers("aten.binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    b: GraphBuilder,
    grad: View,
    self: View,
    target: View,
    weight: View | None = None,
    reduction: int = MEAN,
) -> View:
    def body(x: Reg, y: Reg, *w: Reg) -> Reg:
        slope = (x - y) / f.maximum((x.like(1.0) - x) * x, 1e-12)
        return slope * w[0] if w else slope

    more = [weight] if weight else []
    return _loss_grad(b, body, grad, [self, target, *more], reduction, self.numel)


@lowers("aten.binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    b: GraphBuilder,
    self: View,
    target: View,
    weight: View | None = None,
    pos_weight: View | None = None,
    reduction: int = MEAN,
) -> View:
    def body(x: Reg, y: Reg, *more: Reg) -> Reg:
        rest = list(more)
        scale = rest.pop(0) if weight else None
        # -log sigmoid(x), without overflow on either side.
        log_odds = f.log1p(f.exp(-abs(x))) + f.maximum(-x, 0.0)
        if pos_weight:
            log_odds = ((rest[0] - 1.0) * y + 1.0) * log_odds
        loss = (y.like(1.0) - y) * x + log_odds
        return loss * scale if scale is not None else loss

    more = [w for w in (weight, pos_weight) if w]
    return _loss(b, body, [self, target, *more], reduction)


# --- by class


def _picked(
    b: GraphBuilder, self: View, target: View, weight: View | None, ignore: int
) -> tuple[View, View]:
    """For scores [.., C, ..] with the class dim at 1 (0 for one sample): -weight * score of the
    target's class, and the weights, both float32 of the target's shape, 0 where ignored."""
    wide = b.copy(target, "int64") if target.dtype != "int64" else target
    safe = pointwise(
        b, lambda t: f.where(f.equal(t, ignore), t.like(0), t), [wide], "int64"
    )  # fmt: skip
    axis = 1 if self.rank > 1 else 0
    where: list[int | View] = [d if d < axis else d - 1 for d in range(self.rank)]
    where[axis] = safe
    score = b.gather(self, target.shape, where)
    weights = [b.gather(weight, target.shape, [safe])] if weight else []

    def weigh(t: Reg, *w: Reg) -> Reg:
        scale = w[0] if w else t.const("f", 1.0)
        return f.where(f.equal(t, ignore), scale.like(0.0), scale)

    scale = pointwise(b, weigh, [wide, *weights], "int64", "float32", own=[1])

    def lose(t: Reg, x: Reg, w: Reg) -> Reg:
        return f.where(f.equal(t, ignore), x.like(0.0), -x * w)

    return pointwise(b, lose, [wide, score, scale], "int64", "float32", own=[1, 2]), scale


@lowers("aten.nll_loss_forward", "aten.nll_loss2d_forward")
def nll_loss_forward(
    b: GraphBuilder,
    self: View,
    target: View,
    weight: View | None,
    reduction: int,
    ignore_index: int,
) -> tuple[View, View]:
    """(loss, total weight)."""
    refuse(b.operation, self.dtype, FLOATS)
    losses, weights = _picked(b, self, target, weight, ignore_index)
    if reduction == NONE and self.rank > 1:
        none = b.map(f.identity, 0.0, dtype=self.dtype, shape=())
        return stored(b, losses, self.dtype), none
    dims = list(range(losses.rank))
    (total,) = combined(b, Combine.SUM, losses, dims)
    (share,) = combined(b, Combine.SUM, weights, dims)
    if reduction == MEAN:
        found = pointwise(b, lambda x, w: x / w, [total, share], "float32", self.dtype)
    else:
        found = stored(b, total, self.dtype)
    return found, stored(b, share, self.dtype)


@lowers("aten.nll_loss_backward", "aten.nll_loss2d_backward")
def nll_loss_backward(
    b: GraphBuilder,
    grad_output: View,
    self: View,
    target: View,
    weight: View | None,
    reduction: int,
    ignore_index: int,
    total_weight: View,
) -> View:
    computable(b.operation, self.dtype)
    axis = 1 if self.rank > 1 else 0
    chosen = target.unsqueeze(axis)
    operands: list[View] = [chosen, total_weight]
    operands.append(grad_output.unsqueeze(axis) if grad_output.rank == target.rank else grad_output)
    if target.rank == 0 or (reduction != NONE):
        operands[2] = grad_output
    if weight:
        scale = weight
        for _ in range(self.rank - axis - 1):
            scale = scale.unsqueeze(scale.rank)
        operands.append(scale)

    def body(index: Any, t: Reg, total: Reg, g: Reg, *w: Reg) -> Reg:
        t, total, g = f.cast(t, "l"), f.cast(total, "f"), f.cast(g, "f")
        if reduction == MEAN:
            g = g / total
        value = -(g * w[0]) if w else -g
        hit = f.equal(index(axis), t) & f.not_equal(t, ignore_index)
        return f.where(hit, value, value.like(0.0))

    return b.map(body, *operands, dtype=self.dtype, shape=self.shape, indexed=True)


@lowers("aten.multilabel_margin_loss_forward")
def multilabel_margin_loss(
    b: GraphBuilder, x: View, target: View, reduction: int
) -> tuple[View, View]:
    """torch's decomposition, which keeps a dim of one sample that the operation itself drops."""
    op = overload("aten.multilabel_margin_loss_forward.default")
    loss, marks = lower_by_decomposition(b, op, [x, target, reduction])
    if reduction == 0 and x.rank < 2 and loss.rank:
        loss = loss.squeeze(0)
    return loss, marks
