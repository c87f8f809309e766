"""JobPlans: SpyreCode directories prepared on a device, and what can be asked of them.

`prepare_plan` reads and verifies a directory before any device effect; the native plan
(csrc/card/plan.h) then allocates program memory and loads the image. Needs the extension, and so
torch loaded first, but no tensor: `launch` only passes them on.
"""

from __future__ import annotations

import difflib
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openspyre import _C
from openspyre.card import CardSpec
from openspyre.program.model import Operand, Program, Role, SymbolKind
from openspyre.runtime.spyrecode import (
    ComputeOnDevice,
    ComputeOnHost,
    Correction,
    DataTransfer,
    SpyreCode,
    SpyreCodeError,
    Step,
    read_spyrecode,
)

STEP_TYPES = ("HostCompute", "H2D", "D2H", "Compute")
MAX_NAME = 256
"""Characters of a step's name."""
MAX_SLOTS = 64
"""Correction slots of a plan."""


@dataclass(frozen=True)
class ExpectedArgument:
    """What a launch must pass as tensor `index`. Sizes are text: numbers, or expressions over the
    plan's symbols. `within` and `order` are the layout's (docs/program.md, Operand); None: default.
    Or `strides` (bytes, text as sizes) and `stick` are.
    `programs` are the names of those that use it."""

    index: int
    name: str
    role: str  # "in", "out" or "inout"
    dtype: str
    format: str
    shape: tuple[str, ...]
    within: tuple[str, ...] | None
    order: tuple[int, ...] | None
    programs: tuple[str, ...]
    strides: tuple[str, ...] | None = None
    stick: int = -1


@dataclass(frozen=True)
class PlanCounters:
    """What launches of a plan submitted. `reused`: launches that found their symbols in a
    correction slot, and so had no HostCompute and no H2D (`corrections`)."""

    launches: int
    computes: int
    host_computes: int
    corrections: int
    reused: int


