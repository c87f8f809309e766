"""Graph to Region: the passes, the fusion, the schedulers, in one place. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from openspyre.compiler.errors import CompileError
from openspyre.compiler.graph import Access, Graph, Op, OpKind, Role, Tensor
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.passes import PASSES
from openspyre.compiler.passes.fuse import fuse
from openspyre.compiler.schedule import schedule
from openspyre.compiler.tiles import Kernel
from openspyre.compiler.watch import Watch
from openspyre.program.model import Program


@dataclass(eq=False)
class ProgramStep:
    """One program. `arguments`: the graph's tensors that its operands are, in order."""

    program: Program
    arguments: list[Tensor]
    kernel: Kernel


@dataclass(eq=False)
class CopyStep:
    """A copy by the DMA engine between two programs: target = source, over the labels of `op`."""

    source: Access
    target: Access
    op: Op


Step: TypeAlias = "ProgramStep | CopyStep"


@dataclass(eq=False)
class Region:
    """A compiled graph. `graph` after all passes (every tensor has its Place), `steps` in order."""

    graph: Graph
    steps: list[Step] = field(default_factory=list)

    @property
    def temps(self) -> list[Tensor]:
        """The tensors that need LPDDR5 between steps, besides the arguments."""
        found: list[Tensor] = []
        for step in self.steps:
            tensors = (
                step.arguments
                if isinstance(step, ProgramStep)
                else [step.source.tensor, step.target.tensor]
            )
            for tensor in (t.memory for t in tensors):
                if tensor.role is Role.TEMP and tensor not in found:
                    found.append(tensor)
        return found

    @property
    def programs(self) -> list[Program]:
        return [step.program for step in self.steps if isinstance(step, ProgramStep)]


def compile_graph(graph: Graph, options: CompileOptions) -> Region:
    """Compiles `graph`, which is changed by it. Raises Unsupported (what the card does not do) and
    CompileError (a fault of the compiler)."""
    watch = Watch.now(graph)
    for run in PASSES:
        run(graph, options)
        watch.after(run.__name__, graph, options)
    for op in graph.ops:
        for access in op.inputs:
            if op.kind is not OpKind.COPY and op.collides(access):
                raise CompileError(f"{op}: it reads {access} while it writes the same memory")
    region = Region(graph)
    for kernel in fuse(graph, options):
        if kernel.kind == "copy":
            (op,) = kernel.ops
            assert op.kind is OpKind.COPY
            region.steps.append(CopyStep(op.inputs[0], op.outputs[0], op))
        else:
            program = schedule(kernel, graph, options)
            region.steps.append(ProgramStep(program, list(kernel.arguments), kernel))
            watch.made(program)
    return region
