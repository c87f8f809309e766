"""torch.compile on the device: capture, regions, caches, autograd, nothing patched.

Ids I1..I7 of the compiler's fact sheet stand in the names.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

DEVICE = "spyre"
NATIVE = True


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def on_device(function: Callable[..., Any], *args: Tensor, **options: Any) -> Any:
    """The compiled function on the device, its results on the CPU."""
    moved = [a.to(DEVICE) for a in args]
    result = torch.compile(function, **options)(*moved)
    return torch.utils._pytree.tree_map(lambda t: t.cpu() if isinstance(t, Tensor) else t, result)


def close(found: Tensor, wanted: Tensor, tolerance: float = 2e-3) -> None:
    torch.testing.assert_close(
        found.float(), wanted.float(), rtol=tolerance, atol=tolerance, check_dtype=False
    )


def regions_of(function: Callable[..., Any], *args: Tensor) -> list[str]:
    """The operations of the generated wrapper that are calls."""
    from torch._inductor.utils import run_and_get_code

    moved = [a.to(DEVICE) for a in args]
    _, code = run_and_get_code(torch.compile(function), *moved)
    lines = [line.strip() for line in "\n".join(code).splitlines()]
    return [line for line in lines if line.startswith("buf") and "torch.ops." in line]


def test_i1_no_function_of_torch_is_replaced() -> None:
    script = """
        import torch
        import torch._inductor.compile_fx as c, torch._inductor.graph as g, torch._inductor.ir as ir
        import torch._dynamo.guards as guards
        def ids():
            return [id(c.compile_fx), id(g.GraphLowering._update_scheduler),
                    id(ir.Loops.has_large_inner_fn), id(torch.Tensor.to), id(torch.empty),
                    id(torch.nn.Module.to), id(guards.GuardBuilder.TENSOR_MATCH)]
        before = ids()
        x = torch.ones(8, 64, device="spyre")
        assert torch.compile(lambda a: a + 1)(x).cpu().eq(2).all()
        assert ids() == before
        print("same")
    """
    assert _script(script).strip().endswith("same")


def test_i2_a_region_is_one_launch_and_nothing_else() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(torch.softmax(torch.nn.functional.silu(x), -1) @ w)

    lines = regions_of(f, torch.randn(32, 128), torch.randn(128, 64))
    assert len(lines) == 1 and "openspyre.region" in lines[0]
    x, w = torch.randn(32, 128), torch.randn(128, 64)
    close(on_device(f, x, w), f(x, w), 1e-5)


def test_i3_code_for_the_cpu_is_the_same_before_and_after() -> None:
    script = """
        import torch
        from torch._inductor.utils import run_and_get_code
        torch._inductor.config.force_disable_caches = True
        parts = torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32)
        model = torch.nn.Sequential(*parts)
        x = torch.randn(4, 16)
        def code():
            torch._dynamo.reset()
            return run_and_get_code(torch.compile(model), x)[1]
        before = code()
        y = torch.compile(lambda a: torch.nonzero(a))(torch.ones(4, device="spyre"))
        after = code()
        def strip(text):
            lines = text[0].splitlines()
            return [l for l in lines if "/tmp" not in l and "AOT ID" not in l]
        assert strip(before) == strip(after)
        print("same")
    """
    assert _script(script).strip().endswith("same")


def test_i4_a_second_process_compiles_no_program(tmp_path: Path) -> None:
    script = """
        import torch
        from openspyre.compiler import cache
        f = torch.compile(lambda a, b: torch.relu(a @ b))
        print(f(torch.ones(32, 64, device="spyre"), torch.ones(64, 64, device="spyre")).cpu()[0, 0])
        print("compiled", cache.counts()["compiled"])
    """
    env = {
        "OPENSPYRE_CACHE_DIR": str(tmp_path / "a"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "b"),
    }
    first, second = _script(script, env), _script(script, env)
    assert "64." in first and "64." in second
    assert "compiled 0" not in first
    assert "compiled 0" in second


def test_i5_another_layout_is_no_recompilation() -> None:
    from openspyre.layout import SpyreTensorLayout

    counter = CompileCounterWithBackend("inductor")
    x = torch.randint(-4, 5, (64, 128)).float()
    there = x.to(DEVICE)
    turned = torch.spyre.to_layout(
        there,
        SpyreTensorLayout.with_order((64, 128), (1, 0), torch.spyre.layout_of(there).format),
    )
    f = torch.compile(lambda a: a * 2 + 1, backend=counter)
    for tensor in (there, turned):
        assert torch.equal(f(tensor).cpu(), x * 2 + 1)
    assert counter.frame_count == 1


def test_i6_a_dynamic_batch_compiles_once() -> None:
    counter = CompileCounterWithBackend("inductor")
    f = torch.compile(lambda a, w: torch.relu(a @ w), backend=counter)
    w = torch.randint(-2, 3, (64, 96)).float()
    there = w.to(DEVICE)
    for batch in (2, 3, 16, 31, 32, 64, 65, 128, 300, 512):
        x = torch.randint(-2, 3, (batch, 64)).float()
        given = x.to(DEVICE)
        torch._dynamo.mark_dynamic(given, 0, min=2, max=512)
        assert torch.equal(f(given, there).cpu(), torch.relu(x @ w)), batch
    assert counter.frame_count == 1


def test_i7_an_operation_without_a_lowering_in_the_middle() -> None:
    def f(x: Tensor) -> Tensor:
        y = torch.relu(x) + 1
        z = torch.linalg.matrix_exp(y * 0.01)
        return torch.softmax(z * 2, -1)

    x = torch.rand(4, 8, 8)
    close(on_device(f, x), f(x), 1e-4)


def test_forward_and_backward_of_a_small_model() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8)
    )
    import copy

    twin = copy.deepcopy(model).to(DEVICE)
    x = torch.randn(16, 32)
    torch.nn.functional.mse_loss(model(x), torch.zeros(16, 8)).backward()
    loss = torch.compile(lambda m, a: torch.nn.functional.mse_loss(m(a), torch.zeros_like(m(a))))
    loss(twin, x.to(DEVICE)).backward()
    for (name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_views_as_inputs_and_outputs_and_mutation() -> None:
    def f(x: Tensor, cache: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        cache.index_copy_(0, at, x[:, ::2])
        cache.add_(1)
        return x.t(), (x * 2).view(2, -1, 8).transpose(0, 1)

    x, cache, at = torch.arange(64.0).view(4, 16), torch.zeros(6, 8), torch.tensor([5, 0, 2, 3])
    wanted = f(x, cache_cpu := cache.clone(), at)
    there, there_cache = x.to(DEVICE), cache.to(DEVICE)
    found = torch.compile(f)(there, there_cache, at.to(DEVICE))
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a.cpu(), b) and a.stride() == b.stride()
    assert torch.equal(there_cache.cpu(), cache_cpu)
    assert found[0].untyped_storage().data_ptr() == there.untyped_storage().data_ptr()


def test_nothing_of_inductor_is_imported_before_the_first_compilation() -> None:
    script = """
        import sys, torch
        x = torch.ones(4, 64, device="spyre")
        y = (x + x).sum().item()
        assert not any(m.startswith("torch._inductor") for m in sys.modules), "imported"
        print("clean")
    """
    assert _script(script).strip().endswith("clean")


@pytest.mark.parametrize(
    "options", [{"fullgraph": True}, {"mode": "reduce-overhead"}, {"dynamic": True}]
)
def test_options_of_torch_compile(options: dict[str, Any]) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, x.shape[-1:]) * 3

    x = torch.randn(7, 50)
    close(on_device(f, x, **options), f(x), 1e-5)


def test_random_numbers_are_drawn_on_the_card_and_repeat() -> None:
    f = torch.compile(lambda x: torch.nn.functional.dropout(x, 0.25, True))
    x = torch.ones(256, 64, device=DEVICE)
    torch.manual_seed(3)
    a, b = f(x).cpu(), f(x).cpu()
    torch.manual_seed(3)
    assert torch.equal(f(x).cpu(), a)
    assert not torch.equal(a, b)
    assert abs(float((a == 0).float().mean()) - 0.25) < 0.02
    assert torch.equal(a[a != 0].unique(), torch.tensor([1 / 0.75]))


def _script(text: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_why_a_region_is_planned_again_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    compiled = torch.compile(lambda t: t * 2 + 1, dynamic=True)
    with caplog.at_level("INFO", logger="openspyre.plans"):
        for rows in (5, 9):
            compiled(torch.ones(rows, 70).to("spyre"))
    told = [record.getMessage() for record in caplog.records]
    assert any("for the first time" in text for text in told)
    assert any("planned again" in text and "shape torch.Size([5, 70])" in text for text in told)
