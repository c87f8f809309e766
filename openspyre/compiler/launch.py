"""From a compiled Region to launches on a device.

`load` prepares the region's programs as plans, one for each run of consecutive programs, uploads
its constants and lays out its temps; `LoadedRegion.run` launches them on tensors. Copies by the DMA
engine go between the plans. Needs torch and the extension; nothing here waits for the card.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from openspyre import _C
from openspyre.compiler.bind import Bound
from openspyre.compiler.compile import CopyStep, ProgramStep, Region
from openspyre.compiler.errors import CompileError
from openspyre.compiler.graph import Access, Affine, Place, Role, Tensor
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.sizes import Size, known, value_of
from openspyre.formats import STICK_BYTES, Mode
from openspyre.program.model import Card

if TYPE_CHECKING:
    from openspyre.runtime.plan import JobPlan
    from openspyre.runtime.spyrecode_write import Kernel

LOADED = 1024
"""Loaded regions that a process keeps; the least recently used give their programs back."""


@dataclass
class Segment:
    """Consecutive programs in one plan. `tensors[i]` is launch argument i; `symbols`: names and
    whether each is a float, in the plan's order."""

    plan: JobPlan
    tensors: list[Tensor]
    symbols: list[tuple[str, bool]]


Part: TypeAlias = "Segment | CopyStep"
Home: TypeAlias = "tuple[torch.Tensor, int]"
"""A storage and the byte at which something lies in it."""


@dataclass
class LoadedRegion:
    """A region on a device. `arguments`: the tensors a launch passes, in order (inputs, inouts and
    outputs as they stand in the graph); their contents are the caller's.

    `temps`: the bytes at which temps lie in one block of `temp_bytes`, unless their sizes are known
    at launch only (`symbolic`).
    """

    region: Region
    device: int
    arguments: list[Tensor]
    parts: list[Part]
    constants: dict[str, torch.Tensor]
    temps: dict[str, int] = field(default_factory=dict)
    temp_bytes: int = 0
    symbolic: bool = False

    @property
    def single(self) -> Segment | None:
        """The one plan of a region that is one launch with temps of known sizes; else None."""
        if len(self.parts) == 1 and isinstance(self.parts[0], Segment) and not self.symbolic:
            return self.parts[0]
        return None

    def run(
        self,
        tensors: Sequence[torch.Tensor],
        bounds: Sequence[Bound],
        symbols: Mapping[str, int | float] | None = None,
    ) -> None:
        """Launches on `tensors`, one for each of `arguments`; `bounds`: how each is seen, with the
        places that the region was compiled for. `symbols`: values of the graph's symbols by name.

        Raises card errors and RuntimeError as a launch does (memory safety, ranges of symbols).
        """
        given = symbols or {}
        homes: dict[str, Home] = {
            t.name: (tensor, bound.offset)
            for t, tensor, bound in zip(self.arguments, tensors, bounds, strict=True)
        }
        homes |= {name: (tensor, 0) for name, tensor in self.constants.items()}
        homes |= self._temps(given)
        for part in self.parts:
            if isinstance(part, CopyStep):
                self._copy(part, homes, given)
                continue
            places = [_home(tensor, homes, given) for tensor in part.tensors]
            values = [
                _float_bits(given[name]) if is_float else int(given[name])
                for name, is_float in part.symbols
            ]
            part.plan._native.launch_bound(
                [tensor for tensor, _ in places], [offset for _, offset in places], values
            )

    def lay_for_largest(self) -> None:
        """Lays temps of symbolic sizes out once, for the largest that the symbols allow."""
        if self.symbolic:
            largest = {s.name: s.maximum for s in self.region.graph.symbols.values()}
            self.temps, self.temp_bytes = _lay_temps(self.region, largest)
            self.symbolic = False

    def _temps(self, symbols: Mapping[str, int | float]) -> dict[str, Home]:
        at, total = self.temps, self.temp_bytes
        if self.symbolic:
            at, total = _lay_temps(self.region, symbols)
        if not total:
            return {}
        device = torch.device("spyre", self.device)
        block = torch.empty((total,), dtype=torch.uint8, device=device)
        return {name: (block, offset) for name, offset in at.items()}

    def _copy(
        self, step: CopyStep, homes: Mapping[str, Home], symbols: Mapping[str, int | float]
    ) -> None:
        """target = source, by the DMA engine, over the labels of the step."""
        labels = {name: _value(size, symbols) for name, size in step.op.labels.items()}
        source, source_side = _side(step.source, labels, homes, symbols)
        target, target_side = _side(step.target, labels, homes, symbols)
        width = step.source.tensor.format(self.region.graph.mode).bytes
        _C.copy_elements(source, target, list(labels.values()), source_side, target_side, width)


