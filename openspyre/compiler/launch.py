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
from openspyre.compiler.bind import Bound, contiguous_strides, place_for
from openspyre.compiler.compile import CopyStep, ProgramStep, Region
from openspyre.compiler.errors import CompileError
from openspyre.compiler.graph import Access, Affine, Place, Role, Tensor
from openspyre.compiler.sizes import Size, known
from openspyre.formats import STICK_BYTES, Format, format_for
from openspyre.layout import SpyreTensorLayout

if TYPE_CHECKING:
    from openspyre.runtime.plan import JobPlan

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


@dataclass
class LoadedRegion:
    """A region on a device. `arguments`: the tensors a launch passes, in order (inputs, inouts and
    outputs as they stand in the graph); their contents are the caller's.

    `temps`: the bytes at which temps lie in one block, for sizes that are known; `alone`: temps
    that DMA copies touch, which are tensors of their own.
    """

    region: Region
    device: int
    arguments: list[Tensor]
    parts: list[Part]
    constants: dict[str, torch.Tensor]
    temps: dict[str, int] = field(default_factory=dict)
    temp_bytes: int = 0
    alone: list[Tensor] = field(default_factory=list)
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
        numbers = {t.name: n for n, t in enumerate(self.arguments)}
        where = self._temps(given)
        for part in self.parts:
            if isinstance(part, CopyStep):
                self._copy(part, tensors, bounds, numbers, where, given)
                continue
            launched: list[torch.Tensor] = []
            offsets: list[int] = []
            for tensor in part.tensors:
                number = numbers.get(tensor.name)
                if number is not None:
                    launched.append(tensors[number])
                    offsets.append(bounds[number].offset)
                elif tensor.name in self.constants:
                    launched.append(self.constants[tensor.name])
                    offsets.append(0)
                else:
                    block, offset = where[tensor.name]
                    launched.append(block)
                    offsets.append(offset)
            values = [
                _float_bits(given[name]) if is_float else int(given[name])
                for name, is_float in part.symbols
            ]
            part.plan._native.launch_bound(launched, offsets, values)

    def _temps(self, symbols: Mapping[str, int | float]) -> dict[str, tuple[torch.Tensor, int]]:
        where: dict[str, tuple[torch.Tensor, int]] = {}
        device = torch.device("spyre", self.device)
        if self.symbolic:
            at: dict[str, int] = {}
            total = 0
            for tensor in self.region.temps:
                if tensor not in self.alone:
                    at[tensor.name] = total
                    total += extent(tensor, self.region, symbols)
        else:
            at, total = self.temps, self.temp_bytes
        if total:
            block = torch.empty((total,), dtype=torch.uint8, device=device)
            where |= {name: (block, offset) for name, offset in at.items()}
        for tensor in self.alone:
            where[tensor.name] = (_temp_tensor(tensor, self.region, symbols, device), 0)
        return where

    def _copy(
        self,
        step: CopyStep,
        tensors: Sequence[torch.Tensor],
        bounds: Sequence[Bound],
        numbers: Mapping[str, int],
        where: Mapping[str, tuple[torch.Tensor, int]],
        symbols: Mapping[str, int | float],
    ) -> None:
        """target = source, by the DMA engine, over the labels of the step."""
        labels = {name: _value(size, symbols) for name, size in step.op.labels.items()}

        def view(access: Access) -> torch.Tensor:
            tensor = access.tensor
            number = numbers.get(tensor.name)
            if number is not None:
                base, linear = tensors[number], bounds[number].linear
                start = base.storage_offset()
            else:
                base = (
                    self.constants[tensor.name]
                    if tensor.name in self.constants
                    else where[tensor.name][0]
                )
                linear = contiguous_strides([_value(s, symbols) for s in tensor.shape])
                start = 0
            steps = dict.fromkeys(labels, 0)
            for index, stride in zip(access.index, linear, strict=True):
                assert isinstance(index, Affine)
                start += _value(index.offset, symbols) * stride
                for label, by in index.terms:
                    steps[label] += _value(by, symbols) * stride
            return base.as_strided(tuple(labels.values()), tuple(steps.values()), start)

        view(step.target).copy_(view(step.source))


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


def unload() -> None:
    """Gives back what loaded regions hold (those that are still used stay)."""
    _loaded.clear()


