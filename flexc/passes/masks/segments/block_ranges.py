"""Ranges of keys in closed form, as code that yields runs of key blocks.

A run is a pair of block numbers, begin and end, the end not included. Ranges of
keys that may overlap become runs that do not; what is never empty or never there
is known while the code is written, so that no code is written for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, i32
from xdsl.ir import SSAValue

from flexc.passes.masks.bounds.key_ranges import End, KeyRange
from flexc.passes.masks.bounds.terms import Term
from flexc.passes.masks.segments.term_code import TermCode
from flexc.passes.scalar.ranges.intervals import full


@dataclass(frozen=True)
class Run:
    """Blocks from begin to end; either is None where all ranges share it.

    None stands for the first block and for the end of the last.
    """

    begin: SSAValue | None
    end: SSAValue | None


@dataclass(frozen=True)
class Lengths:
    """A block of rows and the keys, as values of type i32."""

    q_first: SSAValue
    q_last: SSAValue
    kv_len: SSAValue
    blocks: SSAValue
    """How many blocks of keys there are."""
    whole: SSAValue
    """How many of them do not stick out; the same value if that is known of all."""


class RangeCode:
    """Writes ranges of keys as runs of blocks."""

    def __init__(self, terms: TermCode, lengths: Lengths, block_n: int):
        self.terms = terms
        self.code = terms.code
        self.lengths = lengths
        self.block_n = block_n

    def runs(self, ranges: Sequence[KeyRange], ragged: bool = False) -> list[Run]:
        """Disjoint runs, ascending, that hold the blocks which the ranges meet.

        `ragged` adds the block that sticks out over the last key.
        """
        suffixes = [r for r in ranges if r.lows and not r.highs]
        middles = [r for r in ranges if r.lows and r.highs]
        prefixes = [r for r in ranges if not r.lows]
        if any(r.is_everything for r in prefixes):
            return [Run(None, None)]
        prefix = self._extreme(arith.MaxSIOp, [self._end_of(r) for r in prefixes])
        begins = [self._begin_of(r) for r in suffixes]
        suffix = self._extreme(arith.MinSIOp, begins + [self.lengths.whole] * ragged)
        found = [] if prefix is None else [Run(None, prefix)]
        if suffix is not None and prefix is not None:
            suffix = self._maximum(suffix, prefix)
        for begin, end in self._sorted([self._between(r) for r in middles]):
            found.append(self._fitted(begin, end, found[-1:], suffix))
        if suffix is not None:
            found.append(Run(suffix, None))
        return found

    def gaps(self, runs: Sequence[Run]) -> list[Run]:
        """What lies between runs, before the first and after the last."""
        found: list[Run] = []
        at: SSAValue | None = None
        for run in runs:
            if run.begin is not None:
                found.append(Run(at, run.begin))
            if run.end is None:
                return found
            at = run.end
        return [*found, Run(at, None)]

    def overlaps(
        self, some: Sequence[Run], others: Sequence[Run]
    ) -> list[tuple[SSAValue, SSAValue]]:
        """The blocks that both have, as runs that may be empty but not negative."""
        zero = self.code.const(0)
        found: list[tuple[SSAValue, SSAValue]] = []
        for a in some:
            for b in others:
                if a.end is None and b.end is None:
                    end = self.lengths.blocks
                else:
                    end = self._met(arith.MinSIOp, a.end, b.end)
                begin = self._met(arith.MaxSIOp, a.begin, b.begin)
                begin = zero if begin is None else begin
                assert end is not None
                found.append((begin, self._maximum(begin, end)))
        return found

    def _fitted(
        self,
        begin: SSAValue,
        end: SSAValue,
        before: Sequence[Run],
        suffix: SSAValue | None,
    ) -> Run:
        """A run cut to what lies between the one before it and the suffix."""
        for run in before:
            assert run.end is not None
            begin = self._maximum(begin, run.end)
        if suffix is not None:
            begin, end = (self._minimum(at, suffix) for at in (begin, end))
        return Run(begin, self._maximum(begin, end))

    def _sorted(
        self, runs: list[tuple[SSAValue, SSAValue]]
    ) -> list[tuple[SSAValue, SSAValue]]:
        """Runs by their begin, exchanged where the kernel runs."""
        if len(runs) < 2:
            return runs
        (a, a_end), (b, b_end) = runs
        code = self.code
        swap = code.cmp("slt", b, a)
        first = code.select(swap, b, a), code.select(swap, b_end, a_end)
        second = code.select(swap, a, b), code.select(swap, a_end, b_end)
        return [first, second]

    def _end_of(self, keys: KeyRange) -> SSAValue:
        """The end of the run of a range that starts at the first key."""
        _, high = self._ends(keys)
        assert high is not None
        return self._blocks_of(high)

    def _blocks_of(self, high: SSAValue) -> SSAValue:
        """How many blocks hold the keys up to `high`, which may be -1."""
        code = self.code
        if self.block_n == 1:
            return code.add(high, code.const(1))
        last = arith.FloorDivSIOp(high, code.const(self.block_n))
        return code.add(code.insert(last), code.const(1))

    def _begin_of(self, keys: KeyRange) -> SSAValue:
        """The begin of the run of a range that ends at the last key."""
        low, _ = self._ends(keys)
        assert low is not None
        code, lengths = self.code, self.lengths
        if self.block_n == 1:
            return low
        none = code.cmp("sge", low, lengths.kv_len)
        return code.select(none, lengths.blocks, self._block_of(low))

    def _block_of(self, low: SSAValue) -> SSAValue:
        """The block that holds a key."""
        if self.block_n == 1:
            return low
        return self.code.div(low, self.code.const(self.block_n))

    def _between(self, keys: KeyRange) -> tuple[SSAValue, SSAValue]:
        """The run of a range with both ends; that of an empty one is before all."""
        low, high = self._ends(keys)
        assert low is not None
        assert high is not None
        code, zero = self.code, self.code.const(0)
        some = code.cmp("sle", low, high)
        begin = self._block_of(low)
        end = code.select(some, self._blocks_of(high), zero)
        return code.select(some, begin, zero), end

    def _ends(self, keys: KeyRange) -> tuple[SSAValue | None, SSAValue | None]:
        """First and last key, i32; a range that is empty has no last one.

        The first is 0 to kv_len, the last -1 to kv_len - 1.
        """
        code, kv_len = self.code, self.lengths.kv_len
        zero, before = code.const(0), code.const(-1)
        last = code.sub(kv_len, code.const(1))
        rows, holds = self._rows(keys)
        low = high = None
        if keys.lows:
            low = self._end(arith.MaxSIOp, keys.lows, rows, (zero, kv_len))
        if keys.highs:
            high = self._end(arith.MinSIOp, keys.highs, rows, (before, last))
        elif not keys.lows:
            high = last
        holds += [self.terms.flag(leaf) for leaf in keys.conditions]
        holds += [self._in_order(pair, rows) for pair in keys.crossed]
        if (some := self._all(holds)) is not None:
            if high is not None:
                high = code.select(some, high, before)
            else:
                assert low is not None
                low = code.select(some, low, kv_len)
        if (sound := self._all(self.terms.checks(keys.symbols()))) is not None:
            low = None if low is None else code.select(sound, low, zero)
            high = None if high is None else code.select(sound, high, last)
        return low, high

    def _rows(self, keys: KeyRange) -> tuple[tuple[SSAValue, SSAValue], list[SSAValue]]:
        """The first and last row that count, and tests that there are any."""
        first, last = self.lengths.q_first, self.lengths.q_last
        if not keys.row_lows and not keys.row_highs:
            return (first, last), []
        low = self._row(arith.MaxSIOp, keys.row_lows, first)
        high = self._row(arith.MinSIOp, keys.row_highs, last)
        some = self.code.cmp("sle", low, high)
        # Where there are none, terms still have rows to be computed from.
        low, high = self._minimum(low, last), self._maximum(high, first)
        return (low, high), [some]

    def _row(
        self,
        extreme: type[arith.MaxSIOp] | type[arith.MinSIOp],
        bounds: Sequence[Term],
        start: SSAValue,
    ) -> SSAValue:
        if not bounds:
            return start
        type_ = self.terms.width(bounds)
        values = [self.terms.write(term, start, type_) for term in bounds]
        value = self._extreme(extreme, values)
        assert value is not None
        return self.code.insert(extreme(start, self._narrow(value)))

    def _narrow(self, value: SSAValue) -> SSAValue:
        """The nearest number of type i32."""
        if value.type == i32:
            return value
        limits = full(32)
        return self.code.int_cast(self.terms.clamp(value, limits.lo, limits.hi), i32)

    def _end(
        self,
        extreme: type[arith.MaxSIOp] | type[arith.MinSIOp],
        ends: Sequence[End],
        rows: tuple[SSAValue, SSAValue],
        limits: tuple[SSAValue, SSAValue],
    ) -> SSAValue:
        """The greatest or least of the ends, brought within limits."""
        type_ = self.terms.width([end.term for end in ends])
        values = [self._at(end, rows, type_) for end in ends]
        value = self._extreme(extreme, values)
        assert value is not None
        low, high = (self.code.int_cast(limit, type_) for limit in limits)
        value = self._minimum(self._maximum(value, low), high)
        return self.code.int_cast(value, i32)

    def _at(
        self, end: End, rows: tuple[SSAValue, SSAValue], type_: IntegerType
    ) -> SSAValue:
        return self.terms.write(end.term, rows[end.at_last], type_)

    def _in_order(
        self, pair: tuple[End, End], rows: tuple[SSAValue, SSAValue]
    ) -> SSAValue:
        """Whether a row has keys between two bounds; all rows agree on that."""
        type_ = self.terms.width([end.term for end in pair])
        low, high = (self.terms.write(end.term, rows[0], type_) for end in pair)
        return self.code.cmp("sle", low, high)

    def _all(self, flags: Sequence[SSAValue]) -> SSAValue | None:
        if not flags:
            return None
        result, *rest = flags
        for flag in rest:
            result = self.code.and_(result, flag)
        return result

    def _extreme(
        self,
        extreme: type[arith.MaxSIOp] | type[arith.MinSIOp],
        values: Sequence[SSAValue],
    ) -> SSAValue | None:
        if not values:
            return None
        result, *rest = values
        for value in rest:
            result = self.code.insert(extreme(result, value))
        return result

    def _met(
        self,
        extreme: type[arith.MaxSIOp] | type[arith.MinSIOp],
        a: SSAValue | None,
        b: SSAValue | None,
    ) -> SSAValue | None:
        return self._extreme(extreme, [v for v in (a, b) if v is not None])

    def _minimum(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.code.insert(arith.MinSIOp(a, b))

    def _maximum(self, a: SSAValue, b: SSAValue) -> SSAValue:
        return self.code.insert(arith.MaxSIOp(a, b))
