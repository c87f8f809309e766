"""`openspyre::region`: the operation that a region of a compiled graph is, and its kernels.

    region(str key, Tensor[] inputs, Tensor(a!)[] written, SymInt[] sizes) -> Tensor[]

`key` names a `TracedRegion`, which lives in this process's table and, for other processes that find
the graph in Inductor's cache, on disk. The layouts of the inputs are met at launch: each new
combination is planned once (`openspyre/compiler/launch.py`), and Dynamo never recompiles for it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from openspyre.compiler.lower.registry import full_name
from openspyre.compiler.traced import Result, SizeText, TracedRegion

DEVICE = "spyre"

_regions: dict[str, TracedRegion] = {}
_runners: dict[tuple[str, int], Any] = {}

NEVER = frozenset(("aten.item.default", "aten._local_scalar_dense.default"))
"""Operations with a lowering that a region does not take all the same."""


def lowerable(node: Node) -> bool:
    """Whether a node with a lowering can stand in a region."""
    return node.target is operator.getitem or full_name(node.target) not in NEVER  # type: ignore[arg-type]


def register(region: TracedRegion) -> str:
    """Puts a region in the table and on disk; gives its key."""
    from openspyre.compiler.cache import store_text

    key = region.key
    _regions[key] = region
    store_text("regions", key, region.to_json())
    return key


def region_of(key: str) -> TracedRegion:
    """The region of a key. Raises RuntimeError when neither the process nor the disk has it."""
    found = _regions.get(key)
    if found is None:
        from openspyre.compiler.cache import load_text

        text = load_text("regions", key)
        if text is None:
            raise RuntimeError(
                f"openspyre::region: no region {key} in the cache; it was pruned while Inductor's"
                " cache still names it. Way out: torch.compiler.reset() and remove Inductor's cache"
                " (TORCHINDUCTOR_CACHE_DIR)"
            )
        found = _regions[key] = TracedRegion.from_json(text)
    return found


def evaluate(size: SizeText, symbols: Mapping[str, Any]) -> Any:
    """A size under numbers or SymInts."""
    if isinstance(size, int):
        return size
    if isinstance(size, str):
        return symbols[size]
    op, left, right = size[0], evaluate(size[1], symbols), evaluate(size[2], symbols)
    if op == "min":
        return torch.sym_min(left, right)
    if op == "max":
        return torch.sym_max(left, right)
    return _OPERATORS[op](left, right)


_OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}


def new_results(region: TracedRegion) -> list[Result]:
    """The results that are new tensors, in order."""
    return [result for result in region.results if result.into < 0]


torch.library.define(
    "openspyre::region",
    "(str key, Tensor[] inputs, Tensor(a!)[] written, SymInt[] sizes) -> Tensor[]",
)


@torch.library.register_fake("openspyre::region")
def _fake(
    key: str, inputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor], sizes: Sequence[Any]
) -> list[torch.Tensor]:
    region = region_of(key)
    symbols = {s.name: v for s, v in zip(region.symbols, sizes, strict=True)}
    tensors = [*inputs, *written]
    device = torch.device(DEVICE, _device(region, tensors))
    return [
        torch.empty_strided(
            [evaluate(s, symbols) for s in r.facts.sizes],
            [evaluate(s, symbols) for s in r.facts.strides],
            dtype=getattr(torch, r.facts.dtype),
            device=device,
        )
        for r in new_results(region)
    ]


def _device(region: TracedRegion, tensors: Sequence[torch.Tensor]) -> int:
    return tensors[0].get_device() if tensors else max(region.device, 0)


def _run(
    key: str, inputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor], sizes: Sequence[int]
) -> list[torch.Tensor]:
    from openspyre.compiler.runner import Runner

    tensors = [*inputs, *written]
    index = _device(region_of(key), tensors)
    runner = _runners.get((key, index))
    if runner is None:
        runner = _runners[key, index] = Runner(region_of(key), index)
    return runner(tensors, sizes)  # type: ignore[no-any-return]


torch.library.impl("openspyre::region", "PrivateUse1", _run)
# A region that reads no tensor is one of this device all the same.
torch.library.impl("openspyre::region", "BackendSelect", _run)


@torch.library.impl("openspyre::region", "Functionalize")
def _functionalize(*args: Any) -> list[torch.Tensor]:
    # Never called: regions are made after functionalization. Its being there tells Inductor that an
    # operation which writes to a list may be an extern call.
    raise RuntimeError("openspyre::region is made by the compiler and is not functionalized")
