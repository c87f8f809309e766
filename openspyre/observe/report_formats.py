"""Format errors: how far each operation is from float32, on the card and by rounding alone.

Every operation is computed on the card and, from the same inputs, by the CPU in float32. Beside the
card's own error stands the least that any card of that format makes: the float32 result rounded
once to DLFloat16, and once to the dtype's IEEE format. What errors do when they add up is not told;
which operation brings them in is. Needs torch.
"""

from __future__ import annotations

import collections
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from openspyre import _C
from openspyre.formats import Mode, format_for, host_type
from openspyre.observe.report_data import FormatLayer, FormatRow
from openspyre.observe.report_programs import short_source, split_source

if TYPE_CHECKING:
    import torch

Values: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

REPEATS = 2
"""How often the same operation of the same module, line and shapes is compared."""
_SIXTEEN = ("float16", "bfloat16")


def format_errors(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[FormatRow]:
    """Calls `function(*args, **kwargs)` once, operation by operation, compiled or not, and compares
    each result of a floating dtype. Slower than the call by a CPU's float32 run and the copies."""
    with watching_formats() as rows:
        function(*args, **kwargs)
    return rows


@contextmanager
def watching_formats() -> Iterator[list[FormatRow]]:
    """Compares what runs inside, on this thread; the list fills as it goes. Compiled regions run
    their operations one by one meanwhile."""
    from openspyre.compiler import stepwise
    from openspyre.observe.intermediates import _Mode, _on_cpu

    rows: list[FormatRow] = []
    met: collections.Counter[Any] = collections.Counter()

    def step(op: Any, source: str, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
        name = str(op)
        if name.startswith("openspyre."):  # a region: its operations come one by one
            return op(*given, **named)
        line, module = split_source(source)
        layer = module or _running_module()
        key = (name, line, layer, _shapes((given, named)))
        known = met[key] >= REPEATS
        met[key] += 1
        expected = None if known else _on_cpu(op, given, named)
        value = op(*given, **named)
        if expected is not None and expected.known:
            for found, wanted in _pairs(value, expected.value):
                row = _row(name, layer, short_source(line), found, wanted)
                if row is not None:
                    rows.append(row)
        return value

    with stepwise.watched(step), _Mode(step):
        yield rows


def format_layers(rows: Sequence[FormatRow]) -> list[FormatLayer]:
    """Rows by layer, in the order in which the layers first ran."""
    from openspyre.observe.report_gather import layer_of

    groups: dict[str, list[FormatRow]] = {}
    for row in rows:
        groups.setdefault(layer_of(row.layer) or row.operation, []).append(row)
    made = []
    for name, members in groups.items():
        worst = max(members, key=lambda r: r.card)
        made.append(
            FormatLayer(
                name,
                len(members),
                worst.card,
                max(r.dl16 for r in members),
                max(r.ieee for r in members),
                max(r.card_rms for r in members),
                max(r.dl16_rms for r in members),
                max(r.ieee_rms for r in members),
                worst.operation,
                worst.source,
            )
        )
    return made


# --- one result


def _row(
    name: str, layer: str, source: str, found: torch.Tensor, wanted: torch.Tensor
) -> FormatRow | None:
    dtype = str(found.dtype).removeprefix("torch.")
    if dtype not in (*_SIXTEEN, "float32") or not found.numel():
        return None
    exact = wanted.detach().double().numpy().reshape(-1)
    card = found.detach().cpu().double().numpy().reshape(-1)
    whole = np.isfinite(exact)
    if not whole.any():
        return None
    exact, card = exact[whole], card[whole]
    dl16, ieee = (_rounded(exact, dtype, mode) for mode in (Mode.DL16, Mode.IEEE))
    over = int((~np.isfinite(dl16) | ~np.isfinite(ieee) | ~np.isfinite(card)).sum())
    most, rms = zip(*(_off(values, exact) for values in (card, dl16, ieee)), strict=True)
    return FormatRow(
        operation=name,
        layer=layer,
        source=source,
        dtype=dtype,
        elements=int(exact.size),
        card=most[0],
        card_rms=rms[0],
        dl16=most[1],
        dl16_rms=rms[1],
        ieee=most[2],
        ieee_rms=rms[2],
        overflow=over,
    )


def _off(values: Values, exact: Values) -> tuple[float, float]:
    """Greatest error and root of the mean square, relative to those of the exact values."""
    off = np.abs(values - exact)
    off = off[np.isfinite(off)]
    if not off.size:
        return 0.0, 0.0
    scale = float(np.abs(exact).max()) or 1.0
    mean = float(np.sqrt(np.mean(exact**2))) or 1.0
    return float(off.max()) / scale, float(np.sqrt(np.mean(off**2))) / mean


def _rounded(values: Values, dtype: str, mode: Mode) -> Values:
    """The values after one rounding to what holds `dtype` on a card in `mode`."""
    import torch

    held = torch.from_numpy(values.astype(np.float32))
    if dtype not in _SIXTEEN:
        return held.double().numpy()
    if mode is Mode.IEEE:
        return held.to(getattr(torch, dtype)).double().numpy()
    format = format_for(dtype, mode)
    _, ties, merged = _C.numerics()
    wide = host_type("float32").name
    codes = _C.format_encode(wide, format.name, held.numpy().tobytes(), "dl16", ties, merged)
    back = _C.format_decode(format.name, wide, codes, "dl16", ties, merged)
    return np.frombuffer(back, np.float32).astype(np.float64)


def _pairs(value: Any, expected: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    import torch

    from openspyre.observe.intermediates import _flat

    for found, wanted in zip(_flat(value), _flat(expected), strict=True):
        if (
            isinstance(found, torch.Tensor)
            and isinstance(wanted, torch.Tensor)
            and found.device.type == "spyre"
            and found.shape == wanted.shape
        ):
            yield found, wanted


def _shapes(given: Any) -> tuple[Any, ...]:
    import torch
    from torch.utils._pytree import tree_leaves

    return tuple(
        (x.dtype, tuple(x.shape)) for x in tree_leaves(given) if isinstance(x, torch.Tensor)
    )


def _running_module() -> str:
    """The path of the module whose forward runs, as the stack tells: the innermost one's name
    inside the outermost; "" outside of modules."""
    import torch

    inner: torch.nn.Module | None = None
    outer: torch.nn.Module | None = None
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self") if frame.f_code.co_name == "forward" else None
        if isinstance(owner, torch.nn.Module):
            inner, outer = inner or owner, owner
        frame = frame.f_back
    if inner is None or outer is None:
        return ""
    return _names_in(outer).get(id(inner), "") or type(outer).__name__


_named: dict[int, tuple[Any, dict[int, str]]] = {}


def _names_in(module: torch.nn.Module) -> dict[int, str]:
    """Paths of the modules in one, by identity; kept for the last one that was asked for."""
    found = _named.get(id(module))
    if found is None or found[0] is not module:
        _named.clear()
        names = {id(part): name for name, part in module.named_modules()}
        found = _named[id(module)] = (module, names)
    return found[1]
