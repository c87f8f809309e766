"""From text to a Program; the grammar is in docs/program.md section 5.

Names are looked up while reading, so that a slip is reported where it stands. What the verifier
checks (coverage, addresses, tokens) is not looked at here. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import NoReturn, TypeVar

from openspyre.formats import Format
from openspyre.program.binary_rules import (
    BUILT_IN,
    MAX_DEPTH,
    MAX_NAME,
    body_fault,
    scalar_fault,
    symbol_fault,
)
from openspyre.program.expr import Binary, Const, Expr, Var
from openspyre.program.model import (
    ONE,
    VERSION,
    ZERO,
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
from openspyre.program.ops import BODY_OP, Combine, Kind
from openspyre.program.text_lexer import Lexer, ProgramTextError

__all__ = ["ProgramTextError", "from_text"]

T = TypeVar("T")
_SIGNS = ({"==", "<", "<="}, {"+", "-"}, {"*", "//", "%"})  # loosest first
_SYMBOL_FIELDS = ("argument", "dim", "granularity", "minimum", "maximum")
_DECLARATIONS = ("symbol", "operand", "value", "buffer", "token", "let", "queue", "data")
_INSTRUCTIONS = ("wait", "signal", "load", "store", "ring", "compute", "loop", "repeat")
_UNITS = tuple(unit.value for unit in Unit)


def from_text(text: str) -> Program:
    """The program that `text` says. Raises ProgramTextError with line and column."""
    return _Parser(text).program()


class _Parser:
    def __init__(self, text: str) -> None:
        self.lex = Lexer(text)
        self.grid: list[Digit] = []
        self.symbols: list[Symbol] = []
        self.symbol_places: list[int] = []  # in the text
        self.operands: list[Operand] = []
        self.values: list[Value] = []
        self.buffers: list[Buffer] = []
        self.tokens: list[Token] = []
        self.lets: list[Let] = []
        self.queues: dict[Unit, tuple[Instruction, ...]] = {}
        self.data: bytes | None = None
        # What may be mentioned here. A dict is a set in the order of declaration.
        self.variables: dict[str, None] = {}
        self.taken: set[str] = set()  # names of variables, float symbols too
        self.value_names: dict[str, None] = {}
        self.place_names: dict[str, None] = {}
        self.token_names: dict[str, None] = {}
        self.labels: dict[str, None] = {}
        self.unit = Unit.LOAD

    # --- helpers

    def fresh(self, what: str, *tables: Collection[str]) -> str:
        lexeme = self.lex.peek()
        name = self.lex.name(f"the name of the {what}")
        if any(name in table for table in tables):
            self.lex.fail(lexeme.at, f"the name {name!r} is taken: give the {what} another")
        if len(name) > MAX_NAME:
            self.lex.fail(lexeme.at, f"a name of more than {MAX_NAME} letters")
        return name

    def variable(self, what: str) -> str:
        name = self.fresh(what, self.taken)
        self.taken.add(name)
        self.variables[name] = None
        return name

    def forget(self, name: str) -> None:
        self.taken.discard(name)
        self.variables.pop(name, None)

    def listed(self, one: Callable[[], T], close: str) -> tuple[T, ...]:
        """`one`, separated by commas, up to the sign `close`, which is taken."""
        out: list[T] = []
        while not self.lex.accept(close):
            if out:
                self.lex.expect(",")
            out.append(one())
        return tuple(out)

    def commas(self, one: Callable[[], T]) -> tuple[T, ...]:
        out = [one()]
        while self.lex.accept(","):
            out.append(one())
        return tuple(out)

    def after(self, keyword: str, one: Callable[[], T], default: T) -> T:
        return one() if self.lex.accept(keyword) else default

    def number(self, keyword: str, default: Expr) -> Expr:
        return self.after(keyword, self.expr, default)

    def count(self, what: str) -> int:
        return self.lex.integer(what, 0)

    # --- expressions

    def expr(self) -> Expr:
        start = self.lex.peek()
        node, depth = self.level(0, 0)
        if depth > MAX_DEPTH:
            self.too_deep(start.at)
        return node

    def too_deep(self, at: int) -> NoReturn:
        self.lex.fail(at, f"an expression more than {MAX_DEPTH} deep: name parts of it with let")

    def level(self, level: int, parens: int) -> tuple[Expr, int]:
        """An expression of operators at least as tight as `level`, and how deep its tree is."""
        if level == len(_SIGNS):
            return self.primary(parens)
        node, depth = self.level(level + 1, parens)
        while self.lex.peek().kind == "sign" and self.lex.peek().text in _SIGNS[level]:
            sign = self.lex.next()
            right, other = self.level(level + 1, parens)
            node, depth = Binary(sign.text, node, right), 1 + max(depth, other)
            if level == 0 and self.lex.peek().text in _SIGNS[0]:
                self.lex.fail(self.lex.peek().at, "comparisons do not chain: use parentheses")
        return node, depth

    def primary(self, parens: int) -> tuple[Expr, int]:
        lexeme = self.lex.peek()
        if parens > 2 * MAX_DEPTH:
            self.too_deep(lexeme.at)
        if lexeme.kind == "int" or lexeme.text == "-":
            return Const(self.lex.integer("a 64-bit integer")), 1
        if lexeme.text == "(":
            self.lex.next()
            inner = self.level(0, parens + 1)
            self.lex.expect(")")
            return inner
        if lexeme.kind != "name":
            self.lex.expected("an expression")
        if lexeme.text in ("min", "max") and self.lex.peek(1).text == "(":
            self.lex.next()
            self.lex.next()
            left, a = self.level(0, parens + 1)
            self.lex.expect(",")
            right, b = self.level(0, parens + 1)
            self.lex.expect(")")
            return Binary(lexeme.text, left, right), 1 + max(a, b)
        return Var(self.lex.known("a variable", self.variables)), 1

    def sizes(self) -> tuple[Expr, ...]:
        self.lex.expect("[")
        return self.listed(self.expr, "]")

    def launch_sizes(self) -> tuple[Expr, ...]:
        """Sizes of tensors: they may differ by launch, not by core."""
        everything = self.variables
        self.variables = {s.name: None for s in self.symbols if s.name in everything}
        out = self.sizes()
        self.variables = everything
        return out

    # --- the program

    def program(self) -> Program:
        lex = self.lex
        lex.expect("program")
        name = lex.string("the program's name")
        lex.expect("version")
        start = lex.peek()
        version = lex.integer("the version", 1)
        if version > VERSION:
            lex.fail(start.at, f"version {version} is too new, this OpenSpyre reads {VERSION}")
        if version < 1:
            lex.fail(start.at, f"{version} is no version")
        lex.expect("card")
        card_name = lex.string("the card's name")
        lex.expect("cores")
        cores = self.count("the number of cores")
        lex.expect("lx")
        card = Card(card_name, cores, self.count("the bytes of LX"))
        lex.expect("grid")
        self.taken.add(BUILT_IN)
        if lex.peek().kind == "name" and lex.peek(1).kind == "int":
            self.grid = list(self.commas(self.digit))
        self.variables[BUILT_IN] = None
        while lex.peek().kind != "end":
            getattr(self, "declare_" + lex.known("a declaration", _DECLARATIONS))()
        arguments = [o for o in self.operands if o.role in (Role.IN, Role.OUT, Role.INOUT)]
        for symbol, at in zip(self.symbols, self.symbol_places, strict=True):
            fault = symbol_fault(symbol, arguments)
            if fault is not None:
                lex.fail(at, f"symbol {symbol.name}: {fault}")
        return Program(
            name, card, tuple(self.grid), tuple(self.symbols), tuple(self.operands),
            tuple(self.values), tuple(self.buffers), tuple(self.tokens), tuple(self.lets),
            self.queues, self.data or b"",
        )  # fmt: skip

    def digit(self) -> Digit:
        return Digit(self.variable("digit"), self.count("the digit's size"))

    def declare_symbol(self) -> None:
        at = self.lex.peek().at
        name = self.variable("symbol")
        kind = SymbolKind(
            self.lex.known("a kind of symbol", tuple(kind.value for kind in SymbolKind))
        )
        if kind is SymbolKind.FLOAT:
            del self.variables[name]  # for bodies only
        fields: dict[str, int] = {}
        while self.lex.peek().text in _SYMBOL_FIELDS:
            lexeme = self.lex.next()
            if lexeme.text in fields:
                self.lex.fail(lexeme.at, f"{lexeme.text} is given twice")
            fields[lexeme.text] = self.lex.integer(f"the {lexeme.text}")
        self.symbols.append(Symbol(name, kind, **fields))
        self.symbol_places.append(at)

    def declare_operand(self) -> None:
        name = self.fresh("operand", self.value_names, self.place_names)
        role = Role(self.lex.known("a role", tuple(role.value for role in Role)))
        dtype = self.lex.name("a dtype")
        format = self.format()
        shape = self.launch_sizes()
        within = self.after("within", self.launch_sizes, None)
        order: tuple[int, ...] | None = None
        if self.lex.accept("order"):
            self.lex.expect("[")
            order = self.listed(lambda: self.lex.integer("a dim"), "]")
        strides = self.after("strides", self.launch_sizes, None)
        stick = self.after("stick", lambda: self.count("the dim on the stick"), -1)
        offset = self.after("offset", lambda: self.count("the offset"), 0)
        self.operands.append(
            Operand(name, role, dtype, format, shape, within, order, offset, strides, stick)
        )
        self.value_names[name] = self.place_names[name] = None

    def declare_value(self) -> None:
        name = self.fresh("value", self.value_names)
        shape = self.launch_sizes()
        self.values.append(Value(name, shape, self.after("reduced", self.launch_sizes, ())))
        self.value_names[name] = None

    def declare_buffer(self) -> None:
        name = self.fresh("buffer", self.place_names)
        self.lex.expect("base")
        base = self.count("the base")
        self.lex.expect("bytes")
        slot_bytes = self.count("the bytes of a slot")
        slots = self.after("slots", lambda: self.count("the number of slots"), 1)
        self.buffers.append(Buffer(name, base, slot_bytes, slots))
        self.place_names[name] = None

    def declare_token(self) -> None:
        name = self.fresh("token", self.token_names)
        count = self.after("count", lambda: self.count("the number of semaphores"), 1)
        initial = self.after("initial", lambda: self.count("the initial value"), 0)
        self.tokens.append(Token(name, count, initial))
        self.token_names[name] = None

    def declare_let(self) -> None:
        name = self.fresh("let", self.taken)
        self.lex.expect("=")
        self.lets.append(Let(name, self.expr()))
        self.taken.add(name)
        self.variables[name] = None

    def declare_queue(self) -> None:
        lexeme = self.lex.peek()
        self.unit = Unit(self.lex.known("a unit", _UNITS))
        if self.unit in self.queues:
            self.lex.fail(lexeme.at, f"queue {self.unit.value} is given twice")
        self.queues[self.unit] = self.block(0)

    def declare_data(self) -> None:
        if self.data is not None:
            self.lex.fail(self.lex.peek().at, "data is given twice")
        if self.lex.peek().text != "{":
            self.lex.expected("'{'")
        self.lex.next()
        self.data = self.lex.hexadecimal()

    # --- instructions

    def block(self, depth: int) -> tuple[Instruction, ...]:
        start = self.lex.peek()
        if depth > MAX_DEPTH:
            self.lex.fail(start.at, f"loops nest more than {MAX_DEPTH} deep")
        self.lex.expect("{")
        out: list[Instruction] = []
        while not self.lex.accept("}"):
            out.append(self.instruction(depth))
        return tuple(out)

    def instruction(self, depth: int) -> Instruction:
        word = self.lex.known("an instruction or '}'", _INSTRUCTIONS)
        if word == "wait":
            return Wait(*self.semaphore())
        if word == "signal":
            token, index, count = self.semaphore()
            return Signal(token, index, count, self.after("core", self.expr, None))
        if word == "load":
            return self.load()
        if word == "store":
            return self.store()
        if word == "ring":
            return self.ring()
        if word == "compute":
            return self.compute()
        if word == "repeat":
            return Loop(None, self.expr(), self.block(depth + 1))
        name = self.fresh("loop", self.taken)
        self.lex.expect("<")
        count = self.expr()
        self.taken.add(name)
        self.variables[name] = None
        body = self.block(depth + 1)
        self.forget(name)
        return Loop(name, count, body)

    def semaphore(self) -> tuple[str, Expr, Expr]:
        token = self.lex.known("a token", self.token_names)
        index: Expr = ZERO
        if self.lex.accept("["):
            index = self.expr()
            self.lex.expect("]")
        return token, index, self.number("count", ONE)

    def load(self) -> Load:
        over, source, target = self.moved()
        multicast: tuple[str, ...] = ()
        if self.lex.accept("multicast"):
            digits = {digit.name: None for digit in self.grid}
            multicast = self.commas(lambda: self.lex.known("a digit", digits))
        gather = None
        if self.lex.accept("gather"):
            label, index, limit = self.by_index()
            gather = Gather(label, index, limit)
        return Load(over, source, target, multicast, gather)

    def store(self) -> Store:
        over, source, target = self.moved()
        if not self.lex.accept("scatter"):
            return Store(over, source, target)
        label, index, limit = self.by_index()
        self.lex.expect("first")
        first = self.expr()
        self.lex.expect("count")
        count = self.expr()
        scatter = Scatter(label, index, limit, first, count, self.lex.accept("add"))
        return Store(over, source, target, scatter)

    def by_index(self) -> tuple[str, Access, Expr]:
        label = self.label()
        self.lex.expect("by")
        index = self.access()
        self.lex.expect("limit")
        return label, index, self.expr()

    def ring(self) -> Ring:
        name = self.fresh("ring's variable", self.taken)
        self.lex.expect("<")
        count = self.expr()
        self.taken.add(name)
        self.variables[name] = None
        self.lex.expect("core")
        core = self.expr()
        over, source, target = self.moved()
        self.forget(name)
        return Ring(over, name, count, core, source, target, self.combine())

    def combine(self) -> Combine | None:
        if not self.lex.accept("combine"):
            return None
        return Combine(self.lex.known("a combine", tuple(item.value for item in Combine)))

    def compute(self) -> Compute:
        kind = Kind(self.lex.known("a kind of COMPUTE", tuple(kind.value for kind in Kind)))
        unit = self.unit
        if self.lex.accept("unit"):
            unit = Unit(self.lex.known("a unit", _UNITS))
        over = self.over()
        inputs, outputs = [], []
        while self.lex.accept("read"):
            inputs.append(self.access())
        while self.lex.accept("write"):
            outputs.append(self.access())
        body = self.body(len(inputs)) if self.lex.accept("body") else None
        combine = self.combine()
        accumulate = self.number("accumulate", ZERO)
        label = self.after("label", self.label, None)
        limit = self.number("limit", ZERO)
        descending = self.lex.accept("descending")
        return Compute(
            unit, kind, over, tuple(inputs), tuple(outputs), body, combine, accumulate, label,
            limit, descending, self.lex.accept("add"),
        )  # fmt: skip

    # --- tiles

    def over(self) -> tuple[Label, ...]:
        self.lex.expect("over")
        self.labels = {}
        if self.lex.peek().text == "nothing" and self.lex.peek(1).text != "=":
            self.lex.next()
            return ()
        return self.commas(self.one_label)

    def one_label(self) -> Label:
        name = self.fresh("label", self.labels)
        self.labels[name] = None
        self.lex.expect("=")
        start = self.expr()
        self.lex.expect("size")
        return Label(name, start, self.expr())

    def label(self) -> str:
        return self.lex.known("a label of this instruction", self.labels)

    def moved(self) -> tuple[tuple[Label, ...], Access, Access]:
        over = self.over()
        self.lex.expect("from")
        source = self.access()
        self.lex.expect("to")
        return over, source, self.access()

    def access(self) -> Access:
        value = self.lex.known("a value or an operand", self.value_names)
        self.lex.expect("[")
        index = self.listed(self.index, "]")
        self.lex.expect("at")
        place = self.lex.known("an operand or a buffer", self.place_names)
        slot = self.number("slot", ZERO)
        offset = self.number("offset", ZERO)
        strides: tuple[tuple[str, Expr], ...] = ()
        if self.lex.accept("step"):
            start = self.lex.peek()
            strides = self.commas(lambda: (self.label(), self.expr()))
            if len({name for name, _ in strides}) != len(strides):
                self.lex.fail(start.at, "a label has two steps")
        stick = self.after("stick", self.label, None)
        self.lex.expect("as")
        format = self.format()
        return Access(
            value, index, place, format, strides, stick, offset, slot, self.lex.accept("lanes")
        )

    def index(self) -> Index:
        if self.lex.accept("="):
            return Index(None, self.expr())
        return Index(self.label(), self.number("+", ZERO))

    def format(self) -> Format:
        return Format[self.lex.known("a format", tuple(Format.__members__))]

    # --- bodies

    def body(self, inputs: int) -> Body:
        begin = self.lex.peek()
        self.lex.expect("{")
        nodes: list[Node] = []
        while self.lex.peek().text == "%":
            start = self.lex.peek()
            if self.node_number() != len(nodes):
                self.lex.fail(start.at, f"expected %{len(nodes)}: nodes are numbered in order")
            self.lex.expect("=")
            nodes.append(self.node(len(nodes)))
            self.lex.expect(";")
        self.lex.expect("give")
        results = []
        while not self.lex.accept("}"):
            results.append(self.node_number(len(nodes)))
        fault = body_fault(nodes, results, inputs)
        if fault is not None:
            self.lex.fail(begin.at, f"body: {fault}")
        return Body(tuple(nodes), tuple(results))

    def node_number(self, count: int = 2**31) -> int:
        self.lex.expect("%")
        return self.lex.integer("an earlier node", 0, count - 1)

    def node(self, position: int) -> Node:
        op = BODY_OP[self.lex.known("an operation", BODY_OP)]
        self.lex.expect(".")
        letter = self.lex.known(f"a type of {op.name}", op.types)
        args = tuple(self.node_number(position) for _ in op.operands)
        value: int | float | str | None = None
        if op.immediate == "T" and letter == "f":
            value = self.lex.number("a number")
            value = math.nan if math.isnan(value) else value  # the one NaN: it equals itself
        elif op.immediate in ("T", "int", "input"):
            value = self.lex.integer("an integer")
        elif op.immediate == "symbol":
            symbols = {symbol.name: symbol for symbol in self.symbols}
            at = self.lex.peek().at
            value = self.lex.known("a symbol", symbols)
            fault = scalar_fault(symbols[value], letter)
            if fault is not None:
                self.lex.fail(at, fault)
        elif op.immediate == "label":
            value = self.label()
        elif op.immediate == "format":
            value = self.lex.known("a format", tuple(Format.__members__))
        elif op.immediate == "type":
            value = self.lex.known("a type", "filb")
        return Node(op.name, letter, args, value)
