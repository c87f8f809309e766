"""What `torch.spyre` is: the device module of OpenSpyre, in the shape of torch.cuda.

One subject a submodule: devices, streams, memory, plans, random, numerics, layouts, safetensors,
synthetic. The most used names stand here. Importing it starts nothing; the first use of a device
does (`is_initialized`).
"""

# ruff: noqa: E402
from __future__ import annotations

from typing import TYPE_CHECKING, Any


def _register() -> None:
    """Registers this module as torch.spyre; the caller is openspyre._load. Re-entrant.

    Defined before torch is imported: when a program imports this package first, torch's autoload
    comes back here in the middle of it.
    """
    import sys

    from openspyre.device import registration

    registration.register(sys.modules[__name__])


import torch as _torch  # noqa: F401  (its libraries must be loaded before the extension)

from openspyre._C import BadToken, Deadlock, ForkedChild, Hazard, NoBacking, StreamFailure
from openspyre.device import (
    devices,
    hints,
    layouts,
    memory,
    modules,
    numerics,
    plans,
    random,
    safetensors,
    streams,
    synthetic,
)
from openspyre.device.devices import (
    DeviceProperties,
    _is_in_bad_fork,
    _lazy_init,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_amp_supported_dtype,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_initialized,
    set_device,
    synchronize,
)
from openspyre.device.hints import hint
from openspyre.device.layouts import empty, layout_of, relayout_, to_layout
from openspyre.device.memory import (
    empty_cache,
    empty_host_cache,
    fragmentation,
    get_memory_info,
    host_memory_stats,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from openspyre.device.modules import move_module
from openspyre.device.plans import check_job_plan_step_ordering, launch, prepare, record
from openspyre.device.random import (
    default_generators,
    fork_rng,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from openspyre.device.streams import (
    Event,
    SpyreDeviceState,
    SpyreStreamError,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    get_device_state,
    host_compute_stream,
    reset_stream,
    set_stream,
    stream,
    stream_get_error,
    stream_get_error_string,
)
from openspyre.layout import SpyreTensorLayout
from openspyre.ops.fallback import (
    FallbackReport,
    FallbackRow,
    fallback,
    fallback_policy,
    fallback_report,
    reset_fallback_report,
)

if TYPE_CHECKING:
    from openspyre.runtime.plan import JobPlan

__all__ = [
    "BadToken",
    "Deadlock",
    "DeviceProperties",
    "Event",
    "FallbackReport",
    "FallbackRow",
    "ForkedChild",
    "Hazard",
    "JobPlan",
    "NoBacking",
    "SpyreDeviceState",
    "SpyreStreamError",
    "SpyreTensorLayout",
    "Stream",
    "StreamContext",
    "StreamFailure",
    "can_device_access_peer",
    "check_job_plan_step_ordering",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "devices",
    "empty",
    "empty_cache",
    "empty_host_cache",
    "fallback",
    "fallback_policy",
    "fallback_report",
    "fork_rng",
    "fragmentation",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_device_state",
    "get_memory_info",
    "get_rng_state",
    "get_rng_state_all",
    "hint",
    "hints",
    "host_compute_stream",
    "host_memory_stats",
    "init",
    "initial_seed",
    "is_available",
    "is_initialized",
    "launch",
    "layout_of",
    "layouts",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "modules",
    "move_module",
    "numerics",
    "plans",
    "prepare",
    "random",
    "record",
    "relayout_",
    "reset_accumulated_memory_stats",
    "reset_fallback_report",
    "reset_peak_memory_stats",
    "reset_stream",
    "safetensors",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "stream_get_error",
    "stream_get_error_string",
    "streams",
    "synchronize",
    "synthetic",
    "to_layout",
]

# Names that torch itself looks for.
_ = (_is_in_bad_fork, _lazy_init)


def __getattr__(name: str) -> Any:
    if name == "explain":  # looks at the compiler, which is imported at the first use
        from openspyre.observe.explain import explain

        return explain
    if name == "trace":
        from openspyre.observe.card_trace import trace

        return trace
    if name == "recorded":
        from openspyre.observe.recorded import recorded

        return recorded
    if name in ("intermediates", "compare"):
        from openspyre.observe import intermediates

        return getattr(intermediates, name)
    if name == "export_region":
        from openspyre.compiler.export import export_region

        return export_region
    if name == "load_region":
        from openspyre.runtime.exported import load_region

        return load_region
    if name == "JobPlan":  # its module is imported at the first use
        return plans.JobPlan
    # torch.utils.checkpoint saves and restores the random state of a device module that says so;
    # without it a recomputed dropout would draw another mask, and gradients would be wrong.
    if name == "_initialized":
        return is_initialized()
    # Inductor looks for these at its first compilation and would register them bare; we register
    # with our own pass instead, and let it find nothing.
    if name == "Scheduling":
        from openspyre.compiler.inductor.register import register

        register()
    raise AttributeError(f"module 'torch.spyre' has no attribute {name!r}")
