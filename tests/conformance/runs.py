"""The runs of the harness: which database, dtype and numerics, against which reference.

No torch here: dtypes are names until a worker resolves them.
"""

from __future__ import annotations

from dataclasses import dataclass, field


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
    native: bool = False  # eager operations on the card; counts what moves no byte to the host
    compiled: bool = False  # through torch.compile
    backward: int | None = None  # like `minimum`, of backward parts

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

# What computes on the card itself: docs/operators.md. `minimum` is of native entries, forward.
NATIVE_RUNS: dict[str, Run] = {
    run.name: run
    for run in (
        Run(
            "native-float32", "operators", "float32", "float32", None, 450,
            native=True, backward=300,
        ),
        Run("native-float16-ieee", "operators", "float16", "float32", "ieee", 400, native=True),
        Run("native-float16-dl16", "operators", "float16", "float32", "dl16", 400, native=True),
        Run(
            "native-compiled", "operators", "float32", "float32", None, 300,
            native=True, compiled=True,
        ),
        Run("native-modules", "modules", "float32", "float32", None, 80, native=True),
    )
}  # fmt: skip
EVERY_RUN = RUNS | NATIVE_RUNS


@dataclass
class Part:
    """The forward or backward computation of an entry in a native run.

    `status`: "native", "fallback", "fail", or "none" where the CPU has none. `cases`: how many
    samples were run, of `of`; a slow entry is cut off. `reason`: why it is not native.
    """

    status: str
    cases: int = 0
    of: int = 0
    reason: str = ""


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
    parts: dict[str, Part] = field(default_factory=dict)  # of a native run

    @property
    def passed(self) -> bool:
        return self.status in ("native", "fallback")
