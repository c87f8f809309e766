"""Stands in for `worker.serve` in the harness's own tests: it does what the entry's name says.

No torch here, so that a worker is small and the memory limit of the test can be too.
"""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

from .runs import Report


def serve(connection: Connection, run: str, device: str, fallback: str, log: str) -> None:
    connection.send(["good 1", "crash", "good 2", "hang", "glut", "good 3"])
    while (name := connection.recv()) is not None:
        if name == "crash":
            Path(log).write_text("the last words\n")
            os.kill(os.getpid(), signal.SIGSEGV)
        if name == "hang":
            time.sleep(600)
        if name == "glut":
            glut = b"x" * (600 << 20)
            time.sleep(600)
            del glut
        connection.send(Report(name, "native", checks=1))
