"""Random valid programs: `random_program(seed)` gives one, with valid inputs, and no reference.

They are what the native machine is compared with the reference executor on, byte for byte: all
kinds, all body operations, all formats, ragged tiles, unequal shares, broadcasts, other dim orders,
strides and sparse operands, 1 to 3 slots, scratch and const operands, the ring, grids of 1 to 8
cores. Inputs hold infinities, NaN and zeros of both signs now and then. One seed is one program for
good only as long as this file and random_parts.py stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
from program_zoo import Arrays, Case, Rng
from random_parts import (
    DTYPES,
    EXACT,
    FLOATS,
    ROUNDED,
    Space,
    array,
    chance,
    finish,
    formats_unit,
    number,
    orders,
    pick,
    random_body,
    random_space,
    result_type,
    some_strides,
    start,
)

from examples.programs import columns, indexing, ksplit, matmul, rows, sorting
from openspyre.formats import Format, Mode, format_for
from openspyre.program import Span, Tensor, Tile
from openspyre.program.boxes import Ref
from openspyre.program.expr import Expr, Var, equal, expr
from openspyre.program.ops import Combine, Kind, RegisterType, register_of


def pointwise(rng: Rng) -> Case:
    """One or two MAPs over rank 1 to 4 with broadcasts; also casts, transposes and random bits."""
    dtypes = [pick(rng, DTYPES) for _ in range(number(rng, 0, 4))]
    out_dtype = pick(rng, DTYPES)
    space = random_space(rng, number(rng, 1, 4), formats_unit([*dtypes, out_dtype]))
    b, scalars = start(rng, "pointwise", space.grid)
    labels = list(space.sizes)
    tensors: list[tuple[Tensor, list[str]]] = []
    shapes = {}
    symbolic: dict[str, Expr] = {}
    if chance(rng, 0.2):  # the first dim is known at launch; `out` always has it
        highest = space.sizes["d0"]
        symbolic["d0"] = b.dimension("height", len(dtypes), 0, maximum=highest)

    def sizes_of(mine: Sequence[str]) -> list[Expr]:
        return [symbolic.get(label, expr(space.sizes[label])) for label in mine]

    def part_of(sizes: Sequence[Expr]) -> list[Expr] | None:
        """Now and then an operand is the corner of a larger tensor."""
        return [size + number(rng, 0, 70) for size in sizes] if chance(rng, 0.15) else None

    for i, dtype in enumerate(dtypes):
        mine = [label for label in labels if not chance(rng, 0.15)]
        shape = tuple(space.sizes[label] for label in mine)
        sizes = sizes_of(mine)
        order = orders(rng, mine, space)
        if chance(rng, 0.25):
            format = format_for(dtype, b.mode)
            strides, on = some_strides(rng, sizes, order, format, False)
            x = b.input(f"x{i}", sizes, dtype, strides=strides, stick=on)
        else:
            x = b.input(f"x{i}", sizes, dtype, order=order, within=part_of(sizes))
        tensors.append((x, mine))
        shapes[f"x{i}"] = (shape, dtype)
    full = sizes_of(labels)
    order = orders(rng, labels, space)
    within = part_of(full)
    if within is not None:  # what follows the last element in its stick must not be overwritten
        stick = (order or tuple(range(len(full))))[-1]
        within = [
            size if dim == stick else w
            for dim, (w, size) in enumerate(zip(within, full, strict=True))
        ]
    if chance(rng, 0.25):
        strides, on = some_strides(rng, full, order, format_for(out_dtype, b.mode), True)
        out = b.output("out", full, out_dtype, strides=strides, stick=on)
    else:
        out = b.output("out", full, out_dtype, order=order, within=within)
    streams = [
        b.stream(f"{x.name}s", x, space.tile(mine), slots=number(rng, 1, 3)) for x, mine in tensors
    ]
    outs = b.stream("outs", out, space.tile(labels), users=["store"], slots=number(rng, 1, 3))
    middle: Tile | None = None
    if chance(rng, 0.4):
        format = [*ROUNDED, *EXACT.values()][number(rng, 0, 6)]
        if format.elements_per_stick <= space.unit:
            value = b.value("middle", full, format=format)
            on = next(i for i, label in enumerate(labels) if space.sizes[label] > 8)
            middle = b.lx("middle_lx", value, space.tile(labels), stick=on)
    boxes = space.boxes(b, symbolic=symbolic)

    if tensors:
        with b.queue("load"), boxes() as (over, turn):
            for (x, mine), stream in zip(tensors, streams, strict=True):
                with stream.fill(turn) as t:
                    labelled = {label: over[label] for label in mine}
                    b.load(labelled, x[tuple(mine)], t[tuple(mine)])
    with b.queue("sfu"), boxes() as (over, turn), ExitStack() as held:
        tiles = [held.enter_context(stream.use(turn)) for stream in streams]
        target = held.enter_context(outs.fill(turn))
        sources = [t[tuple(mine)] for t, (_, mine) in zip(tiles, tensors, strict=True)]
        if middle is not None:
            body = random_body(rng, [result_type(rng, middle.format)], labels, scalars)
            b.map(over, middle[tuple(labels)], body, *sources)
            sources = [middle[tuple(labels)], *sources[: number(rng, 0, 3)]]
        body = random_body(rng, [result_type(rng, out.format)], labels, scalars)
        b.map(over, target[tuple(labels)], body, *sources)
    with b.queue("store"), boxes() as (over, turn), outs.use(turn) as t:
        b.store(over, t[tuple(labels)], out[tuple(labels)])
    case = finish(b, shapes)
    given = {"height": space.sizes["d0"]} if symbolic else {}
    return replace(case, symbols={**case.symbols, **given})


def in_place(rng: Rng) -> Case:
    """A MAP over its own input tile, and an inout operand."""
    dtype = pick(rng, DTYPES)
    space = random_space(rng, 2, formats_unit([dtype]))
    b, scalars = start(rng, "in_place", space.grid)
    labels = list(space.sizes)
    order, sizes = orders(rng, labels, space), tuple(space.sizes.values())
    if chance(rng, 0.25):
        format, whole = format_for(dtype, b.mode), [expr(size) for size in sizes]
        strides, on = some_strides(rng, whole, order, format, True)
        x = b.inout("x", sizes, dtype, strides=strides, stick=on)
    else:
        x = b.inout("x", sizes, dtype, order=order)
    slots = number(rng, 1, 3)
    place = b.lx("place", x, space.tile(labels), slots=slots)
    free, loaded, done = b.token("free", slots, 1), b.token("loaded", slots), b.token("done", slots)
    boxes = space.boxes(b)
    key = tuple(labels)
    with b.queue("load"), boxes() as (over, turn):
        t = place.at(turn)
        b.wait(free, t.slot)
        b.load(over, x[key], t[key])
        b.signal(loaded, t.slot)
    with b.queue("sfu"), boxes() as (over, turn):
        t = place.at(turn)
        b.wait(loaded, t.slot)
        body = random_body(rng, [result_type(rng, x.format)], labels, scalars)
        b.map(over, t[key], body, t[key])
        b.signal(done, t.slot)
    with b.queue("store"), boxes() as (over, turn):
        t = place.at(turn)
        b.wait(done, t.slot)
        b.store(over, t[key], x[key])
        b.signal(free, t.slot)
    return finish(b, {"x": (tuple(space.sizes.values()), dtype)})


def _reduction_types(rng: Rng, combine: Combine) -> tuple[str, list[Format]]:
    """The body's result type, and the formats of the outputs."""
    if combine in (Combine.ANY, Combine.ALL):
        return "b", [Format.IEEE_INT32]
    if combine is Combine.WELFORD:
        return "f", [Format.IEEE_FP32] * 3
    type_ = pick(rng, "ffil")
    if combine in (Combine.ARGMAX, Combine.ARGMIN):
        return type_, [EXACT[type_], Format.IEEE_INT64]
    return type_, [EXACT[type_]]


