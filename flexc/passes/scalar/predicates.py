"""Predicates of comparisons: `eq`, `ne`, `lt`, `le`, `gt`, `ge`.

All but `eq` and `ne` of integers begin with a letter more: `s` or `u` for signed and
unsigned integers, `o` or `u` for floats that are ordered or may be NaN. Floats also
have `false`, `true`, `ord` and `uno`, which the functions below do not take.
"""

from __future__ import annotations

from xdsl.dialects import arith

OPERATORS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
"""The operators of Python and C."""

OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}

EXCHANGED = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def predicate_of(op: arith.CmpiOp | arith.CmpfOp) -> str:
    """Return the predicate of a comparison, as the IR spells it."""
    if isinstance(op, arith.CmpiOp):
        return arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]
    return arith.CMPF_COMPARISON_OPERATIONS[op.predicate.value.data]


def opposite(predicate: str) -> str:
    """Return the predicate of integers that holds where this one does not."""
    return predicate[:-2] + OPPOSITE[predicate[-2:]]


def exchanged(predicate: str) -> str:
    """Return the predicate that holds if both operands are exchanged."""
    return predicate[:-2] + EXCHANGED[predicate[-2:]]
