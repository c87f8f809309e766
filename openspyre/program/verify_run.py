"""The verifier's abstract run: every task of every core, once, on shadow memories.

Rules 2 to 9 for the program under given symbols. The order of the run is one of those that the
tokens allow; because which task precedes which is the same in all of them (`tokens.py`), a run
without a fault means that no run has one.
Part of the verifier; may import numpy, imports no torch.
"""

from __future__ import annotations

import numpy as np

from openspyre.formats import STICK_BYTES
from openspyre.program.concrete import Instance, ProgramError, Task
from openspyre.program.expr import ExprError
from openspyre.program.model import Compute, Load, Ring, Store
from openspyre.program.tokens import TASK_LIMIT, Interleaving, Step, TokenError, TokenFault
from openspyre.program.verify_access import check_box
from openspyre.program.verify_compute import Computes
from openspyre.program.verify_cover import CoverError
from openspyre.program.verify_error import VerifyError
from openspyre.program.verify_numbers import check, unsafe_expressions
from openspyre.program.verify_state import Counts, State
from openspyre.program.verify_transfers import Transfers


class Run:
    """One verification of one Instance."""

    def __init__(self, instance: Instance, limit: int = TASK_LIMIT) -> None:
        self.state = State(instance)
        self.unsafe = unsafe_expressions(instance)
        self.transfers = Transfers(self.state, self.unsafe)
        self.computes = Computes(self.state)
        self.interleaving = Interleaving(instance, limit=limit)
        instance.steps_left = limit

    def execute(self) -> Counts:
        """Raises VerifyError at the first task that breaks a rule."""
        try:
            for step in self.interleaving:
                self._step(step)
            self.interleaving.check_balanced()
        except TokenError as error:
            rule = 6 if error.kind is not TokenFault.LIMIT else 1
            raise VerifyError(rule, "tokens", str(error)) from None
        except VerifyError:
            raise
        except (ProgramError, ExprError, ZeroDivisionError) as error:
            raise VerifyError(1, "program", str(error)) from None
        self.state.check_outputs()
        self.transfers.check_scattered()
        self.state.counts.tasks = self.interleaving.tasks
        self.state.counts.lx_bytes = [
            int(np.count_nonzero(shadow.kind)) * STICK_BYTES for shadow in self.state.lx
        ]
        return self.state.counts

    def _step(self, step: Step) -> None:
        task = step.task
        try:
            if not isinstance(task.instruction, Ring):  # whose variable has no value yet
                check(self.unsafe.get(id(task.instruction), ()), task.values)
            over = task.over
        except (ExprError, ZeroDivisionError) as error:
            raise VerifyError(1, task, str(error)) from None
        if step.group and step.task is step.group[0]:
            self.transfers.check_group(step)
        if not check_box(task, over):
            return
        self.state.rules.check_starts(task, over)
        try:
            self._work(step, task)
        except CoverError as error:
            raise VerifyError(8, task, str(error)) from None
        except VerifyError:
            raise
        except (ExprError, ZeroDivisionError, OverflowError) as error:
            raise VerifyError(1, task, str(error)) from None
        except ProgramError as error:
            raise VerifyError(2, task, str(error)) from None

    def _work(self, step: Step, task: Task) -> None:
        instruction = task.instruction
        if isinstance(instruction, Load):
            self.transfers.load(step, instruction)
        elif isinstance(instruction, Store):
            self.transfers.store(step, instruction)
        elif isinstance(instruction, Ring):
            self.transfers.ring(step, instruction)
        else:
            assert isinstance(instruction, Compute)
            self.computes.compute(step, instruction)
