"""torch.spyre as a module: devices, properties, numerics, fallback, what torch calls on it."""

# torch's stubs know neither the generated names nor what a test has made sure of.
# mypy: disable-error-code="attr-defined,operator"

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pytest
import torch
from conftest import RunPython

import openspyre.device as module
from openspyre.card import GIB

spyre = torch.spyre
TWO = {"OPENSPYRE_DEVICES": "0,1", "OPENSPYRE_CARD": "tiny"}


def test_torch_spyre_is_the_device_module() -> None:
    import torch.spyre.memory as memory

    assert torch.spyre is module
    assert memory is module.memory
    assert torch.get_device_module("spyre") is module


def test_every_public_name_exists_and_is_documented() -> None:
    for name in module.__all__:
        value = getattr(module, name)
        assert value.__doc__, name


def test_pt24_the_names_that_torch_calls_are_there() -> None:
    called = (
        "is_available is_initialized device_count current_device set_device device _lazy_init "
        "_is_in_bad_fork manual_seed manual_seed_all get_rng_state set_rng_state Stream Event "
        "stream current_stream set_stream synchronize get_amp_supported_dtype memory_stats "
        "memory_summary memory_allocated memory_reserved empty_cache"
    )
    for name in called.split():
        assert callable(getattr(module, name)), name


def test_generated_methods_move_tensors_modules_and_packed_sequences() -> None:
    t = torch.arange(6.0)
    moved = t.spyre()
    assert moved.is_spyre and not t.is_spyre and moved.device == torch.device("spyre", 0)
    assert torch.equal(moved.cpu(), t)
    linear = torch.nn.Linear(2, 3).spyre()
    assert all(p.device.type == "spyre" for p in linear.parameters())
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2, 1), torch.ones(1, 1)])
    assert packed.spyre().data.is_spyre


def test_accelerator_is_spyre() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("spyre")
    assert torch.accelerator.device_count() == spyre.device_count()
    assert spyre.device_count() == int(os.environ["OPENSPYRE_CARDS"])
    assert torch.accelerator.is_available() and spyre.is_available()


@pytest.mark.parametrize("device", [0, "spyre", "spyre:0", torch.device("spyre", 0), None])
def test_a_device_may_be_named_in_every_way(device: object) -> None:
    assert spyre.devices.device_index(device) == 0


def test_wrong_devices_are_refused_by_name() -> None:
    with pytest.raises(torch.AcceleratorError, match="spyre:7 is not a device"):
        spyre.set_device(7)
    with pytest.raises(torch.AcceleratorError, match="spyre:-1"):
        spyre.set_device(-1)
    with pytest.raises(ValueError, match="cpu"):
        spyre.set_device("cpu")
    with pytest.raises(TypeError):
        spyre.set_device(True)
    with pytest.raises(RuntimeError, match="spyre:5"):
        torch.ones(1, device="spyre:5")
    assert spyre.current_device() == 0


def test_properties_are_those_of_the_modelled_card() -> None:
    properties = spyre.get_device_properties()
    assert properties.multi_processor_count == 32
    assert properties.total_memory == 112 * GIB
    assert properties.virtual_function == -1 and properties.region_handles == 0
    assert properties.name == spyre.get_device_name() == "OpenSpyre software card 0"
    assert torch.float16 in spyre.get_device_capability()["supported_dtypes"]


def test_device_context_nests_and_is_thread_local(run_python: RunPython) -> None:
    run_python(
        """
import threading, torch
s = torch.spyre
assert s.device_count() == 2
with s.device(1):
    assert s.current_device() == 1 and torch.empty(1, device="spyre").device.index == 1
    with s.device("spyre:0"):
        assert s.current_device() == 0
    assert s.current_device() == 1
    seen = []
    t = threading.Thread(target=lambda: seen.append(s.current_device()))
    t.start(); t.join()
    assert seen == [0]
    with s.device(-1), s.device(None):
        assert s.current_device() == 1
    with s.device_of(torch.empty(1, device="spyre:0")):
        assert s.current_device() == 0
assert s.current_device() == 0
try:
    with s.device(1):
        raise KeyError
except KeyError:
    pass
assert s.current_device() == 0
""",
        TWO,
    )


def test_virtual_functions_say_what_they_are(run_python: RunPython) -> None:
    run_python(
        """
import torch
s = torch.spyre
a, b = (s.get_device_properties(i) for i in range(2))
assert (a.card, a.virtual_function, b.card, b.virtual_function) == (0, 0, 0, 1)
assert a.region_handles == 8
assert s.get_device_name(1) == "OpenSpyre software card 0, virtual function 1"
""",
        {"OPENSPYRE_DEVICES": "0.0,0.1"},
    )


def test_amp_names_its_dtypes_and_autocast_opens() -> None:
    assert torch.float16 in spyre.get_amp_supported_dtype()
    with torch.autocast("spyre", dtype=torch.float16):
        assert torch.is_autocast_enabled("spyre")


