"""The static verifier: accepts what is right; its reports and errors. The rules, one by one, are in
the test_verifier_*.py beside this; changed programs in test_verifier_mutations.py."""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import pytest
import random_programs
from broken_programs import edited, refused, tiled, without
from program_zoo import ZOO

from examples.programs import add, matmul
from openspyre.formats import Format
from openspyre.program import ProgramBuilder
from openspyre.program import body as f
from openspyre.program.boxes import Over
from openspyre.program.concrete import Instance
from openspyre.program.expr import Expr, Var, binary
from openspyre.program.model import (
    Buffer,
    Role,
    Signal,
    Store,
    SymbolKind,
    Unit,
)
from openspyre.program.tokens import Interleaving, TokenError, TokenFault
from openspyre.program.verify import VerifyError, problems, samples, verify
from openspyre.program.verify_numbers import interval
from openspyre.reference.operands import element_addresses


@pytest.mark.parametrize("name", sorted(ZOO))
def test_every_program_of_the_zoo_is_valid(name: str) -> None:
    case = ZOO[name]()
    report = verify(case.program)
    assert report.tasks > 0
    assert 0 < report.lx_peak <= case.program.card.lx_bytes
    assert problems(case.program) == []


@pytest.mark.parametrize("seed", range(60))
def test_random_valid_programs_are_accepted(seed: int) -> None:
    verify(random_programs.random_program(seed).program)


def test_p5_512x4096x4096_reads_and_writes_what_the_model_says() -> None:
    report = verify(matmul.build(512, 4096, 4096, grid=(4, 8)))
    assert report.read_bytes == 37_748_736
    assert report.read_bytes_without_multicast == 167_772_160
    assert report.written_bytes == 4_194_304
    assert report.lx_received_bytes >= 167_772_160
    assert report.lx_peak <= 2 << 20


def test_p4_every_output_stick_is_stored_exactly_once() -> None:
    """P4: verified, and counted independently with the operand's layout."""
    program = tiled(7, 150)
    report = verify(program)
    assert report.written_bytes == 7 * 3 * 128
    stored = edited(program, Unit.STORE, Store, without)
    refused(stored, 7, "operand y", "never stored", "element [0, 0]")


@pytest.mark.parametrize("name", sorted(set(ZOO) - {"index_add", "scatter_add"}))
def test_p4_what_is_stored_is_every_stick_of_the_outputs(name: str) -> None:
    """All sticks that the layouts of the outputs have, and no stick more."""
    case = ZOO[name]()
    program = case.program
    sizes = {
        s.name: int(case.symbols[s.name]) for s in program.symbols if s.kind is not SymbolKind.FLOAT
    }
    layouts = Instance(program, sizes).operands
    outputs = [o for o in program.operands if o.role is Role.OUT]
    assert outputs
    sticks = sum(np.unique(element_addresses(layouts[o.name]) // 128).size for o in outputs)
    assert verify(program, sizes).written_bytes == sticks * 128


def test_a_large_matmul_is_verified_in_seconds() -> None:
    """Wide bound: the machine may be busy with other tests."""
    started = time.perf_counter()
    report = verify(matmul.build(4096, 4096, 4096))
    assert report.tasks > 20_000
    assert time.perf_counter() - started < 60


def test_symbolic_programs_are_verified_at_the_ends_and_in_the_middle() -> None:
    program = ZOO["add_symbolic"]().program
    names = [s.name for s in program.symbols if s.kind is not SymbolKind.FLOAT]
    checked = verify(program).checked
    assert len(checked) >= 3
    symbol = next(s for s in program.symbols if s.kind is SymbolKind.DIMENSION)
    seen = {values[names[0]] for values in checked}
    assert max(seen) == symbol.maximum
    assert min(seen) == max(symbol.minimum, symbol.granularity)
    assert checked == samples(program)


def test_a_symbol_value_that_breaks_a_rule_is_named() -> None:
    """A buffer big enough for the least extent only."""
    b = ProgramBuilder("symbolic", {"c": 1})
    m = b.dimension("m", 0, 0, maximum=16)
    x, y = b.input("x", (m, 64), "float16"), b.output("y", (m, 64), "float16")
    t = b.stream("t", x, (4, 64))
    u = b.stream("u", y, (4, 64), users=["store"])
    over: Over = {"r": m, "s": 64}
    with b.queue("load"), t.fill() as tile:
        b.load(over, x["r", "s"], tile["r", "s"])
    with b.queue("sfu"), t.use() as tile, u.fill() as out:
        b.map(over, out["r", "s"], f.identity, tile["r", "s"])
    with b.queue("store"), u.use() as out:
        b.store(over, out["r", "s"], y["r", "s"])
    program = b.build()
    refused(program, 2, "with m = 8", "enlarge the slots")
    verify(program, {"m": 4})
    refused(program, 1, "m: 17 must lie in", symbols={"m": 17})
    assert len(problems(program)) == 2  # in the middle and at the end


@pytest.mark.parametrize(
    ("dtype", "format", "message"),
    [
        ("float17", Format.SEN169_FP16, "'float17' names no torch dtype"),
        ("float16", Format.IEEE_FP32, "IEEE_FP16 or SEN169_FP16, not IEEE_FP32"),
    ],
)
def test_an_operand_lies_as_its_dtype_says(dtype: str, format: Format, message: str) -> None:
    program = add.build(16, 64, cores=1)
    wrong = dataclasses.replace(program.operands[0], dtype=dtype, format=format)
    with pytest.raises(VerifyError, match=f"operand x.*{message}"):
        verify(dataclasses.replace(program, operands=(wrong, *program.operands[1:])))


def test_buffer_names_and_bytes_are_in_the_messages() -> None:
    """One example of a whole message."""
    program = tiled()
    small = (Buffer("xs", 0, 384, 2), *program.buffers[1:])
    with pytest.raises(VerifyError) as caught:
        verify(dataclasses.replace(program, buffers=small))
    error = caught.value
    assert error.rule == 2
    assert error.place.startswith("load[")
    assert "core 0" in error.place
    assert "shrink the tile" in error.reason


def test_happens_before_is_the_same_in_every_interleaving() -> None:
    for name in ("softmax", "matmul", "ksplit"):
        program = ZOO[name]().program
        seen = []
        for seed in (None, 1, 2, 3):
            steps = Interleaving(Instance(program), seed)
            seen.append(sorted((s.thread, s.time, s.clock.tobytes()) for s in steps))
        assert all(other == seen[0] for other in seen)


def test_token_faults_tell_their_kind() -> None:
    program = edited(tiled(), Unit.SFU, Signal, without)
    with pytest.raises(TokenError) as caught:
        list(Interleaving(Instance(program)))
    assert caught.value.kind is TokenFault.DEADLOCK
    assert caught.value.tasks


def test_intervals_bound_expressions() -> None:
    ranges = {"i": (0, 9), "j": (-3, 3)}

    def bounds(node: Expr) -> tuple[int, int] | None:
        return interval(node, ranges)

    assert bounds(Var("i") * 3 - Var("j")) == (-3, 30)
    assert bounds(Var("j") % 4) == (0, 3)
    assert bounds(Var("i") % 16) == (0, 9)
    assert bounds(Var("j") // 2) == (-2, 1)
    assert bounds(binary("//", 5, Var("i"))) is None
    assert bounds(Var("i") * (1 << 62)) is None
