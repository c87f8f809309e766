"""The modelled card: every hardware constant of OpenSpyre has its one home here. Imports no torch.

Every figure is modelled. Where it comes from stands beside it as a source tag:

    P  published: torch-spyre documentation and interface specifications, vendor pages, RaPiD (ISCA
       2021), Hot Chips 2024
    U  constant of the open torch-spyre cost model
    M  measured by third parties on real cards
    D  derived by arithmetic from other figures
    E  estimate; no open source states it

One way to override: ``OPENSPYRE_CARD="name:key=value,key=value"`` (`CardSpec.parse`), for example
``spyre:clock_hz=1.2e9`` or ``tiny:usable_bytes=64M``. Planner and timing constants are not here:
they have tables of their own.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field, fields, replace
from typing import Any

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

STICK_BYTES = 128  # P: the unit of device layouts, of the ring and of memory bursts
BLOCK_ALIGN = 128  # P: allocations are rounded up to it
SEGMENT_BITS = 34  # P: a segment is 16 GiB of device memory virtual address
SEGMENT_BYTES = 1 << SEGMENT_BITS
SEGMENTS = 8  # P
TENSOR_SEGMENTS = range(1, 6)  # segment 0 stays unmapped: addresses before a tensor must fault
DYNAMIC_SEGMENT = 6  # program memory of one launch
PROGRAM_SEGMENT = 7  # P: program images; base 0x1C00000000
MAX_HANDLES = 16  # largest region table a Virtual Function may be given (E; VF counts not public)

_SUFFIXES = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": 1 << 40}
_BYTES_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Bytes of "4096", "64M", "1.5G" or "112GiB"; the suffixes K, M, G, T are powers of 1024.

    Raises ValueError with the right form.
    """
    match = _BYTES_TEXT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a number of bytes: write 4096, 64M, 1.5G or 1T")
    return int(float(match[1]) * _SUFFIXES[match[2].upper()])


def _known(default: Any, tag: str, source: str, unit: str = "") -> Any:
    return field(default=default, metadata={"tag": tag, "source": source, "unit": unit})


