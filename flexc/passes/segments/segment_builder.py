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

from xdsl.ir import Region, SSAValue

from flexc.dialects.blocksparse import SegmentKind, SegmentOp, TileOrder
from flexc.passes.analysis.bounds.key_ranges import KeyRange, KeyRanges
from flexc.passes.analysis.proof import Proven
from flexc.passes.scalar_code import ScalarCode
from flexc.passes.segments.mask_segments import (
    MaskSegments,
    is_band,
    moves,
    tile_order,
)
from flexc.passes.segments.subject import SegmentSubject
from flexc.passes.segments.table_segments import TableSegments, TrimmedTableSegments
from flexc.passes.tile_sizes import PAIRED, TileSizes


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
