"""Where the elements and the sticks of a tile lie, as arrays of byte addresses.

The axes of every array are the labels of the instruction in order; a label that does not move the
tile has length one, so that numpy's broadcasting is the card's. A `lanes` tile has a last axis of
64. May import numpy; imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openspyre.formats import STICK_BYTES
from openspyre.program.concrete import Tile
from openspyre.program.ops import LANE_ACCUMULATORS
from openspyre.reference.numbers import Array


def element_bytes(tile: Tile) -> int:
    return tile.access.format.bytes


def offsets(tile: Tile, label: int, positions: Array) -> Array:
    """Bytes that local indices of one label add to the address. int64, in positions' shape."""
    stride = tile.strides[label]
    if label == tile.stick:
        return positions // tile.eps * stride + positions % tile.eps * element_bytes(tile)
    return positions * stride


def along(label: int, rank: int, values: Array) -> Array:
    """A vector laid along one axis of `rank`."""
    return values.reshape([-1 if axis == label else 1 for axis in range(rank)])


def _moved(tile: Tile, label: int) -> bool:
    return label == tile.stick or tile.strides[label] != 0


def elements(tile: Tile, replaced: dict[int, Array] | None = None) -> Array:
    """Byte address of every element. `replaced`: local indices (any broadcastable shape of the
    labels' rank) to use along a label instead of 0 .. size-1."""
    rank = len(tile.sizes)
    out = np.full([1] * rank, tile.address, dtype=np.int64)
    for label, size in enumerate(tile.sizes):
        if replaced and label in replaced:
            out = out + offsets(tile, label, replaced[label])
        elif _moved(tile, label):
            out = out + along(label, rank, offsets(tile, label, np.arange(size, dtype=np.int64)))
    if tile.access.lanes:
        out = out[..., None] + np.arange(LANE_ACCUMULATORS) * element_bytes(tile)
    return out


def stick_grid(
    tile: Tile, counts: Sequence[int], replaced: dict[int, Array] | None = None
) -> Array:
    """Byte address of every stick, for `counts` steps along each label (sticks of the label on the
    stick); a last axis for the sticks of one point."""
    rank = len(tile.sizes)
    out = np.full([1] * rank, tile.address, dtype=np.int64)
    for label, count in enumerate(counts):
        steps = along(label, rank, np.arange(count, dtype=np.int64))
        if replaced and label in replaced:
            steps = replaced[label]
        if tile.strides[label] != 0:
            out = out + steps * tile.strides[label]
    return out[..., None] + np.arange(tile.point_bytes // STICK_BYTES) * STICK_BYTES


def moves(tile: Tile, other: Tile) -> list[int]:
    """Steps of a transfer between two tiles along every label: elements, or sticks."""
    return [
        -(-size // tile.eps) if label in (tile.stick, other.stick) else size
        for label, size in enumerate(tile.sizes)
    ]
