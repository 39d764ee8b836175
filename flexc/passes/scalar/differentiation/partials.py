"""Define the table of partial derivatives, and the rules of `arith` ops.

A rule returns the values that an op is a function of, in most cases its operands, and
for each value a formula that writes the partial derivative. Derivatives are those of
torch, also at ties, bounds and kinks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from xdsl.dialects import arith, math
from xdsl.ir import Operation, SSAValue

from flexc.dialects import flex
from flexc.dialects.constants import float_constant
from flexc.dialects.flex.scalar import Ties, ties_of
from flexc.errors import GradientError
from flexc.passes.scalar.canonicalization.site import defined_by
from flexc.passes.scalar.copier import location_of
from flexc.passes.scalar.differentiation import functions
from flexc.passes.scalar.differentiation.derivative_code import (
    NEGATED,
    SAME,
    Input,
    Local,
    Partial,
    Where,
    constant,
    of_operands,
    over,
    plain_number,
    scaled,
    times,
    with_sign,
)
from flexc.passes.scalar.math_expansions.values import Value


def same(local: Local) -> Partial:
    return SAME


def negated(local: Local) -> Partial:
    return NEGATED


def choice(op: Operation) -> Sequence[Input]:
    """Return the inputs of select(c, a, b)."""
    assert isinstance(op, arith.SelectOp)
    condition = op.cond
    return [
        (op.lhs, lambda local: (Where(condition),)),
        (op.rhs, lambda local: (Where(condition, False),)),
    ]


def quotient(op: Operation) -> Sequence[Input]:
    """Return the inputs of a / b.

    a / (1 + exp(u)), as in sigmoid and silu, is a function of a and u: the derivative
    by way of exp(u) would be 0 * inf for large u.
    """
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
    """Return d(c / b)/db as -(c / b)^2 / c, which needs no second division."""
    number = plain_number(local.op.operands[0])
    assert number is not None
    return (*times(local.result * local.result), *scaled(-1 / number))


def logistic_exponent(value: SSAValue) -> SSAValue | None:
    """Return u if the value is 1 + exp(u), else None."""
    total = defined_by(value, arith.AddfOp)
    if total is None:
        return None
    for term, one in ((total.lhs, total.rhs), (total.rhs, total.lhs)):
        power = defined_by(term, math.ExpOp)
        if power is not None and float_constant(one) == 1.0:
            return power.operand
    return None


def inverse(local: Local) -> Value:
    """Return 1 / (1 + exp(u))."""
    is_one = float_constant(local.op.operands[0]) == 1.0
    return local.result if is_one else 1.0 / local.y


def by_numerator(local: Local) -> Partial:
    return times(inverse(local))


def by_exponent(local: Local) -> Partial:
    return times(local.result * (inverse(local) - 1.0))


def extremum(sooner: str, later: str) -> Callable[[Operation], Sequence[Input]]:
    """Return the rule of a maximum or minimum; `flex.ties` decides about ties.

    `sooner` is the comparison under which the first operand is the result, `later` the
    opposite one: "gt" and "lt" for a maximum.
    """

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
    """Return the derivative by one operand: 1, 1/2 at a tie, 0 where the operand loses.

    `loses` is the comparison of the first with the second operand that is true there.
    """
    lhs, rhs = local.op.operands
    tie = Value(local.code, local.code.cmpf("oeq", lhs, rhs))
    share = tie.choose(local.result.const(0.5), 1.0)
    return (Where(local.code.cmpf(f"o{loses}", lhs, rhs), False), *times(share))


def number_extremum(op: Operation) -> Sequence[Input]:
    """Return the inputs of fmax and fmin.

    The derivative goes to the operand that is the result, at ties to the first.
    """
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
    """Return the derivative of |x|: the sign of x, 0 at 0."""
    sign = with_sign(local.x.const(1.0), local.x)
    return (Where(is_zero(local), False), *times(sign))


def copied_sign(local: Local) -> Partial:
    """Return the derivative of copysign(x, y) by x.

    The derivative is 1 if the signs are equal and -1 if they differ, but 0 at x = 0.
    """
    one = local.x.const(1.0)
    signs = with_sign(one, local.x), with_sign(one, local.y)
    return (Where(is_zero(local), False), *times(signs[0] * signs[1]))


def by_modulus(local: Local) -> Partial:
    """Return the derivative of fmod(a, b) by b, which is -trunc(a / b)."""
    return (*times((local.x / local.y).apply(math.TruncOp)), *NEGATED)


CONSTANT: tuple[type[Operation], ...] = (
    arith.ConstantOp,
    # The frontend writes `detach` as a bitcast.
    arith.BitcastOp,
    arith.SIToFPOp,
    arith.UIToFPOp,
    # Step functions: the derivative is zero wherever it exists.
    *functions.CONSTANT,
)

Rule = Callable[[Operation], Sequence[Input]]

PARTIALS: dict[type[Operation], Rule] = {
    **functions.RULES,
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


def partials_of(op: Operation) -> Sequence[Input]:
    """Return the inputs of an op that has a float result, with the derivatives.

    Values with a derivative of plain zero are left out. Raise GradientError if the op
    has no rule.
    """
    rule = PARTIALS.get(type(op))
    if rule is None:
        raise GradientError(
            f"{op.name} has no derivative here: detach what it is computed from, as in "
            "`x.detach()`, or spell it with other functions",
            location_of(op),
        )
    return rule(op)


def has_partials(op: Operation, values: Collection[SSAValue]) -> bool:
    """Return True if an op has a derivative other than plain 0 by one of `values`."""
    if not any(v in values for v in op.operands):
        return False
    return type(op) not in CONSTANT
