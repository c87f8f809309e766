"""Programs with one thing changed, for trying what notices (not a test file).

`mutations(program, count, seed)` draws from everything in a program that a slip could get wrong:
tokens, addresses, slots, boxes, counts, cores, whole instructions. What a program computes (bodies,
constants, kinds) is left alone: another computation is another valid program.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TypeAlias, TypeVar

from openspyre.program.concrete import accesses
from openspyre.program.expr import Const, Expr, Var, binary, equal
from openspyre.program.model import (
    Access,
    Compute,
    Instruction,
    Label,
    Load,
    Loop,
    Program,
    Ring,
    Signal,
    Store,
    Unit,
    Wait,
)
from openspyre.program.ops import Kind

T = TypeVar("T")
Path: TypeAlias = tuple[int, ...]
Change: TypeAlias = Callable[[tuple[Instruction, ...], int], tuple[Instruction, ...]]


@dataclass(frozen=True)
class Mutation:
    """`kind` groups mutations of one sort, `what` says exactly which this is."""

    kind: str
    what: str
    program: Program


def mutations(program: Program, count: int, seed: int = 0) -> list[Mutation]:
    """`count` mutations (fewer if there are not so many), of as many kinds as there are."""
    rng = random.Random(seed)
    by_kind: dict[str, list[Mutation]] = {}
    for mutation in every(program):
        if mutation.program != program:
            by_kind.setdefault(mutation.kind, []).append(mutation)
    for found in by_kind.values():
        rng.shuffle(found)
    out: list[Mutation] = []
    while by_kind and len(out) < count:
        for kind in list(by_kind):
            if len(out) < count:
                out.append(by_kind[kind].pop())
            if not by_kind[kind]:
                del by_kind[kind]
    return out


def every(program: Program) -> Iterator[Mutation]:
    """All mutations of a program."""
    yield from _declarations(program)
    for unit, queue in program.queues.items():
        for path, instruction in walk(queue, ()):
            for kind, detail, change in _changes(program, instruction):
                changed = edit(queue, path, change)
                at = ".".join(map(str, path))
                yield Mutation(
                    kind,
                    f"{kind} {unit.value}[{at}] {type(instruction).__name__.lower()} {detail}",
                    with_queue(program, unit, changed),
                )
        yield from _dropped_cores(program, unit, queue)


def with_queue(program: Program, unit: Unit, queue: tuple[Instruction, ...]) -> Program:
    """The program with another queue of one unit."""
    return replace(program, queues={**program.queues, unit: queue})


def walk(body: tuple[Instruction, ...], path: Path) -> Iterator[tuple[Path, Instruction]]:
    """Every instruction of a queue with its path, loops before their bodies."""
    for position, instruction in enumerate(body):
        yield (*path, position), instruction
        if isinstance(instruction, Loop):
            yield from walk(instruction.body, (*path, position))


def edit(body: tuple[Instruction, ...], path: Path, change: Change) -> tuple[Instruction, ...]:
    """A queue with `change` applied at the instruction at `path`."""
    if len(path) == 1:
        return change(body, path[0])
    loop = body[path[0]]
    assert isinstance(loop, Loop)
    inner = replace(loop, body=edit(loop.body, path[1:], change))
    return (*body[: path[0]], inner, *body[path[0] + 1 :])


def put(new: Instruction) -> Change:
    """Another instruction in its place."""
    return lambda body, at: (*body[:at], new, *body[at + 1 :])


def drop(body: tuple[Instruction, ...], at: int) -> tuple[Instruction, ...]:
    """Without the instruction."""
    return (*body[:at], *body[at + 1 :])


def _double(body: tuple[Instruction, ...], at: int) -> tuple[Instruction, ...]:
    return (*body[: at + 1], *body[at:])


def _move(by: int) -> Change:
    def change(body: tuple[Instruction, ...], at: int) -> tuple[Instruction, ...]:
        to = at + by
        if not 0 <= to < len(body):
            return body
        rest = [*body[:at], *body[at + 1 :]]
        rest.insert(to, body[at])
        return tuple(rest)

    return change


# --- declarations


def _swapped(items: tuple[T, ...], at: int, new: T) -> tuple[T, ...]:
    return (*items[:at], new, *items[at + 1 :])


def _declarations(program: Program) -> Iterator[Mutation]:
    for at, token in enumerate(program.tokens):
        for by in (-1, 1):
            if token.initial + by >= 0:
                new = replace(token, initial=token.initial + by)
                yield Mutation(
                    "token initial",
                    f"token {token.name} starts at {new.initial}",
                    replace(program, tokens=_swapped(program.tokens, at, new)),
                )
    for at, let in enumerate(program.lets):
        for by in (-1, 1):
            changed = replace(let, value=let.value + by)
            yield Mutation(
                "let",
                f"let {let.name} {by:+}",
                replace(program, lets=_swapped(program.lets, at, changed)),
            )
    for at, digit in enumerate(program.grid):
        for size in (digit.size - 1, digit.size + 1):
            if size >= 1:
                smaller = replace(digit, size=size)
                yield Mutation(
                    "grid",
                    f"digit {digit.name} has size {size}",
                    replace(program, grid=_swapped(program.grid, at, smaller)),
                )
    for at, buffer in enumerate(program.buffers):
        for changed_buffer in (
            replace(buffer, base=buffer.base + 128),
            replace(buffer, base=max(0, buffer.base - 128)),
            replace(buffer, slot_bytes=max(128, buffer.slot_bytes - 128)),
        ):
            yield Mutation(
                "buffer",
                f"buffer {buffer.name} {changed_buffer}",
                replace(program, buffers=_swapped(program.buffers, at, changed_buffer)),
            )


def _dropped_cores(
    program: Program, unit: Unit, queue: tuple[Instruction, ...]
) -> Iterator[Mutation]:
    """One core's whole queue, or one core's part of a loop, does not run."""
    if program.cores < 2:
        return
    core = program.cores - 1
    runs = binary("-", 1, equal(Var("core"), core))
    yield Mutation(
        "drop core",
        f"drop core {core} of queue {unit.value}",
        with_queue(program, unit, (Loop(None, runs, queue),)),
    )


# --- instructions


def _changes(program: Program, old: Instruction) -> Iterator[tuple[str, str, Change]]:
    """(kind, detail, change) of one instruction."""
    if isinstance(old, Wait | Signal):
        name = type(old).__name__.lower()
        yield f"drop {name}", "", drop
        yield f"double {name}", "", _double
        for by in (-2, -1, 1, 2):
            yield f"move {name}", f"by {by}", _move(by)
        yield f"{name} count", "+1", put(replace(old, count=old.count + 1))
        count = next(token.count for token in program.tokens if token.name == old.token)
        if count > 1:
            yield f"{name} slot", "", put(replace(old, index=(old.index + 1) % count))
        for token in program.tokens:
            if token.name != old.token:
                yield f"{name} token", token.name, put(replace(old, token=token.name))
        if isinstance(old, Signal) and old.core is not None:
            other = (old.core + 1) % program.cores
            yield "signal core", "", put(replace(old, core=other))
        return
    yield "drop instruction", "", drop
    yield "double instruction", "", _double
    if isinstance(old, Loop):
        for by in (-1, 1):
            yield "loop count", f"{by:+}", put(replace(old, count=old.count + by))
        yield "loop count", "0", put(replace(old, count=Const(0)))
        return
    for by in (-1, 1):
        yield "move instruction", f"by {by}", _move(by)
    for at, label in enumerate(old.over):
        for detail, new in _labels(label):
            yield (
                "extent",
                f"{label.name} {detail}",
                put(replace(old, over=_swapped(old.over, at, new))),
            )
    yield from _tiles(program, old)
    if isinstance(old, Load) and old.multicast:
        for digit in old.multicast:
            rest = tuple(name for name in old.multicast if name != digit)
            yield "multicast", f"without {digit}", put(replace(old, multicast=rest))
    if isinstance(old, Load):
        for digit in (d.name for d in program.grid):
            if digit not in old.multicast:
                more = (*old.multicast, digit)
                yield "multicast", f"and {digit}", put(replace(old, multicast=more))
    if isinstance(old, Ring):
        yield "ring core", "+1", put(replace(old, core=(old.core + 1) % program.cores))
        for by in (-1, 1):
            yield "ring count", f"{by:+}", put(replace(old, count=old.count + by))
    if isinstance(old, Compute):
        flipped = equal(old.accumulate, 0)
        yield "accumulate", "flipped", put(replace(old, accumulate=flipped))
        yield "accumulate", "never", put(replace(old, accumulate=Const(0)))
        yield "accumulate", "always", put(replace(old, accumulate=Const(1)))


def _labels(label: Label) -> Iterator[tuple[str, Label]]:
    for by in (-1, 1, -64):
        yield f"size {by:+}", replace(label, size=label.size + by)
    yield "size halved", replace(label, size=binary("//", label.size, 2))
    for by in (-64, -1, 1, 64):
        yield f"start {by:+}", replace(label, start=label.start + by)


def _tiles(
    program: Program, old: Load | Store | Ring | Compute
) -> Iterator[tuple[str, str, Change]]:
    read, written = accesses(old)
    every_tile = [*read, *written]
    for number, access in enumerate(every_tile):
        for kind, detail, new in _one_tile(program, access):
            tiles = [*every_tile[:number], new, *every_tile[number + 1 :]]
            yield kind, f"tile {number} {detail}", put(_with_tiles(old, tiles))
    # Two inputs exchanged; of source and index it would be another program, that may run.
    moves = (Kind.GATHER, Kind.SCATTER)
    if isinstance(old, Compute) and len(old.inputs) > 1 and old.kind not in moves:
        tiles = [every_tile[1], every_tile[0], *every_tile[2:]]
        if tiles[0].format is tiles[1].format and old.body is None:
            yield "exchange inputs", "", put(_with_tiles(old, tiles))


def _one_tile(program: Program, access: Access) -> Iterator[tuple[str, str, Access]]:
    for by in (-128, 128):
        yield "shift offset", f"{by:+}", replace(access, offset=access.offset + by)
    buffer = next((b for b in program.buffers if b.name == access.place), None)
    if buffer is not None:
        if buffer.slots > 1:
            swapped = (access.slot + 1) % buffer.slots
            yield "swap slots", "", replace(access, slot=swapped)
            yield "swap slots", "always 0", replace(access, slot=Const(0))
        for other in program.buffers:
            if other.name != access.place:
                yield "other buffer", other.name, replace(access, place=other.name)
    for at, (label, stride) in enumerate(access.strides):
        for by in (-128, 128):
            pair = (label, stride + by)
            new = replace(access, strides=_swapped(access.strides, at, pair))
            yield "stride", f"{label} {by:+}", new
        if len(access.strides) > 1:
            next_at = (at + 1) % len(access.strides)
            pair = (label, access.strides[next_at][1])
            yield (
                "stride",
                f"{label} exchanged",
                replace(access, strides=_swapped(access.strides, at, pair)),
            )
    for at, index in enumerate(access.index):
        for step in (-1, 1, 64):
            offset: Expr = index.offset + step
            moved = replace(index, offset=offset)
            yield (
                "index",
                f"dim {at} {step:+}",
                replace(access, index=_swapped(access.index, at, moved)),
            )


def _with_tiles(old: Load | Store | Ring | Compute, tiles: list[Access]) -> Instruction:
    if isinstance(old, Compute):
        inputs = len(old.inputs)
        return replace(old, inputs=tuple(tiles[:inputs]), outputs=tuple(tiles[inputs:]))
    source, target = tiles[0], tiles[-1]
    if isinstance(old, Load) and old.gather is not None:
        gather = replace(old.gather, index=tiles[1])
        return replace(old, source=source, target=target, gather=gather)
    if isinstance(old, Store) and old.scatter is not None:
        scatter = replace(old.scatter, index=tiles[1])
        return replace(old, source=source, target=target, scatter=scatter)
    return replace(old, source=source, target=target)


# --- hostile numbers

EXTREMES = (
    0, 1, -1, 3, 127, 129, 1 << 20, -(1 << 31), 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63),
    1 << 64,
)  # fmt: skip


def with_hostile_number(program: Program, seed: int) -> Program:
    """The program with one number of it, anywhere, replaced by an extreme one."""
    rng = random.Random(seed)
    places: list[tuple[object, ...]] = []
    _numbers(program, (), places)
    new = _replaced(program, rng.choice(places), rng.choice(EXTREMES))
    assert isinstance(new, Program)
    return new


def _numbers(item: object, path: tuple[object, ...], out: list[tuple[object, ...]]) -> None:
    if isinstance(item, int) and not isinstance(item, bool):
        out.append(path)
    elif isinstance(item, tuple):
        for position, part in enumerate(item):
            _numbers(part, (*path, position), out)
    elif isinstance(item, dict):
        for key, part in item.items():
            _numbers(part, (*path, key), out)
    elif is_dataclass(item):
        for field in fields(item):
            _numbers(getattr(item, field.name), (*path, field.name), out)


def _replaced(item: object, path: tuple[object, ...], value: int) -> object:
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(item, tuple):
        assert isinstance(key, int)
        return (*item[:key], _replaced(item[key], rest, value), *item[key + 1 :])
    if isinstance(item, dict):
        return {**item, key: _replaced(item[key], rest, value)}
    assert is_dataclass(item) and not isinstance(item, type) and isinstance(key, str)
    return replace(item, **{key: _replaced(getattr(item, key), rest, value)})
