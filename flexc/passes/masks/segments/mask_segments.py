"""Build the segments of a mask from its ranges of live and dead columns.

Without a closed form, all columns may be both. A full segment visits the live blocks
that no dead range meets. A partial segment visits the other live blocks. Each segment
is one loop over several intervals of blocks. The region `block` maps an iteration to a
block, one interval after another.

If that is asked for, and live blocks are one interval with partial blocks at both ends,
one mixed segment visits them in order. A loop then keeps fewer numbers.

Trimmed segments have blocks of one column, and visit several columns in an iteration.
An interval of columns takes ceil(columns / step) iterations. The last one visits the
rest. Intervals may be aligned where their ends move with the rows, so that iterations
of several programs visit the same columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

from xdsl.dialects.builtin import i32
from xdsl.ir import Block, SSAValue

from flexc.dialects.blocksparse import SegmentKind, SegmentOp, TileOrder
from flexc.dialects.mod_region import INDEX_ARGS
from flexc.passes.masks.bounds.key_ranges import KeyRange, KeyRanges
from flexc.passes.masks.bounds.terms import direction
from flexc.passes.masks.segments.mask_problem import MaskProblem
from flexc.passes.masks.segments.range_code import (
    EVERY_BLOCK,
    BlockInterval,
    Lengths,
    RangeCode,
    TermCode,
)
from flexc.passes.masks.segments.sequences import Place
from flexc.passes.scalar.scalar_code import ScalarCode, combined

Pieces = list[tuple[SSAValue, SSAValue]]
"""The begin and the end of each interval. The end is not included. No number is
negative.
"""


def limits(code: ScalarCode, lengths: Sequence[SSAValue]) -> list[SSAValue]:
    """Return running sums: the iteration at which each interval ends."""
    at, *rest = lengths
    found = [at]
    for length in rest:
        at = code.add(at, length)
        found.append(at)
    return found


def iterations(code: ScalarCode, pieces: Pieces, step: int) -> list[SSAValue]:
    """Return the iteration at which each interval ends.

    An iteration visits up to `step` blocks of one interval.
    """
    lengths = [code.ceildiv(code.sub(end, begin), step) for begin, end in pieces]
    return limits(code, lengths)


def columns_of(
    code: ScalarCode, i: SSAValue, pieces: Pieces, step: int
) -> tuple[SSAValue, SSAValue]:
    """Return the first column and the number of columns of an iteration."""
    (begin, end), *rest = pieces
    if rest:
        before = code.const(0)
        ends = iterations(code, pieces, step)
        for limit, (next_begin, next_end) in zip(ends, rest, strict=False):
            later = code.cmp("sge", i, limit)
            before = code.select(later, limit, before)
            begin = code.select(later, next_begin, begin)
            end = code.select(later, next_end, end)
        i = code.sub(i, before)
    size = code.const(step)
    first = code.add(begin, code.mul(i, size))
    return first, code.min(size, code.sub(end, first))


def tile_order(ranges: KeyRanges) -> TileOrder | None:
    """Return the order that starts with the rows that tend to have most columns.

    Return None if later rows tend to have neither more nor fewer columns.
    """
    return (None, TileOrder.DESCENDING, TileOrder.ASCENDING)[growth(ranges)]


def rises(ranges: KeyRanges) -> bool:
    """Return True if neither end of the live columns falls from row to row.

    The starts of packed sequences, which bounds add, rise too.
    """
    if len(ranges.live) != 1:
        return False
    ends = (*ranges.live[0].lows, *ranges.live[0].highs)
    return all(direction(end.term) >= 0 for end in ends)


def growth(ranges: KeyRanges) -> int:
    """Return the sign of the change of the number of live columns from row to row."""
    total = sum(_growth(r) for r in ranges.live)
    return (total > 0) - (total < 0)


def moves(keys: KeyRange) -> bool:
    """Return True if both ends of a range move with the rows."""
    return all(any(direction(e.term) for e in ends) for ends in (keys.lows, keys.highs))


def _growth(keys: KeyRange) -> int:
    high = max((direction(e.term) for e in keys.highs), default=0, key=abs)
    low = max((direction(e.term) for e in keys.lows), default=0, key=abs)
    return high - low


OneLoop = Literal["never", "if faster", "always"]
"""The masks for which one loop visits partial and full blocks in their order.

