"""Eager operations that once were wrong, or that the card computes in an unusual way: pooling with
more labels than the machine has, gathers cut over cores, batch normalisation, calls of nothing,
torch's own decompositions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from openspyre import _C

NATIVE = True
pytestmark = pytest.mark.usefixtures("strict")


def numbers(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def same(function: Callable[..., Any], *args: Tensor, tolerance: float = 1e-5) -> None:
    """`function` gives on the card what it gives on the CPU, arguments included, natively."""
    on_card = [a.to("spyre") for a in args]
    with torch.spyre.fallback("error"):
        found = function(*on_card)
    on_host = [a.clone() for a in args]
    wanted = function(*on_host)
    pairs = zip([*tree_leaves(found), *on_card], [*tree_leaves(wanted), *on_host], strict=True)
    for got, want in pairs:
        assert got.dtype == want.dtype and got.shape == want.shape
        torch.testing.assert_close(got.cpu(), want, rtol=tolerance, atol=tolerance, equal_nan=True)


# --- programs


def test_windows_over_more_dims_than_an_op_addresses() -> None:
    """The op is taken apart along a label; one on the stick would begin within a stick."""
    x = numbers(1, 2, 5, 5, 5)
    same(lambda t: F.avg_pool3d(t, (2, 3, 4), stride=(1, 2, 2), padding=(0, 1, 2)), x)
    same(lambda t: F.max_pool3d(t, 3, stride=2, ceil_mode=True), numbers(2, 2, 6, 6, 5))
    same(lambda t, w: F.conv_transpose3d(t, w), numbers(1, 4, 5, 5, 5), numbers(4, 8, 3, 3, 3),
         tolerance=1e-3)  # fmt: skip
    columns = numbers(2, 12, 4)
    same(lambda t: F.fold(t, (5, 5), 2, stride=2, dilation=(1, 2)), columns)


def test_a_gather_along_the_stick_gives_cores_whole_sticks() -> None:
    mask = numbers(10, 10, seed=2) > 0
    same(lambda x, m, s: x.masked_scatter(m, s), numbers(10, 10), mask, numbers(60, seed=3))


def test_rows_are_not_gathered_one_by_one_along_the_stick_of_the_result() -> None:
    x, grid = numbers(2, 3, 5, 20), torch.rand(2, 13, 10, 2) * 2 - 1
    same(lambda t, g: torch.grid_sampler_2d(t, g, 1, 2, False), x, grid)


# --- batch normalisation


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 5)])
def test_batch_normalisation_updates_its_statistics_on_the_card(
    shape: tuple[int, ...], training: bool
) -> None:
    def normalised(x: Tensor, mean: Tensor, variance: Tensor, w: Tensor, b: Tensor) -> Any:
        leaves = [t.detach().requires_grad_() for t in (x, w, b)]
        out = F.batch_norm(leaves[0], mean, variance, leaves[1], leaves[2], training, 0.3, 1e-5)
        grads = torch.autograd.grad(out, leaves, torch.cos(out.detach()))
        return out.detach(), *grads

    vectors = [numbers(4, seed=2), numbers(4, seed=3).abs() + 0.5, numbers(4, seed=4)]
    same(normalised, numbers(*shape), *vectors, numbers(4, seed=5), tolerance=1e-4)


# --- calls of nothing


def none(*shape: int) -> Tensor:
    return torch.zeros(shape)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda a, b: a @ b, (none(3, 0), none(0, 4))),
        (lambda a, b: torch.bmm(a, b), (none(2, 3, 0), none(2, 0, 4))),
        (lambda c, a, b: torch.addmm(c, a, b, beta=2.5), (numbers(4), none(3, 0), none(0, 4))),
        (lambda c, a, b: torch.addmm(c, a, b, beta=0), (numbers(4), none(3, 0), none(0, 4))),
        (lambda a: a.sum(0), (none(0, 4),)),
        (lambda a: a.sum(1), (none(0, 4),)),
        (lambda a: (a.prod(), a.mean(), a.all(), a.any()), (none(0),)),
        (lambda a: torch.logsumexp(a, 0), (none(0, 3),)),
        (lambda a: torch.linalg.det(a), (none(0, 0),)),
        (lambda a, i, s: a.scatter_add_(0, i, s), (numbers(4), none(0).long(), none(0))),
        (lambda a, i, s: a.index_add(0, i, s), (numbers(4), none(0).long(), none(0))),
        (lambda a: torch.abs(a, out=torch.empty(0, device=a.device)), (none(0, 3),)),
    ],
)  # fmt: skip
def test_what_nothing_gives_is_filled_on_the_card(
    function: Callable[..., Any], args: tuple[Tensor, ...]
) -> None:
    same(function, *args)


def test_empty_saved_statistics_are_not_taken_for_an_empty_batch() -> None:
    """In evaluation batch normalisation saves nothing, and its gradient is not zero."""
    x, w = numbers(3, 2, 4), numbers(2, seed=2)

    def gradient(x: Tensor, mean: Tensor, variance: Tensor, w: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        out = F.batch_norm(x, mean, variance, w, None, False)
        return torch.autograd.grad(out, x, torch.ones_like(out))[0]

    same(gradient, x, numbers(2, seed=3), numbers(2, seed=4).abs() + 1, w)


# --- scans, decompositions, special functions


@pytest.mark.parametrize("scan", [torch.cummax, torch.cummin])
def test_running_extremes_give_the_last_of_equal_places(scan: Callable[..., Any]) -> None:
    nan = float("nan")
    for x in (numbers(4, 50), torch.arange(240).remainder(7).reshape(6, 40),
              torch.tensor([1.0, nan, 2.0, nan, 3.0])):  # fmt: skip
        for dim in range(x.dim()):
            same(lambda t, dim=dim: tuple(scan(t, dim)), x)


def test_what_has_no_lowering_goes_through_its_decomposition() -> None:
    x = numbers(4, 5)
    same(lambda t: torch.renorm(t, 2, 0, 1.0), x)
    same(lambda t: torch.linalg.cross(t[:, :3], t[:, 1:4], dim=1), x)


@pytest.mark.parametrize("order", [1, 2, 3, 7])
def test_polygamma_is_near_float64(order: int) -> None:
    x = torch.cat([numbers(500) * 3, torch.linspace(-8.9, 30, 301)])
    with torch.spyre.fallback("error"):
        found = torch.polygamma(order, x.to("spyre")).cpu().double()
    wanted = torch.polygamma(order, x.double())
    torch.testing.assert_close(found, wanted, rtol=5e-6, atol=1e-4)


def test_an_out_without_elements_is_laid_for_the_result() -> None:
    x = numbers(4, 5).to("spyre")
    out = torch.empty(0, device="spyre")
    steps = _C.engine_totals(0, "D2H")[0]
    torch.abs(x, out=out)
    assert _C.engine_totals(0, "D2H")[0] == steps
    assert out.shape == x.shape and out.stride() == x.stride()
    torch.testing.assert_close(out.cpu(), x.cpu().abs())


@pytest.mark.parametrize("letter", "tuvw")
@pytest.mark.parametrize("shifted", ["", "shifted_"])
def test_chebyshev_polynomials_of_any_degree_are_near_float64(letter: str, shifted: str) -> None:
    function = getattr(torch.special, f"{shifted}chebyshev_polynomial_{letter}")
    x = torch.cat([torch.linspace(-1.5, 1.5, 301), torch.tensor([-1.0, 0.0, 1.0, 0.5])])
    x = (x + 1) / 2 if shifted else x
    # 2 x - 1 is rounded to float32 before anything else.
    plain = getattr(torch.special, f"chebyshev_polynomial_{letter}")
    at = x + x - 1 if shifted else x
    for degree in (-1, 0, 1, 2, 6, 7, 9, 12, 45):
        n = torch.full_like(x, degree)
        with torch.spyre.fallback("error"):
            found = function(x.to("spyre"), n.to("spyre")).cpu().double()
        wanted = plain(at.double(), n.double())
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 * max(1, degree))


# --- small dense systems


def regular(*shape: int) -> Tensor:
    return numbers(*shape) + 3 * torch.eye(shape[-1])


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (2, 3, 4, 4), (33, 5, 5)])
def test_factors_inverses_and_solutions_of_small_systems(shape: tuple[int, ...]) -> None:
    a, x = regular(*shape), numbers(*shape[:-1], 3, seed=2)
    positive = a @ a.mT + torch.eye(shape[-1])
    same(lambda m: tuple(torch.linalg.lu_factor_ex(m)), a, tolerance=1e-4)
    same(lambda m: tuple(torch.linalg.inv_ex(m)), a, tolerance=1e-3)
    same(lambda m: tuple(torch.linalg.cholesky_ex(m)), positive, tolerance=1e-4)
    same(lambda m: tuple(torch.linalg.cholesky_ex(m, upper=True)), positive, tolerance=1e-4)
    same(lambda m, v: torch.linalg.solve_triangular(m, v, upper=True), a.triu(), x, tolerance=1e-3)
    factor = torch.linalg.cholesky(positive)
    same(lambda m, v: torch.cholesky_solve(v, m), factor, x, tolerance=1e-3)
    lu, pivots = torch.linalg.lu_factor(a)
    for adjoint in (False, True):
        same(lambda m, p, v, adjoint=adjoint: torch.linalg.lu_solve(m, p, v, adjoint=adjoint),
             lu, pivots, x, tolerance=1e-3)  # fmt: skip
    same(lambda m, p: torch.lu_unpack(m, p), lu, pivots)


def test_a_singular_matrix_is_reported_as_pytorch_does() -> None:
    same(lambda m: tuple(torch.linalg.lu_factor_ex(m)), torch.zeros(3, 3))
    with pytest.raises(RuntimeError, match="singular"):
        torch.linalg.inv(torch.zeros(3, 3, device="spyre"))
    with pytest.raises(RuntimeError, match="minor of order 2"):
        torch.linalg.cholesky(torch.tensor([[1.0, 2.0], [2.0, 1.0]]).to("spyre"))


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0, float("inf")])
def test_the_gradient_of_distances(p: float) -> None:
    def gradients(x: Tensor, y: Tensor, g: Tensor) -> Any:
        leaves = [t.detach().requires_grad_() for t in (x, y)]
        return torch.autograd.grad(torch.cdist(leaves[0], leaves[1], p=p), leaves, g)

    args = numbers(2, 4, 3), numbers(2, 5, 3, seed=2), numbers(2, 4, 5, seed=3)
    same(gradients, *args, tolerance=1e-3)
