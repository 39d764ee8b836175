"""Plans of calls: what is done once for all calls of equal facts.

Of a call the mods' signature, captured numbers, and shapes, strides, dtypes and
alignment of its tensors say what is checked, planned, allocated and launched. So they
find its plan: a tape where no gradient is recorded, and where one is a template, whose
Functions have tapes of their own.

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
from flexc.runtime.notes import Capture, Notes, are_still
from flexc.runtime.repeats import Repeated, facts_of, kept
from flexc.runtime.stored_tapes import StoredTape
from flexc.runtime.streams import is_capturing, stream_of
from flexc.runtime.wrappers import PLAIN

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
    if not signature.cacheable:
        return run_attention(prepare())
    query, tensors = operands[0], operands + signature.captures
    facts = facts_of(tensors, query.device)
    if facts is None:
        return run_attention(prepare())
    needs = needs_of(tensors)
    plan = RecordedCall if needs else UnrecordedCall
    if block_mask is None:
        key = (facts, signature.key, rest, needs)
        call = kept(key, plan) if needs else kept(key, plan, key)
        return call(tensors, None, prepare)
    if is_capturing(query):
        return run_attention(prepare())  # The graph would outlive what is kept.
    shape = (block_mask.BLOCK_SIZE, block_mask.seq_lengths, stream_of(query.device))
    key = (facts, signature.key, rest, needs, shape)
    notes = Notes.of(block_mask)
    blocks: Blocks | None = notes.kept.get(key)
    if blocks is None or not blocks.are_of(signature.captures):
        blocks = blocks_of(prepare(), signature.captures, key, plan)
        notes.keep(key, blocks)
    return blocks.plan(tensors + blocks.tensors, blocks.tables, prepare)


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


class UnrecordedCall:
    """Calls of equal facts that record no gradient."""

    __slots__ = ("_repeated", "_stored")

    def __init__(self, facts: tuple[Hashable, ...] | None = None) -> None:
        """Calls of some facts, the mods' key second; of None no tape is stored."""
        self._repeated = Repeated()
        self._stored = None if facts is None else StoredTape(facts, facts[1])

    def __call__(
        self, tensors: Sequence[Any], tables: Tables | None, prepare: Prepare
    ) -> Results:
        if (tape := self._repeated.tape) is not None:
            replayed: Any = tape(tensors)
            return replayed

        stored = self._stored if tensors[0].is_cpu else None
        if stored is not None and (tape := stored.load()) is not None:
            self._repeated.tape = tape
            first: Any = tape(tensors)
            return first

        def run() -> tuple[Results, bool]:
            call = prepared(prepare, tensors, tables)
            return run_attention(call), may_repeat(call)

        found: Any = self._repeated(tensors, tensors[0].device, run)
        if stored is not None and self._repeated.tape is not None:
            stored.store(self._repeated.tape)
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


@dataclass(frozen=True, eq=False)
class Blocks:
    """The tables that calls of equal facts read of a BlockMask, and their plan."""

    plan: UnrecordedCall | RecordedCall
    tables: Tables | None
    tensors: tuple[Tensor, ...]
    """Those of the tables."""
    captures: tuple[Capture, ...] | None
    """What the mods captured, where blocks are those of these values."""

    def are_of(self, captures: Sequence[Any]) -> bool:
        return self.captures is None or are_still(self.captures, captures)


def blocks_of(
    call: Attention,
    captures: Sequence[Any],
    key: Hashable,
    plan: type[UnrecordedCall | RecordedCall],
) -> Blocks:
    """The blocks of calls like this one, whose facts are the key."""
    with unseen(), torch.no_grad():
        tables = call.with_traced().settle(both=plan is RecordedCall).tables
    tensors = () if tables is None else tables.all_tensors
    found = kept((key, facts_of(tensors, call.query.device)), plan)
    is_own = call.tables is not None and call.tables.replaceable
    noted = tuple(map(Capture.of, captures)) if tables and is_own else None
    return Blocks(found, tables, tensors, noted)
