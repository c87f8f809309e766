"""Layouts: the rows of compiler.md 2.2 by id, the laws of addresses, and the C++ twin.

The oracle of addresses is numpy: a host array is padded, reshaped and transposed into device dims.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch  # noqa: F401  # openspyre._C links against its libraries
from hypothesis import given, settings
from hypothesis import strategies as st

from openspyre.formats import Format, format_for
from openspyre.layout import (
    SpyreTensorLayout,
    dl16_to_fp32_place,
    fp32_to_dl16_place,
)

HALF = Format.SEN169_FP16
Sizes = tuple[int, ...]

# id, host size, dtype, order (None: default), device_size, stride_map, bytes
ROWS: list[tuple[str, Sizes, str, Sizes | None, Sizes, Sizes, int]] = [
    ("l1", (), "float16", None, (1, 64), (-1, -1), 128),
    ("l2", (60,), "float16", None, (1, 64), (64, 1), 128),
    ("l3", (120,), "float16", None, (2, 64), (64, 1), 256),
    ("l4", (4096,), "float32", None, (128, 32), (32, 1), 16_384),
    ("l5", (1024, 256), "float16", None, (4, 1024, 64), (64, 256, 1), 524_288),
    ("l6", (1024, 256), "float32", None, (8, 1024, 32), (32, 256, 1), 1_048_576),
    ("l7_int8", (1024, 256), "int8", None, (2, 1024, 128), (128, 256, 1), 262_144),
    ("l7_e4m3", (1024, 256), "float8_e4m3fn", None, (2, 1024, 128), (128, 256, 1), 262_144),
    ("l7_e5m2", (1024, 256), "float8_e5m2", None, (2, 1024, 128), (128, 256, 1), 262_144),
    ("l8", (1024, 256), "bool", None, (4, 1024, 64), (64, 256, 1), 524_288),
    ("l9", (1024, 256), "int64", None, (16, 1024, 16), (16, 256, 1), 2_097_152),
    ("l10", (512, 256), "float16", (1, 0), (8, 256, 64), (16384, 1, 256), 262_144),
    ("l11", (512, 256), "float16", (0, 1, -1), (256, 1, 512, 64), (1, -1, 256, -1), 16_777_216),
    ("l12", (512, 1), "float16", None, (1, 512, 64), (-1, 1, -1), 65_536),
    ("l13", (5, 100, 150), "float16", None, (100, 3, 5, 64), (150, 64, 15000, 1), 192_000),
    ("l14", (5, 100, 150), "float16", (1, 0, 2), (5, 3, 100, 64), (15000, 64, 150, 1), 192_000),
    ("l15", (512, 8, 256), "float16", None, (8, 4, 512, 64), (256, 64, 2048, 1), 2_097_152),
    (
        "l16",
        (512, 8, 256),
        "float16",
        (0, 2, 1),
        (256, 1, 512, 64),
        (1, 16384, 2048, 256),
        16_777_216,
    ),
    (
        "l17",
        (512, 8, 256),
        "float16",
        (1, 2, 0),
        (256, 8, 8, 64),
        (1, 131072, 256, 2048),
        2_097_152,
    ),
    (
        "l18",
        (512, 8, 256),
        "float16",
        (2, 1, 0),
        (8, 8, 256, 64),
        (256, 131072, 1, 2048),
        2_097_152,
    ),
    ("l19", (128, 256, 512), "float16", None, (256, 8, 128, 64), (512, 64, 131072, 1), 33_554_432),
    ("l20", (50, 10, 200), "float16", None, (10, 4, 50, 64), (200, 64, 2000, 1), 256_000),
    (
        "l21",
        (2, 32, 512, 128),
        "float16",
        None,
        (32, 512, 2, 2, 64),
        (65536, 128, 64, 2097152, 1),
        8_388_608,
    ),
    (
        "l22",
        (2, 8, 512, 128),
        "float16",
        (0, 1, 3, 2),
        (8, 128, 8, 2, 64),
        (65536, 1, 8192, 524288, 128),
        2_097_152,
    ),
    ("l23", (1, 512, 4096), "float16", None, (512, 64, 1, 64), (4096, 64, -1, 1), 4_194_304),
    (
        "l24",
        (2, 3, 5, 7, 256),
        "float16",
        None,
        (3, 5, 7, 4, 2, 64),
        (8960, 1792, 256, 64, 26880, 1),
        107_520,
    ),
    ("l25", (4096, 12800), "float16", (1, 0), (64, 12800, 64), (819200, 1, 12800), 104_857_600),
    ("l26", (49155, 4096), "float16", None, (64, 49155, 64), (64, 4096, 1), 402_677_760),
]


def twin(layout: SpyreTensorLayout) -> dict[str, Any]:
    """The fields of the C++ layout with the same explicit fields."""
    from openspyre import _C

    return _C.layout_describe(
        "explicit",
        list(layout.host_size),
        layout.format.name,
        list(layout.device_size),
        list(layout.stride_map),
    )


def fields(layout: SpyreTensorLayout) -> dict[str, Any]:
    return {
        "host_size": list(layout.host_size),
        "device_size": list(layout.device_size),
        "stride_map": list(layout.stride_map),
        "format": layout.format.name,
        "nbytes": layout.nbytes,
        "numel": layout.numel,
        "is_default": layout.is_default,
        "is_identity": layout.is_identity,
        "has_copies": layout.has_copies,
    }


@pytest.mark.parametrize(
    ("host", "dtype", "order", "device", "stride_map", "nbytes"),
    [row[1:] for row in ROWS],
    ids=[row[0] for row in ROWS],
)
def test_l1_to_l26_rows_have_their_layout_in_python_and_cpp(
    host: Sizes,
    dtype: str,
    order: Sizes | None,
    device: Sizes,
    stride_map: Sizes,
    nbytes: int,
) -> None:
    from openspyre import _C

    format = format_for(dtype)
    if order is None:
        layout = SpyreTensorLayout.default(host, format)
        native = _C.layout_describe("default", list(host), format.name)
        assert _C.layout_default_nbytes(list(host), format.name) == nbytes
    else:
        layout = SpyreTensorLayout.with_order(host, order, format)
        native = _C.layout_describe("order", list(host), format.name, list(order))
    assert (layout.device_size, layout.stride_map, layout.nbytes) == (device, stride_map, nbytes)
    assert native == fields(layout)


def test_explicit_constructors_pad_broadcast_and_fold() -> None:
    padded = SpyreTensorLayout.explicit((40, 60), (1, 512, 64), (64, 60, 1), HALF)
    assert padded.address(39, 59) == 39 * 128 + 2 * 59
    assert padded.nbytes == 512 * 128

    copies = SpyreTensorLayout.explicit((60,), (1, 512, 64), (64, 0, 1), HALF)
    assert copies.has_copies
    assert copies.places(7) == tuple(14 + 128 * copy for copy in range(512))

    fold = SpyreTensorLayout.explicit((40, 60), (38, 64), (64, 1), HALF)
    assert fold.is_identity
    assert fold.address(39, 59) == 2 * 2399
    assert fold.nbytes == 38 * 128
    for layout in (padded, copies, fold):
        assert twin(layout) == fields(layout)


def test_sparse_puts_one_element_on_a_stick() -> None:
    layout = SpyreTensorLayout.sparse((512, 256), HALF)
    assert layout == SpyreTensorLayout.with_order((512, 256), (0, 1, -1), HALF)
    assert layout.stick_dim is None
    assert layout.address(3, 5) == 128 * (5 * 512 + 3)


def test_l27_address_of_3_70() -> None:
    layout = SpyreTensorLayout.default((1024, 256), HALF)
    assert layout.address(3, 70) == 131_468
    i, j = np.indices((1024, 256))
    rule = 128 * ((j // 64) * 1024 + i) + 2 * (j % 64)
    assert rule[3, 70] == 131_468
    rng = np.random.default_rng(0)
    for a, b in zip(rng.integers(0, 1024, 200), rng.integers(0, 256, 200), strict=True):
        assert layout.address(int(a), int(b)) == rule[a, b]


def stickify(host: np.ndarray[Any, Any], order: Sizes, eps: int) -> np.ndarray[Any, Any]:
    """The oracle: device memory as numpy makes it, pads filled with -1."""
    sparse = bool(order) and order[-1] == -1
    if not order or sparse:  # a stick dim of its own, of size 1
        host = host[..., None]
        order = (*order[:-1], host.ndim - 1) if sparse else (0,)
    stick = order[-1]
    tiles = -(-host.shape[stick] // eps)
    pad = [(0, 0)] * host.ndim
    pad[stick] = (0, tiles * eps - host.shape[stick])
    padded = np.pad(host, pad, constant_values=-1)
    split = padded.reshape(
        *padded.shape[:stick], tiles, eps, *padded.shape[stick + 1 :]
    )  # dims after the stick dim moved by one
    axis = {dim: dim + (dim > stick) for dim in range(host.ndim)}
    middle = [axis[dim] for dim in order[1:]] if len(order) > 1 else [axis[stick]]
    first = [axis[order[0]]] if len(order) > 1 else []
    return split.transpose(*middle, *first, stick + 1).reshape(-1)


@st.composite
def shapes(draw: st.DrawFn, most: int = 6, limit: int = 6000) -> Sizes:
    sizes: list[int] = []
    for _ in range(draw(st.integers(0, most))):
        size = draw(st.sampled_from([1, 2, 3, 5, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129]))
        sizes.append(size if math.prod(sizes) * size <= limit else 1)
    return tuple(sizes)


@st.composite
def orders(draw: st.DrawFn, sizes: Sizes) -> Sizes:
    order = tuple(draw(st.permutations(range(len(sizes)))))
    sparse = len(sizes) < 6 and draw(st.booleans())
    return (*order, -1) if sparse else order


@settings(max_examples=150)
@given(st.data())
def test_l28_stickify_and_back_is_the_identity(data: st.DataObject) -> None:
    sizes = data.draw(shapes())
    order = data.draw(orders(sizes))
    format = data.draw(st.sampled_from(list(Format)))
    layout = SpyreTensorLayout.with_order(sizes, order, format)
    host = np.arange(layout.numel)
    expected = stickify(host.reshape(sizes), order, format.elements_per_stick)
    assert expected.size * format.bytes == layout.nbytes
    offsets = np.array([layout.element_offset(e) for e in range(layout.numel)])
    card = np.full(layout.nbytes // format.bytes, -1)
    card[offsets // format.bytes] = host
    np.testing.assert_array_equal(card, expected)  # each element at its place, pads untouched
    np.testing.assert_array_equal(card[offsets // format.bytes], host)


def test_l29_rank_7_collapses_its_leading_dims() -> None:
    sizes = (2, 3, 2, 1, 3, 2, 70)
    layout = SpyreTensorLayout.default(sizes, HALF)
    collapsed = (6, 2, 1, 3, 2, 70)
    assert layout == SpyreTensorLayout.default(collapsed, HALF)
    assert layout.host_size == collapsed
    expected = stickify(np.arange(layout.numel).reshape(collapsed), tuple(range(6)), 64)
    for element in range(0, layout.numel, 7):
        assert expected[layout.element_offset(element) // 2] == element
    with pytest.raises(ValueError, match="together and ascending"):
        SpyreTensorLayout.with_order(sizes, (1, 0, 2, 3, 4, 5, 6), HALF)
    assert SpyreTensorLayout.sparse((2,) * 6, HALF).host_size == (4, 2, 2, 2, 2)


def test_l30_dci_of_1024_256_is_one_loop_nest() -> None:
    (loop,) = SpyreTensorLayout.default((1024, 256), HALF).dci()
    assert loop.sizes == (4, 1024, 64)
    assert loop.device_strides == (65536, 64, 1)
    assert loop.host_strides == (64, 256, 1)
    assert (loop.device_offset, loop.host_offset) == (0, 0)


@settings(max_examples=60)
@given(st.data())
def test_l30_dci_visits_every_place_of_every_element_once(data: st.DataObject) -> None:
    sizes = data.draw(shapes(limit=1500))
    format = data.draw(st.sampled_from([HALF, Format.IEEE_FP32, Format.SENINT8, Format.HOST_16]))
    layout = SpyreTensorLayout.with_order(sizes, data.draw(orders(sizes)), format)
    if data.draw(st.booleans()):
        layout = SpyreTensorLayout.explicit(
            layout.host_size, (2, *layout.device_size), (0, *layout.stride_map), format
        )
    visited = sorted(pair for loop in layout.dci() for pair in loop.pairs())
    expected = sorted(
        (place // format.bytes, element)
        for element in range(layout.numel)
        for place in layout.places(element)
    )
    assert visited == expected


def test_l31_dl16_to_fp32_and_back() -> None:
    assert [dl16_to_fp32_place(col) for col in (5, 8, 63)] == [(1, 1), (0, 4), (1, 31)]
    places = [dl16_to_fp32_place(col) for col in range(192)]
    assert sorted(places) == [(stick, position) for stick in range(6) for position in range(32)]
    assert [fp32_to_dl16_place(*place) for place in places] == list(range(192))
    with pytest.raises(IndexError):
        fp32_to_dl16_place(0, 32)
    with pytest.raises(IndexError):
        dl16_to_fp32_place(-1)


def test_l32_size_1_dims_have_no_stride() -> None:
    column = SpyreTensorLayout.default((512, 1), HALF)
    assert (column.device_size, column.stride_map) == ((1, 512, 64), (-1, 1, -1))
    assert column.address(17, 0) == 17 * 128
    batch = SpyreTensorLayout.default((1, 512, 4096), HALF)
    assert (batch.device_size, batch.stride_map) == ((512, 64, 1, 64), (4096, 64, -1, 1))
    assert batch.address(0, 3, 65) == 2 * ((3 * 64 + 1) * 64 + 1)


def test_a_transposed_tensor_keeps_the_layout_of_its_storage() -> None:
    base = SpyreTensorLayout.default((256, 128), HALF)
    assert SpyreTensorLayout.for_strided((128, 256), (1, 128), HALF) == base
    assert base.stick_dim == 1
    channels_last = SpyreTensorLayout.for_strided((2, 3, 4, 5), (60, 1, 15, 3), HALF)
    assert channels_last == SpyreTensorLayout.default((2, 4, 5, 3), HALF)
    with pytest.raises(ValueError, match="no dense permutation"):
        SpyreTensorLayout.for_strided((4, 4), (5, 1), HALF)


BAD: list[tuple[Sizes, Sizes, Sizes, str]] = [
    ((40, 60), (37, 64), (64, 1), "linear element 2368 no place"),
    ((65,), (1, 64), (64, 1), "linear element 64 no place"),
    ((40, 60), (40, 64), (60, 2), "linear element 1 no place"),
    ((40, 60), (40, 64), (60,), "same length"),
    ((40, 60), (40, 32), (60, 1), "must be a stick of 64 elements, not 32"),
    ((40, 60), (40, 64), (-2, 1), "stride map entries"),
    ((60,), (60, 64), (1, 1), "several places"),
    ((60,), (0, 64), (1, 1), "leave no place"),
    ((2, -1), (1, 2, 64), (1, 1, 1), "negative"),
    ((2**40, 2**40), (2**40, 2**34, 64), (2**40, 64, 1), "64-bit"),
    ((70,), (2, 2, 2, 64), (48, 32, 40, 1), "nest"),
]


@pytest.mark.parametrize(("host", "device", "stride_map", "rule"), BAD)
def test_explicit_layouts_that_cannot_be_are_refused_by_both(
    host: Sizes, device: Sizes, stride_map: Sizes, rule: str
) -> None:
    from openspyre import _C

    with pytest.raises(ValueError, match=rule):
        SpyreTensorLayout.explicit(host, device, stride_map, HALF)
    with pytest.raises(ValueError, match=rule):
        _C.layout_describe("explicit", list(host), HALF.name, list(device), list(stride_map))


@pytest.mark.parametrize("order", [(0, 0), (0,), (-1, 0, 1), (0, 2), (0, 1, -1, -1)])
def test_orders_that_do_not_name_each_dim_once_are_refused_by_both(order: Sizes) -> None:
    from openspyre import _C

    with pytest.raises(ValueError, match="must name each of the 2 dims once"):
        SpyreTensorLayout.with_order((3, 4), order, HALF)
    with pytest.raises(ValueError, match="must name each of the 2 dims once"):
        _C.layout_describe("order", [3, 4], HALF.name, list(order))


@pytest.mark.parametrize("element", [-1, 12])
def test_addresses_outside_the_storage_are_index_errors(element: int) -> None:
    from openspyre import _C

    layout = SpyreTensorLayout.default((3, 4), HALF)
    with pytest.raises(IndexError):
        layout.element_offset(element)
    with pytest.raises(IndexError):
        _C.layout_element_offsets("default", [3, 4], HALF.name, [], [], [element])
    with pytest.raises(IndexError):
        layout.address(3, 0)
    with pytest.raises(IndexError):
        layout.address(0)


@pytest.mark.parametrize("sizes", [(0,), (3, 0), (0, 3), (2, 0, 5)])
def test_zero_elements_take_no_byte(sizes: Sizes) -> None:
    layout = SpyreTensorLayout.default(sizes, HALF)
    assert (layout.numel, layout.nbytes, layout.dci()) == (0, 0, ())
    assert twin(layout) == fields(layout)


@settings(max_examples=200)
@given(st.data())
def test_python_and_cpp_agree(data: st.DataObject) -> None:
    from openspyre import _C

    sizes = data.draw(shapes(most=8))
    format = data.draw(st.sampled_from(list(Format)))
    order = tuple(range(len(sizes)))
    if len(sizes) <= 6:
        order = data.draw(orders(sizes))
    layout = SpyreTensorLayout.with_order(sizes, order, format)
    if data.draw(st.booleans()):  # repeat the elements somewhere
        at = data.draw(st.integers(0, len(layout.device_size) - 1))
        device, steps = list(layout.device_size), list(layout.stride_map)
        device.insert(at, data.draw(st.integers(1, 4)))
        steps.insert(at, 0)
        layout = SpyreTensorLayout.explicit(layout.host_size, device, steps, format)
    elif order:  # rank 0 has no order to pass
        assert _C.layout_describe("order", list(sizes), format.name, list(order)) == fields(layout)
    assert twin(layout) == fields(layout)
    linear = data.draw(st.lists(st.integers(0, layout.numel - 1), max_size=30))
    native = _C.layout_element_offsets(
        "explicit",
        list(layout.host_size),
        format.name,
        list(layout.device_size),
        list(layout.stride_map),
        linear,
    )
    assert native == [layout.element_offset(element) for element in linear]


@settings(max_examples=100)
@given(st.data())
def test_python_and_cpp_agree_on_strided_tensors(data: st.DataObject) -> None:
    from openspyre import _C

    sizes = data.draw(shapes(most=5))
    strides = [0] * len(sizes)
    step = 1
    for dim in data.draw(st.permutations(range(len(sizes)))):
        strides[dim] = step
        step *= sizes[dim]
    layout = SpyreTensorLayout.for_strided(sizes, strides, HALF)
    assert _C.layout_describe("strided", list(sizes), HALF.name, strides) == fields(layout)
    assert sorted(layout.host_size) == sorted(sizes)


def test_picture_of_5_100_150_shows_dims_sticks_and_pads() -> None:
    layout = SpyreTensorLayout.default((5, 100, 150), HALF)
    text = layout.picture()
    assert str(layout) == text
    lines = text.splitlines()
    assert lines[0] == "5 x 100 x 150 SEN169_FP16: 75,000 elements of 2 B, 64 a stick"
    assert ["host dim 1" in line for line in lines[2:6]] == [True, False, False, False]
    assert "host dim 2, its sticks" in lines[3]
    assert "host dim 0" in lines[4]
    assert "host dim 2, its lanes" in lines[5]
    assert "1,500 sticks of 128 B = 192,000 B on the card" in text
    assert "pads 42,000 B (21.9 %)" in text
    assert "2 full and one with 22 elements and 42 pad lanes" in text
    (partial,) = (line for line in lines if "[0, 0, 128..149]" in line)
    assert partial.split()[:2] == ["10", "1,280"]
    assert partial.endswith("|" + "#" * 22 + "." * 42 + "|")


@settings(max_examples=60)
@given(st.data())
def test_every_layout_can_be_drawn(data: st.DataObject) -> None:
    sizes = data.draw(shapes(limit=2000))
    format = data.draw(st.sampled_from(list(Format)))
    layout = SpyreTensorLayout.with_order(sizes, data.draw(orders(sizes)), format)
    text = layout.picture()
    assert f"{layout.nbytes:,} B on the card" in text
    assert max(map(len, text.splitlines())) < 140
