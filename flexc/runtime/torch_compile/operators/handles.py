"""Handles: texts that say what is constant in a call of an operator.

A handle holds the graphs of the mods, if they consist of operations that flexc imports,
as all graphs of flexc's own tracing do. So a program that torch exported means the same
in another process. Graphs of Dynamo may call any function of Python. Their handle is a
digest, which only processes that traced the mods know. A digest includes flexc's
version, so another version does not read Inductor's code.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from flexc.errors import FlexcError, TracingError
from flexc.frontend.scalars import is_known
from flexc.runtime.attention.call import Outputs
from flexc.runtime.inputs.arguments import Packed, Tables, broadcast_tables
from flexc.runtime.inputs.listed_blocks import TablesLayout
from flexc.runtime.inputs.options import Choices, kernel_options, read_choices
from flexc.runtime.planner.plans import PlanningProblem, layouts_of
from flexc.runtime.planner.tables import unpacked
from flexc.runtime.process.cache import versions
from flexc.runtime.torch_compile.mod_graphs import ModGraphs

FORMAT = 1
"""The version of the text, and of the operators' arguments."""


class PlannedBlocks(NamedTuple):
    """The blocks that a trace chose for a call's mask."""

    block: tuple[int, int]
    by_batch: bool
    """True if tables may differ between batches."""
    by_head: bool

    derivative_block: tuple[int, int] | None = None
    """The blocks of the tables for derivatives, if they are others."""

    def problem(self, sizes: Sequence[int]) -> PlanningProblem:
        """Return the problem to plan for (batch, heads, q_len, kv_len)."""
        batch, heads, q_len, kv_len = sizes
        block = *self.block, self.derivative_block
        return PlanningProblem(batch, heads, q_len, kv_len, *block)

    def layouts(self, problem: PlanningProblem) -> list[TablesLayout]:
        """Return the layouts of the tables in their tensor."""
        batch = problem.batches if self.by_batch else 1
        heads = problem.heads if self.by_head else 1
        return layouts_of(replace(problem, batches=batch, heads=heads), both=True)

    def packed(self, tensor: Tensor, sizes: Sequence[int]) -> Tables:
        """Return tables that lie in one tensor. Use `unpack` to split it."""

        def still_packed(tensor: Tensor) -> Tables:
            return self.packed(tensor, sizes)

        return Tables((), self.block, packed=Packed(tensor, still_packed))

    def unpack(self, packed: Tensor, sizes: Sequence[int]) -> Tables:
        problem = self.problem(sizes)
        return unpacked(packed, self.layouts(problem), problem)


@dataclass(frozen=True, eq=False)
class Constants:
    """The constant part of a call in a graph."""

    mods: ModGraphs
    captures: tuple[Any, ...]
    """Captured numbers. `Tensor` or `int` stands for captures that are arguments."""
    outputs: Outputs
    choices: Choices
    columns: bool = False
    """True if a BlockMask's tables of columns follow those of rows."""
    blocks: PlannedBlocks | None = None
    """The blocks of tables that `flexc::plan` made."""

    @cached_property
    def handle(self) -> str:
        try:
            return write(self)
        except UnwritableError:
            pass
        parts = (self.mods.digest, self.mods.slots, sorted(self.mods.numbers))
        rest = (self.captures, self.outputs, self.choices, self.columns, self.blocks)
        text = repr((parts, rest, versions()))
        return hashlib.sha256(text.encode()).hexdigest()

    def remember(self) -> None:
        """Make the constants available to `lookup`."""
        _known.setdefault(self.handle, self)

    def tables(
        self,
        query: Tensor,
        key: Tensor,
        tables: Sequence[Tensor],
        sizes: Sequence[int],
        unpack: bool = False,
    ) -> Tables | None:
        """Return the tables among an operator's arguments.

        With `unpack`, planned tables are in the form that kernels read.
        """
        if not tables:
            return None
        if self.blocks is not None:
            made = self.blocks.unpack if unpack else self.blocks.packed
            return made(tables[0], (*query.shape[:3], key.size(2)))
        block = (sizes[0], sizes[1])
        tables = broadcast_tables(tables, query)
        if not self.columns:
            return Tables(tables, block)
        half = len(tables) // 2
        columns = Tables(tables[half:], (block[1], block[0]))
        return Tables(tables[:half], block, columns=columns)


_known: dict[str, Constants] = {}


def lookup(handle: str) -> Constants:
    found = _known.get(handle)
    if found is None:
        found = _known[handle] = read(handle)
    return found


class UnwritableError(Exception):
    """A value that a handle has no text for."""


def write(constants: Constants) -> str:
    """Return the constants as a text, from which `read` makes them again."""
    mods, choices = constants.mods, constants.choices
    if mods.numbers or choices.tiles.passes:
        raise UnwritableError
    parts = {
        "format": FORMAT,
        "score": _written_graph(mods.graphs[0]),
        "mask": _written_graph(mods.graphs[1]),
        "slots": mods.slots,
        "captures": [_written(c) for c in constants.captures],
        "outputs": constants.outputs,
        "backend": choices.backend,
        "options": kernel_options(choices),
        "columns": constants.columns,
        "blocks": constants.blocks,
    }
    return json.dumps(parts, separators=(",", ":"))


