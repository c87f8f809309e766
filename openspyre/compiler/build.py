"""Building Graphs: NumPy-like calls on `View`s, one op of the graph each.

A `GraphBuilder` is what the lowerings of ATen operations (openspyre/compiler/lower) are written
with. Its methods broadcast, split merged dims where operands disagree about them, convert registers
to the type an operation computes in, and append ops. They never look at layouts.

Numbers of an operation may be Python numbers, which become constants of the body, or `Scalar`s,
which are given at every launch: a graph with scalars serves all their values.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from openspyre.compiler.graph import (
    Access,
    Affine,
    Graph,
    IndexOf,
    Indirect,
    Op,
    OpKind,
    Place,
    Role,
    Symbol,
    Tensor,
)
from openspyre.compiler.sizes import Size, known, plus, product, same
from openspyre.compiler.view import NeedsCopy, View, common_factors, fresh
from openspyre.formats import Mode
from openspyre.program import body as f
from openspyre.program.body import Reg, trace
from openspyre.program.expr import Binary, Expr, Var
from openspyre.program.ops import Combine

REGISTER = {
    "float16": "f", "bfloat16": "f", "float32": "f", "float8_e4m3fn": "f", "float8_e5m2": "f",
    "int8": "i", "uint8": "i", "int16": "i", "int32": "i", "int64": "l", "bool": "b",
}  # fmt: skip
"""The register type in which values of a dtype are computed; other dtypes no unit computes."""

EXACT = {"f": "float32", "i": "int32", "l": "int64", "b": "int32"}
"""The dtype of a reduction's result by the register it is combined in."""


@dataclass(frozen=True)
class Scalar:
    """A number given at launch, by the name of its symbol; `type` "f" or "l"."""

    symbol: str
    type: str


Operand: TypeAlias = "View | Scalar | Expr | int | float | bool"
Where: TypeAlias = "int | View"
"""Where an index of a tensor comes from: a logical dim of the box, or an integer view."""


