"""`blocksparse.pair_sums`: sums over the pairs that segments visit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.ir import Attribute, Region, SSAValue
from xdsl.irdl import irdl_op_definition, region_def, traits_def
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
from flexc.dialects.flex import PairSumsLike
from flexc.dialects.mod_region import (
    parse_properties,
    parse_region_with_args,
    print_properties,
    print_region_with_args,
)


@irdl_op_definition
class PairSumsOp(PairSumsLike, Tiled):
    """`flex.pair_sums` over the pairs that its segments visit.

    A program owns `block_m` rows and visits segments of blocks of `block_n` columns. In
    a transposed op, rows are keys and columns are queries, so `bounds` receives (b, h,
    k_start, kv_len, q_len). b and h always belong to the query. If several query heads
    share the head of the rows, a program visits the segments of each query head.
    """

    name = "blocksparse.pair_sums"

    pairs = region_def("single_block")
    segments = region_def("single_block")

    traits = traits_def(IsolatedFromAbove(), Pure(), NoTerminator())

    def __init__(
        self,
        operands: Sequence[SSAValue | Sequence[SSAValue]],
        result_types: Sequence[Attribute],
        pairs: Region,
        segments: Region,
        properties: Mapping[str, Attribute],
    ):
        """Create the op; `operands` has the same groups as for `flex.pair_sums`."""
        super().__init__(
            operands=operands,
            result_types=[result_types],
            regions=[pairs, segments],
            properties=dict(properties),
        )

    def verify_(self) -> None:
        self.verify_operands()
        self.verify_facts(*TILING)
        verify_segments(self.segments)

    def print(self, printer: Printer) -> None:
        self.print_head(printer)
        print_properties(printer, self)
        print_region_with_args(printer, "pairs", self.pairs)
        print_segments(printer, self.segments)

    @classmethod
    def parse(cls, parser: Parser) -> PairSumsOp:
        operands, results = cls.parse_head(parser)
        properties, attributes = parse_properties(parser, cls)
        pairs = parse_region_with_args(parser, "pairs")
        segments = parse_segments(parser)
        op = cls(operands, results, pairs, segments, properties)
        op.attributes = attributes
        return op