@dataclass(frozen=True, kw_only=True)
class CardSpec:
    """One card. Frozen; `override` gives a changed copy. Field metadata: tag, source, unit."""

    name: str = "spyre"

    # Compute
    cores: int = _known(32, "P", "hardware pages")
    corelets: int = _known(2, "P", "per core")
    macs_per_corelet: int = _known(
        512, "D", "8x8 array of 8-way units; matches the ideal cycles the compiler prints", "MAC"
    )
    sfu_lanes: int = _known(64, "E", "fp16 lanes per vector unit, from an open sample device")
    clock_hz: float = _known(1.1e9, "P", "default of the public trace analyser", "Hz")
    counter_hz: float = _known(1.0e9, "P", "cycle counter of the public trace analyser", "Hz")

    # Scratchpad and ring
    lx_bytes: int = _known(2 * MIB, "P", "LX scratchpad per core, shared by its corelets", "B")
    lx_sticks_per_cycle: int = _known(1, "E", "per core")
    ring_bytes_per_cycle: int = _known(128, "P", "data ring, each of two directions", "B")

    # Memory
    total_bytes: int = _known(128 * GIB, "P", "LPDDR5, ECC included", "B")
    usable_bytes: int = _known(112 * GIB, "P", "16 GB go to ECC", "B")
    burst_bytes: int = _known(4096, "U", "at most 32 words of 128 B", "B")
    core_span_bytes: int = _known(
        256 * MIB - 4 * KIB, "D", "255.996 MiB contiguous per core are documented", "B"
    )
    region_handles: int = _known(8, "P", "region table of a Virtual Function")
    region_min_bytes: int = _known(2 * MIB, "E", "granule of region growth", "B")
    region_max_bytes: int = _known(SEGMENT_BYTES, "D", "no region outgrows a segment", "B")

    # Transfers: latency + bytes / rate
    h2d_bytes_per_ns: float = _known(55.0, "M", "host link, 54-59 seen", "B/ns")
    d2h_bytes_per_ns: float = _known(55.0, "E", "taken equal to the other direction", "B/ns")
    d2d_bytes_per_ns: float = _known(
        105.0, "U", "memory traffic with as many bytes read as written", "B/ns"
    )
    transfer_latency_ns: int = _known(1000, "M", "about 1 us per control block", "ns")
    host_submit_ns: int = _known(1000, "M", "about 1 us per control block", "ns")
    launch_overhead_ns: int = _known(90_000, "E", "middle of the 40-140 us seen", "ns")
    host_layout_bytes_per_ns: float = _known(
        4.6, "M", "layout conversion on a real host's CPU", "B/ns"
    )

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            # A latency may be nothing at all; a rate or a size may not.
            free = item.name.endswith("_ns") and item.type == "int" and value == 0
            if item.name != "name" and not free and not 0 < value < float("inf"):
                raise ValueError(f"card {self.name}: {item.name}={value} must be above zero")
        for name in ("usable_bytes", "region_min_bytes", "region_max_bytes", "lx_bytes"):
            if getattr(self, name) % BLOCK_ALIGN:
                raise ValueError(
                    f"card {self.name}: {name}={getattr(self, name)} must be a multiple of "
                    f"{BLOCK_ALIGN}"
                )
        if self.usable_bytes > self.total_bytes:
            raise ValueError(
                f"card {self.name}: usable_bytes={self.usable_bytes} is above "
                f"total_bytes={self.total_bytes}"
            )
        if not self.region_min_bytes <= self.region_max_bytes <= SEGMENT_BYTES:
            raise ValueError(
                f"card {self.name}: want region_min_bytes <= region_max_bytes <= {SEGMENT_BYTES} "
                f"(a segment), got {self.region_min_bytes} and {self.region_max_bytes}"
            )
        if self.region_handles > MAX_HANDLES:
            raise ValueError(
                f"card {self.name}: region_handles={self.region_handles} is above {MAX_HANDLES}"
            )

    @property
    def macs_per_cycle(self) -> int:
        """fp16 multiply-accumulates per cycle of the whole card."""
        return self.cores * self.corelets * self.macs_per_corelet

    @property
    def fp16_peak_flops(self) -> float:
        """Modelled fp16 peak in FLOP/s: two operations per multiply-accumulate."""
        return 2.0 * self.macs_per_cycle * self.clock_hz

    def override(self, **changes: Any) -> CardSpec:
        """A copy with other values. Raises ValueError for what cannot be."""
        return replace(self, **changes)

    @staticmethod
    def parse(text: str) -> CardSpec:
        """The card of ``"name"`` or ``"name:key=value,key=value"``.

        Byte counts take the suffixes of `parse_bytes`. Raises ValueError naming what is wrong.
        """
        form = "OPENSPYRE_CARD=name or name:key=value,key=value"
        name, colon, rest = text.strip().partition(":")
        preset = PRESETS.get(name.strip())
        if preset is None:
            raise ValueError(f"no card {name.strip()!r}: there are {', '.join(PRESETS)} ({form})")
        types = {item.name: item.type for item in fields(CardSpec) if item.name != "name"}
        changes: dict[str, Any] = {}
        for pair in rest.split(",") if colon else []:
            key, equals, value = (part.strip() for part in pair.partition("="))
            if not equals or not value:
                raise ValueError(f"{pair!r} in {text!r} is not key=value ({form})")
            if key not in types:
                near = difflib.get_close_matches(key, types, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(types)}"
                raise ValueError(f"a card has no {key!r}: {hint}")
            if key in changes:
                raise ValueError(f"{key} stands twice in {text!r}")
            changes[key] = _parse_value(key, types[key], value)
        return preset.override(**changes)

    def table(self) -> str:
        """The card as text, one line a figure with unit, tag and source."""
        lines = [f"card {self.name} (modelled)"]
        for row in self.figures():
            value = f"{row['value']:,} {row['unit']}".rstrip()
            lines.append(f"  {row['name']:<25}{value:<24}{row['tag']}  {row['source']}")
        return "\n".join(lines)

    def figures(self) -> list[dict[str, Any]]:
        """Name, value, unit, tag and source of every figure."""
        return [
            {"name": item.name, "value": getattr(self, item.name), **item.metadata}
            for item in fields(self)
            if item.name != "name"
        ]


def _parse_value(key: str, kind: Any, value: str) -> float | int:
    try:
        if key.endswith("_bytes"):
            return parse_bytes(value)
        return int(value.replace("_", "")) if kind == "int" else float(value)
    except ValueError as error:
        what = "a whole number" if kind == "int" else "a number"
        reason = error if key.endswith("_bytes") else f"{value!r} is not {what}"
        raise ValueError(f"{key}: {reason}") from None


PRESETS: dict[str, CardSpec] = {
    "spyre": CardSpec(),
    # The same card with memory in megabytes, so that exhaustion and fragmentation show at once.
    "tiny": CardSpec(
        name="tiny",
        total_bytes=16 * MIB,
        usable_bytes=16 * MIB,
        region_min_bytes=256 * KIB,
        region_max_bytes=4 * MIB,
    ),
}
