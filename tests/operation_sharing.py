"""Calls whose operands share memory: windows that overlap, and parts of one tensor that are read
and written in the same sticks. A helper module of operation_fuzz.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from operation_cases import ALL, FLOATS, MOST, NUMBERS, At, Case, Draw, Operand
from torch import Tensor


def windows(d: Draw) -> Case:
    """What is read overlaps itself: windows, diagonals, rows that repeat."""
    shape = d.shape(d.rng.randint(1, 4), most=MOST // 4)
    strides = [d.of((0, 1, 1, 2, 3, 33, 64, 65)) for _ in shape]
    offset = d.of((0, 1, 31, 64))
    dtype = d.of(ALL)
    if not all(shape):
        strides = [1 for _ in shape]
    last = offset + sum(max(n - 1, 0) * s for n, s in zip(shape, strides, strict=True))
    step = ("as_strided", (tuple(shape), tuple(strides), offset))
    d.operands.append(Operand(dtype, (last + 1,), (step,), "small", d.seed()))
    x, dim = At(0), d.dim(len(shape))
    more: dict[str, Any] = {"strides": False}
    calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "clone": (torch.clone, ()),
        "equal": (torch.eq, (1,)),
        "flip": (torch.flip, ([dim],)),
        "cat": (lambda t, dim: torch.cat([t, t], dim), (dim,)),
        "sort": (lambda t, dim: torch.sort(t, dim=dim, stable=True), (dim,)),
        "roll": (torch.roll, (1, dim)),
        "to": (lambda t: t.to(torch.float32), ()),
        "any": (torch.any, (dim,)),
        "transposed": (lambda t, dim: t.transpose(0, dim).contiguous(), (dim,)),
    }
    if dtype is not torch.bool:
        calls |= {
            "add": (torch.add, (1,)),
            "double": (lambda t: t + t.flip(0), ()),
            "sum": (torch.sum, (dim,)),
            "amax": (torch.amax, (dim,)),
            "cumsum": (torch.cumsum, (dim,)),
        }
    if dtype in FLOATS:
        calls |= {"softmax": (torch.softmax, (dim,)), "mean": (torch.mean, (dim,))}
        if len(shape) > 1 and math.prod(shape) * shape[-1] <= 20 * MOST:
            calls["matmul"] = (lambda t: t @ t.mT, ())
            more["product"] = True
    name = d.of(sorted(calls))
    function, args = calls[name]
    if name == "softmax":
        more["absolute"] = 1.0
    return d.case(
        f"windows {name}", function, x, *args,
        sums=name in ("sum", "cumsum", "mean", "matmul"), **more,
    )  # fmt: skip


def _swapped(a: Tensor, b: Tensor, c: Tensor, dim: int) -> Any:
    held = a.clone()
    a.copy_(b)
    b.copy_(held)


def _normalised(a: Tensor, b: Tensor, c: Tensor, dim: int) -> Any:
    a.sub_(a.amax(dim, keepdim=True))


def _chosen(a: Tensor, b: Tensor, c: Tensor, dim: int) -> Any:
    c.copy_(torch.where(b > 0, a, b))


SHARED: dict[str, Callable[[Tensor, Tensor, Tensor, int], Any]] = {
    "add_": lambda a, b, c, dim: a.add_(b),
    "sub_": lambda a, b, c, dim: b.sub_(c),
    "copy_": lambda a, b, c, dim: a.copy_(c),
    "copy_ flipped": lambda a, b, c, dim: b.copy_(a.flip(dim)),
    "add out": lambda a, b, c, dim: torch.add(a, b, out=c),
    "maximum out": lambda a, b, c, dim: torch.maximum(c, b, out=a),
    "cumsum out": lambda a, b, c, dim: torch.cumsum(a, dim, out=c),
    "amax out": lambda a, b, c, dim: torch.amax(a, dim, keepdim=True, out=c.narrow(dim, 0, 1)),
    "fill_": lambda a, b, c, dim: b.fill_(3),
    "masked_fill_": lambda a, b, c, dim: a.masked_fill_(b > 0, 2),
    "index_fill_": lambda a, b, c, dim: c.index_fill_(
        dim, torch.zeros(1, dtype=torch.int64, device=c.device), 5
    ),
    "gather out": lambda a, b, c, dim: c.copy_(torch.gather(a, dim, torch.zeros_like(b).long())),
    "swapped": _swapped,
    "normalised": _normalised,
    "chosen": _chosen,
}


def shared(d: Draw) -> Case:
    """Three parts of one tensor along a dim, one behind the other or interleaved: a call reads some
    and writes one. The whole tensor is the result."""
    shape = d.shape(d.rng.randint(1, 4), most=MOST // 4)
    shape = [max(n, 1) for n in shape]
    axis, dim = d.dim(len(shape)), d.dim(len(shape))
    n = shape[axis]
    shape[axis] = 3 * n
    dtype = d.of(NUMBERS)
    base = At(d.operand(shape, dtype, "small", written=True))
    interleaved = d.chance(0.5)
    name = d.of(sorted(SHARED))

    def parts(t: Tensor) -> Sequence[Tensor]:
        if interleaved:
            t = t.transpose(0, axis)
            return [t[k::3].transpose(0, axis) for k in range(3)]
        return [t.narrow(axis, k * n, n) for k in range(3)]

    def call(t: Tensor, axis: int, interleaved: bool) -> list[Tensor]:
        a, b, c = parts(t)
        SHARED[name](a, b, c, dim)
        return []

    return d.case(
        f"shared {name}", call, base, axis, interleaved, written=True, sums=name == "cumsum out"
    )
