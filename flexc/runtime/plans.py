"""Plans of calls: what is done once for all calls of equal facts.

Of a call the mods' signature, captured numbers, and shapes, strides, dtypes and
alignment of its tensors say what is checked, planned, allocated and launched. So they
find a `CallPlan`, which knows the tape of a call that records no gradient, and of one
that does its template, whose Functions have tapes of their own.

Without it a call takes some hundred microseconds of Python, more than many a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from flexc.frontend.closures import ModSignature
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
from flexc.runtime.modes import unseen
from flexc.runtime.notes import Source
from flexc.runtime.origin import Capture
from flexc.runtime.repeats import Repeated, facts_of, kept
from flexc.runtime.streams import is_capturing, stream_of
from flexc.runtime.wrappers import PLAIN

MAX_SETTLED = 64
"""Kinds of calls of a BlockMask that are remembered."""

Prepare = Callable[[], Attention]
"""Checks a call, so that it is ready to run."""


def attend(
    operands: tuple[Tensor, Tensor, Tensor],
    signature: ModSignature,
    rest: Hashable,
    prepare: Prepare,
    block_mask: BlockMask | None = None,
) -> Results:
    """The results of a call of (query, key, value).

    `rest` is all else that it depends on. Only a call without a plan is prepared.
    """
    query = operands[0]
    if not signature.cacheable:
        return run_attention(prepare())
    tensors = (*operands, *signature.captures)
    facts = facts_of(tensors, query.device)
    if facts is None:
        return run_attention(prepare())
    needs = needs_of(tensors)
    key = (facts, signature.key, rest, needs)
    if block_mask is None:
        return kept(key, CallPlan, any(needs))(tensors, None, prepare)
    if is_capturing(query):
        return run_attention(prepare())  # The graph would outlive what is kept.
    stream = stream_of(query.device)
    key = (*key, block_mask.BLOCK_SIZE, block_mask.seq_lengths, stream)
    blocks = settled(block_mask, key, signature.captures, prepare, any(needs))
    return blocks.plan((*tensors, *blocks.tensors), blocks.tables, prepare)


def is_plain(query: Any, block_mask: Any = None, mask_mod: Any = None) -> bool:
    """Whether a call may have a plan, going by its query and what masks it."""
    if type(query) not in PLAIN or not (query.is_cpu or query.is_cuda):
        return False
    return block_mask is None or (type(block_mask) is BlockMask and mask_mod is None)


def needs_of(tensors: Sequence[Any]) -> tuple[bool, ...]:
    """Of which a gradient is recorded; nothing where none is."""
    if not torch.is_grad_enabled():
        return ()
    needs = [isinstance(t, Tensor) and t.requires_grad for t in tensors]
    return tuple(needs) if True in needs else ()


class CallPlan:
    """What is known of calls of equal facts."""

    __slots__ = ("_fits", "_known", "_records", "_settle", "_tape", "_template")

    def __init__(self, records: bool):
        self._records = records
        self._known = False
        self._fits = True
        self._template: Template | None = None
        self._settle: Repeated | None = None
        self._tape = Repeated()

    def __call__(
        self, tensors: Sequence[Any], tables: Tables | None, prepare: Prepare
    ) -> Results:
        if self._records:
            return self._recorded(tensors, tables, prepare)
        if (tape := self._tape.tape) is not None:
            replayed: Any = tape(tensors)
            return replayed

        def run() -> tuple[Results, bool]:
            call = prepared(prepare, tensors, tables)
            return run_attention(call), may_repeat(call)

        found: Any = self._tape(tensors, tensors[0].device, run)
        return found

    def _recorded(
        self, tensors: Sequence[Any], tables: Tables | None, prepare: Prepare
    ) -> Results:
        """A call whose gradient is recorded."""
        if self._template is None:
            return self._first(tensors, tables, prepare)
        given = [t for t in tensors if isinstance(t, Tensor)]
        if self._settle is not None:
            given += self._settle(
                tensors, tensors[0].device, lambda: (packed(prepare()), True)
            )
        return run_plain(self._template, given)

    def _first(
        self, tensors: Sequence[Any], tables: Tables | None, prepare: Prepare
    ) -> Results:
        call = prepared(prepare, tensors, tables)
        if not (self._known and self._fits):
            self._known = True
            return run_attention(call)
        check_gradient(call.trace())
        call = settle(call)
        template, given = split(call)
        here = [t for t in tensors if isinstance(t, Tensor)]
        planned = call.tables is not None and call.tables.packed is not None
        same = given[: len(here)] if planned and tables is None else given
        self._fits = may_repeat(call) and _are(same, here)
        if self._fits:
            template = replace(template, repeats=Repeats(call.query.device))
            self._template = template
            if planned and tables is None:
                self._settle = Repeated(is_known=True)
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


@dataclass(frozen=True, eq=False)
class Blocks:
    """The tables that calls of equal facts read of a BlockMask, and their plan."""

    plan: CallPlan
    tables: Tables | None
    captures: tuple[Capture, ...]
    """What the mods captured: finer blocks are those of these values."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return () if self.tables is None else self.tables.all_tensors

    def are_current(self, captures: Sequence[Any]) -> bool:
        pairs = zip(self.captures, captures, strict=False)
        return self.tables is None or all(c.still_is(v) for c, v in pairs)


def settled(
    block_mask: BlockMask,
    key: Hashable,
    captures: Sequence[Any],
    prepare: Prepare,
    records: bool,
) -> Blocks:
    """The blocks of calls of equal facts, kept with the BlockMask."""
    notes = Source.of(block_mask).notes()
    found: Blocks | None = notes.settled.get(key)
    if found is not None and found.are_current(captures):
        return found
    call = prepare().with_traced()
    with unseen(), torch.no_grad():
        tables = call.settle(records).tables
    tensors = () if tables is None else tables.all_tensors
    facts = facts_of(tensors, call.query.device)
    plan = kept((key, facts), CallPlan, records)
    is_own = call.tables is not None and call.tables.replaceable
    noted = tuple(Capture.of(c) for c in captures) if is_own else ()
    if len(notes.settled) >= MAX_SETTLED:
        notes.settled.clear()
    found = notes.settled[key] = Blocks(plan, tables, noted)
    return found
