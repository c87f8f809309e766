"""Every environment variable of OpenSpyre: one table, its parser, and what follows from it.

Imports no torch. `configuration()` reads the environment once and never raises: what is malformed
becomes the text of `Configuration.error`, with no devices, so that counting devices never throws
and the first use raises that text as ValueError. `python -m openspyre.env` prints the table as
docs/environment.md.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from openspyre.card import (
    BLOCK_ALIGN,
    MAX_HANDLES,
    SEGMENT_BYTES,
    CardSpec,
    parse_bytes,
)
from openspyre.visible import MAX_DEVICES, DeviceId, initial_device, select_devices

T = TypeVar("T")

TIES = ("toward_positive", "away_from_zero", "to_even", "toward_zero", "to_odd")
SMALL_LIMIT_BYTES = 1 << 20  # torch's border between the small and the large pool


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One row of the table. `parse` takes the text and raises ValueError with a reason."""

    name: str
    default: str  # as one would write it; "" = not set
    values: str
    meaning: str
    read_by: str
    parse: Callable[[str], Any]
    upstream: bool = False  # a name that torch-spyre (or a launcher) already uses


def _integer(low: int, high: int | None = None) -> Callable[[str], int]:
    span = f"of {low} or more" if high is None else f"from {low} to {high}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"is not a whole number; want one {span}") from None
        if value < low or (high is not None and value > high):
            raise ValueError(f"is out of range; want a whole number {span}")
        return value

    return parse


def _choice(values: Mapping[str, T]) -> Callable[[str], T]:
    def parse(text: str) -> T:
        if text.lower() not in values:
            raise ValueError(f"is none of {', '.join(values)}")
        return values[text.lower()]

    return parse


def _names(*names: str) -> Callable[[str], str]:
    return _choice({name: name for name in names})


def _block_bytes(text: str) -> int:
    try:
        value = parse_bytes(text)
    except ValueError:
        raise ValueError("is not a number of bytes; write 4096, 64M, 1.5G or 1T") from None
    if value < BLOCK_ALIGN:
        raise ValueError(f"is below one block of {BLOCK_ALIGN} bytes")
    return value // BLOCK_ALIGN * BLOCK_ALIGN


def _region_bytes(text: str) -> int:
    value = _block_bytes(text)
    if value > SEGMENT_BYTES:
        raise ValueError("is above 16G, the size of a segment")
    return value


def _host_compute_streams(text: str) -> int:
    return min(_integer(1)(text), 8)


def _card(text: str) -> CardSpec:
    try:
        return CardSpec.parse(text)
    except ValueError as error:
        raise ValueError(f"is no card: {error}") from None


_FLAG: Mapping[str, bool] = {"0": False, "1": True}
_SWITCH: Mapping[str, bool] = {"on": True, "off": False, "1": True, "0": False}

