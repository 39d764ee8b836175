"""Calls that are prepared: what plans are made of, and blocks that they read.

Whoever imports this can trace, lower and compile: a call whose tape is on the disk does
without (see `flexc.runtime.plans`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flexc.runtime.arguments import Results, Tables
from flexc.runtime.autograd.run import run_plain, run_template, settle
from flexc.runtime.autograd.template import (
    Repeats,
    Template,
    blank_tables,
    join_tables,
    split,
)
from flexc.runtime.call import Attention
from flexc.runtime.derivatives import check_gradient
from flexc.runtime.modes import unseen
from flexc.runtime.notes import Capture
from flexc.runtime.plans import Prepare, UnrecordedCall, is_recorded
from flexc.runtime.repeats import KNOWN, Repeated


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
            blocks = self._blocks = blocks_of(key, tensors, captures, prepare())
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
    plan = RecordedCall() if is_recorded(tensors) else UnrecordedCall()
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
