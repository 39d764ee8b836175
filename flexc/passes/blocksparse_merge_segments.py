"""`blocksparse-merge-segments`: one loop over partial and full blocks, on a GPU.

A loop fills its pipeline of loads anew, which rows of few blocks feel. And without
the branch around the mask Triton waits for keys and values at once. Consecutive
segments whose blocks lie inside become one mixed segment, if their masks are equal
and `short_rows` is said. Block tables gain 5 to 15 % on an H100, and more with a soft
cap; causal bounds, whose rows are long, gained nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)
from xdsl.rewriter import InsertPoint

from flexc.dialects import flex
from flexc.dialects.blocksparse import AttentionOp, SegmentKind, SegmentOp
from flexc.passes.scalar_code import ScalarCode, inline_region, new_region
from flexc.passes.tile_shapes import element_width

Range = tuple[SSAValue, SSAValue]

WIDTH = 16
"""Bits of the elements whose products are asynchronous."""

ITERATION = 3
"""Where `block` has the iteration among its arguments, and `bounds` none."""


@dataclass(frozen=True)
class Merger:
    """Merges segments into one."""

    segments: Sequence[SegmentOp]

    def merge(self) -> SegmentOp:
        masks = [s.mask_mod for s in self.segments if s.mask_mod is not None]
        return SegmentOp(
            SegmentKind.MIXED,
            self.bounds(),
            self.block(),
            masks[0].clone(),
            inside=True,
            masked_if=self.masked_if(),
        )

    def bounds(self) -> Region:
        """All iterations, counted from 0."""
        region, code = self.like(self.segments[0].bounds)
        ends = self.ends(code, self.ranges(code, region.block.args))
        code.yield_(code.const(0), ends[-1])
        return region

    def block(self) -> Region:
        """The block of the segment that the iteration falls to."""
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
        code.yield_(start)
        return region

    def own_iteration(
        self,
        code: ScalarCode,
        number: int,
        i: SSAValue,
        ranges: Sequence[Range],
        ends: Sequence[SSAValue],
    ) -> SSAValue:
        """The segment's iteration; one of its own, for loads, if i is another's."""
        begin, end = ranges[number]
        before = ends[number - 1] if number else code.const(0)
        own = code.add(begin, code.sub(i, before))
        if not reads(self.segments[number].block):
            return own
        if number + 1 < len(ranges):
            own = code.insert(arith.MinSIOp(own, code.sub(end, code.const(1))))
        return code.insert(arith.MaxSIOp(own, begin), "i")

    def masked_if(self) -> Region:
        """Whether the iteration falls to a partial segment."""
        region, code = self.like(self.segments[0].block)
        args = list(region.block.args)
        i = args.pop(ITERATION)
        ends = self.ends(code, self.ranges(code, args))
        masked: SSAValue | None = None
        for number, segment in enumerate(self.segments):
            if segment.is_full:
                continue
            within = code.cmp("slt", i, ends[number])
            if number:
                within = code.and_(within, code.cmp("sge", i, ends[number - 1]))
            masked = within if masked is None else code.or_(masked, within)
        assert masked is not None
        code.yield_(masked)
        return region

    def ranges(self, code: ScalarCode, args: Sequence[SSAValue]) -> list[Range]:
        found: list[Range] = []
        for segment in self.segments:
            begin, end = inline_region(segment.bounds, args, code)
            found.append((begin, end))
        return found

    def ends(self, code: ScalarCode, ranges: Sequence[Range]) -> list[SSAValue]:
        """The iterations that the segments end before; a range may be reversed."""
        at, zero = code.const(0), code.const(0)
        found: list[SSAValue] = []
        for begin, end in ranges:
            length = code.insert(arith.MaxSIOp(code.sub(end, begin), zero))
            at = code.add(at, length)
            found.append(at)
        return found

    @staticmethod
    def like(region: Region) -> tuple[Region, ScalarCode]:
        """An empty region with the arguments of another."""
        args = region.block.args
        new = new_region([a.type for a in args], [a.name_hint for a in args])
        return new, ScalarCode(new.block)


def reads(block: Region) -> bool:
    return any(isinstance(op, flex.LoadCaptureOp) for op in block.walk())


def groups(segments: Sequence[SegmentOp]) -> list[list[SegmentOp]]:
    """Longest runs of segments that may be merged."""
    found: list[list[SegmentOp]] = []
    for segment in segments:
        if found and all(fits(segment, other) for other in found[-1]):
            found[-1].append(segment)
        else:
            found.append([segment])
    return found


def fits(a: SegmentOp, b: SegmentOp) -> bool:
    """Whether two segments may share a loop."""
    if a.inside is None or b.inside is None:
        return False
    if any(s.kind.data == SegmentKind.MIXED for s in (a, b)):
        return False
    if any(not s.is_full and s.mask_mod is None for s in (a, b)):
        return False
    masks = [s.mask_mod for s in (a, b) if s.mask_mod is not None]
    return len(masks) < 2 or masks[0].is_structurally_equivalent(masks[1])


@dataclass(frozen=True)
class MergeSegments(RewritePattern):
    """Merge what may be merged and has both kinds."""

    max_head_dim: int

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: AttentionOp, rewriter: PatternRewriter) -> None:
        if op.short_rows is None:
            return
        dims = (flex.tensor_shape(v)[3] for v in (op.query, op.value))
        if element_width(op.query.type) > WIDTH or max(dims) > self.max_head_dim:
            return
        segments = [o for o in op.segments.block.ops if isinstance(o, SegmentOp)]
        for group in groups(segments):
            if len({s.is_full for s in group}) < 2:
                continue
            rewriter.insert(Merger(group).merge(), InsertPoint.before(group[0]))
            for segment in group:
                rewriter.erase(segment)


@dataclass(frozen=True)
class BlocksparseMergeSegmentsPass(ModulePass):
    """Visit partial and full blocks in one loop."""

    name = "blocksparse-merge-segments"

    max_head_dim: int = 128
    """Beyond, it was not measured, and accumulators leave no registers."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pattern = MergeSegments(self.max_head_dim)
        PatternRewriteWalker(pattern, apply_recursively=False).rewrite_module(op)
