"""`openspyre report`: one HTML page about what a script did on the card."""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from openspyre.cli.common import Failed

if TYPE_CHECKING:
    from openspyre.observe.report_data import FormatRow, ReportData

TOP = 5
"""Layers and pieces of advice that the terminal shows."""


@click.command()
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--out",
    default="report.html",
    show_default=True,
    type=click.Path(dir_okay=False),
    help="The page.",
)
@click.option("--title", default="", help="The page's title.  [default: the script's name]")
@click.option("--device", default=0, show_default=True, type=click.IntRange(0), help="Its number.")
@click.option(
    "--formats",
    is_flag=True,
    help="Run SCRIPT once more, each operation beside the CPU's, for its format errors.",
)
@click.option("--json", "as_json", is_flag=True, help="The figures as JSON on standard output.")
def report(
    script: str,
    arguments: tuple[str, ...],
    out: str,
    title: str,
    device: int,
    formats: bool,
    as_json: bool,
) -> None:
    """Run SCRIPT and write a page about it.

    The page needs no network and no server: what bounds the run, the time of layers with their
    source lines, timeline, busy cores, LX, roofline, memory, fallbacks, and what to do next. Times
    of the card are modelled, wall times are measured. Options for SCRIPT go behind `--`. If SCRIPT
    fails, the page shows what ran until then, and the exit code is 2.
    """
    import torch  # noqa: F401  loads the device

    from openspyre.observe.report import ReportError, check_target, watch, write_report

    try:
        check_target(out)
    except ReportError as error:
        raise Failed(str(error)) from error
    title = title or Path(script).name
    # Standard output belongs to the JSON.
    where = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    rows: list[FormatRow] = []
    with where:
        with watch(title, device=device) as run:
            failed = _run(script, arguments)
        if formats and not failed:
            with _watching_formats() as rows:
                failed = _run(script, arguments)
    try:
        data = write_report(
            out, run, formats=rows, notes=[f"The script ended early: {failed}"] if failed else []
        )
    except ReportError as error:
        raise Failed(str(error)) from error
    if as_json:
        click.echo(data.to_json())
    else:
        _tell(data, out)
    if failed:
        raise Failed(f"{script}: {failed}")


def _watching_formats() -> contextlib.AbstractContextManager[list[FormatRow]]:
    from openspyre.observe.report_formats import watching_formats

    return watching_formats()


def _run(script: str, arguments: tuple[str, ...]) -> str:
    """Runs the script as `python SCRIPT` would; gives what it failed with, "" if it did not."""
    with _as_main(script, arguments):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            if end.code in (None, 0):
                return ""
            return end.code if isinstance(end.code, str) else f"exit code {end.code}"
        except Exception as error:
            traceback.print_exc()
            return f"{type(error).__name__}: {error}"
    return ""


@contextlib.contextmanager
def _as_main(script: str, arguments: tuple[str, ...]) -> Iterator[None]:
    before: tuple[Any, Any] = (sys.argv, list(sys.path))
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before


def _tell(data: ReportData, out: str) -> None:
    """The summary for a terminal."""
    from openspyre.observe.report_page import many_text, percent_text, rate_text, time_text

    click.echo(
        f"{data.title}: {time_text(data.modelled_ns)} on the card (modelled),"
        f" {data.wall_seconds:.1f} s of wall time"
    )
    for speed in data.speeds:
        if speed.wall_rate is not None or speed.modelled_rate is not None:
            click.echo(
                f"  {speed.name}: {rate_text(speed.wall_rate)} {speed.unit} by the wall,"
                f" {rate_text(speed.modelled_rate)} modelled"
            )
    click.echo(f"  {data.bound.text}")
    for layer in sorted(data.layers, key=lambda one: -one.total_ns)[:TOP]:
        click.echo(
            f"  {percent_text(layer.share):>7}  {layer.name[:60]}"
            f"{', bound by ' + layer.bound_by if layer.bound_by else ''} (modelled)"
        )
    calls = sum(row.calls for row in data.fallbacks)
    if calls:
        click.echo(f"  the CPU computed {many_text(calls, 'call')} of operations that fell back")
    for one in data.advice[:TOP]:
        click.echo(f"  next: {one.title}")
    size = Path(out).stat().st_size
    click.echo(f"{out}: {size / 1e6:.1f} MB, one page; open it in a browser")
