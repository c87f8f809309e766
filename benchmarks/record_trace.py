"""Record the memory trace of a real transformer: `benchmarks/data/transformer_trace.csv`.

Runs a small Llama-like model in plain torch on the CPU (training steps with AdamW, then a decode
loop with a growing key/value cache) under torch's profiler, and writes every allocation and free
of torch's CPU allocator in order. Columns: `op` (alloc | free), `id` (ordinal of the allocation),
`bytes` (requested). `bench_allocator` replays the file into the card's allocator.

Uses torch only, never the spyre device, so that the trace does not depend on what it measures.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._profiler import _EventType
from torch.nn import functional as F


class Attention(nn.Module):
    """Causal self-attention with rotary positions and an optional key/value cache."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads, self.width = heads, hidden // heads
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)

    def rotate(self, x: Tensor, start: int) -> Tensor:
        half = self.width // 2
        angle = torch.outer(
            torch.arange(start, start + x.shape[-2], dtype=torch.float32),
            10000.0 ** (-torch.arange(half, dtype=torch.float32) / half),
        )
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1)

    def forward(
        self, x: Tensor, cache: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batch, length, hidden = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, self.width).transpose(1, 2)
            for t in self.qkv(x).chunk(3, dim=-1)
        )
        start = 0 if cache is None else cache[0].shape[2]
        q, k = self.rotate(q, start), self.rotate(k, start)
        if cache is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        scores = q @ k.transpose(-1, -2) * self.width**-0.5
        if length > 1:
            mask = torch.full((length, k.shape[2]), float("-inf")).triu(1 + start)
            scores = scores + mask
        y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(batch, length, hidden)), (k, v)


class Layer(nn.Module):
    """RMSNorm, attention, RMSNorm, SwiGLU; both with a residual."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        inner = hidden * 8 // 3 // 64 * 64
        self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.attention = Attention(hidden, heads)
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(
        self, x: Tensor, cache: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, cache = self.attention(self.norm1(x), cache)
        x = x + y
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h)), cache


class Transformer(nn.Module):
    """Embedding, layers, norm and an untied head."""

    def __init__(self, vocabulary: int, hidden: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(
        self, tokens: Tensor, caches: list[tuple[Tensor, Tensor]] | None = None
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        x = self.embed(tokens)
        kept = []
        for i, layer in enumerate(self.layers):
            x, cache = layer(x, None if caches is None else caches[i])
            kept.append(cache)
        return self.head(self.norm(x)), kept


def workload(steps: int, decode: int) -> None:
    """Builds the model, trains `steps` steps of 4 x 128 tokens and decodes `decode` tokens."""
    vocabulary = 2048
    model = Transformer(vocabulary, hidden=512, heads=8, layers=6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        # Lengths differ from step to step, as they do in a real data set.
        tokens = torch.randint(0, vocabulary, (4, 129 - 17 * (step % 3)))
        logits, _ = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del logits, loss
    optimizer.zero_grad()
    with torch.no_grad():
        logits, caches = model(torch.randint(0, vocabulary, (2, 77)))
        for _ in range(decode):
            token = logits[:, -1].argmax(-1, keepdim=True)
            logits, caches = model(token, caches)


def allocations(roots: list[Any]) -> Iterator[tuple[int, int, int]]:
    """Yields (time in ns, address, signed bytes) of every allocation event below `roots`."""
    stack = list(roots)
    while stack:
        event = stack.pop()
        stack.extend(event.children)
        if event.typed[0] == _EventType.Allocation and event.typed[1].device.type == "cpu":
            yield event.start_time_ns, event.typed[1].ptr, event.typed[1].alloc_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / "data" / "transformer_trace.csv"
    )
    args = parser.parse_args()
    torch.manual_seed(0)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        workload(args.steps, args.decode)
    assert profile.profiler is not None
    tree = profile.profiler.kineto_results.experimental_event_tree()
    ordinal: dict[int, tuple[int, int]] = {}
    rows: list[tuple[str, int, int]] = []
    live = peak = count = 0
    for _, address, size in sorted(allocations(tree), key=lambda e: e[0]):
        if size > 0:
            ordinal[address] = (count, size)
            rows.append(("alloc", count, size))
            count += 1
            live += size
            peak = max(peak, live)
        elif address in ordinal:  # frees of what lived before the recording are not ours
            number, size = ordinal.pop(address)
            rows.append(("free", number, size))
            live -= size
    with args.output.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("op", "id", "bytes"))
        writer.writerows(rows)
    print(f"{args.output.name}: {count} allocations, {len(rows)} rows, peak {peak / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
