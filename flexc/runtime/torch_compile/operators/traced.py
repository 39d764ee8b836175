"""Traced calls, which run as operators of torch.library, as their derivatives do.

An operator takes tensors, sizes, and a handle to the constants, which this module
holds. The handle is a digest that includes flexc's version. So a graph means the same
in every process that traced its mods, and another version does not read Inductor's
code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from flexc.errors import TracingError
from flexc.runtime.attention.call import Attention, Outputs
from flexc.runtime.autograd.derivatives import (
    OPERATORS,
    Cotangents,
    Direction,
    Gradients,
    Tangents,
    Wanted,
    spread,
)
from flexc.runtime.autograd.template import Reads
from flexc.runtime.inputs.arguments import Packed, Results, Tables, broadcast_tables
from flexc.runtime.inputs.listed_blocks import TablesLayout
from flexc.runtime.inputs.options import BACKENDS, Backend, Choices, resolve_backend
from flexc.runtime.inputs.tensor_facts import check_captures
from flexc.runtime.inputs.wrappers import is_transformed
from flexc.runtime.planner.plans import Problem
from flexc.runtime.planner.tables import unpacked
from flexc.runtime.process.cache import versions
from flexc.runtime.torch_compile.graph_call import GraphCall, Operands
from flexc.runtime.torch_compile.mod_graphs import GraphSignature, ModGraphs

Arguments = tuple[
    Tensor, Tensor, Tensor, list[Tensor], list[Tensor], list[int], float | None, str
]
"""Query, key, value, captured tensors, tables, sizes, scale and handle.

If the scale is not yet known, it is None, and a tensor with the scale precedes the
captured tensors.
"""


@dataclass(frozen=True)
class PlannedBlocks:
    """The blocks that a trace chose for a call's mask."""

    block: tuple[int, int]
    by_batch: bool
    """True if tables may differ between batches."""
    by_head: bool

    def problem(self, sizes: Sequence[int]) -> Problem:
        """Return the problem to plan for (batch, heads, q_len, kv_len)."""
        batch, heads, q_len, kv_len = sizes
        return Problem(batch, heads, q_len, kv_len, *self.block)

    def layout(self, problem: Problem) -> TablesLayout:
        """Return the layout of the tables in their tensor."""
        batch = problem.batches if self.by_batch else 1
        heads = problem.heads if self.by_head else 1
        return TablesLayout((batch, heads, problem.rows, problem.columns), both=True)

    def packed(self, tensor: Tensor, sizes: Sequence[int]) -> Tables:
        """Return tables that lie in one tensor. Use `unpack` to split it."""

        def still_packed(tensor: Tensor) -> Tables:
            return self.packed(tensor, sizes)

        return Tables((), self.block, packed=Packed(tensor, still_packed))

    def unpack(self, packed: Tensor, sizes: Sequence[int]) -> Tables:
        problem = self.problem(sizes)
        return unpacked(packed, self.layout(problem), problem)


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
    handle: str = field(init=False)

    def __post_init__(self) -> None:
        parts = (self.mods.digest, self.mods.slots, sorted(self.mods.numbers))
        rest = (self.captures, self.outputs, self.choices, self.columns, self.blocks)
        text = repr((parts, rest, versions()))
        digest = hashlib.sha256(text.encode()).hexdigest()
        object.__setattr__(self, "handle", digest)

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
    if handle not in _known:
        raise TracingError(
            "a graph with attention of flexc expects to run in a process that traced "
            "it; compile the function again in this one"
        )
    return _known[handle]


@dataclass(frozen=True, eq=False)
class TracedAttention(Attention):
    """A call of tensors without data. The call and its derivatives run as operators."""

    mods: ModGraphs | None = None
    blocks: PlannedBlocks | None = None

    @classmethod
    def of(cls, call: GraphCall, operands: Operands) -> TracedAttention:
        """Return the call of operands, in which floats may be tensors or symbols."""
        operands = operands.checked(call.enable_gqa)
        query, key, value, *_ = operands
        captures, mods = tuple(operands.captures), call.mods
        assert isinstance(mods, ModGraphs), "functions are not traced but run"
        own = [c for i, c in enumerate(captures) if i not in mods.numbers]
        check_captures(own, query.device)
        return cls(
            query,
            key,
            value,
            _constant_or_tensor(operands.factor),
            operands.make_tables(expand=is_transformed()),
            GraphSignature(mods.graphs, (), captures, True, False, mods.slots),
            call.outputs,
            OPERATORS,
            call.choices,
            mods=mods,
        )

    @classmethod
    def bind(cls, arguments: Sequence[Any]) -> TracedAttention:
        """Return the call of an operator's arguments."""
        query, key, value, _, tables, sizes, _, handle = arguments
        constants = lookup(handle)
        mods = constants.mods
        captures = captures_of(arguments)
        return cls(
            query,
            key,
            value,
            scale_of(arguments),
            constants.tables(query, key, tables, sizes),
            GraphSignature(mods.graphs, (), captures, True, False, mods.slots),
            constants.outputs,
            OPERATORS,
            constants.choices,
            mods=mods,
            blocks=constants.blocks,
        )

    @property
    def computed_by(self) -> Backend:
        return BACKENDS[resolve_backend(self.choices.backend, self.query.device)]

    def reads(self) -> Reads:
        assert self.mods is not None
        return self.mods.reads(self.signature.captures)

    def arguments(self) -> Arguments:
        """Return the arguments of the operators."""
        assert self.mods is not None
        captures = self.signature.captures
        kinds = tuple(map(kind_of, captures))
        columns = self.tables is not None and self.tables.columns is not None
        constants = Constants(
            self.mods, kinds, self.outputs, self.choices, columns, self.blocks
        )
        constants.remember()
        block = () if self.tables is None else self.tables.block_size
        numbers = [c for c, kind in zip(captures, kinds, strict=True) if kind is int]
        tensors = [c for c in (self.scale, *captures) if isinstance(c, Tensor)]
        return (
            self.query,
            self.key,
            self.value,
            tensors,
            [] if self.tables is None else list(self.tables.all_tensors),
            [*block, *numbers],  # pyright: ignore[reportReturnType]
            None if isinstance(self.scale, Tensor) else self.scale,
            constants.handle,
        )


