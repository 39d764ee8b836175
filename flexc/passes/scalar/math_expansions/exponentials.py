"""expm1, log1p and log10, and the kernels of other exponentials and logarithms.

exp(x) is (1 + p) * 2**n where p = exp(x - n * log(2)) - 1 is a polynomial of a
number below 0.35; log(m * 2**k) is k * log(2) + log1p(m - 1) with m within
sqrt(1/2) .. sqrt(2), the second by an odd series in f / (2 + f).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.ir import Operation

from flexc.passes.scalar.math_expansions.values import (
    LN2,
    LOG2_E,
    LOG10_2,
    LOG10_E,
    Value,
    horner,
)

# exp(f) = 1 + f + f**2 * P(f): minimax for f32, Taylor's for f64.
EXP_F32 = (
    1.97350979e-4,
    1.39309070e-3,
    8.33343994e-3,
    4.16668020e-2,
    1.66666716e-1,
    4.99999970e-1,
)
EXP_F64 = tuple(1.0 / math.factorial(n) for n in range(15, 1, -1))

# 2 * atanh(q) = 2 * q + q * R(q**2): Taylor's.
LOG_F32 = tuple(2.0 / n for n in range(11, 1, -2))
LOG_F64 = tuple(2.0 / n for n in range(27, 1, -2))


def scaled_exp(x: Value) -> tuple[Value, Value, Value]:
    """(p, t, x') where exp(x) = 4 * (1 + p) * t and t is a power of two.

    The factor keeps t finite where exp(x) / 2 is; p has 1 ulp, and is exact for
    tiny x. x' is x kept within what t can hold.
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
    return p, bits.as_float(fmt), x


def expm1(x: Value) -> Value:
    """exp(x) - 1 to 2 ulp."""
    p, t, _ = scaled_exp(x)
    result = p.fma(t, t - 0.25) * 4.0
    tiny = x.abs().compare("lt", 2.0 ** -(x.format.mantissa + 2))
    return tiny.choose(x, result)


def log1p_series(f: Value, q: Value) -> Value:
    """log(1 + f) for q = f / (2 + f) and 1 + f within sqrt(1/2) .. sqrt(2)."""
    s = q * q
    series = horner(s, LOG_F64 if f.is_double else LOG_F32) * s
    # 2 * q + q * series, written so that f, which has no error, comes first.
    return q.fma(series - f, f)


def exponent_of(x: Value) -> Value:
    """The bits of k * 2**mantissa where x = m * 2**k, m in sqrt(1/2) .. sqrt(2)."""
    fmt = x.format
    root = fmt.bits_of(math.sqrt(0.5))
    return (x.as_bits() - root) & -(1 << fmt.mantissa)


def exponent_value(bits: Value, like: Value) -> Value:
    """k as a number, from `exponent_of`."""
    fmt = like.format
    return (bits >> fmt.mantissa).cast(arith.SIToFPOp, fmt.type)


def log1p(x: Value) -> Value:
    """log(1 + x) to 1.5 ulp."""
    fmt = x.format
    k = exponent_of(x + 1.0)
    # f = x * 2**-k + (2**-k - 1), rounded once.
    scale = (fmt.power_bits(2) - k).as_float(fmt)
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
    """(k, m) where x = m * 2**k and m is within sqrt(1/2) .. sqrt(2)."""
    fmt = x.format
    up = float(fmt.mantissa + 1)
    small = x.compare("lt", 2.0 ** (1 - fmt.max_exponent))
    x = small.choose(x * 2.0**up, x)
    bits = exponent_of(x)
    m = (x.as_bits() - bits).as_float(fmt)
    k = exponent_value(bits, x)
    return small.choose(k - up, k), m


def log_limits(x: Value, result: Value) -> Value:
    """A logarithm's result, mended where x is zero, negative or not finite."""
    result = x.compare("eq", 0.0).choose(-math.inf, result)
    result = x.compare("ge", 0.0).choose(result, math.nan)
    return x.compare("eq", math.inf).choose(x, result)


def log10(x: Value) -> Value:
    """log(x) / log(10) to 2 ulp."""
    k, m = split_positive(x)
    f = m - 1.0
    r = log1p_series(f, f / (f + 2.0))
    high, low = x.format.split(LOG10_E)
    r = r.fma(high, r * low)
    return log_limits(x, _add_exponent(k, r, x.format.split(LOG10_2)))


EXPANSIONS: dict[type[Operation], Callable[..., Value]] = {
    math_dialect.ExpM1Op: expm1,
    math_dialect.Log1pOp: log1p,
    math_dialect.Log10Op: log10,
}