def _home(tensor: Tensor, homes: Mapping[str, Home], symbols: Mapping[str, int | float]) -> Home:
    """The storage that holds a tensor of the graph, and the byte at which it begins."""
    memory, offset = homes[tensor.memory.name]
    if tensor.alias is not None:
        offset += _value(tensor.alias.offset, symbols)
    return memory, offset


def _side(
    access: Access,
    labels: Mapping[str, int],
    homes: Mapping[str, Home],
    symbols: Mapping[str, int | float],
) -> tuple[torch.Tensor, tuple[int, list[int], int, int, list[int]]]:
    """One side of a copy: csrc/torch/element_copy.cpp Side."""
    memory, base = _home(access.tensor, homes, symbols)
    place = place_of(access.tensor)
    names = {label: n for n, label in enumerate(labels)}
    step, stick_step = [0] * len(labels), [0] * len(labels)
    stick_base = pitch = 0
    for d, (index, size) in enumerate(zip(access.index, place.strides, strict=True)):
        if not isinstance(index, Affine):
            raise CompileError(f"a copy by index: {access}")
        stride = _value(size, symbols)
        start = _value(index.offset, symbols)
        if d == place.stick:
            stick_base, pitch = start, stride
        else:
            base += start * stride
        for label, by in index.terms:
            if d == place.stick:
                stick_step[names[label]] += _value(by, symbols)
            else:
                step[names[label]] += _value(by, symbols) * stride
    return memory, (base, step, stick_base, pitch, stick_step)


# --- loading

_loaded: OrderedDict[tuple[str, int], LoadedRegion] = OrderedDict()


def loaded(key: str, region: Region, device: int) -> LoadedRegion:
    """`load`, once for a key of `cache.compiled` and a device."""
    found = _loaded.get((key, device))
    if found is None:
        found = _loaded[key, device] = load(region, device)
        while len(_loaded) > LOADED:
            _loaded.popitem(last=False)
    else:
        _loaded.move_to_end((key, device))
    return found


def held() -> list[LoadedRegion]:
    """The loaded regions that the process keeps, for those who look at what ran."""
    return list(_loaded.values())


def forget_plans() -> None:
    """Gives back what loaded regions hold (those that are still used stay)."""
    _loaded.clear()


def options_now(mode: Mode) -> CompileOptions:
    """For the configured card, with the hints of this thread (openspyre/device/hints.py)."""
    from openspyre.device import hints
    from openspyre.device.registration import configuration

    spec = configuration().card
    card = Card(spec.name, spec.cores, spec.lx_bytes)
    return CompileOptions(card, mode, **hints.current().options())


def kernels_of(steps: Sequence[ProgramStep]) -> tuple[list[Kernel], list[Tensor]]:
    """Programs as the kernels of one plan, and the tensors that its launch takes."""
    from openspyre.runtime.spyrecode_write import Kernel

    tensors: list[Tensor] = []
    kernels = []
    for step in steps:
        args = []
        for tensor in step.arguments:
            if tensor.role is Role.CONST:  # the program's image carries it
                continue
            if tensor not in tensors:
                tensors.append(tensor)
            args.append(tensors.index(tensor))
        sources = tuple(dict.fromkeys(op.name for op in step.kernel.ops if op.name))
        kernels.append(Kernel(step.program, args=tuple(args), sources=sources))
    return kernels, tensors


def load(region: Region, device: int) -> LoadedRegion:
    """Prepares the region on device number `device`. Raises what preparing a plan raises."""
    from openspyre.device.registration import configuration
    from openspyre.runtime.direct import prepare_programs

    graph = region.graph
    card = configuration().card
    sizes = frozenset(s.name for s in graph.symbols.values() if s.kind == "size")
    parts: list[Part] = []
    run: list[ProgramStep] = []

    def close() -> None:
        if not run:
            return
        kernels, tensors = kernels_of(run)
        plan = prepare_programs(kernels, device, card, name=graph.name, sizes=sizes)
        kinds = plan.symbols
        symbols = [(name, kinds[name] == "float") for name in plan._native.symbol_names]
        parts.append(Segment(plan, tensors, symbols))
        run.clear()

    for step in region.steps:
        if isinstance(step, ProgramStep):
            run.append(step)
        else:
            close()
            parts.append(step)
    close()
    constants = {
        tensor.name: _upload(tensor, region, device)
        for tensor in graph.tensors
        if tensor.role is Role.CONST and _used(tensor, region)
    }
    made = LoadedRegion(region, device, graph.arguments, parts, constants)
    made.symbolic = any(
        known(size) is None for t in region.temps for size in (*t.shape, *place_of(t).strides)
    )
    if not made.symbolic:
        made.temps, made.temp_bytes = _lay_temps(region, {})
    return made


