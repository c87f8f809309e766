"""How 16-bit values live on the card.

    mode    "dl16": float16, bfloat16 and bool are DLFloat16 on the card (1-6-9)
            "ieee": float16 and bfloat16 keep their IEEE bits, to tell format effects from bugs
    ties    what an exact tie does when a value is rounded to DLFloat16: "toward_positive",
            "away_from_zero", "to_even", "toward_zero", "to_odd". The card's rule is not public.
    merged  what the shared code of infinity and NaN reads as: "inf" or "nan"

They may be changed before the runtime starts or while no device holds a tensor; otherwise
RuntimeError, since tensors would change their values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from openspyre import _C


@dataclass(frozen=True)
class Numerics:
    """The three settings."""

    mode: str
    ties: str
    merged: str


def get() -> Numerics:
    """The settings now."""
    mode, ties, merged_is_nan = _C.numerics()
    return Numerics(mode, ties, "nan" if merged_is_nan else "inf")


def configure(
    *, mode: str | None = None, ties: str | None = None, merged: str | None = None
) -> Numerics:
    """Changes what is given, all or nothing, and returns the settings before.

    Raises ValueError for an unknown value and RuntimeError while a device holds a tensor.
    """
    before = get()
    merged = before.merged if merged is None else merged
    if merged not in ("inf", "nan"):
        raise ValueError(f"unknown merged {merged!r}: one of inf, nan")
    _C.set_numerics(mode or before.mode, ties or before.ties, merged == "nan")
    return before


@contextlib.contextmanager
def using(
    *, mode: str | None = None, ties: str | None = None, merged: str | None = None
) -> Iterator[Numerics]:
    """Context manager around `configure`. Tensors made inside must be gone at its end."""
    before = configure(mode=mode, ties=ties, merged=merged)
    try:
        yield get()
    finally:
        configure(mode=before.mode, ties=before.ties, merged=before.merged)


def mode() -> str:
    """ "dl16" or "ieee"."""
    return get().mode


def set_mode(mode: str) -> None:
    """See `configure`."""
    configure(mode=mode)


def ties() -> str:
    """The tie rule."""
    return get().ties


def set_ties(ties: str) -> None:
    """See `configure`."""
    configure(ties=ties)


def merged() -> str:
    """ "inf" or "nan"."""
    return get().merged


def set_merged(merged: str) -> None:
    """See `configure`."""
    configure(merged=merged)
