"""A Program with its numbers filled in: what each unit of each core does, task by task.

`Instance` fixes the symbols of one launch; `Instance.walk` expands one queue of one core into
concrete tasks, in order. The verifier, the reference executor and the timing engine all read
programs through this module, so that they cannot disagree about what a loop or an address means.
The native machine has its own (`csrc/machine/program`), which the tests hold equal.

May import numpy; imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from openspyre.formats import STICK_BYTES, Format
from openspyre.layout import SpyreTensorLayout, device_dims
from openspyre.program.expr import HIGH, Binary, Const, Expr, ExprError, Var
from openspyre.program.model import (
    Access,
    Compute,
    Instruction,
    Load,
    Loop,
    Operand,
    Program,
    Ring,
    Role,
    Signal,
    Store,
    SymbolKind,
    Unit,
    Wait,
)
from openspyre.program.ops import LANE_ACCUMULATORS

Environment: TypeAlias = dict[str, int]


class ProgramError(ValueError):
    """A Program that cannot be: names the place in it and the rule that it breaks."""


_COMPILED: dict[Expr, Callable[[Environment], int]] = {}
# By identity as well: hashing a tree at every use costs more than evaluating it. The node is kept
# with its function, so that its id stays its own.
_BY_ID: dict[int, tuple[Expr, Callable[[Environment], int]]] = {}


def _source(node: Expr) -> str:
    if isinstance(node, Const):
        return f"({node.value})"
    if isinstance(node, Var):
        return f"v[{node.name!r}]"
    assert isinstance(node, Binary)
    left, right = _source(node.left), _source(node.right)
    if node.op in ("min", "max"):
        return f"{node.op}({left}, {right})"
    text = f"({left} {node.op} {right})"
    return f"int{text}" if node.op in ("==", "<", "<=") else text


def compiled(node: Expr) -> Callable[[Environment], int]:
    """`node.evaluate`, as a fast function that leaves out the checks which `evaluate` makes."""
    known = _BY_ID.get(id(node))
    if known is not None:
        return known[1]
    if len(_BY_ID) > 100_000:
        _BY_ID.clear()
        _COMPILED.clear()
    function = _COMPILED.get(node)
    if function is None:
        function = eval(f"lambda v: {_source(node)}", {"min": min, "max": max, "int": int})
        _COMPILED[node] = function
    _BY_ID[id(node)] = (node, function)
    return function


@dataclass(frozen=True)
class OperandLayout:
    """Where the elements of an operand lie, in bytes from its address."""

    shape: tuple[int, ...]
    format: Format
    within: tuple[int, ...]  # sizes of the tensor it is a part of
    strides: tuple[int, ...]  # bytes per step of each dim; of the stick dim: per stick
    stick: int  # the dim on the stick, or -1
    nbytes: int  # from the operand's address to the end of its last stick

    def address(self, index: Sequence[int]) -> int:
        """Byte offset of the stick that holds the element at `index`, whose stick index must begin
        a stick."""
        eps = self.format.elements_per_stick
        return sum(
            (i // eps if dim == self.stick else i) * stride
            for dim, (i, stride) in enumerate(zip(index, self.strides, strict=True))
        )


def operand_layout(operand: Operand, values: Mapping[str, int]) -> OperandLayout:
    """The layout of an operand for given symbols. Raises ProgramError for what cannot be laid."""
    shape = tuple(size.evaluate(values) for size in operand.shape)
    if operand.strides is not None:
        return _strided_layout(operand, shape, values)
    within = shape
    if operand.within is not None:
        within = tuple(size.evaluate(values) for size in operand.within)
    if len(shape) > 6:
        raise ProgramError(f"operand {operand.name}: rank {len(shape)} is above 6; collapse dims")
    if len(within) != len(shape) or any(a > b for a, b in zip(shape, within, strict=True)):
        raise ProgramError(f"operand {operand.name}: shape {shape} is not inside {within}")
    if any(size < 1 for size in shape):
        raise ProgramError(f"operand {operand.name}: shape {shape} has a size below 1")
    order = operand.order if operand.order is not None else tuple(range(len(shape)))
    try:
        layout = SpyreTensorLayout.with_order(within, order, operand.format)
    except ValueError as error:
        raise ProgramError(f"operand {operand.name}: {error}") from None
    dim_map = device_dims(order)
    stick = dim_map[-1]
    strides = [0] * len(shape)
    pitch = STICK_BYTES
    for dim, size in reversed(list(zip(dim_map[:-1], layout.device_size[:-1], strict=True))):
        if dim >= 0:
            strides[dim] = pitch
        pitch *= size
    return OperandLayout(
        shape,
        operand.format,
        within,
        tuple(strides),
        stick,
        _extent(operand, shape, strides, stick),
    )


def _extent(operand: Operand, shape: Sequence[int], strides: Sequence[int], stick: int) -> int:
    """Bytes to the end of the last stick."""
    eps = operand.format.elements_per_stick
    return STICK_BYTES + sum(
        ((size - 1) // eps if dim == stick else size - 1) * stride
        for dim, (size, stride) in enumerate(zip(shape, strides, strict=True))
    )


def _strided_layout(
    operand: Operand, shape: tuple[int, ...], values: Mapping[str, int]
) -> OperandLayout:
    """The layout of an operand with `strides`."""
    place = f"operand {operand.name}"
    strides = tuple(stride.evaluate(values) for stride in operand.strides or ())
    stick = operand.stick
    if len(shape) > 6:
        raise ProgramError(f"{place}: rank {len(shape)} is above 6; collapse dims")
    if operand.within is not None or operand.order is not None:
        raise ProgramError(f"{place}: it has strides, and so neither `within` nor `order`")
    if len(strides) != len(shape) or not -1 <= stick < len(shape):
        raise ProgramError(f"{place}: {len(strides)} strides, stick {stick}, rank {len(shape)}")
    if any(size < 1 for size in shape):
        raise ProgramError(f"{place}: shape {shape} has a size below 1")
    if any(stride < 0 or stride % STICK_BYTES for stride in strides):
        raise ProgramError(f"{place}: strides {strides} must be multiples of 128, none negative")
    if operand.role in (Role.OUT, Role.INOUT, Role.SCRATCH):
        eps = operand.format.elements_per_stick
        counts = [-(-n // eps) if dim == stick else n for dim, n in enumerate(shape)]
        end = STICK_BYTES
        for stride, count in sorted(zip(strides, counts, strict=True)):
            if count == 1:
                continue
            if stride < end:
                raise ProgramError(
                    f"{place}: strides {strides} let sticks of shape {shape} overlap"
                )
            end += (count - 1) * stride
    nbytes = _extent(operand, shape, strides, stick)
    if nbytes > HIGH:
        raise ProgramError(f"{place}: {nbytes} bytes are beyond 64 bits")
    return OperandLayout(shape, operand.format, shape, strides, stick, nbytes)


@dataclass(frozen=True)
class Tile:
    """An `Access` with numbers. Addresses are bytes: in LX from its start, in LPDDR5 from the
    operand's address (for a gather or scatter, of index 0)."""

    access: Access
    space: str  # "lx" or "mem"
    address: int
    sizes: tuple[int, ...]  # of every label of the instruction
    strides: tuple[int, ...]  # bytes, of every label; 0: not moved by it
    stick: int  # position of the label on the stick, or -1
    eps: int  # elements per stick
    box: tuple[tuple[int, int], ...]  # (start, size) of each dim of the value
    dims: tuple[int, ...]  # for each dim of the value the position of its label, or -1
    point_bytes: int  # bytes at each point: 128, or those of 64 lane accumulators

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Steps along every label that moves the address: elements, or sticks of the stick
        label."""
        return tuple(
            1 if stride == 0 and position != self.stick
            else -(-size // self.eps) if position == self.stick
            else size
            for position, (size, stride) in enumerate(zip(self.sizes, self.strides, strict=True))
        )  # fmt: skip

    @property
    def empty(self) -> bool:
        return 0 in self.sizes

    @cached_property
    def sticks(self) -> np.ndarray:
        """Address of every 128-byte stick it touches, in label order (labels that do not move it
        left at one), the sticks of one point last. int64, flat."""
        out = np.array([self.address], dtype=np.int64)
        for count, stride in zip(self.counts, self.strides, strict=True):
            if count != 1:
                out = (out[:, None] + np.arange(count, dtype=np.int64) * stride).ravel()
        per_point = self.point_bytes // STICK_BYTES
        if per_point > 1:
            out = (out[:, None] + np.arange(per_point, dtype=np.int64) * STICK_BYTES).ravel()
        return out

    @property
    def nbytes(self) -> int:
        """Bytes of all its sticks."""
        return math.prod(self.counts) * self.point_bytes

    @property
    def span(self) -> tuple[int, int]:
        """First byte and the end of the last one. Strides may be negative."""
        low = high = self.address
        for count, stride in zip(self.counts, self.strides, strict=True):
            reach = (count - 1) * stride
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high + self.point_bytes


@dataclass(frozen=True)
class Task:
    """One instruction of one core with its numbers: an occurrence inside its loops."""

    unit: Unit
    core: int
    path: tuple[int, ...]  # position of the instruction in the queue, through its loops
    instruction: Instruction
    values: Environment  # of the core, with the loop variables at this occurrence

    def where(self) -> str:
        """The place, for messages: queue, instruction, core, loop indices."""
        loops = ", ".join(f"{k[1:]}={v}" for k, v in self.values.items() if k.startswith("%"))
        at = ".".join(map(str, self.path))
        name = type(self.instruction).__name__.lower()
        return f"{self.unit.value}[{at}] {name} on core {self.core}" + (
            f" at {loops}" if loops else ""
        )

    def number(self, node: Expr) -> int:
        return compiled(node)(self.values)

    @cached_property
    def over(self) -> tuple[tuple[int, int], ...]:
        """(start, size) of every label."""
        labels = self.instruction.over  # type: ignore[union-attr]
        return tuple((self.number(label.start), self.number(label.size)) for label in labels)


class Instance:
    """A Program under given symbols. Raises ProgramError when names or sizes do not fit."""

    def __init__(self, program: Program, symbols: Mapping[str, int] | None = None) -> None:
        given = dict(symbols or {})
        self.program = program
        self.symbols: Environment = {}
        for symbol in program.symbols:
            if symbol.kind is SymbolKind.FLOAT:
                continue
            if symbol.name not in given:
                raise ProgramError(f"symbol {symbol.name}: no value given")
            value = int(given[symbol.name])
            low = symbol.minimum
            if symbol.kind is SymbolKind.DIMENSION:
                low = max(low, symbol.granularity)
            if not low <= value <= symbol.maximum or (
                symbol.kind is SymbolKind.DIMENSION and value % symbol.granularity
            ):
                raise ProgramError(
                    f"symbol {symbol.name}: {value} must lie in {low}..{symbol.maximum}"
                    f" and be a multiple of {symbol.granularity}"
                )
            self.symbols[symbol.name] = value
        self.cores = program.cores
        self.operands = {o.name: operand_layout(o, self.symbols) for o in program.operands}
        self.roles = {o.name: o.role for o in program.operands}
        self.buffers = {buffer.name: buffer for buffer in program.buffers}
        self.shapes: dict[str, tuple[int, ...]] = {
            name: layout.shape for name, layout in self.operands.items()
        }
        self.reduced: dict[str, tuple[int, ...]] = {}
        for item in program.values:
            self.shapes[item.name] = tuple(s.evaluate(self.symbols) for s in item.shape)
            self.reduced[item.name] = tuple(s.evaluate(self.symbols) for s in item.reduced)
        self.core_values = [self._core_values(core) for core in range(self.cores)]
        # Loop steps that `walk` may still take: loops without tasks in them must end, too.
        self.steps_left = 1 << 62

    def _core_values(self, core: int) -> Environment:
        values = dict(self.symbols)
        values["core"] = core
        values.update(self.digits(core))
        for let in self.program.lets:
            try:
                values[let.name] = let.value.evaluate(values)
            except ExprError as error:
                raise ProgramError(f"let {let.name} on core {core}: {error}") from None
        return values

    def digits(self, core: int) -> dict[str, int]:
        """The grid digits of a core."""
        out: dict[str, int] = {}
        for digit in reversed(self.program.grid):
            out[digit.name] = core % digit.size
            core //= digit.size
        return out

    def walk(self, core: int, unit: Unit) -> Iterator[Task]:
        """The tasks of one queue, in order; loops are expanded, waits and signals included."""
        values = dict(self.core_values[core])
        return self._walk(self.program.queues.get(unit, ()), core, unit, (), values)

    def _walk(
        self,
        body: tuple[Instruction, ...],
        core: int,
        unit: Unit,
        path: tuple[int, ...],
        values: Environment,
    ) -> Iterator[Task]:
        for position, instruction in enumerate(body):
            here = (*path, position)
            if not isinstance(instruction, Loop):
                yield Task(unit, core, here, instruction, dict(values))
                continue
            count = instruction.count.evaluate(values)
            if count < 0:
                raise ProgramError(
                    f"{unit.value}[{'.'.join(map(str, here))}] loop on core {core}: "
                    f"its count {instruction.count} is {count}"
                )
            variable = instruction.variable
            for step in range(count):
                self.steps_left -= 1
                if self.steps_left < 0:
                    raise ProgramError(
                        f"{unit.value}[{'.'.join(map(str, here))}] loop on core {core}: its count"
                        f" {instruction.count} is {count}, more steps than the limit"
                    )
                if variable is not None:
                    values[variable] = step
                    # A second entry under % tells loop variables from the rest, in messages.
                    values["%" + variable] = step
                yield from self._walk(instruction.body, core, unit, here, values)
            if variable is not None:
                values.pop(variable, None)
                values.pop("%" + variable, None)

    def tile(self, task: Task, access: Access) -> Tile:
        """The tile of one access of a task. Every expression is evaluated anew."""
        names = [label.name for label in task.instruction.over]  # type: ignore[union-attr]
        over = task.over
        position = {name: i for i, name in enumerate(names)}
        given = dict(access.strides)
        unknown = set(given) - set(names)
        if unknown or (access.stick is not None and access.stick not in position):
            raise ProgramError(f"{task.where()}: no label {sorted(unknown) or access.stick}")
        strides = tuple(task.number(given[name]) if name in given else 0 for name in names)
        if access.place in self.buffers:
            buffer = self.buffers[access.place]
            slot = task.number(access.slot)
            if not 0 <= slot < buffer.slots:
                raise ProgramError(
                    f"{task.where()}: buffer {buffer.name} has slots 0..{buffer.slots - 1},"
                    f" not {slot}"
                )
            space, base = "lx", buffer.base + slot * buffer.slot_bytes
        elif access.place in self.operands:
            space, base = "mem", 0
        else:
            raise ProgramError(f"{task.where()}: no buffer or operand {access.place!r}")
        box, dims = [], []
        for index in access.index:
            offset = task.number(index.offset)
            if index.label is None:
                box.append((offset, 1))
                dims.append(-1)
            else:
                if index.label not in position:
                    raise ProgramError(f"{task.where()}: no label {index.label!r}")
                start, size = over[position[index.label]]
                box.append((start + offset, size))
                dims.append(position[index.label])
        size = access.format.bytes
        return Tile(
            access=access,
            space=space,
            address=base + task.number(access.offset),
            sizes=tuple(size for _, size in over),
            strides=strides,
            stick=-1 if access.stick is None else position[access.stick],
            eps=access.format.elements_per_stick,
            box=tuple(box),
            dims=tuple(dims),
            point_bytes=LANE_ACCUMULATORS * size if access.lanes else STICK_BYTES,
        )

    def is_read_only(self, place: str) -> bool:
        """An operand that no instruction of a valid program writes."""
        return self.roles.get(place) in (Role.IN, Role.CONST)


def accesses(instruction: Instruction) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
    """(read, written) tiles of an instruction; index tiles of gathers and scatters are read."""
    if isinstance(instruction, Load):
        extra = (instruction.gather.index,) if instruction.gather else ()
        return (instruction.source, *extra), (instruction.target,)
    if isinstance(instruction, Store):
        extra = (instruction.scatter.index,) if instruction.scatter else ()
        return (instruction.source, *extra), (instruction.target,)
    if isinstance(instruction, Ring):
        return (instruction.source,), (instruction.target,)
    if isinstance(instruction, Compute):
        return instruction.inputs, instruction.outputs
    assert isinstance(instruction, Wait | Signal | Loop)
    return (), ()
