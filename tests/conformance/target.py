"""The device under test, as the harness sees it.

``cpu`` is a stand-in: the harness compares the CPU with itself, which tests the harness. Names of
`torch.spyre` are used here and nowhere else in the harness.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from .runs import Run


@dataclass
class Watched:
    """What a part of a run did besides computing on the card."""

    fallbacks: Counter[str] = field(default_factory=Counter)  # calls by operation
    to_host: int = 0  # steps that moved bytes to the host
    computed: int = 0  # steps that computed on the card
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def native(self) -> bool:
        return not self.fallbacks and not self.to_host

    def why(self) -> str:
        """Why it is not native, in one line."""
        if self.fallbacks:
            operation = next(iter(self.fallbacks))
            reason = self.reasons.get(operation, "")
            return f"{operation.removeprefix('aten::')}: {reason or 'no kernel of the card'}"
        return "the host reads a value" if self.to_host else ""


class Target:
    """A device, with the numerics of a run chosen before its first tensor."""

    def __init__(self, device: str, run: Run, fallback: str) -> None:
        self.device = torch.device(device)
        self._ignored = 0
        self._aside = Watched()
        self._spyre = self.device.type == "spyre"
        if self._spyre:
            torch.spyre.fallback(fallback)
            # Runs that are not native are about the device and the counted fallback alone.
            from openspyre import _C

            _C.native_set_enabled(run.native)
            if run.numerics is not None:
                torch.spyre.numerics.set_mode(run.numerics)
        elif fallback != "allow":
            raise ValueError(f"a fallback policy needs the device spyre, not {device}")

    def fallback_calls(self) -> int:
        """Fallback calls so far outside `aside`; 0 on the stand-in."""
        return self._calls() - self._ignored

    def _calls(self) -> int:
        return torch.spyre.fallback_report().calls if self._spyre else 0

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, a fallback is allowed and not counted: preparing and comparing is not the op."""
        if not self._spyre:
            yield
            return
        before, seen = self._calls(), self._seen()
        try:
            with torch.spyre.fallback("allow"):
                yield
        finally:
            self._ignored += self._calls() - before
            now = self._seen()
            self._aside.fallbacks += now.fallbacks - seen.fallbacks
            self._aside.to_host += now.to_host - seen.to_host
            self._aside.computed += now.computed - seen.computed

    def _seen(self) -> Watched:
        """The counters of the process."""
        if not self._spyre:
            return Watched()
        from openspyre import _C

        rows = torch.spyre.fallback_report().rows
        steps = [
            sum(_C.engine_totals(device, engine)[0] for device in range(_C.device_count()))
            for engine in ("D2H", "Compute")
        ]
        reasons = {
            row.operation: note
            for row in rows
            for note in row.notes
            if "16-bit operands" not in note
        }
        return Watched(Counter({r.operation: r.calls for r in rows}), steps[0], steps[1], reasons)

    @contextlib.contextmanager
    def watch(self) -> Iterator[Watched]:
        """What the device and the host do inside, but for what is done `aside`."""
        self._aside = Watched()
        found = Watched()
        before = self._seen()
        try:
            yield found
        finally:
            now = self._seen()
            found.fallbacks = now.fallbacks - before.fallbacks - self._aside.fallbacks
            found.to_host = now.to_host - before.to_host - self._aside.to_host
            found.computed = now.computed - before.computed - self._aside.computed
            found.reasons = now.reasons

    def rounds_to_dl16(self) -> bool:
        """Whether float16 lives as DLFloat16 on this device."""
        return self._spyre and torch.spyre.numerics.mode() == "dl16"

    def forget(self) -> None:
        """Sets the account of the fallback to zero."""
        if self._spyre:
            torch.spyre.reset_fallback_report()

    def recover(self) -> None:
        """After a failure: a failed step leaves its stream refusing all work."""
        if self._spyre:
            torch.spyre.reset_stream()

    def synchronize(self) -> None:
        if self._spyre:
            torch.accelerator.synchronize(self.device)
