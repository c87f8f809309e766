"""Matrix-product kernels by hand and what runs them: shared by tests/test_compiler_matmul*.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch  # noqa: F401  the extension needs it loaded

from openspyre import _C, reference
from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.graph import Graph, Role, Tensor
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.schedule.common import place_of
from openspyre.compiler.schedule.matmul import schedule
from openspyre.compiler.tiles import Kernel, outside, users_of
from openspyre.compiler.view import View
from openspyre.formats import Mode, Numerics
from openspyre.program import Program
from openspyre.program import body as f
from openspyre.program.binary import encode
from openspyre.program.model import Role as OperandRole
from openspyre.program.verify import verify

Arrays = dict[str, np.ndarray]
Epilogue = Callable[[GraphBuilder, View, dict[str, View]], View]


@dataclass
class Work:
    """A graph that is one kernel."""

    graph: Graph
    kernel: Kernel

    def program(self, options: CompileOptions | None = None) -> Program:
        return schedule(self.kernel, self.graph, options or CompileOptions(mode=self.graph.mode))


def place(tensor: Tensor, mode: Mode, order: Sequence[int] | None = None) -> None:
    """Lays a tensor out in the default order, or in another."""
    tensor.place = place_of(tensor.shape, tensor.dtype, mode, order)


def finish(
    b: GraphBuilder, result: View, orders: Mapping[str, Sequence[int]] | None = None
) -> Work:
    """Makes `result` the output and one kernel of the whole graph."""
    out = b.output(result)
    assert out is not None
    graph = b.graph
    for tensor in graph.tensors:
        if tensor.role is not Role.TEMP and tensor.place is None:
            place(tensor, graph.mode, (orders or {}).get(tensor.name))
    kernel = Kernel("matmul", list(graph.ops))
    kernel.arguments, kernel.written = outside(kernel.ops, users_of(graph.ops))
    return Work(graph, kernel)


def rounded(b: GraphBuilder, sums: View, dtype: str) -> View:
    """The MAP that rounds the sums."""
    return b.map(lambda x: f.cast(x, "f") if dtype != "int32" else x, sums, dtype=dtype, name="out")


def product(
    a_shape: Sequence[int],
    b_shape: Sequence[int],
    dtype: str = "float16",
    *,
    turn_a: bool = False,
    turn_b: bool = False,
    orders: Mapping[str, Sequence[int]] | None = None,
    out_dtype: str | None = None,
    b_dtype: str | None = None,
    epilogue: Epilogue | None = None,
    more: Mapping[str, tuple[Sequence[int], str]] | None = None,
    mode: Mode = Mode.DL16,
) -> Work:
    """a @ b of these logical shapes; `turn_a`, `turn_b`: the argument is stored transposed."""
    b = GraphBuilder("mm", mode)
    b.operation = "aten.matmul.default"

    def argument(name: str, shape: Sequence[int], kind: str, turned: bool) -> View:
        if not turned:
            return b.input(name, list(shape), kind)
        return b.input(name, [*shape[:-2], shape[-1], shape[-2]], kind).transpose(-1, -2)

    left = argument("a", a_shape, dtype, turn_a)
    right = argument("b", b_shape, b_dtype or dtype, turn_b)
    others = {name: b.input(name, list(s), d) for name, (s, d) in (more or {}).items()}
    sums = b.matmul(left, right)
    if epilogue is not None:
        result = epilogue(b, sums, others)
    else:
        result = rounded(b, sums, out_dtype or ("int32" if dtype == "int8" else dtype))
    return finish(b, result, orders)


def run(
    work: Work,
    program: Program,
    inputs: Arrays,
    symbols: Mapping[str, int | float] | None = None,
    *,
    native: bool = True,
    poison: bool = True,
) -> Arrays:
    """What the program gives, by operand; pads of the inputs are NaN (integers: ones)."""
    numerics = Numerics(mode=work.graph.mode)
    words = dict(symbols or {})
    data = {}
    for operand in program.operands:
        if operand.name in inputs:
            data[operand.name] = reference.pack(operand, inputs[operand.name], numerics, words)
        else:
            data[operand.name] = reference.empty(operand, words)
        if poison:
            mask = reference.defined_bytes(operand, words)
            data[operand.name][: len(mask)][~mask] = 0x7F
            if operand.name not in inputs:
                data[operand.name][:] = 0x7F
    if native:
        import struct

        symbols_ = [
            struct.unpack("<i", struct.pack("<f", words[s.name]))[0]
            if s.kind.value == "float"
            else int(words[s.name])
            for s in program.symbols
        ]
        machine = _C.NativeProgram(encode(program))
        machine.execute(
            [data[o.name] for o in program.operands], symbols_, numerics.mode.value,
            numerics.tie.value, numerics.merged_is_nan, threads=1,
        )  # fmt: skip
    else:
        reference.run(program, data, words, numerics)
    return {
        o.name: reference.unpack(o, data[o.name], numerics, symbols=words)
        for o in program.operands
        if o.role in (OperandRole.OUT, OperandRole.INOUT)
    }


def check(
    work: Work,
    inputs: Arrays,
    options: CompileOptions | None = None,
    symbols: Mapping[str, int] | None = None,
    *,
    slow: bool = True,
) -> Arrays:
    """Verifies the program and runs it, on the reference executor too; they agree."""
    program = work.program(options)
    verify(program, symbols or {})
    taken = max(b.base + b.slots * b.slot_bytes for b in program.buffers)
    assert taken <= work.kernel.lx_bytes, "the planner counts LX as the program does"
    found = run(work, program, inputs, symbols)
    if slow:
        for name, array in run(work, program, inputs, symbols, native=False).items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)
    return found


def ascending(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b in float32, k ascending, one product at a time."""
    left, right = a.astype(np.float32), b.astype(np.float32)
    outer = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    out = np.zeros((*outer, left.shape[-2], right.shape[-1]), np.float32)
    for i in range(left.shape[-1]):
        out = out + left[..., :, i : i + 1] * right[..., i : i + 1, :]
    return out
