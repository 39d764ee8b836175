"""Split terms of rows off the scores of a block of columns.

max(y + r) = max(y) + r, and exp2((y + r) * c + shift) = exp2(y * c + (r * c + shift)).
A term r of each row therefore need not be added to each score. A score region is split
in two: `rest` yields y, and `term` yields r. Terms are

- summands of the score that do not vary along columns;
- parts of multiples of a distance, as in score + slope * (kv_idx - q_idx). The term is
  the multiple of column_start - q_idx, where column_start is the first column of the
  block. The rest is the multiple of the column's offset in the block, which is the same
  in all blocks.

Distances are split only if floats represent all integers exactly: positions stay exact.
Other sums are reassociated. y is rounded to half a unit in the last place of the larger
of score and slope * (columns of a block); without the split, y + r was rounded instead.
The parts of a multiple of a distance may overflow, to NaN, if slopes are above 1e36.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import f32, i64
from xdsl.ir import Block, Region, SSAValue
from xdsl.rewriter import InsertPoint

from flexc.dialects.constants import float_constant
from flexc.dialects.mod_region import yielded
from flexc.passes.flex.score_factor import score_variation
from flexc.passes.scalar.copier import copied
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.scalar.ranges.value_ranges import ValueRanges
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tile.map_builder import COLUMN, ROW

EXACT = Interval(-(1 << 24), 1 << 24)
"""The range of integers that are f32 values."""

RAW, Q_IDX, KV_IDX = 0, 4, 5
"""The indices of arguments of a score region, see `FactoredScore`."""


@dataclass(frozen=True)
class SplitScore:
    """Regions that yield the rest of the scores, and the terms of rows.

    `rest` takes the arguments of a score region, and the column's offset in its block.
    `term` takes these arguments without the raw score and the column, and the block's
    first column.
    """

    rest: Region
    term: Region


Parts = tuple[SSAValue | None, SSAValue | None]
"""The rest of a score and the term of its row, whose sum is the score."""


def split_score(region: Region, max_length: int) -> SplitScore | None:
    """Split terms of rows off a score region; return None if there are none.

    Positions are below `max_length`.
    """
    region = region.clone()
    splitter = Splitter(region.block, max_length)
    rest, term = splitter.split(yielded(region.block)[0])
    if rest is None or term is None:
        return None
    start, offset = splitter.start, splitter.offset
    raw, column = region.block.args[RAW], region.block.args[KV_IDX]
    return SplitScore(
        part_of(region, rest, [start]), part_of(region, term, [raw, column, offset])
    )


def part_of(region: Region, value: SSAValue, without: Sequence[SSAValue]) -> Region:
    """Return a region that yields one value of `region`, without some arguments."""
    return copied(region, [value], [a for a in region.block.args if a not in without])


class Splitter:
    """A splitter of the values of one score region, to which it appends ops."""

    def __init__(self, block: Block, max_length: int):
        q_idx, self.kv_idx = block.args[Q_IDX], block.args[KV_IDX]
        self.start = self.new_arg(block, "column_start")
        self.offset = self.new_arg(block, "column_offset")
        self.spans = score_variation(block)
        self.spans[self.offset] = frozenset(COLUMN)
        self.scores: set[SSAValue] = {block.args[RAW]}
        for op in block.ops:
            if any(v in self.scores for v in op.operands):
                self.scores.update(op.results)
        last = block.last_op
        assert last is not None
        self.code = ScalarCode(InsertPoint.before(last))
        position = Interval(0, max_length - 1)
        known = dict.fromkeys((q_idx, self.kv_idx, self.start), position)
        self.ranges = ValueRanges(known)

    def new_arg(self, block: Block, name: str) -> SSAValue:
        arg = block.insert_arg(self.kv_idx.type, len(block.args))
        arg.name_hint = name
        return arg

    def is_of_rows(self, value: SSAValue) -> bool:
        return self.spans[value] <= frozenset(ROW)

    def split(self, value: SSAValue) -> Parts:
        """Split a value into the rest and a term of rows."""
        if self.is_of_rows(value):
            return None, value
        if value not in self.scores:
            return self.distance(value) or (value, None)
        match value.owner:
            case arith.AddfOp(lhs=lhs, rhs=rhs):
                parts = self.sum(self.split(lhs), self.split(rhs))
            case arith.SubfOp(lhs=lhs, rhs=rhs):
                parts = self.sum(self.split(lhs), self.negated(self.split(rhs)))
            case arith.SelectOp(cond=live, lhs=x, rhs=dead) if is_minus_inf(dead):
                rest, term = self.split(x)
                parts = rest and self.code.select(live, rest, dead), term
            case _:
                return value, None
        rest, term = parts
        return (value, None) if rest is None or term is None else (rest, term)

    def sum(self, a: Parts, b: Parts) -> Parts:
        return self.added(a[0], b[0]), self.added(a[1], b[1])

    def added(self, a: SSAValue | None, b: SSAValue | None) -> SSAValue | None:
        if a is None or b is None:
            return a or b
        return self.code.addf(a, b, a.name_hint)

    def negated(self, parts: Parts) -> Parts:
        rest, term = (v and self.code.negf(v) for v in parts)
        return rest, term

    def distance(self, value: SSAValue) -> Parts | None:
        """Split a multiple of a distance at the block's first column, else None."""
        if value.type != f32:
            return None
        match value.owner:
            case arith.MulfOp(lhs=a, rhs=b):
                for x, u in ((a, b), (b, a)):
                    if self.is_of_rows(u) and (parts := self.distance(x)):
                        return self.scaled(arith.MulfOp, parts, u)
                return None
            case arith.DivfOp(lhs=x, rhs=u):
                parts = None if self.spans[u] else self.distance(x)
                return parts and self.scaled(arith.DivfOp, parts, u)
            case arith.NegfOp(operand=x):
                parts = self.distance(x)
                return parts and self.negated(parts)
            case _:
                integer = self.integer(value)
                return integer and self.integer_distance(integer)

    def scaled(
        self, op: type[arith.MulfOp | arith.DivfOp], parts: Parts, u: SSAValue
    ) -> Parts:
        rest, term = (v and self.code.insert(op(v, u), v.name_hint) for v in parts)
        return rest, term

    def is_exact(self, value: SSAValue) -> bool:
        return self.ranges[value].within(EXACT)

    def integer(self, value: SSAValue) -> SSAValue | None:
        """Return the integer that a float was converted from exactly, or None."""
        match value.owner:
            case arith.SIToFPOp(input=integer):
                return integer if self.is_exact(integer) else None
            case arith.SubfOp(lhs=lhs, rhs=rhs):
                a, b = self.integer(lhs), self.integer(rhs)
                if a is None or b is None or a.type != b.type:
                    return None
                difference = self.code.sub(a, b)
                return difference if self.is_exact(difference) else None
            case _:
                return None

    def integer_distance(self, value: SSAValue) -> Parts | None:
        sign, rows = self.linear(value) or (0, value)
        if not sign or not self.is_exact(rows) or not self.spans[rows]:
            return None
        offset = self.code.insert(arith.SIToFPOp(self.offset, f32), "offset_f32")
        if sign < 0:
            offset = self.code.negf(offset)
        return offset, self.code.insert(arith.SIToFPOp(rows, f32), "distance")

    def linear(self, value: SSAValue) -> tuple[int, SSAValue] | None:
        """Return s and v with value = s * column_offset + v, or None; v is of rows."""
        if value == self.kv_idx:
            return 1, self.start
        if self.is_of_rows(value):
            return 0, value
        op = value.owner
        if isinstance(op, arith.ExtSIOp):
            found = self.linear(op.input)
            return found and (found[0], self.code.int_cast(found[1], i64))
        if not isinstance(op, arith.AddiOp | arith.SubiOp):
            return None
        a, b = self.linear(op.lhs), self.linear(op.rhs)
        if a is None or b is None:
            return None
        s = a[0] + b[0] if isinstance(op, arith.AddiOp) else a[0] - b[0]
        if abs(s) > 1:
            return None
        return s, self.code.insert(type(op)(a[1], b[1]))


def is_minus_inf(value: SSAValue) -> bool:
    return float_constant(value) == -math.inf
