"""`openspyre program`: show, verify, time and run, in text and JSON, with their exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from program_zoo import ZOO

from examples.programs import add, pipeline
from openspyre.cli import main
from openspyre.program import Program
from openspyre.program.binary import encode
from openspyre.program.model import Loop, Wait
from openspyre.program.text import from_text, to_text
from openspyre.runtime.spyrecode import Kernel, write_spyrecode


def openspyre(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["program", *map(str, arguments)])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_spyrecode(tmp_path / "add", [Kernel(add.build(128, 256, cores=4))])


def without_waits(program: Program) -> Program:
    def change(body):  # type: ignore[no-untyped-def]
        return tuple(
            replace(item, body=change(item.body)) if isinstance(item, Loop) else item
            for item in body
            if not isinstance(item, Wait)
        )

    return replace(program, queues={u: change(body) for u, body in program.queues.items()})


def test_show_prints_the_steps_and_a_text_that_parses_to_the_program(directory: Path) -> None:
    result = openspyre("show", directory)
    assert result.exit_code == 0
    steps, _, text = result.output.partition("\nprogram ")
    assert "ComputeOnDevice" in steps and "0x1c00000000" in steps
    assert from_text("program " + text) == add.build(128, 256, cores=4)


def test_show_json_names_operands_and_steps(directory: Path) -> None:
    shown = json.loads(openspyre("show", directory, "--json", "--summary").output)
    (program,) = shown["programs"].values()
    assert [o["role"] for o in program["operands"]] == ["in", "in", "out"]
    assert program["operands"][0]["shape"] == ["128", "256"]
    assert [step["type"] for step in shown["steps"]] == [
        "ComputeOnHost",
        "DataTransfer",
        "ComputeOnDevice",
    ]
    assert "text" not in program


@pytest.mark.parametrize("form", ["text", "image"])
def test_a_single_program_file_will_do(tmp_path: Path, form: str) -> None:
    program = ZOO["softmax"]().program
    file = tmp_path / ("softmax.txt" if form == "text" else "softmax.bin")
    file.write_bytes(to_text(program).encode() if form == "text" else encode(program))
    assert openspyre("verify", file).exit_code == 0
    assert from_text(openspyre("show", file).output) == program


def test_verify_reports_what_is_moved(directory: Path) -> None:
    report = json.loads(openspyre("verify", directory, "--json").output)["add"]
    assert report["valid"]
    assert report["read_bytes"] == 2 * 128 * 256 * 2
    assert report["written_bytes"] == 128 * 256 * 2


def test_verify_of_a_broken_program_exits_with_1_and_names_the_place(tmp_path: Path) -> None:
    file = tmp_path / "broken.txt"
    file.write_text(to_text(without_waits(add.build(128, 256, cores=4))))
    result = openspyre("verify", file)
    assert result.exit_code == 1
    assert "core" in result.output and "add" in result.output
    broken = openspyre("verify", file, "--json")
    assert broken.exit_code == 1
    assert json.loads(broken.output)["add"]["problems"]


@pytest.mark.parametrize("command", ["show", "verify", "time", "run"])
def test_what_cannot_be_read_exits_with_2(tmp_path: Path, command: str) -> None:
    (tmp_path / "spyrecode.json").write_text("{")
    result = openspyre(command, tmp_path)
    assert result.exit_code == 2
    assert "spyrecode.json" in result.output


def test_time_gives_the_modelled_time_and_a_trace(directory: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    result = openspyre("time", directory, "--trace", trace, "--spans", 3)
    assert result.exit_code == 0
    assert "(modelled)" in result.output and "LPDDR5" in result.output
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["cat"] for event in events if event["ph"] == "X"} == {"load", "sfu", "store"}
    slower = json.loads(
        openspyre("time", directory, "--json", "--card", "spyre:clock_hz=1e8").output
    )
    faster = json.loads(openspyre("time", directory, "--json").output)
    assert slower["add"]["duration_ns"] >= faster["add"]["duration_ns"]


def test_time_takes_sizes_and_refuses_unknown_ones(tmp_path: Path) -> None:
    program = ZOO["add_symbolic"]().program
    (symbol,) = program.symbols
    file = tmp_path / "symbolic.txt"
    file.write_text(to_text(program))
    small = json.loads(
        openspyre("time", file, "--json", "-s", f"{symbol.name}={symbol.granularity}").output
    )
    large = json.loads(openspyre("time", file, "--json").output)
    name = program.name
    assert small[name]["bytes_read"] < large[name]["bytes_read"]
    unknown = openspyre("time", file, "-s", "nothing=3")
    assert unknown.exit_code == 2 and symbol.name in unknown.output


# --- run: rt71, exit codes 0 match, 1 mismatch, 2 could not launch


def test_rt71_run_compares_with_what_is_expected(directory: Path, tmp_path: Path) -> None:
    x, y = (torch.arange(128 * 256).reshape(128, 256) % n for n in (7, 5))
    inputs, right, wrong = (tmp_path / f"{name}.pt" for name in ("inputs", "right", "wrong"))
    torch.save([x.half(), y.half()], inputs)
    torch.save({"tensors": [(x + y).half()]}, right)
    bad = (x + y).half()
    bad[3, 5] += 1
    torch.save(bad, wrong)
    matched = openspyre("run", directory, "-i", inputs, "-o", right)
    assert (matched.exit_code, "match" in matched.output) == (0, True)
    assert openspyre("run", directory, "-i", inputs, "-o", right, "--exact").exit_code == 0
    different = openspyre("run", directory, "-i", inputs, "-o", wrong)
    assert different.exit_code == 1
    assert "1 of 32768 elements" in different.output and "[3, 5]" in different.output


@pytest.mark.parametrize(
    ("value", "off", "code"),
    [
        (2.0, 2.0 * 2**-10, 0),  # one unit of float16: within 1e-3 of it
        (2.0, 4.0 * 2**-10, 1),
        (0.0, 9e-6, 0),  # beside zero only the 1e-5 count
        (0.0, 2e-5, 1),
    ],
)
def test_rt71_the_tolerance_of_float16_is_1e_3_and_1e_5(
    tmp_path: Path, value: float, off: float, code: int
) -> None:
    place = write_spyrecode(tmp_path / "add", [Kernel(add.build(4, 64, cores=1))])
    inputs, expected = tmp_path / "in.pt", tmp_path / "out.pt"
    half = torch.full((4, 64), value / 2, dtype=torch.float16)
    torch.save([half, half], inputs)
    torch.save([torch.full((4, 64), value + off, dtype=torch.float16)], expected)
    assert openspyre("run", place, "-i", inputs, "-o", expected).exit_code == code
    assert openspyre("run", place, "-i", inputs, "-o", expected, "--exact").exit_code == 1


def test_rt71_run_refuses_what_does_not_fit(directory: Path, tmp_path: Path) -> None:
    one, raw = tmp_path / "one.pt", tmp_path / "short.bin"
    torch.save(torch.zeros(128, 256, dtype=torch.float16), one)
    raw.write_bytes(bytes(100))
    few = openspyre("run", directory, "-i", one)
    assert few.exit_code == 2 and "1 tensors, 2 are wanted" in few.output
    short = openspyre("run", directory, "-i", one, "-i", raw)
    assert short.exit_code == 2 and "takes exactly 65536" in short.output
    torch.save(torch.zeros(128, 256), one)
    dtype = openspyre("run", directory, "-i", one, "-i", one)
    assert dtype.exit_code == 2 and "torch.float32, wanted" in dtype.output


def test_rt71_tensors_as_raw_bytes_and_results_saved(directory: Path, tmp_path: Path) -> None:
    values = torch.arange(128 * 256).reshape(128, 256).remainder(11).half()
    raw, saved = tmp_path / "x.bin", tmp_path / "out.pt"
    raw.write_bytes(values.numpy().tobytes())
    result = openspyre("run", directory, "-i", raw, "-i", raw, "--save", saved, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["results"][0]["max"] == 20.0
    (out,) = torch.load(saved, weights_only=True)["tensors"]
    assert torch.equal(out, 2 * values)


def test_run_takes_a_program_as_text(tmp_path: Path) -> None:
    file = tmp_path / "add.txt"
    file.write_text(to_text(add.build(16, 150, cores=2)))
    result = openspyre("run", file, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["results"][0]["shape"] == [16, 150]


def test_run_without_inputs_takes_random_ones(tmp_path: Path) -> None:
    tensors = ("x", "w", "scores", "probabilities")
    kernels = [
        Kernel(step.program, args=tuple(map(tensors.index, step.arguments)))
        for step in pipeline.build(64, 128, 128)
    ]
    path = write_spyrecode(tmp_path / "two", kernels)
    first, second = (openspyre("run", path, "--json", "--seed", 3) for _ in range(2))
    assert first.exit_code == 0, first.output
    assert json.loads(first.output)["results"] == json.loads(second.output)["results"]
