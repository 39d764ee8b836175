"""Rounding to integers and signs. All are exact."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import math as math_dialect
from xdsl.ir import Operation

from flexc.passes.scalar.math_expansions.values import Value


def truncate(x: Value) -> Value:
    """Rounded towards zero."""
    return x.compare("lt", 0.0).choose(x.apply(math_dialect.CeilOp), x.floor())


def round_half_even(x: Value) -> Value:
    """Rounded to nearest: a sum that has no bits left for fractions is."""
    size = x.abs()
    limit = 2.0**x.format.mantissa
    rounded = ((size + limit) - limit).with_sign_of(x)
    return size.compare("lt", limit).choose(rounded, x)


def round_half_away(x: Value) -> Value:
    """Rounded to nearest, halves away from zero."""
    size = x.abs()
    whole = size.floor()
    up = (size - whole).compare("ge", 0.5)
    return up.choose(whole + 1.0, whole).with_sign_of(x)


def copy_sign(x: Value, sign: Value) -> Value:
    """The first number with the second's sign."""
    return x.with_sign_of(sign)


EXPANSIONS: dict[type[Operation], Callable[..., Value]] = {
    math_dialect.TruncOp: truncate,
    math_dialect.RoundEvenOp: round_half_even,
    math_dialect.RoundOp: round_half_away,
    math_dialect.CopySignOp: copy_sign,
}
