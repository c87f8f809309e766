"""What a report advises: a way out for each fallback, and what to do next. Imports no torch.

Every rule looks at the figures alone and names those it rests on; gains are modelled time that the
advice concerns, an upper bound of what it can win.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from openspyre.observe.report_data import Advice, FallbackData, KernelRow, ReportData

if TYPE_CHECKING:
    from openspyre.ops.fallback import FallbackRow

WIDE_SHARE = 0.02
"""What concerns less of the modelled time than this is left out."""
FORMAT_FACTOR = 4.0
"""How much more than one rounding an operation may be off before it is named."""

# --- fallbacks

_BY_REASON: tuple[tuple[str, str], ...] = (
    ("compiler error", "A fault of the compiler: OPENSPYRE_STRICT=1 raises it; please report it."),
    ("float64", "The card has no float64: create or convert the tensor as float32 before it."),
    ("complex", "The card has no complex numbers: keep real and imaginary parts in two tensors."),
    (
        "without elements",
        "It works on a tensor without elements: skip the call when there are none.",
    ),
    ("symbolic", "Its sizes are symbols: torch.compile(dynamic=False), or mark the dim static."),
    ("overlaps", "It writes where it reads: write to a new tensor (the form without `_` or out=)."),
    ("expanded tensor", "It writes to an expanded tensor: use a .contiguous() one."),
    ("resizes", "It resizes its out= tensor: let it make a new result, or give out= its shape."),
    ("meta kernel", "PyTorch refuses these arguments: the message of the CPU's kernel says why."),
    ("dropout", "Call model.eval() where dropout is not wanted."),
)
_BY_OPERATION: tuple[tuple[str, str], ...] = (
    ("_local_scalar_dense", "A value is read on the host (.item(), int(), an `if` on a tensor):"
     " keep the decision on the card with torch.where, or read it once behind the loop."),
    ("nonzero", "The size of its result depends on the data: use torch.where(mask, a, b) or a mask"
     " instead of indexing with one."),
    ("masked_select", "The size of its result depends on the data: keep a mask, torch.where."),
    ("unique", "The size of its result depends on the data: do it once, before the loop."),
    ("linalg_", "Decompositions run on the CPU: do them once, before the loop, on CPU tensors."),
    ("_copy_from", "Data moves to the host: keep it on the card until the end."),
)  # fmt: skip


def fallback_data(rows: Sequence[FallbackRow]) -> list[FallbackData]:
    """The rows with the advice for each."""
    return [
        FallbackData(
            row.operation,
            row.calls,
            row.bytes_to_host,
            row.bytes_to_device,
            list(row.notes),
            _way_out(row.operation, row.notes),
        )
        for row in rows
    ]


def _way_out(operation: str, reasons: Sequence[str]) -> str:
    for name, text in _BY_OPERATION:
        if name in operation:
            return text
    for reason in reasons:
        for word, text in _BY_REASON:
            if word in reason:
                return text
    return (
        "No kernel on the card takes this call: torch.spyre.fallback('error') shows where it is"
        " made. If it stands in a loop, move it outside, or write it with other operations"
        " (docs/operators.md lists those of the card)."
    )


# --- what to do next

Rule: TypeAlias = "Callable[[ReportData], Iterator[Advice]]"


def advice(data: ReportData) -> list[Advice]:
    """What to do next, most rewarding first."""
    found = [one for rule in RULES for one in rule(data)]
    found.sort(key=lambda a: -a.gain_ns)
    return found or [
        Advice(
            "Nothing stands out",
            "No rule of this report applies. The layer table shows where the modelled time goes.",
        )
    ]


def _nothing(data: ReportData) -> Iterator[Advice]:
    if not data.kernels:
        yield Advice(
            "Use the card",
            "No step of the compute engine was seen: move the model and its inputs to 'spyre'.",
            1.0,
        )


def _fallbacks(data: ReportData) -> Iterator[Advice]:
    if not data.fallbacks:
        return
    worst = max(data.fallbacks, key=lambda f: f.bytes_to_host + f.bytes_to_device)
    calls = sum(f.calls for f in data.fallbacks)
    moved = sum(f.bytes_to_host + f.bytes_to_device for f in data.fallbacks)
    link = sum(e.busy_ns for e in data.engines if e.name in ("h2d", "d2h"))
    yield Advice(
        f"Remove the fallbacks: {calls:,} call{'' if calls == 1 else 's'} to the CPU",
        f"They moved {moved:,} bytes over the link, and the card waits for each. Begin with"
        f" {worst.operation}: {worst.advice}",
        float(link),
    )


def _eager(data: ReportData) -> Iterator[Advice]:
    eager = [k for k in data.kernels if k.mode == "eager"]
    time = sum(k.total_ns for k in eager)
    if not eager or time < WIDE_SHARE * _time(data) or _share(data, "eager") < 0.2:
        return
    moved = sum((k.bytes_read + k.bytes_written) * k.launches for k in eager)
    yield Advice(
        "Compile it",
        f"{sum(k.launches for k in eager):,} launches come from eager operations"
        f" ({100 * _share(data, 'eager'):.0f} % of the modelled compute time). Every one reads its"
        f" inputs from LPDDR5 and writes its result there ({moved:,} bytes in all); torch.compile"
        " makes one launch of them and keeps what lies between in LX.",
        time,
    )


def _waiting(data: ReportData) -> Iterator[Advice]:
    busy = max((e.busy_ns for e in data.engines), default=0)
    if not data.kernels or data.bound.name != "host":
        return
    yield Advice(
        "Give the card more at a time",
        f"Its busiest engine works {100 * data.bound.shares.get('compute', 0.0):.0f} % of the time"
        " that bounds the run: launches are short beside what the host takes to submit them. Larger"
        " batches, torch.compile, and fewer reads of results (.item(), .cpu()) in the loop help.",
        float(max(data.modelled_ns - busy, 0)),
    )


def _memory_bound(data: ReportData) -> Iterator[Advice]:
    ridge = data.card["peak_flops"]["16 bit"] / data.card["dram_bytes_per_s"]
    products = [
        k for k in data.kernels if k.macs and k.bound_by == "LPDDR5" and k.intensity < ridge / 4
    ]
    time = sum(k.total_ns for k in products)
    if time < 0.2 * _time(data):
        return
    wide = [k for k in products if k.dtype == "IEEE_FP32"]
    text = (
        f"Products take {100 * time / _time(data):.0f} % of the modelled compute time and are bound"
        " by LPDDR5: they read weights for few rows. A larger batch reads the same weights for more"
        " rows; up to the roofline's ridge it is nearly free."
    )
    if wide:
        text += " Some have float32 weights: model.half() halves the bytes."
    yield Advice("Use each weight for more rows", text, time)


def _float32(data: ReportData) -> Iterator[Advice]:
    wide = [k for k in data.kernels if k.dtype == "IEEE_FP32" and k.bound_by == "PT"]
    time = sum(k.total_ns for k in wide)
    if time >= WIDE_SHARE * _time(data):
        yield Advice(
            "Use 16-bit products",
            f"{len(wide)} kernels multiply float32, which the array does at a quarter of its rate"
            " (modelled): model.half(), or autocast.",
            0.75 * time,
        )


def _idle_cores(data: ReportData) -> Iterator[Advice]:
    total = data.card["cores"]
    few = [k for k in data.kernels if 0 < k.cores <= total // 2]
    time = sum(k.total_ns * (1 - k.cores / total) for k in few)
    if time < 0.05 * _time(data):
        return
    worst = max(few, key=lambda k: k.total_ns * (1 - k.cores / total))
    yield Advice(
        "Let more cores work",
        f"{len(few):,} kernels use at most half of the {total} cores, {worst.name} most of all"
        f" ({worst.cores} cores, {worst.kind}). More rows, or sizes that are multiples of 64, give"
        " the planner something to split; torch.spyre.hint(split=...) forces a split.",
        time,
    )


def _copies(data: ReportData) -> Iterator[Advice]:
    copies = [k for k in data.kernels if k.mode == "other" and k.bytes_written]
    time = sum(k.total_ns for k in copies)
    if time >= 0.05 * _time(data):
        worst = max(copies, key=lambda k: k.total_ns)
        yield Advice(
            "Avoid copies within the card",
            f"Steps that only move data ({worst.name} most of all) take"
            f" {100 * time / _time(data):.0f} % of the modelled compute time: layouts that the next"
            " operation cannot read. A .contiguous() earlier, or another order of dims, may save"
            " them.",
            time,
        )


def _link(data: ReportData) -> Iterator[Advice]:
    link = [e for e in data.engines if e.name in ("h2d", "d2h") and e.share > 0.2]
    for engine in link:
        yield Advice(
            f"Move less over the link ({engine.name})",
            f"It is busy {100 * engine.share:.0f} % of the modelled time with {engine.steps:,}"
            f" transfers of {engine.bytes:,} bytes in all. Keep tensors on the card; copy with"
            " non_blocking=True on a stream of its own, so that computing goes on.",
            float(engine.busy_ns),
        )


def _formats(data: ReportData) -> Iterator[Advice]:
    over = sum(row.overflow for row in data.format_rows)
    if over:
        worst = max(data.format_rows, key=lambda r: r.overflow)
        yield Advice(
            "Numbers leave the range of 16 bits",
            f"{over:,} values overflow, most in {worst.operation} ({worst.source or worst.layer}):"
            " scale them down, or compute that operation in float32.",
            1.0,
        )
    far = [r for r in data.format_rows if r.card > FORMAT_FACTOR * max(r.dl16, r.ieee, 1e-7)]
    if far:
        worst = max(far, key=lambda r: r.card)
        yield Advice(
            "Look at what loses digits",
            f"{worst.operation} in {worst.layer} is off by {worst.card:.1e} of its largest value,"
            f" more than one rounding explains ({worst.dl16:.1e}): sums of many terms of both"
            " signs, or a difference of nearly equal numbers. float32 there costs little if the"
            " tensor is small.",
        )


def _memory_full(data: ReportData) -> Iterator[Advice]:
    memory = data.memory
    if memory is None or not memory.capacity:
        return
    peak = memory.stats.get("allocated_bytes.all.peak", 0)
    if peak > 0.9 * memory.capacity:
        yield Advice(
            "Memory is nearly full",
            f"The peak is {peak:,} of {memory.capacity:,} bytes: smaller batches, a shorter cache,"
            " or float16 weights.",
        )


RULES: tuple[Rule, ...] = (
    _nothing, _fallbacks, _eager, _waiting, _memory_bound, _float32, _idle_cores, _copies, _link,
    _formats, _memory_full,
)  # fmt: skip


def _time(data: ReportData) -> float:
    return sum(k.total_ns for k in data.kernels) or 1.0


def _share(data: ReportData, mode: str) -> float:
    return sum(k.share for k in data.kernels if k.mode == mode)


def bound_kernels(kernels: Sequence[KernelRow]) -> dict[str, float]:
    """Modelled time by the server that bounds each kernel."""
    found: dict[str, float] = {}
    for kernel in kernels:
        found[kernel.bound_by] = found.get(kernel.bound_by, 0.0) + kernel.total_ns
    return dict(sorted(found.items(), key=lambda item: -item[1]))
