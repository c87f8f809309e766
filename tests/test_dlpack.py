"""DLPack: a capsule goes back to its storage; others refuse the card's address (PT20)."""

# torch's stubs know neither the generated names nor what a test has made sure of.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import numpy
import pytest
import torch
from torch.utils import dlpack


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int64])
def test_pt20_a_capsule_comes_back_as_the_same_storage(dtype: torch.dtype) -> None:
    x = torch.arange(6).to(dtype).view(2, 3).to("spyre")
    y = dlpack.from_dlpack(dlpack.to_dlpack(x[1:, 1:]))
    assert y.device == x.device and y.data_ptr() == x[1:, 1:].data_ptr()
    assert y.cpu().tolist() == [[4, 5]]
    y.fill_(9)
    assert x.cpu().tolist() == [[0, 1, 2], [3, 9, 9]]
    del x
    assert y.cpu().tolist() == [[9, 9]]  # the capsule keeps the block


def test_pt20_other_libraries_are_refused_by_name() -> None:
    x = torch.ones(3, device="spyre")
    with pytest.raises(RuntimeError, match="Unsupported device"):
        numpy.from_dlpack(x)
    with pytest.raises(TypeError, match="spyre"):
        x.numpy()


@pytest.mark.xfail(reason="torch 2.13 compares with 'privateuse1' (PR 195815)", raises=ValueError)
def test_pt20_torch_from_dlpack_of_a_tensor() -> None:
    torch.from_dlpack(torch.ones(3, device="spyre"))
