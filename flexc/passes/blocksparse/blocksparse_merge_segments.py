"""`blocksparse-merge-segments`: one loop over partial and full blocks, on a GPU.

Each loop fills its pipeline of loads anew, which is expensive for rows of few blocks.
Without the branch around the mask, Triton also waits for keys and values together.
Consecutive segments become one mixed segment if all their blocks are inside, their
masks are equal and the op states `short_rows`. This makes kernels with block tables
faster, most with a soft cap. Causal bounds, whose rows are long, gain nothing.

With `into_one`, all segments of an op become one segment, whose loop runs at least
once. A schedule can then start with the first iteration. In kernels with roles, causal
masks gain from this, most with a soft cap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, func
from xdsl.dialects.builtin import ModuleOp, UnitAttr, i32
from xdsl.ir import Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)
from xdsl.rewriter import InsertPoint
from xdsl.transforms.common_subexpression_elimination import (
    CommonSubexpressionElimination,
)

from flexc.dialects import flex
from flexc.dialects.blocksparse import AttentionOp, PairSumsOp, SegmentKind, SegmentOp
from flexc.dialects.constants import int_constant
from flexc.dialects.flex import SumKind
from flexc.dialects.mod_region import yielded
from flexc.errors import ScheduleError
from flexc.passes.scalar.scalar_code import ScalarCode, inline_region, region_like
from flexc.passes.tile.tile_access import element_width

Range = tuple[SSAValue, SSAValue]

ITERATION = 3
"""The index of the iteration among the arguments of `block`; `bounds` has none."""


@dataclass(frozen=True)
class SegmentMerger:
    """A merger of segments with at most one mask into one segment."""

    segments: Sequence[SegmentOp]
    nonempty: bool = False
    """True if one of the segments is known to have an iteration."""
    padded: bool = False
    """True if the merged segment visits an existing block when all are empty."""
    has_columns: bool = True
    """True if there are columns, so that a padding block and table entries exist."""

    def merge(self) -> SegmentOp:
        mask = next(iter(masks_of(self.segments)), None)
        flags = {
            "inside": self.is_inside,
            "full_inside": self.kind == SegmentKind.MIXED and self.is_full_inside,
            "nonempty": self.nonempty,
            "padded": self.padded,
        }
        return SegmentOp(
            self.kind,
            self.bounds(),
            self.block(),
            None if mask is None else mask.clone(),
            [name for name, holds in flags.items() if holds],
            self.partial_if() if self.kind == SegmentKind.MIXED else None,
        )

    @property
    def kind(self) -> SegmentKind:
        if any(s.kind.data == SegmentKind.MIXED for s in self.segments):
            return SegmentKind.MIXED
        has_mask = bool(masks_of(self.segments))
        # Without a mask, the end of a block says whether its columns need a test.
        differ = len({is_partial(s) for s in self.segments}) > 1
        if differ and (has_mask or self.is_full_inside):
            return SegmentKind.MIXED
        return SegmentKind.PARTIAL if has_mask else SegmentKind.FULL

    @property
    def is_inside(self) -> bool:
        """True if no block reaches beyond the last column.

        A padding block does so if there are no columns.
        """
        inside = all(s.inside is not None for s in self.segments)
        return inside and (self.has_columns or not self.padded)

    @property
    def is_full_inside(self) -> bool:
        """True if only blocks of partial segments may reach beyond the last column."""
        full = (s for s in self.segments if not is_partial(s))
        mixed = (s for s in self.segments if s.kind.data == SegmentKind.MIXED)
        return (
            not self.is_inside
            and all(s.inside is not None for s in full)
            and all(s.inside or s.full_inside for s in mixed)
        )

    def bounds(self) -> Region:
        """Write the bounds of all iterations, counted from 0."""
        region, code = self.like(self.segments[0].bounds)
        ends = self.ends(code, self.ranges(code, region.block.args))
        code.yield_(code.const(0), ends[-1])
        return region

    def block(self) -> Region:
        """Write the start of the block that each iteration visits."""
        region, code = self.like(self.segments[0].block)
        args: list[SSAValue] = list(region.block.args)
        i = args[ITERATION]
        ranges = self.ranges(code, args[:ITERATION] + args[ITERATION + 1 :])
        ends = self.ends(code, ranges)
        start: SSAValue | None = None
        for number, segment in enumerate(self.segments):
            args[ITERATION] = self.own_iteration(code, number, i, ranges, ends)
            (value,) = inline_region(segment.block, args, code)
            if start is not None:
                later = code.cmp("sge", i, ends[number - 1])
                value = code.select(later, value, start)
            start = value
        assert start is not None
        if self.padded:
            start = self.existing(code, ends[-1], start)
        code.yield_(start)
        if self.padded and not self.has_columns:
            guard_loads(region)
        return region

    def own_iteration(
        self,
        code: ScalarCode,
        number: int,
        i: SSAValue,
        ranges: Sequence[Range],
        ends: Sequence[SSAValue],
    ) -> SSAValue:
        """Return the iteration of segment `number` that corresponds to iteration i.

        If i belongs to another segment, the result is clamped to an iteration of the
        segment, because `block` may read a table. If the segment has no iteration, the
        result is its begin: tables have an entry there if there are columns.
        """
        begin, end = ranges[number]
        before = ends[number - 1] if number else code.const(0)
        own = code.add(begin, code.sub(i, before))
        if not reads(self.segments[number].block):
            return own
        if number + 1 < len(ranges):
            own = code.min(own, code.sub(end, code.const(1)))
        return code.max(own, begin, "i")

    @staticmethod
    def existing(code: ScalarCode, count: SSAValue, start: SSAValue) -> SSAValue:
        """Return a block's start, or the first column if there are no blocks.

        Without blocks, a table's entry may hold any value.
        """
        zero = code.const(0)
        return code.select(code.cmp("slt", zero, count), start, zero)

    def partial_if(self) -> Region:
        """Write the condition that an iteration belongs to a partial segment."""
        region, code = self.like(self.segments[0].block)
        args: list[SSAValue] = list(region.block.args)
        i = args.pop(ITERATION)
        ranges = self.ranges(code, args)
        if self.segments[0].partial_if is not None:  # A mixed segment is alone.
            args.insert(ITERATION, code.add(ranges[0][0], i))
            code.yield_(*inline_region(self.segments[0].partial_if, args, code))
            return region
        ends = self.ends(code, ranges)
        partial: SSAValue | None = None
        for number, segment in enumerate(self.segments):
            if not is_partial(segment):
                continue
            within = code.cmp("slt", i, ends[number])
            if number:
                within = code.and_(within, code.cmp("sge", i, ends[number - 1]))
            partial = within if partial is None else code.or_(partial, within)
        assert partial is not None
        code.yield_(partial)
        return region

    def ranges(self, code: ScalarCode, args: Sequence[SSAValue]) -> list[Range]:
        found: list[Range] = []
        for segment in self.segments:
            begin, end = inline_region(segment.bounds, args, code)
            found.append((begin, end))
        return found

    def ends(self, code: ScalarCode, ranges: Sequence[Range]) -> list[SSAValue]:
        """Return the iterations at which segments end; a range may be reversed."""
        at, zero = code.const(0), code.const(0)
        found: list[SSAValue] = []
        for begin, end in ranges:
            length = code.max(code.sub(end, begin), zero)
            at = code.add(at, length)
            found.append(at)
        return found

    @staticmethod
    def like(region: Region) -> tuple[Region, ScalarCode]:
        """Return an empty region with the arguments of `region`, and its code."""
        new = region_like(region)
        return new, ScalarCode(new.block)


def is_partial(segment: SegmentOp) -> bool:
    """Return True if a segment is partial and its blocks need a test."""
    has_tests = segment.mask_mod is not None or segment.inside is None
    return has_tests and not segment.is_full


def reads(block: Region) -> bool:
    return any(isinstance(op, flex.LoadCaptureOp) for op in block.walk())


def guard_loads(block: Region) -> None:
    """Guard a block's loads: tables may have no entry."""
    for op in block.walk():
        if isinstance(op, flex.LoadCaptureOp):
            op.inside = None


