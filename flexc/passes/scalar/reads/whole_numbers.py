"""Which values of a region are whole numbers that nothing wrapped or rounded."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import FloatAttr
from xdsl.ir import Operation, Region, SSAValue

from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.exact_ranges import ExactRanges, position_args
from flexc.passes.scalar.ranges.float_values import FORMATS, FloatRanges
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.scalar.ranges.linear_forms import UNLIMITED
from flexc.passes.scalar.ranges.value_ranges import (
    BINARY,
    ValueRanges,
    width_of,
)

INDEX = Interval(0, (1 << 31) - 2)
"""A batch, a head, or a position within a length of 32 bits."""

KEEP_WHOLE = (
    arith.AddfOp,
    arith.SubfOp,
    arith.MulfOp,
    arith.NegfOp,
    arith.ExtFOp,
    arith.TruncFOp,
    arith.MaximumfOp,
    arith.MinimumfOp,
    arith.MaxnumfOp,
    arith.MinnumfOp,
    math_dialect.AbsFOp,
)
"""What gives whole numbers of whole numbers."""


class WholeNumbers:
    """Ranges of the values of a mod's region, and what they prove.

    `fits` says that no arithmetic on positions overflows, as `indices_fit` does.
    """

    def __init__(self, region: Region, max_length: int, fits: bool):
        self.fits = fits
        self.origins = ExactRanges(region, {})
        position = Interval(0, min(max(max_length - 1, 0), INDEX.hi))
        known = (INDEX, INDEX, position, position)
        args = position_args(region)
        self.ranges = ValueRanges(dict(zip(args, known, strict=True)))
        self.floats = FloatRanges(self.ranges, {})
        self._whole: dict[SSAValue, bool] = {}

    def is_exact(self, op: Operation) -> bool:
        """Whether an operation on two integers is known not to wrap around."""
        result = op.results[0]
        if self.fits and self.origins.is_exact(result):
            return True
        a, b = (self.ranges[v] for v in op.operands)
        width = width_of(result.type)
        if isinstance(op, arith.ShLIOp) and not b.within(Interval(0, width - 1)):
            return False
        exact = BINARY[type(op)](a, b, UNLIMITED)
        return exact.within(intervals.full(width))

    def is_nonnegative(self, value: SSAValue) -> bool:
        return self.ranges[value].is_nonnegative

    def fits_in(self, value: SSAValue, width: int) -> bool:
        """Whether an integer, or a whole float, is one of so many bits."""
        bounds = intervals.full(width)
        if value.type not in FORMATS:
            return self.ranges[value].within(bounds)
        known = self.floats[value]
        return known.is_finite and bounds.lo <= known.lo and known.hi <= bounds.hi

    def is_whole(self, value: SSAValue) -> bool:
        """Whether a float is a whole number that came about without rounding."""
        found = self._whole.get(value)
        if found is None:
            small = self._is_small(value)
            found = self._whole[value] = small and self._is_whole(value.owner)
        return found

    def _is_small(self, value: SSAValue) -> bool:
        """Whether the float's type holds all whole numbers that it may be."""
        fmt = FORMATS.get(value.type)
        if fmt is None:
            return False
        known = self.floats[value]
        return known.is_finite and not known.nan and known.size <= 1 << fmt.digits

    def _is_whole(self, op: object) -> bool:
        match op:
            case arith.ConstantOp(value=FloatAttr() as attr):
                return attr.value.data.is_integer()
            case arith.SIToFPOp() | arith.UIToFPOp():
                return True
            case arith.SelectOp():
                return self.is_whole(op.lhs) and self.is_whole(op.rhs)
            case Operation() if isinstance(op, KEEP_WHOLE):
                return all(map(self.is_whole, op.operands))
            case _:
                return False
