"""Recognise Python's `%`, `//` and negative indices as frontends spell them.

Frontends spell a sum that is used only where a test holds `select(test, x + n, x)`.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from flexc.dialects.constants import int_constant
from flexc.passes.scalar.ranges.value_ranges import ValueRanges, width_of


def tests_of(total: SSAValue, x: SSAValue) -> list[SSAValue] | None:
    """Return the tests of a sum's users.

    Return None unless all users are `select(test, total, x)`.
    """
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
    """Return True if a flag is x < 0."""
    return _compares(test, "slt", x)


def signs_differ(test: SSAValue, x: SSAValue, n: SSAValue) -> bool:
    """Return True if a flag is false unless x and n have different signs."""
    op = test.owner
    if isinstance(op, arith.AndIOp):
        return signs_differ(op.lhs, x, n) or signs_differ(op.rhs, x, n)
    if not isinstance(op, arith.XOrIOp):
        return False
    return is_negative(op.lhs, x) and is_negative(op.rhs, n)


Division = tuple[SSAValue, SSAValue | int]
"""A dividend and a divisor."""


def floor_modulo(value: SSAValue, ranges: ValueRanges) -> Division | None:
    """Return x and s if the value is x modulo s wherever s is positive, else None."""
    op = value.owner
    match op:
        case arith.RemSIOp() if ranges[op.lhs].is_nonnegative:
            return _division(op.lhs, op.rhs)
        case arith.SelectOp():
            rest = _mended(op)
            return None if rest is None else _division(rest.lhs, rest.rhs)
        case arith.AndIOp():
            mask = int_constant(op.rhs)
            is_mask = mask is not None and mask > 0 and not mask & (mask + 1)
            return (op.lhs, mask + 1) if is_mask and mask is not None else None
        case _:
            return None


def _division(dividend: SSAValue, divisor: SSAValue) -> Division | None:
    constant = int_constant(divisor)
    if constant is None:
        return dividend, divisor
    return (dividend, constant) if constant > 0 else None


def _mended(op: arith.SelectOp) -> arith.RemSIOp | None:
    """Return r of `select(r has the wrong sign, r + s, r)`, r = x rem s, else None."""
    rest, mended = op.rhs.owner, op.lhs.owner
    if not isinstance(rest, arith.RemSIOp) or not isinstance(mended, arith.AddiOp):
        return None
    if mended.lhs is not op.rhs or mended.rhs is not rest.rhs:
        return None
    test = op.cond.owner
    if is_negative(op.cond, op.rhs):
        return rest
    if not isinstance(test, arith.AndIOp):
        return None
    for nonzero, differs in ((test.lhs, test.rhs), (test.rhs, test.lhs)):
        signs = differs.owner
        if not _compares(nonzero, "ne", op.rhs) or not isinstance(signs, arith.XOrIOp):
            continue
        for a, b in ((signs.lhs, signs.rhs), (signs.rhs, signs.lhs)):
            if is_negative(a, op.rhs) and is_negative(b, rest.rhs):
                return rest
    return None


def _compares(value: SSAValue, predicate: str, of: SSAValue) -> bool:
    """Return True if a value is the comparison of `of` with 0 by `predicate`."""
    op = value.owner
    return (
        isinstance(op, arith.CmpiOp)
        and arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data] == predicate
        and op.lhs is of
        and int_constant(op.rhs) == 0
    )


def floor_quotient(value: SSAValue, ranges: ValueRanges) -> Division | None:
    """Return x and s if the value is floor(x / s) wherever s is positive, else None."""
    op = value.owner
    match op:
        case arith.ShRSIOp():
            amount = int_constant(op.rhs)
            if amount is None or not 0 <= amount < width_of(value.type):
                return None
            return op.lhs, 1 << amount
        case arith.FloorDivSIOp():
            return _division(op.lhs, op.rhs)
        case arith.DivSIOp() if ranges[op.lhs].is_nonnegative:
            return _division(op.lhs, op.rhs)
        case _:
            return None
