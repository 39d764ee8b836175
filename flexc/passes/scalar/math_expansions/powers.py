"""Expand powers and the cube root.

The logarithm in a power needs more digits than its type has. The logarithm is computed
as the sum of two numbers, after N. Juffa's powf for CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.ir import Operation

from flexc.dialects.constants import float_constant, int_constant
from flexc.passes.scalar.math_expansions.elementary import split_positive
from flexc.passes.scalar.math_expansions.exact import power_of_constant
from flexc.passes.scalar.math_expansions.values import LOG2_E, Value, horner

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
    math_dialect.PowFOp: power,
    math_dialect.FPowIOp: power_of_integer,
    math_dialect.CbrtOp: cube_root,
}
