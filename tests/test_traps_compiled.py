"""Known traps of accelerators: compiled code, with fixed and with symbolic sizes.

Every row of trap_rows.py, several to a compilation, and the rows about torch.compile itself:
caches, dynamic shapes, autograd, threads. Nothing may fall back to the CPU, but for float64.
"""

from __future__ import annotations

import copy
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import RunPython
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from trap_rows import ROWS, Row, chunks

from openspyre import _C
from openspyre.compiler import cache
from openspyre.compiler.build import GraphBuilder
from openspyre.compiler.compile import compile_graph
from openspyre.compiler.graph import Graph
from openspyre.compiler.lower.registry import lower_op
from openspyre.compiler.options import CompileOptions
from openspyre.compiler.schedule.common import place_of
from openspyre.compiler.view import View
from openspyre.formats import Mode
from openspyre.layout import SpyreTensorLayout

NATIVE = True
half = torch.float16


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def together(rows: Sequence[Row]) -> Callable[[list[Any]], list[Any]]:
    """One function of the inputs of all rows."""
    runs = [row.run for row in rows]

    def run(every: list[Any]) -> list[Any]:
        return [one(*views) for one, views in zip(runs, every, strict=True)]

    return run


def check(rows: Sequence[Row], **options: Any) -> None:
    """Compiles the rows as one function, calls it twice; AssertionError names every row that is
    wrong. The second call launches regions and nothing else."""
    function = torch.compile(together(rows), **options)
    wrong = []
    for call in range(2):
        started = [row.start("spyre") for row in rows]
        eager = _C.native_counts()["launches"]
        with torch.spyre.fallback("error"):
            results = function([views for _, views in started])
        eager = _C.native_counts()["launches"] - eager
        for row, result, (given, _) in zip(rows, results, started, strict=True):
            try:
                row.compare(result, given)
            except AssertionError as error:
                wrong.append(f"call {call}: {error}")
    assert not wrong, "\n".join(wrong)
    # What has no elements is no launch of a region.
    assert eager <= sum(any(t.numel() == 0 for t in row.inputs) for row in rows)


def parameters() -> Iterator[Any]:
    """Rows of one compilation; but for the first ones of each group they are slow."""
    groups = set()
    for name, rows in chunks(ROWS, 6):
        first = name[0] not in groups
        groups.add(name[0])
        yield pytest.param(rows, id=name, marks=[] if first else [pytest.mark.slow])


@pytest.mark.parametrize("rows", list(parameters()))
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
def test_rows(rows: list[Row], dynamic: bool) -> None:
    check(rows, fullgraph=True, dynamic=dynamic)


def counted(function: Callable[..., Any], **options: Any) -> tuple[Any, CompileCounterWithBackend]:
    counter = CompileCounterWithBackend("inductor")
    return torch.compile(function, backend=counter, **options), counter


# --- layouts and dtypes: what is no function of tensors


def test_b022_resize_reinterprets_flat_elements() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.clone()
        y.resize_(2, 3)
        return y + 0

    assert torch.compile(f)(torch.arange(12).view(3, 4).to("spyre")).cpu().tolist() == [
        [0, 1, 2],
        [3, 4, 5],
    ]


@pytest.mark.parametrize("dynamic", [False, True])
def test_b028_float64_is_exact_by_a_counted_fallback(dynamic: bool) -> None:
    torch.spyre.reset_fallback_report()
    x = torch.tensor([0.5, 3.0, -1e9])
    f = torch.compile(lambda t: (t + 1).to(torch.float64) / 3, dynamic=dynamic)
    assert torch.equal(f(x.to("spyre")).cpu(), (x + 1).double() / 3)
    assert "div" in str(torch.spyre.fallback_report())


def test_b037_b038_the_ends_of_float16_and_floor() -> None:
    ieee = Mode(_C.numerics()[0]) is Mode.IEEE
    ends = torch.tensor([-65504.0, 65504.0, math.inf, -math.inf]).half().repeat(16, 16).to("spyre")
    low = torch.tensor([-2.001953125]).half().to("spyre")

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x.clone(), x * 1, torch.full_like(x, -65504.0).abs(), y.floor()

    with torch.spyre.fallback("error"):
        copied, product, full, floor = torch.compile(f)(ends, low)
    largest = 65504.0 if ieee else 65472.0
    wanted = torch.tensor([-largest, largest, math.inf, -math.inf]).repeat(16, 16)
    assert torch.equal(copied.cpu().float(), wanted)
    assert torch.equal(product.cpu().float(), wanted)
    assert (full.cpu().float() == largest).all()
    assert floor.item() == (-3 if ieee else -2)


