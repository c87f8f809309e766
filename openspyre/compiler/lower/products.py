"""Lowerings of matrix products.

A product is a MATMUL in float32 (int32 for int8), k ascending; what follows within the operation
(scaling, bias, a second summand) is computed in float32 on it, and the result is rounded once.
Products of other integers are maps and reductions.
"""

from __future__ import annotations

from collections.abc import Sequence

from openspyre.compiler.build import GraphBuilder, Operand
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.lower.promote import promote_types
from openspyre.compiler.lower.registry import lowers
from openspyre.compiler.lower.tools import cast, describe, is_one, is_zero, summed
from openspyre.compiler.sizes import Size, product
from openspyre.compiler.view import View
from openspyre.program import body as f
from openspyre.program.body import Reg

INTEGERS = ("uint8", "int8", "int16", "int32", "int64")


def exact_product(b: GraphBuilder, x: View, y: View) -> View:
    """x [.., M, K] times y [.., K, N], not rounded: float32, or integers as they wrap."""
    if x.dtype != y.dtype and not (x.dtype.startswith("float8") and y.dtype.startswith("float8")):
        raise Unsupported(
            b.operation, f"{describe(x)} times {describe(y)}", "operands are of one dtype",
            "convert one of them",
        )  # fmt: skip
    if x.dtype == "bool":
        raise Unsupported(b.operation, describe(x), "no product of truth values", "convert it")
    if x.dtype not in INTEGERS:
        return b.matmul(x, y)
    compute = x.dtype if x.dtype in ("int32", "int64") else "int32"
    left, right = x.unsqueeze(x.rank - 1), y.transpose(y.rank - 2, y.rank - 1).unsqueeze(y.rank - 2)
    return summed(
        b, b.map(lambda p, q: p * q, left, right, dtype=compute, compute=compute), [-1]
    )  # fmt: skip


def finished(
    b: GraphBuilder, made: View, dtype: str, added: View | None = None, beta: Operand = 1,
    alpha: Operand = 1, shape: Sequence[Size] | None = None,
) -> View:  # fmt: skip
    """beta * added + alpha * made, rounded to `dtype`."""
    if added is None or is_zero(beta):
        if is_one(alpha):
            return cast(b, made, dtype)
        return b.map(lambda m, a: m * a, made, alpha, dtype=dtype, compute=made.dtype)

    def body(m: Reg, c: Reg, *factors: Reg) -> Reg:
        left = iter(factors)
        m = m if is_one(alpha) else m * next(left)
        c = c if is_one(beta) else scaled(c, next(left))
        return c + m

    factors = [v for v in (alpha, beta) if not is_one(v)]
    return b.map(body, made, added, *factors, dtype=dtype, compute=made.dtype, shape=shape)


def scaled(added: Reg, beta: Reg) -> Reg:
    """beta * added; nothing of it, NaN neither, when beta is 0."""
    return f.where(f.equal(beta, 0), 0, added * beta)


@lowers("aten.mm", "aten.bmm")
def mm(b: GraphBuilder, x: View, y: View) -> View:
    return finished(b, exact_product(b, x, y), x.dtype)


@lowers("aten.mm.dtype", "aten.bmm.dtype")
def mm_dtype(b: GraphBuilder, x: View, y: View, out_dtype: str) -> View:
    return finished(b, exact_product(b, x, y), out_dtype)


@lowers("aten._int_mm")
def int_mm(b: GraphBuilder, x: View, y: View) -> View:
    return b.matmul(x, y) if x.dtype == "int8" == y.dtype else exact_product(b, x, y)


@lowers("aten.matmul")
def matmul(b: GraphBuilder, x: View, y: View) -> View:
    return finished(b, exact_matmul(b, x, y), x.dtype)


def exact_matmul(b: GraphBuilder, x: View, y: View) -> View:
    """torch.matmul, not rounded."""
    left = x.unsqueeze(0) if x.rank == 1 else x
    right = y.unsqueeze(1) if y.rank == 1 else y
    rank = max(left.rank, right.rank)
    while left.rank < rank:
        left = left.unsqueeze(0)
    while right.rank < rank:
        right = right.unsqueeze(0)
    made = exact_product(b, left, right)
    if y.rank == 1:
        made = made.squeeze(made.rank - 1)
    return made.squeeze(made.rank - (1 if y.rank == 1 else 2)) if x.rank == 1 else made


@lowers("aten.mv")
def mv(b: GraphBuilder, x: View, vector: View) -> View:
    return finished(b, exact_product(b, x, vector.unsqueeze(1)).squeeze(1), x.dtype)


@lowers("aten.dot", "aten.vdot", "aten.inner")
def dot(b: GraphBuilder, x: View, y: View) -> View:
    if x.rank == 0 or y.rank == 0:
        return b.map(lambda p, q: p * q, x, y, dtype=x.dtype, compute=wide(x.dtype))
    if x.rank == y.rank == 1:
        made = exact_product(b, x.unsqueeze(0), y.unsqueeze(1)).squeeze(1).squeeze(0)
        return finished(b, made, x.dtype)
    rows, columns = product(x.shape[:-1]), product(y.shape[:-1])
    left = b.reshape(x, [rows, x.size(x.rank - 1)])
    right = b.reshape(y, [columns, y.size(y.rank - 1)]).transpose(0, 1)
    made = finished(b, exact_product(b, left, right), x.dtype)
    return b.reshape(made, [*x.shape[:-1], *y.shape[:-1]])


def wide(dtype: str) -> str:
    """The dtype in which products of `dtype` are computed."""
    return dtype if dtype in ("int32", "int64", "bool") else (
        "int32" if dtype in INTEGERS else "float32"
    )  # fmt: skip


