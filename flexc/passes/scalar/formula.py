"""Read a mask as a formula: leaves under conjunctions and disjunctions.

Negations are pushed down to the leaves. Leaves are comparisons, loads of booleans and
other i1 values that no logic op computes. The same code therefore handles a formula and
the formula of its negation (`formula_of(value, negated=True)`). A block is dead if the
formula has no solution in the block, and full if the negation has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, i1
from xdsl.ir import Region, SSAValue

from flexc.dialects.mod_region import yielded
from flexc.passes.scalar.predicates import predicate_of


@dataclass(frozen=True)
class Leaf:
    """A value of type i1, or its negation."""

    value: SSAValue
    negated: bool = False


Part = TypeVar("Part", covariant=True)


@dataclass(frozen=True)
class AllOf(Generic[Part]):
    """A conjunction of parts; true if it has none."""

    parts: tuple[Part, ...]


@dataclass(frozen=True)
class AnyOf(Generic[Part]):
    """A disjunction of parts; false if it has none."""

    parts: tuple[Part, ...]


Formula = Leaf | AllOf["Formula"] | AnyOf["Formula"]

TRUE, FALSE = AllOf[Formula](()), AnyOf[Formula](())


def mask_formula(mask: Region, negated: bool = False) -> Formula:
    """Return the formula of the value that a mask region yields."""
    return formula_of(yielded(mask.block)[0], negated)


def formula_of(value: SSAValue, negated: bool = False) -> Formula:
    """Return the formula of a value of type i1, or of its negation."""
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
    """Return True for an equality test, False for an inequality test, else None."""
    name = predicate_of(op)
    return {"eq": True, "ne": False}.get(name)


def _differ(a: SSAValue, b: SSAValue, negated: bool) -> Formula:
    """Return the formula of `a xor b`, or of its negation."""
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
    """Return the conjunction of formulas, flattened and simplified."""
    flat = _flat(parts, AllOf)
    if FALSE in flat:
        return FALSE
    return flat[0] if len(flat) == 1 else AllOf(tuple(flat))


def any_of(parts: Iterable[Formula]) -> Formula:
    """Return the disjunction of formulas, flattened and simplified."""
    flat = _flat(parts, AnyOf)
    if TRUE in flat:
        return TRUE
    return flat[0] if len(flat) == 1 else AnyOf(tuple(flat))


def _flat(
    parts: Iterable[Formula], kind: type[AllOf[Formula]] | type[AnyOf[Formula]]
) -> list[Formula]:
    """Return the parts without duplicates, with the parts of nested `kind` formulas."""
    flat: dict[Formula, None] = {}
    for part in parts:
        flat.update(dict.fromkeys(part.parts if isinstance(part, kind) else [part]))
    return list(flat)


Leaves = tuple[Leaf, ...]


def alternatives(formula: Formula, limit: int) -> list[Leaves] | None:
    """Return conjunctions of leaves whose disjunction is the formula.

    Return None if there are more than `limit` of them.
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
