"""Lowerings of convolutions of one, two and three dims, transposed ones, and their backward.

A convolution is one matrix product over windows: [N, outputs, kernel x channels] times [kernel x
channels, outputs]. The windows are a view; where the product needs its k in one dim, they are
copied with the channels innermost, so that every element of the copy is a whole run of channels.
Kernels of size 1 copy nothing. Depthwise convolutions, whose k is the kernel alone, are a map and a
reduction. A transposed convolution, and the gradient of the input, is a convolution of what is
spread out by the stride.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.lower.norms import channels
from openspyre.compiler.lower.products import exact_product, wide
from openspyre.compiler.lower.registry import lowers
from openspyre.compiler.lower.tools import cast, number, numbers, spread, summed
from openspyre.compiler.lower.windows import (
    Windows,
    cropped,
    padded,
    plain_windows,
    spatial,
    stuffed,
    windowed,
)
from openspyre.compiler.sizes import Size
from openspyre.compiler.view import View


def correlated(b: GraphBuilder, x: View, weight: View, w: Windows) -> View:
    """Windows of x [N, G*C, *S] times weight [G, O, C, *k]: float32 [N, G*O, *outputs]."""
    n, rank = w.count, x.rank
    groups, outs, inner = weight.shape[:3]
    last = x.permute([0, *range(2, rank), 1])
    dims = list(range(1, n + 1))
    view = windowed(b, padded(b, last, dims, w), dims, w)  # [N, *out, G*C, *k]
    spots = view.shape[1 : n + 1]
    view = b.reshape(view, [*view.shape[: n + 1], groups, inner, *w.kernel])
    kernel_dims = list(range(n + 3, 2 * n + 3))
    kernel_of_weight = list(range(3, n + 3))
    if inner == 1 and groups != 1:
        # [N, *out, G, 1, *k] times [G, O, *k].
        left = view.permute([*range(n + 2), n + 2, *kernel_dims])
        right = weight.permute([0, 1, *kernel_of_weight, 2]).squeeze(n + 2)
        products = b.map(
            lambda p, q: p * q, left, right, dtype=wide(x.dtype), compute=wide(x.dtype),
            shape=(*view.shape[: n + 1], groups, outs, *w.kernel),
        )  # fmt: skip
        over = list(range(products.rank - n, products.rank))
        made = summed(b, products, over)  # [N, *out, G, O]
        made = made.permute([0, n + 1, n + 2, *range(1, n + 1)])
        return b.reshape(made, [x.size(0), groups * outs, *spots])
    size = inner
    for k in w.kernel:
        size = size * k
    left = view.permute([n + 1, *range(n + 1), *kernel_dims, n + 2])
    left = plain(b, b.reshape(left, [groups, x.size(0), *spots, size]))
    right = weight.permute([0, *kernel_of_weight, 2, 1])
    right = plain(b, b.reshape(right, [groups, size, outs]))
    for _ in range(n):
        right = right.unsqueeze(1)
    made = exact_product(b, left, right)  # [G, N, *out, O]
    made = made.permute([1, 0, n + 2, *range(2, n + 2)])
    return b.reshape(made, [x.size(0), groups * outs, *spots])


def plain(b: GraphBuilder, x: View) -> View:
    """With the dims of a product each of one factor."""
    last = [d for d in (x.rank - 2, x.rank - 1) if len(x.dims[d]) > 1]
    return b.contiguous(x) if last else x


def grouped(b: GraphBuilder, weight: View, groups: int) -> View:
    """[G*A, B, *k] as [G, A, B, *k]."""
    rows = number(weight.size(0), b, "the number of channels")
    return b.reshape(weight, [groups, rows // groups, *weight.shape[1:]])


def turned(weight: View) -> View:
    """[G, A, B, *k] as [G, B, A, *k] with the kernel backwards."""
    view = weight.transpose(1, 2)
    for d in range(3, view.rank):
        view = view.flip(d)
    return view


def spread_out(
    b: GraphBuilder, x: View, weight: View, w: Windows, sizes: Sequence[int], groups: int
) -> View:
    """The transposed convolution of x [N, G*A, *outputs] by weight [G*A, B, *k]: float32
    [N, G*B, *sizes]."""
    wide = stuffed(b, x, list(range(2, x.rank)), w, sizes)
    return correlated(b, wide, turned(grouped(b, weight, groups)), plain_windows(w))


def weight_gradient(b: GraphBuilder, small: View, big: View, w: Windows, groups: int) -> View:
    """Sum over windows of small [N, G*A, *outputs] times the windows of big [N, G*B, *S]: float32
    [G*A, B, *k]."""
    n, rank = w.count, big.rank
    outs = spatial(b, small, n)
    w = w.fitted(spatial(b, big, n), outs)
    dims = list(range(1, n + 1))
    last = big.permute([0, *range(2, rank), 1])
    view = windowed(b, padded(b, last, dims, w), dims, w)  # [N, *out, G*B, *k]
    inner = number(big.size(1), b, "the number of channels") // groups
    rows = number(small.size(1), b, "the number of channels") // groups
    view = b.reshape(view, [*view.shape[: n + 1], groups, inner, *w.kernel])
    kernel_dims = list(range(n + 3, 2 * n + 3))
    points = number(small.size(0), b, "the batch's size")
    for out in outs:
        points *= out
    if inner == rows == 1 and groups != 1:
        left = small.permute([0, *range(2, rank), 1])
        for _ in range(n):
            left = left.unsqueeze(left.rank)
        right = view.squeeze(n + 2)
        products = b.map(
            lambda p, q: p * q, left, right, dtype="float32", compute="float32"
        )  # fmt: skip
        return summed(b, products, list(range(n + 1))).unsqueeze(1)
    size = inner
    for k in w.kernel:
        size = size * k
    right = view.permute([n + 1, *range(n + 1), *kernel_dims, n + 2])
    right = plain(b, b.reshape(right, [groups, points, size]))
    left = b.reshape(small, [small.size(0), groups, rows, *outs])
    left = left.permute([1, 2, 0, *range(3, n + 3)])
    left = plain(b, b.reshape(left, [groups, rows, points]))
    made = exact_product(b, left, right)  # [G, A, (k B)]
    made = b.reshape(made, [groups, rows, *w.kernel, inner])
    made = made.permute([0, 1, n + 2, *range(2, n + 2)])
    return b.reshape(made, [groups * rows, inner, *w.kernel])


@lowers("aten.convolution", "aten.convolution_overrideable")
def convolution(
    b: GraphBuilder, x: View, weight: View, bias: View | None, stride: Sequence[Size],
    padding: Sequence[Size], dilation: Sequence[Size], transposed: bool,
    output_padding: Sequence[Size], groups: Size,
) -> View:  # fmt: skip
    n = weight.rank - 2
    if x.rank == n + 1:
        made = convolution(
            b, x.unsqueeze(0), weight, bias, stride, padding, dilation, transposed,
            output_padding, groups,
        )  # fmt: skip
        return made.squeeze(0)
    kernel = numbers(weight.shape[2:], b, "a kernel's size")
    many = number(groups, b, "groups")
    w = Windows.of(b, kernel, stride, padding, dilation, n)
    if transposed:
        extra = spread(numbers(output_padding, b, "output_padding"), n) or [0] * n
        sizes = [
            (size - 1) * w.stride[d] - 2 * w.low[d] + w.reach(d) + extra[d]
            for d, size in enumerate(spatial(b, x, n))
        ]
        made = spread_out(b, x, weight, w, sizes, many)
    else:
        made = correlated(b, x, grouped(b, weight, many), w)
    if bias is None:
        return cast(b, made, x.dtype)
    along = channels(bias, made.rank)
    return b.map(lambda m, c: m + c, made, along, dtype=x.dtype, compute=made.dtype)  # type: ignore[arg-type]


@lowers("aten._convolution")
def convolution_with_flags(
    b: GraphBuilder, x: View, weight: View, bias: View | None, stride: Sequence[Size],
    padding: Sequence[Size], dilation: Sequence[Size], transposed: bool,
    output_padding: Sequence[Size], groups: Size, *flags: bool,
) -> View:  # fmt: skip
    return convolution(
        b, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    )


@lowers("aten.conv1d", "aten.conv2d", "aten.conv3d")
def conv(
    b: GraphBuilder, x: View, weight: View, bias: View | None = None, stride: Sequence[Size] = (1,),
    padding: Sequence[Size] = (0,), dilation: Sequence[Size] = (1,), groups: Size = 1,
) -> View:  # fmt: skip
    return convolution(b, x, weight, bias, stride, padding, dilation, False, [0], groups)


@lowers("aten.conv1d.padding", "aten.conv2d.padding", "aten.conv3d.padding")
def conv_named_padding(
    b: GraphBuilder, x: View, weight: View, bias: View | None = None, stride: Sequence[Size] = (1,),
    padding: str = "valid", dilation: Sequence[Size] = (1,), groups: Size = 1,
) -> View:  # fmt: skip
    n = weight.rank - 2
    if padding == "valid":
        return conv(b, x, weight, bias, stride, [0] * n, dilation, groups)
    kernel = numbers(weight.shape[2:], b, "a kernel's size")
    w = Windows.of(b, kernel, stride, [0], dilation, n)
    total = [w.reach(d) - 1 for d in range(n)]
    w = dataclasses.replace(
        w, low=tuple(t // 2 for t in total), high=tuple(t - t // 2 for t in total)
    )
    lead = 1 if x.rank == n + 1 else 2
    wide = padded(b, x, list(range(lead, lead + n)), w)
    return conv(b, wide, weight, bias, stride, [0] * n, dilation, groups)


@lowers("aten.conv_transpose1d", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input")
def conv_transpose(
    b: GraphBuilder, x: View, weight: View, bias: View | None = None, stride: Sequence[Size] = (1,),
    padding: Sequence[Size] = (0,), output_padding: Sequence[Size] = (0,), groups: Size = 1,
    dilation: Sequence[Size] = (1,),
) -> View:  # fmt: skip
    return convolution(b, x, weight, bias, stride, padding, dilation, True, output_padding, groups)


@lowers("aten.convolution_backward", "aten.convolution_backward_overrideable")
def convolution_backward(
    b: GraphBuilder, grad: View, x: View, weight: View, *rest: Any
) -> tuple[View | None, View | None, View | None]:
    """`convolution_backward` has the sizes of the bias before the stride, the overrideable one has
    not."""
    if b.operation.startswith("aten.convolution_backward_overrideable"):
        return _backward(b, grad, x, weight, *rest)
    return _backward(b, grad, x, weight, *rest[1:])


def _backward(
    b: GraphBuilder, grad: View, x: View, weight: View, stride: Sequence[Size],
    padding: Sequence[Size], dilation: Sequence[Size], transposed: bool,
    output_padding: Sequence[Size], groups: Size, output_mask: Sequence[bool],
) -> tuple[View | None, View | None, View | None]:  # fmt: skip
    n = weight.rank - 2
    kernel = numbers(weight.shape[2:], b, "a kernel's size")
    many = number(groups, b, "groups")
    w = Windows.of(b, kernel, stride, padding, dilation, n)
    sizes = spatial(b, x, n)
    g_x = g_weight = g_bias = None
    if output_mask[0]:
        if transposed:
            fitted = w.fitted(spatial(b, grad, n), sizes)
            made = correlated(b, grad, grouped(b, weight, many), fitted)
            made = cropped(b, made, list(range(2, n + 2)), sizes)
        else:
            made = spread_out(b, grad, weight, w, sizes, many)
        g_x = cast(b, made, x.dtype)
    if output_mask[1]:
        small, big = (x, grad) if transposed else (grad, x)
        g_weight = cast(b, weight_gradient(b, small, big, w, many), weight.dtype)
    if output_mask[2]:
        over = [0, *range(2, n + 2)]
        g_bias = cast(b, summed(b, cast(b, grad, "float32"), over), weight.dtype)
    return g_x, g_weight, g_bias
