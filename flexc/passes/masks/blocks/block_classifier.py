"""Emit code that proves blocks of pairs dead or full without evaluating pairs.

A block is dead if the mask's formula has no solution in the block. It is full if the
negation has none. A disjunction has no solution if no part has one. A conjunction has
no solution if its parts leave no rows, no columns, or no value of a sum. The code
compares a few ends of intervals: ends of the block's positions, and ends of values
along rows and along columns, which one pass over each axis summarises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.ir import Region, SSAValue

from flexc.dialects.constants import int_constant
from flexc.dialects.mod_region import yielded
from flexc.passes.masks.blocks.block_code import BlockCode, Summary, along_heads
from flexc.passes.masks.blocks.block_ranges import BlockRanges, Side, narrowed
from flexc.passes.masks.blocks.constraints import (
    Bound,
    Condition,
    Constraints,
    Item,
    Pure,
    Residue,
)
from flexc.passes.masks.blocks.emitted_integers import Ends, Wide
from flexc.passes.scalar import Proof, Proven, WhyNot
from flexc.passes.scalar.canonicalization import simplify_region
from flexc.passes.scalar.formula import AllOf, AnyOf, Formula, Leaf, mask_formula
from flexc.passes.scalar.ranges.intervals import INDEX, Interval
from flexc.passes.scalar.variation import NOTHING, PAIR, Along, Linear, MaskFacts, Terms


def has_residue(block: BlockCode, ends: Ends, residues: Sequence[Residue]) -> SSAValue:
    """Test if some x between a form's ends may satisfy residues of one sum and divisor.

    The flag is true if unknown. Every integer between the ends is assumed to be a value
    of the form, as is the case for factors of 1 and -1.
    """
    wide, first = block.integers, residues[0]
    shift = wide.point(block.uniform(first.shift))
    ends = wide.difference(shift, ends) if first.sign < 0 else wide.sum(shift, ends)
    divisor = _divisor(block, first)
    lo, hi = wide.const(0), wide.plus(divisor, -1)
    tests = [wide.cmp("le", ends.lo, ends.hi)]
    for residue in residues:
        limit = block.uniform(residue.limit)
        if residue.kind == "ne":
            tests.append(_avoids(block, ends, divisor, limit))
        if residue.kind in ("ge", "eq"):
            lo = wide.max(lo, limit)
        if residue.kind in ("le", "eq"):
            hi = wide.min(hi, limit)
    tests.append(_reaches(block, ends, divisor, Ends(lo, hi)))
    found = block.code.all_of(tests)
    if divisor.range.lo > 0:
        return found
    return block.code.or_(found, wide.cmp("le", divisor, wide.const(0)))


def _divisor(block: BlockCode, residue: Residue) -> Wide:
    if isinstance(residue.divisor, int):
        return block.integers.const(residue.divisor)
    value = block.copy.value(residue.divisor)
    return block.integers.extended(value, block.facts.ranges[residue.divisor])


def _reaches(block: BlockCode, ends: Ends, divisor: Wide, allowed: Ends) -> SSAValue:
    """Test if some x between the ends has a remainder between the allowed ends."""
    wide = block.integers
    past = wide.modulo(wide.sub(ends.lo, allowed.lo), divisor)
    ahead = wide.cmp("le", past, wide.sub(allowed.hi, allowed.lo))
    next_one = wide.add(ends.lo, wide.sub(divisor, past))
    smallest = wide.select(ahead, ends.lo, next_one)
    some = wide.cmp("le", allowed.lo, allowed.hi)
    return block.code.and_(some, wide.cmp("le", smallest, ends.hi))


def _avoids(block: BlockCode, ends: Ends, divisor: Wide, limit: Wide) -> SSAValue:
    """Test if some x between the ends has a remainder other than the limit."""
    wide = block.integers
    differs = wide.cmp("ne", wide.modulo(ends.lo, divisor), limit)
    several = wide.cmp("lt", ends.lo, ends.hi)
    one = wide.cmp("gt", divisor, wide.const(1))
    return block.code.or_(differs, block.code.and_(several, one))


__all__ = ["Classifier", "Summary", "build_classifier"]

MAX_CONJUNCTIONS = 24
"""The maximum number of conjunctions that are combined. Beyond it, the disjunctions of
a conjunction are tried one at a time.
"""


@dataclass(frozen=True)
class Classifier:
    """Code that tests if a block of pairs is dead, and if it is full.

    The region takes (b, h, q_first, q_last, kv_first, kv_last, *captures) and for each
    summary lo, hi and, for floats, nan. It yields (dead, full): a true flag is proved,
    a false flag means unknown.
    """

    summaries: tuple[Summary, ...]
    region: Region
    along: Along
    """BATCH and HEAD, if the result depends on them."""
    unknown: tuple[str, ...]
    """Values without known bounds, one line each."""


def build_classifier(mask: Region, max_length: int, fits: bool) -> Proof[Classifier]:
    """Return a classifier of the blocks of a mask, or the reason why there is none.

    Positions are below `max_length`. `fits` says that sums, differences and products do
    not wrap around for the positions and captures of the call.
    """
    facts = MaskFacts(mask, max_length, fits)
    block = BlockCode(facts)
    solver = BlockSolver(block)
    answers = [solver.empty(mask_formula(mask, negated)) for negated in (False, True)]
    block.code.yield_(*answers)
    simplify_region(block.region, _known(block))
    if all(int_constant(v) == 0 for v in yielded(block.region.block)):
        reasons = "; ".join(block.unknown) or "it depends on too much at once"
        return WhyNot(f"no block is known to be dead or full: {reasons}")
    summaries = tuple(block.summaries.needed())
    along = along_heads(block.heads[0], block.heads[1], summaries)
    return Proven(Classifier(summaries, block.region, along, tuple(block.unknown)))


def _known(block: BlockCode) -> dict[SSAValue, Interval]:
    known: dict[SSAValue, Interval] = dict.fromkeys(block.heads, INDEX)
    position = block.facts.ranges[block.facts.row]
    return known | dict.fromkeys(block.positions, position)


def count(condition: Condition) -> int:
    """Count the conjunctions of a condition's disjunctive normal form."""
    match condition:
        case AnyOf():
            return sum(map(count, condition.parts))
        case AllOf():
            return prod(map(count, condition.parts))
        case _:
            return 1


