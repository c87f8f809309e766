"""The Program: the one artefact that the card runs. See docs/program.md.

`model` is the data, `ops` what units can do, `expr` the integer expressions; `builder`,
`boxes` and `body` are the way to write one in Python. Imports no torch.
"""

from __future__ import annotations

from openspyre.program.boxes import Span, Tensor, Tile
from openspyre.program.builder import ProgramBuilder, Stream
from openspyre.program.concrete import Instance, ProgramError
from openspyre.program.model import Program

__all__ = [
    "Instance",
    "Program",
    "ProgramBuilder",
    "ProgramError",
    "Span",
    "Stream",
    "Tensor",
    "Tile",
]
