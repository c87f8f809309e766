"""The drawings of a report: plotly figures from its data, without colours of background and text.

Those come with the page's light or dark theme (report_page.html). Needs plotly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from openspyre.observe.report_data import (
    KernelRow,
    MemoryData,
    Picture,
    ReportData,
    Segment,
)

COLOURS = {
    "LPDDR5": "#e0813d",
    "PT": "#3f86d0",
    "SFU": "#2fa37a",
    "LX": "#b07cc6",
    "ring": "#c2a12a",
    "": "#8d939c",
    "host_compute": "#8d939c",
    "h2d": "#d1568c",
    "compute": "#3f86d0",
    "d2h": "#7a6ff0",
    "tensor": "#3f86d0",
    "program": "#2fa37a",
    "pending": "#e0813d",
    "free": "#8d939c55",
}
"""By server, engine or state of a block; readable on light and on dark."""
ENGINE_LABELS = {
    "host_compute": "host compute",
    "h2d": "H2D",
    "compute": "compute",
    "d2h": "D2H",
}
LAYERS = 40
"""Layers in the bar chart; the table has all."""
_CHARACTERS = 34


def figures(data: ReportData) -> dict[str, go.Figure]:
    """The figures by the id of their place in the page; what there is nothing to draw of is left
    out."""
    made: dict[str, go.Figure] = {}
    if data.layers:
        made["layers"] = layers(data)
    if data.run is not None:
        made["run"] = timeline(data.run, data.card["lx_bytes"], by_bound=False)
    if data.call is not None:
        made["call"] = timeline(data.call, data.card["lx_bytes"], by_bound=True)
    if any(k.intensity for k in data.kernels):
        made["roofline"] = roofline(data)
    if data.memory is not None and data.memory.regions:
        made["regions"] = regions(data.memory)
    if data.memory is not None and data.memory.at_ns:
        made["memory"] = memory(data.memory)
    if data.formats:
        made["formats"] = formats(data)
    return made


def unit_of(span_ns: float) -> tuple[str, float]:
    """A unit for a span of time and how many ns it has."""
    for name, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if span_ns >= 2 * size:
            return name, size
    return "ns", 1.0


def bytes_unit(size: float) -> tuple[str, float]:
    for name, unit in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= 2 * unit:
            return name, float(unit)
    return "B", 1.0


def _layout(figure: go.Figure, height: int, **more: Any) -> go.Figure:
    figure.update_layout(
        height=height,
        margin={"l": 8, "r": 8, "t": 26, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0},
        hoverlabel={"align": "left"},
        barmode="overlay",
        template="none",
        **more,
    )
    figure.update_xaxes(automargin=True)
    figure.update_yaxes(automargin=True)
    return figure


# --- time


def timeline(picture: Picture, lx_bytes: int, by_bound: bool) -> go.Figure:
    """Lanes, busy cores and LX over one axis of time. `by_bound`: steps of the compute engine have
    the colour of what bounds them; else all have their engine's."""
    unit, size = unit_of(picture.end_ns - picture.start_ns)
    heights = [max(70, 24 * len(picture.lanes) + 14), 170, 170, 90]
    figure = make_subplots(
        rows=4,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.055,
        row_heights=heights,
        subplot_titles=(
            "",
            "Cores × time: PT and SFU",
            "Cores × time: transfers",
            "LX in use",
        ),
    )
    _draw_lanes(figure, picture, size, by_bound)
    start, step = picture.start_ns, (picture.end_ns - picture.start_ns) / len(picture.work[0])
    middle = [(edge - start + step / 2) / size for edge in picture.edges_ns[:-1]]
    for row, values, name in ((2, picture.work, "work"), (3, picture.data, "data")):
        figure.add_trace(
            go.Heatmap(
                x=[round(x, 5) for x in middle],
                y=list(range(len(values))),
                z=values,
                zmin=0,
                zmax=100,
                meta={"scale": name},
                showscale=False,
                hovertemplate=f"core %{{y}}, %{{x:.4~g}} {unit}: %{{z}} % busy<extra></extra>",
            ),
            row=row,
            col=1,
        )
        figure.update_yaxes(
            title_text="core", autorange="reversed", tickvals=[0, 8, 16, 24, 31], row=row, col=1
        )
    kib = 1024
    for name, series, dash in (
        ("LX of the fullest core", picture.lx_peak, "solid"),
        ("LX, average of the cores", picture.lx_mean, "dot"),
    ):
        figure.add_trace(
            go.Scatter(
                x=[round(x, 5) for x in middle],
                y=[round(value / kib, 2) for value in series],
                name=name,
                mode="lines",
                line={"shape": "hvh", "width": 1.4, "dash": dash, "color": COLOURS["LX"]},
                showlegend=False,
                hovertemplate=f"{name}: %{{y:,.0f}} KiB<extra></extra>",
            ),
            row=4,
            col=1,
        )
    top = max([*picture.lx_peak, 1]) / kib
    figure.update_yaxes(title_text="KiB", range=[0, min(1.1 * top, lx_bytes / kib)], row=4, col=1)
    figure.update_xaxes(title_text=f"{unit} (modelled)", row=4, col=1)
    figure.update_xaxes(range=[0, (picture.end_ns - start) / size])
    for number, (name, begin, end) in enumerate(picture.phases):
        figure.add_vrect(
            x0=max(0.0, (begin - start) / size), x1=(end - start) / size, line_width=0,
            fillcolor="#8d939c", opacity=0.10 if number % 2 else 0.18, layer="below",
            row=1, col=1,
        )  # fmt: skip
        figure.add_annotation(
            x=max(0.0, (begin - start) / size), y=1, xref="x", yref="y domain", text=name,
            name=f"{(end - begin) / (picture.end_ns - start):.4f}",
            showarrow=False, xanchor="left", yanchor="bottom",
        )  # fmt: skip
    _layout(figure, sum(heights) + 150, bargap=0.25)
    figure.update_layout(margin={"l": 8, "r": 8, "t": 56, "b": 8})
    figure.update_layout(legend={"y": 1.0, "yref": "container", "yanchor": "top"})
    for title in figure.layout.annotations:
        title.update(font_size=12)
        if title.yref == "paper":  # of a row: above its left edge
            title.update(x=0, xanchor="left")
    return figure