_ROWS: tuple[Variable, ...] = (
    # Which devices there are. Their rules hang together and stand in visible.py.
    Variable(
        name="OPENSPYRE_CARDS",
        default="1",
        values=f"whole number, 0 to {MAX_DEVICES}",
        meaning="How many physical cards are modelled.",
        read_by="visible.py",
        parse=_integer(0, MAX_DEVICES),
    ),
    Variable(
        name="OPENSPYRE_DEVICES",
        default="",
        values="comma list of `card` or `card.vf`",
        meaning="The devices, in this order: `0` is the Physical Function of card 0, `0.1` its "
        "Virtual Function 1. Overrides the other device variables. Empty: no device.",
        read_by="visible.py",
        parse=str,
    ),
    Variable(
        name="FLEX_DEVICE",
        default="PF",
        values="PF, VF, MOCK",
        meaning="PF: each card's Physical Function. VF: Virtual Function 0 of each card. MOCK: "
        "`AIU_WORLD_SIZE` cards, whatever `OPENSPYRE_CARDS` says.",
        read_by="visible.py",
        parse=str,
        upstream=True,
    ),
    Variable(
        name="SPYRE_DEVICES",
        default="",
        values="comma list of whole numbers",
        meaning="Picks devices by number; repeats and numbers that do not exist are dropped. "
        "Empty: no device.",
        read_by="visible.py",
        parse=str,
        upstream=True,
    ),
    Variable(
        name="AIU_WORLD_SIZE",
        default="",
        values="whole number, 1 or more",
        meaning="At most so many devices; more than there are means all. With `FLEX_DEVICE=MOCK` "
        "the number of devices, and required.",
        read_by="visible.py",
        parse=str,
        upstream=True,
    ),
    Variable(
        name="LOCAL_RANK",
        default="0",
        values="whole number, 0 to 127",
        meaning="The device that is current at the start of every thread.",
        read_by="visible.py",
        parse=str,
        upstream=True,
    ),
    # The card and its memory
    Variable(
        name="OPENSPYRE_CARD",
        default="spyre",
        values="`spyre` or `tiny`, then `:key=value,...`",
        meaning="The modelled card: a preset of `openspyre.card`, with any of its figures changed.",
        read_by="env.py",
        parse=_card,
    ),
    Variable(
        name="OPENSPYRE_CAPACITY",
        default="",
        values="bytes, with K, M, G or T",
        meaning="Bytes that each device may hold. Default: the usable bytes of the card.",
        read_by="csrc/card memory",
        parse=_block_bytes,
    ),
    Variable(
        name="OPENSPYRE_HANDLES",
        default="",
        values=f"whole number, 1 to {MAX_HANDLES}",
        meaning="Region handles of a Virtual Function. Default: the card's, 8. "
        "A Physical Function has no such limit.",
        read_by="csrc/card memory",
        parse=_integer(1, MAX_HANDLES),
    ),
    Variable(
        name="OPENSPYRE_REGION_MIN",
        default="",
        values="bytes, at most 16G",
        meaning="Granule of region growth and its smallest step. Default: the card's, 2M, or the "
        "capacity if that is smaller.",
        read_by="csrc/card memory",
        parse=_region_bytes,
    ),
    Variable(
        name="OPENSPYRE_REGION_MAX",
        default="",
        values="bytes, at most 16G",
        meaning="No region grows past it, so no single allocation either. Default: the card's, "
        "16G (one segment).",
        read_by="csrc/card memory",
        parse=_region_bytes,
    ),
    Variable(
        name="OPENSPYRE_ALLOCATOR",
        default="fast",
        values="fast, best_fit",
        meaning="Block allocator: segregated fit in constant time, or the exact best-fit "
        "reference.",
        read_by="csrc/card memory",
        parse=_names("fast", "best_fit"),
    ),
    Variable(
        name="OPENSPYRE_POISON",
        default="0",
        values="0, 1",
        meaning="Debug: fill fresh blocks and the pads of sticks with a pattern that shows.",
        read_by="csrc/card memory, csrc/torch copies",
        parse=_choice(_FLAG),
    ),
    Variable(
        name="OPENSPYRE_GUARD",
        default="0",
        values="0, 1",
        meaning="Debug: one guard stick after every block, checked when it is freed.",
        read_by="csrc/card memory",
        parse=_choice(_FLAG),
    ),
    Variable(
        name="OPENSPYRE_EXECUTE",
        default="on",
        values="on, off",
        meaning="off: addresses and modelled times without backing memory; reading data is then "
        "an error.",
        read_by="csrc/card runtime",
        parse=_choice(_SWITCH),
    ),
    # Numbers
    Variable(
        name="OPENSPYRE_NUMERICS",
        default="dl16",
        values="dl16, ieee",
        meaning="How float16, bfloat16 and bool live on the card: as DLFloat16, or with their "
        "IEEE bits.",
        read_by="csrc/machine formats",
        parse=_names("dl16", "ieee"),
    ),
    Variable(
        name="OPENSPYRE_TIES",
        default="toward_positive",
        values=", ".join(TIES),
        meaning="What an exact tie does when a value is rounded to DLFloat16. The card's own rule "
        "is not public; the default is unverified.",
        read_by="csrc/machine formats",
        parse=_names(*TIES),
    ),
    Variable(
        name="OPENSPYRE_MERGED",
        default="inf",
        values="inf, nan",
        meaning="What DLFloat16's one code for NaN and infinity decodes to.",
        read_by="csrc/machine formats",
        parse=_names("inf", "nan"),
    ),
    # How it runs
    Variable(
        name="OPENSPYRE_FALLBACK",
        default="allow",
        values="allow, warn, error",
        meaning="Policy for operations without a device kernel, which run on the CPU.",
        read_by="openspyre/device, csrc/torch fallback",
        parse=_names("allow", "warn", "error"),
    ),
    Variable(
        name="OPENSPYRE_EAGER",
        default="native",
        values="native, fallback",
        meaning="native: eager operations are compiled for the card where the compiler knows them; "
        "fallback: the CPU computes all of them.",
        read_by="openspyre/device, csrc/torch native_ops",
        parse=_names("native", "fallback"),
    ),
    Variable(
        name="OPENSPYRE_STRICT",
        default="0",
        values="0, 1",
        meaning="1: an error inside the compiler is raised; 0: the CPU computes the operation, "
        "with a warning, and the account says why. A compiled region runs its operations one by "
        "one then.",
        read_by="openspyre/ops eager, openspyre/compiler stepwise",
        parse=_choice(_FLAG),
    ),
    Variable(
        name="OPENSPYRE_VERIFY",
        default="0",
        values="0, 1",
        meaning="1: every program that the compiler makes or finds on disk is held to the rules of "
        "the verifier before it is loaded, which takes longer than compiling it; and every graph "
        "to its invariants after each pass.",
        read_by="openspyre/compiler cache, watch",
        parse=_choice(_FLAG),
    ),
    Variable(
        name="OPENSPYRE_DUMP",
        default="",
        values="directory",
        meaning="Where the compiler writes what it makes of every graph: its text before and after "
        "each pass, and the text of its programs.",
        read_by="openspyre/compiler watch",
        parse=str,
    ),
    Variable(
        name="OPENSPYRE_CACHE_DIR",
        default="~/.cache/openspyre",
        values="directory, or off",
        meaning="Where compiled regions are kept for other processes.",
        read_by="openspyre/compiler cache",
        parse=str,
    ),
    Variable(
        name="OPENSPYRE_ISA",
        default="auto",
        values="auto, portable, avx2, avx512",
        meaning="Instruction set of the machine's kernels and of the conversions; auto takes the "
        "processor's best. No result depends on it.",
        read_by="openspyre/device, csrc/machine",
        parse=_names("auto", "portable", "avx2", "avx512"),
    ),
    Variable(
        name="OPENSPYRE_THREADS",
        default="",
        values="whole number, 1 or more",
        meaning="Thread budget of engines and conversions together. Default: follows "
        "`torch.set_num_threads`.",
        read_by="csrc/machine pool",
        parse=_integer(1, 1024),
    ),
    Variable(
        name="OPENSPYRE_HAZARDS",
        default="",
        values="off, check, insert",
        meaning="Work of two streams that touches the same bytes, one writing, with nothing to "
        "order it. check: refused with `torch.spyre.Hazard`. insert: the wait is added. "
        "Not set: off, unless `SPYRE_HAZARD_TRACKER` is 1.",
        read_by="csrc/card hazards",
        parse=_names("off", "check", "insert"),
    ),
    Variable(
        name="SPYRE_HAZARD_TRACKER",
        default="0",
        values="0, 1",
        meaning="1 means `OPENSPYRE_HAZARDS=insert`, unless that is set.",
        read_by="csrc/card hazards",
        parse=_choice(_FLAG),
        upstream=True,
    ),
    Variable(
        name="TORCH_SPYRE_NUM_HOST_COMPUTE_STREAMS",
        default="4",
        values="whole number, 1 or more",
        meaning="Host-compute streams of a device; more than 8 means 8.",
        read_by="csrc/card streams",
        parse=_host_compute_streams,
        upstream=True,
    ),
    # Plans and launches
    Variable(
        name="OPENSPYRE_OVERLAP",
        default="1",
        values="0, 1",
        meaning="1: a launch prepares (HostCompute, H2D) on stream 65 while its stream computes. "
        "0: all steps of a launch on its stream, in order.",
        read_by="csrc/card plans",
        parse=_choice(_FLAG),
    ),
    Variable(
        name="OPENSPYRE_CORRECTION_SLOTS",
        default="2",
        values="whole number, 1 to 64",
        meaning="Correction slots of a plan: so many launches with different addresses or symbols "
        "may be under way at once.",
        read_by="csrc/card plans",
        parse=_integer(1, 64),
    ),
    Variable(
        name="OPENSPYRE_PROGRAM_BUDGET",
        default="",
        values="bytes, with K, M, G or T",
        meaning="Program images that a device keeps at most; the least recently launched are "
        "evicted and come back at their next launch. Default: as many as fit.",
        read_by="csrc/card plans",
        parse=_block_bytes,
    ),
    Variable(
        name="OPENSPYRE_ALLOW_TILED_LAUNCH",
        default="",
        values="0, 1",
        meaning="1: `torch.spyre.launch` runs a plan on the tiles of larger tensors unless "
        "`allow_tiled_launch` says otherwise. Not set: 0, unless `SPYRE_ALLOW_TILED_LAUNCH` is 1.",
        read_by="openspyre/device plans",
        parse=_choice(_FLAG),
    ),
    Variable(
        name="SPYRE_ALLOW_TILED_LAUNCH",
        default="0",
        values="0, 1",
        meaning="As `OPENSPYRE_ALLOW_TILED_LAUNCH`, which goes before it.",
        read_by="openspyre/device plans",
        parse=_choice(_FLAG),
        upstream=True,
    ),
    # What it tells
    Variable(
        name="OPENSPYRE_STATS_DIR",
        default="/dev/shm",
        values="directory, or off",
        meaning="Where each process publishes its statistics page for a live view.",
        read_by="csrc/card stats_page",
        parse=lambda text: "" if text.lower() == "off" else text,
    ),
    Variable(
        name="OPENSPYRE_TIMELINE",
        default="65536",
        values="whole number, 0 or more",
        meaning="Entries that each device's Timeline keeps, oldest dropped first; 0: none.",
        read_by="csrc/card streams",
        parse=_integer(0, 1 << 28),
    ),
)