def reduction(rng: Rng) -> Case:
    """REDUCE along or across the stick in parts, FOLD, then either the result or a broadcast of it
    back over the input."""
    combine = list(Combine)[number(rng, 0, len(Combine) - 1)]
    rank = number(rng, 1, 3)
    dtype, out_dtype = pick(rng, DTYPES), pick(rng, DTYPES)
    type_, formats = _reduction_types(rng, combine)
    unit = max(formats_unit([dtype, out_dtype]), *(x.elements_per_stick for x in formats))
    names = [f"d{i}" for i in range(rank)]
    arg = combine in (Combine.ARGMAX, Combine.ARGMIN)
    count = 1 if arg else number(rng, 1, rank)
    reduced = sorted(str(x) for x in rng.choice(names, count, replace=False))
    space = random_space(rng, rank, unit, whole=reduced)
    kept = [label for label in names if label not in reduced]
    b, scalars = start(rng, f"reduce_{combine.value}", space.grid)
    full = tuple(space.sizes.values())
    x = b.input("x", full, dtype, order=_stick_last(space, names))
    back = chance(rng, 0.5)
    out_labels = names if back else kept
    out_shape = tuple(space.sizes[label] for label in out_labels)
    out = b.output("out", out_shape, out_dtype, order=_stick_last(space, out_labels))
    xs = b.stream("xs", x, space.tile(names, reduced), slots=number(rng, 1, 2))
    outs = b.stream(
        "outs", out, space.tile(out_labels, reduced), users=["store"], slots=number(rng, 1, 2)
    )
    lane = names[x.stick]
    kept_shape = [space.sizes[label] for label in kept]
    reduced_shape = [space.sizes[label] for label in reduced]
    parts, results = [], []
    for i, format in enumerate(formats):
        value = b.value(f"part{i}", kept_shape, reduced=reduced_shape, format=format)
        if lane in reduced:
            parts.append(b.lx(f"part{i}_lx", value, space.tile(kept), lanes=True))
            folded = b.value(f"result{i}", kept_shape, format=format)
            results.append(b.lx(f"result{i}_lx", folded, space.tile(kept), stick=None))
        else:
            on = kept.index(lane)
            parts.append(b.lx(f"part{i}_lx", value, space.tile(kept), stick=on))
            results.append(parts[-1])
    boxes = space.boxes(b, reduced)
    key, kept_key, out_key = tuple(names), tuple(kept), tuple(out_labels)
    # Parts only along the first reduced label: the indices must come in ascending order.
    first = reduced[0]
    chunk = space.tiles[first] if space.sizes[first] > 8 or first != lane else space.sizes[first]

    with b.queue("load"), boxes() as (over, turn), xs.fill(turn) as t:
        b.load(over, x[key], t[key])
    with b.queue("sfu"), boxes() as (over, turn), xs.use(turn) as t:
        with b.tiles("part", space.sizes[first], chunk) as piece:
            origin = [piece.start if label == first else 0 for label in names]
            b.reduce(
                {**over, first: piece},
                combine,
                [part[kept_key] for part in parts],
                random_body(rng, [type_], names, scalars, 4),
                t.part(*origin)[key],
                accumulate=piece.step,
            )
        small = {label: over[label] for label in kept}
        if lane in reduced:
            b.fold(small, combine, [r[kept_key] for r in results], [p[kept_key] for p in parts])
        with outs.fill(turn) as target:
            sources: list[Ref] = [r[kept_key] for r in results]
            if back:
                sources.append(t[key])
            body = random_body(rng, [result_type(rng, out.format)], out_labels, scalars)
            wanted = {label: over[label] for label in out_labels}
            b.map(wanted, target[out_key], body, *sources)
    with b.queue("store"), boxes() as (over, turn), outs.use(turn) as t:
        b.store({label: over[label] for label in out_labels}, t[out_key], out[out_key])
    return finish(b, {"x": (full, dtype)})


