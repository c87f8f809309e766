"""What Inductor makes of random operations: seeds drawn once, numbers computed from them.

`prims.inductor_seeds` takes its values from the device's generator; the others are Philox with such
a seed as the key and the element's place as the counter, all on the card.
"""

from __future__ import annotations

from typing import Any

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.lower.randoms import Draw, Shape, _blocks, drawn
from openspyre.compiler.lower.registry import lowers
from openspyre.compiler.sizes import Size
from openspyre.compiler.view import View
from openspyre.program import body as f
from openspyre.program.body import Reg


def seed_blocks(count: Size, *rest: Any, **more: Any) -> Size:
    """Philox blocks for `count` seeds of 64 bits."""
    return _blocks((count,), 2)


@lowers("prims.inductor_seeds", draws=seed_blocks)
def seeds(b: GraphBuilder, count: Size, *, seed: Any, offset: Any) -> View:
    def body(draw: Draw) -> Reg:
        low, high = draw.halves()
        return low | ((high & 0x7FFFFFFF) << 32)

    return drawn(b, body, (count,), "int64", seed, offset)


@lowers("prims.inductor_lookup_seed")
def lookup_seed(b: GraphBuilder, seeds: View, index: int) -> View:
    return seeds.select(0, index)


@lowers("prims.inductor_random")
def random(
    b: GraphBuilder, size: Shape, seed: View, mode: str, *, align_dtype: str | None = None
) -> View:
    function = Draw.unit if mode == "rand" else Draw.normal
    return drawn(b, function, size, "float32", seed, 0)


@lowers("prims.inductor_randint")
def randint(b: GraphBuilder, low: int, high: int, size: Shape, seed: View) -> View:
    # The product of 32 random bits and the range, as Inductor's other devices do it.
    span = high - low

    def body(draw: Draw) -> Reg:
        if span <= 1 << 31:
            return ((draw.wide() * span) >> 32) + low
        least, most = draw.halves()
        return f.apply("remainder", least | ((most & 0x7FFFFFFF) << 32), span) + low

    return drawn(b, body, size, "int64", seed, 0)