def _draw_lanes(figure: go.Figure, picture: Picture, size: float, by_bound: bool) -> None:
    groups: dict[str, list[tuple[str, Segment]]] = {}
    labels = []
    for lane in picture.lanes:
        label = f"stream {lane.stream} · {ENGINE_LABELS.get(lane.engine, lane.engine)}"
        labels.append(label)
        for segment in lane.segments:
            key = segment.bound if by_bound and lane.engine == "compute" else lane.engine
            groups.setdefault(key, []).append((label, segment))
    for key, bars in groups.items():
        name = ENGINE_LABELS.get(key, f"bound by {key}" if key else "copy, or program not known")
        figure.add_trace(
            go.Bar(
                orientation="h",
                y=[label for label, _ in bars],
                base=[round((s.start_ns - picture.start_ns) / size, 5) for _, s in bars],
                x=[round((s.end_ns - s.start_ns) / size, 6) for _, s in bars],
                name=name,
                marker={"color": COLOURS.get(key, COLOURS[""]), "line": {"width": 0}},
                customdata=[
                    (s.name[:60], f" and {s.steps - 1:,} more steps" if s.steps > 1 else "",
                     round(s.busy_ns / 1000, 3)) for _, s in bars
                ],
                hovertemplate="%{customdata[0]}%{customdata[1]}<br>%{customdata[2]:,.2f} µs busy"
                " (modelled)<extra></extra>",
            ),
            row=1,
            col=1,
        )  # fmt: skip
    figure.update_yaxes(categoryorder="array", categoryarray=labels[::-1], row=1, col=1)


# --- layers and kernels


def _bound(name: str) -> str:
    return f"bound by {name}" if name else "not known"


def _short(text: str) -> str:
    return text if len(text) <= _CHARACTERS else "…" + text[-_CHARACTERS + 1 :]


