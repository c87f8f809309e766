"""Activation functions and their gradients, elementwise, in float32 inside.

Numbers such as slopes and thresholds may come with the launch (`Scalar`): they are operands of the
body like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.lower.promote import (
    FLOATS,
    INTEGERS,
    is_float,
    pointwise,
    pointwise_many,
    refuse,
    result_type,
)
from openspyre.compiler.lower.registry import constant, entry, lowers, resolves
from openspyre.compiler.view import NeedsCopy, View
from openspyre.program import body as f
from openspyre.program.body import Reg

_SQRT_HALF = math.sqrt(0.5)
_DENSITY = 1.0 / math.sqrt(2.0 * math.pi)


def _floats(b: GraphBuilder, function: Callable[..., Reg], self: View, *more: Any) -> View:
    """A function of floats (and further operands) in the dtype of `self`."""
    refuse(b.operation, self.dtype, FLOATS)
    return pointwise(b, function, [self, *more], self.dtype)


def _real(b: GraphBuilder, function: Callable[..., Reg], self: View, *more: Any) -> View:
    """The same for floats and integers."""
    refuse(b.operation, self.dtype, (*FLOATS, *INTEGERS))
    return pointwise(b, function, [self, *more], self.dtype)


def _grad(b: GraphBuilder, function: Callable[..., Reg], grad: View, *more: Any) -> View:
    """A gradient: computed in the common dtype of the tensors."""
    dtype = result_type(grad, *(m for m in more if isinstance(m, View)))
    refuse(b.operation, dtype, (*FLOATS, *INTEGERS))
    return pointwise(b, function, [grad, *more], dtype)


# --- without parameters


@lowers("aten.relu")
def relu(b: GraphBuilder, self: View) -> View:
    return _real(b, lambda x: f.relu(x) if x.type == "f" else f.maximum(x, 0), self)


@lowers("aten.relu6")
def relu6(b: GraphBuilder, self: View) -> View:
    return _real(b, lambda x: f.minimum(f.maximum(x, 0), 6), self)


@lowers("aten.silu")
def silu(b: GraphBuilder, self: View) -> View:
    return _floats(b, f.silu, self)


@lowers("aten.mish")
def mish(b: GraphBuilder, self: View) -> View:
    return _floats(b, f.mish, self)


@lowers("aten.gelu")
def gelu(b: GraphBuilder, self: View, approximate: str = "none") -> View:
    return _floats(b, f.gelu_tanh if approximate == "tanh" else f.gelu, self)


def _hard_gate(x: Reg) -> Reg:
    return f.minimum(f.maximum(x + 3.0, 0.0), 6.0)


@lowers("aten.hardswish")
def hardswish(b: GraphBuilder, self: View) -> View:
    return _floats(b, lambda x: x * _hard_gate(x) / 6.0, self)


@lowers("aten.hardsigmoid")
def hardsigmoid(b: GraphBuilder, self: View) -> View:
    return _floats(b, lambda x: _hard_gate(x) / 6.0, self)


@lowers("aten.log_sigmoid_forward")
def log_sigmoid_forward(b: GraphBuilder, self: View) -> tuple[View, ...]:
    """(log sigmoid, the buffer exp(-|x|) that the CPU's gradient uses)."""
    refuse(b.operation, self.dtype, FLOATS)

    def body(x: Reg) -> tuple[Reg, ...]:
        z = f.exp(-abs(x))
        return f.minimum(x, 0.0) - f.log1p(z), z

    return pointwise_many(b, body, [self], self.dtype, (self.dtype, self.dtype))


@lowers("aten.log_sigmoid")
def log_sigmoid(b: GraphBuilder, self: View) -> View:
    return _floats(b, lambda x: f.minimum(x, 0.0) - f.log1p(f.exp(-abs(x))), self)


# --- with parameters


@lowers("aten.hardtanh")
def hardtanh(b: GraphBuilder, self: View, min_val: Any = -1, max_val: Any = 1) -> View:
    return _real(b, lambda x, low, high: f.minimum(f.maximum(x, low), high), self, min_val, max_val)


@lowers("aten.leaky_relu")
def leaky_relu(b: GraphBuilder, self: View, negative_slope: Any = 0.01) -> View:
    return _floats(b, lambda x, slope: f.where(x > 0, x, x * slope), self, negative_slope)


@lowers("aten._prelu_kernel")
def prelu_kernel(b: GraphBuilder, self: View, weight: View) -> View:
    return _floats(b, lambda x, w: f.where(x > 0, x, x * w), self, weight)


def _elu(b: GraphBuilder, self: View, alpha: Any, scale: Any, input_scale: Any) -> View:
    def body(x: Reg, a: Reg, s: Reg, i: Reg) -> Reg:
        return f.where(x <= 0, f.expm1(x * i) * (a * s), x * s)

    return _floats(b, body, self, alpha, scale, input_scale)


@lowers("aten.elu")
def elu(b: GraphBuilder, self: View, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> View:
    return _elu(b, self, alpha, scale, input_scale)


@lowers("aten.selu")
def selu(b: GraphBuilder, self: View) -> View:
    return _elu(b, self, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1)


@lowers("aten.celu")
def celu(b: GraphBuilder, self: View, alpha: Any = 1) -> View:
    return _floats(b, lambda x, a: f.where(x <= 0, f.expm1(x / a) * a, x), self, alpha)


@lowers("aten.softplus")
def softplus(b: GraphBuilder, self: View, beta: Any = 1, threshold: Any = 20) -> View:
    def body(x: Reg, scale: Reg, limit: Reg) -> Reg:
        scaled = x * scale
        return f.where(scaled > limit, x, f.softplus(scaled) / scale)

    return _floats(b, body, self, beta, threshold)


@lowers("aten.threshold")
def threshold(b: GraphBuilder, self: View, threshold: Any, value: Any) -> View:
    return _real(b, lambda x, t, v: f.where(x <= t, v, x), self, threshold, value)


@lowers("aten.softshrink")
def softshrink(b: GraphBuilder, self: View, lambd: Any = 0.5) -> View:
    def body(x: Reg, limit: Reg) -> Reg:
        return f.where(x > limit, x - limit, f.where(x < -limit, x + limit, x * 0.0))

    return _floats(b, body, self, lambd)


@lowers("aten.hardshrink")
def hardshrink(b: GraphBuilder, self: View, lambd: Any = 0.5) -> View:
    def body(x: Reg, limit: Reg) -> Reg:
        return f.where((x >= -limit) & (x <= limit), x.like(0.0), x)

    return _floats(b, body, self, lambd)


@lowers("aten.logit", "aten.special_logit")
def logit(b: GraphBuilder, self: View, eps: Any = None) -> View:
    dtype = self.dtype if is_float(self.dtype) else "float32"

    def body(x: Reg, *bound: Reg) -> Reg:
        for low in bound:
            high = low.like(1.0) - low
            x = f.where(x < low, low, f.where(x > high, high, x))
        return f.log(x / (x.like(1.0) - x))

    return pointwise(b, body, [self] if eps is None else [self, eps], dtype)


@lowers("aten.rrelu_with_noise_functional")
def rrelu_with_noise(
    b: GraphBuilder,
    self: View,
    noise: View,
    lower: Any = 0.125,
    upper: Any = 1 / 3,
    training: bool = False,
) -> tuple[View, View]:
    """(output, noise as it was): of evaluation only."""
    if training:
        raise Unsupported(b.operation, "training=True", "random slopes are drawn on the host")
    return _leaky_between(b, self, lower, upper), noise


def _leaky_between(b: GraphBuilder, self: View, lower: Any, upper: Any) -> View:
    def body(x: Reg, low: Reg, high: Reg) -> Reg:
        return f.where(x > 0, x, x * ((low + high) * 0.5))

    return _floats(b, body, self, lower, upper)


_FUNCTIONAL = "aten.rrelu_with_noise_functional.default"
resolves("aten.rrelu_with_noise.default", _FUNCTIONAL, {"noise": 1})
resolves("aten.rrelu_with_noise_.default", _FUNCTIONAL, {"self": 0, "noise": 1})


def halves(b: GraphBuilder, self: View, dim: int) -> tuple[View, View]:
    """The two halves of a dim."""
    dim %= self.rank
    size = self.size(dim)
    if not isinstance(size, int) or size % 2:
        raise Unsupported(b.operation, f"dim {dim} of size {size}", "must be even and known")
    try:
        return self.slice(dim, 0, size // 2), self.slice(dim, size // 2, size // 2)
    except NeedsCopy:
        return halves(b, b.contiguous(self), dim)


@lowers("aten.glu")
def glu(b: GraphBuilder, self: View, dim: int = -1) -> View:
    left, right = halves(b, self, dim)
    return _floats(b, lambda x, y: x * f.sigmoid(y), left, right)


# --- gradients


@lowers("aten.threshold_backward")
def threshold_backward(b: GraphBuilder, grad: View, self: View, threshold: Any) -> View:
    return _grad(b, lambda g, x, t: f.where(x <= t, g.like(0), g), grad, self, threshold)


@lowers("aten.sigmoid_backward")
def sigmoid_backward(b: GraphBuilder, grad: View, output: View) -> View:
    return _grad(b, lambda g, y: g * (y.like(1.0) - y) * y, grad, output)


@lowers("aten.tanh_backward")
def tanh_backward(b: GraphBuilder, grad: View, output: View) -> View:
    return _grad(b, lambda g, y: g * (y.like(1.0) - y * y), grad, output)


@lowers("aten.silu_backward")
def silu_backward(b: GraphBuilder, grad: View, self: View) -> View:
    def body(g: Reg, x: Reg) -> Reg:
        gate = f.sigmoid(x)
        return g * gate * (x * (x.like(1.0) - gate) + 1.0)

    return _grad(b, body, grad, self)


@lowers("aten.mish_backward")
def mish_backward(b: GraphBuilder, grad: View, self: View) -> View:
    def body(g: Reg, x: Reg) -> Reg:
        t = f.tanh(f.softplus(x))
        return g * (t + x * f.sigmoid(x) * (t.like(1.0) - t * t))

    return _grad(b, body, grad, self)


def _gelu_slope(x: Reg) -> Reg:
    return (f.erf(x * _SQRT_HALF) + 1.0) * 0.5 + x * f.exp(x * x * -0.5) * _DENSITY


def _gelu_tanh_slope(x: Reg) -> Reg:
    beta, kappa = math.sqrt(2.0) * 2.0 / math.sqrt(math.pi) * 0.5, 0.044715
    t = f.tanh((x + x * x * x * kappa) * beta)
    inner = (x * x * (3.0 * kappa) + 1.0) * beta
    return (t + 1.0) * 0.5 + x * 0.5 * (t.like(1.0) - t * t) * inner


@lowers("aten.gelu_backward")
def gelu_backward(b: GraphBuilder, grad: View, self: View, approximate: str = "none") -> View:
    slope = _gelu_tanh_slope if approximate == "tanh" else _gelu_slope
    return _grad(b, lambda g, x: g * slope(x), grad, self)


@lowers("aten.infinitely_differentiable_gelu_backward")
def gelu_backward_again(b: GraphBuilder, grad: View, self: View) -> View:
    return gelu_backward(b, grad, self)


@lowers("aten.softplus_backward")
def softplus_backward(b: GraphBuilder, grad: View, self: View, beta: Any, threshold: Any) -> View:
    def body(g: Reg, x: Reg, scale: Reg, limit: Reg) -> Reg:
        scaled = x * scale
        return f.where(scaled > limit, g, g * f.sigmoid(scaled))

    return _grad(b, body, grad, self, beta, threshold)


@lowers("aten.hardtanh_backward")
def hardtanh_backward(b: GraphBuilder, grad: View, self: View, min_val: Any, max_val: Any) -> View:
    def body(g: Reg, x: Reg, low: Reg, high: Reg) -> Reg:
        return f.where((x <= low) | (x >= high), g.like(0), g)

    return _grad(b, body, grad, self, min_val, max_val)


@lowers("aten.hardswish_backward")
def hardswish_backward(b: GraphBuilder, grad: View, self: View) -> View:
    def body(g: Reg, x: Reg) -> Reg:
        middle = g * (x / 3.0 + 0.5)
        return f.where(x <= -3.0, g.like(0.0), f.where(x < 3.0, middle, g))

    return _grad(b, body, grad, self)


@lowers("aten.hardsigmoid_backward")
def hardsigmoid_backward(b: GraphBuilder, grad: View, self: View) -> View:
    def body(g: Reg, x: Reg) -> Reg:
        return f.where((x > -3.0) & (x < 3.0), g * (1.0 / 6.0), g.like(0.0))

    return _grad(b, body, grad, self)


@lowers("aten.leaky_relu_backward")
def leaky_relu_backward(
    b: GraphBuilder, grad: View, self: View, negative_slope: Any, self_is_result: bool = False
) -> View:
    return _grad(b, lambda g, x, s: f.where(x > 0, g, g * s), grad, self, negative_slope)


@lowers("aten._prelu_kernel_backward")
def prelu_kernel_backward(
    b: GraphBuilder, grad: View, self: View, weight: View
) -> tuple[View, ...]:
    def body(g: Reg, x: Reg, w: Reg) -> tuple[Reg, ...]:
        return f.where(x > 0, g, g * w), f.where(x > 0, g.like(0.0), g * x)

    dtype = result_type(grad, self, weight)
    return pointwise_many(b, body, [grad, self, weight], dtype, (dtype, dtype))


@lowers("aten.elu_backward")
def elu_backward(
    b: GraphBuilder,
    grad: View,
    alpha: Any,
    scale: Any,
    input_scale: Any,
    is_result: bool,
    self_or_result: View,
) -> View:
    def body(g: Reg, x: Reg, a: Reg, s: Reg, i: Reg) -> Reg:
        low = g * i * (x + a * s) if is_result else g * i * (a * s) * f.exp(x * i)
        return f.where(x <= 0, low, g * s)

    return _grad(b, body, grad, self_or_result, alpha, scale, input_scale)


@lowers("aten.hardshrink_backward", "aten.softshrink_backward")
def shrink_backward(b: GraphBuilder, grad: View, self: View, lambd: Any) -> View:
    def body(g: Reg, x: Reg, limit: Reg) -> Reg:
        return f.where((x >= -limit) & (x <= limit), g.like(0.0), g)

    return _grad(b, body, grad, self, lambd)


@lowers("aten.log_sigmoid_backward")
def log_sigmoid_backward(b: GraphBuilder, grad: View, self: View, buffer: View) -> View:
    return _grad(b, lambda g, x: g * f.sigmoid(-x), grad, self)


@lowers("aten.logit_backward")
def logit_backward(b: GraphBuilder, grad: View, self: View, eps: Any = None) -> View:
    def body(g: Reg, x: Reg, *bound: Reg) -> Reg:
        low = bound[0] if bound else x.like(0.0)
        outside = (x < low) | (x > low.like(1.0) - low)
        other = x.like(0.0) if bound else x.like(math.nan)
        return f.where(outside, other, g / (x * (x.like(1.0) - x)))

    return _grad(b, body, grad, self, *([] if eps is None else [eps]))


@lowers("aten.rrelu_with_noise_backward")
def rrelu_with_noise_backward(
    b: GraphBuilder,
    grad: View,
    self: View,
    noise: View,
    lower: Any,
    upper: Any,
    training: bool,
    self_is_result: bool,
) -> View:
    if training and constant(upper, "upper") - constant(lower, "lower") > 1e-6:
        return _grad(b, lambda g, n: g * n, grad, noise)

    def body(g: Reg, x: Reg, low: Reg, high: Reg) -> Reg:
        return f.where(x > 0, g, g * ((low + high) * 0.5))

    return _grad(b, body, grad, self, lower, upper)


@lowers("aten.native_dropout_backward")
def native_dropout_backward(b: GraphBuilder, grad: View, mask: View, scale: Any) -> View:
    def body(g: Reg, m: Reg, s: Reg) -> Reg:
        return g * f.cast(m, "f") * s

    return pointwise(b, body, [grad, mask, scale], grad.dtype, own=[1])


@lowers("aten.glu_backward")
def glu_backward(b: GraphBuilder, grad: View, self: View, dim: int) -> View:
    left, right = halves(b, self, dim)

    def body(g: Reg, x: Reg, y: Reg) -> tuple[Reg, ...]:
        gate = f.sigmoid(y)
        return g * gate, g * gate * (gate.like(1.0) - gate) * x

    parts = pointwise_many(b, body, [grad, left, right], self.dtype, (self.dtype, self.dtype))
    cat = entry("aten.cat.default")
    if cat is None:
        raise Unsupported(b.operation, "the gradient", "needs the lowering of aten.cat")
    found = cat.function(b, list(parts), dim)
    assert isinstance(found, View)
    return found
