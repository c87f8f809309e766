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

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.lower.registry import dtype_name, full_name, lower_op
from openspyre.compiler.traced import Result, SizeText, TracedRegion
from openspyre.formats import Mode

DEVICE = "spyre"

_regions: dict[str, TracedRegion] = {}
_runners: dict[tuple[str, int], Any] = {}

NEVER = frozenset(("aten.item.default", "aten._local_scalar_dense.default"))
"""Operations with a lowering that a region does not take all the same."""


def lowerable(node: Node) -> bool:
    """Whether a node with a lowering can stand in a region: whether its lowering takes what the
    node gives it. Tried once, on inputs in PyTorch's own layout."""
    if node.target is operator.getitem:
        return True
    if "openspyre_lowerable" not in node.meta:
        name = full_name(node.target)  # type: ignore[arg-type]
        node.meta["openspyre_lowerable"] = name not in NEVER and _tried(node, name)
    return bool(node.meta["openspyre_lowerable"])


def _tried(node: Node, name: str) -> bool:
    b = GraphBuilder("trial", Mode.DL16)

    def value_of(argument: Any) -> Any:
        if isinstance(argument, Node):
            argument = argument.meta.get("val")
            if isinstance(argument, torch.Tensor):
                sizes = [hint(size) for size in argument.shape]
                dtype = str(argument.dtype).removeprefix("torch.")
                return b.input(f"in{len(b.graph.tensors)}", sizes, dtype)
        if isinstance(argument, torch.SymInt):
            return hint(argument)
        if isinstance(argument, torch.dtype):
            return dtype_name(argument)
        if isinstance(argument, (list, tuple)):
            return [value_of(item) for item in argument]
        if isinstance(argument, (torch.device, torch.layout, torch.memory_format)):
            return None
        return argument

    def hint(size: Any) -> int:
        if isinstance(size, int):
            return size
        found = size.node.hint
        if found is None:
            raise _NoHint
        return int(found)

    try:
        args = [value_of(argument) for argument in node.args]
        kwargs = {k: value_of(v) for k, v in node.kwargs.items() if k not in SILENT}
        lower_op(b, name, args, kwargs)
    except Unsupported:
        return False
    except Exception:  # what is wrong with it is said where it is launched
        return True
    return True


class _NoHint(Exception):
    """A size that only the data gives."""


SILENT = ("device", "layout", "pin_memory", "memory_format", "non_blocking", "generator")
"""Arguments of ATen operations that a region has no use for."""


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


def run(
    key: str, inputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor], sizes: Sequence[int]
) -> list[torch.Tensor]:
    """What csrc/torch/native_ops.cpp asks for when it meets a region in new circumstances."""
    from openspyre.compiler.runner import Runner

    tensors = [*inputs, *written]
    index = _device(region_of(key), tensors)
    runner = _runners.get((key, index))
    if runner is None:
        runner = _runners[key, index] = Runner(region_of(key), index)
    return runner(tensors, sizes)  # type: ignore[no-any-return]


def recipe(
    key: str, inputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor], sizes: Sequence[int]
) -> dict[str, Any] | str:
    """How a call that `run` has just run is launched without Python, or why it cannot be."""
    tensors = [*inputs, *written]
    runner = _runners.get((key, _device(region_of(key), tensors)))
    return "forgotten" if runner is None else runner.recipe(tensors, sizes)


def forget_plans() -> None:
    """Gives back what the regions of this process have planned; they plan again when they run."""
    _runners.clear()


@torch.library.impl("openspyre::region", "Functionalize")
def _functionalize(*args: Any) -> list[torch.Tensor]:
    # Never called: regions are made after functionalization. Its being there tells Inductor that an
    # operation which writes to a list may be an extern call.
    raise RuntimeError("openspyre::region is made by the compiler and is not functionalized")
