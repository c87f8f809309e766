"""A trace of the modelled card alone, on its virtual clock, as Chrome JSON that Perfetto opens.

    with torch.spyre.trace("card.json"):
        model(x)

Rows: the host's submissions, every stream, every engine, and, for the programs that the compiler
knows, the units of each core; counters: LPDDR5 and the ring. All times are modelled, none is a
measurement; `torch.profiler` shows the wall clock. Imports torch only inside of `trace`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openspyre.card import CardSpec
from openspyre.observe.recorded import Event, Recording, recorded
from openspyre.program.concrete import Instance
from openspyre.program.model import UNITS, Program, Unit
from openspyre.timing import Span, Timeline, time_program
from openspyre.timing.classes import core_classes

STREAMS, ENGINES, CORES = 1, 2, 3
PROCESSES = 10
"""A device's process ids are PROCESSES * device + one of the three above."""
ENGINE_ROWS = ("HostCompute", "H2D", "Compute", "D2H")
HOST_ROW = 0
SLICES = 32
"""A unit of a core that has more tasks in one program than this is drawn as so many pieces of the
program's time, each as long as the unit is busy in it."""
MOST_EVENTS = 300_000
"""Programs are drawn without their units once the trace has so many events."""


@dataclass
class Trace:
    """`json`: the Chrome trace. `kernels`: programs that ran; `detailed`: those of them that are
    drawn with their cores."""

    json: dict[str, Any]
    kernels: int
    detailed: int


class _Units:
    """What the units of one program do, in ns from its start. For each core and lane: slices
    (begin, end, name, bytes). `traffic`: pieces (begin, end, LPDDR5 bytes, ring bytes)."""

    def __init__(self, program: Program, symbols: dict[str, int], card: CardSpec) -> None:
        timeline = time_program(program, symbols, card)
        self.duration_ns = timeline.duration_ns
        self.cores: list[tuple[tuple[int, ...], Unit, int, list[_Slice]]] = []
        groups = {g.leader: tuple(g.cores) for g in core_classes(Instance(program, symbols))}
        for leader, cores in groups.items():
            for unit in UNITS:
                spans = [s for s in timeline.spans if s.core == leader and s.unit is unit]
                for lane, slices in enumerate(_lanes(_slices(spans, self.duration_ns))):
                    self.cores.append((cores, unit, lane, slices))
        self.traffic = _traffic(timeline, groups)


_Slice = tuple[float, float, str, int]


def _occurrences(span: Span) -> Iterator[_Slice]:
    for number in range(max(span.repeats, 1)):
        shift = span.period_ns * number
        yield span.start_ns + shift, span.end_ns + shift, span.name, span.nbytes


def _slices(spans: Sequence[Span], whole: float) -> list[_Slice]:
    """The tasks of a unit, or where they are too many its busy share in equal pieces."""
    if sum(max(s.repeats, 1) for s in spans) <= SLICES:
        return sorted(one for span in spans for one in _occurrences(span))
    pieces = _spread(spans, whole)
    return [
        (begin, begin + busy, f"{spans[0].unit.value} busy", round(nbytes))
        for begin, _, busy, nbytes in pieces
        if busy > 0
    ]


def _spread(spans: Iterable[Span], whole: float) -> list[tuple[float, float, float, float]]:
    """Pieces (begin, end, busy ns, bytes) of a program's time. A unit is busy at most all of a
    piece, however many of its tasks are under way."""
    width = whole / SLICES
    busy, moved = [0.0] * SLICES, [0.0] * SLICES
    for span in spans:
        length = span.end_ns - span.start_ns
        # Of a steady state every occurrence counts as its share of the stretch it repeats over.
        reach = max(span.period_ns * span.repeats, length) if span.repeats > 1 else length
        density = length * max(span.repeats, 1) / reach if reach else 0.0
        weight = span.nbytes * max(span.repeats, 1) / reach if reach else 0.0
        first = min(int(span.start_ns / width), SLICES - 1)
        last = min(int((span.start_ns + reach) / width), SLICES - 1)
        for n in range(first, last + 1):
            shared = min(span.start_ns + reach, (n + 1) * width) - max(span.start_ns, n * width)
            busy[n] += max(shared, 0.0) * density
            moved[n] += max(shared, 0.0) * weight
    return [(n * width, (n + 1) * width, min(busy[n], width), moved[n]) for n in range(SLICES)]


def _lanes(slices: list[_Slice]) -> list[list[_Slice]]:
    """Slices that overlap, as transfers under way together do, on rows of their own: a trace's row
    holds one thing at a time."""
    lanes: list[list[_Slice]] = []
    for one in slices:
        for lane in lanes:
            if lane[-1][1] <= one[0]:
                lane.append(one)
                break
        else:
            lanes.append([one])
    return lanes


