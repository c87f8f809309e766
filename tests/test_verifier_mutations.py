"""Mutated programs: the verifier rejects all that change the result; no number stops it."""

from __future__ import annotations

from collections.abc import Mapping

import mutations
import numpy as np
import pytest
import random_programs
from program_zoo import ZOO, Case

from openspyre.program import Program, ProgramError
from openspyre.program.model import (
    Role,
    SymbolKind,
)
from openspyre.program.verify import VerifyError, verify
from openspyre.reference import ReferenceFault, defined_bytes, empty, pack, run

SMALL = sorted(set(ZOO) - {"gelu"})
"""gelu's functions take the reference executor seconds."""


@pytest.mark.parametrize("name", SMALL)
def test_p3_mutations_that_change_the_result_are_rejected(name: str) -> None:
    """P3: 100 mutations of each program. What the verifier accepts runs in the reference executor,
    in a random legal order and with all of its checks, and gives the same bytes."""
    check_mutations(ZOO[name](), 100)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_p3_mutations_of_random_programs(seed: int) -> None:
    check_mutations(random_programs.random_program(seed), 60)


def check_mutations(case: Case, count: int) -> None:
    program = case.program
    symbols = {
        s.name: int(case.symbols[s.name]) for s in program.symbols if s.kind is not SymbolKind.FLOAT
    }
    inputs = case.make_inputs(np.random.default_rng(0))
    verify(program, symbols)
    wanted = results(case, program, inputs, None)
    # An inout operand may be stored in part, so a store less is another program, not a wrong one.
    exempt = {o.name for o in program.operands if o.role is Role.INOUT}
    rejected = accepted = 0
    missed = []
    for number, mutation in enumerate(mutations.mutations(program, count, seed=1)):
        try:
            verify(mutation.program, symbols)
        except VerifyError:
            rejected += 1
            continue
        accepted += 1
        try:
            got = results(case, mutation.program, inputs, number)
        except (ReferenceFault, ProgramError) as error:
            missed.append(f"{mutation.what}: {error}")
            continue
        for operand, data in got.items():
            if operand not in exempt and not np.array_equal(data, wanted[operand]):
                missed.append(f"{mutation.what}: other bytes in {operand}")
    assert not missed, missed
    assert rejected > accepted


def results(
    case: Case, program: Program, inputs: Mapping[str, np.ndarray], seed: int | None
) -> dict[str, np.ndarray]:
    """The bytes of the operands that are written, without pads."""
    arguments = case.program.arguments
    data = {
        o.name: pack(o, inputs[o.name], symbols=case.symbols)
        if o.name in inputs
        else empty(o, case.symbols)
        for o in arguments
    }
    run(program, data, case.symbols, seed=seed)
    return {
        o.name: data[o.name][defined_bytes(o, case.symbols)]
        for o in arguments
        if o.role in (Role.OUT, Role.INOUT)
    }


@pytest.mark.parametrize("name", sorted(ZOO))
def test_hostile_numbers_give_a_verify_error_and_nothing_else(name: str) -> None:
    """One number of the program made extreme: an error with a rule, or a program still valid."""
    program = ZOO[name]().program
    for seed in range(30):
        broken = mutations.with_hostile_number(program, seed)
        try:
            verify(broken, limit=200_000)
        except VerifyError as error:
            assert error.rule in range(1, 10)