class GraphBuilder:
    """Collects one Graph. `source` and `operation` are noted on the ops that follow."""

    def __init__(self, name: str, mode: Mode = Mode.DL16) -> None:
        self.graph = Graph(name, mode)
        self.operation = ""
        self.source = ""
        self._names: set[str] = set()
        self._next: dict[str, int] = {}

    @property
    def mode(self) -> Mode:
        return self.graph.mode

    # --- tensors and numbers

    def tensor(
        self,
        prefix: str,
        shape: Sequence[Size],
        dtype: str,
        role: Role = Role.TEMP,
        place: Place | None = None,
        data: np.ndarray | None = None,
    ) -> Tensor:
        """A new tensor of the graph."""
        if len(shape) > 16:
            raise ValueError(f"{prefix}: rank {len(shape)}")
        name, n = prefix, self._next.get(prefix, 1)
        while name in self._names:
            name, n = f"{prefix}_{n}", n + 1
        self._next[prefix] = n
        self._names.add(name)
        made = Tensor(name, tuple(shape), dtype, role, place, data)
        self.graph.tensors.append(made)
        return made

    def input(
        self,
        name: str,
        shape: Sequence[Size],
        dtype: str,
        *,
        place: Place | None = None,
        dims: Sequence[Sequence[int]] | None = None,
    ) -> View:
        """A launch argument. `shape`: the dims as they are addressed (`dims` groups them to the
        logical ones, default one each)."""
        return View.of(self.tensor(name, shape, dtype, Role.INPUT, place), dims)

    def constant(self, data: np.ndarray, dtype: str, name: str = "const") -> View:
        """Values known when compiling; `data` in a NumPy dtype that holds them exactly."""
        return View.of(self.tensor(name, data.shape, dtype, Role.CONST, data=data))

    def scalar(self, name: str, value: float | int) -> Scalar:
        """A number given at launch; `value` is a hint."""
        kind = "float" if isinstance(value, float) else "int"
        self.graph.symbols[name] = Symbol(name, kind, -(2**63), 2**63 - 1, value)
        return Scalar(name, "f" if kind == "float" else "l")

    def size_symbol(self, name: str, minimum: int, maximum: int, hint: int) -> Size:
        """A size given at launch."""
        self.graph.symbols[name] = Symbol(name, "size", minimum, maximum, hint)
        return Var(name)

    def output(self, view: View) -> Tensor | None:
        """Makes the tensor of `view` an OUTPUT when the view is all of it and it is a TEMP; None
        when it is not (the caller copies, or returns a view of an argument)."""
        if view.tensor.role is Role.TEMP and view.whole:
            view.tensor.role = Role.OUTPUT
            return view.tensor
        return None

    # --- elementwise

    def map(
        self,
        function: Callable[..., Reg],
        *args: Operand,
        dtype: str,
        compute: str | None = None,
        shape: Sequence[Size] | None = None,
        indexed: bool = False,
        name: str = "t",
    ) -> View:
        """function(args) at every point of the broadcast shape (of `shape`), in dtype `dtype`.

        The function gets a register for each argument: of the register type of dtype `compute`, by
        default each in its own (bool: truth). `indexed`: its first argument is then a function of
        a logical dim that gives the int64 index along it.
        """
        (made,) = self.map_many(
            lambda *regs: (function(*regs),),
            *args, dtypes=(dtype,), compute=compute, shape=shape, indexed=indexed, name=name,
        )  # fmt: skip
        return made

    def map_many(
        self,
        function: Callable[..., tuple[Reg, ...]],
        *args: Operand,
        dtypes: Sequence[str],
        compute: str | None = None,
        shape: Sequence[Size] | None = None,
        indexed: bool = False,
        name: str = "t",
    ) -> tuple[View, ...]:
        """As `map`, with one result for each of `dtypes`."""
        views = [a for a in args if isinstance(a, View)]
        wanted = tuple(shape) if shape is not None else broadcast([v.shape for v in views])
        box = self._box(views, wanted)
        outs = [self._result(name, box, dtype) for dtype in dtypes]
        inner = self._typed(function, args, compute, dtypes, box if indexed else None)
        body = trace(inner, [v.tensor.format(self.mode) for v in views])
        self._add(
            Op(
                OpKind.MAP, self.operation, box.labels, box.accesses,
                [box.access_of(v) for v in outs], body, source=self.source,
            )
        )  # fmt: skip
        return tuple(outs)

    def copy(self, view: View, dtype: str | None = None, name: str = "copy") -> View:
        """The values of `view` in a new tensor (of another dtype), its factors kept apart."""
        found = dtype or view.dtype
        return self.map(lambda x: x, view, dtype=found, compute=found, name=name)

    def contiguous(self, view: View, name: str = "flat") -> View:
        """The values of `view` in a new tensor with one dim for each logical dim."""
        box = self._box([view], view.shape)
        out = self.tensor(name, list(view.shape), view.dtype)
        index = []
        for names in box.dims:
            terms: list[tuple[str, Size]] = []
            step: Size = 1
            for label in reversed(names):
                terms.insert(0, (label, step))
                step = product((step, box.labels[label]))
            index.append(Affine(tuple(terms)))
        body = trace(f.identity, [view.tensor.format(self.mode)])
        self._add(
            Op(
                OpKind.MAP, self.operation, box.labels, box.accesses,
                [Access(out, tuple(index))], body, source=self.source,
            )
        )  # fmt: skip
        return View.of(out)

    def reshape(self, view: View, sizes: Sequence[Size]) -> View:
        """A reshape, with a copy where it needs one."""
        try:
            return view.reshape(sizes)
        except NeedsCopy:
            return self.contiguous(view.reshape(_segments(view.shape, sizes))).reshape(sizes)

    def store(self, target: View, value: View) -> None:
        """target = value (broadcast, converted), for a target that is (a view of) an argument or a
        temp: it becomes INOUT if it was an INPUT."""
        if target.tensor.role is Role.INPUT:
            target.tensor.role = Role.INOUT
        box = self._box([target, value], target.shape)
        if value.tensor is target.tensor and box.accesses[0].index != box.accesses[1].index:
            value = self.copy(value)  # all of it is read before any is written
            box = self._box([target, value], target.shape)
        inner = self._typed(lambda x: (x,), [value], target.dtype, [target.dtype], None)
        body = trace(inner, [value.tensor.format(self.mode)])
        self._add(
            Op(
                OpKind.MAP, self.operation, box.labels, [box.accesses[1]], [box.accesses[0]],
                body, source=self.source,
            )
        )  # fmt: skip

    # --- reductions, scans, order

    def reduce(
        self,
        combine: Combine,
        view: View,
        dims: Sequence[int],
        *,
        function: Callable[[Reg], Reg] | None = None,
        compute: str | None = None,
        keepdim: bool = False,
        name: str = "r",
    ) -> tuple[View, ...]:
        """`function(view)`, combined over `dims`: exact results (float32, int32, int64; truth as
        int32). WELFORD gives (mean, M2, count), ARGMAX and ARGMIN (value, index within the one
        dim, which must not be merged)."""
        dims = [d % view.rank for d in dims]
        box = self._box([view], view.shape)
        over = tuple(label for d in sorted(dims) for label in box.dims[d])
        if combine in (Combine.ARGMAX, Combine.ARGMIN) and len(over) > 1:
            return self.reduce(
                combine, self.contiguous(view), dims,
                function=function, compute=compute, keepdim=keepdim, name=name,
            )  # fmt: skip
        register = REGISTER[compute or view.dtype]
        if combine in (Combine.ANY, Combine.ALL):
            register = "b"

        def inner(raw: Reg) -> Reg:
            reg = typed(raw, view.dtype, register)
            return f.cast(function(reg), register) if function else reg

        body = trace(inner, [view.tensor.format(self.mode)])
        dtypes = {
            Combine.WELFORD: ("float32",) * 3,
            Combine.ARGMAX: (EXACT[register], "int64"),
            Combine.ARGMIN: (EXACT[register], "int64"),
        }.get(combine, (EXACT[register],))
        gone = sorted(dims, reverse=True)
        if not over:  # nothing to combine
            made = self.map_many(
                lambda reg: _alone(combine, f.cast(function(reg), register) if function else reg),
                view, dtypes=dtypes, compute="bool" if register == "b" else compute, name=name,
            )  # fmt: skip
            return made if keepdim else tuple(_dropped(v, gone) for v in made)
        kept = [() if d in dims else box.dims[d] for d in range(view.rank)]
        outs = []
        for dtype in dtypes:
            labels = [label for names in kept for label in names]
            out = self.tensor(name, [box.labels[label] for label in labels], dtype)
            outs.append(_View_over(out, labels, kept, box))
        self._add(
            Op(
                OpKind.REDUCE, self.operation, box.labels, box.accesses,
                [box.access_of(v) for v in outs], body, combine, over, source=self.source,
            )
        )  # fmt: skip
        if keepdim:
            return tuple(outs)
        return tuple(_dropped(v, gone) for v in outs)

    def scan(self, combine: Combine, view: View, dim: int, dtype: str) -> View:
        """Running `combine` along `dim`, in dtype `dtype`."""
        if not view.dims[dim]:
            return self.copy(view, dtype, "scan")
        view = self._plain(view, dim)
        box = self._box([view], view.shape)
        out = self._result("scan", box, dtype)
        register = REGISTER[dtype]
        body = trace(lambda x: typed(x, view.dtype, register), [view.tensor.format(self.mode)])
        self._add(
            Op(
                OpKind.SCAN, self.operation, box.labels, box.accesses, [box.access_of(out)],
                body, combine, label=box.dims[dim][0], source=self.source,
            )
        )  # fmt: skip
        return out

    def sort(
        self, view: View, dim: int, *, descending: bool = False, k: int = 0
    ) -> tuple[View, View]:
        """(values, indices int64) of the stable sort along `dim`; with `k` only the first k. The
        dim must be larger than 1."""
        view = self._plain(view, dim)
        box = self._box([view], view.shape)
        label = box.dims[dim][0]
        results = []
        for dtype in (view.dtype, "int64"):
            shape = [k if k and name == label else size for name, size in box.labels.items()]
            made = self.tensor("sorted", shape, dtype)
            results.append(made)
        index = tuple(Affine(((name, 1),)) for name in box.labels)
        self._add(
            Op(
                OpKind.TOPK if k else OpKind.SORT, self.operation, box.labels, box.accesses,
                [Access(t, index) for t in results], label=label, limit=k,
                descending=descending, source=self.source,
            )
        )  # fmt: skip
        groups: list[list[int]] = []
        at = 0
        for names in box.dims:
            groups.append(list(range(at, at + len(names))))
            at += len(names)
        values, indices = (View.of(t, groups) for t in results)
        return values, indices

    # --- products

    def matmul(self, a: View, b: View) -> View:
        """a [.., M, K] times b [.., K, N], the dims before broadcast: float32 (int32 for int8)
        [.., M, N]. Both of one dtype, or both of fp8 dtypes."""
        wanted = broadcast([a.shape[:-2], b.shape[:-2]])
        n = len(wanted)
        a, b = _lifted(a, n + 2), _lifted(b, n + 2)
        inner = common_factors([a.factor_sizes(n + 1), b.factor_sizes(n)])
        if inner is None or len(inner) > 1:
            a, b = self._plain(a, n + 1), self._plain(b, n)
        # Every label must move what it belongs to: no product of broadcast dims.
        if not (_moves(a, n) and _moves(a, n + 1)):
            a = self.contiguous(a)
        if not (_moves(b, n) and _moves(b, n + 1)):
            b = self.contiguous(b)
        if not all(
            any(_moves(x, d) for x in (a, b) if x.dims[d]) or not (a.dims[d] or b.dims[d])
            for d in range(n)
        ):
            a, b = self.contiguous(a), self.contiguous(b)
        # One box [.., M, N, K]; a lacks N, b lacks M.
        sizes = (*wanted, a.size(n), b.size(n + 1), a.size(n + 1))
        left = a.unsqueeze(n + 1)
        right = b.transpose(n, n + 1).unsqueeze(n)
        box = self._box([left, right], sizes)
        over = box.dims[n + 2]
        dtype = "int32" if a.dtype == "int8" else "float32"
        labels = [name for names in box.dims[: n + 2] for name in names]
        out = self.tensor("mm", [box.labels[name] for name in labels], dtype)
        view = _View_over(out, labels, [*box.dims[: n + 2]], box)
        if not over:  # K = 1: an outer product
            left_, right_ = a, b
            return self.map(lambda x, y: x * y, left_, right_, dtype=dtype, compute=dtype)
        self._add(
            Op(
                OpKind.MATMUL, self.operation, box.labels, box.accesses, [box.access_of(view)],
                reduced=over, source=self.source,
            )
        )  # fmt: skip
        return view

    # --- by index

    def gather(
        self, source: View, shape: Sequence[Size], where: Sequence[Where], name: str = "g"
    ) -> View:
        """out[p] = source[..] over the box `shape`: the index along each dim of `source` is a
        logical dim of the box (an int), or what an integer view, broadcast to `shape`, holds at p.
        Indices must lie in 0..size-1 (the lowering wraps negative ones)."""
        out_shape = tuple(shape)
        dims = [self._plain_dim(source, d, w) for d, w in enumerate(where)]
        if not all(dims):
            source = self.contiguous(source)
        indices = [w for w in where if isinstance(w, View)]
        box = self._box(indices, out_shape)
        source, box, names = self._matched(source, box, where)
        access = _indexed(source, names)
        out = self._result(name, box, source.dtype)
        body = trace(lambda x, *_: x, [source.tensor.format(self.mode)] + [
            v.tensor.format(self.mode) for v in indices])  # fmt: skip
        self._add(
            Op(
                OpKind.MAP, self.operation, box.labels, [access, *box.accesses],
                [box.access_of(out)], body, source=self.source,
            )
        )  # fmt: skip
        return out

    def scatter(
        self, target: View, value: View, where: Sequence[Where], *, add: bool = False
    ) -> None:
        """target[..] = (or +=) value[p] for every point p of `value`, in order: the index along
        each dim of `target` is a logical dim of `value`, or what an integer view (broadcast to
        value's shape) holds. `target`: a view of an argument (it becomes INOUT) or of a temp. Needs
        at least one integer view."""
        if target.tensor.role is Role.INPUT:
            target.tensor.role = Role.INOUT
        if value.tensor is target.tensor:
            value = self.copy(value)
        where = [
            self.copy(w) if isinstance(w, View) and w.tensor is target.tensor else w for w in where
        ]
        part = target
        for d, w in enumerate(where):
            if isinstance(w, int) and not same(target.size(d), value.size(w)):
                part = part.slice(d, 0, value.size(w))
        if part is not target:
            # A part of the target's sticks: done in a copy, which is stored back whole.
            moved = self.copy(part)
            self.scatter(moved, value, where, add=add)
            self.store(part, moved)
            return
        indices = [w for w in where if isinstance(w, View)]
        box = self._box([value, *indices], value.shape)
        target, box, names = self._matched(target, box, where)
        access = _indexed(target, names)
        if not access.indirect:  # dims of size 1: all points meet
            self._meet(target, value, where, add)
            return
        register = REGISTER[target.dtype]
        body = trace(
            lambda x, *_: typed(x, value.dtype, register),
            [v.tensor.format(self.mode) for v in (value, *indices)],
        )
        self._add(
            Op(
                OpKind.SCATTER, self.operation, box.labels, box.accesses,
                [access], body, add=add, source=self.source,
            )
        )  # fmt: skip

    def _meet(self, target: View, value: View, where: Sequence[Where], add: bool) -> None:
        """A scatter whose indices can only be 0."""
        moved = [w for w in where if isinstance(w, int)]
        gone = [d for d in range(value.rank) if d not in moved]
        if add and gone:
            (value,) = self.reduce(Combine.SUM, value, gone, keepdim=True, compute=target.dtype)
        elif gone:
            for d in gone:
                value = value.slice(d, plus(value.size(d), -1), 1)  # the last one stays
        value = value.permute([*moved, *gone])
        for _ in gone:
            value = value.squeeze(len(moved))
        for d, w in enumerate(where):
            if isinstance(w, View):
                value = value.unsqueeze(d)
        if add:
            value = self.map(
                lambda x, y: x + y, target, value, dtype=target.dtype, compute=target.dtype
            )  # fmt: skip
        self.store(target, value)

    # --- helpers

    def _add(self, op: Op) -> None:
        self.graph.ops.append(op)

    def _box(self, views: Sequence[View], shape: Sequence[Size]) -> Box:
        """Labels for a box of logical `shape` that all `views` (broadcast to it) can follow; where
        they disagree about the factors of a dim, the later ones are copied."""
        wanted = tuple(shape)
        work = [_lifted(v, len(wanted)) for v in views]
        sizes: list[tuple[Size, ...]] = []
        for d, size in enumerate(wanted):
            lists: list[tuple[Size, ...]] = [(size,)] if known(size) != 1 else []
            for n, view in enumerate(work):
                if not view.dims[d]:
                    continue
                if not same(view.size(d), size):
                    raise ValueError(f"dim {d}: {view.size(d)} does not broadcast to {size}")
                if common_factors([*lists, view.factor_sizes(d)]) is None:
                    work[n] = view = _lifted(self.contiguous(view), len(wanted))
                lists.append(view.factor_sizes(d))
            found = common_factors(lists)
            assert found is not None
            sizes.append(found)
        return Box.make(work, sizes)

    def _matched(
        self, view: View, box: Box, where: Sequence[Where]
    ) -> tuple[View, Box, list[tuple[str, ...] | Indirect]]:
        """Brings the dims of `view` that move with the box to the box's factors; and what indexes
        each dim."""
        for _ in range(2):  # a copy on the way makes the dims before it whole again
            for d, w in enumerate(where):
                if isinstance(w, int):
                    view, box = self._match(view, d, box, w)
        names: list[tuple[str, ...] | Indirect] = []
        number = 1
        for d, w in enumerate(where):
            if isinstance(w, View):
                names.append(Indirect(number, view.size(d)))
                number += 1
            else:
                names.append(box.dims[w])
        return view, box, names

    def _match(self, view: View, d: int, box: Box, dim: int) -> tuple[View, Box]:
        """Brings dim d of `view` and dim `dim` of the box to the same factors."""
        theirs = tuple(box.labels[n] for n in box.dims[dim])
        if view.dims[d] and not same(view.size(d), product(theirs)):
            view = view.slice(d, 0, product(theirs))  # the box may be smaller than the tensor
        mine = view.factor_sizes(d)
        if not mine:
            return view, box
        found = common_factors([mine, theirs])
        if found is None:
            view = self.contiguous(view)
            found = common_factors([view.factor_sizes(d), theirs])
            assert found is not None
        return view.refined(d, found), box.refined(dim, found)

    def _plain_dim(self, view: View, d: int, where: Where) -> bool:
        """Whether an indexed dim is one factor that alone moves one dim of the tensor."""
        if isinstance(where, int) or not view.dims[d]:
            return not (isinstance(where, View) and not view.dims[d])
        if len(view.dims[d]) > 1:
            return False
        moved = [i for i in view.index if view.dims[d][0] in i.labels]
        return len(moved) == 1 and moved[0].single is not None and moved[0].offset == 0

    def _plain(self, view: View, dim: int) -> View:
        """The view with dim `dim` of one factor, by a copy if it must be."""
        return view if len(view.dims[dim]) <= 1 else self.contiguous(view)

    def _result(self, name: str, box: Box, dtype: str) -> View:
        labels = list(box.labels)
        made = self.tensor(name, [box.labels[label] for label in labels], dtype)
        return _View_over(made, labels, box.dims, box)

    def _typed(
        self,
        function: Callable[..., tuple[Reg, ...]],
        args: Sequence[Operand],
        compute: str | None,
        dtypes: Sequence[str],
        box: Box | None,
    ) -> Callable[..., tuple[Reg, ...]]:
        """`function` as a body on raw registers: converts what goes in and what comes out."""

        def inner(*raw: Reg) -> tuple[Reg, ...]:
            maker = raw[0]
            registers = iter(raw)
            regs: list[Reg] = []
            for arg in args:
                if isinstance(arg, View):
                    own = REGISTER.get(compute or arg.dtype)
                    if own is None:
                        raise ValueError(f"no unit computes {compute or arg.dtype}")
                    regs.append(typed(next(registers), arg.dtype, own))
                elif isinstance(arg, Scalar):
                    reg = maker.scalar(arg.symbol, arg.type)
                    regs.append(f.cast(reg, REGISTER[compute]) if compute else reg)
                elif isinstance(arg, Expr):
                    reg = _sized(maker, arg)
                    regs.append(f.cast(reg, REGISTER[compute]) if compute else reg)
                else:
                    natural = (
                        "b" if isinstance(arg, bool) else "f" if isinstance(arg, float) else "l"
                    )
                    kind = REGISTER[compute] if compute else natural
                    value: int | float = arg if kind in ("f", natural) else int(arg)
                    regs.append(maker.const(kind, value))
            if box is not None:
                regs.insert(0, _indexer(maker, box))  # type: ignore[arg-type]
            results = function(*regs)
            return tuple(f.cast(r, REGISTER[d]) for r, d in zip(results, dtypes, strict=True))

        return inner


