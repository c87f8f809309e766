"""Writing Programs in Python: boxes of tensors instead of byte counts.

A `ProgramBuilder` holds the parts of one Program. Operands and values are `Tensor`s; `lx` gives a
tensor's tile a place in LX; `x["r", "c"]` names a box of a tensor or tile by the labels of the
instruction, and `boxes.py` derives address and strides from the operand's layout or the tile's
packing. `Stream` is a tile of one or more slots with the tokens that pass it from its producer's
queue to its consumers'. See docs/programs_by_hand.md.

The builder refuses what it can see at once (names, capacity, queues); the rules of the whole
Program are `verify.py`'s. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from openspyre.formats import STICK_BYTES, Format, Mode, format_for
from openspyre.program.body import BodyFunction, trace
from openspyre.program.boxes import (
    Boxes,
    ExprLike,
    Over,
    Ref,
    Refs,
    Span,
    SpanLike,
    Tensor,
    Tile,
    as_refs,
    operand_strides,
    span,
)
from openspyre.program.concrete import ProgramError
from openspyre.program.expr import Const, Expr, Var, ceil_div, expr, minimum
from openspyre.program.model import (
    ZERO,
    Body,
    Buffer,
    Card,
    Compute,
    Digit,
    Gather,
    Instruction,
    Label,
    Let,
    Load,
    Loop,
    Operand,
    Program,
    Ring,
    Role,
    Scatter,
    Signal,
    Store,
    Symbol,
    SymbolKind,
    Token,
    Unit,
    Value,
    Wait,
)
from openspyre.program.ops import LANE_ACCUMULATORS, Combine, Kind


@dataclass(frozen=True)
class Stream:
    """A tile that one queue fills and others use, slot by slot, with the tokens between them.

    `with stream.fill(i) as tile:` waits until every user has left the slot of the i-th filling,
    and afterwards tells them; `with stream.use(i) as tile:` is the other side. The queues must
    count i alike: 0, 1, 2, ...
    """

    builder: ProgramBuilder
    name: str
    tile: Tile
    users: tuple[Unit, ...]

    def _token(self, kind: str, unit: Unit) -> str:
        return f"{self.name}_{kind}" + (f"_{unit.value}" if len(self.users) > 1 else "")

    @contextmanager
    def fill(self, number: ExprLike = 0) -> Iterator[Tile]:
        """The producer's turn with the slot of filling `number`."""
        tile = self.tile.at(number)
        for unit in self.users:
            self.builder.wait(self._token("free", unit), tile.slot)
        yield tile
        for unit in self.users:
            self.builder.signal(self._token("full", unit), tile.slot)

    @contextmanager
    def use(self, number: ExprLike = 0) -> Iterator[Tile]:
        """A consumer's turn with the slot of filling `number`."""
        unit = self.builder.unit
        if unit not in self.users:
            raise ProgramError(
                f"stream {self.name}: queue {unit.value} is not among its users; name it in users="
            )
        tile = self.tile.at(number)
        self.builder.wait(self._token("full", unit), tile.slot)
        yield tile
        self.builder.signal(self._token("free", unit), tile.slot)


