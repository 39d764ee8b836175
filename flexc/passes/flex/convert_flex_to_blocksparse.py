"""`convert-flex-to-blocksparse`: choose tile sizes, and the blocks to visit.

Tile sizes come from the options or are chosen for the target. `segment_builder` makes
the segments from the tables of a BlockMask or from the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    BFloat16Type,
    IntegerAttr,
    ModuleOp,
    TensorType,
    UnitAttr,
    i32,
)
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)
from xdsl.utils.hints import isa

from flexc.dialects import blocksparse, flex
from flexc.dialects.blocksparse import SegmentOp
from flexc.dialects.flex import KeyRangesAttr, SumKind
from flexc.dialects.mod_region import yielded
from flexc.errors import OptionError
from flexc.passes.flex.flex_infer_key_ranges import ranges_for
from flexc.passes.masks.segments.mask_problem import MaskProblem, sparse_block
from flexc.passes.masks.segments.mask_segments import OneLoop
from flexc.passes.masks.segments.segment_builder import (
    build_segments,
    is_rising,
    order_of,
)
from flexc.passes.masks.segments.sequences import PackedSequences
from flexc.passes.scalar import Proof, Proven, WhyNot
from flexc.passes.scalar.ranges.intervals import full
from flexc.passes.targets import target_named
from flexc.passes.targets.target import (
    AttentionShape,
    PairShape,
    RowFacts,
    SizeOptions,
    Target,
    TileSizes,
)
from flexc.passes.targets.triton import PAIRED
from flexc.passes.tile.tile_access import element_width


def check_tiles_divide(
    sizes: TileSizes, sparse: tuple[int, int] | None, trimmed: bool = False
) -> None:
    """Check that a tile divides the blocks of a table.

    Columns need not divide them if iterations are `trimmed`.

    Raises:
        OptionError: a tile would reach beyond a block of the table.
    """
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


FEW_COLUMNS = 64
"""The most columns of a block for which partial blocks come first in packed gradients
of heads that share keys. See docs/measurements/2026-11-29-split-loops.md.
"""

FACTS_OF_ALL = ("q_len_multiple", "kv_len_multiple", "has_pairs")
"""Facts about the numbers of all queries and keys, not those of each sequence."""

SIZES = ("block_m", "block_n", "num_warps", "num_stages")
"""The options that set tile sizes."""


def known_rows(op: flex.AttentionOp) -> int | None:
    """Return the number of rows of a head if the query's type states it, else None."""
    rows = flex.tensor_shape(op.query)[2]
    return None if rows == DYNAMIC_INDEX else rows


def paired_ranges(op: flex.PairsOp) -> Proof[KeyRangesAttr]:
    """Return the key ranges for blocks of programs that share a multiprocessor."""
    return ranges_for(op, PAIRED.block_m, PAIRED.block_n)


def is_banded(op: flex.PairsOp) -> bool:
    """Return True if rows are known to see a band of columns."""
    found = paired_ranges(op)
    return isinstance(found, Proven) and found.value.is_band


def has_band(op: flex.AttentionOp) -> bool:
    """Return True if rows see a band, maybe with other columns such as sinks."""
    found = paired_ranges(op)
    return isinstance(found, Proven) and found.value.has_band


def changes_scores(op: flex.AttentionOp) -> bool:
    """Return True if the score mod yields anything but its score argument."""
    block = op.score_mod.block
    return yielded(block)[0] is not block.args[0]


@dataclass(frozen=True)
class ConvertAttention(RewritePattern):
    """A pattern that lowers `flex.attention` to `blocksparse.attention`."""

    options: ConvertFlexToBlocksparsePass

    @op_type_rewrite_pattern
    def match_and_rewrite(
        self, op: flex.AttentionOp, rewriter: PatternRewriter
    ) -> None:
        problem, packed = MaskProblem.of(op), PackedSequences.of(op)
        sizes = self.options.tile_sizes(op)
        begins = packed is not None and self.options.has_sequence_blocks(op)
        if begins:
            problem = problem.in_sequence()
        # With partial blocks first, `tile-split-loops` writes two loops. They pay where
        # loops are long, and where no other program computes while one waits.
        is_short = packed is not None and op.long_sequences is None
        one_loop = "if faster" if is_short or sizes.residents > 1 else "never"
        segments = Region(Block(self.options.segments(problem, sizes, one_loop)))
        properties = kept_properties(op) | self.options.tiling(problem, sizes)
        if begins:
            properties["sequence_blocks"] = UnitAttr()
            for fact in FACTS_OF_ALL:
                properties.pop(fact, None)
        if self.options.reads_values_from_keys(op):
            properties["values_in_keys"] = UnitAttr()
        matrices = op.query, op.value
        if (part := self.options.part_rows(matrices, sizes)) is not None:
            properties["rows_per_part"] = IntegerAttr(part, i32)
        if op.tables or is_banded(op):
            properties["short_rows"] = UnitAttr()
        score = op.detach_region(op.score_mod)
        if packed is not None:
            score = (packed.relative if begins else packed.placed)(score, first=1)
        new = blocksparse.AttentionOp(
            op.operand_groups(),
            op.result_groups(),
            [score, segments],
            properties,
        )
        new.attributes |= op.attributes
        rewriter.replace(op, new)


