"""What a leaf of a mask's formula says of positions, solved for kv_idx.

A comparison becomes bounds `kv_idx <= T` or `kv_idx >= T`, for a term T of the
row, by undoing one operation after another: sums, products, floor division,
minima and maxima. A comparison of rows alone is solved for q_idx in the same way.
What cannot be solved is `Skipped`: taken to hold, which is sound for whoever asks
where a formula *may* hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import i1
from xdsl.ir import Operation, SSAValue

from flexc.passes.analysis.bounds.affine import Affine, Facts
from flexc.passes.analysis.bounds.periods import residue_period
from flexc.passes.analysis.bounds.terms import (
    LARGE,
    MAX_SYMBOL,
    Choice,
    Constant,
    NotMonotonic,
    RowValue,
    Symbol,
    Term,
    add,
    ceil_divide,
    direction,
    floor_divide,
    joined,
    multiply,
    negate,
)
from flexc.passes.analysis.dependence import PAIR, Along
from flexc.passes.analysis.formula import Leaf
from flexc.passes.analysis.ranges.intervals import Interval, full
from flexc.passes.analysis.ranges.value_ranges import width_of
from flexc.passes.analysis.readable import spell


@dataclass(frozen=True)
class KeyBound:
    """kv_idx <= term (`upper`), or kv_idx >= term."""

    upper: bool
    term: Term


@dataclass(frozen=True)
class RowBound:
    """q_idx <= term (`upper`), or q_idx >= term; the term is uniform."""

    upper: bool
    term: Term


@dataclass(frozen=True)
class Condition:
    """A uniform comparison, left <= right, or a uniform value of type i1."""

    leaf: Leaf


@dataclass(frozen=True)
class Skipped:
    """What was not understood, or repeats so often that every block has some.

    `period` says that it holds for one of any so many neighbouring positions
    `along`, and fails for another.
    """

    reason: str
    period: int | None = None
    along: Along = PAIR


Atom = KeyBound | RowBound | Condition | Skipped
Alternatives = list[list[Atom]]
"""Of which one holds, with all its atoms."""

NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
SWAPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "ge": "le", "le": "ge"}


SMALL = Interval(-LARGE, LARGE - 1)
"""What saturated bounds may be compared with."""


class Unsolvable(Exception):
    """A comparison that says nothing of positions that this module can see."""


class Solver:
    """Solves the leaves of one mask."""

    def __init__(self, facts: Facts):
        self.facts = facts

    def leaf(self, leaf: Leaf) -> Alternatives:
        """What a leaf says, as alternatives."""
        value = leaf.value
        if self.facts.is_uniform(value):
            return [[Condition(leaf)]]
        try:
            if not isinstance(value.owner, arith.CmpiOp):
                raise Unsolvable
            predicate = self.signed_predicate(value.owner)
            if leaf.negated:
                predicate = NEGATED[predicate]
            return self.compare(predicate, value.owner.lhs, value.owner.rhs)
        except (Unsolvable, NotMonotonic):
            return [[self.skipped(leaf)]]

    def skipped(self, leaf: Leaf) -> Skipped:
        period = residue_period(self.facts, leaf.value)
        along = self.facts.dependences[leaf.value] & PAIR
        return Skipped(spell(leaf.value), period, along)

    def signed_predicate(self, op: arith.CmpiOp) -> str:
        """The comparison as one of signed integers, which most are."""
        if op.lhs.type == i1:
            raise Unsolvable
        name = arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]
        if name[0] == "u":
            ranges = self.facts.ranges
            if not all(ranges[v].is_nonnegative for v in op.operands):
                raise Unsolvable
        return name.removeprefix("u") if name[0] == "u" else name.removeprefix("s")

    def compare(self, predicate: str, a: SSAValue, b: SSAValue) -> Alternatives:
        match predicate:
            case "eq":
                return [self.both(a, b)]
            case "ne":
                return [*self.compare("lt", a, b), *self.compare("gt", a, b)]
            case "gt" | "ge":
                return self.compare(SWAPPED[predicate], b, a)
            case _:
                return self.less(a, b, strict=predicate == "lt")

    def both(self, a: SSAValue, b: SSAValue) -> list[Atom]:
        """a == b, as two bounds."""
        below, above = self.less(a, b, False), self.less(b, a, False)
        if len(below) > 1 or len(above) > 1:
            raise Unsolvable
        return [*below[0], *above[0]]

    def less(self, a: SSAValue, b: SSAValue, strict: bool) -> Alternatives:
        """a <= b, or a < b."""
        left, right = self.facts.affine(a), self.facts.affine(b)
        if left is not None and right is not None:
            form = left.minus(right)
            return [[self.affine_bound(form, Constant(-1 if strict else 0), True)]]
        if self.is_solved_for(b, a):
            bound = add(self.fixed(a), Constant(1 if strict else 0))
            return self.solve(b, bound, upper=False)
        bound = add(self.fixed(b), Constant(-1 if strict else 0))
        return self.solve(a, bound, upper=True)

    def is_solved_for(self, value: SSAValue, other: SSAValue) -> bool:
        """Whether of two sides this one has the position to solve for."""
        mine, yours = (self.facts.dependences[v] & PAIR for v in (value, other))
        if (mine ^ yours) & Along.COLUMN:
            return bool(mine & Along.COLUMN)
        return bool(mine) and not yours

    def fixed(self, value: SSAValue) -> Term:
        """The term of a value that does not vary along keys."""
        along = self.facts.dependences[value]
        if along & Along.COLUMN:
            raise Unsolvable
        if self.facts.is_uniform(value):
            return self.symbol(value)
        form = self.facts.affine(value)
        if form is not None:
            return self.term(form)
        directions = Directions(self)
        moves = directions.of(value)
        return RowValue(value, moves, checked=tuple(directions.checked))

    def symbol(self, value: SSAValue, least: int | None = None) -> Constant | Symbol:
        number = self.facts.constant(value)
        if number is not None:
            return Constant(number)
        limits = Interval(-MAX_SYMBOL, MAX_SYMBOL)
        known = self.facts.ranges[value]
        if least is not None and known.lo >= least:
            least = None
        return Symbol(value, known.within(limits), least)

    def term(self, form: Affine) -> Term:
        """The term of a form without keys."""
        total: Term = Constant(form.constant)
        if form.row:
            q_idx = RowValue(self.facts.region.block.args[2], 1, 1)
            total = add(scaled(q_idx, form.row), total)
        for value, factor in form.symbols.items():
            if abs(factor) > 1:
                self.require_small(value)  # Products saturate.
            total = add(total, scaled(self.symbol(value), factor))
        return total

    def affine_bound(self, form: Affine, bound: Term, upper: bool) -> Atom:
        """form <= bound (`upper`) or form >= bound."""
        rest = Affine(0, 0, form.symbols, form.constant)
        if form.column:
            rest = Affine(form.row, 0, form.symbols, form.constant)
        limit = add(bound, negate(self.term(rest)))
        factor = form.column or form.row
        if factor == 0:
            raise Unsolvable  # Simplification leaves no such comparison.
        if factor < 0:
            limit, upper, factor = negate(limit), not upper, -factor
        by = Constant(factor)
        limit = floor_divide(limit, by) if upper else ceil_divide(limit, by)
        if form.column:
            return KeyBound(upper, limit)
        if direction(limit) != 0:
            raise Unsolvable  # A row compared with another function of the row.
        return RowBound(upper, limit)

    def solve(self, value: SSAValue, bound: Term, upper: bool) -> Alternatives:
        """value <= bound (`upper`) or value >= bound, solved for a position."""
        form = self.facts.affine(value)
        if form is not None:
            return [[self.affine_bound(form, bound, upper)]]
        op = value.owner
        if isinstance(op, math_dialect.AbsIOp):
            return self.absolute(op, bound, upper)
        assert isinstance(op, Operation)
        match op:
            case arith.ExtSIOp():
                return self.solve(op.input, bound, upper)
            case arith.ExtUIOp() if self.facts.ranges[op.input].is_nonnegative:
                return self.solve(op.input, bound, upper)
            case arith.AddiOp() if self.facts.is_exact(op):
                inner, other = self.split(op)
                return self.solve(inner, add(bound, negate(self.fixed(other))), upper)
            case arith.SubiOp() if self.facts.is_exact(op):
                return self.difference(op, bound, upper)
            case arith.MuliOp() if self.facts.is_exact(op):
                inner, other = self.split(op)
                return self.product(inner, other, bound, upper)
            case arith.DivSIOp() if self.facts.ranges[op.lhs].is_nonnegative:
                return self.quotient(op.lhs, self.divisor(op.rhs), bound, upper)
            case arith.FloorDivSIOp():
                return self.quotient(op.lhs, self.divisor(op.rhs), bound, upper)
            case arith.ShRSIOp():
                by = self.facts.constant(op.rhs)
                if by is None or not 0 <= by <= 31:
                    raise Unsolvable
                return self.quotient(op.lhs, Constant(1 << by), bound, upper)
            case arith.MinSIOp() | arith.MaxSIOp():
                inner, other = self.split(op)
                self.require_small(inner)
                bound = clamped(op, bound, self.uniform(other), upper)
                return self.solve(inner, bound, upper)
            case _:
                raise Unsolvable

    def absolute(
        self, op: math_dialect.AbsIOp, bound: Term, upper: bool
    ) -> Alternatives:
        """|x| <= t: both -t <= x and x <= t; |x| >= t: one of the outer two."""
        inner = op.operands[0]
        if self.facts.ranges[inner].lo == lowest(inner):
            raise Unsolvable  # Whose absolute value is itself.
        above = self.solve(inner, bound, upper)
        below = self.solve(inner, negate(bound), not upper)
        if not upper:
            return above + below
        return [a + b for a in above for b in below]

    def difference(self, op: arith.SubiOp, bound: Term, upper: bool) -> Alternatives:
        if self.facts.dependences[op.rhs] & PAIR and self.is_fixed(op.lhs):
            limit = add(self.fixed(op.lhs), negate(bound))
            return self.solve(op.rhs, limit, not upper)
        return self.solve(op.lhs, add(bound, self.fixed(op.rhs)), upper)

    def is_fixed(self, value: SSAValue) -> bool:
        return not self.facts.dependences[value] & Along.COLUMN

    def split(self, op: Operation) -> tuple[SSAValue, SSAValue]:
        """The operand to go on with, and the other, which is fixed."""
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
        return self.symbol(value)

    def divisor(self, value: SSAValue) -> Constant | Symbol:
        """A uniform value that is positive, or is checked to be at run time."""
        if not self.facts.is_uniform(value):
            raise Unsolvable
        divisor = self.symbol(value, least=1)
        if isinstance(divisor, Constant) and divisor.value < 1:
            raise Unsolvable
        return divisor

    def product(
        self, inner: SSAValue, factor: SSAValue, bound: Term, upper: bool
    ) -> Alternatives:
        by = self.divisor(factor)
        limit = floor_divide(bound, by) if upper else ceil_divide(bound, by)
        return self.solve(inner, limit, upper)

    def quotient(
        self, inner: SSAValue, by: Constant | Symbol, bound: Term, upper: bool
    ) -> Alternatives:
        """floor(x / c) <= t: x <= t c + c - 1; floor(x / c) >= t: x >= t c."""
        self.require_small(inner)
        if upper:
            bound = add(multiply(add(bound, Constant(1)), by), Constant(-1))
        else:
            bound = multiply(bound, by)
        return self.solve(inner, bound, upper)

    def require_small(self, value: SSAValue) -> None:
        """Give up on values that a saturated bound could be on the wrong side of."""
        if not self.facts.ranges[value].within(SMALL):
            raise Unsolvable


def lowest(value: SSAValue) -> int:
    """The smallest number of an integer's type."""
    return full(width_of(value.type)).lo


