"""Lowerings of operations that order elements: sorts, the k first, medians, running extremes.

Sorts are stable with NaN above everything, which is PyTorch's order.
"""

from __future__ import annotations

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.lower.registry import lowers, resolves
from openspyre.compiler.lower.tools import full, number, wrap
from openspyre.compiler.sizes import known
from openspyre.compiler.view import View
from openspyre.program import body as f
from openspyre.program.body import Reg
from openspyre.program.ops import Combine


def ordered(
    b: GraphBuilder, x: View, dim: int, descending: bool = False, k: int = 0
) -> tuple[View, View]:
    """`b.sort`, for rank 0 and dims of size 1, too."""
    if x.rank == 0 or not x.dims[dim]:
        return x, full(b, x.shape, 0, "int64")
    if x.dtype == "bool":  # truth sorts as numbers
        values, places = b.sort(b.copy(x, "int32"), dim, descending=descending, k=k)
        return b.copy(values, "bool"), places
    return b.sort(x, dim, descending=descending, k=k)


@lowers("aten.sort")
def sort(b: GraphBuilder, x: View, dim: int = -1, descending: bool = False) -> tuple[View, View]:
    return ordered(b, x, wrap(dim, x.rank), descending)


@lowers("aten.sort.stable")
def sort_stable(
    b: GraphBuilder, x: View, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[View, View]:
    return ordered(b, x, wrap(dim, x.rank), descending)


@lowers("aten.argsort")
def argsort(b: GraphBuilder, x: View, dim: int = -1, descending: bool = False) -> View:
    return ordered(b, x, wrap(dim, x.rank), descending)[1]


@lowers("aten.argsort.stable")
def argsort_stable(
    b: GraphBuilder, x: View, *, stable: bool, dim: int = -1, descending: bool = False
) -> View:
    return ordered(b, x, wrap(dim, x.rank), descending)[1]


@lowers("aten.msort")
def msort(b: GraphBuilder, x: View) -> View:
    return ordered(b, x, 0)[0]


@lowers("aten.topk")
def topk(
    b: GraphBuilder, x: View, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[View, View]:
    return ordered(b, x, wrap(dim, x.rank), largest, number(k, b, "k"))


@lowers("aten.kthvalue")
def kthvalue(
    b: GraphBuilder, x: View, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[View, View]:
    return picked(b, x, wrap(dim, x.rank), number(k, b, "k") - 1, keepdim)


def picked(b: GraphBuilder, x: View, dim: int, at: int, keepdim: bool) -> tuple[View, View]:
    """Element `at` of the sorted dim, and where it was."""
    values, places = ordered(b, x, dim)
    if x.rank == 0:
        return values, places
    values, places = (v.slice(dim, at, 1) for v in (values, places))
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


@lowers("aten.median", "aten.nanmedian")
def median(b: GraphBuilder, x: View) -> View:
    return median_dim(b, b.reshape(x, [x.numel]), 0)[0]


@lowers("aten.median.dim", "aten.nanmedian.dim")
def median_dim(b: GraphBuilder, x: View, dim: int = -1, keepdim: bool = False) -> tuple[View, View]:
    """The lower median; NaN if there is one, or without them (nanmedian)."""
    skip = "nanmedian" in b.operation
    dim = wrap(dim, x.rank)
    if x.rank == 0 or not x.dims[dim]:
        values, places = ordered(b, x, dim)
        if x.rank and not keepdim:
            values, places = values.squeeze(dim), places.squeeze(dim)
        return values, places
    size = number(x.size(dim), b, "the dim of a median")
    values, places = ordered(b, x, dim)
    if not x.dtype.startswith(("float", "bfloat")):
        values, places = (v.slice(dim, (size - 1) // 2, 1) for v in (values, places))
    else:
        # Among the sorted, NaN come last: their number moves the place of the median.
        missing = b.reduce(
            Combine.SUM, b.map(f.isnan, x, dtype="int64"), [dim], keepdim=True
        )[0]  # fmt: skip

        def place(n: Reg) -> Reg:
            if skip:
                return f.maximum((n.const("l", size - 1) - n) >> 1, 0)
            return f.where(n > 0, n.const("l", size) - n, (size - 1) // 2)

        at = b.map(place, missing, dtype="int64")
        shape = list(x.shape)
        shape[dim] = 1
        where = [at if d == dim else d for d in range(x.rank)]
        values, places = b.gather(values, shape, where), b.gather(places, shape, where)
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


@lowers("aten.mode")
def mode(b: GraphBuilder, x: View, dim: int = -1, keepdim: bool = False) -> tuple[View, View]:
    """The smallest of the most frequent values, and its last place."""
    dim = wrap(dim, x.rank)
    if x.rank == 0 or not x.dims[dim]:
        values, places = ordered(b, x, dim)
        if x.rank and not keepdim:
            values, places = values.squeeze(dim), places.squeeze(dim)
        return values, places
    values, places = ordered(b, x, dim)
    # How often the value occurs at this place or before, among equals in sorted order: the most
    # frequent one's last place has the largest run.
    size = number(x.size(dim), b, "the dim of a mode")
    if known(size) is not None and size > 1:
        changed = _changes(b, values, dim, size)
        start = b.scan(Combine.MAX, changed, dim, "int64")
        run = b.map(lambda where, s: where(dim) - s, start, dtype="int64", indexed=True)
        at = b.reduce(Combine.ARGMAX, run, [dim], keepdim=True)[1]
        shape = list(x.shape)
        shape[dim] = 1
        where = [at if d == dim else d for d in range(x.rank)]
        values, places = b.gather(values, shape, where), b.gather(places, shape, where)
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


def _changes(b: GraphBuilder, values: View, dim: int, size: int) -> View:
    """The place itself where a new value begins, else 0."""
    out = View.of(b.tensor("changes", list(values.shape), "int64"))
    b.store(out.slice(dim, 0, 1), full(b, out.slice(dim, 0, 1).shape, 0, "int64"))
    new = b.map(
        lambda where, x, y: f.where(f.not_equal(x, y), where(dim) + 1, 0),
        values.slice(dim, 1, size - 1), values.slice(dim, 0, size - 1), dtype="int64", indexed=True,
    )  # fmt: skip
    b.store(out.slice(dim, 1, size - 1), new)
    return out


@lowers("aten.cummax")
def cummax(b: GraphBuilder, x: View, dim: int) -> tuple[View, View]:
    return running(b, x, dim, Combine.MAX)


@lowers("aten.cummin")
def cummin(b: GraphBuilder, x: View, dim: int) -> tuple[View, View]:
    return running(b, x, dim, Combine.MIN)


for _name in ("cummax", "cummin"):
    resolves(
        f"aten._{_name}_helper.default", f"aten.{_name}.default", {"values": 0, "indices": 1}, True
    )


def running(b: GraphBuilder, x: View, dim: int, combine: Combine) -> tuple[View, View]:
    """The running extreme and the last place that has it."""
    dim = wrap(dim, x.rank)
    if x.rank == 0 or not x.dims[dim]:
        return x, full(b, x.shape, 0, "int64")
    if x.dtype == "bool":
        values, places = running(b, b.copy(x, "int32"), dim, combine)
        return b.copy(values, "bool"), places
    values = b.scan(combine, x, dim, x.dtype)

    def place(where: object, v: Reg, best: Reg) -> Reg:
        assert callable(where)
        hit = f.equal(v, best)
        if v.type == "f":
            hit = hit | f.isnan(v)
        return f.where(hit, where(dim), 0)

    found = b.map(place, x, values, dtype="int64", indexed=True)
    return values, b.scan(Combine.MAX, found, dim, "int64")
