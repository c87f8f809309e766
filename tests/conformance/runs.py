"""The runs of the harness: which database, dtype and numerics, against which reference.

No torch here: dtypes are names until a worker resolves them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """One sweep over one database.

    `reference` is the dtype in which the CPU computes what is compared with; `numerics` is the
    number format mode of the card (None: its default). `minimum` is the least number of entries
    that must pass, None where every entry that the CPU passes must.
    """

    name: str
    database: str  # "operators", "modules", "optimizers"
    dtype: str
    reference: str
    numerics: str | None
    minimum: int | None
    errors: bool = False  # also try the error inputs (they choose their own dtypes)

    @property
    def exact_dtype(self) -> bool:
        """Whether the reference computes in the dtype under test."""
        return self.dtype == self.reference


RUNS: dict[str, Run] = {
    run.name: run
    for run in (
        Run("float32", "operators", "float32", "float32", None, 665, errors=True),
        Run("float16-ieee", "operators", "float16", "float32", "ieee", 530),
        Run("float16-dl16", "operators", "float16", "float32", "dl16", 530),
        Run("int64", "operators", "int64", "int64", None, 460),
        Run("modules", "modules", "float32", "float32", None, None),
        Run("optimizers", "optimizers", "float32", "float32", None, None),
    )
}


@dataclass
class Report:
    """What became of one database entry in one run. Sent from the worker to the parent.

    `status` is "native" (no fallback was counted), "fallback", "fail", "no reference" (the CPU
    cannot run it either), or, set by the parent, "crash", "timeout" or "memory".
    """

    name: str
    status: str
    checks: int = 0
    fallback_calls: int = 0
    seconds: float = 0.0
    failures: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.status in ("native", "fallback")
