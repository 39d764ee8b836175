"""A call apart from its tensors, which autograd wraps, saves and hands back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.fx import Node

from flexc.frontend.captured import CapturedMods
from flexc.frontend.closures import ModSignature
from flexc.runtime.autograd.batching import Kind
from flexc.runtime.call import Attention
from flexc.runtime.derivatives import Gradients, Wanted

INPUTS = 3
"""Query, key and value."""

T = TypeVar("T")


@dataclass(frozen=True)
class Reads:
    """What the mods of a call read, as far as derivatives ask."""

    captures: frozenset[int]
    """Captures that score_mod reads and that have derivatives."""
    batch: bool
    """Whether a mod reads b."""

    @classmethod
    def of(cls, mods: CapturedMods) -> Reads:
        inputs = () if mods.score is None else mods.score.inputs
        captures = frozenset(
            i.slot
            for i in inputs
            if i.slot is not None and i.rank is not None and i.dtype.is_floating_point
        )
        graphs = ((mods.score, 1), (mods.mask, 0))
        batch = any(m is not None and _reads(m.graph, place) for m, place in graphs)
        return cls(captures, batch)


def _reads(graph: Any, place: int) -> bool:
    """Whether a graph uses one of its arguments."""
    arguments: list[Node] = [n for n in graph.graph.nodes if n.op == "placeholder"]
    return bool(arguments[place].users)


@dataclass(frozen=True, eq=False)
class Template:
    """What is left of a call without its tensors.

    These are query, key, value, captured tensors and tables, in this order. Nothing
    here holds one of them: autograd may drop what it saved, and compute it anew.
    """

    blank: Attention
    captures: tuple[Any, ...]
    """The captured numbers, None for tensors."""
    slots: tuple[int, ...]
    """The places of captured tensors among the captures."""
    units: tuple[bool, ...]
    """Whether a captured tensor's last stride is 1: its mods were traced for that."""
    tables: int
    reads: Reads

    @property
    def kinds(self) -> list[Kind]:
        """What the tensors are."""
        rows: list[Kind] = ["row"] * INPUTS
        captures: list[Kind] = ["capture"] * len(self.slots)
        tables: list[Kind] = ["table"] * self.tables
        return rows + captures + tables

    def bind(self, tensors: Sequence[Tensor]) -> Attention:
        """The call of these tensors."""
        query, key, value, *rest = tensors
        captures = list(self.captures)
        for slot, unit, tensor in zip(self.slots, self.units, rest, strict=False):
            captures[slot] = tensor if not unit or _is_unit(tensor) else _dense(tensor)
        blank = self.blank
        tables = tuple(rest[len(self.slots) :])
        return replace(
            blank,
            query=query,
            key=key,
            value=value,
            tables=blank.tables and replace(blank.tables, tensors=tables),
            signature=replace(blank.signature, captures=tuple(captures)),
        )

    def wanted(self, needs: Sequence[bool]) -> Wanted:
        """Which gradients to compute, of those that the tensors need."""
        return Wanted.of([*needs[:INPUTS], *self._of_captures(needs, False)])

    def along(self, tangents: Sequence[Tensor | None]) -> Gradients:
        """Tangents of the call's inputs, from those of its tensors."""
        return Gradients.of([*tangents[:INPUTS], *self._of_captures(tangents, None)])

    def _of_captures(self, values: Sequence[T], without: T) -> list[T]:
        """What is known of tensors, for the captures that derivatives depend on."""
        found = [without] * len(self.captures)
        for slot, value in zip(self.slots, values[INPUTS:], strict=False):
            if slot in self.reads.captures:
                found[slot] = value
        return found

    def spread(self, values: Sequence[T], without: T) -> list[T]:
        """What is known of the call's inputs, for its tensors."""
        captured = [values[INPUTS + slot] for slot in self.slots]
        return [*values[:INPUTS], *captured, *[without] * self.tables]


def split(call: Attention, reads: Reads | None = None) -> tuple[Template, list[Tensor]]:
    """A call as its template, in which lse is wanted, and its tensors.

    `reads` says what its mods read, where the caller knows; else they are traced.
    """
    signature, tables = call.signature, call.tables
    captures = signature.captures
    slots = [i for i, c in enumerate(captures) if isinstance(c, Tensor)]
    captured = [c for c in captures if isinstance(c, Tensor)]
    traced = None
    if reads is None:
        traced = call.trace()
        reads = Reads.of(traced)
    tabled = () if tables is None else tables.tensors
    gone: Any = None
    blank = replace(
        call,
        query=gone,
        key=gone,
        value=gone,
        tables=tables and replace(tables, tensors=()),
        signature=_without_tensors(signature),
        outputs=replace(call.outputs, lse=True, lse_parts=needs_parts(call)),
        traced=traced,
    )
    template = Template(
        blank,
        tuple(None if isinstance(c, Tensor) else c for c in captures),
        tuple(slots),
        tuple(map(_is_unit, captured)),
        len(tabled),
        reads,
    )
    return template, [call.query, call.key, call.value, *captured, *tabled]


def needs_parts(call: Attention) -> bool:
    """Whether lse may be so large that its rounding matters.

    Scores of the inputs alone are as inexact as they are large.
    """
    has_score_mod = not call.signature.mods or call.signature.mods[0] is not None
    return has_score_mod and call.kernels != "eager"


def _without_tensors(signature: ModSignature) -> ModSignature:
    """A signature without captures, and without functions that hold them."""
    if type(signature) is ModSignature:
        signature = replace(signature, mods=())
    return replace(signature, captures=())


def _is_unit(tensor: Tensor) -> bool:
    return tensor.dim() == 0 or tensor.stride(-1) == 1


def _dense(tensor: Tensor) -> Tensor:
    """A copy whose last stride is 1."""
    return tensor.clone(memory_format=torch.contiguous_format)
