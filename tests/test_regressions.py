"""Defects that were found by attacking the device, named by the behaviour that holds now."""

# torch's stubs know neither the generated names nor what a test has made sure of.
# mypy: disable-error-code="call-overload,unreachable"

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch
from torch.utils.checkpoint import checkpoint

D = "spyre:0"


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.float16])
def test_a_tensor_whose_storage_shrank_is_refused_and_the_stream_goes_on(
    dtype: torch.dtype,
) -> None:
    other = torch.arange(4.0, device=D)
    shrunk = torch.arange(64.0, device=D)
    view = shrunk.view(dtype)  # int32 and float16 take the way through the host image
    shrunk.untyped_storage().resize_(16)
    host = torch.ones(view.shape, dtype=dtype)
    for use in (
        lambda: view.cpu(),
        lambda: view.clone(),
        lambda: view.copy_(host),
        lambda: view.copy_(host, non_blocking=True),
        lambda: view.fill_(1),
        lambda: view + 1,
        lambda: torch.empty_like(host, device=D).copy_(view),
    ):
        with pytest.raises(RuntimeError, match="reaches outside its storage of 16 bytes"):
            use()
    torch.spyre.synchronize()
    assert torch.equal(shrunk[:4].cpu(), torch.arange(4.0))
    assert torch.equal((other + 1).cpu(), torch.arange(1.0, 5.0))


def test_bytes_behind_the_last_whole_element_are_read_and_written_through_every_view() -> None:
    def run(device: str) -> list[torch.Tensor]:
        storage = torch.UntypedStorage(10, device=device)
        as_bytes = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
        as_bytes.copy_(torch.arange(1, 11, dtype=torch.uint8))
        floats = torch.empty(0, dtype=torch.float32, device=device).set_(storage, 0, (2,))
        floats[0] = 1.0  # pins the storage to float32: two elements and two bytes
        shorts = torch.empty(0, dtype=torch.int16, device=device).set_(storage)
        seen = [shorts.clone(), as_bytes.clone()]
        as_bytes[9] = 77
        shorts[0] = 5
        return [tensor.cpu() for tensor in (*seen, as_bytes, shorts, floats)]

    for ours, theirs in zip(run(D), run("cpu"), strict=True):
        assert torch.equal(ours, theirs)


def test_two_threads_in_one_raw_storage_do_not_deadlock_over_the_gil() -> None:
    code = """
        import threading, time, torch
        from openspyre.device import synthetic
        storage = torch.UntypedStorage(400, device="spyre")
        tensor = torch.empty(0, device="spyre").set_(storage, 0, (100,))
        seen = []
        def read():  # holds the GIL while it waits for the storage
            time.sleep(0.5)
            seen.append(storage[0])
        thread = threading.Thread(target=read)
        synthetic.submit("h2d", 1, hold_seconds=1.5)
        thread.start()
        tensor.fill_(1)  # pins the storage, which waits for the stream
        thread.join()
        assert seen == [0] and tensor.cpu().sum().item() == 100
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], timeout=60, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_recomputes_dropout_with_the_same_mask(reentrant: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).to(D)
    x = torch.randn(8, 4, device=D, requires_grad=True)

    def gradient(checkpointed: bool) -> torch.Tensor:
        x.grad = None
        torch.manual_seed(3)
        y = checkpoint(model, x, use_reentrant=reentrant) if checkpointed else model(x)
        y.sum().backward()
        assert x.grad is not None
        return x.grad.cpu()

    assert torch.equal(gradient(True), gradient(False))
