"""Windows that slide over tensors: what convolutions and pools are made of.

A window is a view with more dims than its tensor, no copy. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openspyre.compiler.build import GraphBuilder, Operand
from openspyre.compiler.lower.tools import number, numbers, pad, piece, spread
from openspyre.compiler.sizes import Size
from openspyre.compiler.view import NeedsCopy, View


@dataclass(frozen=True)
class Windows:
    """How windows slide over the spatial dims: all in elements."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    low: tuple[int, ...]  # pads before and after
    high: tuple[int, ...]
    dilation: tuple[int, ...]

    @staticmethod
    def of(
        b: GraphBuilder, kernel: Sequence[Size], stride: Sequence[Size], padding: Sequence[Size],
        dilation: Sequence[Size], count: int,
    ) -> Windows:  # fmt: skip
        """From the arguments of PyTorch's operations."""
        k = spread(numbers(kernel, b, "a kernel's size"), count)
        s = spread(numbers(stride, b, "a stride"), count) if stride else k
        p = spread(numbers(padding, b, "a pad"), count)
        d = spread(numbers(dilation, b, "a dilation"), count)
        return Windows(tuple(k), tuple(s), tuple(p), tuple(p), tuple(d))

    @property
    def count(self) -> int:
        return len(self.kernel)

    def reach(self, n: int) -> int:
        """Elements from the first to the last of a window."""
        return (self.kernel[n] - 1) * self.dilation[n] + 1

    def outputs(self, sizes: Sequence[int], ceil: bool = False) -> list[int]:
        """How many windows there are along each dim."""
        found = []
        for n, size in enumerate(sizes):
            room = size + self.low[n] + self.high[n] - self.reach(n)
            out = (room + (self.stride[n] - 1 if ceil else 0)) // self.stride[n] + 1
            if ceil and (out - 1) * self.stride[n] >= size + self.low[n]:
                out -= 1  # a window must begin inside
            found.append(out)
        return found

    def fitted(self, sizes: Sequence[int], outs: Sequence[int]) -> Windows:
        """With the pads after it changed to give exactly `outs` windows."""
        high = [
            (out - 1) * self.stride[n] + self.reach(n) - size - self.low[n]
            for n, (size, out) in enumerate(zip(sizes, outs, strict=True))
        ]
        return Windows(self.kernel, self.stride, self.low, tuple(high), self.dilation)


def spatial(b: GraphBuilder, x: View, count: int) -> list[int]:
    """The sizes of the last `count` dims."""
    return numbers(x.shape[x.rank - count :], b, "a spatial size")


def padded(b: GraphBuilder, x: View, dims: Sequence[int], w: Windows, value: Operand = 0) -> View:
    """`x` with the windows' pads along `dims`."""
    low, high = [0] * x.rank, [0] * x.rank
    for n, d in enumerate(dims):
        low[d], high[d] = w.low[n], w.high[n]
    return pad(b, x, low, high, value)


def windowed(b: GraphBuilder, x: View, dims: Sequence[int], w: Windows) -> View:
    """Of a padded tensor: each of `dims` becomes which window, the places within it are new dims at
    the end, in the order of `dims`."""
    for n, d in enumerate(dims):
        try:
            x = x.unfold(d, w.reach(n), w.stride[n])
        except NeedsCopy:
            x = b.contiguous(x).unfold(d, w.reach(n), w.stride[n])
        if w.dilation[n] != 1:
            last = x.rank - 1
            x = x.slice(last, 0, w.kernel[n], w.dilation[n])
    return x


def stuffed(
    b: GraphBuilder, x: View, dims: Sequence[int], w: Windows, sizes: Sequence[int]
) -> View:
    """Of one value a window, the tensor whose stride 1 windows gather for every element of `sizes`
    what the windows that hold it have: values `stride` apart, zeros in between and around."""
    low, high, steps = [0] * x.rank, [0] * x.rank, [1] * x.rank
    for n, d in enumerate(dims):
        outs = number(x.size(d), b, "a spatial size")
        steps[d] = w.stride[n]
        low[d] = w.reach(n) - 1 - w.low[n]
        high[d] = sizes[n] + w.reach(n) - 1 - low[d] - ((outs - 1) * w.stride[n] + 1)
    return pad(b, x, low, high, 0, steps)


def plain_windows(w: Windows) -> Windows:
    """The windows of `stuffed`: stride 1, no pads."""
    none = (0,) * w.count
    return Windows(w.kernel, (1,) * w.count, none, none, w.dilation)


def cropped(b: GraphBuilder, x: View, dims: Sequence[int], sizes: Sequence[int]) -> View:
    """The first `sizes` elements of `dims`."""
    for d, size in zip(dims, sizes, strict=True):
        x = piece(b, x, d, 0, size)
    return x
