"""The known traps of accelerators as functions of tensors, for eager, compiled and dynamic code.

Not a test file; test_traps_native.py and test_traps_compiled.py run the rows. Small integers, so
that the right value is exact in every format of the card: results have the bits of the CPU's where
a row names no tolerance, and written inputs are results too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from oracles import assert_bits_equal
from torch import Tensor

half = torch.float16
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)
Function = Callable[..., Any]


def tensors_of(results: Any) -> list[Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(results) if isinstance(t, Tensor)]


def unchanged(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tensors


@dataclass(frozen=True)
class Row:
    """`run` of `views` of `inputs`. `right`: the values it must give, as lists, where the list of
    traps says them; the CPU's are compared in any case. `tolerance`: relative and absolute, 0 for
    equal bits."""

    name: str
    run: Function
    inputs: tuple[Tensor, ...]
    right: Any = None
    tolerance: float = 0.0
    views: Callable[..., Sequence[Tensor]] = unchanged
    strides: bool = False
    eager_falls_back: bool = False

    def start(self, device: str) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Fresh inputs on `device`, and the views of them that `run` takes."""
        given = tuple(t.clone(memory_format=torch.preserve_format).to(device) for t in self.inputs)
        return given, tuple(self.views(*given))

    def wanted(self) -> list[Tensor]:
        """The results on the CPU, then the inputs afterwards."""
        given, views = self.start("cpu")
        return [*tensors_of(self.run(*views)), *given]

    def compare(self, results: Any, given: Sequence[Tensor]) -> None:
        """Raises AssertionError where results on the card, or inputs afterwards, are wrong."""
        found = [*tensors_of(results), *given]
        wanted = self.wanted()
        assert len(found) == len(wanted), self.name
        for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
            where = f"{self.name}, tensor {number}"
            assert a.device.type == "spyre", where
            assert a.shape == b.shape and a.dtype == b.dtype, f"{where}: {a.shape} {a.dtype}"
            if self.strides:
                assert a.stride() == b.stride(), where
            if self.tolerance:
                torch.testing.assert_close(
                    a.cpu().float(),
                    b.float(),
                    rtol=self.tolerance,
                    atol=self.tolerance,
                    equal_nan=True,
                    msg=lambda text, where=where: f"{where}: {text}",  # type: ignore[misc]
                )
            else:
                try:
                    assert_bits_equal(a.cpu(), b)
                except AssertionError as error:
                    raise AssertionError(f"{where}: {error}") from None
        if self.right is not None:
            rows = [t.cpu().tolist() for t in found[: len(self.right)]]
            assert str(rows) == str(self.right), f"{self.name}: {rows}"  # nan equals nan so


def counting(*shape: int, modulus: int = 997, dtype: torch.dtype = half) -> Tensor:
    """0, 1, 2, ... below `modulus`, again and again."""
    return (torch.arange(math.prod(shape)) % modulus).to(dtype).view(shape)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


ROWS: list[Row] = []


def row(name: str, run: Function, *inputs: Tensor, **more: Any) -> None:
    ROWS.append(Row(name, run, inputs, **more))


# --- A: layouts, views, strides, storage offsets

LENGTHS = (1, 63, 64, 65, 127, 128, 129, 191, 193)

for _dtype in (half, torch.float32, torch.int64, torch.int8):
    row(
        f"b001-b002 clones of {_dtype}",
        lambda *every: [t.clone() for t in every],
        *(counting(n, modulus=100, dtype=_dtype) for n in LENGTHS),
    )


def _rms(t: Tensor, w: Tensor) -> Any:
    v = t.transpose(1, 2)
    return [F.rms_norm(x, (128,), weight=w, eps=0.0) for x in (v, v.contiguous())]


for _c in (-2.0, 1.0):
    row(
        f"b004 rms_norm of a view of {_c}",
        _rms,
        torch.full((1, 64, 8, 128), _c, dtype=half),
        torch.ones(128, dtype=half),
        right=[[[[[math.copysign(1, _c)] * 128] * 64] * 8]] * 2,
    )
row("b005 transposed stick", lambda t: t.t().contiguous(), counting(64, 128))
row("b005 transposed, then plus", lambda t: t.t() + 0, counting(70, 130))
row(
    "b005 sum of transposed and itself",
    lambda t, u: t.t() + u,
    counting(65, 70, modulus=499),
    counting(70, 65, modulus=499),
)
for _shape in ((1, 32, 64, 128), (2, 8, 4, 4), (3, 5, 65, 7)):
    row(
        f"b007-b008 contiguous of {_shape}",
        lambda t: t.transpose(1, 2).contiguous(),
        counting(*_shape, modulus=509),
    )
