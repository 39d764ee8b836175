"""Taking out of the scores what is added to all of a row in a block of columns.

max(y + r) = max(y) + r, and exp2((y + r) * c + shift) = exp2(y * c + (r * c + shift)):
a term r of each row need not be added to each score. So a score region is split in two:
`rest` yields y, and `term` r. Terms are

- what a sum with the score adds to it and does not vary along columns;
- of a multiple of a distance, as in score + slope * (kv_idx - q_idx), the multiple of
  column_start - q_idx, from the block's first column. What stays with the score is the
  multiple of the column's offset in the block, which is the same in all blocks.

Distances are split where all integers are floats: positions stay exact. Other sums are
reassociated. y is rounded to half a unit in the last place of itself, at most of the
larger of score and slope * (columns of a block); before it was one of y + r. A multiple
of a distance may overflow in parts, to NaN, where slopes are above 1e36.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, f32, i64
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint

from flexc.dialects import flex, tile
from flexc.dialects.tile import ReduceKind, TileType, shape_of
from flexc.passes.blocksparse.programs.online_softmax import (
    OnlineSoftmax,
    SoftmaxState,
    exp2_fma,
    log,
    log_sum,
)
from flexc.passes.flex.score_factor import MOD_SPANS, constant_of
from flexc.passes.scalar.ranges.intervals import Interval
from flexc.passes.scalar.ranges.value_ranges import ValueRanges
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.tile.map_builder import (
    COLUMN,
    FULL,
    ROW,
    UNIFORM,
    build_map,
    build_row_map,
)

# The online softmax of scores with close bounds: no maximum, nothing to rescale.
#
#     p   = exp2(x * c + shift)
#     l   = l_i + rowsum(p)
#     acc = acc + p @ v
#
# `shift` is one constant for all rows. `softmax_facts` says when that is as good.


LN_2 = math.log(2)


@dataclass(frozen=True)
class ShiftedSoftmax(OnlineSoftmax):
    """Builds the softmax of rows whose exponents are shifted by a constant."""

    @property
    def shift(self) -> float:
        """The shift as a number of the scores' type: lse undoes what is done."""
        assert self.facts.shift is not None
        return FloatAttr(self.facts.shift, self.score_type).value.data

    def initial(self, code: ScalarCode) -> SoftmaxState:
        zero = code.const(0.0, self.score_type)
        rows = tile.FullOp(zero, TileType(self.score_type, self.shape[:1]))
        acc = tile.FullOp(zero, TileType(self.score_type, self.shape))
        return SoftmaxState.of([code.insert(rows), code.insert(acc)])

    def update(
        self,
        code: ScalarCode,
        state: SoftmaxState,
        x: SSAValue,
        v: SSAValue,
        term: SSAValue | None = None,
        count: SSAValue | None = None,
    ) -> SoftmaxState:
        """Take in the scores of one block of keys, terms of rows included."""
        assert term is None

        def weight(c: ScalarCode, x: SSAValue, factor: SSAValue) -> SSAValue:
            return exp2_fma(c, x, factor, c.const(self.shift, x.type))

        inputs = [(x, FULL), (self.factor, UNIFORM)]
        p = build_map(code, shape_of(x.type), inputs, weight, "p")
        row_sum = code.insert(tile.ReduceOp(ReduceKind.SUM, p, 1, count), "row_sum")
        l_i = build_row_map(code, [state.l_i, row_sum], _add, "l")
        return SoftmaxState(None, l_i, self.product(code, p, v, state.acc, count))

    def lse(self, code: ScalarCode, state: SoftmaxState) -> SSAValue:
        """The logarithm of the sum of exponentials, in natural units."""

        def body(c: ScalarCode, l_i: SSAValue) -> SSAValue:
            return log_sum(c, c.const(-self.shift * LN_2, l_i.type), l_i)

        return build_row_map(code, [state.l_i], body, "lse")

    def lse_parts(
        self, code: ScalarCode, state: SoftmaxState
    ) -> tuple[SSAValue, SSAValue]:
        """The shift, and the logarithm of the sum of exponentials."""
        rows = TileType(self.score_type, self.shape[:1])
        shift = code.const(-self.shift * LN_2, self.score_type)
        shifts = code.insert(tile.FullOp(shift, rows), "row_shift")
        return shifts, build_row_map(code, [state.l_i], log, "log_sum")


def _add(code: ScalarCode, a: SSAValue, b: SSAValue) -> SSAValue:
    return code.insert(arith.AddfOp(a, b))


EXACT = Interval(-(1 << 24), 1 << 24)
"""Integers that are f32 values."""

RAW, Q_IDX, KV_IDX = 0, 4, 5
"""Arguments of a score region, see `FactoredScore`."""


