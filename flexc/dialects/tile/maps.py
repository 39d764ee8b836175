"""Maps: scalar code on all elements of tiles or rows of CPU panels, and conversions."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    I32,
    ArrayAttr,
    DenseArrayBase,
    Float8E4M3FNType,
    Float8E5M2Type,
    StringAttr,
    UnitAttr,
    bf16,
    f16,
    f32,
    i8,
    i32,
)
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.irdl import (
    AnyOf,
    AttrSizedOperandSegments,
    BaseAttr,
    EqAttrConstraint,
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
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    RegionVariable,
    TypeDirective,
    VariadicOperandVariable,
    irdl_custom_directive,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove, Pure
from xdsl.utils.exceptions import VerifyException

from flexc.dialects.mod_region import is_capture, is_scalar, verify_scalar_region
from flexc.dialects.tile.types import (
    AlongAttr,
    PairsAttr,
    ProductAttr,
    ReduceKind,
    TileType,
    element_of,
    layout_of,
    matrix_shape,
    shape_of,
)

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


@irdl_custom_directive
class MappedRegion(CustomDirective):
    """`(%x : f32 = %s [0, 1] : !tile.tile<...>, ...) { ops }`: inputs and a region.

    Each input stands after the argument of the region that receives its elements, and
    before the dimensions that it spans.
    """

    inputs: VariadicOperandVariable
    types: TypeDirective
    spans: AttributeVariable
    body: RegionVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        args: list[Parser.Argument] = []
        inputs: list[UnresolvedOperand] = []
        spans: list[DenseArrayBase[I32]] = []
        types: list[Attribute] = []

        def parse_input() -> None:
            args.append(parser.parse_argument())
            parser.parse_punctuation("=")
            inputs.append(parser.parse_unresolved_operand())
            dims = parser.parse_comma_separated_list(
                parser.Delimiter.SQUARE, parser.parse_integer
            )
            spans.append(DenseArrayBase.from_list(i32, dims))
            parser.parse_punctuation(":")
            types.append(parser.parse_type())

        parser.parse_comma_separated_list(parser.Delimiter.PAREN, parse_input)
        self.inputs.set(state, inputs)
        self.types.set(state, types)
        self.spans.set(state, ArrayAttr(spans))
        self.body.set(state, parser.parse_region(args))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        assert isinstance(op, MapLike)

        def print_input(i: int) -> None:
            arg = op.body.block.args[i]
            printer.print_ssa_value(arg)
            printer.print_string(f" : {arg.type} = ")
            printer.print_ssa_value(op.inputs[i])
            printer.print_string(f" {list(op.span(i))} : ")
            printer.print_attribute(op.inputs[i].type)

        with printer.in_parens():
            printer.print_list(range(len(op.inputs)), print_input)
        printer.print_string(" ")
        printer.print_region(op.body, print_entry_block_args=False)
        state.should_emit_space = True


class MapLike(IRDLOperation):
    """An op that applies scalar code to the elements of its inputs.

    Input i spans the dimensions `spans[i]` of the op's shape.
    """

    inputs = var_operand_def()
    spans = prop_def(ArrayAttr[DenseArrayBase[I32]])
    results_ = var_result_def()
    body = region_def("single_block")

    traits = traits_def(IsolatedFromAbove(), Pure())
    custom_directives = (MappedRegion,)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions that inputs span."""
        raise NotImplementedError

    def span(self, index: int) -> tuple[int, ...]:
        """Return the dimensions that an input spans."""
        return tuple(self.spans.data[index].get_values())

    def verify_(self) -> None:
        verify_spans(self.inputs, self.spans, self.shape)
        verify_scalar_region(
            self.name,
            self.body,
            [element_of(v.type) for v in self.inputs],
            self.yielded_types(),
        )

    def yielded_types(self) -> list[Attribute]:
        """Return the types that the region must yield."""
        return [element_of(r.type) for r in self.results]


def array_of_spans(spans: Sequence[Sequence[int]]) -> ArrayAttr[DenseArrayBase[I32]]:
    return ArrayAttr([DenseArrayBase.from_list(i32, s) for s in spans])


