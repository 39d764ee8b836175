"""The segments of a mask whose live and dead columns have a closed form.

A full segment visits the blocks that no dead range meets, a partial one the rest
of those that a live range meets. Each is one loop, whatever the number of its runs:
`block` maps the iteration to a block of one run after another.

Trimmed segments are of blocks of one column, and visit some of them at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import i32
from xdsl.ir import Block, SSAValue

from flexc.dialects.blocksparse import SegmentKind, SegmentOp, TileOrder
from flexc.dialects.mod_region import INDEX_ARGS
from flexc.passes.masks.bounds.key_ranges import KeyRange, KeyRanges
from flexc.passes.masks.bounds.terms import direction
from flexc.passes.masks.segments.block_ranges import (
    Lengths,
    RangeCode,
    Run,
)
from flexc.passes.masks.segments.subject import SegmentSubject
from flexc.passes.masks.segments.term_code import TermCode
from flexc.passes.scalar.scalar_code import ScalarCode

# Runs of columns, visited some columns at a time: iterations of trimmed segments.
#
# A run takes as many iterations as it has steps; its last one has what is left.


Pieces = list[tuple[SSAValue, SSAValue]]
"""Begin and end of each run, the end not included; none is negative."""


def limits(code: ScalarCode, lengths: Sequence[SSAValue]) -> list[SSAValue]:
    """For each run the iteration that it ends before."""
    at, *rest = lengths
    found = [at]
    for length in rest:
        at = code.add(at, length)
        found.append(at)
    return found


def iterations(code: ScalarCode, pieces: Pieces, step: int) -> list[SSAValue]:
    """For each run the iteration that it ends before, of all runs in turn."""
    lengths = [code.ceildiv(code.sub(end, begin), step) for begin, end in pieces]
    return limits(code, lengths)


def columns_of(
    code: ScalarCode, i: SSAValue, pieces: Pieces, step: int
) -> tuple[SSAValue, SSAValue]:
    """The first column of an iteration, and how many it visits."""
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
    return first, code.insert(arith.MinSIOp(size, code.sub(end, first)))


def tile_order(ranges: KeyRanges) -> TileOrder | None:
    """Longest rows first: whether later rows tend to have more columns, or fewer."""
    growth = sum(_growth(r) for r in ranges.live)
    if growth == 0:
        return None
    return TileOrder.DESCENDING if growth > 0 else TileOrder.ASCENDING


def is_band(ranges: KeyRanges) -> bool:
    """Whether both ends of what rows see move with them, as those of a window do."""
    return tile_order(ranges) is None and all(moves(r) for r in ranges.live)


def moves(keys: KeyRange) -> bool:
    """Whether both ends of a range move with the rows."""
    return all(any(direction(e.term) for e in ends) for ends in (keys.lows, keys.highs))


def _growth(keys: KeyRange) -> int:
    high = max((direction(e.term) for e in keys.highs), default=0, key=abs)
    low = max((direction(e.term) for e in keys.lows), default=0, key=abs)
    return high - low


@dataclass(frozen=True)
class MaskSegments:
    """Builds the segments of a subject, whose ranges these are."""

    subject: SegmentSubject
    ranges: KeyRanges
    block_m: int
    block_n: int
    step: int | None = None
    """Of trimmed segments: columns of an iteration at most, where block_n is 1."""

    @property
    def is_whole(self) -> bool:
        """Whether no block of columns sticks out."""
        return self.subject.column_multiple % self.block_n == 0

    @property
    def visits_all(self) -> bool:
        """Whether one run has all columns."""
        one = self.ranges.never_full or not self.ranges.dead
        return one and any(r.is_everything for r in self.ranges.live)

    def segments(self) -> list[SegmentOp]:
        """Partial blocks first, then full ones."""
        if not self.ranges.live:
            return []
        if self.ranges.never_full:
            return self.all_partial()
        if not self.ranges.dead:
            return [self.segment(SegmentKind.FULL, self.all_live, True)]
        partial = self.segment(
            SegmentKind.PARTIAL,
            lambda c: c.overlaps(
                c.runs(self.ranges.live),
                c.runs(self.ranges.dead, ragged=not self.is_whole),
            ),
            self.is_whole,
        )
        full_blocks = self.segment(
            SegmentKind.FULL,
            lambda c: c.overlaps(
                c.runs(self.ranges.live),
                c.gaps(c.runs(self.ranges.dead, ragged=not self.is_whole)),
            ),
            True,
        )
        return [partial, full_blocks]

    def all_partial(self) -> list[SegmentOp]:
        """Whole blocks, then the rest: only its columns are tested."""

        def pieces(inside: bool) -> Callable[[RangeCode], Pieces]:
            def build(c: RangeCode) -> Pieces:
                whole = c.lengths.whole
                part = Run(None, whole) if inside else Run(whole, None)
                return c.overlaps(c.runs(self.ranges.live), [part])

            return build

        found = [self.segment(SegmentKind.PARTIAL, pieces(True), True)]
        if not self.is_whole:
            found.append(self.segment(SegmentKind.PARTIAL, pieces(False), False))
        return found

    def all_live(self, c: RangeCode) -> Pieces:
        return c.overlaps(c.runs(self.ranges.live), [Run(None, None)])

    def segment(
        self,
        kind: SegmentKind,
        build: Callable[[RangeCode], Pieces],
        inside: bool,
    ) -> SegmentOp:
        bounds = self.subject.bounds_region()
        code = ScalarCode(bounds.block)
        pieces = build(self.range_code(code, bounds.block, 3))
        if self.step is not None:
            code.yield_(code.const(0), iterations(code, pieces, self.step)[-1])
        else:
            code.yield_(pieces[0][0], ends_of(code, pieces)[-1])

        block = self.subject.block_region()
        code = ScalarCode(block.block)
        name = f"{self.subject.axes[1]}_start"
        i = block.block.args[3]
        if self.step is not None:
            pieces = build(self.range_code(code, block.block, 4))
            code.yield_(*self.some_columns(code, i, pieces, self.step))
        else:
            if len(pieces) > 1:
                pieces = build(self.range_code(code, block.block, 4))
                i = block_of(code, i, pieces)
            code.yield_(code.mul(i, code.const(self.block_n), name))

        mask = None if kind == SegmentKind.FULL else self.subject.mask.clone()
        return SegmentOp(kind, bounds, block, mask, inside)

    def some_columns(
        self, code: ScalarCode, i: SSAValue, pieces: Pieces, step: int
    ) -> tuple[SSAValue, SSAValue]:
        """First column and number of those of an iteration."""
        first, count = columns_of(code, i, pieces, step)
        if self.visits_all and self.subject.column_multiple % step == 0:
            count = code.const(step)
        first.name_hint, count.name_hint = f"{self.subject.axes[1]}_start", "count"
        return first, count

    def range_code(self, code: ScalarCode, block: Block, lengths: int) -> RangeCode:
        """A writer of ranges, for a region whose lengths start at an argument."""
        b, h, start = block.args[:3]
        row_len, column_len = block.args[lengths : lengths + 2]
        mask_args = self.subject.solved.block.args
        outside: dict[SSAValue, SSAValue] = {mask_args[0]: b, mask_args[1]: h}
        captures = mask_args[len(INDEX_ARGS) :]
        outside |= dict(zip(captures, block.args[lengths + 2 :], strict=False))
        lengths_ = self.lengths(code, start, row_len, column_len)
        terms = TermCode(code, self.subject.facts, outside)
        return RangeCode(terms, lengths_, self.block_n)

    def lengths(
        self,
        code: ScalarCode,
        start: SSAValue,
        row_len: SSAValue,
        column_len: SSAValue,
    ) -> Lengths:
        one = code.const(1)
        end = code.add(start, code.const(self.block_m))
        if self.subject.row_multiple % self.block_m:
            end = code.insert(arith.MinSIOp(end, row_len))
        last = code.sub(end, one, f"{self.subject.axes[0]}_last")
        if self.block_n == 1:
            return Lengths(start, last, column_len, column_len, column_len)
        whole = code.div(column_len, code.const(self.block_n), "whole")
        blocks = whole
        if not self.is_whole:
            blocks = code.ceildiv(column_len, self.block_n, "blocks")
        return Lengths(start, last, column_len, blocks, whole)


def ends_of(code: ScalarCode, pieces: Pieces) -> list[SSAValue]:
    """For each run the iteration it ends at; the first starts at its own begin."""
    rest = [code.sub(end, begin) for begin, end in pieces[1:]]
    return limits(code, [pieces[0][1], *rest])


def block_of(code: ScalarCode, i: SSAValue, pieces: Pieces) -> SSAValue:
    """The block of an iteration: those of a run follow those of the one before."""
    assert i.type == i32
    number, zero = i, code.const(0)
    ends = ends_of(code, pieces)
    for limit, (_, end), (begin, _) in zip(ends, pieces, pieces[1:], strict=False):
        jump = code.select(code.cmp("sge", i, limit), code.sub(begin, end), zero)
        number = code.add(number, jump)
    return number
