"""Rules 4 to 6 of the verifier: what is read was written, nothing live is lost, tokens balance."""

from __future__ import annotations

import dataclasses

import mutations
import pytest
from broken_programs import edited, product, refused, single, tiled, without
from program_zoo import ZOO

from openspyre.formats import Format
from openspyre.program import ProgramBuilder
from openspyre.program import body as f
from openspyre.program.boxes import Over
from openspyre.program.expr import Const, Var, binary, equal
from openspyre.program.model import (
    Compute,
    Load,
    Loop,
    Signal,
    Token,
    Unit,
    Wait,
)
from openspyre.program.verify import VerifyError, verify

# --- rule 4


def test_rule_4_what_is_read_was_written() -> None:
    refused(
        edited(tiled(), Unit.LOAD, Load, without), 4, "nothing has written", "sfu[", "LX of core 0"
    )


def test_rule_4_a_stale_slot_is_told_from_the_right_one() -> None:
    def other_slot(i: Compute) -> Compute:
        tile = i.inputs[0]
        return dataclasses.replace(
            i, inputs=(dataclasses.replace(tile, slot=Const(0)), *i.inputs[1:])
        )

    message = refused(edited(tiled(), Unit.SFU, Compute, other_slot), 4)
    assert "but there is element" in message or "may be writing" in message


def test_rule_4_token_order_counts_not_luck() -> None:
    """Without its WAIT the COMPUTE may run before the LOAD; in the run at hand it need not."""
    program = tiled()

    def keeps(i: Wait) -> Wait | None:
        return None if i.token == "xs_full" else i

    broken = edited(program, Unit.SFU, Wait, keeps)
    message = refused(broken, 4)
    assert "no token orders" in message or "nothing has written" in message or "ends at" in message


def test_rule_4_pads_hold_nothing() -> None:
    """Reading 128 columns of a tile that got 64 of the second stick's elements."""

    def wider(i: Compute) -> Compute:
        over = (i.over[0], dataclasses.replace(i.over[1], size=Const(128)))
        return dataclasses.replace(i, over=over)

    message = refused(edited(tiled(8, 150), Unit.SFU, Compute, wider), 1)
    assert "dim 1, which has 150" in message

    def emit(b: ProgramBuilder) -> None:
        x = b.input("x", (1, 64), "float16")
        y = b.output("y", (1, 64), "float16")
        t = b.stream("t", x, (1, 64))
        u = b.stream("u", y, (1, 64), users=["store"])
        with b.queue("load"), t.fill() as tile:
            b.load({"r": 1, "s": 40}, x["r", "s"], tile["r", "s"])
        with b.queue("sfu"), t.use() as tile, u.fill() as out:
            b.map({"r": 1, "s": 64}, out["r", "s"], f.identity, tile["r", "s"])
        with b.queue("store"), u.use() as out:
            b.store({"r": 1, "s": 64}, out["r", "s"], y["r", "s"])

    refused(single(emit), 4, "64 elements of the stick", "of which 40 are valid")


def test_rule_4_an_element_has_one_meaning() -> None:
    """A tile that each turn renews under the same name could be read stale."""

    def emit(b: ProgramBuilder, turns: bool) -> None:
        x, y = b.input("x", (4, 64), "float16"), b.output("y", (4, 64), "float16")
        v = b.value("v", (4 if turns else 1, 64), format=Format.IEEE_FP32)
        xs = b.stream("xs", x, (1, 64))
        ys = b.stream("ys", y, (1, 64), users=["store"])
        v_lx = b.lx("v_lx", v, (1, 64))
        with b.queue("load"), b.loop("i", 4) as i, xs.fill(i) as t:
            b.load({"r": (i, 1), "s": 64}, x["r", "s"], t["r", "s"])
        with b.queue("sfu"), b.loop("i", 4) as i, xs.use(i) as t, ys.fill(i) as u:
            over: Over = {"r": (i, 1), "s": 64}
            middle = v_lx["r", "s"] if turns else v_lx[0, "s"]
            b.map(over, middle, f.exp, t["r", "s"])
            b.map(over, u["r", "s"], f.exp, middle)
        with b.queue("store"), b.loop("i", 4) as i, ys.use(i) as u:
            b.store({"r": (i, 1), "s": 64}, u["r", "s"], y["r", "s"])

    verify(single(lambda b: emit(b, True)))
    refused(single(lambda b: emit(b, False)), 4, "computes v[0:1, 0:64] from other inputs")


def test_rule_4_operands_come_from_load_and_nothing_comes_from_itself() -> None:
    def onto_x(i: Compute) -> Compute:
        out = dataclasses.replace(i.outputs[0], value="x")
        return dataclasses.replace(i, outputs=(out,))

    refused(edited(tiled(), Unit.SFU, Compute, onto_x), 4, "only LOAD brings")


