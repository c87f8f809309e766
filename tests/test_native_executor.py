"""The native machine against the reference executor, byte for byte; its faults by name.

One image, one set of device bytes, two executors that share no code but the functions of the SFU.
What lies in pads is don't-care: only the elements of what a program writes are compared.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch  # noqa: F401  the extension needs it loaded
from program_zoo import ZOO, Case
from random_programs import random_program

from openspyre import _C, reference
from openspyre.formats import Format, Mode, Numerics, TieRule
from openspyre.program import Program, ProgramBuilder
from openspyre.program.binary import encode
from openspyre.program.concrete import Instance
from openspyre.program.expr import Const, Expr, binary
from openspyre.program.model import (
    Access,
    Body,
    Compute,
    Instruction,
    Label,
    Load,
    Loop,
    Node,
    Role,
    SymbolKind,
    Unit,
    Wait,
)
from openspyre.program.ops import BODY_OP, BODY_OPS, Kind
from openspyre.reference import ReferenceFault

DATA = Path(__file__).parent / "data"
RANDOM_PROGRAMS = 500
CHUNKS = 20

Bytes = dict[str, np.ndarray]


def isas() -> list[str]:
    """The instruction sets of this processor."""
    found, before = [], _C.isa()
    for name in ("portable", "avx2", "avx512"):
        try:
            _C.set_isa(name)
        except ValueError:
            continue
        found.append(name)
    _C.set_isa(before)
    return found


@pytest.fixture
def each_isa() -> Iterator[list[str]]:
    """The instruction sets; the chosen one is restored."""
    before = _C.isa()
    yield isas()
    _C.set_isa(before)


# --- running one case on both


@dataclass
class Setting:
    """A program with the device bytes of its operands as they are before a launch."""

    program: Program
    symbols: Mapping[str, int | float]
    start: Bytes
    numerics: Numerics

    @property
    def words(self) -> list[int]:
        """The symbols as the machine takes them."""
        out = []
        for symbol in self.program.symbols:
            value = self.symbols[symbol.name]
            if symbol.kind is SymbolKind.FLOAT:
                out.append(struct.unpack("<i", struct.pack("<f", value))[0])
            else:
                out.append(int(value))
        return out

    def buffers(self) -> Bytes:
        return {name: data.copy() for name, data in self.start.items()}

    def written(self, data: Bytes) -> Bytes:
        """The elements' bytes of what the program writes."""
        return {
            o.name: data[o.name][: len(mask)][mask]
            for o in self.program.operands
            if o.role in (Role.OUT, Role.INOUT)
            for mask in [reference.defined_bytes(o, self.symbols)]
        }


def setting_of(case: Case, seed: int = 0, numerics: Numerics | None = None) -> Setting:
    settings = numerics or Numerics()
    inputs = case.make_inputs(np.random.default_rng(seed))
    start = {
        o.name: reference.pack(o, inputs[o.name], settings, case.symbols)
        if o.name in inputs
        else reference.empty(o, case.symbols)
        for o in case.program.operands
        if o.role in (Role.IN, Role.OUT, Role.INOUT)
    }
    return Setting(case.program, case.symbols, start, settings)


def on_reference(setting: Setting, **options: Any) -> Bytes:
    data = setting.buffers()
    reference.run(setting.program, data, setting.symbols, setting.numerics, **options)
    return setting.written(data)


def scratch_of(setting: Setting) -> Bytes:
    """Windows of one dynamic region, filled with NaN: SCRATCH operands may share bytes."""
    whole = {k: v for k, v in setting.symbols.items() if isinstance(v, int)}
    sizes = Instance(setting.program, whole).operands
    operands = [o for o in setting.program.operands if o.role is Role.SCRATCH]
    end = max((o.offset + sizes[o.name].nbytes for o in operands), default=0)
    region = np.full(end, 0x7F, dtype=np.uint8)
    return {o.name: region[o.offset : o.offset + sizes[o.name].nbytes] for o in operands}


