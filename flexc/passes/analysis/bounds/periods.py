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
from flexc.passes.analysis.ranges.division_spelling import floor_modulo

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
    op = value.owner
    if isinstance(op, arith.ExtSIOp):
        return remainder_of(facts, op.input)
    found = floor_modulo(value, facts.ranges)
    if found is None:
        return None
    dividend, divisor = found
    if not isinstance(divisor, int) or divisor > MAX_PERIOD:
        return None
    form = facts.affine(dividend)
    steps = form is not None and 1 in (abs(form.row), abs(form.column))
    return (dividend, divisor) if steps else None
