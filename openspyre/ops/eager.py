"""Eager operations on the card: what csrc/torch/native_ops.cpp asks when it meets a new call.

`compile_call` lowers one ATen operation with the compiler's lowerings, compiles it through the
cache, prepares it on the device, and says how the call and all others of its key are launched: a
*recipe*. Or it gives the reason why the CPU computes such calls. Results look as the lowering and
PyTorch's rules of strides say. PyTorch's meta kernels are asked where those do not settle it, and
where a lowering fails: what they refuse, the CPU's kernel is called for, which raises the message.

Called with the GIL, below autograd; nothing here waits for the card.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._prims_common import compute_elementwise_output_strides

from openspyre import _C
from openspyre.compiler import cache, launch
from openspyre.compiler.bind import (
    Bound,
    bind,
    bind_view,
    contiguous_strides,
    storage_layout,
    tensor_facts,
)
from openspyre.compiler.build import REGISTER, GraphBuilder
from openspyre.compiler.errors import CompileError, Unsupported
from openspyre.compiler.graph import Role, Tensor
from openspyre.compiler.lower import registry
from openspyre.compiler.lower.promote import ZeroDim
from openspyre.compiler.view import View
from openspyre.formats import Mode, format_for
from openspyre.layout import SpyreTensorLayout
from openspyre.ops import nothing
from openspyre.ops.eager_parts import (
    Argument,
    Declined,
    NumberAt,
    Output,
    Plan,
    Recipe,
    TensorAt,
    dtype_name,
    flat,
    kinds_of,
    known_size,
    product,
    recipe_of,
    short_name,
    symbol_source,
)
from openspyre.ops.eager_run import (
    CONSTANT,
    OUTPUT,
    TEMP,
    TENSOR,
    Filler,
    Resizer,
    Runner,
    Target,
    extents_meet,
    identity,
    is_dense,
    shares_storage,
)

_TURNED = frozenset(
    (
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_fused_attention_overrideable",
        "_scaled_dot_product_efficient_attention", "linalg_qr", "linalg_svd", "geqrf",
        "linalg_solve_triangular",
    )
)  # fmt: skip
"""Operations that give other strides than contiguous ones for contiguous operands."""


_META_OF = {
    "aten.convolution_overrideable.default": "aten.convolution.default",
    "aten._logcumsumexp.default": "aten.logcumsumexp.default",
}
"""Operations without a meta kernel, and those that stand for them."""


_DENSE = frozenset(
    ("convolution_overrideable", "convolution_backward_overrideable", "_logcumsumexp")
)
"""Operations without a meta kernel that would tell their strides: their results are contiguous."""


_SKIP_EMPTY = frozenset(
    (
        "aten.cat.default", "aten.native_batch_norm_backward.default",
        "aten.batch_norm_backward.default",
    )
)  # fmt: skip
"""Operations whose lowering leaves out tensors without elements; others give nothing of none."""


_FROM_NONE = "a tensor without elements gives a result with some, which no launch computes"
"""Such as the sum of an empty tensor."""


def compile_call(
    name: str, overload: str, args: list[Any], tensors: int, numbers: int, device: int
) -> tuple[Recipe | str, list[int]]:
    """A recipe for the call of operation `name` ("aten::add") on `args` (all of its schema, in
    order), or the reason why there is none; and which of its numbers must have the same values in
    other calls of the recipe. `tensors`, `numbers`: how many of each the caller counted."""
    call = None
    try:
        call = _Call(_overload(name, overload), args, device)
        if (len(call.tensors), len(call.numbers)) != (tensors, numbers):
            raise CompileError(
                f"{name}: {len(call.tensors)} tensors and {len(call.numbers)} numbers, the"
                f" dispatcher counts {tensors} and {numbers}"
            )
        return call.recipe(), sorted(call.constants)
    except (Unsupported, Declined) as refusal:
        return str(refusal) or "not computed on the card", _used(call)
    except Exception as error:
        if _strict():
            raise
        _warn_once(f"{name}.{overload}", error)
        return f"compiler error: {type(error).__name__}: {error}"[:300], _used(call)


def _used(call: _Call | None) -> list[int]:
    return [] if call is None else sorted(call.constants)


@functools.cache
def _overload(name: str, overload: str) -> torch._ops.OpOverload:
    namespace, base = name.split("::")
    return registry.overload(f"{namespace}.{base}.{overload or 'default'}")


def _strict() -> bool:
    import os

    from openspyre import env

    return bool(env.read("OPENSPYRE_STRICT", os.environ))


_warned: set[str] = set()


def _warn_once(operation: str, error: Exception) -> None:
    if operation not in _warned:
        _warned.add(operation)
        warnings.warn(
            f"{operation}: the compiler failed, the CPU computes it"
            f" ({type(error).__name__}: {error}). OPENSPYRE_STRICT=1 raises the error",
            RuntimeWarning,
            stacklevel=3,
        )


# --- schemas


# --- calls


class _Call:
    """One call: its tensors and numbers in the order in which the dispatcher counts them."""

    def __init__(self, op: torch._ops.OpOverload, args: list[Any], device: int) -> None:
        self.op = op
        self.name = registry.full_name(op)
        self.args = args
        self.device = device
        self.mode = Mode(_C.numerics()[0])
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[int | float] = []
        self.constants: set[int] = set()
        self.whole = True  # lowered as one operation, not by its decomposition
        self.slots: list[Any] = [
            self._slot(kind, value, argument)
            for kind, value, argument in zip(kinds_of(op), args, op._schema.arguments, strict=True)
        ]

    def _slot(self, kind: str, value: Any, argument: Any) -> Any:
        """An argument with its tensors and numbers replaced by where they stand."""
        if kind == "tensor":
            return self._tensor(value)
        if kind == "tensors" and value is not None:
            return [self._tensor(item) for item in value]
        if kind == "number":
            preset = argument.default_value if argument.has_default_value() else None
            if type(value) is type(preset) and value == preset:
                return value
            return self._number(value)
        if kind == "numbers" and value is not None:
            return [self._number(item) for item in value]
        return value

    def _tensor(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return self._number(value)  # None, or a number in a tensor's clothes
        if value.device.type == "spyre":
            self.tensors.append(value)
            return TensorAt(len(self.tensors) - 1)
        if value.dtype is torch.bool:
            return ZeroDim(bool(value), "bool")
        found = self._number(value.item())
        return replace(found, dtype=dtype_name(value.dtype))

    def _number(self, value: Any) -> Any:
        if value is None or isinstance(value, bool):
            return value
        self.numbers.append(value)
        return NumberAt(len(self.numbers) - 1)

    # --- what PyTorch says

    def meta(self) -> tuple[Any, dict[int, torch.Tensor]]:
        """The results of the operation on meta tensors, and the meta tensor of each argument by
        its position among `tensors`. Declined where PyTorch raises.

        For calls out of the ordinary only: most meta kernels are Python functions whose first call
        imports torch._dynamo, seconds of work.
        """
        made: dict[int, torch.Tensor] = {}
        by_identity: dict[Any, torch.Tensor] = {}

        def twin(value: Any) -> Any:
            if isinstance(value, TensorAt):
                tensor = self.tensors[value.index]
                key = identity(tensor)
                if key not in by_identity:
                    by_identity[key] = torch.empty_strided(
                        tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
                    )
                made[value.index] = by_identity[key]
                return by_identity[key]
            if isinstance(value, NumberAt):
                number = self.numbers[value.index]
                if value.dtype:
                    return torch.tensor(number, dtype=getattr(torch, value.dtype), device="cpu")
                return number
            if isinstance(value, ZeroDim):
                return torch.tensor(value.value, device="cpu")
            if isinstance(value, list):
                return [twin(item) for item in value]
            return value

        positional, named = [], {}
        schema = self.op._schema.arguments
        for kind, slot, argument in zip(kinds_of(self.op), self.slots, schema, strict=True):
            value = twin(slot)
            if kind == "generator":
                value = None
            elif kind == "device" and value is not None:
                value = torch.device("meta")
            elif kind == "tensor" and isinstance(value, (int, float)):
                value = torch.tensor(value, device="cpu")  # a number in a tensor's clothes
            if argument.kwarg_only:
                named[argument.name] = value
            else:
                positional.append(value)
        op = registry.overload(_META_OF[self.name]) if self.name in _META_OF else self.op
        try:
            return op(*positional, **named), made
        except Exception as error:
            raise Declined(f"PyTorch's meta kernel: {error}"[:200]) from None

    # --- compiling

    def recipe(self) -> Recipe:
        """Compiles the call. Raises Unsupported, Declined, and what the compiler raises."""
        resolved = registry.resolve(self.op)
        if resolved.lowered:
            try:
                return self._made_by(resolved)
            except Unsupported as refusal:
                if not self._decomposes(resolved):
                    raise
                self.whole = False
                try:
                    return self._made_by(resolved)
                except (Unsupported, Declined):
                    raise refusal from None
        self.whole = False
        return self._made_by(resolved)

    def _decomposes(self, resolved: registry.Resolved) -> bool:
        """Whether torch takes apart an operation whose lowering has refused the call."""
        if any(dtype_name(tensor.dtype) not in REGISTER for tensor in self.tensors):
            return False
        from openspyre.compiler.lower.decompose import has_decomposition

        return has_decomposition(registry.overload(resolved.name))

    def _made_by(self, resolved: registry.Resolved) -> Recipe:
        written = self._written(resolved)
        outs = set(written) if resolved.out else set()
        empty = [t.numel() == 0 for n, t in enumerate(self.tensors) if n not in outs]
        gone = any(empty)
        if gone and resolved.name in _SKIP_EMPTY:
            gone = all(empty) if resolved.name == "aten.cat.default" else empty[0]
        if gone:
            try:
                return self._empty(written)
            except Declined:
                if not nothing.known(short_name(resolved.name), self._without_elements()):
                    raise
                return self._of_nothing(resolved, written)
        make = self._compiled
        if any(self.tensors[n].numel() == 0 for n in outs):
            make = self._resizing
        while True:
            try:
                return make(resolved, written)
            except registry.NeedsConstant as need:
                number = int(need.symbol.removeprefix("s")) if need.symbol[1:].isdigit() else -1
                if number < 0 or number in self.constants:
                    raise CompileError(f"{self.name}: {need}") from None
                self.constants.add(number)
            except (AssertionError, RecursionError):
                # No lowering makes a tensor without elements.
                found = [t for t in flat(self.meta()[0]) if isinstance(t, torch.Tensor)]
                if not found or any(t.numel() for t in found):
                    raise
                return self._empty(written)

    def _resizing(self, resolved: registry.Resolved, written: Sequence[int]) -> Recipe:
        """An out= call whose outs have no elements yet, as most composite operations of PyTorch
        make them: they get the result's sizes and strides, then the call is made once more."""
        plan = Plan(GraphBuilder(short_name(self.name), self.mode))
        operands = {n: t for n, t in enumerate(self.tensors) if n not in written}
        # The outs are no inputs of the lowering: nobody looks at what stands in their place.
        arguments = [
            self._bound(operands.get(n, self.tensors[written[0]].new_empty(1)))
            for n in range(len(self.tensors))
        ]
        inputs = self._inputs(plan.builder, plan, arguments, set(resolved.written))
        made = self._lowered(plan.builder, resolved, inputs, plan)
        results = list(made) if isinstance(made, (tuple, list)) else [made]
        stored = results if resolved.per_element else [results[r] for r in resolved.results]
        if any(value.numel == 0 for value in stored):
            return self._empty(written)
        strides = self._strides(stored, list(operands.values()))
        sizes: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
        for index, value in zip(written, stored, strict=True):
            tensor = self.tensors[index]
            if tensor.numel() == 0:
                sizes.append((index, *strides[id(value)]))
            elif tuple(tensor.shape) != tuple(value.shape):
                raise Declined(f"a result of shape {value.shape} for a tensor of {tensor.shape}")
        recipe = recipe_of([], [])
        recipe["run"] = Resizer(self.op, self.slots, sizes)
        return recipe

    def _empty(self, written: Sequence[int]) -> Recipe:
        """A call with tensors that have no elements: nothing is launched if no result has any."""
        results, twins = self.meta()
        resized: list[Target] = []
        for index, twin in twins.items():
            if twin.shape != self.tensors[index].shape:
                if twin.numel() or self.tensors[index].numel():
                    raise Declined("it resizes its out= tensor")
                resized.append(Target(index, (tuple(twin.shape), tuple(twin.stride()))))
        outputs: list[Output] = []

        def note(value: Any) -> int:
            if value is None:
                return -1
            if not isinstance(value, torch.Tensor) or value.numel():
                raise Declined(_FROM_NONE)
            outputs.append(
                Output(tuple(value.shape), tuple(value.stride()), dtype_name(value.dtype))
            )
            return len(outputs) - 1

        if any(self.tensors[i].numel() for i in written):
            raise Declined(_FROM_NONE)
        recipe = recipe_of(outputs, self._returns(results, note))
        if resized:
            recipe["run"] = Filler(resized)
        return recipe

    def _without_elements(self) -> set[str]:
        """The tensor arguments that have no elements."""
        found = set()
        for argument, slot in zip(self.op._schema.arguments, self.slots, strict=True):
            items = slot if isinstance(slot, list) else [slot]
            tensors = [self.tensors[i.index] for i in items if isinstance(i, TensorAt)]
            if tensors and all(t.numel() == 0 for t in tensors):
                found.add(argument.name)
        return found

    def _of_nothing(self, resolved: registry.Resolved, written: Sequence[int]) -> Recipe:
        """A call whose results have elements though an argument has none."""
        results, _ = self.meta()
        name = short_name(resolved.name)
        values = list(results) if isinstance(results, (tuple, list)) else [results]
        slots = {a.name: s for a, s in zip(self.op._schema.arguments, self.slots, strict=True)}
        first, beta = slots.get("self"), slots.get("beta", 1)
        at = first.index if isinstance(first, TensorAt) else -1
        number = beta.index if isinstance(beta, NumberAt) else -1
        targets: list[Target] = []
        outputs: list[Output] = []
        for n, value in enumerate(values):
            if value is None:
                continue
            fill = nothing.fill_of(name, n, at, None if number >= 0 else beta, number)
            if n < len(written):
                given, sizes = self.tensors[written[n]], tuple(value.shape)
                laid = None if sizes == tuple(given.shape) else (sizes, tuple(value.stride()))
                if laid and given.numel():
                    raise Declined("it resizes its out= tensor")
                targets.append(Target(written[n], laid, fill if value.numel() else None))
            elif value.numel():
                targets.append(Target(-1 - len(outputs), None, fill))
            if n >= len(written):
                outputs.append(
                    Output(tuple(value.shape), tuple(value.stride()), dtype_name(value.dtype))
                )
        numbers = iter(range(len(outputs)))
        returns = self._returns(results, lambda v: -1 if v is None else next(numbers))
        recipe = recipe_of(outputs, returns)
        recipe["run"] = Filler(targets)
        return recipe

    def _returns(self, results: Any, note: Callable[[Any], int]) -> list[int | list[int]]:
        """For each return value of the operation that is new: its output by `note`, or a list."""
        schema = self.op._schema.returns
        values = list(results) if len(schema) > 1 else [results] if schema else []
        returns: list[int | list[int]] = []
        for value, described in zip(values, schema, strict=True):
            if described.alias_info is not None and described.alias_info.is_write:
                continue
            listed = isinstance(value, (list, tuple))
            returns.append([note(item) for item in value] if listed else note(value))
        return returns

    def _written(self, resolved: registry.Resolved) -> list[int]:
        """The numbers of the tensors that are written, in the order of `resolved.written`."""
        found: list[int] = []
        for name in resolved.written:
            slot = self._slot_of(name)
            items = slot if isinstance(slot, list) else [slot]
            for item in items:
                if not isinstance(item, TensorAt):
                    raise Declined(f"{name} is no tensor of the card")
                found.append(item.index)
        return found

    def _slot_of(self, name: str) -> Any:
        for argument, slot in zip(self.op._schema.arguments, self.slots, strict=True):
            if argument.name == name:
                return slot
        raise CompileError(f"{self.name} has no argument {name}")

    def _compiled(self, resolved: registry.Resolved, written: Sequence[int]) -> Recipe:
        plan = Plan(GraphBuilder(short_name(self.name), self.mode))
        b = plan.builder
        arguments = [self._bound(tensor) for tensor in self.tensors]
        self._check_overlap(arguments, written)
        skipped = set(resolved.written) if resolved.out else set()
        inputs = self._inputs(b, plan, arguments, skipped)
        made = self._lowered(b, resolved, inputs, plan)
        views = [v for v in flat(made) if isinstance(v, View)]
        if any(v.numel == 0 for v in views):
            return self._empty(written)
        stored: list[Any] = []
        if resolved.per_element and written:
            stored = list(made)
        elif written:
            results = list(made) if isinstance(made, (tuple, list)) else [made]
            stored = [results[r] for r in resolved.results]
            made = tuple(v for n, v in enumerate(results) if n not in resolved.results)
            made = made[0] if len(made) == 1 else made
        for index, value in zip(written, stored, strict=True):
            self._store(plan, arguments, index, value)
        strides = self._strides(made, self.tensors)

        def note(value: Any) -> int:
            if value is None:
                return -1
            if not isinstance(value, View):
                raise Declined("a result that is no tensor")
            number = len(plan.outputs)
            sizes, steps = strides[id(value)]
            self._emit(plan, Output(sizes, steps, value.dtype), value)
            return number

        fresh = any(
            r.alias_info is None or not r.alias_info.is_write for r in self.op._schema.returns
        )
        returns = self._returns(made, note) if fresh else []
        for argument in b.graph.arguments:
            if argument.role is Role.INPUT and argument.name not in plan.sources:
                b.graph.tensors.remove(argument)  # an operand without elements: nobody reads it
        key, region = cache.compiled(b.graph, launch.options_now(self.mode))
        loaded = launch.loaded(key, region, self.device)
        return self._finished(plan, loaded, arguments, returns, written)

    def _strides(
        self, made: Any, operands: Sequence[torch.Tensor]
    ) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Sizes and strides of the new results, by the identity of their views, as PyTorch's
        kernels choose them: contiguous; elementwise operations keep the order of their `operands`;
        for what else there is its meta kernel says."""
        views = [v for v in flat(made) if isinstance(v, View)]
        if not views:
            return {}
        sizes = [tuple(known_size(s) for s in v.shape) for v in views]
        usual = [contiguous_strides(n) for n in sizes]
        short = short_name(self.name)
        if short in _DENSE or (all(t.is_contiguous() for t in operands) and short not in _TURNED):
            return {id(v): (n, s) for v, n, s in zip(views, sizes, usual, strict=True)}
        if torch.Tag.pointwise in self.op.tags and len(views) == 1:
            strides = compute_elementwise_output_strides(*(t.expand(sizes[0]) for t in operands))
            return {id(views[0]): (sizes[0], tuple(int(s) for s in strides))}
        twins = [t for t in flat(self.meta()[0]) if isinstance(t, torch.Tensor)]
        if [tuple(t.shape) for t in twins] != sizes:
            raise CompileError(
                f"{self.name}: the lowering gives {sizes}, PyTorch"
                f" {[tuple(t.shape) for t in twins]}"
            )
        return {id(v): (n, tuple(t.stride())) for v, n, t in zip(views, sizes, twins, strict=True)}

    def _bound(self, tensor: torch.Tensor) -> Argument:
        shape = tuple(tensor.shape) if tensor.numel() else (1,)  # one that is not looked at
        strides = contiguous_strides(shape)
        dense = bind_view(storage_layout(shape, strides, self._format(tensor)), shape, strides)
        assert dense is not None
        seen = bind(tensor) if tensor.numel() else dense
        return Argument(tensor, seen, dense, dtype_name(tensor.dtype))

    def _format(self, tensor: torch.Tensor) -> Any:
        return format_for(dtype_name(tensor.dtype), self.mode)

    def _check_overlap(self, arguments: Sequence[Argument], written: Sequence[int]) -> None:
        """A tensor that is written may be another argument, lie apart from it, or have it copied
        first. Declined where PyTorch raises, which it does for two that are dense."""
        for w in written:
            target = arguments[w].tensor
            if any(s == 0 and n > 1 for n, s in zip(target.shape, target.stride(), strict=True)):
                raise Declined("it writes to an expanded tensor")
            for n, other in enumerate(arguments):
                if n == w or not shares_storage(target, other.tensor):
                    continue
                if identity(target) == identity(other.tensor):
                    if n in written:
                        raise Declined("it writes twice to one tensor")
                    continue
                if extents_meet(target, other.tensor):
                    if n in written or (is_dense(target) and is_dense(other.tensor)):
                        raise Declined("it writes to a tensor that overlaps another argument")
                    other.bound = None

    def _inputs(
        self,
        b: GraphBuilder,
        plan: Plan,
        arguments: Sequence[Argument],
        skipped: set[str],
    ) -> list[Any]:
        """The arguments for the lowering, by name; tensors that are only written are no inputs."""
        by_identity: dict[Any, View] = {}

        def value_of(slot: Any) -> Any:
            if isinstance(slot, TensorAt):
                argument = arguments[slot.index]
                if argument.tensor.numel() == 0:  # nothing of it is read
                    return b.input(f"a{slot.index}", argument.tensor.shape, argument.dtype)
                key = identity(argument.tensor)
                if key not in by_identity:
                    made = argument.seen.tensor(b, f"a{slot.index}", argument.dtype, Role.INPUT)
                    by_identity[key] = argument.seen.view(made)
                    argument.graph = made
                    plan.sources[made.name] = (TENSOR, slot.index, argument.seen)
                argument.view = by_identity[key]
                return by_identity[key]
            if isinstance(slot, NumberAt):
                number: Any = self.numbers[slot.index]
                if slot.index not in self.constants:
                    number = b.scalar(f"s{slot.index}", number)
                return ZeroDim(number, slot.dtype) if slot.dtype else number
            if isinstance(slot, list):
                return [value_of(item) for item in slot]
            return slot

        return [
            None if argument.name in skipped else value_of(slot)
            for argument, slot in zip(self.op._schema.arguments, self.slots, strict=True)
        ]

    def _lowered(
        self, b: GraphBuilder, resolved: registry.Resolved, inputs: Sequence[Any], plan: Plan
    ) -> Any:
        """The functional operation's results."""
        functional = registry.overload(resolved.name)
        names = {a.name for a in functional._schema.arguments}
        kwargs = {
            argument.name: value
            for argument, value in zip(self.op._schema.arguments, inputs, strict=True)
            if argument.name in names and argument.name not in registry.IGNORED
        }
        if resolved.out:
            for argument in functional._schema.arguments:
                # What an out= form takes from its out.
                if argument.name == "dtype" and "dtype" not in kwargs:
                    kwargs["dtype"] = self._out_dtype(resolved)
        draws = registry.draws(resolved.name, (), kwargs)
        if draws is not None:
            if not isinstance(draws, int):
                raise CompileError(f"{self.name}: a symbolic number of draws")
            plan.draws = draws
            kwargs |= {"seed": b.scalar("seed", 0), "offset": b.scalar("offset", 0)}
        try:
            if not self.whole:
                return self._taken_apart(b, functional, kwargs)
            return registry.lower_op(b, resolved.name, (), kwargs)
        except (ValueError, IndexError, TypeError, ZeroDivisionError):
            self.meta()  # raises Declined where PyTorch raises
            raise

    def _taken_apart(
        self, b: GraphBuilder, functional: torch._ops.OpOverload, kwargs: dict[str, Any]
    ) -> Any:
        """The results by torch's own decompositions."""
        from openspyre.compiler.lower.decompose import lower_by_decomposition

        schema = functional._schema.arguments
        positional = [a.name for a in schema if not a.kwarg_only and a.name not in registry.IGNORED]
        args = [kwargs.pop(name) for name in positional]
        return lower_by_decomposition(b, functional, args, kwargs)

    def _out_dtype(self, resolved: registry.Resolved) -> str:
        slot = self._slot_of(resolved.written[0])
        assert isinstance(slot, TensorAt)
        return dtype_name(self.tensors[slot.index].dtype)

    # --- results

    def _emit(self, plan: Plan, output: Output, value: Any) -> None:
        if not isinstance(value, View):
            raise CompileError(f"{self.name}: a result is {type(value).__name__}")
        layout = storage_layout(output.sizes, output.strides, format_for(output.dtype, self.mode))
        made, bound = self._made(plan, value, layout, output.sizes, output.strides, 0, output.dtype)
        plan.sources[made.name] = (OUTPUT, len(plan.outputs), bound)
        plan.outputs.append(output)

    def _made(
        self,
        plan: Plan,
        value: View,
        layout: SpyreTensorLayout,
        sizes: Sequence[int],
        strides: Sequence[int],
        origin: int,
        dtype: str,
    ) -> tuple[Tensor, Bound]:
        """`value` as an OUTPUT that lies so; where its own tensor can, without a copy."""
        b = plan.builder
        exact = tuple(value.shape) == tuple(sizes)
        if not exact and value.numel != product(sizes):
            raise CompileError(
                f"{self.name}: the lowering gives {value.shape}, PyTorch {tuple(sizes)}"
            )
        tensor = value.tensor
        if exact and tensor.role is Role.TEMP and tensor.dtype == dtype and value.whole:
            fine_sizes: list[int] = []
            fine_strides: list[int] = []
            for d, stride in enumerate(strides):
                step = stride
                parts: list[tuple[int, int]] = []
                for size in reversed(value.factor_sizes(d)):
                    assert isinstance(size, int)
                    parts.insert(0, (size, step))
                    step *= size
                fine_sizes += [n for n, _ in parts]
                fine_strides += [s for _, s in parts]
            fine = bind_view(layout, fine_sizes, fine_strides, origin)
            if fine is not None and fine.shape == tensor.shape:
                tensor.role, tensor.place = Role.OUTPUT, fine.place
                return tensor, fine
        bound = bind_view(layout, sizes, strides, origin)
        if bound is None:
            raise Unsupported(
                self.name, f"a result of sizes {tuple(sizes)} and strides {tuple(strides)}",
                "its elements do not lie evenly on sticks",
            )  # fmt: skip
        made = bound.tensor(b, f"out{len(plan.outputs)}", dtype, Role.OUTPUT)
        target = bound.view(made)
        b.store(target, value if exact else value.reshape(sizes))
        return made, bound

    def _store(
        self,
        plan: Plan,
        arguments: Sequence[Argument],
        index: int,
        value: Any,
    ) -> None:
        """`value` into the argument number `index`. Declined where PyTorch resizes or raises."""
        if not isinstance(value, View):
            raise CompileError(f"{self.name}: a result is {type(value).__name__}")
        argument = arguments[index]
        tensor, bound = argument.tensor, argument.bound
        sizes = tuple(tensor.shape)
        if tuple(value.shape) != sizes:
            raise Declined(f"a result of shape {tuple(value.shape)} for a tensor of {sizes}")
        if not torch.can_cast(getattr(torch, value.dtype), tensor.dtype):
            raise Declined(f"a result of {value.dtype} for a tensor of {argument.dtype}")
        key = identity(tensor)
        readers = [a for a in arguments if a.view is not None and identity(a.tensor) == key]
        held = readers[0].view.tensor if readers and readers[0].view is not None else None
        if (
            held is not None and value.tensor is not held and not plan.builder.graph.readers(held)
        ):  # only its shape was asked for
            plan.builder.graph.tensors.remove(held)
            del plan.sources[held.name]
            readers = []
        direct = bound is not None and bound.whole_sticks
        if direct and not readers:
            layout, _, origin = tensor_facts(tensor)
            made, seen = self._made(
                plan, value, layout, sizes, tensor.stride(), origin, argument.dtype
            )
            plan.sources[made.name] = (TENSOR, index, seen)
            return
        if direct and torch.Tag.pointwise in self.op.tags:
            view = readers[0].view
            assert view is not None
            plan.builder.store(view, value)
            return
        strides = contiguous_strides(sizes)
        self._emit(plan, Output(sizes, strides, argument.dtype, index), value)

    def _finished(
        self,
        plan: Plan,
        loaded: launch.LoadedRegion,
        arguments: Sequence[Argument],
        returns: list[int | list[int]],
        written: Sequence[int],
    ) -> Recipe:
        """What the dispatcher needs for this call and all others of its key."""
        recipe = recipe_of(plan.outputs, returns)
        recipe["draws"] = plan.draws
        used = {index for kind, index, _ in plan.sources.values() if kind == TENSOR}
        dense = [n in used and a.bound is None for n, a in enumerate(arguments)]
        single = loaded.single
        if any(dense) or single is None or any(o.into >= 0 for o in plan.outputs):
            recipe["run"] = Runner(plan.sources, [o.into for o in plan.outputs], loaded, dense)
            return recipe
        for tensor in single.tensors:
            name, more = tensor.memory.name, 0
            if tensor.alias is not None:
                assert isinstance(tensor.alias.offset, int)
                more = tensor.alias.offset
            if name in loaded.constants:
                recipe["arguments"].append((CONSTANT, len(recipe["constants"]), more))
                recipe["constants"].append(loaded.constants[name])
            elif name in loaded.temps:
                recipe["arguments"].append((TEMP, 0, loaded.temps[name] + more))
            else:
                kind, index, bound = plan.sources[name]
                # A tensor of the call begins where its binding says.
                recipe["arguments"].append((kind, index, more))
                assert kind == TENSOR or bound.offset == 0
        recipe["plan"] = single.plan._native
        recipe["keep"] = loaded
        recipe["temp_bytes"] = loaded.temp_bytes
        recipe["symbols"] = [symbol_source(name) for name, _ in single.symbols]
        seen = {index: bound for kind, index, bound in plan.sources.values() if kind == TENSOR}
        for n, argument in enumerate(arguments):
            held = seen.get(n)
            recipe["bindings"].append(
                None if held is None else held.row(argument.tensor, n in written)
            )
        return recipe


@functools.cache
def counts() -> Mapping[str, int]:
    """Calls that found a recipe ("hits"), asked for one ("misses"), and ran on the card
    ("launches")."""
    return _C.native_counts()