@lowers("aten.outer", "aten.ger")
def outer(b: GraphBuilder, x: View, y: View) -> View:
    dtype = promote_types(x.dtype, y.dtype)
    if dtype == "bool":
        return b.map(lambda p, q: p & q, x.unsqueeze(1), y.unsqueeze(0), dtype=dtype)
    return b.map(
        lambda p, q: p * q, x.unsqueeze(1), y.unsqueeze(0), dtype=dtype, compute=wide(dtype)
    )


@lowers("aten.linear")
def linear(b: GraphBuilder, x: View, weight: View, bias: View | None = None) -> View:
    if weight.rank == 1:
        made = exact_matmul(b, x, weight)
    else:
        made = exact_matmul(b, x, weight.transpose(0, 1))
    return finished(b, made, x.dtype, bias)


@lowers("aten.addmm", "aten.baddbmm")
def addmm(
    b: GraphBuilder, added: View, x: View, y: View, *, beta: Operand = 1, alpha: Operand = 1
) -> View:
    return finished(b, exact_product(b, x, y), x.dtype, added, beta, alpha)


@lowers("aten.addmm.dtype", "aten.baddbmm.dtype")
def addmm_dtype(
    b: GraphBuilder, added: View, x: View, y: View, out_dtype: str, *, beta: Operand = 1,
    alpha: Operand = 1,
) -> View:  # fmt: skip
    return finished(b, exact_product(b, x, y), out_dtype, added, beta, alpha)


@lowers("aten.addbmm")
def addbmm(
    b: GraphBuilder, added: View, x: View, y: View, *, beta: Operand = 1, alpha: Operand = 1
) -> View:
    made = summed(b, exact_product(b, x, y), [0])
    return finished(b, made, x.dtype, added, beta, alpha)


@lowers("aten.addmv")
def addmv(
    b: GraphBuilder, added: View, x: View, vector: View, *, beta: Operand = 1, alpha: Operand = 1
) -> View:
    made = exact_product(b, x, vector.unsqueeze(1)).squeeze(1)
    return finished(b, made, x.dtype, added, beta, alpha)


@lowers("aten.addr")
def addr(
    b: GraphBuilder, added: View, x: View, y: View, *, beta: Operand = 1, alpha: Operand = 1
) -> View:
    dtype = promote_types(promote_types(x.dtype, y.dtype), added.dtype)
    compute = wide(dtype)
    if dtype == "bool":

        def truth(c: Reg, p: Reg, q: Reg, k: Reg, a: Reg) -> Reg:
            return (k & c) | (a & p & q)

        return b.map(
            truth, added, x.unsqueeze(1), y.unsqueeze(0), beta, alpha, dtype="bool",
            compute="bool", shape=(x.size(0), y.size(0)),
        )  # fmt: skip
    shape = (x.size(0), y.size(0))
    if is_zero(beta):
        return b.map(
            lambda p, q, a: p * q * a, x.unsqueeze(1), y.unsqueeze(0), alpha,
            dtype=dtype, compute=compute, shape=shape,
        )  # fmt: skip
    return b.map(
        lambda c, p, q, k, a: scaled(c, k) + a * (p * q), added, x.unsqueeze(1), y.unsqueeze(0),
        beta, alpha, dtype=dtype, compute=compute, shape=shape,
    )  # fmt: skip


@lowers("aten._scaled_mm")
def scaled_mm(
    b: GraphBuilder, x: View, y: View, scale_a: View, scale_b: View, bias: View | None = None,
    scale_result: View | None = None, out_dtype: str | None = None, use_fast_accum: bool = False,
) -> View:  # fmt: skip
    """Scales of one element, or one for each row of x and each column of y."""
    made = b.matmul(x, y)
    scales = []
    for name, scale, sizes in (
        ("scale_a", scale_a, (x.size(0), 1)), ("scale_b", scale_b, (1, y.size(1))),
    ):  # fmt: skip
        if product(scale.shape) == 1:
            while scale.rank:
                scale = scale.squeeze(0)
        elif tuple(scale.shape) != sizes:
            raise Unsupported(
                b.operation, f"{name}: {describe(scale)}", f"a scale is one number or {sizes}",
                "scale by rows or by tensors",
            )  # fmt: skip
        scales.append(scale)
    more = [] if bias is None else [bias]
    dtype = out_dtype or x.dtype
    if scale_result is not None and dtype.startswith("float8"):
        while scale_result.rank:
            scale_result = scale_result.squeeze(0)
        more.append(scale_result)

    def body(m: Reg, p: Reg, q: Reg, *rest: Reg) -> Reg:
        left = iter(rest)
        m = m * p * q
        if bias is not None:
            m = m + next(left)
        return m * next(left, 1.0)  # type: ignore[arg-type]

    return b.map(body, made, *scales, *more, dtype=dtype, compute="float32")


@lowers("aten.kron")
def kron(b: GraphBuilder, x: View, y: View) -> View:
    rank = max(x.rank, y.rank)
    while x.rank < rank:
        x = x.unsqueeze(0)
    while y.rank < rank:
        y = y.unsqueeze(0)
    shape = [product((x.size(d), y.size(d))) for d in range(rank)]
    for d in reversed(range(rank)):
        x, y = x.unsqueeze(d + 1), y.unsqueeze(d)
    dtype = promote_types(x.dtype, y.dtype)
    made = b.map(
        (lambda p, q: p & q) if dtype == "bool" else (lambda p, q: p * q), x, y,
        dtype=dtype, compute=wide(dtype),
    )  # fmt: skip
    return b.reshape(made, shape)
