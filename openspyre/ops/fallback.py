"""The CPU fallback: its policy, and the account of what it did.

An operation without a kernel for the device runs on the CPU through explicit copies. The policy
says whether it may; every such call is counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from openspyre import _C

POLICIES = ("allow", "warn", "error")


class fallback:
    """`fallback("error")` sets the policy for the process, at once; as a context manager it also
    brings the former one back.

    "allow" falls back, "warn" falls back and warns once per operation, "error" raises
    NotImplementedError naming the operation. Raises ValueError for anything else.
    """

    def __init__(self, policy: str) -> None:
        if policy not in POLICIES:
            raise ValueError(f"unknown fallback policy {policy!r}: one of {', '.join(POLICIES)}")
        self.policy = policy
        self.before = _C.fallback_policy()
        _C.fallback_set_policy(policy)

    def __enter__(self) -> fallback:
        _C.fallback_set_policy(self.policy)
        return self

    def __exit__(self, *_: object) -> None:
        _C.fallback_set_policy(self.before)

    def __repr__(self) -> str:
        return f"fallback({self.policy!r})"


def fallback_policy() -> str:
    """The policy now: "allow", "warn" or "error"."""
    return _C.fallback_policy()


@dataclass(frozen=True)
class FallbackRow:
    """One operation that ran on the CPU."""

    operation: str
    calls: int
    bytes_to_host: int
    bytes_to_device: int
    notes: tuple[str, ...] = ()
    """What the account says about the calls beyond numbers, such as computing in float32."""

    @property
    def bytes(self) -> int:
        """Bytes moved in both directions."""
        return self.bytes_to_host + self.bytes_to_device


@dataclass(frozen=True)
class FallbackReport:
    """The account at one moment: rows with the most bytes first. str() is the table."""

    rows: tuple[FallbackRow, ...] = field(default_factory=tuple)

    @property
    def calls(self) -> int:
        return sum(row.calls for row in self.rows)

    @property
    def bytes(self) -> int:
        return sum(row.bytes for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, operation: str) -> FallbackRow:
        """The row of one operation; KeyError when it never fell back."""
        for row in self.rows:
            if row.operation == operation:
                return row
        raise KeyError(operation)

    def __contains__(self, operation: object) -> bool:
        return any(row.operation == operation for row in self.rows)

    def table(self, limit: int | None = None) -> str:
        """A text table: operation, calls, bytes to host, bytes to device."""
        if not self.rows:
            return "No operation fell back to the CPU."
        shown = self.rows[:limit]
        width = max(len("operation"), len("total"), *(len(row.operation) for row in shown))
        head = f"{'operation':<{width}} {'calls':>9} {'to host':>14} {'to device':>14}  notes"
        lines = [head, "-" * len(head)]
        for row in shown:
            lines.append(
                f"{row.operation:<{width}} {row.calls:>9,} {row.bytes_to_host:>14,} "
                f"{row.bytes_to_device:>14,}  {'; '.join(row.notes)}".rstrip()
            )
        if len(shown) < len(self.rows):
            lines.append(f"... and {len(self.rows) - len(shown)} more operations")
        to_host = sum(row.bytes_to_host for row in self.rows)
        to_device = sum(row.bytes_to_device for row in self.rows)
        lines.append(f"{'total':<{width}} {self.calls:>9,} {to_host:>14,} {to_device:>14,}")
        return "\n".join(lines)

    __str__ = table


def fallback_report() -> FallbackReport:
    """What fell back since the start or the last `reset_fallback_report`. Bytes are host bytes."""
    rows = []
    for operation, calls, to_host, to_device, notes in _C.fallback_counts():
        rows.append(FallbackRow(operation, calls, to_host, to_device, tuple(notes)))
    rows.sort(key=lambda row: (-row.bytes, -row.calls, row.operation))
    return FallbackReport(tuple(rows))


def reset_fallback_report() -> None:
    """Sets the account to zero."""
    _C.fallback_reset()
