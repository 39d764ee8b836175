"""`flex.ties`: the derivative of a maximum or minimum of equal operands.

A discardable attribute of `arith.maximumf` and `arith.minimumf`, as in `arith.maximumf
%x, %zero {flex.ties = "rhs"} : f32`. The attribute does not change the value. torch's
functions differ in their derivatives at equal operands: `maximum` gives half to each
operand, `clamp` gives all to the clamped value, `relu` to the constant.
"""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation
from xdsl.utils.str_enum import StrEnum

TIES = "flex.ties"


class Ties(StrEnum):
    """The operand that receives the derivative if both operands are equal."""

    HALVES = "halves"
    """Half of the derivative for each operand; the default without the attribute."""
    LHS = "lhs"
    RHS = "rhs"


def ties_of(op: Operation) -> Ties:
    """Return the `flex.ties` attribute of an op, or its default."""
    attr = op.attributes.get(TIES)
    return Ties(attr.data) if isinstance(attr, StringAttr) else Ties.HALVES


def set_ties(op: Operation, ties: Ties) -> None:
    """Set the `flex.ties` attribute of an op, unless `ties` is the default."""
    if ties is not Ties.HALVES:
        op.attributes[TIES] = StringAttr(ties.value)
