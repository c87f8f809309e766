"""The planner of matrix products: what it chooses, and that its closed form is the model's."""

from __future__ import annotations

import time

import pytest
from matmul_kernels import finish, product, rounded

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.planner.costs import Rates
from openspyre.compiler.planner.matmul import SPAN_LIMIT
from openspyre.compiler.schedule.matmul import plans_for
from openspyre.compiler.schedule.matmul_form import product_of, read_form
from openspyre.formats import Format
from openspyre.program.model import Card
from openspyre.timing import time_program


def test_w7_a_ragged_split_uses_every_core() -> None:
    work = product((1, 4096), (4096, 12800))
    work.program()
    assert work.kernel.cores == 32
    assert work.kernel.splits == {"n0": 32}


def test_p5_multicast_reads_every_operand_once() -> None:
    work = product((512, 4096), (4096, 4096))
    program = work.program(CompileOptions(split=(("m", 4), ("n", 8))))
    modelled = time_program(program, spans=False)
    assert modelled.bytes_read == 37_748_736
    assert modelled.bytes_written == 4_194_304
    assert modelled.lx_bytes_received >= 167_772_160


@pytest.mark.parametrize(
    ("a", "b", "turn_b"),
    [
        ((1, 4096), (4096, 4096), False),
        ((1, 4096), (4096, 4096), True),
        ((8, 4096), (4096, 4096), False),
        ((64, 2048), (2048, 8192), False),
        ((512, 4096), (4096, 4096), False),
        ((512, 4096), (4096, 12800), False),
        ((2048, 4096), (4096, 4096), True),
        ((1024, 1024), (1024, 1024), False),
        ((32, 512, 128), (32, 128, 512), False),
        ((8, 4, 512, 128), (8, 1, 128, 512), True),
        ((8, 4, 1, 128), (8, 1, 128, 2048), True),
        ((8, 4, 1, 2048), (8, 1, 2048, 128), False),
        ((1, 8192), (8192, 128), False),
    ],
)
def test_the_closed_form_is_near_the_model(
    a: tuple[int, ...], b: tuple[int, ...], turn_b: bool
) -> None:
    work = product(a, b, turn_b=turn_b)
    modelled = time_program(work.program(), spans=False).duration_ns
    assert work.kernel.modelled_ns == pytest.approx(modelled, rel=0.15)


@pytest.mark.parametrize(
    ("a", "b", "bound"),
    [
        # at most so much above the larger of LPDDR5 and PT alone
        ((1, 4096), (4096, 4096), 1.05),
        ((512, 4096), (4096, 4096), 1.25),
        ((4096, 4096), (4096, 4096), 1.25),
        ((32, 512, 128), (32, 128, 512), 1.05),
    ],
)
def test_plans_are_near_the_floor(a: tuple[int, ...], b: tuple[int, ...], bound: float) -> None:
    modelled = time_program(product(a, b).program(), spans=False)
    rates = Rates()
    floor = max(
        rates.dram(modelled.bytes_read, modelled.bytes_written),
        rates.pt(modelled.macs / 32, 64, Format.SEN169_FP16),
    )
    assert modelled.duration_ns <= bound * floor


def test_small_work_uses_few_cores() -> None:
    work = product((4, 64), (64, 64))
    work.program()
    assert work.kernel.cores == 1


def test_k_is_split_only_where_it_pays_a_lot() -> None:
    for a, b, split in [
        ((1, 4096), (4096, 4096), False),
        ((1, 4096), (4096, 1024), False),
        ((64, 64), (64, 64), False),
        ((1, 16384), (16384, 64), True),
    ]:
        work = product(a, b)
        work.program()
        assert ("k0" in work.kernel.splits) == split, (a, b)


def test_w8_no_core_spans_more_than_256_mib() -> None:
    for a, b in [((8192, 32768), (32768, 4096)), ((4, 16384), (16384, 32768))]:
        work = product(a, b)
        form = read_form(work.kernel, work.graph)
        numbers = product_of(form, work.graph)
        plan = plans_for(form, numbers, CompileOptions())[0]
        units = {axis.name: axis.unit for axis in numbers.axes}
        shares = {}
        for axis in numbers.axes:
            count = -(-axis.size // units[axis.name])
            share = -(-count // plan.parts.get(axis.name, 1)) * units[axis.name]
            shares[axis.name] = min(share, axis.size)
        assert all(moved.span(shares) <= SPAN_LIMIT for moved in numbers.moved)


def test_what_fits_no_core_is_refused() -> None:
    with pytest.raises(Unsupported, match="LX"):
        product((64, 4096), (4096, 64)).program(CompileOptions(card=Card(lx_bytes=16 << 10)))


def test_planning_takes_little_time() -> None:
    """The best of some runs, in CPU time; generous, since machines differ."""
    work = product((512, 4096), (4096, 4096))
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        work.program()
        best = min(best, time.process_time() - start)
    assert best < 0.05


def test_the_timing_model_may_choose_among_the_best() -> None:
    for a, b in [((512, 4096), (4096, 4096)), ((1024, 1024), (1024, 1024))]:
        work = product(a, b)
        first = time_program(work.program(), spans=False).duration_ns
        chosen = time_program(work.program(CompileOptions(confirm=3)), spans=False).duration_ns
        assert chosen <= first
        assert work.kernel.modelled_ns == chosen


def test_a_plan_for_symbolic_rows_is_good_for_few_and_many() -> None:
    g = GraphBuilder("mm")
    rows = g.size_symbol("rows", 1, 512, 1)
    left, right = g.input("a", [rows, 4096], "float16"), g.input("b", [4096, 4096], "float16")
    program = finish(g, rounded(g, g.matmul(left, right), "float16")).program()
    for count in (1, 16, 500):
        fixed = product((count, 4096), (4096, 4096)).program()
        symbolic = time_program(program, {"rows": count}, spans=False).duration_ns
        assert symbolic <= 1.1 * time_program(fixed, spans=False).duration_ns