@dataclass(frozen=True)
class ConvertPairSums(RewritePattern):
    """A pattern that lowers `flex.pair_sums` to `blocksparse.pair_sums`."""

    options: ConvertFlexToBlocksparsePass

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: flex.PairSumsOp, rewriter: PatternRewriter) -> None:
        problem = MaskProblem.of(op)
        sizes = self.options.pair_sums_sizes(op)
        ordered = op.ordered is not None
        # Packed sequences have partial blocks first, as in attention. In order, windows
        # are faster, and so are wide blocks of heads that share keys.
        in_order = is_banded(op) or (op.shares_rows and sizes.block_n > FEW_COLUMNS)
        one_loop = "if faster" if problem.packed is None or in_order else "never"
        if ordered:
            one_loop = "always"
        segments = Region(Block(self.options.segments(problem, sizes, one_loop)))
        properties = kept_properties(op)
        properties |= self.options.tiling(problem, sizes, ordered)
        if ordered and is_rising(problem, sizes):
            properties["rising"] = UnitAttr()
        if (part := self.options.part_rows(op.rows, sizes)) is not None:
            properties["rows_per_part"] = IntegerAttr(part, i32)
        first, pairs = op.first_index, op.detach_region(op.pairs)
        if problem.packed is not None:
            pairs = problem.packed.placed(pairs, first)
        new = blocksparse.PairSumsOp(
            op.operand_groups(),
            [op.result_types],
            [pairs, segments],
            properties,
        )
        new.attributes |= op.attributes
        for old, result in zip(op.results, new.results, strict=True):
            result.name_hint = old.name_hint
        rewriter.replace(op, new)


def kept_properties(op: flex.PairsOp) -> dict[str, Attribute]:
    """Return the properties of an op over pairs that the lowering keeps."""
    own = ("products", "sums", "transposed", "ordered", "per_query_head")
    own += ("key_ranges", "no_key_ranges")
    known = op.facts() | {n: op.properties[n] for n in own if n in op.properties}
    return known


def attention_shape(op: flex.AttentionOp) -> AttentionShape:
    """Return the properties of an attention op that its tile depends on."""
    bits = element_width(op.query.type)
    return AttentionShape(
        bits,
        flex.tensor_shape(op.query)[3],
        flex.tensor_shape(op.value)[3],
        sparse_block(op),
        rows=known_rows(op),
        narrow=any(element_width(v.type) < bits for v in (op.key, op.value)),
        is_aligned=op.alignment is not None,
        values_in_keys=op.values_in_keys is not None,
        is_bf16=is_bf16(op.query),
    )


def is_bf16(matrix: SSAValue) -> bool:
    """Return True if the elements of a tensor are bf16."""
    assert isa(matrix.type, TensorType[Attribute])
    return isinstance(matrix.type.element_type, BFloat16Type)


