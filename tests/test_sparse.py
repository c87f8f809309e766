"""Sparse COO tensors of the device against the CPU's; compressed layouts are refused."""

# torch's stubs know neither the generated names nor what a test has made sure of.
# mypy: disable-error-code="arg-type,call-arg"

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

SPYRE = torch.device("spyre")


def coo(
    sizes: tuple[int, ...] = (5, 7, 3),
    sparse_dim: int = 2,
    nnz: int = 11,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Tensor:
    """An uncoalesced sparse tensor of the CPU (repeated indices are likely)."""
    draw = torch.Generator().manual_seed(seed)
    indices = torch.stack([torch.randint(n, (nnz,), generator=draw) for n in sizes[:sparse_dim]])
    values = torch.randint(-8, 9, (nnz, *sizes[sparse_dim:]), generator=draw).to(dtype)
    return torch.sparse_coo_tensor(indices, values, sizes, check_invariants=True)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    """Same entries in the same order, same metadata; `actual` on the device."""
    assert actual.device.type == "spyre"
    assert actual.layout == expected.layout
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    if expected.layout == torch.sparse_coo:
        assert actual.is_coalesced() == expected.is_coalesced()
        assert (actual.sparse_dim(), actual.dense_dim()) == (
            expected.sparse_dim(),
            expected.dense_dim(),
        )
        assert actual._nnz() == expected._nnz()
        assert actual._indices().device.type == actual._values().device.type == "spyre"
        assert torch.equal(actual._indices().cpu(), expected._indices())
        torch.testing.assert_close(actual._values().cpu(), expected._values())
    else:
        torch.testing.assert_close(actual.cpu(), expected)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.float64]
)
def test_a_sparse_tensor_goes_to_the_card_and_comes_back(dtype: torch.dtype) -> None:
    host = coo(dtype=dtype)
    there = host.to(SPYRE)
    assert_same(there, host)
    back = there.cpu()
    assert back.device.type == "cpu" and not back.is_coalesced()
    assert torch.equal(back._indices(), host._indices())
    assert torch.equal(back._values(), host._values())
    assert_same(there.to(torch.float32), host.to(torch.float32))


def test_it_is_made_from_tensors_of_the_card() -> None:
    host = coo()
    indices, values = host._indices().to(SPYRE), host._values().to(SPYRE)
    made = torch.sparse_coo_tensor(indices, values, host.shape, check_invariants=True)
    assert_same(made, host)
    assert_same(
        torch.sparse_coo_tensor(indices, values),
        torch.sparse_coo_tensor(host._indices(), host._values()),
    )
    empty = torch.sparse_coo_tensor(size=(3, 4), device=SPYRE)
    assert_same(empty, torch.sparse_coo_tensor(size=(3, 4)))
    assert_same(torch.empty_like(made), torch.empty_like(host))
    assert_same(torch.zeros_like(made), torch.zeros_like(host))
    with pytest.raises(RuntimeError, match="size is inconsistent"):
        torch.sparse_coo_tensor(indices, values, (2, 2, 3), check_invariants=True)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    data=st.data(),
)
def test_dense_to_sparse_coalesce_and_back(sizes: list[int], data: st.DataObject) -> None:
    sparse_dim = data.draw(st.integers(1, len(sizes)))
    nnz = data.draw(st.sampled_from((0, 1, 3, 17)))
    host = coo(tuple(sizes), sparse_dim, nnz, seed=data.draw(st.integers(0, 99)))
    there = host.to(SPYRE)
    assert_same(there.coalesce(), host.coalesce())
    assert_same(there.to_dense(), host.to_dense())
    dense = host.to_dense()
    assert_same(dense.to(SPYRE).to_sparse(sparse_dim), dense.to_sparse(sparse_dim))


OPERATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "add": lambda s, t, d: s + t,
    "add to dense": lambda s, t, d: d + s,
    "sub": lambda s, t, d: s - 2 * t,
    "mul": lambda s, t, d: s.coalesce() * t.coalesce(),
    "mul by dense": lambda s, t, d: s.coalesce() * d,
    "mul by number": lambda s, t, d: s * 3,
    "div by number": lambda s, t, d: s / 4,
    "neg": lambda s, t, d: -s,
    "abs": lambda s, t, d: s.coalesce().abs(),
    "nan_to_num": lambda s, t, d: s.coalesce().nan_to_num(),
    "sqrt": lambda s, t, d: (s * s).coalesce().sqrt(),
    "pow": lambda s, t, d: s.coalesce().pow(2),
    "sum": lambda s, t, d: s.sum(),
    "sum over dim": lambda s, t, d: torch.sparse.sum(s, 0),
    "norm": lambda s, t, d: s.coalesce().norm(),
    "mask": lambda s, t, d: d.sparse_mask(s.coalesce()),
    "transpose": lambda s, t, d: s.transpose(0, 1),
    "permute": lambda s, t, d: s.permute(1, 0, 2),
    "unsqueeze": lambda s, t, d: s.unsqueeze(0),
    "select": lambda s, t, d: s.coalesce().select(0, 1),
    "index_select": lambda s, t, d: s.index_select(0, torch.tensor([1, 3], device=s.device)),
    "cat": lambda s, t, d: torch.cat((s, t), 0),
    "clone": lambda s, t, d: s.clone(),
    "detach": lambda s, t, d: s.detach(),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_on_sparse_tensors_is_the_cpus(name: str) -> None:
    dense = torch.arange(105.0).reshape(5, 7, 3)
    left, right = coo(seed=1), coo(seed=2)
    expected = OPERATIONS[name](left, right, dense)
    actual = OPERATIONS[name](left.to(SPYRE), right.to(SPYRE), dense.to(SPYRE))
    assert_same(actual, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_products_with_dense_matrices(dtype: torch.dtype) -> None:
    """16-bit products are computed in float32, as dense ones are: small integers are exact."""
    host = coo((6, 5), 2, 9)
    dense = torch.arange(-10.0, 10.0).reshape(5, 4)
    there, right = host.to(SPYRE).to(dtype), dense.to(SPYRE).to(dtype)
    expected = host @ dense
    result = torch.sparse.mm(there, right)
    assert result.dtype == dtype and result.device.type == "spyre"
    assert torch.equal(result.cpu().float(), expected)
    assert torch.equal((there @ right[:, 0]).cpu().float(), expected[:, 0])


def test_written_tensors_change_in_place() -> None:
    host = coo().coalesce()
    there = host.to(SPYRE)
    for write in (lambda t: t.neg_(), lambda t: t.div_(2), lambda t: t.mul_(3)):
        kept, seen = host._values(), there._values()
        for tensor in (host, there):
            write(tensor)
        assert_same(there, host)
        # Whoever holds the values sees the write, or not (mul_ makes new ones), as on the CPU.
        assert torch.equal(seen.cpu(), kept)
    for tensor, other in ((host, coo(seed=5)), (there, coo(seed=5).to(SPYRE))):
        tensor.add_(other, alpha=2)
    assert_same(there, host)
    assert_same(there.coalesce(), host.coalesce())
    dense, far = torch.ones(5, 7, 3), torch.ones(5, 7, 3, device=SPYRE)
    dense.add_(host)
    far.add_(there)
    assert_same(far, dense)
    there.copy_(coo(seed=6))  # from the host
    assert_same(there, coo(seed=6))
    there.zero_()
    assert_same(there, host.zero_())
    there.resize_as_(coo((2, 3, 4)).to(SPYRE))
    assert there.shape == (2, 3, 4)


def test_a_failed_call_leaves_the_tensor_as_it_was() -> None:
    there = coo().to(SPYRE)
    with pytest.raises(RuntimeError):
        there.add_(coo((4, 4, 4)).to(SPYRE))
    assert_same(there, coo())


def test_mixing_devices_is_refused() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        coo().to(SPYRE) + coo()


def test_gradients_pass_through_to_dense_and_sparse_products() -> None:
    def gradients(device: torch.device) -> list[Tensor]:
        values = torch.arange(9.0, device=device, requires_grad=True)
        indices = coo((6, 5), 2, 9)._indices().to(device)
        matrix = torch.sparse_coo_tensor(indices, values, (6, 5), check_invariants=True)
        dense = torch.arange(20.0, device=device).reshape(5, 4).requires_grad_()
        (torch.sparse.mm(matrix, dense).sum() + (matrix.to_dense() ** 2).sum()).backward()
        return [t.grad for t in (values, dense) if t.grad is not None]

    expected, actual = gradients(torch.device("cpu")), gradients(SPYRE)
    assert len(expected) == len(actual) == 2
    for mine, theirs in zip(actual, expected, strict=True):
        assert_same(mine, theirs)


@pytest.mark.parametrize(
    "optimizer", [torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad]
)
def test_a_sparse_embedding_learns_as_on_the_cpu(optimizer: type) -> None:
    torch.manual_seed(3)
    here = nn.Embedding(20, 6, padding_idx=2, sparse=True)
    there = copy.deepcopy(here).to(SPYRE)
    steps = [optimizer(m.parameters(), lr=0.1) for m in (here, there)]
    for _ in range(4):
        tokens = torch.randint(20, (3, 5))
        for model, step in zip((here, there), steps, strict=True):
            step.zero_grad()
            (model(tokens.to(model.weight.device)) ** 3).sum().backward()
            step.step()
        assert here.weight.grad is not None and there.weight.grad is not None
        assert_same(there.weight.grad, here.weight.grad)
    torch.testing.assert_close(there.weight.detach().cpu(), here.weight.detach())


def test_embedding_bag_has_sparse_gradients() -> None:
    here = nn.EmbeddingBag(10, 4, mode="sum", sparse=True)
    there = copy.deepcopy(here).to(SPYRE)
    tokens = torch.tensor([[1, 2, 2], [4, 5, 1]])
    here(tokens).sum().backward()
    there(tokens.to(SPYRE)).sum().backward()
    assert here.weight.grad is not None and there.weight.grad is not None
    assert_same(there.weight.grad.coalesce(), here.weight.grad.coalesce())


def test_print_pickle_and_deepcopy() -> None:
    host = coo()
    there = host.to(SPYRE)
    assert "layout=torch.sparse_coo" in repr(there) and "spyre:0" in repr(there)
    assert_same(copy.deepcopy(there), host)
    file = io.BytesIO()
    torch.save(there, file)
    file.seek(0)
    assert_same(torch.load(file), host)


def test_work_on_sparse_tensors_is_counted_as_fallback() -> None:
    there = coo().to(SPYRE)
    with torch.spyre.fallback("error"), pytest.raises(NotImplementedError, match="aten::add"):
        there + there
    before = torch.spyre.fallback_report().calls
    there + there
    assert torch.spyre.fallback_report().calls == before + 1


@pytest.mark.parametrize("layout", ["csr", "csc", "bsr", "bsc"])
def test_compressed_layouts_are_refused_by_name(layout: str) -> None:
    extra = ((2, 2),) if layout.startswith("b") else ()
    with pytest.raises(NotImplementedError, match=f"(?i)sparse_?{layout}"):
        getattr(torch.eye(4, device=SPYRE), f"to_sparse_{layout}")(*extra)
    host = getattr(torch.eye(4), f"to_sparse_{layout}")(*extra)
    with pytest.raises((NotImplementedError, RuntimeError), match=r"(?i)compressed|sparse"):
        host.to(SPYRE) @ torch.eye(4, device=SPYRE)
