"""What one program does over its time: facts, busy cores, LX. Kept once for equal programs.

Reads Programs and the timing model only; imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from openspyre.card import CardSpec
from openspyre.observe.explain import KernelFacts, kernel_facts, some_symbols
from openspyre.program.concrete import Instance
from openspyre.program.model import Compute, Program, Unit
from openspyre.program.ops import Kind
from openspyre.program.text import to_text
from openspyre.timing import Span, Timeline, time_program
from openspyre.timing.classes import core_classes, instructions
from openspyre.timing.costs import Costs
from openspyre.timing.table import TABLE

if TYPE_CHECKING:
    from openspyre.compiler.compile import ProgramStep

Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

CELLS = 48
"""Pieces into which the time of one program is cut for the pictures."""
SPELT_OUT = 64
"""Repeats of a span that are drawn one by one; more are spread evenly."""
_FILE = re.compile(r'File "([^"]+)"')
_MODULE = re.compile(r"(?:^| \| )module ([\w.]+)$")


def split_source(source: str) -> tuple[str, str]:
    """The user's line, and the module of the model behind it, as the compiler notes them of an
    operation (compiler/inductor/capture.py); each may be ""."""
    found = _MODULE.search(source)
    return (source, "") if found is None else (source[: found.start()], found[1])


def short_source(source: str) -> str:
    """A user's line with a file that means the same elsewhere: below its package, below where the
    process runs, or its name and folder."""
    found = _FILE.match(source)
    if found is None:
        return source
    path = Path(found[1])
    if "site-packages" in path.parts:
        at = len(path.parts) - path.parts[::-1].index("site-packages")
        short = Path(*path.parts[at:])
    elif path.is_relative_to(Path.cwd()):
        short = path.relative_to(Path.cwd())
    else:
        short = Path(*path.parts[-2:])
    return f'File "{short}"{source[found.end() :]}'


@dataclass(frozen=True)
class Profile:
    """A program's modelled run. `work` and `data`: for each core (all of the card's) the busy share
    of PT or SFU, and of its transfers, summed from the start to each of the CELLS + 1 edges: the
    last column is the busy share of the whole run. `format`: of the products, "" without any."""

    facts: KernelFacts
    duration_ns: float
    work: Floats
    data: Floats
    lane_ops: float
    format: str
    module: str


class Profiles:
    """Profiles of program steps, for one card."""

    def __init__(self, card: CardSpec) -> None:
        self.card = card
        self._timed: dict[object, tuple[Timeline, Floats, Floats]] = {}
        self._durations: dict[int, int | None] = {}

    def of(
        self,
        step: ProgramStep,
        lines: Sequence[str] = (),
        sizes: Mapping[str, int | float] | None = None,
    ) -> Profile:
        """`lines`: the user's line of each op of the region; `sizes`: values of its symbols.
        Raises ProgramError for a program that the timing model cannot run."""
        timeline, work, data = self._time(step.program, sizes)
        facts = kernel_facts(step, lines=lines, timeline=timeline)
        sources = [short_source(split_source(source)[0]) for source in facts.sources]
        facts = replace(facts, sources=[s for s in dict.fromkeys(sources) if s])
        sfu = timeline.servers.get("SFU")
        lanes = Costs(self.card, TABLE).lanes * self.card.clock_hz / 1e9 * step.program.cores
        return Profile(
            facts,
            timeline.duration_ns,
            work,
            data,
            (sfu.busy_ns if sfu is not None else 0.0) * lanes,
            _product_format(step.program),
            _module(step, lines),
        )

    def duration_ns(self, program: Program) -> int | None:
        """As the virtual clock counts it: whole ns, rounded up; None where there is no model."""
        key = id(program)
        if key not in self._durations:
            try:
                self._durations[key] = -int(-self._time(program)[0].duration_ns // 1)
            except ValueError:
                self._durations[key] = None
        return self._durations[key]

    def _time(
        self, program: Program, sizes: Mapping[str, int | float] | None = None
    ) -> tuple[Timeline, Floats, Floats]:
        given = {name: value for name, value in (sizes or {}).items() if isinstance(value, int)}
        symbols = some_symbols(program, given)
        key = (_nameless(program), tuple(symbols.values()))
        found = self._timed.get(key)
        if found is None:
            timeline = time_program(program, symbols, self.card)
            groups = {
                group.leader: group.cores for group in core_classes(Instance(program, symbols))
            }
            found = self._timed[key] = (
                timeline,
                self._busy(timeline, groups, (Unit.PT, Unit.SFU)),
                self._busy(timeline, groups, (Unit.LOAD, Unit.STORE, Unit.RING)),
            )
        return found

    def _busy(
        self, timeline: Timeline, groups: dict[int, tuple[int, ...]], units: Sequence[Unit]
    ) -> Floats:
        whole = timeline.duration_ns or 1.0
        edges = np.linspace(0.0, whole, CELLS + 1)
        busy = np.zeros((self.card.cores, CELLS + 1))
        for leader, cores in groups.items():
            spans = [s for s in timeline.spans if s.core == leader and s.unit in units]
            summed = sum((_until(span, edges) for span in spans), np.zeros(CELLS + 1))
            # Units of a core work side by side: no piece of time counts more than once.
            pieces = np.minimum(np.diff(summed), whole / CELLS)
            busy[list(cores), 1:] = np.cumsum(pieces) / whole
        return busy


def _nameless(program: Program) -> str:
    """A program's text with what it declares named by order: the same for the same kernel of
    another layer, whose tensors have other names."""
    declared = {
        item.name
        for group in (
            program.operands, program.values, program.buffers, program.tokens, program.lets,
            program.symbols, program.grid,
        )
        for item in group
    }  # fmt: skip
    order: dict[str, str] = {program.name: "program"}

    def renamed(match: re.Match[str]) -> str:
        word = match[0]
        if word not in declared and word not in order:
            return word
        return order.setdefault(word, f"_{len(order)}")

    return re.sub(r"[A-Za-z_][\w.]*", renamed, to_text(program))


def _until(span: Span, edges: Floats) -> Floats:
    """The busy time of a span's occurrences before each of the edges."""
    length = span.end_ns - span.start_ns
    if span.repeats <= 1 or span.period_ns <= 0:
        return np.clip(edges - span.start_ns, 0.0, length)
    if span.repeats <= SPELT_OUT:
        starts = span.start_ns + span.period_ns * np.arange(span.repeats)
        return np.clip(edges - starts[:, None], 0.0, length).sum(axis=0)
    reach = span.period_ns * span.repeats
    return np.clip(edges - span.start_ns, 0.0, reach) * (length * span.repeats / reach)


def _product_format(program: Program) -> str:
    for item in instructions(program):
        if isinstance(item, Compute) and item.kind is Kind.MATMUL:
            return item.inputs[0].format.name
    return ""


def _module(step: ProgramStep, lines: Sequence[str]) -> str:
    """The module of the model that a kernel belongs to: that of its product, if it has one, else of
    the first op that has any."""
    from openspyre.compiler.graph import OpKind

    named = [
        (op, module)
        for op in step.kernel.ops
        if lines and op.source and (module := split_source(lines[int(op.source)])[1])
    ]
    products = [module for op, module in named if op.kind is OpKind.MATMUL]
    return next(iter([*products, *(module for _, module in named)]), "")
