"""The modelled card: figures, their sources, presets, the override text."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openspyre.card import (
    DYNAMIC_SEGMENT,
    GIB,
    MIB,
    PRESETS,
    PROGRAM_SEGMENT,
    SEGMENT_BYTES,
    SEGMENTS,
    TENSOR_SEGMENTS,
    CardSpec,
    parse_bytes,
)


def test_every_figure_has_a_source_tag() -> None:
    for item in fields(CardSpec):
        if item.name != "name":
            assert item.metadata["tag"] in "PUMDE", item.name
            assert len(item.metadata["source"]) > 5, item.name


def test_fp16_peak_follows_from_the_parameters() -> None:
    # 32 cores x 1024 MAC x 2 operations x 1.1 GHz = 72.1 TFLOP/s
    assert CardSpec().fp16_peak_flops == pytest.approx(32 * 1024 * 2 * 1.1e9)
    assert CardSpec().fp16_peak_flops == pytest.approx(72.1e12, rel=1e-3)
    assert CardSpec(cores=16).fp16_peak_flops == CardSpec().fp16_peak_flops / 2


def test_memory_figures() -> None:
    card = CardSpec()
    assert (card.total_bytes, card.usable_bytes) == (128 * GIB, 112 * GIB)
    assert card.core_span_bytes / MIB == pytest.approx(255.996, abs=5e-4)
    assert card.core_span_bytes % 128 == 0


def test_rt29_segment_constants() -> None:
    assert PROGRAM_SEGMENT * SEGMENT_BYTES == 120259084288
    assert 1 * SEGMENT_BYTES + 128 == 17179869312
    assert SEGMENTS * SEGMENT_BYTES == 137438953472
    assert [0, *TENSOR_SEGMENTS, DYNAMIC_SEGMENT, PROGRAM_SEGMENT] == list(range(SEGMENTS))


def test_specs_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        CardSpec().cores = 1  # type: ignore[misc]


def test_tiny_differs_in_memory_alone() -> None:
    full, tiny = PRESETS["spyre"], PRESETS["tiny"]
    changed = {i.name for i in fields(CardSpec) if getattr(full, i.name) != getattr(tiny, i.name)}
    memory = {"total_bytes", "usable_bytes", "region_min_bytes", "region_max_bytes"}
    assert changed == {"name"} | memory
    assert tiny.usable_bytes <= 64 * MIB


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("4096", 4096),
        ("64M", 64 * MIB),
        ("64m", 64 * MIB),
        ("1.5G", 3 * GIB // 2),
        ("112GiB", 112 * GIB),
        ("2KB", 2048),
        (" 1T ", 1024 * GIB),
    ],
)
def test_parse_bytes(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "-1", "12x", "M", "1e9", "0x10", "1 2", "nan"])
def test_parse_bytes_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="not a number of bytes"):
        parse_bytes(text)


@given(st.integers(0, 2**40), st.sampled_from(["", "K", "M", "G"]))
def test_parse_bytes_is_exact_for_whole_numbers(count: int, suffix: str) -> None:
    scale = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[suffix]
    assert parse_bytes(f"{count}{suffix}") == count * scale


def test_parse_overrides_any_figure() -> None:
    card = CardSpec.parse("spyre: clock_hz=1.2e9, cores=16, usable_bytes=1G, host_submit_ns=0")
    assert (card.clock_hz, card.cores, card.usable_bytes) == (1.2e9, 16, GIB)
    assert card.host_submit_ns == 0
    assert card.corelets == CardSpec().corelets
    assert CardSpec.parse("tiny") == PRESETS["tiny"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there are spyre, tiny"),
        ("spire", "no card 'spire'"),
        ("spyre:", "key=value"),
        ("spyre:cores", "key=value"),
        ("spyre:cores=", "key=value"),
        ("spyre:core=3", "did you mean cores"),
        ("spyre:name=x", "no 'name'"),
        ("spyre:cores=3,cores=4", "twice"),
        ("spyre:cores=2.5", "cores: '2.5' is not a whole number"),
        ("spyre:clock_hz=fast", "clock_hz: 'fast' is not a number"),
        ("spyre:clock_hz=nan", "clock_hz=nan must be above zero"),
        ("spyre:clock_hz=inf", "clock_hz=inf must be above zero"),
        ("spyre:cores=0", "cores=0 must be above zero"),
        ("spyre:h2d_bytes_per_ns=-1", "must be above zero"),
        ("spyre:transfer_latency_ns=-1", "must be above zero"),
        ("spyre:usable_bytes=100", "multiple of 128"),
        ("spyre:usable_bytes=129G", "above total_bytes"),
        ("tiny:region_min_bytes=8M", "region_min_bytes <= region_max_bytes"),
        ("spyre:region_max_bytes=32G", "a segment"),
        ("spyre:region_handles=17", "above 16"),
    ],
)
def test_parse_refuses_by_name(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CardSpec.parse(text)


@given(st.text(max_size=40))
def test_parse_raises_nothing_but_value_error(text: str) -> None:
    for candidate in (text, f"spyre:{text}", f"spyre:cores={text}"):
        try:
            assert isinstance(CardSpec.parse(candidate), CardSpec)
        except ValueError as error:
            assert str(error)


def test_table_shows_every_figure() -> None:
    table = CardSpec().table()
    assert "modelled" in table.splitlines()[0]
    for item in fields(CardSpec):
        assert item.name == "name" or item.name in table
