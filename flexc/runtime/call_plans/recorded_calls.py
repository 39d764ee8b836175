"""Plans of calls of equal facts: tapes, or the template of their Functions.

If a tape is on the disk, no call is prepared, and the modules that trace and lower
calls are not even imported.
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
from flexc.runtime.inputs.wrappers import is_transformed
from flexc.runtime.replay.repeats import TapedWork
from flexc.runtime.replay.stored_tapes import StoredTape
from flexc.runtime.tapes.recorder import without_dispatch_modes

if TYPE_CHECKING:
    from flexc.runtime.attention.call import Attention


Operands = tuple[Tensor, Tensor, Tensor]


class Prepare(Protocol):
    """A function that checks a call of query, key and value, ready to run."""

    def __call__(self, operands: Operands) -> Attention: ...

    def frozen(self) -> Prepare | None:
        """Return a copy that may outlive the call and holds none of its tensors.

        The copy prepares the same call as the original does now. Return None if the
        mods cannot be copied.
        """
        ...


SETTLE = "settle"
"""The name of the tape that plans blocks."""


class UnrecordedCall:
    """Calls of equal facts that record no gradient."""

    __slots__ = ("_repeated",)

    def __init__(self, stored: StoredTape | None = None) -> None:
        """Make a plan. `stored` is the place on the disk where its tape may be."""
        self._repeated = TapedWork(stored=stored)

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
        """Make a plan. `stored` is the place of the forward's tape on the disk."""
        self._is_known = False
        self._stored = stored
        self._template: Template | None = None
        self._settle: TapedWork | None = None
        """The tape that plans blocks. None if no blocks are planned."""

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
        """Run a call without a template. The second such call makes the template."""
        call = prepared(prepare, tensors, tables)
        check_gradient(call.trace())
        call = settle(call)
        template, given = split(call)
        here = [t for t in tensors if isinstance(t, Tensor)]
        plans = template.is_packed and tables is None
        same = given[: len(here)] if plans else given
        if self._is_known and may_repeat(call) and _are(same, here):
            rest = StoredFacts.of(template, plans)
            stored = self._stored and self._stored.with_rest(rest._asdict())
            repeats = Repeats(call.query.device, stored)
            template = replace(template, repeats=repeats)
            self._share(template, plans, is_known=True)
        self._is_known = True
        return run_template(template, given)

    def _load(self, tensors: Sequence[Any], prepare: Prepare) -> Template | None:
        """Return a template whose forward has a tape on the disk, else None."""
        stored = self._stored
        if stored is None or self._is_known:
            return None
        tape, found = stored.load()
        if tape is None or found is None or (frozen := prepare.frozen()) is None:
            return None
        rest = StoredFacts(**found)
        again = partial(prepared_again, frozen, torch.get_default_dtype())
        repeats = Repeats(tensors[0].device, stored, again)
        repeats.forward.tape = tape
        template = rest.template(tensors[INPUTS:], repeats)
        self._share(template, rest.plans, is_known=False)
        return template

    def _share(self, template: Template, plans: bool, is_known: bool) -> None:
        """Use a template for later calls, with a tape that plans blocks if needed."""
        if plans:
            stored = self._stored and self._stored.companion(SETTLE)
            self._settle = TapedWork(is_known, stored)
        self._template = template


class StoredFacts(NamedTuple):
    """Facts of a template that are stored with the tape of its forward."""

    captures: list[int]
    batch: bool
    """True if a mod reads b. Together with `captures`, it says what the mods read."""
    wants_lse: bool
    lse_rest: bool
    plans: bool
    """True if blocks are planned at each call."""

    @classmethod
    def of(cls, template: Template, plans: bool) -> StoredFacts:
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
    """Return the call of these tensors, the last of which are those of `tables`."""
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

    The call is prepared as it was at first: without autocast, because no tensor was
    cast, and with the same default dtype.
    """
    query, key, value, *_ = tensors
    with (
        without_dispatch_modes(),
        torch.no_grad(),
        _without_autocast(),
        _default_dtype(dtype),
    ):
        call = prepare((query, key, value))
        signature = replace(call.signature, captures=template.captured(tensors))
        call = replace(call, signature=signature).with_traced()
        found, given = split(settle(call))
    assert found.blank is not None
    if template.is_packed and not is_transformed():
        # Autograd saved tables of this layout.
        assert given[-1].shape == tensors[-1].shape, "blocks were planned otherwise"
    return found.blank


@contextmanager
def _without_autocast() -> Iterator[None]:
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype within a `with` block."""
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
    """Return the one tensor of the tables that are planned for a call."""
    tables = settle(call).tables
    assert tables is not None
    assert tables.packed is not None
    return (tables.packed.tensor,)


def _are(given: Sequence[Any], tensors: Sequence[Any]) -> bool:
    """Return True if the tensors are the same objects, neither cast nor expanded."""
    pairs = zip(given, tensors, strict=False)
    return len(given) == len(tensors) and all(a is b for a, b in pairs)


def may_repeat(call: Attention) -> bool:
    """Return True if calls with equal facts are equal."""
    return call.signature.cacheable and not call.trace().reads_state


def is_recorded(tensors: Sequence[Any]) -> bool:
    """Return True if autograd records a gradient of one of the tensors."""
    return torch.is_grad_enabled() and any(
        isinstance(t, Tensor) and t.requires_grad for t in tensors
    )


def plan_of(
    tensors: Sequence[Any], stored: StoredTape | None = None
) -> UnrecordedCall | RecordedCall:
    """Return a new plan for calls of such tensors."""
    return RecordedCall(stored) if is_recorded(tensors) else UnrecordedCall(stored)
