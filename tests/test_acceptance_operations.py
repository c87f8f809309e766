"""The operations that torch-spyre has on the device, and those that it leaves to the CPU: eager and
compiled, in float16 as the card rounds it, at sizes of whole sticks, ragged ones, and one.

The reference is torch on the CPU in float32, on inputs that have the card's rounding already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from openspyre.observe.explain import KernelFacts

NATIVE = True

Function: TypeAlias = Callable[..., Any]


def of(names: str, take: Callable[[Sequence[Tensor]], Sequence[Tensor]]) -> dict[str, Function]:
    """Functions of torch by name, called with what `take` gives of the arguments."""

    def named(name: str) -> Function:
        function = getattr(torch, name)
        return lambda *args: function(*take(args))

    return {name: named(name) for name in names.split()}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def on_card(*shapes: Sequence[int], positive: bool = False) -> list[Tensor]:
    """float16 tensors of the card, the same in every run."""
    generator = torch.Generator().manual_seed(len(shapes) + sum(map(sum, shapes)))
    values = [torch.randn(list(shape), generator=generator) for shape in shapes]
    return [(v.abs() + 0.1 if positive else v).half().to("spyre") for v in values]


def flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in value for tensor in flat(item)]


def check(
    functions: dict[str, Function],
    args: Sequence[Tensor],
    rtol: float = 2e-3,
    atol: float = 2e-3,
    compiled: bool = True,
) -> None:
    """Every function, natively: eager, then all of them compiled as one. Names what is wrong."""
    wide = [a.cpu().float() if a.is_floating_point() else a.cpu() for a in args]
    expected = {name: flat(function(*wide)) for name, function in functions.items()}

    def together(*inputs: Tensor) -> list[Any]:
        return [function(*inputs) for function in functions.values()]

    wrong = []
    runs = {"eager": together}
    if compiled:
        runs["compiled"] = torch.compile(together)
    for way, run in runs.items():
        with torch.spyre.fallback("error"):
            results = run(*args)
        for name, result in zip(functions, results, strict=True):
            for found, wanted in zip(flat(result), expected[name], strict=True):
                assert found.device.type == "spyre"
                host = found.cpu()
                if wanted.is_floating_point():
                    host = host.float()
                try:
                    torch.testing.assert_close(
                        host, wanted, rtol=rtol, atol=atol, check_dtype=False
                    )
                except AssertionError as error:
                    wrong.append(f"{way} {name}: {error}")
    assert not wrong, "\n".join(wrong)


ROWS, RAGGED, ONE = (128, 192), (3, 150), (5, 1)
shapes = pytest.mark.parametrize("shape", [ROWS, RAGGED, ONE], ids=str)


@pytest.mark.parametrize("m,k,n", [(64, 128, 192), (3, 150, 70), (1, 1, 5)])
def test_o1_n9_matrix_products(m: int, k: int, n: int) -> None:
    a, b, bias, many, more = on_card((m, k), (k, n), (n,), (2, m, k), (2, k, n))
    check(
        {
            "mm": lambda a, b, *_: torch.mm(a, b),
            "bmm": lambda *x: torch.bmm(x[3], x[4]),
            "matmul": lambda a, b, c, many, more: many @ b,
            "addmm": lambda a, b, c, *_: torch.addmm(c, a, b),
            "linear": lambda a, b, c, *_: F.linear(a, b.t(), c),
        },
        [a, b, bias, many, more],
        rtol=0.02,  # a tenth of what torch-spyre's own tests allow
        atol=0.03,
    )


@pytest.mark.parametrize("size,channels", [(8, 64), (7, 3), (3, 1)])
def test_o1_n9_convolution_and_pooling(size: int, channels: int) -> None:
    x, w, bias = on_card((2, channels, size, size), (5, channels, 3, 3), (5,))
    check(
        {
            "conv2d": lambda x, w, b: F.conv2d(x, w, b, padding=1),
            "avg_pool2d": lambda x, *_: F.avg_pool2d(x, 2, stride=1),
        },
        [x, w, bias],
        rtol=0.02,
        atol=0.03,
    )


@shapes
def test_o1_n9_activations(shape: tuple[int, ...]) -> None:
    x, w, b = on_card(shape, shape[-1:], shape[-1:])
    last = shape[-1:]
    check(
        {
            "softmax": lambda x, w, b: torch.softmax(x, -1),
            "layer_norm": lambda x, w, b: F.layer_norm(x, last, w, b),
            "rms_norm": lambda x, w, b: F.rms_norm(x, last, w, eps=1e-5),
            "silu": lambda x, w, b: F.silu(x),
            "relu": lambda x, w, b: F.relu(x),
            "sigmoid": lambda x, w, b: torch.sigmoid(x),
            "softplus": lambda x, w, b: F.softplus(x),
            "mish": lambda x, w, b: F.mish(x),
            "gelu": lambda x, w, b: F.gelu(x),
            "gelu_tanh": lambda x, w, b: F.gelu(x, approximate="tanh"),
            "dropout": lambda x, w, b: F.dropout(x, 0.5, training=False),
        },
        [x, w, b],
        rtol=4e-3,
        atol=4e-3,
    )


@shapes
def test_o1_n9_unary(shape: tuple[int, ...]) -> None:
    (x,), (positive,) = on_card(shape), on_card(shape, positive=True)
    functions = of("abs neg exp tanh floor ceil sign logical_not", lambda args: args[:1])
    functions |= of("log sqrt rsqrt reciprocal", lambda args: args[1:])
    functions |= {
        "clamp": lambda x, p: torch.clamp(x, -0.5, 0.5),
        "pow": lambda x, p: torch.pow(p, 1.5),
        "square": lambda x, p: x**2,
        "bitwise_not": lambda x, p: torch.bitwise_not(x > 0),
    }
    check(functions, [x, positive], rtol=4e-3, atol=4e-3)


@shapes
def test_o1_n9_binary_and_comparisons(shape: tuple[int, ...]) -> None:
    x, y = on_card(shape, shape)
    y = torch.where(y.abs() < 0.1, 0.5, y)
    functions = of("add sub mul div maximum minimum eq ne gt lt ge le", lambda args: args)
    functions |= {
        "where": lambda x, y: torch.where(x > 0, x, y),
        "alpha": lambda x, y: torch.add(x, y, alpha=2),
        "bitwise_and": lambda x, y: (x > 0) & (y > 0),
        "row": lambda x, y: x + y[:1],
        "column": lambda x, y: x * y[:, :1],
    }
    check(functions, [x, y])


@shapes
def test_o1_n9_reductions(shape: tuple[int, ...]) -> None:
    (x,) = on_card(shape)
    functions: dict[str, Function] = {}
    for dim in (0, 1, (0, 1)):
        for f in (torch.sum, torch.mean, torch.amax, torch.amin):
            functions[f"{f.__name__} {dim}"] = lambda x, f=f, dim=dim: f(x, dim=dim)
        functions[f"norm {dim}"] = lambda x, dim=dim: torch.linalg.vector_norm(x, dim=dim)
        functions[f"any {dim}"] = lambda x, dim=dim: torch.any(x > 0, dim=dim)
        functions[f"all {dim}"] = lambda x, dim=dim: torch.all(x > 0, dim=dim)
    functions |= {
        "max": lambda x: torch.max(x),
        "min": lambda x: torch.min(x),
        "max dim": lambda x: torch.max(x, 1),
        "min dim": lambda x: torch.min(x, 0),
        "aminmax": lambda x: tuple(torch.aminmax(x, dim=1)),
        "prod": lambda x: torch.prod(x[:, :7], 1),
        "matrix_norm": lambda x: torch.linalg.matrix_norm(x),
    }
    check(functions, [x], rtol=4e-3, atol=4e-3)


@shapes
def test_o1_n9_views_and_joins(shape: tuple[int, ...]) -> None:
    x, y = on_card((2, *shape), (2, *shape))
    rows, columns = shape
    check(
        {
            "transpose": lambda x, y: x.transpose(1, 2) + 0,
            "permute": lambda x, y: x.permute(2, 0, 1) * 1,
            "unbind": lambda x, y: x.unbind(0),
            "unfold": lambda x, y: x.unfold(1, 2, 1) + 0,
            "cat": lambda x, y: [torch.cat([x, y], d) for d in (0, 1, 2)],
            "stack": lambda x, y: [torch.stack([x, y], d) for d in (0, 3)],
            "reshape": lambda x, y: x.reshape(columns, rows, 2) + 0,
            "contiguous": lambda x, y: x.transpose(0, 2).contiguous(),
            "unsqueeze": lambda x, y: x.unsqueeze(1).squeeze(1) + 0,
            "flatten": lambda x, y: x.flatten() + 0,
            "split": lambda x, y: x.split(2, 1),
            "narrow": lambda x, y: x.narrow(1, 1, 2) + 0,
            "select": lambda x, y: x.select(2, 0) + 0,
            "slice": lambda x, y: x[:, ::2] + 0,
            "repeat": lambda x, y: x.repeat(1, 2, 3),
            "expand": lambda x, y: x[:, :1].expand(2, 4, columns) + 0,
            "flip": lambda x, y: [x.flip(d) for d in (0, 1, 2)],
            "slice_scatter": lambda x, y: torch.slice_scatter(x, y[:, :2], 1, 1, 3),
        },
        [x, y],
    )


@shapes
def test_o1_n9_creation_and_writing_in_place(shape: tuple[int, ...]) -> None:
    (x,) = on_card(shape)

    def written(x: Tensor) -> Tensor:
        made = torch.zeros_like(x)
        made.fill_(2)
        made[1:].copy_(x[1:])
        made.add_(1).mul_(2)
        return made

    check(
        {
            "ones": lambda x: torch.ones(shape, dtype=x.dtype, device=x.device),
            "zeros": lambda x: torch.zeros(shape, dtype=x.dtype, device=x.device),
            "full": lambda x: torch.full(shape, 1.5, dtype=x.dtype, device=x.device),
            "pad": lambda x: F.pad(x, (1, 2, 3, 4), value=0.5),
            "written": written,
        },
        [x],
    )


@shapes
def test_o1_n9_indexing(shape: tuple[int, ...]) -> None:
    rows, columns = shape
    (x,) = on_card(shape)
    index = torch.tensor([rows - 1, 0, 1]).to("spyre")
    mask = (torch.arange(columns) % 2 == 0).to("spyre")
    check(
        {
            "embedding": lambda x, i, m: F.embedding(i, x),
            "index_select": lambda x, i, m: torch.index_select(x, 0, i),
            "index_add": lambda x, i, m: torch.index_add(x, 0, i, x[:3]),
            "masked_scatter": lambda x, i, m: torch.masked_scatter(x, m, x),
            "gather": lambda x, i, m: torch.gather(x, 0, i[:, None].expand(3, columns)),
            "index_put": lambda x, i, m: torch.index_put(x, (i,), x[:3] + 1),
        },
        [x, index, mask],
    )


def test_o1_casts() -> None:
    (x,) = on_card((3, 150))
    dtypes = (torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.bool, torch.int8)
    check(
        {str(dtype): lambda x, dtype=dtype: x.to(dtype) for dtype in dtypes}
        | {"back": lambda x: x.to(torch.float32).to(torch.float16)},
        [x],
        rtol=1e-2,  # bfloat16
    )


@shapes
def test_o2_what_torch_spyre_sends_to_the_cpu(shape: tuple[int, ...]) -> None:
    (x,) = on_card(shape)
    whole = (x * 10).to(torch.int32)
    index = torch.tensor([1, 0]).to("spyre")
    check(
        {
            "sin": lambda x, w, i: torch.sin(x),
            "cos": lambda x, w, i: torch.cos(x),
            "arange": lambda x, w, i: torch.arange(x.shape[1], device=x.device),
            "cumsum": lambda x, w, i: [torch.cumsum(x, d) for d in (0, 1)],
            "argmax": lambda x, w, i: [torch.argmax(x, d) for d in (0, 1)],
            "argmin": lambda x, w, i: [torch.argmin(x, d) for d in (0, 1)],
            "tril": lambda x, w, i: torch.tril(x),
            "triu": lambda x, w, i: [torch.triu(x, 1), torch.triu(w)],
            "isin": lambda x, w, i: torch.isin(w, w[0]),
            "bitwise": lambda x, w, i: [w ^ 5, w | 3],
            "ne": lambda x, w, i: x != 0,
            "index_copy": lambda x, w, i: torch.index_copy(x, 0, i, x[:2]),
            "repeat": lambda x, w, i: x.repeat(2, 1),
            "any": lambda x, w, i: torch.any(w > 3),
        },
        [x, whole, index],
        atol=1e-2,  # sums of 192 numbers
    )


def test_o3_what_fails_on_torch_spyre() -> None:
    (padded, deep) = on_card((5, 100, 150), (2, 3, 4, 5, 70))
    check({"mean": lambda x: x.mean(dim=2)}, [padded])
    check(
        {
            "sum": lambda x: x.sum(),
            "std": lambda x: x.std(),
            "var": lambda x: x.var((1, 4)),
            "prod": lambda x: (x.abs() * 0.1 + 0.95)[0].prod(),
            "logsumexp": lambda x: torch.logsumexp(x, (0, 1, 2, 3, 4)),
            "any": lambda x: (x > 3).any(),
            "all": lambda x: (x > -9).all(),
        },
        [deep],
        rtol=4e-3,
        atol=0.05,  # the sum of 8,400 numbers
    )


@pytest.mark.parametrize("k", [1, 2, 3, 4, 8])
def test_o4_topk(k: int) -> None:
    x = torch.randperm(20 * 150).reshape(20, 150).half().div(2048).to("spyre")
    x = (x.float() + torch.arange(20 * 150, device="spyre").reshape(20, 150)).float()
    check(
        {
            "rows": lambda x: tuple(torch.topk(x, k, dim=0)),
            "stick": lambda x: tuple(torch.topk(x, k, dim=1)),
            "least": lambda x: tuple(torch.topk(x, k, dim=1, largest=False)),
        },
        [x],
    )


def test_o5_products_of_fp8_and_int8() -> None:
    generator = torch.Generator().manual_seed(5)
    a = torch.randint(-128, 128, (48, 192), generator=generator, dtype=torch.int8)
    b = torch.randint(-128, 128, (192, 80), generator=generator, dtype=torch.int8)
    with torch.spyre.fallback("error"):
        found = torch._int_mm(a.to("spyre"), b.to("spyre"))
    assert torch.equal(found.cpu(), (a.long() @ b.long()).int())

    x = torch.randn(32, 256, generator=generator).to(torch.float8_e4m3fn)
    w = torch.randn(96, 256, generator=generator).to(torch.float8_e4m3fn)
    scale_x, scale_w = torch.tensor(0.5), torch.tensor(0.25)
    expected = x.float() @ w.float().t() * (scale_x * scale_w)

    def scaled(x: Tensor, w: Tensor, scale_x: Tensor, scale_w: Tensor) -> Tensor:
        return torch._scaled_mm(x, w.t(), scale_x, scale_w, out_dtype=torch.float16)

    given = [t.to("spyre") for t in (x, w, scale_x, scale_w)]
    with torch.spyre.fallback("error"):
        eager, compiled = scaled(*given), torch.compile(scaled)(*given)
    for result in (eager, compiled):
        torch.testing.assert_close(result.cpu().float(), expected, rtol=2e-3, atol=2e-2)


def test_o6_attention_with_grouped_heads() -> None:
    heads, groups, rows, width = 32, 8, 512, 64
    q, k, v = on_card((1, heads, rows, width), (1, groups, rows, width), (1, groups, rows, width))

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    wide = [t.cpu().float() for t in (q, k, v)]
    expected = attention(*wide)
    with torch.spyre.fallback("error"):
        for run in (attention, torch.compile(attention)):
            assert (run(q, k, v).cpu().float() - expected).abs().max() <= 1e-2


def kernels_of(function: Function, *args: Tensor) -> list[KernelFacts]:
    """The kernels of the regions that run in a call; none of them waits for a copy."""
    account = torch.spyre.explain(function, *args)
    kernels = [kernel for region in account.regions for kernel in region.kernels]
    assert all(isinstance(kernel, KernelFacts) for kernel in kernels)
    return kernels


def test_r2_a_weight_is_turned_once() -> None:
    (x, w) = on_card((64, 128), (192, 128))
    product = torch.compile(lambda x, w: x @ w.t())
    product(x, w)
    (kernel,) = kernels_of(product, x, w)
    assert kernel.kind == "matmul"
    assert abs(kernel.bytes_read - 2 * (64 * 128 + 192 * 128)) <= 128


def test_r3_a_sparse_and_a_dense_operand() -> None:
    (a, b, c) = on_card((150, 70), (70, 150), (70,))
    check({"sum": lambda a, b, c: (a + b.t()).sum(0) + c}, [a, b, c], rtol=4e-3, atol=0.06)


# --- the scratchpad


LX_BYTES = 2_097_152


def test_s3_a_softmax_reads_and_writes_every_element_once() -> None:
    (x,) = on_card((4096, 2048))
    softmax = torch.compile(lambda x: torch.softmax(x, -1))
    softmax(x)
    (kernel,) = kernels_of(softmax, x)
    assert kernel.bytes_read + kernel.bytes_written == 33_554_432
    assert kernel.lx_bytes <= LX_BYTES


def test_s2_s4_s5_more_alive_than_the_scratchpad_holds() -> None:
    """A core's row of 500,000 elements, 1 MB, is needed three times and does not stay while the
    result is made beside it: it is loaded again, inside one launch."""
    (x,) = on_card((8, 500_000))

    def function(x: Tensor) -> Tensor:
        most = x.amax(1, keepdim=True)
        shifted = (x - most).exp()
        return shifted / shifted.sum(1, keepdim=True) * most

    compiled = torch.compile(function)
    found = compiled(x).cpu().float()
    wide = x.cpu().float()
    torch.testing.assert_close(found, function(wide), rtol=5e-3, atol=1e-6)
    account = torch.spyre.explain(compiled, x)
    (region,) = account.regions
    assert region.launches == 1
    read = sum(k.bytes_read for k in region.kernels if isinstance(k, KernelFacts))
    assert read >= 3 * x.numel() * 2
    for kernel in region.kernels:
        assert isinstance(kernel, KernelFacts)
        assert 0 < kernel.lx_bytes <= LX_BYTES
        assert kernel.lx and all(first % 128 == 0 for _, first, _, _ in kernel.lx)
