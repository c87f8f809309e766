"""Which reduction indices a tile has summed so far: sets of disjoint boxes, interned.

A tile of a value with `reduced` sizes carries the number of such a set. COMPLETE is that of every
value without reduction indices, and of every set that covers its value's whole box.
Part of the verifier; imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

Box: TypeAlias = tuple[tuple[int, int], ...]  # (start, end) of each reduction index

COMPLETE = 0
EMPTY = 1
MAX_BOXES = 4096


class CoverError(ValueError):
    """A reduction that covers an index twice, out of order or outside; the text says which."""


def show(boxes: Sequence[Box]) -> str:
    """Boxes for messages: `0..511`, or `0..3 x 0..511`."""
    if not boxes:
        return "nothing"
    parts = [" x ".join(f"{a}..{b - 1}" for a, b in box) for box in boxes[:4]]
    return ", ".join(parts) + (", .." if len(boxes) > 4 else "")


class Covers:
    """The table of sets. Numbers are valid for one run of the verifier."""

    def __init__(self) -> None:
        self._boxes: list[tuple[Box, ...]] = [(), ()]
        self._numbers: dict[tuple[Box, ...], int] = {}

    def boxes(self, number: int) -> tuple[Box, ...]:
        return self._boxes[number]

    def text(self, number: int) -> str:
        return "everything" if number == COMPLETE else show(self._boxes[number])

    def _number(self, boxes: tuple[Box, ...], reduced: tuple[int, ...]) -> int:
        if not boxes:
            return EMPTY
        if sum(_volume(box) for box in boxes) == math.prod(reduced):
            return COMPLETE
        number = self._numbers.get(boxes)
        if number is None:
            number = self._numbers[boxes] = len(self._boxes)
            self._boxes.append(boxes)
        return number

    def extend(self, number: int, box: Box, reduced: tuple[int, ...]) -> int:
        """The set with a box more. Raises CoverError unless the box lies inside `reduced`, meets
        none of the boxes and begins after the last of them."""
        if len(box) != len(reduced):
            raise CoverError(
                f"the instruction reduces {len(box)} labels, the value declares {len(reduced)}"
                " reduction indices (`reduced`)"
            )
        if any(a < 0 or b > size for (a, b), size in zip(box, reduced, strict=True)):
            raise CoverError(
                f"reduction indices {show([box])} are outside the declared sizes {list(reduced)}"
            )
        if number == COMPLETE:
            raise CoverError(f"reduction indices {show([box])} come on top of a complete result")
        boxes = self._boxes[number]
        for other in boxes:
            if all(a < d and c < b for (a, b), (c, d) in zip(box, other, strict=True)):
                raise CoverError(f"reduction indices {show([box])} overlap {show([other])}")
        starts = tuple(a for a, _ in box)
        if boxes and starts < tuple(a for a, _ in boxes[-1]):
            raise CoverError(
                f"reduction indices {show([box])} come after {show(boxes)}: not ascending"
            )
        return self._number(_merged((*boxes, box)), reduced)

    def join(self, numbers: Sequence[int], reduced: tuple[int, ...]) -> int:
        """The union of the sets of several parts, in their order. Raises CoverError as extend."""
        total = numbers[0]
        for number in numbers[1:]:
            if number == COMPLETE or total == COMPLETE:
                raise CoverError("a part that is complete is joined with another")
            for box in self._boxes[number]:
                total = self.extend(total, box, reduced)
        return total


def _volume(box: Box) -> int:
    return math.prod(b - a for a, b in box)


def _merged(boxes: tuple[Box, ...]) -> tuple[Box, ...]:
    """The last box united with the one before it, as long as that gives a box."""
    out = list(boxes)
    while len(out) > 1:
        a, b = out[-2], out[-1]
        differing = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
        if len(differing) != 1 or a[differing[0]][1] != b[differing[0]][0]:
            break
        at = differing[0]
        out[-2:] = [(*a[:at], (a[at][0], b[at][1]), *a[at + 1 :])]
    if len(out) > MAX_BOXES:
        raise CoverError(f"more than {MAX_BOXES} separate boxes of reduction indices")
    return tuple(out)
