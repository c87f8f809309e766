"""Which expressions of a Program could leave 64 bits or divide by less than one.

`concrete.compiled` leaves those checks out. Interval arithmetic over the values that symbols,
digits, lets and loop variables take proves nearly every expression harmless; the others are
evaluated with checks at each task. Part of the verifier; imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TypeAlias

from openspyre.program.concrete import Instance
from openspyre.program.expr import HIGH, LOW, Binary, Const, Expr, Var
from openspyre.program.model import Instruction, Loop, Ring

Range: TypeAlias = tuple[int, int]


class _Unsafe(Exception):
    pass


def interval(node: Expr, ranges: Mapping[str, Range]) -> Range | None:
    """Bounds of an expression; None when it may fail for some values within the ranges."""
    try:
        return _interval(node, ranges)
    except _Unsafe:
        return None


def _interval(node: Expr, ranges: Mapping[str, Range]) -> Range:
    if isinstance(node, Const):
        return _within(node.value, node.value)
    if isinstance(node, Var):
        if node.name not in ranges:
            raise _Unsafe
        return ranges[node.name]
    assert isinstance(node, Binary)
    (a, b), (c, d) = _interval(node.left, ranges), _interval(node.right, ranges)
    op = node.op
    if op == "+":
        return _within(a + c, b + d)
    if op == "-":
        return _within(a - d, b - c)
    if op == "*":
        corners = (a * c, a * d, b * c, b * d)
        return _within(min(corners), max(corners))
    if op in ("//", "%"):
        if c < 1:
            raise _Unsafe
        if op == "%":
            return (a, b) if a >= 0 and b < c else (0, d - 1)
        corners = (a // c, a // d, b // c, b // d)
        return min(corners), max(corners)
    if op == "min":
        return min(a, c), min(b, d)
    if op == "max":
        return max(a, c), max(b, d)
    return 0, 1


def _within(low: int, high: int) -> Range:
    if low < LOW or high > HIGH:
        raise _Unsafe
    return low, high


def expressions(item: object) -> Iterator[Expr]:
    """Every expression inside an instruction but those of a loop's body."""
    if isinstance(item, Expr):
        yield item
    elif isinstance(item, tuple):
        for part in item:
            yield from expressions(part)
    elif is_dataclass(item):
        for field in fields(item):
            if not (isinstance(item, Loop) and field.name == "body"):
                yield from expressions(getattr(item, field.name))


def unsafe_expressions(instance: Instance) -> dict[int, tuple[Expr, ...]]:
    """By id of the instruction: those of its expressions that are not proven harmless."""
    cores = instance.core_values
    ranges: dict[str, Range] = {
        name: (min(values[name] for values in cores), max(values[name] for values in cores))
        for name in cores[0]
    }
    found: dict[int, tuple[Expr, ...]] = {}
    for queue in instance.program.queues.values():
        _scan(queue, ranges, found)
    return found


def _scan(
    body: tuple[Instruction, ...], ranges: dict[str, Range], found: dict[int, tuple[Expr, ...]]
) -> None:
    for instruction in body:
        if isinstance(instruction, Loop):
            count = interval(instruction.count, ranges)
            inner = dict(ranges)
            if instruction.variable is not None:
                inner[instruction.variable] = (0, max(0, (count[1] if count else HIGH) - 1))
            _scan(instruction.body, inner, found)
            continue
        scope = ranges
        if isinstance(instruction, Ring):
            count = interval(instruction.count, ranges)
            scope = {**ranges, instruction.variable: (0, max(0, (count[1] if count else HIGH) - 1))}
        bad = tuple(e for e in expressions(instruction) if interval(e, scope) is None)
        if bad:
            found[id(instruction)] = bad


def check(unsafe: tuple[Expr, ...], values: Mapping[str, int]) -> None:
    """Evaluates them with checks. Raises ExprError."""
    for node in unsafe:
        node.evaluate(values)
