"""Rule 1, the part that needs no numbers: names, scopes, references, limits and the shape of every
instruction. What COMPUTE's kinds demand is in `verify_kinds.py`.

Part of the verifier; imports no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from openspyre.formats import STICK_BYTES, Format, Mode, format_for
from openspyre.program.binary_rules import (
    MAX_CORES,
    MAX_DEPTH,
    MAX_LABELS,
    MAX_LX_BYTES,
    MAX_RANK,
    MAX_SEMAPHORES,
    MAX_TILES,
    is_name,
)
from openspyre.program.concrete import accesses
from openspyre.program.expr import HIGH, LOW, OPERATORS, Binary, Const, Expr, Var
from openspyre.program.model import (
    VERSION,
    Access,
    Compute,
    Gather,
    Instruction,
    Load,
    Loop,
    Operand,
    Program,
    Ring,
    Role,
    Scatter,
    Signal,
    Store,
    SymbolKind,
    Unit,
    Wait,
)
from openspyre.program.ops import Combine, register_of
from openspyre.program.verify_error import VerifyError
from openspyre.program.verify_kinds import check_compute, check_index_format

MAX_LOOPS = 32  # of a nest; an image may hold twice as many
MAX_INSTRUCTIONS = 1 << 20  # as written; loops count once


class Names:
    """What the names of a program stand for; filled while its declarations are checked."""

    def __init__(self, program: Program) -> None:
        self.operands = {operand.name: operand for operand in program.operands}
        self.buffers = {buffer.name: buffer for buffer in program.buffers}
        self.tokens = {token.name for token in program.tokens}
        self.digits = {digit.name for digit in program.grid}
        self.floats = {s.name for s in program.symbols if s.kind is SymbolKind.FLOAT}
        self.integers = {s.name for s in program.symbols if s.kind is not SymbolKind.FLOAT}
        self.ranks = {operand.name: len(operand.shape) for operand in program.operands}
        self.ranks.update({value.name: len(value.shape) for value in program.values})


def check_structure(program: Program) -> None:
    """Raises VerifyError (rules 1 and 2)."""
    if program.version != VERSION:
        raise VerifyError(1, "program", f"version {program.version}; this is version {VERSION}")
    names = Names(program)
    _check_names(program)
    _check_grid(program)
    symbols = names.integers
    for operand in program.operands:
        _check_operand(operand, symbols)
    for value in program.values:
        place = f"value {value.name}"
        if len(value.shape) > MAX_RANK or len(value.reduced) > MAX_RANK:
            raise VerifyError(1, place, f"more than {MAX_RANK} dims; collapse dims")
        for size in (*value.shape, *value.reduced):
            check_expr(size, symbols, place)
    _check_memory(program)
    known = {*symbols, *names.digits, "core"}
    for let in program.lets:
        check_expr(let.value, known, f"let {let.name}")
        known.add(let.name)
    total = 0
    for unit, queue in program.queues.items():
        total += _check_queue(queue, unit, (), known, frozenset(), names)
    if total > MAX_INSTRUCTIONS:
        raise VerifyError(1, "program", f"{total} instructions, above {MAX_INSTRUCTIONS}; use LOOP")


# --- declarations


def _unique(what: str, names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if not is_name(name):
            raise VerifyError(1, f"{what} {name!r}", "a name is an identifier of at most 255 bytes")
        if count > 1:
            raise VerifyError(1, f"{what} {name}", f"the name is declared {count} times")


def _check_names(program: Program) -> None:
    variables = [
        *(symbol.name for symbol in program.symbols),
        *(digit.name for digit in program.grid),
        "core",
        *(let.name for let in program.lets),
    ]
    _unique("variable", variables)
    _unique("value", [*(o.name for o in program.operands), *(v.name for v in program.values)])
    _unique("place", [*(o.name for o in program.operands), *(b.name for b in program.buffers)])
    _unique("token", (token.name for token in program.tokens))


def _check_grid(program: Program) -> None:
    card = program.card
    if not 1 <= card.cores <= MAX_CORES:
        raise VerifyError(1, "card", f"cores = {card.cores}; a card has 1..{MAX_CORES}")
    if not STICK_BYTES <= card.lx_bytes <= MAX_LX_BYTES or card.lx_bytes % STICK_BYTES:
        raise VerifyError(2, "card", f"lx_bytes = {card.lx_bytes}; a multiple of 128 up to 64 MiB")
    for digit in program.grid:
        if not 1 <= digit.size <= MAX_CORES:
            raise VerifyError(1, f"digit {digit.name}", f"size {digit.size} is not 1..{MAX_CORES}")
    if program.cores > card.cores:
        raise VerifyError(
            1,
            "grid",
            f"{program.cores} cores on a card of {card.cores}; shrink a digit",
        )
    for symbol in program.symbols:
        place = f"symbol {symbol.name}"
        if symbol.granularity < 1 or symbol.minimum > symbol.maximum:
            raise VerifyError(
                1, place, "granularity must be at least 1 and minimum at most maximum"
            )
        if symbol.kind is SymbolKind.DIMENSION:
            arguments = program.arguments
            if not 0 <= symbol.argument < len(arguments):
                raise VerifyError(1, place, f"there is no launch argument {symbol.argument}")
            if not 0 <= symbol.dim < len(arguments[symbol.argument].shape):
                raise VerifyError(
                    1, place, f"{arguments[symbol.argument].name} has no dim {symbol.dim}"
                )


def _check_dtype(operand: Operand, place: str) -> None:
    try:
        formats = {format_for(operand.dtype, mode) for mode in Mode}
    except ValueError as error:
        raise VerifyError(1, place, str(error)) from None
    # What a launch passes lies as its dtype says; scratch and constants are the program's own.
    if operand.role in (Role.IN, Role.OUT, Role.INOUT) and operand.format not in formats:
        names = " or ".join(sorted(format.name for format in formats))
        raise VerifyError(
            1,
            place,
            f"tensors of {operand.dtype} lie on the card as {names}, not {operand.format.name}",
        )


def _check_operand(operand: Operand, symbols: set[str]) -> None:
    place = f"operand {operand.name}"
    _check_dtype(operand, place)
    if len(operand.shape) > MAX_RANK:
        raise VerifyError(1, place, f"rank {len(operand.shape)} is above {MAX_RANK}; collapse dims")
    for size in (*operand.shape, *(operand.within or ()), *(operand.strides or ())):
        check_expr(size, symbols, place)
    if operand.within is not None and len(operand.within) != len(operand.shape):
        raise VerifyError(1, place, "`within` must have the rank of `shape`")
    if operand.strides is not None:
        if operand.within is not None or operand.order is not None:
            raise VerifyError(1, place, "it has strides, and so neither `within` nor `order`")
        if len(operand.strides) != len(operand.shape):
            raise VerifyError(1, place, "`strides` must have the rank of `shape`")
        if not -1 <= operand.stick < len(operand.shape):
            raise VerifyError(1, place, f"no dim {operand.stick} can lie on the stick")
    elif operand.stick != -1:
        raise VerifyError(1, place, "`stick` is for operands with strides")
    if operand.role in (Role.SCRATCH, Role.CONST):
        if operand.offset < 0 or operand.offset % STICK_BYTES:
            raise VerifyError(2, place, f"offset {operand.offset} is no multiple of 128")
    elif operand.offset != 0:
        raise VerifyError(1, place, "only SCRATCH and CONST operands have an offset")


def _check_memory(program: Program) -> None:
    for buffer in program.buffers:
        place = f"buffer {buffer.name}"
        if buffer.slots < 1 or buffer.slot_bytes < STICK_BYTES or buffer.base < 0:
            raise VerifyError(2, place, "needs a slot of at least 128 bytes, from byte 0 on")
        if buffer.base % STICK_BYTES or buffer.slot_bytes % STICK_BYTES:
            raise VerifyError(2, place, "base and slot_bytes must be multiples of 128")
        end = buffer.base + buffer.slots * buffer.slot_bytes
        if end > program.card.lx_bytes:
            raise VerifyError(
                2,
                place,
                f"bytes {buffer.base}..{end - 1} leave LX, which has {program.card.lx_bytes};"
                " use smaller tiles or fewer slots",
            )
    for token in program.tokens:
        if token.count < 1 or not 0 <= token.initial <= HIGH:
            raise VerifyError(
                1, f"token {token.name}", f"count {token.count}, initial {token.initial}"
            )
    if sum(token.count for token in program.tokens) > MAX_SEMAPHORES:
        raise VerifyError(1, "tokens", f"more than {MAX_SEMAPHORES} semaphores a core")


# --- expressions


def check_expr(
    node: Expr, known: set[str], place: str, loops: frozenset[str] = frozenset()
) -> None:
    """Names in scope, depth, known operators, products with at most one factor that has loop
    variables."""
    _expr_loops(node, known, place, loops, 0)


def _expr_loops(node: Expr, known: set[str], place: str, loops: frozenset[str], depth: int) -> bool:
    """Whether it mentions a loop variable."""
    if depth > MAX_DEPTH:
        raise VerifyError(1, place, f"an expression is deeper than {MAX_DEPTH}")
    if isinstance(node, Const):
        if not isinstance(node.value, int) or not LOW <= node.value <= HIGH:
            raise VerifyError(1, place, f"the number {node.value} does not fit in 64 bits")
        return False
    if isinstance(node, Var):
        if node.name not in known and node.name not in loops:
            raise VerifyError(1, place, f"no variable {node.name!r} is in scope here")
        return node.name in loops
    if not isinstance(node, Binary) or node.op not in OPERATORS:
        raise VerifyError(1, place, f"{node!r} is no expression")
    left = _expr_loops(node.left, known, place, loops, depth + 1)
    right = _expr_loops(node.right, known, place, loops, depth + 1)
    if node.op == "*" and left and right:
        raise VerifyError(1, place, f"{node} multiplies two loop variables: not affine")
    return left or right


# --- instructions


def _check_queue(
    body: tuple[Instruction, ...],
    unit: Unit,
    path: tuple[int, ...],
    known: set[str],
    loops: frozenset[str],
    names: Names,
) -> int:
    """Checks a list of instructions; gives their number."""
    total = 0
    for position, instruction in enumerate(body):
        here = (*path, position)
        kind = type(instruction).__name__.lower()
        place = f"{unit.value}[{'.'.join(map(str, here))}] {kind}"
        total += 1
        if isinstance(instruction, Loop):
            if len(here) > MAX_LOOPS:
                raise VerifyError(1, place, f"loops are nested deeper than {MAX_LOOPS}")
            check_expr(instruction.count, known, place, loops)
            inner = loops
            if instruction.variable is not None:
                _check_loop_name(instruction.variable, known | loops | names.floats, place)
                inner = loops | {instruction.variable}
            total += _check_queue(instruction.body, unit, here, known, inner, names)
        elif isinstance(instruction, Wait | Signal):
            if instruction.token not in names.tokens:
                raise VerifyError(1, place, f"no token {instruction.token!r}")
            check_expr(instruction.index, known, place, loops)
            check_expr(instruction.count, known, place, loops)
            if isinstance(instruction, Signal) and instruction.core is not None:
                check_expr(instruction.core, known, place, loops)
        else:
            _check_work(instruction, unit, place, known, loops, names)
    return total


def _check_loop_name(name: str, taken: set[str], place: str) -> None:
    if not is_name(name):
        raise VerifyError(1, place, f"the loop variable {name!r} is no identifier")
    if name in taken:
        raise VerifyError(1, place, f"the loop variable {name} hides another name")


def _check_work(
    instruction: Load | Store | Ring | Compute,
    unit: Unit,
    place: str,
    known: set[str],
    loops: frozenset[str],
    names: Names,
) -> None:
    if isinstance(instruction, Compute):
        right = unit in (Unit.PT, Unit.SFU) and instruction.unit is unit
    else:
        right = unit is {Load: Unit.LOAD, Store: Unit.STORE, Ring: Unit.RING}[type(instruction)]
    if not right:
        raise VerifyError(1, place, f"does not belong into queue {unit.value}")
    if len(instruction.over) > MAX_LABELS:
        raise VerifyError(1, place, f"{len(instruction.over)} labels, above {MAX_LABELS}")
    labels = [label.name for label in instruction.over]
    _unique("label", labels)
    for label in instruction.over:
        check_expr(label.start, known, place, loops)
        check_expr(label.size, known, place, loops)
    inner = loops
    if isinstance(instruction, Ring):
        check_expr(instruction.count, known, place, loops)
        _check_loop_name(instruction.variable, known | loops | names.floats, place)
        inner = loops | {instruction.variable}
        check_expr(instruction.core, known, place, inner)
    read, written = accesses(instruction)
    if len(read) > MAX_TILES or len(written) > MAX_TILES:
        raise VerifyError(1, place, f"more than {MAX_TILES} inputs or outputs")
    for access in (*read, *written):
        _check_access(access, place, set(labels), known, inner, names)
    if isinstance(instruction, Load):
        _check_transfer(
            place, instruction.source, instruction.target, instruction.gather, labels, names
        )
        for digit in instruction.multicast:
            if digit not in names.digits:
                raise VerifyError(1, place, f"multicast names no digit: {digit!r}")
        if instruction.gather is not None:
            check_expr(instruction.gather.limit, known, place, loops)
    elif isinstance(instruction, Store):
        scatter = instruction.scatter
        _check_transfer(place, instruction.target, instruction.source, scatter, labels, names)
        if scatter is not None:
            if scatter.add and register_of(instruction.target.format) is None:
                name = instruction.target.format.name
                raise VerifyError(1, place, f"elements of {name} cannot be added")
            for number in (scatter.limit, scatter.first, scatter.count):
                check_expr(number, known, place, loops)
    elif isinstance(instruction, Ring):
        _check_ring(place, instruction, names)
    else:
        for number in (instruction.accumulate, instruction.limit):
            check_expr(number, known, place, loops)
        for access in (*read, *written):
            if access.place not in names.buffers:
                raise VerifyError(1, place, f"{access.place} is not in LX; LOAD it first")
        check_compute(instruction, place, names.floats, names.integers)


def _check_access(
    access: Access,
    place: str,
    labels: set[str],
    known: set[str],
    loops: frozenset[str],
    names: Names,
) -> None:
    if access.value not in names.ranks:
        raise VerifyError(1, place, f"no value or operand {access.value!r}")
    if access.place not in names.buffers and access.place not in names.operands:
        raise VerifyError(1, place, f"no buffer or operand {access.place!r}")
    tile = f"tile {access.value} in {access.place}"
    if len(access.index) != names.ranks[access.value]:
        raise VerifyError(
            1,
            place,
            f"{tile}: {len(access.index)} indices for {names.ranks[access.value]} dims",
        )
    indexed = {index.label for index in access.index if index.label is not None}
    if access.stick is not None and access.lanes:
        raise VerifyError(1, place, f"{tile}: lane accumulators have no stick label")
    if access.lanes and access.format.bytes not in (4, 8):
        raise VerifyError(1, place, f"{tile}: lane accumulators take 4 or 8 bytes")
    moving = [name for name, _ in access.strides]
    if len(set(moving)) != len(moving):
        raise VerifyError(1, place, f"{tile}: a label has two strides")
    for label in {*indexed, *moving, *([access.stick] if access.stick is not None else [])}:
        if label not in labels:
            raise VerifyError(1, place, f"{tile}: the instruction has no label {label!r}")
        if label not in indexed:
            raise VerifyError(
                1, place, f"{tile}: label {label} moves the address and no index of {access.value}"
            )
    for label in sorted(indexed - {*moving, access.stick}):
        raise VerifyError(
            1,
            place,
            f"{tile}: label {label} is an index of {access.value} and does not move the address;"
            " give it a stride",
        )
    if access.stick is not None and [i.label for i in access.index].count(access.stick) > 1:
        raise VerifyError(1, place, f"{tile}: the stick label {access.stick} stands for two dims")
    for index in access.index:
        check_expr(index.offset, known, place, loops)
    for number in (access.offset, access.slot, *(stride for _, stride in access.strides)):
        check_expr(number, known, place, loops)
    operand = names.operands.get(access.place)
    if operand is not None:
        if access.value != operand.name:
            raise VerifyError(
                3,
                place,
                f"{tile}: lies in operand {operand.name} and so must be a box of it,"
                f" not of {access.value}",
            )
        if access.format is not operand.format or access.lanes:
            raise VerifyError(3, place, f"{tile}: the operand's format is {operand.format.name}")
    if access.value in names.operands and access.format is not names.operands[access.value].format:
        raise VerifyError(
            3,
            place,
            f"{tile}: {access.value} has format {names.operands[access.value].format.name}, not"
            f" {access.format.name}; declare a value for the converted one",
        )


def _check_transfer(
    place: str,
    outer: Access,
    inner: Access,
    by_index: Gather | Scatter | None,
    labels: list[str],
    names: Names,
) -> None:
    """`outer`: the tile in LPDDR5; `inner`: the one in LX."""
    if outer.place not in names.operands:
        raise VerifyError(1, place, f"{outer.place} is not an operand in LPDDR5")
    if inner.place not in names.buffers:
        raise VerifyError(1, place, f"{inner.place} is not a buffer in LX")
    if inner.format is not outer.format or inner.stick != outer.stick or inner.lanes:
        raise VerifyError(
            3,
            place,
            f"sticks move as they are: both tiles need format {outer.format.name} and stick label"
            f" {outer.stick}, the one in LX has {inner.format.name} and {inner.stick}",
        )
    if by_index is None:
        if inner.value != outer.value or inner.index != outer.index:
            raise VerifyError(
                3,
                place,
                f"source and target declare different boxes: of {outer.value} and {inner.value};"
                " both must declare the same",
            )
        return
    if by_index.label not in labels or by_index.label == outer.stick:
        raise VerifyError(
            1, place, f"label {by_index.label!r} must be a label of the box, not on the stick"
        )
    where = [index.label for index in outer.index]
    if where.count(by_index.label) != 1:
        raise VerifyError(1, place, f"label {by_index.label} must index one dim of {outer.value}")
    tile = by_index.index
    if tile.place not in names.buffers or tile.lanes:
        raise VerifyError(1, place, "the index tile must be a plain tile in LX")
    check_index_format(tile.format, place)
    if {index.label for index in tile.index} - {None} != {by_index.label}:
        raise VerifyError(1, place, f"the index tile must be over label {by_index.label} alone")


def _check_ring(place: str, ring: Ring, names: Names) -> None:
    source, target = ring.source, ring.target
    for access in (source, target):
        if access.place not in names.buffers:
            raise VerifyError(1, place, f"{access.place} is not a buffer in LX")
    if source.format is not target.format or source.stick != target.stick:
        raise VerifyError(3, place, "sticks move as they are: format and stick label must agree")
    if source.lanes != target.lanes:
        raise VerifyError(3, place, "lane accumulators go to lane accumulators only")
    if ring.combine is None:
        if source.value != target.value or source.index != target.index:
            raise VerifyError(3, place, "source and target declare different boxes")
        return
    if ring.combine in (Combine.ARGMAX, Combine.ARGMIN, Combine.WELFORD):
        raise VerifyError(
            1, place, f"RING combines single tiles, not those of {ring.combine.value}"
        )
    if source.format.name not in ("IEEE_FP32", "IEEE_INT32", "IEEE_INT64"):
        raise VerifyError(1, place, f"RING reduces exact formats, not {source.format.name}")
    truth = ring.combine in (Combine.ANY, Combine.ALL)
    if truth and source.format is not Format.IEEE_INT32:
        raise VerifyError(1, place, "any and all combine truth values in IEEE_INT32")
