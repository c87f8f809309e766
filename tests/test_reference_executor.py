"""What the reference executor does around the kinds: transfers, tokens, and the faults it names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from program_zoo import ZOO
from reference_programs import Arrays, Given, Tiles, buffers, build, compute, given, results, same

from openspyre import reference
from openspyre.formats import Format, Numerics
from openspyre.program import Program, ProgramBuilder
from openspyre.program import body as f
from openspyre.program.concrete import Task
from openspyre.program.expr import Const, Expr, Var, binary
from openspyre.program.model import Buffer, Compute, Load, Loop, Ring, Signal, Store, Unit, Wait
from openspyre.program.ops import Combine
from openspyre.reference import FaultKind, ReferenceFault

F32 = np.float32
NUMERICS = Numerics()


def run(
    program: Program, values: dict[str, np.ndarray], **options: object
) -> dict[str, np.ndarray]:
    """Runs with packed values and gives what was written."""
    data = buffers(program, values, NUMERICS)
    reference.run(program, data, **options)  # type: ignore[arg-type]
    return results(program, data, NUMERICS)


def fault(program: Program, values: Arrays, **options: object) -> ReferenceFault:
    with pytest.raises(ReferenceFault) as caught:
        run(program, values, **options)
    return caught.value


def double(rows: int = 4, cols: int = 70) -> Program:
    """y = 2 x on one core."""

    def work(b: ProgramBuilder, t: Tiles) -> None:
        b.map({"m": rows, "n": cols}, t["y"]["m", "n"], lambda r: r + r, t["x"]["m", "n"])

    return build(work, {"x": Given((rows, cols))}, {"y": Given((rows, cols))})


def rows(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=F32).reshape(shape)


def without(program: Program, unit: Unit, kind: type) -> Program:
    """The program with the first instruction of a type taken out of a queue."""
    queue = list(program.queues[unit])
    queue.remove(next(one for one in queue if isinstance(one, kind)))
    return replace(program, queues={**program.queues, unit: tuple(queue)})


def edited(program: Program, unit: Unit, edit: Callable[[object], object]) -> Program:
    """The program with every instruction of a queue's top level passed through `edit`."""
    queue = tuple(edit(one) for one in program.queues[unit])
    return replace(program, queues={**program.queues, unit: queue})  # type: ignore[dict-item]


# --- whole programs


@pytest.mark.parametrize("name", ZOO)
def test_the_zoo_gives_its_reference_in_every_legal_order(name: str) -> None:
    case = ZOO[name]()
    inputs = case.make_inputs(np.random.default_rng(3))
    symbols = dict(case.symbols)
    first: dict[str, np.ndarray] | None = None
    for seed, check in ((None, True), (None, False), (1, True), (2, True)):
        data = buffers(case.program, inputs, NUMERICS, symbols)
        reference.run(case.program, data, symbols, NUMERICS, seed=seed, check=check)
        got = results(case.program, data, NUMERICS, symbols)
        for output, want in case.reference(inputs).items():
            wide = np.asarray(want).astype(np.float64)
            np.testing.assert_allclose(
                got[output].astype(np.float64), wide, rtol=case.rtol, atol=case.atol
            )
        first = first or got
        for output, values in got.items():
            np.testing.assert_array_equal(values, first[output])


def test_counts_bytes_high_water_and_trace() -> None:
    seen: list[Task] = []
    data = buffers(double(), {"x": rows(4, 70)}, NUMERICS)
    outcome = reference.run(double(), data, trace=seen.append)
    sticks = 4 * 3  # 70 float32 are three sticks
    assert outcome.counts.bytes_read == outcome.counts.bytes_written == sticks * 128
    assert outcome.counts.kinds == {"load": 1, "map": 1, "store": 1}
    assert outcome.counts.tasks == 7
    assert outcome.lx_high == (2 * sticks * 128,)
    assert [task.unit for task in seen] == [Unit.LOAD, Unit.SFU, Unit.STORE]


