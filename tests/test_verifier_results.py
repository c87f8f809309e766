"""Rules 7 to 9 of the verifier: each output once, each reduction index once, operands apart."""

from __future__ import annotations

import dataclasses

import mutations
import pytest
from broken_programs import edited, product, refused, single, tiled
from program_zoo import ZOO

from examples.programs import ksplit
from openspyre.program import ProgramBuilder
from openspyre.program import body as f
from openspyre.program.expr import Const, Var, less
from openspyre.program.model import (
    Compute,
    Loop,
    Ring,
    Role,
    Store,
    Unit,
)
from openspyre.program.ops import Kind
from openspyre.program.verify import VerifyError, verify
from openspyre.program.verify_cover import COMPLETE, EMPTY, CoverError, Covers

# --- rule 7


def test_rule_7_each_output_is_stored_once() -> None:
    def twice(i: Store) -> Loop:
        return Loop(None, Const(2), (i,))

    refused(edited(tiled(), Unit.STORE, Store, twice), 7, "y", "twice", "element [0, 0]")
    last = edited(
        tiled(), Unit.STORE, Store,
        lambda i: Loop(None, less(0, Var("core")), (i,)),
    )  # fmt: skip
    refused(last, 7, "element [0, 0]", "never stored")


def test_rule_7_inputs_are_not_stored() -> None:
    program = tiled()
    operands = tuple(dataclasses.replace(o, role=Role.IN) for o in program.operands)
    refused(dataclasses.replace(program, operands=operands), 4, "only LOAD brings")
    b = ProgramBuilder("back", {"c": 1})
    x = b.input("x", (1, 64), "float16")
    t = b.stream("t", x, (1, 64), users=["store"])
    with b.queue("load"), t.fill() as tile:
        b.load({"r": 1, "s": 64}, x["r", "s"], tile["r", "s"])
    with b.queue("store"), t.use() as tile:
        b.store({"r": 1, "s": 64}, tile["r", "s"], x["r", "s"])
    refused(b.build(), 7, "role in")


def test_rule_7_a_store_keeps_the_rest_of_a_stick() -> None:
    def emit(b: ProgramBuilder) -> None:
        x = b.inout("x", (1, 128), "float16")
        t = b.stream("t", x, (1, 128), users=["store"])
        with b.queue("load"), t.fill() as tile:
            b.load({"r": 1, "s": 40}, x["r", "s"], tile["r", "s"])
        with b.queue("store"), t.use() as tile:
            b.store({"r": 1, "s": 40}, tile["r", "s"], x["r", "s"])

    refused(single(emit), 7, "overwrites the rest of the last stick")


def test_rule_7_scatters_lose_no_index() -> None:
    program = ZOO["index_add"]().program
    verify(program)
    for number, let in enumerate(program.lets):
        if let.name != "window_size":
            continue
        smaller = dataclasses.replace(let, value=let.value - 1)
        lets = (*program.lets[:number], smaller, *program.lets[number + 1 :])
        refused(dataclasses.replace(program, lets=lets), 7, "would be lost")
    operands = tuple(
        dataclasses.replace(o, role=Role.OUT) if o.role is Role.INOUT else o
        for o in program.operands
    )
    refused(dataclasses.replace(program, operands=operands), 7, "make it inout")


def test_scratch_is_read_only_after_it_was_stored() -> None:
    """The tokens between STORE and LOAD make it so; without them it is luck."""

    def emit(b: ProgramBuilder, ordered: bool) -> None:
        x, y = b.input("x", (1, 64), "float16"), b.output("y", (1, 64), "float16")
        s = b.scratch("s", (1, 64), "float16")
        xs, ys = b.stream("xs", x, (1, 64)), b.stream("ys", s, (1, 64))
        ss = b.stream("ss", s, (1, 64), users=["store"])
        outs = b.stream("outs", y, (1, 64), users=["store"])
        b.token("stored")
        over = {"r": 1, "q": 64}
        with b.queue("load"):
            with xs.fill() as t:
                b.load(over, x["r", "q"], t["r", "q"])
            if ordered:
                b.wait("stored")
            with ys.fill() as t:
                b.load(over, s["r", "q"], t["r", "q"])
        with b.queue("sfu"):
            with xs.use() as t, ss.fill() as u:
                b.map(over, u["r", "q"], f.identity, t["r", "q"])
            with ys.use() as t, outs.fill() as u:
                b.map(over, u["r", "q"], f.identity, t["r", "q"])
        with b.queue("store"):
            with ss.use() as t:
                b.store(over, t["r", "q"], s["r", "q"])
            if ordered:
                b.signal("stored")
            with outs.use() as t:
                b.store(over, t["r", "q"], y["r", "q"])

    verify(single(lambda b: emit(b, True)))
    refused(single(lambda b: emit(b, False)), 4, "the dynamic region")


# --- rule 8


