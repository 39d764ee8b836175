"""Emit interval arithmetic on integers.

Ends of intervals are i64 values with ranges that are known at compile time. A sum that
may overflow i64 saturates: comparisons with any i64 then have the result of the true
sum. The ends of an op's result lie within the op's type. If the op may wrap around,
they are the ends of the type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import IntegerType, i1, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.utils.hints import isa

from flexc.dialects.constants import int_constant
from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.intervals import (
    ArithmeticRules,
    Bounds,
    Interval,
    N,
    OrderRules,
    Truth,
)
from flexc.passes.scalar.ranges.value_ranges import width_of
from flexc.passes.scalar.scalar_code import ScalarCode, op_key
from flexc.passes.scalar.variation import MaskFacts

WHOLE = intervals.full(64)

FACTORS = Interval(-(1 << 31), 1 << 31)
"""The range of factors whose product fits i64."""


class SharingCode(ScalarCode):
    """A builder that never inserts two equal ops, because formulas repeat much."""

    def __init__(self, at: Block):
        super().__init__(at)
        self._seen: dict[object, Operation] = {}

    def insert(self, op: Operation, name: str | None = None) -> SSAValue:
        first = self._seen.setdefault(op_key(op), op)
        if first is op:
            return super().insert(op, name)
        op.drop_all_references()
        return first.results[0]

    def all_of(self, flags: Sequence[SSAValue]) -> SSAValue:
        return reduce(self.and_, flags) if flags else self.flag(True)

    def any_of(self, flags: Sequence[SSAValue]) -> SSAValue:
        return reduce(self.or_, flags) if flags else self.flag(False)


@dataclass(frozen=True)
class Wide:
    """An i64 value, with its range as known at compile time."""

    value: SSAValue
    range: Interval


class FlagRules(OrderRules[N, SSAValue]):
    """Rules of intervals whose flags are values of type i1."""

    code: SharingCode

    def both(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.code.and_(a, b)

    def inverse(self, a: SSAValue) -> SSAValue:
        return self.code.not_(a)


Ends = Bounds[Wide]
Flags = Truth[SSAValue]


def within_i64(lo: int, hi: int) -> Interval:
    """Return lo .. hi, clamped to i64."""
    return Interval(*(max(WHOLE.lo, min(WHOLE.hi, x)) for x in (lo, hi)))


class IntegerCode(ArithmeticRules[Wide, SSAValue], FlagRules[Wide]):
    """A builder of interval arithmetic on integers."""

    def __init__(self, code: SharingCode):
        self.code = code

    def const(self, value: int) -> Wide:
        return Wide(self.code.const(value, i64), intervals.point(value))

    def extended(self, value: SSAValue, known: Interval) -> Wide:
        """Return an integer of any type as i64, read as signed."""
        if value.type == i1:
            return Wide(self.code.insert(arith.ExtSIOp(value, i64)), known)
        return Wide(self.code.int_cast(value, i64), known)

    def narrowed(self, a: Wide, type_: Attribute) -> SSAValue:
        """Return the integer converted to a type that holds it."""
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
        flips = [code.xor(x, total) for x in (a, b)]
        wrapped = code.cmp("slt", code.and_(flips[0], flips[1]), zero)
        least, greatest = (code.const(x, i64) for x in (WHOLE.lo, WHOLE.hi))
        end = code.select(code.cmp("slt", a, zero), least, greatest)
        return code.select(wrapped, end, total)

    def sub(self, a: Wide, b: Wide) -> Wide:
        difference = self.code.sub(a.value, b.value)
        lo, hi = a.range.lo - b.range.hi, a.range.hi - b.range.lo
        if not Interval(lo, hi).within(WHOLE):
            # a - b is a + ~b + 1, and wraps around where signs differ as in a + ~b.
            opposite = self.code.xor(b.value, self.code.const(-1, i64))
            difference = self._saturated(difference, a.value, opposite)
        return Wide(difference, within_i64(lo, hi))

    def plus(self, a: Wide, value: int) -> Wide:
        return a if value == 0 else self.add(a, self.const(value))

    def times(self, a: Wide, factor: int) -> Wide:
        """Return a multiple, which the caller must know to fit unless factor is 1 or
        -1.
        """
        if factor in (1, -1):
            return a if factor == 1 else self.sub(self.const(0), a)
        known = [a.range.lo * factor, a.range.hi * factor]
        exact = Interval(min(known), max(known))
        assert exact.within(WHOLE), "expected a product within i64"
        return Wide(self.code.mul(a.value, self.code.const(factor, i64)), exact)

    def min(self, a: Wide, b: Wide) -> Wide:
        value = self.code.min(a.value, b.value)
        return Wide(value, intervals.minimum(a.range, b.range, 64))

    def max(self, a: Wide, b: Wide) -> Wide:
        value = self.code.max(a.value, b.value)
        return Wide(value, intervals.maximum(a.range, b.range, 64))

    def mul(self, a: Wide, b: Wide) -> Wide:
        """Multiply numbers. The caller must know that the product fits."""
        return Wide(self.code.mul(a.value, b.value), WHOLE)

    def cmp(self, test: str, a: Wide, b: Wide) -> SSAValue:
        predicate = test if test in ("eq", "ne") else "s" + test
        return self.code.cmp(predicate, a.value, b.value)

    def select(self, condition: SSAValue, a: Wide, b: Wide) -> Wide:
        value = self.code.select(condition, a.value, b.value)
        return Wide(value, intervals.union(a.range, b.range))

    def modulo(self, a: Wide, divisor: Wide) -> Wide:
        """Return the remainder of floor division by a positive number."""
        code, zero = self.code, self.code.const(0, i64)
        rest = code.rem(a.value, divisor.value)
        mended = code.add(rest, divisor.value)
        value = code.select(code.cmp("slt", rest, zero), mended, rest)
        return Wide(value, Interval(0, max(divisor.range.hi - 1, 0)))

    def floor_div(self, a: Wide, divisor: Wide) -> Wide:
        """Return the floor of a quotient by a positive number."""
        value = self.code.insert(arith.FloorDivSIOp(a.value, divisor.value))
        return Wide(value, intervals.union(a.range, Interval(-1, 0)))

    def point(self, a: Wide) -> Ends:
        return Ends(a, a)

    def ends(self, known: Interval) -> Ends:
        """Return constant ends."""
        return Ends(self.const(known.lo), self.const(known.hi))

    def ends_times(self, a: Ends, factor: int) -> Ends:
        scaled = [self.times(x, factor) for x in (a.lo, a.hi)]
        return Ends(*(scaled if factor >= 0 else reversed(scaled)))

    def known(self, condition: SSAValue, ends: Ends, width: int) -> Ends:
        """Return the ends if a condition is true, else the ends of the type."""
        whole = self.ends(intervals.full(width))
        lo = self.select(condition, ends.lo, whole.lo)
        return Ends(lo, self.select(condition, ends.hi, whole.hi))

    def fitting(self, ends: Ends, width: int, exact: bool = False) -> Ends:
        """Return the ends of wrapped results, given the ends of exact results.

        `exact` says that the op does not wrap around, so that the ends can be clamped.
        """
        whole = intervals.full(width)
        if width == 64:
            # Saturated ends are not known to fit.
            whole = Interval(whole.lo + 1, whole.hi - 1)
        if ends.lo.range.within(whole) and ends.hi.range.within(whole):
            return ends
        lo, hi = (self.const(x) for x in (whole.lo, whole.hi))
        if exact:
            whole = intervals.full(width)
            lo, hi = (self.const(x) for x in (whole.lo, whole.hi))
            return Ends(self.max(ends.lo, lo), self.min(ends.hi, hi))
        fits = self.both(self.cmp("ge", ends.lo, lo), self.cmp("le", ends.hi, hi))
        return self.known(fits, ends, width)

    def transfer(
        self, op: Operation, of: Callable[[SSAValue], Ends], facts: MaskFacts
    ) -> Ends | None:
        """Return the range of an op's result; None if the op has no rule."""
        width = width_of(op.results[0].type)
        match op:
            case arith.AddiOp():
                total = self.sum(of(op.lhs), of(op.rhs))
            case arith.SubiOp():
                total = self.difference(of(op.lhs), of(op.rhs))
            case arith.MuliOp():
                total = self.product(of(op.lhs), of(op.rhs))
            case arith.ShLIOp():
                amount = int_constant(op.rhs)
                if amount is None or not 0 <= amount < FACTORS.hi.bit_length():
                    return None
                factor = self.point(self.const(1 << amount))
                total = self.product(of(op.lhs), factor)
            case arith.MinSIOp() | arith.MaxSIOp():
                least = isinstance(op, arith.MinSIOp)
                pick = self.minimum if least else self.maximum
                return pick(of(op.lhs), of(op.rhs))
            case math_dialect.AbsIOp():
                total = self.absolute(of(op.operands[0]))
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

    def product(self, a: Ends, b: Ends) -> Ends:
        """Return the range of products; all of i64 if a factor is too large."""
        exact = super().product(a, b)
        lo, hi = self.const(FACTORS.lo), self.const(FACTORS.hi)
        large = [x for x in (a.lo, a.hi, b.lo, b.hi) if not x.range.within(FACTORS)]
        fits = [self.cmp("ge", x, lo) for x in large]
        fits += [self.cmp("le", x, hi) for x in large]
        return self.known(self.code.all_of(fits), exact, 64) if fits else exact

    def _zero_extended(self, a: Ends, width: int) -> Ends:
        zero = self.const(0)
        top = self.const(min((1 << width) - 1, WHOLE.hi))
        nonnegative = self.cmp("ge", a.lo, zero)
        return Ends(
            self.select(nonnegative, a.lo, zero), self.select(nonnegative, a.hi, top)
        )

    def modulo_range(self, a: Ends, divisor: Wide, width: int) -> Ends:
        """Return the range of the remainders by a uniform divisor."""
        quotients = [self.floor_div(x, divisor) for x in (a.lo, a.hi)]
        same = self.cmp("eq", *quotients)
        largest = self.plus(divisor, -1)
        lo = self.select(same, self.modulo(a.lo, divisor), self.const(0))
        hi = self.select(same, self.modulo(a.hi, divisor), largest)
        return self._by_positive(Ends(lo, hi), divisor, width)

    def quotient_range(self, a: Ends, divisor: Wide, width: int) -> Ends:
        """Return the range of floored quotients by a uniform divisor."""
        ends = Ends(*(self.floor_div(x, divisor) for x in (a.lo, a.hi)))
        return self._by_positive(ends, divisor, width)

    def _by_positive(self, ends: Ends, divisor: Wide, width: int) -> Ends:
        if divisor.range.lo > 0:
            return ends
        return self.known(self.cmp("gt", divisor, self.const(0)), ends, width)

    def _bits(
        self, op: arith.AndIOp | arith.OrIOp | arith.XOrIOp, a: Ends, b: Ends
    ) -> Ends:
        """Return the range of a bitwise op, from the leading bits that ends share."""
        code, varying_a, varying_b = self.code, self._varying(a), self._varying(b)
        bits_a, bits_b = a.lo.value, b.lo.value
        if isinstance(op, arith.XOrIOp):
            varying = code.or_(varying_a, varying_b)
            bits = code.xor(bits_a, bits_b)
            lo = code.and_(bits, self._complement(varying))
            hi = code.or_(bits, varying)
        else:
            known_a = code.and_(bits_a, self._complement(varying_a))
            known_b = code.and_(bits_b, self._complement(varying_b))
            lo = code.insert(type(op)(known_a, known_b))
            most_a = code.or_(bits_a, varying_a)
            most_b = code.or_(bits_b, varying_b)
            hi = code.insert(type(op)(most_a, most_b))
        ends = Ends(Wide(lo, WHOLE), Wide(hi, WHOLE))
        # If the sign is not known, lo may not be the lower end.
        ordered = self.cmp("le", ends.lo, ends.hi)
        return self.known(ordered, ends, width_of(op.result.type))

    def _complement(self, value: SSAValue) -> SSAValue:
        return self.code.xor(value, self.code.const(-1, i64))

    def _varying(self, a: Ends) -> SSAValue:
        """Return a mask of all bits up to the highest bit in which the ends differ."""
        code = self.code
        bits = code.xor(a.lo.value, a.hi.value)
        for shift in (1, 2, 4, 8, 16, 32):
            amount = code.const(shift, i64)
            bits = code.or_(bits, code.insert(arith.ShRUIOp(bits, amount)))
        return bits

    def of_truth(self, truth: Flags, one: int) -> Ends:
        """Return the ends of a condition as an integer: `one` if true, else 0."""
        true, false = self.const(one), self.const(0)
        must, may = (self.select(x, true, false) for x in (truth.must, truth.may))
        return Ends(must, may) if one > 0 else Ends(may, must)

    def compare_by(self, predicate: str, a: Ends, b: Ends) -> Flags:
        """Compare all pairs of members by an `arith.cmpi` predicate."""
        if predicate in ("eq", "ne"):
            return self.compare(predicate, a, b)
        found = self.compare(predicate[1:], a, b)
        if predicate[0] == "s":
            return found
        zero = self.const(0)
        same = self.both(self.cmp("ge", a.lo, zero), self.cmp("ge", b.lo, zero))
        must = self.both(found.must, same)
        return Truth(must, self.code.or_(found.may, self.inverse(same)))