def test_inputs_are_not_changed_and_pads_of_outputs_do_not_matter() -> None:
    program = double()
    data = buffers(program, {"x": rows(4, 70)}, NUMERICS)
    before = data["x"].copy()
    reference.run(program, data)
    np.testing.assert_array_equal(data["x"], before)
    valid = reference.defined_bytes(program.arguments[1])
    assert valid.sum() == 4 * 70 * 4
    assert len(valid) == len(data["y"]) == 4 * 3 * 128


def test_zero_sized_tasks_do_nothing() -> None:
    def work(b: ProgramBuilder, t: Tiles) -> None:
        b.map({"m": 4, "n": 70}, t["y"]["m", "n"], f.identity, t["x"]["m", "n"])
        b.map({"m": 0, "n": 70}, t["y"]["m", "n"], lambda r: r * 0, t["x"]["m", "n"])

    x = rows(4, 70)
    same(compute(work, {"x": given(x)}, {"y": Given((4, 70))})["y"], x)


def test_const_and_scratch_operands_and_shared_scratch_bytes() -> None:
    b = ProgramBuilder("scratch", {"c": 1})
    table = np.arange(64, dtype=np.int32)
    c = b.const("c", (64,), "int32", table.tobytes())
    s = b.scratch("s", (64,), "int32")
    y = b.output("y", (64,), "int32")
    first, second = b.lx("first", c, (64,)), b.lx("second", s, (64,))
    for token in ("loaded", "stored", "back"):
        b.token(token)
    with b.queue("load"):
        b.load({"n": 64}, c["n"], first["n"])
        b.signal("loaded")
        b.wait("stored")
        b.load({"n": 64}, s["n"], second["n"])
        b.signal("back")
    with b.queue("store"):
        b.wait("loaded")
        b.store({"n": 64}, first["n"], s["n"])
        b.signal("stored")
        b.wait("back")
        b.store({"n": 64}, second["n"], y["n"])
    program = b.build()
    assert run(program, {})["y"].tolist() == table.tolist()
    unordered = without(without(program, Unit.STORE, Signal), Unit.LOAD, Wait)
    error = fault(unordered, {}, seed=0)
    assert error.kind in (FaultKind.HAZARD, FaultKind.UNWRITTEN)
    assert "dynamic region" in str(error)


def test_a_slice_of_a_larger_tensor_is_an_operand() -> None:
    b = ProgramBuilder("slice", {"c": 1})
    x = b.input("x", (2, 64), "float32", within=(8, 128))
    y = b.output("y", (2, 64), "float32")
    t = b.lx("t", x, (2, 64))
    b.token("full")
    with b.queue("load"):
        b.load({"m": 2, "n": 64}, x["m", "n"], t["m", "n"])
        b.signal("full")
    with b.queue("store"):
        b.wait("full")
        b.store({"m": 2, "n": 64}, t["m", "n"], y["m", "n"])
    program = b.build()
    x_operand = program.arguments[0]
    packed = reference.pack(x_operand, rows(2, 64))
    assert len(packed) == (8 + 2) * 128  # two rows of stick 0, the rest of the 8, two of stick 1
    same(run(program, {"x": rows(2, 64)})["y"], rows(2, 64))


# --- transfers


def indexed(
    ids: np.ndarray, *, store: bool, add: bool = False, limit: int = 9, window: tuple[int, int]
) -> Program:
    """LOAD or STORE of rows of a [9, 70] table by index."""
    b = ProgramBuilder("indexed", {"c": 1})
    n = len(ids)
    i = b.input("ids", (n,), "int32")
    ids_lx = b.lx("ids_lx", i, (n,))
    b.token("full")
    over = {"i": n, "n": 70}
    if store:
        x = b.input("x", (n, 70), "float16")
        table = b.inout("table", (9, 70), "float16")
    else:
        table = b.input("table", (9, 70), "float16")
        x = b.output("x", (n, 70), "float16")
    tile = b.lx("tile", x, (n, 70))
    with b.queue("load"):
        b.load({"i": n}, i["i"], ids_lx["i"])
        if store:
            b.load(over, x["i", "n"], tile["i", "n"])
        else:
            by = ("i", ids_lx["i"], limit)
            b.load(over, table["i", "n"], tile["i", "n"], gather=by)
        b.signal("full")
    with b.queue("store"):
        b.wait("full")
        if store:
            by = ("i", ids_lx["i"], limit)
            b.store(over, tile["i", "n"], table["i", "n"], scatter=by, window=window, add=add)
        else:
            b.store(over, tile["i", "n"], x["i", "n"])
    return b.build()


