"""What a mask says, as a formula: leaves under "all of" and "any of".

Negations are pushed down to the leaves, which are the region's comparisons,
loads of booleans and whatever else is not logic. So a formula and the formula
of its negation (`formula_of(value, negated=True)`) are read by the same code: a
block is empty where the first has no solution and full where the second has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, i1
from xdsl.ir import Region, SSAValue

from flexc.dialects import flex


@dataclass(frozen=True)
class Leaf:
    """A value of type i1, or its negation."""

    value: SSAValue
    negated: bool = False


@dataclass(frozen=True)
class AllOf:
    """True where all parts are; of no parts: true."""

    parts: tuple[Formula, ...]


@dataclass(frozen=True)
class AnyOf:
    """True where some part is; of no parts: false."""

    parts: tuple[Formula, ...]


Formula = Leaf | AllOf | AnyOf

TRUE, FALSE = AllOf(()), AnyOf(())


def mask_formula(mask: Region, negated: bool = False) -> Formula:
    """The formula of what a mask region yields."""
    last = mask.block.last_op
    assert isinstance(last, flex.YieldOp)
    return formula_of(last.values[0], negated)


def formula_of(value: SSAValue, negated: bool = False) -> Formula:
    """The formula of a value of type i1."""
    op = value.owner
    match op:
        case arith.ConstantOp(value=IntegerAttr() as attr):
            return TRUE if bool(attr.value.data) != negated else FALSE
        case arith.AndIOp() | arith.OrIOp():
            parts = [formula_of(v, negated) for v in op.operands]
            is_and = isinstance(op, arith.AndIOp) != negated
            return all_of(parts) if is_and else any_of(parts)
        case arith.XOrIOp():
            return _differ(op.lhs, op.rhs, negated)
        case arith.SelectOp():
            return _choice(op, negated)
        case arith.CmpiOp() if op.lhs.type == i1 and _equality(op) is not None:
            return _differ(op.lhs, op.rhs, negated != _equality(op))
        case _:
            return Leaf(value, negated)


def _equality(op: arith.CmpiOp) -> bool | None:
    """Whether a comparison is for equality (True), inequality, or neither."""
    name = arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]
    return {"eq": True, "ne": False}.get(name)


def _differ(a: SSAValue, b: SSAValue, negated: bool) -> Formula:
    """Exactly one of two values; negated: both or none."""
    return any_of(
        all_of([formula_of(a, first), formula_of(b, first == negated)])
        for first in (False, True)
    )


def _choice(op: arith.SelectOp, negated: bool) -> Formula:
    yes, no = (
        all_of([formula_of(op.cond, not taken), formula_of(branch, negated)])
        for taken, branch in ((True, op.lhs), (False, op.rhs))
    )
    return any_of([yes, no])


def all_of(parts: Iterable[Formula]) -> Formula:
    """The conjunction, flat and without what does not matter."""
    flat = _flat(parts, AllOf)
    if FALSE in flat:
        return FALSE
    return flat[0] if len(flat) == 1 else AllOf(tuple(flat))


def any_of(parts: Iterable[Formula]) -> Formula:
    """The disjunction, flat and without what does not matter."""
    flat = _flat(parts, AnyOf)
    if TRUE in flat:
        return TRUE
    return flat[0] if len(flat) == 1 else AnyOf(tuple(flat))


def _flat(parts: Iterable[Formula], kind: type[AllOf] | type[AnyOf]) -> list[Formula]:
    """The parts, with those of parts of the same kind, each once."""
    flat: dict[Formula, None] = {}
    for part in parts:
        flat.update(dict.fromkeys(part.parts if isinstance(part, kind) else [part]))
    return list(flat)


Leaves = tuple[Leaf, ...]


def alternatives(formula: Formula, limit: int) -> list[Leaves] | None:
    """Conjunctions of leaves of which one holds where the formula does.

    None where there are more than `limit`.
    """
    match formula:
        case Leaf():
            found: list[Leaves] = [(formula,)]
        case AnyOf():
            found = []
            for part in formula.parts:
                some = alternatives(part, limit)
                if some is None:
                    return None
                found += some
        case AllOf():
            found = [()]
            for part in formula.parts:
                some = alternatives(part, limit)
                if some is None or len(found) * len(some) > limit:
                    return None
                found = [tuple(dict.fromkeys(a + b)) for a in found for b in some]
    return found if len(found) <= limit else None
