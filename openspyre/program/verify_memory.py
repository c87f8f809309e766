"""Shadow memories: for every 128-byte stick who wrote it last, what it holds and who read it.

One for the LX of each core and one for each operand that a program writes. `time` of thread t is
the number of a task in its queue (`tokens.Step`); an access is free of races when every earlier
conflicting access of another thread lies in the past of its clock.
Part of the verifier; may import numpy, imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from openspyre.program.model import UNITS
from openspyre.program.tokens import Step
from openspyre.program.verify_error import VerifyError

Where: TypeAlias = "slice | np.ndarray"
Spot: TypeAlias = Callable[[int], str]  # the bytes of stick number n of an access, for messages


def thread_name(thread: int) -> str:
    return f"queue {UNITS[thread % len(UNITS)].value} of core {thread // len(UNITS)}"


class Shadow:
    """Arrays over the sticks of one memory. `kind` 0 means never written."""

    def __init__(self, name: str, sticks: int) -> None:
        self.name = name
        self.sticks = sticks
        self.kind = np.zeros(sticks, dtype=np.int32)  # kind of the tile + 1
        self.first = np.zeros(sticks, dtype=np.int64)
        self.valid = np.zeros(sticks, dtype=np.int16)
        self.cover = np.zeros(sticks, dtype=np.int32)
        self.thread = np.zeros(sticks, dtype=np.int16)
        self.time = np.zeros(sticks, dtype=np.int32)
        self.readers: dict[int, np.ndarray] = {}

    def mark_read(self, step: Step, where: Where) -> None:
        column = self.readers.get(step.thread)
        if column is None:
            column = self.readers[step.thread] = np.zeros(self.sticks, dtype=np.int32)
        column[where] = step.time

    def check_after_writes(
        self, step: Step, where: Where, rule: int, spot: Spot, what: str
    ) -> None:
        """The last writes of these sticks lie in the step's past."""
        threads, times = self.thread[where], self.time[where]
        thread = int(threads[0])
        if (threads == thread).all():  # the common case, and four times as fast
            late = times > step.clock[thread]
        else:
            late = times > step.clock[threads]
        # A step's own clock includes itself, so its queue's earlier tasks are always past.
        if late.any():
            at = int(np.argmax(late))
            writer = thread_name(int(self.thread[where][at]))
            raise VerifyError(
                rule,
                step.task,
                f"{what} {spot(at)} of {self.name} while {writer} may be writing there (task"
                f" {int(self.time[where][at])} of that queue); no token orders the two: let"
                " the later one WAIT for a SIGNAL of the earlier",
            )

    def check_after_reads(self, step: Step, where: Where, spot: Spot) -> None:
        """The reads of these sticks lie in the step's past."""
        for thread, column in self.readers.items():
            late = column[where] > step.clock[thread]
            if late.any():
                at = int(np.argmax(late))
                raise VerifyError(
                    5,
                    step.task,
                    f"writes {spot(at)} of {self.name} while {thread_name(thread)} may be reading"
                    " them; no token orders the two: let the later one WAIT for a SIGNAL of"
                    " the earlier",
                )

    def check_write(self, step: Step, where: Where, spot: Spot) -> None:
        self.check_after_writes(step, where, 5, spot, "writes")
        self.check_after_reads(step, where, spot)

    def mark_written(self, step: Step, where: Where) -> None:
        self.thread[where] = step.thread
        self.time[where] = step.time
