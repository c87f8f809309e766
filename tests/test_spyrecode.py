"""SpyreCode directories: what is written is read, and what breaks a rule is refused by name."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from golden_programs import abs64, every_field
from program_zoo import ZOO

from openspyre.program.binary import encode, read_header, seal
from openspyre.program.expr import Const, Expr, Var
from openspyre.program.model import Operand, Program, Role, Symbol, SymbolKind
from openspyre.runtime import spyrecode
from openspyre.runtime.spyrecode import (
    PROGRAM_BASE,
    Allocate,
    ComputeOnDevice,
    ComputeOnHost,
    DataTransfer,
    Kernel,
    SpyreCode,
    SpyreCodeError,
    read_spyrecode,
    write_spyrecode,
)

BASE = PROGRAM_BASE
SCHEMA = json.loads((Path(spyrecode.__file__).parent / "spyrecode.schema.json").read_text())
SHAPE = jsonschema.Draft202012Validator(SCHEMA)

Json = Any


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One kernel with its correction."""
    return write_spyrecode(tmp_path_factory.mktemp("spyrecode") / "abs", [Kernel(abs64())])


@pytest.fixture
def directory(written: Path, tmp_path: Path) -> Path:
    """A copy to be changed."""
    return Path(shutil.copytree(written, tmp_path / "code"))


def load(directory: Path) -> Json:
    return json.loads((directory / "spyrecode.json").read_text())


def save(directory: Path, plan: Json) -> None:
    (directory / "spyrecode.json").write_text(json.dumps(plan))


def minimal(directory: Path, image: bytes | None = None) -> Json:
    """The smallest directory, written by hand. 1 KiB of memory, one image, one command."""
    data = (encode(abs64()) if image is None else image).ljust(1024, b"\0")
    directory.mkdir(exist_ok=True)
    (directory / "init_binary.bin").write_bytes(data)
    plan = {
        "JobPreparationPlan": [
            {"command": "Allocate", "properties": {"size": "1024"}},
            {
                "command": "InitTransfer",
                "properties": {
                    "init_bin_file": "init_binary.bin",
                    "dev_ptr": "120259084288",
                    "size": "1024",
                },
            },
        ],
        "JobExecPlan": [
            {"command": "ComputeOnDevice", "properties": {"job_bin_ptr": "120259084288"}}
        ],
    }
    save(directory, plan)
    return plan


def transfer(handle: str, pointer: int, size: int, to_device: bool = False) -> Json:
    return {
        "command": "DataTransfer",
        "properties": {
            "dirn": "false" if to_device else "true",
            "host_handle": handle,
            "dev_ptr": str(pointer),
            "size": str(size),
        },
    }


# --- writing and reading


def test_rt49_a_minimal_directory_written_by_hand(tmp_path: Path) -> None:
    minimal(tmp_path / "code")
    code = read_spyrecode(tmp_path / "code")
    assert code.allocate == Allocate(1024, 0)
    assert code.inits[0].dev_ptr == 0x1C00000000 == 120259084288
    assert code.steps == (ComputeOnDevice(BASE, "", (0, 1)),)
    assert code.programs == {BASE: abs64()}
    assert code.argument_count == 2
    assert code.image(BASE)[:640] == encode(abs64())


def test_rt50_a_correction_makes_three_steps(written: Path) -> None:
    code = read_spyrecode(written)
    host, blob, compute = code.steps
    assert isinstance(host, ComputeOnHost) and host.correction is not None
    assert [(s.kind, s.arg_index) for s in host.correction.symbols] == [
        ("address", 0), ("address", 1),
    ]  # fmt: skip
    assert [(p.blob_offset, p.width) for p in host.correction.patches] == [(0, 8), (8, 8)]
    assert host.correction.checksum == read_header(code.image(BASE)).checksum
    # The blob goes straight onto the image's symbol words.
    assert blob == DataTransfer(True, host.ohandle, BASE + 128, host.size)
    assert compute == ComputeOnDevice(BASE, "abs64", (0, 1))


@pytest.mark.parametrize("name", ZOO)
def test_every_program_of_the_zoo_lives_in_a_directory(name: str, tmp_path: Path) -> None:
    program = ZOO[name]().program
    code = read_spyrecode(write_spyrecode(tmp_path / name, [Kernel(program)]))
    assert code.programs == {BASE: program}
    SHAPE.validate(load(tmp_path / name))


