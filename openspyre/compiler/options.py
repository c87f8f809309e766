"""What decides how a graph is compiled, besides the graph. Part of every cache key. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from openspyre.formats import Mode
from openspyre.program.model import Card


@dataclass(frozen=True)
class CompileOptions:
    """`card`: what the programs may use; `cores`: at most so many of its cores (0: all). The other
    fields force a choice that the planner would make (`torch.spyre.hint`); results do not change,
    but for another K split."""

    card: Card = field(default_factory=Card)
    mode: Mode = Mode.DL16
    cores: int = 0
    split: tuple[tuple[str, int], ...] = ()  # ("m" | "n" | "k" | "rows", parts)
    tile: tuple[tuple[str, int], ...] = ()  # ("m" | "n" | "k" | "rows", size)
    fuse: bool = True  # False: one kernel an op
    slots: int = 2  # slots of a stream between units
    confirm: int = 1  # > 1: of so many plans of a product the one that the timing model prefers
    planner: str = "own"  # "compat": products are split as the public compiler does

    @property
    def most_cores(self) -> int:
        """Cores a program may use."""
        return min(self.cores or self.card.cores, self.card.cores)
