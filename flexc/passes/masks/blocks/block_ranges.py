"""Emit interval arithmetic on the values of a mask over a block of pairs.

The conditions of a conjunction on rows (or columns) alone narrow that side of the block
exactly: bounds of the position cut the ends, and other conditions restrict summaries.
Values that vary along rows alone or columns alone have exact ranges. The ranges of
other values are computed from the ranges of their operands. An op without a rule has a
known range only if its operands are the same for all pairs of the block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import TensorType, i1, i32
from xdsl.ir import Operation, SSAValue

from flexc.dialects import flex
from flexc.passes.masks.blocks.block_code import BlockCode, Used
from flexc.passes.masks.blocks.constraints import Bound, Item, Pure, oriented
from flexc.passes.masks.blocks.emitted_floats import FloatCode, FloatEnds, is_float
from flexc.passes.masks.blocks.emitted_integers import WHOLE, Ends, Flags, Wide
from flexc.passes.scalar.canonicalization.site import is_integer
from flexc.passes.scalar.copier import Copier
from flexc.passes.scalar.predicates import predicate_of
from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.exact_ranges import floor_modulo, floor_quotient
from flexc.passes.scalar.ranges.intervals import Interval, Truth
from flexc.passes.scalar.ranges.value_ranges import width_of
from flexc.passes.scalar.variation import NOTHING, PAIR, Along, Linear, Terms


def narrowed(code: BlockCode, ends: Ends, bounds: Iterable[Bound]) -> Ends:
    """Return ends, narrowed to the integers that satisfy the bounds."""
    wide, lo, hi = code.integers, ends.lo, ends.hi
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
    """Return an end, moved by `step` if it equals an excluded value."""
    wide = code.integers
    is_value = wide.cmp("eq", end, value)
    # A saturated end is not known to equal the value.
    for extreme in (WHOLE.lo, WHOLE.hi):
        if extreme in end.range and extreme in value.range:
            differs = wide.cmp("ne", end, wide.const(extreme))
            is_value = code.code.and_(is_value, differs)
    return wide.select(is_value, wide.plus(end, step), end)


class Side:
    """The positions along one axis that satisfy the items of a conjunction."""

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
        # If there are no positions, these ranges are wrong, but nothing is concluded
        # from them.
        return Ends(Wide(ends.lo.value, known), Wide(ends.hi.value, known))

    def _read(self, lo: SSAValue, hi: SSAValue, known: Interval) -> Ends:
        return Ends(*(self.code.integers.extended(v, known) for v in (lo, hi)))

    def is_empty(self) -> SSAValue | None:
        """Test if no position takes part; return None if all positions do."""
        if not self.is_narrowed:
            return None
        return self.code.integers.cmp("gt", self.ends.lo, self.ends.hi)

    def linear(self, terms: Terms) -> Ends:
        """Return the ends of a sum of values of this axis."""
        ends = self._known.get(terms)
        if ends is None:
            ends = self._known[terms] = self._computed(Linear(terms))
        return ends

    def _computed(self, form: Linear) -> Ends:
        wide = self.code.integers
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
        """Return the ends of a monotonic value, from the first and last position."""
        if not self._at:
            for end in (self.ends.lo, self.ends.hi):
                position = self.code.code.int_cast(end.value, i32)
                known = self.code.copy.known | {self.index: position}
                self._at.append(Copier(self.code.code, known))
        known = self.code.facts.ranges[value]
        first, last = (
            self.code.integers.extended(copier.value(value), known)
            for copier in self._at
        )
        return self.code.integers.hull([first, last])

    def values(self, value: SSAValue) -> list[SSAValue]:
        """Return lo and hi of an i1 or float; for a float, also a flag for NaNs."""
        return self.code.summaries.ends(self.axis, Linear(((value, 1),)), self.used)


def is_monotonic(code: BlockCode, value: SSAValue, index: SSAValue) -> bool:
    """Return True if an integer only rises or only falls along an axis."""
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


class BlockRanges:
    """The ranges of values over the pairs of some rows and some columns."""

    def __init__(self, block: BlockCode, rows: Side, columns: Side):
        self.block, self.facts, self.integers = block, block.facts, block.integers
        self.sides = {Along.ROW: rows, Along.COLUMN: columns}
        self.floats = FloatCode(block.code)
        self._ends: dict[SSAValue, Ends] = {}
        self._truths: dict[SSAValue, Flags] = {}
        self._floats: dict[SSAValue, FloatEnds] = {}

    def form(self, form: Linear) -> Ends:
        """Return the ends of a sum.

        Numbers are subtracted, not negated and added: the smallest has no negative.
        """
        wide = self.integers
        signed: list[tuple[Ends, int]] = []
        for axis, side in self.sides.items():
            if part := self.facts.part(form, axis).terms:
                terms, sign = oriented(part)
                signed.append((side.linear(terms), sign))
        for value, factor in self.facts.part(form, PAIR).terms:
            ends = wide.ends_times(self.integer(value), abs(factor))
            signed.append((ends, 1 if factor > 0 else -1))
        total: Ends | None = None
        for ends, sign in sorted(signed, key=lambda part: -part[1]):
            if total is None:
                total = ends if sign > 0 else wide.negative(ends)
            else:
                total = (wide.sum if sign > 0 else wide.difference)(total, ends)
        uniform = self.facts.part(form, NOTHING).plus(form.const)
        if total is None or uniform != Linear():
            ends = self.integers.point(self.block.uniform(uniform))
            total = ends if total is None else self.integers.sum(total, ends)
        return total

    def integer(self, value: SSAValue) -> Ends:
        """Return the ends of an integer."""
        found = self._ends.get(value)
        if found is None:
            found = self._clamped(self._integer(value), value)
            self._ends[value] = found
        return found

    def _clamped(self, ends: Ends, value: SSAValue) -> Ends:
        """Return the ends, clamped to the range that is known at compile time."""
        known, lo, hi = self.facts.ranges[value], ends.lo, ends.hi
        if not lo.range.within(known):
            lo = self.integers.max(lo, self.integers.const(known.lo))
        if not hi.range.within(known):
            hi = self.integers.min(hi, self.integers.const(known.hi))
        return Ends(Wide(lo.value, known), Wide(hi.value, known))

    def _integer(self, value: SSAValue) -> Ends:
        axis, op = self.facts.pair(value), value.owner
        if axis == NOTHING:
            copied = self.block.copy.value(value)
            return self.integers.point(
                self.integers.extended(copied, self.facts.ranges[value])
            )
        if axis != PAIR:
            return self.sides[axis].linear(((value, 1),))
        assert isinstance(op, Operation)
        form = self.facts.linear(value)
        if form.terms != ((value, 1),) and self.facts.is_moderate(form):
            return self.form(form)
        found = self._divided(value) or self._mixed(op)
        return self._point_integer(op) if found is None else found

    def _divided(self, value: SSAValue) -> Ends | None:
        """Return the ends of x // s or Python's x % s for a uniform s, else None."""
        modulo = floor_modulo(value, self.facts.ranges)
        found = modulo or floor_quotient(value, self.facts.ranges)
        if found is None:
            return None
        dividend, divisor = found
        if isinstance(divisor, int):
            by = self.integers.const(divisor)
        elif self.facts.pair(divisor):
            return None
        else:
            by = self.integer(divisor).lo
        divide = self.integers.modulo_range if modulo else self.integers.quotient_range
        return divide(self.integer(dividend), by, width_of(value.type))

    def _mixed(self, op: Operation) -> Ends | None:
        match op:
            case arith.SelectOp():
                a, b = self.integer(op.lhs), self.integer(op.rhs)
                return self.integers.chosen(self.truth(op.cond), a, b)
            case arith.ExtUIOp() | arith.ExtSIOp() if op.input.type == i1:
                truth, unsigned = self.truth(op.input), isinstance(op, arith.ExtUIOp)
                return self.integers.of_truth(truth, 1 if unsigned else -1)
            case arith.TruncIOp() if op.result.type == i1:
                return None
            case math_dialect.IPowIOp():
                return None
            case _:
                if not all(is_integer(v.type) for v in op.operands):
                    return None
                if any(v.type == i1 for v in op.operands):
                    return None
                return self.integers.transfer(op, self.integer, self.facts)

    def truth(self, value: SSAValue) -> Flags:
        """Test if a value of type i1 is true for all and for some pairs."""
        found = self._truths.get(value)
        if found is None:
            found = self._truths[value] = self._truth(value)
        return found

    def _truth(self, value: SSAValue) -> Flags:
        axis, op, block = self.facts.pair(value), value.owner, self.block
        if axis == NOTHING:
            return Truth(*[block.copy.value(value)] * 2)
        if axis != PAIR:
            return Truth(*self.sides[axis].values(value))
        match op:
            case arith.AndIOp() | arith.OrIOp():
                a, b = self.truth(op.lhs), self.truth(op.rhs)
                join = (
                    block.code.and_ if isinstance(op, arith.AndIOp) else block.code.or_
                )
                return Truth(join(a.must, b.must), join(a.may, b.may))
            case arith.XOrIOp():
                return self._differ(self.truth(op.lhs), self.truth(op.rhs))
            case arith.CmpiOp() if op.lhs.type != i1:
                name = predicate_of(op)
                a, b = self.integer(op.lhs), self.integer(op.rhs)
                return self.integers.compare_by(name, a, b)
            case arith.CmpfOp():
                name = predicate_of(op)
                a, b = self.float(op.lhs), self.float(op.rhs)
                return self.floats.compare_by(name, a, b)
            case _:
                assert isinstance(op, Operation)
                return self._point_truth(op)

    def _differ(self, a: Flags, b: Flags) -> Flags:
        block = self.block
        never_a, never_b = block.code.not_(a.may), block.code.not_(b.may)
        must = block.code.or_(
            block.code.and_(a.must, never_b), block.code.and_(never_a, b.must)
        )
        same = block.code.or_(
            block.code.and_(a.must, b.must), block.code.and_(never_a, never_b)
        )
        return Truth(must, block.code.not_(same))

    def float(self, value: SSAValue) -> FloatEnds:
        """Return the ends of a float."""
        found = self._floats.get(value)
        if found is None:
            found = self._floats[value] = self._float(value)
        return found

    def _float(self, value: SSAValue) -> FloatEnds:
        axis, op = self.facts.pair(value), value.owner
        if axis == NOTHING:
            return self.floats.point(self.block.copy.value(value))
        if axis != PAIR:
            return FloatEnds(*self.sides[axis].values(value))
        assert isinstance(op, Operation)
        found = None
        match op:
            case arith.SelectOp():
                a, b = self.float(op.lhs), self.float(op.rhs)
                found = self.floats.either_of(self.truth(op.cond), a, b)
            case arith.SIToFPOp() if op.input.type != i1:
                ends = self.integer(op.input)
                lo, hi = (self._converted(op, end) for end in (ends.lo, ends.hi))
                found = FloatEnds(lo, hi, self.block.code.flag(False))
            case _:
                if all(is_float(v) for v in op.operands):
                    ends = [self.float(v) for v in op.operands]
                    found = self.floats.transfer(op, ends)
        return self._point_float(op) if found is None else found

    def _converted(self, op: arith.SIToFPOp, end: Wide) -> SSAValue:
        integer = self.integers.narrowed(end, op.input.type)
        return self.block.code.insert(arith.SIToFPOp(integer, op.result.type))

    def _at_point(self, op: Operation) -> tuple[SSAValue, SSAValue]:
        """Return an op's result for uniform operands, and a flag that they are
        uniform.
        """
        known: list[SSAValue] = []
        if any(self._differs_by_column(v) for v in op.operands):
            self.block.note(op.results[0], "differs from pair to pair")
            known.append(self.block.code.flag(False))
        elif not isinstance(op, flex.LoadCaptureOp):
            self.block.note(op.results[0], f"{op.name} has no bounds that are known")
        values: dict[SSAValue, SSAValue] = {}
        for operand in op.operands:
            values[operand] = self._only_value(operand, known)
        return self.block.code.insert(op.clone(values)), self.block.code.all_of(known)

    def _differs_by_column(self, value: SSAValue) -> bool:
        """Return True if an integer has different values in different columns."""
        if value.type == i1 or not is_integer(value.type):
            return False
        return any(v is self.facts.column for v, _ in self.facts.linear(value).terms)

    def _only_value(self, value: SSAValue, known: list[SSAValue]) -> SSAValue:
        code, block = self.block.code, self.block
        if isinstance(value.type, TensorType) or not self.facts.pair(value):
            return block.copy.value(value)
        if value.type == i1:
            truth = self.truth(value)
            known.append(block.code.not_(self._differ(truth, truth).may))
            return truth.must
        if is_float(value):
            ends = self.float(value)
            known.append(code.cmpf("oeq", ends.lo, ends.hi))
            known.append(block.code.not_(ends.nan))
            return ends.lo
        ends = self.integer(value)
        known.append(self.integers.cmp("eq", ends.lo, ends.hi))
        return self.integers.narrowed(ends.lo, value.type)

    def _point_integer(self, op: Operation) -> Ends:
        value, known = self._at_point(op)
        width = width_of(value.type)
        end = self.integers.extended(value, intervals.full(width))
        return self.integers.known(known, self.integers.point(end), width)

    def _point_truth(self, op: Operation) -> Flags:
        value, known = self._at_point(op)
        block = self.block
        unknown = block.code.not_(known)
        return Truth(block.code.and_(value, known), block.code.or_(value, unknown))

    def _point_float(self, op: Operation) -> FloatEnds:
        value, known = self._at_point(op)
        return self.floats.point(value, known)
