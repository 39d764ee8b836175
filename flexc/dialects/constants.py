"""Read the values of `arith.constant` ops."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, IntegerType
from xdsl.ir import SSAValue
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