VARIABLES: Mapping[str, Variable] = {row.name: row for row in _ROWS}
# The one place where empty is a value: a list of nothing.
_EMPTY_IS_A_VALUE = frozenset({"OPENSPYRE_DEVICES", "SPYRE_DEVICES"})


def read(name: str, environ: Mapping[str, str]) -> Any:
    """The parsed value of one variable; None when it is not set and has no default.

    An empty value means not set. Raises ValueError naming the variable, its value and the right
    form; KeyError for a name that the table does not have.
    """
    row = VARIABLES[name]
    text = environ.get(name, "").strip() or row.default
    if not text:
        return None
    try:
        return row.parse(text)
    except ValueError as error:
        raise ValueError(f"{name}={text!r} {error}.") from None


def unknown_names(environ: Mapping[str, str]) -> list[str]:
    """One sentence for each OPENSPYRE_ variable that nobody reads: most likely a misspelling."""
    sentences = []
    for name in sorted(environ):
        if name.startswith("OPENSPYRE_") and name not in VARIABLES:
            near = difflib.get_close_matches(name, VARIABLES, n=1)
            hint = f"did you mean {near[0]}?" if near else "docs/environment.md lists them all."
            sentences.append(f"{name} is no variable of OpenSpyre: {hint}")
    return sentences


