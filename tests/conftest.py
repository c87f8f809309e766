"""What all tests share: a clean child interpreter and the hypothesis profile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

import hypothesis
import pytest

from openspyre.env import VARIABLES

# Two cards, so that every test may use spyre:1. Read at the first use of the device.
os.environ.setdefault("OPENSPYRE_CARDS", "2")

# Shared machines pause at times: a slow example is no finding, and no test judges time.
hypothesis.settings.register_profile(
    "openspyre",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
)
hypothesis.settings.load_profile("openspyre")


@pytest.fixture(autouse=True)
def _eager_way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Eager operations are native in modules that say `NATIVE = True`. The other modules are about
    what lies below the compiler (memory, copies, streams, the counted fallback), and would compile
    thousands of small programs on their way."""
    native = getattr(request.module, "NATIVE", None)
    if native is None and "torch" not in sys.modules:
        yield
        return
    import torch  # noqa: F401  loads the extension

    from openspyre import _C

    before = _C.native_enabled()
    _C.native_set_enabled(bool(native))
    yield
    _C.native_set_enabled(before)


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults of the compiler are raised, everything is compiled anew, and the account is empty."""
    import torch

    monkeypatch.setenv("OPENSPYRE_CACHE_DIR", "off")
    monkeypatch.setenv("OPENSPYRE_STRICT", "1")
    torch.spyre.reset_fallback_report()


@pytest.fixture(autouse=True, scope="module")
def _no_plans_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a module's eager and compiled calls have planned goes with the module: tests of memory
    and of plans count what there is."""
    yield
    if "openspyre.compiler.launch" in sys.modules:
        from openspyre.device import plans

        plans.release()


RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


def clean_environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """os.environ without any variable that OpenSpyre reads, then `env` on top."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in VARIABLES
        and not name.startswith("OPENSPYRE_")
        and name != "TORCH_DEVICE_BACKEND_AUTOLOAD"
    }
    return {**clean, **(env or {})}


@pytest.fixture
def run_python(request: pytest.FixtureRequest) -> RunPython:
    """`run_python(code, env=None, *, check=True, timeout=120)` runs `code` in a fresh interpreter.

    The child sees none of the parent's OpenSpyre variables, only those of `env`; its eager
    operations are those of the module (`_eager_way`). With `check` a
    non-zero exit fails the test and shows the child's output. Returns the CompletedProcess.
    """

    native = getattr(request.module, "NATIVE", False)
    eager = {"OPENSPYRE_EAGER": "native" if native else "fallback"}

    def run(
        code: str,
        env: Mapping[str, str] | None = None,
        *,
        check: bool = True,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=clean_environment({**eager, **(env or {})}),
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if check and done.returncode != 0:
            pytest.fail(f"child exited {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    return run
