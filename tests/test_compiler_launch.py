"""openspyre.compiler.launch: copies of elements by the DMA engine, temps in one block."""

from __future__ import annotations

import numpy as np
import torch

from openspyre.compiler.bind import bind, place_for
from openspyre.compiler.compile import CopyStep, Region, Step
from openspyre.compiler.graph import Access, Affine, Graph, Op, OpKind, Place, Role, Tensor
from openspyre.compiler.launch import load
from openspyre.compiler.sizes import Size
from openspyre.formats import Format, Mode


def index(*terms: tuple[str, int], offset: int = 0) -> Affine:
    return Affine(tuple(terms), offset)


def copied(
    source: torch.Tensor,
    read: tuple[Affine, ...],
    labels: dict[str, Size],
    constant: np.ndarray | None = None,
) -> torch.Tensor:
    """source[read] over the labels, through a temp, as a new tensor."""
    x = source.to("spyre")
    shape = tuple(int(str(size)) for size in labels.values())
    seen = bind(x)
    made = place_for(shape, [int(s) for s in torch.empty(shape).stride()], Format.IEEE_FP32)
    assert seen is not None and made is not None
    a = Tensor("a", seen.shape, "float32", Role.INPUT, seen.place)
    if constant is not None:
        a = Tensor("a", seen.shape, "float32", Role.CONST, seen.place, constant)
    t = Tensor("t", shape, "float32", Role.TEMP, Place((128,) * len(shape), -1))
    o = Tensor("o", made.shape, "float32", Role.OUTPUT, made.place)
    strides = [128 * int(s) for s in torch.empty(shape).stride()]
    t.place = Place(tuple(strides), -1)
    plain = tuple(index((label, 1)) for label in labels)
    first = Op(OpKind.COPY, "c", labels, [Access(a, read)], [Access(t, plain)])
    second = Op(OpKind.COPY, "c", labels, [Access(t, plain)], [Access(o, plain)])
    graph = Graph("copies", Mode.DL16, [a, t, o], [first, second])
    steps: list[Step] = [CopyStep(op.inputs[0], op.outputs[0], op) for op in (first, second)]
    loaded = load(Region(graph, steps), 0)
    out = torch.empty(shape, device="spyre")
    if constant is None:
        loaded.run([x, out], [seen, made])
    else:
        loaded.run([out], [made])
    return out.cpu()


def test_a_copy_backwards_along_the_stick() -> None:
    x = torch.arange(210.0).reshape(3, 70)
    got = copied(x, (index(("i", 1)), index(("j", -1), offset=69)), {"i": 3, "j": 70})
    assert torch.equal(got, x.flip(1))


def test_a_copy_from_within_a_stick_in_steps() -> None:
    x = torch.arange(210.0).reshape(3, 70)
    got = copied(x, (index(("i", 1)), index(("j", 3), offset=2)), {"i": 3, "j": 20})
    assert torch.equal(got, x[:, 2:62:3])


def test_a_copy_of_a_diagonal() -> None:
    x = torch.arange(64.0 * 64).reshape(64, 64)
    got = copied(x, (index(("i", 1)), index(("i", 1))), {"i": 64})
    assert torch.equal(got, x.diagonal())


def test_constants_are_uploaded_where_their_place_says() -> None:
    x = torch.arange(210.0).reshape(3, 70)
    got = copied(
        x, (index(("i", 1)), index(("j", 1))), {"i": 3, "j": 70}, x.numpy().astype(np.float32)
    )
    assert torch.equal(got, x)
