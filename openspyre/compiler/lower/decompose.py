"""The general way: an operation without a lowering of its own, by torch's own decompositions.

The operation is traced on fake tensors with torch's decomposition table, down to operations that
have lowerings; these are lowered one by one. What has a lowering is never decomposed further, but
the operation itself is. Slow (milliseconds to a second) against a lowering, but only once for each
shape: the traces are kept.

Imports torch's decompositions when it is first asked; never torch._inductor or torch._dynamo.
"""

from __future__ import annotations

import functools
import operator
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.lower.promote import torch_dtype
from openspyre.compiler.lower.registry import (
    IGNORED,
    constant,
    entry,
    full_name,
    has_lowering,
    lower_op,
    overload,
)
from openspyre.compiler.lower.tools import full
from openspyre.compiler.sizes import known
from openspyre.compiler.view import View

BUDGET = 20.0
"""Seconds a trace may take."""
NODES = 3000
"""Operations a decomposition may have."""
_KEPT = 256


class Placeholder:
    """Where a tensor was among the arguments."""

    def __init__(self, number: int) -> None:
        self.number = number


def lower_by_decomposition(
    b: GraphBuilder,
    op: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    budget: float = BUDGET,
) -> Any:
    """The functional operation `op` as ops of the graph; arguments as for `lower_op`.

    Raises Unsupported for what has no decomposition, for one with an operation that has no lowering
    (it names it), for shapes that are symbolic or depend on values, and when `budget` seconds pass;
    NeedsConstant for numbers given at launch.
    """
    name = full_name(op)
    views: list[View] = []
    plain_args, plain_kwargs = _without_views(name, (list(args), dict(kwargs or {})), views)
    shapes = [_static(name, view) for view in views]
    dtypes = [view.dtype for view in views]
    module = _traced(op, plain_args, plain_kwargs, shapes, dtypes, budget)
    return _lowered(b, name, module, views)


def has_decomposition(op: torch._ops.OpOverload) -> bool:
    """Whether torch has a decomposition of the operation itself."""
    return op in _whole_table()


def decomposed(
    op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> torch.fx.Graph:
    """The trace for arguments that are torch tensors (their shapes and dtypes count), for tools."""
    tensors: list[torch.Tensor] = []

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return Placeholder(len(tensors) - 1)
        if isinstance(value, (list, tuple)):
            return type(value)(plain(item) for item in value)
        return value

    wanted = plain(list(args))
    named = {key: plain(value) for key, value in (kwargs or {}).items()}
    dtypes = [str(t.dtype).removeprefix("torch.") for t in tensors]
    shapes = [tuple(t.shape) for t in tensors]
    return _traced(op, wanted, named, shapes, dtypes, BUDGET).graph


def unlowered(graph: torch.fx.Graph) -> list[str]:
    """The operations of a trace that have no lowering (random ones count as such)."""
    missing = []
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        found = entry(_leaf(node.target))
        if (found is None or found.draws is not None) and not _idle(node):
            missing.append(full_name(node.target))
    return sorted(set(missing))


# --- tracing


def _without_views(name: str, value: Any, views: list[View]) -> Any:
    """Arguments with placeholders for views, and numbers that are known."""
    if isinstance(value, View):
        views.append(value)
        return Placeholder(len(views) - 1)
    if isinstance(value, tuple):
        return tuple(_without_views(name, item, views) for item in value)
    if isinstance(value, list):
        return [_without_views(name, item, views) for item in value]
    if isinstance(value, dict):
        return {key: _without_views(name, item, views) for key, item in value.items()}
    return constant(value, f"a number of {name}")


def _static(name: str, view: View) -> tuple[int, ...]:
    sizes = [known(size) for size in view.shape]
    if any(size is None for size in sizes):
        raise Unsupported(
            name, f"a tensor {view.dtype} {list(map(str, view.shape))}",
            "its size is symbolic, and the operation is decomposed for one size", "mark it static",
        )  # fmt: skip
    return tuple(size for size in sizes if size is not None)


_traces: OrderedDict[str, torch.fx.GraphModule | Unsupported] = OrderedDict()


def _traced(
    op: torch._ops.OpOverload,
    args: list[Any],
    kwargs: dict[str, Any],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
    budget: float,
) -> torch.fx.GraphModule:
    key = f"{op} {_text(args)} {_text(kwargs)} {shapes} {dtypes} {torch.get_default_dtype()}"
    found = _traces.get(key)
    if found is None:
        try:
            found = _aside(lambda: _trace(op, args, kwargs, shapes, dtypes, budget))
        except Unsupported as error:
            found = error
        _traces[key] = found
        while len(_traces) > _KEPT:
            _traces.popitem(last=False)
    if isinstance(found, Unsupported):
        raise found
    return found


def _text(value: Any) -> str:
    if isinstance(value, Placeholder):
        return f"<{value.number}>"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_text(v)}" for k, v in value.items()) + "}"
    return repr(value)


