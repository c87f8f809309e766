"""A compiled function as a directory: the programs of its region, and what its launch takes.

    directory/
      region.json      arguments, results, constants: `FORMAT`
      code/            a SpyreCode directory (docs/spyrecode.md)
      kept.pt          the tensors that the function brings along (parameters, constants)

`openspyre.runtime.exported` runs it, in any process, without the function. Needs torch.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from openspyre import _C
from openspyre.compiler import runner
from openspyre.compiler.bind import Bound
from openspyre.compiler.compile import ProgramStep
from openspyre.compiler.graph import Role
from openspyre.compiler.launch import kernels_of
from openspyre.device.layouts import layout_of
from openspyre.runtime.exported import CODE, FORMAT, KEPT, REGION, place_text
from openspyre.runtime.spyrecode_write import write_spyrecode

__all__ = ["export_region"]


def export_region(
    function: Callable[..., Any], directory: str | Path, *args: Any, **kwargs: Any
) -> Path:
    """Calls the compiled `function` on the arguments and writes the region that ran to `directory`,
    which must not exist or be an export. Gives its path; `torch.spyre.load_region` loads it.

    The export is called with the tensors among the arguments, in order, of these sizes, strides and
    dtypes; what the function brings along (parameters, buffers, constants) is kept in it.
    Raises ValueError when the call ran no region or several, and for a region that is more than one
    launch: one with copies by the DMA engine, random numbers, or results that are moved afterwards.
    """
    seen: list[tuple[runner.Planned, Sequence[torch.Tensor]]] = []

    def note(plan: runner.Planned, tensors: Sequence[torch.Tensor]) -> None:
        seen.append((plan, list(tensors)))

    runner.listen(note)
    try:
        function(*args, **kwargs)
    finally:
        runner.unlisten(note)
    if len(seen) != 1:
        raise ValueError(
            f"export_region: the call ran {len(seen)} compiled regions, and an export holds one."
            " Way out: torch.compile(function, fullgraph=True), without operations that fall back"
            " (torch.spyre.explain names them)"
        )
    ((plan, tensors),) = seen
    if plan.direct is None or not plan.plain:
        raise ValueError(
            f"export_region: {plan.loaded.region.graph.name} is more than one launch (copies,"
            " random numbers or strided results). torch.spyre.explain shows what it consists of"
        )
    given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    return _write(Path(os.path.abspath(directory)), plan, plan.direct, tensors, given)


def _write(
    target: Path,
    plan: runner.Planned,
    direct: runner.Direct,
    tensors: Sequence[torch.Tensor],
    given: Sequence[torch.Tensor],
) -> Path:
    if target.exists() and not (target / REGION).is_file():
        raise ValueError(f"export_region: {target} exists and is no export")
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        steps = [step for step in plan.loaded.region.steps if isinstance(step, ProgramStep)]
        kernels, _ = kernels_of(steps)
        write_spyrecode(aside / CODE, kernels)
        sources, kept = _sources(tensors, given)
        torch.save({"kept": kept, "constants": [t.cpu() for t in direct.held]}, aside / KEPT)
        description = _description(plan, direct, tensors)
        description |= {"sources": sources, "call": len(given)}
        text = json.dumps(description, indent=1)
        (aside / REGION).write_text(text + "\n")
        if target.exists():
            shutil.rmtree(target)
        aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def _sources(
    tensors: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
) -> tuple[list[list[Any]], list[torch.Tensor]]:
    """Where each tensor of the region comes from: ["call", n] or ["kept", n], and what is kept."""

    def identity(tensor: torch.Tensor) -> tuple[Any, ...]:
        storage = tensor.untyped_storage()._cdata
        return storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride()

    by_identity = {identity(tensor): n for n, tensor in reversed(list(enumerate(given)))}
    sources: list[list[Any]] = []
    kept: list[torch.Tensor] = []
    for tensor in tensors:
        number = by_identity.get(identity(tensor))
        if number is None:
            sources.append(["kept", len(kept)])
            kept.append(tensor.detach().cpu())
        else:
            sources.append(["call", number])
    return sources, kept


def _layout(tensor: torch.Tensor) -> dict[str, Any] | None:
    """The layout of a tensor that is a whole storage; none for a part."""
    layout = layout_of(tensor)
    if not tensor.is_contiguous() or tensor.numel() != layout.numel:
        return None
    return {
        "host_size": layout.host_size, "device_size": layout.device_size,
        "stride_map": layout.stride_map, "format": layout.format.name,
    }  # fmt: skip


def _description(
    plan: runner.Planned, direct: runner.Direct, tensors: Sequence[torch.Tensor]
) -> dict[str, Any]:
    written = {
        number for tensor, (number, _) in zip(plan.loaded.arguments, plan.sources, strict=True)
        if tensor.role is Role.INOUT
    }  # fmt: skip
    bounds: dict[int, Bound] = {n: bound for n, bound in plan.sources if n >= 0}
    which = []
    for number, offset in zip(direct.which, direct.offsets, strict=True):
        kept = number - len(tensors)
        if number < 0:
            which.append(["result", -1 - number, offset])
        elif kept < 0:  # it begins where the tensor at launch does
            which.append(["tensor", number, offset - bounds[number].offset])
        elif kept < len(direct.held):
            which.append(["constant", kept, offset])
        else:
            which.append(["temporaries", 0, offset])
    return {
        "format": FORMAT,
        "numerics": _C.numerics()[0],
        "name": plan.loaded.region.graph.name,
        "tensors": [
            {
                "shape": list(tensor.shape),
                "strides": list(tensor.stride()),
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "place": place_text(bounds[n]) if n in bounds else None,
                "layout": _layout(tensor),
                "written": n in written,
            }
            for n, tensor in enumerate(tensors)
        ],
        "results": [
            {
                "shape": list(made.sizes),
                "strides": list(made.strides),
                "dtype": str(made.dtype).removeprefix("torch."),
            }
            for made in plan.outputs
        ],
        "arguments": which,
        "temporary_bytes": direct.temp_bytes,
    }