class ProgramBuilder:
    """Collects the parts of one Program. `grid`: size of each digit of the core id, most
    significant first (default: one digit `c`); `mode` decides the formats of operands."""

    def __init__(
        self,
        name: str,
        grid: Mapping[str, int] | None = None,
        *,
        cores: int | None = None,
        mode: Mode = Mode.DL16,
        card: Card | None = None,
    ) -> None:
        digits = dict(grid) if grid is not None else {"c": 32 if cores is None else cores}
        product = math.prod(digits.values())
        self.card = card or Card()
        if cores is not None and cores != product:
            raise ProgramError(f"{name}: the grid {digits} has {product} cores, not {cores}")
        if product > self.card.cores:
            raise ProgramError(f"{name}: {product} cores do not fit a card of {self.card.cores}")
        self.name, self.mode = name, mode
        self.grid = tuple(Digit(digit, size) for digit, size in digits.items())
        self._symbols: list[Symbol] = []
        self._operands: list[Operand] = []
        self._values: list[Value] = []
        self._buffers: list[Buffer] = []
        self._tokens: list[Token] = []
        self._lets: list[Let] = []
        self._queues: dict[Unit, list[Instruction]] = {}
        self._data = bytearray()
        self._dynamic = 0
        self._lx_end = 0
        self._unit: Unit | None = None
        self._open: list[list[Instruction]] = []
        self._loop_names: list[str] = []
        self._names: set[str] = {"core"}  # variables
        for digit in digits:
            self._take(self._names, digit, "grid digit")
        self._places: set[str] = set()  # operands, values and buffers
        self._token_names: set[str] = set()

    # --- names

    def _take(self, names: set[str], name: str, what: str) -> str:
        if not name.isidentifier():
            raise ProgramError(f"{self.name}: the {what} name {name!r} is no identifier")
        if name in names:
            raise ProgramError(f"{self.name}: the name {name!r} is taken; give the {what} another")
        names.add(name)
        return name

    def digit(self, name: str) -> Expr:
        """A digit of the core id as an expression."""
        if name not in {digit.name for digit in self.grid}:
            raise ProgramError(f"{self.name}: the grid has no digit {name!r}")
        return Var(name)

    def let(self, name: str, value: ExprLike) -> Expr:
        """A number of each core, under a name."""
        self._lets.append(Let(self._take(self._names, name, "let"), expr(value)))
        return Var(name)

    def dimension(
        self, name: str, argument: int, dim: int, *, maximum: int, granularity: int = 1
    ) -> Expr:
        """A size known at launch: that of host dim `dim` of launch argument `argument`."""
        self._take(self._names, name, "symbol")
        kind = SymbolKind.DIMENSION
        self._symbols.append(Symbol(name, kind, argument, dim, granularity, granularity, maximum))
        return Var(name)

    def int_symbol(self, name: str, minimum: int = 0, maximum: int = 2**63 - 1) -> Expr:
        """An int64 given at launch; bodies read it by `scalar(name, "l")`."""
        self._take(self._names, name, "symbol")
        self._symbols.append(Symbol(name, SymbolKind.INT, minimum=minimum, maximum=maximum))
        return Var(name)

    def float_symbol(self, name: str) -> str:
        """A float32 given at launch, for bodies only: they read it by `scalar(name)`."""
        self._symbols.append(Symbol(self._take(self._names, name, "symbol"), SymbolKind.FLOAT))
        return name

    # --- tensors and their places

    def operand(
        self,
        role: Role,
        name: str,
        shape: Sequence[ExprLike],
        dtype: str,
        *,
        format: Format | None = None,
        within: Sequence[ExprLike] | None = None,
        order: Sequence[int] | None = None,
        offset: int = 0,
        strides: Sequence[ExprLike] | None = None,
        stick: int = -1,
    ) -> Tensor:
        """A tensor in LPDDR5; see `model.Operand`. `strides`: bytes a step of each dim (of dim
        `stick`: a stick), which may be expressions over symbols."""
        self._take(self._places, name, "operand")
        sizes = tuple(expr(size) for size in shape)
        outer = None if within is None else tuple(expr(size) for size in within)
        found = format or format_for(dtype, self.mode)
        axes = None if order is None else tuple(order)
        if strides is not None:
            steps = tuple(expr(stride) for stride in strides)
            if outer is not None or axes is not None:
                raise ProgramError(f"operand {name}: strides go with neither within nor order")
            if len(steps) != len(sizes) or not -1 <= stick < len(sizes):
                raise ProgramError(
                    f"operand {name}: {len(steps)} strides, stick {stick}, rank {len(sizes)}"
                )
            self._operands.append(
                Operand(name, role, dtype, found, sizes, outer, axes, offset, steps, stick)
            )
            return Tensor(name, sizes, found, role, steps, stick)
        self._operands.append(Operand(name, role, dtype, found, sizes, outer, axes, offset))
        natural, on_stick, _ = operand_strides(outer or sizes, axes, found)
        return Tensor(name, sizes, found, role, natural, on_stick)

    def input(
        self,
        name: str,
        shape: Sequence[ExprLike],
        dtype: str,
        *,
        within: Sequence[ExprLike] | None = None,
        order: Sequence[int] | None = None,
        strides: Sequence[ExprLike] | None = None,
        stick: int = -1,
    ) -> Tensor:
        """A launch argument that is only read."""
        return self.operand(
            Role.IN, name, shape, dtype,
            within=within, order=order, strides=strides, stick=stick,
        )  # fmt: skip

    def output(
        self,
        name: str,
        shape: Sequence[ExprLike],
        dtype: str,
        *,
        within: Sequence[ExprLike] | None = None,
        order: Sequence[int] | None = None,
        strides: Sequence[ExprLike] | None = None,
        stick: int = -1,
    ) -> Tensor:
        """A launch argument of which every element is stored once."""
        return self.operand(
            Role.OUT, name, shape, dtype,
            within=within, order=order, strides=strides, stick=stick,
        )  # fmt: skip

    def inout(
        self,
        name: str,
        shape: Sequence[ExprLike],
        dtype: str,
        *,
        within: Sequence[ExprLike] | None = None,
        order: Sequence[int] | None = None,
        strides: Sequence[ExprLike] | None = None,
        stick: int = -1,
    ) -> Tensor:
        """A launch argument that is read and written."""
        return self.operand(
            Role.INOUT, name, shape, dtype,
            within=within, order=order, strides=strides, stick=stick,
        )  # fmt: skip

    def scratch(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str,
        *,
        format: Format | None = None,
        order: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        stick: int = -1,
    ) -> Tensor:
        """LPDDR5 of one launch, placed after the scratch tensors before it."""
        found = format or format_for(dtype, self.mode)
        offset = self._dynamic
        self._dynamic += _operand_bytes(shape, found, order, strides, stick)
        return self.operand(
            Role.SCRATCH, name, shape, dtype,
            format=found, order=order, offset=offset, strides=strides, stick=stick,
        )  # fmt: skip

    def const(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str,
        device_bytes: bytes,
        *,
        order: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        stick: int = -1,
    ) -> Tensor:
        """A tensor that the image carries: `device_bytes` are its sticks in its layout."""
        found = format_for(dtype, self.mode)
        nbytes = _operand_bytes(shape, found, order, strides, stick)
        if len(device_bytes) != nbytes:
            raise ProgramError(
                f"const {name}: its layout has {nbytes} bytes, {len(device_bytes)} were given"
            )
        offset = len(self._data)
        self._data += device_bytes
        return self.operand(
            Role.CONST, name, shape, dtype,
            order=order, offset=offset, strides=strides, stick=stick,
        )  # fmt: skip

    def value(
        self,
        name: str,
        shape: Sequence[ExprLike],
        *,
        reduced: Sequence[ExprLike] = (),
        format: Format = Format.IEEE_FP32,
    ) -> Tensor:
        """A tensor that lives in LX tiles only. `reduced`: sizes of the reduction indices that
        its elements run over; `format`: that of its tiles unless they say otherwise."""
        self._take(self._places, name, "value")
        sizes = tuple(expr(size) for size in shape)
        self._values.append(Value(name, sizes, tuple(expr(size) for size in reduced)))
        return Tensor(name, sizes, format)

    def lx(
        self,
        name: str,
        tensor: Tensor,
        sizes: Sequence[int],
        *,
        slots: int = 1,
        format: Format | None = None,
        stick: int | None = -1,
        lanes: bool = False,
    ) -> Tile:
        """A place in LX for tiles of `tensor` of at most `sizes`.

        Packing: the sticks of dim `stick` (-1: the operand's own; of a value the last dim)
        outermost, then the other dims in order, 128 bytes a point; [sticks][rows][128] for a
        matrix. `stick=None` is sparse, one element a stick; `lanes` holds 64 accumulators a
        point. Raises ProgramError beyond LX.
        """
        self._take(self._places, name, "buffer")
        found = format or tensor.format
        rank = len(tensor.shape)
        if len(sizes) != rank or any(size < 1 for size in sizes):
            raise ProgramError(
                f"buffer {name}: sizes {tuple(sizes)} for {tensor.name}, rank {rank}"
            )
        if stick is None or lanes or rank == 0:
            on_stick = -1
        elif stick == -1 and tensor.role is not None:
            on_stick = tensor.stick
        else:
            on_stick = stick % rank
        pitch = LANE_ACCUMULATORS * found.bytes if lanes else STICK_BYTES
        strides = [0] * rank
        for dim in reversed(range(rank)):
            if dim != on_stick:
                strides[dim] = pitch
                pitch *= sizes[dim]
        if on_stick >= 0:
            strides[on_stick] = pitch
            pitch *= -(-sizes[on_stick] // found.elements_per_stick)
        buffer = Buffer(name, self._lx_end, pitch, slots)
        if self._lx_end + pitch * slots > self.card.lx_bytes:
            held = ", ".join(f"{b.name} {b.slot_bytes}x{b.slots}" for b in (*self._buffers, buffer))
            raise ProgramError(
                f"{self.name}: LX has {self.card.lx_bytes} bytes, the buffers need "
                f"{self._lx_end + pitch * slots} ({held}); make tiles smaller or slots fewer"
            )
        self._lx_end += pitch * slots
        self._buffers.append(buffer)
        return Tile(tensor, name, tuple(sizes), found, tuple(strides), on_stick, lanes, slots)

    def stream(
        self,
        name: str,
        tensor: Tensor,
        sizes: Sequence[int],
        *,
        users: Sequence[str | Unit] = ("sfu",),
        slots: int = 2,
        format: Format | None = None,
        stick: int | None = -1,
        lanes: bool = False,
    ) -> Stream:
        """A tile place with `slots` slots and the tokens between its filler and its users."""
        tile = self.lx(name, tensor, sizes, slots=slots, format=format, stick=stick, lanes=lanes)
        stream = Stream(self, name, tile, tuple(Unit(user) for user in users))
        for unit in stream.users:
            self.token(stream._token("free", unit), slots, 1)
            self.token(stream._token("full", unit), slots)
        return stream

    def token(self, name: str, count: int = 1, initial: int = 0) -> str:
        """`count` counting semaphores a core."""
        self._tokens.append(Token(self._take(self._token_names, name, "token"), count, initial))
        return name

    # --- splitting and looping

    def split(self, name: str, total: ExprLike, over: str, unit: int = 1) -> Span:
        """The share of this core in 0..total-1, split over grid digit `over` in steps of `unit`.

        Shares differ by at most one unit, the first ones being larger, and only the last one may
        end inside a unit. Makes the lets `name_start` and `name_size`; a share may be empty.
        """
        parts = next((digit.size for digit in self.grid if digit.name == over), None)
        if parts is None:
            raise ProgramError(f"split {name}: the grid has no digit {over!r}")
        whole, digit = expr(total), Var(over)
        units = ceil_div(whole, unit)
        each, more = units // parts, units % parts
        begin = minimum((digit * each + minimum(digit, more)) * unit, whole)
        start = self.let(f"{name}_start", begin)
        after = digit + 1
        stop = minimum((after * each + minimum(after, more)) * unit, whole)
        return Span(start, self.let(f"{name}_size", stop - start))

    @contextmanager
    def queue(self, unit: str | Unit) -> Iterator[None]:
        """What follows goes to the end of this queue of every core."""
        if self._unit is not None:
            raise ProgramError(f"{self.name}: queue {self._unit.value} is still open")
        self._unit = Unit(unit)
        self._open.append(self._queues.setdefault(self._unit, []))
        yield
        self._open.pop()
        self._unit = None

    @property
    def unit(self) -> Unit:
        """The open queue."""
        if self._unit is None:
            raise ProgramError(f"{self.name}: no queue is open; write `with b.queue(...)`")
        return self._unit

    def emit(self, instruction: Instruction) -> None:
        """Appends any instruction to the open queue or loop."""
        _ = self.unit
        self._open[-1].append(instruction)

    @contextmanager
    def loop(self, name: str | None, count: ExprLike) -> Iterator[Expr]:
        """What is inside, for name = 0 .. count-1; yields the variable."""
        _ = self.unit
        if name is not None and (name in self._names or name in self._loop_names):
            raise ProgramError(f"{self.name}: the name {name!r} is taken; give the loop another")
        body: list[Instruction] = []
        self._open.append(body)
        if name is not None:
            self._loop_names.append(name)
        yield ZERO if name is None else Var(name)
        if name is not None:
            self._loop_names.pop()
        self._open.pop()
        self._open[-1].append(Loop(name, expr(count), tuple(body)))

    def when(self, condition: ExprLike) -> AbstractContextManager[Expr]:
        """What is inside only where the 0-or-1 expression is 1."""
        return self.loop(None, condition)

    @contextmanager
    def tiles(self, name: str, whole: SpanLike, size: int) -> Iterator[Span]:
        """A loop over `whole` in spans of `size`, the last one shorter."""
        total = span(whole)
        with self.loop(name, ceil_div(total.size, size)) as step:
            begin = step * size
            fixed = total.size.constant
            left: Expr = minimum(size, total.size - begin)
            if fixed is not None and fixed % size == 0:
                left = Const(size)  # every span is whole
            yield Span(total.start + begin, left, step)

    def boxes(self, **labels: tuple[SpanLike, int] | ExprLike) -> Boxes:
        """Loops over the tiles of a box, for every queue that walks it: after `boxes =
        b.boxes(r=(mine, 128), c=(2048, 256), d=64)`, `with boxes() as (over, turn):` takes `r` in
        spans of 128 and, inside, `c` in spans of 256; `d` is whole. `over`: the spans by label;
        `turn`: the running number of the tile, 0, 1, 2, .."""

        @contextmanager
        def walk() -> Iterator[tuple[dict[str, Span], Expr]]:
            spans: dict[str, Span] = {}
            turn: Expr = ZERO
            with ExitStack() as loops:
                for label, given in labels.items():
                    if isinstance(given, tuple):
                        whole, size = span(given[0]), given[1]
                        tile = loops.enter_context(self.tiles(f"{label}_step", whole, size))
                        turn = turn * ceil_div(whole.size, size) + tile.step
                        spans[label] = tile
                    else:
                        spans[label] = span(given)
                yield spans, turn

        return walk

    def wait(self, token: str, index: ExprLike = 0, count: ExprLike = 1) -> None:
        self.emit(Wait(token, expr(index), expr(count)))

    def signal(
        self,
        token: str,
        index: ExprLike = 0,
        count: ExprLike = 1,
        core: ExprLike | None = None,
    ) -> None:
        self.emit(Signal(token, expr(index), expr(count), None if core is None else expr(core)))

    # --- moves

    def _labels(self, over: Over) -> tuple[dict[str, Span], tuple[Label, ...]]:
        spans = {name: span(value) for name, value in over.items()}
        return spans, tuple(Label(name, s.start, s.size) for name, s in spans.items())

    def _expect(self, *units: Unit) -> None:
        if self.unit not in units:
            names = " or ".join(unit.value for unit in units)
            raise ProgramError(f"{self.name}: this belongs to queue {names}, not {self.unit.value}")

    def load(
        self,
        over: Over,
        source: Ref,
        target: Ref,
        *,
        multicast: Sequence[str] = (),
        gather: tuple[str, Ref, ExprLike] | None = None,
    ) -> None:
        """LPDDR5 to LX. `multicast`: digits over which the LOAD is shared; `gather`: (label,
        index tile, limit), the positions along `label` being the integers of the index tile."""
        self._expect(Unit.LOAD)
        spans, labels = self._labels(over)
        by = None if gather is None else gather[0]
        made = None
        if gather is not None:
            made = Gather(gather[0], gather[1].access(spans), expr(gather[2]))
        self.emit(
            Load(labels, source.access(spans, by), target.access(spans), tuple(multicast), made)
        )

    def store(
        self,
        over: Over,
        source: Ref,
        target: Ref,
        *,
        scatter: tuple[str, Ref, ExprLike] | None = None,
        window: SpanLike | None = None,
        add: bool = False,
    ) -> None:
        """LX to LPDDR5. `scatter`: (label, index tile, limit) as in `load`; `window`: the
        positions that this core may store (default: all below the limit)."""
        self._expect(Unit.STORE)
        spans, labels = self._labels(over)
        by = None if scatter is None else scatter[0]
        made = None
        if scatter is not None:
            label, index, limit = scatter
            mine = span(limit if window is None else window)
            made = Scatter(label, index.access(spans), expr(limit), mine.start, mine.size, add)
        self.emit(Store(labels, source.access(spans), target.access(spans, by), made))

    def ring(
        self,
        over: Over,
        source: Ref,
        target: Ref,
        *,
        core: ExprLike,
        count: ExprLike = 1,
        variable: str = "from_",
        combine: Combine | None = None,
    ) -> None:
        """From the LX of core `core` (which may use `variable` = 0 .. count-1) to the own."""
        self._expect(Unit.RING)
        spans, labels = self._labels(over)
        self.emit(
            Ring(
                labels,
                variable,
                expr(count),
                expr(core),
                source.access(spans),
                target.access(spans),
                combine,
            )
        )

    # --- work

    def compute(
        self,
        kind: Kind,
        over: Over,
        inputs: Refs,
        outputs: Refs,
        *,
        body: Body | None = None,
        combine: Combine | None = None,
        accumulate: ExprLike = 0,
        label: str | None = None,
        limit: ExprLike = 0,
        descending: bool = False,
        add: bool = False,
    ) -> None:
        """Any COMPUTE; see `model.Compute`."""
        unit = Unit.PT if kind is Kind.MATMUL else Unit.SFU
        self._expect(unit)
        spans, labels = self._labels(over)
        self.emit(
            Compute(
                unit,
                kind,
                labels,
                tuple(ref.access(spans) for ref in as_refs(inputs)),
                tuple(ref.access(spans) for ref in as_refs(outputs)),
                body,
                combine,
                expr(accumulate),
                label,
                expr(limit),
                descending,
                add,
            )
        )

    def matmul(self, over: Over, a: Ref, b: Ref, out: Ref, *, accumulate: ExprLike = 0) -> None:
        """out (+)= a * b over the label that a and b have and out lacks."""
        self.compute(Kind.MATMUL, over, (a, b), out, accumulate=accumulate)

    def map(
        self,
        over: Over,
        outputs: Refs,
        function: BodyFunction,
        *inputs: Ref,
    ) -> None:
        """outputs = function(inputs) at every point."""
        body = trace(function, [ref.format for ref in inputs])
        self.compute(Kind.MAP, over, inputs, outputs, body=body)

    def reduce(
        self,
        over: Over,
        combine: Combine,
        outputs: Refs,
        function: BodyFunction,
        *inputs: Ref,
        accumulate: ExprLike = 0,
    ) -> None:
        """function(inputs), combined over the labels that the outputs lack."""
        body = trace(function, [ref.format for ref in inputs])
        self.compute(
            Kind.REDUCE, over, inputs, outputs, body=body, combine=combine, accumulate=accumulate
        )

    def fold(self, over: Over, combine: Combine, outputs: Refs, inputs: Refs) -> None:
        """64 lane accumulators to one value each."""
        self.compute(Kind.FOLD, over, inputs, outputs, combine=combine)

    # --- the end

    def build(self) -> Program:
        """The Program. Raises ProgramError while a queue is open."""
        if self._unit is not None:
            raise ProgramError(f"{self.name}: queue {self._unit.value} is still open")
        return Program(
            name=self.name,
            card=self.card,
            grid=self.grid,
            symbols=tuple(self._symbols),
            operands=tuple(self._operands),
            values=tuple(self._values),
            buffers=tuple(self._buffers),
            tokens=tuple(self._tokens),
            lets=tuple(self._lets),
            queues={unit: tuple(self._queues[unit]) for unit in Unit if self._queues.get(unit)},
            data=bytes(self._data),
        )


def _operand_bytes(
    shape: Sequence[int],
    format: Format,
    order: Sequence[int] | None,
    strides: Sequence[int] | None,
    stick: int,
) -> int:
    """Bytes of an operand of constant sizes, whole sticks."""
    if strides is None:
        sizes = tuple(expr(size) for size in shape)
        return operand_strides(sizes, None if order is None else tuple(order), format)[2]
    eps = format.elements_per_stick
    return STICK_BYTES + sum(
        ((size - 1) // eps if dim == stick else size - 1) * stride
        for dim, (size, stride) in enumerate(zip(shape, strides, strict=True))
    )
