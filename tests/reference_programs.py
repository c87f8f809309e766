"""One computation on one core, as a whole program: what the tests of the reference executor run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from openspyre import reference
from openspyre.formats import Format, Mode, Numerics, format_for
from openspyre.program import Program, ProgramBuilder
from openspyre.program.boxes import Tile
from openspyre.program.model import Role

Arrays: TypeAlias = dict[str, np.ndarray]
Tiles: TypeAlias = dict[str, Tile]
Work: TypeAlias = "Callable[[ProgramBuilder, Tiles], None]"


@dataclass(frozen=True)
class Given:
    """An operand of a one-core program. `sparse`: one element a stick. A `role` other than IN or
    OUT says that it is both loaded and stored."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    array: np.ndarray | None = None
    format: Format | None = None
    sparse: bool = False


def given(array: object, dtype: str = "float32", **rest: object) -> Given:
    """An input with these values."""
    values = np.asarray(array)
    return Given(values.shape, dtype, values, **rest)  # type: ignore[arg-type]


def build(
    work: Work,
    inputs: Mapping[str, Given],
    outputs: Mapping[str, Given],
    *,
    unit: str = "sfu",
    mode: Mode = Mode.DL16,
    floats: Sequence[str] = (),
    integers: Sequence[str] = (),
    cores: int = 1,
) -> Program:
    """A program that loads all inputs whole, does `work` in the queue of `unit` and stores all
    outputs. `work` gets the builder and the tiles by operand name."""
    b = ProgramBuilder("one_core", {"c": cores}, mode=mode)
    for name in floats:
        b.float_symbol(name)
    for name in integers:
        b.int_symbol(name, minimum=-(2**63))
    tensors, tiles = {}, {}
    for name, one in {**inputs, **outputs}.items():
        role = Role.IN if name in inputs else Role.OUT
        order = (*range(len(one.shape)), -1) if one.sparse else None
        found = one.format or format_for(one.dtype, mode)
        tensors[name] = b.operand(role, name, one.shape, one.dtype, format=found, order=order)
        stick = None if one.sparse else -1
        tiles[name] = b.lx(f"{name}_lx", tensors[name], one.shape, stick=stick)
    b.token("ready")
    b.token("done")

    def labels(one: Given) -> tuple[dict[str, int], tuple[str, ...]]:
        names = tuple(f"d{dim}" for dim in range(len(one.shape)))
        return dict(zip(names, one.shape, strict=True)), names

    with b.queue("load"):
        for name, one in inputs.items():
            over, names = labels(one)
            b.load(over, tensors[name][names], tiles[name][names])
        b.signal("ready")
    with b.queue(unit):
        b.wait("ready")
        work(b, tiles)
        b.signal("done")
    with b.queue("store"):
        b.wait("done")
        for name, one in outputs.items():
            over, names = labels(one)
            b.store(over, tiles[name][names], tensors[name][names])
    return b.build()


def buffers(
    program: Program,
    values: Mapping[str, np.ndarray],
    numerics: Numerics,
    symbols: Mapping[str, int | float] | None = None,
) -> Arrays:
    """Device bytes of every launch argument: packed values, or nothing."""
    return {
        operand.name: reference.pack(operand, values[operand.name], numerics, symbols)
        if operand.name in values
        else reference.empty(operand, symbols)
        for operand in program.arguments
    }


def results(
    program: Program,
    data: Mapping[str, np.ndarray],
    numerics: Numerics,
    symbols: Mapping[str, int | float] | None = None,
) -> Arrays:
    """The logical arrays of what a program writes."""
    return {
        operand.name: reference.unpack(operand, data[operand.name], numerics, symbols)
        for operand in program.arguments
        if operand.role is not Role.IN
    }


def compute(
    work: Work,
    inputs: Mapping[str, Given],
    outputs: Mapping[str, Given],
    *,
    unit: str = "sfu",
    numerics: Numerics | None = None,
    symbols: Mapping[str, int | float] | None = None,
) -> Arrays:
    """Builds, runs with checks, and gives the outputs."""
    numerics, symbols = numerics or Numerics(), symbols or {}
    program = build(
        work,
        inputs,
        outputs,
        unit=unit,
        mode=numerics.mode,
        floats=[name for name, value in symbols.items() if isinstance(value, float)],
        integers=[name for name, value in symbols.items() if not isinstance(value, float)],
    )
    values = {name: one.array for name, one in inputs.items() if one.array is not None}
    data = buffers(program, values, numerics, symbols)
    reference.run(program, data, symbols, numerics)
    return results(program, data, numerics, symbols)


def same(got: np.ndarray, expected: np.ndarray) -> None:
    """Equal bit for bit, all NaNs being one."""
    expected = np.asarray(expected)
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    if got.dtype == np.float32:
        nan = np.float32(np.nan)
        got = np.where(np.isnan(got), nan, got).view(np.uint32)
        expected = np.where(np.isnan(expected), nan, expected).view(np.uint32)
    np.testing.assert_array_equal(got, expected)
