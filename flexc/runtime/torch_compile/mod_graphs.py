"""Mods that are FX graphs, made by Dynamo or by captures from users' functions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.nn.attention.flex_attention import _identity, noop_mask

from flexc.frontend.closures import Mod, ModSignature, read_mods
from flexc.runtime.autograd.template import ReadFacts
from flexc.runtime.torch_compile.whole_captures import without_whole_ops

Slots = tuple[tuple[int, ...], tuple[int, ...]]
Graphs = tuple[GraphModule | None, GraphModule | None]


@dataclass(slots=True, eq=False)
class GraphSignature(ModSignature):
    """Mods that are FX graphs. Captures follow the arguments of each graph."""

    slots: Slots = ((), ())
    """For score and mask, the captures that the graph takes, in order."""

    @property
    def can_grow(self) -> bool:
        return False

    def rebuild(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], set[CodeType]]:
        mods = tuple(
            None if graph is None else _bind(graph, [values[s] for s in slots])
            for graph, slots in zip(self.mods, self.slots, strict=True)
        )
        return mods, set()

    def capture_names(self) -> tuple[str, ...]:
        names = ["capture"] * len(self.captures)
        for graph, slots in zip(self.mods, self.slots, strict=True):
            if isinstance(graph, GraphModule):
                found = [n.name for n in placeholders(graph)]
                for slot, name in zip(slots, found[-len(slots) :], strict=False):
                    names[slot] = name.rstrip("_0123456789") or name
        return tuple(names)


def _bind(graph: Any, captures: list[Any]) -> Callable[..., Any]:
    def mod(*args: Any) -> Any:
        results = Interpreter(graph).run(*args, *captures)
        return results[0] if isinstance(results, tuple | list) else results

    return mod


@dataclass(frozen=True, eq=False)
class ModGraphs:
    """The graphs of a call's mods. None for the identity or a mask of all pairs."""

    graphs: Graphs
    slots: Slots
    numbers: frozenset[int]
    """Captures that are 0-d tensors, in which Dynamo passes a Python float."""
    digest: str
    """A digest that is equal for graphs that compute the same."""

    @classmethod
    def of(cls, graphs: Graphs, slots: Slots) -> ModGraphs:
        found = [_with_numbers(*pair) for pair in zip(graphs, slots, strict=True)]
        graphs = (found[0][0], found[1][0])
        return cls(graphs, slots, found[0][1] | found[1][1], _digest(graphs))

    @classmethod
    def sharing(
        cls,
        graphs: Graphs,
        captures: tuple[Sequence[Any], Sequence[Any]],
        run: Callable[[GraphModule, Sequence[Any]], Sequence[Any]],
    ) -> tuple[ModGraphs, tuple[Any, ...]]:
        """Return the mods of these graphs, and the captures of both.

        The function `run` calls graphs of what torch must compute.
        """
        found: list[Any] = []
        for graph, given in zip(graphs, captures, strict=True):
            graph = None if graph is None else without_trivial(graph)
            if graph is None:
                found.append((None, given))
            else:
                found.append(without_whole_ops(graph, given, run))
        shared, slots = share_captures(found[0][1], found[1][1])
        return cls.of((found[0][0], found[1][0]), slots), shared

    def signature(self, captures: Sequence[Any]) -> GraphSignature:
        """Return the signature for captures. Floats may still be tensors."""
        values = tuple(
            value.item() if slot in self.numbers else value
            for slot, value in enumerate(captures)
        )
        key = (self.digest, self.slots, *map(_capture_key, values))
        return GraphSignature(self.graphs, key, values, True, False, self.slots)

    def reads(self, captures: Sequence[Any]) -> ReadFacts:
        """Return the facts about the graphs that derivatives depend on."""
        score = frozenset(
            slot
            for slot in self.slots[0]
            if isinstance(captures[slot], Tensor)
            and captures[slot].is_floating_point()
            and slot not in self.numbers
        )
        return ReadFacts.of_graphs(score, self.graphs)


@dataclass(frozen=True, eq=False)
class FunctionMods:
    """A call's mods as functions, for which Dynamo made no graphs."""

    score: Mod | None
    mask: Mod | None

    @classmethod
    def of(cls, score: Mod, mask: Mod | None) -> FunctionMods:
        trivial = (_identity, noop_mask)
        return cls(*(None if mod in trivial else mod for mod in (score, mask)))

    def signature(self, captures: Sequence[Any]) -> ModSignature:
        """Return the signature read from the functions. `captures` is empty."""
        return read_mods(self.score, self.mask)


