"""Views against NumPy: chains of view operations give the elements that NumPy's give, or say that
they need a copy; never other elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import elements, step

from openspyre.compiler.graph import Tensor
from openspyre.compiler.view import NeedsCopy, View, common_factors


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_chains_of_views_show_the_elements_that_numpy_shows(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), max_size=4))
    array = np.arange(int(np.prod(shape))).reshape(shape)
    view, now = View.of(Tensor("x", tuple(shape), "float32")), array
    for _ in range(data.draw(st.integers(1, 6))):
        try:
            made, then = step(data.draw, view, now)
        except NeedsCopy:
            continue
        if then.size > 5000:
            continue
        view, now = made, then
        assert tuple(view.shape) == now.shape
        assert view.rank == now.ndim
        np.testing.assert_array_equal(elements(view, array), now)
        assert (not view.whole) or now.size == array.size


def test_reshape_back_and_forth_moves_nothing() -> None:
    view = View.of(Tensor("x", (4, 6, 10), "float16"))
    turned = view.permute([1, 0, 2]).reshape((6, 40)).reshape((2, 3, 4, 10))
    data = np.arange(240).reshape(4, 6, 10)
    np.testing.assert_array_equal(
        elements(turned, data), data.transpose(1, 0, 2).reshape(2, 3, 4, 10)
    )


def test_a_reshape_across_factors_needs_a_copy() -> None:
    with pytest.raises(NeedsCopy):
        View.of(Tensor("x", (4, 6), "float16")).reshape((3, 8))


def test_sizes_that_do_not_fit_are_refused() -> None:
    view = View.of(Tensor("x", (4, 6), "float16"))
    with pytest.raises(ValueError, match="do not fit"):
        view.reshape((4, 6, 2))
    with pytest.raises(ValueError, match="do not fit"):
        view.reshape((4, 3))
    with pytest.raises(ValueError, match="expand"):
        view.expand((4, 7))


def test_a_dim_that_groups_two_tensor_dims() -> None:
    view = View.of(Tensor("x", (4, 6, 5), "float16"), [[0, 1], [2]])
    data = np.arange(120).reshape(4, 6, 5)
    assert view.shape == (24, 5)
    np.testing.assert_array_equal(elements(view, data), data.reshape(24, 5))
    np.testing.assert_array_equal(
        elements(view.slice(0, 6, 12), data), data.reshape(24, 5)[6:18]
    )  # whole rows of the inner dim
    np.testing.assert_array_equal(elements(view.slice(0, 7, 4), data), data.reshape(24, 5)[7:11])
    np.testing.assert_array_equal(elements(view.select(0, 13), data), data.reshape(24, 5)[13])
    with pytest.raises(NeedsCopy):
        view.slice(0, 5, 4)


def test_whole_means_every_element_once_in_order() -> None:
    view = View.of(Tensor("x", (4, 6), "float16"))
    assert view.whole
    assert not view.transpose(0, 1).whole
    assert not view.slice(0, 0, 3).whole
    assert not view.slice(0, 0, 2, 2).whole
    assert not view.flip(0).whole
    assert not view.expand((2, 4, 6)).whole


@given(st.lists(st.integers(2, 5), min_size=1, max_size=4), st.data())
def test_common_factors_refine_every_list(base: list[int], data: Any) -> None:
    def merged() -> list[int]:
        out = [base[0]]
        for size in base[1:]:
            if data.draw(st.booleans()):
                out[-1] *= size
            else:
                out.append(size)
        return out

    lists = [merged() for _ in range(3)]
    found = common_factors(lists)
    assert found is not None
    numbers = [int(str(n)) for n in found]
    ends = set(np.cumprod(numbers[::-1]).tolist())
    for sizes in lists:
        assert set(np.cumprod(sizes[::-1]).tolist()) <= ends
    assert common_factors([[6], [2, 3], [3, 2]]) is None
    assert common_factors([[], []]) == ()
