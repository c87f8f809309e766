"""Writes the images that the fuzzer of csrc/tests mutates: `python tests/make_fuzz_corpus.py`.

They are the zoo's programs, so that every kind of instruction is among them. Nothing depends on
their being the newest ones: run it again when a kind is added or the binary form changes.
"""

from __future__ import annotations

from pathlib import Path

import program_zoo

from openspyre.program.binary import encode

CORPUS = Path(__file__).parent.parent / "csrc" / "tests" / "corpus"


def main() -> None:
    CORPUS.mkdir(exist_ok=True)
    for name, make in sorted(program_zoo.ZOO.items()):
        (CORPUS / f"{name}.bin").write_bytes(encode(make().program))


if __name__ == "__main__":
    main()
