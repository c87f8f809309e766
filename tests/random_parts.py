"""What random programs are drawn from: host arrays, bodies, spaces of labels with splits and tiles,
dim orders. Every function draws from the generator it is given, in an order that a seed's program
depends on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from program_zoo import Arrays, Case, Rng

from openspyre.formats import STICK_BYTES, Format, Mode, format_for
from openspyre.program import ProgramBuilder, Span
from openspyre.program import body as f
from openspyre.program.body import BodyFunction, Reg
from openspyre.program.boxes import Boxes
from openspyre.program.expr import Const, Expr, ceil_div, expr
from openspyre.program.ops import BODY_OPS, register_of

DTYPES = (
    "float16",
    "bfloat16",
    "float32",
    "float8_e4m3fn",
    "float8_e5m2",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "bool",
)
FLOATS = DTYPES[:5]
RANGES = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint8": 8}
EXACT = {"f": Format.IEEE_FP32, "i": Format.IEEE_INT32, "l": Format.IEEE_INT64}
ROUNDED = (Format.SEN169_FP16, Format.IEEE_FP16, Format.BFLOAT16, Format.SEN143_FP8)


def pick(rng: Rng, items: Sequence[str]) -> str:
    return str(items[int(rng.integers(len(items)))])


def number(rng: Rng, low: int, high: int) -> int:
    """low .. high, both included."""
    return int(rng.integers(low, high + 1))


def chance(rng: Rng, share: float) -> bool:
    return bool(rng.random() < share)


def array(rng: Rng, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Host values of a dtype; floats with a special value now and then."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype == "float64":
        return rng.standard_normal(shape)
    if dtype in RANGES:
        bits = RANGES[dtype] if chance(rng, 0.5) else min(RANGES[dtype], 5)
        low = 0 if dtype == "uint8" else -(2 ** (bits - 1))
        high = 2**bits - 1 if dtype == "uint8" else 2 ** (bits - 1) - 1
        return rng.integers(low, high, shape, endpoint=True).astype(dtype)
    values = rng.standard_normal(shape) * float(rng.choice([0.01, 1.0, 1.0, 30.0, 3000.0]))
    if chance(rng, 0.3):
        special = rng.choice([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.0], shape)
        values = np.where(rng.random(shape) < 0.05, special, values)
    with np.errstate(over="ignore"):
        return values.astype("float16" if dtype == "float16" else "float32")


# --- bodies


def random_body(
    rng: Rng,
    results: Sequence[str],
    labels: Sequence[str],
    scalars: Mapping[str, str],
    longest: int = 10,
) -> BodyFunction:
    """A function of any registers to registers of the types `results`. `scalars`: symbols and the
    types they are read as. Draws when it is traced, so trace it once."""

    def of_type(pool: list[Reg], type_: str) -> Reg:
        found = [reg for reg in pool if reg.type == type_ and reg.number >= 0]
        if not found or chance(rng, 0.15):
            value = number(rng, 0, 1) if type_ == "b" else number(rng, -3, 3)
            if type_ == "f" and chance(rng, 0.5):
                return pool[0].const("f", float(rng.standard_normal()))
            return pool[0].const(type_, value)
        return found[int(rng.integers(len(found)))]

    def step(pool: list[Reg]) -> Reg:
        op = BODY_OPS[int(rng.integers(len(BODY_OPS)))]
        letter = pick(rng, op.types)
        trace = pool[0].trace
        if op.immediate == "input":
            return of_type(pool, letter)
        if op.immediate == "T":
            return of_type([pool[0].const(letter, 1)], letter)
        if op.immediate == "label":
            return pool[0].index(pick(rng, labels)) if labels else of_type(pool, "l")
        if op.immediate == "symbol":
            fitting = [name for name, type_ in scalars.items() if type_ == letter]
            return pool[0].scalar(pick(rng, fitting), letter) if fitting else of_type(pool, letter)
        immediate: int | str | None = None
        if op.immediate == "int":
            immediate = number(rng, 0, 3)
        elif op.immediate == "format":
            immediate = ROUNDED[int(rng.integers(len(ROUNDED)))].name
        elif op.immediate == "type":
            immediate = ("i" if letter == "f" else "f") if op.name == "bits" else pick(rng, "filb")
            if immediate == letter:
                return of_type(pool, letter)
        args = [of_type(pool, letter if o == "T" else o) for o in op.operands]
        return trace.note(op.name, letter, args, immediate)

    def body(*inputs: Reg) -> tuple[Reg, ...]:
        pool = list(inputs)
        for _ in range(number(rng, 1, longest)):
            pool.append(step(pool))
        out = []
        for type_ in results:
            last = [reg for reg in pool[-3:] if reg.number >= 0]
            chosen = last[int(rng.integers(len(last)))] if last else of_type(pool, type_)
            out.append(f.cast(chosen, type_))
        return tuple(out)

    return body


def result_type(rng: Rng, format: Format) -> str:
    """A register type that can be stored in the format: its own, or a truth value."""
    register = register_of(format)
    assert register is not None
    return "b" if chance(rng, 0.1) else register.value


# --- spaces: the labels of a program, how they are split and tiled


@dataclass(frozen=True)
class Space:
    """Labels with sizes, shares of cores and tile sizes."""

    sizes: dict[str, int]
    grid: dict[str, int]  # digit -> size; digit `at_x` splits label x
    tiles: dict[str, int]
    unit: int

    def boxes(
        self,
        b: ProgramBuilder,
        whole: Sequence[str] = (),
        symbolic: Mapping[str, Expr] | None = None,
    ) -> Boxes:
        """Splits and tiles; labels in `whole` are one tile, those in `symbolic` have that size."""
        ranges: dict[str, tuple[Span, int] | tuple[Expr, int] | Expr] = {}
        for label, known in self.sizes.items():
            size = (symbolic or {}).get(label, expr(known))
            if label in whole:
                ranges[label] = size
            elif f"at_{label}" in self.grid:
                mine = b.split(f"mine_{label}", size, f"at_{label}", unit=self.steps(label))
                ranges[label] = (mine, self.tiles[label])
            else:
                ranges[label] = (size, self.tiles[label])
        return b.boxes(**ranges)  # type: ignore[arg-type]

    def steps(self, label: str) -> int:
        """Splits and tiles of a label that may lie on a stick begin at whole sticks."""
        return self.unit if self.sizes[label] > 8 else 1

    def tile(self, labels: Sequence[str], whole: Sequence[str] = ()) -> tuple[int, ...]:
        return tuple(self.sizes[label] if label in whole else self.tiles[label] for label in labels)


def random_space(
    rng: Rng, rank: int, unit: int, whole: Sequence[str] = (), most: int = 2500, cores: int = 8
) -> Space:
    """`unit`: elements a stick of the narrowest format; labels above 8 may lie on sticks, smaller
    ones may only when they are one tile."""
    names = [f"d{i}" for i in range(rank)]
    sizes = {}
    for name in names:
        sizes[name] = number(rng, 9, 200) if chance(rng, 1 / rank) else number(rng, 1, 7)
    if all(size <= 8 for size in sizes.values()):
        sizes[names[-1]] = number(rng, 9, 200)
    while math.prod(sizes.values()) > most:
        # One label above 8 stays: it is the one that may lie on sticks.
        order = sorted(sizes, key=lambda label: sizes[label])
        name = order[-1] if sizes[order[-1]] >= 18 else order[-2]
        sizes[name] = max(1, sizes[name] // 2)
    grid: dict[str, int] = {}
    for name in names:
        left = cores // math.prod(grid.values())
        if name not in whole and left > 1 and chance(rng, 0.6):
            grid[f"at_{name}"] = number(rng, 1, left)
    if not grid:
        grid["only"] = 1
    tiles = {}
    for name, size in sizes.items():
        tiles[name] = min(size, number(rng, 1, 2) * unit) if size > 8 else number(rng, 1, size)
    return Space(sizes, grid, tiles, unit)


def start(rng: Rng, name: str, grid: Mapping[str, int]) -> tuple[ProgramBuilder, dict[str, str]]:
    """A builder with some symbols, and what bodies may read them as."""
    mode = Mode.DL16 if chance(rng, 0.7) else Mode.IEEE
    b = ProgramBuilder(name, grid, mode=mode)
    b.float_symbol("alpha")
    b.int_symbol("count", minimum=-(2**40), maximum=2**40)
    return b, {"alpha": "f", "count": "l"}


def finish(b: ProgramBuilder, inputs: Mapping[str, tuple[tuple[int, ...], str]]) -> Case:
    """The case of a program whose in and inout operands have these shapes and dtypes."""

    def make_inputs(rng: Rng) -> Arrays:
        return {name: array(rng, shape, dtype) for name, (shape, dtype) in inputs.items()}

    return Case(b.build(), make_inputs, lambda _: {}, symbols={"alpha": 0.75, "count": 12345})


def formats_unit(dtypes: Sequence[str], mode: Mode = Mode.DL16) -> int:
    return max(format_for(dtype, mode).elements_per_stick for dtype in dtypes)


def some_strides(
    rng: Rng, sizes: Sequence[Expr], order: Sequence[int] | None, format: Format, stored: bool
) -> tuple[list[Expr], int]:
    """Strides of its own for an operand with the stick dim of `order`, and that dim: dims nested in
    any order with gaps; what is only read may overlap itself or not move at all."""
    stick = (tuple(order) if order is not None else (*range(len(sizes)),) or (-1,))[-1]
    strides: list[Expr] = [Const(0)] * len(sizes)
    pitch: Expr = Const(STICK_BYTES * number(rng, 1, 3))
    for dim in (int(i) for i in rng.permutation(len(sizes))):
        if not stored and chance(rng, 0.15):
            continue
        count = ceil_div(sizes[dim], format.elements_per_stick) if dim == stick else sizes[dim]
        strides[dim] = pitch
        if stored or chance(rng, 0.9):
            pitch = pitch * count + STICK_BYTES * number(rng, 0, 2)
    return strides, stick


def orders(rng: Rng, labels: Sequence[str], space: Space) -> tuple[int, ...] | None:
    """A dim order whose stick dim can be tiled: a label above 8, or one that is a single tile."""
    if not labels or chance(rng, 0.4):
        wanted = list(range(len(labels)))
    else:
        wanted = [int(i) for i in rng.permutation(len(labels))]
    if chance(rng, 0.2) and math.prod(space.sizes[label] for label in labels) <= 500:
        return (*wanted, -1)
    large = [i for i in wanted if space.sizes[labels[i]] > 8]
    if not large:
        return (*wanted, -1)
    if wanted and wanted[-1] not in large:
        wanted.remove(large[-1])
        wanted.append(large[-1])
    return tuple(wanted)
