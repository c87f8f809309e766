"""One OptimizerInfo against the CPU: a few steps on a small problem, results and state compared."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .compare import FLOAT32, Mismatch, Tolerance, compare_values
from .operators import Recorder
from .placement import seed
from .runs import Run
from .target import Target

STEPS = 4
# Muon orthogonalises in bfloat16 whatever the parameters are: 7 fraction bits, which the card
# rounds to DLFloat16's 9. The update is as coarse as its learning rate times that.
BFLOAT16 = Tolerance(2.0**-7, 2.0**-9)


def examine_optimizer(info: Any, run: Run, target: Target) -> Recorder:
    """Every configuration of `info`, plain and, where there is one, with its foreach form."""
    record = Recorder()
    dtype = getattr(torch, run.dtype)
    for what, kwargs in _configurations(info):
        problem = _Problem(info, dtype)
        try:
            expected = problem.solve(kwargs, torch.device("cpu"))
        except Exception:
            continue  # what the CPU cannot run is no reference

        def solve(
            problem: _Problem = problem,
            kwargs: dict[str, Any] = kwargs,
            expected: list[Tensor] = expected,
        ) -> None:
            actual = problem.solve(kwargs, target.device)
            target.synchronize()
            if len(actual) != len(expected):
                raise Mismatch(f"{len(actual)} tensors of state, wanted {len(expected)}")
            for number, (got, want) in enumerate(zip(actual, expected, strict=True)):
                if number < problem.count and got.device.type != target.device.type:
                    raise Mismatch(f"parameter {number} is on {got.device}")
                # Rounding differences of one step are carried through the next ones.
                tolerance = BFLOAT16 if info.name == "Muon" else FLOAT32.scaled(4)
                compare_values(got, want, tolerance, f"tensor {number}")

        record.check(what, solve)
    return record


def _configurations(info: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for case in info.optim_inputs_func(device="cpu"):
        forms: list[dict[str, Any]] = [{}]
        if "foreach" in info.supported_impls and "foreach" not in case.kwargs:
            forms = [{"foreach": False}, {"foreach": True}]
        for form in forms:
            yield f"{case.desc} {form or ''}".strip(), {**case.kwargs, **form}


class _Problem:
    """Least squares over a few parameters; the same start on every device."""

    def __init__(self, info: Any, dtype: torch.dtype) -> None:
        self.info = info
        seed(99)
        shapes = [(5, 3), (4, 4)] if info.name == "Muon" else [(5, 3), (7,), (2, 3, 4)]
        self.start = [torch.randn(s, dtype=dtype) for s in shapes]
        self.goal = [torch.randn(s, dtype=dtype) for s in shapes]
        self.count = len(shapes)

    def solve(self, kwargs: dict[str, Any], device: torch.device) -> list[Tensor]:
        """Parameters, then the optimizer's state tensors, after `STEPS` steps on `device`."""
        params = [nn.Parameter(t.clone().to(device)) for t in self.start]
        goals = [t.to(device) for t in self.goal]
        optimizer = self.info.optim_cls(params, **copy.deepcopy(kwargs))

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = sum(((p - g) ** 2).sum() for p, g in zip(params, goals, strict=True))
            assert isinstance(loss, Tensor)
            loss.backward()
            if self.info.only_supports_sparse_grads:
                for p in params:
                    assert p.grad is not None
                    p.grad = p.grad.to_sparse()
            return loss

        for step in range(STEPS):
            if self.info.step_requires_closure:
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
            if step == STEPS // 2:  # a checkpoint in the middle changes nothing
                saved = copy.deepcopy(optimizer.state_dict())
                optimizer = self.info.optim_cls(params, **copy.deepcopy(kwargs))
                optimizer.load_state_dict(saved)
        state = tree_leaves([optimizer.state.get(p, {}) for p in params])
        return [p.detach() for p in params] + [
            t.detach() for t in state if isinstance(t, Tensor) and t.is_floating_point()
        ]
