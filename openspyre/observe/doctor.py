"""What is installed, which devices there are, and common mistakes: `openspyre doctor` and `info`.

`examine` runs its checks one after the other, each on its own: a check that fails tells its reason
and the others go on. Needs no torch until a check is about torch, so that it can say what is wrong
with one that does not import.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Literal

import openspyre
from openspyre import _versions, env

State = Literal["good", "note", "bad"]

LEAST_HOST_BYTES = 2 << 30
"""Host memory below which a card soon runs out: torch and a small model in float16."""

OPTIONAL = {
    "transformers": "models of Hugging Face",
    "safetensors": "weights read straight into the card",
    "gguf": "weights in GGUF files",
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `bad`: spyre does not work, or not as asked; `note`: it works,
    and this may surprise. `advice`: the way out, where there is one. `limit`: what one must know
    besides "spyre works here", in a few words."""

    what: str
    state: State
    text: str
    advice: str = ""
    limit: str = ""


def examine(environ: Mapping[str, str] | None = None) -> list[Finding]:
    """Every check, in order. Imports torch and, where that works, uses device 0 once."""
    environ = os.environ if environ is None else environ
    findings = [_python(), _torch_version(), _extension()]
    findings += _variables(environ)
    findings.append(_processor())
    findings.append(_host_memory())
    if all(f.state != "bad" for f in findings):
        for check in (_device, _arithmetic, _cache, _statistics):
            findings.append(_guarded(check))
    findings += _packages()
    return findings


