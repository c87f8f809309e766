"""Known traps of accelerators: views, expands and in-place writes (B001-B026, B082-B098).

Small integers, so that the right value is exact in every format of the card. The rows run once more
in a process with poisoned pads (test_traps_poisoned.py).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_bits_equal

half = torch.float16


def counting(*shape: int, modulus: int = 997, dtype: torch.dtype = half) -> torch.Tensor:
    """0, 1, 2, ... below `modulus`, again and again: on the CPU."""
    numel = 1
    for size in shape:
        numel *= size
    return (torch.arange(numel) % modulus).to(dtype).view(shape)


def same_on_card(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> None:
    """`function` of the tensors gives the same bits on both devices."""
    expected = function(*tensors)
    got = function(*(t.to("spyre") for t in tensors))
    assert got.device.type == "spyre"
    assert_bits_equal(got.cpu(), expected)


@pytest.mark.parametrize("length", [1, 63, 64, 65])
def test_b002_clone_of_a_length_beside_a_stick(length: int) -> None:
    same_on_card(torch.clone, counting(length))


@pytest.mark.parametrize("c", [-2.0, -1.0, 1.0, 2.0])
def test_b004_rms_norm_of_a_transposed_view(c: float) -> None:
    rows = torch.full((1, 64, 8, 128), c, dtype=half).to("spyre").transpose(1, 2)
    weight = torch.ones(128, dtype=half, device="spyre")
    of_view = F.rms_norm(rows, (128,), weight=weight, eps=0.0)
    of_copy = F.rms_norm(rows.contiguous(), (128,), weight=weight, eps=0.0)
    expected = torch.full((1, 8, 64, 128), 1.0 if c > 0 else -1.0, dtype=half)
    assert torch.equal(of_view.cpu(), expected) and torch.equal(of_copy.cpu(), expected)


def test_b005_a_transposed_stick_dimension_is_made_contiguous() -> None:
    same_on_card(lambda t: t.t().contiguous(), counting(64, 128))


@pytest.mark.parametrize("shape", [(1, 32, 64, 128), (2, 8, 4, 4), (3, 5, 65, 7)])
def test_b007_b008_contiguous_behind_a_transpose(shape: tuple[int, ...]) -> None:
    same_on_card(lambda t: t.transpose(1, 2).contiguous(), counting(*shape, modulus=509))


def test_b017_channels_last_has_its_strides_or_an_error() -> None:
    x = torch.empty(1, 3, 4, 4, memory_format=torch.channels_last, device="spyre")
    assert x.stride() == (48, 1, 12, 3)


def test_b019_layer_norm_of_a_transposed_view() -> None:
    rows = torch.tensor([[1.0, -1.0], [-1.0, 1.0]] * 5).to("spyre").transpose(0, 1)
    assert_bits_equal(F.layer_norm(rows, (10,), eps=0.0).cpu(), rows.cpu().contiguous())


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32])
def test_b020_repeat_interleave_of_a_small_tensor(dtype: torch.dtype) -> None:
    x = torch.tensor([[1, 2], [3, 4]], dtype=dtype, device="spyre")
    assert x.repeat_interleave(2).cpu().tolist() == [1, 1, 2, 2, 3, 3, 4, 4]


def test_b023_unfold_reads_overlapping_windows() -> None:
    x = torch.arange(10, device="spyre")
    assert (x.unfold(0, 3, 1) + 0).cpu().tolist() == [[i, i + 1, i + 2] for i in range(8)]
    assert x.unfold(0, 4, 2).cpu().tolist() == [list(range(i, i + 4)) for i in (0, 2, 4, 6)]


def test_b025_index_copy_writes_the_indexed_rows_only() -> None:
    rows = torch.stack([torch.ones(8, 128), torch.full((8, 128), 2.0)]).half().to("spyre")
    for dim, shape in ((0, (256, 8, 128)), (1, (8, 256, 128)), (2, (8, 128, 256))):
        cache = torch.zeros(shape, dtype=half, device="spyre")
        cache.index_copy_(dim, torch.tensor([3, 17], device="spyre"), rows.movedim(0, dim))
        got = cache.cpu().movedim(dim, 0)
        assert (got[3] == 1).all() and (got[17] == 2).all()
        assert got.float().sum() == 3 * 1024


def test_b026_a_chain_of_views_reads_through_its_own_strides() -> None:
    same_on_card(
        lambda t: t.reshape(4, 65, 6).permute(2, 0, 1).unsqueeze(1).squeeze(1) + 0,
        counting(12, 130),
    )


# --- broadcasting and expands


def test_b082_a_kept_mean_is_broadcast_over_its_own_row() -> None:
    x = (torch.arange(3.0) + 1).view(1, 3, 1).expand(1, 3, 128).half().to("spyre")
    y = torch.zeros_like(x)
    mean = x.mean(-1, keepdim=True)
    got = (mean + torch.zeros_like(mean) + y).cpu()
    assert torch.equal(got, x.cpu())


def test_b083_an_expanded_column_reads_no_garbage() -> None:
    for dtype in (half, torch.float32, torch.int64):
        column = torch.tensor([[1], [2], [3]], dtype=dtype, device="spyre")
        assert (column.expand(3, 5) * 1).cpu().tolist() == [[r] * 5 for r in (1, 2, 3)]
        one = torch.tensor([[42]], dtype=dtype, device="spyre")
        assert one.expand(1, 4).clone().cpu().tolist() == [[42] * 4]


@pytest.mark.parametrize(
    ("shape", "target"),
    [
        ((1,), (3,)),
        ((65, 1), (65, 130)),
        ((1, 64), (7, 64)),
        ((), (2, 3)),
        ((3, 1, 5), (2, 3, 4, 5)),
    ],
)
def test_b085_broadcast_to_of_shape_pairs(shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    same_on_card(lambda t: torch.broadcast_to(t, target).contiguous(), counting(*shape))


def test_b086_softplus_of_odd_sizes_with_dimensions_of_one() -> None:
    x = torch.linspace(-4, 4, 1729).view(1, 1, 7, 13, 19)
    got = F.softplus(x.to("spyre"), beta=0.5).cpu()
    torch.testing.assert_close(got, F.softplus(x, beta=0.5), rtol=3e-7, atol=1e-7)


# --- in-place, aliasing, scatter, cat


def test_b088_every_offset_of_a_slice_assignment_inside_a_stick() -> None:
    for offset in range(0, 301, 13):
        cache = torch.zeros(2, 3, 301, dtype=half, device="spyre")
        cache[:, :, offset : offset + 1] = 5
        expected = torch.zeros(2, 3, 301, dtype=half)
        expected[:, :, offset] = 5
        assert_bits_equal(cache.cpu(), expected)


@pytest.mark.parametrize("method", ["index_copy_", "index_put_"])
def test_b091_a_flat_view_of_a_cache_is_written(method: str) -> None:
    cache = torch.zeros(1024, 8, 128, dtype=half, device="spyre")
    flat = cache.view(1024, 1024)
    index, rows = torch.arange(64, device="spyre"), torch.ones(64, 1024, dtype=half, device="spyre")
    if method == "index_copy_":
        flat.index_copy_(0, index, rows)
    else:
        flat.index_put_((index,), rows)
    got = cache.cpu()
    assert (got[:64] == 1).all() and (got[64:] == 0).all()


def test_b092_scatter_into_rows_of_a_cache() -> None:
    cache = torch.zeros(256, 8, 128, dtype=half, device="spyre")
    index = torch.tensor([3, 17], device="spyre").view(2, 1, 1).expand(2, 8, 128)
    values = torch.tensor([1.0, 2.0], dtype=half, device="spyre").view(2, 1, 1).expand(2, 8, 128)
    cache.scatter_(0, index, values)
    got = cache.cpu()
    assert (got[3] == 1).all() and (got[17] == 2).all() and got.float().sum() == 3 * 1024


@pytest.mark.parametrize("a", [1, 2, 32, 63, 64, 65, 2048])
def test_b094_cat_along_the_last_dimension(a: int) -> None:
    for b in (1, 2, 32, 63, 64, 65, 2048):
        left = (torch.arange(a) % 500).half()
        right = (2 * (torch.arange(b) % 500)).half()  # even numbers: exact below 1024 and so here
        same_on_card(lambda x, y: torch.cat([x, y], -1), left, right)


def test_b095_cat_of_float32() -> None:
    same_on_card(lambda x, y: torch.cat([x, y], 1), torch.randn(2, 3), torch.randn(2, 3))


@pytest.mark.parametrize("page", [1, 16, 32, 64, 128])
def test_b098_attention_over_pages_does_not_depend_on_the_page_size(page: int) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 128, 32) for _ in range(3))
    order = torch.randperm(128 // page)
    table = torch.argsort(order)  # logical page -> where it lies

    def paged(x: torch.Tensor) -> torch.Tensor:
        pages = x.view(1, 2, 128 // page, page, 32)[:, :, order].to("spyre")
        return pages.index_select(2, table.to("spyre")).reshape(1, 2, 128, 32)

    got = F.scaled_dot_product_attention(q.to("spyre"), paged(k), paged(v)).cpu()
    torch.testing.assert_close(got, F.scaled_dot_product_attention(q, k, v), rtol=1e-5, atol=1e-5)
