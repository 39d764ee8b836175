"""`convert-flex-to-blocksparse`: decide the tiles, and which blocks are visited.

1. Tile sizes are taken from the options or chosen for the target.
2. A call with a BlockMask becomes a partial segment over kv_indices and, where
   the mask has them, a full segment over full_kv_indices.
3. A mask whose live and dead keys have a closed form becomes a partial and a full
   segment with computed bounds (see `mask_segments`).
4. Any other call becomes a segment over the whole blocks, full if there is no
   mask, and a partial one over the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, UnitAttr, i32
from xdsl.ir import Block, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)

from flexc.dialects import blocksparse, flex
from flexc.dialects.blocksparse import SegmentKind, SegmentOp, TileOrder
from flexc.errors import OptionError
from flexc.passes.analysis.bounds.key_ranges import KeyRanges
from flexc.passes.analysis.proof import Proof, Proven
from flexc.passes.scalar_code import ScalarCode, new_region
from flexc.passes.segments.mask_segments import (
    MaskSegments,
    closed_form,
    is_band,
    tile_order,
)
from flexc.passes.tile_shapes import element_width
from flexc.passes.tile_sizes import (
    HOPPER_SHARED_MEMORY,
    PAIRED,
    TileSizes,
    choose_tile_sizes,
    largest_power_of_2_divisor,
)

HEADS_PER_GROUP = 8
"""Keys and values of so many heads of 8,192 tokens fit the cache of an H100."""

BOUNDS_NAMES = ("b", "h", "q_start", "q_len", "kv_len")
BLOCK_NAMES = ("b", "h", "q_start", "i", "q_len", "kv_len")


def is_always_true(mask: Region) -> bool:
    """Whether a mask region yields the constant true."""
    last = mask.block.last_op
    assert isinstance(last, flex.YieldOp)
    owner = last.values[0].owner
    return (
        isinstance(owner, arith.ConstantOp)
        and isinstance(owner.value, IntegerAttr)
        and owner.value.value.data != 0
    )


def check_tiles_divide(sizes: TileSizes, sparse: tuple[int, ...] | None) -> None:
    """A tile must not reach over the blocks of a table."""
    tile_sizes = (sizes.block_m, sizes.block_n)
    for name, tile, block in zip(
        ("BLOCK_M", "BLOCK_N"), tile_sizes, sparse or tile_sizes, strict=True
    ):
        if block % tile:
            raise OptionError(
                f"{name} expects a divisor of the BlockMask's block size {block}, got "
                f"{tile}; leave the option out, or make the mask with larger blocks"
            )


MIN_TRITON_BLOCK_N = 16
"""Triton's matrix products sum over so many elements at least."""


def check_triton_sizes(sizes: TileSizes) -> None:
    """Triton's tiles have no sizes but powers of 2, and nor have its programs."""
    for name, number in (
        ("BLOCK_M", sizes.block_m),
        ("BLOCK_N", sizes.block_n),
        ("num_warps", sizes.num_warps),
    ):
        if number != largest_power_of_2_divisor(number):
            raise OptionError(f"{name} expects a power of 2 for Triton, got {number}")
    if sizes.block_n < MIN_TRITON_BLOCK_N:
        raise OptionError(
            f"BLOCK_N expects {MIN_TRITON_BLOCK_N} or more for Triton, got "
            f"{sizes.block_n}; where a BlockMask has such blocks, make it with a "
            f"multiple of {MIN_TRITON_BLOCK_N} as BLOCK_SIZE"
        )


