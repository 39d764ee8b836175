"""The segments of an op: which blocks of columns each block of rows visits.

1. Block tables become a partial segment over what they list, and a full one where
   they list full blocks too.
2. A mask whose live and dead columns have a closed form becomes a partial and a full
   segment with computed bounds (see `mask_segments`).
3. Anything else becomes a segment over the whole blocks, full if there is no mask,
   and a partial one over the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.ir import Block, Region, SSAValue

from flexc.dialects import flex
from flexc.dialects.blocksparse import SegmentKind, SegmentOp, TileOrder
from flexc.passes.analysis.proof import Proven
from flexc.passes.scalar_code import ScalarCode
from flexc.passes.segments.mask_segments import (
    MaskSegments,
    is_band,
    moves,
    tile_order,
)
from flexc.passes.segments.subject import SegmentSubject
from flexc.passes.tile_sizes import PAIRED, TileSizes

PARTIAL_TABLES, FULL_TABLES = 0, 2
"""The first of a pair of tables among all tables."""


def build_segments(subject: SegmentSubject, sizes: TileSizes) -> list[SegmentOp]:
    """Segments that visit each live pair of an op once, in tiles of a size."""
    mask = subject.mask if subject.has_mask else None
    if subject.tables:
        return TableSegments(subject, sizes.block_n).segments(mask)
    if mask is not None:
        ranges = subject.ranges(sizes.block_m, sizes.block_n)
        if isinstance(ranges, Proven):
            block = sizes.block_m, sizes.block_n
            return MaskSegments(subject, ranges.value, *block).segments()
    return range_segments(subject, sizes.block_n, mask)


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
        assert self.subject.sparse_block is not None
        sparse_m, sparse_n = self.subject.sparse_block
        ratio = sparse_n // self.block_n
        row_name, column_name = self.subject.axes

        bounds = self.subject.bounds_region()
        b, h, start = bounds.block.args[:3]
        code = ScalarCode(bounds.block)
        row = code.div(start, code.const(sparse_m), f"{row_name}_block")
        count = self.load(code, bounds.block, table, [b, h, row], "num_blocks")
        code.yield_(code.const(0), code.mul(count, code.const(ratio)))

        block = self.subject.block_region()
        b, h, start, i = block.block.args[:4]
        code = ScalarCode(block.block)
        row = code.div(start, code.const(sparse_m), f"{row_name}_block")
        entry = i if ratio == 1 else code.div(i, code.const(ratio))
        where = [b, h, row, entry]
        name = f"{column_name}_start"
        column = self.load(code, block.block, table + 1, where, f"{column_name}_block")
        first = code.mul(column, code.const(sparse_n), name)
        if ratio > 1:
            within = code.rem(i, code.const(ratio))
            within = code.mul(within, code.const(self.block_n))
            first = code.add(first, within, name)
        code.yield_(first)

        # Blocks past the last whole one stick out unless there is none such.
        inside = self.subject.column_multiple % sparse_n == 0
        clone = None if mask is None else mask.clone()
        return SegmentOp(kind, bounds, block, clone, inside)

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