def test_every_kind_of_symbol_is_corrected(tmp_path: Path) -> None:
    code = read_spyrecode(
        write_spyrecode(tmp_path / "c", [Kernel(every_field(), "k", (4, 3, 2, 1, 0, 5))])
    )
    host = code.steps[0]
    assert isinstance(host, ComputeOnHost) and host.correction is not None
    assert [(s.kind, s.arg_index, s.dim, s.name) for s in host.correction.symbols] == [
        ("address", 4, -1, ""),
        ("address", 3, -1, ""),
        ("address", 2, -1, ""),
        ("address", 1, -1, ""),
        ("address", 0, -1, ""),
        ("address", 5, -1, ""),
        ("dynamic", -1, -1, ""),
        ("dimension", 4, 0, ""),
        ("int", -1, -1, "seed"),
        ("float", -1, -1, "alpha"),
    ]
    assert code.allocate.dynamic_size == 4096 + 64 * 64 * 4
    SHAPE.validate(load(tmp_path / "c"))


def test_kernels_share_arguments_by_number(tmp_path: Path) -> None:
    kernels = [Kernel(abs64(), args=(0, 1)), Kernel(abs64(), "again", args=(1, 2))]
    costs: dict[str | int, int] = {"HostCompute": 500, "H2D": 200, "Compute": 1000, 5: 7}
    code = read_spyrecode(write_spyrecode(tmp_path / "two", kernels, costs=costs))
    assert code.argument_count == 3
    assert [type(step).__name__ for step in code.steps] == [
        "ComputeOnHost", "DataTransfer", "ComputeOnHost", "DataTransfer",
        "ComputeOnDevice", "ComputeOnDevice",
    ]  # fmt: skip
    assert [step.cost_ns for step in code.steps] == [500, 200, 500, 200, 1000, 7]
    assert len(code.programs) == 2
    with pytest.raises(SpyreCodeError, match="there is no step 'Copy'"):
        write_spyrecode(tmp_path / "x", kernels, costs={"Copy": 1})
    with pytest.raises(SpyreCodeError, match=r"no program takes launch argument 0"):
        write_spyrecode(tmp_path / "x", [Kernel(abs64(), args=(1, 2))])
    with pytest.raises(SpyreCodeError, match="args has 1 numbers"):
        write_spyrecode(tmp_path / "x", [Kernel(abs64(), args=(0,))])
    with pytest.raises(SpyreCodeError, match="passed twice, and operand y writes it"):
        write_spyrecode(tmp_path / "x", [Kernel(abs64(), args=(0, 0))])
    with pytest.raises(SpyreCodeError, match="at least one kernel"):
        write_spyrecode(tmp_path / "x", [])
    assert [path.name for path in tmp_path.iterdir()] == ["two"]


def test_a_tensor_may_be_two_inputs(tmp_path: Path) -> None:
    program = ZOO["add"]().program
    code = read_spyrecode(write_spyrecode(tmp_path / "c", [Kernel(program, args=(0, 0, 1))]))
    assert code.argument_count == 2


def test_without_correction_the_words_stay_as_they_are(tmp_path: Path) -> None:
    code = read_spyrecode(write_spyrecode(tmp_path / "c", [Kernel(abs64())], correction=False))
    assert code.steps == (ComputeOnDevice(BASE, "abs64", (0, 1)),)


def test_the_content_hash_tells_meaning_and_not_spelling(directory: Path, tmp_path: Path) -> None:
    first = read_spyrecode(directory)
    plan = load(directory)
    plan["JobExecutionPlan"] = plan.pop("JobExecPlan")
    plan["x-made-by"] = ["me", 1.5]
    allocate = plan["JobPreparationPlan"][0]["properties"]
    plan["JobPreparationPlan"][0]["properties"] = {"size": allocate["static_size"]}
    init = plan["JobPreparationPlan"][1]["properties"]
    init["file_path"] = init.pop("init_bin_file").replace("init", "renamed")
    blob = plan["JobExecutionPlan"][1]["properties"]
    blob.pop("dirn")
    blob["direction"] = 0
    host = plan["JobExecutionPlan"][0]["properties"]
    host.pop("size")
    host["oshape"] = ["1", "128"]
    (directory / "init_binary.bin").rename(directory / "renamed_binary.bin")
    save(directory, plan)
    SHAPE.validate(plan)
    assert read_spyrecode(directory).content_hash == first.content_hash
    other = write_spyrecode(tmp_path / "other", [Kernel(replace(abs64(), name="other"))])
    assert read_spyrecode(other).content_hash != first.content_hash


def test_upstreams_kernel_directory_is_read_too(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "kernel").mkdir()
    directory.rename(tmp_path / "kernel" / "spyreCodeDir")
    assert read_spyrecode(tmp_path / "kernel").programs == {BASE: abs64()}


def test_the_examples_of_the_page_are_a_directory(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "spyrecode.md").read_text(encoding="utf-8")
    job, correction = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    minimal(tmp_path / "code")
    plan = json.loads(job)
    SHAPE.validate(plan)
    save(tmp_path / "code", plan)
    assert read_spyrecode(tmp_path / "code").programs == {BASE: abs64()}
    plan["JobExecPlan"][0:0] = json.loads(f"[{correction}]")
    SHAPE.validate(plan)
    save(tmp_path / "code", plan)
    assert len(read_spyrecode(tmp_path / "code").steps) == 3


