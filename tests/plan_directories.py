"""Small SpyreCode directories for the tests of plans and launches."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from openspyre.program import Program, ProgramBuilder
from openspyre.program import body as f
from openspyre.program.body import BodyFunction
from openspyre.runtime.spyrecode import PROGRAM_BASE, Kernel, write_spyrecode

BASE = PROGRAM_BASE


def pointwise(
    name: str,
    function: BodyFunction,
    shape: Sequence[int] = (64,),
    *,
    inputs: int = 1,
    dtype: str = "float16",
    within: Sequence[int] | None = None,
    orders: Sequence[Sequence[int] | None] | None = None,
    in_place: bool = False,
    ints: Sequence[str] = (),
    floats: Sequence[str] = (),
    tile: int = 4096,
) -> Program:
    """out = function(x0, x1, ..) on one core. `within`: the layout that all operands lie in;
    `orders`: dim orders of the inputs, then of the output. `in_place`: x0 is read and written, and
    there is no output."""
    b = ProgramBuilder(name, {"c": 1})
    for symbol in ints:
        b.int_symbol(symbol, minimum=-(2**31), maximum=2**31)
    for symbol in floats:
        b.float_symbol(symbol)
    given = list(orders or [None] * (inputs + 1))
    xs = []
    for i in range(inputs):
        make = b.inout if in_place and i == 0 else b.input
        xs.append(make(f"x{i}", shape, dtype, within=within, order=given[i]))
    out = xs[0] if in_place else b.output("out", shape, dtype, within=within, order=given[-1])
    labels = tuple(f"d{i}" for i in range(len(shape)))
    sizes = tuple(min(tile, size) for size in shape)
    streams = [b.stream(f"s{i}", x, sizes) for i, x in enumerate(xs)]
    outs = b.stream("outs", out, sizes, users=["store"])
    boxes = b.boxes(
        **{label: (size, t) for label, size, t in zip(labels, shape, sizes, strict=True)}
    )
    with b.queue("load"), boxes() as (over, turn):
        for x, stream in zip(xs, streams, strict=True):
            with stream.fill(turn) as t:
                b.load(over, x[labels], t[labels])
    with b.queue("sfu"), boxes() as (over, turn), ExitStack() as stack:
        tiles = [stack.enter_context(stream.use(turn)) for stream in streams]
        target = stack.enter_context(outs.fill(turn))
        b.map(over, target[labels], function, *[t[labels] for t in tiles])
    with b.queue("store"), boxes() as (over, turn), outs.use(turn) as t:
        b.store(over, t[labels], out[labels])
    return b.build()


def absolute(size: int = 64) -> Program:
    return pointwise("abs", lambda x: abs(x), (size,))


def add_one(size: int = 64) -> Program:
    return pointwise("add_one", lambda x: x + 1.0, (size,))


def times(size: int = 64) -> Program:
    return pointwise("mul", lambda x, y: x * y, (size,), inputs=2)


def matrix_copy(
    rows: int, cols: int, *, maximum: int | None = None, granularity: int = 1
) -> Program:
    """out = x for [rows, cols]; with `maximum` the number of rows is a dimension symbol."""
    b = ProgramBuilder("copy", {"c": 2})
    height = (
        rows
        if maximum is None
        else b.dimension("rows", 0, 0, granularity=granularity, maximum=maximum)
    )
    x = b.input("x", (height, cols), "float16")
    out = b.output("out", (height, cols), "float16")
    mine = b.split("mine", height, "c")
    xs = b.stream("xs", x, (8, cols))
    outs = b.stream("outs", out, (8, cols), users=["store"])
    boxes = b.boxes(r=(mine, 8), c=cols)
    with b.queue("load"), boxes() as (over, turn), xs.fill(turn) as t:
        b.load(over, x["r", "c"], t["r", "c"])
    with (
        b.queue("sfu"),
        boxes() as (over, turn),
        xs.use(turn) as source,
        outs.fill(turn) as target,
    ):
        b.map(over, target["r", "c"], f.identity, source["r", "c"])
    with b.queue("store"), boxes() as (over, turn), outs.use(turn) as t:
        b.store(over, t["r", "c"], out["r", "c"])
    return b.build()


def through_scratch(size: int = 64) -> Program:
    """out = |x| by way of the dynamic region."""
    b = ProgramBuilder("scratch", {"c": 1})
    x = b.input("x", (size,), "float16")
    middle = b.scratch("middle", (size,), "float16")
    out = b.output("out", (size,), "float16")
    first = b.stream("first", x, (size,), users=["sfu"])
    second = b.stream("second", middle, (size,), users=["store"])
    third = b.stream("third", middle, (size,), users=["sfu"])
    fourth = b.stream("fourth", out, (size,), users=["store"])
    b.token("stored")
    over = {"i": size}
    with b.queue("load"):
        with first.fill() as t:
            b.load(over, x["i"], t["i"])
        b.wait("stored")
        with third.fill() as t:
            b.load(over, middle["i"], t["i"])
    with b.queue("sfu"):
        with first.use() as source, second.fill() as target:
            b.map(over, target["i"], lambda v: abs(v), source["i"])
        with third.use() as source, fourth.fill() as target:
            b.map(over, target["i"], f.identity, source["i"])
    with b.queue("store"):
        with second.use() as t:
            b.store(over, t["i"], middle["i"])
        b.signal("stored")
        with fourth.use() as t:
            b.store(over, t["i"], out["i"])
    return b.build()


def write(
    path: Path,
    *programs: Program,
    args: Sequence[Sequence[int]] | None = None,
    costs: Mapping[str | int, int] | None = None,
    correction: bool = True,
) -> Path:
    """A directory that runs `programs` in order; `args[i]`: the launch arguments of program i."""
    kernels = [
        Kernel(program, args=None if args is None else tuple(args[i]))
        for i, program in enumerate(programs)
    ]
    return write_spyrecode(path, kernels, costs=costs, correction=correction)


def change(directory: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    """Edits the directory's spyrecode.json in place."""
    file = directory / "spyrecode.json"
    code = json.loads(file.read_text())
    edit(code)
    file.write_text(json.dumps(code))
    return directory
