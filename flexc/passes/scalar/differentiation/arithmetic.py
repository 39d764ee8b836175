"""Partial derivatives of `arith` ops, of remainders, and of what has kinks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.dialects import arith, math
from xdsl.ir import Operation, SSAValue

from flexc.dialects import flex
from flexc.dialects.flex.ties import Ties, ties_of
from flexc.passes.scalar.canonicalization.site import defined_by, float_constant
from flexc.passes.scalar.differentiation.derivative_code import plain_number
from flexc.passes.scalar.differentiation.local import (
    Input,
    Local,
    constant,
    of_operands,
    over,
    scaled,
    times,
    with_sign,
)
from flexc.passes.scalar.differentiation.steps import (
    NEGATED,
    SAME,
    Partial,
    Where,
)
from flexc.passes.scalar.math_expansions.values import Value


def same(local: Local) -> Partial:
    return SAME


def negated(local: Local) -> Partial:
    return NEGATED


def choice(op: Operation) -> Sequence[Input]:
    """select(c, a, b)"""
    assert isinstance(op, arith.SelectOp)
    condition = op.cond
    return [
        (op.lhs, lambda local: (Where(condition),)),
        (op.rhs, lambda local: (Where(condition, False),)),
    ]


# Quotients


def quotient(op: Operation) -> Sequence[Input]:
    """a / b"""
    assert isinstance(op, arith.DivfOp)
    if (exponent := logistic_exponent(op.rhs)) is not None:
        return [(op.lhs, by_numerator), (exponent, by_exponent)]
    if plain_number(op.lhs) is not None:
        return [(op.rhs, by_divisor_of_constant)]
    return [
        (op.lhs, lambda local: over(local.y)),
        (op.rhs, lambda local: (*times(local.result), *NEGATED, *over(local.y))),
    ]


def by_divisor_of_constant(local: Local) -> Partial:
    """Of c / b it is -(c / b)^2 / c: nothing is divided again."""
    number = plain_number(local.op.operands[0])
    assert number is not None
    return (*times(local.result * local.result), *scaled(-1 / number))


def logistic_exponent(value: SSAValue) -> SSAValue | None:
    """u, if the value is 1 + exp(u)."""
    total = defined_by(value, arith.AddfOp)
    if total is None:
        return None
    for term, one in ((total.lhs, total.rhs), (total.rhs, total.lhs)):
        power = defined_by(term, math.ExpOp)
        if power is not None and float_constant(one) == 1.0:
            return power.operand
    return None


# Of a / (1 + exp(u)), as sigmoid and silu are spelled. By way of exp(u) the derivative
# would be 0 * inf for large u.


def inverse(local: Local) -> Value:
    """1 / (1 + exp(u))"""
    is_one = float_constant(local.op.operands[0]) == 1.0
    return local.result if is_one else 1.0 / local.y


def by_numerator(local: Local) -> Partial:
    return times(inverse(local))


def by_exponent(local: Local) -> Partial:
    return times(local.result * (inverse(local) - 1.0))


# Extrema


def extremum(sooner: str, later: str) -> Callable[[Operation], Sequence[Input]]:
    """A maximum, if `sooner` is greater; the operands being equal, `flex.ties` says."""

    def rule(op: Operation) -> Sequence[Input]:
        lhs, rhs = op.operands
        match ties_of(op):
            case Ties.LHS:

                def condition(local: Local) -> SSAValue:
                    return local.code.cmpf(f"o{sooner[0]}e", lhs, rhs)

                holds = True
            case Ties.RHS:

                def condition(local: Local) -> SSAValue:
                    return local.code.cmpf(f"o{later[0]}e", lhs, rhs)

                holds = False
            case Ties.HALVES:
                return [
                    (lhs, lambda local: halved(local, later)),
                    (rhs, lambda local: halved(local, sooner)),
                ]
        return [
            (lhs, lambda local: (Where(condition(local), holds),)),
            (rhs, lambda local: (Where(condition(local), not holds),)),
        ]

    return rule


def halved(local: Local, loses: str) -> Partial:
    """All of it, half of it at a tie, nothing where the comparison holds."""
    lhs, rhs = local.op.operands
    tie = Value(local.code, local.code.cmpf("oeq", lhs, rhs))
    share = tie.choose(local.result.const(0.5), 1.0)
    return (Where(local.code.cmpf(f"o{loses}", lhs, rhs), False), *times(share))


def number_extremum(op: Operation) -> Sequence[Input]:
    """fmax and fmin: the derivative goes where the number came from, first of all to
    the first operand."""
    lhs, rhs = op.operands

    def condition(local: Local) -> SSAValue:
        return local.code.cmpf("oeq", op.results[0], lhs)

    return [
        (lhs, lambda local: (Where(condition(local)),)),
        (rhs, lambda local: (Where(condition(local), False),)),
    ]


def is_zero(local: Local) -> SSAValue:
    return local.x.compare("eq", 0.0).ssa


def absolute(local: Local) -> Partial:
    """The sign, 0 of 0."""
    sign = with_sign(local.x.const(1.0), local.x)
    return (Where(is_zero(local), False), *times(sign))


def copied_sign(local: Local) -> Partial:
    """1 where the sign was the same, -1 where not, 0 of 0."""
    one = local.x.const(1.0)
    signs = with_sign(one, local.x), with_sign(one, local.y)
    return (Where(is_zero(local), False), *times(signs[0] * signs[1]))


def by_modulus(local: Local) -> Partial:
    """fmod(a, b) is a - b * trunc(a / b)."""
    return (*times((local.x / local.y).apply(math.TruncOp)), *NEGATED)


CONSTANT: tuple[type[Operation], ...] = (
    arith.ConstantOp,
    # Bits are no numbers. The frontend spells `detach` so.
    arith.BitcastOp,
    arith.SIToFPOp,
    arith.UIToFPOp,
)

RULES: dict[type[Operation], Callable[[Operation], Sequence[Input]]] = {
    **dict.fromkeys(CONSTANT, constant),
    arith.AddfOp: of_operands(same, same),
    arith.SubfOp: of_operands(same, negated),
    arith.NegfOp: of_operands(negated),
    arith.ExtFOp: of_operands(same),
    arith.TruncFOp: of_operands(same),
    arith.MulfOp: of_operands(
        lambda local: times(local.y), lambda local: times(local.x)
    ),
    arith.DivfOp: quotient,
    arith.SelectOp: choice,
    arith.MaximumfOp: extremum("gt", "lt"),
    arith.MinimumfOp: extremum("lt", "gt"),
    arith.MaxnumfOp: number_extremum,
    arith.MinnumfOp: number_extremum,
    flex.FmodOp: of_operands(same, by_modulus),
    math.AbsFOp: of_operands(absolute),
    math.CopySignOp: of_operands(copied_sign),
    math.FmaOp: of_operands(
        lambda local: times(local.y), lambda local: times(local.x), same
    ),
}
