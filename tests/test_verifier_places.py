"""Rules 1 to 3 of the verifier: numbers and names, places in LX and in operands, what a transfer
moves."""

from __future__ import annotations

import dataclasses
import time

import mutations
import pytest
from broken_programs import edited, product, refused, single, tiled

from openspyre.program import Program, ProgramBuilder
from openspyre.program import body as f
from openspyre.program.body import BodyFunction
from openspyre.program.expr import Const, Var, binary
from openspyre.program.model import (
    Compute,
    Digit,
    Let,
    Load,
    Loop,
    Signal,
    Store,
    Token,
    Unit,
    Value,
    Wait,
)
from openspyre.program.ops import Combine, Kind
from openspyre.program.verify import VerifyError, verify

# --- rule 1


def test_rule_1_names_and_scopes() -> None:
    program = tiled()
    refused(
        edited(program, Unit.SFU, Loop, lambda i: dataclasses.replace(i, count=Var("nothing"))),
        1, "nothing", "in scope",
    )  # fmt: skip
    twice = dataclasses.replace(program, tokens=(*program.tokens, program.tokens[0]))
    refused(twice, 1, "declared 2 times")
    refused(dataclasses.replace(program, lets=(Let("core", Const(1)),)), 1, "core")
    bad = edited(program, Unit.LOAD, Load, lambda i: dataclasses.replace(i, multicast=("q",)))
    refused(bad, 1, "multicast", "'q'")
    bad = edited(program, Unit.LOAD, Wait, lambda i: dataclasses.replace(i, token="none"))
    refused(bad, 1, "no token 'none'")
    refused(dataclasses.replace(program, version=3), 1, "version")


def test_rule_1_units_and_kinds() -> None:
    program = tiled()
    sfu = program.queues[Unit.SFU]
    refused(mutations.with_queue(program, Unit.PT, sfu), 1, "queue pt")
    refused(mutations.with_queue(program, Unit.RING, program.queues[Unit.LOAD]), 1, "queue ring")

    def as_fold(i: Compute) -> Compute:
        return dataclasses.replace(i, kind=Kind.FOLD, body=None, combine=Combine.SUM)

    refused(edited(program, Unit.SFU, Compute, as_fold), 1, "fold", "lanes")
    swapped = edited(
        product(), Unit.PT, Compute, lambda i: dataclasses.replace(i, inputs=i.inputs[::-1])
    )
    refused(swapped, 1, "matmul")


def test_rule_1_bodies() -> None:
    program = tiled()
    compute = next(
        i for _, i in mutations.walk(program.queues[Unit.SFU], ()) if isinstance(i, Compute)
    )
    assert compute.body is not None
    node = dataclasses.replace(compute.body.nodes[0], type="i")
    body = dataclasses.replace(compute.body, nodes=(node, *compute.body.nodes[1:]))
    bad = edited(program, Unit.SFU, Compute, lambda i: dataclasses.replace(i, body=body))
    refused(bad, 1, "body")
    bad = edited(program, Unit.SFU, Compute, lambda i: dataclasses.replace(i, body=None))
    refused(bad, 1, "needs a body")


def test_rule_1_a_body_has_at_most_4096_operations() -> None:
    """As many as the machine takes: input, then a constant and a product each time."""

    def times(count: int) -> BodyFunction:
        def body(x: f.Reg) -> f.Reg:
            for number in range(count):
                x = x * float(number + 2)
            return x

        return body

    verify(tiled(2, 64, cores=1, function=times(2047)))
    refused(tiled(2, 64, cores=1, function=times(2048)), 1, "4097 operations", "at most 4096")


