"""Arithmetic on tiles: maps, reductions, matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    I32,
    ArrayAttr,
    DenseArrayBase,
    IntegerAttr,
    UnitAttr,
    i32,
)
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove, Pure
from xdsl.utils.exceptions import VerifyException

from flexc.dialects.mod_region import expect_type, is_scalar, verify_scalar_region
from flexc.dialects.tile.checks import (
    verify_dim,
    verify_spans,
    verify_tile,
)
from flexc.dialects.tile.counts import parse_count, print_count
from flexc.dialects.tile.layouts import AlongAttr, LayoutAttr, ProductAttr
from flexc.dialects.tile.schedule.effects import ReadsViews
from flexc.dialects.tile.schedule.shapes import transposed
from flexc.dialects.tile.schedule.types import ViewType, matrix_shape
from flexc.dialects.tile.types import ReduceKind, ReduceKindAttr, TileType


@irdl_op_definition
class IotaOp(IRDLOperation):
    """start, start + 1, ...: the indices that a tile covers along a dimension."""

    name = "tile.iota"

    start = operand_def(i32)
    result = result_def(TileType)

    traits = traits_def(Pure())
    assembly_format = "$start attr-dict `:` type($result)"

    def __init__(self, start: SSAValue, size: int):
        super().__init__(operands=[start], result_types=[TileType(i32, [size])])

    def verify_(self) -> None:
        if element_of(self.result.type) != i32 or len(shape_of(self.result.type)) != 1:
            raise VerifyException(
                f"result expects one dimension of i32, got {self.result.type}"
            )


@irdl_op_definition
class FullOp(IRDLOperation):
    """A tile whose elements are all the same scalar."""

    name = "tile.full"

    value = operand_def()
    result = result_def(TileType)

    traits = traits_def(Pure())
    assembly_format = "$value attr-dict `:` type($value) `->` type($result)"

    def __init__(self, value: SSAValue, type_: TileType):
        super().__init__(operands=[value], result_types=[type_])

    def verify_(self) -> None:
        if element_of(self.result.type) != self.value.type:
            raise VerifyException(
                f"result expects elements of {self.value.type}, got {self.result.type}"
            )


@irdl_op_definition
class MapOp(IRDLOperation):
    """Scalar code applied to every element.

    Operand i spans the dimensions `spans[i]` of the result: `[0, 1]` is a full
    tile, `[0]` a value per row, `[1]` one per column, `[]` a number or a tensor
    that the region reads. A map whose operands all span nothing yields scalars.
    Division by zero within yields some number: it is never undefined, so that a
    map may be moved.

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
        """The result's dimensions that an operand spans."""
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
        """Operands lie as a matrix that results, where its layout is decided."""
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
    """A map's operands, each after the argument of the region that it is."""
    printer.print_string("(")
    rows = zip(body.block.args, inputs, spans.data, strict=True)
    printer.print_list(rows, lambda row: _print_map_input(printer, *row))
    printer.print_string(")")


def parse_map_inputs(
    parser: Parser,
) -> tuple[list[Parser.Argument], list[SSAValue], list[list[int]]]:
    """Arguments of a map's region, its operands, what these span."""
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


def shape_of(type_: Attribute) -> tuple[int, ...]:
    """The shape of a tile; () for numbers and tensors, which a map takes whole."""
    return type_.get_shape() if isinstance(type_, TileType) else ()


def layout_of(type_: Attribute) -> LayoutAttr | None:
    """The layout of a tile, where it is decided."""
    return type_.get_layout() if isinstance(type_, TileType) else None


def element_of(type_: Attribute) -> Attribute:
    """The type that a map's region sees: the element of a tile, else the type."""
    return type_.element_type if isinstance(type_, TileType) else type_


