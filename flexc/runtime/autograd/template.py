"""A call without its tensors, which autograd wraps, saves and passes back."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor

from flexc.frontend.closures import ModSignature
from flexc.runtime.autograd.derivatives import Tangents, Wanted, run
from flexc.runtime.inputs.arguments import Outputs, Results, Tables
from flexc.runtime.inputs.wrappers import is_transformed
from flexc.runtime.replay.equal_facts import FactsCache, stream_facts
from flexc.runtime.replay.repeats import TapedWork
from flexc.runtime.replay.stored_tapes import StoredTape

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from flexc.frontend.captured import CapturedMods
    from flexc.runtime.attention.call import Attention

Kind = Literal["static", "row", "capture", "table", "whole"]
"""The kind of an argument.

- "static": no tensor.
- "row": a tensor with the batch as its first dimension.
- "capture": a captured tensor, or a tangent of one.
- "table": a table of blocks, with the batch as its first dimension.
- "whole": all tables of a call in one tensor.
"""

INPUTS = 3
"""The number of inputs before the captures: query, key and value."""

T = TypeVar("T")


@dataclass(frozen=True)
class ReadFacts:
    """Facts of the reads of a call's mods that derivatives depend on."""

    captures: frozenset[int]
    """The captures that score_mod reads and that have derivatives."""
    batch: bool
    """True if a mod reads b."""

    @classmethod
    def of(cls, mods: CapturedMods) -> ReadFacts:
        inputs = () if mods.score is None else mods.score.inputs
        captures = frozenset(
            i.slot
            for i in inputs
            if i.slot is not None and i.rank is not None and i.dtype.is_floating_point
        )
        return cls.of_graphs(captures, [m and m.graph for m in (mods.score, mods.mask)])

    @classmethod
    def of_graphs(
        cls, captures: frozenset[int], graphs: Sequence[GraphModule | None]
    ) -> ReadFacts:
        """Return the facts of the graphs of score and mask."""
        places = zip(graphs, (1, 0), strict=True)
        arguments = [g and g.graph.find_nodes(op="placeholder")[p] for g, p in places]
        return cls(captures, any(a is not None and a.users for a in arguments))


@dataclass(frozen=True, eq=False)
class Template:
    """A call without its tensors.

    The tensors of a call are query, key, value, captured tensors and tables, in this
    order. A template holds none of these tensors, so autograd may free what it saved
    and recompute.
    """

    captures: tuple[Any, ...]
    """The captured numbers, with None in the place of tensors."""
    slots: tuple[int, ...]
    """The places of captured tensors among the captures."""
    units: tuple[bool, ...]
    """A flag for each captured tensor: True if its mods were traced for a last stride
    of 1.
    """
    tables: int
    """The number of table tensors: of rows and of columns, or 1 if they are packed."""
    is_packed: bool
    """True if all tables are one tensor."""
    reads: ReadFacts
    wants_lse: bool
    """True if the call asked for lse. Derivatives need lse in any case."""
    lse_rest: bool
    """True if lse is followed by its rest, the part that its rounding lost."""
    blank: Attention | None
    """The call without tensors. None if the forward's tape came from the disk."""
    repeats: Repeats | None = None
    """Tapes for tensors whose facts equal those of the template's tensors."""

    @property
    def kinds(self) -> list[Kind]:
        """The kinds of the call's tensors."""
        rows: list[Kind] = ["row"] * INPUTS
        captures: list[Kind] = ["capture"] * len(self.slots)
        tables: list[Kind] = ["table"] * self.tables
        if self.is_packed:
            tables = ["whole"]
        return rows + captures + tables

    def bind(self, tensors: Sequence[Tensor]) -> Attention:
        """Return the call with these tensors."""
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
        """Return the captures of the call with these tensors."""
        captures = list(self.captures)
        given = zip(self.slots, self.units, tensors[INPUTS:], strict=False)
        for slot, unit, tensor in given:
            if unit and not _is_unit(tensor):
                tensor = tensor.clone(memory_format=torch.contiguous_format)
            captures[slot] = tensor
        return tuple(captures)

    def run(self, tensors: Sequence[Tensor]) -> Results:
        """Return the results of the call with these tensors."""
        repeats = self.repeats
        if repeats is None:
            return run(self.bind(tensors))
        if (tape := repeats.forward.tape) is not None:
            replayed: Any = tape(tensors)
            return replayed
        found: Any = repeats.forward(
            tensors, tensors[0].device, lambda: (run(self.bind(tensors)), True)
        )
        return found

    def repeat(
        self, what: Hashable, tensors: Sequence[Any], run: Callable[[], Any]
    ) -> Any:
        """Return the results of a derivative, replayed from a tape if there is one.

        `what` identifies the derivative. `run` computes it, and is recorded.
        """
        return run() if self.repeats is None else self.repeats(what, tensors, run)

    def wanted(self, needs: Sequence[bool]) -> Wanted:
        """Return the gradients to compute, of those that the tensors need."""
        return (*needs[:INPUTS], *self._of_captures(needs, False))

    def along(self, tangents: Sequence[Tensor | None]) -> Tangents:
        """Return the tangents of the call's inputs, given those of its tensors."""
        return (*tangents[:INPUTS], *self._of_captures(tangents, None))

    def _of_captures(self, values: Sequence[T], without: T) -> list[T]:
        """Return the values of differentiable captures, `without` for other captures.

        `values` has one entry for each tensor of the call.
        """
        found = [without] * len(self.captures)
        for slot, value in zip(self.slots, values[INPUTS:], strict=False):
            if slot in self.reads.captures:
                found[slot] = value
        return found

    def spread(self, values: Sequence[T], without: T) -> list[T]:
        """Return one value for each tensor, given one for each input of the call.

        Tables get the value `without`.
        """
        captured = [values[INPUTS + slot] for slot in self.slots]
        return [*values[:INPUTS], *captured, *[without] * self.tables]


