"""Which ops of a mod need more bits than their type has.

A value whose exact range (see `exact_ranges`) its type does not hold is too wide.
Ops that compute or read such values are those that `flex-widen-indices` rewrites;
where there is none, the code as it is written is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects import arith
from xdsl.ir import Operation, Region, SSAValue

from flexc.dialects import flex
from flexc.passes.scalar.ranges.exact_ranges import (
    ARITHMETIC,
    ExactRanges,
    Known,
    Origin,
    known_of_call,
)
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.scalar.ranges.value_ranges import width_of


class IndexWidths:
    """What needs more bits in one region, given ranges of its arguments."""

    def __init__(self, region: Region, known: Mapping[SSAValue, Interval]):
        self.region = region
        self.ranges = ExactRanges(region, known)

    def is_too_wide(self, value: SSAValue) -> bool:
        """Whether a value's type does not hold all that it may be."""
        return not self.ranges.fits(value)

    def needs_width(self, op: Operation) -> bool:
        """Whether an op computes or reads exactly what is too wide."""
        if isinstance(op, ARITHMETIC):
            values = (*op.operands, *op.results)
            wide = self._any_wide(values) or self._shifts_far(op)
            return wide and self.ranges.is_exact(op.results[0])
        return self._any_wide(self.exact_operands(op))

    def _any_wide(self, values: Sequence[SSAValue]) -> bool:
        return any(map(self.is_too_wide, values))

    def _shifts_far(self, op: Operation) -> bool:
        """Whether a shift may be by more bits than its type has."""
        if not isinstance(op, arith.ShLIOp | arith.ShRSIOp):
            return False
        within = Interval(0, width_of(op.result.type) - 1)
        return not self.ranges[op.rhs].within(within)

    def exact_operands(self, op: Operation) -> Sequence[SSAValue]:
        """What an op takes out of exact arithmetic, of which it wants all bits."""
        match op:
            case arith.CmpiOp(lhs=a, rhs=b):
                exact = self.ranges.meet((a, b)) is not Origin.OTHER
                return (a, b) if exact else ()
            case arith.SIToFPOp(input=source):
                return (source,)
            case flex.LoadCaptureOp(indices=indices):
                return tuple(indices)
            case _:
                return ()

    def wide_ops(self) -> list[Operation]:
        """The ops that need more bits, in order."""
        return [op for op in self.region.block.ops if self.needs_width(op)]


def indices_fit(
    region: Region,
    positions: Sequence[Interval],
    captures: Sequence[Known],
) -> bool:
    """Whether no arithmetic of a mod overflows its type in a call, or in some.

    `positions` and `captures` say of it what `known_of_call` takes.
    """
    known = known_of_call(region, positions, captures)
    return not IndexWidths(region, known).wide_ops()
