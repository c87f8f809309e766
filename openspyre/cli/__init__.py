"""The `openspyre` command. Each group of commands is a module here; the work is done elsewhere.

Commands that only read programs import no torch. Exit codes: 0 done, 1 the answer is no (a problem
found, a mismatch), 2 it could not be done (a bad argument, an unreadable directory, a failed
launch).
"""

from __future__ import annotations

import click

import openspyre
from openspyre.cli.cache import cache
from openspyre.cli.doctor import doctor, info
from openspyre.cli.explain import explain
from openspyre.cli.program import program
from openspyre.cli.replay import replay
from openspyre.cli.top import top


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(openspyre.__version__, prog_name="openspyre")
def main() -> None:
    """OpenSpyre: the spyre device for PyTorch on a software card."""


main.add_command(program)
main.add_command(cache)
main.add_command(explain)
main.add_command(replay)
main.add_command(doctor)
main.add_command(info)
main.add_command(top)
