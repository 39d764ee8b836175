"""Plans of calls: work that is done once for all calls of equal facts.

The facts of a call are the mods' key, captured numbers, and the shapes, strides, dtypes
and alignment of its tensors. They determine the checks, blocks, allocations and
launches, so they are the key of a plan. If no gradient is recorded, the plan is a tape.
If one is recorded, the plan is a template whose Functions have tapes of their own.

Without a plan, the Python code of a call takes longer than many a kernel. If a tape is
on the disk, the modules that trace and lower calls are not even imported.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from flexc.runtime.autograd.run import run_attention
from flexc.runtime.call_plans.recorded_calls import (
    Operands,
    Prepare,
    RecordedCall,
    UnrecordedCall,
    plan_of,
)
from flexc.runtime.inputs.arguments import Results, Tables
from flexc.runtime.inputs.notes import MAX_KEPT, Capture, Notes
from flexc.runtime.inputs.options import is_interpreting
from flexc.runtime.inputs.wrappers import PLAIN
from flexc.runtime.replay.equal_facts import FactsCache
from flexc.runtime.replay.repeats import KNOWN
from flexc.runtime.replay.stored_tapes import StoredTape
from flexc.runtime.tapes.gpus import is_capturing, stream_of
from flexc.runtime.tapes.recorder import without_dispatch_modes

if TYPE_CHECKING:
    from flexc.runtime.attention.call import Attention


class MaskedCall:
    """Calls of equal facts with a BlockMask: the tables that they read, and a plan."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: Blocks | None = None
        """The blocks, replaced as a whole because other threads may read them."""

    def __call__(
        self,
        key: Hashable,
        tensors: tuple[Any, ...],
        captures: Sequence[Any],
        prepare: Prepare,
    ) -> Results:
        blocks = self._blocks
        if blocks is None or not blocks.are_of(captures):
            query, key_, value, *_ = tensors
            call = prepare((query, key_, value))
            blocks = self._blocks = blocks_of(key, tensors, captures, call)
        return blocks.plan(tensors + blocks.tensors, blocks.tables, prepare)


class Blocks(NamedTuple):
    """The tables that a call with a BlockMask reads, and the plan of such calls."""

    plan: UnrecordedCall | RecordedCall
    tables: Tables | None
    tensors: tuple[Tensor, ...]
    """The tensors of the tables."""
    noted: tuple[tuple[int, Capture], ...]
    """Captures of the mask, by their places, for which the blocks are valid."""

    def are_of(self, captures: Sequence[Any]) -> bool:
        return all(capture.still_is(captures[place]) for place, capture in self.noted)


def blocks_of(
    key: Hashable, tensors: tuple[Any, ...], captures: Sequence[Any], call: Attention
) -> Blocks:
    """Find the tables of a call, and the plan of all calls with such tables."""
    plan = plan_of(tensors)
    with without_dispatch_modes(), torch.no_grad():
        call = call.with_traced()
        tables = call.settle(both=isinstance(plan, RecordedCall)).tables
    held = () if tables is None else tables.all_tensors
    is_own = call.tables is not None and call.tables.origin is not None
    mask = call.trace().mask
    read = {i.slot for i in mask.inputs} if mask and tables and is_own else set()
    noted = tuple((i, Capture.of(c)) for i, c in enumerate(captures) if i in read)
    found = KNOWN.find(key, tensors + held, call.query.device, lambda *_: plan)
    return Blocks(plan if found is None else found, tables, held, noted)


CALLS = "calls"
"""The key, in a BlockMask's notes, of the plans of calls with it."""


def attend(
    operands: Operands,
    mods: Hashable,
    captures: tuple[Any, ...],
    rest: Hashable,
    prepare: Prepare,
    block_mask: BlockMask | None = None,
    tables: Tables | None = None,
) -> Results:
    """Return the results of a call of (query, key, value).

    `mods` is the key of the mods, None if they must be traced at every call. `rest`
    holds all other values that the call depends on. `prepare` is only used for a call
    without a tape. `tables`, given instead of a BlockMask, were checked and are read
    unchanged.
    """
    if mods is None:
        return run_attention(prepare(operands))
    tensors, device = operands + captures, operands[0].device
    key: Hashable = (mods, rest, torch.is_grad_enabled())
    if block_mask is None:
        make: Any = stored_plan
        if tables is not None:  # Tapes of such calls are not stored on the disk.
            tensors += tables.all_tensors
            make = lambda given, _: plan_of(given)  # noqa: E731
        plan = KNOWN.find(key, tensors, device, make)
        if plan is None:
            return run_attention(prepare(operands))
        return plan(tensors, tables, prepare)
    if is_capturing(operands[0]):
        return run_attention(prepare(operands))  # The graph would outlive the notes.
    shape = (block_mask.BLOCK_SIZE, block_mask.seq_lengths, stream_of(device))
    key = (key, shape)
    notes = Notes.of(block_mask)
    calls = notes.kept.get(CALLS)
    if calls is None:
        calls = notes.keep(CALLS, FactsCache(MAX_KEPT))
    masked = calls.find(key, tensors, device, masked_call)
    if masked is None:
        return run_attention(prepare(operands))
    return masked(key, tensors, captures, prepare)


def stored_plan(tensors: Sequence[Any], facts: Any) -> UnrecordedCall | RecordedCall:
    """Return a new plan for calls of such tensors. Its tape may be on the disk.

    The facts begin with the key that `attend` makes, which begins with the mods' key.
    """
    query, stored = tensors[0], None
    # Under HIP, Triton compiles kernels at launch, and its interpreter runs them there.
    # Neither has a kernel that a stored tape could name.
    is_compiled = not (query.is_cuda and (torch.version.hip or is_interpreting()))
    # A graph must not capture the launches that loading a tape causes.
    if is_compiled and not is_capturing(query):
        ((mods, *_), _), _ = facts
        stored = StoredTape(facts, query.device, mods)
    return plan_of(tensors, stored)


def masked_call(tensors: Sequence[Any], facts: Hashable) -> MaskedCall:
    """Return a new plan for calls of such tensors with a BlockMask."""
    return MaskedCall()


def is_plain(query: Any, block_mask: Any = None, mask_mod: Any = None) -> bool:
    """Return True if a call with this query, BlockMask and mask may have a plan."""
    if type(query) not in PLAIN or not (query.is_cpu or query.is_cuda):
        return False
    return block_mask is None or (type(block_mask) is BlockMask and mask_mod is None)
