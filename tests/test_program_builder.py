"""The builder of Programs, the programs written with it, and the random ones."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program_zoo import ZOO, Arrays, Case
from random_programs import random_program

from examples.programs import (
    add,
    columns,
    indexing,
    ksplit,
    matmul,
    pipeline,
    pointwise,
    rows,
    sorting,
)
from openspyre import reference
from openspyre.formats import Format
from openspyre.program import Instance, Program, ProgramBuilder, ProgramError, body
from openspyre.program.binary import encode
from openspyre.program.body import BodyError, Reg, trace
from openspyre.program.concrete import operand_layout
from openspyre.program.expr import Const, Var
from openspyre.program.model import Loop, Role, Signal, Symbol, SymbolKind, Unit, Wait
from openspyre.program.ops import Combine
from openspyre.program.text import to_text
from openspyre.program.verify import verify

EXAMPLES: dict[str, Callable[[], Program]] = {
    "add": add.build,
    "copy": pointwise.copy,
    "neg": pointwise.neg,
    "gelu": pointwise.gelu,
    "uniform": pointwise.uniform,
    "softmax": rows.softmax,
    "layernorm": rows.layernorm,
    "rms_norm": rows.rms_norm,
    "argmax": rows.argmax,
    "matmul": matmul.build,
    "gemv": matmul.gemv,
    "matmul_int8": matmul.int8,
    "matmul_fp8": matmul.fp8,
    "bmm": matmul.batched,
    "ksplit": ksplit.build,
    "embedding": indexing.embedding,
    "index_add": indexing.index_add,
    "take_along": indexing.take_along,
    "scatter_add": indexing.scatter_add,
    "transpose": columns.transpose,
    "column_sum": columns.column_sum,
    "cumsum": columns.cumsum,
    "topk": sorting.topk,
    "sort_rows": sorting.sort_rows,
    "pipeline_1": lambda: pipeline.build()[0].program,
    "pipeline_2": lambda: pipeline.build()[1].program,
}


def whole(symbols: Mapping[str, int | float]) -> dict[str, int]:
    return {name: value for name, value in symbols.items() if isinstance(value, int)}


def run(case: Case, inputs: Arrays, seed: int | None = None) -> Arrays:
    """The written operands after a run of the reference executor, with all its checks."""
    arguments = {
        o.name: reference.pack(o, inputs[o.name], symbols=case.symbols)
        if o.name in inputs
        else reference.empty(o, case.symbols)
        for o in case.program.arguments
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # overflow in numpy is meant here
        reference.run(case.program, arguments, case.symbols, seed=seed)
    return {
        o.name: reference.unpack(o, arguments[o.name], symbols=case.symbols)
        for o in case.program.arguments
        if o.role is not Role.IN
    }


# --- whole programs


@pytest.mark.parametrize("name", ZOO)
def test_zoo_program_is_valid_and_gives_what_numpy_gives(name: str) -> None:
    case = ZOO[name]()
    verify(case.program, whole(case.symbols))
    for seed in (None, 7):
        inputs = case.make_inputs(np.random.default_rng(3))
        results = run(case, inputs, seed)
        for operand, expected in case.reference(inputs).items():
            assert results[operand].shape == expected.shape
            np.testing.assert_allclose(
                results[operand].astype(np.float64),
                expected.astype(np.float64),
                rtol=case.rtol,
                atol=case.atol,
            )


@pytest.mark.parametrize("size", [1, 2, 29, 95, 96])
def test_symbolic_rows_give_the_right_sum_at_every_size(size: int) -> None:
    case = dataclasses.replace(ZOO["add_symbolic"](), symbols={"rows": size})
    verify(case.program, {"rows": size})
    rng = np.random.default_rng(size)
    x, y = (rng.integers(-9, 9, (size, 70)).astype(np.float16) for _ in range(2))
    np.testing.assert_array_equal(run(case, {"x": x, "y": y})["z"], x + y)


@pytest.mark.parametrize("block", range(10))
def test_random_programs_pass_the_verifier_and_the_checked_executor(block: int) -> None:
    for seed in range(block * 12, block * 12 + 12):
        case = random_program(seed)
        verify(case.program, whole(case.symbols))
        inputs = case.make_inputs(np.random.default_rng(seed))
        run(case, inputs, seed)
        assert random_program(seed).program == case.program, "one seed is one program"


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_of_real_size_is_valid(name: str) -> None:
    program = EXAMPLES[name]()
    report = verify(program, {symbol.name: 5 for symbol in program.symbols})
    assert program.cores == 32
    assert max(report.lx_bytes) <= 2 << 20


def test_p5_multicast_reads_what_the_grid_needs_once() -> None:
    report = verify(matmul.build(512, 4096, 4096, grid=(4, 8)))
    assert report.read_bytes == 37_748_736
    assert report.read_bytes_without_multicast == 167_772_160
    assert report.written_bytes == 4_194_304
    assert report.lx_received_bytes >= 167_772_160


def test_p6_program_size_does_not_grow_with_the_tensor() -> None:
    small, large = (matmul.build(size, size, size) for size in (512, 4096))
    assert len(encode(large)) <= 2 * len(encode(small))
    assert len(to_text(large)) <= 2 * len(to_text(small))
    for build in (add.build, rows.softmax, rows.layernorm, columns.transpose):
        assert len(encode(build(8192, 8192))) <= 2 * len(encode(build(512, 512)))


def test_pipeline_names_the_tensor_between_its_kernels() -> None:
    first, second = pipeline.build(8, 70, 100, grid=(2, 2))
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((8, 70)), rng.standard_normal((70, 100))
    tensors: Arrays = {"x": x.astype(np.float16), "w": w.astype(np.float16)}
    for step in (first, second):
        operands = {o.name: t for o, t in zip(step.program.arguments, step.arguments, strict=True)}
        inputs = {o: tensors[t] for o, t in operands.items() if t in tensors}
        results = run(Case(step.program, lambda _: {}, lambda _: {}), inputs)
        tensors |= {operands[o]: value for o, value in results.items()}
    expected = pipeline.reference(tensors["x"], tensors["w"])
    np.testing.assert_allclose(tensors["probabilities"], expected, rtol=0.1, atol=1e-4)


def test_k_split_refuses_more_parts_than_sticks() -> None:
    with pytest.raises(ProgramError, match="k = 100 is 2 sticks, too few for 3 parts"):
        ksplit.build(4, 100, 64, grid=(1, 3))


# --- the builder


@given(total=st.integers(1, 500), parts=st.integers(1, 32), unit=st.sampled_from([1, 16, 64]))
def test_split_gives_every_index_to_one_core_in_shares_that_differ_by_a_unit(
    total: int, parts: int, unit: int
) -> None:
    b = ProgramBuilder("split", {"part": parts})
    b.split("mine", total, "part", unit=unit)
    instance = Instance(b.build())
    shares = [(v["mine_start"], v["mine_size"]) for v in instance.core_values]
    end = 0
    for begin, size in shares:
        assert begin == end and size >= 0
        assert size == 0 or begin % unit == 0
        end = begin + size
    assert end == total
    units = [-(-size // unit) for _, size in shares]
    assert max(units) - min(units) <= 1 and sorted(units, reverse=True) == units


@settings(deadline=None)
@given(data=st.data())
def test_strides_and_addresses_are_those_of_the_layout(data: st.DataObject) -> None:
    """The builder's expressions against `concrete.operand_layout`, sizes constant and symbolic."""
    rank = data.draw(st.integers(1, 4))
    shape = [data.draw(st.integers(1, 200)) for _ in range(rank)]
    order = data.draw(st.permutations(range(rank)))
    if data.draw(st.booleans()) and rank < 4:
        order = [*order, -1]
    dtype = data.draw(st.sampled_from(["float16", "float32", "int8", "int64"]))
    b = ProgramBuilder("strides", {"c": 1})
    sizes: list[Const | Var] = [Const(size) for size in shape]
    symbols: dict[str, int] = {}
    if data.draw(st.booleans()):
        sizes[0] = Var("height")
        symbols["height"] = shape[0]
        b._symbols.append(Symbol("height", SymbolKind.DIMENSION, 0, 0))
    x = b.input("x", sizes, dtype, order=order)
    program = b.build()
    layout = operand_layout(program.operands[0], symbols)
    assert tuple(stride.evaluate(symbols) for stride in x.strides) == layout.strides
    assert x.stick == layout.stick

    eps = x.format.elements_per_stick
    starts = [data.draw(st.integers(0, size - 1)) for size in shape]
    if x.stick >= 0:
        starts[x.stick] = starts[x.stick] // eps * eps
    labels = tuple(f"d{i}" for i in range(rank))
    tile = b.lx("tile", x, [1] * rank)
    with b.queue("load"):
        over = {label: (start, 1) for label, start in zip(labels, starts, strict=True)}
        b.load(over, x[labels], tile[labels])
    instance = Instance(b.build(), symbols)
    task = next(iter(instance.walk(0, Unit.LOAD)))
    source = task.instruction.source  # type: ignore[union-attr]
    assert instance.tile(task, source).address == layout.address(starts)


