"""Fold ops whose operands are constants, and conversions of conversions.

Integer divisions by zero and shifts out of range are not folded. Neither are ops whose
folding might round twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import FloatAttr, IntegerType, f32, f64, i1
from xdsl.ir import Attribute, Operation, SSAValue

from flexc.dialects.constants import float_constant, int_constant, nearest
from flexc.passes.scalar.canonicalization.site import Rule, Site, defined_by
from flexc.passes.scalar.predicates import predicate_of
from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.intervals import point
from flexc.passes.scalar.ranges.value_ranges import width_of

EXACT_INTEGERS = 2**53


def _insert(site: Site, attr: FloatAttr | None) -> SSAValue | None:
    return None if attr is None else site.insert(arith.ConstantOp(attr))


INTEGERS: dict[type[Operation], Callable[[int, int, int], int | None]] = {
    arith.AndIOp: lambda a, b, width: a & b,
    arith.OrIOp: lambda a, b, width: a | b,
    arith.XOrIOp: lambda a, b, width: a ^ b,
    arith.AddiOp: lambda a, b, width: a + b,
    arith.SubiOp: lambda a, b, width: a - b,
    arith.MuliOp: lambda a, b, width: a * b,
    arith.ShLIOp: lambda a, b, width: a << b if 0 <= b < width else None,
    arith.ShRSIOp: lambda a, b, width: a >> b if 0 <= b < width else None,
    arith.DivSIOp: lambda a, b, width: (
        intervals.truncated_quotient(a, b) if b else None
    ),
    arith.FloorDivSIOp: lambda a, b, width: a // b if b else None,
    arith.CeilDivSIOp: lambda a, b, width: -(-a // b) if b else None,
    arith.RemSIOp: lambda a, b, width: (
        a - b * intervals.truncated_quotient(a, b) if b else None
    ),
}

UNSIGNED: dict[type[Operation], Callable[[int, int, int], int | None]] = {
    arith.ShRUIOp: lambda a, b, width: a >> b if b < width else None,
    arith.DivUIOp: lambda a, b, width: a // b if b else None,
    arith.CeilDivUIOp: lambda a, b, width: -(-a // b) if b else None,
    arith.RemUIOp: lambda a, b, width: a % b if b else None,
    arith.MinUIOp: lambda a, b, width: min(a, b),
    arith.MaxUIOp: lambda a, b, width: max(a, b),
}


def fold_integers(op: Operation, site: Site) -> SSAValue | None:
    """Fold signed and bitwise integer arithmetic."""
    a, b = (int_constant(v) for v in op.operands)
    if a is None or b is None:
        return None
    type_ = op.results[0].type
    value = INTEGERS[type(op)](a, b, width_of(type_))
    return None if value is None else site.const(value, type_)


def fold_unsigned(op: Operation, site: Site) -> SSAValue | None:
    """Fold unsigned integer arithmetic."""
    a, b = (int_constant(v) for v in op.operands)
    if a is None or b is None:
        return None
    type_ = op.results[0].type
    width = width_of(type_)
    mask = (1 << width) - 1
    value = UNSIGNED[type(op)](a & mask, b & mask, width)
    return None if value is None else site.const(value, type_)


FLOATS: dict[type[Operation], Callable[[float, float], float | None]] = {
    arith.AddfOp: lambda a, b: a + b,
    arith.SubfOp: lambda a, b: a - b,
    arith.MulfOp: lambda a, b: a * b,
    arith.DivfOp: lambda a, b: a / b if b else None,
    # Targets differ in the zero or NaN that they return, so these stay.
    arith.MaximumfOp: lambda a, b: max(a, b) if a < b or a > b else None,
    arith.MinimumfOp: lambda a, b: min(a, b) if a < b or a > b else None,
    arith.MaxnumfOp: lambda a, b: max(a, b) if a < b or a > b else None,
    arith.MinnumfOp: lambda a, b: min(a, b) if a < b or a > b else None,
}


def fold_floats(op: Operation, site: Site) -> SSAValue | None:
    """Fold float arithmetic, computed in f64 and rounded again.

    Rounding twice gives the same result for types with at most half the digits of f64.
    """
    a, b = (float_constant(v) for v in op.operands)
    if a is None or b is None:
        return None
    value = FLOATS[type(op)](a, b)
    if value is None:
        return None
    return _insert(site, nearest(value, op.results[0].type))


def fold_signs(op: Operation, site: Site) -> SSAValue | None:
    """Fold negation and absolute value."""
    x = float_constant(op.operands[0])
    if x is None or math.isnan(x):
        return None
    value = -x if isinstance(op, arith.NegfOp) else abs(x)
    return _insert(site, nearest(value, op.results[0].type))


def fold_integer_cast(op: Operation, site: Site) -> SSAValue | None:
    """Fold extension and truncation of integers."""
    source = op.operands[0]
    if (x := int_constant(source)) is None:
        return None
    if isinstance(op, arith.ExtUIOp):
        x = intervals.zero_extend(point(x), width_of(source.type)).lo
    return site.const(x, op.results[0].type)


def fold_to_float(op: Operation, site: Site) -> SSAValue | None:
    """Fold conversion of integers to floats."""
    source = op.operands[0]
    if (x := int_constant(source)) is None:
        return None
    if isinstance(op, arith.UIToFPOp):
        x = intervals.zero_extend(point(x), width_of(source.type)).lo
    if abs(x) > EXACT_INTEGERS:
        return None
    return _insert(site, nearest(float(x), op.results[0].type))


def fold_to_integer(op: Operation, site: Site) -> SSAValue | None:
    """Fold conversion of floats to integers, if the integer type holds the result."""
    type_ = op.results[0].type
    x = float_constant(op.operands[0])
    if x is None or not math.isfinite(x) or type_ == i1:
        return None
    allowed = intervals.full(width_of(type_))
    if isinstance(op, arith.FPToUIOp):
        allowed = intervals.zero_extend(allowed, width_of(type_))
    return site.const(int(x), type_) if int(x) in allowed else None


def fold_float_cast(op: Operation, site: Site) -> SSAValue | None:
    """Fold conversion between float types; f64 goes to half precision by way of f32."""
    x = float_constant(op.operands[0])
    type_ = op.results[0].type
    if x is None:
        return None
    if op.operands[0].type == f64 and type_ != f32:
        x = nearest(x, f32).value.data
    return _insert(site, nearest(x, type_))


def compare_floats(predicate: str, a: float, b: float) -> bool:
    """Return the result of `arith.cmpf` with the named predicate."""
    unordered = math.isnan(a) or math.isnan(b)
    match predicate:
        case "false" | "true":
            return predicate == "true"
        case "ord" | "uno":
            return unordered == (predicate == "uno")
        case _:
            if unordered:
                return predicate[0] == "u"
            relation = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b}
            relation |= {"gt": a > b, "ge": a >= b}
            return relation[predicate[1:]]


def fold_float_comparison(op: Operation, site: Site) -> SSAValue | None:
    """Fold comparisons of floats."""
    assert isinstance(op, arith.CmpfOp)
    a, b = float_constant(op.lhs), float_constant(op.rhs)
    if a is None or b is None:
        return None
    return site.flag(compare_floats(predicate_of(op), a, b))


Extension = arith.ExtSIOp | arith.ExtUIOp


def extension_of(value: SSAValue) -> Extension | None:
    return defined_by(value, arith.ExtSIOp) or defined_by(value, arith.ExtUIOp)


def extend_or_truncate(
    source: SSAValue, extension: type[Extension], type_: Attribute, site: Site
) -> SSAValue:
    """Return the source as an integer of type `type_`."""
    have, want = width_of(source.type), width_of(type_)
    type_ = cast(IntegerType, type_)
    if have == want:
        return source
    if have > want:
        return site.insert(arith.TruncIOp(source, type_))
    return site.insert(extension(source, type_))


def truncate(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite trunci(exti x) as x or one cast of x; trunci(trunci x) -> trunci x."""
    source, type_ = op.operands[0], op.results[0].type
    if (inner := defined_by(source, arith.TruncIOp)) is not None:
        return extend_or_truncate(inner.input, arith.ExtSIOp, type_, site)
    if (extended := extension_of(source)) is not None:
        return extend_or_truncate(extended.input, type(extended), type_, site)
    return None