# ---------------------------------------------------------------------------------------------
# The configuration: the fields of csrc/card/runtime.h RuntimeConfig under the same names.


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    kind: str  # "pf" or "vf"
    capacity: int  # bytes
    max_handles: int
    max_region: int  # bytes
    min_region: int  # bytes
    small_limit: int  # bytes
    poison: bool
    guard: bool
    exact_best_fit: bool


@dataclass(frozen=True, kw_only=True)
class CostModel:
    h2d_bytes_per_ns: float
    d2h_bytes_per_ns: float
    d2d_bytes_per_ns: float
    transfer_latency_ns: int
    host_submit_ns: int


@dataclass(frozen=True, kw_only=True)
class StreamConfig:
    host_compute_streams: int
    cost: CostModel
    timeline_capacity: int
    hazards: str


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    card: int
    vf: int  # -1: the Physical Function
    card_capacity: int  # bytes of the whole card
    memory: MemoryConfig
    streams: StreamConfig


@dataclass(frozen=True, kw_only=True)
class Numerics:
    mode: str  # "dl16" or "ieee"
    tie: str  # one of TIES
    merged_is_nan: bool


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    overlap: bool
    slots: int
    image_budget: int  # bytes a device; 0: no limit


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What the environment asks for. With `error` set there are no devices."""

    devices: tuple[DeviceConfig, ...]
    numerics: Numerics
    execute: bool
    poison_pads: bool
    threads: int  # 0: follow torch
    stats_directory: str  # "": no page
    plans: PlanSettings
    error: str  # raised as ValueError at first use; "": none
    # What the Python side acts on itself:
    card: CardSpec
    initial_device: int
    fallback: str
    eager: str
    strict: bool
    verify: bool
    isa: str
    allow_tiled_launch: bool

    def runtime(self) -> dict[str, Any]:
        """Plain nested dicts with exactly the fields of the C++ RuntimeConfig."""
        return {
            "devices": [asdict(device) for device in self.devices],
            "numerics": asdict(self.numerics),
            "execute": self.execute,
            "poison_pads": self.poison_pads,
            "threads": self.threads,
            "stats_directory": self.stats_directory,
            "plans": asdict(self.plans),
            "error": self.error,
        }


def configuration(environ: Mapping[str, str] | None = None) -> Configuration:
    """Reads the environment (default: os.environ). Never raises; see `Configuration.error`."""
    environ = os.environ if environ is None else environ
    errors: list[str] = unknown_names(environ)

    def get(name: str) -> Any:
        """A malformed variable adds its error and counts as its default from there on."""
        try:
            return read(name, environ)
        except ValueError as error:
            errors.append(str(error))
            return read(name, {})

    selection = select_devices(environ, cards=get("OPENSPYRE_CARDS"))
    rank = 0
    if selection.error:
        errors.append(selection.error)
    else:
        try:
            rank = initial_device(environ, len(selection.devices))
        except ValueError as error:
            errors.append(str(error))

    card: CardSpec = get("OPENSPYRE_CARD")
    streams = StreamConfig(
        host_compute_streams=get("TORCH_SPYRE_NUM_HOST_COMPUTE_STREAMS"),
        cost=CostModel(
            h2d_bytes_per_ns=card.h2d_bytes_per_ns,
            d2h_bytes_per_ns=card.d2h_bytes_per_ns,
            d2d_bytes_per_ns=card.d2d_bytes_per_ns,
            transfer_latency_ns=card.transfer_latency_ns,
            host_submit_ns=card.host_submit_ns,
        ),
        timeline_capacity=get("OPENSPYRE_TIMELINE"),
        hazards=get("OPENSPYRE_HAZARDS") or ("insert" if get("SPYRE_HAZARD_TRACKER") else "off"),
    )
    poison: bool = get("OPENSPYRE_POISON")
    capacity, low, high = _memory_sizes(
        card,
        get("OPENSPYRE_CAPACITY"),
        get("OPENSPYRE_REGION_MIN"),
        get("OPENSPYRE_REGION_MAX"),
        errors,
    )
    memory: dict[str, Any] = {
        "capacity": capacity,
        "max_handles": get("OPENSPYRE_HANDLES") or card.region_handles,
        "max_region": high,
        "min_region": low,
        "small_limit": SMALL_LIMIT_BYTES,
        "poison": poison,
        "guard": get("OPENSPYRE_GUARD"),
        "exact_best_fit": get("OPENSPYRE_ALLOCATOR") == "best_fit",
    }

    def device(where: DeviceId) -> DeviceConfig:
        return DeviceConfig(
            card=where.card,
            vf=where.vf,
            card_capacity=card.usable_bytes,
            memory=MemoryConfig(kind="pf" if where.vf < 0 else "vf", **memory),
            streams=streams,
        )

    numerics = Numerics(
        mode=get("OPENSPYRE_NUMERICS"),
        tie=get("OPENSPYRE_TIES"),
        merged_is_nan=get("OPENSPYRE_MERGED") == "nan",
    )
    execute: bool = get("OPENSPYRE_EXECUTE")
    threads: int = get("OPENSPYRE_THREADS") or 0
    stats_directory: str = get("OPENSPYRE_STATS_DIR")
    plans = PlanSettings(
        overlap=get("OPENSPYRE_OVERLAP"),
        slots=get("OPENSPYRE_CORRECTION_SLOTS"),
        image_budget=get("OPENSPYRE_PROGRAM_BUDGET") or 0,
    )
    tiled: bool | None = get("OPENSPYRE_ALLOW_TILED_LAUNCH")
    upstream_tiled: bool = get("SPYRE_ALLOW_TILED_LAUNCH")
    fallback: str = get("OPENSPYRE_FALLBACK")
    eager: str = get("OPENSPYRE_EAGER")
    strict: bool = get("OPENSPYRE_STRICT")
    verify: bool = get("OPENSPYRE_VERIFY")
    isa: str = get("OPENSPYRE_ISA")
    return Configuration(
        devices=() if errors else tuple(device(where) for where in selection.devices),
        numerics=numerics,
        execute=execute,
        poison_pads=poison,
        threads=threads,
        stats_directory=stats_directory,
        plans=plans,
        error="\n".join(errors),
        card=card,
        initial_device=rank,
        fallback=fallback,
        eager=eager,
        strict=strict,
        verify=verify,
        isa=isa,
        allow_tiled_launch=upstream_tiled if tiled is None else tiled,
    )


def _memory_sizes(
    card: CardSpec, capacity: int | None, low: int | None, high: int | None, errors: list[str]
) -> tuple[int, int, int]:
    """Capacity, smallest and largest region in bytes; what contradicts goes to `errors`."""
    if capacity is None:
        capacity = card.usable_bytes
    elif capacity > card.usable_bytes:
        errors.append(
            f"OPENSPYRE_CAPACITY={capacity} is above the {card.usable_bytes} usable bytes of card "
            f"{card.name}: ask for less, or for a larger card with "
            f"OPENSPYRE_CARD={card.name}:total_bytes=...,usable_bytes=..."
        )
    if high is None:
        high = card.region_max_bytes if low is None else max(low, card.region_max_bytes)
    if low is None:
        # A granule above the capacity would forbid every allocation.
        low = min(card.region_min_bytes, capacity, high)
    if low > high:
        errors.append(
            f"OPENSPYRE_REGION_MIN={low} is above OPENSPYRE_REGION_MAX={high}: "
            f"want the smaller first"
        )
    elif low > capacity:
        errors.append(
            f"OPENSPYRE_REGION_MIN={low} is above the capacity of {capacity} bytes: "
            f"no region would fit"
        )
    return capacity, low, high


# ---------------------------------------------------------------------------------------------
# docs/environment.md

_HEAD = """# Environment variables

