"""Calls that are prepared: what plans are made of, and blocks that they read.

Whoever imports this can trace, lower and compile: a call whose tape is on the disk does
without (see `flexc.runtime.plans`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from flexc.runtime.notes import Capture, are_still
from flexc.runtime.plans import Prepare, UnrecordedCall
from flexc.runtime.repeats import Repeated, facts_of, kept


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
    is_recorded: bool,
) -> Blocks:
    """The blocks of calls like this one, whose facts are the key."""
    plan = RecordedCall if is_recorded else UnrecordedCall
    with unseen(), torch.no_grad():
        tables = call.with_traced().settle(both=is_recorded).tables
    tensors = () if tables is None else tables.all_tensors
    found = kept((key, facts_of(tensors, call.query.device)), plan)
    is_own = call.tables is not None and call.tables.replaceable
    noted = tuple(map(Capture.of, captures)) if tables and is_own else None
    return Blocks(found, tables, tensors, noted)
