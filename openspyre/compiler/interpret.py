"""The oracle of the compiler: runs a Graph with numpy, op by op, over whole boxes.

What a graph computes is said by this file and by nothing else: lowerings are tested with it, and
every pass is held to give the same values before and after. Bodies have the bits of
`openspyre.reference` (it is reused, not repeated); every tensor's values are rounded to the format
of its dtype. May import numpy and the reference executor's arithmetic; imports no torch (but the
reference's functions load the extension).

Order of additions. With `exact` REDUCE and MATMUL go element by element in the order that
docs/program.md section 3 gives them: k ascending, reduced labels in lexicographic order, 64 lane
accumulators when a reduced label lies on the stick of an input (`Place`). Without it sums, products
and Welford's moments are computed in float64 and rounded once, which no order changes much: the
right reference for a graph that has no places yet, and for large boxes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from openspyre.compiler.errors import CompileError
from openspyre.compiler.graph import (
    Access,
    Affine,
    Graph,
    IndexOf,
    Indirect,
    Op,
    OpKind,
    Role,
    Tensor,
)
from openspyre.compiler.sizes import Size, plus, times
from openspyre.formats import Format, Numerics
from openspyre.program.model import Body
from openspyre.program.ops import LANE_ACCUMULATORS, Combine
from openspyre.reference import combine as combining
from openspyre.reference import numbers
from openspyre.reference.body import BodyError, evaluate
from openspyre.reference.combine import State
from openspyre.reference.indexed import order_keys, rounds
from openspyre.reference.numbers import REGISTERS, Array, letter_of

_HOST = {"int8", "uint8", "int16", "int32", "int64", "bool"}


def interpret(
    graph: Graph,
    tensors: Mapping[str, Array],
    symbols: Mapping[str, int | float] | None = None,
    *,
    numerics: Numerics | None = None,
    exact: bool = False,
    everything: bool = False,
) -> dict[str, Array]:
    """The values of the OUTPUT and INOUT tensors (of all with `everything`) by name.

    tensors: values of the INPUT and INOUT tensors, in any NumPy dtype that holds them; they are
    rounded to the tensors' formats. symbols: values of the graph's symbols. Results are float32 for
    float dtypes, else in the NumPy dtype of the same name. `numerics`: the settings under the
    graph's mode (default: the default ones).

    Raises CompileError, naming the op, for what no graph may do: an index outside its tensor, an
    element that is read before it is written or that an OUTPUT leaves unwritten, points of a MAP
    that write one element twice, registers that do not fit. IndexError for an Indirect index
    outside its limit, ValueError for arguments that do not fit the graph.
    """
    with np.errstate(all="ignore"):
        return _Run(graph, tensors, symbols or {}, numerics, exact).run(everything)


@dataclass
class _Store:
    """A tensor's register array, and what of it is written (None: all)."""

    tensor: Tensor
    format: Format
    values: Array
    written: Array | None = None


@dataclass
class _Box:
    """An op's box in numbers."""

    op: Op
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    symbols: Mapping[str, int | float] = field(default_factory=dict)

    def axis(self, label: str) -> int:
        return self.names.index(label)

    def along(self, label: str) -> Array:
        """0, 1, 2, .. along a label, shaped to broadcast over the box."""
        axis = self.axis(label)
        shape = [1] * len(self.names)
        shape[axis] = self.sizes[axis]
        return np.arange(self.sizes[axis], dtype=np.int64).reshape(shape)

    def fault(self, rule: str) -> CompileError:
        return CompileError(f"{self.op}: {rule}")


