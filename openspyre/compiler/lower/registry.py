"""The table of lowerings: which ATen operation becomes which calls of a `GraphBuilder`.

A lowering is a function `(b: GraphBuilder, *args, **kwargs) -> View | tuple | list`, registered
under the full name of a functional operation (`"aten.add.Tensor"`). It gets every argument of the
operation's schema, positional ones by position and keyword-only ones by name, in the compiler's
terms: a `View` for a tensor (None for an absent one, a list for a list), a Python number or a
`build.Scalar` for a number, a `Size` for a SymInt, the dtype's name for a dtype. Arguments that
say nothing about values (device, layout, pin_memory, memory_format, generator) are left out.

In-place and out= operations have no lowerings of their own: `resolve` finds, from the schemas, the
functional operation and the arguments that its results are written to.

May import torch (public names and the schemas of torch.ops) and the compiler's builder.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import torch

from openspyre.compiler.build import REGISTER, GraphBuilder, Scalar
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.sizes import Size
from openspyre.compiler.view import View

Result: TypeAlias = "View | tuple[Any, ...] | list[Any]"
Lowering: TypeAlias = "Callable[..., Result]"
Draws: TypeAlias = "Callable[..., Size]"
Function = TypeVar("Function", bound="Callable[..., Any]")

IGNORED = ("device", "layout", "pin_memory", "memory_format", "generator", "non_blocking")
"""Arguments of schemas that lowerings do not get."""


class NeedsConstant(Exception):
    """A lowering must know a number that was given as a `Scalar`: the caller lowers again with the
    value of `symbol` as a Python number."""

    def __init__(self, symbol: str, what: str) -> None:
        self.symbol = symbol
        super().__init__(f"{what} must be known when compiling; {symbol} is given at launch")


@dataclass(frozen=True)
class Entry:
    """A registered lowering. `draws`: None, or for random operations the number of Philox blocks
    that a call takes, from the same arguments; such a lowering gets two `Scalar`s of type "l" more,
    `seed` and `offset` (the counter of the first block), which the caller takes from the device's
    generator at every launch and advances by that number."""

    function: Lowering
    draws: Draws | None = None


_TABLE: dict[str, Entry] = {}
CLASHES: list[str] = []
"""Operations that two modules lower; the first has it. A test holds this empty."""
_OVERRIDES: dict[str, Resolved] = {}


def lowers(*names: str, draws: Draws | None = None) -> Callable[[Function], Function]:
    """Registers the decorated function for operations by name (`"aten.add.Tensor"`; without an
    overload: `.default`). `draws`: see `Entry`."""

    def note(function: Function) -> Function:
        for name in names:
            full = name if name.count(".") == 2 else f"{name}.default"
            held = _TABLE.get(full)
            if held is not None and held.function.__module__ != function.__module__:
                CLASHES.append(f"{full}: {held.function.__module__}, {function.__module__}")
                continue
            _TABLE[full] = Entry(function, draws)
        return function

    return note


def resolves(name: str, functional: str, written: Mapping[str, int], out: bool = False) -> None:
    """Says by hand what `resolve` cannot derive: operation `name` is `functional`, and argument
    `a` is written with result number `written[a]`. `out`: it is an out= operation."""
    _OVERRIDES[name] = Resolved(functional, tuple(written), False, tuple(written.values()), out)


@functools.cache
def _load() -> None:
    """Imports every module of this package: each registers its lowerings."""
    package = importlib.import_module("openspyre.compiler.lower")
    for module in sorted(found.name for found in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"{package.__name__}.{module}")


def names() -> list[str]:
    """All operations that have a lowering."""
    _load()
    return sorted(_TABLE)


def has_lowering(name: str) -> bool:
    """Whether the functional operation `name` has a lowering."""
    return entry(name) is not None


def entry(name: str) -> Entry | None:
    """The lowering of the functional operation `name`, or None."""
    _load()
    return _TABLE.get(name)


def lower_op(
    b: GraphBuilder,
    name: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
) -> Result:
    """The operation `name` as ops of the graph; arguments in the order of its schema, missing ones
    get their defaults. Random operations take `seed` and `offset` in `kwargs`, too.

    Raises Unsupported (no lowering, or what the card does not compute) and NeedsConstant.
    """
    found = entry(name)
    if found is None:
        raise Unsupported(name, "the operation", "it has no lowering", "run it on the CPU")
    positional, named = arguments(name, args, kwargs or {})
    for view in views_in((positional, named)):
        if view.dtype not in REGISTER:
            raise Unsupported(
                name, f"a tensor of dtype {view.dtype}", "no unit of the card computes it",
                "convert it, or run the operation on the CPU",
            )  # fmt: skip
    b.operation = name
    return found.function(b, *positional, **named)


def draws(name: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Size | None:
    """How many Philox blocks a random operation takes for these arguments (as for `lower_op`); None
    for an operation that is not random."""
    found = entry(name)
    if found is None or found.draws is None:
        return None
    positional, named = arguments(name, args, kwargs or {})
    named = {k: v for k, v in named.items() if k not in ("seed", "offset")}
    return found.draws(*positional, **named)


def arguments(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of a call in the form lowerings get them: defaults filled in, dtypes by name."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    given = dict(kwargs)
    for number, argument in enumerate(overload(name)._schema.arguments):
        if number < len(args):
            value = args[number]
        elif argument.name in given:
            value = given.pop(argument.name)
        elif argument.has_default_value():
            value = argument.default_value
        elif argument.name in IGNORED:
            continue
        else:
            raise TypeError(f"{name}: argument {argument.name} is missing")
        if argument.name in IGNORED:
            continue
        if "ScalarType" in str(argument.real_type) or isinstance(value, torch.dtype):
            value = dtype_name(value)
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    named |= {k: v for k, v in given.items() if k not in IGNORED}
    return positional, named


_SCALAR_TYPES = (
    "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32",
    "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16",
)  # fmt: skip


def dtype_name(dtype: Any) -> str | None:
    """The name of a dtype given as torch.dtype, as a name, or as a schema's number."""
    if dtype is None or isinstance(dtype, str):
        return dtype
    if isinstance(dtype, int):
        return _SCALAR_TYPES[dtype]
    return str(dtype).removeprefix("torch.")


