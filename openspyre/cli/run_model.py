"""`openspyre run MODEL`: a model on the card, prompt or text in, text or vectors out.

Imports torch when the command runs, after the environment says which numerics and which function of
the card to take.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from openspyre.cli.common import JSON, Failed, failures, print_json

if TYPE_CHECKING:
    from openspyre.models.registry import Loaded, Progress
    from openspyre.models.use import Text

QUESTION = "What is the capital of France?"
NUMERICS = click.option(
    "--numerics",
    type=click.Choice(["dl16", "ieee"]),
    help="How the card keeps float16.  [default: OPENSPYRE_NUMERICS]",
)
VF = click.option("--vf", is_flag=True, help="Use a Virtual Function of the card.")
DTYPE = click.option(
    "--dtype",
    type=click.Choice(["float16", "float32", "bfloat16"]),
    default="float16",
    show_default=True,
    help="Of the weights on the card.",
)


@click.command(name="run")
@click.argument("model")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--compile", "compiled", is_flag=True, help="Compile the model (torch.compile).")
@click.option("--max-new-tokens", default=32, show_default=True, type=click.IntRange(1))
@DTYPE
@NUMERICS
@VF
@click.option("--report", type=click.Path(dir_okay=False), help="Write a page about the run.")
@JSON
def run(
    model: str,
    texts: tuple[str, ...],
    compiled: bool,
    max_new_tokens: int,
    dtype: str,
    numerics: str | None,
    vf: bool,
    report: str | None,
    as_json: bool,
) -> None:
    """Run MODEL on the card.

    MODEL is a name (smollm2-135m, minilm), a directory that save_pretrained wrote, a .gguf file, or
    a Python file with a function load() that gives a torch module, or one and its tokenizer;
    without a tokenizer also example(), its input tensors. A language model continues one TEXT; an
    encoder gives each TEXT a vector. TEXT - reads standard input, a line a text. Nothing is
    fetched from a network. Times of the card are modelled.

    Exit codes: 0 done, 2 it could not be done (no such model, a failed launch).
    """
    from openspyre.models.registry import ModelError, find

    try:
        where = find(model)
        if where.kind == "text" and len(texts) > 1:
            raise Failed(f"{model} continues one TEXT, and {len(texts)} were given: quote it")
        prepare(numerics, vf)
        with failures():
            import torch

            import openspyre.device as spyre
            from openspyre.models.registry import load

            with _watching(report, model) as watched:
                with progress() as tell:
                    loaded = load(where, device="spyre", dtype=getattr(torch, dtype), progress=tell)
                if watched is not None:
                    watched.name_tensors(loaded.model)
                spyre.reset_fallback_report()
                given = _texts(texts)
                found = KINDS[loaded.kind](
                    loaded, given, compiled, max_new_tokens, as_json, watched
                )
            if report is not None:
                from openspyre.observe.report import write_report

                write_report(report, watched)
                found["report"] = report
            rows = spyre.fallback_report().rows
    except ModelError as error:
        raise Failed(str(error)) from error
    found["fallbacks"] = {row.operation: row.calls for row in rows}
    if as_json:
        print_json({"model": model, "compiled": compiled, "dtype": dtype, **found})
        return
    if rows:
        click.echo(f"the CPU computed {sum(r.calls for r in rows)} operations: "
                   f"{', '.join(r.operation for r in rows)}", err=True)  # fmt: skip
    if report is not None:
        click.echo(f"{report}: open it in a browser", err=True)


def prepare(numerics: str | None, vf: bool) -> None:
    """Settings of a device that has not started yet. Raises Failed if it has."""
    # Before transformers is imported: nothing is looked up, and the bars are this command's own.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    started = False
    if "torch" in sys.modules:
        import openspyre.device as spyre

        started = spyre.is_initialized()
    if vf:
        if started:
            raise Failed("--vf: the card has started in this process as something else")
        os.environ["FLEX_DEVICE"] = "VF"
    if numerics is not None:
        if "torch" in sys.modules:
            import openspyre.device as spyre

            with failures():
                spyre.numerics.set_mode(numerics)
        else:
            os.environ["OPENSPYRE_NUMERICS"] = numerics


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """A bar on standard error while stages go on; nothing if that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=None)

        def tell(stage: str, done: int, total: int) -> None:
            bar.update(task, description=stage, completed=done, total=total or None)

        yield tell


def _watching(report: str | None, title: str) -> contextlib.AbstractContextManager[Any]:
    if report is None:
        return contextlib.nullcontext()
    from openspyre.observe.report import check_target, watch

    check_target(report)
    return watch(title)


def _texts(texts: tuple[str, ...]) -> list[str]:
    if texts == ("-",):
        return [line for line in sys.stdin.read().splitlines() if line.strip()]
    return list(texts)


