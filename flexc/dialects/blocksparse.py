"""The `blocksparse` dialect: *which* pairs of blocks are visited.

`blocksparse.attention` computes `block_m` query rows at a time and visits the
keys in *segments*. A segment says, in scalar code, how many key blocks of
`block_n` columns it visits for a block of rows and where each one starts; so
block tables, ranges and closed-form bounds are one thing to all that follows.
Tile sizes and warps are decided here; memory, layouts and instructions are not.

```mlir
%out = blocksparse.attention %q, %k, %v : ... scale(%scale : f32)
    captures(%slopes : tensor<?xf32>) tables(%num : ..., %idx : ...)
    -> out : tensor<?x?x?x64xf32> {block_m = 64 : i32, block_n = 64 : i32}
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

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import IntegerAttr, IntegerType, UnitAttr, i32
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import (
    Attribute,
    Block,
    Dialect,
    Region,
    SpacedOpaqueSyntaxAttribute,
    SSAValue,
)
from xdsl.irdl import (
    AttrSizedRegionSegments,
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    lazy_traits_def,
    opt_prop_def,
    opt_region_def,
    prop_def,
    region_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsolatedFromAbove, NoTerminator, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from flexc.dialects.flex import AttentionLike
from flexc.dialects.mod_region import (
    MASK_RESULT,
    mod_args,
    parse_optional_region_with_args,
    parse_properties,
    parse_region_with_args,
    print_properties,
    print_region_with_args,
    verify_scalar_region,
)

BOUNDS_ARGS: tuple[IntegerType, ...] = (i32,) * 5
"""Types of (b, h, q_start, q_len, kv_len), which `bounds` receives first."""

BLOCK_ARGS: tuple[IntegerType, ...] = (i32,) * 6
"""Types of (b, h, q_start, i, q_len, kv_len), which `block` receives first."""


class SegmentKind(StrEnum):
    """Whether every pair of a visited block is live, or the mask decides.

    In a mixed segment `masked_if` says of which blocks the mask decides.
    """

    FULL = "full"
    PARTIAL = "partial"
    MIXED = "mixed"


@irdl_attr_definition
class SegmentKindAttr(EnumAttribute[SegmentKind], SpacedOpaqueSyntaxAttribute):
    """`SegmentKind` as an attribute."""

    name = "blocksparse.kind"


class TileOrder(StrEnum):
    """The order in which a head's blocks of rows are started."""

    ASCENDING = "ascending"
    DESCENDING = "descending"


@irdl_attr_definition
class TileOrderAttr(EnumAttribute[TileOrder], SpacedOpaqueSyntaxAttribute):
    """`TileOrder` as an attribute."""

    name = "blocksparse.order"


@irdl_op_definition
class AttentionOp(AttentionLike):
    """Attention over the pairs that its segments visit; all others are masked.

    No pair may be visited twice. `tables` are tensors that only the segments'
    `bounds` and `block` regions read. `order` and `heads_per_group` are hints on
    which tiles to start first: masks that give later rows more work start with
    the last rows, of several heads at a time.
    """

    name = "blocksparse.attention"

    block_m = prop_def(IntegerAttr)
    """Query rows of a tile."""
    block_n = prop_def(IntegerAttr)
    """Key columns of a tile."""
    num_warps = opt_prop_def(IntegerAttr)
    """Warps of a program on a GPU."""
    num_stages = opt_prop_def(IntegerAttr)
    """Key blocks in flight on a GPU, the one being computed with included."""
    order = opt_prop_def(TileOrderAttr)
    heads_per_group = opt_prop_def(IntegerAttr)
    """Heads whose tiles are started together, so that the longest come first and
    their keys and values still share the cache."""
    short_rows = opt_prop_def(UnitAttr)
    """Rows may see few keys: what a program or a loop costs once is felt."""

    score_mod = region_def("single_block")
    segments = region_def("single_block")

    traits = traits_def(IsolatedFromAbove(), Pure(), NoTerminator())

    def __init__(
        self,
        operands: Sequence[SSAValue | Sequence[SSAValue]],
        result_types: Sequence[Sequence[Attribute]],
        score_mod: Region,
        segments: Region,
        properties: Mapping[str, Attribute],
    ):
        super().__init__(
            operands=operands,
            result_types=result_types,
            regions=[score_mod, segments],
            properties=dict(properties),
        )

    def verify_(self) -> None:
        self.verify_operands()
        self.verify_facts(
            "block_m", "block_n", "num_warps", "num_stages", "heads_per_group"
        )
        for op in self.segments.block.ops:
            if not isinstance(op, SegmentOp):
                raise VerifyException(
                    f"segments expects blocksparse.segment ops only, got {op.name}"
                )

    def print(self, printer: Printer) -> None:
        self.print_head(printer)
        print_properties(printer, self)
        print_region_with_args(printer, "score_mod", self.score_mod)
        printer.print_string(" segments ")
        printer.print_region(
            self.segments, print_entry_block_args=False, print_empty_block=False
        )

    @classmethod
    def parse(cls, parser: Parser) -> AttentionOp:
        operands, results = cls.parse_head(parser)
        properties, attributes = parse_properties(parser, cls)
        score_mod = parse_region_with_args(parser, "score_mod")
        parser.parse_keyword("segments")
        segments = parser.parse_region()
        if not segments.blocks:  # Nothing is visited.
            segments.add_block(Block())
        op = cls(operands, results, score_mod, segments, properties)
        op.attributes = attributes
        return op


