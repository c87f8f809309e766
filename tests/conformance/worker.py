"""What runs inside a worker process: one entry of one database at a time.

The parent imports this module only to name `serve`; torch is imported when that runs.
"""

# torch's stubs know neither the generated names nor what a test has made sure of.
# mypy: disable-error-code="misc"

from __future__ import annotations

import faulthandler
import os
import sys
import time
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from .runs import EVERY_RUN, Report, Run

if TYPE_CHECKING:
    from .operators import Recorder


def entries(run: Run) -> list[tuple[str, Any]]:
    """Names and entries of the run's database, in its own order. Names are unique."""
    import torch

    if run.database == "operators":
        from torch.testing._internal.common_methods_invocations import op_db

        dtype = getattr(torch, run.dtype)
        found = [(op.full_name, op) for op in op_db if dtype in op.dtypes]
    elif run.database == "modules":
        from torch.testing._internal.common_modules import module_db

        found = [(info.name, info) for info in module_db]
    else:
        from torch.testing._internal.common_optimizers import optim_db

        found = [(info.name, info) for info in optim_db]
    counts: dict[str, int] = {}
    unique = []
    for name, entry in found:
        counts[name] = counts.get(name, 0) + 1
        unique.append((name if counts[name] == 1 else f"{name}#{counts[name]}", entry))
    return unique


def serve(connection: Connection, run_name: str, device: str, fallback: str, log: str) -> None:
    """Answers requests (a name; None ends) with a `Report`, until the other side closes."""
    # Native messages and the stack of a crash go to the log, which the parent reads.
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 2)
    os.dup2(descriptor, 1)
    faulthandler.enable()
    warnings.simplefilter("ignore")

    import torch

    torch.set_num_threads(1)
    from .target import Target

    run = EVERY_RUN[run_name]
    target = Target(device, run, fallback)
    table = dict(entries(run))
    connection.send(list(table))
    while True:
        try:
            name = connection.recv()
        except EOFError:
            return
        if name is None:
            return
        report = _examine(name, table[name], run, target)
        if not report.passed:
            target.recover()  # the next entry must not meet a failed stream
        connection.send(report)


def _examine(name: str, entry: Any, run: Run, target: Any) -> Report:
    started = time.perf_counter()
    before = target.fallback_calls()
    if run.native:
        from .native import examine

        return examine(name, entry, run, target)
    try:
        record = _record(entry, run, target)
    except Exception as error:  # a fault of the harness or of the database, not of one check
        where = traceback.extract_tb(sys.exc_info()[2])[-1]
        text = f"outside a check: {type(error).__name__}: {error} ({where.name}:{where.lineno})"
        return Report(name, "fail", seconds=time.perf_counter() - started, failures=(text[:500],))
    calls = target.fallback_calls() - before
    if record.failed:
        status = "fail"
    elif record.checks == 0:
        status = "no reference"
    else:
        status = "fallback" if calls else "native"
    return Report(
        name,
        status,
        record.checks,
        calls,
        time.perf_counter() - started,
        tuple(record.failures),
    )


def _record(entry: Any, run: Run, target: Any) -> Recorder:
    from .modules import examine_module
    from .operators import Operator
    from .optimizers import examine_optimizer

    if run.database == "operators":
        return Operator(entry, run, target).examine()
    if run.database == "modules":
        return examine_module(entry, run, target)
    return examine_optimizer(entry, run, target)
