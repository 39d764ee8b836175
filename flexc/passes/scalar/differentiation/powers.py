"""Partial derivatives of powers, with torch's conventions.

The derivative of x ** p by x is 0 where p is 0, even of infinite x. That by p is 0
where x is 0 and p is not negative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import log

from xdsl.dialects import math
from xdsl.ir import Operation

from flexc.passes.scalar.canonicalization.site import float_constant
from flexc.passes.scalar.differentiation.derivative_code import plain_number
from flexc.passes.scalar.differentiation.local import (
    Input,
    Local,
    over,
    rsqrt,
    scaled,
    times,
)
from flexc.passes.scalar.differentiation.steps import (
    SAME,
    Partial,
    Where,
)
from flexc.passes.scalar.math_expansions.values import Value


def power(op: Operation) -> Sequence[Input]:
    """x ** p"""
    base, exponent = op.operands
    if float_constant(exponent) == 0.0:
        return []
    return [(base, by_base), (exponent, by_exponent)]


def by_base(local: Local) -> Partial:
    """p * x ** (p - 1)"""
    x, p = local.x, local.y
    number = plain_number(local.op.operands[1])
    if number is not None:
        return (*simple_power(x, number - 1), *scaled(number))
    is_zero = p.compare("eq", 0.0).ssa
    return (Where(is_zero, False), *times(p), *times(x.apply(math.PowFOp, p - 1.0)))


def simple_power(x: Value, exponent: Fraction) -> Partial:
    """Steps that multiply by x to a constant, without a power where that can be."""
    match exponent.as_integer_ratio():
        case (0, 1):
            return SAME
        case (-1, 1):
            return over(x)
        case (1 | 2 | 3 | 4 as n, 1):
            return times(product(x, n))
        case (1, 2):
            return times(x.sqrt())
        case (-1, 2):
            return times(rsqrt(x))
        case _:
            return times(x.apply(math.PowFOp, float(exponent)))


def product(x: Value, n: int) -> Value:
    """x to a small number, by squaring."""
    if n == 1:
        return x
    half = product(x, n // 2)
    return half * half if n % 2 == 0 else half * half * x


def by_exponent(local: Local) -> Partial:
    """x ** p * log(x)"""
    x, p = local.x, local.y
    base = plain_number(local.op.operands[0])
    if base is not None and base > 0:
        return (*times(local.result), *times(x.const(log(base))))
    no_step = p.compare("ge", 0.0) & x.compare("eq", 0.0)
    logarithm = x.apply(math.LogOp)
    return (Where(no_step.ssa, False), *times(local.result), *times(logarithm))


RULES: dict[type[Operation], Callable[[Operation], Sequence[Input]]] = {
    math.PowFOp: power,
}
