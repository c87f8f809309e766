"""Random views and graphs for the compiler's tests: what they compute is known from NumPy.

A helper module; the strategies draw through `data.draw` of hypothesis.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from openspyre.compiler.view import NeedsCopy, View

Array = np.ndarray[Any, Any]


def elements(view: View, data: Array) -> Array:
    """The elements that `view` shows of `data`, in its shape."""
    names = [name for name, _ in view.factors]
    sizes = [int(str(size)) for _, size in view.factors]
    assert names == [name for dim in view.dims for name in dim], "factors stand in order of dims"
    grid = dict(zip(names, np.indices(sizes), strict=True)) if names else {}
    at: list[Array] = []
    for index in view.index:
        total = np.full(sizes, int(str(index.offset)))
        for label, c in index.terms:
            total = total + grid[label] * int(str(c))
        assert not total.size or 0 <= total.min() <= total.max() < data.shape[len(at)]
        at.append(total)
    shown = np.broadcast_to(data[tuple(at)], sizes)
    return shown.reshape([int(str(s)) for s in view.shape])


def splits(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def reshaped(draw: Any, n: int) -> list[int]:
    """A random shape of n elements."""
    out: list[int] = []
    while n > 1 and len(out) < 4:
        part = draw(st.sampled_from(splits(n)))
        out.append(part)
        n //= part
    return [*out, n]


def step(draw: Any, view: View, now: Array) -> tuple[View, Array]:
    """One random view operation on both."""
    rank = now.ndim
    kinds = ["unsqueeze", "reshape", "expand", "permute"]
    if rank:
        kinds += ["slice", "select", "flip", "squeeze", "unfold"]
    if rank > 1:
        kinds += ["transpose", "diagonal"]
    kind = draw(st.sampled_from(kinds))
    dim = draw(st.integers(0, max(rank - 1, 0)))
    if kind == "unsqueeze":
        at = draw(st.integers(0, rank))
        return view.unsqueeze(at), np.expand_dims(now, at)
    if kind == "reshape":
        shape = reshaped(draw, now.size)
        return view.reshape(shape), now.reshape(shape)
    if kind == "expand":
        sizes = [draw(st.sampled_from([2, 3])) if n == 1 else n for n in now.shape]
        if draw(st.booleans()):
            sizes = [2, *sizes]
        return view.expand(sizes), np.broadcast_to(now, sizes)
    if kind == "permute":
        order = draw(st.permutations(range(rank)))
        return view.permute(order), np.transpose(now, order)
    if kind == "transpose":
        other = draw(st.integers(0, rank - 1))
        return view.transpose(dim, other), np.swapaxes(now, dim, other)
    if kind == "squeeze":
        if now.shape[dim] != 1:
            assert view.squeeze(dim) is view
            return view, now
        return view.squeeze(dim), now.squeeze(dim)
    if kind == "flip":
        return view.flip(dim), np.flip(now, dim)
    size = now.shape[dim]
    if kind == "select":
        at = draw(st.integers(0, size - 1))
        return view.select(dim, at), np.take(now, at, dim)
    if kind == "slice":
        start, by = draw(st.integers(0, size - 1)), draw(st.integers(1, 3))
        length = draw(st.integers(1, (size - start - 1) // by + 1))
        taken = np.take(now, np.arange(length) * by + start, dim)
        return view.slice(dim, start, length, by), taken
    if kind == "unfold":
        window, by = draw(st.integers(1, size)), draw(st.integers(1, 3))
        shown = np.lib.stride_tricks.sliding_window_view(now, window, dim)
        taken = np.take(shown, np.arange(0, size - window + 1, by), dim)
        return view.unfold(dim, window, by), taken
    other = draw(st.integers(0, rank - 1).filter(lambda d: d != dim))
    offset = draw(st.integers(1 - now.shape[dim], now.shape[other] - 1))
    return view.diagonal(offset, dim, other), np.diagonal(now, offset, dim, other)


def chain(draw: Any, view: View, now: Array, most: int = 4) -> tuple[View, Array]:
    """A few random view operations on both, those left out that need a copy."""
    for _ in range(draw(st.integers(0, most))):
        try:
            made, then = step(draw, view, now)
        except NeedsCopy:
            continue
        if then.size <= 2000 and then.ndim <= 6:
            view, now = made, then
    return view, now
