"""C's fmod."""

from __future__ import annotations

import math
from collections.abc import Callable

from xdsl.dialects import arith
from xdsl.dialects.builtin import f64
from xdsl.ir import Operation

from flexc.dialects import flex
from flexc.passes.scalar.math_expansions.values import Value

BITS_PER_STEP = 52
"""What one f64 division settles: its quotient is off by one at most."""

STEPS_NARROW = 6
"""A quotient of two f32 has less than 6 * 52 bits."""

STEPS_DOUBLE = 2


def fmod(x: Value, y: Value) -> Value:
    """x - y * trunc(x / y).

    Exact for f32, by long division in f64. For f64, exact where |x / y| < 2**104;
    beyond that some number with the sign of x and smaller than |y|.
    """
    if x.is_double:
        return _long_division(x, y, STEPS_DOUBLE)
    wide_x, wide_y = x.cast(arith.ExtFOp, f64), y.cast(arith.ExtFOp, f64)
    return _long_division(wide_x, wide_y, STEPS_NARROW).cast(arith.TruncFOp, x.type)


def _long_division(x: Value, y: Value, steps: int) -> Value:
    rest, divisor = x.abs(), y.abs()
    # Not even one digit of these: their remainder is NaN.
    undefined = rest.compare("eq", math.inf) | divisor.compare("eq", 0.0)
    for step in reversed(range(steps)):
        rest = _reduce(rest, divisor * 2.0 ** (BITS_PER_STEP * step))
    rest = rest.compare("lt", divisor).choose(rest, 0.0)
    rest = divisor.compare("eq", divisor).choose(rest, math.nan)
    rest = rest.with_sign_of(x)
    rest = x.compare("eq", x).choose(rest, math.nan)
    return undefined.choose(math.nan, rest)


def _reduce(rest: Value, divisor: Value) -> Value:
    """rest mod divisor, given that the quotient has few bits.

    Rounding makes the quotient one too large at worst, and the difference is a
    number of this format.
    """
    quotient = (rest / divisor).floor()
    reduced = (-quotient).fma(divisor, rest)
    reduced = reduced.compare("lt", 0.0).choose(reduced + divisor, reduced)
    return rest.compare("ge", divisor).choose(reduced, rest)


EXPANSIONS: dict[type[Operation], Callable[..., Value]] = {flex.FmodOp: fmod}
