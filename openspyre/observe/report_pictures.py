"""A piece of virtual time as lanes, busy cores and LX in use. Works on joined steps only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from openspyre.card import CardSpec
from openspyre.device.synthetic import TimelineEntry
from openspyre.observe.report_data import Lane, Picture, Segment
from openspyre.observe.report_programs import CELLS
from openspyre.observe.report_steps import Ran

Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

BINS = 360
"""Columns of the heat maps."""
BARS = 1200
"""Steps of a lane that are drawn one by one; with more, those that would be thinner than one
BARS-th of the picture are put together."""
ORDER = ("host_compute", "h2d", "compute", "d2h")


def picture(
    title: str,
    rows: Sequence[TimelineEntry],
    of: Mapping[int, Ran],
    card: CardSpec,
    phases: Sequence[tuple[str, int, int]] = (),
    window: tuple[int, int] | None = None,
) -> Picture | None:
    """The steps that lie in `window` (default: from the first step to the last), None without any.
    Times in the result are absolute virtual ns."""
    if window is not None:
        rows = [r for r in rows if r.end_ns > window[0] and r.start_ns < window[1]]
    if not rows:
        return None
    start, end = window or (min(r.start_ns for r in rows), max(r.end_ns for r in rows))
    end = max(end, start + 1)
    edges = np.linspace(start, end, BINS + 1)
    work, data = np.zeros((card.cores, BINS)), np.zeros((card.cores, BINS))
    peak, mean = np.zeros(BINS), np.zeros(BINS)
    known = total = 0
    for row in rows:
        if row.engine != "compute":
            continue
        total += row.duration_ns
        ran = of.get(row.correlation)
        profile = ran.profile if ran is not None else None
        if profile is None or row.duration_ns <= 0:
            continue
        known += row.duration_ns
        first = max(0, int(np.searchsorted(edges, row.start_ns, "right")) - 1)
        last = min(BINS - 1, max(first, int(np.searchsorted(edges, row.end_ns, "left")) - 1))
        if first == last:  # most steps of a long run
            peak[first] = max(peak[first], profile.facts.lx_bytes)
            held = profile.facts.lx_bytes * profile.facts.cores / card.cores
            mean[first] += held * row.duration_ns
            work[:, first] += profile.work[:, -1] * row.duration_ns
            data[:, first] += profile.data[:, -1] * row.duration_ns
            continue
        bins = slice(first, last + 1)
        lx, cores = profile.facts.lx_bytes, profile.facts.cores
        np.maximum(peak[bins], lx, out=peak[bins])
        cut = np.clip(edges[first : last + 2], row.start_ns, row.end_ns)
        mean[bins] += np.diff(cut) * (lx * cores / card.cores)
        for busy, into in ((profile.work, work), (profile.data, data)):
            into[:, bins] += np.diff(_at(busy, (cut - row.start_ns) / row.duration_ns)) * (
                row.duration_ns
            )
    width = (end - start) / BINS
    return Picture(
        title,
        start,
        end,
        _lanes(rows, of, start, end),
        [round(float(edge), 1) for edge in edges],
        _percent(work / width),
        _percent(data / width),
        [int(value) for value in peak],
        [round(float(value), 1) for value in mean / width],
        known / total if total else 0.0,
        [p for p in phases if p[2] > start and p[1] < end],
    )


def _at(summed: Floats, where: Floats) -> Floats:
    """Sums up to places 0..1 of a program's time, between its cells by straight lines."""
    place = np.clip(where, 0.0, 1.0) * CELLS
    cell = np.minimum(place.astype(np.int64), CELLS - 1)
    part = place - cell
    low, high = summed[:, cell], summed[:, cell + 1]
    inside: Floats = low + (high - low) * part
    return inside


def _percent(shares: Floats) -> list[list[int]]:
    rounded = np.clip(np.rint(100 * shares), 0, 100).astype(int)
    return [[int(value) for value in core] for core in rounded]


def _lanes(
    rows: Sequence[TimelineEntry], of: Mapping[int, Ran], start: int, end: int
) -> list[Lane]:
    lanes: dict[tuple[int, str], list[TimelineEntry]] = {}
    for row in sorted(rows, key=lambda r: r.start_ns):
        lanes.setdefault((row.stream, row.engine), []).append(row)

    def order(key: tuple[int, str]) -> tuple[int, int]:
        return (ORDER.index(key[1]) if key[1] in ORDER else len(ORDER), key[0])

    return [
        Lane(
            stream,
            engine,
            len(lanes[stream, engine]),
            sum(row.duration_ns for row in lanes[stream, engine]),
            _segments(lanes[stream, engine], of, (end - start) / BARS),
        )
        for stream, engine in sorted(lanes, key=order)
    ]


def _segments(rows: Sequence[TimelineEntry], of: Mapping[int, Ran], thin: float) -> list[Segment]:
    merge = len(rows) > BARS
    groups: list[list[TimelineEntry]] = []
    for row in rows:
        if merge and groups and row.end_ns - groups[-1][0].start_ns <= thin:
            groups[-1].append(row)
        else:
            groups.append([row])
    made = []
    for group in groups:
        longest = max(group, key=lambda r: r.duration_ns)
        ran = of.get(longest.correlation)
        bound = ran.profile.facts.bound_by if ran is not None and ran.profile is not None else ""
        made.append(
            Segment(
                group[0].start_ns,
                max(r.end_ns for r in group),
                sum(r.duration_ns for r in group),
                len(group),
                longest.name,
                bound,
            )
        )
    return made
