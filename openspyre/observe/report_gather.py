"""From a watched Run to the figures of its report: all is computed here, the page only draws.

Needs the compiler (programs), the timing model and the configured card; starts nothing.
"""

from __future__ import annotations

import datetime
import itertools
import re
import statistics
from collections.abc import Sequence
from typing import Any

import openspyre
from openspyre.card import SEGMENT_BYTES, CardSpec
from openspyre.device.synthetic import TimelineEntry
from openspyre.observe.report import ENGINES, Run
from openspyre.observe.report_advice import advice, fallback_data
from openspyre.observe.report_data import (
    Block,
    Bound,
    EngineRow,
    FormatRow,
    KernelRow,
    LayerRow,
    MemoryData,
    Picture,
    RegionRow,
    ReportData,
    Speed,
)
from openspyre.observe.report_formats import format_layers
from openspyre.observe.report_pictures import picture
from openspyre.observe.report_programs import Profiles
from openspyre.observe.report_steps import Joined, Ran, finished, join
from openspyre.timing.table import TABLE

EAGER_STEPS = 300
"""Compute steps that the close-up shows when nothing was compiled: the last ones."""
BLOCKS = 600
"""Blocks of a region that are drawn one by one; neighbours that are too thin are put together."""


def gather(run: Run, formats: Sequence[FormatRow] = (), notes: Sequence[str] = ()) -> ReportData:
    """The figures of a run. Raises nothing for a run in which nothing happened."""
    from openspyre.compiler import launch
    from openspyre.device import numerics
    from openspyre.device.registration import configuration

    card = configuration().card
    profiles = Profiles(card)
    rows = finished(run.rows)
    loaded = [region for region in launch.held() if region.device == run.device]
    joined = join(rows, run.launched, loaded, profiles)
    span = max(run.end_ns - run.start_ns, 0)
    kernels = _kernels(joined, card)
    layers = _layers(kernels)
    engines = [
        EngineRow(name, *run.totals.get(name, (0, 0, 0)), _share(run, name, span))
        for name in ENGINES
    ]
    settings = numerics.get()
    data = ReportData(
        title=run.title or "A run on spyre",
        made_at=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        version=openspyre.__version__,
        card=_card(card),
        numerics={"mode": settings.mode, "ties": settings.ties, "merged": settings.merged},
        wall_seconds=run.wall_seconds,
        modelled_ns=span,
        notes=[*notes, *run.notes, *_gaps(run, joined)],
        speeds=_speeds(run, joined),
        bound=_bound(run, joined, span),
        engines=engines,
        layers=layers,
        kernels=kernels,
        run=picture(
            "The whole run",
            rows,
            joined.of,
            card,
            [(p.name, p.start_ns, p.end_ns) for p in run.phases],
        ),
        call=_call(rows, joined, card),
        memory=_memory(run),
        fallbacks=fallback_data(run.fallbacks),
        formats=format_layers(formats),
        format_rows=list(formats),
        advice=[],
        launches={
            "regions": len(run.launched),
            "eager": max(0, run.eager.get("launches", 0)),
            "compiled_anew": run.compile_counts.get("compiled", 0),
        },
    )
    data.advice = advice(data)
    return data


def _share(run: Run, engine: str, span: int) -> float:
    return run.totals.get(engine, (0, 0, 0))[2] / span if span else 0.0


def _card(card: CardSpec) -> dict[str, Any]:
    return {
        "name": card.name,
        "cores": card.cores,
        "clock_hz": card.clock_hz,
        "lx_bytes": card.lx_bytes,
        "usable_bytes": card.usable_bytes,
        "peak_flops": {
            "16 bit": card.fp16_peak_flops,
            "float32": card.fp16_peak_flops * TABLE.pt_rate_fp32,
        },
        "sfu_ops": card.cores * card.corelets * card.sfu_lanes * card.clock_hz,
        "dram_bytes_per_s": TABLE.dram_bytes_per_ns * 1e9,
    }


