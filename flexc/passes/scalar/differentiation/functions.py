"""Partial derivatives of elementary functions.

Where the derivative can be had from the function's own value, it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import pi

from xdsl.dialects import arith, math
from xdsl.ir import Operation

from flexc.passes.scalar.canonicalization.site import defined_by
from flexc.passes.scalar.differentiation.local import (
    Formula,
    Input,
    Local,
    constant,
    of_operands,
    over,
    rsqrt,
    scaled,
    times,
)
from flexc.passes.scalar.differentiation.steps import (
    NEGATED,
    Partial,
    Where,
)
from flexc.passes.scalar.math_expansions.values import (
    LN2,
    LOG2_E,
    LOG10_E,
    Value,
)


def apply(op: type[Operation], x: Value) -> Value:
    return x.apply(op)


def one_minus_square(x: Value) -> Value:
    return 1.0 - x * x


def bell(local: Local) -> Partial:
    """2 / sqrt(pi) * exp(-x^2), of erf."""
    x = local.x
    return (*times(apply(math.ExpOp, -(x * x))), *scaled(2 / pi**0.5))


def over_square(local: Local) -> Partial:
    """What both derivatives of atan2(y, x) end in; at the origin they are 0."""
    y, x = local.x, local.y
    square = y * y + x * x
    return (*over(square), Where(square.compare("eq", 0.0).ssa, False))


def by_y(local: Local) -> Partial:
    return (*times(local.y), *over_square(local))


def by_x(local: Local) -> Partial:
    return (*times(local.x), *NEGATED, *over_square(local))


def log(op: Operation) -> Sequence[Input]:
    """log(x); of log(a / b), as logit is spelled, seen as log(a) - log(b)."""
    ratio = defined_by(op.operands[0], arith.DivfOp)
    if ratio is None:
        return [(op.operands[0], lambda local: over(local.x))]
    a, b = ratio.operands
    return [
        (a, lambda local: over(local.value(a))),
        (b, lambda local: (*NEGATED, *over(local.value(b)))),
    ]


def log1p(op: Operation) -> Sequence[Input]:
    """log(1 + x); of log(1 + exp(u)), a softplus, seen as a function of u.

    By way of exp(u) the derivative would be 0 * inf for large u.
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
"""Steps: zero wherever they have a derivative."""

RULES: dict[type[Operation], Callable[[Operation], Sequence[Input]]] = {
    **{op: of_operands(formula) for op, formula in UNARY.items()},
    **dict.fromkeys(CONSTANT, constant),
    math.LogOp: log,
    math.Log1pOp: log1p,
    math.Atan2Op: of_operands(by_y, by_x),
}
