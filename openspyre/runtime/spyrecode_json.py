"""JSON of a SpyreCode directory, read one property at a time: every error names the file, the JSON
path, the rule and the way out. Imports no torch."""

from __future__ import annotations

import difflib
import json
import os
import re
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NoReturn

from openspyre.runtime.spyrecode_model import CODE_FILE, SpyreCodeError

MAX_JSON_BYTES = 64 << 20
MAX_TEXT = 255
MAX_ENTRIES = 4096  # of a plan: rules between any two entries stay cheap
_UNSIGNED = re.compile(r"[0-9]{1,20}", re.ASCII)
_SIGNED = re.compile(r"-?[0-9]{1,19}", re.ASCII)


def fail(where: str, rule: str) -> NoReturn:
    raise SpyreCodeError(f"{CODE_FILE}: {where}: {rule}")


def _shown(value: object) -> str:
    """A value of the file, short enough for a message."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a truth value"}
    return "null" if value is None else names.get(type(value), "a number")


class Object:
    """A JSON object at a path. Each getter marks its property as read; `end` refuses the rest, so
    that a misspelt optional property is an error and not a default."""

    def __init__(self, value: object, path: str) -> None:
        if not isinstance(value, dict):
            fail(path, f"must be an object, is {_kind(value)}")
        self.value: dict[str, Any] = value
        self.path = path
        self.read: set[str] = set()

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def has(self, *keys: str) -> str | None:
        """Which of the spellings is there, or None. Two of them are an error."""
        found = [key for key in keys if key in self.value]
        if len(found) > 1:
            fail(self.at(found[1]), f"is another spelling of {found[0]}: give one of them")
        return found[0] if found else None

    def get(self, *keys: str) -> tuple[Any, str]:
        """The property under one of its spellings, and its path."""
        key = self.has(*keys)
        if key is None:
            fail(self.at(keys[0]), "is missing")
        self.read.add(key)
        return self.value[key], self.at(key)

    def end(self) -> None:
        for key in self.value:
            if key not in self.read and not key.startswith("x-"):
                close = difflib.get_close_matches(key, self.read, 1)
                hint = f"; did you mean {close[0]}?" if close else " here; own ones begin with x-"
                shown = key[:MAX_TEXT] if key.isprintable() else ascii(key[:MAX_TEXT])
                fail(self.at(shown), f"no such property{hint}")

    # --- values

    def text(self, *keys: str, empty: bool = False) -> str:
        value, path = self.get(*keys)
        return check_text(value, path, empty)

    def choice(self, known: Collection[str], *keys: str) -> str:
        value, path = self.get(*keys)
        if not isinstance(value, str) or value not in known:
            listed = ", ".join(f'"{name}"' for name in known)
            fail(path, f"must be one of {listed}, is {_shown(value)}")
        return value

    def unsigned(self, *keys: str) -> int:
        value, path = self.get(*keys)
        return check_unsigned(value, path)

    def optional_unsigned(self, key: str, default: int | None = None) -> int | None:
        return self.unsigned(key) if key in self.value else default

    def signed(self, key: str, default: int) -> int:
        if key not in self.value:
            return default
        value, path = self.get(key)
        if not isinstance(value, str) or not _SIGNED.fullmatch(value):
            fail(path, f'must be a decimal string like "-64", is {_shown(value)}')
        number = int(value)
        if not -(2**63) <= number <= 2**63 - 1:
            fail(path, f"{value} does not fit in 64 bits")
        return number

    def object(self, key: str) -> Object:
        value, path = self.get(key)
        return Object(value, path)

    def array(self, *keys: str) -> tuple[list[Any], str]:
        value, path = self.get(*keys)
        if not isinstance(value, list):
            fail(path, f"must be an array, is {_kind(value)}")
        return value, path

    def objects(self, *keys: str) -> Iterator[Object]:
        items, path = self.array(*keys)
        for position, item in enumerate(items):
            yield Object(item, f"{path}[{position}]")

    def entries(self, least: int, *keys: str) -> list[Object]:
        """The entries of a plan."""
        items, path = self.array(*keys)
        if not least <= len(items) <= MAX_ENTRIES:
            fail(path, f"has {len(items)} entries; {least}..{MAX_ENTRIES} are allowed")
        return [Object(item, f"{path}[{n}]") for n, item in enumerate(items)]

    def unsigned_list(self, *keys: str) -> tuple[int, ...]:
        items, path = self.array(*keys)
        return tuple(check_unsigned(item, f"{path}[{n}]") for n, item in enumerate(items))


def check_text(value: object, path: str, empty: bool = False) -> str:
    if not isinstance(value, str):
        fail(path, f"must be a string, is {_kind(value)}")
    if not empty and not value:
        fail(path, "must not be empty")
    if len(value) > MAX_TEXT or not value.isprintable():
        fail(path, f"must be printable and at most {MAX_TEXT} characters long")
    return value


def check_unsigned(value: object, path: str) -> int:
    """Numbers are decimal strings: digits only, below 2**64."""
    if not isinstance(value, str):
        fail(path, f'must be a decimal string like "1024", is {_kind(value)}')
    if not _UNSIGNED.fullmatch(value):
        fail(path, f"must be a decimal string of digits only, is {_shown(value)}")
    number = int(value)
    if number >= 2**64:
        fail(path, f"{value} does not fit in 64 bits")
    return number


def read_file(directory: Path, name: str, where: str, size: int | None = None) -> bytes:
    """The bytes of a regular file inside `directory`. `size`: how many it must have. `where`: the
    field that names the file."""
    path = directory / name
    if Path(name).is_absolute() or ".." in Path(name).parts or name in ("", "."):
        fail(where, f"{name!r} must be a path inside the directory")
    try:
        if not path.resolve().is_relative_to(directory.resolve()):
            fail(where, f"{name!r} must be a path inside the directory, not a link out of it")
        # Without O_NONBLOCK, opening a pipe that somebody put there would wait for ever.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except SpyreCodeError:
        raise
    except FileNotFoundError:
        raise SpyreCodeError(f"{directory}: {where}: there is no file {name}") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise SpyreCodeError(f"{directory}: {where}: {name} cannot be read: {error}") from None
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            fail(where, f"{name} is no regular file")
        if size is not None and about.st_size != size:
            fail(where, f"{name} has {about.st_size} bytes, and its size says {size}")
        most = MAX_JSON_BYTES if size is None else size
        if about.st_size > most:
            fail(where, f"{name} has {about.st_size} bytes; at most {most} are read")
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(most + 1)
    except OSError as error:
        raise SpyreCodeError(f"{directory}: {where}: {name} cannot be read: {error}") from None
    finally:
        os.close(handle)
    if size is not None and len(data) != size:
        fail(where, f"{name} changed while it was read")
    return data


def parse(data: bytes) -> Object:
    """The object that a file's text says. Repeated properties are an error."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(items)
        if len(out) != len(items):
            names = [name for name, _ in items]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"the property {twice[:MAX_TEXT]!r} is given twice in one object")
        return out

    def constant(text: str) -> NoReturn:
        raise ValueError(f"{text} is no JSON")

    try:
        text = data.decode("utf-8")
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except UnicodeDecodeError as error:
        raise SpyreCodeError(f"{CODE_FILE}: is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise SpyreCodeError(f"{CODE_FILE}: nests too deep") from None
    except ValueError as error:  # json's own, int()'s for endless numbers, and those above
        raise SpyreCodeError(f"{CODE_FILE}: is no JSON: {error}") from None
    return Object(value, "")
