"""The runtime's Python side: SpyreCode directories on disk, job plans, recordings of launches.

The names of directories stand here (`spyrecode`; see docs/spyrecode.md), free of torch and devices.
`plan` and `recording` drive a card and import torch: `torch.spyre.prepare`, `launch` and `record`
import them at the first use.
"""

from __future__ import annotations

from openspyre.runtime.spyrecode import Kernel, SpyreCodeError, read_spyrecode, write_spyrecode

__all__ = ["Kernel", "SpyreCodeError", "read_spyrecode", "write_spyrecode"]
