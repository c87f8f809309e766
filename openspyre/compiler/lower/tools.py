"""What the lowerings of data movement and of neural networks share: dims, sizes, pieces of tensors.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from openspyre.compiler.build import REGISTER, GraphBuilder, Operand, Scalar
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.lower.promote import promote_types
from openspyre.compiler.lower.registry import constant
from openspyre.compiler.sizes import Size, known, plus, product, same, times
from openspyre.compiler.view import NeedsCopy, View
from openspyre.program import body as f
from openspyre.program.body import Reg
from openspyre.program.ops import Combine


def describe(view: View) -> str:
    """A tensor for error messages."""
    return f"a tensor {view.dtype} [{', '.join(map(str, view.shape))}]"


def wrap(dim: int, rank: int) -> int:
    """A dim counted from the front; rank 0 has the dim 0, too."""
    return dim % rank if rank else 0


def number(value: Size, b: GraphBuilder, what: str) -> int:
    """A size that must be known when compiling."""
    found = known(constant(value, what))
    if found is None:
        raise Unsupported(b.operation, what, f"the size {value} is symbolic", "mark it static")
    return found


def numbers(values: Sequence[Size], b: GraphBuilder, what: str) -> list[int]:
    """Sizes that must be known when compiling."""
    return [number(value, b, what) for value in values]


def spread(values: Sequence[int] | int, count: int) -> list[int]:
    """One number for each spatial dim, from one, none or all."""
    found = [values] if isinstance(values, int) else list(values)
    return found * count if len(found) == 1 else found


def cast(b: GraphBuilder, view: View, dtype: str) -> View:
    """In dtype `dtype`, the same view when it is of that dtype."""
    return view if view.dtype == dtype else b.copy(view, dtype)


def full(b: GraphBuilder, shape: Sequence[Size], value: Operand, dtype: str) -> View:
    """A tensor of one value."""
    return b.map(lambda x: x, value, dtype=dtype, compute=dtype, shape=shape, name="fill")


def fresh(b: GraphBuilder, shape: Sequence[Size], dtype: str, name: str = "join") -> View:
    """A new temp, to be written piece by piece."""
    return View.of(b.tensor(name, list(shape), dtype))


def iota(b: GraphBuilder, size: Size) -> View:
    """0 .. size-1, int64."""
    return b.map(lambda index: index(0), dtype="int64", shape=(size,), indexed=True, name="iota")


def at_least_1d(view: View) -> View:
    return view.unsqueeze(0) if view.rank == 0 else view


def summed(b: GraphBuilder, view: View, dims: Sequence[int], keepdim: bool = False) -> View:
    """The exact sum over `dims`."""
    return b.reduce(Combine.SUM, view, dims, keepdim=keepdim)[0] if dims else view


def piece(b: GraphBuilder, view: View, dim: int, start: Size, length: Size, step: int = 1) -> View:
    """`view.slice`, with a copy where it needs one."""
    try:
        return view.slice(dim, start, length, step)
    except NeedsCopy:
        return b.contiguous(view).slice(dim, start, length, step)


def flat(b: GraphBuilder, view: View) -> View:
    """All elements in one dim that alone moves one dim of a tensor: what is indexed linearly."""
    view = view.reshape([view.numel]) if view.rank != 1 else view
    if not view.dims[0]:
        return view
    single = len(view.dims[0]) == 1 and [i.single for i in view.index if i.terms] == [
        view.dims[0][0]
    ]
    return view if single else b.contiguous(view)


def wrapped_index(b: GraphBuilder, index: View, size: Size) -> View:
    """An index tensor with negative indices counted from the end, int64."""
    count = number(size, b, "an indexed dim")
    return b.map(
        lambda i: f.where(i < 0, i + count, i), index, dtype="int64", compute="int64", name="index"
    )


def indexed_dtype(b: GraphBuilder, index: View) -> None:
    """Unsupported unless the index tensor is int32 or int64."""
    if index.dtype not in ("int32", "int64"):
        raise Unsupported(
            b.operation, f"an index tensor of dtype {index.dtype}",
            "the shape of the result depends on values" if index.dtype in ("bool", "uint8") else
            "indices are int32 or int64",
            "use torch.where, or masked_fill",
        )  # fmt: skip


def join(b: GraphBuilder, parts: Sequence[View], dim: int, dtype: str | None = None) -> View:
    """The parts one behind the other along `dim`, as pieces of one new tensor."""
    dtype = dtype or parts[0].dtype
    if len(parts) == 1:
        return cast(b, parts[0], dtype)
    shape = list(parts[0].shape)
    total: Size = 0
    for part in parts:
        total = plus(total, part.size(dim))
    shape[dim] = total
    out = fresh(b, shape, dtype)
    start: Size = 0
    for part in parts:
        b.store(out.slice(dim, start, part.size(dim)), part)
        start = plus(start, part.size(dim))
    return out


def pad(
    b: GraphBuilder, view: View, low: Sequence[int], high: Sequence[int], value: Operand,
    steps: Sequence[int] | None = None,
) -> View:  # fmt: skip
    """`view` with `low` elements of `value` before and `high` after it in each dim, negative ones
    cut; `steps`: elements of a dim lie that far apart, with `value` in between."""
    steps = list(steps or [1] * view.rank)
    low, high = list(low), list(high)
    for d, step in enumerate(steps):
        size = number(view.size(d), b, "a padded dim") if low[d] or high[d] or step != 1 else None
        if size is None:
            continue
        first = -(min(low[d], 0) // step)  # the first element that stays
        span = low[d] + (size - 1) * step + 1 + high[d]
        last = min(size - 1, (span - 1 - low[d]) // step)
        if last < first:
            sizes = [
                _span(view, e, low, high, steps) if e >= d else view.size(e)
                for e in range(view.rank)
            ]
            return full(b, sizes, value, view.dtype)
        begin = low[d] + first * step
        high[d] = span - begin - (last - first) * step - 1
        low[d] = begin
        view = piece(b, view, d, first, last - first + 1)
    padded = [d for d in range(view.rank) if low[d] or high[d] or steps[d] != 1]
    if not padded:
        return view
    shape = [_span(view, d, low, high, steps) for d in range(view.rank)]
    out = fresh(b, shape, view.dtype, "padded")
    inner = out
    if len(padded) == 1 and steps[padded[0]] == 1:
        d = padded[0]
        for start, length in ((0, low[d]), (plus(view.size(d), low[d]), high[d])):
            if length:
                fill(b, out.slice(d, start, length), value)
    else:
        fill(b, out, value)
    for d in padded:
        inner = inner.slice(d, low[d], view.size(d), steps[d])
    b.store(inner, view)
    return out


def _span(
    view: View, d: int, low: Sequence[int], high: Sequence[int], steps: Sequence[int]
) -> Size:
    if steps[d] == 1:
        return plus(view.size(d), low[d] + high[d])
    return plus(times(plus(view.size(d), -1), steps[d]), 1 + low[d] + high[d])


def fill(b: GraphBuilder, target: View, value: Operand) -> None:
    """Writes one value everywhere."""
    b.store(target, full(b, target.shape, value, target.dtype))


def common_dtype(views: Sequence[View]) -> str:
    """The promoted dtype of tensors that are joined."""
    dtype = views[0].dtype
    for view in views[1:]:
        dtype = promote_types(dtype, view.dtype)
    return dtype


def is_one(value: Operand) -> bool:
    """Whether a factor is certainly 1."""
    return not isinstance(value, (Scalar, View)) and value == 1


def is_zero(value: Operand) -> bool:
    """Whether a factor is certainly 0."""
    return not isinstance(value, (Scalar, View)) and value == 0


def sizes_equal(a: Sequence[Size], b: Sequence[Size]) -> bool:
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))


def elements(view: View, dims: Sequence[int]) -> Size:
    """How many elements lie along `dims` together."""
    return product(view.size(d) for d in dims)


def as_register(reg: Reg, dtype: str) -> Reg:
    """In the register type in which `dtype` is computed."""
    return f.cast(reg, REGISTER[dtype])