def _gaps(run: Run, joined: Joined) -> list[str]:
    """What the page cannot show."""
    found = []
    if run.lost:
        found.append(
            f"The first {len(run.rows):,} steps are shown; {run.lost:,} later ones are in the sums"
            " of the engines only. Watch a shorter part of the run."
        )
    failed = sum(1 for row in run.rows if row[8] in ("failed", "cancelled"))
    if failed:
        found.append(f"{failed:,} steps failed or were cancelled.")
    unknown = {r.name for r in joined.ran if r.mode == "compiled" and r.profile is None}
    if unknown:
        found.append(f"Without a model of their time: {', '.join(sorted(unknown)[:5])}.")
    return found


# --- kernels and layers


def _kernels(joined: Joined, card: CardSpec) -> list[KernelRow]:
    whole = sum(ran.total_ns for ran in joined.ran) or 1
    return [_kernel(ran, ran.total_ns / whole, card) for ran in joined.ran]


def _kernel(ran: Ran, share: float, card: CardSpec) -> KernelRow:
    one = ran.total_ns / len(ran.rows)
    profile = ran.profile
    if profile is None:
        moved = ran.rows[0].bytes
        return KernelRow(
            name=ran.name, kind="copy", mode=ran.mode, region=ran.region, number=ran.number,
            layer=ran.name, operations=[ran.name], sources=[], launches=len(ran.rows),
            modelled_ns=one, total_ns=ran.total_ns, share=share, bound_by="LPDDR5" if moved else "",
            utilisation={}, bytes_read=moved, bytes_written=moved, lx_received=0, macs=0,
            lane_ops=0.0, rate=0.0, intensity=0.0, dtype="", cores=0, splits={}, tile={},
            lx_bytes=0, lx=[],
        )  # fmt: skip
    facts = profile.facts
    operations = 2 * facts.macs or profile.lane_ops
    moved = facts.bytes_read + facts.bytes_written
    return KernelRow(
        name=ran.name,
        kind=facts.kind,
        mode=ran.mode,
        region=ran.region,
        number=ran.number,
        layer=profile.module,
        operations=facts.operations,
        sources=facts.sources,
        launches=len(ran.rows),
        modelled_ns=one,
        total_ns=ran.total_ns,
        share=share,
        bound_by=facts.bound_by,
        utilisation={name: round(value, 4) for name, value in facts.utilisation.items()},
        bytes_read=facts.bytes_read,
        bytes_written=facts.bytes_written,
        lx_received=facts.lx_received,
        macs=facts.macs,
        lane_ops=round(profile.lane_ops),
        rate=1e9 * operations / one if one else 0.0,
        intensity=operations / moved if moved else 0.0,
        dtype=profile.format,
        cores=facts.cores,
        splits=facts.splits,
        tile=facts.tile,
        lx_bytes=facts.lx_bytes,
        lx=facts.lx,
    )


def layer_of(module: str) -> str:
    """The layer of a module: its path up to the first number; `layers.3` of
    `layers.3.self_attn.q_proj`, all of `embed_tokens`."""
    match = re.match(r"((?:[^.]+\.)*?\d+)(?:\.|$)", module)
    return match[1] if match else module


def _layers(kernels: Sequence[KernelRow]) -> list[LayerRow]:
    groups: dict[tuple[str, str], list[int]] = {}
    for number, kernel in enumerate(kernels):
        groups.setdefault(_group(kernel), []).append(number)
    made = []
    for (name, kind), numbers in groups.items():
        members = [kernels[n] for n in numbers]
        sources: dict[str, float] = {}
        for kernel in members:
            for source in kernel.sources:
                sources[source] = sources.get(source, 0.0) + kernel.total_ns
        made.append(
            LayerRow(
                name=name,
                kind=kind,
                kernels=numbers,
                launches=sum(k.launches for k in members),
                total_ns=sum(k.total_ns for k in members),
                share=sum(k.share for k in members),
                bound_by=_busiest(members),
                bytes_read=sum(k.bytes_read * k.launches for k in members),
                bytes_written=sum(k.bytes_written * k.launches for k in members),
                macs=sum(k.macs * k.launches for k in members),
                sources=sorted(sources, key=lambda s: -sources[s]),
            )
        )
    return made


