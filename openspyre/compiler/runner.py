"""A traced region at work: lowered, compiled and loaded for the layouts that its tensors have.

Dynamo knows nothing of layouts; a `Runner` meets them at launch and keeps one plan for each
combination (and for each set of sizes, where sizes are symbols). Needs torch and the extension.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from openspyre import _C
from openspyre.compiler import cache, families, launch, stepwise, weights
from openspyre.compiler.bind import Bound, bind, bind_view, storage_layout
from openspyre.compiler.build import GraphBuilder, Scalar
from openspyre.compiler.errors import CompileError
from openspyre.compiler.families import Extra, Family, family
from openspyre.compiler.graph import Role
from openspyre.compiler.patterns import range_of, symbolic
from openspyre.compiler.results import Made, made
from openspyre.compiler.sizes import known, value_of
from openspyre.compiler.traced import (
    SEEDED,
    Call,
    TracedRegion,
    concrete,
    lower_region,
)
from openspyre.compiler.view import View
from openspyre.device.random import take_blocks
from openspyre.formats import Mode, format_for
from openspyre.ops.eager_run import CONSTANT, OUTPUT, TEMP, TENSOR

_log = logging.getLogger("openspyre.plans")
PLANS = 1024
"""Plans that a region keeps. A plan of symbolic sizes is small; a size may come and not return."""

_KEY = ("numerics", "hint", "sizes")
_FACTS = ("shape", "strides", "layout, dtype kept, origin")

Listener: TypeAlias = "Callable[[Planned, Sequence[torch.Tensor]], None]"
_listeners: list[Listener] = []


def listen(listener: Listener) -> None:
    """Has `listener` told of every launch of a region. None is made without Python meanwhile."""
    _listeners.append(listener)
    _C.watch_regions(True)


def unlisten(listener: Listener) -> None:
    """Ends `listen`."""
    _listeners.remove(listener)
    _C.watch_regions(False)


@dataclass
class Planned:
    """A region for one combination. For each launch argument: which tensor (negative: the base of
    new result -1 - n) and how it is seen. `copied`: inputs that go through a dense copy; `back`:
    those whose copy is written back; `plain`: every result is its base; `lines`: the user's line of
    each op that the region was compiled from; `symbols`: the sizes that the region is given."""

    loaded: launch.LoadedRegion
    sources: list[tuple[int, Bound]]
    outputs: list[Made]
    copied: list[int]
    back: list[int]
    draws: list[int]
    plain: bool
    lines: list[str]
    direct: Direct | None = None
    symbols: dict[str, int | float] = field(default_factory=dict)

    def results(self, bases: list[torch.Tensor]) -> list[torch.Tensor]:
        """The new results, when their bases are written."""
        if self.plain:
            return bases
        return [new.finish(base) for new, base in zip(self.outputs, bases, strict=True)]


@dataclass
class _Shared:
    """A family at work: what its members' plans have in common."""

    family: Family
    loaded: launch.LoadedRegion
    draws: list[int]
    lines: list[str]


@dataclass
class Direct:
    """A region that is one launch, ready for it: what argument n of `launch` is. `which`: a tensor
    of the call, a new result -1 - n, or (beyond both) one of `held`, of which the last is the block
    of temps that every launch makes anew. `values`: of the plan's symbols."""

    plan: Any
    which: list[int]
    offsets: list[int]
    held: list[torch.Tensor]
    temp_bytes: int
    values: list[int]


