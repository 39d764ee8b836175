"""Which way values of a row move from row to row, so which row has their extremes."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.ir import Block, Operation, SSAValue

from flexc.dialects import flex
from flexc.passes.masks.bounds.affine import Facts
from flexc.passes.masks.bounds.terms import (
    MAX_SYMBOL,
    Constant,
    Symbol,
    joined,
)
from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.division_spelling import floor_modulo
from flexc.passes.scalar.ranges.intervals import Interval, full
from flexc.passes.scalar.ranges.value_ranges import width_of

# Conditions on remainders, which hold for some of any run of positions.
#
# A mask such as `(q_idx - kv_idx) % 3 == 0` bounds no keys: every block wide enough
# has live pairs and dead ones. This module finds how wide that is.


MAX_PERIOD = 1 << 12


def residue_period(facts: Facts, value: SSAValue) -> int | None:
    """n, where a condition depends on positions by remainders of at most n alone.

    Along a position that it depends on, it repeats every n neighbours. A condition
    on one remainder is known to hold for some of them and to fail for others; of one
    on several (distances of columns in an image) that is taken to be so.
    """
    op = value.owner
    if not isinstance(op, arith.CmpiOp):
        return None
    number = facts.constant(op.rhs)
    single = remainder_of(facts, op.lhs)
    if single is not None and number is not None:
        return single[1] if varies(op, single[1], number) else None
    return _largest_divisor(facts, value)


def _largest_divisor(facts: Facts, value: SSAValue) -> int | None:
    """The greatest divisor of the remainders by which a value depends on positions."""
    if facts.is_uniform(value):
        return 0
    if (found := remainder_of(facts, value)) is not None:
        return found[1]
    if isinstance(value.owner, Block | flex.LoadCaptureOp):
        return None
    inner = [_largest_divisor(facts, v) for v in value.owner.operands]
    known = [n for n in inner if n is not None]
    return max(known) if len(known) == len(inner) else None


def varies(op: arith.CmpiOp, period: int, number: int) -> bool:
    """Whether remainders disagree on a comparison with a number."""
    predicate = arith.CMPI_COMPARISON_OPERATIONS[op.predicate.value.data]
    remainders = intervals.Interval(0, period - 1)
    return intervals.compare(predicate, remainders, intervals.point(number)) is None


def remainder_of(facts: Facts, value: SSAValue) -> tuple[SSAValue, int] | None:
    """x and c of Python's x % c, for an x that steps by one along a position."""
    op = value.owner
    if isinstance(op, arith.ExtSIOp):
        return remainder_of(facts, op.input)
    found = floor_modulo(value, facts.ranges)
    if found is None:
        return None
    dividend, divisor = found
    if not isinstance(divisor, int) or divisor > MAX_PERIOD:
        return None
    form = facts.affine(dividend)
    steps = form is not None and 1 in (abs(form.row), abs(form.column))
    return (dividend, divisor) if steps else None


class Unsolvable(Exception):
    """A comparison that says nothing of positions that its reader can see."""


def symbol_of(
    facts: Facts, value: SSAValue, least: int | None = None
) -> Constant | Symbol:
    """A uniform value; where its code runs it is checked to be `least` or more."""
    number = facts.constant(value)
    if number is not None:
        return Constant(number)
    limits = Interval(-MAX_SYMBOL, MAX_SYMBOL)
    known = facts.ranges[value]
    if least is not None and known.lo >= least:
        least = None
    return Symbol(value, known.within(limits), least)


def divisor_of(facts: Facts, value: SSAValue | int) -> Constant | Symbol:
    """A uniform value that is positive, or is checked to be at run time."""
    if isinstance(value, int):
        divisor: Constant | Symbol = Constant(value)
    elif not facts.is_uniform(value):
        raise Unsolvable
    else:
        divisor = symbol_of(facts, value, least=1)
    if isinstance(divisor, Constant) and divisor.value < 1:
        raise Unsolvable
    return divisor


def chunk_start(
    facts: Facts, op: arith.SubiOp
) -> tuple[SSAValue, Constant | Symbol] | None:
    """x and c of x - x % c, which is c * (x // c); None if an op is no such."""
    found = floor_modulo(op.rhs, facts.ranges)
    if found is None or found[0] is not op.lhs or not facts.is_exact(op):
        return None
    return op.lhs, divisor_of(facts, found[1])


def keeps(facts: Facts, op: Operation) -> bool:
    """Whether a cast of an integer keeps all numbers that its operand may be."""
    known = facts.ranges[op.operands[0]]
    match op:
        case arith.ExtSIOp():
            return True
        case arith.ExtUIOp():
            return known.is_nonnegative
        case arith.TruncIOp():
            return known.within(full(width_of(op.result.type)))
        case _:
            return False


def lowest(value: SSAValue) -> int:
    """The smallest number of an integer's type."""
    return full(width_of(value.type)).lo


class Directions:
    """Which way values of rows move from row to row."""

    def __init__(self, facts: Facts):
        self.facts = facts
        self.checked: list[Symbol] = []
        """What was taken to be positive, or small, to be checked at run time."""

    def of(self, value: SSAValue) -> int:
        """1, 0 or -1."""
        if self.facts.is_uniform(value):
            return 0
        if value is self.facts.row:
            return 1
        op = value.owner
        match op:
            case arith.ExtSIOp() | arith.ExtUIOp() | arith.TruncIOp() if keeps(
                self.facts, op
            ):
                return self.of(op.operands[0])
            case arith.SubiOp() if (chunk := chunk_start(self.facts, op)) is not None:
                return self._chunk(*chunk)
            case arith.AddiOp() | arith.SubiOp() if self.facts.is_exact(op):
                return self._sum(op)
            case arith.MuliOp() if self.facts.is_exact(op):
                return self._product(op)
            case arith.MinSIOp() | arith.MaxSIOp():
                return joined(self.of(op.lhs), self.of(op.rhs))
            case arith.ShRSIOp() if self.facts.constant(op.rhs) in range(32):
                return self.of(op.lhs)
            case arith.DivSIOp() | arith.FloorDivSIOp():
                return self._quotient(op)
            case _:
                raise Unsolvable

    def _sum(self, op: arith.AddiOp | arith.SubiOp) -> int:
        for value in op.operands:
            if self.facts.is_uniform(value):
                self._check(symbol_of(self.facts, value))
        sign = 1 if isinstance(op, arith.AddiOp) else -1
        return joined(self.of(op.lhs), sign * self.of(op.rhs))

    def _check(self, symbol: Constant | Symbol) -> None:
        if isinstance(symbol, Symbol) and (
            symbol.least is not None or not symbol.sized
        ):
            self.checked.append(symbol)

    def _chunk(self, dividend: SSAValue, divisor: Constant | Symbol) -> int:
        self._check(divisor)
        return self.of(dividend)

    def _quotient(self, op: arith.DivSIOp | arith.FloorDivSIOp) -> int:
        """Division rounds in one direction, towards zero too, so it is monotonic."""
        self._check(divisor_of(self.facts, op.rhs))
        return self.of(op.lhs)

    def _product(self, op: arith.MuliOp) -> int:
        for value, factor in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            number = self.facts.constant(factor)
            if number is not None:
                sign = (number > 0) - (number < 0)
                return sign * self.of(value)
        for value, factor in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            if self.facts.is_uniform(factor):
                self._check(divisor_of(self.facts, factor))
                return self.of(value)
        raise Unsolvable