@irdl_op_definition
class SegmentOp(IRDLOperation):
    """One run of key blocks: all full, all partial, or mixed.

    `bounds` yields begin and end of the iteration, `block` the first key of
    iteration i; both receive the captures and then the tables. Columns beyond
    kv_len are never live. Of the others, a full segment visits all, a partial one
    those where its mask, if it has one, is true. A mixed segment is partial in the
    iterations where `masked_if`, which receives what `block` does, holds.
    """

    name = "blocksparse.segment"

    irdl_options = (AttrSizedRegionSegments(as_property=True),)

    kind = prop_def(SegmentKindAttr)
    inside = opt_prop_def(UnitAttr)
    """No visited block sticks out over kv_len: columns need no check."""
    bounds = region_def("single_block")
    block = region_def("single_block")
    masked_if = opt_region_def("single_block")
    mask_mod = opt_region_def("single_block")

    traits = lazy_traits_def(
        lambda: (IsolatedFromAbove(), Pure(), HasParent(AttentionOp))
    )

    def __init__(
        self,
        kind: SegmentKind | SegmentKindAttr,
        bounds: Region,
        block: Region,
        mask_mod: Region | None = None,
        inside: bool = False,
        attributes: Mapping[str, Attribute] | None = None,
        masked_if: Region | None = None,
    ):
        if isinstance(kind, SegmentKind):
            kind = SegmentKindAttr(kind)
        mask = [] if mask_mod is None or not mask_mod.blocks else [mask_mod]
        choice = [] if masked_if is None or not masked_if.blocks else [masked_if]
        super().__init__(
            properties={"kind": kind, "inside": UnitAttr() if inside else None},
            attributes=dict(attributes or {}),
            regions=[bounds, block, choice, mask],
        )

    @property
    def is_full(self) -> bool:
        return self.kind.data == SegmentKind.FULL

    def verify_(self) -> None:
        attention = self.parent_op()
        assert isinstance(attention, AttentionOp)
        captures = [c.type for c in attention.captures]
        trailing = [*captures, *(t.type for t in attention.tables)]
        verify_scalar_region(
            "bounds", self.bounds, [*BOUNDS_ARGS, *trailing], [i32, i32]
        )
        verify_scalar_region("block", self.block, [*BLOCK_ARGS, *trailing], [i32])
        self.verify_choice(trailing)
        if self.mask_mod is None:
            return
        if self.is_full:
            raise VerifyException("a full segment expects no mask_mod, got one")
        verify_scalar_region(
            "mask_mod", self.mask_mod, mod_args(None, captures), MASK_RESULT
        )

    def verify_choice(self, trailing: Sequence[Attribute]) -> None:
        if self.kind.data != SegmentKind.MIXED:
            if self.masked_if is not None:
                raise VerifyException(
                    f"a {self.kind.data} segment expects no masked_if, got one"
                )
            return
        for name, region in (
            ("masked_if", self.masked_if),
            ("mask_mod", self.mask_mod),
        ):
            if region is None:
                raise VerifyException(f"a mixed segment expects a {name}, got none")
        assert self.masked_if is not None
        verify_scalar_region(
            "masked_if", self.masked_if, [*BLOCK_ARGS, *trailing], MASK_RESULT
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.kind.data}")
        print_properties(printer, self, skip=["kind"])
        print_region_with_args(printer, "bounds", self.bounds)
        print_region_with_args(printer, "block", self.block)
        if self.masked_if is not None:
            print_region_with_args(printer, "masked_if", self.masked_if)
        if self.mask_mod is not None:
            print_region_with_args(printer, "mask_mod", self.mask_mod)

    @classmethod
    def parse(cls, parser: Parser) -> SegmentOp:
        kind = SegmentKind(parser.parse_keyword_in([k.value for k in SegmentKind]))
        attributes = parser.parse_optional_attr_dict()
        bounds = parse_region_with_args(parser, "bounds")
        block = parse_region_with_args(parser, "block")
        masked_if = parse_optional_region_with_args(parser, "masked_if")
        mask = parse_optional_region_with_args(parser, "mask_mod")
        inside = attributes.pop("inside", None)
        if not isinstance(inside, UnitAttr | None):
            parser.raise_error(f"inside expects no value, got {inside}")
        named = inside is not None
        return cls(kind, bounds, block, mask, named, attributes, masked_if)


BlockSparse = Dialect(
    "blocksparse", [AttentionOp, SegmentOp], [SegmentKindAttr, TileOrderAttr]
)