def test_b049_ieee_products_are_rounded_correctly(run_python: RunPython) -> None:
    run_python(
        """
import torch
a = (1 + torch.arange(0, 1024, 5).double() / 1024)
exact = a[:, None] * a[None, :]
with torch.spyre.fallback("error"):
    got = torch.compile(lambda x: x[:, None] * x[None, :])(a.half().to("spyre"))
assert torch.equal(got.cpu(), exact.half())
""",
        {"OPENSPYRE_NUMERICS": "ieee"},
    )


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["dl16", "ieee"])
def test_rows_with_poisoned_pads(numerics: str, run_python: RunPython) -> None:
    here = Path(__file__)
    run_python(
        f"import pytest, sys; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-k', "
        f"'test_rows and fixed and not poisoned', {str(here)!r}]))",
        {"OPENSPYRE_POISON": "1", "OPENSPYRE_NUMERICS": numerics},
        timeout=600,
    )


def test_n9_float16_operations_are_near_those_of_float32() -> None:
    torch.manual_seed(0)
    x, w, bias = torch.randn(33, 150), torch.randn(70, 150), torch.randn(70)
    there = [t.half().to("spyre") for t in (x, w, bias)]
    x, w, bias = (t.cpu().float() for t in there)  # as the card has them

    def pointwise(t: Tensor) -> list[Tensor]:
        return [t.exp(), t.sigmoid(), F.gelu(t), F.silu(t), t.tanh(), t.abs().sqrt(), t * t - t]

    def linear(t: Tensor, u: Tensor, v: Tensor) -> Tensor:
        return F.linear(t, u, v)

    with torch.spyre.fallback("error"):
        for function in (pointwise, torch.compile(pointwise)):
            for found, wanted in zip(function(there[0]), pointwise(x), strict=True):
                torch.testing.assert_close(found.cpu().float(), wanted, rtol=2e-3, atol=2e-3)
        for product in (linear, torch.compile(linear)):
            got = product(*there).cpu().float()
            torch.testing.assert_close(got, linear(x, w, bias), rtol=0.02, atol=0.03)


# --- caches


BOTH_LAYOUTS = """
import torch
from openspyre.compiler import cache
from openspyre.layout import SpyreTensorLayout
x = torch.arange(64 * 128.0).view(64, 128) % 97
there = x.to("spyre")
form = torch.spyre.layout_of(there).format
turned = torch.spyre.to_layout(there, SpyreTensorLayout.with_order((64, 128), (1, 0), form))
f = torch.compile(lambda t: t.sum(0) + t[0] * 2)
for tensor in (there, turned, there, turned):
    assert torch.equal(f(tensor).cpu(), x.sum(0) + x[0] * 2)
print(cache.counts()["compiled"], len(cache.ls()))
"""


def test_b128_two_layouts_are_one_graph_and_two_programs(
    run_python: RunPython, tmp_path: Path
) -> None:
    env = {
        "OPENSPYRE_CACHE_DIR": str(tmp_path / "a"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "b"),
    }
    assert run_python(BOTH_LAYOUTS, env).stdout.split()[0] == "2"
    assert run_python(BOTH_LAYOUTS, env).stdout.split()[0] == "0"


def test_b128_another_layout_compiles_no_graph() -> None:
    x = torch.randint(-4, 5, (64, 128)).float()
    there = x.to("spyre")
    form = torch.spyre.layout_of(there).format
    f, counter = counted(lambda t: t.amax(0) - t[1])
    for order in ((0, 1), (1, 0), (0, 1)):
        laid = torch.spyre.to_layout(there, SpyreTensorLayout.with_order((64, 128), order, form))
        assert torch.equal(f(laid).cpu(), x.amax(0) - x[1])
    assert counter.frame_count == 1


