"""Ops that need whole captured tensors, which leave the graphs of mods.

A kernel reads captured tensors element by element. What it cannot compute so, as a sum
along a tensor, depends on no pair: torch computes it once for all pairs, with its
gradient, and the mod captures the result. In eager mode a trace on tensors with data
does that (see `frontend.capture`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from flexc.frontend.capture import on_pairs
from flexc.frontend.guards import add_placeholder
from flexc.frontend.mistakes import has_size_of_data
from flexc.frontend.scalars import is_known, reduces
from flexc.runtime.inputs.wrappers import without_modes


def without_whole_ops(
    graph: GraphModule,
    captures: Sequence[Any],
    run: Callable[[GraphModule, Sequence[Any]], Sequence[Any]],
) -> tuple[GraphModule, tuple[Any, ...]]:
    """Return a mod's graph without ops on whole captured tensors, and its captures.

    The function `run` returns the results of these ops, given their graph and the
    captures.
    """
    arguments = graph.graph.find_nodes(op="placeholder")
    arity = len(arguments) - len(captures)
    varying = on_pairs(graph, arity)
    calls = [n for n in graph.graph.nodes if n.op not in ("placeholder", "output")]
    apart = [n for n in calls if n not in varying]
    whole = _whole_ops(graph, apart)
    made = [n for n in whole if _is_tensor(n) and not whole.keys() >= n.users.keys()]
    if not made:
        return graph, tuple(captures)
    results = run(_graph_of(graph, [*arguments[arity:], *apart], made), captures)
    return _graph_with(graph, made, varying, (*captures, *results))


def _whole_ops(graph: GraphModule, apart: Sequence[Node]) -> dict[Node, None]:
    """Return the calls that no kernel can compute for one element, in order.

    Calls whose inputs have no known value are left out. If some call writes, draws
    numbers, or has a size that depends on data, all are: importing the graph raises an
    error that says so.
    """
    whole: dict[Node, None] = {}
    interpreter = Interpreter(graph, garbage_collect_values=False)
    interpreter.env = {node: _value(node) for node in graph.graph.nodes}
    if any(has_size_of_data(interpreter.env[node]) for node in apart):
        return {}
    mode = _mode_of(interpreter.env.values())
    for node in apart:
        given = [interpreter.env[n] for n in node.all_input_nodes]
        if not _holds_tensors(_value(node)) or any(value is None for value in given):
            continue
        with without_modes(), mode, torch.no_grad(), _Ops() as ops:
            interpreter.run_node(node)
        if any(map(_writes_or_draws, ops.ran)):
            return {}
        is_part = any(not _is_tensor(n) for n in node.all_input_nodes if n in whole)
        if is_part or (given and not all(map(_is_of_elements, ops.ran))):
            whole[node] = None
    return whole


def _mode_of(values: Iterable[Any]) -> AbstractContextManager[Any]:
    """Return the mode of values without data, in which ops make tensors without data.

    Elsewhere an op that makes a tensor fixes the symbols in its size.
    """
    leaves = pytree.tree_leaves(list(values))
    modes = (leaf.fake_mode for leaf in leaves if isinstance(leaf, FakeTensor))
    return next(modes, nullcontext())


class _Ops(TorchDispatchMode):
    """A list of the ops that run."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.ran.append(func)
        return func(*args, **(kwargs or {}))


def _is_of_elements(op: Any) -> bool:
    return is_known(op) and not reduces(op)


def _writes_or_draws(op: Any) -> bool:
    return op._schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags


def _value(node: Node) -> Any:
    """Return a node's value without data, from a trace by Dynamo or by `make_fx`."""
    return node.meta.get("val", node.meta.get("example_value"))


def _is_tensor(node: Node) -> bool:
    return isinstance(_value(node), Tensor)


def _holds_tensors(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(value))


def _graph_of(
    graph: GraphModule, nodes: Sequence[Node], made: Sequence[Node]
) -> GraphModule:
    """Return a graph of nodes that returns what some of them made."""
    part, copies = Graph(), dict[Node, Node]()
    for node in nodes:
        copies[node] = part.node_copy(node, copies.__getitem__)
    part.output(tuple(copies[node] for node in made))
    part.eliminate_dead_code()
    return GraphModule(graph, part)


def _graph_with(
    graph: GraphModule,
    made: Sequence[Node],
    varying: Iterable[Node],
    captures: Sequence[Any],
) -> tuple[GraphModule, tuple[Any, ...]]:
    """Return a copy of a graph that captures what nodes made, and what it captures.

    Nodes that depend on a pair remain, as they may write to a tensor that is used
    later, and torch does not know which methods do.
    """
    rest = GraphModule(graph, deepcopy(graph.graph))
    copies = {node.name: node for node in rest.graph.nodes}
    for node in made:
        copy = copies[node.name]
        copy.replace_all_uses_with(add_placeholder(copy, copy.meta))
    kept = {node.name for node in varying}
    rest.graph.eliminate_dead_code(lambda n: n.name in kept or n.is_impure())
    used = []
    captured = rest.graph.find_nodes(op="placeholder")[-len(captures) :]
    for node, value in zip(captured, captures, strict=True):
        if node.users:
            used.append(value)
        else:
            rest.graph.erase_node(node)
    rest.recompile()
    return rest, tuple(used)
