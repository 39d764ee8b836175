"""Emit ranges of keys as intervals of key blocks.

An interval of blocks is a pair of block numbers, begin and end; the end is not
included. Ranges of keys that may overlap become disjoint intervals. Facts that are
known at compile time, such as that a range is never empty, cost no code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, i32, i64
from xdsl.ir import SSAValue

from flexc.passes.masks.bounds.facts import Facts, largest_absolute, magnitude
from flexc.passes.masks.bounds.key_ranges import End, KeyRange
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
    addends,
    direction,
)
from flexc.passes.scalar.copier import Copier
from flexc.passes.scalar.formula import Leaf
from flexc.passes.scalar.ranges.intervals import full
from flexc.passes.scalar.scalar_code import Combine, ScalarCode, combined

NEAR, FAR = 1 << 28, 1 << 30
"""Positions and small constants are at most NEAR. FAR exceeds their sums."""


class TermCode:
    """A writer of terms of one mask, in 32 bits if all possible values fit.

    `outside` maps the mask's b, h and captures to values that are visible at the code.
    """

    def __init__(
        self, code: ScalarCode, facts: Facts, outside: dict[SSAValue, SSAValue]
    ):
        self.code = code
        self.facts = facts
        self.uniform = dict(outside)

    def width(self, terms: Sequence[Term]) -> IntegerType:
        """Return the type in which terms can be computed and compared."""
        largest = max((self.compared(term) for term in terms), default=0)
        return i32 if largest <= full(32).hi else i64

    def compared(self, term: Term) -> int:
        """Return a bound on a term's parts, for a term that is compared with positions.

        If one addend is a large symbol and the others are small, FAR plus the others
        suffices: a symbol beyond FAR is on the same side of all positions, whatever is
        added.
        """
        parts = [part for part, _ in addends(term)]
        large = [a for a in parts if magnitude(self.facts, a) > NEAR]
        if len(large) > 1 or not all(isinstance(a, Symbol) for a in large):
            return magnitude(self.facts, term)
        rest = sum(magnitude(self.facts, a) for a in parts if a not in large)
        columns = self.facts.ranges[self.facts.column]
        is_far = rest <= NEAR and largest_absolute(columns) <= NEAR
        return FAR + rest if is_far else magnitude(self.facts, term)

    def write(self, term: Term, row: SSAValue, type_: IntegerType) -> SSAValue:
        """Return the value of a term at a row, a position of type i32."""
        code = self.code
        match term:
            case Constant():
                return code.const(term.value, type_)
            case Symbol():
                return self.symbol(term, type_)
            case RowValue():
                return code.int_cast(self.value(term.value, row), type_)
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
        """Return a captured value, clamped to FAR if it may not fit 32 bits."""
        value = self.value(term.value)
        if type_ == i32 and magnitude(self.facts, term) > FAR:
            value = self.clamp(value, -FAR, FAR)
        return self.code.int_cast(value, type_)

    def product(self, term: Product, row: SSAValue, type_: IntegerType) -> SSAValue:
        """Return a product whose operands are clamped to LARGE.

        Products beyond LARGE compare equally with all positions.
        """
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
        """Return a divisor, at least 1. The run-time checks refuse smaller divisors."""
        value = self.write(term, row, type_)
        if isinstance(term, Constant) or term.least is None:
            return value
        return self.code.max(value, self.code.const(1, type_))

    def value(self, value: SSAValue, row: SSAValue | None = None) -> SSAValue:
        """Return a value of the mask's region, computed again for a row."""
        known = self.uniform
        if row is not None:
            known = self.uniform | {self.facts.region.block.args[2]: row}
        copier = Copier(self.code, known)
        copied = copier.value(value)
        for old, new in copier.known.items():
            if self.facts.is_uniform(old):
                self.uniform[old] = new
        return copied

    def flag(self, leaf: Leaf) -> SSAValue:
        """Return a uniform value of type i1, or its negation."""
        value = self.value(leaf.value)
        return self.code.not_(value) if leaf.negated else value

    def checks(self, symbols: Sequence[Symbol]) -> list[SSAValue]:
        """Return the run-time checks that terms of these symbols rely on."""
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

    def clamp(self, value: SSAValue, lo: int, hi: int) -> SSAValue:
        code = self.code
        value = code.max(value, code.const(lo, value.type))
        return code.min(value, code.const(hi, value.type))