# --- what is refused


def refused(directory: Path, message: str, **more: Any) -> None:
    with pytest.raises(SpyreCodeError) as caught:
        read_spyrecode(directory, **more)
    assert isinstance(caught.value, RuntimeError)
    assert message in str(caught.value)
    assert str(directory) in str(caught.value)


def test_rt53_missing_directory_or_file_is_named(directory: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "there is no such directory")
    (directory / "init_binary.bin").unlink()
    refused(directory, "there is no file init_binary.bin")
    (directory / "spyrecode.json").unlink()
    refused(directory, "there is no file spyrecode.json")


@pytest.mark.parametrize("field", ["ohandle", "size", "ishape", "ihandle", "hcm"])
def test_rt53_a_missing_property_of_compute_on_host_is_named(directory: Path, field: str) -> None:
    plan = load(directory)
    del plan["JobExecPlan"][0]["properties"][field]
    save(directory, plan)
    refused(directory, f"JobExecPlan[0].properties.{field}: is missing")
    assert not SHAPE.is_valid(plan)


HOST, BLOB, COMPUTE = (("JobExecPlan", n, "properties") for n in range(3))
ALLOCATE, INIT = (("JobPreparationPlan", n, "properties") for n in range(2))
HCM = (*HOST, "hcm")
GONE = object()