def mods_of(
    mods: tuple[Any, Any], captures: tuple[Sequence[Any], Sequence[Any]]
) -> tuple[ModGraphs | FunctionMods, tuple[Any, ...]]:
    """Return an operator's score and mask, and the captures of both.

    The mods are graphs, or functions if Dynamo could not trace them and runs the
    operator directly. The mask may be None.
    """
    if not all(mod is None or isinstance(mod, GraphModule) for mod in mods):
        return FunctionMods.of(*mods), ()
    return ModGraphs.sharing(mods, captures, lambda whole, given: whole(*given))


def _with_numbers(
    graph: GraphModule | None, slots: Sequence[int]
) -> tuple[GraphModule | None, frozenset[int]]:
    """Replace captured 0-d tensors by numbers where a graph only calls item().

    Return the graph and the slots of these captures.
    """
    if graph is None:
        return None, frozenset()
    arguments = placeholders(graph)
    captured = arguments[len(arguments) - len(slots) :]
    items = {
        slot: node.name
        for slot, node in zip(slots, captured, strict=True)
        if node.users and all(n.target == "item" for n in node.users)
    }
    if not items:
        return graph, frozenset()
    graph = GraphModule(graph, deepcopy(graph.graph))
    for node in placeholders(graph):
        if node.name in items.values():
            for item in list(node.users):
                item.replace_all_uses_with(node)
                graph.graph.erase_node(item)
    graph.recompile()
    return graph, frozenset(items)


def _capture_key(capture: Any) -> Any:
    if not isinstance(capture, Tensor):
        return type(capture)
    rank = capture.dim()
    unit = rank == 0 or capture.stride(-1) == 1
    return (capture.dtype, rank, capture.device.type, unit)


def share_captures(
    score: Sequence[Any], mask: Sequence[Any]
) -> tuple[tuple[Any, ...], Slots]:
    """Return the captures of both mods, each tensor once, and the slots of each mod."""
    captures: list[Any] = []

    def slot(value: Any) -> int:
        if isinstance(value, Node | Tensor):
            for i, known in enumerate(captures):
                if known is value:
                    return i
        captures.append(value)
        return len(captures) - 1

    slots = (tuple(map(slot, score)), tuple(map(slot, mask)))
    return tuple(captures), slots


def without_trivial(graph: GraphModule) -> GraphModule | None:
    """Return a mod's graph, None for the identity and for a mask of all pairs."""
    result: Any = graph.graph.output_node().args[0]
    result = result[0] if isinstance(result, tuple | list) else result
    trivial = result is True or result is placeholders(graph)[0]
    return None if trivial else graph


def placeholders(gm: GraphModule) -> list[Node]:
    return gm.graph.find_nodes(op="placeholder")


def trivial_graph(arity: int) -> GraphModule:
    """Return the graph of the identity for a score, or of True for a mask.

    A score has five arguments, a mask four.
    """
    graph = Graph()
    args = [graph.placeholder(f"arg{i}") for i in range(arity)]
    graph.output(args[0] if arity == 5 else True)
    return GraphModule(torch.nn.Module(), graph)


class GraphDigest(str):
    """A digest of graphs, valid in this process: graphs name functions by address."""


def _digest(graphs: Iterable[GraphModule | None]) -> GraphDigest:
    text = "\0".join("" if g is None else "\n".join(_lines(g)) for g in graphs)
    return GraphDigest(hashlib.sha256(text.encode()).hexdigest())


def _lines(gm: GraphModule) -> list[str]:
    """Return lines of text that differ for graphs of different results."""
    lines = []
    for node in gm.graph.nodes:
        line = f"{node.name} {node.op} {node.target} {node.args} {node.kwargs}"
        if node.op == "get_attr":
            line += f" {_content(getattr(gm, str(node.target)))}"
        elif node.op == "call_module":
            line += f" {_content(gm.get_submodule(str(node.target)))}"
        lines.append(line)
    return lines


def _content(value: Any) -> str:
    """Return a text for a value that a graph holds. For a graph, it lists the nodes."""
    match value:
        case Tensor():
            return f"{value.dtype} {value.tolist()}"
        case GraphModule():
            return "\n".join(_lines(value))
        case _:
            return str(id(value))