def read(handle: str) -> Constants:
    """Return the constants of a handle that this process did not make."""
    if not handle.startswith("{"):
        raise TracingError(
            "a graph with attention of flexc expects to run in a process that traced "
            "it; compile the function again in this one"
        )
    try:
        parts = json.loads(handle)
        if parts["format"] != FORMAT:
            raise TracingError(
                f"a program expects attention of format {parts['format']}, this flexc "
                f"has {FORMAT}; export the program again"
            )
        score, mask = (_read_graph(parts[name]) for name in ("score", "mask"))
        first, second = parts["slots"]
        blocks = parts["blocks"]
        return Constants(
            ModGraphs.of((score, mask), (tuple(first), tuple(second))),
            tuple(_read(c) for c in parts["captures"]),
            Outputs(*parts["outputs"]),
            read_choices(parts["backend"], parts["options"]),
            parts["columns"],
            blocks and PlannedBlocks(*map(_hashable, blocks)),
        )
    except FlexcError:
        raise
    except Exception as error:
        raise TracingError(
            f"a program's attention cannot be read ({error!r}); export it again"
        ) from None


def _hashable(value: Any) -> Any:
    """Return the tuple of a list, and other values unchanged."""
    return tuple(value) if isinstance(value, list) else value


def _written_graph(gm: GraphModule | None) -> Any:
    """Return the nodes of a graph as lists of an operation, a name and arguments."""
    if gm is None:
        return None
    places = {node: i for i, node in enumerate(gm.graph.nodes)}
    lines: list[Any] = []
    for node in gm.graph.nodes:
        line: list[Any] = [node.op, node.name]
        if node.op == "get_attr":
            line.append(_written_number(getattr(gm, str(node.target), None)))
        elif node.op == "call_function":
            kwargs = {k: _written(v, places) for k, v in node.kwargs.items()}
            line += [_written_target(node.target), _written(node.args, places), kwargs]
        elif node.op == "output":
            line.append(_written(node.args, places))
        elif node.op != "placeholder":
            raise UnwritableError
        lines.append(line)
    return lines


def _read_graph(lines: Any) -> GraphModule | None:
    if lines is None:
        return None
    graph, root, nodes = Graph(), torch.nn.Module(), list[Node]()

    def given(value: Any) -> Any:
        return _read(value, nodes)

    for op, name, *rest in lines:
        if op == "placeholder":
            node = graph.placeholder(name)
        elif op == "get_attr":
            root.register_buffer(name, given(rest[0]))
            node = graph.get_attr(name)
        elif op == "call_function":
            target, args, kwargs = rest
            kwargs = {k: given(v) for k, v in kwargs.items()}
            called = _read_target(target), tuple(given(args)), kwargs
            node = graph.create_node(op, *called, name=name)
        else:
            node = graph.output(given(rest[0])[0])
        nodes.append(node)
    return GraphModule(root, graph)


GETITEM = "getitem"


def _written_target(target: Any) -> str:
    if target is operator.getitem:
        return GETITEM
    if isinstance(target, torch._ops.OpOverload) and is_known(target):
        return str(target)
    raise UnwritableError


def _read_target(name: str) -> Any:
    """Return an operation. A text may only name those that flexc imports."""
    if name == GETITEM:
        return operator.getitem
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, torch._ops.OpOverload) or not is_known(found):
        raise TracingError(f"a program's mod expects operations of pairs, got {name}")
    return found


TYPES = {"Tensor": Tensor, "int": int}
"""Captures that are arguments of an operator, by the names that a text has for them."""

OBJECTS = (torch.dtype, torch.layout, torch.memory_format)


def _written(value: Any, places: dict[Node, int] | None = None) -> Any:
    """Return a value of JSON: lists, numbers, texts, and {kind: value} for others."""
    match value:
        case list() | tuple():
            return [_written(v, places) for v in value]
        case Node() if places is not None:
            return {"node": places[value]}
        case torch.device():
            return {"device": str(value)}
        case type() if value in TYPES.values():
            return {"type": value.__name__}
        case bool() | int() | float() | str() | None:
            return value
        case _ if isinstance(value, OBJECTS):
            return {"torch": str(value).removeprefix("torch.")}
    raise UnwritableError


def _written_number(tensor: Any) -> Any:
    if not isinstance(tensor, Tensor) or tensor.dim() or tensor.dtype.is_complex:
        raise UnwritableError
    return {"number": [str(tensor.dtype).removeprefix("torch."), tensor.item()]}


def _read(value: Any, nodes: Sequence[Node] = ()) -> Any:
    if isinstance(value, list):
        return [_read(v, nodes) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "node":
            return nodes[content]
        case "device":
            return torch.device(content)
        case "type":
            return TYPES[content]
        case "torch":
            return _object(content)
        case _:
            dtype, number = content
            return torch.tensor(number, dtype=_object(dtype), device="cpu")


def _object(name: str) -> Any:
    found = getattr(torch, name, None)
    if not isinstance(found, OBJECTS):
        raise TracingError(f"a stored call may not name torch.{name}")
    return found