# path, value, message, whether the JSON Schema sees it
CHANGES: list[tuple[tuple[str | int, ...], Json, str, bool]] = [
    # the file
    (("version",), "2", "version: 2 is too new", False),
    (("version",), "0", "version: 0 is no version", False),
    (("version",), 1, "must be a decimal string", True),
    (("verson",), "1", "verson: no such property; did you mean version?", True),
    (("JobPreparationPlan",), GONE, "JobPreparationPlan: is missing", True),
    (("JobExecPlan",), GONE, "JobExecPlan: is missing", True),
    (("JobExecPlan",), [], "JobExecPlan: has 0 entries; 1..4096", True),
    (("JobExecPlan",), {}, "JobExecPlan: must be an array, is an object", True),
    (("JobExecutionPlan",), [], "is another spelling of JobExecPlan", True),
    (("JobPreparationPlan", 1), GONE, "JobPreparationPlan: has 1 entries; 2..4096", True),
    (("JobPreparationPlan", 0, "command"), "InitTransfer", 'must be one of "Allocate"', True),
    (("JobPreparationPlan", 1, "command"), "Allocate", 'must be one of "InitTransfer"', True),
    (("JobExecPlan", 2, "command"), "Jump", 'must be one of "ComputeOnDevice", "Comp', True),
    (("JobExecPlan", 2, "command"), ["a"], "must be one of", True),
    (("JobExecPlan", 2), 7, "JobExecPlan[2]: must be an object, is a number", True),
    (("JobExecPlan", 2, "properties"), None, "properties: must be an object, is null", True),
    (("JobExecPlan", 2, "extra"), "", "JobExecPlan[2].extra: no such property", True),
    ((*COMPUTE, "nmae"), "a", "nmae: no such property; did you mean", True),
    # RT55: sizes
    ((*HOST, "size"), "-1024", "size: must be a decimal string of digits only", True),
    ((*HOST, "size"), "  -512", "size: must be a decimal string of digits only", True),
    ((*HOST, "size"), "12x", "size: must be a decimal string of digits only", True),
    ((*HOST, "size"), "1024\n", "size: must be a decimal string of digits only", False),
    ((*HOST, "size"), "\u0661\u0662", "size: must be a decimal string of digits only", True),
    ((*HOST, "size"), str(2**64), "size: 18446744073709551616 does not fit in 64 bits", False),
    ((*HOST, "size"), "9" * 50, "size: must be a decimal string", True),
    ((*HOST, "size"), 1024, "size: must be a decimal string", True),
    ((*HOST, "size"), True, 'must be a decimal string like "1024", is a truth value', True),
    ((*HOST, "size"), "0", "size: 128, but the blob has 0 bytes", False),
    ((*HOST, "size"), str(2**30), "but the blob has 1073741824 bytes", False),
    ((*HOST, "size"), "256", "properties.size: 128, but the blob has 256 bytes", False),
    # RT54
    ((*HOST, "ishape"), "2", "ishape: must be an array, is a string", True),
    ((*HOST, "ishape"), [2], "ishape[0]: must be a decimal string", True),
    ((*HOST, "ishape"), ["1", None], "ishape[1]: must be a decimal string", True),
    ((*HOST, "ishape"), [], "ishape: must hold at least one size", True),
    ((*HOST, "ishape"), ["3"], "ishape: 3 numbers go in, but hcm has 2 symbols", False),
    ((*HOST, "ishape"), ["0"], "ishape: 0 numbers go in", False),
    ((*HOST, "ishape"), [str(2**63), "4"], "ishape: 18446744073709551616 numbers", False),
    ((*HOST, "hcm"), "file.json", "hcm: must be an object, is a string", True),
    ((*HOST, "hcm"), [], "hcm: must be an object, is an array", True),
    ((*HOST, "hcm"), {"vdci": {}, "senConstants": []}, "which is not public", True),
    ((*HOST, "hcm"), {}, "ishape: 2 numbers go in, but hcm has 0 symbols", False),
    ((*HOST, "ihandle"), "ghost", "no earlier step makes the handle 'ghost'", False),
    ((*HOST, "ihandle"), None, "ihandle: must be a string, is null", True),
    ((*HOST, "ohandle"), "", "ohandle: must not be empty", True),
    ((*HOST, "ohandle"), "a\x00b", "ohandle: must be printable", False),
    ((*HOST, "ohandle"), "\ud800", "ohandle: must be printable", False),
    ((*HOST, "ohandle"), "h" * 300, "at most 255 characters", True),
    ((*HOST, "cost_ns"), str(10**15 + 1), "cost_ns: 1000000000000001 is above", False),
    ((*HOST, "cost_ns"), "-1", "cost_ns: must be a decimal string", True),
    # D4: the two spellings of Allocate
    ((*ALLOCATE, "size"), "1", "size: 1 is not the static_size 640: give one of them", False),
    ((*ALLOCATE, "dynamic_size"), GONE, "dynamic_size: is missing", True),
    ((*ALLOCATE, "static_size"), GONE, "static_size: is missing", True),
    (ALLOCATE, {}, "size: is missing", True),
    ((*ALLOCATE, "static_size"), "0", "0 must lie in 1..17179869184", False),
    ((*ALLOCATE, "static_size"), str(2**34 + 1), "must lie in 1..17179869184", False),
    ((*ALLOCATE, "dynamic_size"), str(2**34 + 1), "must lie in 0..17179869184", False),
    # RT57, RT30: InitTransfer
    ((*ALLOCATE, "static_size"), "639", "640 bytes at 0x1c00000000 end 640 bytes after", False),
    ((*INIT, "size"), "512", "init_binary.bin has 640 bytes, and its size says 512", False),
    ((*INIT, "size"), "0", "a transfer of no bytes", False),
    ((*INIT, "dev_ptr"), str(BASE + 0x10), "must be a multiple of 128", False),
    ((*INIT, "dev_ptr"), str(BASE + 128), "but the allocation has 640", False),
    ((*INIT, "dev_ptr"), str(BASE - 128), "is not in segment 7", False),
    ((*INIT, "dev_ptr"), "0", "is not in segment 7", False),
    ((*INIT, "dev_ptr"), str(8 << 34), "is not in segment 7", False),
    ((*INIT, "dev_ptr"), str(2**64 - 128), "is not in segment 7", False),
    ((*INIT, "file_path"), "a", "file_path: is another spelling of init_bin_file", True),
    ((*INIT, "init_bin_file"), "../code/init_binary.bin", "must be a path inside", False),
    ((*INIT, "init_bin_file"), "/etc/passwd", "must be a path inside the directory", False),
    ((*INIT, "init_bin_file"), ".", "must be a path inside the directory", False),
    ((*INIT, "init_bin_file"), "", "must not be empty", True),
    ((*INIT, "init_bin_file"), "a/../../b", "must be a path inside", False),
    ((*INIT, "init_bin_file"), "x" * 256, "at most 255 characters", True),
    ((*INIT, "init_bin_file"), "sub", "is no regular file", False),
    ((*INIT, "init_bin_file"), "pipe", "is no regular file", False),
    ((*INIT, "init_bin_file"), "link", "not a link out of it", False),
    ((*INIT, "init_bin_file"), "loop", "init_bin_file", False),
    # RT30: ComputeOnDevice
    ((*COMPUTE, "job_bin_ptr"), "0", "job_bin_ptr: 0 (0x0) is not in segment 7", False),
    ((*COMPUTE, "job_bin_ptr"), str(BASE - 128), "is not in segment 7", False),
    ((*COMPUTE, "job_bin_ptr"), str(8 << 34), "is not in segment 7", False),
    ((*COMPUTE, "job_bin_ptr"), str(BASE + 64), "must be a multiple of 128", False),
    ((*COMPUTE, "job_bin_ptr"), str(BASE + 640), "no InitTransfer puts a program", False),
    ((*COMPUTE, "job_bin_ptr"), str(BASE + 128), "init_binary.bin at byte 128: header:", False),
    ((*COMPUTE, "name"), 5, "name: must be a string, is a number", True),
    ((*COMPUTE, "args"), ["0"], "1 launch arguments, but program 'abs64' takes 2", False),
    ((*COMPUTE, "args"), ["0", "0"], "launch argument 0 is passed twice", False),
    ((*COMPUTE, "args"), ["0", "4096"], "args[1]: 4096 is above 4095", False),
    ((*COMPUTE, "args"), ["0", 1], "args[1]: must be a decimal string", True),
    # DataTransfer
    ((*BLOB, "dirn"), "to", 'dirn: must be "false" (to the device)', True),
    ((*BLOB, "dirn"), False, 'dirn: must be "false" (to the device)', True),
    ((*BLOB, "dirn"), GONE, "dirn: is missing", True),
    ((*BLOB, "direction"), "0", "direction: is another spelling of dirn", True),
    ((*BLOB, "host_handle"), "ghost", "must be followed by the DataTransfer of its", False),
    ((*BLOB, "size"), "64", "size: 64, but the blob has 128 bytes", False),
    ((*BLOB, "dev_ptr"), str(BASE), "only the symbol words of an image may be written", False),
    ((*BLOB, "dev_ptr"), str(BASE + 256), "only the symbol words of an image", False),
    ((*BLOB, "dev_ptr"), str(BASE + 1024), "but the allocation has 640", False),
    ((*BLOB, "dev_ptr"), str(1 << 34), "is not in segment 7", False),
    # the correction
    ((*HCM, "checksum"), "1", "hcm.checksum: 1, but the symbol table of program", False),
    ((*HCM, "checksum"), GONE, "hcm.checksum: is missing", True),
    ((*HCM, "symbols", 1, "id"), "0", "hcm.symbols[1].id: 0 is given twice", False),
    ((*HCM, "symbols", 0, "kind"), "place", 'must be one of "address", "dynamic"', True),
    ((*HCM, "symbols", 0, "arg_index"), GONE, "arg_index: is missing", True),
    ((*HCM, "symbols", 0, "dim"), "0", "dim: no such property", True),
    ((*HCM, "symbols", 0, "offset"), "1.5", "must be a decimal string", True),
    ((*HCM, "symbols", 0, "offset"), str(2**63), "does not fit in 64 bits", False),
    ((*HCM, "symbols", 0, "offset"), "64", "an address must stay one", False),
    ((*HCM, "symbols", 0, "scale"), "2", "an address must stay one", False),
    ((*HCM, "symbols", 0, "arg_index"), "1", "has arg_index 1, but the word it fills", False),
    ((*HCM, "symbols", 0), {"id": "0", "kind": "float", "name": "a"},
     "symbol 0 has kind 'float', but the word it fills, address x, needs 'address'", False),
    ((*HCM, "patches", 0, "symbol"), "7", "there is no symbol with id 7", False),
    ((*HCM, "patches", 0, "symbol"), "1", "the order of the symbols is wrong", False),
    ((*HCM, "patches", 0, "width"), "3", "width: 3 must be 1, 2, 4 or 8", True),
    ((*HCM, "patches", 0, "width"), "4", "no patch fills address x, symbol word 0", False),
    ((*HCM, "patches", 0, "shift"), "64", "shift: 64 must lie in 0..63", False),
    ((*HCM, "patches", 0, "mask"), str(2**64), "does not fit in 64 bits", False),
    ((*HCM, "patches", 0, "blob_offset"), "8", "bytes 8..15 are patched twice", False),
    ((*HCM, "patches", 0, "blob_offset"), "124", "8 bytes at 124 leave the blob of 128", False),
    ((*HCM, "patches", 0, "blob_offset"), str(2**64 - 1), "leave the blob of 128", False),
    ((*HCM, "patches", 0, "blob_offset"), "16", "is in no single word", False),
    ((*HCM, "patches", 1), GONE, "no patch fills address y, symbol word 1 of program", False),
    # order (runtime.md 2.2)
    (("JobExecPlan", 0), GONE, "no earlier step makes the handle 'correction0'", False),
    (("JobExecPlan", 1), GONE, "must be followed by the DataTransfer of its 'correction0'", False),
    (("JobExecPlan", 2), GONE, "corrections must be followed by a ComputeOnDevice", False),
]  # fmt: skip


