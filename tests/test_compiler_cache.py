"""openspyre.compiler.cache: keys without names, files that survive, damage that is a miss."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from openspyre.cli import main
from openspyre.compiler import cache
from openspyre.compiler.bind import place_for
from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.compile import CopyStep, ProgramStep, Region
from openspyre.compiler.graph import Access, Affine, Alias, Graph, Op, OpKind, Place, Role, Tensor
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.tiles import Kernel
from openspyre.formats import Format, Mode
from openspyre.program.binary import encode
from openspyre.program.builder import ProgramBuilder
from openspyre.program.expr import Var
from openspyre.program.model import Program

OPTIONS = CompileOptions()


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENSPYRE_CACHE_DIR", str(tmp_path / "cache"))
    cache.forget()
    return tmp_path / "cache"


def add_graph(n: int = 64, factor: float = 2.0, place: Place | None = None) -> Graph:
    b = GraphBuilder("add")
    bound = place_for((n,), (1,), Format.IEEE_FP32)
    assert bound is not None
    x = b.input("a0", (n,), "float32", place=place or bound.place)
    y = b.scalar("s0", 1.5)
    b.output(b.map(lambda p, q: p * factor + q, x, y, dtype="float32"))
    return b.graph


def copy_program(n: int = 64) -> Program:
    b = ProgramBuilder("copy")
    x = b.input("x", (n,), "float32")
    y = b.output("y", (n,), "float32")
    del x, y
    return b.build()


def region() -> Region:
    program = copy_program()
    x = Tensor("x", (64,), "float32", Role.INPUT, Place((128,), 0))
    t = Tensor("t", (64,), "float32", Role.TEMP, Place((128,), 0))
    n = Tensor("n", (Var("s"), 3), "float32", Role.TEMP, Place((128, 128), -1))
    c = Tensor("c", (2,), "float32", Role.CONST, Place((128,), 0), np.array([1, 2], np.float32))
    a = Tensor("a", (64,), "float32", Role.INPUT, Place((128,), 0))
    a.alias = Alias(x, (Affine((("d0", 1),)),), 128)
    graph = Graph("region", Mode.DL16, [x, t, n, c, a])
    index = (Affine((("i", -1),), 63),)
    copy = Op(OpKind.COPY, "aten.flip.default", {"i": 64}, [Access(x, index)], [
        Access(t, (Affine((("i", 1),)),))], source="7")  # fmt: skip
    graph.ops.append(copy)
    kernel = Kernel("rows", [copy], [x, t], frozenset(("t",)), cores=3)
    return Region(
        graph,
        [ProgramStep(program, [x, t], kernel), CopyStep(copy.inputs[0], copy.outputs[0], copy)],
    )


def test_keys_do_not_depend_on_labels_or_hints() -> None:
    first, second = add_graph(), add_graph()  # fresh labels each
    assert first.ops[0].labels != second.ops[0].labels
    assert cache.graph_key(first, OPTIONS) == cache.graph_key(second, OPTIONS)
    second.symbols["s0"] = type(second.symbols["s0"])("s0", "float", -(2**63), 2**63 - 1, 9.0)
    assert cache.graph_key(first, OPTIONS) == cache.graph_key(second, OPTIONS)


def test_keys_tell_sizes_bodies_places_and_options_apart() -> None:
    keys = {
        cache.graph_key(add_graph(), OPTIONS),
        cache.graph_key(add_graph(65), OPTIONS),
        cache.graph_key(add_graph(factor=3.0), OPTIONS),
        cache.graph_key(add_graph(place=Place((256,), 0)), OPTIONS),
        cache.graph_key(add_graph(), CompileOptions(cores=4)),
        cache.graph_key(add_graph(), CompileOptions(mode=Mode.IEEE)),
    }
    assert len(keys) == 6


def test_constants_are_part_of_the_key() -> None:
    def graph(value: float) -> Graph:
        b = GraphBuilder("c")
        c = b.constant(np.full(4, value, np.float32), "float32")
        b.output(b.copy(c))
        return b.graph

    assert cache.graph_key(graph(1), OPTIONS) != cache.graph_key(graph(2), OPTIONS)


def test_a_region_survives_the_disk() -> None:
    made = region()
    cache.store_region("ab" * 16, made)
    found = cache.load_region("ab" * 16)
    assert found is not None
    assert [t.name for t in found.graph.tensors] == ["x", "t", "n", "c", "a"]
    for before, after in zip(made.graph.tensors, found.graph.tensors, strict=True):
        assert (before.shape, before.dtype, before.role, before.place) == (
            after.shape, after.dtype, after.role, after.place)  # fmt: skip
    data = found.graph.tensors[3].data
    assert data is not None and np.array_equal(data, [1, 2])
    alias = found.graph.tensors[4].alias
    assert alias is not None and alias.of is found.graph.tensors[0] and alias.offset == 128
    step, copy = found.steps
    assert isinstance(step, ProgramStep) and isinstance(copy, CopyStep)
    assert encode(step.program) == encode(made.programs[0])
    assert [t.name for t in step.arguments] == ["x", "t"]
    assert step.kernel.cores == 3
    assert [op.source for op in step.kernel.ops] == ["7"] and copy.op.source == "7"
    assert copy.op.labels == {"i": 64}
    assert copy.source.index == (Affine((("i", -1),), 63),)


def test_damage_is_a_miss_and_is_found(own_directory: Path) -> None:
    cache.store_region("cd" * 16, region())
    (entry,) = cache.ls()
    assert entry.current and entry.kind == "programs" and cache.verify() == []
    whole = entry.path.read_bytes()
    for damaged in (b"", whole[:40], whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), whole + b"x"):
        entry.path.write_bytes(damaged)
        assert cache.load_region("cd" * 16) is None
        assert [bad.key for bad in cache.verify()] == ["cd" * 16]
    cache.store_region("cd" * 16, region())  # written again
    assert cache.load_region("cd" * 16) is not None


def test_texts(own_directory: Path) -> None:
    cache.store_text("regions", "k1", "text")
    assert cache.load_text("regions", "k1") == "text"
    assert cache.load_text("regions", "k2") is None


def test_prune_keeps_what_was_used_last() -> None:
    import os

    for n, key in enumerate(("aa" * 16, "bb" * 16, "cc" * 16)):
        cache.store_bytes("programs", key, bytes(1000))
        path = next(e.path for e in cache.ls() if e.key == key)
        os.utime(path, (n, n))
    size = cache.ls()[0].bytes
    cache.prune(2 * size)
    assert [e.key for e in cache.ls()] == ["cc" * 16, "bb" * 16]
    assert cache.clear() == 2 * size
    assert cache.ls() == []


def test_other_versions_are_pruned(own_directory: Path) -> None:
    other = own_directory / ("0" * 16) / "programs" / "aa" / ("aa" * 16)
    other.parent.mkdir(parents=True)
    other.write_bytes(b"old")
    stranger = own_directory / "notes.txt"
    stranger.write_text("not ours")
    assert [e.current for e in cache.ls()] == [False]
    assert cache.prune(1 << 30) == 3
    cache.clear()
    assert stranger.exists()


def test_the_list_sums_up_versions_when_there_are_several(own_directory: Path) -> None:
    cache.store_bytes("programs", "ab" * 16, bytes(1000))
    (own,) = cache.ls()
    once = CliRunner().invoke(main, ["cache", "ls"])
    assert once.exit_code == 0 and "versions of the compiler" not in once.output
    for key, size in (("cc" * 16, 30), ("dd" * 16, 12)):
        other = own_directory / ("0" * 16) / "programs" / key[:2] / key
        other.parent.mkdir(parents=True)
        other.write_bytes(bytes(size))
    lines = CliRunner().invoke(main, ["cache", "ls"]).output.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.startswith("  ")}
    assert rows["0" * 16][:4] == ["2", "entries", "42", "B"]
    assert rows[own.version][:4] == ["1", "entries", f"{own.bytes:,}", "B"]
    assert "this one" in " ".join(rows[own.version])
    assert lines[-1].startswith("3 entries")


def test_off_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENSPYRE_CACHE_DIR", "off")
    cache.store_text("regions", "k", "text")
    assert cache.load_text("regions", "k") is None
    assert cache.ls() == [] and cache.clear() == 0


def test_a_directory_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("OPENSPYRE_CACHE_DIR", str(file / "below"))
    cache.store_text("regions", "k", "text")
    assert cache.load_text("regions", "k") is None


def _write_often(directory: str, number: int) -> None:
    import os

    os.environ["OPENSPYRE_CACHE_DIR"] = directory
    for n in range(50):
        cache.store_bytes("programs", "ee" * 16, bytes([number]) * (1000 + n))
        data = cache.load_bytes("programs", "ee" * 16)
        assert data is not None and len(set(data)) == 1


def test_processes_share_a_directory(own_directory: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write_often, args=(str(own_directory), n)) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert len(cache.ls()) == 1
    assert not list(own_directory.rglob(".*"))
