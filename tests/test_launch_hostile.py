"""Launches and plans under inputs that nobody should give: wrappers, gradients, odd numbers,
threads that reset what others replay."""

from __future__ import annotations

import json
import resource
import shutil
import struct
import threading
from pathlib import Path
from typing import Any

import numpy as np
import plan_directories as made
import pytest
import torch

from openspyre.program import body as f
from openspyre.runtime.recording import RecordingError, load_recording, replay
from openspyre.runtime.spyrecode import SpyreCodeError, read_spyrecode

F16 = torch.float16


@pytest.fixture
def plan(tmp_path: Path) -> torch.spyre.JobPlan:
    """out = |x| of 64 float16."""
    return torch.spyre.prepare(made.write(tmp_path / "abs", made.absolute()))


@pytest.fixture
def x() -> torch.Tensor:
    return torch.linspace(-2, 2, 64).to(F16).to("spyre")


def wrapped_by(transform: str, plan: torch.spyre.JobPlan, x: torch.Tensor) -> None:
    out = torch.empty_like(x)

    def launch(a: torch.Tensor) -> torch.Tensor:
        torch.spyre.launch(plan, [a, out])
        return a.sum()

    if transform == "vmap":
        torch.vmap(launch)(x.repeat(3, 1))
    elif transform == "grad":
        torch.func.grad(launch)(x)
    elif transform == "jvp":
        torch.func.jvp(launch, (x,), (x,))
    elif transform == "functionalize":
        torch.func.functionalize(launch)(x)
    elif transform == "fake":
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
            torch.spyre.launch(plan, [torch.empty(64, dtype=F16, device="spyre"), out])
    else:
        torch.spyre.launch(plan, [torch.nested.nested_tensor([x, x[:3]], device="spyre"), out])


@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp", "functionalize", "fake", "nested"])
def test_a_wrapper_without_bytes_is_refused(
    plan: torch.spyre.JobPlan, x: torch.Tensor, transform: str
) -> None:
    with pytest.raises(RuntimeError, match=r"tensor 0 \('x0'\) is a wrapper without bytes"):
        wrapped_by(transform, plan, x)
    assert plan.counters.launches == 0


def test_tensors_that_require_grad_are_refused_while_autograd_records(
    plan: torch.spyre.JobPlan, x: torch.Tensor
) -> None:
    out = torch.empty_like(x)
    leaf = x.clone().requires_grad_()
    for tensors in ([leaf, out], [x, leaf]):
        with pytest.raises(RuntimeError, match="requires grad, and a launch has no derivative"):
            torch.spyre.launch(plan, tensors)
    with torch.no_grad():
        torch.spyre.launch(plan, [leaf, out])
    assert torch.equal(out.cpu(), x.cpu().abs())


def test_a_launch_over_a_tensor_that_autograd_saved_is_an_error_in_backward(
    plan: torch.spyre.JobPlan, x: torch.Tensor
) -> None:
    a = torch.ones(64, dtype=F16, device="spyre", requires_grad=True)
    y = a.exp()  # saves its result
    torch.spyre.launch(plan, [x, y.detach()])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_symbols_of_other_number_types_keep_their_value(tmp_path: Path) -> None:
    program = made.pointwise(
        "scale",
        lambda x: x * x.scalar("factor") + f.cast(x.scalar("shift", "l"), "f"),
        dtype="float32",
        ints=["shift"],
        floats=["factor"],
    )
    plan = torch.spyre.prepare(made.write(tmp_path / "scale", program))
    x = torch.linspace(-2, 2, 64).to("spyre")
    out = torch.empty_like(x)
    factors: list[Any] = [np.float32(1.5), np.float64(2.5), torch.tensor(2.5), np.int64(3), True]
    for factor in factors:
        torch.spyre.launch(plan, [x, out], symbols={"factor": factor, "shift": np.int8(-2)})
        assert torch.equal(out.cpu(), x.cpu() * float(factor) - 2), factor
    hostile: list[Any] = [np.float32(1.5), torch.tensor(1.5), 2**63, "3", None, 1j]
    for shift in hostile:
        with pytest.raises((TypeError, RuntimeError), match="symbol 'shift'"):
            torch.spyre.launch(plan, [x, out], symbols={"factor": 1.0, "shift": shift})
    symbols: dict[str, Any] = {"factor": 1.0}

    class Clears:
        def __index__(self) -> int:
            symbols.clear()
            raise ValueError("no number")

    symbols["shift"] = Clears()
    with pytest.raises(TypeError, match="symbol 'shift'"):
        torch.spyre.launch(plan, [x, out], symbols=symbols)
    names: list[Any] = [{1: 2}, {b"factor": 1}, {"\ud800": 1}, [1], "factor"]
    for odd in names:
        with pytest.raises(TypeError, match="symbols"):
            torch.spyre.launch(plan, [x, out], symbols=odd)