@functools.cache
def overload(name: str) -> torch._ops.OpOverload:
    """The operation of a full name such as "aten.add.Tensor"."""
    namespace, packet, which = name.split(".")
    found = getattr(getattr(getattr(torch.ops, namespace), packet), which)
    assert isinstance(found, torch._ops.OpOverload)
    return found


def full_name(op: torch._ops.OpOverload) -> str:
    """ "aten.add.Tensor" of torch.ops.aten.add.Tensor."""
    return f"{op.namespace}.{op._schema.name.split('::')[1]}.{op._overloadname}"


def views_in(value: Any) -> list[View]:
    """The views in nested arguments."""
    if isinstance(value, View):
        return [value]
    if isinstance(value, (list, tuple)):
        return [view for item in value for view in views_in(item)]
    if isinstance(value, Mapping):
        return [view for item in value.values() for view in views_in(item)]
    return []


def constant(value: Any, what: str) -> Any:
    """`value`, a number that the lowering must know. NeedsConstant if it comes with the launch."""
    if isinstance(value, Scalar):
        raise NeedsConstant(value.symbol, what)
    return value


# --- in-place and out= operations


@dataclass(frozen=True)
class Resolved:
    """How an operation is computed: by the functional operation `name`, whose result number
    `results[i]` is then stored in argument `written[i]` of the operation; results that are not
    stored are returned. The arguments are those of the functional operation, but for the written
    ones of an out= operation (`out`), which are not passed on. With `per_element` the written
    argument and the result are lists of tensors, stored one by one."""

    name: str
    written: tuple[str, ...] = ()
    per_element: bool = False
    results: tuple[int, ...] = ()
    out: bool = False

    @property
    def lowered(self) -> bool:
        """Whether the functional operation has a lowering."""
        return has_lowering(self.name)


@functools.cache
def resolve(op: torch._ops.OpOverload) -> Resolved:
    """The functional operation that computes `op`. Raises Unsupported when there is none."""
    _load()
    name = full_name(op)
    if name in _OVERRIDES:
        return _OVERRIDES[name]
    written = [a for a in op._schema.arguments if a.alias_info and a.alias_info.is_write]
    per_element = name.split(".")[1].startswith("_foreach_")
    if not written:
        return Resolved(name, (), per_element)
    out = all(a.kwarg_only or a.is_out for a in written)
    wanted = _signature(op, without=[a.name for a in written] if out else [])
    best: str | None = None
    for candidate in _functional_candidates(op):
        if not _fits(wanted, _signature(candidate), options=out):
            continue
        found = full_name(candidate)
        if has_lowering(found):
            best = found
            break
        best = best or found
    if best is None:
        raise Unsupported(name, "the operation", "it has no functional form")
    places = tuple(range(len(written)))
    return Resolved(best, tuple(a.name for a in written), per_element, places, out)


_DTYPE = ("dtype", "Optional[ScalarType]")
_OTHER_NAMES = {"normal_": "normal_functional", "bernoulli_": "bernoulli"}


def _functional_candidates(op: torch._ops.OpOverload) -> list[torch._ops.OpOverload]:
    """The functional overloads that may be `op` without its writing; likely ones first."""
    namespace = getattr(torch.ops, op.namespace)
    base = op._schema.name.split("::")[1]
    if base in _OTHER_NAMES:
        packets = [_OTHER_NAMES[base]]
    elif base.startswith("__i") and base.endswith("__"):
        packets = [f"__{base[3:]}"]
    else:
        packets = [base.removesuffix("_"), base]
    found = []
    for packet in packets:
        if not hasattr(namespace, packet):
            continue
        whole = getattr(namespace, packet)
        overloads = [getattr(whole, o) for o in whole.overloads()]
        overloads.sort(key=lambda o: o._overloadname != op._overloadname)
        found += [
            o for o in overloads
            if not any(a.alias_info and a.alias_info.is_write for a in o._schema.arguments)
        ]  # fmt: skip
    return found


def _signature(op: torch._ops.OpOverload, without: Sequence[str] = ()) -> list[tuple[str, str]]:
    return [
        (a.name, str(a.real_type))
        for a in op._schema.arguments
        if a.name not in without and a.name not in IGNORED
    ]


def _fits(wanted: list[tuple[str, str]], have: list[tuple[str, str]], options: bool) -> bool:
    """Whether a functional signature takes the arguments `wanted`. `options`: it may have a dtype
    that the out= operation takes from its out."""
    if options and _DTYPE not in wanted:
        have = [h for h in have if h != _DTYPE]
    return wanted == have
