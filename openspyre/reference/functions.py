"""The functions whose bits are a table of polynomials: exp, tanh, erf, sin, pow and their like.

Their law is `csrc/machine/kernels/sfu_math.h`, for every executor: a second implementation could
only be close, and close is not equal. So this is the one place where the reference executor calls
the extension, one operation on one array at a time. Everything else it computes by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openspyre.reference.numbers import Array

_NAMES = """
    rsqrt exp exp2 expm1 log log2 log10 log1p sigmoid tanh erf erfc erfinv gelu gelu_tanh silu
    softplus mish sin cos tan asin acos atan sinh cosh asinh acosh atanh pow atan2
"""
FUNCTIONS = frozenset(_NAMES.split())
"""Body operations that are computed here."""


def apply(op: str, args: Sequence[Array]) -> Array:
    """`op` of FUNCTIONS on float32 arrays of one shape. ImportError without the extension."""
    import torch  # noqa: F401  the extension needs it loaded, and autoload loads the extension

    from openspyre import _C

    shape = np.broadcast_shapes(*(a.shape for a in args))
    flat = [np.ascontiguousarray(np.broadcast_to(a, shape)).ravel() for a in args]
    apply_law = getattr(_C, "_sfu_apply", None)
    if apply_law is None:
        out = _stand_in(op, flat)
    else:
        out = apply_law(op, "f", flat)
    return np.asarray(out, dtype=np.float32).reshape(shape)


def _stand_in(op: str, args: Sequence[Array]) -> Array:
    """Close values, until the extension has the law."""
    import torch
    import torch.nn.functional as functional

    tensors = [torch.from_numpy(a.copy()) for a in args]
    if op == "gelu_tanh":
        return functional.gelu(tensors[0], approximate="tanh").numpy()
    function = getattr(torch, op, None) or getattr(functional, op)
    return np.asarray(function(*tensors).numpy())
