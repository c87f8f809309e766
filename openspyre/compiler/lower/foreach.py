"""torch._foreach operations: an operation on every tensor of a list, all in one graph.

`per_element` says what such an operation does to each element, `lowering` does it to all. An
in-place foreach operation resolves to its functional form (`registry.resolve`), whose results are
then stored one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.lower.registry import arguments, entry, lowers, overload
from openspyre.compiler.view import View

_UNARY = [
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1",
    "floor", "frac", "lgamma", "log", "log10", "log1p", "log2", "max", "neg", "reciprocal",
    "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "zero",
    "clone",
]  # fmt: skip
_BINARY = {
    "add": "add.Tensor", "sub": "sub.Tensor", "mul": "mul.Tensor", "div": "div.Tensor",
    "maximum": "maximum.default", "minimum": "minimum.default", "clamp_max": "minimum.default",
    "clamp_min": "maximum.default",
}  # fmt: skip
_KINDS = ("List", "Scalar", "ScalarList", "Tensor")

ELEMENT: dict[str, str] = {f"_foreach_{name}.default": f"aten.{name}.default" for name in _UNARY}
"""The operation on each element by the name of the foreach operation."""
for _name, _element in _BINARY.items():
    ELEMENT |= {f"_foreach_{_name}.{kind}": f"aten.{_element}" for kind in _KINDS}
ELEMENT |= {f"_foreach_addcmul.{kind}": "aten.addcmul.default" for kind in _KINDS}
ELEMENT |= {f"_foreach_addcdiv.{kind}": "aten.addcdiv.default" for kind in _KINDS}
ELEMENT |= {
    "_foreach_lerp.List": "aten.lerp.Tensor",
    "_foreach_lerp.Scalar": "aten.lerp.Scalar",
    "_foreach_lerp.ScalarList": "aten.lerp.Scalar",
    "_foreach_pow.List": "aten.pow.Tensor_Tensor",
    "_foreach_pow.Scalar": "aten.pow.Tensor_Scalar",
    "_foreach_pow.ScalarList": "aten.pow.Tensor_Scalar",
    "_foreach_pow.ScalarAndTensor": "aten.pow.Scalar",
    "_foreach_norm.Scalar": "aten.linalg_vector_norm.default",
    "_foreach_copy.default": "aten.copy.default",
}


_SCALARS_IN_A_TENSOR = ("aten._foreach_addcmul.Tensor", "aten._foreach_addcdiv.Tensor")


def per_element(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, list[Any], dict[str, Any]]]:
    """The calls (operation, positional, keyword arguments) that a foreach operation stands for, in
    the order of its lists. Raises Unsupported for one without an operation on each element."""
    element = ELEMENT.get(name.removeprefix("aten."))
    if element is None:
        raise Unsupported(name, "the operation", "no lowering of its elements")
    positional, named = arguments(name, args, kwargs)
    dtype = named.pop("dtype", None)
    schema = [a for a in overload(name)._schema.arguments if not a.kwarg_only]
    length = max(len(v) for v in (*positional, *named.values()) if isinstance(v, (list, tuple)))
    calls = []
    for i in range(length):
        each = [
            _part(name, value, i)
            for value, argument in zip(positional, schema, strict=False)
            if argument.name != "non_blocking"
        ]
        more = {key: _part(name, value, i) for key, value in named.items()}
        if element in ("aten.addcmul.default", "aten.addcdiv.default"):
            more["value"] = each.pop()
        if element.startswith("aten.linalg_vector_norm"):
            more["dtype"] = dtype
        calls.append((element, each, more))
    return calls


def _part(name: str, value: Any, i: int) -> Any:
    if isinstance(value, (list, tuple)):
        return value[i]
    if isinstance(value, View) and name in _SCALARS_IN_A_TENSOR:
        return value.select(0, i)
    return value


def _register(name: str) -> None:
    if not _exists(name):
        return

    @lowers(f"aten.{name}")
    def lowering(b: GraphBuilder, *args: Any, **kwargs: Any) -> list[View]:
        results = []
        for operation, positional, named in per_element(b.operation, args, kwargs):
            found = entry(operation)
            if found is None:
                raise Unsupported(b.operation, operation, "it has no lowering")
            whole, more = arguments(operation, positional, named)
            held, b.operation = b.operation, operation
            result = found.function(b, *whole, **more)
            b.operation = held
            assert isinstance(result, View)
            results.append(result)
        return results


def _exists(name: str) -> bool:
    packet, which = name.split(".")
    try:
        overload(f"aten.{packet}.{which}")
    except AttributeError:
        return False
    return True


for _foreach in ELEMENT:
    _register(_foreach)
