"""Code for terms: bounds on positions, written into a segment's region."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, i32, i64
from xdsl.ir import Operation, SSAValue

from flexc.passes.masks.bounds.affine import Facts
from flexc.passes.masks.bounds.magnitudes import magnitude, size_of
from flexc.passes.masks.bounds.terms import (
    LARGE,
    MAX_SYMBOL,
    Choice,
    Constant,
    Negative,
    Product,
    Quotient,
    RowValue,
    Sum,
    Symbol,
    Term,
)
from flexc.passes.scalar.formula import Leaf
from flexc.passes.scalar.ranges.intervals import full
from flexc.passes.scalar.scalar_code import ScalarCode

NEAR, FAR = 1 << 28, 1 << 30
"""Positions and small constants are no more than NEAR, so FAR is beyond their sums."""


class TermCode:
    """Writes terms of one mask, in 32 bits where those hold all that may occur.

    `outside` maps the mask's b, h and captures to values where code is written.
    """

    def __init__(
        self, code: ScalarCode, facts: Facts, outside: dict[SSAValue, SSAValue]
    ):
        self.code = code
        self.facts = facts
        self.uniform = dict(outside)

    def width(self, terms: Sequence[Term]) -> IntegerType:
        """The type that terms can be computed and compared in."""
        largest = max((self.compared(term) for term in terms), default=0)
        return i32 if largest <= full(32).hi else i64

    def compared(self, term: Term) -> int:
        """A bound on a term's parts, for a term that is compared with positions.

        One captured value among small ones needs no more than FAR: beyond that it
        is on the same side of all positions, whatever is added to it.
        """
        addends = list(self.addends(term))
        large = [a for a in addends if magnitude(self.facts, a) > NEAR]
        if len(large) > 1 or not all(isinstance(a, Symbol) for a in large):
            return magnitude(self.facts, term)
        rest = sum(magnitude(self.facts, a) for a in addends if a not in large)
        is_far = rest <= NEAR and size_of(self.facts, self.facts.column) <= NEAR
        return FAR + rest if is_far else magnitude(self.facts, term)

    def addends(self, term: Term) -> Iterator[Term]:
        """What a term is the sum and difference of."""
        match term:
            case Sum():
                yield from self.addends(term.left)
                yield from self.addends(term.right)
            case Negative():
                yield from self.addends(term.term)
            case _:
                yield term

    def write(self, term: Term, row: SSAValue, type_: IntegerType) -> SSAValue:
        """A term at a row, a position of type i32."""
        code = self.code
        match term:
            case Constant():
                return code.const(term.value, type_)
            case Symbol():
                return self.symbol(term, type_)
            case RowValue():
                return self.cast(self.value(term.value, row), type_)
            case Sum(left, Negative(right)):
                operands = self.write(left, row, type_), self.write(right, row, type_)
                return code.sub(*operands)
            case Sum():
                left = self.write(term.left, row, type_)
                return code.add(left, self.write(term.right, row, type_))
            case Negative():
                zero = code.const(0, type_)
                return code.sub(zero, self.write(term.term, row, type_))
            case Quotient():
                divisor = self.at_least_one(term.divisor, row, type_)
                value = self.write(term.term, row, type_)
                return code.insert(arith.FloorDivSIOp(value, divisor))
            case Product():
                return self.product(term, row, type_)
            case Choice():
                left, right = (
                    self.write(t, row, type_) for t in (term.left, term.right)
                )
                test = code.cmp("sle", left, right)
                holds = self.write(term.holds, row, type_)
                return code.select(test, holds, self.write(term.fails, row, type_))

    def symbol(self, term: Symbol, type_: IntegerType) -> SSAValue:
        """A captured value; one that is too far off for 32 bits comes nearer."""
        value = self.value(term.value)
        if type_ == i32 and magnitude(self.facts, term) > FAR:
            value = self.clamp(value, -FAR, FAR)
        return self.cast(value, type_)

    def product(self, term: Product, row: SSAValue, type_: IntegerType) -> SSAValue:
        """A product that saturates: beyond LARGE nothing is told apart."""
        value = self.write(term.term, row, type_)
        if magnitude(self.facts, term.term) > LARGE:
            value = self.clamp(value, -LARGE, LARGE)
        factor = self.at_least_one(term.factor, row, type_)
        if magnitude(self.facts, term.factor) > LARGE:
            factor = self.clamp(factor, 1, LARGE)
        return self.code.mul(value, factor)

    def at_least_one(
        self, term: Constant | Symbol, row: SSAValue, type_: IntegerType
    ) -> SSAValue:
        """A divisor; 1 in place of one that the run-time checks will refuse."""
        value = self.write(term, row, type_)
        if isinstance(term, Constant) or term.least is None:
            return value
        return self.maximum(value, self.code.const(1, type_))

    def value(self, value: SSAValue, row: SSAValue | None = None) -> SSAValue:
        """A value of the mask's region, computed again for a row."""
        known = self.uniform
        if row is not None:
            known = self.uniform | {self.facts.region.block.args[2]: row}
        return self._clone(value, known)

    def _clone(self, value: SSAValue, known: dict[SSAValue, SSAValue]) -> SSAValue:
        if value in known:
            return known[value]
        op = value.owner
        assert isinstance(op, Operation)
        mapped = {v: self._clone(v, known) for v in op.operands}
        clone = op.clone(mapped)
        clone.location = op.location
        known[value] = self.code.insert(clone, value.name_hint)
        if self.facts.is_uniform(value):
            self.uniform[value] = known[value]
        return known[value]

    def flag(self, leaf: Leaf) -> SSAValue:
        """A uniform value of type i1, or its negation."""
        value = self.value(leaf.value)
        return self.not_(value) if leaf.negated else value

    def checks(self, symbols: Sequence[Symbol]) -> list[SSAValue]:
        """What must hold for the terms of these symbols to be what they say."""
        code, found = self.code, list[SSAValue]()
        for symbol in symbols:
            value = self.value(symbol.value)
            type_ = value.type
            if not symbol.sized:
                lowest = max(symbol.least or -MAX_SYMBOL, -MAX_SYMBOL)
                found.append(code.cmp("sge", value, code.const(lowest, type_)))
                found.append(code.cmp("sle", value, code.const(MAX_SYMBOL, type_)))
            elif symbol.least is not None:
                found.append(code.cmp("sge", value, code.const(symbol.least, type_)))
        return found

    def cast(self, value: SSAValue, type_: IntegerType) -> SSAValue:
        return self.code.int_cast(value, type_)

    def clamp(self, value: SSAValue, lo: int, hi: int) -> SSAValue:
        code = self.code
        value = self.maximum(value, code.const(lo, value.type))
        return self.minimum(value, code.const(hi, value.type))

    def minimum(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.code.insert(arith.MinSIOp(a, b))

    def maximum(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.code.insert(arith.MaxSIOp(a, b))

    def not_(self, flag: SSAValue) -> SSAValue:
        return self.code.insert(arith.XOrIOp(flag, self.code.const(-1, flag.type)))
