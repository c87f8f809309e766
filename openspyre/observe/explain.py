"""What the compiler made of a program: kernels, where they come from, what they cost and why.

`collect` watches the compiled regions that run inside it; `Explanation` prints them as text, JSON
and one HTML page. All times are the timing model's (openspyre/timing), never measurements. Needs
torch for `explain`; the figures themselves come from Programs alone.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from openspyre.program.model import Program, SymbolKind
from openspyre.timing import Timeline, time_program

if TYPE_CHECKING:
    import torch

    from openspyre.compiler.compile import CopyStep, ProgramStep
    from openspyre.compiler.runner import Planned
    from openspyre.ops.fallback import FallbackReport, FallbackRow

UNITS = ("dram", "pt", "sfu", "ring", "lx", "load", "store")


@dataclass(frozen=True)
class KernelFacts:
    """One kernel. Bytes are those of one launch; `lx`: (buffer, first byte, bytes, slots)."""

    name: str
    kind: str
    operations: list[str]
    sources: list[str]
    arguments: list[str]
    splits: dict[str, int]
    tile: dict[str, int]
    cores: int
    lx: list[tuple[str, int, int, int]]
    lx_bytes: int
    modelled_ns: float
    bound_by: str
    utilisation: dict[str, float]
    bytes_read: int
    bytes_written: int
    lx_received: int
    macs: int
    program_bytes: int = 0

    def cores_picture(self, total: int = 32) -> str:
        """The split of the labels over the cores, eight cores a line."""
        marks = []
        for core in range(total):
            if core >= self.cores:
                marks.append(" ..")
                continue
            digits: list[str] = []
            rest = core
            for parts in reversed(list(self.splits.values())):
                rest, digit = divmod(rest, parts)
                digits.insert(0, f"{digit:x}")
            marks.append(" " + ("".join(digits) or "0").rjust(2))
        return "\n".join("".join(marks[i : i + 8]) for i in range(0, total, 8))

    def cores_legend(self) -> str:
        """What the digits of `cores_picture` count."""
        labels = ", ".join(f"part of {name}" for name in self.splits)
        return f"each core's {labels} (core 0 first, '..' idle):" if labels else ""


@dataclass(frozen=True)
class CopyFacts:
    """A copy by the DMA engine between two programs."""

    text: str
    why: str = "no LOAD or STORE expresses this access"


@dataclass(frozen=True)
class RegionFacts:
    """One region and how often it ran."""

    name: str
    launches: int
    kernels: list[KernelFacts | CopyFacts]
    temps_bytes: int

    @property
    def modelled_ns(self) -> float:
        return sum(k.modelled_ns for k in self.kernels if isinstance(k, KernelFacts))


@dataclass
class Explanation:
    """All regions that ran, and the operations that fell back to the CPU, with the reasons."""

    regions: list[RegionFacts] = field(default_factory=list)
    fallbacks: list[FallbackRow] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As plain data. Every time in it is modelled."""
        return {"modelled": True, **asdict(self)}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)

    def text(self) -> str:
        """For people."""
        lines: list[str] = []
        for region in self.regions:
            lines.append(
                f"{region.name}: {len(region.kernels)} kernels, one launch of "
                f"{region.modelled_ns / 1000:,.1f} us (modelled), ran {region.launches} times,"
                f" {region.temps_bytes:,} B of temporaries in LPDDR5"
            )
            for number, kernel in enumerate(region.kernels):
                lines += _kernel_text(number, kernel)
        if not self.regions:
            lines.append("no compiled region ran")
        lines.append("")
        if self.fallbacks:
            lines.append("computed by the CPU:")
            lines += [
                "  " + "\n    because ".join((_fallback_text(row), *row.notes))
                for row in self.fallbacks
            ]
        else:
            lines.append("nothing was computed by the CPU")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def html(self) -> str:
        """One self-contained page."""
        rows = []
        longest = max(
            (k.modelled_ns for r in self.regions for k in r.kernels if isinstance(k, KernelFacts)),
            default=1.0,
        )
        for region in self.regions:
            rows.append(
                f"<h2>{html.escape(region.name)}</h2><p>{region.modelled_ns / 1000:,.1f} &micro;s"
                f" modelled, ran {region.launches} times, {region.temps_bytes:,} bytes of"
                " temporaries</p><table><tr><th>kernel<th>operations<th>time<th>bound by"
                "<th>LPDDR5 read / written<th>cores<th>LX<th>source</tr>"
            )
            rows += [_kernel_html(kernel, longest) for kernel in region.kernels]
            rows.append("</table>")
        fallbacks = "".join(
            "<li>" + "<br>because ".join(map(html.escape, (_fallback_text(row), *row.notes)))
            for row in self.fallbacks
        )
        rows.append(f"<h2>Computed by the CPU</h2><ul>{fallbacks or '<li>nothing'}</ul>")
        return _PAGE.replace("@BODY@", "\n".join(rows))


