"""Build the segments of an op: the blocks of columns that each block of rows visits.

1. Block tables become a partial segment over the listed partial blocks, and a full
   segment over the listed full blocks, if any.
2. A mask becomes segments with computed bounds (see `mask_segments`). If its live and
   dead columns have no closed form, all columns may be both.

Trimmed segments are exact to a column, or to a few that a target aligns: their bounds
are those of blocks of one column, and an iteration visits up to block_n columns. They
have no incomplete block.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Block, SSAValue

from flexc.dialects import flex
from flexc.dialects.blocksparse import SegmentKind, SegmentOp, TileOrder
from flexc.passes.masks.bounds.key_ranges import KeyRange, KeyRanges
from flexc.passes.masks.segments.mask_problem import MaskProblem
from flexc.passes.masks.segments.mask_segments import (
    MaskSegments,
    OneLoop,
    rises,
    tile_order,
)
from flexc.passes.scalar import Proven
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.targets.target import TileSizes

PARTIAL_TABLES, FULL_TABLES = 0, 2
"""The index of the first table of each pair of tables."""


@dataclass(frozen=True)
class TableSegments:
    """A builder of segments over the blocks that tables list, in tiles of `block_n`."""

    problem: MaskProblem
    block_n: int
    trimmed: bool
    """True if an iteration visits up to `block_n` columns of a listed block.

    The block at the last column may be incomplete. Its iterations may have no columns.
    """

    def segments(self) -> list[SegmentOp]:
        """Return the segments: partial blocks first, then full blocks."""
        found = [self.segment(SegmentKind.PARTIAL, PARTIAL_TABLES)]
        if len(self.problem.tables) == 4:
            found.append(self.segment(SegmentKind.FULL, FULL_TABLES))
        return found

    def segment(self, kind: SegmentKind, table: int) -> SegmentOp:
        """Return a segment over the blocks that one pair of tables lists."""
        row_name, _ = self.problem.axes
        bounds = self.problem.bounds_region()
        b, h, start = bounds.block.args[:3]
        code = ScalarCode(bounds.block)
        row = code.div(start, code.const(self.sparse[0]), f"{row_name}_block")
        count = self.load(code, bounds.block, table, [b, h, row], "num_blocks")
        code.yield_(code.const(0), code.mul(count, code.const(self.ratio)))

        block = self.problem.block_region()
        code = ScalarCode(block.block)
        code.yield_(*self.visited(code, block.block, table + 1))
        mask, facts = self.problem.mask_of(kind), self.facts
        if self.trimmed and mask is not None:
            # The mask decides which listed columns are live.
            facts = [*facts, "narrowed"]
        return SegmentOp(kind, bounds, block, mask, facts)

    @property
    def sparse(self) -> tuple[int, int]:
        """The numbers of rows and columns of a block of the tables."""
        assert self.problem.sparse_block is not None
        return self.problem.sparse_block

    @property
    def step(self) -> int:
        """The maximum number of columns of an iteration."""
        return min(self.block_n, self.sparse[1])

    @property
    def ratio(self) -> int:
        """The number of iterations for each listed block."""
        return -(-self.sparse[1] // self.step)

    @property
    def is_whole(self) -> bool:
        """True if every listed block is within the number of columns."""
        return self.problem.column_multiple % self.sparse[1] == 0

    @property
    def facts(self) -> list[str]:
        """The facts of the segments."""
        may_skip = self.trimmed and self.ratio > 1 and not self.is_whole
        return ["inside"] * (self.trimmed or self.is_whole) + ["may_skip"] * may_skip

    def visited(self, code: ScalarCode, block: Block, table: int) -> list[SSAValue]:
        """Return the first column of an iteration; if trimmed, also their number."""
        first, within = self.place(code, block, table)
        if not self.trimmed:
            return [first]
        column_len, step = block.args[5], code.const(self.step)
        left: list[SSAValue] = []
        if within is not None and self.sparse[1] % self.step:
            left.append(code.sub(code.const(self.sparse[1]), within))
        if not self.is_whole:
            left.append(code.sub(column_len, first))
        count = step
        for most in left:
            count = code.min(count, most, "count")
        if "may_skip" in self.facts:
            last = code.sub(column_len, code.const(1))
            first = code.min(first, last, first.name_hint)
        return [first, count]

    def place(
        self, code: ScalarCode, block: Block, table: int
    ) -> tuple[SSAValue, SSAValue | None]:
        """Return the first column of an iteration, and its offset in its block.

        The offset is None if an iteration visits a whole block.
        """
        b, h, start, i = block.args[:4]
        row_name, column_name = self.problem.axes
        ratio, (sparse_m, sparse_n) = self.ratio, self.sparse
        row = code.div(start, code.const(sparse_m), f"{row_name}_block")
        entry = i if ratio == 1 else code.div(i, code.const(ratio))
        where = [b, h, row, entry]
        name = f"{column_name}_start"
        column = self.load(code, block, table, where, f"{column_name}_block")
        first = code.mul(column, code.const(sparse_n), name)
        if ratio == 1:
            return first, None
        within = code.rem(i, code.const(ratio))
        within = code.mul(within, code.const(self.step))
        return code.add(first, within, name), within

    def load(
        self,
        code: ScalarCode,
        block: Block,
        table: int,
        indices: list[SSAValue],
        name: str,
    ) -> SSAValue:
        tensor = block.args[len(block.args) - len(self.problem.tables) + table]
        return code.insert(flex.LoadCaptureOp(tensor, indices, inside=True), name)


def build_segments(
    problem: MaskProblem,
    sizes: TileSizes,
    trimmed: bool = False,
    one_loop: OneLoop = "never",
) -> list[SegmentOp]:
    """Return segments that visit each live pair of an op once, in tiles of a size."""
    if problem.tables:
        return TableSegments(problem, sizes.block_n, trimmed).segments()
    ranges = ranges_of(problem, sizes)
    if trimmed:
        block, aligned = (sizes.block_m, 1), sizes.aligned_columns
        made = MaskSegments(problem, ranges, *block, sizes.block_n, aligned)
    else:
        block = sizes.block_m, sizes.block_n
        made = MaskSegments(problem, ranges, *block, one_loop=one_loop)
    return made.segments()


def ranges_of(problem: MaskProblem, sizes: TileSizes) -> KeyRanges:
    """Return the ranges of columns of a mask.

    If no bounds are proved, all columns may be live and all may be dead. Ranges are
    valid for blocks of any size. The size decides only whether the mask alone may
    handle a test without ranges, such as one that holds in every other column.
    """
    ranges = problem.ranges(sizes.block_m, sizes.block_n)
    if isinstance(ranges, Proven):
        return ranges.value
    everything = (KeyRange(),)
    return KeyRanges(everything, everything)


def is_rising(problem: MaskProblem, sizes: TileSizes) -> bool:
    """Return True if neither end of the visited columns falls from row to row."""
    return not problem.tables and rises(ranges_of(problem, sizes))


def order_of(problem: MaskProblem, sizes: TileSizes) -> TileOrder | None:
    """Return the order that starts with the rows that have most work, or None."""
    if problem.tables:
        # Tables come from masks that tend to give later queries, and so earlier keys,
        # more work.
        return TileOrder.ASCENDING if problem.transposed else TileOrder.DESCENDING
    return tile_order(ranges_of(problem, sizes))
