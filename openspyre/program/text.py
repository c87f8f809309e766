"""The text form of a Program: to read, to compare, and to write programs by hand.

`to_text` and `from_text` (its parser is `text_parser.py`) are exact inverses: nothing of a Program
is left out, and the text of a parsed text is the same text, once `to_text` has laid it out. The
grammar is in docs/program.md section 5.

Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from openspyre.program.binary_rules import MAX_DEPTH, ProgramFormatError, is_name
from openspyre.program.expr import Binary, Const, Expr, Var
from openspyre.program.model import (
    ZERO,
    Access,
    Body,
    Compute,
    Index,
    Instruction,
    Label,
    Load,
    Loop,
    Node,
    Program,
    Ring,
    Signal,
    Store,
    Symbol,
    Unit,
    Wait,
)
from openspyre.program.ops import BODY_OP
from openspyre.program.text_parser import ProgramTextError, from_text

__all__ = ["ProgramTextError", "from_text", "to_text"]

WIDTH = 100
INDENT = "  "


def to_text(program: Program) -> str:
    """The text of a program, ending in a newline.

    Raises ProgramFormatError for what has no text: names that are no identifiers, expressions more
    than 64 deep.
    """
    lines = [
        f"program {_quoted(program.name)} version {program.version}",
        f"card {_quoted(program.card.name)} cores {program.card.cores} lx {program.card.lx_bytes}",
        ("grid " + ", ".join(f"{_name(d.name)} {d.size}" for d in program.grid)).rstrip(),
        "",
    ]
    lines += [_symbol(symbol) for symbol in program.symbols]
    for operand in program.operands:
        parts = [
            f"operand {_name(operand.name)} {operand.role.value} {_name(operand.dtype)}"
            f" {operand.format.name} {_sizes(operand.shape)}"
        ]
        if operand.within is not None:
            parts.append(f"within {_sizes(operand.within)}")
        if operand.order is not None:
            parts.append(f"order [{', '.join(map(str, operand.order))}]")
        if operand.strides is not None:
            parts.append(f"strides {_sizes(operand.strides)}")
        if operand.stick >= 0:
            parts.append(f"stick {operand.stick}")
        if operand.offset:
            parts.append(f"offset {operand.offset}")
        lines.append(" ".join(parts))
    for value in program.values:
        reduced = f" reduced {_sizes(value.reduced)}" if value.reduced else ""
        lines.append(f"value {_name(value.name)} {_sizes(value.shape)}{reduced}")
    for buffer in program.buffers:
        slots = f" slots {buffer.slots}" if buffer.slots != 1 else ""
        lines.append(
            f"buffer {_name(buffer.name)} base {buffer.base} bytes {buffer.slot_bytes}{slots}"
        )
    for token in program.tokens:
        count = f" count {token.count}" if token.count != 1 else ""
        initial = f" initial {token.initial}" if token.initial else ""
        lines.append(f"token {_name(token.name)}{count}{initial}")
    lines += [f"let {_name(let.name)} = {_expr(let.value)}" for let in program.lets]
    for unit in Unit:
        if unit in program.queues:
            lines += ["", f"queue {unit.value} {{"]
            lines += _block(program.queues[unit], unit, INDENT, 1)
            lines.append("}")
    if program.data:
        lines += ["", "data {"]
        lines += [INDENT + row for row in _hex_rows(program.data)]
        lines.append("}")
    return "\n".join(lines) + "\n"


# --- words


def _name(text: str) -> str:
    if not is_name(text):
        raise ProgramFormatError(f"{text!r} is no name: use letters, digits and _")
    return text


def _quoted(text: str) -> str:
    out = []
    for char in text:
        if char in '"\\':
            out.append("\\" + char)
        elif char.isprintable():
            out.append(char)
        else:
            out.append(f"\\u{{{ord(char):x}}}")
    return f'"{"".join(out)}"'


def _check(node: Expr, depth: int = 1) -> None:
    if depth > MAX_DEPTH:
        raise ProgramFormatError(f"an expression is more than {MAX_DEPTH} deep")
    if isinstance(node, Var):
        _name(node.name)
    elif isinstance(node, Binary):
        _check(node.left, depth + 1)
        _check(node.right, depth + 1)


def _expr(node: Expr) -> str:
    _check(node)
    return str(node)


def _sizes(sizes: Sequence[Expr]) -> str:
    return f"[{', '.join(map(_expr, sizes))}]"


def _hex_rows(data: bytes) -> Iterable[str]:
    """32 bytes a row, in groups of four."""
    for start in range(0, len(data), 32):
        yield data[start : start + 32].hex(" ", -4)


def _symbol(symbol: Symbol) -> str:
    parts = [f"symbol {_name(symbol.name)} {symbol.kind.value}"]
    plain = Symbol(symbol.name, symbol.kind)
    for field in ("argument", "dim", "granularity", "minimum", "maximum"):
        value = getattr(symbol, field)
        if value != getattr(plain, field):
            parts.append(f"{field} {value}")
    return " ".join(parts)


# --- tiles


def _over(labels: Sequence[Label]) -> str:
    spans = (f"{_name(a.name)} = {_expr(a.start)} size {_expr(a.size)}" for a in labels)
    return f"over {', '.join(spans) or 'nothing'}"


def _index(index: Index) -> str:
    if index.label is None:
        return f"={_expr(index.offset)}"
    if index.offset == ZERO:
        return _name(index.label)
    return f"{_name(index.label)} + {_expr(index.offset)}"


def _access(access: Access) -> str:
    parts = [
        f"{_name(access.value)}[{', '.join(map(_index, access.index))}]",
        f"at {_name(access.place)}",
    ]
    if access.slot != ZERO:
        parts.append(f"slot {_expr(access.slot)}")
    if access.offset != ZERO:
        parts.append(f"offset {_expr(access.offset)}")
    if access.strides:
        steps = (f"{_name(label)} {_expr(stride)}" for label, stride in access.strides)
        parts.append(f"step {', '.join(steps)}")
    if access.stick is not None:
        parts.append(f"stick {_name(access.stick)}")
    parts.append(f"as {access.format.name}")
    if access.lanes:
        parts.append("lanes")
    return " ".join(parts)


# --- instructions


def _block(body: Sequence[Instruction], unit: Unit, indent: str, depth: int) -> list[str]:
    if depth > MAX_DEPTH + 1:
        raise ProgramFormatError(f"loops nest more than {MAX_DEPTH} deep")
    lines: list[str] = []
    for item in body:
        if isinstance(item, Loop):
            head = "repeat" if item.variable is None else f"loop {_name(item.variable)} <"
            lines.append(f"{indent}{head} {_expr(item.count)} {{")
            lines += _block(item.body, unit, indent + INDENT, depth + 1)
            lines.append(indent + "}")
        else:
            lines += _laid_out(_clauses(item, unit), indent)
    return lines


def _laid_out(clauses: Sequence[str | Sequence[str]], indent: str) -> list[str]:
    """One line if it fits, else a line for each clause. A clause of several lines (a body) is a
    sequence: head, lines inside, tail."""
    flat = [clause if isinstance(clause, str) else " ".join(clause) for clause in clauses]
    whole = indent + " ".join(flat)
    if len(whole) <= WIDTH:
        return [whole]
    lines = [indent + flat[0]]
    deeper = indent + INDENT
    for clause, text in zip(clauses[1:], flat[1:], strict=True):
        if isinstance(clause, str) or len(deeper + text) <= WIDTH:
            lines.append(deeper + text)
        else:
            lines.append(deeper + clause[0])
            lines += [deeper + INDENT + line for line in clause[1:-1]]
            lines.append(deeper + clause[-1])
    return lines


def _clauses(item: Instruction, unit: Unit) -> list[str | Sequence[str]]:
    if isinstance(item, Wait):
        return [f"wait {_semaphore(item.token, item.index, item.count)}"]
    if isinstance(item, Signal):
        core = "" if item.core is None else f" core {_expr(item.core)}"
        return [f"signal {_semaphore(item.token, item.index, item.count)}{core}"]
    if isinstance(item, Load):
        out: list[str | Sequence[str]] = [f"load {_over(item.over)}"]
        out += [f"from {_access(item.source)}", f"to {_access(item.target)}"]
        if item.multicast:
            out.append("multicast " + ", ".join(map(_name, item.multicast)))
        if item.gather is not None:
            out.append(f"gather {_name(item.gather.label)} by {_access(item.gather.index)}")
            out.append(f"limit {_expr(item.gather.limit)}")
        return out
    if isinstance(item, Store):
        out = [f"store {_over(item.over)}"]
        out += [f"from {_access(item.source)}", f"to {_access(item.target)}"]
        if item.scatter is not None:
            scatter = item.scatter
            out.append(f"scatter {_name(scatter.label)} by {_access(scatter.index)}")
            out.append(
                f"limit {_expr(scatter.limit)} first {_expr(scatter.first)}"
                f" count {_expr(scatter.count)}" + (" add" if scatter.add else "")
            )
        return out
    if isinstance(item, Ring):
        out = [f"ring {_name(item.variable)} < {_expr(item.count)} core {_expr(item.core)}"]
        out.append(_over(item.over))
        out += [f"from {_access(item.source)}", f"to {_access(item.target)}"]
        if item.combine is not None:
            out.append(f"combine {item.combine.value}")
        return out
    if isinstance(item, Compute):
        return _compute(item, unit)
    raise ProgramFormatError(f"{item!r} is no instruction")


def _semaphore(token: str, index: Expr, count: Expr) -> str:
    at = "" if index == ZERO else f"[{_expr(index)}]"
    return f"{_name(token)}{at}" + ("" if count == Const(1) else f" count {_expr(count)}")


def _compute(item: Compute, unit: Unit) -> list[str | Sequence[str]]:
    other = "" if item.unit is unit else f" unit {item.unit.value}"
    out: list[str | Sequence[str]] = [f"compute {item.kind.value}{other} {_over(item.over)}"]
    out += [f"read {_access(access)}" for access in item.inputs]
    out += [f"write {_access(access)}" for access in item.outputs]
    if item.body is not None:
        out.append(_body(item.body))
    tail = []
    if item.combine is not None:
        tail.append(f"combine {item.combine.value}")
    if item.accumulate != ZERO:
        tail.append(f"accumulate {_expr(item.accumulate)}")
    if item.label is not None:
        tail.append(f"label {_name(item.label)}")
    if item.limit != ZERO:
        tail.append(f"limit {_expr(item.limit)}")
    if item.descending:
        tail.append("descending")
    if item.add:
        tail.append("add")
    return [*out, " ".join(tail)] if tail else out


def _body(body: Body) -> list[str]:
    lines = [f"%{position} = {_node(node)};" for position, node in enumerate(body.nodes)]
    return ["body {", *lines, " ".join(["give", *(f"%{r}" for r in body.results)]), "}"]


def _node(node: Node) -> str:
    op = BODY_OP.get(node.op)
    if op is None:
        raise ProgramFormatError(f"no body operation {node.op!r}")
    words = [f"{node.op}.{node.type}", *(f"%{arg}" for arg in node.args)]
    value = node.immediate
    if op.immediate in ("symbol", "label", "format", "type"):
        words.append(_name(str(value)))
    elif op.immediate == "T" and node.type == "f":
        words.append(_float(float(value or 0)))
    elif op.immediate:
        words.append(str(int(value or 0)))
    return " ".join(words)


def _float(value: float) -> str:
    if math.isnan(value):
        return "nan"
    return ("-inf" if value < 0 else "inf") if math.isinf(value) else repr(value)