def _group(kernel: KernelRow) -> tuple[str, str]:
    if kernel.mode == "other":
        return kernel.name, "copies"
    if kernel.mode == "eager":
        return ", ".join(kernel.operations), "operation"
    if kernel.layer:
        return layer_of(kernel.layer), "module"
    if kernel.sources:
        return kernel.sources[0], "source"
    return ", ".join(kernel.operations), "operation"


def _busiest(kernels: Sequence[KernelRow]) -> str:
    busy: dict[str, float] = {}
    for kernel in kernels:
        for name, share in (kernel.utilisation or {kernel.bound_by: 1.0}).items():
            busy[name] = busy.get(name, 0.0) + share * kernel.total_ns
    return max(busy, key=lambda name: busy[name]) if busy else ""


# --- summary


def _speeds(run: Run, joined: Joined) -> list[Speed]:
    made = []
    for phase in run.phases:
        modelled = (phase.end_ns - phase.start_ns) / 1e9
        made.append(
            Speed(
                phase.name,
                phase.unit,
                phase.count,
                phase.wall_seconds,
                modelled,
                phase.count / phase.wall_seconds if phase.count and phase.wall_seconds else None,
                phase.count / modelled if phase.count and modelled > 0 else None,
            )
        )
    if not any(speed.count for speed in made):
        made += _call_speeds(run, joined)
    return made


def _call_speeds(run: Run, joined: Joined) -> list[Speed]:
    """Where the script counts nothing: calls of the compiled region that takes longest."""
    if not joined.calls:
        steps, _, _ = run.totals.get("compute", (0, 0, 0))
        modelled = (run.end_ns - run.start_ns) / 1e9
        if not steps:
            return []
        return [
            Speed(
                "the whole run", "launches", steps, run.wall_seconds, modelled,
                steps / run.wall_seconds if run.wall_seconds else None,
                steps / modelled if modelled > 0 else None,
                "steps of the compute engine; the wall time includes the script's own work",
            )
        ]  # fmt: skip
    names = [name for name, _ in joined.calls]
    spent: dict[str, int] = {}
    for name, steps_ in joined.calls:
        spent[name] = spent.get(name, 0) + sum(r.duration_ns for r in steps_)
    most = max(spent, key=lambda name: spent[name])
    calls = [call for name, call in joined.calls if name == most]
    walls = [e.seconds for e in run.launched if e.plan.loaded.region.graph.name == most]
    wall = _distance(walls)
    modelled_ns = _distance([float(call[-1].end_ns) for call in calls])
    return [
        Speed(
            f"calls of {most}",
            "calls",
            names.count(most),
            (wall or 0.0) * names.count(most),
            (modelled_ns or 0.0) / 1e9 * names.count(most),
            1 / wall if wall else None,
            1e9 / modelled_ns if modelled_ns else None,
            "median distance from call to call, so that compiling does not count",
        )
    ]


def _distance(moments: Sequence[float]) -> float | None:
    """The median distance of three or more moments."""
    if len(moments) < 3:
        return None
    return statistics.median(b - a for a, b in itertools.pairwise(moments))


def _bound(run: Run, joined: Joined, span: int) -> Bound:
    """Of the phase with a count that took longest on the card, or of the whole run."""
    counted = [p for p in run.phases if p.count]
    start, end, what = run.start_ns, run.end_ns, "the run"
    if counted:
        phase = max(counted, key=lambda p: p.end_ns - p.start_ns)
        start, end, what = phase.start_ns, phase.end_ns, f"the phase “{phase.name}”"
    rows = [r for r in finished(run.rows) if r.end_ns > start and r.start_ns < end]
    if not rows or not span:
        return Bound("nothing", "Nothing ran on the card.")
    length = max(end - start, 1)
    shares = {
        name: _covered([r for r in rows if r.engine == name], start, end) / length
        for name in ENGINES
    }
    servers: dict[str, float] = {}
    computing = 0
    for row in rows:
        ran = joined.of.get(row.correlation)
        if row.engine != "compute":
            continue
        computing += row.duration_ns
        facts = ran.profile.facts if ran is not None and ran.profile is not None else None
        moving = {"LPDDR5": 1.0} if row.bytes else {}
        for name, share in (facts.utilisation if facts else moving).items():
            servers[name] = servers.get(name, 0.0) + share * row.duration_ns
    inside = {name: busy / max(computing, 1) for name, busy in servers.items()}
    engine = max(shares, key=lambda name: shares[name])
    if shares[engine] < 0.5:
        idle = 1 - shares[engine]
        return Bound(
            "host",
            f"In {what} the card mostly waits: its busiest engine ({engine}) is idle"
            f" {100 * idle:.0f} % of the modelled time, between submissions by the host.",
            {**shares, **inside},
        )
    if engine != "compute":
        return Bound(
            engine,
            f"{what[0].upper()}{what[1:]} is bound by the engine {engine}, busy"
            f" {100 * shares[engine]:.0f} % of the modelled time.",
            {**shares, **inside},
        )
    server = max(inside, key=lambda name: inside[name], default="LPDDR5")
    busy = 100 * inside.get(server, 0.0)
    return Bound(
        server,
        f"In {what} the card computes {100 * shares['compute']:.0f} % of the modelled time, and"
        f" its kernels are bound by {server}, busy {busy:.0f} % of theirs.",
        {**shares, **inside},
    )


