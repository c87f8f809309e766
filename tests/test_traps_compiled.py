"""Known traps of accelerators: compiled code, with fixed and with symbolic sizes.

Every row of trap_rows.py, several to a compilation, and the rows about torch.compile itself:
caches, dynamic shapes, autograd, threads. Nothing may fall back to the CPU, but for float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from trap_rows import ROWS, Row, chunks

NATIVE = True


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def together(rows: Sequence[Row]) -> Callable[[list[Any]], list[Any]]:
    """One function of the inputs of all rows."""
    runs = [row.run for row in rows]

    def run(every: list[Any]) -> list[Any]:
        return [one(*views) for one, views in zip(runs, every, strict=True)]

    return run


def check(rows: Sequence[Row], **options: Any) -> None:
    """Compiles the rows as one function; AssertionError names every row that is wrong."""
    started = [row.start("spyre") for row in rows]
    with torch.spyre.fallback("error"):
        results = torch.compile(together(rows), **options)([views for _, views in started])
    wrong = []
    for row, result, (given, _) in zip(rows, results, started, strict=True):
        try:
            row.compare(result, given)
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)


CHUNKS = chunks(ROWS, 6)


@pytest.mark.parametrize("rows", [rows for _, rows in CHUNKS], ids=[name for name, _ in CHUNKS])
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
def test_rows(rows: list[Row], dynamic: bool) -> None:
    check(rows, fullgraph=True, dynamic=dynamic)
