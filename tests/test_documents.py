"""What the documents show runs as it is written there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import clean_environment

ROOT = Path(__file__).parent.parent


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def ran(command: list[str], place: Path) -> str:
    done = subprocess.run(
        command, cwd=place, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_first_script_of_the_readme_runs(tmp_path: Path) -> None:
    script = blocks("README.md", "python")[0]
    printed = ran([sys.executable, "-c", script], tmp_path)
    assert "torch.Size([100, 5])" in printed
    assert "fallback policy is 'error'" in printed


def test_the_compiled_example_of_the_readme_runs(tmp_path: Path) -> None:
    printed = ran(
        [sys.executable, "-c", "import torch\n" + blocks("README.md", "python")[1]], tmp_path
    )
    assert "1.0000" in printed and "bound by" in printed
    assert "nothing was computed by the CPU" in printed


def test_the_first_program_of_the_readme_runs_and_its_commands_work(tmp_path: Path) -> None:
    script = blocks("README.md", "python")[2]
    printed = ran([sys.executable, "-c", script], tmp_path)
    assert "tensor([2., 2., 2., 2.], dtype=torch.float16)" in printed
    lines = [
        shlex.split(line, comments=True)
        for block in blocks("README.md", "sh")
        for line in block.splitlines()
        if line.startswith(".venv/bin/openspyre ")
    ]
    assert [line[2] for line in lines] == ["show", "verify", "time"]
    for _, *arguments in lines:
        main = [sys.executable, "-c", "from openspyre.cli import main; main()", *arguments]
        assert "double" in ran(main, tmp_path)


@pytest.mark.parametrize("page", ["docs/spyrecode.md", "docs/programs_by_hand.md"])
def test_the_short_snippets_run_on_any_program(page: str, tmp_path: Path) -> None:
    (snippet,) = [b for b in blocks(page, "python") if b.startswith("from openspyre")]
    made = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from examples.programs import add\n"
        "program = add.build(37, 150, cores=4)\n"
    )
    ran([sys.executable, "-c", made + snippet], tmp_path)


def test_the_snippet_of_the_timing_page_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "timing.md").read_text(encoding="utf-8")
    snippet = "\n".join(
        line.removeprefix("    ") for line in text.splitlines() if line.startswith("    ")
    )
    made = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from examples.programs import add\n"
        "program = add.build(37, 150, cores=4)\n"
    )
    assert "modelled" in ran([sys.executable, "-c", made + snippet], tmp_path)
    (command,) = re.findall(r'`python -c "(.*?)"`', text, re.DOTALL)
    assert "cores" in ran([sys.executable, "-c", command], tmp_path)


def test_the_page_of_plans_and_launches_is_a_script_and_its_commands_work(tmp_path: Path) -> None:
    script = "\n".join(blocks("docs/launching.md", "python"))
    made = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    printed = ran([sys.executable, "-c", made + script], tmp_path)
    for line in ("tensor(2., dtype=torch.float16)", "4 tensor([2.]", "tensor(6., dtype"):
        assert line in printed, printed
    assert "host_computes=1" in printed
    page = (ROOT / "docs" / "launching.md").read_text(encoding="utf-8")
    commands = re.findall(r"^    openspyre (.*)$", page, re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        arguments = shlex.split(command, comments=True)
        ran([sys.executable, "-c", "from openspyre.cli import main; main()", *arguments], tmp_path)
