"""What calls of equal facts share: their tapes, or the template of their Functions.

Tapes may be on the disk. Then no call is prepared, and all that traces and lowers calls
is not even imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from flexc.runtime.autograd.derivatives import check_gradient
from flexc.runtime.autograd.run import run_attention, run_plain, run_template, settle
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
from flexc.runtime.inputs.arguments import Results, Tables
from flexc.runtime.inputs.transforms import is_transformed
from flexc.runtime.replay.repeats import Repeated
from flexc.runtime.replay.stored_tapes import StoredTape
from flexc.runtime.tapes.modes import unseen

if TYPE_CHECKING:
    from flexc.runtime.attention.call import Attention


Operands = tuple[Tensor, Tensor, Tensor]


class Prepare(Protocol):
    """Checks a call of query, key and value, so that it is ready to run."""

    def __call__(self, operands: Operands) -> Attention: ...

    def frozen(self) -> Prepare | None:
        """Return one that may outlive the call, and holds none of its tensors.

        It prepares what this one would have prepared at the call. None where mods
        cannot be copied.
        """
        ...


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

    __slots__ = ("_is_known", "_settle", "_stored", "_template")

    def __init__(self, stored: StoredTape | None = None) -> None:
        """`stored` is the place of the forward's tape on the disk."""
        self._is_known = False
        self._stored = stored
        self._template: Template | None = None
        self._settle: Repeated | None = None
        """What plans blocks; None where none are planned."""

    def __call__(
        self, tensors: Sequence[Any], tables: Tables | None, prepare: Prepare
    ) -> Results:
        template = self._template or self._load(tensors, prepare)
        if template is None:
            return self._first(tensors, tables, prepare)
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
            rest = Rest.of(template, plans)
            stored = self._stored and self._stored.with_rest(rest._asdict())
            repeats = Repeats(call.query.device, stored)
            template = replace(template, repeats=repeats)
            self._share(template, plans, is_known=True)
        self._is_known = True
        return run_template(template, given)

    def _load(self, tensors: Sequence[Any], prepare: Prepare) -> Template | None:
        """Return a template whose forward has a tape on the disk."""
        stored = self._stored
        if stored is None or self._is_known:
            return None
        tape, found = stored.load()
        if tape is None or found is None or (frozen := prepare.frozen()) is None:
            return None
        rest = Rest(**found)
        again = partial(prepared_again, frozen, torch.get_default_dtype())
        repeats = Repeats(tensors[0].device, stored, again)
        repeats.forward.tape = tape
        template = rest.template(tensors[INPUTS:], repeats)
        self._share(template, rest.plans, is_known=False)
        return template

    def _share(self, template: Template, plans: bool, is_known: bool) -> None:
        """Have later calls take a template, and plan blocks if need be."""
        if plans:
            beside = None if self._stored is None else self._stored.beside(SETTLE)
            self._settle = Repeated(is_known, beside)
        self._template = template


class Rest(NamedTuple):
    """What is stored beside the tape of a forward: facts of its template."""

    captures: list[int]
    batch: bool
    """With `captures`, what the mods read."""
    wants_lse: bool
    lse_rest: bool
    plans: bool
    """Whether blocks are planned at each call."""

    @classmethod
    def of(cls, template: Template, plans: bool) -> Rest:
        reads = template.reads
        captures = sorted(reads.captures)
        return cls(captures, reads.batch, template.wants_lse, template.lse_rest, plans)

    def template(self, captures: Sequence[Any], repeats: Repeats) -> Template:
        """Return the template of calls with such captures."""
        return Template(
            *facts_of_captures(captures),
            tables=int(self.plans),
            is_packed=self.plans,
            reads=Reads(frozenset(self.captures), self.batch),
            wants_lse=self.wants_lse,
            lse_rest=self.lse_rest,
            blank=None,
            repeats=repeats,
        )


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
    prepare: Prepare,
    dtype: torch.dtype,
    template: Template,
    tensors: Sequence[Tensor],
) -> Attention:
    """Return the call of a template from the disk, without tensors.

    It is what the call was: no tensor was cast then, whatever autocast says now.
    """
    query, key, value, *_ = tensors
    with unseen(), torch.no_grad(), _without_autocast(), _default_dtype(dtype):
        call = prepare((query, key, value))
        signature = replace(call.signature, captures=template.captured(tensors))
        call = replace(call, signature=signature).with_traced()
        found, given = split(settle(call))
    assert found.blank is not None
    if template.is_packed and not is_transformed():
        # The graph saved tables of this layout.
        assert given[-1].shape == tensors[-1].shape, "blocks were planned otherwise"
    return found.blank


@contextmanager
def _without_autocast() -> Iterator[None]:
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Trace as if torch's default dtype were another."""
    before = torch.get_default_dtype()
    if before == dtype:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


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
    tensors: Sequence[Any], stored: StoredTape | None = None
) -> UnrecordedCall | RecordedCall:
    """Return a new plan of calls of such tensors."""
    return RecordedCall(stored) if is_recorded(tensors) else UnrecordedCall(stored)
