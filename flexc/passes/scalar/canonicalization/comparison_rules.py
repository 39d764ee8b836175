"""Comparisons of integers and of floating-point numbers.

Those that ranges decide are constants, as all that has one value only.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import i1
from xdsl.ir import Operation, SSAValue

from flexc.passes.scalar.canonicalization.site import (
    Rule,
    Site,
    defined_by,
    float_predicate_of,
    int_constant,
    predicate_of,
)

SWAPPED = {"l": "g", "g": "l"}

REFLEXIVE = ("eq", "sle", "sge", "ule", "uge")

TRUE_OF_EQUALS = ("true", "ueq", "uge", "ule")
FALSE_OF_EQUALS = ("false", "one", "ogt", "olt")


def swapped(predicate: str) -> str:
    """The predicate for exchanged operands."""
    if predicate in ("eq", "ne"):
        return predicate
    return predicate[0] + SWAPPED[predicate[1]] + predicate[2]


def constant_to_the_right(op: Operation, site: Site) -> SSAValue | None:
    """c < x -> x > c."""
    assert isinstance(op, arith.CmpiOp)
    if int_constant(op.lhs) is None or int_constant(op.rhs) is not None:
        return None
    return site.insert(arith.CmpiOp(op.rhs, op.lhs, swapped(predicate_of(op))))


def compare_equals(op: Operation, site: Site) -> SSAValue | None:
    """x <= x -> true; x < x -> false."""
    assert isinstance(op, arith.CmpiOp)
    if op.lhs is not op.rhs:
        return None
    return site.flag(predicate_of(op) in REFLEXIVE)


def to_signed_comparison(op: Operation, site: Site) -> SSAValue | None:
    """Unsigned order as signed, of numbers without signs."""
    assert isinstance(op, arith.CmpiOp)
    predicate = predicate_of(op)
    both = (site.range(op.lhs), site.range(op.rhs))
    if predicate[0] != "u" or not all(r.is_nonnegative for r in both):
        return None
    return site.insert(arith.CmpiOp(op.lhs, op.rhs, "s" + predicate[1:]))


def compare_flags(op: Operation, site: Site) -> SSAValue | None:
    """p == true -> p; p == q -> not (p ^ q), and their negations."""
    assert isinstance(op, arith.CmpiOp)
    predicate = predicate_of(op)
    if op.lhs.type != i1 or predicate not in ("eq", "ne"):
        return None
    value = int_constant(op.rhs)
    if value is None:
        differ = site.insert(arith.XOrIOp(op.lhs, op.rhs))
        return differ if predicate == "ne" else site.negate(differ)
    return op.lhs if (value == -1) == (predicate == "eq") else site.negate(op.lhs)


def compare_extended_flag(op: Operation, site: Site) -> SSAValue | None:
    """int(p) != 0 -> p; int(p) == 1 -> p, and their negations."""
    assert isinstance(op, arith.CmpiOp)
    predicate, value = predicate_of(op), int_constant(op.rhs)
    extended = defined_by(op.lhs, arith.ExtUIOp)
    if extended is None or extended.input.type != i1:
        return None
    if value not in (0, 1) or predicate not in ("eq", "ne"):
        return None
    flag = extended.input
    return flag if (value == 1) == (predicate == "eq") else site.negate(flag)


def compare_equal_floats(op: Operation, site: Site) -> SSAValue | None:
    """Comparisons of x with itself that hold, or do not, for NaN as well."""
    assert isinstance(op, arith.CmpfOp)
    predicate = float_predicate_of(op)
    if predicate in ("true", "false"):
        return site.flag(predicate == "true")
    if op.lhs is not op.rhs:
        return None
    if predicate in TRUE_OF_EQUALS:
        return site.flag(True)
    return site.flag(False) if predicate in FALSE_OF_EQUALS else None


RULES: dict[type[Operation], tuple[Rule, ...]] = {
    arith.CmpiOp: (
        compare_equals,
        constant_to_the_right,
        to_signed_comparison,
        compare_flags,
        compare_extended_flag,
    ),
    arith.CmpfOp: (compare_equal_floats,),
}
