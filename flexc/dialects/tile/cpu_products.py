"""Matrix products of a CPU, which keep sums in registers and read operands in place.

A register product keeps a block of sums in vector registers. It reads its lhs, keys or
values, one number at a time, so that they are not copied, transposed or packed. A
stream product has few rows. It reads its rhs from memory once, a vector at a time, and
may prefetch rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    I32,
    IntAttr,
    IntegerAttr,
    MemRefType,
    TensorType,
    UnitAttr,
    i32,
    i64,
)
from xdsl.ir import Attribute, ParametrizedAttribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from flexc.dialects.constants import int_constant
from flexc.dialects.tile.types import (
    PairsAttr,
    TileType,
    element_of,
    layout_of,
    matrix_shape,
    shape_of,
)

VECTOR_BYTES = "vector_bytes"
"""The attribute of a kernel with the width of its vectors, in bytes."""


TILE_DEPTH, TILE_SUMS = 32, 4
"""The columns of lhs in a register of a matrix unit, and its most registers of sums."""


@irdl_attr_definition
class RegisterTileAttr(ParametrizedAttribute):
    """The block of a product that stays in registers: rows, and vectors in each row.

    `<8 x 2>` takes one column of lhs at a time. `<8 x 2 x 2>` takes two: lhs has 16-bit
    floats and rhs is packed. `<32 x 2 x 32>` takes 32 on a matrix unit, whose registers
    have 16 rows of a vector of 16 floats.
    """

    name = "tile.register_tile"

    rows: IntAttr
    vectors: IntAttr
    depth: IntAttr

    def __init__(self, rows: int, vectors: int, depth: int = 1):
        super().__init__(IntAttr(rows), IntAttr(vectors), IntAttr(depth))

    def verify(self) -> None:
        if min(self.rows.data, self.vectors.data) < 1:
            raise VerifyException(
                f"expects at least one row and one vector, got {self.rows.data} x "
                f"{self.vectors.data}"
            )
        if self.depth.data not in (1, 2, TILE_DEPTH):
            raise VerifyException(f"expects depth 1, 2 or 32, got {self.depth.data}")
        if self.is_of_unit and self.rows.data // 16 * self.vectors.data > TILE_SUMS:
            raise VerifyException(f"expects at most {TILE_SUMS} registers of sums")

    @property
    def is_packed(self) -> bool:
        """True if products take pairs of rows of rhs."""
        return self.depth.data > 1

    @property
    def is_of_unit(self) -> bool:
        """True if a matrix unit computes the products."""
        return self.depth.data == TILE_DEPTH

    def print_parameters(self, printer: Printer) -> None:
        depth = f" x {self.depth.data}" if self.is_packed else ""
        printer.print_string(f"<{self.rows.data} x {self.vectors.data}{depth}>")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            rows = parser.parse_integer()
            parser.parse_keyword("x")
            vectors, depth = parser.parse_integer(), 1
            if parser.parse_optional_keyword("x"):
                depth = parser.parse_integer()
        return [IntAttr(rows), IntAttr(vectors), IntAttr(depth)]


@irdl_op_definition
class RegisterProductOp(IRDLOperation):
    """The matrix product lhs @ rhs, added to `acc` if there is one.

    lhs is a tile, or the elements `base + i * strides[0] + k * strides[1]` of a tensor.
    A tensor is read in place and widened exactly to the result's type. With
    `rows`, only the first `rows` rows of the result are computed and the others are
    unspecified. With `inner`, the sum is over the first `inner` columns of lhs. No
    other elements of lhs are read. `next` is a prefetch hint that changes no result: if
    it is not 0, a later op reads the elements at that distance from those of lhs.

    A register tile with a depth multiplies 16-bit floats: rhs is packed in pairs, and
    the elements of each row of lhs are adjacent. The sum is in the result's type, and
    subnormal elements count as 0. A matrix unit clears the rows of rhs after `inner`
    terms, which no other op reads.

    A product of a matrix unit may be `beside` the panel map that follows it, and does
    not read it: they may be computed at the same time.

    ```mlir
    %s = tile.register_product %key[%base] strides [%s2, %c1] rows %n next %far, %q_t
         by <8 x 2> : tensor<?x?x?x64xbf16>, !tile.tile<64x32xf32>
         -> !tile.tile<96x32xf32>
    %o = tile.register_product %value[%base] strides [%c1, %s2] inner %n, %p onto %acc
         by <8 x 2> : tensor<?x?x?x64xbf16>, !tile.tile<96x32xf32>
         -> !tile.tile<64x32xf32>
    %o = tile.register_product %v_t inner %n, %p onto %acc by <8 x 2 x 2>
         : !tile.tile<64x96xbf16>, !tile.tile<96x32xbf16, #tile.pairs>
         -> !tile.tile<64x32xf32>
    ```
    """

    name = "tile.register_product"

    lhs = operand_def(TileType | TensorType)
    base = opt_operand_def(i64)
    strides = var_operand_def(i64)
    rows = opt_operand_def(i32)
    inner = opt_operand_def(i32)
    next = opt_operand_def(i64)
    rhs = operand_def(TileType)
    acc = opt_operand_def(TileType)
    register_tile = prop_def(RegisterTileAttr)
    beside = opt_prop_def(UnitAttr)
    result = result_def(TileType)

    traits = traits_def(Pure())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$lhs (`[` $base^ `]` `strides` `[` $strides `]`)? (`rows` $rows^)? "
        "(`inner` $inner^)? (`next` $next^)? `,` $rhs (`onto` $acc^)? "
        "`by` $register_tile (`beside` $beside^)? attr-dict "
        "`:` type($lhs) `,` type($rhs) (`onto` type($acc)^)? `->` type($result)"
    )

    def __init__(
        self,
        lhs: SSAValue,
        rhs: SSAValue,
        acc: SSAValue | None,
        type_: Attribute,
        register_tile: RegisterTileAttr,
        base: SSAValue | None = None,
        strides: Sequence[SSAValue] = (),
        rows: SSAValue | None = None,
        inner: SSAValue | None = None,
        next: SSAValue | None = None,
    ):
        super().__init__(
            operands=[lhs, base, strides, rows, inner, next, rhs, acc],
            properties={"register_tile": register_tile},
            result_types=[type_],
        )

    def verify_(self) -> None:
        k, n = matrix_shape("rhs", self.rhs.type)
        m, n2 = matrix_shape("result", self.result.type)
        if n != n2:
            raise VerifyException(
                f"result expects {n} columns, as many as rhs, got {n2}"
            )
        if self.acc is not None and self.acc.type != self.result.type:
            raise VerifyException(f"acc expects type {self.result.type}")
        in_memory = not isinstance(self.lhs.type, TileType)
        if in_memory != (self.base is not None) or len(self.strides) != 2 * in_memory:
            raise VerifyException(
                "a tensor lhs expects a base and two strides, a tile neither"
            )
        if self.next is not None and not in_memory:
            raise VerifyException("next expects a tensor")
        if self.beside is not None and not self.register_tile.is_of_unit:
            raise VerifyException("beside expects a register tile of a matrix unit")
        if not in_memory and shape_of(self.lhs.type) != (m, k):
            raise VerifyException(f"lhs expects shape {(m, k)}, got {self.lhs.type}")
        element = element_of(self.result.type)
        _verify_factors(self.register_tile, self.lhs.type, self.rhs.type, element)
        if not self.register_tile.is_packed or not in_memory:
            return
        if int_constant(self.strides[1]) != 1:
            raise VerifyException("strides expects adjacent columns of a packed lhs")


@irdl_op_definition
class AddRegisterProductOp(IRDLOperation):
    """An addition of the matrix product lhs @ rhs to a memref.

    Element (i, j) is added to the memref's element `base + i * stride + j`, for the
    first `rows` rows, or all. The sum is over the first `inner` columns of lhs, or all.
    No other program reads or writes the elements that are added to.

    ```mlir
    tile.add_register_product %dk[%base] stride %s3 rows %n, %w inner %m, %q by <8 x 2>
        : memref<?x?x?x64xf32>, !tile.tile<96x32xf32>, !tile.tile<32x64xf32>
    ```
    """

    name = "tile.add_register_product"

    memref = operand_def(MemRefType)
    base = operand_def(i64)
    stride = operand_def(i64)
    rows = opt_operand_def(i32)
    lhs = operand_def(TileType)
    inner = opt_operand_def(i32)
    rhs = operand_def(TileType)
    register_tile = prop_def(RegisterTileAttr)

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$memref `[` $base `]` `stride` $stride (`rows` $rows^)? `,` $lhs "
        "(`inner` $inner^)? `,` $rhs `by` $register_tile attr-dict "
        "`:` type($memref) `,` type($lhs) `,` type($rhs)"
    )

    def __init__(
        self,
        memref: SSAValue,
        base: SSAValue,
        stride: SSAValue,
        lhs: SSAValue,
        rhs: SSAValue,
        register_tile: RegisterTileAttr,
        rows: SSAValue | None = None,
        inner: SSAValue | None = None,
    ):
        super().__init__(
            operands=[memref, base, stride, rows, lhs, inner, rhs],
            properties={"register_tile": register_tile},
        )

    def verify_(self) -> None:
        _, k = matrix_shape("lhs", self.lhs.type)
        k2, _ = matrix_shape("rhs", self.rhs.type)
        if k != k2:
            raise VerifyException(
                f"rhs expects {k} rows, as many as lhs has columns, got {k2}"
            )
        assert isa(self.memref.type, MemRefType[Attribute])
        element = self.memref.type.element_type
        _verify_factors(self.register_tile, self.lhs.type, self.rhs.type, element)


def _verify_factors(
    register_tile: RegisterTileAttr, lhs: Attribute, rhs: Attribute, element: Attribute
) -> None:
    """Verify the element types of a product's operands, and the layout of its rhs."""
    layout = PairsAttr() if register_tile.is_packed else None
    if layout_of(rhs) != layout:
        raise VerifyException(f"rhs expects layout {layout}, got {rhs}")
    if layout is not None:
        element = element_of(rhs)
        if isa(lhs, TensorType[Attribute]) and lhs.element_type != element:
            raise VerifyException(f"lhs expects elements of {element}")
    for name, type_ in (("lhs", lhs), ("rhs", rhs)):
        if isinstance(type_, TileType) and element_of(type_) != element:
            raise VerifyException(f"{name} expects elements of {element}")


