"""Runs ATen operations by their lowerings and the interpreter, and compares them with torch's CPU.

`check` does it for one call; `Checker` for every operation that code under it dispatches, so that
torch's own samples (`common_methods_invocations.op_db`) can drive the lowerings.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from openspyre.compiler.build import REGISTER, GraphBuilder, Scalar
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.interpret import interpret
from openspyre.compiler.lower import NeedsConstant, entry, lower_op, resolve
from openspyre.compiler.lower.registry import full_name
from openspyre.compiler.sizes import known
from openspyre.compiler.view import View
from openspyre.formats import Mode

TOLERANCE = {
    torch.float32: (2e-6, 1e-6),
    torch.float16: (1.5e-3, 1e-6),
    torch.bfloat16: (1.2e-2, 1e-6),
}


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def to_numpy(value: torch.Tensor) -> np.ndarray:
    """The values of a tensor in a NumPy dtype that holds them."""
    plain = value.detach()
    if plain.dtype in (torch.float16, torch.bfloat16):
        plain = plain.to(torch.float32)
    return plain.resolve_conj().resolve_neg().numpy()


class Lowered:
    """One call of an operation, as a graph with what it needs to run."""

    def __init__(self, mode: Mode = Mode.IEEE, scalars: bool = False) -> None:
        self.b = GraphBuilder("check", mode)
        self.values: dict[str, np.ndarray] = {}
        self.symbols: dict[str, int | float] = {}
        self.scalars = scalars

    def argument(self, value: Any, kind: str = "") -> Any:
        """A schema argument in the compiler's terms."""
        if isinstance(value, torch.Tensor):
            view = self.b.input(f"in{len(self.values)}", tuple(value.shape), name_of(value.dtype))
            self.values[view.tensor.name] = to_numpy(value)
            return view
        if isinstance(value, (list, tuple)):
            return [self.argument(item, "item") for item in value]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if self.scalars and number and kind in ("number", "float", "Optional[number]", "Tensor"):
            return self.scalar(value)
        return value

    def scalar(self, value: int | float) -> Scalar:
        made = self.b.scalar(f"s{len(self.symbols)}", value)
        self.symbols[made.symbol] = value
        return made

    def run(self, results: Sequence[View]) -> list[np.ndarray]:
        """The values of result views."""
        names = []
        for view in results:
            tensor = self.b.output(view)
            if tensor is None:
                tensor = self.b.output(self.b.contiguous(view))
            assert tensor is not None
            names.append((tensor.name, [known(size) or 0 for size in view.shape]))
        found = interpret(self.b.graph, self.values, self.symbols)
        return [found[name].reshape(shape) for name, shape in names]


def lowered(
    op: torch._ops.OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    mode: Mode = Mode.IEEE,
    scalars: bool = False,
    random: tuple[int, int] | None = None,
) -> tuple[list[np.ndarray], list[str]]:
    """The results of a functional operation by its lowering, and their dtypes. `random`: seed and
    offset of an operation that needs them."""
    name = full_name(op)
    call = Lowered(mode, scalars)
    kinds = [str(a.real_type) for a in op._schema.arguments]
    kinds += [""] * len(args)
    positional = [call.argument(v, k) for v, k in zip(args, kinds, strict=False)]
    named = {
        a.name: call.argument((kwargs or {})[a.name], str(a.real_type))
        for a in op._schema.arguments
        if a.name in (kwargs or {})
    }
    if random is not None:
        named["seed"], named["offset"] = (call.scalar(number) for number in random)
    result = lower_op(call.b, name, positional, named)
    views = [view for view in flat(result) if isinstance(view, View)]
    return call.run(views), [view.dtype for view in views]


def flat(result: Any) -> list[Any]:
    """Nested results as one list."""
    if isinstance(result, (list, tuple)):
        return [item for part in result for item in flat(part)]
    return [result]


