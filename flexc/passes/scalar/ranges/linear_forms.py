"""Integers of a mask as sums of multiples: `q_idx - kv_idx + window`.

What is added up are positions, and values that are not sums themselves. A form is
equal to its value as an integer, not just modulo a power of two: an operation
that might wrap around is not taken apart. Values that depend on rows alone stay
whole unless they are linear in the position, and so do those of columns: their
ranges over a block are known exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import IntegerAttr, i1
from xdsl.ir import Operation, Region, SSAValue

from flexc.passes.scalar.dependence import (
    NOTHING,
    PAIR,
    Along,
    Dependences,
    indices,
)
from flexc.passes.scalar.formula import Formula, Leaf
from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.exact_ranges import ExactRanges
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.scalar.ranges.value_ranges import (
    BINARY,
    ValueRanges,
    to_signed,
    width_of,
)

Terms = tuple[tuple[SSAValue, int], ...]

MODERATE = Interval(-(1 << 61), 1 << 61)
"""Sums of a few of these fit i64."""

UNLIMITED = 1 << 10
"""Bits in which nothing wraps around."""


@dataclass(frozen=True)
class Linear:
    """A sum of values times factors, none of them 0, and a constant."""

    terms: Terms = ()
    const: int = 0

    def __add__(self, other: Linear) -> Linear:
        factors = dict(self.terms)
        for value, factor in other.terms:
            factors[value] = factors.get(value, 0) + factor
        terms = tuple((v, f) for v, f in factors.items() if f)
        return Linear(terms, self.const + other.const)

    def __mul__(self, factor: int) -> Linear:
        if factor == 0:
            return Linear()
        return Linear(
            tuple((v, f * factor) for v, f in self.terms), self.const * factor
        )

    def __neg__(self) -> Linear:
        return self * -1

    def __sub__(self, other: Linear) -> Linear:
        return self + -other

    def plus(self, value: int) -> Linear:
        return Linear(self.terms, self.const + value)

    def replaced(self, value: SSAValue, by: Linear) -> Linear:
        """The form with something else in the place of a term."""
        factor = dict(self.terms)[value]
        rest = tuple((v, f) for v, f in self.terms if v is not value)
        return Linear(rest, self.const) + by * factor


class MaskFacts:
    """What is known of the values of a mask region."""

    def __init__(self, region: Region, max_length: int, fits: bool):
        self.region, self.fits = region, fits
        self.origins = ExactRanges(region, {})
        self.dependences = Dependences(region)
        position = Interval(0, max(max_length - 1, 0))
        b, h, self.row, self.column = indices(region)
        head = Interval(0, (1 << 31) - 2)
        self.ranges = ValueRanges(
            {b: head, h: head, self.row: position, self.column: position}
        )
        self.order: dict[SSAValue, int] = {
            v: i for i, v in enumerate(region.block.args)
        }
        for op in region.block.ops:
            for result in op.results:
                self.order[result] = len(self.order)
        self._forms: dict[SSAValue, Linear] = {}

    def pair(self, value: SSAValue) -> Along:
        """Whether a value depends on the row, the column, or both."""
        return self.dependences[value] & PAIR

    def pair_of(self, formula: Formula) -> Along:
        if isinstance(formula, Leaf):
            return self.pair(formula.value)
        along = NOTHING
        for part in formula.parts:
            along |= self.pair_of(part)
        return along

    def index(self, axis: Along) -> SSAValue:
        return self.row if axis == Along.ROW else self.column

    def part(self, form: Linear, axis: Along) -> Linear:
        """The terms that depend on exactly that, without the constant."""
        return Linear(tuple((v, f) for v, f in form.terms if self.pair(v) == axis))

    def range(self, form: Linear) -> Interval:
        """What the terms may add up to."""
        total = intervals.point(form.const)
        for value, factor in form.terms:
            term = intervals.multiply(
                self.ranges[value], intervals.point(factor), UNLIMITED
            )
            total = intervals.add(total, term, UNLIMITED)
        return total

    def is_moderate(self, form: Linear) -> bool:
        """Whether the form can be computed in i64, in whatever order."""
        parts = [*(Linear((t,)) for t in form.terms), form, Linear((), form.const)]
        return all(self.range(p).within(MODERATE) for p in parts)

    def linear(self, value: SSAValue) -> Linear:
        """The form of an integer value."""
        found = self._forms.get(value)
        if found is None:
            found = self._forms[value] = self._linear(value)
        return found

    def _linear(self, value: SSAValue) -> Linear:
        whole = Linear(((value, 1),))
        constant = int_constant(value)
        if constant is not None:
            return Linear(const=constant)
        axis = self.pair(value)
        if not axis or not isinstance(value.owner, Operation) or value.type == i1:
            return whole
        form = self._sum(value.owner)
        if form is None or axis == PAIR:
            return whole if form is None else self._sorted(form)
        index = self.index(axis)
        own = self.part(form, axis).terms
        return form if all(v is index for v, _ in own) else whole

    def _sorted(self, form: Linear) -> Linear:
        terms = sorted(form.terms, key=lambda term: self.order[term[0]])
        return Linear(tuple(terms), form.const)

    def _sum(self, op: Operation) -> Linear | None:
        match op:
            case arith.AddiOp() if self.is_exact(op):
                return self.linear(op.lhs) + self.linear(op.rhs)
            case arith.SubiOp() if self.is_exact(op):
                return self.linear(op.lhs) - self.linear(op.rhs)
            case arith.MuliOp() if self.is_exact(op):
                a, b = self.linear(op.lhs), self.linear(op.rhs)
                a, b = (b, a) if not a.terms else (a, b)
                return None if b.terms else a * b.const
            case arith.ShLIOp() if self.is_exact(op):
                amount = int_constant(op.rhs)
                return None if amount is None else self.linear(op.lhs) * (1 << amount)
            case arith.ExtSIOp() if op.input.type != i1:
                return self.linear(op.input)
            case arith.ExtUIOp() if self.ranges[op.input].is_nonnegative:
                return self.linear(op.input)
            case arith.TruncIOp() if self._is_short(op):
                return self.linear(op.input)
            case _:
                return None

    def _is_short(self, op: arith.TruncIOp) -> bool:
        known = self.ranges[op.input]
        return known.within(intervals.full(width_of(op.result.type)))

    def is_exact(self, op: Operation) -> bool:
        """Whether an operation on integers is known not to wrap around."""
        if self.fits and self.origins.is_exact(op.results[0]):
            # Of values that were loaded, or cast by the user, nothing was proved.
            return True
        width = width_of(op.results[0].type)
        known = [self.ranges[v] for v in op.operands]
        if isinstance(op, math_dialect.AbsIOp):
            return known[0].lo > intervals.full(width).lo
        if isinstance(op, arith.ShLIOp) and not known[1].within(Interval(0, width - 1)):
            return False
        exact = BINARY[type(op)](known[0], known[1], UNLIMITED)
        return exact.within(intervals.full(width))


def int_constant(value: SSAValue) -> int | None:
    """The value of an integer constant, read as signed."""
    op = value.owner
    if isinstance(op, arith.ConstantOp) and isinstance(op.value, IntegerAttr):
        return to_signed(op.value.value.data, width_of(value.type))
    return None
