"""The splits that the public torch-spyre compiler chooses, for comparison with the own planner.

Three passes: a split where a core would span too much of an operand, a cost model for products, and
the default for everything else. Their constants are a planner's of its own and belong to no timing
model. Pure numbers; imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openspyre.compiler.errors import Unsupported

MAX_CORES = 32
MAX_SPAN = 256 << 20  # bytes of one tensor that one core may touch
PT_ROWS = 8
TARGET_PASSES = 8
PEAK = 98.304e12 / 2 / 32 / 1e6  # multiply-accumulates a microsecond and core
HBM = 204_800.0  # bytes a microsecond
PARTIAL_SUM = 1.4e-4  # microseconds an element and hop
COHORT = 8  # cores that share a read before it slows down
BATCH_EXPONENT = 1.4
M_PENALTY = 50.0  # microseconds for each halving of the rows below the target
STICK = 64  # elements


@dataclass(frozen=True)
class MatmulSplit:
    """Parts of batch, rows, columns and k. `cost`: microseconds of the cost model, None where the
    default decided."""

    b: int = 1
    m: int = 1
    n: int = 1
    k: int = 1
    cost: float | None = None

    @property
    def cores(self) -> int:
        return self.b * self.m * self.n * self.k


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`."""
    return max(d for d in divisors(number) if d <= limit)


def check_cores(cores: int) -> None:
    """Raises Unsupported for more cores than the public compiler knows."""
    if cores > MAX_CORES:
        raise Unsupported(
            "planner compat", f"{cores} cores", f"it splits over at most {MAX_CORES}", "use fewer"
        )


def default_split(
    outputs: Mapping[str, int], reductions: Mapping[str, int], cores: int
) -> dict[str, int]:
    """Parts of each dim, given sizes in units (sticks for the dim on the stick): output dims by
    decreasing size take the largest divisor that is left, then the one reduction dim that can use
    most of the rest."""
    check_cores(cores)
    left, out = cores, dict.fromkeys((*outputs, *reductions), 1)
    for name in sorted(outputs, key=lambda name: -outputs[name]):
        out[name] = largest_divisor(outputs[name], left)
        left //= out[name]
    best = max(reductions, key=lambda name: largest_divisor(reductions[name], left), default=None)
    if best is not None:
        out[best] = largest_divisor(reductions[best], left)
    return out


def span_split(size: int, bytes_a_step: int) -> int:
    """Parts of the outermost dim of a tensor, `size` steps of so many bytes, so that a core spans
    as much as it may; 1 when it may span all."""
    if size * bytes_a_step <= MAX_SPAN:
        return 1
    return next((d for d in divisors(size) if size // d * bytes_a_step <= MAX_SPAN), size)


def matmul_cost(
    batch: int, rows: int, depth: int, cols: int, b: int, m: int, n: int, k: int
) -> float:
    """Microseconds of one split of [batch, rows, depth] times [batch, depth, cols]."""
    passes = max(1.0, rows / m / PT_ROWS)
    work = batch * rows * cols * depth / (b * m * n * k)
    compute = work / (PEAK * min(1.0, math.sqrt(passes / TARGET_PASSES)))
    moved = 2 * batch * (rows * depth + depth * cols + rows * cols)
    hbm = moved / HBM * max(1.0, max(m, n) / COHORT)
    sums = (k - 1) * batch * rows * cols * PARTIAL_SUM
    target = M_PENALTY * math.log2(TARGET_PASSES / passes) if passes < TARGET_PASSES else 0.0
    return (compute + hbm + sums + target) * float(b) ** BATCH_EXPONENT


def split_matmul(
    rows: int, depth: int, cols: int, batch: int = 1, cores: int = MAX_CORES
) -> MatmulSplit:
    """The split of a product of 16-bit tensors. Raises Unsupported for more than 32 cores."""
    check_cores(cores)
    n_sticks, k_sticks = -(-cols // STICK), -(-depth // STICK)
    # a [rows, depth] lies with its sticks along depth outermost.
    committed = max(span_split(k_sticks, batch * rows * STICK * 2), 1)
    outputs = {"b": batch, "m": rows, "n": n_sticks}
    if committed > 1:
        parts = default_split(outputs, {}, cores // committed)
        return MatmulSplit(parts["b"], parts["m"], parts["n"], committed)
    parts = default_split(outputs, {"k": k_sticks}, cores)
    default = MatmulSplit(parts["b"], parts["m"], parts["n"], parts["k"])
    if rows == 1:
        return default
    best: MatmulSplit | None = None
    for b in divisors(batch):
        for m in divisors(rows):
            for n in divisors(n_sticks):
                for k in divisors(k_sticks):
                    if b * m * n * k > cores:
                        break
                    cost = matmul_cost(batch, rows, depth, cols, b, m, n, k)
                    if best is None or best.cost is None or cost < best.cost:
                        best = MatmulSplit(b, m, n, k, cost)
    if best is None or best.cores < default.cores:
        return default
    return best


def core_digits(core: int, m: int, n: int, k: int) -> tuple[int, int, int]:
    """(m, n, k) of a core: k varies fastest, then n."""
    return core // (n * k) % m, core // k % n, core % k


def encoded(
    write: Sequence[tuple[int, int]], read: Sequence[tuple[int, int]] = ()
) -> tuple[dict[int, int], dict[int, int]]:
    """A split as the public compiler writes it down: for each split dim, by its coefficient in the
    index that is written (reductions: that is read), its parts."""
    return {c: p for c, p in write if p > 1}, {c: p for c, p in read if p > 1}
