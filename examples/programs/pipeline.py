"""Two kernels, one after the other: scores = x @ w, then probabilities = softmax(scores).

Each is a Program of its own. `STEPS` says which tensor is which launch argument; `scores` lives in
LPDDR5 between the two. Both launches go to one stream, which orders them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from examples.programs import matmul, rows
from openspyre.formats import Mode
from openspyre.program import Program


@dataclass(frozen=True)
class Step:
    """A program and the names of the tensors that are its arguments, in order."""

    program: Program
    arguments: tuple[str, ...]


def build(
    m: int = 512,
    k: int = 1024,
    n: int = 2048,
    *,
    grid: tuple[int, int] = (4, 8),
    dtype: str = "float16",
    mode: Mode = Mode.DL16,
) -> tuple[Step, Step]:
    """x [m, k], w [k, n], scores and probabilities [m, n]."""
    product = matmul.build(m, k, n, grid=grid, dtype=dtype, out_dtype=dtype, mode=mode)
    normal = rows.softmax(m, n, dtype=dtype, cores=grid[0] * grid[1], mode=mode)
    return Step(product, ("x", "w", "scores")), Step(normal, ("scores", "probabilities"))


def reference(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Without the rounding of `scores`."""
    return rows.softmax_reference(matmul.reference(x, w))
