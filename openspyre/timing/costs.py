"""What one task asks of the servers: bytes, unit time, LX traffic. Imports no torch.

The formulas are those of docs/timing.md; the constants are `table.py` and `openspyre.card`.
Times are integer picoseconds, so that a steady state repeats exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from openspyre.card import CardSpec
from openspyre.formats import STICK_BYTES, Format
from openspyre.program.concrete import Environment, compiled
from openspyre.program.model import Access, Compute, Label, Load, Ring, Store
from openspyre.program.ops import BODY_OP, LANE_ACCUMULATORS, Kind
from openspyre.timing.table import TimingTable

PS = 1000  # picoseconds in a nanosecond

# fmt: off
FUNCTIONS = frozenset((
    "div", "sqrt", "rsqrt", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p",
    "sigmoid", "tanh", "erf", "erfc", "erfinv", "gelu", "gelu_tanh", "silu", "softplus", "mish",
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "pow",
    "atan2", "fmod", "remainder", "floor_div", "trunc_div", "philox",
))
"""Operations of bodies that cost `sfu_cycles_function`; the others but leaves are simple."""
# fmt: on
_LEAVES = frozenset(op.name for op in BODY_OP.values() if not op.operands)


@dataclass(frozen=True)
class Demand:
    """What a task asks for: of one core, or summed over the cores of a class (`total`).

    `unit_ps`: time on its own unit."""

    unit_ps: int = 0
    nbytes: int = 0
    lx_bytes: int = 0
    macs: int = 0

    def most(self, other: Demand) -> Demand:
        """The larger of each: cores in step wait for the slowest."""
        return Demand(
            max(self.unit_ps, other.unit_ps),
            max(self.nbytes, other.nbytes),
            max(self.lx_bytes, other.lx_bytes),
            max(self.macs, other.macs),
        )

    def plus(self, other: Demand, times: int) -> Demand:
        return Demand(
            self.unit_ps + other.unit_ps * times,
            self.nbytes + other.nbytes * times,
            self.lx_bytes + other.lx_bytes * times,
            self.macs + other.macs * times,
        )


def sizes_of(over: tuple[Label, ...], values: Environment) -> dict[str, int]:
    return {label.name: compiled(label.size)(values) for label in over}


def tile_bytes(access: Access, sizes: dict[str, int]) -> int:
    """Bytes of the sticks a tile touches."""
    eps = access.format.elements_per_stick
    points = 1
    moved = {name for name, stride in access.strides if stride.constant != 0}
    for name, size in sizes.items():
        if name == access.stick:
            points *= -(-size // eps)
        elif name in moved:
            points *= size
    return points * (LANE_ACCUMULATORS * access.format.bytes if access.lanes else STICK_BYTES)


class Costs:
    """Demands of tasks for one card and table."""

    def __init__(self, card: CardSpec, table: TimingTable) -> None:
        self.card = card
        self.table = table
        self.cycle_ps = PS * 1e9 / card.clock_hz
        self.lanes = card.sfu_lanes * card.corelets
        self.macs = card.macs_per_corelet * card.corelets
        self.lx_ps_per_byte = self.cycle_ps / (card.lx_sticks_per_cycle * STICK_BYTES)
        self.ring_ps_per_byte = self.cycle_ps / card.ring_bytes_per_cycle

    def of(self, item: Load | Store | Ring | Compute, values: Environment) -> Demand:
        """The demand of one core; of a Ring, per source."""
        if isinstance(item, Compute):
            return self.compute(item, values)
        return self.ring(item, values) if isinstance(item, Ring) else self.transfer(item, values)

    def transfer(self, item: Load | Store, values: Environment) -> Demand:
        sizes = sizes_of(item.over, values)
        inside = item.target if isinstance(item, Load) else item.source
        nbytes = tile_bytes(inside, sizes) if all(sizes.values()) else 0
        return Demand(nbytes=nbytes, lx_bytes=nbytes)

    def ring(self, item: Ring, values: Environment) -> Demand:
        """Per source."""
        sizes = sizes_of(item.over, values)
        nbytes = tile_bytes(item.source, sizes) if all(sizes.values()) else 0
        return Demand(nbytes=nbytes, lx_bytes=nbytes * (2 if item.combine else 1))

    def compute(self, item: Compute, values: Environment) -> Demand:
        sizes = sizes_of(item.over, values)
        if not all(sizes.values()):
            return Demand()
        lx = sum(tile_bytes(access, sizes) for access in (*item.inputs, *item.outputs))
        if item.kind is Kind.MATMUL:
            return self._matmul(item, sizes, lx)
        points = math.prod(sizes.values())
        cycles = self._cycles(item, sizes) * points / self.lanes
        return Demand(round(cycles * self.cycle_ps), lx, lx)

    def _matmul(self, item: Compute, sizes: dict[str, int], lx: int) -> Demand:
        a, b = item.inputs
        in_a, in_b = ({i.label for i in access.index} for access in (a, b))
        rows = math.prod(size for name, size in sizes.items() if name in in_a and name not in in_b)
        table = self.table
        fill = min(1.0, (rows / table.pt_fill_rows) ** table.pt_fill_exponent)
        macs = math.prod(sizes.values())
        # The array takes whole sticks of k and n: valid extents save no time.
        padded = macs
        for name, eps in ((a.stick, a.format), (b.stick, b.format)):
            if name is not None:
                step = eps.elements_per_stick
                padded = padded // sizes[name] * (-(-sizes[name] // step) * step)
        rate = self._pt_rate(a.format)
        cycles = padded / (self.macs * fill * rate)
        return Demand(round(cycles * self.cycle_ps), lx, lx, macs)

    def _pt_rate(self, format: Format) -> float:
        if format is Format.IEEE_FP32:
            return self.table.pt_rate_fp32
        if format is Format.SENINT8:
            return self.table.pt_rate_int8
        if format.bytes == 1:
            return self.table.pt_rate_fp8
        return 1.0

    def _cycles(self, item: Compute, sizes: dict[str, int]) -> float:
        """SFU cycles per point and lane."""
        table = self.table
        cycles = 0.0
        if item.body is not None:
            for node in item.body.nodes:
                if node.op in FUNCTIONS:
                    cycles += table.sfu_cycles_function
                elif node.op not in _LEAVES:
                    cycles += table.sfu_cycles_simple
        along = sizes.get(item.label or "", 1)
        stage = math.log2(max(along, 2))
        if item.kind is Kind.MAP:
            # Even a plain copy passes through the unit once.
            cycles = max(cycles, table.sfu_cycles_simple)
        elif item.kind in (Kind.REDUCE, Kind.SCAN):
            cycles += table.sfu_cycles_simple
        elif item.kind is Kind.FOLD:
            cycles += LANE_ACCUMULATORS * table.sfu_cycles_simple
        elif item.kind in (Kind.GATHER, Kind.SCATTER):
            cycles += table.sfu_cycles_function
        elif item.kind is Kind.SORT:
            cycles += table.sfu_cycles_sort * stage * (stage + 1) / 2
        elif item.kind is Kind.MERGE:
            cycles += table.sfu_cycles_sort * (stage + 1)
        elif item.kind is Kind.TOPK:
            cycles += table.sfu_cycles_sort * stage
        return cycles
