"""Where a rule looks and writes: an op, what is known around it, small matchers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, IntegerType, i1
from xdsl.ir import Attribute, Operation, SSAValue

from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.scalar.ranges.value_ranges import (
    ValueRanges,
    to_signed,
    width_of,
)
from flexc.passes.scalar.scalar_code import ScalarCode

OpT = TypeVar("OpT", bound=Operation)


@dataclass(frozen=True)
class Site:
    """A place before an op, for the values that replace it."""

    code: ScalarCode
    ranges: ValueRanges

    def range(self, value: SSAValue) -> Interval:
        """The integers that a value may be."""
        return self.ranges[value]

    def const(self, value: float, type_: Attribute) -> SSAValue:
        """A constant; integers are cut to their type's bits."""
        if is_integer(type_):
            value = to_signed(int(value), width_of(type_))
        return self.code.const(value, type_)

    def flag(self, value: bool) -> SSAValue:
        """true or false."""
        return self.const(-1 if value else 0, i1)

    def insert(self, op: Operation) -> SSAValue:
        return self.code.insert(op)

    def negate(self, flag: SSAValue) -> SSAValue:
        """Not."""
        return self.insert(arith.XOrIOp(flag, self.flag(True)))


Rule = Callable[[Operation, Site], SSAValue | None]


def is_integer(type_: Attribute) -> bool:
    return isinstance(type_, IntegerType)


def defined_by(value: SSAValue, kind: type[OpT]) -> OpT | None:
    """The op that a value is the result of, if it is of a kind."""
    return value.owner if isinstance(value.owner, kind) else None


def int_constant(value: SSAValue) -> int | None:
    """The value of an integer constant, read as signed."""
    op = defined_by(value, arith.ConstantOp)
    if op is None or not isinstance(op.value, IntegerAttr):
        return None
    return to_signed(op.value.value.data, width_of(value.type))


def float_constant(value: SSAValue) -> float | None:
    """The value of a floating-point constant."""
    op = defined_by(value, arith.ConstantOp)
    if op is None or not isinstance(op.value, FloatAttr):
        return None
    return op.value.value.data


def power_of_two(value: int | None) -> int | None:
    """k of a positive 2**k."""
    if value is None or value <= 0 or value & (value - 1):
        return None
    return value.bit_length() - 1


def negated(value: SSAValue) -> SSAValue | None:
    """p, if the value is not p."""
    op = defined_by(value, arith.XOrIOp)
    if op is None or value.type != i1 or int_constant(op.rhs) != -1:
        return None
    return op.lhs


def predicate_of(op: arith.CmpiOp) -> str:
    return arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]


def float_predicate_of(op: arith.CmpfOp) -> str:
    return arith.CMPF_COMPARISON_OPERATIONS[op.predicate.value.data]
