"""Views: what a PyTorch view is to the compiler, an affine window on a tensor of the graph.

A `View` has logical dims, as PyTorch sees them. A dim is a product of *factors*, the variables that
move; a reshape that merges dims keeps their factors apart, and one that splits a dim splits its
factor, so no view operation but a few (`NeedsCopy`) ever moves an element. The index of every dim
of the tensor is affine in the factors.

Pure integers; imports no torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from openspyre.compiler.graph import Affine, Tensor
from openspyre.compiler.sizes import Size, known, plus, product, quotient, same, times

_numbers = itertools.count()


class NeedsCopy(ValueError):
    """A view that is not affine on its tensor: the elements have to be moved first
    (`GraphBuilder.contiguous`)."""


def fresh(prefix: str = "v") -> str:
    """A name that no factor or label has yet."""
    return f"{prefix}{next(_numbers)}"


@dataclass(frozen=True)
class View:
    """`factors`: name and size, in the order of `dims` (major first). `dims`: the factors of each
    logical dim; none for a dim of size 1. `index`: for each dim of `tensor`, over factor names."""

    tensor: Tensor
    factors: tuple[tuple[str, Size], ...]
    dims: tuple[tuple[str, ...], ...]
    index: tuple[Affine, ...]

    @staticmethod
    def of(tensor: Tensor, dims: Sequence[Sequence[int]] | None = None) -> View:
        """The whole tensor. `dims`: for each logical dim the tensor dims it consists of (default:
        one each)."""
        groups = [(d,) for d in range(len(tensor.shape))] if dims is None else dims
        factors: list[tuple[str, Size]] = []
        index = [Affine() for _ in tensor.shape]
        named: list[tuple[str, ...]] = []
        for group in groups:
            names = []
            for d in group:
                if known(tensor.shape[d]) == 1:
                    continue
                name = fresh()
                factors.append((name, tensor.shape[d]))
                index[d] = Affine(((name, 1),))
                names.append(name)
            named.append(tuple(names))
        return View(tensor, tuple(factors), tuple(named), tuple(index))

    # --- what it looks like

    @property
    def dtype(self) -> str:
        return self.tensor.dtype

    @property
    def rank(self) -> int:
        return len(self.dims)

    def size(self, dim: int) -> Size:
        """The size of a logical dim."""
        sizes = dict(self.factors)
        return product(sizes[name] for name in self.dims[dim])

    @property
    def shape(self) -> tuple[Size, ...]:
        return tuple(self.size(d) for d in range(len(self.dims)))

    @property
    def numel(self) -> Size:
        return product(size for _, size in self.factors)

    def factor_sizes(self, dim: int) -> tuple[Size, ...]:
        """The sizes of the factors of a dim."""
        sizes = dict(self.factors)
        return tuple(sizes[name] for name in self.dims[dim])

    @property
    def whole(self) -> bool:
        """Whether it is its tensor, every element once, in order."""
        names = [name for name, _ in self.factors]
        order = [i.single for i in self.index if i.terms]
        return (
            order == names
            and all(i.offset == 0 for i in self.index)
            and same(self.numel, self.tensor.numel)
        )

    # --- view operations

    def permute(self, order: Sequence[int]) -> View:
        """The dims in another order."""
        return self._ordered([self.dims[d] for d in order])

    def transpose(self, a: int, b: int) -> View:
        order = list(range(self.rank))
        order[a], order[b] = order[b], order[a]
        return self.permute(order)

    def unsqueeze(self, dim: int) -> View:
        return replace(self, dims=(*self.dims[:dim], (), *self.dims[dim:]))

    def squeeze(self, dim: int) -> View:
        """Without dim `dim`, if its size is 1."""
        if self.dims[dim]:
            return self
        return replace(self, dims=(*self.dims[:dim], *self.dims[dim + 1 :]))

    def expand(self, sizes: Sequence[Size]) -> View:
        """Broadcast to `sizes`; new dims come first, -1 keeps a size."""
        more = len(sizes) - self.rank
        if more < 0:
            raise ValueError(f"expand: {len(sizes)} sizes for rank {self.rank}")
        dims: list[tuple[str, ...]] = [()] * more + list(self.dims)
        made: list[tuple[str, Size]] = []
        for d, size in enumerate(sizes):
            if d >= more and (size == -1 or same(size, self.size(d - more))):
                continue
            if dims[d]:
                raise ValueError(f"expand: dim {d} of size {self.size(d - more)} to {size}")
            if known(size) != 1:
                name = fresh()
                made.append((name, size))
                dims[d] = (name,)
        return replace(self, factors=(*self.factors, *made))._ordered(dims)

    def select(self, dim: int, at: Size) -> View:
        """The slice of index `at` (not negative) of dim `dim`, without that dim."""
        view = self._fixed(self.dims[dim], at)
        return replace(view, dims=(*view.dims[:dim], *view.dims[dim + 1 :]))

    def slice(self, dim: int, start: Size, length: Size, step: int = 1) -> View:
        """`length` indices of dim `dim` from `start` on, every `step`-th. NeedsCopy if the dim was
        merged and the slice cuts across."""
        names = self.dims[dim]
        if same(length, self.size(dim)) and step == 1:
            return self
        if not names:
            return self if known(length) == 1 else self._emptied(dim)
        if known(length) == 1:
            view = self._fixed(names, start)
            return replace(view, dims=(*view.dims[:dim], (), *view.dims[dim + 1 :]))
        sizes = dict(self.factors)
        major, minor = names[0], product(sizes[n] for n in names[1:])
        if len(names) == 1:
            return self._stepped(major, start, length, step)
        first, count = quotient(start, minor), quotient(length, minor)
        if step == 1 and first is not None and count is not None:
            if known(count) != 1:
                return self._stepped(major, first, count, 1)
            view = self._fixed((major,), first)
            return replace(view, dims=(*view.dims[:dim], names[1:], *view.dims[dim + 1 :]))
        low, span, inner = known(start), known(length), known(minor)
        if low is not None and span is not None and inner is not None:
            last = low + (span - 1) * step
            if low // inner == last // inner:
                view = self._fixed((major,), low // inner)
                view = replace(view, dims=(*view.dims[:dim], names[1:], *view.dims[dim + 1 :]))
                return view.slice(dim, low % inner, length, step)
        raise NeedsCopy(
            f"slice {start}:+{length}:{step} of a dim merged of {self.factor_sizes(dim)}"
        )

    def flip(self, dim: int) -> View:
        """Dim `dim` backwards."""
        view = self
        sizes = dict(self.factors)
        for name in self.dims[dim]:
            view = view._substituted(name, ((name, -1),), plus(sizes[name], -1))
        return view

    def diagonal(self, offset: int, a: int, b: int) -> View:
        """The diagonal of dims a and b as the last dim. NeedsCopy for merged dims."""
        rows, cols = known(self.size(a)), known(self.size(b))
        if len(self.dims[a]) > 1 or len(self.dims[b]) > 1 or rows is None or cols is None:
            raise NeedsCopy("diagonal of merged or symbolic dims")
        down, right = max(-offset, 0), max(offset, 0)
        length = max(min(rows - down, cols - right), 0)
        view = self
        name = fresh()
        for dim, begin in ((a, down), (b, right)):
            if view.dims[dim]:
                old = view.dims[dim][0]
                view = view._substituted(old, ((name, 1),), begin, drop=True)
        rest = [d for i, d in enumerate(self.dims) if i not in (a, b)]
        if length == 1:
            view = view._substituted(name, (), 0)
            return view._ordered([*rest, ()])
        return replace(view, factors=(*view.factors, (name, length)))._ordered([*rest, (name,)])

    def unfold(self, dim: int, size: int, step: int) -> View:
        """Windows of `size` every `step` along `dim`; the window is the last dim. NeedsCopy for a
        merged dim."""
        whole = known(self.size(dim))
        if len(self.dims[dim]) > 1 or whole is None:
            raise NeedsCopy("unfold of a merged or symbolic dim")
        count = (whole - size) // step + 1
        turn, window = (fresh(),) if count > 1 else (), (fresh(),) if size > 1 else ()
        terms = [(n, step) for n in turn] + [(n, 1) for n in window]
        view = self
        if self.dims[dim]:
            view = view._substituted(self.dims[dim][0], tuple(terms), 0, drop=True)
        made = [(n, count) for n in turn] + [(n, size) for n in window]
        dims = list(self.dims)
        dims[dim] = turn
        return replace(view, factors=(*view.factors, *made))._ordered([*dims, window])

    def reshape(self, sizes: Sequence[Size]) -> View:
        """The same elements in order, in dims of other sizes (no -1 here). NeedsCopy when a factor
        would have to be cut where it cannot be."""
        view = self
        left = [name for dim in self.dims for name in dim]
        dims: list[tuple[str, ...]] = []
        for size in sizes:
            taken: list[str] = []
            rest = size
            while known(rest) != 1:
                if not left:
                    raise ValueError(f"reshape {self.shape} to {tuple(sizes)}: sizes do not fit")
                name = left.pop(0)
                here = dict(view.factors)[name]
                more = quotient(rest, here)
                if more is not None:
                    taken.append(name)
                    rest = more
                    continue
                inner = quotient(here, rest)
                if inner is None:
                    raise NeedsCopy(f"reshape {self.shape} to {tuple(sizes)}")
                view, (major, minor) = view.split(name, rest, inner)
                taken.append(major)
                left.insert(0, minor)
                rest = 1
            dims.append(tuple(taken))
        if left:
            raise ValueError(f"reshape {self.shape} to {tuple(sizes)}: sizes do not fit")
        return replace(view, dims=tuple(dims))

    # --- factors

    def split(self, name: str, outer: Size, inner: Size) -> tuple[View, tuple[str, str]]:
        """Factor `name` as two, of `outer` times `inner`; the new view and their names."""
        major, minor = fresh(), fresh()
        view = self._substituted(name, ((major, inner), (minor, 1)), 0, keep=True)
        at = [n for n, _ in self.factors].index(name)
        factors = (*self.factors[:at], (major, outer), (minor, inner), *self.factors[at + 1 :])
        dims = tuple(
            tuple(n for old in dim for n in ((major, minor) if old == name else (old,)))
            for dim in self.dims
        )
        return replace(view, factors=factors, dims=dims), (major, minor)

    def refined(self, dim: int, sizes: Sequence[Size]) -> View:
        """With the factors of dim `dim` split so that their sizes are `sizes`, a refinement of what
        they are (`common_factors`)."""
        view = self
        wanted = list(sizes)
        for name in self.dims[dim]:
            rest = dict(view.factors)[name]
            while wanted and not same(rest, wanted[0]):
                inner = quotient(rest, wanted[0])
                if inner is None:
                    raise ValueError(f"{tuple(sizes)} does not refine {self.factor_sizes(dim)}")
                view, (_, name) = view.split(name, wanted.pop(0), inner)
                rest = inner
            wanted.pop(0)
        return view

    # --- helpers

    def _ordered(self, dims: Sequence[tuple[str, ...]]) -> View:
        """With these dims, and the factors in their order."""
        sizes = dict(self.factors)
        factors = tuple((name, sizes[name]) for dim in dims for name in dim)
        return replace(self, factors=factors, dims=tuple(dims))

    def _substituted(
        self,
        name: str,
        terms: tuple[tuple[str, Size], ...],
        offset: Size,
        *,
        drop: bool = False,
        keep: bool = False,
    ) -> View:
        """name -> offset + sum(terms) in every index. `drop`: and the factor goes, with its place
        in `dims`."""
        index = []
        for old in self.index:
            scale = dict(old.terms).get(name)
            if scale is None:
                index.append(old)
                continue
            made: list[tuple[str, Size]] = []
            for label, c in old.terms:
                if label != name:
                    made.append((label, c))
                else:
                    made += [(new, times(scale, by)) for new, by in terms]
            # A diagonal of overlapping windows moves one dim by the same factor twice.
            joined: dict[str, Size] = {}
            for label, c in made:
                joined[label] = plus(joined[label], c) if label in joined else c
            index.append(Affine(tuple(joined.items()), plus(old.offset, times(scale, offset))))
        view = replace(self, index=tuple(index))
        if drop or (not terms and not keep):
            view = replace(
                view,
                factors=tuple(f for f in view.factors if f[0] != name),
                dims=tuple(tuple(n for n in dim if n != name) for dim in view.dims),
            )
        return view

    def _fixed(self, names: Sequence[str], at: Size) -> View:
        """Factors `names` of one dim, major first, fixed at the index `at` of their product."""
        view, rest = self, at
        sizes = dict(self.factors)
        for position, name in enumerate(names):
            minor = product(sizes[n] for n in names[position + 1 :])
            if position == len(names) - 1:
                digit = rest
            else:
                whole, inner = known(rest), known(minor)
                if whole is None or inner is None:
                    raise NeedsCopy(f"index {at} of a dim merged of symbolic sizes")
                digit, rest = whole // inner, whole % inner
            view = view._substituted(name, (), digit)
        return view

    def _stepped(self, name: str, start: Size, length: Size, step: int) -> View:
        view = self._substituted(name, ((name, step),), start)
        factors = tuple((n, length if n == name else s) for n, s in view.factors)
        return replace(view, factors=factors)

    def _emptied(self, dim: int) -> View:
        name = fresh()
        dims = list(self.dims)
        dims[dim] = (name,)
        return replace(self, factors=(*self.factors, (name, 0)))._ordered(dims)

    def __str__(self) -> str:
        sizes = dict(self.factors)
        dims = ["(" + " ".join(f"{n}:{sizes[n]}" for n in dim) + ")" for dim in self.dims]
        return f"{self.tensor.name}[{', '.join(map(str, self.index))}] as [{', '.join(dims)}]"


def common_factors(lists: Sequence[Sequence[Size]]) -> tuple[Size, ...] | None:
    """The coarsest factors that refine all of `lists` (factor sizes of one product, major first),
    or None when there are none."""
    work = [list(sizes) for sizes in lists]
    out: list[Size] = []
    while any(work):
        if not all(work):
            return None
        heads = [w[0] for w in work]
        least = heads[0]
        for head in heads[1:]:
            if quotient(head, least) is not None:
                continue
            if quotient(least, head) is None:
                return None
            least = head
        out.append(least)
        for w in work:
            rest = quotient(w[0], least)
            if rest is None:
                return None
            if known(rest) == 1:
                w.pop(0)
            else:
                w[0] = rest
    return tuple(out)
