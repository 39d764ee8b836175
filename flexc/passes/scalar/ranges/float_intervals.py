"""Sound interval arithmetic on floating-point numbers.

A `FloatInterval` holds every value that a number may have. Infinities are values
like others; whether it may be NaN is a flag beside the bounds, so that bounds say
something of the rest. Bounds are Python floats, which hold all types narrower.

Results are rounded outward to the type that a machine computes in, exactly where
they are numbers of that type. That covers rounding to nearest, fusing a product
with a sum and computing wider than asked for. A machine may also take subnormal
numbers for 0: an interval with one that is not 0 reaches to 0. Elementary functions
are in `float_functions`. Nothing here knows of the IR: see `float_values`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor, frexp, inf, isinf, isnan, ldexp


@dataclass(frozen=True)
class Format:
    """A binary floating-point type."""

    digits: int
    """Bits of a normal number's significand."""
    least: int
    """The exponent of the smallest normal number."""
    greatest: int
    """That of the largest number."""

    @property
    def tiny(self) -> float:
        """The smallest normal number."""
        return ldexp(1.0, self.least)

    @property
    def largest(self) -> float:
        return ldexp((1 << self.digits) - 1, self.greatest - self.digits + 1)


F16 = Format(11, -14, 15)
BF16 = Format(8, -126, 127)
F32 = Format(24, -126, 127)
F64 = Format(53, -1022, 1023)


