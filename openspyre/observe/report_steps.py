"""Which program each step of a Timeline ran: the step's row joined with what was compiled.

Regions tell when they are launched; their steps follow in order. What eager operations launched is
found among the loaded programs by name and modelled duration. Needs the compiler's launch module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from openspyre.device.synthetic import TimelineEntry
from openspyre.observe.report_programs import Profile, Profiles
from openspyre.runtime.plan import MAX_NAME

if TYPE_CHECKING:
    from openspyre.compiler.compile import ProgramStep
    from openspyre.compiler.launch import LoadedRegion
    from openspyre.observe.report import Launched

ENGINE_NAMES = {"H2D": "h2d", "D2H": "d2h", "Compute": "compute", "HostCompute": "host_compute"}


@dataclass
class Ran:
    """All steps that ran one program of one region. `profile`: with the sizes of the first of them.
    `mode`: "compiled", "eager", or "other" for
    steps of the compute engine whose program is not known (copies within the card, synthetic
    work)."""

    name: str
    mode: str
    region: str
    number: int
    profile: Profile | None
    rows: list[TimelineEntry] = field(default_factory=list)

    @property
    def total_ns(self) -> int:
        return sum(row.duration_ns for row in self.rows)


@dataclass
class Joined:
    """`ran` in the order of first execution; `of`: the Ran of a compute step by its correlation;
    `calls`: for each launch of a region its name and its steps."""

    ran: list[Ran]
    of: dict[int, Ran]
    calls: list[tuple[str, list[TimelineEntry]]]


def finished(rows: Iterable[Sequence[object]]) -> list[TimelineEntry]:
    """The steps whose times are known, by start."""
    made = (TimelineEntry(*row) for row in rows)  # type: ignore[arg-type]
    known = [replace(r, engine=ENGINE_NAMES.get(r.engine, r.engine)) for r in made]
    return sorted((r for r in known if r.end_ns >= r.start_ns >= 0), key=lambda r: r.start_ns)


def join(
    rows: Sequence[TimelineEntry],
    launched: Sequence[Launched],
    loaded: Iterable[LoadedRegion],
    profiles: Profiles,
) -> Joined:
    """Joins the steps of one device. `loaded`: the regions whose programs eager operations use."""
    computes = sorted((r for r in rows if r.engine == "compute"), key=lambda r: r.correlation)
    found: dict[object, Ran] = {}
    of: dict[int, Ran] = {}
    calls: list[tuple[str, list[TimelineEntry]]] = []
    events = sorted(launched, key=lambda event: event.host_ns)
    at = 0
    for number, event in enumerate(events):
        until = events[number + 1].host_ns if number + 1 < len(events) else None
        # A step is submitted at the host's time after the cost of submitting it.
        while at < len(computes) and computes[at].submit_ns <= event.host_ns:
            at += 1
        window = at
        while window < len(computes) and (until is None or computes[window].submit_ns <= until):
            window += 1
        steps = _programs(event.plan.loaded)
        sizes: Mapping[str, int | float] = getattr(event.plan, "symbols", {})
        call: list[TimelineEntry] = []
        expected = 0
        for row in computes[at:window]:
            if expected == len(steps):
                break
            index, step = steps[expected]
            if row.name != step.program.name[-MAX_NAME:]:
                continue
            expected += 1
            key = (id(event.plan.loaded), index)
            if key not in found:
                found[key] = Ran(
                    row.name,
                    "compiled",
                    event.plan.loaded.region.graph.name,
                    index,
                    _profile(profiles, step, event.plan.lines, sizes),
                )
            found[key].rows.append(row)
            of[row.correlation] = found[key]
            call.append(row)
        if call:
            calls.append((event.plan.loaded.region.graph.name, call))
        at = window
    _rest(computes, loaded, profiles, found, of)
    ran = sorted(found.values(), key=lambda r: r.rows[0].start_ns)
    return Joined(ran, of, calls)


def _programs(loaded: LoadedRegion) -> list[tuple[int, ProgramStep]]:
    from openspyre.compiler.compile import ProgramStep

    return [(n, s) for n, s in enumerate(loaded.region.steps) if isinstance(s, ProgramStep)]


def _profile(
    profiles: Profiles,
    step: ProgramStep,
    lines: Sequence[str] = (),
    sizes: Mapping[str, int | float] | None = None,
) -> Profile | None:
    try:
        return profiles.of(step, lines, sizes)
    except ValueError:  # the model's gap: the virtual clock warned when it met the program
        return None


def _rest(
    computes: Sequence[TimelineEntry],
    loaded: Iterable[LoadedRegion],
    profiles: Profiles,
    found: dict[object, Ran],
    of: dict[int, Ran],
) -> None:
    """The steps that no region's launch explains."""
    left = [row for row in computes if row.correlation not in of]
    wanted = {row.name for row in left}
    by_name: dict[str, list[tuple[str, int, ProgramStep]]] = {}
    for one in loaded:
        for index, step in _programs(one):
            name = step.program.name[-MAX_NAME:]
            if name in wanted:
                by_name.setdefault(name, []).append((one.region.graph.name, index, step))
    for row in left:
        key = (row.name, row.duration_ns)
        if key not in found:
            candidates = by_name.get(row.name, [])
            exact = [c for c in candidates if profiles.duration_ns(c[2].program) == row.duration_ns]
            # A program whose sizes are given at launch has no duration of its own.
            free = [c for c in candidates if c[2].program.symbols]
            chosen = next(iter([*exact, *free]), None)
            if chosen is None:
                found[key] = Ran(row.name, "other", "", 0, None)
            else:
                region, index, step = chosen
                found[key] = Ran(row.name, "eager", region, index, _profile(profiles, step))
        found[key].rows.append(row)
        of[row.correlation] = found[key]
