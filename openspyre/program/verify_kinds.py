"""Rule 1 for COMPUTE: what each kind demands of its tiles, labels, formats and body
(docs/program.md section 3).

Part of the verifier; imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable

from openspyre.formats import Format
from openspyre.program.binary_rules import body_fault
from openspyre.program.model import Access, Compute, Unit
from openspyre.program.ops import BODY_OP, Combine, Kind, RegisterType, register_of
from openspyre.program.verify_error import VerifyError

EXACT = {
    RegisterType.F32: Format.IEEE_FP32,
    RegisterType.I32: Format.IEEE_INT32,
    RegisterType.I64: Format.IEEE_INT64,
    RegisterType.BOOL: Format.IEEE_INT32,
}
MATMUL_FORMATS = (
    Format.SEN169_FP16,
    Format.IEEE_FP16,
    Format.BFLOAT16,
    Format.SEN143_FP8,
    Format.SEN152_FP8,
    Format.SENINT8,
    Format.IEEE_FP32,
)
FP8 = (Format.SEN143_FP8, Format.SEN152_FP8)
_FIL, _B = "fil", "b"
COMBINE_TYPES = {
    Combine.SUM: _FIL,
    Combine.PROD: _FIL,
    Combine.MAX: _FIL,
    Combine.MIN: _FIL,
    Combine.ANY: _B,
    Combine.ALL: _B,
    Combine.ARGMAX: _FIL,
    Combine.ARGMIN: _FIL,
    Combine.WELFORD: "f",
}
ARG = (Combine.ARGMAX, Combine.ARGMIN)


class _Check:
    """The tests of one COMPUTE; `fail` raises."""

    def __init__(self, compute: Compute, place: str) -> None:
        self.compute = compute
        self.place = f"{place} {compute.kind.value}"
        self.labels = {label.name for label in compute.over}

    def fail(self, text: str) -> VerifyError:
        return VerifyError(1, self.place, text)

    def need(self, holds: bool, text: str) -> None:
        if not holds:
            raise self.fail(text)

    def count(self, inputs: int, outputs: int) -> None:
        self.need(
            len(self.compute.inputs) == inputs and len(self.compute.outputs) == outputs,
            f"takes {inputs} inputs and {outputs} outputs, got {len(self.compute.inputs)} and"
            f" {len(self.compute.outputs)}",
        )

    def has_label(self) -> str:
        label = self.compute.label
        if label is None or label not in self.labels:
            raise self.fail(f"needs `label`, one of the box; got {label!r}")
        return label

    def formats(self, what: str, access: Access, *allowed: Format) -> None:
        self.need(
            access.format in allowed,
            f"{what} {access.value} has format {access.format.name}; allowed:"
            f" {', '.join(format.name for format in allowed)}",
        )

    def combine(self) -> Combine:
        if self.compute.combine is None:
            raise self.fail("needs `combine`")
        return self.compute.combine


def indexed(access: Access) -> set[str]:
    """The labels among an access's indices."""
    return {index.label for index in access.index if index.label is not None}


def check_index_format(format: Format, place: str) -> None:
    if format not in (Format.IEEE_INT32, Format.IEEE_INT64):
        raise VerifyError(1, place, f"indices are IEEE_INT32 or IEEE_INT64, not {format.name}")


def check_compute(compute: Compute, place: str, floats: set[str], integers: set[str]) -> None:
    """Raises VerifyError. `floats` and `integers`: the symbols a body may read."""
    check = _Check(compute, place)
    unit = Unit.PT if compute.kind is Kind.MATMUL else Unit.SFU
    check.need(compute.unit is unit, f"belongs to the {unit.value}")
    for access in (*compute.inputs, *compute.outputs):
        check.need(
            register_of(access.format) is not None,
            f"{access.value} has host format {access.format.name}, which no unit computes",
        )
    lanes = [access for access in compute.inputs if access.lanes]
    check.need(not lanes or compute.kind is Kind.FOLD, "only FOLD reads lane accumulators")
    lanes = [access for access in compute.outputs if access.lanes]
    check.need(not lanes or compute.kind is Kind.REDUCE, "only REDUCE writes lane accumulators")
    if compute.kind in (Kind.MAP, Kind.REDUCE):
        _check_body(check, floats, integers)
    else:
        check.need(compute.body is None, "has no body")
    accumulates = (Kind.MATMUL, Kind.REDUCE, Kind.SCAN, Kind.TOPK)
    check.need(
        compute.kind in accumulates or compute.accumulate.constant == 0, "does not accumulate"
    )
    _KINDS[compute.kind](check)


