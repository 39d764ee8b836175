"""Maps on panels of a CPU: as many columns as a few vector registers hold.

A panel is a tile whose rows are vectors. Maps run over its rows, and combine them on
the way.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import I32, ArrayAttr, DenseArrayBase, StringAttr, i32
from xdsl.ir import Region, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    opt_operand_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove, Pure
from xdsl.utils.exceptions import VerifyException

from flexc.dialects.mod_region import verify_scalar_region
from flexc.dialects.tile.checks import verify_spans
from flexc.dialects.tile.compute import (
    element_of,
    parse_map_inputs,
    print_map_inputs,
)
from flexc.dialects.tile.counts import parse_count, print_count
from flexc.dialects.tile.types import ReduceKind, TileType

KEPT = "tile"
"""What becomes of a value that a panel map yields: a tile, or a ReduceKind's value."""


@irdl_op_definition
class PanelMapOp(IRDLOperation):
    """A map over the first `count` rows of panels, or all, that also combines rows.

    Operands and region are those of `tile.map` with a shape of two dimensions. Of what
    the region yields, `outcomes` says what becomes: `tile` makes a tile of it, whose
    rows from `count` on are unspecified; `max`, `min` or `sum` combines its rows, to
    one value for each column. A count is 1 at least where rows are combined.

    ```mlir
    %p, %sum = tile.panel_map [96, 32] count %n (
        %x : f32 = %s [0, 1] : !tile.tile<96x32xf32>,
        %m : f32 = %shift [1] : !tile.tile<32xf32>) {
      %d = arith.addf %x, %m : f32
      %e = math.exp2 %d : f32
      flex.yield %e, %e : f32, f32
    } as [tile, sum] -> !tile.tile<96x32xf32>, !tile.tile<32xf32>
    ```
    """

    name = "tile.panel_map"

    count = opt_operand_def(i32)
    inputs = var_operand_def()
    spans = prop_def(ArrayAttr[DenseArrayBase[I32]])
    shape_ = prop_def(DenseArrayBase.constr(i32), prop_name="shape")
    outcomes = prop_def(ArrayAttr[StringAttr])
    results_ = var_result_def()
    body = region_def("single_block")

    traits = traits_def(IsolatedFromAbove(), Pure())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def __init__(
        self,
        shape: tuple[int, int],
        count: SSAValue | None,
        inputs: Sequence[SSAValue],
        spans: Sequence[Sequence[int]],
        outcomes: Sequence[str],
        body: Region,
    ):
        """The types of results follow from what the region yields."""
        last = body.block.last_op
        yielded = () if last is None else last.operand_types
        types = [
            TileType(t, shape if o == KEPT else shape[1:])
            for t, o in zip(yielded, outcomes, strict=False)
        ]
        super().__init__(
            operands=[count, list(inputs)],
            properties={
                "spans": ArrayAttr([DenseArrayBase.from_list(i32, s) for s in spans]),
                "shape": DenseArrayBase.from_list(i32, shape),
                "outcomes": ArrayAttr([StringAttr(o) for o in outcomes]),
            },
            result_types=[types],
            regions=[body],
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of what it runs over."""
        rows, columns = self.shape_.get_values()
        return rows, columns

    def span(self, index: int) -> tuple[int, ...]:
        """The dimensions that an operand spans."""
        return tuple(self.spans.data[index].get_values())

    def outcome(self, index: int) -> ReduceKind | None:
        """How the rows of a yielded value are combined; None if it stays a tile."""
        word = self.outcomes.data[index].data
        return None if word == KEPT else ReduceKind(word)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        with printer.in_square_brackets():
            printer.print_list(self.shape, lambda n: printer.print_string(str(n)))
        print_count(printer, self.count)
        printer.print_string(" ")
        print_map_inputs(printer, self.body, self.inputs, self.spans)
        if self.attributes:
            printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)
        printer.print_string(" as ")
        with printer.in_square_brackets():
            printer.print_list(self.outcomes, lambda o: printer.print_string(o.data))
        printer.print_string(" -> ")
        printer.print_list(self.result_types, printer.print_attribute)

    @classmethod
    def parse(cls, parser: Parser) -> PanelMapOp:
        square = parser.Delimiter.SQUARE
        pos = parser.pos
        shape = parser.parse_comma_separated_list(square, parser.parse_integer)
        if len(shape) != 2:
            parser.raise_error(f"expected rows and columns, got {shape}", pos)
        rows, columns = shape
        count = parse_count(parser)
        args, inputs, spans = parse_map_inputs(parser)
        attributes = parser.parse_optional_attr_dict_with_keyword()
        body = parser.parse_region(args)
        parser.parse_keyword("as")
        words = [KEPT, *(k.value for k in ReduceKind)]
        outcomes = parser.parse_comma_separated_list(
            square, lambda: parser.parse_keyword_in(words)
        )
        parser.parse_punctuation("->")
        pos = parser.pos
        types = parser.parse_comma_separated_list(
            parser.Delimiter.NONE, parser.parse_type
        )
        op = cls((rows, columns), count, inputs, spans, outcomes, body)
        if list(op.result_types) != types:
            parser.raise_error("the types are not those that are yielded", pos)
        op.attributes = {} if attributes is None else dict(attributes.data)
        return op

    def verify_(self) -> None:
        if len(self.shape_) != 2:
            raise VerifyException(f"shape expects rows and columns, got {self.shape_}")
        words = [KEPT, *(k.value for k in ReduceKind)]
        for word in self.outcomes.data:
            if word.data not in words:
                raise VerifyException(f"outcomes expects {words}, got {word.data}")
        expected, got = len(self.results), len(self.outcomes)
        if expected != got:
            raise VerifyException(f"outcomes expects {expected} entries, got {got}")
        verify_spans(self.inputs, self.spans, self.shape)
        for i, result in enumerate(self.results):
            expected = self.shape if self.outcome(i) is None else self.shape[1:]
            if result.type != TileType(element_of(result.type), expected):
                raise VerifyException(
                    f"result {i} expects a tile of shape {expected}, got {result.type}"
                )
        verify_scalar_region(
            "tile.panel_map",
            self.body,
            [element_of(v.type) for v in self.inputs],
            [element_of(r.type) for r in self.results],
        )


PANEL_OPS = (PanelMapOp,)
