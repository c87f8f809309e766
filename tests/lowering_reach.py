"""Which of torch's operators can be compiled: `python tests/lowering_reach.py`.

Runs the samples of `common_methods_invocations.op_db` on the CPU, notes every ATen operation that
is dispatched, and says whether it has a lowering, or a decomposition into what has one. Prints
what is missing, most wanted first: operators it keeps away, operators it alone keeps away, name.
"""

from __future__ import annotations

import collections
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lowering_checks import flat, name_of
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

from openspyre.compiler.build import REGISTER
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.lower import entry, resolve
from openspyre.compiler.lower.decompose import decomposed, unlowered
from openspyre.compiler.lower.registry import full_name, overload

SECONDS, SAMPLES = 8.0, 12
_verdicts: dict[str, list[str]] = {}


def missing(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """What keeps an operation from being compiled; nothing if it can be."""
    try:
        found = resolve(func)
    except Unsupported:
        return [full_name(func)]
    if entry(found.name) is not None:
        return []
    if found.name not in _verdicts:
        named = {k: v for k, v in kwargs.items() if not found.out or k not in found.written}
        try:
            leaves = unlowered(decomposed(overload(found.name), list(args), named))
            _verdicts[found.name] = [
                leaf if leaf == found.name else f"{leaf} in {found.name}" for leaf in leaves
            ]
        except Unsupported:
            _verdicts[found.name] = [found.name]
    return _verdicts[found.name]


class Watcher(TorchDispatchMode):
    """Notes what is missing, and the dtypes that no unit computes."""

    def __init__(self) -> None:
        super().__init__()
        self.missing: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(t, torch.Tensor) for t in flat(result)):
            self.missing.update(missing(func, args, kwargs or {}))
            for value in flat([list(args), result]):
                if isinstance(value, torch.Tensor) and name_of(value.dtype) not in REGISTER:
                    self.missing.add(f"dtype {name_of(value.dtype)}")
        elif "local_scalar" in str(func):
            self.missing.add("a number read by the host")
        return result


def watch(op: Any, backward: bool) -> set[str] | None:
    """What an operator misses; None if it has no samples for a dtype of the card."""
    wanted = (torch.float32, torch.int64, torch.bool)
    dtype = next((d for d in wanted if d in op.supported_dtypes("cpu")), None)
    if dtype is None or (backward and not (op.supports_autograd and dtype.is_floating_point)):
        return None
    watcher, begun = Watcher(), time.monotonic()
    for number, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=backward)):
        if number >= SAMPLES or time.monotonic() - begun > SECONDS:
            break
        try:
            with watcher:
                result = op(sample.input, *sample.args, **sample.kwargs)
                if backward:
                    grads = [t for t in flat(result) if torch.is_tensor(t) and t.requires_grad]
                    if grads:
                        grads[0].sum().backward()
        except Exception as error:  # samples that are meant to fail, or do in a mode
            print(f"{op.name}: {type(error).__name__}", file=sys.stderr)
    return watcher.missing


def main() -> None:
    """Prints the table; with `backward` as an argument, gradients included."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    backward = "backward" in sys.argv[1:]
    found: dict[str, set[str]] = {}
    for op in op_db:
        missed = watch(op, backward)
        if missed is not None:
            found[f"{op.name} {op.variant_test_name}".strip()] = missed
    keeps: collections.Counter[str] = collections.Counter(m for v in found.values() for m in v)
    alone = collections.Counter(next(iter(v)) for v in found.values() if len(v) == 1)
    print(f"{sum(not v for v in found.values())} of {len(found)} operators")
    for name, count in keeps.most_common():
        print(count, alone[name], name, sorted(k for k, v in found.items() if name in v)[:3])


if __name__ == "__main__":
    main()
