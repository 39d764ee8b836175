"""Small temporaries of a tape in one allocation: each takes as long as a launch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from flexc.runtime.tape import Allocation, Launch, Place, Step

MOST = 1 << 20
"""Bytes of a temporary; memory of larger ones goes to what comes next."""

UNIT = 256
"""Bytes that addresses of allocations are multiples of, as kernels take them to be."""


def with_scratch(
    steps: Sequence[Step], results: Iterable[int], free: int
) -> Sequence[Step]:
    """Steps in which temporaries have parts of one tensor, of the slot that is free."""
    named = set(results)
    for step in steps:
        if not isinstance(step, Launch):
            named |= step.uses
    parts: dict[int, int] = {}
    size, device = 0, None
    for step in steps:
        if isinstance(step, Allocation) and step.slot not in named and is_small(step):
            parts[step.slot] = size
            size += -(-step.size // UNIT) * UNIT
            device = step.device
    if device is None or len(parts) < 2:
        return steps
    whole = Allocation(free, (size,), (1,), torch.uint8, device, None, False)
    found: list[Step] = [whole]
    for step in steps:
        if isinstance(step, Launch):
            places = [_moved(place, free, parts) for place in step.places]
            found.append(replace(step, places=tuple(places)))
        elif not (isinstance(step, Allocation) and step.slot in parts):
            found.append(step)
    return found


def is_small(step: Allocation) -> bool:
    """Whether what is allocated may be a part of something else."""
    return not step.is_zero and step.size <= MOST


def _moved(place: Place, whole: int, parts: dict[int, int]) -> Place:
    """The place of what may be a part now."""
    if place.slot not in parts:
        return place
    offset = place.offset + parts[place.slot]
    return place._replace(slot=whole, offset=offset)
