"""Lowerings: ATen operations as ops of a Graph (openspyre/compiler/graph.py).

`registry` holds the table and finds the functional form of in-place and out= operations, `promote`
the rules of dtypes; the other files are the lowerings, by subject. They may import torch (public
names), never torch._inductor or torch._dynamo.
"""

from __future__ import annotations

from openspyre.compiler.lower.registry import (
    NeedsConstant,
    Resolved,
    draws,
    entry,
    has_lowering,
    lower_op,
    lowers,
    names,
    resolve,
)

__all__ = [
    "NeedsConstant",
    "Resolved",
    "draws",
    "entry",
    "has_lowering",
    "lower_op",
    "lowers",
    "names",
    "resolve",
]
