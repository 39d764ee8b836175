"""Bound the number of columns that a row sees, given what is known of a call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flexc.passes.masks.bounds.key_ranges import KeyRange
from flexc.passes.masks.bounds.terms import (
    Choice,
    Constant,
    Negative,
    Product,
    Quotient,
    RowValue,
    Sum,
    Symbol,
    Term,
    addends,
    multiply,
    slope,
)
from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.intervals import Interval, point
from flexc.passes.scalar.ranges.value_ranges import ValueRanges
from flexc.passes.scalar.variation import UNLIMITED


def most_columns(live: Iterable[KeyRange], at_row: ValueRanges) -> int | None:
    """Return a limit to the columns that each row sees, or None if it is not found.

    `at_row` has the ranges of a mask's values at any one row, such as row 0: two ends
    of a range count if their distance is the same at all rows. Not found are limits
    that hold for other reasons, as in `q_idx - q_idx % n <= kv_idx <= q_idx`.
    """
    total = 0
    for keys in live:
        found = list(_distances(keys, at_row))
        if not found:
            return None
        total += max(min(found) + 1, 0)
    return total


def _distances(keys: KeyRange, at_row: ValueRanges) -> Iterator[int]:
    """Yield limits to the distance from the first to the last column of a row."""
    lows = [Constant(0), *(end.term for end in keys.lows)]
    for high in keys.highs:
        for low in lows:
            found = _distance(low, high.term, at_row)
            if found is not None:
                yield found.hi


def _distance(low: Term, high: Term, at_row: ValueRanges) -> Interval | None:
    """Return the range of high - low if it is the same at all rows, else None."""
    factors: dict[Term, int] = {}
    for term, sign in (*_addends(high, 1), *_addends(low, -1)):
        factors[term] = factors.get(term, 0) + sign
    total, step = point(0), 0
    for term, factor in factors.items():
        if not factor:
            continue
        if (by_row := slope(term)) is None:
            return None
        step += factor * by_row
        added = intervals.multiply(term_range(term, at_row), point(factor), UNLIMITED)
        total = intervals.add(total, added, UNLIMITED)
    return None if step else total


def _addends(term: Term, sign: int) -> Iterator[tuple[Term, int]]:
    """Yield the addends of a term, also those of sums in products, with signs."""
    for part, its_sign in addends(term, sign):
        match part:
            case Product(Sum(left, right), factor):
                yield from _addends(multiply(left, factor), its_sign)
                yield from _addends(multiply(right, factor), its_sign)
            case _:
                yield part, its_sign


def term_range(term: Term, ranges: ValueRanges) -> Interval:
    """Return the range of a term, if its symbols pass their checks."""

    def of(part: Term) -> Interval:
        return term_range(part, ranges)

    match term:
        case Constant():
            return point(term.value)
        case Symbol() | RowValue():
            return ranges[term.value]
        case Sum():
            return intervals.add(of(term.left), of(term.right), UNLIMITED)
        case Product():
            return intervals.multiply(of(term.term), of(term.factor), UNLIMITED)
        case Negative():
            return intervals.subtract(point(0), of(term.term), UNLIMITED)
        case Quotient():
            return intervals.floor_divide(of(term.term), of(term.divisor), UNLIMITED)
        case Choice():
            return intervals.union(of(term.holds), of(term.fails))
