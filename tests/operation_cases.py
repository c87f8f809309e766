"""Generated calls of operations: a seed and a number give an operation, its dtypes, shapes and
strides, always the same ones. A helper module of operation_fuzz.py, which runs and judges them.

Every operand is a view of a base tensor: permuted, sliced with offsets and steps, expanded,
selected of a higher rank, or given its strides outright. Values are such that the right result is
known well: integers where one wrong element must show, and no cancellation that a tolerance hides.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32)
SIGNED = (torch.int8, torch.int32, torch.int64)
INTEGERS = (*SIGNED, torch.uint8)
NUMBERS = FLOATS + INTEGERS
ALL = (*NUMBERS, torch.bool)

EDGES = (31, 32, 33, 63, 64, 65, 127, 128, 129)
SMALL = (1, 1, 2, 2, 3, 4, 5, 7, 8)
MOST = 60_000
"""Elements of one base tensor."""


@dataclass(frozen=True)
class Operand:
    """A view of a base tensor: `steps` are methods and their arguments, applied in turn."""

    dtype: torch.dtype
    base: tuple[int, ...]
    steps: tuple[tuple[str, tuple[Any, ...]], ...]
    values: str
    seed: int
    bound: int = 0
    """Of index values: what they index, whose size is this."""

    def view(self, base: Tensor) -> Tensor:
        for method, arguments in self.steps:
            if method == "slice":
                base = base[tuple(slice(*part) for part in arguments)]
            else:
                base = getattr(base, method)(*arguments)
        return base

    def make(self) -> Tensor:
        """The base tensor's elements, on the host."""
        g = torch.Generator().manual_seed(self.seed)
        shape, dtype, kind = list(self.base), self.dtype, self.values

        def integers(low: int, high: int) -> Tensor:
            return torch.randint(low, high, shape, generator=g)

        if dtype is torch.bool:
            return integers(0, 2).bool()
        if kind == "index":
            return integers(0, max(self.bound, 1)).to(dtype)
        if kind == "signed index":
            return integers(-self.bound, max(self.bound, 1)).to(dtype)
        if kind == "permutation":
            return torch.randperm(max(self.bound, 1), generator=g)[: math.prod(self.base)].view(
                shape
            )
        if not dtype.is_floating_point:
            info = torch.iinfo(dtype)
            if kind == "large":
                return integers(info.min, info.max).to(dtype)
            low = 0 if dtype is torch.uint8 else -4
            if kind in ("nonzero", "powers") and low:
                return (integers(1, 6) * (integers(0, 2) * 2 - 1)).to(dtype)
            if kind in ("nonzero", "positive", "near one", "powers"):
                return integers(1, 6 if kind != "near one" else 3).to(dtype)
            return integers(0 if kind == "unit" else low, 5).to(dtype)
        if kind == "small":
            return integers(-4, 5).to(dtype)
        if kind == "powers":
            return (2.0 ** integers(-2, 3) * (integers(0, 2) * 2 - 1)).to(dtype)
        uniform = torch.rand(shape, generator=g)
        if kind == "unit":
            return (0.1 + 0.8 * uniform).to(dtype)
        if kind == "signed unit":
            return (1.8 * uniform - 0.9).to(dtype)
        if kind == "positive":
            return (0.5 + 3 * uniform).to(dtype)
        if kind == "near one":
            return (0.9 + 0.2 * uniform).to(dtype)
        if kind == "nonzero":
            return ((0.5 + 2 * uniform) * (integers(0, 2) * 2 - 1)).to(dtype)
        values = torch.randn(shape, generator=g)
        if kind == "special":
            for at, value in enumerate((math.nan, math.inf, -math.inf, 0.0, -0.0)):
                values[integers(0, 12) == at] = value
        return values.to(dtype)

    def __str__(self) -> str:
        steps = "".join(f".{name}{args}" for name, args in self.steps)
        return f"{str(self.dtype)[6:]}{list(self.base)}{steps}<{self.values}>"


@dataclass
class Case:
    """A call: `function` of the operands' views. Where `written`, the bases are results too."""

    name: str
    text: str
    operands: list[Operand]
    function: Callable[[Sequence[Tensor]], Any]
    written: bool = False
    sums: bool = False
    """Results are sums of terms: their error is measured by the sum of the terms' sizes."""
    absolute: float = 0.0
    """Error that is allowed of any result in float32: of results that end a longer computation."""
    product: bool = False
    """No half-precision run on the CPU says what dtype the result has: meta kernels do."""
    steps: bool = False
    """PyTorch takes it apart: 16-bit results are rounded in between."""
    compiled: bool = False
    strides: bool = True


