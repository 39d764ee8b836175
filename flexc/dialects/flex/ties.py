"""`flex.ties`: who has the derivative of a maximum or minimum of equal numbers.

A discardable attribute of `arith.maximumf` and `arith.minimumf`, as in
`arith.maximumf %x, %zero {flex.ties = "rhs"} : f32`. The value is the same with and
without it. torch's functions differ: `maximum` halves the derivative between equal
operands, `clamp` gives it to what is clamped, `relu` to the constant.
"""

from __future__ import annotations

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation
from xdsl.utils.str_enum import StrEnum

TIES = "flex.ties"


class Ties(StrEnum):
    """Whose derivative that of the result is where the operands are equal."""

    HALVES = "halves"
    """Half of each; what holds without the attribute."""
    LHS = "lhs"
    RHS = "rhs"


def ties_of(op: Operation) -> Ties:
    """What an op says of its operands being equal."""
    attr = op.attributes.get(TIES)
    return Ties(attr.data) if isinstance(attr, StringAttr) else Ties.HALVES


def set_ties(op: Operation, ties: Ties) -> None:
    """State it, where it is not what holds anyhow."""
    if ties is not Ties.HALVES:
        op.attributes[TIES] = StringAttr(ties.value)
