"""SpyreCode: a compiled job on disk, a directory with `spyrecode.json` and program images.

This room reads and writes such directories and knows nothing about devices: reading one touches no
card, so a directory that breaks a rule is refused before any device effect. The format is described
in docs/spyrecode.md; `spyrecode.schema.json` beside this file says the shape of the JSON.

`spyrecode_model` is the data, `spyrecode_json` and `spyrecode_read` read, `spyrecode_check` holds
the rules between the parts, `spyrecode_write` writes. Imports no torch.
"""

from openspyre.runtime.spyrecode_model import (
    PROGRAM_BASE,
    PROGRAM_LIMIT,
    SYMBOL_KINDS,
    Allocate,
    ComputeOnDevice,
    ComputeOnHost,
    Correction,
    CorrectionSymbol,
    DataTransfer,
    InitTransfer,
    Patch,
    SpyreCode,
    SpyreCodeError,
    Step,
)
from openspyre.runtime.spyrecode_read import read_spyrecode
from openspyre.runtime.spyrecode_write import Kernel, write_spyrecode

__all__ = [
    "PROGRAM_BASE",
    "PROGRAM_LIMIT",
    "SYMBOL_KINDS",
    "Allocate",
    "ComputeOnDevice",
    "ComputeOnHost",
    "Correction",
    "CorrectionSymbol",
    "DataTransfer",
    "InitTransfer",
    "Kernel",
    "Patch",
    "SpyreCode",
    "SpyreCodeError",
    "Step",
    "read_spyrecode",
    "write_spyrecode",
]
