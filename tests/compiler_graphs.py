"""Graphs through fusion and the schedulers in tests, held against the interpreter. Not a test file.

`compiled` gives the programs of a graph whose tensors have places; `hold` runs them one after the
other and compares every output with `openspyre.compiler.interpret`, bit for bit.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from compiler_runs import check

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.graph import Graph, Role, Tensor
from openspyre.compiler.interpret import interpret
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.passes.fuse import fuse
from openspyre.compiler.schedule import schedule
from openspyre.compiler.schedule.common import place_of
from openspyre.compiler.tiles import Kernel
from openspyre.program import Program

Arrays = dict[str, np.ndarray]


def placed(graph: Graph, orders: Mapping[str, Sequence[int]] | None = None) -> Graph:
    """The graph with places: default layouts, or dim orders by the tensor's name."""
    for tensor in graph.tensors:
        if tensor.place is None:
            order = (orders or {}).get(tensor.name)
            tensor.place = place_of(tensor.shape, tensor.dtype, graph.mode, order)
    return graph


def compiled(graph: Graph, options: CompileOptions) -> list[tuple[Kernel, Program]]:
    """Kernels with their programs. Changes the graph."""
    return [(kernel, schedule(kernel, graph, options)) for kernel in fuse(graph, options)]


def values(tensor: Tensor, rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    """Random values of a dtype."""
    if tensor.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if "float" in tensor.dtype:
        found = (rng.standard_normal(shape) * 3).astype(np.float16).astype(np.float32)
        # What bfloat16 cannot hold is rounded on the way to the card, before the interpreter.
        return np.clip(np.round(found * 8) / 8, -15, 15) if tensor.dtype == "bfloat16" else found
    low = 0 if tensor.dtype == "uint8" else -100
    return rng.integers(low, 100, shape).astype(tensor.dtype)


def inputs_of(graph: Graph, seed: int = 0, symbols: Mapping[str, int] | None = None) -> Arrays:
    """Random values for what a launch passes."""
    rng = np.random.default_rng(seed)

    def number(size: Any) -> int:
        return size if isinstance(size, int) else size.evaluate(dict(symbols or {}))

    return {
        t.name: values(t, rng, [number(size) for size in t.shape])
        for t in graph.tensors
        if t.role in (Role.INPUT, Role.INOUT)
    }


def launch(
    programs: Sequence[tuple[Kernel, Program]],
    inputs: Arrays,
    symbols: Mapping[str, int | float] | None = None,
    *,
    small: bool = True,
    graph: Graph,
) -> Arrays:
    """Runs programs one after the other; what they wrote. Each is verified."""
    held: Arrays = dict(inputs)
    for kernel, program in programs:
        names = {s.name for s in program.symbols}
        known = {k: v for k, v in (symbols or {}).items() if k in names}
        given = {t.name: held[t.name] for t in kernel.arguments if t.name in held}
        held |= check(program, given, known, mode=graph.mode, small=small)
    return held


def hold(
    graph: Graph,
    *,
    cores: Sequence[int] = (32,),
    fuse: Sequence[bool] = (True,),
    inputs: Arrays | None = None,
    symbols: Mapping[str, int | float] | None = None,
    small: bool = True,
    exact: bool = True,
    rtol: float = 0.0,
    atol: float = 0.0,
    **options: Any,
) -> list[tuple[Kernel, Program]]:
    """Compiles and runs a graph for each number of cores, fused or not; every output must be what
    the interpreter gives (with `exact` False: what it gives within `rtol`, and the same bits for
    all). Gives the programs of the first."""
    placed(graph)
    given = inputs if inputs is not None else inputs_of(graph, symbols=symbols)  # type: ignore[arg-type]
    wanted = interpret(graph, given, symbols, exact=exact)
    first: list[tuple[Kernel, Program]] = []
    before: Arrays = {}
    for count in cores:
        for together in fuse:
            again = copy.copy(graph)
            again.ops = list(graph.ops)
            made = compiled(again, CompileOptions(cores=count, fuse=together, **options))
            found = launch(made, given, symbols, small=small and not first, graph=graph)
            for name, array in wanted.items():
                got = found[name]
                if exact:
                    np.testing.assert_array_equal(bits(got), bits(array), err_msg=name)
                else:
                    np.testing.assert_allclose(got, array, rtol=rtol, atol=atol, err_msg=name)
                if name in before:
                    np.testing.assert_array_equal(bits(got), bits(before[name]), err_msg=name)
            before = before or {name: found[name] for name in wanted}
            first = first or made
    return first


def bits(array: np.ndarray) -> np.ndarray:
    """For comparisons that tell -0 from 0."""
    return np.ascontiguousarray(np.atleast_1d(array)).view(np.uint8)


def outputs(builder: GraphBuilder, *views: Any) -> Graph:
    """The graph with these views as its outputs."""
    for view in views:
        view.tensor.role = Role.OUTPUT
    return builder.graph
