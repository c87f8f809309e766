"""Installing and importing: autoload, import orders, versions, and what an import leaves alone."""

from __future__ import annotations

import ast
import tomllib
from importlib.metadata import distribution, entry_points
from pathlib import Path

import pytest
from conftest import RunPython

import openspyre
from openspyre import _versions

ROOT = Path(__file__).parent.parent
OFF = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

# Stands in for the extension and the device package, so that loading itself can be tested:
# `calls` counts registrations, `during` runs in the middle of each.
FAKE = """
import sys, types
calls = []
during = lambda: None
def _register():
    calls.append(1)
    during()
sys.modules["openspyre._C"] = extension = types.ModuleType("openspyre._C")
extension.shutdown = lambda: None
sys.modules["openspyre.device"] = device = types.ModuleType("openspyre.device")
device._register = _register
"""


# --- what is installed


def test_metadata() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = distribution("openspyre")
    assert installed.version == openspyre.__version__
    assert installed.metadata["License-Expression"] == project["license"] == "Apache-2.0"
    assert f"torch{_versions.SUPPORTED_TEXT}" in project["dependencies"]
    assert f"TORCH := {_versions.TESTED}" in (ROOT / "Makefile").read_text()


def test_one_entry_point_in_torchs_group() -> None:
    (point,) = entry_points(group="torch.backends", name="spyre")
    assert point.value == "openspyre:_autoload"
    assert point.load() is openspyre._autoload


def test_the_extension_knows_its_torch(run_python: RunPython) -> None:
    run_python(
        "import torch\n"
        "from openspyre import _build_info\n"
        "assert _build_info.TORCH_VERSION == torch.__version__\n"
    )


# --- import orders


def test_pt18_torch_alone_brings_the_device(run_python: RunPython) -> None:
    done = run_python(
        "import torch\n"
        "x = torch.ones(4, device='spyre')\n"
        "assert x.device == torch.device('spyre:0') and x.cpu().tolist() == [1.0] * 4\n"
    )
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(
    "imports",
    [
        "import openspyre; import torch",
        "import torch; import openspyre",
        "import openspyre.env, openspyre.card; import torch",
        "import openspyre; openspyre.register(); import torch",
        "import torch; torch.manual_seed(1)",
        "import torch.nn; import openspyre; openspyre.register(); openspyre.register()",
    ],
)
@pytest.mark.parametrize("autoload", ["1", "0"])
def test_b176_pt18_every_import_order_works(
    run_python: RunPython, imports: str, autoload: str
) -> None:
    code = (
        f"{imports}\n"
        "import torch, openspyre\n"
        f"if {autoload} == 0: openspyre.register()\n"
        "assert torch.arange(3, device='spyre').tolist() == [0, 1, 2]\n"
    )
    run_python(code, {"TORCH_DEVICE_BACKEND_AUTOLOAD": autoload})


def test_importing_openspyre_imports_no_torch(run_python: RunPython) -> None:
    run_python(
        "import sys, openspyre, openspyre.card, openspyre.env, openspyre.visible\n"
        "import openspyre.program, openspyre.program.verify, openspyre.runtime, openspyre.timing\n"
        "import openspyre.cli\n"
        "assert openspyre.env.configuration().error == ''\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] == 'torch']\n"
    )


def test_autoload_off_leaves_torch_without_the_device(run_python: RunPython) -> None:
    run_python(
        "import torch, openspyre\n"
        "from openspyre import _load\n"
        "assert not _load.is_loaded() and not hasattr(torch, 'spyre')\n"
        "openspyre.register()\n"
        "assert _load.is_loaded() and torch.spyre.device_count() == 1\n",
        OFF,
    )


def test_lazy_attributes_and_their_errors() -> None:
    assert openspyre.card.CardSpec().name == "spyre"
    assert "env" in dir(openspyre)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        openspyre.nothing  # noqa: B018


# --- what an import leaves alone