@dataclass
class Draw:
    """What one case is drawn with."""

    rng: random.Random
    operands: list[Operand] = field(default_factory=list)

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def of(self, options: Sequence[Any]) -> Any:
        return options[self.rng.randrange(len(options))]

    def size(self, most: int = 129) -> int:
        if self.chance(0.01):
            return 0
        return int(self.of([s for s in (EDGES if self.chance(0.5) else SMALL) if s <= most]))

    def shape(self, rank: int | None = None, most: int = MOST, low: int = 1) -> list[int]:
        rank = self.rng.randint(max(low, 1), 6) if rank is None else rank
        sizes = [self.size() for _ in range(rank)]
        while math.prod(sizes) > most:
            largest = max(range(rank), key=lambda d: (sizes[d], self.rng.random()))
            sizes[largest] = int(self.of(SMALL))
        return sizes

    def dim(self, rank: int) -> int:
        return self.rng.randrange(-rank, rank) if rank else 0

    def dims(self, rank: int, low: int = 1) -> tuple[int, ...]:
        chosen = self.rng.sample(range(rank), self.rng.randint(min(low, rank), rank))
        return tuple(d - rank if self.chance(0.3) else d for d in chosen)

    def seed(self) -> int:
        return self.rng.randrange(1 << 30)

    def operand(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        values: str = "normal",
        written: bool = False,
        bound: int = 0,
    ) -> int:
        """A new operand whose view has `shape`; its place among the operands."""
        base = list(shape)
        steps: list[tuple[str, tuple[Any, ...]]] = []
        kinds = self.of(((), (), ("permute",), ("slice",), ("expand",), ("select",), ("strided",),
                         ("permute", "slice"), ("slice", "permute"), ("select", "expand"),
                         ("slice", "select", "permute"), ("flat",)))  # fmt: skip
        if values == "permutation":
            kinds = ()
        for kind in kinds:
            made = self._step(kind, base, written)
            if made is not None and math.prod(made[0]) <= 4 * MOST:
                base, step = made
                steps.insert(0, step)
        operand = Operand(dtype, tuple(base), tuple(steps), values, self.seed(), bound)
        self.operands.append(operand)
        return len(self.operands) - 1

    def _step(self, kind: str, shape: list[int], written: bool) -> Any:
        """A base's shape, and the step on it that gives `shape`."""
        rank = len(shape)
        if kind == "permute" and rank > 1:
            order = self.rng.sample(range(rank), rank)
            return self._permute(shape, order)
        if kind == "slice" and rank:
            base, parts = [], []
            for n in shape:
                step = self.of((1, 1, 1, 2, 3)) if n < 130 else 1
                start, after = self.of((0, 0, 1, 3, 32, 64)), self.of((0, 0, 1, 5))
                if self.chance(0.4):
                    start, after, step = 0, 0, 1
                end = start + max(n - 1, 0) * step + (1 if n else 0)
                base.append(end + after)
                parts.append((start, end, step))
            return base, ("slice", tuple(parts))
        if kind == "expand" and rank and not written:
            grown = [self.chance(0.5) for _ in shape]
            base = [1 if g else n for g, n in zip(grown, shape, strict=True)]
            return base, ("expand", tuple(shape))
        if kind == "select" and rank < 6:
            at, n = self.rng.randint(0, rank), self.of((1, 2, 3))
            return [*shape[:at], n, *shape[at:]], ("select", (at, self.rng.randrange(n)))
        if kind == "flat" and rank > 1:
            return [math.prod(shape)], ("view", tuple(shape))
        if kind == "strided" and all(shape):
            strides: list[int] = []
            width = 1
            for n in reversed(shape):
                strides.insert(0, width)
                width = width * n + self.of((0, 0, 1, 2, 32, 64))
            offset = self.of((0, 1, 31, 64))
            last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
            return [last + 1], ("as_strided", (tuple(shape), tuple(strides), offset))
        return None

    def _permute(self, shape: list[int], order: list[int]) -> Any:
        """A base whose dims are `shape`'s in `order`, and the permutation back."""
        back = tuple(order.index(d) for d in range(len(order)))
        return [shape[d] for d in order], ("permute", back)

    # --- calls

    def case(self, name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Case:
        """The call of `function` on `args`, in which `At(n)` stands for operand n."""
        keywords = options.pop("keywords", {})

        def run(tensors: Sequence[Tensor]) -> Any:
            def of(value: Any) -> Any:
                if isinstance(value, At):
                    return tensors[value.place]
                if isinstance(value, list):
                    return [of(item) for item in value]
                if isinstance(value, tuple):
                    return tuple(of(item) for item in value)
                return value

            return function(*map(of, args), **{k: of(v) for k, v in keywords.items()})

        shown = ", ".join([*map(repr, args), *(f"{k}={v!r}" for k, v in keywords.items())])
        inputs = "; ".join(f"{At(n)!r} = {o}" for n, o in enumerate(self.operands))
        called = getattr(function, "__name__", name)
        title = name if called in (name, "<lambda>") else f"{name}:{called}"
        return Case(name, f"{title}({shown})  {inputs}", list(self.operands), run, **options)


@dataclass(frozen=True)
class At:
    """Where an operand's view stands in a call."""

    place: int

    def __repr__(self) -> str:
        return "abcdefghij"[self.place]


Maker = Callable[[Draw], Case]
MAKERS: list[tuple[Maker, int]] = []


def makes(weight: int) -> Callable[[Maker], Maker]:
    """Registers what makes cases of a kind, `weight` times as often as one of weight 1."""

    def note(maker: Maker) -> Maker:
        MAKERS.append((maker, weight))
        return maker

    return note


def generate(seed: int, number: int) -> Case:
    """The case of this number: one in eighty is compiled, and one in
    400 is compiled and writes to an operand. Two in a hundred share memory."""
    import operation_kinds  # noqa: F401  registers its makers
    from operation_sharing import shared, windows

    rng = random.Random(f"{seed}:{number}")
    if number % 80 == 79:
        return _together(rng)
    if number % 400 == 200:
        return _compiled_write(rng)
    if number % 100 in (25, 50):
        return (shared if number % 100 == 25 else windows)(Draw(rng))
    return _one(rng, Draw(rng))


def _one(rng: random.Random, draw: Draw) -> Case:
    makers, weights = zip(*MAKERS, strict=True)
    chosen: Maker = rng.choices(makers, weights)[0]
    return chosen(draw)


NOT_COMPILED = ("masked_select", "nonzero", "refused")
"""Results whose sizes are data, and calls that raise: not in one graph with others."""


def _compiled_write(rng: random.Random) -> Case:
    """A call that writes to one of its operands, for torch.compile."""
    while True:
        case = _one(rng, Draw(rng))
        if case.written:
            return replace(case, steps=True, compiled=True)


def _together(rng: random.Random) -> Case:
    """A function of two to four calls, for torch.compile: each with its own operands, and followed
    by an operation that rounds nothing."""
    parts: list[Case] = []
    wanted = rng.randint(2, 4)
    while len(parts) < wanted:
        part = _one(rng, Draw(rng))
        if part.name not in NOT_COMPILED and not part.written:
            parts.append(part)
    ends = list(itertools.accumulate([0, *(len(p.operands) for p in parts)]))
    after = [rng.choice(sorted(AFTER)) for _ in parts]

    def run(tensors: Sequence[Tensor]) -> list[Any]:
        results: list[Any] = []
        for part, start, end, then in zip(parts, ends, ends[1:], after, strict=False):
            made = part.function(tensors[start:end])
            results.append(made)
            if isinstance(made, Tensor):
                results.append(AFTER[then](made))
        return results

    text = " | ".join(f"{p.text} then {then}" for p, then in zip(parts, after, strict=True))
    return Case(
        "+".join(p.name for p in parts),
        text,
        [o for p in parts for o in p.operands],
        run,
        sums=any(p.sums for p in parts),
        absolute=max(p.absolute for p in parts),
        product=any(p.product for p in parts),
        steps=True,
        compiled=True,
        strides=all(p.strides for p in parts),
    )


def _doubled(t: Tensor) -> Tensor:
    return t if t.dtype is torch.bool else t * 2


AFTER: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda t: t.clone(),
    "doubled": _doubled,
    "contiguous": lambda t: t.transpose(0, -1).contiguous() if t.dim() else t.clone(),
    "flat": lambda t: t.reshape(-1),
    "unsqueezed": lambda t: t.unsqueeze(0).expand(2, *t.shape).clone(),
    "stacked": lambda t: torch.stack([t, t], -1),
}