def _sized(maker: Reg, size: Expr) -> Reg:
    """A size as an int64 register."""
    if isinstance(size, Var):
        return maker.scalar(size.name, "l")
    if isinstance(size, Binary) and size.op in ("+", "-", "*"):
        left, right = _sized(maker, size.left), _sized(maker, size.right)
        return left + right if size.op == "+" else left - right if size.op == "-" else left * right
    if size.constant is None:
        raise NeedsCopy(f"the size {size} as a number of a body")
    return maker.const("l", size.constant)


def typed(raw: Reg, dtype: str, register: str) -> Reg:
    """A raw input of dtype `dtype` in register type `register`; bool as truth first."""
    return f.cast(f.cast(raw, "b") if dtype == "bool" else raw, register)


def _alone(combine: Combine, x: Reg) -> tuple[Reg, ...]:
    """The results of a reduction of one element."""
    if combine in (Combine.ARGMAX, Combine.ARGMIN):
        return x, x.const("l", 0)
    if combine is Combine.WELFORD:
        return x, x * (x - x), x.const("f", 1.0)
    if combine is Combine.SUM:
        return (x + 0,)  # a sum starts from +0
    return (x,)


def _indexer(maker: Reg, box: Box) -> Callable[[int], Reg]:
    def index(dim: int) -> Reg:
        total: Reg | None = None
        for label in box.dims[dim]:
            reg = maker.index(label)
            size = known(box.labels[label])
            if total is not None and size is None:
                raise NeedsCopy(f"index along a merged dim with symbolic factor {label}")
            total = reg if total is None else total * int(size or 1) + reg
        return maker.const("l", 0) if total is None else total

    return index


