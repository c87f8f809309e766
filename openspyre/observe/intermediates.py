"""What lies between: the value of every operation of a call, and how far each is from the CPU's.

A compiled region runs here by its operations, one by one (openspyre/compiler/stepwise.py), in the
card's formats and with its rounding after each; what is not compiled is watched by a dispatch mode.
Needs torch; starts nothing when imported.
"""

from __future__ import annotations

import collections
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from openspyre.compiler import stepwise


@dataclass(frozen=True)
class Intermediate:
    """The value that one operation gave: a tensor of the card, or a tuple of them. `name`: that of
    the operation, counted ("mul", "mul_1", ..); `source`: the user's line, where it is known."""

    name: str
    operation: str
    source: str
    value: Any


@dataclass
class Intermediates(Mapping[str, Any]):
    """Values by name, in the order in which they were computed."""

    steps: list[Intermediate] = field(default_factory=list)

    def __getitem__(self, name: str) -> Any:
        for step in self.steps:
            if step.name == name:
                return step.value
        raise KeyError(f"no intermediate {name!r}; there are {', '.join(self) or 'none'}")

    def __iter__(self) -> Iterator[str]:
        return iter(step.name for step in self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def __str__(self) -> str:
        lines = [
            f"{step.name:<24}{_shape_text(step.value):<32}{step.source}" for step in self.steps
        ]
        return "\n".join(line.rstrip() for line in lines)


@dataclass(frozen=True)
class Difference:
    """One operation on the card beside the CPU's on the same inputs, 16-bit ones in float32:
    greatest absolute difference, and that relative to the greatest absolute value expected. NaN
    and infinities in other places give infinity; None: random, or no such operation on the CPU."""

    name: str
    operation: str
    source: str
    shape: str
    absolute: float | None
    relative: float | None


@dataclass
class Comparison:
    """Differences in the order of the operations."""

    rows: list[Difference] = field(default_factory=list)

    def worst(self, count: int = 10) -> list[Difference]:
        """The operations with the greatest relative differences."""
        known = [row for row in self.rows if row.relative is not None]
        return sorted(known, key=lambda row: -(row.relative or 0.0))[:count]

    def __str__(self) -> str:
        head = f"{'operation':<24}{'value':<32}{'abs. diff':>11}{'rel. diff':>11}  source"
        lines = [head, "-" * len(head)]
        for row in self.rows:
            numbers = "".join(
                f"{'-' if x is None else format(x, '.2e'):>11}"
                for x in (row.absolute, row.relative)
            )
            lines.append(f"{row.name:<24}{row.shape:<32}{numbers}  {row.source}".rstrip())
        return "\n".join(lines)


def intermediates(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Intermediates:
    """Calls `function(*args, **kwargs)` once and gives the value of every operation that ran on
    spyre tensors, by name. `function` may be compiled (its regions then run operation by operation,
    as traced) or not. Values stay on the card."""
    found = Intermediates()
    names = _Names()

    def seen(operation: str, source: str, _: Reference, value: Any) -> None:
        kept = tree_map(lambda t: t.detach().clone() if _is_tensor(t) else t, value)
        found.steps.append(Intermediate(names.next(operation), operation, source, kept))

    _watched(seen, function, args, kwargs, reference=False)
    return found


def compare(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Comparison:
    """Calls `function(*args, **kwargs)` once and compares every operation on spyre tensors with the
    CPU's on the same inputs: which operation brings an error in, not how errors add up."""
    found = Comparison()
    names = _Names()

    def seen(operation: str, source: str, expected: Reference, value: Any) -> None:
        absolute, relative = _difference(value, expected)
        row = (names.next(operation), operation, source, _shape_text(value))
        found.rows.append(Difference(*row, absolute, relative))

    _watched(seen, function, args, kwargs, reference=True)
    return found


# --- watching


@dataclass(frozen=True)
class Reference:
    """What the CPU gives; `known` False: nothing to compare with."""

    value: Any = None
    known: bool = False


Seen = Callable[[str, str, Reference, Any], None]


class _Names:
    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()

    def next(self, operation: str) -> str:
        base = operation.split(".")[1] if "." in operation else operation
        number = self.counts[base]
        self.counts[base] += 1
        return f"{base}_{number}" if number else base


def _watched(
    seen: Seen,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    reference: bool,
) -> None:
    """Calls the function and reports every operation."""

    def step(
        op: torch._ops.OpOverload, source: str, given: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        expected = _on_cpu(op, given, named) if reference else Reference()
        value = op(*given, **named)
        if any(_is_tensor(item) for item in _flat(value)):
            seen(str(op), source, expected, value)
        return value

    if _is_compiled(function):
        with stepwise.watched(step):
            function(*args, **kwargs)
    else:
        with _Mode(step):
            function(*args, **kwargs)


def _is_compiled(function: Any) -> bool:
    from torch._dynamo.eval_frame import OptimizedModule

    return isinstance(function, OptimizedModule) or hasattr(function, "_torchdynamo_orig_callable")


class _Mode(TorchDispatchMode):
    """Reports the operations of a call that is not compiled."""

    def __init__(self, step: stepwise.Step) -> None:
        super().__init__()
        self.step = step

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        inputs = _flat([list(args), list(named.values())])
        if not any(_is_tensor(t) and t.device.type == "spyre" for t in inputs):
            return func(*args, **named)
        return self.step(func, _user_line(), args, named)


def _user_line() -> str:
    """The innermost line outside of torch and this package."""
    for frame in reversed(traceback.extract_stack(limit=40)):
        if "/torch/" not in frame.filename and "/openspyre/" not in frame.filename:
            return f'File "{frame.filename}", line {frame.lineno}, in {frame.name} | {frame.line}'
    return ""


# --- comparing


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [item for inner in value for item in _flat(inner)]
    return [value]


_WIDENED = (torch.float16, torch.bfloat16)


def _on_cpu(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Reference:
    """The operation on copies of its inputs on the CPU, 16-bit floats as float32."""
    if torch.Tag.nondeterministic_seeded in op.tags:
        return Reference()

    def host(value: Any) -> Any:
        if _is_tensor(value):
            copy = value.detach().cpu().clone()
            return copy.float() if copy.dtype in _WIDENED else copy
        if isinstance(value, torch.dtype):
            return torch.float32 if value in _WIDENED else value
        if isinstance(value, torch.device):
            return torch.device("cpu")
        return value

    try:
        return Reference(op(*tree_map(host, list(args)), **tree_map(host, dict(kwargs))), True)
    except (NotImplementedError, RuntimeError, TypeError):
        return Reference()  # an operation of the device, or mixed dtypes it does not take wide


def _difference(value: Any, expected: Reference) -> tuple[float | None, float | None]:
    if not expected.known:
        return None, None
    most = scale = 0.0
    for found, wanted in zip(_flat(value), _flat(expected.value), strict=True):
        if not _is_tensor(found) or not found.numel():
            continue
        a, b = found.detach().cpu().to(torch.float64), wanted.to(torch.float64)
        unlike = (a != b) & ~(a.isnan() & b.isnan())
        finite = a.isfinite() & b.isfinite()
        if (unlike & ~finite).any():
            return float("inf"), float("inf")
        if finite.any():
            most = max(most, (a - b)[finite].abs().max().item())
            scale = max(scale, b[finite].abs().max().item())
    return most, most / scale if scale else most


def _shape_text(value: Any) -> str:
    return ", ".join(
        f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}"
        for t in _flat(value)
        if _is_tensor(t)
    )
