"""Runs generated calls of operations on the card and compares them with the CPU.

    python tests/operation_fuzz.py --cases 20000 --seed 0 [--from N] [--workers 2] [--one N]

Inputs are rounded by the card first. The reference is torch on the CPU in float32 (never in half
precision), where that misses in float64; result dtypes are those of the CPU. A call is right, or
is refused with an error of the CPU's class or with one that names operation and rule. Every worker
is a process, and names the case it begins: a crash or a hang is a fault of that case.
"""

# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))

import torch
from operation_cases import HALVES, Case, generate
from torch import Tensor

import openspyre.timing

RIGHT = ("native", "fallback", "refused as the CPU", "refused", "beyond the CPU")
CHUNK = 1000
"""Cases of one process: each case leaves plans on the card."""

SECONDS = 180
"""After which a case hangs."""

RELATIVE = {torch.float16: 2.0**-9, torch.bfloat16: 2.0**-7, torch.float32: 4e-6}
"""Half a spacing of the card's format and of torch's; of float32 the SFU's functions."""

TIMED = 10
"""One case in so many has its time modelled: that changes no value and costs more than the rest."""

LACKS = ("not implemented", "not supported", "does not support", "only supports")
"""What an error says where the CPU has no kernel for a dtype."""

DIVIDES = "ZeroDivisionError"
"""The CPU's error where an integer is divided by zero: the card gives 0 (docs/program.md)."""

FLOOR = {torch.float16: 1e-7, torch.bfloat16: 1e-9, torch.float32: 1e-30}
TERMS = 2e-5
"""Error of a sum in float32, of the sum of its terms' sizes."""


@dataclass
class Verdict:
    number: int
    name: str
    kind: str
    """One of RIGHT, or "mismatch", "error", "crash", "hang"."""
    text: str = ""
    what: str = ""
    operations: tuple[str, ...] = ()
    """Those that the CPU computed."""
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        return self.kind in RIGHT


def flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [item for part in value for item in flat(part)]
    return [value]


def results(case: Case, bases: Sequence[Tensor], function: Any = None) -> list[Any]:
    """What the call gives on these bases; behind it what it wrote to. Without `function`, a
    reference: of contiguous operands where it can be, since the CPU's median of an expanded tensor
    reads past it, and its tril of one into an out= tensor is wrong. No expanded one is written."""
    views = [operand.view(base) for operand, base in zip(case.operands, bases, strict=True)]
    if function is None:
        views = [
            view.contiguous()
            if not case.written or any(s == "expand" for s, _ in o.steps)
            else view
            for o, view in zip(case.operands, views, strict=True)
        ]
    made = flat((function or case.function)(views))
    return [*made, *bases] if case.written else made


