"""Lets autograd's device threads finish before the interpreter ends. Imports no torch.

PyTorch answers `backward()` before its device thread has dropped the graph. When the script ends
there and then, the graph's Python objects die on that thread, which needs the GIL of an interpreter
that is shutting down: CPython then ends the thread inside C++ code, and the process aborts with
"terminate called without an active exception". So at exit the main thread, still with a whole
interpreter, waits until those threads sleep in their queues.
"""

from __future__ import annotations

import os
import time

THREAD_NAME = "pt_autograd"  # what PyTorch calls them: pt_autograd_0, pt_autograd_1, ...
_TASKS = "/proc/self/task"


def backward_threads() -> list[int]:
    """The native ids of autograd's device threads; empty where /proc does not tell."""
    found = []
    try:
        for task in os.listdir(_TASKS):
            with open(f"{_TASKS}/{task}/comm") as name:
                if name.read().startswith(THREAD_NAME):
                    found.append(int(task))
    except OSError:
        pass  # not Linux, or a thread has just ended: then there is nothing to wait for
    return found


def _state(task: int) -> tuple[bool, int]:
    """Whether the thread sleeps, and how often it has gone to sleep so far."""
    sleeps, times = True, 0
    try:
        with open(f"{_TASKS}/{task}/status") as status:
            for line in status:
                if line.startswith("State:"):
                    sleeps = line.split()[1] == "S"
                elif line.startswith("voluntary_ctxt_switches:"):
                    times = int(line.split()[1])
    except OSError:
        pass  # it has ended
    return sleeps, times


def wait_until_idle(limit: float = 2.0) -> bool:
    """Waits, at most `limit` seconds, until every device thread of autograd stays asleep.

    Idle means: asleep at two looks 2 ms apart (between them this thread gives up the GIL) without
    having woken. Returns whether that was reached. Costs nothing where no backward has run.
    """
    threads = backward_threads()
    if not threads:
        return True
    end = time.monotonic() + limit
    before: list[tuple[bool, int]] = []
    while time.monotonic() < end:
        now = [_state(task) for task in threads]
        if now == before and all(sleeps for sleeps, _ in now):
            return True
        before = now
        time.sleep(0.002)
    return False