def test_load_by_index() -> None:
    ids = np.array([8, 0, 3, 3, 7], dtype=np.int32)
    table = rows(9, 70).astype(np.float16)
    got = run(indexed(ids, store=False, window=(0, 9)), {"ids": ids, "table": table})["x"]
    stored = reference.unpack(
        indexed(ids, store=False, window=(0, 9)).arguments[1],
        reference.pack(indexed(ids, store=False, window=(0, 9)).arguments[1], table),
    )
    same(got, stored[ids])


@pytest.mark.parametrize("add", [False, True])
def test_store_by_index_keeps_to_its_window(add: bool) -> None:
    ids = np.array([8, 2, 3, 3, 7, 3, 2], dtype=np.int32)
    program = indexed(ids, store=True, add=add, window=(2, 6))
    x = np.random.default_rng(1).integers(-40, 40, (7, 70)).astype(F32) / 8
    table = np.ones((9, 70), dtype=F32)
    got = run(program, {"ids": ids, "x": x, "table": table})["table"]
    want = table.copy()
    for i, row in enumerate(ids):
        if 2 <= row < 8:
            want[row] = want[row] + x[i] if add else x[i]
    same(got, want)


@pytest.mark.parametrize("bad", [-1, 9])
@pytest.mark.parametrize("store", [False, True])
def test_an_index_outside_its_limit_is_a_fault(bad: int, store: bool) -> None:
    ids = np.array([0, bad, 1], dtype=np.int32)
    values = {"ids": ids, "x": rows(3, 70), "table": rows(9, 70)}
    error = fault(indexed(ids, store=store, window=(0, 9)), values)
    assert error.kind is FaultKind.INDEX
    assert f"index {bad}" in str(error)
    assert "0..8" in str(error)


def ring(combine: Combine | None, cores: int = 3) -> Program:
    """Every core loads row c; core 0 gathers or combines the rows of all."""
    b = ProgramBuilder("ring", {"c": cores})
    x = b.input("x", (cores, 70), "float32")
    y = b.output("y", (1 if combine else cores, 70), "float32")
    mine = b.lx("mine", x, (1, 70))
    all_ = b.lx("all", y, (1 if combine else cores, 70))
    b.token("there", cores)
    b.token("done")
    with b.queue("load"):
        b.load({"m": ("c", 1), "n": 70}, x["m", "n"], mine["m", "n"])
        b.signal("there", "c", core=0)
    with b.queue("ring"), b.when(binary("==", "c", 0)):
        with b.loop("i", cores) as i:
            b.wait("there", i)
        step = Const(0) if combine else Var("from_")
        target = all_.part(step, 0)
        b.ring(
            {"m": (step, 1), "n": 70},
            mine["m", "n"],
            target["m", "n"],
            core=Var("from_"),
            count=cores,
            combine=combine,
        )
        b.signal("done")
    with b.queue("store"), b.when(binary("==", "c", 0)):
        b.wait("done")
        b.store({"m": 1 if combine else cores, "n": 70}, all_["m", "n"], y["m", "n"])
    return b.build()


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_n8_a_ring_adds_in_the_order_of_its_variable(seed: int | None) -> None:
    x = (np.random.default_rng(2).standard_normal((3, 70)) * 1e3).astype(F32)
    x[0], x[1], x[2] = 1e8, x[1], -1e8
    got = run(ring(Combine.SUM), {"x": x}, seed=seed)["y"]
    same(got, (x[0] + x[1] + x[2])[None])
    assert (got[0] != x[0] + x[2] + x[1]).any()
    got = run(ring(Combine.MAX), {"x": x}, seed=seed)["y"]
    same(got, x.max(axis=0)[None])


