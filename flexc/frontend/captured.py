"""Graphs of traced mods: their inputs, and the assumptions under which they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule

from flexc.errors import SourceLocation
from flexc.frontend.guards import Guards, HostNumber
from flexc.frontend.signatures import ModKind


@dataclass(frozen=True, eq=False)
class CaptureInput:
    """One captured value that a graph reads."""

    name: str
    slot: int | None
    """Its place among the captures of the signature, followed by those that tracing
    found. None for a constant and for a number computed from captures.
    """
    dtype: torch.dtype
    """The dtype of the value: int64 for a Python int, float64 for a Python float."""
    rank: int | None
    """The rank of a tensor. None for a Python number."""
    unit_stride: bool = False
    """True if the elements of the last dimension are adjacent."""
    constant: torch.Tensor | None = None
    """A tensor that the mod made from Python numbers."""
    number: HostNumber | None = None
    """A number that Python computes from captured numbers."""

    @classmethod
    def of(cls, name: str, slot: int | None, value: Any) -> CaptureInput:
        """Return the input for a captured value, or for a constant without a slot."""
        if not isinstance(value, torch.Tensor):
            dtype = torch.int64 if isinstance(value, int) else torch.float64
            return cls(name, slot, dtype, None)
        rank, constant = value.dim(), value if slot is None else None
        unit = rank > 0 and value.stride(-1) == 1
        return cls(name, slot, value.dtype, rank, unit, constant)

    def value(self, captures: Sequence[Any]) -> Any:
        if self.number is not None:
            return self.number(captures)
        return self.constant if self.slot is None else captures[self.slot]


@dataclass(frozen=True, eq=False)
class CapturedMod:
    """A traced mod.

    The placeholders of `graph` are the mod's arguments, as in `MOD_ARGS`, followed by
    one for each of `inputs`. Its result is a 0-d tensor or a number.
    """

    kind: ModKind
    graph: GraphModule
    inputs: tuple[CaptureInput, ...]
    location: SourceLocation | None
    sequences: tuple[int, ...] = ()
    """The slots of the tensors that place sequences, for a mask of packed ones."""


@dataclass(frozen=True, eq=False)
class CapturedMods:
    """The mods of one call and their assumptions. A mod that is absent is None."""

    score: CapturedMod | None
    mask: CapturedMod | None
    guards: Guards
    found: tuple[torch.Tensor, ...] = ()
    """Tensors that the walk did not find. They follow the captures of the signature."""
    unread: str | None = None
    """A description of a value that the mods read and that their key does not hold."""
    reads_state: bool = False
    """True if the guards depend on more than numbers, shapes and strides."""
    custom_gradient: bool = False
    """True if the score applies a torch.autograd.Function with an untraced backward."""
    compiled: dict[Any, Any] = field(default_factory=dict)
    """The results of compiling these mods, for each kind of call."""

    @cached_property
    def slots(self) -> frozenset[int]:
        """The slots of the captures that the graphs read."""
        mods = (m for m in (self.score, self.mask) if m is not None)
        return frozenset(i.slot for m in mods for i in m.inputs if i.slot is not None)
