"""Intervals of elementary functions.

A machine's functions are wrong by some units in the last place, and `exp` by more
where its argument is large: results are widened by a relative error that all
targets keep to by far. What a function cannot exceed, as 1 for tanh, no
implementation does: they saturate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from flexc.passes.scalar.ranges.float_intervals import (
    ANY,
    F64,
    ONLY_NAN,
    FloatInterval,
    Format,
    absolute,
    divide,
    multiply,
    negate,
    point,
    round_toward,
    rounded,
    square,
    union,
)

ERROR, ERROR_F64 = 2.0**-16, 2.0**-40
"""Relative errors, of types up to f32 and of f64."""

APPROXIMATE_TANH = 2.0**-10
"""Relative error of a GPU's own tanh, doubled."""

NEAR_ZERO = 2.0**-18
"""Absolute error of what is computed by subtraction: a GPU's logarithms near 1, tanh
by exp2 near 0. In f64 nothing is."""


@dataclass(frozen=True)
class Increasing:
    """A function that grows, with what it is where its argument may be.

    Arguments outside of `least` .. `greatest` give NaN.
    """

    function: Callable[[float], float]
    at_least: float
    """The function at its smallest argument: nothing is below."""
    at_most: float = inf
    least: float = -inf
    greatest: float = inf
    error: float = ERROR
    absolute_error: float = 0.0

    def __call__(self, a: FloatInterval, fmt: Format) -> FloatInterval:
        nan = a.nan or a.lo < self.least or a.hi > self.greatest
        lo, hi = max(a.lo, self.least), min(a.hi, self.greatest)
        if lo > hi:
            return ONLY_NAN
        low, high = self.at(lo), self.at(hi)
        low, high = low - self.off(low, fmt), high + self.off(high, fmt)
        # Of infinity both are NaN, of which max and min take the other.
        low, high = max(self.at_least, low), min(self.at_most, high)
        return round_toward(low, high, nan, fmt)

    def off(self, value: float, fmt: Format) -> float:
        """How far a machine's result may be off."""
        if fmt == F64:
            return abs(value) * ERROR_F64
        return abs(value) * self.error + self.absolute_error

    def at(self, x: float) -> float:
        """The function's value, or its limit."""
        try:
            return self.function(x)
        except ValueError:
            return self.at_least if x == self.least else self.at_most
        except OverflowError:
            return inf if x > 0 else -inf


HALF_PI = math.pi / 2 * (1 + ERROR)

INCREASING: dict[str, Increasing] = {
    "tanh": Increasing(
        math.tanh, -1.0, 1.0, error=APPROXIMATE_TANH, absolute_error=NEAR_ZERO
    ),
    "erf": Increasing(math.erf, -1.0, 1.0),
    "atan": Increasing(math.atan, -HALF_PI, HALF_PI),
    "exp": Increasing(math.exp, 0.0),
    "exp2": Increasing(lambda x: 2.0**x, 0.0),
    "expm1": Increasing(math.expm1, -1.0),
    "log": Increasing(math.log, -inf, least=0.0, absolute_error=NEAR_ZERO),
    "log2": Increasing(math.log2, -inf, least=0.0, absolute_error=NEAR_ZERO),
    "log10": Increasing(math.log10, -inf, least=0.0, absolute_error=NEAR_ZERO),
    "log1p": Increasing(math.log1p, -inf, least=-1.0),
    "sqrt": Increasing(math.sqrt, 0.0, least=0.0),
    "cbrt": Increasing(lambda x: math.copysign(abs(x) ** (1 / 3), x), -inf),
    "sinh": Increasing(math.sinh, -inf),
    "asinh": Increasing(math.asinh, -inf),
    "acosh": Increasing(math.acosh, 0.0, least=1.0),
    "atanh": Increasing(math.atanh, -inf, inf, -1.0, 1.0),
    "asin": Increasing(math.asin, -HALF_PI, HALF_PI, -1.0, 1.0),
}


def rsqrt(a: FloatInterval, fmt: Format) -> FloatInterval:
    root = INCREASING["sqrt"](a, fmt)
    if not root.is_empty and root.lo == 0:
        # Of -0.0 it is -inf.
        return FloatInterval(-inf, inf, root.nan)
    return divide(point(1.0, fmt), root, fmt)


def cosh(a: FloatInterval, fmt: Format) -> FloatInterval:
    if a.is_empty:
        return ONLY_NAN
    size = absolute(a)
    return Increasing(math.cosh, 1.0, least=0.0)(size, fmt)


def acos(a: FloatInterval, fmt: Format) -> FloatInterval:
    nan = a.nan or a.lo < -1 or a.hi > 1
    return FloatInterval(0.0, 2 * HALF_PI, nan)


def wave(a: FloatInterval, fmt: Format) -> FloatInterval:
    """Sine and cosine."""
    return FloatInterval(-1.0, 1.0, a.nan or a.may_be_infinite)


def whole(a: FloatInterval, fmt: Format) -> FloatInterval:
    """A number rounded to an integer in any direction."""
    if a.is_empty:
        return a
    lo = a.lo if a.lo == -inf else float(math.floor(min(a.lo, fmt.largest)))
    hi = a.hi if a.hi == inf else float(math.ceil(max(a.hi, -fmt.largest)))
    return rounded(FloatInterval(lo, hi, a.nan), fmt)


def copy_sign(a: FloatInterval, b: FloatInterval) -> FloatInterval:
    """The size of one number with the sign of another, which NaN has too."""
    size = absolute(a)
    if b.lo > 0 and not b.nan:
        return size
    if b.hi < 0 and not b.nan:
        return negate(size)
    return union(size, negate(size))


def remainder(a: FloatInterval, b: FloatInterval) -> FloatInterval:
    """C's fmod: no larger than either, with the sign of the first."""
    if a.is_empty or b.is_empty:
        return ONLY_NAN
    nan = a.nan or b.nan or a.may_be_infinite or 0 in b
    size = b.size
    lo, hi = max(min(a.lo, 0.0), -size), min(max(a.hi, 0.0), size)
    return FloatInterval(lo, hi, nan)


def power(a: FloatInterval, b: FloatInterval, fmt: Format) -> FloatInterval:
    """a ** b, of which little is said but for bases that are not negative."""
    if a.is_empty or b.is_empty:
        return ANY
    if b.lo == b.hi == 2:
        return widened(square(a, fmt), fmt)
    if a.lo < 0:
        return ANY
    corners = [_power(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    if any(math.isnan(c) for c in corners) or (a.lo == 0 and b.lo < 0):
        return replace(FloatInterval(0.0, inf), nan=True)
    lo, hi = min(corners), max(corners)
    if 1 in a:
        lo, hi = min(lo, 1.0), max(hi, 1.0)
    bounds = round_toward(lo, hi, a.nan or b.nan, fmt)
    # Both 1 ** NaN and NaN ** 0 are 1.
    one = [point(1.0, fmt)] if bounds.nan else []
    return widened(union(bounds, *one), fmt)


def _power(x: float, y: float) -> float:
    try:
        return math.pow(x, y)
    except OverflowError:
        return inf
    except ValueError:
        return math.nan


def widened(a: FloatInterval, fmt: Format) -> FloatInterval:
    """A result that is wrong by a relative error."""
    error = ERROR_F64 if fmt == F64 else ERROR
    around = FloatInterval(1 - error, 1 + error)
    if a.is_empty:
        return a
    return replace(multiply(a, around, fmt), nan=a.nan)
