"""The error of the verifier, with the rules of docs/program.md section 4 by number.

Imports no torch.
"""

from __future__ import annotations

from openspyre.program.concrete import ProgramError, Task

RULES = {
    1: "names, types and limits",
    2: "capacity and alignment",
    3: "LOAD and STORE move what they declare",
    4: "what is read was written before",
    5: "no write over what is in use",
    6: "tokens",
    7: "operands are stored once",
    8: "reductions cover each index once",
    9: "outputs do not overlap inputs",
}


class VerifyError(ProgramError):
    """A Program that breaks rule `rule`. `place` is the queue, instruction, core and loop indices
    (or the declaration) where it does, `reason` says what, with bytes and the way out."""

    def __init__(self, rule: int, place: str | Task, reason: str) -> None:
        self.rule = rule
        self.place = place.where() if isinstance(place, Task) else place
        self.reason = reason
        super().__init__(f"rule {rule} ({RULES[rule]}): {self.place}: {reason}")
