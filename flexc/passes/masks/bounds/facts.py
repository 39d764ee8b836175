"""Find affine forms, periods, magnitudes and directions of the integers of a mask.

An affine form is a * q_idx + c * kv_idx + uniform values. A uniform value is the same
for all pairs of a head. A uniform value is a symbol, however it is computed. A sum with
a 64-bit symbol of unknown size may wrap around. Users of a form must check at run time
that the sum does not.

Magnitudes bound the absolute values of terms, so that code for terms does not overflow.
A direction is the sign of a value's change from row to row. It determines the row of a
block at which the value has its extremes.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, i1
from xdsl.ir import Block, Operation, SSAValue
from xdsl.utils.hints import isa

from flexc.dialects import flex
from flexc.dialects.constants import int_constant
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
    joined,
)
from flexc.passes.scalar.predicates import predicate_of
from flexc.passes.scalar.ranges import intervals
from flexc.passes.scalar.ranges.exact_ranges import floor_modulo
from flexc.passes.scalar.ranges.intervals import Interval, full
from flexc.passes.scalar.ranges.value_ranges import BINARY, width_of
from flexc.passes.scalar.variation import SUMMABLE, UNLIMITED, Linear, MaskFacts

MAX_COEFFICIENT = 1 << 20
"""The largest factor of an affine form, so that sums of products fit 64 bits."""

WIDE = 64
"""The width of symbols of unknown size."""

CHECKED = Interval(-MAX_SYMBOL, MAX_SYMBOL)
"""The range of symbols that pass their checks."""


class Facts(MaskFacts):
    """A mask region, and the facts about its values."""

    def is_exact(self, op: Operation) -> bool:
        """Return True if an op does not wrap around, or only if a run-time check fails.

        The checks cover 64-bit symbols of unknown size.
        """
        if super().is_exact(op):
            return True
        if not isinstance(op, arith.AddiOp | arith.SubiOp | arith.MuliOp):
            return False
        if width_of(op.result.type) != WIDE:
            return False
        return self.checked_range(op.result).within(SUMMABLE)

    def checked_range(self, value: SSAValue) -> Interval:
        """Return the range of a value, given that its symbols pass their checks.

        The value is taken apart into uniform values, the symbols. Divisors are checked
        to be positive, too. What this method looks into, `Directions` and
        `Solver.solve` look into as well, and check each symbol that they find.
        """
        known, op = self.ranges[value], value.owner
        if self.is_uniform(value) and int_constant(value) is None:
            return known if known.within(CHECKED) else CHECKED
        if known.within(SUMMABLE) or width_of(value.type) != WIDE:
            return known
        if (division := floor_modulo(value, self.ranges)) is not None:
            x, c = division
            if (divisor := self.divisor_range(c)) is not None:
                dividend = self.checked_range(x)
                return Interval(0, divisor.hi if dividend.lo < 0 else dividend.hi)
        match op:
            case arith.DivSIOp(lhs=x, rhs=c) | arith.FloorDivSIOp(lhs=x, rhs=c):
                if self.divisor_range(c) is None:
                    return known
                dividend = self.checked_range(x)
                return Interval(min(dividend.lo, 0), max(dividend.hi, 0))
            case arith.MuliOp() if (found := multiple_of_divisor(op)) is not None:
                x, c, plus = found
                if (divisor := self.divisor_range(c)) is None:
                    return known
                # x - c < floor(x / c) * c <= x. A quotient may be rounded towards 0.
                dividend = self.checked_range(x)
                ends = Interval(min(dividend.lo - divisor.hi, 0), max(dividend.hi, 0))
                by = BINARY[arith.MuliOp](intervals.point(plus), divisor, UNLIMITED)
                return BINARY[arith.AddiOp](ends, by, UNLIMITED)
            case (
                arith.AddiOp()
                | arith.SubiOp()
                | arith.MuliOp()
                | arith.MinSIOp()
                | arith.MaxSIOp()
            ):
                left, right = map(self.checked_range, op.operands)
                return BINARY[type(op)](left, right, UNLIMITED)
            case _:
                return known

    def divisor_range(self, value: SSAValue | int) -> Interval | None:
        """Return the range of a divisor that passes its check, None if it has none."""
        if isinstance(value, int):
            return intervals.point(value)
        if not self.is_uniform(value):
            return None
        known = self.checked_range(value)
        return Interval(max(known.lo, 1), known.hi) if known.hi >= 1 else None

    def is_uniform(self, value: SSAValue) -> bool:
        return self.dependences.is_uniform(value)

    def affine(self, value: SSAValue) -> Linear | None:
        """Return an integer's form, in which only positions vary with pairs, or None.

        The form is a * q_idx + c * kv_idx + uniform values.
        """
        if not isa(value.type, IntegerType) or value.type == i1:
            return None
        form, positions = self.linear(value), (self.row, self.column)
        is_affine = all(
            abs(factor) <= MAX_COEFFICIENT
            and (term in positions or not self.pair(term))
            for term, factor in form.terms
        )
        return form if is_affine else None

    def difference(self, left: Linear, right: Linear) -> Linear:
        """Return left - right, with a factor of 0 for wide symbols that cancel out.

        The sums that contained them may have wrapped around.
        """
        factors = dict(left.terms)
        for value, factor in right.terms:
            factors[value] = factors.get(value, 0) - factor
        terms = (t for t in factors.items() if t[1] or width_of(t[0].type) == WIDE)
        return Linear(tuple(terms), left.const - right.const)


MOST = (1 << 63) - 1
"""The largest magnitude of terms that are computed."""


def magnitude(facts: Facts, term: Term) -> int:
    """Return a bound on the absolute values of a term and of its parts."""
    match term:
        case Constant():
            return abs(term.value)
        case Symbol():
            return min(largest_absolute(facts.ranges[term.value]), MAX_SYMBOL)
        case RowValue():
            return largest_absolute(facts.checked_range(term.value))
        case Sum():
            return magnitude(facts, term.left) + magnitude(facts, term.right)
        case Negative():
            return magnitude(facts, term.term)
        case Quotient():
            return max(magnitude(facts, p) for p in (term.term, term.divisor))
        case Product():
            factor = min(magnitude(facts, term.factor), LARGE)
            inner = magnitude(facts, term.term)
            return max(inner, min(inner, LARGE) * factor)
        case Choice():
            parts = (term.left, term.right, term.holds, term.fails)
            return max(magnitude(facts, part) for part in parts)


def largest_absolute(known: Interval) -> int:
    """Return the largest absolute value in a range."""
    return max(abs(known.lo), abs(known.hi))


def multiple_of_divisor(product: arith.MuliOp) -> tuple[SSAValue, SSAValue, int] | None:
    """Return x, c and the number k of (x / c + k) * c, else None.

    The quotient is rounded down or towards 0.
    """
    factors = product.lhs, product.rhs
    for inner, by in (factors, factors[::-1]):
        match inner.owner:
            case arith.AddiOp(lhs=quotient, rhs=other):
                plus = int_constant(other)
            case arith.SubiOp(lhs=quotient, rhs=other):
                number = int_constant(other)
                plus = None if number is None else -number
            case _:
                quotient, plus = inner, 0
        op = quotient.owner
        if plus is None or not isinstance(op, arith.DivSIOp | arith.FloorDivSIOp):
            continue
        if op.rhs is by:
            return op.lhs, by, plus
    return None


MAX_PERIOD = 1 << 12


def residue_period(facts: Facts, value: SSAValue) -> int | None:
    """Return n if a condition depends on positions by remainders of at most n only.

    Return None for other conditions. A mask such as `(q_idx - kv_idx) % 3 == 0` bounds
    no keys: every block of sufficient width has live and dead pairs. The period is that
    width. A condition on one remainder is proved to hold for some of n neighbours, and
    to fail for others. For conditions on several remainders (distances of columns in an
    image), this is assumed.
    """
    op = value.owner
    if not isinstance(op, arith.CmpiOp):
        return None
    number = int_constant(op.rhs)
    single = remainder_of(facts, op.lhs)
    if single is not None and number is not None:
        return single[1] if varies(op, single[1], number) else None
    return _largest_divisor(facts, value)


def _largest_divisor(facts: Facts, value: SSAValue) -> int | None:
    """Return the largest divisor of the remainders that a value depends on.

    Return 0 for a uniform value, and None if the value depends on positions otherwise.
    """
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
    """Return True if a comparison with a number holds for some remainders only."""
    predicate = predicate_of(op)
    remainders = intervals.Interval(0, period - 1)
    return intervals.compare(predicate, remainders, intervals.point(number)) is None


def remainder_of(facts: Facts, value: SSAValue) -> tuple[SSAValue, int] | None:
    """Return x and c of Python's x % c, for an x that steps by one along a position.

    Return None for other values.
    """
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
    steps = form is not None and 1 in (
        abs(form.factor(facts.row)),
        abs(form.factor(facts.column)),
    )
    return (dividend, divisor) if steps else None


class Unsolvable(Exception):
    """The error for a comparison that the solver cannot turn into bounds."""


def symbol_of(
    facts: Facts, value: SSAValue, least: int | None = None
) -> Constant | Symbol:
    """Return the term of a uniform value, which is checked to be `least` or more.

    The check is omitted if the value's range proves the limit.
    """
    number = int_constant(value)
    if number is not None:
        return Constant(number)
    known = facts.ranges[value]
    if least is not None and known.lo >= least:
        least = None
    return Symbol(value, known.within(CHECKED), least)


def divisor_of(facts: Facts, value: SSAValue | int) -> Constant | Symbol:
    """Return the term of a uniform value that is positive or checked to be positive.

    Raise Unsolvable for other values.
    """
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
    """Return x and c of x - x % c, which is c * (x // c); None for other values."""
    found = floor_modulo(op.rhs, facts.ranges)
    if found is None or found[0] is not op.lhs or not facts.is_exact(op):
        return None
    return op.lhs, divisor_of(facts, found[1])


def keeps(facts: Facts, op: Operation) -> bool:
    """Return True if a cast keeps all values that its operand may have."""
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
    """Return the smallest number of an integer's type."""
    return full(width_of(value.type)).lo


class Directions:
    """The directions of the values of rows."""

    def __init__(self, facts: Facts):
        self.facts = facts
        self.checked: list[Symbol] = []
        """Symbols that run-time checks must prove to be positive, or small."""

    def of(self, value: SSAValue) -> int:
        """Return the sign of a value's change from row to row: 1, 0 or -1.

        Raise Unsolvable or NotMonotonic if the sign is not known.
        """
        if self.facts.is_uniform(value):
            self._check(symbol_of(self.facts, value))
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
            case arith.ShRSIOp() if int_constant(op.rhs) in range(32):
                return self.of(op.lhs)
            case arith.DivSIOp() | arith.FloorDivSIOp():
                return self._quotient(op)
            case _:
                raise Unsolvable

    def _sum(self, op: arith.AddiOp | arith.SubiOp) -> int:
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
        """Return the direction of a quotient, which is the direction of the dividend.

        Rounding, also towards zero, is monotonic.
        """
        self._check(divisor_of(self.facts, op.rhs))
        return self.of(op.lhs)

    def _product(self, op: arith.MuliOp) -> int:
        for value, factor in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            number = int_constant(factor)
            if number is not None:
                sign = (number > 0) - (number < 0)
                return sign * self.of(value)
        for value, factor in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            if self.facts.is_uniform(factor):
                self._check(divisor_of(self.facts, factor))
                return self.of(value)
        raise Unsolvable
