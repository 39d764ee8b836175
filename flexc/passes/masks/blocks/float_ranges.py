"""Emitted interval arithmetic on floating-point numbers.

Rounded sums and products rise with their operands, so their ends are those of the
operands' ends, rounded alike: nothing is widened. NaNs are in no interval; a flag
says that there may be some, and comparisons with them are as false as IEEE says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import Attribute, Operation, SSAValue

from flexc.passes.masks.blocks.block_code import BlockCode


@dataclass(frozen=True)
class FloatEnds:
    """The smallest and the largest of some numbers, and whether there are NaNs."""

    lo: SSAValue
    hi: SSAValue
    nan: SSAValue


@dataclass(frozen=True)
class Truth:
    """Whether something holds for all pairs of a block, and for some."""

    must: SSAValue
    may: SSAValue


RISING = (
    arith.ExtFOp,
    arith.TruncFOp,
    math_dialect.FloorOp,
    math_dialect.CeilOp,
    math_dialect.TruncOp,
    math_dialect.RoundEvenOp,
)
"""Rounded functions of one number that never fall."""

ORDERED = {
    "uge": "olt",
    "ugt": "ole",
    "ule": "ogt",
    "ult": "oge",
    "une": "oeq",
    "ueq": "one",
    "uno": "ord",
}
"""Predicates by those that they are the negations of."""


class FloatCode:
    """Appends interval arithmetic on floats."""

    def __init__(self, block: BlockCode):
        self.block, self.code = block, block.code

    def infinity(self, type_: Attribute, sign: int = 1) -> SSAValue:
        return self.code.const(sign * math.inf, type_)

    def point(self, value: SSAValue, known: SSAValue | None = None) -> FloatEnds:
        """One number; where it is not known, any."""
        block, code = self.block, self.code
        nan = code.cmpf("uno", value, value)
        up, down = (self.infinity(value.type, s) for s in (1, -1))
        lo, hi = code.select(nan, up, value), code.select(nan, down, value)
        if known is None:
            return FloatEnds(lo, hi, nan)
        nan = block.either(nan, block.inverse(known))
        return FloatEnds(code.select(known, lo, down), code.select(known, hi, up), nan)

    def guarded(self, lo: SSAValue, hi: SSAValue, nan: SSAValue) -> FloatEnds:
        """Ends that are none where there may be a NaN."""
        up, down = (self.infinity(lo.type, s) for s in (1, -1))
        select = self.code.select
        return FloatEnds(select(nan, down, lo), select(nan, up, hi), nan)

    def transfer(self, op: Operation, ends: Sequence[FloatEnds]) -> FloatEnds | None:
        """The range of an op's result; None where there is no rule."""
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
                lo, hi = (type(op)(x, y) for x, y in ((a.lo, b.lo), (a.hi, b.hi)))
                nan = self.block.either(a.nan, b.nan)
                return self.guarded(insert(lo), insert(hi), nan)
            case math_dialect.AbsFOp():
                low, high = (insert(math_dialect.AbsFOp(x)) for x in (a.lo, a.hi))
                zero = self.code.const(0.0, a.lo.type)
                negated = insert(arith.NegfOp(a.hi))
                lo = self._most(arith.MaximumfOp, [a.lo, negated, zero])
                return FloatEnds(lo, self._most(arith.MaximumfOp, [low, high]), a.nan)
            case _ if isinstance(op, RISING):
                lo, hi = (self._again(op, x) for x in (a.lo, a.hi))
                return FloatEnds(lo, hi, a.nan)
            case _:
                return None

    def _again(self, op: Operation, operand: SSAValue) -> SSAValue:
        return self.code.insert(op.clone({op.operands[0]: operand}))

    def _most(
        self,
        kind: type[arith.MaximumfOp] | type[arith.MinimumfOp],
        values: Sequence[SSAValue],
    ) -> SSAValue:
        total = values[0]
        for value in values[1:]:
            total = self.code.insert(kind(total, value))
        return total

    def _zero_and_infinity(self, a: FloatEnds, b: FloatEnds) -> SSAValue:
        """Whether a product of 0 and an infinity may occur."""
        code, block = self.code, self.block
        zero = code.const(0.0, a.lo.type)
        has_zero = block.both(
            code.cmpf("ole", a.lo, zero), code.cmpf("oge", a.hi, zero)
        )
        has_infinity = block.either(
            code.cmpf("oeq", b.lo, self.infinity(b.lo.type, -1)),
            code.cmpf("oeq", b.hi, self.infinity(b.lo.type)),
        )
        return block.both(has_zero, has_infinity)

    def _corners(
        self,
        kind: type[arith.AddfOp] | type[arith.SubfOp] | type[arith.MulfOp],
        a: FloatEnds,
        b: FloatEnds,
        nan: list[SSAValue],
    ) -> FloatEnds:
        insert = self.code.insert
        corners = [insert(kind(x, y)) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
        nan = [*nan, a.nan, b.nan, *(self.code.cmpf("uno", c, c) for c in corners)]
        lo = self._most(arith.MinimumfOp, corners)
        hi = self._most(arith.MaximumfOp, corners)
        return self.guarded(lo, hi, self.block.any_of(nan))

    def chosen(self, condition: Truth, a: FloatEnds, b: FloatEnds) -> FloatEnds:
        """Either, as a condition says."""
        select, must = self.code.select, condition.must
        never = self.block.inverse(condition.may)
        insert = self.code.insert
        lo, hi = (
            insert(arith.MinimumfOp(a.lo, b.lo)),
            insert(arith.MaximumfOp(a.hi, b.hi)),
        )
        nan = self.block.either(a.nan, b.nan)
        return FloatEnds(
            select(must, a.lo, select(never, b.lo, lo)),
            select(must, a.hi, select(never, b.hi, hi)),
            select(must, a.nan, select(never, b.nan, nan)),
        )

    def compare(self, predicate: str, a: FloatEnds, b: FloatEnds) -> Truth:
        """What a comparison of all pairs of two ranges says."""
        block = self.block
        if predicate in ("true", "false"):
            flag = block.flag(predicate == "true")
            return Truth(flag, flag)
        if predicate in ORDERED:
            ordered = self.compare(ORDERED[predicate], a, b)
            return Truth(block.inverse(ordered.may), block.inverse(ordered.must))
        must, may = self._ordered(predicate, a, b)
        numbers = block.inverse(block.either(a.nan, b.nan))
        return Truth(block.both(must, numbers), may)

    def _ordered(
        self, predicate: str, a: FloatEnds, b: FloatEnds
    ) -> tuple[SSAValue, SSAValue]:
        """For all and for some pairs of numbers."""
        cmpf, block = self.code.cmpf, self.block
        match predicate:
            case "olt" | "ole":
                return cmpf(predicate, a.hi, b.lo), cmpf(predicate, a.lo, b.hi)
            case "ogt" | "oge":
                return cmpf(predicate, a.lo, b.hi), cmpf(predicate, a.hi, b.lo)
            case "oeq":
                ends = [(a.lo, b.hi), (a.hi, b.lo)]
                must = [cmpf("oeq", x, y) for x, y in ends]
                may = [cmpf("ole", *ends[0]), cmpf("oge", *ends[1])]
                return block.both(*must), block.both(*may)
            case "one":
                below, above = (self._ordered(p, a, b) for p in ("olt", "ogt"))
                return block.either(below[0], above[0]), block.either(
                    below[1], above[1]
                )
            case _:
                return block.flag(True), block.flag(True)


def is_float(value: SSAValue) -> bool:
    return isinstance(value.type, AnyFloat)
