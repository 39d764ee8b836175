"""Expand exponentials, logarithms, powers, hyperbolic and trigonometric functions.

exp(x) is (1 + p) * 2**n. p = exp(x - n * log(2)) - 1 is a polynomial of a number whose
absolute value is below 0.35. log(m * 2**k) is k * log(2) + log1p(m - 1), with m from
sqrt(1/2) to sqrt(2). log1p(f) is an odd series in f / (2 + f). Hyperbolic functions and
their inverses are computed by expm1 and log1p.

The logarithm in a power needs more digits than its type has. It is computed as the sum
of two numbers, after N. Juffa's powf for CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.ir import Operation

from flexc.dialects import tile
from flexc.dialects.constants import float_constant, int_constant
from flexc.passes.scalar.math_expansions.exact import power_of_constant
from flexc.passes.scalar.math_expansions.values import (
    LN2,
    LOG2_E,
    LOG10_2,
    LOG10_E,
    PI,
    Value,
    horner,
)

# exp(f) = 1 + f + f**2 * P(f): minimax coefficients for f32, Taylor's for f64.
EXP_F32 = (
    1.97350979e-4,
    1.39309070e-3,
    8.33343994e-3,
    4.16668020e-2,
    1.66666716e-1,
    4.99999970e-1,
)
EXP_F64 = tuple(1.0 / math.factorial(n) for n in range(15, 1, -1))

# 2 * atanh(q) = 2 * q + q * R(q**2): Taylor's coefficients.
LOG_F32 = tuple(2.0 / n for n in range(11, 1, -2))
LOG_F64 = tuple(2.0 / n for n in range(27, 1, -2))


def scaled_exp(x: Value) -> tuple[Value, Value, Value]:
    """Return (p, t, x') where exp(x') = 4 * (1 + p) * t and t is a power of two.

    The factor 4 keeps t finite where exp(x) / 2 is finite. p has an error of 1 ulp, and
    is exact for tiny x. x' is x, clamped so that t neither overflows nor underflows.
    """
    fmt = x.format
    x = x.at_most(710.5 if x.is_double else 89.5)
    x = x.at_least(-705.0 if x.is_double else -86.0)
    shifted = x.fma(float(LOG2_E), fmt.magic)
    n = shifted - fmt.magic
    high, low = fmt.split(LN2)
    f = n.fma(-low, n.fma(-high, x))
    square = f * f
    tail = horner(f, EXP_F64 if x.is_double else EXP_F32)
    p = tail.fma(square, f)
    bits = (shifted.as_bits() << fmt.mantissa) + fmt.power_bits(-2)
    return p, bits.as_float(x.type), x


def expm1(x: Value) -> Value:
    """Return exp(x) - 1 to 2 ulp."""
    p, t, _ = scaled_exp(x)
    result = p.fma(t, t - 0.25) * 4.0
    tiny = x.abs().compare("lt", 2.0 ** -(x.format.mantissa + 2))
    return tiny.choose(x, result)


def log1p_series(f: Value, q: Value) -> Value:
    """Return log(1 + f) for q = f / (2 + f) and 1 + f from sqrt(1/2) to sqrt(2)."""
    s = q * q
    series = horner(s, LOG_F64 if f.is_double else LOG_F32) * s
    # This is 2 * q + q * series, written so that f, which has no error, is added last.
    return q.fma(series - f, f)


def exponent_of(x: Value) -> Value:
    """Return the bits of k * 2**mantissa, where x = m * 2**k.

    m is from sqrt(1/2) to sqrt(2).
    """
    fmt = x.format
    root = fmt.bits_of(math.sqrt(0.5))
    return (x.as_bits() - root) & -(1 << fmt.mantissa)


def exponent_value(bits: Value, like: Value) -> Value:
    """Return k as a float, given the result of `exponent_of`."""
    return (bits >> like.format.mantissa).cast(arith.SIToFPOp, like.type)


def log1p(x: Value) -> Value:
    """Return log(1 + x) to 1.5 ulp."""
    fmt = x.format
    k = exponent_of(x + 1.0)
    # This is f = x * 2**-k + (2**-k - 1), rounded once.
    scale = (fmt.power_bits(2) - k).as_float(x.type)
    f = (x * (scale * 0.25)) + scale.fma(0.25, -1.0)
    r = log1p_series(f, f / (f + 2.0))
    result = _add_exponent(exponent_value(k, x), r, fmt.split(LN2))
    result = x.compare("eq", -1.0).choose(-math.inf, result)
    result = x.compare("ge", -1.0).choose(result, math.nan)
    tiny = x.abs().compare("lt", 2.0 ** -(fmt.mantissa + 2))
    return (tiny | x.compare("eq", math.inf)).choose(x, result)


def _add_exponent(k: Value, r: Value, unit: tuple[float, float]) -> Value:
    high, low = unit
    return k.fma(high, k.fma(low, r))


def split_positive(x: Value) -> tuple[Value, Value]:
    """Return (k, m) where x = m * 2**k and m is from sqrt(1/2) to sqrt(2)."""
    fmt = x.format
    up = float(fmt.mantissa + 1)
    small = x.compare("lt", 2.0 ** (1 - fmt.greatest))
    x = small.choose(x * 2.0**up, x)
    bits = exponent_of(x)
    m = (x.as_bits() - bits).as_float(x.type)
    k = exponent_value(bits, x)
    return small.choose(k - up, k), m


def log_limits(x: Value, result: Value) -> Value:
    """Return a logarithm's result, corrected for zero, negative and infinite x."""
    result = x.compare("eq", 0.0).choose(-math.inf, result)
    result = x.compare("ge", 0.0).choose(result, math.nan)
    return x.compare("eq", math.inf).choose(x, result)