@irdl_op_definition
class ReduceOp(IRDLOperation):
    """Combine a tile's elements along one dimension: the first `count`, or all.

    The maximum or minimum of NaN and anything is unspecified. A count is 1 at least.
    """

    name = "tile.reduce"

    kind = prop_def(ReduceKindAttr)
    input = operand_def(TileType)
    count = opt_operand_def(i32)
    dim = prop_def(IntegerAttr[I32])
    result = result_def(TileType)

    traits = traits_def(Pure())

    def __init__(
        self,
        kind: ReduceKind,
        input: SSAValue,
        dim: int,
        count: SSAValue | None = None,
    ):
        super().__init__(
            operands=[input, count],
            properties={"kind": ReduceKindAttr(kind), "dim": IntegerAttr(dim, i32)},
            result_types=[_reduced(expect_type("input", input, TileType), dim)],
        )

    def verify_(self) -> None:
        type_ = expect_type("input", self.input, TileType)
        if self.result.type != (expected := _reduced(type_, self.dim.value.data)):
            raise VerifyException(f"result expects {expected}, got {self.result.type}")

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.kind.data} ")
        printer.print_ssa_value(self.input)
        printer.print_string(f" along {self.dim.value.data}")
        print_count(printer, self.count)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.input.type)

    @classmethod
    def parse(cls, parser: Parser) -> ReduceOp:
        kind = ReduceKind(parser.parse_keyword_in([k.value for k in ReduceKind]))
        name = parser.parse_unresolved_operand()
        parser.parse_keyword("along")
        dim = parser.parse_integer()
        count = parse_count(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        op = cls(kind, parser.resolve_operand(name, parser.parse_type()), dim, count)
        op.attributes = attributes
        return op


def _reduced(type_: TileType, dim: int) -> TileType:
    """The type of the values that one dimension of a matrix is reduced to."""
    shape = list(matrix_shape("input", type_))
    verify_dim("dim", dim, 2)
    del shape[dim]
    layout = type_.get_layout()
    if layout is None:
        return TileType(type_.element_type, shape)
    if not isinstance(layout, ProductAttr):
        raise VerifyException(f"input expects a product's layout, got {type_}")
    return TileType(type_.element_type, shape, AlongAttr(1 - dim, layout))


@irdl_op_definition
class DiagonalsOp(IRDLOperation):
    """The sums along a tile's diagonals: element c is the sum of all [i, j] with
    i - j + n = c, for a tile of m rows and n columns and c from 0 to m + n - 1.

    Of the first `count` columns, if that is given. Of a `transposed` op the tile is the
    transpose of what is summed, of n rows and m columns.

    ```mlir
    %d = tile.diagonals %w : !tile.tile<64x64xf32> -> !tile.tile<128xf32>
    %d = tile.diagonals %w count %n transposed : !tile.tile<96x32xf32> -> ...
    ```
    """

    name = "tile.diagonals"

    input = operand_def(TileType)
    count = opt_operand_def(i32)
    transposed = opt_prop_def(UnitAttr)
    result = result_def(TileType)

    traits = traits_def(Pure())
    assembly_format = (
        "$input (`count` $count^)? (`transposed` $transposed^)? attr-dict "
        "`:` type($input) `->` type($result)"
    )

    def __init__(
        self, input: SSAValue, count: SSAValue | None = None, transposed: bool = False
    ):
        type_ = expect_type("input", input, TileType)
        size = sum(type_.get_shape())
        super().__init__(
            operands=[input, count],
            properties={"transposed": UnitAttr() if transposed else None},
            result_types=[TileType(type_.element_type, [size])],
        )

    @property
    def is_transposed(self) -> bool:
        return self.transposed is not None

    def verify_(self) -> None:
        shape = shape_of(self.input.type)
        if len(shape) != 2:
            raise VerifyException(f"expects a tile of two dimensions, got {shape}")
        if shape_of(self.result.type) != (sum(shape),):
            raise VerifyException(
                f"result expects {sum(shape)} elements, got {self.result.type}"
            )
        if element_of(self.input.type) != element_of(self.result.type):
            raise VerifyException(
                f"result expects elements as {self.input.type} has, got "
                f"{self.result.type}"
            )


@irdl_op_definition
class TransposeOp(IRDLOperation):
    """The transpose of a tile."""

    name = "tile.transpose"

    input = operand_def(TileType)
    result = result_def(TileType)

    traits = traits_def(Pure())
    assembly_format = "$input attr-dict `:` type($input) `->` type($result)"

    def __init__(self, input: SSAValue):
        type_ = expect_type("input", input, TileType)
        super().__init__(operands=[input], result_types=[transposed(type_)])

    def verify_(self) -> None:
        columns, rows = matrix_shape("input", self.input.type)
        element = element_of(self.input.type)
        verify_tile("result", self.result.type, (rows, columns), element)


@irdl_op_definition
class ConvertLayoutOp(IRDLOperation):
    """The same tile in another layout: its elements move between threads."""

    name = "tile.convert_layout"

    input = operand_def(TileType)
    result = result_def(TileType)

    traits = traits_def(Pure())
    assembly_format = "$input attr-dict `:` type($input) `->` type($result)"

    def __init__(self, input: SSAValue, layout: LayoutAttr):
        type_ = expect_type("input", input, TileType)
        super().__init__(operands=[input], result_types=[type_.with_layout(layout)])

    def verify_(self) -> None:
        source, result = self.input.type, self.result.type
        assert isinstance(source, TileType)
        assert isinstance(result, TileType)
        if source.with_layout(None) != result.with_layout(None):
            raise VerifyException(f"result expects a tile as {source}, got {result}")


@irdl_op_definition
class DotOp(IRDLOperation):
    """The matrix product lhs @ rhs + acc, summed in the type of `acc`.

    Each of lhs and rhs is a tile or lies in shared memory, where it is read at once.
    With a `count` the sum is over so many columns of lhs and rows of rhs, the first.
    """

    name = "tile.dot"

    lhs = operand_def(TileType | ViewType)
    rhs = operand_def(TileType | ViewType)
    acc = operand_def(TileType)
    count = opt_operand_def(i32)
    result = result_def(TileType)

    traits = traits_def(ReadsViews())
    assembly_format = (
        "$lhs `,` $rhs `,` $acc (`count` $count^)? attr-dict "
        "`:` type($lhs) `,` type($rhs) `,` type($acc) `->` type($result)"
    )

    def __init__(
        self,
        lhs: SSAValue,
        rhs: SSAValue,
        acc: SSAValue,
        count: SSAValue | None = None,
    ):
        super().__init__(operands=[lhs, rhs, acc, count], result_types=[acc.type])

    def verify_(self) -> None:
        m, k = matrix_shape("lhs", self.lhs.type)
        k2, n = matrix_shape("rhs", self.rhs.type)
        if k != k2:
            raise VerifyException(f"rhs expects {k} rows as lhs has columns, got {k2}")
        if shape_of(self.acc.type) != (m, n) or self.acc.type != self.result.type:
            raise VerifyException(f"acc expects shape {(m, n)}, got {self.acc.type}")
