"""How large terms get, so that code for them does not overflow."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.ir import SSAValue

from flexc.passes.masks.bounds.affine import Facts
from flexc.passes.masks.bounds.terms import (
    LARGE,
    MAX_SYMBOL,
    Choice,
    Constant,
    Negative,
    Product,
    Quotient,
    RowValue,
    Sum,
    Symbol,
    Term,
)

MOST = (1 << 63) - 1
"""Terms that may get larger are not computed."""


def magnitude(facts: Facts, term: Term) -> int:
    """A bound on the absolute value of a term and of what it is computed from."""
    match term:
        case Constant():
            return abs(term.value)
        case Symbol():
            return min(size_of(facts, term.value), MAX_SYMBOL)
        case RowValue():
            return row_magnitude(facts, term.value)
        case Sum():
            return magnitude(facts, term.left) + magnitude(facts, term.right)
        case Negative():
            return magnitude(facts, term.term)
        case Quotient():
            return max(magnitude(facts, p) for p in (term.term, term.divisor))
        case Product():
            factor = min(magnitude(facts, term.factor), LARGE)
            inner = magnitude(facts, term.term)
            return max(inner, min(inner, LARGE) * factor)
        case Choice():
            parts = (term.left, term.right, term.holds, term.fails)
            return max(magnitude(facts, part) for part in parts)


def row_magnitude(facts: Facts, value: SSAValue) -> int:
    """As `magnitude`, of a value whose divisors are checked to be positive."""
    known = size_of(facts, value)
    if facts.is_uniform(value):
        return min(known, MAX_SYMBOL)
    match op := value.owner:
        case arith.DivSIOp() | arith.FloorDivSIOp():
            return min(known, row_magnitude(facts, op.lhs))
        case arith.AddiOp() | arith.SubiOp():
            parts = (row_magnitude(facts, v) for v in op.operands)
            return min(known, sum(parts))
        case arith.MinSIOp() | arith.MaxSIOp() | arith.ExtSIOp():
            return min(known, max(row_magnitude(facts, v) for v in op.operands))
        case _:
            return known


def size_of(facts: Facts, value: SSAValue) -> int:
    """The greatest absolute value of an integer."""
    known = facts.ranges[value]
    return max(abs(known.lo), abs(known.hi))
