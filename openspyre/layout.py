"""Tensor layouts of the card: how the elements of a storage lie in 128-byte sticks.

A storage has one layout. It describes the storage's *linear element space*: `numel` elements, seen
as the dense row-major shape `host_size`. Device memory is row-major over `device_size`, whose last
dim is the stick; `stride_map` says how many linear elements one step of each device dim is worth
(-1: synthetic or of size 1, 0: copies of the same element). The rules are compiler.md 2.1.

Pure integers; imports no torch. `csrc/machine/layout.cpp` is the fast twin, and a property test
holds the two equal. The drawing of a layout is in `openspyre.layout_picture`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from openspyre.formats import STICK_BYTES, Format

MAX_ORDER = 6
"""Entries of a dim order (compiler.md 2.1); a trailing -1 takes one. Higher ranks collapse."""

_LIMIT = 2**63 - 1


@dataclass(frozen=True)
class Digit:
    """Part of an axis index: `index // unit % count`, moving `device_stride` elements a step."""

    unit: int
    count: int
    device_stride: int


@dataclass(frozen=True)
class Axis:
    """One dim of the linear space: index = `linear // host_stride % size`, held by `digits`."""

    size: int
    host_stride: int
    digits: tuple[Digit, ...]  # most significant first


@dataclass(frozen=True)
class DmaLoop:
    """A loop nest of the DMA: for every index, `host[host_offset + sum(index * host_strides)]`
    goes with `card[device_offset + sum(index * device_strides)]`; all in elements."""

    sizes: tuple[int, ...]
    device_strides: tuple[int, ...]
    host_strides: tuple[int, ...]
    device_offset: int = 0
    host_offset: int = 0

    def pairs(self) -> Iterator[tuple[int, int]]:
        """(device element, host element) of every index, the last loop fastest."""
        for index in itertools.product(*map(range, self.sizes)):
            yield (
                self.device_offset + _dot(index, self.device_strides),
                self.host_offset + _dot(index, self.host_strides),
            )


@dataclass(frozen=True)
class SpyreTensorLayout:
    """Where each element of a storage lies. Immutable, comparable, hashable.

    Constructing one checks it: ValueError when sizes are negative, when the last device dim is no
    stick, or when some element has no place or more than one that is not a declared copy.
    """

    host_size: tuple[int, ...]
    device_size: tuple[int, ...]
    stride_map: tuple[int, ...]
    format: Format

    def __post_init__(self) -> None:
        for name in ("host_size", "device_size", "stride_map"):
            object.__setattr__(self, name, tuple(int(value) for value in getattr(self, name)))
        _check_fields(self)
        _ = self.axes  # derives, and refuses what has no place

    # --- constructors

    @classmethod
    def default(cls, host_size: Sequence[int], format: Format) -> SpyreTensorLayout:
        """The card's standard layout: the last dim on the stick, the first next to it.

        Rank 0 is one element in one stick. Ranks above 6 collapse their leading dims.
        """
        return cls.with_order(host_size, range(len(host_size)), format)

    @classmethod
    def with_order(
        cls, host_size: Sequence[int], order: Sequence[int], format: Format
    ) -> SpyreTensorLayout:
        """The layout of dim order `order`: its last dim lies on the stick.

        A trailing -1 means *sparse*: one element a stick. For ranks above 6 the collapsed leading
        dims must stay together and ascending in the order. Raises ValueError otherwise.
        """
        sizes = [int(size) for size in host_size]
        dims = [int(dim) for dim in order]
        sparse = bool(dims) and dims[-1] == -1
        named = dims[:-1] if sparse else dims
        if any(size < 0 for size in sizes):
            raise _refused(sizes, format, "sizes must not be negative")
        if sorted(named) != list(range(len(sizes))):
            raise _refused(
                sizes,
                format,
                f"the dim order {dims} must name each of the {len(sizes)} dims once, "
                "with at most one -1, at its end",
            )
        sizes, dims = _collapse(sizes, dims, sparse, format)
        dim_map = device_dims(dims)
        eps = format.elements_per_stick
        strides = _dense_strides(sizes)
        device_size: list[int] = []
        stride_map: list[int] = []
        for position, dim in enumerate(dim_map):
            on_stick = position == len(dim_map) - 1
            tile_count = dim == dim_map[-1] and not on_stick
            size = 1 if dim < 0 else sizes[dim]
            device_size.append(eps if on_stick else -(-size // eps) if tile_count else size)
            if dim < 0 or sizes[dim] == 1:
                stride_map.append(-1)
            else:
                stride_map.append(strides[dim] * eps if tile_count else strides[dim])
        return cls(tuple(sizes), tuple(device_size), tuple(stride_map), format)

    @classmethod
    def sparse(
        cls, host_size: Sequence[int], format: Format, order: Sequence[int] | None = None
    ) -> SpyreTensorLayout:
        """One element a stick, in dim order `order` (default: as given). Ranks above 5 collapse."""
        dims = range(len(host_size)) if order is None else order
        return cls.with_order(host_size, [*dims, -1], format)

    @classmethod
    def explicit(
        cls,
        host_size: Sequence[int],
        device_size: Sequence[int],
        stride_map: Sequence[int],
        format: Format,
    ) -> SpyreTensorLayout:
        """A layout by its fields: padding, folding, copies (stride 0). ValueError as the class."""
        return cls(tuple(host_size), tuple(device_size), tuple(stride_map), format)

    @classmethod
    def for_strided(
        cls, sizes: Sequence[int], strides: Sequence[int], format: Format
    ) -> SpyreTensorLayout:
        """The default layout of a new storage for a tensor of these sizes and strides.

        The strides must be a dense permutation (a transpose, channels-last); the dim of stride 1
        lies on the stick. ValueError for strides with holes or overlaps: use `linear` for those.
        """
        if len(sizes) != len(strides):
            raise _refused(sizes, format, f"the strides {list(strides)} must be one per size")
        if any(size < 1 for size in sizes):
            return cls.default(sizes, format)
        # Size-1 dims keep their slots: their strides say nothing.
        slots = [i for i, size in enumerate(sizes) if size != 1]
        dims = sorted(slots, key=lambda i: -strides[i])
        permuted = list(sizes)
        for slot, dim in zip(slots, dims, strict=True):
            permuted[slot] = sizes[dim]
        expected = 1
        for dim in reversed(dims):
            if strides[dim] != expected:
                raise _refused(
                    sizes,
                    format,
                    f"the strides {list(strides)} are no dense permutation; use a linear layout "
                    "for a storage with holes",
                )
            expected *= sizes[dim]
        return cls.default(permuted, format)

    @classmethod
    def linear(cls, numel: int, format: Format) -> SpyreTensorLayout:
        """`numel` elements as one dim: element e lies at byte e * format.bytes."""
        return cls.default((numel,), format)

    # --- properties

    @property
    def numel(self) -> int:
        """Elements of the linear space."""
        return math.prod(self.host_size)

    @property
    def nbytes(self) -> int:
        """Bytes on the card, pads included."""
        return math.prod(self.device_size) * self.format.bytes

    @property
    def elements_per_stick(self) -> int:
        return self.format.elements_per_stick

    @property
    def sticks(self) -> int:
        """Sticks of the storage, partial ones and pads included."""
        return self.nbytes // STICK_BYTES

    @property
    def device_strides(self) -> tuple[int, ...]:
        """Elements per step of each device dim: device memory is row-major."""
        return tuple(_dense_strides(self.device_size))

    @property
    def stick_dim(self) -> int | None:
        """The host dim whose neighbours share a stick; None for sparse, folded and 1-element."""
        step = self.stride_map[-1]
        if step <= 0:
            return None
        return self.host_dim_of(step)

    @property
    def has_copies(self) -> bool:
        """Whether elements have several places (stride 0)."""
        return bool(self.copies)

    @property
    def copies(self) -> tuple[tuple[int, int], ...]:
        """(count, device stride in elements) of each dim that repeats the elements."""
        return tuple(
            (size, stride)
            for size, step, stride in zip(
                self.device_size, self.stride_map, self.device_strides, strict=True
            )
            if size > 1 and step == 0
        )

    @property
    def is_identity(self) -> bool:
        """Whether linear element e lies at byte e * format.bytes, for all e, and only there."""
        return not self.copies and all(
            digit.device_stride == digit.unit * axis.host_stride
            for axis in self.axes
            for digit in axis.digits
        )

    @property
    def is_default(self) -> bool:
        """Whether this is `default(host_size, format)`."""
        return len(self.host_size) <= MAX_ORDER and self == self.default(
            self.host_size, self.format
        )

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The linear space as nested axes, outermost first; dims of size 1 have none."""
        return _axes(self)

    # --- addresses

    def element_offset(self, linear: int) -> int:
        """Byte offset of linear element `linear` (its first place). IndexError outside numel."""
        if not 0 <= linear < self.numel:
            raise IndexError(f"linear element {linear} of {self._fields()}")
        place = 0
        for axis in self.axes:
            index = linear // axis.host_stride % axis.size
            for digit in axis.digits:
                place += index // digit.unit % digit.count * digit.device_stride
        return place * self.format.bytes

    def places(self, linear: int) -> tuple[int, ...]:
        """Byte offsets of all places of a linear element: one, or one per copy."""
        first = self.element_offset(linear)
        return tuple(
            first + _dot(index, [stride for _, stride in self.copies]) * self.format.bytes
            for index in itertools.product(*(range(count) for count, _ in self.copies))
        )

    def address(self, *index: int) -> int:
        """Byte offset of the element at `index` of `host_size`. IndexError out of range."""
        if len(index) != len(self.host_size):
            raise IndexError(f"address takes {len(self.host_size)} indices, got {len(index)}")
        for value, size in zip(index, self.host_size, strict=True):
            if not 0 <= value < size:
                raise IndexError(f"index {list(index)} of {self._fields()}")
        return self.element_offset(_dot(index, _dense_strides(self.host_size)))

    def dci(self) -> tuple[DmaLoop, ...]:
        """The DMA's loops for the whole storage, pads left out.

        One nest when every stick is full; partial sticks are nests of their own. The loops are
        the device dims in order, those of size 1 included; a loop over copies has host stride 0.
        """
        if self.numel == 0:
            return ()
        strides = self.device_strides
        dim_of = {
            stride: dim
            for dim, (size, stride) in enumerate(zip(self.device_size, strides, strict=True))
            if size > 1
        }
        nests: list[tuple[dict[int, int], int, int]] = []  # sizes by device dim, device, host
        for pieces in itertools.product(*(_boxes(axis) for axis in self.axes)):
            sizes: dict[int, int] = {}
            device = host = 0
            for axis, (counts, start) in zip(self.axes, pieces, strict=True):
                host += start * axis.host_stride
                for digit, count in zip(axis.digits, counts, strict=True):
                    device += start // digit.unit % digit.count * digit.device_stride
                    sizes[dim_of[digit.device_stride]] = count
            nests.append((sizes, device, host))
        repeated = {dim for dim, step in enumerate(self.stride_map) if step == 0}
        return tuple(
            DmaLoop(
                sizes=tuple(
                    size if dim in repeated else sizes.get(dim, 1)
                    for dim, size in enumerate(self.device_size)
                ),
                device_strides=strides,
                host_strides=tuple(max(step, 0) for step in self.stride_map),
                device_offset=device,
                host_offset=host,
            )
            for sizes, device, host in nests
        )

    # --- text

    def picture(self) -> str:
        """How the elements lie in sticks, as text for people."""
        from openspyre.layout_picture import draw

        return draw(self)

    def __str__(self) -> str:
        return self.picture()

    def _fields(self) -> str:
        return (
            f"SpyreTensorLayout(host_size={list(self.host_size)}, "
            f"device_size={list(self.device_size)}, stride_map={list(self.stride_map)}, "
            f"format={self.format.name})"
        )

    def host_dim_of(self, step: int) -> int | None:
        """The host dim that `step` linear elements move along, None when they cross dims."""
        for dim, (size, stride) in enumerate(
            zip(self.host_size, _dense_strides(self.host_size), strict=True)
        ):
            if size > 1 and stride <= step < stride * size and step % stride == 0:
                whole = any(axis.host_stride == stride and axis.size == size for axis in self.axes)
                return dim if whole else None
        return None