def test_a_transfer_back_of_corrected_words_brings_what_the_correction_wrote(
    tmp_path: Path, x: torch.Tensor
) -> None:
    def read_words(code: dict[str, Any]) -> None:
        where = {"dev_ptr": str(made.BASE + 128), "size": "128"}
        properties = {"dirn": "true", "host_handle": "words", **where}
        code["JobExecPlan"].append({"command": "DataTransfer", "properties": properties})

    directory = made.change(made.write(tmp_path / "abs", made.absolute()), read_words)
    plan = torch.spyre.prepare(directory)
    out = torch.empty_like(x)
    for tensors in ([x, out], [out, x], [x, out]):
        torch.spyre.launch(plan, tensors)
        torch.spyre.synchronize()
        words = plan.host_data("words")
        assert words is not None
        first, second = struct.unpack_from("<2Q", words)
        assert first >> 34 == second >> 34 == 1  # the first region of the launch
        offsets = [torch.ops.openspyre._block_of(t)[2] for t in tensors]
        assert (first < second) == (offsets[0] < offsets[1])


def test_a_large_allocation_of_program_memory_costs_no_host_memory(
    tmp_path: Path, x: torch.Tensor
) -> None:
    def enlarge(code: dict[str, Any]) -> None:
        code["JobPreparationPlan"][0]["properties"]["static_size"] = str(2**32)

    directory = made.change(made.write(tmp_path / "abs", made.absolute()), enlarge)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    plan = torch.spyre.prepare(directory)
    out = torch.empty_like(x)
    torch.spyre.launch(plan, [x, out])
    assert torch.equal(out.cpu(), x.cpu().abs())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB


def test_the_blobs_of_a_plan_are_bounded(tmp_path: Path) -> None:
    def swell(code: dict[str, Any]) -> None:
        code["JobPreparationPlan"][0]["properties"]["static_size"] = str(2**34)
        for n in range(5):
            host = {"ohandle": f"b{n}", "size": str(2**24), "ishape": ["0"], "ihandle": ""}
            where = str(made.BASE + (n + 1) * 2**24)
            move = {"dirn": "false", "host_handle": f"b{n}", "dev_ptr": where, "size": str(2**24)}
            code["JobExecPlan"][2 * n : 2 * n] = [
                {"command": "ComputeOnHost", "properties": host | {"hcm": {}}},
                {"command": "DataTransfer", "properties": move},
            ]

    directory = made.change(made.write(tmp_path / "abs", made.absolute()), swell)
    with pytest.raises(SpyreCodeError, match="its blobs have 83886208 bytes"):
        torch.spyre.prepare(directory)


def test_a_graph_may_be_reset_while_other_threads_replay_it(
    plan: torch.spyre.JobPlan, x: torch.Tensor
) -> None:
    out = torch.empty_like(x)
    graph = torch.accelerator.Graph()
    stop = threading.Event()
    unexpected: list[str] = []

    def use(capture: bool) -> None:
        with torch.spyre.stream(torch.spyre.Stream()):
            while not stop.is_set():
                try:
                    if not capture:
                        graph.replay()
                        continue
                    graph.reset()
                    graph.capture_begin()
                    for _ in range(20):
                        torch.spyre.launch(plan, [x, out])
                    graph.capture_end()
                except RuntimeError as error:
                    if "nothing was captured" not in str(error):
                        unexpected.append(str(error))

    threads = [threading.Thread(target=use, args=(n == 0,)) for n in range(4)]
    for thread in threads:
        thread.start()
    stop.wait(2)
    stop.set()
    for thread in threads:
        thread.join()
    torch.spyre.synchronize()
    assert unexpected == []
    torch.spyre.launch(plan, [x, out])
    assert torch.equal(out.cpu(), x.cpu().abs())


