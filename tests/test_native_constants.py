"""Constants, codes and names with a home in Python and one in C++: read from both, and equal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from openspyre import card
from openspyre.formats import STICK_BYTES, Format
from openspyre.program import binary, binary_rules, model, ops
from openspyre.program.expr import OPERATORS
from openspyre.program.model import Role, SymbolKind, Unit
from openspyre.reference import FaultKind
from openspyre.runtime.spyrecode import PROGRAM_BASE

CSRC = Path(__file__).parent.parent / "csrc"
PROGRAM = (CSRC / "machine/program/program.h").read_text()
TABLE = (CSRC / "machine/program/op_table.cpp").read_text()


def constants(*files: str) -> dict[str, int]:
    """The integer constants of C++ files, by name."""
    found: dict[str, int] = {}
    for file in files:
        for statement in re.findall(r"\bconstexpr \w+ ([^;(]*=[^;]*);", (CSRC / file).read_text()):
            for name, value in re.findall(r"(k\w+) = ([^,]+)", statement):
                plain = re.sub(r"\w+\((\d+)\)", r"\1", value)  # int64_t(64) << 20
                plain = re.sub(r"(?<=\d)u?l?l?\b", "", plain)
                if re.fullmatch(r"[0-9A-Fa-fx<*+ ]+", plain):
                    found[name] = eval(plain)
    return found


def enumerators(text: str, name: str) -> list[str]:
    """Those of an `enum class`, in order, in lower case."""
    body = re.search(rf"enum (?:class )?{name}\b[^{{]*{{(.*?)}}", text, re.DOTALL)
    assert body, name
    return [item.lower() for item in re.findall(r"\w+", body[1])]


def names_of(function: str) -> list[str]:
    """The strings of a name function of op_table.cpp."""
    body = re.search(rf"{function}\(.*?names\[\] = {{(.*?)}};", TABLE, re.DOTALL)
    assert body, function
    return re.findall(r'"(\w+)"', body[1])


def test_limits_of_images_are_those_of_the_machine() -> None:
    native = constants(
        "machine/program/program.h", "machine/program/decode.cpp", "machine/kernels/sfu_plan.h"
    )
    assert native["kProgramVersion"] == model.VERSION
    assert native["kUnpatched"] == binary.UNPATCHED
    assert native["kHeaderBytes"] == binary.HEADER_BYTES
    assert native["kLaneAccumulators"] == ops.LANE_ACCUMULATORS
    assert native["kMaxLabels"] == binary_rules.MAX_LABELS
    assert native["kMaxTiles"] == binary_rules.MAX_TILES
    assert native["kMaxRank"] == binary_rules.MAX_RANK
    assert native["kMaxCores"] == binary_rules.MAX_CORES
    assert native["kMaxLoops"] == native["kMaxExprDepth"] == binary_rules.MAX_DEPTH
    assert native["kMaxNodes"] == binary_rules.MAX_NODES
    assert native["kMaxSemaphores"] == binary_rules.MAX_SEMAPHORES
    assert native["kMaxLxBytes"] == binary_rules.MAX_LX_BYTES


def test_the_cards_memory_is_the_machines() -> None:
    native = constants("machine/formats.h", "card/memory.h", "card/plan_launch.cpp")
    assert native["kStickBytes"] == STICK_BYTES == card.STICK_BYTES
    assert native["kBlockAlign"] == card.BLOCK_ALIGN
    assert native["kSegmentBits"] == card.SEGMENT_BITS
    assert native["kProgramSegment"] == card.PROGRAM_SEGMENT
    assert native["kDynamicSegment"] == card.DYNAMIC_SEGMENT
    assert native["kTensorSegments"] == len(card.TENSOR_SEGMENTS)
    assert native["kProgramSegment"] << native["kSegmentBits"] == PROGRAM_BASE


def test_a_program_is_laid_out_for_the_card_unless_it_says_otherwise() -> None:
    """`model.Card` repeats two figures, so that a Program needs no card to be read."""
    spec = card.CardSpec()
    assert model.Card() == model.Card(spec.name, spec.cores, spec.lx_bytes)


@pytest.mark.parametrize(
    ("native", "python"),
    [
        ("Unit", [unit.value for unit in Unit]),
        ("Role", [role.value for role in Role]),
        ("SymbolKind", [kind.value for kind in SymbolKind]),
        ("Kind", [kind.value for kind in ops.Kind]),
        ("Combine", [combine.value for combine in ops.Combine]),
        ("Register", [register.name.lower() for register in ops.RegisterType]),
    ],
)
def test_enumerations_have_one_order(native: str, python: list[str]) -> None:
    """The order is the binary code."""
    assert enumerators(PROGRAM, native) == python


def test_formats_have_one_order() -> None:
    header = (CSRC / "machine/formats.h").read_text()
    native = enumerators(re.sub(r"//.*", "", header), "class Format")
    assert native[: len(Format)] == [format.name.lower() for format in Format]


def test_operators_have_one_order() -> None:
    names = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod"}
    names |= {"==": "eq", "<": "lt", "<=": "le"}
    wanted = [names.get(operator, operator) for operator in OPERATORS]
    assert enumerators(PROGRAM, "Code") == ["const", "var", *wanted]


def test_operations_of_bodies_have_one_order_and_the_same_types() -> None:
    """Names, register types and operands of every operation."""
    rows = re.search(r"kTable\[\] = {(.*?)\n};", TABLE, re.DOTALL)
    assert rows
    found = []
    for call, values in re.findall(r"^    (\w*)[({](.*?)[)}],$", rows[1], re.MULTILINE):
        name, *rest = re.findall(r'"(\w*)"', values)
        types, operands = {
            "unary": ("f", "T"),
            "test": ("f", "T"),
            "unary_any": ("fil", "T"),
            "compare": ("filb", "TT"),
            "binary": (rest[0] if rest else "", "TT"),
            "": tuple(rest[:2]),
        }[call]
        found.append((name, types, operands))
    assert found == [(op.name, op.types, op.operands) for op in ops.BODY_OPS]


def test_names_in_messages_are_the_texts_of_programs() -> None:
    assert names_of("unit_name") == [unit.value for unit in Unit]
    assert names_of("kind_name") == [kind.value for kind in ops.Kind]
    assert names_of("combine_name") == [combine.value for combine in ops.Combine]


def test_both_executors_name_their_faults_alike() -> None:
    native = enumerators((CSRC / "machine/program/execute.h").read_text(), "Kind")
    assert native == [kind.value for kind in FaultKind][: len(native)]
