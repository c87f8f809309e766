"""Random views and graphs for the compiler's tests: what they compute is known from NumPy.

A helper module; the strategies draw through `data.draw` of hypothesis.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.graph import Graph, Place
from openspyre.compiler.interpret import interpret
from openspyre.compiler.view import NeedsCopy, View
from openspyre.formats import elements_per_stick
from openspyre.program import body as f
from openspyre.program.ops import Combine

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


class Made:
    """A graph in the making with values of its arguments."""

    def __init__(self) -> None:
        self.b = GraphBuilder("test")
        self.values: dict[str, Array] = {}

    def input(self, array: Array, dtype: str, name: str = "x") -> View:
        view = self.b.input(f"{name}{len(self.values)}", array.shape, dtype)
        self.values[view.tensor.name] = array
        return view

    def numbers(
        self, shape: tuple[int, ...], dtype: str = "float32", low: int = -9
    ) -> tuple[View, Array]:
        """An input of small whole numbers, different everywhere, and its values."""
        count = int(np.prod(shape))
        array = (np.arange(count).reshape(shape) * 7) % 19 + low
        array = array.astype("float32" if dtype.startswith("f") else dtype)
        return self.input(array, dtype), array

    def drawn(self, draw: Any, dtype: str = "float32") -> tuple[View, Array]:
        """A random view of a random input."""
        shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
        return chain(draw, *self.numbers(shape, dtype))

    def value(self, view: View, **symbols: int | float) -> Array:
        """What a result is."""
        if self.b.output(view) is None:
            view = self.b.contiguous(view)
            assert self.b.output(view) is not None
        shape = [int(str(s)) for s in view.shape]
        return interpret(self.b.graph, self.values, symbols)[view.tensor.name].reshape(shape)


def place_of(shape: tuple[int, ...], dtype: str, order: tuple[int, ...] | None = None) -> Place:
    """The Place of a tensor whose dims stand in `order` (default: the card's default layout)."""
    axes = list(order if order is not None else range(len(shape)))
    if not shape:
        return Place((), -1)
    stick = axes.pop() if axes[-1] >= 0 else -1
    if stick < 0:
        axes.pop()
    strides = [0] * len(shape)
    pitch = 128
    if axes:
        strides[axes[0]] = pitch
        pitch *= shape[axes[0]]
    if stick >= 0:
        strides[stick] = pitch
        pitch *= -(-shape[stick] // elements_per_stick(dtype))
    for d in reversed(axes[1:]):
        strides[d] = pitch
        pitch *= shape[d]
    return Place(tuple(strides), stick)


class Random(Made):
    """A random graph over small whole numbers, whose results are exact in every order."""

    SIZES = (1, 2, 3, 4, 5, 6)

    def __init__(self, draw: Any, placed: bool = True, steps: int = 6, wide: bool = False) -> None:
        """`wide`: with sizes of more than one stick of float32."""
        super().__init__()
        self.sizes = (1, 2, 32, 64, 96, 70) if wide else self.SIZES
        self.draw, self.placed = draw, placed
        self.views: list[View] = []
        self.outputs: list[View] = []
        for _ in range(draw(st.integers(1, 3))):
            self.argument()
        for _ in range(draw(st.integers(1, steps))):
            kind = draw(st.sampled_from(KINDS))
            getattr(self, kind)()
        for view in self.views[-2:]:
            self.finish(view)

    @property
    def graph(self) -> Graph:
        return self.b.graph

    def argument(self) -> None:
        shape = tuple(self.draw(st.lists(st.sampled_from(self.sizes), max_size=4)))
        while int(np.prod(shape)) > 3000:
            shape = shape[1:]
        dtype = self.draw(st.sampled_from(["float32", "float16", "int32"]))
        view, _ = self.numbers(shape, dtype)
        self.put(view)
        self.views.append(view)

    def put(self, view: View) -> None:
        """Gives an argument a random place."""
        if not self.placed:
            return
        tensor = view.tensor
        shape = tuple(int(str(s)) for s in tensor.shape)
        order = self.draw(st.permutations(range(len(shape)))) if shape else ()
        if shape and not self.draw(st.integers(0, 5)):
            order = (*order, -1)
        tensor.place = place_of(shape, tensor.dtype, tuple(order))

    def some(self) -> View:
        """A random view of a random value."""
        view = self.draw(st.sampled_from(self.views))
        shape = [int(str(s)) for s in view.shape]
        found, _ = chain(self.draw, view, np.zeros(shape), 2)
        return found

    def fitting(self, shape: tuple[int, ...]) -> View:
        """A value that broadcasts to `shape`."""
        found = [v for v in self.views if broadcasts(v, shape)]
        if found and self.draw(st.booleans()):
            return self.draw(st.sampled_from(found))
        mine = tuple(n if self.draw(st.integers(0, 3)) else 1 for n in shape)
        view, _ = self.numbers(mine, self.draw(st.sampled_from(["float32", "float16"])))
        self.put(view)
        return view

    def kept(self, view: View) -> None:
        """Small again, as another operation would make it."""
        dtype = self.draw(st.sampled_from(["float32", "float16", "int32"]))
        self.views.append(
            self.b.map(
                lambda x: f.maximum(f.minimum(x, 8), -8), view, dtype=dtype,
                compute="float32" if view.dtype != "int64" else "int64",
            )
        )  # fmt: skip

    # --- steps

    def map(self) -> None:
        a = self.some()
        b = self.fitting(tuple(int(str(s)) for s in a.shape))
        indexed = a.rank > 0 and self.draw(st.integers(0, 4)) == 0
        if indexed:
            dim = self.draw(st.integers(0, a.rank - 1))
            out = self.b.map(
                lambda at, x, y: x + y + f.cast(at(dim), "f"), a, b, dtype="float32",
                compute="float32", indexed=True,
            )  # fmt: skip
        else:
            out = self.b.map(lambda x, y: x - y * 2.0, a, b, dtype="float32", compute="float32")
        self.kept(out)

    def copy(self) -> None:
        self.views.append(self.b.copy(self.some()))

    def flat(self) -> None:
        self.views.append(self.b.contiguous(self.some()))

    def widen(self) -> None:
        self.views.append(self.b.copy(self.some(), "float32"))

    def reduce(self) -> None:
        a = self.some()
        if a.rank:
            dims = sorted(self.draw(st.sets(st.integers(0, a.rank - 1), min_size=1)))
            how = self.draw(st.sampled_from([Combine.SUM, Combine.MAX, Combine.MIN]))
            (out,) = self.b.reduce(how, a, dims, compute="float32")
            self.kept(out)

    def argmax(self) -> None:
        a = self.some()
        if a.rank:
            dim = self.draw(st.integers(0, a.rank - 1))
            _, at = self.b.reduce(Combine.ARGMAX, a, [dim], compute="float32")
            self.kept(at)

    def scan(self) -> None:
        a = self.some()
        if a.rank:
            dim = self.draw(st.integers(0, a.rank - 1))
            self.kept(self.b.scan(Combine.SUM, a, dim, "float32"))

    def sort(self) -> None:
        a = self.some()
        dims = [d for d in range(a.rank) if a.size(d) != 1]
        if dims:
            values, at = self.b.sort(a, self.draw(st.sampled_from(dims)))
            self.kept(values)
            self.kept(at)

    def matmul(self) -> None:
        a = self.some()
        if a.rank >= 2:
            k = int(str(a.size(a.rank - 1)))
            n = self.draw(st.sampled_from(self.sizes))
            b, _ = self.numbers((n, k) if self.draw(st.booleans()) else (k, n), a.dtype)
            self.put(b)
            b = b if b.shape == (k, n) else b.transpose(0, 1)
            if a.dtype != "int32":
                self.kept(self.b.matmul(a, b))

    def gather(self) -> None:
        a = self.some()
        if not a.rank:
            return
        dim = self.draw(st.integers(0, a.rank - 1))
        size = int(str(a.size(dim)))
        count = self.draw(st.sampled_from(self.SIZES))
        values = self.draw(st.lists(st.integers(0, size - 1), min_size=count, max_size=count))
        index = self.input(np.array(values), "int64", "n")
        self.put(index)
        shape = [int(str(s)) for s in a.shape]
        shape[dim] = count
        where: list[Any] = list(range(a.rank))
        where[dim] = index
        for _ in range(dim + 1, a.rank):
            where[dim] = where[dim].unsqueeze(where[dim].rank)
        self.views.append(self.b.gather(a, shape, where))

    def store(self) -> None:
        found = [v for v in self.views if v.tensor.name.startswith("x")]
        target = self.draw(st.sampled_from(found))
        for d in range(target.rank):
            size = int(str(target.size(d)))
            start, by = self.draw(st.integers(0, size - 1)), self.draw(st.integers(1, 2))
            length = self.draw(st.integers(1, (size - start - 1) // by + 1))
            try:
                target = target.slice(d, start, length, by)
            except NeedsCopy:
                continue
        if target.rank and self.draw(st.integers(0, 3)) == 0:
            target = target.flip(0)
        self.b.store(target, self.fitting(tuple(int(str(s)) for s in target.shape)))

    def pieces(self) -> None:
        """A new tensor written piece by piece along a dim."""
        a = self.some()
        if not a.rank:
            return
        dim = self.draw(st.integers(0, a.rank - 1))
        shape = [int(str(s)) for s in a.shape]
        size = shape[dim]
        shape[dim] = 2 * size
        made = View.of(self.b.tensor("join", shape, a.dtype))
        self.b.store(made.slice(dim, 0, size), a)
        self.b.store(made.slice(dim, size, size), self.fitting(tuple(
            int(str(s)) for s in a.shape)))  # fmt: skip
        self.views.append(made)

    def scatter(self) -> None:
        found = [v for v in self.views if v.tensor.name.startswith("x") and v.rank]
        if not found:
            return
        target = self.draw(st.sampled_from(found))
        shape = [int(str(s)) for s in target.shape]
        count = self.draw(st.sampled_from(self.SIZES))
        values = self.draw(
            st.lists(st.integers(0, shape[0] - 1), min_size=count, max_size=count)
        )  # fmt: skip
        index = self.input(np.array(values), "int64", "n")
        self.put(index)
        for _ in range(1, target.rank):
            index = index.unsqueeze(index.rank)
        value, _ = self.numbers((count, *shape[1:]), target.dtype)
        self.put(value)
        self.b.scatter(target, value, [index, *range(1, target.rank)], add=self.draw(st.booleans()))

    def finish(self, view: View) -> None:
        """Makes a value an output."""
        out = view
        if self.b.output(view) is None:
            out = self.b.contiguous(view)
            self.b.output(out)
        self.outputs.append(out)
        if self.placed and self.draw(st.booleans()):
            self.put(out)

    def run(self) -> dict[str, Array]:
        return interpret(self.graph, self.values)


KINDS = (
    "argument", "map", "map", "map", "copy", "flat", "widen", "reduce", "argmax", "scan", "sort",
    "matmul", "gather", "store", "pieces", "scatter",
)  # fmt: skip


def broadcasts(view: View, shape: tuple[int, ...]) -> bool:
    mine = [int(str(s)) for s in view.shape]
    if len(mine) > len(shape):
        return False
    return all(a in (1, b) for a, b in zip(mine[::-1], shape[::-1], strict=False))
