"""The public compiler's splits, by its published formulas: acceptance tests W1 to W6."""

from __future__ import annotations

import pytest
from matmul_kernels import product

from openspyre.compiler.errors import Unsupported
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.planner.compat import (
    core_digits,
    default_split,
    encoded,
    span_split,
    split_matmul,
)

# rows, depth, columns, batch: parts of m, n, k (batch), microseconds (None: the default decides)
W1 = [
    ((8, 1024, 1024, 1), (4, 8, 1), 160.883),
    ((64, 64, 64, 1), (32, 1, 1), None),
    ((128, 256, 64, 1), (32, 1, 1), None),
    ((128, 128, 128, 1), (32, 1, 1), None),
    ((1024, 1024, 1024, 1), (4, 8, 1), 52.565),
    ((512, 4096, 4096, 1), (4, 8, 1), 379.563),
    ((512, 4096, 12800, 1), (4, 8, 1), 1142.613),
    ((512, 12800, 4096, 1), (4, 8, 1), 1142.613),
    ((512, 4096, 1024, 1), (4, 8, 1), 110.251),
    ((2048, 4096, 4096, 1), (4, 8, 1), 1026.731),
    ((4096, 4096, 4096, 1), (4, 8, 1), 1889.621),
    ((8192, 8192, 8192, 1), (4, 8, 1), 13150.891),
    ((1, 4096, 4096, 1), (1, 32, 1), None),
    ((1, 4096, 12800, 1), (1, 25, 1), None),
    ((1, 12800, 4096, 1), (1, 32, 1), None),
    ((1, 4096, 1024, 1), (1, 16, 2), None),
    ((1, 4096, 49152, 1), (1, 32, 1), None),
    ((16, 4096, 4096, 1), (1, 32, 1), None),
    ((64, 2048, 8192, 1), (1, 32, 1), None),
    ((32, 4096, 11008, 1), (8, 4, 1), 678.068),
    ((67, 256, 256, 1), (1, 4, 4), None),
    ((512, 128, 512, 32), (4, 8, 1), 144.725),
    ((512, 512, 128, 32), (32, 1, 1), None),
    ((128, 128, 128, 8), (32, 1, 1), None),
    ((128, 128, 128, 4), (32, 1, 1), None),
    ((256, 256, 256, 4), (32, 1, 1), None),
]


@pytest.mark.parametrize(("shape", "parts", "cost"), W1)
def test_w1_splits_and_costs(
    shape: tuple[int, int, int, int], parts: tuple[int, int, int], cost: float | None
) -> None:
    found = split_matmul(*shape)
    assert (found.m, found.n, found.k) == parts
    if cost is None:
        assert found.cost is None
    else:
        assert found.cost == pytest.approx(cost, abs=0.001)


def test_w1_the_scheduler_takes_these_splits() -> None:
    for (rows, depth, cols, batch), (m, n, k), _ in W1:
        if batch * rows * depth * cols > 1 << 32:
            continue
        outer = (batch,) if batch > 1 else ()
        work = product((*outer, rows, depth), (*outer, depth, cols))
        work.program(CompileOptions(planner="compat"))
        wanted = {"m0": m, "n0": n, "k0": k}
        assert work.kernel.splits == {name: parts for name, parts in wanted.items() if parts > 1}


@pytest.mark.parametrize("cores", [32, 16])
def test_w2_pointwise_takes_the_largest_dim(cores: int) -> None:
    sizes = {"c0": 256, "c1": 128, "c2": 512 // 32}
    assert default_split(sizes, {}, cores) == {"c0": cores, "c1": 1, "c2": 1}


def test_w3_more_than_32_cores() -> None:
    with pytest.raises(Unsupported):
        split_matmul(64, 64, 64, cores=64)


def test_w4_the_span_commits_k() -> None:
    assert span_split(512, 8192 * 128) == 2
    found = split_matmul(8192, 32768, 4096)
    assert (found.m, found.n, found.k) == (16, 1, 2)


def test_w5_k_is_the_fast_digit() -> None:
    assert core_digits(5, 16, 1, 2) == (2, 0, 1)


def test_w6_encoding_of_splits() -> None:
    assert encoded([(8, 4), (1, 2)]) == ({8: 4, 1: 2}, {})
    assert encoded([(4, 4), (1, 2)], [(1, 8)]) == ({4: 4, 1: 2}, {1: 8})
