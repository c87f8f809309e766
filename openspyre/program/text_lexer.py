"""Words, numbers and signs of the text form, each with its line and column. Imports no torch."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import NoReturn

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\n]*)
      | (?P<float>\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
      | (?P<int>0[xX][0-9a-fA-F]+|\d+)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<sign>//|==|<=|[-+*%<=()\[\]{},.;])""",
    re.VERBOSE | re.ASCII,
)
_HEXADECIMAL = re.compile(r"(?:[0-9a-fA-F \t\r\n]|#[^\n]*)*")
_ESCAPE = re.compile(r"\\(u\{[0-9a-fA-F]{1,6}\}|.)", re.DOTALL)
_MOST_DIGITS = 32  # of an integer; any that is longer is out of range


class ProgramTextError(ValueError):
    """A text that is no program: names line, column, and what was expected there."""


@dataclass(frozen=True)
class Lexeme:
    kind: str  # name, int, float, string, sign, end
    text: str
    at: int  # offset in the source

    def __str__(self) -> str:
        return "the end of the text" if self.kind == "end" else repr(self.text[:40])


class Lexer:
    """Reads a source from left to right; `peek` looks up to two lexemes ahead."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self.ahead: list[Lexeme] = []

    def fail(self, at: int, message: str) -> NoReturn:
        line = self.source.count("\n", 0, at) + 1
        column = at - self.source.rfind("\n", 0, at)
        raise ProgramTextError(f"line {line}, column {column}: {message}")

    def _read(self) -> Lexeme:
        while self.at < len(self.source):
            match = _TOKEN.match(self.source, self.at)
            if match is None:
                char = self.source[self.at]
                hint = "; the text ends inside this string" if char == '"' else ""
                self.fail(self.at, f"{char!r} has no meaning here{hint}")
            start, self.at = self.at, match.end()
            if match.lastgroup != "space":
                assert match.lastgroup is not None
                return Lexeme(match.lastgroup, match.group(), start)
        return Lexeme("end", "", len(self.source))

    def peek(self, distance: int = 0) -> Lexeme:
        while len(self.ahead) <= distance:
            self.ahead.append(self._read())
        return self.ahead[distance]

    def next(self) -> Lexeme:
        lexeme = self.peek()
        self.ahead.pop(0)
        return lexeme

    def expected(self, what: str, found: Lexeme | None = None) -> NoReturn:
        found = found or self.peek()
        self.fail(found.at, f"expected {what}, found {found}")

    # --- what the parser asks for

    def accept(self, text: str) -> bool:
        """Takes the next lexeme if it is this word or sign."""
        if self.peek().text == text and self.peek().kind in ("name", "sign"):
            self.next()
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.expected(repr(text))

    def name(self, what: str) -> str:
        if self.peek().kind != "name":
            self.expected(what)
        return self.next().text

    def known(self, what: str, known: Collection[str]) -> str:
        """A name out of a set."""
        lexeme = self.peek()
        name = self.name(what)
        if name not in known:
            close = difflib.get_close_matches(name, known, 1) if len(known) > 5 else []
            listed = ", ".join(list(known)[:12]) + (", .." if len(known) > 12 else "")
            hint = f"; did you mean {close[0]}?" if close else f"; there are {listed or 'none'}"
            self.fail(lexeme.at, f"expected {what}, {name!r} is none{hint}")
        return name

    def integer(self, what: str, low: int = -(2**63), high: int = 2**63 - 1) -> int:
        start = self.peek()
        negative = self.accept("-")
        lexeme = self.peek()
        if lexeme.kind != "int":
            self.expected(what)
        self.next()
        value = int(lexeme.text, 0 if lexeme.text[:2] in ("0x", "0X") else 10) if (
            len(lexeme.text) <= _MOST_DIGITS
        ) else high + 2  # fmt: skip
        value = -value if negative else value
        if not low <= value <= high:
            self.fail(start.at, f"{what} must lie in {low}..{high}")
        return value

    def number(self, what: str) -> float:
        """A float constant: digits, nan, inf."""
        start = self.peek()
        sign = -1.0 if self.accept("-") else 1.0
        lexeme = self.next()
        if lexeme.kind in ("float", "int") or lexeme.text in ("nan", "inf"):
            try:
                return sign * float(lexeme.text)
            except ValueError:
                pass
        self.expected(what, start)

    def string(self, what: str) -> str:
        if self.peek().kind != "string":
            self.expected(f"{what} in quotes")
        lexeme = self.next()

        def plain(match: re.Match[str]) -> str:
            code = match[1]
            if code[0] != "u" or len(code) == 1:
                if code not in '"\\':
                    self.fail(lexeme.at + match.start() + 1, f"no escape \\{code}")
                return code
            point = int(code[2:-1], 16)
            if point > 0x10FFFF:
                self.fail(lexeme.at + match.start() + 1, f"no character \\{code}")
            return chr(point)

        return _ESCAPE.sub(plain, lexeme.text[1:-1])

    def hexadecimal(self) -> bytes:
        """The bytes up to the next `}`, which is taken. Nothing may have been peeked at."""
        assert not self.ahead
        match = _HEXADECIMAL.match(self.source, self.at)
        assert match is not None
        end = match.end()
        if self.source[end : end + 1] != "}":
            char = repr(self.source[end]) if end < len(self.source) else "the end of the text"
            self.fail(end, f"expected hexadecimal digits or '}}', found {char}")
        self.at = end + 1
        digits = "".join(re.sub(r"#[^\n]*", "", match.group()).split())
        if len(digits) % 2:
            self.fail(end, "an odd number of hexadecimal digits")
        return bytes.fromhex(digits)
