"""Segments: runs of blocks that a program visits, and the order of tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import IntegerType, UnitAttr, i32
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import (
    Attribute,
    Region,
    SpacedOpaqueSyntaxAttribute,
)
from xdsl.irdl import (
    AttrSizedRegionSegments,
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    opt_prop_def,
    opt_region_def,
    prop_def,
    region_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from flexc.dialects.flex import PairsOp
from flexc.dialects.mod_region import (
    MASK_RESULT,
    mod_args,
    parse_optional_region_with_args,
    parse_region_with_args,
    print_properties,
    print_region_with_args,
    verify_scalar_region,
)

BOUNDS_ARGS: tuple[IntegerType, ...] = (i32,) * 5
"""Types of (b, h, q_start, q_len, kv_len), the first arguments of `bounds`."""

BLOCK_ARGS: tuple[IntegerType, ...] = (i32,) * 6
"""Types of (b, h, q_start, i, q_len, kv_len), the first arguments of `block`."""


UNIT_PROPERTIES = (
    "inside",
    "full_inside",
    "nonempty",
    "padded",
    "may_skip",
    "narrowed",
)
"""Unit properties of a segment."""


class SegmentKind(StrEnum):
    """The kind of a segment's blocks: full, partial, or both.

    All pairs of a full block are live. In a partial block the mask decides. A mixed
    segment has blocks of both kinds; its `masked_if` region is true for the partial
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
    key of iteration i. Both regions receive the captures and then the tables after
    their own arguments. Columns at or beyond kv_len are never live. In a full segment
    all other pairs are live. In a partial segment the pairs for which `mask_mod` is
    true are live, or all pairs if there is no `mask_mod`. A mixed segment is partial in
    the iterations for which `masked_if` is true, and full in the others. `masked_if`
    has the arguments of `block`.

    A loop over a `nonempty` or a `padded` segment runs at least once.

    In a *trimmed* segment `block` also yields the number of columns that the iteration
    visits, from 1 to block_n. Runs of columns are then exact to one column, and no
    visited column lies beyond kv_len.

    ```mlir
    block(%b : i32, %h : i32, %q_start : i32, %i : i32, %q_len : i32, %kv_len : i32) {
      ...
      flex.yield %kv_start, %count : i32, i32
    }
    ```
    """

    name = "blocksparse.segment"

    irdl_options = (AttrSizedRegionSegments(as_property=True),)

    kind = prop_def(SegmentKindAttr)
    inside = opt_prop_def(UnitAttr)
    """True if no visited block reaches beyond kv_len: columns need no check."""
    full_inside = opt_prop_def(UnitAttr)
    """True if no unmasked block of a mixed segment reaches beyond kv_len."""
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
    masked_if = opt_region_def("single_block")
    mask_mod = opt_region_def("single_block")

    traits = traits_def(IsolatedFromAbove(), Pure())

    def __init__(
        self,
        kind: SegmentKind | SegmentKindAttr,
        bounds: Region,
        block: Region,
        mask_mod: Region | None = None,
        inside: bool = False,
        attributes: Mapping[str, Attribute] | None = None,
        masked_if: Region | None = None,
        facts: Sequence[str] = (),
    ):
        """Create a segment; `facts` names further unit properties to set."""
        if isinstance(kind, SegmentKind):
            kind = SegmentKindAttr(kind)
        facts = [*facts, "inside"] if inside else facts
        mask = [] if mask_mod is None or not mask_mod.blocks else [mask_mod]
        choice = [] if masked_if is None or not masked_if.blocks else [masked_if]
        super().__init__(
            properties={"kind": kind, **dict.fromkeys(facts, UnitAttr())},
            attributes=dict(attributes or {}),
            regions=[bounds, block, choice, mask],
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
        if not isinstance(attention, PairsOp):
            raise VerifyException("expects an op over pairs of positions around it")
        captures = [c.type for c in attention.captures]
        trailing = [*captures, *(t.type for t in attention.tables)]
        verify_scalar_region(
            "bounds", self.bounds, [*BOUNDS_ARGS, *trailing], [i32, i32]
        )
        found = [i32] * (1 + self.is_trimmed)
        verify_scalar_region("block", self.block, [*BLOCK_ARGS, *trailing], found)
        self.verify_trimmed()
        self.verify_choice(trailing)
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
            raise VerifyException("a trimmed segment expects to be inside")
        if self.padded is not None or self.masked_if is not None:
            raise VerifyException("a trimmed segment is neither padded nor mixed")

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
        facts = [name for name in UNIT_PROPERTIES if name in attributes]
        for name in facts:
            value = attributes.pop(name)
            if not isinstance(value, UnitAttr):
                parser.raise_error(f"{name} expects no value, got {value}")
        return cls(kind, bounds, block, mask, False, attributes, masked_if, facts)
