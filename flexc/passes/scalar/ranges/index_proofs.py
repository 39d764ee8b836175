"""Prove that indices fit their types, and that they are within tensors.

A value is too wide if its type does not hold its exact range (see `exact_ranges`).
`flex-widen-indices` rewrites the ops that compute or read such values. If there are
none, the code is exact as it is.

The ranges of the indices of captured loads follow from the positions, sizes and
captured numbers of a call. A proof holds for every pair of positions, also for masked
pairs. Without a proof, loads stay guarded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.ir import Operation, Region, SSAValue

from flexc.dialects import flex
from flexc.passes.scalar.ranges.exact_ranges import (
    ARITHMETIC,
    ExactRanges,
    IntegerOrigin,
    Known,
    Number,
    interval_of,
    is_negative,
    known_of_call,
)
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.scalar.ranges.value_ranges import ValueRanges, width_of


class IndexWidths:
    """The ops and values of a region that need more bits than their type has."""

    def __init__(self, region: Region, known: Mapping[SSAValue, Interval]):
        self.region = region
        self.ranges = ExactRanges(region, known)

    def is_too_wide(self, value: SSAValue) -> bool:
        """Return True if a value's type does not hold its range."""
        return not self.ranges.fits(value)

    def needs_width(self, op: Operation) -> bool:
        """Return True if an op computes or reads values that are too wide."""
        if isinstance(op, ARITHMETIC):
            values = (*op.operands, *op.results)
            wide = self._any_wide(values) or self._shifts_far(op)
            return wide and self.ranges.is_exact(op.results[0])
        return self._any_wide(self.exact_operands(op))

    def _any_wide(self, values: Sequence[SSAValue]) -> bool:
        return any(map(self.is_too_wide, values))

    def _shifts_far(self, op: Operation) -> bool:
        """Return True if a shift may be by more bits than its type has."""
        if not isinstance(op, arith.ShLIOp | arith.ShRSIOp):
            return False
        within = Interval(0, width_of(op.result.type) - 1)
        return not self.ranges[op.rhs].within(within)

    def exact_operands(self, op: Operation) -> Sequence[SSAValue]:
        """Return the operands whose exact values a comparison, cast or load reads."""
        match op:
            case arith.CmpiOp(lhs=a, rhs=b):
                exact = self.ranges.meet((a, b)) is not IntegerOrigin.OTHER
                return (a, b) if exact else ()
            case arith.SIToFPOp(input=source):
                return (source,)
            case flex.LoadCaptureOp(indices=indices):
                return tuple(indices)
            case _:
                return ()

    def wide_ops(self) -> list[Operation]:
        """Return the ops that need more bits, in order."""
        return [op for op in self.region.block.ops if self.needs_width(op)]


def indices_fit(
    region: Region,
    positions: Sequence[Interval],
    captures: Sequence[Known],
) -> bool:
    """Return True if no arithmetic of a mod overflows its type in any of the calls.

    `positions` and `captures` describe the calls, as for `known_of_call`.
    """
    known = known_of_call(region, positions, captures)
    return not IndexWidths(region, known).wide_ops()


def unwrapped(index: SSAValue) -> SSAValue:
    """Return i of `select(i < 0, i + n, i)`, torch's reading of negative indices.

    Return other values as they are. Unlike `chosen_sum`, this accepts any value at
    i < 0: where i is j + 1, simplification has made i + 8 to j + 9.
    """
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
    """Return True if every captured load of a mod region is proved to be in range.

    Negative indices count as out of range. `positions` are the ranges of b, h, q_idx
    and kv_idx. `captures` has what is known about each capture.
    """
    return next(indices_outside(region, positions, captures), None) is None


def indices_outside(
    region: Region,
    positions: Sequence[Interval],
    captures: Sequence[Known],
) -> Iterator[Unproven]:
    """Yield the indices of captured loads that are not proved to be in range."""
    ranges = ExactRanges(region, known_of_call(region, positions, captures))
    shapes: dict[SSAValue, tuple[Number, ...]] = {}
    args = region.block.args[len(region.block.args) - len(captures) :]
    for arg, what in zip(args, captures, strict=True):
        if isinstance(what, tuple):
            shapes[arg] = what
    for op in region.block.ops:
        if isinstance(op, flex.LoadCaptureOp):
            yield from _outside(op, ranges, shapes[op.tensor])


def _outside(
    op: flex.LoadCaptureOp, ranges: ValueRanges, shape: Sequence[Number]
) -> Iterator[Unproven]:
    sizes = [interval_of(size).lo for size in shape]
    for axis, (index, size) in enumerate(zip(op.indices, sizes, strict=True)):
        found = ranges[unwrapped(index)]
        if min(sizes) <= 0 or not found.within(Interval(0, size - 1)):
            yield Unproven(op, axis, found, size)