row(
    "b010 two slices",
    lambda x: [x.narrow(0, 0, 1).clone(), x.narrow(0, 2, 1).clone()],
    counting(4, 64),
    right=[[list(map(float, range(64)))], [list(map(float, range(128, 192)))]],
)
row(
    "b010 two slices as inputs",
    lambda a, b: [a.clone(), b.clone()],
    counting(4, 64),
    views=lambda x: (x[:1], x[2:3]),
)
row(
    "b011 offsets on the stick",
    lambda x: [x.narrow(1, o, 64).clone() for o in (0, 1, 7, 32, 63, 64)],
    counting(2, 128),
)
row(
    "b011 offsets on the stick of inputs",
    lambda *every: [t + 1 for t in every],
    counting(2, 128),
    views=lambda x: [x.narrow(1, o, 64) for o in (1, 7, 32, 63, 64)],
)
_base = torch.arange(9.0).half().view(9, 1).expand(9, 128).contiguous()
row(
    "b013 offset and step of an input",
    lambda t: (t + t)[:, 0],
    _base,
    views=lambda x: (x[1::2],),
    right=[[2.0, 6.0, 10.0, 14.0]],
)
row("b013 offset and step inside", lambda x: (x[1::2] + x[1::2])[:, 0], _base)
row("b013 step on the stick", lambda x: [x[:, 1::2] + 1, x[:, ::3].contiguous()], counting(3, 130))
row("b014 rows of a padded base, inside", lambda x: x[1:] + x[1:], counting(4, 100, modulus=400))
row(
    "b014 rows of a padded base",
    lambda x: x + x,
    counting(4, 100, modulus=400),
    views=lambda x: (x[1:],),
)


def _head(x: Tensor, y: Tensor) -> None:
    x[:9].copy_(y)


row(
    "b016 copy to a slice",
    _head,
    torch.full((64,), 7, dtype=torch.int32),
    torch.arange(9, dtype=torch.int32),
    right=[[*range(9), *[7] * 55]],
)
row(
    "b017 channels_last",
    lambda x: [
        torch.empty(1, 3, 4, 4, memory_format=torch.channels_last, device=x.device).fill_(2.0),
        x.contiguous(memory_format=torch.channels_last),
        x.to(memory_format=torch.channels_last) + 1,
    ],
    counting(2, 3, 4, 5),
    strides=True,
)
row(
    "b019 layer_norm of a view",
    lambda x: F.layer_norm(x, (10,), eps=0.0),
    torch.tensor([[1.0, -1.0], [-1.0, 1.0]] * 5),
    views=lambda x: (x.transpose(0, 1),),
)
for _dtype in (torch.int64, torch.int32, torch.float32):
    row(
        f"b020 repeat_interleave of {_dtype}",
        lambda x: x.repeat_interleave(2),
        torch.tensor([[1, 2], [3, 4]], dtype=_dtype),
    )
row(
    "b023 unfold",
    lambda x: [x.unfold(0, 3, 1) + 0, x.unfold(0, 4, 2).contiguous()],
    torch.arange(10),
    right=[[[i, i + 1, i + 2] for i in range(8)], [list(range(i, i + 4)) for i in (0, 2, 4, 6)]],
)
row("b023 unfold of long rows", lambda x: x.unfold(1, 5, 3) * 2, counting(3, 200, modulus=400))
for _dim, _sizes in ((0, (256, 8, 128)), (1, (8, 256, 128)), (2, (8, 128, 256))):
    row(
        f"b025 index_copy_ on dim {_dim}",
        lambda cache, at, rows, dim=_dim: cache.index_copy_(dim, at, rows.movedim(0, dim)).sum(
            dtype=torch.float32
        ),
        torch.zeros(_sizes, dtype=half),
        torch.tensor([3, 17]),
        torch.stack([torch.ones(8, 128), torch.full((8, 128), 2.0)]).half(),
        right=[3072.0],
    )
