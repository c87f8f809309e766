"""Views of tensors of the card: metadata only, and a write through one reaches the base (PT5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from oracles import assert_bits_equal

View = Callable[[torch.Tensor], torch.Tensor]

VIEWS: dict[str, View] = {
    "as_strided": lambda t: t.as_strided((2, 3), (7, 2), 5),
    "view": lambda t: t.view(4, 36),
    "reshape": lambda t: t.reshape(2, 72),
    "unfold": lambda t: t.view(-1).unfold(0, 5, 5),
    "alias": lambda t: torch.ops.aten.alias(t),
    "detach": lambda t: t.detach(),
    "transpose": lambda t: t.transpose(0, 1),
    "permute": lambda t: t.view(2, 6, 12).permute(2, 0, 1),
    "t": lambda t: t.t(),
    "narrow": lambda t: t.narrow(1, 3, 4),
    "select": lambda t: t.select(0, 5),
    "slice": lambda t: t[1::3, 2:9],
    "split": lambda t: t.split(5, dim=1)[1],
    "unbind": lambda t: t.unbind(1)[4],
    "squeeze": lambda t: t.view(12, 1, 12).squeeze(1),
    "unsqueeze": lambda t: t.unsqueeze(1),
    "flatten": lambda t: t.flatten(),
    "diagonal": lambda t: t.diagonal(1),
    "movedim": lambda t: t.view(2, 6, 12).movedim(0, 2),
    "view_as": lambda t: t.view_as(torch.empty(36, 4)),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int64, torch.bool])
def test_pt5_a_write_through_a_view_reaches_the_base(name: str, dtype: torch.dtype) -> None:
    values = (torch.arange(144) % 120).to(dtype).view(12, 12)
    base = values.to("spyre")
    view = VIEWS[name](base)
    assert view.untyped_storage()._cdata == base.untyped_storage()._cdata
    assert_bits_equal(view.cpu(), VIEWS[name](values))
    view.fill_(1)
    VIEWS[name](values).fill_(1)
    assert_bits_equal(base.cpu(), values)


@pytest.mark.parametrize(
    ("dtype", "other"),
    [
        (torch.float32, torch.int32),
        (torch.float32, torch.uint8),
        (torch.float16, torch.int16),
        (torch.float16, torch.uint8),
        (torch.int64, torch.float32),
        (torch.uint8, torch.float32),
        (torch.bool, torch.uint8),
        (torch.float64, torch.int64),
        (torch.complex64, torch.float32),
    ],
)
def test_pt5_a_view_with_another_dtype_reads_and_writes_the_host_image(
    dtype: torch.dtype, other: torch.dtype
) -> None:
    values = (torch.arange(96) % 2).to(dtype).view(4, 24)
    base = values.to("spyre")
    view, expected = base.view(other), values.clone().view(other)
    assert view.untyped_storage()._cdata == base.untyped_storage()._cdata
    assert_bits_equal(view.cpu(), expected)
    view[1:3, ::2] = 0
    expected[1:3, ::2] = 0
    assert_bits_equal(base.cpu(), expected.view(dtype))


def test_pt5_complex_tensors_are_viewed_as_real_and_back() -> None:
    z = torch.randn(6, 5, dtype=torch.complex64)
    d = z.to("spyre")
    torch.view_as_real(d)[:, :, 0] = 2
    torch.view_as_real(z)[:, :, 0] = 2
    assert torch.equal(d.cpu(), z)
    pair = torch.randn(6, 2).to("spyre")
    torch.view_as_complex(pair).mul_(1j)
    host = pair.cpu()
    assert host.shape == (6, 2) and torch.view_as_complex(pair).cpu().shape == (6,)


def test_b017_channels_last_is_not_ignored() -> None:
    x = torch.empty(1, 3, 4, 4, memory_format=torch.channels_last, device="spyre")
    assert x.stride() == (48, 1, 12, 3)
    assert x.is_contiguous(memory_format=torch.channels_last)
    values = torch.arange(48.0).view(1, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    there = values.to("spyre")
    assert there.stride() == values.stride()
    assert torch.equal(there.cpu(), values)


def test_b022_resize_reinterprets_flat_elements() -> None:
    x = torch.arange(12).view(3, 4).to("spyre")
    x.resize_(2, 3)
    assert x.cpu().tolist() == [[0, 1, 2], [3, 4, 5]]
    x.resize_(4, 4)
    assert x.cpu().flatten()[:12].tolist() == list(range(12))


def test_b118_shrinking_a_storage_keeps_its_first_bytes() -> None:
    x = torch.arange(64, dtype=torch.int32, device="spyre")
    x.untyped_storage().resize_(4)
    assert x.untyped_storage().nbytes() == 4
    y = torch.empty(0, dtype=torch.int32, device="spyre").set_(x.untyped_storage(), 0, (1,), (1,))
    assert y.cpu().tolist() == [0]


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("b005", lambda: (torch.arange(64 * 128) % 997).view(64, 128).t()),
        ("b007", lambda: (torch.arange(262144) % 1021).view(1, 32, 64, 128).transpose(1, 2)),
        ("b008", lambda: torch.arange(256).view(2, 8, 4, 4).transpose(1, 2)),
        ("b023a", lambda: torch.arange(10).unfold(0, 3, 1)),
        ("b023b", lambda: torch.arange(10).unfold(0, 4, 2)),
        ("b083a", lambda: torch.tensor([[1], [2], [3]]).expand(3, 5)),
        ("b083b", lambda: torch.tensor([[42]]).expand(1, 4)),
    ],
)
def test_contiguous_of_a_view_equals_the_cpus(name: str, function: Callable[[], Any]) -> None:
    view = function()
    base = view._base if view._base is not None else view
    there = base.half().to("spyre").as_strided(view.size(), view.stride(), view.storage_offset())
    expected = view.half()
    assert torch.equal(there.contiguous().cpu(), expected)
    assert torch.equal((there + 0).cpu(), expected)


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=200)
def test_b026_random_view_chains_equal_the_cpus(data: st.DataObject) -> None:
    host = (torch.arange(720) % 500).to(torch.float16).view(6, 8, 15)
    there = host.to("spyre")
    for _ in range(data.draw(st.integers(1, 6))):
        choice = data.draw(st.sampled_from(["permute", "reshape", "slice", "unsqueeze", "select"]))
        if choice == "permute":
            order = data.draw(st.permutations(range(host.dim())))
            host, there = host.permute(order), there.permute(order)
        elif choice == "reshape":
            host, there = host.reshape(-1, host.size(-1)), there.reshape(-1, there.size(-1))
        elif choice == "slice" and host.dim():
            dim = data.draw(st.integers(0, host.dim() - 1))
            start = data.draw(st.integers(0, max(host.size(dim) - 1, 0)))
            step = data.draw(st.integers(1, 3))
            index = (slice(None),) * dim + (slice(start, None, step),)
            host, there = host[index], there[index]
        elif choice == "unsqueeze" and host.dim() < 6:
            dim = data.draw(st.integers(0, host.dim()))
            host, there = host.unsqueeze(dim), there.unsqueeze(dim)
        elif choice == "select" and host.dim() > 1:
            host, there = host.select(0, host.size(0) - 1), there.select(0, there.size(0) - 1)
    assert there.shape == host.shape and there.stride() == host.stride()
    assert_bits_equal(there.cpu(), host)
    assert_bits_equal((there + 0).cpu(), host + 0)
