"""Listings of programs: which bytes each core moves."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from openspyre.cli import main
from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.compile import compile_graph
from openspyre.compiler.graph import Role
from openspyre.compiler.lower.registry import lower_op
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.schedule.common import place_of
from openspyre.compiler.view import View
from openspyre.formats import Mode
from openspyre.program import Program
from openspyre.program.listing import listing
from openspyre.program.text import to_text


def absolute(rows: int, columns: int, cores: int) -> Program:
    """The compiler's program for abs of a float16 tensor."""
    b = GraphBuilder("abs", Mode.DL16)
    x = b.input("x", (rows, columns), "float16")
    y = lower_op(b, "aten.abs.default", [x], {})
    place = place_of((rows, columns), "float16", Mode.DL16)
    out = b.tensor("y", (rows, columns), "float16", Role.OUTPUT, place)
    assert isinstance(y, View)
    b.store(View.of(out), y)
    options = CompileOptions(cores=cores, split=(("rows", cores),))
    (step,) = compile_graph(b.graph, options).steps
    return step.program  # type: ignore[union-attr]


def test_p9_start_addresses_of_each_core() -> None:
    found = listing(absolute(4, 64, 2))
    first = {(s.operand, s.core): s.first for s in found.shares}
    assert found.bases == {"x": 0, "y": 512}
    assert first == {("x", 0): 0, ("x", 1): 256, ("y", 0): 512, ("y", 1): 768}
    assert {s.nbytes for s in found.shares} == {256}
    assert found.computes == (("sfu", "map (abs, round)"),)


def test_every_byte_is_moved_by_one_core_and_bases_move_the_addresses() -> None:
    program = absolute(37, 150, 5)
    found = listing(program, bases={"x": 4096, "y": 1 << 20})
    for operand in ("x", "y"):
        shares = sorted((s.first, s.end, s.nbytes) for s in found.shares if s.operand == operand)
        base = found.bases[operand]
        assert sum(nbytes for *_, nbytes in shares) == found.nbytes[operand] == 37 * 3 * 128
        assert shares[0][0] == base
        assert max(end for _, end, _ in shares) == base + found.nbytes[operand]


def test_the_command_prints_a_row_a_core(tmp_path: Path) -> None:
    path = tmp_path / "abs.txt"
    path.write_text(to_text(absolute(4, 64, 2)))
    result = CliRunner().invoke(main, ["program", "show", str(path), "--cores"])
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.output.splitlines() if line.strip()[:1].isdigit()]
    assert rows == [
        ["0", "0..256", "x1", "512..768", "x1"],
        ["1", "256..512", "x1", "768..1024", "x1"],
    ]
    result = CliRunner().invoke(main, ["program", "show", str(path), "--cores", "--json"])
    assert json.loads(result.output)[0]["bases"] == {"x": 0, "y": 512}
