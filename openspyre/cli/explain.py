"""`openspyre explain`: what the compiler made of a script."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import click

from openspyre.cli.common import Failed


@click.command()
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--json", "as_json", is_flag=True, help="The figures as JSON on standard output.")
@click.option("--html", "page", type=click.Path(dir_okay=False), help="Also write one HTML page.")
def explain(script: str, arguments: tuple[str, ...], as_json: bool, page: str | None) -> None:
    """Show what torch.compile makes of SCRIPT.

    Runs SCRIPT and shows its kernels with the source lines they come from, layouts, splits over
    the cores, bytes, modelled times and what bounds them, and what the CPU computed.
    """
    import torch  # noqa: F401  loads the device

    from openspyre.observe.explain import collect

    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    with collect() as found:
        runpy.run_path(script, run_name="__main__")
    click.echo(found.to_json() if as_json else found.text())
    if page is not None:
        try:
            Path(page).write_text(found.html(), encoding="utf-8")
        except OSError as error:
            raise Failed(f"{page}: {error.strerror}") from error