@dataclass(frozen=True)
class FloatInterval:
    """The numbers from `lo` to `hi`, and NaN if `nan`; only NaN where lo > hi."""

    lo: float
    hi: float
    nan: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is no number but NaN."""
        return self.lo > self.hi

    @property
    def is_finite(self) -> bool:
        """Whether there are bounds. NaN does not count."""
        return not self.is_empty and -inf < self.lo and self.hi < inf

    @property
    def size(self) -> float:
        """The largest absolute value."""
        return max(abs(self.lo), abs(self.hi))

    @property
    def may_be_infinite(self) -> bool:
        return not self.is_empty and self.size == inf

    def __contains__(self, value: float) -> bool:
        return self.nan if isnan(value) else self.lo <= value <= self.hi


ANY = FloatInterval(-inf, inf, nan=True)
ONLY_NAN = FloatInterval(inf, -inf, nan=True)
NOTHING = FloatInterval(inf, -inf)


def union(*parts: FloatInterval) -> FloatInterval:
    """The smallest interval that holds all."""
    return FloatInterval(
        min(p.lo for p in parts), max(p.hi for p in parts), any(p.nan for p in parts)
    )


def round_down(exact: Fraction, fmt: Format) -> float:
    """The largest number of a format that is not above `exact`."""
    if exact == 0:
        return 0.0
    if abs(exact) > Fraction(fmt.largest):
        return fmt.largest if exact > 0 else -inf
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    place = max(exponent, fmt.least) - fmt.digits + 1
    return ldexp(floor(exact / Fraction(2) ** place), place)


def outward(
    lo: Fraction | float, hi: Fraction | float, nan: bool, fmt: Format
) -> FloatInterval:
    """An interval between exact bounds, rounded."""
    low = round_down(lo, fmt) if isinstance(lo, Fraction) else lo
    high = -round_down(-hi, fmt) if isinstance(hi, Fraction) else hi
    if 0 < low < fmt.tiny:
        low = 0.0
    if -fmt.tiny < high < 0:
        high = 0.0
    # No -0.0, so that equal intervals print equally.
    return FloatInterval(low + 0.0, high + 0.0, nan)


def round_toward(lo: float, hi: float, nan: bool, fmt: Format) -> FloatInterval:
    """An interval between floats, rounded."""
    return outward(exact(lo), exact(hi), nan, fmt)


def point(value: float, fmt: Format) -> FloatInterval:
    """One number, or NaN."""
    return ONLY_NAN if isnan(value) else rounded(FloatInterval(value, value), fmt)


def rounded(a: FloatInterval, fmt: Format) -> FloatInterval:
    """The members as numbers of another format."""
    return a if a.is_empty else round_toward(a.lo, a.hi, a.nan, fmt)


def of_integers(lo: int, hi: int, fmt: Format) -> FloatInterval:
    """Integers that are converted."""
    return outward(Fraction(lo), Fraction(hi), False, fmt)


def exact(x: float) -> Fraction | float:
    """A finite number as a fraction, others as they are."""
    return x if isinf(x) else Fraction(x)


def negate(a: FloatInterval) -> FloatInterval:
    return FloatInterval(-a.hi + 0.0, -a.lo + 0.0, a.nan)


def absolute(a: FloatInterval) -> FloatInterval:
    if a.is_empty:
        return a
    least = 0.0 if 0 in a else min(abs(a.lo), abs(a.hi))
    return FloatInterval(least, a.size, a.nan)


def add(a: FloatInterval, b: FloatInterval, fmt: Format) -> FloatInterval:
    if a.is_empty or b.is_empty:
        return ONLY_NAN
    cancels = (a.hi == inf and b.lo == -inf) or (a.lo == -inf and b.hi == inf)
    lo, hi = _sum(a.lo, b.lo, -inf), _sum(a.hi, b.hi, inf)
    return outward(lo, hi, a.nan or b.nan or cancels, fmt)


def _sum(x: float, y: float, unknown: float) -> Fraction | float:
    if isinf(x) or isinf(y):
        return unknown if isnan(x + y) else x + y
    return Fraction(x) + Fraction(y)


def subtract(a: FloatInterval, b: FloatInterval, fmt: Format) -> FloatInterval:
    return add(a, negate(b), fmt)


def multiply(a: FloatInterval, b: FloatInterval, fmt: Format) -> FloatInterval:
    if a.is_empty or b.is_empty:
        return ONLY_NAN
    nan = (0 in a and b.may_be_infinite) or (0 in b and a.may_be_infinite)
    products = [_product(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return outward(min(products), max(products), a.nan or b.nan or nan, fmt)


def _product(x: float, y: float) -> Fraction | float:
    """The product of two bounds; 0 times infinity bounds nothing but 0 itself."""
    if x == 0 or y == 0:
        return Fraction(0)
    return x * y if isinf(x) or isinf(y) else Fraction(x) * Fraction(y)


def square(a: FloatInterval, fmt: Format) -> FloatInterval:
    """A number times itself."""
    if a.is_empty:
        return a
    size = absolute(a)
    return replace(multiply(size, size, fmt), nan=a.nan)


def divide(a: FloatInterval, b: FloatInterval, fmt: Format) -> FloatInterval:
    """a / b, or a * (1 / b) with a reciprocal that is rounded, or vanishes."""
    if a.is_empty or b.is_empty:
        return ONLY_NAN
    if 0 in b:
        return ANY
    quotients = [_quotient(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    if b.size > ldexp(1.0, fmt.greatest - 1):
        quotients.append(Fraction(0))
    lo, hi = min(quotients), max(quotients)
    if not (b.lo == b.hi and _is_power_of_2(b.lo)):
        lo, hi = _wider(lo, hi, Fraction(4, 1 << fmt.digits))
    nan = a.may_be_infinite and b.may_be_infinite
    return outward(lo, hi, a.nan or b.nan or nan, fmt)


def _wider(
    lo: Fraction | float, hi: Fraction | float, error: Fraction
) -> tuple[Fraction | float, Fraction | float]:
    """Bounds of results that are wrong by a relative error."""
    if isinstance(lo, Fraction):
        lo -= abs(lo) * error
    if isinstance(hi, Fraction):
        hi += abs(hi) * error
    return lo, hi


def _quotient(x: float, y: float) -> Fraction | float:
    if isinf(y):
        return Fraction(0)
    return (x if y > 0 else -x) if isinf(x) else Fraction(x) / Fraction(y)


def _is_power_of_2(x: float) -> bool:
    """Whether dividing by it rounds nothing."""
    return abs(frexp(x)[0]) == 0.5


def minimum(a: FloatInterval, b: FloatInterval) -> FloatInterval:
    """The smaller, NaN if either is."""
    if a.is_empty or b.is_empty:
        return ONLY_NAN
    return FloatInterval(min(a.lo, b.lo), min(a.hi, b.hi), a.nan or b.nan)


def maximum(a: FloatInterval, b: FloatInterval) -> FloatInterval:
    return negate(minimum(negate(a), negate(b)))


def minimum_number(a: FloatInterval, b: FloatInterval) -> FloatInterval:
    """The smaller, and the other number of one that is NaN."""
    both = NOTHING if a.is_empty or b.is_empty else minimum(a, b)
    parts = [both, *([b] if a.nan else []), *([a] if b.nan else [])]
    return replace(union(*parts), nan=a.nan and b.nan)


def maximum_number(a: FloatInterval, b: FloatInterval) -> FloatInterval:
    return negate(minimum_number(negate(a), negate(b)))
