"""Analysis of a call's mask, which decides how its blocks are found.

The analysis runs once for a mask's code and the proofs about a call. Bounds in closed
form need no work at run time. Without bounds, blocks that can be classified are
planned. Any other mask is evaluated at all pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from flexc.dialects.flex import AttentionOp
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.passes.flex.flex_infer_key_ranges import ranges_for
from flexc.passes.masks.blocks.block_classifier import Classifier, build_classifier
from flexc.passes.masks.segments.mask_problem import is_always_true
from flexc.passes.scalar.proof import Proof, Proven
from flexc.passes.scalar.ranges.intervals import full
from flexc.passes.targets.target import TileSizes

MAX_PLANNED_BLOCKS = 1 << 22
"""The most blocks of a head that are planned; longer sequences get larger blocks."""

MIN_PLANNED_PAIRS = 1 << 20
"""The fewest pairs of a call for which planning saves more than it costs."""


@dataclass(frozen=True)
class MaskReading:
    """The analysis of one mask."""

    is_trivial: bool
    """True if there is no mask."""
    has_bounds: bool
    """True if the ranges of keys have a closed form for blocks of `tile`."""
    classifier: Proof[Classifier] | None
    """The classifier of blocks; None if the mask has bounds."""
    tile: TileSizes
    planned_block: tuple[int, int]
    """The rows and columns of a planned block.

    They are multiples of the tile of a kernel that reads tables. On a CPU, the number
    of columns is free.
    """

    def is_planned(self, sizes: Sequence[int]) -> bool:
        """Return True if a call of (batch, heads, q_len, kv_len) plans its blocks."""
        many = math.prod(sizes) >= MIN_PLANNED_PAIRS
        return many and isinstance(self.classifier, Proven)

    def block_for(self, q_len: int, kv_len: int) -> tuple[int, int]:
        """Return the rows and columns of a planned block for these lengths."""
        m, n = self.planned_block
        while -(-q_len // m) * -(-kv_len // n) > MAX_PLANNED_BLOCKS:
            m, n = 2 * m, 2 * n
        return m, n


def read_mask(op: AttentionOp, convert: ConvertFlexToBlocksparsePass) -> MaskReading:
    """Analyse the mask of an attention op that states its key ranges."""
    tile = convert.tile_sizes(op)
    has_bounds = isinstance(ranges_for(op, tile.block_m, tile.block_n), Proven)
    classifier = None
    if not has_bounds:
        length, fits = op.fact("max_length", full(32).hi), op.indices_fit is not None
        classifier = build_classifier(op.mask_mod, length, fits)
    trivial, block = is_always_true(op.mask_mod), _planned_block(op, convert)
    return MaskReading(trivial, has_bounds, classifier, tile, block)


def _planned_block(
    op: AttentionOp, convert: ConvertFlexToBlocksparsePass
) -> tuple[int, int]:
    tile = convert.tile_sizes(op, short_rows=True)
    return convert.rules.planned_block(tile, convert.block_m is not None)