for _number, _chain in enumerate(
    (
        lambda t: t.reshape(4, 65, 6).permute(2, 0, 1).unsqueeze(1).squeeze(1) + 0,
        lambda t: t.view(3, 4, 13, 10).permute(3, 1, 0, 2).reshape(10, 12, 13) + 0,
        lambda t: t.t().reshape(65, 24).t()[2:, 3:].unsqueeze(0).flip(1) + 0,
        lambda t: t.reshape(2, 6, 130)[:, 1::2].transpose(0, 2).flatten(1).movedim(0, -1) + 0,
        lambda t: t[:, 2:].unflatten(1, (2, 64)).permute(1, 0, 2).reshape(-1, 64).diagonal() + 0,
        lambda t: t.unsqueeze(1).expand(12, 3, 130).reshape(36, 130)[5::7, 64:].clone(),
    )
):
    row(f"b026 chain {_number}", _chain, counting(12, 130))


# --- B: dtypes and number formats

row(
    "b029 integers are made",
    lambda x: [torch.tensor([1, 2, 3, 4], dtype=d, device=x.device) for d in INTEGERS],
    torch.zeros(1),
)
row(
    "b029 integers are changed",
    lambda *every: [t + 1 if t.dtype != torch.bool else t ^ True for t in every],
    *(torch.tensor([1, 2, 3, 4], dtype=d) for d in INTEGERS),
)
row("b031 int64 to float", lambda x: x.float(), torch.arange(5), right=[[0.0, 1.0, 2.0, 3.0, 4.0]])
row(
    "b032 float casts",
    lambda x, y: [x.float().half(), x.bfloat16().float(), y.float(), y.half(), y.int(), x.bool()],
    torch.tensor([0, 0.5, 1, -2]).half(),
    torch.tensor([False, True]),
)
row(
    "b034 comparison with a number",
    lambda *every: [t == 1 for t in every],
    *(
        torch.tensor([[0, 1, 2], [3, 1, 4]], dtype=d)
        for d in (torch.int32, torch.int64, torch.uint8, torch.int8, half)
    ),
    right=[[[False, True, False], [False, True, False]]] * 5,
)


def _truth(x: Tensor, y: Tensor) -> Any:
    t = x != y
    return t, t.sum(), t.half().view(1, 64) @ torch.ones(64, 3, dtype=x.dtype, device=x.device)


row("b035 truth", _truth, torch.ones(64, dtype=half), torch.zeros(64, dtype=half))
row("b038 floor", torch.floor, torch.tensor([-2.5, 2.5, -3.0, 0.5, -0.5]).half())
for _dtype in (half, torch.bfloat16, torch.float32):
    row(
        f"b040 zeros of {_dtype}",
        lambda *every: [*[z + z for z in every], *[z.add_(z) for z in every]],
        *(torch.zeros(shape, dtype=_dtype) for shape in ((64,), (), (3, 65))),
    )
for _dtype in (half, torch.float32):
    row(
        f"b041 minus zero of {_dtype}",
        lambda a, b: [a == b, a != b, a < b, a >= b],
        torch.tensor([-0.0, -0.0], dtype=_dtype),
        torch.tensor([0.0, 0.0], dtype=_dtype),
        right=[[True] * 2, [False] * 2, [False] * 2, [True] * 2],
    )
    # DLFloat16 has one code for NaN and infinity: isnan() knows float32 only
    row(
        f"b043 nan of {_dtype}",
        lambda x: [(x + math.nan).cos().isfinite(), (x + math.nan).sin().isfinite()],
        torch.zeros(1, 1, 2, 2, 3, dtype=_dtype),
        right=[[[[[[False] * 3] * 2] * 2]]] * 2,
    )
row(
    "b043 nan of float32 is NaN",
    lambda x: [x.cos().isnan(), x.sin().isnan()],
    torch.full((1, 1, 2, 2, 3), math.nan),
)
for _dtype in (half, torch.float32):
    row(
        f"b046-b047 small tensors of {_dtype}",
        lambda a, b, c, d: [a + b, c / d],
        *(torch.full((4, 8), v, dtype=_dtype) for v in (7.0, 9.0)),
        *(torch.full((4, 64), v, dtype=_dtype) for v in (33.0, 2.0)),
        right=[[[16.0] * 8] * 4, [[16.5] * 64] * 4],
    )
