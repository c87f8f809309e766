"""Random graphs through the whole compiler: what its programs leave in memory is what the graph
says (`interpret`), element by element, pads poisoned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch  # noqa: F401  the extension needs it loaded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import Random

from openspyre import _C
from openspyre.compiler.compile import CopyStep, Region, compile_graph
from openspyre.compiler.graph import Access, Op, Place, Role, Tensor
from openspyre.compiler.options import CompileOptions
from openspyre.formats import Mode, Numerics
from openspyre.program.binary import encode
from openspyre.program.verify import verify
from openspyre.reference import numbers

Array = np.ndarray[Any, Any]
NUMERICS = Numerics()


def elements(tensor: Tensor, shape: Any, place: Place) -> Array:
    """For every element its number in the tensor's memory."""
    format = tensor.format(Mode.DL16)
    eps = format.elements_per_stick
    total = np.zeros([int(str(s)) for s in shape], np.int64)
    for d, size in enumerate(total.shape):
        line, stride = np.arange(size), int(str(place.strides[d])) // format.bytes
        at = line // eps * stride + line % eps if d == place.stick else line * stride
        total = total + at.reshape([-1 if e == d else 1 for e in range(total.ndim)])
    return total


class Memory:
    """The memory of a region's tensors, every byte poisoned at first."""

    def __init__(self, region: Region, places: Mapping[str, Any], values: Mapping[str, Array]):
        self.bytes: dict[int, Array] = {}
        self.places: dict[int, Array] = {}
        for tensor in region.graph.tensors:
            if tensor.alias is not None:
                continue
            shape, place = places.get(tensor.name, (None, None))
            if place is None:
                shape, place = tensor.host or (tensor.shape, tensor.place)
            at = self.places[id(tensor)] = elements(tensor, shape, place)
            format = tensor.format(Mode.DL16)
            sticks = int(at.max(initial=0)) // format.elements_per_stick + 1
            self.bytes[id(tensor)] = np.full(sticks * 128, 0x7F, np.uint8)
            held = tensor.data if tensor.role is Role.CONST else values.get(tensor.name)
            if held is not None:
                registers = held.astype(numbers.REGISTERS[numbers.letter_of(format)])
                self.codes(tensor)[at] = numbers.encode(registers, format, NUMERICS)

    def of(self, tensor: Tensor) -> Array:
        """The bytes from the tensor's base on."""
        whole = self.bytes[id(tensor.memory)]
        return whole if tensor.alias is None else whole[int(str(tensor.alias.offset)) :]

    def codes(self, tensor: Tensor) -> Array:
        return self.of(tensor).view(numbers.codes_type(tensor.format(Mode.DL16)))

    def value(self, tensor: Tensor) -> Array:
        codes = self.codes(tensor)[self.places[id(tensor)]]
        return numbers.decode(codes, tensor.format(Mode.DL16), NUMERICS)


def touched(op: Op, access: Access) -> Array:
    """The elements of a copy's access, over its box."""
    sizes = [int(str(s)) for s in op.labels.values()]
    grid = dict(zip(op.labels, np.indices(sizes), strict=True)) if sizes else {}
    at = []
    for index in access.index:
        total = np.full(sizes, int(str(index.offset)))  # type: ignore[union-attr]
        for label, c in index.terms:  # type: ignore[union-attr]
            total = total + grid[label] * int(str(c))
        at.append(total)
    assert access.tensor.place is not None
    return np.asarray(elements(access.tensor, access.tensor.shape, access.tensor.place)[tuple(at)])


def run(region: Region, memory: Memory) -> None:
    for step in region.steps:
        if isinstance(step, CopyStep):
            source, target = step.source, step.target
            moved = memory.codes(source.tensor)[touched(step.op, source)]
            memory.codes(target.tensor)[touched(step.op, target)] = moved
            continue
        verify(step.program)
        data = [memory.of(tensor) for tensor in step.arguments]
        _C.NativeProgram(encode(step.program)).execute(data, [], "dl16", "toward_positive", False)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_programs_compute_what_the_graph_says(data: Any) -> None:
    made = Random(data.draw, wide=data.draw(st.booleans()))
    wanted = made.run()
    places = {t.name: (t.shape, t.place) for t in made.graph.arguments}
    region = compile_graph(made.graph, CompileOptions())
    memory = Memory(region, places, made.values)
    run(region, memory)
    for tensor in region.graph.arguments:
        if tensor.name in wanted:
            found = memory.value(tensor)
            np.testing.assert_array_equal(
                found, wanted[tensor.name].astype(found.dtype), err_msg=tensor.name
            )
