"""Segments: runs of blocks that a program visits, and in what order tiles start."""

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
"""Types of (b, h, q_start, q_len, kv_len), which `bounds` receives first."""

BLOCK_ARGS: tuple[IntegerType, ...] = (i32,) * 6
"""Types of (b, h, q_start, i, q_len, kv_len), which `block` receives first."""


UNIT_PROPERTIES = (
    *("inside", "full_inside", "nonempty", "padded", "may_skip", "narrowed"),
)
"""Properties of a segment that hold or do not."""


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
class SegmentOp(IRDLOperation):
    """One run of key blocks: all full, all partial, or mixed.

    `bounds` yields begin and end of the iteration, `block` the first key of
    iteration i; both receive the captures and then the tables. Columns beyond
    kv_len are never live. Of the others, a full segment visits all, a partial one
    those where its mask, if it has one, is true. A mixed segment is partial in the
    iterations where `masked_if`, which receives what `block` does, holds.

    A loop over a `nonempty` or a `padded` segment runs once at least.

    In a *trimmed* segment `block` also yields how many columns the iteration visits,
    1 to block_n: runs of columns are exact to one column, and nothing sticks out.

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
    """No visited block sticks out over kv_len: columns need no check."""
    full_inside = opt_prop_def(UnitAttr)
    """No visited block that is not masked sticks out, in a mixed segment."""
    nonempty = opt_prop_def(UnitAttr)
    """Bounds are known not to be empty."""
    padded = opt_prop_def(UnitAttr)
    """Where bounds are empty, their first iteration takes place all the same, of which
    no pair is live. `block` gives a block that there is for it."""
    may_skip = opt_prop_def(UnitAttr)
    """Iterations of a trimmed segment may visit nothing: their count is 0 or less, and
    `block` gives a column that there is for them."""
    narrowed = opt_prop_def(UnitAttr)
    """In an iteration of a trimmed segment, columns before the first and after the last
    that the mask keeps for any row are left out: a program looks before it computes."""
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
        """`facts` are properties that hold, besides `inside`."""
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
        """Whether iterations have a number of columns each."""
        last = self.block.block.last_op
        return last is not None and len(last.operands) > 1

    @property
    def is_entered(self) -> bool:
        """Whether a loop over it runs once at least."""
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
