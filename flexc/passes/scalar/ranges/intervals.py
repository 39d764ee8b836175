"""Sound interval arithmetic on integers of a fixed width.

An interval holds every value that an integer may have, read as signed; an i1 is
0 or -1. Operations take the width: a result that may wrap around may be anything.
Nothing here knows of the IR: see `value_ranges`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """The integers from `lo` to `hi`, both included."""

    lo: int
    hi: int

    def __post_init__(self) -> None:
        assert self.lo <= self.hi, f"expected an interval, got {self}"

    @property
    def constant(self) -> int | None:
        """The only member, if there is only one."""
        return self.lo if self.lo == self.hi else None

    @property
    def is_nonnegative(self) -> bool:
        return self.lo >= 0

    @property
    def is_negative(self) -> bool:
        return self.hi < 0

    def __contains__(self, value: int) -> bool:
        return self.lo <= value <= self.hi

    def within(self, other: Interval) -> bool:
        """Whether all members are members of another interval."""
        return other.lo <= self.lo and self.hi <= other.hi


def full(width: int) -> Interval:
    """All integers of a width."""
    return Interval(-(1 << (width - 1)), (1 << (width - 1)) - 1)


def point(value: int) -> Interval:
    """One integer."""
    return Interval(value, value)


def union(a: Interval, b: Interval) -> Interval:
    """The smallest interval that holds both."""
    return Interval(min(a.lo, b.lo), max(a.hi, b.hi))


def fit(lo: int, hi: int, width: int) -> Interval:
    """lo .. hi, or anything where that wraps around."""
    whole = full(width)
    exact = Interval(lo, hi)
    return exact if exact.within(whole) else whole


def _hull(values: Iterable[int], width: int) -> Interval:
    values = list(values)
    return fit(min(values), max(values), width)


def _corners(
    function: Callable[[int, int], int], a: Interval, b: Interval, width: int
) -> Interval:
    """The range of a function that is monotonic in each of its arguments."""
    return _hull((function(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)), width)


def add(a: Interval, b: Interval, width: int) -> Interval:
    return fit(a.lo + b.lo, a.hi + b.hi, width)


def subtract(a: Interval, b: Interval, width: int) -> Interval:
    return fit(a.lo - b.hi, a.hi - b.lo, width)


def multiply(a: Interval, b: Interval, width: int) -> Interval:
    return _corners(lambda x, y: x * y, a, b, width)


def truncated_quotient(x: int, y: int) -> int:
    """x / y rounded towards zero."""
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def floor_quotient(x: int, y: int) -> int:
    return x // y


def ceil_quotient(x: int, y: int) -> int:
    return -(-x // y)


def _division(
    quotient: Callable[[int, int], int],
) -> Callable[[Interval, Interval, int], Interval]:
    def divide(a: Interval, b: Interval, width: int) -> Interval:
        if 0 in b:
            return full(width)
        return _corners(quotient, a, b, width)

    return divide


divide = _division(truncated_quotient)
floor_divide = _division(floor_quotient)
ceil_divide = _division(ceil_quotient)


def remainder(a: Interval, b: Interval, width: int) -> Interval:
    """What `divide` leaves: smaller than the divisor, with the sign of `a`."""
    if 0 in b:
        return full(width)
    largest = max(abs(b.lo), abs(b.hi)) - 1
    lo = 0 if a.lo >= 0 else max(a.lo, -largest)
    hi = 0 if a.hi <= 0 else min(a.hi, largest)
    return Interval(lo, hi)


def divide_unsigned(a: Interval, b: Interval, width: int) -> Interval:
    if not b.is_nonnegative or 0 in b:
        return full(width)
    if a.is_nonnegative:
        return divide(a, b, width)
    return fit(0, ((1 << width) - 1) // b.lo, width)


def remainder_unsigned(a: Interval, b: Interval, width: int) -> Interval:
    if not b.is_nonnegative or 0 in b:
        return full(width)
    return remainder(a, b, width) if a.is_nonnegative else Interval(0, b.hi - 1)


def minimum(a: Interval, b: Interval, width: int) -> Interval:
    return Interval(min(a.lo, b.lo), min(a.hi, b.hi))


def maximum(a: Interval, b: Interval, width: int) -> Interval:
    return Interval(max(a.lo, b.lo), max(a.hi, b.hi))


def _same_sign(a: Interval, b: Interval) -> bool:
    """Whether unsigned order is signed order."""
    return (a.is_nonnegative and b.is_nonnegative) or (a.is_negative and b.is_negative)


def minimum_unsigned(a: Interval, b: Interval, width: int) -> Interval:
    return minimum(a, b, width) if _same_sign(a, b) else union(a, b)


def maximum_unsigned(a: Interval, b: Interval, width: int) -> Interval:
    return maximum(a, b, width) if _same_sign(a, b) else union(a, b)


def _ones(value: int) -> int:
    """The smallest 2**k - 1 that is not less than `value`."""
    return (1 << value.bit_length()) - 1


def bit_and(a: Interval, b: Interval, width: int) -> Interval:
    bounds = [i.hi for i in (a, b) if i.is_nonnegative]
    if bounds:
        return Interval(0, min(bounds))
    # Of two negative numbers the sign stays; of others it may go.
    return Interval(full(width).lo, max(a.hi, b.hi))


def bit_or(a: Interval, b: Interval, width: int) -> Interval:
    if a.is_nonnegative and b.is_nonnegative:
        return Interval(max(a.lo, b.lo), _ones(max(a.hi, b.hi)))
    negative = [i.lo for i in (a, b) if i.is_negative]
    return Interval(max(negative), -1) if negative else full(width)


def bit_xor(a: Interval, b: Interval, width: int) -> Interval:
    if a.is_nonnegative and b.is_nonnegative:
        return Interval(0, _ones(max(a.hi, b.hi)))
    return full(width)


def shift_left(a: Interval, b: Interval, width: int) -> Interval:
    if not b.within(Interval(0, width - 1)):
        return full(width)
    return _corners(lambda x, y: x << y, a, b, width)


def shift_right(a: Interval, b: Interval, width: int) -> Interval:
    if not b.within(Interval(0, width - 1)):
        return full(width)
    return _corners(lambda x, y: x >> y, a, b, width)


def shift_right_unsigned(a: Interval, b: Interval, width: int) -> Interval:
    if not b.within(Interval(0, width - 1)):
        return full(width)
    if a.is_nonnegative:
        return shift_right(a, b, width)
    return fit(0, ((1 << width) - 1) >> b.lo, width)


def absolute(a: Interval, width: int) -> Interval:
    """The absolute value; that of the smallest integer wraps."""
    lo = 0 if 0 in a else min(abs(a.lo), abs(a.hi))
    return fit(lo, max(abs(a.lo), abs(a.hi)), width)


def zero_extend(a: Interval, width: int) -> Interval:
    """Members of that many bits read as unsigned."""
    if a.is_nonnegative:
        return a
    if a.is_negative:
        return Interval(a.lo + (1 << width), a.hi + (1 << width))
    return Interval(0, (1 << width) - 1)


def truncate(a: Interval, width: int) -> Interval:
    """The lowest bits."""
    return fit(a.lo, a.hi, width)


def compare(predicate: str, a: Interval, b: Interval) -> bool | None:
    """What all members agree on, by the name of an `arith.cmpi` predicate."""
    match predicate:
        case "eq":
            return _equal(a, b)
        case "ne":
            equal = _equal(a, b)
            return None if equal is None else not equal
        case _:
            bounds = _unsigned_bounds if predicate[0] == "u" else _signed_bounds
            return _ordered(predicate[1:], bounds(a), bounds(b))


def _equal(a: Interval, b: Interval) -> bool | None:
    if a.hi < b.lo or b.hi < a.lo:
        return False
    return True if a.constant is not None and a == b else None


Key = tuple[bool, int]
"""Sorts numbers."""


def _signed_bounds(a: Interval) -> tuple[Key, Key]:
    return (False, a.lo), (False, a.hi)


def _unsigned_bounds(a: Interval) -> tuple[Key, Key]:
    """The least and the greatest member, negative numbers being the greatest."""
    if a.is_negative or a.is_nonnegative:
        return (a.is_negative, a.lo), (a.is_negative, a.hi)
    return (False, 0), (True, -1)


def _ordered(predicate: str, a: tuple[Key, Key], b: tuple[Key, Key]) -> bool | None:
    if predicate[0] == "g":
        return _ordered("l" + predicate[1], b, a)
    (a_lo, a_hi), (b_lo, b_hi) = a, b
    strict = predicate == "lt"
    if a_hi < b_lo or (a_hi == b_lo and not strict):
        return True
    if a_lo > b_hi or (a_lo == b_hi and strict):
        return False
    return None
