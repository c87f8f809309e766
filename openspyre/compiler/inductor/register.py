"""Registration of the device with Inductor and Dynamo, by their extension points.

Inductor asks the device module for `Scheduling` when its first compilation begins
(`init_backend_registration`); `torch.spyre` then calls `register` here. Nothing of torch is
patched, and a process that never compiles never imports this.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device
from torch._inductor.codegen.common import (
    DeviceOpOverrides,
    register_backend_for_device,
    register_device_op_overrides,
)
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.codegen.wrapper_fxir import WrapperFxCodegen
from torch._inductor.scheduler import BaseSchedulerNode, BaseScheduling

import openspyre.device as spyre
from openspyre.compiler.inductor import regions  # noqa: F401  (defines openspyre::region)
from openspyre.compiler.inductor.capture import RegionPass

DEVICE = "spyre"


class Scheduling(BaseScheduling):  # type: ignore[misc]
    """Inductor's view of the device's code generator. Regions reach it as extern calls, so there is
    nothing to generate: a loop that arrives here is a gap, and is named."""

    def group_fn(self, sizes: Any) -> Any:
        return tuple(torch._inductor.utils.sympy_product(size) for size in sizes)

    def can_fuse_vertical(self, node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> bool:
        return False

    def can_fuse_horizontal(self, node1: BaseSchedulerNode, node2: BaseSchedulerNode) -> bool:
        return False

    def codegen_node(self, node: Any) -> None:
        origins = sorted({str(o.target) for n in node.get_nodes() for o in n.node.get_origins()})
        raise NotImplementedError(
            f"torch.compile on spyre: Inductor wants a loop for {', '.join(origins) or node}, which"
            " has no lowering in openspyre/compiler/lower. Way out: run this part eagerly"
            " (torch.compiler.disable), or report it"
        )

    def codegen_template(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("torch.compile on spyre: templates are of other devices")

    def codegen_sync(self) -> None:
        """Launches are ordered by their stream."""

    def flush(self) -> None:
        """Nothing is kept back."""

    def ready_to_flush(self) -> bool:
        return False

    def benchmark_fused_nodes(self, nodes: Any) -> tuple[float, str]:
        return 0.0, ""


class OpOverrides(DeviceOpOverrides):  # type: ignore[misc]
    """Lines of the generated wrapper."""

    def import_get_raw_stream_as(self, name: str) -> str:
        return f"def {name}(index):\n    return torch.spyre.current_stream(index).stream_id\n"

    def set_device(self, device_idx: int) -> str:
        return f"torch.spyre.set_device({device_idx})"

    def synchronize(self) -> str:
        return "torch.spyre.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        return f"torch.spyre.device({device_idx})"

    def current_stream(self) -> str:
        return "torch.spyre.current_stream()"


class Interface(DeviceInterface):  # type: ignore[misc]
    """What Dynamo asks about devices."""

    Event = torch.Event
    Stream = torch.Stream

    class Worker:
        """For worker processes, which may not touch the device."""

        @staticmethod
        def set_device(device: int) -> None:
            spyre.set_device(device)

        @staticmethod
        def current_device() -> int:
            return int(spyre.current_device())

        @staticmethod
        def get_device_properties(device: torch.types.Device = None) -> Any:
            return spyre.get_device_properties(device)

    @staticmethod
    def current_device() -> int:
        return int(spyre.current_device())

    @staticmethod
    def set_device(device: torch.types.Device) -> None:
        spyre.set_device(device)

    @staticmethod
    def exchange_device(device: int) -> int:
        before = int(spyre.current_device())
        spyre.set_device(device)
        return before

    maybe_exchange_device = exchange_device

    @staticmethod
    def device_count() -> int:
        return int(spyre.device_count())

    @staticmethod
    def is_available() -> bool:
        return bool(spyre.is_available())

    @staticmethod
    def stream(stream: torch.Stream) -> Any:
        return spyre.stream(stream)

    @staticmethod
    def current_stream() -> torch.Stream:
        return spyre.current_stream()

    @staticmethod
    def set_stream(stream: torch.Stream) -> None:
        spyre.set_stream(stream)

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        return int(spyre.current_stream(device_idx).stream_id)

    @staticmethod
    def synchronize(device: torch.types.Device = None) -> None:
        spyre.synchronize(device)

    @staticmethod
    def get_compute_capability(device: torch.types.Device = None) -> Any:
        return ""

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        return True

    @staticmethod
    def memory_allocated(device: torch.types.Device = None) -> int:
        return int(spyre.memory_allocated(device))


_registered = False


def register() -> None:
    """Makes the device known to Dynamo and Inductor. Idempotent."""
    global _registered
    if _registered:
        return
    _registered = True
    register_interface_for_device(DEVICE, Interface)
    for index in range(spyre.device_count()):
        register_interface_for_device(f"{DEVICE}:{index}", Interface)
    register_device_op_overrides(DEVICE, OpOverrides())
    register_backend_for_device(
        DEVICE,
        Scheduling,
        PythonWrapperCodegen,
        None,
        WrapperFxCodegen,
        device_custom_pass=RegionPass(),
    )