def test_rule_4_sorted_runs_of_a_value_do_not_overlap() -> None:
    """A run one longer changes what the elements of the run are, and the next run hides it."""

    def longer(i: Compute) -> Compute:
        label = i.over[1]
        return dataclasses.replace(
            i, over=(i.over[0], dataclasses.replace(label, size=label.size + 1))
        )

    refused(edited(ZOO["sort"]().program, Unit.SFU, Compute, longer), 4, "overlaps the run 0..64")


# --- rule 5


def test_rule_5_no_write_over_what_is_read() -> None:
    program = tiled(32)
    broken = edited(program, Unit.LOAD, Wait, without)
    with pytest.raises(VerifyError, match="no token orders the two") as caught:
        verify(broken)
    # In the run at hand the LOAD comes first, so it is the read that the verifier stumbles over.
    assert caught.value.rule in (4, 5)

    def emit(b: ProgramBuilder) -> None:
        x, y = b.input("x", (1, 64), "float16"), b.output("y", (1, 64), "float16")
        t = b.lx("t", x, (1, 64))
        copy = b.lx("copy", x, (1, 64))
        for user in ("ring", "sfu"):
            b.token(user)
        over: Over = {"r": 1, "s": 64}
        with b.queue("load"):
            b.load(over, x["r", "s"], t["r", "s"])
            b.signal("ring")
            b.signal("sfu")
        with b.queue("ring"):
            b.wait("ring")
            b.ring(over, t["r", "s"], copy["r", "s"], core=Var("core"))
        with b.queue("sfu"):
            b.wait("sfu")
            b.map(over, t.of(y)["r", "s"], f.exp, t["r", "s"])

    refused(single(emit), 5, "may be reading", "queue ring of core 0")


def test_rule_5_no_write_over_what_is_written() -> None:
    """Two units fill one place and nothing orders them."""

    def emit(b: ProgramBuilder) -> None:
        x, y = b.input("x", (1, 64), "float16"), b.output("y", (1, 64), "float16")
        t = b.lx("t", x, (1, 64))
        over = {"r": 1, "s": 64}
        with b.queue("load"):
            b.load(over, x["r", "s"], t["r", "s"])
        with b.queue("sfu"):
            b.map(over, t.of(y)["r", "s"], lambda r: r.const("f", 1.0))

    refused(single(emit), 5, "may be writing", "queue load of core 0")


def test_rule_5_elements_of_a_tile_lie_apart() -> None:
    def flat(i: Load) -> Load:
        strides = tuple((name, Const(128)) for name, _ in i.target.strides)
        return dataclasses.replace(i, target=dataclasses.replace(i.target, strides=strides))

    refused(edited(tiled(), Unit.LOAD, Load, flat), 5, "same stick")


# --- rule 6


def test_rule_6_deadlock_names_who_waits_for_what() -> None:
    signal = edited(tiled(32), Unit.SFU, Signal, without)
    message = refused(signal, 6, "deadlock")
    assert "waits for 1 of token" in message
    initial = dataclasses.replace(
        tiled(), tokens=tuple(dataclasses.replace(t, initial=0) for t in tiled().tokens)
    )
    refused(initial, 6, "deadlock", "never signalled")


def test_rule_6_semaphores_come_back() -> None:
    program = mutations.with_queue(tiled(), Unit.RING, (Signal("more"),))
    program = dataclasses.replace(program, tokens=(*program.tokens, Token("more")))
    refused(program, 6, "more[0] of core 0 ends at 1")


def test_rule_6_one_signaller_and_one_waiter() -> None:
    program = mutations.with_queue(tiled(), Unit.RING, (Signal("xs_full"),))
    refused(program, 6, "also signalled by")
    two = dataclasses.replace(tiled(), tokens=(*tiled().tokens, Token("t", 1, 2)))
    two = mutations.with_queue(two, Unit.RING, (Wait("t"),))
    two = mutations.with_queue(two, Unit.PT, (Wait("t"),))
    refused(two, 6, "also waited for by")


def test_rule_6_counts_and_cores_exist() -> None:
    program = dataclasses.replace(tiled(), tokens=(*tiled().tokens, Token("t", 2, 0)))
    for instruction in (
        Signal("t", Const(2)),
        Signal("t", count=Const(-1)),
        Signal("t", core=Const(9)),
        Wait("t", Const(-1)),
    ):
        refused(mutations.with_queue(program, Unit.RING, (instruction,)), 6)


def test_rule_6_multicast_groups_issue_the_same_loads() -> None:
    program = product()

    def other_box(i: Load) -> Load:
        # b's columns differ by n, so b cannot be shared over n.
        return dataclasses.replace(i, multicast=("m", "n"))

    refused(edited(program, Unit.LOAD, Load, other_box, nth=1), 6, "multicast group")
    one_less = (Loop(None, binary("-", 1, equal(Var("core"), 3)), program.queues[Unit.LOAD]),)
    refused(mutations.with_queue(program, Unit.LOAD, one_less), 6, "[3] to multicast")