def _aside(function: Callable[[], torch.fx.GraphModule]) -> torch.fx.GraphModule:
    """Runs it in a thread of its own: the caller may be inside a kernel or a dispatch mode, where
    the thread's dispatch state lets nothing be traced."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def _trace(
    op: torch._ops.OpOverload,
    args: list[Any],
    kwargs: dict[str, Any],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
    budget: float,
) -> torch.fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    name = full_name(op)
    table = _table(op)
    deadline = time.monotonic() + budget

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            if time.monotonic() > deadline:
                raise Unsupported(name, "its decomposition", f"it takes longer than {budget:g} s")
            return function(*args, **kwargs)

        return inner

    root = table.get(op)
    fixed = {k: _dtype(v) for k, v in kwargs.items() if k not in IGNORED}
    positional = [
        _dtype(v) if "ScalarType" in str(a.real_type) else v
        for v, a in zip(args, op._schema.arguments, strict=False)
    ]

    def call(*tensors: torch.Tensor) -> Any:
        def real(value: Any) -> Any:
            if isinstance(value, Placeholder):
                return tensors[value.number]
            if isinstance(value, (list, tuple)):
                return type(value)(real(item) for item in value)
            return value

        mine = [real(v) for v in positional]
        named = {k: real(v) for k, v in fixed.items()}
        if root is not None and has_lowering(name):
            return root(*mine, **named)
        return op(*mine, **named)

    try:
        with torch.no_grad():
            # Never touched: make_fx makes fake ones of them.
            blanks = [
                torch.empty(shape, dtype=torch_dtype(dtype))
                for shape, dtype in zip(shapes, dtypes, strict=True)
            ]
            made = make_fx(
                torch.func.functionalize(call, remove="mutations"),
                decomposition_table={key: timed(value) for key, value in table.items()},
                tracing_mode="fake",
            )(*blanks)
    except Unsupported:
        raise
    except Exception as error:  # torch's decompositions raise what they like
        first = (str(error).splitlines() or [""])[0][:200]
        raise Unsupported(
            name, "its decomposition", f"torch cannot trace it ({type(error).__name__}: {first})"
        ) from error
    made.graph.eliminate_dead_code()
    if len(made.graph.nodes) > NODES:
        raise Unsupported(name, "its decomposition", f"{len(made.graph.nodes)} operations")
    return made


def _dtype(value: Any) -> Any:
    """A dtype's name as torch has it; other values as they are."""
    if isinstance(value, str):
        found = getattr(torch, value, None)
        return found if isinstance(found, torch.dtype) else value
    return value


@functools.cache
def _whole_table() -> dict[Any, Callable[..., Any]]:
    from torch._decomp import core_aten_decompositions, decomposition_table

    return {**decomposition_table, **core_aten_decompositions()}


@functools.cache
def _lean_table() -> dict[Any, Callable[..., Any]]:
    """Without what has a lowering of its own."""
    found = {}
    for key, function in _whole_table().items():
        if isinstance(key, torch._ops.OpOverload) and not has_lowering(_leaf(key)):
            found[key] = function
    return found


def _table(op: torch._ops.OpOverload) -> dict[Any, Callable[..., Any]]:
    table = _lean_table()
    whole = _whole_table()
    return {**table, op: whole[op]} if op in whole and op not in table else table