def test_a_recording_keeps_the_plan_that_was_prepared(tmp_path: Path, x: torch.Tensor) -> None:
    gone = made.write(tmp_path / "gone", made.absolute())
    changed = made.write(tmp_path / "changed", made.through_scratch())
    plans = [torch.spyre.prepare(directory) for directory in (gone, changed)]
    shutil.rmtree(gone)
    made.change(changed, lambda code: code["JobExecPlan"][-1]["properties"].update(cost_ns="7"))
    out = torch.empty_like(x)
    with torch.spyre.record(tmp_path / "log"):
        for plan in plans:
            torch.spyre.launch(plan, [x, out])
    for plan in plans:
        kept = read_spyrecode(tmp_path / "log" / "plans" / plan.content_hash)
        assert kept.content_hash == plan.content_hash
    loaded = load_recording(tmp_path / "log")
    assert not replay(loaded).differences
    # A plan that was changed in the recording is not run as the recorded one.
    one = tmp_path / "log" / "plans" / plans[0].content_hash
    made.change(one, lambda code: code["JobExecPlan"][-1]["properties"].update(cost_ns="7"))
    with pytest.raises(RecordingError, match="another plan than the recorded one"):
        replay(loaded)


def test_a_recording_holds_symbols_of_numpy(tmp_path: Path) -> None:
    program = made.pointwise(
        "scale", lambda x: x * x.scalar("factor"), dtype="float32", floats=["factor"]
    )
    plan = torch.spyre.prepare(made.write(tmp_path / "scale", program))
    x = torch.ones(64, device="spyre")
    numbers: list[Any] = [np.float32(1.5), np.int64(2), 0.5]
    with torch.spyre.record(tmp_path / "log"):
        for number in numbers:
            torch.spyre.launch(plan, [x, torch.empty_like(x)], symbols={"factor": number})
    entries = json.loads((tmp_path / "log" / "recording.json").read_text())["entries"]
    kept = [entry["symbols"]["factor"] for entry in entries if entry["op"] == "launch"]
    assert kept == [1.5, 2, 0.5]
    assert not replay(load_recording(tmp_path / "log")).differences


def test_prepare_refuses_odd_settings_and_names(tmp_path: Path) -> None:
    directory = made.write(tmp_path / "abs", made.absolute())
    slots: list[Any] = [0, -1, 65, True, 1.5, "2"]
    for number in slots:
        with pytest.raises(ValueError, match="slots"):
            torch.spyre.prepare(directory, slots=number)
    overlap: Any = "no"
    with pytest.raises(ValueError, match="overlap"):
        torch.spyre.prepare(directory, overlap=overlap)
    with pytest.raises(SpyreCodeError, match="File name too long"):
        torch.spyre.prepare("a" * 100_000)
    text = (directory / "spyrecode.json").read_text()
    text = text.replace('"JobExecPlan"', '"\\ud800": 1, "JobExecPlan"')
    (directory / "spyrecode.json").write_text(text)
    with pytest.raises(SpyreCodeError, match="no such property") as found:
        torch.spyre.prepare(directory)
    str(found.value).encode()  # can be printed


def test_a_storage_may_be_resized_by_several_threads_while_it_is_launched(
    plan: torch.spyre.JobPlan, x: torch.Tensor
) -> None:
    out = torch.empty_like(x)
    stop = threading.Event()
    unexpected: list[str] = []

    def use(resize: bool) -> None:
        for turn in range(10**9):
            if stop.is_set():
                return
            try:
                if resize:
                    x.untyped_storage().resize_((0, 64, 128, 4096)[turn % 4])
                else:
                    torch.spyre.launch(plan, [x, out])
            except RuntimeError as error:
                if "its storage" not in str(error):
                    unexpected.append(str(error))

    threads = [threading.Thread(target=use, args=(n < 3,)) for n in range(5)]
    for thread in threads:
        thread.start()
    stop.wait(3)
    stop.set()
    for thread in threads:
        thread.join()
    torch.spyre.synchronize()
    assert unexpected == []
    assert x.untyped_storage().nbytes() in (0, 64, 128, 4096)
