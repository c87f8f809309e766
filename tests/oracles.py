"""Independent oracles of the card's number formats, in numpy: the tests' word on what a copy keeps.

Nothing here uses openspyre: DLFloat16 (1-6-9, bias 31) is worked out from its definition.
"""

from __future__ import annotations

import numpy as np
import torch

MERGED = 0x7FFF  # the one NaN/infinity magnitude
HALF_MAX_CODE = 0x5DFF  # 65472: a host float16 never leaves its range on the way in


def encode_dl16(values: np.ndarray, *, largest_finite: int | None) -> np.ndarray:
    """float64 values -> DLFloat16 codes, exact ties toward +infinity.

    `largest_finite`: code at which finite magnitudes saturate (None: they become the merged code).
    """
    values = np.asarray(values, dtype=np.float64)
    magnitude = np.abs(values)
    negative = np.signbit(values)
    finite = np.isfinite(values)
    safe = np.where(finite & (magnitude > 0), magnitude, 1.0)
    exponent = np.floor(np.log2(safe)).astype(np.int64)
    # log2 may round up just below a power of two
    exponent = np.where(np.ldexp(1.0, exponent.astype(np.int32)) > safe, exponent - 1, exponent)
    scaled = np.ldexp(safe, (9 - exponent).astype(np.int32))  # in [512, 1024)
    whole = np.floor(scaled)
    rest = scaled - whole
    up = np.where(negative, rest > 0.5, rest >= 0.5)
    code = ((exponent + 31) << 9) + (whole.astype(np.int64) + up - 512)
    code = np.where(code <= 0, 0, code)
    ceiling = MERGED if largest_finite is None else largest_finite
    code = np.where(code > ceiling, ceiling, code)
    code = np.where(magnitude == 0, 0, code)
    code = np.where(np.isinf(values), MERGED, code)
    code = code | (negative.astype(np.int64) << 15)
    code = np.where(np.isnan(values), MERGED, code)
    return code.astype(np.uint16)


def decode_dl16(codes: np.ndarray) -> np.ndarray:
    """DLFloat16 codes -> float64 values; the merged code is infinity with its sign."""
    codes = np.asarray(codes, dtype=np.uint16).astype(np.int64)
    magnitude = codes & 0x7FFF
    value = np.ldexp(1.0 + (magnitude & 511) / 512.0, ((magnitude >> 9) - 31).astype(np.int32))
    value = np.where(magnitude == 0, 0.0, value)
    value = np.where(magnitude == MERGED, np.inf, value)
    return np.where(codes & 0x8000, -value, value)


def through_card(tensor: torch.Tensor, mode: str) -> torch.Tensor:
    """What `tensor.to("spyre").cpu()` must give, bit for bit."""
    if mode == "ieee" or tensor.dtype not in (torch.float16, torch.bfloat16):
        return tensor.clone()
    values = tensor.double().numpy()
    largest = HALF_MAX_CODE if tensor.dtype == torch.float16 else MERGED - 1
    back = decode_dl16(encode_dl16(values, largest_finite=largest))
    # float64 -> float32 is exact for every DLFloat16 value; the last step rounds to nearest even
    return torch.from_numpy(np.atleast_1d(back)).float().to(tensor.dtype).reshape(tensor.shape)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes, for comparisons that tell -0 from 0 and NaN from NaN."""
    dense = (
        tensor.detach()
        .cpu()
        .resolve_conj()
        .resolve_neg()
        .clone(memory_format=torch.contiguous_format)
    )
    flat = dense.reshape(-1).clone()  # a view of one element may keep a stride
    return flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)


def assert_bits_equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Same shape, dtype and bytes."""
    assert actual.shape == expected.shape, f"{actual.shape} != {expected.shape}"
    assert actual.dtype == expected.dtype, f"{actual.dtype} != {expected.dtype}"
    same = torch.equal(bits(actual), bits(expected))
    assert same, f"bits differ\nactual   {actual.cpu()}\nexpected {expected.cpu()}"