def test_rt73_importing_torch_starts_nothing(run_python: RunPython, tmp_path: Path) -> None:
    """No output, no thread, no runtime, no statistics page; the first tensor starts it."""
    count = "import os, torch\nprint(len(os.listdir('/proc/self/task')))\n"
    without = run_python(count, OFF)
    loaded = run_python(count)
    assert (loaded.stdout, loaded.stderr) == (without.stdout, without.stderr)
    run_python(
        "import os, torch\n"
        "pages = lambda: os.listdir(os.environ['OPENSPYRE_STATS_DIR'])\n"
        "assert torch.spyre.device_count() == 1\n"
        "assert not torch.spyre.is_initialized() and pages() == []\n"
        "x = torch.empty(3, device='spyre')\n"
        "assert torch.spyre.is_initialized() and pages() == [f'openspyre-{os.getpid()}.stats']\n",
        {"OPENSPYRE_STATS_DIR": str(tmp_path)},
    )
    assert list(tmp_path.iterdir()) == []  # the page goes when its process does


def test_importing_torch_brings_no_compiler(run_python: RunPython) -> None:
    """torch._dynamo and torch._inductor come with the first compile, never with the device."""
    code = (
        "import sys, torch\n"
        "print(*sorted(n for n in sys.modules if n.startswith(('torch._dynamo', "
        "'torch._inductor', 'torch.testing'))))"
    )
    assert run_python(code).stdout == run_python(code, OFF).stdout


def test_pt29_registration_leaves_torchs_own_functions_alone(run_python: RunPython) -> None:
    """Every function and class attribute of every loaded torch module is the same object after.

    Allowed: new names (torch.spyre and the generated methods), and what torch's own
    rename_privateuse1_backend replaces: the printed names of DeviceType and ProfilerActivity.
    """
    run_python(
        """
import sys, types
import torch, torch.nn, torch.nn.functional, torch.utils.data, torch.utils.dlpack
import torch.serialization, torch.accelerator, torch.amp, torch.multiprocessing
import openspyre

def snapshot():
    seen = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "torch" or not isinstance(module, types.ModuleType):
            continue
        for key, value in list(vars(module).items()):
            if callable(value):
                seen[name, key] = value
            if isinstance(value, type) and str(value.__module__).startswith("torch"):
                for attribute, member in list(vars(value).items()):
                    if callable(member) or isinstance(member, (property, staticmethod)):
                        seen[value.__module__, value.__qualname__, attribute] = member
    return seen

before = snapshot()
assert len(before) > 5000
openspyre.register()
torch.ones(2, device="spyre").cpu()
after = snapshot()
renamed = {"__repr__", "__str__", "name"}
changed = {
    key: (value, after.get(key))
    for key, value in before.items()
    if after.get(key) is not value
    and not (key[-1] in renamed and key[1].lstrip("_") in ("DeviceType", "ProfilerActivity"))
}
assert not changed, changed
""",
        OFF,
    )


# --- loading: once, from anywhere, and with errors that name the way out


def test_pt18_loading_is_reentrant(run_python: RunPython) -> None:
    run_python(
        FAKE + "import openspyre\n"
        "during = lambda: (openspyre._autoload(), openspyre.register())\n"
        "import torch\n"
        "assert calls == [1], calls\n"
        "openspyre.register(); openspyre._autoload()\n"
        "assert calls == [1], calls\n"
    )


def test_pt18_a_thread_may_register_while_another_imports_torch(run_python: RunPython) -> None:
    run_python(
        FAKE + "import threading, time\n"
        "during = lambda: time.sleep(0.2)\n"
        "failed = []\n"
        "def attempt(what):\n"
        "    try:\n"
        "        what()\n"
        "    except BaseException as error:\n"
        "        failed.append(error)\n"
        "import openspyre\n"
        "def import_torch(): import torch\n"
        "threads = [threading.Thread(target=attempt, args=(what,), daemon=True)\n"
        "           for what in [import_torch, openspyre.register, import_torch] * 2]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join(90)\n"
        "assert not any(thread.is_alive() for thread in threads), 'deadlock'\n"
        "assert not failed and calls == [1], (failed, calls)\n"
    )


def test_a_failed_registration_can_be_tried_again(run_python: RunPython) -> None:
    run_python(
        FAKE + "import openspyre\n"
        "def during(): raise OSError('once')\n"
        "try:\n"
        "    openspyre.register()\n"
        "except OSError:\n"
        "    pass\n"
        "else:\n"
        "    raise AssertionError('no error')\n"
        "during = lambda: None\n"
        "openspyre.register()\n"
        "assert len(calls) == 2\n",
        OFF,
    )