def _stick_last(space: Space, labels: Sequence[str]) -> tuple[int, ...]:
    """A dim order with the last label above 8 on the stick; sparse when there is none."""
    large = [i for i, label in enumerate(labels) if space.sizes[label] > 8]
    if not large:
        return (*range(len(labels)), -1)
    return (*(i for i in range(len(labels)) if i != large[-1]), large[-1])


def product(rng: Rng) -> Case:
    """Matrix products with random tiles and splits, plain, batched, or with k split on the ring."""
    mode = Mode.DL16 if chance(rng, 0.6) else Mode.IEEE
    dtype = pick(rng, ["float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2", "int8"])
    m, k, n = number(rng, 1, 20), number(rng, 1, 300), number(rng, 1, 250)
    tile = (number(rng, 1, 16), 128 * number(rng, 1, 2), 128 * number(rng, 1, 2))
    how = number(rng, 0, 3)
    shapes: dict[str, tuple[tuple[int, ...], str]] = {"a": ((m, k), dtype), "b": ((k, n), dtype)}
    symbols: dict[str, int | float] = {}
    if how == 0 and dtype != "int8":
        k = max(k, 65)  # every part of k must have some: 8-bit formats have 128 to a stick
        if format_for(dtype, mode).bytes == 1:
            k = max(k, 129)
        shapes = {"a": ((m, k), dtype), "b": ((k, n), dtype)}
        grid = (number(rng, 1, 3), number(rng, 1, 2))
        grid = (grid[0], 2) if chance(rng, 0.5) else grid
        program = ksplit.build(m, k, n, grid=grid, tile=tile, dtype=dtype, mode=mode)
    elif how == 1 and dtype != "int8":
        batch = number(rng, 1, 5)
        m, k, n = min(m, 6), min(k, 150), min(n, 150)
        shapes = {"a": ((batch, m, k), dtype), "b": ((batch, k, n), dtype)}
        program = matmul.batched(
            batch,
            m,
            k,
            n,
            cores=number(rng, 1, 4),
            tile=tile,
            together=number(rng, 1, 3),
            dtype=dtype,
            mode=mode,
        )
    else:
        outs = ["float16", "float32", "bfloat16", "int32", "float8_e5m2"]
        out_dtype = pick(rng, outs)
        register = register_of(format_for(out_dtype, mode))
        assert isinstance(register, RegisterType)
        program = matmul.build(
            m,
            k,
            n,
            grid=(number(rng, 1, 4), number(rng, 1, 2)),
            tile=tile,
            dtype=dtype,
            out_dtype=out_dtype,
            epilogue=random_body(rng, [register.value], ["r", "s"], {"scale": "f"}, 4),
            floats=("scale",),
            mode=mode,
        )
        symbols = {"scale": 0.125}

    def make_inputs(draw: Rng) -> Arrays:
        return {name: array(draw, shape, kind) for name, (shape, kind) in shapes.items()}

    return Case(program, make_inputs, lambda _: {}, symbols=symbols)


