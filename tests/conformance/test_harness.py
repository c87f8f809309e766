"""The harness itself: it finds wrong devices, survives dying workers, and its list is strict."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import ErrorInput, SampleInput

from . import gaps, moody_worker, native, placement
from .compare import FLOAT16_IEEE, FLOAT32, Mismatch, compare_values
from .operators import Operator, Recorder
from .pool import Limits, Pool
from .runs import NATIVE_RUNS, RUNS, Report
from .target import Target

CPU = torch.device("cpu")


def operator(name: str, **changes: Any) -> Any:
    """A copy of a database entry with some of it replaced."""
    entry = copy.copy(next(op for op in op_db if op.full_name == name))
    for key, value in changes.items():
        setattr(entry, key, value)
    return entry


def examine(op: Any, run: str = "float32") -> Recorder:
    """`op` with the CPU as its own device."""
    return Operator(op, RUNS[run], Target("cpu", RUNS[run], "allow")).examine()


class EverySecondCall:
    """An operator that the reference (called first) sees right and the device sees spoiled."""

    def __init__(self, right: Any, spoiled: Any) -> None:
        self.right, self.spoiled, self.calls = right, spoiled, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return (self.spoiled if self.calls % 2 == 0 else self.right)(*args, **kwargs)


# --- what it finds


def test_an_operator_that_agrees_with_the_reference_passes_every_check() -> None:
    record = examine(operator("add"))
    assert record.failed == 0
    assert record.checks > 50


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda r: r + 1, "not close"),
        (lambda r: r.double(), "dtype"),
        (lambda r: r.unsqueeze(0), "shape"),
        (lambda r: r.to_sparse() if r.dim() else r.unsqueeze(0), "layout|shape"),
    ],
)
def test_a_wrong_value_dtype_shape_or_layout_is_found(spoil: Any, text: str) -> None:
    twisted = EverySecondCall(torch.exp, lambda *a, **k: spoil(torch.exp(*a, **k)))
    op = operator(
        "exp", op=twisted, inplace_variant=None, supports_out=False, error_inputs_func=None
    )
    record = examine(op)
    assert record.failed > 0
    assert any(re.search(text, failure) for failure in record.failures)


def test_pt5_a_view_that_became_a_copy_is_found() -> None:
    twisted = EverySecondCall(torch.Tensor.t, lambda t: t.t().clone())
    record = examine(operator("t", op=twisted, inplace_variant=None, error_inputs_func=None))
    assert any("no view" in failure for failure in record.failures)


def test_a_missing_gradient_is_found() -> None:
    twisted = EverySecondCall(torch.exp, lambda t: torch.exp(t).detach())
    op = operator(
        "exp", op=twisted, inplace_variant=None, supports_out=False, error_inputs_func=None
    )
    assert any("requires a gradient" in failure for failure in examine(op).failures)


def test_pt30_not_implemented_is_never_the_expected_error() -> None:
    def inputs(info: Any, device: Any, **kwargs: Any) -> list[ErrorInput]:
        return [ErrorInput(SampleInput(torch.ones(2)), error_type=RuntimeError, error_regex="no")]

    def right(tensor: torch.Tensor) -> None:
        raise RuntimeError("no")

    def refused(tensor: torch.Tensor) -> None:
        raise NotImplementedError("no")

    op = operator("exp", op=EverySecondCall(right, refused), error_inputs_func=inputs)
    op.sample_inputs_func = lambda *args, **kwargs: []
    failures = examine(op).failures
    assert len(failures) == 1
    assert "raised NotImplementedError" in failures[0]


def test_a_native_run_tells_a_right_operator_from_a_wrong_one_and_says_why() -> None:
    run = NATIVE_RUNS["native-float32"]
    target = Target("cpu", run, "allow")
    right = native.examine("exp", operator("exp"), run, target)
    assert {name: part.status for name, part in right.parts.items()} == {
        "forward": "native",
        "backward": "native",
    }
    twisted = EverySecondCall(torch.exp, lambda *a, **k: torch.exp(*a, **k) + 1)
    wrong = native.examine("exp", operator("exp", op=twisted), run, target)
    assert wrong.status == wrong.parts["forward"].status == "fail"
    assert "not close" in wrong.parts["forward"].reason


def test_where_the_float32_reference_is_wrong_float64_decides() -> None:
    """The float32 reference is called first, then the operator under test."""
    run = NATIVE_RUNS["native-float32"]
    narrow = EverySecondCall(lambda t: torch.exp(t) + 1, torch.exp)
    doubted = operator(
        "exp",
        op=lambda t: torch.exp(t) if t.dtype == torch.float64 else narrow(t),
        supports_autograd=False,
    )
    report = native.examine("exp", doubted, run, Target("cpu", run, "allow"))
    assert report.parts["forward"].status == "native"


def test_samples_are_spread_over_all_and_reach_the_last() -> None:
    assert [n for n, _ in native.spread(range(100), 5)] == [0, 25, 50, 74, 99]
    assert [n for n, _ in native.spread(range(3), 5)] == [0, 1, 2]
    assert [n for n, _ in native.spread(range(3), 1)] == [1]
    assert native.spread([], 1) == []


# --- placing


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 4), min_size=0, max_size=4),
    data=st.data(),
)
def test_relocating_keeps_values_sizes_strides_and_offset(
    sizes: list[int], data: st.DataObject
) -> None:
    base = torch.arange(2000, dtype=torch.float32)
    strides = [data.draw(st.integers(0, 9)) for _ in sizes]
    offset = data.draw(st.integers(0, 50))
    tensor = base.as_strided(sizes, strides, offset)
    twin = placement.relocate(tensor, lambda t: t.double())
    assert torch.equal(twin, tensor.double())
    if not (tensor.is_contiguous() and offset == 0):
        assert (twin.stride(), twin.storage_offset()) == (tensor.stride(), offset)
    assert twin.untyped_storage().data_ptr() != base.untyped_storage().data_ptr()


def test_pt1_relocating_keeps_conjugate_and_negative_bits() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    for lazy in (tensor.conj(), tensor.conj().imag, torch._neg_view(tensor)):
        twin = placement.relocate(lazy, torch.clone)
        assert (twin.is_conj(), twin.is_neg()) == (lazy.is_conj(), lazy.is_neg())
        assert torch.equal(twin, lazy)


def test_pt6_an_index_argument_that_must_stay_on_the_cpu_stays() -> None:
    twins = list(
        placement.twins_of(
            operator("tensor_split"),
            torch.float32,
            torch.device("meta"),
            upcast=False,
            requires_grad=False,
        )
    )
    rows = [t.moves for t in twins if t.moves is not None and len(t.moves) == 2]
    assert rows
    assert all(row == [True, False] for row in rows)


def test_samples_are_the_same_in_every_process_and_order() -> None:
    def values() -> list[torch.Tensor]:
        twins = placement.twins_of(
            operator("mul"), torch.float32, CPU, upcast=False, requires_grad=False
        )
        return [t.reference().input for t in twins]

    first = values()
    torch.randn(7)
    for a, b in zip(first, values(), strict=True):
        assert torch.equal(a, b)


# --- comparing


def test_a_tolerance_has_an_edge() -> None:
    want = torch.tensor([1.0, 2.0])
    compare_values(want * (1 + 1e-6), want, FLOAT32, "near")
    with pytest.raises(Mismatch, match="far"):
        compare_values(want * (1 + 1e-4), want, FLOAT32, "far")


def test_integers_are_compared_exactly() -> None:
    with pytest.raises(Mismatch):
        compare_values(torch.tensor([10**9 + 1]), torch.tensor([10**9]), FLOAT32, "integer")


def test_what_float16_cannot_hold_is_infinite_and_keeps_its_sign() -> None:
    want = torch.tensor([1e6, -1e6])
    compare_values(torch.tensor([torch.inf, -65504.0]).half(), want, FLOAT16_IEEE, "overflow")
    with pytest.raises(Mismatch):
        compare_values(torch.tensor([-torch.inf, -torch.inf]).half(), want, FLOAT16_IEEE, "sign")
    with pytest.raises(Mismatch):
        compare_values(torch.tensor([torch.nan, -torch.inf]).half(), want, FLOAT16_IEEE, "nan")


# --- workers


def test_pt32_a_worker_that_crashes_hangs_or_eats_memory_costs_one_entry() -> None:
    limits = Limits(seconds=6, memory_mb=300, recycle_mb=10_000)
    pool = Pool("float32", "cpu", "allow", 2, limits, serve=moody_worker.serve)
    reports = {r.name: r for r in pool.sweep(lambda names: names)}
    assert {n: r.status for n, r in reports.items()} == {
        "good 1": "native",
        "good 2": "native",
        "good 3": "native",
        "crash": "crash",
        "hang": "timeout",
        "glut": "memory",
    }
    assert "SIGSEGV" in reports["crash"].failures[0]
    assert "the last words" in reports["crash"].failures[0]


# --- the list


def test_pt35_new_failures_stale_entries_and_unknown_names_fail_a_run() -> None:
    reports = [Report("a", "native"), Report("b", "fail"), Report("c", "crash")]
    verdict = gaps.judge(RUNS["float32"], reports, {"c": "known"}, ["a", "b", "c"])
    assert [r.name for r in verdict.new] == ["b"]
    assert not verdict.ok
    verdict = gaps.judge(RUNS["float32"], reports, {"a": "", "b": "", "c": ""}, ["a", "b", "c"])
    assert verdict.stale == ["a"]
    assert not verdict.ok
    verdict = gaps.judge(RUNS["float32"], reports, {"b": "", "c": "", "d": ""}, ["a", "b", "c"])
    assert verdict.unknown == ["d"]
    verdict = gaps.judge(RUNS["float32"], reports, {"b": "", "c": ""}, ["a", "b", "c"])
    assert verdict.ok
    assert (verdict.native, verdict.fallback, verdict.fails) == (1, 0, 2)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('[[gap]]\nnames = ["x"]\nruns = ["float32"]\n', "reason"),
        ('[[gap]]\nnames = ["x"]\nruns = ["float99"]\nreason = "r"\n', "float99"),
        ('[[gap]]\nnames = ["x", "x"]\nruns = ["int64"]\nreason = "r"\n', "listed already"),
        ('[[gap]]\nnames = ["x"]\nruns = ["int64"]\nreason = " "\n', "empty"),
    ],
)
def test_pt35_a_faulty_list_is_refused_by_name(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "gaps.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=fault):
        gaps.load(file)


def test_pt35_the_list_of_this_repository_is_sound() -> None:
    assert all(gap.reason for gap in gaps.load())


# --- pitfalls of testing


def test_pt31_no_reference_computes_in_16_bits() -> None:
    assert {run.reference for run in RUNS.values()} == {"float32", "int64"}
    twins = placement.twins_of(
        operator("mul"), torch.float16, CPU, upcast=True, requires_grad=False
    )
    assert {t.reference().input.dtype for t in twins} == {torch.float32}


def test_pt34_the_harness_replaces_no_configuration_of_torchs_own_tests() -> None:
    """It reads the databases itself; its names are the full ones, with the variant's suffix."""
    here = Path(__file__).parent
    used = [
        f.name for f in here.glob("*.py") if f != Path(__file__) and "test_configs" in f.read_text()
    ]
    assert used == []
    names = [op.full_name for op in op_db]
    assert len(set(names)) == len(names) and "std_mean.unbiased" in names
