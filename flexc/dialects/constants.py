"""Read and round the values of `arith.constant` ops."""

from __future__ import annotations

import math
from typing import cast

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, FloatAttr, IntegerAttr, IntegerType
from xdsl.ir import Attribute, SSAValue
from xdsl.utils.hints import isa


def to_signed(value: int, width: int) -> int:
    """Return the lowest `width` bits of an integer as a signed number."""
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


def int_constant(value: SSAValue) -> int | None:
    """Return the signed value of an integer constant; None for other values."""
    op = value.owner
    if not isinstance(op, arith.ConstantOp) or not isinstance(op.value, IntegerAttr):
        return None
    attr: IntegerAttr = op.value
    number = attr.value.data
    if isa(value.type, IntegerType):
        return to_signed(number, value.type.width.data)
    return number


def float_constant(value: SSAValue) -> float | None:
    """Return the value of a floating-point constant; None for other values."""
    op = value.owner
    if not isinstance(op, arith.ConstantOp) or not isinstance(op.value, FloatAttr):
        return None
    return op.value.value.data


def nearest(value: float, type_: Attribute) -> FloatAttr:
    """Return a number rounded to its type, infinite if beyond the type's range."""
    try:
        return FloatAttr(value, cast(AnyFloat, type_))
    except OverflowError:
        return FloatAttr(math.copysign(math.inf, value), cast(AnyFloat, type_))
