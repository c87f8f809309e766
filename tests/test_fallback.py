"""Operations that the CPU computes: policy, account, aliasing, out=, devices, 16-bit products."""

# torch's stubs know neither the generated names nor what a test has made sure of.
# mypy: disable-error-code="arg-type,union-attr"

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import RunPython
from hypothesis import given
from hypothesis import strategies as st
from oracles import assert_bits_equal, decode_dl16, encode_dl16

spyre = torch.spyre


@pytest.fixture(autouse=True)
def fresh_account() -> Iterator[None]:
    before = spyre.fallback_policy()
    spyre.fallback("allow")
    spyre.reset_fallback_report()
    yield
    spyre.fallback(before)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape).to(dtype)


# ---- policy and account -----------------------------------------------------------------------


def test_account_has_calls_and_bytes_of_both_directions() -> None:
    x = numbers(4, 4).to("spyre")
    spyre.reset_fallback_report()
    for _ in range(3):
        x.exp()
    report = spyre.fallback_report()
    assert [row.operation for row in report.rows] == ["aten::exp.out"]
    row = report["aten::exp.out"]
    assert (row.calls, row.bytes_to_host, row.bytes_to_device) == (3, 3 * 64, 3 * 64)
    spyre.reset_fallback_report()
    assert len(spyre.fallback_report()) == 0


def test_error_policy_names_operation_arguments_rule_and_way_out() -> None:
    x = numbers(2, 3, dtype=torch.float16).to("spyre")
    with spyre.fallback("error"):
        assert spyre.fallback_policy() == "error"
        with pytest.raises(NotImplementedError) as caught:
            x.exp_()
    text = str(caught.value)
    for part in ("aten::exp", "Half[2, 3]", "spyre:0", "'error'", 'fallback("allow")'):
        assert part in text
    assert "OPENSPYRE_FALLBACK" in text
    assert spyre.fallback_policy() == "allow"
    assert torch.equal(x.cpu(), numbers(2, 3, dtype=torch.float16))
    assert len(spyre.fallback_report()) == 0


def test_pt33_error_policy_also_stops_random_and_convolution() -> None:
    x = torch.ones(1, 1, 4, 4, device="spyre")
    with spyre.fallback("error"):
        for compute in (
            lambda: x.normal_(),
            lambda: torch.randperm(3, device="spyre"),
            lambda: torch.nn.functional.conv2d(x, x),
            lambda: torch.dropout(x, 0.5, True),
        ):
            with pytest.raises(NotImplementedError, match="fallback policy"):
                compute()
    assert torch.equal(x.cpu(), torch.ones(1, 1, 4, 4))


def test_error_policy_reaches_the_backward_threads() -> None:
    x = torch.ones(3, device="spyre", requires_grad=True)
    y = x.exp().sum()
    with spyre.fallback("error"), pytest.raises(NotImplementedError, match="fallback policy"):
        y.backward()


def test_warn_policy_warns_once_per_operation() -> None:
    x = numbers(3).to("spyre")
    with spyre.fallback("warn"), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        x.exp()
        x.exp()
        x.sin()
    texts = [str(w.message) for w in seen]
    assert sum("aten::exp.out" in text for text in texts) == 1
    assert sum("aten::sin.out" in text for text in texts) == 1


def test_unknown_policy_is_a_value_error_and_changes_nothing() -> None:
    with pytest.raises(ValueError, match="allow"):
        torch.spyre.fallback("maybe")
    with pytest.raises(ValueError, match="allow"):
        __import__("openspyre")._C.fallback_set_policy("maybe")
    assert spyre.fallback_policy() == "allow"


