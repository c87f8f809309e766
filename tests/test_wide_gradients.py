"""float16 operations whose values or gradients need more range inside than their results do.

References are the float32 results on the CPU, on inputs that both 16-bit formats hold exactly.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "a norm of order 5 whose fifth power overflows": lambda x: torch.linalg.vector_norm(x, 5),
    "a norm over rows": lambda x: torch.linalg.vector_norm(x, 2, dim=1),
    "normalize": lambda x: torch.nn.functional.normalize(x, p=2.0, dim=0),
    "logcumsumexp of values beyond exp's range": lambda x: torch.logcumsumexp(x, 0),
    "a mean of exponentials beyond the range": lambda x: torch.nn.functional.soft_margin_loss(
        x, -torch.ones_like(x)
    ),
    "a matrix exponential": lambda x: torch.linalg.matrix_exp(x[:4, :4] / 64),
    "a product of segments": lambda x: torch.segment_reduce(
        x / 16, "prod", lengths=torch.tensor([2, 6], device=x.device), unsafe=True
    ),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", OPERATIONS)
def test_value_and_gradient_match_float32(name: str, dtype: torch.dtype) -> None:
    start = torch.tensor([1.0, 14.0, -3.0, 20.0, 0.5, -16.0, 2.0, 9.0]).repeat(8).reshape(8, 8)
    start = start * torch.tensor([1.0, 2.0, 0.5, 1.0, 1.0, 0.25, 2.0, 1.0]).unsqueeze(1)
    wide = start.clone().requires_grad_()
    expected = OPERATIONS[name](wide)
    expected.sum().backward()
    narrow = start.to("spyre", dtype).requires_grad_()
    actual = OPERATIONS[name](narrow)
    actual.sum().backward()
    assert actual.dtype == dtype
    assert narrow.grad is not None and narrow.grad.dtype == dtype
    assert wide.grad is not None
    # One rounding to the format (DLFloat16 keeps 9 fraction bits) and, where the formula goes on
    # outside the operation, of its terms (bfloat16 has 7 bits on the host).
    ulp = 2.0**-9 if dtype == torch.float16 else 2.0**-7
    for mine, theirs in ((actual, expected), (narrow.grad, wide.grad)):
        torch.testing.assert_close(
            mine.detach().cpu().float(),
            theirs.detach(),
            rtol=2 * ulp,
            atol=4 * ulp * float(theirs.detach().abs().max()),
        )


def test_a_result_of_another_dtype_is_the_callers_choice() -> None:
    values = torch.tensor([300.0, 400.0], device="spyre", dtype=torch.float16, requires_grad=True)
    norm = torch.linalg.vector_norm(values, dtype=torch.float32)
    assert norm.dtype == torch.float32
    assert norm.item() == 500.0
    with torch.no_grad():
        still = torch.linalg.vector_norm(values)
    assert still.dtype == torch.float16 and still.item() == 500.0 and not still.requires_grad
    with torch.inference_mode():
        assert torch.linalg.vector_norm(values).item() == 500.0


def test_mixed_dtypes_stay_an_error() -> None:
    left = torch.ones(3, device="spyre", dtype=torch.float16, requires_grad=True)
    with pytest.raises(RuntimeError):
        torch.linalg.vector_norm(left, dtype=torch.bfloat16)


def test_operators_that_jump_look_at_the_exact_value() -> None:
    """A quotient just below an integer is that integer when rounded to 16 bits first."""
    draw = torch.Generator().manual_seed(7)
    left = torch.randint(-500, 501, (4096,), generator=draw).to("spyre", torch.float16)
    right = torch.randint(8, 64, (4096,), generator=draw).to("spyre", torch.float16) / 8
    exact = left.cpu().double() / right.cpu().double()
    for mode, jump in (("floor", torch.floor), ("trunc", torch.trunc)):
        got = torch.div(left, right, rounding_mode=mode)
        wanted = jump(exact).to(torch.float16).to("spyre")  # integers up to 500: held exactly
        rounded_first = jump((left / right).cpu())
        assert not torch.equal(rounded_first, wanted.cpu())  # the inputs do tell them apart
        assert torch.equal(got, wanted)
        other = left.clone().div_(right, rounding_mode=mode)
        assert torch.equal(other, wanted)
    values = left.cpu().float()
    counts = torch.histc(left, bins=37, min=-300, max=300).cpu().float()
    assert torch.equal(counts, torch.histc(values, bins=37, min=-300, max=300))