Programs that must visit blocks in rising order need "always".
"""


@dataclass(frozen=True)
class MaskSegments:
    """A builder of the segments of a problem, given the problem's ranges."""

    problem: MaskProblem
    ranges: KeyRanges
    block_m: int
    block_n: int
    step: int | None = None
    """The maximum number of columns of an iteration, if segments are trimmed."""
    aligned: int = 1
    """Trimmed intervals whose ends move with the rows end at multiples of this."""
    one_loop: OneLoop = "never"

    @property
    def is_whole(self) -> bool:
        """True if every block of columns is within the number of columns."""
        return self.problem.column_multiple % self.block_n == 0

    @property
    def visits_all(self) -> bool:
        """True if a single interval contains all columns."""
        one = self.has_one_kind and self.problem.packed is None
        return one and any(r.is_everything for r in self.ranges.live)

    @property
    def has_one_kind(self) -> bool:
        """True if all whole blocks are of the same kind."""
        return self.ranges.never_full or self.is_full

    @property
    def is_full(self) -> bool:
        """True if no pair is dead."""
        return not self.ranges.dead and self.problem.packed is None

    def segments(self) -> list[SegmentOp]:
        """Return the segments: partial blocks first unless one loop is in order."""
        if not self.ranges.live:
            return []
        if self.has_one_kind:
            return self.all_of_one_kind()
        if self.is_mixed():
            return [self.mixed()]
        partial = self.segment(
            SegmentKind.PARTIAL,
            lambda c: c.overlaps(c.live_intervals(self.ranges.live), self.dead(c)),
            self.is_whole,
        )
        full_blocks = self.segment(
            SegmentKind.FULL,
            lambda c: c.overlaps(
                c.live_intervals(self.ranges.live), c.gaps(self.dead(c))
            ),
            True,
        )
        return [partial, full_blocks]

    def dead(self, c: RangeCode) -> list[BlockInterval]:
        """Return the intervals of blocks with dead pairs."""
        return c.dead_intervals(self.ranges.dead, ragged=not self.is_whole)

    def is_mixed(self) -> bool:
        """Return True if one loop visits partial and full blocks in their order.

        This is faster if the live blocks are one interval, with dead pairs at both
        ends. The incomplete last block does not count, as causal masks are slower in
        order. A rising order needs one loop if there are dead pairs at the end, where
        the incomplete block counts: in two segments they would come first.
        """
        if self.one_loop == "never":
            return False
        always = self.one_loop == "always"
        region = self.problem.block_region().block
        c = self.range_code(ScalarCode(region), region, 4)
        ragged = always and not self.is_whole
        dead = c.dead_intervals(self.ranges.dead, ragged=ragged)
        ends_late = always and any(d.begin is not None for d in dead)
        return len(c.live_intervals(self.ranges.live)) == 1 and (
            len(dead) > 1 or ends_late
        )

    def mixed(self) -> SegmentOp:
        """Return a segment that visits live blocks, partial or full, in their order."""
        bounds = self.problem.bounds_region()
        code = ScalarCode(bounds.block)
        code.yield_(*self.all_live(self.range_code(code, bounds.block, 3))[0])

        block = self.problem.block_region()
        code = ScalarCode(block.block)
        size, name = code.const(self.block_n), f"{self.problem.axes[1]}_start"
        code.yield_(code.mul(block.block.args[3], size, name))

        partial = self.problem.block_region()
        code, i = ScalarCode(partial.block), partial.block.args[3]
        dead = self.dead(self.range_code(code, partial.block, 4))
        is_partial = combined(code.or_, [within_interval(code, i, d) for d in dead])
        assert is_partial is not None
        code.yield_(is_partial)
        facts = ["inside" if self.is_whole else "full_inside"]
        mask = self.problem.mask_of(SegmentKind.MIXED)
        return SegmentOp(SegmentKind.MIXED, bounds, block, mask, facts, partial)

    def all_of_one_kind(self) -> list[SegmentOp]:
        """Return a segment of the last, incomplete block and one of whole blocks.

        Only the first segment tests columns against the length. It comes last if blocks
        must be visited in rising order.
        """

        def live(
            part: Callable[[SSAValue], BlockInterval],
        ) -> Callable[[RangeCode], Pieces]:
            return lambda c: c.overlaps(
                c.live_intervals(self.ranges.live), [part(c.lengths.whole)]
            )

        kind = SegmentKind.FULL if self.is_full else SegmentKind.PARTIAL
        whole = self.segment(kind, live(lambda n: BlockInterval(None, n)), True)
        if self.is_whole:
            return [whole]
        after = live(lambda n: BlockInterval(n, None))
        last = self.segment(SegmentKind.PARTIAL, after, False)
        return [whole, last] if self.one_loop == "always" else [last, whole]

    def all_live(self, c: RangeCode) -> Pieces:
        return c.overlaps(c.live_intervals(self.ranges.live), [EVERY_BLOCK])

    def segment(
        self,
        kind: SegmentKind,
        build: Callable[[RangeCode], Pieces],
        inside: bool,
    ) -> SegmentOp:
        bounds = self.problem.bounds_region()
        code = ScalarCode(bounds.block)
        pieces = build(self.range_code(code, bounds.block, 3))
        if self.step is not None:
            code.yield_(code.const(0), iterations(code, pieces, self.step)[-1])
        else:
            code.yield_(pieces[0][0], ends_of(code, pieces)[-1])

        block = self.problem.block_region()
        code = ScalarCode(block.block)
        name = f"{self.problem.axes[1]}_start"
        i = block.block.args[3]
        if self.step is not None:
            pieces = build(self.range_code(code, block.block, 4))
            code.yield_(*self.some_columns(code, i, pieces, self.step))
        else:
            if len(pieces) > 1:
                pieces = build(self.range_code(code, block.block, 4))
                i = block_of(code, i, pieces)
            code.yield_(code.mul(i, code.const(self.block_n), name))

        mask = self.problem.mask_of(kind)
        return SegmentOp(kind, bounds, block, mask, ["inside"] * inside)

    def some_columns(
        self, code: ScalarCode, i: SSAValue, pieces: Pieces, step: int
    ) -> tuple[SSAValue, SSAValue]:
        """Return the first column of an iteration, and the number of its columns."""
        first, count = columns_of(code, i, pieces, step)
        if self.visits_all and self.problem.column_multiple % step == 0:
            count = code.const(step)
        first.name_hint, count.name_hint = f"{self.problem.axes[1]}_start", "count"
        return first, count

    def range_code(self, code: ScalarCode, block: Block, lengths: int) -> RangeCode:
        """Return a writer of ranges; `lengths` is the index of the first length."""
        b, h, start = block.args[:3]
        row_len, column_len = block.args[lengths : lengths + 2]
        mask_args = self.problem.solved.block.args
        captures = block.args[lengths + 2 :]
        outside: dict[SSAValue, SSAValue] = {mask_args[0]: b, mask_args[1]: h}
        outside |= dict(zip(mask_args[len(INDEX_ARGS) :], captures, strict=False))
        whole = self.lengths(code, start, row_len, column_len)

        def written(number: SSAValue, lengths: Lengths) -> RangeCode:
            known = outside | {mask_args[0]: number}
            terms = TermCode(code, self.problem.facts, known)
            return RangeCode(terms, lengths, self.block_n, self.aligned)

        packed = self.problem.packed
        if packed is None:
            return written(b, whole)
        first, last = (
            Place.of_row(code, packed, row, captures)
            for row in (whole.q_first, whole.q_last)
        )
        return PackedRangeCode(
            whole, (first, last), lambda p: written(p.number, within(code, p, whole))
        )

    def lengths(
        self,
        code: ScalarCode,
        start: SSAValue,
        row_len: SSAValue,
        column_len: SSAValue,
    ) -> Lengths:
        one = code.const(1)
        end = code.add(start, code.const(self.block_m))
        if self.problem.row_multiple % self.block_m:
            end = code.min(end, row_len)
        last = code.sub(end, one, f"{self.problem.axes[0]}_last")
        if self.block_n == 1:
            return Lengths(start, last, column_len, column_len, column_len)
        whole = code.div(column_len, code.const(self.block_n), "whole")
        blocks = whole
        if not self.is_whole:
            blocks = code.ceildiv(column_len, self.block_n, "blocks")
        return Lengths(start, last, column_len, blocks, whole)


