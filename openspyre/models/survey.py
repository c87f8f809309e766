"""Holds the small models of `families.py` to the CPU: `python -m openspyre.models.survey`.

Each is tried eager and compiled, generating in several ways, and in one training step; the table
that results is part of docs/models.md. Needs torch, the extension and transformers.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import openspyre.device as spyre
from openspyre.models.families import FAMILIES, Family, build, inputs, result

DEVICE = "spyre"
TOLERANCE = {torch.float32: 5e-5, torch.float16: 2e-2}
"""Of the largest magnitude: some roundings of float32 in sums; DLFloat16 keeps 9 bits (2**-10 each
rounding), and two layers round some dozen times."""
STEPS = 8
BEGIN, END = "<!-- table of families: begin -->", "<!-- table of families: end -->"


@dataclass
class Check:
    """What one try gave. `error`: relative to the largest magnitude, None where tokens were
    compared; `fallbacks`: calls by operation; `problem`: "" or what was raised, or the mismatch."""

    name: str
    error: float | None = None
    fallbacks: dict[str, int] = field(default_factory=dict)
    problem: str = ""
    seconds: float = 0.0


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def moved(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """A copy on the card, with tied weights tied again."""
    device: Any = copy.deepcopy(model).to(dtype).to(DEVICE)
    if hasattr(device, "tie_weights"):
        device.tie_weights()
    return device  # type: ignore[no-any-return]


def there(values: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {n: (t.to(dtype) if t.is_floating_point() else t).to(DEVICE) for n, t in values.items()}


def survey(one: Family, only: list[str] | None = None, limit: int = 60) -> list[Check]:
    """Every check of a family, or `only` those named; what fails does not stop the others.
    `limit`: seconds for each."""
    model = build(one)
    given = inputs(one)
    with torch.no_grad():
        wanted = result(model(**given))
    kept = given.get("attention_mask", torch.ones(wanted.shape[:1]))[..., None].bool()
    checks: list[Check] = []

    def check(name: str, work: Callable[[], float | None]) -> None:
        if only and name not in only:
            return
        found = Check(name)
        spyre.reset_fallback_report()
        started = time.perf_counter()
        try:
            with _limited(limit):
                found.error = work()
        except Exception as error:
            found.problem = f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]
            if os.environ.get("SURVEY_TRACE"):
                traceback.print_exc()
        found.seconds = time.perf_counter() - started
        found.fallbacks = {r.operation: r.calls for r in spyre.fallback_report().rows}
        checks.append(found)

    def forward(dtype: torch.dtype, compile: bool) -> float:
        device = moved(model, dtype)
        torch._dynamo.reset()
        call: Any = torch.compile(device, dynamic=False) if compile else device
        with torch.no_grad():
            found = result(call(**there(given, dtype))).cpu().float()
        # Results at padded places are nobody's: a mask may make them anything.
        shape = kept if kept.dim() == wanted.dim() else torch.ones_like(wanted).bool()
        error = float(((found - wanted) * shape).abs().max() / (wanted * shape).abs().max())
        if not error <= TOLERANCE[dtype]:
            raise AssertionError(f"off by {error:.3g} of the largest magnitude")
        return error

    for dtype in (torch.float32, torch.float16):
        short = str(dtype).removeprefix("torch.")
        check(f"eager {short}", lambda dtype=dtype: forward(dtype, False))  # type: ignore[misc]
        check(f"compiled {short}", lambda dtype=dtype: forward(dtype, True))  # type: ignore[misc]
    if one.generates:
        device = moved(model, torch.float32)
        for name, how in WAYS.items():
            check(f"generate {name}", lambda how=how: _generate(one, model, device, given, how))  # type: ignore[misc]
    check("training", lambda: _train(one, model, given))
    return checks


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "static": {"do_sample": False, "cache_implementation": "static", "disable_compile": True},
    "beams": {"do_sample": False, "num_beams": 3},
    "sampled": {"do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.9},
}


def _generate(
    one: Family,
    model: torch.nn.Module,
    device: torch.nn.Module,
    given: dict[str, torch.Tensor],
    how: dict[str, Any],
) -> None:
    taken = {n: t for n, t in given.items() if n != "decoder_input_ids"}
    more = how | {"max_new_tokens": STEPS, "min_new_tokens": STEPS}

    def tokens(on: Any, values: dict[str, torch.Tensor]) -> torch.Tensor:
        torch.manual_seed(5)
        with torch.inference_mode():
            found: torch.Tensor = on.generate(**values, **more)
        return found.cpu()

    found = tokens(device, there(taken, torch.float32))
    if how["do_sample"]:
        again = tokens(device, there(taken, torch.float32))
        if not torch.equal(found, again):
            raise AssertionError("one seed gave two texts")
        return
    wanted = tokens(model, taken)
    if not torch.equal(found, wanted):
        count = int((found != wanted).sum()) if found.shape == wanted.shape else -1
        raise AssertionError(f"tokens differ from the CPU's: {count} of {wanted.numel()}")


def _train(one: Family, model: torch.nn.Module, given: dict[str, torch.Tensor]) -> float:
    """One SGD step; the largest error of a parameter's gradient, of its largest magnitude."""
    here = copy.deepcopy(model)
    card = moved(model, torch.float32)
    for on, values in ((here, given), (card, there(given, torch.float32))):
        on.train()
        for part in on.modules():  # what chooses at random cannot be compared
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        optimizer = torch.optim.SGD(on.parameters(), lr=0.1)
        result(on(**values)).float().square().mean().backward()
        optimizer.step()
    worst = 0.0
    mine = dict(card.named_parameters())
    largest = max(float(p.grad.abs().max()) for p in here.parameters() if p.grad is not None)
    for name, parameter in here.named_parameters():
        if parameter.grad is None:
            continue
        gradient = mine[name].grad
        if gradient is None:
            raise AssertionError(f"{name} has no gradient")
        worst = max(worst, float((gradient.cpu() - parameter.grad).abs().max()) / largest)
    if not worst <= 1e-3:
        raise AssertionError(f"a gradient is off by {worst:.3g} of the largest")
    return worst