def layers(data: ReportData) -> go.Figure:
    """Time of each layer, by what bounds its kernels."""
    shown = sorted(data.layers, key=lambda layer: -layer.total_ns)[:LAYERS]
    kept = [layer for layer in data.layers if layer in shown]  # in the order of execution
    unit, size = unit_of(max(layer.total_ns for layer in kept))
    labels = [_short(layer.name) for layer in kept]
    bounds: dict[str, list[float]] = {}
    for number, layer in enumerate(kept):
        for index in layer.kernels:
            kernel = data.kernels[index]
            row = bounds.setdefault(kernel.bound_by, [0.0] * len(kept))
            row[number] += kernel.total_ns / size
    figure = go.Figure()
    for name, values in bounds.items():
        figure.add_trace(
            go.Bar(
                orientation="h",
                y=list(range(len(kept))),
                x=[round(value, 5) for value in values],
                name=_bound(name),
                marker={"color": COLOURS.get(name, COLOURS[""])},
                customdata=[layer.name for layer in kept],
                hovertemplate=f"%{{customdata}}: %{{x:,.4~g}} {unit} (modelled)<extra>bound by"
                f" {name}</extra>",
            )
        )
    figure.update_yaxes(
        tickvals=list(range(len(kept))), ticktext=labels, autorange="reversed", tickfont_size=11
    )
    figure.update_xaxes(title_text=f"{unit} in the run (modelled)")
    _layout(figure, 110 + 19 * len(kept))
    figure.update_layout(barmode="stack", bargap=0.2)
    return figure


def roofline(data: ReportData) -> go.Figure:
    """Operations per second over operations per byte of LPDDR5, with the card's ceilings."""
    figure = go.Figure()
    points: dict[tuple[str, str, float, float], list[KernelRow]] = {}
    for kernel in data.kernels:
        if kernel.intensity and kernel.rate:
            key = (kernel.name, kernel.bound_by, kernel.intensity, kernel.rate)
            points.setdefault(key, []).append(kernel)
    low = min(key[2] for key in points) / 3
    high = max(max(key[2] for key in points) * 3, 2000.0)
    rate = data.card["dram_bytes_per_s"]
    ceilings = [
        *((f"PT, {name}", peak) for name, peak in data.card["peak_flops"].items()),
        ("SFU, lane operations", data.card["sfu_ops"]),
    ]
    for name, peak in ceilings:
        ridge = peak / rate
        figure.add_trace(
            go.Scatter(
                x=[min(low, ridge), ridge, max(high, ridge)],
                y=[min(low, ridge) * rate, peak, peak],
                mode="lines",
                line={"width": 1.3, "dash": "solid" if name == "PT, 16 bit" else "dot"},
                meta={"line": "ceiling"},
                showlegend=False,
                hovertemplate=f"{name}: at most {peak / 1e12:.1f} T/s; LPDDR5"
                f" {rate / 1e9:.0f} GB/s (modelled)<extra></extra>",
            )
        )
        figure.add_annotation(
            x=1, xref="paper", xanchor="right", y=math.log10(peak), yanchor="bottom",
            text=f"{name}: {peak / 1e12:.1f} T/s", showarrow=False, font={"size": 11},
        )  # fmt: skip
    for bound in dict.fromkeys(key[1] for key in points):
        mine = {key: members for key, members in points.items() if key[1] == bound}
        shares = [sum(k.share for k in members) for members in mine.values()]
        figure.add_trace(
            go.Scatter(
                x=[round(key[2], 5) for key in mine],
                y=[round(key[3]) for key in mine],
                mode="markers",
                name=f"bound by {bound}",
                marker={
                    "size": [round(7 + 26 * share**0.5, 1) for share in shares],
                    "color": COLOURS.get(bound, COLOURS[""]),
                    "opacity": 0.75,
                    "line": {"width": 0.7, "color": "#ffffff88"},
                },
                customdata=[
                    (
                        members[0].name[:60],
                        len(members),
                        sum(k.launches for k in members),
                        round(100 * share, 2),
                        "multiplies and adds" if members[0].macs else "lane operations",
                    )
                    for members, share in zip(mine.values(), shares, strict=True)
                ],
                hovertemplate="%{customdata[0]}: %{customdata[1]} kernels, %{customdata[2]:,}"
                " launches, %{customdata[3]} % of the time<br>%{y:.4~s} %{customdata[4]}/s,"
                " %{x:,.4~g} an LPDDR5 byte (modelled)<extra></extra>",
            )
        )
    figure.update_xaxes(type="log", title_text="operations per byte of LPDDR5", dtick=1)
    figure.update_yaxes(type="log", title_text="operations/s (modelled)", dtick=1, tickformat="~s")
    return _layout(figure, 440)


# --- memory