@irdl_op_definition
class MapOp(MapLike):
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

    assembly_format = (
        "custom<MappedRegion>($inputs, type($inputs), $spans, $body) "
        "attr-dict-with-keyword `->` type($results_)"
    )

    def __init__(
        self,
        inputs: Sequence[SSAValue],
        spans: Sequence[Sequence[int]],
        result_types: Sequence[Attribute],
        body: Region,
    ):
        super().__init__(
            operands=[list(inputs)],
            properties={"spans": array_of_spans(spans)},
            result_types=[list(result_types)],
            regions=[body],
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the results; empty if they are scalars."""
        return shape_of(self.results[0].type)

    def verify_(self) -> None:
        if not self.results:
            raise VerifyException("tile.map expects one result or more")
        shape = self.shape
        for result in self.results:
            if shape_of(result.type) != shape:
                raise VerifyException(
                    f"results expect shape {shape}, got {result.type}"
                )
            if not is_scalar(element_of(result.type)):
                raise VerifyException(
                    f"results expect tiles or numbers, got {result.type}"
                )
        super().verify_()
        self._verify_layouts()

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


REFERENCE = "tile.reference"
"""The attribute of a map whose results are the references of rows' weights.

It chooses between the largest score of a block and the reference of the blocks before
it, which is -inf only while their sums are 0. Any reference near the largest score so
far serves: sums and weights depend on it, what a kernel stores does not.
"""

KEPT = "tile"
"""The outcome of a yielded value that becomes a tile.

Other outcomes are `PACKED` and values of `ReduceKind`.
"""

PACKED = "pairs"
"""The outcome of a yielded f32 that is rounded to bf16 and packed in pairs."""


@irdl_op_definition
class PanelMapOp(MapLike):
    """A map over rows of panels, all or the first `count`, that can also combine rows.

    Operands and region are those of a `tile.map` whose shape has two dimensions.
    `outcomes` has an entry for each value that the region yields. `tile` makes it a
    tile, whose rows from `count` on are unspecified. `pairs` rounds it to bf16 and
    packs it as `tile.pack` does. `max`, `min` or `sum` combines its rows to one value
    for each column; then a count is at least 1.

    ```mlir
    %p, %sum = tile.panel_map [96, 32] count %n (
        %x : f32 = %s [0, 1] : !tile.tile<96x32xf32>,
        %m : f32 = %shift [1] : !tile.tile<32xf32>) {
      %d = arith.addf %x, %m : f32
      %e = math.exp2 %d : f32
      flex.yield %e, %e : f32, f32
    } as ["tile", "sum"] -> !tile.tile<96x32xf32>, !tile.tile<32xf32>
    ```
    """

    name = "tile.panel_map"

    count = opt_operand_def(i32)
    shape_ = prop_def(DenseArrayBase.constr(i32), prop_name="shape")
    outcomes = prop_def(ArrayAttr[StringAttr])

    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$shape (`count` $count^)? ` ` "
        "custom<MappedRegion>($inputs, type($inputs), $spans, $body) "
        "`as` $outcomes attr-dict-with-keyword `->` type($results_)"
    )

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
            result_type(t, shape, o) for t, o in zip(yielded, outcomes, strict=False)
        ]
        super().__init__(
            operands=[count, list(inputs)],
            properties={
                "spans": array_of_spans(spans),
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

    def outcome(self, index: int) -> ReduceKind | None:
        """Return the reduction of a yielded value's rows, or None for a tile."""
        word = self.outcomes.data[index].data
        return None if word in (KEPT, PACKED) else ReduceKind(word)

    def is_packed(self, index: int) -> bool:
        """Return True if a yielded value is packed in pairs."""
        return self.outcomes.data[index].data == PACKED

    def verify_(self) -> None:
        if len(self.shape_) != 2:
            raise VerifyException(f"shape expects rows and columns, got {self.shape_}")
        words = [KEPT, PACKED, *(k.value for k in ReduceKind)]
        for word in self.outcomes.data:
            if word.data not in words:
                raise VerifyException(f"outcomes expects {words}, got {word.data}")
        expected, got = len(self.results), len(self.outcomes)
        if expected != got:
            raise VerifyException(f"outcomes expects {expected} entries, got {got}")
        for i, (result, word) in enumerate(
            zip(self.results, self.outcomes.data, strict=True)
        ):
            element = element_of(result.type)
            expected = result_type(element, self.shape, word.data)
            if result.type != expected:
                shape = expected.get_shape()
                what = expected if word.data == PACKED else f"a tile of shape {shape}"
                raise VerifyException(f"result {i} expects {what}, got {result.type}")
        super().verify_()

    def yielded_types(self) -> list[Attribute]:
        types = super().yielded_types()
        return [f32 if self.is_packed(i) else t for i, t in enumerate(types)]


def result_type(element: Attribute, shape: Sequence[int], outcome: str) -> TileType:
    """Return the type of a panel map's result."""
    if outcome == PACKED:
        return TileType(bf16, shape, PairsAttr())
    return TileType(element, shape if outcome == KEPT else shape[1:])


@irdl_op_definition
class TanhApproxOp(IRDLOperation):
    """The hyperbolic tangent, as hardware approximates it.

    The relative error is at most 2**-11: PTX's `tanh.approx.f32`. The op is scalar, so
    it can be part of mod regions.

    ```mlir
    %t = tile.tanh_approx %x : f32
    ```
    """

    name = "tile.tanh_approx"

    operand = operand_def(f32)
    result = result_def(f32)

    traits = traits_def(Pure())
    assembly_format = "$operand attr-dict `:` type($result)"

    def __init__(self, operand: SSAValue):
        super().__init__(operands=[operand], result_types=[f32])


@irdl_op_definition
class WidenBytesOp(IRDLOperation):
    """A number of 8 bits as bf16 or f16, several elements of a tile at a time on a GPU.

    Instructions for one element take four times as long. The op is scalar, so it can be
    part of mod regions. If it is `staged`, threads convert the elements that they
    loaded, before the elements move to the threads that multiply them.

    ```mlir
    %y = tile.widen_bytes staged %x : f8E4M3FN to bf16
    ```
    """

    name = "tile.widen_bytes"

    operand = operand_def(
        AnyOf(
            (EqAttrConstraint(i8), BaseAttr(Float8E4M3FNType), BaseAttr(Float8E5M2Type))
        )
    )
    staged = opt_prop_def(UnitAttr)
    result = result_def(AnyOf((EqAttrConstraint(bf16), EqAttrConstraint(f16))))

    traits = traits_def(Pure())
    assembly_format = (
        "(`staged` $staged^)? $operand attr-dict `:` type($operand) `to` type($result)"
    )

    def __init__(self, operand: SSAValue, element: Attribute, staged: bool):
        super().__init__(
            operands=[operand],
            result_types=[element],
            properties={"staged": UnitAttr() if staged else None},
        )


@irdl_op_definition
class WidenOp(IRDLOperation):
    """A bf16 as f32, by shifts of a pair of elements of a tile.

    A conversion instruction takes four times as long. The op is scalar, so it can be
    part of mod regions.

    ```mlir
    %y = tile.widen %x : bf16
    ```
    """

    name = "tile.widen"

    operand = operand_def(bf16)
    result = result_def(f32)

    traits = traits_def(Pure())
    assembly_format = "$operand attr-dict `:` type($operand)"

    def __init__(self, operand: SSAValue):
        super().__init__(operands=[operand], result_types=[f32])


@irdl_op_definition
class PackPairsOp(IRDLOperation):
    """A matrix of 16-bit elements as 32-bit elements, each of two adjacent columns.

    Each thread packs its own elements: a layout of pairs follows from the input's.

    ```mlir
    %y = tile.pack_pairs %x : !tile.tile<64x128xbf16> -> !tile.tile<64x64xi32>
    ```
    """

    name = "tile.pack_pairs"

    input = operand_def(TileType)
    result = result_def(TileType)

    traits = traits_def(Pure())
    assembly_format = "$input attr-dict `:` type($input) `->` type($result)"

    def __init__(self, input: SSAValue):
        rows, columns = matrix_shape("input", input.type)
        result = TileType(i32, [rows, columns // 2])
        super().__init__(operands=[input], result_types=[result])

    def verify_(self) -> None:
        verify_pairs(self.input.type, self.result.type)


@irdl_op_definition
class UnpackPairsOp(IRDLOperation):
    """The matrix that `tile.pack_pairs` packed.

    ```mlir
    %x = tile.unpack_pairs %y : !tile.tile<64x64xi32> -> !tile.tile<64x128xbf16>
    ```
    """

    name = "tile.unpack_pairs"

    input = operand_def(TileType)
    result = result_def(TileType)

    traits = traits_def(Pure())
    assembly_format = "$input attr-dict `:` type($input) `->` type($result)"

    def __init__(self, input: SSAValue, type_: TileType):
        super().__init__(operands=[input], result_types=[type_])

    def verify_(self) -> None:
        verify_pairs(self.result.type, self.input.type)


def verify_pairs(single: Attribute, pairs: Attribute) -> None:
    """Raise `VerifyException` unless `pairs` has the elements of `single` in pairs."""
    rows, columns = matrix_shape("a matrix of pairs", single)
    if element_of(single) not in (bf16, f16) or columns % 2:
        raise VerifyException(
            f"pairs expect an even number of bf16 or f16, got {single}"
        )
    expected = TileType(i32, [rows, columns // 2])
    if not isinstance(pairs, TileType) or pairs.with_layout(None) != expected:
        raise VerifyException(f"pairs of {single} expect {expected}, got {pairs}")