@dataclass(frozen=True)
class SegmentBuilder:
    """Builds the segments of one attention op."""

    op: flex.AttentionOp
    sizes: TileSizes

    def segments(self) -> list[SegmentOp]:
        mask = None if is_always_true(self.op.mask_mod) else self.op.mask_mod
        if self.op.tables:
            return self.table_segments(mask)
        if mask is not None and isinstance(self.ranges, Proven):
            sizes = self.sizes.block_m, self.sizes.block_n
            ranges = self.ranges.value
            return MaskSegments(self.op, ranges, *sizes, self.new_region).segments()
        return self.range_segments(mask)

    @cached_property
    def ranges(self) -> Proof[KeyRanges]:
        """The mask's ranges of keys, where they have a closed form."""
        return closed_form(self.op, self.sizes.block_m, self.sizes.block_n)

    def order(self) -> TileOrder | None:
        """The order that starts with the rows that have most work."""
        if self.op.tables:
            # Tables come from masks that tend to give later rows more work.
            return TileOrder.DESCENDING
        return (
            tile_order(self.ranges.value) if isinstance(self.ranges, Proven) else None
        )

    def range_segments(self, mask: Region | None) -> list[SegmentOp]:
        """All keys: whole blocks, which lie inside of kv_len, and a rest."""
        n = self.sizes.block_n
        whole = self.range_segment(
            SegmentKind.FULL if mask is None else SegmentKind.PARTIAL,
            lambda c, kv_len: (c.const(0), c.div(kv_len, c.const(n))),
            mask,
            inside=True,
        )
        if self.op.fact("kv_len_multiple") % n == 0:
            return [whole]
        rest = self.range_segment(
            SegmentKind.PARTIAL,
            lambda c, kv_len: (c.div(kv_len, c.const(n)), c.ceildiv(kv_len, n)),
            mask,
            inside=False,
        )
        return [whole, rest]

    def range_segment(
        self,
        kind: SegmentKind,
        bounds_of: Callable[[ScalarCode, SSAValue], tuple[SSAValue, SSAValue]],
        mask: Region | None,
        inside: bool,
    ) -> SegmentOp:
        """A segment that visits consecutive blocks."""
        bounds = self.new_region(BOUNDS_NAMES)
        code = ScalarCode(bounds.block)
        code.yield_(*bounds_of(code, bounds.block.args[4]))
        block = self.new_region(BLOCK_NAMES)
        code = ScalarCode(block.block)
        code.yield_(code.mul(block.block.args[3], code.const(self.sizes.block_n)))
        clone = None if mask is None else mask.clone()
        return SegmentOp(kind, bounds, block, clone, inside)

    def table_segments(self, mask: Region | None) -> list[SegmentOp]:
        """The blocks that a BlockMask lists: partial first, then full."""
        segments = [self.table_segment(SegmentKind.PARTIAL, 0, mask)]
        if len(self.op.tables) == 4:
            segments.append(self.table_segment(SegmentKind.FULL, 2, None))
        return segments

    def table_segment(
        self, kind: SegmentKind, table: int, mask: Region | None
    ) -> SegmentOp:
        """A segment over one pair of tables, counted in tiles of `block_n`."""
        assert self.op.sparse_block is not None
        sparse_m, sparse_n = self.op.sparse_block.get_values()
        ratio = sparse_n // self.sizes.block_n

        bounds = self.new_region(BOUNDS_NAMES)
        b, h, q_start = bounds.block.args[:3]
        code = ScalarCode(bounds.block)
        row = code.div(q_start, code.const(sparse_m), "q_block")
        count = self.load(code, bounds.block, table, [b, h, row], "num_blocks")
        code.yield_(code.const(0), code.mul(count, code.const(ratio)))

        block = self.new_region(BLOCK_NAMES)
        b, h, q_start, i = block.block.args[:4]
        code = ScalarCode(block.block)
        row = code.div(q_start, code.const(sparse_m), "q_block")
        entry = i if ratio == 1 else code.div(i, code.const(ratio))
        kv = self.load(code, block.block, table + 1, [b, h, row, entry], "kv_block")
        start = code.mul(kv, code.const(sparse_n), "kv_start")
        if ratio > 1:
            within = code.rem(i, code.const(ratio))
            within = code.mul(within, code.const(self.sizes.block_n))
            start = code.add(start, within, "kv_start")
        code.yield_(start)

        # Blocks past the last whole one stick out unless there is none such.
        inside = self.op.fact("kv_len_multiple") % sparse_n == 0
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
        tensor = block.args[len(block.args) - len(self.op.tables) + table]
        return code.insert(flex.LoadCaptureOp(tensor, indices, inside=True), name)

    def new_region(self, names: tuple[str, ...]) -> Region:
        trailing = [*self.op.captures, *self.op.tables]
        types = [*([i32] * len(names)), *(v.type for v in trailing)]
        return new_region(types, [*names, *(v.name_hint for v in trailing)])


