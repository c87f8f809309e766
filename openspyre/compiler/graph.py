"""The Graph: what one compiled region computes, as operations over affine accesses.

A graph is a list of `Op`s in order of execution over `Tensor`s. An op runs over a box of labels;
each of its tiles is an `Access`: for every dim of the tensor an index that is affine in the labels
or comes from another input (`Indirect`). Nothing is said here about cores, tiles, sticks or LX:
that is decided by the passes, and `Place` is where it is written down. Every op says what happens
to the elements by a `Body` (openspyre/program/body.py), the same as in a Program.

Numbers: a tensor of a 16-bit dtype holds values rounded to its format; inside a body everything is
float32 (or int32, int64, truth). Whoever fuses two ops inserts the rounding (`round`) that the
tensor between them would have made.

Imports no torch. `check` holds a graph to the rules; `Graph.to_text` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

import numpy as np

from openspyre.compiler.sizes import Size, known, product
from openspyre.formats import Format, Mode, format_for
from openspyre.program.model import Body
from openspyre.program.ops import Combine


@dataclass(frozen=True)
class Place:
    """How a tensor lies in LPDDR5: `strides` bytes per step of each dim (multiples of 128; of the
    stick dim: bytes per stick), `stick` the dim on the stick, -1 for one element a stick (lane 0).
    The address of the element of index 0 is the tensor's base."""

    strides: tuple[Size, ...]
    stick: int

    def __str__(self) -> str:
        steps = ", ".join(
            f"{s}{'*' if d == self.stick else ''}" for d, s in enumerate(self.strides)
        )
        return f"({steps})"


class Role(Enum):
    """Where a tensor of a graph comes from and goes to."""

    INPUT = "input"  # a launch argument that is only read
    OUTPUT = "output"  # a new tensor that the launch returns; written completely
    INOUT = "inout"  # a launch argument that is written, too
    TEMP = "temp"  # lives between two ops, in LX or LPDDR5
    CONST = "const"  # `data`, known when compiling


@dataclass(eq=False)
class Alias:
    """A second way to address the elements of tensor `of`, made by legalize where an op walks them
    in steps or diagonally: `index` gives for each dim of `of` an index that is affine in the
    alias's own dims, which are named "d0", "d1", ..; `offset` is the alias's base in bytes from
    that of `of`, and the alias's own Place has the strides that follow."""

    of: Tensor
    index: tuple[Affine, ...]
    offset: Size = 0


@dataclass(eq=False)
class Tensor:
    """A buffer of a graph: dims that are addressed one by one, never merged. `dtype` is torch's
    name. `place` is given for arguments (how they lie when the launch begins), and chosen by the
    layout pass for temps and outputs without one.

    A tensor with an `alias` has no memory of its own: an operand that is bound to the memory of
    `alias.of` (never an alias itself) at `alias.offset`. Its role says how its one or more ops use
    it: INPUT is only read, OUTPUT written completely, INOUT in part. It is no launch argument, and
    always lives in LPDDR5, as `alias.of` does. A kernel that writes one of a tensor and its aliases
    must use no other of them.

    `host`: for an OUTPUT whose place the layout pass chose, its shape and Place as it was declared,
    before passes split or merged its dims: what the launch allocates."""

    name: str
    shape: tuple[Size, ...]
    dtype: str
    role: Role = Role.TEMP
    place: Place | None = None
    data: np.ndarray | None = None  # CONST: the values
    alias: Alias | None = None
    host: tuple[tuple[Size, ...], Place] | None = None
    groups: tuple[tuple[int, ...], ...] | None = None  # the dims of each declared one, till layouts

    @property
    def memory(self) -> Tensor:
        """The tensor whose memory it is: itself, or what it is an alias of."""
        return self.alias.of if self.alias is not None else self

    @property
    def numel(self) -> Size:
        return product(self.shape)

    def format(self, mode: Mode) -> Format:
        """Its format on the card."""
        return format_for(self.dtype, mode)

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.shape))
        where = f" at {self.place}" if self.place else ""
        if self.alias is not None:
            index = ", ".join(map(str, self.alias.index))
            where += f" = {self.alias.of.name}[{index}] + {self.alias.offset} bytes"
        return f"{self.name}: {self.role.value} {self.dtype} [{sizes}]{where}"


