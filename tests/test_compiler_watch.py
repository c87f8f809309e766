"""Compilations to look at: files of each pass, invariants after each pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from openspyre.compiler import compile as compiling
from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.errors import CompileError
from openspyre.compiler.graph import Graph, Role
from openspyre.compiler.lower.registry import lower_op
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.passes import PASSES
from openspyre.compiler.schedule.common import place_of
from openspyre.compiler.view import View
from openspyre.formats import Mode
from openspyre.program.text import from_text


def softmax() -> Graph:
    b = GraphBuilder("soft/max", Mode.DL16)
    x = b.input("x", (8, 150), "float16")
    y = lower_op(b, "aten._softmax.default", [x, -1, False], {})
    assert isinstance(y, View)
    out = b.tensor("y", (8, 150), "float16", Role.OUTPUT, place_of((8, 150), "float16", b.mode))
    b.store(View.of(out), y)
    return b.graph


def test_every_pass_leaves_a_file_and_every_program_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENSPYRE_DUMP", str(tmp_path))
    region = compiling.compile_graph(softmax(), CompileOptions())
    (place,) = tmp_path.iterdir()
    assert place.name.endswith("-soft_max")
    files = sorted(path.name for path in place.iterdir())
    names = ["given", *(run.__name__ for run in PASSES)]
    assert files[: len(names)] == [f"{n:02}-{name}.txt" for n, name in enumerate(names)]
    assert "softmax" in (place / files[0]).read_text()
    (program,) = region.programs
    assert from_text((place / files[-1]).read_text()) == program


def test_a_pass_that_breaks_an_invariant_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def canonicalize(graph: Graph, options: CompileOptions) -> None:
        graph.ops.reverse()  # what is read is not made yet

    monkeypatch.setattr(compiling, "PASSES", (canonicalize,))
    monkeypatch.setenv("OPENSPYRE_VERIFY", "1")
    with pytest.raises(CompileError, match="after the pass canonicalize"):
        compiling.compile_graph(softmax(), CompileOptions())
