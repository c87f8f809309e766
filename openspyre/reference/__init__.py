"""The reference executor: what a Program means, in Python and numpy.

`run` executes a program on device bytes, with checks that the card does not have; `pack` and
`unpack` make those bytes from arrays and back. Slow by design: every step is one that can be read
beside docs/program.md. The verifier's tests, the fuzzers and the native machine's tests compare
with it.

Imports no torch, but for the functions of `functions`, whose bits are those of the extension.
"""

from openspyre.reference.executor import Outcome, run
from openspyre.reference.faults import FaultKind, ReferenceFault
from openspyre.reference.operands import (
    defined_bytes,
    empty,
    pack,
    pack_codes,
    unpack,
    unpack_codes,
)

__all__ = [
    "FaultKind",
    "Outcome",
    "ReferenceFault",
    "defined_bytes",
    "empty",
    "pack",
    "pack_codes",
    "run",
    "unpack",
    "unpack_codes",
]
