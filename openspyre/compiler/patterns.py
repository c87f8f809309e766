"""Tensors of symbolic size: how they lie, as expressions in the sizes of a traced region.

A storage's layout is numbers. What a region needs to serve many sizes is the rule behind them: that
a step of a row is 128 bytes, and a step of a stick 128 times the rows. `pattern` finds such a rule
by looking at the same tensor under other sizes; it is a guess that holds for those looked at, so
`Pattern.holds` compares it with every tensor of a launch before it is used. `range_of` says for
which sizes one program is made. Needs no card; imports no torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from openspyre.compiler.bind import Bound, bind_view, storage_layout
from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.graph import Place, Role, Tensor
from openspyre.compiler.sizes import Size, known, product, times, value_of
from openspyre.compiler.traced import SizeSymbol, SizeText, TensorFacts, size_from
from openspyre.compiler.view import View
from openspyre.formats import Format
from openspyre.layout import SpyreTensorLayout
from openspyre.program.expr import Const, ceil_div

LEAST_RANGE = 64
"""A program for a symbolic size serves at least so many sizes: a stick of 16-bit elements."""

PROBES = (3, 70, 129, 200, 331, 1024)
"""Sizes under which a layout is looked at: below a stick, beyond, whole sticks and not."""


class NoPattern(ValueError):
    """A tensor whose layout follows no simple rule: the region is compiled for its very sizes."""


def range_of(symbol: SizeSymbol, value: int) -> tuple[int, int]:
    """The sizes (first, last) that share a program with `value`: up to the next power of two, so
    that a size which grows by one meets few programs, and what is held whole in LX is at most twice
    as large as it must be."""
    last = LEAST_RANGE
    while last < value:
        last *= 2
    return symbol.minimum, min(last, symbol.maximum)


@dataclass(frozen=True)
class Pattern:
    """A tensor as `Bound` sees it, in expressions. `offset`: bytes, the same for all sizes."""

    sizes: tuple[Size, ...]
    shape: tuple[Size, ...]
    place: Place
    groups: tuple[tuple[int, ...], ...]
    elements_per_stick: int

    def tensor(self, b: GraphBuilder, name: str, dtype: str, role: Role) -> Tensor:
        """The graph's tensor for it."""
        return b.tensor(name, self.shape, dtype, role, self.place)

    def view(self, tensor: Tensor) -> View:
        """`tensor` (of `self.tensor`) in its logical dims."""
        view = View.of(tensor, self.groups)
        expanded = any(
            not group and known(size) != 1
            for group, size in zip(self.groups, self.sizes, strict=True)
        )
        return view.expand(self.sizes) if expanded else view

    def holds(self, bound: Bound, symbols: Mapping[str, int]) -> bool:
        """Whether `bound` is this pattern under `symbols`."""
        if self.groups != bound.groups or self.place.stick != bound.place.stick:
            return False
        if tuple(value_of(size, symbols) for size in self.shape) != bound.shape:
            return False
        for d, (rule, stride) in enumerate(
            zip(self.place.strides, bound.place.strides, strict=True)
        ):
            short = d == self.place.stick and bound.shape[d] <= self.elements_per_stick
            if (
                not short and value_of(rule, symbols) != stride
            ):  # of one stick, the pitch is nothing
                return False
        return True


def exact(bound: Bound, format: Format) -> Pattern:
    """The pattern of a tensor that no symbol changes."""
    return Pattern(
        bound.sizes, bound.shape, bound.place, bound.groups, format.elements_per_stick
    )  # fmt: skip


def symbolic(facts: TensorFacts, varying: Collection[str]) -> bool:
    """Whether one of these symbols occurs in the sizes or strides of a tensor."""

    def occurs(size: SizeText) -> bool:
        if isinstance(size, list):
            return occurs(size[1]) or occurs(size[2])
        return size in varying

    return any(occurs(size) for size in (*facts.sizes, *facts.strides))


