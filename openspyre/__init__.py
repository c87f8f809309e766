"""OpenSpyre: the `spyre` device for PyTorch on a software card.

torch finds this package through the entry point group `torch.backends` and calls `_autoload()` at
the end of its own import; then `torch.ones(4, device="spyre")` works with no other import. With
TORCH_DEVICE_BACKEND_AUTOLOAD=0 nothing happens until `openspyre.register()`.

This module imports no torch by itself, starts nothing and prints nothing. `openspyre.card`, `.env`,
`.formats`, `.layout` and `.program` stay usable without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0.dev0"

__all__ = ["__version__", "register"]

# Submodules that are imported when first named.
_LAZY = frozenset({"card", "device", "env", "formats", "layout", "ops", "program", "runtime"})


def register() -> None:
    """Enables the device `spyre` in torch; needed only where autoload is off.

    Imports torch. Safe to call any number of times and from any thread.
    Raises ImportError when torch's version is not supported, when it is not the one that the
    extension was built for, or when the extension was not built; each message names the way out.
    """
    # Before any lock of ours: importing torch may itself call _autoload(), here or in the thread
    # that is already importing it.
    import torch  # noqa: F401

    _autoload()


def _autoload() -> None:
    """The `torch.backends` entry point. Called while torch is still importing; re-entrant."""
    from openspyre import _load

    _load.load()


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return import_module(f"openspyre.{name}")
    raise AttributeError(f"module 'openspyre' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