def _guarded(check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except Exception as error:
        name = check.__name__.strip("_").replace("_", " ")
        return Finding(name, "bad", f"{type(error).__name__}: {error}")


def _python() -> Finding:
    text = f"{platform.python_version()} at {sys.executable}, {platform.platform()}"
    return Finding("python", "good", text)


def _torch_version() -> Finding:
    try:
        version = metadata.version("torch")
        _versions.check_supported(version)
    except metadata.PackageNotFoundError:
        return Finding("torch", "bad", "not installed", "pip install torch==2.13.0")
    except ImportError as error:
        return Finding("torch", "bad", str(error))
    return Finding("torch", "good", version)


def _extension() -> Finding:
    """Built, and for the torch that is installed; says nothing twice when there is no torch."""
    try:
        built_for: str = import_module("openspyre._build_info").TORCH_VERSION
    except ImportError:
        return Finding(
            "extension", "bad", "not built",
            "pip install --no-build-isolation openspyre (make setup in a checkout)",
        )  # fmt: skip
    try:
        import torch

        _versions.check_built_for(torch.__version__, built_for)
        openspyre.register()
    except Exception as error:  # torch wraps what autoload raises
        return Finding("extension", "bad", str(error.__cause__ or error))
    return Finding("extension", "good", f"openspyre {openspyre.__version__}, for torch {built_for}")


def _variables(environ: Mapping[str, str]) -> list[Finding]:
    findings = []
    given = [
        name for name in env.VARIABLES if environ.get(name) or (name in environ and name in LISTS)
    ]
    errors = env.configuration(environ).error.splitlines()
    for name in given:
        if any(re.search(rf"\b{name}\b", line) for line in errors):
            continue  # told below
        value = env.read(name, environ)
        surprise = SURPRISES.get((name, value))
        text = surprise or env.VARIABLES[name].meaning
        state: State = "note" if surprise else "good"
        limit = LIMITS.get((name, value), "")
        findings.append(Finding("variable", state, f"{name}={environ[name]}: {text}", "", limit))
    for line in errors:
        misspelt = "did you mean" in line
        advice = "rename or unset it" if misspelt else "docs/environment.md has the table"
        findings.append(Finding("variable", "bad", line, advice))
    if environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        findings.append(
            Finding(
                "variable", "note",
                "TORCH_DEVICE_BACKEND_AUTOLOAD=0: `import torch` does not bring the device",
                "call openspyre.register(), or unset it",
                "only after openspyre.register()",
            )
        )  # fmt: skip
    if not given:
        findings.append(Finding("variables", "good", "none of OpenSpyre's is set"))
    return findings


SURPRISES: Mapping[tuple[str, Any], str] = {
    ("OPENSPYRE_EXECUTE", False): "nothing is computed, only the virtual clock runs, and reading "
    "a tensor's data is an error",
    ("OPENSPYRE_EAGER", "fallback"): "eager operations are computed by the CPU, with a copy there "
    "and back each",
    ("OPENSPYRE_VERIFY", True): "every program is verified, which takes longer than compiling it",
    ("OPENSPYRE_CACHE_DIR", "off"): "no program is kept on disk: each process compiles again",
    ("OPENSPYRE_ISA", "portable"): "no vector instructions are used",
}
"""By variable and parsed value: what a setting does that one may have forgotten."""
LIMITS: Mapping[tuple[str, Any], str] = {
    ("OPENSPYRE_EXECUTE", False): "only its clock: OPENSPYRE_EXECUTE=off computes nothing",
    ("OPENSPYRE_EAGER", "fallback"): "eager operations are the CPU's: OPENSPYRE_EAGER=fallback",
}
"""Of SURPRISES, those after which "spyre works here" alone would mislead."""
LISTS = ("OPENSPYRE_DEVICES", "SPYRE_DEVICES")
"""The variables whose empty value says something: no device."""


def _processor() -> Finding:
    try:
        from openspyre import _C

        best, used = _C.best_isa(), _C.isa()
    except ImportError:
        return Finding("processor", "note", platform.machine())
    threads = os.cpu_count() or 1
    text = f"{platform.machine()}, {threads} threads, vector code {used}"
    if used == "portable":
        return Finding(
            "processor", "note", f"{text}: many times slower than AVX2 and AVX-512",
            "" if best == used else f"unset OPENSPYRE_ISA: this processor has {best}",
        )  # fmt: skip
    return Finding("processor", "good", text)


def host_memory_bytes() -> int | None:
    """Host memory that a process can still take, or None where the system does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def _host_memory() -> Finding:
    found = host_memory_bytes()
    if found is None:
        return Finding("host memory", "note", "unknown on this system")
    text = f"{found / 2**30:.1f} GiB available; it backs what the cards hold, page by page"
    if found < LEAST_HOST_BYTES:
        return Finding("host memory", "note", text, "a model larger than that makes the host swap")
    return Finding("host memory", "good", text)


def _device() -> Finding:
    from openspyre.device.devices import device_count, get_device_properties

    count = device_count()
    if count == 0:
        return Finding(
            "devices", "bad", "none: the variables leave no device",
            "unset SPYRE_DEVICES, OPENSPYRE_DEVICES and AIU_WORLD_SIZE, or see "
            "docs/environment.md",
        )  # fmt: skip
    first = get_device_properties(0)
    return Finding("devices", "good", f"{count}; spyre:0 is {first.name}")


def _arithmetic() -> Finding:
    """One operation there and back."""
    import torch

    from openspyre.device.registration import configuration

    if not configuration().execute:
        return Finding("arithmetic", "note", "not checked: OPENSPYRE_EXECUTE=off computes nothing")
    host = torch.arange(128, dtype=torch.float16)
    x = host.to("spyre")
    found = (x + x).cpu()
    if not torch.equal(found, host + host):
        return Finding("arithmetic", "bad", f"x + x is wrong on spyre:0: {found.tolist()[:8]} ...")
    return Finding("arithmetic", "good", "x + x on spyre:0 is right")


def _cache() -> Finding:
    from openspyre.compiler import cache

    root = cache.root_directory()
    if root is None:
        return Finding("cache", "note", "off: each process compiles again")
    refused = _refuses_files(root)
    if refused:
        return Finding(
            "cache", "note", f"{root} cannot be written ({refused}): each process compiles again",
            "set OPENSPYRE_CACHE_DIR to a directory that can",
        )  # fmt: skip
    rows = cache.ls()
    return Finding(
        "cache", "good", f"{root}: {len(rows)} programs, {sum(r.bytes for r in rows):,} B"
    )


def _statistics() -> Finding:
    directory: str = env.read("OPENSPYRE_STATS_DIR", os.environ)
    if not directory:
        return Finding("statistics", "note", "off: `openspyre top` does not see this process")
    refused = "no such directory" if not Path(directory).exists() else _refuses_files(directory)
    if refused:
        return Finding(
            "statistics", "note",
            f"{directory} cannot be written ({refused}): `openspyre top` does not see this process",
            "set OPENSPYRE_STATS_DIR to a directory that can",
        )  # fmt: skip
    return Finding("statistics", "good", f"{directory}, for `openspyre top`")


def _refuses_files(directory: str | os.PathLike[str]) -> str:
    """Why no file can be made below `directory`, which may itself be still to be made; "" if one
    can. Tried, since permissions do not tell: root has all of them, and /proc takes no file."""
    near = Path(directory).absolute()
    while not near.exists() and near != near.parent:
        near = near.parent
    try:
        with tempfile.TemporaryDirectory(dir=near):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _packages() -> list[Finding]:
    findings = []
    for name, use in OPTIONAL.items():
        try:
            findings.append(Finding("package", "good", f"{name} {metadata.version(name)} ({use})"))
        except metadata.PackageNotFoundError:
            findings.append(Finding("package", "note", f"{name}: not installed ({use})"))
    return findings


# --- the devices


def devices() -> list[dict[str, Any]]:
    """The properties of each device, as the process sees it. Starts no card. Raises ValueError
    for a variable that is malformed."""
    openspyre.register()  # with TORCH_DEVICE_BACKEND_AUTOLOAD=0 torch's import does not

    from openspyre.device.devices import device_count, get_device_properties

    error = env.configuration().error
    if error:
        raise ValueError(error)
    return [
        {"device": f"spyre:{n}", **asdict(get_device_properties(n))} for n in range(device_count())
    ]