row(
    "b044 division by zero",
    lambda x: x / 0.0,
    torch.tensor([1.0, -1.0, 0.0]),
    right=[[math.inf, -math.inf, math.nan]],
    tolerance=1e-9,
)
row(
    "b050 bitwise_and of uint8",
    lambda *t: [t[i] & t[i + 1] for i in range(0, len(t), 2)],
    *(
        torch.full(shape, value, dtype=torch.uint8)
        for a, b in (((5, 1), (5,)), ((10, 5), ()), ((5, 10, 5), (10, 5)), ((0, 5), (5,)))
        for shape, value in ((a, 6), (b, 3))
    ),
)
row(
    "b052 products of fp8",
    lambda a, w, s: torch._scaled_mm(a, w.t(), s, s, out_dtype=torch.bfloat16),
    torch.full((16, 128), 0.25).to(torch.float8_e4m3fn),
    torch.full((128, 128), 0.25).to(torch.float8_e4m3fn),
    torch.tensor(1.0),
    right=[[[8.0] * 128] * 16],
)

_PROMOTED = (*INTEGERS, half, torch.bfloat16, torch.float32)


def promotion(first: torch.dtype) -> Row:
    """B053: `first` beside every dtype, added, multiplied and chosen from."""

    def run(a: Tensor, choice: Tensor, *others: Tensor) -> Any:
        return [(a + b, b * a, torch.where(choice, a, b)) for b in others]

    others = [torch.tensor([1, 0, 1]).to(d) for d in _PROMOTED]
    return Row(
        f"b053 promotion of {first}",
        run,
        (torch.ones(3, dtype=first), torch.tensor([True, False, True]), *others),
    )


ROWS += [promotion(_dtype) for _dtype in _PROMOTED]


# --- C: pads, masks, softmax

for _dtype in (half, torch.float32):
    row(
        f"b055 extremes of {_dtype}",
        lambda x: [x.amin((0, 1)), (-x).amax((0, 1)), x.amin(1), (-x).amax(0)],
        torch.ones(3, 3, dtype=_dtype),
        right=[1.0, -1.0],
    )
row(
    "b056 sum and softmax of float32",
    lambda x, y: [x.sum(), torch.softmax(y, 0) * 7],
    torch.arange(20.0),
    torch.zeros(7),
    tolerance=1e-6,
)


def _masked(scores: Tensor, values: Tensor) -> Any:
    weights = torch.softmax(scores, -1)
    return weights, weights @ values


_values = torch.ones(64, 3, dtype=half)
_values[2:] = 1000
row(
    "b058 masked softmax",
    _masked,
    torch.tensor([[0.0] * 2 + [-math.inf] * 62]).half(),
    _values,
    right=[[[0.5, 0.5] + [0.0] * 62], [[1.0] * 3]],
)
for _width in (96, 24608):
    row(
        f"b059 pad and cat of {_width}",
        lambda x: [
            t
            for y in (F.pad(x, [0, 32]), torch.cat([x, torch.zeros(1, 32, device=x.device)], 1))
            for t in (y, y.sum())
        ],
        torch.ones(1, _width),
    )
for _dtype in (torch.int32, torch.int64):
    row(
        f"b061 sum of {_dtype}",
        lambda x: x.sum(2, keepdim=True),
        torch.arange(1, 13, dtype=_dtype).view(2, 2, 3),
        right=[[[[6], [15]], [[24], [33]]]],
    )
_logits = torch.full((2, 50257), -5.0)
_logits[0, 50256] = _logits[1, 7] = -1.0
for _dtype in (half, torch.float32):
    row(
        f"b062 argmax of negative {_dtype}",
        lambda x: x.argmax(-1),
        _logits.to(_dtype),
        right=[[50256, 7]],
    )
row(
    "b064 softmax of widths",
    lambda *every: [t for x in every for t in (torch.softmax(x, -1), torch.softmax(x, -1).sum(-1))],
    *(torch.linspace(-3, 3, 5 * w).view(5, w) for w in (1, 31, 33, 63, 65, 129)),
    tolerance=2e-6,
)
for _dtype in (half, torch.float32):
    row(
        f"b065-b067 attention of {_dtype}",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        (60 * torch.eye(5, 33)[3].expand(1, 1, 2, 33)).contiguous().to(_dtype),
        torch.eye(5, 33)[None, None].to(_dtype),
        torch.arange(5.0).view(5, 1).expand(5, 33)[None, None].contiguous().to(_dtype),
        tolerance=2e-3,
    )
