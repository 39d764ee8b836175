"""Emitted arithmetic on the ends of intervals, which never wraps around.

Ends are i64 and carry what is known of them when code is written. A sum that
might leave i64 saturates: compared with any i64 it is then what the true sum is.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, i1, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.utils.hints import isa

from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.scalar.scalar_code import ScalarCode

WHOLE = intervals.full(64)


@dataclass(frozen=True)
class Wide:
    """An i64, and the integers that it may be."""

    value: SSAValue
    range: Interval


@dataclass(frozen=True)
class Ends:
    """The smallest and the largest of some integers."""

    lo: Wide
    hi: Wide


def within_i64(lo: int, hi: int) -> Interval:
    """lo .. hi, saturated."""
    return Interval(*(max(WHOLE.lo, min(WHOLE.hi, x)) for x in (lo, hi)))


class WideCode:
    """Appends arithmetic on `Wide` numbers."""

    def __init__(self, code: ScalarCode):
        self.code = code

    def const(self, value: int) -> Wide:
        return Wide(self.code.const(value, i64), intervals.point(value))

    def extended(self, value: SSAValue, known: Interval) -> Wide:
        """An integer of any type, read as signed."""
        if value.type == i1:
            return Wide(self.code.insert(arith.ExtSIOp(value, i64)), known)
        return Wide(self.code.int_cast(value, i64), known)

    def narrowed(self, a: Wide, type_: Attribute) -> SSAValue:
        """The integer as one of a type that holds it."""
        assert isa(type_, IntegerType)
        return self.code.int_cast(a.value, type_)

    def add(self, a: Wide, b: Wide) -> Wide:
        total = self.code.add(a.value, b.value)
        lo, hi = a.range.lo + b.range.lo, a.range.hi + b.range.hi
        if not Interval(lo, hi).within(WHOLE):
            total = self._saturated(total, a.value, b.value)
        return Wide(total, within_i64(lo, hi))

    def _saturated(self, total: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
        code, zero = self.code, self.code.const(0, i64)
        flips = [code.insert(arith.XOrIOp(x, total)) for x in (a, b)]
        wrapped = code.cmp("slt", code.and_(flips[0], flips[1]), zero)
        least, greatest = (code.const(x, i64) for x in (WHOLE.lo, WHOLE.hi))
        end = code.select(code.cmp("slt", a, zero), least, greatest)
        return code.select(wrapped, end, total)

    def negated(self, a: Wide) -> Wide:
        if a.range.lo == WHOLE.lo:
            a = self.max(a, self.const(WHOLE.lo + 1))
        zero = self.code.const(0, i64)
        value = self.code.sub(zero, a.value)
        return Wide(value, Interval(-a.range.hi, -a.range.lo))

    def sub(self, a: Wide, b: Wide) -> Wide:
        return self.add(a, self.negated(b))

    def plus(self, a: Wide, value: int) -> Wide:
        return a if value == 0 else self.add(a, self.const(value))

    def times(self, a: Wide, factor: int) -> Wide:
        """A multiple, which the caller knows to fit; of 1 and -1 always."""
        if factor in (1, -1):
            return a if factor == 1 else self.negated(a)
        known = [a.range.lo * factor, a.range.hi * factor]
        exact = Interval(min(known), max(known))
        assert exact.within(WHOLE), "expected a product within i64"
        return Wide(self.code.mul(a.value, self.code.const(factor, i64)), exact)

    def min(self, a: Wide, b: Wide) -> Wide:
        value = self.code.insert(arith.MinSIOp(a.value, b.value))
        return Wide(value, intervals.minimum(a.range, b.range, 64))

    def max(self, a: Wide, b: Wide) -> Wide:
        value = self.code.insert(arith.MaxSIOp(a.value, b.value))
        return Wide(value, intervals.maximum(a.range, b.range, 64))

    def cmp(self, predicate: str, a: Wide, b: Wide) -> SSAValue:
        return self.code.cmp(predicate, a.value, b.value)

    def select(self, condition: SSAValue, a: Wide, b: Wide) -> Wide:
        value = self.code.select(condition, a.value, b.value)
        return Wide(value, intervals.union(a.range, b.range))

    def modulo(self, a: Wide, divisor: Wide) -> Wide:
        """What floor division by a positive number leaves."""
        code, zero = self.code, self.code.const(0, i64)
        rest = code.rem(a.value, divisor.value)
        mended = code.add(rest, divisor.value)
        value = code.select(code.cmp("slt", rest, zero), mended, rest)
        return Wide(value, Interval(0, max(divisor.range.hi - 1, 0)))

    def floor_div(self, a: Wide, divisor: Wide) -> Wide:
        """The floor of a quotient by a positive number."""
        value = self.code.insert(arith.FloorDivSIOp(a.value, divisor.value))
        return Wide(value, intervals.union(a.range, Interval(-1, 0)))

    # Ends of intervals

    def point(self, a: Wide) -> Ends:
        return Ends(a, a)

    def ends(self, known: Interval) -> Ends:
        """Constant ends."""
        return Ends(self.const(known.lo), self.const(known.hi))

    def ends_sum(self, a: Ends, b: Ends) -> Ends:
        return Ends(self.add(a.lo, b.lo), self.add(a.hi, b.hi))

    def ends_negated(self, a: Ends) -> Ends:
        return Ends(self.negated(a.hi), self.negated(a.lo))

    def ends_times(self, a: Ends, factor: int) -> Ends:
        scaled = [self.times(x, factor) for x in (a.lo, a.hi)]
        return Ends(*(scaled if factor >= 0 else reversed(scaled)))

    def hull(self, candidates: list[Wide]) -> Ends:
        """The smallest and the largest of some numbers."""
        lo = hi = candidates[0]
        for other in candidates[1:]:
            lo, hi = self.min(lo, other), self.max(hi, other)
        return Ends(lo, hi)
