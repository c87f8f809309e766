"""stub"""

from __future__ import annotations

from openspyre.compiler.graph import Graph
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.tiles import Kernel
from openspyre.program.model import Program


def wanted(kernel: Kernel, graph: Graph) -> bool:
    return False


def schedule(kernel: Kernel, graph: Graph, options: CompileOptions) -> Program:
    raise NotImplementedError