def _covered(rows: Sequence[TimelineEntry], start: int, end: int) -> int:
    """Time of a window in which at least one of the steps runs; `rows` by start."""
    total, reached = 0, start
    for row in rows:
        begin, until = max(row.start_ns, reached), min(row.end_ns, end)
        if until > begin:
            total += until - begin
            reached = until
    return total


def _call(rows: Sequence[TimelineEntry], joined: Joined, card: CardSpec) -> Picture | None:
    """The last call of the region that takes longest; without one, the last compute steps."""
    if joined.calls:
        spent: dict[str, int] = {}
        for name, steps in joined.calls:
            spent[name] = spent.get(name, 0) + sum(r.duration_ns for r in steps)
        most = max(spent, key=lambda name: spent[name])
        call = [steps for name, steps in joined.calls if name == most][-1]
        title = f"The last call of {most}"
    else:
        call = [r for r in rows if r.engine == "compute"][-EAGER_STEPS:]
        title = f"The last {len(call)} steps of the compute engine"
    if not call:
        return None
    window = (min(r.start_ns for r in call), max(r.end_ns for r in call))
    return picture(title, rows, joined.of, card, (), window)


# --- memory


def _memory(run: Run) -> MemoryData | None:
    from openspyre import _C

    if not run.stats:
        return None
    return MemoryData(
        [sample.at_ns for sample in run.memory],
        [sample.allocated for sample in run.memory],
        [sample.reserved for sample in run.memory],
        [_region(segment, run) for segment in run.snapshot],
        dict(run.stats),
        int(_C.memory_info(run.device)["total"]),
    )


_STATES = {"active_allocated": "tensor", "active_pending_free": "pending", "inactive": "free"}


def _region(segment: dict[str, Any], run: Run) -> RegionRow:
    base, size = int(segment["address"]), int(segment["total_size"])
    thin = size / BLOCKS if len(segment["blocks"]) > BLOCKS else 0
    blocks: list[Block] = []
    for block in segment["blocks"]:
        state = _STATES.get(block["state"], "free")
        if state == "tensor" and segment["memory_type"] != "tensor":
            state = "program"
        made = Block(
            int(block["address"]) - base,
            int(block["size"]),
            state,
            1,
            run.names.get(int(block["address"]), "") or _allocated_at(block["frames"]),
        )
        before = blocks[-1] if blocks else None
        if before is not None and before.state == state and before.bytes + made.bytes <= thin:
            blocks[-1] = Block(
                before.offset, before.bytes + made.bytes, state, before.blocks + 1, before.name
            )
        else:
            blocks.append(made)
    return RegionRow(
        int(segment.get("region", base // SEGMENT_BYTES - 1)),
        str(segment["memory_type"]),
        size,
        int(segment["allocated_size"]),
        blocks,
    )


def _allocated_at(frames: Sequence[dict[str, Any]]) -> str:
    """The innermost line outside of torch and this package, where stacks were recorded."""
    for frame in frames:
        if "/torch/" not in frame["filename"] and "/openspyre/" not in frame["filename"]:
            return f"{frame['filename']}:{frame['line']} {frame['name']}"
    return ""
