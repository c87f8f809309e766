"""From the body of an image to a Program; the inverse of `binary_encoder`. Trusts no byte: every
number is checked before it is used, no list is longer than the bytes that are left, and nothing
nests deeper than `MAX_DEPTH`.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from openspyre.program import binary_rules as rules
from openspyre.program.binary_rules import ProgramFormatError
from openspyre.program.expr import OPERATORS, Binary, Const, Expr, Var
from openspyre.program.model import (
    UNITS,
    Access,
    Body,
    Buffer,
    Card,
    Compute,
    Digit,
    Gather,
    Index,
    Instruction,
    Label,
    Let,
    Load,
    Loop,
    Node,
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
from openspyre.program.ops import BODY_OPS, COMBINES, KINDS, Combine

T = TypeVar("T")
_INT64 = 2**63 - 1


def decode_body(image: bytes, offset: int, size: int, data: bytes) -> Program:
    """The program whose body lies in image[offset : offset + size]. Raises ProgramFormatError
    naming field, byte offset in the image and rule."""
    return _Decoder(image, offset, size).run(data)


class _Names(list[str]):
    """Names by number, with a set beside them: a hostile list of names costs no quadratic time."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: set[str] = set()

    def append(self, name: str) -> None:
        super().append(name)
        self.taken.add(name)

    def drop(self) -> None:
        self.taken.discard(super().pop())


