"""What every scheduler needs: operands and symbols of a kernel, tiles of accesses, cores, loops.

`Draft` is a Program in the making: a `ProgramBuilder` on which the kernel's arguments are declared
where they lie, with the steps from the Graph's words (`Tensor`, `Access`, labels) to the builder's.
The rest are plain functions over numbers: shares of cores, alignment of labels, bytes of tiles.
Reads kernels and graphs, changes none. Imports no torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from openspyre.compiler.errors import CompileError
from openspyre.compiler.graph import Access, Affine, Graph, Indirect, Op, Place, Role, Tensor
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.sizes import Size, known, same
from openspyre.compiler.tiles import Kernel
from openspyre.formats import STICK_BYTES, Format, Mode
from openspyre.program import boxes
from openspyre.program.boxes import ExprLike, IndexLike, Span, SpanLike, span
from openspyre.program.builder import ProgramBuilder, Stream
from openspyre.program.expr import Expr, ceil_div, expr
from openspyre.program.model import Role as OperandRole

LX_RESERVE = 64 << 10
"""Bytes of a core's LX that no kernel plans with (program, spill of the executor; an estimate)."""

BYTES_PER_CORE = 6 << 10
"""Fewer bytes of arguments than this are not worth another core."""

SPAN_LIMIT = 256 << 20
"""Bytes of one operand, from the first to the last, that one core may touch (verify_access)."""


