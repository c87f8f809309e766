"""Known traps of accelerators: dtypes, pads and masks, reductions (rows B028-B080), by fallback.

Small integers, so that the right value is exact in every format of the card. The rows run once more
in a process with poisoned pads (test_traps_poisoned.py).
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import RunPython
from oracles import assert_bits_equal

half = torch.float16
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool]


def on(values: object, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device="spyre")


# --- dtypes and number formats


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_b028_wide_dtypes_are_exact_by_a_counted_fallback(dtype: torch.dtype) -> None:
    torch.spyre.reset_fallback_report()
    x = torch.ones(4, dtype=dtype).to("spyre")
    assert torch.equal((x / 3).cpu(), torch.ones(4, dtype=dtype) / 3)
    assert torch.equal(on([0.5, 3.0]).to(torch.float64).cpu(), torch.tensor([0.5, 3.0]).double())
    assert "div" in str(torch.spyre.fallback_report())
    assert "0.5000" in str(on([0.5, 3.0]))
    with torch.spyre.fallback("error"), pytest.raises(RuntimeError, match="fallback"):
        x + 1


@pytest.mark.parametrize("dtype", INTEGERS)
def test_b029_every_integer_dtype_is_made_on_the_card(dtype: torch.dtype) -> None:
    got = torch.tensor([1, 2, 3, 4], dtype=dtype, device="spyre").cpu()
    assert_bits_equal(got, torch.tensor([1, 2, 3, 4], dtype=dtype))


def test_b031_int64_becomes_float() -> None:
    got = torch.arange(5).to("spyre").float()
    assert got.dtype == torch.float32 and got.cpu().tolist() == [0, 1, 2, 3, 4]


def test_b032_float_casts_round_trip() -> None:
    x = on([0, 0.5, 1, -2], half)
    assert_bits_equal(x.float().half().cpu(), torch.tensor([0, 0.5, 1, -2]).half())
    assert on([False, True]).float().cpu().tolist() == [0, 1]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, half])
def test_b034_comparison_with_a_scalar_is_bool(dtype: torch.dtype) -> None:
    got = on([[0, 1, 2], [3, 1, 4]], dtype) == 1
    assert got.dtype == torch.bool
    assert got.cpu().tolist() == [[False, True, False], [False, True, False]]


def test_b035_a_comparison_is_bool_on_both_sides() -> None:
    truth = torch.ones(64, dtype=half, device="spyre") != torch.zeros(64, device="spyre")
    assert truth.dtype == truth.cpu().dtype == torch.bool and truth.cpu().sum() == 64
    row = truth.half().view(1, 64) @ torch.ones(64, 3, dtype=half, device="spyre")
    assert row.cpu().tolist() == [[64] * 3]


@pytest.mark.parametrize("dtype", [half, torch.bfloat16, torch.float32])
def test_b040_zero_plus_zero_is_zero(dtype: torch.dtype) -> None:
    for shape in ((64,), (), (3, 65)):
        z = torch.zeros(shape, dtype=dtype, device="spyre")
        assert_bits_equal((z + z).cpu(), torch.zeros(shape, dtype=dtype))
        z += z
        assert_bits_equal(z.cpu(), torch.zeros(shape, dtype=dtype))


@pytest.mark.parametrize("dtype", [half, torch.float32])
def test_b041_minus_zero_equals_zero(dtype: torch.dtype) -> None:
    a, b = on([-0.0, -0.0], dtype), on([0.0, 0.0], dtype)
    assert (a == b).all() and (a >= b).all() and not (a != b).any() and not (a < b).any()


def test_b043_sine_and_cosine_of_nan_are_nan() -> None:
    x = torch.full((1, 1, 2, 2, 3), math.nan, device="spyre")
    assert x.cos().isnan().all() and x.sin().isnan().all()


def test_b044_division_by_zero() -> None:
    got = (on([1.0, -1.0, 0.0]) / 0.0).cpu()
    assert got[0] == math.inf and got[1] == -math.inf and got[2].isnan()


@pytest.mark.parametrize("dtype", [half, torch.float32])
def test_b046_b047_small_float_tensors_are_right_in_every_row(dtype: torch.dtype) -> None:
    added = torch.full((4, 8), 7.0, dtype=dtype).to("spyre") + torch.full(
        (4, 8), 9.0, dtype=dtype, device="spyre"
    )
    assert (added.cpu() == 16).all()
    divided = torch.full((4, 64), 33.0, dtype=dtype, device="spyre") / torch.full(
        (4, 64), 2.0, dtype=dtype, device="spyre"
    )
    assert (divided.cpu() == 16.5).all()


def test_b049_ieee_products_are_rounded_correctly(run_python: RunPython) -> None:
    run_python(
        """