def changed(plan: Json, path: tuple[str | int, ...], value: Json) -> Json:
    plan = copy.deepcopy(plan)
    inner = plan
    for key in path[:-1]:
        inner = inner[key]
    if value is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return plan


@pytest.mark.parametrize(
    "path,value,message,in_schema", CHANGES,
    ids=[
        ".".join(map(str, c[0][-3:])) + "=" + ("GONE" if c[1] is GONE else repr(c[1])[:24])
        for c in CHANGES
    ],
)  # fmt: skip
def test_rt30_rt53_rt54_rt55_rt57_rt66_a_broken_rule_is_named(
    directory: Path, path: tuple[str | int, ...], value: Json, message: str, in_schema: bool
) -> None:
    (directory / "sub").mkdir()
    os.mkfifo(directory / "pipe")
    (directory / "link").symlink_to("/etc/passwd")
    (directory / "loop").symlink_to("loop")
    plan = changed(load(directory), path, value)
    save(directory, plan)
    refused(directory, message)
    assert SHAPE.is_valid(plan) != in_schema


def test_the_checks_of_shape_are_the_schema(written: Path) -> None:
    """Whatever the schema refuses, reading refuses; names of the schema are those that are read."""
    good = load(written)
    SHAPE.validate(good)
    for path, value, _, in_schema in CHANGES:
        assert SHAPE.is_valid(changed(good, path, value)) != in_schema, (path, value)


