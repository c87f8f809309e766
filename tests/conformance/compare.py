"""Comparing a result of the device with the reference.

Shape, device and dtype must agree always; values within a tolerance, unless the operator draws
random numbers or leaves memory uninitialised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close
from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
from torch.testing._internal.opinfo.core import DecorateInfo


class Mismatch(AssertionError):
    """A result differs from the reference."""


@dataclass(frozen=True)
class Tolerance:
    """|actual - expected| <= absolute + relative * |expected| + norm * max|expected|.

    `norm` is for 16-bit results of several steps: an intermediate rounded to the dtype is wrong by
    its own size times half an ulp, and a cancellation keeps that.
    """

    relative: float
    absolute: float
    norm: float = 0.0
    merged: bool = False  # infinity and NaN are one value (DLFloat16 has one code for both)

    def scaled(self, factor: float) -> Tolerance:
        return replace(
            self,
            relative=self.relative * factor,
            absolute=self.absolute * factor,
            norm=self.norm * factor,
        )


# torch.testing's defaults for float32 (its table in torch/testing/_comparison.py).
FLOAT32 = Tolerance(1.3e-6, 1e-5)
EXACT = Tolerance(0.0, 0.0)


def _units(ulp: float) -> Tolerance:
    """Four roundings to a format of relative spacing `ulp`: of the value and of the largest."""
    return Tolerance(2 * ulp, 1e-5, 2 * ulp)


# Spacing of float16: 10 fraction bits; of DLFloat16: 9 (1-6-9).
FLOAT16_IEEE = _units(2.0**-10)
FLOAT16_DL16 = replace(_units(2.0**-9), merged=True)

# bfloat16 whose values went through DLFloat16: one spacing (7 fraction bits), rounded twice.
BFLOAT16_DL16 = Tolerance(2.0**-7, 1e-5, merged=True)


# No operator has a tolerance of its own: one that misses these is a gap with a reason (gaps.toml).

# Results of these have unit scale whatever their largest value: x - mean cancels.
UNIT_SCALE = ("layer_norm", "group_norm", "instance_norm", "batch_norm")


def tolerance_for(op: Any, run_dtype: torch.dtype, numerics: str | None) -> Tolerance:
    """The run's tolerance, widened by what the database itself says about the operator."""
    if not run_dtype.is_floating_point:
        base = FLOAT32  # int64 inputs, floating results (mean, sqrt): float32 arithmetic
    elif run_dtype == torch.float16:
        base = FLOAT16_DL16 if numerics == "dl16" else FLOAT16_IEEE
    else:
        base = FLOAT32
    relative, absolute = base.relative, base.absolute
    for decorator in _decorators(op, run_dtype):
        if isinstance(decorator, precisionOverride):
            value = decorator.d.get(run_dtype)
            if value is not None:
                absolute, relative = max(absolute, value), max(relative, value)
        elif isinstance(decorator, toleranceOverride):
            pair = decorator.d.get(run_dtype)
            if pair is not None:
                absolute, relative = max(absolute, pair.atol), max(relative, pair.rtol)
    tolerance = replace(base, relative=relative, absolute=absolute)
    if run_dtype == torch.float16 and any(part in op.name for part in UNIT_SCALE):
        tolerance = replace(tolerance, absolute=absolute + base.norm)
    return tolerance


def _decorators(op: Any, dtype: torch.dtype) -> list[Any]:
    found: list[Any] = []
    for entry in getattr(op, "decorators", ()):
        if not isinstance(entry, DecorateInfo):
            found.append(entry)
        elif entry.device_type in (None, "cpu") and (entry.dtypes is None or dtype in entry.dtypes):
            found.extend(entry.decorators)
    return found


def reduction_factor(inputs: Sequence[Tensor], output: Tensor) -> float:
    """sqrt of how many inputs an output may sum: rounding errors of a sum grow like that."""
    largest = max((t.numel() for t in inputs), default=1)
    return math.sqrt(max(1.0, largest / max(1, output.numel())))


def compare_values(
    actual: Tensor, expected: Tensor, tolerance: Tolerance, what: str, scale: float = 0.0
) -> None:
    """`actual` (any device) against `expected` (CPU). Raises `Mismatch`.

    `scale` is the size of terms that may have cancelled; the largest expected value counts too.
    """
    with torch.no_grad():
        actual = actual.detach().cpu()
        expected = expected.detach()
        if not (expected.dtype.is_floating_point or expected.dtype.is_complex):
            tolerance = EXACT
        if actual.dtype != expected.dtype:
            actual, expected = _narrowed(actual, expected)
        if tolerance.merged and expected.is_floating_point() and expected.layout == torch.strided:
            actual, expected = _merged(actual), _merged(expected)
        absolute = tolerance.absolute
        if tolerance.norm and expected.layout == torch.strided and not expected.is_nested:
            finite = expected.abs()
            finite = finite[torch.isfinite(finite)]
            if finite.numel():
                absolute += tolerance.norm * max(scale, float(finite.max()))
        try:
            assert_close(
                actual,
                expected,
                rtol=tolerance.relative,
                atol=absolute,
                equal_nan=True,
                check_stride=False,
            )
        except AssertionError as error:
            raise Mismatch(f"{what}: {_one_line(error)}") from None


def _merged(tensor: Tensor) -> Tensor:
    """NaN and both infinities as one value."""
    return torch.where(torch.isfinite(tensor), tensor, torch.full_like(tensor, torch.inf))


def _narrowed(actual: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the reference's dtype; what float16 cannot hold is infinite on both sides.

    A card saturates or overflows from 65472 (the largest DLFloat16 below float16's end) on.
    """
    actual = actual.to(expected.dtype)
    if expected.dtype != torch.float32 or expected.layout != torch.strided:
        return actual, expected
    infinity = torch.copysign(torch.full_like(expected, torch.inf), expected)
    beyond = expected.abs() > 65472.0
    end = actual.abs() >= 65472.0
    same = beyond & end & (torch.signbit(actual) == torch.signbit(expected))
    return torch.where(same, infinity, actual), torch.where(same, infinity, expected)


def _one_line(error: BaseException, limit: int = 300) -> str:
    return " ".join(str(error).split())[:limit]
