"""Hyperbolic functions and their inverses, by way of expm1 and log1p."""

from __future__ import annotations

import math
from collections.abc import Callable

from xdsl.dialects import math as math_dialect
from xdsl.ir import Operation

from flexc.dialects import tile
from flexc.passes.scalar.math_expansions.exponentials import (
    expm1,
    log1p,
    scaled_exp,
)
from flexc.passes.scalar.math_expansions.values import (
    LN2,
    LOG2_E,
    Value,
    horner,
)

# tanh(x) = x + x**3 * P(x**2) for |x| < 0.625 (Cephes).
TANH_F32 = (
    -5.70498872745e-3,
    2.06390887954e-2,
    -5.37397155531e-2,
    1.33314422036e-1,
    -3.33332819422e-1,
)


def tanh(x: Value) -> Value:
    """tanh(x) to 2 ulp in f32, 3 ulp in f64."""
    size = x.abs()
    if x.is_double:
        t = expm1(size * -2.0)
        return (-t / (t + 2.0)).with_sign_of(x)
    large = 1.0 - 2.0 / ((size * float(2 * LOG2_E)).exp2() + 1.0)
    square = size * size
    small = (horner(square, TANH_F32) * square).fma(size, size)
    return size.compare("lt", 0.625).choose(small, large).with_sign_of(x)


def tanh_by_exp2(x: Value) -> Value:
    """tanh(x) with an absolute error of 2e-7 in f32: near 0 few digits remain."""
    return 1.0 - 2.0 / ((x * float(2 * LOG2_E)).exp2() + 1.0)


def tanh_by_hardware(x: Value) -> Value:
    """tanh(x) with a relative error of 2**-11 in f32; exact enough in f64."""
    return tanh(x) if x.is_double else x.apply(tile.TanhApproxOp)


def sinh(x: Value) -> Value:
    """sinh(x) to 2.5 ulp."""
    size = x.abs()
    p, t, _ = scaled_exp(size)
    quarter = p.fma(t, t - 0.25)
    result = (quarter + quarter / (quarter * 4.0 + 1.0)) * 2.0
    tiny = size.compare("lt", 2.0 ** -(x.format.mantissa // 2 + 2))
    return tiny.choose(x, result.with_sign_of(x))


def cosh(x: Value) -> Value:
    """cosh(x) to 2 ulp."""
    p, t, _ = scaled_exp(x.abs())
    quarter = p.fma(t, t)
    return quarter.fma(2.0, 0.125 / quarter)


def asinh(x: Value) -> Value:
    """asinh(x) = log1p(|x| + x**2 / (1 + sqrt(1 + x**2))) to 2.5 ulp."""
    size = x.abs()
    large = size.compare("gt", 2.0 ** (x.format.mantissa + 2))
    safe = large.choose(1.0, size)
    square = safe * safe
    grown = safe + square / ((square + 1.0).sqrt() + 1.0)
    return _log1p_or_large(large, grown, size).with_sign_of(x)


def acosh(x: Value) -> Value:
    """acosh(x) = log1p(u + sqrt(2 * u + u**2)), u = x - 1, to 2.5 ulp."""
    large = x.compare("gt", 2.0 ** (x.format.mantissa + 2))
    u = large.choose(1.0, x) - 1.0
    grown = u + (u * (u + 2.0)).sqrt()
    result = _log1p_or_large(large, grown, x)
    return x.compare("ge", 1.0).choose(result, math.nan)


def _log1p_or_large(large: Value, u: Value, x: Value) -> Value:
    """log1p(u), or log(2 * x) where x is so large that 1 does not count."""
    result = log1p(large.choose(x, u))
    return large.choose(result + float(LN2), result)


def atanh(x: Value) -> Value:
    """atanh(x) = log1p(2 * x / (1 - x)) / 2 to 2.5 ulp."""
    size = x.abs()
    result = log1p((size + size) / (1.0 - size)) * 0.5
    tiny = size.compare("lt", 2.0 ** -(x.format.mantissa // 2 + 2))
    return tiny.choose(x, result.with_sign_of(x))


EXPANSIONS: dict[type[Operation], Callable[..., Value]] = {
    math_dialect.TanhOp: tanh,
    math_dialect.SinhOp: sinh,
    math_dialect.CoshOp: cosh,
    math_dialect.AsinhOp: asinh,
    math_dialect.AcoshOp: acosh,
    math_dialect.AtanhOp: atanh,
}

TANH_MODES: dict[str, Callable[[Value], Value]] = {
    "exact": tanh,
    "nvidia": tanh_by_hardware,
    "exp2": tanh_by_exp2,
}
