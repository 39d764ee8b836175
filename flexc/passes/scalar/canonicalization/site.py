"""Define the place where a rule reads and writes, and small matchers of ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, i1
from xdsl.ir import Attribute, Operation, SSAValue

from flexc.dialects.constants import float_constant, int_constant, to_signed
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.scalar.ranges.value_ranges import ValueRanges, width_of
from flexc.passes.scalar.scalar_code import ScalarCode

OpT = TypeVar("OpT", bound=Operation)


@dataclass(frozen=True)
class Site:
    """The place before an op, where a rule inserts the values that replace the op."""

    code: ScalarCode
    ranges: ValueRanges

    def range(self, value: SSAValue) -> Interval:
        """Return the range of an integer."""
        return self.ranges[value]

    def const(self, value: float, type_: Attribute) -> SSAValue:
        """Return a constant; integers are truncated to their type's bits."""
        if is_integer(type_):
            value = to_signed(int(value), width_of(type_))
        return self.code.const(value, type_)

    def flag(self, value: bool) -> SSAValue:
        """Return a constant i1."""
        return self.code.flag(value)

    def insert(self, op: Operation) -> SSAValue:
        return self.code.insert(op)

    def negate(self, flag: SSAValue) -> SSAValue:
        """Return the negation of an i1."""
        return self.code.not_(flag)


Rule = Callable[[Operation, Site], SSAValue | None]


def is_integer(type_: Attribute) -> bool:
    return isinstance(type_, IntegerType)


def defined_by(value: SSAValue, kind: type[OpT]) -> OpT | None:
    """Return the op that defines a value if the op is of type `kind`, else None."""
    return value.owner if isinstance(value.owner, kind) else None


def power_of_two(value: int | None) -> int | None:
    """Return k if the value is 2**k, else None."""
    if value is None or value <= 0 or value & (value - 1):
        return None
    return value.bit_length() - 1


def negated(value: SSAValue) -> SSAValue | None:
    """Return p if the value is `not p`, else None."""
    op = defined_by(value, arith.XOrIOp)
    if op is None or value.type != i1 or int_constant(op.rhs) != -1:
        return None
    return op.lhs


def constant_to_the_right(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite c + x -> x + c, for all ops that commute."""
    lhs, rhs = op.operands
    if not _is_constant(lhs) or _is_constant(rhs):
        return None
    build: type = type(op)
    return site.insert(build(rhs, lhs))


def _is_constant(value: SSAValue) -> bool:
    return int_constant(value) is not None or float_constant(value) is not None
