"""The passes, in the order in which they run. Each changes the Graph in place; imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from openspyre.compiler.graph import Graph
from openspyre.compiler.options import CompileOptions

Pass: TypeAlias = "Callable[[Graph, CompileOptions], None]"

PASSES: tuple[Pass, ...] = ()
