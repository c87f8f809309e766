"""Kernels: groups of ops that become one program phase, and what the planner decided for them.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from openspyre.compiler.graph import Op, Role, Tensor

KINDS = ("rows", "matmul", "indexed", "copy")


@dataclass(eq=False)
class Kernel:
    """`ops` in order of execution; tensors that only they use live in LX. `kind` says which
    scheduler takes it. `arguments`: what it reads and writes in LPDDR5, reads first; filled by
    `fuse`. The rest is the planner's, for listings and for explain."""

    kind: str
    ops: list[Op]
    arguments: list[Tensor] = field(default_factory=list)
    written: frozenset[str] = frozenset()  # names of the arguments it writes
    splits: dict[str, int] = field(default_factory=dict)  # parts of a label over cores
    tile: dict[str, int] = field(default_factory=dict)  # sizes of a label in a tile
    cores: int = 0
    lx_bytes: int = 0
    modelled_ns: float = 0.0

    @property
    def name(self) -> str:
        """For programs and listings: the operations it comes from."""
        names: list[str] = []
        for op in self.ops:
            short = op.name.split(".")[1] if op.name.count(".") else op.name or op.kind.value
            if short not in names:
                names.append(short)
        return "_".join(names[:4]) or "kernel"

    @property
    def inner(self) -> list[Tensor]:
        """The tensors that live in LX only."""
        given = {id(t) for t in self.arguments}
        found: list[Tensor] = []
        for op in self.ops:
            for access in op.outputs:
                if id(access.tensor) not in given and access.tensor not in found:
                    found.append(access.tensor)
        return found

    def __str__(self) -> str:
        ops = "\n    ".join(map(str, self.ops))
        args = ", ".join(t.name + ("!" if t.name in self.written else "") for t in self.arguments)
        plan = f" cores {self.cores} splits {self.splits} tile {self.tile}" if self.cores else ""
        return f"kernel {self.name} ({self.kind}; {args}){plan}\n    {ops}"


def users_of(ops: list[Op]) -> dict[int, set[int]]:
    """The ids of the ops that touch a memory, by the id of its tensor."""
    found: dict[int, set[int]] = {}
    for op in ops:
        for access in (*op.inputs, *op.outputs):
            found.setdefault(id(access.tensor.memory), set()).add(id(op))
    return found


def outside(ops: list[Op], users: Mapping[int, Set[int]]) -> tuple[list[Tensor], frozenset[str]]:
    """(arguments, names of those written) of a group of ops of a graph with these `users_of`."""
    inside = {id(op) for op in ops}
    written: list[Tensor] = []
    for op in ops:
        for access in op.outputs:
            if access.tensor not in written:
                written.append(access.tensor)
    read: list[Tensor] = []
    for op in ops:
        for access in op.inputs:
            if access.tensor not in written and access.tensor not in read:
                read.append(access.tensor)
    kept = []
    for tensor in written:
        used = not users[id(tensor.memory)] <= inside
        if used or tensor.role in (Role.OUTPUT, Role.INOUT, Role.INPUT):
            kept.append(tensor)
    return [*read, *kept], frozenset(t.name for t in kept)
