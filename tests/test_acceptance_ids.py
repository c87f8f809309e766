"""Every acceptance id is in the name of a test, or waits for a later stage with a reason.

Ids: RT (runtime), L (layouts), P (Programs), N (numerics), T (timing), R (restickify), W (work
division), S (scratchpad), I (Inductor), O (operations), PT (pitfalls of PyTorch), B (known traps of
accelerators). X (speed) are benchmarks: tests/test_benchmarks.py. A test
carries its ids in its name: `test_rt12_b109_...` in Python, `TEST(rt12_...)` in C++;
`test_l1_to_l26_...` stands for a range. A deferred id must not have a test: when it gets one, its
line here goes.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def ids(prefix: str, *numbers: int | range) -> set[str]:
    """The ids of single numbers and ranges: ids("rt", 1, range(3, 5)) is rt1, rt3, rt4."""
    every = [n for item in numbers for n in (item if isinstance(item, range) else (item,))]
    return {f"{prefix}{n}" for n in every}


# fmt: off
KNOWN_TRAPS = ids(
    "b",
    1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 22, 23, 25, 26, 28, 29, 31, 32, 34, 35, 37,
    38, 40, 41, 43, 44, 46, 47, 49, 50, 52, 53, 55, 56, 58, 59, 61, 62, 64, 65, 67, 68, 70, 71, 73,
    74, 76, 77, 79, 80, 82, 83, 85, 86, 88, 89, 91, 92, 94, 95, 97, 98, 100, 101, 103, 104, 106,
    107, 109, 110, 112, 113, 115, 116, 118, 119, 121, 122, 124, 125, 127, 128, 130, 131, 133, 134,
    136, 137, 139, 140, 142, 143, 145, 146, 148, 149, 151, 152, 154, 155, 157, 158, 160, 161, 163,
    164, 166, 167, 169, 170, 172, 173, 175, 176, 178, 179, 181, 182, 184, 185, 187, 188, 190, 191,
    193, 194, 196,
)
# fmt: on
REQUIRED = (
    ids("rt", range(1, 81))
    | ids("l", range(1, 34))
    | ids("p", range(1, 10))
    | ids("n", range(1, 10))
    | ids("t", 1, 2, 3, 5, 6, 7)  # there is no T4
    | ids("pt", range(1, 39))
    | ids("r", range(1, 4))
    | ids("w", range(1, 9))
    | ids("s", range(2, 6))
    | ids("i", range(1, 8))
    | ids("o", range(1, 9))
    | KNOWN_TRAPS
)

# Reason -> ids. What needs a part of OpenSpyre that is not built yet.
DEFERRED: dict[str, set[str]] = {
    "needs the distributed backend": ids("rt", range(76, 81))
    | ids("pt", 27)
    | ids("b", 154, 155, 157, 158),
    "needs the failure report and the tools of whole models": ids(
        "b", 163, 179, 181, 182, 184, 185, 187
    ),
    "needs the serving engine": ids("b", 116, 136),
}


def names() -> set[str]:
    """The names of all tests, without `test_`."""
    found = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found.add(node.name.removeprefix("test_"))
    for file in (ROOT / "csrc" / "tests").glob("test_*.cpp"):
        found.update(re.findall(r"^TEST\((\w+)\)", file.read_text(), re.MULTILINE))
    return found


def ids_of(name: str) -> set[str]:
    """The ids in one name; b001 is b1."""
    found = {
        f"{prefix}{int(number)}"
        for prefix, number in re.findall(
            r"(?<![a-z0-9])(rt|l|pt|p|n|t|b|r|w|s|i|o)(\d+)(?![a-z0-9])", name.replace("_", " ")
        )
    }
    for prefix, first, last in re.findall(r"(?:^|_)([a-z]+)(\d+)_to_\1(\d+)_", name):
        found |= ids(prefix, range(int(first), int(last) + 1))
    return found


def covered() -> set[str]:
    return {one for name in names() for one in ids_of(name)}


def in_order(some: set[str]) -> list[str]:
    return sorted(some, key=lambda one: (re.sub(r"\d", "", one), int(re.sub(r"\D", "", one))))


def test_every_id_has_a_test_or_a_reason_to_wait() -> None:
    deferred = set().union(*DEFERRED.values())
    assert in_order(REQUIRED - deferred - covered()) == []


def test_no_id_waits_that_has_a_test_or_is_unknown() -> None:
    deferred = set().union(*DEFERRED.values())
    assert sum(map(len, DEFERRED.values())) == len(deferred), "an id waits for one reason"
    assert in_order(deferred & covered()) == []
    assert in_order(deferred - REQUIRED) == []


def test_names_carry_no_unknown_id() -> None:
    assert in_order(covered() - REQUIRED) == []


def test_ids_are_read_from_names() -> None:
    assert ids_of("rt12_b109_garbage_is_collected") == {"rt12", "b109"}
    assert ids_of("l1_to_l26_rows") == ids("l", range(1, 27))
    assert ids_of("b001_a_copy") == {"b1"}
    assert ids_of("layout_l27_address") == {"l27"}
    assert ids_of("all_dl16_codes_and_float16") == set()