_PAGE = """<!doctype html><meta charset="utf-8"><title>OpenSpyre: what was compiled</title><style>
:root{color-scheme:light dark}body{font:14px/1.45 system-ui,sans-serif;margin:2rem;max-width:1400px}
table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #8884;padding:.4rem .6rem;
text-align:left;vertical-align:top}pre{margin:0;font-size:11px;line-height:1.15}.bar{height:8px;
background:#3b82f6;border-radius:2px;min-width:1px}.lx{display:flex;height:10px;width:160px;
background:#8882}.lx span{background:#10b981;border-right:1px solid #fff8}small{color:#888}
</style><h1>What the compiler made of it</h1><p><small>All times are modelled
(docs/timing.md), none is measured.</small></p>
@BODY@
"""


def _fallback_text(row: FallbackRow) -> str:
    return (
        f"{row.operation}: {row.calls} calls, {row.bytes_to_host:,} B to the host, "
        f"{row.bytes_to_device:,} B back"
    )


def _kernel_text(number: int, kernel: KernelFacts | CopyFacts) -> list[str]:
    if isinstance(kernel, CopyFacts):
        return [f"  {number}. DMA copy {kernel.text} ({kernel.why})"]
    busy = ", ".join(
        f"{name} {100 * share:.0f} %"
        for name, share in sorted(kernel.utilisation.items(), key=lambda item: -item[1])[:4]
        if share >= 0.005
    )
    lines = [
        f"  {number}. {kernel.name} ({kernel.kind}): {kernel.modelled_ns / 1000:,.2f} us"
        f" (modelled), bound by {kernel.bound_by} ({busy})",
        f"     {'; '.join(kernel.operations)}",
        f"     LPDDR5 read {kernel.bytes_read:,} B, written {kernel.bytes_written:,} B; into LX"
        f" {kernel.lx_received:,} B" + (f"; {kernel.macs:,} MACs" if kernel.macs else ""),
        f"     {kernel.cores} cores, splits {kernel.splits or 'none'},"
        f" tile {kernel.tile or 'whole'}, LX {kernel.lx_bytes:,} B",
    ]
    lines += [f"     at {argument}" for argument in kernel.arguments]
    lines += [f"     from {source}" for source in kernel.sources]
    if kernel.splits:
        lines.append(f"     {kernel.cores_legend()}")
        lines += ["     " + row for row in kernel.cores_picture().splitlines()]
    return lines


def _kernel_html(kernel: KernelFacts | CopyFacts, longest: float) -> str:
    if isinstance(kernel, CopyFacts):
        text = html.escape(kernel.text)
        return f"<tr><td>DMA copy<td colspan=7>{text} <small>{kernel.why}</small></tr>"
    width = 100 * kernel.modelled_ns / max(longest, 1e-9)
    parts = "".join(
        f'<span title="{html.escape(name)} {size * slots:,} B"'
        f' style="width:{100 * size * slots / (2 << 20):.2f}%"></span>'
        for name, _, size, slots in kernel.lx
    )
    busy = "<br>".join(
        f"<small>{name} {100 * share:.0f} %</small>"
        for name, share in sorted(kernel.utilisation.items(), key=lambda item: -item[1])[:4]
    )
    source = "<br>".join(html.escape(s) for s in kernel.sources)
    operations = "<br>".join(html.escape(o) for o in kernel.operations)
    arguments = "<br>".join(f"<small>{html.escape(a)}</small>" for a in kernel.arguments)
    return (
        f"<tr><td>{html.escape(kernel.name)}<br><small>{kernel.kind}</small><td>{operations}<br>"
        f"{arguments}<td>{kernel.modelled_ns / 1000:,.2f} &micro;s<div class=bar"
        f' style="width:{width:.1f}%"></div><td>{kernel.bound_by}<br>{busy}'
        f"<td>{kernel.bytes_read:,}<br>{kernel.bytes_written:,}<td>{kernel.cores}"
        f"<pre>{html.escape(kernel.cores_legend())}\n{html.escape(kernel.cores_picture())}</pre><td>{kernel.lx_bytes:,}"
        f"<div class=lx>{parts}</div><td><small>{source}</small></tr>"
    )


# --- gathering