MORE: list[tuple[str, Callable[[Json], object], str]] = [
    (
        "a second ComputeOnHost with the same handle",
        lambda p: p["JobExecPlan"].insert(2, copy.deepcopy(p["JobExecPlan"][0])),
        "must be followed by the DataTransfer",
    ),
    (
        "the same correction twice",
        lambda p: p["JobExecPlan"].__setitem__(slice(0, 0), copy.deepcopy(p["JobExecPlan"][:2])),
        "the handle 'correction0' exists already",
    ),
    (
        "a correction after a program",
        lambda p: p["JobExecPlan"].extend(copy.deepcopy(p["JobExecPlan"][:2])),
        "must come before every ComputeOnDevice",
    ),
    (
        "a transfer from a launch argument under symbolic arguments",
        lambda p: p["JobExecPlan"].append(transfer("out", 1 << 34, 128)),
        "needs bound addresses",
    ),
    (
        "a transfer from an argument, dev_ptr 0, under symbolic arguments",
        lambda p: p["JobExecPlan"].append(transfer("out", 0, 128)),
        "names launch argument 0 by its segment: that needs bound addresses",
    ),
    (
        "a transfer of memory that nothing wrote",
        lambda p: (
            p["JobPreparationPlan"][0]["properties"].update(static_size="2048"),
            p["JobExecPlan"].append(transfer("out", BASE + 512, 256)),
        ),
        "reads 0x1c00000280, which nothing has written",
    ),
    (
        "one image run with two sets of arguments",
        lambda p: p["JobExecPlan"].append(
            {
                "command": "ComputeOnDevice",
                "properties": {"job_bin_ptr": str(BASE), "args": ["1", "2"]},
            }
        ),
        "runs the same image with other arguments",
    ),
]


@pytest.mark.parametrize("what,change,message", MORE, ids=[m[0] for m in MORE])
def test_rt58_rt66_a_broken_rule_between_steps_is_named(
    directory: Path, what: str, change: Callable[[Json], object], message: str
) -> None:
    plan = load(directory)
    change(plan)
    save(directory, plan)
    refused(directory, message)


def test_rt57_inits_must_not_overlap(directory: Path) -> None:
    plan = load(directory)
    plan["JobPreparationPlan"][0]["properties"]["static_size"] = "4096"
    again = copy.deepcopy(plan["JobPreparationPlan"][1])
    plan["JobPreparationPlan"].append(again)
    again["properties"]["dev_ptr"] = str(BASE + 512)
    save(directory, plan)
    refused(directory, "overlaps the bytes of init_binary.bin at 0x1c00000000")
    again["properties"]["dev_ptr"] = str(BASE + 640)
    save(directory, plan)
    assert len(read_spyrecode(directory).inits) == 2


def test_rt57_upstreams_illegal_example_is_refused(directory: Path) -> None:
    """Its correction area at 0x1C00000080 reaches over the binary at 0x1C00000090."""
    plan = load(directory)
    plan["JobPreparationPlan"][0]["properties"]["static_size"] = "8192"
    plan["JobPreparationPlan"][1]["properties"]["dev_ptr"] = str(0x1C00000090)
    save(directory, plan)
    refused(directory, "JobPreparationPlan[1].properties.dev_ptr")


def test_rt58_bound_transfers_name_an_argument_by_segment(tmp_path: Path) -> None:
    place = tmp_path / "code"
    plan = minimal(place, encode(abs64(), [1 << 34, (1 << 34) + 128]))
    plan["JobExecPlan"].append(transfer("out", 0, 128))
    plan["JobExecPlan"].append(transfer("more", 1 << 34, 128))
    save(place, plan)
    steps = read_spyrecode(place).steps
    assert [s.argument for s in steps if isinstance(s, DataTransfer)] == [0, 1]
    plan["JobExecPlan"].append(transfer("third", 2 << 34, 128))
    save(place, plan)
    refused(place, "launch argument 2 (segment 2) is out of range: the programs take 2")
    plan["JobExecPlan"][-1] = transfer("third", (2 << 34) - 64, 128)
    save(place, plan)
    refused(place, "leave the segment")
    plan["JobExecPlan"][-1] = transfer("out", 0, 128)
    save(place, plan)
    refused(place, "the handle 'out' exists already")
    plan["JobExecPlan"][-1] = transfer("fourth", 8 << 34, 128)
    save(place, plan)
    refused(place, "is not in segment 7")


