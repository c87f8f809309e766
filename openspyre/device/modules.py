"""Moving modules so that tied parameters stay tied.

`module.to("spyre")` gives every parameter a new Parameter object: torch keeps the old one only for
device types on a closed list in its C++ core, and out-of-tree devices are not on it in 2.13 and
2.14. A weight that two layers share becomes two weights: right for inference, twice the memory, and
wrong for training. torch's public switch for conversion by swapping keeps the objects; it is
global, so it is on here only while one module moves.
"""

from __future__ import annotations

from typing import TypeVar

import torch

from openspyre.device.devices import Device, device_index

Module = TypeVar("Module", bound=torch.nn.Module)


def move_module(module: Module, device: Device = "spyre") -> Module:
    """`module.to(device)` that keeps Parameter objects, and so ties between layers and optimizers.

    Returns `module`. Also `module.spyre()`. Raises RuntimeError, as torch does, when a parameter
    cannot be swapped (it has weak references, or a graph of an earlier forward still holds it).
    """
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return module.to(torch.device("spyre", device_index(device)))
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def module_spyre(self: Module, device: Device = None) -> Module:
    """Moves all parameters and buffers to the device, in place; tied parameters stay tied."""
    return move_module(self, device)
