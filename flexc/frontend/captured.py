"""What tracing makes of mods: graphs, their inputs, and what they assume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule

from flexc.errors import SourceLocation
from flexc.frontend.guards import Guards
from flexc.frontend.host_numbers import HostNumber
from flexc.frontend.signatures import ModKind


@dataclass(frozen=True, eq=False)
class CaptureInput:
    """One captured value that a graph reads."""

    name: str
    slot: int | None
    """Its place among the captures of the signature, and behind them those that tracing
    found; None for what is made of them."""
    dtype: torch.dtype
    """int64 for a Python int, float64 for a Python float."""
    rank: int | None
    """None for a Python number."""
    unit_stride: bool = False
    """The elements of the last dimension lie next to each other."""
    constant: torch.Tensor | None = None
    """A tensor that the mod made itself from Python numbers."""
    number: HostNumber | None = None
    """A number that Python computes of captured ones."""

    def value(self, captures: Sequence[Any]) -> Any:
        if self.number is not None:
            return self.number(captures)
        return self.constant if self.slot is None else captures[self.slot]


@dataclass(frozen=True, eq=False)
class CapturedMod:
    """A traced mod.

    Placeholders of `graph` are the mod's arguments, as `MOD_ARGS` names them, and
    then one for each of `inputs`. Its result is a 0-d tensor or a number.
    """

    kind: ModKind
    graph: GraphModule
    inputs: tuple[CaptureInput, ...]
    location: SourceLocation | None


@dataclass(frozen=True, eq=False)
class CapturedMods:
    """The mods of one call, None where there is none, and what they assumed."""

    score: CapturedMod | None
    mask: CapturedMod | None
    guards: Guards
    found: tuple[torch.Tensor, ...] = ()
    """Tensors that the walk did not find: captures behind those of the signature."""
    unread: str | None = None
    """Something that the mods read and that is no part of their key."""
    reads_state: bool = False
    """The guards ask for more than numbers, shapes and strides."""
    custom_gradient: bool = False
    """The score applies a torch.autograd.Function, whose backward was not traced."""
    compiled: dict[Any, Any] = field(default_factory=dict)
    """What was made of these mods, for each kind of call."""

    @cached_property
    def slots(self) -> frozenset[int]:
        """Which captures are read."""
        mods = (m for m in (self.score, self.mask) if m is not None)
        return frozenset(i.slot for m in mods for i in m.inputs if i.slot is not None)

    def guards_hold(self, captures: Sequence[Any]) -> bool:
        """Whether the graphs are right for other captured values."""
        return self.guards.hold(captures)
