"""`openspyre cache`: the compiled programs on disk."""

from __future__ import annotations

import json
import time

import click

from openspyre.cli.common import JSON, NO


@click.group()
def cache() -> None:
    """The compiled programs below OPENSPYRE_CACHE_DIR."""


@cache.command("ls")
@JSON
def list_(as_json: bool) -> None:
    """Lists the entries, the most recently used first."""
    from openspyre.compiler import cache as entries

    rows = entries.ls()
    if as_json:
        click.echo(json.dumps([{**vars(row), "path": str(row.path)} for row in rows], indent=1))
        return
    for row in rows:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.used))
        mark = "" if row.current else "  (another version)"
        click.echo(f"{when}  {row.bytes:>12,} B  {row.kind:<10} {row.key}{mark}")
    versions = list(dict.fromkeys(row.version for row in rows))
    if len(versions) > 1:
        click.echo("versions of the compiler, the most recently used first:")
        for version in versions:
            own = [row for row in rows if row.version == version]
            mark = "this one" if own[0].current else "openspyre cache prune removes them"
            click.echo(
                f"  {version}  {len(own):>6,} entries  {sum(row.bytes for row in own):>14,} B"
                f"  ({mark})"
            )
    click.echo(
        f"{len(rows)} entries, {sum(row.bytes for row in rows):,} B in {entries.root_directory()}"
    )


@cache.command()
@JSON
def verify(as_json: bool) -> None:
    """Reads every entry. Exit code 1 if one is damaged (it counts as missing)."""
    from openspyre.compiler import cache as entries

    bad = entries.verify()
    if as_json:
        click.echo(json.dumps([str(row.path) for row in bad], indent=1))
    else:
        for row in bad:
            click.echo(f"damaged: {row.path}")
        click.echo(f"{len(bad)} damaged of {len(entries.ls())}")
    if bad:
        raise click.exceptions.Exit(NO)


@cache.command()
@click.option("--bytes", "most", type=click.IntRange(0), default=0, help="Keep at most so many.")
@click.option("--all", "everything", is_flag=True, help="Remove everything.")
def prune(most: int, everything: bool) -> None:
    """Removes entries of other versions and, beyond --bytes, the least recently used."""
    from openspyre.compiler import cache as entries

    if everything:
        removed = entries.clear()
    else:
        removed = entries.prune(most if most else 1 << 62)
    click.echo(f"removed {removed:,} B")
