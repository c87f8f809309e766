"""The scheduler of matrix-product kernels: form, plan, program.

A kernel is one MATMUL and the MAPs on its sums (rounding, bias, activation, residual, gate). The
sums never leave LX; neither does what the MAPs hand each other. Where a or b does not lie with the
stick that the PT wants, the SFU turns its tiles in LX. Imports no torch.
"""

from __future__ import annotations

import math

from openspyre.compiler.errors import Unsupported
from openspyre.compiler.graph import Graph
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.planner.compat import split_matmul
from openspyre.compiler.planner.matmul import MatmulPlan, NoPlan, Part, Product, plan_matmul
from openspyre.compiler.schedule.common import Draft, lx_budget
from openspyre.compiler.schedule.matmul_form import Form, product_of, read_form
from openspyre.compiler.schedule.matmul_program import Writer
from openspyre.compiler.sizes import known
from openspyre.compiler.tiles import Kernel
from openspyre.program.model import Program, SymbolKind
from openspyre.timing import time_program

_PARTS = {"m": Part.ROW, "rows": Part.ROW, "n": Part.COL, "k": Part.DEPTH, "b": Part.BATCH}


def schedule(kernel: Kernel, graph: Graph, options: CompileOptions) -> Program:
    """The Program of a "matmul" kernel; notes split, tiles and modelled time in the kernel.

    Raises CompileError for a kernel that is none, Unsupported when no tile of it fits the card.
    """
    form = read_form(kernel, graph)
    product = product_of(form, graph)
    plans = plans_for(form, product, options, max(options.confirm, 1))
    programs = [write(kernel, graph, options, form, product, plan) for plan in plans]
    times = [plan.ns for plan in plans]
    if len(plans) > 1:
        times = [_modelled(program, graph) for program in programs]
    best = min(range(len(plans)), key=lambda number: times[number]) if len(plans) > 1 else 0
    plan = plans[best]
    kernel.splits, kernel.tile, kernel.cores = dict(plan.parts), dict(plan.tile), plan.cores
    kernel.lx_bytes, kernel.modelled_ns = plan.lx_bytes, times[best]
    return programs[best]


def _modelled(program: Program, graph: Graph) -> float:
    """Nanoseconds by the timing model, symbols at their hints."""
    symbols = {}
    for symbol in program.symbols:
        if symbol.kind is SymbolKind.INT:
            hint = int(graph.symbols[symbol.name].hint)
            symbols[symbol.name] = min(max(hint, symbol.minimum), symbol.maximum)
    return time_program(program, symbols, spans=False).duration_ns


def plans_for(
    form: Form, product: Product, options: CompileOptions, keep: int = 1
) -> list[MatmulPlan]:
    """The planner's `keep` best, or what the options force. Raises Unsupported without any."""
    split = {_PARTS[name]: count for name, count in options.split if name in _PARTS}
    tiles = {_PARTS[name]: size for name, size in options.tile if name in _PARTS}
    if options.planner == "compat":
        split = _compat(product, options) | split
    try:
        return plan_matmul(
            product,
            cores=options.most_cores,
            lx_bytes=lx_budget(options),
            slots=options.slots,
            split=split,
            tiles=tiles,
            strips=known(form.sizes[form.k]) is not None,
            keep=keep,
        )
    except NoPlan as reason:
        raise Unsupported(
            form.name,
            f"product of {form.a.tensor} and {form.b.tensor}",
            str(reason),
            "force a split or tiles by hint, or make the product smaller",
        ) from None


def _compat(product: Product, options: CompileOptions) -> dict[Part, int]:
    """The public compiler's split."""
    sizes = {part: math.prod(axis.size for axis in product.of(part)) for part in Part}
    found = split_matmul(
        sizes[Part.ROW], sizes[Part.DEPTH], sizes[Part.COL], sizes[Part.BATCH], options.most_cores
    )
    return {Part.BATCH: found.b, Part.ROW: found.m, Part.COL: found.n, Part.DEPTH: found.k}


def write(
    kernel: Kernel,
    graph: Graph,
    options: CompileOptions,
    form: Form,
    product: Product,
    plan: MatmulPlan,
) -> Program:
    """The Program of a plan."""
    draft = Draft(kernel, graph, options, plan.parts)
    return Writer(draft, form, product, plan).write()