def extend(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite exti(exti x) -> exti x; exti(trunci x) -> x if trunci is exact."""
    assert isinstance(op, arith.ExtSIOp | arith.ExtUIOp)
    type_ = op.result.type
    if (inner := extension_of(op.input)) is not None:
        # A zero-extended number is not negative, so both extensions agree.
        if type(inner) is type(op) or isinstance(inner, arith.ExtUIOp):
            return extend_or_truncate(inner.input, type(inner), type_, site)
        return None
    truncated = defined_by(op.input, arith.TruncIOp)
    if truncated is None or truncated.input.type != type_:
        return None
    # Only a sign extension restores a negative number.
    values = site.range(truncated.input)
    fits = values.within(site.range(op.input))
    signless = values.is_nonnegative or isinstance(op, arith.ExtSIOp)
    return truncated.input if fits and signless else None


def integer_to_float(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite sitofp(exti x) as a conversion of x.

    A signed i1 is not converted, because few targets support that.
    """
    assert isinstance(op, arith.SIToFPOp | arith.UIToFPOp)
    extended = extension_of(op.input)
    if extended is None:
        return None
    if isinstance(extended, arith.ExtUIOp):
        return site.insert(arith.UIToFPOp(extended.input, op.result.type))
    if isinstance(op, arith.UIToFPOp) or extended.input.type == i1:
        return None
    return site.insert(arith.SIToFPOp(extended.input, op.result.type))


def round_float(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite truncf(extf x) -> x."""
    extended = defined_by(op.operands[0], arith.ExtFOp)
    if extended is None or extended.input.type != op.results[0].type:
        return None
    return extended.input


def extend_float(op: Operation, site: Site) -> SSAValue | None:
    """Rewrite extf(extf x) -> extf x."""
    assert isinstance(op, arith.ExtFOp)
    extended = defined_by(op.input, arith.ExtFOp)
    if extended is None:
        return None
    return site.insert(arith.ExtFOp(extended.input, op.result.type))


RULES: dict[type[Operation], tuple[Rule, ...]] = {
    **dict.fromkeys(INTEGERS, (fold_integers,)),
    **dict.fromkeys(UNSIGNED, (fold_unsigned,)),
    **dict.fromkeys(FLOATS, (fold_floats,)),
    arith.NegfOp: (fold_signs,),
    math_dialect.AbsFOp: (fold_signs,),
    arith.ExtSIOp: (fold_integer_cast, extend),
    arith.ExtUIOp: (fold_integer_cast, extend),
    arith.TruncIOp: (fold_integer_cast, truncate),
    arith.SIToFPOp: (fold_to_float, integer_to_float),
    arith.UIToFPOp: (fold_to_float, integer_to_float),
    arith.FPToSIOp: (fold_to_integer,),
    arith.FPToUIOp: (fold_to_integer,),
    arith.ExtFOp: (fold_float_cast, extend_float),
    arith.TruncFOp: (fold_float_cast, round_float),
    arith.CmpfOp: (fold_float_comparison,),
}
