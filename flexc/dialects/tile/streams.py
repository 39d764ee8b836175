"""Products with few rows, whose right operand streams by.

Where few rows are multiplied with many numbers of memory, reading these is what takes
time: they are read where they lie, once, a vector at a time along their rows, and may
be fetched some rows ahead.
"""

from __future__ import annotations

from xdsl.dialects.builtin import I32, IntegerAttr, TensorType, UnitAttr, i32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from flexc.dialects.tile.compute import element_of, shape_of
from flexc.dialects.tile.register_products import RegisterTileAttr
from flexc.dialects.tile.schedule.types import matrix_shape
from flexc.dialects.tile.types import TileType


@irdl_op_definition
class StreamProductOp(IRDLOperation):
    """The matrix product lhs @ rhs, or lhs @ rhs^T, added to `acc` if there is one.

    Row j of rhs are the tensor's elements from `base + j * stride` on, side by side, as
    many as the product has use for, widened exactly to the result's type. Only the
    first `count` rows are read. Without `transposed` they are what is summed over:
    lhs has a column for each, of which the others are not read. With `transposed` each
    makes a column of the result, whose other columns are unspecified; there is no acc
    then.

    Rows may be fetched to a cache when the one `ahead` rows before them is read, also
    beyond the last; 0 leaves that to the machine.

    ```mlir
    %s = tile.stream_product %q, %key[%base] stride %s2 count %n transposed ahead 32
         by <4 x 4> : !tile.tile<4x64xf32>, tensor<?x?x?x64xbf16>
         -> !tile.tile<4x256xf32>
    %o = tile.stream_product %p, %value[%base] stride %s2 count %n onto %acc ahead 32
         by <4 x 4> : !tile.tile<4x256xf32>, tensor<?x?x?x64xbf16>
         onto !tile.tile<4x64xf32> -> !tile.tile<4x64xf32>
    ```

    A register tile is of rows, and of vectors in each, or, with `transposed`, of rows
    of lhs and of rhs.
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
        """`place` is base, stride and count."""
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
        """How many rows of rhs there is room for."""
        shape = shape_of((self.result if self.transposed else self.lhs).type)
        return shape[1]

    @property
    def row_size(self) -> int:
        """How many elements of a row of rhs are read."""
        shape = shape_of((self.lhs if self.transposed else self.result).type)
        return shape[1]

    def verify_(self) -> None:
        rows, _ = matrix_shape("lhs", self.lhs.type)
        got, _ = matrix_shape("result", self.result.type)
        if rows != got:
            raise VerifyException(f"result expects {rows} rows as lhs has, got {got}")
        if element_of(self.lhs.type) != (element := element_of(self.result.type)):
            raise VerifyException(f"lhs expects elements of {element}")
        if self.acc is not None and self.acc.type != self.result.type:
            raise VerifyException(f"acc expects type {self.result.type}")
        if self.acc is not None and self.transposed is not None:
            raise VerifyException("transposed expects no acc")
        if self.ahead.value.data < 0:
            raise VerifyException("ahead expects a number of rows")


STREAM_OPS = (StreamProductOp,)
