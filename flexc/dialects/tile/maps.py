"""Maps: scalar code applied to all elements of tiles, or to rows of CPU panels."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    I32,
    ArrayAttr,
    DenseArrayBase,
    StringAttr,
    i32,
)
from xdsl.ir import Attribute, Region, SSAValue
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

from flexc.dialects.mod_region import (
    is_capture,
    is_scalar,
    verify_scalar_region,
)
from flexc.dialects.tile.checks import (
    parse_count,
    print_count,
)
from flexc.dialects.tile.types import (
    AlongAttr,
    ProductAttr,
    ReduceKind,
    TileType,
    element_of,
    layout_of,
    shape_of,
)


@irdl_op_definition
class MapOp(IRDLOperation):
    """Scalar code that is applied to every element.

    Operand i spans the dimensions `spans[i]` of the result: `[0, 1]` is a full tile,
    `[0]` a value per row, `[1]` a value per column, `[]` a number, or a tensor that the
    region reads. A map whose operands all span nothing yields scalars. Division by zero
    in the region yields an unspecified number but is defined, so that a map may be
    moved.

    ```mlir
    %p = tile.map(%x : f32 = %s [0, 1] : !tile.tile<64x32xf32>,
                  %y : f32 = %m [0] : !tile.tile<64xf32>) {
      %d = arith.subf %x, %y : f32
      flex.yield %d : f32
    } -> !tile.tile<64x32xf32>
    ```
    """

    name = "tile.map"

    inputs = var_operand_def()
    spans = prop_def(ArrayAttr[DenseArrayBase[I32]])
    results_ = var_result_def()
    body = region_def("single_block")

    traits = traits_def(IsolatedFromAbove(), Pure())

    def __init__(
        self,
        inputs: Sequence[SSAValue],
        spans: Sequence[Sequence[int]],
        result_types: Sequence[Attribute],
        body: Region,
    ):
        super().__init__(
            operands=[list(inputs)],
            properties={
                "spans": ArrayAttr([DenseArrayBase.from_list(i32, s) for s in spans])
            },
            result_types=[list(result_types)],
            regions=[body],
        )

    def span(self, index: int) -> tuple[int, ...]:
        """Return the dimensions of the result that an operand spans."""
        return tuple(self.spans.data[index].get_values())

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the results; empty if they are scalars."""
        return shape_of(self.results[0].type)

    def verify_(self) -> None:
        if not self.results:
            raise VerifyException("tile.map expects one result or more")
        shape = self.shape
        verify_spans(self.inputs, self.spans, shape)
        for result in self.results:
            if shape_of(result.type) != shape:
                raise VerifyException(
                    f"results expect shape {shape}, got {result.type}"
                )
            if not is_scalar(element_of(result.type)):
                raise VerifyException(
                    f"results expect tiles or numbers, got {result.type}"
                )
        self._verify_layouts()
        verify_scalar_region(
            "tile.map",
            self.body,
            [element_of(v.type) for v in self.inputs],
            [element_of(r.type) for r in self.results],
        )

    def _verify_layouts(self) -> None:
        """Verify that operands have the layouts that the result's layout demands."""
        layout = layout_of(self.results[0].type)
        if not isinstance(layout, ProductAttr) or len(self.shape) != 2:
            return
        for i, value in enumerate(self.inputs):
            span = self.span(i)
            expected = AlongAttr(span[0], layout) if len(span) == 1 else layout
            if span and layout_of(value.type) != expected:
                raise VerifyException(
                    f"operand {i} expects layout {expected}, got {value.type}"
                )

    def print(self, printer: Printer) -> None:
        print_map_inputs(printer, self.body, self.inputs, self.spans)
        if self.attributes:
            printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_entry_block_args=False)
        printer.print_string(" -> ")
        printer.print_list(self.result_types, printer.print_attribute)

    @classmethod
    def parse(cls, parser: Parser) -> MapOp:
        args, inputs, spans = parse_map_inputs(parser)
        attributes = parser.parse_optional_attr_dict_with_keyword()
        body = parser.parse_region(args)
        parser.parse_punctuation("->")
        types = parser.parse_comma_separated_list(
            parser.Delimiter.NONE, parser.parse_type
        )
        op = cls(inputs, spans, types, body)
        op.attributes = {} if attributes is None else dict(attributes.data)
        return op


