"""Random operations of the device: Philox against a reference, ranges, statistics, checks (PT4)."""

# torch's stubs know neither the generated names nor what a test has made sure of.
# mypy: disable-error-code="call-overload"

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

spyre = torch.spyre

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool]


def philox(seed: int, counter: int) -> list[int]:
    """Four words of Philox4x32-10, from the paper's definition, in plain integers."""
    mask = 0xFFFFFFFF
    c = [counter & mask, counter >> 32, 0, 0]
    k = [seed & mask, seed >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & mask, (p0 >> 32) ^ c[3] ^ k[1], p0 & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c


def words(seed: int, count: int, offset: int = 0) -> np.ndarray:
    blocks = (philox(seed, offset + i) for i in range((count + 3) // 4))
    return np.array(list(itertools.chain(*blocks))[:count], dtype=np.uint64)


# ---- the sequence -----------------------------------------------------------------------------


def test_uniform_is_the_philox_sequence_and_offsets_advance_by_blocks() -> None:
    seed = (5 << 32) | 77
    spyre.manual_seed(seed)
    first = torch.empty(10, device="spyre").uniform_().cpu()
    second = torch.rand(7, device="spyre").cpu()
    expected = (words(seed, 10) >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)
    assert np.array_equal(first.numpy(), expected)
    # ten elements took three blocks
    expected = (words(seed, 7, 3) >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)
    assert np.array_equal(second.numpy(), expected)


def test_normal_is_box_muller_on_the_philox_sequence() -> None:
    spyre.manual_seed(9)
    got = torch.randn(1001, device="spyre").cpu().numpy()
    w = words(9, 1004).astype(np.float64)
    u1, u2 = (w[0::2] + 0.5) * 2.0**-32, np.floor(w[1::2] / 256) * 2.0**-24
    radius = np.sqrt(-2 * np.log(u1))
    pairs = np.stack([radius * np.cos(2 * np.pi * u2), radius * np.sin(2 * np.pi * u2)], 1)
    np.testing.assert_allclose(got, pairs.reshape(-1)[:1001], rtol=1e-4, atol=2e-6)


def test_float64_uses_53_bits() -> None:
    spyre.manual_seed(4)
    got = torch.rand(5, dtype=torch.float64, device="spyre").cpu().numpy()
    w = words(4, 12).astype(object)
    expected = [float((int(w[2 * i]) | int(w[2 * i + 1]) << 32) >> 11) * 2.0**-53 for i in range(5)]
    assert got.tolist() == expected


def test_integers_are_the_philox_sequence() -> None:
    spyre.manual_seed(12)
    got = torch.randint(-3, 1000, (50,), device="spyre").cpu().numpy()
    assert np.array_equal(
        got, -3 + ((words(12, 50) * np.uint64(1003)) >> np.uint64(32)).astype(int)
    )


def test_values_depend_on_neither_strides_nor_threads() -> None:
    def fill(make: Callable[[], torch.Tensor]) -> torch.Tensor:
        spyre.manual_seed(21)
        return make().normal_().cpu()

    dense = fill(lambda: torch.empty(300, 70, device="spyre"))
    transposed = fill(lambda: torch.empty(70, 300, device="spyre").t())
    sliced = fill(lambda: torch.empty(300, 100, device="spyre")[:, 3:73])
    assert torch.equal(dense, transposed) and torch.equal(dense, sliced)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = fill(lambda: torch.empty(300, 70, device="spyre"))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(dense, alone)


# ---- generators -------------------------------------------------------------------------------

DRAWS: list[tuple[str, Callable[[torch.Generator | None], torch.Tensor]]] = [
    ("normal_", lambda g: torch.empty(40, device="spyre").normal_(generator=g)),
    ("uniform_", lambda g: torch.empty(40, device="spyre").uniform_(generator=g)),
    ("random_", lambda g: torch.empty(40, dtype=torch.int32, device="spyre").random_(generator=g)),
    ("random_.to", lambda g: torch.empty(40, device="spyre").random_(99, generator=g)),
    ("random_.from", lambda g: torch.empty(40, device="spyre").random_(-9, 99, generator=g)),
    ("bernoulli_", lambda g: torch.empty(40, device="spyre").bernoulli_(0.5, generator=g)),
    ("bernoulli", lambda g: torch.bernoulli(torch.full((40,), 0.5, device="spyre"), generator=g)),
    ("exponential_", lambda g: torch.empty(40, device="spyre").exponential_(generator=g)),
    ("cauchy_", lambda g: torch.empty(40, device="spyre").cauchy_(generator=g)),
    ("log_normal_", lambda g: torch.empty(40, device="spyre").log_normal_(generator=g)),
    ("geometric_", lambda g: torch.empty(40, device="spyre").geometric_(0.2, generator=g)),
    ("randperm", lambda g: torch.randperm(40, device="spyre", generator=g)),
    (
        "multinomial",
        lambda g: torch.multinomial(torch.ones(40, device="spyre"), 20, generator=g),
    ),
    ("rand", lambda g: torch.rand(40, device="spyre", generator=g)),
    ("randn", lambda g: torch.randn(40, device="spyre", generator=g)),
    ("randint", lambda g: torch.randint(50, (40,), device="spyre", generator=g)),
    ("normal", lambda g: torch.normal(torch.zeros(40, device="spyre"), 1.0, generator=g)),
]


@pytest.mark.parametrize(("name", "draw"), DRAWS, ids=[name for name, _ in DRAWS])
def test_pt4_b143_device_generators_serve_and_the_cpu_generator_rests(
    name: str, draw: Callable[[torch.Generator | None], torch.Tensor]
) -> None:
    torch.manual_seed(8)
    before = torch.get_rng_state()
    a, b = draw(None).cpu(), draw(None).cpu()
    assert not torch.equal(a, b)
    torch.spyre.manual_seed(8)
    assert torch.equal(a, draw(None).cpu())
    default = spyre.get_rng_state()
    own = torch.Generator("spyre").manual_seed(8)
    assert torch.equal(a, draw(own).cpu())
    assert torch.equal(b, draw(own).cpu())
    assert torch.equal(default, spyre.get_rng_state())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(("name", "draw"), DRAWS, ids=[name for name, _ in DRAWS])
def test_b146_a_cpu_generator_is_refused(
    name: str, draw: Callable[[torch.Generator | None], torch.Tensor]
) -> None:
    with pytest.raises(RuntimeError, match="device type for generator"):
        draw(torch.Generator())


def test_b146_a_device_generator_does_not_serve_cpu_tensors() -> None:
    generator = torch.Generator("spyre")
    x = torch.zeros(4)
    for draw in (x.normal_, x.uniform_, x.exponential_, x.random_):
        with pytest.raises(RuntimeError, match="generator"):
            draw(generator=generator)
    assert torch.equal(x, torch.zeros(4))


def test_dropout_rests_the_cpu_generator_and_repeats() -> None:
    x = torch.ones(1000, device="spyre", requires_grad=True)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    y = torch.nn.functional.dropout(x, 0.25)
    y.sum().backward()
    assert torch.equal(before, torch.get_rng_state())
    assert x.grad is not None
    assert torch.equal(y.detach().cpu(), x.grad.cpu())
    kept = y.detach().cpu() != 0
    assert 0.69 < kept.float().mean() < 0.81
    np.testing.assert_allclose(y.detach().cpu()[kept].numpy(), 1 / 0.75, rtol=1e-6)
    spyre.manual_seed(2)
    assert torch.equal(torch.nn.functional.dropout(x, 0.25).detach().cpu(), y.detach().cpu())


# ---- ranges and statistics --------------------------------------------------------------------


def test_b143_b145_a_million_normals() -> None:
    spyre.manual_seed(0)
    x = torch.randn(1_000_000, device="spyre").cpu().double()
    assert abs(x.mean()) < 0.005 and abs(x.std() - 1) < 0.005
    assert abs((x**3).mean()) < 0.02 and abs((x**4).mean() - 3) < 0.05
    assert torch.isfinite(x).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_stays_in_the_half_open_interval(dtype: torch.dtype) -> None:
    spyre.manual_seed(1)
    for low, high in ((0.0, 1.0), (-3.0, 5.0), (0.5, 0.75)):
        x = torch.empty(100_000, dtype=dtype, device="spyre").uniform_(low, high).cpu().double()
        assert x.min() >= low and x.max() < high
        assert abs(x.mean() - (low + high) / 2) < 0.02 * (high - low)
        assert abs(x.var() - (high - low) ** 2 / 12) < 0.02 * (high - low) ** 2
    assert torch.empty(8, dtype=dtype, device="spyre").uniform_(2, 2).tolist() == [2.0] * 8


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal_mean_and_std(dtype: torch.dtype) -> None:
    spyre.manual_seed(2)
    x = torch.empty(100_000, dtype=dtype, device="spyre").normal_(3, 0.5).cpu().double()
    assert abs(x.mean() - 3) < 0.01 and abs(x.std() - 0.5) < 0.01


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_random_covers_what_the_dtype_holds(dtype: torch.dtype) -> None:
    spyre.manual_seed(3)
    x = torch.empty(50_000, dtype=dtype, device="spyre").random_().cpu()
    largest = {
        torch.bool: 1,
        torch.float32: 2**24,
        torch.float64: 2**53,
        torch.float16: 2**11,
        torch.bfloat16: 2**8,
    }.get(dtype) or torch.iinfo(dtype).max
    values = x.double()
    assert values.min() >= 0 and values.max() <= largest
    assert abs(values.mean() / largest - 0.5) < 0.02
    assert values.max() > 0.95 * largest


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_bernoulli_frequencies(dtype: torch.dtype) -> None:
    spyre.manual_seed(4)
    x = torch.empty(20_000, dtype=dtype, device="spyre").bernoulli_(0.3).cpu().double()
    assert set(x.tolist()) == {0.0, 1.0} and abs(x.mean() - 0.3) < 0.02
    p = torch.tensor([[0.0], [1.0], [0.5]], device="spyre")
    x = torch.empty(3, 20_000, dtype=dtype, device="spyre").bernoulli_(p).cpu().double()
    assert x[0].max() == 0 and x[1].min() == 1 and abs(x[2].mean() - 0.5) < 0.02


def test_random_over_all_of_int64_and_narrow_ranges() -> None:
    spyre.manual_seed(5)
    lowest = torch.iinfo(torch.int64).min
    x = torch.empty(4000, dtype=torch.int64, device="spyre").random_(lowest, None).cpu()
    assert (x < 0).sum() > 1700 and (x > 0).sum() > 1700
    x = torch.randint(5, 8, (3000,), dtype=torch.uint8, device="spyre").cpu()
    assert x.unique().tolist() == [5, 6, 7] and (x == 6).sum() > 850
    x = torch.randint(0, 2**40, (3000,), device="spyre").cpu()
    assert x.min() >= 0 and x.max() < 2**40 and x.max() > 2**39
    for dtype, top in ((torch.float16, 2048), (torch.bfloat16, 256)):
        x = torch.randint(0, top, (30_000,), dtype=dtype, device="spyre").cpu()
        assert x.max() < top and x.min() >= 0


@pytest.mark.parametrize("dtype", FLOATS)
def test_other_distributions(dtype: torch.dtype) -> None:
    spyre.manual_seed(6)

    def empty() -> torch.Tensor:
        return torch.empty(50_000, dtype=dtype, device="spyre")

    x = empty().exponential_(2.0).cpu().double()
    assert x.min() >= 0 and abs(x.mean() - 0.5) < 0.01 and abs(x.median() - math.log(2) / 2) < 0.01
    x = empty().cauchy_(1.0, 2.0).cpu().double()
    assert abs(x.median() - 1) < 0.05
    assert abs((x.quantile(0.75) - x.quantile(0.25)) - 4) < 0.15
    x = empty().log_normal_(0.5, 0.25).cpu().double()
    assert abs(x.log().mean() - 0.5) < 0.01 and abs(x.log().std() - 0.25) < 0.01
    x = empty().geometric_(0.25).cpu().double()
    assert x.min() == 1 and abs(x.mean() - 4) < 0.1 and torch.equal(x, x.round())


def test_complex_normals_have_half_the_variance_in_each_part() -> None:
    spyre.manual_seed(7)
    x = torch.randn(50_000, dtype=torch.complex64, device="spyre").cpu()
    assert abs(x.real.var() - 0.5) < 0.02 and abs(x.imag.var() - 0.5) < 0.02
    assert abs((x.real * x.imag).mean()) < 0.01


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float32, torch.float16])
def test_randperm_is_a_permutation(dtype: torch.dtype) -> None:
    for n in (0, 1, 2, 7, 1000):
        got = torch.randperm(n, dtype=dtype, device="spyre")
        assert got.dtype == dtype and got.shape == (n,)
        assert sorted(got.cpu().long().tolist()) == list(range(n))
    firsts = torch.stack([torch.randperm(4, device="spyre").cpu() for _ in range(2000)])
    counts = torch.stack([(firsts == v).sum(0) for v in range(4)])
    assert (counts > 400).all() and (counts < 600).all()
    with pytest.raises(RuntimeError, match="n cannot be greater than"):
        torch.randperm(5000, dtype=torch.float16, device="spyre")


def test_multinomial_frequencies_and_impossible_categories() -> None:
    spyre.manual_seed(10)
    p = torch.tensor([[1.0, 0.0, 3.0], [0.0, 0.0, 5.0]])
    got = torch.multinomial(p.to("spyre"), 8000, replacement=True).cpu()
    assert got.dtype == torch.int64 and got.shape == (2, 8000)
    assert not (got[0] == 1).any() and abs((got[0] == 2).float().mean() - 0.75) < 0.02
    assert (got[1] == 2).all()
    many = p[0].expand(8000, 3).to("spyre")
    first = torch.multinomial(many, 2).cpu()
    assert (first.sort(1).values == torch.tensor([0, 2])).all()
    assert abs((first[:, 0] == 2).float().mean() - 0.75) < 0.02
    out = torch.empty(0, dtype=torch.int64, device="spyre")
    assert torch.multinomial(torch.ones(5, device="spyre"), 5, out=out) is out
    assert sorted(out.tolist()) == [0, 1, 2, 3, 4]
    assert torch.multinomial(torch.ones(3, dtype=torch.float16, device="spyre"), 1).shape == (1,)


# ---- argument checks --------------------------------------------------------------------------

WRONG: list[tuple[str, Callable[[str], torch.Tensor]]] = [
    ("normal_", lambda d: torch.zeros(3, device=d).normal_(0, -1)),
    ("uniform_", lambda d: torch.zeros(3, device=d).uniform_(2, 1)),
    ("uniform_ range", lambda d: torch.zeros(3, dtype=torch.float16, device=d).uniform_(0, 1e6)),
    ("random_", lambda d: torch.zeros(3, device=d).random_(5, 5)),
    ("random_ range", lambda d: torch.zeros(3, dtype=torch.uint8, device=d).random_(0, 300)),
    ("bernoulli_", lambda d: torch.zeros(3, device=d).bernoulli_(1.5)),
    ("exponential_", lambda d: torch.zeros(3, device=d).exponential_(0)),
    ("cauchy_", lambda d: torch.zeros(3, device=d).cauchy_(0, -1)),
    ("log_normal_", lambda d: torch.zeros(3, device=d).log_normal_(0, 0)),
    ("geometric_", lambda d: torch.zeros(3, device=d).geometric_(1.5)),
    ("multinomial dim", lambda d: torch.multinomial(torch.ones(1, 1, 1, device=d), 1)),
    ("multinomial count", lambda d: torch.multinomial(torch.ones(3, device=d), 4)),
    ("multinomial zero", lambda d: torch.multinomial(torch.ones(3, device=d), 0)),
    ("multinomial values", lambda d: torch.multinomial(torch.tensor([-1.0, 2], device=d), 1)),
    ("multinomial dtype", lambda d: torch.multinomial(torch.ones(3, dtype=int, device=d), 1)),
    ("randperm", lambda d: torch.randperm(-1, device=d)),
    ("expanded", lambda d: torch.zeros(1, device=d).expand(3).normal_()),
]


@pytest.mark.parametrize(("name", "call"), WRONG, ids=[name for name, _ in WRONG])
def test_wrong_arguments_are_refused_as_on_cpu(
    name: str, call: Callable[[str], torch.Tensor]
) -> None:
    with pytest.raises(RuntimeError) as cpu:
        call("cpu")
    with pytest.raises(RuntimeError) as device:
        call("spyre")
    assert not isinstance(device.value, NotImplementedError)  # PT30
    assert str(device.value).split("\n")[0][:30] == str(cpu.value).split("\n")[0][:30]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_continuous_distributions_refuse_integers_as_on_cpu(dtype: torch.dtype) -> None:
    for fill in ("normal_", "uniform_", "exponential_", "cauchy_", "log_normal_"):
        for device in ("cpu", "spyre"):
            with pytest.raises(RuntimeError):
                getattr(torch.zeros(3, dtype=dtype, device=device), fill)()


def test_empty_tensors_draw_nothing() -> None:
    spyre.manual_seed(1)
    before = spyre.get_rng_state()
    assert torch.randn(0, 4, device="spyre").shape == (0, 4)
    assert torch.rand(0, device="spyre").numel() == 0
    assert torch.equal(before, spyre.get_rng_state())
