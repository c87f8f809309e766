"""`openspyre doctor` and `openspyre info`: whether spyre works here, and what it is."""

from __future__ import annotations

from dataclasses import asdict

import click

import openspyre
from openspyre import env
from openspyre.cli.common import JSON, NO, failures, print_json

MARKS = {"good": ("ok", "green"), "note": ("note", "yellow"), "bad": ("BAD", "red")}


@click.command()
@JSON
def doctor(as_json: bool) -> None:
    """Tell whether spyre works here.

    Looks at Python, torch, the extension, the environment, the devices, the cache and optional
    packages, and computes one addition on spyre:0. Exit code 1 if something is bad.
    """
    from openspyre.observe.doctor import examine

    findings = examine()
    bad = [f for f in findings if f.state == "bad"]
    if as_json:
        print_json({"good": not bad, "findings": [asdict(f) for f in findings]})
    else:
        for finding in findings:
            mark, colour = MARKS[finding.state]
            click.echo(
                f"{click.style(f'{mark:<4}', fg=colour)}  {finding.what:<12}  {finding.text}"
            )
            if finding.advice:
                click.echo(f"{'':<18}  -> {finding.advice}")
        limits = [f.limit for f in findings if f.limit]
        good = f"spyre works here, but {'; '.join(limits)}" if limits else "spyre works here"
        click.echo(f"{len(bad)} bad" if bad else good)
    if bad:
        raise click.exceptions.Exit(NO)


@click.command()
@JSON
def info(as_json: bool) -> None:
    """Show the devices and the modelled card.

    The devices of this process, and each figure of the card with its source. Exit code 2 for an
    environment variable that is malformed.
    """
    from openspyre.observe import doctor as facts

    with failures():
        devices = facts.devices()
    card = env.configuration().card
    if as_json:
        print_json(
            {
                "openspyre": openspyre.__version__,
                "devices": devices,
                "card": {"name": card.name, "figures": card.figures()},
            }
        )
        return
    for device in devices:
        virtual = device["virtual_function"]
        function = "Physical Function" if virtual < 0 else "Virtual Function"
        handles = device["region_handles"] or "any number of"
        click.echo(
            f"{device['device']}: {device['name']}, a {function}\n"
            f"  {device['total_memory'] / 2**30:.1f} GiB, {handles} regions of at most "
            f"{device['max_region_bytes'] / 2**30:.0f} GiB, "
            f"{device['multi_processor_count']} cores, "
            f"{device['scratchpad_bytes_per_core'] // 1024} KiB LX each"
        )
    click.echo(f"\n{card.table()}")
    click.echo(
        "Sources: P published, U the open torch-spyre cost model, M measured on real cards by "
        "others, D derived, E estimated."
    )