# --- the element arrangements of conversions between 16 and 32 bits (compiler.md 2.4)


def device_dims(order: Sequence[int]) -> list[int]:
    """The host dim of every device dim of dim order `order`, outermost first: the first dim of the
    order moves next to the stick, the last one is split into sticks and the elements of one. -1: no
    host dim."""
    dims = list(order) or [-1]
    return [dims[0], dims[0]] if len(dims) == 1 else [*dims[1:], dims[0], dims[-1]]


def dl16_to_fp32_place(col: int) -> tuple[int, int]:
    """(stick, position) of column `col` after DL16_TO_FP32.

    One stick of 64 DL16 elements becomes two of 32 fp32 ones, in groups of 4 that alternate.
    """
    if col < 0:
        raise IndexError(f"column {col} is negative")
    return 2 * (col // 64) + col // 4 % 2, col % 64 // 8 * 4 + col % 4


def fp32_to_dl16_place(stick: int, position: int) -> int:
    """Column in the DL16 row of the element at `position` (0..31) of fp32 stick `stick`: the
    inverse of dl16_to_fp32_place. position in the stick = group_in_half * 8 + half * 4 + elem."""
    if stick < 0 or not 0 <= position < 32:
        raise IndexError(f"stick {stick}, position {position}: a stick has positions 0..31")
    group_in_half, elem = divmod(position, 4)
    pair, half = divmod(stick, 2)
    return pair * 64 + group_in_half * 8 + half * 4 + elem


# --- how it is worked out


def _dot(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _dense_strides(sizes: Sequence[int]) -> list[int]:
    """Row-major strides; zero sizes count as one, as in PyTorch."""
    strides = [1] * len(sizes)
    for i in range(len(sizes) - 1, 0, -1):
        strides[i - 1] = strides[i] * max(sizes[i], 1)
    return strides


def _refused(host_size: Sequence[int], format: Format, rule: str) -> ValueError:
    return ValueError(f"layout of {list(host_size)} {format.name}: {rule}")


def _collapse(
    sizes: list[int], order: list[int], sparse: bool, format: Format
) -> tuple[list[int], list[int]]:
    limit = MAX_ORDER - (1 if sparse else 0)
    gap = len(sizes) - limit
    if gap <= 0:
        return sizes, order
    first = order.index(0)
    if order[first : first + gap + 1] != list(range(gap + 1)):
        raise _refused(
            sizes,
            format,
            f"ranks above {limit} collapse their leading dims, so the order {order} must keep "
            f"dims 0..{gap} together and ascending",
        )
    kept = [dim - gap if dim > gap else dim for dim in order if dim <= 0 or dim > gap]
    return [math.prod(sizes[: gap + 1]), *sizes[gap + 1 :]], kept


def _check_fields(layout: SpyreTensorLayout) -> None:
    host, device, steps = layout.host_size, layout.device_size, layout.stride_map
    format = layout.format
    if any(size < 0 for size in host):
        raise _refused(host, format, "sizes must not be negative")
    if not device or len(device) != len(steps):
        raise _refused(
            host,
            format,
            f"device sizes {list(device)} and stride map {list(steps)} must have the same length, "
            "at least 1",
        )
    if device[-1] != format.elements_per_stick:
        raise _refused(
            host,
            format,
            f"the last device size must be a stick of {format.elements_per_stick} elements, "
            f"not {device[-1]}",
        )
    if any(size < 0 for size in device):
        raise _refused(host, format, "device sizes must not be negative")
    if any(step < -1 for step in steps):
        raise _refused(
            host,
            format,
            f"stride map entries are host strides, 0 (copies) or -1 (synthetic), not {min(steps)}",
        )
    if max(layout.nbytes, math.prod(max(size, 1) for size in host), *steps) > _LIMIT:
        raise _refused(host, format, "the sizes exceed 64-bit addresses")
    if layout.numel > 0 and layout.nbytes == 0:
        raise _refused(
            host,
            format,
            f"device sizes {list(device)} leave no place for {layout.numel} elements",
        )


def _axes(layout: SpyreTensorLayout) -> tuple[Axis, ...]:
    """Sorts the device dims with a stride into a mixed radix of the linear space."""
    numel = layout.numel
    if numel <= 1:
        return ()
    what = f"device sizes {list(layout.device_size)} with stride map {list(layout.stride_map)}"

    def refuse(rule: str) -> ValueError:
        return _refused(layout.host_size, layout.format, f"{what} {rule}")

    # (linear step, count, device stride); a dim whose step passes the space stays at 0.
    steps = sorted(
        (step, size, stride)
        for step, size, stride in zip(
            layout.stride_map, layout.device_size, layout.device_strides, strict=True
        )
        if size > 1 and 0 < step < numel
    )
    if not steps or steps[0][0] != 1:
        raise refuse("give linear element 1 no place")
    host_strides = {
        stride
        for size, stride in zip(layout.host_size, _dense_strides(layout.host_size), strict=True)
        if size > 1
    }
    groups: list[list[tuple[int, int, int]]] = []
    for entry in steps:
        step = entry[0]
        if groups:
            below = groups[-1][-1][0]
            if step == below:
                raise refuse(
                    f"name host stride {step} twice, so elements have several places; "
                    "use 0 for copies"
                )
            if step % below == 0 and step not in host_strides:
                groups[-1].append(entry)
                continue
            if step % groups[-1][0][0]:
                raise refuse(
                    f"do not nest: host stride {step} is no multiple of {groups[-1][0][0]}"
                )
        groups.append([entry])

    axes: list[Axis] = []
    for position, group in enumerate(groups):
        start = group[0][0]
        if numel % start:
            raise refuse(f"do not nest: {numel} elements are no multiple of {start}")
        top = groups[position + 1][0][0] if position + 1 < len(groups) else numel
        digits: list[Digit] = []
        above = top
        for step, size, stride in reversed(group):
            count = -(-above // step)
            if count > size:
                raise refuse(f"give linear element {size * step} no place")
            digits.append(Digit(step // start, count, stride))
            above = step
        axes.append(Axis(-(-top // start), start, tuple(digits)))
    return tuple(reversed(axes))


def _boxes(axis: Axis) -> list[tuple[tuple[int, ...], int]]:
    """The axis as (counts per digit, first index) boxes: the full part, then what is left over."""
    boxes: list[tuple[tuple[int, ...], int]] = []
    done = 0
    inner = [digit.count for digit in axis.digits]
    for position, digit in enumerate(axis.digits):
        whole = (axis.size - done) // digit.unit
        if whole:
            counts = (*(1 for _ in axis.digits[:position]), whole, *inner[position + 1 :])
            boxes.append((counts, done))
            done += whole * digit.unit
    return boxes
