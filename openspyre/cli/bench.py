"""`openspyre bench MODEL`: a model on the card beside the CPU, in one process.

Wall times are measured here and depend on this machine; times of the card are modelled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from openspyre.cli.common import JSON, Failed, failures, print_json
from openspyre.cli.run_model import DTYPE, NUMERICS, VF, prepare, progress

if TYPE_CHECKING:
    from openspyre.models.registry import Loaded, Progress, Where

SENTENCE = "The card moves sticks of 128 bytes, and every kernel knows which of them it needs."


@click.command()
@click.argument("model")
@click.option("--prompt", default=128, show_default=True, type=click.IntRange(1), help="Tokens.")
@click.option("--tokens", default=16, show_default=True, type=click.IntRange(3), help="To decode.")
@click.option("--texts", default=16, show_default=True, type=click.IntRange(1), help="To encode.")
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1))
@click.option("--cpu-compile", is_flag=True, help="Compile the CPU's model as well (needs g++).")
@click.option("--no-eager", is_flag=True, help="Only compiled on the card.")
@DTYPE
@NUMERICS
@VF
@JSON
def bench(
    model: str,
    prompt: int,
    tokens: int,
    texts: int,
    repeats: int,
    cpu_compile: bool,
    no_eager: bool,
    dtype: str,
    numerics: str | None,
    vf: bool,
    as_json: bool,
) -> None:
    """Time MODEL on the card beside PyTorch's CPU.

    MODEL is what `openspyre run` takes. A language model reads --prompt tokens (prefill) and
    decodes --tokens; an encoder encodes --texts sentences. Every figure is the median of
    --repeats after one run that compiles; runs of the card and of the CPU (float32) take turns. A
    ratio above 1 means that the card's programs were faster than the CPU, by the wall clock of this
    machine. Figures marked modelled are the card's virtual clock.
    """
    from openspyre.models.registry import ModelError, find

    try:
        where = find(model)
        prepare(numerics, vf)
        with failures(), progress() as tell:
            import torch

            half = getattr(torch, dtype)
            settings = {"prompt": prompt, "tokens": tokens, "texts": texts}
            works = _works(where, half, settings, cpu_compile, not no_eager, tell)
            found = _measure(works, repeats, tell)
    except ModelError as error:
        raise Failed(str(error)) from error
    base, phases = found["cpu"], list(found["cpu"])
    for row in found.values():
        row["ratios"] = {p: base[p]["seconds"] / row[p]["seconds"] for p in phases}
    if as_json:
        print_json({"model": model, "dtype": dtype, **settings, "repeats": repeats, "runs": found})
        return
    click.echo(f"{model}, {dtype} on the card, float32 on the CPU; median of {repeats}\n")
    click.echo(f"{'':<16}" + "".join(f"{p:>12}{'ratio':>8}{'modelled':>20}" for p in phases))
    for name, row in found.items():
        cells = ""
        for p in phases:
            one = row[p]
            rate = one["per_second_modelled"]
            text = f"{rate:,.0f} {one['unit']}/s" if rate else "-"
            cells += f"{1000 * one['seconds']:>9.1f} ms{row['ratios'][p]:>7.2f}x{text:>20}"
        click.echo(f"{name:<16}{cells}")
    click.echo("\nratio: the CPU's eager float32 wall time divided by this one's (above 1: faster)")


Phases = dict[str, tuple[float, float, int, str]]
"""A phase's wall seconds, modelled ns, and how many of a unit it did."""


def _works(
    where: Where,
    dtype: Any,
    settings: dict[str, int],
    cpu_compile: bool,
    eager: bool,
    tell: Progress,
) -> dict[str, Callable[[], Phases]]:
    """What is timed, by name; the CPU's float32 eager model first."""
    import torch

    from openspyre.models.registry import load

    here = load(where, device="cpu", dtype=torch.float32, progress=tell)
    card = load(where, device="spyre", dtype=dtype, progress=tell)
    plan = [("cpu", here, False)]
    if cpu_compile:
        plan.append(("cpu compiled", here, True))
    if eager:
        plan.append(("spyre eager", card, False))
    plan.append(("spyre compiled", card, True))
    return {name: _work(loaded, compiled, settings) for name, loaded, compiled in plan}


def _work(loaded: Loaded, compiled: bool, settings: dict[str, int]) -> Callable[[], Phases]:
    import torch

    from openspyre.models.use import Clock, Generator, vectors

    if loaded.kind == "text":
        length, count = settings["prompt"], settings["tokens"]
        vocabulary = int(loaded.model.config.vocab_size)  # type: ignore[union-attr, arg-type]
        ids = torch.randint(0, vocabulary, (1, length), generator=torch.Generator().manual_seed(0))
        generator = Generator(loaded.model, compiled=compiled, longest=length + count)

        def text() -> Phases:
            found = generator(ids, count)
            rest, modelled = sorted(found.seconds[1:]), sorted(found.modelled_ns[1:])
            middle = len(rest) // 2
            return {
                "prefill": (found.seconds[0], found.modelled_ns[0], length, "tokens"),
                "decode": (rest[middle], modelled[middle], 1, "tokens"),
            }

        return text
    forward: Any = torch.compile(loaded.model, dynamic=False) if compiled else loaded.model
    device = next(loaded.model.parameters()).device
    count = settings["texts"]

    def encode() -> Phases:
        clock = Clock(device)
        vectors(loaded, forward, [SENTENCE] * count)
        return {"encode": (*clock.look(), count, "texts")}

    def call() -> Phases:
        dtype = next((p.dtype for p in loaded.model.parameters()), torch.float32)
        given = [
            (x.to(dtype) if x.is_floating_point() else x).to(device) for x in loaded.example or ()
        ]
        clock = Clock(device)
        with torch.inference_mode():
            forward(*given)
        return {"call": (*clock.look(), 1, "calls")}

    return encode if loaded.kind == "vectors" else call


def _measure(
    works: dict[str, Callable[[], Phases]], repeats: int, tell: Progress
) -> dict[str, dict[str, Any]]:
    """Medians; everything runs once before, and then takes turns."""
    first: dict[str, float] = {}
    for name, work in works.items():
        tell(f"{name}: compiling, and running once", 0, 0)
        started = time.perf_counter()
        work()
        first[name] = time.perf_counter() - started
    rounds: dict[str, list[Phases]] = {name: [] for name in works}
    for number in range(repeats):
        for name, work in works.items():
            tell(f"round {number + 1}: {name}", number, repeats)
            rounds[name].append(work())
    found: dict[str, dict[str, Any]] = {}
    for name, runs in rounds.items():
        found[name] = {}
        for phase in runs[0]:
            seconds, modelled, count, unit = sorted(run[phase] for run in runs)[len(runs) // 2]
            found[name][phase] = {
                "seconds": seconds,
                "per_second": count / seconds,
                "per_second_modelled": count * 1e9 / modelled if modelled else None,
                "unit": unit,
                "first_seconds": first[name],
            }
    return found