def load(region: Region, device: int) -> LoadedRegion:
    """Prepares the region on device number `device`. Raises what preparing a plan raises."""
    from openspyre.device.registration import configuration
    from openspyre.runtime.direct import prepare_programs
    from openspyre.runtime.spyrecode_write import Kernel

    graph = region.graph
    card = configuration().card
    sizes = frozenset(s.name for s in graph.symbols.values() if s.kind == "size")
    parts: list[Part] = []
    run: list[ProgramStep] = []

    def close() -> None:
        if not run:
            return
        tensors: list[Tensor] = []
        kernels = []
        for step in run:
            args = []
            for tensor in step.arguments:
                if tensor not in tensors:
                    tensors.append(tensor)
                args.append(tensors.index(tensor))
            kernels.append(Kernel(step.program, args=tuple(args)))
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
    copied = [
        t
        for s in region.steps
        if isinstance(s, CopyStep)
        for t in (s.source.tensor, s.target.tensor)
    ]
    made.alone = [t for t in region.temps if t in copied]
    rest = [t for t in region.temps if t not in copied]
    made.symbolic = any(
        known(size) is None for t in region.temps for size in (*t.shape, *place_of(t).strides)
    )
    if not made.symbolic:
        made.temps, made.temp_bytes = _lay_temps(rest, region)
    return made


def _used(tensor: Tensor, region: Region) -> bool:
    for step in region.steps:
        if isinstance(step, ProgramStep):
            if tensor in step.arguments:
                return True
        elif tensor in (step.source.tensor, step.target.tensor):
            return True
    return False


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


def _lay_temps(temps: Sequence[Tensor], region: Region) -> tuple[dict[str, int], int]:
    """Byte offsets in one block: a temp takes the lowest place that is free from its first to its
    last step."""
    spans: list[tuple[Tensor, int, int, int]] = []
    for tensor in temps:
        uses = [
            n
            for n, step in enumerate(region.steps)
            if isinstance(step, ProgramStep) and tensor in step.arguments
        ]
        spans.append((tensor, uses[0], uses[-1], extent(tensor, region, {})))
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
    return size.evaluate({name: int(v) for name, v in symbols.items() if isinstance(v, int)})


def _float_bits(value: int | float) -> int:
    """The bits of a float32."""
    bits: int = np.float32(value).view(np.uint32).item()
    return bits


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def _layout_for(
    shape: Sequence[int], strides: Sequence[int], stick: int, format: Format
) -> SpyreTensorLayout:
    """A layout of a dense storage of `shape` that lies as a Place says. CompileError when none
    does: the DMA engine copies between storages with layouts only."""
    eps = format.elements_per_stick
    linear = contiguous_strides(shape)
    dims: list[tuple[int, int, int]] = []  # bytes a step, size, linear step
    for d, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        if size == 1:
            continue
        if d == stick:
            if size > eps:
                dims.append((stride, -(-size // eps), linear[d] * eps))
        else:
            dims.append((stride, size, linear[d]))
    device_size, stride_map = [eps], [linear[stick] if stick >= 0 and shape[stick] > 1 else -1]
    at = STICK_BYTES
    for step, size, by in sorted(dims):
        if step % at:
            raise CompileError(f"no layout lies as strides {tuple(strides)} of shape {shape}")
        if step != at:  # a gap: pads
            device_size.insert(0, step // at)
            stride_map.insert(0, -1)
        device_size.insert(0, size)
        stride_map.insert(0, by)
        at = step * size
    return SpyreTensorLayout.explicit(shape, device_size, stride_map, format)


def _temp_tensor(
    tensor: Tensor, region: Region, symbols: Mapping[str, int | float], device: torch.device
) -> torch.Tensor:
    """A contiguous tensor that lies as the temp's place says."""
    from openspyre.device.layouts import empty

    shape = [_value(s, symbols) for s in tensor.shape]
    place = place_of(tensor)
    strides = [_value(s, symbols) for s in place.strides]
    format = format_for(tensor.dtype, region.graph.mode)
    usual = place_for(shape, contiguous_strides(shape), format)
    layout = None
    if usual is None or not _same_place(usual, shape, strides, place.stick):
        layout = _layout_for(shape, strides, place.stick, format)
    return empty(shape, dtype=_dtype(tensor.dtype), device=device, layout=layout)


def _same_place(usual: Bound, shape: Sequence[int], strides: Sequence[int], stick: int) -> bool:
    moving = [d for d, size in enumerate(shape) if size != 1]
    at = {d: n for n, d in enumerate(moving)}
    return (
        usual.shape == tuple(shape[d] for d in moving)
        and usual.place.strides == tuple(strides[d] for d in moving)
        and usual.place.stick == at.get(stick, -1)
    )


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