def on_machine(
    setting: Setting,
    native: _C.NativeProgram | None = None,
    threads: int = 1,
    counts: dict[str, int] | None = None,
) -> Bytes:
    native = native or _C.NativeProgram(encode(setting.program))
    data = setting.buffers()
    places = {**data, **scratch_of(setting)}
    done = native.execute(
        [places.get(o.name) for o in setting.program.operands],
        setting.words,
        setting.numerics.mode.value,
        setting.numerics.tie.value,
        setting.numerics.merged_is_nan,
        threads=threads,
    )
    if counts is not None:
        counts.update(done)
    return setting.written(data)


def assert_same(found: Bytes, expected: Bytes, what: str) -> None:
    for name, data in expected.items():
        different = np.flatnonzero(found[name] != data)
        assert different.size == 0, (
            f"{what}: operand {name}: {different.size} of {data.size} bytes differ, the first is"
            f" byte {different[0]} of its elements"
        )


def check_everywhere(setting: Setting, sets: Sequence[str], what: str) -> None:
    """Reference and machine agree, on 1 and 2 threads, on every instruction set."""
    expected = on_reference(setting)
    native = _C.NativeProgram(encode(setting.program))
    for isa in sets:
        _C.set_isa(isa)
        for threads in (1, 2):
            found = on_machine(setting, native, threads)
            assert_same(found, expected, f"{what} on {isa} with {threads} threads")


# --- equality


@pytest.mark.parametrize("name", sorted(ZOO))
def test_n5_n6_zoo_is_byte_equal_on_every_instruction_set_and_thread_count(
    name: str, each_isa: list[str]
) -> None:
    """N5, N6: every kind of program by hand."""
    check_everywhere(setting_of(ZOO[name]()), each_isa, name)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_n5_n6_random_programs_are_byte_equal(chunk: int, each_isa: list[str]) -> None:
    """N5, N6: 500 random valid programs, 1 and 2 threads, every instruction set."""
    for seed in range(chunk, RANDOM_PROGRAMS, CHUNKS):
        case = random_program(seed)
        check_everywhere(setting_of(case, seed), each_isa, f"random_program({seed})")


@pytest.mark.parametrize("tie", list(TieRule))
def test_n5_every_rule_of_numerics_holds_in_both(tie: TieRule, each_isa: list[str]) -> None:
    for name in ("gelu", "softmax", "matmul", "index_add", "ksplit"):
        numerics = Numerics(Mode.DL16, tie, merged_is_nan=tie is TieRule.TO_EVEN)
        check_everywhere(setting_of(ZOO[name](), 3, numerics), each_isa, f"{name} {tie.value}")


@pytest.mark.parametrize("name", sorted(ZOO))
def test_l33_what_pads_hold_changes_nothing(name: str, each_isa: list[str]) -> None:
    """The pads of every operand filled with NaN (integers: with ones), then with zeros."""
    setting = setting_of(ZOO[name]())
    expected = on_reference(setting)
    for fill in (0xFF, 0x7F, 0x00):
        padded = replace(setting, start=setting.buffers())
        for operand in setting.program.operands:
            if operand.name in padded.start:
                data = padded.start[operand.name]
                mask = reference.defined_bytes(operand, setting.symbols)
                data[: len(mask)][~mask] = fill
                data[len(mask) :] = fill
        for isa in each_isa:
            _C.set_isa(isa)
            assert_same(on_machine(padded, threads=2), expected, f"{name} on {isa}, pads {fill}")


def test_machine_agrees_with_numpy_references() -> None:
    """The zoo's own references: that both executors are right, not only equal."""
    for name, make in ZOO.items():
        case = make()
        setting = setting_of(case, 1)
        inputs = case.make_inputs(np.random.default_rng(1))
        data = setting.buffers()
        places = {**data, **scratch_of(setting)}
        _C._program_execute(
            encode(case.program), [places.get(o.name) for o in case.program.operands], setting.words
        )
        for out, expected in case.reference(inputs).items():
            operand = next(o for o in case.program.operands if o.name == out)
            found = reference.unpack(operand, data[out], symbols=case.symbols)
            np.testing.assert_allclose(
                found.astype(np.float64),
                np.asarray(expected).astype(np.float64),
                rtol=case.rtol,
                atol=case.atol,
                err_msg=name,
            )


