"""Whether blocks of pairs are dead or full, as code that evaluates no pair.

A mask is dead on a block where its formula has no solution there, and full where
its negation has none. A disjunction has none where no part has; a conjunction
where the rows, the columns or the sums that its parts bound are none. That is a
matter of a few ends of intervals: of the block's positions, and of values along
rows and along columns, which are summarised in one pass over each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Region, SSAValue

from flexc.dialects import flex
from flexc.passes.masks.blocks.block_code import BlockCode
from flexc.passes.masks.blocks.block_ranges import BlockRanges
from flexc.passes.masks.blocks.block_sides import Side, narrowed
from flexc.passes.masks.blocks.constraints import (
    Bound,
    Condition,
    Constraints,
    Every,
    Item,
    Pure,
    Residue,
    Some,
)
from flexc.passes.masks.blocks.summaries import (
    HEADS,
    Summary,
    along_heads,
)
from flexc.passes.masks.blocks.wide_integers import Ends, Wide
from flexc.passes.scalar.canonicalization.region_simplifier import simplify_region
from flexc.passes.scalar.dependence import (
    NOTHING,
    PAIR,
    Along,
)
from flexc.passes.scalar.formula import (
    Formula,
    Leaf,
    mask_formula,
)
from flexc.passes.scalar.proof import (
    Proof,
    Proven,
    WhyNot,
)
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.scalar.ranges.linear_forms import (
    Linear,
    MaskFacts,
    Terms,
    int_constant,
)

# Whether some integer between two has a remainder that conditions allow.


def has_residue(block: BlockCode, ends: Ends, residues: Sequence[Residue]) -> SSAValue:
    """Whether some x of a form's ends may satisfy residues of equal divisors.

    True where there is no telling. All integers between the ends are taken to be
    sums, as they are for factors of 1 and -1.
    """
    wide, first = block.wide, residues[0]
    if first.sign < 0:
        ends = wide.ends_negated(ends)
    ends = wide.ends_sum(ends, wide.point(block.uniform(first.shift)))
    divisor = _divisor(block, first)
    lo, hi = wide.const(0), wide.plus(divisor, -1)
    tests = [wide.cmp("sle", ends.lo, ends.hi)]
    for residue in residues:
        limit = block.uniform(residue.limit)
        if residue.kind == "ne":
            tests.append(_avoids(block, ends, divisor, limit))
        if residue.kind in ("ge", "eq"):
            lo = wide.max(lo, limit)
        if residue.kind in ("le", "eq"):
            hi = wide.min(hi, limit)
    tests.append(_reaches(block, ends, divisor, Ends(lo, hi)))
    found = block.all_of(tests)
    if divisor.range.lo > 0:
        return found
    return block.either(found, wide.cmp("sle", divisor, wide.const(0)))


def _divisor(block: BlockCode, residue: Residue) -> Wide:
    if isinstance(residue.divisor, int):
        return block.wide.const(residue.divisor)
    value = block.copy.value(residue.divisor)
    return block.wide.extended(value, block.facts.ranges[residue.divisor])


def _reaches(block: BlockCode, ends: Ends, divisor: Wide, allowed: Ends) -> SSAValue:
    """Whether some x between the ends has a remainder between two others."""
    wide = block.wide
    past = wide.modulo(wide.sub(ends.lo, allowed.lo), divisor)
    ahead = wide.cmp("sle", past, wide.sub(allowed.hi, allowed.lo))
    next_one = wide.add(ends.lo, wide.sub(divisor, past))
    smallest = wide.select(ahead, ends.lo, next_one)
    some = wide.cmp("sle", allowed.lo, allowed.hi)
    return block.both(some, wide.cmp("sle", smallest, ends.hi))


def _avoids(block: BlockCode, ends: Ends, divisor: Wide, limit: Wide) -> SSAValue:
    """Whether some x between the ends has another remainder than one."""
    wide = block.wide
    differs = wide.cmp("ne", wide.modulo(ends.lo, divisor), limit)
    several = wide.cmp("slt", ends.lo, ends.hi)
    one = wide.cmp("sgt", divisor, wide.const(1))
    return block.either(differs, block.both(several, one))


__all__ = ["Classifier", "Summary", "build_classifier"]

MAX_CONJUNCTIONS = 24
"""Of a conjunction of disjunctions with more, not all combinations are told apart."""


@dataclass(frozen=True)
class Classifier:
    """Code that tells of a block of pairs whether it is dead and whether full.

    The region takes (b, h, q_first, q_last, kv_first, kv_last, *captures) and for
    each summary lo, hi and, of floats, nan. It yields (dead, full): proved where
    true, unknown where false.
    """

    summaries: tuple[Summary, ...]
    region: Region
    along: Along
    """BATCH and HEAD, as the answer depends on them."""
    unknown: tuple[str, ...]
    """What was not understood, one line each."""


def build_classifier(mask: Region, max_length: int, fits: bool) -> Proof[Classifier]:
    """A classifier of the blocks of a mask.

    Positions are below `max_length`; `fits` says that sums, differences and
    products do not wrap around for the positions and captures of the call.
    """
    facts = MaskFacts(mask, max_length, fits)
    block = BlockCode(facts)
    solver = Solver(block)
    answers = [solver.empty(mask_formula(mask, negated)) for negated in (False, True)]
    block.code.yield_(*answers)
    simplify_region(block.region, _known(block))
    last = block.region.block.last_op
    assert isinstance(last, flex.YieldOp)
    if all(int_constant(v) == 0 for v in last.values):
        reasons = "; ".join(block.unknown) or "it depends on too much at once"
        return WhyNot(f"no block is known to be dead or full: {reasons}")
    summaries = tuple(block.summaries.needed())
    along = along_heads(block.heads[0], block.heads[1], summaries)
    return Proven(Classifier(summaries, block.region, along, tuple(block.unknown)))


def _known(block: BlockCode) -> dict[SSAValue, Interval]:
    known: dict[SSAValue, Interval] = dict.fromkeys(block.heads, HEADS)
    position = block.facts.ranges[block.facts.row]
    return known | dict.fromkeys(block.positions, position)


def count(condition: Condition) -> int:
    """How many conjunctions a condition is a disjunction of."""
    match condition:
        case Some():
            return sum(map(count, condition.parts))
        case Every():
            total = 1
            for part in condition.parts:
                total *= count(part)
            return total
        case _:
            return 1


def items_of(condition: Condition) -> tuple[list[Item], list[Some]]:
    """What a condition says in any case, and its disjunctions."""
    match condition:
        case Every():
            items: list[Item] = []
            some: list[Some] = []
            for part in condition.parts:
                more_items, more_some = items_of(part)
                items += more_items
                some += more_some
            return items, some
        case Some():
            return [], [condition]
        case _:
            return [condition], []


class Solver:
    """Writes code that proves conditions to have no solution in a block."""

    def __init__(self, block: BlockCode):
        self.block, self.facts = block, block.facts
        self.constraints = Constraints(block.facts)

    def empty(self, formula: Formula) -> SSAValue:
        """Whether a formula is proved to hold for no pair of the block."""
        return self._empty(self.constraints.read(formula), [])

    def _empty(self, condition: Condition, given: Sequence[Item]) -> SSAValue:
        items, some = items_of(condition)
        given = list(dict.fromkeys([*given, *items]))
        if not some:
            return self._conjunction(given)
        if count(Every(tuple(some))) <= MAX_CONJUNCTIONS:
            first, *rest = sorted(some, key=count)
            return self._each(first, tuple(rest), given)
        return self.block.any_of([self._each(part, (), given) for part in some])

    def _each(
        self, some: Some, rest: tuple[Some, ...], given: Sequence[Item]
    ) -> SSAValue:
        parts = [self._empty(Every((p, *rest)), given) for p in some.parts]
        return self.block.all_of(parts)

    def _conjunction(self, items: Sequence[Item]) -> SSAValue:
        block = self.block
        rows, columns = (Side(block, a, items) for a in (Along.ROW, Along.COLUMN))
        ranges = BlockRanges(block, rows, columns)
        tests = [t for s in (rows, columns) if (t := s.is_empty()) is not None]
        for item in items:
            match item:
                case Pure() if item.axis == NOTHING:
                    tests.append(block.inverse(block.copy.formula(item.formula)))
                case Pure() if item.axis == PAIR:
                    raise AssertionError("formulas of pairs are taken apart")
                case Leaf():
                    truth = ranges.truth(item.value)
                    none = truth.must if item.negated else block.inverse(truth.may)
                    tests.append(none)
                case _:
                    pass
        for form in self._forms(items):
            tests += self._no_sum(form, items, ranges)
        return block.any_of(tests)

    def _forms(self, items: Sequence[Item]) -> list[Terms]:
        """Forms that something is said of, other than positions alone."""
        forms = [i.form for i in items if isinstance(i, Bound | Residue)]
        positions = [((self.facts.index(a), 1),) for a in (Along.ROW, Along.COLUMN)]
        residues = [i.form for i in items if isinstance(i, Residue)]
        return [f for f in dict.fromkeys(forms) if f not in positions or f in residues]

    def _no_sum(
        self, form: Terms, items: Sequence[Item], ranges: BlockRanges
    ) -> list[SSAValue]:
        """Whether a form has no value that everything said of it allows."""
        bounds = [i for i in items if isinstance(i, Bound) and i.form == form]
        ends: Ends = narrowed(self.block, ranges.form(Linear(form)), bounds)
        tests = [self.block.wide.cmp("sgt", ends.lo, ends.hi)] if bounds else []
        residues = [i for i in items if isinstance(i, Residue) and i.form == form]
        classes = dict.fromkeys((r.sign, r.shift, r.divisor) for r in residues)
        for sign, shift, divisor in classes:
            same = [
                r
                for r in residues
                if (r.sign, r.shift, r.divisor) == (sign, shift, divisor)
            ]
            found = has_residue(self.block, ends, same)
            tests.append(self.block.inverse(found))
        return tests