def test_account_is_exact_under_threads() -> None:
    x = numbers(8).to("spyre")
    spyre.reset_fallback_report()

    def work() -> None:
        for _ in range(200):
            torch.neg(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    row = spyre.fallback_report()["aten::neg.out"]
    assert (row.calls, row.bytes_to_host, row.bytes_to_device) == (800, 800 * 32, 800 * 32)


# ---- written arguments ------------------------------------------------------------------------


def test_in_place_on_a_view_reaches_the_base_and_nothing_else() -> None:
    expected = numbers(3, 70)
    x = expected.to("spyre")
    expected[:, 1:65:3].mul_(2)
    returned = x[:, 1:65:3]
    assert returned.mul_(2) is returned
    assert_bits_equal(x.cpu(), expected)


@given(
    start=st.integers(0, 5),
    step=st.integers(1, 4),
    transpose=st.booleans(),
    op=st.sampled_from(["mul_", "add_", "sub_"]),
)
def test_in_place_on_any_view_equals_cpu(start: int, step: int, transpose: bool, op: str) -> None:
    cpu = numbers(7, 66)
    device = cpu.to("spyre")
    for base in (cpu, device):
        view = base.t() if transpose else base
        getattr(view[start::step, 1::2], op)(3)
    assert_bits_equal(device.cpu(), cpu)


def test_same_tensor_twice() -> None:
    x = numbers(5).to("spyre")
    x.add_(x)
    assert torch.equal(x.cpu(), numbers(5) * 2)
    torch.mul(x, x, out=x)
    assert torch.equal(x.cpu(), (numbers(5) * 2) ** 2)
    torch._foreach_add_([x, x], 1)
    assert torch.equal(x.cpu(), (numbers(5) * 2) ** 2 + 2)


def test_overlapping_views_of_one_storage_behave_as_on_cpu() -> None:
    cpu = numbers(6)
    device = cpu.to("spyre")
    for x in (cpu, device):
        torch._foreach_add_([x[:4], x[2:]], [1, 10])
    assert torch.equal(device.cpu(), cpu)
    with pytest.raises(RuntimeError, match="single memory location"):
        device[1:].add_(device[:-1])
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.ones(1, device="spyre").expand(3).add_(1)
    assert torch.equal(device.cpu(), cpu)


def test_writing_beside_a_view_of_another_dtype_is_refused() -> None:
    x = numbers(4).to("spyre")
    with pytest.raises(NotImplementedError, match="different dtypes"):
        torch.eq(x, 1, out=x.view(torch.bool)[:4])
    assert torch.equal(x.cpu(), numbers(4))


def test_out_is_resized_and_keeps_its_storage() -> None:
    x = numbers(3, 4).to("spyre")
    out = torch.empty(0, device="spyre")
    assert torch.exp(x, out=out) is out
    assert out.shape == (3, 4)
    assert torch.equal(out.cpu(), torch.exp(numbers(3, 4)))
    base = torch.zeros(4, 6, device="spyre")
    torch.add(x, 1, out=base.t()[1:4, :])
    expected = torch.zeros(4, 6)
    torch.add(numbers(3, 4), 1, out=expected.t()[1:4, :])
    assert torch.equal(base.cpu(), expected)


def test_out_of_a_result_with_gaps_is_dense() -> None:
    a, b = torch.randn(4, 3), torch.randn(4, 3)
    got = torch.linalg.lstsq(a.to("spyre"), b.to("spyre")).solution
    torch.testing.assert_close(got.cpu(), torch.linalg.lstsq(a, b).solution)


def test_several_outputs_with_out() -> None:
    x = torch.tensor([[3.0, 9, 4], [8, 1, 8]])
    values = torch.empty(2, device="spyre")
    indices = torch.empty(2, dtype=torch.int64, device="spyre")
    got = torch.max(x.to("spyre"), 1, out=(values, indices))
    assert got[0] is values and got[1] is indices
    assert values.tolist() == [9, 8] and indices.tolist() == [1, 0]
    values, indices = torch.sort(x.to("spyre"), dim=1, out=(values, indices))
    assert torch.equal(values.cpu(), x.sort(1).values)
    assert torch.equal(indices.cpu(), x.sort(1).indices)


def test_composites_that_list_their_devices_are_served() -> None:
    x = torch.tensor([[1.0, 2, 2], [3, 3, 1]])
    values = torch.empty(0, device="spyre")
    indices = torch.empty(0, dtype=torch.int64, device="spyre")
    torch.mode(x.to("spyre"), 1, out=(values, indices))
    assert torch.equal(values.cpu(), x.mode(1).values)
    assert torch.equal(indices.cpu(), x.mode(1).indices)


def test_out_of_the_wrong_dtype_is_refused_as_on_cpu() -> None:
    x = numbers(3).to("spyre")
    out = torch.zeros(3, dtype=torch.int32, device="spyre")
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.exp(x, out=out)
    half = x.half().reshape(1, 3)
    with pytest.raises(RuntimeError):
        torch.mm(half, half.t(), out=torch.empty(1, 1, device="spyre"))
    assert torch.equal(out.cpu(), torch.zeros(3, dtype=torch.int32))


def test_foreach_lists_longer_than_a_linear_search() -> None:
    cpu = [numbers(i % 5 + 1) for i in range(40)]
    device = [x.to("spyre") for x in cpu]
    torch._foreach_mul_(cpu, 3.0)
    torch._foreach_mul_(device, 3.0)
    for a, b in zip(device, cpu, strict=True):
        assert torch.equal(a.cpu(), b)
    sums = torch._foreach_add(device, device)
    for a, b in zip(sums, torch._foreach_add(cpu, cpu), strict=True):
        assert a.device.type == "spyre" and torch.equal(a.cpu(), b)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {}])
