"""The device under test, as the harness sees it.

``cpu`` is a stand-in: the harness compares the CPU with itself, which tests the harness. Names of
`torch.spyre` are used here and nowhere else in the harness.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from .runs import Run


class Target:
    """A device, with the numerics of a run chosen before its first tensor."""

    def __init__(self, device: str, run: Run, fallback: str) -> None:
        self.device = torch.device(device)
        self._ignored = 0
        self._spyre = self.device.type == "spyre"
        if self._spyre:
            torch.spyre.fallback(fallback)
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
        before = self._calls()
        try:
            with torch.spyre.fallback("allow"):
                yield
        finally:
            self._ignored += self._calls() - before

    def rounds_to_dl16(self) -> bool:
        """Whether float16 lives as DLFloat16 on this device."""
        return self._spyre and torch.spyre.numerics.mode() == "dl16"

    def synchronize(self) -> None:
        if self._spyre:
            torch.accelerator.synchronize(self.device)
