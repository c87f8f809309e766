"""Rule 7 for STOREs by index: every element of the source is offered to every position once.

A scatter splits its positions into windows, one for each core, and its source into tiles. Each
pair (position, source element) must occur in exactly one task: else an index inside the limit
finds nobody to store it, or finds two.
Part of the verifier; may import numpy, imports no torch.
"""

from __future__ import annotations

import math

import numpy as np

from openspyre.program.concrete import Task
from openspyre.program.verify_error import VerifyError


class Scattered:
    """The tasks that scatter one value into one operand."""

    def __init__(self, value: str, limit: int, shape: tuple[int, ...]) -> None:
        self.value, self.limit, self.shape = value, limit, shape
        self._starts = np.zeros((0, len(shape) + 1), dtype=np.int64)
        self._ends = self._starts
        self._used = 0
        self._volume = 0

    def add(
        self, task: Task, limit: int, window: tuple[int, int], box: tuple[tuple[int, int], ...]
    ) -> None:
        """One task: positions window[0]..window[1]-1, source elements `box` of (start, size)."""
        if limit != self.limit:
            raise VerifyError(7, task, f"the limit is {limit} here and {self.limit} elsewhere")
        starts = np.array([window[0], *(start for start, _ in box)], dtype=np.int64)
        ends = np.array([window[1], *(start + size for start, size in box)], dtype=np.int64)
        used = self._used
        meets = (starts < self._ends[:used]) & (ends > self._starts[:used])
        if meets.all(axis=1).any():
            raise VerifyError(
                7,
                task,
                f"offers elements of {self.value} to positions {window[0]}..{window[1] - 1} once"
                " more",
            )
        if used == len(self._starts):
            grown = np.zeros((max(16, 2 * used), len(starts)), dtype=np.int64)
            old_starts, old_ends = self._starts, self._ends
            self._starts, self._ends = grown, grown.copy()
            self._starts[:used], self._ends[:used] = old_starts, old_ends
        self._starts[used], self._ends[used] = starts, ends
        self._used += 1
        self._volume += math.prod(int(n) for n in ends - starts)

    def check_complete(self, operand: str) -> None:
        whole = self.limit * math.prod(self.shape)
        if self._volume != whole:
            raise VerifyError(
                7,
                f"operand {operand}",
                f"the windows and tiles that scatter {self.value} make {self._volume} of"
                f" {whole} pairs of position and element: some indices below the limit"
                f" {self.limit} would be lost",
            )
