"""Weights get the layout that products want, once, whatever storages came and went before."""

from __future__ import annotations

import torch

from openspyre.compiler.weights import Storages
from openspyre.device.layouts import layout_of

NATIVE = True


def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, w)


def test_every_new_weight_is_turned_though_it_may_get_the_place_of_a_freed_one() -> None:
    compiled = torch.compile(linear)
    x = torch.randn(2, 128)
    for _ in range(12):
        w = torch.randn(192, 128)
        on_card = w.half().to("spyre")
        assert layout_of(on_card).is_default
        found = compiled(x.half().to("spyre"), on_card).cpu().float()
        assert not layout_of(on_card).is_default, "the weight is turned in every launch"
        torch.testing.assert_close(found, x @ w.t(), atol=0.2, rtol=0.02)
        del on_card


def test_a_weight_that_is_a_table_too_keeps_its_rows() -> None:
    table = torch.randn(70, 128).half().to("spyre")
    rows = torch.tensor([3, 69, 0]).to("spyre")
    compiled = torch.compile(lambda t, r: torch.nn.functional.embedding(r, t) @ t.t())
    found = compiled(table, rows).cpu().float()
    assert layout_of(table).is_default
    wide = table.cpu().float()
    torch.testing.assert_close(found, wide[[3, 69, 0]] @ wide.t(), atol=0.5, rtol=0.02)


def test_storages_are_known_while_they_live_and_keep_no_bytes() -> None:
    known = Storages()
    kept = torch.zeros(4, 4)
    known.add(kept)
    assert kept in known and kept[1:] in known, "a view has its tensor's storage"
    before = torch.spyre.memory_allocated()
    freed = torch.zeros(1 << 20, dtype=torch.uint8).to("spyre")
    known.add(freed)
    assert freed in known
    del freed
    assert torch.spyre.memory_allocated() == before
    others = [torch.zeros(1) for _ in range(100)]
    assert not any(other in known for other in others)


def test_the_dead_are_taken_out_as_storages_come_and_go() -> None:
    known = Storages()
    kept = torch.zeros(4)
    known.add(kept)
    for _ in range(2000):
        known.add(torch.zeros(4))
    assert len(known) <= 257 and kept in known