def regions(memory: MemoryData) -> go.Figure:
    """Regions and the blocks in them."""
    unit, size = bytes_unit(max(region.bytes for region in memory.regions))
    figure = go.Figure()
    labels = [f"region {r.number} · {r.type.replace('_', ' ')}" for r in memory.regions]
    for state in ("tensor", "program", "pending", "free"):
        found = [
            (label, block)
            for label, region in zip(labels, memory.regions, strict=True)
            for block in region.blocks
            if block.state == state
        ]
        if not found:
            continue
        names = {
            "tensor": "live tensor",
            "program": "program",
            "pending": "freed, still used",
            "free": "free",
        }
        figure.add_trace(
            go.Bar(
                orientation="h",
                y=[label for label, _ in found],
                base=[round(block.offset / size, 6) for _, block in found],
                x=[round(block.bytes / size, 6) for _, block in found],
                name=names[state],
                marker={
                    "color": COLOURS[state],
                    "line": {"width": 0.4 if len(found) < 2000 else 0, "color": "#ffffff66"},
                },
                customdata=[
                    (
                        block.name[-70:] or names[state],
                        f" and {block.blocks - 1:,} more" if block.blocks > 1 else "",
                        block.bytes,
                    )
                    for _, block in found
                ],
                hovertemplate="%{customdata[0]}%{customdata[1]}<br>%{customdata[2]:,} bytes at"
                f" %{{base:.5~g}} {unit}<extra></extra>",
            )
        )
    figure.update_yaxes(categoryorder="array", categoryarray=labels[::-1])
    most = max(region.bytes for region in memory.regions) / size
    figure.update_xaxes(title_text=f"{unit} in the region", range=[0, 1.005 * most])
    return _layout(figure, 110 + 34 * len(labels), bargap=0.3)


def memory(memory: MemoryData) -> go.Figure:
    """Tensor memory over time."""
    unit, size = bytes_unit(max([*memory.reserved, *memory.allocated, 1]))
    times, scale = unit_of(max(memory.at_ns) - min(memory.at_ns) or 1)
    first = min(memory.at_ns)
    figure = go.Figure()
    for name, values, colour, fill in (
        ("regions", memory.reserved, COLOURS["free"][:7], None),
        ("live tensors", memory.allocated, COLOURS["tensor"], "tozeroy"),
    ):
        figure.add_trace(
            go.Scatter(
                x=[round((at - first) / scale, 4) for at in memory.at_ns],
                y=[round(value / size, 4) for value in values],
                name=name,
                mode="lines+markers",
                marker={"size": 4},
                line={"shape": "hv", "color": colour, "width": 1.5},
                fill=fill,
                hovertemplate=f"{name}: %{{y:,.4~g}} {unit}<extra></extra>",
            )
        )
    figure.update_xaxes(title_text=f"{times} of host time (modelled)")
    figure.update_yaxes(title_text=unit, rangemode="tozero")
    return _layout(figure, 230)


# --- formats


def formats(data: ReportData) -> go.Figure:
    """Format errors of each layer."""
    figure = go.Figure()
    names = [_short(layer.name) for layer in data.formats]
    mode = data.numerics["mode"]
    series: Sequence[tuple[str, list[float], str, str]] = (
        (f"the card ({mode})", [f.card for f in data.formats], COLOURS["PT"], "circle"),
        ("one rounding, dl16", [f.dl16 for f in data.formats], COLOURS["LPDDR5"], "line-ew-open"),
        ("one rounding, ieee", [f.ieee for f in data.formats], COLOURS["SFU"], "line-ew-open"),
    )
    for name, values, colour, symbol in series:
        figure.add_trace(
            go.Scatter(
                x=list(range(len(names))),
                y=[value or None for value in values],
                name=name,
                mode="markers",
                marker={
                    "symbol": symbol,
                    "size": 9,
                    "color": colour,
                    "line": {"width": 2, "color": colour},
                },
                customdata=[(f.name, f.worst) for f in data.formats],
                hovertemplate="%{customdata[0]}: %{y:.2e}<br>worst: %{customdata[1]}"
                f"<extra>{name}</extra>",
            )
        )
    figure.update_yaxes(type="log", title_text="greatest error, relative", exponentformat="power")
    figure.update_xaxes(tickvals=list(range(len(names))), ticktext=names, tickangle=-60,
                        tickfont_size=11)  # fmt: skip
    return _layout(figure, 420)
