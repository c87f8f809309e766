"""A compilation to look at: graphs after each pass, checked and written to files on request.

`OPENSPYRE_VERIFY=1` holds the graph to its invariants after every pass; `OPENSPYRE_DUMP=directory`
writes <directory>/<name>-<number>/<step>-<pass>.txt, and the programs beside them. Imports no
torch.
"""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from openspyre import env
from openspyre.compiler.check import check, legal
from openspyre.compiler.errors import CompileError
from openspyre.compiler.graph import Graph
from openspyre.compiler.options import CompileOptions
from openspyre.program.model import Program
from openspyre.program.text import to_text

_numbers = itertools.count()


@dataclass
class Watch:
    """One compilation. `place`: where its files go, if anywhere."""

    verify: bool
    place: Path | None
    step: int = 0

    @staticmethod
    def now(graph: Graph) -> Watch:
        """As the environment says; notes the graph as it comes."""
        directory = env.read("OPENSPYRE_DUMP", os.environ)
        place = None
        if directory:
            name = re.sub(r"[^\w.-]", "_", graph.name)[:60]
            place = Path(directory) / f"{os.getpid()}-{next(_numbers):04}-{name}"
            place.mkdir(parents=True, exist_ok=True)
        watch = Watch(bool(env.read("OPENSPYRE_VERIFY", os.environ)), place)
        watch._write("given.txt", graph)
        return watch

    def after(self, name: str, graph: Graph, options: CompileOptions) -> None:
        """A pass has run. Raises CompileError when it broke an invariant."""
        self._write(f"{name}.txt", graph)
        if self.verify:
            try:
                check(graph, options)
                if name == "collapse":  # the last: what the schedulers may rely on
                    legal(graph)
            except CompileError as error:
                raise CompileError(f"after the pass {name}: {error}") from error

    def made(self, program: Program) -> None:
        """A program has been made."""
        self._write(f"program-{program.name}.txt", program)

    def _write(self, name: str, what: Graph | Program) -> None:
        if self.place is not None:
            text = to_text(what) if isinstance(what, Program) else str(what)
            (self.place / f"{self.step:02}-{name}").write_text(text + "\n")
            self.step += 1
