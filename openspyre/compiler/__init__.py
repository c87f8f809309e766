"""The compiler: PyTorch operations in, Programs out.

    lower/ (ATen -> Graph) -> passes/ -> tiles.py (Kernels) -> schedule/ (Programs) -> launch.py

Eager operations and `torch.compile` take the same way (docs/architecture.md). Only `inductor/` may
import torch._inductor or torch._dynamo; `lower/`, `bind.py`, `launch.py` import torch; the rest
does not.
"""
