"""Plans of calls: what is done once for all calls of equal facts.

Of a call the mods' key, captured numbers, and shapes, strides, dtypes and alignment of
its tensors say what is checked, planned, allocated and launched. So they find its plan:
a tape where no gradient is recorded, and where one is a template, whose Functions have
tapes of their own.

Without it a call takes some hundred microseconds of Python, more than many a kernel. A
tape may be on the disk, and then all that traces and lowers calls is not even imported.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from flexc.runtime.arguments import Results, Tables
from flexc.runtime.collection import without_collection
from flexc.runtime.equal_facts import Kept
from flexc.runtime.notes import MAX_KEPT, Notes
from flexc.runtime.repeats import KNOWN, Repeated
from flexc.runtime.stored_tapes import StoredTape
from flexc.runtime.streams import is_capturing, stream_of
from flexc.runtime.wrappers import PLAIN

if TYPE_CHECKING:
    from flexc.runtime.call import Attention
    from flexc.runtime.prepared_calls import MaskedCall, RecordedCall

Prepare = Callable[[], "Attention"]
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
    tables: Tables | None = None,
) -> Results:
    """The results of a call of (query, key, value).

    `mods` is the key of its mods, None where they are traced at every call, and `rest`
    all else that it depends on. Only a call without a plan is prepared. Tables that are
    given in place of a BlockMask were checked, and are read as they are.
    """
    if mods is None:
        return run_call(prepare())
    tensors, device = operands + captures, operands[0].device
    key: Hashable = (mods, rest, torch.is_grad_enabled())
    if block_mask is None:
        make = plan_of
        if tables is not None:
            tensors, make = tensors + tables.all_tensors, unstored_plan_of
        plan = KNOWN.find(key, tensors, device, make)
        if plan is None:
            return run_call(prepare())
        return plan(tensors, tables, prepare)
    if is_capturing(operands[0]):
        return run_call(prepare())  # The graph would outlive what is kept.
    shape = (block_mask.BLOCK_SIZE, block_mask.seq_lengths, stream_of(device))
    key = (key, shape)
    notes = Notes.of(block_mask)
    calls = notes.kept.get(CALLS)
    if calls is None:
        calls = notes.keep(CALLS, Kept(MAX_KEPT))
    masked = calls.find(key, tensors, device, masked_call)
    if masked is None:
        return run_call(prepare())
    return masked(key, tensors, captures, prepare)


def run_call(call: Attention) -> Results:
    """Run a call without a plan."""
    from flexc.runtime.autograd.run import run_attention

    return run_attention(call)


def plan_of(tensors: Sequence[Any], facts: Any) -> UnrecordedCall | RecordedCall:
    """Return a new plan of calls of such tensors; a CPU's tape may be on the disk.

    The facts begin with the key that `attend` makes, and that with the mods' key.
    """
    if is_recorded(tensors) or not tensors[0].is_cpu:
        return unstored_plan_of(tensors, facts)
    ((mods, *_), _), _ = facts
    return UnrecordedCall(StoredTape(facts, mods))


def unstored_plan_of(
    tensors: Sequence[Any], facts: Hashable
) -> UnrecordedCall | RecordedCall:
    """Return a new plan of calls of such tensors, whose tape is in memory alone."""
    if not is_recorded(tensors):
        return UnrecordedCall()
    with without_collection():
        from flexc.runtime.prepared_calls import RecordedCall

    return RecordedCall()


def masked_call(tensors: Sequence[Any], facts: Hashable) -> MaskedCall:
    """A new plan of calls of such tensors with a BlockMask."""
    with without_collection():
        from flexc.runtime.prepared_calls import MaskedCall

    return MaskedCall()


def is_plain(query: Any, block_mask: Any = None, mask_mod: Any = None) -> bool:
    """Whether a call may have a plan, going by its query and what masks it."""
    if type(query) not in PLAIN or not (query.is_cpu or query.is_cuda):
        return False
    return block_mask is None or (type(block_mask) is BlockMask and mask_mod is None)


def is_recorded(tensors: Sequence[Any]) -> bool:
    """Whether a gradient is recorded of some."""
    return torch.is_grad_enabled() and any(
        isinstance(t, Tensor) and t.requires_grad for t in tensors
    )


class UnrecordedCall:
    """Calls of equal facts that record no gradient."""

    __slots__ = ("_repeated", "_stored")

    def __init__(self, stored: StoredTape | None = None) -> None:
        """`stored` is the place of their tape on the disk, if it may be there."""
        self._repeated = Repeated()
        self._stored = stored

    def __call__(
        self, tensors: Sequence[Any], tables: Tables | None, prepare: Prepare
    ) -> Results:
        if (tape := self._repeated.tape) is not None:
            replayed: Any = tape(tensors)
            return replayed

        stored = self._stored
        if stored is not None and (tape := stored.load()) is not None:
            self._repeated.tape = tape
            first: Any = tape(tensors)
            return first

        def run() -> tuple[Results, bool]:
            with without_collection():
                from flexc.runtime.prepared_calls import may_repeat, prepared

            call = prepared(prepare, tensors, tables)
            return run_call(call), may_repeat(call)

        found: Any = self._repeated(tensors, tensors[0].device, run)
        if stored is not None and self._repeated.tape is not None:
            stored.store(self._repeated.tape)
        return found