def test_stick_offsets_hold_no_needless_division() -> None:
    b = ProgramBuilder("offsets", {"c": 1})
    x = b.input("x", (64, 4096), "float16")
    tile = b.lx("tile", x, (64, 128))
    with b.queue("load"), b.tiles("i", 4096, 128) as c:
        b.load({"r": 64, "c": c}, x["r", "c"], tile["r", "c"])
    text = to_text(b.build())
    assert "offset i * 2 * 8192" in text and "//" not in text


def test_boxes_number_their_tiles_in_order() -> None:
    b = ProgramBuilder("boxes", {"c": 3})
    mine = b.split("mine", 10, "c")
    token = b.token("t", 100)
    boxes = b.boxes(r=(mine, 2), q=5, s=(70, 32))
    with b.queue("sfu"), boxes() as (over, turn):
        b.signal(token, turn)
    assert over["q"].size == Const(5)
    instance = Instance(b.build())
    for core in range(3):
        turns = [
            task.number(task.instruction.index)
            for task in instance.walk(core, Unit.SFU)
            if isinstance(task.instruction, Signal)
        ]
        assert turns == list(range(len(turns))) and len(turns) == 2 * 3


def test_stream_waits_for_every_user_and_tells_every_user() -> None:
    b = ProgramBuilder("stream", {"c": 1})
    x = b.input("x", (8, 64), "float16")
    xs = b.stream("xs", x, (8, 64), users=["sfu", "store"], slots=3)
    with b.queue("load"), b.loop("i", 5) as i, xs.fill(i) as tile:
        pass
    assert tile.slot == Var("i") % 3
    program = b.build()
    assert {(t.name, t.count, t.initial) for t in program.tokens} == {
        ("xs_free_sfu", 3, 1),
        ("xs_full_sfu", 3, 0),
        ("xs_free_store", 3, 1),
        ("xs_full_store", 3, 0),
    }
    (loop,) = program.queues[Unit.LOAD]
    assert isinstance(loop, Loop)
    assert [type(instruction) for instruction in loop.body] == [Wait, Wait, Signal, Signal]
    with b.queue("ring"), pytest.raises(ProgramError, match="queue ring is not among its users"):
        xs.use().__enter__()


