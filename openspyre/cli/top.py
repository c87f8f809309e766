"""`openspyre top`: devices of running processes, live or once. Imports no torch."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click

from openspyre import env
from openspyre.cli.common import Failed, print_json
from openspyre.observe import live, stats_page

if TYPE_CHECKING:
    from rich.table import Table


@click.command()
@click.option("--pid", type=click.IntRange(1), help="Only this process.")
@click.option(
    "--interval", default=1.0, show_default=True, type=click.FloatRange(0.1), help="Seconds."
)
@click.option("--once", is_flag=True, help="Print the table of one interval and end.")
@click.option("--json", "form", flag_value="json", help="One reading as JSON.")
@click.option("--csv", "form", flag_value="csv", help="One reading as CSV.")
@click.option(
    "--prometheus", "form", flag_value="prometheus", help="One reading for a Prometheus scraper."
)
def top(pid: int | None, interval: float, once: bool, form: str | None) -> None:
    """Shows memory, streams, engines and fallbacks of every process that uses spyre devices, until
    Ctrl-C. Rates are by the wall clock, busy shares by the virtual clock (modelled)."""
    directory: str = env.read("OPENSPYRE_STATS_DIR", os.environ)
    if not directory:
        raise Failed("OPENSPYRE_STATS_DIR is off: no process publishes its figures here")

    def read() -> list[live.Row]:
        return live.rows(stats_page.live_pages(directory), pid)

    if form is not None:
        found = read()
        if form == "json":
            print_json(live.as_dicts(found))
        else:
            write = live.as_csv if form == "csv" else live.as_prometheus
            click.echo(write(found), nl=False)
        return

    from rich.console import Console
    from rich.live import Live

    console = Console()
    before, since = read(), time.monotonic()

    def next_table() -> Table:
        nonlocal before, since
        time.sleep(interval)
        now, at = read(), time.monotonic()
        table = _table(live.with_rates(before, now, at - since), directory)
        before, since = now, at
        return table

    if once:
        console.print(next_table())
        return
    try:
        with Live(_table(before, directory), console=console, auto_refresh=False) as screen:
            while True:
                screen.update(next_table(), refresh=True)
    except KeyboardInterrupt:
        return


def _table(rows: list[live.Row], directory: str) -> Table:
    from rich.table import Table

    table = Table(
        caption=f"{len({row.pid for row in rows})} processes in {directory}; busy: share of the "
        "virtual time (modelled)"
    )
    for name in ("process", "device", "allocated", "reserved", "of", "streams"):
        table.add_column(name, justify="right")
    for engine in stats_page.ENGINES:
        table.add_column(f"{engine}\nsteps/s  MB/s  busy", justify="right")
    for name in ("CPU ops", "errors"):
        table.add_column(name, justify="right")
    for row in rows:
        device = row.device
        rates = row.rates or {}
        table.add_row(
            str(row.pid),
            f"spyre:{device.index}",
            *(_size(n) for n in (device.allocated, device.reserved, device.capacity)),
            str(device.streams),
            *(_rate(rates.get(engine)) for engine in stats_page.ENGINES),
            str(device.fallback_calls),
            str(device.errors),
            style="red" if device.errors else "",
        )
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