_mask = torch.ones(4, 4, dtype=torch.bool)
_mask[2] = False
row(
    "b068 a fully masked row",
    lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
    *(drawn(1, 1, 4, 8, seed=i) for i in range(3)),
    _mask,
    tolerance=1e-5,
)


# --- D: reductions

row(
    "b070 rank five",
    lambda x: [x.sum((0, 1, 2, 3, 4)), x.mean(), x.amax(), x.amin(), x.sum((0, 2)), x.mean((1, 4))],
    torch.ones(2, 3, 5, 7, 256),
    right=[53760.0, 1.0, 1.0, 1.0],
)
row(
    "b071 rank six",
    lambda *every: [s for t in every for s in (t.sum(-1), t.sum(0), t.amax((1, 3)))],
    *(
        torch.ones(s, dtype=half)
        for s in ((2, 2, 5, 3, 4, 128), (1, 2, 1, 3, 1, 65), (7, 1, 1, 1, 2, 33))
    ),
)
row(
    "b073 amin and amax",
    lambda x: [x.amin(0), x.amin(1), x.amax(0), x.amax(1)],
    (torch.arange(3 * 70) * 37 % 101).view(3, 70).half(),
)
_x = torch.zeros(64, 768)
_x[:, :384] = 1
row(
    "b074 rows of a mean",
    lambda *every: [t.mean(-1) for t in every],
    *(_x[:n] for n in (31, 32, 33, 64)),
)
_x = torch.zeros(2, 3, 4, dtype=torch.bool)
_x[1, 2, 3] = True
row(
    "b076 any and all",
    lambda x: [torch.any(x, dim=(1, 2)), x.any(), x.all(-1), (~x).all(0)],
    _x,
    right=[[False, True], True],
)
row(
    "b077 sums of bfloat16",
    lambda x: x.sum(1),
    torch.arange(64).view(16, 4).to(torch.bfloat16),
)
row(
    "b079 first maximum",
    lambda x, y: [*x.max(1), *x.min(1), y.argmax(1), *y.topk(2)],
    torch.tensor([[3, 9, 4], [8, 1, 8]]),
    torch.tensor([[3.0, 9, 4], [8, 1, 7]]),
    right=[[9, 8], [1, 0]],
)


# --- E: broadcasting and expand


