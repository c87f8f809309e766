"""Start-up: nothing happens before the first use, bad environments, fork, import orders."""

from __future__ import annotations

import itertools

import pytest
import torch
from conftest import RunPython

NO_DEVICE = {"FLEX_DEVICE": "MOCK", "AIU_WORLD_SIZE": "0"}


def test_rt73_import_is_silent_and_the_first_tensor_starts_the_runtime(
    run_python: RunPython,
) -> None:
    done = run_python(
        """
import torch, threading, os
s = torch.spyre
assert not s.is_initialized()
assert s.get_device_state() is s.SpyreDeviceState.NotInitialized
s.device_count(), s.is_available(), s.current_device(), s.get_device_properties()
s.memory_allocated(), s.memory_summary(), torch.manual_seed
assert not s.is_initialized()
torch.ones(1, device="spyre")
assert s.is_initialized()
assert s.get_device_state() is s.SpyreDeviceState.Ok
"""
    )
    assert done.stdout == "" and done.stderr == ""


@pytest.mark.parametrize(
    ("env", "count"),
    [
        ({"SPYRE_DEVICES": "0,1,1", "OPENSPYRE_CARDS": "4"}, 2),
        ({"SPYRE_DEVICES": "0,9", "OPENSPYRE_CARDS": "2"}, 1),
        ({"AIU_WORLD_SIZE": "9", "OPENSPYRE_CARDS": "3"}, 3),
        ({"FLEX_DEVICE": "MOCK", "AIU_WORLD_SIZE": "2"}, 2),
        (NO_DEVICE, 0),
        ({"SPYRE_DEVICES": "7,8"}, 0),
        ({"SPYRE_DEVICES": "a,b"}, 0),
    ],
)
def test_rt74_visible_devices(run_python: RunPython, env: dict[str, str], count: int) -> None:
    done = run_python("import torch; print(torch.spyre.device_count())", env)
    assert done.stdout.strip() == str(count)


@pytest.mark.parametrize(
    ("env", "says"),
    [
        (NO_DEVICE, "AIU_WORLD_SIZE"),
        ({"SPYRE_DEVICES": "7,8"}, "SPYRE_DEVICES"),
        ({"SPYRE_DEVICES": "[0,1"}, "SPYRE_DEVICES"),
        ({"OPENSPYRE_FALLBACK": "sometimes"}, "OPENSPYRE_FALLBACK"),
        ({"LOCAL_RANK": "abc"}, "LOCAL_RANK"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK"),
        ({"LOCAL_RANK": "128"}, "LOCAL_RANK"),
    ],
)
def test_rt74_rt75_b173_b175_bad_environment_raises_at_first_use(
    run_python: RunPython, env: dict[str, str], says: str
) -> None:
    """device_count and is_available never throw; the first use raises ValueError."""
    done = run_python(
        """
import torch
s = torch.spyre
assert s.device_count() == 0 and s.is_available() is False
assert torch.accelerator.device_count() == 0
def uses():
    yield lambda: torch.ones(1, device="spyre")
    yield lambda: torch.ones(1).to("spyre:0")
    yield lambda: s.init()
    yield lambda: s.synchronize()
    yield lambda: s.set_device(0)
for use in uses():
    try:
        use()
    except ValueError as error:
        print(error)
    else:
        raise AssertionError("no error")
assert torch.ones(2).sum() == 2
""",
        env,
    )
    assert done.stdout.count(says) >= 5


def test_rt75_local_rank_picks_the_current_device(run_python: RunPython) -> None:
    code = "import torch; print(torch.ones(1, device='spyre').device)"
    env = {"OPENSPYRE_CARDS": "2", "OPENSPYRE_CARD": "tiny"}
    assert run_python(code, env).stdout.strip() == "spyre:0"
    assert run_python(code, {**env, "LOCAL_RANK": "1"}).stdout.strip() == "spyre:1"


FIRST_USES = (
    "torch.manual_seed(1)",
    "torch.spyre.manual_seed(1)",
    "torch.ones(2, device='spyre')",
    "torch.spyre.current_stream()",
    "torch.spyre.synchronize()",
    "torch.spyre.memory_stats()",
)


@pytest.mark.parametrize("first", FIRST_USES)
@pytest.mark.parametrize("imports", ["import torch", "import openspyre, torch"])
def test_b176_every_first_use_works(run_python: RunPython, imports: str, first: str) -> None:
    others = "\n".join(use for use in FIRST_USES if use != first)
    run_python(f"{imports}\n{first}\n{others}\nassert torch.spyre.is_initialized()")


def test_b176_autoload_off_needs_register(run_python: RunPython) -> None:
    run_python(
        """
import torch
assert not hasattr(torch, "spyre")
import openspyre
openspyre.register(); openspyre.register()
assert torch.ones(3, device="spyre").sum().item() == 3
""",
        {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )


def test_registration_is_re_entrant() -> None:
    import openspyre

    before = torch.spyre
    openspyre.register()
    torch.spyre._register()
    assert torch.spyre is before


FORK = """
import os, sys, torch
s = torch.spyre
{before}
pid = os.fork()
if pid == 0:
    try:
        {child}
        code = 0
    except BaseException as error:
        print(type(error).__name__, error, flush=True)
        code = 3
    os._exit(code)
_, status = os.waitpid(pid, 0)
{after}
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_pt28_a_forked_child_is_told_to_spawn(run_python: RunPython) -> None:
    for child in ("torch.ones(1, device='spyre')", "s.init()", "x.cpu()", "s.synchronize()"):
        done = run_python(
            FORK.format(
                before="x = torch.ones(4, device='spyre')",
                child=f"assert s._is_in_bad_fork(); s.device_count(); {child}",
                after="assert torch.equal(x.cpu(), torch.ones(4)) and not s._is_in_bad_fork()",
            ),
            check=False,
        )
        assert done.returncode == 3, (child, done.stdout, done.stderr)
        assert "spawn" in done.stdout and "ForkedChild" in done.stdout, (child, done.stdout)


def test_pt28_a_child_forked_before_the_first_use_works(run_python: RunPython) -> None:
    run_python(
        FORK.format(
            before="",
            child="assert torch.ones(4, device='spyre').sum().item() == 4",
            after="assert torch.ones(2, device='spyre').sum().item() == 2",
        )
    )


def test_pt28_the_cpu_works_in_the_forked_child(run_python: RunPython) -> None:
    run_python(
        FORK.format(
            before="x = torch.ones(4, device='spyre')",
            child="torch.manual_seed(3); assert torch.ones(4).sum() == 4; del x",
            after="",
        )
    )


def test_a_failing_use_leaves_the_process_alive(run_python: RunPython) -> None:
    run_python(
        """
import torch
for bad in ("spyre:5", "spyre:127"):
    try:
        torch.empty(1, device=bad)
    except RuntimeError as error:
        assert bad in str(error)
    else:
        raise AssertionError(bad)
try:
    torch.spyre.set_device(-3)
except RuntimeError:
    pass
assert torch.ones(2, device="spyre").sum().item() == 2
"""
    )


@pytest.mark.parametrize("order", list(itertools.permutations(("torch", "openspyre.device"))))
def test_import_orders(run_python: RunPython, order: tuple[str, str]) -> None:
    done = run_python(
        "\n".join(f"import {name}" for name in order)
        + "\nimport torch; assert torch.spyre is openspyre.device"
    )
    assert done.stderr == ""
