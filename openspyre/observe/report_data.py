"""The figures of a report as plain data: what the page draws and `--json` prints. Imports no torch.

Times in ns are the virtual clock's or the timing model's and are modelled, all of them; only fields
called `wall` are measured. Bytes are bytes of the card, unless a field says otherwise.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Speed:
    """How fast a part of the run was. Rates are `unit`s per second, None where nothing was counted
    or no time passed. `note`: how the figure came about."""

    name: str
    unit: str
    count: int
    wall_seconds: float
    modelled_seconds: float
    wall_rate: float | None
    modelled_rate: float | None
    note: str = ""


@dataclass(frozen=True)
class Bound:
    """What bounds the run (modelled). `name`: a server of the card ("LPDDR5", "PT", "SFU", "LX",
    "ring"), an engine ("h2d", "d2h") or "host"; `shares`: busy share of each over the time looked
    at, 0..1, `text` the sentence for people."""

    name: str
    text: str
    shares: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineRow:
    """One engine of the card. `share`: busy time over the modelled time of the run."""

    name: str
    steps: int
    bytes: int
    busy_ns: int
    share: float


@dataclass(frozen=True)
class KernelRow:
    """One kernel of a compiled region, or all launches of one program in eager mode.

    Times: one launch (`modelled_ns`) and all of them (`total_ns`); bytes, MACs and `lane_ops`
    (SFU operations, one a lane and cycle) are those of one launch. `rate`: operations per second
    while it runs; `intensity`: operations per byte of LPDDR5. `lx`: (buffer, first byte, bytes of a
    slot, slots).
    """

    name: str
    kind: str
    mode: str
    """ "compiled", "eager", or "other": no program is known (copies, synthetic work)."""
    region: str
    number: int
    layer: str
    operations: list[str]
    sources: list[str]
    launches: int
    modelled_ns: float
    total_ns: float
    share: float
    bound_by: str
    utilisation: dict[str, float]
    bytes_read: int
    bytes_written: int
    lx_received: int
    macs: int
    lane_ops: float
    rate: float
    intensity: float
    dtype: str
    cores: int
    splits: dict[str, int]
    tile: dict[str, int]
    lx_bytes: int
    lx: list[tuple[str, int, int, int]]


@dataclass(frozen=True)
class LayerRow:
    """Kernels of one module of the model (or, where no module is known, of one source line or
    operation), summed over the run. `kernels`: their numbers in `ReportData.kernels`."""

    name: str
    kind: str
    """ "module", "source", "operation" or "copies"."""
    kernels: list[int]
    launches: int
    total_ns: float
    share: float
    bound_by: str
    bytes_read: int
    bytes_written: int
    macs: int
    sources: list[str]


@dataclass(frozen=True)
class Segment:
    """Steps of one lane, drawn as one bar: `steps` > 1 where single ones would be too thin.
    `bound`: the server that bounds the (longest) step, "" where no program is known."""

    start_ns: int
    end_ns: int
    busy_ns: int
    steps: int
    name: str
    bound: str = ""


@dataclass(frozen=True)
class Lane:
    """What one engine did for one stream."""

    stream: int
    engine: str
    steps: int
    busy_ns: int
    segments: list[Segment]


@dataclass(frozen=True)
class Picture:
    """A piece of virtual time: `edges_ns` of its bins, and for each bin the busy share of every
    core in percent (`work`: PT and SFU, `data`: transfers), and the LX in use in bytes, of the
    fullest core and on average over the cores. `covered`: share of the compute time in it whose
    program is known; the rest is missing in `work`, `data` and LX."""

    title: str
    start_ns: int
    end_ns: int
    lanes: list[Lane]
    edges_ns: list[float]
    work: list[list[int]]
    data: list[list[int]]
    lx_peak: list[int]
    lx_mean: list[float]
    covered: float
    phases: list[tuple[str, int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Block:
    """A piece of a region. `state`: "tensor", "program", "pending" (freed, a stream still uses it)
    or "free". `name`: the tensor, where it is known, else where it was allocated, else ""."""

    offset: int
    bytes: int
    state: str
    blocks: int
    name: str


@dataclass(frozen=True)
class RegionRow:
    """A region of the card's memory."""

    number: int
    type: str
    bytes: int
    allocated: int
    blocks: list[Block]


@dataclass(frozen=True)
class MemoryData:
    """`at_ns`, `allocated`, `reserved`: tensor memory over modelled host time, as sampled;
    `regions`: how it lay when it was fullest among the moments looked at; `stats`:
    torch.spyre.memory_stats at the end."""

    at_ns: list[int]
    allocated: list[int]
    reserved: list[int]
    regions: list[RegionRow]
    stats: dict[str, int]
    capacity: int


@dataclass(frozen=True)
class FallbackData:
    """An operation that the CPU computed; bytes are host bytes."""

    operation: str
    calls: int
    bytes_to_host: int
    bytes_to_device: int
    reasons: list[str]
    advice: str


@dataclass(frozen=True)
class FormatRow:
    """How far values of one operation are from float32, relative to the largest magnitude expected:
    as the card computed it (`card`, in its numerics mode), and what rounding the float32 result
    once to DLFloat16 (`dl16`) or to the dtype's IEEE format (`ieee`) costs at least. Greatest over
    the elements, and the root of the mean square (`*_rms`)."""

    operation: str
    layer: str
    source: str
    dtype: str
    elements: int
    card: float
    card_rms: float
    dl16: float
    dl16_rms: float
    ieee: float
    ieee_rms: float
    overflow: int = 0
    """Elements that float32 holds and DLFloat16 or the IEEE format does not."""


@dataclass(frozen=True)
class FormatLayer:
    """Format errors of a layer: the greatest of its operations, and which one that is (by `card`).
    Values relative, as in FormatRow."""

    name: str
    operations: int
    card: float
    dl16: float
    ieee: float
    card_rms: float
    dl16_rms: float
    ieee_rms: float
    worst: str
    source: str


@dataclass(frozen=True)
class Advice:
    """What to do next: most rewarding first. `gain_ns`: modelled time that it concerns at most."""

    title: str
    text: str
    gain_ns: float = 0.0


@dataclass
class ReportData:
    """Everything the page shows."""

    title: str
    made_at: str
    version: str
    card: dict[str, Any]
    numerics: dict[str, str]
    wall_seconds: float
    modelled_ns: int
    notes: list[str]
    speeds: list[Speed]
    bound: Bound
    engines: list[EngineRow]
    layers: list[LayerRow]
    kernels: list[KernelRow]
    run: Picture | None
    call: Picture | None
    memory: MemoryData | None
    fallbacks: list[FallbackData]
    formats: list[FormatLayer]
    format_rows: list[FormatRow]
    advice: list[Advice]
    launches: dict[str, int]
    """Runs of compiled regions, launches of eager operations, regions compiled anew."""
    modelled: bool = True

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), allow_nan=False, separators=(",", ":"))
