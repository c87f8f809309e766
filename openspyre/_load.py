"""Loads the extension into torch, once. The only caller is `openspyre.register` / `_autoload`.

Runs at the end of `import torch`, with torch only partly initialised and torch's import lock held,
so it must not wait for another thread that may wait for that lock: callers import torch before
they come here (see `register`).
"""

from __future__ import annotations

import atexit
import threading
from importlib import import_module

from openspyre import _versions

_lock = threading.RLock()
_state = "new"  # -> "running" -> "done"; back to "new" when loading failed


def load() -> None:
    """Checks versions, loads `openspyre._C` and registers the device. See `openspyre.register`."""
    global _state
    if _state == "done":
        return
    with _lock:
        if _state != "new":  # done meanwhile, or called again from inside the registration
            return
        _state = "running"
        try:
            _load_once()
        except BaseException:
            _state = "new"
            raise
        _state = "done"


def is_loaded() -> bool:
    """Whether the device is registered in this process."""
    return _state == "done"


def _load_once() -> None:
    import torch

    _versions.check_supported(torch.__version__)
    try:
        from openspyre._build_info import TORCH_VERSION
    except ImportError as error:
        raise ImportError(
            "openspyre's extension was not built: openspyre/_build_info.py is missing. "
            "Way out: pip install --no-build-isolation openspyre (make setup in a checkout); "
            "to import torch without it meanwhile, set TORCH_DEVICE_BACKEND_AUTOLOAD=0."
        ) from error
    _versions.check_built_for(torch.__version__, TORCH_VERSION)
    try:
        extension = import_module("openspyre._C")
    except ImportError as error:
        raise ImportError(
            f"openspyre's extension for torch {TORCH_VERSION} does not load: {error}. "
            f"Way out: build it again (make clean setup in a checkout); "
            f"to import torch without it meanwhile, set TORCH_DEVICE_BACKEND_AUTOLOAD=0."
        ) from error
    # Before the device registers anything of its own, so that it runs after that: drains the
    # streams, joins the workers, removes the statistics page. Does nothing if nothing was started.
    atexit.register(extension.shutdown)
    try:
        import_module("openspyre.device")._register()
    except BaseException:
        atexit.unregister(extension.shutdown)
        raise
