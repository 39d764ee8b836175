"""Compute with sound intervals of integers of a fixed width.

`OrderRules` and `ArithmeticRules` state the rules once, for Python numbers and for
values that a builder emits. An `Interval` contains every value that an integer may
have, read as signed; an i1 is 0 or -1. Operations take the width: a result that may
wrap around has the full range of the width. This module does not know the IR: see
`value_ranges`, and `masks.blocks` for emitted intervals.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

N = TypeVar("N")
"""A number, or the value that holds the number at run time."""

F = TypeVar("F")
"""A truth value, or the value of type i1 that holds the truth value at run time."""


@dataclass(frozen=True)
class Bounds(Generic[N]):
    """The smallest and the largest of some numbers."""

    lo: N
    hi: N


@dataclass(frozen=True)
class Truth(Generic[F]):
    """Two flags: `must` if a condition holds for all members, `may` if for some."""

    must: F
    may: F


class OrderRules(ABC, Generic[N, F]):
    """Rules of intervals that only compare numbers."""

    @abstractmethod
    def min(self, a: N, b: N, /) -> N: ...

    @abstractmethod
    def max(self, a: N, b: N, /) -> N: ...

    @abstractmethod
    def cmp(self, test: str, a: N, b: N, /) -> F:
        """Compare two numbers by lt, le, gt, ge, eq or ne."""

    @abstractmethod
    def select(self, condition: F, a: N, b: N, /) -> N: ...

    @abstractmethod
    def both(self, a: F, b: F, /) -> F: ...

    @abstractmethod
    def inverse(self, a: F, /) -> F: ...

    def hull(self, values: Iterable[N]) -> Bounds[N]:
        """Return the smallest interval that contains all values."""
        first, *others = values
        lo = hi = first
        for other in others:
            lo, hi = self.min(lo, other), self.max(hi, other)
        return Bounds(lo, hi)

    def corners(
        self, function: Callable[[N, N], N], a: Bounds[N], b: Bounds[N]
    ) -> list[N]:
        """Evaluate a function at all pairs of ends.

        The hull of the results is the function's range if the function is monotonic in
        each argument.
        """
        return [function(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]

    def minimum(self, a: Bounds[N], b: Bounds[N]) -> Bounds[N]:
        return Bounds(self.min(a.lo, b.lo), self.min(a.hi, b.hi))

    def maximum(self, a: Bounds[N], b: Bounds[N]) -> Bounds[N]:
        return Bounds(self.max(a.lo, b.lo), self.max(a.hi, b.hi))

    def chosen(self, condition: Truth[F], a: Bounds[N], b: Bounds[N]) -> Bounds[N]:
        """Return the range of a select: one operand's range, or the hull of both."""
        never, select = self.inverse(condition.may), self.select
        lo, hi = self.min(a.lo, b.lo), self.max(a.hi, b.hi)
        lo = select(condition.must, a.lo, select(never, b.lo, lo))
        return Bounds(lo, select(condition.must, a.hi, select(never, b.hi, hi)))

    def compare(self, test: str, a: Bounds[N], b: Bounds[N]) -> Truth[F]:
        """Compare all pairs of members by lt, le, gt, ge, eq or ne."""
        cmp = self.cmp
        match test:
            case "lt" | "le":
                return Truth(cmp(test, a.hi, b.lo), cmp(test, a.lo, b.hi))
            case "gt" | "ge":
                return Truth(cmp(test, a.lo, b.hi), cmp(test, a.hi, b.lo))
            case "eq":
                must = self.both(cmp("eq", a.lo, b.hi), cmp("eq", a.hi, b.lo))
                may = self.both(cmp("le", a.lo, b.hi), cmp("ge", a.hi, b.lo))
                return Truth(must, may)
            case _:
                equal = self.compare("eq", a, b)
                return Truth(self.inverse(equal.may), self.inverse(equal.must))


class ArithmeticRules(OrderRules[N, F]):
    """Rules of intervals that compute, without regard to overflow."""

    @abstractmethod
    def const(self, value: int, /) -> N: ...

    @abstractmethod
    def add(self, a: N, b: N, /) -> N: ...

    @abstractmethod
    def mul(self, a: N, b: N, /) -> N: ...

    @abstractmethod
    def sub(self, a: N, b: N, /) -> N: ...

    def sum(self, a: Bounds[N], b: Bounds[N]) -> Bounds[N]:
        return Bounds(self.add(a.lo, b.lo), self.add(a.hi, b.hi))

    def negative(self, a: Bounds[N]) -> Bounds[N]:
        zero = self.const(0)
        return self.difference(Bounds(zero, zero), a)

    def difference(self, a: Bounds[N], b: Bounds[N]) -> Bounds[N]:
        return Bounds(self.sub(a.lo, b.hi), self.sub(a.hi, b.lo))

    def product(self, a: Bounds[N], b: Bounds[N]) -> Bounds[N]:
        return self.hull(self.corners(self.mul, a, b))

    def absolute(self, a: Bounds[N]) -> Bounds[N]:
        """Return max(0, lo, -hi) .. max(-lo, hi)."""
        negative = self.negative(a)
        lo = self.max(self.max(a.lo, negative.lo), self.const(0))
        return Bounds(lo, self.max(a.hi, negative.hi))


COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}


