"""The `blocksparse` dialect: *which* pairs of blocks are visited.

`blocksparse.attention` computes `block_m` query rows at a time and visits the keys in
*segments*. For each block of rows a segment states, in scalar code, how many blocks of
`block_n` keys the program visits and the first key of each block. Block tables, ranges
and closed-form bounds therefore look the same to all later passes. Tile sizes and warps
are decided at this level; memory, layouts and instructions are not.

```mlir
%out = blocksparse.attention %q, %k, %v : ... scale(%scale : f32)
    captures(%slopes : tensor<?xf32>) tables(%num : ..., %idx : ...)
    -> out(tensor<?x?x?x64xf32>) {block_m = 64 : i32, block_n = 64 : i32}
    score_mod(...) {...} segments {
  blocksparse.segment partial bounds(%b : i32, %h : i32, %q_start : i32,
      %q_len : i32, %kv_len : i32, %slopes_ : ..., %num_ : ..., %idx_ : ...) {
    ...
    flex.yield %begin, %end : i32, i32
  } block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, ...) {
    ...
    flex.yield %kv_start : i32
  } mask_mod(%b : i32, %h : i32, %qi : i32, %ki : i32, %slopes_ : ...) {...}
}
```
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntegerAttr, IntegerType, UnitAttr, i32
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, Dialect, Region, SpacedOpaqueSyntaxAttribute
from xdsl.irdl import (
    AttrSizedRegionSegments,
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_attr_definition,
    irdl_op_definition,
    opt_prop_def,
    opt_region_def,
    prop_def,
    region_def,
    traits_def,
)
from xdsl.traits import IsolatedFromAbove, NoTerminator, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from flexc.dialects import flex
from flexc.dialects.mod_region import (
    MASK_RESULT,
    ScalarRegion,
    mod_args,
    verify_scalar_region,
)

BOUNDS_ARGS: tuple[IntegerType, ...] = (i32,) * 5
"""Types of (b, h, first row, rows, columns), the first arguments of `bounds`.