def test_a_ring_gathers_into_places_of_its_variable() -> None:
    x = rows(3, 70)
    same(run(ring(None), {"x": x})["y"], x)


# --- what a run notices


def test_poison_beyond_the_valid_extent_is_never_read() -> None:
    """A MAP over more columns than were loaded reads what holds nothing."""

    def work(b: ProgramBuilder, t: Tiles) -> None:
        b.map({"m": 4, "n": 72}, t["y"]["m", "n"], f.identity, t["x"]["m", "n"])

    program = build(work, {"x": Given((4, 70))}, {"y": Given((4, 70))})
    error = fault(program, {"x": rows(4, 70)})
    assert error.kind is FaultKind.UNWRITTEN
    assert "sfu[1] compute on core 0" in str(error)
    assert "the tile of x" in str(error)
    assert "8 of 288 elements" in str(error)
    # Without checks the run does what the program says.
    same(run(program, {"x": rows(4, 70)}, check=False)["y"], rows(4, 70))


def test_a_read_of_lx_that_nobody_wrote_is_a_fault() -> None:
    error = fault(without(double(), Unit.LOAD, Load), {"x": rows(4, 70)})
    assert error.kind is FaultKind.UNWRITTEN
    assert "the LX of core 0" in str(error)


def test_a_stick_pad_that_a_load_brought_along_counts_as_nothing() -> None:
    """The operand's next elements lie in the same stick: they came by accident."""

    def shorter(one: object) -> object:
        if isinstance(one, Load):
            over = (one.over[0], replace(one.over[1], size=Const(50)))
            return replace(one, over=over)
        return one

    error = fault(edited(double(), Unit.LOAD, shorter), {"x": rows(4, 70)})
    assert error.kind is FaultKind.UNWRITTEN


def test_an_output_element_that_nothing_stored_is_a_fault() -> None:
    def shorter(one: object) -> object:
        if isinstance(one, Store):
            return replace(one, over=(replace(one.over[0], size=Const(3)), one.over[1]))
        return one

    error = fault(edited(double(), Unit.STORE, shorter), {"x": rows(4, 70)})
    assert error.kind is FaultKind.UNWRITTEN
    assert "output y: 70 of 280 elements were never stored, the first at (3, 0)" in str(error)


def test_a_missing_signal_is_a_deadlock_with_names() -> None:
    for seed in (None, 1):
        error = fault(without(double(), Unit.LOAD, Signal), {"x": rows(4, 70)}, seed=seed)
        assert error.kind is FaultKind.DEADLOCK
        assert "sfu[0] wait on core 0" in str(error)
        assert "ready[0]" in str(error)
        assert "never signalled" in str(error)


@pytest.mark.parametrize("unit", [Unit.SFU, Unit.STORE])
@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_a_missing_wait_is_a_hazard_in_every_order(unit: Unit, seed: int | None) -> None:
    program = without(double(), unit, Wait)
    error = fault(program, {"x": rows(4, 70)}, seed=seed)
    assert error.kind in (FaultKind.HAZARD, FaultKind.UNWRITTEN)
    assert "core 0" in str(error)


def test_a_slot_that_is_filled_too_early_is_a_hazard() -> None:
    case = ZOO["add"]()

    def waits_dropped(one: object) -> object:
        if isinstance(one, Loop):
            kept = [waits_dropped(inner) for inner in one.body if not isinstance(inner, Wait)]
            return replace(one, body=tuple(kept))  # type: ignore[arg-type]
        return one

    program = edited(case.program, Unit.LOAD, waits_dropped)
    inputs = case.make_inputs(np.random.default_rng(1))
    for seed in (None, 0, 1, 2):
        error = fault(program, inputs, seed=seed)
        assert error.kind is FaultKind.HAZARD
        assert "may still be" in str(error)
        assert "c_step=" in str(error)


