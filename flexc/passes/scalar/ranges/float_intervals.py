"""Compute with sound intervals of floating-point numbers.

A `FloatInterval` contains every value that a number may have. Infinities are values
like others. NaN is a flag apart from the bounds, so that the bounds describe the other
values. Bounds are Python floats, which represent all narrower types exactly.

Results are rounded outward to the type in which a machine computes. Results that the
type represents exactly stay as they are. This covers rounding to nearest, fused
multiply-add and computing in a wider type. A machine may flush subnormal numbers to 0:
an interval that ends in a subnormal number extends to 0. Elementary functions are in
`float_values`. This module does not know the IR.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor, frexp, inf, isinf, isnan, ldexp


@dataclass(frozen=True)
class Format:
    """A binary floating-point type."""

    digits: int
    """The number of bits of a normal number's significand."""
    least: int
    """The exponent of the smallest normal number."""
    greatest: int
    """The exponent of the largest number, which is also the bias."""

    @property
    def tiny(self) -> float:
        """The smallest normal number."""
        return ldexp(1.0, self.least)

    @property
    def largest(self) -> float:
        return ldexp((1 << self.digits) - 1, self.greatest - self.digits + 1)

    @property
    def mantissa(self) -> int:
        """The number of bits after the leading one."""
        return self.digits - 1

    @property
    def width(self) -> int:
        """The number of all bits: sign, exponent and mantissa."""
        return (self.greatest + 1).bit_length() + self.digits

    @property
    def sign_mask(self) -> int:
        return -(1 << (self.width - 1))

    @property
    def magic(self) -> float:
        """A number c such that x + c holds x, rounded to an integer, in its lowest
        bits.
        """
        return 1.5 * 2.0**self.mantissa

    @property
    def magic_bits(self) -> int:
        exponent = (self.greatest + self.mantissa) << self.mantissa
        return exponent | (1 << (self.mantissa - 1))

    def power_bits(self, n: int) -> int:
        """Return the bits of 2**n."""
        return (n + self.greatest) << self.mantissa

    @property
    def packed(self) -> struct.Struct:
        """The memory layout, for f32 and f64."""
        return struct.Struct({32: ">f", 64: ">d"}[self.width])

    def bits_of(self, value: float) -> int:
        """Return the bits of a nonnegative number, in f32 or f64."""
        return int.from_bytes(self.packed.pack(value), "big")

    def nearest(self, value: Fraction) -> float:
        """Return the nearest number, in f32 or f64."""
        number: float = self.packed.unpack(self.packed.pack(float(value)))[0]
        return number

    def split(self, value: Fraction) -> tuple[float, float]:
        """Return two numbers whose sum is close to `value`.

        The lowest 12 bits of the first number are 0, so its product with a 12-bit
        integer is exact.
        """
        digits = self.mantissa - 12
        scale = Fraction(2) ** digits
        high = Fraction(round(value * scale)) / scale
        return float(high), self.nearest(value - high)


F16 = Format(11, -14, 15)
BF16 = Format(8, -126, 127)
F32 = Format(24, -126, 127)
F64 = Format(53, -1022, 1023)


@dataclass(frozen=True)
class FloatInterval:
    """The numbers from `lo` to `hi`, and NaN if `nan`. No numbers if lo > hi."""

    lo: float
    hi: float
    nan: bool = False

    @property
    def is_empty(self) -> bool:
        """True if the interval has no number other than NaN."""
        return self.lo > self.hi

    @property
    def is_finite(self) -> bool:
        """True if there are numbers, and both bounds are finite. NaN does not count."""
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
    """Return the smallest interval that contains all parts."""
    return FloatInterval(
        min(p.lo for p in parts), max(p.hi for p in parts), any(p.nan for p in parts)
    )


def round_down(exact: Fraction, fmt: Format) -> float:
    """Return the largest number of a format that is not above `exact`."""
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
    """Return the interval between exact bounds, rounded outward."""
    low = round_down(lo, fmt) if isinstance(lo, Fraction) else lo
    high = -round_down(-hi, fmt) if isinstance(hi, Fraction) else hi
    if 0 < low < fmt.tiny:
        low = 0.0
    if -fmt.tiny < high < 0:
        high = 0.0
    # Avoid -0.0, so that equal intervals print equally.
    return FloatInterval(low + 0.0, high + 0.0, nan)


def round_toward(lo: float, hi: float, nan: bool, fmt: Format) -> FloatInterval:
    """Return the interval between floats, rounded outward to a format."""
    return outward(exact(lo), exact(hi), nan, fmt)


def point(value: float, fmt: Format) -> FloatInterval:
    """Return the interval of one number, or of NaN."""
    return ONLY_NAN if isnan(value) else rounded(FloatInterval(value, value), fmt)


def rounded(a: FloatInterval, fmt: Format) -> FloatInterval:
    """Return the interval of the members, rounded to another format."""
    return a if a.is_empty else round_toward(a.lo, a.hi, a.nan, fmt)


def of_integers(lo: int, hi: int, fmt: Format) -> FloatInterval:
    """Return the interval of integers that are converted to a format."""
    return outward(Fraction(lo), Fraction(hi), False, fmt)


def exact(x: float) -> Fraction | float:
    """Return a finite number as a fraction, an infinity as it is."""
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
    """Return the product of two bounds. 0 times infinity is 0 as a bound."""
    if x == 0 or y == 0:
        return Fraction(0)
    return x * y if isinf(x) or isinf(y) else Fraction(x) * Fraction(y)


def square(a: FloatInterval, fmt: Format) -> FloatInterval:
    """Return the range of a number times itself."""
    if a.is_empty:
        return a
    size = absolute(a)
    return replace(multiply(size, size, fmt), nan=a.nan)


def divide(a: FloatInterval, b: FloatInterval, fmt: Format) -> FloatInterval:
    """Return the range of a / b, also if computed as a * (1 / b).

    The reciprocal may be rounded, or flushed to 0.
    """
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
    """Return bounds, widened by a relative error."""
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
    """Return True if division by a number is exact."""
    return abs(frexp(x)[0]) == 0.5


def minimum(a: FloatInterval, b: FloatInterval) -> FloatInterval:
    """Return the range of the smaller number; NaN if either is NaN."""
    if a.is_empty or b.is_empty:
        return ONLY_NAN
    return FloatInterval(min(a.lo, b.lo), min(a.hi, b.hi), a.nan or b.nan)


def maximum(a: FloatInterval, b: FloatInterval) -> FloatInterval:
    return negate(minimum(negate(a), negate(b)))


def minimum_number(a: FloatInterval, b: FloatInterval) -> FloatInterval:
    """Return the range of C's fmin: a NaN gives the other operand."""
    both = NOTHING if a.is_empty or b.is_empty else minimum(a, b)
    parts = [both, *([b] if a.nan else []), *([a] if b.nan else [])]
    return replace(union(*parts), nan=a.nan and b.nan)


def maximum_number(a: FloatInterval, b: FloatInterval) -> FloatInterval:
    return negate(minimum_number(negate(a), negate(b)))
