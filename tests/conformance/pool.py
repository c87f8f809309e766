"""Worker processes that may die: a crash, a hang or a glut costs one entry, not the sweep.

No torch here. Each worker is a spawned process with a pipe; the parent hands out one name at a
time and watches for an answer, an exit, the time limit and the memory limit.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from .runs import Report
from .worker import serve


@dataclass
class Limits:
    """Bounds of one worker. Memory is resident size: a card reserves addresses freely."""

    seconds: float = 120.0  # for one entry
    start_seconds: float = 120.0  # importing torch and opening the device
    memory_mb: int = 4096  # more is killed and recorded as "memory"
    recycle_mb: int = 1536  # more after an entry: the worker is replaced


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    log: Path
    name: str | None = None  # the entry in work; "" while starting
    since: float = field(default_factory=time.monotonic)


class Pool:
    """Runs entries of one run on `workers` processes."""

    def __init__(
        self,
        run: str,
        device: str,
        fallback: str,
        workers: int,
        limits: Limits | None = None,
        serve: Callable[[Connection, str, str, str, str], None] = serve,
    ) -> None:
        self.run, self.device, self.fallback = run, device, fallback
        self.workers = max(1, workers)
        self.limits = limits or Limits()
        self.serve = serve
        self._context = multiprocessing.get_context("spawn")

    def sweep(
        self,
        select: Callable[[list[str]], Iterable[str]],
        progress: Callable[[Report], None] = lambda report: None,
    ) -> list[Report]:
        """Examines the names that `select` picks from the database; one report each."""
        with tempfile.TemporaryDirectory(prefix="conformance-") as directory:
            workers: list[_Worker] = []
            try:
                first = self._start(Path(directory), 0)
                workers.append(first)
                names = self._ready(first)
                queue = list(select(names))[::-1]
                reports: list[Report] = []
                wanted = len(queue)
                started = 1
                while len(reports) < wanted:
                    while queue and len(workers) < self.workers:
                        workers.append(self._start(Path(directory), started))
                        started += 1
                    self._hand_out(workers, queue)
                    for report in self._collect(workers):
                        reports.append(report)
                        progress(report)
                return reports
            finally:
                for worker in workers:
                    self._stop(worker)

    def _start(self, directory: Path, number: int) -> _Worker:
        ours, theirs = self._context.Pipe()
        log = directory / f"worker-{number}.log"
        process = self._context.Process(
            target=self.serve,
            args=(theirs, self.run, self.device, self.fallback, str(log)),
            daemon=True,
        )
        process.start()
        theirs.close()
        return _Worker(process, ours, log, name="")

    def _ready(self, worker: _Worker) -> list[str]:
        """Waits for the first worker's list of names: without one there is nothing to sweep."""
        text = "took too long"
        try:
            if worker.connection.poll(self.limits.start_seconds):
                names: list[str] = worker.connection.recv()
                worker.name = None
                return names
        except EOFError:
            text = "died"
        raise RuntimeError(f"the first worker {text} while starting:\n{_tail(worker.log, 30)}")

    def _hand_out(self, workers: list[_Worker], queue: list[str]) -> None:
        for worker in workers:
            if worker.name is None and queue:
                worker.name, worker.since = queue.pop(), time.monotonic()
                try:
                    worker.connection.send(worker.name)
                except OSError:
                    queue.append(worker.name)  # it died between two entries: give it to another
                    worker.name = ""
                    worker.since = -1e9

    def _collect(self, workers: list[_Worker]) -> list[Report]:
        reports = []
        ready = wait([w.connection for w in workers if w.name is not None], timeout=0.25)
        for worker in list(workers):
            report: Report | None = None
            gone = False
            if worker.connection in ready:
                try:
                    answer = worker.connection.recv()
                    if isinstance(answer, Report):
                        report = answer
                    worker.name = None
                    gone = _resident_mb(worker.process.pid) > self.limits.recycle_mb
                except (EOFError, OSError):
                    worker.process.join(10)
                    report, gone = self._lost(worker, "crash", _cause(worker.process)), True
            elif worker.name is not None:
                limit = self.limits.seconds if worker.name else self.limits.start_seconds
                if time.monotonic() - worker.since > limit:
                    report, gone = (
                        self._lost(worker, "timeout", f"no answer in {limit:.0f} s"),
                        True,
                    )
                elif _resident_mb(worker.process.pid) > self.limits.memory_mb:
                    text = f"more than {self.limits.memory_mb} MB"
                    report, gone = self._lost(worker, "memory", text), True
            if report is not None:
                reports.append(report)
            if gone:
                self._stop(worker)
                workers.remove(worker)
        return reports

    @staticmethod
    def _lost(worker: _Worker, status: str, text: str) -> Report | None:
        if not worker.name:
            raise RuntimeError(f"a worker was lost while starting: {text}\n{_tail(worker.log, 30)}")
        seconds = time.monotonic() - worker.since
        where = _tail(worker.log, 8)
        return Report(worker.name, status, seconds=seconds, failures=(f"{text}\n{where}",))

    @staticmethod
    def _stop(worker: _Worker) -> None:
        worker.connection.close()
        if worker.process.is_alive() and worker.name is not None:
            worker.process.kill()
        worker.process.join(20)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join(20)


def _cause(process: BaseProcess) -> str:
    code = process.exitcode
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exited with {code}"


def _tail(log: Path, lines: int) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[:lines])
    except OSError:
        return ""


def _resident_mb(pid: int | None) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
