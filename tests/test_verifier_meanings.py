"""Rule 4 of the verifier: an element of a value is one thing.

Each program computes a value in two ways that differ in one respect only, so that a stale tile of
the first could pass for the second. The one-way program beside it is accepted.
"""

from __future__ import annotations

import pytest

from openspyre.program.text import from_text
from openspyre.program.verify import VerifyError, verify

ONE = 'program "p" version 1 card "spyre" cores 32 lx 2097152 grid c 1\n'
TWO = 'program "p" version 1 card "spyre" cores 32 lx 2097152 grid c 2\n'


def refused(text: str, rule: int, words: str) -> None:
    """Of `<< a || b >>` in the text: the program with a alone is valid, with a and b it is not."""
    before, rest = text.split("<<")
    halves, after = rest.split(">>")
    first, second = halves.split("||")
    verify(from_text(before + first + after))
    with pytest.raises(VerifyError, match=words) as caught:
        verify(from_text(before + first + second + after))
    assert caught.value.rule == rule


def line(verb: str, tile: str, buffer: str) -> str:
    return f"{verb} {tile}[i] at {buffer} step i 128 stick i as SEN169_FP16\n"


def test_a_result_of_a_map_stays_the_same_result() -> None:
    """y = x and w = -x, then the same body with y = -x and w = x."""
    over = "over i = 0 size 64\n"
    body = "body { %0 = input.f 0; %1 = neg.f %0; give %0 %1 }\n"
    refused(
        f"""{ONE}
        operand x in float16 SEN169_FP16 [64]
        operand z out float16 SEN169_FP16 [64]
        value y [64] value w [64]
        buffer a base 0 bytes 128 buffer b base 128 bytes 128 buffer c base 256 bytes 128
        buffer d base 384 bytes 128 token l token s
        queue load {{ load {over} {line("from", "x", "x")} {line("to", "x", "a")} signal l }}
        queue sfu {{ wait l
          << compute map {over} {line("read", "x", "a")} {line("write", "y", "b")}
             {line("write", "w", "c")} {body}
          || compute map {over} {line("read", "x", "a")} {line("write", "w", "d")}
             {line("write", "y", "b")} {body}
          >> compute map {over} {line("read", "y", "b")} {line("write", "z", "d")}
             body {{ %0 = input.f 0; give %0 }}
          signal s }}
        queue store {{ wait s store {over} {line("from", "z", "d")} {line("to", "z", "z")} }}
        """,
        4,
        "in another way",
    )


def test_a_map_of_the_transposed_tile_is_another_map() -> None:
    over = "over i = 0 size 64, j = 0 size 64\n"
    x = "x[i, j] at {} step i 128, j 8192 stick j as SEN169_FP16\n"
    y = "y[i, j] at b step i 128, j 8192 stick j as SEN169_FP16\n"
    z = "z[i, j] at {} step i 128, j 8192 stick j as SEN169_FP16\n"
    turned = "x[j, i] at a step j 128, i 8192 stick i as SEN169_FP16\n"
    body = "body { %0 = input.f 0; give %0 }\n"
    refused(
        f"""{ONE}
        operand x in float16 SEN169_FP16 [64, 64]
        operand z out float16 SEN169_FP16 [64, 64]
        value y [64, 64]
        buffer a base 0 bytes 8192 buffer b base 8192 bytes 8192 buffer d base 16384 bytes 8192
        token l token s
        queue load {{ load {over} from {x.format("x")} to {x.format("a")} signal l }}
        queue sfu {{ wait l
          << compute map {over} read {x.format("a")} write {y} {body}
          || compute map {over} read {turned} write {y} {body}
          >> compute map {over} read {y} write {z.format("d")} {body}
          signal s }}
        queue store {{ wait s store {over} from {z.format("d")} to {z.format("z")} }}
        """,
        4,
        "in another way",
    )


def ring(tile: str, combine: str, tile_after: str, combine_after: str) -> str:
    """Two cores join tiles of v, or their parts of y, in y: by one RING, or then by another."""
    over = "over i = 0 size 8, j = 0 size 8\n"
    at = "step i 128, j 1024 as IEEE_FP32\n"
    body = "body { %0 = input.f 0; give %0 }\n"
    make = (
        f"compute map {over} read x[=c, i, j] at a {at} write v[=c, i, j] at b {at} {body}"
        if tile.startswith("v")
        else f"compute reduce over n = c size 1, i = 0 size 8, j = 0 size 8 read x[n, i, j] at a"
        f" step n 128, i 128, j 1024 as IEEE_FP32 write y[i, j] at b {at} {body} combine sum"
    )
    whole = f"ring n < 2 core n {over} from {tile} to y[i, j] at e {at}"
    other = f"ring n < 2 core n {over} from {tile_after} to y[i, j] at e {at}"
    return f"""{TWO}
        operand x in float32 IEEE_FP32 [2, 8, 8] order [1, 2, 0, -1]
        operand z out float32 IEEE_FP32 [2, 8, 8] order [1, 2, 0, -1]
        value v [2, 8, 8] value y [8, 8] reduced [2]
        buffer a base 0 bytes 8192 buffer b base 8192 bytes 8192 buffer d base 16384 bytes 8192
        buffer e base 24576 bytes 8192 token l token s count 2 token r token q
        queue load {{ load {over} from x[=c, i, j] at x {{x}} to x[=c, i, j] at a {at} signal l }}
        queue sfu {{ wait l {make} loop k < 2 {{ signal s[c] core k }} wait r
          compute map {over} read y[i, j] at e {at} write z[=c, i, j] at d {at} {body} signal q }}
        queue ring {{ loop k < 2 {{ wait s[k] }}
          << {whole} combine {combine} || {other} combine {combine_after} >> signal r }}
        queue store {{ wait q store {over} from z[=c, i, j] at d {at} to z[=c, i, j] at z {{x}} }}
        """.replace("{x}", "offset c * 1024 step i 128, j 2048 as IEEE_FP32")


AT_B = "at b step i 128, j 1024 as IEEE_FP32"


def test_a_ring_combines_a_value_by_one_operation() -> None:
    tile = f"v[=n, i, j] {AT_B}"
    refused(ring(tile, "sum", tile, "max"), 4, "in another way")


def test_a_ring_joins_parts_element_by_element() -> None:
    tile, turned = f"y[i, j] {AT_B}", "y[j, i] at b step j 128, i 1024 as IEEE_FP32"
    refused(ring(tile, "sum", turned, "sum"), 8, "along other labels")


def test_a_value_has_at_most_the_dims_that_the_binary_form_holds() -> None:
    verify(from_text(ONE + "value v [1, 1, 1, 1, 1, 1]"))
    with pytest.raises(VerifyError, match="value v: more than 6 dims"):
        verify(from_text(ONE + "value v [1, 1, 1, 1, 1, 1, 1]"))