def test_a_plan_of_transfers_alone_counts_its_arguments(tmp_path: Path) -> None:
    plan = minimal(tmp_path / "code")
    plan["JobExecPlan"] = [transfer("a", 2 << 34, 128), transfer("a", BASE + 128, 128, True)]
    save(tmp_path / "code", plan)
    refused(tmp_path / "code", "overlap init_binary.bin")
    plan["JobPreparationPlan"][0]["properties"]["size"] = "2048"
    plan["JobExecPlan"][1] = transfer("a", BASE + 1024, 128, True)
    plan["JobExecPlan"].append(transfer("b", BASE + 512, 640))
    save(tmp_path / "code", plan)
    assert read_spyrecode(tmp_path / "code").argument_count == 3


def test_rt54_an_input_handle_gives_the_values_of_the_symbols(tmp_path: Path) -> None:
    """A first blob, of zeros, is the input of a second host computation."""
    plan = minimal(tmp_path / "code")
    plan["JobPreparationPlan"][0]["properties"]["size"] = "4096"
    host = {"ohandle": "zeros", "size": "16", "ishape": ["0"], "ihandle": "", "hcm": {}}
    second = {
        "ohandle": "blob", "size": "64", "ishape": ["1", "2"], "ihandle": "zeros",
        "hcm": {
            "symbols": [
                {"id": "3", "kind": "int", "name": "a", "scale": "-2"},
                {"id": "9", "kind": "dimension", "arg_index": "0", "dim": "1", "offset": "-1"},
            ],
            "patches": [
                {"blob_offset": "5", "width": "2", "symbol": "9", "scale": "3", "addend": "-7",
                 "shift": "2", "mask": "4095"},
            ],
            "checksum": "0",
        },
    }  # fmt: skip
    plan["JobExecPlan"][0:0] = [
        {"command": "ComputeOnHost", "properties": host},
        transfer("zeros", BASE + 1024, 16, True),
        {"command": "ComputeOnHost", "properties": second},
        transfer("blob", BASE + 2048, 64, True),
    ]
    save(tmp_path / "code", plan)
    SHAPE.validate(plan)
    step = read_spyrecode(tmp_path / "code").steps[2]
    assert isinstance(step, ComputeOnHost) and step.correction is not None
    assert step.ihandle == "zeros" and step.ishape == (1, 2)
    assert step.correction.symbols[1].offset == -1
    patch = step.correction.patches[0]
    assert (patch.width, patch.addend, patch.shift, patch.mask) == (2, -7, 2, 4095)
    host["size"] = "8"
    plan["JobExecPlan"][1] = transfer("zeros", BASE + 1024, 8, True)
    save(tmp_path / "code", plan)
    refused(tmp_path / "code", "'zeros' has 8 bytes, and 2 symbols are 16")
    for size in (0, 2**25):
        host["size"] = str(size)
        plan["JobExecPlan"][1] = transfer("zeros", BASE + 1024, size, True)
        save(tmp_path / "code", plan)
        refused(tmp_path / "code", f"{size} must lie in 1..16777216")
    host["size"] = "16"
    plan["JobExecPlan"][1] = transfer("zeros", BASE + 2048, 16, True)
    save(tmp_path / "code", plan)
    refused(tmp_path / "code", "overlaps the blob of JobExecPlan[1]")


def test_words_may_be_patched_in_parts_by_several_blobs(directory: Path) -> None:
    """Two blobs, the first for word 0 in halves, the second for word 1."""
    plan = load(directory)
    host, blob, compute = plan["JobExecPlan"]
    hcm = host["properties"]["hcm"]
    second = copy.deepcopy(host)
    low = {"blob_offset": "0", "width": "4", "symbol": "0"}
    high = {"blob_offset": "4", "width": "4", "symbol": "0", "shift": "32"}
    hcm["patches"] = [low, high]
    save(directory, plan)
    refused(directory, "no patch fills address y, symbol word 1")
    hcm["patches"].append({"blob_offset": "8", "width": "8", "symbol": "1"})
    save(directory, plan)
    read_spyrecode(directory)
    # One stick holds both words: two blobs cannot both be written to it.
    second["properties"]["ohandle"] = "second"
    again = copy.deepcopy(blob)
    again["properties"]["host_handle"] = "second"
    plan["JobExecPlan"] = [host, blob, second, again, compute]
    save(directory, plan)
    refused(directory, "overlaps the blob of JobExecPlan[1]")


def test_rt66_what_only_guards_results_can_be_switched_off(directory: Path) -> None:
    plan = load(directory)
    del plan["JobExecPlan"][0]["properties"]["hcm"]["patches"][1]
    save(directory, plan)
    refused(directory, "no patch fills address y")
    assert isinstance(read_spyrecode(directory, verify=False), SpyreCode)
    plan["JobExecPlan"][0]["properties"]["hcm"]["patches"][0]["blob_offset"] = "999"
    save(directory, plan)
    refused(directory, "leave the blob", verify=False)


