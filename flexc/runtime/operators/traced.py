"""Calls that are traced: their operands become those of flexc's operators.

An operator takes tensors and sizes, and a handle to the rest, which is held here. The
handle is a digest, so a graph means the same in every process that traced its mods.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from flexc.errors import TracingError
from flexc.runtime.arguments import Tables
from flexc.runtime.autograd.run import Results
from flexc.runtime.autograd.template import Reads
from flexc.runtime.call import Attention, Outputs
from flexc.runtime.derivatives import OPERATORS
from flexc.runtime.graph_call import GraphCall, Operands
from flexc.runtime.mod_graphs import GraphSignature, ModGraphs
from flexc.runtime.options import NO_CHOICES, Choices, resolve_backend
from flexc.runtime.tensor_facts import check_captures

Arguments = tuple[
    Tensor, Tensor, Tensor, list[Tensor], list[Tensor], list[int], float | None, str
]
"""Query, key, value, captured tensors, tables, sizes, scale and handle.

A scale that is not known yet is None, and a tensor before those that are captured.
"""


@dataclass(frozen=True, eq=False)
class Constants:
    """All of a call that a graph holds as a constant."""

    mods: ModGraphs
    captures: tuple[Any, ...]
    """Captured numbers; `Tensor` or `int` for those that are arguments."""
    outputs: Outputs
    choices: Choices
    handle: str = field(init=False)

    def __post_init__(self) -> None:
        parts = (self.mods.digest, self.mods.slots, sorted(self.mods.numbers))
        rest = (self.captures, self.outputs, self.choices)
        digest = hashlib.sha256(repr((parts, rest)).encode()).hexdigest()
        object.__setattr__(self, "handle", digest)


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
    """A call of tensors without data: it runs as operators, and so do derivatives."""

    mods: ModGraphs | None = None
    choices: Choices = NO_CHOICES

    @classmethod
    def of(cls, call: GraphCall, operands: Operands) -> TracedAttention:
        """The call of operands, in which floats may be tensors, or symbolic."""
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
            operands.make_tables(),
            GraphSignature(mods.graphs, (), captures, True, False, mods.slots),
            call.outputs,
            OPERATORS,
            call.choices.tiles,
            call.choices.deterministic,
            mods=mods,
            choices=call.choices,
        )

    @classmethod
    def bind(cls, arguments: Sequence[Any]) -> TracedAttention:
        """The call of an operator's arguments."""
        query, key, value, _, tables, sizes, scale, handle = arguments
        constants = lookup(handle)
        mods, choices = constants.mods, constants.choices
        captures = captures_of(arguments)
        if scale is None:
            scale = arguments[3][0]
        block = (sizes[0], sizes[1]) if tables else None
        return cls(
            query,
            key,
            value,
            scale,
            None if block is None else Tables(tuple(tables), block),
            GraphSignature(mods.graphs, (), captures, True, False, mods.slots),
            constants.outputs,
            OPERATORS,
            choices.tiles,
            choices.deterministic,
            mods=mods,
            choices=choices,
        )

    @property
    def kernels(self) -> str:
        return resolve_backend(self.choices.backend, self.query.device)

    def reads(self) -> Reads:
        assert self.mods is not None
        return self.mods.reads(self.signature.captures)

    def run(self) -> Results:
        out, lse, max_scores = torch.ops.flexc.attention(*self.arguments())
        if not self.outputs.lse:
            lse = None
        return out, lse, max_scores if self.outputs.max_scores else None

    def arguments(self) -> Arguments:
        """What the operators take."""
        assert self.mods is not None
        captures = self.signature.captures
        kinds = tuple(map(_kind, captures))
        constants = Constants(self.mods, kinds, self.outputs, self.choices)
        _known.setdefault(constants.handle, constants)
        block = () if self.tables is None else self.tables.block_size
        numbers = [c for c, kind in zip(captures, kinds, strict=True) if kind is int]
        tensors = [c for c in (self.scale, *captures) if isinstance(c, Tensor)]
        return (
            self.query,
            self.key,
            self.value,
            tensors,
            [] if self.tables is None else list(self.tables.tensors),
            [*block, *numbers],  # pyright: ignore[reportReturnType]
            None if isinstance(self.scale, Tensor) else self.scale,
            constants.handle,
        )


def _constant_or_tensor(scale: Any) -> Any:
    """A number, or a tensor of one that changes from call to call.

    The product is what torch's compilers turn into an op of tensors; they make a
    constant of a symbolic float that anything else takes.
    """
    if not isinstance(scale, torch.SymFloat):
        return float(scale)
    return torch.mul(torch.ones((), dtype=torch.float64), scale)  # pyright: ignore


def _kind(capture: Any) -> Any:
    if isinstance(capture, Tensor):
        return Tensor
    is_size = isinstance(capture, int | torch.SymInt) and not isinstance(capture, bool)
    return int if is_size else capture


def bind(arguments: Sequence[Any]) -> Attention:
    """The call of an operator's arguments, which have data."""
    traced = TracedAttention.bind(arguments)
    assert traced.mods is not None
    signature = traced.mods.signature(traced.signature.captures)
    device = traced.query.device
    check_captures(signature.captures, device)
    return Attention(
        traced.query,
        traced.key,
        traced.value,
        float(traced.scale),
        traced.tables,
        signature,
        traced.outputs,
        resolve_backend(traced.choices.backend, device),
        traced.tiles,
        traced.asks_determinism,
    )


def captures_of(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """All captures of a call, of which floats may be tensors."""
    _, _, _, tensors, tables, sizes, scale, handle = arguments
    given: dict[Any, Any] = {
        Tensor: iter(tensors[1:] if scale is None else tensors),
        int: iter(sizes[2:] if tables else sizes),
    }
    kinds = lookup(handle).captures
    return tuple(next(given[k]) if k in (Tensor, int) else k for k in kinds)
