"""What calls of equal facts share: their tapes, or the template of their Functions.

A CPU's tapes may be on the disk. Then no call is prepared, and all that traces and
lowers calls is not even imported.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from flexc.errors import GradientError
from flexc.runtime.arguments import Results, Tables
from flexc.runtime.autograd.run import (
    run_attention,
    run_plain,
    run_template,
    settle,
)
from flexc.runtime.autograd.template import (
    INPUTS,
    Reads,
    Repeats,
    Template,
    blank_tables,
    facts_of_captures,
    join_tables,
    split,
)
from flexc.runtime.derivatives import check_gradient
from flexc.runtime.modes import unseen
from flexc.runtime.notes import Capture
from flexc.runtime.repeats import KNOWN, Repeated
from flexc.runtime.stored_tapes import StoredTape

if TYPE_CHECKING:
    from flexc.runtime.call import Attention

Operands = tuple[Tensor, Tensor, Tensor]

Prepare = Callable[[Operands], "Attention"]
"""Checks a call of query, key and value, so that it is ready to run.

It holds the mods, but none of the three: the template of a call may keep it."""

SETTLE = "settle"
"""The tape that plans blocks."""


class UnrecordedCall:
    """Calls of equal facts that record no gradient."""

    __slots__ = ("_repeated",)

    def __init__(self, stored: StoredTape | None = None) -> None:
        """`stored` is the place of their tape on the disk, if it may be there."""
        self._repeated = Repeated(stored=stored)

    def __call__(
        self, tensors: Sequence[Any], tables: Tables | None, prepare: Prepare
    ) -> Results:
        if (tape := self._repeated.tape) is not None:
            replayed: Any = tape(tensors)
            return replayed

        def run() -> tuple[Results, bool]:
            call = prepared(prepare, tensors, tables)
            return run_attention(call), may_repeat(call)

        found: Any = self._repeated(tensors, tensors[0].device, run)
        return found


class RecordedCall:
    """Calls of equal facts whose gradients are recorded."""

    __slots__ = ("_is_known", "_mods", "_settle", "_stored", "_template")

    def __init__(self, stored: StoredTape | None = None, mods: Hashable = None) -> None:
        """`stored` is the place of the forward's tape on the disk, `mods` their key."""
        self._is_known = False
        self._mods = mods
        self._stored = stored
        self._template: Template | None = None
        self._settle: Repeated | None = None
        """What plans blocks; None where none are planned."""

    def __call__(
        self, tensors: Sequence[Any], tables: Tables | None, prepare: Prepare
    ) -> Results:
        template = self._template or self._load(tensors)
        if template is None:
            return self._first(tensors, tables, prepare)
        if template.blank is None:
            again = partial(prepared_again, prepare, self._mods)
            template = template.prepared_by(again)
        given = [t for t in tensors if isinstance(t, Tensor)]
        if self._settle is not None:
            given += self._settle(
                tensors,
                tensors[0].device,
                lambda: (packed(prepared(prepare, tensors, None)), True),
            )
        return run_plain(template, given)

    def _first(
        self, tensors: Sequence[Any], tables: Tables | None, prepare: Prepare
    ) -> Results:
        """A call without a template: the second makes one that fits all others."""
        call = prepared(prepare, tensors, tables)
        check_gradient(call.trace())
        call = settle(call)
        template, given = split(call)
        here = [t for t in tensors if isinstance(t, Tensor)]
        plans = template.is_packed and tables is None
        same = given[: len(here)] if plans else given
        if self._is_known and may_repeat(call) and _are(same, here):
            template = self._with_tapes(template, plans, call.query.device)
        self._is_known = True
        return run_template(template, given)

    def _with_tapes(
        self, template: Template, plans: bool, device: torch.device
    ) -> Template:
        """Have later calls share a template, whose tapes are kept and stored."""
        stored = self._stored
        if stored is not None:
            reads = template.reads
            stored.rest = {
                "captures": sorted(reads.captures),
                "batch": reads.batch,
                "wants_lse": template.wants_lse,
                "lse_rest": template.lse_rest,
                "plans": plans,
            }
        template = replace(template, repeats=Repeats(device, stored))
        self._share(template, plans, is_known=True)
        return template

    def _load(self, tensors: Sequence[Any]) -> Template | None:
        """Return a template whose forward has a tape on the disk."""
        stored = self._stored
        if stored is None or self._is_known:
            return None
        repeats = Repeats(tensors[0].device, stored, is_known=False)
        if repeats.forward.load() is None:
            return None
        rest = stored.rest
        template = Template(
            *facts_of_captures(tensors[INPUTS:]),
            tables=int(rest["plans"]),
            is_packed=rest["plans"],
            reads=Reads(frozenset(rest["captures"]), rest["batch"]),
            wants_lse=rest["wants_lse"],
            lse_rest=rest["lse_rest"],
            blank=None,
            repeats=repeats,
        )
        self._share(template, rest["plans"], is_known=False)
        return template

    def _share(self, template: Template, plans: bool, is_known: bool) -> None:
        """Have later calls take a template, and plan blocks if need be."""
        stored = self._stored
        if plans:
            beside = None if stored is None else stored.beside(SETTLE)
            self._settle = Repeated(is_known, beside)
        self._template = template