def test_numerics_change_only_without_tensors(run_python: RunPython) -> None:
    run_python(
        """
import torch
n = torch.spyre.numerics
assert n.get() == n.Numerics("dl16", "toward_positive", "inf")
with n.using(mode="ieee", ties="to_even", merged="nan") as now:
    assert now == n.get() == n.Numerics("ieee", "to_even", "nan")
    x = torch.tensor([1 / 3], dtype=torch.float16).to("spyre")
    assert x.cpu().item() == torch.tensor(1 / 3, dtype=torch.float16).item()
    try:
        n.set_mode("dl16")
    except RuntimeError:
        pass
    else:
        raise AssertionError("changed under a tensor")
    assert n.mode() == "ieee"
    del x
assert n.get() == n.Numerics("dl16", "toward_positive", "inf")
for bad in ({"mode": "fp8"}, {"ties": "up"}, {"merged": "zero"}):
    try:
        n.configure(**bad)
    except ValueError:
        pass
    else:
        raise AssertionError(bad)
"""
    )


def test_fallback_policy_is_a_function_and_a_context() -> None:
    before = spyre.fallback_policy()
    with spyre.fallback("error"):
        assert spyre.fallback_policy() == "error"
        with spyre.fallback("allow"):
            assert spyre.fallback_policy() == "allow"
        assert spyre.fallback_policy() == "error"
    assert spyre.fallback_policy() == before
    spyre.fallback("warn")
    assert spyre.fallback_policy() == "warn"
    spyre.fallback(before)
    with pytest.raises(ValueError, match="sometimes"):
        spyre.fallback("sometimes")


def test_fallback_report_counts_calls_and_bytes() -> None:
    with spyre.fallback("allow"):
        a = torch.ones(16, 16).to("spyre")
        spyre.reset_fallback_report()
        assert len(spyre.fallback_report()) == 0
        total = torch.cosh(a)
        report = spyre.fallback_report()
    assert torch.allclose(total.cpu(), torch.cosh(torch.ones(16, 16)))
    rows = [row for row in report.rows if "cosh" in row.operation]
    assert len(rows) == 1 and rows[0].calls == 1
    assert rows[0].bytes_to_host >= 1024 and rows[0].bytes_to_device >= 1024
    assert rows[0].operation in str(report) and "total" in report.table()
    assert report.bytes == sum(row.bytes for row in report.rows)
    spyre.reset_fallback_report()
    assert "No operation" in str(spyre.fallback_report())


def test_b149_save_and_load_keep_the_device_index(run_python: RunPython) -> None:
    run_python(
        """
import io, torch
x = torch.arange(10.0, device="spyre:1")
buffer = io.BytesIO()
torch.save(x, buffer)
buffer.seek(0)
y = torch.load(buffer)
assert y.device == torch.device("spyre", 1) and torch.equal(y.cpu(), torch.arange(10.0))
buffer.seek(0)
assert torch.equal(torch.load(buffer, map_location="cpu"), torch.arange(10.0))
buffer.seek(0)
assert torch.load(buffer, map_location="spyre:0").device.index == 0
""",
        TWO,
    )


def test_torch_load_restores_on_the_device() -> None:
    buffer = io.BytesIO()
    torch.save({"w": torch.arange(5, device="spyre")}, buffer)
    buffer.seek(0)
    assert torch.load(buffer)["w"].device == torch.device("spyre", 0)


def test_pt22_safetensors_through_the_own_function(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    path = tmp_path / "weights.safetensors"
    base = torch.arange(12, device="spyre", dtype=torch.float32)
    tensors = {"a": base, "b": base[2:8].view(2, 3), "c": torch.ones(3, dtype=torch.float16)}
    spyre.safetensors.save_file(tensors, path)
    loaded = spyre.safetensors.load_file(path)
    assert loaded.keys() == tensors.keys()
    for name, tensor in loaded.items():
        assert tensor.device == torch.device("spyre", 0)
        assert torch.equal(tensor.cpu(), tensors[name].cpu())
    assert spyre.safetensors.load_file(path, "cpu")["a"].device.type == "cpu"


def test_pt20_no_token_leaves_through_dlpack() -> None:
    import numpy

    x = torch.ones(4, device="spyre")
    for take in (torch.from_dlpack, numpy.from_dlpack):
        with pytest.raises((ValueError, RuntimeError, BufferError, TypeError)):
            take(x)
    with pytest.raises(TypeError, match="cpu"):
        x.numpy()
    assert torch.equal(torch.from_dlpack(x.cpu()), torch.ones(4))


def test_pt23_a_device_tensor_is_refused_by_the_sender() -> None:
    from multiprocessing.reduction import ForkingPickler

    import torch.multiprocessing

    x = torch.ones(4, device="spyre")
    with pytest.raises(RuntimeError, match="CPU"):
        ForkingPickler.dumps(x)
    assert torch.equal(x.cpu(), torch.ones(4))


def test_calls_from_many_threads_see_one_runtime() -> None:
    seen: list[int] = []
    threads = [
        threading.Thread(target=lambda: seen.append(int(torch.ones(8, device="spyre").sum())))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [8] * 8