@dataclass(frozen=True)
class Affine:
    """offset + sum(coefficient * label). Coefficients may be negative; labels occur once."""

    terms: tuple[tuple[str, Size], ...] = ()
    offset: Size = 0

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(label for label, _ in self.terms)

    @property
    def single(self) -> str | None:
        """The label of `label + offset`, else None."""
        if len(self.terms) == 1 and self.terms[0][1] == 1:
            return self.terms[0][0]
        return None

    def __str__(self) -> str:
        parts = [label if c == 1 else f"{c}*{label}" for label, c in self.terms]
        if not parts or self.offset != 0:
            parts.append(str(self.offset))
        return " + ".join(parts)


@dataclass(frozen=True)
class Indirect:
    """The index is the integer that input number `input` of the op holds at the point; it must lie
    in 0..limit-1, else the launch fails."""

    input: int
    limit: Size

    def __str__(self) -> str:
        return f"in{self.input} < {self.limit}"


IndexOf: TypeAlias = "Affine | Indirect"


@dataclass(frozen=True)
class Access:
    """Which element of `tensor` an op touches at a point of its box: an index for every dim."""

    tensor: Tensor
    index: tuple[IndexOf, ...]

    @property
    def labels(self) -> frozenset[str]:
        """The labels that move it directly."""
        return frozenset(label for i in self.index if isinstance(i, Affine) for label in i.labels)

    @property
    def indirect(self) -> bool:
        return any(isinstance(i, Indirect) for i in self.index)

    def __str__(self) -> str:
        return f"{self.tensor.name}[{', '.join(map(str, self.index))}]"


class OpKind(Enum):
    """What an op does with its box. Outputs of REDUCE, MATMUL and the carry of SCAN are of exact
    dtypes (float32, int32, int64; truth as int32): a MAP after them rounds to 16 bit."""

    MAP = "map"
    """outputs = body(inputs) at every point. An input may be Indirect (gather)."""
    REDUCE = "reduce"
    """body(inputs), combined over the labels `reduced` in lexicographic order (the order in which
    they stand in `reduced`). ARGMAX/ARGMIN: exactly one reduced label, outputs (value, index
    int64); WELFORD: outputs (mean, M2, count). Complete results, lanes folded."""
    MATMUL = "matmul"
    """output = sum over the one label of `reduced` of inputs[0] * inputs[1], k ascending; labels
    in both inputs and the output are batch labels; no body."""
    SCAN = "scan"
    """running `combine` along `label`, inputs[0] -> outputs[0]; body on the input first."""
    SORT = "sort"
    """along `label`, stable: inputs[0] -> outputs (values, indices int64); `descending`."""
    TOPK = "topk"
    """the `limit` first of the sorted order along `label`; the outputs' dim has size `limit`."""
    SCATTER = "scatter"
    """outputs[0] (read and written, some of its indices Indirect) = or, with `add`, += body(
    inputs); points in ascending lexicographic order of the labels."""
    COPY = "copy"
    """outputs[0] = inputs[0] by the DMA engine, between two programs: for accesses that no LOAD or
    STORE expresses. Same dtype, no body."""