@irdl_op_definition
class PackOp(IRDLOperation):
    """The same numbers, rounded to 16-bit floats, with pairs of rows packed.

    With a `count`, only the first `count` rows have values.

    ```mlir
    %packed = tile.pack %p count %n : !tile.tile<96x32xf32>
        -> !tile.tile<96x32xbf16, #tile.pairs>
    ```
    """

    name = "tile.pack"

    input = operand_def(TileType)
    count = opt_operand_def(i32)
    result = result_def(TileType)

    traits = traits_def(Pure())
    assembly_format = (
        "$input (`count` $count^)? attr-dict `:` type($input) `->` type($result)"
    )

    def __init__(
        self, input: SSAValue, type_: Attribute, count: SSAValue | None = None
    ):
        super().__init__(operands=[input, count], result_types=[type_])

    def verify_(self) -> None:
        rows, _ = shape = matrix_shape("input", self.input.type)
        if shape != matrix_shape("result", self.result.type):
            raise VerifyException(f"result expects shape {shape}")
        if rows % 2 or layout_of(self.result.type) != PairsAttr():
            raise VerifyException(f"result expects pairs, got {self.result.type}")


@irdl_op_definition
class StreamProductOp(IRDLOperation):
    """The matrix product lhs @ rhs, or lhs @ rhs^T, added to `acc` if there is one.

    Row j of rhs is the adjacent elements of the tensor from `base + j * stride` on that
    the product needs, widened exactly to the result's type. Only the first `count`
    rows are read. Without `transposed`, the sum is over these rows: lhs has a column
    for each, and its other columns are not read. With `transposed`, each row gives a
    column of the result, whose other columns are unspecified; then there is no `acc`.

    While a row is read, the row `ahead` rows later may be prefetched, also beyond the
    last row. If `ahead` is 0, prefetching is left to the machine.

    ```mlir
    %s = tile.stream_product %q, %key[%base] stride %s2 count %n transposed ahead 32
         by <4 x 4> : !tile.tile<4x64xf32>, tensor<?x?x?x64xbf16>
         -> !tile.tile<4x256xf32>
    %o = tile.stream_product %p, %value[%base] stride %s2 count %n onto %acc ahead 32
         by <4 x 4> : !tile.tile<4x256xf32>, tensor<?x?x?x64xbf16>
         onto !tile.tile<4x64xf32> -> !tile.tile<4x64xf32>
    ```

    A register tile has rows, and vectors in each row. With `transposed`, it has rows of
    lhs and rows of rhs.
    """

    name = "tile.stream_product"

    lhs = operand_def(TileType)
    rhs = operand_def(TensorType[Attribute])
    base = operand_def(i64)
    stride = operand_def(i64)
    count = operand_def(i32)
    acc = opt_operand_def(TileType)
    transposed = opt_prop_def(UnitAttr)
    ahead = prop_def(IntegerAttr[I32])
    register_tile = prop_def(RegisterTileAttr)
    result = result_def(TileType)

    traits = traits_def(Pure())
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$lhs `,` $rhs `[` $base `]` `stride` $stride `count` $count (`onto` $acc^)? "
        "(`transposed` $transposed^)? `ahead` $ahead `by` $register_tile attr-dict "
        "`:` type($lhs) `,` type($rhs) (`onto` type($acc)^)? `->` type($result)"
    )

    def __init__(
        self,
        lhs: SSAValue,
        rhs: SSAValue,
        place: tuple[SSAValue, SSAValue, SSAValue],
        acc: SSAValue | None,
        type_: Attribute,
        register_tile: RegisterTileAttr,
        transposed: bool = False,
        ahead: int = 0,
    ):
        """Create a product; `place` is base, stride and count."""
        super().__init__(
            operands=[lhs, rhs, *place, acc],
            properties={
                "register_tile": register_tile,
                "ahead": IntegerAttr(ahead, i32),
                **({"transposed": UnitAttr()} if transposed else {}),
            },
            result_types=[type_],
        )

    @property
    def most_rows(self) -> int:
        """The number of rows of rhs that the operands and the result have room for."""
        shape = shape_of((self.result if self.transposed else self.lhs).type)
        return shape[1]

    @property
    def row_size(self) -> int:
        """The number of elements of a row of rhs that are read."""
        shape = shape_of((self.lhs if self.transposed else self.result).type)
        return shape[1]

    def verify_(self) -> None:
        rows, _ = matrix_shape("lhs", self.lhs.type)
        got, _ = matrix_shape("result", self.result.type)
        if rows != got:
            raise VerifyException(
                f"result expects {rows} rows, as many as lhs, got {got}"
            )
        if element_of(self.lhs.type) != (element := element_of(self.result.type)):
            raise VerifyException(f"lhs expects elements of {element}")
        if self.acc is not None and self.acc.type != self.result.type:
            raise VerifyException(f"acc expects type {self.result.type}")
        if self.acc is not None and self.transposed is not None:
            raise VerifyException("transposed expects no acc")
        if self.ahead.value.data < 0:
            raise VerifyException("ahead expects 0 rows or more")