WIDTH = 16
"""The bits of elements whose products are asynchronous."""

MAX_HEAD_DIM = 128
"""The largest head dim to merge for: wider accumulators leave no registers."""


def groups(segments: Sequence[SegmentOp]) -> list[list[SegmentOp]]:
    """Return the longest runs of segments that may be merged."""
    found: list[list[SegmentOp]] = []
    for segment in segments:
        if found and all(fits(segment, other) for other in found[-1]):
            found[-1].append(segment)
        else:
            found.append([segment])
    return found


def fits(a: SegmentOp, b: SegmentOp) -> bool:
    """Return True if two segments may share a loop."""
    if a.inside is None or b.inside is None:
        return False
    if any(not s.is_full and s.mask_mod is None for s in (a, b)):
        return False
    return may_be_merged([a, b])


def may_be_merged(segments: Sequence[SegmentOp]) -> bool:
    """Return True if segments can be merged: they have at most one mask.

    A mixed segment is not merged with others, a trimmed one with none.
    """
    has_mixed = any(s.kind.data == SegmentKind.MIXED for s in segments)
    if (has_mixed and len(segments) > 1) or any(s.is_trimmed for s in segments):
        return False
    masks = masks_of(segments)
    return all(masks[0].is_structurally_equivalent(m) for m in masks[1:])


def masks_of(segments: Sequence[SegmentOp]) -> list[Region]:
    return [s.mask_mod for s in segments if s.mask_mod is not None]


