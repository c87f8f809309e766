"""The text form: exact round trips, and errors that say where and what."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from golden_programs import DATA, GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st
from program_models import Models

from openspyre.program.binary_rules import ProgramFormatError
from openspyre.program.expr import Binary, Const, Expr, Var
from openspyre.program.model import Card, Digit, Let, Program
from openspyre.program.text import ProgramTextError, from_text, to_text

HEAD = 'program "p" version 1\ncard "spyre" cores 32 lx 2097152\ngrid c 4\n'
BODY = HEAD + "operand x in float16 SEN169_FP16 [64]\nbuffer xt base 0 bytes 128\ntoken t\n"


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_p1_text_of_a_program_parses_to_the_same_program(seed: int) -> None:
    program = Models(random.Random(seed)).program()
    text = to_text(program)
    again = from_text(text)
    assert again == program
    assert to_text(again) == text


@pytest.mark.parametrize("name", GOLDEN)
def test_p1_golden_text_says_the_golden_program(name: str) -> None:
    text = (DATA / f"golden_{name}.txt").read_text(encoding="utf-8")
    program = GOLDEN[name]()
    assert to_text(program) == text
    assert from_text(text) == program


def test_the_example_of_the_page_is_the_text_of_abs64() -> None:
    page = (Path(__file__).parent.parent / "docs" / "program.md").read_text(encoding="utf-8")
    example = to_text(GOLDEN["abs64"]())
    assert "".join(f"    {line}\n" if line else "\n" for line in example.splitlines()) in page


@pytest.mark.parametrize("name", GOLDEN)
def test_p1_spaces_lines_and_comments_mean_nothing(name: str) -> None:
    text = to_text(GOLDEN[name]())
    flat = " ".join(text.split("\n"))
    first, rest = text.split("\n", 1)
    airy = rest.replace("\n", '  # a comment { [ "\r\n\t').replace(", ", " ,\n")
    airy = f"{first}\n{airy}"
    assert from_text(flat) == from_text(airy) == GOLDEN[name]()


def expressions() -> st.SearchStrategy[Expr]:
    leaves = st.one_of(
        st.integers(-(2**63), 2**63 - 1).map(Const), st.sampled_from(["c", "core"]).map(Var)
    )
    operators = st.sampled_from(["+", "-", "*", "//", "%", "min", "max", "==", "<", "<="])
    return st.recursive(
        leaves, lambda inner: st.builds(Binary, operators, inner, inner), max_leaves=24
    )


@given(expressions())
@settings(max_examples=200, deadline=None)
def test_p1_every_expression_keeps_its_tree(value: Expr) -> None:
    program = Program("p", Card(), (Digit("c", 4),), lets=(Let("v", value),))
    assert from_text(to_text(program)).lets[0].value == value


def test_hand_written_text_may_use_hexadecimal_and_any_order_of_declarations() -> None:
    program = from_text(
        HEAD + "let a = 0x10\nbuffer b base 0x80 bytes 128\nlet z = a * (2)\ndata {}"
    )
    assert program.lets == (Let("a", Const(16)), Let("z", Binary("*", Var("a"), Const(2))))
    assert program.buffers[0].base == 128


MISTAKES = [
    ("", "line 1, column 1: expected 'program', found the end of the text"),
    ("program p", "line 1, column 9: expected the program's name in quotes, found 'p'"),
    ('program "p" version 3', "line 1, column 21: version 3 is too new"),
    ('program "p', "line 1, column 9: '\"' has no meaning here; the text ends inside this string"),
    ('program "\\q"', "line 1, column 10: no escape \\q"),
    ('program "\\u{110000}" version 1', "no character"),
    (HEAD + "buffr b", "line 4, column 1: expected a declaration, 'buffr' is none; did you mean "
     "buffer?"),
    (HEAD + "let c = 1", "line 4, column 5: the name 'c' is taken"),
    (HEAD + "let core = 1", "the name 'core' is taken"),
    ('program "p" version 1\ncard "spyre" cores 4 lx 256\ngrid core 4',
     "line 3, column 6: the name 'core' is taken: give the digit another"),
    (HEAD + "let v = 1 +", "line 4, column 12: expected an expression, found the end of the text"),
    (HEAD + "let v = d", "line 4, column 9: expected a variable, 'd' is none; there are c, core"),
    (HEAD + "let v = 1 < 2 < 3", "column 15: comparisons do not chain"),
    (HEAD + "let v = 99999999999999999999", "column 9: a 64-bit integer must lie in -922"),
    (HEAD + "let v = " + "9" * 100_000, "a 64-bit integer must lie in"),
    (HEAD + "let v = " + "(" * 100_000, "more than 64 deep"),
    (HEAD + "let v = " + "1+" * 100_000 + "1", "more than 64 deep"),
    (HEAD + "let v = min(1 2)", "column 15: expected ',', found '2'"),
    (HEAD + "let v = 1 @ 2", "column 11: '@' has no meaning here"),
    (HEAD + "symbol n length", "expected a kind of symbol, 'length' is none"),
    (HEAD + "symbol n int minimum 1 minimum 2", "column 24: minimum is given twice"),
    (HEAD + "symbol n dimension argument 0 dim 0", "line 4, column 8: symbol n: argument 0 is not"),
    (HEAD + "symbol s float\nlet v = s", "expected a variable, 's' is none"),
    (HEAD + "let v = 1\nvalue y [v]", "line 5, column 10: expected a variable, 'v' is none"),
    (HEAD + "operand x in float16 FP99 [1]", "expected a format, 'FP99' is none"),
    (HEAD + "operand x of float16 FP99 [1]", "expected a role, 'of' is none; there are in, out"),
    (HEAD + "value y []\nvalue y []", "line 5, column 7: the name 'y' is taken"),
    (HEAD + "token t count -1", "column 15: the number of semaphores must lie in 0.."),
    (HEAD + "queue alu {}", "expected a unit, 'alu' is none; there are load, store, ring, pt, sfu"),
    (HEAD + "queue pt {}\nqueue pt {}", "line 5, column 7: queue pt is given twice"),
    (HEAD + "queue pt { jump }", "expected an instruction or '}', 'jump' is none"),
    (HEAD + "queue pt {", "found the end of the text"),
    (HEAD + "queue pt { wait u }", "expected a token, 'u' is none; there are none"),
    (HEAD + "queue pt { loop c < 2 {} }", "the name 'c' is taken: give the loop another"),
    (HEAD + "queue pt { " + "repeat 1 { " * 10_000, "loops nest more than 64 deep"),
    (HEAD + "data { 0g }", "line 4, column 9: expected hexadecimal digits or '}', found 'g'"),
    (HEAD + "data { 000 }", "an odd number of hexadecimal digits"),
    (HEAD + "data { 00", "expected hexadecimal digits or '}', found the end"),
    (HEAD + "data {} data {}", "data is given twice"),
    (BODY + "queue load { load over i = 0 size 64 from x[j] at x as SEN169_FP16 }",
     "line 7, column 45: expected a label of this instruction, 'j' is none; there are i"),
    (BODY + "queue load { load over i = 0 size 64 from y[i] at x as SEN169_FP16 }",
     "expected a value or an operand, 'y' is none"),
    (BODY + "queue load { load over i = 0 size 64 from x[i] at y as SEN169_FP16 }",
     "expected an operand or a buffer, 'y' is none"),
    (BODY + "queue load { load over i = 0 size 64 from x[i] at x step i 1, i 2 as SEN169_FP16 }",
     "a label has two steps"),
    (BODY + "queue load { load over nothing from x[=0] at x as SEN169_FP16 to x[=0] at xt as "
     "SEN169_FP16 multicast d }", "expected a digit, 'd' is none; there are c"),
    (BODY + "queue sfu { compute mapp over nothing }", "did you mean map?"),
    (BODY + "queue sfu { compute map over nothing body { %0 = tahn.f %0; give %0 } }",
     "expected an operation, 'tahn' is none; did you mean tan"),
    (BODY + "queue sfu { compute map over nothing body { %0 = exp.i %0; give %0 } }",
     "expected a type of exp, 'i' is none; there are f"),
    (BODY + "queue sfu { compute map over nothing body { %0 = exp.f %0; give %0 } }",
     "an earlier node must lie in"),
    (BODY + "queue sfu { compute map over nothing body { %1 = const.f 1; give %0 } }",
     "expected %0: nodes are numbered in order"),
    (BODY + "queue sfu { compute map over nothing body { %0 = const.i 1; %1 = const.l 1; "
     "%2 = add.i %0 %1; give %2 } }", "node 2 add.i: operand 1 has type l, i is needed"),
    (BODY + "queue sfu { compute map over nothing body { %0 = input.f 0; give %0 } }",
     "input 0 is not one of the 0 inputs"),
]  # fmt: skip


@pytest.mark.parametrize("text,message", MISTAKES, ids=[message[:50] for _, message in MISTAKES])
def test_a_mistake_in_a_text_is_named_with_line_and_column(text: str, message: str) -> None:
    with pytest.raises(ProgramTextError) as caught:
        from_text(text)
    assert str(caught.value).startswith("line ")
    assert message in str(caught.value)


@given(st.integers(0, 2**32), st.sampled_from(list(GOLDEN)))
@settings(max_examples=500, deadline=None)
def test_a_damaged_text_gives_an_error_or_another_program(seed: int, name: str) -> None:
    text = to_text(GOLDEN[name]())
    r = random.Random(seed)
    start = r.randrange(len(text))
    cut = r.choice((0, 1, 1, 5, 200))
    piece = r.choice(("", "%", "0", "-", "{", "}", "(", " x ", "1e9", '"', "\x00", "\u00e9", ", 1"))
    try:
        program = from_text(text[:start] + piece + text[start + cut :])
    except ProgramTextError:
        return
    assert from_text(to_text(program)) == program


BAD_NAMES: list[Callable[[str], Program]] = [
    lambda name: Program("p", Card(), (Digit(name, 1),)),
    lambda name: Program("p", Card(), (), lets=(Let(name, Const(1)),)),
    lambda name: Program("p", Card(), (), lets=(Let("v", Var(name)),)),
]


@pytest.mark.parametrize("name", ["", "a b", "1a", "a.b", "\u00e9", "a\n", "x" * 300])
@pytest.mark.parametrize("build", BAD_NAMES)
def test_names_that_are_no_identifiers_have_no_text(
    build: Callable[[str], Program], name: str
) -> None:
    with pytest.raises(ProgramFormatError, match="is no name"):
        to_text(build(name))