def _touches(step: ProgramStep | CopyStep, tensor: Tensor) -> bool:
    if isinstance(step, ProgramStep):
        return any(t.memory is tensor and t.role is not Role.CONST for t in step.arguments)
    return tensor in (step.source.tensor.memory, step.target.tensor.memory)


def _used(tensor: Tensor, region: Region) -> bool:
    return any(_touches(step, tensor) for step in region.steps)


def place_of(tensor: Tensor) -> Place:
    """The place of a tensor after all passes."""
    if tensor.place is None:
        raise CompileError(f"{tensor} has no place")
    return tensor.place


def extent(tensor: Tensor, region: Region, symbols: Mapping[str, int | float]) -> int:
    """Bytes from the first stick of a tensor to the end of its last one."""
    place = place_of(tensor)
    eps = tensor.format(region.graph.mode).elements_per_stick
    end = STICK_BYTES
    for d, (size, stride) in enumerate(zip(tensor.shape, place.strides, strict=True)):
        count = _value(size, symbols)
        steps = (count - 1) // eps if d == place.stick else count - 1
        end += steps * _value(stride, symbols)
    return end


def _lay_temps(region: Region, symbols: Mapping[str, int | float]) -> tuple[dict[str, int], int]:
    """Byte offsets in one block: a temp takes the lowest place that is free from its first to its
    last step."""
    spans: list[tuple[Tensor, int, int, int]] = []
    for tensor in region.temps:
        uses = [n for n, step in enumerate(region.steps) if _touches(step, tensor)]
        spans.append((tensor, uses[0], uses[-1], extent(tensor, region, symbols)))
    spans.sort(key=lambda s: -s[3])
    laid: list[tuple[int, int, int, int]] = []  # begin, end, first, last
    offsets: dict[str, int] = {}
    for tensor, first, last, size in spans:
        at = 0
        for begin, end, f, t in sorted(laid):
            if f <= last and first <= t and begin < at + size and at < end:
                at = end
        laid.append((at, at + size, first, last))
        offsets[tensor.name] = at
    return offsets, max((end for _, end, _, _ in laid), default=0)


def _value(size: Size, symbols: Mapping[str, int | float]) -> int:
    if isinstance(size, int):
        return size
    return value_of(size, {name: int(v) for name, v in symbols.items() if isinstance(v, int)})


def _float_bits(value: int | float) -> int:
    """The bits of a float32."""
    bits: int = np.float32(value).view(np.uint32).item()
    return bits


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def _upload(tensor: Tensor, region: Region, device: int) -> torch.Tensor:
    """A constant on the card: the bytes of its place, as a uint8 tensor."""
    from openspyre.formats import host_type

    assert tensor.data is not None
    place = place_of(tensor)
    mode, tie, merged = _C.numerics()
    format = tensor.format(region.graph.mode)
    host = torch.from_numpy(np.ascontiguousarray(tensor.data)).to(_dtype(tensor.dtype))
    raw = host.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    codes = np.frombuffer(
        _C.format_encode(host_type(tensor.dtype).name, format.name, raw, mode, tie, merged),
        np.uint8,
    ).reshape(-1, format.bytes)
    eps = format.elements_per_stick
    at = np.zeros(tensor.data.shape, np.int64)
    for d, (size, stride) in enumerate(zip(tensor.shape, place.strides, strict=True)):
        index = np.arange(_value(size, {}))
        step = _value(stride, {})
        moved = (
            index // eps * step + index % eps * format.bytes if d == place.stick else index * step
        )
        at += moved.reshape([-1 if i == d else 1 for i in range(at.ndim)])
    block = np.zeros(extent(tensor, region, {}), np.uint8)
    block[at.reshape(-1, 1) + np.arange(format.bytes)] = codes
    return torch.from_numpy(block).to(torch.device("spyre", device))
