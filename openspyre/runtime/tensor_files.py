"""Tensors in files, and whether results are what was expected: the I/O verification of a plan.

`.pt` holds a tensor, a list of tensors or {"tensors": [...]}; `.bin` one tensor, little-endian,
row-major, without a header. Works on CPU tensors only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

TOLERANCES: dict[torch.dtype, tuple[float, float]] = {
    torch.float32: (1.3e-6, 1e-5),
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float64: (1e-7, 1e-7),
}
"""(relative, absolute) by dtype; every other dtype must be equal."""


def load_tensors(
    files: Sequence[Path], shapes: Sequence[tuple[int, ...]], dtypes: Sequence[torch.dtype]
) -> list[torch.Tensor]:
    """The tensors of `files`, in order, held to the given shapes and dtypes.

    Raises ValueError for another count, shape, dtype or length, naming the file and the tensor.
    """
    found: list[tuple[Path, torch.Tensor]] = []
    for file in files:
        if file.suffix == ".pt":
            found.extend((file, tensor) for tensor in _load_pt(file))
        elif file.suffix == ".bin":
            if len(found) >= len(shapes):
                raise ValueError(f"{file}: {len(shapes)} tensors are wanted and this is one more")
            found.append((file, _load_bin(file, shapes[len(found)], dtypes[len(found)])))
        else:
            raise ValueError(f"{file}: write tensors as .pt or .bin")
    if len(found) != len(shapes):
        names = ", ".join(map(str, files)) or "no file"
        raise ValueError(f"{names}: {len(found)} tensors, {len(shapes)} are wanted")
    for number, (file, tensor) in enumerate(found):
        shape, dtype = shapes[number], dtypes[number]
        if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype:
            raise ValueError(
                f"{file}: tensor {number} is {list(tensor.shape)} {tensor.dtype},"
                f" wanted {list(shape)} {dtype}"
            )
    return [tensor.contiguous() for _, tensor in found]


def _load_pt(file: Path) -> list[torch.Tensor]:
    data = torch.load(file, map_location="cpu", weights_only=True)
    if isinstance(data, dict) and "tensors" in data:
        data = data["tensors"]
    items = data if isinstance(data, list | tuple) else [data]
    for number, item in enumerate(items):
        if not isinstance(item, torch.Tensor):
            raise ValueError(f"{file}: entry {number} is a {type(item).__name__}, not a tensor")
    return list(items)


def _load_bin(file: Path, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    data = file.read_bytes()
    tensor = torch.empty(shape, dtype=dtype)
    wanted = tensor.numel() * tensor.element_size()
    if len(data) != wanted:
        raise ValueError(f"{file}: {len(data)} bytes, {list(shape)} {dtype} takes exactly {wanted}")
    raw = torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())
    return raw.view(dtype).reshape(shape) if wanted else tensor


def mismatches(
    results: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    names: Sequence[str],
    *,
    exact: bool = False,
) -> list[str]:
    """What differs, a sentence a tensor; an empty list when all is as expected. NaN equals NaN.

    `exact`: equal values, whatever the dtype.
    """
    problems: list[str] = []
    for name, result, wanted in zip(names, results, expected, strict=True):
        relative, absolute = (0.0, 0.0) if exact else TOLERANCES.get(wanted.dtype, (0.0, 0.0))
        a, b = result.double(), wanted.double()
        close = torch.isclose(a, b, rtol=relative, atol=absolute, equal_nan=True)
        if close.all():
            continue
        wrong = int((~close).sum())
        first = tuple(int(i) for i in (~close).nonzero()[0])
        problems.append(
            f"{name}: {wrong} of {wanted.numel()} elements differ by more than"
            f" {absolute:g} + {relative:g} * |expected|, first at {list(first)}:"
            f" {result[first].item()} instead of {wanted[first].item()}"
        )
    return problems