def test_rule_1_boxes_lie_inside_their_values() -> None:
    def longer(i: Load) -> Load:
        rows = dataclasses.replace(i.over[0], start=i.over[0].start + 1)
        return dataclasses.replace(i, over=(rows, *i.over[1:]))

    # The address stays, so the box is wrong before it leaves the operand.
    refused(edited(tiled(), Unit.LOAD, Load, longer), 3, "starts at byte 128")

    def further(i: Compute) -> Compute:
        rows = dataclasses.replace(i.over[0], start=i.over[0].start + 1, size=Const(8))
        return dataclasses.replace(i, over=(rows, *i.over[1:]))

    refused(
        edited(tiled(), Unit.SFU, Compute, further),
        1, "indices 1..8 of dim 0, which has 8", "sfu[", "core 0", "r_step=0",
    )  # fmt: skip
    short = edited(
        tiled(), Unit.LOAD, Load,
        lambda i: dataclasses.replace(
            i, over=(dataclasses.replace(i.over[0], size=Const(-1)), *i.over[1:])
        ),
    )  # fmt: skip
    refused(short, 1, "size")


def test_rule_1_numbers_stay_in_64_bits() -> None:
    big = binary("*", Var("core") + (1 << 40), 1 << 40)
    grown = edited(
        tiled(), Unit.LOAD, Load,
        lambda i: dataclasses.replace(i, target=dataclasses.replace(i.target, offset=big)),
    )  # fmt: skip
    refused(grown, 1, "64 bits")
    zero = binary("//", 128, Var("core"))
    divided = edited(
        tiled(), Unit.LOAD, Load,
        lambda i: dataclasses.replace(i, target=dataclasses.replace(i.target, offset=zero)),
    )  # fmt: skip
    refused(divided, 1, "divisor")
    loops = binary("*", Var("step"), Var("step"))
    squared = edited(
        tiled(), Unit.LOAD, Load,
        lambda i: dataclasses.replace(i, target=dataclasses.replace(i.target, offset=loops)),
    )  # fmt: skip
    message = refused(squared, 1)
    assert "affine" in message or "in scope" in message


def test_rule_1_endless_loops_are_refused_soon() -> None:
    empty_loop = Loop("long", Const(1 << 62), ())
    program = mutations.with_queue(tiled(), Unit.RING, (empty_loop,))
    started = time.perf_counter()
    with pytest.raises(VerifyError, match="limit") as caught:
        verify(program, limit=100_000)
    assert caught.value.rule == 1
    waits = Loop("long", Const(1 << 62), (Signal("xs_full"), Wait("xs_full")))
    program = mutations.with_queue(tiled(), Unit.RING, (waits,))
    with pytest.raises(VerifyError):
        verify(program, limit=100_000)
    assert time.perf_counter() - started < 30
    negative = mutations.with_queue(tiled(), Unit.RING, (Loop("long", Const(-1), ()),))
    refused(negative, 1, "count -1 is -1")


def test_rule_1_hostile_sizes_take_no_memory() -> None:
    def huge(i: Compute) -> Compute:
        over = tuple(dataclasses.replace(label, size=Const(1 << 50)) for label in i.over)
        return dataclasses.replace(i, over=over)

    refused(edited(tiled(), Unit.SFU, Compute, huge), 1)
    program = dataclasses.replace(tiled(), values=(Value("v", (Const(1 << 40), Const(1 << 40))),))
    refused(program, 1, "value v")
    refused(dataclasses.replace(tiled(), grid=(Digit("c", 1 << 40),)), 1, "digit c")
    refused(dataclasses.replace(tiled(), tokens=(Token("t", 1 << 40),)), 1)
    wide = dataclasses.replace(tiled().operands[1], shape=(Const(1 << 30), Const(1 << 20)))
    program = dataclasses.replace(tiled(), operands=(tiled().operands[0], wide))
    refused(program, 2, "too large")


# --- rule 2


def test_rule_2_buffers_fit_into_lx() -> None:
    program = tiled()
    last = program.buffers[-1]
    for new in (
        dataclasses.replace(last, slots=1 << 20),
        dataclasses.replace(last, base=(2 << 20) - 128),
        dataclasses.replace(last, base=64),
        dataclasses.replace(last, base=-128),
        dataclasses.replace(last, slot_bytes=100),
    ):
        refused(dataclasses.replace(program, buffers=(*program.buffers[:-1], new)), 2, last.name)


