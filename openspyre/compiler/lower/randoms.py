"""Random operations on the card: Philox4x32-10, by the numbers of the device's generator.

Element i of the contiguous logical order takes word i % 4 of block offset + i / 4 (words 2 (i % 2)
and the next of block offset + i / 2 where it needs 64 bits), as csrc/torch/random.cpp draws them on
the host: a seed means the same numbers wherever they are drawn, but for the last bits of a
logarithm. So every lowering here gets `seed` and `offset`, and says how many blocks it takes
(`registry.draws`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from openspyre.compiler.build import REGISTER, GraphBuilder, Scalar, broadcast
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.lower.promote import (
    FLOATS,
    INTEGERS,
    LIMITS,
    computable,
    default_float,
    is_float,
    refuse,
    size_register,
)
from openspyre.compiler.lower.registry import constant, lowers, resolves
from openspyre.compiler.sizes import Size, product, size_of
from openspyre.compiler.view import View
from openspyre.program import body as f
from openspyre.program.body import Reg

_MASK = 0xFFFFFFFF
_BITS = {"float16": 10, "bfloat16": 8}
"""Significant bits that a drawn value of a 16-bit dtype may have: exact on the card in any mode."""
_LARGEST = {"float32": 2**24, "float16": 2**11, "bfloat16": 2**8, "bool": 1}

Shape = Sequence[Size]


def _blocks(shape: Shape, words: int = 4) -> Size:
    """Blocks for one element of `shape` each `words`-th of a block."""
    return size_of((product(shape) + (words - 1)) // words)


def _position(maker: Reg, index: Any, shape: Shape) -> Reg:
    """The place of the element in the contiguous logical order."""
    total = maker.const("l", 0)
    for d, size in enumerate(shape):
        total = total * size_register(maker, size) + index(d) if d else index(0)
    return total


class Draw:
    """What one element draws: its words, and the uniform numbers made of them."""

    def __init__(self, index: Any, shape: Shape, seed: Reg, offset: Reg) -> None:
        self.seed, self.offset = seed, offset
        self.at = _position(seed, index, shape)

    def _words(self, per_block: int) -> list[Reg]:
        block = self.offset + (self.at >> (1 if per_block == 2 else 2))
        return [f.philox(self.seed, block, word) for word in range(4)]

    def word(self) -> Reg:
        """Its 32-bit word, as int32."""
        lane, words = self.at & 3, self._words(4)
        upper = f.where(f.equal(lane, 2), words[2], words[3])
        return f.where(f.equal(lane, 0), words[0], f.where(f.equal(lane, 1), words[1], upper))

    def wide(self) -> Reg:
        """Its 32-bit word, as a number of int64."""
        return f.cast(self.word(), "l") & _MASK

    def halves(self) -> tuple[Reg, Reg]:
        """The low and high half of its 64-bit word, each a number of int64."""
        odd, words = f.equal(self.at & 1, 1), self._words(2)
        low, high = f.where(odd, words[2], words[0]), f.where(odd, words[3], words[1])
        return f.cast(low, "l") & _MASK, f.cast(high, "l") & _MASK

    def unit(self) -> Reg:
        """In [0, 1), 24 bits."""
        return f.unit(self.word())

    def minus_log(self) -> Reg:
        """-log u of u = (word + 0.5) / 2^32."""
        twice = self.wide() * 2 + 1
        u = f.cast(twice, "f") * 2.0**-33
        rest = f.cast(twice.like(2**33) - twice, "f") * 2.0**-33
        return f.where(u > 0.5, -f.log1p(-rest), -f.log(u))

    def below(self, chance: Reg) -> Reg:
        """Whether u < chance, exactly."""
        limit = f.cast(f.ceil(chance * 2.0**33), "l")
        return (self.wide() * 2 + 1) < limit

    def normal(self) -> Reg:
        """Standard normal, by Box and Muller: two words make two."""
        lane, words = self.at & 3, self._words(4)
        first = lane < 2
        one, two = f.where(first, words[0], words[2]), f.where(first, words[1], words[3])
        u = f.cast((f.cast(one, "l") & _MASK) * 2 + 1, "f") * 2.0**-33
        radius = f.sqrt(f.log(u) * -2.0)
        angle = f.unit(two) * (2.0 * math.pi)
        return radius * f.where(f.equal(lane & 1, 0), f.cos(angle), f.sin(angle))


Drawn = Callable[..., Reg]


def drawn(
    b: GraphBuilder,
    function: Drawn,
    shape: Shape,
    dtype: str,
    seed: Any,
    offset: Any,
    *operands: Any,
) -> View:
    """function(Draw, operands) at every element of a new tensor."""
    computable(b.operation, dtype)

    def body(index: Any, key: Reg, counter: Reg, *regs: Reg) -> Reg:
        draw = Draw(index, shape, f.cast(key, "l"), f.cast(counter, "l"))
        result = function(draw, *(f.cast(r, "f") for r in regs))
        return f.cast(result, REGISTER[dtype])

    return b.map(
        body, seed, offset, *operands, dtype=dtype, shape=tuple(shape), indexed=True, name="random"
    )


def _floor_to_bits(value: Reg, bits: int) -> Reg:
    """The largest number of `bits` significant bits not above `value`."""
    if bits >= 24:
        return value
    step = 1 << (24 - bits)
    code = f.bits(value)
    inexact = f.not_equal(code & (step - 1), 0)
    floor = code & -step
    return f.bits(f.where(inexact & (value < 0.0), floor + step, floor))


def _float_dtype(b: GraphBuilder, dtype: str) -> str:
    refuse(b.operation, dtype, FLOATS)
    return dtype


# --- continuous


def uniform_in(
    b: GraphBuilder, shape: Shape, dtype: str, low: Any, high: Any, seed: Any, offset: Any
) -> View:
    """Uniform in [low, high), in a floating dtype."""
    bits = _BITS.get(_float_dtype(b, dtype), 24)

    def body(draw: Draw, start: Reg, end: Reg) -> Reg:
        value = _floor_to_bits(draw.unit() * (end - start) + start, bits)
        return f.where((value < start) | (value >= end), start, value)

    return drawn(b, body, shape, dtype, seed, offset, _number(low), _number(high))


def _number(value: Any) -> Any:
    return value if isinstance(value, (Scalar, View)) else float(value)


def normal_in(
    b: GraphBuilder, shape: Shape, dtype: str, mean: Any, std: Any, seed: Any, offset: Any
) -> View:
    """Normal with this mean and standard deviation (numbers or views), in a floating dtype."""

    def body(draw: Draw, middle: Reg, spread: Reg) -> Reg:
        return draw.normal() * spread + middle

    _float_dtype(b, dtype)
    return drawn(b, body, shape, dtype, seed, offset, _number(mean), _number(std))


def _like(self: View, *rest: Any, **more: Any) -> Size:
    return _blocks(self.shape)


def _sized(size: Shape, *rest: Any, **more: Any) -> Size:
    return _blocks(size)


@lowers("aten.uniform", draws=_like)
def uniform(
    b: GraphBuilder, self: View, low: Any = 0.0, high: Any = 1.0, *, seed: Any, offset: Any
) -> View:
    return uniform_in(b, self.shape, self.dtype, low, high, seed, offset)


@lowers("aten.rand", "aten.rand.generator", draws=_sized)
def rand(b: GraphBuilder, size: Shape, dtype: str | None = None, *, seed: Any, offset: Any) -> View:
    return uniform_in(b, size, dtype or default_float(), 0.0, 1.0, seed, offset)


@lowers("aten.rand_like", "aten.rand_like.generator", draws=_like)
def rand_like(
    b: GraphBuilder, self: View, dtype: str | None = None, *, seed: Any, offset: Any
) -> View:
    return uniform_in(b, self.shape, dtype or self.dtype, 0.0, 1.0, seed, offset)


@lowers("aten.normal_functional", draws=_like)
def normal_functional(
    b: GraphBuilder, self: View, mean: Any = 0.0, std: Any = 1.0, *, seed: Any, offset: Any
) -> View:
    return normal_in(b, self.shape, self.dtype, mean, std, seed, offset)


resolves("aten.normal.out", "aten.normal_functional.default", {"out": 0}, out=True)


@lowers("aten.randn", "aten.randn.generator", draws=_sized)
def randn(
    b: GraphBuilder, size: Shape, dtype: str | None = None, *, seed: Any, offset: Any
) -> View:
    return normal_in(b, size, dtype or default_float(), 0.0, 1.0, seed, offset)


@lowers("aten.randn_like", "aten.randn_like.generator", draws=_like)
def randn_like(
    b: GraphBuilder, self: View, dtype: str | None = None, *, seed: Any, offset: Any
) -> View:
    return normal_in(b, self.shape, dtype or self.dtype, 0.0, 1.0, seed, offset)


def _of_two(mean: Any, std: Any, **rest: Any) -> Size:
    return _blocks(broadcast([v.shape for v in (mean, std) if isinstance(v, View)]))


@lowers("aten.normal.Tensor_float", "aten.normal.float_Tensor", "aten.normal.Tensor_Tensor",
        draws=_of_two)  # fmt: skip
def normal_of(b: GraphBuilder, mean: Any, std: Any = 1.0, *, seed: Any, offset: Any) -> View:
    views = [v for v in (mean, std) if isinstance(v, View)]
    shape = broadcast([v.shape for v in views])
    return normal_in(b, shape, views[0].dtype, mean, std, seed, offset)


def _third(mean: Any, std: Any, size: Shape, **rest: Any) -> Size:
    return _blocks(size)


@lowers("aten.normal.float_float", draws=_third)
def normal_sized(
    b: GraphBuilder,
    mean: Any,
    std: Any,
    size: Shape,
    dtype: str | None = None,
    *,
    seed: Any,
    offset: Any,
) -> View:
    return normal_in(b, size, dtype or default_float(), mean, std, seed, offset)


@lowers("aten.log_normal", draws=_like)
def log_normal(
    b: GraphBuilder, self: View, mean: Any = 1.0, std: Any = 2.0, *, seed: Any, offset: Any
) -> View:
    return drawn(
        b, lambda draw, m, s: f.exp(draw.normal() * s + m), self.shape,
        _float_dtype(b, self.dtype), seed, offset, _number(mean), _number(std),
    )  # fmt: skip


@lowers("aten.exponential", draws=_like)
def exponential(b: GraphBuilder, self: View, lambd: Any = 1.0, *, seed: Any, offset: Any) -> View:
    return drawn(
        b, lambda draw, rate: draw.minus_log() / rate, self.shape,
        _float_dtype(b, self.dtype), seed, offset, _number(lambd),
    )  # fmt: skip


@lowers("aten.cauchy", draws=_like)
def cauchy(
    b: GraphBuilder, self: View, median: Any = 0.0, sigma: Any = 1.0, *, seed: Any, offset: Any
) -> View:
    def body(draw: Draw, middle: Reg, spread: Reg) -> Reg:
        around = f.cast(draw.wide() * 2 + (1 - 2**32), "f") * 2.0**-33
        return f.tan(around * math.pi) * spread + middle

    dtype = _float_dtype(b, self.dtype)
    return drawn(b, body, self.shape, dtype, seed, offset, _number(median), _number(sigma))


@lowers("aten.geometric", draws=_like)
def geometric(b: GraphBuilder, self: View, p: Any, *, seed: Any, offset: Any) -> View:
    def body(draw: Draw, chance: Reg) -> Reg:
        return f.maximum(f.ceil(draw.minus_log() / -f.log1p(-chance)), 1.0)

    return drawn(b, body, self.shape, self.dtype, seed, offset, _number(p))


# --- yes or no


def _bernoulli(b: GraphBuilder, self: View, p: Any, seed: Any, offset: Any) -> View:
    return drawn(
        b, lambda draw, chance: draw.below(chance), self.shape, self.dtype, seed, offset, _number(p)
    )


@lowers("aten.bernoulli.p", "aten.bernoulli.Tensor", draws=_like)
def bernoulli_p(b: GraphBuilder, self: View, p: Any, *, seed: Any, offset: Any) -> View:
    return _bernoulli(b, self, p, seed, offset)


@lowers("aten.bernoulli", draws=_like)
def bernoulli(b: GraphBuilder, self: View, *, seed: Any, offset: Any) -> View:
    refuse(b.operation, self.dtype, FLOATS)
    return _bernoulli(b, self, self, seed, offset)


def _dropped(input: View, p: Any, train: bool | None) -> Size:
    return _blocks(input.shape) if train is not False else 0


@lowers("aten.native_dropout", draws=_dropped)
def native_dropout(
    b: GraphBuilder, input: View, p: Any, train: bool | None, *, seed: Any, offset: Any
) -> tuple[View, View]:
    """(output, mask)."""
    shape = input.shape
    if train is False:
        return b.copy(input), b.map(f.identity, True, dtype="bool", shape=shape)
    refuse(b.operation, input.dtype, FLOATS)

    def body(index: Any, key: Reg, counter: Reg, x: Reg, chance: Reg) -> tuple[Reg, ...]:
        draw = Draw(index, shape, f.cast(key, "l"), f.cast(counter, "l"))
        chance = f.cast(chance, "f")
        keep = chance.like(1.0) - chance
        kept = draw.below(keep)
        scale = f.where(f.equal(keep, 0.0), keep, keep.like(1.0) / keep)
        return x * f.cast(kept, "f") * scale, kept

    made = b.map_many(
        body, seed, offset, input, _number(p), dtypes=(input.dtype, "bool"), shape=shape,
        indexed=True, name="dropout",
    )  # fmt: skip
    return made[0], made[1]


@lowers("aten.dropout", draws=_dropped)
def dropout(b: GraphBuilder, input: View, p: Any, train: bool, *, seed: Any, offset: Any) -> View:
    return native_dropout(b, input, p, train, seed=seed, offset=offset)[0] if train else input


# --- integers


def _high_product(low: Reg, high: Reg, factor: int) -> Reg:
    """The upper 64 bits of (high * 2^32 + low) * factor, all unsigned."""
    small, large = factor & _MASK, factor >> 32
    a, c, d, e = low * small, low * large, high * small, high * large
    middle = f.shr_logical(a, 32) + (c & _MASK) + (d & _MASK)
    return e + f.shr_logical(c, 32) + f.shr_logical(d, 32) + f.shr_logical(middle, 32)


def _narrow(range_: int) -> bool:
    return 0 < range_ <= 1 << 16


def integers_in(
    b: GraphBuilder, shape: Shape, dtype: str, low: int, range_: int, seed: Any, offset: Any
) -> View:
    """Integers low + [0, range); range 0 stands for 2^64."""
    limit = _LARGEST.get(dtype)
    if is_float(dtype) and limit and max(abs(low), abs(low + range_ - 1)) > limit:
        raise Unsupported(
            b.operation, f"integers {low} to {low + range_} as {dtype}", "they must be exact"
        )

    def body(draw: Draw) -> Reg:
        if _narrow(range_):
            at = (draw.wide() * range_) >> 32
        else:
            half, upper = draw.halves()
            at = (upper << 32) + half if range_ == 0 else _high_product(half, upper, range_)
        value = at + low
        return (
            _floor_to_bits(f.cast(value, "f"), _BITS.get(dtype, 24)) if is_float(dtype) else value
        )

    return drawn(b, body, shape, dtype, seed, offset)


def _integer_blocks(shape: Shape, range_: int) -> Size:
    return _blocks(shape, 4 if _narrow(range_) else 2)


def _span(dtype: str, low: int, high: int | None) -> int:
    """How many values random.from means."""
    if high is not None:
        return high - low
    if dtype in INTEGERS:
        return (LIMITS[dtype][1] - low + 1) % 2**64
    return _LARGEST[dtype] - low + 1


def _between(value: Any, what: str) -> int:
    return int(constant(value, what))


@lowers(
    "aten.randint", "aten.randint.generator",
    draws=lambda high, size, **rest: _integer_blocks(size, _between(high, "high")),
)  # fmt: skip
def randint(
    b: GraphBuilder,
    high: Any,
    size: Shape,
    dtype: str | None = "int64",
    *,
    seed: Any,
    offset: Any,
) -> View:
    return integers_in(b, size, dtype or "int64", 0, _between(high, "high"), seed, offset)


@lowers(
    "aten.randint.low", "aten.randint.low_generator",
    draws=lambda low, high, size, **rest: _integer_blocks(
        size, _between(high, "high") - _between(low, "low")
    ),
)  # fmt: skip
def randint_low(
    b: GraphBuilder,
    low: Any,
    high: Any,
    size: Shape,
    dtype: str | None = "int64",
    *,
    seed: Any,
    offset: Any,
) -> View:
    first = _between(low, "low")
    return integers_in(
        b, size, dtype or "int64", first, _between(high, "high") - first, seed, offset
    )  # fmt: skip


@lowers(
    "aten.randint_like", "aten.randint_like.generator",
    draws=lambda self, high, **rest: _integer_blocks(self.shape, _between(high, "high")),
)  # fmt: skip
def randint_like(
    b: GraphBuilder, self: View, high: Any, dtype: str | None = None, *, seed: Any, offset: Any
) -> View:
    top = _between(high, "high")
    return integers_in(b, self.shape, dtype or self.dtype, 0, top, seed, offset)


@lowers(
    "aten.randint_like.low_dtype", "aten.randint_like.low_generator_dtype",
    draws=lambda self, low, high, **rest: _integer_blocks(
        self.shape, _between(high, "high") - _between(low, "low")
    ),
)  # fmt: skip
def randint_like_low(
    b: GraphBuilder,
    self: View,
    low: Any,
    high: Any,
    dtype: str | None = None,
    *,
    seed: Any,
    offset: Any,
) -> View:
    first = _between(low, "low")
    span = _between(high, "high") - first
    return integers_in(b, self.shape, dtype or self.dtype, first, span, seed, offset)


@lowers(
    "aten.random", draws=lambda self: _integer_blocks(self.shape, _span(self.dtype, 0, None))
)  # fmt: skip
def random(b: GraphBuilder, self: View, *, seed: Any, offset: Any) -> View:
    span = _span(self.dtype, 0, None)
    return integers_in(b, self.shape, self.dtype, 0, span, seed, offset)


@lowers(
    "aten.random.to",
    draws=lambda self, to: _integer_blocks(self.shape, _between(to, "to")),
)  # fmt: skip
def random_to(b: GraphBuilder, self: View, to: Any, *, seed: Any, offset: Any) -> View:
    return integers_in(b, self.shape, self.dtype, 0, _between(to, "to"), seed, offset)


def _from_span(self: View, low: Any, to: Any) -> int:
    return _span(self.dtype, _between(low, "from"), None if to is None else _between(to, "to"))


@lowers(
    "aten.random.from",
    draws=lambda self, low, to: _integer_blocks(self.shape, _from_span(self, low, to)),
)  # fmt: skip
def random_from(b: GraphBuilder, self: View, low: Any, to: Any, *, seed: Any, offset: Any) -> View:
    span = _from_span(self, low, to)
    first = _between(low, "from") if span else 0  # over all of int64 the word is the number
    return integers_in(b, self.shape, self.dtype, first, span, seed, offset)