def _traffic(
    timeline: Timeline, groups: dict[int, tuple[int, ...]]
) -> list[tuple[float, float, float, float]]:
    """Bytes in each piece of the program's time. The shape is that of the transfers; the sum is the
    model's, where a read that several cores share counts once."""
    sums = [[0.0] * SLICES, [0.0] * SLICES]
    for leader, cores in groups.items():
        for which, units in enumerate([(Unit.LOAD, Unit.STORE), (Unit.RING,)]):
            spans = [s for s in timeline.spans if s.core == leader and s.unit in units]
            if spans and timeline.duration_ns > 0:
                for n, piece in enumerate(_spread(spans, timeline.duration_ns)):
                    sums[which][n] += piece[3] * len(cores)
    memory = sum(sums[0])
    scale = (timeline.bytes_read + timeline.bytes_written) / memory if memory else 0.0
    width = timeline.duration_ns / SLICES
    return [(n * width, (n + 1) * width, sums[0][n] * scale, sums[1][n]) for n in range(SLICES)]


def card_trace(
    events: Iterable[Event],
    *,
    programs: Callable[[Event], Program | None] = lambda event: None,
    card: CardSpec | None = None,
    cores: bool = True,
    most_events: int = MOST_EVENTS,
) -> Trace:
    """Draws recorded steps. `programs`: the program of a kernel, or None where it is not known.

    Steps without virtual times (submitted behind an event that never fired) are left out.
    """
    spec = CardSpec() if card is None else card
    out: list[dict[str, Any]] = []
    rows: dict[tuple[int, int], str] = {}
    known: dict[int, _Units | None] = {}
    kernels = detailed = 0
    timed = sorted((e for e in events if e.virtual_begin_ns >= 0), key=lambda e: e.virtual_begin_ns)
    # Submissions follow one another on the one modelled host, but a wait may have moved its clock.
    submitted = -1.0
    for event in sorted(timed, key=lambda e: (e.virtual_submit_ns, e.correlation)):
        begin = max(event.virtual_submit_ns - spec.host_submit_ns, submitted)
        submitted = float(event.virtual_submit_ns)
        pid = PROCESSES * event.device + STREAMS
        rows[pid, HOST_ROW] = "host (modelled submissions)"
        out.append(_slice(pid, HOST_ROW, f"submit {event.name}", "host", begin, submitted))
        out.append(_flow("s", pid, HOST_ROW, event.correlation, begin))
    for event in timed:
        streams, engines = (PROCESSES * event.device + n for n in (STREAMS, ENGINES))
        stream_row = event.stream + 1
        engine_row = ENGINE_ROWS.index(event.engine) + 1
        rows[streams, stream_row] = f"stream {event.stream}"
        rows[engines, engine_row] = event.engine
        args = _arguments(event)
        begin, end = float(event.virtual_begin_ns), float(event.virtual_end_ns)
        out.append(_slice(streams, stream_row, event.name, event.kind, begin, end, args))
        out.append(_flow("f", streams, stream_row, event.correlation, begin))
        out.append(_slice(engines, engine_row, event.name, event.kind, begin, end, args))
        if event.kind != "kernel":
            continue
        kernels += 1
        if not cores or len(out) >= most_events:
            continue
        units = _units(programs(event), event, spec, known)
        if units is not None:
            detailed += 1
            _draw_units(out, rows, event, units)
    named = [_meta("process_name", pid, 0, text) for pid, text in _processes(rows)]
    named += [_meta("thread_name", pid, tid, text) for (pid, tid), text in sorted(rows.items())]
    named += [_meta("thread_sort_index", pid, tid, tid) for pid, tid in sorted(rows)]
    return Trace(
        {
            "traceEvents": named + out,
            "displayTimeUnit": "ns",
            "deviceProperties": [],  # by which acelyzer knows the shape of torch.profiler
            "otherData": {
                "clock": "virtual, modelled: not a measurement",
                "card": spec.name,
                "kernels": kernels,
                "kernels with cores": detailed,
            },
        },
        kernels,
        detailed,
    )


def _arguments(event: Event) -> dict[str, Any]:
    args: dict[str, Any] = {
        "correlation": event.correlation,
        "stream": event.stream,
        "engine": event.engine,
        "bytes": event.bytes,
        "status": event.status,
    }
    if event.sources:
        args["source operations"] = ", ".join(event.sources)
    if event.ran:
        args["wall us (software card)"] = event.duration_ns / 1000
    return args


def _units(
    program: Program | None, event: Event, card: CardSpec, known: dict[int, _Units | None]
) -> _Units | None:
    """The units of a program, if its modelled duration is the step's."""
    from openspyre.observe.explain import some_symbols

    if program is None:
        return None
    if id(program) not in known:
        try:
            known[id(program)] = _Units(program, some_symbols(program, {}), card)
        except ValueError:  # the model's gap; the virtual clock has warned of it
            known[id(program)] = None
    units = known[id(program)]
    # Of a program with sizes of its own at each launch, the sizes are not known here.
    if units is None or abs(units.duration_ns - event.virtual_duration_ns) > 1:
        return None
    return units