# --- the table


def table(found: dict[str, list[Check]]) -> str:
    """Markdown: a row a family; then what fell back and what failed, by name."""
    columns = ["eager float32", "compiled float32", "eager float16", "compiled float16",
               *(f"generate {way}" for way in WAYS), "training"]  # fmt: skip
    lines = ["| family | " + " | ".join(columns) + " | fallbacks |",
             "|---" * (len(columns) + 2) + "|"]  # fmt: skip
    for name, checks in found.items():
        by = {c.name: c for c in checks}
        cells = [_cell(by.get(column)) for column in columns]
        operations = sorted({o for c in checks for o in c.fallbacks})
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {', '.join(operations) or '-'} |")
    problems = [f"- {name}, {c.name}: `{c.problem}`"
                for name, checks in found.items() for c in checks if c.problem]  # fmt: skip
    return "\n".join(lines + (["", "What failed:", "", *problems] if problems else []))


def _cell(check: Check | None) -> str:
    if check is None:
        return ""
    if check.problem:
        return "**failed**"
    text = "same" if check.error is None else f"{check.error:.1e}"
    calls = sum(check.fallbacks.values())
    return f"{text} ({calls})" if calls else text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", help="names; all by default")
    parser.add_argument("--only", action="append", help="a check by name, repeatedly")
    parser.add_argument("--results", type=Path, help="keep results here (JSON), and add to them")
    parser.add_argument("--write", type=Path, help="put the table into this page")
    options = parser.parse_args()
    found: dict[str, list[Check]] = {}
    if options.results and options.results.exists():
        for name, rows in json.loads(options.results.read_text()).items():
            found[name] = [Check(**row) for row in rows]
    wanted = {n.lower() for n in options.families}
    for one in FAMILIES:
        if (wanted and one.name.lower() not in wanted) or (not wanted and one.name in found):
            continue
        started = time.perf_counter()
        try:
            found[one.name] = survey(one, options.only)
        except Exception as error:
            found[one.name] = [Check("build", problem=f"{type(error).__name__}: {error}"[:300])]
        bad = [f"{c.name}: {c.problem}" for c in found[one.name] if c.problem]
        fell = sorted({o for c in found[one.name] for o in c.fallbacks})
        print(f"{one.name}: {time.perf_counter() - started:.0f} s; {'; '.join(bad) or 'well'}"
              f"; fallbacks: {', '.join(fell) or 'none'}", flush=True)  # fmt: skip
        if options.results:
            options.results.write_text(
                json.dumps({n: [asdict(c) for c in rows] for n, rows in found.items()}, indent=1)
            )
    order = [one.name for one in FAMILIES]
    text = table({name: found[name] for name in order if name in found})
    if options.write:
        page = options.write.read_text()
        head, tail = page.split(BEGIN)[0], page.split(END)[1]
        options.write.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
