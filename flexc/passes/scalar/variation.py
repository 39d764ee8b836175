"""Compute the positions that values of a mod region vary with, and their affine forms.

`Variation` joins the arguments of a mod, or the dimensions of a tile, that an op's
operands vary with. `Linear` is a sum of values times integer factors, such as `q_idx -
kv_idx + window`. The terms of a form are positions, and values that are not sums
themselves. A form equals its value as an integer, not only modulo a power of two: an op
that may wrap around is a term. A value that depends on rows alone is one term, unless
the value is linear in q_idx, because its range over a block is known exactly. The same
holds for columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import Generic, TypeVar

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import i1
from xdsl.ir import Block, Operation, Region, SSAValue

from flexc.dialects.constants import int_constant
from flexc.dialects.mod_region import INDEX_ARGS
from flexc.passes.scalar.formula import Formula, Leaf
from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.exact_ranges import EXACT_BITS, ExactRanges
from flexc.passes.scalar.ranges.intervals import INDEX, Interval
from flexc.passes.scalar.ranges.value_ranges import BINARY, ValueRanges, width_of


class Along(Flag):
    """The arguments of a mod that a value depends on."""

    SCORE = auto()
    BATCH = auto()
    HEAD = auto()
    ROW = auto()
    """The argument q_idx."""
    COLUMN = auto()
    """The argument kv_idx."""


NOTHING = Along(0)
PAIR = Along.ROW | Along.COLUMN


T = TypeVar("T", Along, frozenset[int])


class Variation(Generic[T]):
    """The arguments or dimensions that each value of a region varies with.

    `known` maps arguments to flags of a mod's arguments, or to dimensions of a tile.
    Other arguments, such as captures and sizes, vary along `nothing`. The result of an
    op varies along the union of what its operands vary along. Results are computed on
    demand.
    """

    def __init__(self, known: Mapping[SSAValue, T], nothing: T):
        self._known, self._nothing = dict(known), nothing

    def __setitem__(self, value: SSAValue, along: T) -> None:
        self._known[value] = along

    def __getitem__(self, value: SSAValue) -> T:
        known, left = self._known, [value]
        while value not in known:
            owner = left[-1].owner
            operands = () if isinstance(owner, Block) else tuple(owner.operands)
            unknown = [v for v in operands if v not in known]
            if unknown:
                left += unknown
                continue
            found = self._nothing
            for operand in operands:
                found = found | known[operand]
            known[left.pop()] = found
        return known[value]


class Dependences(Variation[Along]):
    """The arguments of a mod that its values depend on.

    The region's first arguments are (score), b, h, q_idx, kv_idx.
    """

    def __init__(self, region: Region, has_score: bool = False):
        names = [Along.BATCH, Along.HEAD, Along.ROW, Along.COLUMN]
        if has_score:
            names = [Along.SCORE, *names]
        super().__init__(dict(zip(region.block.args, names, strict=False)), NOTHING)

    def is_uniform(self, value: SSAValue) -> bool:
        """Return True if a value is the same for all pairs of a head."""
        return not self[value] & (PAIR | Along.SCORE)


def indices(region: Region) -> list[SSAValue]:
    """Return b, h, q_idx and kv_idx of a mask region."""
    return list(region.block.args[: len(INDEX_ARGS)])


Terms = tuple[tuple[SSAValue, int], ...]

SUMMABLE = Interval(-(1 << 61), 1 << 61)
"""The range of numbers of which a sum of a few fits i64."""

UNLIMITED = 1 << 10
"""A width in bits at which no integer of this analysis wraps around."""


@dataclass(frozen=True)
class Linear:
    """A sum of values times nonzero factors, and a constant."""

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

    def factor(self, value: SSAValue) -> int:
        return dict(self.terms).get(value, 0)

    def without(self, value: SSAValue) -> Linear:
        return Linear(tuple(t for t in self.terms if t[0] is not value), self.const)

    def plus(self, value: int) -> Linear:
        return Linear(self.terms, self.const + value)

    def replaced(self, value: SSAValue, by: Linear) -> Linear:
        """Return the form with `by` in the place of a term's value."""
        return self.without(value) + by * self.factor(value)


class IntegerFacts:
    """The ranges of a mod's integers, and the ops that cannot wrap around.

    `known` has the ranges of arguments. `fits` says that no arithmetic on positions
    overflows, as the fact `indices_fit` does.
    """

    def __init__(self, region: Region, known: Mapping[SSAValue, Interval], fits: bool):
        self.region, self.fits = region, fits
        self.origins = ExactRanges(region, {})
        self.ranges = ValueRanges(known)

    def is_exact(self, op: Operation) -> bool:
        """Return True if an integer op is known not to wrap around."""
        width = width_of(op.results[0].type)
        if self.fits and width < EXACT_BITS and self.origins.is_exact(op.results[0]):
            # `fits` says nothing about values that were loaded, or cast by the user,
            # nor about sums of 64 bits, which wrap around in torch too.
            return True
        known = [self.ranges[v] for v in op.operands]
        if isinstance(op, math_dialect.AbsIOp):
            return known[0].lo > intervals.full(width).lo
        if isinstance(op, arith.ShLIOp) and not known[1].within(Interval(0, width - 1)):
            return False
        exact = BINARY[type(op)](known[0], known[1], UNLIMITED)
        return exact.within(intervals.full(width))


class MaskFacts(IntegerFacts):
    """The ranges, dependences and affine forms of the values of a mask region."""

    def __init__(self, region: Region, max_length: int, fits: bool):
        position = Interval(0, max(max_length - 1, 0))
        b, h, self.row, self.column = indices(region)
        known = {b: INDEX, h: INDEX, self.row: position, self.column: position}
        super().__init__(region, known, fits)
        self.dependences = Dependences(region)
        self.order: dict[SSAValue, int] = {
            v: i for i, v in enumerate(region.block.args)
        }
        for op in region.block.ops:
            for result in op.results:
                self.order[result] = len(self.order)
        self._forms: dict[SSAValue, Linear] = {}

    def pair(self, value: SSAValue) -> Along:
        """Return the part of ROW | COLUMN that a value depends on."""
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
        """Return the terms that depend on exactly `axis`, without the constant."""
        return Linear(tuple((v, f) for v, f in form.terms if self.pair(v) == axis))

    def range(self, form: Linear) -> Interval:
        """Return the range of the form's value."""
        total = intervals.point(form.const)
        for value, factor in form.terms:
            term = intervals.multiply(
                self.ranges[value], intervals.point(factor), UNLIMITED
            )
            total = intervals.add(total, term, UNLIMITED)
        return total

    def is_moderate(self, form: Linear) -> bool:
        """Return True if the form can be computed in i64, in any order."""
        parts = [*(Linear((t,)) for t in form.terms), form, Linear((), form.const)]
        return all(self.range(p).within(SUMMABLE) for p in parts)

    def linear(self, value: SSAValue) -> Linear:
        """Return the form of an integer value."""
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
