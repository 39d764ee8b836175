"""`convert-flex-to-blocksparse`: decide the tiles, and which blocks are visited.

Tile sizes are taken from the options or chosen for the target; what the segments are
made from, a BlockMask's tables or the mask, `segment_builder` says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from xdsl.context import Context
from xdsl.dialects.builtin import DYNAMIC_INDEX, IntegerAttr, ModuleOp, UnitAttr, i32
from xdsl.ir import Attribute, Block, Region
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)

from flexc.dialects import blocksparse, flex
from flexc.dialects.flex import SumKind
from flexc.errors import OptionError
from flexc.passes.masks.segments.segment_builder import (
    build_segments,
    has_short_rows,
    is_banded,
    is_listed,
    order_of,
)
from flexc.passes.masks.segments.subject import SegmentSubject
from flexc.passes.sizes.hopper_sizes import (
    check_hopper_sizes,
    check_hopper_warps,
    choose_hopper_sizes,
    rows_per_part,
)
from flexc.passes.sizes.pair_sizes import PairDims, choose_pair_sizes
from flexc.passes.sizes.tile_sizes import (
    HOPPER_SHARED_MEMORY,
    TileSizes,
    choose_tile_sizes,
    largest_power_of_2_divisor,
    panel_sizes,
    smaller,
)
from flexc.passes.sizes.vector_machine import MachineName
from flexc.passes.tile.tile_shapes import element_width

HEADS_PER_GROUP = 8
"""Keys and values of so many heads of 8,192 tokens fit the cache of an H100.

A core of a CPU has no room for those of two: its programs stay with one head.
"""


def check_tiles_divide(
    sizes: TileSizes, sparse: tuple[int, int] | None, trimmed: bool = False
) -> None:
    """A tile must not reach over the blocks of a table; columns may be trimmed."""
    tile_sizes = (sizes.block_m, sizes.block_n)
    for name, tile, block in zip(
        ("BLOCK_M", "BLOCK_N"), tile_sizes, sparse or tile_sizes, strict=True
    ):
        if trimmed and name == "BLOCK_N":
            continue
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


SIZES = ("block_m", "block_n", "num_warps", "num_stages")
"""Options that say how large tiles are."""

NARROW = 64
"""Head dims up to which Hopper's exponentials take as long as its products."""


def known_rows(op: flex.AttentionOp) -> int | None:
    """How many rows a head has, if its query's type says so."""
    rows = flex.tensor_shape(op.query)[2]
    return None if rows == DYNAMIC_INDEX else rows


def changes_scores(op: flex.AttentionOp) -> bool:
    """Whether the score mod yields anything but the score."""
    block = op.score_mod.block
    last = block.last_op
    assert isinstance(last, flex.YieldOp)
    return last.values[0] is not block.args[0]


@dataclass(frozen=True)
class ConvertAttention(RewritePattern):
    """flex.attention -> blocksparse.attention."""

    options: ConvertFlexToBlocksparsePass

    @op_type_rewrite_pattern
    def match_and_rewrite(
        self, op: flex.AttentionOp, rewriter: PatternRewriter
    ) -> None:
        subject = SegmentSubject.of(op)
        short_rows = has_short_rows(subject)
        sizes = self.options.tile_sizes(op)
        segments = Region(Block(build_segments(subject, sizes, self.options.trims)))
        properties = op.facts() | self.options.tiling(subject, sizes)
        if (part := self.options.part_rows(op, sizes)) is not None:
            properties["rows_per_part"] = IntegerAttr(part, i32)
        if short_rows:
            properties["short_rows"] = UnitAttr()
        new = blocksparse.AttentionOp(
            [
                *(op.query, op.key, op.value, op.scale, op.captures, op.tables),
                op.split_groups,
            ],
            op.result_groups(),
            op.detach_region(op.score_mod),
            segments,
            properties,
        )
        new.attributes |= op.attributes
        rewriter.replace(op, new)