class _Run:
    """One interpretation."""

    def __init__(
        self,
        graph: Graph,
        tensors: Mapping[str, Array],
        symbols: Mapping[str, int | float],
        numerics: Numerics | None,
        exact: bool,
    ) -> None:
        self.graph, self.symbols, self.exact = graph, symbols, exact
        self.numerics = numerics or Numerics(graph.mode)
        missing = [name for name in graph.symbols if name not in symbols]
        if missing:
            raise ValueError(f"{graph.name}: no value for symbol {missing[0]}")
        self.stores: dict[int, _Store] = {}
        for tensor in graph.tensors:
            if tensor.alias is None:
                self._make(tensor, tensors)

    def _make(self, tensor: Tensor, given: Mapping[str, Array]) -> None:
        format = tensor.format(self.graph.mode)
        letter = letter_of(format)
        if not letter:
            raise CompileError(f"{tensor}: no unit computes {tensor.dtype}")
        shape = tuple(self.number(s) for s in tensor.shape)
        if tensor.role in (Role.INPUT, Role.INOUT, Role.CONST):
            data = tensor.data if tensor.role is Role.CONST else given.get(tensor.name)
            if data is None:
                raise ValueError(f"{self.graph.name}: no values for {tensor}")
            if data.shape != shape:
                raise ValueError(f"{tensor}: values of shape {data.shape}")
            values = self.settled(np.asarray(data).astype(REGISTERS[letter]), format)
            self.stores[id(tensor)] = _Store(tensor, format, np.array(values, order="C"))
        else:
            values = np.zeros(shape, REGISTERS[letter])
            self.stores[id(tensor)] = _Store(tensor, format, values, np.zeros(shape, np.bool_))

    def run(self, everything: bool) -> dict[str, Array]:
        for op in self.graph.ops:
            self.op(op)
        out = {}
        for tensor in self.graph.tensors:
            if tensor.alias is not None:
                continue
            store = self.stores[id(tensor)]
            if tensor.role is Role.OUTPUT and store.written is not None:
                raise CompileError(f"{tensor}: not every element of it is written")
            if everything or tensor.role in (Role.OUTPUT, Role.INOUT):
                out[tensor.name] = _host(store.values, tensor.dtype)
        return out

    def number(self, size: Size) -> int:
        if isinstance(size, int):
            return size
        return size.evaluate({n: int(v) for n, v in self.symbols.items()})

    def settled(self, values: Array, format: Format) -> Array:
        """Registers as they come back from memory."""
        codes = numbers.encode(values, format, self.numerics)
        return np.asarray(numbers.decode(codes, format, self.numerics))

    # --- ops

    def op(self, op: Op) -> None:
        if any(a.tensor.alias is not None for a in (*op.inputs, *op.outputs)):
            op = replace(
                op,
                inputs=[unaliased(a) for a in op.inputs],
                outputs=[unaliased(a) for a in op.outputs],
            )
        sizes = tuple(self.number(s) for s in op.labels.values())
        box = _Box(op, tuple(op.labels), sizes, self.symbols)
        run = {
            OpKind.MAP: self.map,
            OpKind.COPY: self.map,
            OpKind.REDUCE: self.reduce,
            OpKind.MATMUL: self.matmul,
            OpKind.SCAN: self.scan,
            OpKind.SORT: self.sort,
            OpKind.TOPK: self.sort,
            OpKind.SCATTER: self.scatter,
        }[op.kind]
        if 0 not in sizes or op.kind in (OpKind.REDUCE, OpKind.MATMUL):
            run(box)

    def inputs(self, box: _Box) -> list[Array]:
        """The registers of all inputs, shaped to broadcast over the box."""
        found: dict[int, Array] = {}

        def read(number: int) -> Array:
            if number not in found:
                access = box.op.inputs[number]
                by = {i.input: read(i.input) for i in access.index if isinstance(i, Indirect)}
                found[number] = self.read(box, access, by)
            return found[number]

        return [read(n) for n in range(len(box.op.inputs))]

    def results(self, box: _Box, inputs: Sequence[Array]) -> list[Array]:
        """The body's registers, shaped to broadcast over the box."""
        body = box.op.body
        if body is None:
            return list(inputs)
        used = {str(node.immediate) for node in body.nodes if node.op == "index"}
        unknown = used - set(box.names)
        if unknown:
            raise box.fault(
                f"its body has the index of {min(unknown)}, which is none of its labels"
            )
        indices = {name: box.along(name) for name in used}
        try:
            return evaluate(body, inputs, indices, self.symbols, self.numerics)
        except BodyError as error:
            raise box.fault(str(error)) from error

    def map(self, box: _Box) -> None:
        results = self.results(box, self.inputs(box))
        if len(results) != len(box.op.outputs):
            raise box.fault(f"{len(results)} results for {len(box.op.outputs)} outputs")
        for access, values in zip(box.op.outputs, results, strict=True):
            self.write(box, access, np.broadcast_to(values, box.sizes))

    def reduce(self, box: _Box) -> None:
        op, how = box.op, box.op.combine
        if how is None or len(op.outputs) != combining.parts(how):
            raise box.fault("needs a combine and as many outputs as that has parts")
        if 0 in box.sizes:
            x = np.zeros(box.sizes, REGISTERS[_result_letter(op.body) if op.body else "f"])
        else:
            x = np.broadcast_to(self.results(box, self.inputs(box))[0], box.sizes)
        if (how in (Combine.ANY, Combine.ALL)) != (x.dtype == np.bool_):
            raise box.fault(f"{how.value} does not combine {x.dtype}")
        axes = [box.axis(label) for label in op.reduced]
        if combining.parts(how) == 2 and len(axes) != 1:
            raise box.fault(f"{how.value} reduces exactly one label")
        kept = [axis for axis in range(len(box.sizes)) if axis not in axes]
        x = np.transpose(x, (*kept, *axes))
        shape = x.shape[: len(kept)]
        lane = self.lane(op)
        if self.exact:
            at = len(kept) + list(op.reduced).index(lane) if lane is not None else None
            state = _ordered(how, x, len(kept), at)
        else:
            state = _plain(how, x.reshape((*shape, -1)))
        small = _Box(
            op, tuple(box.names[a] for a in kept), tuple(box.sizes[a] for a in kept), self.symbols
        )
        for access, part in zip(op.outputs, state, strict=True):
            self.write(small, access, part)

    def lane(self, op: Op) -> str | None:
        """The reduced label on the stick of an input, if that is known."""
        for access in op.inputs:
            place = access.tensor.place
            if place is None or place.stick < 0:
                continue
            index = access.index[place.stick]
            if isinstance(index, Affine) and index.single in op.reduced:
                return index.single
        return None

    def matmul(self, box: _Box) -> None:
        op = box.op
        if len(op.reduced) != 1 or len(op.inputs) != 2:
            raise box.fault("a product sums over one label of two inputs")
        k, out = op.reduced[0], op.outputs[0].labels
        left, right = (access.labels for access in op.inputs)
        batch = [n for n in box.names if n in left and n in right and n in out]
        rows = [n for n in box.names if n in left and n not in right and n in out]
        cols = [n for n in box.names if n in right and n not in left and n in out]
        if k not in left & right or {*batch, *rows, *cols, k} != set(box.names):
            raise box.fault("every label is in both inputs, or in one of them and the output")
        a, b = self.inputs(box)

        def cut(x: Array, labels: Sequence[str], shape: tuple[int, ...]) -> Array:
            axes = [box.axis(n) for n in labels]
            rest = [i for i in range(x.ndim) if i not in axes]
            return np.transpose(x, (*axes, *rest)).reshape(shape)

        sizes = dict(zip(box.names, box.sizes, strict=True))
        nb, nm, nn = (int(np.prod([sizes[n] for n in g])) for g in (batch, rows, cols))
        a = cut(a, [*batch, *rows, k], (nb, nm, sizes[k]))
        b = cut(b, [*batch, k, *cols], (nb, sizes[k], nn))
        if a.dtype != b.dtype:
            raise box.fault(f"{a.dtype} by {b.dtype}")
        if self.exact:
            total = np.zeros((nb, nm, nn), a.dtype)
            for step in range(sizes[k]):
                total = total + a[:, :, step, None] * b[:, step, None, :]
        else:
            wide = np.float64 if a.dtype == np.float32 else np.int64
            total = (a.astype(wide) @ b.astype(wide)).astype(a.dtype)
        names = [*batch, *rows, *cols]
        total = total.reshape([sizes[n] for n in names])
        self.write(_Box(op, tuple(names), total.shape, self.symbols), op.outputs[0], total)

    def scan(self, box: _Box) -> None:
        op = box.op
        x = np.broadcast_to(self.results(box, self.inputs(box))[0], box.sizes)
        if op.combine not in (Combine.SUM, Combine.PROD, Combine.MAX, Combine.MIN):
            raise box.fault("a scan combines by sum, prod, max or min")
        if op.label is not None:
            axis = box.axis(op.label)
            x = np.moveaxis(x, axis, 0)
            out = np.array(x)
            for step in range(1, len(out)):
                (out[step],) = combining.join(op.combine, (out[step - 1],), (x[step],))
            x = np.moveaxis(out, 0, axis)
        self.write(box, op.outputs[0], x)

    def sort(self, box: _Box) -> None:
        op = box.op
        if op.label is None or len(op.outputs) != 2:
            raise box.fault("needs a label and two outputs")
        axis = box.axis(op.label)
        x = np.broadcast_to(self.results(box, self.inputs(box))[0], box.sizes)
        order = np.argsort(order_keys(x, op.descending), axis=axis, kind="stable")
        sizes = list(box.sizes)
        if op.kind is OpKind.TOPK:
            order = np.take(order, np.arange(op.limit), axis)
            sizes[axis] = op.limit
        small = _Box(op, box.names, tuple(sizes), self.symbols)
        self.write(small, op.outputs[0], np.take_along_axis(x, order, axis))
        self.write(small, op.outputs[1], order.astype(np.int64))

    def scatter(self, box: _Box) -> None:
        op = box.op
        inputs = self.inputs(box)
        (source,) = self.results(box, inputs)
        access = op.outputs[0]
        store = self.stores[id(access.tensor)]
        by = {i.input: inputs[i.input] for i in access.index if isinstance(i, Indirect)}
        where = self.where(box, access, by)
        flat = np.zeros((), np.int64)
        for position, size in zip(where, store.values.shape, strict=True):
            flat = flat * size + position
        to = np.broadcast_to(flat, box.sizes).ravel()
        values = np.broadcast_to(source, box.sizes).ravel()
        target = store.values.reshape(-1)  # contiguous: a view
        if store.written is not None:
            if op.add:
                self.check_written(box, store, store.written.reshape(-1)[to])
            store.written.reshape(-1)[to] = True
            self.seal(store)
        if not op.add:
            target[to] = self.settled(values, store.format)
        elif store.format in (Format.IEEE_FP32, Format.IEEE_INT32, Format.IEEE_INT64):
            np.add.at(target, to, values)  # one point after the other
            target[:] = self.settled(target, store.format)
        elif to.size:
            for now in rounds(to):
                target[to[now]] = self.settled(target[to[now]] + values[now], store.format)

    # --- accesses

    def where(self, box: _Box, access: Access, by: Mapping[int, Array]) -> list[Array]:
        """For each dim of the tensor the index at every point, shaped to broadcast."""
        store = self.stores[id(access.tensor)]
        if len(access.index) != store.values.ndim:
            raise box.fault(f"{access} has {len(access.index)} indices")
        out = []
        for index, size in zip(access.index, store.values.shape, strict=True):
            if isinstance(index, Indirect):
                values, limit = by[index.input], self.number(index.limit)
                if values.dtype not in (np.int32, np.int64):
                    raise box.fault(f"{access}: an index of {values.dtype}")
                if limit > size:
                    raise box.fault(f"{access}: limit {limit} of a dim of {size}")
                bad = (values < 0) | (values >= limit)
                if bad.any():
                    raise IndexError(f"{box.op}: index {values[bad][0]} is not in 0..{limit - 1}")
                out.append(values.astype(np.int64))
                continue
            total = np.full([1] * len(box.names), self.number(index.offset), np.int64)
            for label, c in index.terms:
                if label not in box.names:
                    raise box.fault(f"{access}: no label {label}")
                total = total + box.along(label) * self.number(c)
            if total.size and (int(total.min()) < 0 or int(total.max()) >= size):
                raise box.fault(
                    f"{access}: index {index} runs {total.min()}..{total.max()} in a dim of {size}"
                )
            out.append(total)
        return out

    def strided(self, box: _Box, access: Access, array: Array) -> Array:
        """The window of an affine access on a contiguous array; size 1 for labels without effect.
        The bounds must hold."""
        strides = [s // array.itemsize for s in array.strides]
        offset, steps = 0, dict.fromkeys(box.names, 0)
        moved = access.labels
        for index, stride in zip(access.index, strides, strict=True):
            assert isinstance(index, Affine)
            offset += self.number(index.offset) * stride
            for label, c in index.terms:
                steps[label] += self.number(c) * stride
        sizes = [n if label in moved else 1 for label, n in zip(box.names, box.sizes, strict=True)]
        return np.lib.stride_tricks.as_strided(
            array.reshape(-1)[offset:], sizes, [steps[n] * array.itemsize for n in box.names]
        )

    def check_written(self, box: _Box, store: _Store, written: Array) -> None:
        if not written.all():
            raise box.fault(f"reads {store.tensor.name} before it is written")

    def read(self, box: _Box, access: Access, by: Mapping[int, Array]) -> Array:
        store = self.stores[id(access.tensor)]
        where = self.where(box, access, by)
        if not access.indirect:
            if store.written is not None:
                self.check_written(box, store, self.strided(box, access, store.written))
            return self.strided(box, access, store.values)
        at = tuple(np.broadcast_arrays(*where))
        if store.written is not None:
            self.check_written(box, store, store.written[at])
        return np.asarray(store.values[at])

    def write(self, box: _Box, access: Access, values: Array) -> None:
        store = self.stores[id(access.tensor)]
        if store.tensor.role in (Role.INPUT, Role.CONST):
            raise box.fault(f"writes {store.tensor}")
        if access.indirect:
            raise box.fault("only a scatter writes by index")
        self.where(box, access, {})
        try:
            found = self.settled(np.broadcast_to(values, box.sizes), store.format)
        except ValueError as error:
            raise box.fault(str(error)) from error
        target = self.strided(box, access, store.values)
        if target.shape != box.sizes or not _injective(target):
            raise box.fault(f"{access}: points write one element twice")
        target[...] = found
        if store.written is not None:
            self.strided(box, access, store.written)[...] = True
            self.seal(store)

    def seal(self, store: _Store) -> None:
        if store.written is not None and store.written.all():
            store.written = None


def unaliased(access: Access) -> Access:
    """An access of an alias as one of the tensor behind it. CompileError for an Indirect index on
    a dim of the alias that does not alone move one dim."""
    alias = access.tensor.alias
    if alias is None:
        return access
    own = {f"d{d}": index for d, index in enumerate(access.index)}
    made: list[IndexOf] = []
    for outer in alias.index:
        moved = [own[name] for name in outer.labels]
        if any(isinstance(i, Indirect) for i in moved):
            if outer.single is None or outer.offset != 0:
                raise CompileError(f"{access}: indexes a dim of an alias that moves otherwise")
            made.append(moved[0])
            continue
        terms: dict[str, Size] = {}
        offset = outer.offset
        for (_, by), inner in zip(outer.terms, moved, strict=True):
            assert isinstance(inner, Affine)
            offset = plus(offset, times(by, inner.offset))
            for label, c in inner.terms:
                terms[label] = plus(terms.get(label, 0), times(by, c))
        made.append(Affine(tuple(terms.items()), offset))
    return Access(alias.of, tuple(made))


def _host(values: Array, dtype: str) -> Array:
    return values.astype(dtype) if dtype in _HOST else values


@functools.cache
def _result_letter(body: Body) -> str:
    """The register type of a body's first result."""
    from openspyre.program.ops import BODY_OP

    node = body.nodes[body.results[0]]
    return BODY_OP[node.op].result_of(node.type, getattr(node.immediate, "value", node.immediate))


def _injective(window: Array) -> bool:
    """Whether no two positions of a strided window are one element."""
    axes = sorted(
        (abs(step), size) for step, size in zip(window.strides, window.shape, strict=True)
        if size > 1
    )  # fmt: skip
    reach = 0
    for step, size in axes:
        if step <= reach:
            break
        reach += step * (size - 1)
    else:
        return True
    at = np.zeros((), np.int64)
    for axis, (step, size) in enumerate(zip(window.strides, window.shape, strict=True)):
        shape = [1] * window.ndim
        shape[axis] = size
        at = at + (np.arange(size, dtype=np.int64) * step).reshape(shape)
    return len(np.unique(at)) == at.size


def _plain(how: Combine, x: Array) -> State:
    """The last axis of `x` combined; sums in float64, rounded once."""
    if x.shape[-1] == 0:
        return combining.identity(how, x.dtype, x.shape[:-1])
    wide = x.astype(np.float64) if x.dtype == np.float32 else x
    if how is Combine.SUM:
        return (wide.sum(-1, dtype=wide.dtype).astype(x.dtype),)
    if how is Combine.PROD:
        return (wide.prod(-1, dtype=wide.dtype).astype(x.dtype),)
    if how is Combine.ANY:
        return (np.asarray(x.any(-1)),)
    if how is Combine.ALL:
        return (np.asarray(x.all(-1)),)
    if how is Combine.WELFORD:
        mean = wide.mean(-1)
        m2 = ((wide - mean[..., None]) ** 2).sum(-1)
        count = np.full(mean.shape, x.shape[-1], np.float32)
        return mean.astype(np.float32), m2.astype(np.float32), count
    largest = how in (Combine.MAX, Combine.ARGMAX)
    at = np.argmax(order_keys(x, False), -1) if largest else None
    if at is None:  # NaN wins: it must come first here
        nan = np.isnan(x) if x.dtype == np.float32 else np.zeros(x.shape, np.bool_)
        at = np.argmax(np.where(nan, np.iinfo(np.int64).max, ~order_keys(x, False)), -1)
    value = np.take_along_axis(x, at[..., None], -1)[..., 0]
    return (value, at.astype(np.int64)) if combining.parts(how) == 2 else (value,)


def _ordered(how: Combine, x: Array, kept: int, lane: int | None) -> State:
    """The axes of `x` from `kept` on combined in lexicographic order, one element after the other;
    axis `lane` by 64 accumulators and the fixed tree."""
    shape, lanes = x.shape[:kept], LANE_ACCUMULATORS
    index = np.zeros(x.shape, np.int64)
    if combining.parts(how) == 2:
        index = np.broadcast_to(np.arange(x.shape[-1], dtype=np.int64), x.shape)
    if lane is None:
        x, index = x.reshape((*shape, -1)), index.reshape((*shape, -1))
        state = combining.identity(how, x.dtype, shape)
        for step in range(x.shape[-1]):
            state = combining.element(how, state, x[..., step], index[..., step])
        return state
    size = x.shape[lane]
    groups = -(-size // lanes)
    pad = [(0, 0)] * x.ndim
    pad[lane] = (0, groups * lanes - size)
    inside = np.zeros(x.shape, np.bool_) | True
    parts = []
    for array in (x, index, inside):
        array = np.pad(array, pad)
        array = array.reshape((*array.shape[:lane], groups, lanes, *array.shape[lane + 1 :]))
        array = np.moveaxis(array, lane + 1, kept)
        parts.append(array.reshape((*shape, lanes, -1)))
    x, index, inside = parts
    state = combining.identity(how, x.dtype, (*shape, lanes))
    for step in range(x.shape[-1]):
        new = combining.element(how, state, x[..., step], index[..., step])
        state = tuple(
            np.where(inside[..., step], n, s) for n, s in zip(new, state, strict=True)
        )  # fmt: skip
    half = lanes // 2
    while half:
        low = tuple(part[..., :half] for part in state)
        high = tuple(part[..., half : 2 * half] for part in state)
        state = combining.join(how, low, high)
        half //= 2
    return tuple(part[..., 0] for part in state)
