"""Known traps of accelerators: copies, memory, streams, randomness, loading, autograd, start-up.

Rows B106 to B178 of the list that have no test beside the feature itself.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import RunPython
from oracles import assert_bits_equal
from torch.utils.dlpack import from_dlpack

spyre = torch.spyre
ROOT = Path(__file__).parent.parent


# --- copies


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("non_blocking", [False, True])
def test_b106_each_row_of_the_table_of_guarantees(pinned: bool, non_blocking: bool) -> None:
    assert "non_blocking=True" in (ROOT / "docs" / "copies.md").read_text()
    values = torch.arange(40_000.0).view(200, 200)
    source = values.clone().pin_memory() if pinned else values.clone()
    there = source.to("spyre", non_blocking=non_blocking)
    source.fill_(-1)  # host to card: the source may be reused at once
    back = torch.zeros(200, 200, pin_memory=pinned)
    back.copy_(there.t(), non_blocking=non_blocking)
    if pinned and non_blocking:
        spyre.current_stream().synchronize()  # the only case where the host has to wait
    assert torch.equal(back, values.t())
    beside = torch.empty_like(there).copy_(there, non_blocking=non_blocking)
    other = there.to("spyre:1", non_blocking=non_blocking)
    assert torch.equal(beside.cpu(), values) and torch.equal(other.cpu(), values)
    assert there.to(torch.int32, non_blocking=non_blocking).cpu().equal(values.int())


# --- memory


def test_b112_a_request_beyond_a_segment_names_the_limit(run_python: RunPython) -> None:
    code = """
import torch
try:
    x = torch.empty(6 << 20, dtype=torch.uint8, device="spyre")
    print("fits")
except torch.OutOfMemoryError as error:
    print(error)
"""
    small = {"OPENSPYRE_CARD": "tiny", "OPENSPYRE_CAPACITY": "12M", "OPENSPYRE_REGION_MIN": "1M"}
    limited = run_python(code, {**small, "OPENSPYRE_REGION_MAX": "4M", "FLEX_DEVICE": "VF"})
    assert "too large for a region" in limited.stdout.lower().replace("-", " ")
    assert "4.00 MiB" in limited.stdout or "4194304" in limited.stdout
    roomy = {**small, "OPENSPYRE_REGION_MAX": "8M", "FLEX_DEVICE": "PF"}
    assert run_python(code, roomy).stdout.strip() == "fits"


def test_b113_the_fragmentation_score_lies_in_zero_to_one() -> None:
    held = [torch.empty(1000 + 128 * i, device="spyre") for i in range(40)]
    del held[::2]
    score = spyre.fragmentation()
    assert 0 <= score.score <= 1


def test_b119_allocator_options_change_no_result(run_python: RunPython) -> None:
    code = """
