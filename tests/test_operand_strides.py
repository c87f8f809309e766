"""Operands that give their strides outright: builder, both written forms, verifier, executors, and
launches on views that lie so."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import plan_directories as made
import pytest
import torch
from launches import on_card, ramp, refused
from program_zoo import ZOO

from openspyre import _C, reference
from openspyre.formats import Format
from openspyre.program import Program, ProgramBuilder
from openspyre.program.binary import ProgramFormatError, decode, encode
from openspyre.program.boxes import ExprLike
from openspyre.program.concrete import ProgramError, operand_layout
from openspyre.program.expr import Const, Var
from openspyre.program.model import Operand, Role
from openspyre.program.text import from_text, to_text
from openspyre.program.verify import verify
from openspyre.program.verify_error import VerifyError


def strided_copy(
    shape: Sequence[int],
    strides: Sequence[ExprLike],
    stick: int,
    out: Sequence[ExprLike] | None = None,
    dtype: str = "float16",
) -> Program:
    """y = |x|, both of `shape`: x by these strides, y by `out` (default: the default layout)."""
    b = ProgramBuilder("strided", {"c": 1})
    labels = tuple(f"d{i}" for i in range(len(shape)))
    x = b.input("x", shape, dtype, strides=strides, stick=stick)
    if out is None:
        y = b.output("y", shape, dtype)
    else:
        y = b.output("y", shape, dtype, strides=out, stick=stick)
    xs, ys = b.stream("xs", x, shape), b.stream("ys", y, shape, users=["store"])
    over = dict(zip(labels, shape, strict=True))
    with b.queue("load"), xs.fill() as t:
        b.load(over, x[labels], t[labels])
    with b.queue("sfu"), xs.use() as t, ys.fill() as o:
        b.map(over, o[labels], lambda v: abs(v), t[labels])
    with b.queue("store"), ys.use() as o:
        b.store(over, o[labels], y[labels])
    return b.build()


# --- the layout


def operand(
    shape: Sequence[int], strides: Sequence[int], stick: int, role: Role = Role.IN
) -> Operand:
    sizes, steps = tuple(map(Const, shape)), tuple(map(Const, strides))
    return Operand("x", role, "float16", Format.SEN169_FP16, sizes, strides=steps, stick=stick)


def test_extent_counts_sticks_along_the_stick_dim() -> None:
    layout = operand_layout(operand((3, 150), (384, 128), 1), {})
    assert (layout.nbytes, layout.stick, layout.strides) == (128 + 2 * 384 + 2 * 128, 1, (384, 128))
    assert layout.address((2, 64)) == 2 * 384 + 128
    assert operand_layout(operand((5, 64), (0, 128), 1), {}).nbytes == 128  # does not move
    assert operand_layout(operand((), (), -1), {}).nbytes == 128
    assert operand_layout(operand((4, 3), (128, 512), -1), {}).nbytes == 128 + 3 * 128 + 2 * 512


@pytest.mark.parametrize(
    ("shape", "strides", "stick", "fault"),
    [
        ((4, 64), (64, 128), 1, "multiples of 128"),
        ((4, 64), (-128, 128), 1, "none negative"),
        ((4, 64), (128,), 1, "1 strides"),
        ((4, 64), (128, 512), 2, "stick 2"),
        ((0, 64), (128, 128), 1, "size below 1"),
    ],
)
def test_strides_that_cannot_be(
    shape: tuple[int, ...], strides: tuple[int, ...], stick: int, fault: str
) -> None:
    with pytest.raises(ProgramError, match=fault):
        operand_layout(operand(shape, strides, stick), {})


@pytest.mark.parametrize(
    ("shape", "strides", "apart"),
    [
        ((4, 150), (128, 512), True),
        ((4, 150), (384, 128), True),
        ((4, 150), (256, 128), False),  # rows of three sticks every two
        ((4, 64), (0, 128), False),
        ((1, 64), (0, 128), True),  # one index has nothing to meet
        ((2, 3, 64), (128, 128, 128), False),
        ((2, 3, 64), (384, 128, 128), True),
    ],
)
def test_what_is_stored_lies_apart(
    shape: tuple[int, ...], strides: tuple[int, ...], apart: bool
) -> None:
    stick = len(shape) - 1
    operand_layout(operand(shape, strides, stick), {})
    operand_layout(operand(shape, strides, stick, Role.CONST), {})
    for role in (Role.OUT, Role.INOUT, Role.SCRATCH):
        if apart:
            operand_layout(operand(shape, strides, stick, role), {})
        else:
            with pytest.raises(ProgramError, match="overlap"):
                operand_layout(operand(shape, strides, stick, role), {})


# --- the builder and the written forms


def test_builder_refuses_two_layouts_at_once() -> None:
    b = ProgramBuilder("two", {"c": 1})
    with pytest.raises(ProgramError, match="neither within nor order"):
        b.input("x", (4, 64), "float16", strides=(128, 128), stick=1, order=(1, 0))
    with pytest.raises(ProgramError, match="1 strides, stick -1, rank 2"):
        b.input("z", (4, 64), "float16", strides=(128,))


def test_scratch_and_const_take_strides() -> None:
    b = ProgramBuilder("parts", {"c": 1})
    b.scratch("s", (4, 64), "float16", strides=(256, 128), stick=1)
    after = b.scratch("t", (4, 64), "float16")
    b.const("k", (2, 64), "float16", bytes(384), strides=(256, 128), stick=1)
    with pytest.raises(ProgramError, match="384 bytes, 256 were given"):
        b.const("l", (2, 64), "float16", bytes(256), strides=(256, 128), stick=1)
    offsets = {o.name: o.offset for o in b.build().operands}
    assert after.name == "t" and offsets["t"] == 128 + 3 * 256


def test_both_written_forms_keep_strides() -> None:
    program = ZOO["views"]().program
    assert [str(s) for s in program.operands[2].strides or ()] == ["128", "128", "pitch * 128"]
    assert decode(encode(program)) == program
    assert from_text(to_text(program)) == program
    assert "[rows, 150] strides [0, 128] stick 1" in to_text(program)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"order": (0, 1)}, "neither `within` nor `order`"),
        ({"within": (Const(4), Const(64))}, "neither `within` nor `order`"),
        ({"strides": (Const(128),)}, "rank of `shape`"),
        ({"stick": 2}, "no dim 2 can lie on the stick"),
    ],
)
def test_encoder_and_verifier_refuse_a_mixed_layout(change: dict[str, object], fault: str) -> None:
    program = strided_copy((4, 64), (128, 512), 1)
    x = dataclasses.replace(program.operands[0], **change)  # type: ignore[arg-type]
    wrong = dataclasses.replace(program, operands=(x, *program.operands[1:]))
    with pytest.raises(ProgramFormatError, match=fault):
        encode(wrong)
    with pytest.raises(VerifyError, match=fault):
        verify(wrong)


# --- the verifier


def test_verifier_holds_tiles_to_the_strides() -> None:
    verify(strided_copy((4, 64), (256, 128), 1))
    program = strided_copy((4, 64), (256, 128), 1)
    x = dataclasses.replace(program.operands[0], strides=(Const(384), Const(128)))
    with pytest.raises(VerifyError, match=r"rule 3.*moves 256 bytes, the operand's layout 384"):
        verify(dataclasses.replace(program, operands=(x, *program.operands[1:])))
    still = dataclasses.replace(program.operands[0], strides=(Const(0), Const(128)))
    with pytest.raises(VerifyError, match=r"moves 256 bytes, the operand's layout 0"):
        verify(dataclasses.replace(program, operands=(still, *program.operands[1:])))


def test_verifier_refuses_stores_that_overlap() -> None:
    program = strided_copy((4, 64), (128, 512), 1, out=(0, 128))
    with pytest.raises(VerifyError, match=r"let sticks of shape .* overlap"):
        verify(program)


def test_symbols_in_strides_are_checked_with_numbers() -> None:
    program = ZOO["views"]().program
    verify(program)
    verify(program, {"rows": 64, "pitch": 64})
    y = dataclasses.replace(program.operands[3], strides=(Var("rows") * 128, Const(256)))
    wrong = dataclasses.replace(program, operands=(*program.operands[:3], y))
    with pytest.raises(VerifyError, match="overlap"):
        verify(wrong, {"rows": 37, "pitch": 70})


# --- both executors


@pytest.mark.parametrize(
    ("shape", "strides", "stick"),
    [
        ((8, 150), (128, 1024), 1),  # as the default layout
        ((8, 150), (384, 128), 1),  # row by row
        ((8, 150), (0, 128), 1),  # one row, eight times
        ((7, 2, 70), (128, 128, 1024), 2),  # windows of two rows
        ((5, 3), (128, 640), -1),  # sparse
        ((3, 4, 64), (128, 512, 384), 2),  # heads
    ],
)
def test_executors_agree_with_plain_addressing(
    shape: tuple[int, ...], strides: tuple[int, ...], stick: int
) -> None:
    program = strided_copy(shape, strides, stick)
    verify(program)
    x, y = program.operands
    layout = operand_layout(x, {})
    rng = np.random.default_rng(1)
    data = rng.integers(0, 0x3C, layout.nbytes, dtype=np.uint8)
    results = []
    for native in (False, True):
        memory = {"x": data.copy(), "y": reference.empty(y)}
        if native:
            image = _C.NativeProgram(encode(program))
            image.execute([memory["x"], memory["y"]], [])
        else:
            reference.run(program, memory)
        results.append(reference.unpack_codes(y, memory["y"]))
    assert np.array_equal(results[0], results[1])
    codes = data.view(np.uint16)
    for index in np.ndindex(*shape):
        at = sum(
            (i // 64 * s + i % 64 * 2) if d == stick else i * s
            for d, (i, s) in enumerate(zip(index, strides, strict=True))
        )
        assert results[0][index] == codes[at // 2] & 0x7FFF


# --- launches on tensors that lie so


def test_a_reshaped_storage_is_an_operand(tmp_path: Path) -> None:
    """[S, H*D] as [S, H, D]."""
    s, h, d = 4, 3, 128
    program = strided_copy((s, h, d), (128, 2 * s * 128, s * 128), 2)
    plan = torch.spyre.prepare(made.write(tmp_path / "p", program))
    x = on_card(s, h * d)
    out = torch.empty(s, h, d, dtype=torch.float16, device="spyre")
    torch.spyre.launch(plan, [x.view(s, h, d), out])
    assert torch.equal(out.cpu(), ramp(s, h * d).view(s, h, d).abs())
    refused("it does not lie", plan, [on_card(h, s, d).transpose(0, 1), out])


def test_an_expanded_tensor_is_an_operand_that_does_not_move(tmp_path: Path) -> None:
    program = strided_copy((4, 64), (0, 128), 1)
    plan = torch.spyre.prepare(made.write(tmp_path / "p", program))
    row, out = on_card(1, 64), torch.empty(4, 64, dtype=torch.float16, device="spyre")
    torch.spyre.launch(plan, [row.expand(4, 64), out])
    assert torch.equal(out.cpu(), ramp(1, 64).abs().expand(4, 64))
    refused("moves 128 bytes", plan, [on_card(4, 64), out])


def test_expected_arguments_tell_the_strides(tmp_path: Path) -> None:
    plan = torch.spyre.prepare(made.write(tmp_path / "p", strided_copy((4, 64), (256, 128), 1)))
    x, y = plan.expected_arguments
    assert (x.strides, x.stick, x.within, x.order) == (("256", "128"), 1, None, None)
    assert (y.strides, y.stick) == (None, -1)
    assert "strides [256, 128] stick 1" in plan.to_text()
    assert plan.to_dict()["arguments"][0]["strides"] == ["256", "128"]
