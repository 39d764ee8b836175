"""Plans of calls: what is done once for all calls of equal facts.

Of a call the mods' signature, captured numbers, and shapes, strides, dtypes and
alignment of its tensors say what is checked, planned, allocated and launched. So they
find its plan: a tape where no gradient is recorded, and where one is a template, whose
Functions have tapes of their own.

Without it a call takes some hundred microseconds of Python, more than many a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from flexc.runtime.arguments import Tables
from flexc.runtime.autograd.run import (
    run_attention,
    run_plain,
    run_template,
    settle,
)
from flexc.runtime.autograd.template import (
    Repeats,
    Results,
    Template,
    blank_tables,
    join_tables,
    split,
)
from flexc.runtime.call import Attention
from flexc.runtime.derivatives import check_gradient
from flexc.runtime.equal_facts import Kept
from flexc.runtime.modes import unseen
from flexc.runtime.notes import MAX_KEPT, Capture, Notes, are_still
from flexc.runtime.repeats import KNOWN, Repeated
from flexc.runtime.streams import is_capturing, stream_of
from flexc.runtime.wrappers import PLAIN

Prepare = Callable[[], Attention]
"""Checks a call, so that it is ready to run."""

CALLS = "calls"
"""Where calls with a BlockMask are kept with it."""


def attend(
    operands: tuple[Tensor, Tensor, Tensor],
    mods: Hashable,
    captures: tuple[Any, ...],
    rest: Hashable,
    prepare: Prepare,
    block_mask: BlockMask | None = None,
) -> Results:
    """The results of a call of (query, key, value).

    `mods` is the key of its mods, None where they are traced at every call, and `rest`
    all else that it depends on. Only a call without a plan is prepared.
    """
    if mods is None:
        return run_attention(prepare())
    tensors, device = operands + captures, operands[0].device
    key = (mods, rest, torch.is_grad_enabled())
    if block_mask is None:
        plan = KNOWN.find(key, tensors, device, plan_of)
        if plan is None:
            return run_attention(prepare())
        return plan(tensors, None, prepare)
    if is_capturing(operands[0]):
        return run_attention(prepare())  # The graph would outlive what is kept.
    shape = (block_mask.BLOCK_SIZE, block_mask.seq_lengths, stream_of(device))
    key = (key, shape)
    notes = Notes.of(block_mask)
    calls = notes.kept.get(CALLS)
    if calls is None:
        calls = notes.keep(CALLS, Kept(MAX_KEPT))
    masked = calls.find(key, tensors, device, MaskedCall)
    if masked is None:
        return run_attention(prepare())
    return masked(key, tensors, captures, prepare)


def is_plain(query: Any, block_mask: Any = None, mask_mod: Any = None) -> bool:
    """Whether a call may have a plan, going by its query and what masks it."""
    if type(query) not in PLAIN or not (query.is_cpu or query.is_cuda):
        return False
    return block_mask is None or (type(block_mask) is BlockMask and mask_mod is None)


def plan_of(tensors: Sequence[Any]) -> UnrecordedCall | RecordedCall:
    """A new plan of calls of such tensors."""
    is_recorded = torch.is_grad_enabled() and any(
        isinstance(t, Tensor) and t.requires_grad for t in tensors
    )
    return RecordedCall() if is_recorded else UnrecordedCall()


class UnrecordedCall:
    """Calls of equal facts that record no gradient."""

    __slots__ = ("_repeated",)

    def __init__(self) -> None:
        self._repeated = Repeated()

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

    __slots__ = ("_is_known", "_settle", "_template")

    def __init__(self) -> None:
        self._is_known = False
        self._template: Template | None = None
        self._settle: Repeated | None = None
        """What plans blocks; None where none are planned."""

    def __call__(
        self, tensors: Sequence[Any], tables: Tables | None, prepare: Prepare
    ) -> Results:
        template = self._template
        if template is None:
            return self._first(tensors, tables, prepare)
        given = [t for t in tensors if isinstance(t, Tensor)]
        if self._settle is not None:
            given += self._settle(
                tensors, tensors[0].device, lambda: (packed(prepare()), True)
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
        planned = call.tables is not None and call.tables.packed is not None
        same = given[: len(here)] if planned and tables is None else given
        if self._is_known and may_repeat(call) and _are(same, here):
            template = replace(template, repeats=Repeats(call.query.device))
            self._template = template
            if planned and tables is None:
                self._settle = Repeated(is_known=True)
        self._is_known = True
        return run_template(template, given)


def prepared(
    prepare: Prepare, tensors: Sequence[Any], tables: Tables | None
) -> Attention:
    """The call of tensors, whose tables come last if they are known."""
    call = prepare().with_traced()
    if tables is None:
        return call
    given = tensors[len(tensors) - len(tables.all_tensors) :]
    tables = join_tables(blank_tables(tables), given)
    return replace(call, tables=tables, settled=True)


def packed(call: Attention) -> tuple[Tensor]:
    """The one tensor of the tables that are planned for a call."""
    tables = settle(call.with_traced()).tables
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


class MaskedCall:
    """Calls of equal facts with a BlockMask: the tables that they read, and a plan."""

    __slots__ = ("_captures", "_plan", "_tables", "_tensors")

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._plan: UnrecordedCall | RecordedCall | None = None
        self._tables: Tables | None = None
        self._tensors: tuple[Tensor, ...] = ()
        """Those of the tables."""
        self._captures: tuple[Capture, ...] | None = None
        """What the mods captured, where blocks are those of these values."""

    def __call__(
        self,
        key: Hashable,
        tensors: tuple[Any, ...],
        captures: Sequence[Any],
        prepare: Prepare,
    ) -> Results:
        noted = self._captures
        if self._plan is None or (noted is not None and not are_still(noted, captures)):
            self._find(key, tensors, captures, prepare)
        assert self._plan is not None
        return self._plan(tensors + self._tensors, self._tables, prepare)

    def _find(
        self,
        key: Hashable,
        tensors: tuple[Any, ...],
        captures: Sequence[Any],
        prepare: Prepare,
    ) -> None:
        """Find the tables of a call, and the plan of all calls with such tables."""
        call, plan = prepare(), plan_of(tensors)
        with unseen(), torch.no_grad():
            both = isinstance(plan, RecordedCall)
            tables = call.with_traced().settle(both=both).tables
        self._tables = tables
        self._tensors = () if tables is None else tables.all_tensors
        is_own = call.tables is not None and call.tables.replaceable
        self._captures = tuple(map(Capture.of, captures)) if tables and is_own else None
        found = KNOWN.find(
            key, tensors + self._tensors, call.query.device, lambda _: plan
        )
        self._plan = plan if found is None else found