def test_adam_equals_cpu(options: dict[str, bool]) -> None:
    start = [numbers(4, 3) / 7, numbers(5) / 3]
    cpu = [x.clone().requires_grad_() for x in start]
    device = [x.to("spyre").requires_grad_() for x in start]
    for parameters in (cpu, device):
        optimizer = torch.optim.AdamW(parameters, lr=0.1, **options)
        for _ in range(3):
            optimizer.zero_grad()
            sum((p * p).sum() for p in parameters).backward()
            optimizer.step()
    for a, b in zip(device, cpu, strict=True):
        torch.testing.assert_close(a.detach().cpu(), b.detach())


@pytest.mark.parametrize("kind", [torch.nn.BatchNorm1d, torch.nn.InstanceNorm1d])
def test_running_statistics_are_updated_in_training_only(kind: type[torch.nn.Module]) -> None:
    cpu = kind(3, affine=True, track_running_stats=True)
    device = kind(3, affine=True, track_running_stats=True).to("spyre")
    x = numbers(4, 3, 5) / 7
    for training in (True, False):
        cpu.train(training)
        device.train(training)
        torch.testing.assert_close(device(x.to("spyre")).cpu(), cpu(x), rtol=1e-4, atol=1e-5)
        for a, b in zip(device.buffers(), cpu.buffers(), strict=True):
            torch.testing.assert_close(a.cpu(), b)


def test_an_operation_that_fails_writes_nothing() -> None:
    x = numbers(4).to("spyre")
    index = torch.tensor([0, 9], device="spyre")
    with pytest.raises((RuntimeError, IndexError)):
        x.index_fill_(0, index, 5.0)
    assert torch.equal(x.cpu(), numbers(4))


# ---- lists, optional lists, results -----------------------------------------------------------


def test_tensor_lists_and_optional_index_lists() -> None:
    x = numbers(4, 5)
    d = x.to("spyre")
    assert torch.equal(torch.cat([d, d + 1], 1).cpu(), torch.cat([x, x + 1], 1))
    rows = torch.tensor([2, 0])
    assert torch.equal(d[:, rows.to("spyre")].cpu(), x[:, rows])
    assert torch.equal(d[:, rows].cpu(), x[:, rows])  # CUDA takes CPU index tensors too
    d[rows] = torch.full((2, 5), 7.0, device="spyre")
    x[rows] = 7.0
    assert torch.equal(d.cpu(), x)
    pieces = torch._foreach_exp([d, d[0]])
    assert [p.shape for p in pieces] == [(4, 5), (5,)]


def test_results_keep_the_strides_of_the_cpu_result() -> None:
    x = numbers(2, 3, 4, 5)
    for view in (
        x.permute(0, 2, 3, 1),
        x.contiguous(memory_format=torch.channels_last),
        x[:, :, ::2],
    ):
        device = view.to("spyre")
        device = (
            device
            if device.stride() == view.stride()
            else device.as_strided(view.size(), device.stride())
        )
        assert torch.exp(device).stride() == torch.exp(device.cpu()).stride()


def test_results_of_compressed_sparse_layout_are_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="SparseCsr"):
        torch.eye(3, device="spyre").to_sparse_csr()


def test_device_arguments_are_served() -> None:
    got = torch.tril_indices(3, 3, device="spyre")
    assert got.device == torch.device("spyre", 0)
    assert torch.equal(got.cpu(), torch.tril_indices(3, 3))


# ---- devices ----------------------------------------------------------------------------------


