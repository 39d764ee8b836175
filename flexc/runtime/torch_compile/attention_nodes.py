"""FlexAttention operators in FX graphs, which this module replaces by kernels.

`torch.ops.higher_order.flex_attention` takes query, key, value, the score's graph, a
BlockMask's tuple that ends in the mask's graph, the scale, options, and the captures of
each graph. Captures by `make_fx` and Dynamo's graphs hold the same operator, and both
are replaced here.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import GraphModule, Node

from flexc.runtime.autograd import Results
from flexc.runtime.inputs.arguments import Outputs
from flexc.runtime.inputs.options import Choices
from flexc.runtime.inputs.wrappers import plain, tracing
from flexc.runtime.torch_compile.graph_call import (
    GraphCall,
    Operands,
    operands_of_mask,
    read_graph_options,
)
from flexc.runtime.torch_compile.mod_graphs import (
    ModGraphs,
    mods_of,
    share_captures,
    trivial_graph,
    without_trivial,
)
from flexc.runtime.torch_compile.operators.higher_order import (
    FLEXC_OPERATOR,
    GQA,
    MASKED,
    run_traced,
)
from flexc.runtime.torch_compile.operators.traced import TracedAttention

OPERATOR = torch.ops.higher_order.flex_attention

LN2 = math.log(2.0)


def attend_as_torch(choices: Choices, *operands: Any) -> Any:
    """Return the results of torch's operator for operands that have data."""
    query, key, value, score, block_mask, scale, options, *captures = operands
    captures += [()] * (2 - len(captures))
    mods, shared = mods_of((score, block_mask[-1]), (captures[0], captures[1]))
    outputs = Outputs(
        lse=options.get("OUTPUT_LOGSUMEXP", True),
        max_scores=options.get("OUTPUT_MAX", False),
    )
    call = GraphCall(mods, outputs, choices.merge(read_graph_options(options)))
    rest = operands_of_mask(block_mask, shared)
    results = AttentionKernel(call, True)(query, key, value, scale, *rest)
    return tuple(query.new_empty(0) if r is None else r for r in results)


class AttentionKernel(torch.nn.Module):
    """A module that replaces an operator in a graph and runs the kernel of its mods."""

    def __init__(self, call: GraphCall, stats_are_log2: bool):
        super().__init__()
        self.call = call
        self.stats_are_log2 = stats_are_log2

    def forward(self, *operands: Any) -> Results:
        given = Operands(*operands)
        if tracing(plain(given.query)):
            out, lse, max_scores = run_traced(TracedAttention.of(self.call, given))
        else:
            out, lse, max_scores = self.call.run(given)
        if not self.stats_are_log2:
            return out, lse, max_scores
        return (
            out,
            None if lse is None else lse / LN2,
            None if max_scores is None else max_scores / LN2,
        )


def replace_attention(gm: GraphModule, choices: Choices) -> int:
    """Replace every attention operator of a graph by a kernel. Return their number."""
    nodes = [n for n in gm.graph.nodes if n.target in (OPERATOR, FLEXC_OPERATOR)]
    for i, node in enumerate(nodes):
        _replace(gm, node, f"flexc_attention_{i}", choices)
    if nodes:
        gm.graph.lint()
        gm.recompile()
    return len(nodes)


def _replace(gm: GraphModule, node: Node, name: str, choices: Choices) -> None:
    operands: tuple[Any, ...] = node.args
    query, key, value, score, block_mask, scale, options, *rest = operands
    rest += [node.kwargs.get(n, ()) for n in _BUFFERS[len(rest) :]]
    captures, slots = share_captures(rest[0], rest[1])
    masked = options.get(MASKED, True)
    mask = _mod_graph(gm, block_mask[-1]) if masked else None
    kernel = AttentionKernel(
        GraphCall(
            ModGraphs.of((_mod_graph(gm, score), mask), slots),
            _used_outputs(node),
            choices.merge(read_graph_options(options)),
            options.get(GQA, True),
        ),
        stats_are_log2=node.target is OPERATOR,
    )
    gm.add_submodule(name, kernel)
    args = (query, key, value, scale, *operands_of_mask(block_mask, captures))
    with gm.graph.inserting_before(node):
        call = gm.graph.call_module(name, args)
    call.meta.update(node.meta)
    node.replace_all_uses_with(call)
    gm.graph.erase_node(node)
    # Erase only these graphs: other nodes without users may have effects.
    for graph in {score, block_mask[-1]}:
        if not graph.users:
            gm.graph.erase_node(graph)


_BUFFERS = ("score_mod_other_buffers", "mask_mod_other_buffers")


def _used_outputs(node: Node) -> Outputs:
    used: set[Any] = {user.args[1] for user in node.users if user.users}  # pyright: ignore
    return Outputs(lse=1 in used, max_scores=2 in used)


def _mod_graph(gm: GraphModule, node: Any) -> GraphModule | None:
    """Return a mod's graph, None if the mod changes nothing."""
    graph = gm.get_submodule(str(node.target))
    assert isinstance(graph, GraphModule)
    return without_trivial(graph)


def mod_operand(
    tracer: Any, name: str, graph: GraphModule | None, arity: int
) -> GraphModule:
    """Register a mod's graph with the root of a capture, and return the graph."""
    graph = graph or trivial_graph(arity)
    tracer.root.register_module(tracer.get_fresh_qualname(name), graph)
    return graph
