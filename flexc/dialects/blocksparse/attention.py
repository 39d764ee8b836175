"""`blocksparse.attention`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.ir import (
    Attribute,
    Region,
    SSAValue,
)
from xdsl.irdl import (
    irdl_op_definition,
    region_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove, NoTerminator, Pure

from flexc.dialects.blocksparse.tiling import (
    TILING,
    Tiled,
    parse_segments,
    print_segments,
    verify_segments,
)
from flexc.dialects.flex import AttentionLike, operand_groups
from flexc.dialects.mod_region import (
    parse_properties,
    parse_region_with_args,
    print_properties,
    print_region_with_args,
)


@irdl_op_definition
class AttentionOp(AttentionLike, Tiled):
    """Attention over the pairs that its segments visit; all other pairs are masked.

    Segments visit no pair twice. Only the `bounds` and `block` regions of segments read
    `tables`. `order` and `heads_per_group` are hints about the order in which tiles
    start. For masks that give later rows more work, the last rows of several heads
    start first. With splits, each split visits its share of the iterations of each
    segment. Shares differ by at most one iteration; the last splits have the larger
    shares.
    """

    name = "blocksparse.attention"

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
            operands=operand_groups(operands),
            result_types=result_types,
            regions=[score_mod, segments],
            properties=dict(properties),
        )

    def verify_(self) -> None:
        self.verify_operands()
        self.verify_facts(*TILING)
        verify_segments(self.segments)

    def print(self, printer: Printer) -> None:
        self.print_head(printer)
        print_properties(printer, self)
        print_region_with_args(printer, "score_mod", self.score_mod)
        print_segments(printer, self.segments)

    @classmethod
    def parse(cls, parser: Parser) -> AttentionOp:
        operands, results = cls.parse_head(parser)
        properties, attributes = parse_properties(parser, cls)
        score_mod = parse_region_with_args(parser, "score_mod")
        segments = parse_segments(parser)
        op = cls(operands, results, score_mod, segments, properties)
        op.attributes = attributes
        return op
