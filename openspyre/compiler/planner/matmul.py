"""The plan of a matrix product: split over cores, tile sizes, which input stays, all at once.

`Product` describes the work by labels only: a[batch, rows, k] * b[batch, cols, k] with what a MAP
does to the sums afterwards. `plan_matmul` tries every sensible split of the labels over the cores
by a coarse bound, and then tiles of the best ones by the closed form of the timing model; K is
split over cores only where it pays a lot (it changes bits) or where a core would span too much of
an operand. Deterministic, and a few milliseconds at most.

Labels of symbolic size are planned for their hint. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from openspyre.compiler.planner.costs import Rates
from openspyre.formats import STICK_BYTES, Format

SPAN_LIMIT = 256 << 20
"""Bytes of one operand, first to last, that one core may touch (docs/program.md, rule 2)."""
CORE_NS = 1000.0
"""Work that a core more must take over to be worth starting."""
STEP_NS = 100.0
"""One more task of a queue: the table's `task_ns` lies in 0..100 and is 0 by default."""
RECEIVED_NS = 1e-4
"""A byte that one core more receives: nothing on the model's clock, but not for free."""
PORT = 0.1
"""Weight of the LX port's time among equals: large tiles read less often."""
TOGETHER = 2
"""Exponent of `_together` for each slot of an input; fitted to the timing model
(tests/test_compiler_matmul_plan.py)."""
MOST_SLOTS = 4
"""Slots of an input, where LX has room."""
SPLITS = 2
"""Splits, the best by the coarse bound, whose tiles are priced."""
TRIED = 3
"""Tile sizes of one kind of label that are priced, from the largest that fits down."""
K_SPLIT_GAIN = 0.5
"""K is split when the time falls to this part or below ..."""
K_SPLIT_NS = 3000.0
"""... and by at least so much: it changes the bits of the result."""


class Part(Enum):
    """What a label is to the product."""

    BATCH = "batch"  # in a, b and the output
    ROW = "row"  # in a and the output
    COL = "col"  # in b and the output
    DEPTH = "depth"  # k


@dataclass(frozen=True)
class Axis:
    """A label: `size` elements, split and tiled in multiples of `unit`."""

    name: str
    part: Part
    size: int
    unit: int = 1


