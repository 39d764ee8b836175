"""Plans of calls: what is done once for all calls of equal facts.

Of a call the mods' signature, captured numbers, and shapes, strides, dtypes and
alignment of its tensors say what is checked, planned, allocated and launched. So they
find its plan: a tape where no gradient is recorded, and where one is a template, whose
Functions have tapes of their own.

Without it a call takes some hundred microseconds of Python, more than many a kernel. A
tape may be on the disk, and then all that traces and lowers calls is not even imported.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from flexc.frontend.closures import ModSignature
from flexc.runtime.arguments import Results, Tables
from flexc.runtime.collection import without_collection
from flexc.runtime.notes import Notes
from flexc.runtime.repeats import Repeated, facts_of, kept
from flexc.runtime.stored_tapes import StoredTape
from flexc.runtime.streams import is_capturing, stream_of
from flexc.runtime.wrappers import PLAIN

if TYPE_CHECKING:
    from flexc.runtime.call import Attention
    from flexc.runtime.prepared_calls import Blocks, RecordedCall

Prepare = Callable[[], "Attention"]
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
        return run_call(prepare())
    query, tensors = operands[0], operands + signature.captures
    facts = facts_of(tensors, query.device)
    if facts is None:
        return run_call(prepare())
    needs = needs_of(tensors)
    if block_mask is None:
        key = (facts, signature.key, rest, needs)
        call = kept(key, recorded_call) if needs else kept(key, UnrecordedCall, key)
        return call(tensors, None, prepare)
    if is_capturing(query):
        return run_call(prepare())  # The graph would outlive what is kept.
    shape = (block_mask.BLOCK_SIZE, block_mask.seq_lengths, stream_of(query.device))
    key = (facts, signature.key, rest, needs, shape)
    notes = Notes.of(block_mask)
    blocks: Blocks | None = notes.kept.get(key)
    if blocks is None or not blocks.are_of(signature.captures):
        from flexc.runtime.prepared_calls import blocks_of

        blocks = blocks_of(prepare(), signature.captures, key, bool(needs))
        notes.keep(key, blocks)
    return blocks.plan(tensors + blocks.tensors, blocks.tables, prepare)


def run_call(call: Attention) -> Results:
    """Run a call without a plan."""
    from flexc.runtime.autograd.run import run_attention

    return run_attention(call)


def recorded_call() -> RecordedCall:
    """Return a plan of calls whose gradients are recorded."""
    with without_collection():
        from flexc.runtime.prepared_calls import RecordedCall

    return RecordedCall()


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
            with without_collection():
                from flexc.runtime.prepared_calls import may_repeat, prepared

            call = prepared(prepare, tensors, tables)
            return run_call(call), may_repeat(call)

        found: Any = self._repeated(tensors, tensors[0].device, run)
        if stored is not None and self._repeated.tape is not None:
            stored.store(self._repeated.tape)
        return found