def test_rt64_a_permuted_symbol_order_is_an_error(directory: Path) -> None:
    plan = load(directory)
    symbols = plan["JobExecPlan"][0]["properties"]["hcm"]["symbols"]
    symbols[0]["arg_index"], symbols[1]["arg_index"] = "1", "0"
    save(directory, plan)
    refused(directory, "the order of the symbols is wrong")


def test_programs_must_agree_on_a_shared_argument(tmp_path: Path) -> None:
    wide = ZOO["neg_float32"]().program
    with pytest.raises(SpyreCodeError, match=r"argument 1 has dtype float32 .* float16"):
        write_spyrecode(tmp_path / "c", [Kernel(abs64()), Kernel(wide, args=(1, 2))])


def _with_scratch(*shape: Expr, symbols: tuple[Symbol, ...] = (), data: int = 0) -> Program:
    format = abs64().operands[0].format
    role = Role.CONST if data else Role.SCRATCH
    extra = Operand("s", role, "float16", format, shape, offset=128)
    return replace(
        abs64(), operands=(*abs64().operands, extra), symbols=symbols, data=bytes(data)
    )  # fmt: skip


def test_rt69_the_dynamic_region_must_hold_the_scratch_operands(tmp_path: Path) -> None:
    symbol = Symbol("n", SymbolKind.DIMENSION, 0, 0, 64, 64, 256)
    program = _with_scratch(Const(2), Var("n"), symbols=(symbol,))
    place = write_spyrecode(tmp_path / "c", [Kernel(program)])
    assert read_spyrecode(place).allocate.dynamic_size == 128 + 2 * 256 * 2
    plan = load(place)
    plan["JobPreparationPlan"][0]["properties"]["dynamic_size"] = "1023"
    save(place, plan)
    refused(place, "operand s ends at byte 1152, beyond the 1023 bytes of dynamic_size")
    with pytest.raises(SpyreCodeError, match="give them a smaller one"):
        endless = replace(symbol, maximum=2**40)
        write_spyrecode(tmp_path / "d", [Kernel(_with_scratch(Var("n"), symbols=(endless,)))])
    with pytest.raises(SpyreCodeError, match="does not fit in 64 bits"):
        endless = replace(symbol, maximum=2**63 - 1)
        write_spyrecode(tmp_path / "d", [Kernel(_with_scratch(Var("n") * 2, symbols=(endless,)))])
    with pytest.raises(SpyreCodeError, match="has a size below 1"):
        write_spyrecode(tmp_path / "d", [Kernel(_with_scratch(Const(0)))])
    with pytest.raises(SpyreCodeError, match="ends at byte 256, beyond the 200 bytes of the im"):
        write_spyrecode(tmp_path / "d", [Kernel(_with_scratch(Const(64), data=200))])
    write_spyrecode(tmp_path / "d", [Kernel(_with_scratch(Const(64), data=256))])


def test_a_wrong_image_is_named_with_its_file(directory: Path) -> None:
    image = bytearray((directory / "init_binary.bin").read_bytes())
    image[300] ^= 1
    (directory / "init_binary.bin").write_bytes(image)
    refused(directory, "job_bin_ptr: init_binary.bin at byte 0: header: CRC of the body")
    image[8] = 9
    seal(image)
    (directory / "init_binary.bin").write_bytes(image)
    refused(directory, "version 9 is too new")


TEXTS = [
    (b"", "is no JSON"),
    (b"\xff\xfe", "is not UTF-8 at byte 0"),
    (b"[]", "must be an object, is an array"),
    (b"nul", "is no JSON"),
    (b"[" * 200_000, "nests too deep"),
    (b'{"a":' * 200_000, "nests too deep"),
    (b'{"version": "1", "version": "1"}', "'version' is given twice"),
    (b'{"version": NaN}', "NaN is no JSON"),
    (b'{"version": ' + b"9" * 10_000 + b"}", "is no JSON"),
    (b'\xef\xbb\xbf{"version": "1"}', "is no JSON"),
]


@pytest.mark.parametrize("text,message", TEXTS, ids=[m + str(len(t)) for t, m in TEXTS])
def test_rt53_a_file_that_is_no_json_is_an_error(
    directory: Path, text: bytes, message: str
) -> None:
    (directory / "spyrecode.json").write_bytes(text)
    refused(directory, message)


def test_an_endless_file_is_not_read(directory: Path) -> None:
    with open(directory / "spyrecode.json", "r+b") as file:
        file.truncate(1 << 40)
    refused(directory, "at most 67108864 are read")


def test_a_file_may_not_be_there_to_read(directory: Path) -> None:
    (directory / "spyrecode.json").unlink()
    (directory / "spyrecode.json").mkdir()
    refused(directory, "is no regular file")
