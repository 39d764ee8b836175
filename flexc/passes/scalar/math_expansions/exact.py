"""Expand integer operations, rounding to integers, copysign and C's fmod.

All expansions are exact, except for fmod of f64 numbers with a large quotient.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import f64, i1, i32, i64
from xdsl.ir import Attribute, Operation

from flexc.dialects import flex
from flexc.dialects.constants import int_constant
from flexc.passes.scalar.math_expansions.values import Value


def floor_divide(x: Value, y: Value) -> Value:
    """Return the quotient rounded down."""
    quotient = x / y
    rest = x - quotient * y
    lower = rest.compare("ne", 0) & (rest ^ y).compare("lt", 0)
    return lower.choose(quotient - 1, quotient)


def ceil_divide(x: Value, y: Value) -> Value:
    """Return the quotient rounded up."""
    quotient = x / y
    rest = x - quotient * y
    higher = rest.compare("ne", 0) & (rest ^ y).compare("ge", 0)
    return higher.choose(quotient + 1, quotient)


def ceil_divide_unsigned(x: Value, y: Value) -> Value:
    """Return the quotient of unsigned numbers rounded up."""
    quotient = x.apply(arith.DivUIOp, y)
    rest = x - quotient * y
    return rest.compare("ne", 0).choose(quotient + 1, quotient)


def minimum_unsigned(x: Value, y: Value) -> Value:
    """Return the smaller of two unsigned numbers."""
    return x.compare("ult", y).choose(x, y)


def maximum_unsigned(x: Value, y: Value) -> Value:
    """Return the larger of two unsigned numbers."""
    return x.compare("ugt", y).choose(x, y)


def to_unsigned(x: Value, type_: Attribute) -> Value:
    """Expand `fptoui` by way of signed integers."""
    if type_ == i1:
        return x.cast(arith.FPToSIOp, i32).compare("ne", 0)
    if type_ != i64:
        wide = x.cast(arith.FPToSIOp, i64 if type_ == i32 else i32)
        return wide.cast(arith.TruncIOp, type_)
    half = 2.0**63
    high = (x - half).cast(arith.FPToSIOp, i64) ^ (-(2**63))
    return x.compare("ge", half).choose(high, x.cast(arith.FPToSIOp, i64))


def on_words(function: Callable[[Value], Value]) -> Callable[[Value], Value]:
    """Return a function that counts bits of narrow integers as 32-bit integers."""

    def counted(x: Value) -> Value:
        if x.width >= 32:
            return function(x)
        wide = x.cast(arith.ExtUIOp, i32)
        return function(wide).cast(arith.TruncIOp, x.type)

    return counted


def _repeated(byte: int, width: int) -> int:
    """Return an integer whose bytes are all `byte`, read as signed."""
    value = int.from_bytes(bytes([byte]) * (width // 8), "little")
    return value - (1 << width) if value >> (width - 1) else value


def _logical_shift(x: Value, by: int) -> Value:
    return x.apply(arith.ShRUIOp, by)


def count_ones(x: Value) -> Value:
    """Count the set bits, in all fields of 2, 4 and 8 bits at once."""
    pairs, fours, bytes_ = (_repeated(b, x.width) for b in (0x55, 0x33, 0x0F))
    x = x - (_logical_shift(x, 1) & pairs)
    x = (x & fours) + (_logical_shift(x, 2) & fours)
    x = (x + _logical_shift(x, 4)) & bytes_
    return _logical_shift(x * _repeated(0x01, x.width), x.width - 8)


def count_leading_zeros(x: Value) -> Value:
    """Count the zeros above the highest set bit."""
    width = x.width
    if width < 32:
        wide = count_leading_zeros(x.cast(arith.ExtUIOp, i32))
        return (wide - (32 - width)).cast(arith.TruncIOp, x.type)
    by = 1
    while by < width:
        x = x | _logical_shift(x, by)
        by *= 2
    return count_ones(x ^ -1)


def count_trailing_zeros(x: Value) -> Value:
    """Count the zeros below the lowest set bit."""
    return on_words(count_ones)((x & -x) - 1)


def power(x: Value, n: Value) -> Value:
    """Return x ** n by squaring; for negative n, 1 / x ** -n rounded towards zero."""
    if (constant := int_constant(n.ssa)) is not None and constant >= 0:
        return power_of_constant(x, constant)
    result = x.const(1)
    square = x
    for bit in range(x.width - 1):
        odd = (n & (1 << bit)).compare("ne", 0)
        result = odd.choose(result * square, result)
        if bit < x.width - 2:
            square = square * square
    odd = (n & 1).compare("ne", 0)
    sign = odd.choose(-1, x.const(1))
    inverse = x.compare("eq", -1).choose(sign, x.const(0))
    inverse = x.compare("eq", 1).choose(1, inverse)
    return n.compare("lt", 0).choose(inverse, result)


def power_of_constant(x: Value, n: int) -> Value:
    """Return x ** n for n >= 0, by squaring."""
    result: Value | None = None
    while n:
        if n & 1:
            result = x if result is None else result * x
        n >>= 1
        x = x * x if n else x
    return x.const(1) if result is None else result


def truncate(x: Value) -> Value:
    """Round towards zero."""
    return x.compare("lt", 0.0).choose(x.apply(math_dialect.CeilOp), x.floor())


def round_half_even(x: Value) -> Value:
    """Round to nearest, ties to even.

    Adding 2 ** mantissa leaves no bits for fractions, so the addition rounds.
    """
    size = x.abs()
    limit = 2.0**x.format.mantissa
    rounded = ((size + limit) - limit).with_sign_of(x)
    return size.compare("lt", limit).choose(rounded, x)


def round_half_away(x: Value) -> Value:
    """Round to nearest, ties away from zero."""
    size = x.abs()
    whole = size.floor()
    up = (size - whole).compare("ge", 0.5)
    return up.choose(whole + 1.0, whole).with_sign_of(x)


def copy_sign(x: Value, sign: Value) -> Value:
    """Return the first number with the second number's sign."""
    return x.with_sign_of(sign)


