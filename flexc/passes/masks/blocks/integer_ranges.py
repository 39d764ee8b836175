"""Emitted interval arithmetic on integers.

The ends of results lie within the operation's type: where it may have wrapped
around, they are those of the type.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import i64
from xdsl.ir import Operation, SSAValue

from flexc.passes.masks.blocks.block_code import BlockCode
from flexc.passes.masks.blocks.float_ranges import Truth
from flexc.passes.masks.blocks.wide_integers import (
    WHOLE,
    Ends,
    Wide,
)
from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.scalar.ranges.linear_forms import MaskFacts, int_constant
from flexc.passes.scalar.ranges.value_ranges import width_of

FACTORS = Interval(-(1 << 31), 1 << 31)
"""Products of two of these fit i64."""


class IntegerCode:
    """Appends interval arithmetic on integers."""

    def __init__(self, block: BlockCode):
        self.block, self.wide, self.code = block, block.wide, block.code

    def known(self, condition: SSAValue, ends: Ends, width: int) -> Ends:
        """Ends that are those of the type where a condition is false."""
        whole = self.wide.ends(intervals.full(width))
        lo = self.wide.select(condition, ends.lo, whole.lo)
        return Ends(lo, self.wide.select(condition, ends.hi, whole.hi))

    def fitting(self, ends: Ends, width: int, exact: bool = False) -> Ends:
        """Ends of true results as those of results of a width."""
        whole = intervals.full(width)
        if width == 64:
            # Ends that saturated are not known to fit.
            whole = Interval(whole.lo + 1, whole.hi - 1)
        if ends.lo.range.within(whole) and ends.hi.range.within(whole):
            return ends
        lo, hi = (self.wide.const(x) for x in (whole.lo, whole.hi))
        if exact:
            whole = intervals.full(width)
            lo, hi = (self.wide.const(x) for x in (whole.lo, whole.hi))
            return Ends(self.wide.max(ends.lo, lo), self.wide.min(ends.hi, hi))
        fits = self.block.both(
            self.wide.cmp("sge", ends.lo, lo), self.wide.cmp("sle", ends.hi, hi)
        )
        return self.known(fits, ends, width)

    def transfer(
        self, op: Operation, of: Callable[[SSAValue], Ends], facts: MaskFacts
    ) -> Ends | None:
        """The range of an op's result; None where there is no rule."""
        wide, width = self.wide, width_of(op.results[0].type)
        match op:
            case arith.AddiOp():
                total = wide.ends_sum(of(op.lhs), of(op.rhs))
            case arith.SubiOp():
                total = wide.ends_sum(of(op.lhs), wide.ends_negated(of(op.rhs)))
            case arith.MuliOp():
                total = self._product(of(op.lhs), of(op.rhs))
            case arith.ShLIOp():
                amount = int_constant(op.rhs)
                if amount is None or not 0 <= amount < FACTORS.hi.bit_length():
                    return None
                factor = wide.point(wide.const(1 << amount))
                total = self._product(of(op.lhs), factor)
            case arith.MinSIOp() | arith.MaxSIOp():
                a, b = of(op.lhs), of(op.rhs)
                pick = wide.min if isinstance(op, arith.MinSIOp) else wide.max
                return Ends(pick(a.lo, b.lo), pick(a.hi, b.hi))
            case math_dialect.AbsIOp():
                total = self._absolute(of(op.operands[0]))
            case arith.AndIOp() | arith.OrIOp() | arith.XOrIOp():
                return self._bits(op, of(op.lhs), of(op.rhs))
            case arith.ExtSIOp():
                return of(op.input)
            case arith.ExtUIOp():
                return self._zero_extended(of(op.input), width_of(op.input.type))
            case arith.TruncIOp():
                return self.fitting(of(op.input), width)
            case _:
                return None
        products = isinstance(op, arith.MuliOp | arith.ShLIOp)
        exact = not products and facts.is_exact(op)
        return self.fitting(total, width, exact)

    def _product(self, a: Ends, b: Ends) -> Ends:
        ends = (a.lo, a.hi, b.lo, b.hi)
        corners = [
            Wide(self.code.mul(x.value, y.value), WHOLE)
            for x in (a.lo, a.hi)
            for y in (b.lo, b.hi)
        ]
        small = [x for x in ends if not x.range.within(FACTORS)]
        lo, hi = (self.wide.const(x) for x in (FACTORS.lo, FACTORS.hi))
        fits = [self.wide.cmp("sge", x, lo) for x in small]
        fits += [self.wide.cmp("sle", x, hi) for x in small]
        hull = self.wide.hull(corners)
        return self.known(self.block.all_of(fits), hull, 64) if fits else hull

    def _absolute(self, a: Ends) -> Ends:
        """max(0, lo, -hi) .. max(-lo, hi)."""
        wide, negated = self.wide, self.wide.ends_negated(a)
        lo = wide.max(wide.max(a.lo, negated.lo), wide.const(0))
        return Ends(lo, wide.max(a.hi, negated.hi))

    def _zero_extended(self, a: Ends, width: int) -> Ends:
        wide, zero = self.wide, self.wide.const(0)
        top = wide.const(min((1 << width) - 1, WHOLE.hi))
        nonnegative = wide.cmp("sge", a.lo, zero)
        return Ends(
            wide.select(nonnegative, a.lo, zero), wide.select(nonnegative, a.hi, top)
        )

    def modulo(self, a: Ends, divisor: Wide, width: int) -> Ends:
        """What floor division leaves, by one divisor for all pairs."""
        wide = self.wide
        quotients = [wide.floor_div(x, divisor) for x in (a.lo, a.hi)]
        same = wide.cmp("eq", *quotients)
        largest = wide.plus(divisor, -1)
        lo = wide.select(same, wide.modulo(a.lo, divisor), wide.const(0))
        hi = wide.select(same, wide.modulo(a.hi, divisor), largest)
        return self._by_positive(Ends(lo, hi), divisor, width)

    def quotient(self, a: Ends, divisor: Wide, width: int) -> Ends:
        """The floor of a quotient by one divisor for all pairs."""
        ends = Ends(*(self.wide.floor_div(x, divisor) for x in (a.lo, a.hi)))
        return self._by_positive(ends, divisor, width)

    def _by_positive(self, ends: Ends, divisor: Wide, width: int) -> Ends:
        if divisor.range.lo > 0:
            return ends
        return self.known(
            self.wide.cmp("sgt", divisor, self.wide.const(0)), ends, width
        )

    def _bits(
        self, op: arith.AndIOp | arith.OrIOp | arith.XOrIOp, a: Ends, b: Ends
    ) -> Ends:
        """Bits above the first that differ between the ends are known."""
        code, varying_a, varying_b = self.code, self._varying(a), self._varying(b)
        bits_a, bits_b = a.lo.value, b.lo.value
        if isinstance(op, arith.XOrIOp):
            varying = code.insert(arith.OrIOp(varying_a, varying_b))
            bits = code.insert(arith.XOrIOp(bits_a, bits_b))
            lo = code.and_(bits, self._inverse(varying))
            hi = code.insert(arith.OrIOp(bits, varying))
        else:
            known_a = code.and_(bits_a, self._inverse(varying_a))
            known_b = code.and_(bits_b, self._inverse(varying_b))
            lo = code.insert(type(op)(known_a, known_b))
            most_a = code.insert(arith.OrIOp(bits_a, varying_a))
            most_b = code.insert(arith.OrIOp(bits_b, varying_b))
            hi = code.insert(type(op)(most_a, most_b))
        ends = Ends(Wide(lo, WHOLE), Wide(hi, WHOLE))
        # Where the sign is not known, lo is no lower end.
        ordered = self.wide.cmp("sle", ends.lo, ends.hi)
        return self.known(ordered, ends, width_of(op.result.type))

    def _inverse(self, value: SSAValue) -> SSAValue:
        return self.code.insert(arith.XOrIOp(value, self.code.const(-1, i64)))

    def _varying(self, a: Ends) -> SSAValue:
        """Ones from the highest bit down in which the ends differ."""
        code = self.code
        bits = code.insert(arith.XOrIOp(a.lo.value, a.hi.value))
        for shift in (1, 2, 4, 8, 16, 32):
            amount = code.const(shift, i64)
            bits = code.insert(
                arith.OrIOp(bits, code.insert(arith.ShRUIOp(bits, amount)))
            )
        return bits

    def chosen(self, condition: Truth, a: Ends, b: Ends) -> Ends:
        """Either, as a condition says."""
        never, select = self.block.inverse(condition.may), self.wide.select
        lo, hi = self.wide.min(a.lo, b.lo), self.wide.max(a.hi, b.hi)
        lo = select(condition.must, a.lo, select(never, b.lo, lo))
        return Ends(lo, select(condition.must, a.hi, select(never, b.hi, hi)))

    def of_truth(self, truth: Truth, one: int) -> Ends:
        """A condition as 0 and the number that is true."""
        true, false = self.wide.const(one), self.wide.const(0)
        must, may = (self.wide.select(x, true, false) for x in (truth.must, truth.may))
        return Ends(must, may) if one > 0 else Ends(may, must)

    def compare(self, predicate: str, a: Ends, b: Ends) -> Truth:
        """What a comparison of all pairs of two ranges says."""
        cmp, block = self.wide.cmp, self.block
        match predicate:
            case "slt" | "sle":
                return Truth(cmp(predicate, a.hi, b.lo), cmp(predicate, a.lo, b.hi))
            case "sgt" | "sge":
                return Truth(cmp(predicate, a.lo, b.hi), cmp(predicate, a.hi, b.lo))
            case "eq":
                must = block.both(cmp("eq", a.lo, b.hi), cmp("eq", a.hi, b.lo))
                may = block.both(cmp("sle", a.lo, b.hi), cmp("sge", a.hi, b.lo))
                return Truth(must, may)
            case "ne":
                equal = self.compare("eq", a, b)
                return Truth(block.inverse(equal.may), block.inverse(equal.must))
            case _:
                signed = self.compare("s" + predicate[1:], a, b)
                zero = self.wide.const(0)
                same = block.both(cmp("sge", a.lo, zero), cmp("sge", b.lo, zero))
                other = block.inverse(same)
                return Truth(
                    block.both(signed.must, same), block.either(signed.may, other)
                )