def test_a_semaphore_that_does_not_return_is_a_fault() -> None:
    extra = replace(
        double(), queues={**double().queues, Unit.RING: (Signal("ready"), Wait("ready"))}
    )
    assert fault(extra, {"x": rows(4, 70)}).kind is FaultKind.TOKEN
    left = replace(double(), queues={**double().queues, Unit.RING: (Signal("done"),)})
    assert fault(left, {"x": rows(4, 70)}).kind is FaultKind.TOKEN
    same(run(left, {"x": rows(4, 70)}, check=False)["y"], rows(4, 70) * 2)


@pytest.mark.parametrize("check", [True, False])
def test_addresses_are_held_to_lx_and_operands(check: bool) -> None:
    def moved(offset: int, which: str) -> Callable[[object], object]:
        def edit(one: object) -> object:
            if not isinstance(one, Load):
                return one
            access = getattr(one, which)
            return replace(one, **{which: replace(access, offset=Const(offset))})

        return edit

    for offset, which, text in [
        (128, "source", "operand x, which has 1536"),
        (-128, "source", "bytes -128.."),
        (2 << 20, "target", "the LX of core 0, which has 2097152"),
        (64, "target", "no multiple of 128"),
    ]:
        program = edited(double(), Unit.LOAD, moved(offset, which))
        error = fault(program, {"x": rows(4, 70)}, check=check)
        assert error.kind is FaultKind.ADDRESS
        assert text in str(error)
        assert "load[0] load on core 0" in str(error)


def test_slots_and_cores_that_are_not_there() -> None:
    def slot(one: object) -> object:
        if isinstance(one, Load):
            return replace(one, target=replace(one.target, slot=Const(1)))
        return one

    error = fault(edited(double(), Unit.LOAD, slot), {"x": rows(4, 70)})
    assert error.kind is FaultKind.INDEX
    assert "slots 0..0, not 1" in str(error)

    def further(one: object) -> object:
        if isinstance(one, Loop):
            inside = [further(inner) for inner in one.body]
            return replace(one, body=tuple(inside))  # type: ignore[arg-type]
        return replace(one, core=one.core + 1) if isinstance(one, Ring) else one

    error = fault(edited(ring(None), Unit.RING, further), {"x": rows(3, 70)})
    assert error.kind is FaultKind.INDEX
    assert "core 3 of 3" in str(error)


def test_numbers_that_do_not_fit_are_named() -> None:
    def grown(offset: Expr) -> Callable[[object], object]:
        def edit(one: object) -> object:
            if isinstance(one, Load):
                return replace(one, source=replace(one.source, offset=offset))
            return one

        return edit

    for offset, text in [
        (Var("core") + 2**62 + (Var("core") + 2**62), "does not fit in 64 bits"),
        (binary("//", 128, "core"), "the divisor is 0"),
    ]:
        error = fault(edited(double(), Unit.LOAD, grown(offset)), {"x": rows(4, 70)})
        assert error.kind is FaultKind.NUMBER
        assert text in str(error)

    def negative(one: object) -> object:
        if isinstance(one, Compute):
            return replace(one, over=(replace(one.over[0], size=Const(-1)), one.over[1]))
        return one

    error = fault(edited(double(), Unit.SFU, negative), {"x": rows(4, 70)})
    assert error.kind is FaultKind.NUMBER
    assert "label m has size -1" in str(error)


def test_endless_programs_are_stopped() -> None:
    endless = Loop("i", Const(2**60), (Signal("ready"), Wait("ready")))
    program = replace(double(), queues={Unit.RING: (endless,)})
    error = fault(program, {"x": rows(4, 70)}, max_tasks=1000)
    assert error.kind is FaultKind.STOPPED


def test_operands_and_symbols_must_be_given() -> None:
    with pytest.raises(ReferenceFault, match="operand x was not given") as caught:
        reference.run(double(), {})
    assert caught.value.kind is FaultKind.UNPATCHED
    case = ZOO["add_symbolic"]()
    with pytest.raises(ReferenceFault, match="was given no value") as caught:
        reference.run(case.program, {})
    assert caught.value.kind is FaultKind.UNPATCHED
    with pytest.raises(ValueError, match="flat uint8"):
        reference.run(double(), {"x": rows(4, 70), "y": rows(4, 70)})