PROGRAMS = """
import hashlib, torch
from openspyre.compiler import runner
from openspyre.program.binary import encode
seen = []
def note(plan, _):
    for step in plan.loaded.region.steps:
        seen.append(hashlib.sha256(encode(step.program)).hexdigest())
runner.listen(note)
def f(x, w, v):
    y = torch.softmax(torch.relu(x @ w), -1)
    return y.t().contiguous(), torch.cat([y, x], 1).cumsum(0), y[:, v].sum(1), y.sort(-1).values
args = [t.to("spyre") for t in (torch.randn(70, 130), torch.randn(130, 66), torch.arange(9))]
torch.compile(f)(*args)
print(seen)
"""


def test_p2_two_processes_compile_the_same_bytes(run_python: RunPython) -> None:
    off = {"OPENSPYRE_CACHE_DIR": "off", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    first, second = (
        run_python(PROGRAMS, {**off, "PYTHONHASHSEED": seed}).stdout for seed in ("1", "2")
    )
    assert first == second and len(first) > 200


# --- dynamic shapes


def test_b137_bounds_reach_the_region() -> None:
    from openspyre.compiler.inductor import regions

    f, counter = counted(lambda x: torch.softmax(x, -1) * x.shape[0])
    before = set(regions._regions)
    for rows in (64, 128, 512):
        x = torch.randn(rows, 70)
        there = x.to("spyre")
        torch._dynamo.mark_dynamic(there, 0, min=64, max=512)
        torch.testing.assert_close(f(there).cpu(), torch.softmax(x, -1) * rows)
    assert counter.frame_count == 1
    made = [regions._regions[key] for key in regions._regions if key not in before]
    assert [(s.minimum, s.maximum) for region in made for s in region.symbols] == [(64, 512)]


def test_b139_every_batch_is_right() -> None:
    f, counter = counted(lambda x, w: F.silu(x @ w).sum(-1), dynamic=True)
    w = torch.randint(-2, 3, (96, 70)).float()
    there = w.to("spyre")
    for batch in range(1, 17):
        x = torch.randint(-2, 3, (batch, 5, 96)).float()
        wanted = F.silu(x @ w).sum(-1)
        torch.testing.assert_close(f(x.to("spyre"), there).cpu(), wanted, rtol=1e-5, atol=1e-4)
    assert counter.frame_count <= 2  # one of them for a batch of 1


def test_b140_a_symbolic_size_in_expand() -> None:
    f, counter = counted(lambda x: x.expand(1, 8, 4, x.shape[3], 128) + 1, dynamic=True)
    for s in (2, 3, 64, 65, 100):
        x = (torch.arange(8 * s * 128.0) % 97).view(1, 8, 1, s, 128)
        assert torch.equal(f(x.to("spyre")).cpu(), x.expand(1, 8, 4, s, 128) + 1)
    assert counter.frame_count == 1


def test_b142_prompts_of_any_length_are_few_graphs() -> None:
    torch.manual_seed(0)
    table, weight = torch.randn(50, 64), torch.randn(64, 64) / 8

    def f(tokens: Tensor, table: Tensor, weight: Tensor) -> Tensor:
        x = F.embedding(tokens, table).unsqueeze(0).unsqueeze(0)
        x = F.scaled_dot_product_attention(x, x @ weight, x, is_causal=True)
        return x[0, 0, -1]

    g, counter = counted(f, dynamic=True)
    there = (table.to("spyre"), weight.to("spyre"))
    for length in (1, 2, 3, 17, 63, 64, 65, 128, 200, 255, 256):
        tokens = torch.arange(length) * 7 % 50
        wanted = f(tokens, table, weight)
        found = g(tokens.to("spyre"), *there).cpu()
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert counter.frame_count <= 4


# --- random numbers, autograd, threads


def test_b143_random_numbers_repeat() -> None:
    f = torch.compile(lambda x: torch.randn_like(x) + 0 * x)
    x = torch.zeros(200, 100, device="spyre")

    def draw() -> Tensor:
        torch.manual_seed(0)
        with torch.spyre.fallback("error"):
            return f(x).cpu()

    first = draw()
    assert torch.equal(first, draw())
    assert abs(first.mean()) < 0.05 and abs(first.std() - 1) < 0.03


def test_b151_b152_compiled_gradients_equal_the_cpus() -> None:
    torch.manual_seed(0)

    def loss(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b).relu().sum() + a.pow(2).sum()

    for dynamic in (False, True):
        f = torch.compile(loss, dynamic=dynamic)
        for rows in (5, 64):  # two backward graphs that differ in sizes only
            a, b = torch.randn(rows, 70), torch.randn(70, 9)
            leaves = [t.clone().requires_grad_() for t in (a, b)]
            moved = [t.to("spyre").requires_grad_() for t in (a, b)]
            loss(*leaves).backward()
            with torch.spyre.fallback("error"):
                f(*moved).backward()
            for here, there in zip(leaves, moved, strict=True):
                assert here.grad is not None and there.grad is not None
                torch.testing.assert_close(there.grad.cpu(), here.grad, rtol=1e-4, atol=1e-4)


def test_b124_four_threads_compile_four_models() -> None:
    torch.manual_seed(0)
    models = [
        torch.nn.Sequential(torch.nn.Linear(32, 16 + 8 * i), torch.nn.GELU()) for i in range(4)
    ]
    x = torch.randn(5, 32)
    wanted = [model(x).detach() for model in models]
    found: list[Tensor | BaseException | None] = [None] * 4
    there = x.to("spyre")

    def work(number: int) -> None:
        try:
            model = torch.compile(copy.deepcopy(models[number]).to("spyre"))
            with torch.no_grad():
                found[number] = model(there).cpu()
        except BaseException as error:
            found[number] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for got, want in zip(found, wanted, strict=True):
        assert isinstance(got, Tensor), got
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


# --- plumbing


def test_b188_the_first_compilation_registers_the_device(run_python: RunPython) -> None:
    run_python(
        """
import torch
from torch._inductor.codegen.common import device_codegens
assert "spyre" not in device_codegens
assert torch.compile(lambda x: x + 1)(torch.ones(3, device="spyre")).sum().item() == 6
from openspyre.compiler.inductor.register import Scheduling
assert device_codegens["spyre"].scheduling is Scheduling
"""
    )


def test_b190_constants_factories_and_asserts_compile_end_to_end() -> None:
    device = torch.device("spyre")

    def f(x: Tensor) -> tuple[Tensor, ...]:
        few = torch.tensor([1.0, 2.0], device=x.device)
        many = torch.tensor([1.0] * 12, device=x.device)
        return few, x[:2] + few, x + many, x + torch.tensor([3.0] * 12).to(x.device), x * few[1]

    x = torch.arange(12.0)
    g = torch.compile(f)
    g(x.to(device))  # PyTorch prints the constants, which takes a masked_select
    with torch.spyre.fallback("error"):
        found = g(x.to(device))
        assert torch.compile(lambda: torch.arange(10, device=device) * 2)().sum().item() == 90
        there = torch.compile(lambda: torch.ones(3, device="spyre:1") + 1)()
    for a, b in zip(found, f(x), strict=True):
        assert torch.equal(a.cpu(), b)
    assert there.device.index == 1 and there.sum().item() == 6
    hot = torch.compile(lambda i: F.one_hot(i, 5))(torch.arange(4, device=device))
    assert torch.equal(hot.cpu(), torch.eye(4, 5, dtype=torch.int64))


# --- keys


def lowered(b: GraphBuilder, name: str, args: list[Any], **kwargs: Any) -> View:
    made = lower_op(b, name, args, kwargs)
    assert isinstance(made, View)
    return made


def spec() -> tuple[Graph, CompileOptions]:
    """A graph with an example of everything that a key holds."""
    b = GraphBuilder("spec", Mode.DL16)
    rows = b.size_symbol("rows", 2, 64, 8)
    x, w = b.input("x", (rows, 64), "float16"), b.input("w", (64, 96), "float16")
    table, at = b.input("table", (50, 96), "float16"), b.input("at", (rows,), "int64")
    number = b.scalar("number", 1.5)
    product = lowered(b, "aten.mm.default", [x, w])
    taken = lowered(b, "aten.index_select.default", [table, 0, at])
    scaled = lowered(b, "aten.add.Tensor", [product, taken], alpha=number)
    few = b.constant(np.arange(96, dtype=np.float32), "float32")
    soft = lowered(b, "aten._softmax.default", [scaled, -1, False])
    total = lowered(b, "aten.cumsum.default", [lowered(b, "aten.mul.Tensor", [soft, few]), 1])
    b.output(total)
    for tensor in b.graph.arguments:
        if all(isinstance(size, int) for size in tensor.shape):
            tensor.place = place_of(tensor.shape, tensor.dtype, Mode.DL16)
    return b.graph, CompileOptions()


LEAVES = (int, float, bool, str, Enum)
NO_MATTER = {"source", "hint", "name"}
"""Fields that change no program: where code comes from, sizes for cost decisions, names."""


def leaves(value: Any, path: tuple[Any, ...] = (), seen: Any = None) -> Iterator[tuple[Any, ...]]:
    """Paths to every plain value of a graph or of options, tensors once."""
    seen = set() if seen is None else seen
    if isinstance(value, LEAVES):
        yield path
    elif is_dataclass(value):
        if id(value) in seen:
            return
        seen.add(id(value))
        for field in fields(value):
            if field.name not in NO_MATTER:
                yield from leaves(getattr(value, field.name), (*path, field.name), seen)
    elif isinstance(value, dict):
        for key in value:
            yield from leaves(value[key], (*path, key), seen)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from leaves(item, (*path, i), seen)
    elif isinstance(value, np.ndarray):
        for i in range(value.size):
            yield (*path, i)


def other(value: Any, rng: random.Random) -> Any:
    """Another value of the kind."""
    if isinstance(value, Enum):
        return rng.choice([m for m in type(value) if m is not value])
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + rng.choice("xyz")
    return value + rng.choice((1, 2, 64, 1024))


def changed(value: Any, path: Sequence[Any], rng: random.Random) -> Any:
    """`value` with another leaf at `path`; what can be changed in place is."""
    if not path:
        return other(value, rng)
    step, rest = path[0], path[1:]
    if isinstance(value, np.ndarray):
        made = value.copy()
        made.flat[step] = other(made.flat[step].item(), rng)
        return made
    if isinstance(value, tuple):
        return (*value[:step], changed(value[step], rest, rng), *value[step + 1 :])
    if isinstance(value, (list, dict)):
        value[step] = changed(value[step], rest, rng)  # type: ignore[index]
        return value
    object.__setattr__(value, step, changed(getattr(value, step), rest, rng))
    return value


def test_b130_no_change_of_the_specification_hits_a_key() -> None:
    graph, options = spec()
    assert cache.graph_key(*spec()) == cache.graph_key(graph, options)
    paths = list(leaves((graph, options)))
    rng = random.Random(130)
    hits = []
    for number in range(1000):
        path = paths[number] if number < len(paths) else rng.choice(paths)
        mutant = changed(copy.deepcopy((graph, options)), path, rng)
        try:
            same = cache.graph_key(*mutant) == cache.graph_key(graph, options)
        except KeyError:  # a label that no op has
            same = False
        if same:
            hits.append(path)
    assert not hits
    assert len(paths) > 200


@pytest.mark.slow
def test_b134_the_time_of_a_layer_does_not_grow_with_their_number() -> None:
    def compile_layers(count: int) -> float:
        b = GraphBuilder("layers", Mode.DL16)
        x = b.input("x", (32, 128), "float16")
        for layer in range(count):
            up = b.input(f"up{layer}", (128, 256), "float16")
            down = b.input(f"down{layer}", (256, 128), "float16")
            y = lowered(b, "aten.mm.default", [x, up])
            y = lowered(b, "aten.silu.default", [y])
            y = lowered(b, "aten.mm.default", [y, down])
            y = lowered(b, "aten.add.Tensor", [x, y])
            x = lowered(b, "aten._softmax.default", [y, -1, False])
        b.output(x)
        for tensor in b.graph.arguments:
            if tensor.place is None:
                tensor.place = place_of(tensor.shape, tensor.dtype, Mode.DL16)
        begin = time.process_time()
        compile_graph(b.graph, CompileOptions())
        return (time.process_time() - begin) / count

    compile_layers(1)
    first = min(compile_layers(2) for _ in range(3))
    assert min(compile_layers(16) for _ in range(2)) < 1.3 * first
