"""Lowerings of scaled dot product attention, in every form that reaches the card, with backward.

Scores and softmax are float32 within the operation; the probabilities are rounded to the operands'
dtype for the second product, as flash kernels do. A row whose keys are all masked is zero. Grouped
queries share keys and values without a copy: the group is a dim that the right side lacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.errors import Unsupported
from openspyre.compiler.lower.registry import constant, lowers
from openspyre.compiler.lower.tools import cast, describe, full, number, summed
from openspyre.compiler.sizes import Size, same
from openspyre.compiler.view import View
from openspyre.program import body as f
from openspyre.program.body import Reg
from openspyre.program.ops import Combine


@dataclass
class Attention:
    """Softmax(q k^T * scale + mask) and what it is made of. `query` [.., G, L, E], `key`
    [.., 1, S, E], `value` [.., 1, S, V]; `lead` the dims before the last two of the result."""

    query: View
    key: View
    value: View
    probabilities: View  # of the operands' dtype
    sums: View  # float32 [.., L]: logsumexp
    lead: tuple[Size, ...]
    scale: float


def masked_scores(
    b: GraphBuilder, raw: View, mask: View | None, scale: float, causal: bool
) -> View:
    """float32 scores of the raw products: scaled, masked."""
    dim = raw.rank

    def body(index: Any, score: Reg, *masks: Reg) -> Reg:
        score = score * scale
        if mask is not None:
            kept = masks[0]
            if mask.dtype == "bool":
                score = f.where(f.cast(kept, "b"), score, float("-inf"))
            else:
                score = score + f.cast(kept, "f")
        if causal:
            score = f.where(index(dim - 1) <= index(dim - 2), score, float("-inf"))
        return score

    more = [] if mask is None else [mask]
    return b.map(body, raw, *more, dtype="float32", shape=raw.shape, indexed=True, name="scores")


def attend(
    b: GraphBuilder, query: View, key: View, value: View, mask: View | None, causal: bool,
    scale: float | None, dropout: float, gqa: bool = True, *, nan_rows: bool = False,
) -> Attention:  # fmt: skip
    """The parts of attention."""
    if constant(dropout, "dropout_p") > 0.0:
        raise Unsupported(
            b.operation, f"dropout_p={dropout}", "attention has no dropout on the card yet",
            "set dropout to 0, or use torch.nn.functional.dropout on the probabilities",
        )  # fmt: skip
    width = number(query.size(query.rank - 1), b, "the head size")
    factor = width**-0.5 if scale is None else float(constant(scale, "scale"))
    lead = query.shape[:-2]
    if query.rank >= 4 and not same(query.size(query.rank - 3), key.size(key.rank - 3)):
        heads, groups = query.size(query.rank - 3), key.size(key.rank - 3)
        many = number(heads, b, "the number of heads")
        few = number(groups, b, "the number of key heads")
        if many % few:
            raise Unsupported(b.operation, describe(key), f"{few} heads do not divide {many}")
        query = b.reshape(query, [*lead[:-1], few, many // few, *query.shape[-2:]])
        key, value = key.unsqueeze(key.rank - 2), value.unsqueeze(value.rank - 2)
        if mask is not None and mask.rank >= 3:
            at = mask.rank - 3
            if mask.dims[at]:
                mask = b.reshape(mask, [*mask.shape[:at], few, many // few, *mask.shape[at + 1 :]])
            else:
                mask = mask.unsqueeze(at)
    raw = b.matmul(query, key.transpose(key.rank - 2, key.rank - 1))
    scores = masked_scores(b, raw, mask, factor, causal)
    last = scores.rank - 1
    top = b.reduce(Combine.MAX, scores, [last], keepdim=True)[0]
    least = float("-inf")
    masked = causal or mask is not None
    powers = b.map(
        lambda s, m: f.exp(s - f.where(f.equal(m, least), 0.0, m) if masked else s - m),
        scores, top, dtype="float32", name="powers",
    )  # fmt: skip
    total = summed(b, powers, [last], keepdim=True)

    def normal(p: Reg, s: Reg) -> Reg:
        quotient = p / s
        return f.where(f.equal(s, 0.0), 0.0, quotient) if masked and not nan_rows else quotient

    probabilities = b.map(normal, powers, total, dtype=query.dtype, name="p")
    sums = b.map(
        lambda m, s: f.where(f.equal(m, least), least, m + f.log(s)) if masked else m + f.log(s),
        top, total, dtype="float32", name="logsumexp",
    ).squeeze(last)  # fmt: skip
    return Attention(query, key, value, probabilities, sums, lead, factor)


def result(b: GraphBuilder, parts: Attention) -> View:
    """Probabilities times values, [.., L, V]."""
    made = cast(b, b.matmul(parts.probabilities, parts.value), parts.query.dtype)
    return b.reshape(made, [*parts.lead, made.size(made.rank - 2), made.size(made.rank - 1)])


def sums_of(b: GraphBuilder, parts: Attention) -> View:
    """logsumexp, [.., L]."""
    return b.reshape(parts.sums, [*parts.lead, parts.sums.size(parts.sums.rank - 1)])


@lowers("aten.scaled_dot_product_attention")
def attention(
    b: GraphBuilder, query: View, key: View, value: View, attn_mask: View | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
    enable_gqa: bool = False,
) -> View:  # fmt: skip
    parts = attend(b, query, key, value, attn_mask, is_causal, scale, dropout_p, enable_gqa)
    return result(b, parts)


@lowers(
    "aten._scaled_dot_product_attention_math", "aten._scaled_dot_product_attention_math_for_mps"
)
def attention_math(
    b: GraphBuilder, query: View, key: View, value: View, attn_mask: View | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, dropout_mask: View | None = None, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> tuple[View, View]:  # fmt: skip
    if dropout_mask is not None:
        raise Unsupported(b.operation, "dropout_mask", "attention has no dropout on the card yet")
    parts = attend(b, query, key, value, attn_mask, is_causal, scale, dropout_p, enable_gqa)
    shape = [*parts.lead, *parts.probabilities.shape[-2:]]
    return result(b, parts), b.reshape(parts.probabilities, shape)


@lowers("aten._scaled_dot_product_flash_attention_for_cpu")
def attention_flash(
    b: GraphBuilder, query: View, key: View, value: View, dropout_p: float = 0.0,
    is_causal: bool = False, *, attn_mask: View | None = None, scale: float | None = None,
) -> tuple[View, View]:  # fmt: skip
    parts = attend(b, query, key, value, attn_mask, is_causal, scale, dropout_p)
    return result(b, parts), sums_of(b, parts)


@lowers("aten._scaled_dot_product_fused_attention_overrideable")
def attention_overrideable(
    b: GraphBuilder, query: View, key: View, value: View, attn_bias: View | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *,
    scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """(output, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, seed, offset, debug mask): without
    dropout the tensors after logsumexp say nothing; autograd wants a seed and an offset."""
    parts = attend(b, query, key, value, attn_bias, is_causal, scale, dropout_p)
    lengths = (query.size(query.rank - 2), key.size(key.rank - 2))
    seed, offset = full(b, (), 0, "int64"), full(b, (), 0, "int64")
    return (result(b, parts), sums_of(b, parts), None, None, *lengths, seed, offset, None)


# --- backward


@dataclass
class Gradients:
    query: View
    key: View
    value: View
    scores: View  # float32, of the masked scores (the gradient of an additive mask)


def gradients(
    b: GraphBuilder, grad: View, query: View, key: View, value: View, out: View, sums: View,
    mask: View | None, causal: bool, scale: float | None, dropout: float,
) -> Gradients:  # fmt: skip
    """P = exp(scores - logsumexp); dV = P^T dO; dS = P * (dO V^T - rowsum(dO * O));
    dQ = dS K * scale; dK = dS^T Q * scale."""
    if constant(dropout, "dropout_p") > 0.0:
        raise Unsupported(b.operation, f"dropout_p={dropout}", "attention has no dropout yet")
    width = number(query.size(query.rank - 1), b, "the head size")
    factor = width**-0.5 if scale is None else float(constant(scale, "scale"))
    lead, dtype = query.shape[:-2], query.dtype
    grouped = query.rank >= 4 and not same(query.size(query.rank - 3), key.size(key.rank - 3))
    group = None
    key_shape, value_shape = key.shape, value.shape
    if grouped:
        few = number(key.size(key.rank - 3), b, "the number of key heads")
        many = number(query.size(query.rank - 3), b, "the number of heads")
        inner = [*lead[:-1], few, many // few]
        group = len(inner) - 1
        query = b.reshape(query, [*inner, *query.shape[-2:]])
        grad = b.reshape(grad, [*inner, *grad.shape[-2:]])
        out = b.reshape(out, [*inner, *out.shape[-2:]])
        sums = b.reshape(sums, [*inner, sums.size(sums.rank - 1)])
        key, value = key.unsqueeze(key.rank - 2), value.unsqueeze(value.rank - 2)
        if mask is not None and mask.rank >= 3:
            at = mask.rank - 3
            whole = bool(mask.dims[at])
            mask = b.reshape(
                mask, [*mask.shape[:at], few, many // few, *mask.shape[at + 1 :]]
            ) if whole else mask.unsqueeze(at)  # fmt: skip
    last = query.rank - 1
    raw = b.matmul(query, key.transpose(last - 1, last))
    scores = masked_scores(b, raw, mask, factor, causal)
    least = float("-inf")
    p = b.map(
        lambda s, m: f.where(f.equal(m, least), 0.0, f.exp(s - m)),
        scores, sums.unsqueeze(last), dtype="float32", name="p",
    )  # fmt: skip
    narrow = cast(b, p, dtype)
    g_value = b.matmul(narrow.transpose(last - 1, last), grad)
    dot = summed(
        b, b.map(lambda x, y: x * y, grad, out, dtype="float32", compute="float32"), [last], True
    )  # fmt: skip
    g_p = b.matmul(grad, value.transpose(last - 1, last))
    g_scores = b.map(lambda w, x, d: w * (x - d), p, g_p, dot, dtype="float32", name="ds")
    ds = cast(b, g_scores, dtype)
    g_query = b.matmul(ds, key)
    g_key = b.matmul(ds.transpose(last - 1, last), query)
    if group is not None:
        g_value, g_key = summed(b, g_value, [group]), summed(b, g_key, [group])

    def scaled(x: View) -> View:
        return b.map(lambda r: r * factor, x, dtype=dtype, compute="float32")

    return Gradients(
        b.reshape(scaled(g_query), [*lead, *query.shape[-2:]]),
        b.reshape(scaled(g_key), key_shape),
        b.reshape(cast(b, g_value, dtype), value_shape),
        b.reshape(g_scores, [*lead, *g_scores.shape[-2:]]),
    )


@lowers("aten._scaled_dot_product_flash_attention_for_cpu_backward")
def attention_flash_backward(
    b: GraphBuilder, grad_out: View, query: View, key: View, value: View, out: View,
    logsumexp: View, dropout_p: float, is_causal: bool, *, attn_mask: View | None = None,
    scale: float | None = None,
) -> tuple[View, View, View]:  # fmt: skip
    found = gradients(
        b, grad_out, query, key, value, out, logsumexp, attn_mask, is_causal, scale, dropout_p
    )
    return found.query, found.key, found.value


@lowers("aten._scaled_dot_product_fused_attention_overrideable_backward")
def attention_overrideable_backward(
    b: GraphBuilder, grad_out: View, query: View, key: View, value: View, attn_bias: View | None,
    grad_input_mask: list[bool], out: View, logsumexp: View, cum_seq_q: View | None,
    cum_seq_k: View | None, max_q: Size, max_k: Size, dropout_p: float, is_causal: bool,
    philox_seed: View | None, philox_offset: View | None, *, scale: float | None = None,
) -> tuple[View | None, View | None, View | None, View | None]:  # fmt: skip
    found = gradients(
        b, grad_out, query, key, value, out, logsumexp, attn_bias, is_causal, scale, dropout_p
    )
    wanted = [found.query, found.key, found.value]
    bias = None
    if grad_input_mask[3] and attn_bias is not None and attn_bias.dtype != "bool":
        rest = found.scores
        extra = rest.rank - attn_bias.rank
        over = [d for d in range(rest.rank) if d < extra or not attn_bias.dims[d - extra]]
        over = [d for d in over if rest.dims[d]]
        kept = summed(b, rest, over, keepdim=True)
        bias = cast(b, b.reshape(kept, attn_bias.shape), attn_bias.dtype)
    q, k, v = (x if on else None for x, on in zip(wanted, grad_input_mask, strict=False))
    return q, k, v, bias


@lowers("aten._safe_softmax")
def safe_softmax(b: GraphBuilder, x: View, dim: int, dtype: str | None = None) -> View:
    """Softmax with zeros where all is -inf."""
    if x.rank == 0:
        return b.map(lambda v: v.const("f", 1.0), x, dtype=dtype or x.dtype)
    dim = dim % x.rank
    wide = cast(b, x, "float32")
    top = b.reduce(Combine.MAX, wide, [dim], keepdim=True)[0]
    least = float("-inf")
    powers = b.map(
        lambda s, m: f.where(f.equal(m, least), 0.0, f.exp(s - m)), wide, top, dtype="float32"
    )
    total = summed(b, powers, [dim], keepdim=True)
    return b.map(
        lambda p, s: f.where(f.equal(s, 0.0), 0.0, p / s), powers, total, dtype=dtype or x.dtype
    )