def scan(rng: Rng) -> Case:
    """SCAN along or across the stick with a carry, in parts."""
    dtype, out_dtype = pick(rng, DTYPES), pick(rng, DTYPES)
    register = register_of(format_for(dtype))
    assert register is not None
    letter = register.value
    if register_of(format_for(out_dtype)) is not register:
        out_dtype = dtype
    unit = formats_unit([dtype, out_dtype])
    space = random_space(rng, 2, unit)
    names = list(space.sizes)
    along = pick(rng, names)
    space = Space(
        space.sizes, {k: v for k, v in space.grid.items() if k != f"at_{along}"} or {"only": 1},
        space.tiles, unit,
    )  # fmt: skip
    b, _ = start(rng, "scan", space.grid)
    b.mode = Mode.DL16
    full = tuple(space.sizes.values())
    order = _stick_last(space, names)
    x, y = b.input("x", full, dtype, order=order), b.output("y", full, out_dtype, order=order)
    other = next(label for label in names if label != along)
    carry = b.value("carry", (space.sizes[other],), reduced=(space.sizes[along],),
                    format=EXACT[letter])  # fmt: skip
    xs = b.stream("xs", x, space.tile(names), slots=number(rng, 1, 3))
    ys = b.stream("ys", y, space.tile(names), users=["store"], slots=number(rng, 1, 3))
    on = -1 if names[x.stick] == other and x.stick >= 0 else None
    carry_lx = b.lx("carry_lx", carry, space.tile([other]), stick=on)
    ranked = Space({other: space.sizes[other], along: space.sizes[along]}, space.grid,
                   space.tiles, unit)  # fmt: skip
    boxes = ranked.boxes(b)  # `along` innermost: the carry belongs to one tile of `other`
    combine = (Combine.SUM, Combine.PROD, Combine.MAX, Combine.MIN)[number(rng, 0, 3)]
    with b.queue("load"), boxes() as (over, turn), xs.fill(turn) as t:
        b.load(over, x[tuple(names)], t[tuple(names)])
    with b.queue("sfu"), boxes() as (over, turn), xs.use(turn) as xt, ys.fill(turn) as yt:
        b.compute(
            Kind.SCAN,
            over,
            (xt[tuple(names)], carry_lx[other]),
            (yt[tuple(names)], carry_lx[other]),
            combine=combine,
            label=along,
            accumulate=over[along].step,
        )
    with b.queue("store"), boxes() as (over, turn), ys.use(turn) as t:
        b.store(over, t[tuple(names)], y[tuple(names)])
    return finish(b, {"x": (full, dtype)})


