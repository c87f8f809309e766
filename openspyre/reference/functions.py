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
    return np.asarray(_C._sfu_apply(op, "f", flat), dtype=np.float32).reshape(shape)