class JobPlan:
    """A prepared plan. Made by `torch.spyre.prepare`; its program memory goes with it."""

    def __init__(
        self, code: SpyreCode, device: int, native: _C.Plan, step_names: tuple[str, ...]
    ) -> None:
        self._code = code
        self._device = device
        self._native = native
        self._names = step_names

    @property
    def directory(self) -> Path:
        return self._code.directory

    @property
    def device_index(self) -> int:
        return self._device

    @property
    def code(self) -> SpyreCode:
        """The directory as it was read."""
        return self._code

    @property
    def content_hash(self) -> str:
        """Equal for plans that share their image on the card."""
        return self._code.content_hash

    @property
    def num_steps(self) -> int:
        return len(self._code.steps)

    def get_step_type(self, index: int) -> str:
        """One of STEP_TYPES. IndexError for a step that is not there."""
        return _type_of(self._step(index))

    def get_step_pipeline_barrier(self, index: int) -> bool:
        """True for every step: each waits for all before it on its stream (decision D3)."""
        self._step(index)
        return True

    def get_step_name(self, index: int) -> str:
        """The profiler's name: `profiler_name#<index>` if prepare was given one, else the step's
        own `name`, else `<kernel>/<directory>/bundle.mlir#<index>`."""
        self._step(index)
        return self._names[index]

    def get_step_stream_role(self, index: int) -> str:
        """ "Prep" (stream 65 with overlap) or "Dev" (the launching stream)."""
        self._step(index)
        return self._native.role_of(index)

    @property
    def job_allocation_size(self) -> int:
        """Bytes of segment 7 that the plan's programs see. Correction slots are outside of it."""
        return self._code.allocate.static_size

    @property
    def dynamic_size(self) -> int:
        """Bytes of the dynamic region of each launch (segment 6)."""
        return self._code.allocate.dynamic_size

    @property
    def correction_slots(self) -> int:
        """Launches whose symbols the card can hold at once; 0 for a plan without correction."""
        return self._native.slots

    @property
    def overlaps(self) -> bool:
        """Whether launches prepare on stream 65."""
        return self._native.overlaps

    def check_job_plan_step_ordering(self) -> str:
        """ "" when the steps may be launched in this order, else what is wrong."""
        kinds = [self.get_step_type(i) for i in range(self.num_steps)]
        roles = [self.get_step_stream_role(i) for i in range(self.num_steps)]
        return _C.check_step_ordering(kinds, roles)

    @property
    def expected_arguments(self) -> tuple[ExpectedArgument, ...]:
        """What a launch passes, in order."""
        return tuple(_expected(self._code, i) for i in range(self._code.argument_count))

    @property
    def symbols(self) -> dict[str, str]:
        """Name -> kind of the numbers that a launch gives with `symbols=`."""
        found: dict[str, str] = {}
        for program in self._code.programs.values():
            for symbol in program.symbols:
                if symbol.kind is not SymbolKind.DIMENSION:
                    found[symbol.name] = symbol.kind.value
        return found

    @property
    def counters(self) -> PlanCounters:
        counts = self._native.counters()
        return PlanCounters(**{k: v for k, v in counts.items() if k != "resident"})

    @property
    def is_resident(self) -> bool:
        """False after an eviction; the next launch loads the image again."""
        return bool(self._native.counters()["resident"])

    def host_data(self, handle: str) -> bytes | None:
        """What the D2H step with this `host_handle` brought back last; None before it did. Wait for
        the stream first."""
        return self._native.host_data(handle)

    # --- dumps

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data, for JSON."""
        return {
            "directory": str(self.directory),
            "content_hash": self.content_hash,
            "device": self._device,
            "job_allocation_size": self.job_allocation_size,
            "dynamic_size": self.dynamic_size,
            "correction_slots": self.correction_slots,
            "overlaps": self.overlaps,
            "arguments": [_argument_dict(a) for a in self.expected_arguments],
            "symbols": self.symbols,
            "inits": [
                {"file": i.file, "dev_ptr": i.dev_ptr, "size": i.size} for i in self._code.inits
            ],
            "steps": [self._step_dict(i) for i in range(self.num_steps)],
        }

    def to_json(self, indent: int | None = 2) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    def to_text(self) -> str:
        """The plan for people, a line a fact."""
        lines = [
            f"plan {self.directory} on spyre:{self._device}",
            f"  content {self.content_hash}",
            f"  memory: {self.job_allocation_size} bytes static, {self.dynamic_size} dynamic, "
            f"{self.correction_slots} correction slots",
        ]
        for a in self.expected_arguments:
            within = f" within [{', '.join(a.within)}]" if a.within else ""
            order = f" order {list(a.order)}" if a.order else ""
            strides = f" strides [{', '.join(a.strides)}] stick {a.stick}" if a.strides else ""
            lines.append(
                f"  argument {a.index}: {a.role} {a.name} {a.dtype} ({a.format}) "
                f"[{', '.join(a.shape)}]{within}{order}{strides}"
            )
        lines += [f"  symbol {name}: {kind}" for name, kind in self.symbols.items()]
        for i, step in enumerate(self._code.steps):
            lines.append(
                f"  step {i}: {self.get_step_type(i)} {self.get_step_name(i)} "
                f"({self.get_step_stream_role(i)}) {_step_text(step)}"
            )
        return "\n".join(lines)

    def diff(self, other: JobPlan) -> str:
        """A unified diff of the two plans' JSON, without directories; "" when they say the same."""
        mine, theirs = self.to_dict(), other.to_dict()
        for plan in (mine, theirs):
            own = _directory_name(Path(plan.pop("directory")))
            for step in plan["steps"]:
                step["name"] = step["name"].removeprefix(own)
        return "\n".join(
            difflib.unified_diff(
                json.dumps(mine, indent=1).splitlines(),
                json.dumps(theirs, indent=1).splitlines(),
                str(self.directory),
                str(other.directory),
                lineterm="",
            )
        )

    def __repr__(self) -> str:
        steps = ", ".join(_type_of(step) for step in self._code.steps)
        return f"<JobPlan {self.directory.name} on spyre:{self._device}: {steps}>"

    def _step(self, index: int) -> Step:
        if not 0 <= index < self.num_steps:
            raise IndexError(f"plan {self.directory}: no step {index}; there are {self.num_steps}")
        return self._code.steps[index]

    def _step_dict(self, index: int) -> dict[str, Any]:
        step = self._step(index)
        out: dict[str, Any] = {
            "type": self.get_step_type(index),
            "name": self.get_step_name(index),
            "role": self.get_step_stream_role(index),
            "pipeline_barrier": True,
        }
        if isinstance(step, ComputeOnDevice):
            program = self._code.programs[step.job_bin_ptr]
            out |= {
                "job_bin_ptr": step.job_bin_ptr,
                "program": program.name,
                "args": list(step.args),
            }
        elif isinstance(step, ComputeOnHost):
            out |= {"ohandle": step.ohandle, "ihandle": step.ihandle, "size": step.size}
        else:
            out |= {"handle": step.host_handle, "dev_ptr": step.dev_ptr, "size": step.size}
        return out


