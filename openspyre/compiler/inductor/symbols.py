"""Sizes of FX graphs (sympy expressions in SymInts) as the compiler's sizes, and back to nodes.

May import torch's symbolic shapes and sympy; used by capture only.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod

from openspyre.compiler.traced import SizeSymbol, SizeText

LARGEST = 2**31 - 1
"""What stands for the bound of a size that has none."""


class Untranslatable(ValueError):
    """A size or argument that a region cannot hold."""


class Symbols:
    """Collects the symbols that sizes of a region use."""

    def __init__(self) -> None:
        self._found: dict[str, SizeSymbol] = {}

    def text(self, size: Any) -> SizeText:
        """A size as JSON (`traced.SizeText`). Raises Untranslatable."""
        if isinstance(size, int):
            return size
        if not isinstance(size, torch.SymInt):
            raise Untranslatable(f"{size!r} is no size")
        expression = size.node.expr
        for symbol in expression.free_symbols:
            self._note(symbol, size.node.shape_env)
        return _text(expression)

    def _note(self, symbol: sympy.Symbol, env: Any) -> None:
        name = str(symbol)
        if name in self._found:
            return
        if not name.startswith("s"):
            raise Untranslatable(f"{name} is not known before the graph runs")
        bounds = env.var_to_range.get(symbol)
        low, high = 1, LARGEST
        if bounds is not None:
            low = max(low, int(bounds.lower)) if bounds.lower.is_Integer else low
            high = min(high, int(bounds.upper)) if bounds.upper.is_Integer else high
        hint = env.backed_var_to_val.get(symbol, low)
        self._found[name] = SizeSymbol(name, low, high, int(hint))

    def symbols(self) -> list[SizeSymbol]:
        """In a fixed order: that of `nodes`."""
        return [self._found[name] for name in sorted(self._found)]

    def nodes(self, gm: GraphModule) -> list[Node | int]:
        """The nodes of `gm` that hold the symbols' values."""
        out: list[Node | int] = []
        for name in sorted(self._found):
            node = _placeholder(gm, name)
            if node is None:
                raise Untranslatable(f"no input of the graph holds {name}")
            out.append(node)
        return out


def _placeholder(gm: GraphModule, name: str) -> Node | None:
    """The node whose value is the symbol: an input, or the size of an input."""
    for node in gm.graph.nodes:
        value: Any = node.meta.get("val")
        if isinstance(value, torch.SymInt) and str(value.node.expr) == name:
            return node
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        if node.op != "placeholder" or not isinstance(value, torch.Tensor):
            continue
        sizes: list[Any] = list(value.shape)
        for dim, size in enumerate(sizes):
            if isinstance(size, torch.SymInt) and str(size.node.expr) == name:
                last = [n for n in gm.graph.nodes if n.op == "placeholder"][-1]
                with gm.graph.inserting_after(last):
                    made = gm.graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
                made.meta["val"] = size
                return made
    return None


def _text(e: Any) -> SizeText:
    if isinstance(e, sympy.Integer):
        return int(e)
    if isinstance(e, sympy.Symbol):
        return str(e)
    if isinstance(e, sympy.Add):
        return _chain("+", e.args)
    if isinstance(e, sympy.Mul):
        return _chain("*", e.args)
    if isinstance(e, sympy.Pow) and isinstance(e.exp, sympy.Integer) and int(e.exp) > 0:
        return _chain("*", [e.base] * int(e.exp))
    if isinstance(e, FloorDiv):
        return ["//", _text(e.args[0]), _text(e.args[1])]
    if isinstance(e, Mod | PythonMod | sympy.Mod):
        return ["%", _text(e.args[0]), _text(e.args[1])]
    if isinstance(e, Min | sympy.Min):
        return _chain("min", e.args)
    if isinstance(e, Max | sympy.Max):
        return _chain("max", e.args)
    raise Untranslatable(f"the size {e}")


def _chain(op: str, parts: Any) -> SizeText:
    texts = [_text(p) for p in sorted(parts, key=str)]
    made = texts[0]
    for text in texts[1:]:
        made = [op, made, text]
    return made