def log10(x: Value) -> Value:
    """Return log(x) / log(10) to 2 ulp."""
    k, m = split_positive(x)
    f = m - 1.0
    r = log1p_series(f, f / (f + 2.0))
    high, low = x.format.split(LOG10_E)
    r = r.fma(high, r * low)
    return log_limits(x, _add_exponent(k, r, x.format.split(LOG10_2)))


# tanh(x) = x + x**3 * P(x**2) for |x| < 0.625 (Cephes).
TANH_F32 = (
    -5.70498872745e-3,
    2.06390887954e-2,
    -5.37397155531e-2,
    1.33314422036e-1,
    -3.33332819422e-1,
)


def tanh(x: Value) -> Value:
    """Return tanh(x) to 2 ulp in f32, 3 ulp in f64."""
    size = x.abs()
    if x.is_double:
        t = expm1(size * -2.0)
        return (-t / (t + 2.0)).with_sign_of(x)
    large = 1.0 - 2.0 / ((size * float(2 * LOG2_E)).exp2() + 1.0)
    square = size * size
    small = (horner(square, TANH_F32) * square).fma(size, size)
    return size.compare("lt", 0.625).choose(small, large).with_sign_of(x)


def tanh_by_exp2(x: Value) -> Value:
    """Return tanh(x) with an absolute error of 2e-7 in f32.

    Near 0, the relative error is large.
    """
    return 1.0 - 2.0 / ((x * float(2 * LOG2_E)).exp2() + 1.0)


def tanh_by_hardware(x: Value) -> Value:
    """Return tanh(x) with a relative error of 2**-11 in f32, and as `tanh` in f64."""
    return tanh(x) if x.is_double else x.apply(tile.TanhApproxOp)