# --- lowering


PRIMS = {
    "prims.broadcast_in_dim": "", "prims.collapse_view": "", "prims.split_dim": "",
    "prims.view_of": "aten.alias.default", "prims.squeeze": "aten.squeeze.dims",
    "prims.transpose": "aten.permute.default", "prims.as_strided": "aten.as_strided.default",
    "prims.where": "aten.where.self", "prims.reshape": "aten.view.default",
}  # fmt: skip


def _leaf(op: torch._ops.OpOverload) -> str:
    """The name under which an operation of a trace is lowered."""
    name = full_name(op)
    if has_lowering(name) or op.namespace != "prims":
        return name
    base = name.removesuffix(".default")
    if PRIMS.get(base):
        return PRIMS[base]
    for variant in ("default", "Tensor", "Tensor_Tensor"):
        candidate = f"aten.{name.split('.')[1]}.{variant}"
        if has_lowering(candidate) and _same_arity(op, candidate):
            return candidate
    return name


def _same_arity(op: torch._ops.OpOverload, name: str) -> bool:
    theirs = [a for a in overload(name)._schema.arguments if not a.has_default_value()]
    mine = [a for a in op._schema.arguments if not a.has_default_value()]
    return [str(a.real_type) for a in mine] == [str(a.real_type) for a in theirs]


def _idle(node: torch.fx.Node) -> bool:
    """Whether a node computes nothing (assertions, device guards)."""
    base = str(node.target)
    return base.startswith(("aten._assert", "aten.sym_", "aten._functional_assert"))


def _lowered(
    b: GraphBuilder, name: str, module: torch.fx.GraphModule, views: Sequence[View]
) -> Any:
    values: dict[torch.fx.Node, Any] = {}
    remaining = iter(views)

    def value(item: Any) -> Any:
        if isinstance(item, torch.fx.Node):
            return values[item]
        if isinstance(item, (list, tuple)):
            return [value(i) for i in item]
        if isinstance(item, Mapping):
            return {k: value(v) for k, v in item.items()}
        return item

    held = b.operation
    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(remaining)
        elif node.op == "get_attr":
            values[node] = _constant(b, name, getattr(module, str(node.target)))
        elif node.op == "output":
            b.operation = held
            return value(node.args[0])
        elif node.target is operator.getitem:
            values[node] = value(node.args[0])[node.args[1]]
        elif isinstance(node.target, torch._ops.OpOverload):
            if not _idle(node):
                values[node] = _one(b, name, node.target, value(node.args), value(node.kwargs))
        elif isinstance(node.target, type) and issubclass(node.target, tuple):  # a named result
            parts = value(node.args)
            one = len(parts) == 1 and isinstance(parts[0], list)
            values[node] = tuple(parts[0] if one else parts)
        else:
            raise Unsupported(name, "its decomposition", f"{node.target} has no lowering")
    raise AssertionError("a trace without output")


def _one(
    b: GraphBuilder, name: str, op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Any
) -> Any:
    leaf = _leaf(op)
    found = entry(leaf)
    if found is None:
        if full_name(op) == name:  # torch decomposes it no further
            raise Unsupported(name, "the operation", "it has no lowering and no decomposition")
        raise Unsupported(name, "its decomposition", f"{full_name(op)} has no lowering")
    if found.draws is not None:
        raise Unsupported(name, "its decomposition", f"{full_name(op)} draws random numbers")
    return lower_op(b, leaf, args, kwargs)


def _constant(b: GraphBuilder, name: str, value: Any) -> View:
    """A tensor that a decomposition holds."""
    real = getattr(value, "constant", None)
    if real is None and type(value) is torch.Tensor:
        real = value
    if real is None:
        raise Unsupported(name, "its decomposition", "it holds a tensor that is not known")
    dtype = str(real.dtype).removeprefix("torch.")
    if real.numel() == 1:
        return full(b, tuple(real.shape), real.item(), dtype)
    wide = real.float() if dtype in ("float16", "bfloat16") else real
    return b.constant(np.ascontiguousarray(wide.numpy()), dtype)
