"""What the compiler raises. Imports nothing of the project."""

from __future__ import annotations


class CompileError(RuntimeError):
    """A fault of the compiler itself: an invariant of a pass does not hold."""


class Unsupported(NotImplementedError):
    """What the card or the compiler does not do: operation, tensor, rule, way out.

    `operation` as in "aten.median.default", `what`: the tensor with shape, dtype and layout or the
    argument, `rule`: what it breaks, `way_out`: what the user can do instead.
    """

    def __init__(self, operation: str, what: str, rule: str, way_out: str = "") -> None:
        self.operation, self.what, self.rule, self.way_out = operation, what, rule, way_out
        text = f"{operation}: {what}: {rule}"
        super().__init__(f"{text}. Way out: {way_out}" if way_out else text)
