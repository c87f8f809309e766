"""Operations: the policy and the account of the CPU fallback. Imports torch only through _C."""

from __future__ import annotations

import atexit

from openspyre.ops.backward_threads import wait_until_idle

atexit.register(wait_until_idle)