def _type_of(step: Step) -> str:
    if isinstance(step, ComputeOnDevice):
        return "Compute"
    if isinstance(step, ComputeOnHost):
        return "HostCompute"
    return "H2D" if step.to_device else "D2H"


def _step_text(step: Step) -> str:
    if isinstance(step, ComputeOnDevice):
        return f"image at {step.job_bin_ptr:#x}, arguments {list(step.args)}"
    if isinstance(step, ComputeOnHost):
        return f"{step.size} bytes -> '{step.ohandle}'"
    way = "->" if step.to_device else "<-"
    return f"'{step.host_handle}' {way} {step.size} bytes at {step.dev_ptr:#x}"


_ROLE_OF = {
    (True, False): Role.IN.value,
    (False, True): Role.OUT.value,
    (True, True): Role.INOUT.value,
}


def _uses(code: SpyreCode, argument: int) -> list[tuple[Program, Operand]]:
    return [
        (code.programs[step.job_bin_ptr], operand)
        for step in code.steps
        if isinstance(step, ComputeOnDevice)
        for number, operand in zip(
            step.args, code.programs[step.job_bin_ptr].arguments, strict=True
        )
        if number == argument
    ]


def _expected(code: SpyreCode, index: int) -> ExpectedArgument:
    uses = _uses(code, index)
    if not uses:
        return ExpectedArgument(index, f"unused{index}", "in", "any", "any", (), None, None, ())
    operand = uses[0][1]
    read = any(o.role is not Role.OUT for _, o in uses)
    written = any(o.role is not Role.IN for _, o in uses)
    return ExpectedArgument(
        index=index,
        name=operand.name,
        role=_ROLE_OF[read, written],
        dtype=operand.dtype,
        format=operand.format.name,
        shape=tuple(map(str, operand.shape)),
        within=None if operand.within is None else tuple(map(str, operand.within)),
        order=operand.order,
        programs=tuple(program.name for program, _ in uses),
        strides=None if operand.strides is None else tuple(map(str, operand.strides)),
        stick=operand.stick,
    )


def _argument_dict(a: ExpectedArgument) -> dict[str, Any]:
    return {
        "index": a.index,
        "name": a.name,
        "role": a.role,
        "dtype": a.dtype,
        "format": a.format,
        "shape": list(a.shape),
        "within": None if a.within is None else list(a.within),
        "order": None if a.order is None else list(a.order),
        "programs": list(a.programs),
        "strides": None if a.strides is None else list(a.strides),
        "stick": a.stick,
    }


# --- preparation


def _directory_name(directory: Path) -> str:
    """What the names of steps without a name of their own begin with."""
    root = directory.resolve()
    return f"{root.parent.name}/{root.name}/"


def _step_names(code: SpyreCode, profiler_name: str | None) -> tuple[str, ...]:
    names = []
    for index, step in enumerate(code.steps):
        if profiler_name is not None:
            name = f"{profiler_name}#{index}"
        elif isinstance(step, ComputeOnDevice) and step.name:
            name = step.name
        else:
            name = f"{_directory_name(code.directory)}bundle.mlir#{index}"
        if len(name) > MAX_NAME:
            if profiler_name is not None:
                raise ValueError(
                    f"profiler_name: {name[:40]!r}... has {len(name)} characters; "
                    f"at most {MAX_NAME} with the step's number"
                )
            name = name[-MAX_NAME:]
        names.append(name)
    return tuple(names)


