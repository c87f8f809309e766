"""What a run of the reference executor can end with, other than a result.

Imports nothing of the project.
"""

from __future__ import annotations

from enum import Enum


class FaultKind(Enum):
    """The first six are those of the native machine's LaunchFault; the others are of the checks
    that only this executor makes."""

    ADDRESS = "address"  # bytes outside the LX or the operand, or not in whole sticks
    INDEX = "index"  # an index tile's number outside 0..limit-1, a slot or core that is not there
    DEADLOCK = "deadlock"  # waits that nothing will end
    NUMBER = "number"  # an expression that has no 64-bit value, a negative size or count
    UNPATCHED = "unpatched"  # an operand or symbol was not given
    STOPPED = "stopped"  # more tasks than allowed
    UNWRITTEN = "unwritten"  # a read of bytes that hold nothing: never written, or don't-care
    HAZARD = "hazard"  # two units touch the same stick, one writes, and no token orders them
    TOKEN = "token"  # a semaphore that does not end at its initial value
    PROGRAM = "program"  # an instruction that has no meaning: docs/program.md sections 2 and 3


class ReferenceFault(RuntimeError):
    """A run that failed. The text names the rule and the place: queue, instruction, core, loop
    indices, bytes. Operands that the program writes may have been written in part."""

    def __init__(self, kind: FaultKind, text: str) -> None:
        super().__init__(text)
        self.kind = kind
