"""safetensors files on spyre.

The library's own `load_file(device="spyre")` refuses: its device names are a closed list. These two
functions take its place.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from openspyre.device.devices import Device


def load_file(
    filename: str | os.PathLike[str], device: Device = "spyre"
) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file on `device` (spyre by default, or any other torch device).

    One tensor at a time goes from the mapped file to the card, so the host never holds a second
    copy of the file. Raises ImportError when safetensors is not installed.
    """
    where = (
        torch.device("spyre", device)
        if isinstance(device, int)
        else torch.device(device or "spyre")
    )
    opened: Any = _library("safetensors").safe_open(
        os.fspath(filename), framework="pt", device="cpu"
    )
    with opened as file:
        return {name: file.get_tensor(name).to(where) for name in file.keys()}  # noqa: SIM118


def save_file(
    tensors: dict[str, torch.Tensor],
    filename: str | os.PathLike[str],
    metadata: dict[str, str] | None = None,
) -> None:
    """Writes tensors of any device. Pads of the card's layouts never reach the file.

    Tensors that share storage become separate copies, as safetensors requires.
    """
    host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    library = _library("safetensors.torch")
    seen: set[int] = set()
    for name, tensor in host.items():
        pointer = tensor.untyped_storage().data_ptr()
        if tensor.numel() and pointer in seen:
            host[name] = tensor.clone()
        seen.add(pointer)
    library.save_file(host, os.fspath(filename), metadata)


def _library(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            "torch.spyre.safetensors needs the package safetensors: pip install safetensors"
        ) from error
