"""Exported regions at work: a directory of `torch.spyre.export_region`, loaded and launched.

Needs neither the function nor the compiler's passes; of the compiler only how a tensor is bound.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from openspyre import _C
from openspyre.device import layouts, plans
from openspyre.device.devices import Device, device_index
from openspyre.formats import Format
from openspyre.layout import SpyreTensorLayout

if TYPE_CHECKING:
    from openspyre.compiler.bind import Bound

FORMAT = 1
REGION, CODE, KEPT = "region.json", "code", "kept.pt"


def place_text(bound: Bound) -> str:
    """How a tensor lies, but for where it begins; equal texts mean that one may stand for the
    other."""
    return f"{list(bound.shape)} {list(bound.place.strides)} {bound.place.stick}"


@dataclass(frozen=True)
class ExportedRegion:
    """A loaded export: callable on tensors of the recorded sizes, strides, dtypes and layouts."""

    path: Path
    device: int
    plan: plans.JobPlan
    description: dict[str, Any]
    kept: list[torch.Tensor]
    constants: list[torch.Tensor]

    def __call__(self, *call: torch.Tensor) -> list[torch.Tensor]:
        """Launches on the current stream; the new results. Inputs that the region writes are
        written; what it reads in another layout than at the export is copied first. Raises
        ValueError for a tensor that is not as recorded: which, and how it is."""
        if len(call) != self.description["call"]:
            raise ValueError(
                f"{self.path}: {self.description['call']} tensors are taken, got {len(call)}"
            )
        tensors: list[torch.Tensor] = []
        begins: list[int] = []
        for (kind, number), facts in zip(
            self.description["sources"], self.description["tensors"], strict=True
        ):
            tensor, begin = self._checked(
                f"{'tensor' if kind == 'call' else 'kept tensor'} {number}",
                (call if kind == "call" else self.kept)[number],
                facts,
            )
            tensors.append(tensor)
            begins.append(begin)
        device = torch.device("spyre", self.device)
        results = [
            torch.empty_strided(
                r["shape"], r["strides"], dtype=getattr(torch, r["dtype"]), device=device
            )
            for r in self.description["results"]
        ]
        temporaries = torch.empty(
            (max(1, self.description["temporary_bytes"]),), dtype=torch.uint8, device=device
        )
        pools: dict[str, Sequence[torch.Tensor]] = {
            "tensor": tensors, "result": results, "constant": self.constants,
            "temporaries": [temporaries],
        }  # fmt: skip
        given: list[torch.Tensor] = []
        offsets: list[int] = []
        for kind, number, offset in self.description["arguments"]:
            given.append(pools[kind][number])
            offsets.append(offset + (begins[number] if kind == "tensor" else 0))
        self.plan._native.launch_bound(given, offsets, ())
        return results

    def _checked(
        self, name: str, tensor: torch.Tensor, facts: dict[str, Any]
    ) -> tuple[torch.Tensor, int]:
        """The tensor in the recorded layout, and the byte at which it begins."""
        from openspyre.compiler.bind import bind

        dtype = str(tensor.dtype).removeprefix("torch.")
        recorded = facts["shape"], facts["strides"], facts["dtype"]
        if (list(tensor.shape), list(tensor.stride()), dtype) != recorded:
            raise ValueError(
                f"{self.path}: {name} is {dtype} {list(tensor.shape)} strides"
                f" {list(tensor.stride())}, exported with {facts['dtype']} {facts['shape']} strides"
                f" {facts['strides']}"
            )
        if tensor.device != torch.device("spyre", self.device):
            raise ValueError(
                f"{self.path}: {name} is on {tensor.device}, the region on spyre:{self.device}"
            )
        if facts["place"] is None:  # nothing of it is read
            return tensor, 0
        bound = bind(tensor)
        if bound is None or place_text(bound) != facts["place"]:
            if facts["layout"] is None or facts["written"]:
                raise ValueError(
                    f"{self.path}: {name} lies otherwise than at the export, in {facts['place']}:"
                    f" {layouts.layout_of(tensor)}. Way out: torch.spyre.to_layout"
                )
            tensor = layouts.to_layout(tensor, _layout(facts["layout"]))
            bound = bind(tensor)
            assert bound is not None
        return tensor, bound.offset


def _layout(fields: dict[str, Any]) -> SpyreTensorLayout:
    return SpyreTensorLayout(
        tuple(fields["host_size"]), tuple(fields["device_size"]), tuple(fields["stride_map"]),
        Format[fields["format"]],
    )  # fmt: skip


def load_region(directory: str | Path, *, device: Device = None) -> ExportedRegion:
    """Loads an export of `torch.spyre.export_region`; its programs are verified. Raises ValueError
    for another format, OSError and what `torch.spyre.prepare` raises."""
    path = Path(directory)
    description = json.loads((path / REGION).read_text())
    if description.get("format") != FORMAT:
        raise ValueError(
            f"{path}: exports of format {description.get('format')} are not read, only {FORMAT}."
            " Way out: export it again"
        )
    if description["numerics"] != _C.numerics()[0]:
        raise ValueError(
            f"{path}: exported in numerics mode {description['numerics']}, this process has"
            f" {_C.numerics()[0]}. Way out: OPENSPYRE_NUMERICS={description['numerics']}"
        )
    index = device_index(device)
    held = torch.load(path / KEPT, weights_only=True)
    constants = [tensor.to(f"spyre:{index}") for tensor in held["constants"]]
    kept = [tensor.to(f"spyre:{index}") for tensor in held["kept"]]
    for (kind, number), facts in zip(description["sources"], description["tensors"], strict=True):
        if kind == "kept" and facts["layout"] is not None:
            kept[number] = layouts.to_layout(kept[number], _layout(facts["layout"]))
    plan = plans.prepare(path / CODE, device=index)
    return ExportedRegion(path, index, plan, description, kept, constants)