class MergeSegments(RewritePattern):
    """A pattern that merges runs of segments that have full and partial blocks."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: AttentionOp, rewriter: PatternRewriter) -> None:
        if op.short_rows is None:
            return
        dims = (flex.tensor_shape(v)[3] for v in (op.query, op.value))
        if element_width(op.query.type) > WIDTH or max(dims) > MAX_HEAD_DIM:
            return
        for group in groups(segments_of(op)):
            if len({s.is_full for s in group}) < 2:
                continue
            replace(group, SegmentMerger(group).merge(), rewriter)


class MergeIntoOne(RewritePattern):
    """A pattern that merges all segments of an op into one whose loop always runs."""

    @op_type_rewrite_pattern
    def match_and_rewrite(
        self, op: AttentionOp | PairSumsOp, rewriter: PatternRewriter
    ) -> None:
        segments = segments_of(op)
        is_one = segments and may_be_merged(segments) and not stores_blocks(op)
        if isinstance(op, PairSumsOp) and op.ordered is not None:
            check_order(op, segments if is_one else [])
        if not is_one:
            return
        # Every program has rows.
        if is_split(op) or not rows_see_columns(op):
            has_columns = op.has_pairs is not None
            merger = SegmentMerger(segments, padded=True, has_columns=has_columns)
            replace(segments, merger.merge(), rewriter)
        elif len(segments) > 1:
            replace(segments, SegmentMerger(segments, nonempty=True).merge(), rewriter)
        else:
            segments[0].nonempty = UnitAttr()


def check_order(op: PairSumsOp, segments: Sequence[SegmentOp]) -> None:
    """Raise `ScheduleError` unless programs of heads visit blocks in rising order.

    That is so if each segment begins where the one before it ends, and has block i at
    iteration i. `segments` are those that become one.
    """
    if op.tile_origin:
        raise ScheduleError("sums of a part have no order of additions")
    size = op.block_n.value.data
    if op.tables or not segments or not all(is_plain(s.block, size) for s in segments):
        raise ScheduleError("blocks of columns are not visited in rising order")
    region, code = SegmentMerger.like(segments[0].bounds)
    ranges = SegmentMerger(segments).ranges(code, region.block.args)
    end = flex.YieldOp(*(value for pair in ranges for value in pair))
    code.builder.insert(end)
    types = region.block.arg_types
    bounds = func.FuncOp("bounds", (types, [i32] * len(end.operands)), region)
    CommonSubexpressionElimination().apply(Context(), ModuleOp([bounds]))
    for last, first in zip(end.operands[1:-1:2], end.operands[2::2], strict=True):
        if last is not first:
            raise ScheduleError("segments are not visited in rising order")


def is_plain(block: Region, size: int) -> bool:
    """Return True if an iteration visits the block of its number."""
    (start,) = yielded(block.block)
    if not isinstance(start.owner, arith.MuliOp):
        return False
    i, factor = start.owner.operands
    return i is block.block.args[ITERATION] and int_constant(factor) == size


def segments_of(op: AttentionOp | PairSumsOp) -> list[SegmentOp]:
    return [o for o in op.segments.block.ops if isinstance(o, SegmentOp)]


def rows_see_columns(op: AttentionOp | PairSumsOp) -> bool:
    """Return True if every row is known to see a column."""
    if not (isinstance(op, PairSumsOp) and op.is_transposed):
        return op.rows_never_empty is not None
    ranges = None if op.tables else op.key_ranges
    return op.has_pairs is not None and ranges is not None and ranges.is_everything


def is_split(op: AttentionOp | PairSumsOp) -> bool:
    """Return True if programs visit a share of the blocks, which may be empty."""
    return isinstance(op, AttentionOp) and op.splits is not None


def stores_blocks(op: AttentionOp | PairSumsOp) -> bool:
    """Return True if results of single blocks are stored, which forbids padding."""
    if isinstance(op, AttentionOp):
        return False
    kinds = {attr.sum_kind for attr in op.sums}
    return bool(kinds & {SumKind.PAIRS, SumKind.DIAGONAL})


def replace(
    group: Sequence[SegmentOp], merged: SegmentOp, rewriter: PatternRewriter
) -> None:
    rewriter.insert(merged, InsertPoint.before(group[0]))
    for segment in group:
        rewriter.erase(segment)


@dataclass(frozen=True)
class BlocksparseMergeSegmentsPass(ModulePass):
    """A pass that merges loops over partial and full blocks."""

    name = "blocksparse-merge-segments"

    into_one: bool = False
    """True to merge all segments of an op, for any head dim and element type."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pattern = MergeIntoOne() if self.into_one else MergeSegments()
        PatternRewriteWalker(pattern, apply_recursively=False).rewrite_module(op)