BITS_PER_STEP = 52
"""The number of quotient bits that an f64 division determines, give or take one
unit.
"""

STEPS_NARROW = 6
"""The number of divisions for f32: a quotient has less than 6 * 52 bits."""

STEPS_DOUBLE = 2


def fmod(x: Value, y: Value) -> Value:
    """Return x - y * trunc(x / y).

    The result is exact for f32, by long division in f64. For f64, the result is exact
    if |x / y| < 2**104. Else the result is some number with the sign of x that is
    smaller than |y|.
    """
    if x.is_double:
        return _long_division(x, y, STEPS_DOUBLE)
    wide_x, wide_y = x.cast(arith.ExtFOp, f64), y.cast(arith.ExtFOp, f64)
    return _long_division(wide_x, wide_y, STEPS_NARROW).cast(arith.TruncFOp, x.type)


def _long_division(x: Value, y: Value, steps: int) -> Value:
    rest, divisor = x.abs(), y.abs()
    # The remainder of an infinite x, and of a zero y, is NaN.
    undefined = rest.compare("eq", math.inf) | divisor.compare("eq", 0.0)
    for step in reversed(range(steps)):
        rest = _reduce(rest, divisor * 2.0 ** (BITS_PER_STEP * step))
    rest = rest.compare("lt", divisor).choose(rest, 0.0)
    rest = divisor.compare("eq", divisor).choose(rest, math.nan)
    rest = rest.with_sign_of(x)
    rest = x.compare("eq", x).choose(rest, math.nan)
    return undefined.choose(math.nan, rest)


def _reduce(rest: Value, divisor: Value) -> Value:
    """Return rest mod divisor, for a quotient that fits `BITS_PER_STEP` bits.

    Rounding may make the quotient one too large. The difference is exact in this
    format.
    """
    quotient = (rest / divisor).floor()
    reduced = (-quotient).fma(divisor, rest)
    reduced = reduced.compare("lt", 0.0).choose(reduced + divisor, reduced)
    return rest.compare("ge", divisor).choose(reduced, rest)


EXPANSIONS: dict[type[Operation], Callable[..., Value]] = {
    arith.FloorDivSIOp: floor_divide,
    arith.CeilDivSIOp: ceil_divide,
    arith.CeilDivUIOp: ceil_divide_unsigned,
    arith.MinUIOp: minimum_unsigned,
    arith.MaxUIOp: maximum_unsigned,
    math_dialect.CtPopOp: on_words(count_ones),
    math_dialect.CountLeadingZerosOp: count_leading_zeros,
    math_dialect.CountTrailingZerosOp: count_trailing_zeros,
    math_dialect.IPowIOp: power,
    math_dialect.TruncOp: truncate,
    math_dialect.RoundEvenOp: round_half_even,
    math_dialect.RoundOp: round_half_away,
    math_dialect.CopySignOp: copy_sign,
    flex.FmodOp: fmod,
}
