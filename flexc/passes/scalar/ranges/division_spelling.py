"""Floor division and its remainder, as frontends and simplification spell them."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from flexc.passes.scalar.ranges.linear_forms import int_constant
from flexc.passes.scalar.ranges.value_ranges import ValueRanges, width_of

Division = tuple[SSAValue, SSAValue | int]
"""A dividend and a divisor."""


def floor_modulo(value: SSAValue, ranges: ValueRanges) -> Division | None:
    """x and s of a value that is x modulo s wherever s is positive."""
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
    """r of `select(r has the wrong sign, r + s, r)` where r is x rem s."""
    rest, mended = op.rhs.owner, op.lhs.owner
    if not isinstance(rest, arith.RemSIOp) or not isinstance(mended, arith.AddiOp):
        return None
    if mended.lhs is not op.rhs or mended.rhs is not rest.rhs:
        return None
    test = op.cond.owner
    if _is_negative(op.cond, op.rhs):
        return rest
    if not isinstance(test, arith.AndIOp):
        return None
    for nonzero, differs in ((test.lhs, test.rhs), (test.rhs, test.lhs)):
        signs = differs.owner
        if not _compares(nonzero, "ne", op.rhs) or not isinstance(signs, arith.XOrIOp):
            continue
        for a, b in ((signs.lhs, signs.rhs), (signs.rhs, signs.lhs)):
            if _is_negative(a, op.rhs) and _is_negative(b, rest.rhs):
                return rest
    return None


def _is_negative(value: SSAValue, of: SSAValue) -> bool:
    return _compares(value, "slt", of)


def _compares(value: SSAValue, predicate: str, of: SSAValue) -> bool:
    """Whether a value is a comparison of another with 0."""
    op = value.owner
    return (
        isinstance(op, arith.CmpiOp)
        and arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data] == predicate
        and op.lhs is of
        and int_constant(op.rhs) == 0
    )


def floor_quotient(value: SSAValue, ranges: ValueRanges) -> Division | None:
    """x and s of a value that is the floor of x / s wherever s is positive."""
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
