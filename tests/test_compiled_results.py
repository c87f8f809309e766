"""Compiled functions against the CPU's eager ones: results of any strides, writes to what is read,
diagonals, and regions that do not compile as one.

Values are exact where elements only move: the inputs are small whole numbers, so that no sum or
product is rounded either.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from openspyre.compiler import cache, results
from openspyre.compiler.errors import CompileError, Unsupported
from openspyre.compiler.inductor import regions

DEVICE = "spyre"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OPENSPYRE_STRICT", "1")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def whole(*shape: int, seed: int = 0) -> Tensor:
    made = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(-9, 10, shape, generator=made).float()


def agrees(function: Callable[..., Any], *args: Tensor, strides: bool = True) -> None:
    """The compiled function on the card gives and writes what the eager one does on the CPU."""
    there = [a.to(DEVICE) for a in args]
    here = [a.clone() for a in args]
    found, wanted = torch.compile(function)(*there), function(*here)
    pairs = list(zip(there, here, strict=True))
    if wanted is not None:
        several = isinstance(wanted, (tuple, list))
        pairs += list(zip(found if several else [found], wanted if several else [wanted],
                          strict=True))  # fmt: skip
    for got, want in pairs:
        assert got.device.type == DEVICE
        assert got.shape == want.shape
        if strides:
            assert got.stride() == want.stride()
        assert torch.equal(got.cpu(), want), (got.cpu(), want)


# --- results of other strides than contiguous ones


def added(a: Tensor) -> Tensor:
    a.add_(1)
    return a[:, :3]


RESULTS: dict[str, tuple[Callable[[Tensor], Any], Sequence[int]]] = {
    "first columns": (lambda a: a.relu()[:, :3], (5, 9)),
    "last column": (lambda a: a.relu()[:, -1], (5, 9)),
    "a column of a wide one": (lambda a: a.relu()[:, 3], (5, 70)),
    "a row": (lambda a: a.relu()[2], (5, 70)),
    "one chunk": (lambda a: a.relu().chunk(3, 1)[1], (5, 9)),
    "chunks of whole sticks": (lambda a: a.relu().chunk(3, 1), (5, 192)),
    "split": (lambda a: a.relu().split(4, 1), (5, 9)),
    "two slices": (lambda a: (a.relu()[:, :3], a.relu()[:, 3:]), (5, 9)),
    "a window": (lambda a: a.relu()[1:, 70:100], (5, 130)),
    "every second column": (lambda a: a.relu()[:, ::2], (5, 9)),
    "every second column of an even number": (lambda a: a.relu()[:, ::2], (5, 10)),
    "every second row": (lambda a: a.relu()[::2], (5, 9)),
    "a transposed slice": (lambda a: a.relu()[:, :3].t(), (5, 9)),
    "a slice of a transposed one": (lambda a: a.relu().t()[:3], (5, 9)),
    "permuted and cut": (lambda a: a.relu().permute(0, 2, 1, 3)[:, 1:3, :, :5], (2, 3, 4, 70)),
    "expanded": (lambda a: (a + 1).expand(3, 5, 9), (5, 9)),
    "one row expanded": (lambda a: (a + 1)[:1].expand(4, 9), (5, 9)),
    "one column expanded": (lambda a: (a + 1)[:, :1].expand(5, 70), (5, 9)),
    "a slice expanded": (lambda a: a.relu()[:, None, :3].expand(5, 4, 3), (5, 9)),
    "a number expanded": (lambda a: (a.sum() + 1).expand(4, 9), (5, 9)),
    "diagonal": (lambda a: a.relu().diagonal(), (5, 9)),
    "overlapping windows": (lambda a: a.relu().unfold(1, 3, 1), (5, 9)),
    "windows that touch": (lambda a: a.relu().unfold(0, 2, 2), (6, 9)),
    "as_strided": (lambda a: a.relu().as_strided((2, 3, 4), (1, 5, 2)), (5, 9)),
    "truth": (lambda a: (a > 0)[:, 1:5], (5, 9)),
    "int64": (lambda a: (a * 5).long()[:, ::3], (5, 9)),
    "a written input's slice": (added, (5, 9)),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_has_the_strides_and_the_values_of_eager_code(name: str) -> None:
    function, shape = RESULTS[name]
    agrees(function, whole(*shape), strides=name != "a number expanded")


STRIDED: dict[str, Callable[[Tensor], Tensor]] = {
    "of a slice, from the storage": lambda a: a[2:].as_strided((3,), (1,), 5) * 1,
    "of a slice, past its end": lambda a: a[:1].as_strided((5,), (4,)) * 1,
    "of a slice, where it begins": lambda a: a[2:].as_strided((5,), (3,)) * 1,
    "of a transposed tensor": lambda a: a.t().as_strided((5,), (1,), 2) * 1,
    "of what is computed transposed": lambda a: a.t().relu().as_strided((5,), (1,)) * 1,
    "of a slice of what is computed": lambda a: (a + 1)[2:].as_strided((3, 2), (1, 4), 5) * 1,
    "of a tensor with gaps": lambda a: a[:, ::2].as_strided((3, 2), (1, 4), 5) * 1,
    "copied": lambda a: torch.as_strided_copy(a.t(), (5,), (1,), 2),
    "written afterwards": lambda a: (a.t().as_strided((5,), (1,), 2) * 1, a.add_(1))[0],
}


@pytest.mark.parametrize("name", STRIDED)
def test_as_strided_counts_in_the_storage_whatever_view_it_is_of(name: str) -> None:
    function = STRIDED[name]
    a = whole(6, 9)
    there = a.to(DEVICE)
    found = torch.compile(function)(there)
    wanted = function(a)
    assert torch.equal(found.cpu(), wanted)
    assert torch.equal(there.cpu(), a)


@pytest.mark.parametrize("cut", [lambda a: a[2:], lambda a: a.t()], ids=["a slice", "transposed"])
def test_as_strided_of_an_argument_that_is_a_view(cut: Callable[[Tensor], Tensor]) -> None:
    a = whole(6, 9)
    found = torch.compile(lambda a: a.as_strided((5,), (1,), 2) * 1)(cut(a.to(DEVICE)))
    assert torch.equal(found.cpu(), a.reshape(-1)[2:7])


def test_a_strided_scatter_on_what_is_no_storage_in_order_is_refused() -> None:
    def function(a: Tensor) -> Tensor:
        return torch.as_strided_scatter(a.t(), a.new_zeros(4), (4,), (1,), 3)

    a = whole(6, 9)
    assert torch.equal(function(a.to(DEVICE)).cpu(), function(a))
    with pytest.raises(Exception, match=r"aten\.as_strided"):
        torch.compile(function)(a.to(DEVICE))


def test_overlapping_arguments_of_sizes_given_at_launch_may_be_written() -> None:
    def function(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        b.mul_(2)
        return a + b

    base = whole(50)
    there = base.to(DEVICE)
    found = torch.compile(function, dynamic=True)(there[:40], there[10:])
    assert torch.equal(found.cpu(), function(base[:40], base[10:]))
    assert torch.equal(there.cpu(), base)


def test_a_call_goes_before_what_it_moves() -> None:
    def loss(a: Tensor) -> Tensor:
        labels = torch.empty(0, dtype=torch.int64, device=a.device)
        return torch.nn.functional.cross_entropy(a, labels, reduction="sum")

    a = torch.empty(0, 5)
    assert torch.equal(torch.compile(loss)(a.to(DEVICE)).cpu(), loss(a))


def test_a_result_of_a_size_given_at_launch_may_be_a_slice() -> None:
    compiled = torch.compile(lambda a: a.relu()[:, :-2], dynamic=True)
    for rows, columns in ((5, 9), (6, 70), (3, 131)):
        a = whole(rows, columns)
        found = compiled(a.to(DEVICE))
        assert torch.equal(found.cpu(), a.relu()[:, :-2])
        assert found.stride() == (columns, 1)


def test_what_follows_may_read_and_write_such_a_result() -> None:
    a = whole(5, 9)
    part = torch.compile(lambda a: a.relu()[:, :3])(a.to(DEVICE))
    part += 1
    assert torch.equal((part * 2).cpu(), (a.relu()[:, :3] + 1) * 2)


@pytest.mark.parametrize(
    ("sizes", "strides", "wanted"),
    [
        ((5, 3), (9, 1), (5, 9)),
        ((5,), (9,), (5, 9)),
        ((3, 5), (1, 9), (5, 9)),
        ((2, 1, 3), (24, 5, 6), (2, 4, 6)),
        ((5, 5), (9, 2), None),
        ((7, 3), (1, 1), None),
        ((1, 1), (4, 1), None),
    ],
)
def test_the_tensor_that_a_slice_is_cut_from(
    sizes: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...] | None
) -> None:
    assert results.enclosing(sizes, strides) == wanted
    if wanted is not None:
        assert torch.empty(wanted).as_strided(sizes, strides).stride() == strides


def test_a_written_input_of_stride_0_is_refused_as_pytorch_does() -> None:
    def f(a: Tensor) -> None:
        a.add_(1)

    with pytest.raises(RuntimeError, match="more than one element of the written-to"):
        torch.compile(f)(torch.ones(1, 9).to(DEVICE).expand(3, 9))


# --- writes to what is read


def transposed_and_more(a: Tensor) -> None:
    a.copy_(a.t() * 2 + 1)


def rows_down(a: Tensor) -> None:
    a[1:].copy_(a[:-1].clone())


def columns_right(a: Tensor) -> None:
    a[:, 1:].copy_(a[:, :-1].clone())


def rows_up(a: Tensor) -> None:
    a[:-1] = a[1:] * 2


def flipped(a: Tensor) -> None:
    a.copy_(a.flip(0))


def turned(a: Tensor) -> Tensor:
    a.copy_(a.flip(1))
    return a.sum(0)


def rolled(a: Tensor) -> None:
    a.copy_(a.roll(1, 1))


def first_row_is_the_diagonal(a: Tensor) -> None:
    a[0].copy_(a.diagonal())


def rows_swapped(a: Tensor) -> None:
    a[0], a[1] = a[1].clone(), a[0].clone()


def sums_and_transposed(a: Tensor) -> None:
    a.copy_(a.sum(0, keepdim=True).expand_as(a) + a.t())


def old_and_new(a: Tensor) -> tuple[Tensor, Tensor]:
    old = a.t().clone()
    a.add_(1)
    return old, a + 0


IN_PLACE = (
    transposed_and_more, rows_down, columns_right, rows_up, flipped, turned, rolled,
    first_row_is_the_diagonal, rows_swapped, sums_and_transposed, old_and_new,
)  # fmt: skip


@pytest.mark.parametrize("size", [33, 65])
@pytest.mark.parametrize("function", IN_PLACE, ids=lambda f: f.__name__)
def test_a_write_does_not_reach_what_it_still_reads(
    function: Callable[..., Any], size: int
) -> None:
    agrees(function, whole(size, size), strides=False)


@pytest.mark.parametrize(
    ("shape", "order"),
    [((33, 33), (1, 0)), ((65, 65), (1, 0)), ((5, 5, 70), (1, 0, 2)), ((33, 33, 3), (1, 0, 2)),
     ((65, 65, 7), (1, 0, 2)), ((65, 3, 65), (2, 1, 0)), ((2, 33, 33), (0, 2, 1))],
)  # fmt: skip
def test_a_transpose_in_place_has_the_old_values(
    shape: tuple[int, ...], order: tuple[int, ...]
) -> None:
    # Eager PyTorch refuses these; compiled, they are what they say.
    a = whole(*shape)
    turned = a.permute(order)

    def copied(a: Tensor) -> None:
        a.copy_(a.permute(order))

    def into_the_view(a: Tensor) -> Tensor:
        b = a.permute(order)
        b.copy_(a)
        return b * 2

    def plus(a: Tensor) -> None:
        a.add_(a.permute(order))

    for function, wanted in ((copied, turned), (into_the_view, turned), (plus, a + turned)):
        there = a.to(DEVICE)
        result = torch.compile(function)(there)
        assert torch.equal(there.cpu(), wanted)
        if result is not None:
            assert torch.equal(result.cpu(), a * 2)


@pytest.mark.parametrize("size", [3, 65])
def test_two_inputs_change_places(size: int) -> None:
    # The trace says copy_(a, b), copy_(b, a): an input it reads is what it was at the start.
    def swap(a: Tensor, b: Tensor) -> None:
        c = a.clone()
        a.copy_(b)
        b.copy_(c)

    def swap_transposed(a: Tensor, b: Tensor) -> None:
        c = a + 0
        a.copy_(b.t())
        b.copy_(c.t())

    for function in (swap, swap_transposed):
        agrees(function, whole(size, size), whole(size, size, seed=1))


@pytest.mark.parametrize("size", [9, 65])
def test_a_scatter_of_a_tensor_into_itself_reads_the_old_values(size: int) -> None:
    a = whole(size, size)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(size))

    def put(a: Tensor, order: Tensor) -> None:
        a[order] = a

    def scatter(a: Tensor, order: Tensor) -> None:
        a.scatter_(0, order[:, None].expand_as(a), a)

    wanted = torch.empty_like(a)
    wanted[order] = a
    for function in (put, scatter):
        there = a.to(DEVICE)
        torch.compile(function)(there, order.to(DEVICE))
        assert torch.equal(there.cpu(), wanted)


# --- diagonals


def filled(a: Tensor) -> Tensor:
    a.diagonal().fill_(0)
    return a


def above(a: Tensor, b: Tensor) -> Tensor:
    a.diagonal(1).copy_(b)
    return a * 2


def inner_dims(a: Tensor) -> None:
    a.diagonal(dim1=-2, dim2=-1).add_(1)


def outer_dims(a: Tensor) -> None:
    a.diagonal(dim1=0, dim2=2).mul_(2)


def part(a: Tensor) -> None:
    a.diagonal()[1:3].fill_(7)


def backwards(a: Tensor) -> None:
    a.diagonal().copy_(a.diagonal().flip(0))


DIAGONALS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "fill_": (filled, [(5, 5)]),
    "fill_ of several sticks": (filled, [(130, 65)]),
    "copy_ above": (above, [(5, 7), (5,)]),
    "copy_ above, wide": (above, [(70, 200), (70,)]),
    "add_ in the inner dims": (inner_dims, [(3, 66, 66)]),
    "mul_ in the outer dims": (outer_dims, [(66, 3, 66)]),
    "a part": (part, [(9, 9)]),
    "backwards": (backwards, [(65, 65)]),
    "diagonal_scatter": (lambda a, b: torch.diagonal_scatter(a, b, 1), [(5, 7), (5,)]),
    "diagonal_scatter of others": (
        lambda a, b: torch.diagonal_scatter(a, b, 0, 0, 2), [(5, 7, 66), (7, 5)]),
    "diag_embed": (lambda a: torch.diag_embed(a, 1), [(3, 5)]),
    "diag_embed of others": (lambda a: torch.diag_embed(a, -1, 0, 2), [(3, 66)]),
    "fill_diagonal_": (lambda a: (a + 1).fill_diagonal_(3.0), [(65, 65)]),
    "fill_diagonal_ wrapped": (lambda a: a.fill_diagonal_(3.0, wrap=True), [(12, 3)]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", DIAGONALS)
def test_a_write_along_a_diagonal(name: str, dtype: torch.dtype) -> None:
    function, shapes = DIAGONALS[name]
    agrees(function, *(whole(*shape, seed=n).to(dtype) for n, shape in enumerate(shapes)),
           strides=False)  # fmt: skip


@pytest.mark.parametrize(
    ("size", "kernel", "stride"),
    [((5, 6), (2, 2), (1, 1)), ((6, 5), (2, 2), (1, 1)), ((6, 12), (2, 3), (1, 3)),
     ((8, 10), (2, 2), (2, 2))],
)  # fmt: skip
@pytest.mark.parametrize("compiled", [False, True])
def test_col2im_takes_every_position_of_its_index(
    size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], compiled: bool
) -> None:
    # The index of its scatter lay with another label than the last on the stick.
    def fold(a: Tensor) -> Tensor:
        return torch.ops.aten.col2im(a, size, kernel, (1, 1), (0, 0), stride)

    a = whole(2, 12, 20)
    found = (torch.compile(fold) if compiled else fold)(a.to(DEVICE))
    assert torch.equal(found.cpu(), fold(a))


# --- regions that do not compile


def _refused(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """No graph of more than one operation compiles."""
    compiled = cache.compiled

    def refuse(graph: Any, options: Any) -> Any:
        if len({op.name for op in graph.ops if op.name}) > 1:
            raise error
        return compiled(graph, options)

    monkeypatch.setattr(cache, "compiled", refuse)
    monkeypatch.setattr(regions, "_runners", {})
    forget = getattr(regions, "forget_plans", None)
    if forget is not None:
        forget()


def test_what_does_not_fit_lx_runs_by_its_operations_and_says_so() -> None:
    torch.spyre.reset_fallback_report()
    x, index = whole(2, 1 << 20), torch.tensor([[3, 1 << 19], [0, (1 << 20) - 1]])

    def f(x: Tensor, index: Tensor) -> Tensor:
        return (x * 2).gather(1, index) + 1

    with pytest.warns(RuntimeWarning, match=r"aten\.gather.*bytes of LX.*one by one"):
        found = torch.compile(f)(x.to(DEVICE), index.to(DEVICE))
    assert torch.equal(found.cpu(), f(x, index))
    assert any("gather" in row.operation for row in torch.spyre.fallback_report().rows)


def changed(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    top, index = torch.topk(a * 2, 3, dim=1)
    a.copy_(b.t() + 1)
    b.mul_(2)
    return top[:, :2], index, (a + b)[:, ::2].t()


def test_a_refused_region_writes_its_inputs_and_gives_the_traced_strides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _refused(monkeypatch, Unsupported("aten.add.Tensor", "t0", "a rule", "another way"))
    a = torch.randperm(81, generator=torch.Generator().manual_seed(1)).reshape(9, 9).float()
    with pytest.warns(RuntimeWarning, match="aten.add.Tensor: t0: a rule.*one by one"):
        agrees(changed, a, whole(9, 9))


def test_a_refused_region_warns_once_for_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    _refused(monkeypatch, Unsupported("aten.add.Tensor", "t0", "a rule"))
    compiled = torch.compile(lambda a: a.relu() + 1)
    a = whole(5, 9).to(DEVICE)
    with pytest.warns(RuntimeWarning, match="one by one"):
        compiled(a)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compiled(a)
    assert torch.equal(found.cpu(), a.cpu().relu() + 1)


def test_a_fault_of_the_compiler_is_raised_where_one_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _refused(monkeypatch, CompileError("a pass is wrong"))
    a = whole(5, 9)
    with pytest.raises(CompileError, match="a pass is wrong"):
        torch.compile(lambda a: a.relu() + 1)(a.to(DEVICE))
    monkeypatch.setenv("OPENSPYRE_STRICT", "0")
    torch._dynamo.reset()
    with pytest.warns(RuntimeWarning, match="a pass is wrong.*OPENSPYRE_STRICT"):
        found = torch.compile(lambda a: a.relu() + 1)(a.to(DEVICE))
    assert torch.equal(found.cpu(), a.relu() + 1)


def test_a_refused_region_draws_the_numbers_that_it_would_have_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def f(a: Tensor) -> tuple[Tensor, ...]:
        more = torch.randint(0, 100, (7,), device=a.device)
        return torch.nn.functional.dropout(a, 0.4) + torch.randn_like(a), more

    def drawn() -> list[Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(3)
        compiled, a = torch.compile(f), torch.ones(5, 9, device=DEVICE)
        return [t.cpu() for _ in range(2) for t in compiled(a)]

    wanted = drawn()
    _refused(monkeypatch, Unsupported("aten.add.Tensor", "t0", "a rule"))
    with pytest.warns(RuntimeWarning, match="one by one"):
        found = drawn()
    assert not torch.equal(wanted[0], wanted[2])
    for got, want in zip(found, wanted, strict=True):
        assert torch.equal(got, want)