class _Decoder:
    def __init__(self, image: bytes, offset: int, size: int) -> None:
        self.image = image
        self.at = offset
        self.end = offset + size
        self.where = "program"
        self.variables = _Names()
        self.usable: set[int] = set()  # variables that an expression may mention here
        self.labels = _Names()
        self.symbols: list[Symbol] = []
        self.values = _Names()
        self.places = _Names()
        self.tokens = _Names()
        self.digits = _Names()

    def fail(self, field: str, message: str, at: int | None = None) -> NoReturn:
        raise ProgramFormatError(
            f"body: {self.where}: {field} at byte {self.at if at is None else at}: {message}"
        )

    # --- the elements of the stream

    def u(self, field: str, limit: int = _INT64) -> int:
        start, value, shift = self.at, 0, 0
        while True:
            if self.at >= self.end:
                self.fail(field, "the body ends inside it", start)
            byte = self.image[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift >= 70:
                self.fail(field, "a number of more than 10 bytes", start)
        if value > limit:
            self.fail(field, f"{value} is above {limit}", start)
        return value

    def s(self, field: str) -> int:
        value = self.u(field, 2**64 - 1)
        return value >> 1 if value & 1 == 0 else -(value >> 1) - 1

    def choice(self, field: str, table: Sequence[T]) -> T:
        start = self.at
        code = self.u(field)
        if code >= len(table):
            self.fail(field, f"{code} is not one of 0..{len(table) - 1}", start)
        return table[code]

    def flag(self, field: str) -> bool:
        return self.choice(field, (False, True))

    def text(self, field: str) -> str:
        start = self.at
        size = self.u(field, rules.MAX_NAME)
        if size > self.end - self.at:
            self.fail(field, "the body ends inside it", start)
        self.at += size
        try:
            return self.image[self.at - size : self.at].decode("utf-8")
        except UnicodeDecodeError:
            self.fail(field, "is not UTF-8", start)

    def name(self, field: str) -> str:
        start = self.at
        text = self.text(field)
        if not rules.is_name(text):
            self.fail(field, f"{text!r} is no name of letters, digits and _", start)
        return text

    def count(self, field: str, most: int = _INT64) -> int:
        """The length of a list. Each element takes a byte or more: a longer list is a lie."""
        start = self.at
        count = self.u(field)
        if count > min(most, self.end - self.at):
            self.fail(field, f"{count} elements, more than there can be", start)
        return count

    def many(self, field: str, one: Callable[[], T], most: int = _INT64) -> tuple[T, ...]:
        return tuple(one() for _ in range(self.count(field, most)))

    def opt(self, field: str, one: Callable[[], T]) -> T | None:
        return one() if self.flag(field) else None

    def expr(self, field: str, depth: int = 1) -> Expr:
        start = self.at
        if depth > rules.MAX_DEPTH:
            self.fail(field, f"an expression more than {rules.MAX_DEPTH} deep", start)
        tag = self.u(field)
        if tag == 0:
            return Const(self.s(field))
        if tag == 1:
            number = self.u(field)
            if number >= len(self.variables):
                self.fail(field, f"variable {number} of {len(self.variables)}", start)
            if number not in self.usable:
                self.fail(field, f"variable {self.variables[number]} cannot be used here", start)
            return Var(self.variables[number])
        if tag - 2 >= len(OPERATORS):
            self.fail(field, f"{tag} is no expression", start)
        left = self.expr(field, depth + 1)
        return Binary(OPERATORS[tag - 2], left, self.expr(field, depth + 1))

    def sizes(self, field: str) -> tuple[Expr, ...]:
        return self.many(field, lambda: self.expr(field), rules.MAX_RANK)

    # --- the program

    def fresh(self, field: str, names: _Names) -> str:
        start = self.at
        name = self.name(field)
        if name in names.taken:
            self.fail(field, f"the name {name} is taken", start)
        return name

    def push(self, name: str) -> None:
        self.usable.add(len(self.variables))
        self.variables.append(name)

    def run(self, data: bytes) -> Program:
        name = self.text("name")
        self.where = "card"
        card_name, start = self.text("name"), self.at
        cores = self.u("cores", rules.MAX_CORES)
        lx_bytes = self.u("bytes of LX", rules.MAX_LX_BYTES)
        if cores < 1 or lx_bytes < 128:
            self.fail("cores", f"{cores} cores of {lx_bytes} bytes: 1 and 128 are the least", start)
        card = Card(card_name, cores, lx_bytes)
        self.where = "grid"
        grid: list[Digit] = []
        cores = 1
        for _ in range(self.count("digits", rules.MAX_DIGITS)):
            start = self.at
            digit = Digit(self.fresh("digit", self.digits), self.u("size"))
            grid.append(digit)
            self.digits.append(digit.name)
            cores *= digit.size
            if not 1 <= cores <= card.cores:
                self.fail(f"digit {digit.name}", f"the grid needs 1..{card.cores} cores", start)
        starts = self.symbol_list()
        for symbol in self.symbols:
            self.push(symbol.name)
            if symbol.kind is SymbolKind.FLOAT:
                self.usable.discard(len(self.variables) - 1)
        for name_ in (*self.digits, rules.BUILT_IN):
            if name_ in self.variables.taken:
                self.where = "grid"
                self.fail("digits", f"the name {name_} is taken")
            self.push(name_)
        everything = self.usable
        self.usable = {n for n in everything if n < len(self.symbols)}
        self.where = "operands"
        operands = self.many("operands", self.operand)
        arguments = [o for o in operands if o.role in (Role.IN, Role.OUT, Role.INOUT)]
        for symbol, start in zip(self.symbols, starts, strict=True):
            fault = rules.symbol_fault(symbol, arguments)
            if fault is not None:
                self.where = f"symbol {symbol.name}"
                self.fail("argument", fault, start)
        self.where = "values"
        values = self.many("values", self.value)
        self.usable = everything
        self.where = "buffers"
        buffers = self.many("buffers", self.buffer)
        self.where = "tokens"
        tokens = self.many("tokens", self.token)
        if sum(token.count for token in tokens) > rules.MAX_SEMAPHORES:
            self.fail("tokens", f"more than {rules.MAX_SEMAPHORES} semaphores a core")
        self.where = "lets"
        lets = self.many("lets", self.let)
        queues: dict[Unit, tuple[Instruction, ...]] = {}
        for unit in UNITS:
            body = self.block(unit.value, 0)
            if body:
                queues[unit] = body
        if self.at != self.end:
            self.where = "program"
            self.fail("end", f"{self.end - self.at} bytes after the program's end")
        return Program(
            name, card, tuple(grid), tuple(self.symbols), operands, values, buffers, tokens, lets,
            queues, data,
        )  # fmt: skip

    def symbol_list(self) -> list[int]:
        """Reads the symbols; gives where each begins, for what is checked later."""
        self.where = "symbols"
        starts = []
        names = _Names()
        for _ in range(self.count("symbols")):
            starts.append(self.at)
            name = self.fresh("symbol", names)
            names.append(name)
            self.where = f"symbol {name}"
            self.symbols.append(
                Symbol(
                    name,
                    self.choice("kind", rules.SYMBOL_KINDS),
                    self.s("argument"),
                    self.s("dim"),
                    self.u("granularity"),
                    self.s("minimum"),
                    self.s("maximum"),
                )
            )
        return starts

    def operand(self) -> Operand:
        name = self.fresh("operand", self.values)
        self.where = f"operand {name}"
        self.values.append(name)
        self.places.append(name)
        role = self.choice("role", rules.ROLES)
        dtype = self.name("dtype")
        format = self.choice("format", rules.FORMATS)
        shape = self.sizes("shape")
        within = strides = None
        stick = -1
        way = self.choice("layout", (0, 1, rules.STRIDED))
        if way == rules.STRIDED:
            strides = self.sizes("strides")
            stick = self.s("stick")
        elif way:
            within = self.sizes("within")
        order = self.opt(
            "order", lambda: self.many("order", lambda: self.s("order"), rules.MAX_RANK + 1)
        )
        offset = self.u("offset")
        if strides is not None and (len(strides) != len(shape) or not -1 <= stick < len(shape)):
            self.fail("strides", f"{len(strides)} strides, stick {stick}, rank {len(shape)}")
        if strides is not None and order is not None:
            self.fail("order", "an operand with strides has none")
        return Operand(name, role, dtype, format, shape, within, order, offset, strides, stick)

    def value(self) -> Value:
        name = self.fresh("value", self.values)
        self.where = f"value {name}"
        self.values.append(name)
        return Value(name, self.sizes("shape"), self.sizes("reduced"))

    def buffer(self) -> Buffer:
        name = self.fresh("buffer", self.places)
        self.where = f"buffer {name}"
        self.places.append(name)
        return Buffer(name, self.u("base"), self.u("bytes of a slot"), self.u("slots"))

    def token(self) -> Token:
        name = self.fresh("token", self.tokens)
        self.where = f"token {name}"
        self.tokens.append(name)
        return Token(name, self.u("count", rules.MAX_SEMAPHORES), self.u("initial value"))

    def let(self) -> Let:
        name = self.fresh("let", self.variables)
        self.where = f"let {name}"
        value = self.expr("value")
        self.push(name)
        return Let(name, value)

    # --- instructions

    def block(self, path: str, depth: int) -> tuple[Instruction, ...]:
        self.where = path
        if depth > rules.MAX_DEPTH:
            self.fail("loop", f"loops nest more than {rules.MAX_DEPTH} deep")
        out = []
        for position in range(self.count("instructions")):
            self.where = here = f"{path}[{position}]"
            out.append(self.instruction(here, depth))
        return tuple(out)

    def scoped(self, variable: str | None, inside: Callable[[], T]) -> T:
        if variable is None:
            return inside()
        self.push(variable)
        out = inside()
        self.variables.drop()
        self.usable.discard(len(self.variables))
        return out

    def instruction(self, path: str, depth: int) -> Instruction:
        start = self.at
        tag = self.u("instruction")
        if tag == 0:
            over, source, target = self.over(), self.access("source"), self.access("target")
            multicast = self.many("multicast", lambda: self.choice("multicast", self.digits))
            if len(set(multicast)) != len(multicast):
                self.fail("multicast", "a digit twice", start)
            return Load(over, source, target, multicast, self.opt("gather", self.gather))
        if tag == 1:
            over, source, target = self.over(), self.access("source"), self.access("target")
            return Store(over, source, target, self.opt("scatter", self.scatter))
        if tag == 2:
            variable = self.fresh("variable", self.variables)
            count = self.expr("count")

            def ring() -> Ring:
                core, over = self.expr("core"), self.over()
                source, target = self.access("source"), self.access("target")
                return Ring(over, variable, count, core, source, target, self.combine())

            return self.scoped(variable, ring)
        if tag == 3:
            return self.compute()
        if tag == 4:
            return Wait(self.choice("token", self.tokens), self.expr("index"), self.expr("count"))
        if tag == 5:
            return Signal(
                self.choice("token", self.tokens), self.expr("index"), self.expr("count"),
                self.opt("core", lambda: self.expr("core")),
            )  # fmt: skip
        if tag == 6:
            loop = self.opt("variable", lambda: self.fresh("variable", self.variables))
            count = self.expr("count")
            return Loop(loop, count, self.scoped(loop, lambda: self.block(path, depth + 1)))
        self.fail("instruction", f"{tag} is no instruction", start)

    def combine(self) -> Combine | None:
        return self.choice("combine", (None, *COMBINES))

    def over(self) -> tuple[Label, ...]:
        self.labels = _Names()
        out = []
        for _ in range(self.count("labels", rules.MAX_LABELS)):
            name = self.fresh("label", self.labels)
            self.labels.append(name)
            out.append(Label(name, self.expr("start"), self.expr("size")))
        return tuple(out)

    def label(self, field: str) -> str:
        return self.choice(field, self.labels)

    def maybe_label(self, field: str) -> str | None:
        return self.choice(field, (None, *self.labels))

    def access(self, field: str) -> Access:
        value = self.choice(f"{field}: value", self.values)
        index = self.many(
            f"{field}: index",
            lambda: Index(self.maybe_label(f"{field}: index"), self.expr(f"{field}: index")),
            rules.MAX_RANK,
        )
        place = self.choice(f"{field}: place", self.places)
        format = self.choice(f"{field}: format", rules.FORMATS)
        start = self.at
        strides = self.many(
            f"{field}: strides",
            lambda: (self.label(f"{field}: strides"), self.expr(f"{field}: strides")),
            rules.MAX_LABELS,
        )
        if len({name for name, _ in strides}) != len(strides):
            self.fail(f"{field}: strides", "a label twice", start)
        return Access(
            value, index, place, format, strides,
            self.maybe_label(f"{field}: stick"), self.expr(f"{field}: offset"),
            self.expr(f"{field}: slot"), self.flag(f"{field}: lanes"),
        )  # fmt: skip

    def gather(self) -> Gather:
        return Gather(
            self.label("gather: label"), self.access("gather: index"), self.expr("gather: limit")
        )

    def scatter(self) -> Scatter:
        return Scatter(
            self.label("scatter: label"),
            self.access("scatter: index"),
            self.expr("scatter: limit"),
            self.expr("scatter: first"),
            self.expr("scatter: count"),
            self.flag("scatter: add"),
        )

    def compute(self) -> Compute:
        unit, kind = self.choice("unit", UNITS), self.choice("kind", KINDS)
        over = self.over()
        inputs = self.many("inputs", lambda: self.access("input"), rules.MAX_TILES)
        outputs = self.many("outputs", lambda: self.access("output"), rules.MAX_TILES)
        body = self.opt("body", lambda: self.body(len(inputs)))
        combine, accumulate = self.combine(), self.expr("accumulate")
        label, limit = self.maybe_label("label"), self.expr("limit")
        flags = self.u("flags", 3)
        return Compute(
            unit, kind, over, inputs, outputs, body, combine, accumulate, label, limit,
            bool(flags & 1), bool(flags & 2),
        )  # fmt: skip

    def body(self, inputs: int) -> Body:
        start = self.at
        nodes = self.many("nodes", self.node)
        results = self.many("results", lambda: self.u("result"))
        fault = rules.body_fault(nodes, results, inputs)
        if fault is not None:
            self.fail("body", fault, start)
        return Body(nodes, results)

    def node(self) -> Node:
        start = self.at
        op = self.choice("operation", BODY_OPS)
        letter = self.choice("type", rules.LETTERS)
        args = tuple(self.u("operand") for _ in op.operands)
        immediate: int | float | str | None = None
        if op.immediate == "T" and letter == "f":
            if self.end - self.at < 4:
                self.fail("constant", "the body ends inside it", start)
            immediate = rules.float_value(self.image[self.at : self.at + 4])
            self.at += 4
        elif op.immediate in ("T", "int"):
            immediate = self.s("constant")
        elif op.immediate == "input":
            immediate = self.u("input")
        elif op.immediate == "symbol":
            symbol = self.choice("symbol", self.symbols)
            fault = rules.scalar_fault(symbol, letter)
            if fault is not None:
                self.fail("symbol", fault, start)
            immediate = symbol.name
        elif op.immediate == "label":
            immediate = self.label("label")
        elif op.immediate == "format":
            immediate = self.choice("format", rules.FORMAT_NAMES)
        elif op.immediate == "type":
            immediate = self.choice("type", rules.LETTERS)
        return Node(op.name, letter, args, immediate)