def pattern(
    facts: TensorFacts,
    bound: Bound,
    layout: SpyreTensorLayout,
    origin: int,
    symbols: Mapping[str, int],
    variables: Mapping[str, Size],
) -> Pattern:
    """The rule of a tensor with `facts` that `bind` saw as `bound` under `symbols`; `layout` and
    `origin` (linear element) of its storage, `variables` the symbols as expressions or numbers.

    Raises NoPattern when the layout follows none of the rules tried: each stride a number times a
    product of at most three sizes, of which one may be counted in sticks.
    """
    sizes, strides = _at(facts.sizes, symbols), _at(facts.strides, symbols)
    own = origin == 0 and layout == storage_layout(sizes, strides, layout.format)

    def seen(values: Mapping[str, int]) -> Bound | None:
        sizes, strides = _at(facts.sizes, values), _at(facts.strides, values)
        if min(sizes, default=1) < 1:
            return None
        base = storage_layout(sizes, strides, layout.format) if own else layout
        return bind_view(base, sizes, strides, origin)

    return _fitted(facts, bound, layout.format, symbols, variables, seen)


def new_pattern(
    facts: TensorFacts,
    bound: Bound,
    format: Format,
    symbols: Mapping[str, int],
    variables: Mapping[str, Size],
) -> Pattern:
    """The rule of a tensor that torch.empty_strided makes for `facts`. Raises NoPattern."""
    layout = storage_layout(_at(facts.sizes, symbols), _at(facts.strides, symbols), format)
    return pattern(facts, bound, layout, 0, symbols, variables)


def _fitted(
    facts: TensorFacts,
    bound: Bound,
    format: Format,
    symbols: Mapping[str, int],
    variables: Mapping[str, Size],
    seen: Callable[[Mapping[str, int]], Bound | None],
) -> Pattern:
    samples = [(dict(symbols), bound)]
    varying: dict[Size, list[str]] = {}  # symbols that are one size move together
    for name, size in variables.items():
        if known(size) is None:
            varying.setdefault(size, []).append(name)
    for values in _probes(symbols, list(varying.values())):
        found = seen(values)
        if found is not None and (found.groups, found.place.stick) == (
            bound.groups,
            bound.place.stick,
        ):
            if found.offset != bound.offset:
                raise NoPattern(f"it begins at byte {found.offset} under {values}")
            samples.append((values, found))
    if len(samples) < 3:
        raise NoPattern("other sizes lie differently")
    logical = [size_from(size, variables) for size in facts.sizes]
    each = format.elements_per_stick
    quantities: list[Size] = []
    for size in logical:
        if known(size) is None:
            quantities += [size, ceil_div(size if not isinstance(size, int) else Const(size), each)]
    quantities = list(dict.fromkeys([*quantities, *varying]))
    shape = tuple(
        _fit([(values, s.shape[d]) for values, s in samples], quantities)
        for d in range(len(bound.shape))
    )
    steps: list[Size] = []
    for d in range(len(bound.shape)):
        points = [
            (values, s.place.strides[d])
            for values, s in samples
            if d != bound.place.stick or s.shape[d] > each
        ]
        steps.append(_fit(points or [({}, bound.place.strides[d])], quantities))  # type: ignore[arg-type]
    return Pattern(
        tuple(logical), shape, Place(tuple(steps), bound.place.stick), bound.groups, each
    )


def _probes(
    symbols: Mapping[str, int], varying: Sequence[Sequence[str]]
) -> Iterator[dict[str, int]]:
    """Sizes for the symbols: each group that varies moved alone, then all together."""
    for names in varying:
        for probe in PROBES:
            yield {**symbols, **dict.fromkeys(names, probe)}
            yield {**symbols, **dict.fromkeys(names, max(2, symbols[names[0]] * probe // 400))}
    for shift in range(len(PROBES)):
        moved = dict(symbols)
        for k, names in enumerate(varying):
            moved |= dict.fromkeys(names, PROBES[(k + shift) % len(PROBES)])
        yield moved


def _fit(points: Sequence[tuple[Mapping[str, int], int]], quantities: Sequence[Size]) -> Size:
    """A number times at most three of `quantities` that is right at all
    `points`. Raises NoPattern."""
    for degree in range(4):
        for factors in itertools.combinations_with_replacement(quantities, degree):
            rule = product(factors)
            values, value = points[0]
            unit = value_of(rule, values)
            if value % unit:
                continue
            scaled = times(value // unit, rule)
            if all(value_of(scaled, values) == value for values, value in points):
                return scaled
    raise NoPattern(f"no rule gives {[value for _, value in points]}")


def _at(sizes: Sequence[SizeText], symbols: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(value_of(size_from(size, symbols), symbols) for size in sizes)
