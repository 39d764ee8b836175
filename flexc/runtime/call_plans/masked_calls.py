"""Calls with a BlockMask: the tables that they read, and the plan of such calls."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from flexc.runtime.call_plans.recorded_calls import (
    Prepare,
    RecordedCall,
    UnrecordedCall,
    plan_of,
)
from flexc.runtime.inputs.arguments import Results, Tables
from flexc.runtime.inputs.notes import Capture
from flexc.runtime.replay.repeats import KNOWN
from flexc.runtime.tapes.modes import unseen

if TYPE_CHECKING:
    from flexc.runtime.attention.call import Attention


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
            query, key_, value, *_ = tensors
            call = prepare((query, key_, value))
            blocks = self._blocks = blocks_of(key, tensors, captures, call)
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
    plan = plan_of(tensors)
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
