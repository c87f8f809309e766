"""A traced region: a sequence of ATen operations as plain data, and its lowering to a Graph.

Capture (openspyre/compiler/inductor) makes one of each region of an FX graph; it can be written to
disk and read by another process, which lowers it again for the layouts it meets. Values are
numbered: first the inputs, then one for each operation. Imports torch only through the lowerings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy as np

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.sizes import Size, known, size_of
from openspyre.compiler.view import View
from openspyre.program.expr import Binary, Const, Expr, Var, binary

SizeText: TypeAlias = "int | str | list[Any]"
"""A size as JSON: a number, a symbol's name, or [operator, left, right]."""


@dataclass(frozen=True)
class TensorFacts:
    """What the tracer knew of a tensor: dtype by name, sizes and host strides."""

    dtype: str
    sizes: list[SizeText]
    strides: list[SizeText]


@dataclass(frozen=True)
class Call:
    """One operation. Arguments as JSON: {"n": value} for a tensor, {"s": size} for a size,
    {"d": name} for a dtype, numbers, texts, None, lists. `op` "getitem" picks one of a tuple,
    "constant" is a tensor of the shape args[0] with `values`. `source`: the user's line."""

    op: str
    args: list[Any]
    kwargs: dict[str, Any] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True)
class Result:
    """A value that leaves the region: as a new tensor of these facts, or (`into` >= 0) written to
    that input."""

    value: int
    facts: TensorFacts
    into: int = -1


@dataclass(frozen=True)
class SizeSymbol:
    """A size known at launch, in `minimum`..`maximum`; `hint` its value when traced."""

    name: str
    minimum: int
    maximum: int
    hint: int


@dataclass(frozen=True)
class TracedRegion:
    """`inputs` and `calls` in order; `results` in the order of the region's outputs. `device`: the
    card of a region without inputs."""

    name: str
    inputs: list[TensorFacts]
    calls: list[Call]
    results: list[Result]
    symbols: list[SizeSymbol] = field(default_factory=list)
    device: int = -1

    def to_json(self) -> str:
        """As text, the same for the same region in every process."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> TracedRegion:
        """The inverse of `to_json`. Raises ValueError for another text."""
        raw = json.loads(text)
        return TracedRegion(
            raw["name"],
            [TensorFacts(**i) for i in raw["inputs"]],
            [Call(**c) for c in raw["calls"]],
            [Result(r["value"], TensorFacts(**r["facts"]), r["into"]) for r in raw["results"]],
            [SizeSymbol(**s) for s in raw["symbols"]],
            raw["device"],
        )

    @property
    def key(self) -> str:
        """Names the region by what it computes (source lines play no part)."""
        raw = asdict(self)
        for call in raw["calls"]:
            del call["source"]
        raw["name"] = ""
        return hashlib.sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest()[:20]

    @property
    def random(self) -> bool:
        """Whether an operation of it draws random numbers."""
        return any(call.op in SEEDED for call in self.calls)


SEEDED = frozenset(("prims.inductor_seeds.default",))


def size_text(value: Size) -> SizeText:
    """A size as JSON."""
    if isinstance(value, int):
        return value
    if isinstance(value, Const):
        return value.value
    if isinstance(value, Var):
        return value.name
    assert isinstance(value, Binary)
    return [value.op, size_text(size_of(value.left)), size_text(size_of(value.right))]


def size_from(value: SizeText, symbols: Mapping[str, Size]) -> Size:
    """A size from JSON, with `symbols` put in."""
    if isinstance(value, int):
        return value
    if isinstance(value, str):
        return symbols[value]
    op, left, right = value
    return size_of(binary(op, _expr(size_from(left, symbols)), _expr(size_from(right, symbols))))


def _expr(value: Size) -> Expr:
    return Const(value) if isinstance(value, int) else value


def lower_region(
    region: TracedRegion,
    b: GraphBuilder,
    inputs: Sequence[View],
    symbols: Mapping[str, Size],
    *,
    extra: Callable[[Call, dict[str, Any]], dict[str, Any]] | None = None,
) -> list[View]:
    """The region as ops of `b`, on these input views; gives the views of its results, stores to
    inputs done. `symbols`: a number or an expression for every size symbol. `extra` may add keyword
    arguments to a call (the seeds of random operations).

    Raises Unsupported, and what lowerings raise.
    """
    from openspyre.compiler.lower.registry import lower_op

    values: list[Any] = list(inputs)

    def value_of(argument: Any) -> Any:
        if isinstance(argument, dict):
            if "n" in argument:
                return values[argument["n"]]
            if "s" in argument:
                return size_from(argument["s"], symbols)
            return argument["d"]
        if isinstance(argument, list):
            return [value_of(item) for item in argument]
        return argument

    for call in region.calls:
        args = [value_of(a) for a in call.args]
        if call.op == "getitem":
            values.append(args[0][args[1]])
            continue
        if call.op == "constant":
            values.append(_constant(b, args[0], call.kwargs["values"], call.kwargs["dtype"]))
            continue
        kwargs = {name: value_of(a) for name, a in call.kwargs.items()}
        if extra is not None:
            kwargs = extra(call, kwargs)
        b.source = call.source
        values.append(lower_op(b, call.op, args, kwargs))
    # In the traced program an input is what it was at the start, however often it is written.
    written = {id(inputs[r.into].tensor) for r in region.results if r.into >= 0}
    results = []
    for result in region.results:
        view = values[result.value]
        b.source = _source_of(region, result)
        results.append(b.copy(view) if id(view.tensor) in written else view)
    for result, view in zip(region.results, results, strict=True):
        if result.into >= 0:
            b.operation = "aten.copy_.default"
            b.source = _source_of(region, result)
            b.store(inputs[result.into], view)
    b.source = ""
    return results


def _source_of(region: TracedRegion, result: Result) -> str:
    """The user's line of the call that made a result; "" for an input that is handed on."""
    number = result.value - len(region.inputs)
    return region.calls[number].source if number >= 0 else ""


def _constant(b: GraphBuilder, shape: Sequence[int], values: Sequence[Any], dtype: str) -> View:
    """Few numbers, rounded as the dtype has them."""
    held = "float32" if dtype in ("float16", "bfloat16") else dtype
    return b.constant(np.array(values, dtype=held).reshape(shape), dtype)


def concrete(sizes: Sequence[SizeText], symbols: Mapping[str, int]) -> list[int]:
    """Sizes as numbers."""
    numbers = []
    for size in sizes:
        value = known(size_from(size, symbols))
        assert value is not None
        numbers.append(value)
    return numbers
