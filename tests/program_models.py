"""Random Programs for tests of the written forms: every field takes every kind of value. They are
well formed (names exist, bodies are typed) but say nothing sensible: not for running."""

from __future__ import annotations

import math
import struct
from random import Random

from openspyre.formats import Format
from openspyre.program.expr import OPERATORS, Binary, Const, Expr, Var
from openspyre.program.model import (
    ONE,
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
from openspyre.program.ops import BODY_OPS, Combine, Kind

# Words of the grammar are names like any other.
_WORDS = """
x y z acc r c i j k size over min max count core_ from to at slot offset step stick lanes give body
limit label add first nothing f data queue let _ A9 for lambda in nan inf e1 x0
"""
NAMES = _WORDS.split()
INTEGERS = (0, 1, 2, 3, 63, 64, 128, 255, 16384, 2**31, 2**63 - 1, -1, -3, -128, -(2**63))


class Models:
    """Makes one Program from `random`."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.variables: list[str] = []
        self.labels: list[str] = []
        self.symbols: list[Symbol] = []
        self.digits: list[Digit] = []
        self.values: list[str] = []
        self.places: list[str] = []
        self.tokens: list[str] = []

    def coin(self, odds: float = 0.5) -> bool:
        return self.random.random() < odds

    def names(self, most: int, least: int = 0) -> list[str]:
        return self.random.sample(NAMES, self.random.randint(least, most))

    def integer(self) -> int:
        return self.random.choice(INTEGERS)

    def natural(self) -> int:
        return abs(self.integer()) % 2**63

    def expr(self, depth: int = 0) -> Expr:
        kind = self.random.randint(0, 3 if depth < 5 else 1)
        if kind == 0 or (kind == 1 and not self.variables):
            return Const(self.integer())
        if kind == 1:
            return Var(self.random.choice(self.variables))
        op = self.random.choice(OPERATORS)
        return Binary(op, self.expr(depth + 1), self.expr(depth + 1))

    def exprs(self, most: int = 6) -> tuple[Expr, ...]:
        return tuple(self.expr() for _ in range(self.random.randint(0, most)))

    def program(self) -> Program:
        r = self.random
        names = r.sample(NAMES, 9)
        self.digits = [Digit(name, r.randint(1, 5)) for name in names[: r.randint(0, 3)]]
        symbols = names[3 : 3 + r.randint(0, 3)]
        lets = names[6 : 6 + r.randint(0, 3)]
        operands: list[Operand] = []
        # Shapes may use symbols only.
        kinds = {name: r.choice(tuple(SymbolKind)) for name in symbols}
        self.variables = [name for name in symbols if kinds[name] is not SymbolKind.FLOAT]
        shared = self.names(8, 2)
        split = r.randint(1, len(shared))
        for name in shared[:split]:
            rank = r.randint(1, 4)
            shape = tuple(self.expr() for _ in range(rank))
            within = tuple(self.expr() for _ in range(rank)) if self.coin() else None
            order = tuple(r.randint(-1, 5) for _ in range(rank)) if self.coin() else None
            role = Role.IN if not operands else r.choice(tuple(Role))
            format = r.choice(tuple(Format))
            strides, stick = None, -1
            if self.coin():
                within = order = None
                strides = tuple(self.expr() for _ in range(rank))
                stick = r.randrange(-1, rank)
            operands.append(
                Operand(
                    name, role, "float16", format, shape, within, order, self.natural(), strides,
                    stick,
                )
            )  # fmt: skip
        arguments = [o for o in operands if o.role in (Role.IN, Role.OUT, Role.INOUT)]
        for name in symbols:
            argument = r.randrange(len(arguments))
            dim = r.randrange(len(arguments[argument].shape))
            self.symbols.append(
                Symbol(name, kinds[name], argument, dim, r.randint(1, 64), self.integer(),
                       self.integer())
                if kinds[name] is SymbolKind.DIMENSION or self.coin()
                else Symbol(name, kinds[name])
            )  # fmt: skip
        values = [Value(name, self.exprs(), self.exprs(2)) for name in shared[split:]]
        self.values = shared
        buffers = [
            Buffer(name, self.natural(), self.natural(), r.choice((1, 2, 300)))
            for name in self.names(4, 1) if name not in shared[:split]
        ]  # fmt: skip
        self.places = [*shared[:split], *(buffer.name for buffer in buffers)]
        tokens = [Token(n, r.choice((1, 2, 40)), r.choice((0, 1, 9))) for n in self.names(4, 1)]
        self.tokens = [token.name for token in tokens]
        self.variables += [digit.name for digit in self.digits] + ["core"]
        made = []
        for name in lets:
            made.append(Let(name, self.expr()))
            self.variables.append(name)
        taken = {*names, "core"}
        queues = {}
        for unit in Unit:
            body = self.block(unit, taken, 0)
            if body:
                queues[unit] = body
        return Program(
            name=r.choice(("", "a name", 'q"\\', "\u00b5\n\t", "x" * 90)),
            card=Card(r.choice(("spyre", "")), r.randint(125, 1024), r.choice((128, 2 << 20))),
            grid=tuple(self.digits),
            symbols=tuple(self.symbols),
            operands=tuple(operands),
            values=tuple(values),
            buffers=tuple(buffers),
            tokens=tuple(tokens),
            lets=tuple(made),
            queues=queues,
            data=r.randbytes(r.choice((0, 1, 128, 300))),
        )

    def block(self, unit: Unit, taken: set[str], depth: int) -> tuple[Instruction, ...]:
        count = self.random.randint(0, 3 if depth < 3 else 1)
        return tuple(self.instruction(unit, taken, depth) for _ in range(count))

    def fresh(self, taken: set[str]) -> str:
        free = [name for name in NAMES if name not in taken]
        return self.random.choice(free)

    def instruction(self, unit: Unit, taken: set[str], depth: int) -> Instruction:
        r = self.random
        kind = r.randint(0, 6 if depth < 3 else 5)
        if kind == 0:
            return Wait(r.choice(self.tokens), self.small(), self.small())
        if kind == 1:
            core = self.expr() if self.coin() else None
            return Signal(r.choice(self.tokens), self.small(), self.small(), core)
        if kind == 2:
            over = self.over()
            gather = None
            if self.labels and self.coin():
                gather = Gather(r.choice(self.labels), self.access(), self.expr())
            cast = [d.name for d in self.digits if self.coin()]
            return Load(over, self.access(), self.access(), tuple(cast), gather)
        if kind == 3:
            over = self.over()
            scatter = None
            if self.labels and self.coin():
                scatter = Scatter(
                    r.choice(self.labels), self.access(), self.expr(), self.expr(), self.expr(),
                    self.coin(),
                )  # fmt: skip
            return Store(over, self.access(), self.access(), scatter)
        if kind == 4:
            name, count = self.fresh(taken), self.expr()
            self.variables.append(name)
            combine = r.choice((None, *Combine))
            core, over = self.expr(), self.over()
            ring = Ring(over, name, count, core, self.access(), self.access(), combine)
            self.variables.pop()
            return ring
        if kind == 5:
            return self.compute(unit)
        count = self.expr()
        if self.coin(0.3):
            return Loop(None, count, self.block(unit, taken, depth + 1))
        name = self.fresh(taken)
        self.variables.append(name)
        body = self.block(unit, taken | {name}, depth + 1)
        self.variables.pop()
        return Loop(name, count, body)

    def small(self) -> Expr:
        return self.random.choice((ZERO, ONE, self.expr()))

    def over(self) -> tuple[Label, ...]:
        self.labels = self.names(5)
        return tuple(Label(name, self.expr(), self.expr()) for name in self.labels)

    def access(self) -> Access:
        r = self.random
        index = tuple(
            Index(r.choice((None, *self.labels)), self.small()) for _ in range(r.randint(0, 6))
        )
        strides = tuple((label, self.expr()) for label in self.labels if self.coin())
        return Access(
            r.choice(self.values), index, r.choice(self.places), r.choice(tuple(Format)), strides,
            r.choice((None, *self.labels)), self.small(), self.small(), self.coin(0.2),
        )  # fmt: skip

    def compute(self, unit: Unit) -> Compute:
        r = self.random
        over = self.over()
        inputs = tuple(self.access() for _ in range(r.randint(0, 3)))
        outputs = tuple(self.access() for _ in range(r.randint(0, 3)))
        return Compute(
            r.choice((unit, *Unit)), r.choice(tuple(Kind)), over, inputs, outputs,
            self.body(len(inputs)) if self.coin() else None, r.choice((None, *Combine)),
            self.small(), r.choice((None, *self.labels)), self.small(), self.coin(), self.coin(),
        )  # fmt: skip

    def body(self, inputs: int) -> Body:
        nodes: list[Node] = []
        letters: list[str] = []
        for _ in range(self.random.randint(0, 30)):
            op = self.random.choice(BODY_OPS)
            letter = self.random.choice(op.types)
            args = []
            for wanted in op.operands:
                asked = letter if wanted == "T" else wanted
                fitting = [n for n, has in enumerate(letters) if has == asked]
                if fitting:
                    args.append(self.random.choice(fitting))
            if len(args) < len(op.operands):
                continue
            immediate = self.immediate(op.name, op.immediate, letter, inputs)
            if op.immediate and immediate is None:
                continue
            nodes.append(Node(op.name, letter, tuple(args), immediate))
            letters.append(op.result_of(letter, immediate))
        picked = range(self.random.randint(0, 3)) if nodes else ()
        return Body(tuple(nodes), tuple(self.random.randrange(len(nodes)) for _ in picked))

    def immediate(self, op: str, wanted: str, letter: str, inputs: int) -> int | float | str | None:
        r = self.random
        if wanted == "T" and letter == "f":
            bits = r.choice((r.getrandbits(32), 0x80000000, 0x7F800000, 0xFF800000, 1, 0x3DCCCCCD))
            value: float = struct.unpack("<f", struct.pack("<I", bits))[0]
            return math.nan if math.isnan(value) else value
        if wanted == "T":
            low, high = {"i": (-(2**31), 2**31 - 1), "l": (-(2**63), 2**63 - 1), "b": (0, 1)}[
                letter
            ]
            return r.choice((low, high, 0, 1))
        if wanted == "int":
            return r.randint(0, 3)
        if wanted == "input":
            return r.randrange(inputs) if inputs else None
        if wanted == "symbol":
            fitting = [
                s.name for s in self.symbols if (s.kind is SymbolKind.FLOAT) == (letter == "f")
            ]
            return r.choice(fitting) if fitting else None
        if wanted == "label":
            return r.choice(self.labels) if self.labels else None
        if wanted == "format":
            return r.choice(tuple(Format)).name
        if wanted == "type":
            return r.choice("fi" if op == "bits" else "filb")
        return None