def test_lx_buffers_follow_one_another_and_must_fit() -> None:
    b = ProgramBuilder("lx", {"c": 1})
    x = b.input("x", (4096, 4096), "float16")
    b.lx("small", x, (3, 65))
    b.lx("sums", b.value("v", (9,)), (9,), lanes=True, slots=2)
    b.lx("sparse", b.value("w", (9,)), (9,), stick=None)
    assert [(p.base, p.slot_bytes, p.slots) for p in b.build().buffers] == [
        (0, 3 * 2 * 128, 1),
        (768, 9 * 256, 2),
        (768 + 2 * 2304, 9 * 128, 1),
    ]
    with pytest.raises(ProgramError, match="LX has 2097152 bytes, the buffers need 33560960"):
        b.lx("large", x, (4096, 4096))


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda b, x, t: b.load({"r": 1}, x["r", 0], t["r", 0]), "no queue is open"),
        (lambda b, x, t: b.split("s", 4, "nothing"), "the grid has no digit 'nothing'"),
        (lambda b, x, t: b.lx("x", x, (1, 1)), "the name 'x' is taken"),
        (lambda b, x, t: b.lx("u", x, (1,)), r"sizes \(1,\) for x, rank 2"),
        (lambda b, x, t: b.lx("1st", x, (1, 1)), "is no identifier"),
        (lambda b, x, t: x["r"], "1 indices for 2 dims"),
        (lambda b, x, t: t["r", 1.5], "is no label, index or"),
        (lambda b, x, t: b.const("c", (64,), "float16", b"123"), "128 bytes, 3 were given"),
    ],
)
def test_mistake_is_refused_with_the_place(
    mistake: Callable[[object, object, object], object], message: str
) -> None:
    b = ProgramBuilder("mistakes", {"c": 1})
    x = b.input("x", (8, 64), "float16")
    tile = b.lx("tile", x, (8, 64))
    with pytest.raises(ProgramError, match=message):
        mistake(b, x, tile)


