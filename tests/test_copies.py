"""Copies host to card, card to host and card to card, of any view on either side.

The reference is the same copy between CPU tensors followed by the numpy oracle of the formats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from oracles import assert_bits_equal, through_card

SIZES = [0, 1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129]
DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.bool,
]
LIMIT = 20_000  # elements of a base tensor


def mode() -> str:
    return str(torch.spyre.numerics.mode())


def sample(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Every bit pattern may occur: values are random bytes (bool: random truth)."""
    generator = torch.Generator().manual_seed(seed)
    numel = 1
    for size in shape:
        numel *= size
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    itemsize = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256, (numel * itemsize,), generator=generator, dtype=torch.uint8)
    return raw.view(dtype).reshape(shape) if numel else torch.empty(shape, dtype=dtype)


@dataclass(frozen=True)
class Embedding:
    """How a view of some sizes lies in a larger base tensor."""

    base: tuple[int, ...]
    slices: tuple[tuple[int, int, int], ...]  # start, stop, step of each base dim
    order: tuple[int, ...]  # view dim i is base dim order[i]
    expand: tuple[int, ...]  # sizes of the view

    def view(self, base: torch.Tensor) -> torch.Tensor:
        view = base[tuple(slice(a, b, k) for a, b, k in self.slices)] if self.slices else base
        return view.permute(self.order).expand(self.expand)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    rank = draw(st.integers(0, 6))
    shape: list[int] = []
    numel = 1
    for _ in range(rank):
        size = draw(st.sampled_from([s for s in SIZES if s * numel <= LIMIT // 4] or [1]))
        shape.append(size)
        numel *= max(size, 1)
    return tuple(shape)


@st.composite
def embeddings(draw: st.DrawFn, shape: tuple[int, ...], expandable: bool) -> Embedding:
    order = draw(st.permutations(range(len(shape))))
    place = {base_dim: view_dim for view_dim, base_dim in enumerate(order)}
    base, slices = [], []
    numel = 1
    for base_dim in range(len(shape)):
        size = shape[place[base_dim]]
        if expandable and size > 1 and draw(st.integers(0, 4)) == 0:
            size = 1
        step = draw(st.sampled_from([1, 1, 1, 2, 3]))
        before = draw(st.sampled_from([0, 0, 0, 1, 7, 32, 63]))
        after = draw(st.sampled_from([0, 0, 0, 1, 5]))
        span = (size - 1) * step + 1 if size else 0
        if numel * (before + span + after) > LIMIT:
            step, before, after, span = 1, 0, 0, size
        base.append(before + span + after)
        slices.append((before, before + span, step))
        numel *= max(base[-1], 1)
    return Embedding(tuple(base), tuple(slices), tuple(order), shape)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Embedding, Embedding, torch.dtype, int]:
    shape = draw(shapes())
    source = draw(embeddings(shape, expandable=True))
    target = draw(embeddings(shape, expandable=False))
    return source, target, draw(st.sampled_from(DTYPES)), draw(st.integers(0, 2**31))


def run(case: tuple[Embedding, Embedding, torch.dtype, int], source: str, target: str) -> None:
    from_, to, dtype, seed = case
    source_base, target_base = sample(from_.base, dtype, seed), sample(to.base, dtype, seed + 1)
    source_base, target_base = (through_card(t, mode()) for t in (source_base, target_base))
    there, here = target_base.to(target), source_base.to(source)
    to.view(there).copy_(from_.view(here))

    expected = target_base.clone()
    to.view(expected).copy_(from_.view(source_base))
    assert_bits_equal(there.cpu(), through_card(expected, mode()))
    assert_bits_equal(here.cpu(), source_base)


# 5,000 cases in all in `make test-all`; half of them in `make test`.
PARTS = pytest.mark.parametrize("part", [1, pytest.param(2, marks=pytest.mark.slow)])


@PARTS
@hypothesis.given(case=cases())
@hypothesis.settings(max_examples=750)
def test_host_to_card_copies_equal_the_cpus(part: int, case: Any) -> None:
    run(case, "cpu", "spyre")


@PARTS
@hypothesis.given(case=cases())
@hypothesis.settings(max_examples=750)
def test_card_to_host_copies_equal_the_cpus(part: int, case: Any) -> None:
    run(case, "spyre", "cpu")


@PARTS
@hypothesis.given(case=cases())
@hypothesis.settings(max_examples=750)
def test_card_to_card_copies_equal_the_cpus(part: int, case: Any) -> None:
    run(case, "spyre", "spyre")


@hypothesis.given(cases())
@hypothesis.settings(max_examples=500)
def test_copies_between_two_cards_equal_the_cpus(case: Any) -> None:
    run(case, "spyre:0", "spyre:1")


@hypothesis.given(cases())
@hypothesis.settings(max_examples=300)
def test_non_blocking_copies_equal_the_cpus_after_a_synchronize(case: Any) -> None:
    from_, to, dtype, seed = case
    source, target = sample(from_.base, dtype, seed), sample(to.base, dtype, seed + 1)
    there = target.to("spyre")
    staged = source.clone()
    to.view(there).copy_(from_.view(staged), non_blocking=True)
    if staged.numel():
        staged.view(-1).view(torch.uint8).fill_(0x5A)  # RT46: the source may be reused at once
    pinned = torch.empty(target.shape, dtype=dtype, pin_memory=True)
    pinned.copy_(there, non_blocking=True)
    torch.spyre.synchronize()
    expected = through_card(target, mode())
    to.view(expected).copy_(from_.view(source))
    assert_bits_equal(pinned, through_card(expected, mode()))


@hypothesis.given(
    shape=shapes(),
    pair=st.tuples(st.sampled_from(DTYPES[:4] + DTYPES[9:13]), st.sampled_from(DTYPES[:4])),
    seed=st.integers(0, 1000),
)
@hypothesis.settings(max_examples=300)
def test_copies_with_a_cast_equal_the_cpus(
    shape: tuple[int, ...], pair: tuple[torch.dtype, torch.dtype], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 100, shape, generator=generator)  # exact in every dtype
    source = values.to(pair[0])
    expected = source.to(pair[1])
    assert_bits_equal(
        torch.empty(shape, dtype=pair[1], device="spyre").copy_(source).cpu(), expected
    )
    assert_bits_equal(torch.empty(shape, dtype=pair[1]).copy_(source.to("spyre")), expected)
    assert_bits_equal(source.to("spyre").to(pair[1]).cpu(), expected)


# --- rows of the fact files


@pytest.mark.parametrize("length", [63, 64, 65, 127, 128, 129, 191, 193])
def test_b001_a_copy_keeps_the_tail_behind_the_first_stick(length: int) -> None:
    x = torch.arange(length, dtype=torch.float16, device="spyre")
    assert x.clone().cpu().tolist() == list(range(length))


def test_b010_a_slice_keeps_its_storage_offset() -> None:
    x = torch.arange(256, dtype=torch.float16, device="spyre").view(4, 64)
    assert x.narrow(0, 0, 1).clone().cpu().flatten().tolist() == list(range(64))
    assert x.narrow(0, 2, 1).clone().cpu().flatten().tolist() == list(range(128, 192))


@pytest.mark.parametrize("offset", [1, 7, 32, 63, 64])
def test_b011_an_offset_inside_the_stick_dimension(offset: int) -> None:
    x = torch.arange(256, dtype=torch.float16, device="spyre").view(2, 128)
    got = x.narrow(1, offset, 64).clone().cpu()
    assert got.tolist() == [[float(r * 128 + offset + c) for c in range(64)] for r in range(2)]


def test_b013_offset_plus_step_on_a_non_stick_dimension() -> None:
    base = torch.arange(9.0).view(9, 1).expand(9, 128).half().to("spyre")
    view = base[1::2, :]
    assert (view + view)[:, 0].cpu().tolist() == [2, 6, 10, 14]


def test_b014_whole_row_offset_on_a_padded_base() -> None:
    base = torch.arange(400.0).view(4, 100).half().to("spyre")
    x = base[1:, :]
    assert_bits_equal(
        (x + x).cpu(), through_card(2 * torch.arange(400.0).view(4, 100)[1:].half(), mode())
    )


def test_b016_host_copy_into_a_slice_shorter_than_a_stick() -> None:
    x = torch.full((64,), 7, dtype=torch.int32, device="spyre")
    x[:9].copy_(torch.arange(9, dtype=torch.int32))
    assert x.cpu().tolist() == [*range(9), *[7] * 55]


def test_b088_slice_assignment_at_every_offset() -> None:
    cache = torch.zeros(2, 3, 301, 4, dtype=torch.float16, device="spyre")
    for o in range(0, 301, 7):
        cache[:, :, o : o + 1] = o
    got = cache.cpu()
    for o in range(301):
        assert (got[:, :, o] == (o if o % 7 == 0 else 0)).all()


def test_b089_a_slice_write_that_starts_inside_a_stick() -> None:
    x = torch.zeros(4, 128, dtype=torch.float16, device="spyre")
    x[:, 32:96] = 5
    expected = torch.zeros(4, 128, dtype=torch.float16)
    expected[:, 32:96] = 5
    assert_bits_equal(x.cpu(), expected)


def test_b097_copy_between_two_tensors_of_the_card() -> None:
    a = torch.arange(1000.0, device="spyre")
    b = torch.empty(1000, device="spyre")
    b.copy_(a)
    assert torch.equal(b.cpu(), torch.arange(1000.0))


def test_b100_zero_dimensional_tensors_stay_zero_dimensional() -> None:
    x = torch.tensor(3.0).to("spyre")
    assert x.shape == () and x.cpu().shape == () and x.item() == 3.0
    assert torch.ones((), device="spyre").shape == ()
    assert (x + 1).shape == () and (x + 1).item() == 4.0


def test_b103_diff_is_not_zero() -> None:
    x = torch.tensor([1.0, 4.0, 9.0, 16.0], device="spyre")
    assert torch.diff(x).cpu().tolist() == [3, 5, 7]


@pytest.mark.parametrize("width", range(32, 131, 7))
def test_b107_device_to_host_keeps_the_order_of_mixed_dtypes(width: int) -> None:
    x = torch.arange(width).half().to("spyre")
    assert (x * 2).float().cpu().tolist() == [2.0 * i for i in range(width)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_rt45_a_zero_size_tensor_of_every_dtype_copies_both_ways(dtype: torch.dtype) -> None:
    for shape in [(0,), (3, 0), (0, 5, 2)]:
        x = torch.empty(shape, dtype=dtype, device="spyre")
        assert x.cpu().shape == shape and x.cpu().dtype == dtype
        assert x.data_ptr() == 0


def test_rt46_non_blocking_host_to_card_keeps_the_data_of_the_call() -> None:
    source = torch.randn(1024, 1024).pin_memory()
    expected = source.clone()
    there = source.to("spyre", non_blocking=True)
    source.fill_(-1)
    del source
    torch.spyre.synchronize()
    assert torch.equal(there.cpu(), expected)


def test_rt46_non_blocking_card_to_host_of_an_expanded_view_is_right_after_a_synchronize() -> None:
    row = torch.randn(1, 500)
    view = row.to("spyre").expand(300, 500)
    host = torch.empty(300, 500, pin_memory=True)
    host.copy_(view, non_blocking=True)
    torch.spyre.synchronize()
    assert torch.equal(host, row.expand(300, 500))


def test_writing_an_expanded_destination_is_refused_and_changes_nothing() -> None:
    x = torch.zeros(1, 4, device="spyre")
    with pytest.raises(RuntimeError, match="single memory location"):
        x.expand(3, 4).copy_(torch.ones(3, 4))
    assert x.cpu().tolist() == [[0, 0, 0, 0]]


def test_overlapping_halves_of_one_storage_copy_like_a_snapshot() -> None:
    x = torch.arange(200.0, device="spyre")
    x[50:].copy_(x[:150].clone())
    assert x.cpu().tolist() == [*map(float, range(50)), *map(float, range(150))]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_pt1_conjugate_and_negative_views_copy_both_ways(dtype: torch.dtype) -> None:
    z = torch.randn(5, 7, dtype=dtype)
    d = z.to("spyre")
    assert torch.equal(d.conj().cpu(), z.conj().resolve_conj())
    assert torch.equal(d.conj().clone().cpu(), z.conj())
    assert torch.equal(d.conj().imag.cpu(), z.conj().imag)  # negative bit
    target = torch.empty_like(d)
    target.copy_(z.conj())
    assert torch.equal(target.cpu(), z.conj().resolve_conj())
    target.conj().copy_(z)  # writes through a conjugate view
    assert torch.equal(target.cpu(), z.conj().resolve_conj())
