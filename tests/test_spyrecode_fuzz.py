"""Damaged SpyreCode directories: an error by name or a SpyreCode, whatever they hold."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from golden_programs import abs64, every_field

from openspyre.runtime import spyrecode
from openspyre.runtime.spyrecode import (
    PROGRAM_BASE,
    Kernel,
    SpyreCodeError,
    read_spyrecode,
    write_spyrecode,
)

BASE = PROGRAM_BASE
SCHEMA = json.loads((Path(spyrecode.__file__).parent / "spyrecode.schema.json").read_text())
SHAPE = jsonschema.Draft202012Validator(SCHEMA)

Json = Any


def _damage(r: random.Random, plan: Json, donors: list[Json]) -> None:
    """One change somewhere in a tree of JSON."""
    node = plan
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = r.choice(keys)
        if isinstance(node[key], dict | list) and r.random() < 0.85:
            node = node[key]
            continue
        break
    kind = r.randrange(5)
    if kind == 0:
        del node[key]
    elif kind == 1:
        node[key] = copy.deepcopy(r.choice(donors))
    elif kind == 2 and isinstance(node, list):
        node.insert(key, copy.deepcopy(node[r.choice(keys)]))
    elif kind == 3 and isinstance(node[key], str) and node[key].isdigit():
        near = int(node[key]) + r.choice((-128, -64, -1, 1, 8, 64, 128, 1 << 34, -(1 << 34)))
        node[key] = str(near)
    else:
        other = r.choice(keys)
        node[key], node[other] = node[other], node[key]


@pytest.mark.parametrize("rounds", [2000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_directories_give_an_error_or_a_spyrecode(tmp_path: Path, rounds: int) -> None:
    """Only SpyreCodeError is raised, and what the schema refuses is never read."""
    r = random.Random(rounds)
    place = write_spyrecode(
        tmp_path / "c", [Kernel(abs64()), Kernel(every_field(), args=(2, 3, 4, 5, 6, 7))]
    )
    good = json.loads((place / "spyrecode.json").read_text())
    image = (place / "init_binary.bin").read_bytes()
    donors: list[Json] = ["", "0", "-1", str(2**64), str(BASE), str(BASE + 128), "x", None, True]
    donors += [7, 1.5, [], {}, ["0"], "\ud800", good["JobExecPlan"][0], "../x", "7"]
    accepted = 0
    for round in range(rounds):
        plan = copy.deepcopy(good)
        for _ in range(r.randint(1, 3)):
            _damage(r, plan, donors)
        text = json.dumps(plan).encode()
        data = image
        if round % 4 == 0:
            at = r.randrange(len(text))
            text = (
                text[:at] + r.choice((b"", b"}", b'"', b"\xff", b"[")) + text[at + r.randrange(9) :]
            )
        elif round % 4 == 1:
            text = json.dumps(good).encode()
            cut = bytearray(image)
            cut[r.randrange(len(cut))] ^= 1 << r.randrange(8)
            data = bytes(cut[: r.choice((len(cut), r.randrange(len(cut))))])
        (place / "spyrecode.json").write_bytes(text)
        (place / "init_binary.bin").write_bytes(data)
        try:
            code = read_spyrecode(place, verify=bool(r.randrange(2)))
        except SpyreCodeError:
            continue
        accepted += 1
        SHAPE.validate(json.loads(text))
        for init in code.inits:
            assert init.dev_ptr + len(init.data) <= BASE + code.allocate.static_size
    assert 0 < accepted < rounds / 4
