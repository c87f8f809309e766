"""Operations that stay outside of regions: Inductor calls them as they are, for this device only.

Inductor lowers most operations to loops, for which this device has no code. Where an operand lies
on the device the operation is made an extern call instead, which runs its eager kernel (native, or
the counted CPU fallback). Other devices keep Inductor's own lowering.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.lowering import fallback_handler, user_lowerings
from torch.utils._pytree import tree_leaves

DEVICE = "spyre"


def allow(target: Any) -> None:
    """From now on `target` on tensors of this device is an extern call in compiled code."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace == "openspyre":
        return
    if target in user_lowerings:
        return
    extern = fallback_handler(target, add_to_fallback_set=False)

    def lowering(*args: Any, **kwargs: Any) -> Any:
        if not _on_device(args, kwargs):
            return None  # Inductor's own
        made = extern(*args, **kwargs)
        return () if made is None else made  # no result is one: None asks for Inductor's own

    user_lowerings[target] = lowering


def _on_device(args: Any, kwargs: Any) -> bool:
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, ir.IRNode):
            device = leaf.get_device()
            if device is not None and device.type == DEVICE:
                return True
        elif isinstance(leaf, torch.device) and leaf.type == DEVICE:
            return True
    return False
