"""A call apart from its tensors, which autograd wraps, saves and hands back."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from flexc.frontend.closures import ModSignature
from flexc.runtime.autograd.batching import Kind
from flexc.runtime.autograd.derivatives import Gradients, Wanted
from flexc.runtime.inputs.arguments import (
    Outputs,
    Results,
    Tables,
)
from flexc.runtime.inputs.transforms import is_transformed
from flexc.runtime.replay.equal_facts import Kept, stream_facts
from flexc.runtime.replay.repeats import Repeated
from flexc.runtime.replay.stored_tapes import StoredTape

if TYPE_CHECKING:
    from torch.fx import Node

    from flexc.frontend.captured import CapturedMods
    from flexc.runtime.attention.call import Attention

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

    captures: tuple[Any, ...]
    """The captured numbers, None for tensors."""
    slots: tuple[int, ...]
    """The places of captured tensors among the captures."""
    units: tuple[bool, ...]
    """Whether a captured tensor's last stride is 1: its mods were traced for that."""
    tables: int
    """How many tables there are: of rows and of columns, or one with both in it."""
    is_packed: bool
    """Whether all tables are one tensor."""
    reads: Reads
    wants_lse: bool
    """Whether the call asked for lse, which derivatives need in any case."""
    lse_rest: bool
    """Whether lse has its rest beside it."""
    blank: Attention | None
    """The call without tensors; None if the forward's tape came from the disk."""
    repeats: Repeats | None = None
    """Tapes for tensors like those that the template was made of."""

    @property
    def kinds(self) -> list[Kind]:
        """What the tensors are."""
        rows: list[Kind] = ["row"] * INPUTS
        captures: list[Kind] = ["capture"] * len(self.slots)
        tables: list[Kind] = ["table"] * self.tables
        if self.is_packed:
            tables = ["whole"]
        return rows + captures + tables

    def bind(self, tensors: Sequence[Tensor]) -> Attention:
        """The call of these tensors."""
        query, key, value, *rest = tensors
        blank = self.blank
        if blank is None:
            assert self.repeats is not None
            blank = self.repeats.blank(self, tensors)
        return replace(
            blank,
            query=query,
            key=key,
            value=value,
            tables=blank.tables and join_tables(blank.tables, rest[len(self.slots) :]),
            signature=replace(blank.signature, captures=self.captured(tensors)),
        )

    def captured(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """Return the captures of the call of these tensors."""
        captures = list(self.captures)
        given = zip(self.slots, self.units, tensors[INPUTS:], strict=False)
        for slot, unit, tensor in given:
            captures[slot] = tensor if not unit or _is_unit(tensor) else _dense(tensor)
        return tuple(captures)

    def run(self, tensors: Sequence[Tensor]) -> Results:
        """The results of the call of these tensors."""
        repeats = self.repeats
        if repeats is None:
            return self.bind(tensors).run()
        if (tape := repeats.forward.tape) is not None:
            replayed: Any = tape(tensors)
            return replayed
        found: Any = repeats.forward(
            tensors, tensors[0].device, lambda: (self.bind(tensors).run(), True)
        )
        return found

    def repeat(
        self, what: Hashable, tensors: Sequence[Any], run: Callable[[], Any]
    ) -> Any:
        """The results of a derivative at tensors like those of the template."""
        return run() if self.repeats is None else self.repeats(what, tensors, run)

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
    captured = [c for c in captures if isinstance(c, Tensor)]
    traced = None
    if reads is None:
        traced = call.trace()
        reads = Reads.of(traced)
    tabled = () if tables is None else tables.all_tensors
    gone: Any = None
    blank = replace(
        call,
        query=gone,
        key=gone,
        value=gone,
        tables=tables and blank_tables(tables),
        signature=_without_tensors(signature),
        outputs=outputs_with_lse(call),
        traced=traced,
    )
    template = Template(
        *facts_of_captures(captures),
        len(tabled),
        tables is not None and tables.packed is not None,
        reads,
        call.outputs.lse,
        blank.outputs.lse_rest,
        blank,
    )
    return template, [call.query, call.key, call.value, *captured, *tabled]


def facts_of_captures(
    captures: Sequence[Any],
) -> tuple[tuple[Any, ...], tuple[int, ...], tuple[bool, ...]]:
    """Return `captures`, `slots` and `units` of a template."""
    slots = tuple(i for i, c in enumerate(captures) if isinstance(c, Tensor))
    numbers = tuple(None if isinstance(c, Tensor) else c for c in captures)
    return numbers, slots, tuple(_is_unit(captures[slot]) for slot in slots)


def outputs_with_lse(call: Attention) -> Outputs:
    """Return the outputs of a call whose derivatives may be asked for."""
    return replace(call.outputs, lse=True, lse_rest=needs_rest(call))


def blank_tables(tables: Tables) -> Tables:
    """Tables without the tensors that `all_tensors` lists."""
    if tables.packed is not None:
        gone: Any = None
        packed = replace(tables.packed, tensor=gone)
        return Tables((), tables.block_size, packed=packed)
    columns = tables.columns and replace(tables.columns, tensors=())
    return replace(tables, tensors=(), columns=columns)


def join_tables(tables: Tables, tensors: Sequence[Tensor]) -> Tables:
    """Tables with the tensors that `all_tensors` listed."""
    if tables.packed is not None:
        return tables.packed.unpack(tensors[0])
    if tables.columns is None:
        return replace(tables, tensors=tuple(tensors))
    half = len(tensors) // 2
    columns = replace(tables.columns, tensors=tuple(tensors[half:]))
    return replace(tables, tensors=tuple(tensors[:half]), columns=columns)


class Repeats:
    """Tapes of a template's forward and of its derivatives."""

    __slots__ = ("_blank", "_derived", "_device", "_prepare", "_stored", "forward")

    def __init__(
        self,
        device: torch.device,
        stored: StoredTape | None = None,
        prepare: Callable[[Template, Sequence[Tensor]], Attention] | None = None,
    ):
        """`stored` is the place of the forward's tape on the disk, if it has one.

        If that was loaded, `prepare` makes the call, without tensors, for derivatives
        without a tape, which are run once before they are recorded.
        """
        self._device = device
        self._prepare = prepare
        self._stored = stored
        self._blank: Attention | None = None
        self.forward = Repeated(prepare is None, stored)
        """Of tensors whose facts are those of the template."""
        self._derived = Kept(MAX_DERIVED)

    def blank(self, template: Template, tensors: Sequence[Tensor]) -> Attention:
        """Return the call without tensors of a template from the disk."""
        if self._blank is not None:
            return self._blank
        assert self._prepare is not None
        blank = self._prepare(template, tensors)
        if not is_transformed():  # There no blocks are planned.
            self._blank = blank
        return blank

    def __call__(
        self, what: Hashable, tensors: Sequence[Any], run: Callable[[], Any]
    ) -> Any:
        key = (what, stream_facts(self._device))
        found = self._derived.find(key, tensors, self._device, self._make)
        if found is None:
            return run()
        if found.tape is not None:
            return found.tape(tensors)
        return found(tensors, self._device, lambda: (run(), True))

    def _make(self, tensors: Sequence[Any], facts: Any) -> Repeated:
        """Return what is done to such tensors; its tape may be on the disk."""
        ((what, stream), settings), of_tensors = facts
        is_captured = stream is not None and stream[1]
        stored = None if is_captured else self._stored
        if stored is not None:  # Streams have other numbers in other processes.
            stored = stored.beside((what, settings, of_tensors))
        return Repeated(self._prepare is None, stored)


MAX_DERIVED = 32
"""Derivatives of a template that are remembered, by their cotangents' facts."""


def needs_rest(call: Attention) -> bool:
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