def prepared(
    prepare: Prepare, tensors: Sequence[Any], tables: Tables | None
) -> Attention:
    """The call of tensors, whose tables come last if they are known."""
    query, key, value, *_ = tensors
    call = prepare((query, key, value)).with_traced()
    if tables is None:
        return call
    given = tensors[len(tensors) - len(tables.all_tensors) :]
    tables = join_tables(blank_tables(tables), given)
    return replace(call, tables=tables, settled=True)


def prepared_again(
    prepare: Prepare, mods: Hashable, template: Template, tensors: Sequence[Tensor]
) -> Attention:
    """Return the call of a template from the disk, without tensors."""
    query, key, value, *_ = tensors
    call = prepare((query, key, value))
    if call.signature.key != mods:
        raise GradientError(
            "the functions that a mod calls were exchanged between attention and its "
            "gradient; exchange them after backward()"
        )
    signature = replace(call.signature, captures=template.captured(tensors))
    with unseen(), torch.no_grad():
        call = replace(call, signature=signature).with_traced()
        blank = split(settle(call))[0].blank
    assert blank is not None
    return blank


def packed(call: Attention) -> tuple[Tensor]:
    """The one tensor of the tables that are planned for a call."""
    tables = settle(call).tables
    assert tables is not None
    assert tables.packed is not None
    return (tables.packed.tensor,)


def _are(given: Sequence[Any], tensors: Sequence[Any]) -> bool:
    """Whether tensors are given as they are, neither cast nor expanded."""
    pairs = zip(given, tensors, strict=False)
    return len(given) == len(tensors) and all(a is b for a, b in pairs)


def may_repeat(call: Attention) -> bool:
    """Whether equal facts mean an equal call."""
    return call.signature.cacheable and not call.trace().reads_state


def is_recorded(tensors: Sequence[Any]) -> bool:
    """Whether a gradient is recorded of some."""
    return torch.is_grad_enabled() and any(
        isinstance(t, Tensor) and t.requires_grad for t in tensors
    )


def plan_of(
    tensors: Sequence[Any], stored: StoredTape | None = None, mods: Hashable = None
) -> UnrecordedCall | RecordedCall:
    """Return a new plan of calls of such tensors."""
    if is_recorded(tensors):
        return RecordedCall(stored, mods)
    return UnrecordedCall(stored)


class MaskedCall:
    """Calls of equal facts with a BlockMask: the tables that they read, and a plan."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: Blocks | None = None
        """Exchanged as a whole: other threads read it meanwhile."""

    def __call__(
        self,
        key: Hashable,
        tensors: tuple[Any, ...],
        captures: Sequence[Any],
        prepare: Prepare,
    ) -> Results:
        blocks = self._blocks
        if blocks is None or not blocks.are_of(captures):
            call = prepare(tensors[:INPUTS])
            blocks = self._blocks = blocks_of(key, tensors, captures, call)
        return blocks.plan(tensors + blocks.tensors, blocks.tables, prepare)


class Blocks(NamedTuple):
    """The tables that a call reads of a BlockMask, and the plan of such calls."""

    plan: UnrecordedCall | RecordedCall
    tables: Tables | None
    tensors: tuple[Tensor, ...]
    """Those of the tables."""
    noted: tuple[tuple[int, Capture], ...]
    """What the mask captured, by its places, where blocks are those of these values."""

    def are_of(self, captures: Sequence[Any]) -> bool:
        return all(capture.still_is(captures[place]) for place, capture in self.noted)


def blocks_of(
    key: Hashable, tensors: tuple[Any, ...], captures: Sequence[Any], call: Attention
) -> Blocks:
    """Find the tables of a call, and the plan of all calls with such tables."""
    plan = plan_of(tensors)
    with unseen(), torch.no_grad():
        call = call.with_traced()
        tables = call.settle(both=isinstance(plan, RecordedCall)).tables
    held = () if tables is None else tables.all_tensors
    is_own = call.tables is not None and call.tables.replaceable
    mask = call.trace().mask
    read = {i.slot for i in mask.inputs} if mask and tables and is_own else set()
    noted = tuple((i, Capture.of(c)) for i, c in enumerate(captures) if i in read)
    found = KNOWN.find(key, tensors + held, call.query.device, lambda *_: plan)
    return Blocks(plan if found is None else found, tables, held, noted)
