"""One program for many sizes: regions whose sizes are symbols, against torch and against programs
for the very sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openspyre.compiler import cache, families, patterns
from openspyre.compiler.bind import bind_view, contiguous_strides, storage_layout
from openspyre.compiler.traced import SizeSymbol, TensorFacts
from openspyre.formats import Mode, format_for
from openspyre.program.expr import Var

NATIVE = True
Function = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(families, "ENABLED", True)
    torch._dynamo.reset()
    cache.forget()
    yield
    torch._dynamo.reset()


def softmax_of_product(n: int) -> tuple[Function, list[torch.Tensor]]:
    return lambda x, w: torch.softmax(torch.relu(x @ w), -1), [
        torch.randn(n, 96).half(),
        torch.randn(96, 200).half(),
    ]


def attention(n: int) -> tuple[Function, list[torch.Tensor]]:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    q, k, v = torch.randn(1, 4, 1, 64), torch.randn(1, 2, n, 64), torch.randn(1, 2, n, 64)
    return function, [q.half(), k.half(), v.half()]


def causal_attention(n: int) -> tuple[Function, list[torch.Tensor]]:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    return function, [torch.randn(1, 2, n, 64).half() for _ in range(3)]


def softmax_along(n: int) -> tuple[Function, list[torch.Tensor]]:
    return lambda x: torch.softmax(x, -1) * 3, [torch.randn(5, n)]


def sums_along(n: int) -> tuple[Function, list[torch.Tensor]]:
    return lambda x: x.sum(0) + x.amax(0), [torch.randn(n, 70)]


def grown_cache(n: int) -> tuple[Function, list[torch.Tensor]]:
    return lambda x, y: torch.cat([x, y], 1) * 2, [torch.randn(2, n, 64), torch.randn(2, 1, 64)]


def size_as_a_number(n: int) -> tuple[Function, list[torch.Tensor]]:
    return lambda x, y: torch.where(y < x.shape[0] - 1, y + x.shape[0], 0) + x.sum().long(), [
        torch.zeros(n, 8),
        torch.arange(50),
    ]


def rows_by_index(n: int) -> tuple[Function, list[torch.Tensor]]:
    return lambda i, t: torch.nn.functional.embedding(i, t) * 2, [
        torch.arange(n) * 7 % 50,
        torch.randn(50, 64),
    ]


def elements_by_index(n: int) -> tuple[Function, list[torch.Tensor]]:
    return lambda x, i: torch.gather(x, 1, i) + 1, [
        torch.randn(5, n),
        torch.arange(5 * n).reshape(5, n) * 3 % n,
    ]


def added_by_index(n: int) -> tuple[Function, list[torch.Tensor]]:
    return lambda x, i: torch.zeros(30, 64, device=x.device).index_add(0, i, x), [
        torch.randn(n, 64),
        torch.arange(n) * 7 % 30,
    ]


def running_sums(n: int) -> tuple[Function, list[torch.Tensor]]:
    return lambda x: torch.cumsum(x, 0) * 2, [torch.randn(n, 70)]


def merged_rows(n: int) -> tuple[Function, list[torch.Tensor]]:
    return lambda x, w: (x.reshape(-1, 64) @ w).reshape(3, -1, 32) + 1, [
        torch.randn(3, n, 64).half(),
        torch.randn(64, 32).half(),
    ]


def positions(n: int) -> tuple[Function, list[torch.Tensor]]:
    return lambda x: x + torch.arange(x.shape[0], device=x.device)[:, None], [torch.randn(n, 40)]


CASES = (
    softmax_of_product, attention, causal_attention, softmax_along, sums_along, grown_cache,
    size_as_a_number, merged_rows, positions, rows_by_index, elements_by_index, added_by_index,
    running_sums,
)  # fmt: skip


LAID_ALIKE = (softmax_of_product, softmax_along, sums_along, merged_rows, positions)
"""Those in which no tensor between two operations may lie in another way under other sizes, which
would add in another order."""


def on_card(function: Function, inputs: list[torch.Tensor]) -> torch.Tensor:
    return function(*[x.to("spyre") for x in inputs]).cpu()


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.__name__))
def test_sizes_of_a_range_share_a_program(
    case: Callable[[int], tuple[Function, list[torch.Tensor]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENSPYRE_VERIFY", "1")
    monkeypatch.setenv("OPENSPYRE_STRICT", "1")
    torch.manual_seed(0)
    compiled: dict[int, int] = {}
    found: dict[int, torch.Tensor] = {}
    sizes = (70, 71, 128, 90, 65, 127, 83, 2, 64, 3, 33)  # two ranges
    cases = {n: case(n) for n in sizes}
    dynamic = torch.compile(cases[sizes[0]][0], dynamic=True)
    for n in sizes:
        before = cache.counts()["compiled"]
        found[n] = on_card(dynamic, cases[n][1])
        compiled[n] = cache.counts()["compiled"] - before
    assert not any(compiled[n] for n in (*sizes[2:7], *sizes[9:])), compiled
    for n in sizes:
        function, inputs = cases[n]
        want = function(*[x.float() if x.is_floating_point() else x for x in inputs])
        assert found[n].shape == want.shape
        torch.testing.assert_close(found[n].to(want.dtype), want, rtol=2e-2, atol=2e-2)
    if case in LAID_ALIKE:
        torch._dynamo.reset()
        function, inputs = cases[90]
        exact = on_card(torch.compile(function, dynamic=False), inputs)
        assert torch.equal(found[90], exact), "not the bits of a program for that size"


def test_an_embedding_before_causal_attention() -> None:
    """Rows by index: their tiles begin at whole sticks under every size."""
    table, weight = torch.randn(50, 64), torch.randn(64, 64) / 8

    def function(tokens: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.embedding(tokens, t)[None, None]
        return torch.nn.functional.scaled_dot_product_attention(x, x @ w, x, is_causal=True)

    dynamic = torch.compile(function, dynamic=True)
    for n in (2, 3, 17, 65, 128):
        tokens = torch.arange(n) * 7 % 50
        want = function(tokens, table, weight)
        torch.testing.assert_close(on_card(dynamic, [tokens, table, weight]), want)


def test_a_size_beyond_the_range_gets_a_program_for_the_next_range() -> None:
    dynamic = torch.compile(lambda x: x * 2 + 1, dynamic=True)
    for n in (10, 60, 64, 65, 128, 300):
        x = torch.randn(n, 33)
        assert torch.equal(on_card(dynamic, [x]), x * 2 + 1)


def test_a_view_and_a_whole_tensor_of_one_size_are_told_apart() -> None:
    dynamic = torch.compile(lambda x: x * 2, dynamic=True)
    base = torch.randn(200, 130)
    on = base.to("spyre")
    for n in (70, 71, 90):
        assert torch.equal(dynamic(base[:n].to("spyre")).cpu(), base[:n] * 2)
        assert torch.equal(dynamic(on[:n]).cpu(), base[:n] * 2)
        assert torch.equal(dynamic(on[3 : 3 + n]).cpu(), base[3 : 3 + n] * 2)
        assert torch.equal(dynamic(on[:, :n]).cpu(), base[:, :n] * 2)


def test_a_size_that_leaves_nothing_is_right() -> None:
    for function in (lambda x: x[:-2].sum(0) + 1, lambda x: x[2:] * 2, lambda x: x[:-2].relu()):
        torch._dynamo.reset()
        dynamic = torch.compile(function, dynamic=True)
        for n in (5, 6, 2, 3, 7):
            x = torch.randn(n, 40)
            torch.testing.assert_close(on_card(dynamic, [x]), function(x))


def test_a_written_tensor_of_symbolic_size() -> None:
    def add_to(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x.sum(-1)

    dynamic = torch.compile(add_to, dynamic=True)
    for n in (5, 6, 40, 65):
        x, y = torch.randn(n, 64), torch.randn(n, 64)
        on = x.to("spyre")
        total = dynamic(on, y.to("spyre")).cpu()
        assert torch.equal(on.cpu(), x + y)
        torch.testing.assert_close(total, (x + y).sum(-1), rtol=1e-5, atol=1e-4)


@given(
    st.lists(st.sampled_from([1, 2, 3, 64, 65, "n"]), min_size=1, max_size=4),
    st.sampled_from(["float16", "float32", "int64"]),
    st.integers(2, 400),
    st.integers(2, 400),
)
@settings(max_examples=300, deadline=None)
def test_a_pattern_holds_for_other_sizes_or_says_that_it_does_not(
    shape: list[int | str], dtype: str, now: int, later: int
) -> None:
    """A whole tensor's pattern, made under one size, is its binding under another one."""
    format = format_for(dtype, Mode.DL16)

    def bound(n: int):  # type: ignore[no-untyped-def]
        sizes = [n if size == "n" else int(size) for size in shape]
        layout = storage_layout(sizes, contiguous_strides(sizes), format)
        return layout, bind_view(layout, sizes, contiguous_strides(sizes))

    strides: list[object] = [1]
    for size in reversed(shape[1:]):
        last = strides[0]
        strides.insert(0, size if last == 1 else last if size == 1 else ["*", size, last])
    facts = TensorFacts(dtype, list(shape), strides)  # type: ignore[arg-type]
    layout, seen = bound(now)
    assert seen is not None
    found = patterns.pattern(facts, seen, layout, 0, {"n": now}, {"n": Var("n")})
    assert found.holds(seen, {"n": now})
    assert found.holds(bound(later)[1], {"n": later})
    if "n" in shape and now != later:
        assert not found.holds(bound(later)[1], {"n": now})


@given(st.integers(2, 5000))
def test_ranges_hold_their_size_and_agree_on_it(value: int) -> None:
    symbol = SizeSymbol("s0", 2, 4096, 10)
    low, high = patterns.range_of(symbol, min(value, 4096))
    assert low <= min(value, 4096) <= high <= 4096
    assert patterns.range_of(symbol, high) == (low, high)