@dataclass(frozen=True)
class ConvertPairSums(RewritePattern):
    """flex.pair_sums -> blocksparse.pair_sums."""

    options: ConvertFlexToBlocksparsePass

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: flex.PairSumsOp, rewriter: PatternRewriter) -> None:
        subject = SegmentSubject.of_sums(op)
        sizes = self.options.pair_sums_sizes(op, subject)
        new = blocksparse.PairSumsOp(
            [
                *(op.rows, op.columns, op.row_values, op.column_values, op.first),
                *(op.scale, op.captures, op.tables),
            ],
            op.result_types,
            op.detach_region(op.pairs),
            Region(Block(build_segments(subject, sizes, self.options.trims))),
            kept_properties(op) | self.options.tiling(subject, sizes),
        )
        new.attributes |= op.attributes
        for old, result in zip(op.results, new.results, strict=True):
            result.name_hint = old.name_hint
        rewriter.replace(op, new)


def kept_properties(op: flex.PairSumsOp) -> dict[str, Attribute]:
    """What a lowering keeps of an op."""
    own = ("products", "sums", "transposed")
    known = op.properties
    return op.facts() | {name: known[name] for name in own if name in known}


@dataclass(frozen=True)
class ConvertFlexToBlocksparsePass(ModulePass):
    """Choose tiles and turn masks and block tables into segments.

    For Gluon `overlap` says that products are to run beside the softmax of another
    block, which takes registers; a program has `program_rows` rows, if that is given
    and less than it would have alone on a multiprocessor. For Triton tiles are
    `smaller` by so many steps than the best, where that needs more shared memory than
    there is. For C++ a program owns a panel of the `machine`, and segments are
    `trimmed`, where it is not needed that blocks of columns begin at multiples of
    their size.
    """

    name = "convert-flex-to-blocksparse"

    target: Literal["triton", "gluon", "cpp"] = "triton"
    block_m: int | None = None
    block_n: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    shared_memory: int = HOPPER_SHARED_MEMORY
    overlap: bool = True
    program_rows: int | None = None
    smaller: int = 0
    machine: MachineName = "avx2"
    trimmed: bool = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for pattern in (ConvertAttention(self), ConvertPairSums(self)):
            PatternRewriteWalker(pattern, apply_recursively=False).rewrite_module(op)

    def tiling(self, subject: SegmentSubject, sizes: TileSizes) -> dict[str, Attribute]:
        """The properties that say which tiles, and in what order they start."""
        properties: dict[str, Attribute] = {
            "block_m": IntegerAttr(sizes.block_m, i32),
            "block_n": IntegerAttr(sizes.block_n, i32),
        }
        if sizes.num_warps:
            properties["num_warps"] = IntegerAttr(sizes.num_warps, i32)
            properties["num_stages"] = IntegerAttr(sizes.num_stages, i32)
        if sizes.residents > 1:
            properties["residents"] = IntegerAttr(sizes.residents, i32)
        if (order := order_of(subject, sizes)) is not None:
            properties["order"] = blocksparse.TileOrderAttr(order)
            if self.target != "cpp":
                properties["heads_per_group"] = IntegerAttr(HEADS_PER_GROUP, i32)
        return properties

    def pair_sums_sizes(
        self, op: flex.PairSumsOp, subject: SegmentSubject
    ) -> TileSizes:
        """The tile of sums over pairs: what the options say, the rest chosen."""
        sparse = subject.sparse_block
        matrices = (op.rows, op.columns)
        rows, columns = ([flex.tensor_shape(m)[3] for m in side] for side in matrices)
        kinds = [attr.sum_kind for attr in op.sums]
        if self.trims:
            bits = max(32, op.score_type.bitwidth)
            widest, sums_columns = max(*rows, *columns), SumKind.COLUMN_MATRIX in kinds
            chosen = panel_sizes(self.machine, bits, widest, sparse, sums_columns)
            sizes = self.with_options(chosen)
            check_tiles_divide(sizes, sparse, self.trims)
            return sizes
        chosen = choose_pair_sizes(
            self.target,
            element_width(op.rows[0].type),
            PairDims(
                rows,
                columns,
                [
                    flex.tensor_shape(r)[3]
                    for r, k in zip(op.sums_, kinds, strict=True)
                    if k == SumKind.MATRIX
                ],
            ),
            sparse,
            self.shared_memory,
            SumKind.DIAGONAL in kinds,
        )
        sizes = self.shrunk(self.with_options(chosen))
        if SumKind.DIAGONAL in kinds and self.smaller:
            side = min(sizes.block_m, sizes.block_n)
            sizes = replace(sizes, block_m=side, block_n=side)
        check_tiles_divide(sizes, sparse)
        if self.target != "cpp":
            check_triton_sizes(sizes)
        return sizes

    @property
    def trims(self) -> bool:
        """Whether iterations visit no column that is dead for all of a program's rows,
        as far as bounds are known, and none beyond the last."""
        return self.target == "cpp" and self.trimmed

    def with_options(self, chosen: TileSizes) -> TileSizes:
        """What the options say, and for the rest what was chosen.

        Programs of other sizes than those that were chosen need not fit beside others.
        """
        sizes = replace(chosen, **{n: getattr(self, n) for n in self.given_sizes})
        return sizes if sizes == chosen else replace(sizes, residents=1)

    @property
    def given_sizes(self) -> list[str]:
        return [name for name in SIZES if getattr(self, name)]

    def shrunk(self, sizes: TileSizes) -> TileSizes:
        """As many steps smaller as is asked for; what the options say stays."""
        if not self.smaller:
            return sizes
        return smaller(sizes, self.smaller, self.given_sizes)

    def tile_sizes(
        self, op: flex.AttentionOp, short_rows: bool | None = None
    ) -> TileSizes:
        """The tile of an attention op: what the options say, the rest chosen.

        Whether rows may be short is found out, unless `short_rows` says so.
        """
        if short_rows is None:
            short_rows = self.expects_short_rows(op)
        sparse = None
        if op.sparse_block is not None:
            sparse_m, sparse_n = op.sparse_block.get_values()
            sparse = sparse_m, sparse_n
        chosen = self.choose(
            element_width(op.query.type),
            flex.tensor_shape(op.query)[3],
            flex.tensor_shape(op.value)[3],
            sparse,
            self.block_m is None and self.block_n is None and short_rows,
            known_rows(op),
        )
        sizes = self.shrunk(self.with_options(chosen))
        check_tiles_divide(sizes, sparse, self.trims)
        if self.target == "triton":
            check_triton_sizes(sizes)
        if self.target == "gluon":
            check_hopper_sizes(sizes)
            check_hopper_warps(self.num_warps)
        return sizes

    def expects_short_rows(self, op: flex.AttentionOp) -> bool:
        """Whether tiles are chosen for rows of few keys.

        On Hopper at head dim 64 also for a score mod's work; at 128 two consumers are
        faster than two programs even in a band (439 TFLOP/s and 424, of 1024 keys).
        """
        subject = SegmentSubject.of(op)
        if self.target != "gluon":
            return has_short_rows(subject)
        widest = max(flex.tensor_shape(v)[3] for v in (op.query, op.value))
        if widest > NARROW:
            return is_listed(subject)
        return is_listed(subject) or is_banded(subject) or changes_scores(op)

    def choose(
        self,
        bits: int,
        head_dim: int,
        value_dim: int,
        sparse_block: tuple[int, int] | None,
        short_rows: bool,
        rows: int | None = None,
    ) -> TileSizes:
        """The tile of attention on inputs of `bits` per element, without options.

        Of `rows` rows in all, where that is known.
        """
        dims, memory = (head_dim, value_dim), self.shared_memory
        if self.trims:
            bits = max(32, bits)
            return panel_sizes(self.machine, bits, max(dims), sparse_block, rows=rows)
        if self.target == "gluon":
            return choose_hopper_sizes(
                bits,
                *dims,
                sparse_block,
                memory,
                short_rows,
                self.overlap,
                self.program_rows,
            )
        return choose_tile_sizes(
            self.target, bits, *dims, sparse_block, memory, short_rows
        )

    def part_rows(self, op: flex.AttentionOp, sizes: TileSizes) -> int | None:
        """How many rows a part of a program has, for a target that has parts."""
        if self.target != "gluon":
            return None
        dims = (flex.tensor_shape(v)[3] for v in (op.query, op.value))
        return rows_per_part(sizes, element_width(op.query.type), max(dims))
