"""Conditions on remainders, which hold for some of any run of positions.

A mask such as `(q_idx - kv_idx) % 3 == 0` bounds no keys: every block wide enough
has live pairs and dead ones. This module finds how wide that is.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.ir import Block, SSAValue

from flexc.dialects import flex
from flexc.passes.analysis.bounds.affine import Facts
from flexc.passes.analysis.ranges import intervals

MAX_PERIOD = 1 << 12


def residue_period(facts: Facts, value: SSAValue) -> int | None:
    """n, where a condition depends on positions by remainders of at most n alone.

    Along a position that it depends on, it repeats every n neighbours. A condition
    on one remainder is known to hold for some of them and to fail for others; of one
    on several (distances of columns in an image) that is taken to be so.
    """
    op = value.owner
    if not isinstance(op, arith.CmpiOp):
        return None
    number = facts.constant(op.rhs)
    single = remainder_of(facts, op.lhs)
    if single is not None and number is not None:
        return single[1] if varies(op, single[1], number) else None
    return _largest_divisor(facts, value)


def _largest_divisor(facts: Facts, value: SSAValue) -> int | None:
    """The greatest divisor of the remainders by which a value depends on positions."""
    if facts.is_uniform(value):
        return 0
    if (found := remainder_of(facts, value)) is not None:
        return found[1]
    if isinstance(value.owner, Block | flex.LoadCaptureOp):
        return None
    inner = [_largest_divisor(facts, v) for v in value.owner.operands]
    known = [n for n in inner if n is not None]
    return max(known) if len(known) == len(inner) else None


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
