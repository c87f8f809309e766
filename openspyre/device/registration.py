"""Makes `spyre` a device of torch. The one module that holds private names of torch.

Runs once, at the end of `import torch`: it hands the configuration to the extension, renames
PrivateUse1, registers `torch.spyre`, and lets torch generate its methods. It opens no device and
starts no thread.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

from openspyre import _C, env
from openspyre.ops import batch_norm

NAME = "spyre"
# Submodules that are reachable as torch.spyre.<name>; without an entry of its own,
# `import torch.spyre.memory` would load a second copy.
SUBMODULES = (
    "devices",
    "hints",
    "layouts",
    "memory",
    "modules",
    "numerics",
    "plans",
    "random",
    "safetensors",
    "streams",
    "synthetic",
)

_registered = False
_configuration: env.Configuration | None = None


def configuration() -> env.Configuration:
    """What the environment asked for when the device was registered."""
    if _configuration is None:
        raise RuntimeError("the spyre device is not registered: call openspyre.register()")
    return _configuration


def register(module: ModuleType) -> None:
    """Registers `module` as torch.spyre. A second call does nothing."""
    global _registered, _configuration
    if _registered:
        return
    _configuration = env.configuration()
    _C.configure(_configuration.runtime())
    _apply(_configuration)
    rename_privateuse1_backend(NAME)
    _C.register_graph()
    batch_norm.register()
    torch._register_device_module(NAME, module)
    for name in SUBMODULES:
        sys.modules[f"torch.{NAME}.{name}"] = importlib.import_module(f"{module.__name__}.{name}")
    generate_methods_for_privateuse1_backend(for_module=False, for_storage=True)
    # torch's generated Module.spyre would untie shared parameters (modules.py).
    torch.nn.Module.spyre = importlib.import_module(  # type: ignore[attr-defined]
        f"{module.__name__}.modules"
    ).module_spyre
    _registered = True


def _apply(wanted: env.Configuration) -> None:
    """The settings that are not the C++ runtime's."""
    if wanted.error:
        return  # the first use of the device raises it
    _C.fallback_set_policy(wanted.fallback)
    _C.native_set_enabled(wanted.eager == "native")
    if wanted.isa and wanted.isa != "auto":
        _C.set_isa(wanted.isa)
    if wanted.initial_device:
        _C.set_current_device(wanted.initial_device)
