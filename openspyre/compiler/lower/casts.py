"""Copies and conversions: clone, alias, _to_copy, convert_element_type."""

from __future__ import annotations

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.lower.promote import Operand, computable, pointwise
from openspyre.compiler.lower.registry import lowers
from openspyre.compiler.view import View


@lowers(
    "aten.real", "aten.conj", "aten._conj", "aten.positive", "aten.lift", "prims.view_of",
    "prims.conj", "prims.real",
)  # fmt: skip
def alias(b: GraphBuilder, self: View) -> View:
    """The same tensor: real numbers only get here."""
    return self


@lowers("aten.contiguous", "prims.device_put")
def alias_on(b: GraphBuilder, self: View, *rest: object) -> View:
    """The same tensor; where it lies is not the graph's matter."""
    return self


@lowers("aten.clone", "aten.conj_physical", "prims.clone", "prims.conj_physical")
def clone(b: GraphBuilder, self: View) -> View:
    return b.copy(self)


@lowers("aten._neg_view")
def neg_view(b: GraphBuilder, self: View) -> View:
    return pointwise(b, lambda x: -x, [self], self.dtype)


def converted_to(b: GraphBuilder, self: View, dtype: str) -> View:
    """The values of `self` as `dtype`, in a new tensor."""
    computable(b.operation, dtype)
    return b.copy(self, dtype)


@lowers("aten._to_copy")
def to_copy(b: GraphBuilder, self: View, dtype: str | None = None) -> View:
    return converted_to(b, self, dtype or self.dtype)


@lowers("aten.to.dtype")
def to_dtype(b: GraphBuilder, self: View, dtype: str, copy: bool = False, *rest: object) -> View:
    return self if dtype == self.dtype and not copy else converted_to(b, self, dtype)


@lowers("prims.convert_element_type")
def convert_element_type(b: GraphBuilder, self: View, dtype: str) -> View:
    return converted_to(b, self, dtype)


@lowers("aten.copy")
def copy(b: GraphBuilder, self: View, src: Operand) -> View:
    """What `self` holds after self.copy_(src)."""
    return pointwise(b, lambda x: x, [src], self.dtype, shape=self.shape)


@lowers("aten.type_as")
def type_as(b: GraphBuilder, self: View, other: View) -> View:
    return self if self.dtype == other.dtype else converted_to(b, self, other.dtype)
