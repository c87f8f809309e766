"""`openspyre top`: rows, rates and the formats, from pages that a test wrote."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from stats_pages import page_bytes, write

from openspyre.cli import main
from openspyre.observe import live, stats_page

WORDS = [
    1000, 600, 400, 9, 4, 1, 3, 2,  # capacity, reserved, allocated, allocations, ... handles
    5, 6, 7, 8,  # steps
    50, 60, 70, 80,  # bytes
    500, 600, 700, 800,  # busy
    10_000, 11, 12, 0,  # virtual now, fallback calls and bytes, errors
]  # fmt: skip


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the page of this process: two devices."""
    monkeypatch.setenv("OPENSPYRE_STATS_DIR", str(tmp_path))
    second = [*WORDS[:2], 123, *WORDS[3:]]
    write(tmp_path, os.getpid(), page_bytes(os.getpid(), devices=[WORDS, second]))
    return tmp_path


def top(*arguments: str, columns: int = 200) -> Result:
    return CliRunner().invoke(main, ["top", *arguments], env={"COLUMNS": str(columns)})


def test_rates_are_by_the_wall_and_busy_shares_by_the_virtual_clock() -> None:
    later = list(WORDS)
    later[10] += 20  # Compute: steps
    later[14] += 4000  # bytes
    later[18] += 300  # busy
    later[20] += 1200  # virtual time
    before, now = (
        live.rows([stats_page.parse(page_bytes(7, devices=[words]))]) for words in (WORDS, later)
    )
    (row,) = live.with_rates(before, now, 2.0)
    assert row.rates is not None
    assert row.rates["Compute"] == (10.0, 2000.0, 0.25)
    assert row.rates["H2D"] == (0.0, 0.0, 0.0)


def test_a_process_that_is_new_has_no_rates_yet() -> None:
    now = live.rows([stats_page.parse(page_bytes(7, devices=[WORDS]))])
    assert live.with_rates([], now, 1.0) == now


def test_json_has_every_figure_of_every_device(pages: Path) -> None:
    first, second = json.loads(top("--json").output)
    assert first["pid"] == os.getpid()
    assert (first["allocated"], second["allocated"]) == (400, 123)
    assert first["engines"][2] == {"name": "Compute", "steps": 7, "bytes": 70, "busy_ns": 700}


def test_b172_csv_has_a_line_a_device(pages: Path) -> None:
    first, second = csv.DictReader(io.StringIO(top("--csv").output))
    assert (first["device"], second["device"]) == ("0", "1")
    assert (first["allocated"], second["allocated"]) == ("400", "123")
    assert (first["Compute_steps"], first["HostCompute_busy_ns"]) == ("7", "800")


def test_prometheus_text_is_well_formed_and_complete(pages: Path) -> None:
    text = top("--prometheus").output
    sample = re.compile(r'(\w+)\{pid="(\d+)",device="(\d)"(?:,engine="(\w+)")?\} (\d+)')
    typed: set[str] = set()
    found: dict[tuple[str, str, str | None], int] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            _, keyword, name, rest = line.split(" ", 3)
            assert rest and keyword in ("HELP", "TYPE")
            if keyword == "TYPE":
                assert name not in typed, "a metric's samples stand together"
                assert rest == ("counter" if name.endswith("_total") else "gauge")
                typed.add(name)
            continue
        match = sample.fullmatch(line)
        assert match is not None, line
        name, pid, device, engine, value = match.groups()
        assert name in typed and int(pid) == os.getpid()
        found[name, device, engine] = int(value)
    assert len(found) == 2 * (len(live.METRICS) + 4 * len(live.ENGINE_METRICS))
    assert found["openspyre_allocated_bytes", "1", None] == 123
    assert found["openspyre_engine_busy_ns_total", "0", "H2D"] == 500


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_table_shows_each_device_once_and_cuts_no_number_short(
    pages: Path, columns: int
) -> None:
    many = [112 << 30, 100 << 30, 1023 << 20, *WORDS[3:]]
    write(pages, os.getpid(), page_bytes(os.getpid(), devices=[WORDS, many]))
    result = top("--once", "--interval", "0.1", columns=columns)
    assert result.exit_code == 0
    table, _, _ = result.output.partition("1 process ")
    lines = [line.split() for line in table.splitlines() if "spyre:" in line]
    assert [line[:6] for line in lines] == [
        [str(os.getpid()), "spyre:0", "400", "B", "600", "B"],
        [str(os.getpid()), "spyre:1", "1023.0", "MiB", "100.0", "GiB"],
    ]
    assert "…" not in table
    assert all(len(line) <= columns for line in table.splitlines())
    assert ("of" in table.split()) == (columns == 200)


def test_pid_leaves_out_the_others(pages: Path) -> None:
    other = os.getppid()
    write(pages, other, page_bytes(other, devices=[WORDS]))
    assert {row["pid"] for row in json.loads(top("--json").output)} == {os.getpid(), other}
    assert [row["pid"] for row in json.loads(top("--json", "--pid", str(other)).output)] == [other]


def test_nothing_to_show_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENSPYRE_STATS_DIR", str(tmp_path))
    assert json.loads(top("--json").output) == []
    assert top("--once", "--interval", "0.1").exit_code == 0


def test_pages_that_are_off_cannot_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENSPYRE_STATS_DIR", "off")
    result = top("--json")
    assert result.exit_code == 2 and "OPENSPYRE_STATS_DIR" in result.output


def test_a_directory_that_is_not_there_cannot_be_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENSPYRE_STATS_DIR", str(tmp_path / "none"))
    result = top("--once")
    assert result.exit_code == 2 and "no directory" in result.output


def test_a_process_without_a_page_is_a_no(pages: Path) -> None:
    result = top("--json", "--pid", str(2**22 + 1))
    assert result.exit_code == 1 and "no statistics page" in result.output


def test_two_formats_at_once_are_refused(pages: Path) -> None:
    result = top("--json", "--csv")
    assert result.exit_code == 2 and "exclude each other" in result.output


def run(command: str) -> subprocess.CompletedProcess[str]:
    """A shell command in which `$top` is the command."""
    top = f"{sys.executable} -m openspyre.cli top"
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command.replace('$top', top)}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("arguments", ["--prometheus", "--interval 0.1"])
def test_a_reader_that_leaves_ends_it_quietly(pages: Path, arguments: str) -> None:
    done = run(f"$top {arguments} | head -n 0")
    assert (done.returncode, done.stderr) == (141, "")


def test_a_full_disk_is_one_line_and_exit_code_2(pages: Path) -> None:
    done = run("$top --json > /dev/full")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1


def test_an_interrupt_ends_it_and_leaves_whole_lines(pages: Path) -> None:
    command = [sys.executable, "-m", "openspyre.cli", "top", "--interval", "0.1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        while "spyre:1" not in process.stdout.readline():  # it has begun
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert not rest or rest.endswith("\n")


def test_it_imports_no_torch(pages: Path) -> None:
    code = (
        "import sys; from openspyre.cli import main; "
        "main(['top', '--once', '--interval', '0.1'], standalone_mode=False); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
