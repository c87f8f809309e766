"""`torch.spyre.relayout_`: another layout for a storage, in place; `_C.storage_facts`: how a
storage lies, as a number."""

from __future__ import annotations

import pytest
import torch
from launches import on_card, ramp

from openspyre import _C
from openspyre.layout import SpyreTensorLayout

spyre = torch.spyre


def turned(tensor: torch.Tensor) -> SpyreTensorLayout:
    """The layout of the tensor's storage with its first dim on the stick."""
    now = spyre.layout_of(tensor)
    order = tuple(reversed(range(len(now.host_size))))
    return type(now).with_order(now.host_size, order, now.format)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int64, torch.bool])
def test_values_and_views_stay(dtype: torch.dtype) -> None:
    x = (ramp(40, 100) * 64).to(dtype).to("spyre")
    host = x.cpu()
    row, column, late = x[3], x.t(), x[8:, 4:]
    wanted = turned(x)
    block = torch.ops.openspyre._block_of(x)
    assert spyre.relayout_(late, wanted) is late
    assert spyre.layout_of(x) == wanted and torch.ops.openspyre._block_of(x) != block
    for view, expected in (
        (x, host),
        (row, host[3]),
        (column, host.t()),
        (late, host[8:, 4:]),
    ):
        assert torch.equal(view.cpu(), expected)
    x[0].fill_(1)
    assert torch.equal(column.cpu()[:, 0], torch.ones(100, dtype=dtype))


def test_bits_stay_that_the_host_dtype_cannot_hold() -> None:
    x = torch.zeros(2, 64, dtype=torch.float16, device="spyre")
    codes = torch.arange(128, dtype=torch.int16) * 255
    torch.ops.openspyre._raw_write(x, codes.view(torch.uint8))
    spyre.relayout_(x, turned(x))
    raw = torch.ops.openspyre._raw_read(x).view(torch.int16).view(-1, 64)
    assert torch.equal(raw[:64, :2].t().reshape(-1), codes)


def test_the_old_block_is_given_back() -> None:
    x = on_card(64, 128)
    spyre.synchronize()
    before = spyre.memory_allocated()
    for _ in range(4):
        spyre.relayout_(x, turned(x))
    spyre.synchronize()
    assert spyre.memory_allocated() == before
    assert torch.equal(x.cpu(), ramp(64, 128))


def test_another_stream_may_still_use_the_old_block() -> None:
    x = on_card(64, 128)
    side = spyre.Stream()
    side.wait_stream(spyre.current_stream())
    with spyre.stream(side):
        spyre.synthetic.submit("h2d", 1000, stream=side, hold_seconds=0.05)
        held = torch.empty_like(x).copy_(x)
    spyre.current_stream().wait_stream(side)
    spyre.relayout_(x, turned(x))
    other = torch.zeros(64, 128, dtype=torch.float16, device="spyre")
    spyre.synchronize()
    assert torch.equal(held.cpu(), ramp(64, 128)) and torch.equal(x.cpu(), ramp(64, 128))
    assert not other.cpu().any()


def test_an_equal_layout_changes_nothing() -> None:
    x = on_card(4, 64)
    block = torch.ops.openspyre._block_of(x)
    spyre.relayout_(x, spyre.layout_of(x))
    assert torch.ops.openspyre._block_of(x) == block


def test_errors_name_what_does_not_fit() -> None:
    x = on_card(4, 64)
    now = spyre.layout_of(x)
    with pytest.raises(ValueError, match="expected a spyre tensor"):
        spyre.relayout_(torch.zeros(4, 64), now)
    with pytest.raises(ValueError, match="a layout of 320 elements for a storage of 256"):
        spyre.relayout_(x, type(now).with_order((5, 64), (0, 1), now.format))
    other = spyre.layout_of(on_card(4, 64, dtype=torch.float32))
    with pytest.raises(ValueError, match="lives as SEN169_FP16, the layout is for IEEE_FP32"):
        spyre.relayout_(x, other)
    assert torch.equal(x.cpu(), ramp(4, 64))


# --- facts


def test_equal_layouts_have_equal_facts() -> None:
    a, b, c = on_card(4, 64), on_card(4, 64), on_card(4, 65)
    fact = _C.storage_facts(a)
    assert fact == _C.storage_facts(b) == _C.storage_facts(a[1:, :3].t())
    assert fact != _C.storage_facts(c)
    assert fact != _C.storage_facts(on_card(4, 64, dtype=torch.float32))
    spyre.relayout_(a, turned(a))
    assert _C.storage_facts(a) != fact
    spyre.relayout_(a, spyre.layout_of(b))
    assert _C.storage_facts(a) == fact


def test_facts_give_the_layout() -> None:
    x = on_card(5, 100)
    now = spyre.layout_of(x)
    host, device, strides, format = _C.layout_by_number(_C.storage_facts(x))
    assert (tuple(host), tuple(device), tuple(strides), format) == (
        tuple(now.host_size),
        tuple(now.device_size),
        tuple(now.stride_map),
        now.format.name,
    )


def test_facts_of_what_has_none() -> None:
    assert _C.storage_facts(torch.empty(0, device="spyre")) == -1
    with pytest.raises(ValueError, match="expected a spyre tensor"):
        _C.storage_facts(torch.zeros(2))
    with pytest.raises(TypeError):
        _C.storage_facts(3)  # type: ignore[arg-type]
    with pytest.raises(IndexError):
        _C.layout_by_number(-1)
