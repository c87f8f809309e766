"""What an eager call consists of: its arguments, its numbers, its outputs, and the recipe's form.

Shared by `eager.py`, which compiles calls, and `eager_run.py`, which runs them. Needs torch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from openspyre.compiler.bind import Bound
from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.graph import Tensor
from openspyre.compiler.view import View

Recipe: TypeAlias = "dict[str, Any]"

SEED, OFFSET = -1, -2
"""A symbol that comes from the generator."""


class Declined(Exception):
    """Why the CPU computes this call; nothing is wrong."""


@functools.cache
def kinds_of(op: torch._ops.OpOverload) -> tuple[str, ...]:
    """What each argument is; the same classes as native_ops.cpp kind_of."""
    kinds = []
    for argument in op._schema.arguments:
        text = str(argument.real_type).removeprefix("Optional[").removesuffix("]")
        listed = text.startswith("List[")
        inner = text.removeprefix("List[").removesuffix("]").removeprefix("Optional[")
        inner = inner.removesuffix("]")
        if listed and inner == "Tensor":
            kinds.append("tensors")
        elif listed and inner == "number":
            kinds.append("numbers")
        elif listed:
            kinds.append("other")
        elif inner in ("number", "float"):
            kinds.append("number")
        elif inner == "Tensor":
            kinds.append("tensor")
        elif inner == "Generator":
            kinds.append("generator")
        elif inner == "Device":
            kinds.append("device")
        else:
            kinds.append("other")
    return tuple(kinds)


@dataclass
class Argument:
    """A spyre tensor of the call, bound. `bound` None: it goes through a dense copy, which is then
    bound as `dense`."""

    tensor: torch.Tensor
    bound: Bound | None
    dense: Bound
    dtype: str
    graph: Tensor | None = None
    view: View | None = None

    @property
    def seen(self) -> Bound:
        return self.dense if self.bound is None else self.bound


@dataclass
class Output:
    """A tensor that the launch makes. `into`: the argument that it is copied to afterwards."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    into: int = -1


@dataclass
class Plan:
    """What one lowering of the call gave."""

    builder: GraphBuilder
    outputs: list[Output] = field(default_factory=list)
    sources: dict[str, tuple[int, int, Bound]] = field(default_factory=dict)
    draws: int = 0


@dataclass(frozen=True)
class TensorAt:
    index: int


@dataclass(frozen=True)
class NumberAt:
    """`dtype`: of the 0-dim tensor that the number was; "" for a plain number."""

    index: int
    dtype: str = ""


def recipe_of(outputs: Sequence[Output], returns: list[int | list[int]]) -> Recipe:
    return {
        "run": None,
        "plan": None,
        "arguments": [],
        "bindings": [],
        "constants": [],
        "outputs": [(list(o.sizes), list(o.strides), getattr(torch, o.dtype)) for o in outputs],
        "symbols": [],
        "returns": returns,
        "draws": 0,
        "temp_bytes": 0,
    }


def symbol_source(name: str) -> int:
    if name == "seed":
        return SEED
    if name == "offset":
        return OFFSET
    return int(name.removeprefix("s"))


def flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [item for inner in value for item in flat(inner)]
    return [value]


def known_size(size: Any) -> int:
    assert isinstance(size, int)
    return size


def product(values: Sequence[int]) -> int:
    out = 1
    for value in values:
        out *= value
    return out


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def short_name(name: str) -> str:
    """ "add" of "aten.add.out"."""
    return name.split(".")[1]
