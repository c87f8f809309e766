"""openspyre.compiler.bind: every element of a bound view lies where the storage's layout says."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence

import pytest

from openspyre.compiler.bind import (
    Bound,
    bind_view,
    contiguous_strides,
    place_for,
    storage_layout,
)
from openspyre.compiler.graph import Role, Tensor
from openspyre.formats import Format
from openspyre.layout import SpyreTensorLayout

F16, F32, I64 = Format.SEN169_FP16, Format.IEEE_FP32, Format.IEEE_INT64


def check(
    layout: SpyreTensorLayout, sizes: Sequence[int], strides: Sequence[int], offset: int = 0
) -> Bound:
    bound = bind_view(layout, sizes, strides, offset)
    assert bound is not None, (str(layout), sizes, strides, offset)
    same_addresses(bound, layout, sizes, strides, offset)
    return bound


def same_addresses(
    bound: Bound,
    layout: SpyreTensorLayout,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int,
) -> None:
    eps = layout.format.elements_per_stick
    for index in itertools.product(*map(range, sizes)):
        linear = offset + sum(i * s for i, s in zip(index, strides, strict=True))
        assert bound.address(index, eps) == layout.element_offset(linear), (index, str(layout))
    assert all(s % 128 == 0 for s in bound.place.strides)
    assert bound.offset % 128 == 0


def test_default_layout_has_its_first_dim_next_to_the_stick() -> None:
    layout = SpyreTensorLayout.default((3, 5, 130), F16)
    bound = check(layout, (3, 5, 130), (650, 130, 1))
    assert bound.shape == (3, 5, 130)
    assert bound.place.stick == 2
    assert bound.place.strides == (128, 3 * 3 * 128, 3 * 128)
    assert bound.whole_sticks


def test_merged_dims_keep_their_addressed_dims() -> None:
    layout = SpyreTensorLayout.default((3, 5, 130), F16)
    bound = check(layout, (15, 130), (130, 1))
    assert bound.shape == (3, 5, 130)
    assert bound.groups == ((0, 1), (2,))
    check(layout, (3, 650), (650, 1))
    flat = check(layout, (1950,), (1,))
    assert flat.groups == ((0, 1, 2),)


def test_heads_split_from_a_row() -> None:
    layout = SpyreTensorLayout.default((6, 4 * 64), F16)
    bound = check(layout, (6, 4, 64), (256, 64, 1))
    assert bound.whole_sticks
    check(layout, (4, 6, 64), (64, 256, 1))
    check(layout, (2, 2, 6, 64), (128, 64, 256, 1))
    assert bind_view(SpyreTensorLayout.default((6, 160), F16), (6, 2, 80), (160, 80, 1)) is None


def test_transposes_and_permutations() -> None:
    layout = SpyreTensorLayout.default((4, 70), F32)
    bound = check(layout, (70, 4), (1, 70))
    assert bound.place.stick == 0
    layout = SpyreTensorLayout.default((2, 3, 4, 33), F32)
    sizes, strides = (2, 3, 4, 33), contiguous_strides((2, 3, 4, 33))
    for order in itertools.permutations(range(4)):
        check(layout, [sizes[d] for d in order], [strides[d] for d in order])


def test_slices_at_stick_boundaries_only() -> None:
    layout = SpyreTensorLayout.default((4, 256), F16)
    inner = check(layout, (4, 64), (256, 1), 128)
    assert inner.whole_sticks
    part = check(layout, (4, 40), (256, 1), 64)
    assert not part.whole_sticks  # 24 elements of the stick are others'
    assert bind_view(layout, (4, 64), (256, 1), 32) is None
    assert bind_view(layout, (4, 128), (256, 2)) is None
    rows = check(layout, (2, 256), (512, 1), 256)
    assert rows.place.strides[0] == 256
    tail = check(SpyreTensorLayout.default((4, 150), F16), (4, 22), (150, 1), 128)
    assert tail.whole_sticks  # behind it are pads


def test_a_column_is_one_element_a_stick() -> None:
    layout = SpyreTensorLayout.default((4, 256), F16)
    bound = check(layout, (4,), (256,), 64)
    assert bound.place.stick == -1
    assert not bound.whole_sticks
    assert bind_view(layout, (4,), (256,), 65) is None
    strided = check(layout, (4, 4), (256, 64))
    assert strided.place.stick == -1


def test_expand_and_size_one_dims_do_not_move() -> None:
    layout = SpyreTensorLayout.default((1, 70), F16)
    bound = check(layout, (5, 70), (0, 1))
    assert bound.groups == ((), (0,))
    assert bound.expanded
    view = bound.view(Tensor("a", bound.shape, "float16", Role.INPUT, bound.place))
    assert view.shape == (5, 70)
    assert view.index[0].labels == (view.dims[1][0],)
    one = check(layout, (1, 1, 70, 1), (99, 70, 1, 5))
    assert one.groups == ((), (), (0,), ())


def test_zero_dims() -> None:
    layout = SpyreTensorLayout.default((), F32)
    bound = check(layout, (), ())
    assert (bound.shape, bound.place.stick, bound.offset) == ((), -1, 0)
    assert bound.whole_sticks
    row = SpyreTensorLayout.default((3, 64), F32)
    assert check(row, (), (), 32).offset == 3 * 128
    assert bind_view(row, (), (), 1) is None


def test_sparse_layouts() -> None:
    layout = SpyreTensorLayout.sparse((4, 6), F32)
    bound = check(layout, (4, 6), (6, 1))
    assert bound.place.stick == -1
    assert bound.whole_sticks
    check(layout, (6,), (1,), 6)


def test_ranks_above_six() -> None:
    sizes = (2, 2, 3, 1, 2, 2, 2, 33)
    layout = SpyreTensorLayout.default(sizes, F32)
    check(layout, sizes, contiguous_strides(sizes))


def test_copies_can_be_read_and_not_written() -> None:
    layout = SpyreTensorLayout.explicit((2, 64), (2, 3, 64), (64, 0, 1), F16)
    assert not check(layout, (2, 64), (64, 1)).whole_sticks


def test_folded_layouts() -> None:
    layout = SpyreTensorLayout.explicit((256,), (2, 2, 64), (64, 128, 1), F16)
    check(layout, (256,), (1,))
    check(layout, (2, 128), (128, 1))
    check(layout, (64,), (1,), 192)


def test_diagonals_need_a_copy() -> None:
    layout = SpyreTensorLayout.default((64, 64), F16)
    assert bind_view(layout, (64,), (65,)) is None


def test_new_outputs() -> None:
    bound = place_for((4, 70), (70, 1), F16)
    assert bound is not None and bound.place.strides == (128, 512)
    turned = place_for((4, 70), (1, 4), F16)
    assert turned is not None and turned.place.stick == 0
    channels_last = place_for((2, 8, 3, 5), (120, 1, 40, 8), F16)
    assert channels_last is not None and channels_last.place.stick == 1
    gaps = storage_layout((4, 10), (64, 1), F16)
    assert gaps.host_size == (3 * 64 + 10,)
    assert place_for((4, 10), (64, 1), F16) is not None
    assert place_for((4, 10), (16, 1), F16) is None


@pytest.mark.parametrize("seed", range(40))
def test_random_views_lie_where_the_layout_says(seed: int) -> None:
    rng = random.Random(seed)
    bound_views = 0
    for _ in range(30):
        layout, sizes, strides, offset = random_view(rng)
        bound = bind_view(layout, sizes, strides, offset)
        if bound is None:
            continue
        bound_views += 1
        same_addresses(bound, layout, sizes, strides, offset)
        assert all(
            len(g) == 0 or n == _product(bound.shape[d] for d in g)
            for g, n in zip(bound.groups, bound.sizes, strict=True)
        )
        if bound.whole_sticks:
            keeps_neighbours(bound, layout, sizes, strides, offset)
    assert bound_views > 5


def keeps_neighbours(
    bound: Bound,
    layout: SpyreTensorLayout,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int,
) -> None:
    """No stick of the view holds an element that is not the view's."""
    mine = {
        offset + sum(i * s for i, s in zip(index, strides, strict=True))
        for index in itertools.product(*map(range, sizes))
    }
    sticks = {layout.element_offset(e) // 128 for e in mine}
    for element in range(layout.numel):
        if element not in mine:
            for place in layout.places(element):
                assert place // 128 not in sticks


def _product(values: Iterable[int]) -> int:
    out = 1
    for value in values:
        out *= value
    return out


def random_view(rng: random.Random) -> tuple[SpyreTensorLayout, list[int], list[int], int]:
    format = rng.choice([F16, F32, I64])
    eps = format.elements_per_stick
    rank = rng.randint(1, 4)
    sizes = [rng.choice([1, 2, 3, 4]) for _ in range(rank)]
    sizes[-1] = rng.choice([1, 2, 5, eps // 2, eps, eps + 3, 2 * eps, 2 * eps])
    order = list(range(rank))
    if rng.random() < 0.4:
        rng.shuffle(order)
    if rng.random() < 0.15:
        order.append(-1)
    layout = SpyreTensorLayout.with_order(sizes, order, format)
    dims = list(zip(sizes, contiguous_strides(sizes), strict=True))
    offset = 0
    for _ in range(rng.randint(0, 4)):
        what = rng.randrange(6)
        d = rng.randrange(len(dims)) if dims else 0
        if not dims:
            break
        n, s = dims[d]
        if what == 0:
            rng.shuffle(dims)
        elif what == 1:
            start = rng.choice([0, 0, eps, n // 2])
            if start < n:
                length = rng.randint(1, n - start)
                offset += start * s
                dims[d] = (length, s)
        elif what == 2 and n % 2 == 0:
            dims[d : d + 1] = [(2, s * (n // 2)), (n // 2, s)]
        elif what == 3 and d + 1 < len(dims) and s == dims[d + 1][0] * dims[d + 1][1]:
            dims[d : d + 2] = [(n * dims[d + 1][0], dims[d + 1][1])]
        elif what == 4:
            dims.insert(d, (rng.randint(1, 3), 0))
        elif what == 5:
            offset += rng.randrange(n) * s
            del dims[d]
    return layout, [n for n, _ in dims], [s for _, s in dims], offset
