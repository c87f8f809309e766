"""`openspyre top`: rows, rates and the formats, from pages that a test wrote."""

from __future__ import annotations

import csv
import io
import json
import os
import re
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


def top(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["top", *arguments], env={"COLUMNS": "200"})


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


def test_csv_has_a_line_a_device(pages: Path) -> None:
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


def test_the_table_shows_each_device_once(pages: Path) -> None:
    result = top("--once", "--interval", "0.1")
    assert result.exit_code == 0
    assert "spyre:0" in result.output and "spyre:1" in result.output and "123 B" in result.output


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


def test_it_imports_no_torch(pages: Path) -> None:
    code = (
        "import sys; from openspyre.cli import main; "
        "main(['top', '--once', '--interval', '0.1'], standalone_mode=False); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