def _draw_units(
    out: list[dict[str, Any]], rows: dict[tuple[int, int], str], event: Event, units: _Units
) -> None:
    pid = PROCESSES * event.device + CORES
    start = event.virtual_begin_ns
    for cores, unit, lane, slices in units.cores:
        for core in cores:
            # Two lanes show what is under way together; a third one would hide the cores.
            tid = (core * len(UNITS) + UNITS.index(unit)) * 2 + min(lane, 1)
            if lane > 1:
                continue
            rows[pid, tid] = f"core {core:02d} {unit.value}" + (" (second)" if lane else "")
            for begin, end, name, nbytes in slices:
                args = {"bytes": nbytes, "program": event.name}
                out.append(_slice(pid, tid, name, unit.value, start + begin, start + end, args))
    for begin, end, memory, ring in units.traffic:
        if end > begin:
            rates = {"LPDDR5": memory / (end - begin), "ring": ring / (end - begin)}
            out.extend(_counter(pid, name, start + begin, rate) for name, rate in rates.items())
    for name in ("LPDDR5", "ring"):
        out.append(_counter(pid, name, start + units.duration_ns, 0.0))


# --- Chrome's events; times in microseconds there


def _slice(
    pid: int,
    tid: int,
    name: str,
    category: str,
    begin: float,
    end: float,
    args: dict[str, Any] | None = None,
) -> dict[str, Any]:
    event = {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": pid,
        "tid": tid,
        "ts": begin / 1000,
        "dur": (end - begin) / 1000,
    }
    if args:
        event["args"] = args
    return event


def _flow(phase: str, pid: int, tid: int, number: int, at: float) -> dict[str, Any]:
    event = {
        "ph": phase,
        "name": "launch",
        "cat": "launch",
        "id": number,
        "pid": pid,
        "tid": tid,
        "ts": at / 1000,
    }
    if phase == "f":
        event["bp"] = "e"
    return event


def _counter(pid: int, name: str, at: float, rate: float) -> dict[str, Any]:
    return {
        "ph": "C",
        "name": f"{name} GB/s",
        "pid": pid,
        "tid": 0,
        "ts": at / 1000,
        "args": {"GB/s": rate},
    }


def _meta(what: str, pid: int, tid: int, value: str | int) -> dict[str, Any]:
    key = "sort_index" if what.endswith("sort_index") else "name"
    # Of no use, but acelyzer wants a time in every event.
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": {key: value}}


def _processes(rows: Iterable[tuple[int, int]]) -> list[tuple[int, str]]:
    names = {STREAMS: "streams", ENGINES: "engines", CORES: "cores"}
    return [
        (pid, f"spyre {pid // PROCESSES} {names[pid % PROCESSES]} (modelled)")
        for pid in sorted({pid for pid, _ in rows})
    ]


# --- torch.spyre.trace


@contextmanager
def trace(path: str | Path, *, cores: bool = True) -> Iterator[Recording]:
    """Writes what the devices do inside the block, on their virtual clocks, to the file `path`.

    `cores`: with the units of the cores of every program that the compiler keeps. The file appears
    when the block ends, also by an exception; it is written beside and moved, so that no half of it
    is ever seen. Yields the recording (openspyre/observe/recorded.py). OSError where `path` cannot
    be written, before the block begins.
    """
    target = Path(path)
    partial = target.with_name(f"{target.name}.part")
    partial.touch()
    recording: Recording | None = None
    try:
        with recorded() as recording:
            yield recording
    finally:
        try:
            if recording is not None:
                from openspyre.device.registration import configuration

                made = card_trace(
                    recording.events,
                    programs=known_programs(),
                    card=configuration().card,
                    cores=cores,
                )
                partial.write_text(json.dumps(made.json))
                partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


def known_programs() -> Callable[[Event], Program | None]:
    """Finds the program of a kernel among those that the compiler keeps, by its name and its
    modelled duration."""
    from openspyre.compiler.launch import held
    from openspyre.device.registration import configuration
    from openspyre.observe.report_programs import Profiles
    from openspyre.runtime.plan import MAX_NAME

    by_name: dict[str, list[Program]] = {}
    for region in held():
        for program in region.region.programs:
            by_name.setdefault(program.name[-MAX_NAME:], []).append(program)
    profiles = Profiles(configuration().card)
    found: dict[tuple[str, int], Program | None] = {}

    def find(event: Event) -> Program | None:
        key = (event.name, event.virtual_duration_ns)
        if key not in found:
            candidates = by_name.get(event.name, [])
            exact = (p for p in candidates if profiles.duration_ns(p) == key[1])
            found[key] = next(exact, None)
        return found[key]

    return find