@dataclass
class Box:
    """The labels of an op in the making: `dims` the labels of each logical dim, `accesses` the
    views it was made for."""

    labels: dict[str, Size]
    dims: list[tuple[str, ...]]
    accesses: list[Access]

    @staticmethod
    def make(views: Sequence[View], sizes: Sequence[tuple[Size, ...]]) -> Box:
        """Labels for dims of these factor sizes, and the accesses of `views` (of that rank)."""
        labels: dict[str, Size] = {}
        dims: list[tuple[str, ...]] = []
        for group in sizes:
            names = tuple(fresh("i") for _ in group)
            labels |= dict(zip(names, group, strict=True))
            dims.append(names)
        accesses = []
        for view in views:
            for d, group in enumerate(sizes):
                if view.dims[d]:
                    view = view.refined(d, group)
            accesses.append(_indexed(view, dims))
        return Box(labels, dims, accesses)

    def refined(self, dim: int, sizes: Sequence[Size]) -> Box:
        """With the labels of dim `dim` split to `sizes`."""
        if len(sizes) == len(self.dims[dim]):
            return self
        views = [_View_over_access(a, self) for a in self.accesses]
        groups = [
            tuple(sizes) if d == dim else tuple(self.labels[n] for n in names)
            for d, names in enumerate(self.dims)
        ]
        return Box.make(views, groups)

    def access_of(self, view: View) -> Access:
        """The access of a result, a view whose factors are labels of the box."""
        return Access(view.tensor, view.index)