@dataclass(frozen=True)
class Moved:
    """A tensor by the labels that move it; `stick`: the one on the stick of `eps` elements.
    `steps`: bytes of LPDDR5 a step (of the stick label: a stick); empty for what lives in LX."""

    labels: tuple[str, ...]
    stick: str | None
    eps: int
    steps: tuple[tuple[str, int], ...] = ()

    def nbytes(self, sizes: Mapping[str, int]) -> int:
        """Bytes of the sticks of a box."""
        total = STICK_BYTES
        for label in self.labels:
            size = sizes[label]
            total *= -(-size // self.eps) if label == self.stick else size
        return total

    def points(self, sizes: Mapping[str, int]) -> int:
        return math.prod(sizes[label] for label in self.labels)

    def span(self, sizes: Mapping[str, int]) -> int:
        """Bytes of LPDDR5 from the first to the last of a box."""
        total = STICK_BYTES
        for label, step in self.steps:
            size = sizes[label]
            total += ((-(-size // self.eps) if label == self.stick else size) - 1) * step
        return total


@dataclass(frozen=True)
class Product:
    """The work. `a`, `b`: as the PT reads them; `a_raw`, `b_raw`: as they lie in LPDDR5 where that
    is otherwise, and the SFU turns them. `acc`: the sums; `extras`: further inputs of the MAPs
    after it, `outs` what they store, `kept` what stays in LX between them, `cycles` their SFU
    cycles a point. `format`: that of a and b."""

    axes: tuple[Axis, ...]
    a: Moved
    b: Moved
    acc: Moved
    outs: tuple[Moved, ...]
    format: Format
    a_raw: Moved | None = None
    b_raw: Moved | None = None
    extras: tuple[Moved, ...] = ()
    kept: tuple[Moved, ...] = ()
    cycles: float = 0.0

    def of(self, part: Part) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.axes if axis.part is part)

    @property
    def moved(self) -> tuple[Moved, ...]:
        """What is read from and written to LPDDR5."""
        return (self.a_raw or self.a, self.b_raw or self.b, *self.extras, *self.outs)


@dataclass(frozen=True)
class MatmulPlan:
    """`parts`: shares of each label over cores; `tile`: size of each label in a tile; `stay`: "a"
    or "b" is loaded once with all of k while the other input goes by, and decides the order of the
    loops (rows outside, or columns outside). `sum_slots`, `out_slots`: of sums and results;
    `slots`: of an input of which a tile is loaded for each tile of k."""

    parts: dict[str, int]
    tile: dict[str, int]
    stay: str = ""
    sum_slots: int = 2
    out_slots: int = 2
    slots: int = 2
    lx_bytes: int = 0
    ns: float = 0.0
    read: int = 0  # bytes of LPDDR5, a shared read counted once
    written: int = 0
    score: float = 0.0  # what the planner compares: the time, and a little for each task and byte

    @property
    def cores(self) -> int:
        return math.prod(self.parts.values())


@dataclass(frozen=True)
class _Grid:
    """What a split decides. `share_..`: bytes of the largest share; `group_..`: cores that read
    the same; `extra`: bytes of the MAPs' inputs as LPDDR5 feels them; `received`: its price."""

    parts: dict[str, int]
    shares: dict[str, int]
    depth: int
    cores: int
    group_a: int
    group_b: int
    macs: int
    points: int
    extra: float
    received: float
    share_a: int
    share_b: int
    share_acc: int
    share_outs: int
    stream: int


class NoPlan(ValueError):
    """No split and tile obeys the limits of the card; says which limit."""


@dataclass
class _Search:
    product: Product
    rates: Rates
    lx_bytes: int
    slots: int
    tiles: Mapping[Part, int]  # forced ones
    strips: bool = True
    sizes: dict[str, int] = field(default_factory=dict)
    rows: tuple[str, ...] = ()
    cols: tuple[str, ...] = ()
    batch: tuple[str, ...] = ()
    depth: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        product = self.product
        self.sizes = {axis.name: axis.size for axis in product.axes}
        self.unit = {axis.name: axis.unit for axis in product.axes}
        self.rows = tuple(axis.name for axis in product.of(Part.ROW))
        self.cols = tuple(axis.name for axis in product.of(Part.COL))
        self.batch = tuple(axis.name for axis in product.of(Part.BATCH))
        self.depth = tuple(axis.name for axis in product.of(Part.DEPTH))
        (self.k,) = self.depth
        # The stick label of the columns is tiled first.
        n = product.acc.stick
        self.col_order = tuple(c for c in self.cols if c != n) + ((n,) if n in self.cols else ())
        self.from_a, self.from_b = product.a_raw or product.a, product.b_raw or product.b
        self.whole = {id(m): m.nbytes(self.sizes) for m in product.moved}
        self.written = sum(self.whole[id(m)] for m in product.outs)

    # --- splits

    def shares(self, parts: Mapping[str, int]) -> dict[str, int]:
        """Elements of the largest share of each label."""
        out = {}
        for name, size in self.sizes.items():
            unit, count = self.unit[name], parts.get(name, 1)
            units = -(-size // unit)
            out[name] = min(-(-units // count) * unit, size)
        return out

    def group(self, moved: Moved, parts: Mapping[str, int]) -> int:
        """Cores that read the same of it."""
        count = 1
        for name, number in parts.items():
            if name not in moved.labels and name != self.k:
                count *= number
        return count

    def span_ok(self, shares: Mapping[str, int]) -> bool:
        return all(moved.span(shares) <= SPAN_LIMIT for moved in self.product.moved)

    def macs(self, shares: Mapping[str, int]) -> int:
        """Products of a core with k and n in whole sticks."""
        product = self.product
        total = 1
        for name, size in shares.items():
            eps = (
                product.a.eps if name == self.k else product.b.eps if name == product.b.stick else 1
            )
            total *= -(-size // eps) * eps
        return total

    def coarse(self, parts: Mapping[str, int]) -> float:
        """A time below which no tiling of this split comes, but for the order of equals."""
        product, rates = self.product, self.rates
        shares = self.shares(parts)
        read = sum(
            self.whole[id(m)] * rates.shared(self.group(m, parts))
            for m in (self.from_a, self.from_b, *product.extras)
        )
        rows = math.prod(shares[name] for name in self.rows)
        dram = rates.dram(read, self.written)
        pt = rates.pt(self.macs(shares), rows, product.format)
        sfu = rates.sfu(product.acc.points(shares), product.cycles)
        stream = 0.0
        for moved in product.moved:
            stream = max(stream, rates.stream(moved.nbytes(shares)))
        for raw in (product.a_raw, product.b_raw):
            if raw is not None:
                sfu += rates.sfu(raw.points(shares), 1.0)
        received = self.received(parts) * RECEIVED_NS
        return max(dram, pt, sfu, stream) + 0.05 * (dram + pt + sfu + stream) + received

    def received(self, parts: Mapping[str, int]) -> float:
        """Bytes that all cores together receive when everything is loaded once."""
        return sum(
            self.whole[id(m)] * self.group(m, parts)
            for m in (self.from_a, self.from_b, *self.product.extras)
        )

    def splits(self, cores: int, forced: Mapping[Part, int], depth: int) -> list[dict[str, int]]:
        """Every split that no label more could be split further in."""
        axes = [axis for axis in self.product.axes if axis.part is not Part.DEPTH]
        cores //= depth
        choices = [_counts(-(-axis.size // axis.unit), cores) for axis in axes]
        found: list[dict[str, int]] = []

        def go(number: int, left: int, chosen: tuple[int, ...]) -> None:
            if number == len(axes):
                parts = {axis.name: p for axis, p in zip(axes, chosen, strict=True)}
                for part, wanted in forced.items():
                    if part is Part.DEPTH:
                        continue
                    made = math.prod(parts[axis.name] for axis in axes if axis.part is part)
                    possible = math.prod(
                        -(-axis.size // axis.unit) for axis in axes if axis.part is part
                    )
                    if made != min(wanted, possible):
                        return
                used = math.prod(chosen)
                for axis, p, many in zip(axes, chosen, choices, strict=True):
                    if axis.part in forced:
                        continue
                    larger = [other for other in many if other > p]
                    if larger and used // p * larger[0] <= cores:
                        return
                found.append(parts | ({self.k: depth} if depth > 1 else {}))
                return
            for p in choices[number]:
                if p > left:
                    break
                go(number + 1, left // p, (*chosen, p))

        for number, axis in enumerate(axes):
            if axis.part in forced:
                wanted = min(forced[axis.part], cores)
                choices[number] = sorted({*choices[number], *_divisors(wanted), wanted})
        go(0, cores, ())
        return found

    # --- tiles

    def tile_plans(self, parts: dict[str, int]) -> Iterator[MatmulPlan]:
        """Tiles of one split that fit LX, priced."""
        shares = self.shares(parts)
        for few in (False, True):
            found = False
            for plan in self._tiled(parts, shares, few):
                found = True
                yield plan
            if found:
                return

    def _tiled(
        self, parts: dict[str, int], shares: dict[str, int], few: bool
    ) -> Iterator[MatmulPlan]:
        rows_of = self._caps(Part.ROW, self.rows, shares, (1024, 512, 256, 128, 64), few)
        cols_of = self._caps(Part.COL, self.col_order, shares, (2048, 1024, 512, 256, 128), few)
        depths = self._caps(Part.DEPTH, self.depth, shares, (4096, 2048, 1024, 512, 256), few)
        batches = self._caps(Part.BATCH, self.batch, shares, (64, 32, 16, 8, 4, 2, 1), True)
        costs = self._grid(parts, shares)
        rows_fit = 0
        for rows in rows_of:
            cols_fit = 0
            for cols in cols_of:
                tile = {**rows, **cols}
                whole = all(tile[name] == shares[name] for name in tile)
                fits = 0
                for deep in depths:
                    full = whole and deep[self.k] == shares[self.k]
                    for many in batches if full else batches[-1:]:
                        found = list(self._orders(costs, {**many, **tile, **deep}))
                        yield from found
                        fits += bool(found)
                        if full and fits > TRIED:
                            break
                    if fits >= TRIED:
                        break
                cols_fit += fits > 0
                if cols_fit >= TRIED:
                    break
            rows_fit += cols_fit > 0
            if rows_fit >= TRIED:
                break

    def _caps(
        self,
        part: Part,
        names: Sequence[str],
        shares: Mapping[str, int],
        caps: Sequence[int],
        few: bool,
    ) -> list[dict[str, int]]:
        """Tile sizes of the labels of one part, largest first; `few`: down to the smallest."""
        if not names:
            return [{}]
        if part in self.tiles:
            return [self._spread(names, shares, self.tiles[part], exact=True)]
        total = math.prod(shares[name] for name in names)
        wanted = [total, *(cap for cap in caps if cap < total)]
        if few:
            smallest = caps[-1]
            wanted += [smallest >> i for i in range(1, 9) if smallest >> i]
        out: list[dict[str, int]] = []
        for cap in wanted:
            made = self._spread(names, shares, cap)
            if made not in out:
                out.append(made)
        return out

    def _spread(
        self, names: Sequence[str], shares: Mapping[str, int], cap: int, exact: bool = False
    ) -> dict[str, int]:
        """About `cap` elements over labels, the last one first, in even steps."""
        out = {}
        for name in reversed(names):
            unit, share = self.unit[name], shares[name]
            size = share if cap >= share else min(share, max(cap // unit * unit, unit))
            if not exact:
                steps = -(-share // size)
                size = min(_up(-(-share // steps), unit), share)
            if size < share:
                size = _up(size, unit)
            out[name] = size
            cap = max(cap // size, 1)
        return out

    def _grid(self, parts: dict[str, int], shares: dict[str, int]) -> _Grid:
        """What a split decides, whatever the tiles."""
        product, rates = self.product, self.rates
        extra = sum(self.whole[id(m)] * rates.shared(self.group(m, parts)) for m in product.extras)
        points = product.acc.points(shares)
        return _Grid(
            parts=parts,
            shares=shares,
            depth=parts.get(self.k, 1),
            cores=math.prod(parts.values()),
            group_a=self.group(self.from_a, parts),
            group_b=self.group(self.from_b, parts),
            macs=self.macs(shares),
            points=points,
            extra=extra,
            received=self.received(parts) * RECEIVED_NS,
            share_a=self.from_a.nbytes(shares),
            share_b=self.from_b.nbytes(shares),
            share_acc=product.acc.nbytes(shares),
            share_outs=sum(m.nbytes(shares) for m in product.outs),
            stream=max((m.nbytes(shares) for m in (*product.extras, *product.outs)), default=0),
        )

    def _orders(self, grid: _Grid, tile: dict[str, int]) -> Iterator[MatmulPlan]:
        """Which input stays."""
        shares = grid.shares
        steps = {name: -(-shares[name] // tile[name]) for name in tile}
        n_rows = math.prod(steps[name] for name in self.rows)
        n_cols = math.prod(steps[name] for name in self.cols)
        if not self.strips:
            stays = [""]
        elif steps[self.k] == 1:
            stays = ["a"] + (["b"] if n_rows > 1 and n_cols > 1 else [])
        else:
            stays = [""] + (["a"] if n_cols > 1 else []) + (["b"] if n_rows > 1 else [])
        n_batch = math.prod(steps[name] for name in self.batch)
        for stay in stays:
            plan = self._priced(grid, tile, (n_batch, n_rows, n_cols, steps[self.k]), stay)
            if plan is not None:
                yield plan

    def _priced(
        self, grid: _Grid, tile: dict[str, int], steps: tuple[int, int, int, int], stay: str
    ) -> MatmulPlan | None:
        """The plan with its time, or None when it does not fit LX."""
        product, rates = self.product, self.rates
        n_batch, n_rows, n_cols, n_k = steps
        outs = n_batch * n_rows * n_cols
        strip = {**tile, self.k: grid.shares[self.k]}
        size_a, size_b = (strip if stay == "a" else tile), (strip if stay == "b" else tile)
        again_a, again_b = (1 if stay == "a" else n_cols), (1 if stay == "b" else n_rows)
        loads_a = n_batch * n_rows * again_a * (1 if stay == "a" else n_k)
        loads_b = n_batch * n_cols * again_b * (1 if stay == "b" else n_k)

        # LX.
        in_a, in_b = self.from_a.nbytes(size_a), self.from_b.nbytes(size_b)
        fixed = in_a * min(self.slots, loads_a) + in_b * min(self.slots, loads_b)
        if product.a_raw is not None:
            fixed += product.a.nbytes(size_a) * min(self.slots, loads_a)
        if product.b_raw is not None:
            fixed += product.b.nbytes(size_b) * min(self.slots, loads_b)
        acc = product.acc.nbytes(tile)
        band = self.band(tile, grid.depth)
        sums = product.acc.nbytes(band) if grid.depth > 1 else acc
        results = sum(m.nbytes(band) for m in product.outs)
        others = sum(m.nbytes(band) for m in product.extras)
        fixed += others * min(self.slots, outs) + sum(m.nbytes(band) for m in product.kept)
        if grid.depth > 1:
            fixed += acc
        slots = min(2, outs)
        total = fixed + (sums + results) * slots
        if total > self.lx_bytes:
            slots = 1
            total = fixed + sums + results
            if total > self.lx_bytes:
                return None

        # What is left of LX lets LPDDR5 run ahead.
        deeper = 0
        if stay != "a" and loads_a > self.slots:
            deeper += in_a + (product.a.nbytes(size_a) if product.a_raw is not None else 0)
        if stay != "b" and loads_b > self.slots:
            deeper += in_b + (product.b.nbytes(size_b) if product.b_raw is not None else 0)
        ahead = self.slots
        while deeper and ahead < MOST_SLOTS and total + deeper <= self.lx_bytes:
            ahead, total = ahead + 1, total + deeper

        # What each server has to do.
        per_a, per_b = rates.shared(grid.group_a), rates.shared(grid.group_b)
        read_a = self.whole[id(self.from_a)] * again_a * per_a
        read_b = self.whole[id(self.from_b)] * again_b * per_b
        eased = read_a + read_b + grid.extra
        dram = rates.dram(eased, self.written)
        rows = math.prod(tile[name] for name in self.rows)
        pt = rates.pt(grid.macs, rows, product.format)
        sfu = rates.sfu(grid.points / grid.depth, product.cycles)
        after = sfu / outs  # the MAPs of one tile
        share_a, share_b = grid.share_a * again_a, grid.share_b * again_b
        port = share_a + share_b + float(grid.share_a * n_cols + grid.share_b * n_rows)
        port += grid.share_acc * (n_k + 1) + 2.0 * grid.share_outs
        turned = 0.0  # of the first tiles
        if product.a_raw is not None:
            sfu += rates.sfu(product.a_raw.points(grid.shares) * again_a, 1.0)
            turned += rates.sfu(product.a_raw.points(size_a), 1.0)
            port += 2.0 * share_a
        if product.b_raw is not None:
            sfu += rates.sfu(product.b_raw.points(grid.shares) * again_b, 1.0)
            turned += rates.sfu(product.b_raw.points(size_b), 1.0)
            port += 2.0 * share_b
        stream = rates.stream(max(share_a, share_b, grid.stream))

        # Before the first product, and after the last load.
        first = turned + max(
            (in_a / grid.group_a * per_a + in_b / grid.group_b * per_b)
            * grid.cores
            / rates.dram_rate,
            rates.stream(max(in_a, in_b)),
        )
        last = after + max(rates.stream(results), (dram - rates.dram(eased, 0)) / outs)
        chain = pt + (after * (outs - 1) if slots == 1 else 0.0) + turned * (outs - 1)
        if grid.depth > 1:
            last += rates.ring(acc * grid.depth) + rates.lx(2 * acc)
        loaded = max(dram - (dram - rates.dram(eased, 0)) / outs, stream)
        busy = _together(
            TOGETHER * ahead,
            loaded + pt / (outs * n_k) + turned,
            chain + first,
            sfu,
            rates.lx(port),
        )
        time = busy + last
        tasks = outs * (2 * n_k + 3) + loads_a + loads_b
        read = self.whole[id(self.from_a)] * again_a + self.whole[id(self.from_b)] * again_b
        read += sum(self.whole[id(m)] for m in product.extras)
        return MatmulPlan(
            parts=grid.parts,
            tile=tile,
            stay=stay,
            sum_slots=slots,
            out_slots=slots,
            slots=ahead,
            lx_bytes=total,
            ns=time,
            read=read,
            written=self.written,
            score=time + tasks * STEP_NS + grid.received + rates.lx(port) * PORT,
        )

    def band(self, tile: dict[str, int], depth: int) -> dict[str, int]:
        """The part of a tile of sums that one core joins when k is split `depth` times."""
        if depth == 1:
            return tile
        name = band_label(self.product, tile)
        return {**tile, name: band_size(tile[name], self.unit[name], depth)}


def band_label(product: Product, tile: Mapping[str, int]) -> str:
    """The label along which the cores of a split of k share the joining."""
    rows = [axis for axis in product.of(Part.ROW) if tile[axis.name] > axis.unit]
    if rows:
        return max(rows, key=lambda axis: tile[axis.name]).name
    assert product.acc.stick is not None
    return product.acc.stick


def band_size(size: int, unit: int, depth: int) -> int:
    """Elements of `size` that each of `depth` cores joins."""
    units = -(-size // unit)
    return min(-(-units // depth) * unit, size)


def _together(exponent: int, *times: float) -> float:
    """The time of servers that work at once: that of the busiest, and more where others are
    nearly as busy, since each waits for the others now and then."""
    most = max(times)
    return most * sum((time / most) ** exponent for time in times) ** (1 / exponent)


def _up(size: int, unit: int) -> int:
    """The next multiple."""
    return -(-size // unit) * unit


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _counts(units: int, cores: int) -> list[int]:
    """Numbers of shares worth trying, ascending: each makes the largest share smaller."""
    most = min(units, cores)
    tried = {most, *_divisors(cores)}
    tried.update(d for d in range(1, most + 1) if units % d == 0)
    tried.update(1 << i for i in range(most.bit_length()))
    out: list[int] = []
    share = units + 1
    for p in sorted(t for t in tried if t <= most):
        here = -(-units // p)
        if here < share:
            out.append(p)
            share = here
    return out


def plan_matmul(
    product: Product,
    *,
    cores: int,
    lx_bytes: int,
    slots: int = 2,
    rates: Rates | None = None,
    split: Mapping[Part, int] | None = None,
    tiles: Mapping[Part, int] | None = None,
    strips: bool = True,
    keep: int = 1,
) -> list[MatmulPlan]:
    """The best `keep` plans, best first. `split`, `tiles`: forced parts and tile sizes; `strips`:
    whether an input may stay (k must be a number for that).

    Raises NoPlan when nothing fits LX or the span limit.
    """
    rates = rates or Rates()
    search = _Search(product, rates, lx_bytes, slots, tiles or {}, strips)
    forced = dict(split or {})
    limit = cores if forced else _worth(search, cores)
    units = -(-search.sizes[search.k] // search.unit[search.k])
    found = _best(search, limit, cores, forced, min(forced.get(Part.DEPTH, 1), units), keep)
    if Part.DEPTH not in forced:
        if found:
            best = found[0]
            if best.cores * 2 <= limit and best.ns > K_SPLIT_NS and units >= 4:
                for depth in _counts(units, limit)[1:]:
                    other = _best(search, limit, cores, forced, depth, keep)
                    if not other:
                        continue
                    gain = best.ns - other[0].ns
                    if (
                        other[0].ns <= best.ns * K_SPLIT_GAIN
                        and gain >= K_SPLIT_NS
                        and other[0].ns < 0.9 * found[0].ns
                    ):
                        found = other
        else:  # k must be split for the span's sake
            for depth in (2, 4, 8, 16, 32):
                if depth <= min(cores, units) and not found:
                    found = _best(search, cores, cores, forced, depth, keep)
    if not found:
        shares = search.shares({})
        spans = max(moved.span(shares) for moved in product.moved)
        raise NoPlan(
            f"no tile of it fits {lx_bytes} bytes of LX"
            if spans <= SPAN_LIMIT
            else f"a core would touch {spans} bytes of an operand, more than {SPAN_LIMIT}, or no"
            f" tile fits {lx_bytes} bytes of LX"
        )
    return found


def _worth(search: _Search, cores: int) -> int:
    """Cores that have enough to do."""
    product, rates = search.product, search.rates
    alone = max(
        rates.stream(sum(moved.nbytes(search.sizes) for moved in product.moved)),
        rates.pt(
            search.macs(search.sizes),
            math.prod(search.sizes[name] for name in search.rows),
            product.format,
        ),
        rates.sfu(product.acc.points(search.sizes), product.cycles),
    )
    return max(1, min(cores, math.ceil(alone / CORE_NS)))


def _best(
    search: _Search, limit: int, cores: int, forced: Mapping[Part, int], depth: int, keep: int
) -> list[MatmulPlan]:
    """The best plans of the best splits."""
    splits = search.splits(max(limit, depth), forced, depth)
    good = [parts for parts in splits if search.span_ok(search.shares(parts))]
    if not good and limit < cores:
        splits = search.splits(cores, forced, depth)
        good = [parts for parts in splits if search.span_ok(search.shares(parts))]
    ranked = sorted(good, key=search.coarse)
    plans: list[MatmulPlan] = []
    tried = 0
    for parts in ranked:
        made = list(search.tile_plans(parts))
        if made:
            made.sort(key=lambda plan: plan.score)
            plans += made[: 1 if keep == 1 else 2]
            tried += 1
        if tried >= SPLITS:
            break
    plans.sort(key=lambda plan: plan.score)
    return [replace(plan, parts=_used(plan.parts)) for plan in plans[:keep]]


def _used(parts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in parts.items() if count > 1}
