"""What of an entry computes on the card: forward and backward, each with the reason if it does not.

*Native* is a part whose every sample gives the right values while the counters of the device say
that no operation fell back to the CPU and no step moved bytes to the host: what produces values was
a launched Program or a copy of the card. Preparing samples and comparing results is not counted.
Where a float32 result misses the CPU's, the same in float64 decides: that may be the CPU's error.

A database has up to hundreds of samples of one operator; here SAMPLES of them are run, spread over
all, and none after SECONDS have passed. `Part.cases` says how many were.
"""

# torch's stubs know neither the generated names nor what a test has made sure of.
# mypy: disable-error-code="misc"

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from .compare import Mismatch
from .modules import cases_of, prepare_case
from .operators import UNINITIALISED, Operator
from .placement import Twins, twins_of
from .runs import Part, Report, Run
from .target import Target, Watched

SAMPLES = int(os.environ.get("CONFORMANCE_SAMPLES", "5"))
COMPILED_SAMPLES = 1
SECONDS = 12.0

Item = TypeVar("Item")


class Account:
    """One part of an entry, sample by sample."""

    def __init__(self, target: Target, of: int) -> None:
        self.target = target
        self.part = Part("none", 0, of)
        self.failures: list[str] = []
        self.calls = 0

    def run(self, what: str, body: Callable[[], None], must_compute: bool = False) -> bool:
        """Counts `body`; an exception of it is a failure. Whether it passed."""
        self.part.cases += 1
        watched = Watched()
        try:
            with self.target.watch() as watched:
                body()
        except Exception as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
            if watched.why():
                text += f" (beside {watched.why()[:120]})"
            self.failures.append(f"{what}: {text}")
            if self.part.status != "fail":
                self.part.status, self.part.reason = "fail", text[:300]
            self.target.recover()
            return False
        self.calls += sum(watched.fallbacks.values())
        if not watched.native and self.part.status in ("none", "native"):
            self.part.status, self.part.reason = "fallback", watched.why()[:300]
        elif self.part.status == "none":
            self.part.status = "native"
        return True


def examine(name: str, entry: Any, run: Run, target: Target) -> Report:
    """The report of one entry in a native run; never raises."""
    begun = time.perf_counter()
    forward, backward = Account(target, 0), Account(target, 0)
    try:
        target.forget()
        if run.database == "operators":
            work = _Compiled if run.compiled else _Native
            work(entry, run, target, forward, backward).go(begun)
        else:
            _module(entry, run, target, forward, backward, begun)
    except Exception as error:  # a fault of the harness or of the database
        where = traceback.extract_tb(sys.exc_info()[2])[-1]
        text = f"outside a check: {type(error).__name__}: {error} ({where.name}:{where.lineno})"
        forward.part = Part("fail", reason=text[:300])
        forward.failures.append(text[:500])
    status = {"none": "no reference"}.get(forward.part.status, forward.part.status)
    return Report(
        name,
        status,
        forward.part.cases + backward.part.cases,
        forward.calls + backward.calls,
        time.perf_counter() - begun,
        tuple(forward.failures[:4] + backward.failures[:4]),
        {"forward": forward.part, "backward": backward.part},
    )


def spread(items: Sequence[Item], most: int) -> list[tuple[int, Item]]:
    """At most `most` of the items with their numbers, the first and the last among them; the middle
    one, if it is to be one."""
    count = len(items)
    if most == 1:
        return [(n, items[n]) for n in range(count // 2, min(count, count // 2 + 1))]
    if count <= most:
        return list(enumerate(items))
    picked = sorted({round(n * (count - 1) / (most - 1)) for n in range(most)})
    return [(n, items[n]) for n in picked]


class _Native(Operator):
    """The eager samples of one OpInfo."""

    most = SAMPLES

    def __init__(
        self, op: Any, run: Run, target: Target, forward: Account, backward: Account
    ) -> None:
        super().__init__(op, run, target)
        self.forward, self.backward = forward, backward

    def go(self, begun: float) -> None:
        with self.target.aside():
            cases = list(
                twins_of(
                    self.op, self.dtype, self.target.device,
                    upcast=not self.run.exact_dtype, requires_grad=self.differentiable,
                )
            )  # fmt: skip
        self.forward.part.of = self.backward.part.of = len(cases)
        for index, twins in spread(cases, self.most):
            if time.perf_counter() - begun > SECONDS and self.forward.part.cases:
                break
            self.sample(index, twins)

    def sample(self, index: int, twins: Twins) -> None:
        reference = self._build(twins.reference)
        state = torch.get_rng_state()
        try:
            expected = self._call(self.op, reference)
        except Exception:
            return
        draws = not torch.equal(state, torch.get_rng_state()) or self._draws_inside(twins)
        values = not draws and self.op.name not in UNINITIALISED
        placed = self._build(twins.placed)
        actual: Any = None

        def forward() -> None:
            nonlocal actual
            actual = self.compute(placed, twins)
            self.target.synchronize()
            try:
                self._same(actual, expected, reference, placed, twins, values, "result")
            except Mismatch as error:
                self.doubted(error, twins, lambda sample: self._call(self.op, sample), actual)

        if self.forward.run(f"sample {index} forward", forward) and self.differentiable:
            backward = self.backward_of(twins, reference, placed, expected, actual, values)
            if backward is not None:
                self.backward.run(f"sample {index} backward", backward)

    def compute(self, placed: Any, twins: Twins) -> Any:
        return self._call(self.op, placed)


class _Compiled(_Native):
    """The same through torch.compile, each sample as one graph; forward only."""

    most = COMPILED_SAMPLES

    def __init__(
        self, op: Any, run: Run, target: Target, forward: Account, backward: Account
    ) -> None:
        super().__init__(op, run, target, forward, backward)
        self.differentiable = False

    def compute(self, placed: Any, twins: Twins) -> Any:
        torch._dynamo.reset()
        with torch.no_grad():
            compiled = torch.compile(self.op.op, fullgraph=True, dynamic=False)
            # Inductor folds constants when it compiles and reads them then: not at later calls.
            first = self._build(twins.placed)
            with self.target.aside():
                self._call(compiled, first)
            return self._call(compiled, placed)


def _module(
    info: Any, run: Run, target: Target, forward: Account, backward: Account, begun: float
) -> None:
    """Every input of one ModuleInfo, in training and evaluation."""
    cases = list(cases_of(info, getattr(torch, run.dtype)))
    forward.part.of = backward.part.of = len(cases)
    for number, (what, training, case) in spread(cases, 2 * SAMPLES):
        if time.perf_counter() - begun > 3 * SECONDS and forward.part.cases:
            break
        with target.aside():
            prepared = prepare_case(info, case, training, getattr(torch, run.dtype), target)
        if prepared is None:
            continue
        if forward.run(f"{number} {what} forward", prepared.forward) and prepared.differentiable:
            backward.run(f"{number} {what} backward", prepared.backward)
