"""Solve the leaves of a mask's formula for kv_idx.

A comparison becomes bounds `kv_idx <= T` or `kv_idx >= T`, for a term T of the row. The
solver inverts one op after another: sums, products, floor division, minima and maxima.
A comparison of rows alone is solved for q_idx in the same way. A leaf that cannot be
solved is `Unsolved` and taken to hold. This is sound, because callers ask where a
formula *may* hold.

Rows may also be keys, and columns queries, so both positions need the same support.
Each op that `Directions` or `extremes` accepts for a row, `solve` should invert for a
column.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import IntAttr, StringAttr, i1
from xdsl.ir import Operation, SSAValue

from flexc.dialects.constants import int_constant
from flexc.dialects.flex import RemainderAttr
from flexc.passes.masks.bounds.facts import (
    Directions,
    Facts,
    Unsolvable,
    chunk_start,
    divisor_of,
    keeps,
    lowest,
    magnitude,
    residue_period,
    symbol_of,
)
from flexc.passes.masks.bounds.terms import (
    LARGE,
    Alternatives,
    Atom,
    Choice,
    Condition,
    Constant,
    KeyBound,
    NotMonotonic,
    RowBound,
    RowValue,
    Symbol,
    Term,
    Unsolved,
    add,
    ceil_divide,
    conjunction,
    direction,
    disjunction,
    floor_divide,
    multiply,
    negate,
)
from flexc.passes.scalar.formula import Formula, Leaf, alternatives, formula_of
from flexc.passes.scalar.predicates import exchanged, opposite, predicate_of
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.scalar.readable import spell
from flexc.passes.scalar.variation import PAIR, Along, Linear

MAX_CASES = 4
"""The maximum number of alternatives of the condition of an integer select."""

SMALL = Interval(-LARGE, LARGE - 1)
"""The range of values that saturated bounds may be compared with."""

ALONG = {Along.ROW: "rows", Along.COLUMN: "columns", PAIR: "both"}


class Solver:
    """A solver for the leaves of one mask."""

    def __init__(self, facts: Facts):
        self.facts = facts

    def cases(self, formula: Formula, limit: int) -> Alternatives | None:
        """Return alternatives, one of which holds wherever a formula holds.

        Return None if the formula has more than `limit` alternatives.
        """
        found = alternatives(formula, limit)
        if found is None:
            return None
        return disjunction(conjunction(map(self.leaf, leaves)) for leaves in found)

    def leaf(self, leaf: Leaf) -> Alternatives:
        """Return alternatives, one of which holds wherever a leaf holds."""
        value = leaf.value
        if self.facts.is_uniform(value):
            return [[Condition(leaf)]]
        try:
            if not isinstance(value.owner, arith.CmpiOp):
                raise Unsolvable
            predicate = self.signed_predicate(value.owner)
            if leaf.negated:
                predicate = opposite(predicate)
            return self.compare(predicate, value.owner.lhs, value.owner.rhs)
        except (Unsolvable, NotMonotonic):
            return [[self.skipped(leaf)]]

    def skipped(self, leaf: Leaf) -> Unsolved:
        test, period = spell(leaf.value), residue_period(self.facts, leaf.value)
        if period is None:
            return Unsolved(test)
        along = StringAttr(ALONG[self.facts.dependences[leaf.value] & PAIR])
        return Unsolved(test, RemainderAttr(StringAttr(test), IntAttr(period), along))

    def signed_predicate(self, op: arith.CmpiOp) -> str:
        """Return the predicate as a signed one.

        Raise Unsolvable for booleans, and for unsigned comparisons of numbers that may
        be negative.
        """
        if op.lhs.type == i1:
            raise Unsolvable
        name = predicate_of(op)
        if name[0] == "u":
            ranges = self.facts.ranges
            if not all(ranges[v].is_nonnegative for v in op.operands):
                raise Unsolvable
        return name.removeprefix("u") if name[0] == "u" else name.removeprefix("s")

    def compare(self, predicate: str, a: SSAValue, b: SSAValue) -> Alternatives:
        if (found := self.chosen(predicate, a, b)) is not None:
            return found
        a = self.unclamped(a, b)
        b = self.unclamped(b, a)
        match predicate:
            case "eq":
                return conjunction([self.less(a, b, False), self.less(b, a, False)])
            case "ne":
                return [*self.compare("lt", a, b), *self.compare("gt", a, b)]
            case "gt" | "ge":
                return self.compare(exchanged(predicate), b, a)
            case _:
                return self.less(a, b, strict=predicate == "lt")

    def chosen(self, predicate: str, a: SSAValue, b: SSAValue) -> Alternatives | None:
        """Return the alternatives of a comparison with a select, else None.

        Each branch is compared under the condition of the branch.
        """
        for side, (value, other) in enumerate(((a, b), (b, a))):
            op = value.owner
            if not isinstance(op, arith.SelectOp) or self.facts.is_uniform(value):
                continue
            found: Alternatives = []
            for branch, negated in ((op.lhs, False), (op.rhs, True)):
                pair = (other, branch) if side else (branch, other)
                when = self.cases(formula_of(op.cond, negated), MAX_CASES)
                if when is None:
                    raise Unsolvable
                found += conjunction([self.compare(predicate, *pair), when])
            return found
        return None

    def unclamped(self, value: SSAValue, other: SSAValue) -> SSAValue:
        """Return a value without clamps that compares with `other` as `value` does.

        Clamps whose limit is outside of the range of `other` are removed. Values that
        do not vary with columns keep their clamps, so that code for range ends can
        compute in 32 bits.
        """
        if not self.facts.dependences[value] & Along.COLUMN:
            return value
        known = self.facts.ranges[other]
        while True:
            op = value.owner
            match op:
                case arith.TruncIOp() if keeps(self.facts, op):
                    value = op.input
                case arith.MaxSIOp() | arith.MinSIOp():
                    number = int_constant(op.rhs)
                    if number is None or known.lo <= number <= known.hi:
                        return value
                    if (number < known.lo) != isinstance(op, arith.MaxSIOp):
                        return value
                    value = op.lhs
                case _:
                    return value

    def less(self, a: SSAValue, b: SSAValue, strict: bool) -> Alternatives:
        """Solve a <= b, or a < b if `strict`."""
        left, right = self.facts.affine(a), self.facts.affine(b)
        if left is not None and right is not None:
            form = self.facts.difference(left, right)
            return [[self.affine_bound(form, Constant(-1 if strict else 0), True)]]
        if self.is_solved_for(b, a):
            return self.beyond(b, a, Constant(1 if strict else 0), upper=False)
        return self.beyond(a, b, Constant(-1 if strict else 0), upper=True)

    def beyond(
        self, value: SSAValue, limit: SSAValue, plus: Constant, upper: bool
    ) -> Alternatives:
        """Solve value <= limit + plus (`upper`) or value >= limit + plus."""
        terms, is_greatest = self.extremes(limit)
        found = [self.solve(value, add(term, plus), upper) for term in terms]
        # x <= max(terms) and x >= min(terms) are disjunctions.
        return disjunction(found) if upper == is_greatest else conjunction(found)

    def is_solved_for(self, value: SSAValue, other: SSAValue) -> bool:
        """Return True if `value`, not `other`, has the position to solve for."""
        mine, yours = (self.facts.dependences[v] & PAIR for v in (value, other))
        if (mine ^ yours) & Along.COLUMN:
            return bool(mine & Along.COLUMN)
        return bool(mine) and not yours

    def fixed(self, value: SSAValue) -> Term:
        """Return the term of a value that does not vary with the column."""
        along = self.facts.dependences[value]
        if along & Along.COLUMN:
            raise Unsolvable
        if self.facts.is_uniform(value):
            return symbol_of(self.facts, value)
        form = self.facts.affine(value)
        if form is not None:
            return self.term(form)
        directions = Directions(self.facts)
        moves = directions.of(value)
        return RowValue(value, moves, checked=tuple(directions.checked))

    def extremes(self, value: SSAValue) -> tuple[list[Term], bool]:
        """Return terms whose maximum (True) or minimum (False) is a value of rows."""
        try:
            return [self.fixed(value)], True
        except (Unsolvable, NotMonotonic):
            return self.several(value)

    def several(self, value: SSAValue) -> tuple[list[Term], bool]:
        """Return terms as `extremes` does, for a value that is not monotonic."""
        op = value.owner
        match op:
            case math_dialect.AbsIOp() if self.has_absolute(op):
                term = self.fixed(op.operands[0])
                return [term, negate(term)], True
            case arith.MinSIOp() | arith.MaxSIOp():
                is_greatest = isinstance(op, arith.MaxSIOp)
                return [self.fixed(v) for v in op.operands], is_greatest
            case arith.ExtSIOp() | arith.ExtUIOp() | arith.TruncIOp() if keeps(
                self.facts, op
            ):
                return self.several(op.operands[0])
            case arith.AddiOp() if self.facts.is_exact(op):
                inner, other = self.split(op)
                by = self.uniform(other)
                terms, is_greatest = self.several(inner)
                return [add(term, by) for term in terms], is_greatest
            case arith.MuliOp() if self.facts.is_exact(op):
                factor = int_constant(op.rhs)
                if not factor:
                    raise Unsolvable
                terms, is_greatest = self.several(op.lhs)
                return [scaled(t, factor) for t in terms], is_greatest == (factor > 0)
            case _:
                raise Unsolvable

    def term(self, form: Linear) -> Term:
        """Return the term of a form in which kv_idx does not occur."""
        total: Term = Constant(form.const)
        if factor := form.factor(self.facts.row):
            row = RowValue(self.facts.row, 1, 1)
            total = add(scaled(row, factor), total)
        for value, factor in form.without(self.facts.row).terms:
            if abs(factor) > 1:
                self.require_small(value)  # Products saturate.
            total = add(total, scaled(symbol_of(self.facts, value), factor))
        return total

    def affine_bound(self, form: Linear, bound: Term, upper: bool) -> Atom:
        """Return the atom of form <= bound (`upper`) or form >= bound."""
        is_column = form.factor(self.facts.column) != 0
        position = self.facts.column if is_column else self.facts.row
        limit = add(bound, negate(self.term(form.without(position))))
        factor = form.factor(position)
        if factor == 0:
            raise Unsolvable  # Simplification leaves no such comparison.
        if factor < 0:
            limit, upper, factor = negate(limit), not upper, -factor
        by = Constant(factor)
        limit = floor_divide(limit, by) if upper else ceil_divide(limit, by)
        if is_column:
            return KeyBound(upper, limit)
        if direction(limit) != 0:
            raise Unsolvable  # A row is compared with another function of the row.
        return RowBound(upper, limit)

    def solve(self, value: SSAValue, bound: Term, upper: bool) -> Alternatives:
        """Solve value <= bound (`upper`) or value >= bound for a position."""
        form = self.facts.affine(value)
        if form is not None:
            return [[self.affine_bound(form, bound, upper)]]
        op = value.owner
        if isinstance(op, math_dialect.AbsIOp):
            return self.absolute(op, bound, upper)
        assert isinstance(op, Operation)
        match op:
            case arith.ExtSIOp() | arith.ExtUIOp() | arith.TruncIOp() if keeps(
                self.facts, op
            ):
                return self.solve(op.operands[0], bound, upper)
            case arith.SubiOp() if (chunk := chunk_start(self.facts, op)) is not None:
                return self.chunk(*chunk, bound, upper)
            case arith.AddiOp() if self.facts.is_exact(op):
                inner, other = self.split(op)
                return self.solve(inner, add(bound, negate(self.fixed(other))), upper)
            case arith.SubiOp() if self.facts.is_exact(op):
                return self.difference(op, bound, upper)
            case arith.MuliOp() if self.facts.is_exact(op):
                inner, other = self.split(op)
                return self.product(inner, other, bound, upper)
            case arith.DivSIOp() | arith.FloorDivSIOp() if self.is_floored(op):
                by = divisor_of(self.facts, op.rhs)
                return self.quotient(op.lhs, by, bound, upper)
            case arith.ShRSIOp():
                bits = int_constant(op.rhs)
                if bits is None or not 0 <= bits <= 31:
                    raise Unsolvable
                return self.quotient(op.lhs, Constant(1 << bits), bound, upper)
            case arith.MinSIOp() | arith.MaxSIOp():
                return self.extreme(op, bound, upper)
            case _:
                raise Unsolvable

    def is_floored(self, op: arith.DivSIOp | arith.FloorDivSIOp) -> bool:
        """Return True if a quotient is rounded down."""
        is_natural = self.facts.ranges[op.lhs].is_nonnegative
        return isinstance(op, arith.FloorDivSIOp) or is_natural

    def extreme(
        self, op: arith.MinSIOp | arith.MaxSIOp, bound: Term, upper: bool
    ) -> Alternatives:
        """Solve a bound of a minimum or maximum: a clamp, or two varying values."""
        inner, other = self.split(op)
        if self.facts.is_uniform(other):
            self.require_small(inner)
            limit = clamped(op, bound, symbol_of(self.facts, other), upper)
            return self.solve(inner, limit, upper)
        found = [self.solve(value, bound, upper) for value in op.operands]
        return (
            disjunction(found)
            if upper == isinstance(op, arith.MinSIOp)
            else conjunction(found)
        )

    def absolute(
        self, op: math_dialect.AbsIOp, bound: Term, upper: bool
    ) -> Alternatives:
        """Solve a bound of |x|.

        |x| <= t is the conjunction of -t <= x and x <= t. |x| >= t is the disjunction
        of x <= -t and x >= t.
        """
        if not self.has_absolute(op):
            raise Unsolvable
        inner = op.operands[0]
        above = self.solve(inner, bound, upper)
        below = self.solve(inner, negate(bound), not upper)
        return conjunction([above, below]) if upper else above + below

    def has_absolute(self, op: math_dialect.AbsIOp) -> bool:
        """Return True if the operand cannot be the smallest integer of its type.

        The absolute value of the smallest integer wraps around.
        """
        inner = op.operands[0]
        return self.facts.ranges[inner].lo > lowest(inner)

    def difference(self, op: arith.SubiOp, bound: Term, upper: bool) -> Alternatives:
        if self.facts.dependences[op.rhs] & PAIR and self.is_fixed(op.lhs):
            limit = add(self.fixed(op.lhs), negate(bound))
            return self.solve(op.rhs, limit, not upper)
        return self.solve(op.lhs, add(bound, self.fixed(op.rhs)), upper)

    def is_fixed(self, value: SSAValue) -> bool:
        return not self.facts.dependences[value] & Along.COLUMN

    def split(self, op: Operation) -> tuple[SSAValue, SSAValue]:
        """Return the operand that has the position, and the other operand."""
        a, b = op.operands
        along = self.facts.dependences
        for wanted in (Along.COLUMN, Along.ROW):
            for inner, other in ((a, b), (b, a)):
                if along[inner] & wanted:
                    return inner, other
        raise Unsolvable

    def uniform(self, value: SSAValue) -> Constant | Symbol:
        if not self.facts.is_uniform(value):
            raise Unsolvable
        return symbol_of(self.facts, value)

    def product(
        self, inner: SSAValue, factor: SSAValue, bound: Term, upper: bool
    ) -> Alternatives:
        number = int_constant(factor)
        if number is not None and number < 0:
            bound, upper = negate(bound), not upper
            by: Constant | Symbol = Constant(-number)
        else:
            by = divisor_of(self.facts, factor)
        limit = floor_divide(bound, by) if upper else ceil_divide(bound, by)
        return self.solve(inner, limit, upper)

    def chunk(
        self, inner: SSAValue, by: Constant | Symbol, bound: Term, upper: bool
    ) -> Alternatives:
        """Solve floor(x / c) * c <= bound (`upper`) or >= bound."""
        limit = floor_divide(bound, by) if upper else ceil_divide(bound, by)
        return self.quotient(inner, by, limit, upper)

    def quotient(
        self, inner: SSAValue, by: Constant | Symbol, bound: Term, upper: bool
    ) -> Alternatives:
        """Solve a bound of floor(x / c).

        floor(x / c) <= t is x <= t * c + c - 1, and floor(x / c) >= t is x >= t * c.
        """
        if any(magnitude(self.facts, term) >= LARGE for term in (bound, by)):
            self.require_small(inner)  # The product may saturate.
        if upper:
            bound = add(multiply(add(bound, Constant(1)), by), Constant(-1))
        else:
            bound = multiply(bound, by)
        return self.solve(inner, bound, upper)

    def require_small(self, value: SSAValue) -> None:
        """Raise Unsolvable if a saturated bound may compare wrongly with a value."""
        if not self.facts.ranges[value].within(SMALL):
            raise Unsolvable


def scaled(term: Term, factor: int) -> Term:
    """Return term * factor."""
    product = multiply(term, Constant(abs(factor)))
    return negate(product) if factor < 0 else product


def clamped(
    op: arith.MinSIOp | arith.MaxSIOp, bound: Term, other: Term, upper: bool
) -> Term:
    """Return t' such that x compares with t' as min(x, u) or max(x, u) with t."""
    nothing, everything = Constant(-LARGE - 1), Constant(LARGE)
    if isinstance(op, arith.MinSIOp):
        if upper:
            return Choice(other, bound, everything, bound)
        return Choice(bound, other, bound, everything)
    if upper:
        return Choice(other, bound, bound, nothing)
    return Choice(bound, other, nothing, bound)