import torch
a = (1 + torch.arange(0, 1024, 5).double() / 1024)
exact = a[:, None] * a[None, :]
got = (a.half().to("spyre")[:, None] * a.half().to("spyre")[None, :]).cpu()
assert torch.equal(got, exact.half())
""",
        {"OPENSPYRE_NUMERICS": "ieee"},
    )


@pytest.mark.parametrize(
    ("a", "b"), [((5, 1), (5,)), ((10, 5), ()), ((5, 10, 5), (10, 5)), ((0, 5), (5,))]
)
def test_b050_bitwise_and_of_uint8_broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    got = torch.full(a, 6, dtype=torch.uint8, device="spyre") & torch.full(
        b, 3, dtype=torch.uint8, device="spyre"
    )
    assert got.dtype == torch.uint8 and (got.cpu() == 2).all()


@pytest.mark.parametrize("name", ["add", "mul", "where"])
def test_b053_every_pair_of_dtypes_is_promoted_as_torch_says(name: str) -> None:
    dtypes = [*INTEGERS, half, torch.bfloat16, torch.float32, torch.float64]
    for first, second in itertools.product(dtypes, dtypes):
        a, b = torch.ones(3, dtype=first), torch.tensor([1, 0, 1]).to(second)

        def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            if name == "where":
                return torch.where(torch.tensor([True, False, True], device=x.device), x, y)
            return getattr(torch, name)(x, y)

        got = run(a.to("spyre"), b.to("spyre"))
        assert got.dtype == torch.result_type(a, b)
        assert_bits_equal(got.cpu(), run(a, b))


# --- pads, masks, softmax


@pytest.mark.parametrize("dtype", [half, torch.float32])
def test_b055_pads_do_not_win_a_reduction(dtype: torch.dtype) -> None:
    ones = torch.ones(3, 3, dtype=dtype, device="spyre")
    assert torch.amin(ones, (0, 1)).item() == 1
    assert torch.amax(-ones, (0, 1)).item() == -1


def test_b056_float32_reductions_of_part_of_a_stick() -> None:
    assert torch.arange(20, dtype=torch.float32, device="spyre").sum().item() == 190
    got = torch.softmax(torch.zeros(7, device="spyre"), 0).cpu()
    assert torch.equal(got, torch.softmax(torch.zeros(7), 0))


def test_b058_softmax_leaks_nothing_to_masked_places() -> None:
    scores = on([0.0] * 2 + [-math.inf] * 62, half)
    weights = torch.softmax(scores, 0)
    assert weights.cpu().tolist() == [0.5, 0.5] + [0.0] * 62
    values = torch.ones(64, 3, dtype=half)
    values[2:] = 1000
    assert (weights.view(1, 64) @ values.to("spyre")).cpu().tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("width", [96, 24608])
def test_b059_padding_and_cat_of_a_length_beside_a_stick(width: int) -> None:
    x = torch.ones(1, width, device="spyre")
    for got in (F.pad(x, [0, 32]), torch.cat([x, torch.zeros(1, 32, device="spyre")], 1)):
        assert got.sum().item() == width and (got.cpu()[:, width:] == 0).all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_b061_sum_of_integers_over_a_short_last_dimension(dtype: torch.dtype) -> None:
    x = on([[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [10, 11, 12]]], dtype)
    assert x.sum(2, keepdim=True).cpu().tolist() == [[[6], [15]], [[24], [33]]]


def test_b062_argmax_of_negative_logits_stays_in_the_vocabulary() -> None:
    logits = torch.full((2, 50257), -5.0)
    logits[0, 50256], logits[1, 7] = -1.0, -1.0
    for dtype in (half, torch.float32):
        assert logits.to(dtype).to("spyre").argmax(-1).cpu().tolist() == [50256, 7]


@pytest.mark.parametrize("width", [1, 31, 33, 63, 65, 129])
def test_b064_rows_of_softmax_sum_to_one(width: int) -> None:
    x = torch.linspace(-3, 3, 5 * width).view(5, width)
    got = torch.softmax(x.to("spyre"), -1).cpu()
    assert torch.equal(got, torch.softmax(x, -1))
    torch.testing.assert_close(got.sum(-1), torch.ones(5))


@pytest.mark.parametrize("dtype", [half, torch.float32])
def test_b065_b067_attention_over_part_of_a_stick(dtype: torch.dtype) -> None:
    keys = torch.eye(5, 33)
    query = 60 * keys[3].expand(1, 1, 2, 33)  # strongly peaked on key 3
    values = torch.arange(5.0).view(5, 1).expand(5, 33).contiguous()
    q, k, v = (t.to(dtype).to("spyre") for t in (query, keys[None, None], values[None, None]))
    got = F.scaled_dot_product_attention(q, k, v).cpu().float()
    assert not got.isnan().any()
    torch.testing.assert_close(got, torch.full((1, 1, 2, 33), 3.0), rtol=2e-3, atol=2e-3)


def test_b068_a_fully_masked_row_is_as_on_the_cpu() -> None:
    q, k, v = (
        torch.randn(1, 1, 4, 8, generator=torch.Generator().manual_seed(i)) for i in range(3)
    )
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    a, b, c, m = (t.to("spyre") for t in (q, k, v, mask))
    got = F.scaled_dot_product_attention(a, b, c, attn_mask=m).cpu()
    torch.testing.assert_close(got, expected, equal_nan=True)


# --- reductions, argmax, topk


def test_b070_reductions_over_all_dimensions_of_rank_five() -> None:
    x = torch.ones(2, 3, 5, 7, 256, device="spyre")
    assert x.sum((0, 1, 2, 3, 4)).item() == 53760 and x.mean().item() == 1
    assert x.amax().item() == 1 == x.amin().item()


@pytest.mark.parametrize("shape", [(2, 2, 5, 3, 4, 128), (1, 2, 1, 3, 1, 65), (7, 1, 1, 1, 2, 33)])
def test_b071_reductions_of_rank_six(shape: tuple[int, ...]) -> None:
    got = torch.ones(shape, dtype=half, device="spyre").sum(-1).cpu()
    assert got.shape == shape[:-1] and (got == shape[-1]).all()


def test_b073_amin_and_amax() -> None:
    x = (torch.arange(3 * 70) * 37 % 101).view(3, 70).half()
    for dim in (0, 1):
        assert torch.equal(torch.amin(x.to("spyre"), dim).cpu(), torch.amin(x, dim))
        assert torch.equal(torch.amax(x.to("spyre"), dim).cpu(), torch.amax(x, dim))


@pytest.mark.parametrize("rows", [31, 32, 33, 64])
def test_b074_every_row_of_a_mean_is_right(rows: int) -> None:
    x = torch.zeros(rows, 768)
    x[:, :384] = 1
    assert (x.to("spyre").mean(-1).cpu() == 0.5).all()


def test_b076_any_over_two_of_three_dimensions() -> None:
    x = torch.zeros(2, 3, 4, dtype=torch.bool, device="spyre")
    x[1, 2, 3] = True
    assert torch.any(x, dim=(1, 2)).cpu().tolist() == [False, True]


def test_b077_sums_of_bfloat16_integers_are_exact() -> None:
    x = torch.arange(64).view(16, 4).to(torch.bfloat16)
    assert torch.equal(x.to("spyre").sum(1).cpu(), x.double().sum(1).to(torch.bfloat16))


def test_b079_max_gives_the_first_index() -> None:
    values, indices = on([[3, 9, 4], [8, 1, 8]]).max(1)
    assert values.cpu().tolist() == [9, 8] and indices.cpu().tolist() == [1, 0]
