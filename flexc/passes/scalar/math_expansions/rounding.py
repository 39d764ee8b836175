"""Expand rounding to integers, copysign and C's fmod.

All expansions are exact, except for fmod of f64 numbers with a large quotient.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import f64
from xdsl.ir import Operation

from flexc.dialects import flex
from flexc.passes.scalar.math_expansions.values import Value


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
    math_dialect.TruncOp: truncate,
    math_dialect.RoundEvenOp: round_half_even,
    math_dialect.RoundOp: round_half_away,
    math_dialect.CopySignOp: copy_sign,
    flex.FmodOp: fmod,
}
