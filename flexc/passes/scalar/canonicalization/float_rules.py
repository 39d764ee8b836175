"""Simplify floating-point arithmetic by rules that hold for NaN, infinities and -0.

Negations move into the ops around them: rounding is the same for both signs.
"""

from __future__ import annotations

import math

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import BFloat16Type, Float16Type, Float64Type
from xdsl.ir import Attribute, Operation, SSAValue

from flexc.dialects.constants import float_constant
from flexc.passes.scalar.canonicalization.site import (
    Rule,
    Site,
    constant_to_the_right,
    defined_by,
)

NO_NEGATIVE_ZERO = (
    arith.SIToFPOp,
    arith.UIToFPOp,
    math_dialect.AbsFOp,
    math_dialect.ExpOp,
    math_dialect.Exp2Op,
)
"""Ops that never yield -0."""


def is_signed_zero(value: float | None, sign: float) -> bool:
    """Return True if a constant is the zero with the sign `sign`."""
    if value is None:
        return False
    return value == 0.0 and math.copysign(1.0, value) == sign


def add(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite x + -0 -> x; x + 0 -> x if x cannot be -0 (-0 + 0 is 0)."""
    x, y = op.operands
    c = float_constant(y)
    if is_signed_zero(c, -1.0):
        return x
    proven = isinstance(x.owner, NO_NEGATIVE_ZERO)
    return x if is_signed_zero(c, 1.0) and proven else None


def subtract(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite x - 0 -> x."""
    x, y = op.operands
    return x if is_signed_zero(float_constant(y), 1.0) else None


def multiply(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite x * 1 -> x; x * -1 -> -x."""
    x, y = op.operands
    match float_constant(y):
        case 1.0:
            return x
        case -1.0:
            return site.insert(arith.NegfOp(x))
        case _:
            return None


def divide(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite x / 1 -> x; x / 2**k -> x * 2**-k, which rounds the same exact number."""
    x, y = op.operands
    c = float_constant(y)
    if c == 1.0:
        return x
    if c is None or not math.isfinite(c) or abs(math.frexp(c)[0]) != 0.5:
        return None
    if abs(math.frexp(c)[1]) > _exponents(x.type):
        return None
    return site.insert(arith.MulfOp(x, site.const(1.0 / c, x.type)))


def _exponents(type_: Attribute) -> int:
    """Return an n such that all powers of two from 2**-n to 2**n are normal."""
    match type_:
        case Float64Type():
            return 1000
        case Float16Type():
            return 13
        case BFloat16Type() | _:
            return 120


def negate(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite -(-x) -> x."""
    inner = defined_by(op.operands[0], arith.NegfOp)
    return None if inner is None else inner.operand


def absolute(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite |-x| -> |x|; ||x|| -> |x|."""
    x = op.operands[0]
    if (inner := defined_by(x, arith.NegfOp)) is not None:
        return site.insert(math_dialect.AbsFOp(inner.operand))
    return x if isinstance(x.owner, math_dialect.AbsFOp) else None


def extremum(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite max(x, x) -> x and min(x, x) -> x."""
    x, y = op.operands
    return x if x is y else None


def negation_of(value: SSAValue) -> SSAValue | None:
    """Return x if the value is -x, else None."""
    op = defined_by(value, arith.NegfOp)
    return None if op is None else op.operand


def opposite_constant(value: SSAValue, site: Site) -> SSAValue | None:
    """Return -c if the value is a constant c other than NaN, else None."""
    number = float_constant(value)
    if number is None or math.isnan(number):
        return None
    return site.const(-number, value.type)


def negation_for_free(value: SSAValue, site: Site) -> SSAValue | None:
    """Return the negated value if this adds no op, else None."""
    return negation_of(value) or opposite_constant(value, site)


def add_negated(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite x + -y -> x - y; -x + y -> y - x."""
    x, y = op.operands
    if (term := negation_of(y)) is not None:
        return site.insert(arith.SubfOp(x, term))
    if (term := negation_of(x)) is not None:
        return site.insert(arith.SubfOp(y, term))
    return None


def subtract_negated(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite x - -y -> x + y."""
    x, y = op.operands
    term = negation_of(y)
    return None if term is None else site.insert(arith.AddfOp(x, term))


def of_both(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite -x * -y -> x * y; -x * 2 -> x * -2; quotients likewise."""
    assert isinstance(op, arith.MulfOp | arith.DivfOp)
    if negation_of(op.lhs) is None and negation_of(op.rhs) is None:
        return None
    x, y = negation_for_free(op.lhs, site), negation_for_free(op.rhs, site)
    return None if x is None or y is None else site.insert(type(op)(x, y))


def of_product(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite -(x * 2) -> x * -2; quotients likewise."""
    value = op.operands[0]
    inner = value.owner
    if not isinstance(inner, arith.MulfOp | arith.DivfOp) or not value.has_one_use():
        return None
    x, y = inner.operands
    if (constant := opposite_constant(y, site)) is not None:
        return site.insert(type(inner)(x, constant))
    if (constant := opposite_constant(x, site)) is not None:
        return site.insert(type(inner)(constant, y))
    return None


def of_choice(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite select(c, -x, -y) -> -select(c, x, y).

    Negations that have other uses stay.
    """
    assert isinstance(op, arith.SelectOp)
    x, y = negation_of(op.lhs), negation_of(op.rhs)
    if x is None or y is None:
        return None
    if not (op.lhs.has_one_use() and op.rhs.has_one_use()):
        return None
    return site.insert(arith.NegfOp(site.insert(arith.SelectOp(op.cond, x, y))))


RULES: dict[type[Operation], tuple[Rule, ...]] = {
    arith.AddfOp: (constant_to_the_right, add, add_negated),
    arith.SubfOp: (subtract, subtract_negated),
    arith.MulfOp: (constant_to_the_right, multiply, of_both),
    arith.DivfOp: (divide, of_both),
    arith.NegfOp: (negate, of_product),
    math_dialect.AbsFOp: (absolute,),
    arith.MaximumfOp: (extremum,),
    arith.MinimumfOp: (extremum,),
    arith.MaxnumfOp: (extremum,),
    arith.MinnumfOp: (extremum,),
    arith.SelectOp: (of_choice,),
}