@pytest.mark.parametrize(
    "version", ["2.12.1", "2.15.0", "2.15.0a0+git12ab", "3.13.0", "2.1.3", "nightly"]
)
def test_pt37_other_versions_of_torch_are_refused_by_name(version: str) -> None:
    with pytest.raises(ImportError) as caught:
        _versions.check_supported(version)
    for words in (version, ">=2.13,<2.15", "pip install torch==2.13.0"):
        assert words in str(caught.value)


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu", "2.13.1", "2.14.1+cu130"])
def test_supported_versions_of_torch_pass(version: str) -> None:
    _versions.check_supported(version)
    _versions.check_built_for(version, version)


def test_pt37_a_build_for_another_minor_is_refused_by_name() -> None:
    _versions.check_built_for("2.13.1+cpu", "2.13.0")
    with pytest.raises(ImportError) as caught:
        _versions.check_built_for("2.14.1", "2.13.0+cpu")
    for words in ("2.14.1", "2.13.0+cpu", "--no-build-isolation", "torch==2.13.0"):
        assert words in str(caught.value)


def refusal(run_python: RunPython, before: str) -> str:
    """What `import torch` says when `before` has spoilt the loading."""
    done = run_python(f"import sys, types\n{before}\nimport torch", check=False)
    assert done.returncode == 1
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in done.stderr  # torch's own way out
    return done.stderr


def test_pt37_import_torch_tells_of_a_foreign_build(run_python: RunPython) -> None:
    text = refusal(
        run_python,
        "info = sys.modules['openspyre._build_info'] = types.ModuleType('_build_info')\n"
        "info.TORCH_VERSION = '2.99.0'",
    )
    assert "openspyre was built for torch 2.99.0, and this is torch 2." in text


def test_import_torch_tells_of_a_missing_build(run_python: RunPython) -> None:
    text = refusal(run_python, "sys.modules['openspyre._build_info'] = None")
    assert "openspyre's extension was not built" in text
    assert "pip install --no-build-isolation" in text
    text = refusal(run_python, "sys.modules['openspyre._C'] = None")
    assert "does not load" in text


def test_pt37_register_refuses_an_unsupported_torch(run_python: RunPython) -> None:
    run_python(
        "import torch, openspyre\n"
        "torch.__version__ = '2.15.0'\n"
        "try:\n"
        "    openspyre.register()\n"
        "except ImportError as error:\n"
        "    assert 'pip install torch==2.13.0' in str(error)\n"
        "else:\n"
        "    raise AssertionError('accepted')\n"
        "assert not hasattr(torch, 'spyre')\n",
        OFF,
    )


@pytest.mark.parametrize(
    "env",
    [
        {"OPENSPYRE_DEVICES": "x"},
        {"SPYRE_DEVICES": "7,8"},
        {"OPENSPYRE_TIES": "sideways"},
        {"OPENSPYRE_NO_SUCH": "1"},
        {"LOCAL_RANK": "abc"},
    ],
)
def test_b175_a_malformed_variable_breaks_the_first_use_and_nothing_before(
    run_python: RunPython, env: dict[str, str]
) -> None:
    (name,) = env
    done = run_python(
        "import torch\n"
        "assert torch.spyre.device_count() == 0 and not torch.spyre.is_available()\n"
        "assert torch.accelerator.device_count() == 0\n"
        "try:\n"
        "    torch.ones(2, device='spyre')\n"
        "except ValueError as error:\n"
        "    print(error)\n",
        env,
    )
    assert name in done.stdout
    assert done.stderr == ""


# --- pitfalls of building and testing


def test_pt36_the_build_takes_the_installed_torch_of_the_pinned_version() -> None:
    makefile = (ROOT / "Makefile").read_text()
    installs = [line for line in makefile.splitlines() if "pip install" in line and "-e ." in line]
    assert installs and all("--no-build-isolation --no-deps" in line for line in installs)
    assert "torch==$(TORCH)" in makefile
    unpinned = [
        line
        for line in makefile.splitlines()
        if "pip install" in line
        and " torch" in line
        and "torch==" not in line
        and not line.startswith("#")
    ]
    assert unpinned == []
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert not any(requirement.startswith("torch") for requirement in build)


def test_pt38_nothing_depends_on_torchs_own_test_files() -> None:
    """Of torch's testing only what lies in the wheel: the package torch.testing."""
    for file in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "openspyre").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules = [node.module]
            assert not [m for m in modules if m == "torch.test" or m.startswith("torch.test.")]