def compare(
    name: str,
    got: Sequence[np.ndarray],
    dtypes: Sequence[str],
    wanted: Sequence[torch.Tensor],
    tolerance: float = 1.0,
) -> None:
    """Holds results equal: dtypes and shapes exactly, integers exactly, floats nearly."""
    assert len(got) == len(wanted), f"{name}: {len(got)} results, not {len(wanted)}"
    for have, dtype, want in zip(got, dtypes, wanted, strict=True):
        assert dtype == name_of(want.dtype), f"{name}: dtype {dtype}, not {want.dtype}"
        assert have.shape == tuple(want.shape), f"{name}: {have.shape}, not {tuple(want.shape)}"
        right = to_numpy(want)
        if want.dtype in TOLERANCE:
            rtol, atol = (t * tolerance for t in TOLERANCE[want.dtype])
            scale = float(np.nanmax(np.where(np.isfinite(right), abs(right), 0), initial=0))
            np.testing.assert_allclose(
                have, right, rtol=rtol, atol=max(atol, rtol * min(scale, 1) * 0.5), err_msg=name
            )
        else:
            np.testing.assert_array_equal(have, right, err_msg=name)


class Checker(TorchDispatchMode):
    """Checks every operation that is dispatched under it: `passed`, `failed` (first message),
    `missing` and `refused` count by operation name."""

    def __init__(
        self, mode: Mode = Mode.IEEE, scalars: bool = False, tolerance: float = 1.0
    ) -> None:
        super().__init__()
        self.mode, self.scalars, self.tolerance = mode, scalars, tolerance
        self.passed: collections.Counter[str] = collections.Counter()
        self.missing: collections.Counter[str] = collections.Counter()
        self.refused: dict[str, str] = {}
        self.failed: dict[str, str] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        before = [
            [t.clone() if isinstance(t, torch.Tensor) else t for t in a]
            if isinstance(a, (list, tuple))
            else a
            for a in before
        ]
        result = func(*args, **kwargs)
        self.consider(func, before, kwargs, result)
        return result

    def consider(self, func: Any, args: Sequence[Any], kwargs: Any, result: Any) -> None:
        tensors = [t for t in flat([args, list(kwargs.values()), result]) if torch.is_tensor(t)]
        if any(name_of(t.dtype) not in REGISTER or t.numel() == 0 for t in tensors):
            return
        if not any(torch.is_tensor(t) for t in flat(result)):
            return
        name = full_name(func)
        if "empty" in name:
            return
        try:
            found = resolve(func)
        except Unsupported:
            self.missing[name] += 1
            return
        where = entry(found.name)
        if where is None:
            self.missing[found.name] += 1
            return
        if where.draws is not None:
            return
        namespace, packet, overload = found.name.split(".")
        functional = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
        kwargs = {k: v for k, v in kwargs.items() if not found.out or k not in found.written}
        wanted = [t for t in flat(result) if torch.is_tensor(t)]
        what = f"{name} {[describe(a) for a in args]} {kwargs}"
        try:
            got, dtypes = lowered(functional, args, kwargs, mode=self.mode, scalars=self.scalars)
            if found.written and not found.per_element:
                stored = "_" in name.split(".")[1][-1:] or found.out
                keep = [i for i in range(len(got)) if (i in found.results) == stored]
                got, dtypes = [got[i] for i in keep], [dtypes[i] for i in keep]
            if found.written:
                dtypes = [name_of(w.dtype) for w in wanted]
            compare(name, got, dtypes, wanted, self.tolerance)
        except (Unsupported, NeedsConstant) as error:
            self.refused.setdefault(name, f"{what}: {error}"[:400])
        except Exception as error:
            self.failed.setdefault(name, f"{what}: {type(error).__name__}: {error}"[:1200])
        else:
            self.passed[name] += 1


def describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{name_of(value.dtype)}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return str([describe(v) for v in value])
    return repr(value)
