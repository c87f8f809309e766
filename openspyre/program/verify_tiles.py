"""Tiles as sets of sticks with what each stick holds: the geometry that the verifier compares.

A stick of a tile is known by the row-major linear index of its first element in the value and the
number of its valid elements; what is the same for the whole tile (value, format, dim on the stick,
lanes) is interned as one number, the *kind*. Equal kind, first element and enough valid elements
mean that a reader gets what the writer put there, and vice versa.

May import numpy; imports no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from openspyre.formats import STICK_BYTES
from openspyre.program.concrete import Instance, Tile
from openspyre.program.verify_error import VerifyError

MAX_LINEAR = 1 << 60


@dataclass(frozen=True)
class Geometry:
    """A tile without its address and without the start of its box. Sticks ascend."""

    sticks: np.ndarray  # int64, from the lowest
    low: int  # the lowest stick, counted from the tile's address
    run: bool  # one stick after the other, no gap
    firsts: np.ndarray  # int64, first element of each stick, from the box's start
    valid: np.ndarray  # int16, valid elements of each stick
    distinct: bool  # no stick twice

    @property
    def count(self) -> int:
        return len(self.sticks)


@dataclass(frozen=True)
class Placed:
    """A tile at its place: which sticks of a memory, and what they hold."""

    tile: Tile
    geometry: Geometry
    stick: int  # its lowest
    first: int  # linear index of the box's start
    kind: int

    @property
    def where(self) -> slice | np.ndarray:
        """Index into the arrays of a memory."""
        if self.geometry.run:
            return slice(self.stick, self.stick + self.geometry.count)
        return self.geometry.sticks + self.stick

    @property
    def firsts(self) -> np.ndarray:
        return self.geometry.firsts + self.first

    @property
    def end(self) -> int:
        """One past its last stick."""
        return self.stick + int(self.geometry.sticks[-1]) + 1

    def overlaps(self, other: Placed) -> bool:
        """Whether they share a stick."""
        if self.stick >= other.end or other.stick >= self.end:
            return False
        if self.geometry.run and other.geometry.run:
            return True
        mine = self.geometry.sticks + self.stick
        return bool(np.isin(mine, other.geometry.sticks + other.stick).any())

    def same_place(self, other: Placed) -> bool:
        """Whether every point lies at the same address, element for element."""
        a, b = self.tile, other.tile
        return (
            a.address == b.address
            and a.counts == b.counts
            and a.eps == b.eps
            and a.point_bytes == b.point_bytes
            and (a.stick == b.stick)
            and all(x == y for x, y, n in zip(a.strides, b.strides, a.counts, strict=True) if n > 1)
        )

    def bytes(self, position: int) -> str:
        """Where its stick number `position` lies, for messages."""
        at = (int(self.geometry.sticks[position]) + self.stick) * STICK_BYTES
        return f"bytes {at}..{at + STICK_BYTES - 1}"

    def element(self, position: int, shape: tuple[int, ...]) -> str:
        """The index of the first element of stick `position`."""
        linear = int(self.geometry.firsts[position]) + self.first
        return show_element(linear, shape, self.tile)


def show_element(linear: int, shape: tuple[int, ...], tile: Tile | None = None) -> str:
    if tile is not None and tile.access.lanes:
        linear //= tile.point_bytes // STICK_BYTES
    out: list[int] = []
    for size in reversed(shape):
        out.append(linear % size)
        linear //= size
    return "[" + ", ".join(map(str, reversed(out))) + "]"


class Tiles:
    """Makes `Placed` tiles of one instance; keeps what repeats."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.kinds: list[tuple[str, str, int, bool]] = []  # value, format, dim on stick, lanes
        self._kind: dict[tuple[str, str, int, bool], int] = {}
        self._geometry: dict[tuple[object, ...], Geometry] = {}
        self._strides: dict[str, tuple[int, ...]] = {}
        for name, shape in instance.shapes.items():
            if math.prod(shape) > MAX_LINEAR:
                raise VerifyError(1, f"value {name}", f"shape {shape} has more than 2^60 elements")
            if any(size < 1 for size in (*shape, *instance.reduced.get(name, ()))):
                raise VerifyError(1, f"value {name}", f"shape {shape} has a size below 1")
            strides, pitch = [], 1
            for size in reversed(shape):
                strides.append(pitch)
                pitch *= size
            self._strides[name] = tuple(reversed(strides))

    def place(self, tile: Tile, base: int = 0) -> Placed:
        """The tile on its memory, `base` bytes from the memory's start. Its bounds must have been
        checked: the arrays are as long as the tile has sticks."""
        access = tile.access
        value_strides = self._strides[access.value]
        key = (
            tile.sizes, tile.strides, tile.stick, tile.eps, tile.dims, tile.point_bytes,
            value_strides,
        )  # fmt: skip
        geometry = self._geometry.get(key)
        if geometry is None:
            if len(self._geometry) > 4096:
                self._geometry.clear()
            geometry = self._geometry[key] = _geometry(tile, value_strides)
        per_point = tile.point_bytes // STICK_BYTES
        first = sum(start * step for (start, _), step in zip(tile.box, value_strides, strict=True))
        stick_dim = tile.dims.index(tile.stick) if tile.stick >= 0 else -1
        name = (access.value, access.format.name, stick_dim, access.lanes)
        kind = self._kind.get(name)
        if kind is None:
            kind = self._kind[name] = len(self.kinds)
            self.kinds.append(name)
        stick = (tile.address + base) // STICK_BYTES + geometry.low
        return Placed(tile, geometry, stick, first * per_point, kind)

    def describe(self, kind: int) -> str:
        value, format, dim, lanes = self.kinds[kind]
        how = "lane accumulators" if lanes else "sparse" if dim < 0 else f"dim {dim} on the stick"
        return f"{value} ({format}, {how})"


def _geometry(tile: Tile, value_strides: tuple[int, ...]) -> Geometry:
    sticks = np.zeros(1, dtype=np.int64)
    firsts = np.zeros(1, dtype=np.int64)
    valid = np.ones(1, dtype=np.int16)
    per_point = tile.point_bytes // STICK_BYTES
    for position, (count, stride) in enumerate(zip(tile.counts, tile.strides, strict=True)):
        step = sum(
            size for dim, size in zip(tile.dims, value_strides, strict=True) if dim == position
        )
        steps = np.arange(count, dtype=np.int64)
        on_stick = position == tile.stick
        if count > 1:
            sticks = (sticks[:, None] + steps * (stride // STICK_BYTES)).ravel()
            move = step * tile.eps if on_stick else step
            firsts = (firsts[:, None] + steps * move).ravel()
        if on_stick:
            extents = np.minimum(tile.eps, tile.sizes[position] - steps * tile.eps).astype(np.int16)
            valid = (valid[:, None] * extents).ravel()
        elif count > 1:
            valid = np.repeat(valid, count)
    if per_point > 1:
        part = np.arange(per_point, dtype=np.int64)
        sticks = (sticks[:, None] + part).ravel()
        firsts = (firsts[:, None] * per_point + part).ravel()
        valid = np.repeat(valid, per_point)
    order = np.argsort(sticks, kind="stable")
    sticks, firsts, valid = sticks[order], firsts[order], valid[order]
    steps = np.diff(sticks)
    low = int(sticks[0])
    return Geometry(
        sticks=sticks - low,
        low=low,
        run=bool((steps == 1).all()),
        firsts=firsts,
        valid=valid,
        distinct=bool((steps > 0).all()),
    )