@dataclass(frozen=True)
class SplitScore:
    """Regions that yield what is left of the scores, and the terms of rows.

    `rest` takes a score region's arguments, and the column's offset in its block;
    `term` those but the raw score and the column, and the block's first column.
    """

    rest: Region
    term: Region


Parts = tuple[SSAValue | None, SSAValue | None]
"""What is left and what is a row's: their sum is meant."""


def split_score(region: Region, max_length: int) -> SplitScore | None:
    """Take out terms of rows; None if there are none.

    Positions are below `max_length`.
    """
    region = region.clone()
    splitter = Splitter(region.block, max_length)
    last = region.block.last_op
    assert isinstance(last, flex.YieldOp)
    rest, term = splitter.split(last.values[0])
    if rest is None or term is None:
        return None
    start, offset = splitter.start, splitter.offset
    raw, column = region.block.args[RAW], region.block.args[KV_IDX]
    return SplitScore(
        part_of(region, rest, [start]), part_of(region, term, [raw, column, offset])
    )


def part_of(region: Region, value: SSAValue, without: Sequence[SSAValue]) -> Region:
    """A region that yields one of another's values, and lacks some arguments."""
    block = Block(arg_types=[a.type for a in region.block.args])
    mapping: dict[SSAValue, SSAValue] = {}
    for old, new in zip(region.block.args, block.args, strict=True):
        mapping[old] = new
        new.name_hint = old.name_hint
    needed = slice_of(value)
    for op in region.block.ops:
        if op in needed:
            clone = op.clone(mapping)
            clone.location = op.location
            block.add_op(clone)
    block.add_op(flex.YieldOp(mapping[value]))
    for arg in without:
        new = mapping[arg]
        assert not list(new.uses)
        block.erase_arg(block.args[block.args.index(new)])
    return Region(block)


def slice_of(value: SSAValue) -> set[Operation]:
    """The ops that a value is computed by."""
    found: set[Operation] = set()
    work = [value]
    while work:
        owner = work.pop().owner
        if isinstance(owner, Operation) and owner not in found:
            found.add(owner)
            work += owner.operands
    return found


class Splitter:
    """Splits the values of one score region, to which it appends."""

    def __init__(self, block: Block, max_length: int):
        spans: Sequence[Sequence[int]] = (FULL, UNIFORM, *MOD_SPANS)
        captures = len(block.args) - len(spans)
        self.spans: dict[SSAValue, frozenset[int]] = {
            arg: frozenset(span)
            for arg, span in zip(
                block.args, [*spans, *[UNIFORM] * captures], strict=True
            )
        }
        q_idx, self.kv_idx = block.args[Q_IDX], block.args[KV_IDX]
        self.start = self.new_arg(block, UNIFORM, "column_start")
        self.offset = self.new_arg(block, COLUMN, "column_offset")
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

    def new_arg(self, block: Block, span: Sequence[int], name: str) -> SSAValue:
        arg = block.insert_arg(self.kv_idx.type, len(block.args))
        arg.name_hint = name
        self.spans[arg] = frozenset(span)
        return arg

    def span(self, value: SSAValue) -> frozenset[int]:
        """What a value varies along."""
        if value not in self.spans:
            owner = value.owner
            assert isinstance(owner, Operation)
            parts = (self.span(v) for v in owner.operands)
            self.spans[value] = frozenset[int]().union(*parts)
        return self.spans[value]

    def is_of_rows(self, value: SSAValue) -> bool:
        return self.span(value) <= frozenset(ROW)

    def split(self, value: SSAValue) -> Parts:
        """What of a value is a term of rows; both parts may be of scores or not."""
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
        return self.code.insert(arith.AddfOp(a, b), a.name_hint)

    def negated(self, parts: Parts) -> Parts:
        rest, term = (v and self.code.insert(arith.NegfOp(v)) for v in parts)
        return rest, term

    def distance(self, value: SSAValue) -> Parts | None:
        """A multiple of a distance, taken apart at the block's first column."""
        if value.type != f32:
            return None
        match value.owner:
            case arith.MulfOp(lhs=a, rhs=b):
                for x, u in ((a, b), (b, a)):
                    if self.is_of_rows(u) and (parts := self.distance(x)):
                        return self.scaled(arith.MulfOp, parts, u)
                return None
            case arith.DivfOp(lhs=x, rhs=u):
                parts = None if self.span(u) else self.distance(x)
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
        """The integer that a float is."""
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
        if not sign or not self.is_exact(rows) or not self.span(rows):
            return None
        offset = self.code.insert(arith.SIToFPOp(self.offset, f32), "offset_f32")
        if sign < 0:
            offset = self.code.insert(arith.NegfOp(offset))
        return offset, self.code.insert(arith.SIToFPOp(rows, f32), "distance")

    def linear(self, value: SSAValue) -> tuple[int, SSAValue] | None:
        """s and v with value = s * column_offset + v, where v is of rows."""
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
    return constant_of(value) == -math.inf
