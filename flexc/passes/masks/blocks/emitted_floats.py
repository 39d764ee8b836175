"""Emit interval arithmetic on floating-point numbers.

Rounded sums and products are monotonic, so their ends are the results for the operands'
ends, rounded in the same way. No widening is needed. NaNs are not in intervals. A flag
says that there may be NaNs, and comparisons treat NaNs as IEEE 754 does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import Attribute, Operation, SSAValue

from flexc.passes.masks.blocks.emitted_integers import FlagRules, Flags, SharingCode
from flexc.passes.scalar.ranges.intervals import Bounds, Truth


@dataclass(frozen=True)
class FloatEnds(Bounds[SSAValue]):
    """The smallest and the largest of some numbers, and a flag for NaNs."""

    nan: SSAValue


RISING = (
    arith.ExtFOp,
    arith.TruncFOp,
    math_dialect.FloorOp,
    math_dialect.CeilOp,
    math_dialect.TruncOp,
    math_dialect.RoundEvenOp,
)
"""Functions of one number that round and never fall."""

ORDERED = {
    "uge": "olt",
    "ugt": "ole",
    "ule": "ogt",
    "ult": "oge",
    "une": "oeq",
    "ueq": "one",
    "uno": "ord",
}
"""Unordered predicates, mapped to the ordered predicates that they negate."""


class FloatCode(FlagRules[SSAValue]):
    """A builder of interval arithmetic on floats."""

    def __init__(self, code: SharingCode):
        self.code = code

    def min(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.code.insert(arith.MinimumfOp(a, b))

    def max(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.code.insert(arith.MaximumfOp(a, b))

    def cmp(self, test: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.code.cmpf("o" + test, a, b)

    def select(self, condition: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.code.select(condition, a, b)

    def infinity(self, type_: Attribute, sign: int = 1) -> SSAValue:
        return self.code.const(sign * math.inf, type_)

    def point(self, value: SSAValue, known: SSAValue | None = None) -> FloatEnds:
        """Return the interval of one number; of all numbers where `known` is false."""
        code = self.code
        nan = code.cmpf("uno", value, value)
        up, down = (self.infinity(value.type, s) for s in (1, -1))
        lo, hi = code.select(nan, up, value), code.select(nan, down, value)
        if known is None:
            return FloatEnds(lo, hi, nan)
        nan = code.or_(nan, code.not_(known))
        return FloatEnds(code.select(known, lo, down), code.select(known, hi, up), nan)

    def guarded(self, lo: SSAValue, hi: SSAValue, nan: SSAValue) -> FloatEnds:
        """Return the ends, or the infinities if there may be a NaN."""
        up, down = (self.infinity(lo.type, s) for s in (1, -1))
        select = self.code.select
        return FloatEnds(select(nan, down, lo), select(nan, up, hi), nan)

    def transfer(self, op: Operation, ends: Sequence[FloatEnds]) -> FloatEnds | None:
        """Return the range of an op's result; None if the op has no rule."""
        insert, a, b = self.code.insert, ends[0], ends[-1]
        match op:
            case arith.NegfOp():
                lo, hi = (insert(arith.NegfOp(x)) for x in (a.hi, a.lo))
                return FloatEnds(lo, hi, a.nan)
            case arith.AddfOp():
                return self._corners(arith.AddfOp, a, b, [])
            case arith.SubfOp():
                return self._corners(arith.SubfOp, a, b, [])
            case arith.MulfOp():
                zero_times = [self._zero_and_infinity(*p) for p in ((a, b), (b, a))]
                return self._corners(arith.MulfOp, a, b, zero_times)
            case arith.MaximumfOp() | arith.MinimumfOp():
                least = isinstance(op, arith.MinimumfOp)
                found = self.minimum(a, b) if least else self.maximum(a, b)
                return self.guarded(found.lo, found.hi, self.code.or_(a.nan, b.nan))
            case math_dialect.AbsFOp():
                low, high = (insert(math_dialect.AbsFOp(x)) for x in (a.lo, a.hi))
                zero = self.code.const(0.0, a.lo.type)
                negated = insert(arith.NegfOp(a.hi))
                lo = self.max(self.max(a.lo, negated), zero)
                return FloatEnds(lo, self.max(low, high), a.nan)
            case _ if isinstance(op, RISING):
                lo, hi = (self._again(op, x) for x in (a.lo, a.hi))
                return FloatEnds(lo, hi, a.nan)
            case _:
                return None

    def _again(self, op: Operation, operand: SSAValue) -> SSAValue:
        return self.code.insert(op.clone({op.operands[0]: operand}))

    def _zero_and_infinity(self, a: FloatEnds, b: FloatEnds) -> SSAValue:
        """Test if a product of 0 and an infinity may occur."""
        code = self.code
        zero = code.const(0.0, a.lo.type)
        has_zero = code.and_(code.cmpf("ole", a.lo, zero), code.cmpf("oge", a.hi, zero))
        has_infinity = code.or_(
            code.cmpf("oeq", b.lo, self.infinity(b.lo.type, -1)),
            code.cmpf("oeq", b.hi, self.infinity(b.lo.type)),
        )
        return code.and_(has_zero, has_infinity)

    def _corners(
        self,
        kind: type[arith.AddfOp] | type[arith.SubfOp] | type[arith.MulfOp],
        a: FloatEnds,
        b: FloatEnds,
        nan: list[SSAValue],
    ) -> FloatEnds:
        code = self.code
        corners = self.corners(lambda x, y: code.insert(kind(x, y)), a, b)
        nan = [*nan, a.nan, b.nan, *(code.cmpf("uno", c, c) for c in corners)]
        hull = self.hull(corners)
        return self.guarded(hull.lo, hull.hi, code.any_of(nan))

    def either_of(self, condition: Flags, a: FloatEnds, b: FloatEnds) -> FloatEnds:
        """Return the range of a select."""
        ends, select = self.chosen(condition, a, b), self.select
        nan = select(self.inverse(condition.may), b.nan, self.code.or_(a.nan, b.nan))
        return FloatEnds(ends.lo, ends.hi, select(condition.must, a.nan, nan))

    def compare_by(self, predicate: str, a: FloatEnds, b: FloatEnds) -> Flags:
        """Compare all pairs of members by an `arith.cmpf` predicate."""
        if predicate in ("true", "false"):
            flag = self.code.flag(predicate == "true")
            return Truth(flag, flag)
        if predicate in ORDERED:
            ordered = self.compare_by(ORDERED[predicate], a, b)
            return Truth(self.inverse(ordered.may), self.inverse(ordered.must))
        found = self._compare_numbers(predicate[1:], a, b)
        numbers = self.inverse(self.code.or_(a.nan, b.nan))
        return Truth(self.both(found.must, numbers), found.may)

    def _compare_numbers(self, test: str, a: FloatEnds, b: FloatEnds) -> Flags:
        or_ = self.code.or_
        match test:
            case "ne":
                # This is not the inverse of eq: empty intervals differ in neither way.
                below, above = (self.compare(t, a, b) for t in ("lt", "gt"))
                return Truth(or_(below.must, above.must), or_(below.may, above.may))
            case "rd":
                return Truth(self.code.flag(True), self.code.flag(True))
            case _:
                return self.compare(test, a, b)


def is_float(value: SSAValue) -> bool:
    return isinstance(value.type, AnyFloat)
