"""What the commands share: reading a directory or a file, symbols, errors as exit codes.

Imports no torch.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import click

from openspyre.program.binary import MAGIC, decode
from openspyre.program.model import Program, Symbol, SymbolKind
from openspyre.program.text import from_text
from openspyre.runtime.spyrecode import SpyreCode, read_spyrecode

NO, FAILED = 1, 2  # exit codes
CLOSED_PIPE = 128 + 13  # as a shell tells of a process that SIGPIPE ended
EXIT_CODES = (
    "Exit codes: 0 done; 1 the answer is no (a problem found, a mismatch); 2 it could not be done "
    "(a bad argument, an unreadable directory, a failed launch); 141 nobody reads the output."
)

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
SYMBOLS = click.option(
    "--symbol",
    "-s",
    "symbols",
    multiple=True,
    metavar="NAME=VALUE",
    help="A number of the launch; sizes default to their largest.",
)


class Failed(click.ClickException):
    """Could not be done: exit code 2."""

    exit_code = FAILED


class Group(click.Group):
    """A group whose commands end with one line, not a traceback, when their output cannot be
    written, and with CLOSED_PIPE when its reader has gone (click would exit with 1, which says
    no here)."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except OSError as error:
            if error.filename is not None:  # not the output: a command's or a script's own file
                raise
            # What is left in the buffer must not be tried again when the interpreter ends.
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if error.errno == errno.EPIPE:
                raise click.exceptions.Exit(CLOSED_PIPE) from None
            raise Failed(str(error)) from error
        return result


@contextmanager
def failures() -> Iterator[None]:
    """Turns what a reader or a launch raises into a message and exit code 2."""
    try:
        yield
    except (ValueError, RuntimeError, OSError) as error:
        raise Failed(str(error)) from error


@dataclass(frozen=True)
class Source:
    """What a path holds: the programs by name and, if it is a directory, the SpyreCode."""

    path: Path
    programs: dict[str, Program]
    code: SpyreCode | None = None


def read_source(path: Path, *, verify: bool = False) -> Source:
    """A SpyreCode directory, a text program (`.txt`, `.program`) or an image (any other file).

    Raises what the readers raise; see `failures`.
    """
    if path.is_dir():
        code = read_spyrecode(path, verify=verify)
        names: dict[str, Program] = {}
        for address, program in sorted(code.programs.items()):
            name = program.name if program.name not in names else f"{program.name}@{address:#x}"
            names[name] = program
        return Source(path, names, code)
    data = path.read_bytes()
    if path.suffix in (".txt", ".program"):
        found = from_text(data.decode("utf-8"))
    elif not data.startswith(MAGIC):
        raise Failed(f"{path} is no program image; name a program as text .txt or .program")
    else:
        found = decode(data)
    return Source(path, {found.name: found})


def parse_symbols(pairs: tuple[str, ...]) -> dict[str, int | float]:
    """name=value pairs. Raises click.BadParameter."""
    out: dict[str, int | float] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        try:
            if not equals:
                raise ValueError
            out[name.strip()] = float(text) if "." in text or "e" in text.lower() else int(text, 0)
        except ValueError:
            raise click.BadParameter(f"{pair!r} is not name=number") from None
    return out


def whole_symbols(program: Program, given: dict[str, int | float]) -> dict[str, int]:
    """The integer symbols of a program: as given, else the largest size, or the smallest int."""
    unknown = set(given) - {symbol.name for symbol in program.symbols}
    if unknown:
        known = ", ".join(symbol.name for symbol in program.symbols) or "none"
        raise Failed(f"{program.name} has no symbol {sorted(unknown)[0]!r}: it has {known}")
    out: dict[str, int] = {}
    for symbol in program.symbols:
        if symbol.kind is SymbolKind.FLOAT:
            continue
        default = largest(symbol) if symbol.kind is SymbolKind.DIMENSION else symbol.minimum
        out[symbol.name] = int(given.get(symbol.name, default))
    return out


def largest(symbol: Symbol) -> int:
    """The largest size that a DIMENSION may have."""
    return symbol.maximum // symbol.granularity * symbol.granularity


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def no(message: str) -> NoReturn:
    """The answer is no: exit code 1."""
    click.echo(message, err=True)
    raise SystemExit(NO)
