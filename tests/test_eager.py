"""Eager operations on the card: dispatch, in-place and out= forms, views, errors, the account."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from openspyre import _C
from openspyre.compiler import cache

NATIVE = True
pytestmark = pytest.mark.usefixtures("strict")


def same(
    function: Callable[..., Any], *args: torch.Tensor, launches: int | None = None
) -> torch.Tensor:
    """`function` on the card gives what it gives on the CPU, arguments included, natively."""
    on_card = [a.to("spyre") for a in args]
    before = _C.native_counts()["launches"]
    with torch.spyre.fallback("error"):
        result = function(*on_card)
    made = _C.native_counts()["launches"] - before
    on_host = [a.clone(memory_format=torch.preserve_format) for a in args]
    expected = function(*on_host)
    assert result.dtype == expected.dtype
    assert result.stride() == expected.stride()
    torch.testing.assert_close(result.cpu(), expected)
    for a, b in zip(on_card, on_host, strict=True):
        torch.testing.assert_close(a.cpu(), b)
    if launches is not None:
        assert made == launches
    return result


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def test_an_operation_is_one_launch_and_no_fallback() -> None:
    same(lambda x, y: x + y, numbers(3, 70), numbers(3, 70), launches=1)
    assert len(torch.spyre.fallback_report()) == 0


def test_operands_broadcast_and_expand() -> None:
    same(lambda x, y: x * y, numbers(3, 70), numbers(70))
    same(lambda x, y: x - y, numbers(3, 70), numbers(3, 1))
    same(lambda x: x.expand(3, 70) * 2, numbers(1, 70))


def test_numbers_are_symbols_of_one_program() -> None:
    x = numbers(5, 33).to("spyre")
    x + 1.0
    before = _C.native_counts()["misses"]
    for value in (2.0, -3.5, 1e30):
        torch.testing.assert_close((x + value).cpu(), x.cpu() + value)
    assert _C.native_counts()["misses"] == before


def test_zero_dim_host_tensors_are_numbers() -> None:
    same(lambda x: x + torch.tensor(2.0), numbers(3, 70))
    same(lambda x: x.sum() * 3, numbers(3, 70))


def test_in_place_forms_write_the_argument() -> None:
    same(lambda x, y: x.add_(y), numbers(3, 70), numbers(3, 70), launches=1)
    same(lambda x: x.mul_(x), numbers(3, 70), launches=1)
    same(lambda x, y: x.t().add_(y), numbers(70, 3), numbers(3, 70))


def test_in_place_on_parts_of_sticks_keeps_the_neighbours() -> None:
    same(lambda x: x[1:, :40].add_(1), numbers(4, 128))
    same(lambda x: x[1:3, 64:].mul_(2), numbers(4, 128))
    same(lambda x: x[:, 3:9].mul_(2), numbers(4, 128))


def test_out_arguments() -> None:
    x, y = numbers(3, 70), numbers(3, 70)
    out = torch.empty(3, 70, device="spyre")
    assert torch.add(x.to("spyre"), y.to("spyre"), out=out) is out
    torch.testing.assert_close(out.cpu(), x + y)
    resized = torch.empty(0, device="spyre")
    torch.add(x.to("spyre"), y.to("spyre"), out=resized)
    torch.testing.assert_close(resized.cpu(), x + y)


def test_views_are_read_where_they_lie() -> None:
    same(lambda x: x[1:, 64:] + 1, numbers(4, 128), launches=1)
    same(lambda x: x[1:, 3:] + 1, numbers(4, 128))
    same(lambda x: x.t() + 1, numbers(4, 128))
    same(lambda x: x.view(3, 4, 64).transpose(0, 1) + 1, numbers(3, 256), launches=1)


def test_other_rows_of_a_storage_need_no_new_program() -> None:
    x = numbers(6, 70)
    on_card = x.to("spyre")
    on_card[1] + 1
    before = _C.native_counts()["misses"]
    for row in range(2, 6):
        torch.testing.assert_close((on_card[row] + 1).cpu(), x[row] + 1)
    assert _C.native_counts()["misses"] == before


def test_overlapping_arguments_behave_as_on_the_cpu() -> None:
    x = torch.arange(128.0)
    on_card = x.to("spyre")
    with pytest.raises(RuntimeError):
        x[1:].add_(x[:-1])
    with pytest.raises(RuntimeError):
        on_card[1:].add_(on_card[:-1])


def test_channels_last_is_kept() -> None:
    x = numbers(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    same(lambda v: v + 1, x, launches=1)


def test_tensors_without_elements() -> None:
    same(lambda x: x + 1, torch.empty(0, 3))


def test_integers_and_truth() -> None:
    same(lambda x: x + x, torch.arange(70))
    same(lambda x: x + 1.5, torch.arange(70))
    same(lambda x, y: x > y, numbers(3, 70), numbers(3, 70))


def test_errors_are_torchs() -> None:
    x, y = torch.ones(3, device="spyre"), torch.ones(4, device="spyre")
    with pytest.raises(RuntimeError, match="size of tensor a"):
        x + y
    with pytest.raises(RuntimeError):
        torch.ones(3, dtype=torch.int64, device="spyre").add_(1.5)


def test_autograd_goes_through() -> None:
    x = numbers(3, 70).to("spyre").requires_grad_()
    (x * x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad.cpu(), 2 * x.detach().cpu())


def test_what_the_card_does_not_do_is_in_the_account_with_its_reason() -> None:
    x = torch.ones(8, dtype=torch.float64, device="spyre")
    torch.testing.assert_close((x + 1).cpu(), torch.full((8,), 2.0, dtype=torch.float64))
    row = torch.spyre.fallback_report()["aten::add.out"]
    assert any("float64" in note for note in row.notes)


def test_errors_of_the_compiler_fall_back_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:

    def broken(*_: object) -> None:
        raise AssertionError("a fault")

    monkeypatch.setattr(cache, "compiled", broken)
    x = numbers(7, 11)
    with pytest.raises(AssertionError, match="a fault"):
        x.to("spyre") * 3
    monkeypatch.setenv("OPENSPYRE_STRICT", "0")
    with pytest.warns(RuntimeWarning, match="a fault"):
        result = x.to("spyre") * 5
    torch.testing.assert_close(result.cpu(), x * 5)
    assert "a fault" in str(torch.spyre.fallback_report())
    _C.native_clear()


def test_release_gives_back_the_plans_of_eager_and_compiled_code() -> None:
    x = numbers(64)
    on_card = x.to("spyre")
    compiled = torch.compile(lambda t: (t + 1).relu())
    torch.spyre.plans.release()
    before = torch.spyre.memory_stats()["program_bytes.current"]
    _ = on_card - on_card, compiled(on_card)
    assert len(torch.spyre.plans.images()) >= 2
    assert torch.spyre.memory_stats()["program_bytes.current"] > before
    torch.spyre.plans.release()
    assert torch.spyre.plans.images() == []
    assert torch.spyre.memory_stats()["program_bytes.current"] == before
    torch.testing.assert_close((on_card + on_card).cpu(), x + x)
    torch.testing.assert_close(compiled(on_card).cpu(), (x + 1).relu())


def test_cat_leaves_out_tensors_without_elements() -> None:
    x = numbers(3, 64)
    same(lambda t: torch.cat([t.new_empty(0), t, t]), x, launches=1)
    same(lambda t: torch.cat([t[:0], t.new_empty(0)]), x)
    same(lambda t: torch.cat([t[:, :0], t], 1), x, launches=1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_windows_are_added_up_whatever_lies_on_the_stick(dtype: torch.dtype) -> None:
    x = numbers(2, 27, 12).to(dtype)
    on_card = x.to("spyre")
    wide = torch.nn.functional.fold(on_card.cpu().float(), (5, 6), 3)
    with torch.spyre.fallback("error"):
        found = torch.nn.functional.fold(on_card, (5, 6), 3)
    torch.testing.assert_close(found.cpu().float(), wide, rtol=4e-3, atol=4e-3)


def test_plans_may_be_given_back_while_another_call_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = cache.compiled

    def meanwhile(*args: Any) -> Any:
        torch.spyre.plans.release()
        return honest(*args)

    monkeypatch.setattr(cache, "compiled", meanwhile)
    x = numbers(9, 71)
    same(lambda t: t * 2 - 1, x)
    compiled = torch.compile(lambda t: (t * 2 - 1).relu())
    for _ in range(2):
        torch.testing.assert_close(compiled(x.to("spyre")).cpu(), (x * 2 - 1).relu())