def _check_body(check: _Check, floats: set[str], integers: set[str]) -> None:
    compute = check.compute
    if compute.body is None:
        raise check.fail("needs a body")
    fault = body_fault(compute.body.nodes, compute.body.results, len(compute.inputs))
    check.need(fault is None, f"body: {fault}")
    for number, node in enumerate(compute.body.nodes):
        where = f"body: node {number} {node.op}.{node.type}"
        if node.op == "input":
            assert isinstance(node.immediate, int)
            format = compute.inputs[node.immediate].format
            register = register_of(format)
            check.need(
                register is not None and register.value == node.type,
                f"{where}: input {node.immediate} has format {format.name}, a register of type"
                f" {register.value if register else '-'}",
            )
        elif node.op == "scalar":
            known = floats if node.type == "f" else integers
            check.need(
                node.immediate in known, f"{where}: no symbol {node.immediate!r} of that type"
            )
        elif node.op == "index":
            check.need(node.immediate in check.labels, f"{where}: no label {node.immediate!r}")
        elif node.op == "round":
            format = Format[str(node.immediate)]
            check.need(
                register_of(format) is RegisterType.F32,
                f"{where}: {format.name} is no float format",
            )


def _result_types(compute: Compute) -> list[str]:
    assert compute.body is not None
    letters = [BODY_OP[node.op].result_of(node.type, node.immediate) for node in compute.body.nodes]
    return [letters[result] for result in compute.body.results]


def _matmul(check: _Check) -> None:
    check.count(2, 1)
    (a, b), (out,) = check.compute.inputs, check.compute.outputs
    in_a, in_b, in_out = indexed(a), indexed(b), indexed(out)
    k, n = (in_a & in_b) - in_out, (in_b & in_out) - in_a
    check.need(len(k) == 1, f"one label must be in both inputs and not the output, not {sorted(k)}")
    check.need(len(n) == 1, f"one label must be in b and the output only, not {sorted(n)}")
    known = (in_a & in_out) | k | n
    check.need(
        in_a | in_b | in_out == known and check.labels == known,
        f"labels {sorted((check.labels | in_a | in_b | in_out) - known)} are no batch, m, k or n",
    )
    check.need(
        {a.stick} == k and {b.stick} == n and {out.stick} == n,
        "a must have k on the stick, b and the output n",
    )
    check.formats("a:", a, *MATMUL_FORMATS)
    check.need(
        a.format is b.format or (a.format in FP8 and b.format in FP8),
        f"inputs of formats {a.format.name} and {b.format.name} do not go together",
    )
    exact = Format.IEEE_INT32 if a.format is Format.SENINT8 else Format.IEEE_FP32
    check.formats("output", out, exact)
    check.need(check.compute.combine is None, "has no combine")


def _map(check: _Check) -> None:
    compute = check.compute
    types = _result_types(compute)
    check.need(
        len(types) == len(compute.outputs) >= 1,
        f"{len(types)} results for {len(compute.outputs)} outputs",
    )
    for letter, out in zip(types, compute.outputs, strict=True):
        register = register_of(out.format)
        check.need(
            letter == "b" or (register is not None and register.value == letter),
            f"output {out.value} of format {out.format.name} cannot hold a register of type"
            f" {letter}; cast first",
        )


def _reduce(check: _Check) -> None:
    compute, combine = check.compute, check.combine()
    types = _result_types(compute)
    check.need(len(types) == 1, f"combines one result, the body has {len(types)}")
    check.need(
        types[0] in COMBINE_TYPES[combine], f"{combine.value} does not exist for type {types[0]}"
    )
    exact = [EXACT[RegisterType(types[0])]]
    if combine in ARG:
        exact = [exact[0], Format.IEEE_INT64]
    elif combine is Combine.WELFORD:
        exact = [Format.IEEE_FP32] * 3
    check.count(len(compute.inputs), len(exact))
    for out, format in zip(compute.outputs, exact, strict=True):
        check.formats("output", out, format)
    kept = indexed(compute.outputs[0])
    check.need(
        all(indexed(out) == kept for out in compute.outputs), "the outputs' labels must agree"
    )
    reduced = check.labels - kept
    check.need(bool(reduced), "reduces no label: the outputs have them all")
    check.need(combine not in ARG or len(reduced) == 1, f"{combine.value} reduces one label")
    sticks = {access.stick for access in compute.inputs} - {None}
    check.need(len(sticks) <= 1, f"inputs have different stick labels: {sorted(map(str, sticks))}")
    lane = next(iter(sticks), None)
    for out in compute.outputs:
        if lane in reduced:
            check.need(out.lanes, f"reduces the stick label {lane}: outputs must be lanes tiles")
        else:
            check.need(
                not out.lanes and out.stick == lane, f"outputs must have {lane} on their stick"
            )