def scaled(term: Term, factor: int) -> Term:
    """term * factor."""
    product = multiply(term, Constant(abs(factor)))
    return negate(product) if factor < 0 else product


def clamped(
    op: arith.MinSIOp | arith.MaxSIOp, bound: Term, other: Term, upper: bool
) -> Term:
    """t' such that x <= t' (or >=) says what min(x, u) <= t (or >=, or max) does."""
    nothing, everything = Constant(-LARGE - 1), Constant(LARGE)
    if isinstance(op, arith.MinSIOp):
        if upper:
            return Choice(other, bound, everything, bound)
        return Choice(bound, other, bound, everything)
    if upper:
        return Choice(other, bound, bound, nothing)
    return Choice(bound, other, nothing, bound)


class Directions:
    """Which way values of rows move from row to row."""

    def __init__(self, solver: Solver):
        self.solver = solver
        self.facts = solver.facts
        self.checked: list[Symbol] = []
        """What was taken to be positive, or small, to be checked at run time."""

    def of(self, value: SSAValue) -> int:
        """1, 0 or -1."""
        if self.facts.is_uniform(value):
            return 0
        if value is self.facts.region.block.args[2]:
            return 1
        op = value.owner
        match op:
            case arith.ExtSIOp():
                return self.of(op.input)
            case arith.ExtUIOp() | arith.TruncIOp() if self._same(op):
                return self.of(op.operands[0])
            case arith.AddiOp() | arith.SubiOp() if self.facts.is_exact(op):
                return self._sum(op)
            case arith.MuliOp() if self.facts.is_exact(op):
                return self._product(op)
            case arith.MinSIOp() | arith.MaxSIOp():
                return joined(self.of(op.lhs), self.of(op.rhs))
            case arith.ShRSIOp() if self.facts.constant(op.rhs) in range(32):
                return self.of(op.lhs)
            case arith.DivSIOp() | arith.FloorDivSIOp():
                return self._quotient(op)
            case _:
                raise Unsolvable

    def _sum(self, op: arith.AddiOp | arith.SubiOp) -> int:
        for value in op.operands:
            if self.facts.is_uniform(value):
                self._check(self.solver.symbol(value))
        sign = 1 if isinstance(op, arith.AddiOp) else -1
        return joined(self.of(op.lhs), sign * self.of(op.rhs))

    def _check(self, symbol: Constant | Symbol) -> None:
        if isinstance(symbol, Symbol) and (
            symbol.least is not None or not symbol.sized
        ):
            self.checked.append(symbol)

    def _quotient(self, op: arith.DivSIOp | arith.FloorDivSIOp) -> int:
        """Division rounds in one direction, towards zero too, so it is monotonic."""
        self._check(self.solver.divisor(op.rhs))
        return self.of(op.lhs)

    def _same(self, op: Operation) -> bool:
        """Whether a cast keeps all numbers that its operand may be."""
        known = self.facts.ranges[op.operands[0]]
        if isinstance(op, arith.ExtUIOp):
            return known.is_nonnegative
        least = lowest(op.results[0])
        return known.within(Interval(least, -least - 1))

    def _product(self, op: arith.MuliOp) -> int:
        for value, factor in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            number = self.facts.constant(factor)
            if number is not None:
                sign = (number > 0) - (number < 0)
                return sign * self.of(value)
        raise Unsolvable