class Numbers(ArithmeticRules[int, bool]):
    """The rules for Python's integers."""

    def min(self, a: int, b: int) -> int:
        return a if a <= b else b

    def max(self, a: int, b: int) -> int:
        return a if a >= b else b

    def add(self, a: int, b: int) -> int:
        return a + b

    def mul(self, a: int, b: int) -> int:
        return a * b

    def sub(self, a: int, b: int) -> int:
        return a - b

    def both(self, a: bool, b: bool) -> bool:
        return a and b

    def inverse(self, a: bool) -> bool:
        return not a

    def const(self, value: int) -> int:
        return value

    def cmp(self, test: str, a: int, b: int) -> bool:
        return COMPARISONS[test](a, b)

    def select(self, condition: bool, a: int, b: int) -> int:
        return a if condition else b


NUMBERS = Numbers()


@dataclass(frozen=True)
class Interval(Bounds[int]):
    """The integers from `lo` to `hi`, both included."""

    def __post_init__(self) -> None:
        assert self.lo <= self.hi, f"expected an interval, got {self}"

    @property
    def constant(self) -> int | None:
        """The only member, or None if there are several."""
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
        """Return True if another interval contains all members."""
        return other.lo <= self.lo and self.hi <= other.hi


def full(width: int) -> Interval:
    """Return all integers of a width."""
    return Interval(-(1 << (width - 1)), (1 << (width - 1)) - 1)


LENGTH = Interval(0, full(32).hi)
"""The range of a length, which is an i32."""

INDEX = Interval(0, LENGTH.hi - 1)
"""The range of a batch, of a head, and of a position in a sequence."""


def point(value: int) -> Interval:
    """Return the interval of one integer."""
    return Interval(value, value)


def union(a: Interval, b: Interval) -> Interval:
    """Return the smallest interval that contains both."""
    return Interval(min(a.lo, b.lo), max(a.hi, b.hi))


def fit(lo: int, hi: int, width: int) -> Interval:
    """Return lo .. hi, or the full range of the width if lo .. hi does not fit."""
    whole = full(width)
    exact = Interval(lo, hi)
    return exact if exact.within(whole) else whole


def _fitted(exact: Bounds[int], width: int) -> Interval:
    return fit(exact.lo, exact.hi, width)


def _corners(
    function: Callable[[int, int], int], a: Interval, b: Interval, width: int
) -> Interval:
    return _fitted(NUMBERS.hull(NUMBERS.corners(function, a, b)), width)


def add(a: Interval, b: Interval, width: int) -> Interval:
    return _fitted(NUMBERS.sum(a, b), width)


def subtract(a: Interval, b: Interval, width: int) -> Interval:
    return _fitted(NUMBERS.difference(a, b), width)


def multiply(a: Interval, b: Interval, width: int) -> Interval:
    return _fitted(NUMBERS.product(a, b), width)


def truncated_quotient(x: int, y: int) -> int:
    """Return x / y, rounded towards zero."""
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
    """Return the range of the remainder of `divide`, which has the sign of `a`."""
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
    return _fitted(NUMBERS.minimum(a, b), width)


def maximum(a: Interval, b: Interval, width: int) -> Interval:
    return _fitted(NUMBERS.maximum(a, b), width)


def _same_sign(a: Interval, b: Interval) -> bool:
    """Return True if unsigned order is signed order."""
    return (a.is_nonnegative and b.is_nonnegative) or (a.is_negative and b.is_negative)


def minimum_unsigned(a: Interval, b: Interval, width: int) -> Interval:
    return minimum(a, b, width) if _same_sign(a, b) else union(a, b)


def maximum_unsigned(a: Interval, b: Interval, width: int) -> Interval:
    return maximum(a, b, width) if _same_sign(a, b) else union(a, b)


def _ones(value: int) -> int:
    """Return the smallest 2**k - 1 that is not less than `value`."""
    return (1 << value.bit_length()) - 1


def bit_and(a: Interval, b: Interval, width: int) -> Interval:
    bounds = [i.hi for i in (a, b) if i.is_nonnegative]
    if bounds:
        return Interval(0, min(bounds))
    # The sign stays if both are negative; else it may be cleared.
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
    """Return the range of the absolute value; the smallest integer wraps around."""
    return _fitted(NUMBERS.absolute(a), width)


def zero_extend(a: Interval, width: int) -> Interval:
    """Return the range of the members, as unsigned integers of `width` bits."""
    if a.is_nonnegative:
        return a
    if a.is_negative:
        return Interval(a.lo + (1 << width), a.hi + (1 << width))
    return Interval(0, (1 << width) - 1)


def truncate(a: Interval, width: int) -> Interval:
    """Return the range of the lowest `width` bits."""
    return fit(a.lo, a.hi, width)


UNBOUNDED = 1 << 10
"""More bits than any integer has, so that unsigned comparisons work for any width."""


def compare(predicate: str, a: Interval, b: Interval) -> bool | None:
    """Decide an `arith.cmpi` predicate for all members; None if members disagree."""
    if predicate[0] == "u":
        a, b = zero_extend(a, UNBOUNDED), zero_extend(b, UNBOUNDED)
    test = predicate if predicate in ("eq", "ne") else predicate[1:]
    truth = NUMBERS.compare(test, a, b)
    return truth.must if truth.must == truth.may else None
