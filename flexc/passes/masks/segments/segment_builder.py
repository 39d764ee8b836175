"""The segments of an op: which blocks of columns each block of rows visits.

1. Block tables become a partial segment over what they list, and a full one where
   they list full blocks too.
2. A mask whose live and dead columns have a closed form becomes a partial and a full
   segment with computed bounds (see `mask_segments`).
3. Anything else becomes a segment over the whole blocks, full if there is no mask,
   and a partial one over the rest.

Where segments are trimmed, runs of columns are exact: bounds are those of blocks of
one column, which are visited up to block_n at a time, and there is no rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.dialects import arith
from xdsl.ir import Block, Region, SSAValue

from flexc.dialects import flex
from flexc.dialects.blocksparse import SegmentKind, SegmentOp, TileOrder
from flexc.passes.masks.bounds.key_ranges import KeyRange, KeyRanges
from flexc.passes.masks.segments.mask_segments import (
    MaskSegments,
    is_band,
    moves,
    tile_order,
)
from flexc.passes.masks.segments.subject import SegmentSubject
from flexc.passes.scalar.proof import Proven
from flexc.passes.scalar.scalar_code import ScalarCode
from flexc.passes.sizes.tile_sizes import PAIRED, TileSizes

# The segments of block tables: loops over the blocks that are listed for a row.


PARTIAL_TABLES, FULL_TABLES = 0, 2
"""The first of a pair of tables among all tables."""


@dataclass(frozen=True)
class TableSegments:
    """Builds segments over the blocks that tables list, in tiles of `block_n`."""

    subject: SegmentSubject
    block_n: int

    def segments(self, mask: Region | None) -> list[SegmentOp]:
        """Partial blocks first, then full ones."""
        found = [self.segment(SegmentKind.PARTIAL, PARTIAL_TABLES, mask)]
        if len(self.subject.tables) == 4:
            found.append(self.segment(SegmentKind.FULL, FULL_TABLES, None))
        return found

    def segment(self, kind: SegmentKind, table: int, mask: Region | None) -> SegmentOp:
        """A segment over one pair of tables."""
        row_name, _ = self.subject.axes
        bounds = self.subject.bounds_region()
        b, h, start = bounds.block.args[:3]
        code = ScalarCode(bounds.block)
        row = code.div(start, code.const(self.sparse[0]), f"{row_name}_block")
        count = self.load(code, bounds.block, table, [b, h, row], "num_blocks")
        code.yield_(code.const(0), code.mul(count, code.const(self.ratio)))

        block = self.subject.block_region()
        code = ScalarCode(block.block)
        code.yield_(*self.visited(code, block.block, table + 1))
        clone = None if mask is None else mask.clone()
        facts = self.facts if clone is None else [*self.facts, *self.masked_facts]
        return SegmentOp(kind, bounds, block, clone, facts=facts)

    @property
    def sparse(self) -> tuple[int, int]:
        """Rows and columns of a block of the tables."""
        assert self.subject.sparse_block is not None
        return self.subject.sparse_block

    @property
    def ratio(self) -> int:
        """Iterations for each block that is listed."""
        return self.sparse[1] // self.block_n

    @property
    def is_whole(self) -> bool:
        """Whether no block sticks out: those past the last whole one do."""
        return self.subject.column_multiple % self.sparse[1] == 0

    @property
    def facts(self) -> list[str]:
        """Properties of the segments."""
        return ["inside"] if self.is_whole else []

    @property
    def masked_facts(self) -> list[str]:
        """More properties, of segments with a mask."""
        return []

    def visited(self, code: ScalarCode, block: Block, table: int) -> list[SSAValue]:
        """What an iteration visits: its first column."""
        first, _ = self.place(code, block, table)
        return [first]

    def place(
        self, code: ScalarCode, block: Block, table: int
    ) -> tuple[SSAValue, SSAValue | None]:
        """The first column of an iteration, and where in its block that is, if known.

        An iteration of whole blocks begins where its block does.
        """
        b, h, start, i = block.args[:4]
        row_name, column_name = self.subject.axes
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
        within = code.mul(within, code.const(self.block_n))
        return code.add(first, within, name), within

    def load(
        self,
        code: ScalarCode,
        block: Block,
        table: int,
        indices: list[SSAValue],
        name: str,
    ) -> SSAValue:
        tensor = block.args[len(block.args) - len(self.subject.tables) + table]
        return code.insert(flex.LoadCaptureOp(tensor, indices, inside=True), name)


@dataclass(frozen=True)
class TrimmedTableSegments(TableSegments):
    """The same, of up to `block_n` columns of a block at a time.

    The block over the last column has fewer, and iterations of it may have none.
    """

    @property
    def step(self) -> int:
        """The most columns of an iteration."""
        return min(self.block_n, self.sparse[1])

    @property
    def ratio(self) -> int:
        return -(-self.sparse[1] // self.step)

    @property
    def facts(self) -> list[str]:
        skips = self.ratio > 1 and not self.is_whole
        return ["inside", *(["may_skip"] if skips else [])]

    @property
    def masked_facts(self) -> list[str]:
        """What is live of a listed block is for the mask to say."""
        return ["narrowed"]

    def visited(self, code: ScalarCode, block: Block, table: int) -> list[SSAValue]:
        """The first column of an iteration, and how many it has."""
        first, within = self.place(code, block, table)
        column_len, step = block.args[5], code.const(self.step)
        left: list[SSAValue] = []
        if within is not None and self.sparse[1] % self.step:
            left.append(code.sub(code.const(self.sparse[1]), within))
        if not self.is_whole:
            left.append(code.sub(column_len, first))
        count = step
        for most in left:
            count = code.insert(arith.MinSIOp(count, most), "count")
        if "may_skip" in self.facts:
            last = code.sub(column_len, code.const(1))
            first = code.insert(arith.MinSIOp(first, last), first.name_hint)
        return [first, count]


def build_segments(
    subject: SegmentSubject, sizes: TileSizes, trimmed: bool = False
) -> list[SegmentOp]:
    """Segments that visit each live pair of an op once, in tiles of a size."""
    mask = subject.mask if subject.has_mask else None
    if subject.tables:
        kind = TrimmedTableSegments if trimmed else TableSegments
        return kind(subject, sizes.block_n).segments(mask)
    if trimmed:
        ranges, step = ranges_of(subject, sizes), sizes.block_n
        return MaskSegments(subject, ranges, sizes.block_m, 1, step).segments()
    if mask is not None:
        ranges = subject.ranges(sizes.block_m, sizes.block_n)
        if isinstance(ranges, Proven):
            block = sizes.block_m, sizes.block_n
            return MaskSegments(subject, ranges.value, *block).segments()
    return range_segments(subject, sizes.block_n, mask)


def ranges_of(subject: SegmentSubject, sizes: TileSizes) -> KeyRanges:
    """The ranges of columns of a mask; all of them if there is none, or no bounds.

    Ranges hold for blocks of any size: what the size decides is whether a test that
    has none, as one that holds in every other column, may be left to the mask.
    """
    everything = (KeyRange(),)
    if not subject.has_mask:
        return KeyRanges(everything, ())
    ranges = subject.ranges(sizes.block_m, sizes.block_n)
    if isinstance(ranges, Proven):
        return ranges.value
    return KeyRanges(everything, everything)


def order_of(subject: SegmentSubject, sizes: TileSizes) -> TileOrder | None:
    """The order that starts with the rows that have most work."""
    if subject.tables:
        # Tables come from masks that tend to give later queries more work, and so
        # earlier keys.
        return TileOrder.ASCENDING if subject.transposed else TileOrder.DESCENDING
    ranges = subject.ranges(sizes.block_m, sizes.block_n)
    return tile_order(ranges.value) if isinstance(ranges, Proven) else None


def has_short_rows(subject: SegmentSubject) -> bool:
    """Whether rows may see few columns: by a table, or in a band of them."""
    return bool(subject.tables) or is_banded(subject)


def is_listed(subject: SegmentSubject) -> bool:
    """Whether only tables say what rows see: nothing is known of the mask."""
    ranges = subject.ranges(PAIRED.block_m, PAIRED.block_n)
    return bool(subject.tables) and not isinstance(ranges, Proven)


def is_banded(subject: SegmentSubject) -> bool:
    """Whether rows see a band of columns."""
    ranges = subject.ranges(PAIRED.block_m, PAIRED.block_n)
    return isinstance(ranges, Proven) and is_band(ranges.value)


def has_band(subject: SegmentSubject) -> bool:
    """Whether a band is among what rows see, as the window beside sinks is."""
    ranges = subject.ranges(PAIRED.block_m, PAIRED.block_n)
    return isinstance(ranges, Proven) and any(moves(r) for r in ranges.value.live)


def range_segments(
    subject: SegmentSubject, n: int, mask: Region | None
) -> list[SegmentOp]:
    """All columns: whole blocks of n, which do not stick out, and a rest."""
    whole = range_segment(
        subject,
        n,
        SegmentKind.FULL if mask is None else SegmentKind.PARTIAL,
        lambda c, length: (c.const(0), c.div(length, c.const(n))),
        mask,
        inside=True,
    )
    if subject.column_multiple % n == 0:
        return [whole]
    rest = range_segment(
        subject,
        n,
        SegmentKind.PARTIAL,
        lambda c, length: (c.div(length, c.const(n)), c.ceildiv(length, n)),
        mask,
        inside=False,
    )
    return [whole, rest]


def range_segment(
    subject: SegmentSubject,
    n: int,
    kind: SegmentKind,
    bounds_of: Callable[[ScalarCode, SSAValue], tuple[SSAValue, SSAValue]],
    mask: Region | None,
    inside: bool,
) -> SegmentOp:
    """A segment that visits consecutive blocks; bounds are of the column length."""
    bounds = subject.bounds_region()
    code = ScalarCode(bounds.block)
    code.yield_(*bounds_of(code, bounds.block.args[4]))
    block = subject.block_region()
    code = ScalarCode(block.block)
    code.yield_(code.mul(block.block.args[3], code.const(n)))
    clone = None if mask is None else mask.clone()
    return SegmentOp(kind, bounds, block, clone, inside)
