"""Draws a layout as text: device dims, what each holds, sticks, pad lanes, bytes.

For people: demos, error reports, the command line. Works from the public fields of
`openspyre.layout.SpyreTensorLayout` alone; imports no torch.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openspyre.layout import SpyreTensorLayout

from openspyre.formats import STICK_BYTES

_LANES_SHOWN = 64  # characters of a drawn stick
_STICKS_SHOWN = 12


def draw(layout: SpyreTensorLayout) -> str:
    """The picture of `layout`, several lines, without a trailing newline."""
    format = layout.format
    shape = " x ".join(map(str, layout.host_size)) or "scalar"
    lines = [
        f"{shape} {format.name}: {_count(layout.numel, 'element')} of {format.bytes} B, "
        f"{layout.elements_per_stick} a stick",
        *_dims(layout),
        *_totals(layout),
    ]
    if layout.numel:
        lines += _sticks(layout)
    return "\n".join(lines)


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def _dims(layout: SpyreTensorLayout) -> list[str]:
    rows = [("device dim", "size", "holds", "host step", "card step")]
    last = len(layout.device_size) - 1
    for dim, (size, step, stride) in enumerate(
        zip(layout.device_size, layout.stride_map, layout.device_strides, strict=True)
    ):
        rows.append(
            (
                f"{dim} (stick)" if dim == last else str(dim),
                f"{size:,}",
                _role(layout, dim),
                f"{step:,}" if step > 0 else "-",
                f"{stride:,}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if place in (0, 2) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _role(layout: SpyreTensorLayout, dim: int) -> str:
    """What device dim `dim` holds, in words."""
    size, step = layout.device_size[dim], layout.stride_map[dim]
    on_stick = dim == len(layout.device_size) - 1
    if step == 0:
        return f"{size} copies of every element" if size > 1 else "one copy"
    if step < 0:
        return "one element, the other lanes are pad" if on_stick else "nothing (size 1)"
    stride = layout.device_strides[dim]
    for axis in layout.axes:
        for digit in axis.digits:
            if size > 1 and digit.device_stride == stride:
                host_dim = layout.host_dim_of(step)
                what = "the folded elements" if host_dim is None else f"host dim {host_dim}"
                if len(axis.digits) == 1 and not on_stick:
                    return what
                return f"{what}, its lanes" if on_stick else f"{what}, its sticks"
    host_dim = layout.host_dim_of(layout.stride_map[-1]) if layout.stride_map[-1] > 0 else None
    return f"host dim {host_dim}, its one stick" if host_dim is not None else "nothing more"


def _totals(layout: SpyreTensorLayout) -> list[str]:
    copies = 1
    for count, _ in layout.copies:
        copies *= count
    used = layout.numel * copies * layout.format.bytes
    pads = layout.nbytes - used
    share = f" ({100 * pads / layout.nbytes:.1f} %)" if layout.nbytes else ""
    lines = [
        f"  {_count(layout.sticks, 'stick')} of {STICK_BYTES} B = {layout.nbytes:,} B on the card; "
        f"elements {used:,} B, pads {pads:,} B{share}"
    ]
    dim = layout.stick_dim
    if dim is not None:
        size, eps = layout.host_size[dim], layout.elements_per_stick
        full, rest = divmod(size, eps)
        parts = [f"{full} full"] if full else []
        if rest:
            parts.append(f"one with {rest} elements and {eps - rest} pad lanes")
        total = full + bool(rest)
        lines.append(
            f"  {_count(size, 'element')} of host dim {dim} take {_count(total, 'stick')}: "
            + " and ".join(parts)
        )
    return lines


def _contents(layout: SpyreTensorLayout, stick: int) -> list[int | None]:
    """The linear element in each lane of stick `stick`, None for a pad."""
    eps = layout.elements_per_stick
    found: list[int | None] = []
    for lane in range(eps):
        rest = stick * eps + lane
        linear = place = 0
        for size, step, stride in zip(
            layout.device_size, layout.stride_map, layout.device_strides, strict=True
        ):
            index, rest = divmod(rest, stride)
            if step != 0:  # all copies look alike
                place += index % size * stride
                linear += index % size * max(step, 0)
        inside = linear < layout.numel
        own = inside and layout.element_offset(linear) == place * layout.format.bytes
        found.append(linear if own else None)
    return found


def _index(layout: SpyreTensorLayout, linear: int) -> list[int]:
    index: list[int] = []
    for size in reversed(layout.host_size):
        linear, value = divmod(linear, size)
        index.insert(0, value)
    return index


def _range(layout: SpyreTensorLayout, lanes: list[int | None]) -> str:
    """Host indices of the elements in a stick, e.g. `[0, 0, 128..149]`."""
    held = [linear for linear in lanes if linear is not None]
    if not held:
        return "pad"
    first, last = _index(layout, held[0]), _index(layout, held[-1])
    if sum(a != b for a, b in zip(first, last, strict=True)) > 1:  # folded: not one range
        return f"{first} to {last}"
    parts = [f"{a}..{b}" if a != b else f"{a}" for a, b in zip(first, last, strict=True)]
    return "[" + ", ".join(parts) + "]"


def _sticks(layout: SpyreTensorLayout) -> list[str]:
    """Some sticks in memory order: the first, where each device dim takes its steps, the last."""
    eps = layout.elements_per_stick
    chosen = {0, layout.sticks - 1}
    for size, stride in zip(layout.device_size[:-1], layout.device_strides[:-1], strict=True):
        chosen |= {stride // eps * step for step in (*range(min(size, 3)), size - 1)}
    if len(chosen) > _STICKS_SHOWN:
        chosen = {*sorted(chosen)[: _STICKS_SHOWN - 1], layout.sticks - 1}
    shown = sorted(chosen)
    rows = []
    for stick in shown:
        lanes = _contents(layout, stick)
        rows.append((f"{stick:,}", f"{stick * STICK_BYTES:,}", _range(layout, lanes), _bar(lanes)))
    heads = ("stick", "byte", "host index", "lanes (# element, . pad)")
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(3)]

    def line(row: tuple[str, str, str, str]) -> str:
        left = f"  {row[0].rjust(widths[0])}  {row[1].rjust(widths[1])}  {row[2].ljust(widths[2])}"
        return f"{left}  {row[3]}"

    lines = [line(heads), line(rows[0])]
    for (before, after), row in zip(pairwise(shown), rows[1:], strict=True):
        if after > before + 1:
            lines.append(f"  {'...'.rjust(widths[0])}")
        lines.append(line(row))
    return lines


def _bar(lanes: list[int | None]) -> str:
    """One character for one lane or, in long sticks, several (+ when only some hold elements)."""
    group = max(1, len(lanes) // _LANES_SHOWN)
    marks = []
    for start in range(0, len(lanes), group):
        held = sum(linear is not None for linear in lanes[start : start + group])
        marks.append("#" if held == group else "+" if held else ".")
    return "|" + "".join(marks) + "|"