Every variable that OpenSpyre reads. This page is generated (`make docs`) from the table in
`openspyre/env.py`; a test keeps the two equal.

Variables are read when the device is registered. A malformed value breaks neither `import torch`
nor `torch.spyre.device_count()`, which is then 0: the first use of the device raises `ValueError`
with the variable, its value and the right form. An empty value means *not set*, except for the two
device lists, where it means *no device*. A variable that starts with `OPENSPYRE_` and stands in no
table below is an error too, since it is most likely misspelt.

Names marked † are torch-spyre's or a launcher's; they mean here what they mean there.
"""

_ORDER = """
## Which devices there are

In this order, and nowhere else:

1. `OPENSPYRE_DEVICES`, if set, is the list of devices, and `FLEX_DEVICE`, `SPYRE_DEVICES` and
   `AIU_WORLD_SIZE` are not looked at. Without `OPENSPYRE_CARDS` there are as many cards as the
   list names; with it, naming a card beyond is an error. Two functions of one card are two tenants:
   they share its memory and its engines and cannot reach each other's data.
2. Otherwise `FLEX_DEVICE` and `OPENSPYRE_CARDS` say what there is to pick from.
3. `SPYRE_DEVICES`, if set, picks from that by number, in its own order.
4. `AIU_WORLD_SIZE`, if set, keeps at most that many of what is left.
5. `LOCAL_RANK` names the current device among the result until `set_device` is called.

When the result is empty, `device_count()` is 0 and the first use says which variable made it so.

Autoload itself is torch's: with `TORCH_DEVICE_BACKEND_AUTOLOAD=0` torch does not load the device,
and `openspyre.register()` does.
"""


def markdown() -> str:
    """The page docs/environment.md."""
    lines = [_HEAD, "| variable | values | default | meaning | read by |", "|---|---|---|---|---|"]
    for row in VARIABLES.values():
        mark = " †" if row.upstream else ""
        default = f"`{row.default}`" if row.default else ""
        lines.append(
            f"| `{row.name}`{mark} | {row.values} | {default} | {row.meaning} | {row.read_by} |"
        )
    return "\n".join(lines) + "\n" + _ORDER


if __name__ == "__main__":
    print(markdown(), end="")
