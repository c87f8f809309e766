"""Kernels: groups of ops that become one program phase, and what the planner decided for them.

Imports no torch.
"""

from __future__ import annotations

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


def outside(ops: list[Op], graph_ops: list[Op]) -> tuple[list[Tensor], frozenset[str]]:
    """(arguments, names of those written) of a group of ops of a graph."""
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
        used = any(
            any(a.tensor.memory is tensor.memory for a in (*op.inputs, *op.outputs))
            for op in graph_ops
            if id(op) not in inside
        )
        if used or tensor.role in (Role.OUTPUT, Role.INOUT, Role.INPUT):
            kept.append(tensor)
    return [*read, *kept], frozenset(t.name for t in kept)
