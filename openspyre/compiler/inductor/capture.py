"""The FX pass that turns the device's part of a post-grad graph into regions.

Runs as the device's custom pass at the end of Inductor's post-grad passes, on the functional ATen
graph. Nodes that have a lowering (openspyre/compiler/lower) are grouped into as few regions as
their dependencies on other nodes allow, usually one; each region becomes one call of
`openspyre::region`, which Inductor's wrapper makes like any operation. What has no lowering stays
where it is and is made a fallback of Inductor's for this device only.

May import torch._inductor; nothing outside this folder may.
"""

from __future__ import annotations

import operator
import os
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphModulePass
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._mode_utils import no_dispatch

from openspyre.compiler.inductor import fallbacks, regions
from openspyre.compiler.inductor.symbols import Symbols, Untranslatable
from openspyre.compiler.lower.registry import dtype_name, full_name, has_lowering
from openspyre.compiler.traced import Call, Result, SizeText, TensorFacts, TracedRegion

DEVICE = "spyre"
_STARTED = time.time_ns()

VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "_unsafe_view.default", "reshape.default", "permute.default", "t.default",
        "transpose.int", "expand.default", "squeeze.dim", "squeeze.dims", "squeeze.default",
        "unsqueeze.default", "select.int", "slice.Tensor", "alias.default", "detach.default",
        "as_strided.default", "diagonal.default", "unfold.default", "split.Tensor",
        "split_with_sizes.default", "unbind.int",
    )
)  # fmt: skip
"""Operations that move no element; a group of nothing else is left to Inductor."""


class RegionPass(CustomGraphModulePass):
    """See the module."""

    def __call__(self, gm: GraphModule) -> None:
        capture(gm)

    def uuid(self) -> Any:
        """Part of the key of Inductor's cache: what this pass gives follows from the compiler, and
        names regions that lie in our cache directory. Without one no other process finds them."""
        from openspyre.compiler.cache import compiler_version, root_directory

        place = root_directory() or f"process {os.getpid()} {_STARTED}"
        return f"openspyre-{compiler_version()}-{place}"


def capture(gm: GraphModule) -> list[TracedRegion]:
    """Replaces the device's nodes of `gm` by calls of regions; gives the regions."""
    strided_from_the_storage(gm)
    keep_views_outside(gm)
    show_constants_as_views(gm)
    made = []
    for number, nodes in enumerate(groups(gm)):
        if all(_is_view(node) for node in nodes):
            continue
        made.append(_replace(gm, nodes, number))
    for node in gm.graph.nodes:
        if node.op == "call_function" and _touches_device(node) and not _is_view(node):
            fallbacks.allow(node.target)
    gm.graph.lint()
    gm.recompile()
    return made


# --- which nodes


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a node's value."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)


def _touches_device(node: Node) -> bool:
    values = [node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)]
    return any(t.device.type == DEVICE for value in values for t in tensors_of(value))