def kernel_facts(
    step: ProgramStep,
    symbols: Mapping[str, int] | None = None,
    lines: Sequence[str] = (),
    timeline: Timeline | None = None,
) -> KernelFacts:
    """The facts of a compiled kernel; `symbols`: values of its sizes; `lines`: the user's line of
    each op that the region was compiled from; `timeline`: its modelled run, if it is at hand."""
    program: Program = step.program
    timeline = timeline or time_program(program, some_symbols(program, symbols or {}))
    kernel = step.kernel
    operations: list[str] = []
    sources: list[str] = []
    for op in kernel.ops:
        if op.name and op.name not in operations:
            operations.append(op.name)
        line = lines[int(op.source)] if op.source and lines else ""
        if line and line not in sources:
            sources.append(line)
    return KernelFacts(
        name=program.name,
        kind=kernel.kind,
        operations=operations or [program.name],
        sources=sources,
        arguments=[
            f"{tensor}{' (written)' if tensor.name in kernel.written else ''}"
            for tensor in step.arguments
        ],
        splits={digit.name.removeprefix("core_"): digit.size for digit in program.grid
                if digit.size > 1},
        tile=dict(kernel.tile),
        cores=program.cores,
        lx=[(b.name, b.base, b.slot_bytes, b.slots) for b in program.buffers],
        lx_bytes=max((b.base + b.slot_bytes * b.slots for b in program.buffers), default=0),
        modelled_ns=timeline.duration_ns,
        bound_by=timeline.bound_by,
        utilisation=timeline.utilisation(),
        bytes_read=timeline.bytes_read,
        bytes_written=timeline.bytes_written,
        lx_received=timeline.lx_bytes_received,
        macs=timeline.macs,
    )  # fmt: skip


def some_symbols(program: Program, given: Mapping[str, int]) -> dict[str, int]:
    """A value for each whole-number symbol: the given one, else the largest size or smallest number
    (which no time depends on)."""
    return {
        s.name: given.get(
            s.name,
            s.maximum // s.granularity * s.granularity
            if s.kind is SymbolKind.DIMENSION
            else s.minimum,
        )
        for s in program.symbols
        if s.kind is not SymbolKind.FLOAT
    }


def region_facts(plan: Planned, launches: int) -> RegionFacts:
    """The facts of a planned region."""
    from openspyre.compiler.compile import ProgramStep

    region = plan.loaded.region
    kernels: list[KernelFacts | CopyFacts] = []
    for step in region.steps:
        if isinstance(step, ProgramStep):
            kernels.append(kernel_facts(step, lines=plan.lines))
        else:
            kernels.append(_copy_facts(step))
    return RegionFacts(region.graph.name, launches, kernels, plan.loaded.temp_bytes)


def _copy_facts(step: CopyStep) -> CopyFacts:
    return CopyFacts(f"{step.target} = {step.source}")


@contextmanager
def collect() -> Iterator[Explanation]:
    """Watches the compiled regions that run inside; the Explanation is filled at the end."""
    from openspyre.compiler import runner
    from openspyre.ops.fallback import fallback_report

    before = fallback_report()
    ran: dict[int, list[Any]] = {}

    def note(plan: Planned, _: Sequence[torch.Tensor]) -> None:
        ran.setdefault(id(plan), [plan, 0])[1] += 1

    runner.listen(note)
    found = Explanation()
    try:
        yield found
    finally:
        runner.unlisten(note)
        found.regions += [region_facts(plan, launches) for plan, launches in ran.values()]
        found.fallbacks += fallbacks_since(before)


def fallbacks_since(before: FallbackReport) -> list[FallbackRow]:
    """What fell back to the CPU after `before` was taken, most bytes first."""
    from openspyre.ops.fallback import FallbackRow, fallback_report

    old = {row.operation: row for row in before.rows}
    found: list[FallbackRow] = []
    for row in fallback_report().rows:
        none = FallbackRow(row.operation, 0, 0, 0)
        past = old.get(row.operation, none)
        if past.calls > row.calls:  # the account was set to zero meanwhile
            past = none
        if row.calls > past.calls:
            found.append(
                replace(
                    row,
                    calls=row.calls - past.calls,
                    bytes_to_host=row.bytes_to_host - past.bytes_to_host,
                    bytes_to_device=row.bytes_to_device - past.bytes_to_device,
                )
            )
    return found


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """What the compiler makes of `function(*args, **kwargs)`, which is compiled (if it is not yet)
    and run once."""
    import torch

    compiled = function
    if not hasattr(function, "_torchdynamo_orig_callable") and not isinstance(
        function, torch._dynamo.eval_frame.OptimizedModule
    ):
        compiled = torch.compile(function)
    with collect() as found:
        compiled(*args, **kwargs)
    return found
