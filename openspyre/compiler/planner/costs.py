"""Closed forms of the timing model: what so many bytes, products or points take on each server.

The constants are those of `openspyre.timing.table` and `openspyre.card`; here stand only formulas,
those of docs/timing.md. All times are nanoseconds, sizes bytes. Imports no torch.
"""

from __future__ import annotations

from openspyre.card import PRESETS, CardSpec
from openspyre.formats import STICK_BYTES, Format
from openspyre.program.model import Body
from openspyre.program.ops import BODY_OP
from openspyre.timing.costs import FUNCTIONS
from openspyre.timing.table import TABLE, TimingTable


class Rates:
    """The servers of one card under one table."""

    def __init__(self, card: CardSpec = PRESETS["spyre"], table: TimingTable = TABLE) -> None:
        self.table = table
        self.clock = card.clock_hz / 1e9  # cycles a ns
        self.macs = card.macs_per_corelet * card.corelets * self.clock
        self.lanes = card.sfu_lanes * card.corelets * self.clock
        self.lx_rate = card.lx_sticks_per_cycle * STICK_BYTES * self.clock
        self.ring_rate = card.ring_bytes_per_cycle * self.clock
        self.dram_rate = table.dram_bytes_per_ns
        self.stream_rate = table.stream_bytes_per_ns

    def dram(self, read: float, written: float) -> float:
        """LPDDR5 for all cores together."""
        turned = min(read, written) * self.table.dram_turnaround_ns_per_byte
        return (read + written) / self.dram_rate + turned

    def shared(self, group: int) -> float:
        """How much longer one read for `group` cores takes than one for a single core."""
        return max(1.0, group / self.table.multicast_full_rate)

    def stream(self, nbytes: float) -> float:
        """One operand of one core."""
        return nbytes / self.stream_rate

    def lx(self, nbytes: float) -> float:
        """The LX port of one core."""
        return nbytes / self.lx_rate

    def ring(self, nbytes: float) -> float:
        """Bytes over the busiest link of the ring."""
        return nbytes / self.ring_rate

    def fill(self, rows: int) -> float:
        """The share of the PT array that tasks of `rows` rows use."""
        return min(1.0, (rows / self.table.pt_fill_rows) ** self.table.pt_fill_exponent)

    def pt(self, macs: float, rows: int, format: Format) -> float:
        """`macs` products (k and n in whole sticks) of one core in tasks of `rows` rows."""
        return macs / (self.macs * self.fill(rows) * pt_rate(format, self.table))

    def sfu(self, points: float, cycles: float) -> float:
        """`points` of a body of `cycles`, on one core."""
        return points * cycles / self.lanes


def pt_rate(format: Format, table: TimingTable = TABLE) -> float:
    """Products of inputs of `format`, relative to 16-bit ones."""
    if format is Format.IEEE_FP32:
        return table.pt_rate_fp32
    if format is Format.SENINT8:
        return table.pt_rate_int8
    return table.pt_rate_fp8 if format.bytes == 1 else 1.0


def body_cycles(body: Body, table: TimingTable = TABLE) -> float:
    """SFU cycles of a MAP per point and lane."""
    cycles = 0.0
    for node in body.nodes:
        if node.op in FUNCTIONS:
            cycles += table.sfu_cycles_function
        elif BODY_OP[node.op].operands:
            cycles += table.sfu_cycles_simple
    return max(cycles, table.sfu_cycles_simple)
