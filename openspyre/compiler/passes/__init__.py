"""The passes, in the order in which they run. Each changes the Graph in place; imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from openspyre.compiler.graph import Graph
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.passes.canonicalize import canonicalize
from openspyre.compiler.passes.collapse import collapse
from openspyre.compiler.passes.factor import factor
from openspyre.compiler.passes.layouts import layouts
from openspyre.compiler.passes.legalize import legalize

Pass: TypeAlias = "Callable[[Graph, CompileOptions], None]"

PASSES: tuple[Pass, ...] = (canonicalize, factor, layouts, legalize, collapse)