def indexed(rng: Rng) -> Case:
    """LOAD, STORE and COMPUTE by index."""
    how = number(rng, 0, 3)
    m, n, many = number(rng, 1, 20), number(rng, 1, 150), number(rng, 1, 60)
    cores, tile = number(rng, 1, 4), number(rng, 1, 4)
    mode = Mode.DL16 if chance(rng, 0.7) else Mode.IEEE
    if how == 0:
        # A row may be moved whatever it is: float64 is a host format.
        dtype, index_dtype = pick(rng, [*DTYPES, "float64"]), pick(rng, ["int32", "int64"])
        program = indexing.embedding(many, n, m, dtype=dtype, index_dtype=index_dtype, cores=cores,
                                     tile_rows=32 * number(rng, 1, 2), mode=mode)  # fmt: skip
        return Case(
            program,
            lambda draw: {
                "index": draw.integers(0, m, many).astype(index_dtype),
                "table": array(draw, (m, n), dtype),
            },
            lambda _: {},
        )
    if how == 1:
        dtype = pick(rng, DTYPES)
        program = indexing.index_add(m, n, many, dtype=dtype, cores=cores, tile_rows=16 * tile,
                                     mode=mode)  # fmt: skip
        return Case(
            program,
            lambda draw: {
                "target": array(draw, (m, n), dtype),
                "index": draw.integers(0, m, many),
                "x": array(draw, (many, n), dtype),
            },
            lambda _: {},
        )
    build = indexing.take_along if how == 2 else indexing.scatter_add
    dtype = pick(rng, DTYPES)
    m = min(m, 8)
    program = build(m, n, dtype=dtype, cores=cores, tile_rows=tile, mode=mode)

    def make_inputs(draw: Rng) -> Arrays:
        given = {
            "index": draw.integers(0, n, (m, n)).astype(np.int32),
            "x": array(draw, (m, n), dtype),
        }
        return {**given, "target": array(draw, (m, n), dtype)} if how == 3 else given

    return Case(program, make_inputs, lambda _: {})


def ordered(rng: Rng) -> Case:
    """Sort, merge, topk, argmax in parts, transposes and column sums."""
    how = number(rng, 0, 4)
    dtype = pick(rng, DTYPES)
    if dtype == "bool":
        dtype = "float32"
    m, n, cores = number(rng, 1, 9), number(rng, 1, 300), number(rng, 1, 4)
    if how == 0:
        n = 2 * (half := 128 * number(rng, 1, 2))
        program = sorting.sort_rows(
            m, half, dtype=dtype, cores=cores, descending=chance(rng, 0.5), tile_rows=2
        )
    elif how == 1:
        k = number(rng, 1, min(n, 20))
        tile = (number(rng, 1, 4), 128)
        program = sorting.topk(
            m, n, k, dtype=dtype, cores=cores, largest=chance(rng, 0.5), tile=tile
        )
    elif how == 2:
        m = number(rng, 1, 60)
        program = rows.argmax(m, min(n, 100), dtype=pick(rng, FLOATS[:3]), cores=cores,
                              tile=(16, 64))  # fmt: skip
        n, dtype = min(n, 100), program.operands[0].dtype
    elif how == 3:
        m = number(rng, 1, 140)
        n = min(n, 150)
        program = columns.transpose(m, n, dtype=dtype, cores=cores, tile=(128, 128))
    else:
        dtype = pick(rng, FLOATS)
        program = columns.column_sum(m, n, dtype=dtype, cores=cores, tile=(3, 128))

    return Case(program, lambda draw: {"x": array(draw, (m, n), dtype)}, lambda _: {})


