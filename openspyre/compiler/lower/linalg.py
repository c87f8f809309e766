"""Small dense systems: triangular solves, Cholesky and LU factors, and what is made of them.

Every step of the elimination is a map over the whole matrix (with pivots also a search and the sum
that picks the pivot's row), so the graph grows with the order: at most LARGEST. Matrices are
float32, any dims before the last two are a batch. Not here: what asks for factors of the transposed
matrix when that lies more conveniently (det, slogdet, solve), and the iterations (qr, eigh, svd).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.lower.reduce import combined
from openspyre.compiler.lower.registry import lowers
from openspyre.compiler.lower.tools import cast, join, number
from openspyre.compiler.sizes import Size
from openspyre.compiler.view import View
from openspyre.program import body as f
from openspyre.program.body import Reg
from openspyre.program.ops import Combine

LARGEST = 32
Where = Callable[[int], Reg]


def _order(b: GraphBuilder, matrix: View, square: bool = True) -> tuple[int, int]:
    """Rows and columns of the matrices, after all that can be refused."""
    if matrix.dtype != "float32":
        raise Unsupported(b.operation, f"a matrix of {matrix.dtype}", "float32 only")
    rows, columns = (
        number(matrix.size(d), b, "an order") for d in (-2 % matrix.rank, matrix.rank - 1)
    )
    if square and rows != columns:
        raise ValueError(f"{b.operation}: a matrix of {rows} by {columns}")
    if max(rows, columns) > LARGEST:
        raise Unsupported(
            b.operation, f"an order of {max(rows, columns)}",
            f"every step is an operation of its own: at most {LARGEST}", "use the CPU",
        )  # fmt: skip
    return rows, columns


def _apart(b: GraphBuilder, view: View) -> View:
    """The matrix with each dim a dim of its tensor."""
    return b.contiguous(view) if any(len(names) > 1 for names in view.dims) else view


def _mT(view: View) -> View:
    return view.transpose(view.rank - 2, view.rank - 1)


def _row(view: View, k: int) -> View:
    return view.slice(view.rank - 2, k, 1)


def _column(view: View, k: int) -> View:
    return view.slice(view.rank - 1, k, 1)


def _substituted(b: GraphBuilder, a: View, x: View, lower: bool, unit: bool) -> View:
    """The solution of a y = x for a triangular `a`."""
    n, _ = _order(b, a)
    shape = [*_batch(a, x), *x.shape[x.rank - 2 :]]
    rank = len(shape)
    x = b.copy(x) if x.rank == rank else x
    for k in range(n) if lower else reversed(range(n)):

        def step(where: Where, v: Reg, here: Reg, column: Reg, d: Reg, k: int = k) -> Reg:
            i = where(rank - 2)
            found = here if unit else here / d
            after = i > k if lower else i < k
            return f.where(f.equal(i, k), found, f.where(after, v - column * found, v))

        x = b.map(
            step, x, _row(x, k), _column(a, k), _column(_row(a, k), k), dtype="float32",
            shape=shape, indexed=True, name="substituted",
        )  # fmt: skip
    return x


def _batch(a: View, x: View) -> list[Size]:
    """The dims before the matrices, broadcast."""
    one, two = list(a.shape[:-2]), list(x.shape[:-2])
    while len(one) < len(two):
        one.insert(0, 1)
    while len(two) < len(one):
        two.insert(0, 1)
    return [p if q == 1 else q for p, q in zip(one, two, strict=True)]


@lowers("aten.linalg_solve_triangular")
def solve_triangular(
    b: GraphBuilder, a: View, x: View, *, upper: bool, left: bool = True,
    unitriangular: bool = False,
) -> View:  # fmt: skip
    if left:
        return _substituted(b, a, x, not upper, unitriangular)
    return _mT(_substituted(b, _mT(a), _mT(x), upper, unitriangular))


@lowers("aten.triangular_solve")
def triangular_solve(
    b: GraphBuilder, x: View, a: View, upper: bool = True, transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[View, View]:  # fmt: skip
    used, lower = (_mT(a), upper) if transpose else (a, not upper)
    return _substituted(b, used, x, lower, unitriangular), b.copy(a)


# --- Cholesky


@lowers("aten.linalg_cholesky_ex")
def cholesky_ex(
    b: GraphBuilder, x: View, *, upper: bool = False, check_errors: bool = False
) -> tuple[View, View]:
    """(the factor, the order of the first minor that is not positive, or 0)."""
    if check_errors:
        raise Unsupported(b.operation, "check_errors", "no operation of the card raises an error")
    n, _ = _order(b, x)
    a = _apart(b, _mT(x) if upper else x)
    rank = a.rank
    for k in range(n):

        def step(where: Where, v: Reg, column: Reg, other: Reg, d: Reg, k: int = k) -> Reg:
            i, j = where(rank - 2), where(rank - 1)
            root = f.sqrt(d)
            left = f.where(f.equal(i, k), root, column / root)
            rest = v - (column / root) * (other / root)
            inner = f.where((i > k) & (j > k), rest, v)
            return f.where(f.equal(j, k) & (i >= k), left, inner)

        column = _column(a, k)
        a = b.map(
            step, a, column, _mT(column), _column(_row(a, k), k), dtype="float32", indexed=True,
            name="cholesky",
        )  # fmt: skip

    def triangle(where: Where, v: Reg) -> Reg:
        return f.where(where(rank - 1) > where(rank - 2), v.like(0.0), v)

    diagonal = a.diagonal(0, rank - 2, rank - 1)
    found = b.map(triangle, a, dtype="float32", indexed=True, name="cholesky")
    return (_mT(found) if upper else found), _first(b, diagonal, lambda d: ~(d > 0.0))


def _first(b: GraphBuilder, diagonal: View, bad: Callable[[Reg], Reg]) -> View:
    """The number, from 1, of the first bad element along the last dim; 0 if there is none."""
    last = diagonal.rank - 1
    many = 1 << 30

    def mark(where: Where, d: Reg) -> Reg:
        place = f.cast(where(last) + 1, "i")
        return f.where(bad(d), place, place.like(many))

    marks = b.map(mark, diagonal, dtype="int32", indexed=True)
    (least,) = combined(b, Combine.MIN, marks, [last])
    return b.map(lambda v: f.where(f.equal(v, many), v.like(0), v), least, dtype="int32")


@lowers("aten._cholesky_solve_helper")
def cholesky_solve(b: GraphBuilder, x: View, a: View, upper: bool) -> View:
    lower = _mT(a) if upper else a
    return _substituted(b, _mT(lower), _substituted(b, lower, x, True, False), False, False)


@lowers("aten.cholesky_inverse")
def cholesky_inverse(b: GraphBuilder, x: View, upper: bool = False) -> View:
    return cholesky_solve(b, _identity(b, x.shape), x, upper)


def _identity(b: GraphBuilder, shape: Sequence[Size]) -> View:
    rank = len(shape)
    return b.map(
        lambda where: f.cast(f.cast(f.equal(where(rank - 2), where(rank - 1)), "b"), "f"),
        dtype="float32", shape=shape, indexed=True, name="identity",
    )  # fmt: skip


# --- LU


def _picked(b: GraphBuilder, a: View, place: View) -> View:
    """Row `place` [.., 1, 1] of each matrix, kept as [.., 1, n]: the sum of it and zeros."""
    rank = a.rank
    alone = b.map(
        lambda where, v, p: f.where(f.equal(where(rank - 2), p), v, v.like(0.0)), a, place,
        dtype="float32", shape=a.shape, indexed=True,
    )  # fmt: skip
    return combined(b, Combine.SUM, alone, [rank - 2], keepdim=True)[0]


def _factored(b: GraphBuilder, a: View, pivot: bool) -> tuple[View, View]:
    """(L and U in one, the pivots counted from 1)."""
    rows, columns = _order(b, a, square=False)
    a, rank = _apart(b, a), a.rank
    places: list[View] = []
    for k in range(min(rows, columns)):
        column, row = _column(a, k), _row(a, k)

        def size(where: Where, v: Reg, k: int = k) -> Reg:
            return f.where(where(rank - 2) >= k, abs(v), v.like(-1.0))

        sizes = b.map(size, column, dtype="float32", indexed=True)
        place = combined(b, Combine.ARGMAX, sizes, [rank - 2], keepdim=True)[1]
        if not pivot:
            place = b.map(lambda p, k=k: p.like(k), place, dtype="int64")
        best = _picked(b, a, place)

        def step(
            where: Where, v: Reg, top: Reg, old: Reg, c: Reg, head: Reg, d: Reg, p: Reg, k: int = k
        ) -> Reg:
            i, j = where(rank - 2), where(rank - 1)
            moved = f.where(f.equal(i, k), top, f.where(f.equal(i, p), old, v))
            c = f.where(f.equal(i, p), head, c)
            factor = f.where(f.equal(d, 0.0), c, c / d)
            rest = f.where(f.equal(j, k), factor, moved)
            return f.where(i > k, f.where(j > k, moved - factor * top, rest), moved)

        a = b.map(
            step, a, best, row, column, _column(row, k), _column(best, k), place,
            dtype="float32", shape=a.shape, indexed=True, name="lu",
        )  # fmt: skip
        places.append(b.map(lambda p: p + 1, place.select(rank - 1, 0), dtype="int32"))
    return a, join(b, places, rank - 2, "int32")


@lowers("aten.linalg_lu_factor_ex")
def lu_factor_ex(
    b: GraphBuilder, a: View, *, pivot: bool = True, check_errors: bool = False
) -> tuple[View, View, View]:
    """(L and U in one, pivots, the number of the first pivot that is zero, or 0)."""
    if check_errors:
        raise Unsupported(b.operation, "check_errors", "no operation of the card raises an error")
    made, pivots = _factored(b, a, pivot)
    diagonal = made.diagonal(0, made.rank - 2, made.rank - 1)
    return made, pivots, _first(b, diagonal, lambda d: f.equal(d, 0.0))


def _swapped(b: GraphBuilder, x: View, pivots: View, back: bool, shape: Sequence[Size]) -> View:
    """The rows of x, swapped as the pivots say, or swapped back."""
    rank = len(shape)
    count = number(pivots.size(pivots.rank - 1), b, "the number of pivots")
    x = b.map(lambda v: v, x, dtype="float32", shape=shape, name="swapped")
    for k in reversed(range(count)) if back else range(count):
        at = pivots.slice(pivots.rank - 1, k, 1)
        place = b.map(lambda p: p - 1, at, dtype="int64", compute="int64").unsqueeze(pivots.rank)
        row, best = _row(x, k), _picked(b, x, place)

        def step(where: Where, v: Reg, old: Reg, top: Reg, p: Reg, k: int = k) -> Reg:
            i = where(rank - 2)
            return f.where(f.equal(i, k), top, f.where(f.equal(i, p), old, v))

        x = b.map(step, x, row, best, place, dtype="float32", shape=shape, indexed=True)
    return x


@lowers("aten.linalg_lu_solve")
def lu_solve(
    b: GraphBuilder, a: View, pivots: View, x: View, *, left: bool = True, adjoint: bool = False
) -> View:
    if not left:
        return _mT(lu_solve(b, a, pivots, _mT(x), left=True, adjoint=not adjoint))
    shape = [*_batch(a, x), *x.shape[x.rank - 2 :]]
    if adjoint:
        y = _substituted(b, _mT(a), x, True, False)
        y = _substituted(b, _mT(a), y, False, True)
        return _swapped(b, y, pivots, True, shape)
    y = _swapped(b, x, pivots, False, shape)
    return _substituted(b, a, _substituted(b, a, y, True, True), False, False)


@lowers("aten.linalg_inv_ex")
def inv_ex(b: GraphBuilder, a: View, *, check_errors: bool = False) -> tuple[View, View]:
    _order(b, a)
    made, pivots, info = lu_factor_ex(b, a, check_errors=check_errors)
    return lu_solve(b, made, pivots, _identity(b, a.shape)), cast(b, info, "int32")


@lowers("aten.lu_unpack")
def lu_unpack(
    b: GraphBuilder, a: View, pivots: View, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[View, View, View]:
    """(P, L, U) of factors."""
    if not (unpack_data and unpack_pivots):
        raise Unsupported(b.operation, "a part of the factors", "all three are made at once")
    rows, columns = _order(b, a, square=False)
    rank, short = a.rank, min(rows, columns)

    def below(where: Where, v: Reg) -> Reg:
        i, j = where(rank - 2), where(rank - 1)
        return f.where(i > j, v, f.where(f.equal(i, j), v.like(1.0), v.like(0.0)))

    def above(where: Where, v: Reg) -> Reg:
        return f.where(where(rank - 2) > where(rank - 1), v.like(0.0), v)

    left = b.map(below, a.slice(rank - 1, 0, short), dtype="float32", indexed=True, name="l")
    right = b.map(above, a.slice(rank - 2, 0, short), dtype="float32", indexed=True, name="u")
    shape = [*a.shape[: rank - 1], rows]
    return _swapped(b, _identity(b, shape), pivots, True, shape), left, right


@lowers("aten.linalg_lu")
def linalg_lu(b: GraphBuilder, a: View, *, pivot: bool = True) -> tuple[View, View, View]:
    if not pivot:
        raise Unsupported(b.operation, "pivot=False", "the permutation has no elements")
    return lu_unpack(b, *_factored(b, a, True))