def test_instruction_in_the_wrong_queue_is_refused() -> None:
    b = ProgramBuilder("queues", {"c": 1})
    x = b.input("x", (8, 64), "float16")
    tile = b.lx("tile", x, (8, 64))
    with b.queue("pt"), pytest.raises(ProgramError, match="belongs to queue load, not pt"):
        b.load({"r": 8, "c": 64}, x["r", "c"], tile["r", "c"])
    with b.queue("sfu"), pytest.raises(ProgramError, match="has no label 'q'"):
        b.map({"r": 8}, tile["r", "q"], body.identity, tile["r", "q"])
    with (
        b.queue("sfu"),
        pytest.raises(ProgramError, match="queue sfu is still open"),
        b.queue("pt"),
    ):
        pass


def test_a_grid_digit_may_not_be_called_core() -> None:
    with pytest.raises(ProgramError, match="the name 'core' is taken; give the grid digit another"):
        ProgramBuilder("grid", {"core": 4})
    with pytest.raises(ProgramError, match="the grid digit name '2d' is no identifier"):
        ProgramBuilder("grid", {"2d": 4})


def test_grid_must_fit_the_cores() -> None:
    with pytest.raises(ProgramError, match="has 6 cores, not 8"):
        ProgramBuilder("grid", {"m": 2, "n": 3}, cores=8)
    with pytest.raises(ProgramError, match="33 cores do not fit a card of 32"):
        ProgramBuilder("grid", {"m": 33})


# --- bodies

HALF, SINGLE, INT = Format.SEN169_FP16, Format.IEEE_FP32, Format.IEEE_INT32


def test_body_notes_equal_operations_once_and_gives_constants_a_type() -> None:
    made = trace(lambda x, y: (x * x + 1, x * x - y, body.cast(x, "i") + 1), [HALF, SINGLE])
    assert [node.op for node in made.nodes].count("mul") == 1
    constants = {(node.type, node.immediate) for node in made.nodes if node.op == "const"}
    assert constants == {("f", 1.0), ("i", 1)}
    assert len(made.results) == 3


def test_body_constant_is_the_nearest_float32() -> None:
    made = trace(lambda x: x + 0.1, [SINGLE])
    assert made.nodes[1].immediate == float(np.float32(0.1))


def test_zeros_of_both_signs_are_two_constants() -> None:
    made = trace(lambda x: body.copysign(x + 0.0, -0.0), [SINGLE])
    assert [str(node.immediate) for node in made.nodes if node.op == "const"] == ["0.0", "-0.0"]


def _mixed(x: Reg, y: Reg) -> Reg:
    return x + y


@pytest.mark.parametrize(
    ("function", "formats", "message"),
    [
        (_mixed, [HALF, INT], "add: an operand is of type 'i' and must be 'f'"),
        (lambda x: body.exp(x), [INT], "exp exists for register types f, not 'i'"),
        (lambda x: x + 0.5, [INT], "the constant 0.5 meets an integer register"),
        (lambda x: x, [Format.HOST_8], "HOST_8 is a host format"),
        (lambda x: body.minimum(1, 2), [HALF], "min needs a register among its operands"),
    ],
)
def test_body_that_cannot_be_is_refused(
    function: Callable[..., Reg], formats: list[Format], message: str
) -> None:
    with pytest.raises(BodyError, match=message):
        trace(function, formats)


def test_reduce_takes_a_body_and_a_combine() -> None:
    b = ProgramBuilder("reduce", {"c": 1})
    x = b.input("x", (8, 64), "float16")
    tile = b.lx("tile", x, (8, 64))
    total = b.lx("total", b.value("v", (8,), reduced=(64,)), (8,), lanes=True)
    with b.queue("sfu"):
        b.reduce({"r": 8, "c": 64}, Combine.SUM, total["r"], lambda v: v * v, tile["r", "c"])
    (instruction,) = b.build().queues[Unit.SFU]
    assert instruction.body == trace(lambda v: v * v, [HALF])  # type: ignore[union-attr]
    assert instruction.outputs[0].lanes  # type: ignore[union-attr]


def test_the_page_on_programs_by_hand_shows_what_the_builder_makes() -> None:
    page = (Path(__file__).parent.parent / "docs" / "programs_by_hand.md").read_text()
    shown = page.split("```text\n")[1].split("```")[0]
    assert shown == to_text(add.build(37, 150, cores=4, tile=(4, 128)))
    source = (Path(__file__).parent.parent / "examples" / "programs" / "add.py").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    for line in code.splitlines():
        assert line.strip() in source