def ring_of_tiles(rng: Rng) -> Case:
    """RING: every core takes a neighbour's tile, or all tiles, or all combined."""
    cores, height = number(rng, 1, 6), number(rng, 1, 4)
    wide = number(rng, 1, 130)
    dtype = pick(rng, ["float16", "float32", "int32", "int64", "bool"])
    exact = Format.IEEE_FP32 if dtype in ("float16", "bool") else format_for(dtype)
    letter = {v: k for k, v in EXACT.items()}[exact]
    b, scalars = start(rng, "ring", {"me": cores})
    high = cores * height
    x = b.input("x", (high, wide), dtype)
    how = number(rng, 0, 2)
    combines = [Combine.SUM, Combine.PROD, Combine.MAX, Combine.MIN]
    if exact is Format.IEEE_INT32:
        combines += [Combine.ANY, Combine.ALL]
    combine = combines[number(rng, 0, len(combines) - 1)]
    out_shape = (height, wide) if how == 2 else (high, wide)
    y = b.output("y", out_shape, dtype)
    kept = b.value("kept", (height, wide) if how == 2 else (high, wide),
                   reduced=(cores,) if how == 2 else (), format=exact)  # fmt: skip
    x_in = b.stream("x_in", x, (height, wide), slots=1)
    mine = b.lx("mine", kept, (height, wide))
    got = b.lx("got", kept, (high if how == 1 else height, wide))
    outs = b.stream("outs", y, (height, wide), users=["store"], slots=1)
    ready, pulled, there = b.token("ready", cores), b.token("pulled", cores), b.token("there")
    step = number(rng, 1, cores)
    own = Span(Var("me") * height, b.let("own_rows", height))
    other = b.let("other", (Var("me") + step) % cores)
    source = Var("from_core")

    def everyone(token: str, send: bool) -> None:
        with b.loop("q", cores) as q:
            if send:
                b.signal(token, Var("me"), core=q)
            else:
                b.wait(token, q)

    with b.queue("load"), x_in.fill() as t:
        b.load({"r": own, "c": wide}, x["r", "c"], t["r", "c"])
    with b.queue("sfu"):
        truth = how == 2 and combine in (Combine.ANY, Combine.ALL)
        body = random_body(rng, ["b" if truth else letter], ["c"], scalars, 4)
        with x_in.use() as t:
            if how == 2:  # parts of one result: reduced over the core's number
                b.reduce(
                    {"p": (Var("me"), 1), "r": height, "c": wide},
                    combine,
                    mine["r", "c"],
                    body,
                    t.of(x)[("r", Var("me") * height), "c"],
                )
            else:
                b.map({"r": own, "c": wide}, mine["r", "c"], body, t["r", "c"])
        everyone(ready, True)
        everyone(pulled, False)
        b.wait(there)
        with outs.fill() as t:
            last = random_body(rng, [result_type(rng, y.format)], ["r", "c"], scalars, 4)
            if how == 0:
                shift = (other - Var("me")) * height
                sources = [mine["r", "c"], got[("r", shift), "c"]]
            elif how == 1:
                sources = [mine["r", "c"], got.part(Var("me") * height, 0)["r", "c"], got[0, "c"]]
            else:
                sources = [got["r", "c"]]
            rows_out: Span | int = own
            if how == 2:
                rows_out = height
            b.map({"r": rows_out, "c": wide}, t["r", "c"], last, *sources)
    with b.queue("ring"):
        everyone(ready, False)
        if how == 0:
            theirs = Span(other * height, Var("own_rows"))
            b.ring({"r": theirs, "c": wide}, mine["r", "c"], got["r", "c"], core=other)
        elif how == 1:
            b.ring(
                {"r": height, "c": wide},
                mine[("r", source * height), "c"],
                got.part(source * height, 0)[("r", source * height), "c"],
                core=source,
                count=cores,
                variable="from_core",
            )
        else:
            b.ring(
                {"r": height, "c": wide},
                mine["r", "c"],
                got["r", "c"],
                core=source,
                count=cores,
                variable="from_core",
                combine=combine,
            )
        b.signal(there)
        everyone(pulled, True)
    with b.queue("store"), outs.use() as t:
        if how == 2:  # all cores have the result, one stores it
            with b.when(_is_zero("me")):
                b.store({"r": height, "c": wide}, t["r", "c"], y["r", "c"])
        else:
            b.store({"r": own, "c": wide}, t["r", "c"], y["r", "c"])
    return finish(b, {"x": ((high, wide), dtype)})


