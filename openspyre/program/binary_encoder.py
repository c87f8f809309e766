"""From a Program to the body of its image: names become numbers. See docs/program.md section 6.

Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, TypeVar

from openspyre.program import binary_rules as rules
from openspyre.program.binary_rules import ProgramFormatError
from openspyre.program.expr import OPERATORS, Binary, Const, Expr, Var
from openspyre.program.model import (
    UNITS,
    VERSION,
    Access,
    Body,
    Compute,
    Index,
    Instruction,
    Label,
    Load,
    Loop,
    Node,
    Operand,
    Program,
    Ring,
    Signal,
    Store,
    Symbol,
    SymbolKind,
    Wait,
)
from openspyre.program.ops import BODY_OP, COMBINES, KINDS, Combine

T = TypeVar("T")
_OPERATOR = {op: code for code, op in enumerate(OPERATORS)}


def encode_body(program: Program) -> bytes:
    """The body of `program`. Raises ProgramFormatError, naming the place in the program."""
    return _Encoder(program).run()


class _Encoder:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.out = bytearray()
        self.where = f"program {program.name!r}"
        self.symbols: dict[str, int] = {}
        self.variables: dict[str, int] = {}
        self.usable: set[str] = set()  # variables that an expression may mention here
        self.tables: dict[str, dict[str, int]] = {}
        self.labels: dict[str, int] = {}
        self.operands = 0

    def fail(self, message: str) -> NoReturn:
        raise ProgramFormatError(f"{self.where}: {message}")

    # --- the elements of the stream

    def u(self, value: int, what: str, limit: int = 2**63 - 1) -> None:
        if not 0 <= value <= limit:
            self.fail(f"{what} is {value} and must lie in 0..{limit}")
        while value >= 0x80:
            self.out.append(value & 0x7F | 0x80)
            value >>= 7
        self.out.append(value)

    def s(self, value: int, what: str) -> None:
        if not -(2**63) <= value <= 2**63 - 1:
            self.fail(f"{what} is {value} and does not fit in 64 bits")
        self.u(value << 1 if value >= 0 else (-value << 1) - 1, what, 2**64 - 1)

    def text(self, value: str) -> None:
        data = value.encode("utf-8", "surrogatepass")
        if len(data) > rules.MAX_NAME or any(0xD800 <= ord(c) <= 0xDFFF for c in value):
            self.fail(f"the text {value[:40]!r} is not UTF-8 of at most {rules.MAX_NAME} bytes")
        self.u(len(data), "length")
        self.out += data

    def name(self, value: str, what: str) -> None:
        if not rules.is_name(value):
            self.fail(f"the {what} {value!r} is no name: use letters, digits and _")
        self.text(value)

    def many(self, items: Sequence[T], what: str, one: Callable[[T], None], most: int = 0) -> None:
        if most and len(items) > most:
            self.fail(f"{len(items)} {what}, but at most {most} are allowed")
        self.u(len(items), what)
        for item in items:
            one(item)

    def opt(self, item: T | None, one: Callable[[T], None]) -> None:
        self.u(int(item is not None), "presence")
        if item is not None:
            one(item)

    def lookup(self, table: dict[str, int], name: str | None, what: str) -> int:
        number = table.get(name) if name is not None else None
        if number is None:
            self.fail(f"no {what} {name!r}; there are {', '.join(map(repr, table)) or 'none'}")
        return number

    def expr(self, node: Expr, depth: int = 1) -> None:
        if depth > rules.MAX_DEPTH:
            self.fail(f"an expression is more than {rules.MAX_DEPTH} deep: name parts with let")
        if isinstance(node, Const):
            self.u(0, "tag")
            self.s(node.value, "a constant")
        elif isinstance(node, Var):
            if node.name in self.variables and node.name not in self.usable:
                self.fail(f"{node.name!r} cannot be used in this expression")
            self.u(1, "tag")
            self.u(self.lookup(self.variables, node.name, "variable"), "variable")
        elif isinstance(node, Binary):
            if node.op not in _OPERATOR:
                self.fail(f"no operator {node.op!r}")
            self.u(2 + _OPERATOR[node.op], "tag")
            self.expr(node.left, depth + 1)
            self.expr(node.right, depth + 1)
        else:
            self.fail(f"{node!r} is no expression")

    def exprs(self, nodes: Sequence[Expr], what: str = "sizes") -> None:
        self.many(nodes, what, self.expr, rules.MAX_RANK)

    # --- the program

    def table(self, what: str, names: Iterable[str]) -> dict[str, int]:
        out: dict[str, int] = {}
        for name in names:
            if name in out:
                self.fail(f"two of its {what} are named {name!r}")
            out[name] = len(out)
        return out

    def declare(self, name: str) -> None:
        if name in self.variables:
            self.fail(f"the variable {name!r} exists already: choose another name")
        self.variables[name] = len(self.variables)
        self.usable.add(name)

    def run(self) -> bytes:
        p = self.program
        if p.version != VERSION:
            self.fail(f"version {p.version} cannot be written, only {VERSION}")
        operands = [o.name for o in p.operands]
        self.operands = len(operands)
        self.tables["value"] = self.table(
            "operands and values", [*operands, *(v.name for v in p.values)]
        )
        self.tables["place"] = self.table(
            "operands and buffers", [*operands, *(b.name for b in p.buffers)]
        )
        self.tables["token"] = self.table("tokens", (t.name for t in p.tokens))
        self.tables["digit"] = self.table("digits", (d.name for d in p.grid))
        self.symbols = self.table("symbols", (s.name for s in p.symbols))

        self.text(p.name)
        self.text(p.card.name)
        if not 1 <= p.card.cores <= rules.MAX_CORES:
            self.fail(f"the card has {p.card.cores} cores: 1..{rules.MAX_CORES} are allowed")
        if not 128 <= p.card.lx_bytes <= rules.MAX_LX_BYTES:
            self.fail(f"an LX of {p.card.lx_bytes} bytes: 128..{rules.MAX_LX_BYTES} are allowed")
        self.u(p.card.cores, "cores of the card")
        self.u(p.card.lx_bytes, "LX bytes")
        cores = math.prod(digit.size for digit in p.grid)
        if any(digit.size < 1 for digit in p.grid) or cores > p.card.cores:
            self.fail(f"the grid has {cores} cores: it needs 1..{p.card.cores}, those of the card")
        if len(p.grid) > rules.MAX_DIGITS:
            self.fail(f"{len(p.grid)} digits, but at most {rules.MAX_DIGITS} are allowed")
        self.u(len(p.grid), "digits")
        for digit in p.grid:
            self.name(digit.name, "digit")
            self.u(digit.size, "size")
        for symbol in p.symbols:
            self.declare(symbol.name)
            if symbol.kind is SymbolKind.FLOAT:
                self.usable.remove(symbol.name)
        for digit in p.grid:
            self.declare(digit.name)
        self.declare(rules.BUILT_IN)
        self.many(p.symbols, "symbols", self.symbol)
        everything, self.usable = self.usable, self.usable & set(self.symbols)
        self.many(p.operands, "operands", self.operand)
        self.u(len(p.values), "values")
        for value in p.values:
            self.where = f"value {value.name}"
            self.name(value.name, "value")
            self.exprs(value.shape)
            self.exprs(value.reduced)
        self.usable = everything
        self.u(len(p.buffers), "buffers")
        for buffer in p.buffers:
            self.where = f"buffer {buffer.name}"
            self.name(buffer.name, "buffer")
            self.u(buffer.base, "base")
            self.u(buffer.slot_bytes, "bytes of a slot")
            self.u(buffer.slots, "slots")
        self.u(len(p.tokens), "tokens")
        semaphores = sum(max(token.count, 0) for token in p.tokens)
        if semaphores > rules.MAX_SEMAPHORES:
            self.fail(f"{semaphores} semaphores a core: at most {rules.MAX_SEMAPHORES}")
        for token in p.tokens:
            self.where = f"token {token.name}"
            self.name(token.name, "token")
            self.u(token.count, "count")
            self.u(token.initial, "initial value")
        self.u(len(p.lets), "lets")
        for let in p.lets:
            self.where = f"let {let.name}"
            self.name(let.name, "let")
            self.expr(let.value)
            self.declare(let.name)
        for unit in p.queues:
            if unit not in UNITS:
                self.fail(f"{unit!r} is no unit")
        for unit in UNITS:
            self.block(p.queues.get(unit, ()), unit.value, 0)
        return bytes(self.out)

    def symbol(self, symbol: Symbol) -> None:
        self.where = f"symbol {symbol.name}"
        self.name(symbol.name, "symbol")
        self.u(rules.SYMBOL_KINDS.index(symbol.kind), "kind")
        self.s(symbol.argument, "argument")
        self.s(symbol.dim, "dim")
        self.u(symbol.granularity, "granularity")
        self.s(symbol.minimum, "minimum")
        self.s(symbol.maximum, "maximum")
        fault = rules.symbol_fault(symbol, self.program.arguments)
        if fault is not None:
            self.fail(fault)

    def operand(self, operand: Operand) -> None:
        self.where = f"operand {operand.name}"
        self.name(operand.name, "operand")
        self.u(rules.ROLES.index(operand.role), "role")
        self.name(operand.dtype, "dtype")
        self.u(rules.FORMATS.index(operand.format), "format")
        self.exprs(operand.shape)
        if operand.strides is None:
            self.opt(operand.within, self.exprs)
        else:
            if operand.within is not None or operand.order is not None:
                self.fail("it has strides, and so neither `within` nor `order`")
            if len(operand.strides) != len(operand.shape):
                self.fail("`strides` must have the rank of `shape`")
            if not -1 <= operand.stick < len(operand.shape):
                self.fail(f"no dim {operand.stick} can lie on the stick")
            self.u(rules.STRIDED, "layout")
            self.exprs(operand.strides)
            self.s(operand.stick, "stick")
        self.opt(operand.order, lambda order: self.many(
            order, "dims of the order", lambda d: self.s(d, "dim"), rules.MAX_RANK + 1
        ))  # fmt: skip
        self.u(operand.offset, "offset")

    # --- instructions

    def block(self, body: Sequence[Instruction], path: str, depth: int) -> None:
        if depth > rules.MAX_DEPTH:
            self.fail(f"loops nest more than {rules.MAX_DEPTH} deep")
        self.u(len(body), "instructions")
        for position, instruction in enumerate(body):
            here = f"{path}[{position}]"
            self.where = f"{here} {type(instruction).__name__.lower()}"
            self.instruction(instruction, here, depth)

    def scoped(self, variable: str | None, inside: Callable[[], None]) -> None:
        if variable is not None:
            self.declare(variable)
        inside()
        if variable is not None:
            del self.variables[variable]
            self.usable.remove(variable)

    def instruction(self, item: Instruction, path: str, depth: int) -> None:
        if isinstance(item, Load):
            self.u(0, "tag")
            self.over(item.over)
            self.access(item.source)
            self.access(item.target)
            self.many(
                item.multicast, "digits",
                lambda d: self.u(self.lookup(self.tables["digit"], d, "digit"), "digit"),
            )  # fmt: skip
            self.u(int(item.gather is not None), "presence")
            if item.gather is not None:
                self.label(item.gather.label)
                self.access(item.gather.index)
                self.expr(item.gather.limit)
        elif isinstance(item, Store):
            self.u(1, "tag")
            self.over(item.over)
            self.access(item.source)
            self.access(item.target)
            self.u(int(item.scatter is not None), "presence")
            if item.scatter is not None:
                self.label(item.scatter.label)
                self.access(item.scatter.index)
                self.expr(item.scatter.limit)
                self.expr(item.scatter.first)
                self.expr(item.scatter.count)
                self.u(int(item.scatter.add), "add")
        elif isinstance(item, Ring):
            ring = item
            self.u(2, "tag")
            self.name(ring.variable, "variable")
            self.expr(ring.count)

            def inside() -> None:
                self.expr(ring.core)
                self.over(ring.over)
                self.access(ring.source)
                self.access(ring.target)
                self.combine(ring.combine)

            self.scoped(ring.variable, inside)
        elif isinstance(item, Compute):
            self.u(3, "tag")
            self.compute(item)
        elif isinstance(item, Wait):
            self.u(4, "tag")
            self.token(item)
        elif isinstance(item, Signal):
            self.u(5, "tag")
            self.token(item)
            self.opt(item.core, self.expr)
        elif isinstance(item, Loop):
            self.u(6, "tag")
            self.opt(item.variable, lambda name: self.name(name, "variable"))
            self.expr(item.count)
            body = item.body
            self.scoped(item.variable, lambda: self.block(body, path, depth + 1))
        else:
            self.fail(f"{item!r} is no instruction")

    def token(self, item: Wait | Signal) -> None:
        self.u(self.lookup(self.tables["token"], item.token, "token"), "token")
        self.expr(item.index)
        self.expr(item.count)

    def combine(self, combine: Combine | None) -> None:
        self.u(0 if combine is None else 1 + COMBINES.index(combine), "combine")

    def over(self, labels: Sequence[Label]) -> None:
        self.labels = self.table("labels", (label.name for label in labels))
        if len(labels) > rules.MAX_LABELS:
            self.fail(f"{len(labels)} labels, but at most {rules.MAX_LABELS} are allowed")
        self.u(len(labels), "labels")
        for label in labels:
            self.name(label.name, "label")
            self.expr(label.start)
            self.expr(label.size)

    def label(self, name: str | None) -> None:
        self.u(self.lookup(self.labels, name, "label"), "label")

    def maybe_label(self, name: str | None) -> None:
        self.u(0 if name is None else 1 + self.lookup(self.labels, name, "label"), "label")

    def access(self, access: Access) -> None:
        self.u(self.lookup(self.tables["value"], access.value, "value"), "value")

        def index(item: Index) -> None:
            self.maybe_label(item.label)
            self.expr(item.offset)

        self.many(access.index, "indices", index, rules.MAX_RANK)
        self.u(self.lookup(self.tables["place"], access.place, "place"), "place")
        self.u(rules.FORMATS.index(access.format), "format")
        self.table("strides", (name for name, _ in access.strides))  # none twice
        self.u(len(access.strides), "strides")
        for name, stride in access.strides:
            self.label(name)
            self.expr(stride)
        self.maybe_label(access.stick)
        self.expr(access.offset)
        self.expr(access.slot)
        self.u(int(access.lanes), "lanes")

    def compute(self, item: Compute) -> None:
        self.u(UNITS.index(item.unit), "unit")
        self.u(KINDS.index(item.kind), "kind")
        self.over(item.over)
        self.many(item.inputs, "inputs", self.access, rules.MAX_TILES)
        self.many(item.outputs, "outputs", self.access, rules.MAX_TILES)
        self.u(int(item.body is not None), "presence")
        if item.body is not None:
            self.body(item.body, len(item.inputs))
        self.combine(item.combine)
        self.expr(item.accumulate)
        self.maybe_label(item.label)
        self.expr(item.limit)
        self.u(int(item.descending) | int(item.add) << 1, "flags")

    def body(self, body: Body, inputs: int) -> None:
        fault = rules.body_fault(body.nodes, body.results, inputs)
        if fault is not None:
            self.fail(fault)
        self.many(body.nodes, "nodes", self.node)
        self.many(body.results, "results", lambda r: self.u(r, "result"))

    def node(self, node: Node) -> None:
        self.u(rules.OP_CODE[node.op], "operation")
        self.u(rules.LETTERS.index(node.type), "type")
        for arg in node.args:
            self.u(arg, "operand")
        wanted, value = BODY_OP[node.op].immediate, node.immediate
        if wanted == "T" and node.type == "f":
            assert isinstance(value, int | float)
            self.out += rules.float_bits(float(value))
        elif wanted in ("T", "int"):
            assert isinstance(value, int)
            self.s(int(value), "constant")
        elif wanted == "input":
            assert isinstance(value, int)
            self.u(value, "input")
        elif wanted == "symbol":
            assert isinstance(value, str)
            number = self.lookup(self.symbols, value, "symbol")
            fault = rules.scalar_fault(self.program.symbols[number], node.type)
            if fault is not None:
                self.fail(fault)
            self.u(number, "symbol")
        elif wanted == "label":
            assert isinstance(value, str)
            self.label(value)
        elif wanted == "format":
            assert isinstance(value, str)
            self.u(rules.FORMAT_NAMES.index(value), "format")
        elif wanted == "type":
            assert isinstance(value, str)
            self.u(rules.LETTERS.index(value), "type")