Rows are queries, or keys in a transposed sum over pairs. `rows` and `columns` are the
numbers of all rows and of all columns.
"""

BLOCK_ARGS: tuple[IntegerType, ...] = (i32,) * 6
"""Types of (b, h, first row, i, rows, columns), the first arguments of `block`."""


class SegmentKind(StrEnum):
    """The kind of a segment's blocks: full, partial, or both.

    All pairs of a full block are live. In a partial block the mask decides. A mixed
    segment has blocks of both kinds; its `partial_if` region is true for the partial
    ones.
    """

    FULL = "full"
    PARTIAL = "partial"
    MIXED = "mixed"


@irdl_attr_definition
class SegmentKindAttr(EnumAttribute[SegmentKind], SpacedOpaqueSyntaxAttribute):
    """`SegmentKind` as an attribute."""

    name = "blocksparse.kind"


class TileOrder(StrEnum):
    """The order in which the blocks of rows of a head start."""

    ASCENDING = "ascending"
    DESCENDING = "descending"


@irdl_attr_definition
class TileOrderAttr(EnumAttribute[TileOrder], SpacedOpaqueSyntaxAttribute):
    """`TileOrder` as an attribute."""

    name = "blocksparse.order"


@irdl_op_definition
class SegmentOp(IRDLOperation):
    """One run of key blocks: all full, all partial, or mixed.

    `bounds` yields the begin and the end of the iterations. `block` yields the first
    column of iteration i. Both regions receive the captures and then the tables after
    their own arguments. Columns beyond the last are never live. In a full segment
    all other pairs are live. In a partial segment the pairs for which `mask_mod` is
    true are live, or all pairs if there is no `mask_mod`. A mixed segment is partial in
    the iterations for which `partial_if` is true, and full in the others. `partial_if`
    has the arguments of `block`.

    A loop over a `nonempty` or a `padded` segment runs at least once.

    In a *trimmed* segment `block` also yields the number of columns that the iteration
    visits, at most block_n, and at least 1 unless it `may_skip`. Runs may then begin
    and end at any column, and no visited column lies beyond the last.

    ```mlir
    block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      ...
      flex.yield %kv_start, %count : i32, i32
    }
    ```
    """

    name = "blocksparse.segment"

    kind = prop_def(SegmentKindAttr)
    inside = opt_prop_def(UnitAttr)
    """True if no visited block reaches beyond kv_len: columns need no check."""
    full_inside = opt_prop_def(UnitAttr)
    """True if no full block of a mixed segment reaches beyond kv_len."""
    nonempty = opt_prop_def(UnitAttr)
    """True if the bounds are known not to be empty."""
    padded = opt_prop_def(UnitAttr)
    """True if the first iteration runs even if the bounds are empty.

    None of the pairs is live in that case, and `block` yields the start of an existing
    block.
    """
    may_skip = opt_prop_def(UnitAttr)
    """True if iterations of a trimmed segment may visit no column.

    For such an iteration `block` yields an existing column, and a count of 0 or less.
    """
    narrowed = opt_prop_def(UnitAttr)
    """True if a program narrows each iteration of a trimmed segment to live columns.

    The program evaluates the mask first, and leaves out the columns before the first
    and after the last column that the mask keeps for any row.
    """
    bounds = region_def("single_block")
    block = region_def("single_block")
    partial_if = opt_region_def("single_block")
    mask_mod = opt_region_def("single_block")

    traits = traits_def(IsolatedFromAbove(), Pure())
    irdl_options = (AttrSizedRegionSegments(as_property=True), ParsePropInAttrDict())
    custom_directives = (ScalarRegion,)
    assembly_format = (
        "$kind attr-dict `bounds` custom<ScalarRegion>($bounds) "
        "`block` custom<ScalarRegion>($block) "
        "(`partial_if` custom<ScalarRegion>($partial_if)^)? "
        "(`mask_mod` custom<ScalarRegion>($mask_mod)^)?"
    )

    def __init__(
        self,
        kind: SegmentKind,
        bounds: Region,
        block: Region,
        mask_mod: Region | None = None,
        facts: Sequence[str] = (),
        partial_if: Region | None = None,
    ):
        """Create a segment; `facts` names the unit properties to set."""
        properties = dict.fromkeys(facts, UnitAttr())
        super().__init__(
            properties={"kind": SegmentKindAttr(kind), **properties},
            regions=[bounds, block, partial_if, mask_mod],
        )

    @property
    def is_full(self) -> bool:
        return self.kind.data == SegmentKind.FULL

    @property
    def is_trimmed(self) -> bool:
        """True if `block` also yields the number of columns of an iteration."""
        last = self.block.block.last_op
        return last is not None and len(last.operands) > 1

    @property
    def is_entered(self) -> bool:
        """True if a loop over the segment runs at least once."""
        return self.nonempty is not None or self.padded is not None

    def verify_(self) -> None:
        attention = self.parent_op()
        if not isinstance(attention, flex.PairsOp):
            raise VerifyException("expects as parent an op over pairs of positions")
        captures = attention.capture_types()
        trailing = [*captures, *(t.type for t in attention.tables)]
        verify_scalar_region(
            "bounds", self.bounds, [*BOUNDS_ARGS, *trailing], [i32, i32]
        )
        found = [i32] * (1 + self.is_trimmed)
        verify_scalar_region("block", self.block, [*BLOCK_ARGS, *trailing], found)
        self.verify_trimmed()
        self.verify_partial_if(trailing)
        if self.mask_mod is None:
            return
        if self.is_full:
            raise VerifyException("a full segment expects no mask_mod, got one")
        verify_scalar_region(
            "mask_mod", self.mask_mod, mod_args(None, captures), MASK_RESULT
        )

    def verify_trimmed(self) -> None:
        if not self.is_trimmed:
            if self.may_skip is not None:
                raise VerifyException("a segment that may_skip expects a count")
            if self.narrowed is not None:
                raise VerifyException("a narrowed segment expects a count")
            return
        if self.narrowed is not None and self.mask_mod is None:
            raise VerifyException("a narrowed segment expects a mask_mod, got none")
        if self.inside is None:
            raise VerifyException("a trimmed segment expects the property inside")
        if self.padded is not None or self.partial_if is not None:
            raise VerifyException("a trimmed segment is neither padded nor mixed")

    def verify_partial_if(self, trailing: Sequence[Attribute]) -> None:
        if self.kind.data != SegmentKind.MIXED:
            if self.partial_if is not None:
                raise VerifyException(
                    f"a {self.kind.data} segment expects no partial_if, got one"
                )
            if self.full_inside is not None:
                raise VerifyException("full_inside expects a mixed segment")
            return
        if self.partial_if is None:
            raise VerifyException("a mixed segment expects a partial_if, got none")
        verify_scalar_region(
            "partial_if", self.partial_if, [*BLOCK_ARGS, *trailing], MASK_RESULT
        )


TILING = (
    "block_m",
    "block_n",
    "num_warps",
    "num_stages",
    "heads_per_group",
    "rows_per_part",
    "residents",
)
"""Integer properties that must be at least 1."""


class TiledOp(flex.PairsOp):
    """An op whose programs own `block_m` rows and visit `block_n` columns at a time."""

    block_m = prop_def(IntegerAttr)
    """The rows of a tile."""
    block_n = prop_def(IntegerAttr)
    """The columns of a tile."""
    num_warps = opt_prop_def(IntegerAttr)
    """The warps of a program on a GPU."""
    num_stages = opt_prop_def(IntegerAttr)
    """The key blocks in flight on a GPU, including the block that is computed."""
    rows_per_part = opt_prop_def(IntegerAttr)
    """The rows that each group of warps computes, if tiles are split by rows."""
    residents = opt_prop_def(IntegerAttr)
    """The number of programs that share a multiprocessor, if more than one."""
    order = opt_prop_def(TileOrderAttr)
    heads_per_group = opt_prop_def(IntegerAttr)
    """The most heads whose tiles start together, so that the longest tiles start first.

    There are fewer where their keys and values would not share the cache. Of packed
    sequences, those of one sequence of mean length count.
    """
    short_rows = opt_prop_def(UnitAttr)
    """True if rows may see few keys: fixed costs of programs and loops matter."""
    segments = region_def("single_block")

    traits = traits_def(NoTerminator())

    def verify_(self) -> None:
        super().verify_()
        self.verify_positive(*TILING)
        for op in self.segments.block.ops:
            if not isinstance(op, SegmentOp):
                raise VerifyException(
                    f"segments expects blocksparse.segment ops only, got {op.name}"
                )


@irdl_op_definition
class AttentionOp(flex.AttentionLike, TiledOp):
    """Attention over the pairs that its segments visit; all other pairs are masked.

    Segments visit no pair twice. Only the `bounds` and `block` regions of segments read
    `tables`. `order` and `heads_per_group` are hints about the order in which tiles
    start. For masks that give later rows more work, the last rows of several heads
    start first. With splits, each split visits its share of the iterations of each
    segment. Shares differ by at most one iteration; the last splits have the larger
    shares.
    """

    name = "blocksparse.attention"

    sequence_blocks = opt_prop_def(UnitAttr)
    """True if blocks of rows and of columns begin where packed sequences begin.

    Regions then get the number of a sequence as b, and positions and lengths within it.
    """

    assembly_format = flex.ATTENTION_FORMAT + " `segments` $segments"

    def verify_(self) -> None:
        super().verify_()
        if self.sequence_blocks is None:
            return
        if self.sequences is None or self.long_sequences is None:
            raise VerifyException("sequence_blocks expects long sequences")
        others = (self.splits, self.page_table, self.key_scale, self.value_scale)
        if self.tables or any(v is not None for v in others):
            raise VerifyException(
                "sequence_blocks expects no tables, splits, pages and scales"
            )


@irdl_op_definition
class PairSumsOp(flex.PairSumsLike, TiledOp):
    """`flex.pair_sums` over the pairs that its segments visit.

    A program owns `block_m` rows and visits segments of blocks of `block_n` columns. In
    a transposed op, rows are keys and columns are queries, so `bounds` receives (b, h,
    k_start, kv_len, q_len). b and h always belong to the query. If several query heads
    share the head of the rows, a program visits the segments of each query head.
    """

    name = "blocksparse.pair_sums"

    rising = opt_prop_def(UnitAttr)
    """True if neither the first nor the last visited block falls from row to row."""

    assembly_format = flex.PAIR_SUMS_FORMAT + " `segments` $segments"


BlockSparse = Dialect(
    "blocksparse",
    [AttentionOp, PairSumsOp, SegmentOp],
    [SegmentKindAttr, TileOrderAttr],
)