@dataclass(frozen=True)
class BlockInterval:
    """The blocks from begin to end. The end is not included.

    None as begin stands for the first block, None as end for the end of the last block.
    """

    begin: SSAValue | None
    end: SSAValue | None


EVERY_BLOCK = BlockInterval(None, None)


@dataclass(frozen=True)
class Lengths:
    """A block of rows, and the number of keys, as values of type i32."""

    q_first: SSAValue
    q_last: SSAValue
    kv_len: SSAValue
    blocks: SSAValue
    """The number of blocks of keys, with an incomplete last block."""
    whole: SSAValue
    """The number of complete blocks; the same value as `blocks` if all are complete."""


class RangeCode:
    """A writer of ranges of keys as intervals of blocks.

    Intervals of blocks of one key end at multiples of `aligned` keys where their ends
    move with the rows.
    """

    def __init__(
        self, terms: TermCode, lengths: Lengths, block_n: int, aligned: int = 1
    ):
        self.terms = terms
        self.code = terms.code
        self.lengths = lengths
        self.block_n = block_n
        self.aligned = aligned

    def live_intervals(self, ranges: Sequence[KeyRange]) -> list[BlockInterval]:
        """Return ascending disjoint intervals of the blocks that live ranges meet."""
        return self.block_intervals(ranges)

    def dead_intervals(
        self, ranges: Sequence[KeyRange], ragged: bool
    ) -> list[BlockInterval]:
        """Return intervals of the blocks that dead ranges meet.

        `ragged` adds the incomplete last block.
        """
        return self.block_intervals(ranges, begins=[self.lengths.whole] * ragged)

    def block_intervals(
        self,
        ranges: Sequence[KeyRange],
        ends: Sequence[SSAValue] = (),
        begins: Sequence[SSAValue] = (),
        around: tuple[SSAValue | None, SSAValue | None] = (None, None),
    ) -> list[BlockInterval]:
        """Return ascending disjoint intervals of the blocks that the ranges meet.

        `ends` and `begins` are those of more intervals from the first block, and to the
        last block. `around` replaces the first block and the end of the last.
        """
        suffixes = [r for r in ranges if r.lows and not r.highs]
        middles = [r for r in ranges if r.lows and r.highs]
        prefixes = [r for r in ranges if not r.lows]
        if any(r.is_everything for r in prefixes):
            return [BlockInterval(*around)]
        ends = [*ends, *map(self._end_of, prefixes)]
        begins = [*map(self._begin_of, suffixes), *begins]
        prefix = combined(self.code.max, ends)
        suffix = combined(self.code.min, begins)
        found = [] if prefix is None else [BlockInterval(around[0], prefix)]
        if suffix is not None and prefix is not None:
            suffix = self.code.max(suffix, prefix)
        for begin, end in self._sorted([self._between(r) for r in middles]):
            found.append(self._fitted(begin, end, found[-1:], suffix))
        if suffix is not None:
            found.append(BlockInterval(suffix, around[1]))
        return found

    def gaps(self, intervals: Sequence[BlockInterval]) -> list[BlockInterval]:
        """Return the intervals between others, before the first and after the last."""
        found: list[BlockInterval] = []
        at: SSAValue | None = None
        for interval in intervals:
            if interval.begin is not None:
                found.append(BlockInterval(at, interval.begin))
            if interval.end is None:
                return found
            at = interval.end
        return [*found, BlockInterval(at, None)]

    def overlaps(
        self, some: Sequence[BlockInterval], others: Sequence[BlockInterval]
    ) -> list[tuple[SSAValue, SSAValue]]:
        """Return the blocks in both, as intervals of no negative length.

        No interval of `others` has a negative length.
        """
        zero = self.code.const(0)
        found: list[tuple[SSAValue, SSAValue]] = []
        if list(some) == [EVERY_BLOCK]:
            last = self.lengths.blocks
            return [(b.begin or zero, b.end or last) for b in others]
        for a in some:
            for b in others:
                if a.end is None and b.end is None:
                    end = self.lengths.blocks
                else:
                    end = combined(self.code.min, _known(a.end, b.end))
                begin = combined(self.code.max, _known(a.begin, b.begin))
                begin = zero if begin is None else begin
                assert end is not None
                found.append((begin, self.code.max(begin, end)))
        return found

    def _fitted(
        self,
        begin: SSAValue,
        end: SSAValue,
        before: Sequence[BlockInterval],
        suffix: SSAValue | None,
    ) -> BlockInterval:
        """Return an interval, cut to the part after `before` and before the suffix."""
        for interval in before:
            assert interval.end is not None
            begin = self.code.max(begin, interval.end)
        if suffix is not None:
            begin, end = (self.code.min(at, suffix) for at in (begin, end))
        return BlockInterval(begin, self.code.max(begin, end))

    def _sorted(
        self, intervals: list[tuple[SSAValue, SSAValue]]
    ) -> list[tuple[SSAValue, SSAValue]]:
        """Return one or two intervals, sorted by their begin."""
        if len(intervals) < 2:
            return intervals
        (a, a_end), (b, b_end) = intervals
        code = self.code
        swap = code.cmp("slt", b, a)
        first = code.select(swap, b, a), code.select(swap, b_end, a_end)
        second = code.select(swap, a, b), code.select(swap, a_end, b_end)
        return [first, second]

    def _end_of(self, keys: KeyRange) -> SSAValue:
        """Return the end of the interval of a range that starts at the first key."""
        _, high = self._ends(keys)
        assert high is not None
        return self._up(self._blocks_of(high), keys.highs)

    def _blocks_of(self, high: SSAValue) -> SSAValue:
        """Return the number of blocks that contain the keys up to `high` >= -1."""
        code = self.code
        if self.block_n == 1:
            return code.add(high, code.const(1))
        last = arith.FloorDivSIOp(high, code.const(self.block_n))
        return code.add(code.insert(last), code.const(1))

    def _begin_of(self, keys: KeyRange) -> SSAValue:
        """Return the begin of the interval of a range that ends at the last key."""
        low, _ = self._ends(keys)
        assert low is not None
        return self._down(self._begin_at(low), keys.lows)

    def _begin_at(self, low: SSAValue) -> SSAValue:
        """Return the block that contains a key, or the end of the last block."""
        code, lengths = self.code, self.lengths
        if self.block_n == 1:
            return low
        none = code.cmp("sge", low, lengths.kv_len)
        return code.select(none, lengths.blocks, self._block_of(low))

    def _block_of(self, low: SSAValue) -> SSAValue:
        """Return the block that contains a key."""
        if self.block_n == 1:
            return low
        return self.code.div(low, self.code.const(self.block_n))

    def _between(self, keys: KeyRange) -> tuple[SSAValue, SSAValue]:
        """Return the interval of a range with both ends, 0 to 0 if empty."""
        low, high = self._ends(keys)
        assert low is not None
        assert high is not None
        code, zero = self.code, self.code.const(0)
        some = code.cmp("sle", low, high)
        begin = self._down(self._block_of(low), keys.lows)
        end = self._up(self._blocks_of(high), keys.highs)
        end = code.select(some, end, zero)
        return code.select(some, begin, zero), end

    def _down(self, begin: SSAValue, ends: Sequence[End]) -> SSAValue:
        """Align the begin of an interval down, unless it is the end of all keys."""
        if not self._aligns(ends):
            return begin
        code, size = self.code, self.code.const(self.aligned)
        none = code.cmp("sge", begin, self.lengths.kv_len)
        return code.select(none, begin, code.mul(code.div(begin, size), size))

    def _up(self, end: SSAValue, ends: Sequence[End]) -> SSAValue:
        """Align the end of an interval up, at most to the end of all keys."""
        if not self._aligns(ends):
            return end
        code, size = self.code, self.code.const(self.aligned)
        end = code.mul(code.ceildiv(end, self.aligned), size)
        return code.min(end, self.lengths.kv_len)

    def _aligns(self, ends: Sequence[End]) -> bool:
        return self.aligned > 1 and any(direction(end.term) for end in ends)

    def _ends(self, keys: KeyRange) -> tuple[SSAValue | None, SSAValue | None]:
        """Return the first and the last key as i32, or None where a range has no end.

        The first key is 0 to kv_len, the last key -1 to kv_len - 1. An empty range has
        the last key -1, or the first key kv_len if its last key is not computed.
        """
        code, kv_len = self.code, self.lengths.kv_len
        zero, before = code.const(0), code.const(-1)
        last = code.sub(kv_len, code.const(1))
        rows, holds = self._rows(keys)
        low = high = None
        if keys.lows:
            low = self._end(code.max, keys.lows, rows, (zero, kv_len))
        if keys.highs:
            high = self._end(code.min, keys.highs, rows, (before, last))
        elif not keys.lows:
            high = last
        holds += [self.terms.flag(leaf) for leaf in keys.conditions]
        holds += [self._in_order(pair, rows) for pair in keys.crossed]
        if (some := combined(self.code.and_, holds)) is not None:
            if high is not None:
                high = code.select(some, high, before)
            else:
                assert low is not None
                low = code.select(some, low, kv_len)
        if (
            sound := combined(self.code.and_, self.terms.checks(keys.symbols()))
        ) is not None:
            low = None if low is None else code.select(sound, low, zero)
            high = None if high is None else code.select(sound, high, last)
        return low, high

    def _rows(self, keys: KeyRange) -> tuple[tuple[SSAValue, SSAValue], list[SSAValue]]:
        """Return the first and last row within the row bounds, and tests that rows
        exist.
        """
        first, last = self.lengths.q_first, self.lengths.q_last
        if not keys.row_lows and not keys.row_highs:
            return (first, last), []
        low = self._row(self.code.max, keys.row_lows, first)
        high = self._row(self.code.min, keys.row_highs, last)
        some = self.code.cmp("sle", low, high)
        # If no row exists, terms still need valid rows.
        low, high = self.code.min(low, last), self.code.max(high, first)
        return (low, high), [some]

    def _row(
        self,
        extreme: Combine,
        bounds: Sequence[Term],
        start: SSAValue,
    ) -> SSAValue:
        if not bounds:
            return start
        type_ = self.terms.width(bounds)
        values = [self.terms.write(term, start, type_) for term in bounds]
        return extreme(start, self._narrow(reduce(extreme, values)))

    def _narrow(self, value: SSAValue) -> SSAValue:
        """Return the nearest number of type i32."""
        if value.type == i32:
            return value
        limits = full(32)
        return self.code.int_cast(self.terms.clamp(value, limits.lo, limits.hi), i32)

    def _end(
        self,
        extreme: Combine,
        ends: Sequence[End],
        rows: tuple[SSAValue, SSAValue],
        limits: tuple[SSAValue, SSAValue],
    ) -> SSAValue:
        """Return the greatest or least of the ends, clamped to the limits."""
        type_ = self.terms.width([end.term for end in ends])
        values = [self._at(end, rows, type_) for end in ends]
        value = reduce(extreme, values)
        low, high = (self.code.int_cast(limit, type_) for limit in limits)
        value = self.code.min(self.code.max(value, low), high)
        return self.code.int_cast(value, i32)

    def _at(
        self, end: End, rows: tuple[SSAValue, SSAValue], type_: IntegerType
    ) -> SSAValue:
        return self.terms.write(end.term, rows[end.at_last], type_)

    def _in_order(
        self, pair: tuple[End, End], rows: tuple[SSAValue, SSAValue]
    ) -> SSAValue:
        """Test if a row has keys between two bounds, which is the same for all rows."""
        type_ = self.terms.width([end.term for end in pair])
        low, high = (self.terms.write(end.term, rows[0], type_) for end in pair)
        return self.code.cmp("sle", low, high)


def _known(*values: SSAValue | None) -> list[SSAValue]:
    return [value for value in values if value is not None]
