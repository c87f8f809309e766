"""Small valid programs to break, ways to break one instruction, and `refused`: which rule of the
verifier a program breaks, and with which words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import mutations
import pytest

from examples.programs import matmul
from openspyre.program import Program, ProgramBuilder
from openspyre.program import body as f
from openspyre.program.body import BodyFunction
from openspyre.program.model import (
    Card,
    Compute,
    Instruction,
    Load,
    Loop,
    Ring,
    Signal,
    Store,
    Unit,
    Wait,
)
from openspyre.program.verify import VerifyError, verify

I = TypeVar("I", Load, Store, Ring, Compute, Wait, Signal, Loop)  # noqa: E741


def tiled(
    rows: int = 8, cols: int = 192, *, cores: int = 2, function: BodyFunction = f.exp
) -> Program:
    """y = f(x) in tiles of 2 rows and 128 columns, two slots each, cores split over the rows."""
    b = ProgramBuilder("tiled", {"c": cores})
    x, y = b.input("x", (rows, cols), "float16"), b.output("y", (rows, cols), "float16")
    xs = b.stream("xs", x, (2, 128))
    ys = b.stream("ys", y, (2, 128), users=["store"])
    boxes = b.boxes(r=(b.split("mine", rows, "c"), 2), s=(cols, 128))
    with b.queue("load"), boxes() as (over, turn), xs.fill(turn) as t:
        b.load(over, x["r", "s"], t["r", "s"])
    with b.queue("sfu"), boxes() as (over, turn), xs.use(turn) as t, ys.fill(turn) as u:
        b.map(over, u["r", "s"], function, t["r", "s"])
    with b.queue("store"), boxes() as (over, turn), ys.use(turn) as u:
        b.store(over, u["r", "s"], y["r", "s"])
    return b.build()


def product(**more: object) -> Program:
    """A matmul of four k tiles on a 2 x 2 grid with multicast."""
    options = {"grid": (2, 2), "tile": (8, 64, 64)}
    return matmul.build(16, 256, 128, **{**options, **more})  # type: ignore[arg-type]


def single(
    emit: Callable[[ProgramBuilder], None], *, cores: int = 1, card: Card | None = None
) -> Program:
    """A program whose queues `emit` fills."""
    b = ProgramBuilder("single", {"c": cores}, card=card)
    emit(b)
    return b.build()


def edited(
    program: Program,
    unit: Unit,
    kind: type[I],
    change: Callable[[I], Instruction | None],
    nth: int = 0,
) -> Program:
    """The program with its nth instruction of a kind in a queue replaced, or dropped for None."""
    queue = program.queues[unit]
    found = [(path, i) for path, i in mutations.walk(queue, ()) if isinstance(i, kind)]
    path, old = found[nth]
    new = change(old)
    how = mutations.drop if new is None else mutations.put(new)
    return mutations.with_queue(program, unit, mutations.edit(queue, path, how))


def without(old: object) -> None:
    return None


def refused(
    program: Program, rule: int, *texts: str, symbols: Mapping[str, int] | None = None
) -> str:
    """The program breaks this rule and the message says so with these words."""
    with pytest.raises(VerifyError) as caught:
        verify(program, symbols)
    message = str(caught.value)
    assert caught.value.rule == rule, message
    for text in texts:
        assert text in message, message
    return message
