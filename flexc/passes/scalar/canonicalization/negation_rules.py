"""Negations taken into the ops around them. Rounding is the same for both signs."""

from __future__ import annotations

import math

from xdsl.dialects import arith
from xdsl.ir import Operation, SSAValue

from flexc.passes.scalar.canonicalization.site import (
    Rule,
    Site,
    defined_by,
    float_constant,
)


def negation_of(value: SSAValue) -> SSAValue | None:
    """x, if the value is -x."""
    op = defined_by(value, arith.NegfOp)
    return None if op is None else op.operand


def opposite_constant(value: SSAValue, site: Site) -> SSAValue | None:
    """-c, of a constant c."""
    number = float_constant(value)
    if number is None or math.isnan(number):
        return None
    return site.const(-number, value.type)


def opposite(value: SSAValue, site: Site) -> SSAValue | None:
    """-value, where it costs nothing."""
    return negation_of(value) or opposite_constant(value, site)


def add(op: Operation, site: Site) -> SSAValue | None:
    """x + -y -> x - y; -x + y -> y - x."""
    x, y = op.operands
    if (term := negation_of(y)) is not None:
        return site.insert(arith.SubfOp(x, term))
    if (term := negation_of(x)) is not None:
        return site.insert(arith.SubfOp(y, term))
    return None


def subtract(op: Operation, site: Site) -> SSAValue | None:
    """x - -y -> x + y."""
    x, y = op.operands
    term = negation_of(y)
    return None if term is None else site.insert(arith.AddfOp(x, term))


def of_both(op: Operation, site: Site) -> SSAValue | None:
    """-x * -y -> x * y; -x * 2 -> x * -2; quotients likewise."""
    assert isinstance(op, arith.MulfOp | arith.DivfOp)
    if negation_of(op.lhs) is None and negation_of(op.rhs) is None:
        return None
    x, y = opposite(op.lhs, site), opposite(op.rhs, site)
    return None if x is None or y is None else site.insert(type(op)(x, y))


def of_product(op: Operation, site: Site) -> SSAValue | None:
    """-(x * 2) -> x * -2; quotients likewise."""
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
    """select(c, -x, -y) -> -select(c, x, y), where nobody else needs these."""
    assert isinstance(op, arith.SelectOp)
    x, y = negation_of(op.lhs), negation_of(op.rhs)
    if x is None or y is None:
        return None
    if not (op.lhs.has_one_use() and op.rhs.has_one_use()):
        return None
    return site.insert(arith.NegfOp(site.insert(arith.SelectOp(op.cond, x, y))))


RULES: dict[type[Operation], tuple[Rule, ...]] = {
    arith.AddfOp: (add,),
    arith.SubfOp: (subtract,),
    arith.MulfOp: (of_both,),
    arith.DivfOp: (of_both,),
    arith.NegfOp: (of_product,),
    arith.SelectOp: (of_choice,),
}
