"""The page of a report: one HTML file with everything in it, that asks no network for anything.

The template is `report_page.html` beside this file; the drawing library and the figures go into it
as they are. Needs plotly and jinja2.
"""

from __future__ import annotations

import base64
import functools
import gzip
from pathlib import Path
from typing import Any

import jinja2
import plotly
import plotly.io
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from openspyre.observe.report_data import ReportData
from openspyre.observe.report_figures import ENGINE_LABELS, figures

KERNELS = 120
"""Kernels that the table of one layer lists; the data in the page has all."""
ROWS = 25
"""Rows of the table of format errors."""


def page(data: ReportData) -> str:
    """The whole page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "time": time_text,
        "size": size_text,
        "rate": rate_text,
        "percent": percent_text,
        "source": source_text,
        "many": many_text,
        "count": count_text,
    }
    drawn = figures(data)
    texts = {name: plotly.io.to_json(figure, validate=False) for name, figure in drawn.items()}
    whole = ", ".join(f'"{name}": {text}' for name, text in texts.items())
    return environment.get_template("report_page.html").render(
        data=data,
        drawn=set(drawn),
        heights={name: figure.layout.height for name, figure in drawn.items()},
        figures=_in_script("{" + whole + "}"),
        json=_in_script(data.to_json()),
        plotly=_library(),
        plotly_version=plotly.__version__,
        engines=ENGINE_LABELS,
        layers=sorted(data.layers, key=lambda layer: -layer.total_ns),
        per_layer=KERNELS,
        format_rows=sorted(data.format_rows, key=lambda row: -row.card)[:ROWS],
    )


@functools.cache
def _library() -> str:
    """plotly.js, packed: most of the page, were it not for that."""
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 6, mtime=0)).decode()


def _in_script(text: str) -> Markup:
    """JSON that may stand inside a script element: no `<` of it can end that or open a comment."""
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028"))


def time_text(ns: float) -> str:
    """1234567 -> "1.23 ms"."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= size:
            return f"{_three(ns / size)} {unit}"
    return f"{ns:.0f} ns"


def size_text(count: float) -> str:
    """1234567 -> "1.23 MB": powers of 1000, as transfers are told."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= size:
            return f"{_three(count / size)} {unit}"
    return f"{count:.0f} B"


def rate_text(value: float | None) -> str:
    return "–" if value is None else f"{_three(value)}/s"


def percent_text(share: float) -> str:
    return f"{100 * share:.1f} %" if 0 < abs(share) < 0.0995 else f"{100 * share:.0f} %"


def many_text(count: int, what: str) -> str:
    """ "1 call", "2,000 calls"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def count_text(count: float) -> str:
    """1234567 -> "1.23 M"."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if abs(count) >= size:
            return f"{_three(count / size)} {unit}"
    return f"{count:,.0f}"


def _three(value: float) -> str:
    """Three digits that count."""
    size = abs(value)
    if size >= 100 or size == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.3g}"


def source_text(source: str) -> dict[str, Any]:
    """A user's line as torch writes it (`File "a/b.py", line 7, in forward | x = y`), in parts:
    `place` (b.py:7), `code`, and all of it as `whole`."""
    where, _, code = source.partition(" | ")
    place = where
    if where.startswith('File "'):
        file, _, rest = where.removeprefix('File "').partition('"')
        line = rest.removeprefix(", line ").partition(",")[0]
        place = f"{file.rpartition('/')[2]}:{line}"
    return {"place": place, "code": code, "whole": source}
