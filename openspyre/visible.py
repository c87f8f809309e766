"""Which devices a process sees: the device variables, in one order of precedence.

Imports no torch. The order stands in docs/environment.md ("Which devices there are"); the
torch-spyre names mean here what they mean there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

PHYSICAL_FUNCTION = -1
MAX_DEVICES = 16  # rows of the statistics page (csrc/card/stats_page.h)
MAX_LOCAL_RANK = 127

_ENTRY = re.compile(r"(\d{1,3})(?:\.(\d{1,3}))?", re.ASCII)


class DeviceId(NamedTuple):
    """One device: the Physical Function (vf -1) or a Virtual Function of a card."""

    card: int
    vf: int = PHYSICAL_FUNCTION

    def __str__(self) -> str:
        return str(self.card) if self.vf < 0 else f"{self.card}.{self.vf}"


@dataclass(frozen=True)
class Selection:
    """The visible devices; when there are none, `error` says why and what to do."""

    devices: tuple[DeviceId, ...] = ()
    error: str = ""


def select_devices(environ: Mapping[str, str], cards: int = 1) -> Selection:
    """The devices that `environ` makes visible among `cards` modelled cards. Never raises."""
    try:
        devices = _select(environ, cards)
    except ValueError as error:
        return Selection(error=str(error))
    return Selection(devices)


def initial_device(environ: Mapping[str, str], count: int) -> int:
    """The index that LOCAL_RANK picks, 0 when it is not set.

    Raises ValueError when it is no whole number, not within 0..127, or beyond `count` devices.
    """
    text = environ.get("LOCAL_RANK", "").strip()
    if not text:
        return 0
    rank = _whole("LOCAL_RANK", text, "0 to 127")
    if not 0 <= rank <= MAX_LOCAL_RANK:
        raise ValueError(f"LOCAL_RANK={text!r} is out of range; want 0 to 127.")
    if rank >= count:
        raise ValueError(
            f"LOCAL_RANK={text!r} picks device {rank}, and {count} are visible: model more cards "
            f"with OPENSPYRE_CARDS={rank + 1}, or unset LOCAL_RANK."
        )
    return rank


def _select(environ: Mapping[str, str], cards: int) -> tuple[DeviceId, ...]:
    if "OPENSPYRE_DEVICES" in environ:
        limit = cards if environ.get("OPENSPYRE_CARDS", "").strip() else None
        return _listed(environ["OPENSPYRE_DEVICES"], limit)
    world = _world_size(environ)
    devices = _present(environ, cards, world)
    if "SPYRE_DEVICES" in environ:
        devices = _picked(environ["SPYRE_DEVICES"], devices)
    return devices[:world]


def _listed(text: str, cards: int | None) -> tuple[DeviceId, ...]:
    """OPENSPYRE_DEVICES: every entry counts, so nothing in it is dropped in silence."""
    form = "write cards and virtual functions such as OPENSPYRE_DEVICES=0,1 or 0.0,0.1"
    if not text.strip():
        raise ValueError(f"No device is visible: OPENSPYRE_DEVICES is empty; {form}, or unset it.")
    devices: list[DeviceId] = []
    for entry in text.split(","):
        match = _ENTRY.fullmatch(entry.strip())
        if match is None:
            raise ValueError(f"OPENSPYRE_DEVICES={text!r}: {entry.strip()!r} is no device; {form}.")
        device = DeviceId(int(match[1]), int(match[2]) if match[2] else PHYSICAL_FUNCTION)
        if device in devices:
            raise ValueError(f"OPENSPYRE_DEVICES={text!r} names {device} twice; {form}.")
        if cards is not None and device.card >= cards:
            raise ValueError(
                f"OPENSPYRE_DEVICES={text!r} names card {device.card}, and OPENSPYRE_CARDS={cards} "
                f"models cards up to {cards - 1}: raise or unset OPENSPYRE_CARDS."
            )
        devices.append(device)
    if len(devices) > MAX_DEVICES:
        raise ValueError(f"OPENSPYRE_DEVICES names {len(devices)} devices; at most {MAX_DEVICES}.")
    return tuple(devices)


def _world_size(environ: Mapping[str, str]) -> int | None:
    text = environ.get("AIU_WORLD_SIZE", "").strip()
    if not text:
        return None
    world = _whole("AIU_WORLD_SIZE", text, "1 or more")
    if world < 1:
        raise ValueError(f"No device is visible: AIU_WORLD_SIZE={text!r}; want 1 or more.")
    return world


def _present(environ: Mapping[str, str], cards: int, world: int | None) -> tuple[DeviceId, ...]:
    """What FLEX_DEVICE and the number of cards offer, before anything is picked."""
    kind = environ.get("FLEX_DEVICE", "").strip() or "PF"
    if kind.upper() == "MOCK":
        if world is None:
            raise ValueError(
                "No device is visible: FLEX_DEVICE=MOCK takes its count from AIU_WORLD_SIZE, which "
                "is not set; set it to 1 or more."
            )
        if world > MAX_DEVICES:
            raise ValueError(f"AIU_WORLD_SIZE={world} mocks too many; at most {MAX_DEVICES}.")
        return tuple(DeviceId(card) for card in range(world))
    if kind.upper() not in ("PF", "VF"):
        raise ValueError(f"FLEX_DEVICE={kind!r} is none of PF, VF, MOCK.")
    if cards == 0:
        raise ValueError("No device is visible: OPENSPYRE_CARDS=0; set it to 1 or more.")
    vf = PHYSICAL_FUNCTION if kind.upper() == "PF" else 0
    return tuple(DeviceId(card, vf) for card in range(cards))


def _picked(text: str, devices: tuple[DeviceId, ...]) -> tuple[DeviceId, ...]:
    form = "write a comma list of whole numbers such as SPYRE_DEVICES=0,1"
    if not text.strip():
        raise ValueError(f"No device is visible: SPYRE_DEVICES is empty; {form}, or unset it.")
    numbers: dict[int, None] = {}  # in the order of first mention
    for entry in text.split(","):
        try:
            numbers[int(entry)] = None
        except ValueError:
            raise ValueError(
                f"SPYRE_DEVICES={text!r}: {entry.strip()!r} is no whole number; {form}."
            ) from None
    picked = tuple(devices[n] for n in numbers if 0 <= n < len(devices))
    if not picked:
        raise ValueError(
            f"No device is visible: SPYRE_DEVICES={text!r} names none of the {len(devices)} there "
            f"are (0 to {len(devices) - 1}); {form}, or model more with OPENSPYRE_CARDS."
        )
    return picked


def _whole(name: str, text: str, want: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a whole number; want {want}.") from None
