"""torch.spyre.hint: forced choices of the planner, planned once for each hint and thread."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from openspyre.compiler import cache
from openspyre.observe.explain import Explanation, explain

NATIVE = True


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OPENSPYRE_CACHE_DIR", "off")
    torch._dynamo.reset()
    cache.forget()
    torch.spyre.plans.release()
    yield
    torch._dynamo.reset()


def product() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, w = torch.randn(64, 256, generator=generator), torch.randn(256, 128, generator=generator)
    return x.half().to("spyre"), w.half().to("spyre")


def only_kernel(account: Explanation) -> dict[str, object]:
    (region,) = account.to_dict()["regions"]
    (kernel,) = region["kernels"]
    return kernel  # type: ignore[no-any-return]


def test_o8_tiles_of_a_hint_are_the_loops_of_the_program() -> None:
    x, w = product()
    compiled = torch.compile(torch.mm)
    plain = compiled(x, w).cpu()
    expected = (x.cpu().float() @ w.cpu().float()).half()
    torch.testing.assert_close(plain, expected, rtol=2e-3, atol=2e-2)
    with torch.spyre.hint(tile={"m": 8, "k": 64}, cores=1):
        tiled = compiled(x, w).cpu()
        kernel = only_kernel(explain(compiled, x, w))
    assert torch.equal(tiled, plain)
    # 64 x 256 in tiles of 8 x 64: loops of 8 and of 4.
    assert (kernel["tile"]["m0"], kernel["tile"]["k0"]) == (8, 64)  # type: ignore[index]
    assert kernel["cores"] == 1


def test_b131_a_hint_compiles_once_and_leaves_no_files() -> None:
    x, w = product()
    compiled = torch.compile(torch.mm)
    compiled(x, w)
    before = cache.counts()["compiled"], set(Path(tempfile.gettempdir()).iterdir())
    for _ in range(4):
        with torch.spyre.hint(split={"m": 2}):
            compiled(x, w)
            torch.mm(x, w)
    # Once for the region and once for the eager call, unless they are the same graph.
    assert cache.counts()["compiled"] - before[0] in (1, 2)
    made = set(Path(tempfile.gettempdir()).iterdir()) - before[1]
    assert not [path for path in made if "spyre" in path.name]
    after = cache.counts()["compiled"]
    compiled(x, w)  # the plan without a hint is still there
    assert cache.counts()["compiled"] == after


def test_hints_nest_and_belong_to_their_thread() -> None:
    from openspyre.device import hints

    seen: list[hints.Hint] = []
    with torch.spyre.hint(cores=4, tile={"m": 8}):
        with torch.spyre.hint(cores=2, fuse=False):
            inner = hints.current()
            thread = threading.Thread(target=lambda: seen.append(hints.current()))
            thread.start()
            thread.join()
        outer = hints.current()
    assert inner == hints.Hint(cores=2, tile=(("m", 8),), fuse=False)
    assert outer == hints.Hint(cores=4, tile=(("m", 8),))
    assert seen == [hints.Hint()] and hints.current() == hints.Hint()


def test_without_fusion_every_operation_is_a_kernel() -> None:
    x, _ = product()
    compiled = torch.compile(lambda t: (t * 2 + 1).relu())
    compiled(x)
    assert len(explain(compiled, x).to_dict()["regions"][0]["kernels"]) == 1
    with torch.spyre.hint(fuse=False):
        result = compiled(x)
        kernels = explain(compiled, x).to_dict()["regions"][0]["kernels"]
    assert len(kernels) >= 3  # one an operation, and the copy that lays the result
    torch.testing.assert_close(result.cpu(), (x.cpu() * 2 + 1).relu(), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    "hint,message",
    [
        ({"cores": 64}, "the card has 32"),
        ({"cores": True}, "positive integer"),
        ({"tile": {"z": 1}}, "there are m, n, k, rows"),
        ({"split": {"m": 0}}, "positive integer"),
        ({"split": 4}, "a mapping such as"),
        ({"planner": "theirs"}, "'own' and 'compat'"),
    ],
)
def test_a_hint_that_means_nothing_is_refused(hint: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message), torch.spyre.hint(**hint):
        pass
