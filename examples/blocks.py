"""Blocks of language models in plain torch, for tests and benchmarks.

The same arithmetic as the architectures in transformers, of any width, ragged ones too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder layer. `head`: elements of a head. Granite has multipliers."""

    hidden: int
    heads: int
    groups: int
    head: int
    mlp: int
    residual: float = 1.0
    attention: float | None = None  # the scale of the scores


def rotated(x: Tensor) -> Tensor:
    """(-second half, first half) of the last dim."""
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def rotary(positions: Tensor, head: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, head]."""
    frequencies = 10000.0 ** (
        torch.arange(0, head, 2, device=positions.device, dtype=torch.float32) / -head
    )
    angles = positions[:, None].float() * frequencies
    angles = torch.cat((angles, angles), -1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


class Norm(nn.Module):
    """RMSNorm as models write it: float32 inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


class DecoderLayer(nn.Module):
    """A layer of Llama or Granite: grouped queries, rotary positions, gated MLP.

    `forward(x [B, S, hidden], positions [S])` attends causally; with `keys`, `values` [B, groups,
    length, head] it writes those of `positions` into them and attends to all up to the last one.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        s = self.shape = shape
        self.q = nn.Linear(s.hidden, s.heads * s.head, bias=False)
        self.k = nn.Linear(s.hidden, s.groups * s.head, bias=False)
        self.v = nn.Linear(s.hidden, s.groups * s.head, bias=False)
        self.o = nn.Linear(s.heads * s.head, s.hidden, bias=False)
        self.gate = nn.Linear(s.hidden, s.mlp, bias=False)
        self.up = nn.Linear(s.hidden, s.mlp, bias=False)
        self.down = nn.Linear(s.mlp, s.hidden, bias=False)
        self.before, self.after = Norm(s.hidden), Norm(s.hidden)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        keys: Tensor | None = None,
        values: Tensor | None = None,
    ) -> Tensor:
        s = self.shape
        y = self.before(x)
        batch, length, _ = x.shape

        def heads(t: Tensor, count: int) -> Tensor:
            return t.view(batch, length, count, s.head).transpose(1, 2)

        q, k, v = heads(self.q(y), s.heads), heads(self.k(y), s.groups), heads(self.v(y), s.groups)
        cos, sin = rotary(positions, s.head, x.dtype)
        q, k = q * cos + rotated(q) * sin, k * cos + rotated(k) * sin
        mask = None
        if keys is not None and values is not None:
            keys.index_copy_(2, positions, k)
            values.index_copy_(2, positions, v)
            k, v = keys, values
            mask = torch.arange(k.shape[2], device=x.device) <= positions[:, None]
        a = F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=mask is None, scale=s.attention, enable_gqa=True
        )
        x = x + s.residual * self.o(a.transpose(1, 2).reshape(batch, length, -1))
        y = self.after(x)
        return x + s.residual * self.down(F.silu(self.gate(y)) * self.up(y))


class EncoderLayer(nn.Module):
    """A layer of BERT: biases everywhere, LayerNorm behind each part, a mask [B, S] of truth."""

    def __init__(self, hidden: int, heads: int, mlp: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden) for _ in range(4))
        self.inner, self.outer = nn.Linear(hidden, mlp), nn.Linear(mlp, hidden)
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, hidden = x.shape

        def heads(t: Tensor) -> Tensor:
            return t.view(batch, length, self.heads, -1).transpose(1, 2)

        a = F.scaled_dot_product_attention(
            heads(self.q(x)), heads(self.k(x)), heads(self.v(x)), mask[:, None, None, :]
        )
        x = self.first(x + self.o(a.transpose(1, 2).reshape(batch, length, hidden)))
        return self.second(x + self.outer(F.gelu(self.inner(x))))
