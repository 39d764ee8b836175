"""Plans of calls: what is done once for all calls of equal facts.

Of a call the mods' key, captured numbers, and shapes, strides, dtypes and alignment of
its tensors say what is checked, planned, allocated and launched. So they find its plan:
a tape where no gradient is recorded, and where one is a template, whose Functions have
tapes of their own.

Without it a call takes some hundred microseconds of Python, more than many a kernel. A
tape may be on the disk, and then all that traces and lowers calls is not even imported.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask

from flexc.runtime.autograd.run import run_attention
from flexc.runtime.call_plans.masked_calls import MaskedCall
from flexc.runtime.call_plans.recorded_calls import (
    Operands,
    Prepare,
    RecordedCall,
    UnrecordedCall,
    plan_of,
)
from flexc.runtime.inputs.arguments import Results, Tables
from flexc.runtime.inputs.notes import MAX_KEPT, Notes
from flexc.runtime.inputs.options import is_interpreting
from flexc.runtime.inputs.wrappers import PLAIN
from flexc.runtime.replay.equal_facts import Kept
from flexc.runtime.replay.repeats import KNOWN
from flexc.runtime.replay.stored_tapes import StoredTape
from flexc.runtime.tapes.streams import is_capturing, stream_of

CALLS = "calls"
"""Where calls with a BlockMask are kept with it."""


def attend(
    operands: Operands,
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
        return run_attention(prepare(operands))
    tensors, device = operands + captures, operands[0].device
    key: Hashable = (mods, rest, torch.is_grad_enabled())
    if block_mask is None:
        make = stored_plan
        if tables is not None:
            tensors, make = tensors + tables.all_tensors, unstored_plan
        plan = KNOWN.find(key, tensors, device, make)
        if plan is None:
            return run_attention(prepare(operands))
        return plan(tensors, tables, prepare)
    if is_capturing(operands[0]):
        return run_attention(prepare(operands))  # The graph would outlive what is kept.
    shape = (block_mask.BLOCK_SIZE, block_mask.seq_lengths, stream_of(device))
    key = (key, shape)
    notes = Notes.of(block_mask)
    calls = notes.kept.get(CALLS)
    if calls is None:
        calls = notes.keep(CALLS, Kept(MAX_KEPT))
    masked = calls.find(key, tensors, device, masked_call)
    if masked is None:
        return run_attention(prepare(operands))
    return masked(key, tensors, captures, prepare)


def stored_plan(tensors: Sequence[Any], facts: Any) -> UnrecordedCall | RecordedCall:
    """Return a new plan of calls of such tensors; their tapes may be on the disk.

    The facts begin with the key that `attend` makes, and that with the mods' key.
    """
    query = tensors[0]
    if query.is_cuda and (torch.version.hip or is_interpreting()):
        return plan_of(tensors)  # Triton compiles or interprets what it launches.
    if is_capturing(query):
        return plan_of(tensors)  # A graph must not capture what loading launches.
    ((mods, *_), _), _ = facts
    return plan_of(tensors, StoredTape(facts, query.device, mods))


def unstored_plan(
    tensors: Sequence[Any], facts: Hashable
) -> UnrecordedCall | RecordedCall:
    """Return a new plan of calls of such tensors, whose tapes are in memory alone."""
    return plan_of(tensors)


def masked_call(tensors: Sequence[Any], facts: Hashable) -> MaskedCall:
    """Return a new plan of calls of such tensors with a BlockMask."""
    return MaskedCall()


def is_plain(query: Any, block_mask: Any = None, mask_mod: Any = None) -> bool:
    """Whether a call may have a plan, going by its query and what masks it."""
    if type(query) not in PLAIN or not (query.is_cpu or query.is_cuda):
        return False
    return block_mask is None or (type(block_mask) is BlockMask and mask_mod is None)
