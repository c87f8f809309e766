"""`openspyre doctor` and `openspyre info`: findings, advice and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from openspyre import _versions, env
from openspyre.card import CardSpec
from openspyre.cli import main
from openspyre.observe import doctor
from openspyre.observe.doctor import Finding


def openspyre(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def find(findings: list[Finding], what: str, text: str = "") -> Finding:
    (found,) = [f for f in findings if f.what == what and text in f.text]
    return found


def test_doctor_finds_a_working_device_and_adds_on_it() -> None:
    findings = doctor.examine({})
    assert not [f for f in findings if f.state == "bad"]
    assert find(findings, "arithmetic").state == "good"
    assert "none of OpenSpyre's" in find(findings, "variables").text
    result = openspyre("doctor")
    assert result.exit_code == 0 and "spyre works here" in result.output


def test_doctor_names_every_malformed_and_misspelt_variable_with_its_way_out() -> None:
    environ = {"OPENSPYRE_CARDZ": "2", "OPENSPYRE_HANDLES": "none"}
    findings = [f for f in doctor.examine(environ) if f.state == "bad"]
    assert len(findings) == 2
    assert "did you mean OPENSPYRE_CARD" in find(findings, "variable", "CARDZ").text
    assert "whole number" in find(findings, "variable", "HANDLES").text
    assert all(f.advice for f in findings)
    assert "rename" in find(findings, "variable", "CARDZ").advice


def test_doctor_tells_of_settings_that_surprise() -> None:
    environ = {"OPENSPYRE_EAGER": "fallback", "OPENSPYRE_CARDS": "2"}
    findings = doctor.examine(environ)
    assert find(findings, "variable", "OPENSPYRE_EAGER").state == "note"
    assert "by the CPU" in find(findings, "variable", "OPENSPYRE_EAGER").text
    assert find(findings, "variable", "OPENSPYRE_CARDS").state == "good"
    off = find(doctor.examine({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}), "variable")
    assert off.state == "note" and "register()" in off.advice


@pytest.mark.parametrize(("name", "value"), list(doctor.SURPRISES))
def test_what_surprises_is_a_value_that_the_variable_can_have(name: str, value: object) -> None:
    texts = {True: ("1", "on"), False: ("0", "off")}.get(value, (value,))  # type: ignore[call-overload]
    parsed = []
    for text in texts:
        try:
            parsed.append(env.VARIABLES[name].parse(text))
        except ValueError:
            continue
    assert value in parsed


@pytest.mark.parametrize("name", doctor.LISTS)
def test_an_empty_device_list_is_told_and_leaves_no_device(name: str) -> None:
    findings = doctor.examine({name: ""})
    assert any(f.state == "bad" and "No device is visible" in f.text for f in findings)
    assert not [f for f in findings if f.what == "arithmetic"], "nothing to add on"


def test_a_torch_that_is_not_supported_is_bad_and_the_rest_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda n: "2.9.0" if n == "torch" else real(n))
    findings = doctor.examine({})
    assert find(findings, "torch").state == "bad"
    assert _versions.SUPPORTED_TEXT in find(findings, "torch").text
    assert find(findings, "host memory") and not [f for f in findings if f.what == "arithmetic"]


def test_a_check_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def _device() -> Finding:
        raise RuntimeError("no card")

    monkeypatch.setattr(doctor, "_device", _device)
    found = find(doctor.examine({}), "device")
    assert found.state == "bad" and found.text == "RuntimeError: no card"


def test_little_host_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "host_memory_bytes", lambda: 1 << 30)
    assert find(doctor.examine({}), "host memory").state == "note"


def a_file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.touch()
    return path


@pytest.mark.parametrize("where", [a_file, lambda _: Path("/proc/none")])
def test_a_cache_that_cannot_be_written_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: Callable[[Path], Path]
) -> None:
    monkeypatch.setenv("OPENSPYRE_CACHE_DIR", str(tmp_path / "below" / "it"))
    assert find(doctor.examine({}), "cache").state == "good"
    assert not (tmp_path / "below").exists(), "looking leaves nothing behind"
    monkeypatch.setenv("OPENSPYRE_CACHE_DIR", str(where(tmp_path)))
    found = find(doctor.examine({}), "cache")
    assert found.state == "note" and "OPENSPYRE_CACHE_DIR" in found.advice


def test_a_statistics_directory_that_is_not_there_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENSPYRE_STATS_DIR", str(tmp_path))
    assert find(doctor.examine({}), "statistics").state == "good"
    monkeypatch.setenv("OPENSPYRE_STATS_DIR", str(tmp_path / "none"))
    found = find(doctor.examine({}), "statistics")
    assert found.state == "note" and "no such directory" in found.text


def test_each_variable_is_told_once() -> None:
    for environ in ({"FLEX_DEVICE": "XX"}, {"SPYRE_DEVICES": ""}, {"OPENSPYRE_HANDLES": "none"}):
        (name,) = environ
        assert len([f for f in doctor.examine(environ) if name in f.text]) == 1, environ


def doctor_ends_with(**environ: str) -> str:
    """The last line of a doctor in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "openspyre.cli", "doctor"],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def test_the_last_line_tells_what_does_not_work_as_one_thinks() -> None:
    assert "register()" in doctor_ends_with(TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert "computes nothing" in doctor_ends_with(OPENSPYRE_EXECUTE="off")


def test_info_lists_the_devices_without_autoload() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "openspyre.cli", "info"],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("spyre:0: ")


def test_doctor_json_has_every_finding_and_exit_code_1_for_a_bad_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENSPYRE_HANDLES", "none")
    result = openspyre("doctor", "--json")
    assert result.exit_code == 1
    told = json.loads(result.output)
    assert told["good"] is False
    assert "OPENSPYRE_HANDLES" in next(f["text"] for f in told["findings"] if f["state"] == "bad")


def test_info_shows_the_devices_and_each_figure_with_its_source() -> None:
    told = json.loads(openspyre("info", "--json").output)
    assert len(told["devices"]) == torch.spyre.device_count()
    device = told["devices"][0]
    assert device["device"] == "spyre:0" and device["multi_processor_count"] == 32
    figures = {row["name"]: row for row in told["card"]["figures"]}
    assert figures["cores"]["value"] == CardSpec().cores
    assert all(row["tag"] in "PUMDE" and row["source"] for row in figures.values())
    text = openspyre("info").output
    assert "a Physical Function" in text and "lx_bytes" in text and "modelled" in text


def test_info_refuses_a_malformed_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENSPYRE_CARD", "nosuch")
    result = openspyre("info")
    assert result.exit_code == 2 and "nosuch" in result.output
