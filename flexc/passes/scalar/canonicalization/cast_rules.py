"""Conversions that follow one another."""

from __future__ import annotations

from typing import cast

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, i1
from xdsl.ir import Attribute, Operation, SSAValue

from flexc.passes.scalar.canonicalization.site import (
    Rule,
    Site,
    defined_by,
)
from flexc.passes.scalar.ranges.value_ranges import width_of

Extension = arith.ExtSIOp | arith.ExtUIOp


def extension_of(value: SSAValue) -> Extension | None:
    return defined_by(value, arith.ExtSIOp) or defined_by(value, arith.ExtUIOp)


def extend_or_truncate(
    source: SSAValue, extension: type[Extension], type_: Attribute, site: Site
) -> SSAValue:
    """The source as an integer of any width."""
    have, want = width_of(source.type), width_of(type_)
    type_ = cast(IntegerType, type_)
    if have == want:
        return source
    if have > want:
        return site.insert(arith.TruncIOp(source, type_))
    return site.insert(extension(source, type_))


def truncate(op: Operation, site: Site) -> SSAValue | None:
    """trunci(exti x) -> x, or what is left of the two; trunci(trunci x) -> trunci x."""
    source, type_ = op.operands[0], op.results[0].type
    if (inner := defined_by(source, arith.TruncIOp)) is not None:
        return extend_or_truncate(inner.input, arith.ExtSIOp, type_, site)
    if (extended := extension_of(source)) is not None:
        return extend_or_truncate(extended.input, type(extended), type_, site)
    return None


def extend(op: Operation, site: Site) -> SSAValue | None:
    """exti(exti x) -> exti x; exti(trunci x) -> x where it fits."""
    assert isinstance(op, arith.ExtSIOp | arith.ExtUIOp)
    type_ = op.result.type
    if (inner := extension_of(op.input)) is not None:
        # A zero-extended number has no sign to be extended by.
        if type(inner) is type(op) or isinstance(inner, arith.ExtUIOp):
            return extend_or_truncate(inner.input, type(inner), type_, site)
        return None
    truncated = defined_by(op.input, arith.TruncIOp)
    if truncated is None or truncated.input.type != type_:
        return None
    # Only a sign extension brings back a negative number.
    values = site.range(truncated.input)
    fits = values.within(site.range(op.input))
    signless = values.is_nonnegative or isinstance(op, arith.ExtSIOp)
    return truncated.input if fits and signless else None


def integer_to_float(op: Operation, site: Site) -> SSAValue | None:
    """sitofp(exti x) -> the conversion of x, which is not a signed i1: few have it."""
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
    """truncf(extf x) -> x."""
    extended = defined_by(op.operands[0], arith.ExtFOp)
    if extended is None or extended.input.type != op.results[0].type:
        return None
    return extended.input


def extend_float(op: Operation, site: Site) -> SSAValue | None:
    """extf(extf x) -> extf x."""
    assert isinstance(op, arith.ExtFOp)
    extended = defined_by(op.input, arith.ExtFOp)
    if extended is None:
        return None
    return site.insert(arith.ExtFOp(extended.input, op.result.type))


RULES: dict[type[Operation], tuple[Rule, ...]] = {
    arith.TruncIOp: (truncate,),
    arith.ExtSIOp: (extend,),
    arith.ExtUIOp: (extend,),
    arith.SIToFPOp: (integer_to_float,),
    arith.UIToFPOp: (integer_to_float,),
    arith.TruncFOp: (round_float,),
    arith.ExtFOp: (extend_float,),
}
