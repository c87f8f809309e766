"""How two partial results become one: REDUCE, FOLD, SCAN and RING share these.

A state is a tuple of arrays: (value,) for the simple ones, (value, index) for the arg kinds,
(mean, M2, n) for welford. May import numpy; imports no torch.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from openspyre.program.ops import Combine
from openspyre.reference.body import maximum, minimum
from openspyre.reference.numbers import Array

State: TypeAlias = tuple[Array, ...]


def register(combine: Combine, part: int, value: np.dtype) -> np.dtype:
    """numpy's type of one part of a state over registers of type `value`."""
    if combine in (Combine.ARGMAX, Combine.ARGMIN) and part == 1:
        return np.dtype(np.int64)
    return value


def parts(combine: Combine) -> int:
    if combine is Combine.WELFORD:
        return 3
    return 2 if combine in (Combine.ARGMAX, Combine.ARGMIN) else 1


def identity(combine: Combine, value: np.dtype, shape: tuple[int, ...]) -> State:
    """The state that has seen nothing."""

    def full(number: float, type_: np.dtype = value) -> Array:
        return np.full(shape, number, dtype=type_)

    floating = value == np.float32
    if combine in (Combine.MAX, Combine.ARGMAX):
        first = full(-np.inf) if floating else full(np.iinfo(value).min)
    elif combine in (Combine.MIN, Combine.ARGMIN):
        first = full(np.inf) if floating else full(np.iinfo(value).max)
    else:
        first = full(1 if combine in (Combine.PROD, Combine.ALL) else 0)
    if combine in (Combine.ARGMAX, Combine.ARGMIN):
        return first, full(-1, np.dtype(np.int64))
    if combine is Combine.WELFORD:
        return first, full(0), full(0)
    return (first,)


def element(combine: Combine, state: State, x: Array, index: Array) -> State:
    """The state with one more element. `index`: its global index, for the arg kinds."""
    if combine is not Combine.WELFORD:
        return join(combine, state, (x, index) if parts(combine) == 2 else (x,))
    mean, m2, n = state
    n = n + np.float32(1)
    d = x - mean
    mean = mean + d / n
    return mean, m2 + d * (x - mean), n


def join(combine: Combine, a: State, b: State) -> State:
    """a and b as one; a is what was there first."""
    with np.errstate(all="ignore"):
        if combine is Combine.WELFORD:
            return _chan(a, b)
        if combine in (Combine.ARGMAX, Combine.ARGMIN):
            return _better(combine is Combine.ARGMAX, a, b)
        x, y = a[0], b[0]
        if combine is Combine.SUM:
            return (x + y,)
        if combine is Combine.PROD:
            return (x * y,)
        if combine is Combine.MAX:
            return (maximum(x, y),)
        if combine is Combine.MIN:
            return (minimum(x, y),)
        return (x | y if combine is Combine.ANY else x & y,)


def _better(largest: bool, a: State, b: State) -> State:
    """NaN wins; the smallest index among equals; index -1 is nothing."""
    (va, ia), (vb, ib) = a, b
    nan_a, nan_b = va != va, vb != vb
    ahead = (vb > va if largest else vb < va) | (nan_b & ~nan_a)
    equal = (va == vb) | (nan_a & nan_b)
    take = ((ahead & ~(nan_a & ~nan_b)) | (equal & (ib < ia)) | (ia == -1)) & (ib != -1)
    return np.where(take, vb, va), np.where(take, ib, ia)


def _chan(a: State, b: State) -> State:
    (ma, m2a, na), (mb, m2b, nb) = a, b
    n = na + nb
    d = mb - ma
    mean = ma + d * (nb / n)
    m2 = (m2a + m2b) + (d * d) * ((na * nb) / n)
    both = (mean, m2, n)
    only_a, only_b = nb == 0, na == 0
    zero = np.float32(0)
    return tuple(
        np.where(n == 0, zero, np.where(only_a, x, np.where(only_b, y, z)))
        for x, y, z in zip(a, b, both, strict=True)
    )
