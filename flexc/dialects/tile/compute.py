"""Arithmetic on tiles: indices, reductions, layouts, matrix products."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import (
    I32,
    FloatAttr,
    IntegerAttr,
    UnitAttr,
    f32,
    i1,
    i32,
)
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    VarConstraint,
    base,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.irdl.declarative_assembly_format import (
    CustomDirective,
    ParsingState,
    PrintingState,
    TypeDirective,
    irdl_custom_directive,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from flexc.dialects.mod_region import expect_type
from flexc.dialects.tile.checks import ReadsViews, verify_dim, verify_tile
from flexc.dialects.tile.types import (
    AlongAttr,
    LayoutAttr,
    ProductAttr,
    ReduceKind,
    ReduceKindAttr,
    TileType,
    ViewType,
    element_of,
    matrix_shape,
    shape_of,
    transposed,
)


@irdl_op_definition
class IotaOp(IRDLOperation):
    """The numbers start, start + 1, ...: the indices of a tile along a dimension."""

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


def _reduced(type_: TileType, dim: int) -> TileType:
    """Return the type of the result of a reduction of a matrix along a dimension."""
    shape = list(matrix_shape("input", type_))
    verify_dim("dim", dim, 2)
    del shape[dim]
    layout = type_.get_layout()
    if layout is None:
        return TileType(type_.element_type, shape)
    if not isinstance(layout, ProductAttr):
        raise VerifyException(f"input expects a product's layout, got {type_}")
    return TileType(type_.element_type, shape, AlongAttr(1 - dim, layout))


@irdl_custom_directive
class ReducedType(CustomDirective):
    """The type of the input of a reduction, which determines that of the result."""

    input: TypeDirective
    result: TypeDirective

    def parse(self, parser: Parser, state: ParsingState) -> None:
        type_, dim = parser.parse_type(), state.properties["dim"]
        assert isinstance(dim, IntegerAttr)
        if not isinstance(type_, TileType):
            parser.raise_error(f"expected a tile, got {type_}")
        self.input.set(state, [type_])
        self.result.set(state, [_reduced(type_, dim.value.data)])

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        self.input.print(printer, state, op)


@irdl_op_definition
class ReduceOp(IRDLOperation):
    """A combination of a tile's elements along one dimension, all or the first `count`.

    The maximum or minimum of NaN and any number is unspecified. A count is at least 1.
    """

    name = "tile.reduce"

    kind = prop_def(ReduceKindAttr)
    input = operand_def(TileType)
    count = opt_operand_def(i32)
    dim = prop_def(IntegerAttr[I32])
    result = result_def(TileType)

    traits = traits_def(Pure())
    custom_directives = (ReducedType,)
    assembly_format = (
        "$kind $input `along` $dim (`count` $count^)? attr-dict "
        "`:` custom<ReducedType>(type($input), type($result))"
    )

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


@irdl_op_definition
class PartialSumsOp(IRDLOperation):
    """The sums of a matrix's elements whose columns are equal modulo a power of 2.

    If the power is the number of columns that a row of threads holds, each thread sums
    its own elements.

    ```mlir
    %sums = tile.partial_sums %p : !tile.tile<64x128xf32> -> !tile.tile<64x8xf32>
    ```
    """

    name = "tile.partial_sums"

    input = operand_def(TileType)
    result = result_def(TileType)

    traits = traits_def(Pure())
    assembly_format = "$input attr-dict `:` type($input) `->` type($result)"

    def __init__(self, input: SSAValue, columns: int):
        type_ = expect_type("input", input, TileType)
        rows, _ = matrix_shape("input", type_)
        result = TileType(type_.element_type, [rows, columns])
        super().__init__(operands=[input], result_types=[result])

    def verify_(self) -> None:
        type_ = expect_type("input", self.input, TileType)
        rows, columns = matrix_shape("input", type_)
        kept, summed = matrix_shape("result", self.result.type)
        if rows != kept or columns % summed or summed & (summed - 1):
            raise VerifyException(
                f"result expects {rows} rows and a power of 2 that divides {columns} "
                f"as columns, got {self.result.type}"
            )
        if element_of(self.result.type) != type_.element_type:
            raise VerifyException(
                f"result expects elements of {type_.element_type}, got "
                f"{self.result.type}"
            )


@irdl_op_definition
class KeepColumnsOp(IRDLOperation):
    """A matrix with a constant in place of elements outside of each row's columns.

    A row keeps its columns from `first` up to, but without, `end`; none if `end` is not
    greater.

    ```mlir
    %kept = tile.keep_columns %s from %first to %end else 0xff800000 : f32
            : !tile.tile<64x128xf32>, !tile.tile<64xi32>, !tile.tile<64xi32>
    ```
    """

    name = "tile.keep_columns"

    T: ClassVar = VarConstraint("T", base(TileType))
    input = operand_def(T)
    first = operand_def(TileType)
    end = operand_def(TileType)
    other = prop_def(FloatAttr)
    result = result_def(T)

    traits = traits_def(Pure())
    assembly_format = (
        "$input `from` $first `to` $end `else` $other attr-dict `:` type($input) `,` "
        "type($first) `,` type($end)"
    )

    def __init__(self, input: SSAValue, first: SSAValue, end: SSAValue, other: float):
        super().__init__(
            operands=[input, first, end],
            properties={"other": FloatAttr(other, f32)},
            result_types=[input.type],
        )

    def verify_(self) -> None:
        type_ = expect_type("input", self.input, TileType)
        rows, _ = matrix_shape("input", type_)
        if type_.element_type != f32 or self.other.type != f32:
            raise VerifyException(f"input expects elements of f32, got {type_}")
        for name, value in (("first", self.first), ("end", self.end)):
            if element_of(value.type) != i32 or shape_of(value.type) != (rows,):
                raise VerifyException(
                    f"{name} expects {rows} numbers of i32, got {value.type}"
                )


@irdl_op_definition
class ScanOp(IRDLOperation):
    """The sums of a matrix's elements along its rows, each up to its own place.

    ```mlir
    %place = tile.scan %live : !tile.tile<4x128xi32>
    ```
    """

    name = "tile.scan"

    T: ClassVar = VarConstraint("T", base(TileType))
    input = operand_def(T)
    result = result_def(T)

    traits = traits_def(Pure())
    assembly_format = "$input attr-dict `:` type($input)"

    def __init__(self, input: SSAValue):
        super().__init__(operands=[input], result_types=[input.type])

    def verify_(self) -> None:
        matrix_shape("input", self.input.type)


@irdl_op_definition
class DiagonalsOp(IRDLOperation):
    """The sums along a tile's diagonals.

    Element c is the sum of all [i, j] with i - j + n = c, for a tile of m rows and n
    columns, and c from 0 to m + n - 1. With a `count`, only the first `count` columns
    are summed. With `transposed`, the operand is the transpose of that tile: it has n
    rows and m columns.

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

    def __init__(self, input: SSAValue, count: SSAValue | None = None):
        type_ = expect_type("input", input, TileType)
        size = sum(type_.get_shape())
        super().__init__(
            operands=[input, count],
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
                f"result expects the element type of {self.input.type}, got "
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
    """The same tile in another layout: elements move between threads."""

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
    """The matrix product lhs @ rhs + acc, summed in the element type of `acc`.

    Each of lhs and rhs is a tile or a view of shared memory, which is read when the op
    runs. With a `count`, the sum is over the first `count` columns of lhs and rows of
    rhs.
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
            raise VerifyException(
                f"rhs expects {k} rows, as many as lhs has columns, got {k2}"
            )
        if shape_of(self.acc.type) != (m, n) or self.acc.type != self.result.type:
            raise VerifyException(f"acc expects shape {(m, n)}, got {self.acc.type}")


@irdl_op_definition
class LiveRangeOp(IRDLOperation):
    """The smallest range that holds all set flags: its first index and its length.

    Only the first `count` flags are read, or all without a count. If no flag is set,
    both results are 0.

    ```mlir
    %first, %length = tile.live_range %seen count %n : !tile.tile<96xi1>
    ```
    """

    name = "tile.live_range"

    flags = operand_def(TileType)
    count = opt_operand_def(i32)
    first = result_def(i32)
    length = result_def(i32)

    traits = traits_def(Pure())
    assembly_format = "$flags (`count` $count^)? attr-dict `:` type($flags)"

    def __init__(self, flags: SSAValue, count: SSAValue | None = None):
        super().__init__(operands=[flags, count], result_types=[i32, i32])

    def verify_(self) -> None:
        if len(shape_of(self.flags.type)) != 1 or element_of(self.flags.type) != i1:
            raise VerifyException(f"expects a row of flags, got {self.flags.type}")
