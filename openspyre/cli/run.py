"""`openspyre program run`: launches a directory or a program, and checks what comes out.

Imports torch and starts the device when the command runs, not before.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from openspyre.cli.common import (
    JSON,
    NO,
    SYMBOLS,
    Failed,
    failures,
    largest,
    no,
    parse_symbols,
    print_json,
    read_source,
)
from openspyre.program.model import SymbolKind
from openspyre.runtime.spyrecode import ComputeOnDevice, Kernel, write_spyrecode

if TYPE_CHECKING:
    import torch

    from openspyre.runtime.plan import JobPlan


@click.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--input",
    "-i",
    "inputs",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Tensors of the in and inout arguments, .pt or .bin, in order. Default: random ones.",
)
@click.option(
    "--output",
    "-o",
    "outputs",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="What the out and inout arguments must be; exit 1 when they are not.",
)
@click.option("--exact", is_flag=True, help="Compare without a tolerance.")
@click.option("--save", type=click.Path(path_type=Path, dir_okay=False), help="Write results, .pt.")
@SYMBOLS
@click.option("--seed", default=0, show_default=True, help="Of the random inputs.")
@click.option("--launches", default=1, show_default=True, type=click.IntRange(1))
@JSON
def run(
    path: Path,
    inputs: tuple[Path, ...],
    outputs: tuple[Path, ...],
    exact: bool,
    save: Path | None,
    symbols: tuple[str, ...],
    seed: int,
    launches: int,
    as_json: bool,
) -> None:
    """Prepare PATH on the card, launch it, and compare or print the results.

    Exit codes: 0 it ran (and matched), 1 a result is not what was expected, 2 it could not run.
    """  # fmt: skip
    given = parse_symbols(symbols)
    with failures():
        import torch

        from openspyre.device.plans import launch
        from openspyre.runtime.tensor_files import load_tensors, mismatches

        plan = _prepared(path)
        arguments = plan.expected_arguments
        shapes = _shapes(plan, _sizes(plan, given))
        dtypes = [getattr(torch, argument.dtype) for argument in arguments]
        reads = [i for i, a in enumerate(arguments) if a.role != "out"]
        writes = [i for i, a in enumerate(arguments) if a.role != "in"]
        if inputs:
            given_in = load_tensors(inputs, [shapes[i] for i in reads], [dtypes[i] for i in reads])
        else:
            generator = torch.Generator().manual_seed(seed)
            given_in = [_random(shapes[i], dtypes[i], generator) for i in reads]
        expected = None
        if outputs:
            expected = load_tensors(
                outputs, [shapes[i] for i in writes], [dtypes[i] for i in writes]
            )
        passed = {i: tensor.to("spyre") for i, tensor in zip(reads, given_in, strict=True)}
        for i in set(writes) - set(reads):
            passed[i] = torch.empty(shapes[i], dtype=dtypes[i], device="spyre")
        tensors = [passed[i] for i in range(len(arguments))]
        numbers = {name: value for name, value in given.items() if name in plan.symbols}
        for _ in range(launches):
            launch(plan, tensors, symbols=numbers or None)
        torch.accelerator.synchronize()
        results = [tensors[i].cpu() for i in writes]
        names = [arguments[i].name for i in writes]
        if save is not None:
            torch.save({"tensors": results}, save)
        problems = [] if expected is None else mismatches(results, expected, names, exact=exact)
    counters = plan.counters
    if as_json:
        print_json(
            {
                "path": str(path),
                "launches": counters.launches,
                "compared": expected is not None,
                "match": None if expected is None else not problems,
                "problems": problems,
                "results": [_result(n, t) for n, t in zip(names, results, strict=True)],
            }
        )
        if problems:
            raise SystemExit(NO)
        return
    for name, tensor in zip(names, results, strict=True):
        entry = _result(name, tensor)
        click.echo(
            f"{name}: {entry['shape']} {entry['dtype']},"
            f" min {entry['min']:.6g}, mean {entry['mean']:.6g}, max {entry['max']:.6g}"
        )
    if problems:
        no("\n".join(problems))
    if expected is not None:
        click.echo("match")


def _prepared(path: Path) -> JobPlan:
    """The plan of a directory, or of a single program."""
    from openspyre.device.plans import prepare

    if path.is_dir():
        return prepare(path)
    kernels = [Kernel(program) for program in read_source(path).programs.values()]
    with tempfile.TemporaryDirectory() as folder:
        return prepare(write_spyrecode(Path(folder) / path.stem, kernels))


def _sizes(plan: JobPlan, given: dict[str, int | float]) -> dict[str, int]:
    """Values of the plan's size symbols: as given, else the largest."""
    out: dict[str, int] = {}
    for program in plan.code.programs.values():
        for symbol in program.symbols:
            if symbol.kind is SymbolKind.DIMENSION:
                out[symbol.name] = int(given.get(symbol.name, largest(symbol)))
    unknown = set(given) - set(out) - set(plan.symbols)
    if unknown:
        raise Failed(f"the plan has no symbol {sorted(unknown)[0]!r}")
    return out


def _shapes(plan: JobPlan, sizes: dict[str, int]) -> list[tuple[int, ...]]:
    """Of every launch argument."""
    found: dict[int, tuple[int, ...]] = {}
    for step in plan.code.steps:
        if isinstance(step, ComputeOnDevice):
            arguments = plan.code.programs[step.job_bin_ptr].arguments
            for number, operand in zip(step.args, arguments, strict=True):
                found[number] = tuple(size.evaluate(sizes) for size in operand.shape)
    return [found[number] for number in range(len(found))]


def _random(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    import torch

    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    # Small, so that indices of most programs stay inside their tables.
    return torch.randint(0, 4, shape, generator=generator).to(dtype)


def _result(name: str, tensor: torch.Tensor) -> dict[str, Any]:
    wide = tensor.double()
    some = wide.numel() > 0
    return {
        "name": name,
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "min": float(wide.min()) if some else 0.0,
        "mean": float(wide.mean()) if some else 0.0,
        "max": float(wide.max()) if some else 0.0,
    }