def _generate(
    loaded: Loaded, texts: list[str], compiled: bool, count: int, quiet: bool, watched: Any
) -> dict[str, Any]:
    from openspyre.models.use import Generator, ends, prompt_ids

    prompt = "\n".join(texts) or QUESTION
    ids = prompt_ids(loaded, prompt)
    stop, made, shown = ends(loaded.model), [0], [""]
    generator = Generator(loaded.model, compiled=compiled, longest=ids.shape[1] + count)
    tokens: list[int] = []
    phase = watched.phase("generate", unit="tokens") if watched else contextlib.nullcontext()
    with progress() as tell, phase as timed:
        tell("compiling it for the prompt", 0, 0)

        def each(token: int) -> None:
            made[0] += 1
            tokens.append(token)
            # Text is shown when compiling is done, whole characters only.
            stages = ("compiling it for one token", "generating")
            tell(stages[min(1, made[0] - 1)], made[0], count)
            shown[0] = loaded.tokenizer.decode(tokens, skip_special_tokens=True)

        text: Text = generator(ids, count, stop=stop, each=each)
        if timed is not None:
            timed.count = len(text.tokens)
    if not quiet:
        click.echo(shown[0].strip())
        click.echo(speeds(text), err=True)
    return {"prompt": prompt, "text": shown[0].strip(), **figures(text)}


def figures(text: Text) -> dict[str, Any]:
    """Seconds and speeds. The first two passes compile, and are left out of the speeds."""
    rest, modelled = sorted(text.seconds[2:]), sorted(text.modelled_ns[2:])
    return {
        "prompt_tokens": text.prompt_tokens,
        "tokens": len(text.tokens),
        "prompt_seconds": text.seconds[0],
        "token_seconds": rest[len(rest) // 2] if rest else None,
        "tokens_per_second_wall": 1 / rest[len(rest) // 2] if rest else None,
        "tokens_per_second_modelled": _rate(modelled[len(modelled) // 2]) if modelled else None,
    }


def speeds(text: Text) -> str:
    """One line for people."""
    found = figures(text)
    line = f"{found['tokens']} tokens; the prompt's pass took {found['prompt_seconds']:.1f} s"
    if found["tokens_per_second_wall"] is not None:
        line += f"; {found['tokens_per_second_wall']:.1f} tokens a second by the wall"
    if found["tokens_per_second_modelled"] is not None:
        line += f", {found['tokens_per_second_modelled']:.0f} on the card (modelled)"
    return line


def _rate(nanoseconds: float) -> float | None:
    return 1e9 / nanoseconds if nanoseconds else None


def _encode(
    loaded: Loaded, texts: list[str], compiled: bool, _: int, quiet: bool, watched: Any
) -> dict[str, Any]:
    import torch

    from openspyre.models.use import vectors

    if not texts:
        raise Failed(f"{loaded.name} gives vectors to texts, and there is no TEXT")
    forward = torch.compile(loaded.model, dynamic=False) if compiled else loaded.model
    phase = watched.phase("encode", unit="texts") if watched else contextlib.nullcontext()
    with progress() as tell, phase as timed:
        tell("compiling and encoding" if compiled else "encoding", 0, 0)
        started = time.perf_counter()
        found = vectors(loaded, forward, texts)
        seconds = time.perf_counter() - started
        if timed is not None:
            timed.count = len(texts)
    if not quiet:
        for text, vector in zip(texts, found, strict=True):
            click.echo(f"{text}\t{' '.join(f'{x:.5f}' for x in vector.tolist())}")
        if len(texts) > 1:
            click.echo("cosines of the texts:", err=True)
            for row in (found @ found.T).tolist():
                click.echo("  " + " ".join(f"{x:6.3f}" for x in row), err=True)
    return {"texts": texts, "vectors": found.tolist(), "seconds": seconds}


def _call(
    loaded: Loaded, texts: list[str], compiled: bool, _: int, quiet: bool, watched: Any
) -> dict[str, Any]:
    import torch

    if texts:
        raise Failed(f"{loaded.name} has no tokenizer, so it takes no TEXT")
    dtype = next((p.dtype for p in loaded.model.parameters()), torch.float32)
    given = [
        (x.to(dtype) if x.is_floating_point() else x).to("spyre")
        if isinstance(x, torch.Tensor)
        else x
        for x in loaded.example or ()
    ]
    forward: Callable[..., Any] = (
        torch.compile(loaded.model, dynamic=False) if compiled else loaded.model
    )
    phase = watched.phase("call", count=1) if watched else contextlib.nullcontext()
    with progress() as tell, phase, torch.inference_mode():
        tell("compiling and computing" if compiled else "computing", 0, 0)
        started = time.perf_counter()
        leaves = torch.utils._pytree.tree_leaves(forward(*given))
        results = [x.cpu() for x in leaves if isinstance(x, torch.Tensor)]
        seconds = time.perf_counter() - started
    rows = []
    for number, tensor in enumerate(results):
        wide = tensor.double()
        rows.append(
            {
                "shape": list(tensor.shape),
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "mean": float(wide.mean()) if wide.numel() else 0.0,
                "largest": float(wide.abs().max()) if wide.numel() else 0.0,
            }
        )
        if not quiet:
            row = rows[-1]
            click.echo(
                f"result {number}: {row['shape']} {row['dtype']},"
                f" mean {row['mean']:.6g}, largest magnitude {row['largest']:.6g}"
            )
    return {"results": rows, "seconds": seconds}


KINDS: dict[str, Callable[..., dict[str, Any]]] = {
    "text": _generate,
    "vectors": _encode,
    "module": _call,
}