def test_a_thread_that_flushes_subnormals_is_refused() -> None:
    import torch

    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot")
    try:
        with pytest.raises(RuntimeError, match="flushes subnormal"):
            run(double(), {"x": rows(4, 70)})
    finally:
        torch.set_flush_denormal(False)


def test_stores_into_inputs_are_refused() -> None:
    def into_input(one: object) -> object:
        if isinstance(one, Store):
            return replace(one, target=replace(one.target, place="x"))
        return one

    error = fault(edited(double(), Unit.STORE, into_input), {"x": rows(4, 70)})
    assert error.kind is FaultKind.PROGRAM
    assert "whose role is in" in str(error)


def test_overlapping_buffers_are_a_matter_of_time() -> None:
    """y in the place of x: good as long as the MAP works in place, else its reads are late."""
    program = double()
    x, y = program.buffers
    over = replace(program, buffers=(x, Buffer(y.name, x.base, y.slot_bytes, y.slots)))
    same(run(over, {"x": rows(4, 70)})["y"], rows(4, 70) * 2)


# --- packing


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("float16", np.array([[1.5, -0.0, 65504.0], [np.inf, -2.0, 6e-8]], dtype=np.float16)),
        ("bfloat16", np.array([[1.5, -0.0, 3e38], [np.inf, -2.0, 1e-30]], dtype=F32)),
        ("float32", np.array([[1.1, -0.0, 3e38], [np.inf, -2.0, 1e-30]], dtype=F32)),
        ("bool", np.array([[True, False, True], [False, False, True]])),
        ("int8", np.array([[1, -128, 127], [0, 5, -5]], dtype=np.int8)),
        ("int64", np.array([[1, -(2**63), 2**63 - 1], [0, 5, -5]], dtype=np.int64)),
    ],
)
@pytest.mark.parametrize("order", [None, (1, 0), (0, 1, -1)])
def test_packed_codes_are_those_of_the_formats_module(
    dtype: str, values: np.ndarray, order: tuple[int, ...] | None
) -> None:
    from openspyre import formats

    b = ProgramBuilder("pack", {"c": 1})
    b.input("x", (2, 3), dtype, order=order)
    operand = b.build().operands[0]
    packed = reference.pack(operand, values)
    host = formats.host_type(dtype)
    raw = values.astype(F32).view(np.uint32) if dtype == "bfloat16" else values
    data = (raw >> 16).astype(np.uint16).tobytes() if dtype == "bfloat16" else raw.tobytes()
    if dtype == "bfloat16":  # rounded to nearest even, as torch would
        import torch

        data = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().tobytes()
    codes = formats.encode(host, operand.format, data)
    assert reference.unpack_codes(operand, packed).tobytes() == codes
    if dtype not in ("float16", "bfloat16"):
        same(reference.unpack(operand, packed), values)


def test_host_formats_move_as_bytes() -> None:
    for dtype, values in [
        ("float64", np.random.default_rng(1).standard_normal((3, 20))),
        ("complex128", np.random.default_rng(2).standard_normal((3, 20)) * (1 + 2j)),
    ]:
        b = ProgramBuilder("copy", {"c": 1})
        x, y = b.input("x", (3, 20), dtype), b.output("y", (3, 20), dtype)
        t = b.lx("t", x, (3, 20))
        b.token("full")
        with b.queue("load"):
            b.load({"m": 3, "n": 20}, x["m", "n"], t["m", "n"])
            b.signal("full")
        with b.queue("store"):
            b.wait("full")
            b.store({"m": 3, "n": 20}, t["m", "n"], y["m", "n"])
        program = b.build()
        data = buffers(program, {"x": values}, NUMERICS)
        reference.run(program, data)
        codes = reference.unpack_codes(program.arguments[1], data["y"])
        assert codes.tobytes() == values.tobytes()


def test_shapes_must_fit() -> None:
    operand = double().arguments[0]
    with pytest.raises(ValueError, match=r"has shape \(4, 70\)"):
        reference.pack(operand, rows(4, 71))
    assert operand.format is Format.IEEE_FP32
