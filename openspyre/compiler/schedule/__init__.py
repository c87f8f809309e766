"""From a kernel to its Program. Each kind of kernel has a scheduler in a file of its own, imported
when it is first needed; `common.py` is what they share. Imports no torch."""

from __future__ import annotations

import importlib

from openspyre.compiler.errors import CompileError
from openspyre.compiler.graph import Graph
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.tiles import Kernel
from openspyre.program.model import Program

_ROOMS = {"rows": "rows", "matmul": "matmul", "indexed": "indexed"}


def schedule(kernel: Kernel, graph: Graph, options: CompileOptions) -> Program:
    """The Program of a kernel: its operands are the kernel's arguments, in order. Notes in the
    kernel what was decided. Raises Unsupported and CompileError."""
    room = _ROOMS.get(kernel.kind)
    if room is None:
        raise CompileError(f"kernel {kernel.name}: no scheduler for kind {kernel.kind!r}")
    module = importlib.import_module(f"openspyre.compiler.schedule.{room}")
    program = module.schedule(kernel, graph, options)
    assert isinstance(program, Program)
    return program