def broadcast(shapes: Sequence[Sequence[Size]]) -> tuple[Size, ...]:
    """The common shape of `shapes` by PyTorch's rules. ValueError when there is none."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[Size] = [1] * rank
    for shape in shapes:
        for d, size in enumerate(shape, rank - len(shape)):
            if known(size) == 1 or same(out[d], size):
                continue
            if known(out[d]) != 1:
                raise ValueError(f"shapes {[tuple(map(str, s)) for s in shapes]} do not broadcast")
            out[d] = size
    return tuple(out)


def _segments(old: Sequence[Size], new: Sequence[Size]) -> list[Size]:
    """The finest sizes that both are reshapes of by merging neighbours."""
    left, right = [known(size) for size in old], [known(size) for size in new]
    if None in left or None in right:
        return [product(old)]
    found: list[Size] = []
    mine, theirs = 1, 1
    j = 0
    for size in left:
        mine *= size or 0
        while theirs < mine and j < len(right):
            theirs *= right[j] or 0
            j += 1
        if mine == theirs:
            found.append(mine)
            mine = theirs = 1
    return found


def _lifted(view: View, rank: int) -> View:
    for _ in range(rank - view.rank):
        view = view.unsqueeze(0)
    return view


def _indexed(view: View, dims: Sequence[tuple[str, ...] | Indirect]) -> Access:
    """The access of `view` with its factors replaced by labels, dim by dim."""
    names: dict[str, str] = {}
    indirect: dict[str, Indirect] = {}
    for own, labels in zip(view.dims, dims, strict=True):
        if isinstance(labels, Indirect):
            if own:
                indirect[own[0]] = labels
            continue
        if own:
            names |= dict(zip(own, labels, strict=True))
    index: list[IndexOf] = []
    for i in view.index:
        by = next((indirect[label] for label in i.labels if label in indirect), None)
        if by is not None:
            index.append(by)
        else:
            index.append(Affine(tuple((names[n], c) for n, c in i.terms), i.offset))
    return Access(view.tensor, tuple(index))


def _View_over(
    tensor: Tensor, labels: Sequence[str], dims: Sequence[tuple[str, ...]], box: Box
) -> View:
    """The view of a result whose dims are `labels`; its factors bear the labels' names."""
    return View(
        tensor,
        tuple((label, box.labels[label]) for label in labels),
        tuple(dims),
        tuple(Affine(((label, 1),)) for label in labels),
    )


def _View_over_access(access: Access, box: Box) -> View:
    used = access.labels
    return View(
        access.tensor,
        tuple((n, s) for n, s in box.labels.items() if n in used),
        tuple(tuple(n for n in names if n in used) for names in box.dims),
        tuple(i for i in access.index if isinstance(i, Affine)),
    )


def _moves(view: View, dim: int) -> bool:
    """Whether every factor of a dim moves an index."""
    moved = {label for index in view.index for label in index.labels}
    return all(name in moved for name in view.dims[dim])


def _dropped(view: View, dims: Sequence[int]) -> View:
    for d in dims:
        view = view.squeeze(d)
    return view