def test_b146_cpu_tensors_beside_device_tensors() -> None:
    d, c = numbers(3).to("spyre"), numbers(3)
    for compute in (
        lambda: d + c,
        lambda: c + d,
        lambda: d.add_(c),
        lambda: torch.add(d, d, out=c),
        lambda: torch.dot(d, c),
        lambda: torch.cat([d, c]),
        lambda: torch.tensor(1.0).add_(d.sum()),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            compute()
    assert torch.equal((d + torch.tensor(2.0)).cpu(), c + 2)
    assert torch.equal((torch.tensor(2.0) * d).cpu(), c * 2)
    assert (d + torch.tensor(2.0, dtype=torch.float64)).dtype == torch.float32


def test_tensors_of_two_devices_are_refused(run_python: RunPython) -> None:
    run_python(
        """
import torch
a, b = torch.ones(3, device="spyre:0"), torch.ones(3, device="spyre:1")
for compute in (lambda: a + b, lambda: torch.mm(a[None], b[:, None]), lambda: torch.cat([a, b])):
    try:
        compute()
    except RuntimeError as error:
        assert "same device" in str(error) and "spyre:0" in str(error), error
    else:
        raise AssertionError("no error")
assert (b + b).device == torch.device("spyre:1")
assert torch.tril_indices(2, 2, device="spyre:1").device == torch.device("spyre:1")
""",
        {"OPENSPYRE_DEVICES": "0,1"},
    )


# ---- operations that a copy cannot serve ------------------------------------------------------


def test_pt5_a_view_operation_is_refused_not_copied() -> None:
    library = torch.library.Library("spyre_test_views", "DEF")
    library.define("first(Tensor(a) x) -> Tensor(a)")
    library.impl("first", lambda x: x[0], "CPU")
    x = numbers(2, 2).to("spyre")
    with pytest.raises(NotImplementedError, match=r"spyre_test_views::first.*view"):
        torch.ops.spyre_test_views.first(x)


def test_custom_operations_fall_back_and_may_be_defined_anew() -> None:
    for factor in (2, 3):
        library = torch.library.Library("spyre_test_custom", "DEF")
        library.define("scale_(Tensor(a!) x, Tensor[] more) -> Tensor(a!)")
        library.impl("scale_", lambda x, more, f=factor: x.mul_(f).add_(more[0]), "CPU")
        x = numbers(4).to("spyre")
        assert torch.ops.spyre_test_custom.scale_(x, [x]) is x
        # `more[0]` is x itself, scaled by then
        assert torch.equal(x.cpu(), numbers(4) * factor * 2)
        library._destroy()


def test_an_operation_without_any_cpu_kernel_is_named() -> None:
    x = torch.ones(1, 1, 4, 4, device="spyre")
    with pytest.raises(NotImplementedError, match=r"aten::_conv_depthwise2d.*none on the CPU"):
        torch.ops.aten._conv_depthwise2d(x, x, [4, 4], None, [1, 1], [0, 0], [1, 1])


# ---- 16-bit products --------------------------------------------------------------------------


def rounded_to_card(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What a float32 result becomes when it is stored as a 16-bit tensor of the dl16 mode."""
    codes = encode_dl16(values.double().numpy(), largest_finite=None)
    return torch.from_numpy(decode_dl16(codes)).float().to(dtype).reshape(values.shape)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16bit_products_are_those_of_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = (torch.randn(33, 200).to(dtype).to("spyre") for _ in range(2))
    x, y = a.cpu().float(), b.cpu().float()
    bias = torch.randn(33).to(dtype).to("spyre")
    cases = [
        (torch.mm(a, b.t()), torch.mm(x, y.t())),
        (torch.mv(a, b[0]), torch.mv(x, y[0])),
        (torch.dot(a[0], b[0]), torch.dot(x[0], y[0])),
        (torch.bmm(a[None], b.t()[None]), torch.bmm(x[None], y.t()[None])),
        (torch.addmm(bias, a, b.t()), torch.addmm(bias.cpu().float(), x, y.t())),
        (torch.nn.functional.linear(a, b, bias), torch.addmm(bias.cpu().float(), x, y.t())),
        (torch.einsum("ik,jk->ij", a, b), torch.einsum("ik,jk->ij", x, y)),
        (
            torch.baddbmm(bias[None, None], a[None], b.t()[None]),
            torch.baddbmm(bias.cpu().float()[None, None], x[None], y.t()[None]),
        ),
    ]
    for got, want in cases:
        assert got.dtype == dtype
        # float32 products may differ in the last bit with the operands' alignment: one code.
        expected = rounded_to_card(want, dtype).float()
        ulp = expected.abs().clamp(min=1e-3) * 2.0**-8
        assert ((got.cpu().float() - expected).abs() <= ulp).all()
        assert (got.cpu().float() == expected).float().mean() > 0.95
    notes = spyre.fallback_report()["aten::mm.out"].notes
    assert notes == ("16-bit operands in float32",)


def test_16bit_sums_of_products_beyond_float16_do_not_overflow_inside() -> None:
    a = torch.full((1, 64), 200.0, dtype=torch.float16, device="spyre")
    b = torch.full((64, 1), 200.0, dtype=torch.float16, device="spyre")
    b[32:] = -200.0
    assert torch.mm(a, b).item() == 0.0  # 32 * 40000 leaves the float16 range on the way


def test_mixed_operand_dtypes_are_refused_as_on_cpu() -> None:
    a = torch.ones(2, 2, device="spyre")
    with pytest.raises(RuntimeError, match="dtype"):
        torch.mm(a, a.half())


def test_b052_products_of_fp8_with_scales() -> None:
    a = torch.full((16, 128), 0.25).to(torch.float8_e4m3fn).to("spyre")
    w = torch.full((128, 128), 0.25).to(torch.float8_e4m3fn).to("spyre")
    one = torch.ones((), device="spyre")
    got = torch._scaled_mm(a, w.t(), one, one, out_dtype=torch.bfloat16)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got.cpu().float(), torch.full((16, 128), 8.0))
    rows = torch.arange(1, 17, dtype=torch.float32, device="spyre").reshape(16, 1)
    columns = torch.ones(1, 128, device="spyre")
    got = torch._scaled_mm(a, w.t(), rows, columns, out_dtype=torch.float32)
    assert torch.equal(got.cpu(), 8.0 * rows.cpu().expand(16, 128))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_equals_float32(dtype: torch.dtype, causal: bool) -> None:
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 3, 9, 16).to(dtype).to("spyre") for _ in range(3))
    attention = torch.nn.functional.scaled_dot_product_attention
    got = attention(q, k, v, is_causal=causal)
    want = attention(q.cpu().float(), k.cpu().float(), v.cpu().float(), is_causal=causal)
    assert got.dtype == dtype and got.device.type == "spyre"
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(got.cpu().float(), want, rtol=tolerance, atol=tolerance)
    assert torch._fused_sdp_choice(q, k, v) == 4  # one operation, without gradients
    assert torch._fused_sdp_choice(q.requires_grad_(), k, v) == 0


def test_zero_tensors_of_forward_mode_autograd() -> None:
    z = torch._efficientzerotensor((2, 3), device="spyre")
    assert z.device.type == "spyre" and torch._is_zerotensor(z)
    assert torch.equal((torch.ones(2, 3, device="spyre") + z).cpu(), torch.ones(2, 3))


# ---- random operations without a kernel of their own ------------------------------------------


def test_pt4_boxed_random_operations_draw_from_the_device_generator() -> None:
    rates = torch.full((50,), 4.0, device="spyre")
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = torch.poisson(rates)
    second = torch.poisson(rates)
    assert not torch.equal(first.cpu(), second.cpu())
    own = torch.Generator("spyre").manual_seed(3)
    torch.poisson(rates, generator=own)
    assert torch.equal(before, torch.get_rng_state())
    torch.spyre.manual_seed(3)
    assert torch.equal(torch.poisson(rates).cpu(), first.cpu())
    with pytest.raises(RuntimeError, match="generator"):
        torch.poisson(rates, generator=torch.Generator())
    torch.nn.functional.rrelu(-rates, training=True)
    torch.normal(rates, 1.0)
    assert torch.equal(before, torch.get_rng_state())


def test_the_statistics_page_counts_fallbacks(run_python: RunPython, tmp_path: Path) -> None:
    run_python(
        f"""
import os, torch
from openspyre.observe import stats_page
x = torch.ones(8, device="spyre:1")
x.exp()
x.sin_()
(path,) = stats_page.list_pages({str(tmp_path)!r})
first, second = stats_page.read(path).devices[:2]
assert (first.fallback_calls, first.fallback_bytes) == (0, 0), first
assert (second.fallback_calls, second.fallback_bytes) == (2, 4 * 32), second
""",
        {"OPENSPYRE_DEVICES": "0,1", "OPENSPYRE_STATS_DIR": str(tmp_path)},
    )