def print_map_inputs(
    printer: Printer,
    body: Region,
    inputs: Sequence[SSAValue],
    spans: ArrayAttr[DenseArrayBase[I32]],
) -> None:
    """Print a map's operands, each after its argument of the region."""
    printer.print_string("(")
    rows = zip(body.block.args, inputs, spans.data, strict=True)
    printer.print_list(rows, lambda row: _print_map_input(printer, *row))
    printer.print_string(")")


def parse_map_inputs(
    parser: Parser,
) -> tuple[list[Parser.Argument], list[SSAValue], list[list[int]]]:
    """Parse what `print_map_inputs` prints.

    Return the arguments of the map's region, its operands, and the spans of the
    operands.
    """
    args: list[Parser.Argument] = []
    inputs: list[SSAValue] = []
    spans: list[list[int]] = []
    parser.parse_punctuation("(")
    while parser.parse_optional_punctuation(")") is None:
        args.append(parser.parse_argument())
        parser.parse_punctuation("=")
        name = parser.parse_unresolved_operand()
        spans.append(
            parser.parse_comma_separated_list(
                parser.Delimiter.SQUARE, parser.parse_integer
            )
        )
        parser.parse_punctuation(":")
        inputs.append(parser.resolve_operand(name, parser.parse_type()))
        parser.parse_optional_punctuation(",")
    return args, inputs, spans


def _print_map_input(
    printer: Printer, arg: SSAValue, value: SSAValue, span: DenseArrayBase[I32]
) -> None:
    printer.print_ssa_value(arg)
    printer.print_string(" : ")
    printer.print_attribute(arg.type)
    printer.print_string(" = ")
    printer.print_ssa_value(value)
    printer.print_string(" ")
    with printer.in_square_brackets():
        printer.print_list(span.get_values(), lambda d: printer.print_string(str(d)))
    printer.print_string(" : ")
    printer.print_attribute(value.type)


SPANS: tuple[frozenset[tuple[int, ...]], ...] = (
    frozenset({()}),
    frozenset({(), (0,)}),
    frozenset({(), (0,), (1,), (0, 1), (1, 0)}),
)
"""The allowed spans of a map's operands, by the number of the result's dimensions."""


def verify_spans(
    inputs: Sequence[SSAValue],
    spans: ArrayAttr[DenseArrayBase[I32]],
    shape: tuple[int, ...],
) -> None:
    """Verify that each operand of a map has the sizes of its spanned dimensions."""
    if len(spans) != len(inputs):
        raise VerifyException(f"spans expects {len(inputs)} entries, got {len(spans)}")
    for i, (value, dims) in enumerate(zip(inputs, spans, strict=True)):
        span = tuple(dims.get_values())
        if span not in SPANS[len(shape)]:
            raise VerifyException(
                f"operand {i} expects to span dimensions of {shape}, got {list(span)}"
            )
        expected = tuple(shape[d] for d in span)
        type_ = value.type
        got = type_.get_shape() if isinstance(type_, TileType) else ()
        if got != expected:
            raise VerifyException(f"operand {i} expects shape {expected}, got {type_}")
        if not span and not is_capture(type_):
            raise VerifyException(
                f"operand {i} expects a tile, a number or a tensor, got {type_}"
            )


KEPT = "tile"
"""The outcome of a yielded value that becomes a tile.

Other outcomes are values of `ReduceKind`.
"""


@irdl_op_definition
class PanelMapOp(IRDLOperation):
    """A map over rows of panels, all or the first `count`, that can also combine rows.

    Operands and region are those of a `tile.map` whose shape has two dimensions.
    `outcomes` has an entry for each value that the region yields. `tile` makes it a
    tile, whose rows from `count` on are unspecified. `max`, `min` or `sum` combines its
    rows to one value for each column; then a count is at least 1.

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
        """Create a map; the yielded values determine the result types."""
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
        """The rows and columns that the map runs over."""
        rows, columns = self.shape_.get_values()
        return rows, columns

    def span(self, index: int) -> tuple[int, ...]:
        """Return the dimensions that an operand spans."""
        return tuple(self.spans.data[index].get_values())

    def outcome(self, index: int) -> ReduceKind | None:
        """Return the reduction of a yielded value's rows, or None for a tile."""
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
