"""The rows, or the columns, of a block that one conjunction of a mask is about.

What it says of rows alone narrows them, exactly: bounds of the position cut off
the ends, and other conditions are the "used" conditions of summaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import i1, i32
from xdsl.ir import SSAValue

from flexc.passes.masks.blocks.block_code import BlockCode
from flexc.passes.masks.blocks.constraints import (
    Bound,
    Item,
    Pure,
    oriented,
)
from flexc.passes.masks.blocks.summaries import Used
from flexc.passes.masks.blocks.wide_integers import (
    WHOLE,
    Ends,
    Wide,
)
from flexc.passes.scalar.copier import Copier
from flexc.passes.scalar.dependence import Along
from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.scalar.ranges.linear_forms import Linear
from flexc.passes.scalar.ranges.value_ranges import width_of


def narrowed(code: BlockCode, ends: Ends, bounds: Iterable[Bound]) -> Ends:
    """The ends of the integers between two that bounds let through."""
    wide, lo, hi = code.wide, ends.lo, ends.hi
    for bound in sorted(bounds, key=lambda b: b.kind == "ne"):
        limit = code.uniform(bound.limit)
        if bound.kind in ("ge", "eq"):
            lo = wide.max(lo, limit)
        if bound.kind in ("le", "eq"):
            hi = wide.min(hi, limit)
        if bound.kind == "ne":
            lo, hi = _without(code, lo, limit, 1), _without(code, hi, limit, -1)
    return Ends(lo, hi)


def _without(code: BlockCode, end: Wide, value: Wide, step: int) -> Wide:
    """An end moved off a value that is none."""
    wide = code.wide
    is_value = wide.cmp("eq", end, value)
    # What saturated is not known to be equal.
    for extreme in (WHOLE.lo, WHOLE.hi):
        if extreme in end.range and extreme in value.range:
            differs = wide.cmp("ne", end, wide.const(extreme))
            is_value = code.both(is_value, differs)
    return wide.select(is_value, wide.plus(end, step), end)


class Side:
    """Positions along one axis."""

    def __init__(self, code: BlockCode, axis: Along, items: Sequence[Item]):
        self.code, self.axis = code, axis
        self.index = code.facts.index(axis)
        pure = [i for i in items if isinstance(i, Pure) and i.axis == axis]
        form = ((self.index, 1),)
        bounds = [i for i in items if isinstance(i, Bound) and i.form == form]
        origins = [b.origin for b in bounds if b.origin is not None]
        self.used: Used = tuple(dict.fromkeys([*(p.formula for p in pure), *origins]))
        self.is_narrowed = bool(pure or bounds)
        self.ends = self._positions(bool(pure), bounds)
        self._at: list[Copier] = []
        self._known: dict[object, Ends] = {}

    def _positions(self, has_pure: bool, bounds: Sequence[Bound]) -> Ends:
        known = self.code.facts.ranges[self.index]
        if has_pure:
            lo, hi = self.code.summaries.some_used(self.axis, self.used)
            return self._read(lo, hi, known)
        ends = narrowed(self.code, self.code.block_ends(self.axis), bounds)
        # Of no positions these are wrong; nothing is concluded from them then.
        return Ends(Wide(ends.lo.value, known), Wide(ends.hi.value, known))

    def _read(self, lo: SSAValue, hi: SSAValue, known: Interval) -> Ends:
        return Ends(*(self.code.wide.extended(v, known) for v in (lo, hi)))

    def is_empty(self) -> SSAValue | None:
        """Whether no position takes part; None where all do."""
        if not self.is_narrowed:
            return None
        return self.code.wide.cmp("sgt", self.ends.lo, self.ends.hi)

    def linear(self, form: Linear) -> Ends:
        """The ends of a sum of values of this axis."""
        terms, sign = oriented(form.terms)
        ends = self._known.get(terms)
        if ends is None:
            ends = self._known[terms] = self._computed(Linear(terms))
        return ends if sign > 0 else self.code.wide.ends_negated(ends)

    def _computed(self, form: Linear) -> Ends:
        wide = self.code.wide
        (value, factor), *others = form.terms
        if not others and value is self.index:
            return wide.ends_times(self.ends, factor)
        if not others and is_monotonic(self.code, value, self.index):
            return wide.ends_times(self._at_ends(value), factor)
        if not others:
            form = Linear(((value, 1),))
        lo, hi = self.code.summaries.ends(self.axis, form, self.used)
        ends = self._read(lo, hi, self.code.facts.range(form))
        return ends if others else wide.ends_times(ends, factor)

    def _at_ends(self, value: SSAValue) -> Ends:
        """The ends of a monotonic value: those at the first and last position."""
        if not self._at:
            for end in (self.ends.lo, self.ends.hi):
                position = self.code.code.int_cast(end.value, i32)
                known = self.code.copy.known | {self.index: position}
                self._at.append(Copier(self.code.code, known))
        known = self.code.facts.ranges[value]
        first, last = (
            self.code.wide.extended(copier.value(value), known) for copier in self._at
        )
        return self.code.wide.hull([first, last])

    def values(self, value: SSAValue) -> list[SSAValue]:
        """lo and hi of a value of type i1; of a float also whether it may be NaN."""
        return self.code.summaries.ends(self.axis, Linear(((value, 1),)), self.used)


def is_monotonic(code: BlockCode, value: SSAValue, index: SSAValue) -> bool:
    """Whether an integer only rises or only falls along an axis."""
    facts, op = code.facts, value.owner
    if value is index or not facts.pair(value):
        return True
    if value.type == i1:
        return False
    match op:
        case arith.AddiOp() | arith.SubiOp() | arith.MuliOp() | arith.ShLIOp():
            steps = facts.is_exact(op)
        case arith.ShRSIOp():
            steps = not facts.pair(op.rhs)
        case arith.FloorDivSIOp() | arith.DivSIOp():
            # The smallest number divided by -1 wraps around.
            whole = intervals.full(width_of(op.result.type))
            steps = facts.ranges[op.lhs].lo > whole.lo and not facts.pair(op.rhs)
        case arith.MinSIOp() | arith.MaxSIOp():
            steps = True
        case arith.ExtSIOp():
            return op.input.type != i1 and is_monotonic(code, op.input, index)
        case _:
            return False
    varying = [v for v in op.operands if facts.pair(v)]
    return steps and len(varying) == 1 and is_monotonic(code, varying[0], index)