def test_a_decoded_program_runs_again_and_again() -> None:
    """Launches leave nothing behind that the next one could see."""
    settings = [setting_of(ZOO[name]()) for name in ("softmax", "ksplit", "matmul", "topk")]
    natives = [_C.NativeProgram(encode(setting.program)) for setting in settings]
    first = [on_machine(s, n) for s, n in zip(settings, natives, strict=True)]
    for _ in range(5):
        for setting, native, expected in zip(settings, natives, first, strict=True):
            assert_same(on_machine(setting, native, threads=2), expected, setting.program.name)


def test_inputs_are_read_in_place() -> None:
    """The tiles of a matrix product are read where they lie: nothing is copied."""
    counts: dict[str, int] = {}
    on_machine(setting_of(ZOO["matmul"]()), counts=counts)
    assert counts["bytes_read"] > 0
    assert counts["bytes_copied"] == 0


# --- the Program is what executes


def rewritten(program: Program, change: Callable[[Instruction], Instruction]) -> Program:
    """The program with every instruction changed, those inside loops too."""

    def walk(body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        return tuple(
            replace(one, body=walk(one.body)) if isinstance(one, Loop) else change(one)
            for one in body
        )

    return replace(program, queues={unit: walk(body) for unit, body in program.queues.items()})


def other_operations(code: Instruction) -> Instruction:
    """Another operation of the same type in place of each one that has one."""
    swap = {
        "add": "sub",
        "sub": "add",
        "mul": "max",
        "exp": "sin",
        "erf": "tanh",
        "neg": "abs",
        "gelu": "silu",
    }
    if not isinstance(code, Compute) or code.body is None:
        return code
    nodes = tuple(replace(node, op=swap.get(node.op, node.op)) for node in code.body.nodes)
    return replace(code, body=Body(nodes, code.body.results))


def other_constants(code: Instruction) -> Instruction:
    if not isinstance(code, Compute) or code.body is None:
        return code

    def changed(node: Node) -> Node:
        if node.op != "const" or node.type == "b":
            return node
        assert isinstance(node.immediate, int | float)
        return replace(node, immediate=node.immediate + 3)

    return replace(code, body=Body(tuple(map(changed, code.body.nodes)), code.body.results))


def shorter_sums(code: Instruction) -> Instruction:
    """The last index of each sum of a matmul or reduction left out."""
    if not isinstance(code, Compute) or code.kind not in (Kind.MATMUL, Kind.REDUCE):
        return code

    def moves(access: Access, label: str) -> bool:
        return access.stick == label or any(name == label for name, _ in access.strides)

    def shorter(label: Label) -> Label:
        if moves(code.outputs[0], label.name):
            return label
        return replace(label, size=binary("max", binary("-", label.size, 1), 1))

    return replace(code, over=tuple(map(shorter, code.over)))


def other_operand(from_: str, to: str) -> Callable[[Instruction], Instruction]:
    def change(code: Instruction) -> Instruction:
        if not isinstance(code, Load) or code.source.place != from_:
            return code
        return replace(code, source=replace(code.source, place=to))

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *[(n, other_operations) for n in ("add", "softmax", "layernorm", "gelu", "neg_float32")],
        *[(n, other_constants) for n in ("layernorm", "rms_norm", "uniform")],
        *[(n, shorter_sums) for n in ("matmul", "matmul_int8", "bmm", "softmax", "column_sum")],
        ("add", other_operand("x", "y")),
        ("bitwise", other_operand("x0", "x1")),
    ],
)
def test_a_changed_program_changes_both_executors_equally(
    name: str, change: Callable[[Instruction], Instruction], each_isa: list[str]
) -> None:
    """With the verifier off both do what the program says: it is what executes."""
    setting = setting_of(ZOO[name]())
    before = on_reference(setting)
    changed = replace(setting, program=rewritten(setting.program, change))
    assert changed.program != setting.program
    expected = on_reference(changed, check=False)
    assert any((expected[n] != before[n]).any() for n in before), "the change changes nothing"
    for isa in each_isa:
        _C.set_isa(isa)
        assert_same(on_machine(changed, threads=2), expected, f"changed {name} on {isa}")