import torch
torch.manual_seed(3)
total = []
kept = []
for i in range(60):
    x = torch.arange(1 + 977 * i % 5000, device="spyre") * (i + 1)
    kept.append(x[:: i + 1].clone())
    if i % 3 == 0:
        del kept[i // 3 % len(kept)]
    if i % 20 == 19:
        torch.spyre.empty_cache()
print([int(k.sum()) for k in kept])
"""
    options = [
        {},
        {"OPENSPYRE_ALLOCATOR": "best_fit"},
        {"OPENSPYRE_GUARD": "1", "OPENSPYRE_POISON": "1"},
        {"FLEX_DEVICE": "VF", "OPENSPYRE_HANDLES": "2"},
    ]
    printed = {run_python(code, {"OPENSPYRE_CARD": "tiny", **o}).stdout for o in options}
    assert len(printed) == 1 and printed.pop().strip()


# --- streams and threads


def test_b125_the_accelerator_functions_reach_the_backend() -> None:
    stream = spyre.Stream()
    spyre.synthetic.submit("compute", 1000, stream=stream, hold_seconds=0.05)
    torch.accelerator.synchronize()
    assert stream.query()
    with spyre.stream(stream):
        assert torch.accelerator.current_stream() == stream
        assert torch.accelerator.current_stream().stream_id == stream.stream_id
    torch.accelerator.set_device_index(1)
    try:
        assert spyre.current_device() == torch.accelerator.current_device_index() == 1
        assert torch.ones(1, device="spyre").device.index == 1
    finally:
        torch.accelerator.set_device_index(0)


def test_b127_the_profiler_may_be_started_by_another_thread(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    errors: list[BaseException] = []

    def profile() -> None:
        try:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
                (torch.ones(65, device="spyre") + 1).cpu()
            trace.export_chrome_trace(str(file))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=profile)
    thread.start()
    thread.join()
    assert not errors
    names = {event.get("name") for event in json.loads(file.read_text())["traceEvents"]}
    assert "aten::add" in names


def test_b194_the_error_of_a_copy_that_fails_names_operation_and_stream() -> None:
    stream = spyre.Stream()
    x = torch.zeros(100, device="spyre")
    spyre.synchronize()
    faults = spyre.synthetic.faults(nth=0, name_contains="to card")
    with spyre.stream(stream), faults, pytest.raises(spyre.StreamFailure) as caught:
        x.copy_(torch.ones(100))
    assert f"stream {stream.stream_id}" in str(caught.value)
    assert "copy_" in str(caught.value) and caught.value.stream == stream.stream_id
    spyre.reset_stream(stream)
    assert torch.equal(x.cpu(), torch.zeros(100))  # state as it was


# --- random numbers and devices


def test_b145_normal_inputs_are_normal() -> None:
    torch.manual_seed(5)
    assert abs(torch.randn(100_000, device="spyre").cpu().std().item() - 1) < 0.02


# --- loading


def test_b148_a_loaded_linear_and_embedding_keep_values_and_say_their_layout() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(50, 70), torch.nn.Linear(70, 33))
    there = torch.nn.Sequential(torch.nn.Embedding(50, 70), torch.nn.Linear(70, 33)).to("spyre")
    there.load_state_dict(model.state_dict())
    for name, parameter in there.named_parameters():
        assert_bits_equal(parameter.detach().cpu(), model.get_parameter(name).detach())
        assert spyre.layout_of(parameter).host_size == tuple(parameter.shape)
    tokens = torch.arange(10)
    torch.testing.assert_close(there(tokens.to("spyre")).cpu(), model(tokens))


# --- autograd


def test_b152_gradients_of_a_product_equal_the_cpus() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(5, 70, requires_grad=True), torch.randn(70, 9, requires_grad=True)
    c, d = (t.detach().to("spyre").requires_grad_() for t in (a, b))
    (a @ b).relu().sum().backward()
    (c @ d).relu().sum().backward()
    assert c.grad is not None and d.grad is not None
    torch.testing.assert_close(c.grad.cpu(), a.grad)
    torch.testing.assert_close(d.grad.cpu(), b.grad)


# --- errors and process safety


def test_b160_an_error_says_operation_shape_limit_and_way_out(run_python: RunPython) -> None:
    done = run_python(
        """
import torch
w = torch.nn.Linear(64, 4, device="spyre")
try:
    torch.ones(4 << 20, 64, device="spyre") @ w.weight.t()
except torch.OutOfMemoryError as error:
    print(error)
with torch.spyre.fallback("error"):
    try:
        w(torch.ones(3, 64, device="spyre"))
    except RuntimeError as error:
        print(error)
assert w.weight.sum().isfinite()
""",
        {"OPENSPYRE_CARD": "tiny"},
    )
    memory, fallback = done.stdout[: done.stdout.index("aten::")], done.stdout
    assert "requested" in memory.lower() and "capacity" in memory.lower()
    assert "Float[3, 64]" in fallback and "OPENSPYRE_FALLBACK" in fallback


def test_b161_ten_thousand_random_calls_raise_no_signal(run_python: RunPython) -> None:
    done = run_python(
        """
import random, warnings, torch
warnings.simplefilter("ignore")
rng = random.Random(161)
dtypes = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8,
          torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn]
calls = [
    lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a / b, lambda a, b: a @ b,
    lambda a, b: a & b, lambda a, b: a ** 2, lambda a, b: a.t(), lambda a, b: a.sum(-1),
    lambda a, b: a.amax(), lambda a, b: a.argmax(0), lambda a, b: torch.cat([a, b], -1),
    lambda a, b: a.copy_(b), lambda a, b: a.view(-1), lambda a, b: a.expand(3, *a.shape) + b,
    lambda a, b: a.softmax(-1), lambda a, b: torch.where(a > 0, a, b), lambda a, b: a[..., 1:],
    lambda a, b: a.index_select(0, b), lambda a, b: a.view(torch.uint8), lambda a, b: a.sort(-1),
    lambda a, b: a.resize_(5, 3), lambda a, b: a.unfold(0, 2, 1).sum(), lambda a, b: a.fill_(b),
    lambda a, b: a.as_strided((2, 9), (1, 3), 1).clone(), lambda a, b: a.to(b.dtype),
    lambda a, b: torch.nn.functional.conv1d(a, b), lambda a, b: a.scatter_(0, b, a),
    lambda a, b: a.masked_fill_(b, 1), lambda a, b: torch.addmm(a, b, b), lambda a, b: a.item(),
]
done = errors = 0
for _ in range(10_000):
    def make():
        shape = [rng.choice((0, 1, 2, 3, 5, 65)) for _ in range(rng.randrange(0, 4))]
        where = rng.choice(("spyre", "spyre", "spyre", "cpu"))
        return torch.ones(shape, dtype=rng.choice(dtypes)).to(where)
    try:
        rng.choice(calls)(make(), make())
        done += 1
    except (RuntimeError, IndexError, TypeError, ValueError):
        errors += 1
