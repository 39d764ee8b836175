"""What a call's mask says of its blocks, and so how they are found.

Read once for the code of a mask and what was proved of a call: bounds in closed
form need nothing at run time, blocks that can be classified are planned, and any
other mask is evaluated at all pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from flexc.dialects.flex import AttentionOp
from flexc.passes import pipelines
from flexc.passes.flex.convert_flex_to_blocksparse import ConvertFlexToBlocksparsePass
from flexc.passes.masks.blocks.block_classifier import Classifier, build_classifier
from flexc.passes.masks.bounds.key_ranges import KeyRanges
from flexc.passes.masks.segments.subject import SegmentSubject
from flexc.passes.scalar.proof import Proof, Proven
from flexc.passes.scalar.ranges.intervals import full
from flexc.passes.sizes.tile_sizes import TileSizes
from flexc.runtime.kernels.proofs import attention_of

CPU_BLOCK = 32, 64
"""Blocks that a CPU plans have at least so many rows, and these columns.

Of eight documents in 4,096 tokens, programs of 32 rows then visit 14 % more pairs than
are live, in place of 35 % by blocks of 128x128. With fewer columns there are more
iterations, each of which costs about as much as two to four columns. A GPU plans blocks
of one tile: documents gain 15 % on an H100 from 64x64 in place of 128x128."""

MAX_PLANNED_BLOCKS = 1 << 22
"""Blocks of a head that are planned; of greater lengths they are larger."""

MAX_PLANNED_ROWS = 128
"""Of a GPU's blocks: programs that own more rows skip less, and may own fewer."""

MIN_PLANNED_PAIRS = 1 << 20
"""Pairs of a call below which planning costs more than it saves."""


@dataclass(frozen=True)
class MaskReading:
    """The outcome for one mask."""

    is_trivial: bool
    """There is no mask."""
    bounds: Proof[KeyRanges]
    classifier: Proof[Classifier] | None
    """Only looked for where there are no bounds."""
    tile: TileSizes
    planned_block: tuple[int, int]
    """Rows and columns of a planned block: whole tiles of the call with tables, on a
    CPU of any number of columns."""

    @property
    def has_bounds(self) -> bool:
        return self.is_trivial or isinstance(self.bounds, Proven)

    def is_planned(self, sizes: Sequence[int]) -> bool:
        """Whether a call of (batch, heads, q_len, kv_len) plans its blocks."""
        many = math.prod(sizes) >= MIN_PLANNED_PAIRS
        return many and isinstance(self.classifier, Proven)

    def block_for(self, q_len: int, kv_len: int) -> tuple[int, int]:
        """Rows and columns of a planned block for such lengths."""
        m, n = self.planned_block
        while -(-q_len // m) * -(-kv_len // n) > MAX_PLANNED_BLOCKS:
            m, n = 2 * m, 2 * n
        return m, n


def read_mask(module: ModuleOp, convert: ConvertFlexToBlocksparsePass) -> MaskReading:
    """Read the mask of a `flex` module as the pipeline will see it."""
    module = module.clone()
    pipelines.run(pipelines.to_simple_flex(), Context(), module)
    op = attention_of(module)
    tile = convert.tile_sizes(op)
    subject = SegmentSubject.of(op)
    bounds = subject.ranges(tile.block_m, tile.block_n)
    trivial = not subject.has_mask
    classifier = None
    if not trivial and not isinstance(bounds, Proven):
        length, fits = op.fact("max_length", full(32).hi), op.indices_fit is not None
        classifier = build_classifier(op.mask_mod, length, fits)
    return MaskReading(trivial, bounds, classifier, tile, _planned_block(op, convert))


def _planned_block(
    op: AttentionOp, convert: ConvertFlexToBlocksparsePass
) -> tuple[int, int]:
    tile = convert.tile_sizes(op, short_rows=True)
    m, n = tile.block_m, tile.block_n
    if convert.target == "cpp":
        rows, columns = CPU_BLOCK
        return m * max(1, rows // m), columns
    if convert.target == "gluon" and convert.block_m is None:
        m = min(m, MAX_PLANNED_ROWS)
    return m, n