def within_interval(code: ScalarCode, i: SSAValue, interval: BlockInterval) -> SSAValue:
    """Return the condition that a block is in an interval, which has an end."""
    ends = ("sge", interval.begin), ("slt", interval.end)
    tests = [code.cmp(test, i, end) for test, end in ends if end is not None]
    return reduce(code.and_, tests)


def within(code: ScalarCode, place: Place, block: Lengths) -> Lengths:
    """Return the rows of a block that are of a sequence, and its columns.

    They count from the sequence's first row and column.
    """
    first = code.max(block.q_first, place.row_start)
    last = code.min(block.q_last, code.sub(place.row_end, code.const(1)))
    first, last = (code.sub(row, place.row_start) for row in (first, last))
    columns = code.sub(place.column_end, place.column_start)
    return Lengths(first, last, columns, columns, columns)


Ends = tuple[SSAValue | None, SSAValue | None]


class PackedRangeCode(RangeCode):
    """A writer of ranges of columns for a block of rows of packed sequences.

    The rows may belong to several sequences, whose columns are in the same order. So
    ranges of live columns begin in the sequence of the first row and end in that of the
    last row. If these differ, every column is dead for some row.
    """

    def __init__(
        self,
        block: Lengths,
        places: tuple[Place, Place],
        written: Callable[[Place], RangeCode],
    ):
        self.first, self.last = map(written, places)
        super().__init__(self.first.terms, block, self.first.block_n)
        self.places = places

    def live_intervals(self, ranges: Sequence[KeyRange]) -> list[BlockInterval]:
        first, last = self.places
        end = self.code.sub(last.column_end, self.code.const(1))
        around = self._block_of(first.column_start), self._blocks_of(self._high(end))
        return self.block_intervals(ranges, around=around)

    def dead_intervals(
        self, ranges: Sequence[KeyRange], ragged: bool
    ) -> list[BlockInterval]:
        code, (first, last) = self.code, self.places
        is_one = code.cmp("eq", first.number, last.number)
        dead = code.select(is_one, first.column_start, self.lengths.kv_len)
        ends = [self._blocks_of(code.sub(dead, code.const(1)))]
        begins = [self._begin_at(last.column_end), *[self.lengths.whole] * ragged]
        return self.block_intervals(ranges, ends, begins)

    def _ends(self, keys: KeyRange) -> Ends:
        code, (first, last) = self.code, self.places
        low, _ = self.first._ends(keys)
        _, high = self.last._ends(keys)
        if low is not None:
            low = code.add(low, first.column_start)
            is_past = code.cmp("sge", low, last.column_end)
            low = code.select(is_past, self.lengths.kv_len, low)
        if high is not None:
            high = self._high(code.add(high, last.column_start))
        return low, high

    def _high(self, high: SSAValue) -> SSAValue:
        """Return the last column of a range, -1 if it is before the first sequence."""
        code = self.code
        is_before = code.cmp("slt", high, self.places[0].column_start)
        return code.select(is_before, code.const(-1), high)


def ends_of(code: ScalarCode, pieces: Pieces) -> list[SSAValue]:
    """Return for each interval the iteration at which the interval ends.

    The iterations of the first interval are its block numbers.
    """
    rest = [code.sub(end, begin) for begin, end in pieces[1:]]
    return limits(code, [pieces[0][1], *rest])


def block_of(code: ScalarCode, i: SSAValue, pieces: Pieces) -> SSAValue:
    """Return the block of an iteration, which visits one interval after another."""
    assert i.type == i32
    number, zero = i, code.const(0)
    ends = ends_of(code, pieces)
    for limit, (_, end), (begin, _) in zip(ends, pieces, pieces[1:], strict=False):
        jump = code.select(code.cmp("sge", i, limit), code.sub(begin, end), zero)
        number = code.add(number, jump)
    return number