@dataclass(eq=False)
class Op:
    """One operation. `labels`: the box, in order, outermost first. `name`: the ATen operation it
    belongs to; `source`: the user's line, for people."""

    kind: OpKind
    name: str
    labels: dict[str, Size]
    inputs: list[Access]
    outputs: list[Access]
    body: Body | None = None
    combine: Combine | None = None
    reduced: tuple[str, ...] = ()
    label: str | None = None
    limit: int = 0
    descending: bool = False
    add: bool = False
    source: str = ""

    @property
    def parallel(self) -> tuple[str, ...]:
        """The labels along which its points are independent."""
        bound = {*self.reduced, *([self.label] if self.label else [])}
        return tuple(label for label in self.labels if label not in bound)

    def collides(self, access: Access) -> bool:
        """Whether reading `access` in this op meets what the op writes at another point: tiles are
        worked off one by one, so that it would read old and new elements as they come."""
        return any(
            out.tensor.memory is access.tensor.memory
            and (out.tensor is not access.tensor or out.index != access.index)
            for out in self.outputs
        )

    def __str__(self) -> str:
        box = ", ".join(f"{label} {size}" for label, size in self.labels.items())
        what = self.kind.value
        if self.combine:
            what += f" {self.combine.value}"
        if self.reduced:
            what += f" over {', '.join(self.reduced)}"
        if self.label:
            what += f" along {self.label}"
        outs = ", ".join(map(str, self.outputs))
        ins = ", ".join(map(str, self.inputs))
        text = f"{outs} = {what} {{{box}}} ({ins})"
        if self.body is not None:
            text += f" {body_text(self.body)}"
        return text + (f"  # {self.name}" if self.name else "")


def body_text(body: Body) -> str:
    """A body as one line."""
    parts = []
    for number, node in enumerate(body.nodes):
        words = [f"%{number} = {node.op}.{node.type}", *(f"%{a}" for a in node.args)]
        if node.immediate is not None:
            words.append(str(node.immediate))
        parts.append(" ".join(words))
    return "{ " + "; ".join([*parts, "give " + " ".join(f"%{r}" for r in body.results)]) + " }"


@dataclass(frozen=True)
class Symbol:
    """A number given at launch. `kind` "size" (an int that shapes may use), "int" or "float" (for
    bodies only). `hint`: its value when compiling, for cost decisions only."""

    name: str
    kind: str
    minimum: int = 1
    maximum: int = 2**31 - 1
    hint: int | float = 0


@dataclass
class Graph:
    """One region. `arguments`: inputs and inouts in the order of the launch, then outputs.
    `exclusive`: no INOUT shares memory with another argument, so that writes may move."""

    name: str
    mode: Mode = Mode.DL16
    tensors: list[Tensor] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    symbols: dict[str, Symbol] = field(default_factory=dict)
    exclusive: bool = False

    @property
    def arguments(self) -> list[Tensor]:
        """The tensors a launch passes, in their order in `tensors`."""
        given = (Role.INPUT, Role.INOUT, Role.OUTPUT)
        return [t for t in self.tensors if t.role in given and t.alias is None]

    def hint(self, size: Size) -> int:
        """A number for a size: itself, or its value under the symbols' hints."""
        number = known(size)
        if number is not None:
            return number
        assert not isinstance(size, int)
        return size.evaluate({s.name: int(s.hint) for s in self.symbols.values()})

    def maximum(self, size: Size) -> int:
        """The largest value of a size within the bounds of the symbols (sizes grow with them)."""
        number = known(size)
        if number is not None:
            return number
        assert not isinstance(size, int)
        return size.evaluate({s.name: s.maximum for s in self.symbols.values()})

    def readers(self, tensor: Tensor) -> list[Op]:
        """The ops that read its memory, through an alias too."""
        at = tensor.memory
        return [op for op in self.ops if any(a.tensor.memory is at for a in op.inputs)]

    def writers(self, tensor: Tensor) -> list[Op]:
        """The ops that write its memory, through an alias too."""
        at = tensor.memory
        return [op for op in self.ops if any(a.tensor.memory is at for a in op.outputs)]

    def to_text(self) -> str:
        """The graph for people, one line a tensor and an op."""
        lines = [f"graph {self.name} ({self.mode.value})"]
        lines += [
            f"  symbol {s.name} {s.kind} {s.minimum}..{s.maximum}" for s in self.symbols.values()
        ]
        lines += [f"  {tensor}" for tensor in self.tensors]
        lines += [f"  {op}" for op in self.ops]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.to_text()
