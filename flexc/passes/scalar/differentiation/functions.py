"""Define the partial derivatives of elementary functions and powers.

A derivative that is a formula of the function's result uses the result. Powers follow
torch: the derivative of x ** p by x is 0 if p is 0, also for infinite x. The derivative
by p is 0 if x is 0 and p is not negative.
"""

from __future__ import annotations

import math as python_math
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import pi

from xdsl.dialects import arith, math
from xdsl.ir import Operation

from flexc.dialects.constants import float_constant
from flexc.passes.scalar.canonicalization.site import defined_by
from flexc.passes.scalar.differentiation.derivative_code import (
    NEGATED,
    SAME,
    Formula,
    Input,
    Local,
    Partial,
    Where,
    of_operands,
    over,
    plain_number,
    rsqrt,
    scaled,
    times,
)
from flexc.passes.scalar.math_expansions.values import LN2, LOG2_E, LOG10_E, Value


def apply(op: type[Operation], x: Value) -> Value:
    return x.apply(op)


def one_minus_square(x: Value) -> Value:
    return 1.0 - x * x


def bell(local: Local) -> Partial:
    """Return the derivative of erf: 2 / sqrt(pi) * exp(-x^2)."""
    x = local.x
    return (*times(apply(math.ExpOp, -(x * x))), *scaled(2 / pi**0.5))


def over_square(local: Local) -> Partial:
    """Return the last steps of both derivatives of atan2(y, x); they give 0 at 0."""
    y, x = local.x, local.y
    square = y * y + x * x
    return (*over(square), Where(square.compare("eq", 0.0).ssa, False))


def by_y(local: Local) -> Partial:
    return (*times(local.y), *over_square(local))


def by_x(local: Local) -> Partial:
    return (*times(local.x), *NEGATED, *over_square(local))


def log(op: Operation) -> Sequence[Input]:
    """Return the inputs of log(x).

    log(a / b), as in logit, is taken as log(a) - log(b).
    """
    ratio = defined_by(op.operands[0], arith.DivfOp)
    if ratio is None:
        return [(op.operands[0], lambda local: over(local.x))]
    a, b = ratio.operands
    return [
        (a, lambda local: over(local.value(a))),
        (b, lambda local: (*NEGATED, *over(local.value(b)))),
    ]


def log1p(op: Operation) -> Sequence[Input]:
    """Return the inputs of log(1 + x).

    log(1 + exp(u)), a softplus, is a function of u: the derivative by way of exp(u)
    would be 0 * inf for large u.
    """
    power = defined_by(op.operands[0], math.ExpOp)
    if power is None:
        return [(op.operands[0], lambda local: over(local.x + 1.0))]
    exponent = power.operand

    def sigmoid(local: Local) -> Partial:
        u = local.value(exponent)
        return times(1.0 / (apply(math.ExpOp, -u) + 1.0))

    return [(exponent, sigmoid)]


UNARY: dict[type[Operation], Formula] = {
    math.ExpOp: lambda f: times(f.result),
    math.Exp2Op: lambda f: (*times(f.result), *scaled(LN2)),
    math.ExpM1Op: lambda f: times(f.result + 1.0),
    math.Log2Op: lambda f: (*scaled(LOG2_E), *over(f.x)),
    math.Log10Op: lambda f: (*scaled(LOG10_E), *over(f.x)),
    math.SqrtOp: lambda f: (*scaled(0.5), *over(f.result)),
    math.RsqrtOp: lambda f: (*times(f.result * f.result * f.result), *scaled(-0.5)),
    math.CbrtOp: lambda f: (*scaled(Fraction(1, 3)), *over(f.result * f.result)),
    math.SinOp: lambda f: times(apply(math.CosOp, f.x)),
    math.CosOp: lambda f: (*times(apply(math.SinOp, f.x)), *NEGATED),
    math.TanOp: lambda f: times(f.result * f.result + 1.0),
    math.AsinOp: lambda f: times(rsqrt(one_minus_square(f.x))),
    math.AcosOp: lambda f: (*times(rsqrt(one_minus_square(f.x))), *NEGATED),
    math.AtanOp: lambda f: over(f.x * f.x + 1.0),
    math.SinhOp: lambda f: times(apply(math.CoshOp, f.x)),
    math.CoshOp: lambda f: times(apply(math.SinhOp, f.x)),
    math.TanhOp: lambda f: times(one_minus_square(f.result)),
    math.AsinhOp: lambda f: times(rsqrt(f.x * f.x + 1.0)),
    math.AcoshOp: lambda f: times(rsqrt(f.x * f.x - 1.0)),
    math.AtanhOp: lambda f: over(one_minus_square(f.x)),
    math.ErfOp: bell,
}

CONSTANT: tuple[type[Operation], ...] = (
    math.CeilOp,
    math.FloorOp,
    math.RoundOp,
    math.RoundEvenOp,
    math.TruncOp,
)
"""Step functions: the derivative is zero wherever it exists."""


def power(op: Operation) -> Sequence[Input]:
    """Return the inputs of x ** p."""
    base, exponent = op.operands
    if float_constant(exponent) == 0.0:
        return []
    return [(base, by_base), (exponent, by_exponent)]


def by_base(local: Local) -> Partial:
    """Return the derivative p * x ** (p - 1)."""
    x, p = local.x, local.y
    number = plain_number(local.op.operands[1])
    if number is not None:
        return (*simple_power(x, number - 1), *scaled(number))
    is_zero = p.compare("eq", 0.0).ssa
    return (Where(is_zero, False), *times(p), *times(x.apply(math.PowFOp, p - 1.0)))


def simple_power(x: Value, exponent: Fraction) -> Partial:
    """Return steps that multiply by x ** exponent, without a power if possible."""
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
    """Return x ** n for a small n, by squaring."""
    if n == 1:
        return x
    half = product(x, n // 2)
    return half * half if n % 2 == 0 else half * half * x


def by_exponent(local: Local) -> Partial:
    """Return the derivative x ** p * log(x)."""
    x, p = local.x, local.y
    base = plain_number(local.op.operands[0])
    if base is not None and base > 0:
        return (*times(local.result), *times(x.const(python_math.log(base))))
    no_step = p.compare("ge", 0.0) & x.compare("eq", 0.0)
    logarithm = x.apply(math.LogOp)
    return (Where(no_step.ssa, False), *times(local.result), *times(logarithm))


RULES: dict[type[Operation], Callable[[Operation], Sequence[Input]]] = {
    **{op: of_operands(formula) for op, formula in UNARY.items()},
    math.LogOp: log,
    math.Log1pOp: log1p,
    math.Atan2Op: of_operands(by_y, by_x),
    math.PowFOp: power,
}