def split(
    call: Attention, reads: ReadFacts | None = None
) -> tuple[Template, list[Tensor]]:
    """Return a call's template and its tensors. The template asks for lse.

    `reads` are the facts of the mods' reads, if the caller knows them. Without `reads`,
    the mods are traced.
    """
    signature, tables = call.signature, call.tables
    captures = signature.captures
    captured = [c for c in captures if isinstance(c, Tensor)]
    traced = None
    if reads is None:
        traced = call.trace()
        reads = ReadFacts.of(traced)
    tabled = () if tables is None else tables.all_tensors
    gone: Any = None
    blank = replace(
        call,
        query=gone,
        key=gone,
        value=gone,
        tables=tables and blank_tables(tables),
        signature=without_tensors(signature),
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
    """Return the outputs of a call that may be differentiated."""
    return call.outputs._replace(lse=True, lse_rest=needs_rest(call))


def blank_tables(tables: Tables) -> Tables:
    """Return tables without the tensors that `all_tensors` lists."""
    if tables.packed is not None:
        gone: Any = None
        packed = replace(tables.packed, tensor=gone)
        return Tables((), tables.block_size, packed=packed)
    columns = tables.columns and replace(tables.columns, tensors=())
    return replace(tables, tensors=(), columns=columns)


def join_tables(tables: Tables, tensors: Sequence[Tensor]) -> Tables:
    """Return tables with the tensors that `all_tensors` listed."""
    if tables.packed is not None:
        return tables.packed.unpack(tensors[0])
    if tables.columns is None:
        return replace(tables, tensors=tuple(tensors))
    half = len(tensors) // 2
    columns = replace(tables.columns, tensors=tuple(tensors[half:]))
    return replace(tables, tensors=tuple(tensors[:half]), columns=columns)


class Repeats:
    """Tapes of a template's forward and of its derivatives."""

    __slots__ = (
        "_blank", "_derived", "_device", "_is_known", "_prepare", "_stored", "forward",
    )  # fmt: skip

    def __init__(
        self,
        device: torch.device,
        stored: StoredTape | None = None,
        prepare: Callable[[Template, Sequence[Tensor]], Attention] | None = None,
        is_known: bool = False,
    ):
        """Make the tapes of a template for a device.

        `stored` is the place of the forward's tape on the disk, if it has one. If that
        tape was loaded, `prepare` makes the call without tensors. Derivatives without a
        tape need this call. Work is recorded when it first runs if calls like this one
        ran before or will likely repeat (`is_known`), else when it runs again.
        """
        self._device = device
        self._is_known = is_known
        self._prepare = prepare
        self._stored = stored
        self._blank: Attention | None = None
        self.forward = TapedWork(is_known, stored)
        """The tape for tensors whose facts are those of the template."""
        self._derived = FactsCache(MAX_DERIVED)

    def blank(self, template: Template, tensors: Sequence[Tensor]) -> Attention:
        """Return the call without tensors of a template from the disk."""
        if self._blank is not None:
            return self._blank
        assert self._prepare is not None
        blank = self._prepare(template, tensors)
        if not is_transformed():  # No blocks are planned within transforms.
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

    def _make(self, tensors: Sequence[Any], facts: Any, is_known: bool) -> TapedWork:
        """Return the tape, perhaps from the disk, for tensors of these facts."""
        ((what, stream), settings), of_tensors = facts
        is_captured = stream is not None and stream[1]
        stored = None if is_captured else self._stored
        if stored is not None:  # Another process numbers its streams differently.
            stored = stored.companion((what, settings, of_tensors))
        return TapedWork(self._is_known or is_known, stored)


MAX_DERIVED = 32
"""The number of derivatives of a template that are cached."""


def needs_rest(call: Attention) -> bool:
    """Return True if lse may be so large that its rounding matters.

    Scores without a score_mod have a rounding error in proportion to their size, so the
    rest of lse is not needed.
    """
    has_score_mod = not call.signature.mods or call.signature.mods[0] is not None
    return has_score_mod and not call.computed_by.is_dense


def without_tensors(signature: ModSignature) -> ModSignature:
    """Return a signature without captures, and without functions that hold them."""
    if type(signature) is ModSignature:
        signature = replace(signature, mods=())
    return replace(signature, captures=())


def _is_unit(tensor: Tensor) -> bool:
    return tensor.dim() == 0 or tensor.stride(-1) == 1
