"""Whether every row has a live key, whatever the lengths and captured values.

Shown by a key that all rows see: the first one, as there is always that.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import Region

from flexc.passes.analysis.bounds.affine import Facts
from flexc.passes.analysis.bounds.atoms import Atom, KeyBound
from flexc.passes.analysis.bounds.key_bounds import Solver
from flexc.passes.analysis.bounds.key_ranges import MAX_ALTERNATIVES, conjunctions
from flexc.passes.analysis.bounds.terms import (
    Constant,
    Negative,
    Product,
    Quotient,
    RowValue,
    Sum,
    Symbol,
    Term,
)
from flexc.passes.analysis.formula import alternatives, mask_formula
from flexc.passes.analysis.proof import Proof, Proven, WhyNot
from flexc.passes.analysis.ranges import intervals
from flexc.passes.analysis.ranges.intervals import Interval

WIDTH = 1 << 10
"""Bits in which no term wraps around."""


def first_key_is_seen(mask: Region, max_length: int, fits: bool) -> Proof[None]:
    """Whether a mask is true of key 0 in all rows."""
    facts = Facts(mask, max_length, fits)
    found = alternatives(mask_formula(mask), MAX_ALTERNATIVES)
    solver = Solver(facts)
    for leaves in found or ():
        for atoms in conjunctions(solver, leaves):
            if all(allows_first_key(facts, atom) for atom in atoms):
                return Proven(None)
    return WhyNot("no part of the mask is seen to be true of key 0 in all rows")


def allows_first_key(facts: Facts, atom: Atom) -> bool:
    """Whether an atom is known to hold for key 0, whatever the row."""
    if not isinstance(atom, KeyBound):
        return False
    limit = term_range(facts, atom.term)
    if limit is None:
        return False
    return limit.lo >= 0 if atom.upper else limit.hi <= 0


def term_range(facts: Facts, term: Term) -> Interval | None:
    """What a term may be; None where nothing is known."""
    match term:
        case Constant():
            return intervals.point(term.value)
        case Symbol() if term.sized and term.least is None:
            return facts.ranges[term.value]
        case RowValue(checked=()):
            return facts.ranges[term.value]
        case Sum():
            left = term_range(facts, term.left)
            right = term_range(facts, term.right)
            if left is None or right is None:
                return None
            return intervals.add(left, right, WIDTH)
        case Negative():
            inner = term_range(facts, term.term)
            if inner is None:
                return None
            return intervals.subtract(intervals.point(0), inner, WIDTH)
        case Quotient(divisor=Constant() as number):
            return _with_number(facts, term.term, number, intervals.floor_divide)
        case Product(factor=Constant() as number):
            return _with_number(facts, term.term, number, intervals.multiply)
        case _:
            return None


def _with_number(
    facts: Facts,
    term: Term,
    number: Constant,
    transfer: Callable[[Interval, Interval, int], Interval],
) -> Interval | None:
    inner = term_range(facts, term)
    if inner is None:
        return None
    return transfer(inner, intervals.point(number.value), WIDTH)