def test_rule_8_every_k_once_and_before_it_is_used() -> None:
    fewer = edited(
        product(), Unit.PT, Compute, lambda i: dataclasses.replace(i, accumulate=Const(0))
    )
    refused(fewer, 8, "before its reduction is complete", "192..255 of 0..255")

    def same_tile(i: Compute) -> Compute:
        return dataclasses.replace(i, accumulate=Const(1))

    message = refused(edited(product(), Unit.PT, Compute, same_tile), 4)
    assert "nothing has written" in message

    def half(i: Compute) -> Compute:
        over = tuple(
            dataclasses.replace(label, size=Const(32)) if label.name == "d" else label
            for label in i.over
        )
        return dataclasses.replace(i, over=over)

    refused(edited(product(), Unit.PT, Compute, half), 8)


def test_rule_8_a_scan_goes_on_where_it_stopped() -> None:
    program = ZOO["cumsum"]().program
    anew = edited(
        program, Unit.SFU, Compute,
        lambda i: dataclasses.replace(i, accumulate=Const(0)) if i.kind is Kind.SCAN else i,
    )  # fmt: skip
    refused(anew, 8, "starts anew at index")


def test_rule_8_ring_joins_disjoint_parts() -> None:
    program = ksplit.build(8, 256, 64, grid=(1, 2), tile=(8, 64, 64))
    verify(program)
    same = edited(program, Unit.RING, Ring, lambda i: dataclasses.replace(i, core=Const(0)))
    refused(same, 8, "overlap")


def test_rule_8_a_fold_takes_the_parts_in_their_order() -> None:
    program = ZOO["layernorm"]().program

    def exchanged(i: Compute) -> Compute:
        if i.kind is not Kind.FOLD or len(i.inputs) != 3:
            return i
        return dataclasses.replace(i, inputs=(i.inputs[1], i.inputs[0], i.inputs[2]))

    folds = [
        number
        for number, (_, i) in enumerate(
            (path, i)
            for path, i in mutations.walk(program.queues[Unit.SFU], ())
            if isinstance(i, Compute)
        )
        if i.kind is Kind.FOLD
    ]
    refused(edited(program, Unit.SFU, Compute, exchanged, nth=folds[0]), 8, "of a reduction by")


def test_covers_are_sets_of_disjoint_ascending_boxes() -> None:
    covers = Covers()
    first = covers.extend(EMPTY, ((0, 64),), (256,))
    assert covers.text(first) == "0..63"
    second = covers.extend(first, ((128, 256),), (256,))
    with pytest.raises(CoverError, match="not ascending"):
        covers.extend(second, ((64, 128),), (256,))
    with pytest.raises(CoverError, match="overlap"):
        covers.extend(first, ((0, 64),), (256,))
    with pytest.raises(CoverError, match="outside"):
        covers.extend(first, ((192, 320),), (256,))
    whole = covers.extend(covers.extend(first, ((64, 128),), (256,)), ((128, 256),), (256,))
    assert whole == COMPLETE
    with pytest.raises(CoverError, match="complete"):
        covers.extend(COMPLETE, ((0, 64),), (256,))
    # Two reduced dims, in lexicographic order of the boxes' starts.
    corner = covers.extend(EMPTY, ((0, 2), (0, 3)), (4, 6))
    row = covers.extend(corner, ((0, 2), (3, 6)), (4, 6))
    assert covers.boxes(row) == (((0, 2), (0, 6)),)
    assert covers.extend(row, ((2, 4), (0, 6)), (4, 6)) == COMPLETE


# --- rule 9


def test_rule_9_outputs_do_not_overlap_inputs() -> None:
    program = product()
    matmul_tiles = next(
        i for _, i in mutations.walk(program.queues[Unit.PT], ()) if isinstance(i, Compute)
    )
    base = {buffer.name: buffer.base for buffer in program.buffers}
    moved = tuple(
        dataclasses.replace(b, base=base[matmul_tiles.inputs[0].place])
        if b.name == matmul_tiles.outputs[0].place
        else b
        for b in program.buffers
    )
    with pytest.raises(VerifyError) as caught:
        verify(dataclasses.replace(program, buffers=moved))
    assert caught.value.rule in (4, 5, 9)

    def emit(b: ProgramBuilder, shift: int) -> None:
        x, y = b.input("x", (2, 64), "float16"), b.output("y", (2, 64), "float16")
        t = b.stream("t", x, (3, 64), slots=1)
        u = b.token("done", 1)
        over = {"r": 2, "s": 64}
        with b.queue("load"), t.fill() as tile:
            b.load(over, x["r", "s"], tile["r", "s"])
        with b.queue("sfu"):
            with t.use() as tile:
                out = tile.part(shift, 0).of(y)
                b.map(over, out["r", "s"], f.exp, tile["r", "s"])
            b.signal(u)
        with b.queue("store"):
            b.wait(u)
            b.store(over, t.tile.part(shift, 0).of(y)["r", "s"], y["r", "s"])

    refused(single(lambda b: emit(b, 1)), 9, "in place means")
    verify(single(lambda b: emit(b, 0)))