def _correction(correction: Correction) -> dict[str, Any]:
    number = {symbol.id: i for i, symbol in enumerate(correction.symbols)}
    return {
        "checksum": correction.checksum,
        "symbols": [
            (s.kind, s.arg_index, s.dim, s.offset, s.scale, s.name) for s in correction.symbols
        ],
        "patches": [
            (
                p.blob_offset,
                p.width,
                number[p.symbol],
                p.scale,
                p.addend,
                p.shift,
                p.mask & (2**64 - 1),
            )
            for p in correction.patches
        ],
    }


def _describe_step(step: Step, name: str) -> dict[str, Any]:
    cost = -1 if step.cost_ns is None else step.cost_ns
    common = {"kind": _type_of(step), "name": name, "cost_ns": cost}
    if isinstance(step, ComputeOnDevice):
        return common | {"program_ptr": step.job_bin_ptr, "args": list(step.args)}
    if isinstance(step, ComputeOnHost):
        correction = None if step.correction is None else _correction(step.correction)
        return common | {
            "handle": step.ohandle,
            "input": step.ihandle,
            "size": step.size,
            "correction": correction,
        }
    assert isinstance(step, DataTransfer)
    return common | {"handle": step.host_handle, "dev_ptr": step.dev_ptr, "size": step.size}


def _check_card(code: SpyreCode, card: CardSpec) -> None:
    for program in code.programs.values():
        if program.cores > card.cores or program.card.lx_bytes > card.lx_bytes:
            raise SpyreCodeError(
                f"{code.directory}: program {program.name} needs {program.cores} cores with "
                f"{program.card.lx_bytes} bytes of LX, card {card.name} has {card.cores} with "
                f"{card.lx_bytes}; compile it for this card"
            )


def _cost_function(code: SpyreCode, card: CardSpec) -> Callable[[int, Sequence[int]], int]:
    programs = {
        i: code.programs[step.job_bin_ptr]
        for i, step in enumerate(code.steps)
        if isinstance(step, ComputeOnDevice)
    }

    def cost(step: int, values: Sequence[int]) -> int:
        """Modelled ns of a Compute step under its program's symbols."""
        program = programs[step]
        symbols = {
            symbol.name: value
            for symbol, value in zip(program.symbols, values, strict=True)
            if symbol.kind is not SymbolKind.FLOAT
        }
        try:
            from openspyre.timing import duration_ns

            return duration_ns(program, symbols, card)
        except Exception as error:  # a model's gap must not stop a program that runs
            warnings.warn(
                f"program {program.name}: no modelled time ({error}); its steps count as the "
                f"launch overhead of {card.launch_overhead_ns} ns",
                stacklevel=2,
            )
            return card.launch_overhead_ns

    return cost


def prepare_plan(
    directory: str | Path,
    device: int,
    card: CardSpec,
    *,
    verify: bool = True,
    slots: int | None = None,
    overlap: bool | None = None,
    profiler_name: str | None = None,
) -> JobPlan:
    """`torch.spyre.prepare` for a device by number."""
    if slots is not None and (type(slots) is not int or not 1 <= slots <= MAX_SLOTS):
        raise ValueError(f"prepare: slots is a number from 1 to {MAX_SLOTS}, not {slots!r}")
    if overlap is not None and not isinstance(overlap, bool):
        raise ValueError(f"prepare: overlap is True, False or None, not {overlap!r}")
    code = read_spyrecode(directory, verify=verify)
    names = _step_names(code, profiler_name)
    _check_card(code, card)
    if verify:
        from openspyre.program.verify import verify as check

        for program in code.programs.values():
            check(program)
    description = {
        "name": code.directory.name,
        "hash": code.content_hash,
        "static_size": code.allocate.static_size,
        "dynamic_size": code.allocate.dynamic_size,
        "slots": 0 if slots is None else slots,
        "overlap": -1 if overlap is None else int(overlap),
        "inits": [(init.dev_ptr, init.data) for init in code.inits],
        "steps": [_describe_step(s, n) for s, n in zip(code.steps, names, strict=True)],
    }
    native = _C.Plan(device, description, _cost_function(code, card))
    return JobPlan(code, device, native, names)
