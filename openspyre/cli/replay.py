"""`openspyre replay`: runs a recording of `torch.spyre.record` again and compares every result."""

from __future__ import annotations

from pathlib import Path

import click

from openspyre.cli.common import JSON, NO, failures, no, print_json


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--order", type=int, help="Seed of another legal order. Default: as recorded.")
@click.option("--times", default=1, show_default=True, type=click.IntRange(1))
@click.option("--at-end", is_flag=True, help="Compare at the end only; launches overlap.")
@JSON
def replay(directory: Path, order: int | None, times: int, at_end: bool, as_json: bool) -> None:
    """Replay a recording and compare.

    Runs what torch.spyre.record kept in DIRECTORY and compares what every launch leaves.

    Exit codes: 0 every result is the recorded one, 1 some differ, 2 it could not run.
    """
    with failures():
        from openspyre.runtime.recording import load_recording
        from openspyre.runtime.recording import replay as run

        recording = load_recording(directory)
        reports = [run(recording, seed=order, check=not at_end) for _ in range(times)]
    problems = [str(d) for report in reports for d in report.differences]
    if any(report.outputs != reports[0].outputs for report in reports):
        problems.append("two replays left different bytes")
    if as_json:
        print_json(
            {
                "directory": str(directory),
                "launches": recording.launches,
                "times": times,
                "equal": not problems,
                "problems": problems,
                "outputs": {str(b): digest for b, digest in reports[0].outputs.items()},
            }
        )
        if problems:
            raise SystemExit(NO)
        return
    if problems:
        no("\n".join(problems))
    click.echo(f"{recording.launches} launches replayed {times} time(s): every result as recorded")
