"""Sums that are used only where a test holds: `select(test, x + n, x)`.

Python's `%` and negative indices are spelled so.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import SSAValue


def tests_of(total: SSAValue, x: SSAValue) -> list[SSAValue] | None:
    """The tests of a sum's users, if all are `select(test, total, x)`."""
    tests: list[SSAValue] = []
    for use in total.uses:
        user = use.operation
        if not isinstance(user, arith.SelectOp):
            return None
        if user.lhs is not total or user.rhs is not x:
            return None
        tests.append(user.cond)
    return tests or None


def is_negative(test: SSAValue, x: SSAValue) -> bool:
    """Whether a flag is x < 0."""
    op = test.owner
    if not isinstance(op, arith.CmpiOp) or op.lhs is not x:
        return False
    less = arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data] == "slt"
    return less and is_zero(op.rhs)


def is_zero(value: SSAValue) -> bool:
    """Whether a value is the integer constant 0."""
    op = value.owner
    if not isinstance(op, arith.ConstantOp) or not isinstance(op.value, IntegerAttr):
        return False
    return op.value.value.data == 0


def signs_differ(test: SSAValue, x: SSAValue, n: SSAValue) -> bool:
    """Whether a flag is false unless exactly one of x and n is negative."""
    op = test.owner
    if isinstance(op, arith.AndIOp):
        return signs_differ(op.lhs, x, n) or signs_differ(op.rhs, x, n)
    if not isinstance(op, arith.XOrIOp):
        return False
    return is_negative(op.lhs, x) and is_negative(op.rhs, n)