@dataclass(frozen=True)
class ConvertFlexToBlocksparsePass(SizeOptions, ModulePass):
    """A pass that chooses tiles and turns masks and block tables into segments.

    For Triton, `smaller` is the number of steps by which tiles are reduced, for kernels
    that do not fit shared memory otherwise.
    """

    name = "convert-flex-to-blocksparse"

    target: str = "triton"
    block_m: int | None = None
    block_n: int | None = None
    num_warps: int | None = None
    num_stages: int | None = None
    smaller: int = 0

    def __post_init__(self) -> None:
        for name in SIZES:
            size = getattr(self, name)
            is_size = type(size) is int and 0 < size <= full(32).hi
            if size is not None and not is_size:
                raise OptionError(f"{name} expects a positive i32, got {size!r}")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for pattern in (ConvertAttention(self), ConvertPairSums(self)):
            PatternRewriteWalker(pattern, apply_recursively=False).rewrite_module(op)

    def tiling(
        self, problem: MaskProblem, sizes: TileSizes, ordered: bool = False
    ) -> dict[str, Attribute]:
        """Return the properties for tile sizes and for the order of programs."""
        properties: dict[str, Attribute] = {
            "block_m": IntegerAttr(sizes.block_m, i32),
            "block_n": IntegerAttr(sizes.block_n, i32),
        }
        if sizes.num_warps:
            properties["num_warps"] = IntegerAttr(sizes.num_warps, i32)
            properties["num_stages"] = IntegerAttr(sizes.num_stages, i32)
        if sizes.residents > 1:
            properties["residents"] = IntegerAttr(sizes.residents, i32)
        order = order_of(problem, sizes)
        if ordered:
            order = blocksparse.TileOrder.DESCENDING
        if order is not None:
            properties["order"] = blocksparse.TileOrderAttr(order)
            if (heads := self.rules.heads_per_group) is not None:
                properties["heads_per_group"] = IntegerAttr(heads, i32)
        return properties

    def pair_sums_sizes(self, op: flex.PairSumsOp) -> TileSizes:
        """Return the tile of sums over pairs; options override chosen sizes."""
        sparse = sparse_block(op)
        matrices = (op.rows, op.columns)
        rows, columns = ([flex.tensor_shape(m)[3] for m in side] for side in matrices)
        kinds = [attr.sum_kind for attr in op.sums]
        results = [
            r for r, k in zip(op.sums_, kinds, strict=True) if k == SumKind.MATRIX
        ]
        is_square = SumKind.DIAGONAL in kinds
        shape = PairShape(
            element_width(op.rows[0].type),
            op.score_type.bitwidth,
            rows,
            columns,
            [flex.tensor_shape(result)[3] for result in results],
            sparse,
            is_square,
            SumKind.COLUMN_MATRIX in kinds,
            op.alignment is not None,
            is_bf16(op.rows[0]),
        )
        chosen = self.rules.pair_sizes(shape, self)
        sizes = self.shrunk(self.with_options(chosen))
        if is_square and self.smaller:
            side = min(sizes.block_m, sizes.block_n)
            sizes = replace(sizes, block_m=side, block_n=side)
        check_tiles_divide(sizes, sparse, self.trims)
        self.rules.check_pairs(sizes)
        return sizes

    @property
    def rules(self) -> Target:
        """The target that chooses tile sizes."""
        return target_named(self.target)

    def segments(
        self, problem: MaskProblem, sizes: TileSizes, one_loop: OneLoop
    ) -> list[SegmentOp]:
        """Return the segments of an op for the target's loops."""
        if one_loop == "if faster" and not self.rules.one_loop:
            one_loop = "never"
        return build_segments(problem, sizes, self.trims, one_loop)

    @property
    def trims(self) -> bool:
        """True if iterations visit no column outside the bounds of a program's rows."""
        return self.rules.trims(self)

    def with_options(self, chosen: TileSizes) -> TileSizes:
        """Replace chosen sizes by those that the options set.

        A program of other sizes than the chosen ones may not fit beside others on a
        multiprocessor, so `residents` becomes 1.
        """
        sizes = replace(chosen, **{n: getattr(self, n) for n in self.given_sizes})
        return sizes if sizes == chosen else replace(sizes, residents=1)

    @property
    def given_sizes(self) -> list[str]:
        return [name for name in SIZES if getattr(self, name)]

    def shrunk(self, sizes: TileSizes) -> TileSizes:
        """Return sizes smaller by `self.smaller` steps; options keep their values."""
        if not self.smaller:
            return sizes
        return self.rules.smaller(sizes, self.smaller, self.given_sizes)

    def tile_sizes(
        self, op: flex.AttentionOp, short_rows: bool | None = None
    ) -> TileSizes:
        """Return the tile of an attention op; options override chosen sizes.

        The stated key ranges tell if rows may be short, unless `short_rows` is given.
        """
        if short_rows is None:
            short_rows = self.expects_short_rows(op)
        shape = attention_shape(op)
        may_be_short = self.block_m is None and self.block_n is None and short_rows
        chosen = self.choose(replace(shape, short_rows=may_be_short))
        sizes = self.shrunk(self.with_options(chosen))
        check_tiles_divide(sizes, shape.sparse_block, self.trims)
        self.rules.check(sizes, self.num_warps)
        return sizes

    def has_sequence_blocks(self, op: flex.AttentionOp) -> bool:
        """Return True if blocks begin where the packed sequences of an op begin."""
        scaled = op.key_scale is not None or op.value_scale is not None
        is_long = op.long_sequences is not None
        return self.rules.has_sequence_blocks and is_long and not scaled

    def reads_values_from_keys(self, op: flex.AttentionOp) -> bool:
        """Return True if a tile of an op's keys also serves as values."""
        return self.rules.reads_values_from_keys(attention_shape(op))

    def expects_short_rows(self, op: flex.AttentionOp) -> bool:
        """Return True if the target chooses small tiles for rows that see few keys."""
        facts = RowFacts(
            max(flex.tensor_shape(v)[3] for v in (op.query, op.value)),
            bool(op.tables),
            bool(op.tables) and isinstance(paired_ranges(op), WhyNot),
            op.few_keys is not None,
            is_banded(op),
            changes_scores(op),
        )
        return self.rules.has_short_rows(facts)

    def choose(self, shape: AttentionShape) -> TileSizes:
        """Return the target's best tile of attention, without options for sizes."""
        return self.rules.attention_sizes(shape, self)

    def part_rows(self, matrices: Sequence[SSAValue], sizes: TileSizes) -> int | None:
        """Return the rows of a part of a program; None for a target without parts."""
        dims = (flex.tensor_shape(v)[3] for v in matrices)
        return self.rules.part_rows(sizes, element_width(matrices[0].type), max(dims))