@pytest.mark.parametrize("change", [other_operations, other_constants, shorter_sums])
def test_changed_random_programs_change_both_executors_equally(
    change: Callable[[Instruction], Instruction],
) -> None:
    compared = 0
    for seed in range(60):
        setting = setting_of(random_program(seed), seed)
        changed = replace(setting, program=rewritten(setting.program, change))
        if changed.program == setting.program:
            continue
        expected = on_reference(changed, check=False)
        assert_same(on_machine(changed, threads=2), expected, f"changed random_program({seed})")
        compared += 1
    assert compared >= 10


# --- faults


def same_fault(setting: Setting, kind: str, *fragments: str) -> None:
    """Both executors fail, by the same kind; the machine's text holds the fragments."""
    with pytest.raises(ReferenceFault) as by_reference:
        on_reference(setting, check=False)
    assert by_reference.value.kind.value == kind
    for threads in (1, 2):
        with pytest.raises(_C.LaunchFault) as by_machine:
            on_machine(setting, threads=threads)
        assert by_machine.value.kind == kind
        for fragment in fragments:
            assert fragment in str(by_machine.value)


def with_load(program: Program, change: Callable[[Load], Load]) -> Program:
    return rewritten(program, lambda code: change(code) if isinstance(code, Load) else code)


def further(access: Access, by: int) -> Access:
    return replace(access, offset=binary("+", access.offset, by))


def test_faults_address_outside_operand_and_lx() -> None:
    setting = setting_of(ZOO["add"]())
    far = with_load(setting.program, lambda c: replace(c, source=further(c.source, 1 << 20)))
    same_fault(replace(setting, program=far), "address", "load[", "on core 0", "operand x: bytes")
    far = with_load(setting.program, lambda c: replace(c, target=further(c.target, 2 << 20)))
    same_fault(replace(setting, program=far), "address", "buffer ", "of LX")
    odd = with_load(setting.program, lambda c: replace(c, target=further(c.target, 64)))
    same_fault(replace(setting, program=odd), "address", "multiple of 128")


def test_faults_short_operand() -> None:
    setting = setting_of(ZOO["add"]())
    setting.start["y"] = setting.start["y"][:-128]
    with pytest.raises(_C.LaunchFault, match="operand y: bytes") as fault:
        on_machine(setting)
    assert fault.value.kind == "address"


def test_faults_index_beyond_its_limit() -> None:
    for name in ("embedding", "index_add", "take_along", "scatter_add"):
        setting = setting_of(ZOO[name]())
        index = next(
            o
            for o in setting.program.operands
            if o.role is Role.IN and o.format in (Format.IEEE_INT64, Format.IEEE_INT32)
        )
        setting.start[index.name].view(np.int32)[:] = 123_456
        same_fault(setting, "index", "on core 0")


def test_faults_deadlock() -> None:
    for name in ("add", "ksplit"):
        setting = setting_of(ZOO[name]())
        more = rewritten(
            setting.program,
            lambda c: replace(c, count=Const(1000)) if isinstance(c, Wait) else c,
        )
        same_fault(replace(setting, program=more), "deadlock", "core 0", "for 1000 of")


def test_faults_number() -> None:
    setting = setting_of(ZOO["add"]())
    huge: Expr = binary("*", binary("+", "core", 2**62), 4)
    wrong = with_load(setting.program, lambda c: replace(c, source=replace(c.source, offset=huge)))
    same_fault(replace(setting, program=wrong), "number", "64 bits")

    def negative(code: Load) -> Load:
        return replace(code, over=tuple(replace(label, size=Const(-1)) for label in code.over))

    wrong = with_load(setting.program, negative)
    same_fault(replace(setting, program=wrong), "number", "size")