def lx_budget(options: CompileOptions) -> int:
    """Bytes of LX that the buffers of a kernel may take on a core."""
    return options.card.lx_bytes - min(LX_RESERVE, options.card.lx_bytes // 16)


# --- accesses


def index_of(access: Access, dim: int) -> tuple[str | None, Size]:
    """(label or None, offset) of one dim. CompileError for what no tile expresses."""
    index = access.index[dim]
    if isinstance(index, Affine):
        if not index.terms:
            return None, index.offset
        if index.single is not None:
            return index.single, index.offset
    raise CompileError(
        f"{access}: dim {dim} is {index}; legalize must leave a label and an offset, or a number"
    )


def stick_label(access: Access) -> str | None:
    """The label on the stick of an access of a placed tensor; None: one element a stick."""
    place = access.tensor.place
    if place is None:
        raise CompileError(f"{access.tensor.name} has no place yet: run the layouts pass first")
    if place.stick < 0 or isinstance(access.index[place.stick], Indirect):
        return None
    return index_of(access, place.stick)[0]


def whole(access: Access, labels: Mapping[str, Size]) -> bool:
    """Whether the access, over whole labels, is the whole tensor, each element once."""
    seen: set[str] = set()
    for dim, size in enumerate(access.tensor.shape):
        if isinstance(access.index[dim], Indirect):
            return False
        label, offset = index_of(access, dim)
        if known(offset) != 0 or label in seen:
            return False
        if not same(size, 1 if label is None else labels[label]):
            return False
        if label is not None:
            seen.add(label)
    return True


def units_of(accesses: Iterable[Access], mode: Mode) -> dict[str, int]:
    """For each label on a stick the largest number of elements of a stick among the accesses: its
    tiles must begin at multiples of that."""
    out: dict[str, int] = {}
    for access in accesses:
        if access.tensor.place is None:
            continue
        label = stick_label(access)
        if label is not None:
            eps = access.tensor.format(mode).elements_per_stick
            out[label] = max(out.get(label, 1), eps)
    return out


def tile_sizes(access: Access, sizes: Mapping[str, int]) -> list[int]:
    """Elements of each dim in a tile of so many indices of each label."""
    out = []
    for dim in range(len(access.index)):
        label, _ = index_of(access, dim)
        out.append(1 if label is None else sizes[label])
    return out


def sticks(dims: Sequence[int], stick: int, format: Format) -> int:
    """Bytes of a tile of these sizes with dim `stick` (-1: none) on the stick."""
    total = STICK_BYTES
    for dim, size in enumerate(dims):
        total *= -(-size // format.elements_per_stick) if dim == stick else size
    return total


def tile_bytes(access: Access, sizes: Mapping[str, int], mode: Mode) -> int:
    """Bytes in LX of a tile of a placed tensor."""
    place = access.tensor.place
    assert place is not None
    return sticks(tile_sizes(access, sizes), place.stick, access.tensor.format(mode))


def span_bytes(access: Access, sizes: Mapping[str, int], graph: Graph) -> int:
    """Bytes in LPDDR5 from the first to the last stick of a tile of these sizes."""
    place = access.tensor.place
    assert place is not None
    reach = STICK_BYTES
    eps = access.tensor.format(graph.mode).elements_per_stick
    for dim, size in enumerate(tile_sizes(access, sizes)):
        count = -(-size // eps) if dim == place.stick else size
        reach += (count - 1) * graph.maximum(place.strides[dim])
    return reach


# --- numbers


def cores_for(nbytes: int, options: CompileOptions) -> int:
    """How many cores moving `nbytes` is worth."""
    return max(1, min(options.most_cores, nbytes // BYTES_PER_CORE))


def split_cores(
    counts: Mapping[str, int],
    cores: int,
    *,
    legal: Callable[[Mapping[str, int]], bool] | None = None,
) -> dict[str, int]:
    """Parts for labels of `counts` units each, of at most `cores` in all, so that the largest
    share is smallest; among equals the earlier labels are split, and fewer cores used. `legal`
    may refuse a choice. Labels that are not split do not appear."""
    names = [name for name, count in counts.items() if count > 1]
    # Three labels are enough to fill 32 cores unless all are tiny; the largest are best.
    chosen = sorted(names, key=lambda name: -counts[name])[:3]
    chosen = [name for name in names if name in chosen]
    best: tuple[tuple[int, int, int], dict[str, int]] | None = None
    options = [range(1, min(counts[name], cores) + 1) for name in chosen]
    for parts in itertools.product(*options[:-1]) if options else [()]:
        used = math.prod(parts)
        if used > cores:
            continue
        choice = dict(zip(chosen, parts, strict=False))
        if chosen:
            choice[chosen[-1]] = max(1, min(counts[chosen[-1]], cores // used))
        # Equal shares with fewer cores.
        choice = {name: -(-counts[name] // -(-counts[name] // n)) for name, n in choice.items()}
        if legal is not None and not legal(choice):
            continue
        share = math.prod(-(-counts[name] // n) for name, n in choice.items())
        order = [choice[name] for name in chosen]
        rank = sum(1 for n in order if n > 1)
        later = sum(position for position, n in enumerate(order) if n > 1)
        key = (share, rank, later)
        if best is None or key < best[0]:
            best = (key, choice)
    if best is None:
        return {}
    return {name: n for name, n in best[1].items() if n > 1}


# --- the draft of a program


@dataclass(frozen=True)
class Axis:
    """One label of the outer loops: the share of this core, and the size of a tile of it."""

    label: str
    whole: Span
    tile: int

    @property
    def steps(self) -> Expr:
        return ceil_div(self.whole.size, self.tile)


class Draft:
    """The builder of a kernel's program, its arguments declared. `parts`: the labels split over
    cores, each a digit of the grid (`core_` and the label), most significant first."""

    def __init__(
        self,
        kernel: Kernel,
        graph: Graph,
        options: CompileOptions,
        parts: Mapping[str, int] | None = None,
    ) -> None:
        self.kernel, self.graph, self.options = kernel, graph, options
        self.mode = graph.mode
        grid = {digit(label): n for label, n in (parts or {}).items() if n > 1} or {"core_all": 1}
        self.builder = ProgramBuilder(kernel.name, grid, mode=graph.mode, card=options.card)
        self.parts = {label: n for label, n in (parts or {}).items() if n > 1}
        self._owners: dict[int, boxes.Tensor] = {}
        self._names: dict[str, int] = {}
        self._symbols()
        for tensor in kernel.arguments:
            self._declare(tensor)

    @property
    def used(self) -> int:
        """Bytes of LX taken so far."""
        return self.builder._lx_end

    def unique(self, prefix: str) -> str:
        """A name for a value, buffer, token or loop that none of the draft has yet."""
        number = self._names.get(prefix, 0)
        self._names[prefix] = number + 1
        return f"{prefix}__{number}" if number else f"{prefix}_"

    def _symbols(self) -> None:
        used: set[str] = set()
        for op in self.kernel.ops:
            for size in op.labels.values():
                used |= set(expr(size).names())
            if op.body is not None:
                used |= {str(n.immediate) for n in op.body.nodes if n.op == "scalar"}
            for access in (*op.inputs, *op.outputs):
                for index in access.index:
                    numbers = [index.limit] if isinstance(index, Indirect) else [index.offset]
                    for number in numbers:
                        used |= set(expr(number).names())
        for tensor in self.kernel.arguments:
            for size in (*tensor.shape, *(tensor.place.strides if tensor.place else ())):
                used |= set(expr(size).names())
        for symbol in self.graph.symbols.values():
            if symbol.name not in used:
                continue
            if symbol.kind == "float":
                self.builder.float_symbol(symbol.name)
            else:
                self.builder.int_symbol(symbol.name, symbol.minimum, symbol.maximum)

    def _declare(self, tensor: Tensor) -> None:
        if tensor.place is None:
            raise CompileError(f"{tensor.name} has no place yet: run the layouts pass first")
        strides, stick = tensor.place.strides, tensor.place.stick
        if tensor.role is Role.CONST:
            self._owners[id(tensor)] = self._constant(tensor)
            return
        role = OperandRole.IN
        if tensor.name in self.kernel.written:
            role = OperandRole.OUT if self._complete(tensor) else OperandRole.INOUT
        self._owners[id(tensor)] = self.builder.operand(
            role, tensor.name, tensor.shape, tensor.dtype, strides=strides, stick=stick
        )

    def _complete(self, tensor: Tensor) -> bool:
        """Whether the kernel only writes the tensor, all of it, once."""
        if tensor.role not in (Role.OUTPUT, Role.TEMP):
            return False
        writes = [
            (op, a) for op in self.kernel.ops for a in op.outputs if a.tensor is tensor
        ]  # fmt: skip
        if len(writes) != 1:
            return False
        op, access = writes[0]
        # What the write or an op before it reads is what was there before.
        for earlier in self.kernel.ops[: self.kernel.ops.index(op) + 1]:
            if any(a.tensor is tensor for a in earlier.inputs):
                return False
        labels = dict(op.labels)
        if op.kind.value == "topk" and op.label is not None:
            labels[op.label] = op.limit
        return op.kind.value != "scatter" and whole(access, labels)

    def _constant(self, tensor: Tensor) -> boxes.Tensor:
        """A tensor that the image carries, laid out as its place says."""
        from openspyre.program.model import Operand
        from openspyre.reference.operands import pack

        assert tensor.place is not None and tensor.data is not None
        shape = tuple(expr(size) for size in tensor.shape)
        steps = tuple(expr(stride) for stride in tensor.place.strides)
        format, offset = tensor.format(self.mode), len(self.builder._data)
        operand = Operand(
            tensor.name, OperandRole.CONST, tensor.dtype, format, shape, None, None, offset, steps,
            tensor.place.stick,
        )  # fmt: skip
        from openspyre.formats import Numerics

        self.builder._data += pack(operand, tensor.data, Numerics(mode=self.mode)).tobytes()
        return self.builder.operand(
            OperandRole.CONST, tensor.name, tensor.shape, tensor.dtype, offset=offset,
            strides=steps, stick=tensor.place.stick,
        )  # fmt: skip

    # --- from the Graph's words to the builder's

    def owner(self, tensor: Tensor) -> boxes.Tensor:
        """The operand of an argument."""
        found = self._owners.get(id(tensor))
        if found is None:
            raise CompileError(f"{tensor.name} is no argument of kernel {self.kernel.name}")
        return found

    def is_argument(self, tensor: Tensor) -> bool:
        return id(tensor) in self._owners

    def index(
        self, access: Access, rename: Mapping[str, IndexLike] | None = None
    ) -> tuple[IndexLike, ...]:
        """The builder's index of an access: labels with offsets, fixed numbers. `rename` puts
        something else in a label's place."""
        out: list[IndexLike] = []
        for dim in range(len(access.index)):
            label, offset = index_of(access, dim)
            if label is None:
                out.append(expr(offset))
            elif rename is not None and label in rename:
                out.append(rename[label])
            else:
                out.append((label, expr(offset)))
        return tuple(out)

    def ref(
        self,
        owner: boxes.Tensor | boxes.Tile,
        access: Access,
        rename: Mapping[str, IndexLike] | None = None,
    ) -> boxes.Ref:
        """The box of `owner` (the operand, or a tile of it or of a value with its dims) that the
        access covers."""
        items = self.index(access, rename)
        # Not owner[items]: a tuple of two for rank 1 would be read as label and offset.
        return boxes.Ref(owner, tuple(_pair(item) for item in items))

    def spans(self, access: Access, over: Mapping[str, Span]) -> dict[str, Span]:
        """Those labels of `over` that the access has: for a LOAD or STORE of it."""
        used = access.labels
        return {label: box for label, box in over.items() if label in used}

    def stream(
        self,
        access: Access,
        sizes: Mapping[str, int],
        *,
        users: Sequence[str] = ("sfu",),
        slots: int = 2,
    ) -> Stream:
        """A stream of tiles of an argument."""
        tensor = self.owner(access.tensor)
        stick: int | None = tensor.stick if tensor.stick >= 0 else None
        return self.builder.stream(
            self.unique(tensor.name), tensor, tile_sizes(access, sizes),
            users=users, slots=slots, stick=stick,
        )  # fmt: skip

    # --- cores and loops

    def share(self, label: str, total: ExprLike, unit: int = 1) -> Span:
        """The indices of a label that this core takes: all of them unless the label is split."""
        if label not in self.parts:
            return span(total)
        return self.builder.split(f"mine_{label}", total, digit(label), unit)

    def walk(
        self,
        axes: Sequence[Axis],
        body: Callable[[dict[str, Span], Expr], None],
        at: Callable[[int, dict[str, Span], Expr], AbstractContextManager[object] | None]
        | None = None,
    ) -> None:
        """Loops over the tiles of `axes`, the first outermost, in the open queue.

        `body(spans, turn)` is called inside all loops. `at(depth, spans, turn)` is called inside
        the first `depth` loops, before the next one is entered; what it returns is a context for
        all that is inside. `turn` counts the tiles at that depth: 0, 1, 2, ..
        """
        with ExitStack() as stack:
            spans: dict[str, Span] = {}
            turn: Expr = expr(0)
            for depth, axis in enumerate((*axes, None)):
                if at is not None:
                    context = at(depth, dict(spans), turn)
                    if context is not None:
                        stack.enter_context(context)
                if axis is None:
                    body(spans, turn)
                    break
                if axis.whole.size.constant is not None and axis.whole.size.constant <= axis.tile:
                    spans[axis.label] = axis.whole
                    continue
                tile = stack.enter_context(
                    self.builder.tiles(f"at_{axis.label}", axis.whole, axis.tile)
                )
                turn = turn * axis.steps + tile.step
                spans[axis.label] = tile


def digit(label: str) -> str:
    """The grid digit over which a label is split."""
    return f"core_{label}"


def _pair(item: IndexLike) -> tuple[str | None, Expr]:
    if isinstance(item, tuple):
        return str(item[0]), expr(item[1])
    if isinstance(item, str):
        return item, expr(0)
    return None, expr(item)


def place_of(
    shape: Sequence[Size], dtype: str, mode: Mode, order: Sequence[int] | None = None
) -> Place:
    """The Place of a tensor in the default layout of its shape, or in dim order `order`."""
    from openspyre.formats import format_for
    from openspyre.program.boxes import operand_strides

    sizes = tuple(expr(size) for size in shape)
    axes = None if order is None else tuple(order)
    strides, stick, _ = operand_strides(sizes, axes, format_for(dtype, mode))
    steps: list[Size] = [s.constant if s.constant is not None else s for s in strides]
    return Place(tuple(steps), stick)


def accesses(ops: Iterable[Op]) -> list[Access]:
    """All accesses of some ops, inputs first."""
    return [a for op in ops for a in (*op.inputs, *op.outputs)]


__all__ = [
    "BYTES_PER_CORE", "LX_RESERVE", "SPAN_LIMIT", "Axis", "Draft", "SpanLike", "accesses",
    "cores_for", "digit", "index_of", "lx_budget", "place_of", "span_bytes", "split_cores",
    "stick_label", "sticks", "tile_bytes", "tile_sizes", "units_of", "whole",
]  # fmt: skip