def _is_zero(digit: str) -> Expr:
    return equal(Var(digit), 0)


def through_scratch(rng: Rng) -> Case:
    """Two passes with all cores' results in scratch between them, and a const operand."""
    dtype, out_dtype, kept = pick(rng, DTYPES), pick(rng, DTYPES), pick(rng, DTYPES)
    unit = formats_unit([dtype, out_dtype, kept])
    high, wide, cores = number(rng, 1, 12), number(rng, 1, 200), number(rng, 1, 6)
    b, scalars = start(rng, "scratch", {"me": cores})
    x = b.input("x", (high, wide), dtype)
    y = b.output("y", (high, wide), out_dtype)
    s = b.scratch("s", (high, wide), kept)
    sticks = -(-wide // 32)
    table = b.const("table", (wide,), "float32", _table(rng, sticks))
    rows_mine = b.split("rows_mine", high, "me")
    cols_mine = b.split("cols_mine", wide, "me", unit=unit)
    down = number(rng, 1, 4)
    first, second = b.boxes(r=(rows_mine, down), c=wide), b.boxes(r=high, c=(cols_mine, unit))
    xs = b.stream("xs", x, (down, wide))
    ss = b.stream("ss", s, (down, wide), users=["store"])
    again = b.stream("again", s, (high, unit))
    tables = b.stream("tables", table, (wide,), slots=1)
    ys = b.stream("ys", y, (high, unit), users=["store"], slots=1)
    stored = b.token("stored", cores)
    with b.queue("load"):
        with tables.fill() as t:
            b.load({"c": wide}, table["c"], t["c"])
        with first() as (over, turn), xs.fill(turn) as t:
            b.load(over, x["r", "c"], t["r", "c"])
        with b.loop("q", cores) as q:
            b.wait(stored, q)
        with second() as (over, turn), again.fill(turn) as t:
            b.load(over, s["r", "c"], t["r", "c"])
    with b.queue("sfu"), tables.use() as line:
        with first() as (over, turn), xs.use(turn) as xt, ss.fill(turn) as t:
            body = random_body(rng, [result_type(rng, s.format)], ["r", "c"], scalars)
            b.map(over, t["r", "c"], body, xt["r", "c"], line["c"])
        with second() as (over, turn), again.use(turn) as xt, ys.fill(turn) as t:
            body = random_body(rng, [result_type(rng, y.format)], ["r", "c"], scalars)
            # The table lies whole in LX: the part of these columns begins at their first one.
            b.map(over, t["r", "c"], body, xt["r", "c"], line.part(over["c"].start)["c"])
    with b.queue("store"):
        with first() as (over, turn), ss.use(turn) as t:
            b.store(over, t["r", "c"], s["r", "c"])
        with b.loop("q", cores) as q:
            b.signal(stored, Var("me"), core=q)
        with second() as (over, turn), ys.use(turn) as t:
            b.store(over, t["r", "c"], y["r", "c"])
    return finish(b, {"x": ((high, wide), dtype)})


def _table(rng: Rng, sticks: int) -> bytes:
    return rng.standard_normal(sticks * 32).astype("<f4").tobytes()


TEMPLATES: dict[Callable[[Rng], Case], int] = {
    pointwise: 6,
    reduction: 6,
    product: 4,
    scan: 2,
    indexed: 2,
    ordered: 2,
    ring_of_tiles: 2,
    through_scratch: 2,
    in_place: 1,
}


def random_program(seed: int) -> Case:
    """The valid program of a seed."""
    rng = np.random.default_rng(seed)
    templates = [template for template, weight in TEMPLATES.items() for _ in range(weight)]
    return templates[int(rng.integers(len(templates)))](rng)