def test_rule_2_tiles_fit_into_their_slot() -> None:
    program = tiled()
    first = dataclasses.replace(program.buffers[0], slot_bytes=384)
    buffers = (first, *program.buffers[1:])
    message = refused(dataclasses.replace(program, buffers=buffers), 2, "slot 0", "bytes 0..511")
    assert "load[" in message and "core 0" in message
    slot = edited(
        program, Unit.LOAD, Load,
        lambda i: dataclasses.replace(i, target=dataclasses.replace(i.target, slot=Const(2))),
    )  # fmt: skip
    refused(slot, 2, "slots 0..1")


def test_rule_2_addresses_and_strides_are_multiples_of_128() -> None:
    def shifted(i: Load) -> Load:
        return dataclasses.replace(i, target=dataclasses.replace(i.target, offset=Const(64)))

    refused(edited(tiled(), Unit.LOAD, Load, shifted), 2, "multiple of")

    def stretched(i: Load) -> Load:
        strides = tuple((name, stride + 32) for name, stride in i.target.strides)
        return dataclasses.replace(i, target=dataclasses.replace(i.target, strides=strides))

    refused(edited(tiled(), Unit.LOAD, Load, stretched), 2, "multiple of 128")


def test_rule_2_one_core_spans_at_most_256_mib_of_an_operand() -> None:
    def emit(b: ProgramBuilder) -> None:
        x = b.input("x", ((2 << 20) + 1, 64), "float16")
        t = b.stream("t", x, (1, 64), users=["store"])
        y = b.output("y", (2, 64), "float16")
        with b.queue("load"), b.loop("i", 2) as i, t.fill(i) as tile:
            b.load({"r": (i * (2 << 20), 1), "s": 64}, x["r", "s"], tile["r", "s"])
        del y

    refused(single(emit), 2, "256 MiB", "x")


def test_rule_2_constants_lie_inside_the_data() -> None:
    program = through_constant()
    verify(program)
    refused(dataclasses.replace(program, data=program.data[:-1]), 2, "operand table")


def through_constant() -> Program:
    b = ProgramBuilder("constant", {"c": 1})
    table = b.const("table", (2, 64), "float16", bytes(256))
    y = b.output("y", (2, 64), "float16")
    t = b.stream("t", table, (2, 64))
    u = b.stream("u", y, (2, 64), users=["store"])
    over = {"r": 2, "s": 64}
    with b.queue("load"), t.fill() as tile:
        b.load(over, table["r", "s"], tile["r", "s"])
    with b.queue("sfu"), t.use() as tile, u.fill() as out:
        b.map(over, out["r", "s"], f.identity, tile["r", "s"])
    with b.queue("store"), u.use() as out:
        b.store(over, out["r", "s"], y["r", "s"])
    return b.build()


# --- rule 3


def test_rule_3_transfers_move_what_they_declare() -> None:
    def address(i: Load) -> Load:
        source = dataclasses.replace(i.source, offset=i.source.offset + 128)
        return dataclasses.replace(i, source=source)

    refused(edited(tiled(), Unit.LOAD, Load, address), 3, "starts at byte 0", "at byte 128")

    def strides(i: Load) -> Load:
        moved = tuple((name, stride + 128) for name, stride in i.source.strides)
        return dataclasses.replace(i, source=dataclasses.replace(i.source, strides=moved))

    refused(edited(tiled(), Unit.LOAD, Load, strides), 3, "the operand's layout")

    def box(i: Store) -> Store:
        index = (dataclasses.replace(i.target.index[0], offset=Const(1)), i.target.index[1])
        return dataclasses.replace(i, target=dataclasses.replace(i.target, index=index))

    refused(edited(tiled(), Unit.STORE, Store, box), 3, "different boxes")

    def stick(i: Load) -> Load:
        source = dataclasses.replace(i.source, stick="r")
        target = dataclasses.replace(i.target, stick="r")
        return dataclasses.replace(i, source=source, target=target)

    refused(edited(tiled(64, 128), Unit.LOAD, Load, stick), 2)  # and then does not fit either
    program = edited(tiled(64, 64), Unit.LOAD, Load, stick)
    big = tuple(
        dataclasses.replace(b, base=b.base * 64, slot_bytes=1 << 16) for b in program.buffers
    )
    refused(dataclasses.replace(program, buffers=big), 3, "on the stick")