def _fold(check: _Check) -> None:
    combine = check.combine()
    tiles = 2 if combine in ARG else 3 if combine is Combine.WELFORD else 1
    check.count(tiles, tiles)
    for source, out in zip(check.compute.inputs, check.compute.outputs, strict=True):
        check.need(source.lanes, f"input {source.value} must be a lanes tile")
        check.need(out.stick is None, f"output {out.value} must be sparse")
        check.need(source.format is out.format, "inputs and outputs must agree in format")
        check.formats("input", source, *EXACT.values())
        missing = sorted(check.labels - (indexed(source) & indexed(out)))
        check.need(
            not missing,
            f"inputs and outputs must have every label of over, and {', '.join(missing)} is not"
            " in all of them",
        )
    first = check.compute.inputs[0].format
    if combine in ARG:
        check.formats("indices", check.compute.inputs[1], Format.IEEE_INT64)
    elif combine in (Combine.ANY, Combine.ALL):
        check.need(first is Format.IEEE_INT32, "any and all fold IEEE_INT32")
    elif combine is Combine.WELFORD:
        for source in check.compute.inputs:
            check.formats("input", source, Format.IEEE_FP32)


def _scan(check: _Check) -> None:
    label, combine = check.has_label(), check.combine()
    check.need(
        combine in (Combine.SUM, Combine.PROD, Combine.MAX, Combine.MIN),
        f"combines by sum, prod, max or min, not {combine.value}",
    )
    check.count(2, 2)
    (x, carry), (y, carry_out) = check.compute.inputs, check.compute.outputs
    register = register_of(x.format)
    assert register is not None
    check.need(register_of(y.format) is register, "x and y must have one register type")
    for tile in (carry, carry_out):
        check.formats("carry", tile, EXACT[register])
        check.need(label not in indexed(tile), f"the carry must not have label {label}")
        check.need(
            indexed(tile) == check.labels - {label}, "the carry must have all the other labels"
        )
    check.need(label in indexed(x) and label in indexed(y), f"x and y must have label {label}")


def _by_index(check: _Check) -> None:
    """GATHER and SCATTER; the tile whose positions the index gives must have the label."""
    label = check.has_label()
    check.count(2, 1)
    (source, index), (out,) = check.compute.inputs, check.compute.outputs
    check_index_format(index.format, check.place)
    check.need(source.format is out.format, "source and output must have one format")
    gathers = check.compute.kind is Kind.GATHER
    tile, what = (source, "source") if gathers else (out, "output")
    check.need(label in indexed(tile), f"the {what} must have label {label}")


def _sort(check: _Check) -> None:
    label = check.has_label()
    inputs = len(check.compute.inputs)
    check.need(inputs in (1, 2), f"takes 1 or 2 inputs, got {inputs}")
    check.count(inputs, 2)
    _values_and_indices(check, label)
    if inputs == 2:
        check_index_format(check.compute.inputs[1].format, check.place)


def _merge(check: _Check) -> None:
    label = check.has_label()
    check.count(4, 4)
    _values_and_indices(check, label)


def _topk(check: _Check) -> None:
    label = check.has_label()
    inputs = len(check.compute.inputs)
    check.need(inputs in (1, 2), f"takes 1 or 2 inputs, got {inputs}")
    check.count(inputs, 2)
    _values_and_indices(check, label)
    if inputs == 2:
        check_index_format(check.compute.inputs[1].format, check.place)


def _values_and_indices(check: _Check, label: str) -> None:
    compute = check.compute
    values = compute.inputs[0].format
    for number, out in enumerate(compute.outputs):
        check.formats("output", out, Format.IEEE_INT64 if number % 2 else values)
    if compute.kind is Kind.MERGE:
        for number, source in enumerate(compute.inputs):
            check.formats("input", source, Format.IEEE_INT64 if number % 2 else values)
    for tile in (*compute.inputs, *compute.outputs):
        check.need(label in indexed(tile), f"{tile.value} must have label {label}")


_KINDS: dict[Kind, Callable[[_Check], None]] = {
    Kind.MATMUL: _matmul,
    Kind.MAP: _map,
    Kind.REDUCE: _reduce,
    Kind.FOLD: _fold,
    Kind.SCAN: _scan,
    Kind.GATHER: _by_index,
    Kind.SCATTER: _by_index,
    Kind.SORT: _sort,
    Kind.MERGE: _merge,
    Kind.TOPK: _topk,
}