class Runner:
    """Callable on the region's tensors (inputs, then written ones) and size symbols."""

    def __init__(self, region: TracedRegion, device: int) -> None:
        self.region, self.device = region, device
        self.new = [r for r in region.results if r.into < 0]
        self.written = sorted({r.into for r in region.results if r.into >= 0})
        self._plans: OrderedDict[Any, Planned] = OrderedDict()
        self._refused: set[Any] = set()
        self._alone: dict[str, Runner] = {}
        self._families: dict[Any, _Shared | None] = {}
        self._before: tuple[int, ...] | None = None  # the sizes of the newest plan
        self._changed: frozenset[str] = frozenset()  # symbols that have had two values
        self._last: Any = None  # the key of the newest plan

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        """Launches on `tensors`, on the current stream; gives the new results."""
        if stepwise.watcher() is not None:
            return self._stepwise(tensors, sizes)
        key = self._key(tensors, sizes)
        plan = self._plans.get(key)
        if plan is None:
            if key not in self._refused:
                try:
                    plan = self._plan(tensors, sizes)
                except Exception as error:
                    if not stepwise.recovers(error, self.region):
                        raise
                    self._refused.add(key)
            if plan is None:
                return self._stepwise(tensors, sizes)
            self._tell(key)
            self._plans[self._key(tensors, sizes)] = plan  # weights may have been relaid
            while len(self._plans) > PLANS:
                self._plans.popitem(last=False)
        for listener in _listeners:
            listener(plan, tensors)
        device = torch.device("spyre", self.device)
        bases = [new.allocate(device) for new in plan.outputs]
        direct = plan.direct
        if direct is not None:
            pool = [*tensors, *direct.held]
            if direct.temp_bytes:
                pool.append(torch.empty((direct.temp_bytes,), dtype=torch.uint8, device=device))
            pool += reversed(bases)
            direct.plan.launch_bound([pool[n] for n in direct.which], direct.offsets, direct.values)
            return plan.results(bases)
        ready: Sequence[torch.Tensor] = tensors
        if plan.copied:
            ready = [
                torch.empty(t.shape, dtype=t.dtype, device=device).copy_(t)
                if n in plan.copied
                else t
                for n, t in enumerate(tensors)
            ]
        launched: list[torch.Tensor] = []
        bounds: list[Bound] = []
        for number, bound in plan.sources:
            if number < 0:
                launched.append(bases[-1 - number])
            else:
                launched.append(ready[number])
            bounds.append(bound)
        symbols = dict(plan.symbols)
        if plan.draws:
            symbols["seed"], offset = take_blocks(self.device, sum(plan.draws))
            for number, blocks in enumerate(plan.draws):
                symbols[f"offset{number}"] = offset
                offset += blocks
        plan.loaded.run(launched, bounds, symbols)
        for number in plan.back:
            tensors[number].copy_(ready[number])
        return plan.results(bases)

    def recipe(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> dict[str, Any] | str:
        """How a call that was planned is launched by csrc/torch/native_ops.cpp, or why not."""
        plan = self._plans.get(self._key(tensors, sizes))
        if plan is None or plan.direct is None or not plan.plain or plan.direct.values:
            return "more than one launch, or sizes that are symbols"
        direct = plan.direct
        seen = {number: bound for number, bound in plan.sources if number >= 0}
        arguments: list[tuple[int, int, int]] = []
        for number, offset in zip(direct.which, direct.offsets, strict=True):
            kept = number - len(tensors)
            if number < 0:
                arguments.append((OUTPUT, -1 - number, offset))
            elif kept < 0:  # it begins where its binding says
                arguments.append((TENSOR, number, offset - seen[number].offset))
            elif kept < len(direct.held):
                arguments.append((CONSTANT, kept, offset))
            else:
                arguments.append((TEMP, 0, offset))
        return {
            "run": None,
            "plan": direct.plan,
            "arguments": arguments,
            "bindings": [
                seen[n].row(tensor, n in self.written) if n in seen else None
                for n, tensor in enumerate(tensors)
            ],
            "constants": direct.held,
            "outputs": [(list(m.sizes), list(m.strides), m.dtype) for m in plan.outputs],
            "symbols": [],
            "returns": [list(range(len(plan.outputs)))],
            "draws": 0,
            "temp_bytes": direct.temp_bytes,
        }

    def _stepwise(
        self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]
    ) -> list[torch.Tensor]:
        def alone(region: TracedRegion, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            key = region.key
            if key not in self._alone:
                self._alone[key] = Runner(region, self.device)
            return self._alone[key](inputs, ())

        device = torch.device("spyre", self.device)
        return stepwise.run(self.region, tensors, sizes, device, alone)

    @staticmethod
    def _key(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Any:
        return (
            _C.numerics(),
            _C.hint(),
            tuple(sizes),
            tuple((t.shape, t.stride(), _C.tensor_facts(t)) for t in tensors),
        )

    def _tell(self, key: Any) -> None:
        """Logs why this plan is made, beside the one before."""
        if not _log.isEnabledFor(logging.INFO):
            return
        name = self.region.name
        if self._last is None:
            _log.info("%s is planned for the first time", name)
        else:
            changed = [
                f"{what} {old} -> {new}"
                for what, old, new in zip(_KEY, self._last[:3], key[:3], strict=True)
                if old != new
            ]
            for number, (before, now) in enumerate(zip(self._last[3], key[3], strict=True)):
                changed += [
                    f"tensor {number}: {what} {old} -> {new}"
                    for what, old, new in zip(_FACTS, before, now, strict=True)
                    if old != new
                ]
            _log.info("%s is planned again: %s", name, "; ".join(changed) or "its plan was gone")
        self._last = key

    # --- planning

    def _plan(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Planned:
        if families.ENABLED and self.region.symbols:
            plan = self._shared_plan(tensors, sizes)
            if plan is not None:
                return plan
        return self._exact_plan(tensors, sizes)

    def _shared_plan(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Planned | None:
        """A plan whose region serves other sizes too; None when there is no such region.

        All size symbols vary, or, where a lowering wants one as a number, those that have changed
        so far: with `dynamic=True` Dynamo makes a symbol of every size there is, and of one length
        several."""
        names = [s.name for s in self.region.symbols]
        before, self._before = self._before, tuple(sizes)
        changed = [
            n for n, old, new in zip(names, before or sizes, sizes, strict=True) if old != new
        ]
        self._changed |= frozenset(changed)
        every = frozenset(names)
        for varying, merged in dict.fromkeys(
            ((every, False), (self._changed, False), (self._changed, True))
        ):
            if varying:
                shared = self._shared(tensors, sizes, varying, merged)
                plan = None if shared is None else self._member(shared, tensors, sizes)
                if plan is not None:
                    return plan
        return None

    def _member(
        self, shared: _Shared, tensors: Sequence[torch.Tensor], sizes: Sequence[int]
    ) -> Planned | None:
        member = shared.family.member(tensors, sizes, Mode(_C.numerics()[0]))
        if member is None:
            _log.info("%s: a tensor lies differently than under other sizes", self.region.name)
            return None
        sources, outputs = member
        arguments = [sources[t.name] for t in shared.loaded.arguments]
        plan = Planned(
            shared.loaded, arguments, outputs, [], [], shared.draws, True, shared.lines,
            symbols={
                s.name: value
                for s, value in zip(self.region.symbols, sizes, strict=True)
                if s.name in shared.family.graph.symbols
            },
        )  # fmt: skip
        if not shared.draws:
            plan.direct = self._direct(plan, len(tensors))
        return plan

    def _shared(
        self,
        tensors: Sequence[torch.Tensor],
        sizes: Sequence[int],
        varying: frozenset[str],
        merged: bool,
    ) -> _Shared | None:
        """The family of these sizes at work, made the first time; None when there is none."""
        key = self._family_key(tensors, sizes, varying, merged)
        if key in self._families:
            return self._families[key]
        draws: list[int] = []

        def extra(b: GraphBuilder) -> Extra:
            draws.clear()
            return self._seeds(b, draws)

        mode = Mode(_C.numerics()[0])
        try:
            made = family(self.region, tensors, sizes, varying, mode, extra, merged=merged)
            made.graph.exclusive = _exclusive(tensors, self.written)
            lines = [op.source for op in made.graph.ops]
            key_of_graph, region = cache.compiled(made.graph, launch.options_now(mode))
            loaded = launch.loaded(key_of_graph, region, self.device)
        except (torch.OutOfMemoryError, torch.AcceleratorError, CompileError):
            raise  # a fault of the compiler is no reason to look away
        except Exception as error:  # lowerings ask for numbers in many ways
            which = ", ".join(sorted(varying))
            _log.info("%s makes no program for any %s: %s", self.region.name, which, error)
            self._families[key] = None
            return None
        loaded.lay_for_largest()
        shared = _Shared(made, loaded, draws, lines)
        # Planning may have relaid weights: the key is another now.
        self._families[self._family_key(tensors, sizes, varying, merged)] = shared
        return shared

    def _family_key(
        self,
        tensors: Sequence[torch.Tensor],
        sizes: Sequence[int],
        varying: frozenset[str],
        merged: bool,
    ) -> Any:
        ranges = tuple(
            range_of(symbol, value) if symbol.name in varying else value
            for symbol, value in zip(self.region.symbols, sizes, strict=True)
        )
        fixed = tuple(
            None if symbolic(facts, varying) else (t.shape, t.stride(), _C.tensor_facts(t))
            for facts, t in zip(self.region.inputs, tensors, strict=True)
        )
        moving = [n for n, s in zip(sizes, self.region.symbols, strict=True) if s.name in varying]
        equal = tuple(moving.index(n) for n in moving) if merged else None
        exclusive = _exclusive(tensors, self.written)
        return _C.numerics(), _C.hint(), varying, equal, ranges, fixed, exclusive

    def _exact_plan(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Planned:
        mode = Mode(_C.numerics()[0])
        b = GraphBuilder(self.region.name, mode)
        symbols = {s.name: v for s, v in zip(self.region.symbols, sizes, strict=True)}
        sources: dict[str, tuple[int, Bound]] = {}
        copied: list[int] = []
        views: list[View] = []
        for number, tensor in enumerate(tensors):
            bound = bind(tensor)
            strides: Sequence[int]
            if bound is None or (number in self.written and not bound.whole_sticks):
                copied.append(number)
                strides = torch.empty(tensor.shape, device="meta").stride()
                dtype = str(tensor.dtype).removeprefix("torch.")
                layout = storage_layout(tuple(tensor.shape), strides, format_for(dtype, mode))
                bound = bind_view(layout, tuple(tensor.shape), strides)
                assert bound is not None
            dtype = str(tensor.dtype).removeprefix("torch.")
            argument = bound.tensor(b, f"a{number}", dtype, Role.INPUT)
            sources[argument.name] = (number, bound)
            views.append(bound.view(argument))
        draws: list[int] = []
        results = lower_region(self.region, b, views, dict(symbols), extra=self._seeds(b, draws))
        inputs = {
            name: tensors[number] for name, (number, _) in sources.items() if number not in copied
        }
        if weights.relay(b.graph, inputs):
            return self._exact_plan(tensors, sizes)
        outputs: list[Made] = []
        for result, value in zip(self.region.results, results, strict=True):
            if result.into >= 0:
                continue
            shape = concrete(result.facts.sizes, symbols)
            strides = concrete(result.facts.strides, symbols)
            new = made(shape, strides, result.facts.dtype, format_for(result.facts.dtype, mode))
            target = new.bound.tensor(b, f"out{len(outputs)}", result.facts.dtype, Role.OUTPUT)
            b.operation = ""
            b.store(new.bound.view(target), new.narrowed(value))
            sources[target.name] = (-1 - len(outputs), new.bound)
            outputs.append(new)
        b.graph.name = self.region.name
        b.graph.exclusive = _exclusive(tensors, self.written)
        lines = [op.source for op in b.graph.ops]
        key, region = cache.compiled(b.graph, launch.options_now(mode))
        loaded = launch.loaded(key, region, self.device)
        plan = Planned(
            loaded,
            [sources[t.name] for t in loaded.arguments],
            outputs,
            copied,
            [n for n in copied if n in self.written],
            draws,
            all(new.whole for new in outputs),
            lines,
        )
        if not copied and not draws:
            plan.direct = self._direct(plan, len(tensors))
        return plan

    @staticmethod
    def _direct(plan: Planned, count: int) -> Direct | None:
        """The plan as one call with everything looked up, where it is one launch."""
        loaded = plan.loaded
        segment = loaded.single
        if segment is None or any(name not in plan.symbols for name, _ in segment.symbols):
            return None
        numbers = {name: int(value) for name, value in plan.symbols.items()}
        given = {
            t.name: source for t, source in zip(loaded.arguments, plan.sources, strict=True)
        }  # fmt: skip
        names = list(loaded.constants)
        which: list[int] = []
        offsets: list[int] = []
        for tensor in segment.tensors:
            name = tensor.memory.name
            offset = 0 if tensor.alias is None else value_of(tensor.alias.offset, numbers)
            if name in given:
                number, bound = given[name]
                which.append(number)
                offset += bound.offset
            elif name in loaded.constants:
                which.append(count + names.index(name))
            else:
                which.append(count + len(names))
                offset += loaded.temps[name]
            offsets.append(offset)
        return Direct(
            segment.plan._native,
            which,
            offsets,
            [loaded.constants[n] for n in names],
            loaded.temp_bytes,
            [numbers[name] for name, _ in segment.symbols],
        )

    @staticmethod
    def _seeds(
        b: GraphBuilder, draws: list[int]
    ) -> Callable[[Call, dict[str, Any]], dict[str, Any]]:
        """Gives seeded operations the generator's numbers: `draws` gets the Philox blocks of each,
        and symbol offset<n> is where those of the n-th begin."""

        def extra(call: Call, kwargs: dict[str, Any]) -> dict[str, Any]:
            if call.op not in SEEDED:
                return kwargs
            if not draws:
                b.scalar("seed", 0)
            offset = b.scalar(f"offset{len(draws)}", 0)
            draws.append(known_blocks(call.args))
            return kwargs | {"seed": Scalar("seed", "l"), "offset": offset}

        return extra


def _exclusive(tensors: Sequence[torch.Tensor], written: Sequence[int]) -> bool:
    """Whether no written tensor shares its storage with another one."""
    storages = [t.untyped_storage()._cdata for t in tensors]
    return all(storages.count(storages[number]) == 1 for number in written)


def known_blocks(args: Sequence[Any]) -> int:
    """Blocks that a call of a seeded operation takes."""
    from openspyre.compiler.lower.seeds import seed_blocks

    blocks = known(seed_blocks(args[0]))
    assert blocks is not None
    return blocks
