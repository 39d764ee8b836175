"""Interval arithmetic on the values of a mask over a block of pairs, as code.

What varies along rows alone or columns alone is exact. What varies along both is
computed from the ends of its operands; an operation without a rule of its own is
known where its operands are the same for all pairs of the block.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import TensorType, i1
from xdsl.ir import Operation, SSAValue

from flexc.dialects import flex
from flexc.passes.masks.blocks.block_code import BlockCode
from flexc.passes.masks.blocks.block_sides import Side
from flexc.passes.masks.blocks.float_ranges import (
    FloatCode,
    FloatEnds,
    Truth,
    is_float,
)
from flexc.passes.masks.blocks.integer_ranges import IntegerCode
from flexc.passes.masks.blocks.wide_integers import Ends, Wide
from flexc.passes.scalar.canonicalization.site import is_integer
from flexc.passes.scalar.dependence import (
    NOTHING,
    PAIR,
    Along,
)
from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.division_spelling import floor_modulo, floor_quotient
from flexc.passes.scalar.ranges.linear_forms import Linear
from flexc.passes.scalar.ranges.value_ranges import width_of


class BlockRanges:
    """Ranges of values over the pairs of some rows and some columns."""

    def __init__(self, block: BlockCode, rows: Side, columns: Side):
        self.block, self.facts, self.wide = block, block.facts, block.wide
        self.sides = {Along.ROW: rows, Along.COLUMN: columns}
        self.floats, self.integers = FloatCode(block), IntegerCode(block)
        self._ends: dict[SSAValue, Ends] = {}
        self._truths: dict[SSAValue, Truth] = {}
        self._floats: dict[SSAValue, FloatEnds] = {}

    # Integers

    def form(self, form: Linear) -> Ends:
        """The ends of a sum."""
        total: Ends | None = None
        for axis, side in self.sides.items():
            part = self.facts.part(form, axis)
            if part.terms:
                ends = side.linear(part)
                total = ends if total is None else self.wide.ends_sum(total, ends)
        for value, factor in self.facts.part(form, PAIR).terms:
            ends = self.wide.ends_times(self.integer(value), factor)
            total = ends if total is None else self.wide.ends_sum(total, ends)
        uniform = self.facts.part(form, NOTHING).plus(form.const)
        if total is None or uniform != Linear():
            ends = self.wide.point(self.block.uniform(uniform))
            total = ends if total is None else self.wide.ends_sum(total, ends)
        return total

    def integer(self, value: SSAValue) -> Ends:
        """The ends of an integer."""
        found = self._ends.get(value)
        if found is None:
            found = self._clamped(self._integer(value), value)
            self._ends[value] = found
        return found

    def _clamped(self, ends: Ends, value: SSAValue) -> Ends:
        """Within what the value is known to be anyhow."""
        known, lo, hi = self.facts.ranges[value], ends.lo, ends.hi
        if not lo.range.within(known):
            lo = self.wide.max(lo, self.wide.const(known.lo))
        if not hi.range.within(known):
            hi = self.wide.min(hi, self.wide.const(known.hi))
        return Ends(Wide(lo.value, known), Wide(hi.value, known))

    def _integer(self, value: SSAValue) -> Ends:
        axis, op = self.facts.pair(value), value.owner
        if axis == NOTHING:
            copied = self.block.copy.value(value)
            return self.wide.point(self.wide.extended(copied, self.facts.ranges[value]))
        if axis != PAIR:
            return self.sides[axis].linear(Linear(((value, 1),)))
        assert isinstance(op, Operation)
        form = self.facts.linear(value)
        if form.terms != ((value, 1),) and self.facts.is_moderate(form):
            return self.form(form)
        found = self._divided(value) or self._mixed(op)
        return self._point_integer(op) if found is None else found

    def _divided(self, value: SSAValue) -> Ends | None:
        """Floor division and its remainder by numbers that are one for all pairs."""
        modulo = floor_modulo(value, self.facts.ranges)
        found = modulo or floor_quotient(value, self.facts.ranges)
        if found is None:
            return None
        dividend, divisor = found
        if isinstance(divisor, int):
            by = self.wide.const(divisor)
        elif self.facts.pair(divisor):
            return None
        else:
            by = self.integer(divisor).lo
        divide = self.integers.modulo if modulo else self.integers.quotient
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

    # Conditions

    def truth(self, value: SSAValue) -> Truth:
        """Whether a value of type i1 is true for all and for some pairs."""
        found = self._truths.get(value)
        if found is None:
            found = self._truths[value] = self._truth(value)
        return found

    def _truth(self, value: SSAValue) -> Truth:
        axis, op, block = self.facts.pair(value), value.owner, self.block
        if axis == NOTHING:
            return Truth(*[block.copy.value(value)] * 2)
        if axis != PAIR:
            return Truth(*self.sides[axis].values(value))
        match op:
            case arith.AndIOp() | arith.OrIOp():
                a, b = self.truth(op.lhs), self.truth(op.rhs)
                join = block.both if isinstance(op, arith.AndIOp) else block.either
                return Truth(join(a.must, b.must), join(a.may, b.may))
            case arith.XOrIOp():
                return self._differ(self.truth(op.lhs), self.truth(op.rhs))
            case arith.CmpiOp() if op.lhs.type != i1:
                name = arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]
                a, b = self.integer(op.lhs), self.integer(op.rhs)
                return self.integers.compare(name, a, b)
            case arith.CmpfOp():
                name = arith.CMPF_COMPARISON_OPERATIONS[op.predicate.value.data]
                a, b = self.float(op.lhs), self.float(op.rhs)
                return self.floats.compare(name, a, b)
            case _:
                assert isinstance(op, Operation)
                return self._point_truth(op)

    def _differ(self, a: Truth, b: Truth) -> Truth:
        block = self.block
        never_a, never_b = block.inverse(a.may), block.inverse(b.may)
        must = block.either(block.both(a.must, never_b), block.both(never_a, b.must))
        same = block.either(block.both(a.must, b.must), block.both(never_a, never_b))
        return Truth(must, block.inverse(same))

    # Floats

    def float(self, value: SSAValue) -> FloatEnds:
        """The ends of a floating-point number."""
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
                found = self.floats.chosen(self.truth(op.cond), a, b)
            case arith.SIToFPOp() if op.input.type != i1:
                ends = self.integer(op.input)
                lo, hi = (self._converted(op, end) for end in (ends.lo, ends.hi))
                found = FloatEnds(lo, hi, self.block.flag(False))
            case _:
                if all(is_float(v) for v in op.operands):
                    ends = [self.float(v) for v in op.operands]
                    found = self.floats.transfer(op, ends)
        return self._point_float(op) if found is None else found

    def _converted(self, op: arith.SIToFPOp, end: Wide) -> SSAValue:
        integer = self.wide.narrowed(end, op.input.type)
        return self.block.code.insert(arith.SIToFPOp(integer, op.result.type))

    # Anything, where it is the same for all pairs

    def _at_point(self, op: Operation) -> tuple[SSAValue, SSAValue]:
        """An op's result for operands that are one for all pairs; whether they are."""
        known: list[SSAValue] = []
        if any(self._differs_by_column(v) for v in op.operands):
            self.block.note(op.results[0], "differs from pair to pair")
            known.append(self.block.flag(False))
        elif not isinstance(op, flex.LoadCaptureOp):
            self.block.note(op.results[0], f"{op.name} has no bounds that are known")
        values: dict[SSAValue, SSAValue] = {}
        for operand in op.operands:
            values[operand] = self._only_value(operand, known)
        return self.block.code.insert(op.clone(values)), self.block.all_of(known)

    def _differs_by_column(self, value: SSAValue) -> bool:
        """Whether an integer is another in each column: blocks have several."""
        if value.type == i1 or not is_integer(value.type):
            return False
        return any(v is self.facts.column for v, _ in self.facts.linear(value).terms)

    def _only_value(self, value: SSAValue, known: list[SSAValue]) -> SSAValue:
        code, block = self.block.code, self.block
        if isinstance(value.type, TensorType) or not self.facts.pair(value):
            return block.copy.value(value)
        if value.type == i1:
            truth = self.truth(value)
            known.append(block.inverse(self._differ(truth, truth).may))
            return truth.must
        if is_float(value):
            ends = self.float(value)
            known.append(code.cmpf("oeq", ends.lo, ends.hi))
            known.append(block.inverse(ends.nan))
            return ends.lo
        ends = self.integer(value)
        known.append(self.wide.cmp("eq", ends.lo, ends.hi))
        return self.wide.narrowed(ends.lo, value.type)

    def _point_integer(self, op: Operation) -> Ends:
        value, known = self._at_point(op)
        width = width_of(value.type)
        end = self.wide.extended(value, intervals.full(width))
        return self.integers.known(known, self.wide.point(end), width)

    def _point_truth(self, op: Operation) -> Truth:
        value, known = self._at_point(op)
        block = self.block
        unknown = block.inverse(known)
        return Truth(block.both(value, known), block.either(value, unknown))

    def _point_float(self, op: Operation) -> FloatEnds:
        value, known = self._at_point(op)
        return self.floats.point(value, known)
