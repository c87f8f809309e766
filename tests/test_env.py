"""The environment: device selection in one order, every variable, errors that name themselves."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from conftest import RunPython
from hypothesis import given
from hypothesis import strategies as st

from openspyre import env, visible
from openspyre.card import GIB, KIB, MIB
from openspyre.visible import DeviceId, Selection, select_devices

ROOT = Path(__file__).parent.parent
PF = visible.PHYSICAL_FUNCTION


def devices_of(environ: dict[str, str]) -> list[tuple[int, int]]:
    config = env.configuration(environ)
    assert config.error == ""
    return [(device.card, device.vf) for device in config.devices]


def error_of(environ: dict[str, str]) -> str:
    config = env.configuration(environ)
    assert config.devices == ()
    assert config.error
    return config.error


# --- which devices there are


def test_one_physical_function_by_default() -> None:
    assert devices_of({}) == [(0, PF)]


def test_rt74_spyre_devices_are_deduplicated() -> None:
    assert devices_of({"OPENSPYRE_CARDS": "2", "SPYRE_DEVICES": "0,1,1"}) == [(0, PF), (1, PF)]


def test_rt74_spyre_devices_out_of_range_are_dropped() -> None:
    environ = {"OPENSPYRE_CARDS": "2", "SPYRE_DEVICES": "7,1,-1,2"}
    assert devices_of(environ) == [(1, PF)]


def test_spyre_devices_keep_their_own_order() -> None:
    environ = {"OPENSPYRE_CARDS": "4", "SPYRE_DEVICES": " 3, 0 ,2,3"}
    assert devices_of(environ) == [(3, PF), (0, PF), (2, PF)]


def test_rt74_world_size_above_physical_means_physical() -> None:
    assert len(devices_of({"OPENSPYRE_CARDS": "2", "AIU_WORLD_SIZE": "5"})) == 2
    assert len(devices_of({"OPENSPYRE_CARDS": "3", "AIU_WORLD_SIZE": "2"})) == 2


def test_world_size_limits_what_spyre_devices_picked() -> None:
    environ = {"OPENSPYRE_CARDS": "4", "SPYRE_DEVICES": "2,3", "AIU_WORLD_SIZE": "1"}
    assert devices_of(environ) == [(2, PF)]


def test_rt74_mock_counts_by_world_size() -> None:
    environ = {"FLEX_DEVICE": "MOCK", "AIU_WORLD_SIZE": "3", "OPENSPYRE_CARDS": "1"}
    assert len(devices_of(environ)) == 3


@pytest.mark.parametrize("world", [None, "", "0", "-1", "two", "17"])
def test_rt74_mock_without_a_count_is_an_error_at_first_use(world: str | None) -> None:
    environ = {"FLEX_DEVICE": "MOCK"}
    if world is not None:
        environ["AIU_WORLD_SIZE"] = world
    assert "AIU_WORLD_SIZE" in error_of(environ)


def test_flex_device_vf_gives_virtual_functions() -> None:
    environ = {"FLEX_DEVICE": "vf", "OPENSPYRE_CARDS": "2"}
    assert devices_of(environ) == [(0, 0), (1, 0)]
    assert {d.memory.kind for d in env.configuration(environ).devices} == {"vf"}
    assert env.configuration({"FLEX_DEVICE": "PF"}).devices[0].memory.kind == "pf"


def test_openspyre_devices_override_every_other_variable() -> None:
    environ = {
        "OPENSPYRE_DEVICES": "1, 0.0 ,0.3",
        "FLEX_DEVICE": "MOCK",
        "SPYRE_DEVICES": "junk",
        "AIU_WORLD_SIZE": "0",
    }
    assert devices_of(environ) == [(1, PF), (0, 0), (0, 3)]


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"OPENSPYRE_DEVICES": "a"}, "'a' is no device"),
        ({"OPENSPYRE_DEVICES": "0,"}, "'' is no device"),
        ({"OPENSPYRE_DEVICES": "-1"}, "'-1' is no device"),
        ({"OPENSPYRE_DEVICES": "0.1.2"}, "is no device"),
        ({"OPENSPYRE_DEVICES": "0,0"}, "names 0 twice"),
        ({"OPENSPYRE_DEVICES": "0.1,00.1"}, "names 0.1 twice"),
        ({"OPENSPYRE_DEVICES": "0,1", "OPENSPYRE_CARDS": "1"}, "names card 1"),
        ({"OPENSPYRE_DEVICES": ",".join(map(str, range(17)))}, "at most 16"),
        ({"FLEX_DEVICE": "GPU"}, "none of PF, VF, MOCK"),
        ({"AIU_WORLD_SIZE": "1.5"}, "not a whole number"),
        ({"OPENSPYRE_CARDS": "many"}, "OPENSPYRE_CARDS='many' is not a whole number"),
        ({"OPENSPYRE_CARDS": "-1"}, "out of range"),
    ],
)
def test_bad_device_variables_are_named(environ: dict[str, str], words: str) -> None:
    text = error_of(environ)
    assert re.search(words, text), text
    assert any(name in text for name in environ)


@pytest.mark.parametrize("text", ["7,8", "x", "0;1", ",", "0x1", "1.0"])
def test_b175_a_bad_or_short_list_gives_no_device_and_the_right_form(text: str) -> None:
    message = error_of({"SPYRE_DEVICES": text})
    assert f"SPYRE_DEVICES={text!r}" in message
    assert "SPYRE_DEVICES=0,1" in message


@pytest.mark.parametrize("name", ["OPENSPYRE_CARDS", "OPENSPYRE_DEVICES", "SPYRE_DEVICES"])
def test_b173_no_device_configured_says_which_variable(name: str) -> None:
    message = error_of({name: "0" if name == "OPENSPYRE_CARDS" else ""})
    assert message.startswith("No device is visible")
    assert name in message


@given(
    st.dictionaries(
        st.sampled_from(
            ["OPENSPYRE_DEVICES", "FLEX_DEVICE", "SPYRE_DEVICES", "AIU_WORLD_SIZE", "LOCAL_RANK"]
        ),
        st.one_of(
            st.text("0123456789,.- PFVMOCK", max_size=12),
            st.text(max_size=6),
            st.lists(st.integers(-2, 20)).map(lambda ns: ",".join(map(str, ns))),
        ),
    ),
    st.integers(0, 16),
)
def test_b175_selection_never_raises(environ: dict[str, str], cards: int) -> None:
    selection = select_devices(environ, cards)
    assert bool(selection.devices) != bool(selection.error)
    assert len(set(selection.devices)) == len(selection.devices) <= visible.MAX_DEVICES
    config = env.configuration({**environ, "OPENSPYRE_CARDS": str(cards)})
    assert bool(config.devices) != bool(config.error)
    if config.devices:
        assert 0 <= config.initial_device < len(config.devices)


def test_device_ids_print_as_one_writes_them() -> None:
    ids = (DeviceId(3), DeviceId(0, 2))
    text = ",".join(map(str, ids))
    assert select_devices({"OPENSPYRE_DEVICES": text}) == Selection(ids)


# --- the device that is current at the start


def test_rt75_local_rank_picks_the_first_device() -> None:
    assert env.configuration({}).initial_device == 0
    environ = {"OPENSPYRE_CARDS": "3", "LOCAL_RANK": "2"}
    assert env.configuration(environ).initial_device == 2


@pytest.mark.parametrize("rank", ["abc", "-1", "128", "1.0"])
def test_rt75_bad_local_rank_is_an_error(rank: str) -> None:
    assert f"LOCAL_RANK={rank!r}" in error_of({"LOCAL_RANK": rank})
    with pytest.raises(ValueError, match="LOCAL_RANK"):
        visible.initial_device({"LOCAL_RANK": rank}, 1)


def test_local_rank_beyond_the_devices_names_the_way_out() -> None:
    message = error_of({"LOCAL_RANK": "1"})
    assert "OPENSPYRE_CARDS=2" in message


# --- the other variables


def memory_of(environ: dict[str, str]) -> env.MemoryConfig:
    config = env.configuration(environ)
    assert config.error == ""
    return config.devices[0].memory


def test_capacity_and_regions() -> None:
    assert memory_of({}).capacity == 112 * GIB
    memory = memory_of(
        {
            "OPENSPYRE_CAPACITY": "8M",
            "OPENSPYRE_REGION_MIN": "64K",
            "OPENSPYRE_REGION_MAX": "2M",
            "OPENSPYRE_HANDLES": "3",
        }
    )
    sizes = (memory.capacity, memory.min_region, memory.max_region, memory.max_handles)
    assert sizes == (8 * MIB, 64 * KIB, 2 * MIB, 3)


def test_the_region_granule_never_exceeds_the_capacity() -> None:
    assert memory_of({"OPENSPYRE_CAPACITY": "1M"}).min_region == MIB
    assert memory_of({"OPENSPYRE_REGION_MAX": "1M"}).min_region == MIB
    assert memory_of({"OPENSPYRE_CAPACITY": "1000"}).capacity == 896  # whole blocks of 128


def test_the_card_sets_the_defaults() -> None:
    config = env.configuration({"OPENSPYRE_CARD": "tiny:h2d_bytes_per_ns=10,host_submit_ns=7"})
    device = config.devices[0]
    assert (device.card_capacity, device.memory.capacity) == (16 * MIB, 16 * MIB)
    assert (device.streams.cost.h2d_bytes_per_ns, device.streams.cost.host_submit_ns) == (10.0, 7)


@pytest.mark.parametrize(
    ("value", "count"), [("1", 1), ("8", 8), ("20", 8), ("", 4), ("9999999999", 8)]
)
def test_rt35_host_compute_streams(value: str, count: int) -> None:
    config = env.configuration({"TORCH_SPYRE_NUM_HOST_COMPUTE_STREAMS": value})
    assert config.devices[0].streams.host_compute_streams == count


@pytest.mark.parametrize("value", ["0", "-3", "four", "4.0"])
def test_rt35_bad_host_compute_stream_count_is_an_error(value: str) -> None:
    message = error_of({"TORCH_SPYRE_NUM_HOST_COMPUTE_STREAMS": value})
    assert "TORCH_SPYRE_NUM_HOST_COMPUTE_STREAMS" in message
    assert repr(value) in message


def test_debug_and_numerics_switches() -> None:
    config = env.configuration(
        {
            "OPENSPYRE_POISON": "1",
            "OPENSPYRE_GUARD": "1",
            "OPENSPYRE_ALLOCATOR": "best_fit",
            "OPENSPYRE_EXECUTE": "off",
            "OPENSPYRE_NUMERICS": "IEEE",
            "OPENSPYRE_TIES": "to_even",
            "OPENSPYRE_MERGED": "nan",
            "OPENSPYRE_FALLBACK": "error",
            "OPENSPYRE_ISA": "portable",
            "OPENSPYRE_THREADS": "3",
            "OPENSPYRE_STATS_DIR": "off",
            "OPENSPYRE_TIMELINE": "0",
            "OPENSPYRE_HAZARDS": "check",
        }
    )
    assert config.error == ""
    memory = config.devices[0].memory
    assert memory.poison and memory.guard and memory.exact_best_fit and config.poison_pads
    assert not config.execute
    assert config.numerics == env.Numerics(mode="ieee", tie="to_even", merged_is_nan=True)
    assert (config.fallback, config.isa, config.threads) == ("error", "portable", 3)
    assert (config.stats_directory, config.devices[0].streams.timeline_capacity) == ("", 0)
    assert config.devices[0].streams.hazards == "check"


# Any text is the name of a directory; a page that cannot be made there is reported later.
@pytest.mark.parametrize(
    "name",
    sorted(set(env.VARIABLES) - {"OPENSPYRE_STATS_DIR", "OPENSPYRE_CACHE_DIR", "OPENSPYRE_DUMP"}),
)
def test_every_variable_refuses_nonsense_by_name(name: str) -> None:
    message = error_of({name: "no such value!"})
    assert name in message
    assert "no such value!" in message


@pytest.mark.parametrize("name", sorted(env.VARIABLES))
def test_an_empty_value_means_not_set(name: str) -> None:
    config = env.configuration({name: "  "})
    if name in ("OPENSPYRE_DEVICES", "SPYRE_DEVICES"):
        assert "No device is visible" in config.error
    else:
        assert config == env.configuration({})


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"OPENSPYRE_CAPACITY": "127"}, "below one block"),
        ({"OPENSPYRE_CAPACITY": "113G"}, "OPENSPYRE_CARD=spyre:total_bytes"),
        ({"OPENSPYRE_REGION_MAX": "17G"}, "above 16G"),
        ({"OPENSPYRE_REGION_MIN": "2M", "OPENSPYRE_REGION_MAX": "1M"}, "the smaller first"),
        ({"OPENSPYRE_REGION_MIN": "2M", "OPENSPYRE_CAPACITY": "1M"}, "no region would fit"),
        ({"OPENSPYRE_HANDLES": "17"}, "from 1 to 16"),
        ({"OPENSPYRE_CARD": "tiny:cores=x"}, "OPENSPYRE_CARD.*cores"),
        ({"OPENSPYRE_FALBACK": "warn"}, "did you mean OPENSPYRE_FALLBACK"),
        ({"OPENSPYRE_ZZZ": ""}, "OPENSPYRE_ZZZ is no variable"),
    ],
)
def test_contradictions_and_misspellings_are_errors(environ: dict[str, str], words: str) -> None:
    assert re.search(words, error_of(environ)), error_of(environ)


def test_all_errors_are_told_at_once() -> None:
    message = error_of({"OPENSPYRE_TIES": "x", "LOCAL_RANK": "y", "OPENSPYRE_POISON": "2"})
    assert len(message.splitlines()) == 3


@given(st.dictionaries(st.sampled_from(sorted(env.VARIABLES)), st.text(max_size=10), max_size=4))
def test_configuration_never_raises(environ: dict[str, str]) -> None:
    config = env.configuration(environ)
    assert bool(config.devices) != bool(config.error)


def test_read_raises_what_configuration_collects() -> None:
    with pytest.raises(ValueError, match=r"OPENSPYRE_GUARD='yes' is none of 0, 1"):
        env.read("OPENSPYRE_GUARD", {"OPENSPYRE_GUARD": "yes"})
    with pytest.raises(KeyError):
        env.read("HOME", {})


def test_defaults_of_the_table_are_valid_values() -> None:
    for row in env.VARIABLES.values():
        if row.default:
            assert env.read(row.name, {}) == row.parse(row.default), row.name


# --- what the table is worth


def test_the_documentation_page_is_the_table() -> None:
    page = ROOT / "docs" / "environment.md"
    assert page.read_text() == env.markdown(), "run `make docs`"


def test_b178_no_variable_is_read_outside_the_table() -> None:
    """No file reads an environment variable of ours (or torch-spyre's) that the table lacks."""
    pattern = re.compile(r"\b(?:OPENSPYRE|TORCH_SPYRE|SPYRE|FLEX|AIU)_[A-Z][A-Z_]*\b")
    reads = re.compile(r"getenv|environ")
    build_settings = {"OPENSPYRE_TORCH", "OPENSPYRE_SANITIZE", "OPENSPYRE_TORCH_VERSION"}
    rooms = ("openspyre/**/*.py", "csrc/card/*.cpp", "csrc/machine/*.cpp", "csrc/torch/*.cpp")
    for source in [path for room in rooms for path in ROOT.glob(room)]:
        text = source.read_text()
        if reads.search(text):
            unknown = set(pattern.findall(text)) - set(env.VARIABLES) - build_settings
            unknown = {name for name in unknown if not name.endswith("_")}
            assert not unknown, f"{source.name} names {unknown}"


def struct_fields(header: str, name: str) -> list[str]:
    body = re.search(rf"struct {name} {{(.*?)\n}};", header, re.DOTALL)
    assert body, name
    names: list[str] = []
    for line in body[1].splitlines():
        declaration = line.split("//")[0].strip()
        if declaration.endswith(";") and "(" not in declaration:
            for part in declaration.rstrip(";").split(","):
                names.append(part.split("=")[0].split()[-1])
    return names


# Fields that no variable sets; C++ keeps its own default.
NOT_CONFIGURED = {"deadlock_grace_ms"}


@pytest.mark.parametrize(
    ("header", "struct"),
    [
        ("card/memory.h", "MemoryConfig"),
        ("card/stream.h", "CostModel"),
        ("card/stream.h", "StreamConfig"),
        ("card/runtime.h", "DeviceConfig"),
        ("machine/formats.h", "Numerics"),
    ],
)
def test_the_dataclasses_have_the_fields_of_the_structs(header: str, struct: str) -> None:
    ours = {item.name for item in fields(getattr(env, struct))}
    theirs = set(struct_fields((ROOT / "csrc" / header).read_text(), struct))
    assert ours == theirs - NOT_CONFIGURED


def test_the_extension_takes_the_configuration_as_it_is(run_python: RunPython) -> None:
    """What C++ understood, told back, is what was handed over: no field lost, renamed or added."""
    run_python(
        "import openspyre\n"
        "from openspyre import env\n"
        "import torch, openspyre._C as C\n"
        "told = env.configuration().runtime()\n"
        "C.configure(told)\n"
        "back = C.configuration()\n"
        "for device in back['devices']: device['streams'].pop('deadlock_grace_ms', None)\n"
        "assert back == told, (back, told)\n",
        {
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "OPENSPYRE_DEVICES": "0,1.0,1.1",
            "OPENSPYRE_CARD": "tiny:d2d_bytes_per_ns=99.5",
            "OPENSPYRE_NUMERICS": "ieee",
            "OPENSPYRE_TIES": "to_odd",
            "OPENSPYRE_MERGED": "nan",
            "OPENSPYRE_THREADS": "2",
            "OPENSPYRE_POISON": "1",
            "OPENSPYRE_GUARD": "1",
            "OPENSPYRE_STATS_DIR": "off",
            "OPENSPYRE_TIMELINE": "10",
        },
    )