def _kept(x: Tensor, y: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    return mean + torch.zeros_like(mean) + y


_x = (torch.arange(3.0) + 1).view(1, 3, 1).expand(1, 3, 128).contiguous().half()
row("b082 a kept mean", _kept, _x, torch.zeros_like(_x), right=[_x.tolist()])
row(
    "b083 expanded columns",
    lambda *every: [
        t
        for x in every
        for t in (x.expand(3, 5) * 1, x[1:2].expand(1, 4).clone(), x.expand(3, 70).sum(1))
    ],
    *(torch.tensor([[1], [2], [3]], dtype=d) for d in (half, torch.float32, torch.int64)),
)
row(
    "b083 expanded inputs",
    lambda x, y: [x * 1, y.clone(), x.contiguous()],
    torch.tensor([[1.0], [2], [3]]),
    torch.tensor([[42]]),
    views=lambda x, y: (x.expand(3, 5), y.expand(1, 4)),
)
_PAIRS = (
    ((1,), (3,)),
    ((65, 1), (65, 130)),
    ((1, 64), (7, 64)),
    ((), (2, 3)),
    ((3, 1, 5), (2, 3, 4, 5)),
    ((1, 1, 33), (5, 6, 33)),
)
row(
    "b085 broadcast_to",
    lambda *every: [
        t
        for x, (_, target) in zip(every, _PAIRS, strict=True)
        for t in (torch.broadcast_to(x, target).contiguous(), torch.broadcast_to(x, target) + 1)
    ],
    *(counting(*shape) for shape, _ in _PAIRS),
)
row(
    "b086 softplus of odd sizes",
    lambda x: F.softplus(x, beta=0.5),
    torch.linspace(-4, 4, 1729).view(1, 1, 7, 13, 19),
    tolerance=5e-7,
)


# --- F: in place, aliases, scatter, cat


def _slices(cache: Tensor) -> None:
    for offset in (0, 1, 31, 63, 64, 65, 127, 128, 300):
        cache[:, :, offset : offset + 1] = offset % 7 + 1


def _middle(x: Tensor, y: Tensor) -> None:
    x[:, 32:96] = 5
    y[:, 1:-1] += 3
    y[1, 5:70:3] = 9


row("b088 slices at offsets", _slices, torch.zeros(2, 3, 301).half())
row("b089 slices inside a stick", _middle, torch.zeros(4, 128).half(), torch.ones(3, 130))
row(
    "b091 index_copy_ of a flat view",
    lambda c, i, r: c.view(1024, 1024).index_copy_(0, i, r)[:1],
    torch.zeros(1024, 8, 128).half(),
    torch.arange(64),
    torch.ones(64, 1024).half(),
)
row(
    "b091 index_put_ of a flat view",
    lambda c, i, r: c.view(1024, 1024).index_put_((i,), r)[:1],
    torch.zeros(1024, 8, 128).half(),
    torch.arange(64),
    torch.ones(64, 1024).half(),
)
row(
    "b092 scatter_ of rows",
    lambda c, i, v: c.scatter_(0, i, v).sum(dtype=torch.float32),
    torch.zeros(256, 8, 128).half(),
    torch.tensor([3, 17]).view(2, 1, 1).expand(2, 8, 128).contiguous(),
    torch.tensor([1.0, 2.0]).half().view(2, 1, 1).expand(2, 8, 128).contiguous(),
    right=[3072.0],
)
row(
    "b092 scatter_ along the stick",
    lambda c, i, v: c.scatter_(1, i, v),
    torch.zeros(3, 150),
    torch.tensor([[149, 0, 64], [3, 63, 65], [1, 2, 128]]),
    torch.arange(1.0, 10.0).view(3, 3),
)
for _a in (1, 2, 32, 63, 64, 65, 2048):
    _inputs = [
        t
        for b in (1, 2, 32, 63, 64, 65, 2048)
        for t in ((torch.arange(_a) % 500).half(), (2 * (torch.arange(b) % 500)).half())
    ]
    row(
        f"b094 cat behind {_a}",
        lambda *t: [torch.cat([t[i], t[i + 1]], -1) for i in range(0, len(t), 2)],
        *_inputs,
    )
row(
    "b095 cat of float32",
    lambda x, y: [torch.cat([x, y], d) for d in (0, 1)],
    drawn(2, 3),
    drawn(2, 3, seed=1),
)
row(
    "b097 copy on the card", lambda a, b: b.copy_(a) + 0, counting(5, 70), torch.zeros(5, 70).half()
)
row(
    "b097 copy of another order",
    lambda a, b: b.copy_(a.t()) + 0,
    counting(70, 5),
    torch.zeros(5, 70),
)
for _page in (1, 16, 32, 64, 128):
    _order = torch.randperm(128 // _page, generator=torch.Generator().manual_seed(_page))
    row(
        f"b098 pages of {_page}",
        lambda q, k, v, table: F.scaled_dot_product_attention(
            q, *(x.index_select(2, table).reshape(1, 2, 128, 32) for x in (k, v))
        ),
        drawn(1, 2, 128, 32),
        *(drawn(1, 2, 128 // _page, _page, 32, seed=s) for s in (1, 2)),
        _order,
        tolerance=1e-5,
    )


# --- G: copies

row(
    "b100 rank zero",
    lambda t: [t + 1, torch.ones((), device=t.device) + t, t.clone(), t.view(1).sum()],
    torch.tensor(3.0),
    right=[4.0, 4.0],
)
row("b103 diff", torch.diff, torch.tensor([1.0, 4, 9, 16]), right=[[3.0, 5.0, 7.0]])
row(
    "b107 mixed widths",
    lambda *every: [(t * 2).float() for t in every],
    *(torch.ones(w).half() for w in (32, 33, 63, 64, 65, 127, 128, 130)),
)


FIRST_OF_GROUP = {"A": 1, "B": 28, "C": 55, "D": 70, "E": 82, "F": 88, "G": 100}


def group_of(row: Row) -> str:
    """The group of the list of traps: a letter."""
    number = int(row.name[1:4])
    return max(group for group, first in FIRST_OF_GROUP.items() if first <= number)


def chunks(rows: Sequence[Row], size: int) -> list[tuple[str, list[Row]]]:
    """Rows of a group, `size` at a time, so that one compilation serves several; with a name."""
    made = []
    for group, members in itertools.groupby(rows, key=group_of):
        every = list(members)
        for i in range(0, len(every), size):
            some = every[i : i + size]
            made.append((f"{group}-{some[0].name[:4]}-to-{some[-1].name[:4]}", some))
    return made