def _constant_or_tensor(scale: Any) -> Any:
    """Return a number, or a tensor for a number that changes between calls.

    torch's compilers turn the product into an op of tensors. Other uses of a symbolic
    float would make it a constant.
    """
    if not isinstance(scale, torch.SymFloat):
        return float(scale)
    return torch.mul(torch.ones((), dtype=torch.float64), scale)  # pyright: ignore


def kind_of(capture: Any) -> Any:
    if isinstance(capture, Tensor):
        return Tensor
    is_size = isinstance(capture, int | torch.SymInt) and not isinstance(capture, bool)
    return int if is_size else capture


def scale_of(arguments: Sequence[Any]) -> Any:
    """Return the scale of a call, which may be a tensor."""
    return arguments[3][0] if arguments[-2] is None else arguments[-2]


Resolved = tuple[GraphSignature, float]
"""The mods and the scale of a call, with all numbers as Python numbers."""


def resolved(arguments: Sequence[Any]) -> Resolved:
    """Return the numbers of an operator's arguments that have data."""
    mods = lookup(arguments[-1]).mods
    return mods.signature(captures_of(arguments)), float(scale_of(arguments))


def bind(arguments: Sequence[Any], numbers: Resolved | None = None) -> Attention:
    """Return the call of an operator's arguments, which have data and were checked."""
    query, key, value, _, tables, sizes, _, handle = arguments
    constants = lookup(handle)
    signature, scale = numbers or resolved(arguments)
    check_captures(signature.captures, query.device)
    found = constants.tables(query, key, tables, sizes, unpack=True)
    return Attention(
        query,
        key,
        value,
        scale,
        found,
        signature,
        constants.outputs,
        resolve_backend(constants.choices.backend, query.device),
        constants.choices,
        settled=found is not None,
    )


def captures_of(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return all captures of a call. Floats may be tensors."""
    _, _, _, tensors, tables, sizes, scale, handle = arguments
    given: dict[Any, Any] = {
        Tensor: iter(tensors[1:] if scale is None else tensors),
        int: iter(sizes[2:] if tables else sizes),
    }
    kinds = lookup(handle).captures
    return tuple(next(given[k]) if k in (Tensor, int) else k for k in kinds)


def run(call: Attention) -> Results:
    """Return the results of a call."""
    outputs, tables = call.outputs, call.tables
    if tables is not None and tables.columns is not None:
        # Tables of columns are for derivatives.
        call = replace(call, tables=replace(tables, columns=None))
    out, *rest = torch.ops.flexc.attention(*_arguments(call))
    lse = rest[0] if outputs.lse else None
    return out, lse, rest[-1] if outputs.max_scores else None


class DerivativeRun:
    """The derivatives of one call, by operators (see `derivatives.Derivatives`)."""

    def __init__(self, call: Attention, out: Tensor, lse: Tensor):
        self.args = (*_arguments(call), out, lse)

    def backward(
        self, cotangents: Cotangents, wanted: Wanted, along: Direction | None
    ) -> Gradients:
        args = (*self.args, *cotangents)
        if along is None:
            found = torch.ops.flexc.attention_backward(*args, list(wanted))
        else:
            args += (*along.cotangents, *_listed(along.inputs))
            found = torch.ops.flexc.attention_backward_jvp(*args, list(wanted))
        return spread(found, wanted)

    def jvp(self, tangents: Tangents) -> tuple[Tensor, Tensor]:
        return torch.ops.flexc.attention_jvp(*self.args, *_listed(tangents))


def _arguments(call: Attention) -> Arguments:
    return cast(TracedAttention, call).arguments()


def _listed(tangents: Tangents) -> tuple[list[Tensor], list[bool]]:
    """Return the tangents that are not zero, and a flag for each tangent."""
    return [t for t in tangents if t is not None], [t is not None for t in tangents]
