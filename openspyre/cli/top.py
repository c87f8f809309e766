"""`openspyre top`: devices of running processes, live or once. Imports no torch."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import click

from openspyre import env
from openspyre.cli.common import Failed, no, print_json
from openspyre.observe import live, stats_page

if TYPE_CHECKING:
    from rich.table import Table


@click.command()
@click.option("--pid", type=click.IntRange(1), help="Only this process.")
@click.option(
    "--interval", default=1.0, show_default=True, type=click.FloatRange(0.1), help="Seconds."
)
@click.option("--once", is_flag=True, help="Print the table of one interval and end.")
@click.option("--json", "as_json", is_flag=True, help="One reading as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="One reading as CSV.")
@click.option("--prometheus", is_flag=True, help="One reading for a Prometheus scraper.")
def top(
    pid: int | None, interval: float, once: bool, as_json: bool, as_csv: bool, prometheus: bool
) -> None:
    """Show the devices of running processes, live.

    Memory, streams, engines and fallbacks of every process that uses spyre devices, until Ctrl-C.
    Rates are by the wall clock, busy shares by the virtual clock (modelled). Exit code 1 if the
    process of --pid is not there, 2 if there is no directory of statistics pages.
    """
    if as_json + as_csv + prometheus > 1:
        raise click.UsageError("--json, --csv and --prometheus exclude each other")
    directory: str = env.read("OPENSPYRE_STATS_DIR", os.environ)
    if not directory:
        raise Failed("OPENSPYRE_STATS_DIR is off: no process publishes its figures here")
    if not os.path.isdir(directory):
        raise Failed(f"OPENSPYRE_STATS_DIR: {directory} is no directory")

    def read() -> list[live.Row]:
        return live.rows(stats_page.live_pages(directory), pid)

    found = read()
    if pid is not None and not found:
        no(f"process {pid} has no statistics page in {directory}: it is over or uses no spyre")
    if as_json:
        print_json(live.as_dicts(found))
    elif as_csv:
        click.echo(live.as_csv(found), nl=False)
    elif prometheus:
        click.echo(live.as_prometheus(found), nl=False)
    else:
        with suppress(KeyboardInterrupt):
            _show(read, found, interval, once, directory)


def _show(
    read: Callable[[], list[live.Row]],
    before: list[live.Row],
    interval: float,
    once: bool,
    directory: str,
) -> None:
    """A table an interval: in place on a terminal, else one after the other."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    width = console.width if console.is_terminal or "COLUMNS" in os.environ else WIDE
    console = Console(width=width)
    console.on_broken_pipe = _reader_left  # type: ignore[method-assign]
    since = time.monotonic()

    def next_table() -> Table:
        nonlocal before, since
        time.sleep(interval)
        now, at = read(), time.monotonic()
        table = _table(live.with_rates(before, now, at - since), directory, width)
        before, since = now, at
        return table

    if once:
        console.print(next_table())
    elif not console.is_terminal:
        while True:
            console.print(next_table())
            console.file.flush()
    else:
        with Live(_table(before, directory, width), console=console, auto_refresh=False) as screen:
            while True:
                screen.update(next_table(), refresh=True)


def _reader_left() -> NoReturn:
    """For `common.Group`; rich itself would exit with 1, which says no here."""
    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


WIDE, MIDDLE = 180, 76
"""Columns from which the table has the engines' rates, and from which it has their busy shares."""


def _table(rows: list[live.Row], directory: str, width: int) -> Table:
    """Narrower, it has fewer columns: a number cut short would be a wrong one."""
    from rich import box
    from rich.table import Table

    processes = len({row.pid for row in rows})
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1 if width >= WIDE else 0, 0, 0),
        caption=f"{processes} process{'' if processes == 1 else 'es'} in {directory}; busy: share "
        "of the virtual time (modelled)",
    )
    names = ["process", "device", "allocated", "reserved"]
    if width >= WIDE:
        names += ["of", "streams"]
        names += [f"{engine}\nsteps/s  MB/s  busy" for engine in stats_page.ENGINES]
        names += ["CPU ops"]
    elif width >= MIDDLE:
        names += [f"{'Host' if e == 'HostCompute' else e}\nbusy" for e in stats_page.ENGINES]
        names += ["CPU ops"]
    for name in [*names, "errors"]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        device = row.device
        engines = [(row.rates or {}).get(engine) for engine in stats_page.ENGINES]
        cells = [
            str(row.pid),
            f"spyre:{device.index}",
            _size(device.allocated),
            _size(device.reserved),
        ]
        if width >= WIDE:
            cells += [_size(device.capacity), str(device.streams)]
            cells += [_rate(rate) for rate in engines]
            cells += [str(device.fallback_calls)]
        elif width >= MIDDLE:
            cells += [f"{rate[2]:.0%}" if rate else "" for rate in engines]
            cells += [str(device.fallback_calls)]
        table.add_row(*cells, str(device.errors), style="red" if device.errors else "")
    return table


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def _rate(rate: tuple[float, float, float] | None) -> str:
    if rate is None:
        return ""
    steps, moved, busy = rate
    return f"{steps:.0f}  {moved / 1e6:.1f}  {busy:4.0%}"
