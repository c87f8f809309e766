"""Regions whose sizes are symbols: one compiled region for a range of sizes.

A `Family` is a traced region lowered with some of its size symbols as symbols of the Graph, each in
the range of `patterns.range_of`, and the others as numbers. `member` fits it to the sizes of a
launch: it compares how the tensors lie with the family's patterns, and gives what a launch needs,
or None for the region to be compiled for its very sizes. `NoPattern` and `Unsupported` say why a
region makes no family. Needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openspyre.compiler import patterns, weights
from openspyre.compiler.bind import Bound, bind, tensor_facts
from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.graph import Affine, Graph, Role
from openspyre.compiler.patterns import NoPattern, Pattern
from openspyre.compiler.results import Made, made
from openspyre.compiler.sizes import Size, known, value_of
from openspyre.compiler.traced import Call, TracedRegion, concrete, lower_region
from openspyre.formats import Mode, format_for

if TYPE_CHECKING:
    import torch

ENABLED = False
"""Off until more kinds of regions have been tried under many sizes: the first wide run of the tests
found a gather whose tiles began within a stick (mended since), which gave wrong values."""

Extra = Callable[[Call, dict[str, Any]], dict[str, Any]]
Source = tuple[int, Bound]
"""A tensor of the call (negative: the base of new result -1 - n), and how it is seen."""


@dataclass
class Family:
    """`graph` before it is compiled; `places`: the source of each of its arguments by name;
    `inputs` and `outputs`: the patterns of tensors and of new results, in order; `sizes`: the
    symbolic ones of boxes and tensors, none of which may be 0 at launch."""

    region: TracedRegion
    graph: Graph
    places: dict[str, int]
    inputs: list[Pattern]
    outputs: list[Pattern]
    sizes: list[Size]

    def member(
        self, tensors: Sequence[torch.Tensor], sizes: Sequence[int], mode: Mode
    ) -> tuple[dict[str, Source], list[Made]] | None:
        """The sources by argument and the results for these sizes; None when a tensor does not lie
        as the family's do."""
        symbols = _numbers(self.region, sizes)
        for found in self.graph.symbols.values():
            if found.kind == "size" and not found.minimum <= symbols[found.name] <= found.maximum:
                return None
        if any(value_of(size, symbols) < 1 for size in self.sizes):
            return None  # of no elements there is nothing to launch, or a value to put in
        bounds: list[Bound] = []
        written = {r.into for r in self.region.results}
        for number, (tensor, pattern) in enumerate(zip(tensors, self.inputs, strict=True)):
            bound = bind(tensor)
            if bound is None or not pattern.holds(bound, symbols):
                return None
            if number in written and not bound.whole_sticks:
                return None
            bounds.append(bound)
        outputs = new_results(self.region, symbols, mode)
        for new, pattern in zip(outputs, self.outputs, strict=True):
            if not new.whole or not pattern.holds(new.bound, symbols):
                return None
        return {
            name: (number, bounds[number] if number >= 0 else outputs[-1 - number].bound)
            for name, number in self.places.items()
        }, outputs


def family(
    region: TracedRegion,
    tensors: Sequence[torch.Tensor],
    sizes: Sequence[int],
    varying: frozenset[str],
    mode: Mode,
    extra: Callable[[GraphBuilder], Extra],
    *,
    merged: bool = False,
) -> Family:
    """The family that tensors of these sizes belong to. `extra`: as for `lower_region`. `merged`:
    symbols that are equal now are taken for one (Dynamo may have two for one length); whoever looks
    for the family's members must see to it that they are equal.

    Raises NoPattern when a layout follows no rule, and what lowering raises for symbolic sizes.
    """
    b = GraphBuilder(region.name, mode)
    symbols = _numbers(region, sizes)
    variables: dict[str, Size] = {}
    for symbol in region.symbols:
        value = symbols[symbol.name]
        variables[symbol.name] = value
        if symbol.name in varying:
            twin = next((n for n in variables if n in varying and symbols[n] == value), None)
            if merged and twin != symbol.name:
                variables[symbol.name] = variables[str(twin)]
                continue
            low, high = patterns.range_of(symbol, value)
            variables[symbol.name] = b.size_symbol(symbol.name, low, high, value)
    places: dict[str, int] = {}
    inputs: list[Pattern] = []
    views = []
    written = {r.into for r in region.results}
    for number, (facts, tensor) in enumerate(zip(region.inputs, tensors, strict=True)):
        bound = bind(tensor)
        if bound is None or (number in written and not bound.whole_sticks):
            raise NoPattern(f"input {number} has to be copied first")
        layout, _, origin = tensor_facts(tensor)
        if patterns.symbolic(facts, varying):
            pattern = patterns.pattern(facts, bound, layout, origin, symbols, variables)
        else:
            pattern = patterns.exact(bound, layout.format)
        argument = pattern.tensor(b, f"a{number}", facts.dtype, Role.INPUT)
        places[argument.name] = number
        inputs.append(pattern)
        views.append(pattern.view(argument))
    results = lower_region(region, b, views, variables, extra=extra(b))
    if weights.relay(b.graph, {name: tensors[number] for name, number in places.items()}):
        return family(region, tensors, sizes, varying, mode, extra, merged=merged)
    outputs: list[Pattern] = []
    now = iter(new_results(region, symbols, mode))
    for result, view in zip(region.results, results, strict=True):
        if result.into >= 0:
            continue
        new = next(now)
        if not new.whole:
            raise NoPattern("a result is a view of what is written")
        if view.dtype != result.facts.dtype:
            raise NoPattern(f"a result of {result.facts.dtype} is lowered as {view.dtype}")
        format = format_for(result.facts.dtype, mode)
        pattern = patterns.new_pattern(result.facts, new.bound, format, symbols, variables)
        target = pattern.tensor(b, f"out{len(outputs)}", result.facts.dtype, Role.OUTPUT)
        b.operation = ""
        b.store(pattern.view(target), view)
        places[target.name] = -1 - len(outputs)
        outputs.append(pattern)
    b.graph.name = region.name
    for op in b.graph.ops:
        for access in op.inputs:
            for index in access.index:
                if isinstance(index, Affine) and known(index.offset) is None:
                    raise NoPattern(f"{access} is read from a place that the sizes give")
    found = [size for op in b.graph.ops for size in op.labels.values()]
    found += [size for tensor in b.graph.tensors for size in tensor.shape]
    found = [size for size in dict.fromkeys(found) if known(size) is None]
    return Family(region, b.graph, places, inputs, outputs, found)


def new_results(region: TracedRegion, symbols: Mapping[str, int], mode: Mode) -> list[Made]:
    """How the new results of a region are made, in order."""
    return [
        made(
            concrete(r.facts.sizes, symbols),
            concrete(r.facts.strides, symbols),
            r.facts.dtype,
            format_for(r.facts.dtype, mode),
        )
        for r in region.results
        if r.into < 0
    ]


def _numbers(region: TracedRegion, sizes: Sequence[int]) -> dict[str, int]:
    return {s.name: value for s, value in zip(region.symbols, sizes, strict=True)}
