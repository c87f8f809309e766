"""Saving, loading, pickling and sharing tensors of the card."""

# torch's stubs know neither the generated names nor what a test has made sure of.
# mypy: disable-error-code="arg-type,has-type"

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path

import pytest
import torch
from oracles import assert_bits_equal, through_card

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool]
DTYPES += [torch.uint8, torch.int8, torch.float8_e4m3fn, torch.complex64]


def values(dtype: torch.dtype) -> torch.Tensor:
    mode = str(torch.spyre.numerics.mode())
    return through_card((torch.arange(5 * 70) % 100).view(5, 70).to(dtype), mode)


def round_trip(value: object, **options: object) -> object:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", ["spyre", "spyre:1"])
def test_b149_save_and_load_keep_values_dtype_and_device_index(
    dtype: torch.dtype, device: str
) -> None:
    x = values(dtype).to(device)
    back = round_trip(x)
    assert isinstance(back, torch.Tensor) and back.device == x.device
    assert_bits_equal(back.cpu(), x.cpu())
    mapped = round_trip(x, map_location="cpu")
    assert isinstance(mapped, torch.Tensor) and mapped.device.type == "cpu"
    assert_bits_equal(mapped, x.cpu())


@pytest.mark.parametrize("dtype", DTYPES)
def test_pickle_and_deepcopy_keep_the_bits(dtype: torch.dtype) -> None:
    x = values(dtype).to("spyre")
    backs = [copy.deepcopy(x)]
    if dtype != torch.float8_e4m3fn:  # torch has no typed storage of fp8 to unpickle, on CPU too
        backs.append(pickle.loads(pickle.dumps(x)))
    for back in backs:
        assert back.device == x.device and back.data_ptr() != x.data_ptr()
        assert_bits_equal(back.cpu(), x.cpu())


def test_pt24_a_file_saved_on_the_cpu_is_mapped_to_the_device(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    x = torch.randn(3, 130)
    torch.save({"x": x, "step": 7}, path)
    for target in ("spyre", "spyre:1", torch.device("spyre", 1)):
        loaded = torch.load(path, map_location=target)
        assert loaded["x"].device.type == "spyre" and loaded["step"] == 7
        assert torch.equal(loaded["x"].cpu(), x)
    mapped = torch.load(path, map_location="spyre", mmap=True)
    assert torch.equal(mapped["x"].cpu(), x)


def test_views_of_one_storage_stay_views_of_one_storage() -> None:
    base = torch.arange(200.0, device="spyre").view(4, 50)
    saved = round_trip([base, base[1:3, ::2], base.t()])
    a, b, c = saved  # type: ignore[misc]
    assert a.untyped_storage()._cdata == b.untyped_storage()._cdata == c.untyped_storage()._cdata
    a.fill_(3)
    assert (b.cpu() == 3).all() and (c.cpu() == 3).all()
    # deepcopy keeps sharing as well
    x, y = copy.deepcopy([base, base[2]])
    x.fill_(9)
    assert (y.cpu() == 9).all()


def test_pads_never_reach_a_file() -> None:
    x = torch.ones(3, 65, dtype=torch.float16, device="spyre")
    assert torch.spyre.layout_of(x).nbytes > x.numel() * 2
    assert x.untyped_storage().nbytes() == 3 * 65 * 2
    buffer = io.BytesIO()
    torch.save(x, buffer)
    host = io.BytesIO()
    torch.save(torch.ones(3, 65, dtype=torch.float16), host)
    assert len(buffer.getvalue()) - len(host.getvalue()) < 256


def test_pt26_a_layout_that_is_not_the_default_survives_saving() -> None:
    x = torch.arange(40 * 100).half().view(40, 100).to("spyre")
    layout = torch.spyre.layout_of(x)
    permuted = type(layout).with_order((40, 100), (1, 0), layout.format)
    y = torch.spyre.to_layout(x, permuted)
    assert torch.spyre.layout_of(y).device_size == permuted.device_size
    back = round_trip(y)
    assert isinstance(back, torch.Tensor)
    assert torch.spyre.layout_of(back).device_size == permuted.device_size
    assert torch.spyre.layout_of(back).stride_map == permuted.stride_map
    assert_bits_equal(back.cpu(), x.cpu())


def test_pt26_conjugate_and_negative_bits_survive_saving() -> None:
    z = torch.randn(4, 3, dtype=torch.complex64).to("spyre")
    back = round_trip(z.conj())
    assert isinstance(back, torch.Tensor) and back.is_conj()
    assert torch.equal(back.cpu(), z.conj().cpu())


def test_modules_and_optimizers_round_trip(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(7, 33), torch.nn.BatchNorm1d(33)).to("spyre")
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 7).to("spyre")).sum().backward()
    optimizer.step()
    path = tmp_path / "state.pt"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    state = torch.load(path)
    other = torch.nn.Sequential(torch.nn.Linear(7, 33), torch.nn.BatchNorm1d(33)).to("spyre")
    other.load_state_dict(state["model"])
    for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert_bits_equal(a.cpu(), b.cpu())
    again = torch.optim.Adam(other.parameters())
    again.load_state_dict(state["optimizer"])
    moments = next(iter(again.state.values()))
    assert moments["exp_avg"].device.type == "spyre"


def test_b104_a_model_made_on_meta_loads_with_assign() -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(5, 6)
    state = {k: torch.randn(v.shape).to("spyre") for k, v in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    for name, parameter in model.named_parameters():
        assert parameter.device.type == "spyre"
        assert_bits_equal(parameter.cpu(), state[name].cpu())


def test_to_empty_gives_a_meta_module_memory_on_the_card() -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(5, 6)
    model.to_empty(device="spyre")
    assert model.weight.device.type == "spyre" and model.weight.shape == (6, 5)
    model.weight.data.zero_()
    assert (model.weight.cpu() == 0).all()


def test_swap_tensors_carries_the_layout_with_the_bytes() -> None:
    a = torch.arange(130).half().to("spyre")
    b = torch.arange(65.0).view(5, 13).to("spyre")
    torch.utils.swap_tensors(a, b)
    assert torch.equal(a.cpu(), torch.arange(65.0).view(5, 13))
    assert torch.equal(b.cpu(), torch.arange(130).half())


def test_parameter_data_can_be_exchanged() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3, device="spyre"))
    parameter.data = torch.ones(70, device="spyre")
    assert parameter.shape == (70,) and (parameter.detach().cpu() == 1).all()