def items_of(condition: Condition) -> tuple[list[Item], list[AnyOf[Condition]]]:
    """Split a conjunction into items and disjunctions."""
    match condition:
        case AllOf():
            items: list[Item] = []
            some: list[AnyOf[Condition]] = []
            for part in condition.parts:
                more_items, more_some = items_of(part)
                items += more_items
                some += more_some
            return items, some
        case AnyOf():
            return [], [condition]
        case _:
            return [condition], []


class BlockSolver:
    """A writer of code that proves that conditions have no solution in a block."""

    def __init__(self, block: BlockCode):
        self.block, self.facts = block, block.facts
        self.constraints = Constraints(block.facts)

    def empty(self, formula: Formula) -> SSAValue:
        """Test if a formula is proved to hold for no pair of the block."""
        return self._empty(self.constraints.read(formula), [])

    def _empty(self, condition: Condition, given: Sequence[Item]) -> SSAValue:
        items, some = items_of(condition)
        given = list(dict.fromkeys([*given, *items]))
        if not some:
            return self._conjunction(given)
        if count(AllOf(tuple(some))) <= MAX_CONJUNCTIONS:
            first, *rest = sorted(some, key=count)
            return self._each(first, tuple(rest), given)
        return self.block.code.any_of([self._each(part, (), given) for part in some])

    def _each(
        self,
        some: AnyOf[Condition],
        rest: tuple[AnyOf[Condition], ...],
        given: Sequence[Item],
    ) -> SSAValue:
        parts = [self._empty(AllOf((p, *rest)), given) for p in some.parts]
        return self.block.code.all_of(parts)

    def _conjunction(self, items: Sequence[Item]) -> SSAValue:
        block = self.block
        rows, columns = (Side(block, a, items) for a in (Along.ROW, Along.COLUMN))
        ranges = BlockRanges(block, rows, columns)
        tests = [t for s in (rows, columns) if (t := s.is_empty()) is not None]
        for item in items:
            match item:
                case Pure() if item.axis == NOTHING:
                    tests.append(block.code.not_(block.copy.formula(item.formula)))
                case Pure() if item.axis == PAIR:
                    raise AssertionError("formulas of pairs are taken apart")
                case Leaf():
                    truth = ranges.truth(item.value)
                    none = truth.must if item.negated else block.code.not_(truth.may)
                    tests.append(none)
                case _:
                    pass
        for form in self._forms(items):
            tests += self._no_sum(form, items, ranges)
        return block.code.any_of(tests)

    def _forms(self, items: Sequence[Item]) -> list[Terms]:
        """Return the forms that bounds or residues constrain.

        A single position is included only if it has residues: `Side` handles its
        bounds.
        """
        forms = [i.form for i in items if isinstance(i, Bound | Residue)]
        positions = [((self.facts.index(a), 1),) for a in (Along.ROW, Along.COLUMN)]
        residues = [i.form for i in items if isinstance(i, Residue)]
        return [f for f in dict.fromkeys(forms) if f not in positions or f in residues]

    def _no_sum(
        self, form: Terms, items: Sequence[Item], ranges: BlockRanges
    ) -> list[SSAValue]:
        """Test if no value of a form satisfies all bounds and residues of the form."""
        bounds = [i for i in items if isinstance(i, Bound) and i.form == form]
        ends: Ends = narrowed(self.block, ranges.form(Linear(form)), bounds)
        tests = [self.block.integers.cmp("gt", ends.lo, ends.hi)] if bounds else []
        residues = [i for i in items if isinstance(i, Residue) and i.form == form]
        classes = dict.fromkeys((r.sign, r.shift, r.divisor) for r in residues)
        for sign, shift, divisor in classes:
            same = [
                r
                for r in residues
                if (r.sign, r.shift, r.divisor) == (sign, shift, divisor)
            ]
            found = has_residue(self.block, ends, same)
            tests.append(self.block.code.not_(found))
        return tests
