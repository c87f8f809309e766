"""`openspyre program`: show, verify, time and run Programs.

Only `run` imports torch, when it is called.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from openspyre.card import CardSpec
from openspyre.cli.common import (
    JSON,
    NO,
    SYMBOLS,
    Source,
    failures,
    no,
    parse_symbols,
    print_json,
    read_source,
    whole_symbols,
)
from openspyre.cli.run import run
from openspyre.program import model
from openspyre.program.listing import listing
from openspyre.program.text import to_text
from openspyre.program.verify import Report, problems, verify
from openspyre.timing import time_program
from openspyre.timing.trace import chrome_trace

PATH = click.argument("path", type=click.Path(exists=True, path_type=Path))


@click.group()
def program() -> None:
    """Look at, check, price and run Programs.

    PATH is a SpyreCode directory, a program as text (.txt, .program), or an image.
    """


program.add_command(run)


@program.command()
@PATH
@JSON
@SYMBOLS
@click.option("--summary", is_flag=True, help="Leave out the instructions.")
@click.option("--cores", is_flag=True, help="List which bytes each core reads and writes.")
def show(path: Path, as_json: bool, symbols: tuple[str, ...], summary: bool, cores: bool) -> None:
    """Print the steps of a directory and its programs as text."""
    given = parse_symbols(symbols)
    with failures():
        source = read_source(path)
        if cores:
            listings = [
                listing(item, whole_symbols(item, given)) for item in source.programs.values()
            ]
            if as_json:
                print_json([asdict(item) for item in listings])
            for item in () if as_json else listings:
                click.echo(item.text())
            return
        if as_json:
            print_json(_as_dict(source, summary))
            return
        if source.code is not None:
            click.echo(_steps_text(source))
        for program in source.programs.values():
            click.echo(_summary(program) if summary else to_text(program))


def _steps_text(source: Source) -> str:
    code = source.code
    assert code is not None
    lines = [
        f"SpyreCode {source.path}",
        f"  program memory {code.allocate.static_size:,} B,"
        f" dynamic region {code.allocate.dynamic_size:,} B of each launch",
    ]
    for init in code.inits:
        lines.append(f"  load {init.file}: {init.size:,} B to {init.dev_ptr:#x}")
    for number, step in enumerate(code.steps):
        what = {
            k: v for k, v in vars(step).items() if v not in (None, (), "") and k != "correction"
        }
        inside = ", ".join(
            f"{k} {v:#x}" if k.endswith("ptr") else f"{k} {v}" for k, v in what.items()
        )
        lines.append(f"  step {number}: {type(step).__name__} ({inside})")
    return "\n".join(lines) + "\n"


def _summary(item: model.Program) -> str:
    grid = " x ".join(f"{digit.name} {digit.size}" for digit in item.grid)
    lines = [f"program {item.name}: {item.cores} cores ({grid})"]
    for operand in item.operands:
        shape = ", ".join(map(str, operand.shape))
        lines.append(
            f"  {operand.role.value:<8}{operand.name} [{shape}] {operand.dtype}"
            f" ({operand.format.name})"
        )
    for symbol in item.symbols:
        lines.append(f"  symbol  {symbol.name}: {symbol.kind.value}")
    used = max((b.base + b.slots * b.slot_bytes for b in item.buffers), default=0)
    lines.append(f"  LX      {used:,} B in {len(item.buffers)} buffers")
    return "\n".join(lines)


def _as_dict(source: Source, summary: bool) -> dict[str, Any]:
    out: dict[str, Any] = {"path": str(source.path), "programs": {}}
    if source.code is not None:
        code = source.code
        out["allocate"] = asdict(code.allocate)
        out["inits"] = [{"file": i.file, "dev_ptr": i.dev_ptr, "size": i.size} for i in code.inits]
        out["steps"] = [
            {"type": type(step).__name__, **json.loads(json.dumps(asdict(step), default=str))}
            for step in code.steps
        ]
    for name, item in source.programs.items():
        entry: dict[str, Any] = {
            "cores": item.cores,
            "grid": {digit.name: digit.size for digit in item.grid},
            "operands": [
                {
                    "name": o.name,
                    "role": o.role.value,
                    "dtype": o.dtype,
                    "format": o.format.name,
                    "shape": [str(size) for size in o.shape],
                }
                for o in item.operands
            ],
            "symbols": [{"name": s.name, "kind": s.kind.value} for s in item.symbols],
        }
        if not summary:
            entry["text"] = to_text(item)
        out["programs"][name] = entry
    return out


@program.command("verify")
@PATH
@JSON
@SYMBOLS
def verify_(path: Path, as_json: bool, symbols: tuple[str, ...]) -> None:
    """Check every rule of docs/program.md; exit 1 with the problems when one is broken."""
    given = parse_symbols(symbols)
    with failures():
        source = read_source(path)
    reports: dict[str, Any] = {}
    broken: list[str] = []
    for name, item in source.programs.items():
        with failures():
            chosen = whole_symbols(item, given) if given else None
            found = problems(item, chosen)
        if found:
            broken.extend(f"{name}: {problem}" for problem in found)
            reports[name] = {"valid": False, "problems": [str(problem) for problem in found]}
        else:
            report = verify(item, chosen)
            reports[name] = {"valid": True, **asdict(report)}
            if not as_json:
                click.echo(_report_text(name, report))
    if as_json:
        print_json(reports)
        if broken:
            raise SystemExit(NO)
    elif broken:
        no("\n".join(broken))


def _report_text(name: str, report: Report) -> str:
    return (
        f"{name}: valid; {report.tasks:,} tasks, LX at most {report.lx_peak:,} B a core\n"
        f"  LPDDR5 read {report.read_bytes:,} B"
        f" ({report.read_bytes_without_multicast:,} without multicast),"
        f" written {report.written_bytes:,} B\n"
        f"  LX received {report.lx_received_bytes:,} B, of it {report.ring_bytes:,} B by the ring"
    )


@program.command("time")
@PATH
@JSON
@SYMBOLS
@click.option(
    "--card",
    "card",
    default="spyre",
    show_default=True,
    help="spyre, tiny, or name:key=value,... as OPENSPYRE_CARD.",
)
@click.option("--spans", default=0, show_default=True, help="Print that many tasks.")
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a Chrome/Perfetto trace.",
)
def time_(
    path: Path, as_json: bool, symbols: tuple[str, ...], card: str, spans: int, trace: Path | None
) -> None:
    """Print the modelled time of each program and what bounds it (docs/timing.md)."""
    given = parse_symbols(symbols)
    with failures():
        spec = CardSpec.parse(card)
        source = read_source(path)
        timelines = {
            name: time_program(item, whole_symbols(item, given), spec)
            for name, item in source.programs.items()
        }
        if trace is not None:
            trace.write_text(json.dumps(chrome_trace(timelines)))
    if as_json:
        print_json({name: timeline.as_dict() for name, timeline in timelines.items()})
        return
    for timeline in timelines.values():
        click.echo(timeline.text(spans))
    if trace is not None:
        click.echo(f"trace written to {trace}: open it in https://ui.perfetto.dev")
