"""Identities of floating-point arithmetic that hold for NaN, infinities and -0."""

from __future__ import annotations

import math

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import BFloat16Type, Float16Type, Float64Type
from xdsl.ir import Attribute, Operation, SSAValue

from flexc.passes.scalar.canonicalization.integer_rules import constant_to_the_right
from flexc.passes.scalar.canonicalization.site import (
    Rule,
    Site,
    defined_by,
    float_constant,
)

NO_NEGATIVE_ZERO = (
    arith.SIToFPOp,
    arith.UIToFPOp,
    math_dialect.AbsFOp,
    math_dialect.ExpOp,
    math_dialect.Exp2Op,
)
"""Ops that never yield -0."""


def is_zero(value: float | None, sign: float) -> bool:
    """Whether a constant is the zero of that sign."""
    if value is None:
        return False
    return value == 0.0 and math.copysign(1.0, value) == sign


def add(op: Operation, site: Site) -> SSAValue | None:
    """x + -0 -> x; x + 0 -> x where x is not -0, which the sum would not be."""
    x, y = op.operands
    c = float_constant(y)
    if is_zero(c, -1.0):
        return x
    proven = isinstance(x.owner, NO_NEGATIVE_ZERO)
    return x if is_zero(c, 1.0) and proven else None


def subtract(op: Operation, site: Site) -> SSAValue | None:
    """x - 0 -> x."""
    x, y = op.operands
    return x if is_zero(float_constant(y), 1.0) else None


def multiply(op: Operation, site: Site) -> SSAValue | None:
    """x * 1 -> x; x * -1 -> -x."""
    x, y = op.operands
    match float_constant(y):
        case 1.0:
            return x
        case -1.0:
            return site.insert(arith.NegfOp(x))
        case _:
            return None


def divide(op: Operation, site: Site) -> SSAValue | None:
    """x / 1 -> x; x / 2**k -> x * 2**-k, rounded from the same number."""
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
    """Powers of two up to this, and their inverses, are normal numbers."""
    match type_:
        case Float64Type():
            return 1000
        case Float16Type():
            return 13
        case BFloat16Type() | _:
            return 120


def negate(op: Operation, site: Site) -> SSAValue | None:
    """-(-x) -> x."""
    inner = defined_by(op.operands[0], arith.NegfOp)
    return None if inner is None else inner.operand


def absolute(op: Operation, site: Site) -> SSAValue | None:
    """|-x| -> |x|; ||x|| -> |x|."""
    x = op.operands[0]
    if (inner := defined_by(x, arith.NegfOp)) is not None:
        return site.insert(math_dialect.AbsFOp(inner.operand))
    return x if isinstance(x.owner, math_dialect.AbsFOp) else None


def extremum(op: Operation, site: Site) -> SSAValue | None:
    """max(x, x) -> x."""
    x, y = op.operands
    return x if x is y else None


RULES: dict[type[Operation], tuple[Rule, ...]] = {
    arith.AddfOp: (constant_to_the_right, add),
    arith.SubfOp: (subtract,),
    arith.MulfOp: (constant_to_the_right, multiply),
    arith.DivfOp: (divide,),
    arith.NegfOp: (negate,),
    math_dialect.AbsFOp: (absolute,),
    arith.MaximumfOp: (extremum,),
    arith.MinimumfOp: (extremum,),
    arith.MaxnumfOp: (extremum,),
    arith.MinnumfOp: (extremum,),
}
