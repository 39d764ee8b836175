"""FlexAttention operators in FX graphs: written by a capture, replaced by kernels.

`torch.ops.higher_order.flex_attention` takes query, key, value, the score's graph,
a BlockMask's tuple that ends in the mask's graph, the scale, options, and what
each graph reads besides: its lifted captures. `make_fx` captures and Dynamo's
graphs hold the same operator, and both are replaced here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Interpreter, Node

from flexc.errors import OptionError
from flexc.frontend.closures import ModSignature
from flexc.runtime.arguments import NO_BLOCKS, autocast, make_tables
from flexc.runtime.autograd import run_attention
from flexc.runtime.call import Attention, Outputs
from flexc.runtime.options import Choices, read_choices, resolve_backend
from flexc.runtime.tensor_facts import check_captures

OPERATOR = torch.ops.higher_order.flex_attention

BACKEND_OPTION = "FLEXC_BACKEND"
"""The kernel option that carries a call's own backend."""

LN2 = math.log(2.0)


@dataclass(frozen=True, slots=True)
class GraphSignature(ModSignature):
    """Mods that are FX graphs over the captures that follow their arguments."""

    slots: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    """For score and mask: which captures their graphs take, in order."""

    def rebuild(self, values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(
            None if graph is None else _bind(graph, [values[s] for s in slots])
            for graph, slots in zip(self.mods, self.slots, strict=True)
        )

    def capture_names(self) -> tuple[str, ...]:
        names = ["capture"] * len(self.captures)
        for graph, slots in zip(self.mods, self.slots, strict=True):
            if isinstance(graph, GraphModule):
                found = [n.name for n in _placeholders(graph)]
                for slot, name in zip(slots, found[-len(slots) :], strict=False):
                    names[slot] = name.rstrip("_0123456789") or name
        return tuple(names)


def _bind(graph: Any, captures: list[Any]) -> Callable[..., Any]:
    def mod(*args: Any) -> Any:
        results = Interpreter(graph).run(*args, *captures)
        return results[0] if isinstance(results, tuple | list) else results

    return mod


class AttentionKernel(torch.nn.Module):
    """What takes an operator's place in a graph: the kernel of its mods."""

    def __init__(
        self,
        graphs: tuple[GraphModule | None, GraphModule | None],
        slots: tuple[tuple[int, ...], tuple[int, ...]],
        outputs: Outputs,
        choices: Choices,
    ):
        super().__init__()
        # In a tuple, not as submodules: they hold no state of the model.
        self.graphs = graphs
        self.slots = slots
        self.outputs = outputs
        self.choices = choices
        self.digest = _digest(graphs)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        tables: tuple[Tensor, ...],
        block: tuple[int, int],
        captures: tuple[Any, ...],
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        query, key, value = autocast((query, key, value))
        if key.size(0) != query.size(0):
            key, value = (t.expand(query.size(0), -1, -1, -1) for t in (key, value))
        check_captures(captures, query.device)
        call = Attention(
            query,
            key,
            value,
            float(scale),
            make_tables(tables, block, query) if tables else None,
            self.signature(captures),
            self.outputs,
            resolve_backend(self.choices.backend, query.device),
            self.choices.tiles,
            self.choices.deterministic,
        )
        out, lse, max_scores = run_attention(call)
        # The operator's statistics are in units of log2.
        return (
            out,
            None if lse is None else lse / LN2,
            None if max_scores is None else max_scores / LN2,
        )

    def signature(self, captures: tuple[Any, ...]) -> GraphSignature:
        key = (self.digest, self.slots, *map(_capture_key, captures))
        return GraphSignature(self.graphs, key, captures, True, False, self.slots)


def _capture_key(capture: Any) -> Any:
    if not isinstance(capture, Tensor):
        return type(capture)
    rank = capture.dim()
    unit = rank == 0 or capture.stride(-1) == 1
    return (capture.dtype, rank, capture.device.type, unit)


def replace_attention(gm: GraphModule, choices: Choices) -> int:
    """Put a kernel in place of every operator of a graph; how many there were."""
    nodes = [n for n in gm.graph.nodes if n.target is OPERATOR]
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
    if options.get("BACKEND") == "FLASH":
        raise OptionError(
            "kernel_options['BACKEND'] expects one of torch's own Triton kernels, "
            "which flexc replaces, got 'FLASH'; remove it"
        )
    captures, slots = _share_captures(rest[0], rest[1])
    own = {k: v for k, v in options.items() if k != BACKEND_OPTION}
    kernel = AttentionKernel(
        (_mod_graph(gm, score), _mod_graph(gm, block_mask[-1])),
        slots,
        _used_outputs(node),
        choices.merge(read_choices(options.get(BACKEND_OPTION, "auto"), own)),
    )
    gm.add_submodule(name, kernel)
    block = block_mask[-3:-1]
    sparse = isinstance(block[0], Node) or min(block) < NO_BLOCKS
    tables = tuple(t for t in block_mask[2:6] if t is not None) if sparse else ()
    args = (query, key, value, scale, tables, tuple(block), captures)
    with gm.graph.inserting_before(node):
        call = gm.graph.call_module(name, args)
    call.meta.update(node.meta)
    node.replace_all_uses_with(call)
    gm.graph.erase_node(node)
    # Not all dead code: Dynamo's graphs hold calls that matter and have no users.
    for graph in {score, block_mask[-1]}:
        if not graph.users:
            gm.graph.erase_node(graph)


_BUFFERS = ("score_mod_other_buffers", "mask_mod_other_buffers")


def _share_captures(
    score: Any, mask: Any
) -> tuple[tuple[Any, ...], tuple[tuple[int, ...], tuple[int, ...]]]:
    """What both mods capture once, and who takes which. Numbers stay apart."""
    captures: list[Any] = []

    def slot(value: Any) -> int:
        if isinstance(value, Node) and value in captures:
            return captures.index(value)
        captures.append(value)
        return len(captures) - 1

    slots = (tuple(map(slot, score)), tuple(map(slot, mask)))
    return tuple(captures), slots


def _used_outputs(node: Node) -> Outputs:
    used: set[Any] = {user.args[1] for user in node.users if user.users}  # pyright: ignore
    return Outputs(lse=1 in used, max_scores=2 in used)


def _mod_graph(gm: GraphModule, node: Any) -> GraphModule | None:
    """A mod's graph, None for the identity and for a mask that is always true."""
    graph = gm.get_submodule(str(node.target))
    assert isinstance(graph, GraphModule)
    (output,) = [n for n in graph.graph.nodes if n.op == "output"]
    result = output.args[0]
    result = result[0] if isinstance(result, tuple | list) else result
    trivial = result is True or result is _placeholders(graph)[0]
    return None if trivial else graph


def _placeholders(gm: GraphModule) -> list[Node]:
    return [n for n in gm.graph.nodes if n.op == "placeholder"]


def mod_operand(
    tracer: Any, name: str, graph: GraphModule | None, arity: int
) -> GraphModule:
    """A mod's graph, registered with the root of a capture."""
    graph = graph or trivial_graph(arity)
    tracer.root.register_module(tracer.get_fresh_qualname(name), graph)
    return graph


def trivial_graph(arity: int) -> GraphModule:
    """The identity of a score; true for a mask, which has four arguments."""
    graph = Graph()
    args = [graph.placeholder(f"arg{i}") for i in range(arity)]
    graph.output(args[0] if arity == 5 else True)
    return GraphModule(torch.nn.Module(), graph)


def _digest(graphs: Iterable[GraphModule | None]) -> str:
    text = "\0".join("" if g is None else "\n".join(_lines(g)) for g in graphs)
    return hashlib.sha256(text.encode()).hexdigest()


def _lines(gm: GraphModule) -> list[str]:
    """A graph as text that tells apart whatever computes something else."""
    lines = []
    for node in gm.graph.nodes:
        line = f"{node.name} {node.op} {node.target} {node.args} {node.kwargs}"
        if node.op == "get_attr":
            value = getattr(gm, str(node.target))
            if isinstance(value, Tensor):
                line += f" {value.dtype} {value.tolist()}"
            else:
                line += f" {id(value)}"
        elif node.op == "call_module":
            line += f" {id(gm.get_submodule(str(node.target)))}"
        lines.append(line)
    return lines
