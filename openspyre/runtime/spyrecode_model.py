"""What a SpyreCode directory says, as plain data: see `spyrecode.py`. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from openspyre.card import PROGRAM_SEGMENT, SEGMENT_BITS, SEGMENT_BYTES
from openspyre.program.model import Program

PROGRAM_BASE = PROGRAM_SEGMENT << SEGMENT_BITS
"""DMVA at which a program sees the start of its allocation: 0x1C00000000."""
PROGRAM_LIMIT = PROGRAM_BASE + SEGMENT_BYTES
MAX_ARGUMENTS = 4096  # tensors of one launch

VERSION = 1
CODE_FILE = "spyrecode.json"


class SpyreCodeError(RuntimeError):
    """A directory that is no SpyreCode: names the file, the field (JSON path), the rule and, where
    there is one, the way out."""


@dataclass(frozen=True)
class Allocate:
    """Bytes of program memory: `static_size` in segment 7 for the life of the plan, `dynamic_size`
    in segment 6 for the time of one launch."""

    static_size: int
    dynamic_size: int


@dataclass(frozen=True)
class InitTransfer:
    """`data` (`size` bytes, read from `file`) goes to `dev_ptr` when the plan is prepared."""

    file: str
    dev_ptr: int
    size: int
    data: bytes = field(repr=False)


SYMBOL_KINDS = ("address", "dynamic", "dimension", "int", "float")


@dataclass(frozen=True)
class CorrectionSymbol:
    """A number that a launch knows.

    address    DMVA of the first element of launch argument `arg_index` (storage offset included)
    dynamic    DMVA of the launch's dynamic region; `arg_index` and `dim` are -1
    dimension  size of dim `dim` of launch argument `arg_index`
    int        the launch symbol `name`
    float      the 32 bits of the launch symbol `name`
    """

    id: int
    kind: str
    arg_index: int = -1
    dim: int = -1
    offset: int = 0
    scale: int = 1
    name: str = ""


@dataclass(frozen=True)
class Patch:
    """Writes a symbol into the blob: `width` bytes (1, 2, 4 or 8), little endian, at `blob_offset`
    hold (((value * symbol.scale + symbol.offset) * scale + addend) >> shift) & mask."""

    blob_offset: int
    width: int
    symbol: int  # id of a CorrectionSymbol
    scale: int = 1
    addend: int = 0
    shift: int = 0
    mask: int = 2**64 - 1


@dataclass(frozen=True)
class Correction:
    """How a ComputeOnHost makes its blob: zero bytes, then the patches. `checksum` is the symbol
    table's checksum in the header of the image that the blob lands on (docs/program.md 6)."""

    symbols: tuple[CorrectionSymbol, ...]
    patches: tuple[Patch, ...]
    checksum: int


@dataclass(frozen=True)
class ComputeOnDevice:
    """Runs the program image at `job_bin_ptr`. `args[i]` is the number of the launch argument that
    the program's argument i takes. `cost_ns`: a duration that stands in for the timing model."""

    job_bin_ptr: int
    name: str
    args: tuple[int, ...]
    cost_ns: int | None = None


@dataclass(frozen=True)
class ComputeOnHost:
    """Makes a blob of `size` bytes, named `ohandle`. `correction` None: all zero. `ihandle`: ""
    when the symbols' values come from the launch, else the handle that holds them as int64."""

    ohandle: str
    size: int
    ishape: tuple[int, ...]
    ihandle: str
    correction: Correction | None
    cost_ns: int | None = None


@dataclass(frozen=True)
class DataTransfer:
    """`to_device`: the blob `host_handle` to `dev_ptr` in program memory. Else from `dev_ptr` into
    a new host buffer `host_handle`: program memory in segment 7, or, in a lower segment, the
    launch argument with the segment's number."""

    to_device: bool
    host_handle: str
    dev_ptr: int
    size: int
    cost_ns: int | None = None

    @property
    def argument(self) -> int | None:
        """The launch argument it copies from; None for program memory."""
        segment = self.dev_ptr >> SEGMENT_BITS
        return None if self.to_device or segment >= PROGRAM_SEGMENT else segment


Step: TypeAlias = ComputeOnDevice | ComputeOnHost | DataTransfer


@dataclass(frozen=True)
class SpyreCode:
    """What a directory says, checked. `programs`: the decoded image at each `job_bin_ptr`.
    `content_hash`: equal for directories that say the same (hex SHA-256)."""

    directory: Path
    allocate: Allocate
    inits: tuple[InitTransfer, ...]
    steps: tuple[Step, ...]
    programs: dict[int, Program]
    content_hash: str

    def image(self, job_bin_ptr: int) -> bytes:
        """The bytes from a `job_bin_ptr` to the end of the InitTransfer that puts them there. The
        image there may be shorter: its header says how long it is."""
        for init in self.inits:
            if init.dev_ptr <= job_bin_ptr < init.dev_ptr + init.size:
                return init.data[job_bin_ptr - init.dev_ptr :]
        raise SpyreCodeError(f"{self.directory}: no image at {job_bin_ptr:#x}")

    @property
    def argument_count(self) -> int:
        """How many tensors a launch passes: those its programs take. Without a program, those its
        transfers name."""
        taken = [n for s in self.steps if isinstance(s, ComputeOnDevice) for n in s.args]
        if not any(isinstance(step, ComputeOnDevice) for step in self.steps):
            taken = [
                step.argument
                for step in self.steps
                if isinstance(step, DataTransfer) and step.argument is not None
            ]
        return 1 + max(taken, default=-1)
