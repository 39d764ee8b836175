"""Conditions on remainders, which hold for some of any run of positions.

A mask such as `(q_idx - kv_idx) % 3 == 0` bounds no keys: every block wide enough
has live pairs and dead ones. This module finds how wide that is.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from flexc.passes.analysis import intervals
from flexc.passes.analysis.affine import Facts

MAX_PERIOD = 1 << 12


def residue_period(facts: Facts, value: SSAValue) -> int | None:
    """n, where a condition both holds and fails among any n neighbours.

    Neighbours are rows of one key or keys of one row, as the condition varies.
    """
    op = value.owner
    if not isinstance(op, arith.CmpiOp):
        return None
    left, right = (remainder_of(facts, v) for v in op.operands)
    if left is not None and right is not None:
        predicate = arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]
        same = left[1] == right[1] and predicate in ("eq", "ne")
        return left[1] if same and left[1] > 1 else None
    if right is not None:
        return None  # Simplification puts constants on the right.
    number = facts.constant(op.rhs)
    if left is None or number is None:
        return None
    return left[1] if varies(op, left[1], number) else None


def varies(op: arith.CmpiOp, period: int, number: int) -> bool:
    """Whether remainders disagree on a comparison with a number."""
    predicate = arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]
    remainders = intervals.Interval(0, period - 1)
    return intervals.compare(predicate, remainders, intervals.point(number)) is None


def remainder_of(facts: Facts, value: SSAValue) -> tuple[SSAValue, int] | None:
    """x and c of Python's x % c, for an x that steps by one along a position."""
    found = dividend_and_divisor(facts, value)
    if found is None or found[1] is None or not 0 < found[1] <= MAX_PERIOD:
        return None
    form = facts.affine(found[0])
    steps = form is not None and 1 in (abs(form.row), abs(form.column))
    return (found[0], found[1]) if steps else None


def dividend_and_divisor(
    facts: Facts, value: SSAValue
) -> tuple[SSAValue, int | None] | None:
    """x and c of the spellings that simplification leaves of x % c."""
    op = value.owner
    match op:
        case arith.ExtSIOp():
            return dividend_and_divisor(facts, op.input)
        case arith.RemSIOp() if facts.ranges[op.lhs].is_nonnegative:
            return op.lhs, facts.constant(op.rhs)
        case arith.AndIOp():
            mask = facts.constant(op.rhs)
            is_low = mask is not None and mask > 0 and mask & (mask + 1) == 0
            return (op.lhs, mask + 1) if mask is not None and is_low else None
        case arith.SelectOp():
            rest = mended(facts, op)
            return None if rest is None else (rest.lhs, facts.constant(rest.rhs))
        case _:
            return None


def mended(facts: Facts, op: arith.SelectOp) -> arith.RemSIOp | None:
    """r of `select(r < 0, r + c, r)`, where r is a remainder by c."""
    test, rest, sum_ = op.cond.owner, op.rhs.owner, op.lhs.owner
    if not isinstance(test, arith.CmpiOp) or not isinstance(rest, arith.RemSIOp):
        return None
    if not isinstance(sum_, arith.AddiOp) or test.lhs is not op.rhs:
        return None
    is_negative = arith.CMPI_COMPARISON_OPERATIONS[test.predicate.value.data] == "slt"
    is_negative = is_negative and facts.constant(test.rhs) == 0
    same = sum_.lhs is op.rhs and sum_.rhs is rest.rhs
    return rest if is_negative and same else None