def has_short_rows(op: flex.AttentionOp) -> bool:
    """Whether rows may see few keys: by a table, or in a band of them."""
    if op.tables:
        return True
    ranges = closed_form(op, PAIRED.block_m, PAIRED.block_n)
    return isinstance(ranges, Proven) and is_band(ranges.value)


@dataclass(frozen=True)
class ConvertAttention(RewritePattern):
    """flex.attention -> blocksparse.attention."""

    options: ConvertFlexToBlocksparsePass

    @op_type_rewrite_pattern
    def match_and_rewrite(
        self, op: flex.AttentionOp, rewriter: PatternRewriter
    ) -> None:
        short_rows = has_short_rows(op)
        sizes = self.options.tile_sizes(op, short_rows)
        builder = SegmentBuilder(op, sizes)
        segments = Region(Block(builder.segments()))
        properties = op.facts() | {
            "block_m": IntegerAttr(sizes.block_m, i32),
            "block_n": IntegerAttr(sizes.block_n, i32),
        }
        if sizes.num_warps:
            properties["num_warps"] = IntegerAttr(sizes.num_warps, i32)
            properties["num_stages"] = IntegerAttr(sizes.num_stages, i32)
        if (order := builder.order()) is not None:
            properties["order"] = blocksparse.TileOrderAttr(order)
            properties["heads_per_group"] = IntegerAttr(HEADS_PER_GROUP, i32)
        if short_rows:
            properties["short_rows"] = UnitAttr()
        new = blocksparse.AttentionOp(
            [op.query, op.key, op.value, op.scale, op.captures, op.tables],
            [
                [r.type] if r is not None else []
                for r in (op.out, op.lse, op.max_scores)
            ],
            op.detach_region(op.score_mod),
            segments,
            properties,
        )
        new.attributes |= op.attributes
        rewriter.replace(op, new)


@dataclass(frozen=True)
class ConvertFlexToBlocksparsePass(ModulePass):
    """Choose tiles and turn masks and block tables into segments."""

    name = "convert-flex-to-blocksparse"

    target: Literal["triton", "cpp"] = "triton"
    block_m: int | None = None
    block_n: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    shared_memory: int = HOPPER_SHARED_MEMORY

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pattern = ConvertAttention(self)
        PatternRewriteWalker(pattern, apply_recursively=False).rewrite_module(op)

    def tile_sizes(
        self, op: flex.AttentionOp, short_rows: bool | None = None
    ) -> TileSizes:
        """The tile of an attention op: what the options say, the rest chosen.

        Whether rows may be short is found out, unless `short_rows` says so.
        """
        if short_rows is None:
            short_rows = has_short_rows(op)
        sparse = None
        if op.sparse_block is not None:
            sparse_m, sparse_n = op.sparse_block.get_values()
            sparse = sparse_m, sparse_n
        chosen = choose_tile_sizes(
            self.target,
            element_width(op.query.type),
            flex.tensor_shape(op.query)[3],
            flex.tensor_shape(op.value)[3],
            sparse,
            self.shared_memory,
            self.block_m is None and self.block_n is None and short_rows,
        )
        sizes = TileSizes(
            self.block_m or chosen.block_m,
            self.block_n or chosen.block_n,
            self.num_warps or chosen.num_warps,
            self.num_stages or chosen.num_stages,
        )
        check_tiles_divide(sizes, sparse)
        if self.target == "triton":
            check_triton_sizes(sizes)
        return sizes
