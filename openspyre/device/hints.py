"""Hints: choices of the planner that the user forces, for what is planned inside `with hint(...)`.

A hint belongs to the thread that gives it. Every combination has a number, which is a word of the
key under which eager operations and compiled regions keep their plans: the same code under the same
hint is planned once, and without a hint it has its own plan again. No compiler is imported here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from openspyre import _C

PARTS = ("m", "n", "k", "rows")
"""What can be split and tiled: rows, columns and the reduced dim of a product, rows of the rest."""


@dataclass(frozen=True)
class Hint:
    """Fields of openspyre.compiler.options.CompileOptions; None leaves the choice alone."""

    cores: int | None = None
    split: tuple[tuple[str, int], ...] | None = None
    tile: tuple[tuple[str, int], ...] | None = None
    fuse: bool | None = None
    planner: str | None = None

    def options(self) -> dict[str, Any]:
        """The choices it makes, as arguments of CompileOptions."""
        return {name: value for name, value in vars(self).items() if value is not None}


_lock = threading.Lock()
_hints: list[Hint] = [Hint()]
_numbers: dict[Hint, int] = {Hint(): 0}


def current() -> Hint:
    """The hint of this thread."""
    return _hints[_C.hint()]


@contextmanager
def hint(
    *,
    cores: int | None = None,
    split: Mapping[str, int] | None = None,
    tile: Mapping[str, int] | None = None,
    fuse: bool | None = None,
    planner: str | None = None,
) -> Iterator[None]:
    """Forces choices of the planner for the operations that run inside, in this thread.

    `cores`: at most so many cores of the card. `split`: into how many parts the work is divided
    over cores, and `tile`: the greatest size of a tile, by part: "m", "n", "k" (rows, columns,
    reduced dim of a matrix product) and "rows" (all other operations). `fuse`: False makes one
    kernel an operation. `planner`: "compat" divides matrix products as the public compiler does.

    Results do not change, but for another split of k, whose partial sums are added in another
    order. Hints nest: the inner one decides where both do. A choice that does not fit an operation
    is not followed (`torch.spyre.explain` shows what was chosen). Compiled code is hinted where it
    is called, not inside; what autograd runs backward, in threads of its own, is not hinted.
    Raises ValueError for names and numbers that mean nothing.
    """
    wanted = replace(
        current(),
        **Hint(_cores(cores), _parts("split", split), _parts("tile", tile), fuse, _planner(planner))
        .options(),
    )  # fmt: skip
    before = _C.set_hint(_number(wanted))
    try:
        yield
    finally:
        _C.set_hint(before)


def _number(wanted: Hint) -> int:
    with _lock:
        if wanted not in _numbers:
            _hints.append(wanted)
            _numbers[wanted] = len(_hints) - 1
        return _numbers[wanted]


def _count(what: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"hint: {what} must be a positive integer, got {value!r}")
    return value


def _cores(cores: int | None) -> int | None:
    if cores is None:
        return None
    from openspyre.device.devices import get_device_properties

    most = get_device_properties().multi_processor_count
    if _count("cores", cores) > most:
        raise ValueError(f"hint: cores={cores}, the card has {most}")
    return cores


def _parts(what: str, given: Mapping[str, int] | None) -> tuple[tuple[str, int], ...] | None:
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise ValueError(f'hint: {what} is a mapping such as {{"m": 4}}, got {given!r}')
    unknown = sorted(set(given) - set(PARTS))
    if unknown:
        raise ValueError(f"hint: {what} of {unknown}; there are {', '.join(PARTS)}")
    return tuple(sorted((part, _count(f"{what}[{part}]", n)) for part, n in given.items()))


def _planner(planner: str | None) -> str | None:
    if planner not in (None, "own", "compat"):
        raise ValueError(f"hint: planner {planner!r}; there are 'own' and 'compat'")
    return planner
