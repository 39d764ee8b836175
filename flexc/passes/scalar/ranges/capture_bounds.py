"""Whether captured loads stay within their tensors, for the lengths of a call.

The indices of a load are run through interval arithmetic with the positions,
sizes and captured numbers of one call. A proof holds for every pair of positions,
masked ones included; without one, loads stay guarded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.ir import Region, SSAValue

from flexc.dialects import flex
from flexc.passes.scalar.ranges.chosen_sums import is_negative
from flexc.passes.scalar.ranges.exact_ranges import (
    ExactRanges,
    Known,
    known_of_call,
)
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.scalar.ranges.value_ranges import ValueRanges


def unwrapped(index: SSAValue) -> SSAValue:
    """i of `select(i < 0, i + n, i)`, torch's reading of negative indices."""
    op = index.owner
    if isinstance(op, arith.SelectOp) and is_negative(op.cond, op.rhs):
        return op.rhs
    return index


@dataclass(frozen=True)
class Unproven:
    """An index of a captured load that may be outside of its tensor."""

    load: flex.LoadCaptureOp
    axis: int
    found: Interval
    size: int


def captures_inside(
    region: Region,
    positions: Sequence[Interval],
    captures: Sequence[Known],
) -> bool:
    """Whether every captured load of a mod region is in range, without wrapping.

    `positions` are the ranges of b, h, q_idx and kv_idx; `captures` what is known
    of the captures: an integer, a tensor's shape, or None.
    """
    return next(indices_outside(region, positions, captures), None) is None


def indices_outside(
    region: Region,
    positions: Sequence[Interval],
    captures: Sequence[Known],
) -> Iterator[Unproven]:
    """The indices of captured loads that are not known to be in range."""
    ranges = ExactRanges(region, known_of_call(region, positions, captures))
    shapes: dict[SSAValue, tuple[int, ...]] = {}
    args = region.block.args[len(region.block.args) - len(captures) :]
    for arg, what in zip(args, captures, strict=True):
        if isinstance(what, tuple):
            shapes[arg] = what
    for op in region.block.ops:
        if isinstance(op, flex.LoadCaptureOp):
            yield from _outside(op, ranges, shapes[op.tensor])


def _outside(
    op: flex.LoadCaptureOp, ranges: ValueRanges, sizes: Sequence[int]
) -> Iterator[Unproven]:
    for axis, (index, size) in enumerate(zip(op.indices, sizes, strict=True)):
        found = ranges[unwrapped(index)]
        if min(sizes) <= 0 or not found.within(Interval(0, size - 1)):
            yield Unproven(op, axis, found, size)