def _is_view(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and full_name(node.target) in VIEWS


def _is_small_constant(node: Node) -> bool:
    """A number as a tensor: the usual way scalars enter a graph, on the CPU."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim() != 0:
        return False
    return node.target in (torch.ops.aten.full.default, torch.ops.aten.scalar_tensor.default)


def values_of(node: Node) -> list[Any] | None:
    """The numbers of a constant of the graph that Inductor would make a loop of: a region holds
    them instead. None for what is no such constant."""
    if node.op != "get_attr":
        return None
    value: Any = node.graph.owning_module
    for name in str(node.target).split("."):
        value = getattr(value, name, None)
    if not isinstance(value, torch.Tensor) or value.device.type != DEVICE:
        return None
    if value.dim() > 1 or not 0 < value.numel() <= 8 or value.dtype not in _CONSTANT:
        return None
    with no_dispatch():
        return list(value.cpu().reshape(-1).tolist())


_CONSTANT = frozenset(
    (
        torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.int16, torch.int32,
        torch.int64, torch.uint8, torch.bool,
    )
)  # fmt: skip


def supported(node: Node) -> bool:
    """Whether the node can be part of a region."""
    if node.op == "get_attr":
        return values_of(node) is not None
    if node.op != "call_function" or node.meta.get(_INDUCTORS):
        return False
    if node.target is operator.getitem:
        return _supported_source(node.args[0])
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    name = full_name(node.target)
    if name == "aten.copy_.default":
        dst = node.args[0]
        if not isinstance(dst, Node) or dst.op != "placeholder" or not _on_device(node):
            return False
        return not any(_empty(t) for t in used_results(node))
    if not has_lowering(name) or node.target._schema.is_mutable:
        return False
    if _is_small_constant(node) and not _on_device(node):
        return all(supported(user) for user in node.users)
    if not _on_device(node):
        return False
    outputs = used_results(node)
    if any(_empty(t) for t in outputs):
        return False
    for source in node.all_input_nodes:
        value = source.meta.get("val")
        if isinstance(value, torch.SymFloat | torch.SymBool):
            return False
        for tensor in tensors_of(value):
            if tensor.device.type != DEVICE and not (
                _is_small_constant(source) and has_lowering(full_name(source.target))  # type: ignore[arg-type]
            ):
                return False
            if _empty(tensor):
                return False
    try:
        for tensor in outputs:
            facts_of(tensor, Symbols())
    except Untranslatable:
        return False
    return regions.lowerable(node)


def _supported_source(source: Any) -> bool:
    return isinstance(source, Node) and supported(source)


def _on_device(node: Node) -> bool:
    outputs = used_results(node)
    return bool(outputs) and all(t.device.type == DEVICE for t in outputs)


def used_results(node: Node) -> list[torch.Tensor]:
    """The tensors that a node makes; of several only those that somebody picks (of attention's nine
    results the traces put some on no device at all)."""
    value = node.meta.get("val")
    if isinstance(value, list | tuple):
        picked = {u.args[1] for u in node.users if u.target is operator.getitem}
        value = [v for n, v in enumerate(value) if n in picked]
    return list(tensors_of(value))


def _empty(tensor: torch.Tensor) -> bool:
    return any(isinstance(size, int) and size == 0 for size in tensor.shape)


def strided_from_the_storage(gm: GraphModule) -> None:
    """as_strided counts in the storage of its operand, whatever view of it that is, and the
    lowering in the operand's elements. So it reads the tensor that the views show; where the
    elements of that one in order are not its storage, Inductor makes the view. A scatter it refuses
    by name then."""
    view = torch.ops.aten.as_strided.default
    for node in gm.graph.nodes:
        name = full_name(node.target) if isinstance(node.target, torch._ops.OpOverload) else ""
        if not name.startswith("aten.as_strided") or node.target._schema.is_mutable:
            continue
        at = 4 if "scatter" in name else 3
        args = [*node.args, None][: at + 1]
        source = args[0]
        offset = source.meta["val"].storage_offset() if args[at] is None else args[at]
        while node.target is view and source.op == "call_function" and _is_view(source):
            source = source.args[0]
        base = source.meta["val"]
        inner = _number_of(offset) - base.storage_offset()
        sizes, strides = ([_number_of(n) for n in arg] for arg in args[at - 2 : at])
        reach = inner + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        if not isinstance(inner, int) and at == 4 and _known_zero(base.storage_offset()):
            inner = offset  # a node
        elif isinstance(inner, torch.SymInt):
            inner = -1
        if (isinstance(inner, Node) or inner >= 0) and _in_order(base, reach, at == 4):
            node.args = (source, *args[1:at], inner)
            continue
        node.meta[_INDUCTORS] = True
        if not isinstance(offset, torch.SymInt):
            node.args = (source, *args[1:at], offset)


_INDUCTORS = "openspyre_inductors"
"""Marks a node that has a lowering, but not as it stands."""


def _known_zero(number: Any) -> bool:
    return statically_known_true(number == 0)


def _in_order(base: torch.Tensor, last: Any, scatter: bool) -> bool:
    """Whether the elements of `base`, in order, are its storage as far as its element `last`. For
    a scatter, which Inductor has no other way for, nothing may say that they are not."""
    count: Any = 1
    for size, stride in zip(reversed(base.shape), reversed(base.stride()), strict=True):
        if not (statically_known_true(size == 1) or statically_known_true(stride == count)):
            return False
        count = count * size
    if scatter:
        return not statically_known_true(last >= count)
    return statically_known_true(last < count)


def _number_of(value: Any) -> Any:
    """The number that stands for an argument: that of a node, or itself."""
    return value.meta["val"] if isinstance(value, Node) else value


def keep_views_outside(gm: GraphModule) -> None:
    """Outputs that are views of placeholders get a chain of view nodes of their own, which stays
    outside of regions: the caller gets a view, and nothing is copied."""
    output = next(node for node in reversed(gm.graph.nodes) if node.op == "output")
    copies: dict[Node, Node] = {}

    def root(node: Node) -> Node | None:
        while node.op == "call_function" and _is_view(node):
            source = node.args[0]
            if not isinstance(source, Node):
                return None
            node = source
        return node if node.op == "placeholder" else None

    def copied(node: Node) -> Node:
        if node.op == "placeholder":
            return node
        if node not in copies:
            source = copied(node.args[0])  # type: ignore[arg-type]
            with gm.graph.inserting_before(output):
                made = gm.graph.node_copy(node, lambda n: source if n is node.args[0] else n)
            made.meta["openspyre_outside"] = True
            copies[node] = made
        return copies[node]

    for node in list(output.all_input_nodes):
        if node.op == "call_function" and _is_view(node) and root(node) is not None:
            made = copied(node)
            output.replace_input_with(node, made)
    gm.graph.eliminate_dead_code()


def show_constants_as_views(gm: GraphModule) -> None:
    """Constants that regions do not hold are read through a view of all of them: Inductor shows
    operations a constant itself, not a fake tensor, and no operation takes both together."""
    for node in list(gm.graph.nodes):
        value = node.meta.get("val")
        if node.op != "get_attr" or not isinstance(value, torch.Tensor) or supported(node):
            continue
        if not any(_touches_device(user) for user in node.users) or not value.numel():
            continue
        users = [user for user in node.users if user.op != "output"]
        with gm.graph.inserting_after(node):
            view = gm.graph.call_function(
                torch.ops.aten.as_strided.default,
                (node, list(value.shape), list(value.stride())),
            )
        view.meta.update(node.meta)
        view.meta["openspyre_outside"] = True
        for user in users:
            user.replace_input_with(node, view)


def groups(gm: GraphModule) -> list[list[Node]]:
    """The regions: sets of supported nodes, in order, of which none depends on itself through a
    node outside. Writes to inputs come after every reader of the input. A view or a filled tensor
    that a later region uses is made again there: regions hand over what was computed, nothing else.
    """
    level: dict[Node, int] = {}
    good: dict[Node, bool] = {}
    writes: list[Node] = []
    for node in gm.graph.nodes:
        good[node] = not node.meta.get("openspyre_outside") and supported(node)
        # A node outside that needs a region's result begins the next level; what needs only
        # inputs can run before the first region.
        level[node] = max(
            (level[n] + (1 if good[n] and not good[node] else 0) for n in node.all_input_nodes),
            default=0,
        )
        if node.target is torch.ops.aten.copy_.default and good[node]:
            writes.append(node)
    for node in writes:
        level[node] = max(
            level[node],
            *(
                level[reader] + (0 if good[reader] else 1)
                for reader in readers(node.args[0])  # type: ignore[arg-type]
                if reader.op != "output"
            ),
        )
    _make_again(gm, level, good)
    found: dict[int, list[Node]] = {}
    for node in gm.graph.nodes:
        if good[node]:
            found.setdefault(level[node], []).append(node)
    return [found[key] for key in sorted(found)]


def readers(node: Node) -> Iterator[Node]:
    """The nodes that read a node's memory: its users and those of its views."""
    for user in node.users:
        if not user.meta.get("openspyre_outside"):
            yield user
            if _is_view(user):
                yield from readers(user)


_FILLED = ("aten.full.default", "aten.scalar_tensor.default", "prims.iota.default")


def _make_again(gm: GraphModule, level: dict[Node, int], good: dict[Node, bool]) -> None:
    """Gives every level copies of its own of the views and filled tensors that it uses."""
    for node in reversed(list(gm.graph.nodes)):
        if not good[node] or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if not _is_view(node) and full_name(node.target) not in _FILLED:
            continue
        copies: dict[int, Node] = {}
        for user in list(node.users):
            if not good[user] or level[user] == level[node]:
                continue
            copy = copies.get(level[user])
            if copy is None:
                with gm.graph.inserting_before(node):
                    copy = copies[level[user]] = gm.graph.node_copy(node)
                level[copy], good[copy] = level[user], True
            user.replace_input_with(node, copy)
        if copies and not node.users:
            gm.graph.erase_node(node)


# --- one region


def facts_of(tensor: torch.Tensor, symbols: Symbols) -> TensorFacts:
    """What a region needs to know of a tensor. Raises Untranslatable."""
    name = dtype_name(tensor.dtype)
    assert name is not None
    return TensorFacts(
        name,
        [symbols.text(size) for size in tensor.shape],
        [symbols.text(stride) for stride in tensor.stride()],
    )


def _source_line(node: Node) -> str:
    """The user's line, its text, and the module of the model that it belongs to, as far as they are
    known: 'File "m.py", line 7, in forward | return self.fc(x) | module layers.0.fc'."""
    if node.target is torch.ops.aten.copy_.default and isinstance(node.args[1], Node):
        node = node.args[1]  # a write to an input at the end of the graph: what made its value
    trace = node.meta.get("stack_trace") or ""
    lines = [line.strip() for line in trace.splitlines() if line.strip(" ^~\n")][-2:]
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    module = _module_path(list(stack.values())[-1][0]) if stack else ""
    return " | ".join([*lines, f"module {module}"] if module else lines)


def _module_path(text: str) -> str:
    """`layers.0.fc` of `L['self'].layers[0].fc`, `L['args'][0]._modules['layers']._modules['0'].fc`
    and the like: Dynamo's name without the variable that holds the outermost module; "" for that.
    """
    text = re.sub(r"^[LG]\['\w+'\](\[\d+\])?", "", text)
    text = re.sub(r"\.__closure__\[\d+\]\.cell_contents|\._modules\b|\._orig_mod\b", "", text)
    return re.sub(r"\[['\"]?(\w+)['\"]?\]", r".\1", text).strip(".")


def _replace(gm: GraphModule, nodes: Sequence[Node], number: int) -> TracedRegion:
    inside = set(nodes)
    symbols = Symbols()
    written = [n.args[0] for n in nodes if n.target is torch.ops.aten.copy_.default]
    read: list[Node] = []
    for node in nodes:
        for source in node.all_input_nodes:
            value = source.meta.get("val")
            if source in inside or source in written or source in read:
                continue
            if isinstance(value, torch.Tensor):
                read.append(source)
    inputs = [*read, *written]
    values: dict[Node, int] = {node: i for i, node in enumerate(inputs)}  # type: ignore[misc]
    calls: list[Call] = []
    stores: list[tuple[int, int]] = []  # (value, input)

    def encode(argument: Any) -> Any:
        if isinstance(argument, Node):
            value = argument.meta.get("val")
            if isinstance(value, torch.SymInt | int) and not isinstance(value, bool):
                return _size(symbols.text(value))
            return {"n": values[argument]}
        if isinstance(argument, torch.SymInt):
            return _size(symbols.text(argument))
        if isinstance(argument, torch.dtype):
            return {"d": dtype_name(argument)}
        if isinstance(argument, (list, tuple)):
            return [encode(item) for item in argument]
        if argument is None or isinstance(argument, bool | int | float | str):
            return argument
        if isinstance(argument, torch.device | torch.layout | torch.memory_format):
            return None
        raise Untranslatable(f"argument {argument!r}")

    for node in nodes:
        if node.target is torch.ops.aten.copy_.default:
            into = values[node.args[0]]  # type: ignore[index]
            stores.append((values[node.args[1]], into))  # type: ignore[index]
            values[node] = into
            continue
        values[node] = len(inputs) + len(calls)
        if node.op == "get_attr":
            shape = list(node.meta["val"].shape)
            numbers = {"values": values_of(node), "dtype": dtype_name(node.meta["val"].dtype)}
            calls.append(Call("constant", [shape], numbers))
            continue
        if node.target is operator.getitem:
            whole, which = node.args
            calls.append(Call("getitem", [{"n": values[whole]}, which]))  # type: ignore[index]
            continue
        name = full_name(node.target)  # type: ignore[arg-type]
        kwargs = {k: encode(v) for k, v in node.kwargs.items() if k not in regions.SILENT}
        calls.append(Call(name, [encode(a) for a in node.args], kwargs, _source_line(node)))
    leaving = [
        node
        for node in nodes
        if node.target is not torch.ops.aten.copy_.default
        and any(user not in inside for user in node.users)
        and isinstance(node.meta.get("val"), torch.Tensor)
    ]
    results = [Result(values[n], facts_of(n.meta["val"], symbols)) for n in leaving]
    for value, into in stores:
        facts = facts_of(inputs[into].meta["val"], symbols)  # type: ignore[union-attr]
        results.append(Result(value, facts, into))
    region = TracedRegion(
        f"region{number}",
        [facts_of(n.meta["val"], symbols) for n in inputs],  # type: ignore[union-attr]
        calls,
        results,
        symbols.symbols(),
        -1 if inputs else next(t.get_device() for t in tensors_of(leaving[0].meta["val"])),
    )
    key = regions.register(region)
    _call(gm, nodes, key, read, written, symbols, leaving)  # type: ignore[arg-type]
    return region


def _size(text: SizeText) -> Any:
    return text if isinstance(text, int) else {"s": text}


def _call(
    gm: GraphModule,
    nodes: Sequence[Node],
    key: str,
    read: Sequence[Node],
    written: Sequence[Node],
    symbols: Symbols,
    leaving: Sequence[Node],
) -> None:
    """Puts the call in the place of the region's nodes: before the first node that uses one of its
    results, after everything it reads."""
    graph = gm.graph
    sizes = symbols.nodes(gm)  # which may put nodes in
    order = {node: i for i, node in enumerate(graph.nodes)}
    inside = set(nodes)
    before = [*read, *written, *(s for s in sizes if isinstance(s, Node))]
    before += [r for n in written for r in readers(n) if r not in inside and r.op != "output"]
    after = max((order[n] for n in before), default=-1)
    anchor = next(
        n for n in graph.nodes if order[n] > after and n.op != "placeholder" and n not in inside
    )
    users = [order[u] for n in leaving for u in n.users if u not in inside]
    if users and order[anchor] > min(users):
        anchor = _hoist(graph, order, anchor, min(users), inside)
    with graph.inserting_before(anchor):
        call = graph.call_function(
            torch.ops.openspyre.region.default, (key, list(read), list(written), sizes)
        )
        call.meta["val"] = [n.meta["val"] for n in leaving]
        for number, node in enumerate(leaving):
            item = graph.call_function(operator.getitem, (call, number))
            item.meta.update(node.meta)
            node.replace_all_uses_with(item, delete_user_cb=lambda user: user not in inside)
    for node in reversed(list(nodes)):
        if node.target is torch.ops.aten.copy_.default:
            node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
        graph.erase_node(node)


def _hoist(
    graph: torch.fx.Graph, order: dict[Node, int], anchor: Node, first: int, inside: set[Node]
) -> Node:
    """Moves the nodes outside the region that use its results, and lie before the place of its
    call, behind that place; their order among themselves stays. Gives the node that the call goes
    before."""
    late: set[Node] = set()
    moved = []
    for node in list(graph.nodes):
        if node in inside or not first <= order[node] < order[anchor]:
            continue
        if any(source in inside or source in late for source in node.all_input_nodes):
            late.add(node)
            moved.append(node)
    for node in moved:
        anchor.prepend(node)
    return moved[0] if moved else anchor
