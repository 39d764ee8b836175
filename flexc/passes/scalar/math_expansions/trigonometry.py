"""tan and the inverse trigonometric functions."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import math as math_dialect
from xdsl.ir import Operation

from flexc.passes.scalar.math_expansions.values import (
    PI,
    Value,
    horner,
)

# atan(x) = x + x**3 * P(x**2) for |x| < tan(pi / 8) (Cephes).
ATAN = (
    8.05374449538e-2,
    -1.38776856032e-1,
    1.99777106478e-1,
    -3.33329491539e-1,
)
TAN_PI_8 = 0.41421356237309503
TAN_3_PI_8 = 2.414213562373095


def tan(x: Value) -> Value:
    """sin(x) / cos(x), to 1 ulp more than theirs together: 2.5 ulp."""
    return x.apply(math_dialect.SinOp) / x.apply(math_dialect.CosOp)


def atan(x: Value) -> Value:
    """atan(x) to 2.5 ulp in f32, 1.5 ulp in f64."""
    size = x.abs()
    return _atan_positive(size).with_sign_of(x)


def _atan_positive(x: Value) -> Value:
    """atan(x) for x >= 0: pi / 2 - atan(1 / x), pi / 4 + atan((x - 1) / (x + 1))."""
    large, middle = x.compare("gt", TAN_3_PI_8), x.compare("gt", TAN_PI_8)
    above = large.choose(-1.0, middle.choose(x - 1.0, x))
    below = large.choose(x, middle.choose(x + 1.0, x.const(1.0)))
    reduced = above / below
    square = reduced * reduced
    angle = (horner(square, ATAN) * square).fma(reduced, reduced)
    if x.is_double:
        angle = _refine(angle, reduced)
    high, low = _split_pi(x, 2)
    half_high, half_low = _split_pi(x, 4)
    shift = large.choose(x.const(high), middle.choose(half_high, x.const(0.0)))
    rest = large.choose(x.const(low), middle.choose(half_low, x.const(0.0)))
    return shift + (angle + rest)


def _split_pi(x: Value, n: int) -> tuple[float, float]:
    """pi / n as the nearest number of x's type and what that lacks."""
    fmt = x.format
    high = fmt.nearest(PI / n)
    return high, fmt.nearest(PI / n - type(PI)(high))


def _refine(angle: Value, x: Value) -> Value:
    """One step towards atan(x): the tangent of what is missing, which is tiny."""
    sin, cos = angle.apply(math_dialect.SinOp), angle.apply(math_dialect.CosOp)
    return angle + (x * cos - sin) / x.fma(sin, cos)


def atan2(y: Value, x: Value) -> Value:
    """The angle of the point (x, y), to 3 ulp."""
    a, b = y.abs(), x.abs()
    steep = a.compare("gt", b)
    low, high = steep.choose(b, a), steep.choose(a, b)
    # Equal ones, of which quotients may not exist, are at 45 degrees but for 0.
    ratio = a.compare("eq", b).choose(1.0, low / high)
    ratio = (a + b).compare("eq", 0.0).choose(0.0, ratio)
    angle = _atan_positive(ratio)
    half, half_rest = _split_pi(x, 2)
    angle = steep.choose(half - (angle - half_rest), angle)
    full, full_rest = _split_pi(x, 1)
    angle = x.has_sign().choose(full - (angle - full_rest), angle)
    return angle.with_sign_of(y)


def asin(x: Value) -> Value:
    """asin(x) = atan(x / sqrt(1 - x**2)) to 3.5 ulp."""
    return atan(x / ((1.0 - x) * (x + 1.0)).sqrt())


def acos(x: Value) -> Value:
    """acos(x) = 2 * atan(sqrt((1 - x) / (1 + x))) to 3.5 ulp."""
    return _atan_positive(((1.0 - x) / (x + 1.0)).sqrt()) * 2.0


EXPANSIONS: dict[type[Operation], Callable[..., Value]] = {
    math_dialect.TanOp: tan,
    math_dialect.AtanOp: atan,
    math_dialect.Atan2Op: atan2,
    math_dialect.AsinOp: asin,
    math_dialect.AcosOp: acos,
}