def sinh(x: Value) -> Value:
    """Return sinh(x) to 2.5 ulp."""
    size = x.abs()
    p, t, _ = scaled_exp(size)
    quarter = p.fma(t, t - 0.25)
    result = (quarter + quarter / (quarter * 4.0 + 1.0)) * 2.0
    tiny = size.compare("lt", 2.0 ** -(x.format.mantissa // 2 + 2))
    return tiny.choose(x, result.with_sign_of(x))


def cosh(x: Value) -> Value:
    """Return cosh(x) to 2 ulp."""
    p, t, _ = scaled_exp(x.abs())
    quarter = p.fma(t, t)
    return quarter.fma(2.0, 0.125 / quarter)


def asinh(x: Value) -> Value:
    """Return asinh(x) = log1p(|x| + x**2 / (1 + sqrt(1 + x**2))) to 2.5 ulp."""
    size = x.abs()
    large = size.compare("gt", 2.0 ** (x.format.mantissa + 2))
    safe = large.choose(1.0, size)
    square = safe * safe
    grown = safe + square / ((square + 1.0).sqrt() + 1.0)
    return _log1p_or_large(large, grown, size).with_sign_of(x)


def acosh(x: Value) -> Value:
    """Return acosh(x) = log1p(u + sqrt(2 * u + u**2)), u = x - 1, to 2.5 ulp."""
    large = x.compare("gt", 2.0 ** (x.format.mantissa + 2))
    u = large.choose(1.0, x) - 1.0
    grown = u + (u * (u + 2.0)).sqrt()
    result = _log1p_or_large(large, grown, x)
    return x.compare("ge", 1.0).choose(result, math.nan)


def _log1p_or_large(large: Value, u: Value, x: Value) -> Value:
    """Return log1p(u), or log(2 * x) where x is so large that x + 1 rounds to x."""
    result = log1p(large.choose(x, u))
    return large.choose(result + float(LN2), result)


def atanh(x: Value) -> Value:
    """Return atanh(x) = log1p(2 * x / (1 - x)) / 2 to 2.5 ulp."""
    size = x.abs()
    result = log1p((size + size) / (1.0 - size)) * 0.5
    tiny = size.compare("lt", 2.0 ** -(x.format.mantissa // 2 + 2))
    return tiny.choose(x, result.with_sign_of(x))


TANH_MODES: dict[str, Callable[[Value], Value]] = {
    "exact": tanh,
    "nvidia": tanh_by_hardware,
    "exp2": tanh_by_exp2,
}


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
    """Return sin(x) / cos(x) to 2.5 ulp, or 1 ulp plus the errors of sin and cos."""
    return x.apply(math_dialect.SinOp) / x.apply(math_dialect.CosOp)


def atan(x: Value) -> Value:
    """Return atan(x) to 2.5 ulp in f32, 1.5 ulp in f64."""
    size = x.abs()
    return _atan_positive(size).with_sign_of(x)


def _atan_positive(x: Value) -> Value:
    """Return atan(x) for x >= 0.

    - Large x are reduced by atan(x) = pi / 2 - atan(1 / x).
    - Medium x are reduced by atan(x) = pi / 4 + atan((x - 1) / (x + 1)).
    """
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
    """Return pi / n as the nearest number of x's type, and the rounding error."""
    fmt = x.format
    high = fmt.nearest(PI / n)
    return high, fmt.nearest(PI / n - type(PI)(high))


def _refine(angle: Value, x: Value) -> Value:
    """Return atan(x) by one Newton step from `angle`, which is close to atan(x)."""
    sin, cos = angle.apply(math_dialect.SinOp), angle.apply(math_dialect.CosOp)
    return angle + (x * cos - sin) / x.fma(sin, cos)


def atan2(y: Value, x: Value) -> Value:
    """Return the angle of the point (x, y) to 3 ulp."""
    a, b = y.abs(), x.abs()
    steep = a.compare("gt", b)
    low, high = steep.choose(b, a), steep.choose(a, b)
    # The ratio of equal sizes is 1, also of infinities, but the ratio of zeros is 0.
    ratio = a.compare("eq", b).choose(1.0, low / high)
    ratio = (a + b).compare("eq", 0.0).choose(0.0, ratio)
    angle = _atan_positive(ratio)
    half, half_rest = _split_pi(x, 2)
    angle = steep.choose(half - (angle - half_rest), angle)
    full, full_rest = _split_pi(x, 1)
    angle = x.has_sign().choose(full - (angle - full_rest), angle)
    return angle.with_sign_of(y)


def asin(x: Value) -> Value:
    """Return asin(x) = atan(x / sqrt(1 - x**2)) to 3.5 ulp."""
    return atan(x / ((1.0 - x) * (x + 1.0)).sqrt())


def acos(x: Value) -> Value:
    """Return acos(x) = 2 * atan(sqrt((1 - x) / (1 + x))) to 3.5 ulp."""
    return _atan_positive(((1.0 - x) / (x + 1.0)).sqrt()) * 2.0


# atanh(q) = q + q**3 * P(q**2). For f32, the first coefficient of P is adapted to the
# rounding of the others; for f64, these are Taylor's coefficients.
ATANH_F32 = (0.1293334961, 0.1419928074, 0.2000148892, 0.3333332539)
ATANH_F64 = tuple(1.0 / n for n in range(27, 1, -2))

EXPONENT_LIMIT = {False: 250.0, True: 2000.0}
"""Limits n of exponents, by `is_double`. 2**n is infinite and 2**-n is 0, but 2**(n /
2) is finite and 2**(-n / 2) is positive.
"""

SMALL_POWERS = 4.0

Double = tuple[Value, Value]
"""An unevaluated sum. The second part is at most the rounding error of the first."""


def quick_two_sum(a: Value, b: Value) -> Double:
    """Return a + b for |a| >= |b|, as the rounded sum and the rounding error."""
    total = a + b
    return total, b - (total - a)


def log2_double(x: Value) -> Double:
    """Return log2(x) for a positive finite x.

    The relative error is 2**-29 for f32 and 2**-58 for f64.
    """
    k, m = split_positive(x)
    above, below = m - 1.0, m + 1.0
    # q + q_low = (m - 1) / (m + 1).
    q = above / below
    rest = (-q).fma(below, above)
    # m + 1 is rounded too: subtract q times the rounding error.
    rest = (-q).fma(m - (below - 1.0), rest)
    q_low = rest / below
    # atanh = q + q**3 * P. The cube is a sum of two numbers too.
    s = q * q
    s_low = q.fma(q, -s) + q * (q_low + q_low)
    cube = s * q
    cube_low = s.fma(q, -cube) + s.fma(q_low, s_low * q)
    series = horner(s, ATANH_F64 if x.is_double else ATANH_F32)
    tail = series.fma(cube, series.fma(cube_low, q_low))
    high, low = quick_two_sum(q, tail)
    # log2(x) = k + 2 / log(2) * atanh.
    fmt = x.format
    unit = fmt.nearest(2 * LOG2_E)
    unit_low = fmt.nearest(2 * LOG2_E - type(LOG2_E)(unit))
    product = high * unit
    product_low = high.fma(unit, -product) + high.fma(unit_low, low * unit)
    total, error = quick_two_sum(k, product)
    none = k.compare("eq", 0.0)
    total = none.choose(product, total)
    error = none.choose(0.0, error)
    return quick_two_sum(total, error + product_low)


def positive_power(x: Value, y: Double) -> Value:
    """Return |x| ** y. The result is 1 for |x| = 1 and any y."""
    x = x.abs()
    y_high, y_low = y
    high, low = log2_double(x)
    high = x.compare("eq", 0.0).choose(-math.inf, high)
    high = x.compare("eq", math.inf).choose(math.inf, high)
    high = x.compare("eq", x).choose(high, math.nan)
    exponent = high * y_high
    error = high.fma(y_high, -exponent) + high.fma(y_low, low * y_high)
    limit = EXPONENT_LIMIT[x.is_double]
    # Beyond the limit, the error may be NaN, but the result does not depend on the
    # error.
    error = exponent.abs().compare("lt", limit).choose(error, 0.0)
    exponent = exponent.at_most(limit).at_least(-limit)
    result = _exp2_double(exponent, error)
    return x.compare("eq", 1.0).choose(1.0, result)


def _exp2_double(x: Value, x_low: Value) -> Value:
    """Return exp2(x + x_low), scaled in two steps.

    A single step might overflow although the result does not.
    """
    fmt = x.format
    shifted = x + fmt.magic
    fraction = (x - (shifted - fmt.magic)) + x_low
    n = shifted.as_bits() - fmt.magic_bits
    half = n >> 1
    result = fraction.exp2()
    for part in (half, n - half):
        scale = (part << fmt.mantissa) + fmt.power_bits(0)
        result = result * scale.as_float(x.type)
    return result


def power(x: Value, y: Value) -> Value:
    """Return C's pow to 1.5 ulp; small integer powers are products, to 2 ulp."""
    constant = float_constant(y.ssa)
    if constant is not None and constant.is_integer() and 1 <= constant <= SMALL_POWERS:
        return power_of_constant(x, int(constant))
    result = positive_power(x, (y, y.const(0.0)))
    is_integer = y.floor().compare("eq", y)
    half = y * 0.5
    is_odd = is_integer & half.floor().compare("ne", half)
    result = is_odd.choose(result.with_sign_flipped_by(x), result)
    # A negative finite x has integer powers only; minus infinity has all powers.
    undefined = x.compare("lt", 0.0) & x.compare("gt", -math.inf)
    undefined = undefined & y.compare("eq", y) & (is_integer ^ True)
    result = undefined.choose(math.nan, result)
    result = y.compare("eq", y).choose(result, math.nan)
    return (y.compare("eq", 0.0) | x.compare("eq", 1.0)).choose(1.0, result)


def power_of_integer(x: Value, n: Value) -> Value:
    """Return x ** n for an integer n to 1.5 ulp.

    Small powers are computed as products, to 3 ulp.
    """
    constant = int_constant(n.ssa)
    if constant is not None and abs(constant) <= SMALL_POWERS:
        result = power_of_constant(x, abs(constant))
        return 1.0 / result if constant < 0 else result
    low_mask = (1 << (n.width // 2)) - 1
    high, low = ((n & m).cast(arith.SIToFPOp, x.type) for m in (~low_mask, low_mask))
    result = positive_power(x, quick_two_sum(high, low))
    odd = (n & 1).compare("ne", 0)
    result = odd.choose(result.with_sign_flipped_by(x), result)
    return n.compare("eq", 0).choose(1.0, result)


def cube_root(x: Value) -> Value:
    """Return the cube root to 1 ulp, by a Newton step from exp2(log2(x) / 3)."""
    size = x.abs()
    tiny = size.compare("lt", 2.0 ** (1 - x.format.greatest))
    # 2**54 has an exact cube root. The scaling protects subnormal numbers, which
    # hardware may flush to zero.
    scaled = tiny.choose(size * 2.0**54, size)
    third = 1.0 / 3.0
    root = (scaled.apply(math_dialect.Log2Op) * third).exp2()
    root = root - (root - scaled / (root * root)) * third
    root = tiny.choose(root * 2.0**-18, root).with_sign_of(x)
    regular = size.compare("gt", 0.0) & size.compare("lt", math.inf)
    return regular.choose(root, x)


EXPANSIONS: dict[type[Operation], Callable[..., Value]] = {
    math_dialect.ExpM1Op: expm1,
    math_dialect.Log1pOp: log1p,
    math_dialect.Log10Op: log10,
    math_dialect.TanhOp: tanh,
    math_dialect.SinhOp: sinh,
    math_dialect.CoshOp: cosh,
    math_dialect.AsinhOp: asinh,
    math_dialect.AcoshOp: acosh,
    math_dialect.AtanhOp: atanh,
    math_dialect.TanOp: tan,
    math_dialect.AtanOp: atan,
    math_dialect.Atan2Op: atan2,
    math_dialect.AsinOp: asin,
    math_dialect.AcosOp: acos,
    math_dialect.PowFOp: power,
    math_dialect.FPowIOp: power_of_integer,
    math_dialect.CbrtOp: cube_root,
}