torch.spyre.synchronize()
assert torch.ones(3, device="spyre").sum().item() == 3
print(done, errors)
""",
        timeout=300,
    )
    right, errors = map(int, done.stdout.split())
    assert right + errors == 10_000 and right > 2000 and errors > 100


def test_b193_autoload_off_leaves_a_way_in(run_python: RunPython) -> None:
    run_python(
        """
import torch
try:
    torch.ones(2, device="spyre")
except RuntimeError:
    import openspyre
    openspyre.register()
else:
    raise AssertionError("autoload was off")
assert torch.ones(2, device="spyre").sum().item() == 2
""",
        {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )


def test_b191_importing_torch_brings_no_inductor(run_python: RunPython) -> None:
    run_python(
        """
import sys, torch
torch.ones(3, device="spyre").add(1).cpu()
assert not [name for name in sys.modules if name.startswith("torch._inductor")]
"""
    )


# --- pitfalls of PyTorch's extension points


@pytest.mark.parametrize("env", [{}, {"SPYRE_DEVICES": "nonsense"}, {"OPENSPYRE_CARDS": "0"}])
def test_pt7_asking_for_devices_never_raises_and_starts_nothing(
    run_python: RunPython, env: dict[str, str]
) -> None:
    run_python(
        """
import torch
a = torch.accelerator
a.is_available(), a.device_count(), torch.spyre.is_available(), torch.spyre.device_count()
a.current_accelerator(), torch.spyre._is_in_bad_fork()
assert not torch.spyre.is_initialized()
""",
        env,
    )


@pytest.mark.parametrize("index", [2, 5, 127])
def test_pt8_an_index_out_of_range_is_refused_by_name(index: int) -> None:
    device = f"spyre:{index}"
    for use in (
        lambda: torch.empty(2, device=device),
        lambda: torch.empty(0, device=device),
        lambda: torch.ones(2).to(device),
        lambda: torch.empty_strided((2,), (1,), device=device),
        lambda: torch.randn(2, device=device),
        lambda: torch.Generator(device),
        lambda: torch.Stream(device),
        lambda: spyre.synchronize(index),
        lambda: spyre.memory_stats(index),
        lambda: torch.UntypedStorage(8, device=device),
        lambda: torch.accelerator.set_device_index(index),
    ):
        with pytest.raises((RuntimeError, ValueError), match=device):
            use()
    assert spyre.current_device() == 0


def test_pt9_a_context_exists_for_real_devices_after_the_start_only(run_python: RunPython) -> None:
    run_python(
        """
import torch
from openspyre import _C
torch.spyre.device_count()
assert not any(_C.has_primary_context(i) for i in range(-1, 3))
torch.ones(1, device="spyre:1")
assert [_C.has_primary_context(i) for i in range(-1, 3)] == [False, True, True, False]
""",
        {"OPENSPYRE_CARDS": "2", "OPENSPYRE_CARD": "tiny"},
    )


def test_pt16_the_capability_names_exactly_the_dtypes_of_the_card() -> None:
    held = {
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.bool,
    }
    for device in ("spyre:0", "spyre:1"):
        assert torch.accelerator.get_device_capability(device) == {"supported_dtypes": held}


def test_pt21_a_pinned_cpu_tensor_may_be_exported() -> None:
    """torch calls pinned memory kDLCUDAHost whoever pinned it; its bytes are plain host memory."""
    x = torch.arange(6.0).pin_memory()
    assert torch.equal(from_dlpack(x), x)
    y = from_dlpack(x)
    y[2] = 9
    assert x[2] == 9


def test_b067_attention_without_a_mask_is_no_average() -> None:
    keys = torch.eye(4, 65)
    query = 80 * keys[3].view(1, 1, 1, 65)
    values = torch.arange(4.0).view(4, 1).expand(4, 65).contiguous()
    got = F.scaled_dot_product_attention(
        query.to("spyre"), keys[None, None].to("spyre"), values[None, None].to("spyre")
    ).cpu()
    torch.testing.assert_close(got, torch.full((1, 1, 1, 65), 3.0), rtol=1e-3, atol=1e-3)