def wider(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    narrow = HALVES if dtype is torch.float32 else (*HALVES, torch.float32)
    return tensor.to(dtype) if tensor.dtype in narrow else tensor.clone()


@contextlib.contextmanager
def untimed() -> Iterator[None]:
    """No plan asks for its modelled time meanwhile."""
    before = openspyre.timing.duration_ns
    openspyre.timing.duration_ns = lambda *_: 1_000
    try:
        yield
    finally:
        openspyre.timing.duration_ns = before


def attempt(call: Any) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except Exception as error:
        return None, error


def judge(seed: int, number: int) -> Verdict:
    """Runs one case."""
    case = generate(seed, number)
    started = time.monotonic()
    timed = contextlib.nullcontext() if number % TIMED == 0 else untimed()
    with warnings.catch_warnings(record=True) as caught, timed:
        warnings.simplefilter("always")
        verdict = _judged(case, number)
        failed = [str(w.message) for w in caught if "compiler failed" in str(w.message)]
    if failed and verdict.right:
        verdict.kind, verdict.what = "error", failed[0]
    verdict.text, verdict.seconds = case.text, time.monotonic() - started
    return verdict


def _judged(case: Case, number: int) -> Verdict:
    verdict = Verdict(number, case.name, "native")
    made = [operand.make() for operand in case.operands]
    device = [base.to("spyre") for base in made]
    rounded = [d.cpu() if d.dtype in HALVES else base for base, d in zip(made, device, strict=True)]

    wide, wide_error = attempt(
        lambda: results(case, [wider(base, torch.float32) for base in rounded])
    )
    plain_bases = [base.to("meta") if case.product else base.clone() for base in rounded]
    plain, plain_error = attempt(lambda: results(case, plain_bases, case.function))

    torch.spyre.reset_fallback_report()
    found, error = attempt(lambda: _on_card(case, device))
    report = torch.spyre.fallback_report()
    if len(report):
        verdict.kind = "fallback"
        verdict.operations = tuple(f"{r.operation}: {'; '.join(r.notes)}" for r in report.rows)
    if error is not None:
        _judge_error(verdict, error, wide_error, plain_error)
        return verdict
    if wide_error is not None:
        if any(words in str(wide_error) for words in (*LACKS, DIVIDES)):
            verdict.kind = "beyond the CPU"
        else:
            verdict.kind = "mismatch"
            verdict.what = f"computed, the CPU raises {type(wide_error).__name__}: {wide_error}"
        return verdict
    terms = _terms(case, rounded) if case.sums else None
    for place, (ours, theirs) in enumerate(zip(found, wide, strict=True)):
        like = plain[place] if plain is not None else None
        term = terms[place] if terms is not None else None
        what = _differs(case, ours, theirs, like, term)
        if what.startswith("strides"):  # where torch's meta kernels say others, both are right
            meta, _ = attempt(
                lambda: results(case, [base.to("meta") for base in rounded], case.function)
            )
            if meta is not None and _differs(case, ours, theirs, meta[place], term) == "":
                what = ""
            elif _converts(case):
                what = _differs(case, ours, theirs, None, term)
        if what and isinstance(theirs, Tensor) and theirs.dtype is torch.float32:
            second, _ = attempt(
                lambda: results(case, [wider(base, torch.float64) for base in rounded])
            )
            if second is not None:
                what = _differs(case, ours, second[place], like, term)
        if what:
            verdict.kind, verdict.what = "mismatch", f"result {place}: {what}"
            return verdict
    return verdict


def _converts(case: Case) -> bool:
    """Whether an expanded operand is converted: only the CPU makes it dense before strides count,
    which TensorIterator does for no other device."""
    expanded = any(name == "expand" for o in case.operands for name, _ in o.steps)
    return expanded and len({o.dtype for o in case.operands}) > 1


def _on_card(case: Case, device: Sequence[Tensor]) -> list[Any]:
    function = case.function
    if case.compiled:
        torch._dynamo.reset()
        function = torch.compile(case.function)
    made = results(case, device, function)
    for item in made:
        if isinstance(item, Tensor) and item.device.type != "spyre":
            raise AssertionError("a result is not on the card")
    hosts: list[Any] = []
    for item in made:
        if isinstance(item, Tensor):
            host = item.cpu()
            hosts.append((host, item.stride()))
        else:
            hosts.append((item, None))
    return hosts


def _terms(case: Case, rounded: Sequence[Tensor]) -> list[Any] | None:
    sizes = [
        wider(b, torch.float32).abs() if b.dtype.is_floating_point else b.clone() for b in rounded
    ]
    return attempt(lambda: results(case, sizes))[0]


def _judge_error(
    verdict: Verdict, error: Exception, wide: Exception | None, plain: Exception | None
) -> None:
    text = f"{type(error).__name__}: {error}"[:600]
    for other in (plain, wide):
        if other is not None and isinstance(error, type(other)):
            verdict.kind = "refused as the CPU"
            return
    documented = isinstance(error, NotImplementedError) and "Way out" in str(error)
    if documented or "not supported" in str(error):
        verdict.kind, verdict.what = "refused", text
        return
    verdict.kind = "error"
    verdict.what = text if wide is None else f"{text} (the CPU: {type(wide).__name__}: {wide})"


def _differs(case: Case, ours: Any, theirs: Any, like: Any, terms: Any) -> str:
    """In what they differ, or ""."""
    found, strides = ours
    if not isinstance(theirs, Tensor):
        return "" if found == theirs else f"{found} for {theirs}"
    if found.shape != theirs.shape:
        return f"shape {list(found.shape)} for {list(theirs.shape)}"
    if like is not None:
        if found.dtype != like.dtype:
            return f"{found.dtype} for {like.dtype}"
        if case.strides and not case.compiled and found.numel() > 1:
            ones = [
                (a, b) for n, a, b in zip(found.shape, strides, like.stride(), strict=True) if n > 1
            ]
            if any(a != b for a, b in ones):
                return f"strides {strides} for {like.stride()}, shape {list(found.shape)}"
    if not found.dtype.is_floating_point:
        wrong = found != theirs.to(found.dtype)
        return _first(wrong, found, theirs) if wrong.any() else ""
    dtype = found.dtype
    want = theirs.to(dtype).double() if dtype in HALVES else theirs.double()
    exact, got = theirs.double(), found.double()
    allowed = RELATIVE[dtype] * exact.abs() + FLOOR[dtype]
    allowed = allowed + 1e-5 * case.absolute
    if case.steps and dtype in HALVES and exact.numel():  # taken apart: rounded in between
        sizes = terms if isinstance(terms, Tensor) else exact
        largest = sizes.double().abs().nan_to_num(0, 0, 0).max()
        allowed = allowed + RELATIVE[dtype] * (2 * exact.abs() + largest)
    if isinstance(terms, Tensor) and terms.shape == exact.shape:
        allowed = allowed + TERMS * terms.double().abs().nan_to_num(0, 0, 0)
    near = (got - exact).abs() <= allowed
    if dtype in HALVES:  # DLFloat16 has one code for NaN and infinity
        same = ~want.isfinite() & ~got.isfinite()
    else:
        same = (want == got) | (want.isnan() & got.isnan())
    wrong = ~(near | same)
    return _first(wrong, found, exact) if wrong.any() else ""


def _first(wrong: Tensor, found: Tensor, wanted: Tensor) -> str:
    at = wrong.nonzero()[0].tolist()
    count = int(wrong.sum())
    return (
        f"{count} of {wrong.numel()} wrong, {found.dtype}, first at {at}:"
        f" {found[tuple(at)].item()!r} for {wanted[tuple(at)].item()!r}"
    )


# --- many cases


def worker(seed: int, first: int, count: int) -> None:
    """Cases one after another, each named before it begins; its verdict as a line of JSON."""
    for number in range(first, first + count):
        print(json.dumps({"begins": number}), flush=True)
        print(json.dumps(asdict(judge(seed, number))), flush=True)


def sweep(seed: int, first: int, count: int) -> Iterator[Verdict]:
    """The verdicts of `count` cases, run in processes of their own."""
    number, end = first, first + count
    while number < end:
        part = min(CHUNK, end - number)
        command = [sys.executable, __file__, "--seed", str(seed), "--worker", f"{number}:{part}"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
        lines: queue.Queue[str | None] = queue.Queue()
        errors: collections.deque[str] = collections.deque(maxlen=12)

        def read(process: Any = process, lines: Any = lines) -> None:
            for line in process.stdout:
                lines.put(line)
            lines.put(None)

        threads = [
            threading.Thread(target=read, daemon=True),
            threading.Thread(target=lambda e=errors, p=process: e.extend(p.stderr), daemon=True),
        ]
        for thread in threads:
            thread.start()
        begun, kind = number, ""
        while True:
            try:
                line = lines.get(timeout=SECONDS)
            except queue.Empty:
                kind = "hang"
                process.kill()
                break
            if line is None:
                break
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if "begins" in said:
                begun = said["begins"]
            else:
                number = said["number"] + 1
                yield Verdict(**{**said, "operations": tuple(said["operations"])})
        process.wait()
        if kind or process.returncode:
            for thread in threads:
                thread.join(timeout=5)
            case = generate(seed, begun)
            what = f"exit {process.returncode}: {''.join(errors)[-1500:]}"
            yield Verdict(begun, case.name, kind or "crash", case.text, what)
            number = begun + 1


def run(seed: int, first: int, count: int, workers: int) -> Iterator[Verdict]:
    """Verdicts of all workers, in the order in which they come."""
    share = -(-count // workers)
    found: queue.Queue[Verdict | None] = queue.Queue()

    def one(start: int) -> None:
        try:
            for verdict in sweep(seed, start, min(share, first + count - start)):
                found.put(verdict)
        finally:
            found.put(None)

    starts = range(first, first + count, share)
    for start in starts:
        threading.Thread(target=one, args=(start,), daemon=True).start()
    open_ones = len(starts)
    while open_ones:
        verdict = found.get()
        if verdict is None:
            open_ones -= 1
        else:
            yield verdict


def show(verdict: Verdict) -> str:
    return f"case {verdict.number}: {verdict.kind}: {verdict.what}\n    {verdict.text}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--one", type=int, nargs="*", help="run these cases here")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--verbose", action="store_true", help="show refusals and fallbacks too")
    args = parser.parse_args()
    os.environ.setdefault("OPENSPYRE_CACHE_DIR", "off")
    if args.worker:
        worker(args.seed, *map(int, args.worker.split(":")))
        return 0
    if args.one:
        verdicts = [judge(args.seed, number) for number in args.one]
        print(*map(show, verdicts), sep="\n")
        return 0 if all(v.right for v in verdicts) else 1
    started = time.monotonic()
    kinds: collections.Counter[str] = collections.Counter()
    left: collections.Counter[str] = collections.Counter()
    wrong = 0
    for verdict in run(args.seed, args.first, args.cases, args.workers):
        kinds[verdict.kind] += 1
        left.update(operation.split(": ")[0] for operation in verdict.operations)
        if verdict.kind == "refused" or (args.verbose and verdict.operations):
            print(show(verdict), *verdict.operations, flush=True)
        if not verdict.right:
            wrong += 1
            print(show(verdict), flush=True)
        if sum(kinds.values()) % 1000 == 0:
            print(dict(kinds), f"{time.monotonic() - started:.0f} s", flush=True)
    print(f"seed {args.seed}, cases {args.first} to {args.first + args.cases - 1}:")
    for kind, count in kinds.most_common():
        print(f"  {kind:20} {count:6}")
    print("computed by the CPU:", ", ".join(f"{n} {c}" for n, c in left.most_common()) or "nothing")
    print(f"{wrong} wrong, {time.monotonic() - started:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
