"""The `openspyre` command. Each group of commands is a module here; the work is done elsewhere.

Commands that only read programs import no torch. Exit codes: `common.EXIT_CODES`.
"""

from __future__ import annotations

import click

import openspyre
from openspyre.cli.bench import bench
from openspyre.cli.cache import cache
from openspyre.cli.common import EXIT_CODES, Group
from openspyre.cli.doctor import doctor, info
from openspyre.cli.explain import explain
from openspyre.cli.program import program
from openspyre.cli.replay import replay
from openspyre.cli.report import report
from openspyre.cli.run_model import run
from openspyre.cli.top import top


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@click.version_option(openspyre.__version__, prog_name="openspyre")
def main() -> None:
    """OpenSpyre: the spyre device for PyTorch on a software card."""


main.add_command(run)
main.add_command(bench)
main.add_command(program)
main.add_command(cache)
main.add_command(explain)
main.add_command(report)
main.add_command(replay)
main.add_command(doctor)
main.add_command(info)
main.add_command(top)
