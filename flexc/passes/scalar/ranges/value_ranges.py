"""Compute the ranges of the integer values of a region of scalar code.

`ValueRanges` follows operands up to the region's arguments, whose ranges the caller may
know: a mod's indices are not negative. Other arguments have the range of their type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import IntegerAttr, IntegerType, TensorType
from xdsl.ir import Attribute, Operation, SSAValue

from flexc.dialects import flex
from flexc.dialects.constants import to_signed
from flexc.dialects.mod_region import NonNegative
from flexc.passes.scalar.predicates import predicate_of
from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.intervals import Interval

BINARY: dict[type[Operation], Callable[[Interval, Interval, int], Interval]] = {
    arith.AddiOp: intervals.add,
    arith.SubiOp: intervals.subtract,
    arith.MuliOp: intervals.multiply,
    arith.DivSIOp: intervals.divide,
    arith.FloorDivSIOp: intervals.floor_divide,
    arith.CeilDivSIOp: intervals.ceil_divide,
    arith.RemSIOp: intervals.remainder,
    arith.DivUIOp: intervals.divide_unsigned,
    arith.RemUIOp: intervals.remainder_unsigned,
    arith.MinSIOp: intervals.minimum,
    arith.MaxSIOp: intervals.maximum,
    arith.MinUIOp: intervals.minimum_unsigned,
    arith.MaxUIOp: intervals.maximum_unsigned,
    arith.AndIOp: intervals.bit_and,
    arith.OrIOp: intervals.bit_or,
    arith.XOrIOp: intervals.bit_xor,
    arith.ShLIOp: intervals.shift_left,
    arith.ShRSIOp: intervals.shift_right,
    arith.ShRUIOp: intervals.shift_right_unsigned,
}

TRUE, FALSE = intervals.point(-1), intervals.point(0)


def width_of(type_: Attribute) -> int:
    """Return the number of bits of an integer type."""
    return cast(IntegerType, type_).width.data


class ValueRanges:
    """The ranges of the integer values of one region, computed on demand."""

    def __init__(self, known: Mapping[SSAValue, Interval]):
        self._ranges = dict(known)

    def __getitem__(self, value: SSAValue) -> Interval:
        """Return the range of an integer."""
        found = self._ranges.get(value)
        if found is None:
            found = self._ranges[value] = self._compute(value)
        return found

    def width(self, value: SSAValue) -> int:
        """Return the number of bits of the arithmetic that computes a value."""
        return width_of(value.type)

    def _compute(self, value: SSAValue) -> Interval:
        width, op = self.width(value), value.owner
        if not isinstance(op, Operation):
            return intervals.full(width_of(value.type))
        if (transfer := BINARY.get(type(op))) is not None:
            a, b = (self[v] for v in op.operands)
            return transfer(a, b, width)
        return self._compute_other(op, width)

    def _compute_other(self, op: Operation, width: int) -> Interval:
        match op:
            case arith.ConstantOp(value=IntegerAttr() as attr):
                bits = width_of(op.result.type)
                return intervals.point(to_signed(attr.value.data, bits))
            case arith.CmpiOp():
                return self._compare(op)
            case arith.SelectOp():
                return self._select(op)
            case arith.ExtSIOp():
                return self[op.input]
            case arith.ExtUIOp():
                return intervals.zero_extend(self[op.input], width_of(op.input.type))
            case arith.TruncIOp():
                return intervals.truncate(self[op.input], width)
            case math_dialect.AbsIOp():
                return intervals.absolute(self[op.operands[0]], width)
            case flex.DimOp():
                return dim_range(op, width_of(op.result.type))
            case _ if op.has_trait(NonNegative):
                return Interval(0, intervals.full(width).hi)
            case _:
                return intervals.full(width)

    def _compare(self, op: arith.CmpiOp) -> Interval:
        predicate = predicate_of(op)
        decided = intervals.compare(predicate, self[op.lhs], self[op.rhs])
        if decided is None:
            return intervals.full(1)
        return TRUE if decided else FALSE

    def _select(self, op: arith.SelectOp) -> Interval:
        condition = self[op.cond].constant
        if condition is not None:
            return self[op.lhs if condition else op.rhs]
        return intervals.union(self[op.lhs], self[op.rhs])


def dim_range(op: flex.DimOp, width: int) -> Interval:
    """Return the range of a size: the static size, or all nonnegative numbers."""
    type_ = op.tensor.type
    if isinstance(type_, TensorType):
        size = type_.get_shape()[op.dim.value.data]
        if size >= 0 and size in intervals.full(width):
            return intervals.point(size)
    return Interval(0, intervals.full(width).hi)
