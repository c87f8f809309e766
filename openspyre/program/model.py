"""The Program: what the card runs. Plain frozen data; nothing here reads or writes a file.

A card has `cores` cores; each core has five units with an in-order queue each: `load` (LPDDR5 to
LX), `store` (LX to LPDDR5), `ring` (LX of other cores to the own LX), `pt` (matrix products) and
`sfu` (everything else). All cores run the same queues (SPMD); cores differ by the digits of their
id and by `let` names computed from them. A unit starts a task when the counting tokens it waits
for are there; nothing else orders the units.

Every transfer and every COMPUTE says twice what it touches: physically (address and strides), which
is what executes, and logically (which box of which value), which is what the verifier holds against
it. See docs/program.md for the meaning of every field and `verify.py` for the rules.

Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from openspyre.formats import Format
from openspyre.program.expr import Const, Expr
from openspyre.program.ops import Combine, Kind

VERSION = 2
"""1 had no operands with strides. It is read, and becomes 2."""

ZERO = Const(0)
ONE = Const(1)


class Role(Enum):
    """What a launch does with an operand. The first three are launch arguments, in order."""

    IN = "in"
    OUT = "out"  # every element is stored exactly once
    INOUT = "inout"  # read and written; stores may cover it in part
    SCRATCH = "scratch"  # LPDDR5 of one launch (ProgramDynamic)
    CONST = "const"  # bytes of the image (ProgramStatic)


class SymbolKind(Enum):
    """kAddress symbols are the operands themselves and are not listed."""

    DIMENSION = "dimension"  # size of a launch argument's dim
    INT = "int"  # an int64 given at launch
    FLOAT = "float"  # a float32 given at launch; for bodies only


class Unit(Enum):
    """The queues of a core, in the order of their binary codes."""

    LOAD = "load"
    STORE = "store"
    RING = "ring"
    PT = "pt"
    SFU = "sfu"


UNITS = tuple(Unit)


@dataclass(frozen=True)
class Digit:
    """One digit of the core id. Digits are written most significant first: with digits (m 4, n 8)
    core 13 has m = 1, n = 5. Their product is the number of cores the program runs on."""

    name: str
    size: int


@dataclass(frozen=True)
class Symbol:
    """A number known at launch. `argument` and `dim` (a DIMENSION's source) count launch arguments
    and host dims. A DIMENSION must be a multiple of `granularity`, at least `granularity` and at
    most `maximum`; INT must lie in minimum..maximum."""

    name: str
    kind: SymbolKind
    argument: int = -1
    dim: int = -1
    granularity: int = 1
    minimum: int = 0
    maximum: int = 2**63 - 1


@dataclass(frozen=True)
class Operand:
    """A tensor in LPDDR5.

    `shape`: sizes of its dims. Its layout is that of a tensor of shape `within` (default: `shape`)
    in dim order `order` (default: 0..n-1; a trailing -1 is sparse), `SpyreTensorLayout.with_order`,
    and the operand starts at element 0 of it: so a slice of a larger tensor is an operand whose
    `within` is the larger tensor's shape. Rank at most 6. SCRATCH: `offset` is its byte offset in
    the launch's dynamic region; CONST: in the program's `data`; else 0.

    Or the layout is given outright, and `within` and `order` are not: `strides` are the bytes a
    step of each dim (of dim `stick`: a stick), multiples of 128, 0 for a dim that does not move;
    `stick` is the dim on the stick, -1 for one element a stick. So any affine view of a storage
    is an operand. Elements of OUT, INOUT and SCRATCH must lie apart; what a last stick holds
    beyond its dim is lost when the operand is stored.
    """

    name: str
    role: Role
    dtype: str  # torch's name, e.g. "float16"
    format: Format
    shape: tuple[Expr, ...]
    within: tuple[Expr, ...] | None = None
    order: tuple[int, ...] | None = None
    offset: int = 0
    strides: tuple[Expr, ...] | None = None
    stick: int = -1


@dataclass(frozen=True)
class Value:
    """A logical tensor that exists only in LX tiles: an intermediate result.

    `reduced` is the box of reduction indices its elements sum over (empty: none): a tile of it is
    complete, and may be used, once its COMPUTEs covered each of those indices exactly once.
    """

    name: str
    shape: tuple[Expr, ...]
    reduced: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class Buffer:
    """`slots` slots of `slot_bytes` bytes in each core's LX, from byte `base`; all multiples of
    128. Buffers may share bytes when the verifier can see that their tiles never live together."""

    name: str
    base: int
    slot_bytes: int
    slots: int = 1


@dataclass(frozen=True)
class Token:
    """`count` counting semaphores per core, each starting at `initial`. Each semaphore has one
    queue that signals it and one that waits on it, so that which signal meets which wait does not
    depend on time."""

    name: str
    count: int = 1
    initial: int = 0


@dataclass(frozen=True)
class Let:
    """A per-core number: an expression over symbols, digits, `core` and earlier lets."""

    name: str
    value: Expr


# --- instructions


@dataclass(frozen=True)
class Label:
    """One dim of an instruction's iteration box: indices start .. start + size - 1. A size of zero
    makes the instruction do nothing."""

    name: str
    start: Expr
    size: Expr


@dataclass(frozen=True)
class Index:
    """Which indices of one dim of a value an access covers: those of `label`, plus `offset`; or,
    without a label, the one index `offset`."""

    label: str | None
    offset: Expr = ZERO


@dataclass(frozen=True)
class Access:
    """A tile: a box of `value`, at an address in LPDDR5 or in the LX of the core.

    Address of the point with local indices (counted from each label's start) t: `base + offset +
    sum(strides[label] * t[label])`, where base is the operand's address, or the LX buffer's base +
    slot * slot_bytes. The label on the `stick` moves `t // eps` strides and then `t % eps` elements
    inside the stick. Without a stick label the element is the first of its stick. All addresses and
    strides are multiples of 128. Labels without a stride do not move it (broadcast).

    `lanes`: the tile holds 64 lane accumulators of 4 or 8 bytes per point instead of elements.
    """

    value: str
    index: tuple[Index, ...]
    place: str  # operand name (LPDDR5) or buffer name (LX); the two share one name space
    format: Format
    strides: tuple[tuple[str, Expr], ...] = ()
    stick: str | None = None
    offset: Expr = ZERO
    slot: Expr = ZERO
    lanes: bool = False


@dataclass(frozen=True)
class Gather:
    """LOAD by index: the LPDDR5 position along `label` is the integer in the tile `index` (int32 or
    int64 in LX, over `label` alone), not the local index. `limit`: indices must lie in
    0..limit-1, else the launch fails."""

    label: str
    index: Access
    limit: Expr


@dataclass(frozen=True)
class Scatter:
    """STORE by index, as Gather. Indices outside 0..limit-1 fail the launch; of those inside, only
    `first .. first + count - 1` are stored (each core its own window, so that no two cores write
    one element). `add` adds to what is there (in the register type, then rounds), in index order;
    else the last one wins."""

    label: str
    index: Access
    limit: Expr
    first: Expr
    count: Expr
    add: bool = False


@dataclass(frozen=True)
class Load:
    """LPDDR5 to LX. Whole sticks move: along the stick label ceil(size / eps) of them. `multicast`
    names digits: the cores that differ only in them must issue the same LOAD at the same place of
    their queues; LPDDR5 is read once for all of them."""

    over: tuple[Label, ...]
    source: Access
    target: Access
    multicast: tuple[str, ...] = ()
    gather: Gather | None = None


@dataclass(frozen=True)
class Store:
    """LX to LPDDR5. Whole sticks move, what is beyond the valid extent is don't-care."""

    over: tuple[Label, ...]
    source: Access
    target: Access
    scatter: Scatter | None = None


@dataclass(frozen=True)
class Ring:
    """From other cores' LX into the own LX: for `variable` = 0 .. count-1 the tile `source` of core
    `core`. Without `combine` each goes to `target` (which may use `variable`: a gather); with it
    `target` becomes source(0) combined with source(1), .. in that order (float32, int32, int64)."""

    over: tuple[Label, ...]
    variable: str
    count: Expr
    core: Expr
    source: Access
    target: Access
    combine: Combine | None = None


@dataclass(frozen=True)
class Node:
    """One operation of a body: `op` of `BODY_OP` for type letter `type`, on earlier nodes."""

    op: str
    type: str
    args: tuple[int, ...] = ()
    immediate: int | float | str | None = None


@dataclass(frozen=True)
class Body:
    """What the SFU does at a point: nodes in order, each a register of its own."""

    nodes: tuple[Node, ...]
    results: tuple[int, ...]  # one per output of MAP; the values to combine for REDUCE


@dataclass(frozen=True)
class Compute:
    """A task of the PT or SFU on LX tiles. `label` and the flags belong to single kinds:

    MATMUL      inputs (a, b), output float32 (int32 for int8 inputs); the one label that both
                inputs have and the output lacks is k; labels all three have are batch labels
    MAP         body; one output per result
    REDUCE      body, combine; ARGMAX/ARGMIN: outputs (value, index int64); WELFORD: (mean, M2, n)
    FOLD        combine; inputs lane accumulators, outputs as many plain tiles
    SCAN        combine, label; inputs (x, carry), outputs (y, carry after it); carry is a plain
                tile over the labels other than `label`; ignored as input unless `accumulate`
    GATHER      inputs (source, index), label: the source's label indexed, with `limit`
    SCATTER     inputs (source, index), output read and written; `add`
    SORT        inputs (values,) or (values, indices), outputs (values, indices int64);
                `descending`; without an indices input they are the global indices along `label`
    MERGE       inputs (va, ia, vb, ib), outputs (v low, i low, v high, i high)
    TOPK        inputs (values,), outputs (values, indices) of size `limit` along `label`

    `accumulate`: an expression; 0 starts a new result, else the outputs hold one to go on with.
    """

    unit: Unit
    kind: Kind
    over: tuple[Label, ...]
    inputs: tuple[Access, ...]
    outputs: tuple[Access, ...]
    body: Body | None = None
    combine: Combine | None = None
    accumulate: Expr = ZERO
    label: str | None = None
    limit: Expr = ZERO
    descending: bool = False
    add: bool = False


@dataclass(frozen=True)
class Wait:
    """Blocks the queue until the core's semaphore token[index] is at least `count`; then takes."""

    token: str
    index: Expr = ZERO
    count: Expr = ONE


@dataclass(frozen=True)
class Signal:
    """Adds `count` to semaphore token[index] of core `core` (default: the own)."""

    token: str
    index: Expr = ZERO
    count: Expr = ONE
    core: Expr | None = None


@dataclass(frozen=True)
class Loop:
    """`body` for `variable` = 0 .. count-1. Without a variable it is a condition (count 0 or 1) or
    a plain repetition."""

    variable: str | None
    count: Expr
    body: tuple[Instruction, ...]


Instruction: TypeAlias = Load | Store | Ring | Compute | Wait | Signal | Loop


@dataclass(frozen=True)
class Card:
    """What the program needs of a card: it was laid out for `cores` cores of `lx_bytes` LX. A card
    with fewer cores than the grid, or less LX, refuses it."""

    name: str = "spyre"
    cores: int = 32
    lx_bytes: int = 2 << 20


@dataclass(frozen=True)
class Program:
    """One kernel of the card. `operands`: arguments in the order of the launch, SCRATCH and CONST
    anywhere among them; `lets` see those before them; `queues` are those of every core; `data`: the
    bytes of CONST operands, at their offsets. `verify` says whether it is valid."""

    name: str
    card: Card
    grid: tuple[Digit, ...]
    symbols: tuple[Symbol, ...] = ()
    operands: tuple[Operand, ...] = ()
    values: tuple[Value, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    tokens: tuple[Token, ...] = ()
    lets: tuple[Let, ...] = ()
    queues: dict[Unit, tuple[Instruction, ...]] = field(default_factory=dict)
    data: bytes = b""
    version: int = VERSION

    @property
    def cores(self) -> int:
        """Cores it runs on: the product of the grid's digits."""
        product = 1
        for digit in self.grid:
            product *= digit.size
        return product

    @property
    def arguments(self) -> tuple[Operand, ...]:
        """The operands a launch passes, in order."""
        return tuple(o for o in self.operands if o.role in (Role.IN, Role.OUT, Role.INOUT))