def test_faults_endless_and_wrong_launches() -> None:
    b = ProgramBuilder("endless", cores=1)
    token = b.token("t")
    with b.queue("load"), b.loop("i", 1 << 50):
        b.signal(token)
    native = _C.NativeProgram(encode(b.build()))
    with pytest.raises(_C.LaunchFault) as fault:
        native.execute([], max_tasks=1000)
    assert fault.value.kind == "stopped"
    native = _C.NativeProgram(encode(ZOO["add"]().program))
    with pytest.raises(ValueError, match="3 operands"):
        native.execute([])
    with pytest.raises(ValueError, match="needs a buffer"):
        native.execute([None, None, None])
    with pytest.raises(ValueError, match="not contiguous"):
        native.execute([np.zeros((8, 8), np.uint8).T] * 3)
    setting = setting_of(ZOO["add_symbolic"]())
    native = _C.NativeProgram(encode(setting.program))
    operands = [setting.start[o.name] for o in setting.program.operands]
    with pytest.raises(_C.LaunchFault, match="must lie in") as fault:
        native.execute(operands, [10**6])
    assert fault.value.kind == "number"
    with pytest.raises(_C.LaunchFault, match="corrected") as fault:
        native.execute(operands, [0x3BAD5BAD5])
    assert fault.value.kind == "unpatched"


# --- decoding


def test_golden_images_decode_alike() -> None:
    from openspyre.program.binary import decode

    for file in sorted(DATA.glob("*.bin")):
        image = file.read_bytes()
        program, found = decode(image), _C._program_decode(image)
        assert found["name"] == program.name
        assert found["cores"] == program.cores
        assert found["operands"] == [o.name for o in program.operands]
        assert found["symbols"] == [s.name for s in program.symbols]
        assert found["semaphores"] == sum(t.count for t in program.tokens)


def test_images_that_are_none_are_value_errors() -> None:
    image = encode(ZOO["add"]().program)
    for bad in (
        b"",
        image[:100],
        image[:-1],
        b"x" + image[1:],
        image[:300] + b"\xff" + image[301:],
    ):
        with pytest.raises(ValueError, match="program image, byte"):
            _C._program_decode(bad)


def test_every_body_operation_has_the_same_table_in_both_languages() -> None:
    """The decoder types a body with a table of its own: one program for each operation and type."""
    b_types = {"f": Format.IEEE_FP32, "i": Format.IEEE_INT32, "l": Format.IEEE_INT64}
    for op in BODY_OPS:
        if op.name in ("input", "scalar", "index", "const"):
            continue
        for type_ in op.types:
            image = _one_operation(op.name, type_, b_types)
            _C._program_decode(image)


def _one_operation(name: str, type_: str, formats: Mapping[str, Format]) -> bytes:
    """An image whose one map computes `name` on constants of `type_`."""
    op = BODY_OP[name]
    letters = [type_ if letter == "T" else letter for letter in op.operands]
    nodes = [Node("const", letter, (), False if letter == "b" else 0) for letter in letters]
    immediates = {"": None, "int": 1, "format": "IEEE_FP16"}
    for target in ("f", "i", "l", "b") if op.immediate == "type" else (None,):
        if name == "bits":
            target = "i" if type_ == "f" else "f"
        immediate: Any = target if op.immediate == "type" else immediates[op.immediate]
        node = Node(name, type_, tuple(range(len(letters))), immediate)
        result = op.result_of(type_, immediate)
        tile = Access("y", (), "out", formats.get(result, Format.IEEE_INT32), strides=())
        code = Compute(Unit.SFU, Kind.MAP, (), (), (tile,), Body((*nodes, node), (len(nodes),)))
        b = ProgramBuilder("one", cores=1)
        program = replace(
            b.build(),
            values=(_value(),),
            buffers=(_buffer(),),
            queues={Unit.SFU: (code,)},
        )
        image = encode(program)
        _C._program_decode(image)
    return image


def test_an_image_in_a_buffer_with_gaps_is_refused() -> None:
    """Its bytes do not lie one after the other from where the buffer starts."""
    image = (DATA / "golden_abs64.bin").read_bytes()
    gaps = (memoryview(image)[::-1], np.broadcast_to(np.zeros(1, np.uint8), (1 << 20,)).data)
    for buffer in gaps:
        with pytest.raises(ValueError, match="not contiguous"):
            _C.NativeProgram(buffer)
    assert _C.NativeProgram(memoryview(image)).describe()["name"] == "abs64"


def _value() -> Any:
    from openspyre.program.model import Value

    return Value("y", ())


def _buffer() -> Any:
    from openspyre.program.model import Buffer

    return Buffer("out", 0, 128)
